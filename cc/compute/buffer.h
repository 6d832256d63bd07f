// Memory that is written before it is read, so filling it with zeros would be in vain.
#ifndef TF_TI_CC_COMPUTE_BUFFER_H_
#define TF_TI_CC_COMPUTE_BUFFER_H_

#include <cstdint>
#include <memory>

namespace tf_ti {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t size) : data_(new T[size]), size_(size) {}

  int64_t size() const { return size_; }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  std::unique_ptr<T[]> data_;
  int64_t size_ = 0;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BUFFER_H_
