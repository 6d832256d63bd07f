// The kernels of instructions, for one instruction set: see each_instruction_set-inl.h.

#include "cc/compute/program/functions-inl.h"

template <typename T>
constexpr bool kIsReal = std::is_floating_point_v<T>;

// Signed integers that wrap around.
template <typename T>
using Wrapping =
    std::conditional_t<kIsReal<T>, T,
                       std::make_unsigned_t<std::conditional_t<kIsReal<T>, int32_t, T>>>;
template <typename T, int L>
[[gnu::always_inline]] inline Vector<Wrapping<T>, L> Wrap(Vector<T, L> x) {
  return BitCast<Vector<Wrapping<T>, L>>(x);
}
template <typename T, int L>
[[gnu::always_inline]] inline Vector<T, L> Unwrap(Vector<Wrapping<T>, L> x) {
  return BitCast<Vector<T, L>>(x);
}

// A comparison's result as bools. GCC 12 converts vectors of few bytes lane by lane.
template <int L, typename Mask>
[[gnu::always_inline]] inline Vector<uint8_t, L> ToBools(Mask mask) {
  if constexpr (L == 1) {
    return mask ? 1 : 0;
#if TF_TI_VECTOR_BYTES > 16
  } else if constexpr (sizeof(mask) == 32 && (L == 4 || L == 8)) {
    const __m128i low = _mm256_castsi256_si128(BitCast<__m256i>(mask));
    const __m128i high = _mm256_extracti128_si256(BitCast<__m256i>(mask), 1);
    const __m128i words = _mm_packs_epi32(low, high);
    // Of 8 bytes each lane is two words.
    const __m128i bytes = _mm_packs_epi16(words, words);
    if constexpr (L == 8) {
      return BitCast<Vector<uint8_t, L>>(_mm_cvtsi128_si64(bytes)) & 1;
    } else {
      return BitCast<Vector<uint8_t, L>>(_mm_cvtsi128_si32(_mm_packs_epi16(bytes, bytes))) & 1;
    }
  } else if constexpr (sizeof(mask) == 16 && L == 4) {
    const __m128i words = _mm_packs_epi32(BitCast<__m128i>(mask), BitCast<__m128i>(mask));
    return BitCast<Vector<uint8_t, L>>(_mm_cvtsi128_si32(_mm_packs_epi16(words, words))) & 1;
#endif
  } else {
    return __builtin_convertvector(mask, Vector<uint8_t, L>) & 1;
  }
}

// Bools as integers of a type.
template <typename To, int L>
[[gnu::always_inline]] inline Vector<To, L> FromBools(Vector<uint8_t, L> bools) {
#if TF_TI_VECTOR_BYTES > 16
  if constexpr (sizeof(To) == 4 && L == 8) {
    const __m128i bytes = _mm_cvtsi64_si128(BitCast<int64_t>(bools));
    return BitCast<Vector<To, L>>(_mm256_cvtepu8_epi32(bytes));
  } else if constexpr (L == 4) {
    const __m128i bytes = _mm_cvtsi32_si128(BitCast<int32_t>(bools));
    if constexpr (sizeof(To) == 4) return BitCast<Vector<To, L>>(_mm_cvtepu8_epi32(bytes));
    if constexpr (sizeof(To) == 8) return BitCast<Vector<To, L>>(_mm256_cvtepu8_epi64(bytes));
  }
#endif
  return Convert<To, L, uint8_t>(bools);
}

// The 16 bits of numbers of half precision, and floats. Two are the lower half of four.
template <typename H, int L>
[[gnu::always_inline]] inline Vector<float, L> Widened(Vector<uint16_t, L> bits) {
  if constexpr (L == 2) {
    Vector<uint16_t, 4> some{};
    __builtin_memcpy(&some, &bits, sizeof(bits));
    const Vector<float, 4> wide = WidenBits<4>(H(), some);
    Vector<float, 2> value;
    __builtin_memcpy(&value, &wide, sizeof(value));
    return value;
  } else {
    return WidenBits<L>(H(), bits);
  }
}
template <typename H, int L>
[[gnu::always_inline]] inline Vector<uint16_t, L> Narrowed(Vector<float, L> value) {
  if constexpr (L == 2) {
    Vector<float, 4> wide{};
    __builtin_memcpy(&wide, &value, sizeof(value));
    const Vector<uint16_t, 4> some = RoundBits<4>(H(), wide);
    Vector<uint16_t, 2> bits;
    __builtin_memcpy(&bits, &some, sizeof(bits));
    return bits;
  } else {
    return RoundBits<L>(H(), value);
  }
}
// A float, rounded.
template <typename H, int L>
[[gnu::always_inline]] inline Vector<float, L> RoundedTo(Vector<float, L> value) {
  if constexpr (std::is_same_v<H, BFloat16>) {
    using Bits = Vector<uint32_t, L>;
    const Bits bits = BitCast<Bits>(value);
    const Bits even = bits + 0x7fff + ((bits >> 16) & 1);
    const Bits nan = bits | 0x400000;
    return BitCast<Vector<float, L>>(((bits & 0x7fffffff) > 0x7f800000 ? nan : even) & 0xffff0000);
  } else {
    return Widened<H, L>(Narrowed<H, L>(value));
  }
}

// x * y, or 0 where y is 0: a slope x may be infinite where no gradient y arrives.
template <typename T, int L>
[[gnu::always_inline]] inline Vector<T, L> MulNoNan(Vector<T, L> x, Vector<T, L> y) {
  const Vector<T, L> zero{};
  return y == 0 ? zero : x * y;
}

// The operations of one type of operands; kHas says if a type has it.
#define TF_TI_UNARY(name, has, ...) TF_TI_UNARY_OF(name, false, has, __VA_ARGS__)
#define TF_TI_FUNCTION(name, ...) TF_TI_UNARY_OF(name, true, TF_TI_IS_REAL, __VA_ARGS__)
#define TF_TI_UNARY_OF(name, is_function, has, ...)         \
  struct name {                                             \
    static constexpr bool kIsFunction = is_function;        \
    template <typename T>                                   \
    static constexpr bool kHas = has;                       \
    template <typename T, int L>                            \
    [[gnu::always_inline]] static auto Of(Vector<T, L> x) { \
      __VA_ARGS__                                           \
    }                                                       \
  };
