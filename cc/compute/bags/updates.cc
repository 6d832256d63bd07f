#include <algorithm>
#include <string>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/pooling.h"

namespace tf_ti {

template <typename T, typename Index>
std::string ScatterSub(const Index* indices, int64_t count, const T* values, Sum<T> scale,
                       int64_t num_rows, int64_t width, Parallel* parallel, T* table) {
  constexpr int64_t kAhead = 16;
  constexpr uint64_t kLine = 64;
  bool is_ascending = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = indices[i];
    if (row < 0 || row >= num_rows) {
      return "indices[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", but the variable has " + std::to_string(num_rows) + " rows";
    }
    is_ascending = is_ascending && (i == 0 || indices[i - 1] < row);
  }
  const SubtractScaled<T> subtract = ChooseSubtractScaled<T>();
  const uint64_t row_bytes = width * sizeof(T);
  const int64_t parts =
      is_ascending ? NumParts(*parallel, static_cast<double>(count) * row_bytes * 2) : 1;
  parallel->Run(parts, [&](int64_t part) {
    const int64_t end = count * (part + 1) / parts;
    for (int64_t i = count * part / parts; i < end; ++i) {
      const char* const ahead =
          reinterpret_cast<const char*>(table + indices[std::min(i + kAhead, end - 1)] * width);
      for (uint64_t byte = 0; byte < row_bytes; byte += kLine) __builtin_prefetch(ahead + byte, 1);
      subtract(table + indices[i] * width, values + i * width, scale, width);
    }
  });
  return "";
}

#define TF_TI_SCATTER_SUB(T, Index)                                                           \
  template std::string ScatterSub<T, Index>(const Index*, int64_t, const T*, Sum<T>, int64_t, \
                                            int64_t, Parallel*, T*);
#define TF_TI_SCATTER_SUB_BOTH(T) TF_TI_SCATTER_SUB(T, int32_t) TF_TI_SCATTER_SUB(T, int64_t)
TF_TI_NUMBERS(TF_TI_SCATTER_SUB_BOTH)

}  // namespace tf_ti
