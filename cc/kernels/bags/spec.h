// What a bag op does with which of its inputs: the attributes of the op.
#ifndef TF_TI_CC_KERNELS_BAGS_SPEC_H_
#define TF_TI_CC_KERNELS_BAGS_SPEC_H_

#include <optional>
#include <string>

#include "cc/compute/bags/bags.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_ti {

// What an error is called where there are several tables.
absl::Status OfTable(int number, const absl::Status& status);

// Whether a table's rows are of the shape of the first one's. Both have rank 1 or more.
absl::Status CheckRowsAlike(const tensorflow::TensorShape& table,
                            const tensorflow::TensorShape& first);

// Whether TF_TI_CHECK_IDS=1 is in the environment: bad values are errors then where a check costs
// something, too.
bool ChecksIds();

// The attributes of a bag op, as cc/ops/bags.cc documents them, and where its inputs are.
struct BagSpec {
  BagKind kind = BagKind::kOffsets;
  Reduction reduction = Reduction::kSum;
  bool include_last_offset = false;
  std::optional<int64_t> padding_idx;
  bool weights_are_wide = false;
  bool is_of_several = false;  // so that errors name the table
  // Positions of the inputs; -1 for those that the op has not.
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
  // The part of it that tells which indices make up which bag.
  absl::Status InitBags(tensorflow::OpKernelConstruction* ctx, std::optional<BagKind> bags,
                        int first_input, bool has_num_segments);

  // Those of one table of an op of several.
  absl::Status InitOneOf(tensorflow::OpKernelConstruction* ctx, int table_number);

  // Those of a gradient, which has an argmax behind all that, for the reduction max.
  absl::Status InitGradient(tensorflow::OpKernelConstruction* ctx, int first_input);

  bool has_weights() const { return weights >= 0; }

 private:
  // What no input tells.
  absl::Status InitPadding(tensorflow::OpKernelConstruction* ctx);
  absl::Status InitReduction(tensorflow::OpKernelConstruction* ctx);
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_BAGS_SPEC_H_
