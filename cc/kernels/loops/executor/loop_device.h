// The device of a loop, as the kernels of its body see it.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_LOOP_DEVICE_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_LOOP_DEVICE_H_

#include <cstdint>

#include "cc/kernels/threads.h"
#include "tensorflow/core/common_runtime/device.h"

namespace tf_ti {

// Stands for another device, which must outlive it: with an allocator that suits loops, and with
// other threads if they are given.
class LoopDevice : public tensorflow::Device {
 public:
  explicit LoopDevice(tensorflow::Device* device, const InlineThreads* threads = nullptr);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  tensorflow::Allocator* GetScopedAllocator(tensorflow::AllocatorAttributes attributes,
                                            int64_t step_id) override;
  tensorflow::ScopedAllocatorMgr* GetScopedAllocatorMgr() const override;
  const tensorflow::DeviceBase* UnderlyingDevice() const override;
  tensorflow::DeviceBase* UnderlyingDevice() override;
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override;
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override;
  bool has_eigen_cpu_device() const override;
  tensorflow::thread::ThreadPool* tensorflow_device_thread_pool() override;
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   tensorflow::AllocatorAttributes attributes,
                                   tensorflow::Tensor* tensor) override;
  absl::Status Sync() override;
  tensorflow::ResourceMgr* resource_manager() override;

 private:
  tensorflow::Device* const device_;
  const InlineThreads* const threads_;
};

// The stand-ins for a loop's device, by the threads that a kernel is to use.
struct LoopDevices {
  explicit LoopDevices(tensorflow::Device* device);

  LoopDevice all;      // all threads
  LoopDevice one;      // one thread, which is done before others would wake up
  LoopDevice inlined;  // the calling thread in place of all: results have the same bits
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_LOOP_DEVICE_H_
