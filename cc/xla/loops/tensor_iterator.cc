// The loop ops as one xla::While.
//
// A State goes from one iteration to the next; it becomes the While's tuple. Pieces are taken by
// dynamic slices, and outputs are updated in place by dynamic-update-slices. Where the last piece
// is shorter than the others, its iteration is a call beside the While.
//
// XLA knows all shapes when it compiles. So a state has one shape in all iterations, and an output
// that is as long as the loop needs a bound for the number of iterations. Anything that XLA cannot
// do is Unimplemented: TensorFlow falls back to the plain kernels, unless it was told to compile.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/loops/pieces.h"
#include "cc/kernels/loops/spec.h"
#include "cc/status.h"
#include "cc/xla/loops/count.h"
#include "cc/xla/loops/function.h"
#include "cc/xla/loops/history.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/dynamic_shaped_ops.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_ti {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
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

absl::Status CheckType(const std::string& label, DataType type) {
  if (type != tensorflow::DT_INT4 && type != tensorflow::DT_UINT4) return absl::OkStatus();
  // XLA packs two of them into a byte, TensorFlow does not, and neither converts.
  return Unimplemented(label, ": XLA and TensorFlow disagree on how ",
                       tensorflow::DataTypeString(type), " lies in memory; cast it to int8");
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
  WhileBuilder(const LoopSpec& spec, const tensorflow::NameAttrList& body,
               const tensorflow::NameAttrList* condition, const Context& ctx)
      : spec_(spec),
        body_name_(body),
        condition_name_(condition),
        ctx_(ctx),
        builder_(ctx.builder()) {}

  absl::Status Build();

 private:
  struct InputState {
    Shape shape;
    int64_t axis = 0;                // of a slice, resolved
    Pieces pieces;                   // of a slice
    Count elements;                  // of an iterator
    HistoryParts parts;              // of a history
    std::optional<Tensor> constant;  // of an invariant, where the body must know it
    Shape parameter;                 // shape of the parameter
    Shape last_parameter;            // in the last iteration, where its pieces are short
    bool starts_empty = false;       // a list whose shape came from the body
  };
  struct OutputState {
    bool is_made = true;
    Shape value;  // of the body's result, or of the parameter
    int64_t axis = 0;
    bool is_stacked = false;
    int64_t extent = 1;  // of a piece
    int64_t length = -1;
    int64_t capacity = 0;  // of the buffer, in pieces
    bool is_recorded = true;
    XlaOp last;  // the value of the short iteration
  };

  absl::Status StartInput(int i, Count* count);
  absl::Status StartLimit(Count* count);
  absl::Status GetLength(int i);
  absl::Status FindCount();
  absl::Status CompileCondition(std::vector<Shape>* shared);
  absl::Status CompileFunctions();
  bool ShapeLists();
  absl::Status Compile(const tensorflow::NameAttrList& name, const std::vector<int>& parameters,
                       const std::vector<Shape>& shared, bool last, Function* function);
  absl::Status CheckBackEdges(const Function& body) const;
  absl::Status StartOutput(int i);
  absl::Status CheckStart();

  bool drops_axis(int i) const {
    const InputMode mode = spec_.inputs[i].mode;
    return mode == InputMode::kIndex || mode == InputMode::kIterator;
  }
  bool is_resource(int i) const { return spec_.inputs[i].dtype == tensorflow::DT_RESOURCE; }
  // True for a list of TensorFlow's whose elements' shape is not known. XLA has its length alone.
  bool is_unshaped_list(int i) const {
    return spec_.inputs[i].dtype == tensorflow::DT_VARIANT && inputs_[i].shape.IsArray();
  }
  bool has_condition() const { return condition_name_ != nullptr; }
  // An output that cannot be made is no error if nobody uses it.
  bool IsUsed(int i) const { return ctx_.UsedOutputs()[i]; }
  bool is_dynamic() const { return has_condition() || count_.exact < 0; }

  State FirstState();
  XlaOp Limit(XlaBuilder* builder, const State& state) const;
  XlaOp Element(XlaBuilder* builder, const State& state, int i, XlaOp piece) const;
  XlaOp LastElement(int i) const;
  absl::Status Decide(XlaBuilder* builder, State* state);
  XlaOp Position(XlaBuilder* builder, const State& state, int i, XlaOp piece) const;
  void Place(XlaBuilder* builder, int i, XlaOp piece, XlaOp value, State* state) const;
  void Update(const Function& function, const std::vector<XlaOp>& updates, State* state,
              const std::vector<int>* parameters, XlaOp condition) const;
  absl::Status Iterate(XlaBuilder* builder, State* state);
  absl::Status IterateLast(State* state);
  absl::Status Run(State* state);
  absl::Status Finish(State* state);
  absl::Status FinishOutput(int i, State* state);
  XlaOp FinishBuffer(int i, XlaOp buffer, const State& state) const;
  int StateOf(const LoopSpec::Output& output) const;
  void SetUnmade(int i) const;

  const LoopSpec& spec_;
  const tensorflow::NameAttrList& body_name_;
  const tensorflow::NameAttrList* const condition_name_;
  const Context& ctx_;
  XlaBuilder* const builder_;
  std::vector<InputState> inputs_;
  std::vector<OutputState> outputs_;
  Count count_;                  // with a condition: at most so many
  bool has_short_last_ = false;  // the last iteration is a call of last_body_
  int64_t full_ = 0;             // iterations of the While, where the count is exact
  Function body_;
  Function last_body_;
  Function condition_;
  std::vector<std::string> faults_;
};

