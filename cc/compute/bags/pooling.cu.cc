#include <cmath>

#include "cc/compute/bags/pooling_gpu.h"

namespace tf_ti {
namespace {

// A group of 8, 16 or 32 lanes of a warp reduces some bags one after another, each lane one pack of
// columns; where rows are wider, other groups take the other tiles of columns. The group's lanes
// load the ids of a chunk together, and those of the next chunk before they add up its rows.
constexpr int kLeastLanes = 8;
constexpr int kRowsInFlight = 4;
static_assert(kLeastLanes % kRowsInFlight == 0, "");

// Bags of more ids than kLong are reduced in pieces: the first goes up to a multiple of kPiece, and
// one begins at each multiple. Among the places for what comes of pieces, 2 k + 1 is that of the
// piece that begins at k * kPiece, and 2 k that of a first piece which ends there, and may be
// empty.
constexpr int kPiece = 512;
constexpr int kLong = 2 * kPiece;

// Ids that keep a group busy, and threads that keep a multiprocessor busy. Where bags are short, a
// group takes several of them, if there are enough for all.
constexpr int64_t kManyIds = 16;
constexpr int64_t kManyThreads = 4096;

// What may be in place of a row's offset: padding, and an index that is no row.
constexpr int64_t kSkipped = -1;
constexpr int64_t kZeros = -2;

// What is loaded in place of a row that there is not: so all lanes load at all times, and no load
// waits for a branch.
__device__ const uint4 kNothing = {0, 0, 0, 0};

template <typename T, typename Index>
struct Plan {
  int lanes = kWarp;
  int64_t tiles = 1;
  int64_t blocks = 0;
  Index bags_per_group = 1;
  Index num_pieces = 0;  // none where no bag can be long
  // Of each piece: the long bag that goes on where it begins, or -1.
  Index* owners = nullptr;
  // Of each place: what Reduced has.
  Sum<T>* values = nullptr;
  Index* positions = nullptr;
  Index* counts = nullptr;
  double* totals = nullptr;
};

// A bag, or a piece of one, as one lane has it.
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
};

// Turns what a bag was reduced to into its output, in some columns.
template <typename T, typename Index, bool kIsMax, int kSize>
__device__ void Write(const GpuPoolArgs<T, Index>& args, Index bag, int64_t column,
                      const Reduced<T, Index, kIsMax, kSize>& reduced) {
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
  if (args.scale != nullptr) {
    const Index first = args.bags.Begin(bag);
    const int64_t row = args.rows_are_wide ? static_cast<const uint64_t*>(args.rows)[first]
                                           : static_cast<const uint32_t*>(args.rows)[first];
    T* const to = args.out + row * args.table.width + column;
    Pack<T, kSize> pack = LoadPack<kSize>(to);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      pack.values[j] = FromSum<T>(ToSum(pack.values[j]) - args.scale[0] * reduced.values[j]);
    }
    StorePack(pack, to);
  } else if (args.sums != nullptr) {
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

// Leads a group from chunk to chunk of its bags.
template <typename Index>
class Walk {
 public:
  // The group's bags are those from `bag` to `last`.
  __device__ Walk(const GpuBounds<Index>& bags, int lanes, bool splits, Index bag, Index last)
      : bags_(bags), lanes_(lanes), splits_(splits), bag_(bag - 1), last_(last) {
    if (bag < last) {
      bound_ = bags.Begin(bag);
      ahead_ = bags.Load(bag + 1);
    }
  }

  // A piece of one bag.
  __device__ Walk(const GpuBounds<Index>& bags, int lanes, Index bag, Index begin, Index end,
                  Index place)
      : bags_(bags),
        lanes_(lanes),
        bag_(bag),
        last_(bag + 1),
        position_(begin - lanes),
        end_(end),
        place_(place) {}

  // Goes to the first chunk, or to the next; a bag without ids has one too. False at the end.
  __device__ bool Next() {
    position_ += lanes_;
    if (position_ < end_) return true;
    if (bag_ + 1 >= last_) return false;
    ++bag_;
    position_ = bound_;
    end_ = bound_ = bags_.Clamp(ahead_);
    place_ = -1;
    if (bag_ + 1 < last_) ahead_ = bags_.Load(bag_ + 2);
    if (splits_ && end_ - position_ > kLong) Split();
    return true;
  }

  __device__ Index bag() const { return bag_; }
  __device__ Index position() const { return position_; }
  // Zero in a bag that would end before it begins.
  __device__ int size() const {
    const Index left = max(end_ - position_, Index{0});
    return static_cast<int>(min(left, static_cast<Index>(lanes_)));
  }
  __device__ bool is_last() const { return position_ + lanes_ >= end_; }
  // Where what comes of a piece goes; or -1 for a whole bag.
  __device__ Index place() const { return place_; }

 private:
  // Leaves only the long bag's first piece. Bounds that are bad may hide a bag from Find: then it
  // would be left to nobody, so it is empty.
  __device__ void Split() {
    const Index piece = (position_ + kPiece - 1) / kPiece;
    end_ = position_;
    if (bags_.Find(piece * kPiece, 0, bags_.Count() - 1) != bag_) return;
    end_ = piece * kPiece;
    place_ = 2 * piece;
  }

  const GpuBounds<Index> bags_;  // no reference, through which every look at it would be a load
  const int lanes_;
  const bool splits_ = false;
  Index bag_;
  const Index last_;
  Index bound_ = 0;  // where the next bag begins
  Index ahead_ = 0;  // where the one after it begins, as it was loaded
  Index position_ = 0;
  Index end_ = 0;
  Index place_ = -1;
};

// The walk of a group: over the piece that it is to reduce, or over its bags.
template <typename T, typename Index>
__device__ Walk<Index> StartWalk(const GpuBounds<Index>& bags, const Plan<T, Index>& plan,
                                 int64_t group, bool writes_owner) {
  const Index count = bags.Count();
  const bool splits = plan.num_pieces > 0;
  if (group >= plan.num_pieces) {
    // Beyond the last bag there are only the groups of one block.
    const Index first = static_cast<Index>(group - plan.num_pieces) * plan.bags_per_group;
    return {bags, plan.lanes, splits, first, min(first + plan.bags_per_group, count)};
  }
  const Index piece = static_cast<Index>(group);
  const Index position = piece * kPiece;
  const Index bag = bags.Find(position, 0, count - 1);
  const bool goes_on = bag >= 0 && bag < count && position < bags.End(bag) &&
                       bags.End(bag) - bags.Begin(bag) > kLong;
  if (writes_owner) plan.owners[piece] = goes_on ? bag : -1;
  if (!goes_on) return {bags, plan.lanes, splits, 0, 0};
  const Index end = min(position + kPiece, bags.End(bag));
  return {bags, plan.lanes, bag, position, end, 2 * piece + 1};
}

// What one lane has loaded of one id, for all of its group. Nothing is made of it before its chunk
// begins: what is loaded ahead would be waited for.
template <typename T, typename Index>
struct Loaded {
  bool is_in = false;
  Index id = 0;
  Sum<T> wide_weight = Sum<T>(0);
  T rounded_weight = T();
};

template <typename T, typename Index, bool kIsWeighted>
__device__ __forceinline__ Loaded<T, Index> Load(const GpuPoolArgs<T, Index>& args,
                                                 Index position) {
  Loaded<T, Index> loaded;
  loaded.is_in = true;
  loaded.id = args.ids == nullptr ? position : args.ids[position];
  if constexpr (kIsWeighted) {
    if (args.weights.wide != nullptr) {
      loaded.wide_weight = args.weights.wide[position];
    } else {
      loaded.rounded_weight = args.weights.rounded[position];
    }
  }
  return loaded;
}

template <typename S>
struct Entry {
  int64_t offset;  // of the row's first element, or kSkipped or kZeros
  S weight;
};

template <typename T, typename Index, bool kIsWeighted>
__device__ __forceinline__ Entry<Sum<T>> Decode(const GpuPoolArgs<T, Index>& args,
                                                const Loaded<T, Index>& loaded) {
  const int64_t id = loaded.id;
  Entry<Sum<T>> entry{kSkipped, Sum<T>(0)};
  if (!loaded.is_in || (args.has_padding && id == args.padding_idx)) return entry;
  const bool is_row = static_cast<uint64_t>(id) < static_cast<uint64_t>(args.table.num_rows);
  entry.offset = is_row ? id * args.table.width : kZeros;
  if constexpr (kIsWeighted) {
    entry.weight = args.weights.wide != nullptr ? loaded.wide_weight : ToSum(loaded.rounded_weight);
  }
  return entry;
}

// Clears what is not selected of a row's elements, from element `at` of the table on.
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

template <typename T, typename Index, Pooled kPooled, bool kIsWeighted, int kSize>
__global__ void __launch_bounds__(kBlock, kPooled == Pooled::kMax || kSize > 4 ? 2 : 3)
    Pool(const __grid_constant__ GpuPoolArgs<T, Index> args,
         const __grid_constant__ Plan<T, Index> plan) {
  constexpr bool kIsMax = kPooled == Pooled::kMax;
  const int lanes = plan.lanes;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t width = args.table.width;
  for (int64_t block = blockIdx.x; block < plan.blocks; block += gridDim.x) {
    const int64_t column = (block % plan.tiles * lanes + lane) * kSize;
    const int64_t group = block / plan.tiles * (kBlock / lanes) + threadIdx.x / lanes;
    const bool is_column = column < width;
    const T* const rows = args.table.rows + column;
    Walk<Index> walk = StartWalk(args.bags, plan, group, column == 0);
    Reduced<T, Index, kIsMax, kSize> reduced;
    reduced.Clear();
    Loaded<T, Index> ahead;
    bool more = walk.Next();
    if (more && lane < walk.size()) {
      ahead = Load<T, Index, kIsWeighted>(args, walk.position() + lane);
    }
    // The chunk whose rows are in flight.
    Index bag = -1, position = 0, place = -1;
    int size = 0, first = 0;
    bool ends_bag = false;
    Entry<Sum<T>> entry{kSkipped, Sum<T>(0)};
    // Some of its rows, loaded at a loop's end and added up at the next one's begin: else the
    // compiler would issue one load after another, each once the one before is added up.
    Pack<T, kSize> packs[kRowsInFlight] = {};
    Sum<T> weights[kRowsInFlight] = {};
    bool is_in[kRowsInFlight] = {};
    for (;;) {
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const Sum<T> value = ToSum(packs[r].values[j]);
          if constexpr (kIsMax) {
            if (is_in[r]) reduced.TakeLarger(j, value, position + first + r);
          } else if constexpr (kIsWeighted) {
            reduced.values[j] += weights[r] * value;
          } else {
            reduced.values[j] += value;
          }
        }
        reduced.count += is_in[r];
      }
      first += kRowsInFlight;

      // All groups of a warp go on until the last is done, as they shuffle together.
      if (!__any_sync(kAllLanes, first < size)) {
        if (ends_bag) {
          if (place < 0) {
            Write(args, bag, column, reduced);
          } else {
            if (column == 0) {
              plan.counts[place] = reduced.count;
              plan.totals[place] = reduced.total;
            }
#pragma unroll
            for (int j = 0; j < kSize && is_column; ++j) {
              plan.values[place * width + column + j] = reduced.values[j];
              if constexpr (kIsMax) {
                plan.positions[place * width + column + j] = reduced.positions[j];
              }
            }
          }
          reduced.Clear();
        }
        if (!__any_sync(kAllLanes, more)) break;
        bag = walk.bag();
        position = walk.position();
        place = walk.place();
        ends_bag = more && walk.is_last();
        size = more ? walk.size() : 0;
        first = 0;
        entry = Decode<T, Index, kIsWeighted>(args, ahead);
        ahead = {};
        more = more && walk.Next();
        if (more && lane < walk.size()) {
          ahead = Load<T, Index, kIsWeighted>(args, walk.position() + lane);
        }
      }

#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int64_t offset = __shfl_sync(kAllLanes, entry.offset, first + r, lanes);
        is_in[r] = offset != kSkipped;
        const bool is_row = offset >= 0 && is_column;
        packs[r] = LoadPack<kSize>(is_row ? rows + offset : reinterpret_cast<const T*>(&kNothing));
        if constexpr (kIsWeighted) {
          weights[r] = __shfl_sync(kAllLanes, entry.weight, first + r, lanes);
          if (args.divides) {
            const double weight = weights[r];
            reduced.total += args.is_root ? weight * weight : weight;
          }
        }
        if constexpr (kPooled == Pooled::kSelected) {
          if (is_row) {
            const int64_t at = offset + column;
            const int32_t selected = args.positions[position + first + r];
            if (args.selected_is_wide) {
              Select(static_cast<const int64_t*>(args.selected), at, selected, &packs[r]);
            } else {
              Select(static_cast<const int32_t*>(args.selected), at, selected, &packs[r]);
            }
          }
        }
      }
    }
  }
}

