#include "cc/compute/decay/decayed_sum_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// A thread has a column, so that threads side by side read memory side by side.
template <typename T>
__global__ void SumColumns(DecayedSum sum, const T* x, const T* decay, T* y) {
  const GridStride stride = ThreadStride();
  for (int64_t column = stride.first; column < sum.columns; column += stride.step) {
    T last = 0;
    for (int64_t k = 0; k < sum.steps; ++k) {
      const int64_t i = (sum.reverse ? sum.steps - 1 - k : k) * sum.columns + column;
      last = k == 0 ? x[i] : x[i] + *decay * last;
      y[i] = last;
    }
  }
}

}  // namespace

template <typename T>
std::string ComputeDecayedSum(const DecayedSum& sum, const T* x, const T* decay, T* y, Gpu* gpu) {
  return Launch(&SumColumns<T>, NumBlocks(sum.columns, kBlock), kBlock, gpu, sum, x, decay, y);
}

template std::string ComputeDecayedSum(const DecayedSum&, const float*, const float*, float*, Gpu*);
template std::string ComputeDecayedSum(const DecayedSum&, const double*, const double*, double*,
                                       Gpu*);

}  // namespace tf_ti
