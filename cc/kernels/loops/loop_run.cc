#include "cc/kernels/loops/loop_run.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "cc/kernels/gpu.h"
#include "cc/kernels/threads.h"
#include "cc/spec/loops/errors.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"
#include "tensorflow/core/platform/errors.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace tf_ti {

using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// The same error, with a label in front.
absl::Status Naming(const std::string& label, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(label, ": ", status.message()));
}

// The pieces that there is memory for at first where a condition ends the loop.
constexpr int64_t kFirstCapacity = 16;

// Where an output's values are: an output of the program, or -1 - a parameter.
int SourceOf(const LoopSpec::Output& output, const CompiledBody& body) {
  return output.result >= 0 ? body.whole[output.result] : -1 - output.parameter;
}

}  // namespace

std::string LoopRun::TraceName() const {
  return tsl::profiler::TraceMeEncode(
      in_condition_ ? "TfTi>TensorIterator condition" : "TfTi>TensorIterator iteration",
      {{"iter_num", Index()}});
}

absl::Status LoopRun::AtIteration(absl::Status status) const {
  tensorflow::errors::AppendToMessage(&status, "\n\t [[in iteration ", Index(), " of ",
                                      ctx_->op_kernel().name(), "]]");
  return status;
}

absl::Status LoopRun::SetOutput(int i, const Tensor& value) {
  if (LivesOnHost(value.dtype())) return SetHostOutput(ctx_, i, value);
  ctx_->set_output(i, value);
  return absl::OkStatus();
}

absl::Status LoopRun::CheckParameter(int i, const BodyFrame& frame) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const Tensor& value = frame.parameters[i];
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

absl::Status LoopRun::StartInput(int i) {
  const LoopSpec::Input& input = spec_.inputs[i];
  InputState& state = inputs_[i];
  const Tensor& tensor = Input(i);
  switch (input.mode) {
    case InputMode::kValue:
      frame_.parameters[i] = tensor;
      return CheckParameter(i, frame_);
    case InputMode::kHistory: {
      TF_RETURN_IF_ERROR(GetHistory(tensor, input.label, &state.history));
      return count_.Merge(input.CountParts(state.history->size()), input.label);
    }
    default: {
      int64_t axis;
      TF_RETURN_IF_ERROR(input.FindAxis(tensor.dims(), &axis));
      TF_RETURN_IF_ERROR(input.FindPieces(tensor.dim_size(axis), &state.pieces));
      if (input.mode != InputMode::kIterator) {
        TF_RETURN_IF_ERROR(count_.Merge(state.pieces.count, input.label));
      }
      return state.reader.Init(tensor, axis, input.drops_axis());
    }
  }
}

absl::Status LoopRun::Start() {
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
    for (const int i : spec_.condition_inputs) {
      condition_frame_.invariant.push_back(spec_.inputs[i].is_invariant());
    }
    condition_frame_.results.resize(types.size());
  }
  TF_RETURN_IF_ERROR(
      spec_.CheckBody(body_.parameter_types.size(), num_parameters, body_.result_types.size()));
  for (int p = num_inputs; p < num_parameters; ++p) {
    if (body_.parameter_types[p] != condition_->result_types[p - num_inputs + 1]) {
      return InvalidArgument("what the condition gives the body is of another type");
    }
  }
  for (const LoopSpec::Output& output : spec_.outputs) {
    if (output.result < 0) continue;
    TF_RETURN_IF_ERROR(spec_.CheckResult(output, body_.result_types[output.result]));
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    TF_RETURN_IF_ERROR(
        spec_.CheckBackEdge(edge, body_.result_types[edge.from], body_.parameter_types[edge.to]));
  }

  frame_.parameters.resize(num_parameters);
  frame_.consumable.assign(num_parameters, false);
  frame_.invariant.assign(num_parameters, false);
  std::transform(spec_.inputs.begin(), spec_.inputs.end(), frame_.invariant.begin(),
                 [](const LoopSpec::Input& input) { return input.is_invariant(); });
  frame_.results.resize(num_results);
  frame_.fuse = condition_frame_.fuse = spec_.fuse;
  inputs_.resize(num_inputs);
  outputs_.resize(spec_.outputs.size());
  if (spec_.has_num_iterations) {
    const Tensor& limit = ctx_->input(spec_.limit_input());
    TF_RETURN_IF_ERROR(CheckScalar(spec_.limit_label, limit.shape()));
    const int64_t given = limit.scalar<int64_t>()();
    TF_RETURN_IF_ERROR(spec_.CheckLimit(given));
    TF_RETURN_IF_ERROR(count_.Merge(given, spec_.limit_label));
  }
  TF_RETURN_IF_ERROR(BringInputsToHost(ctx_, num_inputs, &host_inputs_));
  for (int i = 0; i < num_inputs; ++i) TF_RETURN_IF_ERROR(StartInput(i));
  if (!count_.is_known() && !spec_.has_condition) {
    return InvalidArgument(HasNoCount(spec_.limit_label));
  }
  for (int i = 0; i < num_inputs && !spec_.has_condition; ++i) {
    const LoopSpec::Input& input = spec_.inputs[i];
    const int64_t size = inputs_[i].pieces.count;
    if (input.mode == InputMode::kIterator && size < count()) {
      return InvalidArgument(IteratorEnds(input.label, input.axis, size, count_.from, count()));
    }
  }
  for (size_t i = 0; i < outputs_.size(); ++i) TF_RETURN_IF_ERROR(StartOutput(i));
  in_condition_ = spec_.has_condition;
  done_ = count() == 0;
  return absl::OkStatus();
}

