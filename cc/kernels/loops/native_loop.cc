#include "cc/kernels/loops/native_loop.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cc/compute/waiting.h"
#include "cc/kernels/elements.h"

namespace tf_ti {

using tensorflow::Tensor;

namespace {

constexpr int64_t kLine = 64;

int64_t Rounded(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

void CopyBlocks(int64_t num_blocks, int64_t bytes, const char* from, int64_t from_stride, char* to,
                int64_t to_stride) {
  const int64_t size = bytes / num_blocks;
  if (from_stride % size == 0 && to_stride % size == 0) {
    CopyBytes({num_blocks, 1, from_stride / size, to_stride / size}, size, from, to);
  } else {
    CopyBytes({num_blocks, size, from_stride, to_stride}, 1, from, to);
  }
}

template <typename T, typename S = T>
void Add(const char* value, Tensor* sum) {
  AddTo(sum->NumElements(), reinterpret_cast<const T*>(value), Elements<S>(sum));
}

auto AddFunction(tensorflow::DataType dtype) -> void (*)(const char*, Tensor*) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return Add<float>;
    case tensorflow::DT_DOUBLE:
      return Add<double>;
    case tensorflow::DT_HALF:
      return Add<Eigen::half, float>;
    case tensorflow::DT_BFLOAT16:
      return Add<Eigen::bfloat16, float>;
    case tensorflow::DT_INT32:
      return Add<int32_t>;
    case tensorflow::DT_INT64:
      return Add<int64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

NativeLoop::NativeLoop(WholeBody* body, int num_parameters, int64_t last_index, bool reverse,
                       Parallel* parallel)
    : body_(*body),
      parallel_(parallel),
      num_parameters_(num_parameters),
      last_index_(last_index),
      reverse_(reverse),
      values_(num_parameters),
      parameters_(num_parameters) {
  std::iota(parameters_.begin(), parameters_.end(), 0);
  AddOutputs(body->region());
}

void NativeLoop::AddOutputs(const Region& region) {
  for (const Region::Array& output : region.outputs) {
    Value& value = values_.emplace_back();
    value.kind = kInTurn;
    value.bytes = output.shape.num_elements() * tensorflow::DataTypeSize(output.dtype);
  }
}

int NativeLoop::ValueOf(int result) const {
  const int source = body_.body->whole[result];
  return source >= 0 ? num_parameters_ + source : parameters_[-1 - source];
}

void NativeLoop::SetFixed(int parameter, const Tensor& tensor) {
  values_[parameter].bytes = tensor.TotalBytes();
  values_[parameter].start = Elements<char>(tensor);
}

void NativeLoop::SetPieces(int parameter, const Walk& walk, int64_t bytes) {
  Value& value = values_[parameter];
  value.kind = walk.num_blocks == 1 ? kWalk : kInTurn;
  value.bytes = bytes;
  value.walk = walk;
}

bool NativeLoop::SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape) {
  Value& value = values_[parameter];
  value.kind = kHistory;
  value.bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  value.addresses.resize(history.size());
  for (int64_t k = 0; k < history.size(); ++k) {
    value.addresses[k] = history.Find(k, dtype, shape);
    if (value.addresses[k] == nullptr && value.bytes > 0) return false;
  }
  // A loop's own elements lie in one block.
  const auto& at = value.addresses;
  if (at.size() < 2) return true;
  const int64_t step = at[1] - at[0];
  for (size_t k = 2; k < at.size(); ++k) {
    if (at[k] - at[k - 1] != step) return true;
  }
  value.kind = kWalk;
  value.walk.base = const_cast<char*>(at[0]);
  value.walk.step = step;
  return true;
}

void NativeLoop::SetCondition(WholeBody* condition, const std::vector<int>& parameters) {
  condition_ = condition;
  condition_parameters_ = parameters;
  first_of_condition_ = static_cast<int>(values_.size());
  AddOutputs(condition->region());
  const std::vector<int>& results = condition->body->whole;
  const auto value_of = [&](int result) {
    const int source = results[result];
    return source >= 0 ? first_of_condition_ + source : parameters[-1 - source];
  };
  const int num_given = static_cast<int>(results.size()) - 1;
  for (int k = 0; k < num_given; ++k)
    parameters_[num_parameters_ - num_given + k] = value_of(k + 1);
  pointers_.push_back({value_of(0), &goes_on_, 0});
}

void NativeLoop::SetState(int parameter, int result, const Tensor& start) {
  SetFixed(parameter, start);
  const int source = ValueOf(result);
  if (source == parameter) return;
  values_[parameter].kind = kState;
  values_[parameter].source = source;
}

void NativeLoop::WriteResult(int result, const Walk& to) {
  writes_.push_back({ValueOf(result), to});
}

void NativeLoop::WriteParameter(int parameter, const Walk& to) {
  writes_.push_back({parameters_[parameter], to});
}

bool NativeLoop::AddResult(int result, tensorflow::DataType dtype, Tensor* sum) {
  const int value = ValueOf(result);
  const auto add = AddFunction(dtype);
  const int64_t bytes = sum->NumElements() * tensorflow::DataTypeSize(dtype);
  if (add == nullptr || values_[value].bytes != bytes) return false;
  sums_.push_back({value, add, sum});
  return true;
}

// The number of iterations after its own in which a state still is this value. (A state that never
// is another again was none of the values that are asked for.)
int NativeLoop::LivesFor(int value) const {
  int longest = 0;
  for (int p = 0; p < num_parameters_; ++p) {
    if (values_[p].kind != kState || values_[p].source != value) continue;
    longest = std::max(longest, 1 + LivesFor(p));
  }
  return longest;
}

// All lists of moves, and buffers, take turns together after so many iterations at most, if no
// value needs more buffers.
constexpr int kMostTurns = 32;

void NativeLoop::FindHomes() {
  int64_t bytes = 0;
  int turns = 1;
  for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
    Value& value = values_[v];
    if (value.kind != kInTurn) continue;
    const bool is_output = v >= num_parameters_;
    const auto lives_in = [](const Write& write) {
      return write.to.num_blocks == 1 && write.to.every == 1;
    };
    auto write = std::find_if(writes_.begin(), writes_.end(), [&](const Write& write) {
      return write.value == v && lives_in(write);
    });
    if (is_output && write != writes_.end()) {
      value.kind = kWalk;
      value.walk = write->to;
      writes_.erase(write);
      continue;
    }
    // Where the next iteration writes a state that is this value.
    write = std::find_if(writes_.begin(), writes_.end(), [&](const Write& write) {
      return values_[write.value].kind == kState && values_[write.value].source == v &&
             lives_in(write);
    });
    if (is_output && write != writes_.end()) {
      Copy(values_[write->value].start, value.bytes, write->to, IndexOf(begin_));
      value.kind = kWalk;
      value.walk = write->to;
      value.walk.base += reverse_ ? -write->to.step : write->to.step;
      writes_.erase(write);
      continue;
    }
    if (!is_output) loads_.push_back({v});
    value.num_buffers = 1 + LivesFor(v);
    while (value.num_buffers % turns != 0 && std::lcm(turns, value.num_buffers) > kMostTurns) {
      ++value.num_buffers;
    }
    turns = std::lcm(turns, value.num_buffers);
    bytes += value.num_buffers * Rounded(value.bytes);
  }
  moves_.resize(turns);
  buffers_ = Buffer<char>(std::max<int64_t>(bytes, 1));
  char* at = buffers_.data();
  for (Value& value : values_) {
    value.buffers = at;
    at += value.num_buffers * Rounded(value.bytes);
  }
}

// `parameters` has the values that the program's are.
void NativeLoop::AddPointers(const std::vector<int>& parameters, int first_output,
                             WholeBody* whole) {
  const auto add = [&](int value, const std::vector<ProgramRun::Pointer>& pointers) {
    for (const auto& [at, offset] : pointers) pointers_.push_back({value, at, offset});
  };
  RegionRun& run = *whole->run;
  const Region& region = whole->region();
  for (size_t i = 0; i < region.inputs.size(); ++i) {
    const int p = region.inputs[i].source.index;
    add(parameters[p], run->InputPointers(static_cast<int>(i)));
  }
  for (size_t i = 0; i < region.outputs.size(); ++i) {
    const int number = static_cast<int>(i);
    add(first_output + number, run->OutputPointers(number));
  }
}

void NativeLoop::FindPointers() {
  AddPointers(parameters_, num_parameters_, &body_);
  if (condition_ != nullptr) AddPointers(condition_parameters_, first_of_condition_, condition_);
  for (Write& write : writes_) pointers_.push_back({write.value, &write.from, 0});
  for (Sum& sum : sums_) pointers_.push_back({sum.value, &sum.from, 0});
  for (Load& load : loads_) pointers_.push_back({load.value, &load.to, 0});
}

void NativeLoop::FindMoves() {
  settled_ = begin_;
  std::vector<Pointer> even;
  for (const Pointer& pointer : pointers_) {
    int value = pointer.value, steps = 0;
    for (; steps < num_parameters_ && values_[value].kind == kState; ++steps) {
      value = values_[value].source;
    }
    if (values_[value].kind == kState || values_[value].kind == kHistory) {
      jumps_.push_back(pointer);
    } else {
      even.push_back(pointer);
      settled_ = std::max(settled_, begin_ + steps);
    }
  }
  const auto turns = static_cast<int64_t>(moves_.size());
  for (int64_t turn = 0; turn < std::min(turns, end_ - settled_); ++turn) {
    for (const Pointer& pointer : even) {
      const int64_t t = settled_ + turn;
      const int64_t step = AddressOf(pointer.value, t + 1) - AddressOf(pointer.value, t);
      if (step != 0) moves_[turn].push_back({pointer.at, step});
    }
  }
}

const char* NativeLoop::AddressOf(int value, int64_t t) const {
  for (int steps = 1; values_[value].kind == kState; ++steps) {
    if (t == begin_) return values_[value].start;
    value = values_[value].source;
    --t;
    // After so many it is one of states that only are each other, in a circle.
    if (steps != num_parameters_ || values_[value].kind != kState) continue;
    int around = 1;
    for (int next = values_[value].source; next != value; ++around) next = values_[next].source;
    t = begin_ + (t - begin_) % around;
  }
  const Value& found = values_[value];
  switch (found.kind) {
    case kHistory:
      return found.addresses[IndexOf(t)];
    case kWalk:
      return found.walk.At(IndexOf(t));
    case kInTurn:
      return found.buffers + t % found.num_buffers * Rounded(found.bytes);
    default:
      return found.start;
  }
}

void NativeLoop::Copy(const char* from, int64_t bytes, const Walk& walk, int64_t index) const {
  if (bytes == 0 || (walk.every > 1 && index % walk.every != 0)) return;
  char* const to = walk.At(index);
  if (walk.num_blocks == 1) {
    std::memcpy(to, from, bytes);
  } else {
    CopyBlocks(walk.num_blocks, bytes, from, bytes / walk.num_blocks, to, walk.block_stride);
  }
}

// Makes all pointers those of the next iteration.
void NativeLoop::Next() {
  if (++now_ <= settled_) {
    for (const Pointer& pointer : pointers_) Set(pointer);
    return;
  }
  for (const Move& move : moves_[turn_]) *move.at += move.step;
  if (++turn_ == moves_.size()) turn_ = 0;
  for (const Pointer& pointer : jumps_) Set(pointer);
}

bool NativeLoop::RunProgram(WholeBody* whole) {
  (*whole->run)->Run(parallel_);
  return !fails_;
}

// Runs the iteration. Returns false if it cannot, or if the condition is false.
bool NativeLoop::RunIteration() {
  const int64_t index = IndexOf(now_);
  for (const Load& load : loads_) {
    const Value& value = values_[load.value];
    const Walk& from = value.walk;
    if (value.bytes == 0) continue;
    CopyBlocks(from.num_blocks, value.bytes, from.At(index), from.block_stride, load.to,
               value.bytes / from.num_blocks);
  }
  if (condition_ != nullptr) {
    if (!RunProgram(condition_)) return false;
    has_ended_ = !*goes_on_;
    if (has_ended_) return false;
  }
  if (!RunProgram(&body_)) return false;
  for (const Write& write : writes_) {
    Copy(write.from, values_[write.value].bytes, write.to, index);
  }
  for (const Sum& sum : sums_) sum.add(sum.from, sum.sum);
  return true;
}

int64_t NativeLoop::Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped) {
  begin_ = now_ = begin;
  end_ = end;
  FindHomes();
  FindPointers();
  FindMoves();
  for (const Pointer& pointer : pointers_) Set(pointer);
  int64_t time = 1;
  for (WholeBody* const whole : {condition_, &body_}) {
    if (whole == nullptr) continue;
    RegionRun& run = *whole->run;
    const Region& region = whole->region();
    if (region.may_fail) run->SetOutput(static_cast<int>(region.outputs.size()), &fails_);
    run.RunPrologueOnce();
    time += region.program->program().time();
  }
  constexpr int64_t kPatience = 50 * kMicrosecond;
  const int64_t patience = std::max<int64_t>(1, kPatience / time);
  while (!is_stopped()) {
    for (const int64_t next = end - now_ > patience ? now_ + patience : end; now_ < next;) {
      if (!RunIteration()) return now_;
      if (now_ + 1 == end) return ++now_;
      Next();
    }
  }
  return now_;
}

}  // namespace tf_ti
