#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/bags/sorting_gpu.h"
#include "cc/compute/bags/updates_gpu.h"
#include "cc/compute/device-inl.h"

namespace tf_ti {
namespace {

template <typename T, typename Index>
std::string InitGradient(const RowGradientsOf<T, Index>& gradients, Gpu* gpu,
                         GpuTableGradient<T, Index>* gradient) {
  return gradient->Init(gradients.bags, gradients.weights, gradients.reduction, gradients.argmax,
                        gradients.num_rows, gradients.width, gpu);
}

enum Rule { kDescent, kAdam, kAdagrad };

// The coefficients of a rule, computed from its numbers, in the type of the sums: see updates.cc.
template <typename S>
struct Coefficients {
  S decay, rate, first_share, second_share, second_scale, inner_epsilon, epsilon;
};

// Makes coefficients of numbers on the device.
template <typename S>
__global__ void MakeDescent(const S* scale, const S* weight_decay, Coefficients<S>* made) {
  *made = {};
  if (weight_decay != nullptr && *weight_decay != S(0)) {
    made->decay = static_cast<S>(static_cast<double>(*scale) * static_cast<double>(*weight_decay));
  }
  made->rate = *scale;
}

template <typename S>
__global__ void MakeAdam(const AdamNumbers numbers, const S* learning_rate, const int64_t* step,
                         Coefficients<S>* made) {
  const double power = static_cast<double>(max(*step, int64_t{1}));
  const double first = 1 - pow(numbers.beta_1, power), second = 1 - pow(numbers.beta_2, power);
  const double rate = *learning_rate;
  const double root = numbers.epsilon_hat ? sqrt(second) : 1.0;
  made->decay = static_cast<S>(rate * numbers.weight_decay);
  made->rate = static_cast<S>(rate / first * root);
  made->first_share = static_cast<S>(1 - numbers.beta_1);
  made->second_share = static_cast<S>(1 - numbers.beta_2);
  made->second_scale = static_cast<S>(numbers.epsilon_hat ? 1.0 : 1 / second);
  made->inner_epsilon = S(0);
  made->epsilon = static_cast<S>(numbers.epsilon);
}

template <typename S>
__global__ void MakeAdagrad(const AdagradNumbers numbers, const S* learning_rate,
                            Coefficients<S>* made) {
  const S epsilon = static_cast<S>(numbers.epsilon);
  *made = {};
  made->rate = *learning_rate;
  made->inner_epsilon = numbers.epsilon_inside_sqrt ? epsilon : S(0);
  made->epsilon = numbers.epsilon_inside_sqrt ? S(0) : epsilon;
}

template <typename T, typename V, typename Key>
struct UpdateArgs {
  const Coefficients<Sum<T>>* numbers;
  const Key* rows;
  const int32_t* starts;        // where in `rows` each row is; where null, all of `rows` are there
  const int64_t* device_count;  // the number of rows; where null, it is `count`
  int64_t count;
  int64_t num_rows;  // of the table
  const V* sums;     // [count, width]
  int64_t width;
  T* table;
  Sum<T>* first;
  Slot<Sum<T>> second;
};

// A group of lanes takes a row, each of them packs of columns. A number of the whole row is known
// to all of its lanes.
template <Rule rule, typename T, typename V, typename Key, int kSize>
__global__ void __launch_bounds__(kBlock, sizeof(Sum<T>) > 4 ? 3 : 4)
    UpdateNamedRows(const __grid_constant__ UpdateArgs<T, V, Key> args, int lanes, int64_t blocks) {
  using S = Sum<T>;
  const int lane = threadIdx.x & (lanes - 1);
  const int64_t width = args.width;
  const int64_t count = args.device_count == nullptr ? args.count : *args.device_count;
  const Coefficients<S> numbers = *args.numbers;
  const bool is_row_wise = args.second.is_row_wise;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const int64_t k = block * (kBlock / lanes) + threadIdx.x / lanes;
    bool is_in = k < count;
    const int64_t row =
        is_in ? static_cast<int64_t>(args.rows[args.starts == nullptr ? k : args.starts[k]]) : 0;
    is_in = is_in && row >= 0 && row < args.num_rows;
    const V* const sums = args.sums + k * width;
    int is_touched = 0;
    S square(0), before(0);
    for (int64_t c = lane * kSize; is_in && c < width; c += lanes * kSize) {
      const auto some = LoadPack<kSize>(sums + c);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const S s = ToSum(some.values[j]);
        if (!(s == S(0))) is_touched = 1;
        square += s * s;
      }
    }
    if (is_in && is_row_wise && lane == 0) before = args.second.rows[row];
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      is_touched |= __shfl_xor_sync(kAllLanes, is_touched, mask);
      square += __shfl_xor_sync(kAllLanes, square, mask);
    }
    before = __shfl_sync(kAllLanes, before, 0, lanes);
    if (!is_touched) continue;

