#include "cc/kernels/loops/executor/lanes.h"

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

ScheduleLanes::Lane::Lane(const Schedule& schedule, const BodyFrame& given)
    : frame(WithInvariantsOf(given)),
      values(schedule, &frame),
      values_left(schedule.values.size()),
      parameters_left(schedule.parameters.size()) {}

ScheduleLanes::ScheduleLanes(std::shared_ptr<StepRunner> steps,
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
  for (int i = 0; i < count; ++i) lanes_.push_back(std::make_unique<Lane>(schedule, frame));
}

void ScheduleLanes::Start(int number) {
  Lane& lane = *lanes_[number];
  lane.values.SetConstants();
  lane.values_left = value_reads_;
  lane.parameters_left = parameter_reads_;
  for (size_t p = 0; p < parameter_reads_.size(); ++p) {
    if (lane.frame.invariant[p]) lane.values.SetParameter(static_cast<int>(p));
  }
}

bool ScheduleLanes::Set(int parameter, int number) {
  Lane& lane = *lanes_[number];
  if (parameter < static_cast<int>(steps_->schedule().parameters.size())) {
    lane.values.SetParameter(parameter);
  }
  return !has_programs_ ||
         body_->parameters[parameter].IsSameSize(lane.frame.parameters[parameter].shape());
}

bool ScheduleLanes::Fits(int u, int number) const {
  return lanes_[number]->values.Fits(body_->DecidedBy(body_->units[u]));
}

absl::Status ScheduleLanes::Run(int u, int number, bool has_all_threads) {
  return CatchOutOfMemory(kBodyInErrors, [&] {
    const int64_t start = Now();
    TF_RETURN_IF_ERROR(RunUnit(u, !has_all_threads, lanes_[number].get()));
    body_->times->Keep(u, Now() - start);
    return absl::OkStatus();
  });
}

absl::Status ScheduleLanes::RunUnit(int u, bool is_inline, Lane* lane) {
  const CompiledBody::Unit& unit = body_->units[u];
  OpKernelContext::Params params = steps_->params();
  if (unit.region < 0) {
    Unguard(reads_[u], lane);
    const OwnCancellation own(&params);
    TF_RETURN_IF_ERROR(
        steps_->RunStep(steps_->schedule().steps[unit.step], is_inline, &params, &lane->values));
  } else {
    const Region& region = body_->regions[unit.region];
    Spares<RegionRun>& runs = spares_[unit.region];
    std::unique_ptr<RegionRun> run = runs.Take([&] { return std::make_unique<RegionRun>(region); });
    TF_RETURN_IF_ERROR(steps_->RunRegion(region, is_inline, &params, run.get(), &lane->values));
    runs.GiveBack(std::move(run));
  }
  Release(reads_[u], lane);
  return absl::OkStatus();
}

// A kernel may take the memory of a value that it reads once, as its last reader.
void ScheduleLanes::Unguard(const Reads& reads, Lane* lane) {
  Releases releases;
  const auto find = [](const std::map<int, int>& reads, const std::vector<int>& left,
                       std::vector<int>* found) {
    for (const auto [index, count] : reads) {
      if (count == 1 && left[index] == 1) found->push_back(index);
    }
  };
  const std::lock_guard<std::mutex> lock(lane->mutex);
  find(reads.values, lane->values_left, &releases.unguard_values);
  find(reads.parameters, lane->parameters_left, &releases.unguard_parameters);
  lane->values.Unguard(releases);
}

void ScheduleLanes::Release(const Reads& reads, Lane* lane) {
  Releases releases;
  const auto find = [](const std::map<int, int>& reads, std::vector<int>* left,
                       std::vector<int>* found) {
    for (const auto [index, count] : reads) {
      if (((*left)[index] -= count) == 0) found->push_back(index);
    }
  };
  const std::lock_guard<std::mutex> lock(lane->mutex);
  find(reads.values, &lane->values_left, &releases.release_values);
  find(reads.parameters, &lane->parameters_left, &releases.release_parameters);
  lane->values.Release(releases);
}

}  // namespace tf_ti
