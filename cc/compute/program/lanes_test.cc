#include "cc/compute/program/lanes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/program/builder.h"
#include "cc/compute/program/program.h"
#include "cc/compute/program/testing/arrays.h"
#include "cc/compute/program/testing/reference.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

using Use = LoopPlan::Use;

constexpr int kIterations = 3;

// A loop with the values of its arrays. An input is a state, or a piece of each iteration, or stays
// the same. An output is the next value of a state, or is written, or is added up.
class Loop {
 public:
  explicit Loop(Random* random) : random_(random) {}

  ProgramBuilder builder;

  // An input whose values are small numbers.
  View AddInput(ElementType type, const Dims& dims, bool stays = false) {
    const View view = builder.AddInput(type, dims, stays);
    Input& input = inputs_.emplace_back();
    input.type = type;
    input.dims = dims;
    for (int t = 0; t < (stays ? 1 : kIterations); ++t) input.values.push_back(Values(type, dims));
    plan_.inputs.push_back(NewArray());
    return view;
  }
  View AddConstant(ElementType type, const Dims& dims) {
    return builder.AddConstant(type, dims, Values(type, dims).data());
  }
  // Makes a view the value of an input in the next iteration.
  void SetState(int input, const View& next) {
    AddOutput(next, Use::kValue, plan_.inputs[input]);
    inputs_[input].output = static_cast<int>(outputs_.size()) - 1;
  }
  void Write(const View& view) { AddOutput(view, Use::kValue, NewArray()); }
  void Add(const View& view) { AddOutput(view, Use::kAdded, NewArray()); }
  void SetFailure(const View& view) { AddOutput(view, Use::kFailure, NewArray()); }
  void SetWhole(int input) { plan_.is_whole[plan_.inputs[input]] = true; }

  std::vector<Lanes> Find() {
    steps_ = WithoutDeadSteps(builder.steps());
    return FindLanes(steps_, plan_).lanes;
  }
  std::vector<Obstacle> FindObstacles() const {
    return FindLanes(WithoutDeadSteps(builder.steps()), plan_).obstacles;
  }

  const std::vector<View>& outputs() const { return outputs_; }
  Use UseOf(size_t output) const { return plan_.uses[output]; }

  // What all iterations give: for each output the values of each, or their sum.
  struct Results {
    std::vector<std::vector<Array>> values;
  };

