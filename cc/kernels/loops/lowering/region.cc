#include "cc/kernels/loops/lowering/region.h"

#include <cstdint>
#include <new>

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
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    idle_.push_back(std::move(run));
  } catch (const std::bad_alloc&) {
    // Freed, as there is no place for it. A destructor gives it back, and may not throw.
  }
}

}  // namespace tf_ti
