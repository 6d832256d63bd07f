// Huge pages: fewer misses in the TLB where memory is read here and there, and fewer page faults
// where new memory is written.
#ifndef TF_TI_CC_COMPUTE_HUGE_PAGES_H_
#define TF_TI_CC_COMPUTE_HUGE_PAGES_H_

#include <cstddef>

namespace tf_ti {

// Returns true if memory goes to huge pages by itself: the system gives huge pages on request, and
// TF_TI_HUGE_PAGES=0 is not in the environment. Both are read once.
bool UsesHugePages();

// Asks the system for huge pages within [begin, begin + size): now for the pages that are there,
// where the kernel can, and later for pages to come. Does nothing where there are none.
void AdviseHugePages(void* begin, size_t size);

// The least size of new memory that goes to huge pages. At least a third of such memory is whole
// huge pages, wherever it begins.
constexpr size_t kLargeMemory = 4 << 20;

// Asks for huge pages for memory that has just been allocated, if it is large: one page fault then
// gives 2 MB instead of 4 KB. Pages that are there already stay as they are. Memory beside
// [begin, begin + size) stays on its pages.
void AdviseLargeMemory(void* begin, size_t size);
inline void AdviseNewMemory(void* begin, size_t size) {
  if (size >= kLargeMemory) AdviseLargeMemory(begin, size);
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_HUGE_PAGES_H_
