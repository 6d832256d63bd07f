// Look-ups of random bags, of all types, kinds and reductions, beside a plain loop over each bag.
#include "cc/compute/bags/pooling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/testing/bags.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

// An integer divided as C++ does, but that the lowest has no opposite.
template <typename S>
S DivideExactly(S x, S divisor) {
  if (divisor == S(0)) return S(0);
  if constexpr (std::is_integral_v<S> && std::is_signed_v<S>) {
    if (divisor == -1) return static_cast<S>(uint64_t{0} - static_cast<uint64_t>(x));
  }
  return x / divisor;
}

// The inputs of a look-up, and the place for its outputs.
template <typename T, typename Index>
class Case {
 public:
  Case(Random* random, Reduction reduction, int64_t width,
       const typename RandomBags<Index>::Options& options)
      : reduction_(reduction),
        width_(width),
        bags_(random, options),
        table_(RandomNumbers<T>(random, options.num_rows * width)),
        weights_(random, bags_.get().num_indices,
                 reduction != Reduction::kMax && random->Chance(.5)),
        wants_argmax_(reduction == Reduction::kMax && random->Chance(.7)) {
    Clear();
  }

  BagLookUp<T, Index> get() const {
    return {{table_.data(), bags_.num_rows(), width_},
            bags_.get(),
            weights_.get(),
            reduction_,
            out_->data(),
            wants_argmax_ ? argmax_->data() : nullptr};
  }

  std::string Run(Parallel* parallel) const {
    const BagLookUp<T, Index> lookup = get();
    return PoolBags(lookup.table, lookup.bags, lookup.weights, lookup.reduction, parallel,
                    lookup.out, lookup.argmax);
  }

  // Poisons the outputs.
  void Clear() {
    const int64_t size = bags_.get().count * width_;
    out_ = std::make_unique<Guarded<T>>(size);
    argmax_ = std::make_unique<Guarded<Index>>(wants_argmax_ ? size : 0);
  }

  std::vector<T> out() const { return out_->Copy(); }
  std::vector<Index> argmax() const { return argmax_->Copy(); }
  int64_t width() const { return width_; }

  // Expects the outputs of the definition.
  void Check() const {
    for (int64_t bag = 0; bag < bags_.get().count; ++bag) {
      for (int64_t column = 0; column < width_; ++column) {
        CheckElement(bag, column, bags_.Positions(bag));
        if (testing::Test::HasFailure()) return;
      }
    }
  }

 private:
  Exact<T> At(int64_t position, int64_t column) const {
    return ToExact(table_[bags_.row(position) * width_ + column]);
  }

  void CheckElement(int64_t bag, int64_t column, const std::vector<int64_t>& positions) const {
    const int64_t default_index = bags_.get().default_index, at = bag * width_ + column;
    Exact<T> expected(0);
    double size = 0;
    int64_t position = -1;
    if (positions.empty()) {
      if (default_index >= 0) expected = ToExact(table_[default_index * width_ + column]);
    } else if (reduction_ == Reduction::kMax) {
      position = FindMaximum(column, positions);
      expected = At(position, column);
    } else {
      expected = Reduce(column, positions, &size);
    }
    EXPECT_TRUE(IsNear((*out_)[at], expected, size))
        << "bag " << bag << " of " << positions.size() << " ids, column " << column << " of "
        << width_ << ", reduction " << static_cast<int>(reduction_);
    if (wants_argmax_) {
      EXPECT_EQ((*argmax_)[at], static_cast<Index>(position));
    }
  }

  int64_t FindMaximum(int64_t column, const std::vector<int64_t>& positions) const {
    int64_t best = positions[0];
    if constexpr (!IsComplex<T>::value) {
      for (const int64_t position : positions) {
        if (At(position, column) > At(best, column)) best = position;
      }
    }
    return best;
  }

  Exact<T> Reduce(int64_t column, const std::vector<int64_t>& positions, double* size) const {
    std::vector<Exact<T>> weights;
    Exact<T> sum(0);
    long double absolute = 0;
    for (const int64_t position : positions) {
      weights.push_back(weights_[position]);
      const Exact<T> product = weights.back() * At(position, column);
      sum += product;
      absolute += std::abs(static_cast<std::complex<long double>>(product));
    }
    const bool divides = reduction_ == Reduction::kMean || reduction_ == Reduction::kSqrtN;
    const Exact<T> divisor = divides ? DivisorOf<T>(reduction_, weights) : Exact<T>(1);
    *size = static_cast<double>(absolute);
    if (divides && divisor == Exact<T>(0)) return Exact<T>(0);
    if constexpr (!std::is_integral_v<T>) *size /= static_cast<double>(std::abs(divisor));
    return DivideExactly(sum, divisor);
  }

