// Device memory with margins that nobody may write to, for checks.
#ifndef TF_TI_GPU_CHECK_DEVICE_MEMORY_H_
#define TF_TI_GPU_CHECK_DEVICE_MEMORY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/compute/bags/bags_gpu.h"

namespace tf_ti {

// Ends the program where CUDA fails.
inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// An array on the device. Its address is a multiple of 16 bytes, if its size is, but for `shift`
// elements. At first its
// bytes are kPoison, which makes a NaN of a float, and a bad index.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size, int64_t shift = 0) : size_(size) {
    const size_t skipped = shift * sizeof(T);
    front_ = kMargin > 0 ? kMargin + skipped : 0;
    bytes_ = kMargin + skipped + size * sizeof(T) + kMargin;
    Must(cudaMalloc(&memory_, bytes_), "cudaMalloc");
    Must(cudaMemsetAsync(memory_, kPoison, bytes_, nullptr), "cudaMemset");
  }
  DeviceArray(const std::vector<T>& values, int64_t shift = 0)
      : DeviceArray(static_cast<int64_t>(values.size()), shift) {
    Must(cudaMemcpy(data(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "copy");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(memory_); }

  T* data() { return reinterpret_cast<T*>(memory_ + front_); }

  // What the device has written, once it is done.
  std::vector<T> Get() {
    std::vector<T> values(size_);
    Must(cudaMemcpy(values.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return values;
  }

  bool MarginsAreIntact() const {
    const size_t end = front_ + size_ * sizeof(T);
    return IsPoison(0, front_) && IsPoison(end, bytes_ - end);
  }

 private:
  static constexpr unsigned char kPoison = 0xff;
#ifdef TF_TI_EMULATE_CUDA
  // Emulated memory has pages around it that trap, and is aligned like its size.
  static constexpr size_t kMargin = 0;
#else
  static constexpr size_t kMargin = 256;
#endif

  bool IsPoison(size_t begin, size_t bytes) const {
    std::vector<unsigned char> values(bytes);
    Must(cudaMemcpy(values.data(), memory_ + begin, bytes, cudaMemcpyDeviceToHost), "copy");
    for (const unsigned char value : values) {
      if (value != kPoison) return false;
    }
    return true;
  }

  char* memory_ = nullptr;
  size_t front_ = 0;
  size_t bytes_ = 0;
  int64_t size_;
};

// Gives out arrays like these as scratch memory.
class CheckedGpu : public Gpu {
 public:
  CUstream_st* stream() const override { return nullptr; }
  void* Allocate(int64_t bytes) override {
    arrays_.push_back(std::make_unique<DeviceArray<char>>(bytes));
    return arrays_.back()->data();
  }

  // Waits for the device. Returns what is wrong.
  std::string Finish() {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) return std::string("CUDA: ") + cudaGetErrorString(error);
    for (const auto& array : arrays_) {
      if (!array->MarginsAreIntact()) return "something wrote outside of scratch memory";
    }
    return "";
  }

 private:
  std::vector<std::unique_ptr<DeviceArray<char>>> arrays_;
};

}  // namespace tf_ti

#endif  // TF_TI_GPU_CHECK_DEVICE_MEMORY_H_
