// The element types of embedding tables, and the types in which they are summed.
#ifndef TF_TI_CC_COMPUTE_NUMBERS_H_
#define TF_TI_CC_COMPUTE_NUMBERS_H_

#include <complex>
#include <cstdint>
#include <type_traits>

namespace tf_ti {

// IEEE binary16 and bfloat16, as they lie in memory.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// Half precision sums in float and rounds once; integers sum in 64 bits.
template <typename T, typename = void>
struct SumOf {
  using type = T;
};
template <>
struct SumOf<Half> {
  using type = float;
};
template <>
struct SumOf<BFloat16> {
  using type = float;
};
template <typename T>
struct SumOf<T, std::enable_if_t<std::is_integral_v<T>>> {
  using type = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
};
template <typename T>
using Sum = typename SumOf<T>::type;

template <typename T>
struct IsComplex : std::false_type {};
template <typename T>
struct IsComplex<std::complex<T>> : std::true_type {};

// Signed integers wrap around, as they do in TensorFlow.
template <typename S>
S AddSums(S x, S y) {
  if constexpr (std::is_integral_v<S>) {
    return static_cast<S>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
  } else {
    return x + y;
  }
}

template <typename S>
S MultiplySums(S x, S y) {
  if constexpr (std::is_integral_v<S>) {
    return static_cast<S>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
  } else {
    return x * y;
  }
}

// Zero where the divisor is. The lowest integer has no opposite.
template <typename S>
S DivideNoNan(S x, S divisor) {
  if (divisor == S(0)) return S(0);
  if constexpr (std::is_integral_v<S> && std::is_signed_v<S>) {
    if (divisor == S(-1)) return static_cast<S>(-static_cast<uint64_t>(x));
  }
  return x / divisor;
}

// MACRO(type) for each of them.
#define TF_TI_FLOATS(MACRO) MACRO(float) MACRO(double) MACRO(::tf_ti::Half) MACRO(::tf_ti::BFloat16)
#define TF_TI_COMPLEX(MACRO) MACRO(std::complex<float>) MACRO(std::complex<double>)
#define TF_TI_INTEGERS(MACRO) \
  MACRO(int8_t)               \
  MACRO(int16_t)              \
  MACRO(int32_t)              \
  MACRO(int64_t)              \
  MACRO(uint8_t)              \
  MACRO(uint16_t)             \
  MACRO(uint32_t)             \
  MACRO(uint64_t)
#define TF_TI_DIFFERENTIABLE(MACRO) TF_TI_FLOATS(MACRO) TF_TI_COMPLEX(MACRO)
#define TF_TI_NUMBERS(MACRO) TF_TI_DIFFERENTIABLE(MACRO) TF_TI_INTEGERS(MACRO)

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_NUMBERS_H_
