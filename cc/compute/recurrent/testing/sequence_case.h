// A random call of a sequence, with its memory.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_TESTING_SEQUENCE_CASE_H_
#define TF_TI_CC_COMPUTE_RECURRENT_TESTING_SEQUENCE_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/recurrent/sequence.h"
#include "cc/compute/recurrent/testing/sequence_oracle.h"
#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/expect.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {

struct SequenceSizes {
  int64_t num_steps;
  int64_t batch;
  int64_t input;
  int64_t hidden;
};

// Rows of numbers for each step and each row of the batch, in memory of one of the two orders and
// with room between rows.
template <typename T>
class Rows {
 public:
  Rows() = default;
  Rows(Random* random, int64_t num_steps, int64_t batch, int64_t width)
      : num_steps_(num_steps), batch_(batch), width_(width) {
    const bool time_major = random->Chance(0.5);
    const int64_t row = width + random->Pick({0, 0, 1, 3});
    row_stride_ = time_major ? row : num_steps * row;
    step_stride_ = time_major ? batch * row : row;
    memory_ = std::make_unique<Guarded<T>>(num_steps * batch * row);
  }

  Guarded<T>& memory() const { return *memory_; }
  ByStep<T> by_step() const { return {memory_->data(), step_stride_, row_stride_}; }
  ByStep<const T> input() const { return {memory_->data(), step_stride_, row_stride_}; }
  // Element i of [num_steps, batch, width].
  T& operator[](int64_t i) const {
    const int64_t row = i / width_;
    return by_step().At(row / batch_, row % batch_)[i % width_];
  }
  int64_t size() const { return num_steps_ * batch_ * width_; }
  // Expects that nothing was written but rows.
  void CheckGaps() const {
    int64_t written = 0;
    for (int64_t i = 0; i < memory_->size(); ++i) written += !memory_->IsPoison(i);
    EXPECT_EQ(written, size()) << "numbers between rows were written, or rows were not";
  }

 private:
  int64_t num_steps_ = 0, batch_ = 0, width_ = 0;
  int64_t row_stride_ = 0, step_stride_ = 0;
  std::unique_ptr<Guarded<T>> memory_;
};

// A matrix [rows, columns], row-major or column-major, with room between.
template <typename T>
class Weights {
 public:
  Weights() = default;
  Weights(int64_t rows, int64_t columns, bool is_transposed, int64_t gap)
      : rows_(rows),
        columns_(columns),
        row_stride_(is_transposed ? 1 : columns + gap),
        column_stride_(is_transposed ? rows + gap : 1),
        memory_(std::make_unique<Guarded<T>>(is_transposed ? columns * (rows + gap)
                                                           : rows * (columns + gap))) {}

  Guarded<T>& memory() const { return *memory_; }
  Matrix<T> matrix() const { return {memory_->data(), row_stride_, column_stride_}; }
  // Element i of [rows, columns].
  T& operator[](int64_t i) const {
    return (*memory_)[i / columns_ * row_stride_ + i % columns_ * column_stride_];
  }
  int64_t size() const { return rows_ * columns_; }
  void CheckGaps() const {
    int64_t written = 0;
    for (int64_t i = 0; i < memory_->size(); ++i) written += !memory_->IsPoison(i);
    EXPECT_EQ(written, size()) << "numbers between rows were written, or rows were not";
  }

 private:
  int64_t rows_ = 0, columns_ = 0, row_stride_ = 0, column_stride_ = 0;
  std::unique_ptr<Guarded<T>> memory_;
};

template <typename S>
struct SequenceCase {
  SequenceArgs<S> args{};
  Given<S> given;  // densely; 0 where a step is not for a row
  bool is_transposed[2];
  int64_t gaps[2];

  Rows<S> x, y;
  std::unique_ptr<Guarded<S>> h0, c0, b, recurrent_b, h, c;
  Weights<S> w, r;
  std::unique_ptr<Guarded<int64_t>> lengths;
  Rows<bool> mask;
  std::unique_ptr<Guarded<S>> gates, arguments, saved_h, saved_c;

  int64_t columns() const { return NumGates(args.kind) * args.hidden; }
  std::string DebugString() const {
    std::ostringstream text;
    text << "kind " << static_cast<int>(args.kind) << ", steps " << args.num_steps << ", batch "
         << args.batch << ", input " << args.input << ", hidden " << args.hidden
         << (args.reverse ? ", reverse" : "") << (args.is_projected ? ", projected" : "")
         << (args.lengths != nullptr     ? ", lengths"
             : args.mask.data != nullptr ? ", mask"
                                         : "")
         << (args.hold_output ? ", hold_output" : "") << ", clip " << args.clip << ", activations";
    for (const Activation<S>& activation : args.activations) {
      text << " " << static_cast<int>(activation.function);
    }
    return text.str();
  }
};

