// The pooled embedding look-ups and their gradients, for XLA.
//
// An id that is no row of the table reads as a row of zeros, and its gradient goes nowhere. With
// TF_TI_CHECK_IDS=1 in the environment when the program is compiled it is an error instead, as are
// bounds of bags that make no sense; without, these give bags that mean nothing.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/kernels/bag_spec.h"
#include "cc/status.h"
#include "cc/xla/embedding_bag_pool.h"
#include "cc/xla/register.h"
#include "cc/xla/require.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/lib/math.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/primitive_util.h"
#include "xla/shape_util.h"

namespace tf_ti {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernelContext;
using xla::PrimitiveType;
using xla::Shape;
using xla::XlaBuilder;
using xla::XlaOp;

// What stands for an id that is no row, and for padding.
constexpr int64_t kNoRow = -1, kPadding = -2;

bool ChecksIds() {
  const char* const value = std::getenv("TF_TI_CHECK_IDS");
  return value != nullptr && std::string_view(value) == "1";
}

PrimitiveType TypeOf(XlaOp op) { return ShapeOf(op).element_type(); }
int64_t SizeOf(XlaOp vector) { return ShapeOf(vector).dimensions(0); }
XlaOp Wide(XlaOp op) { return xla::ConvertElementType(op, xla::S64); }
XlaOp Number(XlaOp like, int64_t value) { return Scalar(like.builder(), TypeOf(like), value); }

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

// Zero where the divisor is.
XlaOp DivideNoNan(XlaOp x, XlaOp divisor) {
  return xla::Select(xla::Eq(divisor, xla::ZerosLike(divisor)), xla::ZerosLike(x),
                     xla::Div(x, divisor));
}

// Values of a matrix where a vector is true, else zeros.
XlaOp Mask(XlaOp is_kept, XlaOp values) {
  return xla::Select(Widen(is_kept, ShapeOf(values).dimensions(1)), values, xla::ZerosLike(values));
}

// [m, ...] as [m, width].
XlaOp Flatten(XlaOp rows) {
  const Shape shape = ShapeOf(rows);
  int64_t width = 1;
  for (size_t d = 1; d < shape.dimensions().size(); ++d) width *= shape.dimensions(d);
  return xla::Reshape(rows, {shape.dimensions(0), width});
}

// [m, width] as [m, ...], as `like` has it.
XlaOp Unflatten(XlaOp rows, const TensorShape& like) {
  std::vector<int64_t> dims = {SizeOf(rows)};
  for (int d = 1; d < like.dims(); ++d) dims.push_back(like.dim_size(d));
  return xla::Reshape(rows, dims);
}

int64_t WidthOf(const TensorShape& shape) {
  int64_t width = 1;
  for (int d = 1; d < shape.dims(); ++d) width *= shape.dim_size(d);
  return width;
}

absl::Status CheckRank(const char* name, const TensorShape& shape, int rank) {
  if (shape.dims() == rank) return absl::OkStatus();
  return InvalidArgument(name, " must have rank ", rank, ", got shape ", shape.DebugString());
}

// The shape of an input, all of which must be known.
absl::Status GetShape(XlaOpKernelContext* ctx, int input, const char* name, TensorShape* shape) {
  TF_ASSIGN_OR_RETURN(const Shape known, ctx->InputXlaShape(input));
  if (known.is_dynamic()) {
    return Unimplemented(name, ": XLA must know its shape, which is only bounded here, by ",
                         xla::ShapeUtil::HumanString(known));
  }
  return shape->BuildTensorShapeBase(known.dimensions(), shape);
}

absl::Status GetConstant(XlaOpKernelContext* ctx, int input, const char* name, int64_t* value) {
  if (ctx->ConstantInputAsIntScalar(input, value).ok()) return absl::OkStatus();
  return Unimplemented(name, ": XLA must know its value when it compiles, as it is a size; it ",
                       "may not depend on values that only the running program has");
}

// Fails where a condition on some position of a vector does not hold. In the message, $0 is the
// first such position, and $1, $2, ... what the vectors of `values` have there.
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

// The table: an input, or a variable that it is the handle of.
struct Table {
  TensorShape shape;
  XlaOp rows;  // [num_rows, width]

  int64_t num_rows() const { return shape.dim_size(0); }
  int64_t width() const { return WidthOf(shape); }

