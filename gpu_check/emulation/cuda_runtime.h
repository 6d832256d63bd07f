// The small part of CUDA that cc/compute uses, on the processor. With this folder first among the
// include paths, a C++ compiler takes the CUDA sources as they are.
//
// Streams are late: work that is enqueued in one happens when somebody waits for it. In the default
// stream, all happens at once.
//
// Every thread of a block is a fiber, which runs until it must wait for others. Blocks run one
// after another. They and their threads run in an order that depends on a seed, so that results
// that depend on the order show. Threads that wait for others in vain are reported, and the process
// ends.
#ifndef TF_TI_GPU_CHECK_EMULATION_CUDA_RUNTIME_H_
#define TF_TI_GPU_CHECK_EMULATION_CUDA_RUNTIME_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  dim3(unsigned x = 1) : x(x) {}
  unsigned x;
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st;
using cudaEvent_t = CUevent_st*;

#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 4
#define __CUDA_ARCH_LIST__ 800, 900

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorNotReady = 600,
};

enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};

namespace emulation {

// Runs `thread` once for each thread of each block. `name` is for reports.
void Run(const dim3& grid, const dim3& block, const char* name,
         const std::function<void()>& thread);

// Waits until all lanes of the warp are here, and returns the value of each of them. `name` tells
// where "here" is.
const uint64_t* Exchange(const char* name, unsigned lanes, uint64_t value);

inline unsigned Lane() { return threadIdx.x % 32; }

extern int num_processors;

}  // namespace emulation

// Enqueued work is done when the stream gets there; the null stream is one too. Each executable
// links late.cc, or other streams, which may have more of CUDA's calls.
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
struct CUmemPoolHandle_st;
using cudaMemPool_t = CUmemPoolHandle_st*;
enum cudaMemPoolAttr { cudaMemPoolReuseAllowInternalDependencies, cudaMemPoolAttrReleaseThreshold };
enum : unsigned { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

extern "C" {
// All launches call this, as they do in CUDA; `kernel` is a std::function<void()> here.
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument);

cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device);
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value);
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream);
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream);
cudaError_t cudaMallocHost(void** memory, size_t bytes);
cudaError_t cudaFreeHost(void* memory);
}

namespace emulation {

inline cudaError_t Enqueue(cudaStream_t stream, const std::function<void()>& work) {
  cudaLaunchConfig_t config{};
  config.stream = stream;
  return cudaLaunchKernelExC(&config, &work, nullptr);
}

}  // namespace emulation

// Makes another order, and for each seed a GPU of another size.
void SetEmulationSeed(uint64_t seed);

void __syncthreads();

template <typename T>
T __shfl_sync(unsigned lanes, T value, int source, int width = 32) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  const unsigned lane = emulation::Lane();
  const unsigned from = lane / width * width + static_cast<unsigned>(source) % width;
  std::memcpy(&value, &emulation::Exchange("__shfl_sync", lanes, bits)[from], sizeof(value));
  return value;
}

template <typename T>
T __shfl_up_sync(unsigned lanes, T value, unsigned step, int width = 32) {
  const int lane = static_cast<int>(emulation::Lane()) % width;
  const int from = lane - static_cast<int>(step);
  return __shfl_sync(lanes, value, from < 0 ? lane : from, width);
}

template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, int mask) {
  return __shfl_sync(lanes, value, static_cast<int>(emulation::Lane() ^ mask));
}

inline int __any_sync(unsigned lanes, bool value) {
  const uint64_t* const values = emulation::Exchange("__any_sync", lanes, value);
  return std::any_of(values, values + 32, [](uint64_t value) { return value != 0; });
}

template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}
template <typename T>
T __ldg(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T) != 0) std::abort();
  return *from;
}

inline unsigned long long atomicMin(unsigned long long* at, unsigned long long value) {
  const unsigned long long before = *at;
  *at = std::min(before, value);
  return before;
}

inline int atomicAdd(int* at, int value) {
  const int before = *at;
  *at += value;
  return before;
}

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const auto run = [config = *config, kernel, name = __PRETTY_FUNCTION__,
                    values = std::tuple<Parameters...>(arguments...)] {
    emulation::Run(config.gridDim, config.blockDim, name, [&] { std::apply(kernel, values); });
  };
  return emulation::Enqueue(config->stream, run);
}

inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error that was asked for";
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// A clock that moves on when it is looked at.
inline long long clock64() {
  static long long cycles = 0;
  return cycles += 1 << 20;
}

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrL2CacheSize
};
inline cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? emulation::num_processors : 1;
  return cudaSuccess;
}

// The memory ends where a page ends that nobody may touch, and such a page is before it. So it is
// aligned like its size, no better. Touching these pages ends the process.
namespace emulation {
void* Allocate(size_t bytes);
void Free(void* memory);
}  // namespace emulation

template <typename T>
cudaError_t cudaMalloc(T** memory, size_t bytes) {
  *memory = static_cast<T*>(emulation::Allocate(bytes));
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

inline cudaError_t cudaFree(void* memory) {
  emulation::Free(memory);
  return cudaSuccess;
}

#endif  // TF_TI_GPU_CHECK_EMULATION_CUDA_RUNTIME_H_
