#include "cc/compute/bags/partition.h"

#include <algorithm>

#include "cc/compute/bags/walk-inl.h"

namespace tf_ti {

Shards::Shards(int64_t num_rows, int64_t count, PartitionStrategy strategy)
    : num_rows_(num_rows),
      count_(count),
      strategy_(strategy),
      size_(num_rows / count),
      num_longer_(num_rows % count),
      boundary_(num_longer_ * (size_ + 1)) {}

template <typename Index>
std::string BagPartition<Index>::Init(Parallel* parallel, bool* is_empty) {
  Problem problem;
  std::string wrong = CheckOutside(bags_, shards_.num_rows(), &problem);
  if (!wrong.empty()) return wrong;
  const int64_t count = shards_.count();
  const int64_t parts = NumParts(*parallel, BytesOf<float>(bags_, 0));
  first_bag_ = SplitBags(bags_, parts);
  begins_.assign(parts * count, {});
  parallel->Run(parts, [&](int64_t part) {
    std::vector<Counts> counts(count);
    std::vector<int64_t> last_bag(count, -1);
    BagWalk<Index> walk(bags_, first_bag_[part], first_bag_[part + 1]);
    while (walk.Next()) {
      if (!CheckIndices(bags_, walk.begin(), walk.end(), shards_.num_rows(), &problem)) return;
      bool any = false;
      for (int64_t i = walk.begin(); i < walk.end(); ++i) {
        if (IsPadding(bags_, i)) continue;
        const int64_t shard = shards_.Find(bags_.indices[i]).shard;
        ++counts[shard].ids;
        counts[shard].bags += last_bag[shard] != walk.bag();
        last_bag[shard] = walk.bag();
        any = true;
      }
      is_empty[walk.bag()] = !any;
    }
    if (!walk.ok()) problem.InBounds();
    std::copy(counts.begin(), counts.end(), begins_.begin() + part * count);
  });
  if (problem.found()) return problem.Describe(bags_, shards_.num_rows());
  totals_.assign(count, {});
  for (int64_t k = 0; k < parts * count; ++k) {
    Counts& total = totals_[k % count];
    const Counts here = begins_[k];
    begins_[k] = total;
    total.ids += here.ids;
    total.bags += here.bags;
  }
  has_default_ = bags_.default_index >= 0 &&
                 std::find(is_empty, is_empty + bags_.count, true) != is_empty + bags_.count;
  if (has_default_) {
    Counts& total = totals_[shards_.Find(bags_.default_index).shard];
    ++total.ids;
    ++total.bags;
  }
  return "";
}

template <typename Index>
template <typename Local>
void BagPartition<Index>::Fill(Parallel* parallel,
                               const std::vector<ShardBags<Local>>& outputs) const {
  const int64_t count = shards_.count();
  const auto add = [](const ShardBags<Local>& output, Counts* at, int64_t bag, int64_t position,
                      int64_t row, bool is_first) {
    if (is_first) {
      output.offsets[at->bags] = static_cast<Local>(at->ids);
      output.bags[at->bags++] = bag;
    }
    if (output.positions != nullptr) output.positions[at->ids] = position;
    output.ids[at->ids++] = static_cast<Local>(row);
  };
  parallel->Run(first_bag_.size() - 1, [&](int64_t part) {
    const auto begin = begins_.begin() + part * count;
    std::vector<Counts> at(begin, begin + count);
    std::vector<int64_t> last_bag(count, -1);
    BagWalk<Index> walk(bags_, first_bag_[part], first_bag_[part + 1]);
    while (walk.Next()) {
      for (int64_t i = walk.begin(); i < walk.end(); ++i) {
        if (IsPadding(bags_, i)) continue;
        const Shards::Place place = shards_.Find(bags_.indices[i]);
        const bool is_first = last_bag[place.shard] != walk.bag();
        add(outputs[place.shard], &at[place.shard], walk.bag(), i, place.row, is_first);
        last_bag[place.shard] = walk.bag();
      }
    }
  });
  if (has_default_) {
    const Shards::Place place = shards_.Find(bags_.default_index);
    const Counts& total = totals_[place.shard];
    Counts at{total.ids - 1, total.bags - 1};
    add(outputs[place.shard], &at, bags_.count, bags_.num_indices, place.row, true);
  }
}

#define TF_TI_FILL(Index, Local)                                                                  \
  template void BagPartition<Index>::Fill<Local>(Parallel*, const std::vector<ShardBags<Local>>&) \
      const;
#define TF_TI_PARTITION(Index)        \
  template class BagPartition<Index>; \
  TF_TI_FILL(Index, int32_t)          \
  TF_TI_FILL(Index, int64_t)
TF_TI_PARTITION(int32_t)
TF_TI_PARTITION(int64_t)

}  // namespace tf_ti
