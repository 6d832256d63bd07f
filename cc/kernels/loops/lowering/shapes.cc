#include <algorithm>

#include "cc/kernels/loops/lowering/rules.h"
#include "tensorflow/core/util/bcast.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;

Dims DimsOf(const Lowered& value) {
  if (value.view.block >= 0) return value.view.dims;
  const auto dims = value.known->shape().dim_sizes();
  return Dims(dims.begin(), dims.end());
}

bool Lowering::ShapeOf(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const DataType dtype = Attribute(node, "out_type", tensorflow::DT_INT32);
  for (const Lowered& input : inputs) outputs->push_back({View(), ToTensor(DimsOf(input), dtype)});
  return true;
}

bool Lowering::SizeOfAll(const NodeDef& node, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const Dims dims = DimsOf(inputs[0]);
  const int64_t size = node.op() == "Rank" ? dims.size() : CountOf(dims);
  Tensor scalar;
  const DataType dtype = Attribute(node, "out_type", tensorflow::DT_INT32);
  outputs->push_back({View(), scalar.CopyFrom(ToTensor({size}, dtype), {}) ? scalar : Tensor()});
  return true;
}

bool Lowering::Range(const NodeDef& node, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  Dims bounds;  // start, limit, delta
  for (const Lowered& input : inputs) {
    const std::optional<Dims> bound = Integers(input);
    if (!bound.has_value() || bound->size() != 1) return false;
    if ((*bound)[0] != static_cast<int32_t>((*bound)[0])) return false;  // none overflows
    bounds.push_back((*bound)[0]);
  }
  const int64_t delta = bounds[2];
  Dims range;
  for (int64_t at = bounds[0]; delta > 0 ? at < bounds[1] : at > bounds[1]; at += delta) {
    if (delta == 0 || static_cast<int64_t>(range.size()) == kMostElements) return false;
    range.push_back(at);
  }
  outputs->push_back({View(), ToTensor(range, Attribute(node, "Tidx", tensorflow::DT_INT32))});
  return true;
}

// Where each of the arrays begins in their concatenation.
bool Lowering::ConcatOffset(const NodeDef& node, const std::vector<Lowered>& inputs,
                            std::vector<Lowered>* outputs) {
  const std::optional<Dims> axis = Integers(inputs[0]);
  if (!axis.has_value() || axis->size() != 1) return false;
  const DataType dtype = Attribute(node, "shape_type", tensorflow::DT_INT32);
  int64_t begin = 0;
  for (size_t i = 1; i < inputs.size(); ++i) {
    const std::optional<Dims> dims = Integers(inputs[i]);
    if (!dims.has_value()) return false;
    const int dim = DimOf((*axis)[0], static_cast<int>(dims->size()));
    if (dim < 0) return false;
    Dims offsets(dims->size(), 0);
    offsets[dim] = begin;
    outputs->push_back({View(), ToTensor(offsets, dtype)});
    begin += (*dims)[dim];
  }
  return true;
}

bool Lowering::InvertPermutation(const NodeDef& node, const std::vector<Lowered>& inputs,
                                 std::vector<Lowered>* outputs) {
  const std::optional<Dims> order = Integers(inputs[0]);
  if (!order.has_value()) return false;
  Dims inverse(order->size(), -1);
  for (size_t i = 0; i < order->size(); ++i) {
    const int64_t place = (*order)[i];
    if (place < 0 || place >= static_cast<int64_t>(order->size()) || inverse[place] >= 0) {
      return false;
    }
    inverse[place] = i;
  }
  outputs->push_back({View(), ToTensor(inverse, Attribute(node, "T", tensorflow::DT_INT32))});
  return true;
}

bool Lowering::Filled(const View& element, const Dims& dims, std::vector<Lowered>* outputs) {
  if (std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; })) return false;
  outputs->push_back({element.BroadcastTo(dims), {}});
  return true;
}

bool Lowering::Fill(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  const std::optional<Dims> dims = Integers(inputs[0]);
  const std::optional<View> element = ViewOf(inputs[1]);
  if (!dims.has_value() || !element.has_value() || element->rank() != 0) return false;
  return Filled(*element, *dims, outputs);
}

bool Lowering::ZerosLike(const NodeDef&, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const int64_t zeros = 0;
  return view.has_value() &&
         Filled(builder_->AddConstant(view->type, {}, &zeros), view->dims, outputs);
}

bool Lowering::OnesLike(const NodeDef&, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value()) return false;
  const int32_t one = 1;
  const View number = builder_->AddConstant(ElementType::kInt32, {}, &one);
  return Filled(builder_->Cast(number, view->type), view->dims, outputs);
}

bool Lowering::BroadcastGradientArgs(const NodeDef& node, const std::vector<Lowered>& inputs,
                                     std::vector<Lowered>* outputs) {
  const std::optional<Dims> x = Integers(inputs[0]), y = Integers(inputs[1]);
  if (!x.has_value() || !y.has_value()) return false;
  const tensorflow::BCast broadcast(tensorflow::BCast::Vec(x->begin(), x->end()),
                                    tensorflow::BCast::Vec(y->begin(), y->end()),
                                    /*fewer_dims_optimization=*/false,
                                    /*return_flattened_batch_indices=*/false);
  if (!broadcast.IsValid()) return false;
  const DataType dtype = Attribute(node, "T", tensorflow::DT_INT32);
  for (const auto& axes : {broadcast.grad_x_reduce_idx(), broadcast.grad_y_reduce_idx()}) {
    outputs->push_back({View(), ToTensor(Dims(axes.begin(), axes.end()), dtype)});
  }
  return true;
}

}  // namespace tf_ti
