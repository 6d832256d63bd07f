// The loops behind pooling.h, for one instruction set: see each_instruction_set-inl.h.

#include "cc/compute/vectors-inl.h"

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

// Positions of a bag's rows, in as many bits as the sums of type S have.
template <typename S>
using Place = std::conditional_t<sizeof(S) == 4, int32_t, int64_t>;

// The number that comes with a row: its weight, or its position in the bag.
template <typename T, Operation op>
using Companion = std::conditional_t<op == kArgMaximum, Place<Sum<T>>, Sum<T>>;

constexpr bool IsMaximum(Operation op) { return op == kMaximum || op == kArgMaximum; }

// One vector of the result, in a register; for maxima two more.
template <typename T, Operation op, int L>
struct Column {
  Vector<Sum<T>, L> values;
  Vector<Sum<T>, L> all;  // their sum, which is NaN where one of them is
  Vector<Place<Sum<T>>, L> places;

  void Start() {
    if constexpr (IsMaximum(op)) {
      values = Fill<L>(Lowest<Sum<T>>());
    } else {
      values = Vector<Sum<T>, L>{};
    }
  }
  void Take(const T* from, Companion<T, op> companion) {
    const Vector<Sum<T>, L> x = Load<T, L>(from);
    if constexpr (op == kAdd) {
      values = Add<L, Sum<T>>(values, x);
    } else if constexpr (op == kMultiplyAdd) {
      values = MultiplyAdd<L, Sum<T>>(x, companion, values);
    } else {
      // NaN is never larger. NaN is looked for apart from that: the time goes into waiting for the
      // previous comparison.
      const auto is_larger = x > values;
      values = is_larger ? x : values;
      if constexpr (std::is_floating_point_v<Sum<T>>) all += x;
      if constexpr (op == kArgMaximum) places = is_larger ? Fill<L>(companion) : places;
    }
  }
  void DivideBy(Sum<T> divisor) { values = Divide<L, Sum<T>>(values, divisor); }
  void Write(T* to) const { Store<T, L>(values, to); }
  void WriteSum(Sum<T>* to) const { __builtin_memcpy(to, &values, sizeof(values)); }
  template <typename Index>
  void WritePlaces(Index first, Index* to) const {
    Place<Sum<T>> from[L];
    __builtin_memcpy(from, &places, sizeof(from));
    for (int i = 0; i < L; ++i) to[i] = first + static_cast<Index>(from[i]);
  }
};

// N vectors side by side. The last one lies at `last`, where the row ends, and may overlap the one
// before: some elements are then computed twice, with the same result.
template <typename T, Operation op, int L, int N>
struct Columns {
  Column<T, op, L> first;
  Columns<T, op, L, N - 1> others;

  void Start() {
    first.Start();
    others.Start();
  }
  void Take(const T* row, const T* last, Companion<T, op> companion) {
    first.Take(row, companion);
    others.Take(row + L, last, companion);
  }
  Vector<Sum<T>, L> All() const { return first.all + others.All(); }
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
  template <typename Index>
  void WritePlaces(Index from, Index* to, Index* last) const {
    first.WritePlaces(from, to);
    others.WritePlaces(from, to + L, last);
  }
};
template <typename T, Operation op, int L>
struct Columns<T, op, L, 1> {
  Column<T, op, L> first;

  void Start() { first.Start(); }
  void Take(const T*, const T* last, Companion<T, op> companion) { first.Take(last, companion); }
  Vector<Sum<T>, L> All() const { return first.all; }
  void DivideBy(Sum<T> divisor) { first.DivideBy(divisor); }
  void Write(T*, T* last) const { first.Write(last); }
  void WriteSum(Sum<T>*, Sum<T>* last) const { first.WriteSum(last); }
  template <typename Index>
  void WritePlaces(Index from, Index*, Index* last) const {
    first.WritePlaces(from, last);
  }
};

constexpr int64_t kLineBytes = 64;

