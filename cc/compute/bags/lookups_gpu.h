// Bags on a GPU, as look-ups and gradients share them.
#ifndef TF_TI_CC_COMPUTE_BAGS_LOOKUPS_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_LOOKUPS_GPU_H_

#include <cstdint>
#include <string>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {

// The bounds of bags of any kind.
template <typename Index>
std::string GetBounds(const Bags<Index>& bags, Gpu* gpu, GpuBounds<Index>* bounds);

// The divisors of the sums of all bags.
template <typename T, typename Index>
std::string FindDivisors(const GpuBounds<Index>& bounds, const Bags<Index>& bags,
                         const Weights<T>& weights, Reduction reduction, Gpu* gpu,
                         Sum<T>** divisors);

// The arguments that all reductions of the same bags share.
template <typename T, typename Index>
GpuPoolArgs<T, Index> ArgsFor(const GpuBounds<Index>& bounds, const Bags<Index>& bags,
                              const Weights<T>& weights, Reduction reduction) {
  GpuPoolArgs<T, Index> args;
  args.bags = bounds;
  args.ids = bags.indices;
  args.weights = weights;
  args.has_padding = bags.has_padding;
  args.padding_idx = bags.padding_idx;
  args.default_index = bags.default_index;
  args.pooled = reduction == Reduction::kMax ? Pooled::kMax : Pooled::kSum;
  args.divides = HasDivisors(reduction);
  args.is_root = reduction == Reduction::kSqrtN;
  return args;
}

template <typename T>
__device__ Sum<T> LoadWeight(const Weights<T>& weights, int64_t position) {
  return weights.wide != nullptr ? weights.wide[position] : ToSum(weights.rounded[position]);
}

// An index that lies in a bag, or lies in none.
template <typename Index>
struct Place {
  Index bag;    // or -1
  int64_t row;  // or -1 where there is no such row
};

template <typename Index>
struct Lookup {
  GpuBounds<Index> bags;
  const Index* ids;
  bool has_padding;
  int64_t padding_idx;
  int64_t num_rows;

  // All threads of a block call it, before any of them seeks positions from `first` on, of which
  // there are `size`: `range`, which they share, becomes the bags of the first and of the last.
  __device__ void FindRange(int64_t first, int64_t size, Index* range) const {
    __syncthreads();
    if (threadIdx.x < 2 && first < bags.num_ids) {
      const int64_t last = min(first + size, static_cast<int64_t>(bags.num_ids)) - 1;
      const int64_t position = threadIdx.x == 0 ? first : last;
      range[threadIdx.x] = bags.Find(static_cast<Index>(position), 0, bags.count - 1);
    }
    __syncthreads();
  }

  __device__ Place<Index> Find(Index position, const Index* range) const {
    const Index bag = bags.Find(position, max(range[0], Index(0)), range[1]);
    if (bag < 0 || bag >= bags.count || position >= bags.End(bag)) return {-1, -1};
    const int64_t id = ids[position];
    if (has_padding && id == padding_idx) return {-1, -1};
    return {bag, id >= 0 && id < num_rows ? id : -1};
  }
};

template <typename Index>
Lookup<Index> LookupFor(const GpuBounds<Index>& bounds, const Bags<Index>& bags, int64_t num_rows) {
  return {bounds, bags.indices, bags.has_padding, bags.padding_idx, num_rows};
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_LOOKUPS_GPU_H_
