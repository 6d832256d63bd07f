#include <iterator>
#include <string>

#include "cc/compute/bags/pooling_steps_gpu.h"
#include "cc/compute/bags/reduced_gpu-inl.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

constexpr int kRowsInFlight = 4;
static_assert(kLeastLanes % kRowsInFlight == 0, "");

// Special offsets of a row: for padding, and for an index that is no row.
constexpr int64_t kSkipped = -1;
constexpr int64_t kZeros = -2;

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
template <typename T, Pooled kPooled, bool kIsWeighted, int kSize>
constexpr int kBlocksAtOnce = kPooled == Pooled::kMax || kPooled == Pooled::kSubtracted ||
                                      kSize > 4 || sizeof(Sum<T>) > 4
                                  ? 2
                              : kIsWeighted || kPooled == Pooled::kSelected ? 3
                                                                            : 4;

// In one piece: compilers give its parts more registers, and spill some, where they are functions.
template <typename T, typename Index, Pooled kPooled, bool kIsWeighted, int kSize, int kTables>
__global__ void __launch_bounds__(kBlock, kBlocksAtOnce<T, kPooled, kIsWeighted, kSize>)
    Pool(const __grid_constant__ Batch<T, Index, kTables> batch) {
  constexpr bool kIsMax = kPooled == Pooled::kMax;
  const int lanes = batch.plans[0].lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t width = batch.args[0].table.width;
  if (batch.combine_blocks[kTables] > 0) LetNextBegin();  // Combine comes next
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

template <Pooled kPooled, bool kIsWeighted, int kSize, typename T, typename Index, int kTables>
std::string LaunchPool(const Batch<T, Index, kTables>& batch, Gpu* gpu) {
  return Launch(&Pool<T, Index, kPooled, kIsWeighted, kSize, kTables>,
                NumBlocks(batch.blocks[kTables], 1), kBlock, gpu, batch);
}

template <Pooled kPooled, bool kIsWeighted, typename T, typename Index, int kTables>
std::string LaunchWithPacks(const Batch<T, Index, kTables>& batch, int pack_size, Gpu* gpu) {
  constexpr int kMost = kMostPack<T>;
  if constexpr (kMost > 2 && kPooled == Pooled::kSum) {
    if (pack_size == 2) return LaunchPool<kPooled, kIsWeighted, 2>(batch, gpu);
  }
  return pack_size == kMost ? LaunchPool<kPooled, kIsWeighted, kMost>(batch, gpu)
                            : LaunchPool<kPooled, kIsWeighted, 1>(batch, gpu);
}

}  // namespace

template <typename T, typename Index, int kTables>
std::string PoolBatch(const Batch<T, Index, kTables>& batch, int pack_size, Gpu* gpu) {
  const bool is_weighted = batch.args[0].weights.given();
  return WithPooled<Index, kTables>(batch.args[0].pooled, [&](auto pooled) {
    constexpr Pooled kPooled = decltype(pooled)::value;
    if constexpr (kPooled == Pooled::kSum || kPooled == Pooled::kSubtracted) {
      if (is_weighted) return LaunchWithPacks<kPooled, true>(batch, pack_size, gpu);
    }
    return LaunchWithPacks<kPooled, false>(batch, pack_size, gpu);
  });
}

#define TF_TI_POOL(T, Index, kTables) \
  template std::string PoolBatch<T, Index, kTables>(const Batch<T, Index, kTables>&, int, Gpu*);
#define TF_TI_POOL_ALL(T) TF_TI_BATCHES(TF_TI_POOL, T)
TF_TI_FLOATS(TF_TI_POOL_ALL)

}  // namespace tf_ti