// Reduces the pieces of each long bag. A block takes one column a lane, of the bags whose second
// piece is in its window of pieces; its warps share the pieces of a bag.
constexpr int kCombineWarps = 32;
constexpr int kWindow = kWarp;
constexpr int kPlacesInFlight = 4;

// One block a multiprocessor is enough: else there would be no registers for what is in flight.
template <typename T, typename Index, bool kIsMax>
__global__ void __launch_bounds__(kCombineWarps* kWarp, 1)
    Combine(const __grid_constant__ GpuPoolArgs<T, Index> args,
            const __grid_constant__ Plan<T, Index> plan, int64_t tiles, int64_t blocks) {
  __shared__ Index owners[kWindow];
  __shared__ Sum<T> values[kCombineWarps][kWarp];
  __shared__ Index positions[kCombineWarps][kIsMax ? kWarp : 1];
  __shared__ Index counts[kCombineWarps];
  __shared__ double totals[kCombineWarps];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t width = args.table.width;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t column = block % tiles * kWarp + lane;
    const Index window = static_cast<Index>(block / tiles * kWindow);
    if (threadIdx.x < kWindow) {
      const Index piece = window + static_cast<Index>(threadIdx.x);
      Index bag = piece < plan.num_pieces ? plan.owners[piece] : -1;
      if (bag >= 0 && args.bags.Begin(bag) <= (piece - 1) * kPiece) bag = -1;
      owners[threadIdx.x] = bag;
    }
    __syncthreads();
    for (int k = 0; k < kWindow; ++k) {
      const Index bag = owners[k];
      if (bag < 0) continue;
      const Index first = window + k;
      const Index end = args.bags.End(bag);
      // The pieces from `first` on, and before them the one up to there.
      const Index num_places = 1 + (end - first * kPiece + kPiece - 1) / kPiece;
      Reduced<T, Index, kIsMax, 1> reduced;
      reduced.Clear();
      const auto add = [&](const Reduced<T, Index, kIsMax, 1>& part) {
        if (part.count == 0) return;
        if constexpr (kIsMax) {
          reduced.TakeLarger(0, part.values[0], part.positions[0]);
        } else {
          reduced.values[0] += part.values[0];
        }
        reduced.count += part.count;
        reduced.total += part.total;
      };
      // In this order, as num_places times a number might be too large.
      const Index share = (num_places + kCombineWarps - 1) / kCombineWarps;
      const Index stop = min(num_places, share * (warp + 1));
      for (Index p = share * warp; p < stop; p += kPlacesInFlight) {
        // All are loaded before one is added: else each load would wait for what is before it.
        Reduced<T, Index, kIsMax, 1> parts[kPlacesInFlight];
#pragma unroll
        for (int r = 0; r < kPlacesInFlight; ++r) {
          const Index q = min(p + r, stop - 1);
          const Index piece = first + q - 1;
          const Index place = q == 0 ? 2 * first : 2 * piece + 1;
          const int64_t at = place * width + column;
          const bool is_column = column < width;
          parts[r].values[0] = is_column ? plan.values[at] : Sum<T>(0);
          if constexpr (kIsMax) parts[r].positions[0] = is_column ? plan.positions[at] : -1;
          parts[r].count = plan.counts[place];
          parts[r].total = plan.totals[place];
          // Where bounds are bad, a piece may be another bag's.
          const bool is_mine = q == 0 || plan.owners[piece] == bag;
          if (p + r >= stop || !is_mine) parts[r].count = 0;
        }
#pragma unroll
        for (int r = 0; r < kPlacesInFlight; ++r) add(parts[r]);
      }
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
          add({{values[w][lane]}, {positions[w][kIsMax ? lane : 0]}, counts[w], totals[w]});
        }
        Write(args, bag, column, reduced);
      }
      __syncthreads();
    }
    __syncthreads();
  }
}