absl::Status LoopRun::StartOutput(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  state.required = ctx_->output_required(i);
  if (output.length < 0) return absl::OkStatus();
  const Tensor& length = ctx_->input(spec_.length_input(output));
  TF_RETURN_IF_ERROR(CheckScalar(output.LengthName(), length.shape()));
  state.length = length.scalar<int64_t>()();
  TF_RETURN_IF_ERROR(output.CheckLength(state.length));
  if (!spec_.has_condition && state.length < count()) {
    return InvalidArgument(LengthEnds(output.label, state.length, count()));
  }
  return absl::OkStatus();
}

absl::Status LoopRun::EnterElement(int i, int64_t t, BodyFrame* frame) {
  const LoopSpec::Input& input = spec_.inputs[i];
  InputState& state = inputs_[i];
  const int64_t k = IndexOf(t);
  Tensor* parameter = &frame->parameters[i];
  if (input.mode == InputMode::kHistory) {
    const int64_t part = input.range.part_size;
    if (part > 0) {
      const std::vector<Tensor>& tensors = state.history->tensors();
      const auto begin = tensors.begin() + k * part;
      const int64_t size = std::min<int64_t>(part, tensors.end() - begin);
      *parameter = HistoryTensor(History(std::vector<Tensor>(begin, begin + size)));
    } else {
      *parameter = state.history->TensorAt(k);
    }
    return CheckParameter(i, *frame);
  }
  if (k >= state.pieces.count) {
    return InvalidArgument(
        ReadsPast(input.label, input.axis, k, absl::StrCat(state.pieces.count, " elements")));
  }
  // Drops the last piece first, so that the reader may reuse its memory.
  *parameter = Tensor();
  TF_RETURN_IF_ERROR(
      state.reader.Read(ctx_, state.pieces.Begin(k), state.pieces.Size(k), parameter));
  // All whole pieces have one shape.
  if (t == 0 || input.mode == InputMode::kSegment) return CheckParameter(i, *frame);
  return absl::OkStatus();
}

absl::Status LoopRun::EnterCondition(int64_t t, BodyFrame* frame) {
  for (size_t c = 0; c < spec_.condition_inputs.size(); ++c) {
    const int i = spec_.condition_inputs[c];
    if (spec_.inputs[i].mode != InputMode::kValue && !inputs_[i].entered) {
      TF_RETURN_IF_ERROR(EnterElement(i, t, frame));
      inputs_[i].entered = true;
    }
    condition_frame_.parameters[c] = frame->parameters[i];
  }
  return absl::OkStatus();
}

absl::Status LoopRun::EnterElements(int64_t t, BodyFrame* frame) {
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (spec_.inputs[i].mode == InputMode::kValue) continue;
    if (!std::exchange(inputs_[i].entered, false)) TF_RETURN_IF_ERROR(EnterElement(i, t, frame));
  }
  return absl::OkStatus();
}

absl::Status LoopRun::Enter() {
  if (in_condition_) return EnterCondition(iteration_, &frame_);
  TF_RETURN_IF_ERROR(EnterElements(iteration_, &frame_));
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const int parameter = spec_.outputs[i].parameter;
    if (parameter >= 0) TF_RETURN_IF_ERROR(Record(i, frame_.parameters[parameter]));
  }
  return absl::OkStatus();
}

absl::Status LoopRun::LeaveCondition(BodyFrame* frame, bool* goes_on) {
  // A parameter to which others refer could not be overwritten by the body.
  for (Tensor& parameter : condition_frame_.parameters) parameter = Tensor();
  const Tensor& value = condition_frame_.results[0];
  if (value.dims() != 0) {
    return InvalidArgument(spec_.limit_label, ": the condition must be a scalar, got shape ",
                           value.shape().DebugString());
  }
  TF_RETURN_IF_ERROR(ReadBool(ctx_, value, goes_on));
  const size_t first = spec_.inputs.size();
  for (size_t p = first; p < frame->parameters.size(); ++p) {
    frame->parameters[p] = std::move(condition_frame_.results[p - first + 1]);
    frame->consumable[p] = true;
  }
  return absl::OkStatus();
}

absl::Status LoopRun::RunFunction(const tensorflow::FunctionLibraryRuntime::Options& options) {
  if (frame()->runner != nullptr) return frame()->runner->Run();
  const absl::Status status =
      ctx_->function_library()->RunSync(options, function().handle, frame());
  function().programs = frame()->programs;
  return status;
}

absl::Status LoopRun::Leave() {
  if (!in_condition_) return LeaveBody();
  bool goes_on;
  TF_RETURN_IF_ERROR(LeaveCondition(&frame_, &goes_on));
  done_ = !goes_on;
  in_condition_ = false;
  return absl::OkStatus();
}

