#include <cmath>

#include "cc/compute/bags/pooling_gpu.h"

namespace tf_ti {
namespace {

// A group of 8, 16 or 32 lanes of a warp reduces some spans one after another, each lane one pack
// of columns. Where rows are wider, other groups take the other tiles of columns. A span is a bag,
// or a piece of one, and each lane of the group looks after one of them. The ids of all spans are
// one stream: the lanes load a chunk of it together, and the next chunk before they add up this
// one's rows.
constexpr int kLeastLanes = 8;
constexpr int kRowsInFlight = 4;
static_assert(kLeastLanes % kRowsInFlight == 0, "");

// Ids that keep a group busy, and threads that keep a multiprocessor busy. Where bags are short, a
// group takes several of them, if there are enough for all. Where bags are a table's rows, those of
// rows that are looked up often may be side by side. So groups have equal shares of the work there:
// each id counts as 1, and each bag as some more, so that no group has more bags than lanes.
constexpr int64_t kManyIds = 32;
constexpr int64_t kManyThreads = 4096;
constexpr int64_t kManyBags = 4;  // fewer are not worth a search
constexpr int64_t kMostWork = 96;
static_assert(kMostWork % kWarp == 0, "");

// Special offsets of a row: for padding, and for an index that is no row.
constexpr int64_t kSkipped = -1;
constexpr int64_t kZeros = -2;

// Zeros, loaded in place of a row that does not exist. So all lanes load at all times, and no load
// waits for a branch.
__device__ const uint4 kNothing = {0, 0, 0, 0};

template <typename T, typename Index>
struct Plan {
  int lanes = kWarp;
  int64_t tiles = 1;
  int64_t num_groups = 0;
  Index bags_per_group = 1;  // where work is not counted
  int work_per_bag = 0;
  int work_per_group = 0;
  // The first piece of a long bag goes up to a multiple of `piece`, and another one begins at each
  // multiple. Each piece has a place for its result: 2 k + 1 for the piece that begins at
  // k * piece, and 2 k for a first piece that ends there, which may be empty.
  Index piece = 0;
  Index num_pieces = 0;    // none where no bag can be long
  int64_t num_shares = 0;  // of the pieces, among Combine's blocks
  // Of each piece: the long bag that goes on where it begins, or -1.
  Index* owners = nullptr;
  // Of each place: the members of Reduced.
  Sum<T>* values = nullptr;
  Index* positions = nullptr;
  Index* counts = nullptr;
  double* totals = nullptr;

  __device__ bool IsLong(Index size) const { return num_pieces > 0 && size > 2 * piece; }
  __device__ Index FirstPlace(Index begin) const { return (begin + piece - 1) / piece * 2; }

  // The first of a group's bags; they end where the next group's begin.
  __device__ Index FirstBag(const GpuBounds<Index>& bags, int64_t group) const {
    const Index count = bags.Count();
    if (work_per_group == 0) {
      return static_cast<Index>(min(group * bags_per_group, static_cast<int64_t>(count)));
    }
    const int64_t work = group * work_per_group - 1;
    // Where only the GPU knows the count, many groups are behind the last bag.
    const Index low = count > 0 && bags.WorkBefore(count - 1, work_per_bag) <= work ? count : 0;
    return bags.Find(work, low, count - 1, work_per_bag) + 1;
  }
};

// The bags of one launch: of several tables, which have one width, or of one.
template <typename T, typename Index, int kTables>
struct Batch {
  GpuPoolArgs<T, Index> args[kTables];
  Plan<T, Index> plans[kTables];
  // The first block of each table, for Pool and for Combine. Behind the last table: the number of
  // blocks.
  int64_t blocks[kTables + 1] = {};
  int64_t combine_blocks[kTables + 1] = {};
};

// As many as models have. The arguments of so many are longer than the 4 KiB that a kernel may have
// with drivers older than CUDA 12.1's.
constexpr int kMostTables = 32;
constexpr int kDriverOfLongArguments = 12010;

// Returns the table that a block is for, and turns the block's number into that among the table's.
// It is the last table that begins there or before: others have no blocks.
template <int kTables>
__device__ __forceinline__ int FindTable(const int64_t (&blocks)[kTables + 1], int64_t* block) {
  if constexpr (kTables == 1) return 0;
  int table = 0;
#pragma unroll
  for (int step = kTables / 2; step > 0; step /= 2) {
    if (blocks[table + step] <= *block) table += step;
  }
  *block -= blocks[table];
  return table;
}

// The result of reducing a span, as one lane has it.
template <typename T, typename Index, bool kIsMax, int kSize>
struct Reduced {
  Sum<T> values[kSize];
  Index positions[kIsMax ? kSize : 1];
  Index count;
  double total;  // of the weights, or their squares; in double, as floats stop at 2^24

