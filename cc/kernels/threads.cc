#include "cc/kernels/threads.h"

#include <functional>
#include <utility>

namespace tf_ti {

using tensorflow::port::ScopedDontFlushDenormal;

Threads::Threads(int64_t num_threads, Schedule schedule)
    : PoolThreads(num_threads, [schedule = std::move(schedule)](std::function<void()> work) {
        schedule([work = std::move(work)] {
          const ScopedDontFlushDenormal exact;
          work();
        });
      }) {}

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