absl::Status WhileBuilder::StartInput(int i, Count* count) {
  const LoopSpec::Input& input = spec_.inputs[i];
  InputState& state = inputs_[i];
  count->from = input.label;
  if (is_resource(i)) {
    if (input.mode != InputMode::kValue || input.back_edge) {
      return Unimplemented(input.label, ": a resource can only be an invariant");
    }
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(CheckType(input.label, input.dtype));
  const XlaOp op = ctx_.Input(i);
  TF_ASSIGN_OR_RETURN(state.shape, builder_->GetShape(op));
  if (input.mode == InputMode::kValue) {
    state.parameter = state.shape;
    return absl::OkStatus();
  }
  if (input.mode == InputMode::kHistory) {
    TF_RETURN_IF_ERROR(state.parts.Init(op, input.label));
    TF_ASSIGN_OR_RETURN(const Shape stack, builder_->GetShape(state.parts.stack));
    const int64_t size = StackSize(stack);
    const int64_t part = input.range.part_size;
    state.parameter = ElementShape(stack);
    if (part > 0) {
      if (state.parts.count.valid() || state.parts.last.valid()) {
        return Unimplemented(input.label, ": XLA cannot cut this sequence into parts");
      }
      if (size % part > 0) {
        state.last_parameter = HistoryShape(state.parameter, size % part);
        has_short_last_ = true;
      }
      state.parameter = HistoryShape(state.parameter, part);
      count->exact = size / part + (size % part > 0);
    } else if (state.parts.count.valid()) {
      count->runtime = state.parts.count;
      count->bound = size;
    } else if (state.parts.last.valid()) {
      TF_ASSIGN_OR_RETURN(state.last_parameter, builder_->GetShape(state.parts.last));
      has_short_last_ = true;
      count->exact = size + 1;
    } else {
      count->exact = size;
    }
    return absl::OkStatus();
  }
  const int64_t rank = state.shape.dimensions().size();
  TF_RETURN_IF_ERROR(ResolveAxis(input.label, input.axis, rank, &state.axis));
  const int64_t extent = state.shape.dimensions(state.axis);
  if (extent > kNoBound) {
    return Unimplemented(input.label, ": XLA's loops take no axis of more than ", kNoBound,
                         " elements, got ", extent);
  }
  for (int64_t d = 0; d < rank; ++d) {
    if (d == state.axis || !state.shape.is_dynamic_dimension(d)) continue;
    return Unimplemented(input.label, ": XLA must know all extents but that of the axis; of ",
                         ShapeUtil::HumanString(state.shape), " it only knows bounds");
  }
  const std::string problem = ResolvePieces(input.range, extent, &state.pieces);
  if (!problem.empty()) return InvalidArgument(input.label, ": ", problem);
  if (drops_axis(i)) {
    state.parameter = WithoutAxis(state.shape, state.axis);
  } else {
    state.parameter = WithExtent(state.shape, state.axis, input.range.part_size);
    if (state.pieces.count > 0 && state.pieces.last_size != input.range.part_size) {
      state.last_parameter = WithExtent(state.shape, state.axis, state.pieces.last_size);
      has_short_last_ = true;
    }
  }
  count->exact = state.pieces.count;
  if (!state.shape.is_dynamic_dimension(state.axis)) return absl::OkStatus();
  const Range& range = input.range;
  const int64_t part = range.part_size;
  const bool is_whole = (range.stride == part && range.start == 0 && range.end == -1) ||
                        (range.stride == -part && range.start == -1 && range.end == 0);
  if (!is_whole || (range.short_last && part > 1)) {
    return Unimplemented(input.label, ": XLA must know the extent of axis ", input.axis,
                         " to cut it into these pieces; it only knows a bound, ", extent);
  }
  const XlaOp size = xla::GetDimensionSize(op, state.axis), part_op = Int(builder_, part);
  if (part > 1) {
    Require(xla::Eq(xla::Rem(size, part_op), Int(builder_, 0)),
            absl::StrCat(Literal(input.label), ": pieces of ", part, " do not tile $0 elements"),
            {Wide(size)});
  }
  count->exact = -1;
  count->runtime = xla::Div(size, part_op);
  count->bound = extent / part;
  return absl::OkStatus();
}

absl::Status WhileBuilder::StartLimit(Count* count) {
  if (!spec_.has_num_iterations) return absl::OkStatus();
  const int input = spec_.inputs.size();
  count->from = spec_.limit_label;
  TF_ASSIGN_OR_RETURN(const Shape shape, ctx_.InputShape(input));
  if (!shape.dimensions().empty()) {
    return InvalidArgument(spec_.limit_label, " must be a scalar, got shape ",
                           ShapeUtil::HumanString(shape));
  }
  TF_ASSIGN_OR_RETURN(std::optional<Tensor> constant, ctx_.FindConstant(input));
  if (constant.has_value()) {
    count->exact = constant->scalar<int64_t>()();
    if (count->exact < 0) {
      return InvalidArgument(spec_.limit_label, " must not be negative, got ", count->exact);
    }
    if (count->exact > kNoBound && has_condition()) {
      *count = Count();
      return absl::OkStatus();
    }
    if (count->exact > kNoBound) {
      return Unimplemented(spec_.limit_label, ": XLA's loops have at most ", kNoBound,
                           " iterations, got ", count->exact);
    }
    return absl::OkStatus();
  }
  const XlaOp given = ctx_.Input(input);
  Require(xla::Ge(given, xla::Zero(builder_, xla::S64)),
          absl::StrCat(Literal(spec_.limit_label), " must not be negative, got $0"), {given});
  count->runtime = xla::ConvertElementType(xla::Clamp(xla::Zero(builder_, xla::S64), given,
                                                      xla::ConstantR0<int64_t>(builder_, kNoBound)),
                                           xla::S32);
  return absl::OkStatus();
}

absl::Status WhileBuilder::GetLength(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  if (output.length < 0) return absl::OkStatus();
  int64_t* const length = &outputs_[i].length;
  const int input = spec_.inputs.size() + spec_.has_num_iterations + output.length;
  const absl::Status status = ctx_.GetConstant(input, length);
  if (!status.ok()) {
    if (!IsUsed(i)) return absl::OkStatus();
    return Unimplemented(output.label,
                         ": XLA must know the length when it compiles: ", status.message());
  }
  if (*length >= 0) return absl::OkStatus();
  return InvalidArgument(output.label, ": the length must not be negative, got ", *length);
}

absl::Status WhileBuilder::FindCount() {
  Count limit;
  TF_RETURN_IF_ERROR(StartLimit(&limit));
  TF_RETURN_IF_ERROR(count_.Merge(limit));
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    Count count;
    TF_RETURN_IF_ERROR(StartInput(i, &count));
    if (spec_.inputs[i].mode == InputMode::kIterator) {
      inputs_[i].elements = count;
    } else {
      TF_RETURN_IF_ERROR(count_.Merge(count));
    }
  }
  if (!count_.known() && !has_condition()) {
    return InvalidArgument("no input is sliced and ", spec_.limit_label,
                           " is not given: the number of iterations is unknown");
  }
  if (count_.exact >= 0) count_.bound = count_.exact;
  // More iterations than an iterator has elements, or than a length, are an error.
  for (const InputState& input : inputs_) {
    const Count& elements = input.elements;
    if (!elements.known()) continue;
    count_.bound = std::min(count_.bound, elements.exact >= 0 ? elements.exact : elements.bound);
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    TF_RETURN_IF_ERROR(GetLength(i));
    if (outputs_[i].length >= 0) count_.bound = std::min(count_.bound, outputs_[i].length);
  }
  if (has_short_last_ && is_dynamic()) {
    return Unimplemented(count_.from,
                         ": XLA must know the number of iterations, as the last piece is short");
  }
  full_ = count_.exact - has_short_last_;
  return absl::OkStatus();
}

