// Loops within programs, beside the same steps written out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cc/compute/program/builder.h"
#include "cc/compute/program/lanes.h"
#include "cc/compute/program/program.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

constexpr ElementType kFloat = ElementType::kFloat;
constexpr int64_t kRows = 6, kColumns = 5;
const Dims kDims = {kRows, kColumns};

// A program of arrays of kDims, and of nests of loops: as such, or with all iterations written out.
// Both have the same inputs and outputs.
class Nest {
 public:
  Nest(uint64_t seed, bool has_loops, bool mixes_rows)
      : has_loops_(has_loops), mixes_rows_(mixes_rows) {
    Random random(seed);
    std::vector<View> pool = {Input(1, kDims), Input(2, kDims)};
    for (int64_t k = random.Int(1, 3); k > 0; --k) AddLoop(random.Bits(), 1, &pool);
    for (int k = 0; k < kOutputs; ++k) {
      builder_.AddOutput(k == 0 ? pool.back() : Of(pool, &random));
    }
  }

  const ProgramSteps& steps() const { return builder_.steps(); }

  // The outputs of the lanes from `first` on, by steps for `count` of them.
  std::vector<std::vector<float>> RunLanes(const Lanes& lanes, int64_t first, int64_t count) const {
    const Program program(CutLanes(WithoutDeadSteps(steps()), lanes, count));
    ProgramRun run(program);
    std::vector<std::vector<float>> inputs, outputs;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto& [key, dims] = keys_[i];
      const std::vector<float> all = Values(key * 10 + 2, dims);
      inputs.push_back(PartOf(all, lanes.array_strides[i], lanes.count, first, count));
    }
    for (size_t i = 0; i < inputs.size(); ++i) run.SetInput(static_cast<int>(i), inputs[i].data());
    for (int k = 0; k < kOutputs; ++k) {
      const bool has_lanes = lanes.array_strides[keys_.size() + k] > 0;
      outputs.emplace_back(CountOf(kDims) / (has_lanes ? lanes.count : 1) *
                           (has_lanes ? count : 1));
    }
    for (int k = 0; k < kOutputs; ++k) run.SetOutput(k, outputs[k].data());
    run.RunPrologue();
    run.Run();
    return outputs;
  }
  // The elements of lanes, where a lane has `stride` bytes, or all where that is 0.
  static std::vector<float> PartOf(const std::vector<float>& all, int64_t stride, int64_t lanes,
                                   int64_t first, int64_t count) {
    if (stride == 0) return all;
    std::vector<float> part;
    const int64_t size = stride / static_cast<int64_t>(sizeof(float));
    for (auto at = all.begin(); at != all.end(); at += size * lanes) {
      part.insert(part.end(), at + first * size, at + (first + count) * size);
    }
    return part;
  }
  // A loop around the nest, whose iterations have nothing to do with each other.
  LoopPlan Plan() const {
    LoopPlan plan;
    const int num_inputs = static_cast<int>(keys_.size());
    for (int i = 0; i < num_inputs; ++i) plan.inputs.push_back(i);
    for (int k = 0; k < kOutputs; ++k) plan.outputs.push_back(num_inputs + k);
    plan.uses.assign(kOutputs, LoopPlan::Use::kValue);
    plan.is_whole.assign(num_inputs + kOutputs, false);
    return plan;
  }

  // The outputs of the second of two runs, each with other inputs.
  std::vector<std::vector<float>> Run(Random* random) const {
    TileLimits limits;
    if (random->Chance(0.5)) limits = {0, 0, 0, 0.1, random->Int(1, 300)};
    if (random->Chance(0.5)) limits.copies = -1e9;
    const Program program(steps(), random->Pick({0, 64, 192}), limits);
    ProgramRun run(program);
    std::vector<std::vector<float>> outputs(kOutputs, std::vector<float>(CountOf(kDims)));
    for (int k = 0; k < kOutputs; ++k) run.SetOutput(k, outputs[k].data());
    for (const uint64_t turn : {1, 2}) {
      std::vector<std::vector<float>> inputs;
      for (const auto& [key, dims] : keys_) inputs.push_back(Values(key * 10 + turn, dims));
      for (size_t i = 0; i < inputs.size(); ++i) {
        run.SetInput(static_cast<int>(i), inputs[i].data());
      }
      if (turn == 1) run.RunPrologue();
      if (random->Chance(0.5)) {
        EXPECT_TRUE(run.RunChecked()) << "an instruction wrote beside its block";
      } else {
        run.Run();
      }
    }
    return outputs;
  }

 private:
  static std::vector<float> Values(uint64_t seed, const Dims& dims) {
    Random random(seed);
    std::vector<float> values(CountOf(dims));
    for (float& value : values) value = static_cast<float>(random.Real(-1, 1));
    return values;
  }

  // The input of a key, which there is once.
  View Input(uint64_t key, const Dims& dims) {
    const auto found = inputs_.find(key);
    if (found != inputs_.end()) return found->second;
    keys_.push_back({key, dims});
    return inputs_[key] = builder_.AddInput(kFloat, dims);
  }
  static View Of(const std::vector<View>& pool, Random* random) {
    return pool[random->Int(0, static_cast<int64_t>(pool.size()) - 1)];
  }

  // Adds a few steps that keep the shape.
  void AddSteps(Random* random, std::vector<View>* pool) {
    for (int k = random->Int(1, 4); k > 0; --k) {
      const View x = Of(*pool, random), y = Of(*pool, random);
      switch (random->Int(0, mixes_rows_ ? 7 : 5)) {
        case 0:
          pool->push_back(*builder_.Apply(Operation::kAdd, {x, y}));
          break;
        case 1:
          pool->push_back(*builder_.Apply(Operation::kMul, {x, y}));
          break;
        case 2:
          pool->push_back(*builder_.Apply(Operation::kTanh, {x}));
          break;
        case 3: {  // columns of two arrays
          const int64_t at = random->Int(1, kColumns - 1);
          const View joined = builder_.AddResult(kFloat, kDims);
          builder_.CopyInto(x.Slice(1, at, kColumns - at, 1), joined.Slice(1, 0, kColumns - at, 1));
          builder_.CopyInto(y.Slice(1, 0, at, 1), joined.Slice(1, kColumns - at, at, 1));
          pool->push_back(joined);
          break;
        }
        case 4:
          pool->push_back(*builder_.Apply(Operation::kSub,
                                          {x, *builder_.Reduce(Operation::kMax, y, 1, kFloat)}));
          break;
        case 5: {
          std::vector<float> matrix;
          for (int i = 0; i < kColumns * kColumns; ++i) {
            matrix.push_back(static_cast<float>(random->Real(-0.4, 0.4)));
          }
          const View right = builder_.AddConstant(kFloat, {kColumns, kColumns}, matrix.data());
          pool->push_back(*builder_.Multiply(x, right));
          break;
        }
        case 6:
          pool->push_back(*builder_.Apply(Operation::kSub,
                                          {x, *builder_.Reduce(Operation::kSum, y, 0, kFloat)}));
          break;
        default: {
          const int32_t row = static_cast<int32_t>(random->Int(0, kRows - 1));
          const View index = builder_.AddConstant(ElementType::kInt32, {1}, &row);
          pool->push_back(
              *builder_.Apply(Operation::kAdd, {x, builder_.Gather(y, index, 0, false)}));
        }
      }
    }
  }

  View Number(ElementType type, int64_t value) {
    const int32_t narrow = static_cast<int32_t>(value);
    const void* at = type == ElementType::kInt32 ? static_cast<const void*>(&narrow) : &value;
    return builder_.AddConstant(type, {}, at);
  }

  // Adds a loop whose body follows from `seed`, and its results to the pool.
  void AddLoop(uint64_t seed, int depth, std::vector<View>* pool) {
    Random random(seed);
    const int64_t count = random.Int(1, 5);
    // The number of iterations is known, or a number, or a condition ends the loop: of a counter, a
    // bool that the iteration before made, or a bool that the next iteration has as a state.
    const int kind = random.Int(0, 4);
    const bool is_static = kind == 0;
    const bool stops_early = !is_static && random.Chance(0.5);
    const int64_t runs = stops_early ? random.Int(0, count) : count;
    std::vector<View> starts, pieces;
    for (int k = random.Int(1, 3); k > 0; --k) starts.push_back(Of(*pool, &random));
    const int num_pieces = random.Int(0, 2);
    std::vector<int> piece_dims;
    for (int k = 0; k < num_pieces; ++k) {
      piece_dims.push_back(random.Int(0, 1));
      const Dims dims =
          piece_dims[k] == 0 ? Dims{count, kRows, kColumns} : Dims{kRows, count, kColumns};
      pieces.push_back(Input(seed + k, dims));
    }
    const std::vector<View> outer = *pool;
    const uint64_t body_seed = random.Int(0, 1 << 30);
    const bool has_inner = depth < 3 && random.Chance(0.5);
    // Values that were chosen among all of the body.
    struct Body {
      std::vector<View> next, written, kept;
    };
    const auto run_body = [&](const std::vector<View>& states, const std::vector<View>& parts) {
      Random inner(body_seed);
      std::vector<View> values = outer;
      values.insert(values.end(), states.begin(), states.end());
      values.insert(values.end(), parts.begin(), parts.end());
      AddSteps(&inner, &values);
      if (has_inner) {
        AddLoop(body_seed + 1, depth + 1, &values);
        AddSteps(&inner, &values);
      }
      Body body;
      const auto pick = [&] {
        return inner.Chance(0.6) ? values[values.size() - 1 - inner.Int(0, 1)] : Of(values, &inner);
      };
      for (size_t k = 0; k < states.size(); ++k) body.next.push_back(pick());
      for (int k = inner.Int(0, 2); k > 0 && is_static; --k) body.written.push_back(pick());
      for (int k = inner.Int(0, 2); k > 0 && is_static; --k) body.kept.push_back(pick());
      return body;
    };
    const bool is_reversed = random.Chance(0.5);
    const bool is_last_axis = random.Chance(0.3);
    std::vector<View> results;
    Random start_random(seed + 1);
    const auto index = [&](int64_t t) { return is_reversed ? count - 1 - t : t; };
    const auto out_dims =
        is_last_axis ? Dims{kRows, count, kColumns} : Dims{count, kRows, kColumns};
    const int axis = is_last_axis ? 1 : 0;
    if (has_loops_) {
      const View limit = Number(kind == 1 ? ElementType::kInt64 : ElementType::kInt32, runs);
      builder_.BeginLoop(count);
      std::vector<View> states, parts;
      std::vector<View> values;
      for (const View& start : starts) {
        if (is_static && start_random.Chance(0.4)) {
          states.push_back(builder_.AddState(start, is_reversed, &values.emplace_back()));
        } else {
          states.push_back(builder_.AddState(start));
        }
      }
      for (int k = 0; k < num_pieces; ++k) {
        parts.push_back(builder_
                            .PieceOf(pieces[k], piece_dims[k], is_reversed ? count - 1 : 0, 1,
                                     is_reversed ? -1 : 1)
                            .WithoutDim(piece_dims[k]));
      }
      std::optional<View> counter;
      std::optional<View> going;
      const auto goes_on = [&](const View& count) {
        return *builder_.Apply(Operation::kLess, {count, limit});
      };
      if (kind >= 2) {
        counter = builder_.AddState(Number(ElementType::kInt32, 0));
        if (kind == 3) {
          going = builder_.AddState(goes_on(Number(ElementType::kInt32, 0)));
          builder_.EndCondition(*going);
        } else {
          const View condition = goes_on(*counter);
          if (kind == 4) going = builder_.AddState(condition);
          builder_.EndCondition(condition);
          if (kind == 4) going = condition;
        }
      }
      Body body = run_body(states, parts);
      if (kind >= 2) {
        const View next =
            *builder_.Apply(Operation::kAdd, {*counter, Number(ElementType::kInt32, 1)});
        body.next.push_back(next);
        if (kind == 3) body.next.push_back(goes_on(next));
        if (kind == 4) body.next.push_back(*going);
      }
      std::vector<ProgramBuilder::Written> written;
      std::vector<View> outs;
      for (const View& from : body.written) {
        outs.push_back(builder_.AddResult(kFloat, out_dims));
        written.push_back({from, builder_
                                     .PieceOf(outs.back(), axis, is_reversed ? count - 1 : 0, 1,
                                              is_reversed ? -1 : 1)
                                     .WithoutDim(axis)});
      }
      results = builder_.EndLoop(body.next, written, body.kept,
                                 kind == 1 ? std::optional<View>(limit) : std::nullopt);
      if (kind >= 2) {
        const auto first = results.begin() + static_cast<int64_t>(starts.size());
        results.erase(first, first + (kind == 2 ? 1 : 2));
      }
      results.insert(results.end(), outs.begin(), outs.end());
      results.insert(results.end(), values.begin(), values.end());
    } else {
      std::vector<View> states = starts, outs, kept, values;
      std::vector<int> recorded;
      for (size_t k = 0; k < starts.size(); ++k) {
        if (!is_static || !start_random.Chance(0.4)) continue;
        recorded.push_back(static_cast<int>(k));
        values.push_back(builder_.AddResult(kFloat, {count, kRows, kColumns}));
      }
      for (int64_t t = 0; t < runs; ++t) {
        std::vector<View> parts;
        for (int k = 0; k < num_pieces; ++k) {
          parts.push_back(pieces[k].Slice(piece_dims[k], index(t), 1, 1).WithoutDim(piece_dims[k]));
        }
        for (size_t k = 0; k < recorded.size(); ++k) {
          builder_.CopyInto(states[recorded[k]], values[k].Slice(0, index(t), 1, 1).WithoutDim(0));
        }
        const Body body = run_body(states, parts);
        states = body.next;
        kept = body.kept;
        for (size_t k = 0; k < body.written.size(); ++k) {
          if (t == 0) outs.push_back(builder_.AddResult(kFloat, out_dims));
          builder_.CopyInto(body.written[k], outs[k].Slice(axis, index(t), 1, 1).WithoutDim(axis));
        }
      }
      results = states;
      results.insert(results.end(), kept.begin(), kept.end());
      results.insert(results.end(), outs.begin(), outs.end());
      results.insert(results.end(), values.begin(), values.end());
    }
    for (View& result : results) {
      if (result.dims != kDims) {
        const int dim = result.dims[0] == kRows ? 1 : 0;
        result = result.Slice(dim, count / 2, 1, 1).WithoutDim(dim);
      }
      pool->push_back(result);
    }
  }

  static constexpr int kOutputs = 4;

  const bool has_loops_;
  const bool mixes_rows_;
  ProgramBuilder builder_;
  std::vector<std::pair<uint64_t, Dims>> keys_;  // of the inputs
  std::map<uint64_t, View> inputs_;
};

