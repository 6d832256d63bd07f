#include "cc/kernels/loops/native_part.h"

#include <algorithm>

#include "cc/compute/waiting.h"

namespace tf_ti {

NativePart::NativePart(NativePlan plan, int64_t begin)
    : body_(std::move(plan.body)),
      condition_(std::move(plan.condition)),
      sums_(std::move(plan.sums)),
      order_(plan.order),
      homes_(std::move(plan.values), std::move(plan.writes), plan.order, begin),
      from_(sums_.size()),
      now_(begin) {
  homes_.WriteStarts();
  FindPointersOf(body_);
  if (condition_.has_value()) {
    FindPointersOf(*condition_);
    pointers_.Add(plan.goes_on, &goes_on_);
  }
  FindCopies();
  for (size_t i = 0; i < sums_.size(); ++i) pointers_.Add(sums_[i].value, &from_[i]);
}

// The program's parameters are values.
void NativePart::FindPointersOf(const NativeProgram& program) {
  const auto add = [&](int value, const std::vector<ProgramRun::Pointer>& pointers) {
    for (const auto& [at, offset] : pointers) pointers_.Add(value, at, offset);
  };
  RegionRun& run = *program.run;
  for (size_t i = 0; i < program.region->inputs.size(); ++i) {
    const int p = program.region->inputs[i].source.index;
    add(program.parameters[p], run->InputPointers(static_cast<int>(i)));
  }
  for (size_t i = 0; i < program.region->outputs.size(); ++i) {
    const int number = static_cast<int>(i);
    add(program.first_output + number, run->OutputPointers(number));
  }
}

void NativePart::FindCopies() {
  // Pointers to elements of these do not change.
  before_.reserve(homes_.reads().size());
  after_.reserve(homes_.writes().size());
  for (const int value : homes_.reads()) {
    Copy& copy = before_.emplace_back(Copy{homes_.WalkOf(value), homes_.BytesOf(value)});
    pointers_.Add(value, &copy.at);
  }
  for (const LoopWrite& write : homes_.writes()) {
    Copy& copy = after_.emplace_back(Copy{write.to, homes_.BytesOf(write.value)});
    pointers_.Add(write.value, &copy.at);
  }
}

void NativePart::StartProgram(const NativeProgram& program) {
  RegionRun& run = *program.run;
  const int num_outputs = static_cast<int>(program.region->outputs.size());
  if (program.region->may_fail) run->SetOutput(num_outputs, &fails_);
  run.RunPrologueOnce();
}

// Returns an estimate in nanoseconds, at least 1.
int64_t NativePart::IterationTime() const {
  int64_t time = 1 + body_.run->program().time();
  if (condition_.has_value()) time += condition_->run->program().time();
  return time;
}

int64_t NativePart::Run(int64_t end, Parallel* parallel, const std::function<bool()>& is_stopped) {
  constexpr int64_t kPatience = 50 * kMicrosecond;  // between two calls of is_stopped
  pointers_.Start(&homes_, end);
  if (condition_.has_value()) StartProgram(*condition_);
  StartProgram(body_);
  (*body_.run)->SetStop(&is_stopped);
  if (condition_.has_value()) (*condition_->run)->SetStop(&is_stopped);
  const int64_t patience = std::max<int64_t>(1, kPatience / IterationTime());
  while (!is_stopped()) {
    for (const int64_t next = end - now_ > patience ? now_ + patience : end; now_ < next;) {
      if (!RunIteration(parallel) || ++now_ == end) return now_;
      pointers_.Next();
    }
  }
  return now_;
}

// Runs the iteration. Returns false if it cannot, or if the condition is false.
bool NativePart::RunIteration(Parallel* parallel) {
  const int64_t index = order_.Of(now_);
  for (const Copy& copy : before_) copy.walk.Read(index, copy.bytes, copy.at);
  if (condition_.has_value()) {
    if (!RunProgram(*condition_, parallel)) return false;
    has_ended_ = !*goes_on_;
    if (has_ended_) return false;
  }
  if (!RunProgram(body_, parallel)) return false;
  for (const Copy& copy : after_) copy.walk.Write(index, copy.bytes, copy.at);
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].add(sums_[i].elements, from_[i], sums_[i].sum);
  return true;
}

}  // namespace tf_ti
