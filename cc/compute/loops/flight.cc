#include "cc/compute/loops/flight.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "cc/compute/float_mode.h"
#include "cc/compute/waiting.h"

namespace tf_ti {
namespace {

// What an iteration consists of: its beginning, its states, its units and its end, in this order.
class Nodes {
 public:
  static constexpr int kBegin = 0;

  explicit Nodes(const FlightPlan& plan)
      : num_states_(static_cast<int>(plan.states.size())),
        num_units_(static_cast<int>(plan.units.size())),
        is_heavy_(count()),
        is_shared_(count()),
        here_(count()),
        next_(count()) {
    for (int s = 0; s < num_states_; ++s) {
      const auto [from, index] = plan.states[s];
      if (from == FlightPlan::State::kUnit) {
        next_[Unit(index)].push_back(State(s));
      } else {
        next_[kBegin].push_back(State(s));
        if (from == FlightPlan::State::kState) next_[State(index)].push_back(State(s));
      }
      here_[State(s)].push_back(end());
    }
    for (const int s : plan.begin_reads) here_[State(s)].push_back(kBegin);
    for (int u = 0; u < num_units_; ++u) {
      const FlightPlan::Unit& unit = plan.units[u];
      is_heavy_[Unit(u)] = unit.is_heavy;
      is_shared_[Unit(u)] = unit.is_shared;
      here_[kBegin].push_back(Unit(u));
      for (const int before : unit.after) here_[Unit(before)].push_back(Unit(u));
      for (const int s : unit.states) here_[State(s)].push_back(Unit(u));
      here_[Unit(u)].push_back(end());
    }
    here_[kBegin].push_back(end());
    next_[kBegin].push_back(kBegin);
    next_[end()].push_back(end());
  }

  int State(int state) const { return 1 + state; }
  int Unit(int unit) const { return 1 + num_states_ + unit; }
  int end() const { return 1 + num_states_ + num_units_; }
  int count() const { return end() + 1; }
  int num_states() const { return num_states_; }
  bool IsState(int node) const { return node > kBegin && node <= num_states_; }
  bool IsHeavy(int node) const { return is_heavy_[node]; }
  bool IsShared(int node) const { return is_shared_[node]; }
  int StateOf(int node) const { return node - 1; }
  int UnitOf(int node) const { return node - 1 - num_states_; }

  // The nodes of the same iteration, and of the next one, that wait for a node.
  const std::vector<int>& Here(int node) const { return here_[node]; }
  const std::vector<int>& Next(int node) const { return next_[node]; }

 private:
  const int num_states_;
  const int num_units_;
  std::vector<char> is_heavy_;
  std::vector<char> is_shared_;
  std::vector<std::vector<int>> here_;
  std::vector<std::vector<int>> next_;
};

// A flight, for the threads that are on it. The object outlives the flight: threads come too late.
class Crew : public std::enable_shared_from_this<Crew> {
 public:
  using Schedule = std::function<void(std::function<void()>)>;

  Crew(const FlightPlan& plan, int num_slots, int64_t begin, int64_t end, int num_threads,
       const Schedule& schedule, FlightWork* work)
      : nodes_(plan),
        has_condition_(plan.has_condition),
        num_slots_(num_slots),
        end_(end),
        num_helpers_(num_threads - 1),
        schedule_(schedule),
        work_(work),
        all_waits_(nodes_.count()),
        waits_(num_slots + 2, all_waits_),
        stop_(end),
        next_(begin) {
    for (int node = 0; node < nodes_.count(); ++node) {
      for (const int other : nodes_.Here(node)) ++all_waits_[other];
      for (const int other : nodes_.Next(node)) ++all_waits_[other];
    }
    ++all_waits_[Nodes::kBegin];  // for a slot
    // Threads that nobody can tell of an exception take no memory.
    ready_.reserve(waits_.size() * nodes_.count());
    for (int64_t t = begin; t < begin + num_slots_ + 2; ++t) Prepare(t);
    for (int64_t t = begin; t < begin + num_slots_; ++t) Signal(t, Nodes::kBegin);
    // The iteration before is over.
    Signal(begin, nodes_.end());
    Signal(begin, Nodes::kBegin);
    for (int s = 0; s < nodes_.num_states(); ++s) SignalFollowers(begin, nodes_.State(s));
    is_over_ = next_ >= stop_;
  }
  ~Crew() { pthread_cond_destroy(&changed_); }

  // Works as the calling thread does: until all is done.
  Landing Run() {
    Work(/*is_caller=*/true);
    return {next_, failed_.t < stop_};
  }

 private:
  struct Node {
    int64_t t;
    int node;
    bool IsBefore(const Node& other) const {
      return t != other.t ? t < other.t : node < other.node;
    }
  };
  static bool IsAfter(const Node& a, const Node& b) { return b.IsBefore(a); }

