#include "cc/xla/bags/kernel.h"

#include <limits>

#include "cc/status.h"
#include "cc/xla/bags/hlo.h"
#include "cc/xla/bags/host.h"
#include "cc/xla/shapes.h"

namespace tf_ti {

using tensorflow::TensorShape;
using xla::XlaOp;

absl::Status BagsXlaKernel::Pool(const Context& ctx, const BagSpec& spec,
                                 const BagTable& table) const {
  BagInputs inputs;
  TF_RETURN_IF_ERROR(inputs.Init(ctx, spec, table.width()));
  const bool has_argmax = spec.argmax >= 0;
  if (has_argmax && inputs.num_indices > std::numeric_limits<int32_t>::max() &&
      ctx.input_type(spec.indices) == tensorflow::DT_INT32) {
    return InvalidArgument("there are ", inputs.num_indices, " indices: they must be int64");
  }
  const PooledBags bags = (IsOnHost() ? PoolOnHost : PoolInHlo)(table, inputs, has_argmax);
  AddRead(ctx, table, bags.rows);
  ctx.SetOutput(spec.table, Unflatten(bags.rows, table.shape));
  if (has_argmax) ctx.SetOutput(spec.argmax, Unflatten(bags.argmax, table.shape));
  return ctx.builder()->first_error();
}

absl::Status BagsXlaKernel::GetRowGradients(const Context& ctx, const BagSpec& spec,
                                            int64_t num_rows, const std::vector<XlaOp>& reads,
                                            TensorShape* shape, RowGradients* gradients) const {
  BagInputs inputs;
  TF_RETURN_IF_ERROR(inputs.InitGradient(ctx, spec, shape));
  XlaOp argmax;
  if (spec.reduction == Reduction::kMax) argmax = Flatten(ctx.Input(spec.end));
  const XlaOp rows = Flatten(ctx.Input(spec.grad()));
  *gradients = IsOnHost() ? TableGradientOnHost(rows, inputs, argmax, num_rows, reads)
                          : TableGradientInHlo(rows, inputs, argmax, num_rows);
  return absl::OkStatus();
}

}  // namespace tf_ti
