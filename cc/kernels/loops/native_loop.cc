#include "cc/kernels/loops/native_loop.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "cc/compute/loops/blocks.h"
#include "cc/kernels/elements.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_ti {

using tensorflow::Tensor;

namespace {

template <typename T, typename S = T>
void Add(int64_t elements, const char* value, char* sum) {
  AddTo(elements, reinterpret_cast<const T*>(value), reinterpret_cast<S*>(sum));
}

using AddFunction = void (*)(int64_t, const char*, char*);
// The functions that add a value to a sum, and a sum to a sum; null where the type has no sums.
std::pair<AddFunction, AddFunction> AddFunctions(tensorflow::DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return {Add<float>, Add<float>};
    case tensorflow::DT_DOUBLE:
      return {Add<double>, Add<double>};
    case tensorflow::DT_HALF:
      return {Add<Eigen::half, float>, Add<float>};
    case tensorflow::DT_BFLOAT16:
      return {Add<Eigen::bfloat16, float>, Add<float>};
    case tensorflow::DT_INT32:
      return {Add<int32_t>, Add<int32_t>};
    case tensorflow::DT_INT64:
      return {Add<int64_t>, Add<int64_t>};
    default:
      return {nullptr, nullptr};
  }
}

}  // namespace

NativeLoop::NativeLoop(WholeBody* body, int num_parameters, int64_t last_index, bool reverse,
                       Parallel* parallel)
    : body_(*body),
      parallel_(parallel),
      num_parameters_(num_parameters),
      parameters_(num_parameters) {
  plan_.order = {last_index, reverse};
  plan_.values.assign(num_parameters, LoopValue::Fixed(nullptr, 0));
  std::iota(parameters_.begin(), parameters_.end(), 0);
  AddOutputs(body->region());
}

void NativeLoop::AddOutputs(const Region& region) {
  for (const Region::Array& output : region.outputs) {
    const int64_t size = tensorflow::DataTypeSize(output.dtype);
    plan_.values.push_back(LoopValue::Made(output.shape.num_elements() * size));
  }
}

int NativeLoop::ValueOf(int result) const {
  const int source = body_.body->whole[result];
  return source >= 0 ? num_parameters_ + source : parameters_[-1 - source];
}

void NativeLoop::SetFixed(int parameter, const Tensor& tensor) {
  plan_.values[parameter] = LoopValue::Fixed(Elements<char>(tensor), tensor.TotalBytes());
}

void NativeLoop::SetPieces(int parameter, const Walk& walk, int64_t bytes) {
  plan_.values[parameter] = LoopValue::Pieces(walk, bytes);
}

bool NativeLoop::SetHistory(int parameter, const History& history, tensorflow::DataType dtype,
                            const tensorflow::TensorShape& shape) {
  const int64_t bytes = shape.num_elements() * tensorflow::DataTypeSize(dtype);
  std::vector<const char*> addresses(history.size());
  for (int64_t k = 0; k < history.size(); ++k) {
    addresses[k] = history.Find(k, dtype, shape);
    if (addresses[k] == nullptr && bytes > 0) return false;
  }
  plan_.values[parameter] = LoopValue::Listed(std::move(addresses), bytes);
  return true;
}

void NativeLoop::SetCondition(WholeBody* condition, const std::vector<int>& parameters) {
  const int first_of_condition = static_cast<int>(plan_.values.size());
  AddOutputs(condition->region());
  const std::vector<int>& results = condition->body->whole;
  const auto value_of = [&](int result) {
    const int source = results[result];
    return source >= 0 ? first_of_condition + source : parameters[-1 - source];
  };
  const int num_given = static_cast<int>(results.size()) - 1;
  const int first_given = num_parameters_ - num_given;
  for (int k = 0; k < num_given; ++k) parameters_[first_given + k] = value_of(k + 1);
  plan_.condition = {&condition->region(), &*condition->run, parameters, first_of_condition};
  plan_.goes_on = value_of(0);
}

void NativeLoop::SetState(int parameter, int result, const Tensor& start) {
  const int source = ValueOf(result);
  if (source == parameter) return SetFixed(parameter, start);
  plan_.values[parameter] = LoopValue::State(source, Elements<char>(start), start.TotalBytes());
}

void NativeLoop::WriteResult(int result, const Walk& to) {
  plan_.writes.push_back({ValueOf(result), to});
}

void NativeLoop::WriteParameter(int parameter, const Walk& to) {
  plan_.writes.push_back({parameters_[parameter], to});
}

bool NativeLoop::AddResult(int result, tensorflow::DataType dtype, Tensor* sum) {
  const int value = ValueOf(result);
  const auto [add, add_sums] = AddFunctions(dtype);
  const int64_t size = tensorflow::DataTypeSize(dtype), elements = sum->NumElements();
  if (add == nullptr || plan_.values[value].bytes() != elements * size) return false;
  plan_.sums.push_back({value, add, add_sums, elements, size,
                        tensorflow::DataTypeSize(sum->dtype()), Elements<char>(sum)});
  return true;
}

void NativeLoop::KeepResult(int result) { kept_.push_back(ValueOf(result)); }

int64_t NativeLoop::Run(int64_t begin, int64_t end, const std::function<bool()>& is_stopped) {
  plan_.body = {&body_.region(), &*body_.run, parameters_, num_parameters_};
  const std::optional<Division> division = Divide(begin, end);
  if (division.has_value() && division->adds_lanes && begin == 0) {
    // In the first call of a shape the first iteration has run before there are groups. Its sums
    // are the same in all calls if it never runs in groups.
    runs_on_ = end > 1;
    return RunWhole(0, 1, is_stopped);
  }
  if (division.has_value()) {
    groups_ = NativeGroups::Make(plan_, division->lanes, division->programs.get(), division->size);
  }
  if (groups_ != nullptr) {
    if (groups_->Run(begin, end, parallel_, is_stopped)) {
      has_ended_ = groups_->has_ended();
      return now_ = groups_->now();
    }
    groups_.reset();
    if (is_stopped()) return now_ = begin;
  }
  return RunWhole(begin, end, is_stopped);
}

