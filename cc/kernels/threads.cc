#include "cc/kernels/threads.h"

#include <functional>
#include <utility>

namespace tf_ti {

Threads::Threads(tensorflow::OpKernelContext* ctx)
    : Threads(ctx->device()->tensorflow_cpu_worker_threads()->num_threads,
              [workers = ctx->device()->tensorflow_cpu_worker_threads()->workers](
                  std::function<void()> work) { workers->Schedule(std::move(work)); }) {}

PoolThreads ThreadsOf(const tensorflow::DeviceBase& device) {
  const tensorflow::DeviceBase::CpuWorkerThreads& threads = *device.tensorflow_cpu_worker_threads();
  return PoolThreads(threads.num_threads, [workers = threads.workers](std::function<void()> work) {
    workers->Schedule(std::move(work));
  });
}

}  // namespace tf_ti
