#include "cc/xla/loops/build.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/spec/loops/errors.h"
#include "cc/spec/loops/loop_spec.h"
#include "cc/status.h"
#include "cc/xla/concatenate.h"
#include "cc/xla/loops/count.h"
#include "cc/xla/loops/function.h"
#include "cc/xla/loops/history.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/dynamic_shaped_ops.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_ti {
namespace {

using tensorflow::Tensor;
using xla::Shape;
using xla::ShapeUtil;
using xla::XlaBuilder;
using xla::XlaOp;

std::vector<XlaOp> Starts(XlaOp array, int rank, int64_t axis, XlaOp at) {
  std::vector<XlaOp> starts(rank, Int(array.builder(), 0));
  starts[axis] = at;
  return starts;
}

// The values that a loop carries from one iteration to the next.
struct State {
  XlaOp index;                 // the number of iterations done
  XlaOp count;                 // where it is known at run time only
  XlaOp go;                    // true if the condition asks for the next iteration
  XlaOp fault;                 // 0, or 1 + the number of the fault that ended the loop
  std::vector<XlaOp> inputs;   // states, invariants, and sliced inputs
  std::vector<XlaOp> shared;   // the condition's results for the body
  std::vector<XlaOp> outputs;  // buffers and sums; null where there is none

  // In one order, without the nulls.
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (XlaOp* op : {&index, &count, &go, &fault}) visit(op);
    for (std::vector<XlaOp>* ops : {&inputs, &shared, &outputs}) {
      for (XlaOp& op : *ops) visit(&op);
    }
  }

  XlaOp Join(XlaBuilder* builder) {
    std::vector<XlaOp> elements;
    ForEach([&](XlaOp* op) {
      if (op->valid()) elements.push_back(*op);
    });
    return xla::Tuple(builder, elements);
  }

  // A state of the same structure.
  State Split(XlaOp tuple) const {
    State state = *this;
    int element = 0;
    state.ForEach([&](XlaOp* op) {
      if (op->valid()) *op = xla::GetTupleElement(tuple, element++);
    });
    return state;
  }
};

class WhileBuilder {
 public:
  WhileBuilder(const LoopPlan& plan, const Context& ctx)
      : plan_(plan),
        spec_(plan.spec()),
        inputs_(plan.inputs()),
        outputs_(plan.outputs()),
        count_(plan.count()),
        ctx_(ctx),
        builder_(ctx.builder()),
        last_values_(plan.outputs().size()) {}

  State FirstState();
  absl::Status Run(State* state);
  absl::Status Finish(State* state);

 private:
  // The parameters of an iteration.
  XlaOp Limit(XlaBuilder* builder, const State& state) const;
  XlaOp Element(XlaBuilder* builder, const State& state, int i, XlaOp piece) const;
  XlaOp LastElement(int i) const;
  // What an iteration does to the state.
  absl::Status Decide(XlaBuilder* builder, State* state);
  absl::Status Iterate(XlaBuilder* builder, State* state);
  absl::Status IterateLast(State* state);
  XlaOp Position(XlaBuilder* builder, const State& state, int i, XlaOp piece) const;
  void Place(XlaBuilder* builder, int i, XlaOp piece, XlaOp value, State* state) const;
  void Update(const Function& function, const std::vector<XlaOp>& updates, State* state,
              const std::vector<int>* parameters, XlaOp condition) const;
  // The op's outputs.
  absl::Status FinishOutput(int i, State* state);
  XlaOp FinishBuffer(int i, XlaOp buffer, const State& state) const;
  void SetUnmade(int i) const;

  const LoopPlan& plan_;
  const LoopSpec& spec_;
  const std::vector<LoopPlan::Input>& inputs_;
  const std::vector<LoopPlan::Output>& outputs_;
  const XlaCount& count_;
  const Context& ctx_;
  XlaBuilder* const builder_;
  std::vector<XlaOp> last_values_;  // of outputs, in the short iteration
  std::vector<std::string> faults_;
};

