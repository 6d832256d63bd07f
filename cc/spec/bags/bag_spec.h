// The attributes of a bag op, and the positions of its inputs.
#ifndef TF_TI_CC_KERNELS_BAGS_SPEC_H_
#define TF_TI_CC_KERNELS_BAGS_SPEC_H_

#include <optional>
#include <string>

#include "cc/compute/bags/bags.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

// Adds the table to an error message where there are several.
absl::Status OfTable(int number, const absl::Status& status);

// Returns an error if a table's rows are not of the shape of the first one's. Both have rank 1 or
// more.
absl::Status CheckRowsAlike(const tensorflow::TensorShape& table,
                            const tensorflow::TensorShape& first);

// True if TF_TI_CHECK_IDS=1 is in the environment. Bad values are then errors even where a check
// costs something.
bool ChecksIds();

// The attributes of a bag op, as cc/ops/bags.cc documents them, and where its inputs are.
struct BagSpec {
  BagKind kind = BagKind::kOffsets;
  Reduction reduction = Reduction::kSum;
  bool include_last_offset = false;
  std::optional<int64_t> padding_idx;
  bool weights_are_wide = false;
  bool is_of_several = false;  // so that errors name the table
  // Positions of the inputs; -1 for those that the op does not have.
  int table = 0;
  int indices = 0;
  int bounds = -1;
  int num_segments = -1;
  int default_index = -1;
  int weights = -1;
  int end = 0;  // of those above

  // `first_input` is that of the indices. `bags` is the kind of a forward op; that of a gradient is
  // an attribute.
  absl::Status Init(tensorflow::OpKernelConstruction* ctx, std::optional<BagKind> bags,
                    int first_input);
  // Reads the part that tells which indices make up which bag.
  absl::Status InitBags(tensorflow::OpKernelConstruction* ctx, std::optional<BagKind> bags,
                        int first_input, bool has_num_segments);

  // Reads the attributes of one table of an op of several.
  absl::Status InitOneOf(tensorflow::OpKernelConstruction* ctx, int table_number);

  // Reads those of a gradient, which has an argmax behind all other inputs for the reduction max.
  absl::Status InitGradient(tensorflow::OpKernelConstruction* ctx, int first_input);

  bool has_weights() const { return weights >= 0; }

 private:
  // Read the attributes that no input tells.
  absl::Status InitPadding(tensorflow::OpKernelConstruction* ctx);
  absl::Status InitReduction(tensorflow::OpKernelConstruction* ctx);
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_BAGS_SPEC_H_