absl::Status LoopRun::Record(int i, const Tensor& value) {
  OutputState& state = outputs_[i];
  const int64_t stride = spec_.outputs[i].stride;
  if (!state.required || Index() % stride != 0) return absl::OkStatus();
  const int64_t k = Index() / stride;
  if (static_cast<int64_t>(state.pieces.size()) <= k) {
    const int64_t size = spec_.has_condition ? k + 1 : (count() - 1) / stride + 1;
    state.pieces.resize(size);
  }
  state.pieces[k] = value;
  return absl::OkStatus();
}

absl::Status LoopRun::AllocateOutput(int i, int64_t capacity, Tensor* tensor) const {
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
    status = Allocate(ctx_, output.dtype, shape, tensor, ctx_->output_alloc_attr(i));
  }
  return Naming(output.label, status);
}

// Doubles an output's tensor. Where a condition ends the loop, it has room for more pieces than
// there are so far; those of a reversed output lie at its end.
absl::Status LoopRun::Grow(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (state.length >= 0) {
    return InvalidArgument(output.label, ": the length is ", state.length,
                           ", but the loop has more iterations");
  }
  const int64_t capacity = 2 * state.capacity;
  Tensor larger;
  TF_RETURN_IF_ERROR(AllocateOutput(i, capacity, &larger));
  const int64_t begin = output.stride < 0 ? capacity - state.capacity : 0;
  TF_RETURN_IF_ERROR(PlacePiece(ctx_, state.tensor, state.axis, begin * state.extent, &larger));
  state.tensor = std::move(larger);
  state.capacity = capacity;
  return absl::OkStatus();
}

// Leaves as many pieces as there are iterations, or as the length tells: zeros after the values.
absl::Status LoopRun::Trim(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  const int64_t wanted = state.length >= 0 ? state.length : iteration_;
  const bool at_end = spec_.has_condition && output.stride < 0;
  Tensor tensor = state.tensor;
  // A program has written what a state would be next, too.
  if (wanted != state.capacity || (spec_.has_condition && iteration_ < wanted)) {
    TF_RETURN_IF_ERROR(AllocateOutput(i, wanted, &tensor));
    if (iteration_ < wanted) TF_RETURN_IF_ERROR(FillZeros(ctx_, &tensor));
    PieceReader reader;
    TF_RETURN_IF_ERROR(reader.Init(state.tensor, state.axis, /*remove_axis=*/false));
    Tensor values;
    const int64_t begin = at_end ? state.capacity - iteration_ : 0;
    TF_RETURN_IF_ERROR(reader.Read(ctx_, begin * state.extent, iteration_ * state.extent, &values));
    TF_RETURN_IF_ERROR(PlacePiece(ctx_, values, state.axis, 0, &tensor));
  }
  return SetOutput(i, tensor);
}

// All values before the last have the shape of the first.
absl::Status LoopRun::StartPieces(int i, const TensorShape& first) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  const bool stack = output.mode == OutputMode::kStack || first.dims() == 0;
  int64_t axis;
  TF_RETURN_IF_ERROR(output.FindAxis(first.dims() + stack, &axis));
  state.axis = axis;
  state.first = first;
  state.is_stacked = stack;
  state.extent = stack ? 1 : first.dim_size(axis);
  state.capacity = state.length >= 0      ? state.length
                   : !spec_.has_condition ? count()
                   : count() < 0          ? kFirstCapacity
                                          : std::min(count(), kFirstCapacity);
  if (state.capacity == 0) return Grow(i);
  if (state.is_home) {
    TF_RETURN_IF_ERROR(AllocateOutput(i, state.capacity + 1, &state.with_spare));
    const int64_t begin = spec_.reverse ? 0 : state.extent;
    state.tensor = state.with_spare.Slice(begin, begin + state.capacity * state.extent);
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(AllocateOutput(i, state.capacity, &state.tensor));
  return state.length >= 0 ? FillZeros(ctx_, &state.tensor) : absl::OkStatus();
}

absl::Status LoopRun::Place(int i, const Tensor& value) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (iteration_ == 0) TF_RETURN_IF_ERROR(StartPieces(i, value.shape()));
  const bool stack = state.is_stacked;
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
  if (!stack && !output.IsPart(value.dim_size(state.axis))) {
    return InvalidArgument(IsNoPart(output.label, output.part_size, value.shape().DebugString()));
  }
  if (spec_.has_condition && iteration_ == state.capacity) TF_RETURN_IF_ERROR(Grow(i));
  const int64_t most = spec_.has_condition ? state.capacity : count();
  const int64_t position = output.stride < 0 ? most - 1 - Index() : Index();
  if (state.pieces.empty()) {
    if (value.shape() == state.first) {
      return PlacePiece(ctx_, value, state.axis, position * state.extent, &state.tensor);
    }
    // Pieces of differing extents: their positions are known only at the end.
    state.pieces.resize(count());
    PieceReader reader;
    TF_RETURN_IF_ERROR(reader.Init(state.tensor, state.axis, /*remove_axis=*/false));
    for (int64_t t = 0; t < iteration_; ++t) {
      const int64_t at = (output.stride < 0) != spec_.reverse ? count() - 1 - t : t;
      TF_RETURN_IF_ERROR(reader.Read(ctx_, at * state.extent, state.extent, &state.pieces[at]));
    }
    state.tensor = Tensor();
  }
  state.pieces[position] = value;
  return absl::OkStatus();
}

