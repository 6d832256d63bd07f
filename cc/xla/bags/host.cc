#include "cc/xla/bags/host.h"

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/xla/bags/host_calls-inl.h"
#include "cc/xla/host_calls.h"
#include "cc/xla/shapes.h"

namespace tf_ti {

using xla::Shape;
using xla::XlaOp;

namespace {

constexpr char kPool[] = "tf_ti.pool_bags";
constexpr char kTableGradient[] = "tf_ti.bags_table_gradient";
constexpr char kWeightsGradient[] = "tf_ti.bags_weights_gradient";

// The arguments of all calls: rows of numbers; indices; where there are any, their bounds, a
// default index, weights; and what else a call needs.
template <typename T, typename Index>
struct Arguments {
  const T* rows = nullptr;
  int64_t num_rows = 0;
  int64_t width = 0;
  Bags<Index> bags;
  Weights<T> weights;
  size_t end = 0;

  explicit Arguments(const Call& call) {
    const auto next = [&] { return call.arg(end++); };
    const ffi::AnyBuffer matrix = next();
    rows = static_cast<const T*>(matrix.untyped_data());
    num_rows = matrix.dimensions()[0];
    width = matrix.dimensions()[1];
    const ffi::AnyBuffer indices = next();
    bags.kind = static_cast<BagKind>(call.attribute("kind"));
    bags.indices = static_cast<const Index*>(indices.untyped_data());
    bags.num_indices = indices.element_count();
    if (bags.kind != BagKind::kPacked) {
      bags.bounds = static_cast<const Index*>(next().untyped_data());
    }
    bags.include_last_offset = call.attribute("include_last_offset");
    bags.count = call.attribute("count");
    if (call.attribute("has_default")) {
      bags.default_index = *static_cast<const Index*>(next().untyped_data());
    }
    bags.has_padding = call.attribute("has_padding");
    bags.padding_idx = call.attribute("padding_idx");
    if (call.attribute("has_weights")) {
      const ffi::AnyBuffer given = next();
      if (given.element_type() == kType<Sum<T>>) {
        weights.wide = static_cast<const Sum<T>*>(given.untyped_data());
      } else {
        weights.rounded = static_cast<const T*>(given.untyped_data());
      }
    }
  }

  Reduction reduction(const Call& call) const {
    return static_cast<Reduction>(call.attribute("reduction"));
  }
};

// A default index that is no row fills bags with zeros.
template <typename Index>
void DropWrongDefault(int64_t num_rows, Bags<Index>* bags) {
  if (!IsRow(bags->default_index, num_rows)) bags->default_index = -1;
}

template <typename Index>
bool HasWrongIds(const Bags<Index>& bags, int64_t num_rows) {
  return std::any_of(bags.indices, bags.indices + bags.num_indices, [&](Index index) {
    return !IsRow(index, num_rows) && !(bags.has_padding && index == bags.padding_idx);
  });
}

// A copy of bags, whose indices may be changed; -1 is padding there.
class ChangedBags {
 public:
  template <typename Index>
  explicit ChangedBags(const Bags<Index>& bags)
      : indices_(bags.indices, bags.indices + bags.num_indices) {
    if (bags.kind == BagKind::kOffsets) {
      bounds_.assign(bags.bounds, bags.bounds + bags.count + bags.include_last_offset);
    } else if (bags.kind == BagKind::kSegments) {
      bounds_.assign(bags.bounds, bags.bounds + bags.num_indices);
    }
    bags_.kind = bags.kind;
    bags_.indices = indices_.data();
    bags_.num_indices = bags.num_indices;
    bags_.bounds = bounds_.data();
    bags_.include_last_offset = bags.include_last_offset;
    bags_.count = bags.count;
    bags_.default_index = bags.default_index;
    bags_.has_padding = true;
    bags_.padding_idx = -1;
    had_padding_ = bags.has_padding;
    padding_ = bags.padding_idx;
  }
  ChangedBags(const ChangedBags&) = delete;
  ChangedBags& operator=(const ChangedBags&) = delete;

