#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/pooling.h"
#include "cc/compute/bags/walk-inl.h"
#include "cc/compute/buffer.h"
#include "cc/compute/prefetch.h"

namespace tf_ti {
namespace {

// The distance of prefetches: rows, or gradients of bags, are prefetched so many ahead.
constexpr int64_t kAhead = 8;

// Row `row`, as far as it is worth it. It may be any number, as ids ahead are not checked yet: so
// the arithmetic is not that of pointers and signed integers.
template <typename T>
void PrefetchRow(const T* rows, int64_t row, int64_t width) {
  constexpr uint64_t kLine = 64, kMost = 1024;
  const uint64_t bytes = static_cast<uint64_t>(width) * sizeof(T);
  const uintptr_t from = reinterpret_cast<uintptr_t>(rows) + static_cast<uint64_t>(row) * bytes;
  for (uint64_t byte = 0; byte < std::min(bytes, kMost); byte += kLine) {
    Prefetch(reinterpret_cast<const char*>(from + byte));
  }
}

// One call of WeightsGradient. With d_i the dot product of row i and the bag's gradient, and D the
// divisor of the bag's sum, it is d_i for a sum, (d_i - sum(w d) / D) / D for a mean, and (d_i -
// w_i sum(w d) / D^2) / D for kSqrtN.
template <typename T, typename Index>
class WeightGradients {
 public:
  WeightGradients(const Table<T>& table, const Bags<Index>& bags, const Weights<T>& weights,
                  Reduction reduction, const T* grad, const WeightsOutput<T>& gradient)
      : table_(table),
        bags_(bags),
        weights_(weights),
        reduction_(reduction),
        dot_(ChooseDot<T>()),
        grad_(grad),
        gradient_(gradient) {}

  std::string Run(Parallel* parallel) {
    if (table_.width == 0) {
      FillZeros(0, bags_.num_indices);
      return CheckWithoutWalk(bags_, table_.num_rows);
    }
    const std::string wrong = CheckOutside(bags_, table_.num_rows, &problem_);
    if (!wrong.empty()) return wrong;
    const int64_t parts = NumParts(*parallel, BytesOf<T>(bags_, table_.width));
    const std::vector<int64_t> first = SplitBags(bags_, parts);
    // Indices in no bag have no influence.
    FillZeros(0, BagBegin(bags_, 0));
    FillZeros(BagBegin(bags_, bags_.count), bags_.num_indices);
    parallel->Run(parts, [&](int64_t part) {
      BagDots bag;
      BagWalk<Index> walk(bags_, first[part], first[part + 1]);
      while (walk.Next()) {
        if (!CheckIndices(bags_, walk.begin(), walk.end(), table_.num_rows, &problem_)) return;
        ComputeDots(walk.bag(), walk.begin(), walk.end(), &bag);
        for (int64_t i = walk.begin(); i < walk.end(); ++i) {
          Write(i, IsPadding(bags_, i) ? Sum<T>(0) : FromDot(i, bag.dots[i - walk.begin()], bag));
        }
      }
      if (!walk.ok()) problem_.InBounds();
    });
    return problem_.Describe(bags_, table_.num_rows);
  }

 private:
  // The dot products of a bag's rows and its gradient.
  struct BagDots {
    std::vector<Sum<T>> dots;  // nothing of padding
    Sum<T> total;              // of their products with the weights, and
    Sum<T> divisor;            // that of the bag's sum: where there are divisors
  };

  void ComputeDots(int64_t bag, int64_t begin, int64_t end, BagDots* result) const {
    const T* const grad = grad_ + bag * table_.width;
    result->dots.resize(end - begin);
    Sum<T> total(0);
    Divisor<Sum<T>> divisors(reduction_);
    for (int64_t i = begin; i < end; ++i) {
      PrefetchRow(table_.rows, bags_.indices[std::min(i + kAhead, bags_.num_indices - 1)],
                  table_.width);
      if (IsPadding(bags_, i)) continue;
      const Sum<T> dot = dot_(table_.rows + bags_.indices[i] * table_.width, grad, table_.width);
      result->dots[i - begin] = dot;
      if (HasDivisors(reduction_)) {
        const Sum<T> weight = WeightAt(weights_, i);
        total = AddSums(total, MultiplySums(weight, dot));
        divisors.AddWeight(weight);
      }
    }
    result->total = total;
    result->divisor = divisors.Get();
  }