  std::vector<int>& WaitsOf(int64_t t) { return waits_[t % waits_.size()]; }

  void Prepare(int64_t t) {
    WaitsOf(t) = all_waits_;
    // A state that cannot be handed on is an error of the iteration that made it.
    if (HasNext(t)) WaitsOf(t)[nodes_.end()] += nodes_.num_states();
  }

  // True if an iteration hands on states.
  bool HasNext(int64_t t) const { return t + 1 < end_ || has_condition_; }

  void Signal(int64_t t, int node) {
    if (--WaitsOf(t)[node] > 0 || (node == Nodes::kBegin && t >= end_)) return;
    ready_.push_back({t, node});
    std::push_heap(ready_.begin(), ready_.end(), IsAfter);
    num_ready_.store(static_cast<int>(ready_.size()), std::memory_order_relaxed);
    num_heavy_ += nodes_.IsHeavy(node);
  }

  Node Take() {
    std::pop_heap(ready_.begin(), ready_.end(), IsAfter);
    const Node taken = ready_.back();
    ready_.pop_back();
    num_ready_.store(static_cast<int>(ready_.size()), std::memory_order_relaxed);
    num_heavy_ -= nodes_.IsHeavy(taken.node);
    return taken;
  }

  void SignalFollowers(int64_t t, int node) {
    for (const int other : nodes_.Here(node)) Signal(t, other);
    for (const int other : nodes_.Next(node)) {
      if (!nodes_.IsState(other) || HasNext(t)) Signal(t + 1, other);
    }
  }

  void Complete(int64_t t, int node) {
    SignalFollowers(t, node);
    if (nodes_.IsState(node)) Signal(t - 1, nodes_.end());
    if (node != nodes_.end()) return;
    // A state that a state becomes is signalled two iterations ahead.
    Prepare(t + num_slots_ + 2);
    Signal(t + num_slots_, Nodes::kBegin);
  }

  // True if nobody needs the work of a node.
  bool IsIdle(const Node& node) const {
    return failed_.IsBefore(node) || (nodes_.IsState(node.node) ? node.t > stop_ : node.t >= stop_);
  }

  FlightWork::Answer Call(const Node& node, bool has_all_threads) {
    if (node.node == Nodes::kBegin) return work_->Begin(node.t);
    if (nodes_.IsState(node.node)) return work_->Advance(nodes_.StateOf(node.node), node.t);
    if (node.node == nodes_.end()) return work_->Leave(node.t);
    return work_->RunUnit(nodes_.UnitOf(node.node), node.t, has_all_threads);
  }

  // Does the work of the first ready node. The caller holds the lock before and after.
  void DoOne(std::unique_lock<std::mutex>* lock) {
    const Node node = Take();
    if (node.node == nodes_.end() && node.t == failed_.t) return End();
    if (IsIdle(node)) return Complete(node.t, node.node);
    const bool is_heavy = nodes_.IsHeavy(node.node);
    const bool has_all_threads =
        nodes_.IsShared(node.node) && num_heavy_ == 0 && num_heavy_running_ == 0;
    num_heavy_running_ += is_heavy;
    ++num_running_;
    // Another thread does the other ready nodes meanwhile.
    const bool asks = is_heavy && !ready_.empty() && !WakeOne() && MayAsk();
    num_asked_ += asks;
    lock->unlock();
    if (asks) Ask();
    const FlightWork::Answer answer = Call(node, has_all_threads);
    lock->lock();
    --num_running_;
    num_heavy_running_ -= is_heavy;
    if (answer == FlightWork::kEnds) stop_ = std::min(stop_, node.t);
    if (answer == FlightWork::kFails) {
      const Node failure = nodes_.IsState(node.node) ? Node{node.t - 1, nodes_.end() - 1} : node;
      if (failure.IsBefore(failed_)) failed_ = failure;
      if (node.node == nodes_.end()) return End();
    }
    next_ += node.node == nodes_.end();
    Complete(node.t, node.node);
    if (next_ >= stop_) End();
  }

  void End() {
    is_over_.store(true);
    pthread_cond_broadcast(&changed_);
  }

  // Returns true if a thread waits, which is awake then.
  bool WakeOne() {
    if (num_waiting_ == 0) return false;
    if (does_caller_sleep_) pthread_cond_broadcast(&changed_);
    return true;
  }

  bool MayAsk() const {
    return num_asked_ < static_cast<int>(ready_.size()) && num_helping_ + num_asked_ < num_helpers_;
  }

  // Has one more thread come.
  void Ask() noexcept {
    try {
      schedule_(
          [crew = shared_from_this(), mode = FloatMode(), caller = std::this_thread::get_id()] {
            // A thread pool whose queue is full runs the closure at once, on this thread.
            crew->Help(mode, std::this_thread::get_id() == caller);
          });
    } catch (const std::bad_alloc&) {
      const std::lock_guard<std::mutex> lock(mutex_);
      --num_asked_;
    }
  }

