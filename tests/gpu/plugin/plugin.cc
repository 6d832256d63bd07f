// A device of type GPU for TensorFlow's builds that know no CUDA: a pluggable device, made of
// CUDA's runtime. With CUDA's own headers it is the first GPU at hand; with the emulation's, and
// with streams.cc, one that is not there.
//
// TensorFlow does not tell our kernels which stream a pluggable device works on, which they take
// for CUDA's default stream, null. So that is the one.
//
// Memory is poisoned when it is allocated, and, when the device gets there, where it is freed: what
// is read too early or too late is a NaN, or a number that is nothing.
#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <limits>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tests/gpu/plugin/host_function.h"

struct SP_Stream_st {
  cudaStream_t cuda;
};

struct SP_Event_st {
  cudaEvent_t cuda;
};

struct SP_Timer_st {};

namespace gpu_plugin {
namespace {

constexpr int kPoison = 0xff;
constexpr cudaStream_t kComputeStream = nullptr;

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
std::atomic<uint64_t> most_bytes{kNoLimit};

std::atomic<int64_t> num_blocked{0};

std::atomic<int> fault{cudaSuccess};
std::atomic<int64_t> num_successes{0};
std::atomic<int64_t> num_calls{0};
std::atomic<int> driver{0};

std::atomic<int> blocks{0};

// Holds the device: a function in every stream that waits until it is let go.
class Holder {
 public:
  void Add(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(stream);
  }

  cudaError_t Hold() {
    const std::lock_guard lock(mutex_);
    ++num_held_;
    for (const cudaStream_t stream : streams_) {
      const cudaError_t error = EnqueueHostFunction(stream, [this, number = num_held_] {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return num_let_go_ >= number; });
      });
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

  void LetGo() {
    const std::lock_guard lock(mutex_);
    num_let_go_ = num_held_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<cudaStream_t> streams_;
  int64_t num_held_ = 0;
  int64_t num_let_go_ = 0;
};
Holder& GetHolder() {
  static Holder& holder = *new Holder;
  return holder;
}

std::string Describe(const char* what, cudaError_t error) {
  cudaGetLastError();  // or somebody else would take it for the error of a later call
  return std::string(what) + ": CUDA: " + cudaGetErrorString(error);
}

void Report(const char* what, cudaError_t error, TF_Status* status) {
  if (error != cudaSuccess) TF_SetStatus(status, TF_INTERNAL, Describe(what, error).c_str());
}

// For functions that cannot report anything.
bool Succeeds(const char* what, cudaError_t error) {
  if (error != cudaSuccess) std::fprintf(stderr, "GPU plugin: %s\n", Describe(what, error).c_str());
  return error == cudaSuccess;
}

// The first error of calls made one after another, the rest of which are not made.
template <typename... Calls>
cudaError_t FirstError(const Calls&... calls) {
  cudaError_t error = cudaSuccess;
  ((error == cudaSuccess ? void(error = calls()) : void()), ...);
  return error;
}

// TensorFlow copies constants into new memory without waiting for what the device does. So new
// memory is ready for every stream: it comes from a stream of its own that never waits for others.
cudaStream_t allocating_stream = nullptr;

cudaError_t PrepareAllocation() {
  if (allocating_stream != nullptr) return cudaSuccess;
  cudaMemPool_t pool = nullptr;
  int no = 0;
  uint64_t all = std::numeric_limits<uint64_t>::max();
  return FirstError(
      [&] { return cudaDeviceGetDefaultMemPool(&pool, 0); },
      [&] { return cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no); },
      // Freed memory is kept: to give it back takes CUDA long.
      [&] { return cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all); },
      [] { return cudaStreamCreateWithFlags(&allocating_stream, cudaStreamNonBlocking); });
}

void Allocate(const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  void* allocated = nullptr;
  if (size <= most_bytes) {
    const cudaError_t error =
        FirstError([&] { return cudaMallocAsync(&allocated, size, allocating_stream); },
                   [&] { return cudaMemsetAsync(allocated, kPoison, size, allocating_stream); },
                   [] { return cudaStreamSynchronize(allocating_stream); });
    if (!Succeeds("memory", error)) allocated = nullptr;
  }
  *memory = {SP_DEVICE_MEMORY_BASE_STRUCT_SIZE, nullptr, allocated, size, size};
}

void Deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) {
  if (memory->opaque == nullptr) return;
  Succeeds("poison", cudaMemsetAsync(memory->opaque, kPoison, memory->size, kComputeStream));
  Succeeds("memory freed", cudaFreeAsync(memory->opaque, kComputeStream));
  memory->opaque = nullptr;
}

void* AllocateOnHost(const SP_Device*, uint64_t size) {
  void* memory = nullptr;
  if (!Succeeds("memory of the host", cudaMallocHost(&memory, size))) return nullptr;
  std::memset(memory, kPoison, size);
  return memory;
}

