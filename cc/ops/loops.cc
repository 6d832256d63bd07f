// The loop ops and those of the histories that their gradients keep, and their shape functions.
#include <limits>
#include <vector>

#include "cc/ops/known_shape.h"
#include "cc/ops/shape_function.h"
#include "cc/spec/loops/count.h"
#include "cc/spec/loops/loop_spec.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tf_ti {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Gets a scalar input, or null where its value is not known.
absl::Status FindScalar(InferenceContext* c, int input, const std::string& name,
                        const tensorflow::Tensor** value) {
  TF_RETURN_IF_ERROR(CheckScalar(name, KnownShape(c, c->input(input))));
  *value = c->input_tensor(input);
  return absl::OkStatus();
}

// The static number of iterations, from the extents of the sliced inputs and from num_iterations.
absl::Status FindCount(InferenceContext* c, const LoopSpec& spec, Count* count) {
  if (spec.has_num_iterations) {
    const tensorflow::Tensor* limit = nullptr;
    TF_RETURN_IF_ERROR(FindScalar(c, spec.limit_input(), spec.limit_label, &limit));
    if (limit != nullptr) {
      const int64_t given = limit->scalar<int64_t>()();
      TF_RETURN_IF_ERROR(spec.CheckLimit(given));
      TF_RETURN_IF_ERROR(count->Merge(given, spec.limit_label));
    }
  }
  for (int i = 0; i < spec.limit_input(); ++i) {
    const LoopSpec::Input& input = spec.inputs[i];
    if (!input.is_sliced() || !c->RankKnown(c->input(i))) continue;
    int64_t axis;
    TF_RETURN_IF_ERROR(input.FindAxis(c->Rank(c->input(i)), &axis));
    const int64_t extent = c->Value(c->Dim(c->input(i), axis));
    if (extent == InferenceContext::kUnknownDim) continue;
    Pieces pieces;
    TF_RETURN_IF_ERROR(input.FindPieces(extent, &pieces));
    // An iterator may end before the loop would: only the iteration that needs it can tell.
    if (input.mode == InputMode::kIterator) continue;
    TF_RETURN_IF_ERROR(count->Merge(pieces.count, input.label));
  }
  // With a condition, only the most iterations that there may be are known.
  if (spec.has_condition) *count = Count();
  return absl::OkStatus();
}

// The static extent that a stack of pieces gets: its length, or the number of iterations.
absl::Status FindStackExtent(InferenceContext* c, const LoopSpec& spec,
                             const LoopSpec::Output& output, const Count& count,
                             DimensionHandle* extent) {
  int64_t size = count.value;
  if (output.length >= 0) {
    const tensorflow::Tensor* length = nullptr;
    TF_RETURN_IF_ERROR(FindScalar(c, spec.length_input(output), output.LengthName(), &length));
    size = -1;
    if (length != nullptr) {
      // If the loop does not fit, that is found when it runs, if it runs.
      size = length->scalar<int64_t>()();
      TF_RETURN_IF_ERROR(output.CheckLength(size));
    }
  }
  *extent = size < 0 ? c->UnknownDim() : c->MakeDim(size);
  return absl::OkStatus();
}

// The shape of the last value. Without an iteration it is the initial value, which may have
// another one.
ShapeHandle LastShape(InferenceContext* c, const LoopSpec& spec, const LoopSpec::Output& output,
                      const Count& count, ShapeHandle piece) {
  const int state = spec.StateOf(output);
  if (count.value > 0 || state < 0) return piece;
  const ShapeHandle initial = c->input(state);
  if (count.value == 0) return initial;
  if (!c->RankKnown(initial) || !c->RankKnown(piece) || c->Rank(initial) != c->Rank(piece)) {
    return c->UnknownShape();
  }
  std::vector<DimensionHandle> dims;
  for (int d = 0; d < c->Rank(piece); ++d) {
    const DimensionHandle dim = c->Dim(piece, d);
    const bool is_same = c->ValueKnown(dim) && c->Value(dim) == c->Value(c->Dim(initial, d));
    dims.push_back(is_same ? dim : c->UnknownDim());
  }
  return c->MakeShape(dims);
}

