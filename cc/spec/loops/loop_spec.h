// The description of a loop: the attributes of a loop op.
#ifndef TF_TI_CC_KERNELS_LOOPS_SPEC_H_
#define TF_TI_CC_KERNELS_LOOPS_SPEC_H_

#include <string>
#include <vector>

#include "cc/compute/loops/pieces.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

enum class InputMode { kValue, kSlice, kSegment, kIndex, kIterator, kHistory };
enum class OutputMode { kLast, kConcat, kStack, kSum, kHistory, kCount };

// The attributes of a loop op, as cc/ops/loops.cc documents them.
struct LoopSpec {
  struct Input {
    InputMode mode;
    int64_t axis;
    Range range;
    std::string label;
    tensorflow::DataType dtype;
    tensorflow::PartialTensorShape shape;  // of the parameter
    bool back_edge = false;                // feeds it from the second iteration on
  };
  struct Output {
    OutputMode mode;
    int result;     // or -1
    int parameter;  // or -1
    int64_t axis;
    int64_t stride;
    int64_t part_size;
    int64_t length;  // which length input, or -1
    std::string label;
    tensorflow::DataType dtype;
  };
  struct BackEdge {
    int from;
    int to;
    bool last_use;  // no later back edge reads the same result
  };

  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<BackEdge> back_edges;
  std::vector<tensorflow::PartialTensorShape> result_shapes;
  std::vector<int> result_uses;       // outputs and back edges that read a result
  std::vector<int> condition_inputs;  // the parameters that the condition reads
  bool has_condition;
  bool has_num_iterations;
  std::string limit_label;
  bool reverse;

  absl::Status Init(tensorflow::OpKernelConstruction* ctx);
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_SPEC_H_
