// The steps of PoolOnGpu: bags are planned, pooled, and the pieces of long ones combined.
//
// A group of 8, 16 or 32 lanes of a warp reduces some spans one after another, each lane one pack
// of columns. Where rows are wider, other groups take the other tiles of columns. A span is a bag,
// or a piece of one, and each lane of the group looks after one of them. The ids of all spans are
// one stream: the lanes load a chunk of it together, and the next chunk before they add up this
// one's rows.
#ifndef TF_TI_CC_COMPUTE_BAGS_POOLING_STEPS_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_POOLING_STEPS_GPU_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {

constexpr int kLeastLanes = 8;

// The most elements of a pack, which one instruction loads.
template <typename T>
constexpr int kMostPack = 16 / sizeof(T);

// The threads of a block that combines pieces, each warp of which takes a tile of columns.
constexpr int kCombineWarps = 32;
constexpr int kCombineThreads = kCombineWarps * kWarp;
inline int64_t CombineTiles(int64_t width) {
  return std::max<int64_t>(1, (width + kWarp - 1) / kWarp);
}

// How to reduce a table's bags.
template <typename T, typename Index>
struct Plan {
  int lanes = kWarp;
  int64_t tiles = 1;
  int64_t num_groups = 0;
  Index bags_per_group = 1;  // where work is not counted
  int work_per_bag = 0;
  int work_per_group = 0;
  // The first piece of a long bag goes up to a multiple of `piece`, and another one begins at each
  // multiple. Each piece has a place for its result: 2 k + 1 for the piece that begins at
  // k * piece, and 2 k for a first piece that ends there, which may be empty.
  Index piece = 0;
  Index num_pieces = 0;    // none where no bag can be long
  int64_t num_shares = 0;  // of the pieces, among Combine's blocks
  // Of each piece: the long bag that goes on where it begins, or -1.
  Index* owners = nullptr;
  // Of each place: the members of Reduced.
  Sum<T>* values = nullptr;
  Index* positions = nullptr;
  Index* counts = nullptr;
  double* totals = nullptr;

  __device__ bool IsLong(Index size) const { return num_pieces > 0 && size > 2 * piece; }
  __device__ Index FirstPlace(Index begin) const { return (begin + piece - 1) / piece * 2; }

  // The first of a group's bags; they end where the next group's begin.
  __device__ Index FirstBag(const GpuBounds<Index>& bags, int64_t group) const {
    const Index count = bags.Count();
    if (work_per_group == 0) {
      return static_cast<Index>(min(group * bags_per_group, static_cast<int64_t>(count)));
    }
    const int64_t work = group * work_per_group - 1;
    // Where only the GPU knows the count, many groups are behind the last bag.
    const Index low = count > 0 && bags.WorkBefore(count - 1, work_per_bag) <= work ? count : 0;
    return bags.Find(work, low, count - 1, work_per_bag) + 1;
  }
};

// The most tables of a launch: as many as models have. The arguments of so many are longer than the
// 4 KiB that a kernel may have with drivers older than CUDA 12.1's.
constexpr int kMostTables = 32;

// The bags of one launch: of several tables, which have one width, or of one.
template <typename T, typename Index, int kTables>
struct Batch {
  GpuPoolArgs<T, Index> args[kTables];
  Plan<T, Index> plans[kTables];
  // The first block of each table, for Pool and for Combine. Behind the last table: the number of
  // blocks.
  int64_t blocks[kTables + 1] = {};
  int64_t combine_blocks[kTables + 1] = {};
};

// Returns the table that a block is for, and turns the block's number into that among the table's.
// It is the last table that begins there or before: others have no blocks.
template <int kTables>
__device__ __forceinline__ int FindTable(const int64_t (&blocks)[kTables + 1], int64_t* block) {
  if constexpr (kTables == 1) return 0;
  int table = 0;
#pragma unroll
  for (int step = kTables / 2; step > 0; step /= 2) {
    if (blocks[table + step] <= *block) table += step;
  }
  *block -= blocks[table];
  return table;
}

// Calls run(std::integral_constant<Pooled, pooled>()) where batches of so many tables, and of such
// positions, may be pooled so.
template <typename Index, int kTables, typename Run>
std::string WithPooled(Pooled pooled, const Run& run) {
  if (pooled == Pooled::kSum) return run(std::integral_constant<Pooled, Pooled::kSum>());
  if (pooled == Pooled::kMax) return run(std::integral_constant<Pooled, Pooled::kMax>());
  if constexpr (kTables == 1 && std::is_same_v<Index, int32_t>) {
    if (pooled == Pooled::kSelected) {
      return run(std::integral_constant<Pooled, Pooled::kSelected>());
    }
    return run(std::integral_constant<Pooled, Pooled::kSubtracted>());
  }
  return "only bags of int32 positions, of one table, can be selected from or subtracted";
}

// Plans the bags of at most kTables tables, of which some may have no bags, and allocates memory
// for the results of pieces. A lane loads and stores packs of `pack_size` elements.
template <typename T, typename Index, int kTables>
std::string PlanBatch(const GpuPoolArgs<T, Index>* args, int count, int pack_size, Gpu* gpu,
                      Batch<T, Index, kTables>* batch);

// Reduces all bags but the long ones, and the pieces of those.
template <typename T, typename Index, int kTables>
std::string PoolBatch(const Batch<T, Index, kTables>& batch, int pack_size, Gpu* gpu);

// Reduces the pieces of long bags.
template <typename T, typename Index, int kTables>
std::string CombineBatch(const Batch<T, Index, kTables>& batch, Gpu* gpu);

}  // namespace tf_ti

// MACRO(T, Index, kTables) for each kind of batch.
#define TF_TI_BATCHES(MACRO, T)           \
  MACRO(T, int32_t, 1)                    \
  MACRO(T, int64_t, 1)                    \
  MACRO(T, int32_t, ::tf_ti::kMostTables) \
  MACRO(T, int64_t, ::tf_ti::kMostTables)

#endif  // TF_TI_CC_COMPUTE_BAGS_POOLING_STEPS_GPU_H_
