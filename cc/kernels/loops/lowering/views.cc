#include <algorithm>
#include <optional>

#include "cc/kernels/loops/lowering/rules.h"
#include "tensorflow/core/util/strided_slice_op.h"

namespace tf_ti {

using tensorflow::NodeDef;
using tensorflow::TensorShape;

namespace {

Outputs IdentityN(LoweringContext&, const NodeDef&, const std::vector<Lowered>& inputs) {
  return inputs;
}

Outputs Reshape(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(Dims dims, Integers(inputs[1]));
  int64_t* unknown = nullptr;
  for (int64_t& dim : dims) {
    if (dim >= 0) continue;
    if (unknown != nullptr) return Refused("two dimensions that are not given");
    unknown = &dim;
    dim = 1;
  }
  if (unknown != nullptr) {
    const int64_t known = CountOf(dims);
    if (known == 0) return Refused("a dimension that may be any");
    *unknown = view.count() / known;
  }
  if (CountOf(dims) != view.count()) return Refused("a shape of another number of elements");
  return One(context.builder().Contiguous(view).Reshape(dims));
}

Outputs ExpandDims(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(inputs[1], view.rank() + 1));
  return One(view.WithDim(dim));
}

// Without axes, all dimensions of 1 go.
Outputs Squeeze(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View view, context.ViewOf(inputs[0]));
  const auto axes = Attribute(node, "squeeze_dims", std::vector<int32_t>());
  std::vector<bool> goes(view.rank(), axes.empty());
  for (const int32_t axis : axes) {
    TF_ASSIGN_OR_RETURN(const int dim, DimOf(axis, view.rank()));
    if (view.dims[dim] != 1) return Refused("dimension ", dim, " is not 1");
    goes[dim] = true;
  }
  for (int dim = view.rank() - 1; dim >= 0; --dim) {
    if (goes[dim] && view.dims[dim] == 1) view = view.WithoutDim(dim);
  }
  return One(view);
}

Outputs Transpose(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims axes, Integers(inputs[1]));
  if (static_cast<int>(axes.size()) != view.rank()) return Refused("another number of axes");
  std::vector<int> order;
  std::vector<bool> seen(view.rank(), false);
  for (const int64_t axis : axes) {
    TF_ASSIGN_OR_RETURN(const int dim, DimOf(axis, view.rank()));
    if (seen[dim]) return Refused("axis ", axis, " twice");
    seen[dim] = true;
    order.push_back(dim);
  }
  return One(view.Transpose(order));
}

Outputs StridedSlice(LoweringContext& context, const NodeDef& node,
                     const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  return One(Sliced(node, inputs, 1, view));
}

// A size of -1 goes up to the end.
Outputs Slice(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims begin, Integers(inputs[1]));
  TF_ASSIGN_OR_RETURN(const Dims size, Integers(inputs[2]));
  const size_t rank = view.rank();
  if (begin.size() != rank || size.size() != rank) return Refused("another number of extents");
  for (size_t d = 0; d < rank; ++d) {
    const int64_t first = begin[d], extent = view.dims[d];
    const int64_t count = size[d] == -1 ? extent - first : size[d];
    if (first < 0 || count < 0 || first > extent || count > extent - first) {
      return Refused("a slice out of range");
    }
    view = view.Slice(static_cast<int>(d), first, count, 1);
  }
  return One(view);
}

Outputs BroadcastTo(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims dims, Integers(inputs[1]));
  return One(Repeated(view, dims));
}

// Only dimensions of 1 are repeated: a view cannot repeat more elements than one.
Outputs Tile(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims multiples, Integers(inputs[1]));
  if (static_cast<int>(multiples.size()) != view.rank())
    return Refused("another number of multiples");
  Dims dims = view.dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (multiples[d] != 1 && dims[d] != 1) return Refused("repetitions of several elements");
    dims[d] *= multiples[d];
  }
  return One(Repeated(view, dims));
}

Outputs Unpack(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(Attribute<int64_t>(node, "axis", 0), view.rank()));
  if (view.dims[dim] != Attribute<int64_t>(node, "num", -1))
    return Refused("another number of parts");
  std::vector<Lowered> parts;
  for (int64_t i = 0; i < view.dims[dim]; ++i) {
    parts.push_back({view.Slice(dim, i, 1, 1).WithoutDim(dim), {}});
  }
  return parts;
}

std::vector<Lowered> Parts(const View& view, int dim, const Dims& sizes) {
  std::vector<Lowered> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back({view.Slice(dim, begin, size, 1), {}});
    begin += size;
  }
  return parts;
}

