#include <string>
#include <type_traits>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/lookups_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/bags/sorting_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// The dot products of rows of the table and of bags' gradients, several at a time for each group of
// lanes. Without divisors they are the weights' gradient. With divisors, they are left in `dots`,
// and their products with the weights in `products`.
constexpr int kDots = 8;

template <typename T, typename Index>
struct DotArgs {
  Table<T> table;
  Lookup<Index> lookup;
  const T* grad;
  Weights<T> weights;
  Sum<T>* dots;
  Sum<T>* products;
  WeightsOutput<T> gradient;
};

template <typename T>
__device__ void WriteWeight(const WeightsOutput<T>& gradient, int64_t position, Sum<T> value) {
  if (gradient.wide != nullptr) {
    gradient.wide[position] = value;
  } else {
    gradient.rounded[position] = FromSum<T>(value);
  }
}

template <typename T, typename Index, int kSize>
__global__ void __launch_bounds__(kBlock)
    Dot(const __grid_constant__ DotArgs<T, Index> args, int lanes, int64_t blocks) {
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t width = args.table.width;
  const int64_t num_ids = args.lookup.bags.num_ids;
  const int64_t dots_per_block = kBlock / lanes * kDots;
  __shared__ Index range[2];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    args.lookup.FindRange(block * dots_per_block, dots_per_block, range);
    const int64_t position = block * dots_per_block + threadIdx.x / lanes * kDots + lane;
    const bool is_mine = lane < kDots && position < num_ids;
    Place<Index> place{-1, -1};
    if (is_mine) place = args.lookup.Find(static_cast<Index>(position), range);
    int64_t bags[kDots], rows[kDots];
    Sum<T> sums[kDots];
#pragma unroll
    for (int d = 0; d < kDots; ++d) {
      bags[d] = __shfl_sync(kAllLanes, place.bag, d, lanes);
      rows[d] = __shfl_sync(kAllLanes, place.row, d, lanes);
      sums[d] = Sum<T>(0);
    }
    for (int64_t column = lane * kSize; column < width; column += lanes * kSize) {
#pragma unroll
      for (int d = 0; d < kDots; ++d) {
        if (rows[d] < 0) continue;
        const auto x = LoadPack<kSize>(args.table.rows + rows[d] * width + column);
        const auto y = LoadPack<kSize>(args.grad + bags[d] * width + column);
#pragma unroll
        for (int j = 0; j < kSize; ++j) sums[d] += ToSum(x.values[j]) * ToSum(y.values[j]);
      }
    }
    Sum<T> dot(0);
#pragma unroll
    for (int d = 0; d < kDots; ++d) {
      for (int mask = lanes / 2; mask > 0; mask /= 2) {
        sums[d] += __shfl_xor_sync(kAllLanes, sums[d], mask);
      }
      if (d == lane) dot = sums[d];
    }
    if (!is_mine) continue;
    if (args.products == nullptr) {
      WriteWeight(args.gradient, position, dot);
    } else {
      args.dots[position] = dot;
      args.products[position] =
          place.bag < 0 ? Sum<T>(0) : LoadWeight(args.weights, position) * dot;
    }
  }
}

// With d_i the dot products, and D the divisor of a bag's sum: (d_i - sum(w d) / D) / D for a mean,
// and (d_i - w_i sum(w d) / D^2) / D for kSqrtN.
template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    DivideDots(const __grid_constant__ DotArgs<T, Index> args, const Sum<T>* totals,
               const Sum<T>* divisors, bool is_root, int64_t blocks) {
  __shared__ Index range[2];
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    args.lookup.FindRange(block * kBlock, kBlock, range);
    const int64_t i = block * kBlock + threadIdx.x;
    if (i >= args.lookup.bags.num_ids) continue;
    const Index bag = args.lookup.Find(static_cast<Index>(i), range).bag;
    Sum<T> value(0);
    if (bag >= 0) {
      Sum<T> mean = DivideOrZero(totals[bag], divisors[bag]);
      if (is_root) mean = DivideOrZero(LoadWeight(args.weights, i) * mean, divisors[bag]);
      value = DivideOrZero(args.dots[i] - mean, divisors[bag]);
    }
    WriteWeight(args.gradient, i, value);
  }
}

// The dot products of a call of WeightsGradient: its results, or the first step to them.
template <typename T, typename Index>
std::string ComputeDots(const DotArgs<T, Index>& args, Gpu* gpu) {
  constexpr int kSize = 16 / sizeof(T);
  const bool has_packs = (reinterpret_cast<uintptr_t>(args.table.rows) |
                          reinterpret_cast<uintptr_t>(args.grad) | args.table.width * sizeof(T)) %
                             16 ==
                         0;
  int lanes = kDots;
  while (lanes < kWarp && lanes * (has_packs ? kSize : 1) < args.table.width) lanes *= 2;
  const int64_t blocks = NumBlocks(args.lookup.bags.num_ids, kDots * (kBlock / lanes));
  return Launch(has_packs ? &Dot<T, Index, kSize> : &Dot<T, Index, 1>, blocks, kBlock, gpu, args,
                lanes, blocks);
}

