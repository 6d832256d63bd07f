#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

namespace {

const absl::flat_hash_map<std::string, Operation>& Reductions() {
  static const auto& operations = *new absl::flat_hash_map<std::string, Operation>{
      {"Sum", Operation::kSum}, {"Mean", Operation::kSum}, {"Prod", Operation::kProd},
      {"Max", Operation::kMax}, {"Min", Operation::kMin},  {"All", Operation::kAll},
      {"Any", Operation::kAny}};
  return operations;
}

// Numbers of half precision as floats, which they are.
View Wide(View view) {
  view.type = ComputedAs(view.type);
  return view;
}

Outputs Reduction(LoweringContext& context, const NodeDef& node,
                  const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View input, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims axes, Integers(inputs[1]));
  TF_RETURN_IF_ERROR(CheckCount(input.count()));
  std::vector<bool> is_reduced(input.rank(), false);
  int64_t count = 1;
  for (const int64_t axis : axes) {
    TF_ASSIGN_OR_RETURN(const int dim, DimOf(axis, input.rank()));
    if (is_reduced[dim]) return Refused("axis ", axis, " twice");
    is_reduced[dim] = true;
    count *= input.dims[dim];
  }
  const bool is_mean = node.op() == "Mean";
  if (is_mean && !IsReal(input.type)) return Refused("a mean of integers");
  TF_ASSIGN_OR_RETURN(View view, Reduced(context, Reductions().at(node.op()),
                                         is_mean ? Wide(input) : input, is_reduced));
  if (is_mean) {
    const Term sum = context.TermOf(view);
    TF_ASSIGN_OR_RETURN(view, (sum / sum.Number(static_cast<double>(count))).view());
    view = context.builder().Cast(view, input.type);
  }
  if (!Attribute(node, "keep_dims", false)) {
    for (int dim = view.rank() - 1; dim >= 0; --dim) {
      if (is_reduced[dim]) view = view.WithoutDim(dim);
    }
  }
  return One(view);
}

// Sums or products of more and more elements along one dimension, of few.
Outputs Accumulated(LoweringContext& context, const NodeDef& node,
                    const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const int64_t axis, Scalar(inputs[1]));
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(axis, view.rank()));
  const int64_t size = view.dims[dim];
  if (view.count() == 0) return Refused("there are no elements");
  if (size > kMostParts) return Refused("more sums than ", kMostParts);
  const bool is_sum = node.op() == "Cumsum";
  const bool is_reverse = Attribute(node, "reverse", false);
  const bool is_exclusive = Attribute(node, "exclusive", false);
  const auto part = [&](int64_t i) { return view.Slice(dim, is_reverse ? size - 1 - i : i, 1, 1); };
  TF_ASSIGN_OR_RETURN(const View neutral, context.TermOf(part(0)).Number(is_sum ? 0 : 1).view());
  View total = neutral.BroadcastTo(part(0).dims);
  std::vector<View> parts;
  for (int64_t i = 0; i < size; ++i) {
    if (is_exclusive) parts.push_back(total);
    if (is_exclusive && i == size - 1) break;
    TF_ASSIGN_OR_RETURN(total, OrRefused(context.builder().Apply(
                                   is_sum ? Operation::kAdd : Operation::kMul, {total, part(i)})));
    if (!is_exclusive) parts.push_back(total);
  }
  if (is_reverse) std::reverse(parts.begin(), parts.end());
  return One(Joined(context, parts, dim));
}

Outputs IndexOfExtreme(LoweringContext& context, const NodeDef& node,
                       const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View input, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const int dim, DimOf(inputs[1], input.rank()));
  const auto to = ElementTypeOf(Attribute(node, "output_type", tensorflow::DT_INT64));
  if (!to.has_value()) return Refused("programs do not have the type");
  if (input.dims[dim] == 0) return Refused("there are no elements");
  TF_RETURN_IF_ERROR(CheckCount(input.count()));
  const Operation operation = node.op() == "ArgMax" ? Operation::kArgMax : Operation::kArgMin;
  TF_ASSIGN_OR_RETURN(const View indices,
                      OrRefused(context.builder().Reduce(operation, input, dim, *to)));
  return One(indices.WithoutDim(dim));
}

// The softmax along the last dimension, or its logarithm. Half precision is rounded once.
Outputs Softmax(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  if (view.rank() == 0 || view.count() == 0) return Refused("there are no elements");
  TF_RETURN_IF_ERROR(CheckCount(view.count()));
  const int last = view.rank() - 1;
  const Term x = context.TermOf(Wide(view));
  const Term shifted = x - x.Reduced(Operation::kMax, last);
  const Term exponentials = Exp(shifted);
  const Term sum = exponentials.Reduced(Operation::kSum, last);
  TF_ASSIGN_OR_RETURN(const View result,
                      (node.op() == "Softmax" ? exponentials / sum : shifted - Log(sum)).view());
  return One(context.builder().Cast(result, view.type));
}

