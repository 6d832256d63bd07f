// The loops behind product.h, for one instruction set: see each_instruction_set-inl.h.

#include "cc/compute/vectors-inl.h"

// The number of vectors of sums that fit into the registers, beside those of a panel and a number.
constexpr int kMostSums = TF_TI_VECTOR_BYTES == 64 ? 24 : 12;

template <typename T>
constexpr int kLanes = kVectorBytes / sizeof(T);

// Interleaves the elements of two rows: x[0], y[0], x[1], y[1], ...; from the middle of both on if
// `high`.
template <typename T, bool high>
inline Vector<T, kLanes<T>> Interleave(Vector<T, kLanes<T>> x, Vector<T, kLanes<T>> y) {
  constexpr int L = kLanes<T>;
  using Position = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  Vector<Position, L> positions{};
  for (int i = 0; i < L; ++i) positions[i] = i / 2 + (high ? L / 2 : 0) + (i % 2 ? L : 0);
  return __builtin_shuffle(x, y, positions);
}

// Makes columns of L rows of L numbers.
template <typename T>
inline void Transpose(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  constexpr int L = kLanes<T>;
  Vector<T, L> rows[L];
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) rows[i] = Load<T, L>(from + i * from_stride);
#pragma GCC unroll 4
  for (int size = 1; size < L; size *= 2) {
    Vector<T, L> mixed[L];
#pragma GCC unroll 8
    for (int i = 0; i < L / 2; ++i) {
      mixed[2 * i] = Interleave<T, false>(rows[i], rows[i + L / 2]);
      mixed[2 * i + 1] = Interleave<T, true>(rows[i], rows[i + L / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < L; ++i) rows[i] = mixed[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) Store<T, L>(rows[i], to + i * to_stride);
}

// One vector of each row of a panel.
template <typename T>
inline void PackVector(const Matrix<T>& matrix, int64_t depth, ColumnRun run, T* to,
                       int64_t to_stride) {
  constexpr int L = kLanes<T>;
  const T* const from = matrix.data + run.first * matrix.column_stride;
  int64_t k = 0;
  if (run.count == L && matrix.row_stride == 1) {
    for (; k + L <= depth; k += L) {
      Transpose<T>(from + k, matrix.column_stride, to + k * to_stride, to_stride);
    }
  }
  for (; k < depth; ++k) {
    for (int64_t j = 0; j < L; ++j) {
      to[k * to_stride + j] =
          j < run.count ? from[k * matrix.row_stride + j * matrix.column_stride] : T(0);
    }
  }
}

template <typename T, int V>
void PackPanel(const Matrix<T>& matrix, int64_t depth, const ColumnRun* runs, T* panel) {
  constexpr int L = kLanes<T>;
  bool are_rows = matrix.column_stride == 1;
  for (int v = 0; v < V; ++v) are_rows = are_rows && runs[v].count == L;
  if (!are_rows) {
    for (int v = 0; v < V; ++v) PackVector<T>(matrix, depth, runs[v], panel + v * L, V * L);
    return;
  }
  // Rows are far apart, so the processor does not foresee them.
  constexpr int64_t kAhead = 16;
  for (int64_t k = 0; k < depth; ++k) {
    const T* const row = matrix.data + k * matrix.row_stride;
    const T* const ahead = k + kAhead < depth ? row + kAhead * matrix.row_stride : row;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      Prefetch(ahead + runs[v].first);
      Store<T, L>(Load<T, L>(row + runs[v].first), panel + (k * V + v) * L);
    }
  }
}

// R rows by V vectors.
template <typename T, int R, int V>
void MultiplyBlock(const Matrix<T>& left, int64_t depth, const T* panel, const T* init,
                   int64_t init_stride, T* out, int64_t out_stride) {
  constexpr int L = kLanes<T>;
  Vector<T, L> sums[R][V];
  const T* rows[R];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    rows[r] = left.data + r * left.row_stride;
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      sums[r][v] = init == nullptr ? Vector<T, L>{} : Load<T, L>(init + r * init_stride + v * L);
    }
  }
  const int64_t stride = left.column_stride;
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (R <= 2) {
      // They wait for the panel.
      constexpr int kAhead = 1024;
#pragma GCC unroll 4
      for (int i = 0; i < V * kVectorBytes; i += 64) {
        Prefetch(reinterpret_cast<const char*>(panel) + kAhead + i);
      }
    }
    // The fewer ones are held, and the others fetched one by one: all have to fit into registers.
    if constexpr (R < V) {
      Vector<T, L> numbers[R];
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) numbers[r] = Fill<L>(rows[r][k * stride]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        const Vector<T, L> column = Load<T, L>(panel + v * L);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) sums[r][v] += numbers[r] * column;
      }
    } else {
      Vector<T, L> columns[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) columns[v] = Load<T, L>(panel + v * L);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Vector<T, L> number = Fill<L>(rows[r][k * stride]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) sums[r][v] += number * columns[v];
      }
    }
    panel += V * L;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) Store<T, L>(sums[r][v], out + r * out_stride + v * L);
  }
}