TEST(Loops, NestsAreTheirIterationsWrittenOut) {
  ForRandomCases(3000, [](Random* random) {
    const uint64_t seed = random->Bits();
    const bool mixes_rows = random->Chance(0.5);
    const Nest nest(seed, true, mixes_rows), written_out(seed, false, mixes_rows);
    const auto found = nest.Run(random), expected = written_out.Run(random);
    for (size_t k = 0; k < expected.size(); ++k) {
      for (size_t i = 0; i < expected[k].size(); ++i) {
        const bool is_same = std::memcmp(&found[k][i], &expected[k][i], sizeof(float)) == 0;
        ASSERT_TRUE(is_same || (std::isnan(found[k][i]) && std::isnan(expected[k][i])))
            << "output " << k << ", element " << i << ": " << found[k][i] << ", not "
            << expected[k][i];
      }
    }
  });
}

TEST(Loops, LanesOfNestsAreApart) {
  int num_with_lanes = 0;
  ForRandomCases(1500, [&](Random* random) {
    const bool mixes_rows = random->Chance(0.2);
    const Nest nest(random->Bits(), true, mixes_rows);
    const std::vector<std::vector<float>> all = nest.Run(random);
    const LoopPlan plan = nest.Plan();
    const std::vector<Lanes> found = FindLanes(WithoutDeadSteps(nest.steps()), plan).lanes;
    EXPECT_TRUE(mixes_rows || !found.empty());
    for (const Lanes& lanes : found) {
      ++num_with_lanes;
      const int64_t first = random->Int(0, lanes.count - 2);
      const int64_t count = random->Int(2, lanes.count - first);
      const auto part = nest.RunLanes(lanes, first, count);
      for (size_t k = 0; k < all.size(); ++k) {
        const int64_t stride = lanes.array_strides[plan.outputs[k]];
        const auto expected = Nest::PartOf(all[k], stride, lanes.count, first, count);
        for (size_t i = 0; i < expected.size(); ++i) {
          const bool is_nan = std::isnan(expected[i]) && std::isnan(part[k][i]);
          ASSERT_TRUE(is_nan || std::memcmp(&part[k][i], &expected[i], sizeof(float)) == 0)
              << "output " << k << ", element " << i << " of " << lanes.count << " lanes";
        }
      }
    }
  });
  EXPECT_GT(num_with_lanes, 900);
}

