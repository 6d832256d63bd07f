#include "cc/xla/bags/pool.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/shape_util.h"

namespace tf_ti {

using xla::PrimitiveType;
using xla::Shape;
using xla::ShapeUtil;
using xla::XlaBuilder;
using xla::XlaComputation;
using xla::XlaOp;

namespace {

// The least and the most elements of a segment in one fused loop, and those in a loop over pieces.
// With fewer, the numbers of pieces would hardly shrink. More would take XLA longer to compile.
constexpr int64_t kLeastPieceSize = 4, kMostPieceSize = 16, kNextPieceSize = 4;

XlaOp Combine(Combiner combiner, XlaOp x, XlaOp y) {
  switch (combiner) {
    case Combiner::kAdd:
      return xla::Add(x, y);
    case Combiner::kMax:
      // Once NaN, always NaN: XLA's own maximum may lose one.
      return xla::Select(xla::Or(xla::Ne(x, x), xla::Le(y, x)), x, y);
    case Combiner::kMin:
      return xla::Min(x, y);
    default:
      return y;
  }
}

XlaComputation Computation(Combiner combiner, PrimitiveType type, XlaBuilder* builder) {
  const std::unique_ptr<XlaBuilder> inner = builder->CreateSubBuilder("tf_ti_combine");
  const Shape scalar = ShapeUtil::MakeShape(type, {});
  const XlaOp x = xla::Parameter(inner.get(), 0, scalar, "x");
  const XlaOp y = xla::Parameter(inner.get(), 1, scalar, "y");
  return inner->Build(Combine(combiner, x, y)).value();
}

XlaOp ReduceDim(Combiner combiner, XlaOp array, int64_t dim) {
  XlaBuilder* const builder = array.builder();
  const PrimitiveType type = TypeOf(array);
  return xla::Reduce(array, Identity(combiner, builder, type), Computation(combiner, type, builder),
                     {dim});
}

XlaOp Plus(XlaOp x, int64_t y) { return xla::Add(x, Scalar(x.builder(), TypeOf(x), y)); }

// The first `piece_size` elements of each segment.
XlaOp PoolFirst(Combiner combiner, const Elements& elements, XlaOp begin, XlaOp length,
                XlaOp segment, int64_t piece_size) {
  XlaOp total;
  for (int64_t i = 0; i < piece_size; ++i) {
    const XlaOp inside = xla::Gt(length, Scalar(length.builder(), TypeOf(length), i));
    const XlaOp values = elements.get(elements.operands, Plus(begin, i), inside, segment);
    total = i == 0 ? values : Combine(combiner, total, values);
  }
  return total;
}

using State = std::vector<XlaOp>;

State Split(XlaOp tuple, size_t size) {
  State elements;
  for (size_t i = 0; i < size; ++i) elements.push_back(xla::GetTupleElement(tuple, i));
  return elements;
}

State While(const State& state, const std::function<XlaOp(const State&)>& condition,
            const std::function<State(State)>& body) {
  XlaBuilder* const builder = state[0].builder();
  const XlaOp initial = xla::Tuple(builder, state);
  const auto build = [&](const char* name, const std::function<XlaOp(State)>& make) {
    const std::unique_ptr<XlaBuilder> inner = builder->CreateSubBuilder(name);
    const XlaOp given = xla::Parameter(inner.get(), 0, ShapeOf(initial), "state");
    return inner->Build(make(Split(given, state.size())));
  };
  const absl::StatusOr<XlaComputation> goes_on = build("tf_ti_goes_on", condition);
  if (!goes_on.ok()) return State(state.size(), builder->ReportError(goes_on.status()));
  const absl::StatusOr<XlaComputation> next = build("tf_ti_next", [&](State state) {
    state = body(std::move(state));
    return xla::Tuple(state[0].builder(), state);
  });
  if (!next.ok()) return State(state.size(), builder->ReportError(next.status()));
  return Split(xla::While(*goes_on, *next, initial), state.size());
}

// `value`; or, where the scalar `condition` holds, the result of `revise` on it and `operands`. A
// loop of one iteration, as XLA gives a conditional one thread on the CPU.
using Revise = std::function<XlaOp(XlaOp value, absl::Span<const XlaOp> operands)>;
XlaOp ReviseIf(XlaOp condition, XlaOp value, const std::vector<XlaOp>& operands,
               const Revise& revise) {
  State state = {condition, value};
  state.insert(state.end(), operands.begin(), operands.end());
  const auto is_open = [](const State& state) { return state[0]; };
  const auto close = [&](State state) {
    state[1] = revise(state[1], absl::MakeConstSpan(state).subspan(2));
    state[0] = xla::ConstantR0<bool>(state[1].builder(), false);
    return state;
  };
  return While(state, is_open, close)[1];
}

// The elements behind the first `piece_size` of each segment, cut into pieces.
//
// A segment has ceil(length / piece_size) - 1 pieces. They begin at begin / piece_size, rounded
// down. That needs no sum over segments: up to (begin + length) / piece_size there is always room.
struct Pieces {
  XlaOp values;  // [num, width]
  XlaOp begin;   // of each segment, and how many it has
  XlaOp length;
};
Pieces PoolPieces(Combiner combiner, const Elements& elements, const Segments& segments,
                  int64_t piece_size) {
  const XlaOp begin = segments.begin, length = segments.length;
  XlaBuilder* const builder = begin.builder();
  const PrimitiveType type = TypeOf(begin);
  const int64_t num = segments.size / piece_size;
  const XlaOp per_piece = Scalar(builder, type, piece_size), zero = Scalar(builder, type, 0);
  const XlaOp first = xla::Div(begin, per_piece);
  const XlaOp segment =
      xla::Clamp(zero, Plus(CountUpTo(first, num), -1), Scalar(builder, type, segments.count - 1));
  const XlaOp piece = xla::Sub(xla::Iota(builder, type, num), Take(first, segment));
  const XlaOp skipped = xla::Mul(Plus(piece, 1), per_piece);
  return {PoolFirst(combiner, elements, xla::Add(Take(begin, segment), skipped),
                    xla::Sub(Take(length, segment), skipped), segment, piece_size),
          first, xla::Max(zero, xla::Div(Plus(length, -1), per_piece))};
}

XlaOp IsAnyLonger(XlaOp length, int64_t than) {
  return xla::Any(xla::Gt(length, Scalar(length.builder(), TypeOf(length), than)));
}

// Combines `sums` with those of segments of pieces, which shrink to pieces of pieces until none is
// left.
XlaOp AddPieces(Combiner combiner, XlaOp sums, const Pieces& pieces, int64_t count) {
  const int64_t size = ShapeOf(pieces.values).dimensions(0);
  const auto get = [=](absl::Span<const XlaOp> operands, XlaOp at, XlaOp inside, XlaOp) {
    const XlaOp values = Take(operands[0], at);
    const Shape shape = ShapeOf(values);
    const XlaOp nothing =
        xla::Broadcast(Identity(combiner, at.builder(), shape.element_type()), shape.dimensions());
    return xla::Select(Widen(inside, shape.dimensions(1)), values, nothing);
  };
  const auto add = [=](State state) {
    const Elements elements{{state[1]}, get, TypeOf(state[1]), ShapeOf(state[1]).dimensions(1)};
    const Segments segments{state[2], state[3], count, size, size};
    state[0] = Combine(
        combiner, state[0],
        PoolFirst(combiner, elements, segments.begin, segments.length, XlaOp(), kNextPieceSize));
    if (size < kNextPieceSize) {
      state[3] = xla::ZerosLike(state[3]);
      return state;
    }
    const Pieces next = PoolPieces(combiner, elements, segments, kNextPieceSize);
    const XlaOp origin = Scalar(next.begin.builder(), xla::S32, 0);
    return State{state[0], xla::DynamicUpdateSlice(state[1], next.values, {origin, origin}),
                 next.begin, next.length};
  };
  const auto is_left = [](const State& state) { return IsAnyLonger(state[3], 0); };
  return While({sums, pieces.values, pieces.begin, pieces.length}, is_left, add)[0];
}

}  // namespace

XlaOp PoolSegments(Combiner combiner, const Elements& elements, const Segments& segments) {
  // As many passes over the segments as those of the mean length need.
  const int64_t mean = (segments.size + segments.count - 1) / segments.count;
  const int64_t passes = std::max<int64_t>(1, (mean + kMostPieceSize - 1) / kMostPieceSize);
  const int64_t piece_size = std::max((mean + passes - 1) / passes, kLeastPieceSize);
  XlaBuilder* const builder = segments.begin.builder();
  State state = {XlaOp(), segments.begin, segments.length};
  state.insert(state.end(), elements.operands.begin(), elements.operands.end());
  if (passes == 1) {
    state[0] = PoolFirst(combiner, elements, state[1], state[2], XlaOp(), piece_size);
  } else {
    const auto pass = [=](State state) {
      const XlaOp done = state.back();
      const XlaOp skipped = xla::Mul(done, Scalar(done.builder(), TypeOf(done), piece_size));
      const Elements ours{
          {state.begin() + 3, state.end() - 1}, elements.get, elements.type, elements.width};
      state[0] = Combine(combiner, state[0],
                         PoolFirst(combiner, ours, xla::Add(state[1], skipped),
                                   xla::Sub(state[2], skipped), XlaOp(), piece_size));
      state.back() = Plus(done, 1);
      return state;
    };
    const auto is_left = [=](const State& state) {
      return xla::Lt(state.back(), Scalar(state[0].builder(), TypeOf(state.back()), passes));
    };
    state[0] = xla::Broadcast(Identity(combiner, builder, elements.type),
                              {segments.count, elements.width});
    state.push_back(Scalar(builder, TypeOf(segments.begin), 0));
    state = While(state, is_left, pass);
    state.pop_back();
    const XlaOp skipped = Scalar(builder, TypeOf(segments.begin), (passes - 1) * piece_size);
    state[1] = xla::Add(state[1], skipped);
    state[2] = xla::Sub(state[2], skipped);
  }
  if (segments.longest <= passes * piece_size) return state[0];
  const auto add_pieces = [=](XlaOp sums, absl::Span<const XlaOp> operands) {
    const Elements ours{
        {operands.begin() + 2, operands.end()}, elements.get, elements.type, elements.width};
    const Segments theirs{operands[0], operands[1], segments.count, segments.size,
                          segments.longest};
    return AddPieces(combiner, sums, PoolPieces(combiner, ours, theirs, piece_size),
                     segments.count);
  };
  const std::vector<XlaOp> operands = {state.begin() + 1, state.end()};
  return ReviseIf(IsAnyLonger(state[2], piece_size), state[0], operands, add_pieces);
}

XlaOp Scalar(XlaBuilder* builder, PrimitiveType type, int64_t value) {
  return xla::ConvertElementType(xla::ConstantR0<int64_t>(builder, value), type);
}

XlaOp Number(XlaOp like, int64_t value) { return Scalar(like.builder(), TypeOf(like), value); }

int64_t SizeOf(XlaOp vector) { return ShapeOf(vector).dimensions(0); }

XlaOp Widen(XlaOp vector, int64_t width) {
  return xla::BroadcastInDim(vector, {ShapeOf(vector).dimensions(0), width}, {0});
}

XlaOp Take(XlaOp array, XlaOp at) {
  const Shape shape = ShapeOf(array);
  xla::GatherDimensionNumbers dims;
  std::vector<int64_t> sizes = {shape.dimensions().begin(), shape.dimensions().end()};
  sizes[0] = 1;
  dims.add_collapsed_slice_dims(0);
  dims.add_start_index_map(0);
  dims.set_index_vector_dim(1);
  for (size_t d = 1; d < sizes.size(); ++d) dims.add_offset_dims(d);
  return xla::Gather(array, at, dims, sizes);
}

XlaOp Scatter(Combiner combiner, XlaOp array, XlaOp at, XlaOp updates) {
  xla::ScatterDimensionNumbers dims;
  dims.add_inserted_window_dims(0);
  dims.add_scatter_dims_to_operand_dims(0);
  dims.set_index_vector_dim(1);
  const int64_t rank = ShapeOf(array).dimensions().size();
  for (int64_t d = 1; d < rank; ++d) dims.add_update_window_dims(d);
  return xla::Scatter(array, at, updates, Computation(combiner, TypeOf(array), array.builder()),
                      dims);
}

XlaOp Reduce(Combiner combiner, XlaOp vector) { return ReduceDim(combiner, vector, 0); }

XlaOp ReduceMiddle(Combiner combiner, XlaOp array) { return ReduceDim(combiner, array, 1); }

XlaOp SumRows(XlaOp matrix) { return ReduceDim(Combiner::kAdd, matrix, 1); }

XlaOp CumulativeSum(XlaOp vector) {
  XlaBuilder* const builder = vector.builder();
  const PrimitiveType type = TypeOf(vector);
  const int64_t size = ShapeOf(vector).dimensions(0);
  if (size == 0) return vector;
  return xla::ReduceWindowWithGeneralPadding(vector, xla::Zero(builder, type),
                                             Computation(Combiner::kAdd, type, builder), {size},
                                             {1}, {}, {}, {{size - 1, 0}});
}

XlaOp CountUpTo(XlaOp values, int64_t size) {
  XlaBuilder* const builder = values.builder();
  const PrimitiveType type = TypeOf(values);
  const XlaOp zero = xla::Zero(builder, type);
  const XlaOp counts =
      Scatter(Combiner::kAdd, xla::Broadcast(zero, {size}), xla::Max(values, zero),
              xla::Broadcast(xla::One(builder, type), ShapeOf(values).dimensions()));
  return CumulativeSum(counts);
}

XlaOp Identity(Combiner combiner, XlaBuilder* builder, PrimitiveType type) {
  switch (combiner) {
    case Combiner::kAdd:
      return xla::Zero(builder, type);
    case Combiner::kMax:
      return xla::MinValue(builder, type);
    default:
      return xla::MaxValue(builder, type);
  }
}

}  // namespace tf_ti
