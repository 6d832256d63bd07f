#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "cc/compute/bags/updates.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/xla/bags/host_calls-inl.h"
#include "cc/xla/bags/updates.h"
#include "cc/xla/host_calls.h"
#include "cc/xla/shapes.h"

namespace tf_ti {

using xla::Shape;
using xla::XlaOp;

namespace {

constexpr char kScatterSub[] = "tf_ti.scatter_sub";
constexpr char kUpdateRows[] = "tf_ti.update_rows";

template <typename T, typename Index>
struct ScatterSubCall {
  static std::string Run(const Call& call, Parallel* parallel) {
    const ffi::AnyBuffer matrix = call.arg(0), places = call.arg(1);
    const int64_t num_rows = matrix.dimensions()[0], width = matrix.dimensions()[1];
    const auto* const indices = static_cast<const Index*>(places.untyped_data());
    const auto* const values = static_cast<const T*>(call.arg(2).untyped_data());
    using Scale = std::conditional_t<std::is_integral_v<T>, T, Sum<T>>;
    const Sum<T> scale = *static_cast<const Scale*>(call.arg(3).untyped_data());
    T* const table = call.Result<T>(0);  // the same memory as the argument
    const int64_t count = places.element_count();
    const auto update = [&](int64_t begin, int64_t end) {
      const RowGradientsOf<T, Index> gradients =
          GradientsOfRows(indices + begin, values + begin * width, end - begin, num_rows, width);
      return ScatterSub(gradients, scale, parallel, table);
    };
    const std::string problem = update(0, count);
    if (problem.empty() || call.checks_ids()) return problem;
    for (int64_t begin = 0, end; begin < count; begin = end + 1) {
      end = begin;
      while (end < count && IsRow(indices[end], num_rows)) ++end;
      update(begin, end);
    }
    return "";
  }
};

// An error message about a number of an optimizer's.
std::string CheckNumber(const char* name, double value, bool is_share) {
  if (value >= 0 && value < (is_share ? 1 : std::numeric_limits<double>::infinity())) return "";
  return std::string(name) + " must be at least 0" + (is_share ? " and below 1" : " and finite") +
         ", got " + std::to_string(value);
}

// Arguments: the table, indices, values; m and v, or an accumulator; and the rule's numbers.
template <typename T, typename Index>
struct UpdateCall {
  using S = Sum<T>;

  static std::string Run(const Call& call, Parallel* parallel) {
    const ffi::AnyBuffer matrix = call.arg(0), places = call.arg(1);
    const auto* const indices = static_cast<const Index*>(places.untyped_data());
    const auto* const values = static_cast<const T*>(call.arg(2).untyped_data());
    const int64_t num_rows = matrix.dimensions()[0], width = matrix.dimensions()[1];
    const auto update = [&](const Index* indices, const T* values, int64_t count) {
      return Update(call, GradientsOfRows(indices, values, count, num_rows, width), parallel);
    };
    const int64_t count = places.element_count();
    const std::string problem = update(indices, values, count);
    if (problem.empty() || call.checks_ids()) return problem;
    // Nothing was written. Tries again without indices that are no rows.
    std::vector<Index> good;
    std::vector<T> rows;
    for (int64_t i = 0; i < count; ++i) {
      if (!IsRow(indices[i], num_rows)) continue;
      good.push_back(indices[i]);
      rows.insert(rows.end(), values + i * width, values + (i + 1) * width);
    }
    return update(good.data(), rows.data(), static_cast<int64_t>(good.size()));
  }

 private:
  template <typename E>
  static double Number(const Call& call, size_t i) {
    return static_cast<double>(*static_cast<const E*>(call.arg(i).untyped_data()));
  }