  Results RunWhole() const { return Run(steps_, nullptr, 0, 0); }
  // Runs all lanes, in groups of `size`. The last group has the lanes that are left.
  Results RunGroups(const Lanes& lanes, int64_t size) const {
    Results all;
    for (int64_t first = 0; first < lanes.count;) {
      int64_t count = std::min(size, lanes.count - first);
      if (lanes.count - first - count < 2) count = lanes.count - first;
      Join(lanes, first, count, Run(CutLanes(steps_, lanes, count), &lanes, first, count), &all);
      first += count;
    }
    return all;
  }
  // Changes the numbers of one lane in all inputs that have lanes.
  void Perturb(const Lanes& lanes, int64_t lane) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const int64_t stride = lanes.array_strides[plan_.inputs[i]];
      if (stride == 0) continue;
      for (std::vector<char>& values : inputs_[i].values) {
        const std::vector<char> others = Values(inputs_[i].type, inputs_[i].dims);
        ForParts(values.size(), stride, lanes.count, lane, 1,
                 [&](int64_t at, int64_t, int64_t n) { std::memcpy(&values[at], &others[at], n); });
      }
    }
  }
  // True if the results of all other lanes are the same. Outputs that lanes share must be.
  bool AreOthersEqual(const Lanes& lanes, int64_t lane, const Results& a, const Results& b) const {
    for (size_t o = 0; o < outputs_.size(); ++o) {
      if (lanes.is_sum[o]) continue;
      const int64_t stride = lanes.array_strides[plan_.outputs[o]];
      for (size_t t = 0; t < a.values[o].size(); ++t) {
        std::vector<char> x = ToBytes(a.values[o][t]), y = ToBytes(b.values[o][t]);
        if (stride > 0 && UseOf(o) == Use::kValue) {
          ForParts(x.size(), stride, lanes.count, lane, 1, [&](int64_t at, int64_t, int64_t n) {
            std::memset(&x[at], 0, n);
            std::memset(&y[at], 0, n);
          });
        } else if (stride > 0) {
          continue;  // the bytes of sums have another type
        }
        if (x != y) return false;
      }
    }
    return true;
  }

 private:
  struct Input {
    ElementType type;
    Dims dims;
    int output = -1;                        // of a state
    std::vector<std::vector<char>> values;  // by iteration; one if it stays or is a state
  };

  int NewArray() {
    plan_.is_whole.push_back(false);
    return static_cast<int>(plan_.is_whole.size()) - 1;
  }

  void AddOutput(const View& view, Use use, int array) {
    builder.AddOutput(view);
    outputs_.push_back(view);
    plan_.outputs.push_back(array);
    plan_.uses.push_back(use);
  }

  std::vector<char> Values(ElementType type, const Dims& dims) {
    Array array;
    array.type = type;
    array.dims = dims;
    for (int64_t i = 0; i < CountOf(dims); ++i) {
      if (array.is_real()) {
        array.reals.push_back(RoundTo(type, random_->Real(-1, 1)));
      } else {
        array.integers.push_back(random_->Int(0, type == ElementType::kBool ? 1 : 3));
      }
    }
    return ToBytes(array);
  }

  // Calls part(at, to, bytes) for the bytes of lanes: where they are in all, and among themselves.
  template <typename Part>
  static void ForParts(int64_t bytes, int64_t stride, int64_t count, int64_t first, int64_t size,
                       const Part& part) {
    int64_t to = 0;
    for (int64_t at = 0; at < bytes; at += stride * count, to += stride * size) {
      part(at + first * stride, to, stride * size);
    }
  }

  Results Run(const ProgramSteps& steps, const Lanes* lanes, int64_t first, int64_t count) const {
    const auto part_of = [&](const std::vector<char>& all, int array) {
      const int64_t stride = lanes != nullptr ? lanes->array_strides[array] : 0;
      if (stride == 0) return all;
      std::vector<char> part(all.size() / lanes->count * count);
      ForParts(all.size(), stride, lanes->count, first, count,
               [&](int64_t at, int64_t to, int64_t n) { std::memcpy(&part[to], &all[at], n); });
      return part;
    };
    const Program program(steps);
    ProgramRun run(program);
    std::vector<std::vector<char>> given(inputs_.size());
    const auto set = [&](size_t i, const std::vector<char>& values) {
      given[i] = values;
      run.SetInput(i, given[i].data());
    };
    for (size_t i = 0; i < inputs_.size(); ++i) {
      set(i, part_of(inputs_[i].values[0], plan_.inputs[i]));
    }
    Results results;
    results.values.resize(outputs_.size());
    std::vector<std::vector<char>> made(outputs_.size());
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const int64_t stride = lanes != nullptr ? lanes->array_strides[plan_.outputs[o]] : 0;
      const int64_t bytes = outputs_[o].count() * SizeOf(StoredAs(outputs_[o].type));
      made[o].resize(stride > 0 ? bytes / lanes->count * count : bytes);
      run.SetOutput(o, made[o].data());
    }
    run.RunPrologue();
    for (int t = 0; t < kIterations; ++t) {
      for (size_t i = 0; i < inputs_.size() && t > 0; ++i) {
        if (inputs_[i].output >= 0) {
          set(i, made[inputs_[i].output]);
        } else if (inputs_[i].values.size() > 1) {
          set(i, part_of(inputs_[i].values[t], plan_.inputs[i]));
        }
      }
      run.Run();
      for (size_t o = 0; o < outputs_.size(); ++o) {
        const ElementType type = outputs_[o].type;
        const auto elements = static_cast<int64_t>(made[o].size()) / SizeOf(StoredAs(type));
        const Array value = FromBytes(type, {elements}, made[o].data());
        std::vector<Array>& values = results.values[o];
        if (UseOf(o) == Use::kValue || values.empty()) {
          values.push_back(value);
        } else {
          Accumulate(value, &values[0]);
        }
      }
    }
    return results;
  }

  static void Accumulate(const Array& value, Array* sum) {
    for (size_t i = 0; i < value.reals.size(); ++i) sum->reals[i] += value.reals[i];
    for (size_t i = 0; i < value.integers.size(); ++i) {
      sum->integers[i] = value.type == ElementType::kBool
                             ? sum->integers[i] | value.integers[i]
                             : WrapTo(value.type, sum->integers[i] + value.integers[i]);
    }
  }

  // Copies the results of a group into the results of all lanes.
  void Join(const Lanes& lanes, int64_t first, int64_t count, const Results& group,
            Results* all) const {
    all->values.resize(outputs_.size());
    for (size_t o = 0; o < outputs_.size(); ++o) {
      const int64_t size = SizeOf(StoredAs(outputs_[o].type));
      const int64_t stride = lanes.array_strides[plan_.outputs[o]] / size;
      for (size_t t = 0; t < group.values[o].size(); ++t) {
        const Array& part = group.values[o][t];
        if (first == 0) {
          Array& empty = all->values[o].emplace_back(part);
          if (stride == 0) continue;
          empty.dims = {outputs_[o].count()};
          if (part.is_real()) empty.reals.assign(outputs_[o].count(), 0);
          if (!part.is_real()) empty.integers.assign(outputs_[o].count(), 0);
        }
        Array& whole = all->values[o][t];
        if (lanes.is_sum[o]) {
          if (first > 0) Accumulate(part, &whole);
        } else if (stride > 0) {
          ForParts(outputs_[o].count(), stride, lanes.count, first, count,
                   [&](int64_t at, int64_t from, int64_t n) {
                     for (int64_t i = 0; i < n; ++i) {
                       if (part.is_real()) whole.reals[at + i] = part.reals[from + i];
                       if (!part.is_real()) whole.integers[at + i] = part.integers[from + i];
                     }
                   });
        }
      }
    }
  }

  Random* const random_;
  std::vector<Input> inputs_;
  std::vector<View> outputs_;
  LoopPlan plan_;
  ProgramSteps steps_;
};

