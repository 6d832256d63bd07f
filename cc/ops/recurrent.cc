// The contract of recurrent sequences and of their gradients.
#include <string>
#include <vector>

#include "cc/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ti {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status SequenceShape(InferenceContext* c) {
  ShapeHandle x, h;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 3, &x));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &h));
  bool time_major;
  TF_RETURN_IF_ERROR(c->GetAttr("time_major", &time_major));
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, time_major ? 1 : 0), c->Dim(h, 0), &batch));
  const DimensionHandle steps = c->Dim(x, time_major ? 0 : 1);
  const DimensionHandle hidden = c->Dim(h, 1);
  const ShapeHandle state = c->Matrix(batch, hidden);
  c->set_output(
      0, time_major ? c->MakeShape({steps, batch, hidden}) : c->MakeShape({batch, steps, hidden}));
  c->set_output(1, state);
  std::string kind;
  int num_cells, num_saved;
  TF_RETURN_IF_ERROR(c->GetAttr("kind", &kind));
  TF_RETURN_IF_ERROR(c->GetAttr("num_cells", &num_cells));
  TF_RETURN_IF_ERROR(c->GetAttr("num_saved", &num_saved));
  bool linear_before_reset;
  TF_RETURN_IF_ERROR(c->GetAttr("linear_before_reset", &linear_before_reset));
  const int num_gates = kind == "lstm" ? 4 : kind == "gru" ? 3 : 1;
  // Its last product is saved apart from the gate that resets it.
  const int num_saved_gates = kind == "rnn" ? 0 : num_gates + linear_before_reset;
  std::vector<int> limits;
  TF_RETURN_IF_ERROR(c->GetAttr("limits", &limits));
  limits.resize(2);
  const bool saves_arguments = ((limits[0] | limits[1]) & 7) != 0;
  int output = 2;
  for (int i = 0; i < num_cells; ++i) c->set_output(output++, state);
  for (int i = 0; i < num_saved; ++i, ++output) {
    const bool is_arguments = i == num_saved - 1 && saves_arguments;
    const int of_unit = is_arguments ? num_gates : i == 0 ? num_saved_gates : 0;
    c->set_output(output, of_unit > 0 ? c->MakeShape({steps, batch, c->MakeDim(of_unit), hidden})
                                      : c->MakeShape({steps, batch, hidden}));
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
    .SetShapeFn(SequenceShape);

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
    .SetShapeFn([](InferenceContext* c) {
      // Each has the shape of its input, and they come in one order.
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
      return absl::OkStatus();
    });

}  // namespace
}  // namespace tf_ti
