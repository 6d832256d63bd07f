// The walk over bags that every reduction shares: their bounds checked, and cut into parts.
#ifndef TF_TI_CC_COMPUTE_BAGS_WALK_INL_H_
#define TF_TI_CC_COMPUTE_BAGS_WALK_INL_H_

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/pooling.h"
#include "cc/compute/numbers.h"

namespace tf_ti {

// The place of a problem: a position of `indices`, or the bounds of a bag.
class Problem {
 public:
  bool found() const { return found_; }

  void AtIndex(int64_t position) {
    const std::lock_guard<std::mutex> lock(mutex_);
    position_ = std::min(position_, position);
    found_ = true;
  }
  void InBounds() {
    const std::lock_guard<std::mutex> lock(mutex_);
    in_bounds_ = true;
    found_ = true;
  }

  template <typename Index>
  std::string Describe(const Bags<Index>& bags, int64_t num_rows) const {
    if (!found()) return "";
    if (in_bounds_) {
      const std::string problem = DescribeBounds(bags);
      return problem.empty() ? "the indices' bounds changed while they were read" : problem;
    }
    std::string place = std::to_string(position_);
    if (bags.kind == BagKind::kPacked) {
      const int64_t width = bags.num_indices / bags.count;
      place = std::to_string(position_ / width) + ", " + std::to_string(position_ % width);
    }
    return "indices[" + place + "] is " + std::to_string(bags.indices[position_]) +
           ", but emb_table has " + std::to_string(num_rows) + " rows";
  }

  // An error message about the first problem, or an empty string.
  template <typename Index>
  static std::string DescribeBounds(const Bags<Index>& bags);

 private:
  std::mutex mutex_;
  std::atomic<bool> found_{false};
  bool in_bounds_ = false;
  int64_t position_ = std::numeric_limits<int64_t>::max();
};

template <typename Index>
std::string Problem::DescribeBounds(const Bags<Index>& bags) {
  const bool segments = bags.kind == BagKind::kSegments;
  const std::string name = segments ? "segment_ids" : "offsets";
  const int64_t size = segments ? bags.num_indices : bags.count + bags.include_last_offset;
  const auto at = [&](int64_t i) {
    return name + "[" + std::to_string(i) + "] is " + std::to_string(bags.bounds[i]);
  };
  if (bags.kind == BagKind::kPacked) return "";
  for (int64_t i = 0; i < size; ++i) {
    const int64_t value = bags.bounds[i];
    if (i > 0 && value < bags.bounds[i - 1]) return at(i) + ", but " + at(i - 1) + " before it";
    if (value < 0) return at(i) + ", which is negative";
    if (segments && value >= bags.count) {
      return at(i) + ", but num_segments is " + std::to_string(bags.count);
    }
    if (!segments && value > bags.num_indices) {
      return at(i) + ", but there are " + std::to_string(bags.num_indices) + " indices";
    }
  }
  return "";
}

// The position at which a bag begins; `bag` may be the one after the last. Where the bounds are not
// ascending, this may be anything from 0 to num_indices.
template <typename Index>
int64_t BagBegin(const Bags<Index>& bags, int64_t bag) {
  switch (bags.kind) {
    case BagKind::kPacked:
      return bags.count == 0 ? 0 : bag * (bags.num_indices / bags.count);
    case BagKind::kSegments:
      if (bag == bags.count) return bags.num_indices;
      return std::lower_bound(bags.bounds, bags.bounds + bags.num_indices, bag) - bags.bounds;
    default:
      if (bag == bags.count && !bags.include_last_offset) return bags.num_indices;
      return std::min(std::max<int64_t>(bags.bounds[bag], 0), bags.num_indices);
  }
}

// The number of bags, and of indices in them.
template <typename Index>
int64_t SizeOf(const Bags<Index>& bags) {
  return std::max<int64_t>(0, BagBegin(bags, bags.count) - BagBegin(bags, 0)) + bags.count;
}

// The first bag, of those from `low` on, with at least `size` bags and indices before it.
template <typename Index>
int64_t FindBag(const Bags<Index>& bags, int64_t size, int64_t low) {
  const int64_t target = BagBegin(bags, 0) + size;
  int64_t high = bags.count;
  while (low < high) {
    const int64_t bag = low + (high - low) / 2;
    if (BagBegin(bags, bag) + bag < target) {
      low = bag + 1;
    } else {
      high = bag;
    }
  }
  return low;
}

// The begin of part `part` of `parts` parts of something.
inline int64_t PartBegin(int64_t size, int64_t part, int64_t parts) {
  return static_cast<int64_t>(static_cast<double>(size) * part / parts);
}

// The first bag of each of `parts` parts that have about the same number of indices and bags.
template <typename Index>
std::vector<int64_t> SplitBags(const Bags<Index>& bags, int64_t parts) {
  std::vector<int64_t> first(parts + 1, bags.count);
  first[0] = 0;
  const int64_t total = SizeOf(bags);
  for (int64_t part = 1; part < parts; ++part) {
    first[part] = FindBag(bags, PartBegin(total, part, parts), first[part - 1]);
  }
  return first;
}

// The bytes that pooling moves for an index, or for a bag, roughly.
template <typename T>
double BytesOfRow(int64_t width) {
  constexpr double kLeast = 16;
  return std::max(kLeast, static_cast<double>(width) * sizeof(T));
}

// Those that it moves in all.
template <typename T, typename Index>
double BytesOf(const Bags<Index>& bags, int64_t width) {
  return (static_cast<double>(bags.num_indices) + static_cast<double>(bags.count)) *
         BytesOfRow<T>(width);
}

// Walks over some consecutive bags and checks their bounds.
template <typename Index>
class BagWalk {
 public:
  BagWalk(const Bags<Index>& bags, int64_t first, int64_t last)
      : bags_(bags), bag_(first), last_(last), limit_(BagBegin(bags, last)) {
    end_ = BagBegin(bags, first);
    if (bags.kind == BagKind::kSegments) {
      if (first == 0) end_ = 0;
      ok_ = end_ <= limit_;
    } else if (bags.kind == BagKind::kOffsets && (first < bags.count || bags.include_last_offset)) {
      ok_ = bags.bounds[first] == end_;
    }
  }

