#include "cc/spec/bags/update_spec.h"

#include <string>

namespace tf_ti {

using tensorflow::DataType;

absl::Status UpdateSpec::Init(const Attributes& attributes, UpdateRule the_rule) {
  constexpr DataType kDouble = tensorflow::DT_DOUBLE;
  rule = the_rule;
  TF_RETURN_IF_ERROR(attributes.Get("T", &dtype));
  const bool is_half = dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
  sum_dtype = is_half ? tensorflow::DT_FLOAT : dtype;
  switch (rule) {
    case UpdateRule::kDescent: {
      int num_decay;
      TF_RETURN_IF_ERROR(attributes.GetOptional("num_decay", &num_decay));
      has_decay = num_decay == 1;
      if (has_decay && !tensorflow::DataTypeIsFloating(sum_dtype)) {
        return InvalidArgument("weight_decay needs a variable of floats");
      }
      numbers = {{"scale", sum_dtype}};
      if (has_decay) numbers.push_back({"weight_decay", sum_dtype});
      break;
    }
    case UpdateRule::kAdam:
      slots = {"m", "v"};
      TF_RETURN_IF_ERROR(attributes.Get("epsilon_hat", &flag));
      numbers = {{"learning_rate", sum_dtype}, {"step", tensorflow::DT_INT64},
                 {"beta_1", kDouble},          {"beta_2", kDouble},
                 {"epsilon", kDouble},         {"weight_decay", kDouble}};
      break;
    case UpdateRule::kAdagrad:
      slots = {"accumulator"};
      TF_RETURN_IF_ERROR(attributes.Get("epsilon_inside_sqrt", &flag));
      numbers = {{"learning_rate", sum_dtype}, {"epsilon", kDouble}};
      break;
  }
  std::string kind;
  if (!attributes.Get("bags", &kind).ok()) {
    first_number = gradients() + 2;
    return attributes.Get("are_distinct", &are_distinct);
  }
  bags.emplace();
  TF_RETURN_IF_ERROR(bags->InitGradient(attributes, gradients() + 1));
  first_number = bags->end + (bags->reduction == Reduction::kMax);
  return absl::OkStatus();
}

}  // namespace tf_ti
