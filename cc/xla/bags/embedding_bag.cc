// The kernels of the pooled embedding look-ups and of their gradients, for XLA.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cc/spec/bags/bag_spec.h"
#include "cc/status.h"
#include "cc/xla/bags/hlo.h"
#include "cc/xla/bags/host.h"
#include "cc/xla/bags/inputs.h"
#include "cc/xla/bags/kernel.h"
#include "cc/xla/bags/known_rows.h"
#include "cc/xla/bags/pool.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_ti {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::TensorShape;
using xla::XlaBuilder;
using xla::XlaOp;

template <BagKind kind>
class EmbeddingBagOp : public BagsXlaKernel {
 public:
  explicit EmbeddingBagOp(OpKernelConstruction* ctx) : BagsXlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), kind));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  absl::Status Compile(const Context& ctx) const override {
    BagTable table;
    TF_RETURN_IF_ERROR(table.Init(ctx, dtype_));
    return Pool(ctx, spec_, table);
  }

 private:
  BagSpec spec_;
  DataType dtype_;
};

class EmbeddingBagsOp : public BagsXlaKernel {
 public:
  explicit EmbeddingBagsOp(OpKernelConstruction* ctx) : BagsXlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, BagSpec::InitSeveral(Attributes(ctx), &specs_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  absl::Status Compile(const Context& ctx) const override {
    const int count = specs_.size();
    std::vector<BagTable> tables(count);
    for (int k = 0; k < count; ++k) {
      TF_RETURN_IF_ERROR(OfTable(specs_[k].number, tables[k].Init(ctx, dtype_, k)));
    }
    for (int k = 0; k < count; ++k) {
      TF_RETURN_IF_ERROR(OfTable(specs_[k].number, Pool(ctx, specs_[k], tables[k])));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<BagSpec> specs_;
  DataType dtype_;
};

// Gets the number of rows of the table from input 0 of some ops, which is that number, or the
// table's variable. `reads` gets the values that the XLA computation reads of the variable.
absl::Status GetNumRows(const Context& ctx, DataType dtype, int64_t* num_rows,
                        std::vector<XlaOp>* reads = nullptr) {
  if (ctx.input_type(0) == tensorflow::DT_RESOURCE) {
    BagTable table;
    TF_RETURN_IF_ERROR(table.Init(ctx, dtype));
    *num_rows = table.num_rows();
    if (reads != nullptr) *reads = ctx.Reads(table.given);
    return absl::OkStatus();
  }
  TensorShape shape;
  TF_RETURN_IF_ERROR(GetShape(ctx, 0, "num_emb", &shape));
  TF_RETURN_IF_ERROR(CheckRank("num_emb", shape, 0));
  TF_RETURN_IF_ERROR(GetConstant(ctx, 0, "num_emb", num_rows));
  TF_RETURN_IF_ERROR(CheckNumEmb(*num_rows));
  if (IsTooLarge(xla::ShapeUtil::MakeShape(xla::S32, {}), *num_rows)) {
    return Unimplemented("num_emb is ", *num_rows, ": so many rows are too many for XLA");
  }
  return absl::OkStatus();
}

class EmbeddingBagGradOp : public BagsXlaKernel {
 public:
  explicit EmbeddingBagGradOp(OpKernelConstruction* ctx) : BagsXlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.InitTableGradient(Attributes(ctx)));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  absl::Status Compile(const Context& ctx) const override {
    TensorShape shape;
    int64_t num_rows;
    std::vector<XlaOp> reads;
    TF_RETURN_IF_ERROR(GetNumRows(ctx, dtype_, &num_rows, &reads));
    RowGradients gradients;
    TF_RETURN_IF_ERROR(
        OfTable(spec_.number, GetRowGradients(ctx, spec_, num_rows, reads, &shape, &gradients)));
    if (ctx.input_type(0) != tensorflow::DT_RESOURCE) {  // whose ops nobody evaluates
      TF_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> rows,
                          FindKnownRows(ctx, spec_, num_rows));
      if (rows.has_value()) gradients = OnlyRows(gradients, *rows, num_rows);
    }
    ctx.SetOutput(0, gradients.rows);
    ctx.SetOutput(1, Unflatten(gradients.values, shape));
    return ctx.builder()->first_error();
  }

 private:
  BagSpec spec_;
  DataType dtype_;
};

class EmbeddingBagWeightsGradOp : public BagsXlaKernel {
 public:
  explicit EmbeddingBagWeightsGradOp(OpKernelConstruction* ctx) : BagsXlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.InitWeightsGradient(Attributes(ctx)));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
  }

  absl::Status Compile(const Context& ctx) const override {
    TensorShape shape;
    BagInputs inputs;
    TF_RETURN_IF_ERROR(inputs.InitGradient(ctx, spec_, &shape));
    BagTable table;
    TF_RETURN_IF_ERROR(table.Init(ctx, dtype_));
    TF_RETURN_IF_ERROR(CheckRowsOf("grad", shape, inputs.count, table.shape));
    const XlaOp gradient = (IsOnHost() ? WeightsGradientOnHost : WeightsGradientInHlo)(
        table, inputs, Flatten(ctx.Input(spec_.grad())));
    AddRead(ctx, table, gradient);
    ctx.SetOutput(0, xla::Reshape(gradient, inputs.shape.dim_sizes()));
    return ctx.builder()->first_error();
  }

 private:
  BagSpec spec_;
  DataType dtype_;
};

class RowPositionsOp : public BagsXlaKernel {
 public:
  using BagsXlaKernel::BagsXlaKernel;

