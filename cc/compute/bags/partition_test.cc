// Random bags in parts for each shard, beside a loop over all ids.
#include "cc/compute/bags/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cc/compute/testing/bags.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

// The rows of each shard, in their order, handed out one by one.
std::vector<std::vector<int64_t>> HandOut(int64_t num_rows, int64_t count,
                                          PartitionStrategy strategy) {
  std::vector<std::vector<int64_t>> shards(count);
  if (strategy == PartitionStrategy::kMod) {
    for (int64_t row = 0; row < num_rows; ++row) shards[row % count].push_back(row);
  } else {
    int64_t row = 0;
    for (int64_t shard = 0; shard < count; ++shard) {
      int64_t size = num_rows / count;
      if (shard < num_rows % count) ++size;
      for (; size > 0; --size) shards[shard].push_back(row++);
    }
  }
  return shards;
}

TEST(ShardsTest, HaveEachRowOnce) {
  for (const PartitionStrategy strategy : {PartitionStrategy::kDiv, PartitionStrategy::kMod}) {
    for (int64_t num_rows = 0; num_rows <= 40; ++num_rows) {
      for (int64_t count = 1; count <= 12; ++count) {
        const Shards shards(num_rows, count, strategy);
        const auto expected = HandOut(num_rows, count, strategy);
        size_t largest = 0;
        for (int64_t shard = 0; shard < count; ++shard) {
          largest = std::max(largest, expected[shard].size());
          for (size_t row = 0; row < expected[shard].size(); ++row) {
            const Shards::Place place = shards.Find(expected[shard][row]);
            ASSERT_EQ(place.shard, shard) << num_rows << " rows in " << count << " shards";
            ASSERT_EQ(place.row, static_cast<int64_t>(row));
          }
        }
        EXPECT_EQ(shards.largest(), static_cast<int64_t>(largest));
      }
    }
  }
}

// Numbers of more than 32 bits.
TEST(ShardsTest, HaveManyRows) {
  constexpr int64_t kRows = (int64_t{1} << 40) + 3;
  const Shards div(kRows, 4, PartitionStrategy::kDiv), mod(kRows, 4, PartitionStrategy::kMod);
  constexpr int64_t kLonger = (int64_t{1} << 38) + 1;  // the rows of the first three
  EXPECT_EQ(div.largest(), kLonger);
  EXPECT_EQ(div.Find(kLonger - 1).shard, 0);
  EXPECT_EQ(div.Find(kLonger).shard, 1);
  EXPECT_EQ(div.Find(kLonger).row, 0);
  EXPECT_EQ(div.Find(kRows - 1).shard, 3);
  EXPECT_EQ(div.Find(kRows - 1).row, kLonger - 2);
  EXPECT_EQ(mod.Find(kRows - 1).shard, 2);
  EXPECT_EQ(mod.Find(kRows - 1).row, int64_t{1} << 38);
}

template <typename Local>
struct ShardArrays {
  ShardArrays(int64_t num_ids, int64_t num_bags, bool has_positions)
      : ids(num_ids), positions(has_positions ? num_ids : 0), offsets(num_bags), bags(num_bags) {}

  Guarded<Local> ids;
  Guarded<int64_t> positions;
  Guarded<Local> offsets;
  Guarded<int64_t> bags;
};

// What a shard must get.
struct ShardLists {
  std::vector<int64_t> ids, positions, offsets, bags;

  void Add(int64_t bag, int64_t position, int64_t row) {
    if (bags.empty() || bags.back() != bag) {
      bags.push_back(bag);
      offsets.push_back(ids.size());
    }
    ids.push_back(row);
    positions.push_back(position);
  }
};

template <typename N>
void ExpectList(const Guarded<N>& actual, const std::vector<int64_t>& expected, const char* name) {
  ASSERT_EQ(actual.size(), static_cast<int64_t>(expected.size())) << name;
  for (int64_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i], static_cast<N>(expected[i])) << name << "[" << i << "]";
  }
}

