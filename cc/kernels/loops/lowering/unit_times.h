// How long the units of a compiled body take.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_UNIT_TIMES_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_UNIT_TIMES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tf_ti {

// How long units take, for all who run them; several threads may.
class UnitTimes {
 public:
  explicit UnitTimes(size_t count) : times_(count) {}

  // A mean, in nanoseconds, in which the last times count most; 0 where a unit was not timed.
  int64_t Of(size_t unit) const { return times_[unit].load(std::memory_order_relaxed); }
  // A thread that lost its core makes a time much longer. So no time counts more than four means.
  void Keep(size_t unit, int64_t time) {
    const int64_t mean = Of(unit);
    time = std::max<int64_t>(time, 1);
    const int64_t next = mean == 0 ? time : (3 * mean + std::min(time, 4 * mean) + 3) / 4;
    times_[unit].store(next, std::memory_order_relaxed);
  }
  bool AreKnown() const {
    return std::all_of(times_.begin(), times_.end(), [](const std::atomic<int64_t>& time) {
      return time.load(std::memory_order_relaxed) > 0;
    });
  }

  // No thread is worth waking for the units, as it seems: in so many runs nobody asks again.
  void SetLight() { light_runs_ = kLightRuns; }
  // To be asked once in a run. The units are timed anew once they have been light for long: other
  // values of the same shapes may take longer.
  bool AreLight() {
    int left = light_runs_.load(std::memory_order_relaxed);
    if (left == 0) return false;
    light_runs_.store(--left, std::memory_order_relaxed);
    if (left == 0) {
      for (std::atomic<int64_t>& time : times_) time.store(0, std::memory_order_relaxed);
    }
    return left > 0;
  }

 private:
  static constexpr int kLightRuns = 64;

  std::vector<std::atomic<int64_t>> times_;
  std::atomic<int> light_runs_{0};
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_UNIT_TIMES_H_