// All rows that there are, at most R.
template <typename T, int R, int V>
inline void MultiplyRows(const Matrix<T>& left, int64_t num_rows, int64_t depth, const T* panel,
                         const T* init, int64_t init_stride, T* out, int64_t out_stride) {
  if constexpr (R > 1) {
    if (num_rows < R) {
      return MultiplyRows<T, R - 1, V>(left, num_rows, depth, panel, init, init_stride, out,
                                       out_stride);
    }
  }
  MultiplyBlock<T, R, V>(left, depth, panel, init, init_stride, out, out_stride);
}

template <typename T, int V>
void MultiplyPanel(const Matrix<T>& left, int64_t num_rows, int64_t depth, const T* panel,
                   const T* init, int64_t init_stride, T* out, int64_t out_stride) {
  constexpr int kMostRows = kMostSums / V;
  if (num_rows == 1) {  // at once, as there may be little to multiply
    return MultiplyBlock<T, 1, V>(left, depth, panel, init, init_stride, out, out_stride);
  }
  // Blocks of nearly one size: a few rows wait for the panel, and take as long as some more.
  const int64_t num_blocks = (num_rows + kMostRows - 1) / kMostRows;
  for (int64_t block = 0, begin = 0; block < num_blocks; ++block) {
    const int64_t end = num_rows * (block + 1) / num_blocks;
    const Matrix<T> rows{left.data + begin * left.row_stride, left.row_stride, left.column_stride};
    MultiplyRows<T, kMostRows, V>(rows, end - begin, depth, panel,
                                  init == nullptr ? nullptr : init + begin * init_stride,
                                  init_stride, out + begin * out_stride, out_stride);
    begin = end;
  }
}

// Sums of the numbers of x and of y, in turns.
template <typename T>
inline Vector<T, kLanes<T>> Merge(Vector<T, kLanes<T>> x, Vector<T, kLanes<T>> y) {
  return Interleave<T, false>(x, y) + Interleave<T, true>(x, y);
}

// out[i] = init[i] + the sum of the numbers in vectors[i], for 4 of them.
template <typename T>
inline void AddSums(const Vector<T, kLanes<T>>* vectors, const T* init, T* out) {
  constexpr int L = kLanes<T>;
  constexpr int kWidth = L < 4 ? L : 4;
  Vector<T, L> sums[2] = {Merge<T>(vectors[0], vectors[2]), Merge<T>(vectors[1], vectors[3])};
  if constexpr (L == 2) {
    const Vector<T, L> pairs[2] = {Interleave<T, false>(sums[0], sums[1]),
                                   Interleave<T, true>(sums[0], sums[1])};
    sums[0] = pairs[0], sums[1] = pairs[1];
  } else {
    sums[0] = Merge<T>(sums[0], sums[1]);
  }
  T numbers[2 * L];
  Store<T, L>(sums[0], numbers);
  if constexpr (L == 2) Store<T, L>(sums[1], numbers + L);
  for (int i = 0; i < 4; i += kWidth) {
    Vector<T, kWidth> total = Load<T, kWidth>(init + i);
    for (int k = i; k < (L < 4 ? i + 1 : L); k += 4) total += Load<T, kWidth>(numbers + k);
    Store<T, kWidth>(total, out + i);
  }
}

// R rows by C columns, whose numbers lie side by side.
template <typename T, int R, int C>
void DotBlock(const Matrix<T>& left, int64_t depth, const T* columns, int64_t column_stride,
              const T* init, int64_t init_stride, T* out, int64_t out_stride) {
  constexpr int L = kLanes<T>;
  Vector<T, L> sums[R][C] = {};
  for (int64_t k = 0; k < depth; k += L) {
    Vector<T, L> rows[R];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) rows[r] = Load<T, L>(left.data + r * left.row_stride + k);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Vector<T, L> column = Load<T, L>(columns + c * column_stride + k);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) sums[r][c] += rows[r] * column;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; c += 4) {
      AddSums<T>(&sums[r][c], init + r * init_stride + c, out + r * out_stride + c);
    }
  }
}

template <typename T>
void DotColumns(const Matrix<T>& left, int64_t num_rows, int64_t depth, const T* columns,
                int64_t column_stride, int64_t num_columns, const T* init, int64_t init_stride,
                T* out, int64_t out_stride) {
  // Enough sums at a time that none waits for itself.
  constexpr int kRows = kMostSums / 4;
  constexpr int kColumns = kMostSums / 12 * 8;
  int64_t row = 0;
  int64_t column = 0;
  const auto block = [&](auto dot_block) {
    dot_block({left.data + row * left.row_stride, left.row_stride, 1}, depth,
              columns + column * column_stride, column_stride, init + row * init_stride + column,
              init_stride, out + row * out_stride + column, out_stride);
  };
  for (; row + kRows <= num_rows; row += kRows) {
    for (column = 0; column < num_columns; column += 4) block(DotBlock<T, kRows, 4>);
  }
  for (; row < num_rows; ++row) {
    for (column = 0; column + kColumns <= num_columns; column += kColumns) {
      block(DotBlock<T, 1, kColumns>);
    }
    for (; column < num_columns; column += 4) block(DotBlock<T, 1, 4>);
  }
}

template <typename T, int V>
PanelLoops<T> PanelLoopsOf() {
  return {kLanes<T>, V, PackPanel<T, V>, MultiplyPanel<T, V>, DotColumns<T>};
}
