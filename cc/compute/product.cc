#include "cc/compute/product.h"

#include <algorithm>
#include <cstring>

#include "cc/compute/buffer.h"
#include "cc/compute/prefetch.h"

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

// Multiplies by panel p; the output may have only some of its columns.
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
  constexpr double kLeastBytes = 1 << 20;  // 10 to 20 us: less is not worth waking a thread for
  const double bytes = passes * sizeof(T) * num_panels_ * loops_.width() * depth_;
  // As many parts as threads, so that a thread may find its part in its own cache the next time.
  const int64_t parts = std::min<double>({static_cast<double>(parallel->num_threads()),
                                          static_cast<double>(num_panels_), bytes / kLeastBytes});
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

// Some rows and some columns of an output, which one thread computes.
template <typename T>
class Tile {
 public:
  // So large that packed numbers are used often, and stay in the second-level cache.
  static constexpr int64_t kMostRows = 256;
  static constexpr int64_t kMostPanels = 8;
  static constexpr int64_t kMostDepth = 512;

  Tile(const Matrix<T>& left, const Matrix<T>& right, int64_t num_rows, int64_t depth,
       int64_t num_columns, T* out, int64_t out_stride)
      : loops_(ChoosePanelLoops<T>(kVectors)),
        left_(left),
        right_(right),
        num_rows_(num_rows),
        depth_(depth),
        num_columns_(num_columns),
        out_(out),
        out_stride_(out_stride) {}

  void Multiply(int64_t panel_begin, int64_t panel_end) const {
    // A column-major left factor is packed: the numbers of its rows lie far apart.
    const bool packs = left_.row_stride == 1 && panel_end - panel_begin > 1;
    const int64_t num_parts = (depth_ + kMostDepth - 1) / kMostDepth;
    const int64_t most = std::min(depth_, kMostDepth);
    Buffer<T> panel(loops_.width() * most);
    Buffer<T> packed(packs ? (num_rows_ + kPackedRows - 1) / kPackedRows * kPackedRows * most : 0);
    for (int64_t part = 0; part < num_parts; ++part) {
      const int64_t k = depth_ * part / num_parts;
      const int64_t count = depth_ * (part + 1) / num_parts - k;
      const Matrix<T> left{left_.data + k * left_.column_stride, left_.row_stride,
                           left_.column_stride};
      const Matrix<T> right{right_.data + k * right_.row_stride, right_.row_stride,
                            right_.column_stride};
      if (packs) PackRows(left, count, packed.data());
      for (int64_t p = panel_begin; p < panel_end; ++p) {
        PackColumns(loops_, right, count, num_columns_, p, panel.data());
        const auto multiply = [&](const Matrix<T>& rows, int64_t row, int64_t num_rows) {
          MultiplyColumns(loops_, rows, num_rows, count, num_columns_, p, panel.data(), part > 0,
                          out_ + row * out_stride_, out_stride_);
        };
        if (!packs) {
          multiply(left, 0, num_rows_);
          continue;
        }
        for (int64_t row = 0; row < num_rows_; row += kPackedRows) {
          multiply({packed.data() + row * count, 1, kPackedRows}, row,
                   std::min(kPackedRows, num_rows_ - row));
        }
      }
    }
  }

 private:
  static constexpr int64_t kPackedRows = 12;  // some blocks of any innermost loop

  // One column after the other of the first rows, then of the next ones.
  void PackRows(const Matrix<T>& left, int64_t depth, T* packed) const {
    constexpr int64_t kAtOnce = 8;
    for (int64_t k = 0; k < depth; k += kAtOnce) {
      const int64_t end = std::min(k + kAtOnce, depth);
      for (int64_t row = 0; row < num_rows_; row += kPackedRows) {
        const int64_t count = std::min(kPackedRows, num_rows_ - row);
        for (int64_t i = k; i < end; ++i) {
          const T* const from = left.data + row + i * left.column_stride;
          T* const to = packed + row * depth + i * kPackedRows;
          if (count == kPackedRows) {
            std::memcpy(to, from, kPackedRows * sizeof(T));  // a known size: no call
          } else {
            std::copy_n(from, count, to);
          }
        }
      }
    }
  }

