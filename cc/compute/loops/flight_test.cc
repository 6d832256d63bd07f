#include "cc/compute/loops/flight.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

using State = FlightPlan::State;

uint64_t Mixed(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9e3779b97f4a7c15u + (hash >> 29);
}

// A loop over numbers: each unit mixes what it reads with an element of its iteration.
struct Case {
  FlightPlan plan;
  int64_t begin = 0;
  int64_t end = 0;
  int64_t ends_at = -1;   // the condition is false
  int64_t fails_at = -1;  // at this iteration, unit or state
  int failing_unit = -1;
  int failing_state = -1;
  int64_t misfits_at = -1;
  int misfitting_unit = -1;
};

Case RandomCase(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  Case made;
  FlightPlan& plan = made.plan;
  plan.units.resize(1 + below(6));
  plan.states.resize(below(4));
  for (int u = 0; u < static_cast<int>(plan.units.size()); ++u) {
    FlightPlan::Unit& unit = plan.units[u];
    for (int before = 0; before < u; ++before) {
      if (below(3) == 0) unit.after.push_back(before);
    }
    for (int s = 0; s < static_cast<int>(plan.states.size()); ++s) {
      if (below(3) == 0) unit.states.push_back(s);
    }
    unit.is_heavy = below(2) == 0;
    unit.is_shared = unit.is_heavy && below(2) == 0;
  }
  for (State& state : plan.states) {
    switch (below(4)) {
      case 0:
        state = {State::kStart, -1};
        break;
      case 1:
        state = {State::kState, below(static_cast<int>(plan.states.size()))};
        break;
      default:
        state = {State::kUnit, below(static_cast<int>(plan.units.size()))};
    }
  }
  plan.has_condition = below(2) == 0;
  for (int s = 0; s < static_cast<int>(plan.states.size()) && plan.has_condition; ++s) {
    if (below(2) == 0) plan.begin_reads.push_back(s);
  }
  made.begin = below(3);
  made.end = made.begin + below(20);
  const int64_t some = made.begin + below(20);
  switch (below(5)) {
    case 0:
      if (plan.has_condition) made.ends_at = some;
      break;
    case 1:
      made.fails_at = some;
      if (!plan.states.empty() && below(2) == 0) {
        made.failing_state = below(static_cast<int>(plan.states.size()));
      } else {
        made.failing_unit = below(static_cast<int>(plan.units.size()));
      }
      break;
    case 2:
      made.misfits_at = some;
      made.misfitting_unit = below(static_cast<int>(plan.units.size()));
      break;
    default:
      break;
  }
  return made;
}

struct Iteration {
  std::vector<uint64_t> units;
  std::vector<uint64_t> states;
};

// Runs a case, as a flight or one unit after the other.
class Loop : public FlightWork {
 public:
  Loop(const Case& given, int num_slots, int most_microseconds)
      : case_(given),
        num_slots_(num_slots),
        most_microseconds_(most_microseconds),
        slots_(num_slots + 1) {
    for (Iteration& slot : slots_) {
      slot.units.resize(given.plan.units.size());
      slot.states.resize(given.plan.states.size());
    }
    for (size_t s = 0; s < given.plan.states.size(); ++s) At(given.begin).states[s] = 100 + s;
  }

  Answer Begin(int64_t t) override {
    const int on_their_way = ++on_their_way_;
    EXPECT_LE(on_their_way, num_slots_);
    EXPECT_EQ(begun_++, t - case_.begin);
    if (t == case_.ends_at) {
      --on_their_way_;
      return kEnds;
    }
    return kGoesOn;
  }

  Answer Advance(int s, int64_t t) override {
    const State& state = case_.plan.states[s];
    if (t - 1 == case_.fails_at && s == case_.failing_state) return kFails;
    uint64_t value = t;
    if (state.from == State::kUnit) value = At(t - 1).units[state.index];
    if (state.from == State::kState) value = At(t - 1).states[state.index];
    At(t).states[s] = value;
    return kGoesOn;
  }

  Answer RunUnit(int u, int64_t t, bool has_all_threads) override {
    const FlightPlan::Unit& unit = case_.plan.units[u];
    EXPECT_TRUE(unit.is_shared || !has_all_threads);
    if (most_microseconds_ > 0) {
      const int64_t time = Mixed(u, t) % most_microseconds_;
      std::this_thread::sleep_for(std::chrono::microseconds(time));
    }
    uint64_t value = Mixed(u, t);
    for (const int before : unit.after) value = Mixed(value, At(t).units[before]);
    for (const int s : unit.states) value = Mixed(value, At(t).states[s]);
    At(t).units[u] = value;
    if (t == case_.fails_at && u == case_.failing_unit) return kFails;
    if (t == case_.misfits_at && u == case_.misfitting_unit) return kEnds;
    return kGoesOn;
  }