absl::Status WhileBuilder::Compile(const tensorflow::NameAttrList& name,
                                   const std::vector<int>& parameters,
                                   const std::vector<Shape>& shared, bool last,
                                   Function* function) {
  std::vector<bool> must_be_constant;
  tensorflow::DataTypeVector types;
  TF_RETURN_IF_ERROR(ctx_.InspectFunction(name, &types, &must_be_constant));
  if (must_be_constant.size() != parameters.size() + shared.size()) {
    return InvalidArgument(name.name(), " has ", must_be_constant.size(),
                           " parameters; the op was built for ", parameters.size() + shared.size());
  }
  std::vector<FunctionArgument> arguments;
  std::string unknown, unshaped;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const int i = parameters[p];
    const LoopSpec::Input& input = spec_.inputs[i];
    InputState& state = inputs_[i];
    FunctionArgument& argument = arguments.emplace_back();
    argument.type = types[p];
    if (is_resource(i)) {
      argument.variable = i;
      continue;
    }
    if (must_be_constant[p]) {
      if (input.mode == InputMode::kValue && !input.back_edge && !state.constant.has_value()) {
        TF_ASSIGN_OR_RETURN(state.constant, ctx_.FindConstant(i));
      }
      argument.constant = state.constant;
      if (argument.constant.has_value()) continue;
      absl::StrAppend(&unknown, unknown.empty() ? "" : ", ", input.label);
    }
    if (is_unshaped_list(i)) {
      absl::StrAppend(&unshaped, unshaped.empty() ? "" : ", ", input.label);
    }
    const bool is_short =
        last && state.last_parameter.element_type() != xla::PRIMITIVE_TYPE_INVALID;
    argument.shape = is_short ? state.last_parameter : state.parameter;
  }
  for (size_t s = 0; s < shared.size(); ++s) {
    FunctionArgument& argument = arguments.emplace_back();
    argument.type = condition_.type(s + 1);
    argument.shape = shared[s];
  }
  const absl::Status status = function->Compile(ctx_, name, arguments);
  if (status.ok()) return status;
  std::string hints;
  if (!unknown.empty()) {
    absl::StrAppend(&hints, "\nThe body of the loop ", ctx_.op_name(),
                    " needs constants where it is given: ", unknown);
  }
  if (!unshaped.empty()) {
    absl::StrAppend(&hints, "\nThe body of the loop ", ctx_.op_name(),
                    " may need an element_shape of these TensorArrays: ", unshaped);
  }
  return absl::Status(status.code(), absl::StrCat(status.message(), hints));
}

