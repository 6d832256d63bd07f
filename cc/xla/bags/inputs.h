// The inputs of bag ops, with their shapes checked, for XLA.
#ifndef TF_TI_CC_XLA_BAGS_INPUTS_H_
#define TF_TI_CC_XLA_BAGS_INPUTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

absl::Status GetConstant(const Context& ctx, int input, const char* name, int64_t* value);

// The number of elements in a row.
int64_t WidthOf(const tensorflow::TensorShape& shape);

// [m, ...] as [m, width], and back, with the dimensions that `like` has.
xla::XlaOp Flatten(xla::XlaOp rows);
xla::XlaOp Unflatten(xla::XlaOp rows, const tensorflow::TensorShape& like);

// A table of a bag op: an input, or a variable that it is the handle of.
struct BagTable {
  tensorflow::TensorShape shape;
  xla::XlaOp given;  // of that shape
  xla::XlaOp rows;   // [num_rows, width]

  absl::Status Init(const Context& ctx, tensorflow::DataType dtype, int input = 0);

  int64_t num_rows() const { return shape.dim_size(0); }
  int64_t width() const { return WidthOf(shape); }
};

// The indices of each bag.
struct BagInputs {
  const BagSpec* spec = nullptr;
  tensorflow::TensorShape shape;  // of the indices
  int64_t num_indices = 0;
  int64_t count = 0;
  // The inputs as vectors; null where the op has none.
  xla::XlaOp indices, bounds, weights;
  xla::XlaOp default_index;  // a scalar

  // Gets the inputs of a look-up whose sums have `width` numbers; and those of a gradient, with the
  // shape of `grad`.
  absl::Status Init(const Context& ctx, const BagSpec& spec, int64_t width);
  absl::Status InitGradient(const Context& ctx, const BagSpec& spec, tensorflow::TensorShape* grad);

  bool is_packed() const { return spec->is_packed(); }
  int64_t packed_size() const { return is_packed() ? shape.dim_size(1) : 0; }

 private:
  // Gets the inputs, whose shapes have been checked.
  absl::Status InitChecked(const Context& ctx, int64_t width);
};

struct PooledBags {
  xla::XlaOp rows;    // [count, width]
  xla::XlaOp argmax;  // the same, of the indices' type; for kMax, where wanted
};

// The gradient of a table. No row has a gradient twice: a row that is given again has zeros there.
struct RowGradients {
  xla::XlaOp rows;    // [m], of the indices' type
  xla::XlaOp values;  // [m, width]
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_INPUTS_H_
