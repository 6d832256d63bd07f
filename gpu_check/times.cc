// Times the bags' kernels, and a copy for comparison.
//
//   times FOLDER [SCALE [CASE...]]
//
// Prints a line of JSON for the copy, and then one for each case and operation as soon as it is
// measured. Times are medians in microseconds, on a device that the host keeps busy. The time of a
// call is the time that it adds to a stream that has work before it, its launches included. "cold"
// is after something else went through the L2 cache, "warm" after the same call. Bytes are those
// that must be moved. Rows that are looked up or summed are counted once for each id in "bytes",
// and once for each different row in "least_bytes". Ids, offsets, weights and outputs are in both.
// Memory that a method needs in between (to sort ids, say) is in neither.
//
// The ids of each case go to FOLDER/NAME.ids, as int64, so that others can be measured with the
// same. SCALE divides all sizes, for a quick test. With names of cases, only those are measured.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/updates_gpu.h"
#include "cc/compute/device-inl.h"
#include "gpu_check/device_memory.h"

namespace tf_ti {
namespace {

// Hands out one piece of memory again and again, as a caching allocator does.
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
  // From here on, work may overwrite the memory that was handed out: it comes later in the stream.
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

int Attribute(cudaDeviceAttr attribute) {
  int value;
  Must(cudaDeviceGetAttribute(&value, attribute, 0), "cudaDeviceGetAttribute");
  return value;
}

// Only reads: lines that were written would have to leave the cache during the next call.
__global__ void ReadAll(int64_t size, const uint4* from, unsigned* sink) {
  const auto [first, step] = ThreadStride();
  unsigned all = 0;
  for (int64_t i = first; i < size; i += step) {
    const uint4 some = __ldg(from + i);
    all |= some.x | some.y | some.z | some.w;
  }
  if (all != 0) *sink = all;
}

class Event {
 public:
  Event() { Must(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }

  void Record() { Must(cudaEventRecord(event_, nullptr), "cudaEventRecord"); }
  void Wait() { Must(cudaEventSynchronize(event_), "a measured call"); }
  double MicrosecondsSince(const Event& start) const {
    float time;
    Must(cudaEventElapsedTime(&time, start.event_, event_), "cudaEventElapsedTime");
    return 1000.0 * time;
  }

 private:
  cudaEvent_t event_;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Times {
  double cold, warm;
};

class Stopwatch {
 public:
  explicit Stopwatch(bool is_trial)
      : num_times_(is_trial ? 1 : 15),
        most_calls_(is_trial ? 1 : 10),
        flushed_(int64_t{4} * Attribute(cudaDevAttrL2CacheSize) / sizeof(uint4)),
        arena_(1) {
    Must(cudaMalloc(&flush_, flushed_ * sizeof(uint4)), "cudaMalloc");
    Must(cudaMalloc(&sink_, sizeof(*sink_)), "cudaMalloc");
    Must(cudaMemsetAsync(flush_, 0, flushed_ * sizeof(uint4), nullptr), "cudaMemset");
  }
  ~Stopwatch() {
    cudaFree(flush_);
    cudaFree(sink_);
  }

  Times Measure(const std::function<void()>& call) {
    double host = 0;
    for (int i = 0; i < 3 && i < num_times_; ++i) {
      Must(cudaStreamSynchronize(nullptr), "a call");
      const auto start = std::chrono::steady_clock::now();
      call();
      host = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    const int num_calls =
        static_cast<int>(std::clamp<double>(kMostEnqueuedSeconds / host, 1, most_calls_));
    const auto delay = [&](int calls) {
      Delay(static_cast<int64_t>(kCyclesPerSecond * (0.001 + 2 * host * calls)), nullptr);
    };
    std::vector<double> flushes, colds, warms;
    for (int i = 0; i < num_times_; ++i) {
      delay(1);
      Flush();
      events_[0].Record();
      Flush();
      events_[1].Record();
      Flush();
      call();
      events_[2].Record();
      events_[2].Wait();
      flushes.push_back(events_[1].MicrosecondsSince(events_[0]));
      colds.push_back(events_[2].MicrosecondsSince(events_[1]));
    }
    for (int i = 0; i < (num_times_ + 2) / 3; ++i) {
      delay(1 + num_calls);
      call();
      events_[0].Record();
      for (int k = 0; k < num_calls; ++k) call();
      events_[1].Record();
      events_[1].Wait();
      warms.push_back(events_[1].MicrosecondsSince(events_[0]) / num_calls);
    }
    return {Median(colds) - Median(flushes), Median(warms)};
  }

 private:
  static constexpr double kCyclesPerSecond = 2e9;  // about the GPU's
  // The longest time that the host may take to enqueue work behind a delay. A stream holds about
  // 1000 launches, after which the host waits for the device.
  static constexpr double kMostEnqueuedSeconds = 0.002;

  void Flush() {
    Expect(Launch(&ReadAll, NumBlocks(flushed_, 4 * kBlock), kBlock, &arena_, flushed_, flush_,
                  sink_));
  }

  int num_times_, most_calls_;
  int64_t flushed_;
  Arena arena_;
  uint4* flush_ = nullptr;
  unsigned* sink_ = nullptr;
  Event events_[3];
};

void MeasureCopy(int64_t bytes, Stopwatch* stopwatch) {
  char *from, *to;
  Must(cudaMalloc(&from, bytes), "cudaMalloc");
  Must(cudaMalloc(&to, bytes), "cudaMalloc");
  Must(cudaMemsetAsync(from, 1, bytes, nullptr), "cudaMemset");
  const Times times = stopwatch->Measure(
      [&] { Must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "copy"); });
  const Times empty = stopwatch->Measure([] { Delay(0, nullptr); });
  std::printf(
      "{\"copy_us\": %.3f, \"copy_bytes\": %lld, \"empty_us\": %.3f, \"l2_bytes\": %d, "
      "\"cuda\": \"%d.%d\"}\n",
      times.cold, static_cast<long long>(bytes), empty.cold, Attribute(cudaDevAttrL2CacheSize),
      __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__);
  std::fflush(stdout);
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

enum class Ids {
  kUniform,
  kZipf,     // hot rows lie anywhere
  kHotRuns,  // Zipf too; hot rows lie side by side
};

// The operations to measure of a case, one bit each. A step is a forward and an update with its
// gradient.
enum Operation {
  kForward = 1,
  kBackward = 2,  // with the forward
  kSgd = 4,
  kAdam = 8,
  kOfWeights = 16,  // WeightsGradient
};
constexpr unsigned kTraining = kForward | kBackward | kSgd;

struct Shape {
  const char* name;
  int64_t num_rows, width, num_bags, ids_per_bag;
  unsigned operations = kForward;
  BagKind kind = BagKind::kOffsets;
  const char* dtype = "float32";
  const char* index = "int64";
  Ids ids = Ids::kUniform;
  Reduction reduction = Reduction::kSum;
  bool has_weights = false;
  int64_t num_tables = 1;  // each with bags of its own
};

const Shape kShapes[] = {
    {"10m", 10000000, 128, 65536, 50, kTraining | kAdam},
    {"1m_packed", 1000000, 64, 4096, 20, kTraining | kAdam, BagKind::kPacked},
    {"1m_offsets", 1000000, 64, 4096, 20, kTraining},
    {"10m_packed", 10000000, 128, 65536, 50, kForward, BagKind::kPacked},
    {"10m_segments", 10000000, 128, 65536, 50, kForward, BagKind::kSegments},
    {"10m_int32", 10000000, 128, 65536, 50, kTraining, BagKind::kOffsets, "float32", "int32"},
    {"10m_bfloat16", 10000000, 128, 65536, 50, kTraining, BagKind::kOffsets, "bfloat16"},
    {"10m_half", 10000000, 128, 65536, 50, kForward, BagKind::kOffsets, "float16"},
    {"zipf", 10000000, 128, 65536, 50, kTraining, BagKind::kOffsets, "float32", "int64",
     Ids::kZipf},
    {"zipf_side_by_side", 10000000, 128, 65536, 50, kTraining, BagKind::kOffsets, "float32",
     "int64", Ids::kHotRuns},
    {"weights", 10000000, 128, 65536, 50, kForward | kBackward | kOfWeights, BagKind::kOffsets,
     "float32", "int64", Ids::kUniform, Reduction::kSum, true},
    {"mean", 1000000, 128, 65536, 50, kForward | kBackward, BagKind::kOffsets, "float32", "int64",
     Ids::kUniform, Reduction::kMean},
    {"max", 1000000, 128, 65536, 50, kForward | kBackward, BagKind::kOffsets, "float32", "int64",
     Ids::kUniform, Reduction::kMax},
    {"narrow", 10000000, 16, 262144, 20, kForward | kBackward},
    {"mid_size", 1000000, 128, 8192, 400, kForward | kBackward},
    {"long", 1000000, 256, 512, 4096, kForward | kBackward, BagKind::kPacked},
    {"giant", 1000000, 128, 3, 1000000, kForward | kBackward},
    {"26_tables", 100000, 64, 4096, 20, kTraining, BagKind::kPacked, "float32", "int64",
     Ids::kUniform, Reduction::kSum, false, 26},
};

// The ids of all tables, one after another.
std::vector<int64_t> MakeIds(const Shape& shape) {
  std::mt19937_64 random(1);
  std::vector<int64_t> ids;
  const uint64_t num_rows = static_cast<uint64_t>(shape.num_rows);
  for (int64_t i = 0; i < shape.num_tables * shape.num_bags * shape.ids_per_bag; ++i) {
    uint64_t id = random() % num_rows;
    if (shape.ids != Ids::kUniform) {
      // The k-th with a probability of about k^-1.2.
      const double u = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
      const double at = std::pow(u, -5) - 1;
      if (at < static_cast<double>(num_rows)) id = static_cast<uint64_t>(at);
    }
    if (shape.ids == Ids::kZipf) id = id * 2654435761u % num_rows;
    ids.push_back(static_cast<int64_t>(id));
  }
  return ids;
}

void WriteIds(const std::vector<int64_t>& ids, const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr || std::fwrite(ids.data(), sizeof(int64_t), ids.size(), file) != ids.size() ||
      std::fclose(file) != 0) {
    Expect("cannot write " + path);
  }
}

template <typename Index>
std::vector<Index> MakeBounds(const Shape& shape) {
  std::vector<Index> bounds;
  for (int64_t b = 0; b < shape.num_bags && shape.kind == BagKind::kOffsets; ++b) {
    bounds.push_back(static_cast<Index>(b * shape.ids_per_bag));
  }
  for (int64_t i = 0; i < shape.num_bags * shape.ids_per_bag && shape.kind == BagKind::kSegments;
       ++i) {
    bounds.push_back(static_cast<Index>(i / shape.ids_per_bag));
  }
  return bounds;
}

// The number of different rows of the ids, in all tables together.
int64_t CountRows(const Shape& shape, const std::vector<int64_t>& ids) {
  const int64_t ids_per_table = shape.num_bags * shape.ids_per_bag;
  std::vector<bool> is_named(shape.num_tables * shape.num_rows);
  for (size_t i = 0; i < ids.size(); ++i) {
    is_named[static_cast<int64_t>(i) / ids_per_table * shape.num_rows + ids[i]] = true;
  }
  return std::count(is_named.begin(), is_named.end(), true);
}

struct Bytes {
  int64_t of_ids, least;

  Bytes operator+(const Bytes& other) const { return {of_ids + other.of_ids, least + other.least}; }
};

// A case's arrays, and the operations on them.
template <typename T, typename Index>
class Case {
 public:
  using S = Sum<T>;

  Case(const Shape& shape, const std::vector<int64_t>& ids)
      : shape_(shape),
        num_ids_(shape.num_bags * shape.ids_per_bag),
        num_named_(CountRows(shape, ids)),
        table_size_(shape.num_rows * shape.width),
        out_size_(shape.num_bags * shape.width),
        most_(std::min(num_ids_, shape.num_rows)),
        arena_(shape.num_tables * (64 * num_ids_ + 4 * most_ * shape.width + 16 * out_size_) +
               (64 << 20)),
        ids_(std::vector<Index>(ids.begin(), ids.end())),
        bounds_(MakeBounds<Index>(shape)),
        table_(shape.num_tables * table_size_),
        out_(shape.num_tables * out_size_),
        grad_(shape.num_tables * out_size_),
        weights_(shape.has_weights ? shape.num_tables * num_ids_ : 0),
        weights_gradient_(Has(kOfWeights) ? shape.num_tables * num_ids_ : 0),
        argmax_(is_max() && Has(kBackward) ? shape.num_tables * out_size_ : 0),
        rows_(shape.num_tables * most_),
        values_(Has(kBackward) ? shape.num_tables * most_ * shape.width : 0),
        m_(Has(kAdam) ? shape.num_tables * table_size_ : 0),
        v_(Has(kAdam) ? shape.num_tables * table_size_ : 0),
        rate_(std::vector<S>{S(0.5)}),
        step_(std::vector<int64_t>{1}) {
    Fill(shape.num_tables * table_size_, table_.data());
    Fill(shape.num_tables * out_size_, grad_.data());
    if (shape.has_weights) Fill(shape.num_tables * num_ids_, weights_.data());
    if (!Has(kAdam)) return;
    Fill(shape.num_tables * table_size_, m_.data());
    Fill(shape.num_tables * table_size_, v_.data());
  }

  void Forward(bool is_training) {
    arena_.Reset();
    std::vector<BagLookUp<T, Index>> lookups;
    for (int64_t t = 0; t < shape_.num_tables; ++t) {
      lookups.push_back({TableOf(t), BagsOf(t), WeightsOf(t), shape_.reduction,
                         out_.data() + t * out_size_, is_training ? ArgmaxOf(t) : nullptr});
    }
    Expect(PoolBags(lookups, &arena_));
  }

  void ForwardOneByOne() {
    for (int64_t t = 0; t < shape_.num_tables; ++t) {
      arena_.Reset();
      Expect(PoolBags<T, Index>(TableOf(t), BagsOf(t), WeightsOf(t), shape_.reduction, &arena_,
                                out_.data() + t * out_size_, nullptr));
    }
  }

  // Includes the wait for the number of rows, unless a call before has found it.
  void Backward(bool waits) {
    num_touched_.resize(shape_.num_tables);
    for (int64_t t = 0; t < shape_.num_tables; ++t) {
      arena_.Reset();
      GpuTableGradient<T, Index> gradient;
      Expect(gradient.Init(BagsOf(t), WeightsOf(t), shape_.reduction, ArgmaxOf(t), shape_.num_rows,
                           shape_.width, &arena_));
      if (waits) {
        Must(cudaMemcpyAsync(&num_touched_[t], gradient.num_touched(), sizeof(int64_t),
                             cudaMemcpyDeviceToHost, nullptr),
             "copy");
        Must(cudaStreamSynchronize(nullptr), "Init");
      }
      Expect(gradient.Compute(grad_.data() + t * out_size_, num_touched_[t], &arena_,
                              rows_.data() + t * most_, values_.data() + t * most_ * shape_.width));
    }
  }

  // Updates sum the gradients themselves.
  void Sgd() {
    for (int64_t t = 0; t < shape_.num_tables; ++t) {
      arena_.Reset();
      Expect(ScatterSub(GradientsOf(t), rate_.data(), &arena_, table_.data() + t * table_size_));
    }
  }

  void Adam() {
    const AdamNumbers numbers{0, 1, 0.9, 0.999, 1e-7, 0, true};
    for (int64_t t = 0; t < shape_.num_tables; ++t) {
      arena_.Reset();
      Expect(AdamUpdate(GradientsOf(t), numbers, rate_.data(), step_.data(),
                        m_.data() + t * table_size_, {v_.data() + t * table_size_, false}, &arena_,
                        table_.data() + t * table_size_));
    }
  }

  void OfWeights() {
    for (int64_t t = 0; t < shape_.num_tables; ++t) {
      arena_.Reset();
      WeightsOutput<T> gradient;
      gradient.rounded = weights_gradient_.data() + t * num_ids_;
      Expect(WeightsGradient<T, Index>(TableOf(t), BagsOf(t), WeightsOf(t), shape_.reduction,
                                       grad_.data() + t * out_size_, &arena_, gradient));
    }
  }

  bool Has(unsigned operation) const { return (shape_.operations & operation) != 0; }

  // One side of an operation is rows that are looked up, or summed, for each id. The other has one
  // row for each bag, or for each row that is named.
  Bytes ForwardBytes() const {
    return Gathered(num_named_) + Always(of_ids() + shape_.num_tables * out_size_ * sizeof(T));
  }
  Bytes BackwardBytes() const {
    return OfGradients() + Always(num_named_ * (row_bytes() + sizeof(Index)));
  }
  // The table and the slots are read and written.
  Bytes UpdateBytes(int64_t num_slots) const {
    return OfGradients() +
           Always(num_named_ * 2 * (row_bytes() + num_slots * shape_.width * sizeof(S)));
  }
  Bytes OfWeightsBytes() const {
    return ForwardBytes() + Always(shape_.num_tables * num_ids_ * sizeof(T));
  }

 private:
  template <typename E>
  void Fill(int64_t size, E* array) {
    Expect(Launch(&FillTable<E>, NumBlocks(size, kBlock), kBlock, &arena_, size, array));
  }

  bool is_max() const { return shape_.reduction == Reduction::kMax; }
  int64_t row_bytes() const { return shape_.width * sizeof(T); }
  Bytes Always(int64_t bytes) const { return {bytes, bytes}; }
  Bytes Gathered(int64_t least_rows) const {
    return {shape_.num_tables * num_ids_ * row_bytes(), least_rows * row_bytes()};
  }
  // The bytes read of the bags' gradients.
  Bytes OfGradients() const {
    const int64_t of_argmax = is_max() ? shape_.num_tables * out_size_ * sizeof(Index) : 0;
    return Gathered(shape_.num_tables * shape_.num_bags) + Always(of_ids() + of_argmax);
  }
  // The bytes read of the ids and the weights.
  int64_t of_ids() const {
    const int64_t num_bounds = shape_.kind == BagKind::kOffsets    ? shape_.num_bags
                               : shape_.kind == BagKind::kSegments ? num_ids_
                                                                   : 0;
    return shape_.num_tables * ((num_ids_ + num_bounds) * sizeof(Index) +
                                (shape_.has_weights ? num_ids_ * sizeof(T) : 0));
  }

  Table<T> TableOf(int64_t t) {
    return {table_.data() + t * table_size_, shape_.num_rows, shape_.width};
  }
  Bags<Index> BagsOf(int64_t t) {
    Bags<Index> bags;
    bags.kind = shape_.kind;
    bags.indices = ids_.data() + t * num_ids_;
    bags.num_indices = num_ids_;
    bags.bounds = bounds_.data();
    bags.count = shape_.num_bags;
    return bags;
  }
  Index* ArgmaxOf(int64_t t) { return is_max() ? argmax_.data() + t * out_size_ : nullptr; }
  RowGradientsOf<T, Index> GradientsOf(int64_t t) {
    RowGradientsOf<T, Index> gradients;
    gradients.bags = BagsOf(t);
    gradients.weights = WeightsOf(t);
    gradients.reduction = shape_.reduction;
    gradients.argmax = ArgmaxOf(t);
    gradients.grad = grad_.data() + t * out_size_;
    gradients.num_rows = shape_.num_rows;
    gradients.width = shape_.width;
    return gradients;
  }
  Weights<T> WeightsOf(int64_t t) {
    Weights<T> weights;
    if (shape_.has_weights) weights.rounded = weights_.data() + t * num_ids_;
    return weights;
  }

  const Shape shape_;
  const int64_t num_ids_, num_named_, table_size_, out_size_, most_;
  Arena arena_;
  DeviceArray<Index> ids_, bounds_;
  DeviceArray<T> table_, out_, grad_, weights_, weights_gradient_;
  DeviceArray<Index> argmax_, rows_;
  DeviceArray<T> values_;
  DeviceArray<S> m_, v_, rate_;
  DeviceArray<int64_t> step_;
  std::vector<int64_t> num_touched_;
};

const char* Name(BagKind kind) {
  return kind == BagKind::kOffsets ? "offsets" : kind == BagKind::kPacked ? "packed" : "segments";
}
const char* Name(Ids ids) {
  return ids == Ids::kUniform ? "uniform"
         : ids == Ids::kZipf  ? "Zipf"
                              : "Zipf with hot rows side by side";
}
const char* Name(Reduction reduction) {
  return reduction == Reduction::kSum ? "sum" : reduction == Reduction::kMean ? "mean" : "max";
}

template <typename T, typename Index>
void MeasureShape(const Shape& shape, const std::string& folder, Stopwatch* stopwatch) {
  const std::vector<int64_t> ids = MakeIds(shape);
  WriteIds(ids, folder + "/" + shape.name + ".ids");
  Case<T, Index> work(shape, ids);
  const auto measure = [&](unsigned operation, const char* name, const Bytes& bytes,
                           const std::function<void()>& call) {
    if (!work.Has(operation)) return;
    const Times times = stopwatch->Measure(call);
    std::printf(
        "{\"case\": \"%s\", \"operation\": \"%s\", \"rows\": %lld, \"width\": %lld, "
        "\"bags\": %lld, \"ids_per_bag\": %lld, \"tables\": %lld, \"kind\": \"%s\", "
        "\"dtype\": \"%s\", \"index\": \"%s\", \"ids\": \"%s\", \"reduction\": \"%s\", "
        "\"weights\": %s, "
        "\"bytes\": %lld, \"least_bytes\": %lld, \"cold_us\": %.3f, \"warm_us\": %.3f}\n",
        shape.name, name, static_cast<long long>(shape.num_rows),
        static_cast<long long>(shape.width), static_cast<long long>(shape.num_bags),
        static_cast<long long>(shape.ids_per_bag), static_cast<long long>(shape.num_tables),
        Name(shape.kind), shape.dtype, shape.index, Name(shape.ids), Name(shape.reduction),
        shape.has_weights ? "true" : "false", static_cast<long long>(bytes.of_ids),
        static_cast<long long>(bytes.least), times.cold, times.warm);
    std::fflush(stdout);
  };
  const Bytes forward = work.ForwardBytes(), both = forward + work.BackwardBytes();
  measure(kForward, "forward", forward, [&] { work.Forward(false); });
  if (shape.num_tables > 1) {
    measure(kForward, "forward, one by one", forward, [&] { work.ForwardOneByOne(); });
  }
  measure(kBackward, "forward, backward", both, [&] {
    work.Forward(true);
    work.Backward(true);
  });
  measure(kBackward, "without the wait", both, [&] {
    work.Forward(true);
    work.Backward(false);
  });
  measure(kSgd, "step, SGD", forward + work.UpdateBytes(0), [&] {
    work.Forward(true);
    work.Sgd();
  });
  measure(kAdam, "step, Adam", forward + work.UpdateBytes(2), [&] {
    work.Forward(true);
    work.Adam();
  });
  measure(kOfWeights, "weights' gradient", work.OfWeightsBytes(), [&] { work.OfWeights(); });
}

int Main(int argc, char** argv) {
  const int64_t scale = argc > 2 ? std::atoll(argv[2]) : 1;
  if (argc < 2 || scale < 1) {
    std::fprintf(stderr, "times FOLDER [SCALE [CASE...]]\n");
    return 2;
  }
  const std::vector<std::string> names(argv + std::min(argc, 3), argv + argc);
  Stopwatch stopwatch(scale > 1);
  MeasureCopy((int64_t{4} << 30) / scale, &stopwatch);
  for (Shape shape : kShapes) {
    if (!names.empty() && std::find(names.begin(), names.end(), shape.name) == names.end()) {
      continue;
    }
    shape.num_rows = std::max<int64_t>(8, shape.num_rows / scale);
    shape.num_bags = std::max<int64_t>(2, shape.num_bags / scale);
    shape.ids_per_bag = std::min<int64_t>(shape.ids_per_bag, 1 + 1000000 / scale);
    const std::string dtype = shape.dtype, index = shape.index;
    const auto run = dtype == "bfloat16"  ? &MeasureShape<BFloat16, int64_t>
                     : dtype == "float16" ? &MeasureShape<Half, int64_t>
                     : index == "int32"   ? &MeasureShape<float, int32_t>
                                          : &MeasureShape<float, int64_t>;
    run(shape, argv[1], &stopwatch);
  }
  return 0;
}

}  // namespace
}  // namespace tf_ti

int main(int argc, char** argv) { return tf_ti::Main(argc, argv); }
