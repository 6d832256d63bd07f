// Runs the bags' kernels on random inputs, beside the processor's code in float64.
//
//   cases [--seed N] [--seconds S] [--rounds R] [--small] [--giant IDS] [--late] [--bare]
//     [--good_bounds] [--verbose]
//   cases --case NUMBER --case_seed SEED [--small] [--giant IDS] [--late] [--bare] [--good_bounds]
//   cases --huge ROWS
//   cases --many IDS
//
// A round has a case for each type, kind of bag and reduction; the rest of a case comes from its
// seed. With --giant, one bag has so many ids. With --late, all is on a stream that does not block,
// the device delays, and other work writes to all memory as soon as it may: see device_memory.h.
// With --bare, memory has no margins and is not poisoned; with --good_bounds, bounds are never bad.
// --huge takes a table, and bags, that may have more than 2^31 elements; --many takes ids, of which
// there may be more than 2^31. Prints the first case that fails, with the command that repeats it,
// and returns 1.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/bags_gpu.h"
#include "cc/compute/bags/pooling_gpu.h"
#include "cc/compute/bags/sorting_gpu.h"
#include "cc/compute/bags/updates.h"
#include "cc/compute/bags/updates_gpu.h"
#include "cc/compute/device-inl.h"
#include "gpu_check/device_memory.h"

namespace tf_ti {
namespace {

// Bags of more ids than twice a piece are split on the GPU. Pieces have some power of two of ids:
// the cases have bags on both sides of it.
constexpr int64_t kPieces[] = {64, 128, 256, 512};

class Serial : public Parallel {
 public:
  int64_t num_threads() const override { return 1; }
  void Run(int64_t count, const std::function<void(int64_t)>& work) override {
    for (int64_t i = 0; i < count; ++i) work(i);
  }
  std::unique_ptr<Invitation> Invite(int64_t, std::function<void(int64_t)>) override {
    return nullptr;
  }
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  // From low to high, both included.
  int64_t Int(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  double Real() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  bool Chance(double p) { return Real() < p; }
  template <typename E>
  E Pick(std::initializer_list<E> choices) {
    return choices.begin()[Int(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  // The k-th of `size` with a probability of about k^-1.2.
  int64_t Zipf(int64_t size) {
    const double at = std::pow(1 - Real(), -5) - 1;
    return at < static_cast<double>(size) ? static_cast<int64_t>(at) : Int(0, size - 1);
  }

 private:
  std::mt19937_64 engine_;
};

// Numbers to and from double, on the host.
double ToDouble(float value) { return value; }
double ToDouble(double value) { return value; }
double ToDouble(Half value) { return __half2float(__ushort_as_half(value.bits)); }
double ToDouble(BFloat16 value) { return __bfloat162float(__ushort_as_bfloat16(value.bits)); }
template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, Half>) {
    return {__half_as_ushort(__float2half_rn(static_cast<float>(value)))};
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(value)))};
  } else {
    return static_cast<T>(value);
  }
}
template <typename T>
std::vector<double> ToDoubles(const std::vector<T>& values) {
  std::vector<double> doubles;
  for (const T value : values) doubles.push_back(ToDouble(value));
  return doubles;
}
std::vector<double> Absolute(std::vector<double> values) {
  for (double& value : values) value = std::abs(value);
  return values;
}

// The relative error of a rounded value of T, and of a sum of values.
template <typename T>
constexpr double kRounding = std::is_same_v<T, Half>       ? 0x1p-11
                             : std::is_same_v<T, BFloat16> ? 0x1p-8
                             : std::is_same_v<T, float>    ? 0x1p-24
                                                           : 0x1p-53;

template <typename T>
const char* Name() {
  return std::is_same_v<T, Half>       ? "half"
         : std::is_same_v<T, BFloat16> ? "bfloat16"
         : std::is_same_v<T, float>    ? "float"
                                       : "double";
}
const char* Name(BagKind kind) {
  return kind == BagKind::kOffsets ? "offsets" : kind == BagKind::kPacked ? "packed" : "segments";
}
const char* Name(Reduction reduction) {
  return reduction == Reduction::kSum     ? "sum"
         : reduction == Reduction::kMean  ? "mean"
         : reduction == Reduction::kSqrtN ? "sqrtn"
                                          : "max";
}

struct Failure {
  std::string what;
};
[[noreturn]] void Fail(const std::string& what) { throw Failure{what}; }
void Expect(const std::string& what, const std::string& wrong) {
  if (!wrong.empty()) Fail(what + ": " + wrong);
}

enum class Bad { kNothing, kIds, kBounds };

struct Setting {
  BagKind kind = BagKind::kOffsets;
  Reduction reduction = Reduction::kSum;
  uint64_t seed = 0;
  bool is_small = false;
  int64_t giant = 0;  // if not 0, one bag of so many ids
};

template <typename T, typename Index>
class Case {
 public:
  using S = Sum<T>;

  explicit Case(const Setting& setting) : setting_(setting), random_(setting.seed) { Fill(); }

  std::string Describe() const {
    static const char* const kBad[] = {"", ", bad ids", ", bad bounds"};
    std::ostringstream text;
    text << Name<T>() << ", int" << 8 * sizeof(Index) << " ids, " << Name(bags_.kind) << ", "
         << Name(setting_.reduction) << ", " << num_rows_ << " rows of " << width_ << ", "
         << bags_.count << " bags of " << indices_.size() << " ids, the largest of " << largest_
         << (has_weights_ ? weights_are_wide_ ? ", wide weights" : ", weights" : "")
         << (bags_.default_index >= 0 ? ", default" : "") << (bags_.has_padding ? ", padding" : "")
         << (bags_.include_last_offset ? ", last offset" : "") << kBad[static_cast<int>(bad_)]
         << ", shifts " << table_shift_ << " and " << out_shift_;
    return text.str();
  }

  void Run() {
    CheckMessages();
    CheckPool();
    CheckSeveralTables();
    if (has_weights_) CheckWeightsGradient();
    CheckTableGradient();
    CheckScatterSub();
    CheckUpdates();
  }

 private:
  int64_t Piece() { return kPieces[random_.Int(0, setting_.is_small ? 1 : 3)]; }

  void Fill() {
    const bool is_max = setting_.reduction == Reduction::kMax;
    width_ = random_.Chance(0.3)   ? random_.Int(1, 257)
             : random_.Chance(0.1) ? random_.Pick<int64_t>({0, 300, 513})
                                   : random_.Pick<int64_t>({1, 2, 4, 7, 8, 12, 16, 31, 32, 33, 40,
                                                            64, 65, 96, 128, 130, 200, 256, 257});
    num_rows_ = random_.Chance(0.05) ? 1 : random_.Int(1, setting_.is_small ? 300 : 5000);
    int64_t count = random_.Chance(0.03) ? 0 : random_.Int(1, setting_.is_small ? 40 : 600);
    // Keep the work of a case about the same.
    if (setting_.is_small && width_ > 64) count = std::min<int64_t>(count, 8);
    if (setting_.giant > 0) {
      width_ = std::min<int64_t>(width_, setting_.is_small ? 40 : 128);
      count = std::min<int64_t>(count, 5);
    }
    const bool is_many = setting_.giant == 0 && random_.Chance(setting_.is_small ? 0.1 : 0.03);
    if (is_many) {
      // So many short bags that a group has several, or so many rows that a group has those of
      // several.
      const auto many = [&] {
        return setting_.is_small ? random_.Int(1000, 4000) : random_.Int(140000, 300000);
      };
      width_ = std::min<int64_t>(width_, 16);
      num_rows_ = random_.Chance(0.5) ? std::min<int64_t>(num_rows_, 100) : many();
      count = many();
    }
    const double bad_bounds = checking.has_bad_bounds ? 0.1 : 0;
    bad_ = random_.Chance(0.15)         ? Bad::kIds
           : random_.Chance(bad_bounds) ? Bad::kBounds
                                        : Bad::kNothing;
    table_shift_ = random_.Chance(0.25) ? random_.Int(1, 3) : 0;
    out_shift_ = random_.Chance(0.15) ? random_.Int(1, 3) : 0;

    bags_.kind = setting_.kind;
    bags_.count = count;
    if (bags_.kind == BagKind::kPacked && bad_ == Bad::kBounds) bad_ = Bad::kNothing;
    bags_.default_index = random_.Chance(0.4) ? random_.Int(0, num_rows_ - 1) : -1;
    bags_.has_padding = random_.Chance(0.3);
    bags_.padding_idx = random_.Chance(0.3) ? -1 : random_.Int(0, num_rows_ - 1);

    // The sizes of the bags.
    std::vector<int64_t> sizes(count);
    const int64_t shape = setting_.giant > 0 ? 4 : random_.Int(0, is_many ? 1 : 3);
    const int64_t common = random_.Int(0, is_many ? 3 : setting_.is_small ? 12 : 60);
    for (int64_t& size : sizes) {
      size = bags_.kind == BagKind::kPacked || shape == 0 ? common
             : shape == 1                                 ? random_.Int(0, 2 * common)
             : shape == 2                                 ? random_.Zipf(100)
             : random_.Chance(0.7)                        ? 0
                                                          : random_.Int(1, 40);
    }
    if (count > 0) {
      const int64_t some = random_.Int(0, count - 1);
      if (setting_.giant > 0 && bags_.kind == BagKind::kPacked) {
        bags_.count = count = 1;
        sizes = {setting_.giant};
      } else if (setting_.giant > 0) {
        sizes[some] = setting_.giant;
        if (random_.Chance(0.5)) sizes[random_.Int(0, count - 1)] = 2 * Piece() + 1;
      } else if (bags_.kind != BagKind::kPacked && random_.Chance(0.3)) {
        const int64_t many = setting_.is_small ? 3 * Piece() : 5000;
        const int64_t long_one = 2 * Piece();
        const int64_t size = random_.Pick<int64_t>(
            {long_one, long_one + 1, 3 * Piece() - 1, 3 * Piece(), random_.Int(1, many)});
        // Alone, or with others of its kind side by side.
        const int64_t last = random_.Chance(0.5) ? some : std::min(count - 1, some + 20);
        for (int64_t b = some; b <= last && (b == some || !setting_.is_small); ++b) sizes[b] = size;
      }
    }
    largest_ = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());