    S factor(0);  // of sums or averages where the second slot is row-wise
    if (is_row_wise) {
      square /= static_cast<S>(width);
      const S now =
          rule == kAdam ? before + (square - before) * numbers.second_share : before + square;
      const S root =
          sqrt(now * (rule == kAdam ? numbers.second_scale : S(1)) + numbers.inner_epsilon);
      factor = numbers.rate / (root + numbers.epsilon);
      if (lane == 0) args.second.rows[row] = now;
    }
    const bool has_second = rule != kDescent && !is_row_wise;
    for (int64_t c = lane * kSize; c < width; c += lanes * kSize) {
      const int64_t at = row * width + c;
      const auto steps = LoadPack<kSize>(sums + c);
      auto table = LoadPack<kSize>(args.table + at);
      Pack<S, kSize> first = {}, second = {};
      if constexpr (rule == kAdam) first = LoadPack<kSize>(args.first + at);
      if (has_second) second = LoadPack<kSize>(args.second.rows + at);
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const S s = ToSum(steps.values[j]);
        S x = ToSum(table.values[j]);
        if (numbers.decay != S(0)) x -= x * numbers.decay;
        S step = s;
        if constexpr (rule == kAdam) {
          first.values[j] += (s - first.values[j]) * numbers.first_share;
          step = first.values[j];
        }
        if constexpr (rule == kDescent) {
          x -= s * numbers.rate;
        } else if (is_row_wise) {
          x -= step * factor;
        } else {
          S& now = second.values[j];
          now += rule == kAdam ? (s * s - now) * numbers.second_share : s * s;
          const S root =
              sqrt(now * (rule == kAdam ? numbers.second_scale : S(1)) + numbers.inner_epsilon);
          x -= step * numbers.rate / (root + numbers.epsilon);
        }
        table.values[j] = FromSum<T>(x);
      }
      StorePack(table, args.table + at);
      if constexpr (rule == kAdam) StorePack(first, args.first + at);
      if (has_second) StorePack(second, args.second.rows + at);
    }
  }
}

template <Rule rule, typename T, typename V, typename Key>
std::string LaunchUpdate(const UpdateArgs<T, V, Key>& args, Gpu* gpu) {
  // Packs of 16 bytes of the slots, which are the largest.
  constexpr int kSize = 16 / sizeof(Sum<T>);
  const auto is_aligned = [](auto* array) {
    return reinterpret_cast<uintptr_t>(array) % (kSize * sizeof(*array)) == 0;
  };
  const bool has_packs = args.width % kSize == 0 && is_aligned(args.sums) &&
                         is_aligned(args.table) && is_aligned(args.first) &&
                         (args.second.is_row_wise || is_aligned(args.second.rows));
  int lanes = 8;
  while (lanes < kWarp && lanes * (has_packs ? kSize : 1) < args.width) lanes *= 2;
  const int64_t rows_per_block = kBlock / lanes;
  const int64_t blocks = (args.count + rows_per_block - 1) / rows_per_block;
  return Launch(
      has_packs ? &UpdateNamedRows<rule, T, V, Key, kSize> : &UpdateNamedRows<rule, T, V, Key, 1>,
      NumBlocks(blocks, 1), kBlock, gpu, args, lanes, blocks);
}

// `make(coefficients)` enqueues the kernel that makes them.
template <Rule rule, typename T, typename Index, typename Make>
std::string Update(const RowGradientsOf<T, Index>& gradients, const Make& make, Sum<T>* first,
                   const Slot<Sum<T>>& second, Gpu* gpu, T* table) {
  const int64_t num_rows = gradients.num_rows, width = gradients.width;
  if (gradients.bags.count == 0 || num_rows == 0 || width == 0) return "";
  Coefficients<Sum<T>>* numbers;
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, 1, &numbers));
  TF_TI_RETURN_IF_WRONG(make(numbers));
  if (gradients.are_rows && gradients.are_distinct) {
    return LaunchUpdate<rule, T, T, Index>(
        {numbers, gradients.bags.indices, nullptr, nullptr, gradients.bags.count, num_rows,
         gradients.grad, width, table, first, second},
        gpu);
  }
  GpuTableGradient<T, Index> gradient;
  TF_TI_RETURN_IF_WRONG(InitGradient(gradients, gpu, &gradient));
  GpuPoolArgs<T, int32_t> pool = gradient.GetBags(gradients.grad);
  TF_TI_RETURN_IF_WRONG(Allocate(gpu, pool.bags.count * width, &pool.sums));
  TF_TI_RETURN_IF_WRONG(PoolOnGpu(pool, gpu));
  const auto launch = [&](const auto* rows) {
    return LaunchUpdate<rule, T, Sum<T>, std::decay_t<decltype(*rows)>>(
        {numbers, rows, gradient.starts(), gradient.num_touched(), pool.bags.count, num_rows,
         pool.sums, width, table, first, second},
        gpu);
  };
  return gradient.rows_are_wide() ? launch(static_cast<const uint64_t*>(gradient.entry_rows()))
                                  : launch(static_cast<const uint32_t*>(gradient.entry_rows()));
}

}  // namespace

