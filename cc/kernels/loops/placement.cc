#include "cc/kernels/loops/placement.h"

#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "tensorflow/core/common_runtime/input_colocation_exemption_registry.h"
#include "tensorflow/core/common_runtime/optimization_registry.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_ti {

using tensorflow::DeviceNameUtils;
using tensorflow::Edge;
using tensorflow::Graph;
using tensorflow::Node;

bool IsLoop(const std::string& op) {
  return op == "TfTi>TensorIterator" || op == "TfTi>StatelessTensorIterator";
}

namespace {

// Returns true if a node hands on the resources that it gets.
bool HandsOnResources(const Node& node) { return node.IsIdentity() || node.IsControlFlow(); }

// Returns true if the resources that a node gets lie on more than one device.
bool HasResourcesOfSeveralDevices(const Node& loop) {
  DeviceNameUtils::ParsedName common;
  absl::flat_hash_set<const Node*> seen = {&loop};
  std::vector<const Node*> nodes = {&loop};
  while (!nodes.empty()) {
    const Node* node = nodes.back();
    nodes.pop_back();
    for (const Edge* edge : node->in_edges()) {
      const Node* source = edge->src();
      if (edge->IsControlEdge() ||
          source->output_type(edge->src_output()) != tensorflow::DT_RESOURCE ||
          !seen.insert(source).second) {
        continue;
      }
      if (HandsOnResources(*source)) {
        nodes.push_back(source);
        continue;
      }
      const std::string& name = source->has_assigned_device_name() ? source->assigned_device_name()
                                                                   : source->requested_device();
      DeviceNameUtils::ParsedName device;
      if (DeviceNameUtils::ParseFullName(name, &device) &&
          !DeviceNameUtils::MergeDevNames(&common, device).ok()) {
        return true;
      }
    }
  }
  return false;
}

// Replaces a node by a node of another op, with the same attributes.
absl::Status ReplaceOp(Node* node, const char* op, Graph* graph) {
  tensorflow::NodeDef definition = node->def();
  definition.set_op(op);
  absl::Status status;
  Node* const replacement = graph->AddNode(std::move(definition), &status);
  TF_RETURN_IF_ERROR(status);
  for (const Edge* edge : node->in_edges()) {
    graph->AddEdge(edge->src(), edge->src_output(), replacement, edge->dst_input());
  }
  const std::vector<const Edge*> edges(node->out_edges().begin(), node->out_edges().end());
  for (const Edge* edge : edges) {
    Node* const reader = edge->dst();
    const int output = edge->src_output(), input = edge->dst_input();
    graph->RemoveEdge(edge);
    graph->AddEdge(replacement, output, reader, input);
  }
  graph->RemoveNode(node);
  return absl::OkStatus();
}

// Puts `kMultiDeviceLoop` in place of the loops whose resources lie on several devices. That is
// known here: a function's parameters already have the devices of the caller's resources.
class PlaceMultiDeviceLoops : public tensorflow::GraphOptimizationPass {
 public:
  absl::Status Run(const tensorflow::GraphOptimizationPassOptions& options) override {
    if (options.graph == nullptr) return absl::OkStatus();
    Graph* const graph = options.graph->get();
    std::vector<Node*> loops;
    for (Node* node : graph->op_nodes()) {
      if (IsLoop(node->type_string()) && HasResourcesOfSeveralDevices(*node)) loops.push_back(node);
    }
    for (Node* loop : loops) TF_RETURN_IF_ERROR(ReplaceOp(loop, kMultiDeviceLoop, graph));
    return absl::OkStatus();
  }
};

// After TensorFlow's own passes: they put called functions and branches in place of their calls.
constexpr int kPhase = 100;

REGISTER_OPTIMIZATION(tensorflow::OptimizationPassRegistry::PRE_PLACEMENT, kPhase,
                      PlaceMultiDeviceLoops);

const tensorflow::input_colocation_exemption_registration::InputColocationExemptionRegistration
    kExemption(kMultiDeviceLoop);

}  // namespace
}  // namespace tf_ti