// Gives the lists that come without the shape of their elements the shape that the body makes of
// them, as tf.while_loop does. Returns true if there were any.
bool WhileBuilder::ShapeLists() {
  bool found = false;
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    InputState& state = inputs_[edge.to];
    const Shape& made = body_.shape(edge.from);
    if (!is_unshaped_list(edge.to) || !made.IsTuple() || !made.is_static()) continue;
    if (StackSize(made) != state.shape.dimensions(0)) continue;
    state.shape = state.parameter = made;
    state.starts_empty = true;
    found = true;
  }
  return found;
}

// `shared` gets the shapes of the condition's results for the body.
absl::Status WhileBuilder::CompileCondition(std::vector<Shape>* shared) {
  if (!has_condition()) return absl::OkStatus();
  TF_RETURN_IF_ERROR(Compile(*condition_name_, spec_.condition_inputs, {}, false, &condition_));
  const Shape scalar = ShapeUtil::MakeShape(xla::PRED, {});
  if (condition_.num_results() == 0 || condition_.type(0) != tensorflow::DT_BOOL) {
    return InvalidArgument("the condition must first of all return a bool");
  }
  if (!ShapeUtil::Compatible(condition_.shape(0), scalar)) {
    return InvalidArgument(spec_.limit_label, ": the condition must be a scalar, got shape ",
                           ShapeUtil::HumanString(condition_.shape(0)));
  }
  shared->clear();
  for (int r = 1; r < condition_.num_results(); ++r) shared->push_back(condition_.shape(r));
  return absl::OkStatus();
}

absl::Status WhileBuilder::CompileFunctions() {
  std::vector<int> all;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) all.push_back(i);
  std::vector<Shape> shared;
  do {
    TF_RETURN_IF_ERROR(CompileCondition(&shared));
    TF_RETURN_IF_ERROR(Compile(body_name_, all, shared, false, &body_));
  } while (ShapeLists());
  TF_RETURN_IF_ERROR(CheckBackEdges(body_));
  if (has_short_last_) {
    TF_RETURN_IF_ERROR(Compile(body_name_, all, shared, true, &last_body_));
    TF_RETURN_IF_ERROR(CheckBackEdges(last_body_));
  }
  return absl::OkStatus();
}

