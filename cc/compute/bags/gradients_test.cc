// Gradients of random look-ups: of their tables, beside loops that scatter each bag's gradient; of
// their weights, beside differences of the loss.
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/testing/bags.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

// The sums of some products, and of their absolute values.
template <typename T>
struct RowSums {
  explicit RowSums(int64_t width) : sums(width), sizes(width) {}

  std::vector<Exact<T>> sums;
  std::vector<double> sizes;
};

template <typename T, typename Index>
class TableCase {
 public:
  TableCase(Random* random, Reduction reduction, int64_t width,
            const typename RandomBags<Index>::Options& options)
      : reduction_(reduction),
        width_(width),
        bags_(random, options),
        weights_(random, bags_.get().num_indices,
                 reduction != Reduction::kMax && random->Chance(.5)),
        grad_(RandomNumbers<T>(random, bags_.get().count * width)),
        argmax_(reduction == Reduction::kMax ? MakeArgmax(random) : std::vector<Index>()) {}

  // Expects the rows and values of the definition.
  void Test(Parallel* parallel) {
    TableGradient<T, Index> gradient;
    EXPECT_EQ(gradient.Init(bags_.get(), weights_.get(), reduction_,
                            argmax_.size() > 0 ? argmax_.data() : nullptr, bags_.num_rows(), width_,
                            parallel),
              "");
    const std::map<int64_t, RowSums<T>> expected = Scatter();
    ASSERT_EQ(gradient.num_touched(), static_cast<int64_t>(expected.size()));
    Guarded<Index> rows(gradient.num_touched());
    Guarded<T> values(gradient.num_touched() * width_);
    gradient.Compute(grad_.data(), parallel, rows.data(), values.data());
    int64_t k = 0;
    for (const auto& [row, sums] : expected) {
      ASSERT_EQ(rows[k], static_cast<Index>(row));
      for (int64_t c = 0; c < width_; ++c) {
        ASSERT_TRUE(IsNear(values[k * width_ + c], sums.sums[c], sums.sizes[c], steps()))
            << "row " << row << ", column " << c << " of " << width_ << ", reduction "
            << static_cast<int>(reduction_);
      }
      ++k;
    }
    if (!rows_.empty() || !values_.empty()) {
      EXPECT_TRUE(SameBits(rows.Copy(), rows_));
      EXPECT_TRUE(SameBits(values.Copy(), values_)) << "results depend on the threads";
    }
    rows_ = rows.Copy();
    values_ = values.Copy();
  }

 private:
  // Where the bags of a row have one divisor, its roundings add up.
  double steps() const {
    return reduction_ == Reduction::kMean || reduction_ == Reduction::kSqrtN ? 1000 : 32;
  }

  // The position of any of the bag's ids for each element, or -1 if there is none.
  std::vector<Index> MakeArgmax(Random* random) const {
    std::vector<Index> argmax;
    for (int64_t bag = 0; bag < bags_.get().count; ++bag) {
      const std::vector<int64_t> positions = bags_.Positions(bag);
      for (int64_t c = 0; c < width_; ++c) {
        argmax.push_back(positions.empty()
                             ? Index(-1)
                             : static_cast<Index>(positions[random->Int(0, positions.size() - 1)]));
      }
    }
    return argmax;
  }

  // Adds the part of a bag's gradient that goes to a row.
  template <typename Takes>
  void Add(int64_t bag, int64_t row, Exact<T> factor, const Takes& takes,
           std::map<int64_t, RowSums<T>>* rows) const {
    RowSums<T>& sums = rows->emplace(row, width_).first->second;
    for (int64_t c = 0; c < width_; ++c) {
      if (!takes(c)) continue;
      const Exact<T> product = factor * ToExact(grad_[bag * width_ + c]);
      sums.sums[c] += product;
      sums.sizes[c] += static_cast<double>(std::abs(product));
    }
  }

  std::map<int64_t, RowSums<T>> Scatter() const {
    std::map<int64_t, RowSums<T>> rows;
    const auto all = [](int64_t) { return true; };
    for (int64_t bag = 0; bag < bags_.get().count && width_ > 0; ++bag) {
      const std::vector<int64_t> positions = bags_.Positions(bag);
      if (positions.empty() && bags_.get().default_index >= 0) {
        Add(bag, bags_.get().default_index, Exact<T>(1), all, &rows);
      }
      std::vector<Exact<T>> weights;
      for (const int64_t position : positions) weights.push_back(weights_[position]);
      const Exact<T> divisor = DivisorOf<T>(reduction_, weights);
      for (const int64_t position : positions) {
        if (reduction_ == Reduction::kMax) {
          const auto has_won = [&](int64_t c) { return argmax_[bag * width_ + c] == position; };
          Add(bag, bags_.row(position), Exact<T>(1), has_won, &rows);
        } else {
          const Exact<T> factor =
              divisor == Exact<T>(0) ? Exact<T>(0) : weights_[position] / divisor;
          Add(bag, bags_.row(position), factor, all, &rows);
        }
      }
    }
    return rows;
  }