  void Help(const FloatMode& mode, bool is_refused) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      --num_asked_;
      if (is_refused || is_over_) return;
      ++num_helping_;
    }
    const ScopedFloatMode as_caller(mode);
    Work(/*is_caller=*/false);
  }

  void Work(bool is_caller) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!is_over_) {
      if (!ready_.empty()) {
        DoOne(&lock);
      } else if (!Wait(is_caller, &lock)) {
        break;
      }
    }
    num_helping_ -= !is_caller;
    if (!is_caller && num_running_ == 0) pthread_cond_broadcast(&changed_);
    while (is_caller && num_running_ > 0) pthread_cond_wait(&changed_, mutex_.native_handle());
  }

  // Returns false if a helper has waited in vain: its thread pool may need it.
  bool Wait(bool is_caller, std::unique_lock<std::mutex>* lock) {
    ++num_waiting_;
    lock->unlock();
    const bool is_found =
        SpinUntil([this] { return num_ready_.load() > 0 || is_over_.load(); }, 50 * kMicrosecond);
    lock->lock();
    if (!is_found && is_caller) {
      does_caller_sleep_ = true;
      while (ready_.empty() && !is_over_) pthread_cond_wait(&changed_, mutex_.native_handle());
      does_caller_sleep_ = false;
    }
    --num_waiting_;
    return is_caller || is_found || !ready_.empty();
  }

  const Nodes nodes_;
  const bool has_condition_;
  const int num_slots_;
  const int64_t end_;
  const int num_helpers_;
  const Schedule schedule_;
  FlightWork* const work_;
  std::vector<int> all_waits_;  // of each node, for how many others

  std::mutex mutex_;  // guards what follows
  // A std::condition_variable of GCC 12 would ask for the libstdc++ of GCC 12.
  pthread_cond_t changed_ = PTHREAD_COND_INITIALIZER;
  std::vector<std::vector<int>> waits_;  // those that are left, of the iterations in turn
  std::vector<Node> ready_;              // a heap, with the first on top
  std::atomic<int> num_ready_{0};
  std::atomic<bool> is_over_{false};
  int num_heavy_ = 0;  // of those that are ready
  int num_heavy_running_ = 0;
  int num_running_ = 0;
  int num_helping_ = 0;
  int num_asked_ = 0;
  int num_waiting_ = 0;
  bool does_caller_sleep_ = false;
  int64_t stop_;  // the first iteration that does not belong to the flight
  int64_t next_;  // the iteration that ends next
  Node failed_ = {std::numeric_limits<int64_t>::max(), 0};
};

// The nodes of the same iteration, and of the next one, that a node is before.
class Followers {
 public:
  Followers(const Nodes& nodes, int node) : nodes_(nodes), here_(nodes.count()), next_(here_) {
    std::vector<std::pair<int, bool>> found = {{node, false}};
    while (!found.empty()) {
      const auto [at, is_next] = found.back();
      found.pop_back();
      const auto add = [&](int other, bool is_next) {
        std::vector<char>& known = is_next ? next_ : here_;
        if (other == nodes_.end() || std::exchange(known[other], true)) return;
        found.push_back({other, is_next});
      };
      for (const int other : nodes_.Here(at)) add(other, is_next);
      if (is_next) continue;
      for (const int other : nodes_.Next(at)) add(other, true);
    }
  }

  bool HasHere(int node) const { return here_[node]; }
  bool HasNext(int node) const { return next_[node]; }

 private:
  const Nodes& nodes_;
  std::vector<char> here_;
  std::vector<char> next_;
};

}  // namespace

bool FlightPlan::IsWorthwhile(int num_slots) const {
  const Nodes nodes(*this);
  std::vector<int> heavy;
  for (int node = 0; node < nodes.count(); ++node) {
    if (nodes.IsHeavy(node)) heavy.push_back(node);
  }
  std::vector<Followers> followers;
  for (const int node : heavy) followers.emplace_back(nodes, node);
  for (size_t a = 0; a < heavy.size(); ++a) {
    for (size_t b = 0; b < heavy.size(); ++b) {
      if (num_slots > 1 && !followers[a].HasNext(heavy[b])) return true;
      if (a != b && !followers[a].HasHere(heavy[b]) && !followers[b].HasHere(heavy[a])) return true;
    }
  }
  return false;
}

Landing Fly(const FlightPlan& plan, int num_slots, int64_t begin, int64_t end, int num_threads,
            const std::function<void(std::function<void()>)>& schedule, FlightWork* work) {
  return std::make_shared<Crew>(plan, num_slots, begin, end, num_threads, schedule, work)->Run();
}

}  // namespace tf_ti
