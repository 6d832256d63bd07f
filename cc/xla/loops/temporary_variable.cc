// Variables for the values that others had; see cc/kernels/loops/temporary_variable.cc.
#include "cc/xla/tf2xla.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {
namespace {

class TemporaryVariableOp : public XlaKernel {
 public:
  explicit TemporaryVariableOp(tensorflow::OpKernelConstruction*) {}

  absl::Status Compile(const Context& ctx) const override {
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, ctx.InputShape(0));
    const tensorflow::TensorShape value_shape(shape.dimensions());
    ctx.SetNewVariable(0, ctx.input_type(0), value_shape, ctx.Input(0));
    return absl::OkStatus();
  }
};

const XlaRegistrar<TemporaryVariableOp> kTemporaryVariable("TfTi>TemporaryVariable", kResources);

}  // namespace
}  // namespace tf_ti
