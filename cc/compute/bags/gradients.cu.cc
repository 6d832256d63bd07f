#include <cmath>
#include <limits>
#include <string>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/bags/sorting_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

bool HasDivisors(Reduction reduction) {
  return reduction == Reduction::kMean || reduction == Reduction::kSqrtN;
}

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

// The bounds of bags of any kind.
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

// The divisors of the sums of all bags.
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
__device__ Sum<T> LoadWeight(const Weights<T>& weights, int64_t position) {
  return weights.wide != nullptr ? weights.wide[position] : ToSum(weights.rounded[position]);
}

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

// Makes the entries of a table's gradient: one for each index, one for each bag that may be empty
// if there is a default row, and a last one. Entries of no row get row num_rows, behind all others.
// `values` are the entries' numbers; or, if bags is null, their bags.
template <typename Key, typename Index>
__global__ void __launch_bounds__(kBlock)
    MakeEntries(const __grid_constant__ Lookup<Index> lookup, int64_t default_index,
                const Index* counts, const __grid_constant__ GpuEntries<Key> entries, int32_t* bags,
                int64_t blocks) {
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
// they are wanted. `bags` are those of MakeEntries.
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

template <typename Key, typename Index>
__global__ void __launch_bounds__(kBlock)
    CopyRows(const Key* entry_rows, const int32_t* starts, int64_t count, Index* rows) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < count; i += step) {
    rows[i] = static_cast<Index>(entry_rows[starts[i]]);
  }
}

// The place of a problem: a position in the bounds, or kInIndices and a position in the indices. A
// larger number is no problem.
constexpr int64_t kInIndices = int64_t{1} << 61;
constexpr int64_t kNowhere = kInIndices * 2;
constexpr int kNowhereByte = 0x7f;  // makes a larger number still

__device__ void ReportProblem(int64_t place, GpuProblem* problem) {
  atomicMin(reinterpret_cast<unsigned long long*>(&problem->place),
            static_cast<unsigned long long>(place));
}

template <typename Index>
__global__ void __launch_bounds__(kBlock)
    CheckBounds(const Index* bounds, int64_t size, int64_t most, GpuProblem* problem) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) {
    const Index bound = bounds[i];
    if (bound < 0 || bound > most || (i > 0 && bound < bounds[i - 1])) ReportProblem(i, problem);
  }
}

template <typename Index>
__global__ void __launch_bounds__(kBlock)
    CheckRows(const Index* indices, int64_t size, int64_t num_rows, bool has_padding,
              int64_t padding_idx, GpuProblem* problem) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) {
    const int64_t index = indices[i];
    if (has_padding && index == padding_idx) continue;
    if (index < 0 || index >= num_rows) ReportProblem(kInIndices + i, problem);
  }
}

template <typename Index>
__global__ void LoadProblem(const Index* bounds, const Index* indices, GpuProblem* problem) {
  const int64_t place = problem->place;
  if (place > kNowhere) return;
  const bool in_indices = place >= kInIndices;
  const int64_t position = in_indices ? place - kInIndices : place;
  problem->value = in_indices ? indices[position] : bounds[position];
  problem->previous = in_indices || position == 0 ? problem->value : bounds[position - 1];
}

std::string At(const std::string& name, int64_t position, int64_t value) {
  return name + "[" + std::to_string(position) + "] is " + std::to_string(value);
}

// The same for a look-up, which is checked.
template <typename T, typename Index>
std::string ArgsFor(const BagLookUp<T, Index>& lookup, Reduction reduction, Gpu* gpu,
                    GpuPoolArgs<T, Index>* args) {
  const Bags<Index>& bags = lookup.bags;
  if (lookup.argmax != nullptr && bags.num_indices > std::numeric_limits<Index>::max()) {
    return "there are " + std::to_string(bags.num_indices) + " indices: they must be int64";
  }
  TF_TI_RETURN_IF_WRONG(CheckDefault(bags, lookup.table.num_rows));
  if (lookup.table.width == 0) return "";
  GpuBounds<Index> bounds;
  TF_TI_RETURN_IF_WRONG(GetBounds(bags, gpu, &bounds));
  *args = ArgsFor(bounds, bags, lookup.weights, reduction);
  args->table = lookup.table;
  args->out = lookup.out;
  args->argmax = lookup.argmax;
  return "";
}

}  // namespace

template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Gpu* gpu, T* out, Index* argmax) {
  GpuPoolArgs<T, Index> args;
  TF_TI_RETURN_IF_WRONG(ArgsFor({table, bags, weights, out, argmax}, reduction, gpu, &args));
  return table.width == 0 ? "" : PoolOnGpu(args, gpu);
}

