#include "cc/compute/bags/updates.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/pooling.h"
#include "cc/compute/buffer.h"
#include "cc/compute/prefetch.h"

namespace tf_ti {
namespace {

enum Rule { kDescent, kAdam, kAdagrad };

// The coefficients of a rule, computed from its numbers, in the type of the sums.
template <typename S>
struct Coefficients {
  S decay = 0;  // share of a row that is taken off first
  S rate = 0;
  S first_share = 0;  // 1 - beta
  S second_share = 0;
  S second_scale = 1;  // of the second slot before its root
  S inner_epsilon = 0;
  S epsilon = 0;
};

// A run of rows, each of them once.
template <typename T, typename Index>
struct UpdateArgs {
  Coefficients<Sum<T>> numbers;
  const Index* rows;
  int64_t count;
  const Index* rows_end;  // rows before it may be read, to prefetch what comes next
  const Sum<T>* sums;     // their gradients, [count, width]
  int64_t width;
  T* table;
  Sum<T>* first;
  Slot<Sum<T>> second;
};

template <typename T, typename Index>
using UpdateRows = void (*)(const UpdateArgs<T, Index>& args);

template <typename T>
using WidenRows = void (*)(const T* from, int64_t size, Sum<T>* to);

}  // namespace
}  // namespace tf_ti

#define TF_TI_LOOPS "cc/compute/bags/updates-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {
namespace {

template <typename T, typename Index, Rule rule>
UpdateRows<T, Index> ChooseUpdate() {
  TF_TI_RETURN_BEST(UpdateOf<T, Index, rule>());
}

template <typename T>
WidenRows<T> ChooseWiden() {
  TF_TI_RETURN_BEST(WidenOf<T>());
}

// An error message about the indices, and the number of them before the first that is not above the
// one before it.
template <typename Index>
std::string CheckIndices(const Index* indices, int64_t count, int64_t num_rows,
                         int64_t* num_ascending) {
  *num_ascending = count;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = indices[i];
    if (row < 0 || row >= num_rows) {
      return "indices[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", but the variable has " + std::to_string(num_rows) + " rows";
    }
    if (i > 0 && indices[i - 1] >= row && *num_ascending == count) *num_ascending = i;
  }
  return "";
}

bool IsZero(const void* memory, int64_t size, Parallel* parallel) {
  constexpr int64_t kBlock = 4096;
  const auto* const bytes = static_cast<const unsigned char*>(memory);
  const int64_t parts = NumParts(*parallel, static_cast<double>(size));
  std::atomic<bool> is_zero{true};
  parallel->Run(parts, [&](int64_t part) {
    const int64_t end = size / parts * (part + 1) + size % parts * (part + 1) / parts;
    int64_t at = size / parts * part + size % parts * part / parts;
    while (at < end && is_zero.load(std::memory_order_relaxed)) {
      const int64_t block_end = std::min(at + kBlock, end);
      unsigned char bits = 0;
      for (; at < block_end; ++at) bits |= bytes[at];
      if (bits != 0) is_zero.store(false, std::memory_order_relaxed);
    }
  });
  return is_zero;
}

// The number of rows to update if each is above the one before it; else -1. Rows behind them are
// padding: compiled gradients, whose size is fixed, end with their last row again and again, and
// zeros.
template <typename T, typename Index>
int64_t CountAscending(const RowGradientsOf<T, Index>& gradients, int64_t num_ascending,
                       Parallel* parallel) {
  const int64_t rest = gradients.bags.count - num_ascending;
  if (rest == 0) return num_ascending;
  const Index* const padding = gradients.bags.indices + num_ascending;
  const bool is_last =
      std::all_of(padding, padding + rest, [=](Index row) { return row == padding[-1]; });
  const T* const values = gradients.grad + num_ascending * gradients.width;
  if (!is_last || !IsZero(values, rest * gradients.width * sizeof(T), parallel)) return -1;
  return num_ascending;
}

constexpr int64_t kLine = 64;

