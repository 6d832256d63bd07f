#include "cc/kernels/loops/graph_kernels.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/match.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/node_builder.h"

namespace tf_ti {

using tensorflow::Graph;
using tensorflow::Node;
using tensorflow::OptimizationPassRegistry;

namespace {

// OneDNN's products of few matrices on more threads, with sums over 2^14 elements and more, are
// wrong in TensorFlow 2.21.
bool IsWrong(const Node& node) {
  return node.type_string() == "_MklBatchMatMul" || node.type_string() == "_MklBatchMatMulV2" ||
         node.type_string() == "_MklEinsum";
}

// Returns true if one node can take the place of another. It may give more than that where no other
// kernel gives as much.
bool CanReplace(const Node& node, const Node& other) {
  const auto& own = node.output_types();
  const auto& wanted = other.output_types();
  return node.input_types() == other.input_types() &&
         (own.size() == wanted.size() || NeedsReplacement(other)) && own.size() >= wanted.size() &&
         std::equal(wanted.begin(), wanted.end(), own.begin());
}

// Puts an Identity between any two nodes, so that TensorFlow does not merge them: a merged node
// replaces two nodes, and none of them alone.
absl::Status KeepApart(Graph* graph) {
  std::vector<const tensorflow::Edge*> edges;
  for (const tensorflow::Edge* edge : graph->edges()) {
    if (!edge->IsControlEdge() && edge->src()->IsOp() && edge->dst()->IsOp() &&
        !tensorflow::IsRefType(edge->src()->output_type(edge->src_output()))) {
      edges.push_back(edge);
    }
  }
  for (const tensorflow::Edge* edge : edges) {
    Node* between;
    TF_RETURN_IF_ERROR(tensorflow::NodeBuilder(graph->NewName("between"), "Identity")
                           .Input(edge->src(), edge->src_output())
                           .Finalize(graph, &between));
    TF_RETURN_IF_ERROR(graph->UpdateEdge(between, 0, edge->dst(), edge->dst_input()));
  }
  return absl::OkStatus();
}

}  // namespace

bool NeedsReplacement(const Node& node) {
  const std::string& op = node.type_string();
  if (op == "Conv2DBackpropFilter" || op == "Conv2DBackpropInput" || op == "Conv3D" ||
      op == "Conv3DBackpropFilterV2" || op == "Conv3DBackpropInputV2") {
    return true;
  }
  std::string format;
  if (tensorflow::TryGetNodeAttr(node.attrs(), "data_format", &format) &&
      (format == "NCHW" || format == "NCDHW")) {
    return true;
  }
  const bool is_depthwise = absl::StartsWith(op, "DepthwiseConv2dNative");
  if (op != "Conv2D" && !is_depthwise) return false;
  const tensorflow::DataType type = node.output_type(0);
  if (is_depthwise && (type == tensorflow::DT_HALF || type == tensorflow::DT_BFLOAT16)) return true;
  std::vector<int32_t> dilations;
  return tensorflow::TryGetNodeAttr(node.attrs(), "dilations", &dilations) &&
         std::any_of(dilations.begin(), dilations.end(), [](int32_t d) { return d > 1; });
}

absl::Status FindReplacements(const Graph& graph, NodeReplacements* replacements) {
  std::unordered_map<std::string, std::unique_ptr<Graph>> partitions;
  std::unique_ptr<Graph>& copy = partitions["body"];
  copy = std::make_unique<Graph>(graph.op_registry());
  tensorflow::CopyGraph(graph, copy.get());
  TF_RETURN_IF_ERROR(KeepApart(copy.get()));
  tensorflow::GraphOptimizationPassOptions options;
  options.partition_graphs = &partitions;
  options.is_function_graph = true;
  TF_RETURN_IF_ERROR(OptimizationPassRegistry::Global()->RunGrouping(
      OptimizationPassRegistry::POST_PARTITIONING, options));
  std::unordered_map<std::string, const Node*> nodes;
  for (const Node* node : graph.op_nodes()) nodes[node->name()] = node;
  for (const Node* node : copy->op_nodes()) {
    const auto found = nodes.find(node->name());
    if (found != nodes.end() && found->second->type_string() != node->type_string() &&
        CanReplace(*node, *found->second) && !IsWrong(*node)) {
      replacements->emplace(node->name(), node->properties());
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