    const bool is_offsets = bags_.kind == BagKind::kOffsets;
    bags_.include_last_offset = is_offsets && random_.Chance(0.4);
    int64_t position = is_offsets && random_.Chance(0.2) ? random_.Int(0, 5) : 0;
    for (int64_t b = 0; b < count; ++b) {
      if (is_offsets) bounds_.push_back(static_cast<Index>(position));
      for (int64_t i = 0; i < sizes[b] && !is_offsets; ++i)
        bounds_.push_back(static_cast<Index>(b));
      position += sizes[b];
    }
    if (bags_.include_last_offset) {
      bounds_.push_back(static_cast<Index>(position));
      if (random_.Chance(0.3)) position += random_.Int(0, 5);
    }
    if (bags_.kind == BagKind::kPacked) bounds_.clear();

    const int64_t num_ids = position;
    const int64_t spread = random_.Int(0, 3);
    const int64_t num_hot = std::min(num_rows_, random_.Int(1, 100));
    const int64_t first_hot = random_.Int(0, num_rows_ - num_hot);
    for (int64_t i = 0; i < num_ids; ++i) {
      int64_t id = spread == 0   ? random_.Int(0, num_rows_ - 1)
                   : spread == 1 ? random_.Zipf(num_rows_)
                   : spread == 2 ? num_rows_ / 2
                                 : first_hot + random_.Int(0, num_hot - 1);
      if (spread == 3 && random_.Chance(0.3)) id = random_.Int(0, num_rows_ - 1);
      if (bags_.has_padding && random_.Chance(0.15)) id = bags_.padding_idx;
      if (bad_ == Bad::kIds && random_.Chance(0.1)) {
        id = random_.Pick<int64_t>({-1, num_rows_, num_rows_ + 1000000,
                                    std::numeric_limits<Index>::max(),
                                    std::numeric_limits<Index>::min()});
      }
      indices_.push_back(static_cast<Index>(id));
    }
    if (bad_ == Bad::kBounds) {
      for (Index& bound : bounds_) {
        if (!random_.Chance(0.2)) continue;
        bound = static_cast<Index>(random_.Pick<int64_t>(
            {-1, 0, num_ids, num_ids + 1, random_.Int(0, num_ids),
             std::numeric_limits<Index>::max(), std::numeric_limits<Index>::min()}));
      }
    }
    bags_.num_indices = num_ids;

    has_weights_ = !is_max && random_.Chance(0.5);
    weights_are_wide_ = random_.Chance(0.5);
    // Weights of a mean must not cancel out, or its divisor is all rounding errors.
    const bool is_sum = setting_.reduction == Reduction::kSum;
    is_exact_ = is_sum && random_.Chance(0.5);
    for (int64_t i = 0; has_weights_ && i < num_ids; ++i) {
      double weight = is_exact_ ? random_.Pick({-1.0, 1.0, 2.0})
                      : is_sum  ? 2 * random_.Real() - 1
                                : 0.5 + random_.Real();
      // Weights of padding must not matter.
      if (bags_.has_padding && indices_[i] == bags_.padding_idx) {
        weight = std::numeric_limits<double>::quiet_NaN();
      }
      rounded_weights_.push_back(FromDouble<T>(weight));
      wide_weights_.push_back(static_cast<S>(weight));
    }
    // Few different numbers where ties matter, and integers where sums are to be exact.
    const auto number = [&] {
      return is_max || is_exact_ ? static_cast<double>(random_.Int(-4, 4)) : 2 * random_.Real() - 1;
    };
    const double nan = is_max && random_.Chance(0.3) ? 0.01 : 0;
    for (int64_t i = 0; i < num_rows_ * width_; ++i) {
      table_.push_back(
          FromDouble<T>(random_.Chance(nan) ? std::numeric_limits<double>::quiet_NaN() : number()));
    }
    for (int64_t i = 0; i < bags_.count * width_; ++i) {
      grad_.push_back(FromDouble<T>(number()));
    }
  }

  // The inputs for the GPU.
  struct Inputs {
    explicit Inputs(const Case& c)
        : indices(c.indices_),
          bounds(c.bounds_),
          table(c.table_, c.table_shift_),
          grad(c.grad_, c.out_shift_),
          rounded(c.rounded_weights_),
          wide(c.wide_weights_),
          bags(c.bags_) {
      bags.indices = indices.data();
      bags.bounds = bounds.data();
      if (!c.has_weights_) return;
      if (c.weights_are_wide_) {
        weights.wide = wide.data();
      } else {
        weights.rounded = rounded.data();
      }
    }

    // See DeviceArray.
    void OverwriteBags() {
      indices.Overwrite();
      bounds.Overwrite();
      rounded.Overwrite();
      wide.Overwrite();
    }
    void Overwrite() {
      OverwriteBags();
      table.Overwrite();
      grad.Overwrite();
    }

    void CheckMargins() const {
      if (!indices.MarginsAreIntact() || !bounds.MarginsAreIntact() || !table.MarginsAreIntact() ||
          !grad.MarginsAreIntact() || !rounded.MarginsAreIntact() || !wide.MarginsAreIntact()) {
        Fail("something wrote next to an input");
      }
    }

    DeviceArray<Index> indices, bounds;
    DeviceArray<T> table, grad, rounded;
    DeviceArray<S> wide;
    Bags<Index> bags;
    Weights<T> weights;
  };

  // The inputs for the processor's code: all in double, and bad values replaced by those that the
  // GPU's code takes them for. The table has one row of zeros more, for indices that are no rows.
  struct Reference {
    explicit Reference(const Case& c)
        : num_rows(c.num_rows_ + 1), table(ToDoubles(c.table_)), grad(ToDoubles(c.grad_)) {
      table.resize(num_rows * c.width_, 0.0);
      if (c.has_weights_) {
        weights = c.weights_are_wide_ ? ToDoubles(c.wide_weights_) : ToDoubles(c.rounded_weights_);
      }
      indices = c.indices_;
      for (Index& index : indices) {
        if (c.bags_.has_padding && index == c.bags_.padding_idx) continue;
        if (index < 0 || index >= c.num_rows_) index = static_cast<Index>(c.num_rows_);
      }
      bounds = c.bounds_;
      bags = c.bags_;
      for (int64_t i = 0; i < bags.num_indices; ++i) from.push_back(i);
      if (c.bad_ == Bad::kBounds) Rearrange(c);
      bags.indices = indices.data();
      bags.bounds = bounds.data();
      bags.num_indices = static_cast<int64_t>(indices.size());
    }

