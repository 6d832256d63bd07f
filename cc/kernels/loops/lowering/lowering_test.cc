// Compares each rule with plain loops in long double, by TensorFlow's definition of the operation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/program.h"
#include "cc/compute/program/testing/arrays.h"
#include "cc/compute/program/testing/reference.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"
#include "cc/kernels/loops/lowering/lower.h"
#include "cc/spec/loops/operations.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {
namespace {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr ElementType kFloat = ElementType::kFloat;
constexpr ElementType kInt32 = ElementType::kInt32;
constexpr ElementType kInt64 = ElementType::kInt64;
constexpr ElementType kBool = ElementType::kBool;
constexpr ElementType kReals[] = {ElementType::kFloat, ElementType::kDouble, ElementType::kHalf,
                                  ElementType::kBFloat16};
constexpr ElementType kNumbers[] = {ElementType::kFloat, ElementType::kDouble,
                                    ElementType::kHalf,  ElementType::kBFloat16,
                                    ElementType::kInt32, ElementType::kInt64};
constexpr int64_t kTooMany = (1 << 22) + 1;

// Holds the elements of every type.
using Number = long double;

Number At(const Array& array, int64_t i) {
  return array.is_real() ? Number(array.reals[i]) : Number(array.integers[i]);
}

// The element at an index. Dimensions of 1 repeat, and so do missing first ones.
Number At(const Array& array, Dims index) {
  index.erase(index.begin(), index.end() - array.dims.size());
  int64_t i = 0;
  for (size_t d = 0; d < array.dims.size(); ++d) {
    i = i * array.dims[d] + (array.dims[d] == 1 ? 0 : index[d]);
  }
  return At(array, i);
}

// The array whose elements are a function of the index.
Array Built(ElementType type, const Dims& dims, const std::function<Number(const Dims&)>& element) {
  Array array;
  array.type = type;
  array.dims = dims;
  Dims index(dims.size(), 0);
  for (int64_t i = 0; i < CountOf(dims); ++i) {
    const Number x = element(index);
    if (IsReal(type)) {
      array.reals.push_back(RoundTo(type, x));
    } else {
      array.integers.push_back(WrapTo(type, static_cast<int64_t>(x)));
    }
    for (int d = static_cast<int>(dims.size()) - 1; d >= 0; --d) {
      if (++index[d] < dims[d]) break;
      index[d] = 0;
    }
  }
  return array;
}

Array ListOf(ElementType type, const std::vector<Number>& elements) {
  return Built(type, {static_cast<int64_t>(elements.size())},
               [&](const Dims& index) { return elements[index[0]]; });
}

Array ScalarOf(ElementType type, Number x) {
  return Built(type, {}, [&](const Dims&) { return x; });
}

// Small numbers, whose sums and products are exact in float.
Array Sample(ElementType type, const Dims& dims) {
  static Random random(1);
  return Built(type, dims, [&](const Dims&) -> Number {
    if (type == kBool) return random.Int(0, 1);
    return IsReal(type) ? random.Int(-12, 12) / Number(4) : random.Int(-9, 9);
  });
}

// Also numbers that are special.
Array Special(ElementType type, const Dims& dims) {
  static Random random(2);
  if (!IsReal(type)) return Sample(type, dims);
  return Built(type, dims, [&](const Dims&) -> Number {
    if (random.Chance(0.4)) return random.Pick({0.0, -0.0, kInfinity, -kInfinity, kNan, 1.0, -1.0});
    return random.Real(-3, 3);
  });
}

struct Input {
  Input(Array of) : array(std::move(of)) {}  // NOLINT: arrays are the usual inputs
  Array array;
  bool is_known = false;
};

Input Known(Array array) {
  Input input(std::move(array));
  input.is_known = true;
  return input;
}
Input Ints(const std::vector<Number>& integers) { return Known(ListOf(kInt32, integers)); }
Input Int(int64_t integer) { return Known(ScalarOf(kInt32, integer)); }

NodeDef Node(const std::string& op) {
  NodeDef node;
  node.set_op(op);
  node.set_name(op);
  return node;
}
template <typename T, typename... Rest>
NodeDef Node(const std::string& op, const char* name, const T& value, const Rest&... rest) {
  NodeDef node = Node(op, rest...);
  tensorflow::AddNodeAttr(name, value, &node);
  return node;
}

std::set<std::string>& Tested() {
  static auto& names = *new std::set<std::string>;
  return names;
}

struct Result {
  absl::Status status;
  std::vector<Array> outputs;
  std::vector<bool> are_known;
  bool may_fail = false;
  bool fails = false;
};

Tensor TensorOf(const Array& array) {
  Tensor tensor(DataTypeOf(array.type), TensorShape(array.dims));
  const std::vector<char> bytes = ToBytes(array);
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.data()));
  return tensor;
}

// Lowers an operation and runs its program, in memory with red zones.
Result ResultOf(const NodeDef& node, const std::vector<Input>& inputs) {
  LoweringContext context;
  std::vector<Lowered> given;
  std::vector<std::unique_ptr<Guarded<char>>> memory, results;
  for (const Input& input : inputs) {
    Lowered& value = given.emplace_back();
    if (input.is_known) {
      value.known = TensorOf(input.array);
    } else {
      value.view = context.builder().AddInput(input.array.type, input.array.dims);
      memory.push_back(std::make_unique<Guarded<char>>(ToBytes(input.array)));
    }
  }
  Result result;
  absl::StatusOr<std::vector<Lowered>> outputs = Lower(context, node, given);
  result.status = outputs.status();
  if (!outputs.ok()) return result;
  Tested().insert(node.op());
  std::vector<View> views;
  for (const Lowered& output : *outputs) {
    result.are_known.push_back(output.known.has_value());
    views.push_back(*context.ViewOf(output));
  }
  result.may_fail = context.failure().has_value();
  if (result.may_fail) views.push_back(*context.failure());
  for (const View& view : views) {
    context.builder().AddOutput(view);
    const int64_t bytes = view.count() * SizeOf(StoredAs(view.type));
    results.push_back(std::make_unique<Guarded<char>>(bytes));
  }
  const Program program(context.builder().steps(), /*red_zone=*/64);
  ProgramRun run(program);
  for (size_t i = 0; i < memory.size(); ++i) run.SetInput(i, memory[i]->data());
  for (size_t i = 0; i < results.size(); ++i) run.SetOutput(i, results[i]->data());
  EXPECT_TRUE(run.RunChecked()) << node.op();
  for (size_t i = 0; i < views.size(); ++i) {
    result.outputs.push_back(FromBytes(views[i].type, views[i].dims, results[i]->data()));
  }
  if (result.may_fail) {
    result.fails = result.outputs.back().integers[0] != 0;
    result.outputs.pop_back();
  }
  return result;
}

std::string TextOf(const NodeDef& node, const std::vector<Input>& inputs) {
  std::ostringstream text;
  text << node.op();
  for (const Input& input : inputs) {
    text << (input.is_known ? " known" : "") << " " << static_cast<int>(input.array.type) << "[";
    for (const int64_t dim : input.array.dims) text << dim << " ";
    text << "]";
  }
  return text.str();
}

void ExpectAll(const NodeDef& node, const std::vector<Input>& inputs,
               const std::vector<Array>& expected, double ulps = 0) {
  const std::string text = TextOf(node, inputs);
  const Result result = ResultOf(node, inputs);
  ASSERT_TRUE(result.status.ok()) << text << ": " << result.status;
  EXPECT_FALSE(result.fails) << text;
  ASSERT_EQ(result.outputs.size(), expected.size()) << text;
  for (size_t i = 0; i < expected.size(); ++i) {
    std::vector<double> magnitudes;
    for (const double x : expected[i].reals) magnitudes.push_back(std::max(std::fabs(x), 1.0));
    ExpectAlike(result.outputs[i], expected[i], ulps, text + " output " + std::to_string(i),
                &magnitudes);
  }
}

void Expect(const NodeDef& node, const std::vector<Input>& inputs, const Array& expected,
            double ulps = 0) {
  ExpectAll(node, inputs, {expected}, ulps);
}

void ExpectKnown(const NodeDef& node, const std::vector<Input>& inputs,
                 const std::vector<Array>& expected) {
  ExpectAll(node, inputs, expected);
  const Result result = ResultOf(node, inputs);
  EXPECT_EQ(std::count(result.are_known.begin(), result.are_known.end(), false), 0) << node.op();
}

void ExpectRefused(const NodeDef& node, const std::vector<Input>& inputs) {
  const Result result = ResultOf(node, inputs);
  EXPECT_FALSE(result.status.ok()) << TextOf(node, inputs);
  EXPECT_FALSE(result.status.message().empty()) << TextOf(node, inputs);
}

void ExpectFails(const NodeDef& node, const std::vector<Input>& inputs, bool fails) {
  const Result result = ResultOf(node, inputs);
  ASSERT_TRUE(result.status.ok()) << TextOf(node, inputs) << result.status;
  EXPECT_TRUE(result.may_fail) << TextOf(node, inputs);
  EXPECT_EQ(result.fails, fails) << TextOf(node, inputs);
}

// The dimensions that arrays are broadcast to.
Dims Broadcast(const std::vector<Array>& arrays) {
  size_t rank = 0;
  for (const Array& array : arrays) rank = std::max(rank, array.dims.size());
  Dims dims(rank, 1);
  for (const Array& array : arrays) {
    for (size_t d = 0; d < array.dims.size(); ++d) {
      int64_t& dim = dims[rank - array.dims.size() + d];
      if (array.dims[d] != 1) dim = array.dims[d];
    }
  }
  return dims;
}

// Shapes of operands, among them extents of 0, and ranks of 0 and 8.
const std::vector<std::vector<Dims>>& Shapes() {
  static const auto& shapes = *new std::vector<std::vector<Dims>>{
      {{}, {}, {}},
      {{7}, {7}, {7}},
      {{2, 3, 5}, {3, 1}, {5}},
      {{1, 4}, {3, 1}, {}},
      {{0, 3}, {1, 3}, {}},
      {{2, 1, 2, 1, 3, 1, 2, 1}, {1, 2, 1, 2, 1, 2, 1, 2}, {1, 1, 1, 1, 1, 1, 1, 2}}};
  return shapes;
}

template <typename F>
struct Named {
  const char* op;
  double ulps;  // of the result, or of 1
  F function;
};
using Unary = Named<Number (*)(Number)>;
using Binary = Named<Number (*)(Number, Number)>;

constexpr Number kSeluScale = 1.0507009873554804934193349852946L;
constexpr Number kSeluAlpha = 1.6732632423543772848170429916717L;