#define TF_TI_BINARY(name, has, ...)                                        \
  struct name {                                                             \
    template <typename T>                                                   \
    static constexpr bool kHas = has;                                       \
    template <typename T, int L>                                            \
    [[gnu::always_inline]] static auto Of(Vector<T, L> x, Vector<T, L> y) { \
      __VA_ARGS__                                                           \
    }                                                                       \
  };
#define TF_TI_IS_NUMBER (!std::is_same_v<T, uint8_t>)
#define TF_TI_IS_REAL kIsReal<T>
#define TF_TI_IS_FLOAT (std::is_same_v<T, float>)
#define TF_TI_IS_BOOL (!TF_TI_IS_NUMBER)

namespace operations {

TF_TI_UNARY(Copy, true, return x;)
TF_TI_UNARY(Neg, TF_TI_IS_NUMBER, return Unwrap<T, L>(-Wrap<T, L>(x));)
TF_TI_UNARY(
    Abs, TF_TI_IS_NUMBER,
    if constexpr (kIsReal<T>) {
      using Bits = Vector<typename FloatFormat<T>::Bits, L>;
      return BitCast<Vector<T, L>>(BitCast<Bits>(x) << 1 >> 1);
    } else { return x < 0 ? Unwrap<T, L>(-Wrap<T, L>(x)) : x; })
// The sign of -0 is 0, as in TensorFlow's kernels.
TF_TI_UNARY(Sign, TF_TI_IS_NUMBER, const Vector<T, L> zero{};
            const Vector<T, L> one = Fill<L>(T(1)); const Vector<T, L> rest = x == 0 ? zero : x;
            return x > 0   ? one
                   : x < 0 ? zero - one
                           : rest;)
TF_TI_UNARY(Square, TF_TI_IS_NUMBER, const auto wrapped = Wrap<T, L>(x);
            return Unwrap<T, L>(wrapped * wrapped);)
TF_TI_UNARY(Sqrt, TF_TI_IS_REAL, return SquareRoot<T, L>(x);)
TF_TI_UNARY(Rsqrt, TF_TI_IS_REAL, return 1 / SquareRoot<T, L>(x);)
TF_TI_UNARY(Reciprocal, TF_TI_IS_REAL, return 1 / x;)
TF_TI_FUNCTION(Exp, return ExpOf<T, L>(x);)
TF_TI_FUNCTION(Expm1, return Expm1Of<T, L>(x);)
TF_TI_FUNCTION(Log, return LogOf<T, L>(x);)
TF_TI_FUNCTION(Log1p, return Log1pOf<T, L>(x);)
TF_TI_FUNCTION(Tanh, return TanhOf<T, L>(x);)
TF_TI_FUNCTION(Sigmoid, return SigmoidOf<T, L>(x);)
TF_TI_FUNCTION(Erf, return ErfOf<L>(x);)
TF_TI_UNARY(Rint, TF_TI_IS_REAL, return Nearest<T, L>(x);)
TF_TI_UNARY(Floor, TF_TI_IS_REAL, const Vector<T, L> nearest = Nearest<T, L>(x);
            return nearest > x ? nearest - 1 : nearest;)
TF_TI_UNARY(Ceil, TF_TI_IS_REAL, const Vector<T, L> nearest = Nearest<T, L>(x);
            const Vector<T, L> y = nearest < x ? nearest + 1 : nearest;
            return WithSignOf<T, L>(y, x);)
TF_TI_UNARY(Relu, TF_TI_IS_NUMBER, const Vector<T, L> zero{}; return x <= 0 ? zero : x;)
TF_TI_UNARY(ToHalf, TF_TI_IS_FLOAT, return RoundedTo<Half, L>(x);)
TF_TI_UNARY(ToBFloat16, TF_TI_IS_FLOAT, return RoundedTo<BFloat16, L>(x);)
TF_TI_UNARY(IsNan, TF_TI_IS_REAL, return ToBools<L>(x != x);)
TF_TI_UNARY(IsInf, TF_TI_IS_REAL, const T infinity = T(__builtin_inf());
            return ToBools<L>((x == infinity) | (x == -infinity));)
TF_TI_UNARY(IsFinite, TF_TI_IS_REAL, return ToBools<L>(x - x == 0);)
TF_TI_UNARY(LogicalNot, TF_TI_IS_BOOL, return Vector<T, L>(x ^ 1);)

TF_TI_BINARY(Add, TF_TI_IS_NUMBER, return Unwrap<T, L>(Wrap<T, L>(x) + Wrap<T, L>(y));)
TF_TI_BINARY(Sub, TF_TI_IS_NUMBER, return Unwrap<T, L>(Wrap<T, L>(x) - Wrap<T, L>(y));)
TF_TI_BINARY(Mul, TF_TI_IS_NUMBER, return Unwrap<T, L>(Wrap<T, L>(x) * Wrap<T, L>(y));)
TF_TI_BINARY(Div, TF_TI_IS_REAL, return x / y;)
// NaN where one of both is.
TF_TI_BINARY(Maximum, TF_TI_IS_NUMBER, const auto most = ExtremeOf<true, T, L>(x, y);
             return x != x ? x : most;)
TF_TI_BINARY(Minimum, TF_TI_IS_NUMBER, const auto least = ExtremeOf<false, T, L>(x, y);
             return x != x ? x : least;)
// The bound y, where x is beyond it: a NaN bounds nothing.
TF_TI_BINARY(AtLeast, TF_TI_IS_NUMBER, return (ExtremeOf<true, T, L>(y, x));)
TF_TI_BINARY(AtMost, TF_TI_IS_NUMBER, return (ExtremeOf<false, T, L>(y, x));)
TF_TI_BINARY(SquaredDifference, TF_TI_IS_NUMBER,
             const auto difference = Wrap<T, L>(x) - Wrap<T, L>(y);
             return Unwrap<T, L>(difference * difference);)
TF_TI_BINARY(Equal, true, return ToBools<L>(x == y);)
TF_TI_BINARY(NotEqual, true, return ToBools<L>(x != y);)
TF_TI_BINARY(Less, TF_TI_IS_NUMBER, return ToBools<L>(x < y);)
TF_TI_BINARY(LessEqual, TF_TI_IS_NUMBER, return ToBools<L>(x <= y);)
TF_TI_BINARY(Greater, TF_TI_IS_NUMBER, return ToBools<L>(x > y);)
TF_TI_BINARY(GreaterEqual, TF_TI_IS_NUMBER, return ToBools<L>(x >= y);)
TF_TI_BINARY(LogicalAnd, TF_TI_IS_BOOL, return Vector<T, L>(x & y);)
TF_TI_BINARY(LogicalOr, TF_TI_IS_BOOL, return Vector<T, L>(x | y);)
// Gradients: of the result x, times y. TensorFlow's kernels compute whole vectors in this order.
TF_TI_BINARY(SigmoidGrad, TF_TI_IS_REAL, return y * (x * (1 - x));)
TF_TI_BINARY(TanhGrad, TF_TI_IS_REAL, return y * (1 - x * x);)
TF_TI_BINARY(SqrtGrad, TF_TI_IS_REAL, return (MulNoNan<T, L>(T(0.5) / x, y));)
TF_TI_BINARY(RsqrtGrad, TF_TI_IS_REAL,
             return (MulNoNan<T, L>(T(-0.5) * (x * x), MulNoNan<T, L>(x, y)));)
TF_TI_BINARY(ReciprocalGrad, TF_TI_IS_REAL, return (MulNoNan<T, L>(-(x * x), y));)
// Of x, y being what ReLU got or gave.
TF_TI_BINARY(ReluGrad, TF_TI_IS_NUMBER, const Vector<T, L> zero{}; const auto one = Fill<L>(T(1));
             const Vector<T, L> factor = y > 0 ? one : zero; return x * factor;)

}  // namespace operations