// Expects that groups of any size give the same bits as all lanes at once. A sum over lanes may
// differ by the order of its terms.
void ExpectSameByGroups(Loop* loop, Random* random, const std::vector<Lanes>& all) {
  const Loop::Results whole = loop->RunWhole();
  for (const Lanes& lanes : all) {
    ASSERT_GE(lanes.count, 2);
    for (const int64_t size : {int64_t{2}, random->Int(2, lanes.count)}) {
      const Loop::Results groups = loop->RunGroups(lanes, size);
      for (size_t o = 0; o < whole.values.size(); ++o) {
        for (size_t t = 0; t < whole.values[o].size(); ++t) {
          const Array &found = groups.values[o][t], &expected = whole.values[o][t];
          if (!lanes.is_sum[o]) {
            ExpectAlike(found, expected, 0, "output " + std::to_string(o));
            continue;
          }
          EXPECT_EQ(found.integers, expected.integers) << "sum " << o;
          for (size_t i = 0; i < expected.reals.size(); ++i) {
            const double bound = 1e-3 * (1 + std::fabs(expected.reals[i]));
            EXPECT_NEAR(found.reals[i], expected.reals[i], bound) << "sum " << o;
          }
        }
      }
    }
  }
}

void ExpectLanesAreApart(Loop* loop, Random* random, const std::vector<Lanes>& all) {
  const Loop::Results before = loop->RunWhole();
  for (const Lanes& lanes : all) {
    const int64_t lane = random->Int(0, lanes.count - 1);
    Loop changed = *loop;
    changed.Perturb(lanes, lane);
    EXPECT_TRUE(loop->AreOthersEqual(lanes, lane, before, changed.RunWhole()))
        << "lane " << lane << " of " << lanes.count << " is read by others";
  }
}

// Lanes by their number, of a loop that one may look at further.
std::vector<int64_t> CountsOf(const std::vector<Lanes>& all) {
  std::vector<int64_t> counts;
  for (const Lanes& lanes : all) counts.push_back(lanes.count);
  return counts;
}

void Check(Loop* loop, Random* random, const std::vector<int64_t>& counts) {
  const std::vector<Lanes> all = loop->Find();
  EXPECT_EQ(CountsOf(all), counts);
  ExpectSameByGroups(loop, random, all);
  ExpectLanesAreApart(loop, random, all);
}

constexpr ElementType kFloat = ElementType::kFloat;

TEST(Lanes, RowsAndColumnsOfElementwiseBodiesAreLanes) {
  Random random(1);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {6, 5});
  const View x = loop.AddInput(kFloat, {6, 5});
  const View scale = loop.AddInput(kFloat, {5}, /*stays=*/true);
  const View sum = *loop.builder.Apply(Operation::kAdd, {h, x});
  loop.SetState(0, *loop.builder.Apply(Operation::kMul, {sum, scale}));
  loop.Write(sum);
  Check(&loop, &random, {6, 5});
}

TEST(Lanes, RowsOfACellAreLanesAndUnitsAreNot) {
  Random random(2);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {6, 5});
  const View w = loop.AddInput(kFloat, {5, 5}, /*stays=*/true);
  const View bias = loop.AddInput(kFloat, {5}, /*stays=*/true);
  const View product = *loop.builder.Multiply(h, w);
  const View next = *loop.builder.Apply(Operation::kTanh,
                                        {*loop.builder.Apply(Operation::kAdd, {product, bias})});
  loop.SetState(0, next);
  Check(&loop, &random, {6});
}

TEST(Lanes, UnitsAreLanesWhereNoIterationMixesThem) {
  Random random(3);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {6, 5});
  const View x = loop.AddInput(kFloat, {6, 4});
  const View w = loop.AddInput(kFloat, {4, 5}, /*stays=*/true);
  loop.SetState(0, *loop.builder.Apply(Operation::kMul, {h, *loop.builder.Multiply(x, w)}));
  Check(&loop, &random, {6, 5});
}

