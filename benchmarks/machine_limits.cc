// The limits of a recurrent layer's products: multiply-adds in registers, and reads of the
// second-level cache. Compiled when the benchmark runs, for this machine.
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int kBytes = 64;
#elif defined(__AVX__)
constexpr int kBytes = 32;
#else
constexpr int kBytes = 16;
#endif
typedef float Vector __attribute__((vector_size(kBytes)));
constexpr int kFloats = kBytes / sizeof(float);
// Enough to hide the latency of two units, and not more than AVX2 has registers for.
constexpr int kChains = 12;

// Makes the compiler forget a value: equal sums would become one.
void Forget(Vector& value) { asm volatile("" : "+x"(value)); }

void MultiplyAdd(int64_t repeats) {
  Vector sums[kChains] = {};
  Vector factor = Vector{} + 0.5f, term = Vector{} + 1.0f;
  Forget(factor), Forget(term);
  for (Vector& sum : sums) Forget(sum);
  for (int64_t k = 0; k < repeats; ++k) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sums[j] = sums[j] * factor + term;
  }
  for (Vector& sum : sums) Forget(sum);
}

// Reads as a product of one row does: each line is loaded once, multiplied and added.
void Read(const Vector* begin, const Vector* end, int64_t repeats) {
  Vector sums[8] = {};
  for (Vector& sum : sums) Forget(sum);
  for (int64_t k = 0; k < repeats; ++k) {
    for (const Vector* line = begin; line != end; line += 8) {
      for (int j = 0; j < 8; ++j) sums[j] += line[j];
    }
    asm volatile("" : : : "memory");  // Otherwise one pass would do for all.
  }
  for (Vector& sum : sums) Forget(sum);
}

// The seconds that all threads take for work(thread), at the same time.
template <typename Work>
double Seconds(int64_t num_threads, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> helpers;
  for (int64_t thread = 1; thread < num_threads; ++thread) helpers.emplace_back(work, thread);
  work(0);
  for (std::thread& helper : helpers) helper.join();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

// Multiply-adds a second, by all threads together.
extern "C" double multiply_adds(int64_t repeats, int64_t num_threads) {
  const double seconds = Seconds(num_threads, [=](int64_t) { MultiplyAdd(repeats); });
  return double(repeats) * kChains * kFloats * num_threads / seconds;
}

// Bytes a second, by all threads together, each of which reads `bytes` of its own again and again.
extern "C" double bytes_read(int64_t bytes, int64_t repeats, int64_t num_threads) {
  const int64_t lines = bytes / (8 * kBytes) * 8;
  const std::vector<Vector> memory(lines * num_threads, Vector{});
  const double seconds = Seconds(num_threads, [&](int64_t thread) {
    const Vector* begin = memory.data() + thread * lines;
    Read(begin, begin + lines, repeats);
  });
  return double(repeats) * lines * kBytes * num_threads / seconds;
}
