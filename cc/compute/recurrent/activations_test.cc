// Activations beside long double, over all magnitudes; their gradients, at limits too.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/compute/recurrent/cells.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/expect.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

template <typename S>
struct ActivationLoops {
  void (*activate)(const Activation<S>& activation, const S* x, int64_t count, S* y);
  void (*backward)(const Activation<S>& activation, const S* x, const S* y, const S* gradient,
                   int64_t count, S* by_x);
};

}  // namespace
}  // namespace tf_ti

#define TF_TI_LOOPS "cc/compute/recurrent/testing/activations-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {
namespace {

constexpr int64_t kMostLanes = 16;

template <typename S>
ActivationLoops<S> Choose() {
  TF_TI_RETURN_BEST(ActivationLoopsOf<S>());
}

template <typename S>
std::vector<S> Activated(const Activation<S>& activation, std::vector<S> x) {
  const int64_t count = x.size();
  while (x.size() % kMostLanes != 0) x.push_back(0);
  const Guarded<S> given(x);
  Guarded<S> y(given.size());
  Choose<S>().activate(activation, given.data(), given.size(), y.data());
  return std::vector<S>(y.data(), y.data() + count);
}

// An activation and its slope by definition, inside its limits.
template <typename S>
long double Expected(const Activation<S>& activation, long double x) {
  const long double alpha = activation.alpha, beta = activation.beta;
  switch (activation.function) {
    case ActivationFunction::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case ActivationFunction::kTanh:
      return std::tanh(x);
    case ActivationFunction::kRelu:
      return std::isnan(x) ? x : std::max(x, 0.0L);
    case ActivationFunction::kAffine:
      return alpha * x + beta;
    case ActivationFunction::kHardSigmoid:
      return std::isnan(x) ? x : std::clamp(alpha * x + beta, 0.0L, 1.0L);
    case ActivationFunction::kLeakyRelu:
      return x < 0 ? alpha * x : x;
    case ActivationFunction::kScaledTanh:
      return alpha * std::tanh(beta * x);
  }
  return NAN;
}

template <typename S>
long double ExpectedSlope(const Activation<S>& activation, long double x) {
  const long double alpha = activation.alpha, beta = activation.beta;
  switch (activation.function) {
    case ActivationFunction::kSigmoid:
      return 1 / ((1 + std::exp(-x)) * (1 + std::exp(x)));
    case ActivationFunction::kTanh:
      return 1 / (std::cosh(x) * std::cosh(x));
    case ActivationFunction::kRelu:
      return 1;
    case ActivationFunction::kAffine:
    case ActivationFunction::kHardSigmoid:
      return alpha;
    case ActivationFunction::kLeakyRelu:
      return x > 0 ? 1 : alpha;
    case ActivationFunction::kScaledTanh:
      return alpha * beta / (std::cosh(beta * x) * std::cosh(beta * x));
  }
  return NAN;
}

// Numbers of all magnitudes, of which most are such as occur, and those around powers of 2.
template <typename S>
std::vector<S> Sweep() {
  using Bits = std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>;
  std::vector<S> numbers;
  const auto add = [&](S number) {
    if (!std::isnan(number)) numbers.insert(numbers.end(), {number, -number});
  };
  Random random(1);
  for (int64_t i = 0; i < 100'000; ++i) {
    const Bits bits = static_cast<Bits>(random.Bits());
    S any;
    std::memcpy(&any, &bits, sizeof(any));
    add(any);
    add(static_cast<S>(random.Real(0, 20)));
    add(static_cast<S>(random.Real(0, sizeof(S) == 4 ? 100 : 800)));
  }
  using Limits = std::numeric_limits<S>;
  for (int exponent = Limits::min_exponent - Limits::digits; exponent < Limits::max_exponent;
       ++exponent) {
    const S power = static_cast<S>(std::ldexp(1.0L, exponent));
    add(power);
    add(std::nextafter(power, S(0)));
    add(std::nextafter(power, S(INFINITY)));
  }
  // Where exponentials end, of x and of 2 x.
  for (const S limit : {S(87), S(708), S(43.5), S(354)}) {
    add(limit);
    add(std::nextafter(limit, S(0)));
    add(std::nextafter(limit, S(INFINITY)));
  }
  return numbers;
}

template <typename S>
class ActivationsTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationsTest, Types);

