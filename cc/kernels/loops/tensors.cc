#include "cc/kernels/loops/tensors.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "cc/compute/loops/blocks.h"
#include "cc/compute/loops/pieces_gpu.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/memory.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/dma_helper.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/framework/variant.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

absl::Status CopyBlocks([[maybe_unused]] OpKernelContext* ctx, const BlockCopy& copy,
                        const Tensor& src, int64_t src_at, Tensor* dst, int64_t dst_at) {
  const size_t size = tensorflow::DataTypeSize(src.dtype());
  const char* from = Elements<char>(src) + src_at * size;
  char* to = Elements<char>(dst) + dst_at * size;
#if GOOGLE_CUDA
  if (OnGpu(ctx) && !LivesOnHost(src.dtype())) {
    KernelGpu gpu(ctx);
    return CudaStatus(CopyBytes(copy, size, from, to, &gpu));
  }
#endif
  switch (src.dtype()) {
    case tensorflow::DT_STRING:
      CopyElements(copy, Elements<tensorflow::tstring>(src) + src_at,
                   Elements<tensorflow::tstring>(dst) + dst_at);
      break;
    case tensorflow::DT_VARIANT:
      CopyElements(copy, Elements<tensorflow::Variant>(src) + src_at,
                   Elements<tensorflow::Variant>(dst) + dst_at);
      break;
    case tensorflow::DT_RESOURCE:
      CopyElements(copy, Elements<tensorflow::ResourceHandle>(src) + src_at,
                   Elements<tensorflow::ResourceHandle>(dst) + dst_at);
      break;
    default:
      CopyBytes(copy, size, from, to);
  }
  return absl::OkStatus();
}

template <typename T, typename S>
absl::Status AddNumbers([[maybe_unused]] OpKernelContext* ctx, int64_t size, const Tensor& value,
                        Tensor* sum) {
#if GOOGLE_CUDA
  if (OnGpu(ctx) && !LivesOnHost(value.dtype())) {
    KernelGpu gpu(ctx);
    return CudaStatus(AddTo(size, Elements<Element<T>>(value), Elements<Element<S>>(sum), &gpu));
  }
#endif
  AddTo(size, Elements<T>(value), Elements<S>(sum));
  return absl::OkStatus();
}

template <typename T>
absl::Status RoundNumbers([[maybe_unused]] OpKernelContext* ctx, const Tensor& sum,
                          Tensor* result) {
  const float* from = Elements<float>(sum);
#if GOOGLE_CUDA
  if (OnGpu(ctx)) {
    KernelGpu gpu(ctx);
    return CudaStatus(Round(sum.NumElements(), from, Elements<Element<T>>(result), &gpu));
  }
#endif
  std::transform(from, from + sum.NumElements(), Elements<T>(result),
                 [](float x) { return static_cast<T>(x); });
  return absl::OkStatus();
}

// The elements that lie before (outer) and after (inner) `axis` in row-major order.
int64_t Outer(const TensorShape& shape, int axis) {
  int64_t outer = 1;
  for (int d = 0; d < axis; ++d) outer *= shape.dim_size(d);
  return outer;
}
int64_t Inner(const TensorShape& shape, int axis) {
  int64_t inner = 1;
  for (int d = axis + 1; d < shape.dims(); ++d) inner *= shape.dim_size(d);
  return inner;
}

}  // namespace

absl::Status PieceReader::Init(const Tensor& tensor, int axis, bool remove_axis) {
  axis_ = axis;
  remove_axis_ = remove_axis;
  extent_ = tensor.dim_size(axis);
  outer_ = Outer(tensor.shape(), axis);
  inner_ = Inner(tensor.shape(), axis);
  contiguous_ = outer_ == 1;
  shape_ = tensor.shape();
  if (remove_axis) TF_RETURN_IF_ERROR(shape_.RemoveDimWithStatus(axis));
  tensor_ = tensor;
  if (contiguous_ && axis > 0) {
    TensorShape front;
    for (int d = axis; d < tensor.dims(); ++d) {
      TF_RETURN_IF_ERROR(front.AddDimWithStatus(tensor.dim_size(d)));
    }
    if (!tensor_.CopyFrom(tensor, front))
      return absl::InternalError("cannot view a tensor's pieces");
  }
  return absl::OkStatus();
}

