// The functions of blocks.h on a GPU. Includes no CUDA header.
#ifndef TF_TI_CC_COMPUTE_LOOPS_PIECES_GPU_H_
#define TF_TI_CC_COMPUTE_LOOPS_PIECES_GPU_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/compute/gpu.h"
#include "cc/compute/loops/blocks.h"
#include "cc/compute/numbers.h"

namespace tf_ti {

std::string CopyBytes(const BlockCopy& copy, size_t element_size, const char* src, char* dst,
                      Gpu* gpu);

std::string FillZeros(size_t bytes, void* data, Gpu* gpu);

// sum += values, elementwise. For floats and integers of any width with S = T, and for half
// precisions with S = float.
template <typename T, typename S>
std::string AddTo(int64_t size, const T* values, S* sum, Gpu* gpu);

// For half precisions.
template <typename T>
std::string Round(int64_t size, const float* from, T* to, Gpu* gpu);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_PIECES_GPU_H_