  const Reduction reduction_;
  const int64_t width_;
  const RandomBags<Index> bags_;
  const RandomWeights<T> weights_;
  const Guarded<T> grad_;
  const Guarded<Index> argmax_;
  std::vector<Index> rows_;
  std::vector<T> values_;
};

template <typename T>
Reduction PickReduction(Random* random) {
  const Reduction reduction =
      random->Pick({Reduction::kSum, Reduction::kMean, Reduction::kSqrtN, Reduction::kMax});
  return IsComplex<T>::value && reduction == Reduction::kMax ? Reduction::kSum : reduction;
}

template <typename T, typename Index>
void TestTable(Random* random, int64_t width, const typename RandomBags<Index>::Options& options) {
  TableCase<T, Index> gradient(random, PickReduction<T>(random), width, options);
  for (const int64_t num_threads : {1, 2, 4}) {
    OnCaller threads(num_threads, random->Chance(.5));
    gradient.Test(&threads);
    if (testing::Test::HasFatalFailure()) return;
  }
}

template <typename T>
class TableGradientTest : public testing::Test {};
using Numbers =
    testing::Types<float, double, Half, BFloat16, std::complex<float>, std::complex<double>>;
TYPED_TEST_SUITE(TableGradientTest, Numbers);

TYPED_TEST(TableGradientTest, ScattersEachBagsGradient) {
  ForRandomCases(250, [](Random* random) {
    const int64_t width = random->Int(0, 70), num_rows = random->Int(1, 60);
    TestTable<TypeParam, int32_t>(random, width, {num_rows, 40, 8});
    TestTable<TypeParam, int64_t>(random, width, {num_rows, 40, 8});
  });
}

// Thousands of entries: buckets, and keys sorted by digits.
TYPED_TEST(TableGradientTest, SortsManyEntries) {
  ForRandomCases(6, [](Random* random) {
    const int64_t most_rows = random->Pick<int64_t>({2, 100, 3000, 100000});
    TestTable<TypeParam, int32_t>(random, random->Int(1, 3), {most_rows, 1500, 12});
  });
}

// Rows with so many numbers that keys need 64 bits, or more than that.
TYPED_TEST(TableGradientTest, HasManyRows) {
  ForRandomCases(20, [](Random* random) {
    const int64_t num_rows = int64_t{1} << random->Pick({24, 31, 40, 60, 62});
    TestTable<TypeParam, int64_t>(random, 2, {num_rows, 200, 8});
  });
}

TYPED_TEST(TableGradientTest, HasGiantRows) {
  ForRandomCases(3, [](Random* random) {
    TestTable<TypeParam, int32_t>(random, random->Int(1, 3), {2, 8, 5, 40000});
  });
}

TEST(TableGradientThreadsTest, SortTogether) {
  RealThreads threads(4);
  ForRandomCases(3, [&](Random* random) {
    TableCase<float, int64_t>(random, PickReduction<float>(random), 4, {5000, 5000, 12})
        .Test(&threads);
  });
}

TEST(TableGradientErrorsTest, NameTheIndexThatIsNoRow) {
  ForRandomCases(300, [](Random* random) {
    const RandomBags<int32_t> good(random, {});
    Bags<int32_t> bags = good.get();
    if (bags.num_indices == 0) return;
    std::vector<int32_t> changed(bags.indices, bags.indices + bags.num_indices);
    const int64_t position = random->Int(0, bags.num_indices - 1);
    changed[position] = random->Pick<int32_t>({-9, 57, std::numeric_limits<int32_t>::max()});
    const Guarded<int32_t> indices(changed);
    bags.indices = indices.data();
    std::string place = std::to_string(position);
    if (bags.kind == BagKind::kPacked) {
      const int64_t size = bags.num_indices / bags.count;
      place = std::to_string(position / size) + ", " + std::to_string(position % size);
    }
    OnCaller threads(random->Int(1, 4), random->Chance(.5));
    TableGradient<float, int32_t> gradient;
    EXPECT_EQ(gradient.Init(bags, {}, Reduction::kSum, nullptr, 50, 3, &threads),
              "indices[" + place + "] is " + std::to_string(changed[position]) +
                  ", but emb_table has 50 rows");
  });
}

// A look-up with weights, and its loss: the sum of the products of results and `grad`.
template <typename T>
class WeightsCase {
 public:
  WeightsCase(Random* random, Reduction reduction, int64_t width,
              const RandomBags<int64_t>::Options& options)
      : reduction_(reduction),
        width_(width),
        bags_(random, options),
        table_(RandomNumbers<T>(random, options.num_rows * width)),
        weights_(random, bags_.get().num_indices, true),
        grad_(RandomNumbers<T>(random, bags_.get().count * width)) {}