absl::Status LoopRun::AddSum(int i, const Tensor& value) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (iteration_ == 0) {
    state.first = value.shape();
    TF_RETURN_IF_ERROR(Allocate(ctx_, SumType(output.dtype), value.shape(), &state.tensor,
                                ctx_->output_alloc_attr(i)));
    TF_RETURN_IF_ERROR(FillZeros(ctx_, &state.tensor));
  } else if (value.shape() != state.first) {
    return InvalidArgument(output.label, ": cannot add shape ", value.shape().DebugString(),
                           " to a sum of shape ", state.first.DebugString());
  }
  return AddToSum(ctx_, value, &state.tensor);
}

absl::Status LoopRun::PlaceResults(const BodyFrame& frame) {
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    if (output.result < 0 || !outputs_[i].required) continue;
    const Tensor& value = frame.results[output.result];
    switch (output.mode) {
      case OutputMode::kLast:
        if (IsLast()) outputs_[i].tensor = value;
        break;
      case OutputMode::kHistory:
        TF_RETURN_IF_ERROR(Record(i, value));
        break;
      case OutputMode::kSum:
        TF_RETURN_IF_ERROR(AddSum(i, value));
        break;
      default:
        TF_RETURN_IF_ERROR(Place(i, value));
    }
  }
  return absl::OkStatus();
}

absl::Status LoopRun::LeaveBody() {
  TF_RETURN_IF_ERROR(PlaceResults(frame_));
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    Tensor& result = frame_.results[edge.from];
    Tensor& parameter = frame_.parameters[edge.to];
    if (edge.last_use) {
      parameter = std::move(result);
    } else {
      parameter = result;
    }
    frame_.consumable[edge.to] = true;
    TF_RETURN_IF_ERROR(CheckParameter(edge.to, frame_));
  }
  // A result that is not passed on is freed now, not when the next iteration overwrites it.
  for (Tensor& result : frame_.results) result = Tensor();
  for (size_t p = spec_.inputs.size(); p < frame_.parameters.size(); ++p) {
    frame_.parameters[p] = Tensor();
  }
  ++iteration_;
  ++num_stepped_;
  done_ = iteration_ == count();
  in_condition_ = spec_.has_condition;
  return absl::OkStatus();
}

// Of a parameter in the next iteration.
TensorShape LoopRun::NextShape(int i) const {
  const InputState& state = inputs_[i];
  switch (spec_.inputs[i].mode) {
    case InputMode::kValue:
      return frame_.parameters[i].shape();
    case InputMode::kHistory:
      return state.history->TensorAt(Index()).shape();
    default:
      return state.reader.Shape(state.pieces.Size(Index()));
  }
}

// Returns true if the pieces of output `i` are rows of a history of such values, in the same order.
bool LoopRun::MayHouse(int i, const Region::Array& value) const {
  const LoopSpec::Output& output = spec_.outputs[i];
  const bool has_pieces = output.mode == OutputMode::kConcat || output.mode == OutputMode::kStack;
  constexpr int64_t kFewest = 4;  // pieces, of which a spare one may live as long
  if (!has_pieces || !outputs_[i].required || output.stride < 0 || output.length >= 0 ||
      count() < kFewest || spec_.has_condition || !tensorflow::DataTypeCanUseMemcpy(value.dtype)) {
    return false;
  }
  const int rank = value.shape.dims();
  int64_t axis;
  return value.shape.num_elements() > 0 &&
         output.FindAxis(rank + (output.mode == OutputMode::kStack || rank == 0), &axis).ok() &&
         axis == 0 &&
         HistoryBlock::RowElements(value.dtype, value.shape) == value.shape.num_elements();
}

// The pieces of an output may be the values of a history too: the same result, or a state, which is
// a result of the iteration before. Then the history lies in the output's memory. Returns for each
// output of the op the output that is its home, or -1 if it has memory of its own.
std::vector<int> LoopRun::FindHomes(const WholeBody& body) const {
  const std::vector<int>& sources = body.body->whole;
  std::vector<int> next(spec_.inputs.size(), -1);  // by parameter, the source that becomes it
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) next[edge.to] = sources[edge.from];
  std::map<int, int> homes_of;  // by source
  for (int j = 0; j < static_cast<int>(outputs_.size()); ++j) {
    const int result = spec_.outputs[j].result;
    if (result < 0 || sources[result] < 0) continue;
    if (MayHouse(j, ArrayOf(body_, body, sources[result]))) homes_of.emplace(sources[result], j);
  }
  std::map<int, int> state_of;  // by home, the parameter of a state whose history is there
  std::vector<int> homes(outputs_.size(), -1);
  for (size_t i = 0; i < homes.size() && !homes_of.empty(); ++i) {
    const LoopSpec::Output& history = spec_.outputs[i];
    const bool is_whole = history.mode == OutputMode::kHistory && history.stride == 1;
    if (!is_whole || !outputs_[i].required) continue;
    const bool is_state = history.result < 0;
    const auto found = homes_of.find(is_state ? next[history.parameter] : sources[history.result]);
    if (found == homes_of.end()) continue;
    // States that become one value begin with values of their own, and there is one spare piece.
    const int parameter = is_state ? history.parameter : -1;
    if (is_state && state_of.emplace(found->second, parameter).first->second != parameter) continue;
    homes[i] = found->second;
  }
  return homes;
}

