#include "cc/compute/recurrent/team.h"

#include <atomic>
#include <memory>
#include <thread>

namespace tf_ti {
namespace {

// A step, and a bit for each part whose own thread takes part in it, are one word.
constexpr uint64_t kOver = ~uint64_t{0};

// Counted from 1 in the word, as 0 is no step.
int64_t StepOf(uint64_t word) { return static_cast<int64_t>(word >> kMostParts) - 1; }
bool TakesPart(uint64_t word, int64_t part) { return (word >> part & 1) != 0; }

// Waits for something that takes microseconds, unless the thread that does it has lost its core.
template <typename Condition>
void SpinUntil(const Condition& condition) {
  constexpr int kSpins = 4000;
  for (int spin = 0; !condition(); ++spin) {
    if (spin >= kSpins) {
      std::this_thread::yield();
#if defined(__x86_64__)
    } else {
      __builtin_ia32_pause();
#endif
    }
  }
}

// What a thread writes lies in a cache line of its own.
struct alignas(64) Member {
  std::atomic<bool> has_come{false};
  std::atomic<int64_t> done{-1};  // its last step
  int64_t alone_from = -1;        // the step after which it needs to hear of no other
};

// It outlives the call for threads that come too late, and then nothing but the word is read.
struct State {
  alignas(64) std::atomic<uint64_t> word{0};  // of the step that is being done, or kOver
  const Steps& steps;
  Member members[kMostParts];
};

void Join(State* state, int64_t part) {
  Member& member = state->members[part];
  uint64_t last = state->word.load(std::memory_order_acquire);
  member.has_come.store(true, std::memory_order_release);
  while (last != kOver) {
    uint64_t word = last;
    SpinUntil([&] { return (word = state->word.load(std::memory_order_acquire)) != last; });
    last = word;
    if (word == kOver || !TakesPart(word, part)) continue;
    // The step, or all of them, cannot end without this thread.
    const Steps& steps = state->steps;
    if (StepOf(word) < steps.num_meetings) {
      steps.work(StepOf(word), part);
      member.done.store(StepOf(word), std::memory_order_release);
      continue;
    }
    for (int64_t step = member.alone_from; step < steps.num_steps && steps.goes_on(); ++step) {
      steps.work(step, part);
    }
    member.done.store(steps.num_steps, std::memory_order_release);
    return;
  }
}

}  // namespace

void RunSteps(const Steps& steps, int64_t num_parts, Parallel* parallel) {
  if (num_parts == 1) {
    for (int64_t step = 0; step < steps.num_steps && steps.goes_on(); ++step) steps.work(step, 0);
    return;
  }
  const std::shared_ptr<State> state(new State{{0}, steps, {}});
  parallel->Invite(num_parts, [state](int64_t part) { Join(state.get(), part); });
  const auto wait = [&](const Member& member, int64_t step) {
    SpinUntil([&] { return member.done.load(std::memory_order_acquire) == step; });
  };
  for (int64_t step = 0; step < steps.num_steps && steps.goes_on(); ++step) {
    const bool is_meeting = step < steps.num_meetings;
    uint64_t word = static_cast<uint64_t>(step + 1) << kMostParts;
    for (int64_t p = 1; p < num_parts; ++p) {
      Member& member = state->members[p];
      if (!member.has_come.load(std::memory_order_acquire)) continue;
      word |= uint64_t{1} << p;
      if (!is_meeting && member.alone_from < 0) member.alone_from = step;
    }
    state->word.store(word, std::memory_order_release);
    for (int64_t p = 0; p < num_parts; ++p) {
      if (!TakesPart(word, p)) steps.work(step, p);
    }
    for (int64_t p = 1; p < num_parts && is_meeting; ++p) {
      if (TakesPart(word, p)) wait(state->members[p], step);
    }
  }
  for (int64_t p = 1; p < num_parts; ++p) {
    if (state->members[p].alone_from >= 0) wait(state->members[p], steps.num_steps);
  }
  state->word.store(kOver, std::memory_order_release);
}

}  // namespace tf_ti