  const Bags<int64_t>& get() const { return bags_; }
  void set_default_index(int64_t row) { bags_.default_index = row; }

  // index = change(index, position) for all but padding.
  template <typename Change>
  void ChangeIndices(Change change) {
    for (int64_t i = 0; i < bags_.num_indices; ++i) {
      const bool is_padding = had_padding_ && indices_[i] == padding_;
      indices_[i] = is_padding ? -1 : change(indices_[i], i);
    }
  }

 private:
  std::vector<int64_t> indices_, bounds_;
  Bags<int64_t> bags_;
  bool had_padding_;
  int64_t padding_;
};

// Bags over a table of their own, with the row of each index: zeros where there is no such row.
template <typename T>
class FoundRows {
 public:
  template <typename Index>
  FoundRows(const Table<T>& table, const Bags<Index>& bags)
      : rows_((bags.num_indices + 1) * table.width), bags_(bags) {
    table_ = {rows_.data(), bags.num_indices + 1, table.width};
    const auto copy = [&](int64_t row, int64_t to) {
      T* const begin = rows_.data() + to * table.width;
      if (IsRow(row, table.num_rows)) {
        std::copy_n(table.rows + row * table.width, table.width, begin);
      } else {
        std::fill_n(begin, table.width, T());
      }
      return to;
    };
    bags_.ChangeIndices(copy);
    if (bags.default_index >= 0) {
      bags_.set_default_index(copy(bags.default_index, bags.num_indices));
    }
  }

  const Table<T>& table() const { return table_; }
  const Bags<int64_t>& bags() const { return bags_.get(); }

 private:
  Buffer<T> rows_;
  Table<T> table_;
  ChangedBags bags_;
};

template <typename T, typename Index>
struct PoolCall {
  static std::string Run(const Call& call, Parallel* parallel) {
    return OfTable(call.attribute("number"), Pool(call, parallel));
  }

 private:
  static std::string Pool(const Call& call, Parallel* parallel) {
    Arguments<T, Index> given(call);
    const Table<T> table = {given.rows, given.num_rows, given.width};
    Index* const argmax = call.results.size() > 1 ? call.Result<Index>(1) : nullptr;
    const auto pool = [&](const Table<T>& table, const auto& bags, auto* argmax) {
      return PoolBags(table, bags, given.weights, given.reduction(call), parallel,
                      call.Result<T>(0), argmax);
    };
    if (!call.checks_ids()) DropWrongDefault(table.num_rows, &given.bags);
    const std::string problem = pool(table, given.bags, argmax);
    if (problem.empty() || call.checks_ids() || !HasWrongIds(given.bags, table.num_rows)) {
      return problem;
    }
    if (given.reduction(call) == Reduction::kSum && given.bags.default_index < 0) {
      // A row of zeros does as well as none.
      ChangedBags changed(given.bags);
      changed.ChangeIndices(
          [&](int64_t row, int64_t) { return IsRow(row, table.num_rows) ? row : -1; });
      return pool(table, changed.get(), static_cast<int64_t*>(nullptr));
    }
    const FoundRows<T> found(table, given.bags);
    std::vector<int64_t> positions(argmax == nullptr ? 0 : call.result(1).element_count());
    const std::string other =
        pool(found.table(), found.bags(), argmax == nullptr ? nullptr : positions.data());
    std::copy(positions.begin(), positions.end(), argmax);
    return other;
  }
};

template <typename T, typename Index>
struct TableGradientCall {
  static std::string Run(const Call& call, Parallel* parallel) {
    return OfTable(call.attribute("number"), Compute(call, parallel));
  }

