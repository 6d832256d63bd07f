// Functions of vectors of floats and doubles, for one instruction set: see
// each_instruction_set-inl.h. Their errors, in units in the last place, are at most 1 (Exp, Log)
// and 2.5 (the others; 4 for doubles). NaN stays; -0 and infinities give what C's functions
// give.

#include "cc/compute/vectors-inl.h"

// a > b ? a : b, and a < b ? a : b: one instruction each, which GCC does not find for vectors.
template <bool is_most, typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> ExtremeOf(Vector<S, L> a, Vector<S, L> b) {
#ifdef TF_TI_X86
#define TF_TI_EXTREME(type, V, prefix, suffix, ...)                                               \
  if constexpr (std::is_same_v<S, type> && sizeof(a) == sizeof(V)) {                              \
    const V x = BitCast<V>(a), y = BitCast<V>(b);                                                 \
    if constexpr (is_most) return BitCast<Vector<S, L>>(prefix##max_##suffix(__VA_ARGS__ x, y));  \
    if constexpr (!is_most) return BitCast<Vector<S, L>>(prefix##min_##suffix(__VA_ARGS__ x, y)); \
  }
  TF_TI_EXTREME(float, __m128, _mm_, ps, )
  TF_TI_EXTREME(double, __m128d, _mm_, pd, )
#if TF_TI_VECTOR_BYTES > 16
  TF_TI_EXTREME(float, __m256, _mm256_, ps, )
  TF_TI_EXTREME(double, __m256d, _mm256_, pd, )
#endif
#if TF_TI_VECTOR_BYTES == 64
  TF_TI_EXTREME(float, __m512, _mm512_maskz_, ps, 0xffff, )
  TF_TI_EXTREME(double, __m512d, _mm512_maskz_, pd, 0xff, )
#endif
#undef TF_TI_EXTREME
#endif
  return (is_most ? a > b : a < b) ? a : b;
}

// a * b + c, rounded once where the processor can.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Fused(Vector<S, L> a, Vector<S, L> b, Vector<S, L> c) {
#if TF_TI_VECTOR_BYTES > 16
  if constexpr (L == 1) {
    if constexpr (std::is_same_v<S, float>) {
      return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
    } else {
      return _mm_cvtsd_f64(_mm_fmadd_sd(_mm_set_sd(a), _mm_set_sd(b), _mm_set_sd(c)));
    }
  } else if constexpr (sizeof(a) == 16) {
    if constexpr (std::is_same_v<S, float>) {
      return BitCast<Vector<S, L>>(
          _mm_fmadd_ps(BitCast<__m128>(a), BitCast<__m128>(b), BitCast<__m128>(c)));
    } else {
      return BitCast<Vector<S, L>>(
          _mm_fmadd_pd(BitCast<__m128d>(a), BitCast<__m128d>(b), BitCast<__m128d>(c)));
    }
  } else if constexpr (sizeof(a) == 32) {
    if constexpr (std::is_same_v<S, float>) {
      return BitCast<Vector<S, L>>(
          _mm256_fmadd_ps(BitCast<__m256>(a), BitCast<__m256>(b), BitCast<__m256>(c)));
    } else {
      return BitCast<Vector<S, L>>(
          _mm256_fmadd_pd(BitCast<__m256d>(a), BitCast<__m256d>(b), BitCast<__m256d>(c)));
    }
#if TF_TI_VECTOR_BYTES == 64
  } else if constexpr (sizeof(a) == 64) {
    if constexpr (std::is_same_v<S, float>) {
      return BitCast<Vector<S, L>>(
          _mm512_fmadd_ps(BitCast<__m512>(a), BitCast<__m512>(b), BitCast<__m512>(c)));
    } else {
      return BitCast<Vector<S, L>>(
          _mm512_fmadd_pd(BitCast<__m512d>(a), BitCast<__m512d>(b), BitCast<__m512d>(c)));
    }
#endif
  } else {
    // Two floats, in the lower half of a register.
    const Vector<S, 2 * L> zero{};
    Vector<S, 2 * L> x = zero, y = zero, z = zero;
    __builtin_memcpy(&x, &a, sizeof(a));
    __builtin_memcpy(&y, &b, sizeof(b));
    __builtin_memcpy(&z, &c, sizeof(c));
    const Vector<S, 2 * L> wide = Fused<S, 2 * L>(x, y, z);
    Vector<S, L> result;
    __builtin_memcpy(&result, &wide, sizeof(result));
    return result;
  }
#else
  return a * b + c;
#endif
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> SquareRoot(Vector<S, L> x) {
#ifdef TF_TI_X86
  if constexpr (std::is_same_v<S, float>) {
    if constexpr (L == 1) return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
    if constexpr (L == 4) return BitCast<Vector<S, L>>(_mm_sqrt_ps(BitCast<__m128>(x)));
#if TF_TI_VECTOR_BYTES > 16
    if constexpr (L == 8) return BitCast<Vector<S, L>>(_mm256_sqrt_ps(BitCast<__m256>(x)));
#endif
#if TF_TI_VECTOR_BYTES == 64
    if constexpr (L == 16)
      return BitCast<Vector<S, L>>(_mm512_maskz_sqrt_ps(0xffff, BitCast<__m512>(x)));
#endif
  } else {
    if constexpr (L == 1) return _mm_cvtsd_f64(_mm_sqrt_pd(_mm_set_sd(x)));
    if constexpr (L == 2) return BitCast<Vector<S, L>>(_mm_sqrt_pd(BitCast<__m128d>(x)));
#if TF_TI_VECTOR_BYTES > 16
    if constexpr (L == 4) return BitCast<Vector<S, L>>(_mm256_sqrt_pd(BitCast<__m256d>(x)));
#endif
#if TF_TI_VECTOR_BYTES == 64
    if constexpr (L == 8)
      return BitCast<Vector<S, L>>(_mm512_maskz_sqrt_pd(0xff, BitCast<__m512d>(x)));
#endif
  }
  if constexpr (std::is_same_v<S, float> && L == 2) {
    Vector<S, 4> wide{};
    __builtin_memcpy(&wide, &x, sizeof(x));
    wide = SquareRoot<S, 4>(wide);
    __builtin_memcpy(&x, &wide, sizeof(x));
    return x;
  }
#else
  if constexpr (L == 1) {
    return static_cast<S>(__builtin_sqrt(x));  // of a float: rounded twice to the same
  } else {
    for (int i = 0; i < L; ++i) x[i] = SquareRoot<S, 1>(x[i]);
    return x;
  }
#endif
}

// The coefficients of a polynomial, the highest first.
template <typename S, int L, int N>
[[gnu::always_inline]] inline Vector<S, L> Polynomial(Vector<S, L> x, const S (&coefficients)[N]) {
  Vector<S, L> y = Fill<L>(coefficients[0]);
  for (int i = 1; i < N; ++i) y = Fused<S, L>(y, x, Fill<L>(coefficients[i]));
  return y;
}

template <typename S>
struct FloatFormat;
template <>
struct FloatFormat<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr Bits kBias = 127;
  static constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: integers from there on
  // Beyond these, e^x is 0 or infinite. Twice the power of 2 is that of a normal number.
  static constexpr float kLeast = -150.0f, kMost = 129.0f;
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  // (e^r - 1 - r) / r^2
  static constexpr float kExp[] = {0.00139262565f, 0.00836323745f, 0.0416665542f, 0.166665766f,
                                   0.5f};
  static constexpr float kRootHalf = 0.707106781f, kLeastNormal = 1.17549435e-38f;
};
template <>
struct FloatFormat<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr Bits kBias = 1023;
  static constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLeast = -1080.0, kMost = 1025.0;
  static constexpr double kLog2E = 1.4426950408889634;
  static constexpr double kLn2High = 0.693145751953125, kLn2Low = 1.42860682030941723212e-6;
  // 1 / (k + 2)!
  static constexpr double kExp[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
      1.0 / 5040,       1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5};
  static constexpr double kRootHalf = 0.70710678118654757, kLeastNormal = 2.2250738585072014e-308;
};

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> WithSignOf(Vector<S, L> x, Vector<S, L> of) {
  using Bits = Vector<typename FloatFormat<S>::Bits, L>;
  const Bits magnitude = BitCast<Bits>(x) << 1 >> 1;
  const Bits sign = BitCast<Bits>(of) ^ (BitCast<Bits>(of) << 1 >> 1);
  return BitCast<Vector<S, L>>(magnitude | sign);
}

