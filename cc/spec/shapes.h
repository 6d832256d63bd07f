// Checks of shapes. `Shape` is a TensorShape, as kernels have, or a PartialTensorShape, as shape
// functions have. Dimensions that are not known are right.
#ifndef TF_TI_CC_SPEC_SHAPES_H_
#define TF_TI_CC_SPEC_SHAPES_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "cc/status.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

template <typename Shape>
absl::Status CheckRank(absl::string_view name, const Shape& shape, int rank) {
  if (shape.unknown_rank() || shape.dims() == rank) return absl::OkStatus();
  return InvalidArgument(name, " must have rank ", rank, ", got shape ", shape.DebugString());
}

template <typename Shape>
absl::Status CheckScalar(absl::string_view name, const Shape& shape) {
  if (shape.unknown_rank() || shape.dims() == 0) return absl::OkStatus();
  return InvalidArgument(name, " must be a scalar, got shape ", shape.DebugString());
}

template <typename Shape>
absl::Status CheckHasRows(absl::string_view name, const Shape& shape) {
  if (shape.unknown_rank() || shape.dims() > 0) return absl::OkStatus();
  return InvalidArgument(name, " must have rank 1 or more, got a scalar");
}

template <typename Shape>
bool MayBeEqual(const Shape& a, const Shape& b) {
  if (a.unknown_rank() || b.unknown_rank()) return true;
  if (a.dims() != b.dims()) return false;
  for (int d = 0; d < a.dims(); ++d) {
    const int64_t x = a.dim_size(d), y = b.dim_size(d);
    if (x != y && x >= 0 && y >= 0) return false;
  }
  return true;
}

template <typename Shape>
absl::Status CheckShape(absl::string_view name, const Shape& shape, const Shape& expected) {
  if (MayBeEqual(shape, expected)) return absl::OkStatus();
  return InvalidArgument(name, " must have shape ", expected.DebugString(), ", got ",
                         shape.DebugString());
}

// Returns an error if `shape` is not that of another input.
template <typename Shape>
absl::Status CheckShapeOf(absl::string_view name, const Shape& shape, absl::string_view other_name,
                          const Shape& other) {
  if (MayBeEqual(shape, other)) return absl::OkStatus();
  return InvalidArgument(name, " must have the shape of ", other_name, ", ", other.DebugString(),
                         ", got ", shape.DebugString());
}

// `given` counts from the end where it is negative. `kind` is a tensor, an output, ...
inline absl::Status ResolveAxis(absl::string_view label, int64_t given, absl::string_view kind,
                                int64_t rank, int64_t* axis) {
  *axis = given < 0 ? given + rank : given;
  if (*axis >= 0 && *axis < rank) return absl::OkStatus();
  return InvalidArgument(label, ": axis ", given, " is out of range for ", kind, " of rank ", rank);
}

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_SHAPES_H_
