// The values of one iteration of a body.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_VALUES_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_VALUES_H_

#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// Holds the arrays that kernels and programs make, gives them to their readers along with the
// frame's parameters, and hands results to the frame.
//
// A kernel may write its result to the memory of an input that has one reference. So a value, or a
// consumable parameter, that has several readers has a second reference, its guard, until its last
// reader is about to run.
class Values {
 public:
  Values(const Schedule& schedule, BodyFrame* frame);

  BodyFrame& frame() { return frame_; }

  void Clear();

  // To be called once a parameter of the frame has been set.
  void SetParameter(int p) {
    const Value& parameter = schedule_.parameters[p];
    for (int result : parameter.results) frame_.results[result] = frame_.parameters[p];
    if (parameter.uses > 1 && frame_.consumable[p]) parameter_guards_[p] = frame_.parameters[p];
  }
  // Hands the frame those results that are constants.
  void SetConstants();
  void Set(int v, tensorflow::Tensor tensor) {
    const Value& value = schedule_.values[v];
    for (int result : value.results) frame_.results[result] = tensor;
    if (value.uses > 1) guards_[v] = tensor;
    if (value.uses > 0) values_[v] = std::move(tensor);
  }

  // Lets a kernel take memory for its result.
  void Unguard(const Releases& releases) {
    for (int v : releases.unguard_values) guards_[v] = tensorflow::Tensor();
    for (int p : releases.unguard_parameters) parameter_guards_[p] = tensorflow::Tensor();
  }
  void Release(const Releases& releases) {
    for (int v : releases.release_values) Release(v);
    for (int p : releases.release_parameters) {
      if (!frame_.consumable[p]) continue;
      frame_.parameters[p] = tensorflow::Tensor();
      parameter_guards_[p] = tensorflow::Tensor();
    }
  }
  // Releases the values that kernels made in place of a region's program, except its outputs.
  void ReleaseInside(const Region& region);

  absl::Span<const tensorflow::TensorValue> InputsOf(const Step& step) const {
    return absl::MakeConstSpan(inputs_).subspan(step.first_input, step.num_inputs);
  }
  // The source is a parameter or a value.
  const tensorflow::Tensor& TensorOf(const Source& source) const {
    return source.kind == Source::kValue ? values_[source.index] : frame_.parameters[source.index];
  }
  // Returns true if all arrays have the types and shapes of these tensors.
  bool Fits(const std::vector<Region::Array>& arrays) const;

 private:
  void Release(int v) {
    values_[v] = tensorflow::Tensor();
    guards_[v] = tensorflow::Tensor();
  }

  const Schedule& schedule_;
  BodyFrame& frame_;
  std::vector<tensorflow::TensorValue> inputs_;  // of all steps
  std::vector<tensorflow::Tensor> values_;
  std::vector<tensorflow::Tensor> guards_;
  std::vector<tensorflow::Tensor> parameter_guards_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_VALUES_H_
