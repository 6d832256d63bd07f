// The parts of a sequence's steps that threads share, and the states between the steps.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_PARTS_H_
#define TF_TI_CC_COMPUTE_RECURRENT_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/parallel.h"

namespace tf_ti {

// A thread's part: some rows of the batch and some blocks of units.
struct Part {
  int64_t row_begin;
  int64_t row_end;
  int64_t block_begin;
  int64_t block_end;

  int64_t num_rows() const { return row_end - row_begin; }
  int64_t num_blocks() const { return block_end - block_begin; }
};

struct Parts {
  // True if each part has all rows, and blocks of its own; false if it has all blocks, and rows of
  // its own.
  bool by_units;
  std::vector<Part> parts;
};

struct StepSizes {
  int64_t num_steps;
  int64_t batch;
  int64_t num_blocks;
  double weights;        // numbers that a step multiplies each row by
  double weight_bytes;   // of these
  double activations;    // of a row
  double other_weights;  // that a row is multiplied by before the steps
};

// As many parts as it is worth waking threads for.
Parts SplitSteps(const StepSizes& sizes, const Parallel& parallel);

// States [batch, hidden] whose rows are `stride` apart, with zeros in between.
template <typename S>
Buffer<S> LoadStates(const S* from, int64_t batch, int64_t hidden, int64_t stride) {
  Buffer<S> states(batch * stride);
  std::fill_n(states.data(), states.size(), S(0));
  for (int64_t row = 0; row < batch; ++row) {
    std::copy_n(from + row * hidden, hidden, states.data() + row * stride);
  }
  return states;
}

template <typename S>
void StoreStates(const Buffer<S>& states, int64_t batch, int64_t hidden, int64_t stride, S* to) {
  for (int64_t row = 0; row < batch; ++row) {
    std::copy_n(states.data() + row * stride, hidden, to + row * hidden);
  }
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_PARTS_H_
