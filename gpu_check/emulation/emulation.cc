// The fibers behind the emulated cuda_runtime.h.
#include <cuda_runtime.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

int num_processors = 1;

namespace {

constexpr size_t kStackBytes = 256 << 10;

// The reason for a thread to wait: `*generation` is still `was`.
struct Wait {
  const char* name = nullptr;  // null where it waits for nothing
  const uint64_t* generation = nullptr;
  uint64_t was = 0;
};

struct Fiber {
  jmp_buf place;
  char* stack = nullptr;
  bool is_started = false;
  bool is_done = true;
  Wait wait;
};

// Threads that meet: a warp, or a block.
struct Meeting {
  const char* name = nullptr;
  unsigned num_here = 0;
  uint64_t generation = 0;
  uint64_t brought[32], values[32];
};

std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Meeting> warps;
Meeting whole_block;
unsigned current = 0;
const std::function<void()>* work = nullptr;
const char* kernel = nullptr;
jmp_buf scheduler;
ucontext_t fiber_context;
std::mt19937_64 random_order;

[[noreturn]] void Fail(const char* problem) {
  std::fprintf(stderr, "emulated GPU: %s, in block %u of %s\n", problem, blockIdx.x, kernel);
  const char* last = "";
  for (unsigned i = 0; i < blockDim.x; ++i) {
    const char* const name = fibers[i]->is_done     ? "has returned"
                             : fibers[i]->wait.name ? fibers[i]->wait.name
                                                    : "runs";
    if (std::strcmp(name, last) != 0) std::fprintf(stderr, "  from thread %u on: %s\n", i, name);
    last = name;
  }
  std::_Exit(3);
}

// Back to the scheduler, until it is this fiber's turn again.
void Yield() {
  Fiber* const fiber = fibers[current].get();
  if (_setjmp(fiber->place) == 0) _longjmp(scheduler, 1);
}

// A fiber lives for good, and runs one thread after another.
void RunThreads() {
  for (;;) {
    (*work)();
    fibers[current]->is_done = true;
    Yield();
  }
}

void Resume(unsigned thread) {
  Fiber* const fiber = fibers[thread].get();
  current = thread;
  threadIdx.x = thread;
  if (_setjmp(scheduler) == 0) {
    if (fiber->is_started) _longjmp(fiber->place, 1);
    fiber->is_started = true;
    getcontext(&fiber_context);
    fiber_context.uc_stack.ss_sp = fiber->stack;
    fiber_context.uc_stack.ss_size = kStackBytes;
    fiber_context.uc_link = nullptr;
    makecontext(&fiber_context, RunThreads, 0);
    setcontext(&fiber_context);
  }
}

void MakeFibers(unsigned count) {
  while (fibers.size() < count) {
    fibers.push_back(std::make_unique<Fiber>());
    fibers.back()->stack = static_cast<char*>(Allocate(kStackBytes));
    if (fibers.back()->stack == nullptr) Fail("no memory for a thread");
  }
}

// Waits at a meeting of `size` threads.
void Meet(const char* name, unsigned size, Meeting* meeting) {
  if (meeting->num_here == 0) meeting->name = name;
  if (std::strcmp(meeting->name, name) != 0)
    Fail("threads wait for each other at different places");
  if (++meeting->num_here == size) {
    meeting->num_here = 0;
    std::copy(meeting->brought, meeting->brought + 32, meeting->values);
    ++meeting->generation;
    return;
  }
  fibers[current]->wait = {name, &meeting->generation, meeting->generation};
  Yield();
}

constexpr size_t kPage = 64 << 10;  // as large as any system's
struct Mapping {
  char* memory;
  size_t bytes;
};
std::map<void*, Mapping> mappings;

// True on a thread that runs kernels.
thread_local bool runs_kernels = false;

struct sigaction previous_segv, previous_bus;

// Reports the place, on a stack of its own: the fiber's may be used up. An access by the host is
// left to the handler before this one, which gets it when the access is tried again.
void OnBadAddress(int signal) {
  if (!runs_kernels) {
    sigaction(signal, signal == SIGBUS ? &previous_bus : &previous_segv, nullptr);
    return;
  }
  constexpr char kText[] = "emulated GPU: memory outside of all arrays was touched\n";
  if (write(2, kText, sizeof(kText) - 1) < 0) std::_Exit(4);
  Fail("a bad address");
}

void WatchAddresses() {
  static char stack[64 << 10];
  stack_t other{};
  other.ss_sp = stack;
  other.ss_size = sizeof(stack);
  sigaltstack(&other, nullptr);
  struct sigaction action{};
  action.sa_handler = OnBadAddress;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGBUS, &action, &previous_bus);
  sigaction(SIGSEGV, &action, &previous_segv);
}

}  // namespace

void* Allocate(size_t bytes) {
  if (mappings.empty()) WatchAddresses();
  const size_t inside = (bytes + kPage - 1) / kPage * kPage;
  const size_t total = inside + 2 * kPage;
  void* const memory =
      mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(memory) + kPage;
  if (mprotect(begin, inside, PROT_READ | PROT_WRITE) != 0) return nullptr;
  char* const result = begin + inside - bytes;
  mappings[result] = {static_cast<char*>(memory), total};
  return result;
}

void Free(void* memory) {
  const auto found = mappings.find(memory);
  if (found == mappings.end()) return;
  munmap(found->second.memory, found->second.bytes);
  mappings.erase(found);
}

void Run(const dim3& grid, const dim3& block, const char* name,
         const std::function<void()>& thread) {
  gridDim = grid;
  blockDim = block;
  kernel = name;
  work = &thread;
  runs_kernels = true;
  MakeFibers(block.x);
  if (block.x % 32 != 0 && block.x != 1) Fail("blocks must have whole warps");
  std::vector<unsigned> blocks(grid.x), threads(block.x);
  std::iota(blocks.begin(), blocks.end(), 0);
  std::iota(threads.begin(), threads.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random_order);
  std::shuffle(threads.begin(), threads.end(), random_order);
  for (const unsigned b : blocks) {
    blockIdx.x = b;
    warps.assign((block.x + 31) / 32, {});
    whole_block = {};
    for (unsigned i = 0; i < block.x; ++i) {
      fibers[i]->is_done = false;
      fibers[i]->wait = {};
    }
    for (unsigned num_done = 0; num_done < block.x;) {
      bool any = false;
      num_done = 0;
      for (const unsigned i : threads) {
        Wait& wait = fibers[i]->wait;
        if (!fibers[i]->is_done && (wait.name == nullptr || *wait.generation != wait.was)) {
          wait.name = nullptr;
          Resume(i);
          any = true;
        }
        num_done += fibers[i]->is_done;
      }
      if (!any && num_done < block.x) Fail("threads wait for others that never come");
    }
  }
}

const uint64_t* Exchange(const char* name, unsigned lanes, uint64_t value) {
  if (lanes != 0xffffffff) Fail("only whole warps are emulated");
  Meeting& warp = warps[threadIdx.x / 32];
  warp.brought[Lane()] = value;
  Meet(name, 32, &warp);
  return warp.values;
}

}  // namespace emulation

void SetEmulationSeed(uint64_t seed) {
  emulation::random_order.seed(seed);
  emulation::num_processors = seed % 2 == 0 ? 1 : 5;
}

void __syncthreads() { emulation::Meet("__syncthreads", blockDim.x, &emulation::whole_block); }
