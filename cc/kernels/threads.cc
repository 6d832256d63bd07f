#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice

#include "cc/kernels/threads.h"

#include <functional>
#include <map>
#include <mutex>
#include <utility>

#include "tsl/platform/threadpool_interface.h"

namespace tf_ti {

namespace {

class InlinePool : public tsl::thread::ThreadPoolInterface {
 public:
  explicit InlinePool(int count) : count_(count) {}

  void Schedule(std::function<void()> work) override { work(); }
  int NumThreads() const override { return count_; }
  int CurrentThreadId() const override { return -1; }

 private:
  const int count_;
};

int NumThreads(const tensorflow::DeviceBase::CpuWorkerThreads& threads) {
  const bool are_inline =
      dynamic_cast<const InlinePool*>(threads.workers->AsEigenThreadPool()) != nullptr;
  return are_inline ? 1 : threads.num_threads;
}

PoolThreads::Schedule ScheduleOn(const tensorflow::DeviceBase::CpuWorkerThreads& threads) {
  return [workers = threads.workers](std::function<void()> work) {
    workers->Schedule(std::move(work));
  };
}

}  // namespace

Threads::Threads(tensorflow::OpKernelContext* ctx)
    : Threads(NumThreads(*ctx->device()->tensorflow_cpu_worker_threads()),
              ScheduleOn(*ctx->device()->tensorflow_cpu_worker_threads())) {}

PoolThreads ThreadsOf(const tensorflow::DeviceBase& device) {
  const tensorflow::DeviceBase::CpuWorkerThreads& threads = *device.tensorflow_cpu_worker_threads();
  return PoolThreads(NumThreads(threads), ScheduleOn(threads));
}

const InlineThreads& InlineThreadsOf(int count) {
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<int, InlineThreads>;  // of few counts: those of devices
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [found, is_new] = all.try_emplace(count);
  if (is_new) {
    auto* const pool = new tensorflow::thread::ThreadPool(new InlinePool(count));
    found->second.workers.num_threads = count;
    found->second.workers.workers = pool;
    found->second.device = new Eigen::ThreadPoolDevice(pool->AsEigenThreadPool(), count);
  }
  return found->second;
}

}  // namespace tf_ti
