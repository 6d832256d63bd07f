// The kernels for XLA that update rows of variables.
#include "cc/xla/bags/updates.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/status.h"
#include "cc/xla/bags/inputs.h"
#include "cc/xla/bags/kernel.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using xla::XlaOp;

// The basics of the ops: a variable with its slots, and rows with their gradients.
class UpdateOp : public BagsXlaKernel {
 public:
  UpdateOp(OpKernelConstruction* ctx, std::vector<std::string> slots)
      : BagsXlaKernel(ctx), slots_(std::move(slots)) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
    if (!ctx->HasAttr("bags")) return;
    bags_.emplace();
    OP_REQUIRES_OK(ctx, bags_->InitGradient(ctx, 2 + static_cast<int>(slots_.size())));
  }

  absl::Status Compile(const Context& ctx) const override {
    RowUpdate update;
    TensorShape table, shape;
    std::vector<TensorShape> shapes(slots_.size());
    TF_RETURN_IF_ERROR(ctx.ReadVariable(0, dtype_, &table, &update.table));
    if (table.dims() == 0) return InvalidArgument("the variable must have rank 1 or more");
    update.reads = ctx.Reads(update.table);
    update.table = Flatten(update.table);
    for (size_t i = 0; i < slots_.size(); ++i) {
      XlaOp slot;
      TF_RETURN_IF_ERROR(ctx.ReadVariable(1 + i, SumType(), &shapes[i], &slot));
      const bool is_last = i + 1 == slots_.size();
      const TensorShape row_wise({table.dim_size(0), 1});
      if (shapes[i] != table && !(is_last && shapes[i] == row_wise)) {
        return InvalidArgument(slots_[i], " must have the variable's shape ", table.DebugString(),
                               is_last ? absl::StrCat(", or ", row_wise.DebugString()) : "",
                               ", got ", shapes[i].DebugString());
      }
      (is_last ? update.second : update.first) = Flatten(slot);
      if (is_last) update.is_row_wise = shapes[i] != table;
    }
    int at = 1 + static_cast<int>(slots_.size());
    if (bags_.has_value()) {
      RowGradients gradients;
      TF_RETURN_IF_ERROR(
          GetRowGradients(ctx, *bags_, table.dim_size(0), update.reads, &shape, &gradients));
      TF_RETURN_IF_ERROR(CheckRows("grad", shape, shape.dim_size(0), table));
      update.indices = gradients.rows;
      update.values = gradients.values;
      at = bags_->end + (bags_->reduction == Reduction::kMax);
    } else {
      TF_RETURN_IF_ERROR(GetShape(ctx, at, "indices", &shape));
      TF_RETURN_IF_ERROR(CheckRank("indices", shape, 1));
      const int64_t count = shape.num_elements();
      TF_RETURN_IF_ERROR(GetShape(ctx, at + 1, "values", &shape));
      TF_RETURN_IF_ERROR(CheckRows("values", shape, count, table));
      update.indices = ctx.Input(at);
      update.values = Flatten(ctx.Input(at + 1));
      at += 2;
    }
    TF_RETURN_IF_ERROR(GetNumbers(ctx, at, &update));
    const UpdatedRows updated = Update(update);
    TF_RETURN_IF_ERROR(
        ctx.AssignVariable(0, dtype_, xla::Reshape(updated.table, table.dim_sizes())));
    for (size_t i = 0; i < slots_.size(); ++i) {
      const XlaOp slot = i + 1 == slots_.size() ? updated.second : updated.first;
      TF_RETURN_IF_ERROR(
          ctx.AssignVariable(1 + i, SumType(), xla::Reshape(slot, shapes[i].dim_sizes())));
    }
    return ctx.builder()->first_error();
  }

 protected:
  DataType SumType() const {
    const bool is_half = dtype_ == tensorflow::DT_HALF || dtype_ == tensorflow::DT_BFLOAT16;
    return is_half ? tensorflow::DT_FLOAT : dtype_;
  }

  // A scalar among the inputs.
  static absl::Status GetNumber(const Context& ctx, int input, const char* name, DataType dtype,
                                XlaOp* number) {
    TensorShape shape;
    TF_RETURN_IF_ERROR(GetShape(ctx, input, name, &shape));
    if (shape.dims() != 0 || ctx.input_type(input) != dtype) {
      return InvalidArgument(name, " must be a scalar of type ", tensorflow::DataTypeString(dtype),
                             ", got one of type ",
                             tensorflow::DataTypeString(ctx.input_type(input)), " and shape ",
                             shape.DebugString());
    }
    *number = ctx.Input(input);
    return absl::OkStatus();
  }

  // Sets the rule and its numbers, which are the inputs from `at` on.
  virtual absl::Status GetNumbers(const Context& ctx, int at, RowUpdate* update) const = 0;

  virtual UpdatedRows Update(const RowUpdate& update) const {
    return (IsOnHost() ? UpdateOnHost : UpdateInHlo)(update);
  }

 private:
  static absl::Status CheckRows(const char* name, const TensorShape& shape, int64_t count,
                                TensorShape expected) {
    TF_RETURN_IF_ERROR(expected.SetDimWithStatus(0, count));
    if (shape == expected) return absl::OkStatus();
    return InvalidArgument(name, " must have shape ", expected.DebugString(), ", got ",
                           shape.DebugString());
  }

  const std::vector<std::string> slots_;
  DataType dtype_;
  std::optional<BagSpec> bags_;
};