State WhileBuilder::FirstState() {
  State state;
  state.index = Int(builder_, 0);
  if (count_.exact < 0) state.count = count_.runtime;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    XlaOp& op = state.inputs.emplace_back();
    if (plan_.is_resource(i)) {
      const absl::Status status = ctx_.ReadResource(i, &op);
      if (!status.ok()) op = builder_->ReportError(status);
    } else if (spec_.inputs[i].mode == InputMode::kHistory) {
      op = inputs_[i].parts.stack;
    } else if (inputs_[i].starts_empty) {
      op = ZeroValue(builder_, inputs_[i].shape);
    } else {
      op = ctx_.Input(i);
    }
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    const LoopPlan::Output& out = outputs_[i];
    XlaOp& op = state.outputs.emplace_back();
    if (!out.is_made) continue;
    switch (output.mode) {
      case OutputMode::kCount:
        break;
      case OutputMode::kHistory:
        if (out.is_recorded) op = ZeroValue(builder_, StackShape(out.value, out.capacity));
        break;
      case OutputMode::kLast:
        if (spec_.StateOf(output) < 0) op = ZeroValue(builder_, out.value);
        break;
      case OutputMode::kSum: {
        // Sums of halves are made in float, and rounded once.
        const bool is_half =
            out.value.element_type() == xla::F16 || out.value.element_type() == xla::BF16;
        op = xla::Zeros(builder_,
                        is_half ? ShapeUtil::ChangeElementType(out.value, xla::F32) : out.value);
        break;
      }
      default:
        op = xla::Zeros(builder_, out.is_stacked
                                      ? WithAxis(out.value, out.axis, out.capacity)
                                      : WithExtent(out.value, out.axis, out.capacity * out.extent));
    }
  }
  return state;
}

// The most iterations that there may be.
XlaOp WhileBuilder::Limit(XlaBuilder* builder, const State& state) const {
  if (count_.exact >= 0) return Int(builder, plan_.full());
  return state.count.valid() ? state.count : Int(builder, kNoBound);
}

// The value of parameter i for piece `piece`.
XlaOp WhileBuilder::Element(XlaBuilder* builder, const State& state, int i, XlaOp piece) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const LoopPlan::Input& in = inputs_[i];
  if (input.mode == InputMode::kValue) return state.inputs[i];
  if (input.mode == InputMode::kHistory) {
    const int64_t part = input.range.part_size;
    if (part <= 0) {
      const bool is_empty = StackSize(ShapeOf(state.inputs[i])) == 0;
      return is_empty ? ZeroValue(builder, in.parameter) : StackElement(state.inputs[i], piece);
    }
    HistoryParts parts;
    parts.stack = StackRange(state.inputs[i], xla::Mul(piece, Int(builder, part)), part);
    return parts.Join(builder);
  }
  if (in.shape.dimensions(in.axis) == 0) return xla::Zeros(builder, in.parameter);
  const int64_t size = input.range.part_size;
  XlaOp first = Int(builder, in.pieces.first - (in.pieces.stride > 0 ? 0 : size - 1));
  if (in.pieces.stride < 0 && in.shape.is_dynamic_dimension(in.axis)) {
    first = xla::Sub(xla::GetDimensionSize(state.inputs[i], in.axis), Int(builder, size));
  }
  const XlaOp begin = xla::Add(xla::Mul(piece, Int(builder, in.pieces.stride)), first);
  const int rank = in.shape.dimensions().size();
  const XlaOp slice =
      xla::DynamicSlice(state.inputs[i], Starts(state.inputs[i], rank, in.axis, begin),
                        Dims(WithExtent(in.shape, in.axis, size)));
  return spec_.inputs[i].drops_axis() ? xla::Reshape(slice, in.parameter.dimensions()) : slice;
}