  __device__ void Clear() {
#pragma unroll
    for (int j = 0; j < kSize; ++j) values[j] = Sum<T>(0);
    if constexpr (kIsMax) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) positions[j] = -1;
    }
    count = 0;
    total = 0;
  }

  // NaN is larger than any number, and the first of several is kept.
  __device__ void TakeLarger(int j, Sum<T> value, Index position) {
    if (count > 0 && (values[j] != values[j] || value <= values[j])) return;
    values[j] = value;
    positions[j] = position;
  }

  // Adds the part of the same bag that comes after this one.
  __device__ void Add(const Reduced& part) {
    if (part.count == 0) return;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if constexpr (kIsMax) {
        TakeLarger(j, part.values[j], part.positions[j]);
      } else {
        values[j] += part.values[j];
      }
    }
    count += part.count;
    total += part.total;
  }
};

// A row that an update writes to, as one lane has it.
template <typename T, int kSize>
struct Target {
  int64_t offset = -1;  // of the row's first element; or -1 for none
  Pack<T, kSize> pack = {};

  __device__ void Load(const T* out, bool is_wanted, int64_t column) {
    pack = LoadPack<kSize>(is_wanted && offset >= 0 ? out + offset + column
                                                    : reinterpret_cast<const T*>(&kNothing));
  }
};

// Turns a bag's Reduced into its output, in some columns.
template <Pooled kPooled, typename T, typename Index, bool kIsMax, int kSize>
__device__ __forceinline__ void Write(const GpuPoolArgs<T, Index>& args, Index bag, int64_t column,
                                      const Reduced<T, Index, kIsMax, kSize>& reduced,
                                      const Target<T, kSize>& target) {
  if constexpr (kPooled == Pooled::kSubtracted) {
    if (column >= args.table.width || target.offset < 0) return;
    Pack<T, kSize> pack = target.pack;
    bool is_zero = true;
#pragma unroll
    for (int j = 0; j < kSize; ++j) is_zero = is_zero && reduced.values[j] == Sum<T>(0);
    if (is_zero && args.skips_zeros) return;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      pack.values[j] = FromSum<T>(ToSum(pack.values[j]) - args.scale[0] * reduced.values[j]);
    }
    StorePack(pack, args.out + target.offset + column);
    return;
  }
  Sum<T> divisor(1);
  if (args.divides) {
    const bool has_weights = args.weights.wide != nullptr || args.weights.rounded != nullptr;
    double total = has_weights ? reduced.total : static_cast<double>(reduced.count);
    if (args.is_root) total = sqrt(total);
    divisor = static_cast<Sum<T>>(total);
  }
  if (column == 0) {
    if (args.counts != nullptr) args.counts[bag] = reduced.count;
    if (args.divisors != nullptr) args.divisors[bag] = divisor;
  }
  if (column >= args.table.width) return;
  const int64_t at = bag * args.table.width + column;
  if constexpr (kIsMax) {
    if (args.argmax != nullptr) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) args.argmax[at + j] = reduced.positions[j];
    }
  }
  if (args.sums != nullptr) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) args.sums[at + j] = reduced.values[j];
  } else if (args.out != nullptr) {
    Pack<T, kSize> pack;
    if (reduced.count == 0 && args.default_index >= 0) {
      pack = LoadPack<kSize>(args.table.rows + args.default_index * args.table.width + column);
    } else {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const Sum<T> value = reduced.values[j];
        pack.values[j] = FromSum<T>(args.divides ? DivideOrZero(value, divisor) : value);
      }
    }
    StorePack(pack, args.out + at);
  }
}

// The spans of a group, as one lane has them. Their stream has an item for each id, and one for
// each span without ids.
template <typename Index>
struct Spans {
  static constexpr int kHasIds = 1, kIsPiece = 2, kFlagBits = 2;

  Index bag = 0;     // that of the first span; the others follow it
  Index place = -1;  // of the result of the group's piece; or -1 where it has bags
  int size = 0;      // of the stream
  // Of this lane's span: where it ends in the stream, with flags; and the difference between a
  // position and its item.
  int end = 0;
  Index shift = 0;
};

