// Functions of TensorFlow that kernels call.
#ifndef TF_TI_CC_KERNELS_FUNCTION_H_
#define TF_TI_CC_KERNELS_FUNCTION_H_

#include <functional>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

// Options of a call that is part of the kernel's step.
tensorflow::FunctionLibraryRuntime::Options RunOptions(tensorflow::OpKernelContext* ctx);
// Options of a call that is a step of its own, within which several processes can exchange tensors.
tensorflow::FunctionLibraryRuntime::Options OwnStepOptions(tensorflow::OpKernelContext* ctx);

// A function of floats, int64s and bools. These lie on the kernel's device, as the results do.
// Operations that the device has no kernel for run on other devices.
class CalledFunction {
 public:
  using Done =
      std::function<void(const absl::Status&, const std::vector<tensorflow::Tensor>& results)>;

  ~CalledFunction();

  void Init(const tensorflow::NameAttrList& function) { function_ = function; }
  // Calls the function with the kernel's inputs.
  void Run(tensorflow::OpKernelContext* ctx, Done done);

 private:
  using Library = tensorflow::FunctionLibraryRuntime;

  absl::Status Get(Library* lib, int num_inputs, Library::Handle* handle);

  tensorflow::NameAttrList function_;
  std::mutex mutex_;  // guards handles_
  std::unordered_map<Library*, Library::Handle> handles_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_FUNCTION_H_
