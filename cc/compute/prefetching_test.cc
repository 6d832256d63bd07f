// What TF_TI_PREFETCH may say.
#include "cc/compute/prefetching.h"

#include <gtest/gtest.h>

namespace tf_ti {
namespace {

void ExpectSame(const Prefetching& found, const Prefetching& expected) {
  EXPECT_EQ(found.every_line, expected.every_line);
  EXPECT_EQ(found.distance, expected.distance);
}

TEST(PrefetchingTest, IsTheOneAskedFor) {
  EXPECT_TRUE(ChoosePrefetching("lines").every_line);
  EXPECT_FALSE(ChoosePrefetching("pairs").every_line);
  ExpectSame(ChoosePrefetching("lines,0"), {true, 0});
  ExpectSame(ChoosePrefetching("lines,1024"), {true, 1024});
  ExpectSame(ChoosePrefetching("pairs,7"), {false, 7});
}

TEST(PrefetchingTest, IsThatOfTheProcessorWhereNoneIsAskedFor) {
  const Prefetching usual = ChoosePrefetching(nullptr);
  EXPECT_GT(usual.distance, 0);
  for (const char* const wrong : {"", "line", "lines ", "lines,", "pairs,x", "pairs,7x", "pairs,-1",
                                  "lines,1025", "pairs;7", "lines,99999999999999999999999"}) {
    ExpectSame(ChoosePrefetching(wrong), usual);
  }
}

}  // namespace
}  // namespace tf_ti