template <typename T, typename Index>
std::string ScatterSub(const RowGradientsOf<T, Index>& gradients, const Sum<T>* scale, Gpu* gpu,
                       T* table) {
  const int64_t count = gradients.bags.count, num_rows = gradients.num_rows;
  if (count == 0 || num_rows == 0 || gradients.width == 0) return "";
  // A maximum takes different elements of each row.
  if (gradients.argmax != nullptr) return DecayedScatterSub(gradients, scale, nullptr, gpu, table);
  GpuTableGradient<T, Index> gradient;
  GpuPoolArgs<T, int32_t> args;
  if (gradients.are_rows && gradients.are_distinct && count < kMostEntries) {
    // Each index is a bag of its own.
    args.table = {gradients.grad, count, gradients.width};
    args.bags.packed_size = 1;
    args.bags.num_ids = args.bags.count = static_cast<int32_t>(count);
    args.skips_zeros = true;
    args.rows = gradients.bags.indices;
    args.rows_are_wide = sizeof(Index) == sizeof(uint64_t);
    // As an unsigned number, a negative one is larger than any Index.
    constexpr uint64_t kMostRows = uint64_t{1} << (8 * sizeof(Index) - 1);
    args.num_out_rows = static_cast<int64_t>(std::min<uint64_t>(num_rows, kMostRows));
  } else {
    TF_TI_RETURN_IF_WRONG(InitGradient(gradients, gpu, &gradient));
    args = gradient.GetBags(gradients.grad);
    args.rows = gradient.entry_rows();
    args.rows_are_wide = gradient.rows_are_wide();
    args.num_out_rows = num_rows;
  }
  args.pooled = Pooled::kSubtracted;
  args.out = table;
  args.scale = scale;
  return PoolOnGpu(args, gpu);
}

template <typename T, typename Index>
std::string DecayedScatterSub(const RowGradientsOf<T, Index>& gradients, const Sum<T>* scale,
                              const Sum<T>* weight_decay, Gpu* gpu, T* table) {
  using S = Sum<T>;
  const auto make = [&](Coefficients<S>* made) {
    return Launch(&MakeDescent<S>, 1, 1, gpu, scale, weight_decay, made);
  };
  return Update<kDescent>(gradients, make, nullptr, {}, gpu, table);
}

template <typename T, typename Index>
std::string AdamUpdate(const RowGradientsOf<T, Index>& gradients, const AdamNumbers& numbers,
                       const Sum<T>* learning_rate, const int64_t* step, Sum<T>* m,
                       const Slot<Sum<T>>& v, Gpu* gpu, T* table) {
  using S = Sum<T>;
  const auto make = [&](Coefficients<S>* made) {
    return Launch(&MakeAdam<S>, 1, 1, gpu, numbers, learning_rate, step, made);
  };
  return Update<kAdam>(gradients, make, m, v, gpu, table);
}

template <typename T, typename Index>
std::string AdagradUpdate(const RowGradientsOf<T, Index>& gradients, const AdagradNumbers& numbers,
                          const Sum<T>* learning_rate, const Slot<Sum<T>>& accumulator, Gpu* gpu,
                          T* table) {
  using S = Sum<T>;
  const auto make = [&](Coefficients<S>* made) {
    return Launch(&MakeAdagrad<S>, 1, 1, gpu, numbers, learning_rate, made);
  };
  return Update<kAdagrad>(gradients, make, nullptr, accumulator, gpu, table);
}

#define TF_TI_UPDATES_ON_GPU(T, Index)                                                             \
  template std::string ScatterSub<T, Index>(const RowGradientsOf<T, Index>&, const Sum<T>*, Gpu*,  \
                                            T*);                                                   \
  template std::string DecayedScatterSub<T, Index>(const RowGradientsOf<T, Index>&, const Sum<T>*, \
                                                   const Sum<T>*, Gpu*, T*);                       \
  template std::string AdamUpdate<T, Index>(const RowGradientsOf<T, Index>&, const AdamNumbers&,   \
                                            const Sum<T>*, const int64_t*, Sum<T>*,                \
                                            const Slot<Sum<T>>&, Gpu*, T*);                        \
  template std::string AdagradUpdate<T, Index>(const RowGradientsOf<T, Index>&,                    \
                                               const AdagradNumbers&, const Sum<T>*,               \
                                               const Slot<Sum<T>>&, Gpu*, T*);
#define TF_TI_UPDATES_ON_GPU_BOTH(T) \
  TF_TI_UPDATES_ON_GPU(T, int32_t) TF_TI_UPDATES_ON_GPU(T, int64_t)
TF_TI_FLOATS(TF_TI_UPDATES_ON_GPU_BOTH)

}  // namespace tf_ti
