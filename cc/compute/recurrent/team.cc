#include "cc/compute/recurrent/team.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "cc/compute/waiting.h"

namespace tf_ti {
namespace {

// The progress of a part. Each step is claimed first, by the part's own thread or by the calling
// one. Each thread writes to cache lines of its own.
class alignas(64) Progress {
 public:
  // Twice the number of steps that are over, plus one while a thread does the next one.
  int64_t Get() const { return progress_.load(std::memory_order_acquire); }
  static int64_t StepOf(int64_t progress) { return progress / 2; }
  static bool IsClaimed(int64_t progress) { return progress % 2 != 0; }

  bool Claim(int64_t step) {
    int64_t before = 2 * step;
    return Get() == before &&
           progress_.compare_exchange_strong(before, before + 1, std::memory_order_acq_rel);
  }
  // To be called only by the thread that has claimed this step, or one before.
  void SetDone(int64_t step) { progress_.store(2 * (step + 1), std::memory_order_release); }

 private:
  std::atomic<int64_t> progress_{0};
};

// It outlives the call for threads that come too late. `steps` does not: a thread that has claimed
// a step may read them, as the call does not end before that step.
struct Shared {
  Shared(const Steps& steps) : num_steps(steps.num_steps), steps(steps) {}

  alignas(64) std::atomic<int64_t> num_open{0};  // steps that may be claimed
  const int64_t num_steps;
  const Steps& steps;
  Progress parts[kMostParts];
};

// Does the steps of a part that nobody else does, until all of it is over.
void Join(Shared* shared, int64_t part) {
  // The time after which a waiting thread leaves its core to others that want it, and after which
  // it sleeps.
  constexpr int64_t kAwake = 20 * kMicrosecond;
  constexpr int64_t kNearlyAwake = 200 * kMicrosecond;
  // The time after which the system might take the core away in the middle of a step, as others
  // wait for it. Between two steps nobody waits for this thread.
  constexpr int64_t kTurn = 1000 * kMicrosecond;
  Progress& own = shared->parts[part];
  int64_t turn = Now();
  int64_t last_time = 0;
  for (;;) {
    const int64_t progress = own.Get();
    const int64_t step = Progress::StepOf(progress);
    if (step >= shared->num_steps) return;
    const auto has_news = [&] {
      return own.Get() != progress || (!Progress::IsClaimed(progress) &&
                                       shared->num_open.load(std::memory_order_acquire) > step);
    };
    int64_t now = Now();
    const int64_t sleepy = now + std::max(kNearlyAwake, 2 * last_time);
    while (!SpinUntil(has_news, kAwake)) {
      now < sleepy ? std::this_thread::yield() : Nap();
      turn = now = Now();
    }
    if (now - turn > kTurn) {
      std::this_thread::yield();
      turn = now = Now();
    }
    if (!own.Claim(step)) continue;
    if (shared->steps.goes_on()) shared->steps.work(step, part);
    own.SetDone(step);
    last_time = Now() - now;
  }
}

// The calling thread's side.
class Team {
 public:
  Team(const Steps& steps, int64_t num_parts, Parallel* parallel)
      : steps_(steps),
        num_parts_(num_parts),
        shared_(new Shared(steps)),
        invitation_(parallel->Invite(
            num_parts, [shared = shared_](int64_t part) { Join(shared.get(), part); })) {}

  // Other threads may be in the middle of a step: an exception would free memory that they use.
  void Run() noexcept {
    int64_t step = 0;
    for (; step < steps_.num_meetings && steps_.goes_on(); ++step) {
      Meet(step);
      invitation_->Remind();
    }
    shared_->num_open.store(steps_.num_steps, std::memory_order_release);
    for (; step < steps_.num_steps && steps_.goes_on(); ++step) {
      const int64_t start = Now();
      steps_.work(step, 0);
      time_ = Now() - start;
      invitation_->Remind();
    }
    for (int64_t part = 1; part < num_parts_; ++part) FinishPart(part);
  }

 private:
  void Meet(int64_t step) {
    bool is_own[kMostParts];
    const auto claim = [&](int64_t part) { return shared_->parts[part].Claim(step); };
    for (int64_t p = 1; p < num_parts_; ++p) is_own[p] = is_late_[p] && claim(p);
    shared_->num_open.store(step + 1, std::memory_order_release);
    const int64_t start = Now();
    steps_.work(step, 0);
    for (int64_t p = 1; p < num_parts_; ++p) {
      if (!is_own[p] && !claim(p)) continue;
      steps_.work(step, p);
      shared_->parts[p].SetDone(step);
    }
    time_ = Now() - start;
    for (int64_t p = 1; p < num_parts_; ++p) Wait(step, p);
  }

  // Waits until that step of a part is done.
  void Wait(int64_t step, int64_t part) {
    const Progress& progress = shared_->parts[part];
    const auto is_over = [&] { return Progress::StepOf(progress.Get()) > step; };
    // Others may take twice as long as this thread did, and at least this long.
    constexpr int64_t kPatience = 50 * kMicrosecond;
    if (SpinUntil(is_over, std::max(kPatience, 2 * time_))) return;
    is_late_[part] = true;
    while (!is_over()) Nap();
  }

  // Waits for a part as long as its thread goes on, and does the rest.
  void FinishPart(int64_t part) {
    constexpr int64_t kBetweenSteps = kMicrosecond;
    Progress& progress = shared_->parts[part];
    for (;;) {
      const int64_t last = progress.Get();
      int64_t step = Progress::StepOf(last);
      if (step == steps_.num_steps) return;
      if (Progress::IsClaimed(last)) {
        Wait(step, part);
        SpinUntil([&] { return progress.Get() != last + 1; }, kBetweenSteps);
      } else if (progress.Claim(step)) {
        for (; step < steps_.num_steps && steps_.goes_on(); ++step) steps_.work(step, part);
        progress.SetDone(steps_.num_steps - 1);
      }
    }
  }

  const Steps& steps_;
  const int64_t num_parts_;
  const std::shared_ptr<Shared> shared_;
  const std::unique_ptr<Invitation> invitation_;
  bool is_late_[kMostParts] = {};  // true if this thread has waited for that part's in vain
  int64_t time_ = 0;               // of this thread's part of the last step
};

}  // namespace

void RunSteps(const Steps& steps, int64_t num_parts, Parallel* parallel) {
  if (num_parts > 1) return Team(steps, num_parts, parallel).Run();
  for (int64_t step = 0; step < steps.num_steps && steps.goes_on(); ++step) steps.work(step, 0);
}

}  // namespace tf_ti
