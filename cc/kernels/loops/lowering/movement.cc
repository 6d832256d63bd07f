#include <algorithm>
#include <numeric>
#include <optional>

#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

namespace {

Outputs StridedSliceGrad(LoweringContext& context, const NodeDef& node,
                         const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Dims dims, Integers(inputs[0]));
  TF_ASSIGN_OR_RETURN(const View gradient, context.ViewOf(inputs[4]));
  TF_RETURN_IF_ERROR(CheckDims(dims));
  const View whole = context.builder().AddResult(gradient.type, dims);
  TF_ASSIGN_OR_RETURN(const View part, Sliced(node, inputs, 1, whole));
  if (part.dims != gradient.dims) return Refused("a gradient that is not of the slice");
  if (part.count() < whole.count()) {
    context.builder().CopyInto(Zero(context, gradient.type), whole);
  }
  context.builder().CopyInto(gradient, part);
  return One(whole);
}

Outputs Concat(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  if (inputs.size() < 2) return Refused("there are no arrays");
  std::vector<View> parts;
  for (size_t i = 0; i + 1 < inputs.size(); ++i) {
    TF_ASSIGN_OR_RETURN(parts.emplace_back(), context.ViewOf(inputs[i]));
  }
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(inputs.back(), parts[0].rank()));
  return One(Joined(context, parts, dim));
}

Outputs Pack(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  const int64_t axis = Attribute<int64_t>(node, "axis", 0);
  std::vector<View> parts;
  int dim = 0;
  for (const Lowered& input : inputs) {
    TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(input));
    TF_ASSIGN_OR_RETURN(dim, DimOf(axis, view.rank() + 1));
    parts.push_back(view.WithDim(dim));
  }
  return One(Joined(context, parts, dim));
}

// Gathers rows by indices that are not known. The program fails if one is out of range.
Outputs GatherOfValues(LoweringContext& context, const View& rows, const View& indices, int dim,
                       int64_t batch_dims) {
  if (rows.dims[dim] == 0) return Refused("there are no rows");
  if (batch_dims != 0) {
    if (batch_dims != dim || indices.rank() < dim) return Refused("batches that lie otherwise");
    if (!std::equal(rows.dims.begin(), rows.dims.begin() + dim, indices.dims.begin())) {
      return Refused("batches that differ");
    }
  }
  const int64_t row = rows.count() / rows.dims[dim];
  TF_RETURN_IF_ERROR(CheckCount(row * indices.count()));
  ProgramBuilder& builder = context.builder();
  const View result = builder.Gather(rows, indices, dim, batch_dims != 0);
  if (indices.count() > 0) {
    const Term index = context.TermOf(builder.Contiguous(indices).Reshape({indices.count()}));
    const Term size = index.Number(static_cast<double>(rows.dims[dim]));
    const Term is_right = And(Not(index < index.Number(0)), index < size);
    TF_RETURN_IF_ERROR(context.FailWhere(Not(is_right)));
  }
  return One(result);
}

// Known places: runs of neighbours are copied at once.
Outputs Gather(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(inputs[2], view.rank()));
  const int64_t batch_dims = Attribute<int64_t>(node, "batch_dims", 0);
  if (inputs[1].view.has_value()) {
    return GatherOfValues(context, view, *inputs[1].view, dim, batch_dims);
  }
  TF_ASSIGN_OR_RETURN(const Dims places, Integers(inputs[1]));
  if (places.empty()) return Refused("there are no indices");
  if (batch_dims != 0) return Refused("batches of known indices");
  std::vector<View> parts;
  for (auto place = places.begin(); place != places.end();) {
    const int64_t first = *place;
    if (first < 0 || first >= view.dims[dim]) return Refused("an index out of range");
    int64_t size = 0;
    for (; place != places.end() && *place == first + size; ++place) ++size;
    if (first + size > view.dims[dim]) return Refused("an index out of range");
    if (static_cast<int64_t>(parts.size()) == kMostParts) {
      return Refused("more parts than ", kMostParts);
    }
    parts.push_back(view.Slice(dim, first, size, 1));
  }
  View result = parts[0];
  if (parts.size() > 1) {
    TF_ASSIGN_OR_RETURN(result, Joined(context, parts, dim));
  }
  // The dimensions of the places replace the dimension.
  const Dims added = DimsOf(inputs[1]);
  if (added.empty()) return One(result.WithoutDim(dim));
  Dims dims = result.dims;
  dims.erase(dims.begin() + dim);
  dims.insert(dims.begin() + dim, added.begin(), added.end());
  return One(context.builder().Contiguous(result).Reshape(dims));
}

