// Conversions of half precision, in integers: bit by bit as IEEE 754 has them.
#ifndef TF_TI_GPU_CHECK_EMULATION_CUDA_FP16_H_
#define TF_TI_GPU_CHECK_EMULATION_CUDA_FP16_H_

#include <cmath>
#include <cstdint>
#include <limits>

struct __half {
  uint16_t bits;
};

inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
inline uint16_t __half_as_ushort(__half half) { return half.bits; }

inline float __half2float(__half half) {
  const int exponent = half.bits >> 10 & 31, fraction = half.bits & 1023;
  const float sign = half.bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction ? std::numeric_limits<float>::quiet_NaN()
                    : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction | 1024), exponent - 25);
}

inline __half __float2half_rn(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float size = std::fabs(value);
  if (std::isnan(value)) return {0x7fff};
  if (size >= 65520.0f) return {static_cast<uint16_t>(sign | 0x7c00)};
  // In units of the last place: the exponent's own, or that of subnormal numbers.
  const int exponent = size < 0x1p-14f ? -14 : std::ilogb(size);
  const auto units = static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // A fraction of 1024 or more carries into the exponent by itself.
  return {static_cast<uint16_t>(sign | (((exponent + 14) << 10) + units))};
}

#endif  // TF_TI_GPU_CHECK_EMULATION_CUDA_FP16_H_
