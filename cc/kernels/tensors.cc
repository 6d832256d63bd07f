#include "cc/kernels/tensors.h"

#include <complex>
#include <cstring>

#include "cc/compute/blocks.h"
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

template <typename T>
T* Data(Tensor* tensor) {
  return reinterpret_cast<T*>(tensor->data());
}
template <typename T>
const T* Data(const Tensor& tensor) {
  return reinterpret_cast<const T*>(tensor.data());
}

void CopyBlocks(const BlockCopy& copy, const Tensor& src, int64_t src_at, Tensor* dst,
                int64_t dst_at) {
  switch (src.dtype()) {
    case tensorflow::DT_STRING:
      return CopyElements(copy, Data<tensorflow::tstring>(src) + src_at,
                          Data<tensorflow::tstring>(dst) + dst_at);
    case tensorflow::DT_VARIANT:
      return CopyElements(copy, Data<tensorflow::Variant>(src) + src_at,
                          Data<tensorflow::Variant>(dst) + dst_at);
    case tensorflow::DT_RESOURCE:
      return CopyElements(copy, Data<tensorflow::ResourceHandle>(src) + src_at,
                          Data<tensorflow::ResourceHandle>(dst) + dst_at);
    default:
      const size_t size = tensorflow::DataTypeSize(src.dtype());
      return CopyBytes(copy, size, Data<char>(src) + src_at * size,
                       Data<char>(dst) + dst_at * size);
  }
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
  const size_t element = tensorflow::DataTypeSize(tensor_.dtype());
  const char* from = Data<char>(tensor_) + begin * inner_ * element;
  if (contiguous_ && element > 0 &&
      reinterpret_cast<uintptr_t>(from) % EIGEN_MAX_ALIGN_BYTES == 0) {
    if (axis_ == 0) {
      *piece = remove_axis_ ? tensor_.SubSlice(begin) : tensor_.Slice(begin, begin + size);
      return absl::OkStatus();
    }
    if (piece->CopyFrom(tensor_.Slice(begin, begin + size), shape_)) return absl::OkStatus();
  }
  *piece = Tensor();
  if (!IsSoleOwner(copy_)) {
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tensor_.dtype(), shape_, &copy_));
  }
  *piece = copy_;
  if (shape_.num_elements() == 0) return absl::OkStatus();
  const int64_t length = size * inner_;
  CopyBlocks({outer_, length, extent_ * inner_, length}, tensor_, begin * inner_, piece, 0);
  return absl::OkStatus();
}

void PlacePiece(const Tensor& piece, int axis, int64_t begin, Tensor* tensor) {
  if (piece.NumElements() == 0) return;
  const int64_t inner = Inner(tensor->shape(), axis);
  const int64_t length = piece.NumElements() / Outer(tensor->shape(), axis);
  CopyBlocks({Outer(tensor->shape(), axis), length, length, tensor->shape().dim_size(axis) * inner},
             piece, 0, tensor, begin * inner);
}

bool IsSoleOwner(const Tensor& tensor) {
  const tensorflow::TensorBuffer* buffer = tensorflow::DMAHelper::buffer(&tensor);
  // A view's own buffer says nothing about who else refers to the memory.
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
  TF_RETURN_IF_ERROR(ctx->allocate_temp(dtype, shape, result));
  int64_t begin = 0;
  for (const Tensor& piece : pieces) {
    PlacePiece(piece, at, begin, result);
    begin += piece.dim_size(at);
  }
  return absl::OkStatus();
}

DataType SumType(DataType dtype) {
  return dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16 ? tensorflow::DT_FLOAT
                                                                          : dtype;
}

absl::Status AddToSum(const Tensor& value, Tensor* sum) {
  const int64_t size = value.NumElements();
  switch (value.dtype()) {
    case tensorflow::DT_HALF:
      AddTo(size, Data<Eigen::half>(value), Data<float>(sum));
      return absl::OkStatus();
    case tensorflow::DT_BFLOAT16:
      AddTo(size, Data<tensorflow::bfloat16>(value), Data<float>(sum));
      return absl::OkStatus();
#define TF_TI_ADD(T)                           \
  case tensorflow::DataTypeToEnum<T>::value:   \
    AddTo(size, Data<T>(value), Data<T>(sum)); \
    return absl::OkStatus();
      TF_CALL_float(TF_TI_ADD);
      TF_CALL_double(TF_TI_ADD);
      TF_CALL_complex64(TF_TI_ADD);
      TF_CALL_complex128(TF_TI_ADD);
      TF_CALL_INTEGRAL_TYPES(TF_TI_ADD);
#undef TF_TI_ADD
    default:
      return absl::UnimplementedError(
          absl::StrCat("cannot sum values of type ", tensorflow::DataTypeString(value.dtype())));
  }
}

void FillZeros(Tensor* tensor) {
  // Strings, variants and handles are constructed empty by their tensor's allocation.
  if (tensorflow::DataTypeCanUseMemcpy(tensor->dtype()) && tensor->TotalBytes() > 0) {
    std::memset(tensor->data(), 0, tensor->TotalBytes());
  }
}

absl::Status RoundSum(OpKernelContext* ctx, const Tensor& sum, DataType dtype, Tensor* result) {
  if (sum.dtype() == dtype) {
    *result = sum;
    return absl::OkStatus();
  }
  TF_RETURN_IF_ERROR(ctx->allocate_temp(dtype, sum.shape(), result));
  const float* from = Data<float>(sum);
  const int64_t size = sum.NumElements();
  if (dtype == tensorflow::DT_HALF) {
    Eigen::half* to = Data<Eigen::half>(result);
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<Eigen::half>(from[i]);
  } else {
    tensorflow::bfloat16* to = Data<tensorflow::bfloat16>(result);
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<tensorflow::bfloat16>(from[i]);
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
