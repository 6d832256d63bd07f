// Conversions of bfloat16.
#ifndef TF_TI_GPU_CHECK_EMULATION_CUDA_BF16_H_
#define TF_TI_GPU_CHECK_EMULATION_CUDA_BF16_H_

#include <cmath>
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float wide;
  std::memcpy(&wide, &bits, sizeof(wide));
  return wide;
}

inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (std::isnan(value)) return {0x7fff};
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

#endif  // TF_TI_GPU_CHECK_EMULATION_CUDA_BF16_H_
