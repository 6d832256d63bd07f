// What the kernels of pooled embedding look-ups have in common: inputs to what cc/compute takes.
#ifndef TF_TI_CC_KERNELS_BAGS_BAGS_H_
#define TF_TI_CC_KERNELS_BAGS_BAGS_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/kernels/bags/spec.h"
#include "cc/kernels/elements.h"
#include "cc/kernels/gpu.h"
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

// A bag op's attributes and inputs.
struct BagOptions : BagSpec {
  // Checks shapes and sets `bags`, whose default index and values are left for cc/compute to check.
  // `count` is the number of bags, or negative where only the inputs tell it.
  template <typename Index>
  absl::Status GetBags(tensorflow::OpKernelContext* ctx, int64_t count, Bags<Index>* bags) const;

  template <typename E>
  absl::Status GetWeights(tensorflow::OpKernelContext* ctx, Weights<E>* weights) const;
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

#if GOOGLE_CUDA
// Waits for what check(problem on the device) finds; describe(problem) says what that is.
absl::Status CheckOnGpu(tensorflow::OpKernelContext* ctx,
                        const std::function<std::string(GpuProblem*)>& check,
                        const std::function<std::string(const GpuProblem&)>& describe);
#endif

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_BAGS_BAGS_H_
