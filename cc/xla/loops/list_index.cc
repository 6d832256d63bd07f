// Indices at which lists are written. XLA's lists keep the size that they are made with.
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/spec/loops/errors.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/lib/arithmetic.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {
namespace {

using xla::XlaBuilder;
using xla::XlaOp;

class ListIndexOp : public XlaKernel {
 public:
  explicit ListIndexOp(tensorflow::OpKernelConstruction* ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("label", &label_));
  }

  absl::Status Compile(const Context& ctx) const override {
    const XlaOp index = ctx.Input(0), size = ctx.Input(1);
    XlaBuilder* const builder = ctx.builder();
    XlaOp smallest = index, largest = index;
    if (!ShapeOf(index).dimensions().empty()) {
      smallest = xla::ReduceAll(index, xla::MaxValue(builder, xla::S32),
                                xla::CreateScalarMinComputation(xla::S32, builder));
      largest = xla::ReduceAll(index, xla::MinValue(builder, xla::S32),
                               xla::CreateScalarMaxComputation(xla::S32, builder));
    }
    Require(xla::Ge(smallest, xla::Zero(builder, xla::S32)), IndexIsNegative(Literal(label_), "$0"),
            {Wide(smallest)});
    Require(xla::Lt(largest, size),
            absl::StrCat(Literal(label_),
                         ": XLA's TensorArrays do not grow: this one has size $0, and index $1 is "
                         "written; make it large enough"),
            {Wide(size), Wide(largest)});
    ctx.SetOutput(0, index);
    return builder->first_error();
  }

 private:
  std::string label_;
};

const XlaRegistrar<ListIndexOp> kListIndex("TfTi>ListIndex");

}  // namespace
}  // namespace tf_ti
