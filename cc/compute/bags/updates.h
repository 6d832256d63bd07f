// Steps of optimizers on those rows of a table that a gradient names, in place.
//
//   table  [[1, 2], [3, 4], [5, 6]]
//   indices [2, 0, 2], values [[1, 1], [2, 2], [3, 3]]
//   rows 0 and 2, with gradients [2, 2], [4, 4]
//
// A row that is not named is not touched, nor is one whose gradients add up to zeros. Results do
// not depend on the number of threads. Their last bits may depend on the processor. All functions
// return an empty string, or an error message that tells which index is no row of the table. After
// an error, and where memory runs out, nothing has been written.
#ifndef TF_TI_CC_COMPUTE_BAGS_UPDATES_H_
#define TF_TI_CC_COMPUTE_BAGS_UPDATES_H_

#include <cstdint>
#include <string>

#include "cc/compute/bags/bags.h"
#include "cc/compute/numbers.h"
#include "cc/compute/parallel.h"

namespace tf_ti {

// Gradients of the rows of a table: those of a look-up whose bags have the gradients `grad`,
// [number of bags, width]. A row's gradients are added up in the order of the bags first.
template <typename T, typename Index>
struct RowGradientsOf {
  Bags<Index> bags;
  Weights<T> weights;
  Reduction reduction = Reduction::kSum;
  const Index* argmax = nullptr;  // for kMax, that of PoolBags
  const T* grad = nullptr;
  int64_t num_rows = 0;  // of the table
  int64_t width = 0;
  // True if grad[i] is a gradient of row indices[i], without bags; and then, are_distinct, if no
  // row comes again except with gradients of zeros. A GPU is told, as it would take long to find
  // out. The processor looks.
  bool are_rows = false;
  bool are_distinct = false;
};

// values[i], `width` numbers, is one of row indices[i]: bags of one row each.
template <typename T, typename Index>
RowGradientsOf<T, Index> GradientsOfRows(const Index* indices, const T* values, int64_t count,
                                         int64_t num_rows, int64_t width) {
  RowGradientsOf<T, Index> gradients;
  gradients.bags.kind = BagKind::kPacked;
  gradients.bags.indices = indices;
  gradients.bags.num_indices = gradients.bags.count = count;
  gradients.grad = values;
  gradients.num_rows = num_rows;
  gradients.width = width;
  gradients.are_rows = true;
  return gradients;
}

// row -= scale * s, for each s that goes to it, in their order. Any numbers, without bags.
template <typename T, typename Index>
std::string ScatterSub(const RowGradientsOf<T, Index>& gradients, Sum<T> scale, Parallel* parallel,
                       T* table);

// The state of an optimizer: a number for each element of a table, or for each row of it.
template <typename S>
struct Slot {
  S* rows = nullptr;
  bool is_row_wise = false;
};

struct AdamNumbers {
  double learning_rate = 0;
  int64_t step = 1;
  double beta_1 = 0;
  double beta_2 = 0;
  double epsilon = 0;
  double weight_decay = 0;
  bool epsilon_hat = true;  // true if the corrections of the averages go into the rate alone
};

struct AdagradNumbers {
  double learning_rate = 0;
  double epsilon = 0;
  bool epsilon_inside_sqrt = true;
};

// With s the gradient of a row x: x -= scale * (s + weight_decay * x).
template <typename T, typename Index>
std::string DecayedScatterSub(const RowGradientsOf<T, Index>& gradients, double scale,
                              double weight_decay, Parallel* parallel, T* table);

// With q = s * s, or their mean where v is row-wise:
//
//   m += (1 - beta_1) * (s - m)
//   v += (1 - beta_2) * (q - v)
//   x -= learning_rate * weight_decay * x
//   x -= learning_rate / (1 - beta_1^step) * m / (sqrt(v / (1 - beta_2^step)) + epsilon)
//
// or, with epsilon_hat, learning_rate * sqrt(1 - beta_2^step) / (1 - beta_1^step) * m / (sqrt(v) +
// epsilon). `m` is not row-wise.
template <typename T, typename Index>
std::string AdamUpdate(const RowGradientsOf<T, Index>& gradients, const AdamNumbers& numbers,
                       Sum<T>* m, const Slot<Sum<T>>& v, Parallel* parallel, T* table);

// accumulator += q; x -= learning_rate * s / (sqrt(accumulator) + epsilon), or the root of
// accumulator + epsilon.
template <typename T, typename Index>
std::string AdagradUpdate(const RowGradientsOf<T, Index>& gradients, const AdagradNumbers& numbers,
                          const Slot<Sum<T>>& accumulator, Parallel* parallel, T* table);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_UPDATES_H_
