#include "cc/kernels/loops/schedule.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "cc/kernels/loops/graph_kernels.h"
#include "cc/kernels/loops/packed_product.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::LocalExecutorParams;
using tensorflow::Node;
using tensorflow::OpKernel;

namespace {

class ScheduleBuilder {
 public:
  ScheduleBuilder(const LocalExecutorParams& params, Schedule* schedule)
      : params_(params), schedule_(schedule) {}

  absl::Status Build(const tensorflow::Graph& graph, std::vector<OpKernel*>* kernels) {
    if (params_.device->device_type() == tensorflow::DEVICE_CPU) {
      TF_RETURN_IF_ERROR(FindReplacements(graph, &replacements_));
    }
    std::vector<Node*> order;
    tensorflow::GetReversePostOrder(graph, &order, tensorflow::NodeComparatorName());
    std::vector<const Node*> results;
    for (const Node* node : order) {
      if (!node->IsOp()) continue;
      for (const tensorflow::Edge* edge : node->in_edges()) {
        const std::set<int>& done = done_by_[edge->src()->id()];
        done_by_[node->id()].insert(done.begin(), done.end());
      }
      if (node->type_string() == "NoOp") continue;
      if (node->IsArg()) {
        TF_RETURN_IF_ERROR(AddParameter(*node));
      } else if (node->IsRetval()) {
        results.push_back(node);
      } else if (IsIdentity(node->type_string())) {
        const tensorflow::Edge* edge;
        TF_RETURN_IF_ERROR(node->input_edge(0, &edge));
        sources_[node->id()] = {SourceOf(*edge)};
      } else {
        TF_RETURN_IF_ERROR(AddKernel(*node, kernels));
      }
    }
    for (const Node* node : results) {
      const tensorflow::Edge* edge;
      TF_RETURN_IF_ERROR(node->input_edge(0, &edge));
      int index;
      TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node->attrs(), "index", &index));
      const Source source = SourceOf(*edge);
      switch (source.kind) {
        case Source::kParameter:
          schedule_->parameters[source.index].results.push_back(index);
          break;
        case Source::kConstant:
          schedule_->constant_results.push_back({source.index, index});
          break;
        case Source::kValue:
          schedule_->values[source.index].results.push_back(index);
      }
    }
    CountUses();
    return absl::OkStatus();
  }

 private:
  Source SourceOf(const tensorflow::Edge& edge) {
    return sources_.at(edge.src()->id())[edge.src_output()];
  }

  absl::Status AddParameter(const Node& node) {
    int index;
    TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node.attrs(), "index", &index));
    if (index < 0) return InvalidArgument("argument index ", index, " in node ", node.name());
    if (index >= static_cast<int>(schedule_->parameters.size())) {
      schedule_->parameters.resize(index + 1);
    }
    sources_[node.id()] = {{Source::kParameter, index}};
    return absl::OkStatus();
  }

  // The kernel of a replaced node for empty inputs. The result of a convolution of oneDNN's has the
  // shape of its input there, and some of TensorFlow's plain gradients are not written.
  OpKernel* KernelOfEmpty(const Node& node, const Step& step, std::vector<OpKernel*>* kernels) {
    const std::string& op = node.type_string();
    if (op != "Conv2D" && op != "Conv3D" && op != "DepthwiseConv2dNative") {
      return step.kernel_of_large == nullptr ? step.kernel : step.kernel_of_large;
    }
    if (step.kernel_of_large != nullptr) return step.kernel;
    OpKernel* plain;
    if (!params_.create_kernel(node.properties(), &plain).ok()) return step.kernel;
    kernels->push_back(plain);
    return plain;
  }

  absl::Status AddKernel(const Node& node, std::vector<OpKernel*>* kernels) {
    const auto replacement = replacements_.find(node.name());
    const bool is_replaced = replacement != replacements_.end();
    const bool is_only_kernel = is_replaced && NeedsReplacement(node);
    OpKernel* kernel;
    TF_RETURN_IF_ERROR(
        params_.create_kernel(is_only_kernel ? replacement->second : node.properties(), &kernel));
    kernels->push_back(kernel);
    if (node.num_outputs() == 1 && kernel->const_tensor() != nullptr) {
      sources_[node.id()] = {{Source::kConstant, static_cast<int>(schedule_->constants.size())}};
      // A second reference, so that no kernel takes a constant's memory for its own.
      schedule_->constants.push_back(*kernel->const_tensor());
      return absl::OkStatus();
    }
    Step step;
    step.kernel = kernel;
    if (is_replaced && !is_only_kernel) {
      TF_RETURN_IF_ERROR(params_.create_kernel(replacement->second, &step.kernel_of_large));
      kernels->push_back(step.kernel_of_large);
    }
    if (is_replaced) step.kernel_of_empty = KernelOfEmpty(node, step, kernels);
    step.trace_level = tsl::profiler::GetTFTraceMeLevel(
        /*is_expensive=*/kernel->AsAsync() == nullptr && kernel->IsExpensive());
    bool transposed;
    if (tensorflow::TryGetNodeAttr(node.attrs(), "transpose_a", &transposed)) {
      step.summed_dimension = transposed ? 0 : 1;
    }
    step.num_inputs = node.num_inputs();
    step.num_outputs = kernel->num_outputs();
    step.first_input = schedule_->inputs.size();
    step.first_value = schedule_->values.size();
    std::vector<const tensorflow::Edge*> edges;
    TF_RETURN_IF_ERROR(node.input_edges(&edges));
    for (int i = 0; i < step.num_inputs; ++i) {
      schedule_->inputs.push_back(SourceOf(*edges[i]));
      AllocatorAttributes attributes;
      attributes.set_on_host(kernel->input_memory_types()[i] == tensorflow::HOST_MEMORY);
      schedule_->input_attributes.push_back(attributes);
    }
    if (node.type_string() == "MatMul" && PackedProduct::Takes(node.output_type(0)) &&
        schedule_->inputs[step.first_input + 1].kind != Source::kValue) {
      TF_RETURN_IF_ERROR(
          tensorflow::GetNodeAttr(node.attrs(), "transpose_b", &step.transpose_right));
      step.packed_product = schedule_->num_packed_products++;
    }
    std::vector<char> consumed(step.num_outputs, false);
    for (const tensorflow::Edge* edge : node.out_edges()) {
      if (!edge->IsControlEdge()) consumed[edge->src_output()] = true;
    }
    std::vector<Source>& outputs = sources_[node.id()];
    for (int i = 0; i < step.num_outputs; ++i) {
      AllocatorAttributes attributes;
      attributes.set_on_host(kernel->output_memory_types()[i] == tensorflow::HOST_MEMORY);
      step.output_attributes.push_back(attributes);
      outputs.push_back({Source::kValue, static_cast<int>(schedule_->values.size())});
      schedule_->values.emplace_back();
      if (!consumed[i]) {
        if (step.required == nullptr) {
          step.required.reset(new bool[step.num_outputs]);
          for (int j = 0; j < step.num_outputs; ++j) step.required[j] = consumed[j];
        }
      }
    }
    std::set<int>& done_by = done_by_[node.id()];
    step.after.assign(done_by.begin(), done_by.end());
    done_by = {static_cast<int>(schedule_->steps.size())};
    schedule_->steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  void CountUses() {
    for (const Source& source : schedule_->inputs) {
      if (source.kind == Source::kValue) ++schedule_->values[source.index].uses;
      if (source.kind == Source::kParameter) ++schedule_->parameters[source.index].uses;
    }
    LastReads last_reads(*schedule_);
    for (Step& step : schedule_->steps) {
      step.releases = last_reads.Next(schedule_->InputsOf(step), /*may_reuse=*/true);
    }
  }

  const LocalExecutorParams& params_;
  Schedule* const schedule_;
  NodeReplacements replacements_;
  std::unordered_map<int, std::vector<Source>> sources_;  // of a node's outputs, by node id
  std::unordered_map<int, std::set<int>> done_by_;  // the last steps that end a node, by its id
};

}  // namespace

