#include <algorithm>
#include <numeric>

#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

bool Lowering::StridedSliceGrad(const NodeDef& node, const std::vector<Lowered>& inputs,
                                std::vector<Lowered>* outputs) {
  const std::optional<Dims> dims = Integers(inputs[0]);
  const std::optional<View> gradient = ViewOf(inputs[4]);
  if (!dims.has_value() || !gradient.has_value() || CountOf(*dims) > kMostElements) return false;
  const View whole = builder_->AddResult(gradient->type, *dims);
  View part;
  if (!Sliced(node, inputs, 1, whole, &part) || part.dims != gradient->dims) return false;
  if (part.count() < whole.count()) {
    const int64_t zeros = 0;
    builder_->CopyInto(builder_->AddConstant(gradient->type, {}, &zeros), whole);
  }
  builder_->CopyInto(*gradient, part);
  outputs->push_back({whole, {}});
  return true;
}

bool Lowering::Joined(const std::vector<View>& parts, int dim, std::vector<Lowered>* outputs) {
  Dims dims = parts[0].dims;
  dims[dim] = 0;
  for (const View& part : parts) {
    Dims others = part.dims;
    if (others.size() != dims.size() || part.type != parts[0].type) return false;
    others[dim] = dims[dim];
    if (others != dims) return false;
    dims[dim] += part.dims[dim];
  }
  if (CountOf(dims) > kMostElements) return false;
  const View whole = builder_->AddResult(parts[0].type, dims);
  int64_t at = 0;
  for (const View& part : parts) {
    builder_->CopyInto(part, whole.Slice(dim, at, part.dims[dim], 1));
    at += part.dims[dim];
  }
  outputs->push_back({whole, {}});
  return true;
}

bool Lowering::Concat(const NodeDef&, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<Dims> axis = Integers(inputs.back());
  if (!axis.has_value() || axis->size() != 1 || inputs.size() < 2) return false;
  std::vector<View> parts;
  for (size_t i = 0; i + 1 < inputs.size(); ++i) {
    const std::optional<View> view = ViewOf(inputs[i]);
    if (!view.has_value()) return false;
    parts.push_back(*view);
  }
  const int dim = DimOf((*axis)[0], parts[0].rank());
  return dim >= 0 && Joined(parts, dim, outputs);
}

bool Lowering::Pack(const NodeDef& node, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  std::vector<View> parts;
  int dim = -1;
  for (const Lowered& input : inputs) {
    const std::optional<View> view = ViewOf(input);
    if (!view.has_value()) return false;
    dim = DimOf(Attribute<int64_t>(node, "axis", 0), view->rank() + 1);
    if (dim < 0) return false;
    parts.push_back(view->WithDim(dim));
  }
  return Joined(parts, dim, outputs);
}

// Of indices that only values tell.
bool Lowering::Chosen(const NodeDef& node, const std::vector<Lowered>& inputs, int dim,
                      std::vector<Lowered>* outputs) {
  const View rows = *ViewOf(inputs[0]);
  const std::optional<View> indices = ViewOf(inputs[1]);
  const int64_t batch_dims = Attribute<int64_t>(node, "batch_dims", 0);
  if (!indices.has_value() || rows.dims[dim] == 0) return false;
  if (batch_dims != 0) {
    if (batch_dims != dim || indices->rank() < dim) return false;
    if (!std::equal(rows.dims.begin(), rows.dims.begin() + dim, indices->dims.begin())) {
      return false;
    }
  }
  const int64_t row = rows.count() / rows.dims[dim];
  if (row * indices->count() > kMostElements) return false;
  const View result = builder_->Gather(rows, *indices, dim, batch_dims != 0);
  if (indices->count() > 0) {
    const Term index(builder_, builder_->Contiguous(*indices).Reshape({indices->count()}));
    const Term size = index.Number(static_cast<double>(rows.dims[dim]));
    const Term is_right = And(Not(index < index.Number(0)), index < size);
    if (!FailsWhere(Not(is_right).Reduced(Operation::kAny, 0).view())) return false;
  }
  outputs->push_back({result, {}});
  return true;
}

