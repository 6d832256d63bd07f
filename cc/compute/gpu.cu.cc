#include "cc/compute/gpu.h"

#include "cc/compute/device-inl.h"

namespace tf_ti {

std::string CopyMemory(size_t bytes, const void* src, void* dst, Gpu* gpu) {
  if (bytes == 0) return "";
  return Describe(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, gpu->stream()), gpu);
}

}  // namespace tf_ti
