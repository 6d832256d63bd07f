#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/lookups_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// Writes where each segment begins, and where the last one ends.
template <typename Index>
__global__ void __launch_bounds__(kBlock)
    FindSegments(const Index* segment_ids, int64_t num_ids, int64_t count, Index* bounds) {
  const auto [first, step] = ThreadStride();
  for (int64_t segment = first; segment <= count; segment += step) {
    int64_t low = 0, high = num_ids;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (segment_ids[middle] < segment) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    bounds[segment] = static_cast<Index>(low);
  }
}

// The divisors of bags by their sizes: a size, or the root of it.
template <typename S, typename Index>
__global__ void __launch_bounds__(kBlock)
    DivideBySizes(const GpuBounds<Index> bags, bool is_root, S* divisors) {
  const auto [first, step] = ThreadStride();
  for (int64_t b = first; b < bags.count; b += step) {
    const Index bag = static_cast<Index>(b);
    const double size = static_cast<double>(bags.End(bag) - bags.Begin(bag));
    divisors[bag] = static_cast<S>(is_root ? sqrt(size) : size);
  }
}

// The arguments of a look-up, which is checked.
template <typename T, typename Index>
std::string ArgsFor(const BagLookUp<T, Index>& lookup, Gpu* gpu, GpuPoolArgs<T, Index>* args) {
  const Bags<Index>& bags = lookup.bags;
  if (lookup.argmax != nullptr && bags.num_indices > std::numeric_limits<Index>::max()) {
    return "there are " + std::to_string(bags.num_indices) + " indices: they must be int64";
  }
  TF_TI_RETURN_IF_WRONG(CheckDefault(bags, lookup.table.num_rows));
  if (lookup.table.width == 0) return "";
  GpuBounds<Index> bounds;
  TF_TI_RETURN_IF_WRONG(GetBounds(bags, gpu, &bounds));
  *args = ArgsFor(bounds, bags, lookup.weights, lookup.reduction);
  args->table = lookup.table;
  args->out = lookup.out;
  args->argmax = lookup.argmax;
  return "";
}

// Returns true if one launch may be for both.
template <typename T, typename Index>
bool AreAlike(const GpuPoolArgs<T, Index>& args, const GpuPoolArgs<T, Index>& others) {
  return args.table.width == others.table.width && args.pooled == others.pooled &&
         args.weights.given() == others.weights.given();
}

}  // namespace

template <typename Index>
std::string GetBounds(const Bags<Index>& bags, Gpu* gpu, GpuBounds<Index>* bounds) {
  if (bags.num_indices > GpuBounds<Index>::kMost || bags.count >= GpuBounds<Index>::kMost) {
    return "there are " + std::to_string(bags.num_indices) + " indices and " +
           std::to_string(bags.count) + " bags: the indices must be int64";
  }
  bounds->num_ids = static_cast<Index>(bags.num_indices);
  bounds->count = static_cast<Index>(bags.count);
  switch (bags.kind) {
    case BagKind::kPacked:
      bounds->packed_size = bags.count == 0 ? 0 : bounds->num_ids / bounds->count;
      return "";
    case BagKind::kSegments: {
      Index* begins;
      TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.count + 1, &begins));
      bounds->bounds = begins;
      bounds->has_last = true;
      return Launch(&FindSegments<Index>, NumBlocks(bags.count + 1, kBlock), kBlock, gpu,
                    bags.bounds, bags.num_indices, bags.count, begins);
    }
    default:
      bounds->bounds = bags.bounds;
      bounds->has_last = bags.include_last_offset;
      return "";
  }
}

template <typename T, typename Index>
std::string FindDivisors(const GpuBounds<Index>& bounds, const Bags<Index>& bags,
                         const Weights<T>& weights, Reduction reduction, Gpu* gpu,
                         Sum<T>** divisors) {
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.count, divisors));
  if (!bags.has_padding && !weights.given()) {
    return Launch(&DivideBySizes<Sum<T>, Index>, NumBlocks(bags.count, kBlock), kBlock, gpu, bounds,
                  reduction == Reduction::kSqrtN, *divisors);
  }
  GpuPoolArgs<T, Index> args = ArgsFor(bounds, bags, weights, reduction);
  args.divisors = *divisors;
  return PoolOnGpu(args, gpu);
}

template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Gpu* gpu, T* out, Index* argmax) {
  GpuPoolArgs<T, Index> args;
  TF_TI_RETURN_IF_WRONG(ArgsFor({table, bags, weights, reduction, out, argmax}, gpu, &args));
  return table.width == 0 ? "" : PoolOnGpu(args, gpu);
}

template <typename T, typename Index>
std::string PoolBags(const std::vector<BagLookUp<T, Index>>& lookups, Gpu* gpu) {
  std::vector<std::vector<GpuPoolArgs<T, Index>>> batches;
  for (size_t k = 0; k < lookups.size(); ++k) {
    GpuPoolArgs<T, Index> args;
    TF_TI_RETURN_IF_WRONG(OfTable(lookups[k].number, ArgsFor(lookups[k], gpu, &args)));
    if (lookups[k].table.width == 0) continue;
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const auto& other) { return AreAlike(args, other[0]); });
    if (batch == batches.end()) batch = batches.emplace(batch);
    batch->push_back(args);
  }
  for (const auto& batch : batches) {
    TF_TI_RETURN_IF_WRONG(PoolOnGpu(batch.data(), static_cast<int>(batch.size()), gpu));
  }
  return "";
}

#define TF_TI_BOUNDS(Index) \
  template std::string GetBounds<Index>(const Bags<Index>&, Gpu*, GpuBounds<Index>*);
TF_TI_BOUNDS(int32_t)
TF_TI_BOUNDS(int64_t)

#define TF_TI_DIVISORS(T, Index)                                                           \
  template std::string FindDivisors<T, Index>(const GpuBounds<Index>&, const Bags<Index>&, \
                                              const Weights<T>&, Reduction, Gpu*, Sum<T>**);
#define TF_TI_DIVISORS_BOTH(T) TF_TI_DIVISORS(T, int32_t) TF_TI_DIVISORS(T, int64_t)
TF_TI_FLOATS(TF_TI_DIVISORS_BOTH)

#define TF_TI_LOOKUPS(T, Index)                                                                   \
  template std::string PoolBags<T, Index>(const Table<T>&, const Bags<Index>&, const Weights<T>&, \
                                          Reduction, Gpu*, T*, Index*);                           \
  template std::string PoolBags<T, Index>(const std::vector<BagLookUp<T, Index>>&, Gpu*);
#define TF_TI_LOOKUPS_BOTH(T) TF_TI_LOOKUPS(T, int32_t) TF_TI_LOOKUPS(T, int64_t)
TF_TI_FLOATS(TF_TI_LOOKUPS_BOTH)
TF_TI_INTEGERS(TF_TI_LOOKUPS_BOTH)

}  // namespace tf_ti
