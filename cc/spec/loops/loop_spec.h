// The contract of a loop op: its attributes, and what they ask of its inputs.
#ifndef TF_TI_CC_SPEC_LOOPS_LOOP_SPEC_H_
#define TF_TI_CC_SPEC_LOOPS_LOOP_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/compute/loops/pieces.h"
#include "cc/spec/attributes.h"
#include "cc/status.h"

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

    // True if every iteration gets the input itself.
    bool is_invariant() const { return mode == InputMode::kValue && !back_edge; }
    // True if it is cut along an axis.
    bool is_sliced() const { return mode != InputMode::kValue && mode != InputMode::kHistory; }
    // True if its pieces lack the axis.
    bool drops_axis() const { return mode == InputMode::kIndex || mode == InputMode::kIterator; }

    absl::Status FindAxis(int64_t rank, int64_t* resolved) const;
    absl::Status FindPieces(int64_t extent, Pieces* pieces) const;
    // The number of parts of a history of `size` tensors.
    int64_t CountParts(int64_t size) const;
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

    // `rank` is that of the output.
    absl::Status FindAxis(int64_t rank, int64_t* resolved) const;
    // True if a concatenation's pieces may have this extent.
    bool IsPart(int64_t extent) const { return part_size <= 0 || extent == part_size; }
    // The name of its length in errors.
    std::string LengthName() const { return label + ": the length"; }
    absl::Status CheckLength(int64_t given) const;
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
  std::vector<int> condition_inputs;  // the parameters that the condition reads
  bool has_condition;
  bool has_num_iterations;
  std::string limit_label;
  bool reverse;
  bool fuse;                    // programs may run parts of the functions
  int64_t parallel_iterations;  // the most that are on their way at once; 0 for any number

  absl::Status Init(const Attributes& attributes);

  // The inputs of the op that follow those of the body.
  int limit_input() const { return inputs.size(); }
  int length_input(const Output& output) const {
    return limit_input() + has_num_iterations + output.length;
  }

  // The parameter that carries an output's value to the next iteration, or -1.
  int StateOf(const Output& output) const;

  absl::Status CheckLimit(int64_t given) const;
  // Return errors if a body or a condition is not what the op was built for.
  absl::Status CheckBody(size_t num_parameters, size_t expected, size_t num_results) const;
  absl::Status CheckBackEdge(const BackEdge& edge, tensorflow::DataType from,
                             tensorflow::DataType to) const;
  absl::Status CheckResult(const Output& output, tensorflow::DataType dtype) const;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_LOOPS_LOOP_SPEC_H_
