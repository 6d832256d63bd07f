#include "cc/kernels/bags/huge_pages.h"

#include <iterator>
#include <mutex>
#include <unordered_map>

#include "cc/compute/huge_pages.h"
#include "cc/kernels/bags/bags.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;

void Advise(const Tensor& tensor) { AdviseHugePages(tensor.data(), tensor.TotalBytes()); }

// The memory of large variables at the time when they were advised.
class Advised {
 public:
  // Returns true if this memory of the variable's is new here.
  bool Add(Var* variable, const void* memory) {
    const std::lock_guard lock(mutex_);
    const auto known = variables_.find(variable);
    // Another variable may be where one was before.
    if (known != variables_.end() && known->second.memory == memory &&
        known->second.variable.GetNewRef() != nullptr) {
      return false;
    }
    if (known == variables_.end()) ForgetTheDead();
    variables_.insert_or_assign(variable, Entry{tensorflow::core::WeakPtr<Var>(variable), memory});
    return true;
  }

 private:
  struct Entry {
    tensorflow::core::WeakPtr<Var> variable;
    const void* memory;
  };

  void ForgetTheDead() {
    for (auto entry = variables_.begin(); entry != variables_.end();) {
      const bool is_dead = entry->second.variable.GetNewRef() == nullptr;
      entry = is_dead ? variables_.erase(entry) : std::next(entry);
    }
  }

  std::mutex mutex_;
  std::unordered_map<const Var*, Entry> variables_;
};

}  // namespace

void AdviseOnce(OpKernelContext* ctx, Var* variable) {
  constexpr size_t kLarge = 32 << 20;
  const Tensor& tensor = *variable->tensor();
  if (tensor.TotalBytes() < kLarge || !UsesHugePages() || OnGpu(ctx)) return;
  static Advised* const advised = new Advised;  // for as long as there are threads
  if (advised->Add(variable, tensor.data())) Advise(tensor);
}

namespace {

class AdviseHugePagesOp : public SafeKernel {
 public:
  using SafeKernel::SafeKernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    if (OnGpu(ctx)) return absl::OkStatus();  // where pages are large anyway
    tensorflow::core::RefCountPtr<Var> variable;
    TF_RETURN_IF_ERROR(LookupVariable(ctx, 0, &variable));
    const tensorflow::tf_shared_lock lock(*variable->mu());
    if (variable->is_initialized && tensorflow::DataTypeCanUseMemcpy(variable->tensor()->dtype())) {
      Advise(*variable->tensor());
    }
    return absl::OkStatus();
  }
};

TF_TI_REGISTER_KERNEL(Name("TfTi>AdviseHugePages").Device(tensorflow::DEVICE_CPU),
                      AdviseHugePagesOp);
#if GOOGLE_CUDA
TF_TI_REGISTER_KERNEL(Name("TfTi>AdviseHugePages").Device(tensorflow::DEVICE_GPU),
                      AdviseHugePagesOp);
#endif

}  // namespace
}  // namespace tf_ti