absl::Status WhileBuilder::CheckBackEdges(const Function& body) const {
  if (body.num_results() != static_cast<int>(spec_.result_shapes.size())) {
    return InvalidArgument("the body has ", body.num_results(), " results; the op was built for ",
                           spec_.result_shapes.size());
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    const std::string& label = spec_.inputs[edge.to].label;
    if (body.type(edge.from) != spec_.inputs[edge.to].dtype) {
      return InvalidArgument(
          label, ": a back edge brings ", tensorflow::DataTypeString(body.type(edge.from)),
          " to a parameter of type ", tensorflow::DataTypeString(spec_.inputs[edge.to].dtype));
    }
    // Unlike ShapeUtil::Compatible, this tells a known extent from one that only has a bound.
    if (!Shape::Equal().IgnoreLayout()(body.shape(edge.from), inputs_[edge.to].shape)) {
      return Unimplemented(
          label, ": XLA needs one shape for all iterations; the initial value has ",
          ShapeUtil::HumanString(inputs_[edge.to].shape), ", but the back edge brings ",
          ShapeUtil::HumanString(body.shape(edge.from)));
    }
  }
  for (const LoopSpec::Output& output : spec_.outputs) {
    if (output.result >= 0 && output.mode != OutputMode::kHistory &&
        body.type(output.result) != output.dtype) {
      return InvalidArgument(output.label, ": the body's result is of type ",
                             tensorflow::DataTypeString(body.type(output.result)),
                             ", the output of type ", tensorflow::DataTypeString(output.dtype));
    }
  }
  return absl::OkStatus();
}

absl::Status WhileBuilder::StartOutput(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (output.mode == OutputMode::kCount) return absl::OkStatus();
  state.value =
      output.result >= 0 ? body_.shape(output.result) : inputs_[output.parameter].parameter;
  const bool is_bounded = count_.bound < kNoBound;
  const int64_t most = is_dynamic() ? count_.bound : full_;
  if (output.mode == OutputMode::kHistory) {
    state.is_recorded =
        is_bounded && state.value.is_static() && !(is_dynamic() && output.stride > 1);
    state.capacity = (most + output.stride - 1) / output.stride;
    if (IsTooLarge(state.value, state.capacity)) state.is_recorded = false;
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(CheckType(output.label, output.dtype));
  if (output.mode == OutputMode::kLast && StateOf(output) >= 0) return absl::OkStatus();
  if (!state.value.is_static()) {
    return Unimplemented(output.label, ": XLA must know the shape of the body's result; of ",
                         ShapeUtil::HumanString(state.value), " it only knows bounds");
  }
  if (output.mode != OutputMode::kConcat && output.mode != OutputMode::kStack) {
    return absl::OkStatus();
  }
  if (state.value.IsTuple()) {
    return Unimplemented(output.label, ": a variant cannot be concatenated");
  }
  const int64_t value_rank = state.value.dimensions().size();
  state.is_stacked = output.mode == OutputMode::kStack || value_rank == 0;
  TF_RETURN_IF_ERROR(
      ResolveAxis(output.label, output.axis, value_rank + state.is_stacked, &state.axis));
  if (!state.is_stacked) {
    state.extent = state.value.dimensions(state.axis);
    if (output.part_size > 0 && state.extent != output.part_size) {
      return InvalidArgument(output.label, ": part_size is ", output.part_size,
                             ", but the body's result has shape ",
                             ShapeUtil::HumanString(state.value));
    }
  }
  if (state.length >= 0) {
    state.capacity = state.length;
  } else if (is_bounded) {
    state.capacity = most;
  } else {
    return Unimplemented(output.label, ": XLA must know how long it can become: ",
                         has_condition() ? "limit the number of iterations by a constant"
                                         : "the number of iterations must be a constant",
                         ", or give the output a length");
  }
  if ((state.extent > 0 && state.capacity > kNoBound / state.extent) ||
      IsTooLarge(state.value, state.capacity)) {
    return Unimplemented(output.label, ": ", state.capacity, " pieces of extent ", state.extent,
                         " are too many for XLA");
  }
  return absl::OkStatus();
}

// Checks the number of iterations against the iterators' extents and the lengths, where there is no
// condition.
absl::Status WhileBuilder::CheckStart() {
  if (has_condition()) return absl::OkStatus();
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const LoopSpec::Input& input = spec_.inputs[i];
    if (input.mode != InputMode::kIterator) continue;
    const Count& elements = inputs_[i].elements;
    if (count_.exact >= 0 && elements.exact >= 0) {
      if (count_.exact <= elements.exact) continue;
      return InvalidArgument(input.label, ": there are ", elements.exact, " elements along axis ",
                             input.axis, ", but ", count_.from, " gives ", count_.exact,
                             " iterations");
    }
    const XlaOp count = count_.Get(builder_), size = elements.Get(builder_);
    Require(xla::Le(count, size),
            absl::StrCat(Literal(input.label), ": there are $0 elements along axis ", input.axis,
                         ", but ", Literal(count_.from), " gives $1 iterations"),
            {Wide(size), Wide(count)});
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const int64_t length = outputs_[i].length;
    if (length < 0 || (count_.exact >= 0 && count_.exact <= length)) continue;
    const std::string problem = absl::StrCat(": the length is ", length, ", but the loop has ");
    if (count_.exact >= 0) {
      return InvalidArgument(spec_.outputs[i].label, problem, count_.exact, " iterations");
    }
    Require(xla::Le(count_.runtime, Int(builder_, std::min(length, kNoBound))),
            absl::StrCat(Literal(spec_.outputs[i].label), problem, "$0 iterations"),
            {Wide(count_.runtime)});
  }
  return absl::OkStatus();
}