const Unary kUnaryOfReals[] = {
    {"Sqrt", 0, [](Number x) { return std::sqrt(x); }},
    {"Rsqrt", 1, [](Number x) { return 1 / std::sqrt(x); }},
    {"Reciprocal", 0, [](Number x) { return 1 / x; }},
    {"Inv", 0, [](Number x) { return 1 / x; }},
    {"Exp", 2, [](Number x) { return std::exp(x); }},
    {"Expm1", 4, [](Number x) { return std::expm1(x); }},
    {"Log", 2, [](Number x) { return std::log(x); }},
    {"Log1p", 4, [](Number x) { return std::log1p(x); }},
    {"Tanh", 4, [](Number x) { return std::tanh(x); }},
    {"Sigmoid", 4, [](Number x) { return 1 / (1 + std::exp(-x)); }},
    {"Sin", 2, [](Number x) { return std::sin(x); }},
    {"Cos", 2, [](Number x) { return std::cos(x); }},
    {"Tan", 2, [](Number x) { return std::tan(x); }},
    {"Asin", 2, [](Number x) { return std::asin(x); }},
    {"Acos", 2, [](Number x) { return std::acos(x); }},
    {"Atan", 2, [](Number x) { return std::atan(x); }},
    {"Sinh", 2, [](Number x) { return std::sinh(x); }},
    {"Cosh", 2, [](Number x) { return std::cosh(x); }},
    {"Asinh", 2, [](Number x) { return std::asinh(x); }},
    {"Acosh", 2, [](Number x) { return std::acosh(x); }},
    {"Atanh", 2, [](Number x) { return std::atanh(x); }},
    {"Erfc", 5, [](Number x) { return std::erfc(x); }},
    {"Floor", 0, [](Number x) { return std::floor(x); }},
    {"Ceil", 0, [](Number x) { return std::ceil(x); }},
    {"Rint", 0, [](Number x) { return std::nearbyint(x); }},
    {"Round", 0, [](Number x) { return std::nearbyint(x); }},
    {"Elu", 4, [](Number x) { return x < 0 ? std::exp(x) - 1 : x; }},
    {"Selu", 8, [](Number x) { return kSeluScale * (x < 0 ? kSeluAlpha * (std::exp(x) - 1) : x); }},
    {"Softplus", 8, [](Number x) { return std::log1p(std::exp(x)); }},
    {"Softsign", 4, [](Number x) { return x / (std::fabs(x) + 1); }},
};

const Unary kUnaryOfNumbers[] = {
    {"Neg", 0, [](Number x) { return -x; }},
    {"Abs", 0, [](Number x) { return std::fabs(x); }},
    {"Sign", 0, [](Number x) { return x == 0  ? 0
                                      : x > 0 ? 1
                                      : x < 0 ? -1
                                              : x; }},
    {"Square", 0, [](Number x) { return x * x; }},
};

const Unary kTests[] = {
    {"IsNan", 0, [](Number x) -> Number { return x != x; }},
    {"IsInf", 0, [](Number x) -> Number { return std::isinf(x); }},
    {"IsFinite", 0, [](Number x) -> Number { return std::isfinite(x); }},
};

const Binary kBinaryOfReals[] = {
    {"RealDiv", 0, [](Number x, Number y) { return x / y; }},
    {"Div", 0, [](Number x, Number y) { return x / y; }},
    {"Pow", 2, [](Number x, Number y) { return std::pow(x, y); }},
    {"Atan2", 2, [](Number x, Number y) { return std::atan2(x, y); }},
    {"SigmoidGrad", 8, [](Number y, Number dy) { return dy * (y * (1 - y)); }},
    {"TanhGrad", 16, [](Number y, Number dy) { return dy * (1 - y * y); }},
    {"SqrtGrad", 4, [](Number y, Number dy) { return dy == 0 ? 0 : 0.5L / y * dy; }},
    {"RsqrtGrad", 32,
     [](Number y, Number dy) {
       const Number product = dy == 0 ? 0 : y * dy;
       return product == 0 ? 0 : -0.5L * (y * y) * product;
     }},
    {"ReciprocalGrad", 8, [](Number y, Number dy) { return dy == 0 ? 0 : -(y * y) * dy; }},
    {"InvGrad", 8, [](Number y, Number dy) { return dy == 0 ? 0 : -(y * y) * dy; }},
    {"EluGrad", 8, [](Number dy, Number y) { return y < 0 ? (y + 1) * dy : dy; }},
    {"SeluGrad", 16,
     [](Number dy, Number y) {
       return y < 0 ? dy * (y + kSeluScale * kSeluAlpha) : dy * kSeluScale;
     }},
    {"Relu6Grad", 0, [](Number dy, Number x) { return dy * (x > 0 && x < 6); }},
    {"SoftplusGrad", 8, [](Number dy, Number x) { return dy / (std::exp(-x) + 1); }},
    {"SoftsignGrad", 8,
     [](Number dy, Number x) { return dy / ((std::fabs(x) + 1) * (std::fabs(x) + 1)); }},
    {"DivNoNan", 0, [](Number x, Number y) { return y == 0 ? 0 : x / y; }},
    {"MulNoNan", 0, [](Number x, Number y) { return y == 0 ? 0 : x * y; }},
    {"Xdivy", 0, [](Number x, Number y) { return x == 0 ? x : x / y; }},
    {"Xlogy", 8, [](Number x, Number y) { return x == 0 ? x : x * std::log(y); }},
    {"Xlog1py", 8, [](Number x, Number y) { return x == 0 ? x : x * std::log1p(y); }},
};

const Binary kBinaryOfNumbers[] = {
    {"Add", 0, [](Number x, Number y) { return x + y; }},
    {"AddV2", 0, [](Number x, Number y) { return x + y; }},
    {"Sub", 0, [](Number x, Number y) { return x - y; }},
    {"Mul", 0, [](Number x, Number y) { return x * y; }},
    {"ReluGrad", 0, [](Number dy, Number x) { return dy * (x > 0); }},
};

const Binary kOfExactDifferences[] = {
    {"SquaredDifference", 0, [](Number x, Number y) { return (x - y) * (x - y); }},
    {"Maximum", 0, [](Number x, Number y) { return x > y ? x : y; }},
    {"Minimum", 0, [](Number x, Number y) { return x < y ? x : y; }},
};

const Binary kComparisons[] = {
    {"Equal", 0, [](Number x, Number y) -> Number { return x == y; }},
    {"NotEqual", 0, [](Number x, Number y) -> Number { return x != y; }},
    {"Less", 0, [](Number x, Number y) -> Number { return x < y; }},
    {"LessEqual", 0, [](Number x, Number y) -> Number { return x <= y; }},
    {"Greater", 0, [](Number x, Number y) -> Number { return x > y; }},
    {"GreaterEqual", 0, [](Number x, Number y) -> Number { return x >= y; }},
};

// Quotients are rounded to their type before they lose their fraction.
using Division = Named<Number (*)(ElementType, Number, Number)>;
const Division kDivisions[] = {
    {"FloorDiv", 0,
     [](ElementType type, Number x, Number y) {
       return std::floor(IsReal(type) ? RoundTo(type, x / y) : x / y);
     }},
    {"FloorMod", 0,
     [](ElementType, Number x, Number y) {
       const Number rest = std::fmod(x, y);
       return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
     }},
    {"Mod", 0, [](ElementType, Number x, Number y) { return std::fmod(x, y); }},
    {"TruncateDiv", 0,
     [](ElementType type, Number x, Number y) {
       return std::trunc(IsReal(type) ? RoundTo(type, x / y) : x / y);
     }},
    {"TruncateMod", 0, [](ElementType, Number x, Number y) { return std::fmod(x, y); }},
};

using Maker = Array (*)(ElementType, const Dims&);

void ExpectUnary(const Unary& rule, ElementType type, ElementType to, Maker make) {
  for (const std::vector<Dims>& shapes : Shapes()) {
    const Array x = make(type, shapes[0]);
    Expect(Node(rule.op), {x},
           Built(to, x.dims, [&](const Dims& at) { return rule.function(At(x, at)); }), rule.ulps);
  }
}

void ExpectBinary(const Binary& rule, ElementType type, ElementType to, Maker make) {
  for (const std::vector<Dims>& shapes : Shapes()) {
    const Array x = make(type, shapes[0]), y = make(type, shapes[1]);
    if (HasOwnShapes(rule.op) && x.dims != y.dims) {
      ExpectRefused(Node(rule.op), {x, y});
      continue;
    }
    const auto element = [&](const Dims& at) { return rule.function(At(x, at), At(y, at)); };
    Expect(Node(rule.op), {x, y}, Built(to, Broadcast({x, y}), element), rule.ulps);
  }
}

// Numbers without a zero, for divisors.
Array NonZero(ElementType type, const Dims& dims) {
  const Array sample = Sample(type, dims);
  return Built(type, dims,
               [&](const Dims& at) { return At(sample, at) == 0 ? 3 : At(sample, at); });
}

TEST(Elementwise, FunctionsOfReals) {
  for (const ElementType type : kReals) {
    for (const Unary& rule : kUnaryOfReals) ExpectUnary(rule, type, type, Special);
    for (const Unary& rule : kTests) ExpectUnary(rule, type, kBool, Special);
    for (const Binary& rule : kBinaryOfReals) ExpectBinary(rule, type, type, Special);
    ExpectUnary({"Erf", 5, [](Number x) { return std::erf(x); }}, type, type, Sample);
    ExpectUnary({"Relu6", 0, [](Number x) { return x < 0   ? 0
                                                   : x < 6 ? x
                                                           : 6; }}, type, type,
                Sample);
  }
}

TEST(Elementwise, OperationsOfNumbers) {
  for (const ElementType type : kNumbers) {
    for (const Unary& rule : kUnaryOfNumbers) ExpectUnary(rule, type, type, Special);
    ExpectUnary({"Relu", 0, [](Number x) { return x < 0 ? 0 : x; }}, type, type, Sample);
    for (const Binary& rule : kBinaryOfNumbers) ExpectBinary(rule, type, type, Special);
    for (const Binary& rule : kOfExactDifferences) ExpectBinary(rule, type, type, Sample);
    for (const Binary& rule : kComparisons) ExpectBinary(rule, type, kBool, Special);
    for (const Division& rule : kDivisions) {
      const Array x = Sample(type, {4, 6}), y = NonZero(type, {6});
      Expect(Node(rule.op), {x, y}, Built(type, x.dims, [&](const Dims& at) {
               return rule.function(type, At(x, at), At(y, at));
             }));
    }
  }
  ExpectUnary({"LogicalNot", 0, [](Number x) -> Number { return x == 0; }}, kBool, kBool, Sample);
  ExpectBinary({"LogicalAnd", 0, [](Number x, Number y) -> Number { return x != 0 && y != 0; }},
               kBool, kBool, Sample);
  ExpectBinary({"LogicalOr", 0, [](Number x, Number y) -> Number { return x != 0 || y != 0; }},
               kBool, kBool, Sample);
}