TYPED_TEST(ActivationsTest, SigmoidsAndTangentsAreWithinFourUnits) {
  using S = TypeParam;
  // Where an exponential would be below the smallest normal number, zero will do.
  const long double smallest = sizeof(S) == 4 ? 2e-38L : 5e-308L;
  const std::vector<S> x = Sweep<S>();
  for (const auto function : {ActivationFunction::kSigmoid, ActivationFunction::kTanh}) {
    const Activation<S> activation{function, 0, 0, 0};
    const std::vector<S> y = Activated(activation, x);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const long double expected = Expected(activation, x[i]);
      if (std::fabs(expected) < smallest && std::fabs(y[i] - expected) < smallest) continue;
      const double error = UlpError(y[i], expected);
      worst = std::max(worst, error);
      ASSERT_LT(error, 4) << static_cast<int>(function) << " of " << x[i] << " is " << y[i]
                          << " instead of " << expected;
    }
    EXPECT_GT(worst, 0.5) << "so exact that this measures nothing";
  }
}

TYPED_TEST(ActivationsTest, OthersAreAsExactAsTheirFormulas) {
  using S = TypeParam;
  using F = ActivationFunction;
  std::vector<S> x;
  Random random(2);
  for (int i = 0; i < 10'000; ++i) x.push_back(static_cast<S>(random.Real(-20, 20)));
  x.insert(x.end(), {S(0), S(-0.0), S(2), S(-2)});
  for (const Activation<S>& activation :
       std::vector<Activation<S>>{{F::kRelu, 0, 0, 0},
                                  {F::kAffine, S(1.7), S(-3), 0},
                                  {F::kHardSigmoid, S(0.2), S(0.5), 0},
                                  {F::kHardSigmoid, S(-0.25), S(0.5), 0},
                                  {F::kLeakyRelu, S(0.01), 0, 0},
                                  {F::kScaledTanh, S(1.7), S(0.6), 0}}) {
    const std::vector<S> y = Activated(activation, x);
    ExpectClose(
        x.size(), [&](int64_t i) { return y[i]; },
        [&](int64_t i) { return Expected(activation, x[i]); },
        8 * std::numeric_limits<S>::epsilon(),
        std::to_string(static_cast<int>(activation.function)));
  }
}

TYPED_TEST(ActivationsTest, InfinitiesAndNan) {
  using S = TypeParam;
  using F = ActivationFunction;
  const S inf = INFINITY, nan = NAN;
  const auto expect = [&](const Activation<S>& activation, S low, S high) {
    const std::vector<S> y = Activated(activation, {-inf, inf, nan, -nan});
    SCOPED_TRACE(static_cast<int>(activation.function));
    EXPECT_EQ(y[0], low);
    EXPECT_EQ(y[1], high);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_TRUE(std::isnan(y[3]));
  };
  expect({F::kSigmoid, 0, 0, 0}, 0, 1);
  expect({F::kTanh, 0, 0, 0}, -1, 1);
  expect({F::kRelu, 0, 0, 0}, 0, inf);
  expect({F::kAffine, 2, 1, 0}, -inf, inf);
  expect({F::kHardSigmoid, S(0.2), S(0.5), 0}, 0, 1);
  expect({F::kLeakyRelu, S(0.5), 0, 0}, -inf, inf);
  expect({F::kScaledTanh, 3, 1, 0}, -3, 3);
}

TYPED_TEST(ActivationsTest, TangentsKeepTheSignOfZero) {
  using S = TypeParam;
  const std::vector<S> y = Activated<S>({ActivationFunction::kTanh, 0, 0, 0}, {S(0), S(-0.0)});
  EXPECT_EQ(y[0], 0);
  EXPECT_FALSE(std::signbit(y[0]));
  EXPECT_EQ(y[1], 0);
  EXPECT_TRUE(std::signbit(y[1]));
}

TYPED_TEST(ActivationsTest, SlopesInsideTheLimits) {
  using S = TypeParam;
  using F = ActivationFunction;
  Random random(3);
  for (const Activation<S>& activation :
       std::vector<Activation<S>>{{F::kSigmoid, 0, 0, 0},
                                  {F::kTanh, 0, 0, 0},
                                  {F::kRelu, 0, 0, 0},
                                  {F::kAffine, S(1.7), S(-3), 0},
                                  {F::kHardSigmoid, S(0.2), S(0.5), 0},
                                  {F::kLeakyRelu, S(0.01), 0, 0},
                                  {F::kScaledTanh, S(1.7), S(0.6), 0}}) {
    std::vector<S> x, gradients;
    for (int i = 0; i < 1024; ++i) {
      const bool is_relu = activation.function == F::kRelu;
      const bool is_hard = activation.function == F::kHardSigmoid;
      x.push_back(static_cast<S>(random.Real(is_relu   ? 0.01
                                             : is_hard ? -2.4
                                                       : -20,
                                             is_hard ? 2.4 : 20)));
      gradients.push_back(static_cast<S>(random.Real(-1, 1)));
    }
    const Guarded<S> y(Activated(activation, x)), gradient(gradients), unread(1024);
    Guarded<S> by_x(1024);
    // The argument is not read: poison would spread.
    Choose<S>().backward(activation, unread.data(), y.data(), gradient.data(), 1024, by_x.data());
    ExpectClose(
        1024, [&](int64_t i) { return by_x[i]; },
        [&](int64_t i) { return gradient[i] * ExpectedSlope(activation, x[i]); },
        8 * std::numeric_limits<S>::epsilon(),
        std::to_string(static_cast<int>(activation.function)));
  }
}

// As cells.h defines Limits.
template <typename S>
S GradientAtLimits(const Activation<S>& activation, S x, S gradient) {
  const bool is_relu = activation.function == ActivationFunction::kRelu;
  const S value = is_relu ? x : activation.alpha * x + activation.beta;
  const auto unless_passed = [&](bool passes, int replaces) -> S {
    if (passes) return gradient * (is_relu ? S(1) : activation.alpha);
    return activation.limits & replaces ? S(0) : gradient * S(0);
  };
  if (std::isnan(value)) return unless_passed(activation.limits & kPassesNan, kZeroNan);
  if (value <= 0) return unless_passed(value == 0 && activation.limits & kPassesLow, kZeroLow);
  if (value >= 1 && !is_relu) {
    return unless_passed(value == 1 && activation.limits & kPassesHigh, kZeroHigh);
  }
  return unless_passed(true, 0);
}

TYPED_TEST(ActivationsTest, GradientsAtAndBeyondLimits) {
  using S = TypeParam;
  using F = ActivationFunction;
  const S inf = INFINITY, nan = NAN;
  for (const bool is_relu : {true, false}) {
    for (int limits = 0; limits < 64; ++limits) {
      const Activation<S> activation{is_relu ? F::kRelu : F::kHardSigmoid, S(0.25), S(0.5), limits};
      std::vector<S> x, gradients;
      // At the limits of the hard sigmoid, -2 and 2, its products are exact.
      for (const S argument : {S(0), S(-0.0), S(-2), S(2), S(-3), S(3), S(1), -inf, inf, nan}) {
        for (const S gradient : {S(1), S(-0.5), S(0), inf, -inf, nan}) {
          x.push_back(argument);
          gradients.push_back(gradient);
        }
      }
      while (x.size() % kMostLanes != 0) x.push_back(1), gradients.push_back(1);
      const int64_t count = x.size();
      const Guarded<S> y(Activated(activation, x)), arguments(x), given(gradients);
      const Guarded<S> unread(count);
      Guarded<S> by_x(count);
      const bool reads_arguments = limits & kPasses;
      Choose<S>().backward(activation, reads_arguments ? arguments.data() : unread.data(), y.data(),
                           given.data(), count, by_x.data());
      for (int64_t i = 0; i < count; ++i) {
        const S expected = GradientAtLimits(activation, x[i], gradients[i]);
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(by_x[i]) : by_x[i] == expected)
            << (is_relu ? "relu" : "hard sigmoid") << " at " << x[i] << ", limits " << limits
            << ", gradient " << gradients[i] << ": " << by_x[i] << " instead of " << expected;
      }
    }
  }
}

}  // namespace
}  // namespace tf_ti
