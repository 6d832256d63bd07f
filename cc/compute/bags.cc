#include "cc/compute/bags.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <complex>
#include <limits>
#include <mutex>
#include <utility>

#include "cc/compute/pooling.h"

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
    return "indices[" + std::to_string(position_) + "] is " +
           std::to_string(bags.indices[position_]) + ", but emb_table has " +
           std::to_string(num_rows) + " rows";
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
  if (bags.default_index < -1 || bags.default_index >= num_rows) {
    if (bags.default_index < -1) {
      return "default_index is " + std::to_string(bags.default_index) +
             "; it must be a row of emb_table, or -1";
    }
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

// What a bag's sum is divided by, before the root: the sum of these over its ids.
template <typename S>
S DivisorTerm(Reduction reduction, S weight) {
  return reduction == Reduction::kSqrtN ? MultiplySums(weight, weight) : weight;
}

template <typename S>
S FinishDivisor(Reduction reduction, S divisor) {
  if constexpr (!std::is_integral_v<S>) {
    if (reduction == Reduction::kSqrtN) return std::sqrt(divisor);
  }
  return divisor;
}

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
    const int64_t row_bytes = std::max<int64_t>(table_.width * sizeof(T), 16);
    const int64_t parts = NumParts(*parallel, (bags_.num_indices + bags_.count) * row_bytes);
    const std::vector<int64_t> first = SplitBags(bags_, parts);
    parallel->Run(parts, [&](int64_t part) { PoolPart(first[part], first[part + 1]); });
    if (!problem_.found()) {
      for (const Giant& giant : giants_) PoolGiant(giant, parallel);
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
    while (walk.Next()) {
      const bool is_giant = walk.end() - walk.begin() > kGiant;
      if ((block.count == kBlock || is_giant) && !Flush(&block)) return;
      if (is_giant) {
        const std::lock_guard<std::mutex> lock(mutex_);
        giants_.push_back({walk.bag(), walk.begin(), walk.end()});
        continue;
      }
      if (block.count == 0) {
        block.first = walk.bag();
        block.bounds[0] = walk.begin();
      }
      block.bounds[++block.count] = walk.end();
    }
    if (!walk.ok()) return problem_.InBounds();
    Flush(&block);
  }

  // Reduces a block's bags into `out_`. Returns whether all is well.
  bool Flush(Block* block) {
    if (block->count == 0) return true;
    T* const out = out_ + block->first * table_.width;
    const int64_t* const bounds = Pool(block, out, nullptr);
    if (bounds == nullptr) return false;
    for (int64_t b = 0; b < block->count; ++b) {
      if (bounds[b] == bounds[b + 1]) FillEmpty(block->first + b);
      if (argmax_ != nullptr) {
        FindArgmax(block->first + b, block->bounds[b], block->bounds[b + 1]);
      }
    }
    block->count = 0;
    return true;
  }

  // Reduces a block's bags into `out`, or, undivided, into `sums`. Returns where the bags really
  // begin and end once padding is left out, or null if there is a problem.
  const int64_t* Pool(Block* block, T* out, Sum<T>* sums) {
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
        Sum<T> divisor(0);
        if (args.weights == nullptr) {
          divisor = static_cast<Sum<T>>(end - begin);
        } else {
          for (int64_t i = begin; i < end; ++i) {
            divisor = AddSums(divisor, DivisorTerm(reduction_, args.weights[i]));
          }
        }
        block->divisors[b] = sums == nullptr ? FinishDivisor(reduction_, divisor) : divisor;
      }
      if (sums == nullptr) args.divisors = block->divisors;
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
    std::vector<Sum<T>> divisors(count);
    std::vector<char> is_empty(count);
    parallel->Run(count, [&](int64_t k) {
      Block block;
      block.count = 1;
      block.bounds[0] = giant.begin + k * piece;
      block.bounds[1] = std::min(block.bounds[0] + piece, giant.end);
      const int64_t* const bounds = Pool(&block, nullptr, sums.data() + k * width);
      is_empty[k] = bounds == nullptr || bounds[0] == bounds[1];
      if (HasDivisors(reduction_)) divisors[k] = block.divisors[0];
    });
    if (problem_.found()) return;

    T* const out = out_ + giant.bag * width;
    const int64_t first = std::find(is_empty.begin(), is_empty.end(), 0) - is_empty.begin();
    if (first == count) {
      std::fill(out, out + width, T());
      FillEmpty(giant.bag);
    } else {
      Sum<T> divisor(0);
      for (int64_t k = first; k < count; ++k) {
        divisor = AddSums(divisor, divisors[k]);
      }
      divisor = FinishDivisor(reduction_, divisor);
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
    const int64_t row_bytes = std::max<int64_t>(table_.width * sizeof(T), 16);
    const int64_t parts = NumParts(*parallel, (bags_.num_indices + bags_.count) * row_bytes);
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
    Sum<T> total(0), divisor(0);
    for (int64_t i = begin; i < end; ++i) {
      Prefetch(bags_.indices[std::min(i + kAhead, bags_.num_indices - 1)]);
      if (IsPadding(bags_, i)) continue;
      const Sum<T> dot = dot_(table_.rows + bags_.indices[i] * table_.width, grad, table_.width);
      (*dots)[i - begin] = dot;
      if (HasDivisors(reduction_)) {
        const Sum<T> weight = WeightAt(weights_, i);
        total = AddSums(total, MultiplySums(weight, dot));
        divisor = AddSums(divisor, DivisorTerm(reduction_, weight));
      }
    }
    divisor = FinishDivisor(reduction_, divisor);
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

// Sorts keys by the digits above their lowest `low_bits` bits, `num_bits` in all; keys that agree
// in these keep their order.
template <typename Key>
void RadixSort(int low_bits, int num_bits, int64_t size, Parallel* parallel, Buffer<Key>* keys) {
  constexpr int kMostDigitBits = 11;
  constexpr int64_t kSmallestPart = 16384;
  const int passes = (num_bits + kMostDigitBits - 1) / kMostDigitBits;
  if (passes == 0) return;
  const int digit_bits = (num_bits + passes - 1) / passes;
  const int64_t num_digits = int64_t{1} << digit_bits;
  const int64_t parts = std::min(parallel->num_threads(), size / kSmallestPart + 1);
  std::vector<int64_t> places(parts * num_digits);
  Buffer<Key> sorted(size);
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = low_bits + pass * digit_bits;
    const auto digit = [&](Key key) {
      return static_cast<int64_t>(key >> shift) & (num_digits - 1);
    };
    Key* const from = keys->data();
    Key* const to = sorted.data();
    parallel->Run(parts, [&](int64_t part) {
      int64_t* const counts = &places[part * num_digits];
      std::fill(counts, counts + num_digits, 0);
      for (int64_t i = size * part / parts; i < size * (part + 1) / parts; ++i) {
        ++counts[digit(from[i])];
      }
    });
    int64_t place = 0;
    for (int64_t d = 0; d < num_digits; ++d) {
      for (int64_t part = 0; part < parts; ++part) {
        place += std::exchange(places[part * num_digits + d], place);
      }
    }
    parallel->Run(parts, [&](int64_t part) {
      int64_t* const next = &places[part * num_digits];
      for (int64_t i = size * part / parts; i < size * (part + 1) / parts; ++i) {
        to[next[digit(from[i])]++] = from[i];
      }
    });
    std::swap(*keys, sorted);
  }
}

// The number of bits that numbers below `limit` need.
int BitsFor(uint64_t limit) {
  int bits = 0;
  while (bits < 64 && limit > uint64_t{1} << bits) ++bits;
  return bits;
}

// The bags that pool what goes to each row: their table is the bags' gradients.
template <typename Index>
Bags<int64_t> EntriesByRow(const Buffer<Index>& rows, const Buffer<int64_t>& starts,
                           const Buffer<int64_t>& bags) {
  Bags<int64_t> entries;
  entries.indices = bags.data();
  entries.num_indices = bags.size();
  entries.bounds = starts.data();
  entries.include_last_offset = true;
  entries.count = rows.size();
  return entries;
}

}  // namespace