    // Turns bags with bad bounds into bags with good ones.
    void Rearrange(const Case& c) {
      const auto begin = [&](int64_t b) -> int64_t {
        if (c.bags_.kind == BagKind::kSegments) {
          return std::lower_bound(bounds.begin(), bounds.end(), static_cast<Index>(b)) -
                 bounds.begin();
        }
        if (b == c.bags_.count && !c.bags_.include_last_offset) return c.bags_.num_indices;
        return std::min(std::max<int64_t>(bounds[b], 0), c.bags_.num_indices);
      };
      std::vector<Index> new_indices, new_bounds;
      std::vector<double> new_weights;
      from.clear();
      for (int64_t b = 0; b < c.bags_.count; ++b) {
        new_bounds.push_back(static_cast<Index>(new_indices.size()));
        is_hidden.push_back(begin(b + 1) - begin(b) >
                            2 * PieceSize(c.bags_.num_indices, c.bags_.count));
        for (int64_t i = begin(b); i < begin(b + 1) && !is_hidden[b]; ++i) {
          new_indices.push_back(indices[i]);
          if (!weights.empty()) new_weights.push_back(weights[i]);
          from.push_back(i);
        }
      }
      indices = new_indices;
      bounds = new_bounds;
      weights = new_weights;
      bags.kind = BagKind::kOffsets;
      bags.include_last_offset = false;
    }

    Table<double> GetTable(const std::vector<double>& values, int64_t width) const {
      return {values.data(), num_rows, width};
    }

    int64_t num_rows;
    std::vector<double> table, grad, weights;
    std::vector<Index> indices, bounds;
    std::vector<int64_t> from;    // the first position of each index
    std::vector<bool> is_hidden;  // where bounds are bad: bags that may be anything
    Bags<Index> bags;
  };

  static Weights<double> WeightsOf(const std::vector<double>& weights) {
    Weights<double> result;
    if (!weights.empty()) result.rounded = weights.data();
    return result;
  }

  // Compares with the right values, up to the rounding of values and of sums of `size` numbers. The
  // GPU adds up no more than kMostTerms one after another, and the processor no more in float64.
  template <typename V>
  void Compare(const std::string& what, const V& value, double right, double magnitude,
               int64_t size, const std::string& place) {
    constexpr int64_t kMostTerms = std::is_same_v<S, double> ? 20000 : 1200;
    const double got = ToDouble(value);
    const double terms = is_exact_ ? 0 : 16 + static_cast<double>(std::min(size, kMostTerms));
    const double slack = 1.01 * (kRounding<V> + kRounding<S>)*std::abs(right) +
                         kRounding<S> * terms * magnitude +
                         (std::is_same_v<V, Half> ? 0x1p-24 : 0x1p-120);
    if (std::abs(got - right) <= slack || (std::isnan(got) && std::isnan(right))) return;
    std::ostringstream text;
    text.precision(12);
    text << what << place << " is " << got << ", not " << right << " (within " << slack << ")";
    Fail(text.str());
  }

  static std::string At(int64_t row, int64_t column) {
    return "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
  }

