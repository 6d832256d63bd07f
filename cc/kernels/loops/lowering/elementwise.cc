#include <algorithm>
#include <cmath>
#include <limits>

#include "cc/kernels/loops/lowering/rules.h"
#include "unsupported/Eigen/SpecialFunctions"

namespace tf_ti {

using tensorflow::DataType;
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
      {"Expm1", Operation::kExpm1},
      {"Log", Operation::kLog},
      {"Log1p", Operation::kLog1p},
      {"Tanh", Operation::kTanh},
      {"Sigmoid", Operation::kSigmoid},
      {"Sin", Operation::kSin},
      {"Cos", Operation::kCos},
      {"Tan", Operation::kTan},
      {"Asin", Operation::kAsin},
      {"Acos", Operation::kAcos},
      {"Atan", Operation::kAtan},
      {"Sinh", Operation::kSinh},
      {"Cosh", Operation::kCosh},
      {"Asinh", Operation::kAsinh},
      {"Acosh", Operation::kAcosh},
      {"Atanh", Operation::kAtanh},
      {"Erfc", Operation::kErfc},
      {"Pow", Operation::kPow},
      {"Atan2", Operation::kAtan2},
      {"Mod", Operation::kTruncateMod},
      {"TruncateMod", Operation::kTruncateMod},
      {"FloorMod", Operation::kFloorMod},
      {"TruncateDiv", Operation::kTruncateDiv},
      {"FloorDiv", Operation::kFloorDiv},
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

namespace {

// The number that SELU scales with, and that times its alpha.
constexpr double kSeluScale = 1.0507009873554804934193349852946;
constexpr double kSeluScaleAlpha = 1.7580993408473768599402175208123;

using Terms = std::vector<Term>;

Term MulNoNan(const Term& x, const Term& y) { return Where(y == y.Number(0), y.Number(0), x * y); }

Term Alpha(const Term& x, const NodeDef& node) { return x.Number(Attribute(node, "alpha", 0.2f)); }

// max(x, 0), where -0 stays -0.
Term NotNegative(const Term& x) { return Applied(Operation::kAtLeast, {x, x.Number(0)}); }

Term ReciprocalGrad(const Terms& in, const NodeDef&) {
  const Term &y = in[0], &dy = in[1];
  return MulNoNan(-(y * y), dy);
}

}  // namespace

// Of several operations each, in the order in which TensorFlow's kernels compute whole vectors.
const absl::flat_hash_map<std::string, Formula>& Formulas() {
  static const auto& formulas = *new absl::flat_hash_map<std::string, Formula>{
      {"ClipByValue",
       [](const Terms& in, const NodeDef&) {
         const Term &x = in[0], &least = in[1], &most = in[2];
         return Applied(Operation::kAtLeast, {Applied(Operation::kAtMost, {x, most}), least});
       }},
      {"Elu",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         return Where(x < x.Number(0), Exp(x) - x.Number(1), x);
       }},
      {"EluGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &dy = in[0], &y = in[1];
         return Where(y < y.Number(0), (y + y.Number(1)) * dy, dy);
       }},
      {"Selu",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         return Where(x < x.Number(0), x.Number(kSeluScaleAlpha) * (Exp(x) - x.Number(1)),
                      x.Number(kSeluScale) * x);
       }},
      {"SeluGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &dy = in[0], &y = in[1];
         return Where(y < y.Number(0), dy * (y + y.Number(kSeluScaleAlpha)),
                      dy * y.Number(kSeluScale));
       }},
      {"Relu6",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         return Minimum(Maximum(x, x.Number(0)), x.Number(6));
       }},
      {"Relu6Grad",
       [](const Terms& in, const NodeDef&) {
         const Term &dy = in[0], &x = in[1];
         return dy * And(x.Number(0) < x, x < x.Number(6)).As(dy);
       }},
      {"LeakyRelu",
       [](const Terms& in, const NodeDef& node) {
         const Term& x = in[0];
         return Where(x.Number(0) < x, x, x * Alpha(x, node));
       }},
      {"LeakyReluGrad",
       [](const Terms& in, const NodeDef& node) {
         const Term &dy = in[0], &x = in[1];
         return Where(x.Number(0) < x, dy, dy * Alpha(x, node));
       }},
      {"Softplus",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         return Maximum(x, x.Number(0)) + Log1p(Exp(-Abs(x)));
       }},
      {"SoftplusGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &dy = in[0], &x = in[1];
         return dy / (Exp(-x) + x.Number(1));
       }},
      {"Softsign",
       [](const Terms& in, const NodeDef&) { return in[0] / (Abs(in[0]) + in[0].Number(1)); }},
      // What Eigen makes of infinite doubles depends on its version.
      {"Erf",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         const Term erf = Applied(Operation::kErf, {x});
         const double most = Eigen::numext::erf(std::numeric_limits<double>::infinity());
         if (most == 1 || x.view().type != ElementType::kDouble) return erf;
         return Where(Applied(Operation::kIsInf, {x}), x.Number(most), erf);
       }},
      {"SoftsignGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &dy = in[0], &x = in[1];
         return dy / Applied(Operation::kSquare, {Abs(x) + x.Number(1)});
       }},
      {"DivNoNan",
       [](const Terms& in, const NodeDef&) {
         const Term &x = in[0], &y = in[1];
         return Where(y == y.Number(0), y.Number(0), x / y);
       }},
      {"MulNoNan", [](const Terms& in, const NodeDef&) { return MulNoNan(in[0], in[1]); }},
      {"Xdivy",
       [](const Terms& in, const NodeDef&) {
         const Term &x = in[0], &y = in[1];
         return Where(x == x.Number(0), x, x / y);
       }},
      {"Xlogy",
       [](const Terms& in, const NodeDef&) {
         const Term &x = in[0], &y = in[1];
         return Where(x == x.Number(0), x, x * Log(y));
       }},
      {"Xlog1py",
       [](const Terms& in, const NodeDef&) {
         const Term &x = in[0], &y = in[1];
         return Where(x == x.Number(0), x, x * Log1p(y));
       }},
  };
  return formulas;
}