absl::Status MakeSchedule(const LocalExecutorParams& params, const tensorflow::Graph& graph,
                          Schedule* schedule, std::vector<OpKernel*>* kernels) {
  schedule->library = params.function_library;
  return ScheduleBuilder(params, schedule).Build(graph, kernels);
}

LastReads::LastReads(const Schedule& schedule) : schedule_(schedule) {
  for (const Value& value : schedule.values) of_values_.push_back(value.uses);
  for (const Value& parameter : schedule.parameters) of_parameters_.push_back(parameter.uses);
}

Releases LastReads::Next(const std::vector<Source>& inputs, bool may_reuse) {
  Releases releases;
  const auto read = [&](Source::Kind kind, const std::vector<Value>& all, std::vector<int>* left,
                        std::vector<int>* released, std::vector<int>* unguarded) {
    for (const Source& source : inputs) {
      if (source.kind != kind || --(*left)[source.index] > 0) continue;
      released->push_back(source.index);
      // One kernel that reads a value twice must not reuse its memory either.
      const auto reads = std::count_if(inputs.begin(), inputs.end(), [&](const Source& other) {
        return other.kind == kind && other.index == source.index;
      });
      if (may_reuse && reads == 1 && all[source.index].uses > 1) unguarded->push_back(source.index);
    }
  };
  read(Source::kValue, schedule_.values, &of_values_, &releases.release_values,
       &releases.unguard_values);
  read(Source::kParameter, schedule_.parameters, &of_parameters_, &releases.release_parameters,
       &releases.unguard_parameters);
  return releases;
}

}  // namespace tf_ti
