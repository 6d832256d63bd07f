// Random calls of cc/compute's threads, several at a time, on a pool whose threads come at once,
// late, after the call, or never, or which leaves all work to the caller. Steps and pieces take a
// pause now and then. Each step of each part, and each piece, must be done once, in order, on what
// the others have left at the step before, and before the call returns, which no thread may delay
// that has not begun.

#include "cc/compute/recurrent/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cc/compute/pool_threads.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

using Work = std::function<void()>;

uint64_t Mix(uint64_t x) {
  x = (x ^ x >> 31) * 0x9e3779b97f4a7c15;
  return x ^ x >> 29;
}

void Sleep(int64_t microseconds) {
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
}

// Notes that a test takes must not order the threads: their order is what is tested.
constexpr std::memory_order kOrdersNothing = std::memory_order_relaxed;

enum Coming { kAtOnce, kLate, kAfterwards, kNever, kOnTheCaller };

// One after the other of random calls, of which all that they touch is gone as soon as they return.
class Caller {
 public:
  Caller(uint64_t seed, int64_t pause, Pool* pool)
      : seed_(seed), random_(seed), pause_(pause), pool_(pool) {}

  void Run(int64_t num_calls) {
    for (call_ = 0; call_ < num_calls; ++call_) {
      std::vector<Work> late;
      std::mutex mutex;  // of `late`: pieces that are cut in turn have threads invite others
      const Coming coming = static_cast<Coming>(random_.Int(kAtOnce, kOnTheCaller));
      const int64_t delay = random_.Int(0, pause_);
      const auto schedule = [&late, &mutex, coming, delay, pool = pool_](Work work) {
        if (coming == kAtOnce) pool->Schedule(std::move(work));
        if (coming == kOnTheCaller) work();  // as Eigen's pool does where its queue is full
        if (coming == kAfterwards) {
          const std::lock_guard<std::mutex> lock(mutex);
          late.push_back(std::move(work));
        }
        if (coming == kLate) {
          pool->Schedule([delay, work = std::move(work)] {
            Sleep(delay);
            work();
          });
        }
      };
      {
        PoolThreads threads(random_.Int(2, 8), schedule);
        const int64_t kind = random_.Int(0, 7);
        if (kind == 0) Invite(&threads);
        if (kind == 1 || kind == 2) RunPieces(&threads);
        if (kind > 2) RunSteps(&threads);
      }
      for (Work& work : late) pool_->Schedule(std::move(work));
    }
  }

  int64_t num_by_others() const { return num_by_others_; }

 private:
  // Of one call.
  struct Record {
    Record(int64_t num_steps, int64_t num_parts)
        : times(num_steps * num_parts), states{std::vector<uint64_t>(num_parts), {}} {
      states[1] = states[0];
    }

    std::vector<int> times;
    std::vector<uint64_t> states[2];  // before and after a step, in turns
    std::atomic<int64_t> num_wrong{0};
    std::atomic<int64_t> num_by_others{0};
    std::atomic<int64_t> num_asked{0};
    std::atomic<bool> is_cancelled{false};
    std::atomic<int64_t> num_after{0};  // steps begun since then
    std::atomic<bool> is_over{false};
  };

  void Expect(bool is_right, const char* what) {
    if (is_right || ++num_wrong_ > 5) return;
    ADD_FAILURE() << "seed " << seed_ << ", call " << call_ << ": " << what;
  }

  // Takes some microseconds, or a pause.
  void WorkFor(uint64_t salt) const {
    uint64_t number = Mix(salt);
    if (pause_ > 0 && number % 64 < 3) {
      return number % 64 == 0 ? Sleep(number / 64 % pause_) : std::this_thread::yield();
    }
    for (int64_t i = number / 64 % 4000; i > 0; --i) number = Mix(number);
    static std::atomic<uint64_t> last;
    last.store(number, kOrdersNothing);
  }

