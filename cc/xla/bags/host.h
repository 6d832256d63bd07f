// The bags of XLA computations on the CPU: calls of cc/compute, which are faster than XLA's own
// gathers and reductions.
//
// Wrong bounds of bags end the computation with InvalidArgument. An id that is no row of the table
// reads as a row of zeros, and its gradient goes nowhere. With TF_TI_CHECK_IDS=1 in the environment
// at compile time, it is an error too.
#ifndef TF_TI_CC_XLA_BAGS_HOST_H_
#define TF_TI_CC_XLA_BAGS_HOST_H_

#include <cstdint>
#include <vector>

#include "cc/xla/bags/inputs.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

PooledBags PoolOnHost(const BagTable& table, const BagInputs& inputs, bool has_argmax);

// The gradient from grad [count, width]; `argmax` [count, width] is null but for kMax. It has as
// many rows as can have a gradient, ascending; behind those that have one, the last of them again
// and again. The call waits for `reads`.
RowGradients TableGradientOnHost(xla::XlaOp grad, const BagInputs& inputs, xla::XlaOp argmax,
                                 int64_t num_rows, const std::vector<xla::XlaOp>& reads);

// [num_indices], of the weights' type.
xla::XlaOp WeightsGradientOnHost(const BagTable& table, const BagInputs& inputs, xla::XlaOp grad);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_HOST_H_