  absl::Status Compile(const Context& ctx) const override {
    XlaBuilder* const builder = ctx.builder();
    int64_t num_rows;
    TF_RETURN_IF_ERROR(GetNumRows(ctx, tensorflow::DT_INVALID, &num_rows));
    TensorShape rows_shape, shape;
    TF_RETURN_IF_ERROR(GetShape(ctx, 1, "rows", &rows_shape));
    TF_RETURN_IF_ERROR(CheckRank("rows", rows_shape, 1));
    TF_RETURN_IF_ERROR(GetShape(ctx, 2, "indices", &shape));
    const XlaOp rows = ctx.Input(1);
    const XlaOp indices = xla::Reshape(ctx.Input(2), {shape.num_elements()});
    XlaOp positions = xla::FullLike(indices, -2);
    if (num_rows > 0) {
      const XlaOp first = Take(FirstOfEqual(rows, num_rows), indices);
      const XlaOp is_there = xla::Lt(first, Number(first, rows_shape.num_elements()));
      const XlaOp found = xla::Select(is_there, xla::ConvertElementType(first, TypeOf(indices)),
                                      xla::FullLike(indices, -1));
      const XlaOp is_row = xla::And(xla::Ge(indices, Number(indices, 0)),
                                    xla::Lt(Wide(indices), Scalar(builder, xla::S64, num_rows)));
      positions = xla::Select(is_row, found, positions);
    }
    ctx.SetOutput(0, xla::Reshape(positions, shape.dim_sizes()));
    return builder->first_error();
  }
};

class EmbeddingBagPartitionOp : public BagsXlaKernel {
 public:
  explicit EmbeddingBagPartitionOp(OpKernelConstruction* ctx) : BagsXlaKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx)));
    DataType local;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tlocal", &local));
    local_ = local == tensorflow::DT_INT32 ? xla::S32 : xla::S64;
  }

  absl::Status Compile(const Context& ctx) const override {
    int64_t num_rows;
    TF_RETURN_IF_ERROR(GetNumRows(ctx, tensorflow::DT_INVALID, &num_rows));
    BagInputs inputs;
    TF_RETURN_IF_ERROR(inputs.Init(ctx, spec_.bags, 1));
    const PartitionedBags bags = PartitionInHlo(inputs, num_rows, spec_.num_shards,
                                                spec_.strategy == PartitionStrategy::kMod, local_);
    int output = 0;
    for (const XlaOp ids : bags.ids) ctx.SetOutput(output++, ids);
    for (int k = 0; k < spec_.num_shards; ++k) ctx.SetOutput(output++, bags.offsets);
    for (int k = 0; k < spec_.num_shards; ++k) ctx.SetOutput(output++, bags.numbers);
    while (output + 1 < ctx.num_outputs()) ctx.SetOutput(output++, bags.positions);
    ctx.SetOutput(output, bags.is_empty);
    return ctx.builder()->first_error();
  }

 private:
  PartitionSpec spec_;
  xla::PrimitiveType local_;
};

// The memory is XLA's business.
class AdviseHugePagesOp : public XlaKernel {
 public:
  explicit AdviseHugePagesOp(OpKernelConstruction*) {}

  absl::Status Compile(const Context&) const override { return absl::OkStatus(); }
};

using OffsetsOp = EmbeddingBagOp<BagKind::kOffsets>;
using PackedOp = EmbeddingBagOp<BagKind::kPacked>;
using SegmentsOp = EmbeddingBagOp<BagKind::kSegments>;

const XlaRegistrar<OffsetsOp> kOffsets("TfTi>EmbeddingBagOffsets");
const XlaRegistrar<PackedOp> kPacked("TfTi>EmbeddingBagPacked");
const XlaRegistrar<SegmentsOp> kSegments("TfTi>EmbeddingSegmentsSum", kPlain, {"num_segments"});
const XlaRegistrar<OffsetsOp> kResourceOffsets("TfTi>ResourceEmbeddingBagOffsets", kResources);
const XlaRegistrar<PackedOp> kResourcePacked("TfTi>ResourceEmbeddingBagPacked", kResources);
const XlaRegistrar<SegmentsOp> kResourceSegments("TfTi>ResourceEmbeddingSegmentsSum", kResources,
                                                 {"num_segments"});
const XlaRegistrar<EmbeddingBagsOp> kSeveral("TfTi>EmbeddingBags", kPlain, {"num_segments"});
const XlaRegistrar<EmbeddingBagsOp> kResourceSeveral("TfTi>ResourceEmbeddingBags", kResources,
                                                     {"num_segments"});
const XlaRegistrar<EmbeddingBagGradOp> kGrad("TfTi>EmbeddingBagGrad", kPlain, {"num_emb"});
const XlaRegistrar<EmbeddingBagGradOp> kResourceGrad("TfTi>ResourceEmbeddingBagGrad", kResources);
const XlaRegistrar<EmbeddingBagPartitionOp> kPartition("TfTi>EmbeddingBagPartition", kPlain,
                                                       {"num_emb", "num_segments"});
const XlaRegistrar<RowPositionsOp> kRowPositions("TfTi>EmbeddingBagSlots", kPlain, {"num_emb"});
const XlaRegistrar<EmbeddingBagWeightsGradOp> kWeightsGrad("TfTi>EmbeddingBagWeightsGrad");
const XlaRegistrar<EmbeddingBagWeightsGradOp> kResourceWeightsGrad(
    "TfTi>ResourceEmbeddingBagWeightsGrad", kResources);
const XlaRegistrar<AdviseHugePagesOp> kAdviseHugePages("TfTi>AdviseHugePages", kResources);

}  // namespace
}  // namespace tf_ti
