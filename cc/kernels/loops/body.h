// The function that a loop runs, instantiated for the library that asks.
#ifndef TF_TI_CC_KERNELS_LOOPS_BODY_H_
#define TF_TI_CC_KERNELS_LOOPS_BODY_H_

#include <atomic>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/kernels/loops/executor.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

// What a function is like on the loop's device.
struct BodyTraits {
  // True if nothing in the body waits for another thread, so it may run to its end on the caller's.
  bool synchronous = false;
  // True if the device lacks a kernel for a part of the body, if the body asks for another device,
  // or if a resource lies on another device. TensorFlow then runs parts of the body on others.
  bool multi_device = false;
  bool cross_process = false;  // whether another process has some of the resources
  bool is_pure = false;        // true if nothing in the body has an effect, or draws random numbers
  tensorflow::DataTypeVector parameter_types;
  tensorflow::DataTypeVector result_types;
  // For each result: the parameter that it is, or -1; true for a variant of the host alone.
  std::vector<int> passed_on;
  std::vector<bool> stays_on_host;
};

struct Body : BodyTraits {
  tensorflow::FunctionLibraryRuntime::Handle handle;
  bool is_ours;  // the handle is to be released
  // Of its executor, once it has run; null where there are none.
  mutable std::atomic<BodyPrograms*> programs{nullptr};
  mutable std::atomic<bool> has_flown{false};  // whether its iterations were on their way at once
};

// A stateful kernel may be shared by subgraphs that have different function libraries, and so
// different handles for the same function.
class BodyCache {
 public:
  ~BodyCache();

  // Parameter i gets its resource from the kernel's input resource_inputs[i]. Where there are none,
  // all resources are on the kernel's device.
  void Init(const tensorflow::NameAttrList& function, std::vector<int> resource_inputs) {
    function_ = function;
    resource_inputs_ = std::move(resource_inputs);
  }
  // Looks at the function while the kernel is made. Returns true if it is synchronous.
  bool IsSynchronous(tensorflow::FunctionLibraryRuntime* lib);
  absl::Status Get(tensorflow::OpKernelContext* ctx, const Body** body);

 private:
  tensorflow::NameAttrList function_;
  std::vector<int> resource_inputs_;
  std::optional<BodyTraits> traits_;  // where they were looked at
  std::shared_mutex mu_;              // guards bodies_
  std::unordered_map<tensorflow::FunctionLibraryRuntime*, std::unique_ptr<Body>> bodies_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_BODY_H_
