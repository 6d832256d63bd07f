#include "cc/kernels/loops/lowering/graph_lowering.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "cc/kernels/loops/lowering/context.h"
#include "cc/kernels/loops/lowering/loops.h"
#include "cc/kernels/loops/lowering/lower.h"
#include "cc/kernels/loops/lowering/lowered.h"
#include "cc/kernels/loops/schedule.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/graph/tensor_id.h"

namespace tf_ti {

using tensorflow::NodeDef;
using tensorflow::ParseTensorName;
using tensorflow::TensorId;

namespace {

class GraphLowering {
 public:
  explicit GraphLowering(const BodyGraph& body)
      : body_(body), definitions_(tensorflow::OpRegistry::Global(), body.graph.library()) {
    for (const NodeDef& node : body.graph.node())
      read_.insert(node.input().begin(), node.input().end());
    read_.insert(body.results.begin(), body.results.end());
    for (size_t p = 0; p < body.parameters.size(); ++p) {
      parameters_[body.parameters[p]] = static_cast<int>(p);
    }
  }

  absl::StatusOr<LoweredGraph> Run() {
    for (const int n : FindNeeded()) {
      context_.builder().set_origin(n);
      TF_RETURN_IF_ERROR(Add(n));
    }
    if (!result_.kernels.empty()) return std::move(result_);
    context_.builder().set_origin(-1);
    for (const std::string& result : body_.results) {
      TF_ASSIGN_OR_RETURN(const Lowered* value, ValueOf(ParseTensorName(result)));
      TF_ASSIGN_OR_RETURN(const View view, context_.ViewOf(*value));
      context_.builder().AddOutput(view);
    }
    result_.may_fail = context_.failure().has_value();
    if (result_.may_fail) context_.builder().AddOutput(*context_.failure());
    result_.steps = context_.builder().steps();
    return std::move(result_);
  }

 private:
  // The operations on which results depend, each behind its inputs.
  std::vector<int> FindNeeded() const {
    std::map<std::string, int> numbers;
    for (int n = 0; n < body_.graph.node_size(); ++n) numbers[body_.graph.node(n).name()] = n;
    const auto number_of = [&](const std::string& tensor) {
      const auto found = numbers.find(std::string(ParseTensorName(tensor).node()));
      return found == numbers.end() ? -1 : found->second;
    };
    std::vector<int> order, waiting;
    for (const std::string& result : body_.results) waiting.push_back(number_of(result));
    std::vector<int> visits(numbers.size(), 0);
    while (!waiting.empty()) {
      const int n = waiting.back();
      const int visit = n < 0 ? 2 : visits[n]++;
      if (visit == 0) {
        for (const std::string& input : body_.graph.node(n).input()) {
          const int before = number_of(input);
          if (before >= 0 && visits[before] == 0) waiting.push_back(before);
        }
        continue;
      }
      waiting.pop_back();
      if (visit == 1) order.push_back(n);
    }
    return order;
  }

