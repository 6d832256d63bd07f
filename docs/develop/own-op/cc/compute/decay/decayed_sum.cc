#include "cc/compute/decay/decayed_sum.h"

#include <algorithm>

namespace tf_ti {

template <typename T>
void ComputeDecayedSum(const DecayedSum& sum, const T* x, T decay, T* y, Parallel* parallel) {
  const int64_t previous = sum.reverse ? sum.columns : -sum.columns;
  const double bytes = 2.0 * sizeof(T) * sum.steps * sum.columns;
  const int64_t parts = std::min(NumParts(*parallel, bytes), sum.columns);
  parallel->Run(parts, [&](int64_t part) {
    const int64_t begin = sum.columns * part / parts, end = sum.columns * (part + 1) / parts;
    for (int64_t k = 0; k < sum.steps; ++k) {
      const int64_t row = (sum.reverse ? sum.steps - 1 - k : k) * sum.columns;
      for (int64_t i = row + begin; i < row + end; ++i) {
        y[i] = k == 0 ? x[i] : x[i] + decay * y[i + previous];
      }
    }
  });
}

template void ComputeDecayedSum(const DecayedSum&, const float*, float, float*, Parallel*);
template void ComputeDecayedSum(const DecayedSum&, const double*, double, double*, Parallel*);

}  // namespace tf_ti
