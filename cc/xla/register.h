// Registers the XLA kernels of ops.
#ifndef TF_TI_CC_XLA_REGISTER_H_
#define TF_TI_CC_XLA_REGISTER_H_

#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"

namespace tf_ti {

// TensorFlow turns what is registered with XLA into kernels when it first compiles something. What
// is registered later must become kernels here.
struct LateRegistrar {
  LateRegistrar(const char* op, tensorflow::OpKernel* (*create)(tensorflow::OpKernelConstruction*));
};

}  // namespace tf_ti

// `traits` are calls such as .AllowVariantTypes(), or nothing.
#define TF_TI_REGISTER_XLA_OP(op, traits, Kernel) \
  REGISTER_XLA_OP(Name(op) traits, Kernel)        \
  TF_TI_REGISTER_LATE(__COUNTER__, op, Kernel)
#define TF_TI_REGISTER_LATE(counter, op, Kernel) TF_TI_REGISTER_LATE_AS(counter, op, Kernel)
#define TF_TI_REGISTER_LATE_AS(counter, op, Kernel)                                \
  static const ::tf_ti::LateRegistrar late_registrar_##counter(                    \
      op, [](::tensorflow::OpKernelConstruction* ctx) -> ::tensorflow::OpKernel* { \
        return new Kernel(ctx);                                                    \
      });

#endif  // TF_TI_CC_XLA_REGISTER_H_