// The sums of the products of dot products and weights, of each bag.
template <typename T, typename Index>
std::string SumProducts(const DotArgs<T, Index>& args, Gpu* gpu, Sum<T>** totals) {
  const GpuBounds<Index>& bags = args.lookup.bags;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.count, totals));
  GpuPoolArgs<Sum<T>, Index> sum;
  sum.table = {args.products, bags.num_ids, 1};
  sum.bags = bags;
  sum.out = *totals;
  return PoolOnGpu(sum, gpu);
}

template <typename Key, typename Index>
__global__ void __launch_bounds__(kBlock)
    CopyRows(const Key* entry_rows, const int32_t* starts, int64_t count, Index* rows) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < count; i += step) {
    rows[i] = static_cast<Index>(entry_rows[starts[i]]);
  }
}

}  // namespace

template <typename T, typename Index>
std::string WeightsGradient(const Table<T>& table, const Bags<Index>& bags,
                            const Weights<T>& weights, Reduction reduction, const T* grad, Gpu* gpu,
                            const WeightsOutput<T>& gradient) {
  TF_TI_RETURN_IF_WRONG(CheckDefault(bags, table.num_rows));
  GpuBounds<Index> bounds;
  TF_TI_RETURN_IF_WRONG(GetBounds(bags, gpu, &bounds));
  DotArgs<T, Index> args{
      table, LookupFor(bounds, bags, table.num_rows), grad, weights, nullptr, nullptr, gradient};
  if (!HasDivisors(reduction)) return ComputeDots(args, gpu);
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.num_indices, &args.dots));
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.num_indices, &args.products));
  TF_TI_RETURN_IF_WRONG(ComputeDots(args, gpu));
  Sum<T>*divisors, *totals;
  TF_TI_RETURN_IF_WRONG(FindDivisors(bounds, bags, weights, reduction, gpu, &divisors));
  TF_TI_RETURN_IF_WRONG(SumProducts(args, gpu, &totals));
  const int64_t blocks = (bags.num_indices + kBlock - 1) / kBlock;
  return Launch(&DivideDots<T, Index>, NumBlocks(blocks, 1), kBlock, gpu, args, totals, divisors,
                reduction == Reduction::kSqrtN, blocks);
}

template <typename T, typename Index>
std::string GpuTableGradient<T, Index>::Compute(const T* grad, int64_t num_touched, Gpu* gpu,
                                                Index* rows, T* values) const {
  if (num_touched == 0) return "";
  const auto copy = [&](const auto* entry_rows) {
    return Launch(&CopyRows<std::decay_t<decltype(*entry_rows)>, Index>,
                  NumBlocks(num_touched, kBlock), kBlock, gpu, entry_rows, starts_, num_touched,
                  rows);
  };
  TF_TI_RETURN_IF_WRONG(rows_are_wide() ? copy(static_cast<const uint64_t*>(entry_rows_))
                                        : copy(static_cast<const uint32_t*>(entry_rows_)));
  GpuPoolArgs<T, int32_t> args = GetBags(grad);
  args.bags.count = static_cast<int32_t>(num_touched);
  args.bags.device_count = nullptr;
  args.out = values;
  return PoolOnGpu(args, gpu);
}

template <typename T, typename Index>
GpuPoolArgs<T, int32_t> GpuTableGradient<T, Index>::GetBags(const T* grad) const {
  GpuPoolArgs<T, int32_t> args;
  args.table = {grad, num_bags_, width_};
  args.bags.bounds = starts_;
  args.bags.has_last = true;
  args.bags.ascend = true;
  args.bags.num_ids = static_cast<int32_t>(num_entries_);
  args.bags.count = static_cast<int32_t>(most_touched());
  args.bags.device_count = num_touched_;
  args.ids = entry_bags_;
  args.weights.wide = entry_weights_;
  if (argmax_ != nullptr) {
    args.pooled = Pooled::kSelected;
    args.selected = argmax_;
    args.selected_is_wide = sizeof(Index) == sizeof(int64_t);
    args.positions = entry_positions_;
  }
  return args;
}

template <typename T, typename Index>
bool GpuTableGradient<T, Index>::rows_are_wide() const {
  return RowsAreWide(num_rows_);
}

#define TF_TI_GRADIENTS(T, Index)                                                               \
  template std::string WeightsGradient<T, Index>(const Table<T>&, const Bags<Index>&,           \
                                                 const Weights<T>&, Reduction, const T*, Gpu*,  \
                                                 const WeightsOutput<T>&);                      \
  template std::string GpuTableGradient<T, Index>::Compute(const T*, int64_t, Gpu*, Index*, T*) \
      const;                                                                                    \
  template GpuPoolArgs<T, int32_t> GpuTableGradient<T, Index>::GetBags(const T*) const;         \
  template bool GpuTableGradient<T, Index>::rows_are_wide() const;
#define TF_TI_GRADIENTS_BOTH(T) TF_TI_GRADIENTS(T, int32_t) TF_TI_GRADIENTS(T, int64_t)
TF_TI_FLOATS(TF_TI_GRADIENTS_BOTH)

}  // namespace tf_ti
