#include "cc/compute/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cc/compute/testing/buffers.h"
#include "cc/compute/testing/expect.h"
#include "cc/compute/testing/random.h"
#include "cc/compute/testing/threads.h"

namespace tf_ti {
namespace {

// A matrix of random numbers, row-major or column-major, with room between its rows or columns.
template <typename T>
class Input {
 public:
  Input(Random* random, int64_t rows, int64_t columns, bool is_transposed, int64_t gap = 0)
      : row_stride_(is_transposed ? 1 : columns + gap),
        column_stride_(is_transposed ? rows + gap : 1),
        memory_(is_transposed ? columns * (rows + gap) : rows * (columns + gap)) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        memory_[i * row_stride_ + j * column_stride_] = static_cast<T>(random->Real(-1, 1));
      }
    }
    memory_.Freeze();
  }

  T At(int64_t i, int64_t j) const { return memory_[i * row_stride_ + j * column_stride_]; }
  Matrix<T> matrix() const { return {memory_.data(), row_stride_, column_stride_}; }

 private:
  const int64_t row_stride_;
  const int64_t column_stride_;
  Guarded<T> memory_;
};

// The sum of `depth` products in any order, each rounded, is this close.
template <typename T>
double Tolerance(int64_t depth) {
  return (depth + 2) * std::numeric_limits<T>::epsilon();
}

template <typename T>
class ProductTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(ProductTest, Types);

TYPED_TEST(ProductTest, PanelsHoldTheirRunsAndZeros) {
  using T = TypeParam;
  ForRandomCases(300, [](Random* random) {
    const PanelLoops<T> loops = ChoosePanelLoops<T>(random->Pick({3, 4}));
    const int64_t depth = random->Int(0, 70), columns = random->Int(loops.lanes, 70);
    const Input<T> matrix(random, depth, columns, random->Chance(0.5), random->Int(0, 3));
    std::vector<ColumnRun> runs;
    const bool is_whole = random->Chance(0.3);
    for (int64_t v = 0; v < loops.num_vectors; ++v) {
      const int64_t count = is_whole ? loops.lanes : random->Int(0, loops.lanes);
      runs.push_back({random->Int(0, columns - count), count});
    }
    Guarded<T> panel(depth * loops.width());
    loops.pack(matrix.matrix(), depth, runs.data(), panel.data());
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t i = 0; i < loops.width(); ++i) {
        const ColumnRun& run = runs[i / loops.lanes];
        const int64_t j = i % loops.lanes;
        ASSERT_EQ(panel[k * loops.width() + i], j < run.count ? matrix.At(k, run.first + j) : 0);
      }
    }
  });
}

TYPED_TEST(ProductTest, RowsTimesAPanel) {
  using T = TypeParam;
  ForRandomCases(600, [](Random* random) {
    const PanelLoops<T> loops = ChoosePanelLoops<T>(random->Pick({3, 4}));
    const int64_t rows = random->Int(0, 70), depth = random->Int(0, 70), width = loops.width();
    const Input<T> left(random, rows, depth, random->Chance(0.5), random->Int(0, 3));
    const Input<T> panel(random, depth, width, false);
    const bool has_init = random->Chance(0.7), same_init = random->Chance(0.3);
    const Input<T> init(random, same_init ? 1 : rows, width, false, random->Int(0, 3));
    const int64_t init_stride = same_init ? 0 : init.matrix().row_stride;
    const int64_t stride = width + random->Int(0, 3);
    Guarded<T> out(rows * stride);
    loops.multiply(left.matrix(), rows, depth, panel.matrix().data,
                   has_init ? init.matrix().data : nullptr, init_stride, out.data(), stride);
    ExpectClose(
        rows * stride, [&](int64_t i) { return i % stride < width ? out[i] : !out.IsPoison(i); },
        [&](int64_t i) {
          const int64_t m = i / stride, n = i % stride;
          if (n >= width) return 0.0L;
          long double sum = has_init ? init.At(same_init ? 0 : m, n) : 0;
          for (int64_t k = 0; k < depth; ++k) sum += 1.0L * left.At(m, k) * panel.At(k, n);
          return sum;
        },
        Tolerance<T>(depth), "out");
  });
}

TYPED_TEST(ProductTest, RowsDoNotDependOnHowTheyAreSpreadOverCalls) {
  using T = TypeParam;
  ForRandomCases(300, [](Random* random) {
    const PanelLoops<T> loops = ChoosePanelLoops<T>(random->Pick({3, 4}));
    const int64_t rows = random->Int(1, 70), depth = random->Int(0, 70), width = loops.width();
    const Input<T> left(random, rows, depth, random->Chance(0.5));
    const Input<T> panel(random, depth, width, false);
    const Input<T> init(random, rows, width, false);
    Guarded<T> at_once(rows * width), apart(rows * width);
    const Matrix<T> all = left.matrix();
    loops.multiply(all, rows, depth, panel.matrix().data, init.matrix().data, width, at_once.data(),
                   width);
    for (int64_t begin = 0, count; begin < rows; begin += count) {
      count = random->Int(1, rows - begin);
      loops.multiply({all.data + begin * all.row_stride, all.row_stride, all.column_stride}, count,
                     depth, panel.matrix().data, init.matrix().data + begin * width, width,
                     apart.data() + begin * width, width);
    }
    ASSERT_EQ(at_once.Copy(), apart.Copy());
  });
}