template <typename T, typename Index>
std::string PoolBags(const std::vector<BagLookUp<T, Index>>& lookups, Reduction reduction,
                     Gpu* gpu) {
  std::vector<GpuPoolArgs<T, Index>> args(lookups.size());
  for (size_t k = 0; k < lookups.size(); ++k) {
    TF_TI_RETURN_IF_WRONG(OfTable(k, ArgsFor(lookups[k], reduction, gpu, &args[k])));
  }
  if (lookups[0].table.width == 0) return "";
  return PoolOnGpu(args.data(), static_cast<int>(args.size()), gpu);
}

template <typename T, typename Index>
std::string WeightsGradient(const Table<T>& table, const Bags<Index>& bags,
                            const Weights<T>& weights, Reduction reduction, const T* grad, Gpu* gpu,
                            const WeightsOutput<T>& gradient) {
  using S = Sum<T>;
  TF_TI_RETURN_IF_WRONG(CheckDefault(bags, table.num_rows));
  GpuBounds<Index> bounds;
  TF_TI_RETURN_IF_WRONG(GetBounds(bags, gpu, &bounds));
  DotArgs<T, Index> args{
      table, LookupFor(bounds, bags, table.num_rows), grad, weights, nullptr, nullptr, gradient};
  if (HasDivisors(reduction)) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.num_indices, &args.dots));
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.num_indices, &args.products));
  }
  constexpr int kSize = 16 / sizeof(T);
  const bool has_packs = (reinterpret_cast<uintptr_t>(table.rows) |
                          reinterpret_cast<uintptr_t>(grad) | table.width * sizeof(T)) %
                             16 ==
                         0;
  int lanes = kDots;
  while (lanes < kWarp && lanes * (has_packs ? kSize : 1) < table.width) lanes *= 2;
  const int64_t blocks = NumBlocks(bags.num_indices, kDots * (kBlock / lanes));
  TF_TI_RETURN_IF_WRONG(Launch(has_packs ? &Dot<T, Index, kSize> : &Dot<T, Index, 1>, blocks,
                               kBlock, gpu, args, lanes, blocks));
  if (!HasDivisors(reduction)) return "";

  S *divisors, *totals;
  TF_TI_RETURN_IF_WRONG(FindDivisors(bounds, bags, weights, reduction, gpu, &divisors));
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.count, &totals));
  GpuPoolArgs<S, Index> sum;
  sum.table = {args.products, bags.num_indices, 1};
  sum.bags = bounds;
  sum.out = totals;
  TF_TI_RETURN_IF_WRONG(PoolOnGpu(sum, gpu));
  const int64_t num_blocks = (bags.num_indices + kBlock - 1) / kBlock;
  return Launch(&DivideDots<T, Index>, NumBlocks(num_blocks, 1), kBlock, gpu, args, totals,
                divisors, reduction == Reduction::kSqrtN, num_blocks);
}

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
    GpuPoolArgs<T, Index> args = ArgsFor(bounds, bags, Weights<T>{}, Reduction::kSum);
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, bags.count, &counts));
    args.counts = counts;
    TF_TI_RETURN_IF_WRONG(PoolOnGpu(args, gpu));
  }
  // Where nothing but the bags of the entries is needed, the bags themselves are sorted.
  const bool is_max = reduction == Reduction::kMax;
  int32_t* bags_by_number = nullptr;
  if (is_max || weights.given()) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &bags_by_number));
  }
  GpuEntries<Key> entries;
  entries.size = num_entries_;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entries.rows));
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entries.values));
  const int64_t blocks = NumBlocks(num_entries_, kBlock);
  TF_TI_RETURN_IF_WRONG(Launch(&MakeEntries<Key, Index>, blocks, kBlock, gpu,
                               LookupFor(bounds, bags, num_rows_), bags.default_index, counts,
                               entries, bags_by_number, blocks));
  TF_TI_RETURN_IF_WRONG(SortByRow(num_rows_, gpu, &entries));
  int32_t* starts;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_ + 1, &starts));
  TF_TI_RETURN_IF_WRONG(FindStarts(entries.rows, entries.size, gpu, starts, num_touched_));
  entry_rows_ = entries.rows;
  entry_bags_ = entries.values;
  starts_ = starts;
  if (bags_by_number == nullptr && !HasDivisors(reduction)) return "";

  Sum<T>* divisors = nullptr;
  if (HasDivisors(reduction)) {
    TF_TI_RETURN_IF_WRONG(FindDivisors(bounds, bags, weights, reduction, gpu, &divisors));
  }
  int32_t *entry_bags = nullptr, *entry_positions = nullptr;
  Sum<T>* entry_weights = nullptr;
  if (bags_by_number != nullptr) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entry_bags));
    entry_bags_ = entry_bags;
  }
  if (is_max) {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entry_positions));
  } else {
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, num_entries_, &entry_weights));
  }
  entry_positions_ = entry_positions;
  entry_weights_ = entry_weights;
  return Launch(&Gather<Key, T>, blocks, kBlock, gpu, entries, num_rows_, bags.num_indices,
                bags_by_number, weights, divisors, entry_bags, entry_weights, entry_positions);
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

