// The ops that turn a tensor into a history and back, for XLA.
#include <algorithm>
#include <utility>
#include <vector>

#include "cc/spec/shapes.h"
#include "cc/status.h"
#include "cc/xla/concatenate.h"
#include "cc/xla/loops/history.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelConstruction;
using xla::Shape;
using xla::XlaBuilder;
using xla::XlaOp;

class HistorySplitOp : public XlaKernel {
 public:
  explicit HistorySplitOp(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
  }

  absl::Status Compile(const Context& ctx) const override {
    XlaBuilder* builder = ctx.builder();
    HistoryParts like, parts;
    TF_RETURN_IF_ERROR(like.Init(ctx.Input(1), "like"));
    if (like.count.valid()) {
      return Unimplemented("XLA must know the number of pieces of a concatenation");
    }
    TF_ASSIGN_OR_RETURN(const Shape stack, builder->GetShape(like.stack));
    TF_ASSIGN_OR_RETURN(const Shape shape, ctx.InputShape(0));
    const int64_t rank = shape.dimensions().size();
    int64_t axis;
    TF_RETURN_IF_ERROR(ResolveAxis("tensor", axis_, "a tensor", rank, &axis));
    const Shape piece = ElementShape(stack);
    if (piece.IsTuple() || static_cast<int64_t>(piece.dimensions().size()) != rank) {
      return InvalidArgument("the pieces of tensor have rank ", piece.dimensions().size(),
                             ", but tensor has rank ", rank);
    }
    const int64_t count = StackSize(stack), extent = piece.dimensions(axis);
    int64_t last_extent = 0;
    if (like.last.valid()) {
      TF_ASSIGN_OR_RETURN(const Shape last, builder->GetShape(like.last));
      last_extent = last.dimensions(axis);
    }
    if (shape.dimensions(axis) != count * extent + last_extent) {
      return InvalidArgument("tensor has extent ", shape.dimensions(axis), " along axis ", axis_,
                             ", but the pieces have ", count * extent + last_extent);
    }
    XlaOp tensor = ctx.Input(0);
    if (like.last.valid()) {
      const int64_t begin = reverse_ ? 0 : count * extent;
      parts.last = xla::SliceInDim(tensor, begin, begin + last_extent, 1, axis);
      const int64_t first = reverse_ ? last_extent : 0;
      tensor = xla::SliceInDim(tensor, first, first + count * extent, 1, axis);
    }
    // [..., count * extent, ...] -> [..., count, extent, ...] -> [count, ..., extent, ...].
    std::vector<int64_t> dims = Dims(WithExtent(shape, axis, extent)), order = {axis};
    dims.insert(dims.begin() + axis, count);
    for (int64_t d = 0; d <= rank; ++d) {
      if (d != axis) order.push_back(d);
    }
    parts.stack = xla::Transpose(xla::Reshape(tensor, dims), order);
    if (reverse_) parts.stack = xla::Rev(parts.stack, {0});
    ctx.SetOutput(0, parts.Join(builder));
    return builder->first_error();
  }

 private:
  int64_t axis_;
  bool reverse_;
};

const XlaRegistrar<HistorySplitOp> kSplit("TfTi>SequenceSplit", kVariants);

class HistoryConcatOp : public XlaKernel {
 public:
  explicit HistoryConcatOp(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
  }

  absl::Status Compile(const Context& ctx) const override {
    XlaBuilder* builder = ctx.builder();
    HistoryParts parts;
    TF_RETURN_IF_ERROR(parts.Init(ctx.Input(0), "sequence"));
    TF_ASSIGN_OR_RETURN(const Shape stack, builder->GetShape(parts.stack));
    if (parts.count.valid() || stack.IsTuple()) {
      return Unimplemented("XLA must know the number of pieces of a concatenation");
    }
    const Shape piece = ElementShape(stack);
    const int64_t rank = piece.dimensions().size();
    int64_t axis;
    TF_RETURN_IF_ERROR(ResolveAxis("sequence", axis_, "a tensor", rank, &axis));
    XlaOp pieces = parts.stack;
    if (reverse_) pieces = xla::Rev(pieces, {0});
    // [count, ..., extent, ...] -> [..., count, extent, ...] -> [..., count * extent, ...].
    std::vector<int64_t> order;
    for (int64_t d = 1; d <= rank; ++d) {
      if (d == axis + 1) order.push_back(0);
      order.push_back(d);
    }
    const Shape whole = WithExtent(piece, axis, StackSize(stack) * piece.dimensions(axis));
    XlaOp tensor = xla::Reshape(xla::Transpose(pieces, order), whole.dimensions());
    if (parts.last.valid()) {
      std::vector<XlaOp> both = {tensor, parts.last};
      if (reverse_) std::swap(both[0], both[1]);
      tensor = Concatenate(both, axis);
    }
    ctx.SetOutput(0, tensor);
    return builder->first_error();
  }

 private:
  int64_t axis_;
  bool reverse_;
};

const XlaRegistrar<HistoryConcatOp> kConcat("TfTi>SequenceConcat", kVariants);

}  // namespace
}  // namespace tf_ti