TEST(Lanes, SumsOverLanesThatAreOnlyAddedUpAreSumsOfGroups) {
  Random random(4);
  for (const bool is_written : {false, true}) {
    Loop loop(&random);
    const View dh = loop.AddInput(kFloat, {6, 5});
    const View x = loop.AddInput(kFloat, {6, 4});
    const View w = loop.AddInput(kFloat, {5, 5}, /*stays=*/true);
    loop.SetState(0, *loop.builder.Multiply(dh, w));
    const View dw = *loop.builder.Multiply(x.Transpose({1, 0}), dh);
    const View db = loop.builder.Reduce(Operation::kSum, dh, 0, kFloat)->WithoutDim(0);
    loop.Add(
        *loop.builder.Apply(Operation::kAdd, {dw, *loop.builder.Apply(Operation::kNeg, {dw})}));
    loop.Add(dw);
    if (is_written) {
      loop.Write(db);
    } else {
      loop.Add(db);
    }
    const std::vector<int64_t> counts =
        is_written ? std::vector<int64_t>() : std::vector<int64_t>{6};
    // The rows of dw are lanes too, but the other way round: of x's columns.
    std::vector<int64_t> found = CountsOf(loop.Find());
    EXPECT_EQ(std::count(found.begin(), found.end(), 6), static_cast<int64_t>(counts.size()));
    Check(&loop, &random, found);
  }
}

TEST(Lanes, ASumThatMeetsAnotherNumberIsNoSumOfGroups) {
  Random random(5);
  for (const Operation operation : {Operation::kAdd, Operation::kMul}) {
    Loop loop(&random);
    const View x = loop.AddInput(kFloat, {6, 1});
    const View one = loop.AddInput(kFloat, {1, 1}, /*stays=*/true);
    const View sum = *loop.builder.Reduce(Operation::kSum, x, 0, kFloat);
    loop.Add(*loop.builder.Apply(operation, {sum, one}));
    Check(&loop, &random, {});
  }
}

TEST(Lanes, PartsOfAnArrayOfWhichOneIsASumLeaveNoLanes) {
  Random random(15);
  Loop loop(&random);
  const View x = loop.AddInput(kFloat, {6, 1});
  const View y = loop.AddInput(kFloat, {1, 1});
  const View both = loop.builder.AddResult(kFloat, {2, 1});
  const View sum = *loop.builder.Reduce(Operation::kSum, x, 0, kFloat);
  loop.builder.CopyInto(sum, both.Slice(0, 0, 1, 1));
  loop.builder.CopyInto(y, both.Slice(0, 1, 1, 1));
  loop.Add(both);
  Check(&loop, &random, {});
}

// The sign of a zero that is the largest half precision number of a column depends on its place.
TEST(Lanes, ExtremesOfColumnsOfHalvesLeaveNoLanes) {
  Random random(18);
  for (const ElementType type : {ElementType::kHalf, ElementType::kBFloat16, kFloat}) {
    Loop loop(&random);
    const View x = loop.AddInput(type, {6, 4, 3});
    loop.Write(*loop.builder.Reduce(Operation::kMax, x, 1, type));
    Check(&loop, &random, type == kFloat ? std::vector<int64_t>{6, 3} : std::vector<int64_t>());
    Loop rows(&random);
    const View y = rows.AddInput(type, {6, 4});
    rows.Write(*rows.builder.Reduce(Operation::kMin, y, 1, type));
    Check(&rows, &random, {6});
  }
}

TEST(Lanes, WhatMixesLanesLeavesNone) {
  Random random(6);
  const std::vector<std::function<View(Loop*, const View&)>> mixes = {
      [](Loop* loop, const View& h) {
        return *loop->builder.Apply(Operation::kAdd, {h, h.Transpose({1, 0})});
      },
      [](Loop* loop, const View& h) { return *loop->builder.Multiply(h, h.Transpose({1, 0})); },
      [](Loop* loop, const View& h) { return *loop->builder.Multiply(h, h); },
      [](Loop* loop, const View& h) {  // a roll along both
        View rolled = h;
        for (const int d : {0, 1}) {
          const View to = loop->builder.AddResult(kFloat, h.dims);
          loop->builder.CopyInto(rolled.Slice(d, 1, 3, 1), to.Slice(d, 0, 3, 1));
          loop->builder.CopyInto(rolled.Slice(d, 0, 1, 1), to.Slice(d, 3, 1, 1));
          rolled = to;
        }
        return rolled;
      },
      [](Loop* loop, const View& h) {  // reversed along both
        View reversed = h;
        for (const int d : {0, 1}) reversed = reversed.Slice(d, 3, 4, -1);
        return loop->builder.Contiguous(reversed);
      },
      [](Loop* loop, const View& h) {
        const View most = *loop->builder.Reduce(Operation::kMax, h, 0, kFloat);
        return *loop->builder.Apply(Operation::kSub,
                                    {h, *loop->builder.Reduce(Operation::kMax, most, 1, kFloat)});
      },
  };
  for (const auto& mix : mixes) {
    Loop loop(&random);
    const View h = loop.AddInput(kFloat, {4, 4});
    loop.SetState(0, mix(&loop, h));
    Check(&loop, &random, {});
  }
}

