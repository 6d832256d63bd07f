// The kernel that updates rows of a variable in place.
#include <mutex>

#include "cc/kernels/bags/bags.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/threads.h"

namespace tf_ti {
namespace {

using tensorflow::DataTypeToEnum;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;

// Makes the variable one whose rows may be written where they are, whoever holds a copy of its
// value: from then on TensorFlow copies it for every read of all of it. The caller has locked it.
absl::Status PrepareForRows(OpKernelContext* ctx, Var* variable) {
  if (variable->copy_on_read_mode.load()) return absl::OkStatus();
  Tensor* const tensor = variable->tensor();
  if (!tensor->RefCountIsOne()) {
    tensorflow::AllocatorAttributes attributes;
    attributes.set_gpu_compatible(true);
    attributes.set_nic_compatible(true);
    Tensor copy;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensor->dtype(), tensor->shape(), &copy, attributes));
    TF_RETURN_IF_ERROR(CopyNumbers(ctx, *tensor, &copy));
    *tensor = copy;
  }
  variable->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

// The CPU checks indices before it writes.
template <typename Index>
absl::Status CheckRows(OpKernelContext*, const Tensor&, int64_t, Threads*) {
  return absl::OkStatus();
}

#if GOOGLE_CUDA
// On a GPU it would mean to wait.
template <typename Index>
absl::Status CheckRows(OpKernelContext* ctx, const Tensor& indices, int64_t num_rows,
                       KernelGpu* gpu) {
  if (!ChecksIds()) return absl::OkStatus();
  return CheckOnGpu(
      ctx,
      [&](GpuProblem* problem) {
        return CheckIndices(Elements<Index>(indices), indices.NumElements(), num_rows, gpu,
                            problem);
      },
      [&](const GpuProblem& problem) { return DescribeProblem(num_rows, problem); });
}
#endif

// `Device` is what computes: Threads, or a KernelGpu.
template <typename T, typename Index, typename Device>
class ScatterSubOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    tensorflow::core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(ctx, LookupVariable(ctx, &variable));
    const std::lock_guard lock(*variable->mu());
    OP_REQUIRES_OK(ctx, Update(ctx, variable.get()));
  }

 private:
  using E = Element<T>;

  static absl::Status Update(OpKernelContext* ctx, Var* variable) {
    const Tensor& indices = ctx->input(1);
    const Tensor& values = ctx->input(2);
    const Tensor& scale = ctx->input(3);
    if (!variable->is_initialized) {
      return absl::FailedPreconditionError("the variable is not initialized");
    }
    Tensor* const tensor = variable->tensor();
    if (tensor->dtype() != DataTypeToEnum<T>::value) {
      return InvalidArgument("the variable has type ", DataTypeString(tensor->dtype()),
                             ", but values have type ", DataTypeString(values.dtype()));
    }
    if (tensor->dims() == 0) return InvalidArgument("the variable must have rank 1 or more");
    if (indices.dims() != 1) {
      return InvalidArgument("indices must have rank 1, got shape ", indices.shape().DebugString());
    }
    if (scale.dims() != 0 || scale.dtype() != SumType()) {
      return InvalidArgument("scale must be a scalar of type ", DataTypeString(SumType()),
                             ", got one of type ", DataTypeString(scale.dtype()), " and shape ",
                             scale.shape().DebugString());
    }
    TensorShape expected;
    TF_RETURN_IF_ERROR(RowsShape(indices.NumElements(), tensor->shape(), &expected));
    if (values.shape() != expected) {
      return InvalidArgument("values must have shape ", expected.DebugString(), ", got ",
                             values.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(PrepareForRows(ctx, variable));
    const int64_t rows = tensor->dim_size(0);
    const int64_t width = rows == 0 ? 0 : tensor->NumElements() / rows;
    Device device(ctx);
    TF_RETURN_IF_ERROR(CheckRows<Index>(ctx, indices, rows, &device));
    return ToStatus(ScatterSub(Elements<Index>(indices), indices.NumElements(), Elements<E>(values),
                               Scale(scale, &device), rows, width, &device, Elements<E>(tensor)),
                    &device);
  }

  static constexpr bool kIsHalf = !std::is_same_v<T, Element<T>>;

  static tensorflow::DataType SumType() {
    return kIsHalf ? tensorflow::DT_FLOAT : DataTypeToEnum<T>::value;
  }
  static Sum<E> Scale(const Tensor& scale, Threads*) {
    if constexpr (kIsHalf) {
      return scale.scalar<float>()();
    } else {
      return scale.scalar<T>()();
    }
  }
#if GOOGLE_CUDA
  static const Sum<E>* Scale(const Tensor& scale, KernelGpu*) { return Elements<Sum<E>>(scale); }
#endif
};

#define TF_TI_REGISTER_INDEX(device, computer, T, Index)          \
  REGISTER_KERNEL_BUILDER(Name("TfTi>ScatterSub")                 \
                              .Device(device)                     \
                              .TypeConstraint<T>("T")             \
                              .TypeConstraint<Index>("Tindices"), \
                          ScatterSubOp<T, Index, computer>);
#define TF_TI_REGISTER(T)                                           \
  TF_TI_REGISTER_INDEX(tensorflow::DEVICE_CPU, Threads, T, int32_t) \
  TF_TI_REGISTER_INDEX(tensorflow::DEVICE_CPU, Threads, T, int64_t)
TF_CALL_INTEGRAL_TYPES(TF_TI_REGISTER);
TF_CALL_half(TF_TI_REGISTER);
TF_CALL_bfloat16(TF_TI_REGISTER);
TF_CALL_float(TF_TI_REGISTER);
TF_CALL_double(TF_TI_REGISTER);
TF_CALL_COMPLEX_TYPES(TF_TI_REGISTER);

#if GOOGLE_CUDA
#define TF_TI_REGISTER_GPU(T)                                         \
  TF_TI_REGISTER_INDEX(tensorflow::DEVICE_GPU, KernelGpu, T, int32_t) \
  TF_TI_REGISTER_INDEX(tensorflow::DEVICE_GPU, KernelGpu, T, int64_t)
TF_CALL_half(TF_TI_REGISTER_GPU);
TF_CALL_bfloat16(TF_TI_REGISTER_GPU);
TF_CALL_float(TF_TI_REGISTER_GPU);
TF_CALL_double(TF_TI_REGISTER_GPU);
#endif

}  // namespace
}  // namespace tf_ti