  absl::Status Init(XlaOpKernelContext* ctx, DataType dtype) {
    if (ctx->input_type(0) == tensorflow::DT_RESOURCE) {
      TF_RETURN_IF_ERROR(ctx->ReadVariableInput(0, dtype, &shape, &rows));
    } else {
      TF_RETURN_IF_ERROR(GetShape(ctx, 0, "emb_table", &shape));
      rows = ctx->Input(0);
    }
    if (shape.dims() == 0) {
      return InvalidArgument("emb_table must have rank 1 or more, got a scalar");
    }
    rows = Flatten(rows);
    return absl::OkStatus();
  }
};

// Which indices make up which bag. Vectors of positions are of type `position`.
class Bags {
 public:
  // The table is [num_rows, width]. `count` is the number of bags, or negative where only the
  // inputs tell it.
  absl::Status Init(XlaOpKernelContext* ctx, const BagSpec& spec, int64_t num_rows, int64_t width,
                    int64_t count, PrimitiveType sum);

  int64_t count() const { return count_; }
  int64_t num_indices() const { return num_indices_; }
  bool is_packed() const { return spec_->kind == BagKind::kPacked; }
  int64_t packed_size() const { return packed_size_; }
  PrimitiveType position() const { return position_; }
  const TensorShape& shape() const { return shape_; }
  bool has_padding() const { return spec_->padding_idx.has_value(); }
  bool has_default() const { return default_row_.valid(); }
  bool has_divisors() const {
    return spec_->reduction == Reduction::kMean || spec_->reduction == Reduction::kSqrtN;
  }

  XlaOp ids() const { return ids_; }                  // [num_indices]: rows, kNoRow or kPadding
  XlaOp default_row() const { return default_row_; }  // a scalar: a row, or kNoRow
  XlaOp weights() const { return weights_; }          // [num_indices], in the type of the sums
  Segments segments() const {
    return {begin_, length_, count_, num_indices_, is_packed() ? packed_size_ : num_indices_};
  }

  // [num_indices]; what lies in no bag has a number that is no bag's.
  XlaOp BagOf() const;
  XlaOp IsInBag(XlaOp bag) const {
    return xla::And(xla::Ge(bag, Number(bag, 0)), xla::Lt(bag, Number(bag, count_)));
  }
  // [count]: how many indices there are, without padding.
  XlaOp Counts() const;
  XlaOp IsEmpty() const { return xla::Eq(Counts(), xla::Zeros(builder_, ShapeOf(length_))); }
  // [count]: what the sums are divided by, in their type.
  XlaOp Divisors() const;
  // [count]: sums of numbers that the indices have.
  XlaOp Sum(XlaOp numbers) const;

 private:
  absl::Status InitBounds(XlaOpKernelContext* ctx, int64_t width, int64_t count);
  void Check(int64_t num_rows) const;

