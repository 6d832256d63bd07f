// Slots for iterations of a scheduled body that are on their way at once.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SLOTS_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SLOTS_H_

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/executor/spares.h"
#include "cc/kernels/loops/executor/step_runner.h"
#include "cc/kernels/loops/executor/values.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/schedule.h"

namespace tf_ti {

// Each slot has the values of its iteration, and counts the reads of each that are left: units of
// an iteration may run in any order that their inputs allow, so the last reader is found at run
// time.
class ScheduleSlots : public BodySlots {
 public:
  // The slots share the invariants of `frame`.
  ScheduleSlots(std::shared_ptr<StepRunner> steps, std::shared_ptr<const CompiledBody> body,
                const BodyFrame& frame, int count);

  BodyFrame& frame(int slot) override { return slots_[slot]->frame; }
  void Start(int number) override;
  bool Set(int parameter, int number) override;
  bool Fits(int u, int number) const override;
  absl::Status Run(int u, int number, bool has_all_threads) override;

 private:
  // How often a unit reads each value and parameter.
  struct Reads {
    std::map<int, int> values;
    std::map<int, int> parameters;
  };
  struct Slot {
    Slot(const Schedule& schedule, const BodyFrame& given);

    BodyFrame frame;
    Values values;
    std::mutex mutex;  // guards the reads that are left
    std::vector<int> values_left;
    std::vector<int> parameters_left;
  };

  absl::Status RunUnit(int u, bool is_inline, Slot* slot);
  static void Unguard(const Reads& reads, Slot* slot);
  static void Release(const Reads& reads, Slot* slot);

  const std::shared_ptr<StepRunner> steps_;
  const std::shared_ptr<const CompiledBody> body_;
  std::vector<Reads> reads_;      // of the units
  std::vector<int> value_reads_;  // for each value the number of its reads in an iteration
  std::vector<int> parameter_reads_;
  bool has_programs_ = false;
  std::vector<Spares<RegionRun>> spares_;  // of the regions
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_SLOTS_H_
