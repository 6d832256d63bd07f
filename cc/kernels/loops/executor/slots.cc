#include "cc/kernels/loops/executor/slots.h"

#include <cstdint>
#include <utility>

#include "cc/compute/waiting.h"
#include "cc/kernels/loops/executor/own_cancellation.h"
#include "cc/kernels/loops/executor/units.h"
#include "cc/status.h"

namespace tf_ti {

using tensorflow::OpKernelContext;

namespace {

BodyFrame WithInvariantsOf(const BodyFrame& given) {
  BodyFrame frame;
  frame.parameters.resize(given.parameters.size());
  for (size_t p = 0; p < frame.parameters.size(); ++p) {
    if (given.invariant[p]) frame.parameters[p] = given.parameters[p];
  }
  frame.consumable.assign(given.parameters.size(), false);
  frame.invariant = given.invariant;
  frame.results.resize(given.results.size());
  return frame;
}

}  // namespace

ScheduleSlots::Slot::Slot(const Schedule& schedule, const BodyFrame& given)
    : frame(WithInvariantsOf(given)),
      values(schedule, &frame),
      values_left(schedule.values.size()),
      parameters_left(schedule.parameters.size()) {}

ScheduleSlots::ScheduleSlots(std::shared_ptr<StepRunner> steps,
                             std::shared_ptr<const CompiledBody> body, const BodyFrame& frame,
                             int count)
    : steps_(std::move(steps)), body_(std::move(body)), spares_(body_->regions.size()) {
  const Schedule& schedule = steps_->schedule();
  for (const CompiledBody::Unit& unit : body_->units) {
    Reads& reads = reads_.emplace_back();
    has_programs_ |= DependsOnShapes(unit);
    EachRead(schedule, *body_, unit, [&](const Source& source) {
      if (source.kind == Source::kValue) ++reads.values[source.index];
      if (source.kind == Source::kParameter) ++reads.parameters[source.index];
    });
  }
  value_reads_.resize(schedule.values.size());
  parameter_reads_.resize(schedule.parameters.size());
  for (const Reads& reads : reads_) {
    for (const auto [v, number] : reads.values) value_reads_[v] += number;
    for (const auto [p, number] : reads.parameters) parameter_reads_[p] += number;
  }
  for (int i = 0; i < count; ++i) slots_.push_back(std::make_unique<Slot>(schedule, frame));
}

void ScheduleSlots::Start(int number) {
  Slot& slot = *slots_[number];
  slot.values.SetConstants();
  slot.values_left = value_reads_;
  slot.parameters_left = parameter_reads_;
  for (size_t p = 0; p < parameter_reads_.size(); ++p) {
    if (slot.frame.invariant[p]) slot.values.SetParameter(static_cast<int>(p));
  }
}

bool ScheduleSlots::Set(int parameter, int number) {
  Slot& slot = *slots_[number];
  if (parameter < static_cast<int>(steps_->schedule().parameters.size())) {
    slot.values.SetParameter(parameter);
  }
  return !has_programs_ ||
         body_->parameters[parameter].IsSameSize(slot.frame.parameters[parameter].shape());
}

bool ScheduleSlots::Fits(int u, int number) const {
  return slots_[number]->values.Fits(body_->DecidedBy(body_->units[u]));
}

absl::Status ScheduleSlots::Run(int u, int number, bool has_all_threads) {
  return CatchOutOfMemory(kBodyInErrors, [&] {
    const int64_t start = Now();
    TF_RETURN_IF_ERROR(RunUnit(u, !has_all_threads, slots_[number].get()));
    body_->times->Keep(u, Now() - start);
    return absl::OkStatus();
  });
}

absl::Status ScheduleSlots::RunUnit(int u, bool is_inline, Slot* slot) {
  const CompiledBody::Unit& unit = body_->units[u];
  OpKernelContext::Params params = steps_->params();
  if (unit.region < 0) {
    Unguard(reads_[u], slot);
    const OwnCancellation own(&params);
    TF_RETURN_IF_ERROR(
        steps_->RunStep(steps_->schedule().steps[unit.step], is_inline, &params, &slot->values));
  } else {
    const Region& region = body_->regions[unit.region];
    Spares<RegionRun>& runs = spares_[unit.region];
    std::unique_ptr<RegionRun> run = runs.Take([&] { return std::make_unique<RegionRun>(region); });
    TF_RETURN_IF_ERROR(steps_->RunRegion(region, is_inline, &params, run.get(), &slot->values));
    runs.GiveBack(std::move(run));
  }
  Release(reads_[u], slot);
  return absl::OkStatus();
}

// A kernel may take the memory of a value that it reads once, as its last reader.
void ScheduleSlots::Unguard(const Reads& reads, Slot* slot) {
  Releases releases;
  const auto find = [](const std::map<int, int>& reads, const std::vector<int>& left,
                       std::vector<int>* found) {
    for (const auto [index, count] : reads) {
      if (count == 1 && left[index] == 1) found->push_back(index);
    }
  };
  const std::lock_guard<std::mutex> lock(slot->mutex);
  find(reads.values, slot->values_left, &releases.unguard_values);
  find(reads.parameters, slot->parameters_left, &releases.unguard_parameters);
  slot->values.Unguard(releases);
}

void ScheduleSlots::Release(const Reads& reads, Slot* slot) {
  Releases releases;
  const auto find = [](const std::map<int, int>& reads, std::vector<int>* left,
                       std::vector<int>* found) {
    for (const auto [index, count] : reads) {
      if (((*left)[index] -= count) == 0) found->push_back(index);
    }
  };
  const std::lock_guard<std::mutex> lock(slot->mutex);
  find(reads.values, &slot->values_left, &releases.release_values);
  find(reads.parameters, &slot->parameters_left, &releases.release_parameters);
  slot->values.Release(releases);
}

}  // namespace tf_ti