TEST(Elementwise, ExtremesOfNanAndOfZeros) {
  for (const ElementType type : kReals) {
    const Array x = ListOf(type, {kNan, 1, kInfinity, -kInfinity});
    const Array y = ListOf(type, {1, kNan, 2, 2});
    Expect(Node("Maximum"), {x, y}, ListOf(type, {kNan, kNan, kInfinity, 2}));
    Expect(Node("Minimum"), {x, y}, ListOf(type, {kNan, kNan, 2, -kInfinity}));
  }
  for (const ElementType type : {ElementType::kHalf, ElementType::kBFloat16}) {
    const Array x = ListOf(type, {0.0L, -0.0L}), y = ListOf(type, {-0.0L, 0.0L});
    Expect(Node("Maximum"), {x, y}, x);
    Expect(Node("Minimum"), {x, y}, x);
    Expect(Node("Relu"), {x}, x);
  }
  const Array signs = ListOf(kFloat, {0.0L, -0.0L}), zeros = ListOf(kFloat, {0.0L, 0.0L});
  Expect(Node("Relu"), {signs}, zeros);
}

// Each step of a formula is rounded to half precision, as TensorFlow's kernels do.
TEST(Elementwise, HalvesAreRoundedAfterEachStep) {
  const ElementType half = ElementType::kHalf;
  const Array x = ListOf(half, {1.0L + 0x1p-10L}), y = ListOf(half, {-0x1.8p-5L});
  const Number difference = RoundTo(half, At(x, 0) - At(y, 0));
  Expect(Node("SquaredDifference"), {x, y}, ListOf(half, {difference * difference}));
}

TEST(Elementwise, Alpha) {
  for (const ElementType type : kReals) {
    const Array x = Sample(type, {9}), dy = Sample(type, {9});
    const NodeDef leaky = Node("LeakyRelu", "alpha", 0.5f);
    const NodeDef gradient = Node("LeakyReluGrad", "alpha", 0.5f);
    Expect(leaky, {x}, Built(type, {9}, [&](const Dims& at) {
             return At(x, at) > 0 ? At(x, at) : At(x, at) / 2;
           }));
    Expect(gradient, {dy, x}, Built(type, {9}, [&](const Dims& at) {
             return At(x, at) > 0 ? At(dy, at) : At(dy, at) / 2;
           }));
  }
}

TEST(Elementwise, GradientsAtTheEdgesOfRelu6) {
  for (const ElementType type : kReals) {
    const Array dy = ListOf(type, {2, 2, 2}), x = ListOf(type, {0, 5, 6});
    Expect(Node("Relu6Grad"), {dy, x}, ListOf(type, {0, 2, 0}));
  }
}

TEST(Elementwise, SoftplusFarFromZero) {
  for (const ElementType type : kReals) {
    const Array x = ListOf(type, {-40, 40});
    Expect(Node("Softplus"), {x}, ListOf(type, {0, 40}), 1);
  }
}

TEST(Elementwise, OfThreeOperands) {
  for (const std::vector<Dims>& shapes : Shapes()) {
    for (const ElementType type : kTypes) {
      const Array c = Sample(kBool, shapes[0]);
      const Array x = Special(type, shapes[1]), y = Special(type, shapes[2]);
      Expect(Node("SelectV2"), {c, x, y}, Built(type, Broadcast({c, x, y}), [&](const Dims& at) {
               return At(c, at) != 0 ? At(x, at) : At(y, at);
             }));
    }
    for (const ElementType type : kNumbers) {
      const Array x = Sample(type, shapes[0]);
      const Array least = ScalarOf(type, -1), most = ScalarOf(type, 2);
      Expect(Node("ClipByValue"), {x, least, most}, Built(type, x.dims, [&](const Dims& at) {
               return std::min<Number>(std::max<Number>(At(x, at), -1), 2);
             }));
    }
  }
}

TEST(Elementwise, RefusesWhatDoesNotFit) {
  const Array x = Sample(kFloat, {3});
  ExpectRefused(Node("AddV2"), {x, Sample(kFloat, {2})});
  ExpectRefused(Node("Sin"), {Sample(kFloat, {1025})});  // computed one by one
  ExpectRefused(Node("Exp"), {Sample(kInt32, {3})});
  ExpectRefused(Node("AddV2"), {Sample(kFloat, {2049, 1}), Sample(kFloat, {2049})});
  ExpectRefused(Node("Softplus"), {Sample(kInt32, {3})});
  ExpectRefused(Node("TopKV2"), {x});
  ExpectRefused(Node("ClipByValue"), {x, Sample(kFloat, {1}), Sample(kFloat, {})});
  ExpectRefused(Node("SigmoidGrad"), {x, Sample(kFloat, {})});
}

TEST(Division, IntegersFailWhereADivisorIsZero) {
  for (const Division& rule : kDivisions) {
    for (const ElementType type : {kInt32, kInt64}) {
      const Array x = Sample(type, {3});
      ExpectFails(Node(rule.op), {x, ListOf(type, {1, 0, 2})}, true);
      ExpectFails(Node(rule.op), {x, ListOf(type, {1, -1, 2})}, false);
      ExpectRefused(Node(rule.op), {x, Known(ListOf(type, {1, 0, 2}))});
      EXPECT_FALSE(ResultOf(Node(rule.op), {x, Known(ListOf(type, {1, 1, 2}))}).may_fail);
      EXPECT_FALSE(ResultOf(Node(rule.op), {Sample(type, {0}), Sample(type, {0})}).may_fail);
    }
    EXPECT_FALSE(ResultOf(Node(rule.op), {Sample(kFloat, {2}), ListOf(kFloat, {0, 1})}).may_fail);
  }
}

TEST(BiasAdd, AddsToEachChannel) {
  for (const ElementType type : kNumbers) {
    for (const char* const op : {"BiasAdd", "BiasAddV1"}) {
      for (const Dims& dims : {Dims{4, 3}, Dims{2, 3, 5, 3}, Dims{0, 3}}) {
        const Array x = Sample(type, dims), bias = Sample(type, {3});
        Expect(Node(op), {x, bias}, Built(type, dims, [&](const Dims& at) {
                 return At(x, at) + At(bias, {at.back()});
               }));
      }
    }
    const NodeDef first = Node("BiasAdd", "data_format", "NCHW");
    const Array x = Sample(type, {2, 3, 5, 4}), bias = Sample(type, {3});
    Expect(first, {x, bias},
           Built(type, x.dims, [&](const Dims& at) { return At(x, at) + At(bias, {at[1]}); }));
    ExpectRefused(first, {x, Sample(type, {4})});
    const Array rows = Sample(type, {2, 3, 5});
    Expect(first, {rows, bias}, Built(type, rows.dims, [&](const Dims& at) {
             return At(rows, at) + At(bias, {at[1]});
           }));
  }
  ExpectRefused(Node("BiasAdd"), {Sample(kFloat, {4, 3}), Sample(kFloat, {4})});
  ExpectRefused(Node("BiasAdd"), {Sample(kFloat, {3}), Sample(kFloat, {3})});
  ExpectRefused(Node("BiasAdd"), {Sample(kFloat, {4, 3}), Sample(kFloat, {1, 3})});
}

TEST(AddN, AddsFromTheFirst) {
  for (const ElementType type : kNumbers) {
    const Array x = Sample(type, {2, 3}), y = Sample(type, {2, 3}), z = Sample(type, {2, 3});
    Expect(Node("AddN"), {x, y, z}, Built(type, x.dims, [&](const Dims& at) {
             return RoundTo(type, At(x, at) + At(y, at)) + At(z, at);
           }));
    Expect(Node("AddN"), {x}, x);
  }
  ExpectRefused(Node("AddN"), {Sample(kFloat, {2}), Sample(kFloat, {1})});
}

TEST(Cast, ToEachType) {
  for (const ElementType from : kTypes) {
    for (const ElementType to : kTypes) {
      const Array x = Special(from, {3, 5});
      const NodeDef node = Node("Cast", "DstT", DataTypeOf(to));
      if (IsReal(from) && !IsReal(to) && to != kBool) {
        ExpectRefused(node, {x});
        continue;
      }
      Expect(node, {x}, Built(to, x.dims, [&](const Dims& at) {
               return to == kBool ? Number(At(x, at) != 0) : At(x, at);
             }));
    }
  }
  const Array x = Sample(kFloat, {3});
  ExpectRefused(Node("Cast", "DstT", tensorflow::DT_HALF, "Truncate", true), {x});
  ExpectRefused(Node("Cast", "DstT", tensorflow::DT_COMPLEX64), {x});
}

TEST(Select, ChoosesElementsOrRows) {
  for (const ElementType type : kTypes) {
    for (const Dims& condition : {Dims{}, Dims{4}, Dims{4, 3}}) {
      const Array c = Sample(kBool, condition);
      const Array x = Special(type, {4, 3}), y = Special(type, {4, 3});
      Expect(Node("Select"), {c, x, y}, Built(type, {4, 3}, [&](const Dims& at) {
               const Dims of(at.begin(), at.begin() + condition.size());
               return At(c, of) != 0 ? At(x, at) : At(y, at);
             }));
    }
  }
  const Array x = Sample(kFloat, {4, 3});
  ExpectRefused(Node("Select"), {Sample(kBool, {3}), x, x});
  ExpectRefused(Node("Select"), {Sample(kBool, {}), x, Sample(kFloat, {3})});
}

TEST(StridedSliceGrad, PutsAGradientAmongZeros) {
  const NodeDef node = Node("StridedSliceGrad");
  for (const ElementType type : kNumbers) {
    const Array dy = Special(type, {2, 2});
    Expect(node, {Ints({5, 4}), Ints({4, 1}), Ints({0, 3}), Ints({-2, 1}), dy},
           Built(type, {5, 4}, [&](const Dims& at) -> Number {
             if (at[0] % 2 != 0 || at[0] == 0 || at[1] < 1 || at[1] > 2) return 0;
             return At(dy, Dims{(4 - at[0]) / 2, at[1] - 1});
           }));
    const Array all = Special(type, {5, 4});
    Expect(node, {Ints({5, 4}), Ints({0, 0}), Ints({5, 4}), Ints({1, 1}), all}, all);
  }
  const Array dy = Sample(kFloat, {2, 2});
  ExpectRefused(node, {Ints({5, 4}), Ints({0, 0}), Ints({3, 2}), Ints({1, 1}), dy});
  ExpectRefused(node, {ListOf(kInt32, {5, 4}), Ints({0, 0}), Ints({2, 2}), Ints({1, 1}), dy});
  ExpectRefused(node, {Ints({1 << 21, 4}), Ints({0, 0}), Ints({2, 2}), Ints({1, 1}), dy});
  ExpectRefused(node, {Ints({-1}), Ints({0}), Ints({0}), Ints({1}), Ints({})});
}