// Only bounded ones for many steps, in which others make numbers that are too large.
template <typename S>
Activation<S> DrawActivation(Random* random, int64_t num_steps) {
  using F = ActivationFunction;
  if (num_steps > 6) {
    return random->Pick<Activation<S>>({{F::kSigmoid, 0, 0, 0},
                                        {F::kTanh, 0, 0, 0},
                                        {F::kHardSigmoid, S(0.2), S(0.5), 0},
                                        {F::kScaledTanh, S(0.9), S(0.7), 0}});
  }
  return random->Pick<Activation<S>>({{F::kSigmoid, 0, 0, 0},
                                      {F::kTanh, 0, 0, 0},
                                      {F::kRelu, 0, 0, 0},
                                      {F::kRelu, 0, 0, kPasses | kZero},
                                      {F::kAffine, S(0.5), S(0.25), 0},
                                      {F::kHardSigmoid, S(0.2), S(0.5), 0},
                                      {F::kHardSigmoid, S(0.3), S(0.5), kPassesLow | kZeroNan},
                                      {F::kLeakyRelu, S(0.1), 0, 0},
                                      {F::kScaledTanh, S(1.5), S(0.7), 0}});
}

// Draws a call. With `saves`, it saves what a gradient needs, and nothing is clipped.
template <typename S>
SequenceCase<S> DrawSequence(Random* random, CellKind kind, const SequenceSizes& sizes,
                             bool saves) {
  SequenceCase<S> result;
  SequenceArgs<S>& args = result.args;
  args.kind = kind;
  args.num_steps = sizes.num_steps;
  args.batch = sizes.batch;
  args.hidden = sizes.hidden;
  args.reverse = random->Chance(0.5);
  args.is_projected = random->Chance(0.2);
  const int num_gates = NumGates(kind);
  const int64_t hidden = sizes.hidden, columns = result.columns();
  args.input = args.is_projected ? columns : sizes.input;
  for (int k = 0; k < kMostGates; ++k) args.gate_positions[k] = k;
  for (int k = num_gates - 1; k > 0; --k) {
    std::swap(args.gate_positions[k], args.gate_positions[random->Int(0, k)]);
  }
  using F = ActivationFunction;
  const bool is_usual = random->Chance(0.5);
  for (int i = 0; i < 3; ++i) {
    args.activations[i] = is_usual ? Activation<S>{i == 0 ? F::kSigmoid : F::kTanh, 0, 0, 0}
                                   : DrawActivation<S>(random, sizes.num_steps);
  }
  args.clip = !saves && random->Chance(0.2) ? S(0.5) : std::numeric_limits<S>::infinity();
  args.hold_output = random->Chance(0.5);
  args.goes_on = [] { return true; };

  const auto draw = [&](int64_t size, double most) {
    std::vector<S> numbers;
    for (int64_t i = 0; i < size; ++i) numbers.push_back(static_cast<S>(random->Real(-most, most)));
    return numbers;
  };
  const auto guard = [](const std::vector<S>& numbers) {
    return std::make_unique<Guarded<S>>(numbers);
  };
  const int64_t num_states = sizes.batch * hidden;
  Given<S>& given = result.given;
  given.x = draw(sizes.num_steps * sizes.batch * args.input, 1.5);
  given.h0 = draw(num_states, 1);
  if (kind == CellKind::kLstm) given.c0 = draw(num_states, 1);
  if (!args.is_projected) given.w = draw(args.input * columns, 2 / std::sqrt(args.input + 1.0));
  given.r = draw(hidden * columns, 1.5 / std::sqrt(hidden + 1.0));
  if (random->Chance(0.6)) given.b = draw(columns, 1);
  if (kind == CellKind::kGruLinearBeforeReset && random->Chance(0.6)) {
    given.recurrent_b = draw(hidden, 1);
  }

  // Steps that are not for a row.
  const int64_t masking = random->Int(0, 2);
  if (masking == 1) {
    std::vector<int64_t> lengths;
    for (int64_t row = 0; row < sizes.batch; ++row) {
      lengths.push_back(random->Int(0, sizes.num_steps));
    }
    result.lengths = std::make_unique<Guarded<int64_t>>(lengths);
    args.lengths = result.lengths->data();
  } else if (masking == 2) {
    result.mask = Rows<bool>(random, sizes.num_steps, sizes.batch, 1);
    for (int64_t i = 0; i < result.mask.size(); ++i) result.mask[i] = random->Chance(0.6);
    result.mask.memory().Freeze();
    if (result.mask.size() > 0) args.mask = result.mask.input();
  }
  // Numbers in padding make no difference, even NaN.
  result.x = Rows<S>(random, sizes.num_steps, sizes.batch, args.input);
  for (int64_t i = 0; i < result.x.size(); ++i) {
    const int64_t step = i / args.input / sizes.batch, row = i / args.input % sizes.batch;
    const bool is_padding = args.lengths != nullptr     ? step >= args.lengths[row]
                            : args.mask.data != nullptr ? !*args.mask.At(step, row)
                                                        : false;
    result.x[i] = is_padding ? std::numeric_limits<S>::quiet_NaN() : given.x[i];
    if (is_padding) given.x[i] = 0;
  }
  result.x.memory().Freeze();
  args.x = result.x.input();

  args.h0 = (result.h0 = guard(given.h0))->data();
  if (kind == CellKind::kLstm) args.c0 = (result.c0 = guard(given.c0))->data();
  for (int64_t& gap : result.gaps) gap = random->Pick({0, 0, 1, 3});
  for (bool& is_transposed : result.is_transposed) is_transposed = random->Chance(0.5);
  if (!args.is_projected) {
    result.w = Weights<S>(args.input, columns, result.is_transposed[0], result.gaps[0]);
    for (int64_t i = 0; i < result.w.size(); ++i) result.w[i] = given.w[i];
    result.w.memory().Freeze();
    args.w = result.w.matrix();
  }
  result.r = Weights<S>(hidden, columns, result.is_transposed[1], result.gaps[1]);
  for (int64_t i = 0; i < result.r.size(); ++i) result.r[i] = given.r[i];
  result.r.memory().Freeze();
  args.r = result.r.matrix();
  if (!given.b.empty()) args.b = (result.b = guard(given.b))->data();
  if (!given.recurrent_b.empty()) {
    args.recurrent_b = (result.recurrent_b = guard(given.recurrent_b))->data();
  }

  result.y = Rows<S>(random, sizes.num_steps, sizes.batch, hidden);
  args.y = result.y.by_step();
  const auto allocate = [](int64_t size) { return std::make_unique<Guarded<S>>(size); };
  args.h = (result.h = allocate(num_states))->data();
  if (kind == CellKind::kLstm) args.c = (result.c = allocate(num_states))->data();
  const int64_t of_steps = sizes.num_steps * num_states;
  if (saves) {
    if (NumSavedGates(kind) > 0) {
      args.gates = (result.gates = allocate(of_steps * NumSavedGates(kind)))->data();
    }
    args.saved_h = (result.saved_h = allocate(of_steps))->data();
    if (kind == CellKind::kLstm) args.saved_c = (result.saved_c = allocate(of_steps))->data();
    bool is_passed = false;
    for (int i = 0; i < 2; ++i) is_passed |= (args.activations[i].limits & kPasses) != 0;
    if (is_passed) args.arguments = (result.arguments = allocate(of_steps * num_gates))->data();
  }
  return result;
}

