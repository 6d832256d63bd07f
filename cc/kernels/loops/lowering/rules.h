// The rules of operations, and the functions that rules share.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc/kernels/loops/lowering/context.h"
#include "cc/kernels/loops/lowering/lowered.h"
#include "cc/kernels/loops/lowering/term.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace tf_ti {

// Larger arrays do not fit a cache.
constexpr int64_t kMostElements = 1 << 22;
constexpr int kMostDims = 8;
// An array of at most so many integers may be a shape, or a part of one, and is worth knowing.
constexpr int64_t kMostKnown = 64;
// TensorFlow's kernels run larger products on all threads.
constexpr int64_t kMostProducts = 1 << 20;
// A larger right factor does not fit the second cache. Packed matrices take less time.
constexpr int64_t kMostRight = 1 << 18;
// A kernel of TensorFlow computes more numbers in less time than calls, one by one.
constexpr int64_t kMostCalls = 1 << 10;
// The most parts of an array where each part takes an instruction.
constexpr int64_t kMostParts = 64;

// Adds an operation's steps to the context's program, and returns its outputs.
using Outputs = absl::StatusOr<std::vector<Lowered>>;
using Rule = Outputs (*)(LoweringContext& context, const tensorflow::NodeDef& node,
                         const std::vector<Lowered>& inputs);
// Rules by the names of operations, a table for each file of rules.
using RuleTable = std::vector<std::pair<std::string, Rule>>;
RuleTable ElementwiseRules();
RuleTable MovementRules();
RuleTable ProductRules();
RuleTable ReductionRules();
RuleTable ShapeRules();
RuleTable ViewRules();

// The outputs of an operation that has one.
Outputs One(absl::StatusOr<View> view);
Outputs One(absl::StatusOr<tensorflow::Tensor> known);

// Refuses an array that is too large.
absl::Status CheckCount(int64_t count);
// Refuses extents of an array that is too large, negative extents, and extents whose product does
// not fit int64, where zeros do not count.
absl::Status CheckDims(const Dims& dims);

// The integers of a tensor whose elements are known.
absl::StatusOr<Dims> Integers(const Lowered& value);
// The integer of such a tensor of one element, or of a scalar.
absl::StatusOr<int64_t> Integer(const Lowered& value);
absl::StatusOr<int64_t> Scalar(const Lowered& value);
absl::StatusOr<tensorflow::Tensor> ToTensor(const Dims& integers, tensorflow::DataType dtype);

// The dimension that an axis names.
absl::StatusOr<int> DimOf(int64_t axis, int rank);
absl::StatusOr<int> DimOf(const Lowered& axis, int rank);

// The dimension that a bias has.
int ChannelsOf(const tensorflow::NodeDef& node, int rank);

// A zero of a type.
View Zero(LoweringContext& context, ElementType type);

// Operands that are broadcast to the dimensions of their result.
struct Operands {
  std::vector<View> views;
  Dims dims;
};
absl::StatusOr<Operands> OperandsOf(LoweringContext& context, const std::vector<Lowered>& inputs);

// A view that repeats an array.
absl::StatusOr<View> Repeated(const View& view, const Dims& dims);
// `count` neighbouring dimensions as one.
View Merged(LoweringContext& context, const View& view, int first, int count);
// The part of an array that begin, end and strides name, which are inputs `first` and the next two.
absl::StatusOr<View> Sliced(const tensorflow::NodeDef& node, const std::vector<Lowered>& inputs,
                            int first, const View& view);
// The concatenation of arrays along a dimension.
absl::StatusOr<View> Joined(LoweringContext& context, const std::vector<View>& parts, int dim);
// A reduction over some dimensions, which have elements and stay as dimensions of 1. Half precision
// is rounded once, at the end.
absl::StatusOr<View> Reduced(LoweringContext& context, Operation operation, View view,
                             const std::vector<bool>& is_reduced);

template <typename T>
T Attribute(const tensorflow::NodeDef& node, const char* name, T value) {
  tensorflow::TryGetNodeAttr(node, name, &value);
  return value;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_
