// Pointers that follow the values of a loop from one iteration to the next.
#ifndef TF_TI_CC_COMPUTE_LOOPS_MOVING_POINTERS_H_
#define TF_TI_CC_COMPUTE_LOOPS_MOVING_POINTERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/compute/loops/homes.h"

namespace tf_ti {

// First all pointers are added, then they are moved to one iteration after the other. As soon as
// steps repeat, a pointer's move is one addition. A pointer that does not move takes no time.
class MovingPointers {
 public:
  // Keeps `*at` at the address of a value, plus `offset`.
  void Add(int value, char** at, int64_t offset = 0) { pointers_.push_back({value, at, offset}); }

  // Moves the pointers to the loop's first iteration. No move to iteration `end` will follow.
  void Start(const Homes* homes, int64_t end);
  // Moves the pointers to the iteration after the last one.
  void Next() {
    if (++now_ <= settled_) return SetAll(pointers_);
    for (const Move& move : moves_[turn_]) *move.at += move.step;
    if (++turn_ == moves_.size()) turn_ = 0;
    SetAll(jumps_);
  }

 private:
  struct Pointer {
    int value;
    char** at;
    int64_t offset;
  };
  struct Move {
    char** at;
    int64_t step;
  };

  void FindMoves(int64_t end);
  void SetAll(const std::vector<Pointer>& pointers) const {
    for (const Pointer& pointer : pointers) {
      *pointer.at = const_cast<char*>(homes_->At(pointer.value, now_)) + pointer.offset;
    }
  }

  const Homes* homes_ = nullptr;
  std::vector<Pointer> pointers_;
  int64_t now_ = 0;      // the iteration
  int64_t settled_ = 0;  // from this iteration on all steps repeat, except those of jumps_
  std::vector<std::vector<Move>> moves_;  // in turn
  size_t turn_ = 0;
  std::vector<Pointer> jumps_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_MOVING_POINTERS_H_
