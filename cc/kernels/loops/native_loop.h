// Iterations of a loop whose body, and condition, is one program: between two of them only
// addresses change.
#ifndef TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
#define TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cc/compute/loops/walk.h"
#include "cc/compute/program/lanes.h"
#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/history.h"
#include "cc/kernels/loops/native_groups.h"
#include "cc/kernels/loops/native_part.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_ti {

// Runs iterations once it knows the origins of all parameters and the uses of values: first a Set*
// function is called for each parameter, then Write*, Add* and Keep* functions, then Run. The file
// homes.h tells where the values live.
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
  // CopyResult will ask for a result.
  void KeepResult(int result);

  // Runs iterations from `begin` to before `end`, and returns the first that it has not run: `end`,
  // or an earlier one if it was stopped, the condition is false, or another loop is to run on.
  int64_t Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped);
  // True if the condition is false.
  bool has_ended() const { return has_ended_; }
  // True if another NativeLoop is to run the iterations that are left.
  bool runs_on() const { return runs_on_; }
  // Copies a state of so many bytes as it is after Run.
  void CopyState(int parameter, int64_t bytes, char* to) const {
    CopyValue(parameter, now_, bytes, to);
  }
  // Copies a result of the last iteration.
  void CopyResult(int result, int64_t bytes, char* to) const {
    CopyValue(ValueOf(result), now_ - 1, bytes, to);
  }

 private:
  // How lanes run in groups.
  struct Division {
    std::shared_ptr<LanePrograms> programs;
    NativeGroups::LanesOfValues lanes;
    int64_t size = 0;  // of a group
    bool adds_lanes = false;
  };

  void AddOutputs(const Region& region);
  int ValueOf(int result) const;
  std::vector<int> FindArrays() const;
  LoopPlan PlanOfLanes(const std::vector<int>& arrays) const;
  std::optional<Division> Divide(int64_t begin, int64_t end) const;
  int64_t RunWhole(int64_t begin, int64_t end, const std::function<bool()>& is_stopped);
  void CopyValue(int value, int64_t t, int64_t bytes, char* to) const;

  WholeBody& body_;
  Parallel* const parallel_;
  const int num_parameters_;
  // The values are parameters, then the outputs of the body's program, then the outputs of the
  // condition's.
  NativePlan plan_;
  std::vector<int> parameters_;  // for each parameter its value
  std::vector<int> kept_;        // values

  // What has run: groups of lanes, or all lanes at once.
  std::unique_ptr<NativeGroups> groups_;
  std::optional<NativePart> whole_;
  int64_t now_ = 0;  // the iteration, or the first that has not run
  bool has_ended_ = false;
  bool runs_on_ = false;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_NATIVE_LOOP_H_
