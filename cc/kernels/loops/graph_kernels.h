// The kernels that TensorFlow gives the operations of its graphs.
#ifndef TF_TI_CC_KERNELS_LOOPS_GRAPH_KERNELS_H_
#define TF_TI_CC_KERNELS_LOOPS_GRAPH_KERNELS_H_

#include <memory>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

// Definitions by the names of the nodes that they replace.
using NodeReplacements =
    std::unordered_map<std::string, std::shared_ptr<const tensorflow::NodeProperties>>;

// Returns true for an operation for which TensorFlow's own kernel for CPUs lacks a case, or is
// wrong: images whose channels come first, dilations, gradients of both and of groups, strides
// beyond the filters of volumes, sums of half precision. A replacement runs for these arrays of all
// sizes.
bool NeedsReplacement(const tensorflow::Node& node);

// Finds the nodes that TensorFlow replaces, one by one, in a graph that is about to run on a CPU:
// by oneDNN's kernels, on some processors. It replaces them in loops that are part of a graph, and
// not in functions that kernels run.
absl::Status FindReplacements(const tensorflow::Graph& graph, NodeReplacements* replacements);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_GRAPH_KERNELS_H_
