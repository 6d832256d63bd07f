#include "cc/xla/tf2xla.h"

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc/status.h"
#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_context.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/compiler/tf2xla/xla_resource.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::Tensor;
using tensorflow::XlaCompiler;
using tensorflow::XlaExpression;
using tensorflow::XlaOpKernelContext;
using tensorflow::XlaResource;
using xla::XlaOp;

xla::XlaBuilder* Context::builder() const { return ctx_->builder(); }
const std::string& Context::op_name() const { return ctx_->op_kernel().name(); }
int Context::num_inputs() const { return ctx_->num_inputs(); }
int Context::num_outputs() const { return ctx_->num_outputs(); }
DataType Context::input_type(int input) const { return ctx_->input_type(input); }

namespace {

// A node of a function.
struct Place {
  const tensorflow::FunctionBody* body;
  const tensorflow::Node* node;
  const Place* call;  // of the function, or null if that is what is compiled
};

// The outputs of a node that lead to results, or to stateful operations, of its function.
std::vector<bool> FindUsedOutputs(const Place& place) {
  const tensorflow::Graph& graph = *place.body->graph;
  std::vector<bool> of_call, is_live(graph.num_node_ids());
  if (place.call != nullptr) of_call = FindUsedOutputs(*place.call);
  std::vector<const tensorflow::Node*> found;
  const auto add = [&](const tensorflow::Node* node) {
    if (!is_live[node->id()]) found.push_back(node);
    is_live[node->id()] = true;
  };
  for (const tensorflow::Node* node : graph.op_nodes()) {
    if (node->op_def().is_stateful() && !node->IsRetval()) add(node);
  }
  for (size_t i = 0; i < place.body->ret_nodes.size(); ++i) {
    if (of_call.empty() || of_call[i]) add(place.body->ret_nodes[i]);
  }
  while (!found.empty()) {
    const tensorflow::Node* node = found.back();
    found.pop_back();
    for (const tensorflow::Edge* edge : node->in_edges()) add(edge->src());
  }
  std::vector<bool> used(place.node->num_outputs());
  for (const tensorflow::Edge* edge : place.node->out_edges()) {
    if (!edge->IsControlEdge() && is_live[edge->dst()->id()]) used[edge->src_output()] = true;
  }
  return used;
}

// The node `name` of the function `function`, or of one that it calls. TensorFlow puts the nodes of
// functions in the places of calls, with the call's name in front of theirs. Null if there is none.
const tensorflow::Node* FindNode(const tensorflow::FunctionBody& function, absl::string_view name,
                                 bool is_call) {
  for (const tensorflow::Node* node : function.graph->op_nodes()) {
    if (is_call ? absl::StartsWith(name, absl::StrCat(node->name(), "/")) && node->IsFunctionCall()
                : name == node->name()) {
      return node;
    }
  }
  return nullptr;
}

}  // namespace

std::vector<bool> Context::UsedOutputs() const {
  const std::vector<bool> all(num_outputs(), true);
  // TensorFlow gives a function's builder the name of the function, and then its attributes.
  tensorflow::NameAttrList function;
  function.set_name(builder()->name().substr(0, builder()->name().find('[')));
  absl::string_view name = op_name();
  std::deque<Place> places;
  while (true) {
    const Place* call = places.empty() ? nullptr : &places.back();
    const tensorflow::FunctionBody* body = nullptr;
    if (!ctx_->compiler()->FindFunctionBody(function, &body).ok()) return all;
    if (const tensorflow::Node* node = FindNode(*body, name, /*is_call=*/false)) {
      return FindUsedOutputs({body, node, call});
    }
    const tensorflow::Node* node = FindNode(*body, name, /*is_call=*/true);
    if (node == nullptr || !tensorflow::GetNodeAttr(node->attrs(), "f", &function).ok()) return all;
    places.push_back({body, node, call});
    name.remove_prefix(node->name().size() + 1);
  }
}

XlaOp Context::Input(int input) const { return ctx_->Input(input); }

absl::StatusOr<xla::Shape> Context::InputShape(int input) const {
  return ctx_->InputXlaShape(input);
}

absl::StatusOr<std::optional<Tensor>> Context::FindConstant(int input) const {
  return ctx_->InputExpression(input).ResolveConstant(ctx_->compiler()->client());
}