const absl::flat_hash_map<std::string, Formula>& HalfFormulas() {
  static const auto& formulas = *new absl::flat_hash_map<std::string, Formula>{
      {"Sigmoid",
       [](const Terms& in, const NodeDef&) {
         const Term &x = in[0], e = Exp(x);
         return Where(Applied(Operation::kIsInf, {e}), x.Number(1), e / (e + x.Number(1)));
       }},
      {"SigmoidGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &y = in[0], &dy = in[1];
         return dy * ((y.Number(1) - y) * y);
       }},
      {"TanhGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &y = in[0], &dy = in[1];
         return dy * (y.Number(1) - y * y);
       }},
      {"SqrtGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &y = in[0], &dy = in[1];
         return MulNoNan(y.Number(0.5) / y, dy);
       }},
      {"RsqrtGrad",
       [](const Terms& in, const NodeDef&) {
         const Term &y = in[0], &dy = in[1];
         return MulNoNan(y.Number(-0.5) * (y * y), MulNoNan(y, dy));
       }},
      {"ReciprocalGrad", ReciprocalGrad},
      {"InvGrad", ReciprocalGrad},
      {"SquaredDifference",
       [](const Terms& in, const NodeDef&) {
         const Term difference = in[0] - in[1];
         return difference * difference;
       }},
      {"FloorDiv", [](const Terms& in, const NodeDef&) { return Floor(in[0] / in[1]); }},
      // TensorFlow gives the first of two zeros, and the instructions give the second.
      {"Maximum", [](const Terms& in, const NodeDef&) { return Maximum(in[1], in[0]); }},
      {"Minimum", [](const Terms& in, const NodeDef&) { return Minimum(in[1], in[0]); }},
      {"Relu", [](const Terms& in, const NodeDef&) { return NotNegative(in[0]); }},
      {"Relu6",
       [](const Terms& in, const NodeDef&) {
         return Applied(Operation::kAtMost, {NotNegative(in[0]), in[0].Number(6)});
       }},
      {"TruncateDiv",
       [](const Terms& in, const NodeDef&) {
         const Term quotient = in[0] / in[1];
         return Where(quotient < quotient.Number(0), -Floor(-quotient), Floor(quotient));
       }},
      // Of numbers far from 0 it is x or its exponential; how far is what Eigen calls epsilon.
      {"Softplus",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         const bool is_half = x.view().type == ElementType::kHalf;
         const Term least = x.Number(std::log(is_half ? 0x1p-13 : 0x1p-7)) + x.Number(2);
         const Term e = Exp(x);
         return Where(-least < x, x, Where(x < least, e, Log1p(e)));
       }},
  };
  return formulas;
}

