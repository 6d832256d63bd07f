#include "cc/kernels/loop.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "cc/status.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_ti {

using tensorflow::OpKernelConstruction;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

template <typename T>
absl::Status GetList(OpKernelConstruction* ctx, const char* name, size_t size,
                     std::vector<T>* list) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, list));
  if (list->size() != size) {
    return InvalidArgument(name, " needs ", size, " elements, got ", list->size());
  }
  return absl::OkStatus();
}

InputMode ParseInputMode(const std::string& mode) {
  if (mode == "slice") return InputMode::kSlice;
  if (mode == "segment") return InputMode::kSegment;
  if (mode == "index") return InputMode::kIndex;
  if (mode == "iterator") return InputMode::kIterator;
  if (mode == "sequence") return InputMode::kSequence;
  return InputMode::kValue;
}

OutputMode ParseOutputMode(const std::string& mode) {
  if (mode == "concat") return OutputMode::kConcat;
  if (mode == "stack") return OutputMode::kStack;
  if (mode == "sum") return OutputMode::kSum;
  if (mode == "sequence") return OutputMode::kSequence;
  if (mode == "count") return OutputMode::kCount;
  return OutputMode::kLast;
}

absl::Status CheckIndex(const char* what, int64_t index, size_t size) {
  if (index < 0 || index >= static_cast<int64_t>(size)) {
    return InvalidArgument(what, " ", index, " does not exist: the body has ", size);
  }
  return absl::OkStatus();
}

// The same failure, which says of what.
absl::Status Naming(const std::string& label, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(label, ": ", status.message()));
}

