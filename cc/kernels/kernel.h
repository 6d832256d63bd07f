// The base of all kernels. Memory that runs out while a kernel is made, or runs, is an error that
// names the op, as in TensorFlow's kernels.
#ifndef TF_TI_CC_KERNELS_KERNEL_H_
#define TF_TI_CC_KERNELS_KERNEL_H_

#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

class SafeKernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  // Not OP_REQUIRES_OK, which logs. The graph optimizer tries to run ops on constants, and nobody
  // needs to know when that fails.
  void Compute(tensorflow::OpKernelContext* ctx) final {
    ctx->SetStatus(CatchOutOfMemory(type_string(), [&] { return Run(ctx); }));
  }

 private:
  virtual absl::Status Run(tensorflow::OpKernelContext* ctx) = 0;
};

class SafeAsyncKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(tensorflow::OpKernelContext* ctx, DoneCallback done) final {
    bool goes_on = false;
    const absl::Status status =
        CatchOutOfMemory(type_string(), [&] { return Start(ctx, done, &goes_on); });
    if (goes_on) return;
    ctx->SetStatus(status);
    done();
  }

 private:
  // Runs the kernel; or begins to, sets `goes_on` once nothing can fail here any more, and has
  // somebody call `done` later. What runs later must catch memory that runs out, too.
  virtual absl::Status Start(tensorflow::OpKernelContext* ctx, const DoneCallback& done,
                             bool* goes_on) = 0;
};

// No other class is a kernel.
inline tensorflow::OpKernel* AsOpKernel(SafeKernel* kernel) { return kernel; }
inline tensorflow::OpKernel* AsOpKernel(SafeAsyncKernel* kernel) { return kernel; }

// Calls a function that makes a kernel. Where there is no memory for one, the construction gets the
// error, and the result is null.
template <typename Make>
tensorflow::OpKernel* MakeKernel(tensorflow::OpKernelConstruction* ctx, const Make& make) {
  tensorflow::OpKernel* kernel = nullptr;
  ctx->SetStatus(CatchOutOfMemory(ctx->def().op(), [&] {
    kernel = make();
    return ctx->status();
  }));
  return kernel;
}

// Registers a kernel. REGISTER_KERNEL_BUILDER would let exceptions of its constructor out.
#define TF_TI_REGISTER_KERNEL(builder, ...) \
  TF_TI_REGISTER_KERNEL_EXPANDED(__COUNTER__, builder, __VA_ARGS__)
#define TF_TI_REGISTER_KERNEL_EXPANDED(number, builder, ...) \
  TF_TI_REGISTER_KERNEL_NUMBER(number, builder, __VA_ARGS__)
#define TF_TI_REGISTER_KERNEL_NUMBER(number, builder, ...)                          \
  const tensorflow::kernel_factory::OpKernelRegistrar registered_##number(          \
      tensorflow::register_kernel::builder.Build(), #__VA_ARGS__,                   \
      [](tensorflow::OpKernelConstruction* ctx) {                                   \
        return MakeKernel(ctx, [ctx] { return AsOpKernel(new __VA_ARGS__(ctx)); }); \
      })

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_KERNEL_H_
