// Memory that runs out, for a process that loads this before all else (LD_PRELOAD). It counts the
// allocations whose caller lies in code that is watched, and fails those that it is told to.
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr int kMost = 16;
uintptr_t begins[kMost], ends[kMost];
int num_watched = 0;
std::atomic<bool> is_on{false};
std::atomic<bool> for_good{false};
std::atomic<long> first{0};
std::atomic<long> count{0};

bool Fails(const void* caller) {
  if (!is_on.load(std::memory_order_acquire)) return false;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  for (int i = 0; i < num_watched; ++i) {
    if (begins[i] > address || address >= ends[i]) continue;
    const long number = count.fetch_add(1);
    return number == first || (number > first && for_good);
  }
  return false;
}

void* Allocate(const void* caller, std::size_t size, std::size_t alignment) {
  return Fails(caller) ? nullptr : std::aligned_alloc(alignment, size);
}

void* AllocateOrThrow(const void* caller, std::size_t size, std::size_t alignment) {
  void* const memory = Allocate(caller, size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

constexpr std::size_t kUsual = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

extern "C" {

void watch(uintptr_t begin, uintptr_t end) {
  if (num_watched == kMost) std::abort();
  begins[num_watched] = begin;
  ends[num_watched++] = end;
}

// From now on, allocation number `number` fails, or all from there on.
void fail(int number, int all) {
  first = number;
  for_good = all != 0;
  count = 0;
  is_on.store(true, std::memory_order_release);
}

// Ends that, and returns the number of allocations meanwhile.
int stop() {
  is_on = false;
  return static_cast<int>(count);
}

int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  *memory = Allocate(__builtin_return_address(0), size, alignment);
  return *memory == nullptr ? ENOMEM : 0;
}
}

#define CALLER __builtin_return_address(0)
void* operator new(std::size_t size) { return AllocateOrThrow(CALLER, size, kUsual); }
void* operator new[](std::size_t size) { return AllocateOrThrow(CALLER, size, kUsual); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return AllocateOrThrow(CALLER, size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return AllocateOrThrow(CALLER, size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return Allocate(CALLER, size, kUsual);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return Allocate(CALLER, size, kUsual);
}