  Answer Leave(int64_t t) override {
    EXPECT_EQ(static_cast<int64_t>(left_.size()), t - case_.begin);
    left_.push_back(At(t));
    --on_their_way_;
    return kGoesOn;
  }

  Landing RunInOrder() {
    int64_t t = case_.begin;
    for (; t < case_.end; ++t) {
      if (t == case_.ends_at) return {t, false};
      for (size_t u = 0; u < case_.plan.units.size(); ++u) {
        const Answer answer = RunUnit(static_cast<int>(u), t, false);
        if (answer != kGoesOn) return {t, answer == kFails};
      }
      if (t + 1 == case_.end && !case_.plan.has_condition) {
        left_.push_back(At(t));
        continue;
      }
      for (size_t s = 0; s < case_.plan.states.size(); ++s) {
        if (Advance(static_cast<int>(s), t + 1) == kFails) return {t, true};
      }
      left_.push_back(At(t));
    }
    return {t, false};
  }

  const std::vector<Iteration>& left() const { return left_; }
  Iteration& At(int64_t t) { return slots_[t % slots_.size()]; }

 private:
  const Case case_;
  const int num_slots_;
  const int most_microseconds_;
  std::vector<Iteration> slots_;
  std::vector<Iteration> left_;
  std::atomic<int> on_their_way_{0};
  int64_t begun_ = 0;
};

void Check(const Case& given, int num_slots, int num_threads, int most_microseconds, Pool* pool) {
  Loop expected(given, num_slots, 0);
  const Landing landing = expected.RunInOrder();
  Loop loop(given, num_slots, most_microseconds);
  const auto schedule = [pool](std::function<void()> work) { pool->Schedule(std::move(work)); };
  const Landing found =
      Fly(given.plan, num_slots, given.begin, given.end, num_threads, schedule, &loop);
  EXPECT_EQ(found.next, landing.next);
  EXPECT_EQ(found.has_failed, landing.has_failed);
  ASSERT_EQ(loop.left().size(), expected.left().size());
  for (size_t k = 0; k < loop.left().size(); ++k) {
    EXPECT_EQ(loop.left()[k].units, expected.left()[k].units) << "iteration " << k;
    EXPECT_EQ(loop.left()[k].states, expected.left()[k].states) << "iteration " << k;
  }
  const bool has_states = given.plan.has_condition || found.next < given.end;
  if (!found.has_failed && has_states && found.next > given.begin) {
    EXPECT_EQ(loop.At(found.next).states, expected.At(found.next).states);
  }
}

TEST(Flight, RandomLoopsAreAsInOrder) {
  Pool pool(7);
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    const Case given = RandomCase(seed);
    const int num_slots = 1 + static_cast<int>(seed % 5);
    const int num_threads = 1 + static_cast<int>(seed / 5 % 8);
    Check(given, num_slots, num_threads, seed % 10 == 0 ? 300 : 0, &pool);
    if (HasFailure()) return;
  }
}

TEST(Flight, ThreadsThatNeverComeAreNotWaitedFor) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Case given = RandomCase(seed);
    Loop expected(given, 3, 0), loop(given, 3, 0);
    const Landing landing = expected.RunInOrder();
    std::vector<std::function<void()>> late;
    const auto schedule = [&](std::function<void()> work) { late.push_back(std::move(work)); };
    const Landing found = Fly(given.plan, 3, given.begin, given.end, 8, schedule, &loop);
    EXPECT_EQ(found.next, landing.next);
    for (const std::function<void()>& work : late) std::thread(work).join();
  }
}

TEST(Flight, APoolMayRunWhatItIsGivenAtOnce) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Case given = RandomCase(seed);
    Loop expected(given, 3, 0), loop(given, 3, 0);
    const Landing landing = expected.RunInOrder();
    const auto schedule = [](const std::function<void()>& work) { work(); };
    EXPECT_EQ(Fly(given.plan, 3, given.begin, given.end, 8, schedule, &loop).next, landing.next);
  }
}