// Rows stay lanes where features are sliced, rolled, reversed and joined.
TEST(Lanes, ObstaclesTellWhatIsInTheWayOfEachAxis) {
  using Kind = Obstacle::Kind;
  using Body = std::function<View(Loop*, const View&)>;
  struct Case {
    Body body;
    Kind kind;
    int origin;
    int64_t stride;  // of the axis that the first obstacle is about
  };
  constexpr int kThis = 7, kOther = 8;  // origins
  const auto reduced = [](int dim) -> Body {
    return [dim](Loop* loop, const View& h) {
      const View most = *loop->builder.Reduce(Operation::kMax, h, dim, kFloat);
      loop->builder.set_origin(kOther);
      return *loop->builder.Apply(Operation::kSub, {h, most});
    };
  };
  const std::vector<Case> cases = {
      {reduced(0), Kind::kReduced, kThis, 16},
      {reduced(1), Kind::kReduced, kThis, 4},
      {[](Loop* loop, const View& h) {
         const View rolled = loop->builder.AddResult(kFloat, {4, 4});
         loop->builder.CopyInto(h.Slice(0, 1, 3, 1), rolled.Slice(0, 0, 3, 1));
         loop->builder.CopyInto(h.Slice(0, 0, 1, 1), rolled.Slice(0, 3, 1, 1));
         return rolled;
       },
       Kind::kParts, kThis, 16},
      {[](Loop* loop, const View& h) {
         return *loop->builder.Apply(Operation::kAdd, {h, h.Transpose({1, 0})});
       },
       Kind::kRepeated, kThis, 16},
      {[](Loop* loop, const View& h) {
         const View scale = loop->AddConstant(kFloat, {4, 1});
         return *loop->builder.Apply(Operation::kMul, {h, scale});
       },
       Kind::kConstant, kThis, 16},
      {[](Loop* loop, const View& h) {
         const View sum = *loop->builder.Reduce(Operation::kSum, h, 0, kFloat);
         loop->builder.set_origin(kOther);
         return *loop->builder.Apply(Operation::kMul, {h, sum});
       },
       Kind::kReduced, kThis, 16},
      {[](Loop* loop, const View& h) {
         loop->builder.set_origin(kOther);
         loop->Write(*loop->builder.Reduce(Operation::kSum, h, 0, kFloat));
         loop->builder.set_origin(kThis);
         const View most = *loop->builder.Reduce(Operation::kMax, h, 0, kFloat);
         return *loop->builder.Apply(Operation::kSub, {h, most});
       },
       Kind::kReduced, kThis, 16},
      {[](Loop* loop, const View& h) {
         loop->SetWhole(0);
         return *loop->builder.Apply(Operation::kExp, {h});
       },
       Kind::kWhole, -1, 16},
  };
  Random random(24);
  for (size_t i = 0; i < cases.size(); ++i) {
    Loop loop(&random);
    const View h = loop.AddInput(kFloat, {4, 4});
    loop.builder.set_origin(kThis);
    const View next = cases[i].body(&loop, h);
    loop.builder.set_origin(-1);
    loop.SetState(0, next);
    const std::vector<Obstacle> found = loop.FindObstacles();
    ASSERT_FALSE(found.empty()) << "case " << i;
    EXPECT_EQ(found[0].kind, cases[i].kind) << "case " << i;
    EXPECT_EQ(found[0].origin, cases[i].origin) << "case " << i;
    EXPECT_EQ(found[0].stride, cases[i].stride) << "case " << i;
    EXPECT_EQ(found[0].array, 0) << "case " << i;
  }
}