// As many lanes as elements of the wider of two types fit into a vector.
template <typename A, typename B = A>
constexpr int kLanes =
    kVectorBytes / static_cast<int>(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));

// L elements from position i on, or one number in all lanes.
template <bool is_one, typename T, int L>
[[gnu::always_inline]] inline Vector<T, L> Operand(const char* at, int64_t i) {
  if constexpr (is_one) {
    T value;
    __builtin_memcpy(&value, at, sizeof(value));
    return Fill<L>(value);
  } else {
    Vector<T, L> values;
    __builtin_memcpy(&values, at + i * sizeof(T), sizeof(values));
    return values;
  }
}

template <typename T, typename V>
[[gnu::always_inline]] inline void Put(V value, char* at, int64_t i) {
  __builtin_memcpy(at + i * sizeof(T), &value, sizeof(value));
}

// Calls row(pointers) for the innermost loop of all the others.
template <int operands, typename Row>
[[gnu::always_inline]] inline void ForRows(const Instruction& o, const Row& row) {
  char* at[operands];
  for (int p = 0; p < operands; ++p) at[p] = o.at[p];
  int64_t i = 0, j = 0;
  for (int64_t left = o.num_rows;;) {
    row(at);
    if (--left == 0) return;
    for (int p = 0; p < operands; ++p) at[p] += o.strides[p][1];
    if (++i < o.sizes[1]) continue;
    // The next turn of an outer loop, from where this one began.
    const bool is_outermost = ++j == o.sizes[2];
    for (int p = 0; p < operands; ++p) {
      at[p] += o.strides[p][2] - i * o.strides[p][1];
      if (is_outermost) at[p] += o.strides[p][3] - j * o.strides[p][2];
    }
    i = 0;
    if (is_outermost) j = 0;
  }
}

// Calls step.template Of<L>(i) for the elements from i to n: ever fewer lanes.
template <int L, typename Step>
[[gnu::always_inline]] inline void ForTail(int64_t i, int64_t n, const Step& step) {
  if constexpr (L >= 1) {
    if (n & L) {
      step.template Of<L>(i);
      i += L;
    }
    ForTail<L / 2>(i, n, step);
  }
}
// The same for n elements: whole vectors, the last of which may overlap the one before.
template <int L, typename Step>
[[gnu::always_inline]] inline void ForLanes(int64_t n, const Step& step) {
  if (n < L) return ForTail<L / 2>(0, n, step);
  for (int64_t i = 0; i < n - L; i += L) step.template Of<L>(i);
  step.template Of<L>(n - L);
}

// Copies the lowest n of L elements.
template <typename T>
struct CopyStep {
  const char* from;
  char* to;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    __builtin_memcpy(to + i * sizeof(T), from + i * sizeof(T), L * sizeof(T));
  }
};
template <typename T, int L>
[[gnu::always_inline]] inline void CopySome(const char* from, char* to, int64_t n) {
  ForTail<L / 2>(0, n, CopyStep<T>{from, to});
}

// Frequent operations have kernels for a few vectors too: tiny bodies consist of them.
template <typename F, typename... Others>
constexpr bool kIsOneOf = (std::is_same_v<F, Others> || ...);
template <typename F, typename A>
constexpr bool kAreFrequent =
    std::is_same_v<A, float> &&
    kIsOneOf<F, operations::Copy, operations::Neg, operations::Add, operations::Sub,
             operations::Mul, operations::Div, operations::Maximum, operations::Minimum,
             operations::ToHalf, operations::ToBFloat16>;

template <typename F, typename To, typename A, bool one>
struct UnaryStep {
  static constexpr int kOperands = 2, kMostLanes = kLanes<A, To>;
  static constexpr bool kIsFrequent = kAreFrequent<F, A>;
  char* const* at;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    Put<To>(F::template Of<A, L>(Operand<one, A, L>(at[1], i)), at[0], i);
  }
};

// Numbers of half precision as inputs have them, and as outputs do.
template <typename H>
struct WideningStep {
  static constexpr int kOperands = 2, kMostLanes = kLanes<float>;
  static constexpr bool kIsFrequent = true;
  char* const* at;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    Put<float>(Widened<H, L>(Operand<false, uint16_t, L>(at[1], i)), at[0], i);
  }
};
template <typename H>
struct NarrowingStep {
  static constexpr int kOperands = 2, kMostLanes = kLanes<float>;
  static constexpr bool kIsFrequent = true;
  char* const* at;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    Put<uint16_t>(Narrowed<H, L>(Operand<false, float, L>(at[1], i)), at[0], i);
  }
};

