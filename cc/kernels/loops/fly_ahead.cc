// Decides whether iterations of a loop are to be on their way at once, and has them run.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cc/compute/waiting.h"
#include "cc/kernels/loops/in_flight.h"
#include "cc/kernels/loops/loop_run.h"
#include "cc/kernels/threads.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace tf_ti {

using tensorflow::TensorShape;

bool LoopRun::MayFly() const {
  const bool is_between = !spec_.has_condition || in_condition_;
  const bool has_some_left = count() < 0 || count() - iteration_ > 1;
  return spec_.fuse && body_.is_pure && (condition_ == nullptr || condition_->is_pure) &&
         is_between && has_some_left;
}

std::vector<TensorShape> LoopRun::NextShapes() const {
  std::vector<TensorShape> shapes;
  for (size_t i = 0; i < spec_.inputs.size(); ++i) {
    const LoopSpec::Input& input = spec_.inputs[i];
    const bool is_past = input.is_sliced() && Index() >= inputs_[i].pieces.count;
    if (is_past || (input.mode == InputMode::kHistory && input.range.part_size > 0)) return {};
    shapes.push_back(NextShape(static_cast<int>(i)));
  }
  return shapes;
}

absl::Status LoopRun::Prepare(const tensorflow::FunctionLibraryRuntime::Options& options,
                              const Body& function, BodyFrame* frame) {
  if (frame->runner != nullptr) return absl::OkStatus();
  frame->only_prepares = true;
  const absl::Status status = ctx_->function_library()->RunSync(options, function.handle, frame);
  frame->only_prepares = false;
  function.programs = frame->programs;
  return status;
}

FlightPlan LoopRun::PlanOf(const BodyUnits& units) const {
  // Waking a thread takes as long.
  constexpr int64_t kHeavy = 30 * kMicrosecond;
  // A kernel wakes threads of its own, on the cores of the threads that wait for its end.
  constexpr int64_t kShared = 200 * kMicrosecond;
  FlightPlan plan;
  std::vector<int> state_of(frame_.parameters.size(), -1);
  for (size_t s = 0; s < spec_.back_edges.size(); ++s) {
    state_of[spec_.back_edges[s].to] = static_cast<int>(s);
  }
  for (const BodyUnits::Unit& unit : units.units) {
    FlightPlan::Unit& made = plan.units.emplace_back();
    made.after = unit.after;
    made.is_heavy = unit.time >= kHeavy;
    made.is_shared = unit.time >= kShared;
    for (const int p : unit.parameters) {
      if (state_of[p] >= 0) made.states.push_back(state_of[p]);
    }
  }
  for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
    FlightPlan::State& state = plan.states.emplace_back();
    const int maker =
        edge.from < static_cast<int>(units.makers.size()) ? units.makers[edge.from] : -1;
    const int passed_on =
        edge.from < static_cast<int>(units.passed_on.size()) ? units.passed_on[edge.from] : -1;
    if (maker >= 0) {
      state = {FlightPlan::State::kUnit, maker};
    } else if (passed_on >= 0 && state_of[passed_on] >= 0) {
      state = {FlightPlan::State::kState, state_of[passed_on]};
    }
  }
  plan.has_condition = spec_.has_condition;
  for (const int p : spec_.condition_inputs) {
    if (state_of[p] >= 0) plan.begin_reads.push_back(state_of[p]);
  }
  return plan;
}

absl::Status LoopRun::FlyAhead(const tensorflow::FunctionLibraryRuntime::Options& options,
                               const std::function<void(std::function<void()>)>& schedule) {
  // The first iteration takes longer than others do.
  constexpr int kFirstTimed = 1;
  constexpr int kMostTimed = 3;
  if (done_ || has_flown_) return absl::OkStatus();
  if (num_stepped_ == 0 && !body_.has_flown) return absl::OkStatus();
  if (!MayFly() || ThreadsOf(*ctx_->device()).num_threads() == 1) return absl::OkStatus();
  frame_.is_timed = false;
  TF_RETURN_IF_ERROR(Prepare(options, body_, &frame_));
  if (condition_ != nullptr) TF_RETURN_IF_ERROR(Prepare(options, *condition_, &condition_frame_));
  if (frame_.runner == nullptr || (condition_ != nullptr && condition_frame_.runner == nullptr)) {
    has_flown_ = true;  // another executor runs the body
    return absl::OkStatus();
  }
  const std::vector<TensorShape> shapes = NextShapes();
  const FoundUnits found = shapes.empty() ? FoundUnits::kNone : frame_.runner->FindUnits(shapes);
  if (found != FoundUnits::kTimed) {
    has_flown_ = found == FoundUnits::kLight || num_stepped_ > kMostTimed;
    frame_.is_timed = !has_flown_ && num_stepped_ >= kFirstTimed;
    return absl::OkStatus();
  }
  has_flown_ = true;
  const int64_t num_threads = ThreadsOf(*ctx_->device()).num_threads();
  const int64_t left = count() < 0 ? std::numeric_limits<int64_t>::max() : count() - iteration_;
  int64_t num_slots = std::min(num_threads + 1, left);
  if (spec_.parallel_iterations > 0) num_slots = std::min(num_slots, spec_.parallel_iterations);
  const BodyUnits units = frame_.runner->Units();
  const FlightPlan plan = PlanOf(units);
  if (!plan.IsWorthwhile(static_cast<int>(num_slots))) {
    frame_.runner->SetLight();
    return absl::OkStatus();
  }
  body_.has_flown = true;
  return Fly(plan, units.have_programs, static_cast<int>(num_slots), schedule);
}

absl::Status LoopRun::Fly(const FlightPlan& plan, bool have_programs, int num_slots,
                          const std::function<void(std::function<void()>)>& schedule) {
  const tsl::profiler::TraceMe trace(
      [&] {
        return tsl::profiler::TraceMeEncode("TfTi>TensorIterator iterations at once",
                                            {{"first", iteration_}, {"most", num_slots}});
      },
      tsl::profiler::kInfo);
  const int64_t end = count() < 0 ? std::numeric_limits<int64_t>::max() - num_slots : count();
  const int num_threads = static_cast<int>(ThreadsOf(*ctx_->device()).num_threads());
  const int num_frames = num_slots + 1;
  const int64_t begin = iteration_;
  InFlight work(this, frame_.runner->MakeSlots(num_frames), num_frames, have_programs);
  const Landing landing = tf_ti::Fly(plan, num_slots, begin, end, num_threads, schedule, &work);
  if (iteration_ > begin) frame_.runner->KeepUnits();
  return work.Land(landing);
}

}  // namespace tf_ti