TEST(Lanes, PartsOfFeaturesLeaveRowsLanes) {
  Random random(13);
  const std::vector<std::function<View(Loop*, const View&)>> parts = {
      [](Loop* loop, const View& h) {
        return *loop->builder.Apply(Operation::kMul, {h.Slice(1, 0, 3, 1), h.Slice(1, 2, 3, 1)});
      },
      [](Loop* loop, const View& h) { return loop->builder.Contiguous(h.Slice(1, 4, 5, -1)); },
      [](Loop* loop, const View& h) {
        const View to = loop->builder.AddResult(kFloat, h.dims);
        loop->builder.CopyInto(h.Slice(1, 1, 4, 1), to.Slice(1, 0, 4, 1));
        loop->builder.CopyInto(h.Slice(1, 0, 1, 1), to.Slice(1, 4, 1, 1));
        return to;
      },
      [](Loop* loop, const View& h) {
        return loop->builder.Contiguous(h.Slice(1, 3, 1, 1).WithoutDim(1));
      },
  };
  for (const auto& part : parts) {
    Loop loop(&random);
    const View h = loop.AddInput(kFloat, {6, 5});
    loop.Write(part(&loop, h));
    loop.SetState(0, *loop.builder.Apply(Operation::kTanh, {h}));
    Check(&loop, &random, {6});
  }
}

// A slice that begins within one row and is reshaped to rows reads two rows at once.
TEST(Lanes, RowsThatASliceCutsApartAreNoLanes) {
  Random random(14);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {2, 8, 4});
  const View shifted = h.Reshape({64}).Slice(0, 2, 32, 1).Reshape({8, 4});
  loop.Write(*loop.builder.Apply(Operation::kNeg, {shifted}));
  loop.SetState(0, *loop.builder.Apply(Operation::kTanh, {h}));
  Check(&loop, &random, {});
}

// x[:, :, None] * x[:, None, :] has a diagonal in its last two dimensions, and lanes in its first.
TEST(Lanes, OuterProductsAreCutByTheirBatchAlone) {
  Random random(7);
  Loop loop(&random);
  const View x = loop.AddInput(kFloat, {6, 4});
  loop.Write(*loop.builder.Apply(Operation::kMul, {x.WithDim(2), x.WithDim(1)}));
  Check(&loop, &random, {6});
}

TEST(Lanes, ConditionsThatReadAnArrayLeaveItWhole) {
  Random random(8);
  for (const bool is_whole : {false, true}) {
    Loop loop(&random);
    const View h = loop.AddInput(kFloat, {7});
    loop.SetState(0, *loop.builder.Apply(Operation::kTanh, {h}));
    if (is_whole) loop.SetWhole(0);
    Check(&loop, &random, is_whole ? std::vector<int64_t>() : std::vector<int64_t>{7});
  }
}

TEST(Lanes, AFailureOfAnyLaneIsOneOfAll) {
  Random random(9);
  Loop loop(&random);
  const View x = loop.AddInput(ElementType::kBool, {6, 1});
  const View y = loop.AddInput(ElementType::kBool, {1, 1});
  const View any = *loop.builder.Reduce(Operation::kAny, x, 0, ElementType::kBool);
  loop.Write(*loop.builder.Apply(Operation::kLogicalNot, {x}));
  loop.SetFailure(*loop.builder.Apply(Operation::kLogicalOr, {any, y}));
  Check(&loop, &random, {6});
}

TEST(Lanes, WhetherAnyLaneFailsIsNoResult) {
  Random random(16);
  Loop loop(&random);
  const View x = loop.AddInput(ElementType::kBool, {6, 1});
  loop.Write(*loop.builder.Reduce(Operation::kAny, x, 0, ElementType::kBool));
  Check(&loop, &random, {});
}

TEST(Lanes, ArraysThatAreReadFlatHaveTheAxesOfOtherArrays) {
  Random random(17);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {6, 5});
  const View x = loop.AddInput(kFloat, {6, 5});
  const View flat = *loop.builder.Apply(Operation::kAdd, {h.Reshape({30}), x.Reshape({30})});
  const View most = *loop.builder.Reduce(Operation::kMax, flat.Reshape({6, 5}), 1, kFloat);
  loop.Write(most);
  loop.SetState(0, flat.Reshape({6, 5}));
  Check(&loop, &random, {6});
}

TEST(Lanes, LanesMayLieInsideOfWhatAReshapeMerges) {
  Random random(10);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {3, 8, 2});
  const View flat = *loop.builder.Apply(Operation::kTanh, {h.Reshape({48})});
  const View sum = *loop.builder.Reduce(Operation::kSum, flat.Reshape({3, 8, 2}), 0, kFloat);
  loop.SetState(0, *loop.builder.Apply(Operation::kSub, {flat.Reshape({3, 8, 2}), sum}));
  Check(&loop, &random, {8, 2});
}