template <typename Index>
std::string CheckBags(const Bags<Index>& bags, int64_t num_rows, Gpu* gpu, GpuProblem* problem) {
  TF_TI_RETURN_IF_WRONG(
      Describe(cudaMemsetAsync(problem, kNowhereByte, sizeof(*problem), gpu->stream()), gpu));
  if (bags.kind != BagKind::kPacked) {
    const bool segments = bags.kind == BagKind::kSegments;
    const int64_t size = segments ? bags.num_indices : bags.count + bags.include_last_offset;
    const int64_t most = segments ? bags.count - 1 : bags.num_indices;
    TF_TI_RETURN_IF_WRONG(Launch(&CheckBounds<Index>, NumBlocks(size, kBlock), kBlock, gpu,
                                 bags.bounds, size, most, problem));
  }
  TF_TI_RETURN_IF_WRONG(Launch(&CheckRows<Index>, NumBlocks(bags.num_indices, kBlock), kBlock, gpu,
                               bags.indices, bags.num_indices, num_rows, bags.has_padding,
                               bags.padding_idx, problem));
  return Launch(&LoadProblem<Index>, 1, 1, gpu, bags.bounds, bags.indices, problem);
}

template <typename Index>
std::string DescribeProblem(const Bags<Index>& bags, int64_t num_rows, const GpuProblem& problem) {
  if (problem.place > kNowhere) return "";
  if (problem.place < kInIndices) {
    const bool segments = bags.kind == BagKind::kSegments;
    const std::string name = segments ? "segment_ids" : "offsets";
    const std::string at = At(name, problem.place, problem.value);
    if (problem.value < problem.previous) {
      return at + ", but " + At(name, problem.place - 1, problem.previous) + " before it";
    }
    if (problem.value < 0) return at + ", which is negative";
    if (segments) return at + ", but num_segments is " + std::to_string(bags.count);
    return at + ", but there are " + std::to_string(bags.num_indices) + " indices";
  }
  const int64_t position = problem.place - kInIndices;
  std::string place = std::to_string(position);
  if (bags.kind == BagKind::kPacked) {
    const int64_t width = bags.num_indices / bags.count;
    place = std::to_string(position / width) + ", " + std::to_string(position % width);
  }
  return "indices[" + place + "] is " + std::to_string(problem.value) + ", but emb_table has " +
         std::to_string(num_rows) + " rows";
}

template <typename Index>
std::string CheckIndices(const Index* indices, int64_t count, int64_t num_rows, Gpu* gpu,
                         GpuProblem* problem) {
  Bags<Index> bags;
  bags.kind = BagKind::kPacked;
  bags.indices = indices;
  bags.num_indices = count;
  return CheckBags(bags, num_rows, gpu, problem);
}

std::string DescribeProblem(int64_t num_rows, const GpuProblem& problem) {
  if (problem.place > kNowhere) return "";
  return At("indices", problem.place - kInIndices, problem.value) + ", but the variable has " +
         std::to_string(num_rows) + " rows";
}

#define TF_TI_BAGS_ON_GPU(T, Index)                                                               \
  template std::string PoolBags<T, Index>(const Table<T>&, const Bags<Index>&, const Weights<T>&, \
                                          Reduction, Gpu*, T*, Index*);                           \
  template std::string PoolBags<T, Index>(const std::vector<BagLookUp<T, Index>>&, Reduction,     \
                                          Gpu*);                                                  \
  template std::string WeightsGradient<T, Index>(const Table<T>&, const Bags<Index>&,             \
                                                 const Weights<T>&, Reduction, const T*, Gpu*,    \
                                                 const WeightsOutput<T>&);                        \
  template class GpuTableGradient<T, Index>;
#define TF_TI_BAGS_ON_GPU_BOTH(T) TF_TI_BAGS_ON_GPU(T, int32_t) TF_TI_BAGS_ON_GPU(T, int64_t)
TF_TI_FLOATS(TF_TI_BAGS_ON_GPU_BOTH)

#define TF_TI_CHECK_ON_GPU(Index)                                                              \
  template std::string CheckBags<Index>(const Bags<Index>&, int64_t, Gpu*, GpuProblem*);       \
  template std::string DescribeProblem<Index>(const Bags<Index>&, int64_t, const GpuProblem&); \
  template std::string CheckIndices<Index>(const Index*, int64_t, int64_t, Gpu*, GpuProblem*);
TF_TI_CHECK_ON_GPU(int32_t)
TF_TI_CHECK_ON_GPU(int64_t)

}  // namespace tf_ti