  const Reduction reduction_;
  const int64_t width_;
  const RandomBags<Index> bags_;
  const Guarded<T> table_;
  const RandomWeights<T> weights_;
  const bool wants_argmax_;
  std::unique_ptr<Guarded<T>> out_;
  std::unique_ptr<Guarded<Index>> argmax_;
};

template <typename T>
Reduction PickReduction(Random* random) {
  const Reduction reduction =
      random->Pick({Reduction::kSum, Reduction::kMean, Reduction::kSqrtN, Reduction::kMax});
  if (IsComplex<T>::value && reduction == Reduction::kMax) return Reduction::kSum;
  // The root of an integer is none.
  if (std::is_integral_v<T> && reduction == Reduction::kSqrtN) return Reduction::kMean;
  return reduction;
}

template <typename T, typename Index>
void TestCase(Random* random, int64_t width, const typename RandomBags<Index>::Options& options) {
  Case<T, Index> lookup(random, PickReduction<T>(random), width, options);
  OnCaller one;
  EXPECT_EQ(lookup.Run(&one), "");
  lookup.Check();
  const std::vector<T> out = lookup.out();
  const std::vector<Index> argmax = lookup.argmax();
  for (const int64_t num_threads : {2, 4}) {
    lookup.Clear();
    OnCaller others(num_threads, random->Chance(.5));
    EXPECT_EQ(lookup.Run(&others), "");
    EXPECT_TRUE(SameBits(lookup.out(), out)) << num_threads << " threads";
    EXPECT_TRUE(SameBits(lookup.argmax(), argmax)) << num_threads << " threads";
  }
}

template <typename Index>
std::string PoolFloats(const float* table, int64_t num_rows, int64_t width, const Bags<Index>& bags,
                       const Weights<float>& weights, Reduction reduction, Parallel* parallel,
                       float* out, Index* argmax = nullptr) {
  return PoolBags<float, Index>({table, num_rows, width}, bags, weights, reduction, parallel, out,
                                argmax);
}

template <typename T>
class PoolingTest : public testing::Test {};

using Numbers =
    testing::Types<float, double, Half, BFloat16, std::complex<float>, std::complex<double>, int8_t,
                   int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t>;
TYPED_TEST_SUITE(PoolingTest, Numbers);

TYPED_TEST(PoolingTest, IsThatOfTheDefinition) {
  ForRandomCases(120, [](Random* random) {
    const int64_t width = random->Int(0, 70);
    TestCase<TypeParam, int32_t>(random, width, {});
    TestCase<TypeParam, int64_t>(random, width, {});
  });
}

TYPED_TEST(PoolingTest, HasWideRows) {
  ForRandomCases(4, [](Random* random) {
    TestCase<TypeParam, int64_t>(random, random->Int(71, 700), {20, 10, 5});
  });
}

TYPED_TEST(PoolingTest, HasGiantBags) {
  ForRandomCases(4, [](Random* random) {
    TestCase<TypeParam, int32_t>(random, random->Int(1, 3), {50, 2, 40, random->Int(16385, 40000)});
  });
}

// A giant is reduced in pieces. Those without ids have no part in its maximum, which is negative.
TEST(PoolingGiantTest, LeavesOutPiecesOfPaddingAlone) {
  const Guarded<float> table(std::vector<float>{-3, -2, -1});
  constexpr int64_t kPiece = 8192, kPieces = 3;
  for (int padding = 0; padding < 1 << kPieces; ++padding) {
    std::vector<int32_t> ids(kPiece * kPieces);
    int64_t first = -1, count = 0;  // of the ids that are no padding
    for (int64_t i = 0; i < kPiece * kPieces; ++i) {
      const bool is_padding = (padding >> i / kPiece & 1) != 0;
      ids[i] = is_padding ? 2 : i % kPiece == 5 ? 1 : 0;
      count += !is_padding;
      if (ids[i] == 1 && first < 0) first = i;
    }
    const Guarded<int32_t> indices(ids);
    Bags<int32_t> bags;
    bags.kind = BagKind::kPacked;
    bags.indices = indices.data();
    bags.num_indices = ids.size();
    bags.count = 1;
    bags.has_padding = true;
    bags.padding_idx = 2;
    OnCaller one;
    const Guarded<float> maximum(1), sum(1);
    const Guarded<int32_t> argmax(1);
    EXPECT_EQ(PoolFloats(table.data(), 3, 1, bags, {}, Reduction::kMax, &one, maximum.data(),
                         argmax.data()),
              "");
    EXPECT_EQ(PoolFloats(table.data(), 3, 1, bags, {}, Reduction::kSum, &one, sum.data()), "");
    EXPECT_EQ(maximum[0], count == 0 ? 0 : -2);
    EXPECT_EQ(argmax[0], first);
    EXPECT_EQ(sum[0], -3 * count + count / kPiece);
  }
}

