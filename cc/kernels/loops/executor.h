// An executor for bodies of loops: one thread runs the kernels in a fixed order, and everything
// that does not change from one iteration to the next is set up once a loop.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/kernels/loops/lowering/compiled_body.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// The value of InstantiateOptions::executor_type that asks for the executor. Functions that it runs
// must have a BodyFrame as their call frame.
extern const char kLoopExecutor[];

// The name of a body in errors. The loop adds the iteration and the op's name.
constexpr char kBodyInErrors[] = "a loop's body";

// A body that is one program for parameters of these shapes, with a run of it.
struct WholeBody {
  std::vector<tensorflow::TensorShape> parameters;
  std::shared_ptr<const CompiledBody> body;
  std::unique_ptr<RegionRun> run;

  const Region& region() const { return body->regions[0]; }
};

// The programs of a body, which belong to its executor.
class BodyPrograms {
 public:
  virtual ~BodyPrograms() = default;
  // Completes `whole`, which has the parameters' shapes. `stays` is true for each parameter that is
  // the same in all iterations. Returns false if the body is not known to be one program for them.
  virtual bool FindWhole(const std::vector<char>& stays, WholeBody* whole) = 0;
};

class BodyFrame;

// The parts of a body, its kernels and programs, in the order in which they run.
struct BodyUnits {
  struct Unit {
    std::vector<int> after;       // the units that it follows
    std::vector<int> parameters;  // the parameters that it reads
    int64_t time;                 // in nanoseconds
  };
  std::vector<Unit> units;
  std::vector<int> makers;     // for each result the unit that makes it, or -1
  std::vector<int> passed_on;  // for each result the parameter that it is, or -1
  bool have_programs = false;
};

// Iterations of a body that are on their way at once, each in a slot. Slots and units have numbers.
class BodySlots {
 public:
  virtual ~BodySlots() = default;
  virtual BodyFrame& frame(int slot) = 0;
  // Readies a slot for another iteration. Its invariants are there.
  virtual void Start(int slot) = 0;
  // A parameter of the slot's frame has been set. Returns false if the units were not made for its
  // shape.
  virtual bool Set(int parameter, int slot) = 0;
  // Returns false if a unit, which can run now, was made for other shapes than the slot's.
  virtual bool Fits(int unit, int slot) const = 0;
  // Runs a unit that fits.
  virtual absl::Status Run(int unit, int slot, bool has_all_threads) = 0;
};

// The answer of BodyRunner::FindUnits.
enum class FoundUnits {
  kNone,   // there are none for the shapes, or they have not been timed (see BodyFrame::is_timed)
  kLight,  // they take too little time for other threads
  kTimed,
};

// Runs a body for one run of a loop.
class BodyRunner {
 public:
  virtual ~BodyRunner() = default;
  // Runs the body again, with the parameters that its frame holds by now.
  virtual absl::Status Run() = 0;
  // Finds the units for parameters of these shapes. Further parameters may have any shape.
  virtual FoundUnits FindUnits(const std::vector<tensorflow::TensorShape>& parameters) = 0;
  // Describes the units that were found last, which have been timed.
  virtual BodyUnits Units() const = 0;
  // Has the units that were found last stay on one thread from now on.
  virtual void SetLight() = 0;
  // Makes slots for the units that were found last.
  virtual std::unique_ptr<BodySlots> MakeSlots(int count) = 0;
  // To be called once slots have run iterations: they count as if Run had run them.
  virtual void KeepUnits() = 0;
};

// Hands an iteration's parameters to the body and takes its results.
class BodyFrame : public tensorflow::CallFrameInterface {
 public:
  size_t num_args() const override { return parameters.size(); }
  size_t num_retvals() const override { return results.size(); }
  absl::Status GetArg(int index, const tensorflow::Tensor** value) override {
    *value = &parameters[index];
    return absl::OkStatus();
  }
  bool CanConsumeArg(int index) const override { return consumable[index]; }
  void ConsumeArg(int index, tensorflow::Tensor* value) override {
    *value = std::move(parameters[index]);
  }
  absl::Status SetRetval(int index, const tensorflow::Tensor& value) override {
    results[index] = value;
    return absl::OkStatus();
  }

  std::vector<tensorflow::Tensor> parameters;
  // True for a back edge's value, which belongs to one iteration alone: the body may reuse its
  // memory. Whoever sets a parameter that is not consumable keeps a reference.
  std::vector<char> consumable;
  // True for parameters that have the same value in all iterations.
  std::vector<char> invariant;
  std::vector<tensorflow::Tensor> results;
  // True if programs may run parts of the body.
  bool fuse = true;
  // True where the first run only makes the runner.
  bool only_prepares = false;
  // True where a run keeps how long its units take.
  bool is_timed = false;
  // Set by the first run, if the executor is kLoopExecutor; later ones need no detour.
  std::unique_ptr<BodyRunner> runner;
  // Set by the first run too; null where programs may not run the body.
  BodyPrograms* programs = nullptr;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_H_
