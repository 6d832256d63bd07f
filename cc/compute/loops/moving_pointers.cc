#include "cc/compute/loops/moving_pointers.h"

#include <algorithm>
#include <optional>

namespace tf_ti {

void MovingPointers::Start(const Homes* homes, int64_t end) {
  homes_ = homes;
  now_ = homes->begin();
  FindMoves(end);
  SetAll(pointers_);
}

void MovingPointers::FindMoves(int64_t end) {
  settled_ = now_;
  std::vector<Pointer> even;
  for (const Pointer& pointer : pointers_) {
    const std::optional<int> settling = homes_->Settling(pointer.value);
    if (settling.has_value()) {
      even.push_back(pointer);
      settled_ = std::max(settled_, now_ + *settling);
    } else {
      jumps_.push_back(pointer);
    }
  }
  moves_.resize(homes_->period());
  const auto period = static_cast<int64_t>(moves_.size());
  for (int64_t turn = 0; turn < std::min(period, end - settled_); ++turn) {
    const int64_t t = settled_ + turn;
    for (const Pointer& pointer : even) {
      const int64_t step = homes_->At(pointer.value, t + 1) - homes_->At(pointer.value, t);
      if (step != 0) moves_[turn].push_back({pointer.at, step});
    }
  }
}

}  // namespace tf_ti