// A function of many instructions, which are there once: the last elements are padded.
template <typename F, typename A>
void RunFunction(const Instruction& o) {
  constexpr int L = kLanes<A>;
  const int64_t n = o.sizes[0], whole = n / L * L;
  ForRows<2>(o, [&](char* const* at) __attribute__((always_inline)) {
    Vector<A, L> padded{};
    char* const rest = reinterpret_cast<char*>(&padded);
    if (whole < n) CopySome<A, L>(at[1] + whole * sizeof(A), rest, n - whole);
    for (int64_t i = 0; i < n; i += L) {
      const char* const from = i < whole ? at[1] + i * sizeof(A) : rest;
      char* const to = i < whole ? at[0] + i * sizeof(A) : rest;
      Put<A>(F::template Of<A, L>(Operand<false, A, L>(from, 0)), to, 0);
    }
    if (whole < n) CopySome<A, L>(rest, at[0] + whole * sizeof(A), n - whole);
  });
}

template <typename F, typename To, typename A, bool one, bool other>
struct BinaryStep {
  static constexpr int kOperands = 3, kMostLanes = kLanes<A, To>;
  static constexpr bool kIsFrequent = kAreFrequent<F, A>;
  char* const* at;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    Put<To>(F::template Of<A, L>(Operand<one, A, L>(at[1], i), Operand<other, A, L>(at[2], i)),
            at[0], i);
  }
};
// The signed integer of a number's size.
template <typename T>
using MaskOf = std::conditional_t<sizeof(T) == 1, int8_t,
                                  std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>;

template <typename A, int L>
[[gnu::always_inline]] inline Vector<A, L> Selected(Vector<uint8_t, L> condition, Vector<A, L> x,
                                                    Vector<A, L> y) {
  if constexpr (L == 1) {
    return condition ? x : y;
  } else {
    return FromBools<MaskOf<A>, L>(condition) != 0 ? x : y;
  }
}

template <typename A, bool one, bool other>
struct SelectStep {
  static constexpr int kOperands = 4, kMostLanes = kLanes<A>;
  static constexpr bool kIsFrequent = std::is_same_v<A, float>;
  char* const* at;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    Put<A>(Selected<A, L>(Operand<false, uint8_t, L>(at[1], i), Operand<one, A, L>(at[2], i),
                          Operand<other, A, L>(at[3], i)),
           at[0], i);
  }
};
// One row of a few vectors of one width.
template <typename Step, int L>
void RunFew(const Instruction& o) {
  char* at[Step::kOperands];
  for (int p = 0; p < Step::kOperands; ++p) at[p] = o.at[p];
  const int64_t n = o.sizes[0];
  const Step step{at};
  for (int64_t i = 0;;) {
    step.template Of<L>(i);
    i += L;
    if (i >= n) return;
  }
}
template <typename Step>
void RunEachRow(const Instruction& o) {
  const int64_t n = o.sizes[0];
  ForRows<Step::kOperands>(o, [&](char* const* at) __attribute__((always_inline)) {
    ForLanes<Step::kMostLanes>(n, Step{at});
  });
}

// Runs several short rows as one row. Returns false, and runs nothing, unless each operand has its
// rows side by side, or has one row for all.
inline bool RunJoinedRows(const Instruction& o, int num_operands, Kernel run) {
  constexpr int64_t kElements = 64;  // of a joined row, at most
  constexpr int64_t kLeast = 4;      // joined rows that are worth it
  const int64_t n = o.sizes[0], joined = kElements / n;
  if (o.sizes[1] != o.num_rows || joined < 2 || o.num_rows < kLeast * joined) return false;
  for (int p = 0; p < num_operands; ++p) {
    const bool has_one = p > 0 && o.strides[p][1] == 0;
    const bool is_joined = o.strides[p][1] == n * o.strides[p][0];
    if (o.strides[p][0] <= 0 || !(has_one || is_joined)) return false;
  }
  Instruction rows = o, rest = o;
  rest.num_rows = rest.sizes[1] = o.num_rows % joined;
  rows.num_rows = rows.sizes[1] = o.num_rows / joined;
  rows.sizes[0] = joined * n;
  char repeated[4][kElements * sizeof(int64_t)];
  for (int p = 0; p < num_operands; ++p) {
    rows.strides[p][1] *= joined;
    rest.at[p] += rows.num_rows * rows.strides[p][1];
    if (o.strides[p][1] != 0) continue;
    const int64_t bytes = n * o.strides[p][0];
    for (int64_t k = 0; k < joined; ++k) __builtin_memcpy(repeated[p] + k * bytes, o.at[p], bytes);
    rows.at[p] = repeated[p];
  }
  run(rows);
  if (rest.num_rows > 0) run(rest);
  return true;
}

template <typename Step>
void RunRows(const Instruction& o) {
  const bool are_short = o.sizes[0] < Step::kMostLanes && o.num_rows > 1;
  if (are_short && RunJoinedRows(o, Step::kOperands, RunEachRow<Step>)) return;
  RunEachRow<Step>(o);
}

// A conversion as C does it, but where C leaves it open: what the processor does, the lowest
// integer.
template <typename To, typename A>
struct Cast {
  template <typename, int L>
  [[gnu::always_inline]] static Vector<To, L> Of(Vector<A, L> x) {
    if constexpr (std::is_same_v<To, uint8_t>) {
      return ToBools<L>(x != 0);
    } else if constexpr (kIsReal<A> && !kIsReal<To>) {
      return Truncated<To, A, L>(x);
    } else if constexpr (std::is_same_v<A, uint8_t>) {
      return Convert<To, L, MaskOf<To>>(FromBools<MaskOf<To>, L>(x));
    } else {
      return Convert<To, L, A>(x);
    }
  }

  template <typename, typename, int L>
  [[gnu::always_inline]] static Vector<To, L> Truncated(Vector<A, L> x) {
    constexpr To kLowest = static_cast<To>(uint64_t{1} << (8 * sizeof(To) - 1));
    const A bound = -static_cast<A>(kLowest);
    const auto fits = (x < bound) & (x >= -bound);
    if constexpr (L == 1) {
      return fits ? static_cast<To>(x) : kLowest;
    } else {
      const Vector<A, L> zero{};
      const Vector<To, L> y = Convert<To, L, A>(fits ? x : zero);
      using Mask = Vector<MaskOf<To>, L>;
      return __builtin_convertvector(fits, Mask) != 0 ? y : Fill<L>(kLowest);
    }
  }
};

