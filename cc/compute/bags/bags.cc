#include "cc/compute/bags/bags.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <mutex>
#include <utility>

#include "cc/compute/bags/pooling.h"

namespace tf_ti {
namespace {

// Where something is wrong: at a position of `indices`, or in what bounds the bags.
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

  // The first thing that is wrong with them, or an empty string.
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
// ascending this may be anything from 0 to num_indices.
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

// The first bag of each of `parts` parts that have about the same number of indices and bags.
template <typename Index>
std::vector<int64_t> SplitBags(const Bags<Index>& bags, int64_t parts) {
  std::vector<int64_t> first(parts + 1, bags.count);
  first[0] = 0;
  const int64_t start = BagBegin(bags, 0);
  const int64_t total = BagBegin(bags, bags.count) - start + bags.count;
  for (int64_t part = 1; part < parts; ++part) {
    const int64_t target = start + static_cast<int64_t>(static_cast<double>(total) * part / parts);
    int64_t low = first[part - 1], high = bags.count;
    while (low < high) {
      const int64_t bag = low + (high - low) / 2;
      if (BagBegin(bags, bag) + bag < target) {
        low = bag + 1;
      } else {
        high = bag;
      }
    }
    first[part] = low;
  }
  return first;
}

// What pooling moves, roughly.
template <typename T, typename Index>
double BytesOf(const Bags<Index>& bags, int64_t width) {
  constexpr double kLeast = 16;
  return (static_cast<double>(bags.num_indices) + static_cast<double>(bags.count)) *
         std::max(kLeast, static_cast<double>(width) * sizeof(T));
}

// Walks over some consecutive bags and checks what bounds them.
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

