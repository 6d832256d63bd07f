// Walks over random bags of each kind, whole and in parts, beside the bags that they were made of;
// bad bounds and indices, each of which must be found and named.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cc/compute/bags/walk-inl.h"
#include "cc/compute/testing/bags.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

struct Step {
  int64_t bag, begin, end;

  bool operator==(const Step& other) const {
    return bag == other.bag && begin == other.begin && end == other.end;
  }
};

// Walks over the bags in `parts` parts, partly many at once. Returns false where the bounds are
// found wrong.
template <typename Index>
bool Walk(const Bags<Index>& bags, int64_t parts, int64_t most, int64_t largest,
          std::vector<Step>* steps) {
  const std::vector<int64_t> first = SplitBags(bags, parts);
  EXPECT_EQ(first.size(), static_cast<size_t>(parts) + 1);
  EXPECT_EQ(first.front(), 0);
  EXPECT_EQ(first.back(), bags.count);
  bool ok = true;
  for (int64_t part = 0; part < parts; ++part) {
    EXPECT_LE(first[part], first[part + 1]);
    BagWalk<Index> walk(bags, first[part], first[part + 1]);
    Guarded<int64_t> bounds(most + 1);
    for (bool more = true; more;) {
      const int64_t count = most == 0 ? 0 : walk.NextMany(most, largest, bounds.data());
      EXPECT_LE(count, most);
      for (int64_t k = 0; k < count; ++k) {
        EXPECT_LE(bounds[k + 1] - bounds[k], largest);
        steps->push_back({walk.bag() + 1 - count + k, bounds[k], bounds[k + 1]});
      }
      if (count > 0) {
        EXPECT_EQ(walk.begin(), bounds[count - 1]);
        EXPECT_EQ(walk.end(), bounds[count]);
      }
      more = walk.Next();
      if (more) steps->push_back({walk.bag(), walk.begin(), walk.end()});
    }
    ok = ok && walk.ok();
  }
  return ok;
}

template <typename Index>
void TestWalk(Random* random) {
  const RandomBags<Index> bags(random, {});
  std::vector<Step> expected;
  for (int64_t bag = 0; bag < bags.get().count; ++bag) {
    expected.push_back({bag, bags.begins()[bag], bags.ends()[bag]});
  }
  for (const int64_t parts : {1, 2, 7}) {
    std::vector<Step> steps;
    EXPECT_TRUE(Walk(bags.get(), parts, random->Int(0, 9), random->Int(0, 12), &steps));
    EXPECT_EQ(steps == expected, true) << parts << " parts";
  }
}

TEST(WalkTest, GoesOverEachBagOnce) {
  ForRandomCases(1000, TestWalk<int32_t>);
  ForRandomCases(1000, TestWalk<int64_t>);
}

TEST(WalkTest, PartsHaveAboutTheSameSize) {
  ForRandomCases(300, [](Random* random) {
    const RandomBags<int64_t> bags(random, {50, 400, 12});
    const int64_t parts = random->Int(2, 9);
    const std::vector<int64_t> first = SplitBags(bags.get(), parts);
    int64_t total = 0, largest = 0;
    const auto size = [&](int64_t bag) { return 1 + bags.ends()[bag] - bags.begins()[bag]; };
    for (int64_t bag = 0; bag < bags.get().count; ++bag) {
      total += size(bag);
      largest = std::max(largest, size(bag));
    }
    for (int64_t part = 0; part < parts; ++part) {
      int64_t sum = 0;
      for (int64_t bag = first[part]; bag < first[part + 1]; ++bag) sum += size(bag);
      EXPECT_LE(sum, total / parts + largest + 1);
    }
  });
}

// A message about bounds, by the definition: about the first of them that is wrong.
std::string MessageFor(const std::vector<int64_t>& bounds, bool are_segments, int64_t num_indices,
                       int64_t count) {
  const std::string name = are_segments ? "segment_ids" : "offsets";
  for (size_t i = 0; i < bounds.size(); ++i) {
    const std::string at = name + "[" + std::to_string(i) + "] is " + std::to_string(bounds[i]);
    if (i > 0 && bounds[i] < bounds[i - 1]) {
      return at + ", but " + name + "[" + std::to_string(i - 1) + "] is " +
             std::to_string(bounds[i - 1]) + " before it";
    }
    if (bounds[i] < 0) return at + ", which is negative";
    if (are_segments && bounds[i] >= count) {
      return at + ", but num_segments is " + std::to_string(count);
    }
    if (!are_segments && bounds[i] > num_indices) {
      return at + ", but there are " + std::to_string(num_indices) + " indices";
    }
  }
  return "";
}

