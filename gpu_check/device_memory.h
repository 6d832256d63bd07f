// Device memory with margins that nobody may write to, for checks.
#ifndef TF_TI_GPU_CHECK_DEVICE_MEMORY_H_
#define TF_TI_GPU_CHECK_DEVICE_MEMORY_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/compute/bags/bags_gpu.h"

namespace tf_ti {

// Ends the process where CUDA fails.
inline void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// The settings of the checks; to be set before any memory is allocated.
struct Checking {
  cudaStream_t stream = nullptr;  // of all that is checked, and of the arrays' own work
  // True if the device is late: it delays while calls are enqueued. Memory that is given back is
  // then handed out again at once, as by an allocator that knows the order of the stream.
  bool is_late = false;
  // True if memory has margins, and is poisoned where it holds nothing. False for a tool that looks
  // for memory to which nothing was written.
  bool poisons = true;
  // True if bounds may be bad. With bad bounds, the sum of a long bag's pieces may read a piece
  // that is nobody's, and leave it out. The same tool would find that.
  bool has_bad_bounds = true;
  // The number of calls, and of those made while the device still had work.
  int64_t num_calls = 0, num_late = 0;
};
inline Checking checking;

// Keeps a stream busy for some cycles of the device's clock.
static __global__ void Spin(int64_t cycles) {
  const int64_t start = clock64();
  while (clock64() - start < cycles) {
  }
}
inline void Delay(int64_t cycles, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = stream;
  Must(cudaLaunchKernelEx(&config, &Spin, cycles), "Spin");
}

// Memory that was given back, by its size.
inline std::multimap<size_t, char*> spare_memory;

// An array on the device. Its address is a multiple of 16 bytes, if its size is, but for `shift`
// elements. At first its bytes are kPoison, which makes a NaN of a float, and a bad index.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(int64_t size, int64_t shift = 0) : size_(size) {
    const size_t skipped = shift * sizeof(T), margin = checking.poisons ? kMargin : 0;
    front_ = margin + skipped;
    bytes_ = front_ + size * sizeof(T) + margin;
    Take();
    // Emulated memory is aligned like its size.
    if (kMargin == 0 && !checking.is_late) front_ = 0;
    Poison(0, bytes_);
  }
  DeviceArray(const std::vector<T>& values, int64_t shift = 0)
      : DeviceArray(static_cast<int64_t>(values.size()), shift) {
    Must(cudaMemcpyAsync(data(), values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice,
                         checking.stream),
         "copy");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() {
    if (checking.is_late) {
      Poison(0, bytes_);
      spare_memory.emplace(room_, memory_);
    } else {
      cudaFree(memory_);
    }
  }

  T* data() { return reinterpret_cast<T*>(memory_ + front_); }

  // To be called when all that reads it is enqueued: the next work in the stream writes to it.
  void Overwrite() { Poison(front_, size_ * sizeof(T)); }

  // The contents, once the device is done.
  std::vector<T> Get() const {
    std::vector<T> values(size_);
    CopyOut(front_, size_ * sizeof(T), values.data());
    return values;
  }

  bool MarginsAreIntact() const {
    if (!checking.poisons) return true;
    const size_t end = front_ + size_ * sizeof(T);
    return IsPoison(0, front_) && IsPoison(end, bytes_ - end);
  }

 private:
  static constexpr unsigned char kPoison = 0xff;
#ifdef TF_TI_EMULATE_CUDA
  // Emulated memory has pages around it that trap.
  static constexpr size_t kMargin = 0;
#else
  static constexpr size_t kMargin = 256;
#endif

  void Take() {
    room_ = bytes_;
    if (checking.is_late) {
      constexpr size_t kUnit = 256;
      room_ = (bytes_ + kUnit - 1) / kUnit * kUnit;
      const auto spare = spare_memory.lower_bound(room_);
      if (spare != spare_memory.end()) {
        room_ = spare->first;
        memory_ = spare->second;
        spare_memory.erase(spare);
        return;
      }
    }
    Must(cudaMalloc(&memory_, room_), "cudaMalloc");
  }

  void Poison(size_t begin, size_t bytes) {
    if (!checking.poisons) return;
    Must(cudaMemsetAsync(memory_ + begin, kPoison, bytes, checking.stream), "cudaMemset");
  }

  void CopyOut(size_t begin, size_t bytes, void* to) const {
    Must(cudaMemcpyAsync(to, memory_ + begin, bytes, cudaMemcpyDeviceToHost, checking.stream),
         "copy");
    Must(cudaStreamSynchronize(checking.stream), "copy");
  }

  bool IsPoison(size_t begin, size_t bytes) const {
    std::vector<unsigned char> values(bytes);
    CopyOut(begin, bytes, values.data());
    for (const unsigned char value : values) {
      if (value != kPoison) return false;
    }
    return true;
  }

  char* memory_ = nullptr;
  size_t room_ = 0;
  size_t front_ = 0;
  size_t bytes_ = 0;
  int64_t size_;
};

// Gives out such arrays as scratch memory. To be made before the inputs: where the device is late,
// it is late for these too.
class CheckedGpu : public Gpu {
 public:
  CheckedGpu() { MakeLate(); }

  CUstream_st* stream() const override { return checking.stream; }
  void* Allocate(int64_t bytes) override {
    arrays_.push_back(std::make_unique<DeviceArray<char>>(bytes));
    return arrays_.back()->data();
  }

  // Waits for the device. Returns an error message, or an empty string.
  std::string Wait() {
    if (checking.is_late) {
      ++checking.num_calls;
      if (cudaStreamQuery(checking.stream) == cudaErrorNotReady) ++checking.num_late;
    }
    const cudaError_t error = cudaStreamSynchronize(checking.stream);
    if (error != cudaSuccess) return std::string("CUDA: ") + cudaGetErrorString(error);
    for (const auto& array : arrays_) {
      if (!array->MarginsAreIntact()) return "something wrote outside of scratch memory";
    }
    MakeLate();
    return "";
  }

  // The same after all calls so far that use the scratch memory: it need not stay as it is.
  std::string Finish() {
    for (const auto& array : arrays_) array->Overwrite();
    return Wait();
  }

 private:
  void MakeLate() {
    constexpr int64_t kCycles = 1000000;  // about half a millisecond
    if (checking.is_late) Delay(kCycles, checking.stream);
  }

  std::vector<std::unique_ptr<DeviceArray<char>>> arrays_;
};

}  // namespace tf_ti

#endif  // TF_TI_GPU_CHECK_DEVICE_MEMORY_H_