  // Whether the bounds are right, as far as the walk went; all of them at its end.
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
  // each ends, and returns how many. None, and Next() must go on, where that is not as simple as
  // it mostly is: where bounds are wrong, say, or a bag is larger than `largest`.
  int64_t NextMany(int64_t most, int64_t largest, int64_t* bounds) {
    if (!ok_ || bags_.kind == BagKind::kSegments) return 0;
    // The last bag may have no offset where it ends.
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
      // Without a branch, so that several are checked at once.
      const Index* const ends = bags_.bounds + bag_;
      bool is_simple = true;
      for (int64_t k = 1; k <= count; ++k) bounds[k] = ends[k];
      for (int64_t k = 1; k <= count; ++k) {
        const uint64_t size =
            static_cast<uint64_t>(bounds[k]) - static_cast<uint64_t>(bounds[k - 1]);
        is_simple &= size <= static_cast<uint64_t>(largest);
      }
      if (!is_simple || bounds[count] > bags_.num_indices) return 0;
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

// What needs no walk over the bags: the default index, and the indices that are in no bag.
template <typename Index>
std::string CheckOutside(const Bags<Index>& bags, int64_t num_rows, Problem* problem) {
  if (bags.default_index < -1) {
    return "default_index is " + std::to_string(bags.default_index) +
           "; it must be a row of emb_table, or -1";
  }
  if (bags.default_index >= num_rows) {
    return "default_index is " + std::to_string(bags.default_index) + ", but emb_table has " +
           std::to_string(num_rows) + " rows";
  }
  if (bags.kind == BagKind::kOffsets) {
    const bool any = bags.count > 0 || bags.include_last_offset;
    CheckIndices(bags, 0, any ? BagBegin(bags, 0) : bags.num_indices, num_rows, problem);
    CheckIndices(bags, BagBegin(bags, bags.count), bags.num_indices, num_rows, problem);
  }
  return "";
}

// All the checks, where rows without elements leave nothing else to do. There may be more bags then
// than anybody can walk over.
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

bool HasDivisors(Reduction reduction) {
  return reduction == Reduction::kMean || reduction == Reduction::kSqrtN;
}

// What a bag's sum is divided by, added up over its ids. In double, as floats stop at 2^24.
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

// Bags of more ids than this are reduced in pieces, which several threads may share. Where the
// pieces begin depends on nothing but the bag, so the sum is always the same.
constexpr int64_t kGiant = 16384;
constexpr int64_t kPiece = 8192;
constexpr int64_t kMostPieces = 64;

// One call of PoolBags.
template <typename T, typename Index>
class Pooling {
 public:
  Pooling(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
          Reduction reduction, T* out, Index* argmax)
      : table_(table),
        bags_(bags),
        weights_(weights),
        reduction_(reduction),
        pool_(reduction == Reduction::kMax ? ChoosePoolMax<T, Index>(table.width)
                                           : ChoosePoolSum<T, Index>(table.width, weights.given())),
        out_(out),
        argmax_(argmax) {}

  std::string Run(Parallel* parallel) {
    const std::string wrong = CheckOutside(bags_, table_.num_rows, &problem_);
    if (!wrong.empty()) return wrong;
    const int64_t parts = NumParts(*parallel, BytesOf<T>(bags_, table_.width));
    const std::vector<int64_t> first = SplitBags(bags_, parts);
    parallel->Run(parts, [&](int64_t part) { PoolPart(first[part], first[part + 1]); });
    for (const Giant& giant : giants_) {
      if (problem_.found()) {
        // There may be an earlier one.
        CheckIndices(bags_, giant.begin, giant.end, table_.num_rows, &problem_);
      } else {
        PoolGiant(giant, parallel);
      }
    }
    return problem_.Describe(bags_, table_.num_rows);
  }

 private:
  static constexpr int64_t kBlock = 128;  // bags in one call of the innermost loop

  struct Giant {
    int64_t bag, begin, end;
  };

  // Consecutive bags, and copies of their ids and weights where those cannot be used as they are.
  struct Block {
    int64_t first = 0;
    int64_t count = 0;
    int64_t bounds[kBlock + 1];  // positions in bags_.indices
    int64_t staged_bounds[kBlock + 1];
    Sum<T> divisors[kBlock];
    std::vector<Index> ids;
    std::vector<Sum<T>> weights;
  };

  void PoolPart(int64_t first, int64_t last) {
    Block block;
    BagWalk<Index> walk(bags_, first, last);
    for (bool more = true; more;) {
      block.count = walk.NextMany(kBlock, kGiant, block.bounds);
      block.first = walk.bag() + 1 - block.count;
      while (block.count < kBlock && (more = walk.Next())) {
        if (walk.end() - walk.begin() > kGiant) {
          const std::lock_guard<std::mutex> lock(mutex_);
          giants_.push_back({walk.bag(), walk.begin(), walk.end()});
          break;
        }
        if (block.count == 0) {
          block.first = walk.bag();
          block.bounds[0] = walk.begin();
        }
        block.bounds[++block.count] = walk.end();
      }
      if (!Flush(&block)) return;
    }
    if (!walk.ok()) problem_.InBounds();
  }

  // Reduces a block's bags into `out_`. Returns whether all is well.
  bool Flush(Block* block) {
    if (block->count == 0) return true;
    T* const out = out_ + block->first * table_.width;
    const int64_t* const bounds = Pool(block, out, nullptr, nullptr);
    if (bounds == nullptr) return false;
    for (int64_t b = 0; b < block->count; ++b) {
      if (bounds[b] == bounds[b + 1]) FillEmpty(block->first + b);
      if (argmax_ != nullptr) {
        FindArgmax(block->first + b, block->bounds[b], block->bounds[b + 1]);
      }
    }
    return true;
  }

  // Reduces a block's bags into `out`; or, undivided, a single bag into `sums`, and adds up what it
  // is to be divided by. Returns where the bags really begin and end once padding is left out, or
  // null if there is a problem.
  const int64_t* Pool(Block* block, T* out, Sum<T>* sums, Divisor<Sum<T>>* undivided) {
    PoolArgs<T, Index> args{};
    args.table = table_.rows;
    args.num_rows = table_.num_rows;
    args.width = table_.width;
    args.count = block->count;
    args.out = out;
    args.sums = sums;
    if (bags_.has_padding || weights_.rounded != nullptr) {
      Stage(block);
      args.ids = block->ids.data();
      args.ids_end = args.ids + block->ids.size();
      args.weights = weights_.given() ? block->weights.data() : nullptr;
      args.bounds = block->staged_bounds;
    } else {
      args.ids = bags_.indices;
      args.ids_end = args.ids + bags_.num_indices;
      args.weights = weights_.wide;
      args.bounds = block->bounds;
    }
    if (HasDivisors(reduction_)) {
      for (int64_t b = 0; b < block->count; ++b) {
        const int64_t begin = args.bounds[b], end = args.bounds[b + 1];
        Divisor<Sum<T>> divisor(reduction_);
        if (args.weights == nullptr) {
          divisor.AddCount(end - begin);
        } else {
          for (int64_t i = begin; i < end; ++i) divisor.AddWeight(args.weights[i]);
        }
        if (undivided != nullptr) {
          undivided->Add(divisor);
        } else {
          block->divisors[b] = divisor.Get();
        }
      }
      if (undivided == nullptr) args.divisors = block->divisors;
    }
    if (pool_(args)) return args.bounds;
    CheckIndices(bags_, block->bounds[0], block->bounds[block->count], table_.num_rows, &problem_);
    return nullptr;
  }

  void Stage(Block* block) {
    block->ids.clear();
    block->weights.clear();
    block->staged_bounds[0] = 0;
    for (int64_t b = 0; b < block->count; ++b) {
      for (int64_t i = block->bounds[b]; i < block->bounds[b + 1]; ++i) {
        if (IsPadding(bags_, i)) continue;
        block->ids.push_back(bags_.indices[i]);
        if (weights_.given()) block->weights.push_back(WeightAt(weights_, i));
      }
      block->staged_bounds[b + 1] = block->ids.size();
    }
  }

  void PoolGiant(const Giant& giant, Parallel* parallel) {
    const int64_t size = giant.end - giant.begin;
    const int64_t piece = std::max(kPiece, (size + kMostPieces - 1) / kMostPieces);
    const int64_t count = (size + piece - 1) / piece;
    const int64_t width = table_.width;
    Buffer<Sum<T>> sums(count * width);
    std::vector<Divisor<Sum<T>>> divisors(count, Divisor<Sum<T>>(reduction_));
    std::vector<char> is_empty(count);
    parallel->Run(count, [&](int64_t k) {
      Block block;
      block.count = 1;
      block.bounds[0] = giant.begin + k * piece;
      block.bounds[1] = std::min(block.bounds[0] + piece, giant.end);
      const int64_t* const bounds = Pool(&block, nullptr, sums.data() + k * width, &divisors[k]);
      is_empty[k] = bounds == nullptr || bounds[0] == bounds[1];
    });
    if (problem_.found()) return;

    T* const out = out_ + giant.bag * width;
    const int64_t first = std::find(is_empty.begin(), is_empty.end(), 0) - is_empty.begin();
    if (first == count) {
      std::fill(out, out + width, T());
      FillEmpty(giant.bag);
    } else {
      for (int64_t k = 1; k < count; ++k) divisors[0].Add(divisors[k]);
      const Sum<T> divisor = divisors[0].Get();
      for (int64_t c = 0; c < width; ++c) {
        Sum<T> value = sums[first * width + c];
        for (int64_t k = first + 1; k < count; ++k) {
          if (!is_empty[k]) value = Combine(value, sums[k * width + c]);
        }
        out[c] = Round<T>(HasDivisors(reduction_) ? DivideNoNan(value, divisor) : value);
      }
    }
    if (argmax_ != nullptr) FindArgmax(giant.bag, giant.begin, giant.end);
  }

  Sum<T> Combine(Sum<T> x, Sum<T> y) const {
    if constexpr (!IsComplex<T>::value) {
      if (reduction_ == Reduction::kMax) return x == x && !(y <= x) ? y : x;
    }
    return AddSums(x, y);
  }

  void FillEmpty(int64_t bag) {
    if (bags_.default_index < 0) return;
    const T* const row = table_.rows + bags_.default_index * table_.width;
    std::copy(row, row + table_.width, out_ + bag * table_.width);
  }

  void FindArgmax(int64_t bag, int64_t begin, int64_t end) {
    if constexpr (!IsComplex<T>::value) {
      const int64_t width = table_.width;
      const T* const most = out_ + bag * width;
      Index* const argmax = argmax_ + bag * width;
      std::fill(argmax, argmax + width, Index(-1));
      for (int64_t i = begin; i < end; ++i) {
        if (IsPadding(bags_, i)) continue;
        const T* const row = table_.rows + bags_.indices[i] * width;
        for (int64_t c = 0; c < width; ++c) {
          const Sum<T> value = Widen(row[c]);
          const Sum<T> wanted = Widen(most[c]);
          const bool is_it = value == wanted || (value != value && wanted != wanted);
          if (is_it && argmax[c] == -1) argmax[c] = i;
        }
      }
    }
  }

  const Table<T>& table_;
  const Bags<Index>& bags_;
  const Weights<T>& weights_;
  const Reduction reduction_;
  const ::tf_ti::Pool<T, Index> pool_;
  T* const out_;
  Index* const argmax_;
  Problem problem_;
  std::mutex mutex_;
  std::vector<Giant> giants_;
};

// One call of WeightsGradient. With d_i the dot product of row i and the bag's gradient, and D what
// the bag's sum is divided by, it is d_i for a sum, (d_i - sum(w d) / D) / D for a mean, and
// (d_i - w_i sum(w d) / D^2) / D for kSqrtN.
template <typename T, typename Index>
class WeightGradients {
 public:
  WeightGradients(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                  Reduction reduction, const T* grad, const WeightsOutput<T>& gradient)
      : table_(table),
        bags_(bags),
        weights_(weights),
        reduction_(reduction),
        dot_(ChooseDot<T>()),
        grad_(grad),
        gradient_(gradient) {}

  std::string Run(Parallel* parallel) {
    if (table_.width == 0) {
      FillZeros(0, bags_.num_indices);
      return CheckWithoutWalk(bags_, table_.num_rows);
    }
    const std::string wrong = CheckOutside(bags_, table_.num_rows, &problem_);
    if (!wrong.empty()) return wrong;
    const int64_t parts = NumParts(*parallel, BytesOf<T>(bags_, table_.width));
    const std::vector<int64_t> first = SplitBags(bags_, parts);
    // What lies in no bag has no influence.
    FillZeros(0, BagBegin(bags_, 0));
    FillZeros(BagBegin(bags_, bags_.count), bags_.num_indices);
    parallel->Run(parts, [&](int64_t part) {
      std::vector<Sum<T>> dots;
      BagWalk<Index> walk(bags_, first[part], first[part + 1]);
      while (walk.Next()) {
        if (!CheckIndices(bags_, walk.begin(), walk.end(), table_.num_rows, &problem_)) return;
        ComputeBag(walk.bag(), walk.begin(), walk.end(), &dots);
      }
      if (!walk.ok()) problem_.InBounds();
    });
    return problem_.Describe(bags_, table_.num_rows);
  }

 private:
  static constexpr int64_t kAhead = 8;

  void ComputeBag(int64_t bag, int64_t begin, int64_t end, std::vector<Sum<T>>* dots) {
    const T* const grad = grad_ + bag * table_.width;
    dots->resize(end - begin);
    Sum<T> total(0);
    Divisor<Sum<T>> divisors(reduction_);
    for (int64_t i = begin; i < end; ++i) {
      Prefetch(bags_.indices[std::min(i + kAhead, bags_.num_indices - 1)]);
      if (IsPadding(bags_, i)) continue;
      const Sum<T> dot = dot_(table_.rows + bags_.indices[i] * table_.width, grad, table_.width);
      (*dots)[i - begin] = dot;
      if (HasDivisors(reduction_)) {
        const Sum<T> weight = WeightAt(weights_, i);
        total = AddSums(total, MultiplySums(weight, dot));
        divisors.AddWeight(weight);
      }
    }
    const Sum<T> divisor = divisors.Get();
    for (int64_t i = begin; i < end; ++i) {
      Sum<T> value = (*dots)[i - begin];
      if (IsPadding(bags_, i)) {
        value = Sum<T>(0);
      } else if (HasDivisors(reduction_)) {
        Sum<T> mean = DivideNoNan(total, divisor);
        if (reduction_ == Reduction::kSqrtN) {
          mean = DivideNoNan(MultiplySums(WeightAt(weights_, i), mean), divisor);
        }
        value = DivideNoNan(static_cast<Sum<T>>(value - mean), divisor);
      }
      Write(i, value);
    }
  }

  void Write(int64_t position, Sum<T> value) {
    if (gradient_.wide != nullptr) {
      gradient_.wide[position] = value;
    } else {
      gradient_.rounded[position] = Round<T>(value);
    }
  }

  void FillZeros(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Write(i, Sum<T>(0));
  }

  void Prefetch(int64_t row) const {
    constexpr uint64_t kLine = 64, kMost = 1024;
    const uint64_t bytes = table_.width * sizeof(T);
    const uintptr_t at = reinterpret_cast<uintptr_t>(table_.rows) + row * bytes;
    for (uint64_t line = 0; line < std::min(bytes, kMost); line += kLine) {
      __builtin_prefetch(reinterpret_cast<const void*>(at + line));
    }
  }

  const Table<T>& table_;
  const Bags<Index>& bags_;
  const Weights<T>& weights_;
  const Reduction reduction_;
  const Dot<T> dot_;
  const T* const grad_;
  const WeightsOutput<T>& gradient_;
  Problem problem_;
};

// Sorts keys by the `num_bits` bits above their lowest `low_bits`; keys that agree in these keep
// their order. Returns where they are: in `keys` or in `other`, which is as large.
template <typename Key>
Key* SortBucket(int low_bits, int num_bits, int64_t size, Key* keys, Key* other) {
  constexpr int64_t kSmall = 24;
  constexpr int kMostDigitBits = 11;
  if (size <= kSmall) {
    // The lowest bits ascend already, so whole keys may be compared.
    for (int64_t i = 1; i < size; ++i) {
      const Key key = keys[i];
      int64_t k = i;
      for (; k > 0 && keys[k - 1] > key; --k) keys[k] = keys[k - 1];
      keys[k] = key;
    }
    return keys;
  }
  int size_bits = 5;
  while (size_bits < kMostDigitBits && size >> size_bits > 1) ++size_bits;
  const int passes = (num_bits + size_bits - 1) / size_bits;
  if (passes == 0) return keys;
  const int digit_bits = (num_bits + passes - 1) / passes;
  const int64_t num_digits = int64_t{1} << digit_bits;
  int64_t places[int64_t{1} << kMostDigitBits];
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = low_bits + pass * digit_bits;
    const auto digit = [=](Key key) {
      return static_cast<int64_t>(key >> shift) & (num_digits - 1);
    };
    std::fill(places, places + num_digits, 0);
    for (int64_t i = 0; i < size; ++i) ++places[digit(keys[i])];
    int64_t place = 0;
    for (int64_t d = 0; d < num_digits; ++d) place += std::exchange(places[d], place);
    for (int64_t i = 0; i < size; ++i) other[places[digit(keys[i])]++] = keys[i];
    std::swap(keys, other);
  }
  return keys;
}

// Hands out parts of one piece of memory: an allocator that gets it back in one piece has it ready
// for the next call, where several would be returned to the system and cleared again.
class Parts {
 public:
  explicit Parts(Buffer<char>* memory) : memory_(memory) {}

