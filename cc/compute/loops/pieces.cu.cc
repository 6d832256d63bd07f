#include <algorithm>
#include <limits>

#include "cc/compute/device-inl.h"
#include "cc/compute/loops/pieces_gpu.h"

namespace tf_ti {
namespace {

// Enough to fill any GPU; each thread then takes several elements.
constexpr unsigned kMostBlocks = 4096;

// Calls work(i) for all i in [0, size).
template <typename Work>
__global__ void ForEach(int64_t size, Work work) {
  const GridStride stride = ThreadStride();
  for (int64_t i = stride.first; i < size; i += stride.step) work(i);
}

template <typename Work>
std::string LaunchForEach(int64_t size, const Work& work, Gpu* gpu) {
  return Launch(&ForEach<Work>, std::min(kMostBlocks, NumBlocks(size, kBlock)), kBlock, gpu, size,
                work);
}

// `Position` is the type of a division: 64 bits take several times as long as 32.
template <typename Unit, typename Position>
struct CopyUnit {
  Position length;
  int64_t src_stride;
  int64_t dst_stride;
  const Unit* src;
  Unit* dst;

  __device__ void operator()(int64_t i) const {
    const Position block = static_cast<Position>(i) / length;
    const Position j = static_cast<Position>(i) - block * length;
    dst[block * dst_stride + j] = src[block * src_stride + j];
  }
};

template <typename Unit>
std::string CopyUnits(const BlockCopy& copy, const char* src, char* dst, Gpu* gpu) {
  const int64_t size = copy.count * copy.length;
  const auto* from = reinterpret_cast<const Unit*>(src);
  auto* to = reinterpret_cast<Unit*>(dst);
  if (size <= std::numeric_limits<uint32_t>::max()) {
    const CopyUnit<Unit, uint32_t> work{static_cast<uint32_t>(copy.length), copy.src_stride,
                                        copy.dst_stride, from, to};
    return LaunchForEach(size, work, gpu);
  }
  const CopyUnit<Unit, int64_t> work{copy.length, copy.src_stride, copy.dst_stride, from, to};
  return LaunchForEach(size, work, gpu);
}

template <typename T, typename S>
struct AddOne {
  const T* values;
  S* sum;

  __device__ void operator()(int64_t i) const { sum[i] += static_cast<S>(ToSum(values[i])); }
};

template <typename T>
struct RoundOne {
  const float* from;
  T* to;

  __device__ void operator()(int64_t i) const { to[i] = FromSum<T>(from[i]); }
};

}  // namespace

std::string CopyBytes(const BlockCopy& copy, size_t element_size, const char* src, char* dst,
                      Gpu* gpu) {
  const int64_t size = static_cast<int64_t>(element_size);
  const BlockCopy bytes{copy.count, copy.length * size, copy.src_stride * size,
                        copy.dst_stride * size};
  const bool is_contiguous = bytes.src_stride == bytes.length && bytes.dst_stride == bytes.length;
  if (copy.count == 1 || is_contiguous) {
    return CopyMemory(bytes.count * bytes.length, src, dst, gpu);
  }
  // The largest unit that divides every length, stride and address.
  const uint64_t mixed = bytes.length | bytes.src_stride | bytes.dst_stride |
                         reinterpret_cast<uintptr_t>(src) | reinterpret_cast<uintptr_t>(dst);
  const int64_t unit = std::min<uint64_t>(mixed & -mixed, sizeof(uint4));
  const BlockCopy units{bytes.count, bytes.length / unit, bytes.src_stride / unit,
                        bytes.dst_stride / unit};
  switch (unit) {
    case sizeof(uint4):
      return CopyUnits<uint4>(units, src, dst, gpu);
    case 8:
      return CopyUnits<uint64_t>(units, src, dst, gpu);
    case 4:
      return CopyUnits<uint32_t>(units, src, dst, gpu);
    case 2:
      return CopyUnits<uint16_t>(units, src, dst, gpu);
    default:
      return CopyUnits<uint8_t>(units, src, dst, gpu);
  }
}

std::string FillZeros(size_t bytes, void* data, Gpu* gpu) {
  if (bytes == 0) return "";
  return Describe(cudaMemsetAsync(data, 0, bytes, gpu->stream()), gpu);
}

template <typename T, typename S>
std::string AddTo(int64_t size, const T* values, S* sum, Gpu* gpu) {
  return LaunchForEach(size, AddOne<T, S>{values, sum}, gpu);
}

template <typename T>
std::string Round(int64_t size, const float* from, T* to, Gpu* gpu) {
  return LaunchForEach(size, RoundOne<T>{from, to}, gpu);
}

#define TF_TI_ADD_TO(T, S) template std::string AddTo(int64_t, const T*, S*, Gpu*);
#define TF_TI_ADD_TO_SAME(T) TF_TI_ADD_TO(T, T)
TF_TI_ADD_TO(Half, float)
TF_TI_ADD_TO(BFloat16, float)
TF_TI_ADD_TO_SAME(float)
TF_TI_ADD_TO_SAME(double)
TF_TI_INTEGERS(TF_TI_ADD_TO_SAME)

template std::string Round(int64_t, const float*, Half*, Gpu*);
template std::string Round(int64_t, const float*, BFloat16*, Gpu*);

}  // namespace tf_ti
