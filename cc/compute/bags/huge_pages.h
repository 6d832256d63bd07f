// Huge pages for memory that is read here and there: fewer misses in the TLB.
#ifndef TF_TI_CC_COMPUTE_BAGS_HUGE_PAGES_H_
#define TF_TI_CC_COMPUTE_BAGS_HUGE_PAGES_H_

#include <cstddef>

namespace tf_ti {

// Asks the system to put the huge pages that lie within [begin, begin + size) to use: for what is
// there already, where the kernel can, and for what comes. Does nothing where there are none.
void AdviseHugePages(void* begin, size_t size);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_HUGE_PAGES_H_
