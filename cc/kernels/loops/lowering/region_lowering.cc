#include "cc/kernels/loops/lowering/region_lowering.h"

#include <algorithm>
#include <memory>

#include "cc/kernels/loops/lowering/loops.h"
#include "cc/kernels/loops/lowering/lower.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"

namespace tf_ti {

using tensorflow::Tensor;

std::optional<Tensor> KnownOf(const Schedule& schedule, const CompiledBody& body,
                              const Source& source) {
  if (source.kind == Source::kConstant) return schedule.constants[source.index];
  if (source.kind == Source::kValue) return body.known[source.index];
  return std::nullopt;
}

absl::Status RegionLowering::Add(int s) {
  const Step& step = schedule_.steps[s];
  const tensorflow::NodeDef& node = step.kernel->def();
  std::vector<Lowered> inputs;
  for (int i = 0; i < step.num_inputs; ++i) {
    TF_ASSIGN_OR_RETURN(inputs.emplace_back(), Given(schedule_.inputs[step.first_input + i]));
  }
  std::vector<Lowered> outputs;
  if (IsInnerLoop(node)) {
    std::vector<bool> is_read;
    for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
      const Value& value = schedule_.values[v];
      is_read.push_back(value.uses > 0 || !value.results.empty());
    }
    TF_ASSIGN_OR_RETURN(
        outputs, LowerLoop(context_, node, inputs, is_read,
                           {schedule_.library->GetFunctionLibraryDefinition(), schedule_.library}));
  } else {
    TF_ASSIGN_OR_RETURN(outputs, Lower(context_, node, inputs));
    TF_RETURN_IF_ERROR(CheckInferred(node, inputs, outputs));
  }
  for (int i = 0; i < step.num_outputs; ++i) {
    lowered_[KeyOf({Source::kValue, step.first_value + i})] = std::move(outputs[i]);
  }
  steps_.push_back(s);
  failure_ = context_.failure();
  num_computing_ += !IsView(node);
  return absl::OkStatus();
}

absl::StatusOr<Lowered> RegionLowering::Given(const Source& source) {
  const auto found = lowered_.find(KeyOf(source));
  if (found != lowered_.end()) return found->second;
  Lowered given;
  given.known = tf_ti::KnownOf(schedule_, body_, source);
  if (!given.known.has_value()) {
    const Tensor& tensor = iteration_.TensorOf(source);
    const std::optional<ElementType> type = ElementTypeOf(tensor.dtype());
    if (!type.has_value()) {
      return Refused("programs have no ", tensorflow::DataTypeString(tensor.dtype()));
    }
    const bool stays = source.kind == Source::kParameter && body_.stays[source.index];
    const auto dims = tensor.shape().dim_sizes();
    given.view = context_.builder().AddInput(*type, Dims(dims.begin(), dims.end()), stays);
    inputs_.push_back({source, tensor.dtype(), tensor.shape()});
  }
  return lowered_.emplace(KeyOf(source), std::move(given)).first->second;
}

absl::StatusOr<Region> RegionLowering::Finish(const std::vector<int>& outputs) {
  Region region;
  const auto name_of = [this](int s) { return schedule_.steps[s].kernel->name(); };
  region.name = absl::StrCat("program: ", name_of(steps_.front()), "..", name_of(steps_.back()),
                             " (", steps_.size(), steps_.size() == 1 ? " op)" : " ops)");
  region.steps = steps_;
  region.inputs = inputs_;
  for (const int v : outputs) {
    const Source source = {Source::kValue, v};
    TF_ASSIGN_OR_RETURN(const View view, context_.ViewOf(lowered_.at(KeyOf(source))));
    context_.builder().AddOutput(view);
    region.outputs.push_back({source, DataTypeOf(view.type), tensorflow::TensorShape(view.dims)});
  }
  if (failure_.has_value()) context_.builder().AddOutput(*failure_);
  region.may_fail = failure_.has_value();
  region.program = std::make_shared<SharedProgram>(context_.builder().steps());
  region.lanes = std::make_shared<RegionLanes>(context_.builder().steps());
  return region;
}

bool RegionLowering::ReadsParametersAlone() const {
  return std::all_of(inputs_.begin(), inputs_.end(), [](const Region::Array& input) {
    return input.source.kind == Source::kParameter;
  });
}

const std::optional<Tensor>& RegionLowering::KnownOf(int value) const {
  return lowered_.at(KeyOf({Source::kValue, value})).known;
}

bool RegionLowering::IsArray(int value) const {
  return tf_ti::IsArray(lowered_.at(KeyOf({Source::kValue, value})));
}

}  // namespace tf_ti