// Whether elements are loaded and stored in packs of this size. Rows should fill a group's lanes.
template <typename T, typename Index>
bool Fits(const GpuPoolArgs<T, Index>& args, int size) {
  const uint64_t places = reinterpret_cast<uintptr_t>(args.table.rows) |
                          reinterpret_cast<uintptr_t>(args.out) | args.table.width * sizeof(T);
  const bool loads_selected = reinterpret_cast<uintptr_t>(args.selected) % 16 == 0;
  return places % (size * sizeof(T)) == 0 && loads_selected &&
         args.table.width >= kLeastLanes * size;
}

template <typename T, typename Index, Pooled kPooled, bool kIsWeighted, int kSize>
std::string Run(const GpuPoolArgs<T, Index>& args, Gpu* gpu) {
  constexpr bool kIsMax = kPooled == Pooled::kMax;
  const GpuBounds<Index>& bags = args.bags;
  const int64_t width = args.table.width;
  Plan<T, Index> plan;
  const int64_t num_packs = (width + kSize - 1) / kSize;
  plan.lanes = kLeastLanes;
  while (plan.lanes < kWarp && plan.lanes < num_packs) plan.lanes *= 2;
  plan.tiles = std::max<int64_t>(1, (num_packs + plan.lanes - 1) / plan.lanes);
  if ((bags.bounds == nullptr ? bags.packed_size : bags.num_ids) > kLong) {
    plan.num_pieces = (bags.num_ids + kPiece - 1) / kPiece;
    const int64_t places = int64_t{2} * plan.num_pieces;
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, plan.num_pieces, &plan.owners));
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, places, &plan.counts));
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, places, &plan.totals));
    TF_TI_RETURN_IF_WRONG(Allocate(gpu, places * width, &plan.values));
    if (kIsMax) TF_TI_RETURN_IF_WRONG(Allocate(gpu, places * width, &plan.positions));
  }
  const int64_t count = bags.count, num_ids = bags.num_ids;
  const int64_t most_bags = kManyIds * count / (num_ids + 1);
  int device, num_processors;
  TF_TI_RETURN_IF_WRONG(Describe(cudaGetDevice(&device), gpu));
  TF_TI_RETURN_IF_WRONG(Describe(
      cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, device), gpu));
  const int64_t spare = count * plan.tiles * plan.lanes / (num_processors * kManyThreads);
  const int64_t bags_per_group = std::max<int64_t>(1, std::min({most_bags, spare, kManyIds}));
  plan.bags_per_group = static_cast<Index>(bags_per_group);
  const int64_t num_groups = plan.num_pieces + (count + bags_per_group - 1) / bags_per_group;
  const int64_t groups_per_block = kBlock / plan.lanes;
  plan.blocks = plan.tiles * ((num_groups + groups_per_block - 1) / groups_per_block);
  TF_TI_RETURN_IF_WRONG(Launch(&Pool<T, Index, kPooled, kIsWeighted, kSize>,
                               NumBlocks(plan.blocks, 1), kBlock, gpu, args, plan));
  if (plan.num_pieces == 0) return "";
  const int64_t tiles = std::max<int64_t>(1, (width + kWarp - 1) / kWarp);
  const int64_t blocks = tiles * ((plan.num_pieces + kWindow - 1) / kWindow);
  return Launch(&Combine<T, Index, kIsMax>, NumBlocks(blocks, 1), kCombineWarps * kWarp, gpu, args,
                plan, tiles, blocks);
}

