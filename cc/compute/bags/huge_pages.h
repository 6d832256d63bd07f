// Huge pages for memory that is read here and there: fewer misses in the TLB.
#ifndef TF_TI_CC_COMPUTE_BAGS_HUGE_PAGES_H_
#define TF_TI_CC_COMPUTE_BAGS_HUGE_PAGES_H_

#include <cstddef>

namespace tf_ti {

// Asks the system for huge pages within [begin, begin + size): now for the pages that are there,
// where the kernel can, and later for those to come. Does nothing where there are none.
void AdviseHugePages(void* begin, size_t size);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_HUGE_PAGES_H_
