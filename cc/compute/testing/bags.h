// Random bags for tests, and numbers of all types in which their results are exact.
#ifndef TF_TI_CC_COMPUTE_TESTING_BAGS_H_
#define TF_TI_CC_COMPUTE_TESTING_BAGS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/numbers.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {

// The type in which a test computes: long double, or integers that wrap around.
template <typename T, typename = void>
struct ExactOf {
  using type = long double;
};
template <typename T>
struct ExactOf<std::complex<T>> {
  using type = std::complex<long double>;
};
template <typename T>
struct ExactOf<T, std::enable_if_t<std::is_integral_v<T>>> {
  using type = Sum<T>;
};
template <typename T>
using Exact = typename ExactOf<T>::type;

// A number by the definition of its format: `digits` bits of fraction, and the exponent's bias.
inline long double FromBits(uint16_t bits, int digits, int bias) {
  const int exponent = (bits & 0x7fff) >> digits, fraction = bits & ((1 << digits) - 1);
  const long double sign = bits >> 15 != 0 ? -1 : 1;
  if (exponent == 0x7fff >> digits) {
    return fraction == 0 ? sign * std::numeric_limits<long double>::infinity()
                         : std::numeric_limits<long double>::quiet_NaN();
  }
  const int mantissa = exponent == 0 ? fraction : fraction + (1 << digits);
  return sign *
         std::ldexp(static_cast<long double>(mantissa), std::max(exponent, 1) - bias - digits);
}

template <typename T>
Exact<T> ToExact(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return FromBits(value.bits, 10, 15);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return FromBits(value.bits, 7, 127);
  } else {
    return Exact<T>(value);
  }
}

// The numbers of -64 to 64 sixteenths: few enough that all types have them. Integers are not
// divided.
template <typename T>
const std::vector<T>& AllSixteenths() {
  static const std::vector<T> all = [] {
    std::vector<T> numbers(129);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      for (int bits = 0; bits < 1 << 16; ++bits) {
        if (bits == 1 << 15) continue;  // the negative zero
        const T value{static_cast<uint16_t>(bits)};
        const long double count = ToExact(value) * 16;
        if (std::abs(count) <= 64 && count == std::trunc(count)) {
          numbers[static_cast<int>(count) + 64] = value;
        }
      }
    } else {
      for (int count = -64; count <= 64; ++count) {
        numbers[count + 64] = std::is_integral_v<T> ? T(count) : T(count) / T(16);
      }
    }
    return numbers;
  }();
  return all;
}

template <typename T>
T FromSixteenths(int64_t count) {
  return AllSixteenths<T>()[count + 64];
}

// A random number of sixteenths; of complex numbers, in both parts.
template <typename T>
T RandomNumber(Random* random) {
  const T number = FromSixteenths<T>(random->Int(-64, 64));
  if constexpr (IsComplex<T>::value) {
    return {number.real(), FromSixteenths<T>(random->Int(-64, 64)).real()};
  } else {
    return number;
  }
}

template <typename T>
std::vector<T> RandomNumbers(Random* random, int64_t size) {
  std::vector<T> numbers(size);
  for (T& number : numbers) number = RandomNumber<T>(random);
  return numbers;
}

// The distance of 1 and the next number.
template <typename T>
constexpr double Epsilon() {
  if constexpr (std::is_same_v<T, Half>) return 0x1p-10;
  if constexpr (std::is_same_v<T, BFloat16>) return 0x1p-7;
  if constexpr (std::is_integral_v<T>) return 0;
  using Real = decltype(std::real(Sum<T>()));
  return std::numeric_limits<Real>::epsilon();
}

// True if `actual` is `expected` but for rounding: `steps` of a sum of numbers of `size` in all,
// and one of the result.
template <typename T>
bool IsNear(T actual, Exact<T> expected, double size, double steps = 32) {
  if constexpr (std::is_integral_v<T>) {
    return actual == static_cast<T>(expected);
  } else {
    const long double error = std::abs(ToExact(actual) - expected);
    const long double tolerance =
        Epsilon<T>() * std::abs(expected) + steps * Epsilon<Sum<T>>() * size + 1e-9;
    return error <= tolerance;
  }
}

// Bags, and what they mean.
template <typename Index>
class RandomBags {
 public:
  struct Options {
    int64_t num_rows = 50;
    int64_t most_bags = 40;
    int64_t most_ids = 12;  // in a bag
    int64_t giant = 0;      // where not 0, some bag has so many ids
  };

  RandomBags(Random* random, const Options& options) : num_rows_(options.num_rows) {
    const BagKind kind = random->Pick({BagKind::kOffsets, BagKind::kPacked, BagKind::kSegments});
    const int64_t count = random->Int(options.giant > 0, options.most_bags);
    MakeSizes(random, options, kind, count);
    bags_.kind = kind;
    bags_.count = count;
    if (random->Chance(.3)) bags_.default_index = random->Int(0, num_rows_ - 1);
    if (random->Chance(.4)) {
      bags_.has_padding = true;
      bags_.padding_idx = random->Chance(.7)
                              ? random->Int(0, num_rows_ - 1)
                              : random->Pick<int64_t>({-1, num_rows_, num_rows_ + 5});
    }
    bags_.include_last_offset = kind == BagKind::kOffsets && random->Chance(.5);
    MakeBounds(random);
    MakeIndices(random);
  }