absl::Status PieceReader::Read(OpKernelContext* ctx, int64_t begin, int64_t size, Tensor* piece) {
  if (size != size_ && !remove_axis_) {
    TF_RETURN_IF_ERROR(shape_.SetDimWithStatus(axis_, size));
    size_ = size;
    copy_ = Tensor();
  }
  if (contiguous_ && tensorflow::DataTypeSize(tensor_.dtype()) > 0 &&
      reinterpret_cast<uintptr_t>(At(begin)) % EIGEN_MAX_ALIGN_BYTES == 0) {
    if (axis_ == 0) {
      *piece = remove_axis_ ? tensor_.SubSlice(begin) : tensor_.Slice(begin, begin + size);
      return absl::OkStatus();
    }
    if (piece->CopyFrom(tensor_.Slice(begin, begin + size), shape_)) return absl::OkStatus();
  }
  *piece = Tensor();
  if (!IsSoleOwner(copy_)) {
    TF_RETURN_IF_ERROR(Allocate(ctx, tensor_.dtype(), shape_, &copy_));
  }
  *piece = copy_;
  if (shape_.num_elements() == 0) return absl::OkStatus();
  return CopyBlocks(ctx, Blocks(size), tensor_, begin * inner_, piece, 0);
}

const char* PieceReader::At(int64_t begin) const {
  return Elements<char>(tensor_) + begin * inner_ * tensorflow::DataTypeSize(tensor_.dtype());
}

BlockCopy PieceReader::Blocks(int64_t size) const {
  return {outer_, size * inner_, extent_ * inner_, size * inner_};
}

TensorShape PieceReader::Shape(int64_t size) const {
  TensorShape shape = shape_;
  if (!remove_axis_) shape.set_dim(axis_, size);
  return shape;
}

absl::Status Allocate(OpKernelContext* ctx, DataType dtype, const TensorShape& shape,
                      Tensor* tensor, tensorflow::AllocatorAttributes attributes) {
  if (OnGpu(ctx) && LivesOnHost(dtype)) attributes.set_on_host(true);
  return AllocateTemporary(ctx, dtype, shape, tensor, attributes);
}

absl::Status PlacePiece(OpKernelContext* ctx, const Tensor& piece, int axis, int64_t begin,
                        Tensor* tensor) {
  if (piece.NumElements() == 0) return absl::OkStatus();
  const int64_t inner = Inner(tensor->shape(), axis);
  const int64_t outer = Outer(tensor->shape(), axis);
  const int64_t length = piece.NumElements() / outer;
  return CopyBlocks(ctx, {outer, length, length, tensor->dim_size(axis) * inner}, piece, 0, tensor,
                    begin * inner);
}

bool IsSoleOwner(const Tensor& tensor) {
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&tensor);
  // A view's own buffer does not tell who else refers to the memory.
  return buffer != nullptr && buffer->RefCountIsOne() &&
         const_cast<tensorflow::TensorBuffer*>(buffer)->root_buffer() == buffer &&
         buffer->OwnsMemory();
}