  void Test(Parallel* parallel, bool rounded) const {
    const int64_t size = bags_.get().num_indices;
    Guarded<T> narrow(rounded ? size : 0);
    Guarded<Sum<T>> wide(rounded ? 0 : size);
    WeightsOutput<T> output;
    if (rounded) {
      output.rounded = narrow.data();
    } else {
      output.wide = wide.data();
    }
    EXPECT_EQ(WeightsGradient({table_.data(), bags_.num_rows(), width_}, bags_.get(),
                              weights_.get(), reduction_, grad_.data(), parallel, output),
              "");
    std::vector<Exact<T>> expected(size);  // zeros for padding, and for indices in no bag
    std::vector<double> sizes(size);
    for (int64_t bag = 0; bag < bags_.get().count; ++bag) Differentiate(bag, &expected, &sizes);
    for (int64_t i = 0; i < size; ++i) {
      const bool is_near = rounded ? IsNear(narrow[i], expected[i], sizes[i])
                                   : IsNear(wide[i], expected[i], sizes[i]);
      ASSERT_TRUE(is_near) << "index " << i << ", reduction " << static_cast<int>(reduction_);
    }
  }

 private:
  using E = Exact<T>;

  // The loss of a bag whose ids have these weights.
  E Loss(const std::vector<E>& dots, const std::vector<E>& weights) const {
    E sum(0);
    for (size_t k = 0; k < dots.size(); ++k) sum += weights[k] * dots[k];
    return sum / DivisorOf<T>(reduction_, weights);
  }

  void Differentiate(int64_t bag, std::vector<E>* gradient, std::vector<double>* sizes) const {
    const std::vector<int64_t> positions = bags_.Positions(bag);
    std::vector<E> dots, weights;
    double most = 0;
    for (const int64_t position : positions) {
      E dot(0);
      for (int64_t c = 0; c < width_; ++c) {
        dot += ToExact(table_[bags_.row(position) * width_ + c]) * ToExact(grad_[bag * width_ + c]);
      }
      dots.push_back(dot);
      weights.push_back(weights_[position]);
      most = std::max(most, static_cast<double>(std::abs(dot)));
    }
    // Where the divisor is zero, so is the gradient.
    const E divisor = DivisorOf<T>(reduction_, weights);
    if (divisor == E(0)) return;
    for (size_t k = 0; k < positions.size(); ++k) {
      const auto difference = [&](long double step) -> E {
        std::vector<E> more = weights, less = weights;
        more[k] += step;
        less[k] -= step;
        return (Loss(dots, more) - Loss(dots, less)) / (2 * step);
      };
      // Two steps, so that the errors of their squares cancel out.
      constexpr long double kStep = 0x1p-16L;
      (*gradient)[positions[k]] = (4.0L * difference(kStep / 2) - difference(kStep)) / 3.0L;
      (*sizes)[positions[k]] =
          16 * (width_ + 1) + most * (1 + 1 / static_cast<double>(std::abs(divisor)));
    }
  }

  const Reduction reduction_;
  const int64_t width_;
  const RandomBags<int64_t> bags_;
  const Guarded<T> table_;
  const RandomWeights<T> weights_;
  const Guarded<T> grad_;
};

template <typename T>
class WeightsGradientTest : public testing::Test {};
TYPED_TEST_SUITE(WeightsGradientTest, Numbers);

TYPED_TEST(WeightsGradientTest, IsTheDifferenceOfLosses) {
  ForRandomCases(250, [](Random* random) {
    const Reduction reduction =
        random->Pick({Reduction::kSum, Reduction::kMean, Reduction::kSqrtN});
    const WeightsCase<TypeParam> weights(random, reduction, random->Int(0, 70), {30, 30, 8});
    for (const int64_t num_threads : {1, 4}) {
      OnCaller threads(num_threads, random->Chance(.5));
      weights.Test(&threads, random->Chance(.5));
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

// Some of them far from all memory, which must not be read, nor prefetched by wrong arithmetic.
TEST(WeightsGradientErrorsTest, NameTheIndexThatIsNoRow) {
  ForRandomCases(100, [](Random* random) {
    const RandomBags<int64_t> good(random, {});
    Bags<int64_t> bags = good.get();
    if (bags.num_indices == 0 || bags.kind == BagKind::kPacked) return;
    std::vector<int64_t> changed(bags.indices, bags.indices + bags.num_indices);
    const int64_t position = random->Int(0, bags.num_indices - 1);
    changed[position] = random->Pick({int64_t{-9}, int64_t{57}, std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min()});
    const Guarded<int64_t> indices(changed);
    bags.indices = indices.data();
    const Guarded<float> table(RandomNumbers<float>(random, 50 * 3));
    const Guarded<float> weights(RandomNumbers<float>(random, bags.num_indices));
    const Guarded<float> grad(RandomNumbers<float>(random, bags.count * 3));
    const Guarded<float> gradient(bags.num_indices);
    OnCaller threads(random->Int(1, 4), random->Chance(.5));
    EXPECT_EQ(
        WeightsGradient<float>({table.data(), 50, 3}, bags, {weights.data(), nullptr},
                               Reduction::kMean, grad.data(), &threads, {gradient.data(), nullptr}),
        "indices[" + std::to_string(position) + "] is " + std::to_string(changed[position]) +
            ", but emb_table has 50 rows");
  });
}

}  // namespace
}  // namespace tf_ti