// Many bags, so that several threads really share them.
TEST(PoolingThreadsTest, TakePartsOfTheBags) {
  RealThreads threads(4);
  ForRandomCases(3, [&](Random* random) {
    Case<float, int64_t> lookup(random, PickReduction<float>(random), 64, {100, 4000, 12});
    EXPECT_EQ(lookup.Run(&threads), "");
    lookup.Check();
  });
}

TEST(PoolingNanTest, IsTheMaximumAndTheFirstIsNamed) {
  ForRandomCases(200, [](Random* random) {
    const int64_t width = random->Int(1, 70), num_rows = 8;
    const bool is_giant = random->Chance(.03);
    std::vector<float> rows(num_rows * width);
    for (float& x : rows) {
      x = random->Pick({0.f, -0.f, 1.f, -1.f, std::numeric_limits<float>::infinity(),
                        -std::numeric_limits<float>::infinity(),
                        std::numeric_limits<float>::quiet_NaN()});
    }
    const Guarded<float> table(rows);
    const RandomBags<int32_t> bags(random, {num_rows, 6, 4, is_giant ? 20000 : 0});
    const int64_t count = bags.get().count;
    Guarded<float> out(count * width);
    Guarded<int32_t> argmax(count * width);
    OnCaller one;
    EXPECT_EQ(PoolFloats(table.data(), num_rows, width, bags.get(), {}, Reduction::kMax, &one,
                         out.data(), argmax.data()),
              "");
    for (int64_t at = 0; at < count * width; ++at) {
      const std::vector<int64_t> positions = bags.Positions(at / width);
      if (positions.empty()) continue;
      const auto value = [&](int64_t position) {
        return table[bags.row(position) * width + at % width];
      };
      int64_t best = positions[0];
      for (const int64_t position : positions) {
        if (std::isnan(value(best))) break;
        if (std::isnan(value(position)) || value(position) > value(best)) best = position;
      }
      EXPECT_EQ(argmax[at], best);
      if (std::isnan(value(best))) {
        EXPECT_TRUE(std::isnan(out[at]));
      } else {
        EXPECT_EQ(out[at], value(best));
      }
    }
  });
}

// Each as by itself, bit by bit.
TEST(PoolingSeveralTest, AreAsByThemselves) {
  RealThreads threads(3);
  ForRandomCases(40, [&](Random* random) {
    std::vector<std::unique_ptr<Case<double, int32_t>>> cases;
    std::vector<std::vector<double>> expected;
    std::vector<BagLookUp<double, int32_t>> lookups;
    for (int64_t count = random->Int(1, 9); count > 0; --count) {
      const int64_t giant = random->Chance(.02) ? 17000 : 0;
      const RandomBags<int32_t>::Options options{random->Int(1, 30), random->Int(1, 300),
                                                 random->Int(0, 20), giant};
      cases.push_back(std::make_unique<Case<double, int32_t>>(random, PickReduction<double>(random),
                                                              random->Int(0, 40), options));
      OnCaller one;
      EXPECT_EQ(cases.back()->Run(&one), "");
      expected.push_back(cases.back()->out());
      cases.back()->Clear();
      lookups.push_back(cases.back()->get());
    }
    EXPECT_EQ(PoolBags(lookups, &threads), "");
    for (size_t k = 0; k < cases.size(); ++k) {
      EXPECT_TRUE(SameBits(cases[k]->out(), expected[k])) << "table " << k;
    }
  });
}

TEST(PoolingSeveralTest, AnErrorNamesItsTable) {
  const std::vector<float> table = {1, 2, 3};
  const std::vector<int64_t> good = {0, 2}, bad = {0, 3}, offsets = {0};
  std::vector<float> out(3);
  std::vector<BagLookUp<float, int64_t>> lookups(3);
  for (size_t k = 0; k < 3; ++k) {
    lookups[k].table = {table.data(), 3, 1};
    lookups[k].bags.indices = k == 2 ? bad.data() : good.data();
    lookups[k].bags.num_indices = 2;
    lookups[k].bags.bounds = offsets.data();
    lookups[k].bags.count = 1;
    lookups[k].out = &out[k];
    lookups[k].number = k;
  }
  OnCaller one;
  EXPECT_EQ(PoolBags(lookups, &one), "emb_tables[2]: indices[1] is 3, but emb_table has 3 rows");
  lookups[1].bags.default_index = 7;
  EXPECT_EQ(PoolBags(lookups, &one), "emb_tables[1]: default_index is 7, but emb_table has 3 rows");
  EXPECT_EQ(PoolBags(std::vector<BagLookUp<float, int64_t>>(), &one), "");
}

