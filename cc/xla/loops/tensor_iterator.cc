// The kernels of the loop ops, for XLA.
#include <vector>

#include "cc/spec/loops/loop_spec.h"
#include "cc/xla/loops/build.h"
#include "cc/xla/loops/plan.h"
#include "cc/xla/tf2xla.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelConstruction;

class TensorIteratorOp : public XlaKernel {
 public:
  explicit TensorIteratorOp(OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx)));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("body", &body_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("condition", &condition_));
  }

  absl::Status Compile(const Context& ctx) const override {
    LoopPlan plan(spec_, body_, condition_.empty() ? nullptr : &condition_[0], ctx);
    TF_RETURN_IF_ERROR(plan.Init());
    return BuildLoop(plan, ctx);
  }

 private:
  LoopSpec spec_;
  tensorflow::NameAttrList body_;
  std::vector<tensorflow::NameAttrList> condition_;
};

// XLA must know each length anyway. For num_iterations, the op's node tells if XLA must know it.
const XlaRegistrar<TensorIteratorOp> kLoop("TfTi>TensorIterator", kResources | kVariants,
                                           {"length"});
const XlaRegistrar<TensorIteratorOp> kStatelessLoop("TfTi>StatelessTensorIterator",
                                                    kResources | kVariants, {"length"});

}  // namespace
}  // namespace tf_ti
