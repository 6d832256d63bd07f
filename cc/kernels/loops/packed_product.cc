#include "cc/kernels/loops/packed_product.h"

#include "cc/kernels/threads.h"

namespace tf_ti {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// From here on MatMul, which cuts both factors into blocks, is as fast.
constexpr int64_t kMostRows = 256;

}  // namespace

bool PackedProduct::Compute(OpKernelContext* ctx) {
  return ctx->input(1).dtype() == tensorflow::DT_FLOAT ? ComputeAs<float>(ctx)
                                                       : ComputeAs<double>(ctx);
}

template <typename T>
bool PackedProduct::ComputeAs(OpKernelContext* ctx) {
  const Tensor& left = ctx->input(0);
  const Tensor& right = ctx->input(1);
  if (left.dims() != 2 || right.dims() != 2) return false;
  const int64_t num_rows = left.dim_size(transpose_left_ ? 1 : 0);
  const int64_t depth = left.dim_size(transpose_left_ ? 0 : 1);
  const int64_t num_columns = right.dim_size(transpose_right_ ? 0 : 1);
  if (depth != right.dim_size(transpose_right_ ? 1 : 0) || num_rows > kMostRows || num_rows == 0 ||
      depth == 0 || num_columns == 0) {
    return false;
  }
  Threads threads(ctx);
  const auto matrix_of = [](const Tensor& tensor, bool transpose) {
    const int64_t stride = tensor.dim_size(1);
    return Matrix<T>{tensor.flat<T>().data(), transpose ? 1 : stride, transpose ? stride : 1};
  };
  if (!std::holds_alternative<PackedMatrix<T>>(matrix_)) {
    const tensorflow::TensorShape size({PackedMatrix<T>::Size(depth, num_columns)});
    const absl::Status status = ctx->allocate_temp(right.dtype(), size, &panels_);
    if (!status.ok()) return false;
    matrix_.template emplace<PackedMatrix<T>>(matrix_of(right, transpose_right_), depth,
                                              num_columns, panels_.flat<T>().data(), &threads);
  }
  Tensor* out;
  const absl::Status status = ctx->allocate_output(0, {num_rows, num_columns}, &out);
  if (!status.ok()) {
    ctx->SetStatus(status);
    return true;
  }
  std::get<PackedMatrix<T>>(matrix_).Multiply(matrix_of(left, transpose_left_), num_rows,
                                              out->flat<T>().data(), num_columns, &threads);
  return true;
}

}  // namespace tf_ti
