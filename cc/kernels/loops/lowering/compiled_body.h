// A body of a loop, of which programs run what they can, and TensorFlow's kernels the rest.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/program.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// What an iteration had, by which a body is compiled.
struct Observed {
  struct Array {
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    tensorflow::TensorShape shape;
    // Of few integers, as axes and shapes are.
    tensorflow::Tensor integers;

    void Set(const tensorflow::Tensor& tensor);
  };

  std::vector<Array> parameters;
  std::vector<bool> stays;  // for each parameter, true if all iterations have the same
  std::vector<Array> values;
};

// A program, and runs of it that wait for the next loop.
class SharedProgram {
 public:
  explicit SharedProgram(const ProgramBuilder& builder) : program_(builder) {}

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
  std::unique_ptr<SharedProgram> program;
  // The program has one more output, a bool. Where it is true kernels must run the steps instead.
  bool may_fail = false;
};

// For parameters of certain shapes. What a program reads is looked at before it runs: an array may
// have another shape that a kernel made.
struct CompiledBody {
  // A kernel, or a region, in its turn.
  struct Unit {
    int step = -1;
    int region = -1;
    Releases releases;
  };

  std::vector<tensorflow::TensorShape> parameters;
  std::vector<bool> stays;
  std::vector<Region> regions;
  std::vector<Unit> units;
  // Where one region is all: for each result of the body its output, or -1 - a parameter.
  // Otherwise empty.
  std::vector<int> whole;

  // For the shape of each parameter.
  template <typename ShapeOf>
  bool Fits(const ShapeOf& shape_of, const std::vector<char>& given_stays) const {
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].IsSameSize(shape_of(p)) || stays[p] != (given_stays[p] != 0)) return false;
    }
    return true;
  }
};

// A run of a region's program, for one loop.
class RegionRun {
 public:
  explicit RegionRun(const Region& region)
      : program_(region.program.get()), run_(program_->Take()) {}
  ~RegionRun() {
    if (run_ != nullptr) program_->GiveBack(std::move(run_));
  }
  RegionRun(RegionRun&&) = default;

  ProgramRun* operator->() { return run_.get(); }
  // Computes what stays, the first time. Inputs that stay are set.
  void RunPrologueOnce() {
    if (std::exchange(prologue_waits_, false)) run_->RunPrologue();
  }

 private:
  SharedProgram* program_;
  std::unique_ptr<ProgramRun> run_;
  bool prologue_waits_ = true;
};

CompiledBody CompileBody(const Schedule& schedule, const Observed& observed);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_
