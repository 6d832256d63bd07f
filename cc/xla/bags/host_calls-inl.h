// The basics of calls about bags from XLA computations on the CPU: a template for each type of the
// elements and of the indices.
#ifndef TF_TI_CC_XLA_BAGS_HOST_CALLS_INL_H_
#define TF_TI_CC_XLA_BAGS_HOST_CALLS_INL_H_

#include <complex>
#include <cstdint>
#include <string>

#include "cc/compute/numbers.h"
#include "cc/xla/ffi.h"
#include "cc/xla/host_calls.h"

namespace tf_ti {

namespace ffi = xla::ffi;

// FFI's names of the element types.
template <typename T>
constexpr ffi::DataType kType = ffi::DataType::INVALID;
#define TF_TI_TYPE(T, name) \
  template <>               \
  constexpr ffi::DataType kType<T> = ffi::DataType::name;
TF_TI_TYPE(Half, F16)
TF_TI_TYPE(BFloat16, BF16)
TF_TI_TYPE(float, F32)
TF_TI_TYPE(double, F64)
TF_TI_TYPE(std::complex<float>, C64)
TF_TI_TYPE(std::complex<double>, C128)
TF_TI_TYPE(int8_t, S8)
TF_TI_TYPE(int16_t, S16)
TF_TI_TYPE(int32_t, S32)
TF_TI_TYPE(int64_t, S64)
TF_TI_TYPE(uint8_t, U8)
TF_TI_TYPE(uint16_t, U16)
TF_TI_TYPE(uint32_t, U32)
TF_TI_TYPE(uint64_t, U64)
#undef TF_TI_TYPE

// The arguments of a call from a running XLA computation.
struct Call {
  ffi::ThreadPool thread_pool;
  ffi::RemainingArgs args;
  ffi::RemainingRets results;
  ffi::Dictionary attributes;

  ffi::AnyBuffer arg(size_t i) const { return *args.get<ffi::AnyBuffer>(i); }
  ffi::AnyBuffer result(size_t i) const { return **results.get<ffi::AnyBuffer>(i); }
  template <typename E>
  E* Result(size_t i) const {
    return static_cast<E*>(result(i).untyped_data());
  }
  int64_t attribute(const char* name) const { return *attributes.get<int64_t>(name); }
  bool checks_ids() const { return attribute("checks_ids") != 0; }
};

template <typename Index>
bool IsRow(Index index, int64_t num_rows) {
  return index >= 0 && index < num_rows;
}

// The element types that a call has kernels for: those of numbers.h.
enum class Types { kFloats, kDifferentiable, kNumbers };

// Calls a template with the element types of the XLA computation.
#define TF_TI_CASE(T)                                                          \
  case kType<T>:                                                               \
    return index == ffi::DataType::S32 ? Kind<T, int32_t>::Run(call, &threads) \
                                       : Kind<T, int64_t>::Run(call, &threads);

template <template <typename T, typename Index> class Kind, Types types>
std::string RunFor(const Call& call) {
  ffi::ThreadPool thread_pool = call.thread_pool;
  Threads threads = ThreadsOf(&thread_pool);
  const ffi::DataType index = call.arg(1).element_type();
  const ffi::DataType type = call.arg(0).element_type();
  switch (type) {
    TF_TI_FLOATS(TF_TI_CASE)
    default:
      break;
  }
  if constexpr (types != Types::kFloats) {
    switch (type) {
      TF_TI_COMPLEX(TF_TI_CASE)
      default:
        break;
    }
  }
  if constexpr (types == Types::kNumbers) {
    switch (type) {
      TF_TI_INTEGERS(TF_TI_CASE)
      default:
        break;
    }
  }
  return "tf_ti has no kernel for this type";
}
#undef TF_TI_CASE

template <template <typename T, typename Index> class Kind, Types types>
absl::Status Handle(ffi::ThreadPool thread_pool, ffi::RemainingArgs args,
                    ffi::RemainingRets results, ffi::Dictionary attributes) {
  const std::string problem = RunFor<Kind, types>({thread_pool, args, results, attributes});
  return problem.empty() ? absl::OkStatus() : InvalidArgument(problem);
}

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_HOST_CALLS_INL_H_