// The shape of a concatenation or a stack of pieces whose rank is known.
absl::Status JoinedShape(InferenceContext* c, const LoopSpec& spec, const LoopSpec::Output& output,
                         const Count& count, ShapeHandle piece, ShapeHandle* joined) {
  const bool is_stacked = output.mode == OutputMode::kStack || c->Rank(piece) == 0;
  int64_t axis;
  TF_RETURN_IF_ERROR(output.FindAxis(c->Rank(piece) + is_stacked, &axis));
  std::vector<DimensionHandle> dims;
  for (int d = 0; d < c->Rank(piece); ++d) dims.push_back(c->Dim(piece, d));
  if (is_stacked) {
    DimensionHandle extent;
    TF_RETURN_IF_ERROR(FindStackExtent(c, spec, output, count, &extent));
    dims.insert(dims.begin() + axis, extent);
  } else if (count.value == 0) {
    dims[axis] = c->MakeDim(0);
  } else if (count.is_known() && c->ValueKnown(dims[axis])) {
    const int64_t part = c->Value(dims[axis]);
    if (part > 0 && count.value > std::numeric_limits<int64_t>::max() / part) {
      return InvalidArgument(output.label, ": ", count.value, " iterations of extent ", part,
                             " are too many for one tensor");
    }
    dims[axis] = c->MakeDim(count.value * part);
  } else {
    dims[axis] = c->UnknownDim();
  }
  *joined = c->MakeShape(dims);
  return absl::OkStatus();
}

absl::Status TensorIteratorShape(InferenceContext* c) {
  LoopSpec spec;
  Count count;
  TF_RETURN_IF_ERROR(spec.Init(Attributes(c)));
  TF_RETURN_IF_ERROR(FindCount(c, spec, &count));
  for (int i = 0; i < c->num_outputs(); ++i) {
    const LoopSpec::Output& output = spec.outputs[i];
    if (output.mode == OutputMode::kHistory || output.mode == OutputMode::kCount) {
      c->set_output(i, c->Scalar());
      continue;
    }
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(
        c->MakeShapeFromPartialTensorShape(spec.result_shapes[output.result], &shape));
    if (output.mode == OutputMode::kLast) {
      shape = LastShape(c, spec, output, count, shape);
    } else if (output.mode != OutputMode::kSum && c->RankKnown(shape)) {
      TF_RETURN_IF_ERROR(JoinedShape(c, spec, output, count, shape, &shape));
    }
    c->set_output(i, shape);
  }
  return absl::OkStatus();
}

constexpr char kDoc[] = R"doc(
Runs a body repeatedly, over the pieces of its inputs: OpenVINO's TensorIterator-1.

Parameter i of the body is fed by input i. In every iteration all parameters get their values, the
body runs, its results go to the outputs, and the back edges, all together, give results to
parameters for the next iteration. tf_ti.tensor_iterator documents the semantics for users; this op
is what it, tf_ti.scan and the gradients of both build.

The sliced inputs, the histories and num_iterations agree on the number of iterations. Where there
is a condition, it is evaluated before anything else of an iteration, and ends the loop when it is
false. The loop then has at most as many iterations as the inputs tell, or any number. tf_ti.Loop
documents that for users.

input: One tensor for each parameter of the body, but for those that the condition feeds.
num_iterations: None, or one scalar: the number of iterations.
length: Scalars: extents of stacks, which hold zeros after the values.
output: One tensor for each entry of output_mode.
body: A function from the parameters to the results.
condition: None, or one function of the parameters that condition_inputs names to a bool scalar, and
  to values that become the body's last parameters: values that both need are computed once.
condition_inputs: The parameters that the condition reads.
input_mode: The value of a parameter in iteration k. value: the input itself, or a back edge's
  value. slice: piece k of the input, along input_axis from input_start to input_end by
  input_stride, input_part_size elements each. segment: likewise, where the last piece may be short.
  index: element k, without the axis. iterator: likewise, but there may be more elements than
  iterations. sequence: tensor k of the history that the input holds, or, with input_part_size
  p > 0, a history of tensors [k p, (k + 1) p).
