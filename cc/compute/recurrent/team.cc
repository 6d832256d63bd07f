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
};

// It outlives the call for threads that come too late.
struct State {
  alignas(64) std::atomic<uint64_t> word{0};  // of the step that is being done, or kOver
  const std::function<void(int64_t, int64_t)>* work = nullptr;
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
    // The step cannot end without this thread.
    (*state->work)(StepOf(word), part);
    member.done.store(StepOf(word), std::memory_order_release);
  }
}

}  // namespace

void RunSteps(int64_t num_steps, int64_t num_parts,
              const std::function<void(int64_t, int64_t)>& work,
              const std::function<bool()>& goes_on, Parallel* parallel) {
  const auto state = std::make_shared<State>();
  state->work = &work;
  parallel->Invite(num_parts, [state](int64_t part) { Join(state.get(), part); });
  for (int64_t step = 0; step < num_steps && goes_on(); ++step) {
    uint64_t word = static_cast<uint64_t>(step + 1) << kMostParts;
    for (int64_t p = 1; p < num_parts; ++p) {
      if (state->members[p].has_come.load(std::memory_order_acquire)) word |= uint64_t{1} << p;
    }
    state->word.store(word, std::memory_order_release);
    for (int64_t p = 0; p < num_parts; ++p) {
      if (!TakesPart(word, p)) work(step, p);
    }
    for (int64_t p = 1; p < num_parts; ++p) {
      if (!TakesPart(word, p)) continue;
      const Member& member = state->members[p];
      SpinUntil([&] { return member.done.load(std::memory_order_acquire) == step; });
    }
  }
  state->word.store(kOver, std::memory_order_release);
}

}  // namespace tf_ti