  // True if the bounds are right, as far as the walk went; all of them at its end.
  bool ok() const { return ok_; }
  int64_t bag() const { return bag_ - 1; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  // Goes to the first bag, or to the next.
  bool Next() {
    if (bag_ == last_) {
      ok_ = ok_ && end_ == limit_;
      return false;
    }
    if (!ok_) return false;
    begin_ = end_;
    ++bag_;
    switch (bags_.kind) {
      case BagKind::kPacked:
        end_ += bags_.num_indices / bags_.count;
        break;
      case BagKind::kSegments:
        while (end_ < limit_ && bags_.bounds[end_] == bag()) ++end_;
        ok_ = end_ == limit_ || bags_.bounds[end_] > bag();
        break;
      default:
        end_ = bag_ == bags_.count && !bags_.include_last_offset ? bags_.num_indices
                                                                 : int64_t{bags_.bounds[bag_]};
        ok_ = begin_ <= end_ && end_ <= bags_.num_indices;
    }
    return ok_;
  }

  // Goes over up to `most` bags at once, with bounds[0] where the first begins and the others where
  // each ends. Returns how many. It is 0, and Next() must go on, where that is not as simple as it
  // mostly is: where bounds are wrong, say, or a bag is larger than `largest`.
  int64_t NextMany(int64_t most, int64_t largest, int64_t* bounds) {
    if (!ok_ || bags_.kind == BagKind::kSegments) return 0;
    // The last bag may have no offset for its end.
    const bool is_packed = bags_.kind == BagKind::kPacked;
    const bool all_end = is_packed || bags_.include_last_offset || last_ < bags_.count;
    const int64_t count = std::min(most, last_ - bag_ - !all_end);
    if (count <= 0) return 0;
    bounds[0] = end_;
    if (is_packed) {
      const int64_t width = bags_.num_indices / bags_.count;
      if (width > largest) return 0;
      for (int64_t k = 1; k <= count; ++k) bounds[k] = end_ + k * width;
    } else {
      // Without a branch, and in what the least processor does to several at once. All bits of the
      // sizes make a number that is no less than any of them.
      const Index* const ends = bags_.bounds + bag_;
      for (int64_t k = 1; k <= count; ++k) bounds[k] = ends[k];
      uint64_t bits = 0;
      for (int64_t k = 1; k <= count; ++k) {
        bits |= static_cast<uint64_t>(bounds[k]) - static_cast<uint64_t>(bounds[k - 1]);
      }
      if (bits > static_cast<uint64_t>(largest) || bounds[count] > bags_.num_indices) return 0;
    }
    begin_ = bounds[count - 1];
    end_ = bounds[count];
    bag_ += count;
    return count;
  }

 private:
  const Bags<Index>& bags_;
  int64_t bag_;
  const int64_t last_;
  const int64_t limit_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  bool ok_ = true;
};

template <typename Index>
bool IsPadding(const Bags<Index>& bags, int64_t position) {
  return bags.has_padding && bags.indices[position] == bags.padding_idx;
}

// Marks the first index in [begin, end) that is neither a row nor padding, and returns false.
template <typename Index>
bool CheckIndices(const Bags<Index>& bags, int64_t begin, int64_t end, int64_t num_rows,
                  Problem* problem) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t row = bags.indices[i];
    if ((row < 0 || row >= num_rows) && !IsPadding(bags, i)) {
      problem->AtIndex(i);
      return false;
    }
  }
  return true;
}

