// Large variables go to huge pages by themselves.
#ifndef TF_TI_CC_KERNELS_BAGS_HUGE_PAGES_H_
#define TF_TI_CC_KERNELS_BAGS_HUGE_PAGES_H_

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"

namespace tf_ti {

// Asks for huge pages for a variable of 32 MB or more in the processor's memory, once for each
// memory that it gets, if UsesHugePages. The caller has locked it.
void AdviseOnce(tensorflow::OpKernelContext* ctx, tensorflow::Var* variable);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_BAGS_HUGE_PAGES_H_
