#include "cc/xla/bags/hlo.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cc/xla/bags/pool.h"
#include "cc/xla/concatenate.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"
#include "xla/primitive_util.h"
#include "xla/shape_util.h"

namespace tf_ti {

using xla::PrimitiveType;
using xla::Shape;
using xla::XlaBuilder;
using xla::XlaOp;

namespace {

// Stand for an id that is no row, and for padding.
constexpr int64_t kNoRow = -1, kPadding = -2;

// The type in which numbers of a type are summed, as in cc/compute/numbers.h.
PrimitiveType SumType(PrimitiveType type) {
  if (xla::primitive_util::IsSignedIntegralType(type)) return xla::S64;
  if (xla::primitive_util::IsUnsignedIntegralType(type)) return xla::U64;
  return type == xla::F16 || type == xla::BF16 ? xla::F32 : type;
}

// The type in which divisors of sums are summed: floats would stop at 2^24.
PrimitiveType DivisorType(PrimitiveType sum) {
  return sum == xla::F32 ? xla::F64 : sum == xla::C64 ? xla::C128 : sum;
}

// Zero where the divisor is zero.
XlaOp DivideNoNan(XlaOp x, XlaOp divisor) {
  return xla::Select(xla::Eq(divisor, xla::ZerosLike(divisor)), xla::ZerosLike(x),
                     xla::Div(x, divisor));
}

// Values of a matrix where a vector is true, else zeros.
XlaOp Mask(XlaOp is_kept, XlaOp values) {
  return xla::Select(Widen(is_kept, ShapeOf(values).dimensions(1)), values, xla::ZerosLike(values));
}

// The indices of each bag, as XLA's values. Vectors of positions are of type `position`.
class HloBags {
 public:
  HloBags(const BagInputs& inputs, int64_t num_rows, PrimitiveType sum);

  int64_t count() const { return inputs_.count; }
  int64_t num_indices() const { return inputs_.num_indices; }
  bool is_packed() const { return inputs_.is_packed(); }
  int64_t packed_size() const { return inputs_.packed_size(); }
  PrimitiveType position() const { return position_; }
  bool has_padding() const { return spec().padding_idx.has_value(); }
  bool has_default() const { return default_row_.valid(); }
  bool has_divisors() const {
    return spec().reduction == Reduction::kMean || spec().reduction == Reduction::kSqrtN;
  }

  XlaOp ids() const { return ids_; }                  // [num_indices]: rows, kNoRow or kPadding
  XlaOp default_row() const { return default_row_; }  // a scalar: a row, or kNoRow
  XlaOp weights() const { return weights_; }          // [num_indices], in the type of the sums
  Segments segments() const {
    return {begin_, length_, count(), num_indices(), is_packed() ? packed_size() : num_indices()};
  }

  // [num_indices]; an index in no bag has a number that is no bag's.
  XlaOp BagOf() const;
  XlaOp IsInBag(XlaOp bag) const {
    return xla::And(xla::Ge(bag, Number(bag, 0)), xla::Lt(bag, Number(bag, count())));
  }
  // [count]: the numbers of indices, without padding.
  XlaOp Counts() const;
  XlaOp IsEmpty() const { return xla::Eq(Counts(), xla::Zeros(builder_, ShapeOf(length_))); }
  // [count]: the divisors of the sums, in their type.
  XlaOp Divisors() const;
  // [count]: sums of numbers that the indices have.
  XlaOp Sum(XlaOp numbers) const;

 private:
  const BagSpec& spec() const { return *inputs_.spec; }
  XlaOp BoundsWithin(int64_t least, int64_t most) const;
  void InitBounds();
  void Check(int64_t num_rows) const;

