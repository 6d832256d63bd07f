#include "cc/kernels/loops/executor/schedule_runner.h"

#include <cstdint>
#include <utility>

#include "cc/compute/waiting.h"
#include "cc/kernels/loops/executor/slots.h"
#include "cc/kernels/loops/executor/units.h"
#include "cc/status.h"

namespace tf_ti {

namespace {

// Kernels and programs may use all threads: only one runs at a time.
constexpr bool kIsInline = false;

}  // namespace

absl::Status ScheduledBody::Init(const tensorflow::LocalExecutorParams& params,
                                 const tensorflow::Graph& graph,
                                 std::vector<tensorflow::OpKernel*>* made) {
  TF_RETURN_IF_ERROR(MakeSchedule(params, graph, &schedule, made));
  CompiledBody body;
  for (size_t s = 0; s < schedule.steps.size(); ++s) {
    const Releases& releases = schedule.steps[s].releases;
    body.units.push_back({static_cast<int>(s), -1, {}, releases});
  }
  body.times = std::make_shared<UnitTimes>(body.units.size());
  kernels = std::make_shared<const CompiledBody>(std::move(body));
  return absl::OkStatus();
}

ScheduleRunner::ScheduleRunner(ScheduledBody* scheduled,
                               const tensorflow::LocalExecutorParams& local, LoopDevices* devices,
                               const tensorflow::Executor::Args& args, bool may_compile,
                               BodyFrame* frame)
    : schedule_(scheduled->schedule),
      kernels_(scheduled->kernels),
      may_compile_(may_compile),
      frame_(frame),
      steps_(std::make_shared<StepRunner>(schedule_, local, devices, args)),
      params_(steps_->params()),
      own_cancellation_(&params_),
      values_(schedule_, frame),
      adopted_(&scheduled->compiled) {}

absl::Status ScheduleRunner::Run() {
  const absl::Status status = CatchOutOfMemory(kBodyInErrors, [this] { return RunIteration(); });
  if (!status.ok()) values_.Clear();
  return status;
}

FoundUnits ScheduleRunner::FindUnits(const std::vector<tensorflow::TensorShape>& parameters) {
  if (!may_compile_) {
    found_ = kernels_;
  } else {
    const auto fits = [&](const CompiledBody& body) {
      for (size_t p = 0; p < body.parameters.size(); ++p) {
        const bool is_same = p >= parameters.size() || body.parameters[p].IsSameSize(parameters[p]);
        if (!is_same || body.stays[p] != frame_->invariant[p]) return false;
      }
      return true;
    };
    // Values that kernels make may have other shapes in a body that was compiled later.
    found_ = adopted_.Find(
        [&](const CompiledBody& body) { return body.times->AreKnown() && fits(body); });
    if (found_ == nullptr) found_ = adopted_.Find(fits);
  }
  if (found_ == nullptr) return FoundUnits::kNone;
  if (found_->times->AreLight()) return FoundUnits::kLight;
  return found_->times->AreKnown() ? FoundUnits::kTimed : FoundUnits::kNone;
}

BodyUnits ScheduleRunner::Units() const { return UnitsOf(schedule_, *found_); }

std::unique_ptr<BodySlots> ScheduleRunner::MakeSlots(int count) {
  return std::make_unique<ScheduleSlots>(steps_, found_, *frame_, count);
}

absl::Status ScheduleRunner::RunIteration() {
  for (size_t p = 0; p < schedule_.parameters.size(); ++p) {
    values_.SetParameter(static_cast<int>(p));
  }
  values_.SetConstants();
  return may_compile_ ? RunCompiled() : RunKernels();
}

absl::Status ScheduleRunner::RunKernels() {
  if (!may_compile_ && frame_->is_timed) return RunTimed(*kernels_);
  for (const Step& step : schedule_.steps) {
    TF_RETURN_IF_ERROR(RunStep(step, step.releases));
  }
  return absl::OkStatus();
}

// Runs all units, and keeps the time that each takes.
absl::Status ScheduleRunner::RunTimed(const CompiledBody& body) {
  for (size_t u = 0; u < body.units.size(); ++u) {
    const int64_t start = Now();
    TF_RETURN_IF_ERROR(RunUnit(body, body.units[u]));
    body.times->Keep(u, Now() - start);
  }
  return absl::OkStatus();
}

absl::Status ScheduleRunner::RunCompiled() {
  const auto fits = [this](const CompiledBody& body) {
    return body.Fits([this](size_t p) -> const auto& { return frame_->parameters[p].shape(); },
                     frame_->invariant);
  };
  if (body_ == nullptr || !fits(*body_)) UseBody(adopted_.Find(fits));
  if (body_ != nullptr) return RunUnits();
  return adopted_.MayAdopt() ? CompileRest(WithoutUnits()) : RunKernels();
}

absl::Status ScheduleRunner::RunUnits() {
  for (size_t u = 0; u < body_->units.size(); ++u) {
    const CompiledBody::Unit* unit = &body_->units[u];
    if (!values_.Fits(body_->DecidedBy(*unit))) {
      if (!UseOther(u)) return RunRest(u);
      unit = &body_->units[u];
    }
    const int64_t start = frame_->is_timed ? Now() : 0;
    TF_RETURN_IF_ERROR(RunUnit(*body_, *unit));
    if (frame_->is_timed) body_->times->Keep(u, Now() - start);
  }
  adopted_.Adopt(body_);
  return absl::OkStatus();
}

// Runs the units from `u` on where no body fits the values.
absl::Status ScheduleRunner::RunRest(size_t u) {
  if (!adopted_.MayAdopt()) return RunRestByKernels(u);
  CompiledBody rest = CutBefore(u, *body_);
  UseRegions(rest);
  return CompileRest(std::move(rest));
}

// Kernels also run the steps of regions.
absl::Status ScheduleRunner::RunRestByKernels(size_t u) {
  for (; u < body_->units.size(); ++u) {
    const CompiledBody::Unit& unit = body_->units[u];
    if (unit.region < 0) {
      TF_RETURN_IF_ERROR(RunStep(schedule_.steps[unit.step], unit.releases));
    } else {
      TF_RETURN_IF_ERROR(
          steps_->RunKernelsOf(body_->regions[unit.region], kIsInline, &params_, &values_));
      values_.Release(unit.releases);
    }
  }
  return absl::OkStatus();
}

absl::Status ScheduleRunner::RunUnit(const CompiledBody& body, const CompiledBody::Unit& unit) {
  if (unit.region < 0) return RunStep(schedule_.steps[unit.step], unit.releases);
  TF_RETURN_IF_ERROR(steps_->RunRegion(body.regions[unit.region], kIsInline, &params_,
                                       &runs_[unit.region], &values_));
  values_.Release(unit.releases);
  return absl::OkStatus();
}

absl::Status ScheduleRunner::RunStep(const Step& step, const Releases& releases) {
  values_.Unguard(releases);
  TF_RETURN_IF_ERROR(steps_->RunStep(step, kIsInline, &params_, &values_));
  values_.Release(releases);
  return absl::OkStatus();
}

void ScheduleRunner::UseBody(std::shared_ptr<const CompiledBody> body) {
  runs_.clear();
  body_ = std::move(body);
  if (body_ != nullptr) UseRegions(*body_);
}

void ScheduleRunner::UseRegions(const CompiledBody& body) {
  runs_.clear();
  for (const Region& region : body.regions) runs_.emplace_back(region);
}

// Finds a body for the rest of an iteration where a kernel has made an array of another shape than
// unit `u` was made for.
bool ScheduleRunner::UseOther(size_t u) {
  const auto shape_of = [this](size_t p) -> const auto& { return body_->parameters[p]; };
  auto found = adopted_.Find([&](const CompiledBody& body) {
    return body.Fits(shape_of, body_->stays) && AreAlikeUpTo(u, *body_, body) &&
           values_.Fits(body.DecidedBy(body.units[u]));
  });
  if (found == nullptr) return false;
  UseBody(std::move(found));
  return true;
}

CompiledBody ScheduleRunner::WithoutUnits() const {
  CompiledBody body;
  for (const auto& parameter : frame_->parameters) body.parameters.push_back(parameter.shape());
  body.stays = frame_->invariant;
  return body;
}

// Compiles the units that a body lacks while they run.
absl::Status ScheduleRunner::CompileRest(CompiledBody body) {
  TF_RETURN_IF_ERROR(CompileBody(schedule_, this, &body));
  body_ = adopted_.Add(std::move(body));
  return absl::OkStatus();
}

absl::Status ScheduleRunner::RunLast(const CompiledBody& body) {
  const CompiledBody::Unit& unit = body.units.back();
  if (unit.region >= 0) runs_.emplace_back(body.regions[unit.region]);
  return RunUnit(body, unit);
}

}  // namespace tf_ti