// Memory for the values of a history that programs make: for all of them, or twice as many as there
// are where a condition ends the loop. The memory has one more row, for a state's value of an
// iteration after the last.
absl::Status LoopRun::StartRows(int i, const Region::Array& value, int home) {
  OutputState& state = outputs_[i];
  const HistoryBlock& block = state.block;
  const int64_t capacity = spec_.has_condition ? std::max(kFirstCapacity, 2 * block.end())
                                               : (count() - 1) / spec_.outputs[i].stride + 1;
  const int64_t length = HistoryBlock::RowElements(value.dtype, value.shape);
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape({capacity + 1, length}, &shape));
  // Without memory the rows stay as they are.
  Tensor rows;
  if (home < 0) {
    TF_RETURN_IF_ERROR(Allocate(ctx_, value.dtype, shape, &rows));
  } else if (!rows.CopyFrom(outputs_[home].with_spare, shape)) {
    return absl::InternalError("pieces are no rows");
  }
  const bool is_state = value.source.kind == Source::kParameter;
  const int64_t first = is_state == spec_.reverse ? 1 : 0;
  state.tensor = rows.Slice(first, first + capacity);
  state.home = home;
  state.capacity = capacity;
  if (block.end() > 0 && length > 0) {
    const int64_t row = length * tensorflow::DataTypeSize(value.dtype);
    std::memcpy(Elements<char>(&state.tensor) + block.begin() * row, block.Row(block.begin()),
                (block.end() - block.begin()) * row);
  }
  return absl::OkStatus();
}

bool LoopRun::FindWhole(WholeBody* body, WholeBody* condition) const {
  const auto find = [](const Body& function, const BodyFrame& frame, WholeBody* whole) {
    BodyPrograms* const programs = function.programs;
    return programs != nullptr && programs->FindWhole(frame.invariant, whole);
  };
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const LoopSpec::Input& input = spec_.inputs[i];
    if (input.mode == InputMode::kHistory && input.range.part_size > 0) return false;
    if (input.is_sliced() && Index() >= inputs_[i].pieces.count) return false;
    body->parameters.push_back(NextShape(i));
    if (!input.shape.IsCompatibleWith(body->parameters.back())) return false;
  }
  if (condition_ != nullptr) {
    for (const int i : spec_.condition_inputs) {
      condition->parameters.push_back(body->parameters[i]);
    }
    if (!find(*condition_, condition_frame_, condition)) return false;
    const std::vector<int>& results = condition->body->whole;
    if (ArrayOf(*condition_, *condition, results[0]).shape.dims() != 0) return false;
    for (size_t k = 1; k < results.size(); ++k) {
      body->parameters.push_back(ArrayOf(*condition_, *condition, results[k]).shape);
    }
  }
  return find(body_, frame_, body);
}

// What SourceOf tells.
Region::Array LoopRun::ArrayOf(const Body& function, const WholeBody& whole, int source) const {
  if (source >= 0) return whole.region().outputs[source];
  const int p = -1 - source;
  return {{Source::kParameter, p}, function.parameter_types[p], whole.parameters[p]};
}

// True if a source is one tensor in all iterations. The tensor is handed on: strings, variants and
// handles must not be copied as bytes.
bool LoopRun::IsFixed(int source) const {
  const int p = -1 - source;
  return p >= 0 && !IsState(p) && spec_.inputs[p].mode == InputMode::kValue;
}

// The first iteration that programs cannot run next, for lack of pieces of full size, or of memory
// for outputs. A state that is an output as it comes in is written to its place by the iteration
// before, which the last one has no place for.
int64_t LoopRun::FindEnd(const CompiledBody& body) const {
  int64_t end = count() >= 0 ? count() : std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const Pieces& pieces = inputs_[i].pieces;
    if (!spec_.inputs[i].is_sliced()) continue;
    const bool is_last_short = pieces.last_size != pieces.part_size;
    if (spec_.has_condition || is_last_short) end = std::min(end, pieces.count - is_last_short);
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    const OutputState& state = outputs_[i];
    if (!state.required || output.mode == OutputMode::kCount) continue;
    int64_t most = count();
    switch (output.mode) {
      case OutputMode::kHistory:
        if (spec_.has_condition) end = std::min(end, state.capacity * output.stride);
        break;
      case OutputMode::kConcat:
      case OutputMode::kStack:
        if (spec_.has_condition) most = state.capacity;
        break;
      default:
        if (spec_.has_condition) continue;
    }
    if (output.result < 0) continue;
    const int source = body.whole[output.result];
    const bool is_state = source < 0 && IsState(-1 - source);
    if (most >= 0) end = std::min(end, most - is_state);
  }
  return end;
}