// The spans of a group: the piece that it is to reduce, or its bags.
template <typename T, typename Index>
__device__ __forceinline__ Spans<Index> FindSpans(const GpuBounds<Index>& bags,
                                                  const Plan<T, Index>& plan, int64_t group,
                                                  int lane, bool writes_owner) {
  const Index count = bags.Count();
  const bool has_bags = group >= plan.num_pieces;
  Index begin = 0, end = 0;
  Index found;
  if (has_bags) {
    // Half of the lanes look for the first bag, and half for that of the next group.
    found = plan.FirstBag(bags, group - plan.num_pieces + (lane >= plan.lanes / 2));
  } else {
    begin = static_cast<Index>(group) * plan.piece;
    found = bags.Find(begin, 0, count - 1);
  }
  Spans<Index> spans;
  spans.bag = __shfl_sync(kAllLanes, found, 0, plan.lanes);
  const Index stop_bag = __shfl_sync(kAllLanes, found, plan.lanes - 1, plan.lanes);
  bool is_in, is_piece;
  if (has_bags) {
    const Index bag = spans.bag + lane;
    is_in = bag < stop_bag;
    if (is_in) {
      begin = bags.Begin(bag);
      end = max(begin, bags.Begin(bag + 1));
    }
    is_piece = plan.IsLong(end - begin);
    if (is_piece) {
      // Only its first piece. Bad bounds may hide a bag from Find. Nobody would then reduce its
      // pieces, so it is empty.
      const Index first = plan.FirstPlace(begin) / 2 * plan.piece;
      is_piece = bags.Find(first, 0, count - 1) == bag;
      end = is_piece ? first : begin;
    }
  } else {
    spans.place = static_cast<Index>(2 * group + 1);
    is_piece = spans.bag >= 0 && spans.bag < count && begin < bags.End(spans.bag) &&
               plan.IsLong(bags.End(spans.bag) - bags.Begin(spans.bag));
    if (is_piece) end = min(begin + plan.piece, bags.End(spans.bag));
    if (writes_owner) plan.owners[group] = is_piece ? spans.bag : -1;
    is_in = is_piece && lane == 0;
  }
  const int num_items = is_in ? max(static_cast<int>(end - begin), 1) : 0;
  int stop = num_items;
  for (int step = 1; step < plan.lanes; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, stop, step, plan.lanes);
    if (lane >= step) stop += before;
  }
  spans.size = __shfl_sync(kAllLanes, stop, plan.lanes - 1, plan.lanes);
  spans.shift = begin - (stop - num_items);
  spans.end = stop << Spans<Index>::kFlagBits | (is_piece ? Spans<Index>::kIsPiece : 0) |
              (begin < end ? Spans<Index>::kHasIds : 0);
  return spans;
}

// The flags of an item: all lanes of its group have them, beside the lane of its span.
constexpr int kSpan = kWarp - 1, kEndsSpan = kWarp, kEndsPiece = 2 * kWarp, kIsIn = 4 * kWarp;
constexpr int kFlagBits = 8;

// The loads of an item. Nothing is computed from them before their chunk begins: that would wait
// for loads ahead.
template <typename T, typename Index>
struct Loaded {
  int flags = 0;
  Index id = 0;
  Index position = 0;  // in `ids`; or what `positions` has there
  Sum<T> wide_weight = Sum<T>(0);
  T rounded_weight = T();
  uint64_t row = 0;
};

template <typename T, typename Index>
__device__ __forceinline__ uint64_t LoadRow(const GpuPoolArgs<T, Index>& args, Index position) {
  return args.rows_are_wide ? static_cast<const uint64_t*>(args.rows)[position]
                            : static_cast<const uint32_t*>(args.rows)[position];
}

// All lanes of a warp take part, also those that are behind the last item.
template <Pooled kPooled, bool kIsWeighted, typename T, typename Index>
__device__ __forceinline__ Loaded<T, Index> Load(const GpuPoolArgs<T, Index>& args,
                                                 const Spans<Index>& spans, int lanes, int item) {
  using S = Spans<Index>;
  int span = 0;
  for (int step = lanes / 2; step > 0; step /= 2) {
    const int end = __shfl_sync(kAllLanes, spans.end, span + step - 1, lanes);
    if (end >> S::kFlagBits <= item) span += step;
  }
  const int end = __shfl_sync(kAllLanes, spans.end, span, lanes);
  const Index position = item + __shfl_sync(kAllLanes, spans.shift, span, lanes);
  Loaded<T, Index> loaded;
  if (item >= spans.size) return loaded;
  loaded.flags = span;
  if (item + 1 == end >> S::kFlagBits) {
    loaded.flags |= end & S::kIsPiece ? kEndsSpan | kEndsPiece : kEndsSpan;
  }
  if ((end & S::kHasIds) == 0) return loaded;
  loaded.flags |= kIsIn;
  loaded.id = args.ids == nullptr ? position : args.ids[position];
  if constexpr (kIsWeighted) {
    if (args.weights.wide != nullptr) {
      loaded.wide_weight = args.weights.wide[position];
    } else {
      loaded.rounded_weight = args.weights.rounded[position];
    }
  }
  if constexpr (kPooled == Pooled::kMax) loaded.position = position;
  if constexpr (kPooled == Pooled::kSelected) loaded.position = args.positions[position];
  if constexpr (kPooled == Pooled::kSubtracted) loaded.row = LoadRow(args, position);
  return loaded;
}

template <typename T, typename Index>
struct Entry {
  // The offset of the row's first element, or kSkipped or kZeros, less kZeros; and the flags.
  int64_t code = (kSkipped - kZeros) << kFlagBits;
  Sum<T> weight = Sum<T>(0);
  Index position = 0;
  int64_t target = -1;
};

