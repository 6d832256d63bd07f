// Steps of a body become a region, step by step.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_LOWERING_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_LOWERING_H_

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/lowering/context.h"
#include "cc/kernels/loops/lowering/region.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// The tensor that a source is in each iteration, if the compiled body knows it.
std::optional<tensorflow::Tensor> KnownOf(const Schedule& schedule, const CompiledBody& body,
                                          const Source& source);

// Lowers steps of a schedule to one program. Sources outside of the region become inputs, with the
// types and shapes that they have in the first iteration.
class RegionLowering {
 public:
  RegionLowering(const Schedule& schedule, const CompiledBody& body,
                 const FirstIteration& iteration)
      : schedule_(schedule), body_(body), iteration_(iteration) {}

  // Lowers one more step. After an error, which says why the step cannot be lowered, the region has
  // the steps before it.
  absl::Status Add(int s);
  // Completes the region, whose outputs are values of its steps. An error says that an output
  // cannot be one.
  absl::StatusOr<Region> Finish(const std::vector<int>& outputs);

  const std::vector<int>& steps() const { return steps_; }
  // The arrays whose types and shapes decided which steps are lowered, also without success.
  const std::vector<Region::Array>& inputs() const { return inputs_; }
  bool ReadsParametersAlone() const;
  // True if the steps compute anything from an array's elements.
  bool Computes() const { return num_computing_ > 0; }
  // A value of the region's steps, if it is known.
  const std::optional<tensorflow::Tensor>& KnownOf(int value) const;
  // False for a value of the region's steps that is a history, which no other steps can read.
  bool IsArray(int value) const;

 private:
  using Key = std::pair<int, int>;

  static Key KeyOf(const Source& source) { return {source.kind, source.index}; }
  // A source as the program has it.
  absl::StatusOr<Lowered> Given(const Source& source);

  const Schedule& schedule_;
  const CompiledBody& body_;
  const FirstIteration& iteration_;
  LoweringContext context_;
  std::map<Key, Lowered> lowered_;  // what the steps read and make
  std::vector<int> steps_;
  std::vector<Region::Array> inputs_;
  std::optional<View> failure_;  // of the lowered steps
  int num_computing_ = 0;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_REGION_LOWERING_H_