template <typename Index>
void TestBadBounds(Random* random) {
  const RandomBags<Index> good(random, {});
  Bags<Index> bags = good.get();
  const bool are_segments = bags.kind == BagKind::kSegments;
  const int64_t size = are_segments ? bags.num_indices : bags.count + bags.include_last_offset;
  if (bags.kind == BagKind::kPacked || size == 0) return;
  std::vector<Index> changed(bags.bounds, bags.bounds + size);
  for (int64_t times = random->Int(1, 3); times > 0; --times) {
    Index& bound = changed[random->Int(0, size - 1)];
    constexpr Index kLeast = std::numeric_limits<Index>::min();
    constexpr Index kMost = std::numeric_limits<Index>::max();
    bound = random->Pick<Index>(
        {static_cast<Index>(int64_t{bound} ^ 1), static_cast<Index>(int64_t{bound} ^ 2), -1,
         static_cast<Index>(bags.num_indices + 1), static_cast<Index>(bags.count), kLeast, kMost});
  }
  const Guarded<Index> bounds(changed);
  bags.bounds = bounds.data();
  const std::string expected =
      MessageFor({changed.begin(), changed.end()}, are_segments, bags.num_indices, bags.count);
  EXPECT_EQ(Problem::DescribeBounds(bags), expected);
  for (const int64_t parts : {1, 2, 7}) {
    std::vector<Step> steps;
    EXPECT_EQ(Walk(bags, parts, random->Int(0, 9), random->Int(0, 12), &steps), expected.empty())
        << parts << " parts, " << expected;
    for (const Step& step : steps) {
      // Even then, nothing may be read outside.
      EXPECT_LE(0, step.begin);
      EXPECT_LE(step.begin, step.end);
      EXPECT_LE(step.end, bags.num_indices);
    }
  }
}

TEST(WalkTest, FindsBadBounds) {
  ForRandomCases(2000, TestBadBounds<int32_t>);
  ForRandomCases(2000, TestBadBounds<int64_t>);
}

TEST(WalkTest, FindsTheFirstBadIndexInEachPart) {
  ForRandomCases(500, [](Random* random) {
    const RandomBags<int32_t> good(random, {});
    Bags<int32_t> bags = good.get();
    if (bags.num_indices == 0) return;
    std::vector<int32_t> changed(bags.indices, bags.indices + bags.num_indices);
    const int64_t position = random->Int(0, bags.num_indices - 1);
    const auto bad = static_cast<int32_t>(
        random->Pick<int64_t>({-7, good.num_rows() + 7, std::numeric_limits<int32_t>::min()}));
    changed[position] = bad;
    const Guarded<int32_t> indices(changed);
    bags.indices = indices.data();
    Problem problem;
    EXPECT_TRUE(CheckIndices(bags, 0, position, good.num_rows(), &problem));
    EXPECT_TRUE(CheckIndices(bags, position + 1, bags.num_indices, good.num_rows(), &problem));
    EXPECT_FALSE(problem.found());
    EXPECT_FALSE(CheckIndices(bags, 0, bags.num_indices, good.num_rows(), &problem));
    std::string place = std::to_string(position);
    if (bags.kind == BagKind::kPacked) {
      const int64_t width = bags.num_indices / bags.count;
      place = std::to_string(position / width) + ", " + std::to_string(position % width);
    }
    const std::string expected = "indices[" + place + "] is " + std::to_string(bad) +
                                 ", but emb_table has " + std::to_string(good.num_rows()) + " rows";
    EXPECT_EQ(problem.Describe(bags, good.num_rows()), expected);
    EXPECT_EQ(CheckWithoutWalk(bags, good.num_rows()), expected);
  });
}

TEST(WalkTest, NamesTheFirstOfSeveralProblems) {
  const std::vector<int64_t> ids = {0, 9, 1, 8};
  const std::vector<int64_t> offsets = {0, 2};
  Bags<int64_t> bags;
  bags.indices = ids.data();
  bags.num_indices = 4;
  bags.bounds = offsets.data();
  bags.count = 2;
  Problem problem;
  for (const int64_t position : {3, 1, 2}) problem.AtIndex(position);
  EXPECT_EQ(problem.Describe(bags, 5), "indices[1] is 9, but emb_table has 5 rows");
}

// Indices before the first bag and behind the last one must be rows, too.
TEST(WalkTest, ChecksIndicesInNoBag) {
  const std::vector<int32_t> offsets = {1, 2, 3};
  for (const int64_t position : {0, 1, 3}) {
    std::vector<int32_t> ids = {0, 0, 0, 0};
    ids[position] = 5;
    Bags<int32_t> bags;
    bags.indices = ids.data();
    bags.num_indices = 4;
    bags.bounds = offsets.data();
    bags.count = 2;
    bags.include_last_offset = true;
    Problem problem;
    EXPECT_EQ(CheckOutside(bags, 5, &problem), "");
    EXPECT_EQ(problem.found(), position != 1);
    bags.has_padding = true;
    bags.padding_idx = 5;
    Problem none;
    EXPECT_EQ(CheckOutside(bags, 5, &none), "");
    EXPECT_FALSE(none.found());
  }
}

TEST(WalkTest, TheDefaultIndexIsARowOrMinusOne) {
  Bags<int32_t> bags;
  Problem problem;
  bags.default_index = -1;
  EXPECT_EQ(CheckOutside(bags, 5, &problem), "");
  bags.default_index = 4;
  EXPECT_EQ(CheckOutside(bags, 5, &problem), "");
  bags.default_index = 5;
  EXPECT_EQ(CheckOutside(bags, 5, &problem), "default_index is 5, but emb_table has 5 rows");
  bags.default_index = -2;
  EXPECT_EQ(CheckOutside(bags, 5, &problem),
            "default_index is -2; it must be a row of emb_table, or -1");
}

TEST(WalkTest, APieceOfAGiantDependsOnItsSizeAlone) {
  EXPECT_EQ(PieceOfGiant(kGiant + 1), 8192);
  EXPECT_EQ(PieceOfGiant(64 * 8192), 8192);
  EXPECT_EQ(PieceOfGiant(64 * 8192 + 1), 8193);
}

}  // namespace
}  // namespace tf_ti