absl::Status Context::GetConstant(int input, int64_t* value) const {
  return ctx_->ConstantInputAsIntScalar(input, value);
}

absl::Status Context::ReadVariable(int input, DataType dtype, tensorflow::TensorShape* shape,
                                   XlaOp* value) const {
  return ctx_->ReadVariableInput(input, dtype, shape, value);
}

absl::Status Context::AssignVariable(int input, DataType dtype, XlaOp value) const {
  return ctx_->AssignVariable(input, dtype, value);
}

absl::Status Context::ReadResource(int input, XlaOp* value) const {
  XlaResource* resource;
  TF_RETURN_IF_ERROR(ctx_->GetResourceInput(input, &resource));
  return resource->Pack(value, builder());
}

absl::Status Context::AssignResource(int input, XlaOp value) const {
  XlaResource* resource;
  TF_RETURN_IF_ERROR(ctx_->GetResourceInput(input, &resource));
  return resource->SetFromPack({}, value, builder());
}

void Context::SetNewVariable(int output, DataType dtype, const tensorflow::TensorShape& shape,
                             XlaOp value) const {
  auto variable = std::make_unique<XlaResource>(XlaResource::kVariable, /*arg_num=*/-1, op_name(),
                                                dtype, shape, value, /*max_array_size=*/-1,
                                                /*tensor_array_gradients=*/std::set<std::string>(),
                                                /*tensor_array_multiple_writes_aggregate=*/false);
  ctx_->SetResourceOutput(output, ctx_->xla_context()->AddResource(std::move(variable)));
}

namespace {

// The reads noted by Context::AddRead, for as long as an XLA computation is being made.
class NotedReads : public tensorflow::ResourceBase {
 public:
  static tensorflow::core::RefCountPtr<NotedReads> Of(XlaOpKernelContext* ctx) {
    tensorflow::OpKernelContext* const kernel = ctx->op_kernel_context();
    NotedReads* reads = nullptr;
    TF_CHECK_OK(kernel->step_container()->LookupOrCreate<NotedReads>(
        kernel->resource_manager(), "tf_ti_reads", &reads, [](NotedReads** created) {
          *created = new NotedReads;
          return absl::OkStatus();
        }));
    return tensorflow::core::RefCountPtr<NotedReads>(reads);
  }

  std::string DebugString() const override { return "reads of arrays"; }

  std::vector<std::pair<XlaOp, XlaOp>> arrays_and_values;
};

}  // namespace

void Context::AddRead(XlaOp array, XlaOp value) const {
  NotedReads::Of(ctx_)->arrays_and_values.emplace_back(array, value);
}

std::vector<XlaOp> Context::Reads(XlaOp array) const {
  std::vector<XlaOp> reads;
  for (const auto& [read, value] : NotedReads::Of(ctx_)->arrays_and_values) {
    if (read.IsIdenticalTo(array)) reads.push_back(value);
  }
  return reads;
}

void Context::SetOutput(int output, XlaOp value) const {
  if (ctx_->expected_output_dtype(output) == tensorflow::DT_VARIANT) {
    ctx_->SetTensorListOutput(output, value);
  } else {
    ctx_->SetOutput(output, value);
  }
}

void Context::SetOutput(int output, const Tensor& value) const {
  ctx_->SetConstantOutput(output, value);
}

absl::Status Context::InspectFunction(const tensorflow::NameAttrList& function,
                                      tensorflow::DataTypeVector* types,
                                      std::vector<bool>* must_be_constant) const {
  std::vector<bool> nodes;
  const tensorflow::FunctionBody* body = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::FindMustBeConstNodes(ctx_, function, &nodes, &body));
  types->assign(body->arg_types.begin(), body->arg_types.end());
  for (const tensorflow::Node* node : body->arg_nodes) {
    must_be_constant->push_back(nodes[node->id()]);
  }
  return absl::OkStatus();
}

