// The loop engine.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOOP_RUN_H_
#define TF_TI_CC_KERNELS_LOOPS_LOOP_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "cc/compute/loops/flight.h"
#include "cc/compute/loops/pieces.h"
#include "cc/kernels/loops/body.h"
#include "cc/kernels/loops/executor.h"
#include "cc/kernels/loops/history.h"
#include "cc/kernels/loops/native_loop.h"
#include "cc/kernels/loops/tensors.h"
#include "cc/spec/loops/count.h"
#include "cc/spec/loops/loop_spec.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

// One run of a loop: Start; until done() Enter, function() on frame(), Leave; then Finish.
// function() is the condition, where there is one, and the body, in turns.
class LoopRun {
 public:
  // `condition` is null where the loop has none.
  LoopRun(const LoopSpec& spec, const Body& body, const Body* condition,
          tensorflow::OpKernelContext* ctx)
      : spec_(spec), body_(body), condition_(condition), ctx_(ctx) {}

  absl::Status Start();
  bool done() const { return done_; }
  // The number of iterations, as far as it is known before the condition has ended the loop; or -1.
  int64_t count() const { return count_.value; }
  absl::Status Enter();
  // Runs function() on this thread. It is synchronous.
  absl::Status RunFunction(const tensorflow::FunctionLibraryRuntime::Options& options);
  absl::Status Leave();
  // Before an iteration. Runs those that can do without Enter and Leave, all of them perhaps.
  absl::Status SkipAhead();
  // Before an iteration. Runs those that are left, or some of them, with several on their way at
  // once, where other threads are worth that. `schedule` has one of them call a function.
  absl::Status FlyAhead(const tensorflow::FunctionLibraryRuntime::Options& options,
                        const std::function<void(std::function<void()>)>& schedule);
  static absl::Status Flatten(const std::string& label, std::vector<tensorflow::Tensor>* tensors);
  absl::Status Finish();

  const Body& function() const { return in_condition_ ? *condition_ : body_; }
  BodyFrame* frame() { return in_condition_ ? &condition_frame_ : &frame_; }
  // The name of function()'s run in a profile.
  std::string TraceName() const;
  // Adds the iteration to an error of the body.
  absl::Status AtIteration(absl::Status status) const;

 private:
  class InFlight;

  struct InputState {
    PieceReader reader;
    Pieces pieces;
    const History* history = nullptr;
    bool entered = false;  // the condition has read it already
  };
  struct OutputState {
    bool required = true;
    int64_t length = -1;   // in pieces, where it is given
    int64_t capacity = 0;  // of the tensor, in pieces; of a history's block
    tensorflow::Tensor tensor;
    tensorflow::TensorShape first;           // shape of the first piece
    int64_t extent = 0;                      // of a piece along the axis
    bool is_stacked = false;                 // along an axis that the pieces lack
    int axis = 0;                            // resolved
    std::vector<tensorflow::Tensor> pieces;  // a history's, or those of differing extents
    HistoryBlock block;                      // more of a history's
    int home = -1;                           // the output in whose memory the block lies, if any
    bool is_home = false;                    // a history's block may lie in its memory
    tensorflow::Tensor with_spare;           // of a home: `tensor` and one more piece
  };

  const tensorflow::Tensor& Input(int i) const {
    return host_inputs_.empty() ? ctx_->input(i) : host_inputs_[i];
  }
  absl::Status SetOutput(int i, const tensorflow::Tensor& value);
  absl::Status StartInput(int i);
  absl::Status StartOutput(int i);
  absl::Status CheckParameter(int i, const BodyFrame& frame) const;
  // Of iteration `t`, into a frame of it.
  absl::Status EnterElement(int i, int64_t t, BodyFrame* frame);
  absl::Status EnterElements(int64_t t, BodyFrame* frame);
  absl::Status EnterCondition(int64_t t, BodyFrame* frame);
  absl::Status LeaveCondition(BodyFrame* frame, bool* goes_on);
  absl::Status LeaveBody();
  absl::Status PlaceResults(const BodyFrame& frame);
  absl::Status Record(int i, const tensorflow::Tensor& value);
  absl::Status Place(int i, const tensorflow::Tensor& value);
  absl::Status AllocateOutput(int i, int64_t capacity, tensorflow::Tensor* tensor) const;
  absl::Status Grow(int i);
  absl::Status Trim(int i);
  absl::Status AddSum(int i, const tensorflow::Tensor& value);
  absl::Status FinishEmpty(int i);
  absl::Status StartPieces(int i, const tensorflow::TensorShape& first);
  bool MayHouse(int i, const Region::Array& value) const;
  std::vector<int> FindHomes(const WholeBody& body) const;
  absl::Status StartRows(int i, const Region::Array& value, int home);
  bool BindHistory(int i, const Region::Array& value, int home, NativeLoop* loop);
  tensorflow::TensorShape NextShape(int i) const;
  bool FindWhole(WholeBody* body, WholeBody* condition) const;
  Region::Array ArrayOf(const Body& function, const WholeBody& whole, int source) const;
  bool IsFixed(int source) const;
  int64_t FindEnd(const CompiledBody& body) const;
  bool Bind(const WholeBody& body, WholeBody* condition, NativeLoop* loop);
  bool BindInput(int i, const tensorflow::TensorShape& shape, NativeLoop* loop) const;
  bool BindOutput(int i, const Region::Array& value, NativeLoop* loop);
  absl::Status RunNative(WholeBody* body, WholeBody* condition);
  bool MayFly() const;
  absl::Status Prepare(const tensorflow::FunctionLibraryRuntime::Options& options,
                       const Body& function, BodyFrame* frame);
  std::vector<tensorflow::TensorShape> NextShapes() const;
  FlightPlan PlanOf(const BodyUnits& units) const;
  absl::Status Fly(const FlightPlan& plan, bool have_programs, int num_slots,
                   const std::function<void(std::function<void()>)>& schedule);
  absl::Status FinishSkip(const WholeBody& body, int64_t begin, const NativeLoop& loop);
  absl::Status InferPiece(const LoopSpec::Output& output,
                          tensorflow::PartialTensorShape* piece) const;

  // The position of the iteration among the pieces.
  int64_t Index() const { return IndexOf(iteration_); }
  int64_t IndexOf(int64_t t) const { return spec_.reverse ? count() - 1 - t : t; }
  // What the condition gives may be a state too.
  bool IsState(int parameter) const {
    return parameter >= static_cast<int>(spec_.inputs.size()) || spec_.inputs[parameter].back_edge;
  }
  // True if only the condition may come after this iteration.
  bool IsLast() const { return !spec_.has_condition && iteration_ == count() - 1; }

  const LoopSpec& spec_;
  const Body& body_;
  const Body* const condition_;
  tensorflow::OpKernelContext* const ctx_;
  BodyFrame frame_;
  BodyFrame condition_frame_;
  bool in_condition_ = false;
  bool done_ = false;
  std::vector<tensorflow::Tensor> host_inputs_;  // all inputs, if one had to be brought to the host
  std::vector<InputState> inputs_;
  std::vector<OutputState> outputs_;
  Count count_;  // at most so many where there is a condition
  int64_t iteration_ = 0;
  int num_skips_ = 0;  // that have been tried
  bool has_skipped_ = false;
  bool is_stopped_ = false;  // the last of them ended before it had to
  bool runs_on_ = false;     // the last of them leaves iterations for another one
  int num_stepped_ = 0;      // iterations, one after the other
  bool has_flown_ = false;   // or will not
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOOP_RUN_H_
