// The functions of activations-inl.h over arrays, for one instruction set.

#include "cc/compute/recurrent/activations-inl.h"

// `count` is a multiple of the lanes.
template <typename S>
void ActivateAll(const Activation<S>& activation, const S* x, int64_t count, S* y) {
  constexpr int L = kVectorBytes / sizeof(S);
  for (int64_t i = 0; i < count; i += L) {
    Store<S, L>(Activate<S, L>(activation, Load<S, L>(x + i)), y + i);
  }
}

template <typename S>
void BackwardAll(const Activation<S>& activation, const S* x, const S* y, const S* gradient,
                 int64_t count, S* by_x) {
  constexpr int L = kVectorBytes / sizeof(S);
  for (int64_t i = 0; i < count; i += L) {
    Store<S, L>(
        Backward<S, L>(activation, Load<S, L>(x + i), Load<S, L>(y + i), Load<S, L>(gradient + i)),
        by_x + i);
  }
}

template <typename S>
ActivationLoops<S> ActivationLoopsOf() {
  return {ActivateAll<S>, BackwardAll<S>};
}
