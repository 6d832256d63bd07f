#include "cc/spec/bags/bag_spec.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/strings/str_join.h"

namespace tf_ti {

using tensorflow::DataType;

namespace {

// Gets the position of an input that may be there, which is then the next one.
absl::Status FindOptional(const Attributes& attributes, const char* name, int* next, int* input) {
  int count;
  TF_RETURN_IF_ERROR(attributes.GetOptional(name, &count));
  if (count == 1) *input = (*next)++;
  return absl::OkStatus();
}

BagKind KindOf(const std::string& name) {
  return name == "offsets"  ? BagKind::kOffsets
         : name == "packed" ? BagKind::kPacked
                            : BagKind::kSegments;
}

// Returns an error if there is another number of `inputs` than bags of the kind need.
absl::Status CheckNeeded(const std::string& kind, const char* inputs, int needed, int given) {
  if (given == needed) return absl::OkStatus();
  return InvalidArgument("bags given as ", kind, " need ", needed, " ", inputs, ", got ", given);
}

}  // namespace

absl::Status OfTable(int number, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), OfTable(number, std::string(status.message())));
}

bool ChecksIds() {
  const char* const value = std::getenv("TF_TI_CHECK_IDS");
  return value != nullptr && std::string_view(value) == "1";
}

absl::Status BagSpec::InitBags(const Attributes& attributes, int first_input,
                               bool has_num_segments) {
  indices = first_input;
  end = first_input + 1;
  if (!is_packed()) bounds = end++;
  if (kind == BagKind::kSegments && has_num_segments) num_segments = end++;
  TF_RETURN_IF_ERROR(FindOptional(attributes, "num_default", &end, &default_index));
  return InitPadding(attributes);
}

absl::Status BagSpec::InitGiven(const Attributes& attributes) {
  std::string name;
  int num_bounds;
  TF_RETURN_IF_ERROR(attributes.Get("bags", &name));
  TF_RETURN_IF_ERROR(attributes.GetOptional("num_bounds", &num_bounds));
  kind = KindOf(name);
  return CheckNeeded(name, "bounds", !is_packed(), num_bounds);
}

absl::Status BagSpec::InitPadding(const Attributes& attributes) {
  if (kind == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(attributes.Get("include_last_offset", &include_last_offset));
  }
  std::vector<int64_t> padding;
  TF_RETURN_IF_ERROR(attributes.Get("padding_idx", &padding));
  if (padding.size() > 1) {
    return InvalidArgument("padding_idx must have one value, got ", padding.size());
  }
  if (!padding.empty()) padding_idx = padding[0];
  return absl::OkStatus();
}

absl::Status BagSpec::InitReduction(const Attributes& attributes) {
  DataType dtype;
  std::string name;
  TF_RETURN_IF_ERROR(attributes.Get("T", &dtype));
  TF_RETURN_IF_ERROR(attributes.Get("reduction", &name));
  reduction = name == "sum"    ? Reduction::kSum
              : name == "mean" ? Reduction::kMean
              : name == "max"  ? Reduction::kMax
                               : Reduction::kSqrtN;
  if (reduction == Reduction::kMax && tensorflow::DataTypeIsComplex(dtype)) {
    return InvalidArgument("complex numbers have no maximum");
  }
  if (reduction == Reduction::kMax && has_weights()) {
    return InvalidArgument("reduction max takes no per_sample_weights");
  }
  if (reduction == Reduction::kSqrtN && tensorflow::DataTypeIsInteger(dtype)) {
    return InvalidArgument("reduction sqrtn needs a table of floats, got ",
                           tensorflow::DataTypeString(dtype));
  }
  if (argmax >= 0 && reduction != Reduction::kMax) {
    return InvalidArgument("reduction ", name, " has no argmax");
  }
  if (!has_weights()) return absl::OkStatus();
  DataType type;
  TF_RETURN_IF_ERROR(attributes.Get("Tweights", &type));
  const bool is_half = dtype == tensorflow::DT_HALF || dtype == tensorflow::DT_BFLOAT16;
  weights_are_wide = type != dtype;
  if (type == dtype || (is_half && type == tensorflow::DT_FLOAT)) return absl::OkStatus();
  return InvalidArgument("per_sample_weights must be ", tensorflow::DataTypeString(dtype),
                         " like emb_table", is_half ? ", or float" : "", ", got ",
                         tensorflow::DataTypeString(type));
}

absl::Status BagSpec::Init(const Attributes& attributes, BagKind bags) {
  kind = bags;
  int num_argmax;
  TF_RETURN_IF_ERROR(InitBags(attributes, 1, /*has_num_segments=*/true));
  TF_RETURN_IF_ERROR(FindOptional(attributes, "num_weights", &end, &weights));
  TF_RETURN_IF_ERROR(attributes.GetOptional("num_argmax", &num_argmax));
  if (num_argmax == 1) argmax = 1;
  return InitReduction(attributes);
}

