// The rows of a table's gradient where their ids are known when XLA compiles.
//
// TensorFlow evaluates operations of constants while it traces and while it prepares a graph for
// XLA, with the CPU's kernels. Then it takes the number of rows that a kernel gives for a static
// one. So XLA's gradient has to have just those rows.
#ifndef TF_TI_CC_XLA_BAGS_KNOWN_ROWS_H_
#define TF_TI_CC_XLA_BAGS_KNOWN_ROWS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/xla/bags/inputs.h"
#include "cc/xla/tf2xla.h"

namespace tf_ti {

// The rows that the CPU's kernel gives for an op's ids, ascending. Nothing where some of what
// decides about them is not known, or is wrong.
absl::StatusOr<std::optional<std::vector<int64_t>>> FindKnownRows(const Context& ctx,
                                                                  const BagSpec& spec,
                                                                  int64_t num_rows);

// A gradient of a table of `num_rows` rows with only `rows`, among which are all that have one.
RowGradients OnlyRows(const RowGradients& gradients, const std::vector<int64_t>& rows,
                      int64_t num_rows);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_KNOWN_ROWS_H_