  template <typename E>
  void Add(int64_t size, E** part) {
    const int64_t offset = total_;
    total_ += (size * sizeof(E) + 63) / 64 * 64;
    set_.push_back([=](char* memory) { *part = reinterpret_cast<E*>(memory + offset); });
  }
  void Allocate() {
    *memory_ = Buffer<char>(total_ + 64);
    char* const begin = memory_->data();
    const int64_t skip = (64 - reinterpret_cast<uintptr_t>(begin) % 64) % 64;
    for (const auto& set : set_) set(begin + skip);
  }

 private:
  Buffer<char>* const memory_;
  int64_t total_ = 0;
  std::vector<std::function<void(char*)>> set_;
};

// What the sorting of an entry moves, roughly.
constexpr int64_t kEntryBytes = 32;

// The number of bits that numbers below `limit` need.
int BitsFor(uint64_t limit) {
  int bits = 0;
  while (bits < 64 && limit > uint64_t{1} << bits) ++bits;
  return bits;
}

}  // namespace

template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Parallel* parallel, T* out, Index* argmax) {
  if (argmax != nullptr && bags.num_indices > std::numeric_limits<Index>::max()) {
    return "there are " + std::to_string(bags.num_indices) + " indices: they must be int64";
  }
  if (table.width == 0) return CheckWithoutWalk(bags, table.num_rows);
  return Pooling<T, Index>(table, bags, weights, reduction, out, argmax).Run(parallel);
}

