// Runs kernels and programs on the values of an iteration.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_STEP_RUNNER_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_STEP_RUNNER_H_

#include <vector>

#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/executor/loop_device.h"
#include "cc/kernels/loops/executor/spares.h"
#include "cc/kernels/loops/executor/values.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/packed_product.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

// Runs the steps and regions of a schedule, for one run of a loop. Several threads may, each with
// its own parameters, values and run of a program. Kernels and programs that run `is_inline` wake
// no other thread.
class StepRunner {
 public:
  StepRunner(const Schedule& schedule, const tensorflow::LocalExecutorParams& local,
             LoopDevices* devices, const tensorflow::Executor::Args& args);

  const Schedule& schedule() const { return schedule_; }
  // What kernels are given beside their inputs.
  const tensorflow::OpKernelContext::Params& params() const { return params_; }

  absl::Status RunStep(const Step& step, bool is_inline,
                       tensorflow::OpKernelContext::Params* params, Values* values);
  // Runs a region's program. If the program fails, kernels run the steps, and their errors tell
  // why.
  absl::Status RunRegion(const Region& region, bool is_inline,
                         tensorflow::OpKernelContext::Params* params, RegionRun* region_run,
                         Values* values);
  // Runs kernels in place of a region's program.
  absl::Status RunKernelsOf(const Region& region, bool is_inline,
                            tensorflow::OpKernelContext::Params* params, Values* values);

 private:
  bool RunProgram(const Region& region, bool is_inline, RegionRun* region_run);
  bool ComputePacked(const Step& step, const BodyFrame& frame, tensorflow::OpKernelContext* ctx);
  void Compute(const Step& step, tensorflow::OpKernel* kernel, const BodyFrame& frame,
               tensorflow::OpKernelContext* ctx);

  const Schedule& schedule_;
  LoopDevices& devices_;
  tensorflow::Executor::Args::Runner runner_;
  tensorflow::OpKernelContext::Params params_;
  std::vector<Spares<PackedProduct>> packed_products_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_STEP_RUNNER_H_
