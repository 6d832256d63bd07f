#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice

#include "cc/kernels/loops/executor/loop_device.h"

#include "cc/kernels/loops/caching_allocator.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::DeviceBase;

namespace {

AllocatorAttributes HostAttributes() {
  AllocatorAttributes attributes;
  attributes.set_on_host(true);
  return attributes;
}

}  // namespace

LoopDevice::LoopDevice(tensorflow::Device* device, const InlineThreads* threads)
    : Device(tensorflow::Env::Default(), device->attributes()),
      device_(device),
      threads_(threads) {}

tensorflow::Allocator* LoopDevice::GetAllocator(AllocatorAttributes attributes) {
  return attributes.value == 0 || attributes.value == HostAttributes().value
             ? GetCachingAllocator()
             : device_->GetAllocator(attributes);
}

tensorflow::Allocator* LoopDevice::GetScopedAllocator(AllocatorAttributes attributes,
                                                      int64_t step_id) {
  return device_->GetScopedAllocator(attributes, step_id);
}

tensorflow::ScopedAllocatorMgr* LoopDevice::GetScopedAllocatorMgr() const {
  return device_->GetScopedAllocatorMgr();
}

const DeviceBase* LoopDevice::UnderlyingDevice() const { return device_->UnderlyingDevice(); }

DeviceBase* LoopDevice::UnderlyingDevice() { return device_->UnderlyingDevice(); }

const DeviceBase::CpuWorkerThreads* LoopDevice::tensorflow_cpu_worker_threads() const {
  return threads_ != nullptr ? &threads_->workers : device_->tensorflow_cpu_worker_threads();
}

const Eigen::ThreadPoolDevice* LoopDevice::eigen_cpu_device() {
  return threads_ != nullptr ? threads_->device : device_->eigen_cpu_device();
}

bool LoopDevice::has_eigen_cpu_device() const { return device_->has_eigen_cpu_device(); }

tensorflow::thread::ThreadPool* LoopDevice::tensorflow_device_thread_pool() {
  return threads_ != nullptr ? threads_->workers.workers : device_->tensorflow_device_thread_pool();
}

absl::Status LoopDevice::MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                             AllocatorAttributes attributes,
                                             tensorflow::Tensor* tensor) {
  return device_->MakeTensorFromProto(proto, attributes, tensor);
}

absl::Status LoopDevice::Sync() { return device_->Sync(); }

tensorflow::ResourceMgr* LoopDevice::resource_manager() { return device_->resource_manager(); }

LoopDevices::LoopDevices(tensorflow::Device* device)
    : all(device),
      one(device, &InlineThreadsOf(1)),
      inlined(device, &InlineThreadsOf(device->tensorflow_cpu_worker_threads()->num_threads)) {}

}  // namespace tf_ti
