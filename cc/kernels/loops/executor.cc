#include "cc/kernels/loops/executor.h"

#include <memory>
#include <utility>
#include <vector>

#include "cc/kernels/loops/executor/loop_device.h"
#include "cc/kernels/loops/executor/schedule_runner.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

using tensorflow::Executor;
using tensorflow::LocalExecutorParams;
using tensorflow::OpKernel;

const char kLoopExecutor[] = "TF_TI_LOOP_EXECUTOR";

namespace {

class LoopExecutor : public Executor {
 public:
  explicit LoopExecutor(const LocalExecutorParams& params)
      : params_(params), devices_(params.device) {}
  ~LoopExecutor() override {
    for (OpKernel* kernel : kernels_) params_.delete_kernel(kernel);
  }

  absl::Status Init(const tensorflow::Graph& graph) {
    return scheduled_.Init(params_, graph, &kernels_);
  }

  absl::Status Run(const Args& args) override {
    return CatchOutOfMemory(kBodyInErrors, [&] { return StartRun(args); });
  }

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override { done(Run(args)); }

  absl::Status StartRun(const Args& args) {
    auto* frame = static_cast<BodyFrame*>(args.call_frame);
    const size_t num_parameters = scheduled_.schedule.parameters.size();
    if (frame->parameters.size() < num_parameters) {
      return InvalidArgument("expected ", num_parameters, " arguments, got ",
                             frame->parameters.size());
    }
    const bool may_compile = scheduled_.compiled.are_wanted() && frame->fuse;
    frame->programs = may_compile ? &scheduled_.compiled : nullptr;
    frame->runner =
        std::make_unique<ScheduleRunner>(&scheduled_, params_, &devices_, args, may_compile, frame);
    return frame->only_prepares ? absl::OkStatus() : frame->runner->Run();
  }

  const LocalExecutorParams params_;
  LoopDevices devices_;
  ScheduledBody scheduled_;
  std::vector<OpKernel*> kernels_;
};

class LoopExecutorFactory : public tensorflow::ExecutorFactory {
 public:
  absl::Status NewExecutor(const LocalExecutorParams& params, const tensorflow::Graph& graph,
                           std::unique_ptr<Executor>* executor) override {
    return CatchOutOfMemory(kBodyInErrors, [&] {
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
