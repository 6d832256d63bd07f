// A body of a loop, run by programs where possible and by TensorFlow's kernels elsewhere.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "cc/kernels/loops/lowering/region.h"
#include "cc/kernels/loops/lowering/unit_times.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

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

  // True if the body was compiled for the shapes that `shape_of` gives for each parameter.
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

// Compiles a body and runs an iteration of it. The body has its parameters, and units that have run
// already, if it shares these with another one.
absl::Status CompileBody(const Schedule& schedule, FirstIteration* iteration, CompiledBody* body);

// True if the units before one are the same in both bodies, which both go on.
bool AreAlikeUpTo(size_t unit, const CompiledBody& a, const CompiledBody& b);
// The body with only the units before one.
CompiledBody CutBefore(size_t unit, const CompiledBody& body);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_COMPILED_BODY_H_
