#include "cc/compute/loops/homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "cc/compute/loops/moving_pointers.h"
#include "cc/compute/loops/walk.h"

namespace tf_ti {
namespace {

using Array = std::array<uint64_t, 2>;
constexpr int64_t kBytes = sizeof(Array);

Array Mixed(const Array& a, const Array& b) {
  return {a[0] * 31 + b[1] + 7, a[1] * 37 + b[0] + 11};
}

// Pieces of a range of indices, in one block each or, transposed, in two.
class Storage {
 public:
  Storage(int64_t count, bool is_transposed, int64_t every)
      : elements_(2 * count), count_(count), is_transposed_(is_transposed), every_(every) {}

  Walk walk() {
    Walk walk;
    walk.base = reinterpret_cast<char*>(elements_.data());
    walk.step = is_transposed_ ? sizeof(uint64_t) : kBytes;
    walk.every = every_;
    if (is_transposed_) {
      walk.num_blocks = 2;
      walk.block_stride = count_ * sizeof(uint64_t);
    }
    return walk;
  }
  bool Has(int64_t index) const { return index % every_ == 0; }
  Array Get(int64_t index) const {
    const int64_t piece = index / every_;
    if (is_transposed_) return {elements_[piece], elements_[count_ + piece]};
    return {elements_[2 * piece], elements_[2 * piece + 1]};
  }
  template <typename Random>
  void Fill(Random* random) {
    for (uint64_t& element : elements_) element = (*random)();
  }

 private:
  std::vector<uint64_t> elements_;
  const int64_t count_;
  const bool is_transposed_;
  const int64_t every_;
};

// A loop whose results mix all parameters. Each value's array in each iteration is known from its
// definition.
class RandomLoop {
 public:
  explicit RandomLoop(uint64_t seed) : random_(seed) {
    begin_ = Below(3);
    end_ = begin_ + 1 + Below(40);
    count_ = end_ + 1;
    order_ = {count_ - 1, Below(2) == 0};
    num_parameters_ = Below(6);
    num_values_ = num_parameters_ + 1 + Below(3);
    // The table of all iterations, and of the states after the last.
    table_.assign(end_ + 1, std::vector<Array>(num_values_));
    for (int p = 0; p < num_parameters_; ++p) AddParameter(p);
    for (int v = num_parameters_; v < num_values_; ++v) values_.push_back(LoopValue::Made(kBytes));
    for (int64_t t = begin_; t <= end_; ++t) FillTable(t);
    for (int w = Below(5); w > 0; --w) {
      outputs_.emplace_back(count_, Below(3) == 0, 1 + (Below(4) == 0));
      writes_.push_back({Below(num_values_), outputs_.back().walk()});
    }
  }

  void Run() {
    const Homes homes(values_, writes_, order_, begin_);
    std::vector<char*> at(num_values_);
    MovingPointers pointers;
    for (int v = 0; v < num_values_; ++v) pointers.Add(v, &at[v], v);
    pointers.Start(&homes, end_);
    homes.WriteStarts();
    for (int64_t t = begin_; t < end_; ++t) {
      SCOPED_TRACE(testing::Message() << "iteration " << t);
      for (int v = 0; v < num_values_; ++v) ASSERT_EQ(at[v] - v, homes.At(v, t)) << "value " << v;
      for (const int v : homes.reads()) homes.WalkOf(v).Read(order_.Of(t), kBytes, at[v] - v);
      CheckParameters(homes, t);
      for (int v = num_parameters_; v < num_values_; ++v) {
        std::memcpy(at[v] - v, table_[t][v].data(), kBytes);
      }
      // No result has taken the place of a parameter.
      CheckParameters(homes, t);
      for (const LoopWrite& write : homes.writes()) {
        write.to.Write(order_.Of(t), kBytes, homes.At(write.value, t));
      }
      if (t + 1 < end_) pointers.Next();
    }
    CheckOutputs();
    for (const int p : states_) EXPECT_EQ(ArrayAt(homes.At(p, end_)), table_[end_][p]) << p;
  }