bool LoopRun::BindInput(int i, const TensorShape& shape, NativeLoop* loop) const {
  const LoopSpec::Input& input = spec_.inputs[i];
  const InputState& state = inputs_[i];
  const tensorflow::DataType dtype = body_.parameter_types[i];
  if (input.back_edge) return input.mode == InputMode::kValue;
  switch (input.mode) {
    case InputMode::kValue:
      loop->SetFixed(i, frame_.parameters[i]);
      return frame_.parameters[i].dtype() == dtype;
    case InputMode::kHistory:
      return tensorflow::DataTypeCanUseMemcpy(dtype) &&
             loop->SetHistory(i, *state.history, dtype, shape);
    default: {
      const Pieces& pieces = state.pieces;
      if (!tensorflow::DataTypeCanUseMemcpy(dtype) || Input(i).dtype() != dtype ||
          state.reader.Shape(pieces.part_size) != shape) {
        return false;
      }
      const BlockCopy blocks = state.reader.Blocks(pieces.part_size);
      // Of two pieces, where there are so many; neither is the last, which may be short.
      Walk walk;
      walk.base = const_cast<char*>(state.reader.At(pieces.Begin(0)));
      if (pieces.count > 1) walk.step = state.reader.At(pieces.Begin(1)) - walk.base;
      walk.num_blocks = blocks.count;
      walk.block_stride = blocks.src_stride * tensorflow::DataTypeSize(dtype);
      loop->SetPieces(i, walk, shape.num_elements() * tensorflow::DataTypeSize(dtype));
      return true;
    }
  }
}

// Returns false if there is no way to. The history's home, if it has one, is bound already.
bool LoopRun::BindHistory(int i, const Region::Array& value, int home, NativeLoop* loop) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (!tensorflow::DataTypeCanUseMemcpy(value.dtype)) return false;
  const bool is_full = iteration_ / output.stride >= state.capacity;
  if ((state.capacity == 0 || is_full) && !StartRows(i, value, home).ok()) return false;
  if (state.home != home) return false;
  if (state.block.end() > 0 && state.block.shape() != value.shape) return false;
  Walk walk;
  walk.base = Elements<char>(&state.tensor);
  walk.step =
      HistoryBlock::RowElements(value.dtype, value.shape) * tensorflow::DataTypeSize(value.dtype);
  walk.every = output.stride;
  if (home < 0 && output.result >= 0) {
    loop->WriteResult(output.result, walk);
  } else if (home < 0) {
    loop->WriteParameter(output.parameter, walk);
  } else if (output.result < 0) {
    // All later values of the state are pieces of the home.
    const Tensor& start = frame_.parameters[output.parameter];
    walk.Write(Index(), start.TotalBytes(), Elements<char>(start));
  }
  return true;
}

// Returns false if there is no way to, or an iteration that does without tells what is wrong.
bool LoopRun::BindOutput(int i, const Region::Array& value, NativeLoop* loop) {
  const LoopSpec::Output& output = spec_.outputs[i];
  OutputState& state = outputs_[i];
  if (output.mode == OutputMode::kLast) {
    if (output.result >= 0) loop->KeepResult(output.result);
    return true;
  }
  const tensorflow::DataType dtype = value.dtype;
  const TensorShape& shape = value.shape;
  if (output.mode == OutputMode::kSum) {
    if (iteration_ == 0) {
      state.first = shape;
      const tensorflow::AllocatorAttributes attributes = ctx_->output_alloc_attr(i);
      if (!Allocate(ctx_, SumType(dtype), shape, &state.tensor, attributes).ok() ||
          !FillZeros(ctx_, &state.tensor).ok()) {
        return false;
      }
    }
    return shape == state.first && loop->AddResult(output.result, dtype, &state.tensor);
  }
  if (!tensorflow::DataTypeCanUseMemcpy(dtype)) return false;
  if (iteration_ == 0 && !StartPieces(i, shape).ok()) return false;
  const bool may_grow = spec_.has_condition && state.length < 0 && state.capacity != count();
  if (may_grow && iteration_ + 1 >= state.capacity && !Grow(i).ok()) return false;
  if (!state.pieces.empty() || shape != state.first) return false;
  if (!state.is_stacked && !output.IsPart(state.extent)) return false;
  PieceReader reader;
  if (!reader.Init(state.tensor, state.axis, state.is_stacked).ok()) return false;
  const BlockCopy blocks = reader.Blocks(state.extent);
  const int64_t piece = reader.At(state.extent) - reader.At(0);
  const bool is_reversed = output.stride < 0;
  const int64_t last = (spec_.has_condition ? state.capacity : count()) - 1;
  Walk walk;
  walk.base = Elements<char>(&state.tensor) + (is_reversed ? last * piece : 0);
  walk.step = is_reversed ? -piece : piece;
  walk.num_blocks = blocks.count;
  walk.block_stride = blocks.src_stride * tensorflow::DataTypeSize(dtype);
  loop->WriteResult(output.result, walk);
  return true;
}

bool LoopRun::Bind(const WholeBody& body, WholeBody* condition, NativeLoop* loop) {
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    if (!BindInput(i, body.parameters[i], loop)) return false;
  }
  if (condition_ != nullptr) loop->SetCondition(condition, spec_.condition_inputs);
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    const Tensor& state = frame_.parameters[edge.to];
    const Region::Array next = ArrayOf(body_, body, body.body->whole[edge.from]);
    if (!tensorflow::DataTypeCanUseMemcpy(next.dtype) || state.dtype() != next.dtype ||
        state.shape() != next.shape) {
      return false;
    }
    loop->SetState(edge.to, edge.from, state);
  }
  const int num_outputs = static_cast<int>(spec_.outputs.size());
  std::vector<int> homes = FindHomes(body);
  for (int& home : homes) {
    if (home < 0) continue;
    // An output that was started before has no spare piece.
    if (iteration_ == 0) outputs_[home].is_home = true;
    if (!outputs_[home].is_home) home = -1;
  }
  // Histories come last: their homes have memory by then.
  for (const bool are_histories : {false, true}) {
    for (int i = 0; i < num_outputs; ++i) {
      const LoopSpec::Output& output = spec_.outputs[i];
      if (!outputs_[i].required || output.mode == OutputMode::kCount ||
          (output.mode == OutputMode::kHistory) != are_histories) {
        continue;
      }
      const Region::Array value = ArrayOf(body_, body, SourceOf(output, *body.body));
      if (!(are_histories ? BindHistory(i, value, homes[i], loop) : BindOutput(i, value, loop))) {
        return false;
      }
    }
  }
  return true;
}

