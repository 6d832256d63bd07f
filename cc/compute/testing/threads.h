// Threads for tests.
#ifndef TF_TI_CC_COMPUTE_TESTING_THREADS_H_
#define TF_TI_CC_COMPUTE_TESTING_THREADS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cc/compute/parallel.h"
#include "cc/compute/pool_threads.h"

namespace tf_ti {

// A thread pool, which does what it has been given before it is gone.
class Pool {
 public:
  explicit Pool(int num_threads) {
    for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Serve(); });
  }
  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void Schedule(std::function<void()> work) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_one();
  }

 private:
  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_over_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

// The calling thread and the others of a thread pool.
class RealThreads : public PoolThreads {
 public:
  explicit RealThreads(int64_t num_threads) : RealThreads(num_threads, new Pool(num_threads - 1)) {}

 private:
  RealThreads(int64_t num_threads, Pool* pool)
      : PoolThreads(num_threads,
                    [pool](std::function<void()> work) { pool->Schedule(std::move(work)); }),
        pool_(pool) {}

  const std::unique_ptr<Pool> pool_;
};

// Threads that never come: the calling one does all work, the last piece first if `reversed`.
class OnCaller : public Parallel {
 public:
  explicit OnCaller(int64_t num_threads = 1, bool reversed = false)
      : num_threads_(num_threads), reversed_(reversed) {}

  int64_t num_threads() const override { return num_threads_; }
  void Run(int64_t count, const std::function<void(int64_t)>& work) override {
    for (int64_t i = 0; i < count; ++i) work(reversed_ ? count - 1 - i : i);
  }
  std::unique_ptr<Invitation> Invite(int64_t, std::function<void(int64_t)>) override {
    struct Nobody : Invitation {
      void Remind() override {}
    };
    return std::make_unique<Nobody>();
  }

 private:
  const int64_t num_threads_;
  const bool reversed_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_TESTING_THREADS_H_
