#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/pooling.h"
#include "cc/compute/bags/walk-inl.h"
#include "cc/compute/buffer.h"

namespace tf_ti {
namespace {

// The distance of prefetches: rows, or gradients of bags, are prefetched so many ahead.
constexpr int64_t kAhead = 8;

// The address may be any: a prefetch never faults.
inline void Prefetch(const void* from, uint64_t bytes) {
  constexpr uint64_t kLine = 64, kMost = 1024;
  for (uint64_t byte = 0; byte < std::min(bytes, kMost); byte += kLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(from) + byte);
  }
}

// One call of WeightsGradient. With d_i the dot product of row i and the bag's gradient, and D the
// divisor of the bag's sum, it is d_i for a sum, (d_i - sum(w d) / D) / D for a mean, and (d_i -
// w_i sum(w d) / D^2) / D for kSqrtN.
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
    // Indices in no bag have no influence.
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
  void ComputeBag(int64_t bag, int64_t begin, int64_t end, std::vector<Sum<T>>* dots) {
    const T* const grad = grad_ + bag * table_.width;
    dots->resize(end - begin);
    Sum<T> total(0);
    Divisor<Sum<T>> divisors(reduction_);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t next = bags_.indices[std::min(i + kAhead, bags_.num_indices - 1)];
      Prefetch(table_.rows + next * table_.width, table_.width * sizeof(T));
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
// their order. Returns the place of the result: `keys`, or `other`, which is as large.
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

// Groups the columns of a bag's maxima by their positions in argmax: those of group g are
// columns[starts[g]] ... columns[starts[g + 1] - 1]. Group 0 is of no index; group 1 + i is of the
// bag's index i, at position begin + i. Columns from anywhere else come last.
template <typename Index>
void GroupColumns(const Index* argmax, int64_t width, int64_t begin, int64_t size,
                  std::vector<int32_t>* starts, int32_t* columns) {
  const auto group = [=](int64_t column) {
    const int64_t position = argmax[column];
    const uint64_t index = static_cast<uint64_t>(position) - static_cast<uint64_t>(begin);
    const int64_t other = position == -1 ? 0 : size + 1;
    return index < static_cast<uint64_t>(size) ? static_cast<int64_t>(index) + 1 : other;
  };
  starts->assign(size + 4, 0);
  int32_t* const next = starts->data() + 1;  // where the next column of each group goes
  for (int64_t column = 0; column < width; ++column) ++next[group(column) + 1];
  for (int64_t g = 1; g <= size + 1; ++g) next[g] += next[g - 1];
  for (int64_t column = 0; column < width; ++column) {
    columns[next[group(column)]++] = static_cast<int32_t>(column);
  }
}

// Hands out parts of one piece of memory. An allocator that gets one piece back has it ready for
// the next call; several would be returned to the system and cleared again.
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

// The bytes that sorting moves for an entry, roughly.
constexpr int64_t kEntryBytes = 32;

// The same for grouping a column of a maximum.
constexpr int64_t kColumnBytes = 16;

// The number of bits that numbers below `limit` need.
int BitsFor(uint64_t limit) {
  int bits = 0;
  while (bits < 64 && limit > uint64_t{1} << bits) ++bits;
  return bits;
}

}  // namespace

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
  if (width == 0) return CheckWithoutWalk(bags, num_rows);
  if (bags.count > std::numeric_limits<int32_t>::max()) {
    return "there are " + std::to_string(bags.count) + " bags, too many for a gradient";
  }
  if (reduction == Reduction::kMax && width > std::numeric_limits<int32_t>::max()) {
    return "rows have " + std::to_string(width) + " elements, too many for a gradient of maxima";
  }
  Problem problem;
  const std::string wrong = CheckOutside(bags, num_rows, &problem);
  if (!wrong.empty()) return wrong;
  // No more parts than threads: a part writes its entries of a bucket side by side, and should fill
  // cache lines of its own with them.
  double bytes = static_cast<double>(bags.num_indices + bags.count) * kEntryBytes;
  if (reduction == Reduction::kMax) bytes += static_cast<double>(bags.count) * width * kColumnBytes;
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
  // A key is a row, and in its lowest bits the entry's bag. Where more than the bag is needed, it
  // is the number of the entry in the order of the bags.
  const bool is_plain = !weights.given() && !HasDivisors(reduction) && reduction != Reduction::kMax;
  const int payload_bits = BitsFor(is_plain ? bags.count : first_entry[parts]);
  const int bits = BitsFor(num_rows) + payload_bits;
  const auto sort = bits <= 32 && payload_bits < 32 ? &TableGradient::SortEntries<uint32_t>
                    : bits <= 64 && payload_bits < 64
                        ? &TableGradient::SortEntries<uint64_t>
                        : &TableGradient::SortEntries<unsigned __int128>;
  return (this->*sort)(bags, weights, reduction, argmax, num_rows, first_bag, first_entry,
                       payload_bits, parallel);
}

