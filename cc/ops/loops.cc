// The contract of the loop ops, and of the histories that their gradients keep.
#include <limits>
#include <string>
#include <vector>

#include "cc/compute/loops/pieces.h"
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

constexpr int64_t kUnknown = -1;

// The number of iterations so far known, and the input that told it.
struct Count {
  int64_t value = kUnknown;
  std::string from;

  absl::Status Merge(int64_t other, const std::string& label) {
    if (value == kUnknown) {
      value = other;
      from = label;
    } else if (other != value) {
      return InvalidArgument(from, " gives ", value, " iterations, but ", label, " gives ", other);
    }
    return absl::OkStatus();
  }
};

template <typename T>
absl::Status GetList(InferenceContext* c, const char* name, size_t size, std::vector<T>* list) {
  TF_RETURN_IF_ERROR(c->GetAttr(name, list));
  if (list->size() != size) {
    return InvalidArgument(name, " needs ", size, " elements, got ", list->size());
  }
  return absl::OkStatus();
}

// The static number of iterations, from the extents of the sliced inputs and from num_iterations.
absl::Status InferCount(InferenceContext* c, int num_inputs, Count* count) {
  std::vector<std::string> mode, label;
  std::vector<int64_t> axis, start, end, stride, part_size;
  TF_RETURN_IF_ERROR(GetList(c, "input_mode", num_inputs, &mode));
  TF_RETURN_IF_ERROR(GetList(c, "input_label", num_inputs, &label));
  TF_RETURN_IF_ERROR(GetList(c, "input_axis", num_inputs, &axis));
  TF_RETURN_IF_ERROR(GetList(c, "input_start", num_inputs, &start));
  TF_RETURN_IF_ERROR(GetList(c, "input_end", num_inputs, &end));
  TF_RETURN_IF_ERROR(GetList(c, "input_stride", num_inputs, &stride));
  TF_RETURN_IF_ERROR(GetList(c, "input_part_size", num_inputs, &part_size));
  for (int i = 0; i < num_inputs; ++i) {
    if (mode[i] == "value" || mode[i] == "sequence" || !c->RankKnown(c->input(i))) continue;
    const int64_t rank = c->Rank(c->input(i));
    if (axis[i] < -rank || axis[i] >= rank) {
      return InvalidArgument(label[i], ": axis ", axis[i], " is out of range for a tensor of rank ",
                             rank);
    }
    const int64_t extent = c->Value(c->DimKnownRank(c->input(i), axis[i]));
    if (extent == InferenceContext::kUnknownDim) continue;
    Pieces pieces;
    const std::string problem = ResolvePieces(
        {start[i], end[i], stride[i], part_size[i], mode[i] == "segment"}, extent, &pieces);
    if (!problem.empty()) return InvalidArgument(label[i], ": ", problem);
    // An iterator may end before the loop would: only the iteration that needs it can tell.
    if (mode[i] != "iterator") TF_RETURN_IF_ERROR(count->Merge(pieces.count, label[i]));
  }
  int64_t num_limits;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &num_limits));
  if (num_limits > 0) {
    std::string limit_label;
    TF_RETURN_IF_ERROR(c->GetAttr("limit_label", &limit_label));
    ShapeHandle scalar;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(num_inputs), 0, &scalar));
    const tensorflow::Tensor* value = c->input_tensor(num_inputs);
    if (value != nullptr) {
      const int64_t given = value->scalar<int64_t>()();
      if (given < 0) {
        return InvalidArgument(limit_label, " must not be negative, got ", given);
      }
      TF_RETURN_IF_ERROR(count->Merge(given, limit_label));
    }
  }
  std::vector<tensorflow::NameAttrList> condition;
  TF_RETURN_IF_ERROR(c->GetAttr("condition", &condition));
  // With a condition, only the most iterations that there may be are known.
  if (!condition.empty()) *count = Count();
  return absl::OkStatus();
}