template <bool kIsWeighted, typename T, typename Index>
__device__ __forceinline__ Entry<T, Index> Decode(const GpuPoolArgs<T, Index>& args,
                                                  const Loaded<T, Index>& loaded) {
  const int64_t id = loaded.id;
  Entry<T, Index> entry;
  int64_t offset = kSkipped;
  int flags = loaded.flags;
  if (args.has_padding && id == args.padding_idx) flags &= ~kIsIn;
  if (flags & kIsIn) {
    const bool is_row = static_cast<uint64_t>(id) < static_cast<uint64_t>(args.table.num_rows);
    offset = is_row ? id * args.table.width : kZeros;
    if constexpr (kIsWeighted) {
      entry.weight =
          args.weights.wide != nullptr ? loaded.wide_weight : ToSum(loaded.rounded_weight);
    }
  }
  entry.code = (offset - kZeros) << kFlagBits | flags;
  entry.position = loaded.position;
  if (loaded.row < static_cast<uint64_t>(args.num_out_rows)) {
    entry.target = static_cast<int64_t>(loaded.row) * args.table.width;
  }
  return entry;
}

// Clears the elements of a row that are not selected, from element `at` of the table on.
template <typename I, typename T, int kSize>
__device__ __forceinline__ void Select(const I* selected, int64_t at, int32_t position,
                                       Pack<T, kSize>* pack) {
  constexpr int kMost = 16 / sizeof(I), kWord = kSize < kMost ? kSize : kMost;
#pragma unroll
  for (int first = 0; first < kSize; first += kWord) {
    const Pack<I, kWord> word = LoadPack<kWord>(selected + at + first);
#pragma unroll
    for (int j = 0; j < kWord; ++j) {
      if (word.values[j] != position) pack->values[first + j] = T{};
    }
  }
}

// Stores a span's result: as its bag's output, or in the place of its piece.
template <Pooled kPooled, typename T, typename Index, bool kIsMax, int kSize>
__device__ __forceinline__ void Finish(const GpuPoolArgs<T, Index>& args,
                                       const Plan<T, Index>& plan, const Spans<Index>& spans,
                                       int flags, int64_t column,
                                       const Reduced<T, Index, kIsMax, kSize>& reduced,
                                       const Target<T, kSize>& target) {
  const Index bag = spans.bag + (flags & kSpan);
  if ((flags & kEndsPiece) == 0) {
    Write<kPooled>(args, bag, column, reduced, target);
    return;
  }
  const Index place = spans.place < 0 ? plan.FirstPlace(args.bags.Begin(bag)) : spans.place;
  if (column == 0) {
    plan.counts[place] = reduced.count;
    plan.totals[place] = reduced.total;
  }
  const int64_t width = args.table.width;
  if (column >= width) return;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    plan.values[place * width + column + j] = reduced.values[j];
    if constexpr (kIsMax) plan.positions[place * width + column + j] = reduced.positions[j];
  }
}

// The number of blocks that a multiprocessor has registers for. The fewer, the more registers each
// may use.
template <typename T, Pooled kPooled, int kSize>
constexpr int kBlocksAtOnce = kPooled == Pooled::kMax || kPooled == Pooled::kSubtracted ||
                                      kSize > 4 || sizeof(Sum<T>) > 4
                                  ? 2
                                  : 3;

