// The functions of decayed_sum.h on a GPU. Includes no CUDA header.
#ifndef TF_TI_CC_COMPUTE_DECAY_DECAYED_SUM_GPU_H_
#define TF_TI_CC_COMPUTE_DECAY_DECAYED_SUM_GPU_H_

#include <string>

#include "cc/compute/decay/decayed_sum.h"
#include "cc/compute/gpu.h"

namespace tf_ti {

// The decay lies in the GPU's memory, as all inputs of a kernel do.
template <typename T>
std::string ComputeDecayedSum(const DecayedSum& sum, const T* x, const T* decay, T* y, Gpu* gpu);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_DECAY_DECAYED_SUM_GPU_H_
