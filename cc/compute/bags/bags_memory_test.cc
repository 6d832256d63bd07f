// Look-ups, gradients and updates where memory runs out, at each allocation in turn.

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/partition.h"
#include "cc/compute/bags/updates.h"
#include "cc/compute/buffer.h"
#include "cc/compute/numbers.h"
#include "cc/compute/testing/bags.h"
#include "cc/compute/testing/failing_memory.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

constexpr int64_t kRows = 400, kWidth = 8;

// Enough bags for several threads, the last of them a giant, as row 3 is.
template <typename T>
struct Call {
  explicit Call(Random* random) : table(RandomNumbers<T>(random, kRows * kWidth)) {
    constexpr int64_t kBags = 1500, kOfBag = 4, kOfGiant = 17000;
    for (int64_t bag = 0; bag < kBags; ++bag) {
      offsets.push_back(indices.size());
      for (int64_t i = 0; i < kOfBag; ++i) indices.push_back(random->Int(0, kRows - 1));
    }
    offsets.push_back(indices.size());
    indices.resize(indices.size() + kOfGiant, 3);
    bags.indices = indices.data();
    bags.num_indices = indices.size();
    bags.bounds = offsets.data();
    bags.count = offsets.size();
    bags.default_index = 1;
    weights = RandomNumbers<T>(random, indices.size());
    grad = RandomNumbers<T>(random, bags.count * kWidth);
  }

  Table<T> get_table() const { return {table.data(), kRows, kWidth}; }

  std::vector<T> table, weights, grad;
  std::vector<int64_t> indices, offsets;
  Bags<int64_t> bags;
};

template <typename T>
class BagsMemoryTest : public testing::Test {
 protected:
  BagsMemoryTest() : random(1), call(&random) {}

  Random random;
  Call<T> call;
};
using Types = testing::Types<float, Half>;
TYPED_TEST_SUITE(BagsMemoryTest, Types);

TYPED_TEST(BagsMemoryTest, LookUps) {
  using T = TypeParam;
  const auto& call = this->call;
  std::vector<T> out(call.bags.count * kWidth);
  std::vector<int64_t> argmax(out.size());
  RunOutOfMemory({Written(&out)}, false, [&](Parallel* parallel) {
    EXPECT_EQ(PoolBags(call.get_table(), call.bags, {call.weights.data(), nullptr},
                       Reduction::kMean, parallel, out.data(), static_cast<int64_t*>(nullptr)),
              "");
  });
  RunOutOfMemory({Written(&out), Written(&argmax)}, false, [&](Parallel* parallel) {
    EXPECT_EQ(PoolBags(call.get_table(), call.bags, {}, Reduction::kMax, parallel, out.data(),
                       argmax.data()),
              "");
  });
}

TYPED_TEST(BagsMemoryTest, GradientsOfTables) {
  using T = TypeParam;
  const auto& call = this->call;
  std::vector<int64_t> argmax(call.bags.count * kWidth);
  std::vector<T> out(argmax.size());
  OnCaller alone;
  PoolBags(call.get_table(), call.bags, {}, Reduction::kMax, &alone, out.data(), argmax.data());
  std::vector<int64_t> rows(kRows);
  std::vector<T> values(kRows * kWidth);
  for (const Reduction reduction : {Reduction::kSqrtN, Reduction::kMax}) {
    RunOutOfMemory({Written(&rows), Written(&values)}, false, [&](Parallel* parallel) {
      TableGradient<T, int64_t> gradient;
      const bool is_max = reduction == Reduction::kMax;
      EXPECT_EQ(gradient.Init(call.bags, {}, reduction, is_max ? argmax.data() : nullptr, kRows,
                              kWidth, parallel),
                "");
      gradient.Compute(call.grad.data(), parallel, rows.data(), values.data());
    });
  }
}

TYPED_TEST(BagsMemoryTest, GradientsOfWeights) {
  using T = TypeParam;
  const auto& call = this->call;
  std::vector<T> gradient(call.indices.size());
  RunOutOfMemory({Written(&gradient)}, false, [&](Parallel* parallel) {
    EXPECT_EQ(WeightsGradient(call.get_table(), call.bags, {call.weights.data(), nullptr},
                              Reduction::kMean, call.grad.data(), parallel,
                              WeightsOutput<T>{gradient.data(), nullptr}),
              "");
  });
}

// Of bags, of rows that come again, and of rows that ascend.
TYPED_TEST(BagsMemoryTest, UpdatesWriteAllOrNothing) {
  using T = TypeParam;
  auto& call = this->call;
  RowGradientsOf<T, int64_t> of_bags;
  of_bags.bags = call.bags;
  of_bags.grad = call.grad.data();
  of_bags.num_rows = kRows;
  of_bags.width = kWidth;
  const int64_t count = call.indices.size();
  const std::vector<T> values = RandomNumbers<T>(&this->random, count * kWidth);
  std::vector<int64_t> ascending(kRows);
  std::iota(ascending.begin(), ascending.end(), 0);
  std::vector<Sum<T>> m(kRows * kWidth), v(kRows);
  AdamNumbers adam;
  adam.learning_rate = adam.epsilon = 0.125;
  adam.beta_1 = adam.beta_2 = 0.5;
  AdagradNumbers adagrad;
  adagrad.learning_rate = adagrad.epsilon = 0.125;
  for (const auto& gradients :
       {of_bags, GradientsOfRows(call.indices.data(), values.data(), count, kRows, kWidth),
        GradientsOfRows(ascending.data(), values.data(), kRows, kRows, kWidth)}) {
    RunOutOfMemory({Written(&call.table)}, true, [&](Parallel* parallel) {
      DecayedScatterSub(gradients, 0.5, 0.125, parallel, call.table.data());
    });
    RunOutOfMemory({Written(&call.table), Written(&m), Written(&v)}, true, [&](Parallel* parallel) {
      AdamUpdate(gradients, adam, m.data(), {v.data(), true}, parallel, call.table.data());
    });
    RunOutOfMemory({Written(&call.table), Written(&m)}, true, [&](Parallel* parallel) {
      AdagradUpdate(gradients, adagrad, {m.data(), false}, parallel, call.table.data());
    });
    if (!gradients.are_rows) continue;
    RunOutOfMemory({Written(&call.table)}, true, [&](Parallel* parallel) {
      ScatterSub(gradients, Sum<T>(2), parallel, call.table.data());
    });
  }
}

TEST(BagsMemoryTest, Partitions) {
  Random random(1);
  const Call<float> call(&random);
  const Shards shards(kRows, 3, PartitionStrategy::kMod);
  std::vector<int64_t> ids(call.indices.size());
  RunOutOfMemory({Written(&ids)}, false, [&](Parallel* parallel) {
    Buffer<bool> is_empty(call.bags.count);
    BagPartition<int64_t> partition(call.bags, shards);
    EXPECT_EQ(partition.Init(parallel, is_empty.data()), "");
    std::vector<std::vector<int64_t>> memory;
    std::vector<ShardBags<int64_t>> outputs;
    int64_t begin = 0;
    for (int64_t k = 0; k < shards.count(); ++k) {
      const int64_t num_bags = partition.num_bags(k);
      ShardBags<int64_t> output{};
      output.ids = ids.data() + begin;
      output.offsets = memory.emplace_back(num_bags).data();
      output.bags = memory.emplace_back(num_bags).data();
      outputs.push_back(output);
      begin += partition.num_ids(k);
    }
    partition.Fill(parallel, outputs);
  });
}

}  // namespace
}  // namespace tf_ti
