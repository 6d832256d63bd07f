// Reductions of segments of consecutive elements, for XLA.
//
// XLA knows how many segments and how many elements there are, but not how long a segment is. To go
// through the elements of each segment takes the product of both numbers. To add the elements one
// by one to the segments' sums takes a loop without threads, on memory that all rows go through
// first. So one fused loop reduces the first few elements of each segment. The rest of long
// segments is cut into pieces, which are reduced in the same way, and give elements of shorter
// segments:
//
//   segments of 3 + 11 + 2 elements              |abc| |abcd|efgh|ijk| |ab|
//   the first 4 of each                          3, 4, 2 elements
//   pieces                                       4, 3 elements, both of segment 1
//
// Each row is read once, and the order in which a segment is summed depends on nothing else.
#ifndef TF_TI_CC_XLA_BAGS_POOL_H_
#define TF_TI_CC_XLA_BAGS_POOL_H_

#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_ti {

// A scalar; of the type of `like`.
xla::XlaOp Scalar(xla::XlaBuilder* builder, xla::PrimitiveType type, int64_t value);
xla::XlaOp Number(xla::XlaOp like, int64_t value);

int64_t SizeOf(xla::XlaOp vector);

// A vector [m] as [m, width].
xla::XlaOp Widen(xla::XlaOp vector, int64_t width);

// array[at], with positions outside of the array moved to its next element.
xla::XlaOp Take(xla::XlaOp array, xla::XlaOp at);

enum class Combiner { kAdd, kMax, kMin, kReplace };

// array[at[i]] = combine(array[at[i]], updates[i]); nothing where at[i] is outside of the array.
xla::XlaOp Scatter(Combiner combiner, xla::XlaOp array, xla::XlaOp at, xla::XlaOp updates);

// All elements of a vector, as a scalar.
xla::XlaOp Reduce(Combiner combiner, xla::XlaOp vector);

// [m, n, width] -> [m, width], and [m, width] -> [m].
xla::XlaOp ReduceMiddle(Combiner combiner, xla::XlaOp array);
xla::XlaOp SumRows(xla::XlaOp matrix);

// The sums of a vector's first elements: v[0], v[0] + v[1], ...
xla::XlaOp CumulativeSum(xla::XlaOp vector);

// For each i in [0, size) the number of `values` that are at most i. Of their type.
xla::XlaOp CountUpTo(xla::XlaOp values, int64_t size);

// Segment s has `length[s]` elements from begin[s] on. No segment ends behind the begin of the
// next.
struct Segments {
  xla::XlaOp begin;  // [count], like `length` of a type that also holds size + count
  xla::XlaOp length;
  int64_t count;
  int64_t size;     // of all elements, also those of no segment
  int64_t longest;  // no segment is longer
};

// Elements [m, width].
struct Elements {
  std::vector<xla::XlaOp> operands;
  // Returns the elements at positions `at` [m], which may be anywhere where `inside` is false.
  // There it returns the combiner's identity. `segment` [m] tells whose they are; without it, it is
  // 0, 1, ...
  std::function<xla::XlaOp(absl::Span<const xla::XlaOp> operands, xla::XlaOp at, xla::XlaOp inside,
                           xla::XlaOp segment)>
      get;
  xla::PrimitiveType type;
  int64_t width;
};

// The value that changes nothing when combined.
xla::XlaOp Identity(Combiner combiner, xla::XlaBuilder* builder, xla::PrimitiveType type);

// [count, width].
xla::XlaOp PoolSegments(Combiner combiner, const Elements& elements, const Segments& segments);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_POOL_H_
