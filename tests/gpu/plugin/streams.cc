// The streams and the memory of a GPU that is not there. What is enqueued runs later, on threads of
// its own, one for the device and one for the host's functions: of the streams that have something
// to do, any may be next, and there are pauses at random. What CUDA would not do, or would make the
// host wait for, is so here too.
//
// The device's memory is open while the device works with it: the host that reads or writes it at
// another time ends the process, with a report. Where each call waits for its work
// (gpu_plugin_block), that is at any time.
#include <cuda_runtime.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

extern "C" int gpu_plugin_blocks();  // in plugin.cc

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

void PrintStack() {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, std::size(frames)), STDERR_FILENO);
}

[[noreturn]] void Fail(const char* problem) {
  std::fprintf(stderr, "emulated GPU: %s\n", problem);
  PrintStack();
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

// Where blocks of memory begin, and how large they are.
class Blocks {
 public:
  void Add(void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    sizes_[static_cast<const char*>(memory)] = bytes;
  }

  // Whoever asks for `memory` from now on is wrong, though it is still there. Returns its size.
  size_t Remove(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(static_cast<const char*>(memory));
    if (found == sizes_.end()) Fail("memory is freed twice");
    const size_t bytes = found->second;
    sizes_.erase(found);
    return bytes;
  }

  bool Has(const void* memory, size_t bytes) {
    const auto* const begin = static_cast<const char*>(memory);
    const std::lock_guard lock(mutex_);
    auto after = sizes_.upper_bound(begin);
    if (after == sizes_.begin()) return false;
    --after;
    return begin + bytes <= after->first + after->second;
  }

  // How many bytes has the block where `address` is? -1 where there is none, or others are at work.
  int64_t TrySizeAt(const void* address) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return -1;
    const auto after = sizes_.upper_bound(static_cast<const char*>(address));
    return after == sizes_.begin() ? -1 : std::prev(after)->second;
  }

 private:
  std::mutex mutex_;
  std::map<const char*, size_t> sizes_;
};

constexpr size_t kAlignment = 256;

size_t Padded(size_t bytes) { return (bytes / kAlignment + 1) * kAlignment; }

class DeviceMemory {
 public:
  static DeviceMemory& Get() {
    static DeviceMemory& memory = *new DeviceMemory;
    return memory;
  }

  Blocks& blocks() { return blocks_; }

  void* Allocate(size_t bytes) {
    const size_t size = Padded(bytes);
    char* memory;
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.find(size);
      if (found != free_.end()) {
        memory = found->second;
        free_.erase(found);
      } else {
        if (size > kMostBytes - used_) return nullptr;
        memory = base_ + used_;
        used_ += size;
      }
    }
    blocks_.Add(memory, bytes);
    return memory;
  }

  // Once the device has done all that may need it.
  void Free(void* memory, size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_.emplace(Padded(bytes), static_cast<char*>(memory));
  }

  void Open() { Protect(PROT_READ | PROT_WRITE); }
  void Close() { Protect(PROT_NONE); }

  bool Contains(const void* address) const {
    return base_ <= address && address < base_ + kMostBytes;
  }

 private:
  static constexpr size_t kMostBytes = size_t{1} << 40;

  DeviceMemory()
      : base_(static_cast<char*>(mmap(nullptr, kMostBytes, PROT_NONE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (base_ == MAP_FAILED) Fail("no addresses for the device's memory");
    ReportWrongAccess();
  }

  void Protect(int protection) {
    const std::lock_guard lock(mutex_);
    if (used_ > 0 && mprotect(base_, used_, protection) != 0) Fail("mprotect");
  }

  static void ReportWrongAccess() {
    static struct sigaction previous;
    struct sigaction action = {};
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      // Python's handler, which shows its stack, or the default, once the access is tried again.
      sigaction(SIGSEGV, &previous, nullptr);
      if (!Get().Contains(info->si_addr)) return;
      std::fprintf(stderr, "emulated GPU: the host touches a block of %lld bytes of the device:\n",
                   static_cast<long long>(Get().blocks_.TrySizeAt(info->si_addr)));
      PrintStack();
    };
    sigaction(SIGSEGV, &action, &previous);
  }

  char* const base_;
  Blocks blocks_;
  std::mutex mutex_;
  size_t used_ = 0;
  std::multimap<size_t, char*> free_;
};

// While a thread of the device works with its memory.
class OpenMemory {
 public:
  OpenMemory() { DeviceMemory::Get().Open(); }
  ~OpenMemory() { DeviceMemory::Get().Close(); }
};

Blocks& PinnedMemory() {
  static Blocks& blocks = *new Blocks;
  return blocks;
}

// Work with the device's memory.
void EnqueueWork(CUstream_st* stream, std::function<void()> work) {
  Device::Get().Enqueue(stream, [work = std::move(work)] {
    const OpenMemory open;
    work();
  });
  if (gpu_plugin_blocks()) Device::Get().WaitFor(stream);
}

void CheckKind(const void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault) return;
  Blocks& blocks = DeviceMemory::Get().blocks();
  if (blocks.Has(to, bytes) != (kind != cudaMemcpyDeviceToHost) ||
      blocks.Has(from, bytes) != (kind != cudaMemcpyHostToDevice)) {
    Fail("a copy from or to memory that is not there");
  }
}

}  // namespace

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  EnqueueWork(config->stream, *static_cast<const std::function<void()>*>(kernel));
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (!DeviceMemory::Get().blocks().Has(to, bytes)) Fail("memory that is not there is set");
  EnqueueWork(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  CheckKind(to, from, bytes, kind);
  EnqueueWork(stream, [=] { std::memcpy(to, from, bytes); });
  // Into pageable memory CUDA copies while the host waits.
  if (!DeviceMemory::Get().blocks().Has(to, bytes) && !PinnedMemory().Has(to, bytes)) {
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
  *memory = DeviceMemory::Get().Allocate(bytes);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const size_t bytes = DeviceMemory::Get().blocks().Remove(memory);
  Device::Get().Enqueue(stream, [=] { DeviceMemory::Get().Free(memory, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::aligned_alloc(kAlignment, Padded(bytes));
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  PinnedMemory().Add(*memory, bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  PinnedMemory().Remove(memory);
  Device::Get().WaitForAll();
  std::free(memory);
  return cudaSuccess;
}