  template <typename V>
  static void ExpectSame(const std::string& what, const std::vector<V>& x, const std::vector<V>& y,
                         const char* when = "the second time") {
    if (x.size() == y.size() &&
        (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(V)) == 0)) {
      return;
    }
    Fail(what + " is not the same " + when);
  }

  // Runs twice, and returns the results, which must be the same bits.
  template <typename Function>
  auto Twice(const std::string& what, const Function& function) {
#ifdef TF_TI_EMULATE_CUDA
    SetEmulationSeed(setting_.seed);
#endif
    auto first = function();
#ifdef TF_TI_EMULATE_CUDA
    SetEmulationSeed(setting_.seed + 1);
#endif
    const auto second = function();
    ExpectSame(what, first.first, second.first);
    ExpectSame(what + "'s companion", first.second, second.second);
    return first;
  }

  void CheckMessages() {
    if (width_ == 0) return;  // the processor checks in another order then
    CheckedGpu gpu;
    Inputs in(*this);
    DeviceArray<GpuProblem> problem(1);
    Expect("CheckBags", CheckBags(in.bags, num_rows_, &gpu, problem.data()));
    in.Overwrite();
    Expect("CheckBags", gpu.Finish());
    const std::string said = DescribeProblem(bags_, num_rows_, problem.Get()[0]);
    Bags<Index> bags = bags_;
    bags.indices = indices_.data();
    bags.bounds = bounds_.data();
    Serial serial;
    const std::vector<double> table = ToDoubles(table_);
    std::vector<double> out(bags.count * width_);
    const std::string right =
        PoolBags<double, Index>({table.data(), num_rows_, width_}, bags, {}, setting_.reduction,
                                &serial, out.data(), nullptr);
    if (said != right) Fail("CheckBags says '" + said + "', not '" + right + "'");
  }

  void CheckPool() {
    const bool is_max = setting_.reduction == Reduction::kMax;
    const auto [out, argmax] = Twice("out", [&] {
      CheckedGpu gpu;
      Inputs in(*this);
      DeviceArray<T> out(bags_.count * width_, out_shift_);
      DeviceArray<Index> argmax(is_max ? bags_.count * width_ : 0);
      Expect("PoolBags", PoolBags<T, Index>({in.table.data(), num_rows_, width_}, in.bags,
                                            in.weights, setting_.reduction, &gpu, out.data(),
                                            is_max ? argmax.data() : nullptr));
      in.Overwrite();
      Expect("PoolBags", gpu.Finish());
      if (!out.MarginsAreIntact() || !argmax.MarginsAreIntact()) {
        Fail("PoolBags wrote next to its output");
      }
      in.CheckMargins();
      return std::make_pair(out.Get(), argmax.Get());
    });
    Reference reference(*this);
    const auto pool = [&](const std::vector<double>& table, const std::vector<double>& weights,
                          std::vector<Index>* argmax) {
      Serial serial;
      std::vector<double> out(bags_.count * width_);
      if (argmax != nullptr) argmax->resize(out.size());
      Expect("the processor's PoolBags",
             PoolBags<double, Index>(reference.GetTable(table, width_), reference.bags,
                                     WeightsOf(weights), setting_.reduction, &serial, out.data(),
                                     argmax == nullptr ? nullptr : argmax->data()));
      return out;
    };
    std::vector<Index> right_argmax;
    const std::vector<double> right =
        pool(reference.table, reference.weights, is_max ? &right_argmax : nullptr);
    const std::vector<double> magnitude =
        is_max ? std::vector<double>(right.size(), 0.0)
               : pool(Absolute(reference.table), Absolute(reference.weights), nullptr);
    const int64_t most_ids = bad_ == Bad::kBounds ? bags_.num_indices : largest_;
    for (int64_t i = 0; i < bags_.count * width_; ++i) {
      if (!reference.is_hidden.empty() && reference.is_hidden[i / width_]) continue;
      const std::string place = At(i / width_, i % width_);
      Compare("out", out[i], right[i], magnitude[i], most_ids, place);
      if (!is_max) continue;
      const int64_t position = right_argmax[i] < 0 ? -1 : reference.from[right_argmax[i]];
      if (argmax[i] != position) {
        Fail("argmax" + place + " is " + std::to_string(argmax[i]) + ", not " +
             std::to_string(position));
      }
    }
  }

  // Several tables at once give the same bits as one after the other: parts of this one, some of
  // them narrower or reduced otherwise, with the first of its bags.
  void CheckSeveralTables() {
    const int64_t work = bags_.count * (width_ + 1) + bags_.num_indices + 1;
    const int64_t most = std::max<int64_t>(1, (setting_.is_small ? 20000 : 4000000) / work);
    const int64_t num_tables = random_.Int(1, std::min<int64_t>(most, 70));
    Inputs in(*this);
    std::vector<BagLookUp<T, Index>> lookups(num_tables);
    int64_t num_outputs = 0, num_positions = 0;
    for (BagLookUp<T, Index>& lookup : lookups) {
      lookup.bags = in.bags;
      lookup.weights = in.weights;
      Bags<Index>& bags = lookup.bags;
      const int64_t first = random_.Chance(0.5) ? 0 : random_.Int(0, num_rows_ - 1);
      const int64_t width = random_.Chance(0.7) ? width_ : random_.Int(0, width_);
      lookup.table = {in.table.data() + first * width_, num_rows_ - first, width};
      lookup.reduction = setting_.reduction;
      if (random_.Chance(0.3)) {
        lookup.reduction = static_cast<Reduction>(random_.Int(0, has_weights_ ? 2 : 3));
      }
      bags.default_index = std::min<int64_t>(bags.default_index, num_rows_ - first - 1);
      const int64_t count = random_.Chance(0.5) ? bags.count : random_.Int(0, bags.count);
      if (bags.kind == BagKind::kPacked) {
        if (bags.count > 0) bags.num_indices = bags.num_indices / bags.count * count;
      } else if (bags.kind == BagKind::kOffsets) {
        bags.include_last_offset |= count < bags.count;
      }
      bags.count = count;
      num_outputs += count * width;
      if (lookup.reduction == Reduction::kMax) num_positions += count * width;
    }
    const auto outputs = [&](bool at_once) {
      CheckedGpu gpu;
      DeviceArray<T> out(num_outputs, out_shift_);
      DeviceArray<Index> argmax(num_positions);
      T* next_out = out.data();
      Index* next_argmax = argmax.data();
      for (BagLookUp<T, Index>& lookup : lookups) {
        const int64_t size = lookup.bags.count * lookup.table.width;
        const bool is_max = lookup.reduction == Reduction::kMax;
        lookup.out = next_out;
        lookup.argmax = is_max ? next_argmax : nullptr;
        next_out += size;
        if (is_max) next_argmax += size;
        if (at_once) continue;
        Expect("PoolBags", PoolBags<T, Index>(lookup.table, lookup.bags, lookup.weights,
                                              lookup.reduction, &gpu, lookup.out, lookup.argmax));
      }
      if (at_once) Expect("PoolBags of several tables", PoolBags<T, Index>(lookups, &gpu));
      Expect("PoolBags of several tables", gpu.Finish());
      if (!out.MarginsAreIntact() || !argmax.MarginsAreIntact()) {
        Fail("PoolBags of several tables wrote next to its output");
      }
      return std::make_pair(out.Get(), argmax.Get());
    };
    const auto one_by_one = outputs(false), at_once = outputs(true);
    const std::string what = "what " + std::to_string(num_tables) + " tables give";
    ExpectSame(what, one_by_one.first, at_once.first, "one by one");
    ExpectSame(what + ", the positions,", one_by_one.second, at_once.second, "one by one");
    in.CheckMargins();
  }

  void CheckWeightsGradient() {
    const auto [gradient, wide_gradient] = Twice("the weights' gradient", [&] {
      CheckedGpu gpu;
      Inputs in(*this);
      DeviceArray<T> rounded(weights_are_wide_ ? 0 : bags_.num_indices);
      DeviceArray<S> wide(weights_are_wide_ ? bags_.num_indices : 0);
      WeightsOutput<T> output;
      if (weights_are_wide_) {
        output.wide = wide.data();
      } else {
        output.rounded = rounded.data();
      }
      Expect("WeightsGradient",
             WeightsGradient<T, Index>({in.table.data(), num_rows_, width_}, in.bags, in.weights,
                                       setting_.reduction, in.grad.data(), &gpu, output));
      in.Overwrite();
      Expect("WeightsGradient", gpu.Finish());
      if (!rounded.MarginsAreIntact() || !wide.MarginsAreIntact()) {
        Fail("WeightsGradient wrote next to its output");
      }
      in.CheckMargins();
      return std::make_pair(rounded.Get(), wide.Get());
    });
    if (bad_ == Bad::kBounds) return;
    Reference reference(*this);
    const auto run = [&](const std::vector<double>& table, const std::vector<double>& grad,
                         Reduction reduction) {
      Serial serial;
      std::vector<double> result(bags_.num_indices);
      WeightsOutput<double> output;
      output.rounded = result.data();
      Expect("the processor's WeightsGradient",
             WeightsGradient<double, Index>(reference.GetTable(table, width_), reference.bags,
                                            WeightsOf(reference.weights), reduction, grad.data(),
                                            &serial, output));
      return result;
    };
    const std::vector<double> right = run(reference.table, reference.grad, setting_.reduction);
    // Weights are from 0.5 to 1.5 where there are divisors. So the divisors are at least half as
    // large as the weights, and a mean of dot products is at most three times the largest.
    const std::vector<double> dots =
        run(Absolute(reference.table), Absolute(reference.grad), Reduction::kSum);
    const double largest = dots.empty() ? 0 : *std::max_element(dots.begin(), dots.end());
    const bool is_sum = setting_.reduction == Reduction::kSum;
    for (int64_t i = 0; i < bags_.num_indices; ++i) {
      const double magnitude = is_sum ? dots[i] : 20 * largest;
      const std::string place = "[" + std::to_string(i) + "]";
      if (weights_are_wide_) {
        Compare("weights' gradient", wide_gradient[i], right[i], magnitude, width_, place);
      } else {
        Compare("weights' gradient", gradient[i], right[i], magnitude, width_, place);
      }
    }
  }

  void CheckTableGradient() {
    const bool is_max = setting_.reduction == Reduction::kMax;
    Reference reference(*this);
    Serial serial;
    // Max needs the positions of the maxima, in which nothing is rounded.
    std::vector<Index> argmax(is_max ? bags_.count * width_ : 0, -1);
    if (is_max && width_ > 0 && bad_ != Bad::kBounds) {
      std::vector<double> out(bags_.count * width_);
      Expect("the processor's PoolBags",
             PoolBags<double, Index>(reference.GetTable(reference.table, width_), reference.bags,
                                     {}, Reduction::kMax, &serial, out.data(), argmax.data()));
    }
    const auto [values, rows] = Twice("the table's gradient", [&] {
      CheckedGpu gpu;
      Inputs in(*this);
      DeviceArray<Index> positions(argmax);
      GpuTableGradient<T, Index> gradient;
      Expect("GpuTableGradient::Init",
             gradient.Init(in.bags, in.weights, setting_.reduction,
                           is_max ? positions.data() : nullptr, num_rows_, width_, &gpu));
      in.OverwriteBags();
      Expect("GpuTableGradient::Init", gpu.Wait());
      int64_t num_touched;
      Must(cudaMemcpy(&num_touched, gradient.num_touched(), sizeof(num_touched),
                      cudaMemcpyDeviceToHost),
           "copy");
      if (num_touched < 0 || num_touched > num_rows_) {
        Fail("num_touched is " + std::to_string(num_touched));
      }
      DeviceArray<Index> rows(num_touched);
      DeviceArray<T> values(num_touched * width_, out_shift_);
      Expect("GpuTableGradient::Compute",
             gradient.Compute(in.grad.data(), num_touched, &gpu, rows.data(), values.data()));
      in.Overwrite();
      positions.Overwrite();
      Expect("GpuTableGradient::Compute", gpu.Finish());
      if (!rows.MarginsAreIntact() || !values.MarginsAreIntact()) {
        Fail("GpuTableGradient wrote next to its outputs");
      }
      in.CheckMargins();
      return std::make_pair(values.Get(), rows.Get());
    });
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] < 0 || rows[i] >= num_rows_ || (i > 0 && rows[i] <= rows[i - 1])) {
        Fail("rows[" + std::to_string(i) + "] is " + std::to_string(rows[i]));
      }
    }
    if (bad_ == Bad::kBounds) return;
    const auto run = [&](const std::vector<double>& grad, const std::vector<double>& weights,
                         std::vector<Index>* rows) {
      TableGradient<double, Index> gradient;
      Expect("the processor's TableGradient",
             gradient.Init(reference.bags, WeightsOf(weights), setting_.reduction,
                           is_max ? argmax.data() : nullptr, reference.num_rows, width_, &serial));
      rows->resize(gradient.num_touched());
      std::vector<double> values(gradient.num_touched() * width_);
      gradient.Compute(grad.data(), &serial, rows->data(), values.data());
      return values;
    };
    std::vector<Index> right_rows;
    const std::vector<double> right = run(reference.grad, reference.weights, &right_rows);
    const std::vector<double> magnitude =
        run(Absolute(reference.grad), Absolute(reference.weights), &right_rows);
    // The gradient of an index that is no row goes nowhere.
    if (!right_rows.empty() && right_rows.back() == num_rows_) right_rows.pop_back();
    if (rows != right_rows) {
      Fail("the gradient has " + std::to_string(rows.size()) + " rows, not the " +
           std::to_string(right_rows.size()) + " of the processor's");
    }
    for (size_t i = 0; i < values.size(); ++i) {
      Compare("the table's gradient", values[i], right[i], magnitude[i], bags_.num_indices,
              At(rows[i / width_], static_cast<int64_t>(i) % width_));
    }
    CheckTraining(argmax, rows, right, magnitude);
  }

  // Steps with the gradient of the case's bags, whose `rows` have the first of these values.
  void CheckTraining(const std::vector<Index>& argmax, const std::vector<Index>& rows,
                     const std::vector<double>& values, const std::vector<double>& magnitude) {
    const S rate = S(0.5);
    for (const bool is_adagrad : {false, true}) {
      const std::string name = is_adagrad ? "a step of Adagrad" : "a step of descent";
      const std::vector<S> ones(is_adagrad ? table_.size() : 0, S(1));
      const auto [table, slot] = Twice(name, [&] {
        Inputs in(*this);
        CheckedGpu gpu;
        DeviceArray<Index> positions(argmax);
        DeviceArray<S> device_rate(std::vector<S>{rate}), accumulator(ones);
        RowGradientsOf<T, Index> gradients;
        gradients.bags = in.bags;
        gradients.weights = in.weights;
        gradients.reduction = setting_.reduction;
        gradients.argmax = setting_.reduction == Reduction::kMax ? positions.data() : nullptr;
        gradients.grad = in.grad.data();
        gradients.num_rows = num_rows_;
        gradients.width = width_;
        const AdagradNumbers numbers{0, 0, true};
        Expect(name, is_adagrad ? AdagradUpdate(gradients, numbers, device_rate.data(),
                                                {accumulator.data(), false}, &gpu, in.table.data())
                                : ScatterSub(gradients, device_rate.data(), &gpu, in.table.data()));
        in.OverwriteBags();
        in.grad.Overwrite();
        positions.Overwrite();
        device_rate.Overwrite();
        Expect(name, gpu.Finish());
        in.CheckMargins();
        return std::make_pair(in.table.Get(), accumulator.Get());
      });
      std::vector<double> right = ToDoubles(table_), most = Absolute(right);
      for (size_t i = 0; i < rows.size() * width_; ++i) {
        const int64_t at = rows[i / width_] * width_ + static_cast<int64_t>(i) % width_;
        const double s = values[i], root = is_adagrad ? std::sqrt(1 + s * s) : 1;
        right[at] -= 0.5 * s / root;
        // No quotient by the root changes faster than its dividend.
        most[at] += magnitude[i];
        if (is_adagrad) {
          const bool was_exact = is_exact_;
          is_exact_ = false;
          Compare("the accumulator", slot[at], 1 + s * s, 1 + 2 * std::abs(s) * magnitude[i],
                  bags_.num_indices, At(rows[i / width_], static_cast<int64_t>(i) % width_));
          is_exact_ = was_exact;
        }
      }
      const bool was_exact = is_exact_;
      is_exact_ = is_exact_ && !is_adagrad;
      for (size_t i = 0; i < table.size(); ++i) {
        Compare(name + ", the table", table[i], right[i], most[i], bags_.num_indices,
                At(static_cast<int64_t>(i) / width_, static_cast<int64_t>(i) % width_));
      }
      is_exact_ = was_exact;
    }
  }

  // Sets the values to zeros where a row comes again.
  void KeepFirst(const std::vector<Index>& indices, std::vector<T>* values) const {
    std::set<Index> seen;
    for (size_t i = 0; i < indices.size(); ++i) {
      if (seen.insert(indices[i]).second) continue;
      std::fill_n(values->begin() + static_cast<int64_t>(i) * width_, width_, T{});
    }
  }

  // Runs with the case's indices and values of their own.
  void CheckScatterSub() {
    const int64_t count = std::min<int64_t>(bags_.num_indices, setting_.giant > 0 ? 2000 : 700);
    std::vector<T> values(count * width_);
    for (T& value : values) {
      value =
          FromDouble<T>(is_exact_ ? static_cast<double>(random_.Int(-4, 4)) : random_.Real() - 0.5);
    }
    const S scale = static_cast<S>(is_exact_ ? 0.5 : random_.Real());
    const std::vector<Index> indices(indices_.begin(), indices_.begin() + count);
    const bool are_distinct = random_.Chance(0.5);
    if (are_distinct) KeepFirst(indices, &values);
    const auto [table, ignored] = Twice("the table", [&] {
      CheckedGpu gpu;
      DeviceArray<Index> device_indices(indices);
      DeviceArray<T> device_values(values, out_shift_), table(table_, table_shift_);
      DeviceArray<S> device_scale(std::vector<S>{scale});
      auto gradients =
          GradientsOfRows(device_indices.data(), device_values.data(), count, num_rows_, width_);
      gradients.are_distinct = are_distinct;
      Expect("ScatterSub", ScatterSub(gradients, device_scale.data(), &gpu, table.data()));
      device_values.Overwrite();
      device_scale.Overwrite();
      Expect("ScatterSub", gpu.Finish());
      if (!table.MarginsAreIntact() || !device_values.MarginsAreIntact()) {
        Fail("ScatterSub wrote next to the table");
      }
      DeviceArray<GpuProblem> problem(1);
      Expect("CheckIndices",
             CheckIndices(device_indices.data(), count, num_rows_, &gpu, problem.data()));
      Expect("CheckIndices", gpu.Finish());
      const std::string said = DescribeProblem(num_rows_, problem.Get()[0]);
      Serial serial;
      std::vector<double> none(num_rows_), zeros(count);
      const std::string right =
          ScatterSub(GradientsOfRows(indices.data(), zeros.data(), count, num_rows_, 1), 0.0,
                     &serial, none.data());
      if (said != right) Fail("CheckIndices says '" + said + "', not '" + right + "'");
      return std::make_pair(table.Get(), std::vector<T>());
    });
    std::vector<Index> rows = indices;
    for (Index& row : rows) {
      if (row < 0 || row >= num_rows_) row = static_cast<Index>(num_rows_);
    }
    const auto run = [&](std::vector<double> table, const std::vector<double>& values,
                         double scale) {
      table.resize((num_rows_ + 1) * width_);
      Serial serial;
      Expect("the processor's ScatterSub",
             ScatterSub(GradientsOfRows(rows.data(), values.data(), count, num_rows_ + 1, width_),
                        scale, &serial, table.data()));
      return table;
    };
    const std::vector<double> right = run(ToDoubles(table_), ToDoubles(values), ToDouble(scale));
    const std::vector<double> magnitude =
        run(Absolute(ToDoubles(table_)), Absolute(ToDoubles(values)), -ToDouble(scale));
    for (size_t i = 0; i < table.size(); ++i) {
      Compare("the table", table[i], right[i], magnitude[i], count,
              At(static_cast<int64_t>(i) / width_, static_cast<int64_t>(i) % width_));
    }
  }

  // Checks steps of optimizers, with the case's indices; one of them row-wise. The slots are 1 or
  // more, so that roots of them magnify no rounding.
  void CheckUpdates() {
    const int64_t count = std::min<int64_t>(bags_.num_indices, 700);
    std::vector<T> values(count * width_);
    for (T& value : values) {
      value =
          FromDouble<T>(is_exact_ ? static_cast<double>(random_.Int(-4, 4)) : random_.Real() - 0.5);
    }
    const std::vector<Index> indices(indices_.begin(), indices_.begin() + count);
    const bool are_distinct = random_.Chance(0.5);
    if (are_distinct) KeepFirst(indices, &values);
    const bool is_row_wise = random_.Chance(0.5);
    std::vector<S> first(table_.size()), second(is_row_wise ? num_rows_ : table_.size());
    for (S& value : first) value = static_cast<S>(random_.Real() - 0.5);
    for (S& value : second) value = static_cast<S>(1 + random_.Real());
    const S rate = static_cast<S>(random_.Real());
    AdamNumbers adam;
    adam.learning_rate = rate;
    adam.step = random_.Int(1, 100);
    adam.beta_1 = random_.Real();
    adam.beta_2 = random_.Real();
    adam.epsilon = random_.Real();
    adam.weight_decay = random_.Chance(0.5) ? random_.Real() / 4 : 0;
    adam.epsilon_hat = random_.Chance(0.5);
    const AdagradNumbers adagrad{rate, adam.epsilon, adam.epsilon_hat};
    const S decay = static_cast<S>(adam.weight_decay);

    // An index that is no row is left out on the processor, which would refuse it.
    std::vector<Index> right_indices;
    std::vector<double> right_values;
    for (int64_t i = 0; i < count; ++i) {
      if (indices[i] < 0 || indices[i] >= num_rows_) continue;
      right_indices.push_back(indices[i]);
      for (int64_t c = 0; c < width_; ++c) {
        right_values.push_back(ToDouble(values[i * width_ + c]));
      }
    }
    const auto right_gradients =
        GradientsOfRows(right_indices.data(), right_values.data(),
                        static_cast<int64_t>(right_indices.size()), num_rows_, width_);

    // A bound for the squares of sums.
    double largest = 0;
    int64_t most_repeats = 0;
    std::map<Index, int64_t> repeats;
    for (Index row : right_indices) most_repeats = std::max(most_repeats, ++repeats[row]);
    for (double value : right_values) largest = std::max(largest, std::abs(value));
    const double sum = 2 + largest * static_cast<double>(most_repeats), magnitude = sum * sum;

    const auto check = [&](const std::string& name, const auto& on_gpu, const auto& on_processor) {
      std::vector<S> got_second;
      const auto [table, got_first] = Twice(name, [&] {
        CheckedGpu gpu;
        DeviceArray<Index> device_indices(indices);
        DeviceArray<T> device_values(values, out_shift_), table(table_, table_shift_);
        DeviceArray<S> device_first(first), device_second(second);
        DeviceArray<S> numbers(std::vector<S>{rate, decay});
        DeviceArray<int64_t> step(std::vector<int64_t>{adam.step});
        auto gradients =
            GradientsOfRows(device_indices.data(), device_values.data(), count, num_rows_, width_);
        gradients.are_distinct = are_distinct;
        const Slot<S> slot{device_second.data(), is_row_wise};
        Expect(name, on_gpu(gradients, numbers.data(), step.data(), device_first.data(), slot, &gpu,
                            table.data()));
        device_indices.Overwrite();
        device_values.Overwrite();
        numbers.Overwrite();
        step.Overwrite();
        Expect(name, gpu.Finish());
        if (!table.MarginsAreIntact() || !device_first.MarginsAreIntact() ||
            !device_second.MarginsAreIntact()) {
          Fail(name + " wrote next to what it updates");
        }
        std::vector<S> slots = device_first.Get();
        got_second = device_second.Get();
        slots.insert(slots.end(), got_second.begin(), got_second.end());
        return std::make_pair(table.Get(), slots);
      });
      std::vector<double> right = ToDoubles(table_);
      std::vector<double> right_slots[] = {ToDoubles(first), ToDoubles(second)};
      Serial serial;
      Expect("the processor's " + name,
             on_processor(right_gradients, right_slots[0].data(),
                          Slot<double>{right_slots[1].data(), is_row_wise}, &serial, right.data()));
      const auto compare = [&](const std::string& what, const auto& got, int64_t at, double right,
                               double before) {
        const std::string place = "[" + std::to_string(at) + "]";
        if (right == before && ToDouble(got) != before) Fail(name + " touched " + what + place);
        is_exact_ = false;  // roots and quotients are rounded, whatever the sums are
        Compare(name + ", " + what, got, right, magnitude, most_repeats, place);
      };
      const bool was_exact = is_exact_;
      for (size_t i = 0; i < table.size(); ++i) {
        compare("the table", table[i], i, right[i], ToDouble(table_[i]));
      }
      for (size_t i = 0; i < first.size(); ++i) {
        compare("the first slot", got_first[i], i, right_slots[0][i], first[i]);
      }
      for (size_t i = 0; i < second.size(); ++i) {
        compare("the second slot", got_second[i], i, right_slots[1][i], second[i]);
      }
      is_exact_ = was_exact;
    };
    check(
        "DecayedScatterSub",
        [](const auto& gradients, const S* numbers, const int64_t*, S*, const Slot<S>&, Gpu* gpu,
           T* table) { return DecayedScatterSub(gradients, numbers, numbers + 1, gpu, table); },
        [&](const auto& gradients, double*, const Slot<double>&, Parallel* parallel,
            double* table) {
          return DecayedScatterSub(gradients, static_cast<double>(rate), static_cast<double>(decay),
                                   parallel, table);
        });
    check(
        "AdamUpdate",
        [&](const auto& gradients, const S* numbers, const int64_t* step, S* first,
            const Slot<S>& second, Gpu* gpu, T* table) {
          return AdamUpdate(gradients, adam, numbers, step, first, second, gpu, table);
        },
        [&](const auto& gradients, double* first, const Slot<double>& second, Parallel* parallel,
            double* table) { return AdamUpdate(gradients, adam, first, second, parallel, table); });
    check(
        "AdagradUpdate",
        [&](const auto& gradients, const S* numbers, const int64_t*, S*, const Slot<S>& second,
            Gpu* gpu,
            T* table) { return AdagradUpdate(gradients, adagrad, numbers, second, gpu, table); },
        [&](const auto& gradients, double*, const Slot<double>& second, Parallel* parallel,
            double* table) { return AdagradUpdate(gradients, adagrad, second, parallel, table); });
  }

  const Setting setting_;
  Random random_;
  int64_t num_rows_ = 0, width_ = 0, largest_ = 0;
  Bad bad_ = Bad::kNothing;
  int64_t table_shift_ = 0, out_shift_ = 0;
  Bags<Index> bags_;  // without pointers
  std::vector<Index> indices_, bounds_;
  std::vector<T> table_, grad_, rounded_weights_;
  std::vector<S> wide_weights_;
  bool has_weights_ = false, weights_are_wide_ = false;
  bool is_exact_ = false;  // sums are of small integers, and must be right to the last bit
};