TEST(ConcatV2, PutsArraysBehindEachOther) {
  for (const ElementType type : kTypes) {
    for (const int64_t first : {0, 1, 2}) {
      const Array x = Special(type, {2, first, 3}), y = Special(type, {2, 4, 3});
      const Array expected = Built(type, {2, first + 4, 3}, [&](const Dims& at) {
        return at[1] < first ? At(x, at) : At(y, {at[0], at[1] - first, at[2]});
      });
      for (const int64_t axis : {1, -2}) Expect(Node("ConcatV2"), {x, y, Int(axis)}, expected);
    }
  }
  const Array x = Sample(kFloat, {2, 3});
  ExpectRefused(Node("ConcatV2"), {x, x, ScalarOf(kInt32, 0)});
  ExpectRefused(Node("ConcatV2"), {x, x, Int(2)});
  ExpectRefused(Node("ConcatV2"), {x, x, Int(-3)});
  ExpectRefused(Node("ConcatV2"), {x, Sample(kFloat, {2, 2}), Int(0)});
  ExpectRefused(Node("ConcatV2"), {x, Sample(kFloat, {2}), Int(0)});
}

TEST(Pack, PutsArraysAlongANewAxis) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {2, 3}), y = Special(type, {2, 3});
    for (const int64_t axis : {2, -1}) {
      Expect(Node("Pack", "axis", axis), {x, y}, Built(type, {2, 3, 2}, [&](const Dims& at) {
               return At(at[2] == 0 ? x : y, {at[0], at[1]});
             }));
    }
    const Array one = ScalarOf(type, 1), zero = ScalarOf(type, 0);
    Expect(Node("Pack"), {zero, one, one}, ListOf(type, {0, 1, 1}));
  }
  ExpectRefused(Node("Pack", "axis", 3), {Sample(kFloat, {2, 3})});
  ExpectRefused(Node("Pack"), {Sample(kFloat, {2}), Sample(kFloat, {3})});
}

TEST(GatherV2, TakesRowsByValues) {
  for (const ElementType type : kTypes) {
    for (const ElementType index : {kInt32, kInt64}) {
      const Array x = Special(type, {3, 4, 2});
      const Array places = Built(index, {2, 2}, [](const Dims& at) { return 2 * at[0] + at[1]; });
      for (const int64_t axis : {1, -2}) {
        Expect(Node("GatherV2"), {x, places, Int(axis)},
               Built(type, {3, 2, 2, 2},
                     [&](const Dims& at) { return At(x, {at[0], 2 * at[1] + at[2], at[3]}); }));
      }
      const Array batched =
          Built(index, {3, 5}, [](const Dims& at) { return (at[0] + at[1]) % 4; });
      Expect(Node("GatherV2", "batch_dims", 1), {x, batched, Int(1)},
             Built(type, {3, 5, 2},
                   [&](const Dims& at) { return At(x, {at[0], (at[0] + at[1]) % 4, at[2]}); }));
      for (const int64_t wrong : {-1, 4}) {
        ExpectFails(Node("GatherV2"), {x, ListOf(index, {0, Number(wrong)}), Int(1)}, true);
      }
      ExpectFails(Node("GatherV2"), {x, ListOf(index, {0, 3}), Int(1)}, false);
      Expect(Node("GatherV2"), {x, ScalarOf(index, 2), Int(0)},
             Built(type, {4, 2}, [&](const Dims& at) { return At(x, {2, at[0], at[1]}); }));
      Expect(Node("GatherV2"), {x, Sample(index, {0}), Int(0)}, Sample(type, {0, 4, 2}));
    }
  }
  const Array x = Sample(kFloat, {3, 4, 2}), places = ListOf(kInt32, {0});
  ExpectRefused(Node("GatherV2"), {x, places, ScalarOf(kInt32, 0)});
  ExpectRefused(Node("GatherV2"), {Sample(kFloat, {0, 2}), places, Int(0)});
  const Array batched = Built(kInt32, {3, 4}, [](const Dims&) { return 0; });
  ExpectRefused(Node("GatherV2", "batch_dims", 1), {x, batched, Int(2)});
  ExpectRefused(Node("GatherV2", "batch_dims", 1), {Sample(kFloat, {2, 4}), batched, Int(1)});
  ExpectRefused(Node("GatherV2", "batch_dims", 2), {x, places, Int(2)});
}

// A program of two operations that may fail fails if either does.
TEST(GatherV2, FailsBesideAnotherOperation) {
  for (const int64_t index : {1, 5}) {
    for (const int64_t divisor : {0, 1}) {
      LoweringContext context;
      ProgramBuilder& builder = context.builder();
      const Lowered x = {builder.AddInput(kInt32, {3}), {}},
                    y = {builder.AddInput(kInt32, {3}), {}};
      const Lowered place = {builder.AddInput(kInt32, {}), {}};
      const Lowered axis = {std::nullopt, TensorOf(ScalarOf(kInt32, 0))};
      ASSERT_TRUE(Lower(context, Node("FloorDiv"), {x, y}).ok());
      ASSERT_TRUE(Lower(context, Node("GatherV2"), {x, place, axis}).ok());
      builder.AddOutput(*context.failure());
      const Program program(builder.steps());
      ProgramRun run(program);
      const int32_t xs[] = {1, 2, 3}, ys[] = {2, static_cast<int32_t>(divisor), 2};
      const int32_t at = static_cast<int32_t>(index);
      bool fails = false;
      run.SetInput(0, xs);
      run.SetInput(1, ys);
      run.SetInput(2, &at);
      run.SetOutput(0, &fails);
      run.RunPrologue();
      run.Run();
      EXPECT_EQ(fails, index == 5 || divisor == 0);
    }
  }
}

TEST(GatherV2, TakesRowsOfKnownPlaces) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {2, 6, 2});
    for (const std::vector<Number>& places :
         std::vector<std::vector<Number>>{{3}, {1, 2, 3}, {4, 5, 0, 0, 2}, {5, 4}}) {
      Expect(Node("GatherV2"), {x, Ints(places), Int(1)},
             Built(type, {2, static_cast<int64_t>(places.size()), 2}, [&](const Dims& at) {
               return At(x, {at[0], static_cast<int64_t>(places[at[1]]), at[2]});
             }));
    }
    Expect(Node("GatherV2"), {x, Int(4), Int(-2)},
           Built(type, {2, 2}, [&](const Dims& at) { return At(x, {at[0], 4, at[1]}); }));
  }
  const Array x = Sample(kFloat, {2, 6, 2});
  ExpectRefused(Node("GatherV2"), {x, Ints({0, 6}), Int(1)});
  ExpectRefused(Node("GatherV2"), {x, Ints({5, 6}), Int(1)});
  ExpectRefused(Node("GatherV2"), {x, Int(-1), Int(1)});
  ExpectRefused(Node("GatherV2"), {x, Ints({}), Int(1)});
  ExpectRefused(Node("GatherV2"), {x, Int(0), Int(3)});
  ExpectRefused(Node("GatherV2", "batch_dims", 1), {x, Known(Sample(kInt32, {2, 1})), Int(1)});
}

TEST(OneHot, SetsOneOfEachDepth) {
  for (const ElementType type : kTypes) {
    for (const ElementType index : {kInt32, kInt64}) {
      const Array places = ListOf(index, {2, -1, 0, 3});
      const Array on = ScalarOf(type, 1), off = ScalarOf(type, 0);
      for (const int64_t axis : {-1, 0, 1}) {
        const Dims dims = axis == 0 ? Dims{3, 4} : Dims{4, 3};
        Expect(Node("OneHot", "axis", axis), {places, Int(3), on, off},
               Built(type, dims, [&](const Dims& at) -> Number {
                 const int64_t place = axis == 0 ? at[1] : at[0];
                 return At(places, Dims{place}) == (axis == 0 ? at[0] : at[1]);
               }));
      }
    }
  }
  const Array places = ListOf(kInt32, {2}), on = ScalarOf(kFloat, 1), off = ScalarOf(kFloat, 0);
  ExpectRefused(Node("OneHot"), {places, ScalarOf(kInt32, 3), on, off});
  ExpectRefused(Node("OneHot"), {places, Int(0), on, off});
  ExpectRefused(Node("OneHot"), {places, Int(3), ListOf(kFloat, {1}), off});
  ExpectRefused(Node("OneHot"), {places, Int(3), on, ListOf(kFloat, {0})});
  ExpectRefused(Node("OneHot"), {places, Int(kTooMany), on, off});
  ExpectRefused(Node("OneHot", "axis", 2), {places, Int(3), on, off});
}

TEST(Roll, MovesElementsAlongAxes) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {3, 5});
    Expect(Node("Roll"), {x, Ints({1, -7}), Ints({0, -1})},
           Built(type, x.dims,
                 [&](const Dims& at) { return At(x, {(at[0] + 2) % 3, (at[1] + 7) % 5}); }));
    Expect(Node("Roll"), {x, Int(4), Int(1)},
           Built(type, x.dims, [&](const Dims& at) { return At(x, {at[0], (at[1] + 1) % 5}); }));
    Expect(Node("Roll"), {x, Int(-6), Int(0)}, x);
    Expect(Node("Roll"), {Sample(type, {0, 2}), Int(1), Int(0)}, Sample(type, {0, 2}));
  }
  const Array x = Sample(kFloat, {3, 5});
  ExpectRefused(Node("Roll"), {x, ScalarOf(kInt32, 1), Int(0)});
  ExpectRefused(Node("Roll"), {x, Ints({1, 2}), Int(0)});
  ExpectRefused(Node("Roll"), {x, Int(1), Int(2)});
}

