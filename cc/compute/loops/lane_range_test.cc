#include "cc/compute/loops/lane_range.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

// An array [outer, lanes, inner] of bytes, whose elements are their numbers.
struct Shape {
  int64_t outer, lanes, inner;
  int64_t bytes() const { return outer * lanes * inner; }
};

std::vector<char> Numbers(int64_t count) {
  std::vector<char> numbers(count);
  for (int64_t i = 0; i < count; ++i) numbers[i] = static_cast<char>(i * 7);
  return numbers;
}

std::vector<char> PartOf(const std::vector<char>& all, const Shape& shape, const LaneRange& range) {
  std::vector<char> part;
  for (int64_t o = 0; o < shape.outer; ++o) {
    for (int64_t i = 0; i < range.size * shape.inner; ++i) {
      part.push_back(all[(o * shape.lanes + range.first) * shape.inner + i]);
    }
  }
  return part;
}

void ForRandomRanges(const std::function<void(Random*, const Shape&, const LaneRange&)>& test) {
  ForRandomCases(1000, [&](Random* random) {
    const Shape shape = {random->Int(1, 3), random->Int(2, 9), random->Int(1, 4)};
    LaneRange range;
    range.count = shape.lanes;
    range.first = random->Int(0, shape.lanes - 2);
    range.size = random->Int(1, shape.lanes - range.first);
    test(random, shape, range);
  });
}

TEST(LaneRange, ReadsAndWritesItsLanes) {
  ForRandomRanges([](Random*, const Shape& shape, const LaneRange& range) {
    const std::vector<char> all = Numbers(shape.bytes()), part = PartOf(all, shape, range);
    ASSERT_EQ(range.BytesOf(shape.bytes(), shape.inner), static_cast<int64_t>(part.size()));
    std::vector<char> read(part.size());
    range.Read(all.data(), shape.bytes(), shape.inner, read.data());
    EXPECT_EQ(read, part);
    std::vector<char> written(all.size(), 1), expected(all.size(), 1);
    range.Write(part.data(), shape.bytes(), shape.inner, written.data());
    for (int64_t o = 0; o < shape.outer; ++o) {
      const int64_t begin = (o * shape.lanes + range.first) * shape.inner;
      std::memcpy(&expected[begin], &all[begin], range.size * shape.inner);
    }
    EXPECT_EQ(written, expected);
  });
}

TEST(LaneRange, AnArrayWithoutLanesIsTakenAsAWhole) {
  const LaneRange range = {5, 2, 2};
  const std::vector<char> all = Numbers(30);
  std::vector<char> read(all.size());
  range.Read(all.data(), 30, 0, read.data());
  EXPECT_EQ(read, all);
}

// Pieces of an array [outer, lanes, inner] that lie apart in blocks.
TEST(LaneRange, APartOfPiecesIsThatOfEachPiece) {
  int num_parts = 0;
  ForRandomRanges([&](Random* random, const Shape& shape, const LaneRange& range) {
    Walk walk;
    const int64_t choices[] = {1, shape.outer, shape.outer * shape.lanes, shape.bytes()};
    walk.num_blocks = choices[random->Int(0, 3)];
    const int64_t block = shape.bytes() / walk.num_blocks;
    const int64_t gap = random->Int(0, 5);
    walk.block_stride = block + gap;
    walk.step = walk.num_blocks * walk.block_stride;
    const int64_t count = 3;
    std::vector<char> memory = Numbers(count * walk.step);
    walk.base = memory.data();
    const std::optional<Walk> part = range.PartOf(walk, shape.bytes(), shape.inner);
    num_parts += part.has_value();
    if (!part.has_value()) {
      EXPECT_GT(walk.num_blocks, 1);
      return;
    }
    for (int64_t index = 0; index < count; ++index) {
      std::vector<char> piece(shape.bytes());
      walk.Read(index, shape.bytes(), piece.data());
      const std::vector<char> expected = PartOf(piece, shape, range);
      std::vector<char> read(expected.size());
      part->Read(index, static_cast<int64_t>(read.size()), read.data());
      EXPECT_EQ(read, expected);
    }
  });
  EXPECT_GT(num_parts, 500);
}

TEST(LaneRange, APartOfAValueIsItsLanes) {
  ForRandomRanges([](Random* random, const Shape& shape, const LaneRange& range) {
    const std::vector<char> all = Numbers(shape.bytes()), expected = PartOf(all, shape, range);
    std::vector<Buffer<char>> copies;
    const bool is_state = random->Chance(0.5);
    const LoopValue value = is_state ? LoopValue::State(1, all.data(), shape.bytes())
                                     : LoopValue::Fixed(all.data(), shape.bytes());
    const std::optional<LoopValue> part = range.PartOf(value, shape.inner, &copies);
    ASSERT_TRUE(part.has_value());
    EXPECT_EQ(part->bytes(), static_cast<int64_t>(expected.size()));
    EXPECT_EQ(part->source(), is_state ? 1 : -1);
    EXPECT_EQ(copies.size(), shape.outer > 1 ? 1u : 0u);
    const Homes homes({*part, LoopValue::Made(part->bytes())}, {}, {}, 0);
    EXPECT_EQ(std::memcmp(homes.At(0, 0), expected.data(), expected.size()), 0);
  });
}

TEST(LaneRange, AddressesThatAreListedMoveToTheFirstLane) {
  const std::vector<char> all = Numbers(100);
  const LaneRange range = {5, 2, 2};
  const auto value = LoopValue::Listed({&all[0], &all[10], &all[70]}, 10);
  std::vector<Buffer<char>> copies;
  const std::optional<LoopValue> part = range.PartOf(value, 2, &copies);
  ASSERT_TRUE(part.has_value());
  const Homes homes({*part}, {}, {}, 0);
  EXPECT_EQ(homes.At(0, 2), &all[74]);
  // Lanes that lie apart have no addresses.
  EXPECT_FALSE(range.PartOf(value, 1, &copies).has_value());
}

}  // namespace
}  // namespace tf_ti
