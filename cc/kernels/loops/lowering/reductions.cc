#include <algorithm>

#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

const absl::flat_hash_map<std::string, Operation>& Reductions() {
  static const auto& operations = *new absl::flat_hash_map<std::string, Operation>{
      {"Sum", Operation::kSum}, {"Mean", Operation::kSum}, {"Prod", Operation::kProd},
      {"Max", Operation::kMax}, {"Min", Operation::kMin},  {"All", Operation::kAll},
      {"Any", Operation::kAny}};
  return operations;
}

bool Lowering::Reduction(const NodeDef& node, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const std::optional<View> input = ViewOf(inputs[0]);
  const std::optional<Dims> axes = Integers(inputs[1]);
  if (!input.has_value() || !axes.has_value() || input->count() > kMostElements) return false;
  std::vector<bool> is_reduced(input->rank(), false);
  for (const int64_t axis : *axes) {
    const int dim = DimOf(axis, input->rank());
    if (dim < 0 || is_reduced[dim]) return false;
    is_reduced[dim] = true;
  }
  const Operation operation = Reductions().at(node.op());
  View view = *input;
  int64_t count = 1;
  for (int dim = view.rank() - 1; dim >= 0; --dim) {
    if (!is_reduced[dim]) continue;
    if (view.dims[dim] == 0) return false;
    count *= view.dims[dim];
    // Neighbours at once: their elements lie in one order.
    int first = dim;
    while (first > 0 && is_reduced[first - 1]) {
      count *= view.dims[--first];
      if (view.dims[first] == 0) return false;
    }
    const int64_t size = CountOf(Dims(view.dims.begin() + first, view.dims.begin() + dim + 1));
    if (size != 1) {
      const View whole = builder_->Contiguous(view);
      Dims merged = whole.dims;
      merged.erase(merged.begin() + first, merged.begin() + dim);
      merged[first] = size;
      Dims reduced = whole.dims;
      std::fill(reduced.begin() + first, reduced.begin() + dim + 1, 1);
      view = builder_->Reduce(operation, whole.Reshape(merged), first, view.type);
      if (view.block < 0) return false;
      view = view.Reshape(reduced);
    }
    dim = first;
  }
  if (node.op() == "Mean") {
    const std::optional<View> divisor = [&]() -> std::optional<View> {
      const float single = static_cast<float>(count);
      const double wide = static_cast<double>(count);
      if (view.type == ElementType::kFloat) return builder_->AddConstant(view.type, {}, &single);
      if (view.type == ElementType::kDouble) return builder_->AddConstant(view.type, {}, &wide);
      return std::nullopt;
    }();
    if (!divisor.has_value()) return false;
    view = builder_->Apply(Operation::kDiv, {view, *divisor});
    if (view.block < 0) return false;
  }
  if (!Attribute(node, "keep_dims", false)) {
    for (int dim = view.rank() - 1; dim >= 0; --dim) {
      if (is_reduced[dim]) view = view.WithoutDim(dim);
    }
  }
  outputs->push_back({view, {}});
  return true;
}

bool Lowering::IndexOfExtreme(const NodeDef& node, const std::vector<Lowered>& inputs,
                              std::vector<Lowered>* outputs) {
  const std::optional<View> input = ViewOf(inputs[0]);
  const std::optional<Dims> axis = Integers(inputs[1]);
  const auto to = ElementTypeOf(Attribute(node, "output_type", tensorflow::DT_INT64));
  if (!input.has_value() || !axis.has_value() || axis->size() != 1 || !to.has_value()) return false;
  const int dim = DimOf((*axis)[0], input->rank());
  if (dim < 0 || input->dims[dim] == 0 || input->count() > kMostElements) return false;
  const View view = builder_->Reduce(
      node.op() == "ArgMax" ? Operation::kArgMax : Operation::kArgMin, *input, dim, *to);
  if (view.block < 0) return false;
  outputs->push_back({view.WithoutDim(dim), {}});
  return true;
}

// Along the last dimension. Also its logarithm.
bool Lowering::Softmax(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value() || view->rank() == 0 || view->count() == 0) return false;
  if (view->count() > kMostElements) return false;
  const int last = view->rank() - 1;
  const auto apply = [this](Operation operation, const std::vector<View>& operands) {
    for (const View& operand : operands) {
      if (operand.block < 0) return View();
    }
    return builder_->Apply(operation, operands);
  };
  const View most = builder_->Reduce(Operation::kMax, *view, last, view->type);
  const View shifted = apply(Operation::kSub, {*view, most});
  const View exponentials = apply(Operation::kExp, {shifted});
  if (exponentials.block < 0) return false;
  const View sum = builder_->Reduce(Operation::kSum, exponentials, last, view->type);
  const View result = node.op() == "Softmax"
                          ? apply(Operation::kDiv, {exponentials, sum})
                          : apply(Operation::kSub, {shifted, apply(Operation::kLog, {sum})});
  if (result.block < 0) return false;
  outputs->push_back({result, {}});
  return true;
}

}  // namespace tf_ti