// Memory for the sums of some rows, one piece for each thread, allocated before the first row is
// written.
template <typename S>
class SumsOfThreads {
 public:
  SumsOfThreads(int64_t num_threads, int64_t size) : memory_(num_threads * size) {
    for (int64_t i = 0; i < num_threads; ++i) idle_.push_back(memory_.data() + i * size);
  }

  S* Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    S* const sums = idle_.back();
    idle_.pop_back();
    return sums;
  }
  void GiveBack(S* sums) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(sums);
  }

 private:
  Buffer<S> memory_;
  std::mutex mutex_;  // guards idle_
  std::vector<S*> idle_;
};

// Updates the rows that gradients name, a run of them at a time.
template <typename T, typename Index>
class Updater {
 public:
  Updater(const RowGradientsOf<T, Index>& gradients, UpdateRows<T, Index> update,
          const UpdateArgs<T, Index>& args)
      : gradients_(gradients),
        update_(update),
        args_(args),
        block_(std::max<int64_t>(1, kBlockBytes / (args.width * sizeof(Sum<T>)))) {}

  std::string Run(double bytes_per_row, Parallel* parallel) const {
    const Bags<Index>& bags = gradients_.bags;
    if (gradients_.are_rows) {
      int64_t num_ascending;
      const std::string wrong =
          CheckIndices(bags.indices, bags.count, gradients_.num_rows, &num_ascending);
      if (!wrong.empty() || bags.count == 0 || gradients_.width == 0) return wrong;
      const int64_t count = CountAscending(gradients_, num_ascending, parallel);
      if (count >= 0) {
        const int64_t parts = NumParts(*parallel, count * bytes_per_row);
        SumsOfThreads<Sum<T>> sums(parallel->num_threads(),
                                   kIsWidened ? std::min(block_, count) * gradients_.width : 0);
        parallel->Run(parts, [&](int64_t part) {
          UpdateAscending(count * part / parts, count * (part + 1) / parts, &sums);
        });
        return "";
      }
    }
    TableGradient<T, Index> gradient;
    const std::string problem =
        gradient.Init(bags, gradients_.weights, gradients_.reduction, gradients_.argmax,
                      gradients_.num_rows, gradients_.width, parallel);
    if (!problem.empty() || gradients_.width == 0) return problem;
    SumsOfThreads<Sum<T>> sums(parallel->num_threads(),
                               std::min(block_, gradient.num_touched()) * gradients_.width);
    gradient.VisitRuns(
        parallel, static_cast<double>(bags.num_indices) * bytes_per_row,
        [&](const RowRun<Index>& run) { UpdateRun(gradient, run, parallel, &sums); });
    return "";
  }

 private:
  static constexpr int64_t kBlockBytes = 16 << 10;  // half of the first-level cache
  static constexpr bool kIsWidened = !std::is_same_v<T, Sum<T>>;

  void UpdateAscending(int64_t begin, int64_t end, SumsOfThreads<Sum<T>>* sums_of_threads) const {
    const T* const values = gradients_.grad;
    const int64_t width = gradients_.width;
    UpdateArgs<T, Index> args = args_;
    args.rows_end = gradients_.bags.indices + end;
    const auto update = [&](int64_t first, int64_t count, const Sum<T>* sums) {
      args.rows = gradients_.bags.indices + first;
      args.count = count;
      args.sums = sums;
      update_(args);
    };
    if constexpr (kIsWidened) {
      const WidenRows<T> widen = ChooseWiden<T>();
      Sum<T>* const sums = sums_of_threads->Take();
      for (int64_t first = begin; first < end; first += block_) {
        const int64_t count = std::min(block_, end - first);
        widen(values + first * width, count * width, sums);
        update(first, count, sums);
      }
      sums_of_threads->GiveBack(sums);
    } else {
      update(begin, end - begin, values + begin * width);
    }
  }