 private:
  static std::string Compute(const Call& call, Parallel* parallel) {
    Arguments<T, Index> given(call);
    const int64_t num_rows = call.attribute("num_rows");
    const Index* const argmax = given.reduction(call) == Reduction::kMax
                                    ? static_cast<const Index*>(call.arg(given.end).untyped_data())
                                    : nullptr;
    if (!call.checks_ids()) DropWrongDefault(num_rows, &given.bags);
    Index* const rows = call.Result<Index>(0);
    T* const values = call.Result<T>(1);
    TableGradient<T, Index> gradient;
    const std::string problem = gradient.Init(given.bags, given.weights, given.reduction(call),
                                              argmax, num_rows, given.width, parallel);
    int64_t touched = 0;
    if (problem.empty()) {
      gradient.Compute(given.rows, parallel, rows, values);
      touched = gradient.num_touched();
    } else {
      if (call.checks_ids() || !HasWrongIds(given.bags, num_rows)) return problem;
      const std::string other = RunWithWrongIds(given, argmax, num_rows, given.reduction(call),
                                                parallel, rows, values, &touched);
      if (!other.empty()) return other;
    }
    const int64_t count = call.result(0).element_count();
    std::fill(rows + touched, rows + count, touched == 0 ? Index(0) : rows[touched - 1]);
    Fill(values + touched * given.width, (count - touched) * given.width, parallel);
    return "";
  }

  // Wrong ids are a row behind all others, whose gradient is dropped.
  static std::string RunWithWrongIds(const Arguments<T, Index>& given, const Index* argmax,
                                     int64_t num_rows, Reduction reduction, Parallel* parallel,
                                     Index* rows, T* values, int64_t* touched) {
    ChangedBags changed(given.bags);
    changed.ChangeIndices(
        [=](int64_t row, int64_t) { return IsRow(row, num_rows) ? row : num_rows; });
    std::vector<int64_t> positions;
    if (argmax != nullptr) positions.assign(argmax, argmax + given.num_rows * given.width);
    TableGradient<T, int64_t> gradient;
    const std::string problem = gradient.Init(changed.get(), given.weights, reduction,
                                              argmax == nullptr ? nullptr : positions.data(),
                                              num_rows + 1, given.width, parallel);
    if (!problem.empty()) return problem;
    *touched = gradient.num_touched();
    std::vector<int64_t> all_rows(*touched);
    Buffer<T> all_values(*touched * given.width);
    gradient.Compute(given.rows, parallel, all_rows.data(), all_values.data());
    if (*touched > 0 && all_rows[*touched - 1] == num_rows) --*touched;
    std::copy_n(all_rows.data(), *touched, rows);
    std::copy_n(all_values.data(), *touched * given.width, values);
    return "";
  }