template <typename T, typename Index, Pooled kPooled, bool kIsWeighted, int kSize, int kTables>
__global__ void __launch_bounds__(kBlock, kBlocksAtOnce<T, kPooled, kSize>)
    Pool(const __grid_constant__ Batch<T, Index, kTables> batch) {
  constexpr bool kIsMax = kPooled == Pooled::kMax;
  const int lanes = batch.plans[0].lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t width = batch.args[0].table.width;
  LetNextBegin();
  for (int64_t number = blockIdx.x; number < batch.blocks[kTables]; number += gridDim.x) {
    int64_t block = number;
    const int table = FindTable<kTables>(batch.blocks, &block);
    const GpuPoolArgs<T, Index>& args = batch.args[table];
    const Plan<T, Index>& plan = batch.plans[table];
    const int64_t column = (block % plan.tiles * lanes + lane) * kSize;
    const int64_t group = block / plan.tiles * (kBlock / lanes) + threadIdx.x / lanes;
    const bool is_column = column < width;
    const T* const rows = args.table.rows + column;
    const Spans<Index> spans = FindSpans(args.bags, plan, group, lane, column == 0);
    Reduced<T, Index, kIsMax, kSize> reduced;
    reduced.Clear();
    // The chunk that is loaded ahead, and the first item after it; the chunk whose rows are in
    // flight, its size, and how many of its rows are done.
    auto ahead = Load<kPooled, kIsWeighted>(args, spans, lanes, lane);
    int next = 0;
    Entry<T, Index> entry;
    int size = 0, first = 0;
    // Some of its rows, loaded at a loop's end and added up at the next one's begin. Otherwise the
    // compiler would issue one load after another, each only after the previous one is added up.
    int flags[kRowsInFlight] = {};
    Pack<T, kSize> packs[kRowsInFlight] = {};
    Sum<T> weights[kRowsInFlight] = {};
    Index positions[kRowsInFlight] = {};
    Target<T, kSize> targets[kRowsInFlight] = {};
    for (;;) {
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const bool is_in = (flags[r] & kIsIn) != 0;
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const Sum<T> value = ToSum(packs[r].values[j]);
          if constexpr (kIsMax) {
            if (is_in) reduced.TakeLarger(j, value, positions[r]);
          } else if constexpr (kIsWeighted) {
            reduced.values[j] += weights[r] * value;
          } else {
            reduced.values[j] += value;
          }
        }
        if (is_in) ++reduced.count;
        if constexpr (kIsWeighted) {
          if (args.divides) {
            const double weight = weights[r];
            reduced.total += args.is_root ? weight * weight : weight;
          }
        }
        if (flags[r] & kEndsSpan) {
          Finish<kPooled>(args, plan, spans, flags[r], column, reduced, targets[r]);
          reduced.Clear();
        }
      }
      first += kRowsInFlight;

      // All groups of a warp go on until the last is done, as they shuffle together.
      if (!__any_sync(kAllLanes, first < size)) {
        if (!__any_sync(kAllLanes, next < spans.size)) break;
        entry = Decode<kIsWeighted>(args, ahead);
        size = min(spans.size - next, lanes);
        first = 0;
        next += lanes;
        ahead = Load<kPooled, kIsWeighted>(args, spans, lanes, next + lane);
      }

#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int64_t code = __shfl_sync(kAllLanes, entry.code, first + r, lanes);
        const int64_t offset = (code >> kFlagBits) + kZeros;
        flags[r] = static_cast<int>(code) & ((1 << kFlagBits) - 1);
        const bool is_row = offset >= 0 && is_column;
        packs[r] = LoadPack<kSize>(is_row ? rows + offset : reinterpret_cast<const T*>(&kNothing));
        if constexpr (kIsWeighted) {
          weights[r] = __shfl_sync(kAllLanes, entry.weight, first + r, lanes);
        }
        if constexpr (kPooled == Pooled::kSubtracted) {
          targets[r].offset = __shfl_sync(kAllLanes, entry.target, first + r, lanes);
          targets[r].Load(args.out, is_column && (flags[r] & kEndsSpan) != 0, column);
        }
        if constexpr (kIsMax || kPooled == Pooled::kSelected) {
          positions[r] = __shfl_sync(kAllLanes, entry.position, first + r, lanes);
        }
        if constexpr (kPooled == Pooled::kSelected) {
          const int32_t position = static_cast<int32_t>(positions[r]);
          if (is_row && args.selected_is_wide) {
            Select(static_cast<const int64_t*>(args.selected), offset + column, position,
                   &packs[r]);
          } else if (is_row) {
            Select(static_cast<const int32_t*>(args.selected), offset + column, position,
                   &packs[r]);
          }
        }
      }
    }
  }
}

// The result of a long bag's places [begin, end), in one column. The first place is that of the
// piece up to piece `first`; the others are those of the pieces from there on.
template <bool kIsMax, typename T, typename Index>
__device__ __forceinline__ Reduced<T, Index, kIsMax, 1> ReducePlaces(
    const GpuPoolArgs<T, Index>& args, const Plan<T, Index>& plan, Index bag, Index first,
    Index begin, Index end, int64_t column) {
  constexpr int kPlacesInFlight = 4;
  const int64_t width = args.table.width;
  const bool is_column = column < width;
  Reduced<T, Index, kIsMax, 1> reduced;
  reduced.Clear();
  for (Index p = begin; p < end; p += kPlacesInFlight) {
    // All are loaded before one is added: otherwise each load would wait for the one before it.
    Reduced<T, Index, kIsMax, 1> parts[kPlacesInFlight];
#pragma unroll
    for (int r = 0; r < kPlacesInFlight; ++r) {
      const Index q = min(p + r, end - 1);
      const Index piece = first + q - 1;
      const Index place = q == 0 ? 2 * first : 2 * piece + 1;
      const int64_t at = place * width + column;
      parts[r].values[0] = is_column ? plan.values[at] : Sum<T>(0);
      if constexpr (kIsMax) parts[r].positions[0] = is_column ? plan.positions[at] : -1;
      parts[r].count = plan.counts[place];
      parts[r].total = plan.totals[place];
      // Where bounds are bad, a piece may be another bag's.
      const bool is_mine = q == 0 || plan.owners[piece] == bag;
      if (p + r >= end || !is_mine) parts[r].count = 0;
    }
#pragma unroll
    for (int r = 0; r < kPlacesInFlight; ++r) reduced.Add(parts[r]);
  }
  return reduced;
}

