// The kernel that finds indices among the rows that have a gradient.
#include <algorithm>
#include <numeric>
#include <vector>

#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename Index>
class EmbeddingBagSlotsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(1);
    const Tensor& indices = ctx->input(2);
    OP_REQUIRES(ctx, rows.dims() == 1,
                InvalidArgument("rows must have rank 1, got shape ", rows.shape().DebugString()));
    Tensor* slots = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, indices.shape(), &slots));
    OP_REQUIRES(ctx, ctx->input(0).dims() == 0,
                InvalidArgument("num_emb must have rank 0, got shape ",
                                ctx->input(0).shape().DebugString()));
    const int64_t num_emb = ctx->input(0).scalar<int64_t>()();
    const Index* const begin = rows.flat<Index>().data();
    const Index* const end = begin + rows.NumElements();
    std::vector<int64_t> order;  // of the rows, where XLA has left them unsorted
    if (!std::is_sorted(begin, end)) {
      order.resize(rows.NumElements());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [=](int64_t a, int64_t b) { return begin[a] < begin[b]; });
    }
    const auto find = [&](Index index) {
      if (index < 0 || index >= num_emb) return Index(-2);
      if (order.empty()) {
        const Index* const row = std::lower_bound(begin, end, index);
        return row == end || *row != index ? Index(-1) : static_cast<Index>(row - begin);
      }
      const auto place = std::lower_bound(order.begin(), order.end(), index,
                                          [=](int64_t at, Index to) { return begin[at] < to; });
      const bool is_there = place != order.end() && begin[*place] == index;
      return is_there ? static_cast<Index>(*place) : Index(-1);
    };
    const Index* const first = indices.flat<Index>().data();
    std::transform(first, first + indices.NumElements(), slots->flat<Index>().data(), find);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfTi>EmbeddingBagSlots")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int32_t>("Tindices"),
                        EmbeddingBagSlotsOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("TfTi>EmbeddingBagSlots")
                            .Device(tensorflow::DEVICE_CPU)
                            .TypeConstraint<int64_t>("Tindices"),
                        EmbeddingBagSlotsOp<int64_t>);

}  // namespace
}  // namespace tf_ti
