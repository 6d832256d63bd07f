// The entries of a table's gradient, by rows. An entry takes one bag's gradient to one row.
//
//   bags {3, 1}, {}, {1, 1}
//   entries, by the number of their bag   row 1: 0, 2, 2   row 3: 0
//
// Entries of one row stay in the order of the bags. So the gradient of a row is a bag itself, which
// pools rows of the output's gradient. In a maximum, an entry takes only the columns that its row
// won.
#ifndef TF_TI_CC_COMPUTE_BAGS_ENTRIES_H_
#define TF_TI_CC_COMPUTE_BAGS_ENTRIES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/numbers.h"
#include "cc/compute/parallel.h"

namespace tf_ti {

enum class Reduction;
template <typename Index>
struct Bags;
template <typename T>
struct Weights;

// Buckets of entries, by the leading bits of their rows, sorted by row.
template <typename T, typename Index>
struct Entries {
  // The columns that an entry won: a range of its bag's in `columns`.
  struct Won {
    int32_t begin, end;
  };

  int64_t size() const { return bucket_entries.back(); }
  int64_t num_rows() const { return bucket_rows.back(); }
  int64_t num_buckets() const { return bucket_entries.size() - 1; }
  // The begin of a bucket's rows in `starts`, which has one number more for each bucket.
  int64_t FirstStart(int64_t bucket) const { return bucket_entries[bucket] + bucket; }
  // The first bucket of each of `parts` parts with about the same number of entries.
  std::vector<int64_t> SplitBuckets(int64_t parts) const;

  Buffer<char> memory;                        // for all arrays below
  std::vector<int64_t> bucket_entries = {0};  // the first entry of each bucket, and their number
  std::vector<int64_t> bucket_rows = {0};     // the first row of each bucket, and their number
  // Of each row: its number, and its first entry. Those of a bucket begin at its first entry.
  Index* rows = nullptr;
  int64_t* starts = nullptr;
  // Of each entry: its bag; its weight, unless all are 1; and, for kMax, the columns that it won.
  int32_t* bags = nullptr;
  Sum<T>* weights = nullptr;
  Won* won = nullptr;
  // For kMax, the columns of each bag, `width` of them, by the entries that won them.
  int32_t* columns = nullptr;
};

// Makes the entries of bags, as TableGradient::Init gets them. Returns an empty string, or an error
// message.
template <typename T, typename Index>
std::string MakeEntries(const Bags<Index>& bags, const Weights<T>& weights, Reduction reduction,
                        const Index* argmax, int64_t num_rows, int64_t width, Parallel* parallel,
                        Entries<T, Index>* entries);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_ENTRIES_H_
