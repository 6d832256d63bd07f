// The kernel that finds the positions of indices among the rows that have a gradient.
#include <algorithm>
#include <numeric>
#include <vector>

#include "cc/kernels/kernel.h"
#include "cc/kernels/memory.h"
#include "cc/spec/shapes.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// Rows of a table, for searches. Rows with the same highest bits lie together. These are few, so
// that no search begins far away.
template <typename Index>
class Rows {
 public:
  Rows(const Tensor& rows, int64_t num_emb)
      : rows_(rows.flat<Index>().data()), count_(rows.NumElements()) {
    if (!std::is_sorted(rows_, rows_ + count_)) {  // as XLA leaves them
      order_.resize(count_);
      std::iota(order_.begin(), order_.end(), 0);
      std::stable_sort(order_.begin(), order_.end(),
                       [this](int64_t a, int64_t b) { return rows_[a] < rows_[b]; });
    }
    const int64_t last = std::max<int64_t>(num_emb, 1) - 1;
    while (last >> shift_ > count_) ++shift_;
    begins_.resize((last >> shift_) + 2);
    int64_t at = 0;
    for (size_t bucket = 0; bucket < begins_.size(); ++bucket) {
      while (at < count_ && Get(at) >> shift_ < static_cast<int64_t>(bucket)) ++at;
      begins_[bucket] = at;
    }
  }

  // The first position of a row of the table, or -1.
  Index Find(Index row) const {
    const int64_t bucket = static_cast<int64_t>(row) >> shift_;
    int64_t begin = begins_[bucket], end = begins_[bucket + 1];
    while (begin < end) {
      const int64_t middle = begin + (end - begin) / 2;
      if (Get(middle) < row) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin < count_ && Get(begin) == row ? static_cast<Index>(Place(begin)) : Index(-1);
  }

 private:
  int64_t Place(int64_t at) const { return order_.empty() ? at : order_[at]; }
  int64_t Get(int64_t at) const { return rows_[Place(at)]; }

  const Index* const rows_;
  const int64_t count_;
  std::vector<int64_t> order_;  // of rows that are not sorted
  int shift_ = 0;
  std::vector<int64_t> begins_;  // of each bucket, and the end
};

template <typename Index>
class RowPositionsOp : public SafeKernel {
 public:
  using SafeKernel::SafeKernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& rows = ctx->input(1);
    const Tensor& indices = ctx->input(2);
    TF_RETURN_IF_ERROR(CheckRank("num_emb", ctx->input(0).shape(), 0));
    TF_RETURN_IF_ERROR(CheckRank("rows", rows.shape(), 1));
    Tensor* positions = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, 0, indices.shape(), &positions));
    const int64_t num_emb = ctx->input(0).scalar<int64_t>()();
    const Rows<Index> known(rows, num_emb);
    const auto find = [&](Index index) {
      return index < 0 || index >= num_emb ? Index(-2) : known.Find(index);
    };
    const Index* const first = indices.flat<Index>().data();
    std::transform(first, first + indices.NumElements(), positions->flat<Index>().data(), find);
    return absl::OkStatus();
  }
};

TF_TI_REGISTER_KERNEL(Name("TfTi>EmbeddingBagSlots")
                          .Device(tensorflow::DEVICE_CPU)
                          .TypeConstraint<int32_t>("Tindices"),
                      RowPositionsOp<int32_t>);
TF_TI_REGISTER_KERNEL(Name("TfTi>EmbeddingBagSlots")
                          .Device(tensorflow::DEVICE_CPU)
                          .TypeConstraint<int64_t>("Tindices"),
                      RowPositionsOp<int64_t>);

}  // namespace
}  // namespace tf_ti
