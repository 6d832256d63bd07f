// Steps of a body that are one program.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/program.h"
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
  // The program has one more output, a bool. Where the bool is true kernels must run the steps
  // instead.
  bool may_fail = false;
};

// A run of a region's program, for one loop.
class RegionRun {
 public:
  explicit RegionRun(const Region& region) : program_(region.program), run_(program_->Take()) {}
  ~RegionRun() {
    if (run_ != nullptr) program_->GiveBack(std::move(run_));
  }
  RegionRun(RegionRun&&) = default;

  ProgramRun* operator->() { return run_.get(); }
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
