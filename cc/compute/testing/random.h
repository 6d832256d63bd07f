// Random cases for tests, each of which can be seen again.
#ifndef TF_TI_CC_COMPUTE_TESTING_RANDOM_H_
#define TF_TI_CC_COMPUTE_TESTING_RANDOM_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>

namespace tf_ti {

// The same numbers everywhere, unlike those of the standard library's distributions.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Bits() {
    uint64_t bits = state_ += 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
  }
  // From `low` to `high`, both included.
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Bits() % (static_cast<uint64_t>(high - low) + 1));
  }
  double Real(double low, double high) { return low + (high - low) * ((Bits() >> 11) * 0x1p-53); }
  bool Chance(double probability) { return Real(0, 1) < probability; }
  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return choices.begin()[Int(0, choices.size() - 1)];
  }

 private:
  uint64_t state_;
};

// Calls test(random) for the seeds 1 ... count, until one fails, or for TF_TI_TEST_SEED alone. A
// failure names its seed.
template <typename Test>
void ForRandomCases(int64_t count, const Test& test) {
  const char* const given = std::getenv("TF_TI_TEST_SEED");
  const uint64_t first = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
  const uint64_t last = given != nullptr ? first : count;
  for (uint64_t seed = first; seed <= last && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("TF_TI_TEST_SEED=" + std::to_string(seed));
    Random random(seed);
    test(&random);
  }
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_TESTING_RANDOM_H_
