// The compiled forms of one body, for parameters of several shapes.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_COMPILED_BODIES_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_COMPILED_BODIES_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/lowering/compiled_body.h"

namespace tf_ti {

// The bodies that were compiled last, at most eight. All runs of a body share them; several threads
// may.
class CompiledBodies : public BodyPrograms {
 public:
  CompiledBodies();

  // False if TensorFlow's kernels are to run all of the body.
  bool are_wanted() const { return are_wanted_; }

  // Finds the body that was added last among the bodies that fit, or null.
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
  std::mutex mutex_;  // guards bodies_
  std::deque<std::shared_ptr<const CompiledBody>> bodies_;
};

// The compiled bodies that one run of a loop has adopted: the run has used them, even if another
// run compiled them. So the bits of its results do not depend on other runs. A run adopts at most
// eight, so that shapes that change all the time are not compiled again and again.
class AdoptedBodies {
 public:
  explicit AdoptedBodies(CompiledBodies* shared) : shared_(shared) {}

  // Finds a body that fits, which is adopted or may be, or null.
  template <typename Fits>
  std::shared_ptr<const CompiledBody> Find(const Fits& fits) const {
    for (const auto& body : adopted_) {
      if (fits(*body)) return body;
    }
    return MayAdopt() ? shared_->Find(fits) : nullptr;
  }

  bool MayAdopt() const { return adopted_.size() < kMost; }
  void Adopt(const std::shared_ptr<const CompiledBody>& body) {
    const auto found = std::find(adopted_.begin(), adopted_.end(), body);
    if (found == adopted_.end()) adopted_.push_back(body);
  }
  // Shares a body that was compiled, and adopts it.
  std::shared_ptr<const CompiledBody> Add(CompiledBody body);

 private:
  static constexpr size_t kMost = 8;

  CompiledBodies* const shared_;
  std::vector<std::shared_ptr<const CompiledBody>> adopted_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_COMPILED_BODIES_H_