  const BagSpec* spec_;
  XlaBuilder* builder_;
  TensorShape shape_;  // of the indices
  int64_t num_indices_ = 0;
  int64_t count_ = 0;
  int64_t packed_size_ = 0;
  PrimitiveType position_;
  PrimitiveType sum_;
  XlaOp indices_, ids_, bounds_, begin_, length_, default_index_, default_row_, weights_;
};

absl::Status Bags::Init(XlaOpKernelContext* ctx, const BagSpec& spec, int64_t num_rows,
                        int64_t width, int64_t count, PrimitiveType sum) {
  spec_ = &spec;
  builder_ = ctx->builder();
  sum_ = sum;
  TF_RETURN_IF_ERROR(GetShape(ctx, spec.indices, "indices", &shape_));
  TF_RETURN_IF_ERROR(CheckRank("indices", shape_, is_packed() ? 2 : 1));
  num_indices_ = shape_.num_elements();
  indices_ = xla::Reshape(ctx->Input(spec.indices), {num_indices_});
  TF_RETURN_IF_ERROR(InitBounds(ctx, width, count));
  if (count >= 0 && count != count_) {
    return InvalidArgument("grad has ", count, " rows, but there are ", count_, " bags");
  }

  // Rows of small numbers take fewer instructions to look up.
  const PrimitiveType row = num_rows <= std::numeric_limits<int32_t>::max() ? xla::S32 : xla::S64;
  const auto row_of = [&](XlaOp index) {
    const XlaOp is_row = xla::And(xla::Ge(index, Number(index, 0)),
                                  xla::Lt(Wide(index), Scalar(builder_, xla::S64, num_rows)));
    const XlaOp id = xla::ConvertElementType(index, row);
    return xla::Select(is_row, id, xla::FullLike(id, kNoRow));
  };
  ids_ = row_of(indices_);
  if (has_padding()) {
    const XlaOp is_padding =
        xla::Eq(Wide(indices_), xla::ConstantR0<int64_t>(builder_, *spec.padding_idx));
    ids_ = xla::Select(is_padding, xla::FullLike(ids_, kPadding), ids_);
  }
  if (spec.default_index >= 0) {
    TensorShape shape;
    TF_RETURN_IF_ERROR(GetShape(ctx, spec.default_index, "default_index", &shape));
    TF_RETURN_IF_ERROR(CheckRank("default_index", shape, 0));
    default_index_ = ctx->Input(spec.default_index);
    default_row_ = row_of(default_index_);
  }
  if (spec.has_weights()) {
    TensorShape shape;
    TF_RETURN_IF_ERROR(GetShape(ctx, spec.weights, "per_sample_weights", &shape));
    if (shape != shape_) {
      return InvalidArgument("per_sample_weights must have the shape of indices, ",
                             shape_.DebugString(), ", got ", shape.DebugString());
    }
    weights_ = xla::ConvertElementType(xla::Reshape(ctx->Input(spec.weights), {num_indices_}), sum);
  }
  if (ChecksIds()) Check(num_rows);
  return absl::OkStatus();
}

absl::Status Bags::InitBounds(XlaOpKernelContext* ctx, int64_t width, int64_t count) {
  TensorShape shape;
  if (is_packed()) {
    count_ = shape_.dim_size(0);
    packed_size_ = shape_.dim_size(1);
  } else if (spec_->kind == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(GetShape(ctx, spec_->bounds, "offsets", &shape));
    TF_RETURN_IF_ERROR(CheckRank("offsets", shape, 1));
    count_ = shape.num_elements() - spec_->include_last_offset;
    if (count_ < 0) return InvalidArgument("offsets has no last offset: it is empty");
  } else {
    TF_RETURN_IF_ERROR(GetShape(ctx, spec_->bounds, "segment_ids", &shape));
    if (shape != shape_) {
      return InvalidArgument("segment_ids must have the shape of indices, ", shape_.DebugString(),
                             ", got ", shape.DebugString());
    }
    count_ = count;
    if (spec_->num_segments >= 0) {
      TF_RETURN_IF_ERROR(GetShape(ctx, spec_->num_segments, "num_segments", &shape));
      TF_RETURN_IF_ERROR(CheckRank("num_segments", shape, 0));
      TF_RETURN_IF_ERROR(GetConstant(ctx, spec_->num_segments, "num_segments", &count_));
    }
    if (count_ < 0) return InvalidArgument("num_segments must not be negative, got ", count_);
    if (IsTooLarge(xla::ShapeUtil::MakeShape(sum_, {width}), count_)) {
      return Unimplemented("num_segments is ", count_, ": so many rows of ", width,
                           " are too many for XLA");
    }
  }
  position_ = num_indices_ + count_ < (int64_t{1} << 30) ? xla::S32 : xla::S64;
  if (is_packed()) {
    begin_ =
        xla::Mul(xla::Iota(builder_, position_, count_), Scalar(builder_, position_, packed_size_));
    length_ = xla::Broadcast(Scalar(builder_, position_, packed_size_), {count_});
    return absl::OkStatus();
  }
  bounds_ = ctx->Input(spec_->bounds);
  const bool is_offsets = spec_->kind == BagKind::kOffsets;
  const auto limited = [&](int64_t least, int64_t most) {
    return xla::ConvertElementType(
        xla::Clamp(Number(bounds_, least), bounds_, Number(bounds_, most)), position_);
  };
  XlaOp ends;  // where each bag begins, and the last one ends
  if (!is_offsets) {
    ends = CountUpTo(xla::Add(limited(-1, count_), Scalar(builder_, position_, 1)), count_ + 1);
  } else {
    ends = limited(0, num_indices_);
    if (!spec_->include_last_offset) {
      ends = xla::PadInDim(ends, Scalar(builder_, position_, num_indices_), 0, 0, 1);
    }
  }
  begin_ = xla::SliceInDim(ends, 0, count_, 1, 0);
  length_ = xla::Sub(xla::SliceInDim(ends, 1, count_ + 1, 1, 0), begin_);
  return absl::OkStatus();
}

void Bags::Check(int64_t num_rows) const {
  const auto has = absl::StrCat(", but emb_table has ", num_rows, " rows");
  if (default_index_.valid()) {
    const XlaOp index = Wide(default_index_);
    Require(xla::Ge(index, Scalar(builder_, xla::S64, -1)),
            "default_index is $0; it must be a row of emb_table, or -1", {index});
    Require(xla::Lt(index, Scalar(builder_, xla::S64, num_rows)),
            absl::StrCat("default_index is $0", has), {index});
  }
  if (!is_packed() && SizeOf(bounds_) > 0) {
    const bool is_offsets = spec_->kind == BagKind::kOffsets;
    const std::string name = is_offsets ? "offsets" : "segment_ids";
    const XlaOp first = xla::SliceInDim(bounds_, 0, 1, 1, 0);
    const XlaOp before = xla::ConcatInDim(
        builder_, {first, xla::SliceInDim(bounds_, 0, SizeOf(bounds_) - 1, 1, 0)}, 0);
    const XlaOp position = xla::Iota(builder_, xla::S64, SizeOf(bounds_));
    RequireAll(xla::Ge(bounds_, before),
               absl::StrCat(name, "[$0] is $1, but ", name, "[$2] is $3 before it"),
               {bounds_, xla::Sub(position, Scalar(builder_, xla::S64, 1)), before});
    RequireAll(xla::Ge(bounds_, Number(bounds_, 0)),
               absl::StrCat(name, "[$0] is $1, which is negative"), {bounds_});
    const int64_t limit = is_offsets ? num_indices_ + 1 : count_;
    RequireAll(xla::Lt(Wide(bounds_), Scalar(builder_, xla::S64, limit)),
               is_offsets
                   ? absl::StrCat("offsets[$0] is $1, but there are ", num_indices_, " indices")
                   : absl::StrCat("segment_ids[$0] is $1, but num_segments is ", count_),
               {bounds_});
  }
  const XlaOp is_right = xla::Ne(ids_, Number(ids_, kNoRow));
  if (!is_packed()) {
    RequireAll(is_right, absl::StrCat("indices[$0] is $1", has), {indices_});
    return;
  }
  const XlaOp position = xla::Iota(builder_, xla::S64, num_indices_);
  const XlaOp size = Scalar(builder_, xla::S64, std::max<int64_t>(packed_size_, 1));
  RequireAll(is_right, absl::StrCat("indices[$2, $3] is $1", has),
             {indices_, xla::Div(position, size), xla::Rem(position, size)});
}

XlaOp Bags::BagOf() const {
  if (is_packed()) {
    return xla::Div(xla::Iota(builder_, position_, num_indices_),
                    Scalar(builder_, position_, std::max<int64_t>(packed_size_, 1)));
  }
  if (spec_->kind == BagKind::kSegments) {
    return xla::ConvertElementType(
        xla::Clamp(Number(bounds_, -1), bounds_, Number(bounds_, count_)), position_);
  }
  XlaOp starts = begin_;
  if (spec_->include_last_offset) {
    starts = xla::ConvertElementType(
        xla::Clamp(Number(bounds_, 0), bounds_, Number(bounds_, num_indices_)), position_);
  }
  return xla::Sub(CountUpTo(starts, num_indices_), Scalar(builder_, position_, 1));
}

XlaOp Bags::Counts() const {
  if (!has_padding() || num_indices_ == 0) return length_;
  const XlaOp is_in = xla::Ne(ids_, Number(ids_, kPadding));
  const XlaOp counts = xla::PadInDim(CumulativeSum(xla::ConvertElementType(is_in, position_)),
                                     Scalar(builder_, position_, 0), 0, 1, 0);
  return xla::Sub(Take(counts, xla::Add(begin_, length_)), Take(counts, begin_));
}

XlaOp Bags::Divisors() const {
  const PrimitiveType wide = DivisorType(sum_);
  const bool is_root = spec_->reduction == Reduction::kSqrtN;
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

XlaOp Bags::Sum(XlaOp numbers) const {
  if (num_indices_ == 0 || count_ == 0) {
    return xla::Broadcast(xla::Zero(builder_, TypeOf(numbers)), {count_});
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
  return xla::Reshape(PoolSegments(Combiner::kAdd, elements, segments()), {count_});
}

class EmbeddingBagOp : public tensorflow::XlaOpKernel {
 public:
  EmbeddingBagOp(OpKernelConstruction* ctx, BagKind kind) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx, kind, 1));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  void Compile(XlaOpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompile(ctx)); }

