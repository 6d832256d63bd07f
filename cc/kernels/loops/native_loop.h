// Iterations of a loop whose body, and condition, is one program: between two of them only
// addresses change.
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
  NativeLoop(WholeBody* body, int num_parameters, int64_t last_index, bool reverse,
             Parallel* parallel);

  // The same in all iterations.
  void SetFixed(int parameter, const tensorflow::Tensor& tensor);
  void SetPieces(int parameter, const Walk& walk, int64_t bytes);
  // Returns false if an element has another type or shape.
  bool SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                  const tensorflow::TensorShape& shape);
  // A condition, each of whose parameters is one of the body's. Its results after the first are the
  // body's last parameters. Its first is a bool: the loop ends where it is false.
  void SetCondition(WholeBody* condition, const std::vector<int>& parameters);
  // A result of the iteration before; `start` in the first.
  void SetState(int parameter, int result, const tensorflow::Tensor& start);

  // Writes a result of each iteration, or a parameter, to where it belongs. A parameter's walk has
  // memory for one more piece, of an iteration after the last.
  void WriteResult(int result, const Walk& to);
  void WriteParameter(int parameter, const Walk& to);
  // Adds a result of a type to a sum of its shape. Returns false where there is no way to.
  bool AddResult(int result, tensorflow::DataType dtype, tensorflow::Tensor* sum);

  // Runs iterations from `begin` to before `end`, and returns the first that it has not run: `end`,
  // or an earlier one if it was stopped or the condition is false.
  int64_t Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped);
  // True if the condition is false.
  bool has_ended() const { return has_ended_; }
  // The address of a state after Run.
  const char* StateAt(int parameter) const { return AddressOf(parameter, now_); }
  // The address of a result of the last iteration.
  const char* ResultAt(int result) const { return AddressOf(ValueOf(result), now_ - 1); }

 private:
  // Where a value is: at one address; where another value was in the iteration before; at any
  // addresses; where a walk leads; or in buffers in turn.
  enum Kind { kFixed, kState, kHistory, kWalk, kInTurn };
  struct Value {
    Kind kind = kFixed;
    int64_t bytes = 0;
    const char* start = nullptr;         // of what is fixed, and of a state
    int source = -1;                     // of a state: the value that it is next
    std::vector<const char*> addresses;  // by index
    Walk walk;                           // of pieces in turn: where they are first
    char* buffers = nullptr;
    int num_buffers = 0;
  };
  struct Write {
    int value;
    Walk to;
    char* from = nullptr;
  };
  struct Sum {
    int value;
    void (*add)(const char* value, tensorflow::Tensor* sum);
    tensorflow::Tensor* sum;
    char* from = nullptr;
  };
  // Pieces that do not lie in one block each.
  struct Load {
    int value;
    char* to = nullptr;
  };
  // What holds the address of a value.
  struct Pointer {
    int value;
    char** at;
    int64_t offset;  // added to the address
  };
  struct Move {
    char** at;
    int64_t step;
  };

  // Parameters, then the outputs of the body's program, then those of the condition's.
  int ValueOf(int result) const;
  void AddOutputs(const Region& region);
  void AddPointers(const std::vector<int>& parameters, int first_output, WholeBody* whole);
  int64_t IndexOf(int64_t t) const { return reverse_ ? last_index_ - t : t; }
  int LivesFor(int value) const;
  void FindHomes();
  void FindPointers();
  void FindMoves();
  const char* AddressOf(int value, int64_t t) const;
  void Set(const Pointer& pointer) const {
    *pointer.at = const_cast<char*>(AddressOf(pointer.value, now_)) + pointer.offset;
  }
  bool RunProgram(WholeBody* whole);
  bool RunIteration();
  void Next();
  void Copy(const char* from, int64_t bytes, const Walk& walk, int64_t index) const;

  WholeBody& body_;
  Parallel* const parallel_;
  WholeBody* condition_ = nullptr;
  std::vector<int> condition_parameters_;
  int first_of_condition_ = 0;  // of its outputs
  const int num_parameters_;
  const int64_t last_index_;
  const bool reverse_;
  std::vector<Value> values_;
  std::vector<int> parameters_;  // the values that they are
  std::vector<Write> writes_;
  std::vector<Sum> sums_;
  std::vector<Load> loads_;
  Buffer<char> buffers_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  int64_t now_ = 0;  // the iteration
  bool has_ended_ = false;
  char* goes_on_ = nullptr;
  bool fails_ = false;

  std::vector<Pointer> pointers_;
  // From iteration `settled_` on all states are values of the loop, and the steps from an
  // iteration to the next repeat after as many as there are lists of them.
  int64_t settled_ = 0;
  std::vector<std::vector<Move>> moves_;
  size_t turn_ = 0;
  std::vector<Pointer> jumps_;  // those whose steps do not repeat
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
