#include "cc/kernels/loops/lowering/loops.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cc/compute/loops/pieces.h"
#include "cc/kernels/loops/lowering/rules.h"
#include "cc/kernels/loops/schedule.h"
#include "cc/spec/attributes.h"
#include "cc/spec/loops/count.h"
#include "cc/spec/loops/loop_spec.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/common_runtime/function_def_utils.h"
#include "tensorflow/core/common_runtime/graph_constructor.h"
#include "tensorflow/core/common_runtime/graph_optimizer.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

using tensorflow::FunctionLibraryDefinition;
using tensorflow::Graph;
using tensorflow::NameAttrList;
using tensorflow::Node;
using tensorflow::NodeDef;
using tensorflow::Tensor;

namespace {

// A loop of more nanoseconds is worth a run of its own, on all threads. So is a loop whose
// iteration takes more: it has tiles there.
constexpr double kMostTime = 200e3;
constexpr double kMostOfIteration = 30e3;
// More iterations than any loop has.
constexpr int64_t kNoLimit = int64_t{1} << 56;
// Of loops that are written out: iterations, and operations of all iterations.
constexpr int64_t kMostUnrolled = 8;
constexpr int64_t kMostOperations = 64;

class FunctionLowering {
 public:
  FunctionLowering(LoweringContext* context, const Functions* functions)
      : context_(*context), functions_(*functions) {}

  // A function's operations, each behind its inputs.
  struct Function {
    std::unique_ptr<Graph> graph;
    std::vector<Node*> order;
    std::vector<const Node*> arguments;
    std::vector<const Node*> results;
    std::map<const Node*, Tensor> constants;

    // The number of operations that compute anything. A function, or a loop, counts for many.
    int64_t NumOperations() const {
      constexpr int64_t kMany = 1000;
      int64_t count = 0;
      for (const Node* node : order) {
        if (!node->IsOp() || node->IsArg() || node->IsRetval() || IsView(node->def())) continue;
        const bool is_many = node->IsPartitionedCall() || IsInnerLoop(node->def());
        count += is_many ? kMany : 1;
      }
      return count;
    }
  };

  absl::StatusOr<Function> Find(const NameAttrList& function) const {
    const FunctionLibraryDefinition& definitions = *functions_.definitions;
    const tensorflow::FunctionDef* const definition = definitions.Find(function.name());
    if (definition == nullptr) return Refused("there is no function ", function.name());
    std::unique_ptr<tensorflow::FunctionBody> body;
    TF_RETURN_IF_ERROR(tensorflow::FunctionDefToBodyHelper(
        *definition, tensorflow::AttrSlice(&function.attr()), &definitions, &body));
    Function found;
    found.graph = std::make_unique<Graph>(definitions);
    tensorflow::CopyGraph(*body->graph, found.graph.get());
    // TensorFlow runs functions so: a value that depends on constants alone is a constant.
    if (functions_.library != nullptr) {
      tensorflow::OptimizeGraph(functions_.library, &found.graph);
    }
    found.arguments.resize(body->arg_types.size());
    found.results.resize(body->ret_types.size());
    for (const Node* node : found.graph->op_nodes()) {
      if (node->IsConstant()) {
        TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node->attrs(), "value", &found.constants[node]));
      }
      if (!node->IsArg() && !node->IsRetval()) continue;
      int index;
      TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node->attrs(), "index", &index));
      (node->IsArg() ? found.arguments : found.results).at(index) = node;
    }
    tensorflow::GetReversePostOrder(*found.graph, &found.order);
    return found;
  }

  // Adds the operations of a function. Returns its results.
  Outputs Lower(const Function& function, const std::vector<Lowered>& arguments) const {
    if (function.arguments.size() != arguments.size()) return Refused("another argument");
    std::map<const Node*, std::vector<Lowered>> values;
    for (size_t k = 0; k < arguments.size(); ++k) {
      const Node* const node = function.arguments[k];
      if (node == nullptr) continue;
      if (DataTypeOf(arguments[k]) != node->output_type(0)) return Refused("an argument's type");
      values[node] = {arguments[k]};
    }
    for (const Node* node : function.order) {
      if (!node->IsOp() || node->IsArg() || node->type_string() == "NoOp") continue;
      std::vector<Lowered> inputs(node->num_inputs());
      for (const tensorflow::Edge* edge : node->in_edges()) {
        if (edge->IsControlEdge()) continue;
        inputs[edge->dst_input()] = values.at(edge->src()).at(edge->src_output());
      }
      if (node->IsRetval() || IsIdentity(node->type_string())) {
        values[node] = std::move(inputs);
        continue;
      }
      const auto constant = function.constants.find(node);
      if (constant != function.constants.end()) {
        values[node] = {Lowered{std::nullopt, constant->second}};
        continue;
      }
      TF_ASSIGN_OR_RETURN(values[node], LowerNode(*node, inputs));
    }
    std::vector<Lowered> results;
    for (const Node* result : function.results) results.push_back(values.at(result).at(0));
    return results;
  }

 private:
  Outputs LowerNode(const Node& node, const std::vector<Lowered>& inputs) const {
    const NodeDef& def = node.def();
    if (node.IsPartitionedCall()) {
      NameAttrList called;
      TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(def, "f", &called));
      TF_ASSIGN_OR_RETURN(const Function function, Find(called));
      return Lower(function, inputs);
    }
    if (IsInnerLoop(def)) {
      std::vector<bool> is_read(node.num_outputs(), false);
      for (const tensorflow::Edge* edge : node.out_edges()) {
        if (!edge->IsControlEdge()) is_read[edge->src_output()] = true;
      }
      return LowerLoop(context_, def, inputs, is_read, functions_);
    }
    TF_ASSIGN_OR_RETURN(std::vector<Lowered> outputs, tf_ti::Lower(context_, def, inputs));
    TF_RETURN_IF_ERROR(CheckInferred(def, inputs, outputs));
    return outputs;
  }

  LoweringContext& context_;
  const Functions& functions_;
};

