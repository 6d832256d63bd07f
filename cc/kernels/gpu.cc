#include "cc/kernels/gpu.h"

#include <algorithm>
#include <utility>

#include "cc/kernels/elements.h"
#include "cc/status.h"
#include "tensorflow/core/framework/memory_types.h"
#include "tensorflow/core/framework/types.h"

#if GOOGLE_CUDA
#include <cuda_runtime.h>

#include "cc/kernels/stream_executor.h"
#include "tensorflow/core/common_runtime/device.h"
#endif

namespace tf_ti {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status ToStatus(const std::string& problem, const Threads*) {
  return problem.empty() ? absl::OkStatus() : InvalidArgument(problem);
}

bool LivesOnHost(tensorflow::DataType dtype) {
  // A variant is an object of the host, whatever memory it refers to.
  return dtype == tensorflow::DT_VARIANT ||
         tensorflow::MTypeFromDType(dtype) == tensorflow::HOST_MEMORY;
}

#if GOOGLE_CUDA

CUstream_st* KernelGpu::stream() const {
  return static_cast<CUstream_st*>(
      ctx_->op_device_context()->stream()->platform_specific_handle().stream);
}

void* KernelGpu::Allocate(int64_t bytes) {
  Tensor memory;
  memory_status_.Update(ctx_->allocate_temp(tensorflow::DT_INT8, TensorShape({bytes}), &memory));
  if (!memory_status_.ok()) return nullptr;
  memory_.push_back(memory);
  return memory.data();
}

absl::Status ToStatus(const std::string& problem, const KernelGpu* gpu) {
  if (problem.empty()) return absl::OkStatus();
  if (!gpu->memory_status().ok()) return gpu->memory_status();
  return gpu->has_failed() ? CudaStatus(problem) : InvalidArgument(problem);
}

absl::Status CudaStatus(const std::string& problem) {
  return problem.empty() ? absl::OkStatus() : absl::InternalError(problem);
}

absl::Status AllocateForGpu(OpKernelContext* ctx, tensorflow::DataType dtype,
                            const TensorShape& shape, Tensor* tensor) {
  tensorflow::AllocatorAttributes attributes;
  attributes.set_on_host(true);
  attributes.set_gpu_compatible(true);
  return ctx->allocate_temp(dtype, shape, tensor, attributes);
}

absl::Status EnqueueToHost(OpKernelContext* ctx, const Tensor& tensor, Tensor* copy) {
  TF_RETURN_IF_ERROR(AllocateForGpu(ctx, tensor.dtype(), tensor.shape(), copy));
  KernelGpu gpu(ctx);
  return CudaStatus(CopyMemory(tensor.TotalBytes(), tensor.data(), copy->data(), &gpu));
}

absl::Status Synchronize(OpKernelContext* ctx) {
  return ctx->op_device_context()->stream()->BlockHostUntilDone();
}

absl::Status WhenDone(OpKernelContext* ctx, std::function<void()> then) {
  tensorflow::DeviceContext* device = ctx->op_device_context();
  const absl::Status status = device->ThenExecute(static_cast<tensorflow::Device*>(ctx->device()),
                                                  device->stream(), std::move(then));
  if (!status.ok()) Synchronize(ctx).IgnoreError();
  return status;
}

#endif

absl::Status BringInputsToHost([[maybe_unused]] OpKernelContext* ctx, [[maybe_unused]] int count,
                               [[maybe_unused]] std::vector<Tensor>* inputs) {
#if GOOGLE_CUDA
  const auto is_elsewhere = [ctx](int i) {
    const tensorflow::DataType dtype = ctx->input_dtype(i);
    return ctx->input_memory_type(i) == tensorflow::DEVICE_MEMORY && LivesOnHost(dtype) &&
           tensorflow::DataTypeCanUseMemcpy(dtype);
  };
  bool waits = false;
  for (int i = 0; OnGpu(ctx) && i < count; ++i) waits = waits || is_elsewhere(i);
  if (!waits) return absl::OkStatus();
  absl::Status status;
  for (int i = 0; i < count; ++i) {
    inputs->push_back(ctx->input(i));
    if (is_elsewhere(i)) status.Update(EnqueueToHost(ctx, ctx->input(i), &inputs->back()));
  }
  // After an error too: other copies may still be under way, into memory that is freed next.
  status.Update(Synchronize(ctx));
  return status;
#else
  return absl::OkStatus();
#endif
}

absl::Status SetHostOutput(OpKernelContext* ctx, int i, const Tensor& value) {
#if GOOGLE_CUDA
  if (OnGpu(ctx) && ctx->output_memory_type(i) == tensorflow::DEVICE_MEMORY &&
      tensorflow::DataTypeCanUseMemcpy(value.dtype())) {
    Tensor* copy = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(i, value.shape(), &copy));
    KernelGpu gpu(ctx);
    TF_RETURN_IF_ERROR(
        CudaStatus(CopyMemory(value.TotalBytes(), value.data(), copy->data(), &gpu)));
    return WhenDone(ctx, [value] {});  // nobody else gets the memory before
  }
#endif
  ctx->set_output(i, value);
  return absl::OkStatus();
}

absl::Status CopyNumbers([[maybe_unused]] OpKernelContext* ctx, const Tensor& from, Tensor* to) {
#if GOOGLE_CUDA
  if (OnGpu(ctx)) {
    KernelGpu gpu(ctx);
    return CudaStatus(CopyMemory(from.TotalBytes(), from.data(), to->data(), &gpu));
  }
#endif
  std::copy_n(Elements<char>(from), from.TotalBytes(), Elements<char>(to));
  return absl::OkStatus();
}

ActiveGpu::ActiveGpu([[maybe_unused]] OpKernelContext* ctx) {
#if GOOGLE_CUDA
  if (!OnGpu(ctx)) return;
  stream_executor::StreamExecutor* const gpu = ctx->op_device_context()->stream()->parent();
#if __has_include("xla/stream_executor/activate_context.h")
  // Not cudaSetDevice, which puts a context on whatever GPU was the thread's before, used or not.
  active_ = gpu->Activate();
#else  // TensorFlow 2.17 and 2.18
  // A failure here comes again, and is reported, where work is enqueued.
  int previous;
  if (cudaGetDevice(&previous) != cudaSuccess) return;
  cudaSetDevice(gpu->device_ordinal());
  active_ = {nullptr, [previous](void*) { cudaSetDevice(previous); }};
#endif
#endif
}

}  // namespace tf_ti
