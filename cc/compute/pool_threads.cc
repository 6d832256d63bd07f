#include "cc/compute/pool_threads.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <new>
#include <thread>
#include <utility>

#include "cc/compute/float_mode.h"
#include "cc/compute/waiting.h"

namespace tf_ti {
namespace {

// Pieces of work that any thread may take. It outlives the call for threads that come too late.
class Pieces {
 public:
  Pieces(int64_t count, const std::function<void(int64_t)>& work) : count_(count), work_(&work) {}

  // Takes pieces until none is left.
  void Work(Invitation* invitation) noexcept {
    int64_t finished = 0;
    for (int64_t k; (k = next_.fetch_add(1)) < count_; ++finished) {
      Do(k);
      if (invitation != nullptr) invitation->Remind();
    }
    if (finished > 0 && done_.fetch_add(finished) + finished == count_) all_done_.set_value();
  }

  // Waits until all pieces are over, and throws the exception of the first piece that failed.
  void Wait() {
    // Longer than most pieces take, shorter than it takes to fall asleep and be woken.
    if (!SpinUntil([this] { return done_.load() == count_; }, 20 * kMicrosecond)) {
      all_done_.get_future().wait();
    }
    if (has_failed_) std::rethrow_exception(std::exchange(exception_, nullptr));
  }

 private:
  // An exception here would leave other threads with work that is gone.
  void Do(int64_t k) noexcept {
    if (has_failed_.load(std::memory_order_relaxed)) return;
    try {
      (*work_)(k);
    } catch (...) {
      if (!has_failed_.exchange(true)) exception_ = std::current_exception();
    }
  }

  const int64_t count_;
  const std::function<void(int64_t)>* const work_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<bool> has_failed_{false};
  std::exception_ptr exception_;  // of the thread that has set has_failed_
  // A std::condition_variable of GCC 12 would ask for the libstdc++ of GCC 12.
  std::promise<void> all_done_;
};

// Threads that have just helped, and wait a little for more before they go back to their thread
// pool: one that sleeps takes tens of microseconds to wake up, or milliseconds on a busy virtual
// machine.
class Idle {
 public:
  using Work = std::function<void()>;

  // Has an idle thread do the work, if there is one.
  bool Give(const Work& work) {
    for (std::atomic<const Work*>& place : places_) {
      const Work* expected = &kNothing;
      if (place.load(std::memory_order_relaxed) != expected) continue;
      const Work* const given = new Work(work);
      if (place.compare_exchange_strong(expected, given)) return true;
      delete given;
    }
    return false;
  }

  // Does the work, and any that it is given meanwhile.
  void Do(const Work& work) {
    int64_t patience = DoOne(work);
    while (const std::unique_ptr<const Work> next{Wait(patience)}) patience = DoOne(*next);
  }

 private:
  static const Work kNothing;

  // Does the work, and returns how long to wait after it. Between two ops that share their work, a
  // graph mostly takes less. A thread that came for nothing goes.
  int64_t DoOne(const Work& work) {
    constexpr int64_t kNothingTakes = 5 * kMicrosecond;
    const int64_t start = Now();
    work();
    const int64_t end = Now();
    if (end - start < kNothingTakes || AreCoresWanted(end)) return 0;
    return std::clamp((end - start) / 10, 60 * kMicrosecond, 100 * kMicrosecond);
  }

  // Returns true if one of these threads has had to leave its core to another process or thread
  // lately. On a quiet machine that happens a few times a second.
  bool AreCoresWanted(int64_t now) {
    constexpr int64_t kLately = 20000 * kMicrosecond;
    thread_local int64_t num_switches = 0;
    rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage) == 0 && usage.ru_nivcsw != num_switches) {
      num_switches = usage.ru_nivcsw;
      wanted_until_.store(now + kLately, std::memory_order_relaxed);
    }
    return now < wanted_until_.load(std::memory_order_relaxed);
  }

  const Work* Wait(int64_t patience) {
    if (patience == 0) return nullptr;
    for (std::atomic<const Work*>& place : places_) {
      const Work* given = nullptr;
      if (!place.compare_exchange_strong(given, &kNothing)) continue;
      SpinUntil([&] { return place.load(std::memory_order_acquire) != &kNothing; }, patience);
      given = place.exchange(nullptr);
      return given == &kNothing ? nullptr : given;
    }
    return nullptr;
  }