// The same in another type of numbers.
template <typename R, typename S, typename Make>
Given<R> Converted(const Given<S>& given, const Make& make) {
  Given<R> result;
  const auto convert = [&](const std::vector<S>& from, std::vector<R>* to) {
    for (const S number : from) to->push_back(make(number));
  };
  convert(given.x, &result.x);
  convert(given.h0, &result.h0);
  convert(given.c0, &result.c0);
  convert(given.w, &result.w);
  convert(given.r, &result.r);
  convert(given.b, &result.b);
  convert(given.recurrent_b, &result.recurrent_b);
  return result;
}

template <typename S>
constexpr double kSequenceTolerance = sizeof(S) == 4 ? 1e-4 : 1e-12;

// Expects a call's results to be those by definition.
template <typename S>
void ExpectResults(const SequenceCase<S>& given) {
  const SequenceArgs<S>& args = given.args;
  const auto expected = RunByDefinition<long double>(
      args, Converted<long double>(given.given, [](S x) -> long double { return x; }));
  const auto compare = [](const auto& actual, const auto& values, const char* name) {
    ExpectClose(
        values.size(), [&](int64_t i) { return actual[i]; }, [&](int64_t i) { return values[i]; },
        kSequenceTolerance<S>, name);
  };
  compare(given.y, expected.y, "y");
  given.y.CheckGaps();
  compare(*given.h, expected.h, "h");
  if (given.c != nullptr) compare(*given.c, expected.c, "c");
  if (given.saved_h != nullptr) compare(*given.saved_h, expected.saved_h, "saved h");
  if (given.saved_c != nullptr) compare(*given.saved_c, expected.saved_c, "saved c");
  const auto compare_gates = [&](const Guarded<S>& saved, const std::vector<long double>& all,
                                 int64_t count, const char* name) {
    // A gradient does not read those of other steps.
    const auto is_active = [&](int64_t row_of_all) {
      const int64_t step = row_of_all / args.batch, row = row_of_all % args.batch;
      return args.lengths != nullptr     ? step < args.lengths[row]
             : args.mask.data != nullptr ? *args.mask.At(step, row)
                                         : true;
    };
    const int64_t of_row = count * args.hidden;
    ExpectClose(
        saved.size(), [&](int64_t i) { return is_active(i / of_row) ? saved[i] : S(0); },
        [&](int64_t i) {
          return is_active(i / of_row) ? all[i / of_row * kMostGates * args.hidden + i % of_row]
                                       : 0;
        },
        kSequenceTolerance<S>, name);
  };
  if (given.gates != nullptr) {
    compare_gates(*given.gates, expected.gates, NumSavedGates(args.kind), "gates");
  }
  if (given.arguments != nullptr) {
    compare_gates(*given.arguments, expected.arguments, NumGates(args.kind), "arguments");
  }
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_TESTING_SEQUENCE_CASE_H_