// A loop that adds up products over rows, as a gradient of a weight does. `reads` tells whether an
// iteration reads the sum so far.
FoundLanes LanesOfSum(bool reads, bool begins_with_zeros) {
  ProgramBuilder builder;
  const View x = builder.AddInput(kFloat, {3, kRows, kColumns});
  const View start = builder.AddInput(kFloat, {1, kColumns});
  const std::vector<float> zeros(kColumns);
  builder.BeginLoop(3);
  const View sum = builder.AddState(
      begins_with_zeros ? builder.AddConstant(kFloat, {1, kColumns}, zeros.data()) : start);
  View piece = builder.PieceOf(x, 0, 0, 1, 1).WithoutDim(0);
  if (reads) piece = *builder.Apply(Operation::kMul, {piece, sum});
  const View added = *builder.Reduce(Operation::kSum, piece, 0, kFloat);
  const View next = *builder.Apply(Operation::kAdd, {sum, added});
  builder.AddOutput(builder.EndLoop({next}, {}, {})[0]);
  LoopPlan plan;
  plan.inputs = {0, 1};
  plan.outputs = {2};
  plan.uses = {LoopPlan::Use::kAdded};
  plan.is_whole.assign(3, false);
  return FindLanes(WithoutDeadSteps(builder.steps()), plan);
}

