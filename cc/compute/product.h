// Products of matrices of which the right one is brought into panels once and then used many times.
#ifndef TF_TI_CC_COMPUTE_PRODUCT_H_
#define TF_TI_CC_COMPUTE_PRODUCT_H_

#include <cstdint>
#include <vector>

#include "cc/compute/parallel.h"

namespace tf_ti {

// A matrix, wherever its elements lie.
template <typename T>
struct Matrix {
  const T* data;
  int64_t row_stride;
  int64_t column_stride;
};

// Some neighbouring columns of a matrix.
struct ColumnRun {
  int64_t first;
  int64_t count;
};

// The innermost loops, for the instruction set of the processor. A panel is `depth` rows of a
// matrix in `num_vectors` * `lanes` of its columns, in the order in which a product reads them.
template <typename T>
struct PanelLoops {
  int64_t lanes;
  int64_t num_vectors;

  // Vector v of the panel's rows has the columns runs[v], and zeros behind them.
  void (*pack)(const Matrix<T>& matrix, int64_t depth, const ColumnRun* runs, T* panel);

  // out[m] = init[m] + left[m] * panel for all rows m. Each number is added up in the order of the
  // rows of the panel, so it does not depend on how rows are spread over calls.
  void (*multiply)(const Matrix<T>& left, int64_t num_rows, int64_t depth, const T* panel,
                   const T* init, int64_t init_stride, T* out, int64_t out_stride);

  // out[m][n] = init[m][n] + the product of left[m] and column n, which starts at n * column_stride
  // of `columns`. The numbers of a row lie side by side, as do those of a column. `depth` is a
  // multiple of `lanes`, and `num_columns` of 4. For few rows, for which packing does not pay.
  void (*dot)(const Matrix<T>& left, int64_t num_rows, int64_t depth, const T* columns,
              int64_t column_stride, int64_t num_columns, const T* init, int64_t init_stride,
              T* out, int64_t out_stride);

  int64_t width() const { return lanes * num_vectors; }
};

// For panels of 3 or 4 vectors.
template <typename T>
PanelLoops<T> ChoosePanelLoops(int num_vectors);

// The right factor of products.
template <typename T>
class PackedMatrix {
 public:
  // The number of elements that it needs.
  static int64_t Size(int64_t depth, int64_t num_columns);

  // `panels` has that size and outlives this object.
  PackedMatrix(const Matrix<T>& matrix, int64_t depth, int64_t num_columns, T* panels,
               Parallel* parallel);

  // out[m] = left[m] * matrix for all rows m.
  void Multiply(const Matrix<T>& left, int64_t num_rows, T* out, int64_t out_stride,
                Parallel* parallel) const;

 private:
  // Calls work(p) for all panels: on several threads where reading the panels `passes` times is
  // worth it.
  template <typename Work>
  void ForPanels(Parallel* parallel, double passes, const Work& work) const;

  const PanelLoops<T> loops_;
  const int64_t depth_;
  const int64_t num_columns_;
  const int64_t num_panels_;
  T* const panels_;
};

// out = left * right, for factors that are used once.
template <typename T>
struct Product {
  Matrix<T> left;
  Matrix<T> right;
  int64_t num_rows;
  int64_t depth;
  int64_t num_columns;
  T* out;
  int64_t out_stride;
};

// Computes all of them, in any order: several small ones keep more threads busy than one.
template <typename T>
void MultiplyMatrices(const std::vector<Product<T>>& products, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PRODUCT_H_
