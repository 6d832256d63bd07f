// Updates of random rows, beside their definitions in long double. What is not named must not
// change, bit by bit, and after an error nothing at all.
#include "cc/compute/bags/updates.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "cc/compute/testing/bags.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

enum Order { kAscending, kAscendingAndPadded, kAny };

// Gradients of rows of a table, without bags.
template <typename T, typename Index>
class RowCase {
 public:
  RowCase(Random* random, int64_t most_rows, int64_t most_indices)
      : num_rows_(random->Int(1, most_rows)), width_(random->Int(0, 70)) {
    const Order order = random->Pick({kAscending, kAscendingAndPadded, kAny});
    std::vector<Index> rows;
    if (order == kAny) {
      for (int64_t k = random->Int(0, most_indices); k > 0; --k) {
        rows.push_back(static_cast<Index>(random->Int(0, num_rows_ - 1)));
      }
    } else {
      for (int64_t row = 0; row < num_rows_; ++row) {
        if (random->Chance(.5)) rows.push_back(static_cast<Index>(row));
      }
    }
    std::vector<T> grads = RandomNumbers<T>(random, rows.size() * width_);
    if (!rows.empty() && random->Chance(.5)) {
      const int64_t zeros = random->Int(0, rows.size() - 1);  // a row with a gradient of zeros
      std::fill_n(grads.begin() + zeros * width_, width_, T());
    }
    if (order == kAscendingAndPadded && !rows.empty()) {
      // As compiled gradients have it; sometimes it is none, as it is not all zeros.
      for (int64_t k = random->Int(1, 5); k > 0; --k) rows.push_back(rows.back());
      grads.resize(rows.size() * width_, T());
      if (random->Chance(.3) && width_ > 0) grads.back() = FromSixteenths<T>(16);
    }
    Set(rows, grads);
  }

  void Set(const std::vector<Index>& rows, const std::vector<T>& grads) {
    indices_ = std::make_unique<Guarded<Index>>(rows);
    grads_ = std::make_unique<Guarded<T>>(grads);
  }

  RowGradientsOf<T, Index> get() const {
    return GradientsOfRows(indices_->data(), grads_->data(), size(), num_rows_, width_);
  }
  int64_t num_rows() const { return num_rows_; }
  int64_t width() const { return width_; }
  int64_t size() const { return indices_->size(); }
  int64_t index(int64_t k) const { return (*indices_)[k]; }
  std::vector<Index> indices() const { return indices_->Copy(); }
  std::vector<T> grads() const { return grads_->Copy(); }

  // The gradients of each row, in their order.
  std::map<int64_t, std::vector<std::vector<Exact<T>>>> Rows() const {
    std::map<int64_t, std::vector<std::vector<Exact<T>>>> rows;
    for (int64_t k = 0; k < size(); ++k) {
      std::vector<Exact<T>> grad;
      for (int64_t c = 0; c < width_; ++c) grad.push_back(ToExact((*grads_)[k * width_ + c]));
      rows[index(k)].push_back(grad);
    }
    return rows;
  }

 private:
  const int64_t num_rows_, width_;
  std::unique_ptr<Guarded<Index>> indices_;
  std::unique_ptr<Guarded<T>> grads_;
};

// True if `actual` is `expected`, a sum of sixteenths below `size`: exactly, where the type has all
// of them.
template <typename T>
bool IsDifference(T actual, Exact<T> expected, double size) {
  if constexpr (std::is_integral_v<T>) {
    return actual == static_cast<T>(expected);
  } else {
    if (size * Epsilon<T>() <= 1. / 8) return ToExact(actual) == expected;
    return std::abs(ToExact(actual) - expected) <= size * size * Epsilon<T>();
  }
}

template <typename T, typename Index>
void TestScatterSub(Random* random, int64_t most_rows, int64_t most_indices) {
  const RowCase<T, Index> gradients(random, most_rows, most_indices);
  const int64_t width = gradients.width();
  const std::vector<T> before = RandomNumbers<T>(random, gradients.num_rows() * width);
  std::vector<T> first_result;
  for (const int64_t num_threads : {1, 4}) {
    Guarded<T> table(before.size());
    std::copy(before.begin(), before.end(), table.data());
    OnCaller threads(num_threads, random->Chance(.5));
    EXPECT_EQ(ScatterSub(gradients.get(), Sum<T>(2), &threads, table.data()), "");
    const auto rows = gradients.Rows();
    for (int64_t at = 0; at < static_cast<int64_t>(before.size()); ++at) {
      Exact<T> expected = ToExact(before[at]);
      double size = 4;
      const auto found = rows.find(at / width);
      if (found != rows.end()) {
        for (const auto& grad : found->second) {
          expected -= Exact<T>(2) * grad[at % width];
          size += 8;
        }
      }
      ASSERT_TRUE(IsDifference(table[at], expected, size))
          << "element " << at << " of rows of " << width;
    }
    if (num_threads == 1) first_result = table.Copy();
    EXPECT_TRUE(SameBits(table.Copy(), first_result)) << "results depend on the threads";
  }
}

