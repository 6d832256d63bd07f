#include "cc/compute/product.h"

#include <algorithm>

#include "cc/compute/buffer.h"

#define TF_TI_LOOPS "cc/compute/product-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {
namespace {

constexpr int kVectors = 4;  // of a packed matrix's panels

template <typename T, int V>
PanelLoops<T> Choose() {
  TF_TI_RETURN_BEST(PanelLoopsOf<T, V>());
}

// The columns of panel p of a matrix, in order.
template <typename T>
void PackColumns(const PanelLoops<T>& loops, const Matrix<T>& matrix, int64_t depth,
                 int64_t num_columns, int64_t p, T* panel) {
  ColumnRun runs[kVectors];
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t first = std::min(p * loops.width() + v * loops.lanes, num_columns);
    runs[v] = {first, std::min(num_columns - first, loops.lanes)};
  }
  loops.pack(matrix, depth, runs, panel);
}

// Multiplies by panel p, of which the output may have some columns only.
template <typename T>
void MultiplyColumns(const PanelLoops<T>& loops, const Matrix<T>& left, int64_t num_rows,
                     int64_t depth, int64_t num_columns, int64_t p, const T* panel, bool adds,
                     T* out, int64_t out_stride) {
  const int64_t first = p * loops.width();
  const int64_t count = num_columns - first;
  out += first;
  if (count >= loops.width()) {
    loops.multiply(left, num_rows, depth, panel, adds ? out : nullptr, out_stride, out, out_stride);
    return;
  }
  Buffer<T> rows(num_rows * loops.width());
  loops.multiply(left, num_rows, depth, panel, nullptr, 0, rows.data(), loops.width());
  for (int64_t m = 0; m < num_rows; ++m) {
    const T* const row = rows.data() + m * loops.width();
    for (int64_t i = 0; i < count; ++i) {
      out[m * out_stride + i] = adds ? out[m * out_stride + i] + row[i] : row[i];
    }
  }
}

}  // namespace

template <typename T>
PanelLoops<T> ChoosePanelLoops(int num_vectors) {
  return num_vectors == 3 ? Choose<T, 3>() : Choose<T, 4>();
}

template <typename T>
int64_t PackedMatrix<T>::Size(int64_t depth, int64_t num_columns) {
  const int64_t width = ChoosePanelLoops<T>(kVectors).width();
  return (num_columns + width - 1) / width * width * depth;
}

template <typename T>
PackedMatrix<T>::PackedMatrix(const Matrix<T>& matrix, int64_t depth, int64_t num_columns,
                              T* panels, Parallel* parallel)
    : loops_(ChoosePanelLoops<T>(kVectors)),
      depth_(depth),
      num_columns_(num_columns),
      num_panels_((num_columns + loops_.width() - 1) / loops_.width()),
      panels_(panels) {
  ForPanels(parallel, /*passes=*/2, [&](int64_t p) {
    PackColumns(loops_, matrix, depth, num_columns, p, panels_ + p * loops_.width() * depth);
  });
}

template <typename T>
void PackedMatrix<T>::Multiply(const Matrix<T>& left, int64_t num_rows, T* out, int64_t out_stride,
                               Parallel* parallel) const {
  // A few rows wait for the panels.
  const double passes = std::max<double>(1, num_rows / 4.0);
  ForPanels(parallel, passes, [&](int64_t p) {
    MultiplyColumns(loops_, left, num_rows, depth_, num_columns_, p,
                    panels_ + p * loops_.width() * depth_, /*adds=*/false, out, out_stride);
  });
}

template <typename T>
template <typename Work>
void PackedMatrix<T>::ForPanels(Parallel* parallel, double passes, const Work& work) const {
  constexpr double kLeastBytes = 128 << 10;  // that are worth a thread's waking up
  const double bytes = passes * sizeof(T) * num_panels_ * loops_.width() * depth_;
  // As many parts as threads, so that a thread may find its part in its own cache the next time.
  const int64_t parts =
      std::min<double>({static_cast<double>(parallel->num_threads()),
                        static_cast<double>(num_panels_), bytes / kLeastBytes + 1});
  const auto run = [&](int64_t part) {
    const int64_t end = num_panels_ * (part + 1) / parts;
    for (int64_t p = num_panels_ * part / parts; p < end; ++p) work(p);
  };
  if (parts <= 1) {
    for (int64_t p = 0; p < num_panels_; ++p) work(p);
  } else {
    parallel->Run(parts, run);
  }
}

template <typename T>
void MultiplyMatrices(const Matrix<T>& left, const Matrix<T>& right, int64_t num_rows,
                      int64_t depth, int64_t num_columns, bool adds, T* out, int64_t out_stride,
                      Parallel* parallel) {
  // So much of the right factor's depth that a panel of it stays in the second-level cache.
  constexpr int64_t kDepth = 256;
  if (depth == 0 && !adds) {
    for (int64_t m = 0; m < num_rows; ++m) std::fill_n(out + m * out_stride, num_columns, T(0));
  }
  const PanelLoops<T> loops = ChoosePanelLoops<T>(kVectors);
  const int64_t num_panels = (num_columns + loops.width() - 1) / loops.width();
  Buffer<T> panels(num_panels * loops.width() * std::min(depth, kDepth));
  constexpr double kLeastProducts = 1 << 20;
  const double products = static_cast<double>(num_rows) * depth * num_columns;
  const int64_t parts =
      std::min<double>({static_cast<double>(parallel->num_threads()), products / kLeastProducts + 1,
                        static_cast<double>(num_panels)});
  // Parts of the columns, each packed where it is used.
  parallel->Run(parts, [&](int64_t part) {
    for (int64_t k = 0; k < depth; k += kDepth) {
      const int64_t count = std::min(kDepth, depth - k);
      const Matrix<T> columns{left.data + k * left.column_stride, left.row_stride,
                              left.column_stride};
      const Matrix<T> rows{right.data + k * right.row_stride, right.row_stride,
                           right.column_stride};
      for (int64_t p = num_panels * part / parts; p < num_panels * (part + 1) / parts; ++p) {
        T* const panel = panels.data() + p * loops.width() * std::min(depth, kDepth);
        PackColumns(loops, rows, count, num_columns, p, panel);
        MultiplyColumns(loops, columns, num_rows, count, num_columns, p, panel, adds || k > 0, out,
                        out_stride);
      }
    }
  });
}

template PanelLoops<float> ChoosePanelLoops<float>(int);
template PanelLoops<double> ChoosePanelLoops<double>(int);
template class PackedMatrix<float>;
template class PackedMatrix<double>;
template void MultiplyMatrices<float>(const Matrix<float>&, const Matrix<float>&, int64_t, int64_t,
                                      int64_t, bool, float*, int64_t, Parallel*);
template void MultiplyMatrices<double>(const Matrix<double>&, const Matrix<double>&, int64_t,
                                       int64_t, int64_t, bool, double*, int64_t, Parallel*);

}  // namespace tf_ti
