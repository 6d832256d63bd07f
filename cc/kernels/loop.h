// The loop engine: what a loop is (LoopSpec), and one run of it (Loop).
#ifndef TF_TI_CC_KERNELS_LOOP_H_
#define TF_TI_CC_KERNELS_LOOP_H_

#include <string>
#include <vector>

#include "cc/compute/pieces.h"
#include "cc/kernels/body.h"
#include "cc/kernels/executor.h"
#include "cc/kernels/sequence.h"
#include "cc/kernels/tensors.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

enum class InputMode { kValue, kSlice, kSegment, kIndex, kSequence };
enum class OutputMode { kLast, kConcat, kStack, kSum, kSequence };

// The attributes of a loop op, as cc/ops/tensor_iterator.cc documents them.
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
  std::vector<int> result_uses;  // outputs and back edges that read a result
  bool has_num_iterations;
  std::string limit_label;
  bool reverse;

  absl::Status Init(tensorflow::OpKernelConstruction* ctx);
};

// One run of a loop: Start, then for each iteration Enter, the body on frame(), Leave; then Finish.
class Loop {
 public:
  Loop(const LoopSpec& spec, const Body& body, tensorflow::OpKernelContext* ctx)
      : spec_(spec), body_(body), ctx_(ctx) {}

  absl::Status Start();
  bool done() const { return iteration_ == count_; }
  int64_t count() const { return count_; }
  absl::Status Enter();
  absl::Status Leave();
  absl::Status Finish();

  BodyFrame* frame() { return &frame_; }
  // Adds to a failure of the body where it happened.
  absl::Status AtIteration(absl::Status status) const;

 private:
  struct InputState {
    PieceReader reader;
    Pieces pieces;
    const Sequence* sequence = nullptr;
  };
  struct OutputState {
    bool required = true;
    tensorflow::Tensor tensor;
    tensorflow::TensorShape first;           // shape of the first piece
    int64_t extent = 0;                      // of a piece along the axis
    int axis = 0;                            // resolved
    std::vector<tensorflow::Tensor> pieces;  // a sequence's, or those of differing extents
  };

  absl::Status MergeCount(int64_t count, const std::string& label);
  absl::Status StartInput(int i);
  absl::Status CheckParameter(int i) const;
  absl::Status EnterElement(int i);
  absl::Status Record(int i, const tensorflow::Tensor& value);
  absl::Status Place(int i, const tensorflow::Tensor& value);
  absl::Status AddSum(int i, tensorflow::Tensor* value);
  absl::Status FinishEmpty(int i);

  // The position of the iteration among the pieces.
  int64_t Index() const { return spec_.reverse ? count_ - 1 - iteration_ : iteration_; }

  const LoopSpec& spec_;
  const Body& body_;
  tensorflow::OpKernelContext* const ctx_;
  BodyFrame frame_;
  std::vector<InputState> inputs_;
  std::vector<OutputState> outputs_;
  int64_t count_ = -1;
  std::string count_from_;
  int64_t iteration_ = 0;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOP_H_