int WhileBuilder::StateOf(const LoopSpec::Output& output) const {
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    if (edge.from == output.result) return edge.to;
  }
  return -1;
}

State WhileBuilder::FirstState() {
  State state;
  state.index = Int(builder_, 0);
  if (count_.exact < 0) state.count = count_.runtime;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    XlaOp& op = state.inputs.emplace_back();
    if (is_resource(i)) {
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
    const OutputState& out = outputs_[i];
    XlaOp& op = state.outputs.emplace_back();
    if (!out.is_made) continue;
    switch (output.mode) {
      case OutputMode::kCount:
        break;
      case OutputMode::kHistory:
        if (out.is_recorded) op = ZeroValue(builder_, StackShape(out.value, out.capacity));
        break;
      case OutputMode::kLast:
        if (StateOf(output) < 0) op = ZeroValue(builder_, out.value);
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
  if (count_.exact >= 0) return Int(builder, full_);
  return state.count.valid() ? state.count : Int(builder, kNoBound);
}

// The value of parameter i for piece `piece`.
XlaOp WhileBuilder::Element(XlaBuilder* builder, const State& state, int i, XlaOp piece) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const InputState& in = inputs_[i];
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
  return drops_axis(i) ? xla::Reshape(slice, in.parameter.dimensions()) : slice;
}

// The value of parameter i in the short iteration.
XlaOp WhileBuilder::LastElement(int i) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const InputState& in = inputs_[i];
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
  return drops_axis(i) ? xla::Reshape(slice, in.parameter.dimensions()) : slice;
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
  TF_RETURN_IF_ERROR(condition_.CallIf(is_within, parameters, &results, &updates));
  Update(condition_, updates, state, &spec_.condition_inputs, is_within);
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
    const Count& elements = inputs_[i].elements;
    const bool is_known = elements.exact >= 0;
    if (is_known && count_.exact >= 0 && count_.exact <= elements.exact) continue;
    const auto& read = spec_.condition_inputs;
    const bool is_read = std::find(read.begin(), read.end(), i) != read.end();
    const XlaOp size = is_known ? Int(builder, elements.exact)
                                : xla::GetDimensionSize(state->inputs[i], inputs_[i].axis);
    check(size, is_read ? is_within : go,
          absl::StrCat(Literal(spec_.inputs[i].label), ": iteration $0 reads past the ",
                       is_known ? absl::StrCat(elements.exact, " elements") : "last element",
                       " along axis ", spec_.inputs[i].axis));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const int64_t length = outputs_[i].length;
    if (length < 0 || length >= kNoBound) continue;
    if (count_.exact >= 0 && count_.exact <= length) continue;
    check(Int(builder, length), go,
          absl::StrCat(Literal(spec_.outputs[i].label), ": the length is ", length,
                       ", but the loop has more iterations"));
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
  const XlaOp end = has_condition() ? Int(builder, outputs_[i].capacity) : Limit(builder, state);
  return xla::Sub(xla::Sub(end, Int(builder, 1)), piece);
}