void Copy(SP_Stream stream, void* to, const void* from, uint64_t size, cudaMemcpyKind kind,
          TF_Status* status) {
  Report("a copy", cudaMemcpyAsync(to, from, size, kind, stream->cuda), status);
}

void CopyNow(void* to, const void* from, uint64_t size, cudaMemcpyKind kind, TF_Status* status) {
  ++num_blocked;
  Report("a copy", cudaMemcpy(to, from, size, kind), status);
}

// The stream that is CUDA's default one: the first, until another one is known to be TensorFlow's
// kernels'.
std::atomic<SP_Stream> compute_stream{nullptr};

void CreateStream(const SP_Device*, SP_Stream* stream, TF_Status* status) {
  auto* const created = new SP_Stream_st{kComputeStream};
  SP_Stream none = nullptr;
  if (!compute_stream.compare_exchange_strong(none, created)) {
    // One that does not wait for the default stream unless it is told to.
    const cudaError_t error = cudaStreamCreateWithFlags(&created->cuda, cudaStreamNonBlocking);
    if (error != cudaSuccess) return Report("a stream", error, status);
  }
  GetHolder().Add(created->cuda);
  *stream = created;
}

// TensorFlow's kernels work on the first stream that another one follows: its first copy to the
// device waits for what had its memory before. Some versions make it after others.
cudaError_t SettleComputeStream(SP_Stream followed) {
  static std::once_flag is_settled;
  cudaError_t error = cudaSuccess;
  std::call_once(is_settled, [&] {
    const SP_Stream first = compute_stream.exchange(followed);
    if (first == followed) return;
    error = cudaDeviceSynchronize();
    std::swap(first->cuda, followed->cuda);
  });
  return error;
}

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  cudaEvent_t cuda;
  const cudaError_t error = cudaEventCreateWithFlags(&cuda, cudaEventDisableTiming);
  if (error != cudaSuccess) return Report("an event", error, status);
  *event = new SP_Event_st{cuda};
}

SE_EventStatus GetEventStatus(const SP_Device*, SP_Event event) {
  const cudaError_t error = cudaEventQuery(event->cuda);
  if (error == cudaErrorNotReady) return SE_EVENT_PENDING;
  return Succeeds("an event", error) ? SE_EVENT_COMPLETE : SE_EVENT_ERROR;
}

void MakeWaitForStream(const SP_Device* device, SP_Stream dependent, SP_Stream other,
                       TF_Status* status) {
  Report("the default stream", SettleComputeStream(other), status);
  SP_Event event = nullptr;
  CreateEvent(device, &event, status);
  if (event == nullptr) return;
  Report("an event", cudaEventRecord(event->cuda, other->cuda), status);
  Report("an event", cudaStreamWaitEvent(dependent->cuda, event->cuda, 0), status);
  Report("an event", cudaEventDestroy(event->cuda), status);
  delete event;
}

void CreateStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params,
                          TF_Status* status) {
  Report("a pool of memory", PrepareAllocation(), status);
  SP_StreamExecutor* se = params->stream_executor;
  se->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  se->allocate = Allocate;
  se->deallocate = Deallocate;
  se->host_memory_allocate = AllocateOnHost;
  se->host_memory_deallocate = [](const SP_Device*, void* memory) {
    Succeeds("memory freed", cudaFreeHost(memory));
  };
  se->unified_memory_allocate = [](const SP_Device*, uint64_t) -> void* { return nullptr; };
  se->unified_memory_deallocate = [](const SP_Device*, void*) {};
  se->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return false; };
  se->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    size_t free_bytes = 0, total_bytes = 0;
    if (!Succeeds("memory", cudaMemGetInfo(&free_bytes, &total_bytes))) return false;
    *free = static_cast<int64_t>(free_bytes);
    *total = static_cast<int64_t>(total_bytes);
    return true;
  };
  se->create_stream = CreateStream;
  se->destroy_stream = [](const SP_Device*, SP_Stream) {};  // they live as long as the process
  se->create_stream_dependency = MakeWaitForStream;
  se->get_stream_status = [](const SP_Device*, SP_Stream stream, TF_Status* status) {
    const cudaError_t error = cudaStreamQuery(stream->cuda);
    if (error != cudaErrorNotReady) Report("a stream", error, status);
  };
  se->create_event = CreateEvent;
  se->destroy_event = [](const SP_Device*, SP_Event event) {
    Succeeds("an event", cudaEventDestroy(event->cuda));
    delete event;
  };
  se->get_event_status = GetEventStatus;
  se->record_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
    Report("an event", cudaEventRecord(event->cuda, stream->cuda), status);
  };
  se->wait_for_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
    Report("an event", cudaStreamWaitEvent(stream->cuda, event->cuda, 0), status);
  };
  se->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status*) {
    *timer = new SP_Timer_st;
  };
  se->destroy_timer = [](const SP_Device*, SP_Timer timer) { delete timer; };
  se->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->memcpy_dtoh = [](const SP_Device*, SP_Stream stream, void* to,
                       const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
    Copy(stream, to, from->opaque, size, cudaMemcpyDeviceToHost, status);
  };
  se->memcpy_htod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const void* from, uint64_t size, TF_Status* status) {
    Copy(stream, to->opaque, from, size, cudaMemcpyHostToDevice, status);
  };
  se->memcpy_dtod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
    Copy(stream, to->opaque, from->opaque, size, cudaMemcpyDeviceToDevice, status);
  };
  se->sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                            uint64_t size, TF_Status* status) {
    CopyNow(to, from->opaque, size, cudaMemcpyDeviceToHost, status);
  };
  se->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
                            uint64_t size, TF_Status* status) {
    CopyNow(to->opaque, from, size, cudaMemcpyHostToDevice, status);
  };
  se->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                            const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
    CopyNow(to->opaque, from->opaque, size, cudaMemcpyDeviceToDevice, status);
  };
  se->block_host_for_event = [](const SP_Device*, SP_Event event, TF_Status* status) {
    ++num_blocked;
    Report("an event", cudaEventSynchronize(event->cuda), status);
  };
  se->block_host_until_done = [](const SP_Device*, SP_Stream stream, TF_Status* status) {
    ++num_blocked;
    Report("a stream", cudaStreamSynchronize(stream->cuda), status);
  };
  se->synchronize_all_activity = [](const SP_Device*, TF_Status* status) {
    ++num_blocked;
    Report("the device", cudaDeviceSynchronize(), status);
  };
  se->mem_zero = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint64_t size,
                    TF_Status* status) {
    Report("zeros", cudaMemsetAsync(memory->opaque, 0, size, stream->cuda), status);
  };
  se->memset = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t pattern,
                  uint64_t size, TF_Status* status) {
    Report("a pattern", cudaMemsetAsync(memory->opaque, pattern, size, stream->cuda), status);
  };
  se->memset32 = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase*, uint32_t, uint64_t,
                    TF_Status* status) {
    TF_SetStatus(status, TF_UNIMPLEMENTED, "CUDA's runtime sets bytes only");
  };
  se->host_callback = [](const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback,
                         void* argument) -> TF_Bool {
    const auto call = [=] {
      TF_Status* status = TF_NewStatus();
      callback(argument, status);
      TF_DeleteStatus(status);
    };
    return Succeeds("a callback", EnqueueHostFunction(stream->cuda, call));
  };
}

}  // namespace
}  // namespace gpu_plugin

// For the tests.
extern "C" {

// The device has no memory for more than this at a time; 0 for no limit.
void gpu_plugin_limit(int bytes) {
  gpu_plugin::most_bytes = bytes == 0 ? gpu_plugin::kNoLimit : bytes;
}

// How often the host waited.
int64_t gpu_plugin_num_blocked() { return gpu_plugin::num_blocked; }

// While it is held the device does nothing: whoever waits for it then waits for good.
void gpu_plugin_hold(int holds) {
  if (holds == 0) {
    gpu_plugin::GetHolder().LetGo();
  } else {
    gpu_plugin::Succeeds("hold", gpu_plugin::GetHolder().Hold());
  }
}

// The library's calls of CUDA that enqueue fail from now on, but for the first ones; or none where
// `error` is 0.
void gpu_plugin_fail(int error, int num_successes) {
  gpu_plugin::num_successes = num_successes;
  gpu_plugin::fault = error;
}

// How many such calls there were.
int64_t gpu_plugin_num_calls() { return gpu_plugin::num_calls; }

// The error that the next call must return.
int gpu_plugin_fault() {
  ++gpu_plugin::num_calls;
  const int error = gpu_plugin::fault;
  return error != cudaSuccess && --gpu_plugin::num_successes < 0 ? error : 0;
}

// From now on each call waits until its work with the device's memory is done; or, with 0, none
// does.
void gpu_plugin_block(int blocks) { gpu_plugin::blocks = blocks; }
int gpu_plugin_blocks() { return gpu_plugin::blocks; }

// The version that the driver says it is of, as CUDA counts them; 0 for its own.
void gpu_plugin_set_driver(int version) { gpu_plugin::driver = version; }
int gpu_plugin_driver() { return gpu_plugin::driver; }

// Why there is no such device, or "". TensorFlow would end the process.
const char* gpu_plugin_problem() {
  static std::string problem;
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  problem = error != cudaSuccess ? gpu_plugin::Describe("no GPU here", error)
            : count == 0         ? "no GPU here"
                                 : "";
  return problem.c_str();
}

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "PLUGIN";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = false;
  SP_PlatformFns* fns = params->platform_fns;
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status*) { *count = 1; };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
    params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    params->device->ordinal = params->ordinal;
    params->device->hardware_name = "the tests' GPU";
  };
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
    params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  };
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = gpu_plugin::CreateStreamExecutor;
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* fns, TF_Status*) {
    fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    fns->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}
}