  const PanelLoops<T> loops_;
  const Matrix<T> left_;
  const Matrix<T> right_;
  const int64_t num_rows_;
  const int64_t depth_;
  const int64_t num_columns_;
  T* const out_;
  const int64_t out_stride_;
};

// The tiles of a product.
template <typename T>
class Tiles {
 public:
  Tiles(const Product<T>& product, int64_t num_threads) : product_(product) {
    const auto num_parts = [](int64_t total, int64_t most) { return (total + most - 1) / most; };
    num_panels_ = num_parts(product.num_columns, ChoosePanelLoops<T>(kVectors).width());
    if (product.num_rows == 0 || product.depth == 0 || num_panels_ == 0) return;
    // More tiles than threads, which do not start or run alike.
    constexpr double kLeastProducts = 1 << 19;
    const double products =
        static_cast<double>(product.num_rows) * product.depth * product.num_columns;
    const int64_t wanted =
        num_threads == 1 ? 1 : std::min<double>(2 * num_threads, products / kLeastProducts + 1);
    row_parts_ = num_parts(product.num_rows, Tile<T>::kMostRows);
    column_parts_ = std::min(num_panels_, std::max(num_parts(num_panels_, Tile<T>::kMostPanels),
                                                   num_parts(wanted, row_parts_)));
    constexpr int64_t kLeastRows = 48;  // to pack columns for
    row_parts_ = std::max(
        row_parts_, std::min(num_parts(wanted, column_parts_), product.num_rows / kLeastRows));
  }

  int64_t count() const { return row_parts_ * column_parts_; }

  void Multiply(int64_t tile) const {
    const Matrix<T>& left = product_.left;
    const int64_t i = tile % row_parts_, j = tile / row_parts_;
    const int64_t begin = product_.num_rows * i / row_parts_;
    const int64_t end = product_.num_rows * (i + 1) / row_parts_;
    const Matrix<T> rows{left.data + begin * left.row_stride, left.row_stride, left.column_stride};
    Tile<T>(rows, product_.right, end - begin, product_.depth, product_.num_columns,
            product_.out + begin * product_.out_stride, product_.out_stride)
        .Multiply(num_panels_ * j / column_parts_, num_panels_ * (j + 1) / column_parts_);
  }

 private:
  const Product<T>& product_;
  int64_t num_panels_;
  int64_t row_parts_ = 0;
  int64_t column_parts_ = 0;
};

template <typename T>
void MultiplyMatrices(const std::vector<Product<T>>& products, Parallel* parallel) {
  std::vector<Tiles<T>> tiles;
  std::vector<int64_t> ends;  // of the tiles of each product, in the order of all
  for (const Product<T>& product : products) {
    for (int64_t m = 0; m < product.num_rows && product.depth == 0; ++m) {
      std::fill_n(product.out + m * product.out_stride, product.num_columns, T(0));
    }
    tiles.emplace_back(product, parallel->num_threads());
    ends.push_back((ends.empty() ? 0 : ends.back()) + tiles.back().count());
  }
  if (products.empty()) return;
  parallel->Run(ends.back(), [&](int64_t tile) {
    const int64_t i = std::upper_bound(ends.begin(), ends.end(), tile) - ends.begin();
    tiles[i].Multiply(tile - (ends[i] - tiles[i].count()));
  });
}

template PanelLoops<float> ChoosePanelLoops<float>(int);
template PanelLoops<double> ChoosePanelLoops<double>(int);
template class PackedMatrix<float>;
template class PackedMatrix<double>;
template void MultiplyMatrices<float>(const std::vector<Product<float>>&, Parallel*);
template void MultiplyMatrices<double>(const std::vector<Product<double>>&, Parallel*);

}  // namespace tf_ti