// The value of parameter i in the short iteration.
XlaOp WhileBuilder::LastElement(int i) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const LoopPlan::Input& in = inputs_[i];
  const int64_t at = count_.exact - 1;
  if (input.mode == InputMode::kHistory) {
    if (in.parts.last.valid()) return in.parts.last;
    const int64_t part = input.range.part_size;
    if (part <= 0) return StackElement(in.parts.stack, Int(builder_, at));
    const auto stack = builder_->GetShape(in.parts.stack);
    if (!stack.ok()) return builder_->ReportError(stack.status());
    const int64_t size = std::min(part, StackSize(*stack) - at * part);
    HistoryParts parts;
    parts.stack = StackRange(in.parts.stack, at * part, size);
    return parts.Join(builder_);
  }
  const int64_t begin = in.pieces.Begin(at);
  const XlaOp slice = xla::SliceInDim(ctx_.Input(i), begin, begin + in.pieces.Size(at), 1, in.axis);
  return spec_.inputs[i].drops_axis() ? xla::Reshape(slice, in.parameter.dimensions()) : slice;
}

// Writes a function's updates of variables to the state.
void WhileBuilder::Update(const Function& function, const std::vector<XlaOp>& updates, State* state,
                          const std::vector<int>* parameters, XlaOp condition) const {
  const std::vector<int> updated = function.updated();
  for (size_t u = 0; u < updated.size(); ++u) {
    const int i = parameters == nullptr ? updated[u] : (*parameters)[updated[u]];
    XlaOp& value = state->inputs[i];
    value = condition.valid() ? xla::Select(condition, updates[u], value) : updates[u];
  }
}

// Finds out whether there is a next iteration.
absl::Status WhileBuilder::Decide(XlaBuilder* builder, State* state) {
  const bool is_first = faults_.empty();
  const XlaOp is_within = xla::Lt(state->index, Limit(builder, *state));
  std::vector<XlaOp> parameters, results, updates;
  for (int i : spec_.condition_inputs) {
    parameters.push_back(Element(builder, *state, i, state->index));
  }
  TF_RETURN_IF_ERROR(plan_.condition().CallIf(is_within, parameters, &results, &updates));
  Update(plan_.condition(), updates, state, &spec_.condition_inputs, is_within);
  XlaOp go = xla::And(results[0], is_within);
  XlaOp fault = Int(builder, 0);
  int number = 0;
  const auto check = [&](XlaOp size, XlaOp matters, const std::string& message) {
    if (is_first) faults_.push_back(message);
    ++number;
    const XlaOp is_over = xla::And(xla::Ge(state->index, size), matters);
    fault = xla::Select(xla::And(is_over, xla::Eq(fault, Int(builder, 0))), Int(builder, number),
                        fault);
  };
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (spec_.inputs[i].mode != InputMode::kIterator) continue;
    const XlaCount& elements = inputs_[i].elements;
    const bool is_known = elements.exact >= 0;
    if (is_known && count_.exact >= 0 && count_.exact <= elements.exact) continue;
    const auto& read = spec_.condition_inputs;
    const bool is_read = std::find(read.begin(), read.end(), i) != read.end();
    const XlaOp size = is_known ? Int(builder, elements.exact)
                                : xla::GetDimensionSize(state->inputs[i], inputs_[i].axis);
    check(size, is_read ? is_within : go,
          ReadsPast(Literal(spec_.inputs[i].label), spec_.inputs[i].axis, "$0",
                    is_known ? absl::StrCat(elements.exact, " elements") : "last element"));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const int64_t length = outputs_[i].length;
    if (length < 0 || length >= kNoBound) continue;
    if (count_.exact >= 0 && count_.exact <= length) continue;
    check(Int(builder, length), go, LengthEnds(Literal(spec_.outputs[i].label), length, "more"));
  }
  if (!faults_.empty()) {
    go = xla::And(go, xla::Eq(fault, Int(builder, 0)));
    state->fault = fault;
  }
  state->go = go;
  state->shared.assign(results.begin() + 1, results.end());
  return absl::OkStatus();
}

