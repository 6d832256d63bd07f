// The one kernel that reduces bags on a GPU: those of a look-up, and those that gradients make.
#ifndef TF_TI_CC_COMPUTE_BAGS_POOLING_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_POOLING_GPU_H_

#include <cstdint>
#include <limits>
#include <string>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/device-inl.h"
#include "cc/compute/numbers.h"

namespace tf_ti {

// The bounds of bags. Whatever the bounds are, bags lie in [0, num_ids]. Positions and bags are
// numbers of type Index, which must have room for kMargin more.
template <typename Index>
struct GpuBounds {
  static constexpr int64_t kMargin = 4096;
  static constexpr int64_t kMost = std::numeric_limits<Index>::max() - kMargin;

  const Index* bounds = nullptr;  // where each bag begins; where null, all have packed_size ids
  bool has_last = false;          // there is a bounds[count], where the last bag ends
  bool ascend = false;            // we have made the bounds: they are good
  Index packed_size = 0;
  Index num_ids = 0;
  Index count = 0;
  const int64_t* device_count = nullptr;  // where not null, the count is there, and not larger

  __device__ Index Count() const {
    return device_count == nullptr ? count : static_cast<Index>(*device_count);
  }

  __device__ Index Begin(Index bag) const {
    if (bounds == nullptr) return bag * packed_size;
    if (bag == count && !has_last) return num_ids;
    return min(max(__ldg(bounds + bag), Index(0)), num_ids);
  }
  __device__ Index End(Index bag) const { return max(Begin(bag), Begin(bag + 1)); }

  // The work of the bags before this one: 1 for each id, and work_per_bag for each bag.
  __device__ int64_t WorkBefore(Index bag, int work_per_bag) const {
    return Begin(bag) + static_cast<int64_t>(bag) * work_per_bag;
  }

  // The last bag in [low, high] that begins at `position` or before; low - 1 if there is none.
  // With work_per_bag, `position` counts work.
  __device__ Index Find(int64_t position, Index low, Index high, int work_per_bag = 0) const {
    if (bounds == nullptr) {
      return packed_size == 0 ? low - 1 : static_cast<Index>(position) / packed_size;
    }
    // Looks at several bags at once, as each look waits for memory.
    constexpr int kLooks = 8;
    while (low <= high) {
      const Index step = (high - low) / kLooks + 1;
      bool begins_before[kLooks];
#pragma unroll
      for (int k = 0; k < kLooks; ++k) {
        const Index bag = low + k * step;
        begins_before[k] = bag <= high && WorkBefore(min(bag, high), work_per_bag) <= position;
      }
      int num_before = 0;
#pragma unroll
      for (int k = 0; k < kLooks; ++k) num_before += num_before == k && begins_before[k];
      if (num_before == 0) return low - 1;
      high = min(high, low + num_before * step - 1);
      low += (num_before - 1) * step + 1;
    }
    return low - 1;
  }
};

enum class Pooled {
  kSum,
  kMax,
  // The last two take int32 positions alone.
  kSelected,    // the sum of those elements alone for which `selected` is the id's position
  kSubtracted,  // the sum, of which scale[0] times is subtracted from a row of `out`
};

// The size of pieces. Bags of more than twice as many ids are reduced in pieces, so that nothing
// waits for a long bag. The size depends only on the numbers of ids and bags, so that the same bags
// always have the same sums.
inline int64_t PieceSize(int64_t num_ids, int64_t count) {
  constexpr int64_t kLeast = 64, kMost = 512, kManyPieces = 16384, kManyBags = 2048;
  // Short bags are taken several at a time, and each of them may be twice a piece.
  const int64_t mean = num_ids / (count + 1);
  const int64_t most = mean < 16 ? 2 * kLeast : kMost;
  int64_t size = kLeast;
  while (size < most && (num_ids / size > kManyPieces || (count > kManyBags && mean > size))) {
    size *= 2;
  }
  return size;
}

// The bags to reduce, and how. Outputs that are not wanted are null.
template <typename T, typename Index>
struct GpuPoolArgs {
  Table<T> table;
  GpuBounds<Index> bags;
  const Index* ids = nullptr;  // where null, each position is its own id
  Weights<T> weights;          // one for each id; for kSum
  bool has_padding = false;
  int64_t padding_idx = 0;
  int64_t default_index = -1;
  Pooled pooled = Pooled::kSum;
  // A bag's divisor is its number of ids, or the sum of their weights. If is_root, it is the root
  // of the number, or of the sum of the weights' squares.
  bool divides = false;
  bool is_root = false;

  // For kSelected: int64 or int32 [table.num_rows, width], and the position of each id.
  const void* selected = nullptr;
  bool selected_is_wide = false;
  const int32_t* positions = nullptr;

  T* out = nullptr;            // [count, width]
  Sum<T>* sums = nullptr;      // in place of `out`: the sums as they are; [count, width]
  Index* argmax = nullptr;     // [count, width]
  Index* counts = nullptr;     // of the ids that are no padding; [count]
  Sum<T>* divisors = nullptr;  // [count]

  // For kSubtracted: `out` is a table of so many rows, and `rows`, of uint64 or uint32, has for
  // each position the row that its bag is subtracted from; none where there is no such row.
  const Sum<T>* scale = nullptr;
  const void* rows = nullptr;
  bool rows_are_wide = false;
  int64_t num_out_rows = 0;
  bool skips_zeros = false;  // sums of zeros are not subtracted, and their rows not written
};

// The bags of `count` tables, which have one width, are pooled alike, and all or none have weights.
// More than one table only for kSum and kMax.
template <typename T, typename Index>
std::string PoolOnGpu(const GpuPoolArgs<T, Index>* args, int count, Gpu* gpu);
template <typename T, typename Index>
std::string PoolOnGpu(const GpuPoolArgs<T, Index>& args, Gpu* gpu) {
  return PoolOnGpu(&args, 1, gpu);
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_POOLING_GPU_H_