namespace {

Formula FormulaOf(const std::string& operation, ElementType type) {
  if (IsHalf(type)) {
    const auto found = HalfFormulas().find(operation);
    if (found != HalfFormulas().end()) return found->second;
  }
  const auto found = Formulas().find(operation);
  return found == Formulas().end() ? nullptr : found->second;
}

}  // namespace

// Operands of an elementwise operation, and the dimensions of its result, which is not too large.
bool Lowering::OperandsOf(const std::vector<Lowered>& inputs, std::vector<View>* operands,
                          Dims* dims) {
  for (const Lowered& input : inputs) {
    const std::optional<View> view = ViewOf(input);
    if (!view.has_value() || !BroadcastDims(*dims, view->dims, dims)) return false;
    operands->push_back(*view);
  }
  return CountOf(*dims) <= kMostElements;
}

bool Lowering::Elementwise(const NodeDef& node, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  std::vector<View> operands;
  Dims dims;
  if (!OperandsOf(inputs, &operands, &dims)) return false;
  if (FormulaOf(node.op(), operands.back().type) != nullptr) return Composed(node, inputs, outputs);
  const Operation operation = ElementwiseOperations().at(node.op());
  if (IsCall(operation) && CountOf(dims) > kMostCalls) return false;
  outputs->push_back({builder_->Apply(operation, operands), {}});
  return true;
}

// An integer cannot be divided by 0.
bool Lowering::Division(const NodeDef& node, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  if (!Elementwise(node, inputs, outputs)) return false;
  const DataType dtype = Attribute(node, "T", tensorflow::DT_INVALID);
  if (!tensorflow::DataTypeIsInteger(dtype)) return true;
  if (const std::optional<Dims> known = Integers(inputs[1]); known.has_value()) {
    return std::count(known->begin(), known->end(), 0) == 0;
  }
  const std::optional<View> view = ViewOf(inputs[1]);
  if (!view.has_value()) return false;
  if (view->count() == 0) return true;
  const Term divisor(builder_, builder_->Contiguous(*view).Reshape({view->count()}));
  return FailsWhere((divisor == divisor.Number(0)).Reduced(Operation::kAny, 0).view());
}

bool Lowering::Composed(const NodeDef& node, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  std::vector<View> operands;
  Dims dims;
  if (!OperandsOf(inputs, &operands, &dims)) return false;
  std::vector<Term> terms;
  for (const View& operand : operands) terms.emplace_back(builder_, operand);
  const Formula formula = FormulaOf(node.op(), operands.back().type);
  outputs->push_back({formula(terms, node).view(), {}});
  return true;
}

// The bias is of the last dimension, or of the one behind the first.
bool Lowering::BiasAdd(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const std::optional<View> value = ViewOf(inputs[0]);
  std::optional<View> bias = ViewOf(inputs[1]);
  if (!value.has_value() || !bias.has_value() || value->rank() < 2 || bias->rank() != 1) {
    return false;
  }
  if (value->count() > kMostElements) return false;
  const int dim = ChannelsOf(node, value->rank());
  if (bias->dims[0] != value->dims[dim]) return false;
  while (bias->rank() < value->rank() - dim) bias = bias->WithDim(bias->rank());
  outputs->push_back({builder_->Apply(Operation::kAdd, {*value, *bias}), {}});
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
  if (IsReal(view->type) && !IsReal(*to) && *to != ElementType::kBool) return false;
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
