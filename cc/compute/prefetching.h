// How rows that lie anywhere are fetched before they are read. Processors differ in what is best.
#ifndef TF_TI_CC_COMPUTE_PREFETCHING_H_
#define TF_TI_CC_COMPUTE_PREFETCHING_H_

#include <cstdint>

namespace tf_ti {

struct Prefetching {
  // Every line of a row, into the first-level cache. Or every second one, where a processor fetches
  // lines by twos, and those of a long row into the second-level cache, where the first has few
  // buffers for lines that are on their way.
  bool every_line;
  int64_t distance;  // how many rows before they are read; 0: none are fetched
};

// What TF_TI_PREFETCH says: "lines" or "pairs", or one of them, a comma and a distance of 0 to
// 1024. Where it says anything else, the one that the processor is fastest with.
Prefetching ChoosePrefetching(const char* asked);

// The same of the environment's TF_TI_PREFETCH, found once.
const Prefetching& RowPrefetching();

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PREFETCHING_H_
