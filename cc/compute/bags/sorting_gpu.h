// Numbers of rows in ascending order on a GPU.
#ifndef TF_TI_CC_COMPUTE_BAGS_SORTING_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_SORTING_GPU_H_

#include <cstdint>
#include <limits>
#include <string>

#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/gpu.h"

namespace tf_ti {

// Numbers of entries and of bags are int32.
constexpr int64_t kMostEntries = GpuBounds<int32_t>::kMost;

// Returns true if a row, or the number of rows, may be larger than a uint32.
inline bool RowsAreWide(int64_t num_rows) {
  return num_rows > std::numeric_limits<uint32_t>::max();
}

// Entries, each of them a row and a number, on the device. Key is uint32_t or uint64_t.
template <typename Key>
struct GpuEntries {
  int64_t size = 0;
  Key* rows = nullptr;
  int32_t* values = nullptr;
};

// Sorts entries by their rows, none of which is above `largest`; the order of those of one row
// stays as it is. The result is in memory of its own or in that of `entries`, which is lost.
template <typename Key>
std::string SortByRow(uint64_t largest, Gpu* gpu, GpuEntries<Key>* entries);

// Finds the runs of equal rows among sorted ones: starts[k] is where the k-th begins, and
// num_starts[0] the number of runs after the first.
template <typename Key>
std::string FindStarts(const Key* rows, int64_t size, Gpu* gpu, int32_t* starts,
                       int64_t* num_starts);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_SORTING_GPU_H_