bool HasRows(const FoundLanes& found) {
  return std::any_of(found.lanes.begin(), found.lanes.end(),
                     [](const Lanes& lanes) { return lanes.count == kRows && lanes.is_sum[0]; });
}

TEST(Loops, AnInnerSumOverLanesIsOneThatGroupsAddUp) {
  EXPECT_TRUE(HasRows(LanesOfSum(/*reads=*/false, /*begins_with_zeros=*/true)));
  EXPECT_FALSE(HasRows(LanesOfSum(/*reads=*/true, /*begins_with_zeros=*/true)));
  EXPECT_FALSE(HasRows(LanesOfSum(/*reads=*/false, /*begins_with_zeros=*/false)));
}

TEST(Loops, AStateThatOnlyBeginsWithZerosIsNoSum) {
  for (const bool adds_up : {false, true}) {
    ProgramBuilder builder;
    const View x = builder.AddInput(kFloat, kDims);
    const View v = builder.AddInput(kFloat, {1, kColumns});
    const std::vector<float> zeros(kColumns);
    builder.BeginLoop(3);
    const View state = builder.AddState(builder.AddConstant(kFloat, {1, kColumns}, zeros.data()));
    const View sum = *builder.Reduce(Operation::kSum, x, 0, kFloat);
    const View result = *builder.Apply(Operation::kAdd, {state, sum});
    const View next = adds_up ? *builder.Apply(Operation::kAdd, {state, v}) : v;
    builder.AddOutput(builder.Contiguous(builder.EndLoop({next}, {}, {result})[1]));
    LoopPlan plan;
    plan.inputs = {0, 1};
    plan.outputs = {2};
    plan.uses = {LoopPlan::Use::kAdded};
    plan.is_whole.assign(3, false);
    EXPECT_FALSE(HasRows(FindLanes(WithoutDeadSteps(builder.steps()), plan)));
  }
}

