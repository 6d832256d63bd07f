// The ops of recurrent sequences and of their gradients, and their shape functions.
#include "cc/ops/known_shape.h"
#include "cc/ops/shape_function.h"
#include "cc/spec/recurrent/cell_spec.h"
#include "cc/spec/recurrent/sequence_shapes.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ti {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

template <bool is_gradient>
absl::Status SequenceShape(InferenceContext* c) {
  CellSpec spec;
  SequenceShapes<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(spec.Init(Attributes(c), is_gradient));
  TF_RETURN_IF_ERROR(shapes.Init(spec, [c](int input, const char*, PartialTensorShape* shape) {
    *shape = KnownShape(c, c->input(input));
    return absl::OkStatus();
  }));
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle output;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes.outputs[i].shape, &output));
    c->set_output(i, output);
  }
  return absl::OkStatus();
}

// The attributes of both ops that describe the cell.
#define TF_TI_RECURRENT_ATTRS(builder)               \
  builder.Attr("T: {float, double, half, bfloat16}") \
      .Attr("S: {float, double}")                    \
      .Attr("kind: {'lstm', 'gru', 'rnn'}")          \
      .Attr("num_cells: int >= 0")                   \
      .Attr("num_weights: int >= 0")                 \
      .Attr("num_biases: int >= 0")                  \
      .Attr("num_lengths: int >= 0")                 \
      .Attr("num_masks: int >= 0")                   \
      .Attr("num_saved: int >= 0")                   \
      .Attr("gate_order: list(int) >= 1")            \
      .Attr("transpose_weights: bool")               \
      .Attr("linear_before_reset: bool = false")     \
      .Attr("activations: list(string) >= 1")        \
      .Attr("coefficients: list(string) >= 1")       \
      .Attr("reverse: bool = false")                 \
      .Attr("time_major: bool = false")              \
      .Attr("hold_output: bool = false")             \
      .Attr("limits: list(int) = []")                \
      .Attr("loop: list(func) = []")

// One direction of one layer.
//
// `x` is [batch, time, input], or [time, batch, input] if time_major; without `w`, its products
// with that: [..., gates * hidden]. `w` and `r` are [input or hidden, gates * hidden], or the other
// way round if transpose_weights. gate_order tells the position, among the blocks of `hidden`
// columns, of each of the gates f, i, c, o of an LSTM, or z, r, h of a GRU. `b` is
// [gates * hidden]; with linear_before_reset it has `hidden` more, which are added to the product
// that is reset.
//
// `coefficients` are numbers: the clip, 0 for none, and each activation's alpha and beta. Steps
// beyond a row's length, or where its mask is false, hold its states; their `y` is 0, or with
// hold_output the last one. `limits` is for activations that are a relu or a hard sigmoid, and 0
// for others. It tells where the gradient passes: at the lower limit (1), at the upper one (2), at
// NaN (4). It also tells where the gradient is 0, and not its product with 0: below (8), above
// (16), at NaN (32).
//
// `saved` is for the gradient, in type S: activated gates, if there are several; the states c of an
// LSTM; the states h, if there is one gate, or lengths or a mask; and the arguments of gates'
// activations, if the limits of one let a gradient pass.
//
// On a GPU both ops call `loop`, a function of all their inputs. It gives all their outputs but
// `saved`. Those are then empty, and are computed again where they are needed. Without a loop, as
// in models saved by earlier versions, the processor computes, and all is copied there and back.
TF_TI_RECURRENT_ATTRS(REGISTER_OP("TfTi>RecurrentSequence")
                          .Input("x: T")
                          .Input("h: T")
                          .Input("c: num_cells * T")
                          .Input("w: num_weights * T")
                          .Input("r: T")
                          .Input("b: num_biases * T")
                          .Input("lengths: num_lengths * int64")
                          .Input("mask: num_masks * bool")
                          .Output("y: T")
                          .Output("last_h: T")
                          .Output("last_c: num_cells * T")
                          .Output("saved: num_saved * S"))
    .SetShapeFn(ShapeFunction(SequenceShape<false>));

// Gradients by the inputs of a RecurrentSequence without clip. `y` and `saved` are its outputs; the
// last inputs are the gradients by its outputs.
TF_TI_RECURRENT_ATTRS(REGISTER_OP("TfTi>RecurrentSequenceGrad")
                          .Input("x: T")
                          .Input("h: T")
                          .Input("c: num_cells * T")
                          .Input("w: num_weights * T")
                          .Input("r: T")
                          .Input("b: num_biases * T")
                          .Input("lengths: num_lengths * int64")
                          .Input("mask: num_masks * bool")
                          .Input("y: T")
                          .Input("saved: num_saved * S")
                          .Input("grad_y: T")
                          .Input("grad_last_h: T")
                          .Input("grad_last_c: num_cells * T")
                          .Output("grad_x: T")
                          .Output("grad_h: T")
                          .Output("grad_c: num_cells * T")
                          .Output("grad_w: num_weights * T")
                          .Output("grad_r: T")
                          .Output("grad_b: num_biases * T"))
    .SetShapeFn(ShapeFunction(SequenceShape<true>));

}  // namespace
}  // namespace tf_ti
