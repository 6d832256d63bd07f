#include "cc/kernels/loops/caching_allocator.h"

#include <malloc.h>

#include <array>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "cc/compute/huge_pages.h"

namespace tf_ti {
namespace {

constexpr size_t kAlignment = tensorflow::Allocator::kAllocatorAlignment;
// Four sizes to each power of two, from the alignment on.
constexpr int kSizesPerDoubling = 4;
constexpr int kNumSizes = 15 * kSizesPerDoubling;
constexpr size_t kMostKeptBytes = 4 << 20;

constexpr size_t BlockSize(int size_class) {
  const size_t base = kAlignment << (size_class / kSizesPerDoubling);
  return base + base / kSizesPerDoubling * (size_class % kSizesPerDoubling);
}

// The smallest class whose blocks hold `bytes`.
int ClassFor(size_t bytes) {
  if (bytes <= kAlignment) return 0;
  const int doubling = 63 - __builtin_clzll(bytes) - __builtin_ctzll(kAlignment);
  const size_t step = (kAlignment << doubling) / kSizesPerDoubling;
  const size_t over = bytes - (kAlignment << doubling);
  return doubling * kSizesPerDoubling + static_cast<int>((over + step - 1) / step);
}

void* AllocateAligned(size_t alignment, size_t bytes) {
  void* block = nullptr;
  return posix_memalign(&block, alignment, bytes) == 0 ? block : nullptr;
}

// The freed blocks that a thread keeps.
class ThreadCache {
 public:
  ~ThreadCache() {
    current() = nullptr;
    Clear();
  }

  void Clear() {
    for (Block*& first : blocks_) {
      while (first != nullptr) std::free(std::exchange(first, first->next));
    }
    kept_bytes_ = 0;
  }

  void* Take(int size_class) {
    Block*& first = blocks_[size_class];
    if (first == nullptr) return nullptr;
    kept_bytes_ -= BlockSize(size_class);
    return std::exchange(first, first->next);
  }

  // Takes no memory: that is freed where no exception may come out.
  bool Keep(int size_class, void* block) {
    if (kept_bytes_ + BlockSize(size_class) > kMostKeptBytes) return false;
    kept_bytes_ += BlockSize(size_class);
    Block*& first = blocks_[size_class];
    first = new (block) Block{first};
    return true;
  }

  // Null once the thread's objects are gone; tensors may be freed even then.
  static ThreadCache* Get() {
    thread_local ThreadCache cache;
    thread_local const bool created = [] {
      current() = &cache;
      return true;
    }();
    static_cast<void>(created);
    return current();
  }

 private:
  // A freed block, which holds the address of the next.
  struct Block {
    Block* next;
  };

  static ThreadCache*& current() {
    thread_local ThreadCache* pointer = nullptr;
    return pointer;
  }

  std::array<Block*, kNumSizes> blocks_ = {};
  size_t kept_bytes_ = 0;
};

class CachingAllocator : public tensorflow::Allocator {
 public:
  std::string Name() override { return "tf_ti_loop"; }

  void* AllocateRaw(size_t alignment, size_t num_bytes) override {
    const int size_class = ClassFor(num_bytes);
    if (kKeeps && alignment <= kAlignment && size_class < kNumSizes) {
      if (ThreadCache* cache = ThreadCache::Get()) {
        if (void* block = cache->Take(size_class)) return block;
      }
      return AllocateAligned(kAlignment, BlockSize(size_class));
    }
    // Blocks that are kept cut the free memory around them into parts too small for a large block.
    if (ThreadCache* cache = ThreadCache::Get()) cache->Clear();
    void* const block = AllocateAligned(alignment, num_bytes);
    if (block != nullptr) AdviseNewMemory(block, num_bytes);
    return block;
  }

  void DeallocateRaw(void* block) override {
    // The C library knows how large a block is; bytes beyond the class's size are slack.
    const size_t bytes = malloc_usable_size(block);
    if (kKeeps && bytes >= kAlignment) {
      int size_class = ClassFor(bytes);
      if (size_class < kNumSizes && BlockSize(size_class) > bytes) --size_class;
      ThreadCache* cache = size_class < kNumSizes ? ThreadCache::Get() : nullptr;
      if (cache != nullptr && cache->Keep(size_class, block)) return;
    }
    std::free(block);
  }

 private:
#ifdef TF_TI_SANITIZED
  // A sanitizer sees a use of freed memory only where memory is freed.
  static constexpr bool kKeeps = false;
#else
  static constexpr bool kKeeps = true;
#endif
};

}  // namespace

tensorflow::Allocator* GetCachingAllocator() {
  static auto* allocator = new CachingAllocator;
  return allocator;
}

}  // namespace tf_ti
