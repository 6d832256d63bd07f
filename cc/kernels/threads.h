// Threads for the arithmetic in cc/compute. See pool_threads.h for their promises.
#ifndef TF_TI_CC_KERNELS_THREADS_H_
#define TF_TI_CC_KERNELS_THREADS_H_

#include <cstdint>

#include "cc/compute/pool_threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/denormal.h"

namespace tf_ti {

// Some of TensorFlow's threads flush subnormal numbers to zero and some do not. Here none does: the
// calling thread as long as this object lives, and so the others while they work for it.
class Threads : public PoolThreads {
 public:
  using PoolThreads::PoolThreads;
  // The intra-op threads of a CPU device.
  explicit Threads(tensorflow::OpKernelContext* ctx);

 private:
  const tensorflow::port::ScopedDontFlushDenormal exact_;
};

// The intra-op threads of a CPU device, as they are. There is one where they are InlineThreads.
PoolThreads ThreadsOf(const tensorflow::DeviceBase& device);

// What kernels take for the threads of a CPU device, though the calling thread does at once all
// that they are given. A kernel shares out its work, and so rounds, as among `count` threads, and
// wakes none of them.
struct InlineThreads {
  tensorflow::DeviceBase::CpuWorkerThreads workers;
  Eigen::ThreadPoolDevice* device;
};
const InlineThreads& InlineThreadsOf(int count);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_THREADS_H_
