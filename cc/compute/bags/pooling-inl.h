// The loops behind pooling.h. No include guard: pooling.cc includes this once for each instruction
// set, inside a namespace of its own, with TF_TI_VECTOR_BYTES the size of its vector registers.
// Nothing here may call an inline function of another header: the linker keeps one copy of such a
// function, which might be the one for an instruction set that the processor lacks.

constexpr int kVectorBytes = TF_TI_VECTOR_BYTES;

// L numbers of type S; for L = 1 one plain number, and the same code serves both.
template <typename S, int L>
struct VectorOf {
  typedef S type __attribute__((vector_size(sizeof(S) * L)));
};
template <typename S>
struct VectorOf<S, 1> {
  using type = S;
};
template <typename S, int L>
using Vector = typename VectorOf<S, L>::type;

template <typename To, typename From>
inline To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

// All of one type S in a vector with L lanes, whatever L is.
template <int L, typename S>
inline Vector<S, L> Fill(S value) {
  if constexpr (L == 1) {
    return value;
  } else {
    return value - Vector<S, L>{};
  }
}

template <typename To, int L, typename From>
inline Vector<To, L> Convert(Vector<From, L> from) {
  if constexpr (L == 1) {
    return static_cast<To>(from);
  } else {
    return __builtin_convertvector(from, Vector<To, L>);
  }
}

template <int L>
inline Vector<uint32_t, L> WidenIntegers(Vector<uint16_t, L> from) {
  // What GCC 12 makes of a conversion takes six instructions.
#if TF_TI_VECTOR_BYTES == 64
  if constexpr (L == 16) {
    return BitCast<Vector<uint32_t, L>>(
        _mm512_maskz_cvtepu16_epi32(0xffff, BitCast<__m256i>(from)));
  }
#endif
#if TF_TI_VECTOR_BYTES > 16
  if constexpr (L == 8) {
    return BitCast<Vector<uint32_t, L>>(_mm256_cvtepu16_epi32(BitCast<__m128i>(from)));
  }
#endif
  return Convert<uint32_t, L, uint16_t>(from);
}

template <int L>
inline Vector<float, L> WidenBits(BFloat16, Vector<uint16_t, L> bits) {
  return BitCast<Vector<float, L>>(WidenIntegers<L>(bits) << 16);
}

template <int L>
inline Vector<uint16_t, L> RoundBits(BFloat16, Vector<float, L> value) {
  using Bits = Vector<uint32_t, L>;
  const Bits bits = BitCast<Bits>(value);
  const Bits even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits nan = (bits >> 16) | 0x40;
  return Convert<uint16_t, L, uint32_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : even);
}

#if TF_TI_VECTOR_BYTES > 16
template <int L>
inline Vector<float, L> WidenBits(Half, Vector<uint16_t, L> bits) {
  if constexpr (L == 1) {
    return _cvtsh_ss(bits);
  } else if constexpr (L == 4) {
    return BitCast<Vector<float, L>>(_mm_cvtph_ps(_mm_cvtsi64_si128(BitCast<int64_t>(bits))));
  } else if constexpr (L == 8) {
    return BitCast<Vector<float, L>>(_mm256_cvtph_ps(BitCast<__m128i>(bits)));
#if TF_TI_VECTOR_BYTES == 64
  } else {
    return BitCast<Vector<float, L>>(_mm512_maskz_cvtph_ps(0xffff, BitCast<__m256i>(bits)));
#endif
  }
}

template <int L>
inline Vector<uint16_t, L> RoundBits(Half, Vector<float, L> value) {
  constexpr int kNearest = 0;
  if constexpr (L == 1) {
    return _cvtss_sh(value, kNearest);
  } else if constexpr (L == 4) {
    return BitCast<Vector<uint16_t, L>>(
        _mm_cvtsi128_si64(_mm_cvtps_ph(BitCast<__m128>(value), kNearest)));
  } else if constexpr (L == 8) {
    return BitCast<Vector<uint16_t, L>>(_mm256_cvtps_ph(BitCast<__m256>(value), kNearest));
#if TF_TI_VECTOR_BYTES == 64
  } else {
    return BitCast<Vector<uint16_t, L>>(
        _mm512_maskz_cvtps_ph(0xffff, BitCast<__m512>(value), kNearest));
#endif
  }
}
#else
// Integers all the way: threads of TensorFlow flush subnormal floats to zero.
template <int L>
inline Vector<float, L> WidenBits(Half, Vector<uint16_t, L> bits) {
  using Bits = Vector<uint32_t, L>;
  const Bits wide = Convert<uint32_t, L, uint16_t>(bits);
  const Bits sign = (wide & 0x8000) << 16;
  const Bits exponent = wide & 0x7c00;
  const Bits shifted = (wide & 0x7fff) << 13;
  const Bits subnormal =
      BitCast<Bits>(Convert<float, L, int32_t>(BitCast<Vector<int32_t, L>>(wide & 0x3ff)) *
                    5.9604644775390625e-8f);  // 2^-24, exactly
  const Bits normal = shifted + (112u << 23);
  const Bits special = shifted + (224u << 23);
  const Bits finite = exponent == Fill<L>(0u) ? subnormal : normal;
  const Bits magnitude = exponent == Fill<L>(0x7c00u) ? special : finite;
  return BitCast<Vector<float, L>>(sign | magnitude);
}