void WhileBuilder::Place(XlaBuilder* builder, int i, XlaOp piece, XlaOp value, State* state) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  const OutputState& out = outputs_[i];
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
      XlaOp condition;
      if (output.stride > 1) {
        condition = xla::Eq(xla::Rem(piece, Int(builder, output.stride)), Int(builder, 0));
      }
      if (out.capacity > 0) {
        op = UpdateStack(op, value, Position(builder, *state, i, piece), condition);
      }
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
  TF_RETURN_IF_ERROR(body_.Call(builder, parameters, &results, &updates));
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    if (output.mode == OutputMode::kCount) continue;
    Place(builder, i, piece,
          output.result >= 0 ? results[output.result] : parameters[output.parameter], state);
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    state->inputs[edge.to] = results[edge.from];
  }
  Update(body_, updates, state, nullptr, XlaOp());
  state->index = xla::Add(state->index, Int(builder, 1));
  if (has_condition()) TF_RETURN_IF_ERROR(Decide(builder, state));
  return builder->first_error();
}

// The iteration of the last piece, where that is short.
absl::Status WhileBuilder::IterateLast(State* state) {
  std::vector<XlaOp> parameters, results, updates;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const bool is_value = spec_.inputs[i].mode == InputMode::kValue;
    parameters.push_back(is_value ? state->inputs[i] : LastElement(i));
  }
  TF_RETURN_IF_ERROR(last_body_.Call(builder_, parameters, &results, &updates));
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    OutputState& out = outputs_[i];
    if (output.mode == OutputMode::kCount) continue;
    const XlaOp value = output.result >= 0 ? results[output.result] : parameters[output.parameter];
    if (output.mode == OutputMode::kSum) {
      Place(builder_, i, XlaOp(), value, state);
    } else if (output.mode != OutputMode::kLast) {
      out.last = value;
    } else if (state->outputs[i].valid() && (!spec_.reverse || full_ == 0)) {
      state->outputs[i] = value;
    }
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    state->inputs[edge.to] = results[edge.from];
  }
  Update(last_body_, updates, state, nullptr, XlaOp());
  return builder_->first_error();
}

absl::Status WhileBuilder::Run(State* state) {
  if (has_short_last_ && spec_.reverse) TF_RETURN_IF_ERROR(IterateLast(state));
  if (is_dynamic() || full_ > 0) {
    if (has_condition()) TF_RETURN_IF_ERROR(Decide(builder_, state));
    const XlaOp first = state->Join(builder_);
    TF_ASSIGN_OR_RETURN(const Shape shape, builder_->GetShape(first));

    const std::unique_ptr<XlaBuilder> test = builder_->CreateSubBuilder("tf_ti_condition");
    State tested = state->Split(xla::Parameter(test.get(), 0, shape, "state"));
    const XlaOp goes_on =
        has_condition() ? tested.go : xla::Lt(tested.index, Limit(test.get(), tested));
    TF_ASSIGN_OR_RETURN(const xla::XlaComputation condition, test->Build(goes_on));

    const std::unique_ptr<XlaBuilder> inner = builder_->CreateSubBuilder("tf_ti_body");
    State next = state->Split(xla::Parameter(inner.get(), 0, shape, "state"));
    TF_RETURN_IF_ERROR(Iterate(inner.get(), &next));
    next.Join(inner.get());
    TF_ASSIGN_OR_RETURN(const xla::XlaComputation body, inner->Build());

    *state = state->Split(xla::While(condition, body, first));
  }
  if (has_short_last_ && !spec_.reverse) TF_RETURN_IF_ERROR(IterateLast(state));
  for (size_t f = 0; f < faults_.size(); ++f) {
    Require(xla::Ne(state->fault, Int(builder_, f + 1)), faults_[f], {Wide(state->index)});
  }
  return builder_->first_error();
}

