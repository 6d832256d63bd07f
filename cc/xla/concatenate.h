// Concatenations in XLA computations.
#ifndef TF_TI_CC_XLA_CONCATENATE_H_
#define TF_TI_CC_XLA_CONCATENATE_H_

#include <cstdint>
#include <vector>

#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

// Concatenates arrays of static shapes along an axis.
//
// LLVM, as of TensorFlow 2.21, vectorises a loop over rows wrongly if it can tell that the last row
// comes from elsewhere: it writes that row past the end of the array. XLA's own concatenation,
// fused with another, becomes such a loop, and so do a pad by one row and an update of a slice.
// Here LLVM cannot tell: positions and masks in memory choose each row.
xla::XlaOp Concatenate(const std::vector<xla::XlaOp>& parts, int64_t axis);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_CONCATENATE_H_
