// Steps of a body that are one program.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/lanes.h"
#include "cc/compute/program/program.h"
#include "cc/compute/program/steps.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

// A program, and runs of it that wait for the next loop.
class SharedProgram {
 public:
  explicit SharedProgram(const ProgramSteps& steps) : program_(steps) {}

  const Program& program() const { return program_; }
  std::unique_ptr<ProgramRun> Take();
  void GiveBack(std::unique_ptr<ProgramRun> run);

 private:
  const Program program_;
  std::mutex mutex_;  // guards idle_
  std::vector<std::unique_ptr<ProgramRun>> idle_;
};

// The environment's TF_TI_LANES: 0 for no groups, or the lanes of each group; -1 for any other
// value.
int64_t LanesInEnvironment();

// The lanes of a loop, and programs of groups of them.
class LanePrograms {
 public:
  LanePrograms(std::shared_ptr<const ProgramSteps> steps, const LoopPlan& plan);

  const LoopPlan& plan() const { return plan_; }
  // Null if the loop has no lanes.
  const Lanes* lanes() const { return lanes_.count > 0 ? &lanes_ : nullptr; }
  // The program of `count` lanes.
  std::shared_ptr<SharedProgram> ProgramOf(int64_t count);

 private:
  const std::shared_ptr<const ProgramSteps> steps_;
  const LoopPlan plan_;
  Lanes lanes_;
  std::mutex mutex_;  // guards by_count_
  std::map<int64_t, std::shared_ptr<SharedProgram>> by_count_;
};

// The lanes of the loops that a program's steps are the body of. Loops of one body may want
// different outputs.
class RegionLanes {
 public:
  explicit RegionLanes(const ProgramSteps& steps)
      : steps_(std::make_shared<const ProgramSteps>(WithoutDeadSteps(steps))) {}

  std::shared_ptr<LanePrograms> For(const LoopPlan& plan);

 private:
  const std::shared_ptr<const ProgramSteps> steps_;
  std::mutex mutex_;  // guards by_plan_
  std::vector<std::shared_ptr<LanePrograms>> by_plan_;
};

// Steps that are one program.
struct Region {
  struct Array {
    Source source;  // of an output: the value
    tensorflow::DataType dtype;
    tensorflow::TensorShape shape;
  };

  std::string name;  // in a profile
  std::vector<int> steps;
  std::vector<Array> inputs;
  std::vector<Array> outputs;
  std::shared_ptr<SharedProgram> program;
  // Null where the region may be less than a whole body.
  std::shared_ptr<RegionLanes> lanes;
  // The program has one more output, a bool. Where the bool is true kernels must run the steps
  // instead.
  bool may_fail = false;
};

// A run of a region's program, for one loop.
class RegionRun {
 public:
  explicit RegionRun(const Region& region) : RegionRun(region.program) {}
  explicit RegionRun(std::shared_ptr<SharedProgram> program)
      : program_(std::move(program)), run_(program_->Take()) {}
  ~RegionRun() {
    if (run_ != nullptr) program_->GiveBack(std::move(run_));
  }
  RegionRun(RegionRun&&) = default;

  ProgramRun* operator->() { return run_.get(); }
  const Program& program() const { return program_->program(); }
  // Runs the prologue at the first call. Loop-invariant inputs are set before.
  void RunPrologueOnce() {
    if (std::exchange(prologue_waits_, false)) run_->RunPrologue();
  }

 private:
  std::shared_ptr<SharedProgram> program_;
  std::unique_ptr<ProgramRun> run_;
  bool prologue_waits_ = true;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_H_
