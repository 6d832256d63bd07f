#include "cc/compute/loops/walk.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tf_ti {
namespace {

// An array of count x num_blocks x size bytes, as pieces or transposed to blocks of pieces, that a
// walk leads through in either direction.
struct Case {
  int64_t count;
  int64_t num_blocks;
  int64_t size;  // of a block, in bytes
  int64_t gap;   // after a block, in bytes
  bool is_transposed;
  bool is_backward;

  int64_t bytes() const { return num_blocks * size; }
  int64_t OffsetOf(int64_t piece, int64_t block) const {
    const int64_t place = is_transposed ? block * count + piece : piece * num_blocks + block;
    return place * (size + gap);
  }
  Walk WalkIn(std::vector<char>* array) const {
    Walk walk;
    walk.base = array->data() + OffsetOf(is_backward ? count - 1 : 0, 0);
    walk.step = (is_backward ? -1 : 1) * (OffsetOf(1, 0) - OffsetOf(0, 0));
    walk.num_blocks = num_blocks;
    walk.block_stride = OffsetOf(0, 1) - OffsetOf(0, 0);
    return walk;
  }
  int64_t PieceOf(int64_t index) const { return is_backward ? count - 1 - index : index; }
};

std::vector<char> Numbered(int64_t size) {
  std::vector<char> bytes(size);
  for (int64_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(1 + i % 101);
  return bytes;
}

template <typename Check>
void ForEachCase(const Check& check) {
  for (const int64_t num_blocks : {1, 2, 5}) {
    for (const int64_t size : {1, 2, 3, 4, 8, 24}) {
      for (const int64_t gap : {int64_t{0}, int64_t{1}, size}) {
        for (const bool is_transposed : {false, true}) {
          for (const bool is_backward : {false, true}) {
            SCOPED_TRACE(testing::Message() << num_blocks << " blocks of " << size << " and " << gap
                                            << ' ' << is_transposed << is_backward);
            check(Case{5, num_blocks, size, gap, is_transposed, is_backward});
            if (testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(WalkTest, ReadsEachPiece) {
  ForEachCase([](const Case& given) {
    std::vector<char> array = Numbered(given.count * given.num_blocks * (given.size + given.gap));
    const Walk walk = given.WalkIn(&array);
    for (int64_t index = 0; index < given.count; ++index) {
      std::vector<char> expected;
      for (int64_t block = 0; block < given.num_blocks; ++block) {
        const auto from = array.begin() + given.OffsetOf(given.PieceOf(index), block);
        expected.insert(expected.end(), from, from + given.size);
      }
      std::vector<char> found(given.bytes());
      walk.Read(index, given.bytes(), found.data());
      EXPECT_EQ(found, expected);
    }
  });
}

TEST(WalkTest, WritesEachPieceAndNothingBetween) {
  ForEachCase([](const Case& given) {
    std::vector<char> array(given.count * given.num_blocks * (given.size + given.gap), 0);
    std::vector<char> expected = array;
    const Walk walk = given.WalkIn(&array);
    const std::vector<char> piece = Numbered(given.bytes());
    for (int64_t index = 0; index < given.count; ++index) {
      walk.Write(index, given.bytes(), piece.data());
      for (int64_t i = 0; i < given.bytes(); ++i) {
        const int64_t block = i / given.size;
        expected[given.OffsetOf(given.PieceOf(index), block) + i % given.size] = piece[i];
      }
      EXPECT_EQ(array, expected);
    }
  });
}

TEST(WalkTest, WritesOnlyIndicesThatHaveAPiece) {
  std::vector<char> array(3, 0);
  Walk walk;
  walk.base = array.data();
  walk.step = 1;
  walk.every = 3;
  for (int64_t index = 0; index < 9; ++index) {
    const char element = static_cast<char>(10 + index);
    walk.Write(index, 1, &element);
  }
  EXPECT_EQ(array, (std::vector<char>{10, 13, 16}));
}

TEST(WalkTest, APieceMayBeEmpty) {
  Walk walk;
  walk.num_blocks = 2;
  walk.Read(0, 0, nullptr);
  walk.Write(0, 0, nullptr);
}

}  // namespace
}  // namespace tf_ti
