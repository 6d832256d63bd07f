// Bags made of XLA's own operations: gathers, and reductions of segments.
//
// An id that is no row of the table reads as a row of zeros, and its gradient goes nowhere. With
// TF_TI_CHECK_IDS=1 in the environment at compile time it is an error instead, as are bounds of
// bags that make no sense. Without that, such bounds give bags that mean nothing.
#ifndef TF_TI_CC_XLA_BAGS_HLO_H_
#define TF_TI_CC_XLA_BAGS_HLO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/xla/bags/inputs.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

// As in host.h, except for the rows that a gradient has.
PooledBags PoolInHlo(const BagTable& table, const BagInputs& inputs, bool has_argmax);
RowGradients TableGradientInHlo(xla::XlaOp grad, const BagInputs& inputs, xla::XlaOp argmax,
                                int64_t num_rows);
xla::XlaOp WeightsGradientInHlo(const BagTable& table, const BagInputs& inputs, xla::XlaOp grad);

// The outputs of TfTi>EmbeddingBagPartition; each shard has all bags, and an id for each index.
struct PartitionedBags {
  std::vector<xla::XlaOp> ids;
  xla::XlaOp offsets, numbers, positions, is_empty;
};
PartitionedBags PartitionInHlo(const BagInputs& inputs, int64_t num_rows, int64_t num_shards,
                               bool is_mod, xla::PrimitiveType local);

// The position of the first row that is equal, for each of some rows.
xla::XlaOp FirstOfEqual(xla::XlaOp rows, int64_t num_rows);

// Fails where a condition on some position of a vector does not hold. In the message, $0 is the
// first such position, and $1, $2, ... are the numbers of `values` there.
void RequireAll(xla::XlaOp holds, const std::string& message,
                const std::vector<xla::XlaOp>& values);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_HLO_H_
