// Iterations of a group of a loop's lanes, or of all of them, by programs.
#ifndef TF_TI_CC_KERNELS_LOOPS_NATIVE_PART_H_
#define TF_TI_CC_KERNELS_LOOPS_NATIVE_PART_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cc/compute/loops/homes.h"
#include "cc/compute/loops/moving_pointers.h"
#include "cc/compute/loops/walk.h"
#include "cc/compute/parallel.h"
#include "cc/kernels/loops/lowering/region.h"

namespace tf_ti {

// A program with the values that it reads and makes.
struct NativeProgram {
  const Region* region = nullptr;
  RegionRun* run = nullptr;
  std::vector<int> parameters;  // for each parameter of the region its value
  int first_output = 0;         // the value of the first output
};

// A sum of a value over iterations, which may have another type than the value.
struct NativeSum {
  int value;
  void (*add)(int64_t elements, const char* value, char* sum);
  void (*add_sums)(int64_t elements, const char* other, char* sum);
  int64_t elements;
  int64_t value_size;  // of an element, in bytes
  int64_t sum_size;
  char* sum;
};

// The values and programs of a loop: see homes.h.
struct NativePlan {
  std::vector<LoopValue> values;
  std::vector<LoopWrite> writes;
  std::vector<NativeSum> sums;
  IndexOrder order;
  NativeProgram body;
  // Runs before the body, where there is one: the loop ends where the value `goes_on` is false.
  std::optional<NativeProgram> condition;
  int goes_on = 0;
};

class NativePart {
 public:
  // The part begins with iteration `begin`.
  NativePart(NativePlan plan, int64_t begin);
  NativePart(const NativePart&) = delete;

  // Runs iterations up to before `end`, and returns the first that it has not run.
  int64_t Run(int64_t end, Parallel* parallel, const std::function<bool()>& is_stopped);

  // True if the condition is false.
  bool has_ended() const { return has_ended_; }
  // True if a program has failed in the iteration that was not run.
  bool has_failed() const { return fails_; }
  // The address of a value in the iteration that comes next, or in another one.
  const char* At(int value, int64_t t) const { return homes_.At(value, t); }

 private:
  // A copy of a piece from, or to, a walk.
  struct Copy {
    Walk walk;
    int64_t bytes;
    char* at = nullptr;  // the value's home
  };

  void FindPointersOf(const NativeProgram& program);
  void FindCopies();
  void StartProgram(const NativeProgram& program);
  bool RunProgram(const NativeProgram& program, Parallel* parallel) {
    (*program.run)->Run(parallel);
    return !fails_ && !(*program.run)->was_stopped();
  }
  int64_t IterationTime() const;
  bool RunIteration(Parallel* parallel);

  const NativeProgram body_;
  const std::optional<NativeProgram> condition_;
  std::vector<NativeSum> sums_;
  const IndexOrder order_;
  const Homes homes_;
  MovingPointers pointers_;
  std::vector<Copy> before_;  // copies before each iteration
  std::vector<Copy> after_;
  std::vector<char*> from_;  // of each sum, where the value is
  int64_t now_;              // the iteration, or the first that has not run
  bool has_ended_ = false;
  char* goes_on_ = nullptr;
  bool fails_ = false;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_NATIVE_PART_H_
