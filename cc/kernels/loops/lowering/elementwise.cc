#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

const absl::flat_hash_map<std::string, Operation>& ElementwiseOperations() {
  static const auto& operations = *new absl::flat_hash_map<std::string, Operation>{
      {"Neg", Operation::kNeg},
      {"Abs", Operation::kAbs},
      {"Sign", Operation::kSign},
      {"Square", Operation::kSquare},
      {"Sqrt", Operation::kSqrt},
      {"Rsqrt", Operation::kRsqrt},
      {"Reciprocal", Operation::kReciprocal},
      {"Inv", Operation::kReciprocal},
      {"Exp", Operation::kExp},
      {"Log", Operation::kLog},
      {"Tanh", Operation::kTanh},
      {"Sigmoid", Operation::kSigmoid},
      {"Floor", Operation::kFloor},
      {"Ceil", Operation::kCeil},
      {"Rint", Operation::kRint},
      {"Round", Operation::kRint},
      {"Relu", Operation::kRelu},
      {"IsNan", Operation::kIsNan},
      {"IsInf", Operation::kIsInf},
      {"IsFinite", Operation::kIsFinite},
      {"LogicalNot", Operation::kLogicalNot},
      {"Add", Operation::kAdd},
      {"AddV2", Operation::kAdd},
      {"Sub", Operation::kSub},
      {"Mul", Operation::kMul},
      {"RealDiv", Operation::kDiv},
      {"Div", Operation::kDiv},
      {"Maximum", Operation::kMaximum},
      {"Minimum", Operation::kMinimum},
      {"SquaredDifference", Operation::kSquaredDifference},
      {"Equal", Operation::kEqual},
      {"NotEqual", Operation::kNotEqual},
      {"Less", Operation::kLess},
      {"LessEqual", Operation::kLessEqual},
      {"Greater", Operation::kGreater},
      {"GreaterEqual", Operation::kGreaterEqual},
      {"LogicalAnd", Operation::kLogicalAnd},
      {"LogicalOr", Operation::kLogicalOr},
      {"SelectV2", Operation::kSelect},
      {"SigmoidGrad", Operation::kSigmoidGrad},
      {"TanhGrad", Operation::kTanhGrad},
      {"SqrtGrad", Operation::kSqrtGrad},
      {"RsqrtGrad", Operation::kRsqrtGrad},
      {"ReciprocalGrad", Operation::kReciprocalGrad},
      {"InvGrad", Operation::kReciprocalGrad},
      {"ReluGrad", Operation::kReluGrad},
  };
  return operations;
}

bool Lowering::Elementwise(const NodeDef& node, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  // Otherwise shapes that do not fit are not errors, but not equal.
  if (!Attribute(node, "incompatible_shape_error", true)) return false;
  std::vector<View> operands;
  Dims dims;
  for (const Lowered& input : inputs) {
    const std::optional<View> view = ViewOf(input);
    if (!view.has_value() || !BroadcastDims(dims, view->dims, &dims)) return false;
    operands.push_back(*view);
  }
  if (CountOf(dims) > kMostElements) return false;
  outputs->push_back({builder_->Apply(ElementwiseOperations().at(node.op()), operands), {}});
  return true;
}

// From the first to the last.
bool Lowering::AddN(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  std::optional<View> sum = ViewOf(inputs[0]);
  if (!sum.has_value()) return false;
  for (size_t i = 1; i < inputs.size(); ++i) {
    const std::optional<View> view = ViewOf(inputs[i]);
    if (!view.has_value() || view->dims != sum->dims || sum->count() > kMostElements) return false;
    sum = builder_->Apply(Operation::kAdd, {*sum, *view});
    if (sum->block < 0) return false;
  }
  outputs->push_back({*sum, {}});
  return true;
}

bool Lowering::Cast(const NodeDef& node, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const auto to = ElementTypeOf(Attribute(node, "DstT", tensorflow::DT_INVALID));
  if (!view.has_value() || !to.has_value() || Attribute(node, "Truncate", false)) return false;
  if (view->count() > kMostElements) return false;
  // What TensorFlow makes of floats that no integer is depends on how it was compiled.
  if (view->type <= ElementType::kDouble && *to >= ElementType::kInt32 &&
      *to != ElementType::kBool) {
    return false;
  }
  outputs->push_back({builder_->Cast(*view, *to), {}});
  return true;
}

// Its condition may be a vector, of the rows.
bool Lowering::SelectV1(const NodeDef&, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  std::optional<View> condition = ViewOf(inputs[0]), x = ViewOf(inputs[1]), y = ViewOf(inputs[2]);
  if (!condition.has_value() || !x.has_value() || !y.has_value()) return false;
  if (x->dims != y->dims || x->count() > kMostElements) return false;
  if (condition->dims != x->dims && condition->rank() > 0) {
    if (condition->rank() != 1 || x->rank() == 0 || condition->dims[0] != x->dims[0]) return false;
    while (condition->rank() < x->rank()) condition = condition->WithDim(condition->rank());
  }
  outputs->push_back({builder_->Apply(Operation::kSelect, {*condition, *x, *y}), {}});
  return true;
}

}  // namespace tf_ti
