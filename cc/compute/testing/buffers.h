// Memory for tests that shows what is read or written but should not be.
#ifndef TF_TI_CC_COMPUTE_TESTING_BUFFERS_H_
#define TF_TI_CC_COMPUTE_TESTING_BUFFERS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#ifdef TF_TI_SANITIZED
extern "C" void __asan_poison_memory_region(const volatile void* address, size_t size);
extern "C" void __asan_unpoison_memory_region(const volatile void* address, size_t size);
#endif

namespace tf_ti {

// `size` elements between two red zones, full of poison: a NaN that no instruction computes. What
// reads poison spreads it; what writes into a red zone is found by Check. AddressSanitizer reports
// both, at the first element beyond either end.
template <typename T>
class Guarded {
 public:
  explicit Guarded(int64_t size) : size_(size), block_(new char[kZone + size * sizeof(T) + kZone]) {
    std::memset(block_.get(), kPoison, kZone + bytes() + kZone);
    CloseZones();
  }
  // Elements that must not change.
  explicit Guarded(const std::vector<T>& elements) : Guarded(elements.size()) {
    for (int64_t i = 0; i < size_; ++i) data()[i] = elements[i];
    Freeze();
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    Check();
    OpenZones();
  }

  int64_t size() const { return size_; }
  T* data() const { return reinterpret_cast<T*>(block_.get() + kZone); }
  T& operator[](int64_t i) const { return data()[i]; }
  std::vector<T> Copy() const { return std::vector<T>(data(), data() + size_); }

  // True if nobody has written the element.
  bool IsPoison(int64_t i) const { return ArePoison(data() + i, sizeof(T)); }

  // Says that elements must not change from now on.
  void Freeze() { frozen_.assign(bytes_begin(), bytes_begin() + bytes()); }

  // Expects that the red zones are as they were, and the elements too if they must not change.
  void Check() const {
    OpenZones();
    EXPECT_TRUE(ArePoison(block_.get(), kZone)) << "something wrote before the buffer's begin";
    EXPECT_TRUE(ArePoison(bytes_begin() + bytes(), kZone)) << "something wrote behind its end";
    CloseZones();
    if (!frozen_.empty()) {
      EXPECT_EQ(std::memcmp(frozen_.data(), bytes_begin(), bytes()), 0) << "an input was changed";
    }
  }

 private:
  // Not a multiple of a vector's size: nothing may rely on how elements are aligned.
  static constexpr int64_t kZone = 136;
  static constexpr unsigned char kPoison = 0xff;

  static bool ArePoison(const void* begin, int64_t size) {
    const auto* const bytes = static_cast<const unsigned char*>(begin);
    for (int64_t i = 0; i < size; ++i) {
      if (bytes[i] != kPoison) return false;
    }
    return true;
  }

  int64_t bytes() const { return size_ * sizeof(T); }
  char* bytes_begin() const { return block_.get() + kZone; }

#ifdef TF_TI_SANITIZED
  void CloseZones() const {
    __asan_poison_memory_region(block_.get(), kZone);
    __asan_poison_memory_region(bytes_begin() + bytes(), kZone);
  }
  void OpenZones() const { __asan_unpoison_memory_region(block_.get(), kZone + bytes() + kZone); }
#else
  void CloseZones() const {}
  void OpenZones() const {}
#endif

  const int64_t size_;
  const std::unique_ptr<char[]> block_;
  std::vector<char> frozen_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_TESTING_BUFFERS_H_
