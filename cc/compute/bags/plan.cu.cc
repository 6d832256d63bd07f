#include <algorithm>
#include <string>

#include "cc/compute/bags/pooling_steps_gpu.h"

namespace tf_ti {
namespace {

// Ids that keep a group busy, and threads that keep a multiprocessor busy. Where bags are short, a
// group takes several of them, if there are enough for all. Where bags are a table's rows, those of
// rows that are looked up often may be side by side. So groups have equal shares of the work there:
// each id counts as 1, and each bag as some more, so that no group has more bags than lanes.
constexpr int64_t kManyIds = 32;
constexpr int64_t kManyThreads = 4096;
constexpr int64_t kManyBags = 4;  // fewer are not worth a search
constexpr int64_t kMostWork = 96;
static_assert(kMostWork % kWarp == 0, "");

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
Plan<T, Index> MakePlan(const GpuPoolArgs<T, Index>& args, int pack_size, int64_t num_bags,
                        int num_processors) {
  const GpuBounds<Index>& bags = args.bags;
  const int64_t num_packs = (args.table.width + pack_size - 1) / pack_size;
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

// Counts the blocks of each table, and the shares of its pieces among them.
template <typename T, typename Index, int kTables>
void CountBlocks(int count, int num_processors, Batch<T, Index, kTables>* batch) {
  const int64_t combine_tiles = CombineTiles(batch->args[0].table.width);
  const auto num_long = std::count_if(batch->plans, batch->plans + count,
                                      [](const auto& plan) { return plan.num_pieces > 0; });
  for (int k = 0; k < kTables; ++k) {
    batch->blocks[k + 1] = batch->blocks[k];
    batch->combine_blocks[k + 1] = batch->combine_blocks[k];
    if (k >= count) continue;
    Plan<T, Index>& plan = batch->plans[k];
    const int64_t groups_per_block = kBlock / plan.lanes;
    batch->blocks[k + 1] +=
        plan.tiles * ((plan.num_groups + groups_per_block - 1) / groups_per_block);
    if (plan.num_pieces == 0) continue;
    // As many blocks as run at once; fewer where there are not many pieces.
    constexpr int64_t kManyPieces = 16;
    plan.num_shares = std::min<int64_t>((plan.num_pieces + kManyPieces - 1) / kManyPieces,
                                        num_processors / (combine_tiles * num_long));
    plan.num_shares = std::max<int64_t>(plan.num_shares,
                                        (plan.num_pieces + kCombineThreads - 1) / kCombineThreads);
    batch->combine_blocks[k + 1] += combine_tiles * plan.num_shares;
  }
}

// Gives out memory for the results of pieces. Returns how many bytes that is.
template <typename T, typename Index, int kTables>
int64_t TakeMemory(char* memory, Batch<T, Index, kTables>* batch) {
  const int64_t width = batch->args[0].table.width;
  int64_t bytes = 0;
  for (Plan<T, Index>& plan : batch->plans) {
    const int64_t places = int64_t{2} * plan.num_pieces;
    plan.owners = Take<Index>(memory, plan.num_pieces, &bytes);
    plan.counts = Take<Index>(memory, places, &bytes);
    plan.totals = Take<double>(memory, places, &bytes);
    plan.values = Take<Sum<T>>(memory, places * width, &bytes);
    if (batch->args[0].pooled == Pooled::kMax) {
      plan.positions = Take<Index>(memory, places * width, &bytes);
    }
  }
  return bytes;
}

}  // namespace

template <typename T, typename Index, int kTables>
std::string PlanBatch(const GpuPoolArgs<T, Index>* args, int count, int pack_size, Gpu* gpu,
                      Batch<T, Index, kTables>* batch) {
  int device, num_processors;
  TF_TI_RETURN_IF_WRONG(Describe(cudaGetDevice(&device), gpu));
  TF_TI_RETURN_IF_WRONG(Describe(
      cudaDeviceGetAttribute(&num_processors, cudaDevAttrMultiProcessorCount, device), gpu));
  int64_t num_bags = 0;
  for (int k = 0; k < count; ++k) num_bags += args[k].bags.count;
  for (int k = 0; k < count; ++k) {
    batch->args[k] = args[k];
    batch->plans[k] = MakePlan(args[k], pack_size, num_bags, num_processors);
  }
  CountBlocks(count, num_processors, batch);
  if (batch->combine_blocks[kTables] == 0) return "";
  char* memory;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, TakeMemory(nullptr, batch), &memory));
  TakeMemory(memory, batch);
  return "";
}

#define TF_TI_PLAN(T, Index, kTables)                                                             \
  template std::string PlanBatch<T, Index, kTables>(const GpuPoolArgs<T, Index>*, int, int, Gpu*, \
                                                    Batch<T, Index, kTables>*);
#define TF_TI_PLAN_ALL(T) TF_TI_BATCHES(TF_TI_PLAN, T)
TF_TI_FLOATS(TF_TI_PLAN_ALL)

}  // namespace tf_ti