absl::Status BagSpec::InitGradient(const Attributes& attributes, int first_input) {
  int num_argmax;
  TF_RETURN_IF_ERROR(InitGiven(attributes));
  TF_RETURN_IF_ERROR(InitBags(attributes, first_input, /*has_num_segments=*/false));
  TF_RETURN_IF_ERROR(FindOptional(attributes, "num_weights", &end, &weights));
  TF_RETURN_IF_ERROR(InitReduction(attributes));
  TF_RETURN_IF_ERROR(attributes.GetOptional("num_argmax", &num_argmax));
  if (num_argmax == (reduction == Reduction::kMax)) return absl::OkStatus();
  return InvalidArgument("reduction max needs argmax, and no other does");
}

absl::Status BagSpec::InitWeightsGradient(const Attributes& attributes) {
  TF_RETURN_IF_ERROR(InitGiven(attributes));
  TF_RETURN_IF_ERROR(InitBags(attributes, 2, /*has_num_segments=*/false));
  TF_RETURN_IF_ERROR(FindOptional(attributes, "num_weights", &end, &weights));
  TF_RETURN_IF_ERROR(InitReduction(attributes));
  return has_weights() ? absl::OkStatus() : InvalidArgument("there are no per_sample_weights");
}

absl::Status BagSpec::InitSeveral(const Attributes& attributes, std::vector<BagSpec>* specs) {
  int count, num_bounds, num_counts, num_default, num_weights, num_argmax;
  std::vector<std::string> kinds;
  TF_RETURN_IF_ERROR(attributes.Get("N", &count));
  TF_RETURN_IF_ERROR(attributes.Get("bags", &kinds));
  TF_RETURN_IF_ERROR(attributes.Get("num_bounds", &num_bounds));
  TF_RETURN_IF_ERROR(attributes.Get("num_counts", &num_counts));
  TF_RETURN_IF_ERROR(attributes.Get("num_default", &num_default));
  TF_RETURN_IF_ERROR(attributes.Get("num_weights", &num_weights));
  TF_RETURN_IF_ERROR(attributes.Get("num_argmax", &num_argmax));
  const int num_packed = std::count(kinds.begin(), kinds.end(), "packed");
  const int num_segments = std::count(kinds.begin(), kinds.end(), "segments");
  if (static_cast<int>(kinds.size()) != count || num_bounds != count - num_packed ||
      num_counts != num_segments) {
    return InvalidArgument("bags of ", count, " tables, of kinds ", absl::StrJoin(kinds, ", "),
                           ", cannot have ", num_bounds, " bounds and ", num_counts,
                           " num_segments");
  }
  for (const auto& [name, number] :
       {std::pair("num_default", num_default), std::pair("num_weights", num_weights),
        std::pair("num_argmax", num_argmax)}) {
    if (number == 0 || number == count) continue;
    return InvalidArgument(name, " must be 0 or ", count, ", got ", number);
  }
  // The lists of inputs follow each other. Those of bounds and counts have only the tensors that
  // there are.
  int next_bounds = 2 * count;
  int next_segments = next_bounds + num_bounds;
  const int first_default = next_segments + num_counts;
  const int first_weights = first_default + num_default;
  specs->resize(count);
  for (int k = 0; k < count; ++k) {
    BagSpec& spec = (*specs)[k];
    spec.kind = KindOf(kinds[k]);
    spec.is_of_several = true;
    spec.table = k;
    spec.indices = count + k;
    if (!spec.is_packed()) spec.bounds = next_bounds++;
    if (spec.kind == BagKind::kSegments) spec.num_segments = next_segments++;
    if (num_default > 0) spec.default_index = first_default + k;
    if (num_weights > 0) spec.weights = first_weights + k;
    if (num_argmax > 0) spec.argmax = count + k;
    spec.end = first_weights + num_weights;
    TF_RETURN_IF_ERROR(spec.InitPadding(attributes));
    TF_RETURN_IF_ERROR(spec.InitReduction(attributes));
  }
  return absl::OkStatus();
}

absl::Status PartitionSpec::Init(const Attributes& attributes) {
  std::string kind, name;
  int num_counts, num_positions;
  TF_RETURN_IF_ERROR(bags.InitGiven(attributes));
  TF_RETURN_IF_ERROR(attributes.Get("bags", &kind));
  TF_RETURN_IF_ERROR(attributes.GetOptional("num_counts", &num_counts));
  TF_RETURN_IF_ERROR(
      CheckNeeded(kind, "num_segments", bags.kind == BagKind::kSegments, num_counts));
  TF_RETURN_IF_ERROR(bags.InitBags(attributes, 1, /*has_num_segments=*/true));
  TF_RETURN_IF_ERROR(attributes.Get("num_shards", &num_shards));
  TF_RETURN_IF_ERROR(attributes.Get("num_positions", &num_positions));
  if (num_positions != 0 && num_positions != num_shards) {
    return InvalidArgument("num_positions must be 0 or ", num_shards, ", got ", num_positions);
  }
  has_positions = num_positions > 0;
  TF_RETURN_IF_ERROR(attributes.Get("strategy", &name));
  strategy = name == "mod" ? PartitionStrategy::kMod : PartitionStrategy::kDiv;
  return absl::OkStatus();
}

}  // namespace tf_ti