 private:
  absl::Status TryCompile(XlaOpKernelContext* ctx) const;
  XlaOp Pool(const Bags& bags, const Table& table, PrimitiveType sum) const;
  XlaOp FindArgmax(const Bags& bags, const Table& table, XlaOp most) const;

  bool is_max() const { return spec_.reduction == Reduction::kMax; }

  BagSpec spec_;
  DataType dtype_;
};

// [count, width], not yet divided; bags without indices have what the combiner ignores.
XlaOp EmbeddingBagOp::Pool(const Bags& bags, const Table& table, PrimitiveType sum) const {
  XlaBuilder* const builder = table.rows.builder();
  const Combiner combiner = is_max() ? Combiner::kMax : Combiner::kAdd;
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
XlaOp EmbeddingBagOp::FindArgmax(const Bags& bags, const Table& table, XlaOp most) const {
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

absl::Status EmbeddingBagOp::TryCompile(XlaOpKernelContext* ctx) const {
  XlaBuilder* const builder = ctx->builder();
  Table table;
  TF_RETURN_IF_ERROR(table.Init(ctx, dtype_));
  const PrimitiveType type = TypeOf(table.rows);
  // Maxima of integers need no more bits than these.
  const bool is_exact = is_max() && xla::primitive_util::IsIntegralType(type);
  const PrimitiveType sum = is_exact ? type : SumType(type);
  Bags bags;
  TF_RETURN_IF_ERROR(bags.Init(ctx, spec_, table.num_rows(), table.width(), -1, sum));
  const int64_t width = table.width();
  const bool has_elements = bags.count() > 0 && width > 0 && table.num_rows() > 0;
  const bool has_argmax = ctx->num_outputs() > 1;
  const DataType index = ctx->input_type(spec_.indices);
  if (has_argmax && bags.num_indices() > std::numeric_limits<int32_t>::max() &&
      index == tensorflow::DT_INT32) {
    return InvalidArgument("there are ", bags.num_indices(), " indices: they must be int64");
  }
  XlaOp output = xla::Broadcast(xla::Zero(builder, type), {bags.count(), width});
  XlaOp argmax = xla::Broadcast(Scalar(builder, bags.position(), -1), {bags.count(), width});
  if (has_elements) {
    XlaOp pooled = xla::ConvertElementType(output, sum);
    if (bags.num_indices() > 0) {
      pooled = Pool(bags, table, sum);
      if (has_argmax) argmax = FindArgmax(bags, table, pooled);
    }
    if (bags.has_divisors()) pooled = DivideNoNan(pooled, Widen(bags.Divisors(), width));
    pooled = xla::ConvertElementType(pooled, type);
    if (bags.has_default() || is_max()) {
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
  ctx->SetOutput(0, Unflatten(output, table.shape));
  if (has_argmax) {
    const PrimitiveType type = index == tensorflow::DT_INT32 ? xla::S32 : xla::S64;
    ctx->SetOutput(1, Unflatten(xla::ConvertElementType(argmax, type), table.shape));
  }
  return builder->first_error();
}

template <BagKind kind>
class EmbeddingBagKindOp : public EmbeddingBagOp {
 public:
  explicit EmbeddingBagKindOp(OpKernelConstruction* ctx) : EmbeddingBagOp(ctx, kind) {}
};

// For each of some rows the position of the first that is the same.
XlaOp FirstOfEqual(XlaOp rows, int64_t num_rows) {
  const XlaOp position = xla::Iota(rows.builder(), xla::S32, SizeOf(rows));
  const XlaOp none = xla::Broadcast(xla::MaxValue(rows.builder(), xla::S32), {num_rows});
  return Scatter(Combiner::kMin, none, rows, position);
}

// XLA does not know how many rows have a gradient. If the table is not larger than what the bags
// take from it, all of its rows are given; else one for each index, and one for each bag that may
// take the default row. Of equal rows the first then has the sum and the others have zeros, as
// optimizers may square what they are given.
class EmbeddingBagGradOp : public tensorflow::XlaOpKernel {
 public:
  explicit EmbeddingBagGradOp(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx, std::nullopt, 2));
    int num_argmax;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_argmax", &num_argmax));
    OP_REQUIRES(ctx, num_argmax == (spec_.reduction == Reduction::kMax),
                InvalidArgument("reduction max needs argmax, and no other does"));
  }

  void Compile(XlaOpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompile(ctx)); }

 private:
  absl::Status TryCompile(XlaOpKernelContext* ctx) const;

  BagSpec spec_;
};

absl::Status EmbeddingBagGradOp::TryCompile(XlaOpKernelContext* ctx) const {
  XlaBuilder* const builder = ctx->builder();
  TensorShape shape;
  TF_RETURN_IF_ERROR(GetShape(ctx, 0, "num_emb", &shape));
  if (shape.dims() != 0) return InvalidArgument("num_emb must be a scalar");
  int64_t num_rows;
  TF_RETURN_IF_ERROR(GetConstant(ctx, 0, "num_emb", &num_rows));
  TF_RETURN_IF_ERROR(GetShape(ctx, 1, "grad", &shape));
  if (shape.dims() == 0) return InvalidArgument("grad must have rank 1 or more, got a scalar");
  const XlaOp grad = Flatten(ctx->Input(1));
  const PrimitiveType type = TypeOf(grad), sum = SumType(type);
  Bags bags;
  TF_RETURN_IF_ERROR(bags.Init(ctx, spec_, num_rows, WidthOf(shape), shape.dim_size(0), sum));
  const bool is_max = spec_.reduction == Reduction::kMax;
  XlaOp argmax;
  if (is_max) {
    TensorShape found;
    TF_RETURN_IF_ERROR(GetShape(ctx, spec_.end, "argmax", &found));
    if (found != shape) {
      return InvalidArgument("argmax must have the shape of grad, ", shape.DebugString(), ", got ",
                             found.DebugString());
    }
    argmax = Flatten(ctx->Input(spec_.end));
  }
  const int64_t width = WidthOf(shape);
  const int64_t count = bags.num_indices() + (bags.has_default() ? bags.count() : 0);
  const auto finish = [&](XlaOp rows, XlaOp values) {
    const PrimitiveType index = ctx->input_xla_type(spec_.indices);
    ctx->SetOutput(0, xla::ConvertElementType(rows, index));
    ctx->SetOutput(1, Unflatten(xla::ConvertElementType(values, type), shape));
    return builder->first_error();
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
    entries = xla::ConcatInDim(builder, {entries, of_bags}, 0);
    rows = xla::ConcatInDim(builder, {rows, xla::Broadcast(row, {bags.count()})}, 0);
    is_taken = xla::ConcatInDim(builder, {is_taken, xla::And(bags.IsEmpty(), is_row)}, 0);
  }

  if (has_all_rows) {
    const XlaOp none = xla::FullLike(rows, num_rows);
    return finish(xla::Iota(builder, xla::S64, num_rows),
                  Scatter(Combiner::kAdd, zeros, xla::Select(is_taken, rows, none), entries));
  }
  rows = xla::Max(rows, Number(rows, 0));
  const XlaOp first = Take(FirstOfEqual(rows, num_rows), rows);
  const XlaOp is_first = xla::Eq(first, xla::Iota(builder, xla::S32, count));
  const XlaOp none = xla::FullLike(first, count);
  const XlaOp adds = xla::And(is_taken, xla::Not(is_first));
  return finish(rows, Scatter(Combiner::kAdd, Mask(xla::And(is_taken, is_first), entries),
                              xla::Select(adds, first, none), entries));
}

class EmbeddingBagSlotsOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompile(ctx)); }

 private:
  absl::Status TryCompile(XlaOpKernelContext* ctx) const {
    XlaBuilder* const builder = ctx->builder();
    int64_t num_rows;
    TF_RETURN_IF_ERROR(GetConstant(ctx, 0, "num_emb", &num_rows));
    TensorShape rows_shape, shape;
    TF_RETURN_IF_ERROR(GetShape(ctx, 1, "rows", &rows_shape));
    TF_RETURN_IF_ERROR(CheckRank("rows", rows_shape, 1));
    TF_RETURN_IF_ERROR(GetShape(ctx, 2, "indices", &shape));
    const XlaOp rows = ctx->Input(1);
    const XlaOp indices = xla::Reshape(ctx->Input(2), {shape.num_elements()});
    XlaOp slots = xla::FullLike(indices, -1);
    if (num_rows > 0) {
      const XlaOp first = Take(FirstOfEqual(rows, num_rows), indices);
      const XlaOp is_there =
          xla::And(xla::And(xla::Ge(indices, Number(indices, 0)),
                            xla::Lt(Wide(indices), Scalar(builder, xla::S64, num_rows))),
                   xla::Lt(first, Number(first, rows_shape.num_elements())));
      slots = xla::Select(is_there, xla::ConvertElementType(first, TypeOf(indices)), slots);
    }
    ctx->SetOutput(0, xla::Reshape(slots, shape.dim_sizes()));
    return builder->first_error();
  }
};

