// Histories in XLA computations, where every shape is known at compile time.
//
// A value is an array or, where it is a history itself, a tuple of arrays. A stack of values is the
// value whose arrays have one more dimension, the first, which counts the values. A history is a
// tuple of arrays, in the form that TensorFlow gives its own lists: its last is a scalar of type
// s32.
//   uniform     the stack; the number of values
//   bounded     the stack, of which only the first values count; a mark; the number of values
//   ragged      the stack of all values but the last, which has another shape; the last; a mark;
//               the number of values
//   unrecorded  a mark; 0
// A mark is an array without elements, whose shape tells the kind.
#ifndef TF_TI_CC_XLA_LOOPS_HISTORY_H_
#define TF_TI_CC_XLA_LOOPS_HISTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_ti {

// The value of a shape whose arrays hold zeros.
xla::XlaOp ZeroValue(xla::XlaBuilder* builder, const xla::Shape& shape);
// The shape of a stack of `count` values.
xla::Shape StackShape(const xla::Shape& value, int64_t count);
// The shape of a uniform history of `count` values.
xla::Shape HistoryShape(const xla::Shape& value, int64_t count);
// The `size` values from `begin` on, and the one value at `begin`.
xla::XlaOp StackRange(xla::XlaOp stack, int64_t begin, int64_t size);
xla::XlaOp StackRange(xla::XlaOp stack, xla::XlaOp begin, int64_t size);
xla::XlaOp StackElement(xla::XlaOp stack, xla::XlaOp at);
// The stack with the value at `at` replaced where `condition` holds; a null one always does.
xla::XlaOp UpdateStack(xla::XlaOp stack, xla::XlaOp value, xla::XlaOp at, xla::XlaOp condition);
// The stack with the values from `at` on replaced by those of another.
xla::XlaOp UpdateStackRange(xla::XlaOp stack, xla::XlaOp values, xla::XlaOp at);
// The stack with one value more, or with all values of another one, at its end.
xla::XlaOp AppendToStack(xla::XlaOp stack, xla::XlaOp value);
xla::XlaOp JoinStacks(xla::XlaOp stack, xla::XlaOp values);
// The extent of a shape's stack.
int64_t StackSize(const xla::Shape& stack);
// The shape of a stack's values.
xla::Shape ElementShape(const xla::Shape& stack);

// A history taken apart.
struct HistoryParts {
  xla::XlaOp stack;  // null where it was not recorded
  xla::XlaOp count;  // where it is bounded, else null
  xla::XlaOp last;   // where it is ragged, else null

  absl::Status Init(xla::XlaOp history, const std::string& label);
  xla::XlaOp Join(xla::XlaBuilder* builder) const;
};

// The stack of a uniform history, and its shape; an error for another history.
xla::XlaOp UniformStack(xla::XlaOp history, const std::string& label);
absl::StatusOr<xla::Shape> UniformStackShape(const xla::Shape& history, const std::string& label);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_HISTORY_H_
