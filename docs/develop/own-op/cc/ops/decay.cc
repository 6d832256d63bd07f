// The op of decayed sums, and its shape function.
#include "cc/ops/known_shape.h"
#include "cc/ops/shape_function.h"
#include "cc/spec/decay/decayed_sum_spec.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ti {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("TfTi>DecayedSum")
    .Input("x: T")
    .Input("decay: T")
    .Output("y: T")
    .Attr("T: {float, double}")
    .Attr("reverse: bool = false")
    .SetShapeFn(ShapeFunction([](InferenceContext* c) {
      TF_RETURN_IF_ERROR(CheckDecayedSum(KnownShape(c, c->input(0)), KnownShape(c, c->input(1))));
      c->set_output(0, c->input(0));
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Sums along the first dimension, in which earlier values count less.

x: At least a vector.
decay: A scalar, the weight of the sum so far.
y: In the shape of x, y[t] = x[t] + decay * y[t - 1].
reverse: Whether the last step comes first, with y[t + 1].
)doc");

}  // namespace
}  // namespace tf_ti
