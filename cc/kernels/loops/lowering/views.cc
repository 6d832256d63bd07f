#include <algorithm>

#include "cc/kernels/loops/lowering/rules.h"
#include "tensorflow/core/util/strided_slice_op.h"

namespace tf_ti {

using tensorflow::NodeDef;
using tensorflow::TensorShape;

View Lowering::Merged(const View& view, int first, int count) {
  if (const std::optional<View> merged = view.Merged(first, count)) return *merged;
  Dims dims = view.dims;
  dims[first + count - 1] = CountOf(Dims(dims.begin() + first, dims.begin() + first + count));
  dims.erase(dims.begin() + first, dims.begin() + first + count - 1);
  return builder_->Contiguous(view).Reshape(dims);
}

bool Lowering::IdentityN(const NodeDef&, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  *outputs = inputs;
  return true;
}

bool Lowering::Reshape(const NodeDef&, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  std::optional<Dims> dims = Integers(inputs[1]);
  if (!view.has_value() || !dims.has_value()) return false;
  int unknown = -1;
  for (size_t d = 0; d < dims->size(); ++d) {
    if ((*dims)[d] >= 0) continue;
    if (unknown >= 0) return false;
    unknown = static_cast<int>(d);
    (*dims)[d] = 1;
  }
  if (unknown >= 0) {
    const int64_t known = CountOf(*dims);
    if (known == 0) return false;
    (*dims)[unknown] = view->count() / known;
  }
  if (CountOf(*dims) != view->count()) return false;
  outputs->push_back({builder_->Contiguous(*view).Reshape(*dims), {}});
  return true;
}

bool Lowering::ExpandDims(const NodeDef&, const std::vector<Lowered>& inputs,
                          std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> axis = Integers(inputs[1]);
  if (!view.has_value() || !axis.has_value() || axis->size() != 1) return false;
  const int dim = DimOf((*axis)[0], view->rank() + 1);
  if (dim < 0) return false;
  outputs->push_back({view->WithDim(dim), {}});
  return true;
}

bool Lowering::Squeeze(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value()) return false;
  const auto axes = Attribute(node, "squeeze_dims", std::vector<int32_t>());
  std::vector<bool> goes(view->rank(), axes.empty());
  for (const int32_t axis : axes) {
    const int dim = DimOf(axis, view->rank());
    if (dim < 0 || view->dims[dim] != 1) return false;
    goes[dim] = true;
  }
  for (int dim = view->rank() - 1; dim >= 0; --dim) {
    if (goes[dim] && view->dims[dim] == 1) view = view->WithoutDim(dim);
  }
  outputs->push_back({*view, {}});
  return true;
}

bool Lowering::Transpose(const NodeDef&, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> order = Integers(inputs[1]);
  if (!view.has_value() || !order.has_value()) return false;
  if (static_cast<int>(order->size()) != view->rank()) return false;
  std::vector<int> dims;
  std::vector<bool> seen(view->rank(), false);
  for (const int64_t axis : *order) {
    const int dim = DimOf(axis, view->rank());
    if (dim < 0 || seen[dim]) return false;
    seen[dim] = true;
    dims.push_back(dim);
  }
  outputs->push_back({view->Transpose(dims), {}});
  return true;
}

// The part of an array that begin, end and strides name, which are inputs `first` and the next.
bool Lowering::Sliced(const NodeDef& node, const std::vector<Lowered>& inputs, int first, View view,
                      View* result) {
  for (int i = first; i < first + 3; ++i) {
    if (!inputs[i].known.has_value()) return false;
  }
  const auto mask = [&](const char* name) { return Attribute<int32_t>(node, name, 0); };
  TensorShape processing, final;
  bool is_identity, is_simple, is_of_first;
  absl::InlinedVector<int64_t, 4> begin, end, strides;
  tensorflow::StridedSliceShapeSpec spec;
  const absl::Status status = tensorflow::ValidateStridedSliceOp(
      &*inputs[first].known, &*inputs[first + 1].known, *inputs[first + 2].known,
      tensorflow::PartialTensorShape(view.dims), mask("begin_mask"), mask("end_mask"),
      mask("ellipsis_mask"), mask("new_axis_mask"), mask("shrink_axis_mask"), &processing, &final,
      &is_identity, &is_simple, &is_of_first, &begin, &end, &strides, &spec);
  if (!status.ok() || processing.dims() != view.rank()) return false;
  for (int d = 0; d < view.rank(); ++d) {
    view = view.Slice(d, begin[d], processing.dim_size(d), strides[d]);
  }
  *result = view;
  result->dims.clear();
  result->strides.clear();
  for (const int64_t d : spec.output_to_processing_mapping) {
    result->dims.push_back(d < 0 ? 1 : view.dims[d]);
    result->strides.push_back(d < 0 ? 0 : view.strides[d]);
  }
  const auto dims = final.dim_sizes();
  return Dims(dims.begin(), dims.end()) == result->dims;
}