// Runs one case; `number` tells its type, kind and reduction. Returns true if all is well.
constexpr int kNumbers = 4 * 2 * 3 * 4;

template <typename T, typename Index>
bool RunCase(const Setting& setting, int number, bool is_verbose) {
#ifdef TF_TI_EMULATE_CUDA
  SetEmulationSeed(setting.seed);
#endif
  Case<T, Index> test(setting);
  if (is_verbose) std::printf("%s\n", test.Describe().c_str());
  try {
    test.Run();
    return true;
  } catch (const Failure& failure) {
    std::printf(
        "FAILED: %s\n  in a case of %s\n  again: --case %d --case_seed %llu%s --giant %lld%s%s%s\n",
        failure.what.c_str(), test.Describe().c_str(), number,
        static_cast<unsigned long long>(setting.seed), setting.is_small ? " --small" : "",
        static_cast<long long>(setting.giant), checking.is_late ? " --late" : "",
        checking.poisons ? "" : " --bare", checking.has_bad_bounds ? "" : " --good_bounds");
    return false;
  }
}

bool RunNumber(Setting setting, int number, bool is_verbose) {
  constexpr BagKind kKinds[] = {BagKind::kOffsets, BagKind::kPacked, BagKind::kSegments};
  constexpr Reduction kReductions[] = {Reduction::kSum, Reduction::kMean, Reduction::kSqrtN,
                                       Reduction::kMax};
  using Function = bool (*)(const Setting&, int, bool);
  constexpr Function kFunctions[] = {RunCase<float, int32_t>,    RunCase<float, int64_t>,
                                     RunCase<double, int32_t>,   RunCase<double, int64_t>,
                                     RunCase<Half, int32_t>,     RunCase<Half, int64_t>,
                                     RunCase<BFloat16, int32_t>, RunCase<BFloat16, int64_t>};
  setting.kind = kKinds[number % 3];
  setting.reduction = kReductions[number / 3 % 4];
  return kFunctions[number / 12](setting, number, is_verbose);
}

