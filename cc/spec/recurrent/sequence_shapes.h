// The shapes of a recurrent op's inputs and outputs.
#ifndef TF_TI_CC_SPEC_RECURRENT_SEQUENCE_SHAPES_H_
#define TF_TI_CC_SPEC_RECURRENT_SEQUENCE_SHAPES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/spec/recurrent/cell_spec.h"
#include "cc/status.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

// -1 where a size is not known.
struct SequenceSizes {
  int64_t num_steps;
  int64_t batch;
  int64_t input;  // without w: gates * hidden
  int64_t hidden;
};

// The sizes and the outputs of a call, as far as the shapes of its inputs tell them. `Shape` is a
// TensorShape or a PartialTensorShape.
template <typename Shape>
struct SequenceShapes {
  struct Output {
    Shape shape;
    bool is_saved = false;  // for a gradient, in the type in which the op computes
  };

  SequenceSizes sizes;
  std::vector<Output> outputs;

  // Asks for the shape of each input, and checks it. Errors name the inputs.
  using Find = std::function<absl::Status(int input, const char* name, Shape*)>;
  absl::Status Init(const CellSpec& spec, const Find& find);
};

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_RECURRENT_SEQUENCE_SHAPES_H_
