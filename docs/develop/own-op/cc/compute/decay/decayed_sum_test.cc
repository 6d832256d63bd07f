#include "cc/compute/decay/decayed_sum.h"

#include <gtest/gtest.h>

#include <vector>

#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

TEST(DecayedSumTest, EachStepAddsToADecayedOne) {
  const std::vector<double> x{1, 10, 2, 20, 3, 30};
  std::vector<double> y(x.size());
  RealThreads threads(2);
  ComputeDecayedSum({3, 2, false}, x.data(), 0.5, y.data(), &threads);
  EXPECT_EQ(y, (std::vector<double>{1, 10, 2.5, 25, 4.25, 42.5}));
  ComputeDecayedSum({3, 2, true}, x.data(), 0.5, y.data(), &threads);
  EXPECT_EQ(y, (std::vector<double>{2.75, 27.5, 3.5, 35, 3, 30}));
}

}  // namespace
}  // namespace tf_ti