// Sums of small integers are exact, whatever is prefetched, also beyond the table, and wherever in
// a cache line the table begins.
TEST(PoolingPrefetchTest, ChangesNoSum) {
  ForRandomCases(60, [](Random* random) {
    const int64_t width = random->Pick<int64_t>(
        {15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257});
    const int64_t num_rows = random->Int(1, 40), begin = random->Int(0, 16);
    const int64_t count = random->Int(1, 20);
    std::vector<float> numbers(begin + num_rows * width);
    for (float& x : numbers) x = static_cast<float>(random->Int(-8, 8));
    const Guarded<float> memory(numbers);
    const float* const table = memory.data() + begin;
    std::vector<int64_t> bounds = {0};
    for (int64_t b = 0; b < count; ++b) bounds.push_back(bounds.back() + random->Int(0, 9));
    std::vector<int64_t> given(bounds.back());
    for (int64_t& id : given) id = random->Int(0, num_rows - 1);
    const Guarded<int64_t> ids(given);
    std::vector<float> weights(given.size());
    for (float& weight : weights) weight = static_cast<float>(random->Int(-3, 3));
    for (const bool weighted : {false, true}) {
      std::vector<float> expected(count * width);
      for (int64_t b = 0; b < count; ++b) {
        for (int64_t i = bounds[b]; i < bounds[b + 1]; ++i) {
          for (int64_t c = 0; c < width; ++c) {
            expected[b * width + c] += table[given[i] * width + c] * (weighted ? weights[i] : 1);
          }
        }
      }
      for (const Prefetching& prefetching :
           {Prefetching{true, 0}, Prefetching{true, 3}, Prefetching{true, 1024},
            Prefetching{false, 0}, Prefetching{false, 3}, Prefetching{false, 1024}}) {
        const Guarded<float> out(count * width);
        PoolArgs<float, int64_t> args{};
        args.table = table;
        args.num_rows = num_rows;
        args.width = width;
        args.ids = ids.data();
        args.ids_end = args.ids + given.size();
        args.weights = weighted ? weights.data() : nullptr;
        args.bounds = bounds.data();
        args.count = count;
        args.out = out.data();
        args.prefetching = prefetching;
        EXPECT_TRUE((ChoosePoolSum<float, int64_t>(width, weighted)(args)));
        EXPECT_EQ(out.Copy(), expected) << "rows of " << width << " from " << begin << " on";
      }
    }
  });
}

// One index that is no row: it is named, whichever threads meet it, and nothing outside the outputs
// is written.
template <typename Index>
void TestBadIndex(Random* random) {
  const int64_t giant = random->Chance(.05) ? 20000 : 0;
  const RandomBags<Index> good(random, {30, 40, 12, giant});
  Bags<Index> bags = good.get();
  if (bags.num_indices == 0) return;
  std::vector<Index> changed(bags.indices, bags.indices + bags.num_indices);
  const int64_t position = random->Int(0, bags.num_indices - 1), width = random->Int(0, 20);
  changed[position] = random->Pick<Index>(
      {-9, 39, std::numeric_limits<Index>::min(), std::numeric_limits<Index>::max()});
  const Guarded<Index> indices(changed);
  bags.indices = indices.data();
  const Guarded<float> table(RandomNumbers<float>(random, 30 * width));
  const RandomWeights<float> weights(random, bags.num_indices, random->Chance(.5));
  const Guarded<float> out(bags.count * width);
  std::string place = std::to_string(position);
  if (bags.kind == BagKind::kPacked) {
    const int64_t size = bags.num_indices / bags.count;
    place = std::to_string(position / size) + ", " + std::to_string(position % size);
  }
  OnCaller threads(random->Int(1, 4), random->Chance(.5));
  EXPECT_EQ(PoolFloats(table.data(), 30, width, bags, weights.get(),
                       random->Pick({Reduction::kSum, Reduction::kMean}), &threads, out.data()),
            "indices[" + place + "] is " + std::to_string(changed[position]) +
                ", but emb_table has 30 rows");
}

TEST(PoolingErrorsTest, NameTheIndexThatIsNoRow) {
  ForRandomCases(300, TestBadIndex<int32_t>);
  ForRandomCases(300, TestBadIndex<int64_t>);
}

TEST(PoolingErrorsTest, NameTheBoundsThatAreWrong) {
  const std::vector<float> table(10);
  const std::vector<int32_t> ids = {0, 1, 2, 3}, offsets = {0, 3, 2, 4};
  Bags<int32_t> bags;
  bags.indices = ids.data();
  bags.num_indices = 4;
  bags.bounds = offsets.data();
  bags.count = 4;
  OnCaller one;
  for (const int64_t width : {0, 1}) {
    const Guarded<float> out(4 * width);
    EXPECT_EQ(PoolFloats(table.data(), 10, width, bags, {}, Reduction::kSum, &one, out.data()),
              "offsets[2] is 2, but offsets[1] is 3 before it");
  }
}

}  // namespace
}  // namespace tf_ti
