// A body of a loop, of which programs run what they can, and TensorFlow's kernels the rest.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/program.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

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
  std::shared_ptr<SharedProgram> program;
  // The program has one more output, a bool. Where it is true kernels must run the steps instead.
  bool may_fail = false;
};

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

// A body compiled for certain shapes: of its parameters, and of the kernels' results that its
// regions read. The shapes alone decide which steps programs run.
struct CompiledBody {
  // A kernel, or a region, in its turn.
  struct Unit {
    int step = -1;
    int region = -1;
    std::vector<Region::Array>
        inputs;  // of a kernel: the arrays whose shapes keep it from a program
    Releases releases;
  };

  // The arrays whose shapes decided that the body goes on with this unit.
  const std::vector<Region::Array>& DecidedBy(const Unit& unit) const {
    return unit.region < 0 ? unit.inputs : regions[unit.region].inputs;
  }

  std::vector<tensorflow::TensorShape> parameters;
  std::vector<char> stays;  // for each parameter, true if all iterations have the same
  std::vector<Region> regions;
  std::vector<Unit> units;
  std::vector<std::optional<tensorflow::Tensor>> known;  // of values: few integers, if they are
  std::shared_ptr<UnitTimes> times;                      // of the units
  // Where one region is all: for each result of the body its output, or -1 - a parameter.
  // Otherwise empty.
  std::vector<int> whole;

  // For the shape of each parameter.
  template <typename ShapeOf>
  bool Fits(const ShapeOf& shape_of, const std::vector<char>& given_stays) const {
    for (size_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].IsSameSize(shape_of(p)) || stays[p] != given_stays[p]) return false;
    }
    return true;
  }
};

// An iteration that runs while its body is compiled: its kernels show the shapes of their results.
class FirstIteration {
 public:
  virtual ~FirstIteration() = default;
  // Runs the last unit of a body that has the units before it.
  virtual absl::Status RunLast(const CompiledBody& body) = 0;
  // A parameter, or a value that some step still reads.
  virtual const tensorflow::Tensor& TensorOf(const Source& source) const = 0;
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
  // Computes what stays, the first time. Inputs that stay are set.
  void RunPrologueOnce() {
    if (std::exchange(prologue_waits_, false)) run_->RunPrologue();
  }

 private:
  std::shared_ptr<SharedProgram> program_;
  std::unique_ptr<ProgramRun> run_;
  bool prologue_waits_ = true;
};

// Compiles a body and runs an iteration of it. The body has its parameters, and units that have run
// already, if it shares these with another one.
absl::Status CompileBody(const Schedule& schedule, FirstIteration* iteration, CompiledBody* body);

// True if the units before one are the same in both bodies, which both go on.
bool AreAlikeUpTo(size_t unit, const CompiledBody& a, const CompiledBody& b);
// The body with only the units before one.
CompiledBody CutBefore(size_t unit, const CompiledBody& body);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_
