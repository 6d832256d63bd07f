#include "cc/xla/loops/function.h"

#include <memory>

#include "cc/xla/loops/sequence.h"
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

bool Function::MayNotEnd() const {
  for (const xla::HloComputationProto& computation :
       compiled_.computation->proto().computations()) {
    for (const xla::HloInstructionProto& instruction : computation.instructions()) {
      if (instruction.opcode() == "while" || instruction.opcode() == "custom-call") return true;
    }
  }
  return false;
}

absl::Status Function::CallIf(XlaOp condition, const std::vector<XlaOp>& parameters,
                              std::vector<XlaOp>* results, std::vector<XlaOp>* updates) const {
  xla::XlaBuilder* const builder = condition.builder();
  if (!MayNotEnd()) return Call(builder, parameters, results, updates);
  const XlaOp operand = xla::Tuple(builder, parameters);
  TF_ASSIGN_OR_RETURN(const xla::Shape given, builder->GetShape(operand));

  const std::unique_ptr<xla::XlaBuilder> run = builder->CreateSubBuilder("tf_ti_run");
  const XlaOp tuple = xla::Parameter(run.get(), 0, given, "parameters");
  std::vector<XlaOp> inner, values, updated;
  for (size_t p = 0; p < parameters.size(); ++p) inner.push_back(xla::GetTupleElement(tuple, p));
  TF_RETURN_IF_ERROR(Call(run.get(), inner, &values, &updated));
  const size_t num_results = values.size();
  values.insert(values.end(), updated.begin(), updated.end());
  TF_ASSIGN_OR_RETURN(const xla::XlaComputation taken, run->Build(xla::Tuple(run.get(), values)));

  const std::unique_ptr<xla::XlaBuilder> skip = builder->CreateSubBuilder("tf_ti_skip");
  xla::Parameter(skip.get(), 0, given, "parameters");
  TF_ASSIGN_OR_RETURN(const xla::ProgramShape program, taken.GetProgramShape());
  TF_ASSIGN_OR_RETURN(const xla::XlaComputation skipped,
                      skip->Build(ZeroValue(skip.get(), program.result())));

  const XlaOp chosen = xla::Conditional(condition, operand, taken, operand, skipped);
  for (size_t i = 0; i < values.size(); ++i) {
    (i < num_results ? results : updates)->push_back(xla::GetTupleElement(chosen, i));
  }
  return builder->first_error();
}

}  // namespace tf_ti