template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Parallel* parallel, T* out, Index* argmax) {
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
  starts_ = Buffer<int64_t>(1);
  starts_[0] = 0;
  if (width == 0) return CheckWithoutWalk(bags, num_rows);
  Problem problem;
  const std::string wrong = CheckOutside(bags, num_rows, &problem);
  if (!wrong.empty()) return wrong;
  const int64_t parts = NumParts(*parallel, (bags.num_indices + bags.count) * sizeof(Index) * 4);
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
  const bool fits = BitsFor(num_rows) + BitsFor(first_entry[parts]) <= 64;
  return fits ? SortEntries<uint64_t>(bags, weights, reduction, num_rows, first_bag, first_entry,
                                      parallel)
              : SortEntries<unsigned __int128>(bags, weights, reduction, num_rows, first_bag,
                                               first_entry, parallel);
}

// A key is a row, and in its lowest bits the number of the entry in the order of the bags.
template <typename T, typename Index>
template <typename Key>
std::string TableGradient<T, Index>::SortEntries(const Bags<Index>& bags, const Weights<T>& weights,
                                                 Reduction reduction, int64_t num_rows,
                                                 const std::vector<int64_t>& first_bag,
                                                 const std::vector<int64_t>& first_entry,
                                                 Parallel* parallel) {
  const int64_t size = first_entry.back();
  const int entry_bits = BitsFor(size);
  const bool has_weights = weights.given() || HasDivisors(reduction);
  const bool has_positions = reduction == Reduction::kMax;
  Buffer<Key> keys(size);
  Buffer<int64_t> bag_of(size);
  Buffer<Sum<T>> weight_of(has_weights ? size : 0);
  Buffer<int64_t> position_of(has_positions ? size : 0);
  Problem problem;
  parallel->Run(first_bag.size() - 1, [&](int64_t part) {
    int64_t entry = first_entry[part];
    const auto add = [&](int64_t row, int64_t bag, Sum<T> weight, int64_t position) {
      keys[entry] = static_cast<Key>(row) << entry_bits | static_cast<Key>(entry);
      bag_of[entry] = bag;
      if (has_weights) weight_of[entry] = weight;
      if (has_positions) position_of[entry] = position;
      ++entry;
    };
    BagWalk<Index> walk(bags, first_bag[part], first_bag[part + 1]);
    while (walk.Next()) {
      if (!CheckIndices(bags, walk.begin(), walk.end(), num_rows, &problem)) return;
      const int64_t before = entry;
      Sum<T> divisor(0);
      for (int64_t i = walk.begin(); i < walk.end(); ++i) {
        if (IsPadding(bags, i)) continue;
        const Sum<T> weight = weights.given() ? WeightAt(weights, i) : Sum<T>(1);
        if (weights.given()) divisor += DivisorTerm(reduction, weight);
        add(bags.indices[i], walk.bag(), weight, i);
      }
      if (HasDivisors(reduction)) {
        if (!weights.given()) divisor = static_cast<Sum<T>>(entry - before);
        divisor = FinishDivisor(reduction, divisor);
        for (int64_t e = before; e < entry; ++e) {
          weight_of[e] = DivideNoNan(weight_of[e], divisor);
        }
      }
      if (entry == before && bags.default_index >= 0) {
        add(bags.default_index, walk.bag(), Sum<T>(1), -1);
      }
    }
  });
  if (problem.found()) return problem.Describe(bags, num_rows);
  RadixSort(entry_bits, BitsFor(num_rows), size, parallel, &keys);

  const int64_t parts = NumParts(*parallel, size * sizeof(Key) * 2);
  const auto begins_row = [&](int64_t k) {
    return k == 0 || keys[k] >> entry_bits != keys[k - 1] >> entry_bits;
  };
  std::vector<int64_t> first_row(parts + 1, 0);
  parallel->Run(parts, [&](int64_t part) {
    int64_t count = 0;
    for (int64_t k = size * part / parts; k < size * (part + 1) / parts; ++k) {
      count += begins_row(k);
    }
    first_row[part + 1] = count;
  });
  for (int64_t part = 0; part < parts; ++part) first_row[part + 1] += first_row[part];
  rows_ = Buffer<Index>(first_row[parts]);
  starts_ = Buffer<int64_t>(first_row[parts] + 1);
  starts_[first_row[parts]] = size;
  bags_ = Buffer<int64_t>(size);
  weights_ = Buffer<Sum<T>>(weight_of.size());
  positions_ = Buffer<int64_t>(position_of.size());
  parallel->Run(parts, [&](int64_t part) {
    int64_t row = first_row[part];
    for (int64_t k = size * part / parts; k < size * (part + 1) / parts; ++k) {
      if (begins_row(k)) {
        rows_[row] = static_cast<Index>(keys[k] >> entry_bits);
        starts_[row++] = k;
      }
      const int64_t entry = static_cast<int64_t>(keys[k] & ((Key{1} << entry_bits) - 1));
      bags_[k] = bag_of[entry];
      if (has_weights) weights_[k] = weight_of[entry];
      if (has_positions) positions_[k] = position_of[entry];
    }
  });
  return "";
}

