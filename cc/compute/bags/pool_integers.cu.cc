#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/compute/bags/lookups_gpu.h"
#include "cc/compute/bags/pool_integers_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// The result of reducing some ids of a bag, in one column. Sums wrap around, so no order of the ids
// changes them. Among equal maxima the first id's counts.
template <typename T, typename Index>
struct Integers {
  uint64_t value = 0;  // the bits of a Sum<T>
  uint64_t total = 0;  // likewise, of the weights
  Index position = -1;
  Index count = 0;

  __device__ void Add(bool is_max, const Integers& part) {
    if (part.count == 0) return;
    if (!is_max) {
      value += part.value;
    } else if (count == 0 || part.Get() > Get() ||
               (part.value == value && part.position < position)) {
      value = part.value;
      position = part.position;
    }
    total += part.total;
    count += part.count;
  }

  __device__ Sum<T> Get() const { return static_cast<Sum<T>>(value); }
  // The lowest integer has no opposite.
  __device__ Sum<T> Mean() const {
    const Sum<T> divisor = static_cast<Sum<T>>(total);
    if (std::is_signed_v<T> && divisor == Sum<T>(-1)) return static_cast<Sum<T>>(-value);
    return DivideOrZero(Get(), divisor);
  }

  // Returns the result of another lane, whose number differs in the bit `mask`.
  __device__ Integers Of(int mask) const {
    return {__shfl_xor_sync(kAllLanes, value, mask), __shfl_xor_sync(kAllLanes, total, mask),
            __shfl_xor_sync(kAllLanes, position, mask), __shfl_xor_sync(kAllLanes, count, mask)};
  }
};

template <typename T, typename Index>
__device__ Integers<T, Index> LoadIntegers(const GpuPoolArgs<T, Index>& args, Index position,
                                           int64_t column) {
  const int64_t id = args.ids[position];
  if (args.has_padding && id == args.padding_idx) return {};
  Integers<T, Index> loaded{0, 1, position, 1};
  if (column < args.table.width && id >= 0 && id < args.table.num_rows) {
    loaded.value = static_cast<uint64_t>(args.table.rows[id * args.table.width + column]);
  }
  if (args.weights.wide != nullptr || args.weights.rounded != nullptr) {
    loaded.total = static_cast<uint64_t>(LoadWeight(args.weights, position));
    loaded.value *= loaded.total;
  }
  return loaded;
}

// A warp takes one bag, and `columns` of its columns, a power of two. Where these are fewer than
// the warp's lanes, several lanes share the ids of a column.
template <typename T, typename Index>
__global__ void __launch_bounds__(kBlock)
    Pool(const __grid_constant__ GpuPoolArgs<T, Index> args, int columns, int64_t tiles) {
  const int lane = threadIdx.x % kWarp;
  const int64_t width = args.table.width;
  const bool is_max = args.pooled == Pooled::kMax;
  const GridStride threads = ThreadStride();
  for (int64_t k = threads.first / kWarp; k < args.bags.count * tiles; k += threads.step / kWarp) {
    const Index bag = static_cast<Index>(k / tiles);
    const int64_t column = k % tiles * columns + lane % columns;
    const Index end = args.bags.End(bag);
    Integers<T, Index> reduced;
    for (Index i = args.bags.Begin(bag) + lane / columns; i < end; i += kWarp / columns) {
      reduced.Add(is_max, LoadIntegers(args, i, column));
    }
    for (int mask = columns; mask < kWarp; mask *= 2) reduced.Add(is_max, reduced.Of(mask));
    if (lane >= columns || column >= width) continue;
    const int64_t at = bag * width + column;
    if (args.argmax != nullptr) args.argmax[at] = reduced.position;
    if (reduced.count == 0 && args.default_index >= 0) {
      args.out[at] = args.table.rows[args.default_index * width + column];
    } else {
      args.out[at] = static_cast<T>(args.divides ? reduced.Mean() : reduced.Get());
    }
  }
}

}  // namespace

template <typename T, typename Index>
std::string PoolIntegers(const GpuPoolArgs<T, Index>& args, Gpu* gpu) {
  int columns = 1;
  while (columns < kWarp && columns < args.table.width) columns *= 2;
  const int64_t tiles = (args.table.width + columns - 1) / columns;
  return Launch(&Pool<T, Index>, NumBlocks(args.bags.count * tiles, kBlock / kWarp), kBlock, gpu,
                args, columns, tiles);
}

#define TF_TI_POOL_INTEGERS(T)                                                         \
  template std::string PoolIntegers<T, int32_t>(const GpuPoolArgs<T, int32_t>&, Gpu*); \
  template std::string PoolIntegers<T, int64_t>(const GpuPoolArgs<T, int64_t>&, Gpu*);
TF_TI_INTEGERS(TF_TI_POOL_INTEGERS)

}  // namespace tf_ti