 private:
  enum Kind { kFixed, kState, kListed, kPieces };

  int Below(int n) { return static_cast<int>(random_() % n); }
  static Array ArrayAt(const char* at) {
    Array array;
    std::memcpy(array.data(), at, kBytes);
    return array;
  }

  void AddParameter(int p) {
    const auto kind = Below(2) == 0 ? kState : static_cast<Kind>(Below(4));
    kinds_.push_back(kind);
    Storage& storage = inputs_.emplace_back(count_, kind == kPieces && Below(2) == 0, 1);
    storage.Fill(&random_);
    int source = Below(num_values_ - 1);
    source += source >= p;
    sources_.push_back(source);
    const Walk walk = storage.walk();
    switch (kind) {
      case kFixed:
        values_.push_back(LoopValue::Fixed(walk.base, kBytes));
        break;
      case kState:
        values_.push_back(LoopValue::State(source, walk.base, kBytes));
        states_.push_back(p);
        break;
      case kPieces:
        values_.push_back(LoopValue::Pieces(walk, kBytes));
        break;
      case kListed: {
        std::vector<int64_t>& places = places_[p];
        for (int64_t index = 0; index < count_; ++index) places.push_back(index);
        if (Below(2) == 0) std::shuffle(places.begin(), places.end(), random_);
        std::vector<const char*> addresses;
        for (const int64_t place : places) addresses.push_back(walk.At(place));
        values_.push_back(LoopValue::Listed(std::move(addresses), kBytes));
      }
    }
  }

  void FillTable(int64_t t) {
    std::vector<Array>& now = table_[t];
    Array all = {};
    for (int p = 0; p < num_parameters_; ++p) {
      const int64_t index = order_.Of(t);
      switch (kinds_[p]) {
        case kFixed:
          now[p] = inputs_[p].Get(0);
          break;
        case kState:
          now[p] = t == begin_ ? inputs_[p].Get(0) : table_[t - 1][sources_[p]];
          break;
        case kPieces:
          now[p] = inputs_[p].Get(index);
          break;
        case kListed:
          now[p] = inputs_[p].Get(places_[p][index]);
      }
      all = Mixed(all, now[p]);
    }
    for (int v = num_parameters_; v < num_values_; ++v) {
      now[v] = Mixed(all, {static_cast<uint64_t>(v), static_cast<uint64_t>(t)});
    }
  }

  void CheckParameters(const Homes& homes, int64_t t) const {
    for (int p = 0; p < num_parameters_; ++p) {
      ASSERT_EQ(ArrayAt(homes.At(p, t)), table_[t][p]) << "parameter " << p;
    }
  }

  void CheckOutputs() const {
    for (size_t w = 0; w < writes_.size(); ++w) {
      for (int64_t t = begin_; t < end_; ++t) {
        const int64_t index = order_.Of(t);
        if (!outputs_[w].Has(index)) continue;
        EXPECT_EQ(outputs_[w].Get(index), table_[t][writes_[w].value]) << "write " << w << ' ' << t;
      }
    }
  }

  std::mt19937_64 random_;
  int64_t begin_, end_, count_;
  IndexOrder order_;
  int num_parameters_, num_values_;
  std::vector<Kind> kinds_;
  std::vector<int> sources_;
  std::vector<int> states_;
  std::array<std::vector<int64_t>, 6> places_;
  std::deque<Storage> inputs_;
  std::deque<Storage> outputs_;
  std::vector<std::vector<Array>> table_;  // by iteration and value
  std::vector<LoopValue> values_;
  std::vector<LoopWrite> writes_;
};

TEST(HomesTest, ValuesOfRandomLoopsAreWhereTheyAreSought) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomLoop(seed).Run();
    if (HasFailure()) return;
  }
}

