// Arrays of tests as bytes, and their comparison.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_TESTING_ARRAYS_H_
#define TF_TI_CC_COMPUTE_PROGRAM_TESTING_ARRAYS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "cc/compute/program/testing/reference.h"
#include "cc/compute/program/view.h"

namespace tf_ti {

constexpr ElementType kTypes[] = {ElementType::kFloat,    ElementType::kDouble, ElementType::kHalf,
                                  ElementType::kBFloat16, ElementType::kInt32,  ElementType::kInt64,
                                  ElementType::kBool};
static_assert(std::size(kTypes) == kNumElementTypes);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

template <typename T>
void Append(T value, std::vector<char>* bytes) {
  const char* const begin = reinterpret_cast<const char*>(&value);
  bytes->insert(bytes->end(), begin, begin + sizeof(value));
}

// Numbers of half precision as they are stored.
inline uint16_t ToBits(ElementType type, double x) {
  const int fraction = FractionOf(type), least = LeastExponentOf(type);
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isinf(x)) return sign | (type == ElementType::kHalf ? 0x7c00 : 0x7f80);
  if (x != x) return 0x7fff;
  const double magnitude = std::fabs(x);
  const int exponent = magnitude == 0 ? least : std::max(std::ilogb(magnitude), least);
  const auto steps = static_cast<int>(std::ldexp(magnitude, fraction - exponent));
  return sign | (((exponent - least) << fraction) + steps);
}
inline double FromBits(ElementType type, uint16_t bits) {
  const int fraction = FractionOf(type), least = LeastExponentOf(type);
  const int exponent = (bits & 0x7fff) >> fraction, steps = bits & ((1 << fraction) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (0x7fff >> fraction)) return steps == 0 ? sign * kInfinity : kNan;
  const int first = exponent == 0 ? 0 : 1 << fraction;
  return sign * std::ldexp(first + steps, least + std::max(exponent, 1) - 1 - fraction);
}

inline std::vector<char> ToBytes(const Array& array) {
  std::vector<char> bytes;
  for (const double x : array.reals) {
    if (array.type == ElementType::kFloat) {
      Append(static_cast<float>(x), &bytes);
    } else if (IsHalf(array.type)) {
      Append(ToBits(array.type, x), &bytes);
    } else {
      Append(x, &bytes);
    }
  }
  for (const int64_t x : array.integers) {
    if (array.type == ElementType::kInt32) Append(static_cast<int32_t>(x), &bytes);
    if (array.type == ElementType::kInt64) Append(x, &bytes);
    if (array.type == ElementType::kBool) Append(static_cast<uint8_t>(x), &bytes);
  }
  return bytes;
}

template <typename T>
T At(const char* bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

inline Array FromBytes(ElementType type, const Dims& dims, const char* bytes) {
  Array array;
  array.type = type;
  array.dims = dims;
  for (int64_t i = 0; i < CountOf(dims); ++i) {
    if (type == ElementType::kFloat) array.reals.push_back(At<float>(bytes, i));
    if (type == ElementType::kDouble) array.reals.push_back(At<double>(bytes, i));
    if (IsHalf(type)) array.reals.push_back(FromBits(type, At<uint16_t>(bytes, i)));
    if (type == ElementType::kInt32) array.integers.push_back(At<int32_t>(bytes, i));
    if (type == ElementType::kInt64) array.integers.push_back(At<int64_t>(bytes, i));
    if (type == ElementType::kBool) array.integers.push_back(At<uint8_t>(bytes, i));
  }
  return array;
}

// Units in the last place of a number of the type.
inline double UlpOf(ElementType type, double x) {
  const double magnitude = std::fabs(x);
  if (type == ElementType::kFloat) {
    const float m = std::max(static_cast<float>(magnitude), std::numeric_limits<float>::min());
    return std::nextafter(m, std::numeric_limits<float>::infinity()) - m;
  }
  if (IsHalf(type)) {
    const int least = LeastExponentOf(type);
    const int exponent = magnitude == 0 ? least : std::max(std::ilogb(magnitude), least);
    return std::ldexp(1, exponent - FractionOf(type));
  }
  const double m = std::max(magnitude, std::numeric_limits<double>::min());
  return std::nextafter(m, kInfinity) - m;
}

// Expects the same bits, or numbers that differ by at most so many units in the last place.
inline void ExpectAlike(const Array& found, const Array& expected, double ulps,
                        const std::string& what, const std::vector<double>* magnitudes = nullptr) {
  ASSERT_EQ(found.dims, expected.dims) << what;
  ASSERT_EQ(found.type, expected.type) << what;
  EXPECT_EQ(found.integers, expected.integers) << what;
  for (size_t i = 0; i < expected.reals.size(); ++i) {
    const double x = found.reals[i], y = expected.reals[i];
    if (y != y) {
      EXPECT_TRUE(x != x) << what << " at " << i << ": " << x << ", not NaN";
      continue;
    }
    double room = 0;
    if (std::isfinite(y)) room = ulps * UlpOf(expected.type, magnitudes ? (*magnitudes)[i] : y);
    if (room == 0) {
      EXPECT_TRUE(x == y && std::signbit(x) == std::signbit(y))
          << what << " at " << i << ": " << x << ", not " << y;
    } else {
      EXPECT_LE(std::fabs(x - y), room) << what << " at " << i << ": " << x << ", not " << y;
    }
  }
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_TESTING_ARRAYS_H_
