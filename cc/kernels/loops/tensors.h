// Pieces of tensors of any dtype: take, place, add. On a GPU all of it is only enqueued, except for
// values that lie on the host anyway.
#ifndef TF_TI_CC_KERNELS_LOOPS_TENSORS_H_
#define TF_TI_CC_KERNELS_LOOPS_TENSORS_H_

#include <new>
#include <vector>

#include "cc/compute/loops/blocks.h"
#include "cc/kernels/elements.h"
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

  // Where a piece's first element is, of a type that is plain memory.
  const char* At(int64_t begin) const;
  // The blocks of a piece, and how they lie in a tensor of their own.
  BlockCopy Blocks(int64_t size) const;
  tensorflow::TensorShape Shape(int64_t size) const;

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
absl::Status PlacePiece(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& piece, int axis,
                        int64_t begin, tensorflow::Tensor* tensor);

// Allocates memory where values of the type lie: on the kernel's device, or on the host.
absl::Status Allocate(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype,
                      const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor,
                      tensorflow::AllocatorAttributes attributes = {});

// Returns true if nobody else refers to the tensor's memory, so that it may be written to.
bool IsSoleOwner(const tensorflow::Tensor& tensor);

// Concatenates `pieces` along `axis` (negative counts from the end). Without pieces the result has
// extent 0 along the axis, and `element_shape`'s other dimensions, 0 where unknown.
absl::Status ConcatPieces(tensorflow::OpKernelContext* ctx,
                          const std::vector<tensorflow::Tensor>& pieces, tensorflow::DataType dtype,
                          const tensorflow::PartialTensorShape& element_shape, int64_t axis,
                          tensorflow::Tensor* result);

// A tensor in the host's memory. Throws std::bad_alloc where there is none.
inline tensorflow::Tensor HostTensor(tensorflow::DataType dtype,
                                     const tensorflow::TensorShape& shape) {
  tensorflow::Tensor tensor(dtype, shape);
  if (!tensor.IsInitialized()) throw std::bad_alloc();
  return tensor;
}

// The type in which values of `dtype` are summed: half precision sums in float.
tensorflow::DataType SumType(tensorflow::DataType dtype);

// sum += value, elementwise; `sum` has SumType(value.dtype()) and the shape of `value`.
absl::Status AddToSum(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& value,
                      tensorflow::Tensor* sum);

// Sets every element to zero; strings become empty.
absl::Status FillZeros(tensorflow::OpKernelContext* ctx, tensorflow::Tensor* tensor);

// `sum` rounded to `dtype`.
absl::Status RoundSum(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& sum,
                      tensorflow::DataType dtype, tensorflow::Tensor* result);

// The value of a scalar of type bool. Waits for it where it is on a GPU.
absl::Status ReadBool(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& scalar,
                      bool* value);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_TENSORS_H_
