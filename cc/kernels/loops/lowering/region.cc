#include "cc/kernels/loops/lowering/region.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#include "absl/strings/numbers.h"

namespace tf_ti {

std::unique_ptr<ProgramRun> SharedProgram::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<ProgramRun> run = std::move(idle_.back());
      idle_.pop_back();
      return run;
    }
  }
  return std::make_unique<ProgramRun>(program_);
}

void SharedProgram::GiveBack(std::unique_ptr<ProgramRun> run) {
  // To get more memory anew takes less time than a loop that uses it.
  constexpr int64_t kMostBytes = 1 << 20;
  if (run->bytes() > kMostBytes) return;
  run->SetStop(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    idle_.push_back(std::move(run));
  } catch (const std::bad_alloc&) {
    // Freed, as there is no place for it. A destructor gives it back, and may not throw.
  }
}

int64_t LanesInEnvironment() {
  static const int64_t lanes = [] {
    const char* const value = std::getenv("TF_TI_LANES");
    int64_t number = -1;
    const bool is_number = value != nullptr && absl::SimpleAtoi(value, &number);
    return is_number && (number == 0 || number >= 2) ? number : int64_t{-1};
  }();
  return lanes;
}

std::shared_ptr<LanePrograms> RegionLanes::For(const LoopPlan& plan) {
  constexpr size_t kMostPlans = 4;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::shared_ptr<LanePrograms>& known : by_plan_) {
    if (known->plan() == plan) return known;
  }
  if (by_plan_.size() == kMostPlans) by_plan_.erase(by_plan_.begin());
  return by_plan_.emplace_back(std::make_shared<LanePrograms>(steps_, plan));
}

LanePrograms::LanePrograms(std::shared_ptr<const ProgramSteps> steps, const LoopPlan& plan)
    : steps_(std::move(steps)), plan_(plan) {
  const std::vector<Lanes> all = FindLanes(*steps_, plan_).lanes;
  if (!all.empty()) lanes_ = all[0];
}

std::shared_ptr<SharedProgram> LanePrograms::ProgramOf(int64_t count) {
  constexpr size_t kMostCounts = 8;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (by_count_.size() == kMostCounts && by_count_.count(count) == 0) by_count_.clear();
  std::shared_ptr<SharedProgram>& program = by_count_[count];
  if (program == nullptr) {
    program = std::make_shared<SharedProgram>(CutLanes(*steps_, lanes_, count));
  }
  return program;
}

}  // namespace tf_ti