  static void Fill(T* values, int64_t size, Parallel* parallel) {
    const int64_t parts = NumParts(*parallel, static_cast<double>(size) * sizeof(T));
    const auto begin = [=](int64_t part) {
      return values + size / parts * part + size % parts * part / parts;
    };
    parallel->Run(parts, [=](int64_t part) { std::fill(begin(part), begin(part + 1), T()); });
  }
};

template <typename T, typename Index>
struct WeightsGradientCall {
  static std::string Run(const Call& call, Parallel* parallel) {
    Arguments<T, Index> given(call);
    const Table<T> table = {given.rows, given.num_rows, given.width};
    WeightsOutput<T> output;
    if (given.weights.wide != nullptr) {
      output.wide = call.Result<Sum<T>>(0);
    } else {
      output.rounded = call.Result<T>(0);
    }
    const T* const grad = static_cast<const T*>(call.arg(given.end).untyped_data());
    const auto compute = [&](const Table<T>& table, const auto& bags) {
      return WeightsGradient(table, bags, given.weights, given.reduction(call), grad, parallel,
                             output);
    };
    if (!call.checks_ids()) DropWrongDefault(table.num_rows, &given.bags);
    const std::string problem = compute(table, given.bags);
    if (problem.empty() || call.checks_ids() || !HasWrongIds(given.bags, table.num_rows)) {
      return problem;
    }
    const FoundRows<T> found(table, given.bags);
    return compute(found.table(), found.bags());
  }
};

TF_TI_REGISTER_HOST_CALL(kPoolHandler, kPool, (Handle<PoolCall, Types::kNumbers>));
TF_TI_REGISTER_HOST_CALL(kTableGradientHandler, kTableGradient,
                         (Handle<TableGradientCall, Types::kDifferentiable>));
TF_TI_REGISTER_HOST_CALL(kWeightsGradientHandler, kWeightsGradient,
                         (Handle<WeightsGradientCall, Types::kDifferentiable>));

// The results of a call about bags. It does not read `others` from the second on.
std::vector<XlaOp> EmitBags(const char* target, XlaOp rows, const BagInputs& inputs,
                            const std::vector<XlaOp>& others, int64_t num_rows,
                            const std::vector<Shape>& results) {
  const BagSpec& spec = *inputs.spec;
  std::vector<XlaOp> operands = {rows, inputs.indices};
  for (XlaOp op : {inputs.bounds, inputs.default_index, inputs.weights}) {
    if (op.valid()) operands.push_back(op);
  }
  operands.insert(operands.end(), others.begin(), others.end());
  CallAttributes attributes;
  attributes.Add("count", inputs.count);
  attributes.Add("has_default", inputs.default_index.valid());
  attributes.Add("has_padding", spec.padding_idx.has_value());
  attributes.Add("has_weights", inputs.weights.valid());
  attributes.Add("include_last_offset", spec.include_last_offset);
  attributes.Add("kind", static_cast<int64_t>(spec.kind));
  attributes.Add("num_rows", num_rows);
  attributes.Add("padding_idx", spec.padding_idx.value_or(0));
  attributes.Add("reduction", static_cast<int64_t>(spec.reduction));
  attributes.Add("number", spec.number);
  attributes.Add("checks_ids", ChecksIds());
  return CallHost(target, operands, results, attributes, /*checks=*/true);
}

}  // namespace

PooledBags PoolOnHost(const BagTable& table, const BagInputs& inputs, bool has_argmax) {
  const std::vector<int64_t> dims = {inputs.count, table.width()};
  std::vector<Shape> results = {RowMajor(TypeOf(table.rows), dims)};
  // XLA does not tell if the positions are wanted. They cost little beside the rows, and a call of
  // their own would read these twice.
  if (has_argmax) results.push_back(RowMajor(TypeOf(inputs.indices), dims));
  const std::vector<XlaOp> got = EmitBags(kPool, table.rows, inputs, {}, table.num_rows(), results);
  return {got[0], has_argmax ? got[1] : XlaOp()};
}

RowGradients TableGradientOnHost(XlaOp grad, const BagInputs& inputs, XlaOp argmax,
                                 int64_t num_rows, const std::vector<XlaOp>& reads) {
  const int64_t entries = inputs.num_indices + (inputs.default_index.valid() ? inputs.count : 0);
  const int64_t count = std::min(entries, num_rows);
  std::vector<XlaOp> others = reads;
  if (argmax.valid()) others.insert(others.begin(), argmax);
  const std::vector<XlaOp> values =
      EmitBags(kTableGradient, grad, inputs, others, num_rows,
               {RowMajor(TypeOf(inputs.indices), {count}),
                RowMajor(TypeOf(grad), {count, ShapeOf(grad).dimensions(1)})});
  return {values[0], values[1]};
}

XlaOp WeightsGradientOnHost(const BagTable& table, const BagInputs& inputs, XlaOp grad) {
  return EmitBags(kWeightsGradient, table.rows, inputs, {grad}, table.num_rows(),
                  {RowMajor(TypeOf(inputs.weights), {inputs.num_indices})})[0];
}

}  // namespace tf_ti