TEST(Lanes, PairsAreLanesWhereEvenAndOddElementsMix) {
  Random random(11);
  Loop loop(&random);
  const View h = loop.AddInput(kFloat, {8});
  const View even = h.Slice(0, 0, 4, 2), odd = h.Slice(0, 1, 4, 2);
  const View next = loop.builder.AddResult(kFloat, {8});
  loop.builder.CopyInto(*loop.builder.Apply(Operation::kAdd, {even, odd}), next.Slice(0, 0, 4, 2));
  loop.builder.CopyInto(*loop.builder.Apply(Operation::kSub, {even, odd}), next.Slice(0, 1, 4, 2));
  loop.SetState(0, next);
  Check(&loop, &random, {4});
}

TEST(Lanes, GathersAreCutByWhatTheyKeep) {
  Random random(12);
  Loop loop(&random);
  const View rows = loop.AddInput(kFloat, {6, 4, 3});
  const View indices = loop.AddInput(ElementType::kInt32, {6, 5});
  loop.Write(loop.builder.Gather(rows, indices, 1, /*is_batched=*/true));
  Check(&loop, &random, {6, 5, 3});
}

TEST(Lanes, LanesOfOneVectorDivideNothing) {
  for (const int64_t width : {8, 64}) {
    Random random(13);
    Loop loop(&random);
    const View state = loop.AddInput(kFloat, {100, width});
    loop.SetState(0, *loop.builder.Apply(Operation::kTanh, {state}));
    loop.Write(*loop.builder.Reduce(Operation::kSum, state, 0, kFloat));
    const std::vector<Lanes> lanes = loop.Find();
    ASSERT_EQ(lanes.size(), 1);
    EXPECT_EQ(lanes[0].count, width);
    EXPECT_EQ(lanes[0].divided_time > 0, width == 64);
    EXPECT_EQ(lanes[0].shared_time > 0, width == 8);
  }
}

Lanes LanesOf(int64_t count, int64_t stride, double divided, double shared = 0) {
  Lanes lanes;
  lanes.count = count;
  lanes.strides = {0, stride};
  lanes.divided_time = divided;
  lanes.shared_time = shared;
  return lanes;
}

TEST(Lanes, GroupsHaveWholeCacheLinesAndShareTheWork) {
  // 1,024 lanes of 4 bytes, 10 us an iteration.
  EXPECT_EQ(LanesOfGroup(LanesOf(1024, 4, 10e3), 4, 100, 2), 256);
  EXPECT_EQ(LanesOfGroup(LanesOf(1000, 4, 10e3), 4, 100, 2), 256);
  // Without threads the loop alone decides.
  EXPECT_EQ(LanesOfGroup(LanesOf(1024, 4, 10e3), 4, 100, 0), 128);
  // Few lanes need no whole lines.
  EXPECT_EQ(LanesOfGroup(LanesOf(8, 4, 10e3), 4, 100, 2), 2);
}

TEST(Lanes, TheFirstIterationDoesNotCountForGroups) {
  EXPECT_EQ(IterationsOfGroups(0, 9, /*has_condition=*/false), 8);
  EXPECT_EQ(IterationsOfGroups(1, 9, /*has_condition=*/false), 8);
  EXPECT_EQ(IterationsOfGroups(4, 9, /*has_condition=*/false), 5);
  EXPECT_EQ(IterationsOfGroups(0, 1, /*has_condition=*/true), 0);
  EXPECT_EQ(IterationsOfGroups(0, 9, /*has_condition=*/true), 8);
  EXPECT_EQ(IterationsOfGroups(0, 1000, /*has_condition=*/true), kExpectedIterations);
}

TEST(Lanes, NoGroupsWhereTheyAreNotWorthIt) {
  EXPECT_EQ(LanesOfGroup(LanesOf(1024, 4, 10e3), 4, 20, 2), 1024);         // a short loop
  EXPECT_EQ(LanesOfGroup(LanesOf(1024, 4, 100), 40, 100000, 2), 1024);     // much to do again
  EXPECT_EQ(LanesOfGroup(LanesOf(1024, 4, 10e3, 30e3), 4, 100, 2), 1024);  // the same
  EXPECT_EQ(LanesOfGroup(LanesOf(1024, 4, 10e3), 4, 100, 1), 1024);        // one thread
  EXPECT_EQ(LanesOfGroup(LanesOf(3, 400, 10e3), 4, 100, 2), 3);            // no two groups of two
}

