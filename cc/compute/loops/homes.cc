#include "cc/compute/loops/homes.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace tf_ti {

namespace {

constexpr int64_t kLine = 64;

int64_t Rounded(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Returns true if a value may live in the pieces: each iteration has one, in one block.
bool MayHouse(const Walk& walk) { return walk.HasOneBlock() && walk.every == 1; }

}  // namespace

LoopValue LoopValue::Fixed(const char* at, int64_t bytes) {
  LoopValue value(kFixed, bytes);
  value.start_ = at;
  return value;
}

LoopValue LoopValue::State(int source, const char* start, int64_t bytes) {
  LoopValue value(kState, bytes);
  value.source_ = source;
  value.start_ = start;
  return value;
}

LoopValue LoopValue::Listed(std::vector<const char*> addresses, int64_t bytes) {
  bool is_even = addresses.size() > 1;
  for (size_t k = 2; k < addresses.size() && is_even; ++k) {
    is_even = addresses[k] - addresses[k - 1] == addresses[1] - addresses[0];
  }
  if (is_even) {
    Walk walk;
    walk.base = const_cast<char*>(addresses[0]);
    walk.step = addresses[1] - addresses[0];
    return Pieces(walk, bytes);
  }
  LoopValue value(kListed, bytes);
  value.addresses_ = std::move(addresses);
  return value;
}

LoopValue LoopValue::Pieces(const Walk& walk, int64_t bytes) {
  LoopValue value(walk.HasOneBlock() ? kWalk : kBlocks, bytes);
  value.walk_ = walk;
  return value;
}

LoopValue LoopValue::Made(int64_t bytes) { return LoopValue(kMade, bytes); }

Homes::Homes(std::vector<LoopValue> values, std::vector<LoopWrite> writes, const IndexOrder& order,
             int64_t begin)
    : values_(std::move(values)), writes_(std::move(writes)), order_(order), begin_(begin) {
  for (const LoopValue& value : values_) num_states_ += value.kind_ == LoopValue::kState;
  for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
    if (values_[v].kind_ == LoopValue::kBlocks) {
      reads_.push_back(v);
      LiveInTurn(v);
    } else if (values_[v].kind_ == LoopValue::kMade) {
      if (!LiveInOutput(v) && !LiveInOutputOfState(v)) LiveInTurn(v);
    }
  }
  AllocateBuffers();
}

bool Homes::LiveInOutput(int value) {
  const auto write = std::find_if(writes_.begin(), writes_.end(), [&](const LoopWrite& write) {
    return write.value == value && MayHouse(write.to);
  });
  if (write == writes_.end()) return false;
  values_[value].kind_ = LoopValue::kWalk;
  values_[value].walk_ = write->to;
  writes_.erase(write);
  return true;
}

bool Homes::LiveInOutputOfState(int value) {
  const auto write = std::find_if(writes_.begin(), writes_.end(), [&](const LoopWrite& write) {
    const LoopValue& written = values_[write.value];
    return written.kind_ == LoopValue::kState && written.source_ == value && MayHouse(write.to);
  });
  if (write == writes_.end()) return false;
  starts_.push_back(*write);
  values_[value].kind_ = LoopValue::kWalk;
  values_[value].walk_ = write->to;
  values_[value].walk_.base += order_.reverse ? -write->to.step : write->to.step;
  writes_.erase(write);
  return true;
}

// The period is the least common multiple of all numbers of buffers. A value has more buffers than
// it needs where that keeps the period short.
void Homes::LiveInTurn(int value) {
  constexpr int kLongest = 32;
  int count = 1 + LivesFor(value);
  while (count % period_ != 0 && std::lcm(period_, count) > kLongest) ++count;
  period_ = std::lcm(period_, count);
  values_[value].num_buffers_ = count;
}

// Returns the number of iterations after its own in which a state still is this value, which is no
// state in a circle of states.
int Homes::LivesFor(int value) const {
  int longest = 0;
  for (int v = 0; v < static_cast<int>(values_.size()); ++v) {
    if (values_[v].kind_ != LoopValue::kState || values_[v].source_ != value) continue;
    longest = std::max(longest, 1 + LivesFor(v));
  }
  return longest;
}

void Homes::AllocateBuffers() {
  int64_t bytes = 0;
  for (const LoopValue& value : values_) bytes += value.num_buffers_ * Rounded(value.bytes_);
  buffers_ = Buffer<char>(std::max<int64_t>(bytes, 1));
  char* at = buffers_.data();
  for (LoopValue& value : values_) {
    value.buffers_ = at;
    at += value.num_buffers_ * Rounded(value.bytes_);
  }
}

void Homes::WriteStarts() const {
  for (const LoopWrite& start : starts_) {
    const LoopValue& state = values_[start.value];
    start.to.Write(order_.Of(begin_), state.bytes_, state.start_);
  }
}

const char* Homes::At(int value, int64_t t) const {
  for (int steps = 1; values_[value].kind_ == LoopValue::kState; ++steps) {
    if (t == begin_) return values_[value].start_;
    value = values_[value].source_;
    --t;
    // After as many steps as there are states, a state is in a circle of states. Whole turns of the
    // circle are skipped.
    if (steps != num_states_ || values_[value].kind_ != LoopValue::kState) continue;
    int around = 1;
    for (int next = values_[value].source_; next != value; ++around) next = values_[next].source_;
    t = begin_ + (t - begin_) % around;
  }
  const LoopValue& found = values_[value];
  switch (found.kind_) {
    case LoopValue::kFixed:
      return found.start_;
    case LoopValue::kListed:
      return found.addresses_[order_.Of(t)];
    case LoopValue::kWalk:
      return found.walk_.At(order_.Of(t));
    default:
      return found.buffers_ + t % found.num_buffers_ * Rounded(found.bytes_);
  }
}

std::optional<int> Homes::Settling(int value) const {
  int steps = 0;
  for (; steps < num_states_ && values_[value].kind_ == LoopValue::kState; ++steps) {
    value = values_[value].source_;
  }
  const LoopValue::Kind kind = values_[value].kind_;
  const bool repeats = kind != LoopValue::kState && kind != LoopValue::kListed;
  return repeats ? std::optional<int>(steps) : std::nullopt;
}

}  // namespace tf_ti