// Reduces the pieces of long bags. A block takes one column a lane, and the bags whose second piece
// is in its share. Each warp takes bags of few places, and all warps share the places of a bag that
// has many.
constexpr int kCombineWarps = 32;
constexpr int kCombineThreads = kCombineWarps * kWarp;
constexpr int kFewPlaces = kCombineWarps;  // up to which both ways add them up in the same order

// One block a multiprocessor is enough: more would leave no registers for loads in flight.
template <typename T, typename Index, Pooled kPooled, int kTables>
__global__ void __launch_bounds__(kCombineThreads, 1)
    Combine(const __grid_constant__ Batch<T, Index, kTables> batch, int64_t tiles) {
  constexpr bool kIsMax = kPooled == Pooled::kMax;
  __shared__ int num_found;
  // The bags, their second pieces, and the numbers of their places.
  __shared__ Index bags[kCombineThreads], firsts[kCombineThreads], sizes[kCombineThreads];
  __shared__ Sum<T> values[kCombineWarps][kWarp];
  __shared__ Index positions[kCombineWarps][kIsMax ? kWarp : 1];
  __shared__ Index counts[kCombineWarps];
  __shared__ double totals[kCombineWarps];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t width = batch.args[0].table.width;
  WaitForPrevious();
  for (int64_t number = blockIdx.x; number < batch.combine_blocks[kTables]; number += gridDim.x) {
    int64_t block = number;
    const int table = FindTable<kTables>(batch.combine_blocks, &block);
    const GpuPoolArgs<T, Index>& args = batch.args[table];
    const Plan<T, Index>& plan = batch.plans[table];
    const int64_t column = block % tiles * kWarp + lane;
    const auto write = [&](Index bag, const Reduced<T, Index, kIsMax, 1>& reduced) {
      Target<T, 1> target;
      if constexpr (kPooled == Pooled::kSubtracted) {
        target.offset = static_cast<int64_t>(LoadRow(args, args.bags.Begin(bag))) * width;
        target.Load(args.out, column < width, column);
      }
      Write<kPooled>(args, bag, column, reduced, target);
    };
    // Long bags may lie side by side, or at regular distances, so a block's pieces do neither.
    if (threadIdx.x == 0) num_found = 0;
    __syncthreads();
    const int64_t turn = threadIdx.x * 2654435761u >> 8;
    const int64_t piece = threadIdx.x * plan.num_shares + (block / tiles + turn) % plan.num_shares;
    if (piece < plan.num_pieces) {
      const Index bag = plan.owners[piece], first = static_cast<Index>(piece);
      if (bag >= 0 && args.bags.Begin(bag) > (first - 1) * plan.piece) {
        const int k = atomicAdd(&num_found, 1);
        bags[k] = bag;
        firsts[k] = first;
        sizes[k] = 1 + (args.bags.End(bag) - first * plan.piece + plan.piece - 1) / plan.piece;
      }
    }
    __syncthreads();
    const int num_bags = num_found;
    for (int k = warp; k < num_bags; k += kCombineWarps) {
      if (sizes[k] > kFewPlaces) continue;
      write(bags[k],
            ReducePlaces<kIsMax>(args, plan, bags[k], firsts[k], Index(0), sizes[k], column));
    }
    for (int k = 0; k < num_bags; ++k) {
      if (sizes[k] <= kFewPlaces) continue;
      // In this order, as a size times a number might be too large.
      const Index share = (sizes[k] + kCombineWarps - 1) / kCombineWarps;
      auto reduced = ReducePlaces<kIsMax>(args, plan, bags[k], firsts[k], share * warp,
                                          min(sizes[k], share * (warp + 1)), column);
      values[warp][lane] = reduced.values[0];
      if constexpr (kIsMax) positions[warp][lane] = reduced.positions[0];
      if (lane == 0) {
        counts[warp] = reduced.count;
        totals[warp] = reduced.total;
      }
      __syncthreads();
      if (warp == 0) {
        reduced.Clear();
        for (int w = 0; w < kCombineWarps; ++w) {
          reduced.Add({{values[w][lane]}, {positions[w][kIsMax ? lane : 0]}, counts[w], totals[w]});
        }
        write(bags[k], reduced);
      }
      __syncthreads();
    }
    __syncthreads();
  }
}

// Returns true if elements are loaded and stored in packs of this size. Rows should fill a group's
// lanes.
template <typename T, typename Index>
bool Fits(const GpuPoolArgs<T, Index>& args, int size) {
  const uint64_t places = reinterpret_cast<uintptr_t>(args.table.rows) |
                          reinterpret_cast<uintptr_t>(args.out) | args.table.width * sizeof(T);
  const bool loads_selected = reinterpret_cast<uintptr_t>(args.selected) % 16 == 0;
  return places % (size * sizeof(T)) == 0 && loads_selected &&
         args.table.width >= kLeastLanes * size;
}

