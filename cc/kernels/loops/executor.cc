#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice

#include "cc/kernels/loops/executor.h"

#include <memory>
#include <utility>

#include "cc/kernels/loops/caching_allocator.h"
#include "cc/kernels/loops/schedule_runner.h"
#include "cc/kernels/threads.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::Executor;
using tensorflow::LocalExecutorParams;
using tensorflow::OpKernel;
using tensorflow::Tensor;

const char kLoopExecutor[] = "TF_TI_LOOP_EXECUTOR";

namespace {

// In errors, which the loop tells the iteration and the op's name.
constexpr char kBody[] = "a loop's body";

// The device that runs the loop, with an allocator that suits loops, and with other threads if they
// are given.
class LoopDevice : public tensorflow::Device {
 public:
  explicit LoopDevice(tensorflow::Device* device, const InlineThreads* threads = nullptr)
      : Device(tensorflow::Env::Default(), device->attributes()),
        device_(device),
        threads_(threads) {}

  tensorflow::Allocator* GetAllocator(AllocatorAttributes attributes) override {
    return attributes.value == 0 || attributes.value == HostAttributes().value
               ? GetCachingAllocator()
               : device_->GetAllocator(attributes);
  }
  tensorflow::Allocator* GetScopedAllocator(AllocatorAttributes attributes,
                                            int64_t step_id) override {
    return device_->GetScopedAllocator(attributes, step_id);
  }
  tensorflow::ScopedAllocatorMgr* GetScopedAllocatorMgr() const override {
    return device_->GetScopedAllocatorMgr();
  }
  const tensorflow::DeviceBase* UnderlyingDevice() const override {
    return device_->UnderlyingDevice();
  }
  tensorflow::DeviceBase* UnderlyingDevice() override { return device_->UnderlyingDevice(); }
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override {
    return threads_ != nullptr ? &threads_->workers : device_->tensorflow_cpu_worker_threads();
  }
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override {
    return threads_ != nullptr ? threads_->device : device_->eigen_cpu_device();
  }
  bool has_eigen_cpu_device() const override { return device_->has_eigen_cpu_device(); }
  tensorflow::thread::ThreadPool* tensorflow_device_thread_pool() override {
    return threads_ != nullptr ? threads_->workers.workers
                               : device_->tensorflow_device_thread_pool();
  }
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   const AllocatorAttributes attributes, Tensor* tensor) override {
    return device_->MakeTensorFromProto(proto, attributes, tensor);
  }
  absl::Status Sync() override { return device_->Sync(); }
  tensorflow::ResourceMgr* resource_manager() override { return device_->resource_manager(); }

 private:
  static AllocatorAttributes HostAttributes() {
    AllocatorAttributes attributes;
    attributes.set_on_host(true);
    return attributes;
  }

  tensorflow::Device* const device_;
  const InlineThreads* const threads_;
};

class LoopExecutor : public Executor {
 public:
  explicit LoopExecutor(const LocalExecutorParams& params)
      : params_(params),
        all_(params.device),
        // Work of some microseconds takes longer where threads must wake up for it.
        one_(params.device, &InlineThreadsOf(1)),
        inlined_(params.device,
                 &InlineThreadsOf(params.device->tensorflow_cpu_worker_threads()->num_threads)) {}
  ~LoopExecutor() override {
    for (OpKernel* kernel : kernels_) params_.delete_kernel(kernel);
  }

  absl::Status Init(const tensorflow::Graph& graph) {
    TF_RETURN_IF_ERROR(MakeSchedule(params_, graph, &schedules_.schedule, &kernels_));
    schedules_.SetKernels();
    return absl::OkStatus();
  }

  absl::Status Run(const Args& args) override {
    return CatchOutOfMemory(kBody, [&] { return StartRun(args); });
  }

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override { done(Run(args)); }

  absl::Status StartRun(const Args& args) {
    auto* frame = static_cast<BodyFrame*>(args.call_frame);
    const size_t num_parameters = schedules_.schedule.parameters.size();
    if (frame->parameters.size() < num_parameters) {
      return InvalidArgument("expected ", num_parameters, " arguments, got ",
                             frame->parameters.size());
    }
    const bool may_compile = schedules_.compiled.are_wanted() && frame->fuse;
    frame->programs = may_compile ? &schedules_.compiled : nullptr;
    frame->runner =
        MakeRunner(&schedules_, params_, {&all_, &one_, &inlined_}, args, may_compile, frame);
    return frame->only_prepares ? absl::OkStatus() : frame->runner->Run();
  }

  const LocalExecutorParams params_;
  LoopDevice all_;
  LoopDevice one_;
  LoopDevice inlined_;
  Schedules schedules_;
  std::vector<OpKernel*> kernels_;
};

class LoopExecutorFactory : public tensorflow::ExecutorFactory {
 public:
  absl::Status NewExecutor(const LocalExecutorParams& params, const tensorflow::Graph& graph,
                           std::unique_ptr<Executor>* executor) override {
    return CatchOutOfMemory(kBody, [&] {
      auto made = std::make_unique<LoopExecutor>(params);
      TF_RETURN_IF_ERROR(made->Init(graph));
      *executor = std::move(made);
      return absl::OkStatus();
    });
  }
};

[[maybe_unused]] const bool registered = [] {
  tensorflow::ExecutorFactory::Register(kLoopExecutor, new LoopExecutorFactory);
  return true;
}();

}  // namespace
}  // namespace tf_ti