// Zeros behind the rows that a loop writes.
TEST(Loops, WhatReadsAnArrayThatALoopWritesRunsAfterTheLoop) {
  const float zero = 0;
  ProgramBuilder builder;
  const View x = builder.AddInput(kFloat, {3, 2});
  builder.BeginLoop(3);
  const View row = builder.PieceOf(x, 0, 0, 1, 1).WithoutDim(0);
  const View made = *builder.Apply(Operation::kTanh, {row});
  const View whole = builder.AddResult(kFloat, {5, 2});
  builder.CopyInto(builder.AddConstant(kFloat, {}, &zero), whole.Slice(0, 3, 2, 1));
  builder.EndLoop({}, {{made, builder.PieceOf(whole, 0, 0, 1, 1).WithoutDim(0)}}, {});
  builder.AddOutput(*builder.Apply(Operation::kAbs, {whole}));
  const Program program(builder.steps());
  ProgramRun run(program);
  std::vector<float> given = {1, -2, 3, 4, -5, 6}, found(10, -1);
  run.SetInput(0, given.data());
  run.SetOutput(0, found.data());
  run.RunPrologue();
  run.Run();
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], i < given.size() ? std::tanh(std::fabs(given[i])) : 0, 1e-6);
  }
}

// The condition ends the loop for all rows.
TEST(Loops, AConditionThatReadsRowsLeavesNoLanes) {
  for (const bool reads_rows : {false, true}) {
    ProgramBuilder builder;
    const View x = builder.AddInput(kFloat, kDims), number = builder.AddInput(kFloat, {});
    builder.BeginLoop(9);
    const View state = builder.AddState(x);
    const View all = state.Reshape({1, kRows * kColumns, 1});
    View largest = *builder.Reduce(Operation::kMax, all, 1, kFloat);
    if (!reads_rows) largest = number;
    builder.EndCondition(
        builder.Contiguous(*builder.Apply(Operation::kLess, {largest.Reshape({}), number})));
    builder.AddOutput(
        builder.EndLoop({*builder.Apply(Operation::kAdd, {state, state})}, {}, {})[0]);
    LoopPlan plan;
    plan.inputs = {0, 1};
    plan.outputs = {2};
    plan.uses = {LoopPlan::Use::kValue};
    plan.is_whole.assign(3, false);
    EXPECT_EQ(FindLanes(WithoutDeadSteps(builder.steps()), plan).lanes.empty(), reads_rows);
  }
}

