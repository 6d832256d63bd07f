#include "cc/xla/loops/function.h"

#include <memory>

#include "cc/xla/loops/history.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/service/hlo.pb.h"

namespace tf_ti {

using xla::XlaOp;

absl::Status Function::Call(xla::XlaBuilder* builder, const std::vector<XlaOp>& parameters,
                            std::vector<XlaOp>* results, std::vector<XlaOp>* updates) const {
  std::vector<XlaOp> operands;
  for (int parameter : compiled_.parameters) operands.push_back(parameters[parameter]);
  const XlaOp values = xla::Call(builder, *compiled_.computation, operands);
  int element = 0;
  for (const CompiledFunction::Output& output : compiled_.outputs) {
    if (output.constant.has_value()) {
      results->push_back(ToConstant(builder, *output.constant));
    } else {
      results->push_back(xla::GetTupleElement(values, element++));
    }
  }
  for (size_t i = 0; i < compiled_.updated.size(); ++i) {
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
