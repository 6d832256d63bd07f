// Iterations of a loop that are on their way at once.
#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/compute/waiting.h"
#include "cc/kernels/loops/loop_run.h"
#include "cc/kernels/threads.h"
#include "cc/status.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace tf_ti {

using tensorflow::Tensor;
using tensorflow::TensorShape;

// Does the work of a flight.
class LoopRun::InFlight : public FlightWork {
 public:
  InFlight(LoopRun* run, std::unique_ptr<BodyLanes> lanes, int num_lanes, bool have_programs)
      : run_(*run),
        spec_(run->spec_),
        lanes_(std::move(lanes)),
        num_lanes_(num_lanes),
        kept_(num_lanes, std::vector<Tensor>(run->frame_.parameters.size())),
        is_kept_(run->frame_.parameters.size(), false),
        is_moved_(spec_.back_edges.size()) {
    std::vector<int> num_readers(run->frame_.results.size());
    for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
      ++num_readers[edge.from];
      // Another way goes on from an iteration whose shapes a program was not made for.
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
      lanes_->Set(edge.to, LaneOf(run_.iteration_));
    }
  }

  Answer Begin(int64_t t) override {
    if (run_.ctx_->cancellation_manager() != nullptr &&
        run_.ctx_->cancellation_manager()->IsCancelled()) {
      return Fail(t, kCancelled,
                  Catch([] { return absl::CancelledError("the loop was cancelled"); }));
    }
    Answer answer = kGoesOn;
    const absl::Status status = Catch([&] { return Enter(t, &answer); });
    return status.ok() ? answer : Fail(t, kEntering, status);
  }

  Answer Advance(int state, int64_t t) override {
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
    return lanes_->Set(edge.to, LaneOf(t)) ? kGoesOn : kEnds;
  }

  Answer RunUnit(int unit, int64_t t, bool has_all_threads) override {
    if (!lanes_->Fits(unit, LaneOf(t))) return kEnds;
    const absl::Status status = lanes_->Run(unit, LaneOf(t), has_all_threads);
    return status.ok() ? kGoesOn : Fail(t, unit, status);
  }

  Answer Leave(int64_t t) override {
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
    for (Tensor& kept : kept_[LaneOf(t)]) kept = Tensor();
    ++run_.iteration_;
    return kGoesOn;
  }

  // Goes on as after an iteration of its own.
  absl::Status Land(const Landing& landing) {
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
    // What the condition has read already is read again.
    for (InputState& state : run_.inputs_) state.entered = false;
    return absl::OkStatus();
  }

 private:
  // The order of an iteration's errors, among the numbers of units.
  static constexpr int kCancelled = -2;
  static constexpr int kEntering = -1;
  static constexpr int kLeaving = std::numeric_limits<int>::max();

  struct Failure {
    int64_t t = std::numeric_limits<int64_t>::max();
    int at = kLeaving;
    absl::Status status;
  };

  int LaneOf(int64_t t) const { return static_cast<int>(t % num_lanes_); }
  BodyFrame& Frame(int64_t t) { return lanes_->frame(LaneOf(t)); }

  template <typename Function>
  absl::Status Catch(const Function& function) const {
    return CatchOutOfMemory(run_.ctx_->op_kernel().type_string(), function);
  }

  Answer Fail(int64_t t, int at, const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::make_pair(t, at) < std::make_pair(failure_.t, failure_.at) || failure_.status.ok()) {
      failure_ = {t, at, status};
    }
    return kFails;
  }

  // A kernel may take the memory of a state that nobody else needs.
  void Keep(int p, int64_t t) {
    BodyFrame& frame = Frame(t);
    frame.consumable[p] = !is_kept_[p];
    if (is_kept_[p]) kept_[LaneOf(t)][p] = frame.parameters[p];
  }

  // The answer becomes kEnds if the condition is false, or if an element has another shape.
  absl::Status Enter(int64_t t, Answer* answer) {
    BodyFrame& frame = Frame(t);
    lanes_->Start(LaneOf(t));
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
      if (!is_given) kept_[LaneOf(t)][p] = frame.parameters[p];
      if (!lanes_->Set(parameter, LaneOf(t))) *answer = kEnds;
    }
    return absl::OkStatus();
  }

  LoopRun& run_;
  const LoopSpec& spec_;
  const std::unique_ptr<BodyLanes> lanes_;
  const int num_lanes_;
  std::vector<std::vector<Tensor>> kept_;  // of each lane, further references
  std::vector<char> is_kept_;              // for each parameter
  std::vector<char> is_moved_;  // for each back edge, true if nobody else reads its result
  int64_t end_ = -1;            // the iteration that the condition keeps from beginning
  std::mutex mutex_;            // guards failure_
  Failure failure_;
};

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
  int64_t num_lanes = std::min(num_threads + 1, left);
  if (spec_.parallel_iterations > 0) num_lanes = std::min(num_lanes, spec_.parallel_iterations);
  const BodyUnits units = frame_.runner->Units();
  const FlightPlan plan = PlanOf(units);
  if (!plan.IsWorthwhile(static_cast<int>(num_lanes))) {
    frame_.runner->SetLight();
    return absl::OkStatus();
  }
  body_.has_flown = true;
  return Fly(plan, units.have_programs, static_cast<int>(num_lanes), schedule);
}

absl::Status LoopRun::Fly(const FlightPlan& plan, bool have_programs, int num_lanes,
                          const std::function<void(std::function<void()>)>& schedule) {
  const tsl::profiler::TraceMe trace(
      [&] {
        return tsl::profiler::TraceMeEncode("TfTi>TensorIterator iterations at once",
                                            {{"first", iteration_}, {"most", num_lanes}});
      },
      tsl::profiler::kInfo);
  const int64_t end = count() < 0 ? std::numeric_limits<int64_t>::max() - num_lanes : count();
  const int num_threads = static_cast<int>(ThreadsOf(*ctx_->device()).num_threads());
  const int num_frames = num_lanes + 1;
  const int64_t begin = iteration_;
  InFlight work(this, frame_.runner->MakeLanes(num_frames), num_frames, have_programs);
  const Landing landing = tf_ti::Fly(plan, num_lanes, begin, end, num_threads, schedule, &work);
  if (iteration_ > begin) frame_.runner->KeepUnits();
  return work.Land(landing);
}

}  // namespace tf_ti
