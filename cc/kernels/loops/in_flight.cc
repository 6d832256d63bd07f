#include "cc/kernels/loops/in_flight.h"

#include <utility>

#include "tensorflow/core/framework/cancellation.h"

namespace tf_ti {

using tensorflow::Tensor;

LoopRun::InFlight::InFlight(LoopRun* run, std::unique_ptr<BodySlots> slots, int num_slots,
                            bool have_programs)
    : run_(*run),
      spec_(run->spec_),
      slots_(std::move(slots)),
      num_slots_(num_slots),
      kept_(num_slots, std::vector<Tensor>(run->frame_.parameters.size())),
      is_kept_(run->frame_.parameters.size(), false),
      is_moved_(spec_.back_edges.size()) {
  std::vector<int> num_readers(run->frame_.results.size());
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    ++num_readers[edge.from];
    // If a program was not made for an iteration's shapes, LoopRun goes on from that iteration.
    is_kept_[edge.to] = have_programs;
  }
  for (const LoopSpec::Output& output : spec_.outputs) {
    if (output.parameter >= 0) is_kept_[output.parameter] = true;
    if (output.result >= 0 && output.mode != OutputMode::kLast) ++num_readers[output.result];
  }
  for (size_t s = 0; s < is_moved_.size(); ++s) {
    is_moved_[s] = num_readers[spec_.back_edges[s].from] == 1;
  }
  BodyFrame& first = Frame(run_.iteration_);
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    first.parameters[edge.to] = std::move(run_.frame_.parameters[edge.to]);
    Keep(edge.to, run_.iteration_);
    slots_->Set(edge.to, SlotOf(run_.iteration_));
  }
}

FlightWork::Answer LoopRun::InFlight::Begin(int64_t t) {
  if (run_.ctx_->cancellation_manager() != nullptr &&
      run_.ctx_->cancellation_manager()->IsCancelled()) {
    return Fail(t, kCancelled,
                Catch([] { return absl::CancelledError("the loop was cancelled"); }));
  }
  Answer answer = kGoesOn;
  const absl::Status status = Catch([&] { return Enter(t, &answer); });
  return status.ok() ? answer : Fail(t, kEntering, status);
}

FlightWork::Answer LoopRun::InFlight::Advance(int state, int64_t t) {
  const LoopSpec::BackEdge& edge = spec_.back_edges[state];
  const absl::Status status = Catch([&] {
    Tensor& result = Frame(t - 1).results[edge.from];
    Tensor& parameter = Frame(t).parameters[edge.to];
    if (is_moved_[state]) {
      parameter = std::move(result);
    } else {
      parameter = result;
    }
    return run_.CheckParameter(edge.to, Frame(t));
  });
  if (!status.ok()) return Fail(t - 1, kLeaving, status);
  Keep(edge.to, t);
  return slots_->Set(edge.to, SlotOf(t)) ? kGoesOn : kEnds;
}

FlightWork::Answer LoopRun::InFlight::RunUnit(int unit, int64_t t, bool has_all_threads) {
  if (!slots_->Fits(unit, SlotOf(t))) return kEnds;
  const absl::Status status = slots_->Run(unit, SlotOf(t), has_all_threads);
  return status.ok() ? kGoesOn : Fail(t, unit, status);
}

FlightWork::Answer LoopRun::InFlight::Leave(int64_t t) {
  BodyFrame& frame = Frame(t);
  const absl::Status status = Catch([&] {
    for (size_t i = 0; i < spec_.outputs.size(); ++i) {
      const int p = spec_.outputs[i].parameter;
      if (p >= 0) TF_RETURN_IF_ERROR(run_.Record(static_cast<int>(i), frame.parameters[p]));
    }
    return run_.PlaceResults(frame);
  });
  if (!status.ok()) return Fail(t, kLeaving, status);
  for (Tensor& result : frame.results) result = Tensor();
  for (size_t p = 0; p < frame.parameters.size(); ++p) {
    if (!frame.invariant[p]) frame.parameters[p] = Tensor();
  }
  for (Tensor& kept : kept_[SlotOf(t)]) kept = Tensor();
  ++run_.iteration_;
  return kGoesOn;
}

// The run goes on as if it had run the iterations one after the other.
absl::Status LoopRun::InFlight::Land(const Landing& landing) {
  if (landing.has_failed) {
    return failure_.at == kCancelled ? failure_.status : run_.AtIteration(failure_.status);
  }
  run_.done_ = run_.iteration_ == end_ || run_.iteration_ == run_.count();
  if (run_.done_ && !spec_.has_condition) return absl::OkStatus();
  BodyFrame& frame = Frame(landing.next);
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    run_.frame_.parameters[edge.to] = std::move(frame.parameters[edge.to]);
    run_.frame_.consumable[edge.to] = true;
  }
  // The next iteration's condition reads its elements again.
  for (InputState& state : run_.inputs_) state.entered = false;
  return absl::OkStatus();
}

FlightWork::Answer LoopRun::InFlight::Fail(int64_t t, int at, const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::make_pair(t, at) < std::make_pair(failure_.t, failure_.at) || failure_.status.ok()) {
    failure_ = {t, at, status};
  }
  return kFails;
}

// Keeps a second reference to a state unless a kernel may take its memory.
void LoopRun::InFlight::Keep(int p, int64_t t) {
  BodyFrame& frame = Frame(t);
  frame.consumable[p] = !is_kept_[p];
  if (is_kept_[p]) kept_[SlotOf(t)][p] = frame.parameters[p];
}

// The answer becomes kEnds if the condition is false, or if an element has another shape.
absl::Status LoopRun::InFlight::Enter(int64_t t, Answer* answer) {
  BodyFrame& frame = Frame(t);
  slots_->Start(SlotOf(t));
  if (spec_.has_condition) {
    TF_RETURN_IF_ERROR(run_.EnterCondition(t, &frame));
    TF_RETURN_IF_ERROR(run_.condition_frame_.runner->Run());
    bool goes_on = true;
    TF_RETURN_IF_ERROR(run_.LeaveCondition(&frame, &goes_on));
    if (!goes_on) {
      end_ = t;
      *answer = kEnds;
      return absl::OkStatus();
    }
  }
  TF_RETURN_IF_ERROR(run_.EnterElements(t, &frame));
  for (size_t p = 0; p < frame.parameters.size(); ++p) {
    const int parameter = static_cast<int>(p);
    const bool is_given = p >= spec_.inputs.size();
    if (!is_given && (frame.invariant[p] || spec_.inputs[p].back_edge)) continue;
    // The reader of a piece that is a copy lets go of it as the next iteration begins.
    if (!is_given) kept_[SlotOf(t)][p] = frame.parameters[p];
    if (!slots_->Set(parameter, SlotOf(t))) *answer = kEnds;
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
