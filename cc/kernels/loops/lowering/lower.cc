#include "cc/kernels/loops/lowering/lower.h"

#include <algorithm>

#include "cc/compute/program/merged_loops.h"
#include "cc/kernels/loops/lowering/rules.h"
#include "cc/kernels/loops/tensors.h"
#include "cc/spec/loops/operations.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;

std::optional<Dims> Integers(const Lowered& value) {
  if (!value.known.has_value()) return std::nullopt;
  const Tensor& tensor = *value.known;
  Dims integers;
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    if (tensor.dtype() == tensorflow::DT_INT32) {
      integers.push_back(tensor.flat<int32_t>()(i));
    } else if (tensor.dtype() == tensorflow::DT_INT64) {
      integers.push_back(tensor.flat<int64_t>()(i));
    } else {
      return std::nullopt;
    }
  }
  return integers;
}

int DimOf(int64_t axis, int rank) {
  const int64_t dim = axis < 0 ? axis + rank : axis;
  return dim >= 0 && dim < rank ? static_cast<int>(dim) : -1;
}

int ChannelsOf(const NodeDef& node, int rank) {
  const bool are_last = Attribute(node, "data_format", std::string("NHWC")) == "NHWC";
  return are_last ? rank - 1 : 1;
}

Tensor ToTensor(const Dims& integers, DataType dtype) {
  Tensor tensor = HostTensor(dtype, TensorShape({static_cast<int64_t>(integers.size())}));
  for (size_t i = 0; i < integers.size(); ++i) {
    if (dtype == tensorflow::DT_INT32) {
      tensor.flat<int32_t>()(i) = static_cast<int32_t>(integers[i]);
    } else {
      tensor.flat<int64_t>()(i) = integers[i];
    }
  }
  return tensor;
}

std::optional<ElementType> ElementTypeOf(DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return ElementType::kFloat;
    case tensorflow::DT_DOUBLE:
      return ElementType::kDouble;
    case tensorflow::DT_HALF:
      return ElementType::kHalf;
    case tensorflow::DT_BFLOAT16:
      return ElementType::kBFloat16;
    case tensorflow::DT_INT32:
      return ElementType::kInt32;
    case tensorflow::DT_INT64:
      return ElementType::kInt64;
    case tensorflow::DT_BOOL:
      return ElementType::kBool;
    default:
      return std::nullopt;
  }
}

DataType DataTypeOf(ElementType type) {
  constexpr DataType kTypes[kNumElementTypes] = {
      tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE, tensorflow::DT_HALF, tensorflow::DT_BFLOAT16,
      tensorflow::DT_INT32, tensorflow::DT_INT64,  tensorflow::DT_BOOL};
  return kTypes[static_cast<int>(type)];
}

const std::unordered_map<std::string, Lowering::Rule>& Lowering::Rules() {
  static const auto& rules = *[] {
    auto* const all = new std::unordered_map<std::string, Rule>{
        {"AddN", &Lowering::AddN},
        {"Cast", &Lowering::Cast},
        {"Select", &Lowering::SelectV1},
        {"BiasAdd", &Lowering::BiasAdd},
        {"BiasAddV1", &Lowering::BiasAdd},
        {"BiasAddGrad", &Lowering::BiasAddGrad},
        {"L2Loss", &Lowering::L2Loss},
        {"Cumsum", &Lowering::Accumulated},
        {"Cumprod", &Lowering::Accumulated},
        {"ArgMax", &Lowering::IndexOfExtreme},
        {"ArgMin", &Lowering::IndexOfExtreme},
        {"Shape", &Lowering::ShapeOf},
        {"ShapeN", &Lowering::ShapeOf},
        {"Size", &Lowering::SizeOfAll},
        {"Rank", &Lowering::SizeOfAll},
        {"Range", &Lowering::Range},
        {"ConcatOffset", &Lowering::ConcatOffset},
        {"InvertPermutation", &Lowering::InvertPermutation},
        {"IdentityN", &Lowering::IdentityN},
        {"Reshape", &Lowering::Reshape},
        {"ExpandDims", &Lowering::ExpandDims},
        {"Squeeze", &Lowering::Squeeze},
        {"Transpose", &Lowering::Transpose},
        {"StridedSlice", &Lowering::StridedSlice},
        {"StridedSliceGrad", &Lowering::StridedSliceGrad},
        {"Slice", &Lowering::Slice},
        {"BroadcastTo", &Lowering::BroadcastTo},
        {"Tile", &Lowering::Tile},
        {"ConcatV2", &Lowering::Concat},
        {"Pack", &Lowering::Pack},
        {"Unpack", &Lowering::Unpack},
        {"Split", &Lowering::Split},
        {"SplitV", &Lowering::SplitV},
        {"GatherV2", &Lowering::Gather},
        {"OneHot", &Lowering::OneHot},
        {"MatMul", &Lowering::MatMul},
        {"BatchMatMul", &Lowering::MatMul},
        {"BatchMatMulV2", &Lowering::MatMul},
        {"BatchMatMulV3", &Lowering::MatMul},
        {"Einsum", &Lowering::Einsum},
        {"Roll", &Lowering::Roll},
        {"ReverseV2", &Lowering::Reverse},
        {"Pad", &Lowering::Pad},
        {"PadV2", &Lowering::Pad},
        {"Softmax", &Lowering::Softmax},
        {"LogSoftmax", &Lowering::Softmax},
        {"SoftmaxCrossEntropyWithLogits", &Lowering::SoftmaxCrossEntropy},
        {"Fill", &Lowering::Fill},
        {"ZerosLike", &Lowering::ZerosLike},
        {"OnesLike", &Lowering::OnesLike},
        {"BroadcastGradientArgs", &Lowering::BroadcastGradientArgs},
    };
    for (const auto& [name, operation] : ElementwiseOperations()) {
      (*all)[name] = &Lowering::Elementwise;
    }
    for (const char* const name : {"FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod"}) {
      (*all)[name] = &Lowering::Division;
    }
    for (const auto& [name, formula] : Formulas()) (*all)[name] = &Lowering::Composed;
    for (const auto& [name, operation] : Reductions()) (*all)[name] = &Lowering::Reduction;
    return all;
  }();
  return rules;
}

