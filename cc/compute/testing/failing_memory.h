// Memory that runs out in tests, at each allocation in turn. This replaces the global operator new:
// to be included by one file of a program.
#ifndef TF_TI_CC_COMPUTE_TESTING_FAILING_MEMORY_H_
#define TF_TI_CC_COMPUTE_TESTING_FAILING_MEMORY_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "cc/compute/testing/threads.h"

namespace tf_ti {

// As long as it lives, allocation number `first` fails, of all threads' together, or all from there
// on do.
class FailingMemory {
 public:
  FailingMemory(int64_t first, bool for_good) {
    for_good_ = for_good;
    left_ = first;
  }
  FailingMemory(const FailingMemory&) = delete;
  FailingMemory& operator=(const FailingMemory&) = delete;
  ~FailingMemory() { left_ = kAll; }

  bool has_failed() const { return left_ < 0; }

  static void* Allocate(std::size_t size, std::size_t alignment) {
    const int64_t left = left_.load(std::memory_order_relaxed) == kAll ? kAll : left_.fetch_sub(1);
    if (left == 0 || (left < 0 && for_good_)) return nullptr;
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  }

 private:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  inline static std::atomic<int64_t> left_{kAll};
  inline static std::atomic<bool> for_good_{false};
};

// The bytes that a call writes.
struct Written {
  template <typename T>
  explicit Written(std::vector<T>* elements)
      : data(elements->data()), size(elements->size() * sizeof(T)) {}
  template <typename T>
  Written(T* data, int64_t count) : data(data), size(count * sizeof(T)) {}

  std::string Copy() const { return std::string(static_cast<const char*>(data), size); }

  void* data;
  std::size_t size;
};

// Calls `run` with memory that runs out at each of its allocations in turn, on one thread and on
// several. It must throw std::bad_alloc, after which a call is right again; or do without, and be
// right. Where it `stays_whole`, it has written nothing when it throws.
inline void RunOutOfMemory(const std::vector<Written>& outputs, bool stays_whole,
                           const std::function<void(Parallel*)>& run) {
  const auto copy = [&] {
    std::vector<std::string> all;
    for (const Written& output : outputs) all.push_back(output.Copy());
    return all;
  };
  const std::vector<std::string> before = copy();
  const auto restore = [&] {
    for (size_t i = 0; i < outputs.size(); ++i) {
      std::memcpy(outputs[i].data, before[i].data(), outputs[i].size);
    }
  };
  OnCaller alone;
  run(&alone);
  const std::vector<std::string> expected = copy();
  for (const int num_threads : {1, 4}) {
    RealThreads threads(num_threads);
    for (const bool for_good : {false, true}) {
      bool has_failed = true;
      int64_t num_errors = 0;
      for (int64_t first = 0; has_failed; ++first) {
        SCOPED_TRACE(std::to_string(num_threads) + " threads, allocation " + std::to_string(first));
        restore();
        bool has_thrown = false;
        {
          const FailingMemory failing(first, for_good);
          try {
            run(&threads);
          } catch (const std::bad_alloc&) {
            has_thrown = true;
          }
          has_failed = failing.has_failed();
        }
        num_errors += has_thrown;
        if (!has_thrown) {
          ASSERT_EQ(copy(), expected);
        } else if (stays_whole) {
          ASSERT_EQ(copy(), before) << "the call has written a part";
        }
      }
      EXPECT_GT(num_errors, 0);
    }
  }
  restore();
}

}  // namespace tf_ti

// Not inlined: compilers would take a matching `free` for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const memory = tf_ti::FailingMemory::Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  void* const memory = tf_ti::FailingMemory::Allocate(size, static_cast<std::size_t>(alignment));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Sanitizers have arrays' operators of their own, which would not come here.
[[gnu::noinline]] void* operator new[](std::size_t size) { return operator new(size); }
[[gnu::noinline]] void* operator new[](std::size_t size, std::align_val_t alignment) {
  return operator new(size, alignment);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

#endif  // TF_TI_CC_COMPUTE_TESTING_FAILING_MEMORY_H_
