// What the rules of operations share.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cc/kernels/loops/lowering/lower.h"
#include "cc/kernels/loops/lowering/term.h"

namespace tf_ti {

// Larger arrays do not fit a cache.
constexpr int64_t kMostElements = 1 << 22;
constexpr int kMostDims = 8;
// Arrays of so many integers may be shapes, or parts of them, and are worth to be known.
constexpr int64_t kMostKnown = 64;
// Of larger products TensorFlow's kernels, and packed matrices, take less time.
constexpr int64_t kMostProducts = 1 << 17;

// A kernel of TensorFlow's computes more numbers than these in less time than calls, one by one.
constexpr int64_t kMostCalls = 1 << 10;

// Of parts that are an instruction each.
constexpr int64_t kMostParts = 64;

const absl::flat_hash_map<std::string, Operation>& ElementwiseOperations();
// The result of an operation of its operands, all of which are broadcast.
using Formula = Term (*)(const std::vector<Term>& operands, const tensorflow::NodeDef& node);
const absl::flat_hash_map<std::string, Formula>& Formulas();
// Those of half precision, where TensorFlow's kernels round in between or compute otherwise.
const absl::flat_hash_map<std::string, Formula>& HalfFormulas();
const absl::flat_hash_map<std::string, Operation>& Reductions();

// The integers of a tensor whose elements are known.
std::optional<Dims> Integers(const Lowered& value);
tensorflow::Tensor ToTensor(const Dims& integers, tensorflow::DataType dtype);

// The dimension that an axis names, or -1.
int DimOf(int64_t axis, int rank);

// The dimension that a bias is of.
int ChannelsOf(const tensorflow::NodeDef& node, int rank);

template <typename T>
T Attribute(const tensorflow::NodeDef& node, const char* name, T value) {
  tensorflow::TryGetNodeAttr(node, name, &value);
  return value;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_
