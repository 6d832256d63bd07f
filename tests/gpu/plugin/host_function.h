// A function that the host runs when a stream gets there.
#ifndef TF_TI_TESTS_GPU_PLUGIN_HOST_FUNCTION_H_
#define TF_TI_TESTS_GPU_PLUGIN_HOST_FUNCTION_H_

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <utility>

namespace gpu_plugin {

// `function` must not call CUDA, nor may what it holds when that is freed, which is after the call.
inline cudaError_t EnqueueHostFunction(cudaStream_t stream, std::function<void()> function) {
  auto kept = std::make_unique<std::function<void()>>(std::move(function));
  const auto call = [](void* argument) {
    const std::unique_ptr<std::function<void()>> function(
        static_cast<std::function<void()>*>(argument));
    (*function)();
  };
  const cudaError_t error = cudaLaunchHostFunc(stream, call, kept.get());
  if (error == cudaSuccess) kept.release();
  return error;
}

}  // namespace gpu_plugin

#endif  // TF_TI_TESTS_GPU_PLUGIN_HOST_FUNCTION_H_
