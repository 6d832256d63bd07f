#include "cc/kernels/loops/executor/values.h"

#include <algorithm>

namespace tf_ti {

using tensorflow::Tensor;

Values::Values(const Schedule& schedule, BodyFrame* frame) : schedule_(schedule), frame_(*frame) {
  values_.resize(schedule.values.size());
  guards_.resize(schedule.values.size());
  parameter_guards_.resize(schedule.parameters.size());
  // Kernels do not write to inputs whose memory others refer to.
  const auto constant_at = [&](int c) { return const_cast<Tensor*>(&schedule.constants[c]); };
  for (const Source& source : schedule.inputs) {
    Tensor* const tensor = source.kind == Source::kValue       ? &values_[source.index]
                           : source.kind == Source::kParameter ? &frame->parameters[source.index]
                                                               : constant_at(source.index);
    inputs_.emplace_back(tensor);
  }
}

void Values::Clear() {
  for (Tensor& value : values_) value = Tensor();
  for (Tensor& guard : guards_) guard = Tensor();
  for (Tensor& guard : parameter_guards_) guard = Tensor();
}

void Values::SetConstants() {
  for (const auto& [constant, result] : schedule_.constant_results) {
    frame_.results[result] = schedule_.constants[constant];
  }
}

void Values::ReleaseInside(const Region& region) {
  for (const int s : region.steps) {
    const Step& step = schedule_.steps[s];
    for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
      const bool is_output =
          std::any_of(region.outputs.begin(), region.outputs.end(),
                      [v](const Region::Array& output) { return output.source.index == v; });
      if (!is_output) Release(v);
    }
  }
}

bool Values::Fits(const std::vector<Region::Array>& arrays) const {
  for (const Region::Array& array : arrays) {
    const Tensor& tensor = TensorOf(array.source);
    if (tensor.dtype() != array.dtype || !tensor.shape().IsSameSize(array.shape)) return false;
  }
  return true;
}

}  // namespace tf_ti