  // The gradient of the weight at `position`, which is not padding.
  Sum<T> FromDot(int64_t position, Sum<T> dot, const BagDots& bag) const {
    if (!HasDivisors(reduction_)) return dot;
    Sum<T> mean = DivideNoNan(bag.total, bag.divisor);
    if (reduction_ == Reduction::kSqrtN) {
      mean = DivideNoNan(MultiplySums(WeightAt(weights_, position), mean), bag.divisor);
    }
    return DivideNoNan(static_cast<Sum<T>>(dot - mean), bag.divisor);
  }

  void Write(int64_t position, Sum<T> value) {
    if (gradient_.wide != nullptr) {
      gradient_.wide[position] = value;
    } else {
      gradient_.rounded[position] = Round<T>(value);
    }
  }

  void FillZeros(int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Write(i, Sum<T>(0));
  }

  const Table<T>& table_;
  const Bags<Index>& bags_;
  const Weights<T>& weights_;
  const Reduction reduction_;
  const Dot<T> dot_;
  const T* const grad_;
  const WeightsOutput<T>& gradient_;
  Problem problem_;
};

}  // namespace

template <typename T, typename Index>
std::string WeightsGradient(const Table<T>& table, const Bags<Index>& bags,
                            const Weights<T>& weights, Reduction reduction, const T* grad,
                            Parallel* parallel, const WeightsOutput<T>& gradient) {
  return WeightGradients<T, Index>(table, bags, weights, reduction, grad, gradient).Run(parallel);
}

template <typename T, typename Index>
std::string TableGradient<T, Index>::Init(const Bags<Index>& bags, const Weights<T>& weights,
                                          Reduction reduction, const Index* argmax,
                                          int64_t num_rows, int64_t width, Parallel* parallel) {
  num_bags_ = bags.count;
  width_ = width;
  const std::string problem =
      MakeEntries(bags, weights, reduction, argmax, num_rows, width, parallel, &entries_);
  const int64_t largest = entries_.size();
  if (problem.empty() && largest > kGiant && !is_max()) {
    giant_sums_ = Buffer<Sum<T>>(PiecesOfGiant(largest) * width);
  }
  return problem;
}

template <typename T, typename Index>
void TableGradient<T, Index>::Compute(const T* grad, Parallel* parallel, Index* rows,
                                      T* values) const {
  const double bytes = static_cast<double>(entries_.size() + num_touched()) * width_ * sizeof(T);
  VisitRuns(parallel, bytes, [&](const RowRun<Index>& run) {
    std::copy_n(run.rows, run.count, rows + run.first);
    Pool(run, 0, run.count, grad, parallel, values + run.first * width_, nullptr);
  });
}

template <typename T, typename Index>
void TableGradient<T, Index>::VisitRuns(
    Parallel* parallel, double bytes,
    const std::function<void(const RowRun<Index>&)>& visit) const {
  const int64_t parts = NumParts(*parallel, bytes);
  const std::vector<int64_t> first_bucket = entries_.SplitBuckets(parts);
  std::mutex mutex;
  std::vector<RowRun<Index>> giants;
  giants.reserve(entries_.size() / kGiant);
  parallel->Run(parts, [&](int64_t part) {
    for (int64_t bucket = first_bucket[part]; bucket < first_bucket[part + 1]; ++bucket) {
      SplitBucket(bucket, [&](const RowRun<Index>& run) {
        if (!run.is_giant) return visit(run);
        const std::lock_guard<std::mutex> lock(mutex);
        giants.push_back(run);
      });
    }
  });
  for (const RowRun<Index>& run : giants) visit(run);
}

template <typename T, typename Index>
template <typename Visit>
void TableGradient<T, Index>::SplitBucket(int64_t bucket, const Visit& visit) const {
  const int64_t first_row = entries_.bucket_rows[bucket];
  const int64_t count = entries_.bucket_rows[bucket + 1] - first_row;
  const int64_t* const starts = entries_.starts + entries_.FirstStart(bucket);
  const Index* const rows = entries_.rows + entries_.bucket_entries[bucket];
  const auto is_giant = [&](int64_t row) {
    return !is_max() && starts[row + 1] - starts[row] > kGiant;
  };
  for (int64_t row = 0; row < count;) {
    const int64_t from = row++;
    const bool is_one = is_giant(from);
    while (!is_one && row < count && !is_giant(row)) ++row;
    visit({rows + from, first_row + from, starts + from, row - from, entries_.bags, is_one});
  }
}

template <typename T, typename Index>
void TableGradient<T, Index>::Pool(const RowRun<Index>& run, int64_t from, int64_t count,
                                   const T* grad, Parallel* parallel, T* values,
                                   Sum<T>* sums) const {
  if (is_max()) return PoolMax(run.starts + from, count, grad, values, sums);
  if (run.is_giant) return PoolGiant(run.starts[0], run.starts[1], grad, parallel, values, sums);
  PoolSums(run.starts + from, count, grad, values, sums);
}

template <typename T, typename Index>
void TableGradient<T, Index>::PoolSums(const int64_t* starts, int64_t count, const T* grad,
                                       T* values, Sum<T>* sums) const {
  PoolArgs<T, int32_t> args{};
  args.table = grad;
  args.num_rows = num_bags_;
  args.width = width_;
  args.ids = entries_.bags;
  args.ids_end = entries_.bags + entries_.size();
  args.weights = entries_.weights;
  args.bounds = starts;
  args.count = count;
  args.out = values;
  args.sums = sums;
  args.prefetching = RowPrefetching();
  ChoosePoolSum<T, int32_t>(width_, entries_.weights != nullptr)(args);
}

template <typename T, typename Index>
void TableGradient<T, Index>::PoolGiant(int64_t begin, int64_t end, const T* grad,
                                        Parallel* parallel, T* values, Sum<T>* sums) const {
  const int64_t piece = PieceOfGiant(end - begin), pieces = PiecesOfGiant(end - begin);
  const auto pool = [&](int64_t k) {
    const int64_t starts[2] = {begin + k * piece, std::min(begin + (k + 1) * piece, end)};
    PoolSums(starts, 1, grad, nullptr, giant_sums_.data() + k * width_);
  };
  parallel->Run(pieces, std::ref(pool));  // which takes no memory, as a copy would
  for (int64_t c = 0; c < width_; ++c) {
    Sum<T> sum = giant_sums_[c];
    for (int64_t k = 1; k < pieces; ++k) sum = AddSums(sum, giant_sums_[k * width_ + c]);
    if (sums != nullptr) {
      sums[c] = sum;
    } else {
      values[c] = Round<T>(sum);
    }
  }
}

// The gradient of a bag goes, element by element, to the row that had the maximum.
template <typename T, typename Index>
void TableGradient<T, Index>::PoolMax(const int64_t* starts, int64_t count, const T* grad,
                                      T* values, Sum<T>* sums) const {
  const AddColumns<T> add_columns = ChooseAddColumns<T>();
  const RoundRow<T> round = ChooseRoundRow<T>();
  const int32_t* const bags = entries_.bags;
  const auto* const won = entries_.won;
  if constexpr (std::is_same_v<T, Sum<T>>) {
    if (sums == nullptr) sums = values;
  }
  Buffer<Sum<T>> row_sums;
  if (sums == nullptr) row_sums = Buffer<Sum<T>>(width_);
  for (int64_t row = 0; row < count; ++row) {
    Sum<T>* const to = sums == nullptr ? row_sums.data() : sums + row * width_;
    std::fill_n(to, width_, Sum<T>(0));
    for (int64_t k = starts[row]; k < starts[row + 1]; ++k) {
      const int64_t ahead = std::min(k + kAhead, entries_.size() - 1);
      PrefetchRow(grad, bags[ahead], width_);
      Prefetch(entries_.columns + bags[ahead] * width_ + won[ahead].begin);
      const int64_t begin = bags[k] * width_;
      add_columns(grad + begin, entries_.columns + begin + won[k].begin, won[k].end - won[k].begin,
                  to);
    }
    if (sums == nullptr) round(to, width_, values + row * width_);
  }
}

#define TF_TI_GRADIENTS(T, Index)                                                        \
  template std::string WeightsGradient<T, Index>(const Table<T>&, const Bags<Index>&,    \
                                                 const Weights<T>&, Reduction, const T*, \
                                                 Parallel*, const WeightsOutput<T>&);    \
  template class TableGradient<T, Index>;
#define TF_TI_GRADIENTS_BOTH(T) TF_TI_GRADIENTS(T, int32_t) TF_TI_GRADIENTS(T, int64_t)
TF_TI_DIFFERENTIABLE(TF_TI_GRADIENTS_BOTH)

}  // namespace tf_ti