  // Of which the arrays are Guarded ones of this object.
  const Bags<Index>& get() const { return bags_; }
  int64_t num_rows() const { return num_rows_; }
  // Where each bag begins and ends.
  const std::vector<int64_t>& begins() const { return begins_; }
  const std::vector<int64_t>& ends() const { return ends_; }
  int64_t row(int64_t position) const { return (*indices_)[position]; }
  // The positions of a bag's ids that are no padding.
  std::vector<int64_t> Positions(int64_t bag) const {
    std::vector<int64_t> positions;
    for (int64_t i = begins_[bag]; i < ends_[bag]; ++i) {
      if (!bags_.has_padding || row(i) != bags_.padding_idx) positions.push_back(i);
    }
    return positions;
  }

 private:
  void MakeSizes(Random* random, const Options& options, BagKind kind, int64_t count) {
    const bool are_short = random->Chance(.3);
    for (int64_t bag = 0; bag < count; ++bag) {
      sizes_.push_back(random->Chance(.2) ? 0 : random->Int(0, are_short ? 2 : options.most_ids));
    }
    if (options.giant > 0) sizes_[random->Int(0, count - 1)] = options.giant;
    if (kind == BagKind::kPacked && count > 0) {
      sizes_.assign(count, *std::max_element(sizes_.begin(), sizes_.end()));
    }
  }

  void MakeBounds(Random* random) {
    const bool is_offsets = bags_.kind == BagKind::kOffsets;
    int64_t at = is_offsets && random->Chance(.3) ? random->Int(0, 5) : 0;
    std::vector<Index> bounds;
    for (size_t bag = 0; bag < sizes_.size(); ++bag) {
      if (is_offsets) bounds.push_back(static_cast<Index>(at));
      if (bags_.kind == BagKind::kSegments) bounds.insert(bounds.end(), sizes_[bag], bag);
      begins_.push_back(at);
      ends_.push_back(at += sizes_[bag]);
    }
    if (bags_.include_last_offset) {
      bounds.push_back(static_cast<Index>(at));
      if (random->Chance(.5)) at += random->Int(0, 5);
    }
    bags_.num_indices = at;
    bounds_ = std::make_unique<Guarded<Index>>(bounds);
    bags_.bounds = bounds_->data();
  }

  void MakeIndices(Random* random) {
    const bool is_skewed = random->Chance(.3);  // a few rows come again and again
    std::vector<Index> indices(bags_.num_indices);
    for (Index& index : indices) {
      index = static_cast<Index>(
          random->Int(0, is_skewed ? std::min<int64_t>(3, num_rows_) - 1 : num_rows_ - 1));
      if (bags_.has_padding && random->Chance(.2)) index = static_cast<Index>(bags_.padding_idx);
    }
    indices_ = std::make_unique<Guarded<Index>>(indices);
    bags_.indices = indices_->data();
  }

  const int64_t num_rows_;
  Bags<Index> bags_;
  std::vector<int64_t> sizes_, begins_, ends_;
  std::unique_ptr<Guarded<Index>> indices_, bounds_;
};

// Weights for each index, rounded or wide, or none.
template <typename T>
class RandomWeights {
 public:
  RandomWeights(Random* random, int64_t size, bool given)
      : rounded_(Numbers<T>(random, given && random->Chance(.5) ? size : 0)),
        wide_(Numbers<Sum<T>>(random, given ? size : 0)),
        is_rounded_(given && rounded_.size() == size && size > 0),
        given_(given) {}

  Weights<T> get() const {
    Weights<T> weights;
    if (is_rounded_) {
      weights.rounded = rounded_.data();
    } else if (given_) {
      weights.wide = wide_.data();
    }
    return weights;
  }
  bool given() const { return given_; }
  // 1 where none are given.
  Exact<T> operator[](int64_t position) const {
    if (!given_) return Exact<T>(1);
    return is_rounded_ ? ToExact(rounded_[position]) : Exact<T>(wide_[position]);
  }

 private:
  // Mostly of one sign, as divisors of weights of both signs may be tiny.
  template <typename N>
  static std::vector<N> Numbers(Random* random, int64_t size) {
    std::vector<N> numbers(size);
    for (N& number : numbers) number = FromSixteenths<N>(8 * random->Int(0, 4));
    return numbers;
  }

  const Guarded<T> rounded_;
  const Guarded<Sum<T>> wide_;
  const bool is_rounded_, given_;
};

// The divisor of a bag's sum, of the weights of its ids.
template <typename T>
Exact<T> DivisorOf(Reduction reduction, const std::vector<Exact<T>>& weights) {
  Exact<T> total(0);
  for (const Exact<T>& weight : weights) {
    total += reduction == Reduction::kSqrtN ? weight * weight : weight;
  }
  if (reduction == Reduction::kMean) return total;
  if constexpr (!std::is_integral_v<T>) {
    if (reduction == Reduction::kSqrtN) return std::sqrt(total);
  }
  return Exact<T>(1);
}

// All bits alike, NaN and poison too.
template <typename T>
bool SameBits(const std::vector<T>& x, const std::vector<T>& y) {
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0);
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_TESTING_BAGS_H_