absl::Status LoopRun::SkipAhead() {
  constexpr int kMostSkips = 4;
  if (!spec_.fuse || (spec_.has_condition && (!in_condition_ || spec_.reverse))) {
    return absl::OkStatus();
  }
  while (!done_ && num_skips_ < kMostSkips) {
    ++num_skips_;
    const int64_t begin = iteration_;
    WholeBody body, condition;
    if (FindWhole(&body, &condition)) TF_RETURN_IF_ERROR(RunNative(&body, &condition));
    if (iteration_ == begin) {
      // A block of rows has no gaps: after a kernel's row no program adds to it.
      if (has_skipped_) num_skips_ = kMostSkips;
      break;
    }
    has_skipped_ = true;
    // A condition's loop goes on with more memory.
    num_skips_ = runs_on_ || (spec_.has_condition && !is_stopped_) ? 0 : kMostSkips;
  }
  return absl::OkStatus();
}

absl::Status LoopRun::RunNative(WholeBody* body, WholeBody* condition) {
  const int64_t begin = iteration_;
  PoolThreads threads = ThreadsOf(*ctx_->device());
  NativeLoop loop(body, body->parameters.size(), count() - 1, spec_.reverse, &threads);
  const bool binds = Bind(*body, condition, &loop);
  const int64_t end = FindEnd(*body->body);
  if (binds && begin < end) {
    const tsl::profiler::TraceMe trace(
        [&] {
          return tsl::profiler::TraceMeEncode(
              "TfTi>TensorIterator iterations",
              {{"first", begin}, {"last", end - 1}, {"body", body->region().name}});
        },
        tsl::profiler::kInfo);
    iteration_ = loop.Run(begin, end, [this] {
      return ctx_->cancellation_manager() != nullptr && ctx_->cancellation_manager()->IsCancelled();
    });
    runs_on_ = loop.runs_on();
    is_stopped_ = iteration_ < end && !runs_on_;
    done_ = iteration_ == count() || loop.has_ended();
  }
  return FinishSkip(*body, begin, loop);
}

// Keeps what became of iterations from `begin` on.
absl::Status LoopRun::FinishSkip(const WholeBody& body, int64_t begin, const NativeLoop& loop) {
  // Any of them may be what another was at first. Without a condition the last ones are outputs, if
  // they are wanted at all.
  const bool are_wanted = iteration_ > begin && (!done_ || spec_.has_condition);
  std::vector<Tensor> states(are_wanted ? spec_.back_edges.size() : 0);
  for (size_t e = 0; e < states.size(); ++e) {
    const int p = spec_.back_edges[e].to;
    const Region::Array array = ArrayOf(body_, body, -1 - p);
    TF_RETURN_IF_ERROR(Allocate(ctx_, array.dtype, array.shape, &states[e]));
    loop.CopyState(p, states[e].TotalBytes(), Elements<char>(&states[e]));
  }
  for (size_t e = 0; e < states.size(); ++e) {
    const int p = spec_.back_edges[e].to;
    frame_.parameters[p] = std::move(states[e]);
    frame_.consumable[p] = true;
  }
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    OutputState& state = outputs_[i];
    if (!state.required || output.mode == OutputMode::kCount) continue;
    const int source = SourceOf(output, *body.body);
    const Region::Array array = ArrayOf(body_, body, source);
    if (output.mode == OutputMode::kLast && done_ && !spec_.has_condition) {
      if (IsFixed(source)) {
        state.tensor = frame_.parameters[-1 - source];
      } else {
        TF_RETURN_IF_ERROR(Naming(
            output.label,
            Allocate(ctx_, array.dtype, array.shape, &state.tensor, ctx_->output_alloc_attr(i))));
        loop.CopyResult(output.result, state.tensor.TotalBytes(), Elements<char>(&state.tensor));
      }
    } else if (output.mode == OutputMode::kHistory && iteration_ > begin) {
      // Elements of the indices that have run.
      const int64_t first = spec_.reverse ? count() - iteration_ : begin;
      const int64_t last = first + iteration_ - begin - 1;
      const int64_t from =
          state.block.end() > 0 ? state.block.begin() : (first + output.stride - 1) / output.stride;
      state.block = HistoryBlock(from, last / output.stride + 1, array.shape, state.tensor);
    } else if (output.mode == OutputMode::kHistory && state.block.end() == 0) {
      state.tensor = Tensor();
      state.capacity = 0;
    }
  }
  return absl::OkStatus();
}

