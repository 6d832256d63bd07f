#include <algorithm>
#include <string>
#include <type_traits>

#include "cc/compute/bags/pool_integers_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/bags/pooling_steps_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// The first driver whose kernels may have the arguments of kMostTables tables.
constexpr int kDriverOfLongArguments = 12010;

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

// The size of the largest packs that fit all bags. Packs of two are worth their code for sums.
template <typename T, typename Index>
int FindPackSize(const GpuPoolArgs<T, Index>* args, int count) {
  const auto fit = [&](int size) {
    return std::all_of(args, args + count, [&](const auto& each) { return Fits(each, size); });
  };
  if (fit(kMostPack<T>)) return kMostPack<T>;
  return args[0].pooled == Pooled::kSum && fit(2) ? 2 : 1;
}

template <int kTables, typename T, typename Index>
std::string Run(const GpuPoolArgs<T, Index>* args, int count, int pack_size, Gpu* gpu) {
  Batch<T, Index, kTables> batch;
  TF_TI_RETURN_IF_WRONG(PlanBatch(args, count, pack_size, gpu, &batch));
  TF_TI_RETURN_IF_WRONG(PoolBatch(batch, pack_size, gpu));
  return CombineBatch(batch, gpu);
}

}  // namespace

template <typename T, typename Index>
std::string PoolOnGpu(const GpuPoolArgs<T, Index>* args, int count, Gpu* gpu) {
  if constexpr (std::is_integral_v<T>) {
    for (; count > 0; ++args, --count) TF_TI_RETURN_IF_WRONG(PoolIntegers(*args, gpu));
  } else {
    const int pack_size = FindPackSize(args, count);
    int driver = 0;
    if (count > 1) TF_TI_RETURN_IF_WRONG(Describe(cudaDriverGetVersion(&driver), gpu));
    const int most = driver != 0 && driver < kDriverOfLongArguments ? 1 : kMostTables;
    for (; count > 1 && most > 1; args += most, count -= most) {
      TF_TI_RETURN_IF_WRONG(Run<kMostTables>(args, std::min(count, most), pack_size, gpu));
    }
    for (; count > 0; ++args, --count) {
      TF_TI_RETURN_IF_WRONG(Run<1>(args, 1, pack_size, gpu));
    }
  }
  return "";
}

#define TF_TI_POOL_ON_GPU(T)                                                             \
  template std::string PoolOnGpu<T, int32_t>(const GpuPoolArgs<T, int32_t>*, int, Gpu*); \
  template std::string PoolOnGpu<T, int64_t>(const GpuPoolArgs<T, int64_t>*, int, Gpu*);
TF_TI_FLOATS(TF_TI_POOL_ON_GPU)
TF_TI_INTEGERS(TF_TI_POOL_ON_GPU)

}  // namespace tf_ti
