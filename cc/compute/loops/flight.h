// Iterations of a loop that are on their way at once: a unit of work begins when the values that it
// reads are there, whichever iteration made them, and all threads that come work on ready units.
#ifndef TF_TI_CC_COMPUTE_LOOPS_FLIGHT_H_
#define TF_TI_CC_COMPUTE_LOOPS_FLIGHT_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace tf_ti {

// The units and states of an iteration, and the order among them.
struct FlightPlan {
  struct Unit {
    std::vector<int> after;   // units before it, of the same iteration
    std::vector<int> states;  // that it reads
    bool is_heavy = false;    // worth waking a thread for
    bool is_shared = false;   // worth all threads
  };
  // A value that an iteration gets from the one before it.
  struct State {
    enum From { kUnit, kState, kStart };
    From from = kStart;  // kStart: it is there as soon as that iteration has begun
    int index = -1;      // of that unit, or state
  };

  std::vector<Unit> units;
  std::vector<State> states;
  std::vector<int> begin_reads;  // the states without which an iteration cannot begin
  bool has_condition = false;    // an iteration's beginning may end the loop

  // True if two heavy units can ever be at work at once, of so many iterations.
  bool IsWorthwhile(int num_slots) const;
};

// Does the work of iterations. Calls for different units or iterations may come at the same time,
// but each call comes after the calls that it waits for. Nothing throws.
class FlightWork {
 public:
  enum Answer {
    kGoesOn,
    kEnds,  // this iteration does not belong to the flight, and none after it does
    kFails,
  };

  virtual ~FlightWork() = default;
  // One iteration begins after the other.
  virtual Answer Begin(int64_t t) = 0;
  // Hands a state to iteration `t`.
  virtual Answer Advance(int state, int64_t t) = 0;
  // With `has_all_threads` no heavy unit is at work, or ready, as this shared one begins.
  virtual Answer RunUnit(int unit, int64_t t, bool has_all_threads) = 0;
  // Ends an iteration whose units have all run, one iteration after the other.
  virtual Answer Leave(int64_t t) = 0;
};

struct Landing {
  int64_t next;     // the first iteration that has not been left; its states have been handed to it
  bool has_failed;  // the iteration `next` has
};

// Runs iterations from `begin`, whose states are there, to before `end`. At most `num_slots` of
// them are on their way; iteration t may take the memory of iteration t - num_slots - 1. With a
// condition iteration `end` gets its states too.
//
// The calling thread works too, and waits only for others that have begun. `schedule` has a thread
// of a thread pool call a function, sooner or later; no more than `num_threads` - 1 help at a time.
Landing Fly(const FlightPlan& plan, int num_slots, int64_t begin, int64_t end, int num_threads,
            const std::function<void(std::function<void()>)>& schedule, FlightWork* work);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_FLIGHT_H_
