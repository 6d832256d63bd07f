#include "cc/xla/function.h"

#include "tensorflow/compiler/tf2xla/kernels/if_while_utils.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/core/common_runtime/function_body.h"

namespace tf_ti {

using tensorflow::XlaCompiler;
using tensorflow::XlaExpression;
using xla::XlaOp;

absl::Status Function::Inspect(tensorflow::XlaOpKernelContext* ctx,
                               const tensorflow::NameAttrList& function,
                               tensorflow::DataTypeVector* types,
                               std::vector<bool>* must_be_constant) {
  std::vector<bool> nodes;
  const tensorflow::FunctionBody* body = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::FindMustBeConstNodes(ctx, function, &nodes, &body));
  types->assign(body->arg_types.begin(), body->arg_types.end());
  for (const tensorflow::Node* node : body->arg_nodes) {
    must_be_constant->push_back(nodes[node->id()]);
  }
  return absl::OkStatus();
}

absl::Status Function::Compile(tensorflow::XlaOpKernelContext* ctx,
                               const tensorflow::NameAttrList& function,
                               const std::vector<XlaCompiler::Argument>& arguments) {
  XlaCompiler::CompileOptions options;
  options.is_entry_computation = false;
  TF_RETURN_IF_ERROR(ctx->compiler()->CompileFunction(options, function, arguments, &compiled_));
  TF_RETURN_IF_ERROR(
      ctx->xla_context()->RecordCollectiveInfoFromNestedCompilationResult(compiled_));
  int element = 0;
  for (const XlaCompiler::OutputDescription& output : compiled_.outputs) {
    if (output.is_constant) {
      TF_RETURN_IF_ERROR(
          tensorflow::TensorShapeToXLAShape(output.type, output.shape, &shapes_.emplace_back()));
    } else {
      shapes_.push_back(compiled_.xla_output_shape.tuple_shapes(element++));
    }
  }
  return absl::OkStatus();
}

std::vector<int> Function::updated() const {
  std::vector<int> parameters;
  for (const XlaCompiler::ResourceUpdate& update : compiled_.resource_updates) {
    parameters.push_back(update.input_index);
  }
  return parameters;
}

absl::Status Function::Call(xla::XlaBuilder* builder, const std::vector<XlaOp>& parameters,
                            std::vector<XlaOp>* results, std::vector<XlaOp>* updates) const {
  std::vector<XlaOp> operands;
  for (int parameter : compiled_.input_mapping) operands.push_back(parameters[parameter]);
  const XlaOp values = xla::Call(builder, *compiled_.computation, operands);
  int element = 0;
  for (const XlaCompiler::OutputDescription& output : compiled_.outputs) {
    if (output.is_constant) {
      results->push_back(XlaExpression::Constant(output.constant_value).AsXlaOp(builder));
    } else {
      results->push_back(xla::GetTupleElement(values, element++));
    }
  }
  for (size_t i = 0; i < compiled_.resource_updates.size(); ++i) {
    updates->push_back(xla::GetTupleElement(values, element++));
  }
  return builder->first_error();
}

}  // namespace tf_ti
