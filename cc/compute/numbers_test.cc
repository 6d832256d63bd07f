#include "cc/compute/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace tf_ti {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

TEST(NumbersTest, HalvesSumInFloatAndIntegersIn64Bits) {
  EXPECT_TRUE((std::is_same_v<Sum<Half>, float>));
  EXPECT_TRUE((std::is_same_v<Sum<BFloat16>, float>));
  EXPECT_TRUE((std::is_same_v<Sum<double>, double>));
  EXPECT_TRUE((std::is_same_v<Sum<std::complex<float>>, std::complex<float>>));
  EXPECT_TRUE((std::is_same_v<Sum<int8_t>, int64_t>));
  EXPECT_TRUE((std::is_same_v<Sum<uint32_t>, uint64_t>));
}

TEST(NumbersTest, IntegersWrapAround) {
  EXPECT_EQ(AddSums(kHighest, int64_t{1}), kLowest);
  EXPECT_EQ(AddSums(kLowest, int64_t{-1}), kHighest);
  EXPECT_EQ(MultiplySums(kHighest, int64_t{2}), -2);
  EXPECT_EQ(MultiplySums(kLowest, int64_t{-1}), kLowest);
  EXPECT_EQ(AddSums(0.5, 0.25), 0.75);
  EXPECT_EQ(MultiplySums(0.5f, -3.0f), -1.5f);
}

TEST(NumbersTest, NothingIsDividedByZero) {
  EXPECT_EQ(DivideNoNan(int64_t{7}, int64_t{0}), 0);
  EXPECT_EQ(DivideNoNan(int64_t{-7}, int64_t{2}), -3);
  EXPECT_EQ(DivideNoNan(int64_t{-7}, int64_t{-1}), 7);
  // Divided at run time: the processor has an exception for it.
  const volatile int64_t minus_one = -1;
  EXPECT_EQ(DivideNoNan<int64_t>(kLowest, minus_one), kLowest);
  EXPECT_EQ(DivideNoNan(uint64_t{7}, uint64_t{2}), 3u);
  EXPECT_EQ(DivideNoNan(INFINITY, -0.0f), 0);
  EXPECT_EQ(DivideNoNan(1.0, 4.0), 0.25);
}

}  // namespace
}  // namespace tf_ti
