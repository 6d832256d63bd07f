#include "cc/spec/recurrent/sequence_shapes.h"

#include <limits>

#include "cc/spec/shapes.h"

namespace tf_ti {
namespace {

using Dims = std::vector<int64_t>;

template <typename Shape>
int64_t Extent(const Shape& shape, int axis) {
  return shape.unknown_rank() ? -1 : shape.dim_size(axis);
}

// The number of tensors that a gradient takes.
int NumSaved(const CellSpec& spec) {
  const bool saves_gates = NumSavedGates(spec.kind) > 0;
  const bool saves_h = spec.kind == CellKind::kRnn || spec.has_lengths || spec.has_mask;
  return saves_gates + spec.is_lstm() + saves_h + spec.saves_arguments();
}

}  // namespace

template <typename Shape>
absl::Status SequenceShapes<Shape>::Init(const CellSpec& spec, const Find& find) {
  Shape x, h;
  TF_RETURN_IF_ERROR(find(0, "x", &x));
  TF_RETURN_IF_ERROR(find(1, "h", &h));
  TF_RETURN_IF_ERROR(CheckRank("x", x, 3));
  TF_RETURN_IF_ERROR(CheckRank("h", h, 2));
  sizes.num_steps = Extent(x, spec.time_major ? 0 : 1);
  sizes.batch = Extent(x, spec.time_major ? 1 : 0);
  if (sizes.batch < 0) sizes.batch = Extent(h, 0);
  sizes.input = Extent(x, 2);
  sizes.hidden = Extent(h, 1);
  // Recurrent weights for more units fit into no memory.
  constexpr int64_t kMostUnits = std::numeric_limits<int32_t>::max();
  if (sizes.hidden == 0 || sizes.hidden > kMostUnits) {
    return InvalidArgument("h must have between 1 and ", kMostUnits, " units, got shape ",
                           h.DebugString());
  }
  const bool is_known = sizes.hidden >= 0;
  const int64_t columns = is_known ? NumGates(spec.kind) * sizes.hidden : -1;
  if (!spec.has_weights && is_known && sizes.input >= 0 && sizes.input != columns) {
    return InvalidArgument("x must have ", columns, " columns without w, got shape ",
                           x.DebugString());
  }
  const Dims state = {sizes.batch, sizes.hidden};
  const int64_t first = spec.time_major ? sizes.num_steps : sizes.batch;
  const int64_t second = spec.time_major ? sizes.batch : sizes.num_steps;
  const Dims y = {first, second, sizes.hidden};
  const auto weights = [&](int64_t rows) {
    return spec.transpose_weights ? Dims{columns, rows} : Dims{rows, columns};
  };
  const auto saved = [&](int i) {
    const int num_saved_gates = i == 0 ? NumSavedGates(spec.kind) : 0;
    const bool is_arguments = i == spec.num_saved - 1 && spec.saves_arguments();
    const int64_t of_unit = is_arguments ? NumGates(spec.kind) : num_saved_gates;
    return of_unit > 0 ? Dims{sizes.num_steps, sizes.batch, of_unit, sizes.hidden}
                       : Dims{sizes.num_steps, sizes.batch, sizes.hidden};
  };

  const auto add_output = [&](const Dims& dims, bool is_saved = false) {
    outputs.push_back({Shape(), is_saved});
    return Shape::BuildTensorShapeBase(dims, &outputs.back().shape);
  };
  int input = 1;
  const auto check = [&](const char* name, const Dims& expected) {
    Shape shape, known;
    TF_RETURN_IF_ERROR(find(input++, name, &shape));
    TF_RETURN_IF_ERROR(Shape::BuildTensorShapeBase(expected, &known));
    return CheckShape(name, shape, known);
  };
  // Checks an input that has a gradient, and adds the gradient to the outputs of a gradient op.
  const auto check_and_add = [&](const char* name, const Dims& expected) {
    TF_RETURN_IF_ERROR(check(name, expected));
    return spec.is_gradient ? add_output(expected) : absl::OkStatus();
  };
  outputs.clear();
  if (spec.is_gradient) outputs.push_back({x});
  TF_RETURN_IF_ERROR(check_and_add("h", state));
  if (spec.is_lstm()) TF_RETURN_IF_ERROR(check_and_add("c", state));
  if (spec.has_weights) TF_RETURN_IF_ERROR(check_and_add("w", weights(sizes.input)));
  TF_RETURN_IF_ERROR(check_and_add("r", weights(sizes.hidden)));
  if (spec.has_bias) {
    const int64_t recurrent = spec.resets_product() ? sizes.hidden : 0;
    const int64_t biases = is_known ? columns + recurrent : -1;
    TF_RETURN_IF_ERROR(check_and_add("b", {biases}));
  }
  if (spec.has_lengths) TF_RETURN_IF_ERROR(check("lengths", {sizes.batch}));
  if (spec.has_mask) TF_RETURN_IF_ERROR(check("mask", {first, second}));
  if ((spec.is_gradient || spec.num_saved > 0) && spec.num_saved != NumSaved(spec)) {
    return InvalidArgument("num_saved must be ", NumSaved(spec), " for this cell, got ",
                           spec.num_saved);
  }
  if (!spec.is_gradient) {
    TF_RETURN_IF_ERROR(add_output(y));
    TF_RETURN_IF_ERROR(add_output(state));
    if (spec.is_lstm()) TF_RETURN_IF_ERROR(add_output(state));
    for (int i = 0; i < spec.num_saved; ++i) {
      TF_RETURN_IF_ERROR(add_output(saved(i), /*is_saved=*/true));
    }
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(check("y", y));
  for (int i = 0; i < spec.num_saved; ++i) TF_RETURN_IF_ERROR(check("saved", saved(i)));
  TF_RETURN_IF_ERROR(check("grad_y", y));
  TF_RETURN_IF_ERROR(check("grad_last_h", state));
  return spec.is_lstm() ? check("grad_last_c", state) : absl::OkStatus();
}

template struct SequenceShapes<tensorflow::PartialTensorShape>;
template struct SequenceShapes<tensorflow::TensorShape>;

}  // namespace tf_ti
