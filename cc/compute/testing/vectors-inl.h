// The loads and stores of vectors-inl.h, for one instruction set.

#include "cc/compute/vectors-inl.h"

// Converts `count` numbers, a multiple of L, to the type in which they are summed, or from it.
template <typename T, int L>
void Widen(const T* from, int64_t count, Sum<T>* to) {
  for (int64_t i = 0; i < count; i += L) Store<Sum<T>, L>(Load<T, L>(from + i), to + i);
}
template <typename T, int L>
void Round(const Sum<T>* from, int64_t count, T* to) {
  for (int64_t i = 0; i < count; i += L) Store<T, L>(Load<Sum<T>, L>(from + i), to + i);
}

template <typename T>
Conversions<T> ConversionsOf() {
  return {{Widen<T, 1>, Widen<T, 4>, Widen<T, kVectorBytes / 4>},
          {Round<T, 1>, Round<T, 4>, Round<T, kVectorBytes / 4>}};
}