template <int L>
inline Vector<uint16_t, L> RoundBits(Half, Vector<float, L> value) {
  using Bits = Vector<uint32_t, L>;
  const Bits bits = BitCast<Bits>(value);
  const Bits magnitude = bits & 0x7fffffff;
  const Bits sign = (bits >> 16) & 0x8000;
  // Adding 0.5 to a number below 2^-14 leaves it, rounded to halves' steps, in the lowest bits.
  const Bits subnormal = BitCast<Bits>(BitCast<Vector<float, L>>(magnitude) + 0.5f) - 0x3f000000u;
  const Bits normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
  const Bits infinite = Fill<L>(0x7c00u);
  const Bits nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const Bits finite = magnitude < Fill<L>(113u << 23) ? subnormal : normal;
  const Bits large = magnitude > Fill<L>(0x7f800000u) ? nan : infinite;
  const Bits half = magnitude < Fill<L>(0x477ff000u) ? finite : large;
  return Convert<uint16_t, L, uint32_t>(half | sign);
}
#endif

template <typename T>
constexpr bool kIsHalf = sizeof(T) == 2 && sizeof(Sum<T>) == 4;

template <typename T, int L>
inline Vector<Sum<T>, L> Load(const T* from) {
  if constexpr (kIsHalf<T>) {
    Vector<uint16_t, L> bits;
    __builtin_memcpy(&bits, from, sizeof(bits));
    return WidenBits<L>(T(), bits);
  } else {
    Vector<T, L> values;
    __builtin_memcpy(&values, from, sizeof(values));
    return Convert<Sum<T>, L, T>(values);
  }
}

template <typename T, int L>
inline void Store(Vector<Sum<T>, L> value, T* to) {
  if constexpr (kIsHalf<T>) {
    const Vector<uint16_t, L> bits = RoundBits<L>(T(), value);
    __builtin_memcpy(to, &bits, sizeof(bits));
  } else {
    const Vector<T, L> values = Convert<T, L, Sum<T>>(value);
    __builtin_memcpy(to, &values, sizeof(values));
  }
}

// Signed integers wrap around, as they do in TensorFlow.
template <int L, typename S>
inline Vector<S, L> Add(Vector<S, L> x, Vector<S, L> y) {
  if constexpr (std::is_integral_v<S>) {
    using Bits = Vector<uint64_t, L>;
    return (Vector<S, L>)((Bits)x + (Bits)y);
  } else {
    return x + y;
  }
}

template <int L, typename S>
inline Vector<S, L> MultiplyAdd(Vector<S, L> x, S weight, Vector<S, L> sum) {
  if constexpr (std::is_integral_v<S>) {
    using Bits = Vector<uint64_t, L>;
    return (Vector<S, L>)((Bits)sum + (Bits)x * static_cast<uint64_t>(weight));
  } else {
    return sum + x * weight;
  }
}

template <int L, typename S>
inline Vector<S, L> Divide(Vector<S, L> x, S divisor) {
  if (divisor == S(0)) return Vector<S, L>{};
  if constexpr (std::is_integral_v<S> && std::is_signed_v<S>) {
    if (divisor == -1)
      return (Vector<S, L>)(-(Vector<uint64_t, L>)x);  // the lowest has no opposite
  }
  return x / divisor;
}

template <typename S>
constexpr S Lowest() {
  if constexpr (std::is_integral_v<S>) {
    return std::is_signed_v<S> ? static_cast<S>(uint64_t{1} << 63) : S(0);
  } else {
    return -__builtin_inf();
  }
}

// One vector of the result, in a register.
template <typename T, Operation op, int L>
struct Column {
  Vector<Sum<T>, L> values;

  void Start() {
    if constexpr (op == kMaximum) {
      values = Fill<L>(Lowest<Sum<T>>());
    } else {
      values = Vector<Sum<T>, L>{};
    }
  }
  void Take(const T* from, Sum<T> weight) {
    const Vector<Sum<T>, L> x = Load<T, L>(from);
    if constexpr (op == kAdd) {
      values = Add<L, Sum<T>>(values, x);
    } else if constexpr (op == kMultiplyAdd) {
      values = MultiplyAdd<L, Sum<T>>(x, weight, values);
    } else {
      values = (values == values) & !(x <= values) ? x : values;  // once NaN, always NaN
    }
  }
  void DivideBy(Sum<T> divisor) { values = Divide<L, Sum<T>>(values, divisor); }
  void Write(T* to) const { Store<T, L>(values, to); }
  void WriteSum(Sum<T>* to) const { __builtin_memcpy(to, &values, sizeof(values)); }
};