absl::Status Resize(int64_t size, const std::string& label, std::vector<Tensor>* tensors) {
  try {
    tensors->resize(size);
  } catch (const std::exception&) {
    return absl::ResourceExhaustedError(
        absl::StrCat(label, ": no memory for the values of ", size, " iterations"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoopSpec::Init(OpKernelConstruction* ctx) {
  tensorflow::DataTypeVector input_types, output_types;
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tin", &input_types));
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tout", &output_types));
  int64_t num_limits;
  TF_RETURN_IF_ERROR(ctx->GetAttr("N", &num_limits));
  if (num_limits > 1) {
    return InvalidArgument("at most one num_iterations can be given, got ", num_limits);
  }
  has_num_iterations = num_limits == 1;
  int64_t num_lengths;
  TF_RETURN_IF_ERROR(ctx->GetAttr("M", &num_lengths));
  std::vector<tensorflow::NameAttrList> conditions;
  TF_RETURN_IF_ERROR(ctx->GetAttr("condition", &conditions));
  if (conditions.size() > 1) {
    return InvalidArgument("at most one condition can be given, got ", conditions.size());
  }
  has_condition = conditions.size() == 1;
  TF_RETURN_IF_ERROR(ctx->GetAttr("limit_label", &limit_label));
  TF_RETURN_IF_ERROR(ctx->GetAttr("reverse", &reverse));
  TF_RETURN_IF_ERROR(ctx->GetAttr("result_shapes", &result_shapes));
  result_uses.assign(result_shapes.size(), 0);

  {
    const size_t n = input_types.size();
    std::vector<std::string> mode, label;
    std::vector<int64_t> axis, start, end, stride, part_size;
    std::vector<PartialTensorShape> shape;
    TF_RETURN_IF_ERROR(GetList(ctx, "input_mode", n, &mode));
    TF_RETURN_IF_ERROR(GetList(ctx, "input_label", n, &label));
    TF_RETURN_IF_ERROR(GetList(ctx, "input_axis", n, &axis));
    TF_RETURN_IF_ERROR(GetList(ctx, "input_start", n, &start));
    TF_RETURN_IF_ERROR(GetList(ctx, "input_end", n, &end));
    TF_RETURN_IF_ERROR(GetList(ctx, "input_stride", n, &stride));
    TF_RETURN_IF_ERROR(GetList(ctx, "input_part_size", n, &part_size));
    TF_RETURN_IF_ERROR(GetList(ctx, "parameter_shapes", n, &shape));
    for (size_t i = 0; i < n; ++i) {
      Input input{ParseInputMode(mode[i]), axis[i], {}, label[i], input_types[i], shape[i]};
      input.range = {start[i], end[i], stride[i], part_size[i], input.mode == InputMode::kSegment};
      if ((input.mode == InputMode::kIndex || input.mode == InputMode::kIterator) &&
          part_size[i] != 1) {
        return InvalidArgument(label[i], ": an element has part_size 1, got ", part_size[i]);
      }
      inputs.push_back(std::move(input));
    }
  }
  {
    const size_t n = output_types.size();
    std::vector<std::string> mode, label;
    std::vector<int64_t> source, axis, stride, part_size, length;
    TF_RETURN_IF_ERROR(GetList(ctx, "output_mode", n, &mode));
    TF_RETURN_IF_ERROR(GetList(ctx, "output_label", n, &label));
    TF_RETURN_IF_ERROR(GetList(ctx, "output_source", n, &source));
    TF_RETURN_IF_ERROR(GetList(ctx, "output_axis", n, &axis));
    TF_RETURN_IF_ERROR(GetList(ctx, "output_stride", n, &stride));
    TF_RETURN_IF_ERROR(GetList(ctx, "output_part_size", n, &part_size));
    TF_RETURN_IF_ERROR(GetList(ctx, "output_length", n, &length));
    for (size_t i = 0; i < n; ++i) {
      Output output{
          ParseOutputMode(mode[i]), -1, -1, axis[i], stride[i], part_size[i], length[i], label[i],
          output_types[i]};
      if (stride[i] == 0) return InvalidArgument(label[i], ": stride must not be 0");
      if (length[i] < -1 || length[i] >= num_lengths) {
        return InvalidArgument(label[i], ": there is no length ", length[i]);
      }
      if (length[i] >= 0 && output.mode != OutputMode::kStack) {
        return InvalidArgument(label[i], ": only a stack has a length");
      }
      if (output.mode == OutputMode::kCount) {
        if (output.dtype != tensorflow::DT_INT64) {
          return InvalidArgument(label[i], ": the number of iterations is of type int64");
        }
      } else if (source[i] >= 0) {
        TF_RETURN_IF_ERROR(CheckIndex("result", source[i], result_shapes.size()));
        output.result = source[i];
        ++result_uses[source[i]];
      } else {
        TF_RETURN_IF_ERROR(CheckIndex("parameter", ~source[i], inputs.size()));
        output.parameter = ~source[i];
        if (output.mode != OutputMode::kSequence) {
          return InvalidArgument(label[i], ": only a sequence can hold a parameter");
        }
      }
      if (output.mode == OutputMode::kSequence &&
          (stride[i] < 1 || output.dtype != tensorflow::DT_VARIANT)) {
        return InvalidArgument(label[i], ": a sequence is a variant, of positive stride");
      }
      outputs.push_back(std::move(output));
    }
  }
  std::vector<int64_t> from, to;
  TF_RETURN_IF_ERROR(ctx->GetAttr("back_edge_from", &from));
  TF_RETURN_IF_ERROR(GetList(ctx, "back_edge_to", from.size(), &to));
  for (size_t e = 0; e < from.size(); ++e) {
    TF_RETURN_IF_ERROR(CheckIndex("back edge from result", from[e], result_shapes.size()));
    TF_RETURN_IF_ERROR(CheckIndex("back edge to parameter", to[e], inputs.size()));
    Input& target = inputs[to[e]];
    if (target.back_edge) {
      return InvalidArgument(target.label, ": two back edges lead to parameter ", to[e]);
    }
    if (target.mode != InputMode::kValue) {
      return InvalidArgument(target.label, ": a back edge leads to a sliced parameter");
    }
    target.back_edge = true;
    ++result_uses[from[e]];
    const bool last_use = std::find(from.begin() + e + 1, from.end(), from[e]) == from.end();
    back_edges.push_back({static_cast<int>(from[e]), static_cast<int>(to[e]), last_use});
  }
  std::vector<int64_t> read;
  TF_RETURN_IF_ERROR(ctx->GetAttr("condition_inputs", &read));
  for (int64_t parameter : read) {
    TF_RETURN_IF_ERROR(CheckIndex("condition input", parameter, inputs.size()));
    condition_inputs.push_back(parameter);
  }
  if (has_condition) {
    if (reverse) return InvalidArgument("a loop with a condition cannot run backwards");
    for (const Output& output : outputs) {
      const bool has_edge =
          std::any_of(back_edges.begin(), back_edges.end(),
                      [&](const BackEdge& edge) { return edge.from == output.result; });
      if (output.mode == OutputMode::kConcat) {
        return InvalidArgument(output.label,
                               ": a condition and a concatenation do not go together");
      }
      if (output.mode == OutputMode::kLast && !has_edge) {
        return InvalidArgument(output.label, ": no back edge keeps the last value of result ",
                               output.result, ", and a condition tells only later that it is one");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Loop::AtIteration(absl::Status status) const {
  tensorflow::errors::AppendToMessage(&status, "\n\t [[in iteration ", Index(), " of ",
                                      ctx_->op_kernel().name(), "]]");
  return status;
}

absl::Status Loop::MergeCount(int64_t count, const std::string& label) {
  if (count_ < 0) {
    count_ = count;
    count_from_ = label;
  } else if (count != count_) {
    return InvalidArgument(count_from_, " gives ", count_, " iterations, but ", label, " gives ",
                           count);
  }
  return absl::OkStatus();
}

absl::Status Loop::CheckParameter(int i) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const Tensor& value = frame_.parameters[i];
  if (value.dtype() != body_.parameter_types[i]) {
    return InvalidArgument(input.label, ": the body expects ",
                           tensorflow::DataTypeString(body_.parameter_types[i]), ", got ",
                           tensorflow::DataTypeString(value.dtype()));
  }
  if (!input.shape.IsCompatibleWith(value.shape())) {
    return InvalidArgument(input.label, ": the body was built for shape ",
                           input.shape.DebugString(), ", got ", value.shape().DebugString());
  }
  return absl::OkStatus();
}

absl::Status Loop::StartInput(int i) {
  const LoopSpec::Input& input = spec_.inputs[i];
  InputState& state = inputs_[i];
  const Tensor& tensor = ctx_->input(i);
  switch (input.mode) {
    case InputMode::kValue:
      frame_.parameters[i] = tensor;
      return CheckParameter(i);
    case InputMode::kSequence: {
      TF_RETURN_IF_ERROR(GetSequence(tensor, input.label, &state.sequence));
      const int64_t size = state.sequence->tensors().size();
      const int64_t part = input.range.part_size;
      return MergeCount(part > 0 ? size / part + (size % part > 0) : size, input.label);
    }
    default: {
      const int64_t rank = tensor.dims();
      const int64_t axis = input.axis < 0 ? input.axis + rank : input.axis;
      if (axis < 0 || axis >= rank) {
        return InvalidArgument(input.label, ": axis ", input.axis,
                               " is out of range for a tensor of rank ", rank);
      }
      const std::string problem = ResolvePieces(input.range, tensor.dim_size(axis), &state.pieces);
      if (!problem.empty()) return InvalidArgument(input.label, ": ", problem);
      const bool is_iterator = input.mode == InputMode::kIterator;
      if (!is_iterator) TF_RETURN_IF_ERROR(MergeCount(state.pieces.count, input.label));
      return state.reader.Init(tensor, axis, is_iterator || input.mode == InputMode::kIndex);
    }
  }
}

absl::Status Loop::Start() {
  const int num_inputs = spec_.inputs.size();
  const int num_results = spec_.result_shapes.size();
  int num_parameters = num_inputs;
  if (condition_ != nullptr) {
    const tensorflow::DataTypeVector& types = condition_->result_types;
    if (condition_->parameter_types.size() != spec_.condition_inputs.size() || types.empty() ||
        types[0] != tensorflow::DT_BOOL) {
      return InvalidArgument(
          "the condition has ", condition_->parameter_types.size(),
          " parameters and must first of all return a bool; the op was built for ",
          spec_.condition_inputs.size());
    }
    num_parameters += types.size() - 1;
    condition_frame_.parameters.resize(spec_.condition_inputs.size());
    condition_frame_.consumable.assign(spec_.condition_inputs.size(), false);
    condition_frame_.results.resize(types.size());
  }
  if (static_cast<int>(body_.parameter_types.size()) != num_parameters ||
      static_cast<int>(body_.result_types.size()) != num_results) {
    return InvalidArgument("the body has ", body_.parameter_types.size(), " parameters and ",
                           body_.result_types.size(), " results; the op was built for ",
                           num_parameters, " and ", num_results);
  }
  for (int p = num_inputs; p < num_parameters; ++p) {
    if (body_.parameter_types[p] != condition_->result_types[p - num_inputs + 1]) {
      return InvalidArgument("what the condition gives the body is of another type");
    }
  }
  for (const LoopSpec::Output& output : spec_.outputs) {
    if (output.result >= 0 && output.mode != OutputMode::kSequence &&
        body_.result_types[output.result] != output.dtype) {
      return InvalidArgument(output.label, ": the body's result is of type ",
                             tensorflow::DataTypeString(body_.result_types[output.result]),
                             ", the output of type ", tensorflow::DataTypeString(output.dtype));
    }
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    if (body_.result_types[edge.from] != body_.parameter_types[edge.to]) {
      return InvalidArgument(spec_.inputs[edge.to].label, ": a back edge brings ",
                             tensorflow::DataTypeString(body_.result_types[edge.from]),
                             " to a parameter of type ",
                             tensorflow::DataTypeString(body_.parameter_types[edge.to]));
    }
  }

  frame_.parameters.resize(num_parameters);
  frame_.consumable.assign(num_parameters, false);
  frame_.results.resize(num_results);
  inputs_.resize(num_inputs);
  outputs_.resize(spec_.outputs.size());
  if (spec_.has_num_iterations) {
    const Tensor& limit = ctx_->input(num_inputs);
    if (limit.dims() != 0) {
      return InvalidArgument(spec_.limit_label, " must be a scalar, got shape ",
                             limit.shape().DebugString());
    }
    const int64_t given = limit.scalar<int64_t>()();
    if (given < 0) {
      return InvalidArgument(spec_.limit_label, " must not be negative, got ", given);
    }
    TF_RETURN_IF_ERROR(MergeCount(given, spec_.limit_label));
  }
  for (int i = 0; i < num_inputs; ++i) TF_RETURN_IF_ERROR(StartInput(i));
  if (count_ < 0 && !spec_.has_condition) {
    return InvalidArgument("no input is sliced and ", spec_.limit_label,
                           " is not given: the number of iterations is unknown");
  }
  for (int i = 0; i < num_inputs && !spec_.has_condition; ++i) {
    if (spec_.inputs[i].mode == InputMode::kIterator && inputs_[i].pieces.count < count_) {
      return InvalidArgument(spec_.inputs[i].label, ": there are ", inputs_[i].pieces.count,
                             " elements along axis ", spec_.inputs[i].axis, ", but ", count_from_,
                             " gives ", count_, " iterations");
    }
  }
  for (size_t i = 0; i < outputs_.size(); ++i) TF_RETURN_IF_ERROR(StartOutput(i));
  in_condition_ = spec_.has_condition;
  done_ = count_ == 0;
  return absl::OkStatus();
}

absl::Status Loop::StartOutput(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  state.required = ctx_->output_required(i);
  if (output.mode == OutputMode::kSequence && state.required && !spec_.has_condition) {
    return Resize(count_ == 0 ? 0 : (count_ - 1) / output.stride + 1, output.label, &state.pieces);
  }
  if (output.length < 0) return absl::OkStatus();
  const Tensor& length =
      ctx_->input(spec_.inputs.size() + spec_.has_num_iterations + output.length);
  if (length.dims() != 0) {
    return InvalidArgument(output.label, ": the length must be a scalar, got shape ",
                           length.shape().DebugString());
  }
  state.length = length.scalar<int64_t>()();
  if (state.length < 0) {
    return InvalidArgument(output.label, ": the length must not be negative, got ", state.length);
  }
  if (!spec_.has_condition && state.length < count_) {
    return InvalidArgument(output.label, ": the length is ", state.length, ", but the loop has ",
                           count_, " iterations");
  }
  return absl::OkStatus();
}

absl::Status Loop::EnterElement(int i) {
  const LoopSpec::Input& input = spec_.inputs[i];
  InputState& state = inputs_[i];
  const int64_t k = Index();
  Tensor* parameter = &frame_.parameters[i];
  if (input.mode == InputMode::kSequence) {
    const std::vector<Tensor>& tensors = state.sequence->tensors();
    const int64_t part = input.range.part_size;
    if (part > 0) {
      const auto begin = tensors.begin() + k * part;
      const int64_t size = std::min<int64_t>(part, tensors.end() - begin);
      *parameter = SequenceTensor(Sequence(std::vector<Tensor>(begin, begin + size)));
    } else {
      *parameter = tensors[k];
    }
    return CheckParameter(i);
  }
  if (k >= state.pieces.count) {
    return InvalidArgument(input.label, ": iteration ", k, " reads past the ", state.pieces.count,
                           " elements along axis ", input.axis);
  }
  // Drops the last piece first, so that the reader may reuse its memory.
  *parameter = Tensor();
  TF_RETURN_IF_ERROR(
      state.reader.Read(ctx_, state.pieces.Begin(k), state.pieces.Size(k), parameter));
  // All whole pieces have one shape.
  if (iteration_ == 0 || input.mode == InputMode::kSegment) return CheckParameter(i);
  return absl::OkStatus();
}

absl::Status Loop::EnterCondition() {
  for (size_t c = 0; c < spec_.condition_inputs.size(); ++c) {
    const int i = spec_.condition_inputs[c];
    if (spec_.inputs[i].mode != InputMode::kValue && !inputs_[i].entered) {
      TF_RETURN_IF_ERROR(EnterElement(i));
      inputs_[i].entered = true;
    }
    condition_frame_.parameters[c] = frame_.parameters[i];
  }
  return absl::OkStatus();
}

absl::Status Loop::Enter() {
  if (in_condition_) return EnterCondition();
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (spec_.inputs[i].mode == InputMode::kValue) continue;
    if (!std::exchange(inputs_[i].entered, false)) TF_RETURN_IF_ERROR(EnterElement(i));
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const int parameter = spec_.outputs[i].parameter;
    if (parameter >= 0) TF_RETURN_IF_ERROR(Record(i, frame_.parameters[parameter]));
  }
  return absl::OkStatus();
}

absl::Status Loop::LeaveCondition() {
  // A parameter to which others refer could not be overwritten by the body.
  for (Tensor& parameter : condition_frame_.parameters) parameter = Tensor();
  const Tensor& value = condition_frame_.results[0];
  if (value.dims() != 0) {
    return InvalidArgument(spec_.limit_label, ": the condition must be a scalar, got shape ",
                           value.shape().DebugString());
  }
  done_ = !value.scalar<bool>()();
  const size_t first = spec_.inputs.size();
  for (size_t p = first; p < frame_.parameters.size(); ++p) {
    frame_.parameters[p] = std::move(condition_frame_.results[p - first + 1]);
    frame_.consumable[p] = true;
  }
  in_condition_ = false;
  return absl::OkStatus();
}

absl::Status Loop::Leave() { return in_condition_ ? LeaveCondition() : LeaveBody(); }

absl::Status Loop::Record(int i, const Tensor& value) {
  OutputState& state = outputs_[i];
  const int64_t stride = spec_.outputs[i].stride;
  if (!state.required || Index() % stride != 0) return absl::OkStatus();
  if (spec_.has_condition) {
    try {
      state.pieces.push_back(value);
    } catch (const std::exception&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          spec_.outputs[i].label, ": no memory for the values of ", iteration_, " iterations"));
    }
  } else {
    state.pieces[Index() / stride] = value;
  }
  return absl::OkStatus();
}

absl::Status Loop::Allocate(int i, int64_t capacity, Tensor* tensor) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  const OutputState& state = outputs_[i];
  TensorShape shape = state.first;
  if (state.extent > 0 && capacity > std::numeric_limits<int64_t>::max() / state.extent) {
    return InvalidArgument(output.label, ": ", capacity, " iterations of extent ", state.extent,
                           " are too many for one tensor");
  }
  absl::Status status = state.is_stacked
                            ? shape.InsertDimWithStatus(state.axis, capacity)
                            : shape.SetDimWithStatus(state.axis, state.extent * capacity);
  if (status.ok()) {
    status = ctx_->allocate_temp(output.dtype, shape, tensor, ctx_->output_alloc_attr(i));
  }
  return Naming(output.label, status);
}

// Where a condition ends the loop, the tensor has room for more pieces than there are so far; those
// of a reversed output lie at its end.
absl::Status Loop::Grow(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (state.length >= 0) {
    return InvalidArgument(output.label, ": the length is ", state.length,
                           ", but the loop has more iterations");
  }
  const int64_t capacity = 2 * state.capacity;
  Tensor larger;
  TF_RETURN_IF_ERROR(Allocate(i, capacity, &larger));
  const int64_t begin = output.stride < 0 ? capacity - state.capacity : 0;
  PlacePiece(state.tensor, state.axis, begin * state.extent, &larger);
  state.tensor = std::move(larger);
  state.capacity = capacity;
  return absl::OkStatus();
}

// Leaves as many pieces as there are iterations, or as the length tells: zeros after the values.
absl::Status Loop::Trim(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  const int64_t wanted = state.length >= 0 ? state.length : iteration_;
  const bool at_end = spec_.has_condition && output.stride < 0;
  Tensor tensor = state.tensor;
  if (wanted != state.capacity || (at_end && iteration_ < wanted)) {
    TF_RETURN_IF_ERROR(Allocate(i, wanted, &tensor));
    if (iteration_ < wanted) FillZeros(&tensor);
    PieceReader reader;
    TF_RETURN_IF_ERROR(reader.Init(state.tensor, state.axis, /*remove_axis=*/false));
    Tensor values;
    const int64_t begin = at_end ? state.capacity - iteration_ : 0;
    TF_RETURN_IF_ERROR(reader.Read(ctx_, begin * state.extent, iteration_ * state.extent, &values));
    PlacePiece(values, state.axis, 0, &tensor);
  }
  ctx_->set_output(i, tensor);
  return absl::OkStatus();
}

absl::Status Loop::Place(int i, const Tensor& value) {
  constexpr int64_t kFirstCapacity = 16;
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  const bool stack = output.mode == OutputMode::kStack || value.dims() == 0;
  if (iteration_ == 0) {
    const int64_t rank = value.dims() + (stack ? 1 : 0);
    const int64_t axis = output.axis < 0 ? output.axis + rank : output.axis;
    if (axis < 0 || axis >= rank) {
      return InvalidArgument(output.label, ": axis ", output.axis,
                             " is out of range for an output of rank ", rank);
    }
    state.axis = axis;
    state.first = value.shape();
    state.is_stacked = stack;
    state.extent = stack ? 1 : value.dim_size(axis);
    state.capacity = state.length >= 0      ? state.length
                     : !spec_.has_condition ? count_
                     : count_ < 0           ? kFirstCapacity
                                            : std::min(count_, kFirstCapacity);
    if (state.capacity == 0) return Grow(i);
    TF_RETURN_IF_ERROR(Allocate(i, state.capacity, &state.tensor));
    if (state.length >= 0) FillZeros(&state.tensor);
  }
  TensorShape other = value.shape();
  if (!stack && other.dims() == state.first.dims()) {
    TF_RETURN_IF_ERROR(other.SetDimWithStatus(state.axis, state.extent));
  }
  if (other != state.first) {
    return InvalidArgument(output.label, ": the body's result has shape ",
                           value.shape().DebugString(), ", but in the first iteration ",
                           state.first.DebugString(), ": they do not ",
                           stack ? "stack" : "concatenate", " along axis ", output.axis);
  }
  if (output.part_size > 0 && !stack && value.dim_size(state.axis) != output.part_size) {
    return InvalidArgument(output.label, ": part_size is ", output.part_size,
                           ", but the body's result has shape ", value.shape().DebugString());
  }
  if (spec_.has_condition && iteration_ == state.capacity) TF_RETURN_IF_ERROR(Grow(i));
  const int64_t count = spec_.has_condition ? state.capacity : count_;
  const int64_t position = output.stride < 0 ? count - 1 - Index() : Index();
  if (state.pieces.empty()) {
    if (value.shape() == state.first) {
      PlacePiece(value, state.axis, position * state.extent, &state.tensor);
      return absl::OkStatus();
    }
    // Pieces of differing extents: only at the end is it known where each one goes.
    TF_RETURN_IF_ERROR(Resize(count_, output.label, &state.pieces));
    PieceReader reader;
    TF_RETURN_IF_ERROR(reader.Init(state.tensor, state.axis, /*remove_axis=*/false));
    for (int64_t t = 0; t < iteration_; ++t) {
      const int64_t at = (output.stride < 0) != spec_.reverse ? count_ - 1 - t : t;
      TF_RETURN_IF_ERROR(reader.Read(ctx_, at * state.extent, state.extent, &state.pieces[at]));
    }
    state.tensor = Tensor();
  }
  state.pieces[position] = value;
  return absl::OkStatus();
}

absl::Status Loop::AddSum(int i, Tensor* value) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (iteration_ == 0) {
    state.first = value->shape();
    if (SumType(output.dtype) == output.dtype && spec_.result_uses[output.result] == 1 &&
        IsSoleOwner(*value)) {
      state.tensor = std::move(*value);
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(ctx_->allocate_temp(SumType(output.dtype), value->shape(), &state.tensor,
                                           ctx_->output_alloc_attr(i)));
    FillZeros(&state.tensor);
  } else if (value->shape() != state.first) {
    return InvalidArgument(output.label, ": cannot add shape ", value->shape().DebugString(),
                           " to a sum of shape ", state.first.DebugString());
  }
  return AddToSum(*value, &state.tensor);
}

absl::Status Loop::LeaveBody() {
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    if (output.result < 0 || !outputs_[i].required) continue;
    Tensor& value = frame_.results[output.result];
    switch (output.mode) {
      case OutputMode::kLast:
        if (IsLast()) outputs_[i].tensor = value;
        break;
      case OutputMode::kSequence:
        TF_RETURN_IF_ERROR(Record(i, value));
        break;
      case OutputMode::kSum:
        TF_RETURN_IF_ERROR(AddSum(i, &value));
        break;
      default:
        TF_RETURN_IF_ERROR(Place(i, value));
    }
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    Tensor& result = frame_.results[edge.from];
    Tensor& parameter = frame_.parameters[edge.to];
    if (edge.last_use) {
      parameter = std::move(result);
    } else {
      parameter = result;
    }
    frame_.consumable[edge.to] = true;
    TF_RETURN_IF_ERROR(CheckParameter(edge.to));
  }
  // What is not passed on is freed now rather than when the next iteration overwrites it.
  for (Tensor& result : frame_.results) result = Tensor();
  for (size_t p = spec_.inputs.size(); p < frame_.parameters.size(); ++p) {
    frame_.parameters[p] = Tensor();
  }
  ++iteration_;
  done_ = iteration_ == count_;
  in_condition_ = spec_.has_condition;
  return absl::OkStatus();
}

int Loop::StateOf(const LoopSpec::Output& output) const {
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    if (edge.from == output.result) return edge.to;
  }
  return -1;
}

// A parameter that the body only passes on tells the shape of its values, though there are none.
absl::Status Loop::InferPiece(const LoopSpec::Output& output, PartialTensorShape* piece) const {
  const int parameter = body_.passed_on[output.result];
  if (parameter < 0 || parameter >= static_cast<int>(spec_.inputs.size())) {
    return absl::OkStatus();
  }
  const InputMode mode = spec_.inputs[parameter].mode;
  TensorShape shape = ctx_->input(parameter).shape();
  if (mode == InputMode::kIndex || mode == InputMode::kIterator) {
    const int64_t axis = spec_.inputs[parameter].axis;
    TF_RETURN_IF_ERROR(shape.RemoveDimWithStatus(axis < 0 ? axis + shape.dims() : axis));
  } else if (mode != InputMode::kValue) {
    return absl::OkStatus();
  }
  *piece = PartialTensorShape(shape.dim_sizes());
  return absl::OkStatus();
}

absl::Status Loop::FinishEmpty(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  if (output.mode == OutputMode::kSequence) {
    ctx_->set_output(i, SequenceTensor(Sequence()));
    return absl::OkStatus();
  }
  if (output.mode == OutputMode::kLast) {
    const int parameter = StateOf(output);
    if (parameter >= 0) {
      ctx_->set_output(i, ctx_->input(parameter));
      return absl::OkStatus();
    }
    return InvalidArgument(
        output.label, ": the loop has no iterations, so there is no last value, and no back edge ",
        "gives result ", output.result, " an initial one");
  }
  PartialTensorShape piece = spec_.result_shapes[output.result];
  if (!piece.IsFullyDefined()) TF_RETURN_IF_ERROR(InferPiece(output, &piece));
  Tensor empty;
  if (output.mode == OutputMode::kSum) {
    // Extent 1 for what is not known: the zeros broadcast to whatever the sum stands for.
    TensorShape shape;
    for (int d = 0; d < piece.dims(); ++d) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(piece.dim_size(d) < 0 ? 1 : piece.dim_size(d)));
    }
    TF_RETURN_IF_ERROR(ctx_->allocate_temp(output.dtype, shape, &empty));
    FillZeros(&empty);
  } else if (!piece.unknown_rank() && (output.mode == OutputMode::kStack || piece.dims() == 0)) {
    const int64_t rank = piece.dims() + 1;
    const int64_t axis = output.axis < 0 ? output.axis + rank : output.axis;
    if (axis < 0 || axis >= rank) {
      return InvalidArgument(output.label, ": axis ", output.axis,
                             " is out of range for an output of rank ", rank);
    }
    TensorShape shape;
    for (int64_t dim : piece.dim_sizes()) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(std::max<int64_t>(dim, 0)));
    }
    const int64_t length = std::max<int64_t>(outputs_[i].length, 0);
    TF_RETURN_IF_ERROR(Naming(output.label, shape.InsertDimWithStatus(axis, length)));
    TF_RETURN_IF_ERROR(Naming(output.label, ctx_->allocate_temp(output.dtype, shape, &empty)));
    FillZeros(&empty);
  } else {
    TF_RETURN_IF_ERROR(
        Naming(output.label, ConcatPieces(ctx_, {}, output.dtype, piece, output.axis, &empty)));
  }
  ctx_->set_output(i, empty);
  return absl::OkStatus();
}

absl::Status Loop::Finish() {
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    OutputState& state = outputs_[i];
    if (!state.required) continue;
    if (output.mode == OutputMode::kCount) {
      Tensor count(iteration_);
      ctx_->set_output(i, count);
    } else if (iteration_ == 0) {
      TF_RETURN_IF_ERROR(FinishEmpty(i));
    } else if (output.mode == OutputMode::kSequence) {
      ctx_->set_output(i, SequenceTensor(Sequence(std::move(state.pieces))));
    } else if (!state.pieces.empty()) {
      Tensor whole;
      TF_RETURN_IF_ERROR(ConcatPieces(ctx_, state.pieces, output.dtype, {}, state.axis, &whole));
      ctx_->set_output(i, whole);
    } else if (output.mode == OutputMode::kSum) {
      Tensor rounded;
      TF_RETURN_IF_ERROR(RoundSum(ctx_, state.tensor, output.dtype, &rounded));
      ctx_->set_output(i, rounded);
    } else if (output.mode == OutputMode::kLast) {
      ctx_->set_output(i, spec_.has_condition ? frame_.parameters[StateOf(output)] : state.tensor);
    } else {
      TF_RETURN_IF_ERROR(Trim(i));
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
