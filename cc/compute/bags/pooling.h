// Sums, maxima and dot products of table rows: the innermost loops of every bag, for the
// instruction set of the processor.
#ifndef TF_TI_CC_COMPUTE_BAGS_POOLING_H_
#define TF_TI_CC_COMPUTE_BAGS_POOLING_H_

#include <cstdint>

#include "cc/compute/numbers.h"
#include "cc/compute/prefetching.h"

namespace tf_ti {

// A run of consecutive bags. Bag b pools the rows ids[bounds[b]] ... ids[bounds[b + 1] - 1].
template <typename T, typename Index>
struct PoolArgs {
  const T* table;
  uint64_t num_rows;
  int64_t width;  // elements in a row
  const Index* ids;
  const Index* ids_end;   // ids before it may be read, to prefetch their rows
  const Sum<T>* weights;  // one for each id, or null
  const int64_t* bounds;  // count + 1
  int64_t count;
  const Sum<T>* divisors;  // one for each bag, or null; division by zero gives zero
  T* out;                  // count rows; an empty bag's is zero
  Sum<T>* sums;            // where not null, gets them instead of `out`, without rounding
  Index* argmax;           // count rows: the position in ids of each maximum; -1 in an empty bag
  Prefetching prefetching;
};

// Returns false, with some of the output written, where an id is no row of the table.
template <typename T, typename Index>
using PoolRows = bool (*)(const PoolArgs<T, Index>& args);

// Sums follow the order of the ids, so they do not depend on how bags are spread over calls.
template <typename T, typename Index>
PoolRows<T, Index> ChoosePoolSum(int64_t width, bool weighted);

// Maxima; NaN where there is one. Of equal elements `argmax` tells the first. It is null but for
// `with_argmax`. For complex numbers the result is null.
template <typename T, typename Index>
PoolRows<T, Index> ChoosePoolMax(int64_t width, bool with_argmax);

// The sum of x[i] * y[i], always added up in the same order. Not for integers, which have no
// gradient.
template <typename T>
using Dot = Sum<T> (*)(const T* x, const T* y, int64_t size);
template <typename T>
Dot<T> ChooseDot();

// sums[columns[i]] += row[columns[i]]. No column comes twice.
template <typename T>
using AddColumns = void (*)(const T* row, const int32_t* columns, int64_t count, Sum<T>* sums);
template <typename T>
AddColumns<T> ChooseAddColumns();

// Rounds one row's sums.
template <typename T>
using RoundRow = void (*)(const Sum<T>* sums, int64_t size, T* row);
template <typename T>
RoundRow<T> ChooseRoundRow();

// row[i] -= scale * values[i]. Halves are rounded once.
template <typename T>
using SubtractScaled = void (*)(T* row, const T* values, Sum<T> scale, int64_t size);
template <typename T>
SubtractScaled<T> ChooseSubtractScaled();

// One number to and from the type in which it is summed.
template <typename T>
Sum<T> Widen(T value);
template <typename T>
T Round(Sum<T> value);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_POOLING_H_
