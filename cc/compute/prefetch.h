// One cache line, fetched before it is needed.
#ifndef TF_TI_CC_COMPUTE_PREFETCH_H_
#define TF_TI_CC_COMPUTE_PREFETCH_H_

namespace tf_ti {

// Level 1 is the first-level cache, 2 the second. The address may be any: a prefetch never faults.
// It is part of its caller, so that code for any instruction set may call it.
template <bool kToWrite = false, int kLevel = 1>
[[gnu::always_inline]] inline void Prefetch(const void* address) {
  __builtin_prefetch(address, kToWrite, kLevel == 1 ? 3 : 2);
  // A function of prefetches alone has no effect that GCC knows of, and it leaves out calls of
  // those.
  asm volatile("");
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PREFETCH_H_
