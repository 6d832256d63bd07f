// CUB's selection, in a loop.
#ifndef TF_TI_GPU_CHECK_EMULATION_DEVICE_SELECT_H_
#define TF_TI_GPU_CHECK_EMULATION_DEVICE_SELECT_H_

#include <cuda_runtime.h>

namespace cub {

struct DeviceSelect {
  template <typename From, typename T, typename Count, typename Predicate>
  static cudaError_t If(void* memory, size_t& bytes, From from, T* to, Count* count, int size,
                        Predicate predicate, cudaStream_t stream) {
    if (memory == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    return emulation::Enqueue(stream, [=] {
      *count = 0;
      for (int i = 0; i < size; ++i) {
        if (predicate(from[i])) to[(*count)++] = from[i];
      }
    });
  }
};

}  // namespace cub

#endif  // TF_TI_GPU_CHECK_EMULATION_DEVICE_SELECT_H_