TEST(Pad, PutsAnArrayAmongOthers) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {2, 3});
    const Array sizes = Built(kInt32, {2, 2}, [](const Dims& at) { return 2 * at[0] + at[1]; });
    for (const bool has_value : {false, true}) {
      const Array expected = Built(type, {3, 8}, [&](const Dims& at) -> Number {
        if (at[0] >= 2 || at[1] < 2 || at[1] >= 5) return has_value;
        return At(x, {at[0], at[1] - 2});
      });
      std::vector<Input> inputs = {x, Known(sizes)};
      if (has_value) inputs.push_back(ScalarOf(type, 1));
      Expect(Node(has_value ? "PadV2" : "Pad"), inputs, expected);
    }
    const Array one = ScalarOf(type, 1);
    Expect(Node("Pad"), {one, Known(Sample(kInt32, {0, 2}))}, one);
  }
  const Array x = Sample(kFloat, {2, 3});
  ExpectRefused(Node("Pad"), {x, Sample(kInt32, {2, 2})});
  ExpectRefused(Node("Pad"), {x, Ints({1, 1})});
  ExpectRefused(Node("Pad"), {x, Ints({0, 0, -1, 0})});
  ExpectRefused(Node("Pad"), {x, Ints({0, 0, 0, kTooMany})});
  ExpectRefused(Node("PadV2"), {x, Ints({0, 0, 0, 1}), Sample(kFloat, {1})});
}

TEST(MatMul, AddsProducts) {
  for (const ElementType type : kReals) {
    for (const bool is_left : {false, true}) {
      for (const bool is_right : {false, true}) {
        const Array x = Sample(type, is_left ? Dims{4, 3} : Dims{3, 4});
        const Array y = Sample(type, is_right ? Dims{5, 4} : Dims{4, 5});
        Expect(Node("MatMul", "transpose_a", is_left, "transpose_b", is_right), {x, y},
               Built(type, {3, 5}, [&](const Dims& at) {
                 Number sum = 0;
                 for (int64_t k = 0; k < 4; ++k) {
                   sum += At(x, is_left ? Dims{k, at[0]} : Dims{at[0], k}) *
                          At(y, is_right ? Dims{at[1], k} : Dims{k, at[1]});
                 }
                 return sum;
               }));
      }
    }
    for (const char* const op : {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}) {
      for (const Dims& batch : {Dims{}, Dims{1, 2}, Dims{3, 1}, Dims{3, 2}}) {
        Dims right = batch;
        right.insert(right.end(), {5, 4});
        const Array x = Sample(type, {3, 2, 4, 2}), y = Sample(type, right);
        Expect(Node(op, "adj_x", true, "adj_y", true), {x, y},
               Built(type, {3, 2, 2, 5}, [&](const Dims& at) {
                 Number sum = 0;
                 for (int64_t k = 0; k < 4; ++k) {
                   sum += At(x, {at[0], at[1], k, at[2]}) * At(y, {at[0], at[1], at[3], k});
                 }
                 return sum;
               }));
      }
    }
  }
  ExpectRefused(Node("MatMul"), {Sample(kFloat, {4}), Sample(kFloat, {4, 1})});
  ExpectRefused(Node("MatMul"), {Sample(kFloat, {2, 4}), Sample(kFloat, {3, 2})});
  ExpectRefused(Node("MatMul"), {Sample(kFloat, {128, 128}), Sample(kFloat, {128, 128})});
  ExpectRefused(Node("MatMul"), {Sample(kFloat, {1, 512}), Sample(kFloat, {512, 1024})});
  ExpectRefused(Node("MatMul"), {Sample(kFloat, {2, 0}), Sample(kFloat, {0, 2})});
  ExpectRefused(Node("MatMul"), {Sample(kBool, {2, 2}), Sample(kBool, {2, 2})});
  ExpectRefused(Node("BatchMatMulV2"), {Sample(kFloat, {2, 2, 2}), Sample(kFloat, {3, 2, 2})});
}

TEST(MatMul, TransposesEitherFactor) {
  const Array x = Sample(kFloat, {3, 2, 4}), y = Sample(kFloat, {3, 4, 5});
  const auto transposed = [](const Array& array) {
    return Built(kFloat, {array.dims[0], array.dims[2], array.dims[1]},
                 [&](const Dims& at) { return At(array, {at[0], at[2], at[1]}); });
  };
  const Array expected = Built(kFloat, {3, 2, 5}, [&](const Dims& at) {
    Number sum = 0;
    for (int64_t k = 0; k < 4; ++k) sum += At(x, {at[0], at[1], k}) * At(y, {at[0], k, at[2]});
    return sum;
  });
  for (const char* const op : {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}) {
    Expect(Node(op, "adj_x", true), {transposed(x), y}, expected);
    Expect(Node(op, "adj_y", true), {x, transposed(y)}, expected);
  }
}

// An einsum as loops over all labels.
Array EinsumPlainly(const std::vector<std::string>& labels, const std::string& result,
                    const std::vector<Array>& arrays) {
  std::string all;
  Dims sizes;
  for (size_t i = 0; i < arrays.size(); ++i) {
    for (size_t d = 0; d < labels[i].size(); ++d) {
      if (all.find(labels[i][d]) != std::string::npos) continue;
      all += labels[i][d];
      sizes.push_back(arrays[i].dims[d]);
    }
  }
  const auto indices = [&](const std::string& of, const Dims& at) {
    Dims index;
    for (const char label : of) index.push_back(at[all.find(label)]);
    return index;
  };
  std::map<Dims, Number> sums;
  Built(kFloat, sizes, [&](const Dims& at) {
    Number product = 1;
    for (size_t i = 0; i < arrays.size(); ++i) product *= At(arrays[i], indices(labels[i], at));
    sums[indices(result, at)] += product;
    return product;
  });
  return Built(arrays[0].type, indices(result, sizes), [&](const Dims& at) { return sums[at]; });
}

TEST(Einsum, IsLoopsOverLabels) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> equations = {
      {{"ij"}, "ji"},           {{"ijk"}, "ki"},      {{"ij"}, ""},         {{"ij", "jk"}, "ik"},
      {{"bij", "bjk"}, "kbi"},  {{"ij", "ij"}, "ij"}, {{"i", "j"}, "ji"},   {{"abc", "cd"}, "dab"},
      {{"acbd", "cbe"}, "dea"}, {{"ij", "k"}, "ki"},  {{"ijk", "kj"}, "i"}, {{"i", "i"}, ""}};
  const std::string all = "abcdeijk";
  for (const ElementType type : {ElementType::kFloat, ElementType::kDouble}) {
    for (const auto& [labels, result] : equations) {
      std::vector<Array> arrays;
      std::vector<Input> inputs;
      std::string equation;
      for (const std::string& of : labels) {
        Dims dims;
        for (const char label : of) dims.push_back(2 + all.find(label) % 3);
        // A sum of 0 before a factor below 0 would be -0.
        const Array some = NonZero(type, dims);
        arrays.push_back(
            Built(type, dims, [&](const Dims& at) { return std::fabs(At(some, at)); }));
        inputs.push_back(arrays.back());
        equation += (equation.empty() ? "" : ",") + of;
      }
      Expect(Node("Einsum", "equation", equation + "->" + result), inputs,
             EinsumPlainly(labels, result, arrays));
    }
  }
  const Array x = Sample(kFloat, {2, 2});
  for (const char* const equation :
       {"ii->i", "ij,jk", "ij->ik", "ij->ii", "i->i", "...j->j", "ij,jk,kl->il"}) {
    ExpectRefused(Node("Einsum", "equation", equation), {x});
  }
  ExpectRefused(Node("Einsum", "equation", "ij,jk->ik"), {x, Sample(kFloat, {3, 2})});
  ExpectRefused(Node("Einsum", "equation", "ij->j"), {Sample(kFloat, {0, 2})});
  ExpectRefused(Node("Einsum", "equation", "ij,jk->ik"),
                {Sample(kFloat, {128, 128}), Sample(kFloat, {128, 128})});
}

// A reduction as a fold over the indices that agree where nothing is reduced.
Array ReducedPlainly(const Array& x, ElementType to, const std::set<int>& axes, bool keeps,
                     Number first, const std::function<Number(Number, Number)>& next,
                     const std::function<Number(Number)>& last) {
  Dims kept = x.dims, dims;
  for (const int axis : axes) kept[axis] = 1;
  for (size_t d = 0; d < kept.size(); ++d) {
    if (keeps || axes.count(static_cast<int>(d)) == 0) dims.push_back(kept[d]);
  }
  std::map<Dims, Number> totals;
  Built(x.type, x.dims, [&](Dims at) {
    const Number element = At(x, at);
    for (const int axis : axes) at[axis] = 0;
    const auto [found, is_new] = totals.emplace(at, first);
    found->second = next(found->second, element);
    return element;
  });
  std::vector<Number> values;
  for (const auto& [at, total] : totals) values.push_back(last(total));
  int64_t i = 0;
  return Built(to, dims, [&](const Dims&) { return values[i++]; });
}

TEST(Reduction, FoldsAxes) {
  struct Fold {
    const char* op;
    Number first;
    Number (*next)(Number, Number);
  };
  const Number infinity = kInfinity;
  const Fold folds[] = {{"Sum", 0, [](Number a, Number x) { return a + x; }},
                        {"Mean", 0, [](Number a, Number x) { return a + x; }},
                        {"Prod", 1, [](Number a, Number x) { return a * x; }},
                        {"Max", -infinity, [](Number a, Number x) { return std::max(a, x); }},
                        {"Min", infinity, [](Number a, Number x) { return std::min(a, x); }},
                        {"All", 1, [](Number a, Number x) -> Number { return a != 0 && x != 0; }},
                        {"Any", 0, [](Number a, Number x) -> Number { return a != 0 || x != 0; }}};
  const std::vector<std::vector<Number>> all_axes = {{},     {0},      {-1},     {1},
                                                     {0, 2}, {-2, -1}, {2, 1, 0}};
  for (const Fold& fold : folds) {
    const std::string op = fold.op;
    for (const ElementType type : kTypes) {
      if ((op == "All" || op == "Any") != (type == kBool)) continue;
      if (op == "Mean" && !IsReal(type)) continue;
      for (const std::vector<Number>& axes : all_axes) {
        for (const bool keeps : {false, true}) {
          const Array x = Sample(type, {3, 2, 2});
          std::set<int> reduced;
          Number count = 1;
          for (const Number axis : axes) {
            reduced.insert(static_cast<int>(axis < 0 ? axis + 3 : axis));
            count *= x.dims[*reduced.find(static_cast<int>(axis < 0 ? axis + 3 : axis))];
          }
          const Array expected =
              ReducedPlainly(x, type, reduced, keeps, fold.first, fold.next,
                             [&](Number total) { return op == "Mean" ? total / count : total; });
          Expect(Node(op, "keep_dims", keeps), {x, Ints(axes)}, expected);
        }
      }
    }
  }
  const Array x = Sample(kFloat, {2, 3});
  Expect(Node("Sum"), {Sample(kFloat, {0, 3}), Ints({1})}, Sample(kFloat, {0}));
  ExpectRefused(Node("Sum"), {Sample(kFloat, {0, 3}), Ints({0})});
  ExpectRefused(Node("Sum"), {x, ListOf(kInt32, {0})});
  ExpectRefused(Node("Sum"), {x, Ints({2})});
  ExpectRefused(Node("Sum"), {x, Ints({-3})});
  ExpectRefused(Node("Sum"), {x, Ints({0, -2})});
  ExpectRefused(Node("Mean"), {Sample(kInt32, {2}), Ints({0})});
  ExpectRefused(Node("Sum"), {Sample(kBool, {2}), Ints({0})});
}