// Returns the address of an array of `size` elements behind the `bytes` that are taken of some
// memory, and takes it.
template <typename E>
E* Take(char* memory, int64_t size, int64_t* bytes) {
  constexpr int64_t kAlignment = 16;
  E* const array = reinterpret_cast<E*>(reinterpret_cast<uintptr_t>(memory) + *bytes);
  *bytes += (size * static_cast<int64_t>(sizeof(E)) + kAlignment - 1) / kAlignment * kAlignment;
  return array;
}

// Plans how to reduce a table's bags, all but the memory. `num_bags` are those of all tables.
template <typename T, typename Index>
Plan<T, Index> MakePlan(const GpuPoolArgs<T, Index>& args, int size, int64_t num_bags,
                        int num_processors) {
  const GpuBounds<Index>& bags = args.bags;
  const int64_t num_packs = (args.table.width + size - 1) / size;
  Plan<T, Index> plan;
  plan.lanes = kLeastLanes;
  while (plan.lanes < kWarp && plan.lanes < num_packs) plan.lanes *= 2;
  plan.tiles = std::max<int64_t>(1, (num_packs + plan.lanes - 1) / plan.lanes);
  plan.piece = static_cast<Index>(PieceSize(bags.num_ids, bags.count));
  if (bags.count > 0 &&
      (bags.bounds == nullptr ? bags.packed_size : bags.num_ids) > 2 * plan.piece) {
    plan.num_pieces = (bags.num_ids + plan.piece - 1) / plan.piece;
  }
  const int64_t count = bags.count, num_ids = bags.num_ids;
  const int64_t most_bags = kManyIds * count / (num_ids + 1);
  const int64_t spare = num_bags * plan.tiles * plan.lanes / (num_processors * kManyThreads);
  const int64_t bags_per_group =
      std::max<int64_t>(1, std::min<int64_t>({most_bags, spare, plan.lanes}));
  if (bags_per_group < kManyBags || !bags.ascend) {
    plan.bags_per_group = static_cast<Index>(bags_per_group);
    plan.num_groups = (count + bags_per_group - 1) / bags_per_group;
  } else {
    plan.work_per_bag = static_cast<int>(kMostWork / plan.lanes);
    const int64_t work = num_ids + count * plan.work_per_bag;
    plan.work_per_group = static_cast<int>(std::min(kMostWork, work * bags_per_group / count));
    plan.num_groups = (work + plan.work_per_group - 1) / plan.work_per_group;
  }
  plan.num_groups += plan.num_pieces;
  return plan;
}

// At most kTables tables, of which some may have no bags.
template <typename T, typename Index, Pooled kPooled, bool kIsWeighted, int kSize, int kTables>
std::string Run(const GpuPoolArgs<T, Index>* args, int count, Gpu* gpu) {
  int device, num_processors;
  TF_TI_RETURN_IF_WRONG(Describe(cudaGetDevice(&device), gpu));
  TF_TI_RETURN_IF_WRONG(Describe(
      cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, device), gpu));
  const int64_t width = args[0].table.width;
  const int64_t combine_tiles = std::max<int64_t>(1, (width + kWarp - 1) / kWarp);
  int64_t num_bags = 0;
  for (int k = 0; k < count; ++k) num_bags += args[k].bags.count;
  Batch<T, Index, kTables> batch;
  int num_long = 0;  // tables that may have long bags
  for (int k = 0; k < count; ++k) {
    batch.plans[k] = MakePlan(args[k], kSize, num_bags, num_processors);
    num_long += batch.plans[k].num_pieces > 0;
  }
  for (int k = 0; k < kTables; ++k) {
    batch.blocks[k + 1] = batch.blocks[k];
    batch.combine_blocks[k + 1] = batch.combine_blocks[k];
    if (k >= count) continue;
    batch.args[k] = args[k];
    Plan<T, Index>& plan = batch.plans[k];
    const int64_t groups_per_block = kBlock / plan.lanes;
    batch.blocks[k + 1] +=
        plan.tiles * ((plan.num_groups + groups_per_block - 1) / groups_per_block);
    if (plan.num_pieces == 0) continue;
    // As many blocks as run at once; fewer where there are not many pieces.
    constexpr int64_t kManyPieces = 16;
    plan.num_shares = std::min((plan.num_pieces + kManyPieces - 1) / kManyPieces,
                               num_processors / (combine_tiles * num_long));
    plan.num_shares = std::max<int64_t>(plan.num_shares,
                                        (plan.num_pieces + kCombineThreads - 1) / kCombineThreads);
    batch.combine_blocks[k + 1] += combine_tiles * plan.num_shares;
  }
  if (batch.blocks[kTables] == 0) return "";
  // Once to find out how much memory that is, and once to give it out.
  const auto take_memory = [&](char* memory) {
    int64_t bytes = 0;
    for (Plan<T, Index>& plan : batch.plans) {
      const int64_t places = int64_t{2} * plan.num_pieces;
      plan.owners = Take<Index>(memory, plan.num_pieces, &bytes);
      plan.counts = Take<Index>(memory, places, &bytes);
      plan.totals = Take<double>(memory, places, &bytes);
      plan.values = Take<Sum<T>>(memory, places * width, &bytes);
      if (kPooled == Pooled::kMax) {
        plan.positions = Take<Index>(memory, places * width, &bytes);
      }
    }
    return bytes;
  };
  if (batch.combine_blocks[kTables] > 0) {
    char* memory;
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, take_memory(nullptr), &memory));
    take_memory(memory);
  }
  TF_TI_RETURN_IF_WRONG(Launch(&Pool<T, Index, kPooled, kIsWeighted, kSize, kTables>,
                               NumBlocks(batch.blocks[kTables], 1), kBlock, gpu, batch));
  if (batch.combine_blocks[kTables] == 0) return "";
  constexpr Pooled kCombined = kPooled == Pooled::kSelected ? Pooled::kSum : kPooled;
  return LaunchEarly(&Combine<T, Index, kCombined, kTables>,
                     NumBlocks(batch.combine_blocks[kTables], 1), kCombineThreads, gpu, batch,
                     combine_tiles);
}