// N vectors side by side. The last one lies at `last`, where the row ends, and may overlap the one
// before: some elements are then computed twice, with one and the same result.
template <typename T, Operation op, int L, int N>
struct Columns {
  Column<T, op, L> first;
  Columns<T, op, L, N - 1> others;

  void Start() {
    first.Start();
    others.Start();
  }
  void Take(const T* row, const T* last, Sum<T> weight) {
    first.Take(row, weight);
    others.Take(row + L, last, weight);
  }
  void DivideBy(Sum<T> divisor) {
    first.DivideBy(divisor);
    others.DivideBy(divisor);
  }
  void Write(T* to, T* last) const {
    first.Write(to);
    others.Write(to + L, last);
  }
  void WriteSum(Sum<T>* to, Sum<T>* last) const {
    first.WriteSum(to);
    others.WriteSum(to + L, last);
  }
};
template <typename T, Operation op, int L>
struct Columns<T, op, L, 1> {
  Column<T, op, L> first;

  void Start() { first.Start(); }
  void Take(const T*, const T* last, Sum<T> weight) { first.Take(last, weight); }
  void DivideBy(Sum<T> divisor) { first.DivideBy(divisor); }
  void Write(T*, T* last) const { first.Write(last); }
  void WriteSum(Sum<T>*, Sum<T>* last) const { first.WriteSum(last); }
};

constexpr int64_t kLineBytes = 64;
// How many ids ahead rows are prefetched. Measured, like what else is chosen about it: the second
// line of a pair comes by itself, and long rows do best in the second-level cache, as the first has
// few buffers for lines that are on their way.
constexpr int64_t kAhead = 32;
constexpr int64_t kLongRow = 4 * kLineBytes;

// Bag `bag`, N vectors from element `begin` on, of which the last ends with element `end`.
template <typename T, typename Index, Operation op, int L, int N>
inline bool PoolColumns(const PoolArgs<T, Index>& args, int64_t bag, int64_t begin, int64_t end) {
  constexpr int64_t kBytes = int64_t{L} * N * sizeof(T);
  constexpr int kLocality = kBytes > kLongRow ? 2 : 3;
  const T* const columns = args.table + begin;
  const int64_t last = end - L - begin;
  const bool straddles =
      (reinterpret_cast<uintptr_t>(columns) | (args.width * sizeof(T))) % kLineBytes != 0;
  const Index* const stop = args.ids + args.bounds[bag + 1];
  const Index* id = args.ids + args.bounds[bag];
  Columns<T, op, L, N> result{};
  if (id != stop) result.Start();
  const uint64_t num_rows = args.num_rows;
  const uint64_t row_bytes = args.width * sizeof(T);
  const uintptr_t base = reinterpret_cast<uintptr_t>(columns);
  const int64_t num_ids = args.ids_end - args.ids;
  const Index* const ahead_end = args.ids_end - (num_ids < kAhead ? num_ids : kAhead);
  const Sum<T>* weight = op == kMultiplyAdd ? args.weights + (id - args.ids) : nullptr;
  for (; id != stop; ++id) {
    const uint64_t row = static_cast<uint64_t>(static_cast<int64_t>(*id));
    if (__builtin_expect(row >= num_rows, 0)) return false;
    if (id < ahead_end) {
      // The address may be any: a prefetch never faults.
      const uint64_t next = static_cast<uint64_t>(static_cast<int64_t>(id[kAhead]));
      const char* const ahead = reinterpret_cast<const char*>(base + next * row_bytes);
      for (int64_t line = 0; line < kBytes; line += 2 * kLineBytes) {
        __builtin_prefetch(ahead + line, 0, kLocality);
      }
      if (straddles) __builtin_prefetch(ahead + (last + L) * sizeof(T) - 1, 0, kLocality);
    }
    const T* const from = reinterpret_cast<const T*>(base + row * row_bytes);
    result.Take(from, from + last, op == kMultiplyAdd ? *weight++ : Sum<T>());
  }
  if (args.divisors != nullptr) result.DivideBy(args.divisors[bag]);
  if (args.sums != nullptr) {
    Sum<T>* const to = args.sums + bag * args.width + begin;
    result.WriteSum(to, to + last);
  } else {
    T* const to = args.out + bag * args.width + begin;
    result.Write(to, to + last);
  }
  return true;
}