class EmbeddingBagWeightsGradOp : public tensorflow::XlaOpKernel {
 public:
  explicit EmbeddingBagWeightsGradOp(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx, std::nullopt, 2));
    OP_REQUIRES(ctx, spec_.has_weights(), InvalidArgument("there are no per_sample_weights"));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  void Compile(XlaOpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompile(ctx)); }

 private:
  absl::Status TryCompile(XlaOpKernelContext* ctx) const;

  BagSpec spec_;
  DataType dtype_;
};

// As in cc/compute/bags.cc, WeightGradients.
absl::Status EmbeddingBagWeightsGradOp::TryCompile(XlaOpKernelContext* ctx) const {
  XlaBuilder* const builder = ctx->builder();
  TensorShape shape;
  TF_RETURN_IF_ERROR(GetShape(ctx, 1, "grad", &shape));
  if (shape.dims() == 0) return InvalidArgument("grad must have rank 1 or more, got a scalar");
  Table table;
  TF_RETURN_IF_ERROR(table.Init(ctx, dtype_));
  const PrimitiveType sum = SumType(TypeOf(table.rows));
  Bags bags;
  TF_RETURN_IF_ERROR(
      bags.Init(ctx, spec_, table.num_rows(), table.width(), shape.dim_size(0), sum));
  TensorShape expected = table.shape;
  TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, bags.count()));
  if (shape != expected) {
    return InvalidArgument("grad must have shape ", expected.DebugString(), ", got ",
                           shape.DebugString());
  }
  const PrimitiveType type = ctx->input_xla_type(spec_.weights);
  XlaOp output = xla::Broadcast(xla::Zero(builder, sum), {bags.num_indices()});
  if (bags.num_indices() > 0 && bags.count() > 0 && table.num_rows() > 0) {
    const XlaOp zeros = output;
    const XlaOp bag = bags.BagOf(), id = bags.ids();
    const XlaOp grad = Flatten(ctx->Input(1));
    const XlaOp products = xla::Mul(xla::ConvertElementType(Take(table.rows, id), sum),
                                    xla::ConvertElementType(Take(grad, bag), sum));
    const XlaOp is_row = xla::Ge(id, Number(id, 0));
    output = xla::Select(is_row, SumRows(products), zeros);
    if (bags.has_divisors()) {
      const XlaOp divisors = bags.Divisors();
      XlaOp mean = DivideNoNan(bags.Sum(xla::Mul(bags.weights(), output)), divisors);
      if (spec_.reduction == Reduction::kSqrtN) mean = DivideNoNan(mean, divisors);
      mean = Take(mean, bag);
      if (spec_.reduction == Reduction::kSqrtN) mean = xla::Mul(bags.weights(), mean);
      output = DivideNoNan(xla::Sub(output, mean), Take(divisors, bag));
    }
    const XlaOp is_in = xla::And(bags.IsInBag(bag), xla::Ne(id, Number(id, kPadding)));
    output = xla::Select(is_in, output, zeros);
  }
  output = xla::ConvertElementType(output, type);
  ctx->SetOutput(0, xla::Reshape(output, bags.shape().dim_sizes()));
  return builder->first_error();
}

