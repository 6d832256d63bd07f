#include "cc/compute/bags/pooling.h"

#include <complex>
#include <cstdint>
#include <type_traits>

#include "cc/compute/prefetch.h"

namespace tf_ti {
namespace {

enum Operation { kAdd, kMultiplyAdd, kMaximum, kArgMaximum };

}  // namespace
}  // namespace tf_ti

#define TF_TI_LOOPS "cc/compute/bags/pooling-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {
namespace {

// Only the types that models use are worth code for each instruction set.
#define TF_TI_DISPATCH(T, ...)                       \
  if constexpr (!std::is_floating_point_v<Sum<T>>) { \
    return baseline::__VA_ARGS__;                    \
  } else {                                           \
    TF_TI_RETURN_BEST(__VA_ARGS__);                  \
  }

template <typename T, typename Index, Operation op>
PoolRows<T, Index> Choose(int64_t width) {
  TF_TI_DISPATCH(T, ChooseOperation<T, Index, op>(width));
}

}  // namespace

template <typename T, typename Index>
PoolRows<T, Index> ChoosePoolSum(int64_t width, bool weighted) {
  return weighted ? Choose<T, Index, kMultiplyAdd>(width) : Choose<T, Index, kAdd>(width);
}

template <typename T, typename Index>
PoolRows<T, Index> ChoosePoolMax(int64_t width, bool with_argmax) {
  if constexpr (IsComplex<T>::value) {
    return nullptr;
  } else {
    return with_argmax ? Choose<T, Index, kArgMaximum>(width) : Choose<T, Index, kMaximum>(width);
  }
}

template <typename T>
Dot<T> ChooseDot() {
  TF_TI_DISPATCH(T, DotOf<T>);
}

template <typename T>
AddColumns<T> ChooseAddColumns() {
  TF_TI_DISPATCH(T, AddColumnsOf<T>);
}

template <typename T>
RoundRow<T> ChooseRoundRow() {
  TF_TI_DISPATCH(T, RoundRowOf<T>);
}

template <typename T>
SubtractScaled<T> ChooseSubtractScaled() {
  TF_TI_DISPATCH(T, SubtractScaledOf<T>);
}

template <typename T>
Sum<T> Widen(T value) {
  return baseline::Load<T, 1>(&value);
}

template <typename T>
T Round(Sum<T> value) {
  T rounded;
  baseline::Store<T, 1>(value, &rounded);
  return rounded;
}

#define TF_TI_INSTANTIATE_INDEX(T, Index)                             \
  template PoolRows<T, Index> ChoosePoolSum<T, Index>(int64_t, bool); \
  template PoolRows<T, Index> ChoosePoolMax<T, Index>(int64_t, bool);
#define TF_TI_INSTANTIATE(T)                            \
  TF_TI_INSTANTIATE_INDEX(T, int32_t)                   \
  TF_TI_INSTANTIATE_INDEX(T, int64_t)                   \
  template SubtractScaled<T> ChooseSubtractScaled<T>(); \
  template Sum<T> Widen<T>(T);                          \
  template T Round<T>(Sum<T>);
#define TF_TI_INSTANTIATE_GRADIENT(T)           \
  template Dot<T> ChooseDot<T>();               \
  template AddColumns<T> ChooseAddColumns<T>(); \
  template RoundRow<T> ChooseRoundRow<T>();
TF_TI_NUMBERS(TF_TI_INSTANTIATE)
TF_TI_DIFFERENTIABLE(TF_TI_INSTANTIATE_GRADIENT)

}  // namespace tf_ti