class ScatterSubOp : public UpdateOp {
 public:
  explicit ScatterSubOp(OpKernelConstruction* ctx) : UpdateOp(ctx, {}) {
    int num_decay;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_decay", &num_decay));
    OP_REQUIRES(ctx, num_decay <= 1, InvalidArgument("num_decay must be 0 or 1, got ", num_decay));
    OP_REQUIRES(ctx, num_decay == 0 || tensorflow::DataTypeIsFloating(SumType()),
                InvalidArgument("weight_decay needs a variable of floats"));
    has_decay_ = num_decay == 1;
  }

 private:
  absl::Status GetNumbers(const Context& ctx, int at, RowUpdate* update) const override {
    update->rule = UpdateRule::kDescent;
    TF_RETURN_IF_ERROR(GetNumber(ctx, at, "scale", SumType(), &update->rate));
    if (!has_decay_) return absl::OkStatus();
    XlaOp decay;
    TF_RETURN_IF_ERROR(GetNumber(ctx, at + 1, "weight_decay", SumType(), &decay));
    update->weight_decay = xla::ConvertElementType(decay, xla::F64);
    return absl::OkStatus();
  }

  UpdatedRows Update(const RowUpdate& update) const override {
    if (has_decay_) return UpdateOp::Update(update);
    UpdatedRows updated;
    updated.table = IsOnHost()
                        ? ScatterSubOnHost(update.table, update.indices, update.values, update.rate,
                                           update.reads)
                        : ScatterSubInHlo(update.table, update.indices, update.values, update.rate);
    return updated;
  }

  bool has_decay_ = false;
};

class AdamUpdateOp : public UpdateOp {
 public:
  explicit AdamUpdateOp(OpKernelConstruction* ctx) : UpdateOp(ctx, {"m", "v"}) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon_hat", &epsilon_hat_));
  }

 private:
  absl::Status GetNumbers(const Context& ctx, int at, RowUpdate* update) const override {
    constexpr DataType kDouble = tensorflow::DT_DOUBLE;
    update->rule = UpdateRule::kAdam;
    update->flag = epsilon_hat_;
    TF_RETURN_IF_ERROR(GetNumber(ctx, at, "learning_rate", SumType(), &update->rate));
    TF_RETURN_IF_ERROR(GetNumber(ctx, at + 1, "step", tensorflow::DT_INT64, &update->step));
    TF_RETURN_IF_ERROR(GetNumber(ctx, at + 2, "beta_1", kDouble, &update->beta_1));
    TF_RETURN_IF_ERROR(GetNumber(ctx, at + 3, "beta_2", kDouble, &update->beta_2));
    TF_RETURN_IF_ERROR(GetNumber(ctx, at + 4, "epsilon", kDouble, &update->epsilon));
    return GetNumber(ctx, at + 5, "weight_decay", kDouble, &update->weight_decay);
  }

  bool epsilon_hat_;
};

class AdagradUpdateOp : public UpdateOp {
 public:
  explicit AdagradUpdateOp(OpKernelConstruction* ctx) : UpdateOp(ctx, {"accumulator"}) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("epsilon_inside_sqrt", &epsilon_inside_sqrt_));
  }

 private:
  absl::Status GetNumbers(const Context& ctx, int at, RowUpdate* update) const override {
    update->rule = UpdateRule::kAdagrad;
    update->flag = epsilon_inside_sqrt_;
    TF_RETURN_IF_ERROR(GetNumber(ctx, at, "learning_rate", SumType(), &update->rate));
    return GetNumber(ctx, at + 1, "epsilon", tensorflow::DT_DOUBLE, &update->epsilon);
  }

  bool epsilon_inside_sqrt_;
};

const XlaRegistrar<ScatterSubOp> kScatterSub("TfTi>ScatterSub", kResources);
const XlaRegistrar<AdamUpdateOp> kAdamUpdate("TfTi>AdamUpdate", kResources);
const XlaRegistrar<AdagradUpdateOp> kAdagradUpdate("TfTi>AdagradUpdate", kResources);
const XlaRegistrar<ScatterSubOp> kBagScatterSub("TfTi>EmbeddingBagScatterSub", kResources);
const XlaRegistrar<AdamUpdateOp> kBagAdamUpdate("TfTi>EmbeddingBagAdamUpdate", kResources);
const XlaRegistrar<AdagradUpdateOp> kBagAdagradUpdate("TfTi>EmbeddingBagAdagradUpdate", kResources);

}  // namespace
}  // namespace tf_ti
