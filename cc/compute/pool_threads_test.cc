// Work on the threads of a thread pool. A thread has the floating-point mode of the thread that
// hands out the work, and its own mode again afterwards.

#include "cc/compute/pool_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

// The results of arithmetic by which modes differ.
struct Arithmetic {
  float up, down, subnormal, from_subnormal;

  static Arithmetic OfThisThread() {
    const volatile float one = 1, three = 3, half = 0.5f;
    const volatile float least = std::numeric_limits<float>::min();
    const volatile float subnormal = std::numeric_limits<float>::denorm_min();
    return {one / three, -one / three, least * half, subnormal / half};
  }

  bool operator==(const Arithmetic& other) const {
    return up == other.up && down == other.down && subnormal == other.subnormal &&
           from_subnormal == other.from_subnormal;
  }
};

void SetRandomMode(Random* random) {
  std::fesetround(random->Pick({FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}));
#if defined(__x86_64__)
  constexpr unsigned kFlushes = 1 << 15, kTakesForZero = 1 << 6;
  const unsigned others = __builtin_ia32_stmxcsr() & ~(kFlushes | kTakesForZero);
  __builtin_ia32_ldmxcsr(others |
                         random->Pick({0u, kFlushes, kTakesForZero, kFlushes | kTakesForZero}));
#endif
}

// Threads that each have another mode whenever work comes to them.
class OtherModes {
 public:
  explicit OtherModes(int num_threads)
      : threads_(num_threads,
                 [this](std::function<void()> work) {
                   pool_.Schedule([this, seed = seed_.fetch_add(1), work = std::move(work)] {
                     Random random(seed);
                     SetRandomMode(&random);
                     const Arithmetic own = Arithmetic::OfThisThread();
                     work();
                     if (!(Arithmetic::OfThisThread() == own)) ++num_left_changed_;
                   });
                 }),
        pool_(num_threads - 1) {}

  PoolThreads* get() { return &threads_; }
  int64_t num_left_changed() const { return num_left_changed_; }

 private:
  std::atomic<uint64_t> seed_{1};
  std::atomic<int64_t> num_left_changed_{0};
  PoolThreads threads_;
  Pool pool_;
};

// Counts work that was done in another mode than the caller's. The caller lets others come first.
class Watched {
 public:
  void Work() {
    if (!(Arithmetic::OfThisThread() == expected_)) ++num_wrong_;
    if (std::this_thread::get_id() != caller_) {
      ++num_by_others_;
      return;
    }
    constexpr std::chrono::milliseconds kPatience{20};
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (num_by_others_ == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  }

  int64_t num_wrong() const { return num_wrong_; }
  int64_t num_by_others() const { return num_by_others_; }

 private:
  const Arithmetic expected_ = Arithmetic::OfThisThread();
  const std::thread::id caller_ = std::this_thread::get_id();
  std::atomic<int64_t> num_wrong_{0};
  std::atomic<int64_t> num_by_others_{0};
};

// Two callers, whose modes change, share the threads that have just helped.
TEST(PoolThreadsTest, WorkHasTheModeOfTheThreadThatHandsItOut) {
  std::atomic<int64_t> num_by_others{0};
  OtherModes threads(4);
  const auto call = [&](uint64_t seed) {
    Random random(seed);
    for (int i = 0; i < 200; ++i) {
      SetRandomMode(&random);
      const Arithmetic own = Arithmetic::OfThisThread();
      Watched watched;
      threads.get()->Run(random.Int(2, 8), [&](int64_t) { watched.Work(); });
      ASSERT_EQ(watched.num_wrong(), 0) << "seed " << seed << ", call " << i;
      ASSERT_TRUE(Arithmetic::OfThisThread() == own) << "seed " << seed << ", call " << i;
      num_by_others += watched.num_by_others();
    }
  };
  std::thread first(call, 1), second(call, 2);
  first.join();
  second.join();
  EXPECT_GT(num_by_others, 0);
  EXPECT_EQ(threads.num_left_changed(), 0);
}

// A thread pool whose first thread never comes: others do, when they are asked.
class WithoutTheFirst {
 public:
  PoolThreads* get() { return &threads_; }

 private:
  std::atomic<int> num_asked_{0};
  PoolThreads threads_{2, [this](std::function<void()> work) {
                         if (num_asked_.fetch_add(1) > 0) pool_.Schedule(std::move(work));
                       }};
  Pool pool_{1};
};

TEST(PoolThreadsTest, ALongPieceRemindsThreadsThatHaveNotCome) {
  WithoutTheFirst threads;
  std::atomic<int> num_begun{0};
  threads.get()->RunLong(2, [&](int64_t, const std::function<void()>& remind) {
    // The piece ends only after the other one has begun, or after a time that no thread takes.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    ++num_begun;
    while (num_begun < 2 && std::chrono::steady_clock::now() < end) remind();
    EXPECT_EQ(num_begun, 2);
  });
}

TEST(PoolThreadsTest, EachLongPieceRunsOnce) {
  Random random(31);
  for (int i = 0; i < 200; ++i) {
    RealThreads threads(random.Int(1, 4));
    std::vector<std::atomic<int>> times(random.Int(0, 9));
    threads.RunLong(static_cast<int64_t>(times.size()),
                    [&](int64_t k, const std::function<void()>& remind) {
                      remind();
                      ++times[k];
                    });
    for (const std::atomic<int>& each : times) EXPECT_EQ(each, 1);
  }
}

}  // namespace
}  // namespace tf_ti
