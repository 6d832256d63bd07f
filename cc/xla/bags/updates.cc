// The kernels for XLA that update rows of variables.
#include "cc/xla/bags/updates.h"

#include <vector>

#include "cc/spec/bags/update_spec.h"
#include "cc/xla/bags/inputs.h"
#include "cc/xla/bags/kernel.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using xla::XlaOp;

class UpdateOp : public BagsXlaKernel {
 public:
  UpdateOp(OpKernelConstruction* ctx, UpdateRule rule) : BagsXlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), rule));
  }

  absl::Status Compile(const Context& ctx) const override {
    RowUpdate update;
    update.rule = spec_.rule;
    update.flag = spec_.flag;
    TensorShape table;
    std::vector<TensorShape> slots(spec_.num_slots());
    TF_RETURN_IF_ERROR(ctx.ReadVariable(0, spec_.dtype, &table, &update.table));
    TF_RETURN_IF_ERROR(spec_.CheckVariable(table));
    update.reads = ctx.Reads(update.table);
    update.table = Flatten(update.table);
    for (int i = 0; i < spec_.num_slots(); ++i) {
      XlaOp slot;
      TF_RETURN_IF_ERROR(ctx.ReadVariable(1 + i, spec_.sum_dtype, &slots[i], &slot));
      TF_RETURN_IF_ERROR(spec_.CheckSlot(i, slots[i], table, &update.is_row_wise));
      (IsLast(i) ? update.second : update.first) = Flatten(slot);
    }
    TF_RETURN_IF_ERROR(spec_.CheckGradients(InputShapes(ctx), table));
    if (spec_.bags.has_value()) {
      TensorShape ignored;
      RowGradients gradients;
      TF_RETURN_IF_ERROR(
          GetRowGradients(ctx, *spec_.bags, table.dim_size(0), update.reads, &ignored, &gradients));
      update.indices = gradients.rows;
      update.values = gradients.values;
    } else {
      update.indices = ctx.Input(spec_.gradients());
      update.values = Flatten(ctx.Input(spec_.gradients() + 1));
    }
    TF_RETURN_IF_ERROR(GetNumbers(ctx, &update));
    const UpdatedRows updated = Update(update);
    TF_RETURN_IF_ERROR(
        ctx.AssignVariable(0, spec_.dtype, xla::Reshape(updated.table, table.dim_sizes())));
    for (int i = 0; i < spec_.num_slots(); ++i) {
      const XlaOp slot = IsLast(i) ? updated.second : updated.first;
      TF_RETURN_IF_ERROR(
          ctx.AssignVariable(1 + i, spec_.sum_dtype, xla::Reshape(slot, slots[i].dim_sizes())));
    }
    return ctx.builder()->first_error();
  }

 private:
  bool IsLast(int slot) const { return slot + 1 == spec_.num_slots(); }

  // Gets the rule's numbers, in the order of the specification.
  absl::Status GetNumbers(const Context& ctx, RowUpdate* update) const {
    std::vector<XlaOp> numbers;
    for (int i = 0; i < spec_.num_numbers(); ++i) {
      TensorShape shape;
      const int input = spec_.first_number + i;
      TF_RETURN_IF_ERROR(GetShape(ctx, input, spec_.numbers[i].name, &shape));
      TF_RETURN_IF_ERROR(spec_.CheckNumber(i, shape, ctx.input_type(input)));
      numbers.push_back(ctx.Input(input));
    }
    update->rate = numbers[0];
    switch (spec_.rule) {
      case UpdateRule::kDescent:
        if (spec_.has_decay) {
          update->weight_decay = xla::ConvertElementType(numbers[1], xla::F64);
        }
        break;
      case UpdateRule::kAdam:
        update->step = numbers[1];
        update->beta_1 = numbers[2];
        update->beta_2 = numbers[3];
        update->epsilon = numbers[4];
        update->weight_decay = numbers[5];
        break;
      case UpdateRule::kAdagrad:
        update->epsilon = numbers[1];
        break;
    }
    return absl::OkStatus();
  }

  UpdatedRows Update(const RowUpdate& update) const {
    if (spec_.rule != UpdateRule::kDescent || spec_.has_decay) {
      return (IsOnHost() ? UpdateOnHost : UpdateInHlo)(update);
    }
    UpdatedRows updated;
    updated.table = IsOnHost()
                        ? ScatterSubOnHost(update.table, update.indices, update.values, update.rate,
                                           update.reads)
                        : ScatterSubInHlo(update.table, update.indices, update.values, update.rate);
    return updated;
  }

  UpdateSpec spec_;
};

template <UpdateRule rule>
class UpdateOpOf : public UpdateOp {
 public:
  explicit UpdateOpOf(OpKernelConstruction* ctx) : UpdateOp(ctx, rule) {}
};

using ScatterSubOp = UpdateOpOf<UpdateRule::kDescent>;
using AdamUpdateOp = UpdateOpOf<UpdateRule::kAdam>;
using AdagradUpdateOp = UpdateOpOf<UpdateRule::kAdagrad>;

const XlaRegistrar<ScatterSubOp> kScatterSub("TfTi>ScatterSub", kResources);
const XlaRegistrar<AdamUpdateOp> kAdamUpdate("TfTi>AdamUpdate", kResources);
const XlaRegistrar<AdagradUpdateOp> kAdagradUpdate("TfTi>AdagradUpdate", kResources);
const XlaRegistrar<ScatterSubOp> kBagScatterSub("TfTi>EmbeddingBagScatterSub", kResources);
const XlaRegistrar<AdamUpdateOp> kBagAdamUpdate("TfTi>EmbeddingBagAdamUpdate", kResources);
const XlaRegistrar<AdagradUpdateOp> kBagAdagradUpdate("TfTi>EmbeddingBagAdagradUpdate", kResources);

}  // namespace
}  // namespace tf_ti
