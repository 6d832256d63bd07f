// The kernels of a body in the order in which they run.
#ifndef TF_TI_CC_KERNELS_LOOPS_SCHEDULE_H_
#define TF_TI_CC_KERNELS_LOOPS_SCHEDULE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

// True for operations whose result is their input. No kernel runs them.
inline bool IsIdentity(const std::string& op) {
  return op == "Identity" || op == "StopGradient" || op == "PreventGradient" || op == "Snapshot";
}

// The source of a kernel's input: a parameter, a constant, or another kernel's output.
struct Source {
  enum Kind { kParameter, kConstant, kValue } kind;
  int index;
};

// A value while the body runs.
struct Value {
  std::vector<int> results;  // the results of the body that it is
  int uses = 0;              // kernel inputs that read it
};

// Values and parameters to let go of before a kernel runs, so that it may reuse the memory of what
// it reads last, and after it.
struct Releases {
  std::vector<int> unguard_values;
  std::vector<int> unguard_parameters;
  std::vector<int> release_values;
  std::vector<int> release_parameters;
};

struct Step {
  tensorflow::OpKernel* kernel;
  // Where there are several kernels, those for large inputs, if any, and where an input is empty.
  tensorflow::OpKernel* kernel_of_large = nullptr;
  tensorflow::OpKernel* kernel_of_empty = nullptr;
  int trace_level;
  // The dimension of the first factor that a product of matrices adds up over; -1 for other
  // kernels.
  int summed_dimension = -1;
  // The number among the schedule's packed products, or -1: the second factor may be an invariant.
  int packed_product = -1;
  bool transpose_right = false;
  int num_inputs;
  int num_outputs;
  int first_input;         // in Schedule::inputs
  int first_value;         // its outputs, in Schedule::values
  std::vector<int> after;  // the steps that it follows, by its inputs and control edges
  std::vector<tensorflow::AllocatorAttributes> output_attributes;
  std::unique_ptr<bool[]> required;  // null if all outputs are
  Releases releases;
};

// A body's kernels in the order in which they run; immutable once built.
struct Schedule {
  std::vector<Source> InputsOf(const Step& step) const {
    const auto first = inputs.begin() + step.first_input;
    return std::vector<Source>(first, first + step.num_inputs);
  }

  std::vector<Step> steps;
  std::vector<Source> inputs;
  std::vector<tensorflow::AllocatorAttributes> input_attributes;
  std::vector<Value> values;
  std::vector<Value> parameters;
  std::vector<tensorflow::Tensor> constants;
  std::vector<std::pair<int, int>> constant_results;  // (constant, result)
  int num_packed_products = 0;
  tensorflow::FunctionLibraryRuntime* library = nullptr;  // that of the kernels
};

// `kernels` gets all that are made, which are the caller's.
absl::Status MakeSchedule(const tensorflow::LocalExecutorParams& params,
                          const tensorflow::Graph& graph, Schedule* schedule,
                          std::vector<tensorflow::OpKernel*>* kernels);

// Finds the last reads of each reader. Each read of the schedule belongs to one reader.
class LastReads {
 public:
  explicit LastReads(const Schedule& schedule);

  // Returns the last reads among the inputs of the next reader. A reader that `may_reuse` memory
  // may write its result there.
  Releases Next(const std::vector<Source>& inputs, bool may_reuse);

 private:
  const Schedule& schedule_;
  std::vector<int> of_values_;  // the reads that are left
  std::vector<int> of_parameters_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_SCHEDULE_H_