TEST(HomesTest, AResultLivesInItsOutput) {
  std::vector<Array> output(4);
  Walk walk;
  walk.base = reinterpret_cast<char*>(output.data());
  walk.step = kBytes;
  const Homes homes({LoopValue::Made(kBytes)}, {{0, walk}}, {3, false}, 0);
  EXPECT_TRUE(homes.writes().empty());
  for (int64_t t = 0; t < 4; ++t) EXPECT_EQ(homes.At(0, t), walk.At(t));
}

// The output gets the state as it comes in, so its first piece is the start.
TEST(HomesTest, AResultLivesInTheOutputOfItsState) {
  for (const bool reverse : {false, true}) {
    std::vector<Array> output(4);
    const Array start = {5, 6};
    const char* const at = reinterpret_cast<const char*>(start.data());
    Walk walk;
    walk.base = reinterpret_cast<char*>(output.data());
    walk.step = kBytes;
    const Homes homes({LoopValue::State(1, at, kBytes), LoopValue::Made(kBytes)}, {{0, walk}},
                      {3, reverse}, 0);
    EXPECT_TRUE(homes.writes().empty());
    homes.WriteStarts();
    EXPECT_EQ(output[reverse ? 3 : 0], start);
    for (int64_t t = 0; t < 3; ++t) EXPECT_EQ(homes.At(1, t), walk.At(reverse ? 2 - t : t + 1));
  }
}

TEST(HomesTest, BuffersTakeTurnsAsLongAsAStateIsTheValue) {
  const Array start = {};
  const char* const at = reinterpret_cast<const char*>(start.data());
  const Homes homes(
      {LoopValue::State(2, at, kBytes), LoopValue::State(0, at, kBytes), LoopValue::Made(kBytes)},
      {}, {9, false}, 0);
  EXPECT_EQ(homes.period(), 3);
  EXPECT_EQ(homes.At(2, 0), homes.At(2, 3));
  EXPECT_NE(homes.At(2, 0), homes.At(2, 1));
  EXPECT_NE(homes.At(2, 0), homes.At(2, 2));
  EXPECT_EQ(homes.At(1, 2), homes.At(2, 0));
  EXPECT_EQ(homes.Settling(1), 2);
}

TEST(HomesTest, ThePeriodStaysShort) {
  const Array start = {};
  const char* const at = reinterpret_cast<const char*>(start.data());
  std::vector<LoopValue> values;
  // Chains of 1, 2, 4, 6 and 10 states: as many buffers and one would repeat after 2310 iterations.
  for (const int length : {1, 2, 4, 6, 10}) {
    values.push_back(LoopValue::Made(kBytes));
    for (int k = 0; k < length; ++k) {
      values.push_back(LoopValue::State(static_cast<int>(values.size()) - 1, at, kBytes));
    }
  }
  const Homes homes(values, {}, {99, false}, 0);
  EXPECT_LE(homes.period(), 32);
}

TEST(HomesTest, StatesInACircleNeverSettle) {
  const std::array<Array, 2> starts = {};
  const auto at = [&](int k) { return reinterpret_cast<const char*>(starts[k].data()); };
  const Homes homes({LoopValue::State(1, at(0), kBytes), LoopValue::State(0, at(1), kBytes)}, {},
                    {9, false}, 3);
  EXPECT_FALSE(homes.Settling(0).has_value());
  for (int64_t t = 3; t < 20; ++t) EXPECT_EQ(homes.At(0, t), at((t - 3) % 2));
}

TEST(HomesTest, EvenAddressesSettle) {
  const std::array<Array, 4> arrays = {};
  std::vector<const char*> addresses;
  for (const Array& array : arrays) addresses.push_back(reinterpret_cast<const char*>(&array));
  const auto settles = [&] {
    return Homes({LoopValue::Listed(addresses, kBytes)}, {}, {3, false}, 0).Settling(0).has_value();
  };
  EXPECT_TRUE(settles());
  std::swap(addresses[1], addresses[2]);
  EXPECT_FALSE(settles());
}

}  // namespace
}  // namespace tf_ti