  absl::Status Add(int n) {
    const NodeDef& node = body_.graph.node(n);
    std::vector<Lowered>& values = values_[node.name()];
    if (node.op() == "NoOp") return absl::OkStatus();
    if (node.op() == "Placeholder") {
      TF_ASSIGN_OR_RETURN(values.emplace_back(), Parameter(node));
      return absl::OkStatus();
    }
    if (node.op() == "Const") {
      tensorflow::Tensor value;
      TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node, "value", &value));
      values.emplace_back().known = std::move(value);
      return absl::OkStatus();
    }
    std::vector<Lowered> inputs;
    for (const std::string& input : node.input()) {
      const TensorId id = ParseTensorName(input);
      if (id.index() < 0) continue;
      TF_ASSIGN_OR_RETURN(const Lowered* value, ValueOf(id));
      inputs.push_back(*value);
    }
    if (IsIdentity(node.op()) && inputs.size() == 1) {
      values = std::move(inputs);
      return absl::OkStatus();
    }
    NodeDef whole = node;
    const tensorflow::OpDef* op;
    TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op));
    tensorflow::AddDefaultsToNodeDef(*op, &whole);
    const bool are_missing = std::any_of(inputs.begin(), inputs.end(), [](const Lowered& input) {
      return !IsArray(input) && !input.history.has_value();
    });
    if (are_missing && !IsInnerLoop(whole)) return AddResultsOf(whole, *op, are_missing, &values);
    absl::StatusOr<std::vector<Lowered>> lowered =
        IsInnerLoop(whole) ? LowerInnerLoop(whole, inputs) : Lower(context_, whole, inputs);
    if (lowered.ok()) {
      values = *std::move(lowered);
      return absl::OkStatus();
    }
    result_.kernels.push_back({n, std::string(lowered.status().message())});
    return AddResultsOf(whole, *op, /*are_missing=*/false, &values);
  }

  bool IsRead(const NodeDef& node, size_t output) const {
    return read_.count(absl::StrCat(node.name(), ":", output)) > 0 ||
           (output == 0 && read_.count(node.name()) > 0);
  }

  absl::StatusOr<std::vector<Lowered>> LowerInnerLoop(const NodeDef& node,
                                                      const std::vector<Lowered>& inputs) {
    std::vector<tensorflow::DataType> types;
    TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node, "Tout", &types));
    std::vector<bool> is_read;
    for (size_t i = 0; i < types.size(); ++i) is_read.push_back(IsRead(node, i));
    return LowerLoop(context_, node, inputs, is_read, {&definitions_, nullptr});
  }

  // The results of an operation that is no part of the program become inputs.
  absl::Status AddResultsOf(const NodeDef& node, const tensorflow::OpDef& op, bool are_missing,
                            std::vector<Lowered>* values) {
    tensorflow::DataTypeVector types;
    TF_RETURN_IF_ERROR(tensorflow::OutputTypesForNode(node, op, &types));
    std::vector<tensorflow::PartialTensorShape> shapes;
    TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node, "_output_shapes", &shapes));
    if (shapes.size() != types.size()) return Refused("shapes are missing");
    // A result that no program has is missing, and so are the results that depend on it.
    for (size_t i = 0; i < types.size(); ++i) {
      Lowered& value = values->emplace_back();
      if (!IsRead(node, i) || are_missing) continue;
      absl::StatusOr<Lowered> input = Input(types[i], shapes[i], /*stays=*/false, -1);
      if (input.ok()) value = *std::move(input);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Lowered> Input(tensorflow::DataType dtype,
                                const tensorflow::PartialTensorShape& partial, bool stays,
                                int parameter) {
    const std::optional<ElementType> type = ElementTypeOf(dtype);
    if (!type.has_value()) return Refused("programs have no ", tensorflow::DataTypeString(dtype));
    tensorflow::TensorShape shape;
    if (!partial.AsTensorShape(&shape)) return Refused("a shape is not known");
    const auto dims = shape.dim_sizes();
    Lowered value;
    value.view = context_.builder().AddInput(*type, Dims(dims.begin(), dims.end()), stays);
    result_.inputs.push_back(parameter);
    return value;
  }

  absl::StatusOr<Lowered> Parameter(const NodeDef& node) {
    tensorflow::DataType dtype;
    tensorflow::PartialTensorShape partial;
    TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node, "dtype", &dtype));
    TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node, "shape", &partial));
    const auto parameter = parameters_.find(node.name());
    if (parameter == parameters_.end()) return Refused(node.name(), " is no parameter");
    return Input(dtype, partial, body_.stays[parameter->second], parameter->second);
  }

  absl::StatusOr<const Lowered*> ValueOf(const TensorId& id) const {
    const auto found = values_.find(std::string(id.node()));
    if (found == values_.end() || id.index() < 0 ||
        id.index() >= static_cast<int>(found->second.size())) {
      return Refused("there is no ", id.ToString());
    }
    return &found->second[id.index()];
  }

  const BodyGraph& body_;
  const tensorflow::FunctionLibraryDefinition definitions_;
  std::set<std::string> read_;  // the names of tensors that an operation reads, or that are results
  LoweringContext context_;
  LoweredGraph result_;
  std::map<std::string, int> parameters_;
  std::map<std::string, std::vector<Lowered>> values_;  // by operation
};

}  // namespace

absl::StatusOr<LoweredGraph> LowerGraph(const BodyGraph& body) { return GraphLowering(body).Run(); }

}  // namespace tf_ti
