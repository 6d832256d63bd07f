// What the rules of operations share.
#ifndef TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_
#define TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cc/kernels/loops/lowering/lower.h"

namespace tf_ti {

// TensorFlow computes larger arrays on several threads.
constexpr int64_t kMostElements = 1 << 15;
constexpr int kMostDims = 8;
// Of larger products TensorFlow's kernels, and packed matrices, take less time.
constexpr int64_t kMostProducts = 1 << 15;

const absl::flat_hash_map<std::string, Operation>& ElementwiseOperations();
const absl::flat_hash_map<std::string, Operation>& Reductions();

// The integers of a tensor whose elements are known.
std::optional<Dims> Integers(const Lowered& value);
tensorflow::Tensor ToTensor(const Dims& integers, tensorflow::DataType dtype);

// The dimension that an axis names, or -1.
int DimOf(int64_t axis, int rank);

template <typename T>
T Attribute(const tensorflow::NodeDef& node, const char* name, T value) {
  tensorflow::TryGetNodeAttr(node, name, &value);
  return value;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_LOWERING_RULES_H_