// Of known places: runs of neighbours are copied at once.
bool Lowering::Gather(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> places = Integers(inputs[1]), axis = Integers(inputs[2]);
  if (!view.has_value() || !axis.has_value() || axis->size() != 1) return false;
  const int dim = DimOf((*axis)[0], view->rank());
  if (dim < 0) return false;
  if (!places.has_value()) return Chosen(node, inputs, dim, outputs);
  if (places->empty() || Attribute<int64_t>(node, "batch_dims", 0) != 0) return false;
  std::vector<View> parts;
  for (auto place = places->begin(); place != places->end();) {
    const int64_t first = *place;
    if (first < 0 || first >= view->dims[dim]) return false;
    int64_t size = 0;
    for (; place != places->end() && *place == first + size; ++place) ++size;
    if (first + size > view->dims[dim]) return false;
    if (static_cast<int64_t>(parts.size()) == kMostParts) return false;
    parts.push_back(view->Slice(dim, first, size, 1));
  }
  if (parts.size() > 1 && !Joined(parts, dim, outputs)) return false;
  View result = parts.size() > 1 ? outputs->back().view : parts[0];
  // The dimension becomes those of the places.
  Dims dims = result.dims;
  dims.erase(dims.begin() + dim);
  const auto added = inputs[1].known->shape().dim_sizes();
  dims.insert(dims.begin() + dim, added.begin(), added.end());
  result = added.empty() ? result.WithoutDim(dim) : builder_->Contiguous(result).Reshape(dims);
  outputs->assign({{result, {}}});
  return true;
}

bool Lowering::OneHot(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<View> indices = ViewOf(inputs[0]);
  const std::optional<Dims> depth = Integers(inputs[1]);
  const std::optional<View> on = ViewOf(inputs[2]), off = ViewOf(inputs[3]);
  if (!indices.has_value() || !depth.has_value() || depth->size() != 1) return false;
  if (!on.has_value() || !off.has_value()) return false;
  const int dim = DimOf(Attribute<int64_t>(node, "axis", -1), indices->rank() + 1);
  if (dim < 0 || (*depth)[0] < 1 || (*depth)[0] > kMostElements) return false;
  if (indices->count() * (*depth)[0] > kMostElements) return false;
  Dims places((*depth)[0]);
  std::iota(places.begin(), places.end(), 0);
  std::optional<View> place = ViewOf({View(), ToTensor(places, DataTypeOf(indices->type))});
  while (place->rank() < indices->rank() + 1 - dim) place = place->WithDim(place->rank());
  const Term is_here = Term(builder_, indices->WithDim(dim)) == Term(builder_, *place);
  outputs->push_back({Where(is_here, Term(builder_, *on), Term(builder_, *off)).view(), {}});
  return true;
}

// Along one axis after the other, the last elements come before the first.
bool Lowering::Roll(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> shifts = Integers(inputs[1]), axes = Integers(inputs[2]);
  if (!view.has_value() || !shifts.has_value() || !axes.has_value()) return false;
  if (shifts->size() != axes->size()) return false;
  for (size_t i = 0; i < axes->size(); ++i) {
    const int dim = DimOf((*axes)[i], view->rank());
    if (dim < 0) return false;
    const int64_t extent = view->dims[dim];
    if (extent == 0) continue;
    const int64_t shift = ((*shifts)[i] % extent + extent) % extent;
    if (shift == 0) continue;
    outputs->clear();
    if (!Joined(
            {view->Slice(dim, extent - shift, shift, 1), view->Slice(dim, 0, extent - shift, 1)},
            dim, outputs)) {
      return false;
    }
    view = outputs->back().view;
  }
  *outputs = {{*view, {}}};
  return true;
}

bool Lowering::Pad(const NodeDef&, const std::vector<Lowered>& inputs,
                   std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> sizes = Integers(inputs[1]);
  if (!view.has_value() || !sizes.has_value()) return false;
  if (static_cast<int>(sizes->size()) != 2 * view->rank()) return false;
  Dims dims = view->dims;
  for (int d = 0; d < view->rank(); ++d) {
    const int64_t before = (*sizes)[2 * d], after = (*sizes)[2 * d + 1];
    if (before < 0 || after < 0 || before > kMostElements || after > kMostElements) return false;
    dims[d] += before + after;
  }
  if (CountOf(dims) > kMostElements) return false;
  const int64_t zeros = 0;
  const std::optional<View> filling =
      inputs.size() > 2 ? ViewOf(inputs[2]) : builder_->AddConstant(view->type, {}, &zeros);
  if (!filling.has_value() || filling->rank() != 0) return false;
  const View whole = builder_->AddResult(view->type, dims);
  View inner = whole;
  for (int d = 0; d < view->rank(); ++d) {
    inner = inner.Slice(d, (*sizes)[2 * d], view->dims[d], 1);
  }
  builder_->CopyInto(*filling, whole);
  builder_->CopyInto(*view, inner);
  outputs->push_back({whole, {}});
  return true;
}

}  // namespace tf_ti
