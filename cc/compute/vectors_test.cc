// Half-precision numbers in memory, and the floats that they are summed in.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/compute/numbers.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

constexpr int kWidths = 3;  // one number, four, and as many floats as fit into a register

template <typename T>
struct Conversions {
  void (*widen[kWidths])(const T*, int64_t, float*);
  void (*round[kWidths])(const float*, int64_t, T*);
};

}  // namespace
}  // namespace tf_ti

#define TF_TI_LOOPS "cc/compute/testing/vectors-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {
namespace {

template <typename T>
Conversions<T> Choose() {
  TF_TI_RETURN_BEST(ConversionsOf<T>());
}

// The formats by their definition: a sign, an exponent and `kMantissa` bits.
template <typename T>
struct Format;
template <>
struct Format<Half> {
  static constexpr int kMantissa = 10, kBias = 15;
};
template <>
struct Format<BFloat16> {
  static constexpr int kMantissa = 7, kBias = 127;
};

template <typename T>
double ValueOf(T number) {
  using F = Format<T>;
  constexpr int kMostExponent = 2 * F::kBias + 1;
  const int exponent = (number.bits & 0x7fff) >> F::kMantissa;
  const int mantissa = number.bits & ((1 << F::kMantissa) - 1);
  const double sign = number.bits >> 15 ? -1 : 1;
  if (exponent == kMostExponent) return mantissa != 0 ? NAN : sign * INFINITY;
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << F::kMantissa);
  return sign * std::ldexp(whole, std::max(exponent, 1) - F::kBias - F::kMantissa);
}

// The nearest number of the format, to even if two are near.
template <typename T>
double Nearest(float value) {
  using F = Format<T>;
  if (std::isnan(value) || std::isinf(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), 1 - F::kBias);
  const double unit = std::ldexp(1.0, exponent - F::kMantissa);
  const double rounded = std::nearbyint(value / unit) * unit;
  const double limit = std::ldexp(1.0, F::kBias + 1);
  return std::fabs(rounded) >= limit ? std::copysign(INFINITY, rounded) : rounded;
}

bool AreSame(double x, double y) {
  return std::isnan(x) ? std::isnan(y) : x == y && std::signbit(x) == std::signbit(y);
}

template <typename T>
class VectorsTest : public testing::Test {};
using Types = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(VectorsTest, Types);

TYPED_TEST(VectorsTest, AllHalvesBecomeFloatsAndHalvesAgain) {
  using T = TypeParam;
  constexpr int64_t kCount = 1 << 16;
  Guarded<T> all(kCount), again(kCount);
  for (int64_t i = 0; i < kCount; ++i) all[i].bits = static_cast<uint16_t>(i);
  all.Freeze();
  Guarded<float> floats(kCount);
  const Conversions<T> conversions = Choose<T>();
  for (int width = 0; width < kWidths; ++width) {
    conversions.widen[width](all.data(), kCount, floats.data());
    conversions.round[width](floats.data(), kCount, again.data());
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_TRUE(AreSame(floats[i], ValueOf(all[i]))) << i << ", width " << width;
      if (std::isnan(ValueOf(all[i]))) {
        ASSERT_TRUE(std::isnan(ValueOf(again[i]))) << i << ", width " << width;
        ASSERT_EQ(again[i].bits >> 15, i >> 15);
      } else {
        ASSERT_EQ(again[i].bits, i) << "width " << width;
      }
    }
  }
}

TYPED_TEST(VectorsTest, FloatsAreRoundedToTheNearestAndToEven) {
  using T = TypeParam;
  // Between any two neighbours: near the middle, and anywhere. Beyond the largest one, too.
  std::vector<float> floats;
  Random random(1);
  for (int64_t i = 0; i < 1 << 16; ++i) {
    const double low = ValueOf(T{static_cast<uint16_t>(i)});
    const double high = ValueOf(T{static_cast<uint16_t>(i + 1)});
    const double limit = std::copysign(std::ldexp(1.0, Format<T>::kBias + 1), low);
    const float middle = static_cast<float>((low + (std::isinf(high) ? limit : high)) / 2);
    floats.insert(floats.end(),
                  {middle, std::nextafter(middle, -INFINITY), std::nextafter(middle, INFINITY)});
    const uint32_t bits = static_cast<uint32_t>(random.Bits());
    float any;
    std::memcpy(&any, &bits, sizeof(any));
    floats.push_back(any);
  }
  floats.insert(floats.end(), {0.0f, -0.0f, 3.4e38f, -3.4e38f, 1e-45f, -1e-45f, NAN, -INFINITY});
  while (floats.size() % 16 != 0) floats.push_back(INFINITY);
  const Guarded<float> given(floats);
  Guarded<T> rounded(given.size());
  const Conversions<T> conversions = Choose<T>();
  for (int width = 0; width < kWidths; ++width) {
    conversions.round[width](given.data(), given.size(), rounded.data());
    for (int64_t i = 0; i < given.size(); ++i) {
      ASSERT_TRUE(AreSame(ValueOf(rounded[i]), Nearest<T>(given[i])))
          << given[i] << " becomes " << ValueOf(rounded[i]) << ", width " << width;
    }
  }
}

}  // namespace
}  // namespace tf_ti