// Fetches kBytes from `from` on, and the line of `last`, the end of what is read of the row.
template <int64_t kBytes>
inline void PrefetchColumns(const char* from, const char* last, bool straddles, bool every_line) {
  constexpr int kPairLevel = kBytes > 4 * kLineBytes ? 2 : 1;
  if (every_line) {
#pragma GCC unroll 16
    for (int64_t line = 0; line < kBytes; line += kLineBytes) Prefetch<false>(from + line);
    if (straddles) Prefetch<false>(last);
  } else {
#pragma GCC unroll 16
    for (int64_t line = 0; line < kBytes; line += 2 * kLineBytes) {
      Prefetch<false, kPairLevel>(from + line);
    }
    if (straddles) Prefetch<false, kPairLevel>(last);
  }
}

// Maxima of NaN, in elements `begin` to `end` of bag `bag`: the first NaN, and its position.
template <typename T, typename Index>
__attribute__((noinline)) void FindNans(const PoolArgs<T, Index>& args, int64_t bag, int64_t begin,
                                        int64_t end) {
  for (int64_t column = begin; column < end; ++column) {
    for (int64_t i = args.bounds[bag]; i < args.bounds[bag + 1]; ++i) {
      const T* const from = args.table + static_cast<int64_t>(args.ids[i]) * args.width + column;
      const Sum<T> value = Load<T, 1>(from);
      if (value == value) continue;
      const int64_t to = bag * args.width + column;
      if (args.sums != nullptr) {
        args.sums[to] = value;
      } else {
        Store<T, 1>(value, args.out + to);
      }
      if (args.argmax != nullptr) args.argmax[to] = static_cast<Index>(i);
      break;
    }
  }
}

template <int L, typename S>
inline bool HasNan(Vector<S, L> values) {
  S sums[L];
  __builtin_memcpy(sums, &values, sizeof(sums));
  for (int step = L / 2; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) sums[i] += sums[i + step];
  }
  return sums[0] != sums[0];
}

// Bag `bag`, N vectors from element `begin` on. The last of them ends with element `end`. Rows are
// of kWidth elements; of args.width where that is 0.
template <typename T, typename Index, Operation op, int L, int N, int64_t kWidth = 0>
inline bool PoolColumns(const PoolArgs<T, Index>& args, int64_t bag, int64_t begin, int64_t end) {
  const T* const columns = args.table + begin;
  const int64_t last = end - L - begin;
  const uint64_t row_bytes = (kWidth == 0 ? args.width : kWidth) * sizeof(T);
  const uintptr_t base = reinterpret_cast<uintptr_t>(columns);
  const bool straddles = (base | row_bytes) % kLineBytes != 0;
  const Index* const stop = args.ids + args.bounds[bag + 1];
  const Index* id = args.ids + args.bounds[bag];
  Columns<T, op, L, N> result{};
  if (id != stop) result.Start();
  const uint64_t num_rows = args.num_rows;
  const int64_t num_ids = args.ids_end - args.ids;
  const bool every_line = args.prefetching.every_line;
  const int64_t distance = args.prefetching.distance;
  const Index* const ahead_end =
      distance == 0 ? args.ids : args.ids_end - (num_ids < distance ? num_ids : distance);
  const Index* const first = id;
  const Sum<T>* weight = op == kMultiplyAdd ? args.weights + (id - args.ids) : nullptr;
  for (; id != stop; ++id) {
    const uint64_t row = static_cast<uint64_t>(static_cast<int64_t>(*id));
    if (__builtin_expect(row >= num_rows, 0)) return false;
    if (id < ahead_end) {
      const uint64_t next = static_cast<uint64_t>(static_cast<int64_t>(id[distance]));
      const char* const ahead = reinterpret_cast<const char*>(base + next * row_bytes);
      PrefetchColumns<int64_t{L} * N * sizeof(T)>(ahead, ahead + (last + L) * sizeof(T) - 1,
                                                  straddles, every_line);
    }
    const T* const from = reinterpret_cast<const T*>(base + row * row_bytes);
    Companion<T, op> companion{};
    if constexpr (op == kMultiplyAdd) companion = *weight++;
    if constexpr (op == kArgMaximum) companion = static_cast<Companion<T, op>>(id - first);
    result.Take(from, from + last, companion);
  }
  if (args.divisors != nullptr) result.DivideBy(args.divisors[bag]);
  if (args.sums != nullptr) {
    Sum<T>* const to = args.sums + bag * args.width + begin;
    result.WriteSum(to, to + last);
  } else {
    T* const to = args.out + bag * args.width + begin;
    result.Write(to, to + last);
  }
  if constexpr (op == kArgMaximum) {
    Index* const to = args.argmax + bag * args.width + begin;
    result.WritePlaces(static_cast<Index>(first == stop ? -1 : first - args.ids), to, to + last);
  }
  if constexpr (IsMaximum(op) && std::is_floating_point_v<Sum<T>>) {
    if (__builtin_expect(HasNan<L, Sum<T>>(result.All()), 0)) FindNans(args, bag, begin, end);
  }
  return true;
}

