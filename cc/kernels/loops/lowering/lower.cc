#include "cc/kernels/loops/lowering/lower.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "cc/compute/program/merged_loops.h"
#include "cc/compute/program/program.h"
#include "cc/kernels/loops/lowering/loops.h"
#include "cc/kernels/loops/lowering/rules.h"
#include "cc/spec/loops/operations.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/public/version.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

const std::unordered_map<std::string, Rule>& Rules() {
  static const auto& rules = *[] {
    auto* const all = new std::unordered_map<std::string, Rule>;
    for (const auto part :
         {ElementwiseRules, MovementRules, ProductRules, ReductionRules, ShapeRules, ViewRules}) {
      for (const auto& [name, rule] : part()) (*all)[name] = rule;
    }
    return all;
  }();
  return rules;
}

bool IsSmallInteger(const Lowered& value) {
  return value.known.has_value() && tensorflow::DataTypeIsInteger(value.known->dtype()) &&
         value.known->NumElements() <= kMostKnown;
}

// What an operation makes of few known integers, if that is few integers too.
std::optional<std::vector<Lowered>> Evaluated(const NodeDef& node, Rule rule,
                                              const std::vector<Lowered>& inputs) {
  if (inputs.empty() || !std::all_of(inputs.begin(), inputs.end(), IsSmallInteger)) {
    return std::nullopt;
  }
  LoweringContext context;
  Outputs outputs = rule(context, node, inputs);
  if (!outputs.ok()) return std::nullopt;
  std::vector<Tensor*> results;
  for (Lowered& output : *outputs) {
    if (output.known.has_value()) continue;
    const View view = *std::exchange(output.view, std::nullopt);
    if (IsReal(view.type) || view.type == ElementType::kBool) return std::nullopt;
    if (view.count() > kMostKnown || !CheckDims(view.dims).ok()) return std::nullopt;
    context.builder().AddOutput(view);
    results.push_back(&output.known.emplace(DataTypeOf(view.type), TensorShape(view.dims)));
  }
  const Program program(context.builder().steps());
  ProgramRun run(program);
  for (size_t i = 0; i < results.size(); ++i) {
    run.SetOutput(static_cast<int>(i), results[i]->data());
  }
  run.RunPrologue();
  run.Run();
  return *std::move(outputs);
}

absl::Status CheckOutput(const Lowered& output) {
  if (output.known.has_value()) return absl::OkStatus();
  const View& view = *output.view;
  TF_RETURN_IF_ERROR(CheckDims(view.dims));
  if (view.rank() > kMostDims) return Refused(view.rank(), " dimensions");
  if (InstructionsOfCopy(view) > kMostParts) return Refused("elements that lie too far apart");
  return absl::OkStatus();
}

}  // namespace

bool MayBeLowered(const NodeDef& node) { return Rules().count(node.op()) > 0 || IsInnerLoop(node); }

const char* TfTiLoweredOperations() {
  static const auto& names = *[] {
    auto* const all = new std::string;
    for (const auto& [name, rule] : Rules()) absl::StrAppend(all, name, " ");
    return all;
  }();
  return names.c_str();
}

const char* TfTiLoweredTypes() {
  static const auto& names = *[] {
    auto* const all = new std::string;
    for (int i = 0; i < kNumElementTypes; ++i) {
      const DataType dtype = DataTypeOf(static_cast<ElementType>(i));
      absl::StrAppend(all, tensorflow::DataTypeString(dtype), " ");
    }
    return all;
  }();
  return names.c_str();
}

int64_t TfTiMostElements() { return kMostElements; }

bool IsView(const NodeDef& node) {
  const std::optional<OperationKind> kind = KindOf(node.op());
  return kind == OperationKind::kPassing || kind == OperationKind::kView ||
         kind == OperationKind::kShape || kind == OperationKind::kShapeArithmetic ||
         kind == OperationKind::kFilled;
}

Outputs Lower(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  const auto rule = Rules().find(node.op());
  if (rule == Rules().end()) return Refused("there is no rule for ", node.op());
  for (const Lowered& input : inputs) {
    if (!IsArray(input)) return Refused("programs have no variant");
  }
  if (auto known = Evaluated(node, rule->second, inputs)) return *std::move(known);
  TF_ASSIGN_OR_RETURN(std::vector<Lowered> outputs, rule->second(context, node, inputs));
  if (context.builder().most_instructions() > kMostParts) {
    return Refused("more instructions than ", kMostParts, " for one step");
  }
  for (const Lowered& output : outputs) TF_RETURN_IF_ERROR(CheckOutput(output));
  return outputs;
}

absl::Status CheckInferred(const NodeDef& node, const std::vector<Lowered>& inputs,
                           const std::vector<Lowered>& outputs) {
  const tensorflow::OpRegistrationData* op;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUp(node.op(), &op));
  if (op->shape_inference_fn == nullptr) return Refused("there is no inference of shapes");
  tensorflow::DataTypeVector input_types, output_types;
  TF_RETURN_IF_ERROR(tensorflow::InOutTypesForNode(node, op->op_def, &input_types, &output_types));
  if (input_types.size() != inputs.size() || output_types.size() != outputs.size()) {
    return Refused("another number of inputs or outputs");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (DataTypeOf(inputs[i]) != input_types[i]) return Refused("an input of another type");
  }
  std::vector<tensorflow::PartialTensorShape> shapes;
  std::vector<const Tensor*> tensors;
  for (const Lowered& input : inputs) {
    tensors.push_back(input.known.has_value() ? &*input.known : nullptr);
    shapes.emplace_back(DimsOf(input));
  }
  tensorflow::shape_inference::InferenceContext context(
      TF_GRAPH_DEF_VERSION, tensorflow::AttrSlice(node), op->op_def, shapes, tensors, {}, {});
  TF_RETURN_IF_ERROR(context.construction_status());
  TF_RETURN_IF_ERROR(context.Run(op->shape_inference_fn));
  for (int i = 0; i < static_cast<int>(outputs.size()); ++i) {
    if (DataTypeOf(outputs[i]) != output_types[i]) return Refused("an output of another type");
    const Dims dims = DimsOf(outputs[i]);
    const auto inferred = context.output(i);
    const bool is_known = context.RankKnown(inferred);
    if (is_known && context.Rank(inferred) != static_cast<int>(dims.size())) {
      return Refused("an output of another rank than is inferred");
    }
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t extent = is_known ? context.Value(context.Dim(inferred, d)) : -1;
      if (dims[d] < 0 || (extent >= 0 && extent != dims[d])) {
        return Refused("an output of another shape than is inferred");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