class LoopLowering {
 public:
  LoopLowering(LoweringContext* context, const NodeDef& node, const std::vector<bool>& is_read,
               const Functions* functions)
      : context_(*context),
        builder_(context->builder()),
        node_(node),
        is_read_(is_read),
        functions_(context, functions) {}

  Outputs Lower(const std::vector<Lowered>& inputs) {
    TF_RETURN_IF_ERROR(spec_.Init(Attributes(this)));
    if (!spec_.fuse) return Refused("kernels are to run the loop");
    if (spec_.has_condition && spec_.reverse) return Refused("a condition of a reversed loop");
    TF_RETURN_IF_ERROR(FindCount(inputs));
    NameAttrList body;
    TF_RETURN_IF_ERROR(GetAttr("body", &body));
    TF_ASSIGN_OR_RETURN(const FunctionLowering::Function function, functions_.Find(body));
    const bool is_short = most_ <= 1 || (most_ <= kMostUnrolled &&
                                         most_ * function.NumOperations() <= kMostOperations);
    if (IsStatic() && is_short) return Unroll(function, inputs);
    if (most_ < 1) return Refused("no iteration");
    parameters_.resize(spec_.inputs.size());
    std::vector<std::optional<View>> histories;
    for (const Lowered& input : inputs) histories.push_back(RowsOf(input));
    TF_ASSIGN_OR_RETURN(const std::optional<View> before, context_.FailureSoFar());
    builder_.BeginLoop(most_);
    // True if an earlier iteration has failed, or a step before the loop. Values are wrong then,
    // and a loop whose number of iterations follows from values might not end.
    const View failed =
        builder_.AddState(before.has_value() ? *before : Zero(context_, ElementType::kBool));
    LoweringContext::Failures around = context_.BeginIteration(failed);
    next_.push_back(failed);
    for (size_t i = 0; i < spec_.inputs.size(); ++i) {
      TF_ASSIGN_OR_RETURN(parameters_[i], Parameter(static_cast<int>(i), inputs[i], histories[i]));
    }
    TF_RETURN_IF_ERROR(AddCondition());
    TF_RETURN_IF_ERROR(AddBody(function));
    const bool may_fail = context_.failure().has_value();
    if (may_fail) {
      next_[0] = *builder_.Apply(Operation::kLogicalOr, {failed, *context_.failure()});
    }
    if (!IsStatic() && (may_fail || before.has_value())) builder_.StopIf(failed);
    Outputs outputs = End(inputs);
    TF_RETURN_IF_ERROR(outputs.status());
    context_.EndIteration(std::move(around));
    if (may_fail) TF_RETURN_IF_ERROR(context_.FailIf(ends_[0]));
    for (const View& misfit : misfits_) TF_RETURN_IF_ERROR(context_.FailIf(misfit));
    const double time = builder_.time_of_last_loop();
    const auto iterations = static_cast<double>(std::min(most_, kExpectedIterations));
    if (time > kMostTime || time > kMostOfIteration * iterations) {
      return Refused("a loop that takes long, and runs on its own");
    }
    return outputs;
  }