int64_t NativeLoop::RunWhole(int64_t begin, int64_t end, const std::function<bool()>& is_stopped) {
  whole_.emplace(std::move(plan_), begin);
  now_ = whole_->Run(end, parallel_, is_stopped);
  has_ended_ = whole_->has_ended();
  runs_on_ = runs_on_ && now_ == end;
  return now_;
}

// For each value, a number that it shares with the values that become it, or that it becomes, in
// later iterations: they are one array.
std::vector<int> NativeLoop::FindArrays() const {
  std::vector<int> arrays(plan_.values.size());
  std::iota(arrays.begin(), arrays.end(), 0);
  const auto root = [&](int value) {
    while (arrays[value] != value) value = arrays[value];
    return value;
  };
  for (size_t v = 0; v < arrays.size(); ++v) {
    const int source = plan_.values[v].source();
    if (source >= 0) arrays[root(static_cast<int>(v))] = root(source);
  }
  for (size_t v = 0; v < arrays.size(); ++v) arrays[v] = root(static_cast<int>(v));
  return arrays;
}

LoopPlan NativeLoop::PlanOfLanes(const std::vector<int>& arrays) const {
  LoopPlan plan;
  plan.is_whole.resize(arrays.size());
  const Region& region = body_.region();
  for (const Region::Array& input : region.inputs) {
    plan.inputs.push_back(arrays[parameters_[input.source.index]]);
  }
  std::vector<bool> is_value(arrays.size(), false);
  for (const LoopValue& value : plan_.values) {
    if (value.source() >= 0) is_value[value.source()] = true;
  }
  for (const LoopWrite& write : plan_.writes) is_value[write.value] = true;
  for (const int value : kept_) is_value[value] = true;
  for (size_t o = 0; o < region.outputs.size(); ++o) {
    const int value = num_parameters_ + static_cast<int>(o);
    plan.outputs.push_back(arrays[value]);
    plan.uses.push_back(is_value[value] ? LoopPlan::Use::kValue : LoopPlan::Use::kAdded);
  }
  if (region.may_fail) {
    plan.outputs.push_back(static_cast<int>(arrays.size()));
    plan.uses.push_back(LoopPlan::Use::kFailure);
    plan.is_whole.push_back(false);
  }
  if (plan_.condition.has_value()) {
    const NativeProgram& condition = *plan_.condition;
    for (const Region::Array& input : condition.region->inputs) {
      plan.is_whole[arrays[condition.parameters[input.source.index]]] = true;
    }
    for (size_t v = condition.first_output; v < arrays.size(); ++v) plan.is_whole[arrays[v]] = true;
    plan.is_whole[arrays[plan_.goes_on]] = true;
  }
  return plan;
}

// Tells how groups run iterations in less time than all lanes at once, if they do.
std::optional<NativeLoop::Division> NativeLoop::Divide(int64_t begin, int64_t end) const {
  const int64_t given = LanesInEnvironment();
  const int64_t iterations = IterationsOfGroups(begin, end, plan_.condition.has_value());
  const Program& program = plan_.body.run->program();
  // Saves the look at lanes where LanesOfGroup would have no groups.
  constexpr double kLeast = 60e3;  // nanoseconds
  const bool is_short = static_cast<double>(iterations) * (1 + program.time()) < kLeast;
  const bool is_off = given == 0 || (given < 0 && is_short);
  if (is_off || iterations < 1 || body_.region().lanes == nullptr) return std::nullopt;
  const std::vector<int> arrays = FindArrays();
  Division division;
  division.programs = body_.region().lanes->For(PlanOfLanes(arrays));
  const Lanes* const lanes = division.programs->lanes();
  if (lanes == nullptr) return std::nullopt;
  for (const int array : arrays) {
    division.lanes.strides.push_back(lanes->array_strides[array]);
    division.lanes.are_sums.push_back(false);
  }
  for (size_t o = 0; o < body_.region().outputs.size(); ++o) {
    division.lanes.are_sums[num_parameters_ + o] = lanes->is_sum[o];
  }
  division.adds_lanes =
      std::any_of(plan_.sums.begin(), plan_.sums.end(),
                  [&](const NativeSum& sum) { return division.lanes.are_sums[sum.value]; });
  // Sums over lanes depend on the groups, so these must not depend on how many threads there are.
  const int64_t threads = division.adds_lanes ? 0 : parallel_->num_threads();
  division.size =
      given > 0 ? given : LanesOfGroup(*lanes, program.num_instructions(), iterations, threads);
  VLOG(2) << body_.region().name << ": " << lanes->count << " lanes, in groups of " << division.size
          << " for " << iterations << " iterations; an iteration takes " << lanes->divided_time
          << " ns for all, and for each group " << lanes->shared_time << " ns and "
          << program.num_instructions() << " instructions";
  if (NumGroups(lanes->count, division.size) < 2) return std::nullopt;
  return division;
}

void NativeLoop::CopyValue(int value, int64_t t, int64_t bytes, char* to) const {
  if (bytes == 0) return;
  if (groups_ != nullptr) return groups_->Copy(value, t, bytes, to);
  std::memcpy(to, whole_->At(value, t), bytes);
}

}  // namespace tf_ti