// The nearest integer; of two the even one.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Nearest(Vector<S, L> x) {
  constexpr S kWhole = std::is_same_v<S, float> ? S(8388608.0) : S(4503599627370496.0);
  using Bits = Vector<typename FloatFormat<S>::Bits, L>;
  const Vector<S, L> magnitude = BitCast<Vector<S, L>>(BitCast<Bits>(x) << 1 >> 1);
  const Vector<S, L> rounded = (magnitude + kWhole) - kWhole;
  return magnitude < kWhole ? WithSignOf<S, L>(rounded, x) : x;
}

// 2^n, for integers as large as an exponent.
template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> PowerOf2(
    Vector<typename FloatFormat<S>::Bits, L> biased) {
  return BitCast<Vector<S, L>>(biased << FloatFormat<S>::kMantissa);
}

// e^x = (1 + rest) * 2^power, with the rest of a number from -ln(2)/2 to ln(2)/2.
template <typename S, int L>
struct Power {
  Vector<S, L> rest;
  Vector<typename FloatFormat<S>::Bits, L> power;
};

template <typename S, int L>
[[gnu::always_inline]] inline Power<S, L> PowerOfE(Vector<S, L> x) {
  using Format = FloatFormat<S>;
  using Bits = Vector<typename Format::Bits, L>;
  const Vector<S, L> shift = Fill<L>(Format::kShift);
  const Vector<S, L> shifted = Fused<S, L>(x, Fill<L>(Format::kLog2E), shift);
  const Vector<S, L> n = shifted - shift;
  const Vector<S, L> low = Fill<L>(-Format::kLn2Low);
  const Vector<S, L> high = Fused<S, L>(n, Fill<L>(-Format::kLn2High), x);
  const Vector<S, L> r = Fused<S, L>(n, low, high);
  const Vector<S, L> rest = Fused<S, L>(n, low, high - r);  // what r lacks
  const Vector<S, L> p = Polynomial<S, L>(r, Format::kExp);
  return {r + Fused<S, L>(p, r * r, rest), BitCast<Bits>(shifted) - BitCast<Bits>(shift)};
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Clamped(Vector<S, L> x, S least, S most) {
  x = ExtremeOf<true, S, L>(Fill<L>(least), x);
  return ExtremeOf<false, S, L>(Fill<L>(most), x);
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> ExpOf(Vector<S, L> x) {
  using Format = FloatFormat<S>;
  using Bits = Vector<typename Format::Bits, L>;
  const Power<S, L> e = PowerOfE<S, L>(Clamped<S, L>(x, Format::kLeast, Format::kMost));
  // In two factors, so that results beyond normal numbers are right.
  const Bits half = (e.power + (typename Format::Bits(4096))) / 2 - 2048;
  return (e.rest + 1) * PowerOf2<S, L>(half + Format::kBias) *
         PowerOf2<S, L>(e.power - half + Format::kBias);
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Expm1Of(Vector<S, L> x) {
  using Format = FloatFormat<S>;
  // Up to the power that is infinite, half of which is a number.
  const S most = std::is_same_v<S, float> ? S(88.8) : S(709.9);
  const Power<S, L> e = PowerOfE<S, L>(Clamped<S, L>(x, S(-50), most));
  const Vector<S, L> half = PowerOf2<S, L>(e.power + (Format::kBias - 1));
  const Vector<S, L> y = 2 * Fused<S, L>(half, e.rest, half - S(0.5));
  return x == 0 ? x : y;
}

// x = significand * 2^exponent, with the significand from the root of 1/2 to that of 2.
template <typename S, int L>
struct Parts {
  Vector<S, L> significand;
  Vector<S, L> exponent;
};

template <typename S, int L>
[[gnu::always_inline]] inline Parts<S, L> TakeApart(Vector<S, L> x) {
  using Format = FloatFormat<S>;
  using Bits = Vector<typename Format::Bits, L>;
  const auto is_small = x < Format::kLeastNormal;
  const S scale = std::is_same_v<S, float> ? S(8388608.0) : S(4503599627370496.0);
  const Vector<S, L> normal = is_small ? x * scale : x;
  const Bits bits = BitCast<Bits>(normal);
  const Bits root = BitCast<Bits>(Fill<L>(Format::kRootHalf));
  // The exponent counts from the root of 1/2.
  const Bits above = bits - root;
  using Signed = std::conditional_t<std::is_same_v<S, float>, int32_t, int64_t>;
  const Vector<Signed, L> power = BitCast<Vector<Signed, L>>(above) >> Format::kMantissa;
  const Bits significand = bits - (BitCast<Bits>(power) << Format::kMantissa);
  const Vector<S, L> exponent = Convert<S, L, Signed>(power);
  return {BitCast<Vector<S, L>>(significand),
          is_small ? exponent - S(Format::kMantissa) : exponent};
}

template <int L>
[[gnu::always_inline]] inline Vector<float, L> LogNear1(Vector<float, L> f,
                                                        Vector<float, L> exponent) {
  static constexpr float kLog[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                                   -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                                   2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  const Vector<float, L> z = f * f;
  Vector<float, L> y = Polynomial<float, L>(f, kLog) * f * z;
  y = Fused<float, L>(exponent, Fill<L>(-2.12194440e-4f), y);
  y = Fused<float, L>(z, Fill<L>(-0.5f), y);
  return Fused<float, L>(exponent, Fill<L>(0.693359375f), f + y);
}

template <int L>
[[gnu::always_inline]] inline Vector<double, L> LogNear1(Vector<double, L> f,
                                                         Vector<double, L> exponent) {
  static constexpr double kP[] = {1.01875663804580931796e-4, 4.97494994976747001425e-1,
                                  4.70579119878881725854e0,  1.44989225341610930846e1,
                                  1.79368678507819816313e1,  7.70838733755885391666e0};
  static constexpr double kQ[] = {1.0,
                                  1.12873587189167450590e1,
                                  4.52279145837532221105e1,
                                  8.29875266912776603211e1,
                                  7.11544750618563894466e1,
                                  2.31251620126765340583e1};
  const Vector<double, L> z = f * f;
  Vector<double, L> y = f * (z * Polynomial<double, L>(f, kP) / Polynomial<double, L>(f, kQ));
  y = Fused<double, L>(exponent, Fill<L>(-2.121944400546905827679e-4), y);
  y = Fused<double, L>(z, Fill<L>(-0.5), y);
  return Fused<double, L>(exponent, Fill<L>(0.693359375), f + y);
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> LogOf(Vector<S, L> x) {
  const Parts<S, L> parts = TakeApart<S, L>(x);
  const Vector<S, L> y = LogNear1<L>(parts.significand - 1, parts.exponent);
  const Vector<S, L> infinity = Fill<L>(S(__builtin_inf()));
  const Vector<S, L> special = x == 0 ? -infinity : Fill<L>(S(__builtin_nan("")));
  const Vector<S, L> result = x > 0 ? y : special;
  return x == infinity ? x : result;
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> Log1pOf(Vector<S, L> x) {
  const Vector<S, L> one = Fill<L>(S(1)), zero{};
  const Vector<S, L> sum = x + one;
  const Vector<S, L> lost = x < 1 ? x - (sum - one) : one - (sum - x);
  const Parts<S, L> parts = TakeApart<S, L>(sum);
  const auto is_near = parts.exponent == 0;
  const Vector<S, L> y = LogNear1<L>(is_near ? x : parts.significand - one, parts.exponent) +
                         (is_near ? zero : lost / sum);
  const Vector<S, L> infinity = Fill<L>(S(__builtin_inf()));
  const Vector<S, L> special = x == -1 ? -infinity : Fill<L>(S(__builtin_nan("")));
  const Vector<S, L> result = x > -1 ? y : special;
  return (x == infinity) | (x == 0) ? x : result;
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> SigmoidOf(Vector<S, L> x) {
  const Vector<S, L> one = Fill<L>(S(1));
  const Vector<S, L> e = ExpOf<S, L>(x < 0 ? x : -x);
  return (x < 0 ? e : one) / (one + e);
}

template <int L>
[[gnu::always_inline]] inline Vector<float, L> TanhNear0(Vector<float, L> x) {
  static constexpr float kTanh[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f,
                                    1.33314422036e-1f, -3.33332819422e-1f};
  const Vector<float, L> z = x * x;
  return Fused<float, L>(Polynomial<float, L>(z, kTanh) * z, x, x);
}

template <int L>
[[gnu::always_inline]] inline Vector<double, L> TanhNear0(Vector<double, L> x) {
  static constexpr double kP[] = {-9.64399179425052238628e-1, -9.92877231001918586564e1,
                                  -1.61468768441708447952e3};
  static constexpr double kQ[] = {1.0, 1.12811678491632931402e2, 2.23548839060100448583e3,
                                  4.84406305325125486048e3};
  const Vector<double, L> z = x * x;
  const Vector<double, L> ratio = Polynomial<double, L>(z, kP) / Polynomial<double, L>(z, kQ);
  return Fused<double, L>(ratio * z, x, x);
}

template <typename S, int L>
[[gnu::always_inline]] inline Vector<S, L> TanhOf(Vector<S, L> x) {
  const Vector<S, L> magnitude = x < 0 ? -x : x;
  const Vector<S, L> far = 1 - 2 / (ExpOf<S, L>(magnitude + magnitude) + 1);
  // The polynomial near 0 would make 0 of -0.
  return WithSignOf<S, L>(magnitude < S(0.625) ? TanhNear0<L>(magnitude) : far, x);
}

// Near 0 a polynomial of x^2; beyond, 1 - e^p.
template <int L>
[[gnu::always_inline]] inline Vector<float, L> ErfOf(Vector<float, L> x) {
  static constexpr float kNear[] = {-5.96761703e-4f, 4.99119423e-3f,  -2.67681349e-2f,
                                    1.12819925e-1f,  -3.76125336e-1f, 1.28379166e-1f};
  static constexpr float kFar[] = {-1.72853470e-5f, 3.83197126e-4f,  -3.88396438e-3f,
                                   2.42546219e-2f,  -1.06777877e-1f, -6.34846687e-1f,
                                   -1.28717512e-1f};
  const Vector<float, L> near = Fused<float, L>(Polynomial<float, L>(x * x, kNear), x, x);
  const Vector<float, L> magnitude = x < 0 ? -x : x;
  const Vector<float, L> p =
      Fused<float, L>(Polynomial<float, L>(magnitude, kFar), magnitude, -magnitude);
  const Vector<float, L> far = 1 - ExpOf<float, L>(p);
  return magnitude > 0.927734375f ? WithSignOf<float, L>(far, x) : near;
}

// Of the Cephes library: near 0 a ratio of polynomials of x^2; beyond, 1 - e^(-x^2) times one of x.
template <int L>
[[gnu::always_inline]] inline Vector<double, L> ErfOf(Vector<double, L> x) {
  static constexpr double kP[] = {9.60497373987051638749e0, 9.00260197203842689217e1,
                                  2.23200534594684319226e3, 7.00332514112805075473e3,
                                  5.55923013010394962768e4};
  static constexpr double kQ[] = {1.0,
                                  3.35617141647503099647e1,
                                  5.21357949780152679795e2,
                                  4.59432382970980127987e3,
                                  2.26290000613890934246e4,
                                  4.92673942608635921086e4};
  static constexpr double kFarP[] = {
      2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0,
      4.86371970985681366614e1,   1.96520832956077098242e2,  5.26445194995477358631e2,
      9.34528527171957607540e2,   1.02755188689515710272e3,  5.57535335369399327526e2};
  static constexpr double kFarQ[] = {1.0,
                                     1.32281951154744992508e1,
                                     8.67072140885989742329e1,
                                     3.54937778887819891062e2,
                                     9.75708501743205489753e2,
                                     1.82390916687909736289e3,
                                     2.24633760818710981792e3,
                                     1.65666309194161350182e3,
                                     5.57535340817727675546e2};
  const Vector<double, L> z = x * x;
  const Vector<double, L> near = x * Polynomial<double, L>(z, kP) / Polynomial<double, L>(z, kQ);
  // From 6 on all are 1.
  const Vector<double, L> magnitude = x < 0 ? -x : x;
  const Vector<double, L> bounded = Clamped<double, L>(magnitude, 0, 6);
  const Vector<double, L> ratio =
      Polynomial<double, L>(bounded, kFarP) / Polynomial<double, L>(bounded, kFarQ);
  const Vector<double, L> far = 1 - ExpOf<double, L>(-bounded * bounded) * ratio;
  return magnitude > 1 ? WithSignOf<double, L>(far, x) : near;
}