template <typename A>
void CopyStrided(const Instruction& o) {
  ForRows<2>(o, [&](char* const* at) __attribute__((always_inline)) {
    for (int64_t i = 0; i < o.sizes[0]; ++i) {
      Put<A>(Operand<true, A, 1>(at[1] + i * o.strides[1][0], 0), at[0] + i * o.strides[0][0], 0);
    }
  });
}

// Reductions. A neutral element, how two are joined, and lanes of one vector at the end.
struct SumOfAll {
  template <typename T>
  static constexpr bool kHas = TF_TI_IS_NUMBER;
  template <typename T>
  static constexpr T kNeutral = 0;
  using Join = operations::Add;
};
struct ProductOfAll {
  template <typename T>
  static constexpr bool kHas = TF_TI_IS_NUMBER;
  template <typename T>
  static constexpr T kNeutral = 1;
  using Join = operations::Mul;
};
template <typename T, bool is_most>
constexpr T Extreme() {
  if constexpr (kIsReal<T>) {
    return is_most ? T(__builtin_inf()) : -T(__builtin_inf());
  } else {
    constexpr T kLowest = static_cast<T>(uint64_t{1} << (8 * sizeof(T) - 1));
    return is_most ? static_cast<T>(~kLowest) : kLowest;
  }
}
struct MaxOfAll {
  template <typename T>
  static constexpr bool kHas = TF_TI_IS_NUMBER;
  template <typename T>
  static constexpr T kNeutral = Extreme<T, false>();
  using Join = operations::Maximum;
};
struct MinOfAll {
  template <typename T>
  static constexpr bool kHas = TF_TI_IS_NUMBER;
  template <typename T>
  static constexpr T kNeutral = Extreme<T, true>();
  using Join = operations::Minimum;
};
// The same, where the first of equal numbers is the result. Zeros may differ in their signs.
template <bool is_most>
struct FirstExtreme {
  using LastExtreme = std::conditional_t<is_most, MaxOfAll, MinOfAll>;
  template <typename T>
  static constexpr T kNeutral = LastExtreme::template kNeutral<T>;
  struct Join {
    template <typename T, int L>
    [[gnu::always_inline]] static auto Of(Vector<T, L> x, Vector<T, L> y) {
      return LastExtreme::Join::template Of<T, L>(y, x);
    }
  };
};
struct AllOfAll {
  template <typename T>
  static constexpr bool kHas = TF_TI_IS_BOOL;
  template <typename T>
  static constexpr T kNeutral = 1;
  using Join = operations::LogicalAnd;
};
struct AnyOfAll {
  template <typename T>
  static constexpr bool kHas = TF_TI_IS_BOOL;
  template <typename T>
  static constexpr T kNeutral = 0;
  using Join = operations::LogicalOr;
};

// Calls block.template Of<vectors, L>(i) for n columns: two vectors at once hide the time that each
// takes.
template <typename Block>
struct OneVector {
  const Block& block;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    block.template Of<1, L>(i);
  }
};
template <int L, typename Block>
[[gnu::always_inline]] inline void ForColumns(int64_t n, const Block& block) {
  int64_t i = 0;
  for (; i + 2 * L <= n; i += 2 * L) block.template Of<2, L>(i);
  ForTail<L>(i, n, OneVector<Block>{block});
}

// Numbers side by side, each reduced with those in the other rows.
template <typename R, typename T>
struct ColumnsBlock {
  const Instruction& o;
  char* const* at;
  template <int vectors, int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    Vector<T, L> values[vectors];
    for (auto& value : values) value = Fill<L>(R::template kNeutral<T>);
    const char* row = at[1];
    for (int64_t r = 0; r < o.sizes[1]; ++r, row += o.strides[1][1]) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        values[v] = R::Join::template Of<T, L>(values[v], Operand<false, T, L>(row, i + v * L));
      }
    }
    for (int v = 0; v < vectors; ++v) Put<T>(values[v], at[0], i + v * L);
  }
};
template <typename R, typename T>
void ReduceColumns(const Instruction& o) {
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    char* const at[] = {o.at[0] + k * o.strides[0][2], o.at[1] + k * o.strides[1][2]};
    ForColumns<kLanes<T>>(o.sizes[0], ColumnsBlock<R, T>{o, at});
  }
}

// A row to one number: lane by lane, then ever fewer lanes. The order is the same whoever reduces.
template <typename R, typename T, int L>
[[gnu::always_inline]] inline T JoinLanes(Vector<T, L> value) {
  if constexpr (L == 1) {
    return value;
  } else {
    constexpr int kHalf = L / 2;
    Vector<T, kHalf> halves[2];
    __builtin_memcpy(halves, &value, sizeof(value));
    return JoinLanes<R, T, kHalf>(R::Join::template Of<T, kHalf>(halves[0], halves[1]));
  }
}
template <typename R, typename T>
struct RowTailStep {
  const char* at;
  T* value;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    const T joined = JoinLanes<R, T, L>(Operand<false, T, L>(at, i));
    *value = R::Join::template Of<T, 1>(*value, joined);
  }
};
template <typename R, typename T>
void ReduceRows(const Instruction& o) {
  constexpr int L = kLanes<T>;
  const int64_t n = o.sizes[1];
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    const char* const at = o.at[1] + k * o.strides[1][2];
    T value = R::template kNeutral<T>;
    int64_t i = 0;
    if (n >= L) {
      Vector<T, L> sums[2] = {Operand<false, T, L>(at, 0), Fill<L>(R::template kNeutral<T>)};
      for (i = L; i + 2 * L <= n; i += 2 * L) {
        sums[0] = R::Join::template Of<T, L>(sums[0], Operand<false, T, L>(at, i));
        sums[1] = R::Join::template Of<T, L>(sums[1], Operand<false, T, L>(at, i + L));
      }
      if (i + L <= n) {
        sums[1] = R::Join::template Of<T, L>(sums[1], Operand<false, T, L>(at, i));
        i += L;
      }
      value = JoinLanes<R, T, L>(R::Join::template Of<T, L>(sums[0], sums[1]));
    }
    ForTail<L / 2>(i, n, RowTailStep<R, T>{at, &value});
    Put<T>(value, o.at[0] + k * o.strides[0][2], 0);
  }
}

