// Copies and sums over raw memory, for the pieces of tensors in the loop engine.
#ifndef TF_TI_CC_COMPUTE_LOOPS_BLOCKS_H_
#define TF_TI_CC_COMPUTE_LOOPS_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/compute/numbers.h"

namespace tf_ti {

// `count` blocks of `length` elements each; consecutive blocks lie `src_stride` elements apart in
// the source and `dst_stride` in the destination.
struct BlockCopy {
  int64_t count;
  int64_t length;
  int64_t src_stride;
  int64_t dst_stride;
};

// For element types with a copy assignment that does more than copy bytes.
template <typename T>
void CopyElements(const BlockCopy& copy, const T* src, T* dst) {
  for (int64_t i = 0; i < copy.count; ++i) {
    for (int64_t j = 0; j < copy.length; ++j) dst[j] = src[j];
    src += copy.src_stride;
    dst += copy.dst_stride;
  }
}

// For plain memory. Slicing along the last axis gives blocks of one small element. A call of memcpy
// for each would dominate, so those widths are loops of their own.
inline void CopyBytes(const BlockCopy& copy, size_t element_size, const char* src, char* dst) {
  if (copy.length == 1) {
    switch (element_size) {
      case 1:
        return CopyElements(copy, reinterpret_cast<const uint8_t*>(src),
                            reinterpret_cast<uint8_t*>(dst));
      case 2:
        return CopyElements(copy, reinterpret_cast<const uint16_t*>(src),
                            reinterpret_cast<uint16_t*>(dst));
      case 4:
        return CopyElements(copy, reinterpret_cast<const uint32_t*>(src),
                            reinterpret_cast<uint32_t*>(dst));
      case 8:
        return CopyElements(copy, reinterpret_cast<const uint64_t*>(src),
                            reinterpret_cast<uint64_t*>(dst));
      default:
        break;
    }
  }
  const size_t bytes = copy.length * element_size;
  for (int64_t i = 0; i < copy.count; ++i) {
    std::memcpy(dst, src, bytes);
    src += copy.src_stride * element_size;
    dst += copy.dst_stride * element_size;
  }
}

template <typename S, typename T>
void AddTo(int64_t size, const T* values, S* sum) {
  for (int64_t i = 0; i < size; ++i) sum[i] = AddSums(sum[i], static_cast<S>(values[i]));
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_BLOCKS_H_
