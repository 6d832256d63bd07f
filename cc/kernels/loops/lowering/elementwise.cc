#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "cc/kernels/loops/lowering/rules.h"
#include "cc/spec/loops/operations.h"
#include "unsupported/Eigen/SpecialFunctions"

namespace tf_ti {

using tensorflow::NodeDef;
using tensorflow::Tensor;

namespace {

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

// The number that SELU scales with, and that times its alpha.
constexpr double kSeluScale = 1.0507009873554804934193349852946;
constexpr double kSeluScaleAlpha = 1.7580993408473768599402175208123;

using Terms = std::vector<Term>;
// The result of an operation of its operands, all of which are broadcast.
using Formula = Term (*)(const Terms& operands, const NodeDef& node);

Term MulNoNan(const Term& x, const Term& y) { return Where(y == y.Number(0), y.Number(0), x * y); }

Term Alpha(const Term& x, const NodeDef& node) { return x.Number(Attribute(node, "alpha", 0.2f)); }

// max(x, 0), where -0 stays -0.
Term NotNegative(const Term& x) { return Applied(Operation::kAtLeast, {x, x.Number(0)}); }

Term ReciprocalGrad(const Terms& in, const NodeDef&) {
  const Term &y = in[0], &dy = in[1];
  return MulNoNan(-(y * y), dy);
}

// Formulas of several operations, in the order in which TensorFlow's kernels compute whole vectors.
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
         if (most == 1 || x.type() != ElementType::kDouble) return erf;
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

// Formulas for half precision, where TensorFlow's kernels round in between or compute otherwise.
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
      // Far from 0 the result is x or its exponential; Eigen's epsilon says how far.
      {"Softplus",
       [](const Terms& in, const NodeDef&) {
         const Term& x = in[0];
         const bool is_half = x.type() == ElementType::kHalf;
         const Term least = x.Number(std::log(is_half ? 0x1p-13 : 0x1p-7)) + x.Number(2);
         const Term e = Exp(x);
         return Where(-least < x, x, Where(x < least, e, Log1p(e)));
       }},
  };
  return formulas;
}

Formula FormulaOf(const std::string& operation, ElementType type) {
  if (IsHalf(type)) {
    const auto found = HalfFormulas().find(operation);
    if (found != HalfFormulas().end()) return found->second;
  }
  const auto found = Formulas().find(operation);
  return found == Formulas().end() ? nullptr : found->second;
}

Outputs Elementwise(LoweringContext& context, const NodeDef& node,
                    const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Operands operands, OperandsOf(context, inputs));
  if (HasOwnShapes(node.op())) {
    const bool takes_scalars = node.op() == "ClipByValue";
    for (const Lowered& input : inputs) {
      const Dims dims = DimsOf(input);
      if (dims != DimsOf(inputs[0]) && !(takes_scalars && dims.empty())) {
        return Refused("operands that the kernel does not broadcast");
      }
    }
  }
  if (const Formula formula = FormulaOf(node.op(), operands.views.back().type)) {
    Terms terms;
    for (const View& operand : operands.views) terms.push_back(context.TermOf(operand));
    return One(formula(terms, node).view());
  }
  const Operation operation = ElementwiseOperations().at(node.op());
  if (IsCall(operation) && CountOf(operands.dims) > kMostCalls) {
    return Refused("more numbers than ", kMostCalls, ", computed one by one");
  }
  return One(OrRefused(context.builder().Apply(operation, operands.views)));
}

// Integers have no quotient by 0.
Outputs Division(LoweringContext& context, const NodeDef& node,
                 const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(std::vector<Lowered> quotients, Elementwise(context, node, inputs));
  if (!tensorflow::DataTypeIsInteger(DataTypeOf(inputs[1]))) return quotients;
  if (inputs[1].known.has_value()) {
    TF_ASSIGN_OR_RETURN(const Dims divisors, Integers(inputs[1]));
    if (std::count(divisors.begin(), divisors.end(), 0) > 0) return Refused("a divisor of 0");
    return quotients;
  }
  const View& view = *inputs[1].view;
  if (view.count() == 0) return quotients;
  const Term divisors = context.TermOf(context.builder().Contiguous(view).Reshape({view.count()}));
  TF_RETURN_IF_ERROR(context.FailWhere(divisors == divisors.Number(0)));
  return quotients;
}

// The bias has the channels: the last dimension, or the one behind the first.
Outputs BiasAdd(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View value, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(View bias, context.ViewOf(inputs[1]));
  if (value.rank() < 2 || bias.rank() != 1) return Refused("a bias that is not of channels");
  TF_RETURN_IF_ERROR(CheckCount(value.count()));
  const int dim = ChannelsOf(node, value.rank());
  if (bias.dims[0] != value.dims[dim]) return Refused("another number of channels than the bias's");
  while (bias.rank() < value.rank() - dim) bias = bias.WithDim(bias.rank());
  return One(OrRefused(context.builder().Apply(Operation::kAdd, {value, bias})));
}

