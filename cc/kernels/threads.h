// Threads for the arithmetic in cc/compute.
#ifndef TF_TI_CC_KERNELS_THREADS_H_
#define TF_TI_CC_KERNELS_THREADS_H_

#include <cstdint>
#include <functional>

#include "cc/compute/parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/denormal.h"

namespace tf_ti {

// The calling thread works too, and waits only for threads that have begun: it makes progress when
// all others are busy or asleep, so it may hold a lock meanwhile.
class Threads : public Parallel {
 public:
  // Has a thread do something, some day.
  using Schedule = std::function<void(std::function<void()>)>;

  Threads(int64_t num_threads, Schedule schedule);
  // The intra-op threads of a CPU device.
  explicit Threads(tensorflow::OpKernelContext* ctx);

  int64_t num_threads() const override { return num_threads_; }
  void Run(int64_t count, const std::function<void(int64_t)>& work) override;
  void Invite(int64_t count, const std::function<void(int64_t)>& join) override;

 private:
  // By a thread of the pool, or one that has not gone back there yet.
  void Start(std::function<void()> work);

  const int64_t num_threads_;
  const Schedule schedule_;
  // Some of TensorFlow's threads flush subnormal numbers to zero and some do not. Here nobody does:
  // the calling thread as long as this lives, the others while they work.
  const tensorflow::port::ScopedDontFlushDenormal exact_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_THREADS_H_
