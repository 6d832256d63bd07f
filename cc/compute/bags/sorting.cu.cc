#include <thrust/iterator/counting_iterator.h>

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include "cc/compute/bags/sorting_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

// Calls one of CUB's functions twice: the first call only says how much memory the second needs.
template <typename Function>
std::string CallCub(Gpu* gpu, const Function& function) {
  size_t bytes = 0;
  TF_TI_RETURN_IF_WRONG(Describe(function(nullptr, bytes), gpu));
  char* memory;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, static_cast<int64_t>(bytes), &memory));
  return Describe(function(memory, bytes), gpu);
}

template <typename Key>
struct IsNewRow {
  const Key* rows;

  __device__ bool operator()(int32_t i) const { return i > 0 && rows[i] != rows[i - 1]; }
};

}  // namespace

template <typename Key>
std::string SortByRow(uint64_t largest, Gpu* gpu, GpuEntries<Key>* entries) {
  GpuEntries<Key> other;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, entries->size, &other.rows));
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, entries->size, &other.values));
  cub::DoubleBuffer<Key> rows(entries->rows, other.rows);
  cub::DoubleBuffer<int32_t> values(entries->values, other.values);
  int bits = 1;
  while (bits < 64 && largest >> bits != 0) ++bits;
  TF_TI_RETURN_IF_WRONG(CallCub(gpu, [&](void* memory, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, rows, values,
                                           static_cast<int>(entries->size), 0, bits, gpu->stream());
  }));
  entries->rows = rows.Current();
  entries->values = values.Current();
  return "";
}

template <typename Key>
std::string FindStarts(const Key* rows, int64_t size, Gpu* gpu, int32_t* starts,
                       int64_t* num_starts) {
  TF_TI_RETURN_IF_WRONG(Describe(cudaMemsetAsync(starts, 0, sizeof(*starts), gpu->stream()), gpu));
  return CallCub(gpu, [&](void* memory, size_t& bytes) {
    return cub::DeviceSelect::If(memory, bytes, thrust::counting_iterator<int32_t>(0), starts + 1,
                                 num_starts, static_cast<int>(size), IsNewRow<Key>{rows},
                                 gpu->stream());
  });
}

#define TF_TI_SORTING(Key)                                               \
  template std::string SortByRow<Key>(uint64_t, Gpu*, GpuEntries<Key>*); \
  template std::string FindStarts<Key>(const Key*, int64_t, Gpu*, int32_t*, int64_t*);
TF_TI_SORTING(uint32_t)
TF_TI_SORTING(uint64_t)

}  // namespace tf_ti
