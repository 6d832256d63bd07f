#include "tests/fake_gpu/streams.h"

#include <cuda_runtime.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

struct SP_Stream_st {
  struct Task {
    std::function<void()> work;  // or none: wait for the event
    FakeEventPointer event;
    int64_t until = 0;
  };
  std::deque<Task> tasks;  // the first one is still there while it runs
};

namespace fake_gpu {
namespace {

class Device {
 public:
  static Device& Get() {
    static Device& device = *new Device;  // lives on, like its thread
    return device;
  }

  SP_Stream_st* NewStream() {
    const std::lock_guard lock(mutex_);
    streams_.push_back(std::make_unique<SP_Stream_st>());
    return streams_.back().get();
  }

  SP_Stream_st* ComputeStream() {
    const std::lock_guard lock(mutex_);
    return compute_ != nullptr ? compute_ : streams_.front().get();
  }

  void Push(SP_Stream_st* stream, SP_Stream_st::Task task) {
    const std::lock_guard lock(mutex_);
    stream->tasks.push_back(std::move(task));
    changed_.notify_all();
  }

  void Record(SP_Stream_st* stream, const FakeEventPointer& event) {
    int64_t number;
    {
      const std::lock_guard lock(mutex_);
      number = ++event->recorded;
    }
    Push(stream, {[this, event, number] {
                    const std::lock_guard lock(mutex_);
                    event->reached = number;
                  },
                  nullptr, 0});
  }

  void MakeWait(SP_Stream_st* stream, const FakeEventPointer& event) {
    int64_t until;
    {
      const std::lock_guard lock(mutex_);
      until = event->recorded;
    }
    Push(stream, {nullptr, event, until});
  }

  void MakeFollow(SP_Stream_st* stream, SP_Stream_st* other) {
    {
      const std::lock_guard lock(mutex_);
      if (compute_ == nullptr) compute_ = other;
    }
    const auto event = std::make_shared<FakeEvent>();
    Record(other, event);
    MakeWait(stream, event);
  }

  template <typename Predicate>
  void WaitUntil(const Predicate& holds) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, holds);
  }

  template <typename Question>
  auto Ask(const Question& question) {
    const std::lock_guard lock(mutex_);
    return question();
  }

  void Hold(bool holds) {
    const std::lock_guard lock(mutex_);
    is_held_ = holds;
    changed_.notify_all();
  }

 private:
  Device() {
    std::thread([this] { Run(); }).detach();
  }

  [[noreturn]] void Run() {
    std::mt19937 random(1);
    std::unique_lock lock(mutex_);
    for (;;) {
      std::vector<SP_Stream_st*> ready;
      for (const auto& stream : streams_) {
        if (stream->tasks.empty() || is_held_) continue;
        const SP_Stream_st::Task& task = stream->tasks.front();
        if (task.event == nullptr || task.event->reached >= task.until) {
          ready.push_back(stream.get());
        }
      }
      if (ready.empty()) {
        changed_.wait(lock);
        continue;
      }
      SP_Stream_st* const stream = ready[random() % ready.size()];
      if (const auto work = stream->tasks.front().work) {
        lock.unlock();
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
        work();
        lock.lock();
      }
      stream->tasks.pop_front();
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<SP_Stream_st>> streams_;
  SP_Stream_st* compute_ = nullptr;
  bool is_held_ = false;
};

std::atomic<int64_t> num_blocked{0};
std::atomic<int64_t> num_enqueued{0};

// What CUDA's calls say once so many of them have succeeded.
std::atomic<cudaError_t> cuda_error{cudaSuccess};
std::atomic<int64_t> num_successes{0};

}  // namespace

SP_Stream_st* NewStream() { return Device::Get().NewStream(); }
SP_Stream_st* ComputeStream() { return Device::Get().ComputeStream(); }

void Enqueue(SP_Stream_st* stream, std::function<void()> work) {
  ++num_enqueued;
  Device::Get().Push(stream, {std::move(work), nullptr, 0});
}
void Record(SP_Stream_st* stream, const FakeEventPointer& event) {
  Device::Get().Record(stream, event);
}
void MakeWait(SP_Stream_st* stream, const FakeEventPointer& event) {
  Device::Get().MakeWait(stream, event);
}
void MakeFollow(SP_Stream_st* stream, SP_Stream_st* other) {
  Device::Get().MakeFollow(stream, other);
}

bool IsReached(const FakeEventPointer& event) {
  return Device::Get().Ask([&] { return event->reached >= event->recorded; });
}
void Block(const FakeEventPointer& event) {
  ++num_blocked;
  Device::Get().WaitUntil([&] { return event->reached >= event->recorded; });
}
void Block(SP_Stream_st* stream) {
  ++num_blocked;
  Device::Get().WaitUntil([&] { return stream->tasks.empty(); });
}

}  // namespace fake_gpu

// Our kernels have CUDA's streams, of which TensorFlow says that this is none: null.
[[maybe_unused]] static const bool enqueues = [] {
  emulation::Enqueuer() = [](cudaStream_t, std::function<void()> work) {
    const cudaError_t error = fake_gpu::cuda_error;
    if (error != cudaSuccess && --fake_gpu::num_successes < 0) return error;
    fake_gpu::Enqueue(fake_gpu::ComputeStream(), std::move(work));
    return cudaSuccess;
  };
  return true;
}();

extern "C" {

// For the tests: how often the host waited, and how much was enqueued.
int64_t fake_gpu_num_blocked() { return fake_gpu::num_blocked; }
int64_t fake_gpu_num_enqueued() { return fake_gpu::num_enqueued; }
// While it is held the device does nothing: whoever waits for it then waits for good.
void fake_gpu_hold(int holds) { fake_gpu::Device::Get().Hold(holds != 0); }
// CUDA's calls that enqueue fail from now on, but for the first ones; or none where `error` is 0.
void fake_gpu_fail(int error, int num_successes) {
  fake_gpu::num_successes = num_successes;
  fake_gpu::cuda_error = static_cast<cudaError_t>(error);
}
}
