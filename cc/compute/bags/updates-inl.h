// The loops behind updates.h, for one instruction set: see each_instruction_set-inl.h.

#include "cc/compute/vectors-inl.h"

template <int L, typename S>
inline Vector<S, L> SquareRoot(Vector<S, L> x) {
  if constexpr (L == 1) {
    if constexpr (sizeof(S) == 4) {
      return __builtin_sqrtf(x);
    } else {
      return __builtin_sqrt(x);
    }
#if TF_TI_VECTOR_BYTES == 64
  } else if constexpr (L == 16 && sizeof(S) == 4) {
    return BitCast<Vector<S, L>>(_mm512_maskz_sqrt_ps(0xffff, BitCast<__m512>(x)));
  } else if constexpr (L == 8 && sizeof(S) == 8) {
    return BitCast<Vector<S, L>>(_mm512_maskz_sqrt_pd(0xff, BitCast<__m512d>(x)));
#endif
#if TF_TI_VECTOR_BYTES > 16
  } else if constexpr (L == 8 && sizeof(S) == 4) {
    return BitCast<Vector<S, L>>(_mm256_sqrt_ps(BitCast<__m256>(x)));
  } else if constexpr (L == 4 && sizeof(S) == 8) {
    return BitCast<Vector<S, L>>(_mm256_sqrt_pd(BitCast<__m256d>(x)));
#endif
#ifdef TF_TI_X86
  } else if constexpr (L == 4 && sizeof(S) == 4) {
    return BitCast<Vector<S, L>>(_mm_sqrt_ps(BitCast<__m128>(x)));
#endif
  } else {
    for (int l = 0; l < L; ++l) x[l] = SquareRoot<1, S>(x[l]);
    return x;
  }
}

template <int L, typename S>
inline Vector<S, L> LoadSums(const S* from) {
  Vector<S, L> values;
  __builtin_memcpy(&values, from, sizeof(values));
  return values;
}

template <int L, typename S>
inline void StoreSums(Vector<S, L> values, S* to) {
  __builtin_memcpy(to, &values, sizeof(values));
}

// Calls body.Do<L>(c) for all columns: for as many as a register holds, for four, and one by one.
template <typename S, typename Body>
inline void ForColumns(int64_t width, Body* body) {
  constexpr int kLanes = kVectorBytes / sizeof(S);
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) body->template Do<kLanes>(c);
  if constexpr (kLanes > 4) {
    for (; c + 4 <= width; c += 4) body->template Do<4>(c);
  }
  for (; c < width; ++c) body->template Do<1>(c);
}

template <typename S>
struct SumOfSquares {
  static constexpr int kLanes = kVectorBytes / sizeof(S);

  const S* sums;
  Vector<S, kLanes> wide = {};
  S rest = 0;

  template <int L>
  void Do(int64_t c) {
    const Vector<S, L> s = LoadSums<L>(sums + c);
    if constexpr (L == kLanes) {
      wide += s * s;
    } else if constexpr (L == 1) {
      rest += s * s;
    } else {
      for (int l = 0; l < L; ++l) rest += s[l] * s[l];
    }
  }
  S Get() const {
    S total = rest;
    for (int l = 0; l < kLanes; ++l) total += wide[l];
    return total;
  }
};

template <typename S>
inline S MeanOfSquares(const S* sums, int64_t width) {
  SumOfSquares<S> body{sums};
  ForColumns<S>(width, &body);
  return body.Get() / static_cast<S>(width);
}

// The effect of each rule on columns of one row.
template <typename T, Rule rule>
struct RowStep {
  using S = Sum<T>;

  const Coefficients<S>& numbers;
  const S* sums;
  T* x;
  S* first;   // of Adam
  S* second;  // of Adam and Adagrad; null where it is row-wise, and then there is
  S factor;   // the factor of sums or averages instead

