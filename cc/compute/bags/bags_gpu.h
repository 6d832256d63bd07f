// The bags of bags.h on a GPU: the same structs, whose pointers are the device's here. Their
// numbers, such as `count` and `default_index`, are known on the host. Includes no CUDA header.
//
// Every function enqueues its work on the stream and returns at once: it neither waits for the
// device nor reads its memory. It returns an empty string, or an error message as far as the host
// can know of an error. The same inputs always give the same bits.
//
// Bad values on the device cost no check and touch nothing outside the arrays:
// - an index that is no row reads as a row of zeros, which counts, and its gradient goes nowhere;
// - bounds are clamped to [0, num_indices], and a bag that would end before it begins is empty.
// CheckBags finds them, for those who would rather wait and know.
//
// T is float, double, Half or BFloat16 in all templates here; look-ups have tables of integers too.
#ifndef TF_TI_CC_COMPUTE_BAGS_BAGS_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_BAGS_GPU_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/gpu.h"
#include "cc/compute/numbers.h"

namespace tf_ti {

template <typename T, typename Index>
struct GpuPoolArgs;
template <typename Key>
struct GpuEntries;

// See PoolBags in bags.h. `out` is written in full, whatever the input is.
template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Gpu* gpu, T* out, Index* argmax);

template <typename T, typename Index>
std::string PoolBags(const std::vector<BagLookUp<T, Index>>& lookups, Gpu* gpu);

// See WeightsGradient in bags.h.
template <typename T, typename Index>
std::string WeightsGradient(const Table<T>& table, const Bags<Index>& bags,
                            const Weights<T>& weights, Reduction reduction, const T* grad, Gpu* gpu,
                            const WeightsOutput<T>& gradient);

// The gradient of PoolBags' table, by rows, in two steps: the number of rows that have one is known
// on the device only, and memory for them must be allocated on the host.
//
// Entries, each of which takes one bag's gradient to one row, are sorted by row and keep their
// order otherwise. So the gradient of a row is a bag itself, which pools rows of the output's
// gradient.
template <typename T, typename Index>
class GpuTableGradient {
 public:
  // Memory that `gpu` allocates here must stay until the work of Compute is done. Compute alone
  // reads `argmax`; the other arrays are needed only until the work of Init is done.
  std::string Init(const Bags<Index>& bags, const Weights<T>& weights, Reduction reduction,
                   const Index* argmax, int64_t num_rows, int64_t width, Gpu* gpu);

  // The place on the device for the number of rows that have a gradient.
  const int64_t* num_touched() const { return num_touched_; }
  // The most rows that can have one.
  int64_t most_touched() const { return std::min(num_entries_ - 1, num_rows_); }

  // The gradients of all rows as bags of rows of `grad`, num_touched() of them. Beside them, on the
  // device: the row of each of their entries, of uint64 or uint32, and where each bag begins.
  GpuPoolArgs<T, int32_t> GetBags(const T* grad) const;
  const void* entry_rows() const { return entry_rows_; }
  bool rows_are_wide() const;
  const int32_t* starts() const { return starts_; }

  // rows [num_touched], ascending; values [num_touched, width], from grad [count, width].
  // `num_touched` is the number that the device put there. `gpu` may be another one on the same
  // stream.
  std::string Compute(const T* grad, int64_t num_touched, Gpu* gpu, Index* rows, T* values) const;

 private:
  template <typename Key>
  std::string Sort(const Bags<Index>& bags, const Weights<T>& weights, Reduction reduction,
                   Gpu* gpu);
  // Gathers what is needed of each entry beside its row, where that is more than its bag.
  template <typename Key>
  std::string GatherSorted(const GpuEntries<Key>& entries, const Bags<Index>& bags,
                           const Weights<T>& weights, Reduction reduction,
                           const int32_t* bags_by_number, const Sum<T>* divisors, Gpu* gpu);

  int64_t num_bags_ = 0;
  int64_t num_rows_ = 0;
  int64_t num_entries_ = 0;
  int64_t width_ = 0;
  const Index* argmax_ = nullptr;
  int64_t* num_touched_ = nullptr;
  // All on the device. Of each entry, in the order of the rows: its row, its bag, its weight unless
  // all are 1, and for kMax its position in indices, or -1. Of each row: its first entry.
  const void* entry_rows_ = nullptr;
  const int32_t* entry_bags_ = nullptr;
  const Sum<T>* entry_weights_ = nullptr;
  const int32_t* entry_positions_ = nullptr;
  const int32_t* starts_ = nullptr;
};

// The first bad value, as CheckBags and CheckIndices leave it on the device. It is copied to the
// host, and described there.
struct GpuProblem {
  int64_t place;     // bounds come first, then indices; the largest number where all is well
  int64_t value;     // the bad value
  int64_t previous;  // the value before it in the bounds, if the two are out of order
};

// Looks for bad values in the inputs of PoolBags and of the gradients.
template <typename Index>
std::string CheckBags(const Bags<Index>& bags, int64_t num_rows, Gpu* gpu, GpuProblem* problem);

// Says the same as PoolBags of bags.h; an empty string if all is well.
template <typename Index>
std::string DescribeProblem(const Bags<Index>& bags, int64_t num_rows, const GpuProblem& problem);

// The same for the updates of updates_gpu.h.
template <typename Index>
std::string CheckIndices(const Index* indices, int64_t count, int64_t num_rows, Gpu* gpu,
                         GpuProblem* problem);
std::string DescribeProblem(int64_t num_rows, const GpuProblem& problem);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_BAGS_GPU_H_
