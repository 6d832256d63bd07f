#include <string>

#include "cc/compute/bags/pooling_steps_gpu.h"
#include "cc/compute/bags/reduced_gpu-inl.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// The result of a long bag's places [begin, end), in one column. The first place is that of the
// piece up to piece `first`; the others are those of the pieces from there on.
template <bool kIsMax, typename T, typename Index>
__device__ __forceinline__ Reduced<T, Index, kIsMax, 1> ReducePlaces(
    const GpuPoolArgs<T, Index>& args, const Plan<T, Index>& plan, Index bag, Index first,
    Index begin, Index end, int64_t column) {
  constexpr int kPlacesInFlight = 4;
  const int64_t width = args.table.width;
  const bool is_column = column < width;
  Reduced<T, Index, kIsMax, 1> reduced;
  reduced.Clear();
  for (Index p = begin; p < end; p += kPlacesInFlight) {
    // All are loaded before one is added: otherwise each load would wait for the one before it.
    Reduced<T, Index, kIsMax, 1> parts[kPlacesInFlight];
#pragma unroll
    for (int r = 0; r < kPlacesInFlight; ++r) {
      const Index q = min(p + r, end - 1);
      const Index piece = first + q - 1;
      const Index place = q == 0 ? 2 * first : 2 * piece + 1;
      const int64_t at = place * width + column;
      parts[r].values[0] = is_column ? plan.values[at] : Sum<T>(0);
      if constexpr (kIsMax) parts[r].positions[0] = is_column ? plan.positions[at] : -1;
      parts[r].count = plan.counts[place];
      parts[r].total = plan.totals[place];
      // Where bounds are bad, a piece may be another bag's.
      const bool is_mine = q == 0 || plan.owners[piece] == bag;
      if (p + r >= end || !is_mine) parts[r].count = 0;
    }
#pragma unroll
    for (int r = 0; r < kPlacesInFlight; ++r) reduced.Add(parts[r]);
  }
  return reduced;
}

// Reduces the pieces of long bags. A block takes one column a lane, and the bags whose second piece
// is in its share. Each warp takes bags of few places, and all warps share the places of a bag that
// has many.
constexpr int kFewPlaces = kCombineWarps;  // up to which both ways add them up in the same order

// One block a multiprocessor is enough: more would leave no registers for loads in flight.
template <typename T, typename Index, Pooled kPooled, int kTables>
__global__ void __launch_bounds__(kCombineThreads, 1)
    Combine(const __grid_constant__ Batch<T, Index, kTables> batch, int64_t tiles) {
  constexpr bool kIsMax = kPooled == Pooled::kMax;
  __shared__ int num_found;
  // The bags, their second pieces, and the numbers of their places.
  __shared__ Index bags[kCombineThreads], firsts[kCombineThreads], sizes[kCombineThreads];
  __shared__ Sum<T> values[kCombineWarps][kWarp];
  __shared__ Index positions[kCombineWarps][kIsMax ? kWarp : 1];
  __shared__ Index counts[kCombineWarps];
  __shared__ double totals[kCombineWarps];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t width = batch.args[0].table.width;
  WaitForPrevious();
  for (int64_t number = blockIdx.x; number < batch.combine_blocks[kTables]; number += gridDim.x) {
    int64_t block = number;
    const int table = FindTable<kTables>(batch.combine_blocks, &block);
    const GpuPoolArgs<T, Index>& args = batch.args[table];
    const Plan<T, Index>& plan = batch.plans[table];
    const int64_t column = block % tiles * kWarp + lane;
    const auto write = [&](Index bag, const Reduced<T, Index, kIsMax, 1>& reduced) {
      Target<T, 1> target;
      if constexpr (kPooled == Pooled::kSubtracted) {
        target.offset = static_cast<int64_t>(LoadRow(args, args.bags.Begin(bag))) * width;
        target.Load(args.out, column < width, column);
      }
      Write<kPooled>(args, bag, column, reduced, target);
    };
    // Long bags may lie side by side, or at regular distances, so a block's pieces do neither.
    if (threadIdx.x == 0) num_found = 0;
    __syncthreads();
    const int64_t turn = threadIdx.x * 2654435761u >> 8;
    const int64_t piece = threadIdx.x * plan.num_shares + (block / tiles + turn) % plan.num_shares;
    if (piece < plan.num_pieces) {
      const Index bag = plan.owners[piece], first = static_cast<Index>(piece);
      if (bag >= 0 && args.bags.Begin(bag) > (first - 1) * plan.piece) {
        const int k = atomicAdd(&num_found, 1);
        bags[k] = bag;
        firsts[k] = first;
        sizes[k] = 1 + (args.bags.End(bag) - first * plan.piece + plan.piece - 1) / plan.piece;
      }
    }
    __syncthreads();
    const int num_bags = num_found;
    for (int k = warp; k < num_bags; k += kCombineWarps) {
      if (sizes[k] > kFewPlaces) continue;
      write(bags[k],
            ReducePlaces<kIsMax>(args, plan, bags[k], firsts[k], Index(0), sizes[k], column));
    }
    for (int k = 0; k < num_bags; ++k) {
      if (sizes[k] <= kFewPlaces) continue;
      // In this order, as a size times a number might be too large.
      const Index share = (sizes[k] + kCombineWarps - 1) / kCombineWarps;
      auto reduced = ReducePlaces<kIsMax>(args, plan, bags[k], firsts[k], share * warp,
                                          min(sizes[k], share * (warp + 1)), column);
      values[warp][lane] = reduced.values[0];
      if constexpr (kIsMax) positions[warp][lane] = reduced.positions[0];
      if (lane == 0) {
        counts[warp] = reduced.count;
        totals[warp] = reduced.total;
      }
      __syncthreads();
      if (warp == 0) {
        reduced.Clear();
        for (int w = 0; w < kCombineWarps; ++w) {
          reduced.Add({{values[w][lane]}, {positions[w][kIsMax ? lane : 0]}, counts[w], totals[w]});
        }
        write(bags[k], reduced);
      }
      __syncthreads();
    }
    __syncthreads();
  }
}

}  // namespace

template <typename T, typename Index, int kTables>
std::string CombineBatch(const Batch<T, Index, kTables>& batch, Gpu* gpu) {
  if (batch.combine_blocks[kTables] == 0) return "";
  return WithPooled<Index, kTables>(batch.args[0].pooled, [&](auto pooled) {
    // Elements have been selected before they were summed.
    constexpr Pooled kPooled =
        decltype(pooled)::value == Pooled::kSelected ? Pooled::kSum : decltype(pooled)::value;
    return LaunchEarly(&Combine<T, Index, kPooled, kTables>,
                       NumBlocks(batch.combine_blocks[kTables], 1), kCombineThreads, gpu, batch,
                       CombineTiles(batch.args[0].table.width));
  });
}

#define TF_TI_COMBINE(T, Index, kTables) \
  template std::string CombineBatch<T, Index, kTables>(const Batch<T, Index, kTables>&, Gpu*);
#define TF_TI_COMBINE_ALL(T) TF_TI_BATCHES(TF_TI_COMBINE, T)
TF_TI_FLOATS(TF_TI_COMBINE_ALL)

}  // namespace tf_ti
