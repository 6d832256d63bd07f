#include "cc/compute/bags/huge_pages.h"

#include <cstdint>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace tf_ti {

void AdviseHugePages(void* begin, size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = 2 << 20;
  // Since Linux 6.1; C libraries are slower to know.
  constexpr int kMadvCollapse = 25;
  const uintptr_t address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (address + size) / kHugePage * kHugePage;
  if (first >= last) return;
  void* const pages = reinterpret_cast<void*>(first);
  if (madvise(pages, last - first, MADV_HUGEPAGE) != 0) return;
  madvise(pages, last - first,
          kMadvCollapse);  // may fail: then the kernel's daemon does it some day
#else
  (void)begin;
  (void)size;
#endif
}

}  // namespace tf_ti