  void UpdateRun(const TableGradient<T, Index>& gradient, const RowRun<Index>& run,
                 Parallel* parallel, SumsOfThreads<Sum<T>>* sums_of_threads) const {
    Sum<T>* const sums = sums_of_threads->Take();
    UpdateArgs<T, Index> args = args_;
    args.rows_end = run.rows + run.count;
    args.sums = sums;
    for (int64_t first = 0; first < run.count; first += block_) {
      args.rows = run.rows + first;
      args.count = std::min(block_, run.count - first);
      gradient.Pool(run, first, args.count, gradients_.grad, parallel, nullptr, sums);
      update_(args);
    }
    sums_of_threads->GiveBack(sums);
  }

  const RowGradientsOf<T, Index>& gradients_;
  const UpdateRows<T, Index> update_;
  const UpdateArgs<T, Index>& args_;
  const int64_t block_;  // rows whose sums fit the cache
};

// `slots` is the number of slots' numbers, of the sums' type, for each element.
template <Rule rule, typename T, typename Index>
std::string Update(const RowGradientsOf<T, Index>& gradients,
                   const Coefficients<Sum<T>>& coefficients, Sum<T>* first,
                   const Slot<Sum<T>>& second, Parallel* parallel, T* table) {
  UpdateArgs<T, Index> args{};
  args.numbers = coefficients;
  args.width = std::max<int64_t>(gradients.width, 1);
  args.table = table;
  args.first = first;
  args.second = second;
  const double slots = (first != nullptr) + (second.rows != nullptr && !second.is_row_wise);
  const double bytes = gradients.width * (3 * sizeof(T) + 2 * slots * sizeof(Sum<T>));
  return Updater<T, Index>(gradients, ChooseUpdate<T, Index, rule>(), args).Run(bytes, parallel);
}

}  // namespace

template <typename T, typename Index>
std::string ScatterSub(const RowGradientsOf<T, Index>& gradients, Sum<T> scale, Parallel* parallel,
                       T* table) {
  constexpr int64_t kAhead = 16;
  const Index* const indices = gradients.bags.indices;
  const T* const values = gradients.grad;
  const int64_t num_rows = gradients.num_rows, width = gradients.width;
  int64_t count = gradients.bags.count, num_ascending;
  const std::string wrong = CheckIndices(indices, count, num_rows, &num_ascending);
  if (!wrong.empty()) return wrong;
  const SubtractScaled<T> subtract = ChooseSubtractScaled<T>();
  const uint64_t row_bytes = width * sizeof(T);
  const auto prefetch = [&](int64_t row) {
    const char* const ahead = reinterpret_cast<const char*>(table + row * width);
    for (uint64_t byte = 0; byte < row_bytes; byte += kLine) Prefetch<true>(ahead + byte);
  };
  const double bytes_per_row = static_cast<double>(row_bytes) * 2;
  const int64_t ascending = CountAscending(gradients, num_ascending, parallel);
  const bool is_ascending = ascending >= 0;
  if (is_ascending) count = ascending;
  const int64_t parts = NumParts(*parallel, count * bytes_per_row);
  if (is_ascending || parts == 1) {
    parallel->Run(parts, [&](int64_t part) {
      const int64_t end = count * (part + 1) / parts;
      for (int64_t i = count * part / parts; i < end; ++i) {
        prefetch(indices[std::min(i + kAhead, end - 1)]);
        subtract(table + indices[i] * width, values + i * width, scale, width);
      }
    });
    return "";
  }
  // The positions that name each row. The element type means nothing there.
  TableGradient<float, Index> groups;
  const std::string problem =
      groups.Init(gradients.bags, {}, Reduction::kSum, nullptr, num_rows, 1, parallel);
  if (!problem.empty()) return problem;
  groups.VisitRuns(parallel, count * bytes_per_row, [&](const RowRun<Index>& run) {
    for (int64_t k = 0; k < run.count; ++k) {
      prefetch(run.rows[std::min(k + kAhead, run.count - 1)]);
      T* const row = table + run.rows[k] * width;
      for (int64_t e = run.starts[k]; e < run.starts[k + 1]; ++e) {
        subtract(row, values + run.entries[e] * width, scale, width);
      }
    }
  });
  return "";
}

