// Streams that are late: work that is enqueued in one happens when somebody waits for it. In the
// null stream, all happens at once. Events are times of the processor's clock.
#include <cuda_runtime.h>

#include <chrono>
#include <deque>
#include <vector>

struct CUstream_st {
  std::deque<std::function<void()>> work;
};

struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  const auto& work = *static_cast<const std::function<void()>*>(kernel);
  if (config->stream == nullptr) {
    work();
  } else {
    config->stream->work.push_back(work);
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return emulation::Enqueue(stream, [=] { std::memset(to, value, bytes); });
}

// Memory that is said to be the host's is read at once, as CUDA does with memory that it must copy
// elsewhere first.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (kind != cudaMemcpyHostToDevice) {
    return emulation::Enqueue(stream, [=] { cudaMemcpy(to, from, bytes, kind); });
  }
  const char* const begin = static_cast<const char*>(from);
  return emulation::Enqueue(stream, [=, values = std::vector<char>(begin, begin + bytes)] {
    cudaMemcpy(to, values.data(), bytes, kind);
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return stream == nullptr || stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  for (; stream != nullptr && !stream->work.empty(); stream->work.pop_front()) {
    stream->work.front()();
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
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
