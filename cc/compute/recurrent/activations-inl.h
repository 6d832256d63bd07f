// Activations of vectors, for one instruction set: see each_instruction_set-inl.h. The errors are
// below 4 units in the last place. Where a float is below 2e-38, they are below that.

#include "cc/compute/vectors-inl.h"

// The larger and the lesser number; NaN stays.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> AtLeast(Vector<S, L> x, S least) {
#if TF_TI_VECTOR_BYTES == 32
  // Of the last line GCC 12 makes two instructions.
  const Vector<S, L> limits = Fill<L>(least);
  if constexpr (std::is_same_v<S, float>) {
    return BitCast<Vector<S, L>>(_mm256_max_ps(BitCast<__m256>(limits), BitCast<__m256>(x)));
  } else {
    return BitCast<Vector<S, L>>(_mm256_max_pd(BitCast<__m256d>(limits), BitCast<__m256d>(x)));
  }
#endif
  return x < least ? Fill<L>(least) : x;
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> AtMost(Vector<S, L> x, S most) {
#if TF_TI_VECTOR_BYTES == 32
  const Vector<S, L> limits = Fill<L>(most);
  if constexpr (std::is_same_v<S, float>) {
    return BitCast<Vector<S, L>>(_mm256_min_ps(BitCast<__m256>(limits), BitCast<__m256>(x)));
  } else {
    return BitCast<Vector<S, L>>(_mm256_min_pd(BitCast<__m256d>(limits), BitCast<__m256d>(x)));
  }
#endif
  return x > most ? Fill<L>(most) : x;
}

// The exponentials of numbers up to there are neither infinite nor subnormal.
template <typename S>
constexpr S kMostExponent = std::is_same_v<S, float> ? 87 : 708;

// e^x = scale * (1 + rest), with |rest| < 0.42 and exact for small x, and scale a power of 2; for x
// between -kMostExponent and kMostExponent.
template <typename S, int L>
struct Exponential {
  Vector<S, L> scale;
  Vector<S, L> rest;
};

template <int L>
[[gnu::always_inline]] inline Exponential<float, L> ExponentialOf(Vector<float, L> x) {
  // 1.5 * 2^23, as there are integers from there on, and the bias of exponents.
  const Vector<float, L> shift = Fill<L>(12582912.0f + 127);
  const Vector<float, L> shifted = x * 1.44269504f + shift;
  const Vector<float, L> n = shifted - shift;
  Vector<float, L> r = x - n * 0.693359375f;  // ln 2, in two parts of which the first is short
  r = r + n * 2.12194440e-4f;
  // Interpolates (e^r - 1 - r) / r^2, to 2.5e-8 of e^r - 1.
  Vector<float, L> p = Fill<L>(0.00139262565f);
  p = p * r + 0.00836323745f;
  p = p * r + 0.0416665542f;
  p = p * r + 0.166665766f;
  p = p * r + 0.5f;
  using Bits = Vector<uint32_t, L>;
  return {BitCast<Vector<float, L>>(BitCast<Bits>(shifted) << 23), p * (r * r) + r};
}

template <int L>
[[gnu::always_inline]] inline Exponential<double, L> ExponentialOf(Vector<double, L> x) {
  const Vector<double, L> shift = Fill<L>(6755399441055744.0 + 1023);  // 1.5 * 2^52, and the bias
  const Vector<double, L> shifted = x * 1.4426950408889634 + shift;
  const Vector<double, L> n = shifted - shift;
  Vector<double, L> r = x - n * 0.693145751953125;
  r = r - n * 1.42860682030941723212e-6;
  // 1 / (k + 2)!
  Vector<double, L> p = Fill<L>(1.0 / 6227020800);
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  using Bits = Vector<uint64_t, L>;
  return {BitCast<Vector<double, L>>(BitCast<Bits>(shifted) << 52), p * (r * r) + r};
}

// 1 / x for x of at least 1, without a division where there is an estimate to begin with.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Reciprocal(Vector<S, L> x) {
#ifdef TF_TI_X86
  if constexpr (std::is_same_v<S, float>) {
#if TF_TI_VECTOR_BYTES == 64
    const Vector<S, L> y = BitCast<Vector<S, L>>(_mm512_maskz_rcp14_ps(0xffff, BitCast<__m512>(x)));
#elif TF_TI_VECTOR_BYTES == 32
    const Vector<S, L> y = BitCast<Vector<S, L>>(_mm256_rcp_ps(BitCast<__m256>(x)));
#else
    const Vector<S, L> y = BitCast<Vector<S, L>>(_mm_rcp_ps(BitCast<__m128>(x)));
#endif
    const Vector<S, L> error = 1.0f - x * y;
    return y + y * (error + error * error);
  }
