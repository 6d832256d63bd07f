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

namespace {

// Numbers of half precision as floats, which they are.
View Wide(View view) {
  view.type = ComputedAs(view.type);
  return view;
}

}  // namespace

View Lowering::Reduced(Operation operation, View view, const std::vector<bool>& is_reduced) {
  if (IsHalf(view.type) && MustRound(operation)) {
    const View sum = Reduced(operation, Wide(view), is_reduced);
    return sum.block < 0 ? sum : builder_->Cast(sum, view.type);
  }
  for (int dim = view.rank() - 1; dim >= 0; --dim) {
    if (!is_reduced[dim]) continue;
    // Neighbours at once: their elements lie in one order.
    const int last = dim;
    while (dim > 0 && is_reduced[dim - 1]) --dim;
    Dims dims = view.dims;
    std::fill(dims.begin() + dim, dims.begin() + last + 1, 1);
    const View merged = Merged(view, dim, last - dim + 1);
    if (merged.dims[dim] == 0) return View();
    if (merged.dims[dim] != 1) {
      view = builder_->Reduce(operation, merged, dim, view.type);
      if (view.block < 0) return view;
      view = view.Reshape(dims);
    }
  }
  return view;
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
  int64_t count = 1;
  for (int dim = 0; dim < input->rank(); ++dim) {
    if (is_reduced[dim]) count *= input->dims[dim];
  }
  View view;
  if (node.op() == "Mean") {
    if (!IsReal(input->type)) return false;
    const Term sum(builder_, Reduced(Operation::kSum, Wide(*input), is_reduced));
    if (sum.view().block < 0) return false;
    view = (sum / sum.Number(static_cast<double>(count))).view();
    if (view.block < 0) return false;
    view = builder_->Cast(view, input->type);
  } else {
    view = Reduced(Reductions().at(node.op()), *input, is_reduced);
  }
  if (view.block < 0) return false;
  if (!Attribute(node, "keep_dims", false)) {
    for (int dim = view.rank() - 1; dim >= 0; --dim) {
      if (is_reduced[dim]) view = view.WithoutDim(dim);
    }
  }
  outputs->push_back({view, {}});
  return true;
}

// Sums or products of more and more elements along one dimension, of few.
bool Lowering::Accumulated(const NodeDef& node, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> axis = Integers(inputs[1]);
  if (!view.has_value() || !axis.has_value() || axis->size() != 1) return false;
  const int dim = DimOf((*axis)[0], view->rank());
  if (dim < 0 || view->count() == 0 || view->dims[dim] > kMostParts) return false;
  const int64_t size = view->dims[dim];
  const bool is_sum = node.op() == "Cumsum";
  const Operation operation = is_sum ? Operation::kAdd : Operation::kMul;
  const bool is_reverse = Attribute(node, "reverse", false);
  const auto part = [&](int64_t i) {
    return Term(builder_, view->Slice(dim, is_reverse ? size - 1 - i : i, 1, 1));
  };
  const bool is_exclusive = Attribute(node, "exclusive", false);
  const View neutral = part(0).Number(is_sum ? 0 : 1).view();
  Term total(builder_, neutral.BroadcastTo(part(0).view().dims));
  std::vector<View> parts;
  for (int64_t i = 0; i < size; ++i) {
    if (is_exclusive) parts.push_back(total.view());
    if (is_exclusive && i == size - 1) break;
    total = Applied(operation, {total, part(i)});
    if (total.view().block < 0) return false;
    if (!is_exclusive) parts.push_back(total.view());
  }
  if (is_reverse) std::reverse(parts.begin(), parts.end());
  return Joined(parts, dim, outputs);
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

// Along the last dimension. Also its logarithm. Half precision is rounded once.
bool Lowering::Softmax(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value() || view->rank() == 0 || view->count() == 0) return false;
  if (view->count() > kMostElements) return false;
  const int last = view->rank() - 1;
  const Term x(builder_, Wide(*view));
  const Term shifted = x - x.Reduced(Operation::kMax, last);
  const Term exponentials = Exp(shifted);
  const Term sum = exponentials.Reduced(Operation::kSum, last);
  const Term result = node.op() == "Softmax" ? exponentials / sum : shifted - Log(sum);
  if (result.view().block < 0) return false;
  outputs->push_back({builder_->Cast(result.view(), view->type), {}});
  return true;
}

// The losses of rows, and their gradients. Half precision is rounded once.
bool Lowering::SoftmaxCrossEntropy(const NodeDef&, const std::vector<Lowered>& inputs,
                                   std::vector<Lowered>* outputs) {
  std::vector<View> operands;
  Dims dims;
  if (!OperandsOf(inputs, &operands, &dims)) return false;
  if (dims.size() != 2 || CountOf(dims) == 0) return false;
  const Term logits(builder_, Wide(operands[0].BroadcastTo(dims)));
  const Term labels(builder_, Wide(operands[1].BroadcastTo(dims)));
  const Term shifted = logits - logits.Reduced(Operation::kMax, 1);
  const Term exponentials = Exp(shifted);
  const Term sum = exponentials.Reduced(Operation::kSum, 1);
  const Term loss = (labels * (Log(sum) - shifted)).Reduced(Operation::kSum, 1);
  const Term gradient = exponentials / sum - labels;
  if (loss.view().block < 0 || gradient.view().block < 0) return false;
  const ElementType type = operands[0].type;
  outputs->push_back({builder_->Cast(loss.view(), type).WithoutDim(1), {}});
  outputs->push_back({builder_->Cast(gradient.view(), type), {}});
  return true;
}

// Over all dimensions but that of the bias.
bool Lowering::BiasAddGrad(const NodeDef& node, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  const std::optional<View> gradient = ViewOf(inputs[0]);
  if (!gradient.has_value() || gradient->rank() < 2 || gradient->count() > kMostElements) {
    return false;
  }
  std::vector<bool> is_reduced(gradient->rank(), true);
  const int dim = ChannelsOf(node, gradient->rank());
  is_reduced[dim] = false;
  const View sum = Reduced(Operation::kSum, *gradient, is_reduced);
  if (sum.block < 0) return false;
  outputs->push_back({sum.Reshape({gradient->dims[dim]}), {}});
  return true;
}

// Half of the sum of the squares. Half precision is rounded once.
bool Lowering::L2Loss(const NodeDef&, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value() || view->count() > kMostElements || view->count() == 0) return false;
  const Term x(builder_, Wide(Merged(*view, 0, view->rank())));
  const Term sum = (x * x * x.Number(0.5)).Reduced(Operation::kSum, 0);
  if (sum.view().block < 0) return false;
  outputs->push_back({builder_->Cast(sum.view(), view->type).WithoutDim(0), {}});
  return true;
}

}  // namespace tf_ti