// TensorFlow's kernels of half precision, and these, keep the first of equal numbers in each 8
// neighbouring results, and the last one in the remaining results.
constexpr int64_t kHalvesAtOnce = 8;
template <typename R>
void ReduceSomeColumns(const Instruction& o, int64_t k, int64_t begin, int64_t end) {
  const int64_t offset = begin * static_cast<int64_t>(sizeof(float));
  char* const at[] = {o.at[0] + k * o.strides[0][2] + offset,
                      o.at[1] + k * o.strides[1][2] + offset};
  ForColumns<kLanes<float>>(end - begin, ColumnsBlock<R, float>{o, at});
}
template <bool is_most>
void ReduceColumnsOfHalves(const Instruction& o) {
  using First = FirstExtreme<is_most>;
  using Last = typename First::LastExtreme;
  const int64_t size = o.sizes[0];
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    const int64_t before = -(k * size) & (kHalvesAtOnce - 1), begin = before < size ? before : size;
    const int64_t end = begin + (size - begin) / kHalvesAtOnce * kHalvesAtOnce;
    ReduceSomeColumns<Last>(o, k, 0, begin);
    ReduceSomeColumns<First>(o, k, begin, end);
    ReduceSomeColumns<Last>(o, k, end, size);
  }
}

// The zero that is the result of a row: the last zero behind the row's whole vectors, otherwise the
// first zero in the last lane that has a zero.
[[gnu::always_inline]] inline float ZeroOfRow(const char* at, int64_t n) {
  const int64_t whole = n / kHalvesAtOnce * kHalvesAtOnce;
  for (int64_t i = n - 1; i >= whole; --i) {
    if (Operand<false, float, 1>(at, i) == 0) return Operand<false, float, 1>(at, i);
  }
  for (int64_t lane = kHalvesAtOnce - 1; lane >= 0; --lane) {
    for (int64_t i = lane; i < whole; i += kHalvesAtOnce) {
      if (Operand<false, float, 1>(at, i) == 0) return Operand<false, float, 1>(at, i);
    }
  }
  return 0;
}
template <bool is_most>
void ReduceRowsOfHalves(const Instruction& o) {
  ReduceRows<typename FirstExtreme<is_most>::LastExtreme, float>(o);
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    char* const to = o.at[0] + k * o.strides[0][2];
    if (Operand<false, float, 1>(to, 0) != 0) continue;
    Put<float>(ZeroOfRow(o.at[1] + k * o.strides[1][2], o.sizes[1]), to, 0);
  }
}

// The finite number from which TensorFlow's kernels look for a larger or a smaller one.
template <typename S, bool is_max>
constexpr auto FarthestOf() {
  if constexpr (std::is_same_v<S, float>) {
    return is_max ? -__FLT_MAX__ : __FLT_MAX__;
  } else if constexpr (std::is_same_v<S, double>) {
    return is_max ? -__DBL_MAX__ : __DBL_MAX__;
  } else if constexpr (std::is_same_v<S, Half>) {
    return is_max ? -65504.0f : 65504.0f;
  } else if constexpr (std::is_same_v<S, BFloat16>) {
    return is_max ? -0x1.fep127f : 0x1.fep127f;
  } else {
    return Extreme<S, !is_max>();
  }
}

// The first of the largest or smallest numbers of type S. Only numbers beyond FarthestOf are
// chosen, so neither NaN nor infinities on its side; the place is 0 without any.
template <typename S, bool is_max>
struct First {
  using T = decltype(FarthestOf<S, is_max>());

  template <int L>
  [[gnu::always_inline]] static auto IsBetter(Vector<T, L> value, Vector<T, L> best) {
    return is_max ? value > best : value < best;
  }
  template <int L>
  [[gnu::always_inline]] static Vector<T, L> Start(Vector<T, L> value) {
    const Vector<T, L> farthest = Fill<L>(FarthestOf<S, is_max>());
    return IsBetter<L>(value, farthest) ? value : farthest;
  }
};
template <typename F, typename Index>
struct FirstBlock {
  using T = typename F::T;
  const Instruction& o;
  char* const* at;
  template <int vectors, int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    using Place = MaskOf<T>;
    const char* row = at[1];
    Vector<T, L> best[vectors];
    for (int v = 0; v < vectors; ++v) {
      best[v] = F::template Start<L>(Operand<false, T, L>(row, i + v * L));
    }
    Vector<Place, L> places[vectors] = {}, here{};
    for (int64_t r = 1; r < o.sizes[1]; ++r) {
      row += o.strides[1][1];
      here += Place(1);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        const Vector<T, L> value = Operand<false, T, L>(row, i + v * L);
        const auto is_better = F::template IsBetter<L>(value, best[v]);
        best[v] = is_better ? value : best[v];
        places[v] = is_better ? here : places[v];
      }
    }
    for (int v = 0; v < vectors; ++v) {
      Put<Index>(Convert<Index, L, Place>(places[v]), at[0], i + v * L);
    }
  }
};
template <typename F, typename Index>
void FirstOfColumns(const Instruction& o) {
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    char* const at[] = {o.at[0] + k * o.strides[0][2], o.at[1] + k * o.strides[1][2]};
    ForColumns<kLanes<typename F::T, Index>>(o.sizes[0], FirstBlock<F, Index>{o, at});
  }
}
template <typename F, typename Index>
void FirstOfRows(const Instruction& o) {
  using T = typename F::T;
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    const char* const at = o.at[1] + k * o.strides[1][2];
    T best = F::template Start<1>(Operand<false, T, 1>(at, 0));
    Index place = 0;
    for (int64_t r = 1; r < o.sizes[1]; ++r) {
      const T value = Operand<false, T, 1>(at, r);
      if (F::template IsBetter<1>(value, best)) {
        best = value;
        place = static_cast<Index>(r);
      }
    }
    Put<Index>(place, o.at[0] + k * o.strides[0][2], 0);
  }
}