bool MayBeLowered(const NodeDef& node) { return Lowering::Rules().count(node.op()) > 0; }

const char* TfTiLoweredOperations() {
  static const auto& names = *[] {
    auto* const all = new std::string;
    for (const auto& [name, rule] : Lowering::Rules()) absl::StrAppend(all, name, " ");
    return all;
  }();
  return names.c_str();
}

const char* TfTiLoweredTypes() {
  static const auto& names = *[] {
    auto* const all = new std::string;
    for (int i = 0; i < kNumElementTypes; ++i) {
      const DataType dtype = DataTypeOf(static_cast<ElementType>(i));
      absl::StrAppend(all, tensorflow::DataTypeString(dtype), " ");
    }
    return all;
  }();
  return names.c_str();
}

int64_t TfTiMostElements() { return kMostElements; }

bool IsView(const NodeDef& node) {
  const std::optional<OperationKind> kind = KindOf(node.op());
  return kind == OperationKind::kPassing || kind == OperationKind::kView ||
         kind == OperationKind::kShape || kind == OperationKind::kShapeArithmetic ||
         kind == OperationKind::kFilled;
}

std::optional<View> Lowering::ViewOf(const Lowered& value) {
  if (value.view.block >= 0) return value.view;
  if (!value.known.has_value()) return std::nullopt;
  const std::optional<ElementType> type = ElementTypeOf(value.known->dtype());
  if (!type.has_value() || value.known->NumElements() > kMostElements) return std::nullopt;
  const auto dims = value.known->shape().dim_sizes();
  return builder_->AddConstant(*type, Dims(dims.begin(), dims.end()), value.known->data());
}

bool Lowering::Evaluate(const NodeDef& node, Rule rule, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  const auto are_few = [](const Lowered& value) {
    return value.known.has_value() && tensorflow::DataTypeIsInteger(value.known->dtype()) &&
           value.known->NumElements() <= kMostKnown;
  };
  if (inputs.empty() || !std::all_of(inputs.begin(), inputs.end(), are_few)) return false;
  ProgramBuilder builder;
  Lowering lowering(&builder);
  outputs->clear();
  if (!(lowering.*rule)(node, inputs, outputs)) return false;
  std::vector<Tensor*> results;
  for (Lowered& output : *outputs) {
    if (output.known.has_value()) continue;
    const View view = output.view;
    if (view.block < 0 || IsReal(view.type) || view.type == ElementType::kBool) return false;
    if (view.count() > kMostKnown) return false;
    builder.AddOutput(view);
    output = {View(), Tensor(DataTypeOf(view.type), TensorShape(view.dims))};
    results.push_back(&*output.known);
  }
  const Program program(builder);
  ProgramRun run(program);
  for (size_t i = 0; i < results.size(); ++i) {
    run.SetOutput(static_cast<int>(i), results[i]->data());
  }
  run.RunPrologue();
  run.Run();
  return true;
}

bool Lowering::FailsWhere(const View& bools) {
  if (bools.block < 0) return false;
  const View one = bools.Reshape({});
  failure_ = failure_.has_value() ? builder_->Apply(Operation::kLogicalOr, {*failure_, one}) : one;
  return true;
}

bool Lowering::Lower(const NodeDef& node, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  const auto rule = Rules().find(node.op());
  if (rule == Rules().end()) return false;
  if (Evaluate(node, rule->second, inputs, outputs)) return true;
  outputs->clear();
  if (!(this->*rule->second)(node, inputs, outputs)) return false;
  if (builder_->most_instructions() > kMostParts) return false;
  return std::all_of(outputs->begin(), outputs->end(), [](const Lowered& output) {
    return output.known.has_value() ||
           (output.view.block >= 0 && output.view.count() <= kMostElements &&
            output.view.rank() <= kMostDims && InstructionsOfCopy(output.view) <= kMostParts);
  });
}

}  // namespace tf_ti
