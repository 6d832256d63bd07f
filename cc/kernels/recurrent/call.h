// One call of a recurrent op, wherever its inputs and outputs lie.
#ifndef TF_TI_CC_KERNELS_RECURRENT_CALL_H_
#define TF_TI_CC_KERNELS_RECURRENT_CALL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "cc/compute/parallel.h"
#include "cc/kernels/recurrent/spec.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

struct SequenceSizes {
  int64_t num_steps;
  int64_t batch;
  int64_t input;  // without w: gates * hidden
  int64_t hidden;
};

// The sizes and the outputs of a call, from the shapes of its inputs.
struct SequenceShapes {
  struct Output {
    tensorflow::TensorShape shape;
    bool is_saved = false;  // for a gradient, in the type in which the op computes
  };

  SequenceSizes sizes;
  std::vector<Output> outputs;

  // Asks for the shape of each input, and checks it. Errors name the inputs.
  using Find = std::function<absl::Status(int input, const char* name, tensorflow::TensorShape*)>;
  absl::Status Init(const CellSpec& spec, const Find& find);
};

// Inputs and outputs are those of the op, in its order; numbers are of type S. A saved output may
// be null. Invalid lengths are an InvalidArgument.
template <typename S>
absl::Status RunRecurrentOp(const CellSpec& spec, const SequenceSizes& sizes,
                            const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs, std::function<bool()> goes_on,
                            Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_RECURRENT_CALL_H_
