// Reads rows of a table and computes nothing: no bag can be faster than the fastest way to do that.
// Compiled when the benchmark runs, for this machine and with ROW_LINES, the cache lines of a row.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

typedef uint64_t Line __attribute__((vector_size(64)));

// Every kStep-th line of the row `distance` ids ahead is prefetched into the cache kLevel; none
// with kLevel 0.
template <int kLevel, int kStep>
void ReadRows(const Line* table, const int32_t* ids, int64_t begin, int64_t end, int64_t distance) {
  Line seen[2] = {};
  for (int64_t i = begin; i < end; ++i) {
    if (kLevel > 0) {
      const Line* row = table + int64_t{ids[std::min(i + distance, end - 1)]} * ROW_LINES;
      for (int line = 0; line < ROW_LINES; line += kStep) {
        __builtin_prefetch(row + line, 0, kLevel == 1 ? 3 : 2);
      }
    }
    const Line* row = table + int64_t{ids[i]} * ROW_LINES;
    for (int line = 0; line < ROW_LINES; ++line) seen[line % 2] ^= row[line];
  }
  // Without a use the compiler would leave the loads out.
  asm volatile("" : : "m"(seen) : "memory");
}

using Reader = decltype(&ReadRows<0, 1>);
constexpr Reader kReaders[3][2] = {{ReadRows<0, 1>, ReadRows<0, 1>},
                                   {ReadRows<1, 1>, ReadRows<1, 2>},
                                   {ReadRows<2, 1>, ReadRows<2, 2>}};

// Where somebody else has the CPU that the other thread needs, it is given up after a while.
void Wait(const std::atomic<int64_t>& counter, int64_t value) {
  for (int64_t spin = 1; counter.load(std::memory_order_acquire) < value; ++spin) {
    __builtin_ia32_pause();
    if (spin % 4096 == 0) std::this_thread::yield();
  }
}

}  // namespace

// Reads the rows that each of `num_sets` sets of `num_ids` ids names, one set after the other, and
// all of that `passes` times. The threads divide each set between them, and wait for the next one
// without sleeping: a thread that sleeps would need longer to wake up than a small set takes.
extern "C" void read_rows(const void* table, const int32_t* ids, int64_t num_ids, int64_t num_sets,
                          int64_t passes, int64_t level, int64_t line_step, int64_t distance,
                          int64_t num_threads) {
  const Reader reader = kReaders[level][line_step - 1];
  const auto read = [=](int64_t step, int64_t thread) {
    reader(static_cast<const Line*>(table), ids + step % num_sets * num_ids,
           num_ids * thread / num_threads, num_ids * (thread + 1) / num_threads, distance);
  };
  const int64_t steps = passes * num_sets;
  std::atomic<int64_t> started{0}, finished{0};
  std::vector<std::thread> helpers;
  for (int64_t thread = 1; thread < num_threads; ++thread) {
    helpers.emplace_back([&, thread] {
      for (int64_t step = 0; step < steps; ++step) {
        Wait(started, step + 1);
        read(step, thread);
        finished.fetch_add(1, std::memory_order_acq_rel);
      }
    });
  }
  for (int64_t step = 0; step < steps; ++step) {
    started.store(step + 1, std::memory_order_release);
    read(step, 0);
    Wait(finished, (step + 1) * (num_threads - 1));
  }
  for (std::thread& helper : helpers) helper.join();
}