// A parameter that the body only passes on tells the shape of its values, though there are none.
absl::Status LoopRun::InferPiece(const LoopSpec::Output& output, PartialTensorShape* piece) const {
  const int parameter = body_.passed_on[output.result];
  if (parameter < 0 || parameter >= static_cast<int>(spec_.inputs.size())) {
    return absl::OkStatus();
  }
  const LoopSpec::Input& input = spec_.inputs[parameter];
  TensorShape shape = ctx_->input(parameter).shape();
  if (input.drops_axis()) {
    int64_t axis;
    TF_RETURN_IF_ERROR(input.FindAxis(shape.dims(), &axis));
    TF_RETURN_IF_ERROR(shape.RemoveDimWithStatus(axis));
  } else if (input.mode != InputMode::kValue) {
    return absl::OkStatus();
  }
  *piece = PartialTensorShape(shape.dim_sizes());
  return absl::OkStatus();
}

absl::Status LoopRun::FinishEmpty(int i) {
  const LoopSpec::Output& output = spec_.outputs[i];
  if (output.mode == OutputMode::kHistory) {
    return SetOutput(i, HistoryTensor(History()));
  }
  if (output.mode == OutputMode::kLast) {
    const int parameter = spec_.StateOf(output);
    if (parameter >= 0) return SetOutput(i, Input(parameter));
    return InvalidArgument(HasNoLast(output.label, output.result));
  }
  PartialTensorShape piece = spec_.result_shapes[output.result];
  if (!piece.IsFullyDefined()) TF_RETURN_IF_ERROR(InferPiece(output, &piece));
  Tensor empty;
  if (output.mode == OutputMode::kSum) {
    // Extent 1 where it is not known: the zeros broadcast to the shape of the sum.
    TensorShape shape;
    for (int d = 0; d < piece.dims(); ++d) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(piece.dim_size(d) < 0 ? 1 : piece.dim_size(d)));
    }
    TF_RETURN_IF_ERROR(Allocate(ctx_, output.dtype, shape, &empty));
    TF_RETURN_IF_ERROR(FillZeros(ctx_, &empty));
  } else if (!piece.unknown_rank() && (output.mode == OutputMode::kStack || piece.dims() == 0)) {
    int64_t axis;
    TF_RETURN_IF_ERROR(output.FindAxis(piece.dims() + 1, &axis));
    TensorShape shape;
    for (int64_t dim : piece.dim_sizes()) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(std::max<int64_t>(dim, 0)));
    }
    const int64_t length = std::max<int64_t>(outputs_[i].length, 0);
    TF_RETURN_IF_ERROR(Naming(output.label, shape.InsertDimWithStatus(axis, length)));
    TF_RETURN_IF_ERROR(Naming(output.label, Allocate(ctx_, output.dtype, shape, &empty)));
    TF_RETURN_IF_ERROR(FillZeros(ctx_, &empty));
  } else {
    TF_RETURN_IF_ERROR(
        Naming(output.label, ConcatPieces(ctx_, {}, output.dtype, piece, output.axis, &empty)));
  }
  return SetOutput(i, empty);
}

// Replaces histories by their elements.
absl::Status LoopRun::Flatten(const std::string& label, std::vector<Tensor>* tensors) {
  std::vector<Tensor> elements;
  for (const Tensor& tensor : *tensors) {
    const History* history;
    TF_RETURN_IF_ERROR(GetHistory(tensor, label, &history));
    elements.insert(elements.end(), history->tensors().begin(), history->tensors().end());
  }
  *tensors = std::move(elements);
  return absl::OkStatus();
}

absl::Status LoopRun::Finish() {
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    const LoopSpec::Output& output = spec_.outputs[i];
    OutputState& state = outputs_[i];
    if (!state.required) continue;
    if (output.mode == OutputMode::kCount) {
      TF_RETURN_IF_ERROR(SetHostOutput(ctx_, i, Tensor(iteration_)));
    } else if (iteration_ == 0) {
      TF_RETURN_IF_ERROR(FinishEmpty(i));
    } else if (output.mode == OutputMode::kHistory) {
      if (output.part_size > 0) {
        if (state.block.end() > 0)
          return InvalidArgument(output.label, ": its parts are no histories");
        TF_RETURN_IF_ERROR(Flatten(output.label, &state.pieces));
      }
      History history(std::move(state.pieces), std::move(state.block));
      TF_RETURN_IF_ERROR(SetOutput(i, HistoryTensor(std::move(history))));
    } else if (!state.pieces.empty()) {
      Tensor whole;
      TF_RETURN_IF_ERROR(ConcatPieces(ctx_, state.pieces, output.dtype, {}, state.axis, &whole));
      TF_RETURN_IF_ERROR(SetOutput(i, whole));
    } else if (output.mode == OutputMode::kSum) {
      Tensor rounded;
      TF_RETURN_IF_ERROR(RoundSum(ctx_, state.tensor, output.dtype, &rounded));
      TF_RETURN_IF_ERROR(SetOutput(i, rounded));
    } else if (output.mode == OutputMode::kLast) {
      TF_RETURN_IF_ERROR(SetOutput(
          i, spec_.has_condition ? frame_.parameters[spec_.StateOf(output)] : state.tensor));
    } else {
      TF_RETURN_IF_ERROR(Trim(i));
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
