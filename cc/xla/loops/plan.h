// The compilation of a loop by XLA: what must be known before it is built.
//
// XLA knows all shapes when it compiles. So a state has one shape in all iterations, and an output
// that is as long as the loop needs a bound for the number of iterations. Anything that XLA cannot
// do is Unimplemented: TensorFlow falls back to the plain kernels, unless it was told to compile.
#ifndef TF_TI_CC_XLA_LOOPS_PLAN_H_
#define TF_TI_CC_XLA_LOOPS_PLAN_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "cc/compute/loops/pieces.h"
#include "cc/spec/loops/loop_spec.h"
#include "cc/xla/loops/count.h"
#include "cc/xla/loops/function.h"
#include "cc/xla/loops/history.h"
#include "cc/xla/tf2xla.h"
#include "tensorflow/core/framework/tensor.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_ti {

// The number of iterations, the shapes of all that the loop carries, and its functions, compiled.
// An XLA computation checks what is known only when it runs.
class LoopPlan {
 public:
  struct Input {
    xla::Shape shape;
    int64_t axis = 0;                            // of a slice, resolved
    Pieces pieces;                               // of a slice
    XlaCount elements;                           // of an iterator
    HistoryParts parts;                          // of a history
    std::optional<tensorflow::Tensor> constant;  // of an invariant that the body must know
    xla::Shape parameter;                        // shape of the parameter
    xla::Shape last_parameter;  // in the last iteration, where its pieces are short
    bool starts_empty = false;  // a list whose shape came from the body
  };
  struct Output {
    bool is_made = true;
    xla::Shape value;  // of the body's result, of the parameter, or of a part's values
    int64_t axis = 0;
    bool is_stacked = false;
    int64_t extent = 1;  // of a piece, or of a part of a history
    int64_t length = -1;
    int64_t capacity = 0;  // of the buffer, in pieces
    bool is_recorded = true;
  };

  // `condition` is null where the loop has none.
  LoopPlan(const LoopSpec& spec, const tensorflow::NameAttrList& body,
           const tensorflow::NameAttrList* condition, const Context& ctx)
      : spec_(spec),
        body_name_(body),
        condition_name_(condition),
        ctx_(ctx),
        builder_(ctx.builder()) {}

  absl::Status Init();

  const LoopSpec& spec() const { return spec_; }
  const std::vector<Input>& inputs() const { return inputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  // With a condition, the most iterations that there may be.
  const XlaCount& count() const { return count_; }
  // True if only the running loop knows how many iterations there are.
  bool is_dynamic() const { return spec_.has_condition || count_.exact < 0; }
  // True if the last iteration, of the short piece, is a call of last_body().
  bool has_short_last() const { return has_short_last_; }
  // The number of the other iterations, where the count is exact.
  int64_t full() const { return full_; }
  const Function& body() const { return body_; }
  const Function& last_body() const { return last_body_; }
  const Function& condition() const { return condition_; }

  bool is_resource(int i) const { return spec_.inputs[i].dtype == tensorflow::DT_RESOURCE; }
  // An output that cannot be made is no error if nobody uses it.
  bool IsUsed(int i) const { return ctx_.UsedOutputs()[i]; }

 private:
  // Find the number of iterations.
  absl::Status StartInput(int i, XlaCount* count);
  absl::Status StartLimit(XlaCount* count);
  absl::Status GetLength(int i);
  absl::Status FindCount();
  absl::Status CheckStart();
  // Compile the functions.
  absl::Status CompileFunctions();
  absl::Status CompileCondition(std::vector<xla::Shape>* shared);
  absl::Status Compile(const tensorflow::NameAttrList& name, const std::vector<int>& parameters,
                       const std::vector<xla::Shape>& shared, bool last, Function* function);
  bool ShapeLists();
  absl::Status CheckBackEdges(const Function& body) const;
  // Finds the shape of an output.
  absl::Status StartOutput(int i);

  // True for a list of TensorFlow's whose elements' shape is not known. XLA has its length alone.
  bool is_unshaped_list(int i) const {
    return spec_.inputs[i].dtype == tensorflow::DT_VARIANT && inputs_[i].shape.IsArray();
  }

  const LoopSpec& spec_;
  const tensorflow::NameAttrList& body_name_;
  const tensorflow::NameAttrList* const condition_name_;
  const Context& ctx_;
  xla::XlaBuilder* const builder_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  XlaCount count_;
  bool has_short_last_ = false;
  int64_t full_ = 0;
  Function body_;
  Function last_body_;
  Function condition_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_PLAN_H_