// With the largest packs that fit, of 16 bytes at most.
template <typename T, typename Index, Pooled kPooled, bool kIsWeighted>
std::string RunWithPacks(const GpuPoolArgs<T, Index>& args, Gpu* gpu) {
  constexpr int kMost = 16 / sizeof(T);
  if (Fits(args, kMost)) return Run<T, Index, kPooled, kIsWeighted, kMost>(args, gpu);
  if constexpr (kMost > 2 && kPooled == Pooled::kSum) {
    if (Fits(args, 2)) return Run<T, Index, kPooled, kIsWeighted, 2>(args, gpu);
  }
  return Run<T, Index, kPooled, kIsWeighted, 1>(args, gpu);
}

}  // namespace

template <typename T, typename Index>
std::string PoolOnGpu(const GpuPoolArgs<T, Index>& args, Gpu* gpu) {
  if (args.bags.count == 0) return "";
  switch (args.pooled) {
    case Pooled::kMax:
      return RunWithPacks<T, Index, Pooled::kMax, false>(args, gpu);
    case Pooled::kSelected:
      return RunWithPacks<T, Index, Pooled::kSelected, false>(args, gpu);
    default:
      return args.weights.given() ? RunWithPacks<T, Index, Pooled::kSum, true>(args, gpu)
                                  : RunWithPacks<T, Index, Pooled::kSum, false>(args, gpu);
  }
}

#define TF_TI_POOL_ON_GPU(T)                                                        \
  template std::string PoolOnGpu<T, int32_t>(const GpuPoolArgs<T, int32_t>&, Gpu*); \
  template std::string PoolOnGpu<T, int64_t>(const GpuPoolArgs<T, int64_t>&, Gpu*);
TF_TI_FLOATS(TF_TI_POOL_ON_GPU)

}  // namespace tf_ti