#endif
  return 1 / x;
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Sigmoid(Vector<S, L> x) {
  const Exponential<S, L> e = ExponentialOf<L>(-AtMost<S, L>(x, kMostExponent<S>));
  const Vector<S, L> y = Reciprocal<S, L>(1 + (e.scale * e.rest + e.scale));
  // There that is no exponential any more.
  return x < -kMostExponent<S> ? Vector<S, L>{} : y;
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Tanh(Vector<S, L> x) {
  using Bits = Vector<std::conditional_t<sizeof(S) == 4, uint32_t, uint64_t>, L>;
  const Bits sign = BitCast<Bits>(Fill<L>(S(-0.0)));
  // From e^-2|x| - 1, without loss where x is small.
  const Vector<S, L> negative = BitCast<Vector<S, L>>(BitCast<Bits>(x) | sign);
  const Exponential<S, L> e = ExponentialOf<L>(AtLeast<S, L>(2 * negative, -kMostExponent<S>));
  const Vector<S, L> minus = e.scale * e.rest + (e.scale - 1);
  const Vector<S, L> y = minus * Reciprocal<S, L>(2 + minus);
  return BitCast<Vector<S, L>>((BitCast<Bits>(y) & ~sign) | (BitCast<Bits>(x) & sign));
}

// The same numbers, behind a barrier: the compiler may not fuse a product with an addition that
// follows it. The product is rounded first, as TensorFlow's is.
template <typename V>
[[gnu::always_inline]] inline V Rounded(V value) {
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#endif
  return value;
}

// The value that kRelu and kHardSigmoid limit.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Unlimited(const Activation<S>& activation,
                                                     Vector<S, L> x) {
  if (activation.function == ActivationFunction::kRelu) return x;
  return Rounded(activation.alpha * x) + activation.beta;
}

template <typename S, int L>
inline Vector<S, L> Activate(const Activation<S>& activation, Vector<S, L> x) {
  const S alpha = activation.alpha, beta = activation.beta;
  const Vector<S, L> zero{};
  switch (activation.function) {
    case ActivationFunction::kSigmoid:
      return Sigmoid<S, L>(x);
    case ActivationFunction::kTanh:
      return Tanh<S, L>(x);
    case ActivationFunction::kRelu:
      return x < 0 ? zero : x;
    case ActivationFunction::kAffine:
      return alpha * x + beta;
    case ActivationFunction::kHardSigmoid: {
      const Vector<S, L> y = Unlimited<S, L>(activation, x);
      return y < 0 ? zero : y > 1 ? zero + 1 : y;
    }
    case ActivationFunction::kLeakyRelu:
      return x < 0 ? alpha * x : x;
    case ActivationFunction::kScaledTanh:
      return alpha * Tanh<S, L>(beta * x);
  }
  return x;
}

// The gradient by the argument of an activation, from y, its result, and from the gradient by that.
// The argument x is read only where a limit passes something.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Backward(const Activation<S>& activation, Vector<S, L> x,
                                                    Vector<S, L> y, Vector<S, L> gradient) {
  const S alpha = activation.alpha, beta = activation.beta;
  const Vector<S, L> zero{};
  switch (activation.function) {
    case ActivationFunction::kSigmoid:
      return gradient * (y * (1 - y));
    case ActivationFunction::kTanh:
      return gradient * (1 - y * y);
    case ActivationFunction::kAffine:
      return gradient * alpha;
    case ActivationFunction::kLeakyRelu:
      return gradient * (y > 0 ? zero + 1 : zero + alpha);
    case ActivationFunction::kScaledTanh: {
      const Vector<S, L> t = y / alpha;
      return gradient * (alpha * beta * (1 - t * t));
    }
    case ActivationFunction::kRelu:
    case ActivationFunction::kHardSigmoid:
      break;
  }
  const bool is_relu = activation.function == ActivationFunction::kRelu;
  const int limits = activation.limits;
  const Vector<S, L> u = limits & kPasses ? Unlimited<S, L>(activation, x) : y;
  const auto none = zero != zero;
  const auto is_low = limits & kPassesLow ? u < 0 : u <= 0;
  const auto is_high = is_relu ? none : limits & kPassesHigh ? u > 1 : u >= 1;
  const auto is_nan = limits & kPassesNan ? none : u != u;
  const auto is_zero = (limits & kZeroLow ? is_low : none) | (limits & kZeroHigh ? is_high : none) |
                       (limits & kZeroNan ? is_nan : none);
  const Vector<S, L> slope = is_low | is_high | is_nan ? zero : zero + (is_relu ? S(1) : alpha);
  return is_zero ? zero : gradient * slope;
}
