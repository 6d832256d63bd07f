// Sequences and their gradients where memory runs out, at each allocation in turn.

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "cc/compute/recurrent/sequence.h"
#include "cc/compute/recurrent/testing/sequence_case.h"
#include "cc/compute/testing/failing_memory.h"
#include "cc/compute/testing/random.h"

namespace tf_ti {
namespace {

// Threads share rows where weights are few, units where they are many.
constexpr SequenceSizes kSizes[] = {{12, 16, 3, 10}, {4, 2, 3, 80}};

TEST(SequenceMemoryTest, Sequences) {
  ForRandomCases(6, [](Random* random) {
    const auto kind = static_cast<CellKind>(random->Int(0, 3));
    for (const SequenceSizes& sizes : kSizes) {
      const auto given = DrawSequence<float>(random, kind, sizes, /*saves=*/true);
      RunOutOfMemory({Written(given.y.memory().data(), given.y.memory().size()),
                      Written(given.h->data(), given.h->size())},
                     false, [&](Parallel* parallel) { RunSequence(given.args, parallel); });
    }
  });
}

TEST(SequenceMemoryTest, Gradients) {
  ForRandomCases(6, [](Random* random) {
    const auto kind = static_cast<CellKind>(random->Int(0, 3));
    for (const SequenceSizes& sizes : kSizes) {
      const auto given = DrawSequence<float>(random, kind, sizes, /*saves=*/true);
      OnCaller alone;
      RunSequence(given.args, &alone);
      const SequenceArgs<float>& args = given.args;
      const int64_t of_all = args.num_steps * args.batch, states = args.batch * args.hidden;
      const std::vector<float> dy(of_all * args.hidden, 1), dh(states, 1);
      std::vector<float> dx(of_all * args.input), dh0(states), dc0(states),
          dw(given.w.size() == 0 ? 0 : given.w.memory().size()), dr(given.r.memory().size()),
          db(given.columns()), drecurrent_b(args.hidden);
      SequenceGradientArgs<float> gradient{};
      gradient.sequence = args;
      gradient.dy = {dy.data(), args.batch * args.hidden, args.hidden};
      gradient.dh = dh.data();
      gradient.dx = {dx.data(), args.batch * args.input, args.input};
      gradient.dh0 = dh0.data();
      if (kind == CellKind::kLstm) {
        gradient.dc = dh.data();
        gradient.dc0 = dc0.data();
      }
      gradient.dw = dw.data();
      gradient.dr = dr.data();
      if (args.b != nullptr) gradient.db = db.data();
      if (args.recurrent_b != nullptr) gradient.drecurrent_b = drecurrent_b.data();
      RunOutOfMemory({Written(&dx), Written(&dh0), Written(&dw), Written(&dr)}, false,
                     [&](Parallel* parallel) { RunSequenceGradient(gradient, parallel); });
    }
  });
}

}  // namespace
}  // namespace tf_ti
