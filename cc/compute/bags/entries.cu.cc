#include <algorithm>
#include <string>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/lookups_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/bags/sorting_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// Writes the entries of a table's gradient: one for each index, one for each bag that may be empty
// if there is a default row, and a last one. Entries of no row get row num_rows, behind all others.
// `values` are the entries' numbers; or, if bags is null, their bags.
template <typename Key, typename Index>
__global__ void __launch_bounds__(kBlock)
    WriteEntries(const __grid_constant__ Lookup<Index> lookup, int64_t default_index,
                 const Index* counts, const __grid_constant__ GpuEntries<Key> entries,
                 int32_t* bags, int64_t blocks) {
  __shared__ Index range[2];
  const int64_t num_ids = lookup.bags.num_ids;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    lookup.FindRange(block * kBlock, kBlock, range);
    const int64_t i = block * kBlock + threadIdx.x;
    if (i < entries.size) {
      int64_t bag = i - num_ids, row = -1;
      if (i < num_ids) {
        const Place<Index> place = lookup.Find(static_cast<Index>(i), range);
        bag = place.bag;
        row = place.row;
      } else if (i + 1 < entries.size) {
        const Index b = static_cast<Index>(bag);
        const bool is_empty =
            counts == nullptr ? lookup.bags.End(b) == lookup.bags.Begin(b) : counts[b] == 0;
        if (is_empty) row = default_index;
      }
      entries.rows[i] = static_cast<Key>(row < 0 ? lookup.num_rows : row);
      entries.values[i] = static_cast<int32_t>(bags == nullptr ? bag : i);
      if (bags != nullptr) bags[i] = static_cast<int32_t>(bag);
    }
  }
}

// Writes bags, weights and positions of those entries that have a row, in their order, as far as
// they are wanted. `bags` are those of WriteEntries.
template <typename Key, typename T>
__global__ void __launch_bounds__(kBlock)
    Gather(const GpuEntries<Key> entries, int64_t num_rows, int64_t num_ids, const int32_t* bags,
           const Weights<T> weights, const Sum<T>* divisors, int32_t* entry_bags,
           Sum<T>* entry_weights, int32_t* entry_positions) {
  const bool has_weights = weights.wide != nullptr || weights.rounded != nullptr;
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < entries.size && entries.rows[i] < static_cast<Key>(num_rows);
       i += step) {
    const int32_t value = entries.values[i];
    const int32_t bag = bags == nullptr ? value : bags[value];
    if (bags != nullptr) entry_bags[i] = bag;
    const bool is_default = bags != nullptr && value >= num_ids;
    if (entry_positions != nullptr) entry_positions[i] = is_default ? -1 : value;
    if (entry_weights == nullptr) continue;
    Sum<T> weight = has_weights && !is_default ? LoadWeight(weights, value) : Sum<T>(1);
    // Without weights, only an empty bag has a divisor of zero, and it has the default row.
    if (divisors != nullptr && !is_default && (has_weights || divisors[bag] != Sum<T>(0))) {
      weight = DivideOrZero(weight, divisors[bag]);
    }
    entry_weights[i] = weight;
  }
}

// The number of each bag's ids that are no padding.
template <typename T, typename Index>
std::string CountIds(const GpuBounds<Index>& bounds, const Bags<Index>& bags, Gpu* gpu,
                     Index** counts) {
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.count, counts));
  GpuPoolArgs<T, Index> args = ArgsFor(bounds, bags, Weights<T>{}, Reduction::kSum);
  args.counts = *counts;
  return PoolOnGpu(args, gpu);
}

}  // namespace

