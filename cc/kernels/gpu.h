// Kernels whose device is a GPU: which values lie where, and how they get to the host and back.
#ifndef TF_TI_CC_KERNELS_GPU_H_
#define TF_TI_CC_KERNELS_GPU_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/compute/gpu.h"
#include "cc/kernels/threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

inline bool OnGpu([[maybe_unused]] tensorflow::OpKernelContext* ctx) {
#if GOOGLE_CUDA
  return ctx->op_device_context() != nullptr;
#else
  return false;
#endif
}

// Returns true if values of this type lie in the host's memory though their device is a GPU, as
// parameters and results of TensorFlow's functions do.
bool LivesOnHost(tensorflow::DataType dtype);

// Copies those of the first `count` inputs to the host whose values live on the host but came in
// the GPU's memory; that waits for the GPU. `inputs` is then all of them. It stays empty where
// there is nothing to copy.
absl::Status BringInputsToHost(tensorflow::OpKernelContext* ctx, int count,
                               std::vector<tensorflow::Tensor>* inputs);

// Sets output `i` to a tensor in the host's memory, or to a copy on the GPU if the output lies
// there.
absl::Status SetHostOutput(tensorflow::OpKernelContext* ctx, int i,
                           const tensorflow::Tensor& value);

// Copies a tensor of numbers to one of its shape, where both lie on the kernel's device.
absl::Status CopyNumbers(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& from,
                         tensorflow::Tensor* to);

// Makes the kernel's GPU that of the calling thread. TensorFlow does so for threads on which it
// calls a kernel, but not for those on which it calls back.
class ActiveGpu {
 public:
  explicit ActiveGpu(tensorflow::OpKernelContext* ctx);
  ActiveGpu(const ActiveGpu&) = delete;
  ActiveGpu& operator=(const ActiveGpu&) = delete;

 private:
  std::shared_ptr<void> active_;  // ends it when destroyed, whatever type TensorFlow has for that
};

// The error for an error message of cc/compute: about the input, where the processor computed.
absl::Status ToStatus(const std::string& problem, const Threads* threads);

#if GOOGLE_CUDA

// The kernel's GPU for cc/compute. Its stream does its work in order, so memory can be freed, for
// later work, as soon as all work that needs it is enqueued.
class KernelGpu : public Gpu {
 public:
  explicit KernelGpu(tensorflow::OpKernelContext* ctx) : ctx_(ctx) {}

  CUstream_st* stream() const override;
  void* Allocate(int64_t bytes) override;

  // Not OK once TensorFlow has refused memory.
  const absl::Status& memory_status() const { return memory_status_; }

 private:
  tensorflow::OpKernelContext* const ctx_;
  std::vector<tensorflow::Tensor> memory_;
  absl::Status memory_status_;
};

// On a GPU, the error may be about memory or CUDA.
absl::Status ToStatus(const std::string& problem, const KernelGpu* gpu);

// The same where the error can only be about CUDA.
absl::Status CudaStatus(const std::string& problem);

// Memory of the host that the GPU reads and writes without any waiting.
absl::Status AllocateForGpu(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor);

// A copy of `tensor` in the host's memory, which has its values once the stream has got there.
absl::Status EnqueueToHost(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& tensor,
                           tensorflow::Tensor* copy);

// Waits until the stream has done all its work.
absl::Status Synchronize(tensorflow::OpKernelContext* ctx);

// Calls `then`, which must not wait, on a thread of TensorFlow's once the stream has done all its
// work up to now. If that is impossible, waits for the stream, and does not call `then`.
absl::Status WhenDone(tensorflow::OpKernelContext* ctx, std::function<void()> then);

#endif

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_GPU_H_
