// Runs the copies and sums of pieces_gpu.h on random inputs, beside those of blocks.h.
//
//   pieces [SEED]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/compute/device-inl.h"
#include "cc/compute/loops/blocks.h"
#include "cc/compute/loops/pieces_gpu.h"
#include "gpu_check/device_memory.h"

namespace tf_ti {
namespace {

std::mt19937_64 random_numbers;

int64_t Int(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_numbers() % static_cast<uint64_t>(high - low + 1));
}

std::vector<char> RandomBytes(int64_t size) {
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(Int(0, 255));
  return bytes;
}

void Expect(const std::string& wrong, const std::string& what) {
  if (wrong.empty()) return;
  std::printf("FAILED: %s: %s\n", what.c_str(), wrong.c_str());
  std::exit(1);
}

template <typename T>
void ExpectSame(DeviceArray<T>* got, const std::vector<T>& right, const std::string& what) {
  const std::vector<T> values = got->Get();
  if (!got->MarginsAreIntact()) Expect("something wrote next to the output", what);
  for (size_t i = 0; i < right.size(); ++i) {
    if (std::memcmp(&values[i], &right[i], sizeof(T)) == 0) continue;
    Expect("element " + std::to_string(i) + " of " + std::to_string(right.size()) + " differs",
           what);
  }
}

void CheckCopy() {
  CheckedGpu gpu;
  const int64_t element = int64_t{1} << Int(0, 4);
  BlockCopy copy;
  copy.count = Int(1, 40);
  copy.length = Int(1, Int(0, 1) ? 4 : 300);
  copy.src_stride = copy.length + (Int(0, 1) ? Int(0, 9) : 0);
  copy.dst_stride = copy.length + (Int(0, 1) ? Int(0, 9) : 0);
  const int64_t src_shift = Int(0, 3) == 0 ? Int(0, 15) : 0;
  const int64_t dst_shift = Int(0, 3) == 0 ? Int(0, 15) : 0;
  const std::vector<char> src = RandomBytes(copy.count * copy.src_stride * element);
  std::vector<char> dst = RandomBytes(copy.count * copy.dst_stride * element);
  DeviceArray<char> device_src(src, src_shift), device_dst(dst, dst_shift);
  const std::string what = std::to_string(copy.count) + " blocks of " +
                           std::to_string(copy.length) + " elements of " + std::to_string(element) +
                           " bytes, strides " + std::to_string(copy.src_stride) + " and " +
                           std::to_string(copy.dst_stride);
  Expect(CopyBytes(copy, element, device_src.data(), device_dst.data(), &gpu), what);
  Expect(gpu.Finish(), what);
  CopyBytes(copy, element, src.data(), dst.data());
  ExpectSame(&device_dst, dst, what);

  Expect(FillZeros(dst.size(), device_dst.data(), &gpu), "zeros");
  Expect(gpu.Finish(), "zeros");
  ExpectSame(&device_dst, std::vector<char>(dst.size(), 0), "zeros");
}

template <typename T>
std::vector<T> Numbers(int64_t size) {
  std::vector<T> numbers;
  for (int64_t i = 0; i < size; ++i) {
    // Small ones: signed integers must not overflow.
    const float number = static_cast<float>(Int(0, 60));
    if constexpr (std::is_same_v<T, Half>) {
      numbers.push_back({__half_as_ushort(__float2half_rn(number / 8))});
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      numbers.push_back({__bfloat16_as_ushort(__float2bfloat16_rn(number / 8))});
    } else {
      numbers.push_back(static_cast<T>(number));
    }
  }
  return numbers;
}

template <typename T, typename S>
void CheckAdd() {
  CheckedGpu gpu;
  const int64_t size = Int(0, 3000);
  const std::vector<T> values = Numbers<T>(size);
  std::vector<S> sums = Numbers<S>(size);
  DeviceArray<T> device_values(values);
  DeviceArray<S> device_sums(sums);
  const std::string what =
      "sums of " + std::to_string(size) + " numbers of " + std::to_string(sizeof(T)) + " bytes";
  if (size > 0) Expect(AddTo(size, device_values.data(), device_sums.data(), &gpu), what);
  Expect(gpu.Finish(), what);
  if constexpr (std::is_same_v<T, Half>) {
    for (int64_t i = 0; i < size; ++i) {
      sums[i] += __half2float(__ushort_as_half(values[i].bits));
    }
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    for (int64_t i = 0; i < size; ++i) {
      sums[i] += __bfloat162float(__ushort_as_bfloat16(values[i].bits));
    }
  } else {
    AddTo(size, values.data(), sums.data());
  }
  ExpectSame(&device_sums, sums, what);
}

template <typename T>
void CheckRound() {
  CheckedGpu gpu;
  const std::vector<T> right = Numbers<T>(Int(1, 3000));
  std::vector<float> wide;
  // Between a number and the next there is room for a difference that rounding removes.
  for (const T number : right) {
    float value;
    if constexpr (std::is_same_v<T, Half>) {
      value = __half2float(__ushort_as_half(number.bits));
    } else {
      value = __bfloat162float(__ushort_as_bfloat16(number.bits));
    }
    wide.push_back(value * (1 + static_cast<float>(Int(-1, 1)) * 0x1p-14f));
  }
  DeviceArray<float> from(wide);
  DeviceArray<T> to(static_cast<int64_t>(right.size()));
  Expect(Round(static_cast<int64_t>(wide.size()), from.data(), to.data(), &gpu), "rounding");
  Expect(gpu.Finish(), "rounding");
  ExpectSame(&to, right, "rounding");
}

void Run(int64_t seed) {
  random_numbers.seed(seed);
  constexpr int kRounds = 100;
  for (int round = 0; round < kRounds; ++round) {
    CheckCopy();
    CheckAdd<float, float>();
    CheckAdd<double, double>();
    CheckAdd<Half, float>();
    CheckAdd<BFloat16, float>();
    CheckAdd<int8_t, int8_t>();
    CheckAdd<uint16_t, uint16_t>();
    CheckAdd<int32_t, int32_t>();
    CheckAdd<int64_t, int64_t>();
    CheckRound<Half>();
    CheckRound<BFloat16>();
  }
  std::printf("%d random copies, sums and roundings, from seed %lld: ok\n", kRounds,
              static_cast<long long>(seed));
}

}  // namespace
}  // namespace tf_ti

int main(int argc, char** argv) {
  tf_ti::Run(argc > 1 ? std::atoll(argv[1]) : 1);
  return 0;
}
