// A caching allocator for the values of loop bodies: it keeps freed blocks for the next iteration,
// which asks for the same sizes again.
#ifndef TF_TI_CC_KERNELS_LOOPS_CACHING_ALLOCATOR_H_
#define TF_TI_CC_KERNELS_LOOPS_CACHING_ALLOCATOR_H_

#include "tensorflow/core/framework/allocator.h"

namespace tf_ti {

// CPU memory, aligned as TensorFlow wants it. Blocks may be freed by any thread and outlive the
// loop. The memory that a thread keeps for reuse is bounded, and freed when the thread ends.
tensorflow::Allocator* GetCachingAllocator();

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_CACHING_ALLOCATOR_H_
