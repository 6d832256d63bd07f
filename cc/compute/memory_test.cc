// Shared work, products and programs where memory runs out, at each allocation in turn.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/product.h"
#include "cc/compute/program/builder.h"
#include "cc/compute/program/program.h"
#include "cc/compute/testing/failing_memory.h"

namespace tf_ti {
namespace {

TEST(MemoryTest, SharedWork) {
  std::vector<int64_t> results(40);
  RunOutOfMemory({Written(&results)}, false, [&](Parallel* parallel) {
    parallel->Run(results.size(), [&](int64_t k) {
      Buffer<int64_t> own(100);
      own[k] = k + 1;
      parallel->Run(3, [&](int64_t i) { Buffer<int64_t>(1)[0] = i; });
      results[k] = own[k];
    });
  });
}

// None is asked for help where there is no memory to ask. The call does not fail for that.
TEST(MemoryTest, WorkThatNeedsNoneIsDone) {
  RealThreads threads(4);
  for (int64_t first = 0; first < 40; ++first) {
    std::atomic<int64_t> sum{0};
    const auto work = [&sum](int64_t k) { sum += k; };
    {
      const FailingMemory failing(first, /*for_good=*/true);
      threads.Run(100, work);
    }
    EXPECT_EQ(sum, 99 * 100 / 2);
  }
}

TEST(MemoryTest, TheCallThrowsWhatAPieceThrows) {
  RealThreads threads(4);
  for (int64_t call = 0; call < 300; ++call) {
    std::atomic<int64_t> num_running{0};
    try {
      threads.Run(20, [&](int64_t k) {
        ++num_running;
        const bool fails = k == call % 20;
        --num_running;
        if (fails) throw std::runtime_error("piece " + std::to_string(k));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "piece " + std::to_string(call % 20));
    }
    EXPECT_EQ(num_running, 0);
  }
}

TEST(MemoryTest, Products) {
  constexpr int64_t kSize = 160;
  const std::vector<float> x(kSize * kSize, 1), y(kSize * kSize, 2);
  std::vector<float> out(kSize * kSize), panels(PackedMatrix<float>::Size(kSize, kSize));
  const Matrix<float> left{x.data(), kSize, 1}, right{y.data(), kSize, 1};
  RunOutOfMemory({Written(&out)}, false, [&](Parallel* parallel) {
    MultiplyMatrices<float>({{left, right, kSize, kSize, kSize, out.data(), kSize}}, parallel);
  });
  RunOutOfMemory({Written(&out)}, false, [&](Parallel* parallel) {
    // Packing may take none.
    const std::vector<float> other(1);
    const PackedMatrix<float> packed(right, kSize, kSize, panels.data(), parallel);
    packed.Multiply(left, kSize, out.data(), kSize, parallel);
  });
}

TEST(MemoryTest, Programs) {
  constexpr int64_t kRows = 400, kColumns = 100;
  const std::vector<float> x(kRows * kColumns, 0.5f);
  std::vector<float> out(kRows * kColumns), sums(kRows);
  RunOutOfMemory({Written(&out), Written(&sums)}, false, [&](Parallel* parallel) {
    ProgramBuilder builder;
    const View given = builder.AddInput(ElementType::kFloat, {kRows, kColumns});
    const View exp = *builder.Apply(Operation::kExp, {given});
    const View tanh =
        *builder.Apply(Operation::kTanh, {*builder.Apply(Operation::kMul, {exp, exp})});
    builder.AddOutput(*builder.Apply(Operation::kAdd, {tanh, given}));
    builder.AddOutput(*builder.Reduce(Operation::kSum, tanh, 1, ElementType::kFloat));
    const Program program(builder.steps());
    ProgramRun run(program);
    run.SetInput(0, x.data());
    run.SetOutput(0, out.data());
    run.SetOutput(1, sums.data());
    run.RunPrologue();
    run.Run(parallel);
  });
}

}  // namespace
}  // namespace tf_ti