template <typename T, typename Index>
std::string WeightsGradient(const Table<T>& table, const Bags<Index>& bags,
                            const Weights<T>& weights, Reduction reduction, const T* grad,
                            Parallel* parallel, const WeightsOutput<T>& gradient) {
  return WeightGradients<T, Index>(table, bags, weights, reduction, grad, gradient).Run(parallel);
}

template <typename T, typename Index>
std::string TableGradient<T, Index>::Init(const Bags<Index>& bags, const Weights<T>& weights,
                                          Reduction reduction, const Index* argmax,
                                          int64_t num_rows, int64_t width, Parallel* parallel) {
  num_bags_ = bags.count;
  width_ = width;
  argmax_ = argmax;
  if (width == 0) return CheckWithoutWalk(bags, num_rows);
  if (bags.count > std::numeric_limits<int32_t>::max()) {
    return "there are " + std::to_string(bags.count) + " bags, too many for a gradient";
  }
  Problem problem;
  const std::string wrong = CheckOutside(bags, num_rows, &problem);
  if (!wrong.empty()) return wrong;
  // No more than threads: a part writes its entries of a bucket side by side, and should fill cache
  // lines of its own with them.
  const double bytes = static_cast<double>(bags.num_indices + bags.count) * kEntryBytes;
  const int64_t parts = std::min(parallel->num_threads(), NumParts(*parallel, bytes));
  const std::vector<int64_t> first_bag = SplitBags(bags, parts);
  std::vector<int64_t> first_entry(parts + 1, 0);
  parallel->Run(parts, [&](int64_t part) {
    int64_t count = 0;
    BagWalk<Index> walk(bags, first_bag[part], first_bag[part + 1]);
    while (walk.Next()) {
      int64_t size = walk.end() - walk.begin();
      for (int64_t i = walk.begin(); bags.has_padding && i < walk.end(); ++i) {
        size -= IsPadding(bags, i);
      }
      count += size == 0 && bags.default_index >= 0 ? 1 : size;
    }
    if (!walk.ok()) problem.InBounds();
    first_entry[part + 1] = count;
  });
  if (problem.found()) return problem.Describe(bags, num_rows);
  for (int64_t part = 0; part < parts; ++part) first_entry[part + 1] += first_entry[part];
  // A key is a row, and in its lowest bits the entry's bag; where more must be known of it, the
  // number of the entry in the order of the bags.
  const bool is_plain = !weights.given() && !HasDivisors(reduction) && reduction != Reduction::kMax;
  const int payload_bits = BitsFor(is_plain ? bags.count : first_entry[parts]);
  const int bits = BitsFor(num_rows) + payload_bits;
  const auto sort = bits <= 32 && payload_bits < 32 ? &TableGradient::SortEntries<uint32_t>
                    : bits <= 64 && payload_bits < 64
                        ? &TableGradient::SortEntries<uint64_t>
                        : &TableGradient::SortEntries<unsigned __int128>;
  return (this->*sort)(bags, weights, reduction, num_rows, first_bag, first_entry, payload_bits,
                       parallel);
}