bool Lowering::StridedSlice(const NodeDef& node, const std::vector<Lowered>& inputs,
                            std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  View result;
  if (!view.has_value() || !Sliced(node, inputs, 1, *view, &result)) return false;
  outputs->push_back({result, {}});
  return true;
}

bool Lowering::Slice(const NodeDef&, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> begin = Integers(inputs[1]), size = Integers(inputs[2]);
  if (!view.has_value() || !begin.has_value() || !size.has_value()) return false;
  const size_t rank = view->rank();
  if (begin->size() != rank || size->size() != rank) return false;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t first = (*begin)[d], extent = view->dims[d];
    const int64_t count = (*size)[d] == -1 ? extent - first : (*size)[d];
    if (first < 0 || count < 0 || first > extent || count > extent - first) return false;
    view = view->Slice(static_cast<int>(d), first, count, 1);
  }
  outputs->push_back({*view, {}});
  return true;
}

bool Lowering::BroadcastTo(const NodeDef&, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> dims = Integers(inputs[1]);
  Dims both;
  if (!view.has_value() || !dims.has_value() || !BroadcastDims(view->dims, *dims, &both)) {
    return false;
  }
  if (both != *dims) return false;
  outputs->push_back({view->BroadcastTo(*dims), {}});
  return true;
}

bool Lowering::Tile(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> multiples = Integers(inputs[1]);
  if (!view.has_value() || !multiples.has_value()) return false;
  if (static_cast<int>(multiples->size()) != view->rank()) return false;
  Dims dims = view->dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    if ((*multiples)[d] != 1 && dims[d] != 1) return false;
    dims[d] *= (*multiples)[d];
  }
  outputs->push_back({view->BroadcastTo(dims), {}});
  return true;
}

bool Lowering::Unpack(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value()) return false;
  const int dim = DimOf(Attribute<int64_t>(node, "axis", 0), view->rank());
  if (dim < 0 || view->dims[dim] != Attribute<int64_t>(node, "num", -1)) return false;
  for (int64_t i = 0; i < view->dims[dim]; ++i) {
    outputs->push_back({view->Slice(dim, i, 1, 1).WithoutDim(dim), {}});
  }
  return true;
}

bool Lowering::Split(const NodeDef& node, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  const std::optional<Dims> axis = Integers(inputs[0]);
  const std::optional<View> view = ViewOf(inputs[1]);
  if (!view.has_value() || !axis.has_value() || axis->size() != 1) return false;
  const int dim = DimOf((*axis)[0], view->rank());
  const int64_t count = Attribute<int64_t>(node, "num_split", 0);
  if (dim < 0 || count <= 0 || view->dims[dim] % count != 0) return false;
  const int64_t size = view->dims[dim] / count;
  for (int64_t i = 0; i < count; ++i) outputs->push_back({view->Slice(dim, i * size, size, 1), {}});
  return true;
}

bool Lowering::SplitV(const NodeDef&, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  std::optional<Dims> sizes = Integers(inputs[1]);
  const std::optional<Dims> axis = Integers(inputs[2]);
  if (!view.has_value() || !sizes.has_value() || !axis.has_value() || axis->size() != 1) {
    return false;
  }
  const int dim = DimOf((*axis)[0], view->rank());
  if (dim < 0) return false;
  int64_t rest = view->dims[dim];
  int64_t* unknown = nullptr;
  for (int64_t& size : *sizes) {
    if (size >= 0 && size <= rest) {
      rest -= size;
    } else if (size == -1 && unknown == nullptr) {
      unknown = &size;
    } else {
      return false;
    }
  }
  if (rest > 0 && unknown == nullptr) return false;
  if (unknown != nullptr) *unknown = rest;
  int64_t begin = 0;
  for (const int64_t size : *sizes) {
    outputs->push_back({view->Slice(dim, begin, size, 1), {}});
    begin += size;
  }
  return true;
}

bool Lowering::Reverse(const NodeDef&, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> axes = Integers(inputs[1]);
  if (!view.has_value() || !axes.has_value()) return false;
  for (const int64_t axis : *axes) {
    const int dim = DimOf(axis, view->rank());
    if (dim < 0) return false;
    const int64_t extent = view->dims[dim];
    if (extent > 0) view = view->Slice(dim, extent - 1, extent, -1);
  }
  outputs->push_back({*view, {}});
  return true;
}

}  // namespace tf_ti