TYPED_TEST(ProductTest, RowsTimesColumnsThatLieSideBySide) {
  using T = TypeParam;
  ForRandomCases(400, [](Random* random) {
    const PanelLoops<T> loops = ChoosePanelLoops<T>(random->Pick({3, 4}));
    const int64_t rows = random->Int(0, 20), depth = random->Int(0, 8) * loops.lanes;
    const int64_t num_columns = random->Int(0, 18) * 4;
    const Input<T> left(random, rows, depth, false, random->Int(0, 3));
    const Input<T> columns(random, depth, num_columns, true, random->Int(0, 3));
    const bool same_init = random->Chance(0.3);
    const Input<T> init(random, same_init ? 1 : rows, num_columns, false, random->Int(0, 3));
    const int64_t init_stride = same_init ? 0 : init.matrix().row_stride;
    const int64_t stride = num_columns + random->Int(0, 3);
    Guarded<T> out(rows * stride);
    loops.dot(left.matrix(), rows, depth, columns.matrix().data, columns.matrix().column_stride,
              num_columns, init.matrix().data, init_stride, out.data(), stride);
    ExpectClose(
        rows * stride,
        [&](int64_t i) { return i % stride < num_columns ? out[i] : !out.IsPoison(i); },
        [&](int64_t i) {
          const int64_t m = i / stride, n = i % stride;
          if (n >= num_columns) return 0.0L;
          long double sum = init.At(same_init ? 0 : m, n);
          for (int64_t k = 0; k < depth; ++k) sum += 1.0L * left.At(m, k) * columns.At(k, n);
          return sum;
        },
        Tolerance<T>(depth), "out");
  });
}

template <typename T>
void ExpectProduct(const Input<T>& left, const Input<T>& right, int64_t rows, int64_t depth,
                   int64_t columns, const Guarded<T>& out, int64_t stride) {
  ExpectClose(
      rows * stride, [&](int64_t i) { return i % stride < columns ? out[i] : !out.IsPoison(i); },
      [&](int64_t i) {
        const int64_t m = i / stride, n = i % stride;
        long double sum = 0;
        for (int64_t k = 0; n < columns && k < depth; ++k) {
          sum += 1.0L * left.At(m, k) * right.At(k, n);
        }
        return sum;
      },
      Tolerance<T>(depth), "out");
}

TYPED_TEST(ProductTest, PackedMatrixMultipliesRows) {
  using T = TypeParam;
  RealThreads threads(3);
  ForRandomCases(100, [&](Random* random) {
    // Some so large that threads share them.
    const bool is_large = random->Chance(0.05);
    const int64_t rows = random->Int(0, 70), depth = random->Int(0, is_large ? 300 : 70);
    const int64_t columns = random->Int(0, is_large ? 700 : 200);
    const Input<T> left(random, rows, depth, random->Chance(0.5), random->Int(0, 3));
    const Input<T> right(random, depth, columns, random->Chance(0.5), random->Int(0, 3));
    Guarded<T> panels(PackedMatrix<T>::Size(depth, columns));
    const PackedMatrix<T> packed(right.matrix(), depth, columns, panels.data(), &threads);
    const int64_t stride = columns + random->Int(0, 3);
    Guarded<T> out(rows * stride);
    packed.Multiply(left.matrix(), rows, out.data(), stride, &threads);
    ExpectProduct(left, right, rows, depth, columns, out, stride);
  });
}

TYPED_TEST(ProductTest, MultiplyMatricesMultipliesEach) {
  using T = TypeParam;
  RealThreads threads(4);
  OnCaller alone, reversed(3, /*reversed=*/true);
  ForRandomCases(150, [&](Random* random) {
    // Some deeper, wider or higher than a tile.
    const int64_t rare = random->Int(0, 15);
    const int64_t rows = random->Int(0, rare == 0 ? 600 : 70);
    const int64_t depth = random->Int(0, rare == 1 ? 1200 : 70);
    const int64_t columns = random->Int(0, rare == 2 ? 1200 : 70);
    const int64_t stride = columns + random->Int(0, 3);
    const Input<T> left(random, rows, depth, random->Chance(0.5), random->Int(0, 3));
    const Input<T> right(random, depth, columns, random->Chance(0.5), random->Int(0, 3));
    const Input<T> small_left(random, 5, 6, false), small_right(random, 6, 7, true);
    Guarded<T> out(rows * stride), small_out(5 * 7);
    std::vector<Product<T>> products = {
        {left.matrix(), right.matrix(), rows, depth, columns, out.data(), stride},
        {small_left.matrix(), small_right.matrix(), 5, 6, 7, small_out.data(), 7}};
    if (random->Chance(0.5)) std::swap(products[0], products[1]);
    MultiplyMatrices(products, random->Pick<Parallel*>({&threads, &alone, &reversed}));
    ExpectProduct(left, right, rows, depth, columns, out, stride);
    ExpectProduct(small_left, small_right, 5, 6, 7, small_out, 7);
    // Threads make no difference, not even in the last place.
    const std::vector<T> first = out.Copy();
    MultiplyMatrices(products, &alone);
    ASSERT_EQ(std::memcmp(first.data(), out.data(), first.size() * sizeof(T)), 0);
  });
}

TYPED_TEST(ProductTest, NothingToMultiply) {
  OnCaller alone;
  MultiplyMatrices<TypeParam>({}, &alone);
}

}  // namespace
}  // namespace tf_ti
