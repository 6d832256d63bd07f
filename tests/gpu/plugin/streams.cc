// The streams and the memory of a GPU that is not there. What is enqueued runs later, on threads of
// its own, one for the device and one for the host's functions: of the streams that have something
// to do, any may be next, and there are pauses at random. What CUDA would not do, or would make the
// host wait for, is so here too.
#include <cuda_runtime.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace {

// How far streams have come that an event was recorded on.
struct Progress {
  int64_t recorded = 0;
  int64_t reached = 0;

  bool IsDone() const { return reached >= recorded; }
};
using ProgressPointer = std::shared_ptr<Progress>;

struct Task {
  std::function<void()> work;  // or none: wait for the event
  bool is_hosts = false;
  ProgressPointer event = nullptr;
  int64_t until = 0;
};

[[noreturn]] void Fail(const char* problem) {
  std::fprintf(stderr, "emulated GPU: %s\n", problem);
  std::_Exit(3);
}

}  // namespace

struct CUstream_st {
  std::deque<Task> tasks;  // the first one is still there while it runs
  bool is_running = false;
};

struct CUevent_st {
  ProgressPointer progress = std::make_shared<Progress>();  // outlives the event, where awaited
};

namespace {

class Device {
 public:
  static Device& Get() {
    static Device& device = *new Device;  // lives on, like its threads
    if (is_own_thread) Fail("a function that CUDA calls calls CUDA");
    return device;
  }

  CUstream_st* NewStream() {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<CUstream_st>());
    return streams_.back().get();
  }

  void Enqueue(CUstream_st* stream, std::function<void()> work, bool is_hosts = false) {
    Push(stream, {std::move(work), is_hosts});
  }

  void Record(CUstream_st* stream, const ProgressPointer& event) {
    int64_t number;
    {
      const std::lock_guard lock(mutex_);
      number = ++event->recorded;
    }
    Enqueue(stream, [this, event, number] {
      const std::lock_guard lock(mutex_);
      event->reached = number;
    });
  }

  // The stream goes on when all that was recorded by now has been reached.
  void MakeWait(CUstream_st* stream, const ProgressPointer& event) {
    int64_t until;
    {
      const std::lock_guard lock(mutex_);
      until = event->recorded;
    }
    Push(stream, {nullptr, false, event, until});
  }

  bool IsReached(const Progress& event) {
    const std::lock_guard lock(mutex_);
    return event.IsDone();
  }

  bool IsDone(CUstream_st* stream) {
    const std::lock_guard lock(mutex_);
    return OrDefault(stream)->tasks.empty();
  }

  void WaitFor(const Progress& event) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return event.IsDone(); });
  }

  void WaitFor(CUstream_st* stream) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return OrDefault(stream)->tasks.empty(); });
  }

  void WaitForAll() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::all_of(streams_.begin(), streams_.end(),
                         [](const auto& stream) { return stream->tasks.empty(); });
    });
  }

 private:
  Device() {
    streams_.push_back(std::make_unique<CUstream_st>());
    std::thread([this] { Run(false); }).detach();
    std::thread([this] { Run(true); }).detach();
  }

  CUstream_st* OrDefault(CUstream_st* stream) {
    return stream != nullptr ? stream : streams_.front().get();
  }

  void Push(CUstream_st* stream, Task task) {
    const std::lock_guard lock(mutex_);
    OrDefault(stream)->tasks.push_back(std::move(task));
    changed_.notify_all();
  }

  [[noreturn]] void Run(bool is_hosts) {
    is_own_thread = true;
    std::mt19937 random(1);
    std::unique_lock lock(mutex_);
    for (;;) {
      std::vector<CUstream_st*> ready;
      for (const auto& stream : streams_) {
        if (stream->tasks.empty() || stream->is_running) continue;
        const Task& task = stream->tasks.front();
        if (task.is_hosts != is_hosts) continue;
        if (task.event == nullptr || task.event->reached >= task.until) {
          ready.push_back(stream.get());
        }
      }
      if (ready.empty()) {
        changed_.wait(lock);
        continue;
      }
      CUstream_st* const stream = ready[random() % ready.size()];
      if (auto work = std::move(stream->tasks.front().work)) {
        stream->is_running = true;
        lock.unlock();
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        work();
        work = nullptr;  // what it holds is freed before anybody goes on
        lock.lock();
        stream->is_running = false;
      }
      stream->tasks.pop_front();
      changed_.notify_all();
    }
  }

  static thread_local bool is_own_thread;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<CUstream_st>> streams_;  // the first one is the default one
};
thread_local bool Device::is_own_thread = false;

// Blocks of memory of one kind.
class Memory {
 public:
  static constexpr size_t kAlignment = 256;

  void* Allocate(size_t bytes) {
    void* const memory = std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment);
    if (memory == nullptr) return nullptr;
    const std::lock_guard lock(mutex_);
    blocks_[static_cast<const char*>(memory)] = bytes;
    return memory;
  }

  // Whoever asks for `memory` from now on is wrong, though it is still there.
  void Forget(void* memory) {
    const std::lock_guard lock(mutex_);
    if (blocks_.erase(static_cast<const char*>(memory)) == 0) Fail("memory is freed twice");
  }

  bool Has(const void* memory, size_t bytes) {
    const auto* const begin = static_cast<const char*>(memory);
    const std::lock_guard lock(mutex_);
    auto after = blocks_.upper_bound(begin);
    if (after == blocks_.begin()) return false;
    --after;
    return begin + bytes <= after->first + after->second;
  }

 private:
  std::mutex mutex_;
  std::map<const char*, size_t> blocks_;  // where each begins, and how large it is
};

Memory& DeviceMemory() {
  static Memory& memory = *new Memory;
  return memory;
}
Memory& PinnedMemory() {
  static Memory& memory = *new Memory;
  return memory;
}

void CheckKind(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault) return;
  if (DeviceMemory().Has(to, bytes) != (kind != cudaMemcpyDeviceToHost) ||
      DeviceMemory().Has(from, bytes) != (kind != cudaMemcpyHostToDevice)) {
    Fail("a copy from or to memory that is not there");
  }
}

}  // namespace

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  Device::Get().Enqueue(config->stream, *static_cast<const std::function<void()>*>(kernel));
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (!DeviceMemory().Has(to, bytes)) Fail("memory that is not there is set");
  Device::Get().Enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  CheckKind(to, from, bytes, kind);
  Device::Get().Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  // Into pageable memory CUDA copies while the host waits.
  if (!DeviceMemory().Has(to, bytes) && !PinnedMemory().Has(to, bytes)) {
    Device::Get().WaitFor(stream);
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaDeviceSynchronize() {
  Device::Get().WaitForAll();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) Fail("a stream that waits for the default one");
  *stream = Device::Get().NewStream();
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return Device::Get().IsDone(stream) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Device::Get().WaitFor(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Device::Get().MakeWait(stream, event->progress);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* argument) {
  Device::Get().Enqueue(stream, [=] { function(argument); }, /*is_hosts=*/true);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Device::Get().Record(stream, event->progress);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Device::Get().IsReached(*event->progress) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Device::Get().WaitFor(*event->progress);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 12040;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = size_t{1} << 30;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  *memory = DeviceMemory().Allocate(bytes);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  DeviceMemory().Forget(memory);
  Device::Get().Enqueue(stream, [memory] { std::free(memory); });
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = PinnedMemory().Allocate(bytes);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* memory) {
  PinnedMemory().Forget(memory);
  Device::Get().WaitForAll();
  std::free(memory);
  return cudaSuccess;
}
