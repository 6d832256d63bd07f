#include "cc/kernels/loops/lowering/region_lowering.h"

#include <algorithm>
#include <memory>

#include "cc/kernels/loops/lowering/lower.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/statusor.h"
#include "tensorflow/core/public/version.h"

namespace tf_ti {

using tensorflow::Tensor;

namespace {

// Refuses outputs unless they have the types and shapes that TensorFlow infers from the inputs. The
// kernel reports inputs that do not fit the operation.
absl::Status CheckInferred(const tensorflow::OpKernel& kernel, const std::vector<Lowered>& inputs,
                           const std::vector<Lowered>& outputs) {
  const tensorflow::OpRegistrationData* op;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUp(kernel.def().op(), &op));
  if (op->shape_inference_fn == nullptr) return Refused("there is no inference of shapes");
  if (kernel.num_inputs() != static_cast<int>(inputs.size()) ||
      kernel.num_outputs() != static_cast<int>(outputs.size())) {
    return Refused("another number of inputs or outputs");
  }
  for (int i = 0; i < kernel.num_inputs(); ++i) {
    if (DataTypeOf(inputs[i]) != kernel.input_type(i)) return Refused("an input of another type");
  }
  std::vector<tensorflow::PartialTensorShape> shapes;
  std::vector<const Tensor*> tensors;
  for (const Lowered& input : inputs) {
    tensors.push_back(input.known.has_value() ? &*input.known : nullptr);
    shapes.emplace_back(DimsOf(input));
  }
  tensorflow::shape_inference::InferenceContext context(TF_GRAPH_DEF_VERSION,
                                                        tensorflow::AttrSlice(kernel.def()),
                                                        op->op_def, shapes, tensors, {}, {});
  TF_RETURN_IF_ERROR(context.construction_status());
  TF_RETURN_IF_ERROR(context.Run(op->shape_inference_fn));
  for (int i = 0; i < kernel.num_outputs(); ++i) {
    if (DataTypeOf(outputs[i]) != kernel.output_type(i))
      return Refused("an output of another type");
    const Dims dims = DimsOf(outputs[i]);
    const auto inferred = context.output(i);
    const bool is_known = context.RankKnown(inferred);
    if (is_known && context.Rank(inferred) != static_cast<int>(dims.size())) {
      return Refused("an output of another rank than is inferred");
    }
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t extent = is_known ? context.Value(context.Dim(inferred, d)) : -1;
      if (dims[d] < 0 || (extent >= 0 && extent != dims[d])) {
        return Refused("an output of another shape than is inferred");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

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
  TF_ASSIGN_OR_RETURN(std::vector<Lowered> outputs, Lower(context_, node, inputs));
  TF_RETURN_IF_ERROR(CheckInferred(*step.kernel, inputs, outputs));
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

}  // namespace tf_ti
