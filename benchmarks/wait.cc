// An operation that waits for a millisecond and computes nothing: many threads can wait on few
// cores. Compiled when the benchmark runs.
#include <chrono>
#include <thread>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace {

class Wait : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* ctx) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ctx->set_output(0, ctx->input(0));
  }
};

REGISTER_OP("BenchmarkWait")
    .Input("x: float")
    .Output("y: float")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);
REGISTER_KERNEL_BUILDER(Name("BenchmarkWait").Device(tensorflow::DEVICE_CPU), Wait);

}  // namespace
