// Linked into the library so that the tests can make its calls of CUDA fail, and the driver old:
// with the linker's --wrap these functions come before CUDA's.
#include <cuda_runtime.h>

extern "C" {

// In plugin.cc.
int gpu_plugin_fault();
int gpu_plugin_driver();

cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**);
cudaError_t __real_cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t __real_cudaMemsetAsync(void*, int, size_t, cudaStream_t);
cudaError_t __real_cudaDriverGetVersion(int*);

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                       void** arguments) {
  const auto error = static_cast<cudaError_t>(gpu_plugin_fault());
  return error != cudaSuccess ? error : __real_cudaLaunchKernelExC(config, kernel, arguments);
}

cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                   cudaStream_t stream) {
  const auto error = static_cast<cudaError_t>(gpu_plugin_fault());
  return error != cudaSuccess ? error : __real_cudaMemcpyAsync(to, from, bytes, kind, stream);
}

cudaError_t __wrap_cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const auto error = static_cast<cudaError_t>(gpu_plugin_fault());
  return error != cudaSuccess ? error : __real_cudaMemsetAsync(to, value, bytes, stream);
}

cudaError_t __wrap_cudaDriverGetVersion(int* version) {
  *version = gpu_plugin_driver();
  return *version != 0 ? cudaSuccess : __real_cudaDriverGetVersion(version);
}
}