TEST(Reduction, NumbersThatAreSpecial) {
  for (const ElementType type : kReals) {
    const Array x = ListOf(type, {1, kNan, kInfinity}), y = ListOf(type, {1, 2, -kInfinity});
    for (const char* const op : {"Sum", "Mean", "Prod", "Max", "Min"}) {
      Expect(Node(op), {x, Ints({0})}, ScalarOf(type, kNan));
    }
    Expect(Node("Sum"), {y, Ints({0})}, ScalarOf(type, -kInfinity));
    Expect(Node("Max"), {y, Ints({0})}, ScalarOf(type, 2));
    Expect(Node("Min"), {y, Ints({0})}, ScalarOf(type, -kInfinity));
  }
}

// Sums of more terms than a number of half precision counts up to.
TEST(Reduction, HalvesAreSummedInFloat) {
  const ElementType type = ElementType::kBFloat16;
  const Array ones = Built(type, {64, 16}, [](const Dims&) { return 1; });
  const Array three = Built(type, {32, 2, 16}, [](const Dims&) { return 1; });
  Expect(Node("Sum"), {ones, Ints({0, 1})}, ScalarOf(type, 1024));
  Expect(Node("Mean"), {ones, Ints({0, 1})}, ScalarOf(type, 1));
  Expect(Node("Sum"), {three, Ints({0, 2})}, ListOf(type, {512, 512}));
  Expect(Node("L2Loss"), {ones}, ScalarOf(type, 512));
  // Two axes that are reduced apart: 1 + 2^-8 alone would lose its last bit.
  const Array x = ListOf(type, {1, 0x1p-8L, 0x1p-8L, 0});
  const Array apart =
      Built(type, {2, 1, 2}, [&](const Dims& at) { return At(x, 2 * at[0] + at[2]); });
  Expect(Node("Sum"), {apart, Ints({0, 2})}, ListOf(type, {1 + 0x1p-7L}));
}

// The sum of 259 needs more bits than bfloat16 has. The mean is exact.
TEST(Reduction, HalvesOfAMeanAreRoundedOnce) {
  const ElementType type = ElementType::kBFloat16;
  Expect(Node("Mean"), {ListOf(type, {253, 1, 1, 1, 1, 1, 1}), Ints({0})}, ScalarOf(type, 37));
}

TEST(Accumulated, SumsAndProductsUpToEach) {
  for (const ElementType type : kNumbers) {
    for (const bool is_sum : {false, true}) {
      for (const bool is_reverse : {false, true}) {
        for (const bool is_exclusive : {false, true}) {
          const Array x = Built(type, {2, 4, 3}, [](const Dims& at) {
            const int64_t element = at[0] + at[1] % 2 - at[2];
            return element == 0 ? 3 : element;
          });
          const NodeDef node =
              Node(is_sum ? "Cumsum" : "Cumprod", "reverse", is_reverse, "exclusive", is_exclusive);
          for (const int64_t axis : {1, -2}) {
            Expect(node, {x, Int(axis)}, Built(type, x.dims, [&](const Dims& at) {
                     Number total = is_sum ? 0 : 1;
                     for (int64_t k = 0; k < 4; ++k) {
                       const bool is_before = is_reverse ? k > at[1] : k < at[1];
                       if (!is_before && (is_exclusive || k != at[1])) continue;
                       const Number element = At(x, {at[0], k, at[2]});
                       total = is_sum ? total + element : total * element;
                     }
                     return total + 0;
                   }));
          }
        }
      }
    }
  }
  ExpectRefused(Node("Cumsum"), {Sample(kFloat, {65}), Int(0)});
  ExpectRefused(Node("Cumsum"), {Sample(kFloat, {0}), Int(0)});
  ExpectRefused(Node("Cumsum"), {Sample(kFloat, {3}), ScalarOf(kInt32, 0)});
  ExpectRefused(Node("Cumsum"), {Sample(kFloat, {3}), Int(1)});
  ExpectRefused(Node("Cumsum"), {Sample(kBool, {3}), Int(0)});
}

TEST(IndexOfExtreme, IsTheFirst) {
  for (const ElementType type : kNumbers) {
    for (const ElementType to : {kInt32, kInt64}) {
      for (const bool is_max : {false, true}) {
        const Array x = Sample(type, {3, 40, 2});
        for (const int64_t axis : {1, -2}) {
          Expect(Node(is_max ? "ArgMax" : "ArgMin", "output_type", DataTypeOf(to)), {x, Int(axis)},
                 Built(to, {3, 2}, [&](const Dims& at) -> Number {
                   int64_t best = 0;
                   for (int64_t k = 1; k < 40; ++k) {
                     const Number a = At(x, {at[0], k, at[1]}), b = At(x, {at[0], best, at[1]});
                     if (is_max ? a > b : a < b) best = k;
                   }
                   return best;
                 }));
        }
      }
    }
  }
  Expect(Node("ArgMax"), {ListOf(kFloat, {1, 3, 3}), Int(0)}, ScalarOf(kInt64, 1));
  ExpectRefused(Node("ArgMax"), {Sample(kFloat, {0}), Int(0)});
  ExpectRefused(Node("ArgMax"), {Sample(kFloat, {2}), Int(1)});
  ExpectRefused(Node("ArgMax"), {Sample(kFloat, {2}), ScalarOf(kInt32, 0)});
  ExpectRefused(Node("ArgMax", "output_type", tensorflow::DT_UINT16),
                {Sample(kFloat, {2}), Int(0)});
}

Number LogSumExp(const Array& x, Dims at) {
  Number sum = 0;
  for (at.back() = 0; at.back() < x.dims.back(); ++at.back()) sum += std::exp(At(x, at));
  return std::log(sum);
}

TEST(Softmax, OfTheLastDimension) {
  for (const ElementType type : kReals) {
    for (const Dims& dims : {Dims{5}, Dims{3, 4}, Dims{2, 2, 7}}) {
      const Array x = Sample(type, dims);
      Expect(
          Node("Softmax"), {x},
          Built(type, dims, [&](const Dims& at) { return std::exp(At(x, at) - LogSumExp(x, at)); }),
          1);
      Expect(Node("LogSoftmax"), {x},
             Built(type, dims, [&](const Dims& at) { return At(x, at) - LogSumExp(x, at); }), 4);
    }
    const Array large = ListOf(type, {1000, 1000});
    Expect(Node("Softmax"), {large}, ListOf(type, {0.5L, 0.5L}));
    Expect(Node("Softmax"), {ListOf(type, {kNan, 1})}, ListOf(type, {kNan, kNan}));
  }
  ExpectRefused(Node("Softmax"), {Sample(kFloat, {})});
  ExpectRefused(Node("Softmax"), {Sample(kFloat, {3, 0})});
  ExpectRefused(Node("Softmax"), {Sample(kInt32, {3})});
}

// Equal logits give exact halves; each is rounded to half precision once.
TEST(Softmax, HalvesAreRoundedOnce) {
  const ElementType type = ElementType::kBFloat16;
  const Array x = Sample(type, {7});
  std::vector<Number> exact;
  for (int64_t i = 0; i < 7; ++i) exact.push_back(std::exp(At(x, i) - LogSumExp(x, {i})));
  const Result result = ResultOf(Node("Softmax"), {x});
  for (int64_t i = 0; i < 7; ++i) {
    const Number room = UlpOf(type, static_cast<double>(exact[i])) * 0.51L;
    EXPECT_LE(std::fabs(At(result.outputs[0], i) - exact[i]), room);
  }
}

TEST(SoftmaxCrossEntropy, HasLossesAndGradients) {
  for (const ElementType type : kReals) {
    for (const Dims& rows : {Dims{3, 4}, Dims{1, 4}}) {
      const Array logits = Sample(type, rows);
      const Array some = Sample(type, {3, 4});
      const Array labels =
          Built(type, {3, 4}, [&](const Dims& at) { return std::fabs(At(some, at)) / 4; });
      const Array losses = Built(type, {3}, [&](const Dims& at) {
        Number loss = 0;
        for (int64_t k = 0; k < 4; ++k) {
          const Dims in = {rows[0] == 1 ? 0 : at[0], k};
          loss += At(labels, {at[0], k}) * (LogSumExp(logits, in) - At(logits, in));
        }
        return loss;
      });
      const Array gradients = Built(type, {3, 4}, [&](const Dims& at) {
        const Dims in = {rows[0] == 1 ? 0 : at[0], at[1]};
        return std::exp(At(logits, in) - LogSumExp(logits, in)) - At(labels, at);
      });
      ExpectAll(Node("SoftmaxCrossEntropyWithLogits"), {logits, labels}, {losses, gradients}, 8);
    }
  }
  const Array x = Sample(kFloat, {4});
  ExpectRefused(Node("SoftmaxCrossEntropyWithLogits"), {x, x});
  const Array none = Sample(kFloat, {0, 4});
  ExpectRefused(Node("SoftmaxCrossEntropyWithLogits"), {none, none});
}

TEST(BiasAddGrad, SumsOverAllButChannels) {
  for (const ElementType type : kNumbers) {
    const Array dy = Sample(type, {2, 3, 2, 3});
    Expect(Node("BiasAddGrad"), {dy},
           ReducedPlainly(dy, type, {0, 1, 2}, false, 0, std::plus<Number>(),
                          [](Number x) { return x; }));
    Expect(Node("BiasAddGrad", "data_format", "NCHW"), {dy},
           ReducedPlainly(dy, type, {0, 2, 3}, false, 0, std::plus<Number>(),
                          [](Number x) { return x; }));
  }
  ExpectRefused(Node("BiasAddGrad"), {Sample(kFloat, {3})});
  ExpectRefused(Node("BiasAddGrad"), {Sample(kFloat, {0, 3})});
}

