#include "cc/kernels/loops/native_loop.h"

#include <algorithm>
#include <cstring>

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

template <typename T>
void Add(const char* value, Tensor* sum) {
  AddTo(sum->NumElements(), reinterpret_cast<const T*>(value), Elements<T>(sum));
}

auto AddFunction(tensorflow::DataType dtype) -> void (*)(const char*, Tensor*) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return Add<float>;
    case tensorflow::DT_DOUBLE:
      return Add<double>;
    case tensorflow::DT_INT32:
      return Add<int32_t>;
    case tensorflow::DT_INT64:
      return Add<int64_t>;
    default:
      return nullptr;
  }
}

}  // namespace

NativeLoop::NativeLoop(WholeBody* body, int num_parameters, int64_t last_index, bool reverse)
    : body_(*body),
      last_index_(last_index),
      reverse_(reverse),
      parameters_(num_parameters),
      at_(num_parameters + body_.region().outputs.size()),
      next_(num_parameters) {}

int NativeLoop::ValueOf(int result) const {
  const int source = body_.body->whole[result];
  return source >= 0 ? static_cast<int>(parameters_.size()) + source : -1 - source;
}

int64_t NativeLoop::BytesOf(int value) const {
  const int num_parameters = static_cast<int>(parameters_.size());
  if (value < num_parameters) return parameters_[value].bytes;
  const Region::Array& output = body_.region().outputs[value - num_parameters];
  return output.shape.num_elements() * tensorflow::DataTypeSize(output.dtype);
}

void NativeLoop::SetFixed(int parameter, const Tensor& tensor) {
  parameters_[parameter].bytes = tensor.TotalBytes();
  at_[parameter] = Elements<char>(tensor);
}

void NativeLoop::SetPieces(int parameter, const Walk& walk, int64_t bytes) {
  Parameter& set = parameters_[parameter];
  set.kind = kPieces;
  set.bytes = bytes;
  set.walk = walk;
}

bool NativeLoop::SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape) {
  Parameter& set = parameters_[parameter];
  set.kind = kHistory;
  histories_.push_back(parameter);
  set.bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  set.addresses.resize(history.size());
  for (int64_t k = 0; k < history.size(); ++k) {
    set.addresses[k] = history.Find(k, dtype, shape);
    if (set.addresses[k] == nullptr && set.bytes > 0) return false;
  }
  return true;
}

void NativeLoop::SetState(int parameter, int result, const Tensor& start) {
  SetFixed(parameter, start);
  parameters_[parameter].kind = kState;
  parameters_[parameter].source = ValueOf(result);
}

void NativeLoop::WriteResult(int result, const Walk& to) {
  const int value = ValueOf(result);
  writes_.push_back({value, BytesOf(value), to});
}

void NativeLoop::WriteParameter(int parameter, const Walk& to) {
  writes_.push_back({parameter, BytesOf(parameter), to});
}

bool NativeLoop::AddResult(int result, Tensor* sum) {
  const int value = ValueOf(result);
  const auto add = AddFunction(sum->dtype());
  if (add == nullptr || BytesOf(value) != static_cast<int64_t>(sum->TotalBytes())) return false;
  sums_.push_back({value, add, sum});
  return true;
}

// The number of iterations after its own in which a state still is this value. (A state that never
// is another again was none of the values that are asked for.)
int NativeLoop::LivesFor(int value) const {
  int longest = 0;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].kind != kState || parameters_[p].source != value) continue;
    longest = std::max(longest, 1 + LivesFor(static_cast<int>(p)));
  }
  return longest;
}