  void RunSteps(PoolThreads* threads) {
    const int64_t num_parts = random_.Int(1, 8), num_steps = random_.Int(0, 100);
    const int64_t num_meetings = random_.Int(0, 2) == 0 ? random_.Int(0, num_steps) : num_steps;
    const int64_t most_asked =
        random_.Int(0, 4) == 0 ? random_.Int(0, num_steps) : int64_t{1} << 40;
    const uint64_t salt = random_.Bits();
    const auto caller = std::this_thread::get_id();
    auto record = std::make_unique<Record>(num_steps, num_parts);
    const auto next_state = [&](int64_t step, int64_t part, const std::vector<uint64_t>& before) {
      uint64_t state = salt + step * num_parts + part;
      const bool is_meeting = step < num_meetings;
      for (int64_t p = is_meeting ? 0 : part; p < (is_meeting ? num_parts : part + 1); ++p) {
        state = Mix(state ^ before[p]);
      }
      return state;
    };
    auto steps = std::make_unique<Steps>();
    steps->num_steps = num_steps;
    steps->num_meetings = num_meetings;
    steps->goes_on = [&record, most_asked] {
      if (record->num_asked.fetch_add(1, kOrdersNothing) >= most_asked) {
        record->is_cancelled.store(true, kOrdersNothing);
      }
      return !record->is_cancelled.load(kOrdersNothing);
    };
    steps->work = [&, data = record.get()](int64_t step, int64_t part) {
      if (data->is_over.load(kOrdersNothing)) ++data->num_wrong;
      if (data->is_cancelled.load(kOrdersNothing)) data->num_after.fetch_add(1, kOrdersNothing);
      if (std::this_thread::get_id() != caller) data->num_by_others.fetch_add(1, kOrdersNothing);
      const bool is_meeting = step < num_meetings;
      for (int64_t p = 0; p < num_parts && step > 0; ++p) {
        if (data->is_cancelled.load(kOrdersNothing)) break;
        if ((is_meeting || p == part) && data->times[(step - 1) * num_parts + p] != 1) {
          ++data->num_wrong;
        }
      }
      data->states[(step + 1) % 2][part] = next_state(step, part, data->states[step % 2]);
      WorkFor(salt ^ (step * num_parts + part));
      ++data->times[step * num_parts + part];
    };
    tf_ti::RunSteps(*steps, num_parts, threads);
    record->is_over = true;

    Expect(record->num_wrong == 0, "a step came before another was over, or after the call");
    // A step of each thread, which had asked before, or all of one step by the calling thread.
    Expect(record->num_after <= 2 * num_parts, "steps went on after the call was cancelled");
    num_by_others_ += record->num_by_others;
    std::vector<uint64_t> states(num_parts), next(num_parts);
    for (int64_t step = 0; step < num_steps; ++step) {
      for (int64_t part = 0; part < num_parts; ++part) {
        const int times = record->times[step * num_parts + part];
        if (record->is_cancelled ? times > 1 : times != 1)
          Expect(false, "a step was not done once");
        next[part] = next_state(step, part, states);
      }
      states = next;
    }
    if (!record->is_cancelled) {
      Expect(record->states[num_steps % 2] == states, "a part has read what was not ready");
    }
    steps.reset();
    record.reset();
  }

  void RunPieces(PoolThreads* threads) {
    std::atomic<int64_t> num_wrong{0};
    RunPieces(threads, random_.Int(0, 100), random_.Bits(), &num_wrong);
    Expect(num_wrong == 0, "a piece was not done once");
  }

  // Some pieces are cut in turn.
  void RunPieces(PoolThreads* threads, int64_t count, uint64_t salt,
                 std::atomic<int64_t>* num_wrong) const {
    auto times = std::make_unique<std::vector<int>>(count);
    threads->Run(count, [&](int64_t piece) {
      WorkFor(salt ^ piece);
      if (Mix(salt + piece) % 16 == 0) RunPieces(threads, count / 8, salt ^ piece, num_wrong);
      ++(*times)[piece];
    });
    for (const int time : *times) *num_wrong += time != 1;
  }

  // Whoever is asked twice comes once.
  void Invite(PoolThreads* threads) {
    constexpr int64_t kCount = 8;
    struct Times {
      std::atomic<int> of[kCount] = {};
    };
    const auto times = std::make_shared<Times>();
    const auto invitation = threads->Invite(kCount, [times](int64_t i) {
      EXPECT_TRUE(i > 0 && i < kCount && times->of[i]++ == 0) << "guest " << i << " came twice";
    });
    Sleep(random_.Int(0, 100));
    invitation->Remind();
  }

  const uint64_t seed_;
  Random random_;
  const int64_t pause_;
  Pool* const pool_;
  int64_t call_ = 0;
  int64_t num_wrong_ = 0;
  int64_t num_by_others_ = 0;
};

void CallAtOnce(uint64_t seed, int64_t num_calls, int64_t pause) {
  constexpr int kCallers = 2, kThreads = 12;
  std::vector<std::unique_ptr<Caller>> callers;
  {
    Pool pool(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kCallers; ++i) {
      callers.push_back(std::make_unique<Caller>(seed + i, pause, &pool));
      threads.emplace_back(
          [=, caller = callers.back().get()] { caller->Run(num_calls / kCallers); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int64_t num_by_others = 0;
  for (const auto& caller : callers) num_by_others += caller->num_by_others();
  EXPECT_GT(num_by_others, 0);
}

// First: threads that have helped might still be there.
TEST(TeamTest, NobodyWaitsForThreadsThatComeWhenTheCallIsOver) {
  std::vector<Work> late;
  PoolThreads threads(8, [&](Work work) { late.push_back(std::move(work)); });
  const auto caller = std::this_thread::get_id();
  int64_t num_done = 0, num_expected = 0, num_by_others = 0;
  const auto work = [&](int64_t, int64_t) {
    num_by_others += std::this_thread::get_id() != caller;
    ++num_done;
  };
  for (int64_t num_parts = 2; num_parts <= 8; ++num_parts) {
    for (const int64_t num_meetings : {0, 30, 60}) {
      RunSteps({60, num_meetings, work, [] { return true; }}, num_parts, &threads);
      num_expected += 60 * num_parts;
    }
    threads.Run(num_parts, [&](int64_t piece) { work(0, piece); });
    num_expected += num_parts;
  }
  std::thread([&] {
    for (Work& one : late) one();
  }).join();
  EXPECT_FALSE(late.empty());
  EXPECT_EQ(num_done, num_expected);
  EXPECT_EQ(num_by_others, 0);
}

TEST(TeamTest, StepsWithoutPauses) { CallAtOnce(1, 2000, 0); }
TEST(TeamTest, StepsWithPauses) { CallAtOnce(2, 1000, 500); }
TEST(TeamTest, ManySteps) { CallAtOnce(3, 4000, 0); }

}  // namespace
}  // namespace tf_ti
