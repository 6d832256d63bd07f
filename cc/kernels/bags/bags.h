// The basics of the kernels for pooled embedding look-ups: inputs in the form that cc/compute
// takes.
#ifndef TF_TI_CC_KERNELS_BAGS_BAGS_H_
#define TF_TI_CC_KERNELS_BAGS_BAGS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "cc/compute/bags/bags.h"
#include "cc/kernels/elements.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/threads.h"
#include "cc/spec/bags/bag_spec.h"
#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

#if GOOGLE_CUDA
#include "cc/compute/bags/bags_gpu.h"
#endif

namespace tf_ti {

// A function that gets the shapes of a kernel's inputs, as specifications ask for them.
inline auto InputShapes(tensorflow::OpKernelContext* ctx) {
  return [ctx](int input, const char*, tensorflow::TensorShape* shape) {
    *shape = ctx->input(input).shape();
    return absl::OkStatus();
  };
}

// Checks the shapes of a look-up's inputs, and gets its bags. Their values are left for cc/compute
// to check.
template <typename Index>
absl::Status GetBags(tensorflow::OpKernelContext* ctx, const BagSpec& spec, Bags<Index>* bags);

// Gets the `count` bags of inputs whose shapes have been checked.
template <typename Index>
Bags<Index> CheckedBags(tensorflow::OpKernelContext* ctx, const BagSpec& spec, int64_t count);

// Gets the weights of inputs whose shapes have been checked.
template <typename E>
Weights<E> CheckedWeights(tensorflow::OpKernelContext* ctx, const BagSpec& spec);

// The shape of `count` rows of a tensor of `shape`, whose first dimension is that of the rows.
absl::Status RowsShape(int64_t count, const tensorflow::TensorShape& shape,
                       tensorflow::TensorShape* rows);

// The gradient of a look-up's output, and its bags.
template <typename E, typename Index>
struct BagGradients {
  const tensorflow::Tensor* grad = nullptr;
  Bags<Index> bags;
  Weights<E> weights;
  const Index* argmax = nullptr;
  int64_t width = 0;

  absl::Status Get(tensorflow::OpKernelContext* ctx, const BagSpec& spec) {
    tensorflow::TensorShape shape;
    int64_t count;
    TF_RETURN_IF_ERROR(spec.CheckGradientShapes(InputShapes(ctx), &shape, &count));
    return GetChecked(ctx, spec);
  }

  // The same of inputs whose shapes have been checked.
  absl::Status GetChecked(tensorflow::OpKernelContext* ctx, const BagSpec& spec) {
    grad = &ctx->input(spec.grad());
    bags = CheckedBags<Index>(ctx, spec, grad->dim_size(0));
    weights = CheckedWeights<E>(ctx, spec);
    if (spec.reduction == Reduction::kMax) argmax = Elements<Index>(ctx->input(spec.end));
    tensorflow::TensorShape row;
    TF_RETURN_IF_ERROR(RowsShape(1, grad->shape(), &row));
    width = row.num_elements();
    return absl::OkStatus();
  }
};

// The variable that an input is the handle of.
absl::Status LookupVariable(tensorflow::OpKernelContext* ctx, int input,
                            tensorflow::core::RefCountPtr<tensorflow::Var>* variable);

// The rows of tables, which are tensors or variables; the variables stay locked as long as this
// lives, so that their rows can be read where they are. (To take a reference instead would make the
// next sparse update copy all of it.)
class TableReader {
 public:
  TableReader() = default;
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;
  ~TableReader() {
    for (tensorflow::Var* variable : locked_) variable->mu()->unlock_shared();
  }

  // Opens the table that input 0 is, or is the handle of.
  absl::Status Open(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype);
  // Opens those of an op of several.
  absl::Status OpenAll(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                       const std::vector<BagSpec>& specs);

  const tensorflow::TensorShape& shape(int number = 0) const { return tensors_[number]->shape(); }

  template <typename E>
  Table<E> Get(int number = 0) const {
    const tensorflow::TensorShape& shape = this->shape(number);
    uint64_t width = 1;  // without rows it may not fit, and then means nothing
    for (int d = 1; d < shape.dims(); ++d) width *= shape.dim_size(d);
    return {Elements<E>(*tensors_[number]), shape.dim_size(0),
            static_cast<int64_t>(width & std::numeric_limits<int64_t>::max())};
  }

 private:
  absl::Status Find(tensorflow::OpKernelContext* ctx, int number);
  void Lock();
  absl::Status Check(tensorflow::OpKernelContext* ctx, int number, tensorflow::DataType dtype);

  // Of each table; no variables where the tables are tensors.
  absl::InlinedVector<tensorflow::core::RefCountPtr<tensorflow::Var>, 1> variables_;
  absl::InlinedVector<const tensorflow::Tensor*, 1> tensors_;
  absl::InlinedVector<tensorflow::Var*, 1> locked_;
};

// The CPU checks values while it computes.
template <typename Index>
absl::Status CheckValues(tensorflow::OpKernelContext*, const Bags<Index>&, int64_t, Threads*) {
  return absl::OkStatus();
}

#if GOOGLE_CUDA
// Waits for the result of check(problem on the device); describe(problem) is its error message.
absl::Status CheckOnGpu(tensorflow::OpKernelContext* ctx,
                        const std::function<std::string(GpuProblem*)>& check,
                        const std::function<std::string(const GpuProblem&)>& describe);

// On a GPU a check would wait.
template <typename Index>
absl::Status CheckValues(tensorflow::OpKernelContext* ctx, const Bags<Index>& bags,
                         int64_t num_rows, KernelGpu* gpu) {
  if (!ChecksIds()) return absl::OkStatus();
  return CheckOnGpu(
      ctx, [&](GpuProblem* problem) { return CheckBags(bags, num_rows, gpu, problem); },
      [&](const GpuProblem& problem) { return DescribeProblem(bags, num_rows, problem); });
}

// In place of a kernel for a variable on a GPU, where an op has none for its type: TensorFlow would
// only say that it cannot place the op. A variable that has no device yet, as in a graph of
// TensorFlow 1, goes to the CPU with it, whose kernel has the higher priority.
class RefusedVariableOp : public SafeKernel {
 public:
  explicit RefusedVariableOp(tensorflow::OpKernelConstruction* ctx) : SafeKernel(ctx) {
    tensorflow::DataType dtype;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype));
    ctx->SetStatus(Unimplemented(type_string(), " takes no variable of ", DataTypeString(dtype),
                                 " on a GPU: create the variable under tf.device(\"CPU:0\")"));
  }

 private:
  absl::Status Run(tensorflow::OpKernelContext*) override { return absl::OkStatus(); }
};

#define TF_TI_REFUSE_VARIABLE(name, T)                                               \
  TF_TI_REGISTER_KERNEL(                                                             \
      Name(name).Device(tensorflow::DEVICE_GPU).TypeConstraint<T>("T").Priority(-1), \
      RefusedVariableOp)
#endif

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_BAGS_BAGS_H_
