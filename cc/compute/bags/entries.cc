#include "cc/compute/bags/entries.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/walk-inl.h"

namespace tf_ti {
namespace {

// Sorts a few keys, whose lowest bits ascend already: so whole keys may be compared.
template <typename Key>
void SortFew(int64_t size, Key* keys) {
  for (int64_t i = 1; i < size; ++i) {
    const Key key = keys[i];
    int64_t k = i;
    for (; k > 0 && keys[k - 1] > key; --k) keys[k] = keys[k - 1];
    keys[k] = key;
  }
}

// Sorts keys by the `num_bits` bits above their lowest `low_bits`, which ascend already; keys that
// agree in the bits above keep their order. Returns the place of the result: `keys`, or `other`,
// which is as large.
template <typename Key>
Key* SortKeys(int low_bits, int num_bits, int64_t size, Key* keys, Key* other) {
  constexpr int64_t kSmall = 24;
  constexpr int kMostDigitBits = 11;
  if (size <= kSmall) {
    SortFew(size, keys);
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

// The arguments of MakeEntries.
template <typename T, typename Index>
struct Inputs {
  const Bags<Index>& bags;
  const Weights<T>& weights;
  Reduction reduction;
  const Index* argmax;
  int64_t num_rows;
  int64_t width;

  bool is_max() const { return reduction == Reduction::kMax; }
  bool has_weights() const { return weights.given() || HasDivisors(reduction); }
  // True if nothing but the bag of an entry is needed.
  bool is_plain() const { return !has_weights() && !is_max(); }
};

// Parts of the bags, and of their entries: the first one of each part, and their number.
struct PartBegins {
  std::vector<int64_t> bags;
  std::vector<int64_t> entries;

  int64_t count() const { return bags.size() - 1; }
};

// Splits the bags, checks their bounds, and counts the entries of each part.
template <typename T, typename Index>
PartBegins CountEntries(const Inputs<T, Index>& inputs, Parallel* parallel, Problem* problem) {
  const Bags<Index>& bags = inputs.bags;
  // No more parts than threads: a part writes its entries of a bucket side by side, and should fill
  // cache lines of its own with them.
  double bytes = static_cast<double>(bags.num_indices + bags.count) * kEntryBytes;
  if (inputs.is_max()) bytes += static_cast<double>(bags.count) * inputs.width * kColumnBytes;
  const int64_t parts = std::min(parallel->num_threads(), NumParts(*parallel, bytes));
  PartBegins begins{SplitBags(bags, parts), std::vector<int64_t>(parts + 1, 0)};
  parallel->Run(parts, [&](int64_t part) {
    int64_t count = 0;
    BagWalk<Index> walk(bags, begins.bags[part], begins.bags[part + 1]);
    while (walk.Next()) {
      int64_t size = walk.end() - walk.begin();
      for (int64_t i = walk.begin(); bags.has_padding && i < walk.end(); ++i) {
        size -= IsPadding(bags, i);
      }
      count += size == 0 && bags.default_index >= 0 ? 1 : size;
    }
    if (!walk.ok()) problem->InBounds();
    begins.entries[part + 1] = count;
  });
  for (int64_t part = 0; part < parts; ++part) begins.entries[part + 1] += begins.entries[part];
  return begins;
}

// The bits of a key: a row, and in its lowest bits a payload. This is the entry's bag; or, where
// more than the bag is needed, the number of the entry in the order of the bags. The leading bits
// are the number of the bucket.
template <typename Key>
struct KeyBits {
  int row, payload, bucket;

  Key Make(int64_t row, int64_t payload) const {
    return static_cast<Key>(row) << this->payload | static_cast<Key>(payload);
  }
  Key RowOf(Key key) const { return key >> payload; }
  int64_t PayloadOf(Key key) const { return static_cast<int64_t>(key & ((Key{1} << payload) - 1)); }
  int64_t BucketOf(Key key) const {
    return bucket == 0 ? 0 : static_cast<int64_t>(key >> (payload + row - bucket));
  }
};

// Arrays of one item for each entry, in the order of the bags. But for the keys, they are there
// where they are needed.
template <typename T, typename Index, typename Key>
struct Unsorted {
  Key* keys;
  int32_t* bags;
  Sum<T>* weights;
  typename Entries<T, Index>::Won* won;
};

// Writes entries, and counts those of each bucket. To be used as a copy of one's own: otherwise the
// compiler would load the members again after each store.
template <typename T, typename Index, typename Key>
struct EntryWriter {
  Unsorted<T, Index, Key> to;
  KeyBits<Key> bits;
  bool is_plain, has_weights, is_max;
  int64_t* counts;

  void Write(int64_t entry, int64_t row, int64_t bag, Sum<T> weight) const {
    const Key key = bits.Make(row, is_plain ? bag : entry);
    to.keys[entry] = key;
    ++counts[bits.BucketOf(key)];
    if (is_plain) return;
    to.bags[entry] = static_cast<int32_t>(bag);
    if (has_weights) to.weights[entry] = weight;
  }
  // `starts` is that of GroupColumns.
  void WriteWon(int64_t entry, int64_t group, const int32_t* starts) const {
    if (is_max) to.won[entry] = {starts[group], starts[group + 1]};
  }
};

// One sort of the entries, whose keys have room for all bits.
template <typename T, typename Index, typename Key>
class EntrySort {
 public:
  EntrySort(const Inputs<T, Index>& inputs, const PartBegins& begins, int payload_bits,
            Parallel* parallel, Entries<T, Index>* sorted)
      : inputs_(inputs), begins_(begins), parallel_(parallel), sorted_(sorted) {
    // Buckets of some hundred entries are sorted within the first-level cache.
    constexpr int64_t kBucketSize = 256;
    constexpr int kMostBucketBits = 11;
    bits_.payload = payload_bits;
    bits_.row = BitsFor(inputs.num_rows);
    bits_.bucket = std::min({BitsFor(size() / kBucketSize), bits_.row, kMostBucketBits});
  }

  std::string Run() {
    Allocate();
    Problem problem;
    parallel_->Run(begins_.count(), [&](int64_t part) { MakePart(part, &problem); });
    if (problem.found()) return problem.Describe(inputs_.bags, inputs_.num_rows);
    PlaceBuckets();
    parallel_->Run(begins_.count(), [&](int64_t part) { PartitionPart(part); });
    SortBuckets();
    return "";
  }

 private:
  int64_t size() const { return begins_.entries.back(); }
  int64_t num_buckets() const { return int64_t{1} << bits_.bucket; }

  void Allocate() {
    const bool has_weights = inputs_.has_weights(), is_max = inputs_.is_max();
    Parts scratch(&scratch_);
    scratch.Add(size(), &unsorted_.keys);
    scratch.Add(size(), &partitioned_);
    scratch.Add(inputs_.is_plain() ? 0 : size(), &unsorted_.bags);
    scratch.Add(has_weights ? size() : 0, &unsorted_.weights);
    scratch.Add(is_max ? size() : 0, &unsorted_.won);
    scratch.Allocate();
    Parts memory(&sorted_->memory);
    memory.Add(size(), &sorted_->rows);
    memory.Add(size() + num_buckets(), &sorted_->starts);
    memory.Add(size(), &sorted_->bags);
    if (has_weights) memory.Add(size(), &sorted_->weights);
    if (is_max) {
      memory.Add(size(), &sorted_->won);
      memory.Add(inputs_.bags.count * inputs_.width, &sorted_->columns);
    }
    memory.Allocate();
    places_.assign(begins_.count() * num_buckets(), 0);
  }

  // Makes the entries of a part, and counts them.
  void MakePart(int64_t part, Problem* problem) {
    const EntryWriter<T, Index, Key> writer{unsorted_,          bits_,
                                            inputs_.is_plain(), inputs_.has_weights(),
                                            inputs_.is_max(),   &places_[part * num_buckets()]};
    int64_t entry = begins_.entries[part];
    std::vector<int32_t> groups;
    BagWalk<Index> walk(inputs_.bags, begins_.bags[part], begins_.bags[part + 1]);
    while (walk.Next()) {
      const int64_t first = entry, bag = walk.bag();
      if (writer.is_max) {
        GroupColumns(inputs_.argmax + bag * inputs_.width, inputs_.width, walk.begin(),
                     walk.end() - walk.begin(), &groups, sorted_->columns + bag * inputs_.width);
      }
      Divisor<Sum<T>> divisors(inputs_.reduction);
      if (!MakeBag(writer, walk, groups.data(), &entry, &divisors, problem)) return;
      if (HasDivisors(inputs_.reduction)) {
        if (!inputs_.weights.given()) divisors.AddCount(entry - first);
        DivideWeights(first, entry, divisors.Get());
      }
      if (entry == first && inputs_.bags.default_index >= 0) {
        writer.WriteWon(entry, 0, groups.data());
        writer.Write(entry++, inputs_.bags.default_index, bag, Sum<T>(1));
      }
    }
  }

  // Makes the entries of one bag's indices. Returns false where an index is no row.
  bool MakeBag(const EntryWriter<T, Index, Key>& shared_writer, const BagWalk<Index>& walk,
               const int32_t* groups, int64_t* next, Divisor<Sum<T>>* divisors,
               Problem* problem) const {
    const EntryWriter<T, Index, Key> writer = shared_writer;
    const Index* const indices = inputs_.bags.indices;
    const uint64_t num_rows = inputs_.num_rows;
    const bool has_padding = inputs_.bags.has_padding;
    const int64_t bag = walk.bag(), begin = walk.begin(), end = walk.end();
    int64_t entry = *next;
    for (int64_t i = begin; i < end; ++i) {
      if (has_padding && IsPadding(inputs_.bags, i)) continue;
      const int64_t row = indices[i];
      if (static_cast<uint64_t>(row) >= num_rows) {
        problem->AtIndex(i);
        return false;
      }
      Sum<T> weight(1);
      if (inputs_.weights.given()) {
        weight = WeightAt(inputs_.weights, i);
        divisors->AddWeight(weight);
      }
      writer.WriteWon(entry, 1 + i - begin, groups);
      writer.Write(entry++, row, bag, weight);
    }
    *next = entry;
    return true;
  }

  void DivideWeights(int64_t begin, int64_t end, Sum<T> divisor) {
    for (int64_t k = begin; k < end; ++k) {
      unsorted_.weights[k] = DivideNoNan(unsorted_.weights[k], divisor);
    }
  }

  // Turns the counts into places: of a bucket's entries, those of the first part come first.
  void PlaceBuckets() {
    sorted_->bucket_entries.assign(num_buckets() + 1, size());
    int64_t place = 0;
    for (int64_t bucket = 0; bucket < num_buckets(); ++bucket) {
      sorted_->bucket_entries[bucket] = place;
      for (int64_t part = 0; part < begins_.count(); ++part) {
        place += std::exchange(places_[part * num_buckets() + bucket], place);
      }
    }
  }

  void PartitionPart(int64_t part) {
    const KeyBits<Key> bits = bits_;
    const Key* const keys = unsorted_.keys;
    Key* const partitioned = partitioned_;
    int64_t* const next = &places_[part * num_buckets()];
    for (int64_t k = begins_.entries[part]; k < begins_.entries[part + 1]; ++k) {
      partitioned[next[bits.BucketOf(keys[k])]++] = keys[k];
    }
  }

  void SortBuckets() {
    std::vector<int64_t>& bucket_rows = sorted_->bucket_rows;
    bucket_rows.assign(num_buckets() + 1, 0);
    const int64_t parts = NumParts(*parallel_, static_cast<double>(size()) * kEntryBytes);
    const std::vector<int64_t> first_bucket = sorted_->SplitBuckets(parts);
    parallel_->Run(parts, [&](int64_t part) {
      for (int64_t bucket = first_bucket[part]; bucket < first_bucket[part + 1]; ++bucket) {
        const int64_t begin = sorted_->bucket_entries[bucket];
        const Key* const keys = SortKeys(bits_.payload, bits_.row - bits_.bucket,
                                         sorted_->bucket_entries[bucket + 1] - begin,
                                         partitioned_ + begin, unsorted_.keys + begin);
        bucket_rows[bucket + 1] = WriteBucket(bucket, keys - begin);
      }
    });
    for (int64_t bucket = 0; bucket < num_buckets(); ++bucket) {
      bucket_rows[bucket + 1] += bucket_rows[bucket];
    }
  }

  // Writes the rows and entries of a bucket whose keys are sorted. Returns the number of rows.
  int64_t WriteBucket(int64_t bucket, const Key* keys) {
    const int64_t begin = sorted_->bucket_entries[bucket];
    const int64_t end = sorted_->bucket_entries[bucket + 1];
    const KeyBits<Key> bits = bits_;
    const bool is_plain = inputs_.is_plain();
    const bool has_weights = inputs_.has_weights(), is_max = inputs_.is_max();
    Index* const rows = sorted_->rows + begin;
    int64_t* const starts = sorted_->starts + sorted_->FirstStart(bucket);
    // No branch: whether a row is a new one cannot be predicted.
    int64_t row = -1, start = begin;
    Key last = 0;
    for (int64_t k = begin; k < end; ++k) {
      const Key this_row = bits.RowOf(keys[k]);
      const bool is_new = k == begin || this_row != last;
      last = this_row;
      row += is_new;
      start = is_new ? k : start;
      rows[row] = static_cast<Index>(this_row);
      starts[row] = start;
      const int64_t payload = bits.PayloadOf(keys[k]);
      sorted_->bags[k] = is_plain ? static_cast<int32_t>(payload) : unsorted_.bags[payload];
      if (has_weights) sorted_->weights[k] = unsorted_.weights[payload];
      if (is_max) sorted_->won[k] = unsorted_.won[payload];
    }
    starts[row + 1] = end;
    return row + 1;
  }

  const Inputs<T, Index>& inputs_;
  const PartBegins& begins_;
  Parallel* const parallel_;
  Entries<T, Index>* const sorted_;
  KeyBits<Key> bits_;
  Buffer<char> scratch_;  // for the arrays below
  Unsorted<T, Index, Key> unsorted_;
  Key* partitioned_;             // the keys, by buckets
  std::vector<int64_t> places_;  // of each part and bucket: where its next key goes
};

}  // namespace

template <typename T, typename Index>
std::vector<int64_t> Entries<T, Index>::SplitBuckets(int64_t parts) const {
  std::vector<int64_t> first(parts + 1, num_buckets());
  first[0] = 0;
  for (int64_t part = 1; part < parts; ++part) {
    const int64_t target = size() / parts * part;
    first[part] = std::lower_bound(bucket_entries.begin() + first[part - 1],
                                   bucket_entries.end() - 1, target) -
                  bucket_entries.begin();
  }
  return first;
}

template <typename T, typename Index>
std::string MakeEntries(const Bags<Index>& bags, const Weights<T>& weights, Reduction reduction,
                        const Index* argmax, int64_t num_rows, int64_t width, Parallel* parallel,
                        Entries<T, Index>* entries) {
  if (width == 0) return CheckWithoutWalk(bags, num_rows);
  if (bags.count > std::numeric_limits<int32_t>::max()) {
    return "there are " + std::to_string(bags.count) + " bags, too many for a gradient";
  }
  if (reduction == Reduction::kMax && width > std::numeric_limits<int32_t>::max()) {
    return "rows have " + std::to_string(width) + " elements, too many for a gradient of maxima";
  }
  const Inputs<T, Index> inputs{bags, weights, reduction, argmax, num_rows, width};
  Problem problem;
  const std::string wrong = CheckOutside(bags, num_rows, &problem);
  if (!wrong.empty()) return wrong;
  const PartBegins begins = CountEntries(inputs, parallel, &problem);
  if (problem.found()) return problem.Describe(bags, num_rows);
  const int payload_bits = BitsFor(inputs.is_plain() ? bags.count : begins.entries.back());
  const int bits = BitsFor(num_rows) + payload_bits;
  const auto sort = [&](auto key) {
    return EntrySort<T, Index, decltype(key)>(inputs, begins, payload_bits, parallel, entries)
        .Run();
  };
  if (bits <= 32 && payload_bits < 32) return sort(uint32_t{});
  if (bits <= 64 && payload_bits < 64) return sort(uint64_t{});
  __extension__ using Wide = unsigned __int128;
  return sort(Wide{});
}

#define TF_TI_ENTRIES(T, Index)                                                                \
  template struct Entries<T, Index>;                                                           \
  template std::string MakeEntries<T, Index>(const Bags<Index>&, const Weights<T>&, Reduction, \
                                             const Index*, int64_t, int64_t, Parallel*,        \
                                             Entries<T, Index>*);
#define TF_TI_ENTRIES_BOTH(T) TF_TI_ENTRIES(T, int32_t) TF_TI_ENTRIES(T, int64_t)
TF_TI_DIFFERENTIABLE(TF_TI_ENTRIES_BOTH)

}  // namespace tf_ti
