#include "cc/xla/loops/plan.h"

#include <algorithm>
#include <string>

#include "cc/spec/loops/errors.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/shape_util.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::Tensor;
using xla::Shape;
using xla::ShapeUtil;
using xla::XlaOp;

namespace {

absl::Status CheckType(const std::string& label, DataType type) {
  if (type != tensorflow::DT_INT4 && type != tensorflow::DT_UINT4) return absl::OkStatus();
  // XLA packs two of them into a byte, TensorFlow does not, and neither converts.
  return Unimplemented(label, ": XLA and TensorFlow disagree on how ",
                       tensorflow::DataTypeString(type), " lies in memory; cast it to int8");
}

}  // namespace

absl::Status LoopPlan::StartInput(int i, XlaCount* count) {
  const LoopSpec::Input& input = spec_.inputs[i];
  Input& state = inputs_[i];
  count->from = input.label;
  if (is_resource(i)) {
    if (!input.is_invariant()) {
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
      count->exact = input.CountParts(size);
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
  TF_RETURN_IF_ERROR(input.FindAxis(rank, &state.axis));
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
  TF_RETURN_IF_ERROR(input.FindPieces(extent, &state.pieces));
  if (input.drops_axis()) {
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

absl::Status LoopPlan::StartLimit(XlaCount* count) {
  if (!spec_.has_num_iterations) return absl::OkStatus();
  const int input = spec_.limit_input();
  count->from = spec_.limit_label;
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(GetShape(ctx_, input, spec_.limit_label.c_str(), &shape));
  TF_RETURN_IF_ERROR(CheckScalar(spec_.limit_label, shape));
  TF_ASSIGN_OR_RETURN(std::optional<Tensor> constant, ctx_.FindConstant(input));
  if (constant.has_value()) {
    count->exact = constant->scalar<int64_t>()();
    TF_RETURN_IF_ERROR(spec_.CheckLimit(count->exact));
    if (count->exact > kNoBound && spec_.has_condition) {
      *count = XlaCount();
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
          IsNegative(Literal(spec_.limit_label), "$0"), {given});
  count->runtime = xla::ConvertElementType(xla::Clamp(xla::Zero(builder_, xla::S64), given,
                                                      xla::ConstantR0<int64_t>(builder_, kNoBound)),
                                           xla::S32);
  return absl::OkStatus();
}

absl::Status LoopPlan::GetLength(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  if (output.length < 0) return absl::OkStatus();
  int64_t* const length = &outputs_[i].length;
  const int input = spec_.length_input(output);
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(GetShape(ctx_, input, output.label.c_str(), &shape));
  TF_RETURN_IF_ERROR(CheckScalar(output.LengthName(), shape));
  const absl::Status status = ctx_.GetConstant(input, length);
  if (!status.ok()) {
    if (!IsUsed(i)) return absl::OkStatus();
    return Unimplemented(output.label,
                         ": XLA must know the length when it compiles: ", status.message());
  }
  return output.CheckLength(*length);
}

absl::Status LoopPlan::FindCount() {
  XlaCount limit;
  TF_RETURN_IF_ERROR(StartLimit(&limit));
  TF_RETURN_IF_ERROR(count_.Merge(limit));
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    XlaCount count;
    TF_RETURN_IF_ERROR(StartInput(i, &count));
    if (spec_.inputs[i].mode == InputMode::kIterator) {
      inputs_[i].elements = count;
    } else {
      TF_RETURN_IF_ERROR(count_.Merge(count));
    }
  }
  if (!count_.known() && !spec_.has_condition) {
    return InvalidArgument(HasNoCount(spec_.limit_label));
  }
  if (count_.exact >= 0) count_.bound = count_.exact;
  // More iterations than an iterator has elements, or than a length, are an error.
  for (const Input& input : inputs_) {
    const XlaCount& elements = input.elements;
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

absl::Status LoopPlan::Compile(const tensorflow::NameAttrList& name,
                               const std::vector<int>& parameters, const std::vector<Shape>& shared,
                               bool last, Function* function) {
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
    Input& state = inputs_[i];
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
bool LoopPlan::ShapeLists() {
  bool found = false;
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    Input& state = inputs_[edge.to];
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
absl::Status LoopPlan::CompileCondition(std::vector<Shape>* shared) {
  if (!spec_.has_condition) return absl::OkStatus();
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

absl::Status LoopPlan::CompileFunctions() {
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

absl::Status LoopPlan::CheckBackEdges(const Function& body) const {
  if (body.num_results() != static_cast<int>(spec_.result_shapes.size())) {
    return InvalidArgument("the body has ", body.num_results(), " results; the op was built for ",
                           spec_.result_shapes.size());
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    TF_RETURN_IF_ERROR(
        spec_.CheckBackEdge(edge, body.type(edge.from), spec_.inputs[edge.to].dtype));
    // Unlike ShapeUtil::Compatible, this tells a known extent from one that only has a bound.
    if (!Shape::Equal().IgnoreLayout()(body.shape(edge.from), inputs_[edge.to].shape)) {
      return Unimplemented(spec_.inputs[edge.to].label,
                           ": XLA needs one shape for all iterations; the initial value has ",
                           ShapeUtil::HumanString(inputs_[edge.to].shape),
                           ", but the back edge brings ",
                           ShapeUtil::HumanString(body.shape(edge.from)));
    }
  }
  for (const LoopSpec::Output& output : spec_.outputs) {
    if (output.result < 0) continue;
    TF_RETURN_IF_ERROR(spec_.CheckResult(output, body.type(output.result)));
  }
  return absl::OkStatus();
}

absl::Status LoopPlan::StartOutput(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  Output& state = outputs_[i];
  if (output.mode == OutputMode::kCount) return absl::OkStatus();
  state.value =
      output.result >= 0 ? body_.shape(output.result) : inputs_[output.parameter].parameter;
  const bool is_bounded = count_.bound < kNoBound;
  const int64_t most = is_dynamic() ? count_.bound : full_;
  if (output.mode == OutputMode::kHistory) {
    if (is_dynamic() && output.stride > 1) {
      return Unimplemented(
          output.label,
          " is recorded in each iteration of checkpoint_every alone: to compute the "
          "others again, XLA must know the number of iterations; ",
          spec_.has_condition
              ? "trace the loop, with its condition, inside of the function that is "
                "compiled, or leave checkpoint_every out"
              : "it must be a constant");
    }
    state.is_recorded = is_bounded && state.value.is_static();
    state.capacity = (most + output.stride - 1) / output.stride;
    if (output.part_size > 0) {
      TF_ASSIGN_OR_RETURN(const Shape stack, UniformStackShape(state.value, output.label));
      state.value = ElementShape(stack);
      state.extent = StackSize(stack);
      state.capacity *= state.extent;
    }
    if (IsTooLarge(state.value, state.capacity)) state.is_recorded = false;
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(CheckType(output.label, output.dtype));
  if (output.mode == OutputMode::kLast && spec_.StateOf(output) >= 0) return absl::OkStatus();
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
  TF_RETURN_IF_ERROR(output.FindAxis(value_rank + state.is_stacked, &state.axis));
  if (!state.is_stacked) {
    state.extent = state.value.dimensions(state.axis);
    if (!output.IsPart(state.extent)) {
      return InvalidArgument(
          IsNoPart(output.label, output.part_size, ShapeUtil::HumanString(state.value)));
    }
  }
  if (state.length >= 0) {
    state.capacity = state.length;
  } else if (is_bounded) {
    state.capacity = most;
  } else {
    return Unimplemented(output.label, ": XLA must know how long it can become: ",
                         spec_.has_condition ? "limit the number of iterations by a constant"
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
absl::Status LoopPlan::CheckStart() {
  if (spec_.has_condition) return absl::OkStatus();
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const LoopSpec::Input& input = spec_.inputs[i];
    if (input.mode != InputMode::kIterator) continue;
    const XlaCount& elements = inputs_[i].elements;
    if (count_.exact >= 0 && elements.exact >= 0) {
      if (count_.exact <= elements.exact) continue;
      return InvalidArgument(
          IteratorEnds(input.label, input.axis, elements.exact, count_.from, count_.exact));
    }
    const XlaOp count = count_.Get(builder_), size = elements.Get(builder_);
    Require(xla::Le(count, size),
            IteratorEnds(Literal(input.label), input.axis, "$0", Literal(count_.from), "$1"),
            {Wide(size), Wide(count)});
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const int64_t length = outputs_[i].length;
    if (length < 0 || (count_.exact >= 0 && count_.exact <= length)) continue;
    const std::string& label = spec_.outputs[i].label;
    if (count_.exact >= 0) return InvalidArgument(LengthEnds(label, length, count_.exact));
    Require(xla::Le(count_.runtime, Int(builder_, std::min(length, kNoBound))),
            LengthEnds(Literal(label), length, "$0"), {Wide(count_.runtime)});
  }
  return absl::OkStatus();
}

absl::Status LoopPlan::Init() {
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
  return absl::OkStatus();
}

}  // namespace tf_ti