// The static extent that a stack of pieces gets: its length, or the number of iterations.
absl::Status InferStack(InferenceContext* c, int length_input, const Count& count,
                        const std::string& label, DimensionHandle* extent) {
  *extent = count.value == kUnknown ? c->UnknownDim() : c->MakeDim(count.value);
  if (length_input < 0) return absl::OkStatus();
  *extent = c->UnknownDim();
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(length_input), 0, &scalar));
  const tensorflow::Tensor* value = c->input_tensor(length_input);
  if (value == nullptr) return absl::OkStatus();
  // If the loop does not fit, that is found when it runs, if it runs.
  const int64_t length = value->scalar<int64_t>()();
  if (length < 0) {
    return InvalidArgument(label, ": the length must not be negative, got ", length);
  }
  *extent = c->MakeDim(length);
  return absl::OkStatus();
}

absl::Status TensorIteratorShape(InferenceContext* c) {
  std::vector<tensorflow::DataType> input_types;
  TF_RETURN_IF_ERROR(c->GetAttr("Tin", &input_types));
  Count count;
  TF_RETURN_IF_ERROR(InferCount(c, input_types.size(), &count));

  const int num_outputs = c->num_outputs();
  std::vector<PartialTensorShape> parameter_shapes, result_shapes;
  std::vector<std::string> mode, label;
  std::vector<int64_t> source, axis, from, to, length;
  int64_t num_limits, num_lengths;
  TF_RETURN_IF_ERROR(GetList(c, "parameter_shapes", input_types.size(), &parameter_shapes));
  TF_RETURN_IF_ERROR(c->GetAttr("result_shapes", &result_shapes));
  TF_RETURN_IF_ERROR(c->GetAttr("back_edge_from", &from));
  TF_RETURN_IF_ERROR(GetList(c, "back_edge_to", from.size(), &to));
  TF_RETURN_IF_ERROR(GetList(c, "output_mode", num_outputs, &mode));
  TF_RETURN_IF_ERROR(GetList(c, "output_label", num_outputs, &label));
  TF_RETURN_IF_ERROR(GetList(c, "output_source", num_outputs, &source));
  TF_RETURN_IF_ERROR(GetList(c, "output_axis", num_outputs, &axis));
  TF_RETURN_IF_ERROR(GetList(c, "output_length", num_outputs, &length));
  TF_RETURN_IF_ERROR(c->GetAttr("N", &num_limits));
  TF_RETURN_IF_ERROR(c->GetAttr("M", &num_lengths));
  for (int i = 0; i < num_outputs; ++i) {
    if (length[i] >= num_lengths) {
      return InvalidArgument(label[i], ": there is no length ", length[i]);
    }
    if (mode[i] == "sequence" || mode[i] == "count") {
      c->set_output(i, c->Scalar());
      continue;
    }
    if (source[i] < 0 || source[i] >= static_cast<int64_t>(result_shapes.size())) {
      return InvalidArgument(label[i], ": there is no body result ", source[i]);
    }
    ShapeHandle piece;
    TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(result_shapes[source[i]], &piece));
    if (mode[i] == "last") {
      // Without an iteration the output is the initial value, whose shape may be another.
      for (size_t e = 0; e < from.size() && count.value <= 0; ++e) {
        if (from[e] != source[i] || to[e] < 0 || to[e] >= c->num_inputs()) continue;
        ShapeHandle initial = c->input(to[e]);
        if (count.value == 0) {
          piece = initial;
        } else if (!c->RankKnown(initial) || !c->RankKnown(piece) ||
                   c->Rank(initial) != c->Rank(piece)) {
          piece = c->UnknownShape();
        } else {
          std::vector<DimensionHandle> dims;
          for (int d = 0; d < c->Rank(piece); ++d) {
            const bool same = c->ValueKnown(c->Dim(piece, d)) &&
                              c->Value(c->Dim(piece, d)) == c->Value(c->Dim(initial, d));
            dims.push_back(same ? c->Dim(piece, d) : c->UnknownDim());
          }
          piece = c->MakeShape(dims);
        }
        break;
      }
      c->set_output(i, piece);
      continue;
    }
    if (mode[i] == "sum" || !c->RankKnown(piece)) {
      c->set_output(i, piece);
      continue;
    }
    const bool stack = mode[i] == "stack" || c->Rank(piece) == 0;
    const int64_t rank = c->Rank(piece) + (stack ? 1 : 0);
    if (axis[i] < -rank || axis[i] >= rank) {
      return InvalidArgument(label[i], ": axis ", axis[i],
                             " is out of range for an output of rank ", rank);
    }
    const int64_t at = axis[i] < 0 ? axis[i] + rank : axis[i];
    std::vector<DimensionHandle> dims;
    for (int d = 0; d < c->Rank(piece); ++d) dims.push_back(c->Dim(piece, d));
    DimensionHandle extent = c->UnknownDim();
    if (stack) {
      const int input = length[i] < 0 ? -1 : input_types.size() + num_limits + length[i];
      TF_RETURN_IF_ERROR(InferStack(c, input, count, label[i], &extent));
    } else if (count.value == 0) {
      extent = c->MakeDim(0);
    } else if (count.value != kUnknown && c->ValueKnown(dims[at])) {
      const int64_t part = c->Value(dims[at]);
      if (part > 0 && count.value > std::numeric_limits<int64_t>::max() / part) {
        return InvalidArgument(label[i], ": ", count.value, " iterations of extent ", part,
                               " are too many for one tensor");
      }
      extent = c->MakeDim(count.value * part);
    }
    if (stack) {
      dims.insert(dims.begin() + at, extent);
    } else {
      dims[at] = extent;
    }
    c->set_output(i, c->MakeShape(dims));
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
  negative. sum: the sum. sequence: a history of the values of each output_stride-th iteration.
  count: the number of iterations.
output_source: r >= 0 is result r of the body; ~p is the value with which parameter p enters.
output_length: For a stack the number of its `length`, or -1.
output_part_size: The extent of a concat output's pieces, or 0 for any.
output_label: The output's name in errors.
result_types: The types of the body's results.
result_shapes: The static shapes of the body's results.
limit_label: The name of num_iterations in errors.
reverse: Visit the pieces from the last to the first. Pieces, histories and outputs keep their
  positions: only the order of execution turns round.
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
      .Attr("reverse: bool = false")

REGISTER_OP("TfTi>TensorIterator")
    .TF_TI_LOOP_ATTRS()
    .SetIsStateful()
    .SetShapeFn(TensorIteratorShape)
    .Doc(kDoc);

// The same op where the body has no side effects: the graph optimiser may prune, merge and fold it.
REGISTER_OP("TfTi>StatelessTensorIterator")
    .TF_TI_LOOP_ATTRS()
    .SetShapeFn(TensorIteratorShape)
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
    .SetShapeFn([](InferenceContext* c) {
      PartialTensorShape element_shape;
      TF_RETURN_IF_ERROR(c->GetAttr("element_shape", &element_shape));
      int64_t axis;
      TF_RETURN_IF_ERROR(c->GetAttr("axis", &axis));
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(element_shape, &shape));
      if (c->RankKnown(shape)) {
        const int64_t rank = c->Rank(shape);
        if (axis < -rank || axis >= rank) {
          return InvalidArgument("axis ", axis, " is out of range for elements of rank ", rank);
        }
        TF_RETURN_IF_ERROR(
            c->ReplaceDim(shape, axis < 0 ? axis + rank : axis, c->UnknownDim(), &shape));
      }
      c->set_output(0, shape);
      return absl::OkStatus();
    })
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
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle scalar;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
      DimensionHandle count;
      TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &count));
      c->set_output(0, c->Vector(count));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Takes a history of stacks apart: a history of the first elements, one of the second, and so on.

sequence: A history of tensors of extent `count` along their first axis, or of such histories.
count: The extent.
sequences: `count` histories of tensors without that axis.
)doc");

REGISTER_OP("TfTi>SequenceStack")
    .Input("sequences: variant")
    .Output("sequence: variant")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle vector;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    })
    .Doc(R"doc(
Stacks histories element by element: the inverse of SequenceUnstack.

sequences: Histories of as many tensors, or histories; each has the others' shapes and types.
sequence: A history of stacks along a new first axis.
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