// Rows of kHugeWidth halves, all zero but some: one of them is looked up by every bag but the last.
constexpr int64_t kHugeWidth = 136;

void CheckHuge(int64_t num_rows) {
  CheckedGpu gpu;
  const auto row = [](double first) {
    std::vector<Half> row;
    for (int64_t c = 0; c < kHugeWidth; ++c) {
      row.push_back(FromDouble<Half>(first + static_cast<double>(c % 8)));
    }
    return row;
  };
  const auto put = [](DeviceArray<Half>* to, int64_t at, const std::vector<Half>& row) {
    Must(cudaMemcpy(to->data() + at * kHugeWidth, row.data(), row.size() * sizeof(Half),
                    cudaMemcpyHostToDevice),
         "copy");
  };
  const auto expect = [](const std::string& what, const Half* from, const std::vector<Half>& row) {
    std::vector<Half> got(row.size());
    Must(cudaMemcpy(got.data(), from, got.size() * sizeof(Half), cudaMemcpyDeviceToHost), "copy");
    for (int64_t c = 0; c < kHugeWidth; ++c) {
      if (got[c].bits != row[c].bits) {
        Fail(what + " of a huge table, column " + std::to_string(c) + ", is " +
             std::to_string(ToDouble(got[c])) + ", not " + std::to_string(ToDouble(row[c])));
      }
    }
  };
  const int64_t last = num_rows - 1;
  std::vector<int32_t> indices(num_rows, static_cast<int32_t>(last));
  indices[last] = 0;
  DeviceArray<Half> table(num_rows * kHugeWidth), out(num_rows * kHugeWidth);
  DeviceArray<int32_t> device_indices(indices);
  Must(cudaMemsetAsync(table.data(), 0, num_rows * kHugeWidth * sizeof(Half), nullptr), "memset");
  put(&table, 0, row(1));
  put(&table, last, row(2));
  Bags<int32_t> bags;
  bags.kind = BagKind::kPacked;
  bags.indices = device_indices.data();
  bags.num_indices = bags.count = num_rows;
  Expect("PoolBags", PoolBags<Half, int32_t>({table.data(), num_rows, kHugeWidth}, bags, {},
                                             Reduction::kSum, &gpu, out.data(), nullptr));
  Expect("PoolBags", gpu.Finish());
  for (const int64_t bag : {int64_t{0}, num_rows / 2, last - 1}) {
    expect("out", out.data() + bag * kHugeWidth, row(2));
  }
  expect("out", out.data() + last * kHugeWidth, row(1));

  // As a gradient, the table has two rows that are not zero, for the first and the last bag.
  GpuTableGradient<Half, int32_t> gradient;
  Expect("Init", gradient.Init(bags, {}, Reduction::kSum, nullptr, num_rows, kHugeWidth, &gpu));
  Expect("Init", gpu.Wait());
  int64_t num_touched;
  Must(
      cudaMemcpy(&num_touched, gradient.num_touched(), sizeof(num_touched), cudaMemcpyDeviceToHost),
      "copy");
  if (num_touched != 2) Fail("num_touched of a huge table is " + std::to_string(num_touched));
  DeviceArray<int32_t> rows(2);
  DeviceArray<Half> values(2 * kHugeWidth);
  Expect("Compute", gradient.Compute(table.data(), 2, &gpu, rows.data(), values.data()));
  Expect("Compute", gpu.Finish());
  if (rows.Get() != std::vector<int32_t>{0, static_cast<int32_t>(last)}) Fail("bad rows");
  expect("the gradient", values.data(), row(2));
  expect("the gradient", values.data() + kHugeWidth, row(1));
}

