#include "cc/spec/recurrent/cell_spec.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "cc/status.h"

namespace tf_ti {
namespace {

const std::pair<const char*, ActivationFunction> kFunctions[] = {
    {"sigmoid", ActivationFunction::kSigmoid},
    {"tanh", ActivationFunction::kTanh},
    {"relu", ActivationFunction::kRelu},
    {"affine", ActivationFunction::kAffine},
    {"hard_sigmoid", ActivationFunction::kHardSigmoid},
    {"leaky_relu", ActivationFunction::kLeakyRelu},
    {"scaled_tanh", ActivationFunction::kScaledTanh},
};

absl::Status FindFunction(const std::string& name, ActivationFunction* function) {
  for (const auto& [known, value] : kFunctions) {
    if (name == known) {
      *function = value;
      return absl::OkStatus();
    }
  }
  return InvalidArgument("activations: unknown function ", name);
}

// Finds out if a list of inputs has its only tensor.
absl::Status GetHas(const Attributes& attributes, const char* attribute, const char* name,
                    bool* has) {
  int count;
  TF_RETURN_IF_ERROR(attributes.Get(attribute, &count));
  if (count > 1) return InvalidArgument(name, " must be one tensor, got ", count);
  *has = count == 1;
  return absl::OkStatus();
}

}  // namespace

absl::Status CellSpec::Init(const Attributes& attributes, bool op_is_gradient) {
  is_gradient = op_is_gradient;
  std::string kind_name;
  bool linear_before_reset;
  TF_RETURN_IF_ERROR(attributes.Get("kind", &kind_name));
  TF_RETURN_IF_ERROR(attributes.Get("linear_before_reset", &linear_before_reset));
  kind = kind_name == "lstm"   ? CellKind::kLstm
         : kind_name == "rnn"  ? CellKind::kRnn
         : linear_before_reset ? CellKind::kGruLinearBeforeReset
                               : CellKind::kGru;
  std::vector<int> order;
  TF_RETURN_IF_ERROR(attributes.Get("gate_order", &order));
  const int num_gates = NumGates(kind);
  std::vector<bool> found(num_gates, false);
  for (int gate = 0; gate < static_cast<int>(order.size()); ++gate) {
    if (static_cast<int>(order.size()) != num_gates || order[gate] < 0 ||
        order[gate] >= num_gates || found[order[gate]]) {
      return InvalidArgument("gate_order must be a permutation of ", num_gates, " gates");
    }
    found[order[gate]] = true;
    gate_positions[gate] = order[gate];
  }
  std::vector<std::string> names;
  std::vector<std::string> coefficients;
  TF_RETURN_IF_ERROR(attributes.Get("activations", &names));
  TF_RETURN_IF_ERROR(attributes.Get("coefficients", &coefficients));
  const size_t num_activations = kind == CellKind::kLstm ? 3 : kind == CellKind::kRnn ? 1 : 2;
  if (names.size() != num_activations) {
    return InvalidArgument("activations must be ", num_activations, ", got ", names.size());
  }
  // As text, since an attribute's floats have single precision.
  std::vector<double> values(1 + 2 * num_activations);
  if (coefficients.size() != values.size()) {
    return InvalidArgument("coefficients must be ", values.size(), ", got ", coefficients.size());
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!absl::SimpleAtod(coefficients[i], &values[i])) {
      return InvalidArgument("coefficients must be numbers, got ", coefficients[i]);
    }
  }
  std::vector<int> limits;
  TF_RETURN_IF_ERROR(attributes.Get("limits", &limits));
  if (limits.empty()) limits.resize(num_activations);
  if (limits.size() != num_activations) {
    return InvalidArgument("limits must be ", num_activations, ", or none, got ", limits.size());
  }
  clip = values[0] > 0 ? values[0] : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < num_activations; ++i) {
    TF_RETURN_IF_ERROR(FindFunction(names[i], &activations[i].function));
    activations[i].alpha = values[1 + 2 * i];
    activations[i].beta = values[2 + 2 * i];
    if ((limits[i] & ~(activations[i].is_limited() ? kPasses | kZero : 0)) != 0) {
      return InvalidArgument("limits: ", names[i], " has no ", limits[i]);
    }
    activations[i].limits = limits[i];
  }
  if (is_gradient && !std::isinf(clip)) {
    return Unimplemented("there is no gradient of a clipped sequence");
  }
  TF_RETURN_IF_ERROR(attributes.Get("transpose_weights", &transpose_weights));
  TF_RETURN_IF_ERROR(attributes.Get("reverse", &reverse));
  TF_RETURN_IF_ERROR(attributes.Get("time_major", &time_major));
  TF_RETURN_IF_ERROR(attributes.Get("hold_output", &hold_output));
  bool has_cells;
  TF_RETURN_IF_ERROR(GetHas(attributes, "num_cells", "c", &has_cells));
  TF_RETURN_IF_ERROR(GetHas(attributes, "num_weights", "w", &has_weights));
  TF_RETURN_IF_ERROR(GetHas(attributes, "num_biases", "b", &has_bias));
  TF_RETURN_IF_ERROR(GetHas(attributes, "num_lengths", "lengths", &has_lengths));
  TF_RETURN_IF_ERROR(GetHas(attributes, "num_masks", "mask", &has_mask));
  if (has_cells != is_lstm()) return InvalidArgument("c is for an LSTM, which needs it");
  if (has_lengths && has_mask) {
    return InvalidArgument("lengths and a mask exclude one another");
  }
  return attributes.Get("num_saved", &num_saved);
}

}  // namespace tf_ti
