#include "cc/compute/huge_pages.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

#ifdef __linux__
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tf_ti {

namespace {

bool IsWanted() {
  const char* const value = std::getenv("TF_TI_HUGE_PAGES");
  return value == nullptr || std::string_view(value) != "0";
}

#ifdef __linux__

constexpr int kRequest = MADV_HUGEPAGE;
// Since Linux 6.1; C libraries are slower to know.
constexpr int kCollapse = 25;

// Returns false if the kernel has no transparent huge pages, or never gives any. Takes no memory:
// allocators call it, out of which no exception may come.
bool SystemHasHugePages() {
  char text[128];
  const int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const ssize_t size = read(file, text, sizeof(text));
  close(file);
  return size > 0 && std::string_view(text, size).find("[never]") == std::string_view::npos;
}

// Gives the kernel an advice on the whole huge pages of [begin, begin + size). Returns false if
// there are none, or if the kernel refuses.
bool Advise(void* begin, size_t size, int advice) {
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (address + size) / kHugePage * kHugePage;
  return first < last && madvise(reinterpret_cast<void*>(first), last - first, advice) == 0;
}

#else

constexpr int kRequest = 0, kCollapse = 0;

bool SystemHasHugePages() { return false; }

bool Advise(void*, size_t, int) { return false; }

#endif

}  // namespace

bool UsesHugePages() {
  static const bool uses = IsWanted() && SystemHasHugePages();
  return uses;
}

void AdviseHugePages(void* begin, size_t size) {
  // The kernel may fail to collapse pages: then its daemon does it some day.
  if (Advise(begin, size, kRequest)) Advise(begin, size, kCollapse);
}

void AdviseLargeMemory(void* begin, size_t size) {
  if (UsesHugePages()) Advise(begin, size, kRequest);
}

}  // namespace tf_ti
