// Iterations of a loop that are on their way at once.
#ifndef TF_TI_CC_KERNELS_LOOPS_IN_FLIGHT_H_
#define TF_TI_CC_KERNELS_LOOPS_IN_FLIGHT_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/compute/loops/flight.h"
#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/loop_run.h"
#include "cc/status.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// Does the work of a flight, which begins with the run's next iteration. Of several errors it keeps
// the error that would come first if the iterations ran one after the other. After the flight, Land
// hands the run the states of the iteration that is next.
class LoopRun::InFlight : public FlightWork {
 public:
  InFlight(LoopRun* run, std::unique_ptr<BodySlots> slots, int num_slots, bool have_programs);

  Answer Begin(int64_t t) override;
  Answer Advance(int state, int64_t t) override;
  Answer RunUnit(int unit, int64_t t, bool has_all_threads) override;
  Answer Leave(int64_t t) override;
  absl::Status Land(const Landing& landing);

 private:
  // The order of an iteration's errors, among the numbers of units.
  static constexpr int kCancelled = -2;
  static constexpr int kEntering = -1;
  static constexpr int kLeaving = std::numeric_limits<int>::max();

  struct Failure {
    int64_t t = std::numeric_limits<int64_t>::max();
    int at = kLeaving;
    absl::Status status;
  };

  int SlotOf(int64_t t) const { return static_cast<int>(t % num_slots_); }
  BodyFrame& Frame(int64_t t) { return slots_->frame(SlotOf(t)); }

  template <typename Function>
  absl::Status Catch(const Function& function) const {
    return CatchOutOfMemory(run_.ctx_->op_kernel().type_string(), function);
  }
  Answer Fail(int64_t t, int at, const absl::Status& status);
  void Keep(int p, int64_t t);
  absl::Status Enter(int64_t t, Answer* answer);

  LoopRun& run_;
  const LoopSpec& spec_;
  const std::unique_ptr<BodySlots> slots_;
  const int num_slots_;
  std::vector<std::vector<tensorflow::Tensor>> kept_;  // of each slot, further references
  std::vector<char> is_kept_;                          // for each parameter, true if kept_ has it
  std::vector<char> is_moved_;  // for each back edge, true if nothing else reads its result
  int64_t end_ = -1;            // the iteration that the condition keeps from beginning
  std::mutex mutex_;            // guards failure_
  Failure failure_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_IN_FLIGHT_H_