  template <int L>
  void Do(int64_t c) {
    const Vector<S, L> s = LoadSums<L>(sums + c);
    Vector<S, L> now = Load<T, L>(x + c);
    if (numbers.decay != S(0)) now = now - now * numbers.decay;
    if constexpr (rule == kDescent) {
      now = now - s * numbers.rate;
    } else if constexpr (rule == kAdam) {
      Vector<S, L> m = LoadSums<L>(first + c);
      m = m + (s - m) * numbers.first_share;
      StoreSums<L, S>(m, first + c);
      if (second == nullptr) {
        now = now - m * factor;
      } else {
        Vector<S, L> v = LoadSums<L>(second + c);
        v = v + (s * s - v) * numbers.second_share;
        StoreSums<L, S>(v, second + c);
        const Vector<S, L> root = SquareRoot<L, S>(v * numbers.second_scale);
        now = now - m * numbers.rate / (root + numbers.epsilon);
      }
    } else {
      if (second == nullptr) {
        now = now - s * factor;
      } else {
        const Vector<S, L> a = LoadSums<L>(second + c) + s * s;
        StoreSums<L, S>(a, second + c);
        const Vector<S, L> root = SquareRoot<L, S>(a + numbers.inner_epsilon);
        now = now - s * numbers.rate / (root + numbers.epsilon);
      }
    }
    Store<T, L>(now, x + c);
  }
};

template <typename S>
inline bool AllZero(const S* sums, int64_t width) {
  for (int64_t c = 0; c < width; ++c) {
    if (!(sums[c] == S(0))) return false;
  }
  return true;
}

inline void PrefetchToWrite(const void* from, uint64_t bytes) {
  constexpr uint64_t kLine = 64, kMost = 1024;
  const char* const begin = static_cast<const char*>(from);
  for (uint64_t at = 0; at < (bytes < kMost ? bytes : kMost); at += kLine) {
    Prefetch<true>(begin + at);
  }
}

template <typename T, typename Index, Rule rule>
void Update(const UpdateArgs<T, Index>& args) {
  using S = Sum<T>;
  const int64_t width = args.width;
  const bool is_row_wise = args.second.is_row_wise;
  const auto prefetch = [&](int64_t i) {
    const int64_t row = args.rows[i];
    PrefetchToWrite(args.table + row * width, width * sizeof(T));
    if constexpr (rule == kAdam) PrefetchToWrite(args.first + row * width, width * sizeof(S));
    if constexpr (rule != kDescent) {
      if (is_row_wise) {
        Prefetch<true>(args.second.rows + row);
      } else {
        PrefetchToWrite(args.second.rows + row * width, width * sizeof(S));
      }
    }
  };
  constexpr int64_t kAhead = 8;
  for (int64_t i = 0; i < args.count && i < kAhead; ++i) prefetch(i);
  for (int64_t i = 0; i < args.count; ++i) {
    if (args.rows + i + kAhead < args.rows_end) prefetch(i + kAhead);
    const S* const sums = args.sums + i * width;
    if (AllZero(sums, width)) continue;
    const int64_t row = args.rows[i];
    RowStep<T, rule> step{args.numbers, sums, args.table + row * width, nullptr, nullptr, S(0)};
    if constexpr (rule == kAdam) step.first = args.first + row * width;
    if constexpr (rule != kDescent) {
      if (is_row_wise) {
        const S square = MeanOfSquares(sums, width);
        S* const second = args.second.rows + row;
        if constexpr (rule == kAdam) {
          *second += (square - *second) * args.numbers.second_share;
          const S root = SquareRoot<1, S>(*second * args.numbers.second_scale);
          step.factor = args.numbers.rate / (root + args.numbers.epsilon);
        } else {
          *second += square;
          const S root = SquareRoot<1, S>(*second + args.numbers.inner_epsilon);
          step.factor = args.numbers.rate / (root + args.numbers.epsilon);
        }
      } else {
        step.second = args.second.rows + row * width;
      }
    }
    ForColumns<S>(width, &step);
  }
}

template <typename T, typename Index, Rule rule>
UpdateRows<T, Index> UpdateOf() {
  return &Update<T, Index, rule>;
}

template <typename T>
inline void WidenRow(const T* from, int64_t size, Sum<T>* to) {
  constexpr int kLanes = kVectorBytes / sizeof(Sum<T>);
  int64_t c = 0;
  for (; c + kLanes <= size; c += kLanes)
    StoreSums<kLanes, Sum<T>>(Load<T, kLanes>(from + c), to + c);
  for (; c < size; ++c) to[c] = Load<T, 1>(from + c);
}

template <typename T>
WidenRows<T> WidenOf() {
  return &WidenRow<T>;
}