template <typename T>
class ScatterSubTest : public testing::Test {};
using Numbers =
    testing::Types<float, double, Half, BFloat16, std::complex<float>, std::complex<double>, int8_t,
                   int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(ScatterSubTest, Numbers);

TYPED_TEST(ScatterSubTest, SubtractsEachGradient) {
  ForRandomCases(60, [](Random* random) {
    TestScatterSub<TypeParam, int32_t>(random, 30, 12);
    TestScatterSub<TypeParam, int64_t>(random, 30, 12);
  });
  // So many that several threads share them.
  ForRandomCases(8, [](Random* random) { TestScatterSub<TypeParam, int64_t>(random, 4000, 4000); });
}

// An optimizer's table and slots.
template <typename T>
struct State {
  using S = Sum<T>;

  State(Random* random, int64_t num_rows, int64_t width, bool is_row_wise)
      : table(RandomNumbers<T>(random, num_rows * width)),
        first(RandomNumbers<S>(random, num_rows * width)),
        second(num_rows * (is_row_wise ? 1 : width)) {
    for (S& number : second) number = static_cast<S>(random->Int(0, 64) / 16.0);
  }

  std::vector<T> table;
  std::vector<S> first;
  std::vector<S> second;
};

// One of the rules, by its definition: a row x with the gradient s, and its slots.
struct Rule {
  enum Kind { kDescent, kAdam, kAdagrad } kind;
  bool is_row_wise;
  double scale;  // or the learning rate
  double weight_decay;
  AdamNumbers adam;
  AdagradNumbers adagrad;

  void Step(long double s, long double mean_of_squares, long double* x, long double* first,
            long double* second) const {
    const long double q = is_row_wise ? mean_of_squares : s * s;
    if (kind == kDescent) *x -= scale * (s + weight_decay * *x);
    if (kind == kAdam) {
      const long double b1 = adam.beta_1, b2 = adam.beta_2;
      const long double correction_1 = 1 - std::pow(b1, static_cast<long double>(adam.step));
      const long double correction_2 = 1 - std::pow(b2, static_cast<long double>(adam.step));
      *first += (1 - b1) * (s - *first);
      *second += (1 - b2) * (q - *second);
      *x -= adam.learning_rate * adam.weight_decay * *x;
      if (adam.epsilon_hat) {
        *x -= adam.learning_rate * std::sqrt(correction_2) / correction_1 * *first /
              (std::sqrt(*second) + adam.epsilon);
      } else {
        *x -= adam.learning_rate / correction_1 * *first /
              (std::sqrt(*second / correction_2) + adam.epsilon);
      }
    }
    if (kind == kAdagrad) {
      *second += q;
      const long double epsilon = adagrad.epsilon;
      *x -= adagrad.learning_rate * s /
            (adagrad.epsilon_inside_sqrt ? std::sqrt(*second + epsilon)
                                         : std::sqrt(*second) + epsilon);
    }
  }

  template <typename T, typename Index>
  std::string Run(const RowGradientsOf<T, Index>& gradients, Parallel* parallel, T* table,
                  Sum<T>* first, Sum<T>* second) const {
    const Slot<Sum<T>> slot{second, is_row_wise};
    if (kind == kAdam) return AdamUpdate(gradients, adam, first, slot, parallel, table);
    if (kind == kAdagrad) return AdagradUpdate(gradients, adagrad, slot, parallel, table);
    return DecayedScatterSub(gradients, scale, weight_decay, parallel, table);
  }
};

Rule RandomRule(Random* random) {
  Rule rule{};
  rule.kind = random->Pick({Rule::kDescent, Rule::kAdam, Rule::kAdagrad});
  rule.is_row_wise = rule.kind != Rule::kDescent && random->Chance(.4);
  rule.scale = random->Real(0, .5);
  rule.weight_decay = random->Chance(.5) ? 0 : random->Real(0, .2);
  rule.adam.learning_rate = rule.adagrad.learning_rate = random->Real(.01, .5);
  rule.adam.step = random->Int(1, 20);
  rule.adam.beta_1 = random->Real(.5, .95);
  rule.adam.beta_2 = random->Real(.5, .999);
  rule.adam.epsilon = rule.adagrad.epsilon = random->Real(.001, .1);
  rule.adam.weight_decay = random->Chance(.5) ? 0 : random->Real(0, .1);
  rule.adam.epsilon_hat = random->Chance(.5);
  rule.adagrad.epsilon_inside_sqrt = random->Chance(.5);
  return rule;
}