// Rows of at most N vectors, and of more than N - 1.
template <typename T, typename Index, Operation op, int L, int N>
bool PoolWhole(const PoolArgs<T, Index>& given) {
  const PoolArgs<T, Index> args = given;  // a copy, which stays in registers whatever is written
  for (int64_t bag = 0; bag < args.count; ++bag) {
    if (!PoolColumns<T, Index, op, L, N>(args, bag, 0, args.width)) return false;
  }
  return true;
}

// Rows of kWidth elements, a whole number of passes for N vectors each. The compiler then knows how
// far rows are apart, and that vectors do not overlap.
template <typename T, typename Index, Operation op, int L, int N, int64_t kWidth>
bool PoolWidth(const PoolArgs<T, Index>& given) {
  constexpr int64_t kPass = int64_t{L} * N;
  static_assert(kWidth % kPass == 0, "");
  const PoolArgs<T, Index> args = given;
  for (int64_t bag = 0; bag < args.count; ++bag) {
    for (int64_t begin = 0; begin < kWidth; begin += kPass) {
      if (!PoolColumns<T, Index, op, L, N, kWidth>(args, bag, begin, begin + kPass)) return false;
    }
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

// For rows that fill a vector of L lanes. The number of vectors taken at once weighs speed against
// the size of the library: models need sums of floats, on processors of this decade.
template <typename T, typename Index, Operation op, int L>
PoolRows<T, Index> ChooseCount(int64_t width) {
  const int64_t count = (width + L - 1) / L;
  if constexpr (std::is_same_v<T, float> && !IsMaximum(op) && kVectorBytes > 16) {
    // Those of most tables.
    if (width == 16) return PoolWidth<T, Index, op, L, 16 / L, 16>;
    if (width == 32) return PoolWidth<T, Index, op, L, 32 / L, 32>;
    if (width == 64) return PoolWidth<T, Index, op, L, 64 / L, 64>;
    if (width == 128) return PoolWidth<T, Index, op, L, 8, 128>;
    if (width == 256) return PoolWidth<T, Index, op, L, 8, 256>;
  }
  if (count == 1) return PoolWhole<T, Index, op, L, 1>;
  if constexpr (std::is_same_v<Sum<T>, float> && !IsMaximum(op) && kVectorBytes > 16) {
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
PoolRows<T, Index> ChooseOperation(int64_t width) {
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

template <typename T>
void AddColumnsOf(const T* row, const int32_t* columns, int64_t count, Sum<T>* sums) {
  for (int64_t i = 0; i < count; ++i) sums[columns[i]] += Load<T, 1>(row + columns[i]);
}

template <typename T>
void RoundRowOf(const Sum<T>* sums, int64_t size, T* row) {
  constexpr int kLanes = IsComplex<T>::value ? 1 : kVectorBytes / sizeof(Sum<T>);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    Store<T, kLanes>(Load<Sum<T>, kLanes>(sums + i), row + i);
  }
  for (; i < size; ++i) Store<T, 1>(sums[i], row + i);
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