  // The values to update lie where the arguments do.
  static std::string Update(const Call& call, const RowGradientsOf<T, Index>& gradients,
                            Parallel* parallel) {
    T* const table = call.Result<T>(0);
    const bool flag = call.attribute("flag") != 0, is_row_wise = call.attribute("row_wise") != 0;
    std::string problem;
    const auto number = [&](const char* name, size_t i, bool is_share = false) {
      const double value = Number<double>(call, i);
      if (problem.empty()) problem = CheckNumber(name, value, is_share);
      return value;
    };
    switch (static_cast<UpdateRule>(call.attribute("rule"))) {
      case UpdateRule::kDescent:
        return DecayedScatterSub(gradients, Number<S>(call, 3), Number<double>(call, 4), parallel,
                                 table);
      case UpdateRule::kAdam: {
        AdamNumbers numbers;
        numbers.learning_rate = Number<S>(call, 5);
        numbers.step = *static_cast<const int64_t*>(call.arg(6).untyped_data());
        if (numbers.step < 1) {
          return "step must be at least 1, got " + std::to_string(numbers.step);
        }
        numbers.beta_1 = number("beta_1", 7, true);
        numbers.beta_2 = number("beta_2", 8, true);
        numbers.epsilon = number("epsilon", 9);
        numbers.weight_decay = number("weight_decay", 10);
        numbers.epsilon_hat = flag;
        if (!problem.empty()) return problem;
        return AdamUpdate(gradients, numbers, call.Result<S>(1),
                          Slot<S>{call.Result<S>(2), is_row_wise}, parallel, table);
      }
      default: {
        AdagradNumbers numbers;
        numbers.learning_rate = Number<S>(call, 4);
        numbers.epsilon = number("epsilon", 5);
        numbers.epsilon_inside_sqrt = flag;
        if (!problem.empty()) return problem;
        return AdagradUpdate(gradients, numbers, Slot<S>{call.Result<S>(1), is_row_wise}, parallel,
                             table);
      }
    }
  }
};

TF_TI_REGISTER_HOST_CALL(kScatterSubHandler, kScatterSub,
                         (Handle<ScatterSubCall, Types::kNumbers>));
TF_TI_REGISTER_HOST_CALL(kUpdateHandler, kUpdateRows, (Handle<UpdateCall, Types::kFloats>));

}  // namespace

XlaOp ScatterSubOnHost(XlaOp table, XlaOp indices, XlaOp values, XlaOp scale,
                       const std::vector<XlaOp>& reads) {
  const Aliases in_place(1);  // all of the result lies where all of operand 0 does
  CallAttributes attributes;
  attributes.Add("checks_ids", ChecksIds());
  std::vector<XlaOp> operands = {table, indices, values, scale};
  operands.insert(operands.end(), reads.begin(), reads.end());
  return CallHost(kScatterSub, operands, RowMajor(TypeOf(table), Dims(ShapeOf(table))), attributes,
                  true, in_place);
}

UpdatedRows UpdateOnHost(const RowUpdate& update) {
  std::vector<XlaOp> operands = {update.table, update.indices, update.values};
  for (XlaOp op : {update.first, update.second, update.rate, update.step, update.beta_1,
                   update.beta_2, update.epsilon, update.weight_decay}) {
    if (op.valid()) operands.push_back(op);
  }
  operands.insert(operands.end(), update.reads.begin(), update.reads.end());
  std::vector<Shape> results;
  Aliases in_place;
  const auto add = [&](XlaOp updated, int64_t operand) {
    if (!updated.valid()) return;
    in_place.emplace_back();  // all of the result lies where all of the operand does
    in_place.back().first.push_back(static_cast<int64_t>(results.size()));
    in_place.back().second.first = operand;
    results.push_back(RowMajor(TypeOf(updated), Dims(ShapeOf(updated))));
  };
  add(update.table, 0);
  add(update.first, 3);
  add(update.second, update.first.valid() ? 4 : 3);
  CallAttributes attributes;
  attributes.Add("rule", static_cast<int64_t>(update.rule));
  attributes.Add("flag", update.flag);
  attributes.Add("row_wise", update.is_row_wise);
  attributes.Add("checks_ids", ChecksIds());
  const std::vector<XlaOp> got =
      CallHost(kUpdateRows, operands, results, attributes, true, in_place);
  UpdatedRows updated;
  size_t next = 0;
  updated.table = got[next++];
  if (update.first.valid()) updated.first = got[next++];
  if (update.second.valid()) updated.second = got[next++];
  return updated;
}

}  // namespace tf_ti
