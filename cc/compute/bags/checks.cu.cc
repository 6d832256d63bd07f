#include <string>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// The place of a problem: a position in the bounds, or kInIndices and a position in the indices. A
// larger number is no problem.
constexpr int64_t kInIndices = int64_t{1} << 61;
constexpr int64_t kNowhere = kInIndices * 2;
constexpr int kNowhereByte = 0x7f;  // makes a larger number still

__device__ void ReportProblem(int64_t place, GpuProblem* problem) {
  atomicMin(reinterpret_cast<unsigned long long*>(&problem->place),
            static_cast<unsigned long long>(place));
}

template <typename Index>
__global__ void __launch_bounds__(kBlock)
    CheckBounds(const Index* bounds, int64_t size, int64_t most, GpuProblem* problem) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) {
    const Index bound = bounds[i];
    if (bound < 0 || bound > most || (i > 0 && bound < bounds[i - 1])) ReportProblem(i, problem);
  }
}

template <typename Index>
__global__ void __launch_bounds__(kBlock)
    CheckRows(const Index* indices, int64_t size, int64_t num_rows, bool has_padding,
              int64_t padding_idx, GpuProblem* problem) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) {
    const int64_t index = indices[i];
    if (has_padding && index == padding_idx) continue;
    if (index < 0 || index >= num_rows) ReportProblem(kInIndices + i, problem);
  }
}

template <typename Index>
__global__ void LoadProblem(const Index* bounds, const Index* indices, GpuProblem* problem) {
  const int64_t place = problem->place;
  if (place > kNowhere) return;
  const bool in_indices = place >= kInIndices;
  const int64_t position = in_indices ? place - kInIndices : place;
  problem->value = in_indices ? indices[position] : bounds[position];
  problem->previous = in_indices || position == 0 ? problem->value : bounds[position - 1];
}

std::string At(const std::string& name, int64_t position, int64_t value) {
  return name + "[" + std::to_string(position) + "] is " + std::to_string(value);
}

}  // namespace

template <typename Index>
std::string CheckBags(const Bags<Index>& bags, int64_t num_rows, Gpu* gpu, GpuProblem* problem) {
  TF_TI_RETURN_IF_WRONG(
      Describe(cudaMemsetAsync(problem, kNowhereByte, sizeof(*problem), gpu->stream()), gpu));
  if (bags.kind != BagKind::kPacked) {
    const bool segments = bags.kind == BagKind::kSegments;
    const int64_t size = segments ? bags.num_indices : bags.count + bags.include_last_offset;
    const int64_t most = segments ? bags.count - 1 : bags.num_indices;
    TF_TI_RETURN_IF_WRONG(Launch(&CheckBounds<Index>, NumBlocks(size, kBlock), kBlock, gpu,
                                 bags.bounds, size, most, problem));
  }
  TF_TI_RETURN_IF_WRONG(Launch(&CheckRows<Index>, NumBlocks(bags.num_indices, kBlock), kBlock, gpu,
                               bags.indices, bags.num_indices, num_rows, bags.has_padding,
                               bags.padding_idx, problem));
  return Launch(&LoadProblem<Index>, 1, 1, gpu, bags.bounds, bags.indices, problem);
}

template <typename Index>
std::string DescribeProblem(const Bags<Index>& bags, int64_t num_rows, const GpuProblem& problem) {
  if (problem.place > kNowhere) return "";
  if (problem.place < kInIndices) {
    const bool segments = bags.kind == BagKind::kSegments;
    const std::string name = segments ? "segment_ids" : "offsets";
    const std::string at = At(name, problem.place, problem.value);
    if (problem.value < problem.previous) {
      return at + ", but " + At(name, problem.place - 1, problem.previous) + " before it";
    }
    if (problem.value < 0) return at + ", which is negative";
    if (segments) return at + ", but num_segments is " + std::to_string(bags.count);
    return at + ", but there are " + std::to_string(bags.num_indices) + " indices";
  }
  const int64_t position = problem.place - kInIndices;
  std::string place = std::to_string(position);
  if (bags.kind == BagKind::kPacked) {
    const int64_t width = bags.num_indices / bags.count;
    place = std::to_string(position / width) + ", " + std::to_string(position % width);
  }
  return "indices[" + place + "] is " + std::to_string(problem.value) + ", but emb_table has " +
         std::to_string(num_rows) + " rows";
}

template <typename Index>
std::string CheckIndices(const Index* indices, int64_t count, int64_t num_rows, Gpu* gpu,
                         GpuProblem* problem) {
  Bags<Index> bags;
  bags.kind = BagKind::kPacked;
  bags.indices = indices;
  bags.num_indices = count;
  return CheckBags(bags, num_rows, gpu, problem);
}

std::string DescribeProblem(int64_t num_rows, const GpuProblem& problem) {
  if (problem.place > kNowhere) return "";
  return At("indices", problem.place - kInIndices, problem.value) + ", but the variable has " +
         std::to_string(num_rows) + " rows";
}

#define TF_TI_CHECK_ON_GPU(Index)                                                              \
  template std::string CheckBags<Index>(const Bags<Index>&, int64_t, Gpu*, GpuProblem*);       \
  template std::string DescribeProblem<Index>(const Bags<Index>&, int64_t, const GpuProblem&); \
  template std::string CheckIndices<Index>(const Index*, int64_t, int64_t, Gpu*, GpuProblem*);
TF_TI_CHECK_ON_GPU(int32_t)
TF_TI_CHECK_ON_GPU(int64_t)

}  // namespace tf_ti