// Sixteen threads that wait need no sixteen cores.
TEST(Flight, AMapOfUnitsThatWaitTakesTheTimeOfItsShare) {
  Case given;
  given.plan.units = {{{}, {}, true}};
  given.end = 64;
  Pool pool(15);
  class Waits : public FlightWork {
   public:
    Answer Begin(int64_t) override { return kGoesOn; }
    Answer Advance(int, int64_t) override { return kGoesOn; }
    Answer RunUnit(int, int64_t, bool) override {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        threads_.insert(std::this_thread::get_id());
      }
      return kGoesOn;
    }
    Answer Leave(int64_t) override { return kGoesOn; }
    size_t num_threads() const { return threads_.size(); }

   private:
    std::mutex mutex_;
    std::set<std::thread::id> threads_;
  } work;
  const auto schedule = [&](std::function<void()> help) { pool.Schedule(std::move(help)); };
  EXPECT_EQ(Fly(given.plan, 32, 0, given.end, 16, schedule, &work).next, 64);
  EXPECT_GT(work.num_threads(), 4u);
}

TEST(Flight, ASharedUnitThatIsAloneHasAllThreads) {
  class Counts : public FlightWork {
   public:
    Answer Begin(int64_t) override { return kGoesOn; }
    Answer Advance(int, int64_t) override { return kGoesOn; }
    Answer RunUnit(int, int64_t, bool has_all_threads) override {
      number += has_all_threads;
      return kGoesOn;
    }
    Answer Leave(int64_t) override { return kGoesOn; }
    int number = 0;
  };
  const auto nobody_comes = [](const std::function<void()>&) {};
  for (const bool is_shared : {false, true}) {
    FlightPlan plan;
    plan.units = {{{}, {}, true, is_shared}};
    Counts work;
    Fly(plan, 1, 0, 5, 4, nobody_comes, &work);
    EXPECT_EQ(work.number, is_shared ? 5 : 0);
    // The second of two is alone.
    plan.units = {{{}, {}, true, is_shared}, {{}, {}, true, is_shared}};
    Counts work_of_two;
    Fly(plan, 1, 0, 5, 4, nobody_comes, &work_of_two);
    EXPECT_EQ(work_of_two.number, is_shared ? 5 : 0);
  }
}

FlightPlan::Unit Heavy(std::vector<int> after, std::vector<int> states) {
  return {std::move(after), std::move(states), true};
}

TEST(Flight, AChainIsNotWorthwhile) {
  FlightPlan plan;
  plan.states = {{State::kUnit, 0}};
  plan.units = {Heavy({}, {0})};
  EXPECT_FALSE(plan.IsWorthwhile(4));
  // Another unit of the same chain does not change that.
  plan.units = {Heavy({}, {0}), Heavy({0}, {})};
  plan.states = {{State::kUnit, 1}};
  EXPECT_FALSE(plan.IsWorthwhile(4));
  // It may be at work while the next iteration goes on if nothing waits for it.
  plan.states = {{State::kUnit, 0}};
  EXPECT_TRUE(plan.IsWorthwhile(4));
  EXPECT_FALSE(plan.IsWorthwhile(1));
}

TEST(Flight, AChainOfEverySecondIterationIsWorthwhile) {
  FlightPlan plan;
  plan.states = {{State::kUnit, 0}, {State::kState, 0}};
  plan.units = {Heavy({}, {1})};
  EXPECT_TRUE(plan.IsWorthwhile(4));
  plan.units = {Heavy({}, {0, 1})};
  EXPECT_FALSE(plan.IsWorthwhile(4));
}

TEST(Flight, MapsAndPairsAreWorthwhile) {
  FlightPlan plan;
  plan.units = {Heavy({}, {})};
  EXPECT_TRUE(plan.IsWorthwhile(2));
  EXPECT_FALSE(plan.IsWorthwhile(1));
  plan.states = {{State::kUnit, 2}};
  plan.units = {Heavy({}, {0}), Heavy({}, {0}), {{0, 1}, {}, false}};
  EXPECT_TRUE(plan.IsWorthwhile(1));
}

TEST(Flight, ALoopWhoseConditionWaitsForItsBodyIsNotWorthwhile) {
  FlightPlan plan;
  plan.has_condition = true;
  plan.states = {{State::kUnit, 0}};
  plan.begin_reads = {0};
  plan.units = {Heavy({}, {}), Heavy({0}, {})};
  EXPECT_TRUE(plan.IsWorthwhile(4));
  plan.states = {{State::kUnit, 1}};
  EXPECT_FALSE(plan.IsWorthwhile(4));
}

}  // namespace
}  // namespace tf_ti
