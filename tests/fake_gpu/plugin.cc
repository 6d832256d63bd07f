// A device of type GPU for TensorFlow, whose memory is the host's: a pluggable device.
//
// Memory is poisoned when it is allocated, and, when the device gets there, where it is freed: what
// is read too early or too late is a NaN, or a number that is nothing.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tests/fake_gpu/streams.h"

struct SP_Event_st {
  FakeEventPointer event = std::make_shared<FakeEvent>();
};

struct SP_Timer_st {};

namespace fake_gpu {
namespace {

constexpr int kPoison = 0xff;
constexpr size_t kAlignment = 256;

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();
std::atomic<uint64_t> most_bytes{kNoLimit};

void* AllocatePoisoned(uint64_t size) {
  void* memory = std::aligned_alloc(kAlignment, (size + kAlignment) / kAlignment * kAlignment);
  if (memory != nullptr) std::memset(memory, kPoison, size);
  return memory;
}

void Allocate(const SP_Device*, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  void* const allocated = size <= most_bytes ? AllocatePoisoned(size) : nullptr;
  *memory = {SP_DEVICE_MEMORY_BASE_STRUCT_SIZE, nullptr, allocated, size, size};
}

void Deallocate(const SP_Device*, SP_DeviceMemoryBase* memory) {
  void* const freed = memory->opaque;
  if (freed == nullptr) return;
  const size_t size = memory->size;
  Enqueue(ComputeStream(), [freed, size] {
    std::memset(freed, kPoison, size);
    std::free(freed);
  });
  memory->opaque = nullptr;
}

void Copy(SP_Stream stream, void* to, const void* from, uint64_t size) {
  Enqueue(stream, [=] { std::memcpy(to, from, size); });
}

void CopyNow(void* to, const void* from, uint64_t size) {
  Block(ComputeStream());
  std::memcpy(to, from, size);
}

template <typename Word>
void Fill(SP_Stream stream, SP_DeviceMemoryBase* memory, Word word, uint64_t size) {
  auto* const words = static_cast<Word*>(memory->opaque);
  Enqueue(stream, [=] { std::fill_n(words, size / sizeof(Word), word); });
}

void CreateStreamExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status*) {
  SP_StreamExecutor* se = params->stream_executor;
  se->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  se->allocate = Allocate;
  se->deallocate = Deallocate;
  se->host_memory_allocate = [](const SP_Device*, uint64_t size) { return AllocatePoisoned(size); };
  se->host_memory_deallocate = [](const SP_Device*, void* memory) { std::free(memory); };
  se->unified_memory_allocate = [](const SP_Device*, uint64_t) -> void* { return nullptr; };
  se->unified_memory_deallocate = [](const SP_Device*, void*) {};
  se->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return false; };
  se->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = int64_t{1} << 30;
    return true;
  };
  se->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status*) {
    *stream = NewStream();
  };
  se->destroy_stream = [](const SP_Device*, SP_Stream) {};
  se->create_stream_dependency = [](const SP_Device*, SP_Stream dependent, SP_Stream other,
                                    TF_Status*) { MakeFollow(dependent, other); };
  se->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status*) {};
  se->create_event = [](const SP_Device*, SP_Event* event, TF_Status*) {
    *event = new SP_Event_st;
  };
  se->destroy_event = [](const SP_Device*, SP_Event event) { delete event; };
  se->get_event_status = [](const SP_Device*, SP_Event event) {
    return IsReached(event->event) ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
  };
  se->record_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    Record(stream, event->event);
  };
  se->wait_for_event = [](const SP_Device*, SP_Stream stream, SP_Event event, TF_Status*) {
    MakeWait(stream, event->event);
  };
  se->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status*) {
    *timer = new SP_Timer_st;
  };
  se->destroy_timer = [](const SP_Device*, SP_Timer timer) { delete timer; };
  se->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status*) {};
  se->memcpy_dtoh = [](const SP_Device*, SP_Stream stream, void* to,
                       const SP_DeviceMemoryBase* from, uint64_t size,
                       TF_Status*) { Copy(stream, to, from->opaque, size); };
  se->memcpy_htod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const void* from, uint64_t size,
                       TF_Status*) { Copy(stream, to->opaque, from, size); };
  se->memcpy_dtod = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to,
                       const SP_DeviceMemoryBase* from, uint64_t size,
                       TF_Status*) { Copy(stream, to->opaque, from->opaque, size); };
  se->sync_memcpy_dtoh = [](const SP_Device*, void* to, const SP_DeviceMemoryBase* from,
                            uint64_t size, TF_Status*) { CopyNow(to, from->opaque, size); };
  se->sync_memcpy_htod = [](const SP_Device*, SP_DeviceMemoryBase* to, const void* from,
                            uint64_t size, TF_Status*) { CopyNow(to->opaque, from, size); };
  se->sync_memcpy_dtod = [](const SP_Device*, SP_DeviceMemoryBase* to,
                            const SP_DeviceMemoryBase* from, uint64_t size,
                            TF_Status*) { CopyNow(to->opaque, from->opaque, size); };
  se->block_host_for_event = [](const SP_Device*, SP_Event event, TF_Status*) {
    Block(event->event);
  };
  se->block_host_until_done = [](const SP_Device*, SP_Stream stream, TF_Status*) { Block(stream); };
  se->synchronize_all_activity = [](const SP_Device*, TF_Status*) { Block(ComputeStream()); };
  se->mem_zero = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint64_t size,
                    TF_Status*) { Fill<uint8_t>(stream, memory, 0, size); };
  se->memset = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory, uint8_t pattern,
                  uint64_t size, TF_Status*) { Fill(stream, memory, pattern, size); };
  se->memset32 = [](const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* memory,
                    uint32_t pattern, uint64_t size,
                    TF_Status*) { Fill(stream, memory, pattern, size); };
  se->host_callback = [](const SP_Device*, SP_Stream stream, SE_StatusCallbackFn callback,
                         void* argument) -> TF_Bool {
    Enqueue(stream, [=] {
      TF_Status* status = TF_NewStatus();
      callback(argument, status);
      TF_DeleteStatus(status);
    });
    return true;
  };
}

}  // namespace
}  // namespace fake_gpu

// For the tests: the device has no memory for more than this at a time; 0 for no limit.
extern "C" void fake_gpu_limit(int bytes) {
  fake_gpu::most_bytes = bytes == 0 ? fake_gpu::kNoLimit : bytes;
}

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status*) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "FAKE";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = false;
  SP_PlatformFns* fns = params->platform_fns;
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status*) { *count = 1; };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* params, TF_Status*) {
    params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    params->device->ordinal = params->ordinal;
    params->device->hardware_name = "a GPU that is not there";
  };
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status*) {
    params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  };
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = fake_gpu::CreateStreamExecutor;
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* fns, TF_Status*) {
    fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    fns->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
}
