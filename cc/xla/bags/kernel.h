// The basics of the XLA kernels of all ops about bags.
#ifndef TF_TI_CC_XLA_BAGS_KERNEL_H_
#define TF_TI_CC_XLA_BAGS_KERNEL_H_

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "cc/spec/bags/bag_spec.h"
#include "cc/xla/bags/inputs.h"
#include "cc/xla/tf2xla.h"

namespace tf_ti {

class BagsXlaKernel : public XlaKernel {
 public:
  explicit BagsXlaKernel(tensorflow::OpKernelConstruction* ctx) : is_cpu_(IsForCpu(ctx)) {}

 protected:
  // Returns true if XLA computations call cc/compute. Otherwise they are made of XLA's own
  // operations, as TF_TI_XLA_BAGS=hlo in the environment demands.
  bool IsOnHost() const {
    const char* const value = std::getenv("TF_TI_XLA_BAGS");
    return is_cpu_ && !(value != nullptr && std::string_view(value) == "hlo");
  }

  // The look-up in one of the op's tables, with its outputs.
  absl::Status Pool(const Context& ctx, const BagSpec& spec, const BagTable& table) const;

  // Notes a value that an XLA computation reads of a table.
  void AddRead(const Context& ctx, const BagTable& table, xla::XlaOp value) const {
    if (IsOnHost()) ctx.AddRead(table.given, value);
  }

  // Gets the gradient of a table, and the shape of the input `grad`. The gradient is computed after
  // `reads`.
  absl::Status GetRowGradients(const Context& ctx, const BagSpec& spec, int64_t num_rows,
                               const std::vector<xla::XlaOp>& reads, tensorflow::TensorShape* shape,
                               RowGradients* gradients) const;

 private:
  const bool is_cpu_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_BAGS_KERNEL_H_
