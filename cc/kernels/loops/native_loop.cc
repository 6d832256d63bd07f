#include "cc/kernels/loops/native_loop.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cc/compute/loops/blocks.h"
#include "cc/compute/waiting.h"
#include "cc/kernels/elements.h"

namespace tf_ti {

using tensorflow::Tensor;

namespace {

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
      order_{last_index, reverse},
      values_(num_parameters, LoopValue::Fixed(nullptr, 0)),
      parameters_(num_parameters) {
  std::iota(parameters_.begin(), parameters_.end(), 0);
  AddOutputs(body->region());
}

void NativeLoop::AddOutputs(const Region& region) {
  for (const Region::Array& output : region.outputs) {
    const int64_t size = tensorflow::DataTypeSize(output.dtype);
    values_.push_back(LoopValue::Made(output.shape.num_elements() * size));
  }
}

int NativeLoop::ValueOf(int result) const {
  const int source = body_.body->whole[result];
  return source >= 0 ? num_parameters_ + source : parameters_[-1 - source];
}

void NativeLoop::SetFixed(int parameter, const Tensor& tensor) {
  values_[parameter] = LoopValue::Fixed(Elements<char>(tensor), tensor.TotalBytes());
}

void NativeLoop::SetPieces(int parameter, const Walk& walk, int64_t bytes) {
  values_[parameter] = LoopValue::Pieces(walk, bytes);
}

bool NativeLoop::SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape) {
  const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  std::vector<const char*> addresses(history.size());
  for (int64_t k = 0; k < history.size(); ++k) {
    addresses[k] = history.Find(k, dtype, shape);
    if (addresses[k] == nullptr && bytes > 0) return false;
  }
  values_[parameter] = LoopValue::Listed(std::move(addresses), bytes);
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
  const int first_given = num_parameters_ - num_given;
  for (int k = 0; k < num_given; ++k) parameters_[first_given + k] = value_of(k + 1);
  pointers_.Add(value_of(0), &goes_on_);
}

void NativeLoop::SetState(int parameter, int result, const Tensor& start) {
  const int source = ValueOf(result);
  if (source == parameter) return SetFixed(parameter, start);
  values_[parameter] = LoopValue::State(source, Elements<char>(start), start.TotalBytes());
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
  if (add == nullptr || values_[value].bytes() != bytes) return false;
  sums_.push_back({value, add, sum});
  return true;
}

int64_t NativeLoop::Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped) {
  FindHomes(begin);
  FindPointers(end);
  StartPrograms();
  RunIterations(begin, end, is_stopped);
  return now_;
}

void NativeLoop::FindHomes(int64_t begin) {
  homes_.emplace(std::move(values_), std::move(writes_), order_, begin);
  homes_->WriteStarts();
}

void NativeLoop::FindPointers(int64_t end) {
  FindPointersOf(parameters_, num_parameters_, &body_);
  if (condition_ != nullptr) {
    FindPointersOf(condition_parameters_, first_of_condition_, condition_);
  }
  FindCopies();
  for (Sum& sum : sums_) pointers_.Add(sum.value, &sum.from);
  pointers_.Start(&*homes_, end);
}

// The program's parameters are the values `parameters`.
void NativeLoop::FindPointersOf(const std::vector<int>& parameters, int first_output,
                                WholeBody* whole) {
  const auto add = [&](int value, const std::vector<ProgramRun::Pointer>& pointers) {
    for (const auto& [at, offset] : pointers) pointers_.Add(value, at, offset);
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

void NativeLoop::FindCopies() {
  // Pointers to elements of these do not change.
  before_.reserve(homes_->reads().size());
  after_.reserve(homes_->writes().size());
  for (const int value : homes_->reads()) {
    Copy& copy = before_.emplace_back(Copy{homes_->WalkOf(value), homes_->BytesOf(value)});
    pointers_.Add(value, &copy.at);
  }
  for (const LoopWrite& write : homes_->writes()) {
    Copy& copy = after_.emplace_back(Copy{write.to, homes_->BytesOf(write.value)});
    pointers_.Add(write.value, &copy.at);
  }
}

void NativeLoop::StartPrograms() {
  for (WholeBody* const whole : {condition_, &body_}) {
    if (whole == nullptr) continue;
    RegionRun& run = *whole->run;
    const Region& region = whole->region();
    if (region.may_fail) run->SetOutput(static_cast<int>(region.outputs.size()), &fails_);
    run.RunPrologueOnce();
  }
}

// Returns an estimate in nanoseconds, at least 1.
int64_t NativeLoop::IterationTime() const {
  int64_t time = 1 + body_.region().program->program().time();
  if (condition_ != nullptr) time += condition_->region().program->program().time();
  return time;
}

void NativeLoop::RunIterations(int64_t begin, int64_t end,
                               const std::function<bool()>& is_stopped) {
  constexpr int64_t kPatience = 50 * kMicrosecond;  // between two calls of is_stopped
  const int64_t patience = std::max<int64_t>(1, kPatience / IterationTime());
  now_ = begin;
  while (!is_stopped()) {
    for (const int64_t next = end - now_ > patience ? now_ + patience : end; now_ < next;) {
      if (!RunIteration() || ++now_ == end) return;
      pointers_.Next();
    }
  }
}

// Runs the iteration. Returns false if it cannot, or if the condition is false.
bool NativeLoop::RunIteration() {
  const int64_t index = order_.Of(now_);
  for (const Copy& copy : before_) copy.walk.Read(index, copy.bytes, copy.at);
  if (condition_ != nullptr) {
    if (!RunProgram(condition_)) return false;
    has_ended_ = !*goes_on_;
    if (has_ended_) return false;
  }
  if (!RunProgram(&body_)) return false;
  for (const Copy& copy : after_) copy.walk.Write(index, copy.bytes, copy.at);
  for (const Sum& sum : sums_) sum.add(sum.from, sum.sum);
  return true;
}

}  // namespace tf_ti
