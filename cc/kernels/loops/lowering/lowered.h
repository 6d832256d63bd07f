// Values while operations are lowered, and why an operation is not.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWERED_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWERED_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/compute/program/view.h"
#include "cc/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

std::optional<ElementType> ElementTypeOf(tensorflow::DataType dtype);
tensorflow::DataType DataTypeOf(ElementType type);

// The values of a history: the rows of an array, or an array each. There may be fewer than rows.
struct RecordedValues {
  std::optional<View> rows;
  std::vector<View> arrays;
  std::optional<View> num_values;  // an int64, where there may be

  int64_t most() const {
    return rows.has_value() ? rows->dims[0] : static_cast<int64_t>(arrays.size());
  }
};

// An array of the program, or a tensor whose elements are known when the program is made, as axes
// and shapes are, or a history. Exactly one member has a value, or none where nobody reads the
// value.
struct Lowered {
  std::optional<View> view = std::nullopt;
  std::optional<tensorflow::Tensor> known = std::nullopt;
  std::optional<RecordedValues> history = std::nullopt;
};
inline bool IsArray(const Lowered& value) {
  return value.view.has_value() || value.known.has_value();
}
Dims DimsOf(const Lowered& value);
tensorflow::DataType DataTypeOf(const Lowered& value);

// The status of an operation that cannot be lowered. The reason names the misfit.
template <typename... Args>
absl::Status Refused(const Args&... reason) {
  return Unimplemented(reason...);
}

// The result of an operation, refused where the program has no kernel for it.
absl::StatusOr<View> OrRefused(std::optional<View> result);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_LOWERED_H_
