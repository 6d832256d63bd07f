// The kernel that cuts bags of a table in shards into bags of each shard.
#include "cc/compute/bags/partition.h"

#include <limits>
#include <string>
#include <vector>

#include "cc/kernels/bags/bags.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/memory.h"
#include "cc/kernels/threads.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

template <typename Index, typename Local>
class EmbeddingBagPartitionOp : public SafeKernel {
 public:
  explicit EmbeddingBagPartitionOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx)));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const int num_shards = spec_.num_shards;
    const Tensor& num_emb = ctx->input(0);
    TF_RETURN_IF_ERROR(CheckRank("num_emb", num_emb.shape(), 0));
    const int64_t num_rows = num_emb.scalar<int64_t>()();
    TF_RETURN_IF_ERROR(CheckNumEmb(num_rows));
    Bags<Index> bags;
    TF_RETURN_IF_ERROR(GetBags(ctx, spec_.bags, &bags));
    const Shards shards(num_rows, num_shards, spec_.strategy);
    constexpr int64_t kMost = std::numeric_limits<Local>::max();
    if (shards.largest() > kMost || bags.num_indices > kMost) {
      return InvalidArgument("there are ", num_rows, " rows and ", bags.num_indices,
                             " indices: Tlocal must be int64");
    }
    Tensor* is_empty = nullptr;
    const int last = ctx->num_outputs() - 1;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, last, TensorShape({bags.count}), &is_empty));
    Threads threads(ctx);
    BagPartition<Index> partition(bags, shards);
    const std::string problem = partition.Init(&threads, is_empty->flat<bool>().data());
    if (!problem.empty()) return InvalidArgument(problem);
    std::vector<ShardBags<Local>> outputs(num_shards);
    for (int k = 0; k < num_shards; ++k) {
      ShardBags<Local>& output = outputs[k];
      const int64_t num_ids = partition.num_ids(k), num_bags = partition.num_bags(k);
      TF_RETURN_IF_ERROR(Allocate(ctx, k, num_ids, &output.ids));
      TF_RETURN_IF_ERROR(Allocate(ctx, num_shards + k, num_bags, &output.offsets));
      TF_RETURN_IF_ERROR(Allocate(ctx, 2 * num_shards + k, num_bags, &output.bags));
      output.positions = nullptr;
      if (spec_.has_positions) {
        TF_RETURN_IF_ERROR(Allocate(ctx, 3 * num_shards + k, num_ids, &output.positions));
      }
    }
    partition.Fill(&threads, outputs);
    return absl::OkStatus();
  }

  template <typename E>
  static absl::Status Allocate(OpKernelContext* ctx, int output, int64_t size, E** elements) {
    Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, output, TensorShape({size}), &tensor));
    *elements = Elements<E>(tensor);
    return absl::OkStatus();
  }

  PartitionSpec spec_;
};

#define TF_TI_REGISTER(Index, Local)                           \
  TF_TI_REGISTER_KERNEL(Name("TfTi>EmbeddingBagPartition")     \
                            .Device(tensorflow::DEVICE_CPU)    \
                            .TypeConstraint<Index>("Tindices") \
                            .TypeConstraint<Local>("Tlocal"),  \
                        EmbeddingBagPartitionOp<Index, Local>)
TF_TI_REGISTER(int32_t, int32_t);
TF_TI_REGISTER(int32_t, int64_t);
TF_TI_REGISTER(int64_t, int32_t);
TF_TI_REGISTER(int64_t, int64_t);

}  // namespace
}  // namespace tf_ti