// The table of --many: position i has row i % kManyRows, whose elements are whole numbers.
constexpr int64_t kManyRows = 7, kManyWidth = 2;

__host__ __device__ double ManyElement(int64_t row, int64_t column) {
  return static_cast<double>(kManyWidth * row + column);
}
// The gradient of a bag.
__host__ __device__ double ManyGrad(int64_t bag, int64_t column) {
  return static_cast<double>(bag % 5 + column);
}
// The number of positions in [begin, end) that have this row.
__host__ __device__ int64_t ManyCount(int64_t begin, int64_t end, int64_t row) {
  return (end + kManyRows - 1 - row) / kManyRows - (begin + kManyRows - 1 - row) / kManyRows;
}

// Bag b has the positions from ManyBegin(b) on: `size` of them. If that is 0, the first bag has
// kFew and the second one all others.
constexpr int64_t kFew = 5;
struct ManyBags {
  int64_t num_ids, count, size;

  __host__ __device__ int64_t Begin(int64_t bag) const {
    return size > 0 ? bag * size : bag == 0 ? 0 : bag == 1 ? kFew : num_ids;
  }
};

template <typename T, typename Function>
__global__ void FillArray(int64_t size, T* array, Function value) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) array[i] = static_cast<T>(value(i));
}

// Leaves the first position of a wrong element of an array in `place`.
template <typename T, typename Function>
__global__ void FindWrong(int64_t size, const T* array, Function value, unsigned long long* place) {
  const auto [first, step] = ThreadStride();
  for (int64_t i = first; i < size; i += step) {
    if (array[i] != static_cast<T>(value(i))) {
      atomicMin(place, static_cast<unsigned long long>(i));
      return;
    }
  }
}

// The right values for FillArray and FindWrong. They are functors: emulated kernels take anything,
// but nvcc takes lambdas only with an option.
struct ManyId {
  __host__ __device__ int64_t operator()(int64_t i) const { return i % kManyRows; }
};
struct ManyOffset {
  ManyBags bags;
  __host__ __device__ int64_t operator()(int64_t bag) const { return bags.Begin(bag); }
};
struct ManyTable {
  __host__ __device__ double operator()(int64_t i) const {
    return ManyElement(i / kManyWidth, i % kManyWidth);
  }
};
struct ManyGrads {
  __host__ __device__ double operator()(int64_t i) const {
    return ManyGrad(i / kManyWidth, i % kManyWidth);
  }
};
struct ManySum {
  ManyBags bags;
  __host__ __device__ double operator()(int64_t i) const {
    const int64_t bag = i / kManyWidth;
    double sum = 0;
    for (int64_t row = 0; row < kManyRows; ++row) {
      sum += static_cast<double>(ManyCount(bags.Begin(bag), bags.Begin(bag + 1), row)) *
             ManyElement(row, i % kManyWidth);
    }
    return sum;
  }
};
// The position of the maximum: the first one in the bag that has the last row of those in it.
struct ManyArgmax {
  ManyBags bags;
  __host__ __device__ int64_t operator()(int64_t i) const {
    const int64_t begin = bags.Begin(i / kManyWidth), end = bags.Begin(i / kManyWidth + 1);
    int64_t row = kManyRows - 1;
    while (ManyCount(begin, end, row) == 0) --row;
    return begin + (row - begin % kManyRows + kManyRows) % kManyRows;
  }
};
struct ManyWeightGrad {
  ManyBags bags;
  __host__ __device__ double operator()(int64_t i) const {
    double dot = 0;
    for (int64_t c = 0; c < kManyWidth; ++c) {
      dot += ManyElement(i % kManyRows, c) * ManyGrad(i / bags.size, c);
    }
    return dot;
  }
};

