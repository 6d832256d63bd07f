// How threads share the steps of a sequence, and the states between them.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_PARTS_H_
#define TF_TI_CC_COMPUTE_RECURRENT_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/parallel.h"

namespace tf_ti {

// Some rows of the batch and some blocks of units: what one thread does.
struct Part {
  int64_t row_begin;
  int64_t row_end;
  int64_t block_begin;
  int64_t block_end;

  int64_t num_rows() const { return row_end - row_begin; }
  int64_t num_blocks() const { return block_end - block_begin; }
};

struct Parts {
  // Each part has all rows, and blocks of its own; otherwise it is the other way round.
  bool by_units;
  std::vector<Part> parts;
};

struct StepSizes {
  int64_t num_steps;
  int64_t batch;
  int64_t num_blocks;
  double weights;        // numbers by which a step multiplies each row
  double weight_bytes;   // of them
  double activations;    // of a row
  double other_weights;  // by which a row is multiplied before the steps
};

// As many parts as threads are worth waking up.
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
