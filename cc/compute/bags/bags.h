// Pooled embedding look-ups: bags of table rows, reduced to one row each, and their gradients.
//
//   table  [[1, 2], [3, 4], [5, 6]]
//   indices [0, 2, 1, 1], offsets [0, 2, 2]   bags {0, 2}, {}, {1, 1}
//   sums    [[6, 8], [0, 0], [6, 8]]
//
// Results do not depend on the number of threads. Their last bits may depend on the processor,
// which may round a product and a sum at once. Functions that can meet bad values return an empty
// string, or an error message. After an error, their outputs mean nothing.
#ifndef TF_TI_CC_COMPUTE_BAGS_BAGS_H_
#define TF_TI_CC_COMPUTE_BAGS_BAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/compute/bags/entries.h"
#include "cc/compute/buffer.h"
#include "cc/compute/numbers.h"
#include "cc/compute/parallel.h"

namespace tf_ti {

enum class Reduction {
  kSum,
  kMean,   // the sum, divided by the number of ids or by the sum of their weights
  kSqrtN,  // the sum, divided by the root of the number, or of the sum of the weights' squares
  kMax,
};

inline bool HasDivisors(Reduction reduction) {
  return reduction == Reduction::kMean || reduction == Reduction::kSqrtN;
}

enum class BagKind {
  kOffsets,   // bounds[b] is where bag b begins in indices
  kPacked,    // every bag has num_indices / count indices
  kSegments,  // bounds[i] is the bag of indices[i]; ascending
};

// The indices of each bag. Bag b + 1 begins where bag b ends.
template <typename Index>
struct Bags {
  BagKind kind = BagKind::kOffsets;
  const Index* indices = nullptr;
  int64_t num_indices = 0;
  const Index* bounds = nullptr;
  bool include_last_offset = false;  // kOffsets: there is a bounds[count], where the last bag ends
  int64_t count = 0;
  int64_t default_index = -1;  // the row that fills an empty bag; -1 fills it with zeros
  bool has_padding = false;    // true if indices equal to padding_idx are left out of their bags
  int64_t padding_idx = 0;
};

// An error message where the default index is neither a row nor -1; else "".
template <typename Index>
std::string CheckDefault(const Bags<Index>& bags, int64_t num_rows) {
  if (bags.default_index < -1) {
    return "default_index is " + std::to_string(bags.default_index) +
           "; it must be a row of emb_table, or -1";
  }
  if (bags.default_index >= num_rows) {
    return "default_index is " + std::to_string(bags.default_index) + ", but emb_table has " +
           std::to_string(num_rows) + " rows";
  }
  return "";
}

template <typename T>
struct Table {
  const T* rows = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
};

// A weight for each index: rounded like the table, or as wide as its sums. At most one is set.
template <typename T>
struct Weights {
  const T* rounded = nullptr;
  const Sum<T>* wide = nullptr;

  bool given() const { return rounded != nullptr || wide != nullptr; }
};

// The same, to be written; one of them is set.
template <typename T>
struct WeightsOutput {
  T* rounded = nullptr;
  Sum<T>* wide = nullptr;
};

// out [count, width]. Weights multiply the rows; they do not go with kMax. `argmax`, where not
// null, gets for each element of a kMax result the position in indices of the first row that has
// it, or -1 in an empty bag.
template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Parallel* parallel, T* out, Index* argmax);

// The inputs and outputs of PoolBags for one table.
template <typename T, typename Index>
struct BagLookUp {
  Table<T> table;
  Bags<Index> bags;
  Weights<T> weights;
  Reduction reduction = Reduction::kSum;
  T* out = nullptr;
  Index* argmax = nullptr;
  int64_t number = -1;  // the table's in errors, where there are several
};

// The bags of several tables at once, each as by itself. An error message begins with OfTable's
// words.
template <typename T, typename Index>
std::string PoolBags(const std::vector<BagLookUp<T, Index>>& lookups, Parallel* parallel);

// The words before an error message where there are several tables, and `number` is not -1.
inline std::string OfTable(int64_t number, const std::string& problem) {
  if (problem.empty() || number < 0) return problem;
  return "emb_tables[" + std::to_string(number) + "]: " + problem;
}

// The gradient of PoolBags' weights: gradient [num_indices], from grad [count, width].
template <typename T, typename Index>
std::string WeightsGradient(const Table<T>& table, const Bags<Index>& bags,
                            const Weights<T>& weights, Reduction reduction, const T* grad,
                            Parallel* parallel, const WeightsOutput<T>& gradient);

// Rows that have a gradient, ascending. The gradient of rows[k] is the sum of those of the bags
// entries[starts[k]] ... entries[starts[k + 1] - 1].
template <typename Index>
struct RowRun {
  const Index* rows;
  int64_t first;  // the number of rows[0] among all rows
  const int64_t* starts;
  int64_t count;
  const int32_t* entries;
  bool is_giant;  // one row, of so many entries that several threads sum them
};

// The gradient of PoolBags' table, by rows. First Init finds the rows that have one; then Compute
// finds their gradients. VisitRuns and Pool allocate nothing once the first run is visited: an
// update of rows that has begun finds all its memory there.
//
// The entries of a row, of which entries.h tells, are a bag of rows of the output's gradient.
template <typename T, typename Index>
class TableGradient {
 public:
  // `weights` and, for kMax, `argmax`, with `width` elements a bag, are as in PoolBags.
  std::string Init(const Bags<Index>& bags, const Weights<T>& weights, Reduction reduction,
                   const Index* argmax, int64_t num_rows, int64_t width, Parallel* parallel);

  int64_t num_touched() const { return entries_.num_rows(); }

  // rows [num_touched], ascending; values [num_touched, width], from grad [number of bags, width].
  void Compute(const T* grad, Parallel* parallel, Index* rows, T* values) const;

  // Calls visit(run) for runs that have each row once, several at the same time, and then for
  // giants, one at a time. All of it moves `bytes` of memory.
  void VisitRuns(Parallel* parallel, double bytes,
                 const std::function<void(const RowRun<Index>&)>& visit) const;

  // The gradients of `count` of a run's rows, from its row `from` on, from grad [count, width].
  // Where `sums` is not null, it gets them instead of `values`, without rounding.
  void Pool(const RowRun<Index>& run, int64_t from, int64_t count, const T* grad,
            Parallel* parallel, T* values, Sum<T>* sums) const;

 private:
  bool is_max() const { return entries_.columns != nullptr; }
  // Calls visit(run) for the runs of a bucket.
  template <typename Visit>
  void SplitBucket(int64_t bucket, const Visit& visit) const;
  // See Pool: of rows that begin, and the last of them ends, at `starts`.
  void PoolSums(const int64_t* starts, int64_t count, const T* grad, T* values, Sum<T>* sums) const;
  void PoolMax(const int64_t* starts, int64_t count, const T* grad, T* values, Sum<T>* sums) const;
  // The same of one row, of entries `begin` to `end`, whose pieces several threads sum.
  void PoolGiant(int64_t begin, int64_t end, const T* grad, Parallel* parallel, T* values,
                 Sum<T>* sums) const;

  int64_t num_bags_ = 0;
  int64_t width_ = 0;
  Entries<T, Index> entries_;
  mutable Buffer<Sum<T>> giant_sums_;  // of the pieces of the giant that is pooled
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_BAGS_H_