template <typename T, typename Index>
std::string GpuTableGradient<T, Index>::Init(const Bags<Index>& bags, const Weights<T>& weights,
                                             Reduction reduction, const Index* argmax,
                                             int64_t num_rows, int64_t width, Gpu* gpu) {
  num_bags_ = bags.count;
  num_rows_ = num_rows;
  width_ = width;
  argmax_ = argmax;
  TF_TI_RETURN_IF_WRONG(CheckDefault(bags, num_rows));
  const int64_t num_defaults = bags.default_index >= 0 ? bags.count : 0;
  num_entries_ = bags.num_indices + num_defaults + 1;
  if (std::max(num_entries_, bags.count) > kMostEntries) {
    return "there are " + std::to_string(bags.num_indices) + " indices and " +
           std::to_string(bags.count) + " bags, too many for a gradient on a GPU";
  }
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, 1, &num_touched_));
  if (width == 0) {
    return Describe(cudaMemsetAsync(num_touched_, 0, sizeof(*num_touched_), gpu->stream()), gpu);
  }
  return RowsAreWide(num_rows) ? Sort<uint64_t>(bags, weights, reduction, gpu)
                               : Sort<uint32_t>(bags, weights, reduction, gpu);
}

template <typename T, typename Index>
template <typename Key>
std::string GpuTableGradient<T, Index>::Sort(const Bags<Index>& bags, const Weights<T>& weights,
                                             Reduction reduction, Gpu* gpu) {
  GpuBounds<Index> bounds;
  TF_TI_RETURN_IF_WRONG(GetBounds(bags, gpu, &bounds));
  Index* counts = nullptr;
  if (bags.default_index >= 0 && bags.has_padding) {
    TF_TI_RETURN_IF_WRONG((CountIds<T>(bounds, bags, gpu, &counts)));
  }
  // Where nothing but the bags of the entries is needed, the bags themselves are sorted.
  int32_t* bags_by_number = nullptr;
  if (reduction == Reduction::kMax || weights.given()) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &bags_by_number));
  }
  GpuEntries<Key> entries;
  entries.size = num_entries_;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entries.rows));
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entries.values));
  const int64_t blocks = NumBlocks(num_entries_, kBlock);
  TF_TI_RETURN_IF_WRONG(Launch(&WriteEntries<Key, Index>, blocks, kBlock, gpu,
                               LookupFor(bounds, bags, num_rows_), bags.default_index, counts,
                               entries, bags_by_number, blocks));
  TF_TI_RETURN_IF_WRONG(SortByRow(num_rows_, gpu, &entries));
  int32_t* starts;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_ + 1, &starts));
  TF_TI_RETURN_IF_WRONG(FindStarts(entries.rows, entries.size, gpu, starts, num_touched_));
  entry_rows_ = entries.rows;
  entry_bags_ = entries.values;
  starts_ = starts;
  Sum<T>* divisors = nullptr;
  if (HasDivisors(reduction)) {
    TF_TI_RETURN_IF_WRONG(FindDivisors(bounds, bags, weights, reduction, gpu, &divisors));
  }
  if (bags_by_number == nullptr && divisors == nullptr) return "";
  return GatherSorted(entries, bags, weights, reduction, bags_by_number, divisors, gpu);
}

template <typename T, typename Index>
template <typename Key>
std::string GpuTableGradient<T, Index>::GatherSorted(const GpuEntries<Key>& entries,
                                                     const Bags<Index>& bags,
                                                     const Weights<T>& weights, Reduction reduction,
                                                     const int32_t* bags_by_number,
                                                     const Sum<T>* divisors, Gpu* gpu) {
  int32_t *entry_bags = nullptr, *entry_positions = nullptr;
  Sum<T>* entry_weights = nullptr;
  if (bags_by_number != nullptr) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entry_bags));
    entry_bags_ = entry_bags;
  }
  if (reduction == Reduction::kMax) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entry_positions));
  } else {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entry_weights));
  }
  entry_positions_ = entry_positions;
  entry_weights_ = entry_weights;
  return Launch(&Gather<Key, T>, NumBlocks(num_entries_, kBlock), kBlock, gpu, entries, num_rows_,
                bags.num_indices, bags_by_number, weights, divisors, entry_bags, entry_weights,
                entry_positions);
}

#define TF_TI_ENTRIES(T, Index)                          \
  template std::string GpuTableGradient<T, Index>::Init( \
      const Bags<Index>&, const Weights<T>&, Reduction, const Index*, int64_t, int64_t, Gpu*);
#define TF_TI_ENTRIES_BOTH(T) TF_TI_ENTRIES(T, int32_t) TF_TI_ENTRIES(T, int64_t)
TF_TI_FLOATS(TF_TI_ENTRIES_BOTH)

}  // namespace tf_ti