void CheckMany(int64_t num_ids) {
  CheckedGpu gpu;
  constexpr int64_t kSize = 64;
  num_ids = num_ids / kSize * kSize;
  const auto fill = [&](int64_t size, auto* array, const auto& value) {
    Expect("FillArray",
           Launch(&FillArray<std::decay_t<decltype(*array)>, std::decay_t<decltype(value)>>,
                  NumBlocks(size, kBlock), kBlock, &gpu, size, array, value));
  };
  const auto compare = [&](const std::string& what, int64_t size, const auto* array,
                           const auto& value) {
    DeviceArray<unsigned long long> place(std::vector<unsigned long long>{~0ull});
    Expect(what, Launch(&FindWrong<std::decay_t<decltype(*array)>, std::decay_t<decltype(value)>>,
                        NumBlocks(size, kBlock), kBlock, &gpu, size, array, value, place.data()));
    Expect(what, gpu.Wait());
    const unsigned long long first = place.Get()[0];
    if (first != ~0ull) {
      Fail(what + " of " + std::to_string(num_ids) + " ids: element " + std::to_string(first) +
           " of " + std::to_string(size) + " is not " +
           std::to_string(static_cast<double>(value(static_cast<int64_t>(first)))));
    }
  };
  const auto expect_refusal = [&](const std::string& what, const std::string& said) {
    if (said.empty()) Fail(what + " takes more ids than it can");
    if (gpu.has_failed()) Fail(what + " fails instead of saying what is wrong: " + said);
    Expect(what, gpu.Wait());
  };

  DeviceArray<int64_t> ids(num_ids);
  DeviceArray<double> table(kManyRows * kManyWidth);
  fill(num_ids, ids.data(), ManyId{});
  fill(kManyRows * kManyWidth, table.data(), ManyTable{});
  const Table<double> rows{table.data(), kManyRows, kManyWidth};
  const auto pool = [&](const std::string& name, const ManyBags& many, BagKind kind) {
    CheckedGpu gpu;  // here, so that its scratch memory goes with it
    const int64_t size = many.count * kManyWidth;
    DeviceArray<int64_t> offsets(kind == BagKind::kOffsets ? many.count : 0), argmax(size);
    DeviceArray<double> out(size);
    if (kind == BagKind::kOffsets) fill(many.count, offsets.data(), ManyOffset{many});
    Bags<int64_t> bags;
    bags.kind = kind;
    bags.indices = ids.data();
    bags.num_indices = num_ids;
    bags.bounds = offsets.data();
    bags.count = many.count;
    Expect(name,
           PoolBags<double, int64_t>(rows, bags, {}, Reduction::kSum, &gpu, out.data(), nullptr));
    compare(name + ", sum", size, out.data(), ManySum{many});
    Expect(name, PoolBags<double, int64_t>(rows, bags, {}, Reduction::kMax, &gpu, out.data(),
                                           argmax.data()));
    compare(name + ", positions of maxima", size, argmax.data(), ManyArgmax{many});
    Expect(name, gpu.Wait());
  };
  const ManyBags packed{num_ids, num_ids / kSize, kSize};
  pool("packed bags", packed, BagKind::kPacked);
  pool("bags", packed, BagKind::kOffsets);
  pool("a giant bag", {num_ids, 2, 0}, BagKind::kOffsets);

  Bags<int64_t> bags;
  bags.kind = BagKind::kPacked;
  bags.indices = ids.data();
  bags.num_indices = num_ids;
  bags.count = packed.count;
  DeviceArray<double> grad(packed.count * kManyWidth);
  fill(packed.count * kManyWidth, grad.data(), ManyGrads{});
  {
    DeviceArray<double> gradient(num_ids);
    WeightsOutput<double> output;
    output.rounded = gradient.data();
    Expect("WeightsGradient", WeightsGradient<double, int64_t>(rows, bags, {}, Reduction::kSum,
                                                               grad.data(), &gpu, output));
    compare("the weights' gradient", num_ids, gradient.data(), ManyWeightGrad{packed});
  }
  {
    // As many as a table's gradient can have.
    CheckedGpu gpu;
    Bags<int64_t> most = bags;
    most.count = std::min(most.count, (kMostEntries - 1) / kSize);
    most.num_indices = most.count * kSize;
    GpuTableGradient<double, int64_t> gradient;
    Expect("Init", gradient.Init(most, {}, Reduction::kSum, nullptr, kManyRows, kManyWidth, &gpu));
    Expect("Init", gpu.Wait());
    int64_t num_touched;
    Must(cudaMemcpy(&num_touched, gradient.num_touched(), sizeof(num_touched),
                    cudaMemcpyDeviceToHost),
         "copy");
    if (num_touched != kManyRows) Fail("num_touched is " + std::to_string(num_touched));
    DeviceArray<int64_t> named(kManyRows);
    DeviceArray<double> values(kManyRows * kManyWidth);
    Expect("Compute",
           gradient.Compute(grad.data(), num_touched, &gpu, named.data(), values.data()));
    Expect("Compute", gpu.Finish());
    const std::vector<double> got = values.Get();
    for (int64_t row = 0; row < kManyRows; ++row) {
      double right[kManyWidth] = {};
      for (int64_t bag = 0; bag < most.count; ++bag) {
        const double count = static_cast<double>(ManyCount(bag * kSize, bag * kSize + kSize, row));
        for (int64_t c = 0; c < kManyWidth; ++c) right[c] += count * ManyGrad(bag, c);
      }
      if (named.Get()[row] != row) Fail("bad rows in the gradient of many ids");
      for (int64_t c = 0; c < kManyWidth; ++c) {
        if (got[row * kManyWidth + c] == right[c]) continue;
        Fail("the gradient of " + std::to_string(most.num_indices) + " ids: row " +
             std::to_string(row) + " has " + std::to_string(got[row * kManyWidth + c]) + ", not " +
             std::to_string(right[c]));
      }
    }
  }
  {
    // The last id is the bad one.
    const int64_t bad = kManyRows;
    Must(cudaMemcpy(ids.data() + num_ids - 1, &bad, sizeof(bad), cudaMemcpyHostToDevice), "copy");
    DeviceArray<GpuProblem> problem(1);
    Expect("CheckBags", CheckBags(bags, kManyRows, &gpu, problem.data()));
    Expect("CheckBags", gpu.Wait());
    const std::string said = DescribeProblem(bags, kManyRows, problem.Get()[0]);
    const std::string right = "indices[" + std::to_string(packed.count - 1) + ", " +
                              std::to_string(kSize - 1) + "] is 7, but emb_table has 7 rows";
    if (said != right) Fail("CheckBags says '" + said + "', not '" + right + "'");
  }

  // Refused arrays are not read, so they need not be there.
  constexpr int64_t kTooMany = int64_t{1} << 31;
  Bags<int64_t> too_many = bags;
  too_many.num_indices = kTooMany;
  GpuTableGradient<double, int64_t> gradient;
  expect_refusal("GpuTableGradient", gradient.Init(too_many, {}, Reduction::kSum, nullptr,
                                                   kManyRows, kManyWidth, &gpu));
  expect_refusal("ScatterSub", ScatterSub(GradientsOfRows(ids.data(), grad.data(), kTooMany,
                                                          kManyRows, kManyWidth),
                                          grad.data(), &gpu, table.data()));
  Bags<int32_t> narrow;
  narrow.kind = BagKind::kPacked;
  narrow.num_indices = kTooMany;
  narrow.count = 1;
  expect_refusal("PoolBags of int32", PoolBags<double, int32_t>(rows, narrow, {}, Reduction::kSum,
                                                                &gpu, grad.data(), nullptr));
}

// Returns true if the GPU has room for CheckMany; most of it is for the largest gradient of a
// table.
bool HasRoomForMany(int64_t num_ids) {
  constexpr int64_t kBytesPerId = 32;
  size_t free, total;
  Must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  if (static_cast<int64_t>(free) >= kBytesPerId * num_ids) return true;
  std::printf("%lld ids: not checked, for want of %lld GB on the GPU, of which %lld are free\n",
              static_cast<long long>(num_ids), static_cast<long long>(kBytesPerId * num_ids >> 30),
              static_cast<long long>(free >> 30));
  return false;
}

// Runs one check, and reports it.
int Check(const std::string& what, const std::function<void()>& check) {
  try {
    check();
  } catch (const Failure& failure) {
    std::printf("FAILED: %s\n", failure.what.c_str());
    return 1;
  }
  std::printf("%s: ok\n", what.c_str());
  return 0;
}

int Main(int argc, char** argv) {
  std::map<std::string, int64_t> options = {
      {"--seed", 1},  {"--seconds", 60},  {"--rounds", 1000},  {"--small", 0}, {"--giant", 0},
      {"--case", -1}, {"--case_seed", 0}, {"--verbose", 0},    {"--huge", 0},  {"--many", 0},
      {"--late", 0},  {"--bare", 0},      {"--good_bounds", 0}};
  const std::set<std::string> flags = {"--small", "--verbose", "--late", "--bare", "--good_bounds"};
  for (int i = 1; i < argc; ++i) {
    const auto option = options.find(argv[i]);
    const bool is_flag = flags.count(argv[i]) > 0;
    if (option == options.end() || (!is_flag && i + 1 == argc)) {
      std::printf("cases: what is %s?\n", argv[i]);
      return 2;
    }
    option->second = is_flag ? 1 : std::atoll(argv[++i]);
  }
  Setting setting;
  setting.is_small = options["--small"];
  setting.giant = options["--giant"];
  const bool is_verbose = options["--verbose"];
  checking.poisons = options["--bare"] == 0;
  checking.has_bad_bounds = options["--good_bounds"] == 0;
  checking.is_late = options["--late"] != 0;
  if (checking.is_late) {
    Must(cudaStreamCreateWithFlags(&checking.stream, cudaStreamNonBlocking), "a stream");
  }
  if (options["--case"] >= 0) {
    setting.seed = options["--case_seed"];
    return RunNumber(setting, static_cast<int>(options["--case"]), true) ? 0 : 1;
  }
  const int64_t huge = options["--huge"], many = options["--many"];
  if (huge > 0) {
    return Check("a table and bags of " + std::to_string(huge * kHugeWidth) + " elements",
                 [&] { CheckHuge(huge); });
  }
  if (many > 0) {
    if (!HasRoomForMany(many)) return 0;
    return Check(std::to_string(many) + " ids", [&] { CheckMany(many); });
  }
  std::mt19937_64 seeds(options["--seed"]);
  // From the first case's end on: its launches may have to compile all kernels.
  auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int64_t num_cases = 0;
  for (int64_t round = 0; round < options["--rounds"]; ++round) {
    for (int k = 0; k < kNumbers; ++k) {
      // 37 has no divisor in common with their number: types change all the time.
      const int number = k * 37 % kNumbers;
      setting.seed = seeds() >> 1;  // an int64, as options are
      if (!RunNumber(setting, number, is_verbose)) return 1;
      if (++num_cases == 1) start = std::chrono::steady_clock::now();
      if (seconds() > static_cast<double>(options["--seconds"])) {
        round = options["--rounds"];
        break;
      }
    }
  }
  std::printf("%lld random cases, from seed %lld: ok (%.0f s)\n", static_cast<long long>(num_cases),
              static_cast<long long>(options["--seed"]), seconds());
  if (checking.is_late) {
    std::printf("%lld of %lld calls were enqueued before the device came to them\n",
                static_cast<long long>(checking.num_late),
                static_cast<long long>(checking.num_calls));
    if (checking.num_late == 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tf_ti

int main(int argc, char** argv) { return tf_ti::Main(argc, argv); }
