// A TensorFlow function, compiled so that it can be called from XLA computations.
#ifndef TF_TI_CC_XLA_LOOPS_FUNCTION_H_
#define TF_TI_CC_XLA_LOOPS_FUNCTION_H_

#include <string>
#include <vector>

#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"

namespace tf_ti {

class Function {
 public:
  // The types of the function's parameters, and which it needs to know when it is compiled.
  static absl::Status Inspect(tensorflow::XlaOpKernelContext* ctx,
                              const tensorflow::NameAttrList& function,
                              tensorflow::DataTypeVector* types,
                              std::vector<bool>* must_be_constant);

  absl::Status Compile(tensorflow::XlaOpKernelContext* ctx,
                       const tensorflow::NameAttrList& function,
                       const std::vector<tensorflow::XlaCompiler::Argument>& arguments);

  int num_results() const { return compiled_.outputs.size(); }
  tensorflow::DataType type(int result) const { return compiled_.outputs[result].type; }
  const xla::Shape& shape(int result) const { return shapes_[result]; }
  // The parameters, variables, that the function writes to.
  std::vector<int> updated() const;

  // `parameters` has a value for each parameter that is no constant. Appends the results, and to
  // `updates` the new values of updated().
  absl::Status Call(xla::XlaBuilder* builder, const std::vector<xla::XlaOp>& parameters,
                    std::vector<xla::XlaOp>* results, std::vector<xla::XlaOp>* updates) const;
  // The same where `condition` holds; else the results and updates mean nothing. A function that
  // may run forever or fail is then not run.
  absl::Status CallIf(xla::XlaOp condition, const std::vector<xla::XlaOp>& parameters,
                      std::vector<xla::XlaOp>* results, std::vector<xla::XlaOp>* updates) const;

 private:
  bool MayNotEnd() const;

  tensorflow::XlaCompiler::CompilationResult compiled_;
  std::vector<xla::Shape> shapes_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_FUNCTION_H_