absl::Status Context::CompileFunction(const tensorflow::NameAttrList& function,
                                      const std::vector<FunctionArgument>& arguments,
                                      CompiledFunction* compiled) const {
  std::vector<XlaCompiler::Argument> given;
  for (const FunctionArgument& from : arguments) {
    XlaCompiler::Argument& to = given.emplace_back();
    if (from.variable >= 0) {
      XlaResource* resource;
      TF_RETURN_IF_ERROR(ctx_->GetResourceInput(from.variable, &resource));
      XlaCompiler::PopulateArgumentFromResource(*resource, &to);
      continue;
    }
    to.type = from.type;
    if (from.constant.has_value()) {
      to.kind = XlaCompiler::Argument::kConstant;
      to.constant_value = *from.constant;
      to.shape = from.constant->shape();
      continue;
    }
    to.kind = from.type == tensorflow::DT_VARIANT ? XlaCompiler::Argument::kTensorList
                                                  : XlaCompiler::Argument::kParameter;
    to.shape = from.shape;
    to.initialized = true;
  }
  XlaCompiler::CompileOptions options;
  options.is_entry_computation = false;
  XlaCompiler::CompilationResult result;
  TF_RETURN_IF_ERROR(ctx_->compiler()->CompileFunction(options, function, given, &result));
  TF_RETURN_IF_ERROR(ctx_->xla_context()->RecordCollectiveInfoFromNestedCompilationResult(result));
  compiled->computation = result.computation;
  compiled->parameters = result.input_mapping;
  int element = 0;
  for (const XlaCompiler::OutputDescription& output : result.outputs) {
    CompiledFunction::Output& made = compiled->outputs.emplace_back();
    made.type = output.type;
    if (output.is_constant) {
      made.constant = output.constant_value;
      TF_RETURN_IF_ERROR(tensorflow::TensorShapeToXLAShape(output.type, output.shape, &made.shape));
    } else {
      made.shape = result.xla_output_shape.tuple_shapes(element++);
    }
  }
  for (const XlaCompiler::ResourceUpdate& update : result.resource_updates) {
    compiled->updated.push_back(update.input_index);
  }
  return absl::OkStatus();
}

XlaOp ToConstant(xla::XlaBuilder* builder, const Tensor& value) {
  return XlaExpression::Constant(value).AsXlaOp(builder);
}

bool IsForCpu(OpKernelConstruction* ctx) {
  return ctx->device_type() == tensorflow::DEVICE_CPU_XLA_JIT;
}

namespace {

class WrappedKernel : public tensorflow::XlaOpKernel {
 public:
  WrappedKernel(OpKernelConstruction* ctx, std::unique_ptr<XlaKernel> kernel)
      : XlaOpKernel(ctx), kernel_(std::move(kernel)) {}

  void Compile(XlaOpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx,
                   CatchOutOfMemory(type_string(), [&] { return kernel_->Compile(Context(ctx)); }));
  }

 private:
  const std::unique_ptr<XlaKernel> kernel_;
};

// Returns true if TensorFlow has made its kernels for XLA already.
bool IsTooLate() {
  tensorflow::NodeDef node;
  node.set_name("tf_ti");
  node.set_op("NoOp");
  return tensorflow::FindKernelDef(tensorflow::DeviceType(tensorflow::DEVICE_CPU_XLA_JIT), node,
                                   nullptr, nullptr)
      .ok();
}

}  // namespace

tensorflow::OpKernel* XlaRegistrarBase::Wrap(OpKernelConstruction* ctx,
                                             std::unique_ptr<XlaKernel> kernel) {
  return new WrappedKernel(ctx, std::move(kernel));
}

XlaRegistrarBase::XlaRegistrarBase(const char* op, int types,
                                   std::initializer_list<const char*> constants, const char* label,
                                   Create create) {
  auto builder = tensorflow::XlaOpRegistrationBuilder::Name(op);
  builder.Label(label);
  if (types & kResources) builder.AllowResourceTypes();
  if (types & kVariants) builder.AllowVariantTypes();
  for (const char* const input : constants) builder.CompileTimeConstantInput(input);
  const tensorflow::XlaOpRegistrar registered(builder.Build(create));
  // TensorFlow turns all registrations with XLA into kernels when it first compiles something.
  // Later registrations must become kernels here.
  if (!IsTooLate()) return;
  for (const char* device : {tensorflow::DEVICE_CPU_XLA_JIT, tensorflow::DEVICE_GPU_XLA_JIT}) {
    auto* definition = new tensorflow::KernelDef;
    definition->set_op(op);
    definition->set_device_type(device);
    definition->set_label(label);
    tensorflow::kernel_factory::OpKernelRegistrar(definition, "TfTiXlaOp", create);
  }
}

}  // namespace tf_ti