void NativeLoop::FindHomes(int64_t begin) {
  const int num_parameters = static_cast<int>(parameters_.size());
  int64_t bytes = 0;
  for (int value = 0; value < static_cast<int>(at_.size()); ++value) {
    const bool is_output = value >= num_parameters;
    const bool is_scattered =
        !is_output && parameters_[value].kind == kPieces && parameters_[value].walk.num_blocks > 1;
    if (!is_output && !is_scattered) continue;
    Home home;
    home.value = value;
    home.bytes = BytesOf(value);
    const auto lives_in = [](const Write& write) {
      return write.to.num_blocks == 1 && write.to.every == 1;
    };
    auto write = std::find_if(writes_.begin(), writes_.end(), [&](const Write& write) {
      return write.value == value && lives_in(write);
    });
    if (is_output && write != writes_.end()) {
      home.is_walk = true;
      home.walk = write->to;
      writes_.erase(write);
    } else if (is_output) {
      // Where the next iteration writes a state that is this value.
      write = std::find_if(writes_.begin(), writes_.end(), [&](const Write& write) {
        return write.value < num_parameters && parameters_[write.value].kind == kState &&
               parameters_[write.value].source == value && lives_in(write);
      });
      if (write != writes_.end()) {
        Copy(at_[write->value], home.bytes, write->to, IndexOf(begin));
        home.is_walk = true;
        home.walk = write->to;
        home.walk.base += reverse_ ? -write->to.step : write->to.step;
        writes_.erase(write);
      }
    }
    if (!home.is_walk) {
      home.num_buffers = 1 + LivesFor(value);
      bytes += home.num_buffers * Rounded(home.bytes);
    }
    homes_.push_back(home);
  }
  buffers_ = Buffer<char>(std::max<int64_t>(bytes, 1));
  char* at = buffers_.data();
  for (Home& home : homes_) {
    home.buffers = at;
    at += home.num_buffers * Rounded(home.bytes);
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

int64_t NativeLoop::Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped) {
  FindHomes(begin);
  RegionRun& run = *body_.run;
  const Region& region = body_.region();
  const int num_parameters = static_cast<int>(parameters_.size());
  std::vector<Cursor> cursors;
  std::vector<int> states;
  for (int p = 0; p < num_parameters; ++p) {
    const Parameter& parameter = parameters_[p];
    if (parameter.kind == kState && parameter.source != p) states.push_back(p);
    if (parameter.kind == kPieces && parameter.walk.num_blocks == 1) {
      cursors.push_back(CursorOf(p, parameter.walk, begin));
    }
  }
  for (const Home& home : homes_) {
    if (home.is_walk) cursors.push_back(CursorOf(home.value, home.walk, begin));
  }
  std::vector<std::pair<int, int>> inputs;  // of the program, that change, and their parameters
  for (size_t i = 0; i < region.inputs.size(); ++i) {
    const int p = region.inputs[i].source.index;
    if (parameters_[p].kind == kFixed) {
      run->SetInput(static_cast<int>(i), at_[p]);
    } else {
      inputs.push_back({static_cast<int>(i), p});
    }
  }
  run.RunPrologueOnce();
  bool fails = false;
  if (region.may_fail) run->SetOutput(static_cast<int>(region.outputs.size()), &fails);
  // Some tens of microseconds.
  constexpr int64_t kWork = 1 << 16;
  const int64_t patience = std::max<int64_t>(1, kWork / region.program->program().work());
  for (int64_t t = begin; t < end;) {
    if (is_stopped()) return t;
    for (const int64_t next = std::min(end, t + patience); t < next; ++t) {
      const int64_t index = IndexOf(t);
      for (Cursor& cursor : cursors) {
        at_[cursor.value] = cursor.at;
        cursor.at += cursor.step;
      }
      for (const int p : histories_) at_[p] = parameters_[p].addresses[index];
      for (Home& home : homes_) {
        if (!home.is_walk) NextBuffer(index, &home);
      }
      for (const auto& [i, p] : inputs) run->SetInput(i, at_[p]);
      for (int value = num_parameters; value < static_cast<int>(at_.size()); ++value) {
        run->SetOutput(value - num_parameters, const_cast<char*>(at_[value]));
      }
      run->Run();
      if (fails) return t;
      for (const Write& write : writes_) Copy(at_[write.value], write.bytes, write.to, index);
      for (const Sum& sum : sums_) sum.add(at_[sum.value], sum.sum);
      for (const int p : states) next_[p] = at_[parameters_[p].source];
      for (const int p : states) at_[p] = next_[p];
    }
  }
  return end;
}

NativeLoop::Cursor NativeLoop::CursorOf(int value, const Walk& walk, int64_t t) const {
  return {value, walk.At(IndexOf(t)), reverse_ ? -walk.step : walk.step};
}

// A buffer that no state is in any more, with the piece in it, if it is for one.
void NativeLoop::NextBuffer(int64_t index, Home* home) {
  char* const at = home->buffers + home->turn * Rounded(home->bytes);
  if (++home->turn == home->num_buffers) home->turn = 0;
  at_[home->value] = at;
  if (home->value >= static_cast<int>(parameters_.size()) || home->bytes == 0) return;
  const Walk& from = parameters_[home->value].walk;
  CopyBlocks(from.num_blocks, home->bytes, from.At(index), from.block_stride, at,
             home->bytes / from.num_blocks);
}

}  // namespace tf_ti