Outputs Split(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[1]));
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(inputs[0], view.rank()));
  const int64_t count = Attribute<int64_t>(node, "num_split", 0);
  if (count <= 0 || view.dims[dim] % count != 0) return Refused("parts of different sizes");
  return Parts(view, dim, Dims(count, view.dims[dim] / count));
}

// One size may be -1: its part takes all elements that are left.
Outputs SplitV(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(Dims sizes, Integers(inputs[1]));
  // TensorFlow's inference of shapes ends the process where they are known and no vector.
  if (DimsOf(inputs[1]).size() != 1) return Refused("sizes that are no vector");
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(inputs[2], view.rank()));
  if (sizes == Dims{-1}) return Refused("one part whose size is not told");
  int64_t rest = view.dims[dim];
  int64_t* unknown = nullptr;
  for (int64_t& size : sizes) {
    if (size >= 0 && size <= rest) {
      rest -= size;
    } else if (size == -1 && unknown == nullptr) {
      unknown = &size;
    } else {
      return Refused("a part of size ", size, " where ", rest, " are left");
    }
  }
  if (rest > 0 && unknown == nullptr) return Refused("no part has the last ", rest);
  if (unknown != nullptr) *unknown = rest;
  return Parts(view, dim, sizes);
}

Outputs Reverse(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims axes, Integers(inputs[1]));
  for (const int64_t axis : axes) {
    TF_ASSIGN_OR_RETURN(const int dim, DimOf(axis, view.rank()));
    const int64_t extent = view.dims[dim];
    if (extent > 0) view = view.Slice(dim, extent - 1, extent, -1);
  }
  return One(view);
}

}  // namespace

absl::StatusOr<View> Repeated(const View& view, const Dims& dims) {
  const bool is_negative =
      std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; });
  if (is_negative || BroadcastDims(view.dims, dims) != dims) {
    return Refused("a shape that the array cannot be repeated to");
  }
  return view.BroadcastTo(dims);
}

View Merged(LoweringContext& context, const View& view, int first, int count) {
  if (const std::optional<View> merged = view.Merged(first, count)) return *merged;
  Dims dims = view.dims;
  dims[first + count - 1] = CountOf(Dims(dims.begin() + first, dims.begin() + first + count));
  dims.erase(dims.begin() + first, dims.begin() + first + count - 1);
  return context.builder().Contiguous(view).Reshape(dims);
}

absl::StatusOr<View> Sliced(const NodeDef& node, const std::vector<Lowered>& inputs, int first,
                            const View& view) {
  for (int i = first; i < first + 3; ++i) {
    if (!inputs[i].known.has_value()) return Refused("a slice whose place is not known");
  }
  const auto mask = [&](const char* name) { return Attribute<int32_t>(node, name, 0); };
  TensorShape processing, final;
  bool is_identity, is_simple, is_of_first;
  absl::InlinedVector<int64_t, 4> begin, end, strides;
  tensorflow::StridedSliceShapeSpec spec;
  TF_RETURN_IF_ERROR(tensorflow::ValidateStridedSliceOp(
      &*inputs[first].known, &*inputs[first + 1].known, *inputs[first + 2].known,
      tensorflow::PartialTensorShape(view.dims), mask("begin_mask"), mask("end_mask"),
      mask("ellipsis_mask"), mask("new_axis_mask"), mask("shrink_axis_mask"), &processing, &final,
      &is_identity, &is_simple, &is_of_first, &begin, &end, &strides, &spec));
  if (processing.dims() != view.rank()) return Refused("a slice of another number of dimensions");
  View part = view;
  for (int d = 0; d < view.rank(); ++d) {
    part = part.Slice(d, begin[d], processing.dim_size(d), strides[d]);
  }
  // New dimensions of 1 come, and dimensions of one element go.
  View result = part;
  result.dims.clear();
  result.strides.clear();
  for (const int64_t d : spec.output_to_processing_mapping) {
    result.dims.push_back(d < 0 ? 1 : part.dims[d]);
    result.strides.push_back(d < 0 ? 0 : part.strides[d]);
  }
  const auto dims = final.dim_sizes();
  if (Dims(dims.begin(), dims.end()) != result.dims) return Refused("a slice of another shape");
  return result;
}

RuleTable ViewRules() {
  return {{"BroadcastTo", BroadcastTo},
          {"ExpandDims", ExpandDims},
          {"IdentityN", IdentityN},
          {"Reshape", Reshape},
          {"ReverseV2", Reverse},
          {"Slice", Slice},
          {"Split", Split},
          {"SplitV", SplitV},
          {"Squeeze", Squeeze},
          {"StridedSlice", StridedSlice},
          {"Tile", Tile},
          {"Transpose", Transpose},
          {"Unpack", Unpack}};
}

}  // namespace tf_ti