// The position of a piece in an output's buffer.
XlaOp WhileBuilder::Position(XlaBuilder* builder, const State& state, int i, XlaOp piece) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  if (output.mode == OutputMode::kHistory) {
    return output.stride == 1 ? piece : xla::Div(piece, Int(builder, output.stride));
  }
  if (output.stride > 0) return piece;
  // With a condition, the first piece lies at the end of the buffer: see FinishBuffer.
  const XlaOp end =
      spec_.has_condition ? Int(builder, outputs_[i].capacity) : Limit(builder, state);
  return xla::Sub(xla::Sub(end, Int(builder, 1)), piece);
}

void WhileBuilder::Place(XlaBuilder* builder, int i, XlaOp piece, XlaOp value, State* state) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  const LoopPlan::Output& out = outputs_[i];
  XlaOp& op = state->outputs[i];
  if (!op.valid()) return;
  switch (output.mode) {
    case OutputMode::kLast:
      op = value;
      return;
    case OutputMode::kSum: {
      const xla::PrimitiveType type = out.value.element_type();
      const bool is_half = type == xla::F16 || type == xla::BF16;
      op = xla::Add(op, is_half ? xla::ConvertElementType(value, xla::F32) : value);
      return;
    }
    case OutputMode::kHistory: {
      if (out.capacity == 0) return;
      if (output.part_size > 0) {
        const XlaOp at = xla::Mul(piece, Int(builder, out.extent));
        op = UpdateStackRange(op, UniformStack(value, output.label), at);
        return;
      }
      XlaOp condition;
      if (output.stride > 1) {
        condition = xla::Eq(xla::Rem(piece, Int(builder, output.stride)), Int(builder, 0));
      }
      op = UpdateStack(op, value, Position(builder, *state, i, piece), condition);
      return;
    }
    default: {
      if (out.capacity == 0) return;
      const int rank = out.value.dimensions().size() + out.is_stacked;
      if (out.is_stacked)
        value = xla::Reshape(value, WithAxis(out.value, out.axis, 1).dimensions());
      const XlaOp at = xla::Mul(Position(builder, *state, i, piece), Int(builder, out.extent));
      op = xla::DynamicUpdateSlice(op, value, Starts(op, rank, out.axis, at));
    }
  }
}

absl::Status WhileBuilder::Iterate(XlaBuilder* builder, State* state) {
  XlaOp piece = state->index;
  if (spec_.reverse) {
    piece = xla::Sub(xla::Sub(Limit(builder, *state), Int(builder, 1)), piece);
  }
  std::vector<XlaOp> parameters, results, updates;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    parameters.push_back(Element(builder, *state, i, piece));
  }
  parameters.insert(parameters.end(), state->shared.begin(), state->shared.end());
  TF_RETURN_IF_ERROR(plan_.body().Call(builder, parameters, &results, &updates));
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    if (output.mode == OutputMode::kCount) continue;
    Place(builder, i, piece,
          output.result >= 0 ? results[output.result] : parameters[output.parameter], state);
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    state->inputs[edge.to] = results[edge.from];
  }
  Update(plan_.body(), updates, state, nullptr, XlaOp());
  state->index = xla::Add(state->index, Int(builder, 1));
  if (spec_.has_condition) TF_RETURN_IF_ERROR(Decide(builder, state));
  return builder->first_error();
}

// The iteration of the last piece, where that is short.
absl::Status WhileBuilder::IterateLast(State* state) {
  std::vector<XlaOp> parameters, results, updates;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const bool is_value = spec_.inputs[i].mode == InputMode::kValue;
    parameters.push_back(is_value ? state->inputs[i] : LastElement(i));
  }
  TF_RETURN_IF_ERROR(plan_.last_body().Call(builder_, parameters, &results, &updates));
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    if (output.mode == OutputMode::kCount) continue;
    const XlaOp value = output.result >= 0 ? results[output.result] : parameters[output.parameter];
    if (output.mode == OutputMode::kSum) {
      Place(builder_, i, XlaOp(), value, state);
    } else if (output.mode != OutputMode::kLast) {
      last_values_[i] = value;
    } else if (state->outputs[i].valid() && (!spec_.reverse || plan_.full() == 0)) {
      state->outputs[i] = value;
    }
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    state->inputs[edge.to] = results[edge.from];
  }
  Update(plan_.last_body(), updates, state, nullptr, XlaOp());
  return builder_->first_error();
}

