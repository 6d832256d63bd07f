#include <optional>
#include <utility>

#include "cc/kernels/loops/lowering/rules.h"
#include "tensorflow/core/util/bcast.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

absl::StatusOr<Lowered> Known(const Dims& integers, DataType dtype) {
  TF_ASSIGN_OR_RETURN(Tensor tensor, ToTensor(integers, dtype));
  return Lowered{std::nullopt, std::move(tensor)};
}

Outputs ShapeOf(LoweringContext&, const NodeDef& node, const std::vector<Lowered>& inputs) {
  const DataType dtype = Attribute(node, "out_type", tensorflow::DT_INT32);
  std::vector<Lowered> shapes;
  for (const Lowered& input : inputs) {
    TF_ASSIGN_OR_RETURN(shapes.emplace_back(), Known(DimsOf(input), dtype));
  }
  return shapes;
}

Outputs SizeOrRank(LoweringContext&, const NodeDef& node, const std::vector<Lowered>& inputs) {
  const Dims dims = DimsOf(inputs[0]);
  const int64_t size = node.op() == "Rank" ? dims.size() : CountOf(dims);
  const DataType dtype = Attribute(node, "out_type", tensorflow::DT_INT32);
  TF_ASSIGN_OR_RETURN(const Tensor vector, ToTensor({size}, dtype));
  Tensor scalar;
  TF_RETURN_IF_ERROR(scalar.BitcastFrom(vector, dtype, TensorShape({})));
  return One(scalar);
}

Outputs Range(LoweringContext&, const NodeDef& node, const std::vector<Lowered>& inputs) {
  Dims bounds;  // start, limit, delta
  for (const Lowered& input : inputs) {
    TF_ASSIGN_OR_RETURN(const int64_t bound, Integer(input));
    // Sums of narrow integers do not overflow wide ones.
    if (bound != static_cast<int32_t>(bound)) return Refused("a bound of ", bound);
    bounds.push_back(bound);
  }
  const int64_t delta = bounds[2];
  if (delta == 0) return Refused("a range of steps of 0");
  Dims range;
  for (int64_t at = bounds[0]; delta > 0 ? at < bounds[1] : at > bounds[1]; at += delta) {
    range.push_back(at);
    TF_RETURN_IF_ERROR(CheckCount(range.size()));
  }
  return One(ToTensor(range, Attribute(node, "Tidx", tensorflow::DT_INT32)));
}

// The offsets at which arrays begin in their concatenation.
Outputs ConcatOffset(LoweringContext&, const NodeDef& node, const std::vector<Lowered>& inputs) {
  const DataType dtype = Attribute(node, "shape_type", tensorflow::DT_INT32);
  TF_ASSIGN_OR_RETURN(const int64_t axis, Scalar(inputs[0]));
  std::vector<Lowered> offsets;
  Dims others;  // the first array's extents, but along the axis
  int64_t begin = 0;
  for (size_t i = 1; i < inputs.size(); ++i) {
    TF_ASSIGN_OR_RETURN(Dims dims, Integers(inputs[i]));
    TF_ASSIGN_OR_RETURN(const int dim, DimOf(axis, static_cast<int>(dims.size())));
    Dims offset(dims.size(), 0);
    offset[dim] = begin;
    TF_ASSIGN_OR_RETURN(offsets.emplace_back(), Known(offset, dtype));
    begin += std::exchange(dims[dim], 0);
    if (i == 1) others = dims;
    if (dims != others) return Refused("extents that differ");
  }
  return offsets;
}

Outputs InvertPermutation(LoweringContext&, const NodeDef& node,
                          const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Dims order, Integers(inputs[0]));
  Dims inverse(order.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    const int64_t place = order[i];
    if (place < 0 || place >= static_cast<int64_t>(order.size()) || inverse[place] >= 0) {
      return Refused("a permutation that has ", place, " twice, or out of range");
    }
    inverse[place] = i;
  }
  return One(ToTensor(inverse, Attribute(node, "T", tensorflow::DT_INT32)));
}

Outputs Fill(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Dims dims, Integers(inputs[0]));
  TF_ASSIGN_OR_RETURN(const View element, context.ViewOf(inputs[1]));
  if (element.rank() != 0) return Refused("a filling that is not one element");
  return One(Repeated(element, dims));
}

Outputs ZerosLike(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  return One(Repeated(Zero(context, view.type), view.dims));
}

Outputs OnesLike(LoweringContext& context, const NodeDef&, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[0]));
  const int32_t one = 1;
  const View number = context.builder().AddConstant(ElementType::kInt32, {}, &one);
  return One(Repeated(context.builder().Cast(number, view.type), view.dims));
}

Outputs BroadcastArgs(LoweringContext&, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Dims x, Integers(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims y, Integers(inputs[1]));
  const std::optional<Dims> dims = BroadcastDims(x, y);
  if (!dims.has_value()) return Refused("shapes that do not fit each other");
  return One(ToTensor(*dims, Attribute(node, "T", tensorflow::DT_INT32)));
}

Outputs BroadcastGradientArgs(LoweringContext&, const NodeDef& node,
                              const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(const Dims x, Integers(inputs[0]));
  TF_ASSIGN_OR_RETURN(const Dims y, Integers(inputs[1]));
  const tensorflow::BCast broadcast(tensorflow::BCast::Vec(x.begin(), x.end()),
                                    tensorflow::BCast::Vec(y.begin(), y.end()),
                                    /*fewer_dims_optimization=*/false,
                                    /*return_flattened_batch_indices=*/false);
  if (!broadcast.IsValid()) return Refused("shapes that do not fit each other");
  const DataType dtype = Attribute(node, "T", tensorflow::DT_INT32);
  std::vector<Lowered> outputs;
  for (const auto& axes : {broadcast.grad_x_reduce_idx(), broadcast.grad_y_reduce_idx()}) {
    TF_ASSIGN_OR_RETURN(outputs.emplace_back(), Known(Dims(axes.begin(), axes.end()), dtype));
  }
  return outputs;
}

}  // namespace

RuleTable ShapeRules() {
  return {{"BroadcastArgs", BroadcastArgs},
          {"BroadcastGradientArgs", BroadcastGradientArgs},
          {"ConcatOffset", ConcatOffset},
          {"Fill", Fill},
          {"InvertPermutation", InvertPermutation},
          {"OnesLike", OnesLike},
          {"Range", Range},
          {"Rank", SizeOrRank},
          {"Shape", ShapeOf},
          {"ShapeN", ShapeOf},
          {"Size", SizeOrRank},
          {"ZerosLike", ZerosLike}};
}

}  // namespace tf_ti