Outputs OneHot(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View indices, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const int64_t depth, Integer(inputs[1]));
  TF_ASSIGN_OR_RETURN(const View on, context.ViewOf(inputs[2]));
  TF_ASSIGN_OR_RETURN(const View off, context.ViewOf(inputs[3]));
  TF_ASSIGN_OR_RETURN(const int dim,
                      DimOf(Attribute<int64_t>(node, "axis", -1), indices.rank() + 1));
  if (depth < 1) return Refused("a depth of ", depth);
  if (on.rank() > 0 || off.rank() > 0) return Refused("an array in place of a number");
  TF_RETURN_IF_ERROR(CheckCount(depth));
  TF_RETURN_IF_ERROR(CheckCount(indices.count() * depth));
  Dims places(depth);
  std::iota(places.begin(), places.end(), 0);
  Lowered known;
  TF_ASSIGN_OR_RETURN(known.known, ToTensor(places, DataTypeOf(indices.type)));
  TF_ASSIGN_OR_RETURN(View place, context.ViewOf(known));
  while (place.rank() < indices.rank() + 1 - dim) place = place.WithDim(place.rank());
  const Term is_here = context.TermOf(indices.WithDim(dim)) == context.TermOf(place);
  return One(Where(is_here, context.TermOf(on), context.TermOf(off)).view());
}

// Along one axis after the other, the last elements come before the first.
Outputs Roll(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims shifts, Integers(inputs[1]));
  TF_ASSIGN_OR_RETURN(const Dims axes, Integers(inputs[2]));
  if (shifts.size() != axes.size()) return Refused("other numbers of shifts and axes");
  for (size_t i = 0; i < axes.size(); ++i) {
    TF_ASSIGN_OR_RETURN(const int dim, DimOf(axes[i], view.rank()));
    const int64_t extent = view.dims[dim];
    if (extent == 0) continue;
    const int64_t shift = (shifts[i] % extent + extent) % extent;
    if (shift == 0) continue;
    const View last = view.Slice(dim, extent - shift, shift, 1);
    const View first = view.Slice(dim, 0, extent - shift, 1);
    TF_ASSIGN_OR_RETURN(view, Joined(context, {last, first}, dim));
  }
  return One(view);
}

Outputs Pad(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims sizes, Integers(inputs[1]));
  if (static_cast<int>(sizes.size()) != 2 * view.rank()) {
    return Refused("paddings of another number of dimensions");
  }
  Dims dims = view.dims;
  for (int d = 0; d < view.rank(); ++d) {
    const int64_t before = sizes[2 * d], after = sizes[2 * d + 1];
    if (before < 0 || after < 0) return Refused("a negative padding");
    TF_RETURN_IF_ERROR(CheckCount(std::max(before, after)));
    dims[d] += before + after;
  }
  TF_RETURN_IF_ERROR(CheckCount(CountOf(dims)));
  TF_ASSIGN_OR_RETURN(const View filling, inputs.size() > 2
                                              ? context.ViewOf(inputs[2])
                                              : absl::StatusOr<View>(Zero(context, view.type)));
  if (filling.rank() != 0) return Refused("a filling that is not one element");
  const View whole = context.builder().AddResult(view.type, dims);
  View inner = whole;
  for (int d = 0; d < view.rank(); ++d) inner = inner.Slice(d, sizes[2 * d], view.dims[d], 1);
  context.builder().CopyInto(filling, whole);
  context.builder().CopyInto(view, inner);
  return One(whole);
}

}  // namespace

absl::StatusOr<View> Joined(LoweringContext& context, const std::vector<View>& parts, int dim) {
  Dims dims = parts[0].dims;
  dims[dim] = 0;
  for (const View& part : parts) {
    Dims others = part.dims;
    if (others.size() != dims.size() || part.type != parts[0].type) {
      return Refused("parts of other ranks or types");
    }
    others[dim] = dims[dim];
    if (others != dims) return Refused("parts of other shapes");
    dims[dim] += part.dims[dim];
  }
  TF_RETURN_IF_ERROR(CheckCount(CountOf(dims)));
  const View whole = context.builder().AddResult(parts[0].type, dims);
  int64_t at = 0;
  for (const View& part : parts) {
    context.builder().CopyInto(part, whole.Slice(dim, at, part.dims[dim], 1));
    at += part.dims[dim];
  }
  return whole;
}

RuleTable MovementRules() {
  return {{"ConcatV2", Concat}, {"GatherV2", Gather},
          {"OneHot", OneHot},   {"Pack", Pack},
          {"Pad", Pad},         {"PadV2", Pad},
          {"Roll", Roll},       {"StridedSliceGrad", StridedSliceGrad}};
}

}  // namespace tf_ti
