// Sums along the first dimension, in which earlier values count less.
#ifndef TF_TI_CC_COMPUTE_DECAY_DECAYED_SUM_H_
#define TF_TI_CC_COMPUTE_DECAY_DECAYED_SUM_H_

#include <cstdint>

#include "cc/compute/parallel.h"

namespace tf_ti {

// The first dimension has the steps. All others, as one, are columns.
struct DecayedSum {
  int64_t steps;
  int64_t columns;
  bool reverse;
};

// y[t] = x[t] + decay * y[t - 1], or y[t + 1] if it is reversed. For float and double.
template <typename T>
void ComputeDecayedSum(const DecayedSum& sum, const T* x, T decay, T* y, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_DECAY_DECAYED_SUM_H_
