// A TensorFlow function, compiled so that it can be called from XLA computations.
#ifndef TF_TI_CC_XLA_LOOPS_FUNCTION_H_
#define TF_TI_CC_XLA_LOOPS_FUNCTION_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/xla/tf2xla.h"
#include "tensorflow/core/framework/types.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_ti {

class Function {
 public:
  absl::Status Compile(const Context& ctx, const tensorflow::NameAttrList& function,
                       const std::vector<FunctionArgument>& arguments) {
    compiled_ = CompiledFunction();
    return ctx.CompileFunction(function, arguments, &compiled_);
  }

  int num_results() const { return compiled_.outputs.size(); }
  tensorflow::DataType type(int result) const { return compiled_.outputs[result].type; }
  const xla::Shape& shape(int result) const { return compiled_.outputs[result].shape; }
  // The parameters, variables, that the function writes to.
  const std::vector<int>& updated() const { return compiled_.updated; }

  // `parameters` has a value for each parameter that is no constant. Appends the results, and to
  // `updates` the new values of updated().
  absl::Status Call(xla::XlaBuilder* builder, const std::vector<xla::XlaOp>& parameters,
                    std::vector<xla::XlaOp>* results, std::vector<xla::XlaOp>* updates) const;
  // The same where `condition` holds; otherwise the results and updates mean nothing. A function
  // that may run forever or fail is then not run.
  absl::Status CallIf(xla::XlaOp condition, const std::vector<xla::XlaOp>& parameters,
                      std::vector<xla::XlaOp>* results, std::vector<xla::XlaOp>* updates) const;

 private:
  bool MayNotEnd() const;

  CompiledFunction compiled_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_FUNCTION_H_