  // Gets an attribute of the node.
  template <typename T>
  absl::Status GetAttr(const char* name, T* value) const {
    return tensorflow::GetNodeAttr(node_, name, value);
  }

 private:
  int64_t IndexOf(int64_t t) const { return spec_.reverse ? most_ - 1 - t : t; }
  bool IsStatic() const { return !spec_.has_condition && !num_iterations_.has_value(); }

  // Finds the number of iterations, or the most that there are.
  absl::Status FindCount(const std::vector<Lowered>& inputs) {
    pieces_.resize(spec_.inputs.size());
    axes_.resize(spec_.inputs.size());
    Count count;
    int64_t shortest = kNoLimit;  // of iterators
    int64_t rows = kNoLimit;      // of histories that may have fewer values
    for (size_t i = 0; i < spec_.inputs.size(); ++i) {
      const LoopSpec::Input& input = spec_.inputs[i];
      if (input.mode == InputMode::kHistory) {
        if (!inputs[i].history.has_value() || input.range.part_size != 0) {
          return Refused("a history that the program has not recorded");
        }
        const RecordedValues& recorded = *inputs[i].history;
        if (recorded.num_values.has_value()) {
          rows = std::min(rows, recorded.most());
          recorded_.push_back(*recorded.num_values);
        } else {
          TF_RETURN_IF_ERROR(count.Merge(recorded.most(), input.label));
        }
        continue;
      }
      if (!input.is_sliced()) continue;
      if (input.back_edge) return Refused("pieces that a state follows");
      const Dims dims = DimsOf(inputs[i]);
      int64_t& axis = axes_[i];
      TF_RETURN_IF_ERROR(input.FindAxis(static_cast<int64_t>(dims.size()), &axis));
      TF_RETURN_IF_ERROR(input.FindPieces(dims[axis], &pieces_[i]));
      if (pieces_[i].last_size != pieces_[i].part_size) return Refused("a last piece is short");
      if (input.mode == InputMode::kIterator) {
        shortest = std::min(shortest, pieces_[i].count);
      } else {
        TF_RETURN_IF_ERROR(count.Merge(pieces_[i].count, input.label));
      }
    }
    if (spec_.has_num_iterations) {
      const Lowered& limit = inputs[spec_.limit_input()];
      if (!DimsOf(limit).empty() || DataTypeOf(limit) != tensorflow::DT_INT64) {
        return Refused("a limit that is no number");
      }
      if (limit.known.has_value()) {
        TF_RETURN_IF_ERROR(count.Merge(limit.known->scalar<int64_t>()(), spec_.limit_label));
      } else {
        if (count.is_known()) return Refused("a limit that is not known");
        num_iterations_ = *limit.view;
        const View zero = Zero(context_, ElementType::kInt64);
        misfits_.push_back(*builder_.Apply(Operation::kLess, {*num_iterations_, zero}));
        for (const View& other : recorded_) {
          misfits_.push_back(*builder_.Apply(Operation::kNotEqual, {*num_iterations_, other}));
        }
      }
    }
    const bool is_limited = count.is_known() || num_iterations_.has_value();
    if (!is_limited && !spec_.has_condition) return Refused("no number of iterations");
    if (!recorded_.empty() && !num_iterations_.has_value()) return Refused("a history's count");
    most_ = count.is_known() ? count.value : rows;
    if (most_ < 0) return Refused("a negative number of iterations");
    if (most_ > shortest) return Refused("an iterator may end before the loop");
    const bool has_pieces =
        std::any_of(spec_.inputs.begin(), spec_.inputs.end(),
                    [](const LoopSpec::Input& input) { return input.is_sliced(); });
    if (spec_.reverse && !IsStatic() && has_pieces) return Refused("the last index is not known");
    return absl::OkStatus();
  }