// Rows of at most N vectors, and of more than N - 1.
template <typename T, typename Index, Operation op, int L, int N>
bool PoolWhole(const PoolArgs<T, Index>& given) {
  const PoolArgs<T, Index> args = given;  // in registers, whatever is written
  for (int64_t bag = 0; bag < args.count; ++bag) {
    if (!PoolColumns<T, Index, op, L, N>(args, bag, 0, args.width)) return false;
  }
  return true;
}

// Rows of at least N vectors: passes over the bag's ids for N of them each. The last pass ends
// where the row ends, and may overlap the one before.
template <typename T, typename Index, Operation op, int L, int N>
bool PoolInPasses(const PoolArgs<T, Index>& given) {
  const PoolArgs<T, Index> args = given;
  constexpr int64_t kPass = int64_t{L} * N;
  for (int64_t bag = 0; bag < args.count; ++bag) {
    for (int64_t end = kPass;; end = end + kPass < args.width ? end + kPass : args.width) {
      if (!PoolColumns<T, Index, op, L, N>(args, bag, end - kPass, end)) return false;
      if (end == args.width) break;
    }
  }
  return true;
}

// For rows that fill a vector of L lanes. How many vectors are taken at once weighs speed against
// the size of the library: sums of floats are what models need, on processors of this decade.
template <typename T, typename Index, Operation op, int L>
Pool<T, Index> ChooseCount(int64_t width) {
  const int64_t count = (width + L - 1) / L;
  if (count == 1) return PoolWhole<T, Index, op, L, 1>;
  if constexpr (std::is_same_v<Sum<T>, float> && op != kMaximum && kVectorBytes > 16) {
    if (count == 2) return PoolWhole<T, Index, op, L, 2>;
    if (count == 3) return PoolWhole<T, Index, op, L, 3>;
    if (count == 4) return PoolWhole<T, Index, op, L, 4>;
    if (count == 8) return PoolWhole<T, Index, op, L, 8>;
    if (count > 8) return PoolInPasses<T, Index, op, L, 8>;
  }
  return width < 4 * L ? PoolInPasses<T, Index, op, L, 1> : PoolInPasses<T, Index, op, L, 4>;
}

// With the most lanes that a row fills.
template <typename T, typename Index, Operation op>
Pool<T, Index> ChooseOperation(int64_t width) {
  if constexpr (!IsComplex<T>::value) {
    constexpr int kLanes = kVectorBytes / sizeof(Sum<T>);
    if (width >= kLanes) return ChooseCount<T, Index, op, kLanes>(width);
    if constexpr (kLanes > 8) {
      if (width >= 8) return PoolWhole<T, Index, op, 8, 2>;
    }
    if constexpr (kLanes > 4) {
      if (width > 4) return PoolWhole<T, Index, op, 4, 2>;
      if (width == 4) return PoolWhole<T, Index, op, 4, 1>;
    }
  }
  return PoolInPasses<T, Index, op, 1, 1>;
}

template <typename T>
Sum<T> DotOf(const T* x, const T* y, int64_t size) {
  constexpr int kLanes = IsComplex<T>::value ? 1 : kVectorBytes / sizeof(Sum<T>);
  Vector<Sum<T>, kLanes> sums{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vector<Sum<T>, kLanes> u = Load<T, kLanes>(x + i), v = Load<T, kLanes>(y + i);
    sums += u * v;
  }
  Sum<T> parts[kLanes];
  __builtin_memcpy(parts, &sums, sizeof(parts));
  for (int step = kLanes / 2; step > 0; step /= 2) {
    for (int k = 0; k < step; ++k) parts[k] += parts[k + step];
  }
  for (; i < size; ++i) {
    parts[0] = MultiplyAdd<1, Sum<T>>(Load<T, 1>(x + i), Load<T, 1>(y + i), parts[0]);
  }
  return parts[0];
}

template <typename S>
inline S Negate(S value) {
  if constexpr (std::is_integral_v<S>) {
    return static_cast<S>(-static_cast<uint64_t>(value));
  } else {
    return -value;
  }
}

template <typename T>
void SubtractScaledOf(T* row, const T* values, Sum<T> scale, int64_t size) {
  constexpr int kLanes = IsComplex<T>::value ? 1 : kVectorBytes / sizeof(Sum<T>);
  const Sum<T> factor = Negate(scale);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Store<T, kLanes>(
        MultiplyAdd<kLanes, Sum<T>>(Load<T, kLanes>(values + i), factor, Load<T, kLanes>(row + i)),
        row + i);
  }
  for (; i < size; ++i) {
    Store<T, 1>(MultiplyAdd<1, Sum<T>>(Load<T, 1>(values + i), factor, Load<T, 1>(row + i)),
                row + i);
  }
}
