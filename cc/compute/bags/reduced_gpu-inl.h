// What reducing bags on a GPU has for results, of whole bags and of pieces.
#ifndef TF_TI_CC_COMPUTE_BAGS_REDUCED_GPU_INL_H_
#define TF_TI_CC_COMPUTE_BAGS_REDUCED_GPU_INL_H_

#include <cmath>
#include <cstdint>

#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {

// Zeros, loaded in place of a row that does not exist. So all lanes load at all times, and no load
// waits for a branch.
__device__ const uint4 kNothing = {0, 0, 0, 0};

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
    StreamPack(pack, args.out + at);
  }
}

template <typename T, typename Index>
__device__ __forceinline__ uint64_t LoadRow(const GpuPoolArgs<T, Index>& args, Index position) {
  return args.rows_are_wide ? static_cast<const uint64_t*>(args.rows)[position]
                            : static_cast<const uint32_t*>(args.rows)[position];
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_REDUCED_GPU_INL_H_