template <typename T, typename Index>
std::string DecayedScatterSub(const RowGradientsOf<T, Index>& gradients, double scale,
                              double weight_decay, Parallel* parallel, T* table) {
  Coefficients<Sum<T>> numbers;
  // Without a decay, an infinite scale has none.
  numbers.decay = weight_decay == 0 ? Sum<T>(0) : static_cast<Sum<T>>(scale * weight_decay);
  numbers.rate = static_cast<Sum<T>>(scale);
  return Update<kDescent>(gradients, numbers, nullptr, {}, parallel, table);
}

template <typename T, typename Index>
std::string AdamUpdate(const RowGradientsOf<T, Index>& gradients, const AdamNumbers& numbers,
                       Sum<T>* m, const Slot<Sum<T>>& v, Parallel* parallel, T* table) {
  using S = Sum<T>;
  const double step = static_cast<double>(numbers.step);
  const double first = 1 - std::pow(numbers.beta_1, step);
  const double second = 1 - std::pow(numbers.beta_2, step);
  const double rate = numbers.learning_rate / first;
  Coefficients<S> coefficients;
  coefficients.decay = static_cast<S>(numbers.learning_rate * numbers.weight_decay);
  coefficients.rate = static_cast<S>(numbers.epsilon_hat ? rate * std::sqrt(second) : rate);
  coefficients.first_share = static_cast<S>(1 - numbers.beta_1);
  coefficients.second_share = static_cast<S>(1 - numbers.beta_2);
  coefficients.second_scale = static_cast<S>(numbers.epsilon_hat ? 1 : 1 / second);
  coefficients.epsilon = static_cast<S>(numbers.epsilon);
  return Update<kAdam>(gradients, coefficients, m, v, parallel, table);
}

template <typename T, typename Index>
std::string AdagradUpdate(const RowGradientsOf<T, Index>& gradients, const AdagradNumbers& numbers,
                          const Slot<Sum<T>>& accumulator, Parallel* parallel, T* table) {
  using S = Sum<T>;
  Coefficients<S> coefficients;
  coefficients.rate = static_cast<S>(numbers.learning_rate);
  const S epsilon = static_cast<S>(numbers.epsilon);
  (numbers.epsilon_inside_sqrt ? coefficients.inner_epsilon : coefficients.epsilon) = epsilon;
  return Update<kAdagrad>(gradients, coefficients, nullptr, accumulator, parallel, table);
}

#define TF_TI_SCATTER_SUB(T, Index) \
  template std::string ScatterSub<T, Index>(const RowGradientsOf<T, Index>&, Sum<T>, Parallel*, T*);
#define TF_TI_SCATTER_SUB_BOTH(T) TF_TI_SCATTER_SUB(T, int32_t) TF_TI_SCATTER_SUB(T, int64_t)
TF_TI_NUMBERS(TF_TI_SCATTER_SUB_BOTH)

#define TF_TI_UPDATES(T, Index)                                                                  \
  template std::string DecayedScatterSub<T, Index>(const RowGradientsOf<T, Index>&, double,      \
                                                   double, Parallel*, T*);                       \
  template std::string AdamUpdate<T, Index>(const RowGradientsOf<T, Index>&, const AdamNumbers&, \
                                            Sum<T>*, const Slot<Sum<T>>&, Parallel*, T*);        \
  template std::string AdagradUpdate<T, Index>(                                                  \
      const RowGradientsOf<T, Index>&, const AdagradNumbers&, const Slot<Sum<T>>&, Parallel*, T*);
#define TF_TI_UPDATES_BOTH(T) TF_TI_UPDATES(T, int32_t) TF_TI_UPDATES(T, int64_t)
TF_TI_FLOATS(TF_TI_UPDATES_BOTH)

}  // namespace tf_ti
