#include "cc/spec/bags/bag_spec.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <tuple>

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

// Gets which of `size` values each of `count` tables has, or -1. `tables` are those that have one,
// in this order; where there are none, all tables have, or none.
absl::Status FindValues(const char* name, std::vector<int> tables, const char* values, int size,
                        int count, std::vector<int>* found) {
  if (tables.empty() && size > 0) {
    tables.resize(count);
    std::iota(tables.begin(), tables.end(), 0);
  }
  if (static_cast<int>(tables.size()) != size) {
    return InvalidArgument(values, " must be 0 or ", tables.empty() ? count : tables.size(),
                           ", got ", size);
  }
  found->assign(count, -1);
  for (int i = 0; i < size; ++i) {
    if (tables[i] < 0 || tables[i] >= count || (i > 0 && tables[i] <= tables[i - 1])) {
      return InvalidArgument(name, " must have numbers of the ", count, " tables, ascending, got ",
                             absl::StrJoin(tables, ", "));
    }
    (*found)[tables[i]] = i;
  }
  return absl::OkStatus();
}

// Gets which of an op's weights each of `count` tables has, or -1.
absl::Status FindWeights(const Attributes& attributes, int num_weights, int count,
                         std::vector<int>* found) {
  std::vector<int> weighted;
  TF_RETURN_IF_ERROR(attributes.Get("weighted", &weighted));
  return FindValues("weighted", weighted, "num_weights", num_weights, count, found);
}

// Gets the padding_idx of each of `count` tables.
absl::Status GetPaddings(const Attributes& attributes, int count,
                         std::vector<std::optional<int64_t>>* paddings) {
  std::vector<int64_t> values;
  std::vector<int> padded, found;
  TF_RETURN_IF_ERROR(attributes.Get("padding_idx", &values));
  TF_RETURN_IF_ERROR(attributes.Get("padded", &padded));
  if (padded.empty() && values.size() == 1) values.resize(count, values[0]);
  TF_RETURN_IF_ERROR(FindValues("padded", padded, "padding_idx", values.size(), count, &found));
  paddings->resize(count);
  for (int k = 0; k < count; ++k) {
    if (found[k] >= 0) (*paddings)[k] = values[found[k]];
  }
  return absl::OkStatus();
}

// Gets the reduction of each of `count` tables.
absl::Status GetReductions(const Attributes& attributes, int count,
                           std::vector<std::string>* reductions) {
  TF_RETURN_IF_ERROR(attributes.Get("reductions", reductions));
  if (reductions->empty()) {
    std::string reduction;
    TF_RETURN_IF_ERROR(attributes.Get("reduction", &reduction));
    reductions->assign(count, reduction);
  }
  if (static_cast<int>(reductions->size()) == count) return absl::OkStatus();
  return InvalidArgument("reductions must be 0 or ", count, ", got ", reductions->size());
}

// Gets the number of each of `count` tables in errors.
absl::Status GetNumbers(const Attributes& attributes, int count, std::vector<int>* numbers) {
  TF_RETURN_IF_ERROR(attributes.Get("numbers", numbers));
  if (numbers->empty()) {
    numbers->resize(count);
    std::iota(numbers->begin(), numbers->end(), 0);
  }
  if (static_cast<int>(numbers->size()) == count) return absl::OkStatus();
  return InvalidArgument("numbers must be 0 or ", count, ", got ", numbers->size());
}

}  // namespace

absl::Status OfTable(int number, const absl::Status& status) {
  if (status.ok() || number < 0) return status;
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
  TF_RETURN_IF_ERROR(InitLastOffset(attributes));
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

absl::Status BagSpec::InitLastOffset(const Attributes& attributes) {
  if (kind != BagKind::kOffsets) return absl::OkStatus();
  return attributes.Get("include_last_offset", &include_last_offset);
}

absl::Status BagSpec::InitPadding(const Attributes& attributes) {
  std::vector<int64_t> padding;
  TF_RETURN_IF_ERROR(attributes.Get("padding_idx", &padding));
  if (padding.size() > 1) {
    return InvalidArgument("padding_idx must have one value, got ", padding.size());
  }
  if (!padding.empty()) padding_idx = padding[0];
  return absl::OkStatus();
}

absl::Status BagSpec::InitReduction(const Attributes& attributes) {
  std::string name;
  TF_RETURN_IF_ERROR(attributes.Get("reduction", &name));
  return InitReduction(attributes, name);
}

absl::Status BagSpec::InitReduction(const Attributes& attributes, const std::string& name) {
  DataType dtype;
  TF_RETURN_IF_ERROR(attributes.Get("T", &dtype));
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

absl::Status BagSpec::InitTableGradient(const Attributes& attributes) {
  TF_RETURN_IF_ERROR(attributes.Get("number", &number));
  return OfTable(number, InitGradient(attributes, 2));
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
  std::vector<std::string> kinds, reductions;
  std::vector<std::optional<int64_t>> paddings;
  std::vector<int> own_weights, numbers;
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
  TF_RETURN_IF_ERROR(FindWeights(attributes, num_weights, count, &own_weights));
  TF_RETURN_IF_ERROR(GetPaddings(attributes, count, &paddings));
  TF_RETURN_IF_ERROR(GetReductions(attributes, count, &reductions));
  TF_RETURN_IF_ERROR(GetNumbers(attributes, count, &numbers));
  const int num_max = std::count(reductions.begin(), reductions.end(), "max");
  for (const auto& [name, number, most] : {std::tuple("num_default", num_default, count),
                                           std::tuple("num_argmax", num_argmax, num_max)}) {
    if (number == 0 || number == most) continue;
    return InvalidArgument(name, " must be 0 or ", most, ", got ", number);
  }
  // The lists of inputs follow each other. Those of bounds and counts have only the tensors that
  // there are.
  int next_bounds = 2 * count;
  int next_segments = next_bounds + num_bounds;
  const int first_default = next_segments + num_counts;
  const int first_weights = first_default + num_default;
  int next_argmax = count;
  specs->resize(count);
  for (int k = 0; k < count; ++k) {
    BagSpec& spec = (*specs)[k];
    spec.kind = KindOf(kinds[k]);
    spec.number = numbers[k];
    spec.table = k;
    spec.indices = count + k;
    if (!spec.is_packed()) spec.bounds = next_bounds++;
    if (spec.kind == BagKind::kSegments) spec.num_segments = next_segments++;
    if (num_default > 0) spec.default_index = first_default + k;
    if (own_weights[k] >= 0) spec.weights = first_weights + own_weights[k];
    if (num_argmax > 0 && reductions[k] == "max") spec.argmax = next_argmax++;
    spec.end = first_weights + num_weights;
    spec.padding_idx = paddings[k];
    TF_RETURN_IF_ERROR(spec.InitLastOffset(attributes));
    TF_RETURN_IF_ERROR(OfTable(spec.number, spec.InitReduction(attributes, reductions[k])));
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
