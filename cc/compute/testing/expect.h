// Comparisons of many numbers, of which the first wrong one is shown.
#ifndef TF_TI_CC_COMPUTE_TESTING_EXPECT_H_
#define TF_TI_CC_COMPUTE_TESTING_EXPECT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace tf_ti {

// The error of `actual` in units in the last place of a T near `expected`; 0 for two NaN, or where
// both round to the same T.
template <typename T>
double UlpError(T actual, long double expected) {
  const T rounded = static_cast<T>(expected);
  if (std::isnan(actual) || std::isnan(rounded))
    return std::isnan(actual) && std::isnan(rounded) ? 0 : INFINITY;
  if (actual == rounded) return 0;
  if (std::isinf(actual) || std::isinf(rounded)) return INFINITY;
  using Limits = std::numeric_limits<T>;
  const int exponent = rounded == 0 ? Limits::min_exponent : std::ilogb(rounded) + 1;
  const int least = std::max(exponent, Limits::min_exponent);
  return static_cast<double>(std::fabs(actual - expected) /
                             std::ldexp(1.0L, least - Limits::digits));
}

// Expects actual(i) to be within `tolerance` * max(1, |expected(i)|) of expected(i), for all i
// below `count`.
template <typename Actual, typename Expected>
void ExpectClose(int64_t count, const Actual& actual, const Expected& expected, double tolerance,
                 const std::string& name) {
  for (int64_t i = 0; i < count; ++i) {
    const long double x = actual(i), y = expected(i);
    const bool is_close = std::isfinite(y)
                              ? std::fabs(x - y) <= tolerance * std::max(1.0L, std::fabs(y))
                          : std::isnan(y) ? std::isnan(x)
                                          : x == y;
    if (!is_close) {
      ADD_FAILURE() << name << "[" << i << "] is " << x << " instead of " << y;
      return;
    }
  }
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_TESTING_EXPECT_H_