absl::Status WhileBuilder::Run(State* state) {
  if (plan_.has_short_last() && spec_.reverse) TF_RETURN_IF_ERROR(IterateLast(state));
  if (plan_.is_dynamic() || plan_.full() > 0) {
    if (spec_.has_condition) TF_RETURN_IF_ERROR(Decide(builder_, state));
    const XlaOp first = state->Join(builder_);
    TF_ASSIGN_OR_RETURN(const Shape shape, builder_->GetShape(first));

    const std::unique_ptr<XlaBuilder> test = builder_->CreateSubBuilder("tf_ti_condition");
    State tested = state->Split(xla::Parameter(test.get(), 0, shape, "state"));
    const XlaOp goes_on =
        spec_.has_condition ? tested.go : xla::Lt(tested.index, Limit(test.get(), tested));
    TF_ASSIGN_OR_RETURN(const xla::XlaComputation condition, test->Build(goes_on));

    const std::unique_ptr<XlaBuilder> inner = builder_->CreateSubBuilder("tf_ti_body");
    State next = state->Split(xla::Parameter(inner.get(), 0, shape, "state"));
    TF_RETURN_IF_ERROR(Iterate(inner.get(), &next));
    next.Join(inner.get());
    TF_ASSIGN_OR_RETURN(const xla::XlaComputation body, inner->Build());

    *state = state->Split(xla::While(condition, body, first));
  }
  if (plan_.has_short_last() && !spec_.reverse) TF_RETURN_IF_ERROR(IterateLast(state));
  for (size_t f = 0; f < faults_.size(); ++f) {
    Require(xla::Ne(state->fault, Int(builder_, f + 1)), faults_[f], {Wide(state->index)});
  }
  return builder_->first_error();
}

// A concatenation or a stack, as long as the loop was, or as its length says.
XlaOp WhileBuilder::FinishBuffer(int i, XlaOp buffer, const State& state) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  const LoopPlan::Output& out = outputs_[i];
  if (last_values_[i].valid()) {
    XlaOp last = last_values_[i];
    if (out.is_stacked) last = xla::Reshape(last, WithAxis(out.value, out.axis, 1).dimensions());
    const int64_t room = out.length < 0 ? 0 : out.capacity - plan_.full();
    if (room > 0) buffer = xla::SliceInDim(buffer, 0, plan_.full(), 1, out.axis);
    std::vector<XlaOp> parts = {buffer, last};
    if (output.stride < 0) std::swap(parts[0], parts[1]);
    if (room > 1) {
      parts.push_back(xla::Zeros(builder_, WithExtent(ShapeOf(buffer), out.axis, room - 1)));
    }
    return Concatenate(parts, out.axis);
  }
  if (spec_.has_condition && output.stride < 0 && out.capacity > 0) {
    const XlaOp padded = xla::ConcatInDim(builder_, {buffer, xla::ZerosLike(buffer)}, out.axis);
    const int rank = out.value.dimensions().size() + out.is_stacked;
    const auto shape = builder_->GetShape(buffer);
    if (!shape.ok()) return builder_->ReportError(shape.status());
    const XlaOp at = xla::Sub(Int(builder_, out.capacity), state.index);
    buffer = xla::DynamicSlice(padded, Starts(padded, rank, out.axis, at), Dims(*shape));
  }
  if (plan_.is_dynamic() && out.length < 0) {
    const XlaOp extent = xla::Mul(state.index, Int(builder_, out.extent));
    buffer = xla::SetDimensionSize(buffer, extent, out.axis);
  }
  return buffer;
}

