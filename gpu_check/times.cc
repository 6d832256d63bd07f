// Times the bags' kernels, and a copy for comparison.
//
//   times FOLDER [SCALE]
//
// Prints a line of JSON for each measurement, with milliseconds (medians) and bytes; the ids of
// each case go to FOLDER/NAME.ids, as int64, so that others can be measured with the same. SCALE
// divides all sizes, to try the program itself.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/updates_gpu.h"
#include "cc/compute/device-inl.h"
#include "gpu_check/device_memory.h"

namespace tf_ti {
namespace {

// Hands out one piece of memory again and again, as an allocator does that keeps what it has.
class Arena : public Gpu {
 public:
  explicit Arena(int64_t bytes) : bytes_(bytes) { Must(cudaMalloc(&memory_, bytes), "cudaMalloc"); }
  ~Arena() override { cudaFree(memory_); }

  CUstream_st* stream() const override { return nullptr; }
  void* Allocate(int64_t bytes) override {
    const int64_t at = used_;
    used_ += (bytes + 255) / 256 * 256;
    return used_ <= bytes_ ? memory_ + at : nullptr;
  }
  void Reset() { used_ = 0; }

 private:
  char* memory_ = nullptr;
  int64_t bytes_;
  int64_t used_ = 0;
};

void Expect(const std::string& wrong) {
  if (wrong.empty()) return;
  std::fprintf(stderr, "%s\n", wrong.c_str());
  std::exit(1);
}

// The median of some calls, each measured by the device's clock.
double Measure(const std::function<void()>& call) {
  constexpr int kWarmUps = 3, kTimes = 15;
  cudaEvent_t start, end;
  Must(cudaEventCreate(&start), "cudaEventCreate");
  Must(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<float> times;
  for (int i = -kWarmUps; i < kTimes; ++i) {
    Must(cudaEventRecord(start, nullptr), "cudaEventRecord");
    call();
    Must(cudaEventRecord(end, nullptr), "cudaEventRecord");
    Must(cudaEventSynchronize(end), "a measured call");
    float time;
    Must(cudaEventElapsedTime(&time, start, end), "cudaEventElapsedTime");
    if (i >= 0) times.push_back(time);
  }
  Must(cudaEventDestroy(start), "cudaEventDestroy");
  Must(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(times.begin(), times.begin() + kTimes / 2, times.end());
  return times[kTimes / 2];
}

void MeasureCopy(int64_t bytes) {
  char *from, *to;
  Must(cudaMalloc(&from, bytes), "cudaMalloc");
  Must(cudaMalloc(&to, bytes), "cudaMalloc");
  Must(cudaMemsetAsync(from, 1, bytes, nullptr), "cudaMemset");
  const double time = Measure(
      [&] { Must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "copy"); });
  std::printf("{\"copy_ms\": %.6f, \"copy_bytes\": %lld}\n", time, static_cast<long long>(bytes));
  cudaFree(from);
  cudaFree(to);
}

// Some numbers from 0 to 1, without a generator's state.
template <typename T>
__global__ void FillTable(int64_t size, T* table) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) {
    const uint32_t mixed = static_cast<uint32_t>(i * 2654435761u) >> 8;
    table[i] = FromSum<T>(static_cast<Sum<T>>(mixed) * static_cast<Sum<T>>(0x1p-24));
  }
}

struct Shape {
  const char* name;
  const char* dtype;
  int64_t num_rows;
  int64_t width;
  int64_t num_bags;
  int64_t ids_per_bag;
  double exponent;  // of Zipf's law; 0 for uniform ids
  Reduction reduction;
};

std::vector<int64_t> MakeIds(const Shape& shape) {
  std::mt19937_64 random(1);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < shape.num_bags * shape.ids_per_bag; ++i) {
    int64_t id = static_cast<int64_t>(random() % static_cast<uint64_t>(shape.num_rows));
    if (shape.exponent > 0) {
      const double u = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
      const double at = std::pow(u, -1 / (shape.exponent - 1)) - 1;
      if (at < static_cast<double>(shape.num_rows)) id = static_cast<int64_t>(at);
      // Frequent rows lie anywhere.
      id = static_cast<int64_t>(static_cast<uint64_t>(id) * 2654435761u %
                                static_cast<uint64_t>(shape.num_rows));
    }
    ids.push_back(id);
  }
  return ids;
}

