// A cancellation manager for the kernels of one run of a body.
#ifndef TF_TI_CC_KERNELS_LOOPS_EXECUTOR_OWN_CANCELLATION_H_
#define TF_TI_CC_KERNELS_LOOPS_EXECUTOR_OWN_CANCELLATION_H_

#include <optional>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

// Gives kernels a cancellation manager of their own. The error of a function that a kernel calls
// cancels the kernel's manager, and all other functions that were called with that manager.
class OwnCancellation {
 public:
  explicit OwnCancellation(tensorflow::OpKernelContext::Params* params) {
    if (params->cancellation_manager == nullptr) return;
    manager_.emplace(params->cancellation_manager);
    params->cancellation_manager = &*manager_;
  }

 private:
  std::optional<tensorflow::CancellationManager> manager_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_EXECUTOR_OWN_CANCELLATION_H_