// A product of matrices: some rows, and some vectors of columns. Each number is added up in the
// order of the right factor's rows, so it is the same however many are computed at once.
template <typename T, int rows, int vectors, int L>
[[gnu::always_inline]] inline void MultiplyBlock(const Instruction& o, char* const* at, int64_t i) {
  Vector<T, L> sums[rows][vectors] = {};
  const char *left = at[1], *right = at[2];
  for (int64_t k = 0; k < o.sizes[1]; ++k) {
    Vector<T, L> row[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) row[v] = Operand<false, T, L>(right, i + v * L);
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
      const Vector<T, L> x = Operand<true, T, L>(left + r * o.strides[1][2], 0);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sums[r][v] = Fused<T, L>(x, row[v], sums[r][v]);
    }
    left += o.strides[1][1];
    right += o.strides[2][1];
  }
#pragma GCC unroll 4
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) {
      Put<T>(sums[r][v], at[0] + r * o.strides[0][2], i + v * L);
    }
  }
}
template <typename T, int rows>
struct ProductStep {
  const Instruction& o;
  char* const* at;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    MultiplyBlock<T, rows, 1, L>(o, at, i);
  }
};
template <typename T, int rows>
[[gnu::always_inline]] inline void MultiplyRows(const Instruction& o, int64_t first,
                                                int64_t batch) {
  constexpr int L = kLanes<T>;
  char* at[3];
  for (int p = 0; p < 3; ++p) at[p] = o.at[p] + first * o.strides[p][2] + batch * o.strides[p][3];
  const int64_t n = o.sizes[0];
  // As many sums at once as hide the time that each takes.
  constexpr int kVectors = rows == 1 ? 4 : 2;
  int64_t i = 0;
  for (; i + kVectors * L <= n; i += kVectors * L) MultiplyBlock<T, rows, kVectors, L>(o, at, i);
  for (; i + L <= n; i += L) MultiplyBlock<T, rows, 1, L>(o, at, i);
  ForTail<L / 2>(i, n, ProductStep<T, rows>{o, at});
}
template <typename T>
void Multiply(const Instruction& o) {
  for (int64_t batch = 0; batch < o.sizes[3]; ++batch) {
    int64_t r = 0;
    for (; r + 4 <= o.sizes[2]; r += 4) MultiplyRows<T, 4>(o, r, batch);
    for (; r < o.sizes[2]; ++r) MultiplyRows<T, 1>(o, r, batch);
  }
}

// The same where what is added up lies side by side in both factors: one row by some columns, lane
// by lane, then ever fewer lanes.
template <typename T, int columns>
struct DotStep {
  const char* left;
  const char* right;
  int64_t stride;
  T* sums;
  template <int L>
  [[gnu::always_inline]] void Of(int64_t i) const {
    const Vector<T, L> x = Operand<false, T, L>(left, i);
    for (int c = 0; c < columns; ++c) {
      const Vector<T, L> products = x * Operand<false, T, L>(right + c * stride, i);
      sums[c] += JoinLanes<SumOfAll, T, L>(products);
    }
  }
};
template <typename T, int columns>
[[gnu::always_inline]] inline void MultiplyDots(const Instruction& o, char* const* at,
                                                int64_t first) {
  constexpr int L = kLanes<T>;
  Vector<T, L> lanes[columns] = {};
  const int64_t stride = o.strides[2][0], depth = o.sizes[1];
  const char* const right = at[2] + first * stride;
  int64_t k = 0;
  for (; k + L <= depth; k += L) {
    const Vector<T, L> x = Operand<false, T, L>(at[1], k);
#pragma GCC unroll 4
    for (int c = 0; c < columns; ++c) {
      lanes[c] = Fused<T, L>(x, Operand<false, T, L>(right + c * stride, k), lanes[c]);
    }
  }
  T sums[columns];
  for (int c = 0; c < columns; ++c) sums[c] = JoinLanes<SumOfAll, T, L>(lanes[c]);
  ForTail<L / 2>(k, depth, DotStep<T, columns>{at[1], right, stride, sums});
  for (int c = 0; c < columns; ++c) Put<T>(sums[c], at[0] + (first + c) * o.strides[0][0], 0);
}
template <typename T>
void MultiplyByDots(const Instruction& o) {
  for (int64_t batch = 0; batch < o.sizes[3]; ++batch) {
    for (int64_t r = 0; r < o.sizes[2]; ++r) {
      char* at[3];
      for (int p = 0; p < 3; ++p) at[p] = o.at[p] + r * o.strides[p][2] + batch * o.strides[p][3];
      int64_t c = 0;
      for (; c + 4 <= o.sizes[0]; c += 4) MultiplyDots<T, 4>(o, at, c);
      for (; c < o.sizes[0]; ++c) MultiplyDots<T, 1>(o, at, c);
    }
  }
}

// Rows by their indices, as bytes.
template <typename Index>
void Gather(const Instruction& o) {
  const int64_t bytes = o.sizes[0] * o.strides[0][0], last = o.sizes[3] - 1;
  for (int64_t k = 0; k < o.sizes[2]; ++k) {
    char* to = o.at[0] + k * o.strides[0][2];
    const char* const rows = o.at[1] + k * o.strides[1][2];
    const char* index = o.at[2] + k * o.strides[2][2];
    for (int64_t i = 0; i < o.sizes[1]; ++i) {
      int64_t row = Operand<true, Index, 1>(index, 0);
      row = row < 0 ? 0 : row > last ? last : row;
      __builtin_memcpy(to, rows + row * o.strides[1][1], bytes);
      to += o.strides[0][1];
      index += o.strides[2][1];
    }
  }
}

// The tables.

// For one row of `count` elements, or for any rows where it is 0.
template <typename Step, int L = Step::kMostLanes>
Kernel StepKernel(int64_t count) {
  constexpr int kFew = 8;
  if constexpr (Step::kIsFrequent) {
    if (count > 0 && count <= kFew * L) {
      if (count % L == 0) return RunFew<Step, L>;
      if constexpr (L > 1) return StepKernel<Step, L / 2>(count);
    }
  }
  return RunRows<Step>;
}