  // The values of a history as rows of one array; null where the value is no history.
  std::optional<View> RowsOf(const Lowered& value) {
    if (!value.history.has_value()) return std::nullopt;
    const RecordedValues& recorded = *value.history;
    if (recorded.rows.has_value() || recorded.arrays.empty()) return recorded.rows;
    return Stacked(recorded.arrays);
  }

  View Stacked(const std::vector<View>& arrays) {
    Dims dims = arrays[0].dims;
    dims.insert(dims.begin(), static_cast<int64_t>(arrays.size()));
    const View whole = builder_.AddResult(arrays[0].type, dims);
    for (size_t k = 0; k < arrays.size(); ++k) {
      const auto row = static_cast<int64_t>(k);
      builder_.CopyInto(arrays[k], whole.Slice(0, row, 1, 1).WithoutDim(0));
    }
    return whole;
  }

  absl::Status CheckParameter(int i, const Lowered& parameter) const {
    const Dims dims = DimsOf(parameter);
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(dims, &shape));
    if (spec_.inputs[i].shape.IsCompatibleWith(shape)) return absl::OkStatus();
    return Refused("a parameter of another shape");
  }

  // The piece of an input that iteration t reads.
  absl::StatusOr<View> PieceAt(int i, int64_t t, const Lowered& given) const {
    const LoopSpec::Input& input = spec_.inputs[i];
    const int64_t k = IndexOf(t);
    if (input.mode == InputMode::kHistory) {
      const RecordedValues& recorded = *given.history;
      if (!recorded.rows.has_value()) return recorded.arrays[k];
      return recorded.rows->Slice(0, k, 1, 1).WithoutDim(0);
    }
    TF_ASSIGN_OR_RETURN(const View view, context_.ViewOf(given));
    const int dim = static_cast<int>(axes_[i]);
    const View piece = view.Slice(dim, pieces_[i].Begin(k), pieces_[i].part_size, 1);
    return input.drops_axis() ? piece.WithoutDim(dim) : piece;
  }

  // An array that has the values of all iterations, and zeros behind them.
  struct OutputPieces {
    View whole;
    int dim;
    int64_t extent;  // of a piece along the dimension
    bool is_stack;   // the pieces lack it

    View At(int64_t k) const {
      const View piece = whole.Slice(dim, k * extent, extent, 1);
      return is_stack ? piece.WithoutDim(dim) : piece;
    }
  };

  // Writes all iterations out.
  Outputs Unroll(const FunctionLowering::Function& function, const std::vector<Lowered>& inputs) {
    const int num_inputs = static_cast<int>(spec_.inputs.size());
    std::vector<Lowered> parameters(inputs.begin(), inputs.begin() + num_inputs), results;
    std::vector<std::vector<Lowered>> values(spec_.outputs.size());  // by index
    for (std::vector<Lowered>& each : values) each.resize(most_);
    for (int64_t t = 0; t < most_; ++t) {
      for (int i = 0; i < num_inputs; ++i) {
        if (spec_.inputs[i].mode != InputMode::kValue) {
          TF_ASSIGN_OR_RETURN(const View piece, PieceAt(i, t, inputs[i]));
          parameters[i] = {piece};
        }
        TF_RETURN_IF_ERROR(CheckParameter(i, parameters[i]));
      }
      TF_ASSIGN_OR_RETURN(results, functions_.Lower(function, parameters));
      if (results.size() != spec_.result_shapes.size()) return Refused("another result");
      for (size_t o = 0; o < values.size(); ++o) {
        const LoopSpec::Output& output = spec_.outputs[o];
        if (output.result < 0 && output.parameter < 0) continue;
        values[o][IndexOf(t)] =
            output.result >= 0 ? results[output.result] : parameters[output.parameter];
      }
      for (const LoopSpec::BackEdge& edge : spec_.back_edges) {
        const Lowered& next = results[edge.from];
        if (DataTypeOf(next) != DataTypeOf(inputs[edge.to])) return Refused("a state's type");
        parameters[edge.to] = next;
      }
    }
    std::vector<Lowered> outputs(values.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      if (!is_read_[o]) continue;
      const LoopSpec::Output& output = spec_.outputs[o];
      if (output.mode == OutputMode::kCount) {
        outputs[o] = KnownCount();
      } else if (output.mode == OutputMode::kLast) {
        const int state = spec_.StateOf(output);
        if (most_ == 0 && state < 0) return Refused("the last value of no iteration");
        outputs[o] = most_ == 0 ? inputs[state] : results[output.result];
        if (DataTypeOf(outputs[o]) != output.dtype) return Refused("an output of another type");
      } else {
        TF_ASSIGN_OR_RETURN(outputs[o], OutputOf(output, values[o], inputs));
      }
    }
    return outputs;
  }

  // An output that has the values of all iterations, which come by index.
  absl::StatusOr<Lowered> OutputOf(const LoopSpec::Output& output,
                                   const std::vector<Lowered>& values,
                                   const std::vector<Lowered>& inputs) {
    std::vector<View> views;
    for (const Lowered& value : values) {
      TF_ASSIGN_OR_RETURN(views.emplace_back(), context_.ViewOf(value));
      if (views.back().type != views[0].type || views.back().dims != views[0].dims) {
        return Refused("values of several shapes");
      }
    }
    Lowered result;
    if (output.mode == OutputMode::kHistory) {
      if (output.stride != 1 || output.part_size != 0) return Refused("a part of a history");
      result.history.emplace().arrays = std::move(views);
      return result;
    }
    if (views.empty()) return Refused("no iteration");
    if (DataTypeOf(views[0].type) != output.dtype) return Refused("an output of another type");
    if (output.mode == OutputMode::kSum) {
      const ElementType type = ComputedAs(views[0].type);
      Term sum = context_.TermOf(Zero(context_, type).BroadcastTo(views[0].dims));
      for (int64_t t = 0; t < most_; ++t) {
        sum = sum + context_.TermOf(builder_.Cast(views[IndexOf(t)], type));
      }
      TF_ASSIGN_OR_RETURN(const View total, sum.view());
      result.view = builder_.Cast(total, views[0].type);
      return result;
    }
    TF_ASSIGN_OR_RETURN(const OutputPieces pieces, PiecesOf(output, views[0], inputs));
    for (int64_t k = 0; k < most_; ++k) {
      const int64_t at = output.stride < 0 ? most_ - 1 - k : k;
      builder_.CopyInto(views[k], pieces.At(at));
    }
    result.view = pieces.whole;
    return result;
  }

  absl::StatusOr<Lowered> Parameter(int i, const Lowered& given,
                                    const std::optional<View>& history) {
    const LoopSpec::Input& input = spec_.inputs[i];
    Lowered parameter;
    if (input.is_invariant()) {
      parameter = given;
    } else if (input.mode == InputMode::kHistory) {
      parameter.view = RowOf(*history);
    } else {
      TF_ASSIGN_OR_RETURN(const View view, context_.ViewOf(given));
      if (input.back_edge) {
        TF_ASSIGN_OR_RETURN(parameter.view, AddState(i, view));
      } else {
        parameter.view = PieceOf(i, view);
      }
    }
    TF_RETURN_IF_ERROR(CheckParameter(i, parameter));
    return parameter;
  }

  absl::StatusOr<View> AddState(int parameter, const View& start) {
    states_.push_back(parameter);
    const bool is_recorded = std::any_of(
        spec_.outputs.begin(), spec_.outputs.end(), [&](const LoopSpec::Output& output) {
          return output.parameter == parameter && is_read_[&output - spec_.outputs.data()];
        });
    const bool may_be = most_ < kNoLimit && (IsStatic() || !spec_.reverse);
    if (!is_recorded || !may_be) return builder_.AddState(start);
    Dims dims = start.dims;
    dims.insert(dims.begin(), most_ + 1);
    TF_RETURN_IF_ERROR(CheckDims(dims));
    return builder_.AddState(start, spec_.reverse, &values_of_[parameter]);
  }

  // The row of an array that has a value of each iteration.
  View RowOf(const View& array) const {
    if (spec_.reverse && !IsStatic()) return builder_.RowToLast(array);
    return builder_.PieceOf(array, 0, IndexOf(0), 1, spec_.reverse ? -1 : 1).WithoutDim(0);
  }

  View PieceOf(int i, const View& view) const {
    const LoopSpec::Input& input = spec_.inputs[i];
    const Pieces& pieces = pieces_[i];
    const int64_t first = pieces.Begin(IndexOf(0));
    const int64_t step = spec_.reverse ? -pieces.stride : pieces.stride;
    const int dim = static_cast<int>(axes_[i]);
    const View piece = builder_.PieceOf(view, dim, first, pieces.part_size, step);
    return input.drops_axis() ? piece.WithoutDim(dim) : piece;
  }

  absl::Status AddCondition() {
    if (!spec_.has_condition) return absl::OkStatus();
    std::vector<NameAttrList> functions;
    TF_RETURN_IF_ERROR(GetAttr("condition", &functions));
    std::vector<Lowered> arguments;
    for (const int i : spec_.condition_inputs) arguments.push_back(parameters_[i]);
    TF_ASSIGN_OR_RETURN(const FunctionLowering::Function function,
                        functions_.Find(functions.at(0)));
    TF_ASSIGN_OR_RETURN(const std::vector<Lowered> results, functions_.Lower(function, arguments));
    if (results.empty()) return Refused("the condition has no result");
    TF_ASSIGN_OR_RETURN(View goes_on, context_.ViewOf(results[0]));
    if (goes_on.rank() != 0 || goes_on.type != ElementType::kBool) {
      return Refused("the condition is no bool");
    }
    // The body tells a condition's failure.
    if (context_.failure().has_value()) {
      goes_on = *builder_.Apply(Operation::kLogicalOr, {goes_on, *context_.failure()});
    }
    builder_.EndCondition(goes_on);
    parameters_.insert(parameters_.end(), results.begin() + 1, results.end());
    return absl::OkStatus();
  }

  absl::Status AddBody(const FunctionLowering::Function& function) {
    TF_ASSIGN_OR_RETURN(results_, functions_.Lower(function, parameters_));
    if (results_.size() != spec_.result_shapes.size()) return Refused("another number of results");
    for (const int parameter : states_) {
      const auto edge =
          std::find_if(spec_.back_edges.begin(), spec_.back_edges.end(),
                       [&](const LoopSpec::BackEdge& edge) { return edge.to == parameter; });
      if (edge == spec_.back_edges.end()) return Refused("a state that nothing follows");
      TF_ASSIGN_OR_RETURN(const View next, context_.ViewOf(results_[edge->from]));
      const View& state = *parameters_[parameter].view;
      if (next.type != state.type || next.dims != state.dims) {
        return Refused("a state whose shape changes");
      }
      state_of_.emplace(edge->from, next_.size());
      next_.push_back(next);
    }
    return absl::OkStatus();
  }

  // An output: a result of EndLoop, an array that iterations write, or a tensor that is known.
  struct Output {
    enum { kKnown, kEnd, kKept, kWritten } kind = kKnown;
    size_t number = 0;
    Lowered known = {};
  };

  Outputs End(const std::vector<Lowered>& inputs) {
    std::vector<Output> outputs;
    for (size_t o = 0; o < spec_.outputs.size(); ++o) {
      TF_ASSIGN_OR_RETURN(outputs.emplace_back(),
                          is_read_[o] ? AddOutput(spec_.outputs[o], inputs) : Output());
    }
    ends_ = builder_.EndLoop(next_, written_, kept_, num_iterations_);
    std::vector<Lowered> results(outputs.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      const Output& output = outputs[o];
      if (output.kind == Output::kKnown) {
        results[o] = output.known;
      } else if (output.kind == Output::kWritten) {
        const bool is_history = spec_.outputs[o].mode == OutputMode::kHistory;
        (is_history ? results[o].history.emplace().rows : results[o].view) = wholes_[output.number];
        if (is_history && !IsStatic()) results[o].history->num_values = ends_[*counter_];
      } else {
        results[o].view = ends_[output.number + (output.kind == Output::kKept ? next_.size() : 0)];
      }
      if (spec_.outputs[o].mode == OutputMode::kSum && is_read_[o]) {
        results[o].view = builder_.Cast(*results[o].view, *ElementTypeOf(spec_.outputs[o].dtype));
      }
    }
    return results;
  }

  absl::StatusOr<Output> AddOutput(const LoopSpec::Output& output,
                                   const std::vector<Lowered>& inputs) {
    if (output.mode == OutputMode::kHistory) return AddHistory(output);
    if (output.mode == OutputMode::kCount) return AddCount();
    const Lowered& result = results_[output.result];
    if (DataTypeOf(result) != output.dtype) return Refused("an output of another type");
    if (output.mode == OutputMode::kLast) {
      const auto state = state_of_.find(output.result);
      if (state != state_of_.end()) return Output{Output::kEnd, state->second};
      if (!IsStatic()) return Refused("the last value of no state");
      if (result.known.has_value()) return Output{Output::kKnown, 0, result};
      kept_.push_back(*result.view);
      return Output{Output::kKept, kept_.size() - 1};
    }
    TF_ASSIGN_OR_RETURN(const View value, context_.ViewOf(result));
    if (output.mode == OutputMode::kSum) return AddSum(value);
    if (!IsStatic()) return Refused("as many values as there are iterations");
    return AddPieces(output, value, inputs);
  }

  Lowered KnownCount() const {
    Tensor count(tensorflow::DT_INT64, tensorflow::TensorShape({}));
    count.scalar<int64_t>()() = most_;
    return {std::nullopt, std::move(count)};
  }

  absl::StatusOr<Output> AddCount() {
    if (IsStatic()) return Output{Output::kKnown, 0, KnownCount()};
    if (!counter_.has_value()) {
      const View counter = builder_.AddState(Zero(context_, ElementType::kInt64));
      const int64_t one = 1;
      const View step = builder_.AddConstant(ElementType::kInt64, {}, &one);
      counter_ = next_.size();
      next_.push_back(*builder_.Apply(Operation::kAdd, {counter, step}));
    }
    return Output{Output::kEnd, *counter_};
  }

  // Sums of half precision are floats until the loop ends.
  absl::StatusOr<Output> AddSum(const View& value) {
    const ElementType type = ComputedAs(value.type);
    const View sum = builder_.AddState(Zero(context_, type).BroadcastTo(value.dims));
    TF_ASSIGN_OR_RETURN(
        next_.emplace_back(),
        OrRefused(builder_.Apply(Operation::kAdd, {sum, builder_.Cast(value, type)})));
    return Output{Output::kEnd, next_.size() - 1};
  }

  absl::StatusOr<Output> AddHistory(const LoopSpec::Output& output) {
    if (most_ >= kNoLimit || output.stride != 1 || output.part_size != 0) {
      return Refused("a history of some iterations");
    }
    if (!IsStatic()) TF_RETURN_IF_ERROR(AddCount().status());
    const Lowered& source =
        output.result >= 0 ? results_[output.result] : parameters_[output.parameter];
    const auto values = values_of_.find(output.parameter);
    if (output.result < 0 && values != values_of_.end()) {
      wholes_.push_back(values->second);
      return Output{Output::kWritten, wholes_.size() - 1};
    }
    TF_ASSIGN_OR_RETURN(const View value, context_.ViewOf(source));
    Dims dims = value.dims;
    dims.insert(dims.begin(), most_);
    TF_RETURN_IF_ERROR(CheckDims(dims));
    const View whole = builder_.AddResult(value.type, dims);
    written_.push_back({value, RowOf(whole)});
    wholes_.push_back(whole);
    return Output{Output::kWritten, wholes_.size() - 1};
  }

  absl::StatusOr<OutputPieces> PiecesOf(const LoopSpec::Output& output, const View& value,
                                        const std::vector<Lowered>& inputs) {
    const bool is_stack = output.mode == OutputMode::kStack || value.rank() == 0;
    int64_t axis;
    TF_RETURN_IF_ERROR(output.FindAxis(value.rank() + is_stack, &axis));
    const int dim = static_cast<int>(axis);
    const int64_t extent = is_stack ? 1 : value.dims[dim];
    if (!is_stack && !output.IsPart(extent)) return Refused("pieces of another extent");
    int64_t length = most_;
    if (output.length >= 0) {
      TF_ASSIGN_OR_RETURN(length, Scalar(inputs[spec_.length_input(output)]));
      if (length < most_) return Refused("more iterations than the length");
    }
    Dims dims = value.dims;
    if (is_stack) dims.insert(dims.begin() + dim, 1);
    if (__builtin_mul_overflow(extent, length, &dims[dim])) return Refused("too long");
    TF_RETURN_IF_ERROR(CheckDims(dims));
    const View whole = builder_.AddResult(value.type, dims);
    if (length > most_) {
      builder_.CopyInto(Zero(context_, value.type),
                        whole.Slice(dim, most_ * extent, (length - most_) * extent, 1));
    }
    return OutputPieces{whole, dim, extent, is_stack};
  }

  absl::StatusOr<Output> AddPieces(const LoopSpec::Output& output, const View& value,
                                   const std::vector<Lowered>& inputs) {
    TF_ASSIGN_OR_RETURN(const OutputPieces pieces, PiecesOf(output, value, inputs));
    const auto& [whole, dim, extent, is_stack] = pieces;
    const bool falls = spec_.reverse != (output.stride < 0);
    const View piece = builder_.PieceOf(whole, dim, falls ? (most_ - 1) * extent : 0, extent,
                                        falls ? -extent : extent);
    written_.push_back({value, is_stack ? piece.WithoutDim(dim) : piece});
    wholes_.push_back(whole);
    return Output{Output::kWritten, wholes_.size() - 1};
  }

  LoweringContext& context_;
  ProgramBuilder& builder_;
  const NodeDef& node_;
  const std::vector<bool>& is_read_;
  const FunctionLowering functions_;
  LoopSpec spec_;
  std::vector<Pieces> pieces_;  // of the inputs
  std::vector<int64_t> axes_;   // of the inputs that have pieces
  int64_t most_ = 0;            // iterations
  std::optional<View> num_iterations_;
  std::vector<View> misfits_;        // bools: the number of iterations is one that there is not
  std::vector<View> recorded_;       // the numbers of values of histories
  std::optional<size_t> counter_;    // the state that counts iterations
  std::vector<Lowered> parameters_;  // of the body
  std::vector<int> states_;          // their parameters
  std::vector<Lowered> results_;     // of the body
  std::vector<View> next_;           // by state; then by further ones
  std::map<int, View> values_of_;    // by the parameter of a state: all that it was
  std::map<int, size_t> state_of_;   // by result
  std::vector<ProgramBuilder::Written> written_;
  std::vector<View> wholes_;  // of what is written
  std::vector<View> kept_;
  std::vector<View> ends_;  // the results of EndLoop
};

}  // namespace

bool IsInnerLoop(const NodeDef& node) { return node.op() == "TfTi>StatelessTensorIterator"; }

Outputs LowerLoop(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs,
                  const std::vector<bool>& is_read, const Functions& functions) {
  const int num_open = context.builder().num_open_loops();
  const LoweringContext::Failures failures = context.failures();
  Outputs outputs = LoopLowering(&context, node, is_read, &functions).Lower(inputs);
  if (!outputs.ok()) {
    context.builder().DropLoops(num_open);
    context.EndIteration(failures);
  }
  return outputs;
}

}  // namespace tf_ti
