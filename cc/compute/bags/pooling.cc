#include "cc/compute/bags/pooling.h"

#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define TF_TI_X86 1
#include <immintrin.h>
#endif

namespace tf_ti {
namespace {

enum Operation { kAdd, kMultiplyAdd, kMaximum };

#define TF_TI_VECTOR_BYTES 16
namespace baseline {
#include "cc/compute/bags/pooling-inl.h"
}  // namespace baseline
#undef TF_TI_VECTOR_BYTES

#ifdef TF_TI_X86
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#define TF_TI_VECTOR_BYTES 32
namespace avx2 {
#include "cc/compute/bags/pooling-inl.h"
}  // namespace avx2
#undef TF_TI_VECTOR_BYTES
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl")
#define TF_TI_VECTOR_BYTES 64
namespace avx512 {
#include "cc/compute/bags/pooling-inl.h"
}  // namespace avx512
#undef TF_TI_VECTOR_BYTES
#pragma GCC pop_options
#endif

enum InstructionSet { kBaseline, kAvx2, kAvx512 };

InstructionSet Detect() {
#ifdef TF_TI_X86
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  InstructionSet best = has_avx512 ? kAvx512 : has_avx2 ? kAvx2 : kBaseline;
  // So that a test can run the code for a lesser processor.
  const char* const most = std::getenv("TF_TI_INSTRUCTION_SET");
  if (most != nullptr && std::strcmp(most, "baseline") == 0) best = kBaseline;
  if (most != nullptr && std::strcmp(most, "avx2") == 0 && best > kAvx2) best = kAvx2;
  return best;
#else
  return kBaseline;
#endif
}

InstructionSet Available() {
  static const InstructionSet set = Detect();
  return set;
}

// An expression, in the namespace of the best instruction set. Only the types that models
// use are worth code for each of them.
#ifdef TF_TI_X86
#define TF_TI_DISPATCH(T, ...)                              \
  if constexpr (std::is_floating_point_v<Sum<T>>) {         \
    if (Available() == kAvx512) return avx512::__VA_ARGS__; \
    if (Available() == kAvx2) return avx2::__VA_ARGS__;     \
  }                                                         \
  return baseline::__VA_ARGS__
#else
#define TF_TI_DISPATCH(T, ...) return baseline::__VA_ARGS__
#endif

template <typename T, typename Index, Operation op>
Pool<T, Index> Choose(int64_t width) {
  TF_TI_DISPATCH(T, ChooseOperation<T, Index, op>(width));
}

}  // namespace

template <typename T, typename Index>
Pool<T, Index> ChoosePoolSum(int64_t width, bool weighted) {
  return weighted ? Choose<T, Index, kMultiplyAdd>(width) : Choose<T, Index, kAdd>(width);
}

template <typename T, typename Index>
Pool<T, Index> ChoosePoolMax(int64_t width) {
  if constexpr (IsComplex<T>::value) {
    return nullptr;
  } else {
    return Choose<T, Index, kMaximum>(width);
  }
}

template <typename T>
Dot<T> ChooseDot() {
  TF_TI_DISPATCH(T, DotOf<T>);
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

#define TF_TI_INSTANTIATE_INDEX(T, Index)                         \
  template Pool<T, Index> ChoosePoolSum<T, Index>(int64_t, bool); \
  template Pool<T, Index> ChoosePoolMax<T, Index>(int64_t);
#define TF_TI_INSTANTIATE(T)                            \
  TF_TI_INSTANTIATE_INDEX(T, int32_t)                   \
  TF_TI_INSTANTIATE_INDEX(T, int64_t)                   \
  template SubtractScaled<T> ChooseSubtractScaled<T>(); \
  template Sum<T> Widen<T>(T);                          \
  template T Round<T>(Sum<T>);
#define TF_TI_INSTANTIATE_DOT(T) template Dot<T> ChooseDot<T>();
TF_TI_NUMBERS(TF_TI_INSTANTIATE)
TF_TI_DIFFERENTIABLE(TF_TI_INSTANTIATE_DOT)

}  // namespace tf_ti
