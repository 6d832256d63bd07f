#include <algorithm>
#include <deque>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/pooling.h"
#include "cc/compute/bags/walk-inl.h"
#include "cc/compute/buffer.h"

namespace tf_ti {
namespace {

// The look-up of one table.
template <typename T, typename Index>
class Pooling {
 public:
  explicit Pooling(const BagLookUp<T, Index>& lookup)
      : table_(lookup.table),
        bags_(lookup.bags),
        weights_(lookup.weights),
        reduction_(lookup.reduction),
        is_staged_(bags_.has_padding || weights_.rounded != nullptr),
        pool_(reduction_ == Reduction::kMax
                  ? ChoosePoolMax<T, Index>(table_.width, lookup.argmax != nullptr)
                  : ChoosePoolSum<T, Index>(table_.width, weights_.given())),
        out_(lookup.out),
        argmax_(lookup.argmax) {}

  // To be called in this order: Start; PoolPart for all bags, in parts that may run at the same
  // time; Finish.
  std::string Start() {
    if (table_.width == 0) return CheckWithoutWalk(bags_, table_.num_rows);
    return CheckOutside(bags_, table_.num_rows, &problem_);
  }

  // `last` is behind the part's last bag.
  void PoolPart(int64_t first, int64_t last) {
    if (table_.width == 0) return;
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

  std::string Finish(Parallel* parallel) {
    for (const Giant& giant : giants_) {
      if (problem_.found()) {
        // There may be an earlier problem.
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
    std::vector<Index> positions;  // of the ids in bags_.indices
  };

  // Where a block's results go.
  struct Outputs {
    T* out = nullptr;
    // In place of `out`, for a single bag: its sum, neither divided nor rounded, and its divisor.
    Sum<T>* sums = nullptr;
    Divisor<Sum<T>>* divisor = nullptr;
    Index* argmax = nullptr;  // where not null, gets the positions of maxima
  };

  // The results of a giant's pieces.
  struct Pieces {
    Pieces(const Giant& giant, int64_t width, Reduction reduction, bool has_argmax)
        : size(PieceOfGiant(giant.end - giant.begin)),
          count(PiecesOfGiant(giant.end - giant.begin)),
          sums(count * width),
          divisors(count, Divisor<Sum<T>>(reduction)),
          is_empty(count),
          positions(has_argmax ? count * width : 0) {}

    const int64_t size;  // the number of ids in each of them; the last may have fewer
    const int64_t count;
    Buffer<Sum<T>> sums;  // [count, width]
    std::vector<Divisor<Sum<T>>> divisors;
    std::vector<char> is_empty;
    Buffer<Index> positions;  // [count, width], or none
  };

  // Reduces a block's bags into `out_`. Returns true if all is well.
  bool Flush(Block* block) {
    if (block->count == 0) return true;
    const int64_t begin = block->first * table_.width;
    Outputs outputs;
    outputs.out = out_ + begin;
    if (argmax_ != nullptr) outputs.argmax = argmax_ + begin;
    const int64_t* const bounds = Pool(block, outputs);
    if (bounds == nullptr) return false;
    for (int64_t b = 0; b < block->count; ++b) {
      if (bounds[b] == bounds[b + 1]) FillEmpty(block->first + b);
    }
    return true;
  }

  // Returns the bounds of a block's bags once padding is left out, or null if there is a problem.
  const int64_t* Pool(Block* block, const Outputs& outputs) {
    PoolArgs<T, Index> args = ArgsFor(block);
    args.out = outputs.out;
    args.sums = outputs.sums;
    args.argmax = outputs.argmax;
    if (HasDivisors(reduction_)) {
      if (outputs.divisor != nullptr) {
        *outputs.divisor = DivisorOf(args, 0);
      } else {
        for (int64_t b = 0; b < block->count; ++b) block->divisors[b] = DivisorOf(args, b).Get();
        args.divisors = block->divisors;
      }
    }
    if (!pool_(args)) {
      CheckIndices(bags_, block->bounds[0], block->bounds[block->count], table_.num_rows,
                   &problem_);
      return nullptr;
    }
    if (is_staged_ && args.argmax != nullptr) {
      for (int64_t k = 0; k < block->count * table_.width; ++k) {
        if (args.argmax[k] >= 0) args.argmax[k] = block->positions[args.argmax[k]];
      }
    }
    return args.bounds;
  }

  // The inputs of the innermost loop.
  PoolArgs<T, Index> ArgsFor(Block* block) const {
    PoolArgs<T, Index> args{};
    args.table = table_.rows;
    args.num_rows = table_.num_rows;
    args.width = table_.width;
    args.count = block->count;
    args.prefetching = RowPrefetching();
    if (is_staged_) {
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
    return args;
  }

  void Stage(Block* block) const {
    block->ids.clear();
    block->weights.clear();
    block->positions.clear();
    block->staged_bounds[0] = 0;
    for (int64_t b = 0; b < block->count; ++b) {
      for (int64_t i = block->bounds[b]; i < block->bounds[b + 1]; ++i) {
        if (IsPadding(bags_, i)) continue;
        block->ids.push_back(bags_.indices[i]);
        if (weights_.given()) block->weights.push_back(WeightAt(weights_, i));
        if (argmax_ != nullptr) block->positions.push_back(static_cast<Index>(i));
      }
      block->staged_bounds[b + 1] = block->ids.size();
    }
  }

  Divisor<Sum<T>> DivisorOf(const PoolArgs<T, Index>& args, int64_t bag) const {
    const int64_t begin = args.bounds[bag], end = args.bounds[bag + 1];
    Divisor<Sum<T>> divisor(reduction_);
    if (args.weights == nullptr) {
      divisor.AddCount(end - begin);
    } else {
      for (int64_t i = begin; i < end; ++i) divisor.AddWeight(args.weights[i]);
    }
    return divisor;
  }

  void PoolGiant(const Giant& giant, Parallel* parallel) {
    const int64_t width = table_.width;
    Pieces pieces(giant, width, reduction_, argmax_ != nullptr);
    parallel->Run(pieces.count, [&](int64_t k) {
      Block block;
      block.count = 1;
      block.bounds[0] = giant.begin + k * pieces.size;
      block.bounds[1] = std::min(block.bounds[0] + pieces.size, giant.end);
      Outputs outputs;
      outputs.sums = pieces.sums.data() + k * width;
      outputs.divisor = &pieces.divisors[k];
      if (argmax_ != nullptr) outputs.argmax = pieces.positions.data() + k * width;
      const int64_t* const bounds = Pool(&block, outputs);
      pieces.is_empty[k] = bounds == nullptr || bounds[0] == bounds[1];
    });
    if (!problem_.found()) Combine(pieces, giant.bag);
  }

  void Combine(const Pieces& pieces, int64_t bag) {
    const int64_t width = table_.width;
    T* const out = out_ + bag * width;
    Index* const argmax = argmax_ == nullptr ? nullptr : argmax_ + bag * width;
    const auto& is_empty = pieces.is_empty;
    const int64_t first = std::find(is_empty.begin(), is_empty.end(), 0) - is_empty.begin();
    if (first == pieces.count) {
      std::fill(out, out + width, T());
      FillEmpty(bag);
      if (argmax != nullptr) std::fill(argmax, argmax + width, Index(-1));
      return;
    }
    Divisor<Sum<T>> divisors = pieces.divisors[0];
    for (int64_t k = 1; k < pieces.count; ++k) divisors.Add(pieces.divisors[k]);
    const Sum<T> divisor = divisors.Get();
    for (int64_t c = 0; c < width; ++c) {
      Sum<T> value = pieces.sums[first * width + c];
      int64_t from = first;
      for (int64_t k = first + 1; k < pieces.count; ++k) {
        if (is_empty[k]) continue;
        const Sum<T> other = pieces.sums[k * width + c];
        if (reduction_ != Reduction::kMax) {
          value = AddSums(value, other);
        } else if (IsLarger(other, value)) {
          value = other;
          from = k;
        }
      }
      out[c] = Round<T>(HasDivisors(reduction_) ? DivideNoNan(value, divisor) : value);
      if (argmax != nullptr) argmax[c] = pieces.positions[from * width + c];
    }
  }

  // Returns true if x takes the place of the maximum so far. Once NaN, always NaN.
  static bool IsLarger(Sum<T> x, Sum<T> so_far) {
    if constexpr (IsComplex<T>::value) {
      return false;
    } else {
      return so_far == so_far && !(x <= so_far);
    }
  }

  void FillEmpty(int64_t bag) {
    if (bags_.default_index < 0) return;
    const T* const row = table_.rows + bags_.default_index * table_.width;
    std::copy(row, row + table_.width, out_ + bag * table_.width);
  }

  const Table<T>& table_;
  const Bags<Index>& bags_;
  const Weights<T>& weights_;
  const Reduction reduction_;
  const bool is_staged_;  // true if ids and weights cannot be used as they are
  const PoolRows<T, Index> pool_;
  T* const out_;
  Index* const argmax_;
  Problem problem_;
  std::mutex mutex_;
  std::vector<Giant> giants_;
};

// The begin of a part of several look-ups.
struct Place {
  size_t lookup;
  int64_t bag;
};

// The places of `parts` parts that move about the same number of bytes, and the end.
template <typename T, typename Index>
std::vector<Place> SplitLookUps(const BagLookUp<T, Index>* lookups, size_t count, int64_t parts) {
  std::vector<double> before(count + 1);
  for (size_t k = 0; k < count; ++k) {
    before[k + 1] = before[k] + SizeOf(lookups[k].bags) * BytesOfRow<T>(lookups[k].table.width);
  }
  std::vector<Place> places = {{0, 0}};
  for (int64_t part = 1; part < parts; ++part) {
    Place place = places.back();
    const double bytes = before[count] * part / parts;
    while (place.lookup + 1 < count && before[place.lookup + 1] <= bytes) {
      place = {place.lookup + 1, 0};
    }
    const BagLookUp<T, Index>& lookup = lookups[place.lookup];
    const double size = (bytes - before[place.lookup]) / BytesOfRow<T>(lookup.table.width);
    place.bag = FindBag(lookup.bags, static_cast<int64_t>(size), place.bag);
    places.push_back(place);
  }
  places.push_back({count - 1, lookups[count - 1].bags.count});
  return places;
}

// The look-ups of several tables.
template <typename T, typename Index>
class Poolings {
 public:
  std::string Run(const BagLookUp<T, Index>* lookups, size_t count, Parallel* parallel) {
    double bytes = 0;
    for (size_t k = 0; k < count; ++k) {
      const std::string problem = Start(lookups[k]);
      if (!problem.empty()) return OfTable(lookups[k].number, problem);
      bytes += BytesOf<T>(lookups[k].bags, lookups[k].table.width);
    }
    if (count == 0) return "";
    const int64_t parts = NumParts(*parallel, bytes);
    const std::vector<Place> places = SplitLookUps(lookups, count, parts);
    parallel->Run(parts, [&](int64_t part) {
      const Place first = places[part], last = places[part + 1];
      for (size_t i = first.lookup; i <= last.lookup; ++i) {
        poolings_[i].PoolPart(i == first.lookup ? first.bag : 0,
                              i == last.lookup ? last.bag : lookups[i].bags.count);
      }
    });
    for (size_t k = 0; k < count; ++k) {
      const std::string problem = poolings_[k].Finish(parallel);
      if (!problem.empty()) return OfTable(lookups[k].number, problem);
    }
    return "";
  }

 private:
  std::string Start(const BagLookUp<T, Index>& lookup) {
    const Bags<Index>& bags = lookup.bags;
    if (lookup.argmax != nullptr && bags.num_indices > std::numeric_limits<Index>::max()) {
      return "there are " + std::to_string(bags.num_indices) + " indices: they must be int64";
    }
    return poolings_.emplace_back(lookup).Start();
  }

  std::deque<Pooling<T, Index>> poolings_;
};

}  // namespace

template <typename T, typename Index>
std::string PoolBags(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                     Reduction reduction, Parallel* parallel, T* out, Index* argmax) {
  const BagLookUp<T, Index> lookup{table, bags, weights, reduction, out, argmax};
  return Poolings<T, Index>().Run(&lookup, 1, parallel);
}

template <typename T, typename Index>
std::string PoolBags(const std::vector<BagLookUp<T, Index>>& lookups, Parallel* parallel) {
  return Poolings<T, Index>().Run(lookups.data(), lookups.size(), parallel);
}

#define TF_TI_POOL(T, Index)                                                                      \
  template std::string PoolBags<T, Index>(const Table<T>&, const Bags<Index>&, const Weights<T>&, \
                                          Reduction, Parallel*, T*, Index*);                      \
  template std::string PoolBags<T, Index>(const std::vector<BagLookUp<T, Index>>&, Parallel*);
#define TF_TI_POOL_BOTH(T) TF_TI_POOL(T, int32_t) TF_TI_POOL(T, int64_t)
TF_TI_NUMBERS(TF_TI_POOL_BOTH)

}  // namespace tf_ti
