// Products of matrices inside a loop's body whose right factor is the same in all iterations. It is
// packed, into the order in which it is read, once a run of the loop.
#ifndef TF_TI_CC_KERNELS_LOOPS_PACKED_PRODUCT_H_
#define TF_TI_CC_KERNELS_LOOPS_PACKED_PRODUCT_H_

#include <variant>

#include "cc/compute/product.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

class PackedProduct {
 public:
  static bool Takes(tensorflow::DataType dtype) {
    return dtype == tensorflow::DT_FLOAT || dtype == tensorflow::DT_DOUBLE;
  }

  PackedProduct(bool transpose_left, bool transpose_right)
      : transpose_left_(transpose_left), transpose_right_(transpose_right) {}

  // Computes a MatMul for this context; the second input must be that of the first call. Returns
  // false if MatMul is to do it: it refuses factors that do not fit, and is faster at factors of
  // many rows.
  bool Compute(tensorflow::OpKernelContext* ctx);

 private:
  template <typename T>
  bool ComputeAs(tensorflow::OpKernelContext* ctx);

  const bool transpose_left_;
  const bool transpose_right_;
  tensorflow::Tensor panels_;
  std::variant<std::monostate, PackedMatrix<float>, PackedMatrix<double>> matrix_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_PACKED_PRODUCT_H_
