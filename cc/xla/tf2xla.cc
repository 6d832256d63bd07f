#include "cc/xla/tf2xla.h"

#include <utility>

#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
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
    OP_REQUIRES_OK(ctx, kernel_->Compile(Context(ctx)));
  }

 private:
  const std::unique_ptr<XlaKernel> kernel_;
};

// Whether TensorFlow has made its kernels for XLA already.
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
                                   std::initializer_list<const char*> constants, Create create) {
  auto builder = tensorflow::XlaOpRegistrationBuilder::Name(op);
  if (types & kResources) builder.AllowResourceTypes();
  if (types & kVariants) builder.AllowVariantTypes();
  for (const char* const input : constants) builder.CompileTimeConstantInput(input);
  const tensorflow::XlaOpRegistrar registered(builder.Build(create));
  // TensorFlow turns what is registered with XLA into kernels when it first compiles something.
  // What is registered later must become kernels here.
  if (!IsTooLate()) return;
  for (const char* device : {tensorflow::DEVICE_CPU_XLA_JIT, tensorflow::DEVICE_GPU_XLA_JIT}) {
    auto* definition = new tensorflow::KernelDef;
    definition->set_op(op);
    definition->set_device_type(device);
    tensorflow::kernel_factory::OpKernelRegistrar(definition, "TfTiXlaOp", create);
  }
}

}  // namespace tf_ti