// A gradient goes back so through a loop that a condition has ended.
TEST(Loops, RowsAreReadFromTheLastOneHoweverManyThereAre) {
  constexpr int64_t kMost = 7, kSize = 4;
  ProgramBuilder builder;
  const float half = 0.5f;
  const View x = builder.AddInput(kFloat, {kSize});
  const View count = builder.AddInput(ElementType::kInt64, {});
  const View factor = builder.AddConstant(kFloat, {}, &half);
  const auto next = [&](const View& state, const View& added) {
    return *builder.Apply(Operation::kAdd,
                          {*builder.Apply(Operation::kMul, {state, factor}), added});
  };
  View values;
  builder.BeginLoop(kMost);
  const View state = builder.AddState(x, /*falls=*/false, &values);
  builder.EndLoop({next(state, x)}, {}, {}, count);
  builder.BeginLoop(kMost);
  const View sum = builder.AddState(x);
  const View again = builder.AddResult(kFloat, {kMost, kSize});
  const View row = builder.RowToLast(values);
  const View end =
      builder.EndLoop({next(sum, row)}, {{row, builder.RowToLast(again)}}, {}, count)[0];
  builder.AddOutput(end);
  builder.AddOutput(again);
  const Program program(builder.steps());
  ProgramRun run(program);
  run.RunPrologue();
  for (const int64_t given : {0, 7, 1, 3, 2, 6}) {
    std::vector<float> start = {1, -2, 3, 0.25}, found(kSize), rows(kMost * kSize, -1);
    run.SetInput(0, start.data());
    run.SetInput(1, &given);
    run.SetOutput(0, found.data());
    run.SetOutput(1, rows.data());
    run.Run();
    for (int64_t i = 0; i < kSize; ++i) {
      std::vector<float> states = {start[i]};
      for (int64_t t = 0; t < given; ++t) states.push_back(states[t] * half + start[i]);
      float expected = start[i];
      for (int64_t t = given - 1; t >= 0; --t) {
        expected = expected * half + states[t];
        EXPECT_EQ(rows[t * kSize + i], states[t]);
      }
      EXPECT_EQ(found[i], expected) << given;
    }
  }
}

TEST(Loops, AStoppedLoopEndsSoon) {
  ProgramBuilder builder;
  const float one = 1;
  const View x = builder.AddInput(kFloat, {64});
  builder.BeginLoop(int64_t{1} << 40);
  const View state = builder.AddState(x);
  const View next = *builder.Apply(Operation::kAdd, {state, builder.AddConstant(kFloat, {}, &one)});
  builder.AddOutput(builder.EndLoop({next}, {}, {})[0]);
  const Program program(builder.steps());
  ProgramRun run(program);
  std::vector<float> values(64), result(64);
  run.SetInput(0, values.data());
  run.SetOutput(0, result.data());
  int looks = 0;
  const std::function<bool()> is_stopped = [&] { return ++looks == 3; };
  run.SetStop(&is_stopped);
  run.RunPrologue();
  run.Run();
  EXPECT_TRUE(run.was_stopped());
  EXPECT_EQ(looks, 3);
  // The addresses are as before.
  const std::function<bool()> at_once = [] { return true; };
  run.SetStop(&at_once);
  run.Run();
  run.SetStop(nullptr);
  EXPECT_FALSE(run.was_stopped());
}

}  // namespace
}  // namespace tf_ti