template <typename T, typename Index, Pooled kPooled, bool kIsWeighted, int kSize>
std::string RunAll(const GpuPoolArgs<T, Index>* args, int count, Gpu* gpu) {
  if constexpr (kPooled == Pooled::kSum || kPooled == Pooled::kMax) {
    int driver = 0;
    if (count > 1) TF_TI_RETURN_IF_WRONG(Describe(cudaDriverGetVersion(&driver), gpu));
    if (driver != 0 && driver < kDriverOfLongArguments) {
      for (; count > 1; ++args, --count) {
        TF_TI_RETURN_IF_WRONG((Run<T, Index, kPooled, kIsWeighted, kSize, 1>(args, 1, gpu)));
      }
    }
    for (; count > 1; args += kMostTables, count -= kMostTables) {
      TF_TI_RETURN_IF_WRONG((Run<T, Index, kPooled, kIsWeighted, kSize, kMostTables>(
          args, std::min(count, kMostTables), gpu)));
    }
  }
  if (count < 1) return "";
  return Run<T, Index, kPooled, kIsWeighted, kSize, 1>(args, count, gpu);
}

// With the largest packs that fit all, of 16 bytes at most.
template <typename T, typename Index, Pooled kPooled, bool kIsWeighted>
std::string RunWithPacks(const GpuPoolArgs<T, Index>* args, int count, Gpu* gpu) {
  const auto fit = [&](int size) {
    return std::all_of(args, args + count, [&](const auto& each) { return Fits(each, size); });
  };
  constexpr int kMost = 16 / sizeof(T);
  if (fit(kMost)) return RunAll<T, Index, kPooled, kIsWeighted, kMost>(args, count, gpu);
  if constexpr (kMost > 2 && kPooled == Pooled::kSum) {
    if (fit(2)) return RunAll<T, Index, kPooled, kIsWeighted, 2>(args, count, gpu);
  }
  return RunAll<T, Index, kPooled, kIsWeighted, 1>(args, count, gpu);
}

}  // namespace

template <typename T, typename Index>
std::string PoolOnGpu(const GpuPoolArgs<T, Index>* args, int count, Gpu* gpu) {
  // A table without ids may have no weights.
  const bool is_weighted =
      std::any_of(args, args + count, [](const auto& each) { return each.weights.given(); });
  switch (args[0].pooled) {
    case Pooled::kMax:
      return RunWithPacks<T, Index, Pooled::kMax, false>(args, count, gpu);
    case Pooled::kSelected:
      return RunWithPacks<T, Index, Pooled::kSelected, false>(args, count, gpu);
    case Pooled::kSubtracted:
      if constexpr (std::is_same_v<Index, int32_t>) {
        return is_weighted ? RunWithPacks<T, Index, Pooled::kSubtracted, true>(args, count, gpu)
                           : RunWithPacks<T, Index, Pooled::kSubtracted, false>(args, count, gpu);
      }
      return "only bags of int32 positions can be subtracted";
    default:
      return is_weighted ? RunWithPacks<T, Index, Pooled::kSum, true>(args, count, gpu)
                         : RunWithPacks<T, Index, Pooled::kSum, false>(args, count, gpu);
  }
}

#define TF_TI_POOL_ON_GPU(T)                                                             \
  template std::string PoolOnGpu<T, int32_t>(const GpuPoolArgs<T, int32_t>*, int, Gpu*); \
  template std::string PoolOnGpu<T, int64_t>(const GpuPoolArgs<T, int64_t>*, int, Gpu*);
TF_TI_FLOATS(TF_TI_POOL_ON_GPU)

}  // namespace tf_ti