class ScatterSubOp : public tensorflow::XlaOpKernel {
 public:
  explicit ScatterSubOp(OpKernelConstruction* ctx) : XlaOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  void Compile(XlaOpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, TryCompile(ctx)); }

 private:
  absl::Status TryCompile(XlaOpKernelContext* ctx) const;

  DataType dtype_;
};

absl::Status ScatterSubOp::TryCompile(XlaOpKernelContext* ctx) const {
  XlaBuilder* const builder = ctx->builder();
  TensorShape table, shape, expected;
  XlaOp variable;
  TF_RETURN_IF_ERROR(ctx->ReadVariableInput(0, dtype_, &table, &variable));
  if (table.dims() == 0) return InvalidArgument("the variable must have rank 1 or more");
  TF_RETURN_IF_ERROR(GetShape(ctx, 1, "indices", &shape));
  TF_RETURN_IF_ERROR(CheckRank("indices", shape, 1));
  expected = table;
  TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, shape.num_elements()));
  TF_RETURN_IF_ERROR(GetShape(ctx, 2, "values", &shape));
  if (shape != expected) {
    return InvalidArgument("values must have shape ", expected.DebugString(), ", got ",
                           shape.DebugString());
  }
  const bool is_half = dtype_ == tensorflow::DT_HALF || dtype_ == tensorflow::DT_BFLOAT16;
  const DataType scale_type = is_half ? tensorflow::DT_FLOAT : dtype_;
  TF_RETURN_IF_ERROR(GetShape(ctx, 3, "scale", &shape));
  if (shape.dims() != 0 || ctx->input_type(3) != scale_type) {
    return InvalidArgument("scale must be a scalar of type ",
                           tensorflow::DataTypeString(scale_type), ", got one of type ",
                           tensorflow::DataTypeString(ctx->input_type(3)), " and shape ",
                           shape.DebugString());
  }
  const int64_t num_rows = table.dim_size(0);
  const XlaOp rows = Flatten(variable);
  const XlaOp scale = ctx->Input(3);
  XlaOp indices = ctx->Input(1);
  const XlaOp is_row = xla::And(xla::Ge(indices, Number(indices, 0)),
                                xla::Lt(Wide(indices), Scalar(builder, xla::S64, num_rows)));
  if (ChecksIds() && SizeOf(indices) > 0) {
    RequireAll(is_row, absl::StrCat("indices[$0] is $1, but the variable has ", num_rows, " rows"),
               {indices});
    // The variable is left as it was.
    const XlaOp is_wrong = xla::Any(xla::Not(is_row));
    indices = xla::Select(xla::Broadcast(is_wrong, {SizeOf(indices)}), xla::FullLike(indices, -1),
                          indices);
  }
  const XlaOp updates =
      xla::Neg(xla::Mul(xla::ConvertElementType(Flatten(ctx->Input(2)), TypeOf(scale)), scale));
  XlaOp updated = rows;
  const int64_t count = SizeOf(indices);
  if (!is_half) {
    updated = Scatter(Combiner::kAdd, rows, indices, updates);
  } else if (num_rows > 0 && count > 0) {
    // Sums in float, of which the first of equal rows has all, and which are rounded once.
    const XlaOp first = Take(FirstOfEqual(indices, num_rows), indices);
    const XlaOp sums = Scatter(Combiner::kAdd, xla::ZerosLike(updates),
                               xla::Select(is_row, first, xla::FullLike(first, count)), updates);
    const XlaOp is_first = xla::And(is_row, xla::Eq(first, xla::Iota(builder, xla::S32, count)));
    const XlaOp results = xla::ConvertElementType(
        xla::Add(xla::ConvertElementType(Take(rows, indices), TypeOf(updates)), sums),
        TypeOf(rows));
    updated = Scatter(Combiner::kReplace, rows,
                      xla::Select(is_first, indices, xla::FullLike(indices, -1)), results);
  }
  TF_RETURN_IF_ERROR(ctx->AssignVariable(0, dtype_, xla::Reshape(updated, table.dim_sizes())));
  return builder->first_error();
}

