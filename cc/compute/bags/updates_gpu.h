// The updates of updates.h on a GPU: the same structs, whose pointers are the device's here.
// Numbers that change are on the device, too. Includes no CUDA header.
//
// As in bags_gpu.h, every function enqueues its work and returns at once, and the same inputs
// always give the same bits. Nothing is written for an index that is no row; CheckIndices finds it.
#ifndef TF_TI_CC_COMPUTE_BAGS_UPDATES_GPU_H_
#define TF_TI_CC_COMPUTE_BAGS_UPDATES_GPU_H_

#include <cstdint>
#include <string>

#include "cc/compute/bags/updates.h"
#include "cc/compute/gpu.h"
#include "cc/compute/numbers.h"

namespace tf_ti {

// Sums up a row's values in the order of the bags, and subtracts once. With bags, too.
template <typename T, typename Index>
std::string ScatterSub(const RowGradientsOf<T, Index>& gradients, const Sum<T>* scale, Gpu* gpu,
                       T* table);

// Where `weight_decay` is null, there is none.
template <typename T, typename Index>
std::string DecayedScatterSub(const RowGradientsOf<T, Index>& gradients, const Sum<T>* scale,
                              const Sum<T>* weight_decay, Gpu* gpu, T* table);

// The device has the learning rate and the step; the others are those of `numbers`. A step below 1
// counts as 1.
template <typename T, typename Index>
std::string AdamUpdate(const RowGradientsOf<T, Index>& gradients, const AdamNumbers& numbers,
                       const Sum<T>* learning_rate, const int64_t* step, Sum<T>* m,
                       const Slot<Sum<T>>& v, Gpu* gpu, T* table);

// The device has the learning rate; the others are those of `numbers`.
template <typename T, typename Index>
std::string AdagradUpdate(const RowGradientsOf<T, Index>& gradients, const AdagradNumbers& numbers,
                          const Sum<T>* learning_rate, const Slot<Sum<T>>& accumulator, Gpu* gpu,
                          T* table);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_BAGS_UPDATES_GPU_H_
