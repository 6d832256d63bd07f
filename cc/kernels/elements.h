// The elements of tensors, as cc/compute takes them.
#ifndef TF_TI_CC_KERNELS_ELEMENTS_H_
#define TF_TI_CC_KERNELS_ELEMENTS_H_

#include "cc/compute/numbers.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

// cc/compute's type of a tensor's element.
template <typename T>
struct ElementOf {
  using type = T;
};
template <>
struct ElementOf<Eigen::half> {
  using type = Half;
};
template <>
struct ElementOf<Eigen::bfloat16> {
  using type = BFloat16;
};
template <typename T>
using Element = typename ElementOf<T>::type;

template <typename E>
E* Elements(tensorflow::Tensor* tensor) {
  return reinterpret_cast<E*>(tensor->data());
}
template <typename E>
const E* Elements(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<const E*>(tensor.data());
}

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_ELEMENTS_H_
