// What the kernels of pooled embedding look-ups have in common: inputs to what cc/compute takes.
#ifndef TF_TI_CC_KERNELS_BAGS_H_
#define TF_TI_CC_KERNELS_BAGS_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "cc/compute/bags.h"
#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tf_ti {

// The type that cc/compute has for an element of a tensor.
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

// The attributes of a bag op, and its inputs in their order.
class BagOptions {
 public:
  // `first_input` is that of the indices.
  absl::Status Init(tensorflow::OpKernelConstruction* ctx, BagKind kind, bool is_gradient,
                    int first_input);

  BagKind kind() const { return kind_; }
  Reduction reduction() const { return reduction_; }
  bool has_weights() const { return weights_input_ >= 0; }
  bool weights_are_wide() const { return weights_are_wide_; }
  int inputs_end() const { return inputs_end_; }

  // Checks shapes and sets `bags`, whose default index and values are left for cc/compute to check.
  // `count` is the number of bags, or negative where only the inputs tell it.
  template <typename Index>
  absl::Status GetBags(tensorflow::OpKernelContext* ctx, int64_t count, Bags<Index>* bags) const;

  template <typename E>
  absl::Status GetWeights(tensorflow::OpKernelContext* ctx, Weights<E>* weights) const;

 private:
  BagKind kind_ = BagKind::kOffsets;
  Reduction reduction_ = Reduction::kSum;
  bool include_last_offset_ = false;
  std::vector<int64_t> padding_idx_;
  bool weights_are_wide_ = false;
  int indices_input_ = 0;
  int bounds_input_ = -1;
  int num_segments_input_ = -1;
  int default_input_ = -1;
  int weights_input_ = -1;
  int inputs_end_ = 0;
};

// The variable that input 0 is the handle of.
absl::Status LookupVariable(tensorflow::OpKernelContext* ctx,
                            tensorflow::core::RefCountPtr<tensorflow::Var>* variable);

// The rows of a table, which is a tensor or a variable; the variable stays locked as long as this
// lives, so that its rows can be read where they are. (To take a reference instead would make the
// next sparse update copy all of it.)
class TableReader {
 public:
  TableReader() = default;
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;
  ~TableReader() {
    if (variable_ != nullptr) variable_->mu()->unlock_shared();
  }

  absl::Status Open(tensorflow::OpKernelContext* ctx, tensorflow::DataType dtype);

  const tensorflow::TensorShape& shape() const { return tensor_->shape(); }

  template <typename E>
  Table<E> Get() const {
    uint64_t width = 1;  // without rows it may be more than fits, and then means nothing
    for (int d = 1; d < shape().dims(); ++d) width *= shape().dim_size(d);
    return {Elements<E>(*tensor_), shape().dim_size(0),
            static_cast<int64_t>(width & std::numeric_limits<int64_t>::max())};
  }

 private:
  tensorflow::core::RefCountPtr<tensorflow::Var> variable_;
  const tensorflow::Tensor* tensor_ = nullptr;
};

// The shape of `count` rows of something of `shape`, whose first dimension is that of the rows.
absl::Status RowsShape(int64_t count, const tensorflow::TensorShape& shape,
                       tensorflow::TensorShape* rows);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_BAGS_H_
