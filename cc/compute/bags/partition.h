// Bags of a table in shards, as bags of each shard.
//
//   a table of 6 rows in 2 shards, whose rows are 0, 1, 2 and 3, 4, 5
//   bags {0, 4, 1}, {}, {5}
//   of shard 0: ids [0, 1], offsets [0], bags [0]
//   of shard 1: ids [1, 2], offsets [0, 1], bags [0, 2]
//
// A shard has only the bags that touch it. They stay in order, and so do their ids.
#ifndef TF_TI_CC_COMPUTE_BAGS_PARTITION_H_
#define TF_TI_CC_COMPUTE_BAGS_PARTITION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/parallel.h"

namespace tf_ti {

enum class PartitionStrategy {
  kDiv,  // consecutive rows, the first shards one more than the others
  kMod,  // row r is in shard r modulo the number of shards
};

// The rows of a table that each shard has.
class Shards {
 public:
  Shards(int64_t num_rows, int64_t count, PartitionStrategy strategy);

  int64_t num_rows() const { return num_rows_; }
  int64_t count() const { return count_; }
  int64_t largest() const { return num_rows_ / count_ + (num_longer_ > 0); }

  struct Place {
    int64_t shard;
    int64_t row;  // of the shard
  };
  Place Find(int64_t row) const {
    if (strategy_ == PartitionStrategy::kMod) {
      const int64_t quotient = Divide(row, count_);
      return {row - quotient * count_, quotient};
    }
    // The first num_longer_ shards are of size_ + 1 rows, and end at boundary_.
    if (row < boundary_) return Split(row, size_ + 1);
    const Place place = Split(row - boundary_, size_);
    return {place.shard + num_longer_, place.row};
  }

 private:
  static Place Split(int64_t row, int64_t size) {
    const int64_t shard = Divide(row, size);
    return {shard, row - shard * size};
  }
  // Of numbers that are not negative; many processors take longer for 64 bits.
  static int64_t Divide(int64_t x, int64_t y) {
    if (((x | y) >> 32) != 0) return x / y;
    return static_cast<uint32_t>(x) / static_cast<uint32_t>(y);
  }

  int64_t num_rows_, count_;
  PartitionStrategy strategy_;
  int64_t size_, num_longer_, boundary_;
};

// A shard's part; each array has the length that BagPartition tells.
template <typename Local>
struct ShardBags {
  Local* ids;
  int64_t* positions;  // of each id in the indices, or null
  Local* offsets;
  int64_t* bags;  // the number of each one among all bags
};

// First Init counts, then Fill writes.
//
// Where a bag is empty, one more follows the bags: bag number `bags.count`, of the default row
// alone, at position `bags.num_indices`.
template <typename Index>
class BagPartition {
 public:
  explicit BagPartition(const Bags<Index>& bags, const Shards& shards)
      : bags_(bags), shards_(shards) {}

  // Checks everything; is_empty [bags.count].
  std::string Init(Parallel* parallel, bool* is_empty);

  int64_t num_ids(int64_t shard) const { return totals_[shard].ids; }
  int64_t num_bags(int64_t shard) const { return totals_[shard].bags; }

  template <typename Local>
  void Fill(Parallel* parallel, const std::vector<ShardBags<Local>>& outputs) const;

 private:
  struct Counts {
    int64_t ids = 0;
    int64_t bags = 0;
  };

  const Bags<Index>& bags_;
  const Shards& shards_;
  bool has_default_ = false;        // and some bag is empty
  std::vector<int64_t> first_bag_;  // of each part, and their number
  std::vector<Counts> begins_;      // of each part and shard
  std::vector<Counts> totals_;      // of each shard
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_PARTITION_H_
