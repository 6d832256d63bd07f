// Runs of a body's schedule: one iteration after the other, or several at once.
#ifndef TF_TI_CC_KERNELS_LOOPS_SCHEDULE_RUNNER_H_
#define TF_TI_CC_KERNELS_LOOPS_SCHEDULE_RUNNER_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/device_base.h"

namespace tf_ti {

// What has been compiled of a body, for the parameters' last few shapes.
class CompiledBodies : public BodyPrograms {
 public:
  CompiledBodies();

  bool are_wanted() const { return are_wanted_; }

  // Finds the body that was added last among the bodies that fit.
  template <typename Fits>
  std::shared_ptr<const CompiledBody> Find(const Fits& fits) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found =
        std::find_if(bodies_.begin(), bodies_.end(), [&](const auto& body) { return fits(*body); });
    return found == bodies_.end() ? nullptr : *found;
  }

  bool FindWhole(const std::vector<char>& stays, WholeBody* whole) override;
  std::shared_ptr<const CompiledBody> Add(CompiledBody body);

 private:
  static constexpr size_t kMost = 8;

  const bool are_wanted_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<const CompiledBody>> bodies_;
};

// The device of a loop, as its kernels see it: with all threads; with one; and with threads that
// the kernel's own stands in for, though it rounds as with all of them.
struct LoopDevices {
  tensorflow::DeviceBase* all;
  tensorflow::DeviceBase* one;
  tensorflow::DeviceBase* inlined;
};

// What runs of a schedule have in common.
struct Schedules {
  // To be called once there is the schedule.
  void SetKernels();

  Schedule schedule;
  std::shared_ptr<const CompiledBody> kernels;  // without programs
  CompiledBodies compiled;
};

// Makes the runner of a schedule for one run of a loop. It uses programs if `may_compile`.
std::unique_ptr<BodyRunner> MakeRunner(Schedules* schedules,
                                       const tensorflow::LocalExecutorParams& local,
                                       const LoopDevices& devices,
                                       const tensorflow::Executor::Args& args, bool may_compile,
                                       BodyFrame* frame);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_SCHEDULE_RUNNER_H_