  // Null: nobody is there; kNothing: somebody waits.
  std::atomic<const Work*> places_[16] = {};
  std::atomic<int64_t> wanted_until_{0};
};

const Idle::Work Idle::kNothing;
Idle idle;

// Starts the work on an idle thread, or on one of the thread pool.
void Start(const PoolThreads::Schedule& schedule, Idle::Work work) {
  if (idle.Give(work)) return;
  // A thread pool whose queue is full runs what it is given at once, on this thread. Nobody needs
  // that help: as a part of a team it would wait for itself.
  schedule([work = std::move(work), caller = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != caller) idle.Do(work);
  });
}

// Work for the threads that come: each piece for the first that comes for it. An idle thread may
// have come from another thread pool, or for another caller: so the caller's mode goes with it.
class Guests {
 public:
  Guests(int64_t count, std::function<void(int64_t)> join)
      : count_(count), join_(std::move(join)), has_come_(new std::atomic<bool>[count]) {
    for (int64_t i = 0; i < count; ++i) has_come_[i] = false;
  }

  int64_t count() const { return count_; }
  bool HasCome(int64_t i) const { return has_come_[i]; }

  void Come(int64_t i) noexcept {
    if (has_come_[i].exchange(true)) return;
    const ScopedFloatMode as_caller(mode_);
    join_(i);
  }

 private:
  const int64_t count_;
  const std::function<void(int64_t)> join_;
  const std::unique_ptr<std::atomic<bool>[]> has_come_;
  const FloatMode mode_;  // the caller's
};

class InvitationOfGuests : public Invitation {
 public:
  InvitationOfGuests(const PoolThreads::Schedule& schedule, std::shared_ptr<Guests> guests)
      : schedule_(schedule), guests_(std::move(guests)), start_(Now()) {
    Invite();
  }

  void Remind() override {
    constexpr int64_t kSoon = 50 * kMicrosecond;
    if (has_reminded_ || Now() - start_ < kSoon) return;
    has_reminded_ = true;
    Invite();
  }

 private:
  // Those who have been asked may be on their way: an exception would come too late for them.
  void Invite() noexcept {
    for (int64_t i = 1; i < guests_->count(); ++i) {
      if (guests_->HasCome(i)) continue;
      try {
        Start(schedule_, [guests = guests_, i] { guests->Come(i); });
      } catch (const std::bad_alloc&) {
        return;
      }
    }
  }

  const PoolThreads::Schedule& schedule_;
  const std::shared_ptr<Guests> guests_;
  const int64_t start_;
  bool has_reminded_ = false;
};

}  // namespace

PoolThreads::PoolThreads(int64_t num_threads, Schedule schedule)
    : num_threads_(num_threads), schedule_(std::move(schedule)) {}

void PoolThreads::Run(int64_t count, const std::function<void(int64_t)>& work) {
  RunLong(count, [&](int64_t k, const std::function<void()>&) { work(k); });
}

void PoolThreads::RunLong(
    int64_t count, const std::function<void(int64_t, const std::function<void()>& remind)>& work) {
  const int64_t threads = std::min(count, num_threads());
  std::shared_ptr<Pieces> pieces;
  std::unique_ptr<Invitation> invitation;
  const std::thread::id caller = std::this_thread::get_id();
  const std::function<void()> remind = [&] {
    if (std::this_thread::get_id() == caller && invitation != nullptr) invitation->Remind();
  };
  const std::function<void(int64_t)> piece = [&](int64_t k) { work(k, remind); };
  if (threads > 1) {
    try {
      pieces = std::make_shared<Pieces>(count, piece);
      invitation = Invite(threads, [pieces](int64_t) { pieces->Work(nullptr); });
    } catch (const std::bad_alloc&) {
      // Nobody has been asked.
    }
  }
  if (invitation == nullptr) {
    for (int64_t k = 0; k < count; ++k) piece(k);
    return;
  }
  pieces->Work(invitation.get());
  pieces->Wait();
}

std::unique_ptr<Invitation> PoolThreads::Invite(int64_t count, std::function<void(int64_t)> join) {
  return std::make_unique<InvitationOfGuests>(schedule_,
                                              std::make_shared<Guests>(count, std::move(join)));
}

}  // namespace tf_ti