// The memory is XLA's business.
class AdviseHugePagesOp : public tensorflow::XlaOpKernel {
 public:
  using XlaOpKernel::XlaOpKernel;

  void Compile(XlaOpKernelContext*) override {}
};

using OffsetsOp = EmbeddingBagKindOp<BagKind::kOffsets>;
using PackedOp = EmbeddingBagKindOp<BagKind::kPacked>;
using SegmentsOp = EmbeddingBagKindOp<BagKind::kSegments>;

#define TF_TI_SEGMENTS_TRAITS .CompileTimeConstantInput("num_segments")
TF_TI_REGISTER_XLA_OP("TfTi>EmbeddingBagOffsets", , OffsetsOp);
TF_TI_REGISTER_XLA_OP("TfTi>EmbeddingBagPacked", , PackedOp);
TF_TI_REGISTER_XLA_OP("TfTi>EmbeddingSegmentsSum", TF_TI_SEGMENTS_TRAITS, SegmentsOp);
TF_TI_REGISTER_XLA_OP("TfTi>ResourceEmbeddingBagOffsets", .AllowResourceTypes(), OffsetsOp);
TF_TI_REGISTER_XLA_OP("TfTi>ResourceEmbeddingBagPacked", .AllowResourceTypes(), PackedOp);
TF_TI_REGISTER_XLA_OP("TfTi>ResourceEmbeddingSegmentsSum",
                      .AllowResourceTypes() TF_TI_SEGMENTS_TRAITS, SegmentsOp);
TF_TI_REGISTER_XLA_OP("TfTi>EmbeddingBagGrad", .CompileTimeConstantInput("num_emb"),
                      EmbeddingBagGradOp);
TF_TI_REGISTER_XLA_OP("TfTi>EmbeddingBagSlots", .CompileTimeConstantInput("num_emb"),
                      EmbeddingBagSlotsOp);
TF_TI_REGISTER_XLA_OP("TfTi>EmbeddingBagWeightsGrad", , EmbeddingBagWeightsGradOp);
TF_TI_REGISTER_XLA_OP("TfTi>ResourceEmbeddingBagWeightsGrad", .AllowResourceTypes(),
                      EmbeddingBagWeightsGradOp);
TF_TI_REGISTER_XLA_OP("TfTi>ScatterSub", .AllowResourceTypes(), ScatterSubOp);
TF_TI_REGISTER_XLA_OP("TfTi>AdviseHugePages", .AllowResourceTypes(), AdviseHugePagesOp);

}  // namespace
}  // namespace tf_ti
