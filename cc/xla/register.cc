#include "cc/xla/register.h"

#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {
namespace {

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

LateRegistrar::LateRegistrar(const char* op,
                             tensorflow::OpKernel* (*create)(tensorflow::OpKernelConstruction*)) {
  if (!IsTooLate()) return;
  for (const char* device : {tensorflow::DEVICE_CPU_XLA_JIT, tensorflow::DEVICE_GPU_XLA_JIT}) {
    auto* definition = new tensorflow::KernelDef;
    definition->set_op(op);
    definition->set_device_type(device);
    tensorflow::kernel_factory::OpKernelRegistrar(definition, "TfTiXlaOp", create);
  }
}

}  // namespace tf_ti
