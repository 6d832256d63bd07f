#include <algorithm>

#include "cc/kernels/loops/lowering/rules.h"
#include "tensorflow/core/util/bcast.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;

bool Lowering::ShapeOf(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  Dims dims = inputs[0].view.dims;
  if (inputs[0].view.block < 0) {
    const auto known = inputs[0].known->shape().dim_sizes();
    dims.assign(known.begin(), known.end());
  }
  outputs->push_back({View(), ToTensor(dims, Attribute(node, "out_type", tensorflow::DT_INT32))});
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