input_label: The input's name in errors.
parameter_shapes: The shapes that the body was built for; others are refused at run time.
back_edge_from: A result of the body for each back edge.
back_edge_to: The parameter that it feeds in the next iteration.
output_mode: The kind of an output. last: the source's value in the last iteration. concat: the
  concatenation along output_axis; stack: along a new axis; in reversed order where output_stride is
  negative. sum: the sum. sequence: a history of the values of each output_stride-th iteration
  or, with output_part_size p > 0, of the tensors of these values, which are histories of p tensors;
  the last may have fewer. count: the number of iterations.
output_source: r >= 0 is result r of the body; ~p is the value with which parameter p enters.
output_length: For a stack the number of its `length`, or -1.
output_part_size: The extent of a concat output's pieces, or 0 for any; see output_mode.
output_label: The output's name in errors.
result_types: The types of the body's results.
result_shapes: The static shapes of the body's results.
limit_label: The name of num_iterations in errors.
reverse: Visit the pieces from the last to the first. Pieces, histories and outputs keep their
  positions: only the order of execution turns round.
fuse: On a CPU, programs of vector code may run parts of the body and of the condition. If false,
  TensorFlow's kernels run all of them. A loop inside the body has its own.
parallel_iterations: On a CPU, the most iterations that are on their way at once, where their
  kernels take long enough and fuse is true; 0 for one more than there are threads.
)doc";

#define TF_TI_LOOP_ATTRS()                                                              \
  Input("input: Tin")                                                                   \
      .Input("num_iterations: N * int64")                                               \
      .Input("length: M * int64")                                                       \
      .Output("output: Tout")                                                           \
      .Attr("Tin: list(type) >= 0")                                                     \
      .Attr("Tout: list(type) >= 0")                                                    \
      .Attr("N: int >= 0 = 0")                                                          \
      .Attr("M: int >= 0 = 0")                                                          \
      .Attr("body: func")                                                               \
      .Attr("condition: list(func) >= 0 = []")                                          \
      .Attr("condition_inputs: list(int) >= 0 = []")                                    \
      .Attr(                                                                            \
          "input_mode: list({'value', 'slice', 'segment', 'index', 'iterator', "        \
          "'sequence'}) >= 0")                                                          \
      .Attr("input_axis: list(int) >= 0")                                               \
      .Attr("input_start: list(int) >= 0")                                              \
      .Attr("input_end: list(int) >= 0")                                                \
      .Attr("input_stride: list(int) >= 0")                                             \
      .Attr("input_part_size: list(int) >= 0")                                          \
      .Attr("input_label: list(string) >= 0")                                           \
      .Attr("parameter_shapes: list(shape) >= 0")                                       \
      .Attr("back_edge_from: list(int) >= 0")                                           \
      .Attr("back_edge_to: list(int) >= 0")                                             \
      .Attr(                                                                            \
          "output_mode: list({'last', 'concat', 'stack', 'sum', 'sequence', 'count'}) " \
          ">= 0")                                                                       \
      .Attr("output_source: list(int) >= 0")                                            \
      .Attr("output_axis: list(int) >= 0")                                              \
      .Attr("output_stride: list(int) >= 0")                                            \
      .Attr("output_part_size: list(int) >= 0")                                         \
      .Attr("output_length: list(int) >= 0")                                            \
      .Attr("output_label: list(string) >= 0")                                          \
      .Attr("result_types: list(type) >= 0")                                            \
      .Attr("result_shapes: list(shape) >= 0")                                          \
      .Attr("limit_label: string = 'num_iterations'")                                   \
      .Attr("reverse: bool = false")                                                    \
      .Attr("fuse: bool = true")                                                        \
      .Attr("parallel_iterations: int >= 0 = 0")

REGISTER_OP("TfTi>TensorIterator")
    .TF_TI_LOOP_ATTRS()
    .SetIsStateful()
    .SetShapeFn(ShapeFunction(TensorIteratorShape))
    .Doc(kDoc);

// The same op where the body has no side effects: the graph optimiser may prune, merge and fold it.
REGISTER_OP("TfTi>StatelessTensorIterator")
    .TF_TI_LOOP_ATTRS()
    .SetShapeFn(ShapeFunction(TensorIteratorShape))
    .Doc(kDoc);

