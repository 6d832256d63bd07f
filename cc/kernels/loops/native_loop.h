// Iterations of a loop whose body is one program: between two of them only addresses change.
#ifndef TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
#define TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/loops/blocks.h"
#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/history.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// The pieces of a tensor, by the index of an iteration.
struct Walk {
  char* base = nullptr;    // of the piece of index 0
  int64_t step = 0;        // in bytes, to the next piece
  int64_t every = 1;       // only indices that are multiples have a piece
  int64_t num_blocks = 1;  // of each piece, if it does not lie in one
  int64_t block_stride = 0;

  char* At(int64_t index) const { return base + (every == 1 ? index : index / every) * step; }
};

// All values stay where they are written first, if they can: in an output's tensor, in a history,
// or in a few buffers in turn. A state is the address of a result of the iteration before.
//
// First all parameters are given, by the one of Set* that tells where they come from, then what
// becomes of values.
class NativeLoop {
 public:
  // Iteration t has index t, or `last_index` - t with `reverse`.
  NativeLoop(WholeBody* body, int num_parameters, int64_t last_index, bool reverse);

  // The same in all iterations.
  void SetFixed(int parameter, const tensorflow::Tensor& tensor);
  void SetPieces(int parameter, const Walk& walk, int64_t bytes);
  // Returns false if an element has another type or shape.
  bool SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                  const tensorflow::TensorShape& shape);
  // A result of the iteration before; `start` in the first.
  void SetState(int parameter, int result, const tensorflow::Tensor& start);

  // Writes a result of each iteration, or a parameter, to where it belongs. A parameter's walk has
  // memory for one more piece, of an iteration after the last.
  void WriteResult(int result, const Walk& to);
  void WriteParameter(int parameter, const Walk& to);
  // Adds a result to a sum of its shape. Returns false where there is no way to.
  bool AddResult(int result, tensorflow::Tensor* sum);

  // Runs iterations from `begin` to before `end`, and returns the first that it has not run: `end`,
  // or an earlier one if it was stopped.
  int64_t Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped);
  // The address of a state after Run.
  const char* StateAt(int parameter) const { return at_[parameter]; }
  // The address of what a result is after the last iteration. It is not a state that came in.
  const char* ResultAt(int result) const { return at_[ValueOf(result)]; }

 private:
  enum Kind { kFixed, kPieces, kHistory, kState };
  struct Parameter {
    Kind kind = kFixed;
    int64_t bytes = 0;
    Walk walk;
    std::vector<const char*> addresses;  // by index
    int source = -1;                     // of a state: the value that it is next
  };
  struct Write {
    int value;
    int64_t bytes;
    Walk to;
  };
  struct Sum {
    int value;
    void (*add)(const char* value, tensorflow::Tensor* sum);
    tensorflow::Tensor* sum;
  };
  // Where a value is made anew in each iteration: by a walk, or in buffers in turn.
  struct Home {
    int value = -1;
    int64_t bytes = 0;
    bool is_walk = false;
    Walk walk;
    char* buffers = nullptr;
    int num_buffers = 0;
    int turn = 0;  // which of them is next
  };
  // A walk while the loop runs: where a value is next.
  struct Cursor {
    int value;
    char* at;
    int64_t step;
  };

  // Parameters, then the program's outputs.
  int ValueOf(int result) const;
  int64_t BytesOf(int value) const;
  int64_t IndexOf(int64_t t) const { return reverse_ ? last_index_ - t : t; }
  int LivesFor(int value) const;
  void FindHomes(int64_t begin);
  Cursor CursorOf(int value, const Walk& walk, int64_t t) const;
  void NextBuffer(int64_t index, Home* home);
  void Copy(const char* from, int64_t bytes, const Walk& walk, int64_t index) const;

  WholeBody& body_;
  const int64_t last_index_;
  const bool reverse_;
  std::vector<Parameter> parameters_;
  std::vector<int> histories_;  // the parameters that are elements of one
  std::vector<Write> writes_;
  std::vector<Sum> sums_;
  std::vector<Home> homes_;
  std::vector<const char*> at_;    // where each value is in this iteration
  std::vector<const char*> next_;  // and each state in the next
  Buffer<char> buffers_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