TEST(L2Loss, IsHalfTheSumOfSquares) {
  for (const ElementType type : kReals) {
    for (const Dims& dims : {Dims{}, Dims{3, 2}}) {
      const Array x = Sample(type, dims);
      Number sum = 0;
      for (int64_t i = 0; i < CountOf(dims); ++i) sum += At(x, i) * At(x, i) / 2;
      Expect(Node("L2Loss"), {x}, ScalarOf(type, sum));
    }
  }
  // A square needs more bits than bfloat16 has. The sum of squares is rounded, not each square.
  const ElementType type = ElementType::kBFloat16;
  Expect(Node("L2Loss"), {ListOf(type, {1, 139.0L / 128})}, ScalarOf(type, 139.0L / 128));
  ExpectRefused(Node("L2Loss"), {Sample(kFloat, {0})});
}

TEST(Shape, IsKnown) {
  const Array x = Sample(kFloat, {2, 0, 3}), y = Sample(kFloat, {4, 5});
  const NodeDef wide = Node("Shape", "out_type", tensorflow::DT_INT64);
  ExpectKnown(Node("Shape"), {x}, {ListOf(kInt32, {2, 0, 3})});
  ExpectKnown(wide, {y}, {ListOf(kInt64, {4, 5})});
  ExpectKnown(Node("ShapeN"), {x, y}, {ListOf(kInt32, {2, 0, 3}), ListOf(kInt32, {4, 5})});
  ExpectKnown(Node("Size"), {x}, {ScalarOf(kInt32, 0)});
  ExpectKnown(Node("Size"), {y}, {ScalarOf(kInt32, 20)});
  ExpectKnown(Node("Size", "out_type", tensorflow::DT_INT64), {y}, {ScalarOf(kInt64, 20)});
  ExpectKnown(Node("Rank"), {x}, {ScalarOf(kInt32, 3)});
  ExpectKnown(Node("Rank"), {Sample(kFloat, {})}, {ScalarOf(kInt32, 0)});
  const Array large = Sample(kFloat, {int64_t{1} << 31, 0});  // int32 has no such number
  ExpectRefused(Node("Shape"), {large});
  ExpectRefused(Node("ShapeN"), {x, large});
  ExpectKnown(wide, {large}, {ListOf(kInt64, {Number{1LL << 31}, 0})});
}

TEST(Range, IsKnown) {
  ExpectKnown(Node("Range"), {Int(2), Int(9), Int(3)}, {ListOf(kInt32, {2, 5, 8})});
  ExpectKnown(Node("Range"), {Int(2), Int(-4), Int(-3)}, {ListOf(kInt32, {2, -1})});
  ExpectKnown(Node("Range"), {Int(2), Int(2), Int(1)}, {ListOf(kInt32, {})});
  ExpectRefused(Node("Range"), {Int(2), Int(9), Int(0)});
  ExpectRefused(Node("Range"), {Int(0), Int(kTooMany), Int(1)});
  ExpectRefused(Node("Range"), {Int(0), ScalarOf(kInt32, 3), Int(1)});
  const NodeDef wide = Node("Range", "Tidx", tensorflow::DT_INT64);
  ExpectRefused(wide, {Int(0), Known(ScalarOf(kInt64, Number(int64_t{1} << 40))), Int(1)});
}

TEST(ConcatOffset, IsKnown) {
  ExpectKnown(Node("ConcatOffset"), {Int(1), Ints({2, 3}), Ints({2, 0}), Ints({2, 5})},
              {ListOf(kInt32, {0, 0}), ListOf(kInt32, {0, 3}), ListOf(kInt32, {0, 3})});
  ExpectKnown(Node("ConcatOffset"), {Int(-2), Ints({2, 3}), Ints({4, 3})},
              {ListOf(kInt32, {0, 0}), ListOf(kInt32, {2, 0})});
  ExpectKnown(Node("ConcatOffset", "shape_type", tensorflow::DT_INT64),
              {Int(0), Known(ListOf(kInt64, {2, 3}))}, {ListOf(kInt64, {0, 0})});
  ExpectRefused(Node("ConcatOffset"), {Int(2), Ints({2, 3})});
  ExpectRefused(Node("ConcatOffset"), {Int(0), ListOf(kInt32, {2, 3})});
  ExpectRefused(Node("ConcatOffset"), {Ints({0}), Ints({2, 3})});
  ExpectRefused(Node("ConcatOffset"), {Int(0), Ints({2, 3}), Ints({2, 4})});
  ExpectRefused(Node("ConcatOffset"), {Int(0), Ints({2, 3}), Ints({2})});
}

TEST(InvertPermutation, IsKnown) {
  ExpectKnown(Node("InvertPermutation"), {Ints({2, 0, 3, 1})}, {ListOf(kInt32, {1, 3, 0, 2})});
  ExpectKnown(Node("InvertPermutation", "T", tensorflow::DT_INT64), {Known(ListOf(kInt64, {1, 0}))},
              {ListOf(kInt64, {1, 0})});
  ExpectRefused(Node("InvertPermutation"), {Ints({0, 0})});
  ExpectRefused(Node("InvertPermutation"), {Ints({0, 2})});
  ExpectRefused(Node("InvertPermutation"), {Ints({-1, 0})});
  ExpectRefused(Node("InvertPermutation"), {ListOf(kInt32, {0})});
}

TEST(Fill, RepeatsOneElement) {
  for (const ElementType type : kTypes) {
    const Array one = ScalarOf(type, 1), x = Sample(type, {2, 3});
    for (const Dims& dims : {Dims{}, Dims{0, 2}, Dims{2, 3}}) {
      const Array expected = Built(type, dims, [](const Dims&) { return 1; });
      const Array shape = Built(kInt64, {static_cast<int64_t>(dims.size())},
                                [&](const Dims& at) { return dims[at[0]]; });
      Expect(Node("Fill"), {Known(shape), one}, expected);
    }
    Expect(Node("ZerosLike"), {x}, Built(type, x.dims, [](const Dims&) { return 0; }));
    Expect(Node("OnesLike"), {x}, Built(type, x.dims, [](const Dims&) { return 1; }));
  }
  ExpectRefused(Node("Fill"), {Ints({-1}), ScalarOf(kFloat, 1)});
  ExpectRefused(Node("Fill"), {Ints({2}), Sample(kFloat, {1})});
  ExpectRefused(Node("Fill"), {ListOf(kInt32, {2}), ScalarOf(kFloat, 1)});
  ExpectRefused(Node("Fill"), {Ints({kTooMany}), ScalarOf(kFloat, 1)});
  EXPECT_TRUE(ResultOf(Node("Fill"), {Ints({kTooMany - 1}), ScalarOf(kBool, 1)}).status.ok());
}

TEST(BroadcastArgs, IsKnown) {
  ExpectKnown(Node("BroadcastArgs"), {Ints({2, 1, 3}), Ints({4, 1})}, {ListOf(kInt32, {2, 4, 3})});
  ExpectRefused(Node("BroadcastArgs"), {Ints({2}), Ints({3})});
  ExpectRefused(Node("BroadcastArgs"), {Ints({2}), ListOf(kInt32, {2})});
}

TEST(BroadcastGradientArgs, IsKnown) {
  ExpectKnown(Node("BroadcastGradientArgs"), {Ints({2, 1, 3}), Ints({4, 1})},
              {ListOf(kInt32, {1}), ListOf(kInt32, {0, 2})});
  ExpectRefused(Node("BroadcastGradientArgs"), {Ints({2}), Ints({3})});
  ExpectRefused(Node("BroadcastGradientArgs"), {Ints({2}), ListOf(kInt32, {2})});
}

TEST(Views, IdentityN) {
  const Array x = Special(kFloat, {2}), y = Sample(kInt32, {});
  ExpectAll(Node("IdentityN"), {x, y}, {x, y});
}

TEST(Views, Reshape) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {2, 6});
    Array expected = x;
    expected.dims = {3, 4};
    Expect(Node("Reshape"), {x, Ints({3, 4})}, expected);
    Expect(Node("Reshape"), {x, Ints({3, -1})}, expected);
    Expect(Node("Reshape"), {Sample(type, {0, 2}), Ints({-1, 2})}, Sample(type, {0, 2}));
    expected.dims = {12};
    Expect(Node("Reshape"), {x, Ints({-1})}, expected);
  }
  const Array x = Sample(kFloat, {2, 6});
  ExpectRefused(Node("Reshape"), {x, Ints({5})});
  ExpectRefused(Node("Reshape"), {x, Ints({5, -1})});
  ExpectRefused(Node("Reshape"), {x, Ints({-1, -1})});
  ExpectRefused(Node("Reshape"), {Sample(kFloat, {0}), Ints({0, -1})});
  ExpectRefused(Node("Reshape"), {x, ListOf(kInt32, {12})});
  // TensorFlow multiplies the extents: their product does not fit int64.
  ExpectRefused(Node("Reshape"), {Sample(kFloat, {0}), Ints({1 << 30, 1 << 30, 1 << 30, 0})});
  ExpectRefused(Node("Reshape"), {Ints({}), Ints({1 << 30, 1 << 30, 1 << 30, 0})});
}

TEST(Views, ExpandDims) {
  const Array x = Special(kFloat, {2, 3});
  for (const auto& [axis, dims] : std::vector<std::pair<int, Dims>>{
           {0, {1, 2, 3}}, {-3, {1, 2, 3}}, {2, {2, 3, 1}}, {-1, {2, 3, 1}}}) {
    Array expected = x;
    expected.dims = dims;
    Expect(Node("ExpandDims"), {x, Int(axis)}, expected);
  }
  ExpectRefused(Node("ExpandDims"), {x, Int(3)});
  ExpectRefused(Node("ExpandDims"), {x, Int(-4)});
  ExpectRefused(Node("ExpandDims"), {x, ScalarOf(kInt32, 0)});
  ExpectRefused(Node("ExpandDims"), {x, Ints({0, 1})});
  const Array most = Sample(kFloat, {1, 1, 1, 1, 1, 1, 1, 1});
  ExpectRefused(Node("ExpandDims"), {most, Int(0)});
}

TEST(Views, Squeeze) {
  const auto node = [](const std::vector<int32_t>& axes) {
    return Node("Squeeze", "squeeze_dims", axes);
  };
  Array x = Special(kFloat, {1, 2, 1, 3});
  const auto with = [&](const Dims& dims) {
    Array array = x;
    array.dims = dims;
    return array;
  };
  Expect(node({}), {x}, with({2, 3}));
  Expect(node({0}), {x}, with({2, 1, 3}));
  Expect(node({-2}), {x}, with({1, 2, 3}));
  Expect(node({2, 0}), {x}, with({2, 3}));
  ExpectRefused(node({1}), {x});
  ExpectRefused(node({4}), {x});
  ExpectRefused(node({-5}), {x});
}