// The table and slots in memory that shows what is written outside.
template <typename T>
struct Memory {
  explicit Memory(const State<T>& state)
      : table(state.table.size()), first(state.first.size()), second(state.second.size()) {
    std::copy(state.table.begin(), state.table.end(), table.data());
    std::copy(state.first.begin(), state.first.end(), first.data());
    std::copy(state.second.begin(), state.second.end(), second.data());
  }

  bool Equals(const State<T>& state) const {
    return SameBits(table.Copy(), state.table) && SameBits(first.Copy(), state.first) &&
           SameBits(second.Copy(), state.second);
  }

  Guarded<T> table;
  Guarded<Sum<T>> first, second;
};

// Expects that one row is as a rule makes it, of its gradient `s`.
template <typename T>
void CheckRow(const Rule& rule, const State<T>& before, const Memory<T>& after, int64_t row,
              int64_t width, const std::vector<Exact<T>>& s) {
  bool is_touched = false;
  long double mean = 0;
  for (const long double x : s) {
    is_touched = is_touched || x != 0;
    mean += x * x / width;
  }
  for (int64_t c = 0; c < width; ++c) {
    const int64_t at = row * width + c, slot = rule.is_row_wise ? row : at;
    long double x = ToExact(before.table[at]), first = before.first[at];
    long double second = before.second[slot];
    if (is_touched) {
      rule.Step(s[c], mean, &x, &first, &second);
      ASSERT_TRUE(IsNear(after.table[at], x, 16 + std::abs(x)))
          << "row " << row << ", column " << c;
    } else {
      ASSERT_EQ(ToExact(after.table[at]), x) << "row " << row << ", column " << c;
    }
    if (is_touched) {
      ASSERT_TRUE(IsNear(after.first[at], first, 16 + std::abs(first)));
      ASSERT_TRUE(IsNear(after.second[slot], second, 16 + second));
    } else {
      ASSERT_EQ(after.first[at], first);
      ASSERT_EQ(after.second[slot], second);
    }
  }
}

template <typename T, typename Index>
void TestUpdate(Random* random, int64_t most_rows, int64_t most_indices) {
  const RowCase<T, Index> gradients(random, most_rows, most_indices);
  const Rule rule = RandomRule(random);
  const int64_t width = gradients.width();
  const State<T> before(random, gradients.num_rows(), width, rule.is_row_wise);
  Memory<T> after(before);
  OnCaller threads(random->Int(1, 4), random->Chance(.5));
  ASSERT_EQ(rule.Run(gradients.get(), &threads, after.table.data(), after.first.data(),
                     after.second.data()),
            "");
  const auto rows = gradients.Rows();
  for (int64_t row = 0; row < gradients.num_rows(); ++row) {
    std::vector<Exact<T>> sums(width);
    const auto found = rows.find(row);
    if (found != rows.end()) {
      for (const auto& grad : found->second) {
        for (int64_t c = 0; c < width; ++c) sums[c] += grad[c];
      }
    }
    CheckRow(rule, before, after, row, width, sums);
    if (testing::Test::HasFatalFailure()) return;
  }
}

template <typename T>
class UpdatesTest : public testing::Test {};
using Floats = testing::Types<float, double, Half, BFloat16>;
TYPED_TEST_SUITE(UpdatesTest, Floats);

TYPED_TEST(UpdatesTest, FollowTheirDefinitions) {
  ForRandomCases(300, [](Random* random) {
    TestUpdate<TypeParam, int32_t>(random, 30, 20);
    TestUpdate<TypeParam, int64_t>(random, 30, 20);
  });
  ForRandomCases(8, [](Random* random) { TestUpdate<TypeParam, int64_t>(random, 3000, 3000); });
}

