#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/xla/bags/hlo.h"
#include "cc/xla/bags/pool.h"
#include "cc/xla/bags/updates.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"

namespace tf_ti {

using xla::XlaBuilder;
using xla::XlaOp;

namespace {

// Finds the indices that are rows. Where another one is an error, no index is a row any longer, so
// that nothing is updated.
XlaOp CheckRows(int64_t num_rows, XlaOp* indices) {
  XlaBuilder* const builder = indices->builder();
  const int64_t count = SizeOf(*indices);
  const XlaOp is_row = xla::And(xla::Ge(*indices, Number(*indices, 0)),
                                xla::Lt(Wide(*indices), Scalar(builder, xla::S64, num_rows)));
  if (ChecksIds() && count > 0) {
    RequireAll(is_row, absl::StrCat("indices[$0] is $1, but the variable has ", num_rows, " rows"),
               {*indices});
    const XlaOp is_wrong = xla::Any(xla::Not(is_row));
    const XlaOp none = xla::Broadcast(is_wrong, {count});
    *indices = xla::Select(none, xla::FullLike(*indices, -1), *indices);
  }
  return is_row;
}

// Applies a rule to rows [count, width], with `s` the sums of their gradients.
UpdatedRows Step(const RowUpdate& update, XlaOp s, const UpdatedRows& rows) {
  const xla::PrimitiveType sum = TypeOf(s);
  const std::vector<int64_t> shape = Dims(ShapeOf(s));
  const auto round = [&](XlaOp number) { return xla::ConvertElementType(number, sum); };
  const auto widen = [&](XlaOp column) {
    return Widen(xla::Reshape(column, {shape[0]}), shape[1]);
  };
  const XlaOp rate = xla::ConvertElementType(update.rate, xla::F64);
  const XlaOp one = xla::One(rate.builder(), xla::F64);
  XlaOp x = rows.table;
  if (update.weight_decay.valid()) {
    const XlaOp decay = round(xla::Mul(rate, update.weight_decay));
    // Zero times an infinity in a row, or in the rate, is zero.
    const auto is_zero = [](XlaOp number) { return xla::Eq(number, xla::ZerosLike(number)); };
    const XlaOp is_none = xla::Or(is_zero(update.weight_decay), is_zero(decay));
    x = xla::Select(xla::Broadcast(is_none, shape), x, xla::Sub(x, xla::Mul(x, decay)));
  }
  UpdatedRows updated;
  if (update.rule == UpdateRule::kDescent) {
    updated.table = xla::Sub(x, xla::Mul(s, update.rate));
    return updated;
  }
  XlaOp squares = xla::Mul(s, s);
  if (update.is_row_wise) {
    squares = xla::Reshape(xla::Div(SumRows(squares), Number(s, shape[1])), {shape[0], 1});
  }
  XlaOp moved = s, factor = update.rate, root;
  if (update.rule == UpdateRule::kAdam) {
    const XlaOp step =
        xla::ConvertElementType(xla::Max(update.step, Number(update.step, 1)), xla::F64);
    const XlaOp first = xla::Sub(one, xla::Pow(update.beta_1, step));
    const XlaOp second = xla::Sub(one, xla::Pow(update.beta_2, step));
    const XlaOp shares[] = {round(xla::Sub(one, update.beta_1)),
                            round(xla::Sub(one, update.beta_2))};
    moved = xla::Add(rows.first, xla::Mul(xla::Sub(s, rows.first), shares[0]));
    updated.first = moved;
    updated.second = xla::Add(rows.second, xla::Mul(xla::Sub(squares, rows.second), shares[1]));
    XlaOp corrected = updated.second, wide = xla::Div(rate, first);
    if (update.flag) {
      wide = xla::Mul(wide, xla::Sqrt(second));
    } else {
      corrected = xla::Mul(corrected, round(xla::Div(one, second)));
    }
    factor = round(wide);
    root = xla::Add(xla::Sqrt(corrected), round(update.epsilon));
  } else {
    const XlaOp epsilon = round(update.epsilon);
    updated.second = xla::Add(rows.second, squares);
    root = update.flag ? xla::Sqrt(xla::Add(updated.second, epsilon))
                       : xla::Add(xla::Sqrt(updated.second), epsilon);
  }
  const XlaOp change = update.is_row_wise ? xla::Mul(moved, widen(xla::Div(factor, root)))
                                          : xla::Div(xla::Mul(moved, factor), root);
  updated.table = xla::Sub(x, change);
  return updated;
}

}  // namespace

XlaOp ScatterSubInHlo(XlaOp table, XlaOp indices, XlaOp values, XlaOp scale) {
  XlaBuilder* const builder = table.builder();
  const int64_t num_rows = ShapeOf(table).dimensions(0), count = SizeOf(indices);
  const XlaOp is_row = CheckRows(num_rows, &indices);
  const XlaOp updates = xla::Neg(xla::Mul(xla::ConvertElementType(values, TypeOf(scale)), scale));
  if (TypeOf(scale) == TypeOf(table)) return Scatter(Combiner::kAdd, table, indices, updates);
  if (num_rows == 0 || count == 0) return table;
  // Sums in float. The first of equal rows has the sum of all, which is rounded once.
  const XlaOp first = Take(FirstOfEqual(indices, num_rows), indices);
  const XlaOp sums = Scatter(Combiner::kAdd, xla::ZerosLike(updates),
                             xla::Select(is_row, first, xla::FullLike(first, count)), updates);
  const XlaOp is_first = xla::And(is_row, xla::Eq(first, xla::Iota(builder, TypeOf(first), count)));
  const XlaOp results = xla::ConvertElementType(
      xla::Add(xla::ConvertElementType(Take(table, indices), TypeOf(updates)), sums),
      TypeOf(table));
  return Scatter(Combiner::kReplace, table,
                 xla::Select(is_first, indices, xla::FullLike(indices, -1)), results);
}

UpdatedRows UpdateInHlo(const RowUpdate& update) {
  XlaBuilder* const builder = update.table.builder();
  const int64_t num_rows = ShapeOf(update.table).dimensions(0);
  const int64_t width = ShapeOf(update.table).dimensions(1);
  XlaOp indices = update.indices;
  const int64_t count = SizeOf(indices);
  const XlaOp is_row = CheckRows(num_rows, &indices);
  if (num_rows == 0 || count == 0 || width == 0) {
    return {update.table, update.first, update.second};
  }
  // The first of equal rows has the sum of all.
  const XlaOp values = xla::ConvertElementType(update.values, TypeOf(update.rate));
  const XlaOp first = Take(FirstOfEqual(indices, num_rows), indices);
  const XlaOp sums = Scatter(Combiner::kAdd, xla::ZerosLike(values),
                             xla::Select(is_row, first, xla::FullLike(first, count)), values);
  const XlaOp is_first = xla::And(is_row, xla::Eq(first, xla::Iota(builder, TypeOf(first), count)));
  const XlaOp is_some = xla::ConvertElementType(xla::Ne(sums, xla::ZerosLike(sums)), xla::F32);
  const XlaOp is_touched = xla::Gt(SumRows(is_some), xla::Zero(builder, xla::F32));
  const XlaOp at = xla::Select(xla::And(is_first, is_touched), indices, xla::FullLike(indices, -1));
  const auto take = [&](XlaOp array) {
    return array.valid() ? xla::ConvertElementType(Take(array, indices), TypeOf(sums)) : array;
  };
  const UpdatedRows rows =
      Step(update, sums, {take(update.table), take(update.first), take(update.second)});
  const auto put = [&](XlaOp array, XlaOp now) {
    if (!array.valid()) return array;
    return Scatter(Combiner::kReplace, array, at, xla::ConvertElementType(now, TypeOf(array)));
  };
  return {put(update.table, rows.table), put(update.first, rows.first),
          put(update.second, rows.second)};
}

}  // namespace tf_ti
