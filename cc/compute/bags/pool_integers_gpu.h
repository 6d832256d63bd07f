// Reducing bags of tables of integers on a GPU.
#ifndef TF_TI_CC_COMPUTE_BAGS_POOL_INTEGERS_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_POOL_INTEGERS_GPU_H_

#include <string>

#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/gpu.h"

namespace tf_ti {

// PoolOnGpu for one table of integers: a sum, a mean or a maximum to `out`, with `argmax` or not.
template <typename T, typename Index>
std::string PoolIntegers(const GpuPoolArgs<T, Index>& args, Gpu* gpu);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_POOL_INTEGERS_GPU_H_
