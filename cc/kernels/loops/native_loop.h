// Iterations of a loop whose body, and condition, is one program: between two of them only
// addresses change.
#ifndef TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
#define TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cc/compute/loops/homes.h"
#include "cc/compute/loops/moving_pointers.h"
#include "cc/compute/loops/walk.h"
#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/history.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// Runs iterations once it knows the origins of all parameters and the uses of values: first a Set*
// function is called for each parameter, then Write* and Add* functions, then Run. The file homes.h
// tells where the values live.
class NativeLoop {
 public:
  // Iteration t has index t, or `last_index` - t with `reverse`.
  NativeLoop(WholeBody* body, int num_parameters, int64_t last_index, bool reverse,
             Parallel* parallel);

  // A tensor that is the same in all iterations.
  void SetFixed(int parameter, const tensorflow::Tensor& tensor);
  void SetPieces(int parameter, const Walk& walk, int64_t bytes);
  // Returns false if an element has another type or shape.
  bool SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                  const tensorflow::TensorShape& shape);
  // The condition's parameters are `parameters` of the body. The condition's first result is a
  // bool: the loop ends where it is false. The other results are the body's last parameters.
  void SetCondition(WholeBody* condition, const std::vector<int>& parameters);
  // A result of the iteration before; in the first iteration `start`.
  void SetState(int parameter, int result, const tensorflow::Tensor& start);

  // Writes a result of each iteration, or a parameter, to an output. A parameter's walk has memory
  // for one more piece, of an iteration after the last.
  void WriteResult(int result, const Walk& to);
  void WriteParameter(int parameter, const Walk& to);
  // Adds a result of a type to a sum of its shape. Returns false if the type has no sums.
  bool AddResult(int result, tensorflow::DataType dtype, tensorflow::Tensor* sum);

  // Runs iterations from `begin` to before `end`, and returns the first that it has not run: `end`,
  // or an earlier one if it was stopped or the condition is false.
  int64_t Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped);
  // True if the condition is false.
  bool has_ended() const { return has_ended_; }
  // The address of a state after Run.
  const char* StateAt(int parameter) const { return homes_->At(parameter, now_); }
  // The address of a result of the last iteration.
  const char* ResultAt(int result) const { return homes_->At(ValueOf(result), now_ - 1); }

 private:
  struct Sum {
    int value;
    void (*add)(const char* value, tensorflow::Tensor* sum);
    tensorflow::Tensor* sum;
    char* from = nullptr;
  };
  // A copy of a piece from, or to, a walk.
  struct Copy {
    Walk walk;
    int64_t bytes;
    char* at = nullptr;  // the value's home
  };

  void AddOutputs(const Region& region);
  int ValueOf(int result) const;

  void FindHomes(int64_t begin);
  void FindPointers(int64_t end);
  void FindPointersOf(const std::vector<int>& parameters, int first_output, WholeBody* whole);
  void FindCopies();
  void StartPrograms();
  int64_t IterationTime() const;
  bool RunProgram(WholeBody* whole) {
    (*whole->run)->Run(parallel_);
    return !fails_;
  }
  void RunIterations(int64_t begin, int64_t end, const std::function<bool()>& is_stopped);
  bool RunIteration();

  WholeBody& body_;
  Parallel* const parallel_;
  WholeBody* condition_ = nullptr;
  std::vector<int> condition_parameters_;
  int first_of_condition_ = 0;  // the value of the condition's first output
  const int num_parameters_;
  const IndexOrder order_;
  // Parameters, then the outputs of the body's program, then the outputs of the condition's. Run
  // moves them to homes_.
  std::vector<LoopValue> values_;
  std::vector<int> parameters_;  // for each parameter its value
  std::vector<LoopWrite> writes_;
  std::vector<Sum> sums_;

  std::optional<Homes> homes_;
  MovingPointers pointers_;
  std::vector<Copy> before_;  // copies before each iteration
  std::vector<Copy> after_;
  int64_t now_ = 0;  // the iteration, or the first that has not run
  bool has_ended_ = false;
  char* goes_on_ = nullptr;
  bool fails_ = false;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
