// Vectors of numbers, as wide as the registers. No include guard, and the rules of
// each_instruction_set-inl.h.

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
  // GCC 12 makes six instructions of a conversion.
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