// The gradients of a look-up: as if its rows and their sums were named.
TYPED_TEST(UpdatesTest, TakeTheGradientsOfLookUps) {
  using T = TypeParam;
  ForRandomCases(150, [](Random* random) {
    const RandomBags<int32_t> bags(random, {30, 30, 8, random->Chance(.03) ? 20000 : 0});
    const int64_t width = random->Int(1, 20), count = bags.get().count;
    const Rule rule = RandomRule(random);
    const Guarded<T> grad(RandomNumbers<T>(random, count * width));
    const RandomWeights<T> weights(random, bags.get().num_indices, random->Chance(.5));
    RowGradientsOf<T, int32_t> gradients;
    gradients.bags = bags.get();
    gradients.weights = weights.get();
    gradients.grad = grad.data();
    gradients.num_rows = bags.num_rows();
    gradients.width = width;
    std::map<int64_t, std::vector<Exact<T>>> sums;
    const auto add = [&](int64_t bag, int64_t row, Exact<T> weight) {
      std::vector<Exact<T>>& to = sums[row];
      to.resize(width);
      for (int64_t c = 0; c < width; ++c) to[c] += weight * ToExact(grad[bag * width + c]);
    };
    for (int64_t bag = 0; bag < count; ++bag) {
      const std::vector<int64_t> positions = bags.Positions(bag);
      for (const int64_t position : positions) add(bag, bags.row(position), weights[position]);
      if (positions.empty() && bags.get().default_index >= 0) {
        add(bag, bags.get().default_index, 1);
      }
    }
    const State<T> before(random, bags.num_rows(), width, rule.is_row_wise);
    Memory<T> after(before);
    OnCaller threads(random->Int(1, 4), random->Chance(.5));
    ASSERT_EQ(
        rule.Run(gradients, &threads, after.table.data(), after.first.data(), after.second.data()),
        "");
    for (int64_t row = 0; row < bags.num_rows(); ++row) {
      const auto found = sums.find(row);
      const std::vector<Exact<T>> none(width);
      CheckRow(rule, before, after, row, width, found == sums.end() ? none : found->second);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// Not a bit, whichever the rule and the threads are.
TYPED_TEST(UpdatesTest, ChangeNothingWhereAnIndexIsNoRow) {
  ForRandomCases(200, [](Random* random) {
    RowCase<TypeParam, int64_t> gradients(random, 30, 20);
    if (gradients.size() == 0) return;
    std::vector<int64_t> indices = gradients.indices();
    const int64_t position = random->Int(0, gradients.size() - 1);
    indices[position] =
        random->Pick({int64_t{-1}, gradients.num_rows(), std::numeric_limits<int64_t>::max(),
                      std::numeric_limits<int64_t>::min()});
    gradients.Set(indices, gradients.grads());
    const Rule rule = RandomRule(random);
    const State<TypeParam> before(random, gradients.num_rows(), gradients.width(),
                                  rule.is_row_wise);
    const Memory<TypeParam> after(before);
    OnCaller threads(random->Int(1, 4), random->Chance(.5));
    const std::string expected = "indices[" + std::to_string(position) + "] is " +
                                 std::to_string(indices[position]) + ", but the variable has " +
                                 std::to_string(gradients.num_rows()) + " rows";
    EXPECT_EQ(rule.Run(gradients.get(), &threads, after.table.data(), after.first.data(),
                       after.second.data()),
              expected);
    EXPECT_EQ(ScatterSub(gradients.get(), Sum<TypeParam>(1), &threads, after.table.data()),
              expected);
    EXPECT_TRUE(after.Equals(before));
  });
}

TEST(UpdatesThreadsTest, ShareTheRows) {
  RealThreads threads(4);
  const int64_t num_rows = 20000, width = 16;
  Random random(1);
  std::vector<int32_t> rows;
  for (int64_t k = 0; k < 30000; ++k) rows.push_back(random.Int(0, num_rows - 1));
  const Guarded<int32_t> indices(rows);
  const Guarded<float> grads(RandomNumbers<float>(&random, rows.size() * width));
  const State<float> before(&random, num_rows, width, false);
  const auto gradients =
      GradientsOfRows(indices.data(), grads.data(), indices.size(), num_rows, width);
  OnCaller one;
  Memory<float> expected(before), actual(before);
  AdagradNumbers numbers{.1, .01, true};
  EXPECT_EQ(AdagradUpdate(gradients, numbers, {expected.second.data(), false}, &one,
                          expected.table.data()),
            "");
  EXPECT_EQ(AdagradUpdate(gradients, numbers, {actual.second.data(), false}, &threads,
                          actual.table.data()),
            "");
  EXPECT_TRUE(SameBits(actual.table.Copy(), expected.table.Copy()));
  EXPECT_TRUE(SameBits(actual.second.Copy(), expected.second.Copy()));
}

}  // namespace
}  // namespace tf_ti