template <typename T, typename Index>
void TableGradient<T, Index>::Compute(const T* grad, Parallel* parallel, T* values) const {
  if (argmax_ != nullptr) return ComputeMax(grad, parallel, values);
  Weights<T> weights;
  if (weights_.size() > 0) weights.wide = weights_.data();
  PoolBags<T, int64_t>({grad, num_bags_, width_}, EntriesByRow(rows_, starts_, bags_), weights,
                       Reduction::kSum, parallel, values, nullptr);
}

// A bag's gradient goes, element by element, to the row that was the largest.
template <typename T, typename Index>
void TableGradient<T, Index>::ComputeMax(const T* grad, Parallel* parallel, T* values) const {
  const Bags<int64_t> entries = EntriesByRow(rows_, starts_, bags_);
  const int64_t parts = NumParts(*parallel, bags_.size() * width_ * sizeof(T));
  const std::vector<int64_t> first = SplitBags(entries, parts);
  parallel->Run(parts, [&](int64_t part) {
    std::vector<Sum<T>> sums(width_);
    for (int64_t row = first[part]; row < first[part + 1]; ++row) {
      std::fill(sums.begin(), sums.end(), Sum<T>(0));
      for (int64_t k = starts_[row]; k < starts_[row + 1]; ++k) {
        const T* const from = grad + bags_[k] * width_;
        const Index* const argmax = argmax_ + bags_[k] * width_;
        for (int64_t c = 0; c < width_; ++c) {
          if (argmax[c] == positions_[k]) sums[c] += Widen(from[c]);
        }
      }
      for (int64_t c = 0; c < width_; ++c) values[row * width_ + c] = Round<T>(sums[c]);
    }
  });
}

#define TF_TI_POOL(T, Index)                                                                      \
  template std::string PoolBags<T, Index>(const Table<T>&, const Bags<Index>&, const Weights<T>&, \
                                          Reduction, Parallel*, T*, Index*);
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
