#include "cc/spec/loops/loop_spec.h"

#include <algorithm>
#include <utility>

#include "cc/spec/loops/errors.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"

namespace tf_ti {
namespace {

using tensorflow::PartialTensorShape;

InputMode ParseInputMode(const std::string& mode) {
  if (mode == "slice") return InputMode::kSlice;
  if (mode == "segment") return InputMode::kSegment;
  if (mode == "index") return InputMode::kIndex;
  if (mode == "iterator") return InputMode::kIterator;
  if (mode == "sequence") return InputMode::kHistory;
  return InputMode::kValue;
}

OutputMode ParseOutputMode(const std::string& mode) {
  if (mode == "concat") return OutputMode::kConcat;
  if (mode == "stack") return OutputMode::kStack;
  if (mode == "sum") return OutputMode::kSum;
  if (mode == "sequence") return OutputMode::kHistory;
  if (mode == "count") return OutputMode::kCount;
  return OutputMode::kLast;
}

absl::Status CheckIndex(const char* what, int64_t index, size_t size) {
  if (index < 0 || index >= static_cast<int64_t>(size)) {
    return InvalidArgument(what, " ", index, " does not exist: the body has ", size);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoopSpec::Init(const Attributes& attributes) {
  tensorflow::DataTypeVector input_types, output_types;
  TF_RETURN_IF_ERROR(attributes.Get("Tin", &input_types));
  TF_RETURN_IF_ERROR(attributes.Get("Tout", &output_types));
  int64_t num_limits;
  TF_RETURN_IF_ERROR(attributes.Get("N", &num_limits));
  if (num_limits > 1) {
    return InvalidArgument("at most one num_iterations can be given, got ", num_limits);
  }
  has_num_iterations = num_limits == 1;
  int64_t num_lengths;
  TF_RETURN_IF_ERROR(attributes.Get("M", &num_lengths));
  std::vector<tensorflow::NameAttrList> conditions;
  TF_RETURN_IF_ERROR(attributes.Get("condition", &conditions));
  if (conditions.size() > 1) {
    return InvalidArgument("at most one condition can be given, got ", conditions.size());
  }
  has_condition = conditions.size() == 1;
  TF_RETURN_IF_ERROR(attributes.Get("limit_label", &limit_label));
  TF_RETURN_IF_ERROR(attributes.Get("reverse", &reverse));
  TF_RETURN_IF_ERROR(attributes.Get("fuse", &fuse));
  TF_RETURN_IF_ERROR(attributes.Get("parallel_iterations", &parallel_iterations));
  TF_RETURN_IF_ERROR(attributes.Get("result_shapes", &result_shapes));

  {
    const size_t n = input_types.size();
    std::vector<std::string> mode, label;
    std::vector<int64_t> axis, start, end, stride, part_size;
    std::vector<PartialTensorShape> shape;
    TF_RETURN_IF_ERROR(attributes.GetList("input_mode", n, &mode));
    TF_RETURN_IF_ERROR(attributes.GetList("input_label", n, &label));
    TF_RETURN_IF_ERROR(attributes.GetList("input_axis", n, &axis));
    TF_RETURN_IF_ERROR(attributes.GetList("input_start", n, &start));
    TF_RETURN_IF_ERROR(attributes.GetList("input_end", n, &end));
    TF_RETURN_IF_ERROR(attributes.GetList("input_stride", n, &stride));
    TF_RETURN_IF_ERROR(attributes.GetList("input_part_size", n, &part_size));
    TF_RETURN_IF_ERROR(attributes.GetList("parameter_shapes", n, &shape));
    for (size_t i = 0; i < n; ++i) {
      Input input{ParseInputMode(mode[i]), axis[i], {}, label[i], input_types[i], shape[i]};
      input.range = {start[i], end[i], stride[i], part_size[i], input.mode == InputMode::kSegment};
      if ((input.mode == InputMode::kIndex || input.mode == InputMode::kIterator) &&
          part_size[i] != 1) {
        return InvalidArgument(label[i], ": an element has part_size 1, got ", part_size[i]);
      }
      inputs.push_back(std::move(input));
    }
  }
  {
    const size_t n = output_types.size();
    std::vector<std::string> mode, label;
    std::vector<int64_t> source, axis, stride, part_size, length;
    TF_RETURN_IF_ERROR(attributes.GetList("output_mode", n, &mode));
    TF_RETURN_IF_ERROR(attributes.GetList("output_label", n, &label));
    TF_RETURN_IF_ERROR(attributes.GetList("output_source", n, &source));
    TF_RETURN_IF_ERROR(attributes.GetList("output_axis", n, &axis));
    TF_RETURN_IF_ERROR(attributes.GetList("output_stride", n, &stride));
    TF_RETURN_IF_ERROR(attributes.GetList("output_part_size", n, &part_size));
    TF_RETURN_IF_ERROR(attributes.GetList("output_length", n, &length));
    for (size_t i = 0; i < n; ++i) {
      Output output{
          ParseOutputMode(mode[i]), -1, -1, axis[i], stride[i], part_size[i], length[i], label[i],
          output_types[i]};
      if (stride[i] == 0) return InvalidArgument(label[i], ": stride must not be 0");
      if (length[i] < -1 || length[i] >= num_lengths) {
        return InvalidArgument(label[i], ": there is no length ", length[i]);
      }
      if (length[i] >= 0 && output.mode != OutputMode::kStack) {
        return InvalidArgument(label[i], ": only a stack has a length");
      }
      if (output.mode == OutputMode::kCount) {
        if (output.dtype != tensorflow::DT_INT64) {
          return InvalidArgument(label[i], ": the number of iterations is of type int64");
        }
      } else if (source[i] >= 0) {
        TF_RETURN_IF_ERROR(CheckIndex("result", source[i], result_shapes.size()));
        output.result = source[i];
      } else {
        TF_RETURN_IF_ERROR(CheckIndex("parameter", ~source[i], inputs.size()));
        output.parameter = ~source[i];
        if (output.mode != OutputMode::kHistory) {
          return InvalidArgument(label[i], ": only a sequence can hold a parameter");
        }
      }
      if (output.mode == OutputMode::kHistory &&
          (stride[i] < 1 || output.dtype != tensorflow::DT_VARIANT)) {
        return InvalidArgument(label[i], ": a sequence is a variant, of positive stride");
      }
      outputs.push_back(std::move(output));
    }
  }
  std::vector<int64_t> from, to;
  TF_RETURN_IF_ERROR(attributes.Get("back_edge_from", &from));
  TF_RETURN_IF_ERROR(attributes.GetList("back_edge_to", from.size(), &to));
  for (size_t e = 0; e < from.size(); ++e) {
    TF_RETURN_IF_ERROR(CheckIndex("back edge from result", from[e], result_shapes.size()));
    TF_RETURN_IF_ERROR(CheckIndex("back edge to parameter", to[e], inputs.size()));
    Input& target = inputs[to[e]];
    if (target.back_edge) {
      return InvalidArgument(target.label, ": two back edges lead to parameter ", to[e]);
    }
    if (target.mode != InputMode::kValue) {
      return InvalidArgument(target.label, ": a back edge leads to a sliced parameter");
    }
    target.back_edge = true;
    const bool last_use = std::find(from.begin() + e + 1, from.end(), from[e]) == from.end();
    back_edges.push_back({static_cast<int>(from[e]), static_cast<int>(to[e]), last_use});
  }
  std::vector<int64_t> read;
  TF_RETURN_IF_ERROR(attributes.Get("condition_inputs", &read));
  for (int64_t parameter : read) {
    TF_RETURN_IF_ERROR(CheckIndex("condition input", parameter, inputs.size()));
    condition_inputs.push_back(parameter);
  }
  if (has_condition) {
    if (reverse) return InvalidArgument("a loop with a condition cannot run backwards");
    for (const Output& output : outputs) {
      const bool has_edge =
          std::any_of(back_edges.begin(), back_edges.end(),
                      [&](const BackEdge& edge) { return edge.from == output.result; });
      if (output.mode == OutputMode::kConcat) {
        return InvalidArgument(output.label,
                               ": a condition and a concatenation do not go together");
      }
      if (output.mode == OutputMode::kLast && !has_edge) {
        return InvalidArgument(output.label, ": no back edge keeps the last value of result ",
                               output.result, ", and a condition tells only later that it is one");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status LoopSpec::Input::FindAxis(int64_t rank, int64_t* resolved) const {
  return ResolveAxis(label, axis, "a tensor", rank, resolved);
}

absl::Status LoopSpec::Input::FindPieces(int64_t extent, Pieces* pieces) const {
  const std::string problem = ResolvePieces(range, extent, pieces);
  return problem.empty() ? absl::OkStatus() : InvalidArgument(label, ": ", problem);
}

int64_t LoopSpec::Input::CountParts(int64_t size) const {
  const int64_t part = range.part_size;
  return part > 0 ? size / part + (size % part > 0) : size;
}

absl::Status LoopSpec::Output::FindAxis(int64_t rank, int64_t* resolved) const {
  return ResolveAxis(label, axis, "an output", rank, resolved);
}

absl::Status LoopSpec::Output::CheckLength(int64_t given) const {
  return given >= 0 ? absl::OkStatus() : InvalidArgument(IsNegative(LengthName(), given));
}

int LoopSpec::StateOf(const Output& output) const {
  for (const BackEdge& edge : back_edges) {
    if (edge.from == output.result) return edge.to;
  }
  return -1;
}

absl::Status LoopSpec::CheckLimit(int64_t given) const {
  return given >= 0 ? absl::OkStatus() : InvalidArgument(IsNegative(limit_label, given));
}

absl::Status LoopSpec::CheckBody(size_t num_parameters, size_t expected, size_t num_results) const {
  if (num_parameters == expected && num_results == result_shapes.size()) return absl::OkStatus();
  return InvalidArgument("the body has ", num_parameters, " parameters and ", num_results,
                         " results; the op was built for ", expected, " and ",
                         result_shapes.size());
}

absl::Status LoopSpec::CheckBackEdge(const BackEdge& edge, tensorflow::DataType from,
                                     tensorflow::DataType to) const {
  if (from == to) return absl::OkStatus();
  return InvalidArgument(inputs[edge.to].label, ": a back edge brings ",
                         tensorflow::DataTypeString(from), " to a parameter of type ",
                         tensorflow::DataTypeString(to));
}

absl::Status LoopSpec::CheckResult(const Output& output, tensorflow::DataType dtype) const {
  if (output.result < 0 || output.mode == OutputMode::kHistory || dtype == output.dtype) {
    return absl::OkStatus();
  }
  return InvalidArgument(output.label, ": the body's result is of type ",
                         tensorflow::DataTypeString(dtype), ", the output of type ",
                         tensorflow::DataTypeString(output.dtype));
}

}  // namespace tf_ti