// The same op where its resources lie on several devices. TensorFlow's runtime puts it in a graph
// when it places operations; saved graphs do not have it. See cc/kernels/loops/placement.cc.
REGISTER_OP("TfTi>MultiDeviceTensorIterator")
    .TF_TI_LOOP_ATTRS()
    .SetIsStateful()
    .SetShapeFn(ShapeFunction(TensorIteratorShape))
    .Doc(kDoc);

// The ops of histories. Their names say Sequence, as does the mode above: saved models have these
// names.
REGISTER_OP("TfTi>SequenceSplit")
    .Input("tensor: T")
    .Input("like: variant")
    .Output("sequence: variant")
    .Attr("T: type")
    .Attr("axis: int")
    .Attr("reverse: bool = false")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Splits a tensor along an axis into a history of pieces with the extents of another's elements.

tensor: The concatenation of the pieces.
like: A history; element k has piece k's extent along the axis.
sequence: The pieces.
reverse: The last piece comes first in the tensor.
)doc");

REGISTER_OP("TfTi>SequenceConcat")
    .Input("sequence: variant")
    .Output("tensor: dtype")
    .Attr("dtype: type")
    .Attr("element_shape: shape")
    .Attr("axis: int")
    .Attr("reverse: bool = false")
    .SetShapeFn(ShapeFunction([](InferenceContext* c) {
      PartialTensorShape element_shape;
      TF_RETURN_IF_ERROR(c->GetAttr("element_shape", &element_shape));
      int64_t axis;
      TF_RETURN_IF_ERROR(c->GetAttr("axis", &axis));
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(element_shape, &shape));
      if (c->RankKnown(shape)) {
        TF_RETURN_IF_ERROR(ResolveAxis("sequence", axis, "a tensor", c->Rank(shape), &axis));
        TF_RETURN_IF_ERROR(c->ReplaceDim(shape, axis, c->UnknownDim(), &shape));
      }
      c->set_output(0, shape);
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Concatenates the tensors of a history along an axis: the inverse of SequenceSplit.

sequence: A history of tensors of type dtype.
tensor: Their concatenation.
element_shape: The dimensions that all elements share; used where there are no elements.
reverse: The last element comes first in the tensor.
)doc");

REGISTER_OP("TfTi>SequenceUnstack")
    .Input("sequence: variant")
    .Input("count: int32")
    .Output("sequences: variant")
    .SetShapeFn(ShapeFunction([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
      DimensionHandle count;
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &count));
      c->set_output(0, c->Vector(count));
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Takes a history of stacks apart: a history of the first elements, one of the second, and so on.

sequence: A history of tensors of extent `count` along their first axis, or of such histories.
count: The extent.
sequences: `count` histories of tensors without that axis.
)doc");

REGISTER_OP("TfTi>SequenceStack")
    .Input("sequences: variant")
    .Output("sequence: variant")
    .SetShapeFn(ShapeFunction([](InferenceContext* c) {
      ShapeHandle vector;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Stacks histories element by element: the inverse of SequenceUnstack.

sequences: Histories of as many tensors, or histories; each has the others' shapes and types.
sequence: A history of stacks along a new first axis.
)doc");

REGISTER_OP("TfTi>TemporaryVariable")
    .Input("value: dtype")
    .Output("resource: resource")
    .Attr("dtype: type")
    .Attr("is_for_xla: bool = false")
    .SetIsStateful()
    .SetShapeFn(ShapeFunction([](InferenceContext* c) {
      tensorflow::DataType dtype;
      TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
      c->set_output(0, c->Scalar());
      c->set_output_handle_shapes_and_types(0, {{c->input(0), dtype}});
      return absl::OkStatus();
    }))
    .Doc(R"doc(
Makes a variable that lives as long as its handle, another one in each call.

It shares the memory of its value until one of the two is written.

value: The value.
resource: The variable's handle.
is_for_xla: True if functions that XLA compiles read it. They find variables by name.
)doc");

REGISTER_OP("TfTi>ListIndex")
    .Input("index: int32")
    .Input("size: int32")
    .Output("same: int32")
    .Attr("label: string")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc(R"doc(
Returns the index at which a list is written that grows where the index is past its end.

It must not be negative, which TensorFlow does not look at. Where XLA compiles, lists do not grow:
there it must be less than the size, too.

index: One or many.
size: Of the list.
label: The list's name in errors.
)doc");

}  // namespace
}  // namespace tf_ti
