#include "cc/compute/loops/pieces.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cc/compute/loops/blocks.h"

namespace tf_ti {
namespace {

using Elements = std::vector<int64_t>;

// The pieces of a range by enumeration: step after step of the stride, as far as whole pieces of
// elements lie between start and end. Returns false where there are none, or where pieces that
// should tile the range do not.
bool Enumerate(const Range& range, int64_t extent, std::vector<Elements>* pieces) {
  pieces->clear();
  const bool forward = range.stride > 0;
  if (extent == 0) return range.start == (forward ? 0 : -1) && range.end == (forward ? -1 : 0);
  const int64_t start = range.start < 0 ? extent + range.start : range.start;
  const int64_t end = range.end < 0 ? extent + range.end : range.end;
  for (const int64_t bound : {start, end}) {
    if (bound < 0 || bound >= extent) return false;
  }
  Elements covered;  // from start to end, in that order
  for (int64_t i = start; forward ? i <= end : i >= end; i += forward ? 1 : -1) {
    covered.push_back(i);
  }
  const int64_t length = covered.size(), step = forward ? range.stride : -range.stride;
  const bool tiles = step == range.part_size;
  for (int64_t at = 0; at < length; at += step) {
    Elements piece;
    for (int64_t i = at; i < std::min(length, at + range.part_size); ++i) {
      piece.push_back(covered[i]);
    }
    if (static_cast<int64_t>(piece.size()) < range.part_size) {
      if (tiles && !range.short_last) return false;
      if (!tiles) break;
    }
    if (!forward) piece = Elements(piece.rbegin(), piece.rend());
    pieces->push_back(piece);
  }
  return !pieces->empty();
}

TEST(PiecesTest, AllSmallRanges) {
  int64_t num_right = 0;
  std::vector<Elements> expected;
  for (int64_t extent = 0; extent <= 6; ++extent) {
    for (int64_t start = -extent - 2; start <= extent + 1; ++start) {
      for (int64_t end = -extent - 2; end <= extent + 1; ++end) {
        for (int64_t stride = -4; stride <= 4; ++stride) {
          for (int64_t part_size = 1; part_size <= 4; ++part_size) {
            for (const bool short_last : {false, true}) {
              if (stride == 0) continue;
              const Range range{start, end, stride, part_size, short_last};
              SCOPED_TRACE(range.DebugString() + " over " + std::to_string(extent));
              Pieces pieces;
              const std::string error = ResolvePieces(range, extent, &pieces);
              ASSERT_EQ(error.empty(), Enumerate(range, extent, &expected)) << error;
              if (!error.empty()) continue;
              ++num_right;
              ASSERT_EQ(pieces.count, static_cast<int64_t>(expected.size()));
              for (int64_t k = 0; k < pieces.count; ++k) {
                ASSERT_EQ(pieces.Size(k), static_cast<int64_t>(expected[k].size())) << k;
                for (int64_t i = 0; i < pieces.Size(k); ++i) {
                  ASSERT_EQ(pieces.Begin(k) + i, expected[k][i]) << k;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_GT(num_right, 1000);
}

TEST(PiecesTest, TheExamplesOfTheHeader) {
  Pieces pieces;
  ASSERT_EQ(ResolvePieces({-1, 0, -2, 2}, 6, &pieces), "");
  ASSERT_EQ(pieces.count, 3);
  EXPECT_EQ(pieces.Begin(0), 4);
  EXPECT_EQ(pieces.Begin(1), 2);
  EXPECT_EQ(pieces.Begin(2), 0);
  ASSERT_EQ(ResolvePieces({0, -1, 1, 3}, 5, &pieces), "");
  ASSERT_EQ(pieces.count, 3);
  EXPECT_EQ(pieces.Begin(2), 2);
  EXPECT_EQ(pieces.Size(2), 3);
}

TEST(PiecesTest, ErrorsSayWhatIsWrong) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
  constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
  const auto error = [](const Range& range, int64_t extent) {
    Pieces pieces;
    return ResolvePieces(range, extent, &pieces);
  };
  EXPECT_EQ(error({0, -1, 0, 1}, 3), "stride must not be 0");
  EXPECT_EQ(error({0, -1, kLowest, 1}, 3), "stride is too large");
  EXPECT_EQ(error({0, -1, 1, 0}, 3), "part_size must be at least 1, got 0");
  EXPECT_EQ(error({0, -1, 2, 2}, 3),
            "pieces of 2 do not tile the range's 3 elements: start=0 end=-1 stride=2 part_size=2 "
            "over 3 elements");
  // Numbers that a sum would overflow with.
  for (const int64_t number : {kLowest, kHighest}) {
    EXPECT_NE(error({number, -1, 1, 1}, 3), "");
    EXPECT_NE(error({0, number, 1, 1}, 3), "");
    EXPECT_NE(error({0, -1, 1, number}, 3), "");
  }
  EXPECT_EQ(error({0, -1, kHighest, 1}, 3), "");
  EXPECT_EQ(error({-1, 0, -kHighest, 1}, 3), "");
}

template <typename T>
void ExpectWrap() {
  constexpr T kLowest = std::numeric_limits<T>::min(), kHighest = std::numeric_limits<T>::max();
  const T values[] = {1, kHighest};
  T sums[] = {kHighest, kHighest};
  AddTo(2, values, sums);
  EXPECT_EQ(sums[0], kLowest);
  EXPECT_EQ(sums[1], static_cast<T>(kLowest + (kHighest - 1)));
}

// TensorFlow's sums wrap around, too.
TEST(BlocksTest, SumsOfIntegersWrapAround) {
  ExpectWrap<int8_t>();
  ExpectWrap<int16_t>();
  ExpectWrap<int32_t>();
  ExpectWrap<int64_t>();
  ExpectWrap<uint8_t>();
  ExpectWrap<uint64_t>();
}

}  // namespace
}  // namespace tf_ti
