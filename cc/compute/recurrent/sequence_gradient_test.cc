// Gradients of sequences beside those of their definition, whose operations are differentiated one
// by one; these beside differences of the definition.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cc/compute/recurrent/sequence.h"
#include "cc/compute/recurrent/testing/sequence_case.h"
#include "cc/compute/recurrent/testing/sequence_oracle.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

constexpr CellKind kKinds[] = {CellKind::kLstm, CellKind::kGru, CellKind::kGruLinearBeforeReset,
                               CellKind::kRnn};

// The gradients by the results, and memory for those by all that is given.
template <typename S>
struct GradientCase {
  GradientCase(Random* random, const SequenceCase<S>& given) : given(given) {
    const SequenceArgs<S>& sequence = given.args;
    args.sequence = sequence;
    const auto draw = [&](int64_t size) {
      std::vector<S> numbers;
      for (int64_t i = 0; i < size; ++i) numbers.push_back(static_cast<S>(random->Real(-1, 1)));
      return numbers;
    };
    const int64_t num_states = sequence.batch * sequence.hidden;
    dy = Rows<S>(random, sequence.num_steps, sequence.batch, sequence.hidden);
    for (int64_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<S>(random->Real(-1, 1));
    dy.memory().Freeze();
    args.dy = dy.input();
    const auto guard = [&](int64_t size) { return std::make_unique<Guarded<S>>(draw(size)); };
    args.dh = (dh = guard(num_states))->data();
    if (sequence.kind == CellKind::kLstm) args.dc = (dc = guard(num_states))->data();

    const auto allocate = [](int64_t size) { return std::make_unique<Guarded<S>>(size); };
    dx = Rows<S>(random, sequence.num_steps, sequence.batch, sequence.input);
    args.dx = dx.by_step();
    args.dh0 = (dh0 = allocate(num_states))->data();
    if (sequence.kind == CellKind::kLstm) args.dc0 = (dc0 = allocate(num_states))->data();
    if (!sequence.is_projected) {
      dw = Weights<S>(sequence.input, given.columns(), given.is_transposed[0], given.gaps[0]);
      args.dw = dw.memory().data();
    }
    dr = Weights<S>(sequence.hidden, given.columns(), given.is_transposed[1], given.gaps[1]);
    args.dr = dr.memory().data();
    if (sequence.b != nullptr) args.db = (db = allocate(given.columns()))->data();
    if (sequence.recurrent_b != nullptr) {
      args.drecurrent_b = (drecurrent_b = allocate(sequence.hidden))->data();
    }
  }

  // The sum of all results, each times its gradient.
  template <typename R>
  R Loss(const Given<R>& inputs) const {
    const Results<R> results = RunByDefinition(given.args, inputs);
    R loss(0);
    const auto add = [&](const std::vector<R>& numbers, const auto& gradients) {
      for (size_t i = 0; i < numbers.size(); ++i) {
        loss = MultiplyAdd(R(gradients[i]), numbers[i], loss);
      }
    };
    add(results.y, dy);
    add(results.h, *dh);
    if (dc != nullptr) add(results.c, *dc);
    return loss;
  }

  Given<double> ExpectedGradients() const {
    Traced::tape().clear();
    const auto inputs = Converted<Traced>(
        given.given, [](S x) { return Traced::Variable(static_cast<double>(x)); });
    const std::vector<double> gradients = Loss(inputs).Gradients();
    return Converted<double>(inputs, [&](const Traced& x) { return gradients[x.id()]; });
  }

  void ExpectGradients(const Given<double>& expected, double tolerance) const {
    const auto compare = [&](const auto& actual, const std::vector<double>& values,
                             const char* name) {
      double largest = 1;
      for (const double value : values) largest = std::max(largest, std::fabs(value));
      ExpectClose(
          values.size(), [&](int64_t i) { return actual[i]; }, [&](int64_t i) { return values[i]; },
          tolerance * largest, name);
    };
    compare(dx, expected.x, "dx");
    compare(*dh0, expected.h0, "dh0");
    if (dc0 != nullptr) compare(*dc0, expected.c0, "dc0");
    if (!given.args.is_projected) compare(dw, expected.w, "dw");
    compare(dr, expected.r, "dr");
    if (db != nullptr) compare(*db, expected.b, "db");
    if (drecurrent_b != nullptr) compare(*drecurrent_b, expected.recurrent_b, "drecurrent_b");
    dx.CheckGaps();
    dr.CheckGaps();
    if (!given.args.is_projected) dw.CheckGaps();
  }

  const SequenceCase<S>& given;
  SequenceGradientArgs<S> args{};
  Rows<S> dy, dx;
  std::unique_ptr<Guarded<S>> dh, dc, dh0, dc0, db, drecurrent_b;
  Weights<S> dw, dr;
};

template <typename S>
constexpr double kTolerance = sizeof(S) == 4 ? 1e-4 : 1e-12;

template <typename S>
class SequenceGradientTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(SequenceGradientTest, Types);

TYPED_TEST(SequenceGradientTest, SmallOnes) {
  using S = TypeParam;
  OnCaller alone;
  ForRandomCases(600, [&](Random* random) {
    const SequenceSizes sizes{random->Int(0, 5), random->Int(0, 5), random->Int(0, 9),
                              random->Int(1, 40)};
    const auto given = DrawSequence<S>(random, kKinds[random->Int(0, 3)], sizes, /*saves=*/true);
    SCOPED_TRACE(given.DebugString());
    RunSequence(given.args, &alone);
    const GradientCase<S> gradient(random, given);
    RunSequenceGradient(gradient.args, &alone);
    gradient.ExpectGradients(gradient.ExpectedGradients(), kTolerance<S>);
  });
}

TYPED_TEST(SequenceGradientTest, ThoseThatThreadsShare) {
  using S = TypeParam;
  RealThreads threads(4);
  OnCaller nobody_comes(4), alone;
  ForRandomCases(24, [&](Random* random) {
    const bool by_rows = random->Chance(0.5);
    const SequenceSizes sizes = by_rows ? SequenceSizes{random->Int(10, 20), random->Int(12, 30),
                                                        random->Int(0, 9), random->Int(8, 16)}
                                        : SequenceSizes{random->Int(2, 6), random->Int(1, 6),
                                                        random->Int(0, 9), random->Int(70, 130)};
    const auto given = DrawSequence<S>(random, kKinds[random->Int(0, 3)], sizes, /*saves=*/true);
    SCOPED_TRACE(given.DebugString());
    RunSequence(given.args, &threads);
    const GradientCase<S> gradient(random, given);
    RunSequenceGradient(gradient.args,
                        random->Pick<Parallel*>({&threads, &threads, &nobody_comes}));
    gradient.ExpectGradients(gradient.ExpectedGradients(), kTolerance<S>);
    // Threads make no difference, not even in the last place.
    const std::vector<S> dr = gradient.dr.memory().Copy(), dx = gradient.dx.memory().Copy();
    RunSequenceGradient(gradient.args, &alone);
    ASSERT_EQ(std::memcmp(dr.data(), gradient.args.dr, dr.size() * sizeof(S)), 0);
    ASSERT_EQ(std::memcmp(dx.data(), gradient.args.dx.data, dx.size() * sizeof(S)), 0);
  });
}

TYPED_TEST(SequenceGradientTest, NothingIsFinishedThatIsCancelled) {
  using S = TypeParam;
  RealThreads threads(4);
  ForRandomCases(20, [&](Random* random) {
    const SequenceSizes sizes{random->Int(10, 20), random->Int(1, 6), 3, random->Int(60, 100)};
    const auto given = DrawSequence<S>(random, kKinds[random->Int(0, 3)], sizes, /*saves=*/true);
    SCOPED_TRACE(given.DebugString());
    RunSequence(given.args, &threads);
    GradientCase<S> gradient(random, given);
    std::atomic<int64_t> num_asked{0};
    const int64_t most = random->Pick({0, 1, 3, 8});
    gradient.args.sequence.goes_on = [&] { return num_asked++ < most; };
    RunSequenceGradient(gradient.args, &threads);
    for (int64_t i = 0; i < gradient.dr.size(); ++i) ASSERT_TRUE(std::isnan(gradient.dr[i]));
  });
}

// The oracle's own test: the differences of the loss where one number is a little larger, and a
// little smaller.
TEST(TracedTest, GradientsAreDifferences) {
  ForRandomCases(20, [&](Random* random) {
    const SequenceSizes sizes{random->Int(1, 3), random->Int(1, 2), random->Int(0, 3),
                              random->Int(1, 4)};
    const auto given =
        DrawSequence<double>(random, kKinds[random->Int(0, 3)], sizes, /*saves=*/true);
    SCOPED_TRACE(given.DebugString());
    const GradientCase<double> gradient(random, given);
    const Given<double> expected = gradient.ExpectedGradients();
    auto inputs = Converted<long double>(given.given, [](double x) -> long double { return x; });
    const auto compare = [&](std::vector<long double>* numbers,
                             const std::vector<double>& gradients, const char* name) {
      ASSERT_EQ(numbers->size(), gradients.size());
      ExpectClose(
          gradients.size(), [&](int64_t i) { return gradients[i]; },
          [&](int64_t i) {
            constexpr long double kStep = 1e-5L;
            long double* const number = &(*numbers)[i];
            const long double at = *number;
            *number = at + kStep;
            const long double above = gradient.Loss(inputs);
            *number = at - kStep;
            const long double below = gradient.Loss(inputs);
            *number = at;
            return (above - below) / (2 * kStep);
          },
          1e-7, name);
    };
    compare(&inputs.x, expected.x, "dx");
    compare(&inputs.h0, expected.h0, "dh0");
    compare(&inputs.c0, expected.c0, "dc0");
    compare(&inputs.w, expected.w, "dw");
    compare(&inputs.r, expected.r, "dr");
    compare(&inputs.b, expected.b, "db");
    compare(&inputs.recurrent_b, expected.recurrent_b, "drecurrent_b");
  });
}

}  // namespace
}  // namespace tf_ti