TEST(Views, Transpose) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {2, 3, 4});
    const Array expected =
        Built(type, {4, 2, 3}, [&](const Dims& at) { return At(x, {at[1], at[2], at[0]}); });
    Expect(Node("Transpose"), {x, Ints({2, 0, 1})}, expected);
    Expect(Node("Transpose"), {x, Ints({-1, 0, -2})}, expected);
  }
  const Array x = Sample(kFloat, {2, 3});
  ExpectRefused(Node("Transpose"), {x, Ints({0})});
  ExpectRefused(Node("Transpose"), {x, Ints({0, -2})});
  ExpectRefused(Node("Transpose"), {x, Ints({0, 2})});
  ExpectRefused(Node("Transpose"), {x, ListOf(kInt32, {1, 0})});
}

TEST(Views, StridedSlice) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {5, 4, 3});
    Expect(Node("StridedSlice"), {x, Ints({1, -1}), Ints({-1, 0}), Ints({2, -2})},
           Built(type, {2, 2, 3},
                 [&](const Dims& at) { return At(x, {1 + 2 * at[0], 3 - 2 * at[1], at[2]}); }));
    // x[:3, ..., None, 1]
    Expect(Node("StridedSlice", "begin_mask", 1, "ellipsis_mask", 2, "new_axis_mask", 4,
                "shrink_axis_mask", 8),
           {x, Ints({1, 0, 0, 1}), Ints({3, 0, 0, 2}), Ints({1, 1, 1, 1})},
           Built(type, {3, 4, 1}, [&](const Dims& at) { return At(x, {at[0], at[1], 1}); }));
    // x[2:, -2]
    Expect(Node("StridedSlice", "end_mask", 1, "shrink_axis_mask", 2),
           {x, Ints({2, -2}), Ints({3, 9}), Ints({1, 1})},
           Built(type, {3, 3}, [&](const Dims& at) { return At(x, {2 + at[0], 2, at[1]}); }));
    Expect(Node("StridedSlice"), {x, Ints({3}), Ints({2}), Ints({1})}, Sample(type, {0, 4, 3}));
  }
  const Array x = Sample(kFloat, {5});
  ExpectRefused(Node("StridedSlice"), {x, Ints({0}), Ints({2}), Ints({0})});
  ExpectRefused(Node("StridedSlice"), {x, ListOf(kInt32, {0}), Ints({2}), Ints({1})});
  ExpectRefused(Node("StridedSlice", "shrink_axis_mask", 1), {x, Ints({5}), Ints({6}), Ints({1})});
}

TEST(Views, Slice) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {5, 4});
    Expect(Node("Slice"), {x, Ints({1, 2}), Ints({3, -1})},
           Built(type, {3, 2}, [&](const Dims& at) { return At(x, {1 + at[0], 2 + at[1]}); }));
    Expect(Node("Slice"), {x, Ints({5, 0}), Ints({0, 4})}, Sample(type, {0, 4}));
  }
  const Array x = Sample(kFloat, {5, 4});
  ExpectRefused(Node("Slice"), {x, Ints({3, 0}), Ints({3, 4})});
  ExpectRefused(Node("Slice"), {x, Ints({-1, 0}), Ints({1, 4})});
  ExpectRefused(Node("Slice"), {x, Ints({6, 0}), Ints({-1, 4})});
  ExpectRefused(Node("Slice"), {x, Ints({0, 0}), Ints({-2, 4})});
  ExpectRefused(Node("Slice"), {x, Ints({0}), Ints({1})});
  ExpectRefused(Node("Slice"), {x, ListOf(kInt32, {0, 0}), Ints({1, 1})});
}

TEST(Views, BroadcastToAndTile) {
  for (const ElementType type : kTypes) {
    const Array x = Special(type, {2, 1, 3});
    const auto element = [&](const Dims& at) { return At(x, at); };
    Expect(Node("BroadcastTo"), {x, Ints({5, 2, 4, 3})}, Built(type, {5, 2, 4, 3}, element));
    Expect(Node("BroadcastTo"), {x, Ints({2, 0, 3})}, Sample(type, {2, 0, 3}));
    Expect(Node("Tile"), {x, Ints({1, 4, 1})}, Built(type, {2, 4, 3}, element));
    Expect(Node("Tile"), {x, Ints({1, 0, 1})}, Sample(type, {2, 0, 3}));
  }
  const Array x = Sample(kFloat, {2, 1, 3});
  ExpectRefused(Node("BroadcastTo"), {x, Ints({3, 1, 3})});
  ExpectRefused(Node("BroadcastTo"), {x, Ints({1, 3})});
  ExpectRefused(Node("BroadcastTo"), {x, Ints({2, -1, 3})});
  ExpectRefused(Node("BroadcastTo"), {x, ListOf(kInt32, {2, 1, 3})});
  ExpectRefused(Node("BroadcastTo"), {x, Ints({2, kTooMany, 3})});
  ExpectRefused(Node("Tile"), {x, Ints({2, 1, 1})});
  ExpectRefused(Node("Tile"), {x, Ints({1, -1, 1})});
  ExpectRefused(Node("Tile"), {x, Ints({1, 1})});
}

TEST(Views, Unpack) {
  for (const int64_t axis : {1, -2}) {
    const Array x = Special(kFloat, {2, 3, 4});
    std::vector<Array> parts;
    for (int64_t i = 0; i < 3; ++i) {
      parts.push_back(
          Built(kFloat, {2, 4}, [&](const Dims& at) { return At(x, {at[0], i, at[1]}); }));
    }
    ExpectAll(Node("Unpack", "axis", axis, "num", 3), {x}, parts);
    ExpectRefused(Node("Unpack", "axis", axis, "num", 4), {x});
  }
  ExpectRefused(Node("Unpack", "axis", 1, "num", 2), {Sample(kFloat, {2})});
}

TEST(Views, SplitAndSplitV) {
  const Array x = Special(kFloat, {2, 6});
  const auto part = [&](int64_t begin, int64_t size) {
    return Built(kFloat, {2, size}, [&](const Dims& at) { return At(x, {at[0], begin + at[1]}); });
  };
  for (const int64_t axis : {1, -1}) {
    ExpectAll(Node("Split", "num_split", 3), {Int(axis), x}, {part(0, 2), part(2, 2), part(4, 2)});
    ExpectAll(Node("SplitV"), {x, Ints({1, -1, 2}), Int(axis)},
              {part(0, 1), part(1, 3), part(4, 2)});
    ExpectAll(Node("SplitV"), {x, Ints({0, 6}), Int(axis)}, {part(0, 0), part(0, 6)});
  }
  ExpectRefused(Node("Split", "num_split", 4), {Int(1), x});
  ExpectRefused(Node("Split", "num_split", 3), {ScalarOf(kInt32, 1), x});
  ExpectRefused(Node("Split", "num_split", 1), {Int(2), x});
  ExpectRefused(Node("SplitV"), {x, Ints({1, 2}), Int(1)});
  ExpectRefused(Node("SplitV"), {x, Ints({-1}), Int(1)});
  ExpectRefused(Node("SplitV"), {x, Int(6), Int(1)});
  ExpectRefused(Node("SplitV"), {x, Ints({5, 2}), Int(1)});
  ExpectRefused(Node("SplitV"), {x, Ints({-1, -1}), Int(1)});
  ExpectRefused(Node("SplitV"), {x, ListOf(kInt32, {3, 3}), Int(1)});
}

TEST(Views, Reverse) {
  const Array x = Special(kFloat, {2, 3, 4});
  Expect(Node("ReverseV2"), {x, Ints({-1, 0})}, Built(kFloat, x.dims, [&](const Dims& at) {
           return At(x, {1 - at[0], at[1], 3 - at[2]});
         }));
  Expect(Node("ReverseV2"), {x, Ints({})}, x);
  Expect(Node("ReverseV2"), {Sample(kFloat, {0}), Ints({0})}, Sample(kFloat, {0}));
  ExpectRefused(Node("ReverseV2"), {x, Ints({3})});
  ExpectRefused(Node("ReverseV2"), {x, ListOf(kInt32, {0})});
}

// The result of a few known integers is known.
TEST(Lower, FoldsKnownIntegers) {
  ExpectKnown(Node("AddV2"), {Ints({1, 2}), Int(3)}, {ListOf(kInt32, {4, 5})});
  ExpectKnown(Node("Prod"), {Ints({2, 3, 4}), Int(0)}, {ScalarOf(kInt32, 24)});
  ExpectKnown(Node("FloorDiv"), {Int(-7), Int(2)}, {ScalarOf(kInt32, -4)});
  ExpectKnown(Node("GatherV2"), {Ints({5, 6, 7}), Int(1), Int(0)}, {ScalarOf(kInt32, 6)});
  ExpectKnown(Node("ConcatV2"), {Ints({1}), Ints({2, 3}), Int(0)}, {ListOf(kInt32, {1, 2, 3})});
  ExpectKnown(Node("StridedSlice", "shrink_axis_mask", 1),
              {Ints({4, 5}), Ints({1}), Ints({2}), Ints({1})}, {ScalarOf(kInt32, 5)});
  ExpectKnown(Node("Pack"), {Int(4), Int(5)}, {ListOf(kInt32, {4, 5})});
  const Result less = ResultOf(Node("Less"), {Int(1), Int(2)});
  EXPECT_EQ(less.are_known, std::vector<bool>{false});
  EXPECT_EQ(less.outputs[0].integers, std::vector<int64_t>{1});
  std::vector<Number> many(65, 1);
  EXPECT_EQ(ResultOf(Node("Neg"), {Ints(many)}).are_known, std::vector<bool>{false});
  EXPECT_EQ(ResultOf(Node("BroadcastTo"), {Int(1), Ints({65})}).are_known,
            std::vector<bool>{false});
}

// An instruction loops over few axes. An array of more axes takes many instructions.
TEST(Lower, RefusesAStepOfManyInstructions) {
  const Dims even = {3, 1, 3, 1, 3, 1, 3, 1}, odd = {1, 3, 1, 3, 1, 3, 1, 3};
  ExpectRefused(Node("AddV2"), {Sample(kFloat, even), Sample(kFloat, odd)});
  const Array x = Sample(kFloat, Dims(8, 3));
  ExpectRefused(Node("Transpose"), {x, Ints({7, 6, 5, 4, 3, 2, 1, 0})});
}

class EveryOperationIsTested : public testing::Environment {
  void TearDown() override {
    if (testing::GTEST_FLAG(filter) != "*") return;
    std::istringstream names(TfTiLoweredOperations());
    for (std::string name; names >> name;) EXPECT_EQ(Tested().count(name), 1u) << name;
  }
};
const auto* const environment = testing::AddGlobalTestEnvironment(new EveryOperationIsTested);

}  // namespace
}  // namespace tf_ti
