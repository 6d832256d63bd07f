// The contract of a bag op: its attributes, the positions of its inputs, and their shapes.
#ifndef TF_TI_CC_SPEC_BAGS_BAG_SPEC_H_
#define TF_TI_CC_SPEC_BAGS_BAG_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/compute/bags/bags.h"
#include "cc/compute/bags/partition.h"
#include "cc/spec/attributes.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"

namespace tf_ti {

// Adds the table to an error message where there are several, and `number` is not -1.
absl::Status OfTable(int number, const absl::Status& status);

// The attributes of a bag op, as cc/ops/bags.cc documents them, and where its inputs are.
struct BagSpec {
  BagKind kind = BagKind::kOffsets;
  Reduction reduction = Reduction::kSum;
  bool include_last_offset = false;
  std::optional<int64_t> padding_idx;
  bool weights_are_wide = false;
  int number = -1;  // the table's in errors, where there are several
  // Positions of the inputs; -1 for those that the op does not have.
  int table = 0;
  int indices = 0;
  int bounds = -1;
  int num_segments = -1;
  int default_index = -1;
  int weights = -1;
  int end = 0;  // of those above
  // The position of the output that holds positions; -1 where the op does not have it.
  int argmax = -1;

  // Read the attributes of a look-up in one table; of one in several tables; of what takes the
  // gradient of a look-up by its table; of that gradient; and of that by its weights. The input
  // `grad` is the one before the indices; argmax, for kMax, is the one at `end`.
  absl::Status Init(const Attributes& attributes, BagKind bags);
  static absl::Status InitSeveral(const Attributes& attributes, std::vector<BagSpec>* specs);
  absl::Status InitGradient(const Attributes& attributes, int first_input);
  absl::Status InitTableGradient(const Attributes& attributes);
  absl::Status InitWeightsGradient(const Attributes& attributes);

  int grad() const { return indices - 1; }
  bool is_packed() const { return kind == BagKind::kPacked; }
  bool has_weights() const { return weights >= 0; }

  // Checks the shapes of the inputs from the indices to `end`. `find(input, name, &shape)` gets
  // one. `count` gets the number of bags, or -1 where the shapes do not tell it.
  template <typename Shape, typename Find>
  absl::Status CheckShapes(const Find& find, int64_t* count) const;

  // The same of a gradient. `grad` gets the shape of that input, `count` the number of its rows.
  template <typename Shape, typename Find>
  absl::Status CheckGradientShapes(const Find& find, Shape* grad, int64_t* count) const;

 private:
  friend struct PartitionSpec;

  // Read the part that tells which indices make up which bag, and the parts that no input tells.
  absl::Status InitGiven(const Attributes& attributes);
  absl::Status InitBags(const Attributes& attributes, int first_input, bool has_num_segments);
  absl::Status InitLastOffset(const Attributes& attributes);
  absl::Status InitPadding(const Attributes& attributes);
  absl::Status InitReduction(const Attributes& attributes);
  absl::Status InitReduction(const Attributes& attributes, const std::string& name);
};

// The contract of EmbeddingBagPartition.
struct PartitionSpec {
  BagSpec bags;
  int num_shards = 0;
  bool has_positions = false;
  PartitionStrategy strategy = PartitionStrategy::kDiv;

  absl::Status Init(const Attributes& attributes);
};

// True if TF_TI_CHECK_IDS=1 is in the environment. Bad values are then errors even where a check
// costs something.
bool ChecksIds();

inline absl::Status CheckNumSegments(int64_t count) {
  if (count >= 0) return absl::OkStatus();
  return InvalidArgument("num_segments must not be negative, got ", count);
}

inline absl::Status CheckNumEmb(int64_t num_emb) {
  if (num_emb >= 0) return absl::OkStatus();
  return InvalidArgument("num_emb must not be negative, got ", num_emb);
}

// Returns an error if `rows` are not `count` rows of a table.
template <typename Shape>
absl::Status CheckRowsOf(const char* name, const Shape& rows, int64_t count, const Shape& table) {
  if (table.unknown_rank()) return absl::OkStatus();
  Shape expected = table;
  TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, count));
  return CheckShape(name, rows, expected);
}

// Returns an error where a gradient has other rows than there are bags.
inline absl::Status CheckGradCount(int64_t num_rows, int64_t count) {
  if (num_rows < 0 || count < 0 || num_rows == count) return absl::OkStatus();
  return InvalidArgument("grad has ", num_rows, " rows, but there are ", count, " bags");
}

template <typename Shape, typename Find>
absl::Status BagSpec::CheckShapes(const Find& find, int64_t* count) const {
  Shape ids, shape;
  TF_RETURN_IF_ERROR(find(indices, "indices", &ids));
  TF_RETURN_IF_ERROR(CheckRank("indices", ids, is_packed() ? 2 : 1));
  *count = is_packed() && !ids.unknown_rank() ? ids.dim_size(0) : -1;
  if (kind == BagKind::kOffsets) {
    TF_RETURN_IF_ERROR(find(bounds, "offsets", &shape));
    TF_RETURN_IF_ERROR(CheckRank("offsets", shape, 1));
    const int64_t size = shape.unknown_rank() ? -1 : shape.dim_size(0);
    if (size == 0 && include_last_offset) {
      return InvalidArgument("offsets has no last offset: it is empty");
    }
    *count = size < 0 ? -1 : size - include_last_offset;
  } else if (kind == BagKind::kSegments) {
    TF_RETURN_IF_ERROR(find(bounds, "segment_ids", &shape));
    TF_RETURN_IF_ERROR(CheckShapeOf("segment_ids", shape, "indices", ids));
  }
  if (num_segments >= 0) {
    TF_RETURN_IF_ERROR(find(num_segments, "num_segments", &shape));
    TF_RETURN_IF_ERROR(CheckRank("num_segments", shape, 0));
  }
  if (default_index >= 0) {
    TF_RETURN_IF_ERROR(find(default_index, "default_index", &shape));
    TF_RETURN_IF_ERROR(CheckRank("default_index", shape, 0));
  }
  if (has_weights()) {
    TF_RETURN_IF_ERROR(find(weights, "per_sample_weights", &shape));
    TF_RETURN_IF_ERROR(CheckShapeOf("per_sample_weights", shape, "indices", ids));
  }
  return absl::OkStatus();
}

template <typename Shape, typename Find>
absl::Status BagSpec::CheckGradientShapes(const Find& find, Shape* shape, int64_t* count) const {
  int64_t known;
  TF_RETURN_IF_ERROR(find(grad(), "grad", shape));
  TF_RETURN_IF_ERROR(CheckHasRows("grad", *shape));
  *count = shape->unknown_rank() ? -1 : shape->dim_size(0);
  TF_RETURN_IF_ERROR(CheckShapes<Shape>(find, &known));
  TF_RETURN_IF_ERROR(CheckGradCount(*count, known));
  if (reduction != Reduction::kMax) return absl::OkStatus();
  Shape positions;
  TF_RETURN_IF_ERROR(find(end, "argmax", &positions));
  return CheckShapeOf("argmax", positions, "grad", *shape);
}

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_BAGS_BAG_SPEC_H_