  const BagInputs& inputs_;
  XlaBuilder* const builder_;
  const PrimitiveType sum_;
  PrimitiveType position_;
  XlaOp ids_, begin_, length_, default_row_, weights_;
};

HloBags::HloBags(const BagInputs& inputs, int64_t num_rows, PrimitiveType sum)
    : inputs_(inputs), builder_(inputs.indices.builder()), sum_(sum) {
  // Rows of small numbers take fewer instructions to look up.
  const PrimitiveType row = num_rows <= std::numeric_limits<int32_t>::max() ? xla::S32 : xla::S64;
  const auto row_of = [&](XlaOp index) {
    const XlaOp is_row = xla::And(xla::Ge(index, Number(index, 0)),
                                  xla::Lt(Wide(index), Scalar(builder_, xla::S64, num_rows)));
    const XlaOp id = xla::ConvertElementType(index, row);
    return xla::Select(is_row, id, xla::FullLike(id, kNoRow));
  };
  ids_ = row_of(inputs.indices);
  if (has_padding()) {
    const XlaOp is_padding =
        xla::Eq(Wide(inputs.indices), Scalar(builder_, xla::S64, *spec().padding_idx));
    ids_ = xla::Select(is_padding, xla::FullLike(ids_, kPadding), ids_);
  }
  if (inputs.default_index.valid()) default_row_ = row_of(inputs.default_index);
  if (inputs.weights.valid()) weights_ = xla::ConvertElementType(inputs.weights, sum);
  InitBounds();
  if (ChecksIds()) Check(num_rows);
}

// There may be more indices than int32 has numbers for.
XlaOp HloBags::BoundsWithin(int64_t least, int64_t most) const {
  const bool fits = most <= std::numeric_limits<int32_t>::max();
  const XlaOp bounds = fits ? inputs_.bounds : Wide(inputs_.bounds);
  return xla::ConvertElementType(xla::Clamp(Number(bounds, least), bounds, Number(bounds, most)),
                                 position_);
}

void HloBags::InitBounds() {
  position_ = num_indices() + count() < (int64_t{1} << 30) ? xla::S32 : xla::S64;
  if (is_packed()) {
    begin_ = xla::Mul(xla::Iota(builder_, position_, count()),
                      Scalar(builder_, position_, packed_size()));
    length_ = xla::Broadcast(Scalar(builder_, position_, packed_size()), {count()});
    return;
  }
  XlaOp ends;  // where each bag begins, and where the last one ends
  if (spec().kind == BagKind::kSegments) {
    ends =
        CountUpTo(xla::Add(BoundsWithin(-1, count()), Scalar(builder_, position_, 1)), count() + 1);
  } else {
    ends = BoundsWithin(0, num_indices());
    if (!spec().include_last_offset) {
      ends = xla::PadInDim(ends, Scalar(builder_, position_, num_indices()), 0, 0, 1);
    }
  }
  begin_ = xla::SliceInDim(ends, 0, count(), 1, 0);
  length_ = xla::Sub(xla::SliceInDim(ends, 1, count() + 1, 1, 0), begin_);
}

void HloBags::Check(int64_t num_rows) const {
  const auto require = [&](XlaOp condition, const std::string& message, XlaOp value) {
    Require(condition, OfTable(spec().number, message), {value});
  };
  const auto require_all = [&](XlaOp condition, const std::string& message,
                               const std::vector<XlaOp>& values) {
    RequireAll(condition, OfTable(spec().number, message), values);
  };
  const auto has = absl::StrCat(", but emb_table has ", num_rows, " rows");
  if (inputs_.default_index.valid()) {
    const XlaOp index = Wide(inputs_.default_index);
    require(xla::Ge(index, Scalar(builder_, xla::S64, -1)),
            "default_index is $0; it must be a row of emb_table, or -1", index);
    require(xla::Lt(index, Scalar(builder_, xla::S64, num_rows)),
            absl::StrCat("default_index is $0", has), index);
  }
  if (!is_packed() && SizeOf(inputs_.bounds) > 0) {
    const bool is_offsets = spec().kind == BagKind::kOffsets;
    const std::string name = is_offsets ? "offsets" : "segment_ids";
    const XlaOp first = xla::SliceInDim(inputs_.bounds, 0, 1, 1, 0);
    const XlaOp before = xla::ConcatInDim(
        builder_, {first, xla::SliceInDim(inputs_.bounds, 0, SizeOf(inputs_.bounds) - 1, 1, 0)}, 0);
    const XlaOp position = xla::Iota(builder_, xla::S64, SizeOf(inputs_.bounds));
    require_all(xla::Ge(inputs_.bounds, before),
                absl::StrCat(name, "[$0] is $1, but ", name, "[$2] is $3 before it"),
                {inputs_.bounds, xla::Sub(position, Scalar(builder_, xla::S64, 1)), before});
    require_all(xla::Ge(inputs_.bounds, Number(inputs_.bounds, 0)),
                absl::StrCat(name, "[$0] is $1, which is negative"), {inputs_.bounds});
    const int64_t limit = is_offsets ? num_indices() + 1 : count();
    require_all(xla::Lt(Wide(inputs_.bounds), Scalar(builder_, xla::S64, limit)),
                is_offsets
                    ? absl::StrCat("offsets[$0] is $1, but there are ", num_indices(), " indices")
                    : absl::StrCat("segment_ids[$0] is $1, but num_segments is ", count()),
                {inputs_.bounds});
  }
  const XlaOp is_right = xla::Ne(ids_, Number(ids_, kNoRow));
  if (!is_packed()) {
    require_all(is_right, absl::StrCat("indices[$0] is $1", has), {inputs_.indices});
    return;
  }
  const XlaOp position = xla::Iota(builder_, xla::S64, num_indices());
  const XlaOp size = Scalar(builder_, xla::S64, std::max<int64_t>(packed_size(), 1));
  require_all(is_right, absl::StrCat("indices[$2, $3] is $1", has),
              {inputs_.indices, xla::Div(position, size), xla::Rem(position, size)});
}

XlaOp HloBags::BagOf() const {
  if (is_packed()) {
    return xla::Div(xla::Iota(builder_, position_, num_indices()),
                    Scalar(builder_, position_, std::max<int64_t>(packed_size(), 1)));
  }
  if (spec().kind == BagKind::kSegments) {
    return BoundsWithin(-1, count());
  }
  XlaOp starts = begin_;
  if (spec().include_last_offset) {
    starts = BoundsWithin(0, num_indices());
  }
  return xla::Sub(CountUpTo(starts, num_indices()), Scalar(builder_, position_, 1));
}

XlaOp HloBags::Counts() const {
  if (!has_padding() || num_indices() == 0) return length_;
  const XlaOp is_in = xla::Ne(ids_, Number(ids_, kPadding));
  const XlaOp counts = xla::PadInDim(CumulativeSum(xla::ConvertElementType(is_in, position_)),
                                     Scalar(builder_, position_, 0), 0, 1, 0);
  return xla::Sub(Take(counts, xla::Add(begin_, length_)), Take(counts, begin_));
}

XlaOp HloBags::Divisors() const {
  const PrimitiveType wide = DivisorType(sum_);
  const bool is_root = spec().reduction == Reduction::kSqrtN;
  XlaOp total;
  if (weights_.valid()) {
    XlaOp numbers = xla::ConvertElementType(weights_, wide);
    if (is_root) numbers = xla::Mul(numbers, numbers);
    total = Sum(numbers);
  } else {
    total = xla::ConvertElementType(Counts(), wide);
  }
  return xla::ConvertElementType(is_root ? xla::Sqrt(total) : total, sum_);
}

XlaOp HloBags::Sum(XlaOp numbers) const {
  if (num_indices() == 0 || count() == 0) {
    return xla::Broadcast(xla::Zero(builder_, TypeOf(numbers)), {count()});
  }
  const bool has_padding = this->has_padding();
  const Elements elements{{numbers, ids_},
                          [=](auto operands, XlaOp at, XlaOp inside, XlaOp) {
                            if (has_padding) {
                              const XlaOp id = Take(operands[1], at);
                              inside = xla::And(inside, xla::Ne(id, Number(id, kPadding)));
                            }
                            return Mask(inside, Widen(Take(operands[0], at), 1));
                          },
                          TypeOf(numbers),
                          1};
  return xla::Reshape(PoolSegments(Combiner::kAdd, elements, segments()), {count()});
}

// [count, width], not yet divided; bags without indices have the combiner's identity.
XlaOp Pool(const HloBags& bags, const BagTable& table, Reduction reduction, PrimitiveType sum) {
  XlaBuilder* const builder = table.rows.builder();
  const Combiner combiner = reduction == Reduction::kMax ? Combiner::kMax : Combiner::kAdd;
  std::vector<XlaOp> operands = {table.rows, bags.ids()};
  const bool has_weights = bags.weights().valid();
  if (has_weights) operands.push_back(bags.weights());
  const bool has_padding = bags.has_padding();

  const auto weighted = [=](XlaOp rows, absl::Span<const XlaOp> operands, XlaOp at) {
    rows = xla::ConvertElementType(rows, sum);
    if (!has_weights) return rows;
    return xla::Mul(rows, Widen(Take(operands[2], at), ShapeOf(rows).dimensions(1)));
  };
  const Elements elements{
      operands,
      [=](absl::Span<const XlaOp> operands, XlaOp at, XlaOp inside, XlaOp) {
        const XlaOp id = Take(operands[1], at);
        const XlaOp rows = weighted(Take(operands[0], id), operands, at);
        const XlaOp is_row = xla::Ge(id, Number(id, 0));
        if (combiner == Combiner::kAdd) return Mask(xla::And(inside, is_row), rows);
        if (has_padding) inside = xla::And(inside, xla::Ne(id, Number(id, kPadding)));
        const Shape shape = ShapeOf(rows);
        const XlaOp nothing =
            xla::Broadcast(Identity(combiner, at.builder(), sum), shape.dimensions());
        return xla::Select(Widen(inside, shape.dimensions(1)), Mask(is_row, rows), nothing);
      },
      sum, table.width()};
  if (!bags.is_packed() || has_padding || bags.packed_size() == 0) {
    return PoolSegments(combiner, elements, bags.segments());
  }

  // All have one size: one gather and one reduction, which XLA makes a loop of.
  const XlaOp at = xla::Iota(builder, bags.position(), bags.num_indices());
  const XlaOp is_row = xla::Ge(bags.ids(), Number(bags.ids(), 0));
  const XlaOp rows = Mask(is_row, weighted(Take(table.rows, bags.ids()), operands, at));
  return ReduceMiddle(combiner,
                      xla::Reshape(rows, {bags.count(), bags.packed_size(), table.width()}));
}

// [count, width]: the first position of each maximum, or -1.
XlaOp FindArgmax(const HloBags& bags, const BagTable& table, XlaOp most) {
  const PrimitiveType type = TypeOf(most), position = bags.position();
  const int64_t none = bags.num_indices();
  const Elements elements{
      {table.rows, bags.ids(), most},
      [=](absl::Span<const XlaOp> operands, XlaOp at, XlaOp inside, XlaOp segment) {
        const XlaOp id = Take(operands[1], at);
        const XlaOp rows =
            Mask(xla::Ge(id, Number(id, 0)), xla::ConvertElementType(Take(operands[0], id), type));
        const XlaOp wanted = segment.valid() ? Take(operands[2], segment) : operands[2];
        const int64_t width = ShapeOf(rows).dimensions(1);
        const XlaOp is_in = xla::And(inside, xla::Ne(id, Number(id, kPadding)));
        const XlaOp is_it =
            xla::Or(xla::Eq(rows, wanted), xla::And(xla::Ne(rows, rows), xla::Ne(wanted, wanted)));
        const XlaOp found = Widen(at, width);
        return xla::Select(xla::And(Widen(is_in, width), is_it), found, xla::FullLike(found, none));
      },
      position,
      table.width()};
  const XlaOp found = PoolSegments(Combiner::kMin, elements, bags.segments());
  return xla::Select(xla::Eq(found, xla::FullLike(found, none)), xla::FullLike(found, -1), found);
}

}  // namespace

PooledBags PoolInHlo(const BagTable& table, const BagInputs& inputs, bool has_argmax) {
  XlaBuilder* const builder = table.rows.builder();
  const PrimitiveType type = TypeOf(table.rows);
  const bool is_max = inputs.spec->reduction == Reduction::kMax;
  // Maxima of integers need no more bits than these.
  const bool is_exact = is_max && xla::primitive_util::IsIntegralType(type);
  const PrimitiveType sum = is_exact ? type : SumType(type);
  const HloBags bags(inputs, table.num_rows(), sum);
  const int64_t width = table.width();
  XlaOp output = xla::Broadcast(xla::Zero(builder, type), {bags.count(), width});
  XlaOp argmax = xla::Broadcast(Scalar(builder, bags.position(), -1), {bags.count(), width});
  if (bags.count() > 0 && width > 0 && table.num_rows() > 0) {
    XlaOp pooled = xla::ConvertElementType(output, sum);
    if (bags.num_indices() > 0) {
      pooled = Pool(bags, table, inputs.spec->reduction, sum);
      if (has_argmax) argmax = FindArgmax(bags, table, pooled);
    }
    if (bags.has_divisors()) pooled = DivideNoNan(pooled, Widen(bags.Divisors(), width));
    pooled = xla::ConvertElementType(pooled, type);
    if (bags.has_default() || is_max) {
      XlaOp filling = output;
      if (bags.has_default()) {
        const XlaOp row = xla::Reshape(bags.default_row(), {1});
        filling = Mask(xla::Ge(row, Number(row, 0)), Take(table.rows, row));
        filling = xla::BroadcastInDim(xla::Reshape(filling, {width}), {bags.count(), width}, {1});
      }
      pooled = xla::Select(Widen(bags.IsEmpty(), width), filling, pooled);
    }
    output = pooled;
  }
  return {output, xla::ConvertElementType(argmax, TypeOf(inputs.indices))};
}

// XLA does not know how many rows have a gradient. If the table is not larger than all rows that
// the bags take from it, the gradient has all of its rows. Otherwise it has one for each index, and
// one for each bag that may take the default row. The first of equal rows then has the sum, and the
// others have zeros, as optimizers may square the values.
RowGradients TableGradientInHlo(XlaOp grad, const BagInputs& inputs, XlaOp argmax,
                                int64_t num_rows) {
  XlaBuilder* const builder = grad.builder();
  const PrimitiveType type = TypeOf(grad), sum = SumType(type);
  const HloBags bags(inputs, num_rows, sum);
  const bool is_max = argmax.valid();
  const int64_t width = ShapeOf(grad).dimensions(1);
  const int64_t count = bags.num_indices() + (bags.has_default() ? bags.count() : 0);
  const auto finish = [&](XlaOp rows, XlaOp values) -> RowGradients {
    return {xla::ConvertElementType(rows, TypeOf(inputs.indices)),
            xla::ConvertElementType(values, type)};
  };
  const bool has_all_rows = num_rows <= count;
  const XlaOp zeros =
      xla::Broadcast(xla::Zero(builder, sum), {has_all_rows ? num_rows : count, width});
  if (bags.count() == 0) {  // there is no gradient to take
    const XlaOp none = xla::Broadcast(Scalar(builder, xla::S64, 0), {count});
    return finish(has_all_rows ? xla::Iota(builder, xla::S64, num_rows) : none, zeros);
  }

  // An entry takes a bag's gradient to a row.
  const XlaOp bag = bags.BagOf();
  XlaOp rows = bags.ids();
  XlaOp is_taken = xla::And(bags.IsInBag(bag), xla::Ge(rows, Number(rows, 0)));
  XlaOp entries;
  if (bags.is_packed()) {
    entries =
        xla::Reshape(xla::BroadcastInDim(grad, {bags.count(), bags.packed_size(), width}, {0, 2}),
                     {bags.num_indices(), width});
  } else {
    entries = Take(grad, bag);
  }
  entries = xla::ConvertElementType(entries, sum);
  const auto has_maximum = [&](XlaOp argmax, XlaOp position) {
    return xla::Eq(argmax, xla::ConvertElementType(position, TypeOf(argmax)));
  };
  if (is_max) {
    const XlaOp position = Widen(xla::Iota(builder, xla::S64, bags.num_indices()), width);
    entries =
        xla::Select(has_maximum(Take(argmax, bag), position), entries, xla::ZerosLike(entries));
  }
  if (bags.weights().valid() || bags.has_divisors()) {
    XlaOp weights = bags.weights();
    if (!weights.valid()) {
      weights = xla::Broadcast(xla::One(builder, sum), {bags.num_indices()});
    }
    if (bags.has_divisors()) weights = DivideNoNan(weights, Take(bags.Divisors(), bag));
    entries = xla::Mul(entries, Widen(weights, width));
  }
  if (bags.has_default()) {
    const XlaOp row = bags.default_row();
    XlaOp of_bags = xla::ConvertElementType(grad, sum);
    if (is_max) {
      const XlaOp none = xla::Broadcast(Scalar(builder, xla::S64, -1), {bags.count(), width});
      of_bags = xla::Select(has_maximum(argmax, none), of_bags, xla::ZerosLike(of_bags));
    }
    const XlaOp is_row = xla::Broadcast(xla::Ge(row, Number(row, 0)), {bags.count()});
    entries = Concatenate({entries, of_bags}, 0);
    rows = Concatenate({rows, xla::Broadcast(row, {bags.count()})}, 0);
    is_taken = Concatenate({is_taken, xla::And(bags.IsEmpty(), is_row)}, 0);
  }

  if (has_all_rows) {
    const XlaOp none = xla::FullLike(rows, num_rows);
    return finish(xla::Iota(builder, xla::S64, num_rows),
                  Scatter(Combiner::kAdd, zeros, xla::Select(is_taken, rows, none), entries));
  }
  rows = xla::Max(rows, Number(rows, 0));
  const XlaOp first = Take(FirstOfEqual(rows, num_rows), rows);
  const XlaOp is_first = xla::Eq(first, xla::Iota(builder, TypeOf(first), count));
  const XlaOp none = xla::FullLike(first, count);
  const XlaOp adds = xla::And(is_taken, xla::Not(is_first));
  return finish(rows, Scatter(Combiner::kAdd, Mask(xla::And(is_taken, is_first), entries),
                              xla::Select(adds, first, none), entries));
}

// See WeightsGradient in cc/compute/bags/gradients.cc.
XlaOp WeightsGradientInHlo(const BagTable& table, const BagInputs& inputs, XlaOp grad) {
  XlaBuilder* const builder = grad.builder();
  const PrimitiveType sum = SumType(TypeOf(grad));
  const Reduction reduction = inputs.spec->reduction;
  const HloBags bags(inputs, table.num_rows(), sum);
  XlaOp output = xla::Broadcast(xla::Zero(builder, sum), {bags.num_indices()});
  if (bags.num_indices() > 0 && bags.count() > 0 && table.num_rows() > 0) {
    const XlaOp zeros = output;
    const XlaOp bag = bags.BagOf(), id = bags.ids();
    const XlaOp products = xla::Mul(xla::ConvertElementType(Take(table.rows, id), sum),
                                    xla::ConvertElementType(Take(grad, bag), sum));
    const XlaOp is_row = xla::Ge(id, Number(id, 0));
    output = xla::Select(is_row, SumRows(products), zeros);
    if (bags.has_divisors()) {
      const XlaOp divisors = bags.Divisors();
      XlaOp mean = DivideNoNan(bags.Sum(xla::Mul(bags.weights(), output)), divisors);
      if (reduction == Reduction::kSqrtN) mean = DivideNoNan(mean, divisors);
      mean = Take(mean, bag);
      if (reduction == Reduction::kSqrtN) mean = xla::Mul(bags.weights(), mean);
      output = DivideNoNan(xla::Sub(output, mean), Take(divisors, bag));
    }
    const XlaOp is_in = xla::And(bags.IsInBag(bag), xla::Ne(id, Number(id, kPadding)));
    output = xla::Select(is_in, output, zeros);
  }
  return xla::ConvertElementType(output, TypeOf(inputs.weights));
}

PartitionedBags PartitionInHlo(const BagInputs& inputs, int64_t num_rows, int64_t num_shards,
                               bool is_mod, PrimitiveType local) {
  XlaBuilder* const builder = inputs.indices.builder();
  const HloBags bags(inputs, num_rows, xla::F32);
  const bool has_default = bags.has_default();
  XlaOp ids = Wide(bags.ids());
  // The ids behind the last bag would be its own, or the default row's.
  const XlaOp bag = bags.BagOf();
  ids = xla::Select(bags.IsInBag(bag), ids, xla::FullLike(ids, kNoRow));
  XlaOp offsets = bags.segments().begin;
  int64_t num_bags = bags.count(), num_ids = bags.num_indices();
  if (has_default) {
    ids = xla::ConcatInDim(builder, {ids, xla::Reshape(Wide(bags.default_row()), {1})}, 0);
    offsets = xla::PadInDim(offsets, Scalar(builder, bags.position(), num_ids), 0, 0, 1);
    ++num_bags;
    ++num_ids;
  }
  PartitionedBags result;
  const auto number = [&](int64_t value) { return Scalar(builder, xla::S64, value); };
  const XlaOp is_row = xla::Ge(ids, number(0));
  int64_t begin = 0;
  for (int64_t k = 0; k < num_shards; ++k) {
    XlaOp row, is_mine;
    if (is_mod) {
      row = xla::Div(ids, number(num_shards));
      is_mine = xla::Eq(xla::Rem(ids, number(num_shards)), number(k));
    } else {
      const int64_t end = begin + num_rows / num_shards + (k < num_rows % num_shards);
      row = xla::Sub(ids, number(begin));
      is_mine = xla::And(xla::Ge(ids, number(begin)), xla::Lt(ids, number(end)));
      begin = end;
    }
    const XlaOp mine = xla::Select(xla::And(is_row, is_mine), row, xla::FullLike(row, -1));
    result.ids.push_back(xla::ConvertElementType(mine, local));
  }
  result.offsets = xla::ConvertElementType(offsets, local);
  result.numbers = xla::Iota(builder, xla::S64, num_bags);
  result.positions = xla::Iota(builder, xla::S64, num_ids);
  result.is_empty = bags.IsEmpty();
  return result;
}

XlaOp FirstOfEqual(XlaOp rows, int64_t num_rows) {
  const int64_t size = SizeOf(rows);
  const PrimitiveType type = size < std::numeric_limits<int32_t>::max() ? xla::S32 : xla::S64;
  const XlaOp position = xla::Iota(rows.builder(), type, size);
  const XlaOp none = xla::Broadcast(xla::MaxValue(rows.builder(), type), {num_rows});
  return Scatter(Combiner::kMin, none, rows, position);
}

void RequireAll(XlaOp holds, const std::string& message, const std::vector<XlaOp>& values) {
  const int64_t size = SizeOf(holds);
  if (size == 0) return;
  XlaBuilder* const builder = holds.builder();
  const XlaOp none = Scalar(builder, xla::S64, size);
  const XlaOp positions =
      xla::Select(holds, xla::Broadcast(none, {size}), xla::Iota(builder, xla::S64, size));
  const XlaOp first = Reduce(Combiner::kMin, positions);
  std::vector<XlaOp> arguments = {first};
  for (XlaOp value : values)
    arguments.push_back(Wide(xla::Reshape(Take(value, xla::Reshape(first, {1})), {})));
  Require(xla::Eq(first, none), message, arguments);
}

}  // namespace tf_ti