template <typename T, typename Index>
template <typename Key>
std::string TableGradient<T, Index>::SortEntries(const Bags<Index>& bags, const Weights<T>& weights,
                                                 Reduction reduction, int64_t num_rows,
                                                 const std::vector<int64_t>& first_bag,
                                                 const std::vector<int64_t>& first_entry,
                                                 int payload_bits, Parallel* parallel) {
  // Buckets of some hundred entries are sorted within the first-level cache.
  constexpr int64_t kBucketSize = 256;
  constexpr int kMostBucketBits = 11;
  const int64_t size = first_entry.back();
  const int64_t parts = first_entry.size() - 1;
  const int row_bits = BitsFor(num_rows);
  const int bucket_bits = std::min({BitsFor(size / kBucketSize), row_bits, kMostBucketBits});
  const int64_t num_buckets = int64_t{1} << bucket_bits;
  const bool has_weights = weights.given() || HasDivisors(reduction);
  const bool has_positions = reduction == Reduction::kMax;
  const bool is_plain = !has_weights && !has_positions;

  Key *keys, *partitioned;
  int32_t* bag_of;
  Sum<T>* weight_of;
  int64_t* position_of;
  Buffer<char> scratch;
  Parts scratch_parts(&scratch);
  scratch_parts.Add(size, &keys);
  scratch_parts.Add(size, &partitioned);
  scratch_parts.Add(is_plain ? 0 : size, &bag_of);
  scratch_parts.Add(has_weights ? size : 0, &weight_of);
  scratch_parts.Add(has_positions ? size : 0, &position_of);
  scratch_parts.Allocate();
  Parts memory_parts(&memory_);
  memory_parts.Add(size, &rows_);
  memory_parts.Add(size + num_buckets, &starts_);
  memory_parts.Add(size, &bags_);
  if (has_weights) memory_parts.Add(size, &weights_);
  if (has_positions) memory_parts.Add(size, &positions_);
  memory_parts.Allocate();

  // Makes the keys, and counts those of each part for each bucket.
  std::vector<int64_t> places(parts * num_buckets, 0);
  const int bucket_shift = payload_bits + row_bits - bucket_bits;
  const auto bucket_of = [=](Key key) {
    return bucket_bits == 0 ? 0 : static_cast<int64_t>(key >> bucket_shift);
  };
  Problem problem;
  parallel->Run(parts, [&](int64_t part) {
    int64_t entry = first_entry[part];
    int64_t* const counts = &places[part * num_buckets];
    // Nothing by reference: what might change between two stores would be loaded again and again.
    const auto add = [=](int64_t row, int64_t entry, int64_t bag, Sum<T> weight, int64_t position) {
      const Key payload = static_cast<Key>(is_plain ? bag : entry);
      const Key key = static_cast<Key>(row) << payload_bits | payload;
      keys[entry] = key;
      ++counts[bucket_of(key)];
      if (is_plain) return;
      bag_of[entry] = static_cast<int32_t>(bag);
      if (has_weights) weight_of[entry] = weight;
      if (has_positions) position_of[entry] = position;
    };
    const Index* const indices = bags.indices;
    const bool has_padding = bags.has_padding;
    BagWalk<Index> walk(bags, first_bag[part], first_bag[part + 1]);
    while (walk.Next()) {
      const int64_t before = entry;
      const int64_t bag = walk.bag(), end = walk.end();
      Divisor<Sum<T>> divisors(reduction);
      for (int64_t i = walk.begin(); i < end; ++i) {
        if (has_padding && IsPadding(bags, i)) continue;
        const int64_t row = indices[i];
        if (static_cast<uint64_t>(row) >= static_cast<uint64_t>(num_rows)) {
          return problem.AtIndex(i);
        }
        Sum<T> weight(1);
        if (weights.given()) {
          weight = WeightAt(weights, i);
          divisors.AddWeight(weight);
        }
        add(row, entry++, bag, weight, i);
      }
      if (HasDivisors(reduction)) {
        if (!weights.given()) divisors.AddCount(entry - before);
        const Sum<T> divisor = divisors.Get();
        for (int64_t e = before; e < entry; ++e) weight_of[e] = DivideNoNan(weight_of[e], divisor);
      }
      if (entry == before && bags.default_index >= 0) {
        add(bags.default_index, entry++, bag, Sum<T>(1), -1);
      }
    }
  });
  if (problem.found()) return problem.Describe(bags, num_rows);

  bucket_entries_.assign(num_buckets + 1, size);
  int64_t place = 0;
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    bucket_entries_[bucket] = place;
    for (int64_t part = 0; part < parts; ++part) {
      place += std::exchange(places[part * num_buckets + bucket], place);
    }
  }
  parallel->Run(parts, [&](int64_t part) {
    int64_t* const next = &places[part * num_buckets];
    for (int64_t k = first_entry[part]; k < first_entry[part + 1]; ++k) {
      partitioned[next[bucket_of(keys[k])]++] = keys[k];
    }
  });

  bucket_rows_.assign(num_buckets + 1, 0);
  const int64_t bucket_parts = NumParts(*parallel, static_cast<double>(size) * kEntryBytes);
  const std::vector<int64_t> first_bucket = SplitBuckets(bucket_parts);
  const Key payload_mask = (Key{1} << payload_bits) - 1;
  parallel->Run(bucket_parts, [&](int64_t part) {
    for (int64_t bucket = first_bucket[part]; bucket < first_bucket[part + 1]; ++bucket) {
      const int64_t begin = bucket_entries_[bucket], end = bucket_entries_[bucket + 1];
      const Key* const sorted = SortBucket(payload_bits, row_bits - bucket_bits, end - begin,
                                           partitioned + begin, keys + begin) -
                                begin;
      Index* const rows = rows_ + begin;
      int64_t* const starts = starts_ + FirstStart(bucket);
      // No branch: whether a row is a new one cannot be predicted.
      int64_t row = -1, start = begin;
      Key last = 0;
      for (int64_t k = begin; k < end; ++k) {
        const Key this_row = sorted[k] >> payload_bits;
        const bool is_new = k == begin || this_row != last;
        last = this_row;
        row += is_new;
        start = is_new ? k : start;
        rows[row] = static_cast<Index>(this_row);
        starts[row] = start;
        const int64_t payload = static_cast<int64_t>(sorted[k] & payload_mask);
        bags_[k] = is_plain ? static_cast<int32_t>(payload) : bag_of[payload];
        if (has_weights) weights_[k] = weight_of[payload];
        if (has_positions) positions_[k] = position_of[payload];
      }
      starts[row + 1] = end;
      bucket_rows_[bucket + 1] = row + 1;
    }
  });
  for (int64_t bucket = 0; bucket < num_buckets; ++bucket) {
    bucket_rows_[bucket + 1] += bucket_rows_[bucket];
  }
  return "";
}

