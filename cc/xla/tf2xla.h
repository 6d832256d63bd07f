// An interface to tf2xla for XLA kernels. A compiler spends more time on its headers than on all
// else here, so tf2xla.cc alone includes them.
#ifndef TF_TI_CC_XLA_TF2XLA_H_
#define TF_TI_CC_XLA_TF2XLA_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/hlo/builder/xla_computation.h"
#include "xla/shape.h"

namespace tensorflow {
class NameAttrList;
class XlaOpKernelContext;
}  // namespace tensorflow

namespace tf_ti {

// The argument of a compiled function for a parameter: a constant, a variable, or else a value.
struct FunctionArgument {
  tensorflow::DataType type = tensorflow::DT_INVALID;
  xla::Shape shape;
  std::optional<tensorflow::Tensor> constant;
  int variable = -1;  // the op's input that is its handle
};

// A TensorFlow function as a computation, whose result is a tuple: the outputs that are no
// constants, then the variables' new values.
struct CompiledFunction {
  struct Output {
    tensorflow::DataType type;
    xla::Shape shape;
    std::optional<tensorflow::Tensor> constant;
  };

  std::shared_ptr<const xla::XlaComputation> computation;
  std::vector<int> parameters;  // those that the computation takes
  std::vector<Output> outputs;
  std::vector<int> updated;  // the parameters, variables, that the function writes to
};

// An op's view of its compilation by XLA.
class Context {
 public:
  explicit Context(tensorflow::XlaOpKernelContext* ctx) : ctx_(ctx) {}

  xla::XlaBuilder* builder() const;
  const std::string& op_name() const;
  int num_inputs() const;
  int num_outputs() const;
  tensorflow::DataType input_type(int input) const;
  // True for each output that may have a use. Any other output may be set to anything.
  std::vector<bool> UsedOutputs() const;

  xla::XlaOp Input(int input) const;
  absl::StatusOr<xla::Shape> InputShape(int input) const;
  // The value of an input, if it is known by now.
  absl::StatusOr<std::optional<tensorflow::Tensor>> FindConstant(int input) const;
  // The same of an integer that must be known.
  absl::Status GetConstant(int input, int64_t* value) const;

  // The variable that an input is the handle of.
  absl::Status ReadVariable(int input, tensorflow::DataType dtype, tensorflow::TensorShape* shape,
                            xla::XlaOp* value) const;
  absl::Status AssignVariable(int input, tensorflow::DataType dtype, xla::XlaOp value) const;
  // The same of any resource, as functions take it and return it.
  absl::Status ReadResource(int input, xla::XlaOp* value) const;
  absl::Status AssignResource(int input, xla::XlaOp value) const;
  // Gives the handle of a variable that only this computation knows.
  void SetNewVariable(int output, tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                      xla::XlaOp value) const;

  // Notes a value that is computed from an array, and finds the values of an array again. An
  // operation that changes the array in place has to wait for them: XLA lets it change a copy of
  // the array unless it depends on all that reads the array.
  void AddRead(xla::XlaOp array, xla::XlaOp value) const;
  std::vector<xla::XlaOp> Reads(xla::XlaOp array) const;

  void SetOutput(int output, xla::XlaOp value) const;
  void SetOutput(int output, const tensorflow::Tensor& value) const;

  // The types of a function's parameters, and for each of them true if it must be known at compile
  // time.
  absl::Status InspectFunction(const tensorflow::NameAttrList& function,
                               tensorflow::DataTypeVector* types,
                               std::vector<bool>* must_be_constant) const;
  absl::Status CompileFunction(const tensorflow::NameAttrList& function,
                               const std::vector<FunctionArgument>& arguments,
                               CompiledFunction* compiled) const;

 private:
  tensorflow::XlaOpKernelContext* const ctx_;
};

// A constant of an XLA computation.
xla::XlaOp ToConstant(xla::XlaBuilder* builder, const tensorflow::Tensor& value);

// A kernel that makes an op's part of an XLA computation.
class XlaKernel {
 public:
  virtual ~XlaKernel() = default;
  // Sets all outputs, which on an error mean nothing.
  virtual absl::Status Compile(const Context& ctx) const = 0;
};

// Returns true if the kernel under construction is for XLA computations on the CPU.
bool IsForCpu(tensorflow::OpKernelConstruction* ctx);

// The types that an op takes beside plain arrays.
enum XlaTypes : int { kPlain = 0, kResources = 1, kVariants = 2 };

// Registers a kernel for an op, as a constant at namespace scope. The kernel's constructor takes an
// OpKernelConstruction*; `constants` are inputs, or lists of inputs, that must be known. With a
// label, it is for nodes whose attribute `_kernel` is that.
class XlaRegistrarBase {
 protected:
  using Create = tensorflow::OpKernel* (*)(tensorflow::OpKernelConstruction*);

  XlaRegistrarBase(const char* op, int types, std::initializer_list<const char*> constants,
                   const char* label, Create create);
  static tensorflow::OpKernel* Wrap(tensorflow::OpKernelConstruction* ctx,
                                    std::unique_ptr<XlaKernel> kernel);
};
template <typename Kernel>
class XlaRegistrar : XlaRegistrarBase {
 public:
  explicit XlaRegistrar(const char* op, int types = kPlain,
                        std::initializer_list<const char*> constants = {}, const char* label = "")
      : XlaRegistrarBase(op, types, constants, label,
                         [](tensorflow::OpKernelConstruction* ctx) -> tensorflow::OpKernel* {
                           return Wrap(ctx, std::make_unique<Kernel>(ctx));
                         }) {}
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_TF2XLA_H_