// Gives some value to an output that is not made, for dead code, which TensorFlow compiles too.
void WhileBuilder::SetUnmade(int i) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  if (output.dtype == tensorflow::DT_VARIANT) {
    ctx_.SetOutput(i, HistoryParts().Join(builder_));
    return;
  }
  const Shape value = ShapeUtil::MakeStaticShape(outputs_[i].value);
  const bool is_stack = output.mode == OutputMode::kStack;
  ctx_.SetOutput(i, xla::Zeros(builder_, is_stack ? WithAxis(value, 0, 1) : value));
}

absl::Status WhileBuilder::FinishOutput(int i, State* state) {
  const LoopSpec::Output& output = spec_.outputs[i];
  const LoopPlan::Output& out = outputs_[i];
  const XlaOp value = state->outputs[i];
  if (!out.is_made) {
    SetUnmade(i);
    return absl::OkStatus();
  }
  switch (output.mode) {
    case OutputMode::kCount:
      if (plan_.is_dynamic()) {
        ctx_.SetOutput(i, Wide(state->index));
      } else {
        ctx_.SetOutput(i, Tensor(count_.exact));
      }
      return absl::OkStatus();
    case OutputMode::kLast: {
      const int parameter = spec_.StateOf(output);
      if (parameter >= 0) {
        ctx_.SetOutput(i, state->inputs[parameter]);
        return absl::OkStatus();
      }
      const std::string message = HasNoLast(output.label, output.result);
      if ((count_.exact == 0 || plan_.is_dynamic()) && plan_.IsUsed(i)) {
        if (count_.exact == 0) return InvalidArgument(message);
        Require(xla::Gt(state->index, Int(builder_, 0)), Literal(message));
      }
      ctx_.SetOutput(i, value);
      return absl::OkStatus();
    }
    case OutputMode::kSum:
      ctx_.SetOutput(i, xla::ConvertElementType(value, out.value.element_type()));
      return absl::OkStatus();
    case OutputMode::kHistory: {
      HistoryParts parts;
      parts.stack = value;
      if (plan_.is_dynamic() && out.is_recorded) {
        parts.count = xla::Mul(state->index, Int(builder_, out.extent));
      }
      const bool has_last = out.is_recorded && last_values_[i].valid();
      if (has_last && output.part_size > 0) {
        parts.stack = JoinStacks(value, UniformStack(last_values_[i], output.label));
      } else if (has_last && (count_.exact - 1) % output.stride == 0) {
        TF_ASSIGN_OR_RETURN(const Shape last, builder_->GetShape(last_values_[i]));
        if (ShapeUtil::Compatible(last, out.value)) {
          parts.stack = AppendToStack(value, last_values_[i]);
        } else {
          parts.last = last_values_[i];
        }
      }
      ctx_.SetOutput(i, parts.Join(builder_));
      return absl::OkStatus();
    }
    default:
      ctx_.SetOutput(i, FinishBuffer(i, value, *state));
      return absl::OkStatus();
  }
}

absl::Status WhileBuilder::Finish(State* state) {
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    TF_RETURN_IF_ERROR(FinishOutput(i, state));
  }
  std::vector<int> updated = plan_.body().updated();
  for (int parameter : plan_.condition().updated()) {
    updated.push_back(spec_.condition_inputs[parameter]);
  }
  for (int i : updated) {
    TF_RETURN_IF_ERROR(ctx_.AssignResource(i, state->inputs[i]));
  }
  return builder_->first_error();
}

}  // namespace

absl::Status BuildLoop(const LoopPlan& plan, const Context& ctx) {
  WhileBuilder builder(plan, ctx);
  State state = builder.FirstState();
  TF_RETURN_IF_ERROR(builder.Run(&state));
  return builder.Finish(&state);
}

}  // namespace tf_ti