// Sums from the first to the last.
Outputs AddN(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View sum, context.ViewOf(inputs[0]));
  for (size_t i = 1; i < inputs.size(); ++i) {
    TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[i]));
    if (view.dims != sum.dims) return Refused("shapes that differ");
    TF_RETURN_IF_ERROR(CheckCount(sum.count()));
    TF_ASSIGN_OR_RETURN(sum, OrRefused(context.builder().Apply(Operation::kAdd, {sum, view})));
  }
  return One(sum);
}

Outputs Cast(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  const auto to = ElementTypeOf(Attribute(node, "DstT", tensorflow::DT_INVALID));
  if (!to.has_value()) return Refused("programs do not have the type");
  if (Attribute(node, "Truncate", false)) return Refused("programs do not truncate");
  TF_RETURN_IF_ERROR(CheckCount(view.count()));
  // TensorFlow's compiler decides which integer a float beyond the integers' range becomes.
  if (IsReal(view.type) && !IsReal(*to) && *to != ElementType::kBool) {
    return Refused("integers of floats");
  }
  return One(context.builder().Cast(view, *to));
}

// The number of a tensor that has one.
std::optional<double> NumberOf(const Tensor& tensor) {
  if (tensor.NumElements() != 1) return std::nullopt;
  switch (tensor.dtype()) {
    case tensorflow::DT_FLOAT:
      return tensor.flat<float>()(0);
    case tensorflow::DT_DOUBLE:
      return tensor.flat<double>()(0);
    case tensorflow::DT_HALF:
      return static_cast<double>(tensor.flat<Eigen::half>()(0));
    case tensorflow::DT_BFLOAT16:
      return static_cast<double>(tensor.flat<Eigen::bfloat16>()(0));
    case tensorflow::DT_INT32:
      return tensor.flat<int32_t>()(0);
    case tensorflow::DT_INT64:
      return static_cast<double>(tensor.flat<int64_t>()(0));
    default:
      return std::nullopt;
  }
}

// A power of few factors takes much less time than the function for any exponent.
Outputs Power(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  const std::optional<double> exponent =
      inputs[1].known.has_value() ? NumberOf(*inputs[1].known) : std::nullopt;
  if (!exponent.has_value() || DimsOf(inputs[1]).size() > DimsOf(inputs[0]).size()) {
    return Elementwise(context, node, inputs);
  }
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  TF_RETURN_IF_ERROR(CheckCount(view.count()));
  const Term x = context.TermOf(view);
  if (*exponent == 0) return One(Repeated(*x.Number(1).view(), view.dims));
  if (*exponent == 1) return One(view);
  if (*exponent == 2) return One(Applied(Operation::kSquare, {x}).view());
  // Half precision is rounded once.
  if (*exponent == 3 && !IsHalf(view.type)) return One((x * x * x).view());
  if (*exponent == -1 && IsReal(view.type)) {
    return One(Applied(Operation::kReciprocal, {x}).view());
  }
  return Elementwise(context, node, inputs);
}

// The condition may be a vector, with one bool for each row.
Outputs Select(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View condition, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(const View x, context.ViewOf(inputs[1]));
  TF_ASSIGN_OR_RETURN(const View y, context.ViewOf(inputs[2]));
  if (x.dims != y.dims) return Refused("shapes that differ");
  TF_RETURN_IF_ERROR(CheckCount(x.count()));
  if (condition.dims != x.dims && condition.rank() > 0) {
    if (condition.rank() != 1 || x.rank() == 0 || condition.dims[0] != x.dims[0]) {
      return Refused("a condition of another shape");
    }
    while (condition.rank() < x.rank()) condition = condition.WithDim(condition.rank());
  }
  return One(OrRefused(context.builder().Apply(Operation::kSelect, {condition, x, y})));
}

}  // namespace

absl::StatusOr<Operands> OperandsOf(LoweringContext& context, const std::vector<Lowered>& inputs) {
  Operands operands;
  for (const Lowered& input : inputs) {
    TF_ASSIGN_OR_RETURN(View view, context.ViewOf(input));
    std::optional<Dims> dims = BroadcastDims(operands.dims, view.dims);
    if (!dims.has_value()) return Refused("shapes that do not fit each other");
    operands.dims = *std::move(dims);
    operands.views.push_back(std::move(view));
  }
  TF_RETURN_IF_ERROR(CheckCount(CountOf(operands.dims)));
  return operands;
}

RuleTable ElementwiseRules() {
  RuleTable rules;
  for (const auto& [name, operation] : ElementwiseOperations())
    rules.push_back({name, Elementwise});
  for (const auto& [name, formula] : Formulas()) rules.push_back({name, Elementwise});
  for (const char* const name : {"FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod"}) {
    rules.push_back({name, Division});
  }
  rules.insert(rules.end(), {{"AddN", AddN},
                             {"BiasAdd", BiasAdd},
                             {"BiasAddV1", BiasAdd},
                             {"Cast", Cast},
                             {"Pow", Power},
                             {"Select", Select}});
  return rules;
}

}  // namespace tf_ti