absl::Status ConcatPieces(OpKernelContext* ctx, const std::vector<Tensor>& pieces, DataType dtype,
                          const tensorflow::PartialTensorShape& element_shape, int64_t axis,
                          Tensor* result) {
  TensorShape shape;
  if (!pieces.empty()) {
    shape = pieces[0].shape();
  } else {
    if (element_shape.unknown_rank()) {
      return InvalidArgument("nothing to concatenate, and the rank of the elements is not known");
    }
    for (int64_t dim : element_shape.dim_sizes()) {
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(dim < 0 ? 0 : dim));
    }
  }
  const int64_t at = axis < 0 ? axis + shape.dims() : axis;
  if (at < 0 || at >= shape.dims()) {
    return InvalidArgument("axis ", axis, " is out of range for pieces of rank ", shape.dims());
  }
  int64_t extent = 0;
  for (size_t k = 0; k < pieces.size(); ++k) {
    TensorShape other = pieces[k].shape();
    if (other.dims() == shape.dims()) {
      extent += other.dim_size(at);
      TF_RETURN_IF_ERROR(other.SetDimWithStatus(at, shape.dim_size(at)));
    }
    if (other != shape) {
      return InvalidArgument("pieces 0 and ", k, " have shapes ", shape.DebugString(), " and ",
                             pieces[k].shape().DebugString(),
                             ", which do not concatenate along axis ", axis);
    }
  }
  TF_RETURN_IF_ERROR(shape.SetDimWithStatus(at, extent));
  TF_RETURN_IF_ERROR(Allocate(ctx, dtype, shape, result));
  int64_t begin = 0;
  for (const Tensor& piece : pieces) {
    TF_RETURN_IF_ERROR(PlacePiece(ctx, piece, at, begin, result));
    begin += piece.dim_size(at);
  }
  return absl::OkStatus();
}

DataType SumType(DataType dtype) {
  return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16 ? tensorflow::DT_FLOAT
                                                                          : dtype;
}

absl::Status AddToSum(OpKernelContext* ctx, const Tensor& value, Tensor* sum) {
  const int64_t size = value.NumElements();
  switch (value.dtype()) {
    case tensorflow::DT_HALF:
      return AddNumbers<Eigen::half, float>(ctx, size, value, sum);
    case tensorflow::DT_BFLOAT16:
      return AddNumbers<tensorflow::bfloat16, float>(ctx, size, value, sum);
    case tensorflow::DT_COMPLEX64:
      return AddNumbers<float, float>(ctx, 2 * size, value, sum);
    case tensorflow::DT_COMPLEX128:
      return AddNumbers<double, double>(ctx, 2 * size, value, sum);
#define TF_TI_ADD(T)                         \
  case tensorflow::DataTypeToEnum<T>::value: \
    return AddNumbers<T, T>(ctx, size, value, sum);
      TF_CALL_float(TF_TI_ADD);
      TF_CALL_double(TF_TI_ADD);
      TF_CALL_INTEGRAL_TYPES(TF_TI_ADD);
#undef TF_TI_ADD
    default:
      return absl::UnimplementedError(
          absl::StrCat("cannot sum values of type ", tensorflow::DataTypeString(value.dtype())));
  }
}

absl::Status FillZeros([[maybe_unused]] OpKernelContext* ctx, Tensor* tensor) {
  // Strings, variants and handles are constructed empty by their tensor's allocation.
  if (!tensorflow::DataTypeCanUseMemcpy(tensor->dtype()) || tensor->TotalBytes() == 0) {
    return absl::OkStatus();
  }
#if GOOGLE_CUDA
  if (OnGpu(ctx) && !LivesOnHost(tensor->dtype())) {
    KernelGpu gpu(ctx);
    return CudaStatus(FillZeros(tensor->TotalBytes(), tensor->data(), &gpu));
  }
#endif
  std::memset(tensor->data(), 0, tensor->TotalBytes());
  return absl::OkStatus();
}

absl::Status RoundSum(OpKernelContext* ctx, const Tensor& sum, DataType dtype, Tensor* result) {
  if (sum.dtype() == dtype) {
    *result = sum;
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(Allocate(ctx, dtype, sum.shape(), result));
  return dtype == tensorflow::DT_HALF ? RoundNumbers<Eigen::half>(ctx, sum, result)
                                      : RoundNumbers<tensorflow::bfloat16>(ctx, sum, result);
}

absl::Status ReadBool([[maybe_unused]] OpKernelContext* ctx, const Tensor& scalar, bool* value) {
#if GOOGLE_CUDA
  if (OnGpu(ctx)) {
    Tensor copy;
    TF_RETURN_IF_ERROR(EnqueueToHost(ctx, scalar, &copy));
    TF_RETURN_IF_ERROR(Synchronize(ctx));
    *value = copy.scalar<bool>()();
    return absl::OkStatus();
  }
#endif
  *value = scalar.scalar<bool>()();
  return absl::OkStatus();
}

}  // namespace tf_ti