template <typename Index, typename Local>
void TestPartition(Random* random) {
  const bool are_many = random->Chance(.1);
  const RandomBags<Index> bags(random, {random->Int(1, 60), are_many ? 20000 : 40, 8});
  const int64_t count = random->Int(1, 9);
  const auto strategy = random->Pick({PartitionStrategy::kDiv, PartitionStrategy::kMod});
  const Shards shards(bags.num_rows(), count, strategy);
  const auto rows = HandOut(bags.num_rows(), count, strategy);
  std::vector<ShardLists> expected(count);
  const auto add = [&](int64_t bag, int64_t position, int64_t row) {
    for (int64_t shard = 0; shard < count; ++shard) {
      const auto at = std::find(rows[shard].begin(), rows[shard].end(), row);
      if (at != rows[shard].end()) {
        expected[shard].Add(bag, position, at - rows[shard].begin());
      }
    }
  };
  const Bags<Index>& given = bags.get();
  bool any_empty = false;
  std::vector<bool> are_empty;
  for (int64_t bag = 0; bag < given.count; ++bag) {
    const std::vector<int64_t> positions = bags.Positions(bag);
    for (const int64_t position : positions) add(bag, position, bags.row(position));
    are_empty.push_back(positions.empty());
    any_empty = any_empty || positions.empty();
  }
  if (any_empty && given.default_index >= 0) {
    add(given.count, given.num_indices, given.default_index);
  }

  OnCaller threads(random->Int(1, 4), random->Chance(.5));
  BagPartition<Index> partition(given, shards);
  Guarded<bool> is_empty(given.count);
  ASSERT_EQ(partition.Init(&threads, is_empty.data()), "");
  for (int64_t bag = 0; bag < given.count; ++bag) ASSERT_EQ(is_empty[bag], are_empty[bag]);
  const bool has_positions = random->Chance(.5);
  std::vector<std::unique_ptr<ShardArrays<Local>>> arrays;
  std::vector<ShardBags<Local>> outputs;
  for (int64_t shard = 0; shard < count; ++shard) {
    arrays.push_back(std::make_unique<ShardArrays<Local>>(
        partition.num_ids(shard), partition.num_bags(shard), has_positions));
    ShardArrays<Local>& to = *arrays.back();
    outputs.push_back({to.ids.data(), has_positions ? to.positions.data() : nullptr,
                       to.offsets.data(), to.bags.data()});
  }
  partition.Fill(&threads, outputs);
  for (int64_t shard = 0; shard < count; ++shard) {
    ExpectList(arrays[shard]->ids, expected[shard].ids, "ids");
    ExpectList(arrays[shard]->offsets, expected[shard].offsets, "offsets");
    ExpectList(arrays[shard]->bags, expected[shard].bags, "bags");
    if (has_positions) ExpectList(arrays[shard]->positions, expected[shard].positions, "positions");
  }
}

TEST(BagPartitionTest, GivesEachShardItsIds) {
  ForRandomCases(200, TestPartition<int32_t, int32_t>);
  ForRandomCases(200, TestPartition<int32_t, int64_t>);
  ForRandomCases(200, TestPartition<int64_t, int32_t>);
  ForRandomCases(200, TestPartition<int64_t, int64_t>);
}

TEST(BagPartitionTest, NamesTheIndexThatIsNoRow) {
  ForRandomCases(200, [](Random* random) {
    const RandomBags<int64_t> good(random, {});
    Bags<int64_t> bags = good.get();
    if (bags.num_indices == 0 || bags.kind == BagKind::kPacked) return;
    std::vector<int64_t> changed(bags.indices, bags.indices + bags.num_indices);
    const int64_t position = random->Int(0, bags.num_indices - 1);
    changed[position] =
        random->Pick({int64_t{-9}, int64_t{57}, std::numeric_limits<int64_t>::max()});
    const Guarded<int64_t> indices(changed);
    bags.indices = indices.data();
    const Shards shards(50, 3, PartitionStrategy::kMod);
    BagPartition<int64_t> partition(bags, shards);
    const Guarded<bool> is_empty(bags.count);
    OnCaller threads(random->Int(1, 4), random->Chance(.5));
    EXPECT_EQ(partition.Init(&threads, is_empty.data()),
              "indices[" + std::to_string(position) + "] is " + std::to_string(changed[position]) +
                  ", but emb_table has 50 rows");
  });
}

}  // namespace
}  // namespace tf_ti