template <typename F, typename A>
Kernel UnaryKernel(int layout, int64_t count) {
  if constexpr (!F::template kHas<A>) {
    return nullptr;
  } else if constexpr (F::kIsFunction) {
    return layout == 0 ? RunFunction<F, A> : nullptr;
  } else {
    using To = decltype(F::template Of<A, 1>(A()));
    return layout == 0 ? StepKernel<UnaryStep<F, To, A, false>>(count) : nullptr;
  }
}

template <typename A>
Kernel CopyKernel(int layout, int64_t count) {
  switch (layout) {
    case 0:
      return StepKernel<UnaryStep<operations::Copy, A, A, false>>(count);
    case 1:
      return StepKernel<UnaryStep<operations::Copy, A, A, true>>(count);
    default:
      return CopyStrided<A>;
  }
}

template <typename F, typename A>
Kernel BinaryKernel(int layout, int64_t count) {
  if constexpr (!F::template kHas<A>) {
    return nullptr;
  } else {
    using To = decltype(F::template Of<A, 1>(A(), A()));
    if (layout == 0) return StepKernel<BinaryStep<F, To, A, false, false>>(count);
    if constexpr (kIsReal<A>) {
      if (layout == 1) return StepKernel<BinaryStep<F, To, A, true, false>>(count);
      if (layout == 2) return StepKernel<BinaryStep<F, To, A, false, true>>(count);
    }
    return nullptr;
  }
}

template <typename A>
Kernel SelectKernel(int layout, int64_t count) {
  if (layout == 0) return StepKernel<SelectStep<A, false, false>>(count);
  if constexpr (kIsReal<A>) {
    if (layout == 2) return StepKernel<SelectStep<A, true, false>>(count);
    if (layout == 4) return StepKernel<SelectStep<A, false, true>>(count);
  }
  return nullptr;
}

template <typename To, typename A>
Kernel CastKernel(int layout) {
  return layout == 0 ? RunRows<UnaryStep<Cast<To, A>, To, A, false>> : nullptr;
}

template <typename H>
Kernel WideningKernel(int layout, int64_t count) {
  return layout == 0 ? StepKernel<WideningStep<H>>(count) : nullptr;
}

template <typename A>
Kernel CastKernel(ElementType to, int layout, int64_t count) {
  if constexpr (std::is_same_v<A, float>) {
    if (layout == 0 && to == ElementType::kHalfBits) return StepKernel<NarrowingStep<Half>>(count);
    if (layout == 0 && to == ElementType::kBFloat16Bits) {
      return StepKernel<NarrowingStep<BFloat16>>(count);
    }
  }
  switch (to) {
    case ElementType::kFloat:
      return CastKernel<float, A>(layout);
    case ElementType::kDouble:
      return CastKernel<double, A>(layout);
    case ElementType::kInt32:
      return CastKernel<int32_t, A>(layout);
    case ElementType::kInt64:
      return CastKernel<int64_t, A>(layout);
    case ElementType::kBool:
      return CastKernel<uint8_t, A>(layout);
    default:
      return nullptr;
  }
}

template <typename R, typename A>
Kernel ReductionKernel(int layout) {
  if constexpr (!R::template kHas<A>) {
    return nullptr;
  } else {
    return layout == 1 ? ReduceRows<R, A> : ReduceColumns<R, A>;
  }
}

// Of numbers of type S, which may be half precision.
template <typename S, bool is_max>
Kernel FirstKernel(ElementType to, int layout) {
  using F = First<S, is_max>;
  if (to == ElementType::kInt32) {
    return layout == 1 ? FirstOfRows<F, int32_t> : FirstOfColumns<F, int32_t>;
  }
  return layout == 1 ? FirstOfRows<F, int64_t> : FirstOfColumns<F, int64_t>;
}
template <typename S>
Kernel FirstKernel(Operation operation, ElementType to, int layout) {
  return operation == Operation::kArgMax ? FirstKernel<S, true>(to, layout)
                                         : FirstKernel<S, false>(to, layout);
}

template <typename H>
Kernel ExtremeKernelOfHalves(Operation operation, ElementType to, int layout) {
  const bool is_row = layout == 1;
  if (operation == Operation::kMax) {
    return is_row ? ReduceRowsOfHalves<true> : ReduceColumnsOfHalves<true>;
  }
  if (operation == Operation::kMin) {
    return is_row ? ReduceRowsOfHalves<false> : ReduceColumnsOfHalves<false>;
  }
  return FirstKernel<H>(operation, to, layout);
}

template <typename A>
Kernel KernelOf(Operation operation, ElementType to, int layout, int64_t count) {
  switch (operation) {
    case Operation::kCopy:
      return CopyKernel<A>(layout, count);
#define TF_TI_CASE(name)   \
  case Operation::k##name: \
    return UnaryKernel<operations::name, A>(layout, count);
      TF_TI_UNARY_OPERATIONS(TF_TI_CASE)
#undef TF_TI_CASE
#define TF_TI_CASE(name)   \
  case Operation::k##name: \
    return BinaryKernel<operations::name, A>(layout, count);
      TF_TI_BINARY_OPERATIONS(TF_TI_CASE)
#undef TF_TI_CASE
    case Operation::kCast:
      return CastKernel<A>(to, layout, count);
    case Operation::kSelect:
      return SelectKernel<A>(layout, count);
    case Operation::kSum:
      return ReductionKernel<SumOfAll, A>(layout);
    case Operation::kProd:
      return ReductionKernel<ProductOfAll, A>(layout);
    case Operation::kMax:
      return ReductionKernel<MaxOfAll, A>(layout);
    case Operation::kMin:
      return ReductionKernel<MinOfAll, A>(layout);
    case Operation::kAll:
      return ReductionKernel<AllOfAll, A>(layout);
    case Operation::kAny:
      return ReductionKernel<AnyOfAll, A>(layout);
    case Operation::kArgMax:
    case Operation::kArgMin:
      if constexpr (!std::is_same_v<A, uint8_t>) return FirstKernel<A>(operation, to, layout);
      break;
    case Operation::kMatMul:
      if constexpr (kIsReal<A>) return layout == 1 ? MultiplyByDots<A> : Multiply<A>;
      break;
    case Operation::kGather:
      if constexpr (std::is_same_v<A, int32_t> || std::is_same_v<A, int64_t>) return Gather<A>;
      break;
    default:
      break;
  }
  return nullptr;
}