template <typename T>
void MeasureShape(const Shape& shape, const std::string& folder) {
  const std::vector<int64_t> ids = MakeIds(shape);
  const std::string path = folder + "/" + shape.name + ".ids";
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(ids.data(), sizeof(int64_t), ids.size(), file) != ids.size() ||
      std::fclose(file) != 0) {
    std::fprintf(stderr, "cannot write %s\n", path.c_str());
    std::exit(1);
  }
  std::vector<int64_t> offsets;
  for (int64_t b = 0; b < shape.num_bags; ++b) offsets.push_back(b * shape.ids_per_bag);

  DeviceArray<int64_t> device_ids(ids), device_offsets(offsets);
  DeviceArray<T> table(shape.num_rows * shape.width), out(shape.num_bags * shape.width);
  const int64_t table_size = shape.num_rows * shape.width, out_size = shape.num_bags * shape.width;
  const int64_t num_ids = static_cast<int64_t>(ids.size());
  Arena arena(int64_t{64} * num_ids + 16 * out_size + (64 << 20));
  Expect(Launch(&FillTable<T>, NumBlocks(table_size, kBlock), kBlock, &arena, table_size,
                table.data()));
  Bags<int64_t> bags;
  bags.indices = device_ids.data();
  bags.num_indices = num_ids;
  bags.bounds = device_offsets.data();
  bags.count = shape.num_bags;
  const double forward = Measure([&] {
    arena.Reset();
    Expect(PoolBags<T, int64_t>({table.data(), shape.num_rows, shape.width}, bags, {},
                                shape.reduction, &arena, out.data(), nullptr));
  });

  // All of the gradient, with the wait for the number of rows.
  const int64_t most = std::min(num_ids, shape.num_rows);
  DeviceArray<int64_t> rows(most);
  DeviceArray<T> grad(out_size), values(most * shape.width);
  Expect(Launch(&FillTable<T>, NumBlocks(out_size, kBlock), kBlock, &arena, out_size, grad.data()));
  int64_t num_touched = 0;
  const double backward = Measure([&] {
    arena.Reset();
    GpuTableGradient<T, int64_t> gradient;
    Expect(gradient.Init(bags, {}, shape.reduction, nullptr, shape.num_rows, shape.width, &arena));
    Must(cudaMemcpyAsync(&num_touched, gradient.num_touched(), sizeof(num_touched),
                         cudaMemcpyDeviceToHost, nullptr),
         "copy");
    Must(cudaStreamSynchronize(nullptr), "Init");
    Expect(gradient.Compute(grad.data(), num_touched, &arena, rows.data(), values.data()));
  });
  DeviceArray<float> scale(std::vector<float>{0.5f});
  auto gradients =
      GradientsOfRows(rows.data(), values.data(), num_touched, shape.num_rows, shape.width);
  gradients.are_distinct = true;
  const double update = Measure([&] {
    arena.Reset();
    Expect(ScatterSub(gradients, scale.data(), &arena, table.data()));
  });
  // The same rows, with two slots each.
  using S = Sum<T>;
  DeviceArray<S> m(table_size), v(table_size), rate(std::vector<S>{S(0.5)});
  DeviceArray<int64_t> step(std::vector<int64_t>{1});
  Must(cudaMemsetAsync(m.data(), 0, table_size * sizeof(S), nullptr), "memset");
  Must(cudaMemsetAsync(v.data(), 0, table_size * sizeof(S), nullptr), "memset");
  const AdamNumbers numbers{0, 1, 0.9, 0.999, 1e-7, 0, true};
  Arena wide(int64_t{64} * num_ids + 4 * num_touched * shape.width + (64 << 20));
  const double adam = Measure([&] {
    wide.Reset();
    Expect(AdamUpdate(gradients, numbers, rate.data(), step.data(), m.data(), {v.data(), false},
                      &wide, table.data()));
  });
  std::printf(
      "{\"name\": \"%s\", \"dtype\": \"%s\", \"rows\": %lld, \"width\": %lld, \"bags\": %lld, "
      "\"ids_per_bag\": %lld, \"reduction\": \"%s\", \"row_bytes\": %lld, \"touched\": %lld, "
      "\"forward_ms\": %.6f, \"backward_ms\": %.6f, \"update_ms\": %.6f, "
      "\"adam_ms\": %.6f}\n",
      shape.name, shape.dtype, static_cast<long long>(shape.num_rows),
      static_cast<long long>(shape.width), static_cast<long long>(shape.num_bags),
      static_cast<long long>(shape.ids_per_bag),
      shape.reduction == Reduction::kMean ? "mean" : "sum",
      static_cast<long long>(shape.width * sizeof(T)), static_cast<long long>(num_touched), forward,
      backward, update, adam);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const int64_t scale = argc > 2 ? std::atoll(argv[2]) : 1;
  if (argc < 2 || scale < 1) {
    std::fprintf(stderr, "times FOLDER [SCALE]\n");
    return 2;
  }
  const Shape shapes[] = {
      {"uniform_1m", "float32", 1000000, 128, 65536, 50, 0, Reduction::kSum},
      {"uniform_10m", "float32", 10000000, 128, 65536, 50, 0, Reduction::kSum},
      {"zipf_1m", "float32", 1000000, 128, 65536, 50, 1.2, Reduction::kSum},
      {"zipf_10m", "float32", 10000000, 128, 65536, 50, 1.2, Reduction::kSum},
      {"mean_1m", "float32", 1000000, 128, 65536, 50, 0, Reduction::kMean},
      {"half_1m", "float16", 1000000, 128, 65536, 50, 0, Reduction::kSum},
      {"narrow_10m", "float32", 10000000, 16, 262144, 20, 0, Reduction::kSum},
      {"giant_1m", "float32", 1000000, 128, 3, 1000000, 0, Reduction::kSum},
  };
  MeasureCopy((int64_t{4} << 30) / scale);
  for (Shape shape : shapes) {
    shape.num_rows = std::max<int64_t>(8, shape.num_rows / scale);
    shape.num_bags = std::max<int64_t>(2, shape.num_bags / scale);
    shape.ids_per_bag = std::min<int64_t>(shape.ids_per_bag, 1 + 1000000 / scale);
    if (std::string(shape.dtype) == "float16") {
      MeasureShape<Half>(shape, argv[1]);
    } else {
      MeasureShape<float>(shape, argv[1]);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tf_ti

int main(int argc, char** argv) { return tf_ti::Main(argc, argv); }
