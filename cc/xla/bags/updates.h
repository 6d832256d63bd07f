// Steps of optimizers on rows of tables, for XLA: see cc/compute/bags/updates.h. Indices that are
// no rows are left out. With TF_TI_CHECK_IDS=1 in the environment at compile time, they are an
// error, and nothing is written.
#ifndef TF_TI_CC_XLA_BAGS_UPDATES_H_
#define TF_TI_CC_XLA_BAGS_UPDATES_H_

#include <vector>

#include "cc/spec/bags/update_spec.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

// table[indices[i]] -= scale * values[i], for any numbers; in place, after `reads`.
xla::XlaOp ScatterSubOnHost(xla::XlaOp table, xla::XlaOp indices, xla::XlaOp values,
                            xla::XlaOp scale, const std::vector<xla::XlaOp>& reads);
xla::XlaOp ScatterSubInHlo(xla::XlaOp table, xla::XlaOp indices, xla::XlaOp values,
                           xla::XlaOp scale);

// Members that a rule does not have are null.
struct RowUpdate {
  UpdateRule rule;
  xla::XlaOp indices, values;  // [count], [count, width]
  // The values to update. The second slot may have one column: then it is row-wise.
  xla::XlaOp table, first, second;  // [num_rows, width]
  bool is_row_wise = false;
  // Scalars: the rate in the type of the sums, the step as s64, the others as f64.
  xla::XlaOp rate, step, beta_1, beta_2, epsilon, weight_decay;
  bool flag = false;  // epsilon_hat of Adam, epsilon_inside_sqrt of Adagrad
  // The values that were read before of those to update.
  std::vector<xla::XlaOp> reads;
};

// The updated values.
struct UpdatedRows {
  xla::XlaOp table, first, second;
};

// In place, after `reads`. A number that is out of its range is an error.
UpdatedRows UpdateOnHost(const RowUpdate& update);

// A step below 1 counts as 1.
UpdatedRows UpdateInHlo(const RowUpdate& update);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_UPDATES_H_