// The losses of rows, and their gradients. Half precision is rounded once.
Outputs SoftmaxCrossEntropy(LoweringContext& context, const NodeDef&,
                            const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Operands operands, OperandsOf(context, inputs));
  const Dims& dims = operands.dims;
  if (dims.size() != 2 || CountOf(dims) == 0) return Refused("there are no rows of elements");
  const Term logits = context.TermOf(Wide(operands.views[0].BroadcastTo(dims)));
  const Term labels = context.TermOf(Wide(operands.views[1].BroadcastTo(dims)));
  const Term shifted = logits - logits.Reduced(Operation::kMax, 1);
  const Term exponentials = Exp(shifted);
  const Term sum = exponentials.Reduced(Operation::kSum, 1);
  const Term losses = (labels * (Log(sum) - shifted)).Reduced(Operation::kSum, 1);
  const Term gradients = exponentials / sum - labels;
  std::vector<Lowered> outputs;
  for (const Term& term : {losses, gradients}) {
    TF_ASSIGN_OR_RETURN(const View view, term.view());
    outputs.push_back({context.builder().Cast(view, operands.views[0].type), {}});
  }
  outputs[0].view = outputs[0].view->WithoutDim(1);
  return outputs;
}

// Sums over all dimensions but the channels.
Outputs BiasAddGrad(LoweringContext& context, const NodeDef& node,
                    const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View gradient, context.ViewOf(inputs[0]));
  if (gradient.rank() < 2) return Refused("a gradient without channels");
  TF_RETURN_IF_ERROR(CheckCount(gradient.count()));
  std::vector<bool> is_reduced(gradient.rank(), true);
  const int dim = ChannelsOf(node, gradient.rank());
  is_reduced[dim] = false;
  TF_ASSIGN_OR_RETURN(const View sum, Reduced(context, Operation::kSum, gradient, is_reduced));
  return One(sum.Reshape({gradient.dims[dim]}));
}

// Half of the sum of the squares. Half precision is rounded once.
Outputs L2Loss(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  if (view.count() == 0) return Refused("there are no elements");
  TF_RETURN_IF_ERROR(CheckCount(view.count()));
  const Term x = context.TermOf(Wide(Merged(context, view, 0, view.rank())));
  TF_ASSIGN_OR_RETURN(const View sum, (x * x * x.Number(0.5)).Reduced(Operation::kSum, 0).view());
  return One(context.builder().Cast(sum, view.type).WithoutDim(0));
}

}  // namespace

absl::StatusOr<View> Reduced(LoweringContext& context, Operation operation, View view,
                             const std::vector<bool>& is_reduced) {
  if (IsHalf(view.type) && MustRound(operation)) {
    TF_ASSIGN_OR_RETURN(const View wide, Reduced(context, operation, Wide(view), is_reduced));
    return context.builder().Cast(wide, view.type);
  }
  for (int dim = view.rank() - 1; dim >= 0; --dim) {
    if (!is_reduced[dim]) continue;
    // Neighbours at once: their elements lie in one order.
    const int last = dim;
    while (dim > 0 && is_reduced[dim - 1]) --dim;
    Dims dims = view.dims;
    std::fill(dims.begin() + dim, dims.begin() + last + 1, 1);
    const View merged = Merged(context, view, dim, last - dim + 1);
    if (merged.dims[dim] == 0) return Refused("there are no elements");
    if (merged.dims[dim] == 1) continue;
    TF_ASSIGN_OR_RETURN(view,
                        OrRefused(context.builder().Reduce(operation, merged, dim, view.type)));
    view = view.Reshape(dims);
  }
  return view;
}

RuleTable ReductionRules() {
  RuleTable rules = {{"ArgMax", IndexOfExtreme},
                     {"ArgMin", IndexOfExtreme},
                     {"BiasAddGrad", BiasAddGrad},
                     {"Cumprod", Accumulated},
                     {"Cumsum", Accumulated},
                     {"L2Loss", L2Loss},
                     {"LogSoftmax", Softmax},
                     {"Softmax", Softmax},
                     {"SoftmaxCrossEntropyWithLogits", SoftmaxCrossEntropy}};
  for (const auto& [name, operation] : Reductions()) rules.push_back({name, Reduction});
  return rules;
}

}  // namespace tf_ti
