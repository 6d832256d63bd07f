// Pieces of tensors of any dtype: take, place, add. CPU.
#ifndef TF_TI_CC_KERNELS_TENSORS_H_
#define TF_TI_CC_KERNELS_TENSORS_H_

#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

// Reads pieces of one tensor along one axis, as tensors that kernels accept: views where the piece
// is contiguous and aligned, copies otherwise (TF's CPU kernels abort on an unaligned tensor).
class PieceReader {
 public:
  // `axis` lies in [0, rank). With `remove_axis` a piece is one element and loses the axis.
  absl::Status Init(const tensorflow::Tensor& tensor, int axis, bool remove_axis);

  // Elements [begin, begin + size). A copy goes into the last copy's memory if nobody uses it.
  absl::Status Read(tensorflow::OpKernelContext* ctx, int64_t begin, int64_t size,
                    tensorflow::Tensor* piece);

 private:
  tensorflow::Tensor tensor_;  // with its axis in front, where the pieces are contiguous
  bool contiguous_ = false;
  bool remove_axis_ = false;
  int axis_ = 0;
  int64_t extent_ = 0;
  int64_t outer_ = 1;
  int64_t inner_ = 1;
  tensorflow::TensorShape shape_;  // of a piece of extent size_
  int64_t size_ = -1;
  tensorflow::Tensor copy_;
};

// Writes `piece` to elements [begin, begin + piece's extent) of `tensor` along `axis`; every other
// dimension agrees.
void PlacePiece(const tensorflow::Tensor& piece, int axis, int64_t begin,
                tensorflow::Tensor* tensor);

// Whether nobody else refers to the tensor's memory, so that it may be written to.
bool IsSoleOwner(const tensorflow::Tensor& tensor);

// Concatenates `pieces` along `axis` (negative counts from the end). Without pieces the result has
// extent 0 along the axis, and `element_shape`'s other dimensions, 0 where unknown.
absl::Status ConcatPieces(tensorflow::OpKernelContext* ctx,
                          const std::vector<tensorflow::Tensor>& pieces, tensorflow::DataType dtype,
                          const tensorflow::PartialTensorShape& element_shape, int64_t axis,
                          tensorflow::Tensor* result);

// The type in which values of `dtype` are summed: half precision sums in float.
tensorflow::DataType SumType(tensorflow::DataType dtype);

// sum += value, elementwise; `sum` has SumType(value.dtype()) and the shape of `value`.
absl::Status AddToSum(const tensorflow::Tensor& value, tensorflow::Tensor* sum);

// Sets every element to zero; strings become empty.
void FillZeros(tensorflow::Tensor* tensor);

// `sum` rounded to `dtype`.
absl::Status RoundSum(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& sum,
                      tensorflow::DataType dtype, tensorflow::Tensor* result);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_TENSORS_H_
