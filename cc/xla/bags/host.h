// The bags of XLA's programs that run on the CPU: calls of cc/compute, which is faster than what
// XLA makes of gathers and reductions.
//
// Wrong bounds of bags end the program with InvalidArgument. An id that is no row of the table
// reads as a row of zeros, and its gradient goes nowhere; with TF_TI_CHECK_IDS=1 in the environment
// when the program is compiled, it is an error too.
#ifndef TF_TI_CC_XLA_BAGS_HOST_H_
#define TF_TI_CC_XLA_BAGS_HOST_H_

#include <cstdint>
#include <vector>

#include "cc/xla/bags/inputs.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

PooledBags PoolOnHost(const BagTable& table, const BagInputs& inputs, bool has_argmax);

// From grad [count, width]; `argmax` [count, width] is null but for kMax. There are as many rows as
// can have a gradient, ascending; behind those that have one, the last of them again and again.
// The call waits for `reads`.
RowGradients TableGradientOnHost(xla::XlaOp grad, const BagInputs& inputs, xla::XlaOp argmax,
                                 int64_t num_rows, const std::vector<xla::XlaOp>& reads);

// [num_indices], of the weights' type.
xla::XlaOp WeightsGradientOnHost(const BagTable& table, const BagInputs& inputs, xla::XlaOp grad);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_HOST_H_
