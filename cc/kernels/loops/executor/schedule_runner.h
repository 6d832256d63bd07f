// Runs a body's schedule: one iteration after the other, or several at once.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SCHEDULE_RUNNER_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SCHEDULE_RUNNER_H_

#include <memory>
#include <vector>

#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/executor/compiled_bodies.h"
#include "cc/kernels/loops/executor/loop_device.h"
#include "cc/kernels/loops/executor/own_cancellation.h"
#include "cc/kernels/loops/executor/step_runner.h"
#include "cc/kernels/loops/executor/values.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

// The schedule of a body and its compiled forms, which all runs of the body share.
struct ScheduledBody {
  // `made` gets all kernels that are made, which are the caller's.
  absl::Status Init(const tensorflow::LocalExecutorParams& params, const tensorflow::Graph& graph,
                    std::vector<tensorflow::OpKernel*>* made);

  Schedule schedule;
  std::shared_ptr<const CompiledBody> kernels;  // each step a unit: no programs
  CompiledBodies compiled;
};

// Runs a body for one run of a loop, by programs as far as possible if `may_compile`. An iteration
// of new shapes runs while the body is compiled for them, and later iterations run the compiled
// body. If a kernel makes an array of another shape than the next unit was made for, the iteration
// goes on with another body that fits, or with a newly compiled one, or with kernels alone.
class ScheduleRunner : public BodyRunner, private FirstIteration {
 public:
  ScheduleRunner(ScheduledBody* scheduled, const tensorflow::LocalExecutorParams& local,
                 LoopDevices* devices, const tensorflow::Executor::Args& args, bool may_compile,
                 BodyFrame* frame);

  absl::Status Run() override;
  FoundUnits FindUnits(const std::vector<tensorflow::TensorShape>& parameters) override;
  BodyUnits Units() const override;
  void SetLight() override { found_->times->SetLight(); }
  std::unique_ptr<BodySlots> MakeSlots(int count) override;
  void KeepUnits() override { adopted_.Adopt(found_); }

 private:
  absl::Status RunIteration();
  absl::Status RunKernels();
  absl::Status RunTimed(const CompiledBody& body);
  absl::Status RunCompiled();
  absl::Status RunUnits();
  absl::Status RunRest(size_t u);
  absl::Status RunRestByKernels(size_t u);
  absl::Status RunUnit(const CompiledBody& body, const CompiledBody::Unit& unit);
  absl::Status RunStep(const Step& step, const Releases& releases);

  void UseBody(std::shared_ptr<const CompiledBody> body);
  void UseRegions(const CompiledBody& body);
  bool UseOther(size_t u);
  CompiledBody WithoutUnits() const;
  absl::Status CompileRest(CompiledBody body);
  absl::Status RunLast(const CompiledBody& body) override;
  const tensorflow::Tensor& TensorOf(const Source& source) const override {
    return values_.TensorOf(source);
  }

  const Schedule& schedule_;
  const std::shared_ptr<const CompiledBody> kernels_;
  const bool may_compile_;
  BodyFrame* const frame_;
  const std::shared_ptr<StepRunner> steps_;
  tensorflow::OpKernelContext::Params params_;
  const OwnCancellation own_cancellation_;
  Values values_;
  AdoptedBodies adopted_;
  std::shared_ptr<const CompiledBody> body_;   // the body that ran last, or null
  std::vector<RegionRun> runs_;                // of its regions
  std::shared_ptr<const CompiledBody> found_;  // by FindUnits
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SCHEDULE_RUNNER_H_