// A loop of random operations.
void AddRandomBody(Loop* loop, Random* random) {
  const ElementType type = random->Pick(
      {kFloat, kFloat, kFloat, ElementType::kDouble, ElementType::kHalf, ElementType::kInt32});
  const bool is_real = IsReal(type);
  Dims dims;
  for (int64_t d = random->Int(1, 3); d > 0; --d) dims.push_back(random->Int(1, 9));
  const auto stored = [&] {
    Dims some = dims;
    for (int64_t& dim : some) dim = random->Chance(0.2) ? 1 : dim;
    return some;
  };
  std::vector<View> views;
  const int num_states = static_cast<int>(random->Int(1, 2));
  for (int i = 0; i < num_states; ++i) views.push_back(loop->AddInput(type, dims));
  for (int64_t i = random->Int(0, 3); i > 0; --i) {
    views.push_back(random->Chance(0.2) ? loop->AddConstant(type, stored())
                                        : loop->AddInput(type, stored(), random->Chance(0.3)));
  }
  ProgramBuilder& builder = loop->builder;
  const auto pick = [&] { return views[random->Int(0, views.size() - 1)]; };
  for (int64_t i = random->Int(1, 12); i > 0; --i) {
    const View x = pick();
    const int rank = x.rank();
    const int d = rank > 0 ? static_cast<int>(random->Int(0, rank - 1)) : 0;
    std::optional<View> made;
    switch (random->Int(0, 9)) {
      case 0:
        made = builder.Apply(is_real ? Operation::kTanh : Operation::kNeg, {x});
        break;
      case 1:
      case 2:
      case 3:
        made = builder.Apply(random->Pick({Operation::kAdd, Operation::kSub, Operation::kMaximum,
                                           Operation::kMinimum}),
                             {x, pick()});
        break;
      case 4:
        if (rank > 0) {
          made = builder.Reduce(random->Pick({Operation::kSum, Operation::kMax}), x, d, type);
        }
        break;
      case 5:
        if (rank == 2) made = x.Transpose({1, 0});
        break;
      case 6:
        if (rank > 0 && x.dims[d] > 1) {
          const int64_t begin = random->Int(0, x.dims[d] - 1);
          made = x.Slice(d, begin, random->Int(1, x.dims[d] - begin), 1);
        }
        break;
      case 7:
        if (rank == 2) {
          const View y = pick();
          if (y.rank() == 2 && y.dims[0] == x.dims[1]) made = builder.Multiply(x, y);
        }
        break;
      case 8:
        if (rank == 2) {
          made = builder.Contiguous(x).Reshape({x.dims[0] * x.dims[1]});
          if (random->Chance(0.5)) made = made->Reshape({x.dims[1], x.dims[0]});
        } else if (rank == 1) {
          made = random->Chance(0.5) ? x.WithDim(0) : x.WithDim(1);
        }
        break;
      default:
        if (rank > 0) {
          const int64_t at = random->Int(0, x.dims[d] - 1);
          const View rolled = builder.AddResult(type, x.dims);
          const int64_t rest = x.dims[d] - at;
          builder.CopyInto(x.Slice(d, at, rest, 1), rolled.Slice(d, 0, rest, 1));
          if (at > 0) builder.CopyInto(x.Slice(d, 0, at, 1), rolled.Slice(d, rest, at, 1));
          made = rolled;
        }
    }
    if (made.has_value() && made->count() > 0 && made->count() < 2000) views.push_back(*made);
  }
  // A state becomes the last array that fits it.
  for (int i = 0; i < num_states; ++i) {
    View next = views[i];
    for (const View& view : views) {
      if (view.dims == dims && (random->Chance(0.7) || next.block == views[i].block)) next = view;
    }
    next = *builder.Apply(Operation::kMinimum, {next, loop->AddConstant(type, {})});
    loop->SetState(i, next);
  }
  for (int64_t i = random->Int(1, 2); i > 0; --i) loop->Write(pick());
  if (random->Chance(0.5) && !IsHalf(type)) {
    View sum = *builder.Apply(is_real ? Operation::kTanh : Operation::kAbs, {pick()});
    for (int d = 0; d < sum.rank(); ++d) {
      if (random->Chance(0.5)) sum = *builder.Reduce(Operation::kSum, sum, d, type);
    }
    loop->Add(sum);
  }
}

TEST(Lanes, GroupsOfRandomBodiesGiveWhatAllLanesGive) {
  int num_with_lanes = 0, num_sums = 0;
  ForRandomCases(3000, [&](Random* random) {
    Loop loop(random);
    AddRandomBody(&loop, random);
    const std::vector<Lanes> all = loop.Find();
    num_with_lanes += !all.empty();
    for (const Lanes& lanes : all) {
      num_sums += std::count(lanes.is_sum.begin(), lanes.is_sum.end(), true) > 0;
    }
    ExpectSameByGroups(&loop, random, all);
    ExpectLanesAreApart(&loop, random, all);
  });
  if (std::getenv("TF_TI_TEST_SEED") != nullptr) return;
  EXPECT_GT(num_with_lanes, 800);
  EXPECT_GT(num_sums, 50);
}

}  // namespace
}  // namespace tf_ti