template <typename T, typename Index>
std::vector<int64_t> TableGradient<T, Index>::SplitBuckets(int64_t parts) const {
  std::vector<int64_t> first(parts + 1, num_buckets());
  first[0] = 0;
  for (int64_t part = 1; part < parts; ++part) {
    const int64_t target = num_entries() / parts * part;
    first[part] = std::lower_bound(bucket_entries_.begin() + first[part - 1],
                                   bucket_entries_.end() - 1, target) -
                  bucket_entries_.begin();
  }
  return first;
}

template <typename T, typename Index>
void TableGradient<T, Index>::Compute(const T* grad, Parallel* parallel, Index* rows,
                                      T* values) const {
  const int64_t size = num_entries();
  const Pool<T, int32_t> pool = ChoosePoolSum<T, int32_t>(width_, weights_ != nullptr);
  const int64_t parts =
      NumParts(*parallel, static_cast<double>(size + num_touched()) * width_ * sizeof(T));
  const std::vector<int64_t> first_bucket = SplitBuckets(parts);
  std::mutex mutex;
  std::vector<std::pair<int64_t, const int64_t*>> giants;
  parallel->Run(parts, [&](int64_t part) {
    for (int64_t bucket = first_bucket[part]; bucket < first_bucket[part + 1]; ++bucket) {
      const int64_t first_row = bucket_rows_[bucket];
      const int64_t count = bucket_rows_[bucket + 1] - first_row;
      const int64_t* const starts = starts_ + FirstStart(bucket);
      std::copy_n(rows_ + bucket_entries_[bucket], count, rows + first_row);
      if (argmax_ != nullptr) {
        ComputeMax(bucket, grad, values + first_row * width_);
        continue;
      }
      PoolArgs<T, int32_t> args{};
      args.table = grad;
      args.num_rows = num_bags_;
      args.width = width_;
      args.ids = bags_;
      args.ids_end = bags_ + size;
      args.weights = weights_;
      for (int64_t row = 0; row < count;) {
        if (starts[row + 1] - starts[row] > kGiant) {
          const std::lock_guard<std::mutex> lock(mutex);
          giants.emplace_back(first_row + row, starts + row);
          ++row;
          continue;
        }
        const int64_t from = row;
        while (row < count && starts[row + 1] - starts[row] <= kGiant) ++row;
        args.bounds = starts + from;
        args.count = row - from;
        args.out = values + (first_row + from) * width_;
        pool(args);
      }
    }
  });
  for (const auto& [row, start] : giants) {
    Bags<int32_t> giant;
    giant.indices = bags_ + start[0];
    giant.num_indices = start[1] - start[0];
    giant.kind = BagKind::kPacked;
    giant.count = 1;
    Weights<T> weights;
    if (weights_ != nullptr) weights.wide = weights_ + start[0];
    PoolBags<T, int32_t>({grad, num_bags_, width_}, giant, weights, Reduction::kSum, parallel,
                         values + row * width_, nullptr);
  }
}