template <typename T, typename Index>
template <typename Key>
std::string TableGradient<T, Index>::SortEntries(const Bags<Index>& bags, const Weights<T>& weights,
                                                 Reduction reduction, const Index* argmax,
                                                 int64_t num_rows,
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
  const bool is_max = reduction == Reduction::kMax;
  const bool is_plain = !has_weights && !is_max;

  Key *keys, *partitioned;
  int32_t* bag_of;
  Sum<T>* weight_of;
  Won* won_by;
  Buffer<char> scratch;
  Parts scratch_parts(&scratch);
  scratch_parts.Add(size, &keys);
  scratch_parts.Add(size, &partitioned);
  scratch_parts.Add(is_plain ? 0 : size, &bag_of);
  scratch_parts.Add(has_weights ? size : 0, &weight_of);
  scratch_parts.Add(is_max ? size : 0, &won_by);
  scratch_parts.Allocate();
  Parts memory_parts(&memory_);
  memory_parts.Add(size, &rows_);
  memory_parts.Add(size + num_buckets, &starts_);
  memory_parts.Add(size, &bags_);
  if (has_weights) memory_parts.Add(size, &weights_);
  if (is_max) {
    memory_parts.Add(size, &won_);
    memory_parts.Add(bags.count * width_, &columns_);
  }
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
    // Captures by value: the compiler would load a reference again after each store.
    const auto add = [=](int64_t row, int64_t entry, int64_t bag, Sum<T> weight) {
      const Key payload = static_cast<Key>(is_plain ? bag : entry);
      const Key key = static_cast<Key>(row) << payload_bits | payload;
      keys[entry] = key;
      ++counts[bucket_of(key)];
      if (is_plain) return;
      bag_of[entry] = static_cast<int32_t>(bag);
      if (has_weights) weight_of[entry] = weight;
    };
    std::vector<int32_t> groups;  // where the columns of each index of a bag begin
    const auto set_won = [&](int64_t entry, int64_t group) {
      if (is_max) won_by[entry] = {groups[group], groups[group + 1]};
    };
    const Index* const indices = bags.indices;
    const bool has_padding = bags.has_padding;
    BagWalk<Index> walk(bags, first_bag[part], first_bag[part + 1]);
    while (walk.Next()) {
      const int64_t before = entry;
      const int64_t bag = walk.bag(), end = walk.end();
      Divisor<Sum<T>> divisors(reduction);
      if (is_max) {
        GroupColumns(argmax + bag * width_, width_, walk.begin(), end - walk.begin(), &groups,
                     columns_ + bag * width_);
      }
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
        set_won(entry, 1 + i - walk.begin());
        add(row, entry++, bag, weight);
      }
      if (HasDivisors(reduction)) {
        if (!weights.given()) divisors.AddCount(entry - before);
        const Sum<T> divisor = divisors.Get();
        for (int64_t e = before; e < entry; ++e) weight_of[e] = DivideNoNan(weight_of[e], divisor);
      }
      if (entry == before && bags.default_index >= 0) {
        set_won(entry, 0);
        add(bags.default_index, entry++, bag, Sum<T>(1));
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
        if (is_max) won_[k] = won_by[payload];
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
  const double bytes = static_cast<double>(num_entries() + num_touched()) * width_ * sizeof(T);
  VisitRuns(parallel, bytes, [&](const RowRun<Index>& run) {
    std::copy_n(run.rows, run.count, rows + run.first);
    Pool(run, 0, run.count, grad, parallel, values + run.first * width_, nullptr);
  });
}

template <typename T, typename Index>
void TableGradient<T, Index>::VisitRuns(
    Parallel* parallel, double bytes,
    const std::function<void(const RowRun<Index>&)>& visit) const {
  const int64_t parts = NumParts(*parallel, bytes);
  const std::vector<int64_t> first_bucket = SplitBuckets(parts);
  std::mutex mutex;
  std::vector<RowRun<Index>> giants;
  parallel->Run(parts, [&](int64_t part) {
    for (int64_t bucket = first_bucket[part]; bucket < first_bucket[part + 1]; ++bucket) {
      const int64_t first_row = bucket_rows_[bucket];
      const int64_t count = bucket_rows_[bucket + 1] - first_row;
      const int64_t* const starts = starts_ + FirstStart(bucket);
      const Index* const rows = rows_ + bucket_entries_[bucket];
      const auto is_giant = [&](int64_t row) {
        return columns_ == nullptr && starts[row + 1] - starts[row] > kGiant;
      };
      for (int64_t row = 0; row < count;) {
        const int64_t from = row;
        RowRun<Index> run{rows + from, first_row + from, starts + from, 1, bags_, is_giant(from)};
        if (run.is_giant) {
          const std::lock_guard<std::mutex> lock(mutex);
          giants.push_back(run);
          ++row;
          continue;
        }
        while (row < count && !is_giant(row)) ++row;
        run.count = row - from;
        visit(run);
      }
    }
  });
  for (const RowRun<Index>& run : giants) visit(run);
}

template <typename T, typename Index>
void TableGradient<T, Index>::Pool(const RowRun<Index>& run, int64_t from, int64_t count,
                                   const T* grad, Parallel* parallel, T* values,
                                   Sum<T>* sums) const {
  if (columns_ != nullptr) return PoolMax(run, from, count, grad, values, sums);
  const auto pool = [&](const int64_t* bounds, int64_t size, T* out, Sum<T>* out_sums) {
    PoolArgs<T, int32_t> args{};
    args.table = grad;
    args.num_rows = num_bags_;
    args.width = width_;
    args.ids = bags_;
    args.ids_end = bags_ + num_entries();
    args.weights = weights_;
    args.bounds = bounds;
    args.count = size;
    args.out = out;
    args.sums = out_sums;
    ChoosePoolSum<T, int32_t>(width_, weights_ != nullptr)(args);
  };
  if (!run.is_giant) return pool(run.starts + from, count, values, sums);
  const int64_t begin = run.starts[0], end = run.starts[1];
  const int64_t piece = PieceOfGiant(end - begin), pieces = (end - begin + piece - 1) / piece;
  Buffer<Sum<T>> piece_sums(pieces * width_);
  parallel->Run(pieces, [&](int64_t k) {
    const int64_t bounds[2] = {begin + k * piece, std::min(begin + (k + 1) * piece, end)};
    pool(bounds, 1, nullptr, piece_sums.data() + k * width_);
  });
  for (int64_t c = 0; c < width_; ++c) {
    Sum<T> sum = piece_sums[c];
    for (int64_t k = 1; k < pieces; ++k) sum = AddSums(sum, piece_sums[k * width_ + c]);
    if (sums != nullptr) {
      sums[c] = sum;
    } else {
      values[c] = Round<T>(sum);
    }
  }
}

// The gradient of a bag goes, element by element, to the row that had the maximum.
template <typename T, typename Index>
void TableGradient<T, Index>::PoolMax(const RowRun<Index>& run, int64_t from, int64_t count,
                                      const T* grad, T* values, Sum<T>* sums) const {
  const AddColumns<T> add_columns = ChooseAddColumns<T>();
  const RoundRow<T> round = ChooseRoundRow<T>();
  if constexpr (std::is_same_v<T, Sum<T>>) {
    if (sums == nullptr) sums = values;
  }
  Buffer<Sum<T>> row_sums(sums == nullptr ? width_ : 0);
  for (int64_t row = 0; row < count; ++row) {
    Sum<T>* const to = sums == nullptr ? row_sums.data() : sums + row * width_;
    std::fill_n(to, width_, Sum<T>(0));
    for (int64_t k = run.starts[from + row]; k < run.starts[from + row + 1]; ++k) {
      const int64_t ahead = std::min(k + kAhead, num_entries() - 1);
      Prefetch(grad + bags_[ahead] * width_, width_ * sizeof(T));
      __builtin_prefetch(columns_ + bags_[ahead] * width_ + won_[ahead].begin);
      const int64_t begin = bags_[k] * width_;
      add_columns(grad + begin, columns_ + begin + won_[k].begin, won_[k].end - won_[k].begin, to);
    }
    if (sums == nullptr) round(to, width_, values + row * width_);
  }
}

#define TF_TI_GRADIENTS(T, Index)                                                        \
  template std::string WeightsGradient<T, Index>(const Table<T>&, const Bags<Index>&,    \
                                                 const Weights<T>&, Reduction, const T*, \
                                                 Parallel*, const WeightsOutput<T>&);    \
  template class TableGradient<T, Index>;
#define TF_TI_GRADIENTS_BOTH(T) TF_TI_GRADIENTS(T, int32_t) TF_TI_GRADIENTS(T, int64_t)
TF_TI_DIFFERENTIABLE(TF_TI_GRADIENTS_BOTH)

}  // namespace tf_ti
