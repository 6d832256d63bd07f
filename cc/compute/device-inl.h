// The basics of all CUDA sources: numbers and packs of them on the device, and launches.
#ifndef TF_TI_CC_COMPUTE_DEVICE_INL_H_
#define TF_TI_CC_COMPUTE_DEVICE_INL_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "cc/compute/gpu.h"
#include "cc/compute/numbers.h"

// Returns from the calling function with the error message of `expression`, if it has one.
#define TF_TI_RETURN_IF_WRONG(expression) \
  if (std::string wrong = (expression); !wrong.empty()) return wrong

namespace tf_ti {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;
constexpr int kBlock = 256;

template <typename T>
__device__ __forceinline__ Sum<T> ToSum(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return __half2float(__ushort_as_half(value.bits));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return __bfloat162float(__ushort_as_bfloat16(value.bits));
  } else {
    return value;
  }
}

template <typename T>
__device__ __forceinline__ T FromSum(Sum<T> value) {
  if constexpr (std::is_same_v<T, Half>) {
    return {__half_as_ushort(__float2half_rn(value))};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
  } else {
    return value;
  }
}

template <typename S>
__device__ __forceinline__ S DivideOrZero(S x, S divisor) {
  return divisor == S(0) ? S(0) : x / divisor;
}

// Consecutive elements that one instruction loads or stores.
template <typename T, int kSize>
struct alignas(sizeof(T) * kSize) Pack {
  T values[kSize];
};

template <int kSize, typename T>
__device__ __forceinline__ Pack<T, kSize> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kSize>*>(from);
}

template <int kSize, typename T>
__device__ __forceinline__ void StorePack(const Pack<T, kSize>& pack, T* to) {
  *reinterpret_cast<Pack<T, kSize>*>(to) = pack;
}

// The same, but the cache gives these lines up before others.
template <int kSize, typename T>
__device__ __forceinline__ void StreamPack(const Pack<T, kSize>& pack, T* to) {
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  } else {
    StorePack(pack, to);
  }
}

// The number of blocks for `work` items, `block` at a time; kernels loop where the grid has fewer.
inline unsigned NumBlocks(int64_t work, int64_t block) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  return static_cast<unsigned>(std::min(kMost, (work + block - 1) / block));
}

inline std::string Describe(cudaError_t error, Gpu* gpu) {
  if (error == cudaSuccess) return "";
  cudaGetLastError();  // Otherwise the next call that asks for the last error would see this one.
  gpu->SetFailed();
  const std::string problem = std::string("CUDA: ") + cudaGetErrorString(error);
  if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorUnsupportedPtxVersion &&
      error != cudaErrorInsufficientDriver) {
    return problem;
  }
  constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};  // ascending
  const std::string major = std::to_string(__CUDACC_VER_MAJOR__);
  return problem + "; this build needs a GPU of sm_" + std::to_string(kArchitectures[0] / 10) +
         " or newer, and a driver as new as CUDA " + major + ".0, or " + major + "." +
         std::to_string(__CUDACC_VER_MINOR__) + " for GPUs newer than sm_" +
         std::to_string(*std::rbegin(kArchitectures) / 10);
}

template <typename... Parameters, typename... Arguments>
std::string LaunchWith(cudaLaunchAttribute* attributes, unsigned num_attributes,
                       void (*kernel)(Parameters...), unsigned blocks, unsigned threads, Gpu* gpu,
                       Arguments&&... arguments) {
  if (blocks == 0) return "";
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = gpu->stream();
  config.attrs = attributes;
  config.numAttrs = num_attributes;
  return Describe(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...), gpu);
}

template <typename... Parameters, typename... Arguments>
std::string Launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, Gpu* gpu,
                   Arguments&&... arguments) {
  return LaunchWith(nullptr, 0, kernel, blocks, threads, gpu,
                    std::forward<Arguments>(arguments)...);
}

// The same, but the kernel's blocks may begin before those of the kernel before it are done, as
// soon as they have called LetNextBegin. Until they call WaitForPrevious, they may read nothing
// that it writes, and write nothing at all.
template <typename... Parameters, typename... Arguments>
std::string LaunchEarly(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, Gpu* gpu,
                        Arguments&&... arguments) {
  int device, major;
  TF_TI_RETURN_IF_WRONG(Describe(cudaGetDevice(&device), gpu));
  TF_TI_RETURN_IF_WRONG(
      Describe(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), gpu));
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return LaunchWith(&attribute, major >= 9, kernel, blocks, threads, gpu,
                    std::forward<Arguments>(arguments)...);
}

__device__ __forceinline__ void LetNextBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

__device__ __forceinline__ void WaitForPrevious() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Makes `array` one of `size` elements. Returns an error message, or an empty string.
template <typename E>
std::string Allocate(Gpu* gpu, int64_t size, E** array) {
  const int64_t bytes = size * static_cast<int64_t>(sizeof(E));
  *array = static_cast<E*>(gpu->Allocate(bytes));
  if (*array != nullptr || bytes == 0) return "";
  return "no memory on the GPU for " + std::to_string(bytes) + " bytes";
}

// Positions that a grid's threads take in turns.
struct GridStride {
  int64_t first;
  int64_t step;
};
__device__ __forceinline__ GridStride ThreadStride() {
  return {static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
          static_cast<int64_t>(gridDim.x) * blockDim.x};
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_DEVICE_INL_H_