// The checks that need no walk over the bags: the default index, and the indices that are in no
// bag.
template <typename Index>
std::string CheckOutside(const Bags<Index>& bags, int64_t num_rows, Problem* problem) {
  if (std::string error = CheckDefault(bags, num_rows); !error.empty()) {
    return error;
  }
  if (bags.kind == BagKind::kOffsets) {
    const bool any = bags.count > 0 || bags.include_last_offset;
    CheckIndices(bags, 0, any ? BagBegin(bags, 0) : bags.num_indices, num_rows, problem);
    CheckIndices(bags, BagBegin(bags, bags.count), bags.num_indices, num_rows, problem);
  }
  return "";
}

// All checks, for rows without elements, which leave nothing else to do. There may be more bags
// then than anybody can walk over.
template <typename Index>
std::string CheckWithoutWalk(const Bags<Index>& bags, int64_t num_rows) {
  Problem problem;
  std::string wrong = Problem::DescribeBounds(bags);
  if (wrong.empty()) wrong = CheckOutside(bags, num_rows, &problem);
  if (!wrong.empty()) return wrong;
  CheckIndices(bags, 0, bags.num_indices, num_rows, &problem);
  return problem.Describe(bags, num_rows);
}

// Weights, as far as they are given, in the type of the sums.
template <typename T>
Sum<T> WeightAt(const Weights<T>& weights, int64_t position) {
  return weights.wide != nullptr ? weights.wide[position] : Widen(weights.rounded[position]);
}

// The divisor of a bag's sum, added up over its ids. In double, as floats stop at 2^24.
template <typename S>
class Divisor {
 public:
  explicit Divisor(Reduction reduction) : is_root_(reduction == Reduction::kSqrtN) {}

  void AddCount(int64_t count) { total_ = AddSums(total_, static_cast<Wide>(count)); }
  void AddWeight(S weight) {
    const Wide wide(weight);
    total_ = AddSums(total_, is_root_ ? MultiplySums(wide, wide) : wide);
  }
  void Add(const Divisor& other) { total_ = AddSums(total_, other.total_); }

  S Get() const {
    if constexpr (!std::is_integral_v<S>) {
      if (is_root_) return static_cast<S>(std::sqrt(total_));
    }
    return static_cast<S>(total_);
  }

 private:
  using Wide = std::conditional_t<
      std::is_same_v<S, float>, double,
      std::conditional_t<std::is_same_v<S, std::complex<float>>, std::complex<double>, S>>;

  bool is_root_;
  Wide total_{};
};

// The size of giants. Bags of more ids than this are reduced in pieces, which several threads may
// share.
constexpr int64_t kGiant = 16384;

// The ids in a piece of a giant of `size`. It depends on nothing else, so that the sum is always
// the same.
inline int64_t PieceOfGiant(int64_t size) {
  constexpr int64_t kLeast = 8192, kMostPieces = 64;
  return std::max(kLeast, (size + kMostPieces - 1) / kMostPieces);
}

// The number of pieces of a giant, which grows with the size.
inline int64_t PiecesOfGiant(int64_t size) {
  const int64_t piece = PieceOfGiant(size);
  return (size + piece - 1) / piece;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_WALK_INL_H_
