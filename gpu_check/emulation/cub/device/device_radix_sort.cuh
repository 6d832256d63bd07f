// CUB's sort, by that of the standard library.
#ifndef TF_TI_GPU_CHECK_EMULATION_DEVICE_RADIX_SORT_H_
#define TF_TI_GPU_CHECK_EMULATION_DEVICE_RADIX_SORT_H_

#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace cub {

template <typename T>
class DoubleBuffer {
 public:
  DoubleBuffer(T* current, T* other) : current_(current), other_(other) {}

  T* Current() const { return current_; }
  T* Alternate() const { return other_; }
  void Swap() { std::swap(current_, other_); }

 private:
  T* current_;
  T* other_;
};

struct DeviceRadixSort {
  template <typename Key, typename Value>
  static cudaError_t SortPairs(void* memory, size_t& bytes, DoubleBuffer<Key>& keys,
                               DoubleBuffer<Value>& values, int size, int begin_bit, int end_bit,
                               cudaStream_t stream) {
    if (memory == nullptr) {
      bytes = 1;
      return cudaSuccess;
    }
    const cudaError_t error = emulation::Enqueue(stream, [=] {
      std::vector<int> order(size);
      std::iota(order.begin(), order.end(), 0);
      const auto key = [&](int i) {
        return keys.Current()[i] << (8 * sizeof(Key) - end_bit) >>
               (8 * sizeof(Key) - end_bit + begin_bit);
      };
      std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return key(i) < key(j); });
      for (int i = 0; i < size; ++i) {
        keys.Alternate()[i] = keys.Current()[order[i]];
        values.Alternate()[i] = values.Current()[order[i]];
      }
    });
    keys.Swap();
    values.Swap();
    return error;
  }
};

}  // namespace cub

#endif  // TF_TI_GPU_CHECK_EMULATION_DEVICE_RADIX_SORT_H_