// A concatenation or a stack, as long as the loop was, or as its length says.
XlaOp WhileBuilder::FinishBuffer(int i, XlaOp buffer, const State& state) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  const OutputState& out = outputs_[i];
  if (out.last.valid()) {
    XlaOp last = out.last;
    if (out.is_stacked) last = xla::Reshape(last, WithAxis(out.value, out.axis, 1).dimensions());
    if (out.length >= 0) {
      // The buffer has room for the last piece too, in front of zeros.
      const int rank = out.value.dimensions().size() + 1;
      XlaOp at = Int(builder_, full_);
      if (output.stride < 0) {
        const XlaOp empty = xla::SliceInDim(buffer, out.capacity - 1, out.capacity, 1, out.axis);
        buffer = xla::ConcatInDim(
            builder_, {empty, xla::SliceInDim(buffer, 0, out.capacity - 1, 1, out.axis)}, out.axis);
        at = Int(builder_, 0);
      }
      return xla::DynamicUpdateSlice(buffer, last, Starts(buffer, rank, out.axis, at));
    }
    std::vector<XlaOp> parts = {buffer, last};
    if (output.stride < 0) std::swap(parts[0], parts[1]);
    return xla::ConcatInDim(builder_, parts, out.axis);
  }
  if (has_condition() && output.stride < 0 && out.capacity > 0) {
    const XlaOp padded = xla::ConcatInDim(builder_, {buffer, xla::ZerosLike(buffer)}, out.axis);
    const int rank = out.value.dimensions().size() + out.is_stacked;
    const auto shape = builder_->GetShape(buffer);
    if (!shape.ok()) return builder_->ReportError(shape.status());
    const XlaOp at = xla::Sub(Int(builder_, out.capacity), state.index);
    buffer = xla::DynamicSlice(padded, Starts(padded, rank, out.axis, at), Dims(*shape));
  }
  if (is_dynamic() && out.length < 0) {
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
  const OutputState& out = outputs_[i];
  const XlaOp value = state->outputs[i];
  if (!out.is_made) {
    SetUnmade(i);
    return absl::OkStatus();
  }
  switch (output.mode) {
    case OutputMode::kCount:
      if (is_dynamic()) {
        ctx_.SetOutput(i, Wide(state->index));
      } else {
        ctx_.SetOutput(i, Tensor(count_.exact));
      }
      return absl::OkStatus();
    case OutputMode::kLast: {
      const int parameter = StateOf(output);
      if (parameter >= 0) {
        ctx_.SetOutput(i, state->inputs[parameter]);
        return absl::OkStatus();
      }
      const std::string message =
          absl::StrCat(output.label,
                       ": the loop has no iterations, so there is no last value, and no back edge ",
                       "gives result ", output.result, " an initial one");
      if ((count_.exact == 0 || is_dynamic()) && IsUsed(i)) {
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
      if (is_dynamic() && out.is_recorded) parts.count = state->index;
      if (out.last.valid() && (count_.exact - 1) % output.stride == 0) {
        TF_ASSIGN_OR_RETURN(const Shape last, builder_->GetShape(out.last));
        if (ShapeUtil::Compatible(last, out.value)) {
          parts.stack = AppendToStack(value, out.last);
        } else {
          parts.last = out.last;
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
  std::vector<int> updated = body_.updated();
  for (int parameter : condition_.updated()) {
    updated.push_back(spec_.condition_inputs[parameter]);
  }
  for (int i : updated) {
    TF_RETURN_IF_ERROR(ctx_.AssignResource(i, state->inputs[i]));
  }
  return builder_->first_error();
}

absl::Status WhileBuilder::Build() {
  inputs_.resize(spec_.inputs.size());
  outputs_.resize(spec_.outputs.size());
  TF_RETURN_IF_ERROR(FindCount());
  TF_RETURN_IF_ERROR(CheckStart());
  TF_RETURN_IF_ERROR(CompileFunctions());
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const absl::Status status = StartOutput(i);
    outputs_[i].is_made = status.ok();
    if (!status.ok() && IsUsed(i)) return status;
  }
  State state = FirstState();
  TF_RETURN_IF_ERROR(Run(&state));
  return Finish(&state);
}

class TensorIteratorOp : public XlaKernel {
 public:
  explicit TensorIteratorOp(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("body", &body_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("condition", &condition_));
  }

  absl::Status Compile(const Context& ctx) const override {
    return WhileBuilder(spec_, body_, condition_.empty() ? nullptr : &condition_[0], ctx).Build();
  }

 private:
  LoopSpec spec_;
  tensorflow::NameAttrList body_;
  std::vector<tensorflow::NameAttrList> condition_;
};

// XLA must know each length anyway. For num_iterations, the op's node tells if XLA must know it.
const XlaRegistrar<TensorIteratorOp> kLoop("TfTi>TensorIterator", kResources | kVariants,
                                           {"length"});
const XlaRegistrar<TensorIteratorOp> kStatelessLoop("TfTi>StatelessTensorIterator",
                                                    kResources | kVariants, {"length"});

}  // namespace
}  // namespace tf_ti
