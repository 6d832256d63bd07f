// Reads rows of a table, and reads and writes rows of some tables, and computes nothing. No bag and
// no update can be faster than the fastest way to do that. Compiled when the benchmark runs, for
// this machine and with ROW_LINES, the cache lines of a row.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

typedef uint64_t Line __attribute__((vector_size(64)));

Line* Row(void* table, int32_t id) { return static_cast<Line*>(table) + int64_t{id} * ROW_LINES; }

// Every kStep-th line of a row is prefetched into the cache kLevel; none with kLevel 0.
template <int kLevel, int kStep, bool kWrites>
void Prefetch(const Line* row) {
  if (kLevel == 0) return;
  for (int line = 0; line < ROW_LINES; line += kStep) {
    __builtin_prefetch(row + line, kWrites, kLevel == 1 ? 3 : 2);
  }
}

struct Ids {
  const int32_t* ids;
  int64_t begin, end;

  int32_t Ahead(int64_t i, int64_t distance) const { return ids[std::min(i + distance, end - 1)]; }
};

template <int kLevel, int kStep>
void ReadRows(void* table, Ids ids, int64_t distance) {
  Line seen[2] = {};
  for (int64_t i = ids.begin; i < ids.end; ++i) {
    Prefetch<kLevel, kStep, false>(Row(table, ids.Ahead(i, distance)));
    const Line* row = Row(table, ids.ids[i]);
    for (int line = 0; line < ROW_LINES; ++line) seen[line % 2] ^= row[line];
  }
  // Without a use the compiler would leave the loads out.
  asm volatile("" : : "m"(seen) : "memory");
}

// `gradient`, where there is one, is read too, row after row.
template <int kLevel, int kStep>
void WriteRows(void* const* tables, int64_t num_tables, const Line* gradient, Ids ids,
               int64_t distance) {
  for (int64_t i = ids.begin; i < ids.end; ++i) {
    Line change[ROW_LINES];
    for (int line = 0; line < ROW_LINES; ++line) {
      change[line] = gradient == nullptr ? ~Line{} : *gradient++;
    }
    for (int64_t table = 0; table < num_tables; ++table) {
      Prefetch<kLevel, kStep, true>(Row(tables[table], ids.Ahead(i, distance)));
      Line* row = Row(tables[table], ids.ids[i]);
      for (int line = 0; line < ROW_LINES; ++line) row[line] ^= change[line];
    }
  }
}

struct Way {
  decltype(&ReadRows<0, 1>) read;
  decltype(&WriteRows<0, 1>) write;
};
template <int kLevel, int kStep>
constexpr Way kWay = {ReadRows<kLevel, kStep>, WriteRows<kLevel, kStep>};
constexpr Way kWays[3][2] = {
    {kWay<0, 1>, kWay<0, 1>}, {kWay<1, 1>, kWay<1, 2>}, {kWay<2, 1>, kWay<2, 2>}};

// Gives up the CPU after a while, where another process has the one that the other thread needs.
void Wait(const std::atomic<int64_t>& counter, int64_t value) {
  for (int64_t spin = 1; counter.load(std::memory_order_acquire) < value; ++spin) {
    __builtin_ia32_pause();
    if (spin % 4096 == 0) std::this_thread::yield();
  }
}

// Runs work(step, thread) for all steps, one after the other. The threads wait for the next one
// without sleeping: a thread that sleeps would need longer to wake up than a small step takes.
template <typename Work>
void RunSteps(int64_t steps, int64_t num_threads, const Work& work) {
  std::atomic<int64_t> started{0}, finished{0};
  std::vector<std::thread> helpers;
  for (int64_t thread = 1; thread < num_threads; ++thread) {
    helpers.emplace_back([&, thread] {
      for (int64_t step = 0; step < steps; ++step) {
        Wait(started, step + 1);
        work(step, thread);
        finished.fetch_add(1, std::memory_order_acq_rel);
      }
    });
  }
  for (int64_t step = 0; step < steps; ++step) {
    started.store(step + 1, std::memory_order_release);
    work(step, 0);
    Wait(finished, (step + 1) * (num_threads - 1));
  }
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace

// Goes through `num_sets` sets, one after the other, `passes` times. For each set, it reads the
// rows of ids[read_bounds[set]] to ids[read_bounds[set + 1]] from the first table. Then it reads
// the rows of written[write_bounds[set]] to written[write_bounds[set + 1]] from all `num_tables`
// tables, and writes them, and reads `gradient`, which has a row for each of `written` or is null.
// The threads divide each of these between them. `level`, `line_step` and `distance` tell how rows
// are prefetched: `distance` ids ahead.
extern "C" void walk_rows(void* const* tables, int64_t num_tables, const int32_t* read,
                          const int64_t* read_bounds, const int32_t* written,
                          const int64_t* write_bounds, const void* gradient, int64_t num_sets,
                          int64_t passes, int64_t level, int64_t line_step, int64_t distance,
                          int64_t num_threads) {
  const Way way = kWays[level][line_step - 1];
  // Rows are written once all have been read. A step without work is not begun.
  std::vector<int64_t> steps;
  for (int64_t set = 0; set < num_sets; ++set) {
    if (read_bounds[set] < read_bounds[set + 1]) steps.push_back(2 * set);
    if (write_bounds[set] < write_bounds[set + 1]) steps.push_back(2 * set + 1);
  }
  const auto work = [&](int64_t step, int64_t thread) {
    step = steps[step % steps.size()];
    const int64_t* bounds = (step % 2 == 0 ? read_bounds : write_bounds) + step / 2;
    const int64_t count = bounds[1] - bounds[0];
    const Ids ids = {step % 2 == 0 ? read : written, bounds[0] + count * thread / num_threads,
                     bounds[0] + count * (thread + 1) / num_threads};
    if (step % 2 == 0) {
      way.read(tables[0], ids, distance);
    } else {
      const Line* own = static_cast<const Line*>(gradient);
      if (own != nullptr) own += ids.begin * ROW_LINES;
      way.write(tables, num_tables, own, ids, distance);
    }
  };
  RunSteps(passes * steps.size(), num_threads, work);
}
