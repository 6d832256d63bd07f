// Waiting between threads. Mostly it takes microseconds, less than falling asleep and waking up.
// But a thread that has lost its core takes milliseconds.
#ifndef TF_TI_CC_COMPUTE_WAITING_H_
#define TF_TI_CC_COMPUTE_WAITING_H_

#include <chrono>
#include <cstdint>
#include <thread>

namespace tf_ti {

constexpr int64_t kMicrosecond = 1000;  // in nanoseconds, as all times are

// The time since some fixed point.
inline int64_t Now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
}

// Returns true if the condition comes true within that time, during which the thread stays awake.
template <typename Condition>
bool SpinUntil(const Condition& condition, int64_t time) {
  // So few that reading the clock, which takes tens of nanoseconds, does not delay the answer.
  constexpr int kSpins = 8;
  int64_t end = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (condition()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    const int64_t now = Now();
    if (end == 0) end = now + time;
    if (now >= end) return condition();
  }
}

// Leaves the core to others for a while.
inline void Nap() { std::this_thread::sleep_for(std::chrono::microseconds(50)); }

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_WAITING_H_
