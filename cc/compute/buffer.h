// Memory that is written before it is read, so that filling it with zeros would be wasted.
#ifndef TF_TI_CC_COMPUTE_BUFFER_H_
#define TF_TI_CC_COMPUTE_BUFFER_H_

#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "cc/compute/huge_pages.h"

namespace tf_ti {

template <typename T>
class Buffer {
  static_assert(std::is_trivially_destructible_v<T>, "nothing is destroyed");

 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : data_(Allocate(size)), size_(size) {}

  int64_t size() const { return size_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](int64_t i) { return data_.get()[i]; }
  const T& operator[](int64_t i) const { return data_.get()[i]; }

 private:
  // A vector that straddles two cache lines takes twice as long to load.
  static constexpr std::align_val_t kAlignment{64};
  struct Delete {
    void operator()(T* data) const { ::operator delete[](data, kAlignment); }
  };

  static T* Allocate(int64_t size) {
    void* const memory = ::operator new[](size * sizeof(T), kAlignment);
    AdviseNewMemory(memory, size * sizeof(T));
    return static_cast<T*>(memory);
  }

  std::unique_ptr<T, Delete> data_;
  int64_t size_ = 0;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BUFFER_H_