// A bag's gradient goes, element by element, to the row that was the largest.
template <typename T, typename Index>
void TableGradient<T, Index>::ComputeMax(int64_t bucket, const T* grad, T* values) const {
  std::vector<Sum<T>> sums(width_);
  const int64_t* const starts = starts_ + FirstStart(bucket);
  const int64_t count = bucket_rows_[bucket + 1] - bucket_rows_[bucket];
  for (int64_t row = 0; row < count; ++row) {
    std::fill(sums.begin(), sums.end(), Sum<T>(0));
    for (int64_t k = starts[row]; k < starts[row + 1]; ++k) {
      const T* const from = grad + bags_[k] * width_;
      const Index* const argmax = argmax_ + bags_[k] * width_;
      for (int64_t c = 0; c < width_; ++c) {
        if (argmax[c] == positions_[k]) sums[c] += Widen(from[c]);
      }
    }
    for (int64_t c = 0; c < width_; ++c) values[row * width_ + c] = Round<T>(sums[c]);
  }
}

template <typename T, typename Index>
std::string ScatterSub(const Index* indices, int64_t count, const T* values, Sum<T> scale,
                       int64_t num_rows, int64_t width, Parallel* parallel, T* table) {
  constexpr int64_t kAhead = 16;
  constexpr uint64_t kLine = 64;
  bool is_ascending = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = indices[i];
    if (row < 0 || row >= num_rows) {
      return "indices[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", but the variable has " + std::to_string(num_rows) + " rows";
    }
    is_ascending = is_ascending && (i == 0 || indices[i - 1] < row);
  }
  const SubtractScaled<T> subtract = ChooseSubtractScaled<T>();
  const uint64_t row_bytes = width * sizeof(T);
  const int64_t parts =
      is_ascending ? NumParts(*parallel, static_cast<double>(count) * row_bytes * 2) : 1;
  parallel->Run(parts, [&](int64_t part) {
    const int64_t end = count * (part + 1) / parts;
    for (int64_t i = count * part / parts; i < end; ++i) {
      const char* const ahead =
          reinterpret_cast<const char*>(table + indices[std::min(i + kAhead, end - 1)] * width);
      for (uint64_t byte = 0; byte < row_bytes; byte += kLine) __builtin_prefetch(ahead + byte, 1);
      subtract(table + indices[i] * width, values + i * width, scale, width);
    }
  });
  return "";
}

#define TF_TI_POOL(T, Index)                                                                      \
  template std::string PoolBags<T, Index>(const Table<T>&, const Bags<Index>&, const Weights<T>&, \
                                          Reduction, Parallel*, T*, Index*);                      \
  template std::string ScatterSub<T, Index>(const Index*, int64_t, const T*, Sum<T>, int64_t,     \
                                            int64_t, Parallel*, T*);
#define TF_TI_GRADIENTS(T, Index)                                                        \
  template std::string WeightsGradient<T, Index>(const Table<T>&, const Bags<Index>&,    \
                                                 const Weights<T>&, Reduction, const T*, \
                                                 Parallel*, const WeightsOutput<T>&);    \
  template class TableGradient<T, Index>;
#define TF_TI_POOL_BOTH(T) TF_TI_POOL(T, int32_t) TF_TI_POOL(T, int64_t)
#define TF_TI_GRADIENTS_BOTH(T) TF_TI_GRADIENTS(T, int32_t) TF_TI_GRADIENTS(T, int64_t)
TF_TI_NUMBERS(TF_TI_POOL_BOTH)
TF_TI_DIFFERENTIABLE(TF_TI_GRADIENTS_BOTH)

}  // namespace tf_ti
