// Sequences beside their definition in long double: all kinds of cells, options and ways in which
// threads share the steps.

#include "cc/compute/recurrent/sequence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/compute/recurrent/testing/sequence_case.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

constexpr CellKind kKinds[] = {CellKind::kLstm, CellKind::kGru, CellKind::kGruLinearBeforeReset,
                               CellKind::kRnn};

template <typename S>
class SequenceTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SequenceTest, Types);

TYPED_TEST(SequenceTest, SmallOnes) {
  using S = TypeParam;
  OnCaller alone;
  ForRandomCases(1200, [&](Random* random) {
    const SequenceSizes sizes{random->Int(0, 5), random->Int(0, 5), random->Int(0, 9),
                              random->Int(1, 40)};
    const auto given =
        DrawSequence<S>(random, kKinds[random->Int(0, 3)], sizes, random->Chance(0.5));
    SCOPED_TRACE(given.DebugString());
    RunSequence(given.args, &alone);
    ExpectResults(given);
  });
}

// Threads share rows where weights are few, units where they are many. Of many steps, the inputs of
// some are multiplied at a time.
TYPED_TEST(SequenceTest, ThoseThatThreadsShare) {
  using S = TypeParam;
  RealThreads threads(4);
  OnCaller nobody_comes(4), alone;
  ForRandomCases(40, [&](Random* random) {
    const bool by_rows = random->Chance(0.5);
    const SequenceSizes sizes = by_rows ? SequenceSizes{random->Int(10, 40), random->Int(12, 50),
                                                        random->Int(0, 9), random->Int(8, 20)}
                                        : SequenceSizes{random->Int(4, 12), random->Int(1, 12),
                                                        random->Int(0, 9), random->Int(70, 140)};
    const auto given =
        DrawSequence<S>(random, kKinds[random->Int(0, 3)], sizes, random->Chance(0.5));
    SCOPED_TRACE(given.DebugString());
    RunSequence(given.args, random->Pick<Parallel*>({&threads, &threads, &nobody_comes}));
    ExpectResults(given);
    // Threads make no difference, not even in the last place.
    std::vector<S> y, again;
    for (int64_t i = 0; i < given.y.size(); ++i) y.push_back(given.y[i]);
    RunSequence(given.args, &alone);
    for (int64_t i = 0; i < given.y.size(); ++i) again.push_back(given.y[i]);
    ASSERT_EQ(std::memcmp(y.data(), again.data(), y.size() * sizeof(S)), 0);
  });
}

// Many weights for a few rows, whose columns lie side by side, are not packed; of many steps, those
// of states are.
TYPED_TEST(SequenceTest, ThoseThatReadWeightsWhereTheyAre) {
  using S = TypeParam;
  RealThreads threads(3);
  OnCaller alone;
  ForRandomCases(16, [&](Random* random) {
    const CellKind kind = kKinds[random->Int(0, 3)];
    const int64_t hidden = kind == CellKind::kRnn ? 384 : 256;
    const bool are_many = random->Chance(0.3);
    const SequenceSizes sizes{are_many ? random->Int(8, 10) : random->Int(1, 3),
                              are_many ? 1 : random->Int(1, 2), random->Pick({3, 384}), hidden};
    const auto given = DrawSequence<S>(random, kind, sizes, random->Chance(0.5));
    SCOPED_TRACE(given.DebugString());
    RunSequence(given.args, random->Pick<Parallel*>({&threads, &alone}));
    ExpectResults(given);
  });
}

TYPED_TEST(SequenceTest, ThoseThatAreCancelled) {
  using S = TypeParam;
  RealThreads threads(4);
  OnCaller alone;
  ForRandomCases(40, [&](Random* random) {
    const SequenceSizes sizes{random->Int(10, 20), random->Int(1, 6), 3, random->Int(60, 100)};
    auto given = DrawSequence<S>(random, kKinds[random->Int(0, 3)], sizes, false);
    SCOPED_TRACE(given.DebugString());
    std::atomic<int64_t> num_asked{0};
    const int64_t most = random->Pick({0, 1, 3, 8});
    given.args.goes_on = [&] { return num_asked++ < most; };
    RunSequence(given.args, random->Pick<Parallel*>({&threads, &alone}));
    // Each step is for all rows, or for all units, of a part: some are left out.
    int64_t num_written = 0;
    for (int64_t i = 0; i < given.y.size(); ++i) num_written += !std::isnan(given.y[i]);
    EXPECT_LT(num_written, given.y.size());
    EXPECT_TRUE(most > 0 || num_written == 0);
  });
}

}  // namespace
}  // namespace tf_ti
