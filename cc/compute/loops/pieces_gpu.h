// What blocks.h does, on a GPU. Every function enqueues its work on the stream and returns at once,
// an empty string or what is wrong. Includes no CUDA header.
#ifndef TF_TI_CC_COMPUTE_LOOPS_PIECES_GPU_H_
#define TF_TI_CC_COMPUTE_LOOPS_PIECES_GPU_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/loops/blocks.h"
#include "cc/compute/numbers.h"

namespace tf_ti {

// From anywhere to anywhere. Memory of the host must stay as it is until the stream has got there.
std::string CopyMemory(size_t bytes, const void* src, void* dst, Gpu* gpu);

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
