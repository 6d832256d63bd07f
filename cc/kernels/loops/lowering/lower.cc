#include "cc/kernels/loops/lowering/lower.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "tensorflow/core/util/bcast.h"
#include "tensorflow/core/util/strided_slice_op.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

// TensorFlow computes larger arrays on several threads.
constexpr int64_t kMostElements = 1 << 15;
constexpr int kMostDims = 8;
// Of larger products TensorFlow's kernels, and packed matrices, take less time.
constexpr int64_t kMostProducts = 1 << 15;

const absl::flat_hash_map<std::string, Operation>& ElementwiseOperations() {
  static const auto& operations = *new absl::flat_hash_map<std::string, Operation>{
      {"Neg", Operation::kNeg},
      {"Abs", Operation::kAbs},
      {"Sign", Operation::kSign},
      {"Square", Operation::kSquare},
      {"Sqrt", Operation::kSqrt},
      {"Rsqrt", Operation::kRsqrt},
      {"Reciprocal", Operation::kReciprocal},
      {"Inv", Operation::kReciprocal},
      {"Exp", Operation::kExp},
      {"Log", Operation::kLog},
      {"Tanh", Operation::kTanh},
      {"Sigmoid", Operation::kSigmoid},
      {"Floor", Operation::kFloor},
      {"Ceil", Operation::kCeil},
      {"Rint", Operation::kRint},
      {"Round", Operation::kRint},
      {"Relu", Operation::kRelu},
      {"IsNan", Operation::kIsNan},
      {"IsInf", Operation::kIsInf},
      {"IsFinite", Operation::kIsFinite},
      {"LogicalNot", Operation::kLogicalNot},
      {"Add", Operation::kAdd},
      {"AddV2", Operation::kAdd},
      {"Sub", Operation::kSub},
      {"Mul", Operation::kMul},
      {"RealDiv", Operation::kDiv},
      {"Div", Operation::kDiv},
      {"Maximum", Operation::kMaximum},
      {"Minimum", Operation::kMinimum},
      {"SquaredDifference", Operation::kSquaredDifference},
      {"Equal", Operation::kEqual},
      {"NotEqual", Operation::kNotEqual},
      {"Less", Operation::kLess},
      {"LessEqual", Operation::kLessEqual},
      {"Greater", Operation::kGreater},
      {"GreaterEqual", Operation::kGreaterEqual},
      {"LogicalAnd", Operation::kLogicalAnd},
      {"LogicalOr", Operation::kLogicalOr},
      {"SelectV2", Operation::kSelect},
      {"SigmoidGrad", Operation::kSigmoidGrad},
      {"TanhGrad", Operation::kTanhGrad},
      {"SqrtGrad", Operation::kSqrtGrad},
      {"RsqrtGrad", Operation::kRsqrtGrad},
      {"ReciprocalGrad", Operation::kReciprocalGrad},
      {"InvGrad", Operation::kReciprocalGrad},
      {"ReluGrad", Operation::kReluGrad},
  };
  return operations;
}

const absl::flat_hash_map<std::string, Operation>& Reductions() {
  static const auto& operations = *new absl::flat_hash_map<std::string, Operation>{
      {"Sum", Operation::kSum}, {"Mean", Operation::kSum}, {"Prod", Operation::kProd},
      {"Max", Operation::kMax}, {"Min", Operation::kMin},  {"All", Operation::kAll},
      {"Any", Operation::kAny}};
  return operations;
}

// The integers of a tensor whose elements are known.
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

// The dimension that an axis names, or -1.
int DimOf(int64_t axis, int rank) {
  const int64_t dim = axis < 0 ? axis + rank : axis;
  return dim >= 0 && dim < rank ? static_cast<int>(dim) : -1;
}

Tensor ToTensor(const Dims& integers, DataType dtype) {
  Tensor tensor(dtype, TensorShape({static_cast<int64_t>(integers.size())}));
  for (size_t i = 0; i < integers.size(); ++i) {
    if (dtype == tensorflow::DT_INT32) {
      tensor.flat<int32_t>()(i) = static_cast<int32_t>(integers[i]);
    } else {
      tensor.flat<int64_t>()(i) = integers[i];
    }
  }
  return tensor;
}

template <typename T>
T Attribute(const NodeDef& node, const char* name, T value) {
  tensorflow::TryGetNodeAttr(node, name, &value);
  return value;
}

}  // namespace

std::optional<ElementType> ElementTypeOf(DataType dtype) {
  switch (dtype) {
    case tensorflow::DT_FLOAT:
      return ElementType::kFloat;
    case tensorflow::DT_DOUBLE:
      return ElementType::kDouble;
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
  constexpr DataType kTypes[kNumElementTypes] = {tensorflow::DT_FLOAT, tensorflow::DT_DOUBLE,
                                                 tensorflow::DT_INT32, tensorflow::DT_INT64,
                                                 tensorflow::DT_BOOL};
  return kTypes[static_cast<int>(type)];
}

const std::unordered_map<std::string, Lowering::Rule>& Lowering::Rules() {
  static const auto& rules = *[] {
    auto* const all = new std::unordered_map<std::string, Rule>{
        {"AddN", &Lowering::AddN},
        {"Cast", &Lowering::Cast},
        {"Select", &Lowering::SelectV1},
        {"ArgMax", &Lowering::IndexOfExtreme},
        {"ArgMin", &Lowering::IndexOfExtreme},
        {"Shape", &Lowering::ShapeOf},
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
        {"MatMul", &Lowering::MatMul},
        {"BatchMatMul", &Lowering::MatMul},
        {"BatchMatMulV2", &Lowering::MatMul},
        {"Roll", &Lowering::Roll},
        {"ReverseV2", &Lowering::Reverse},
        {"Pad", &Lowering::Pad},
        {"PadV2", &Lowering::Pad},
        {"Softmax", &Lowering::Softmax},
        {"LogSoftmax", &Lowering::Softmax},
        {"Fill", &Lowering::Fill},
        {"ZerosLike", &Lowering::ZerosLike},
        {"OnesLike", &Lowering::OnesLike},
        {"BroadcastGradientArgs", &Lowering::BroadcastGradientArgs},
    };
    for (const auto& [name, operation] : ElementwiseOperations()) {
      (*all)[name] = &Lowering::Elementwise;
    }
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

bool IsView(const NodeDef& node) {
  static const auto& views = *new std::unordered_map<std::string, int>{
      {"Shape", 0},        {"Reshape", 0},     {"ExpandDims", 0},
      {"Squeeze", 0},      {"Transpose", 0},   {"Slice", 0},
      {"StridedSlice", 0}, {"BroadcastTo", 0}, {"Unpack", 0},
      {"Split", 0},        {"Fill", 0},        {"ZerosLike", 0},
      {"OnesLike", 0},     {"Tile", 0},        {"BroadcastGradientArgs", 0}};
  return views.count(node.op()) > 0;
}

std::optional<View> Lowering::ViewOf(const Lowered& value) {
  if (value.view.block >= 0) return value.view;
  if (!value.known.has_value()) return std::nullopt;
  const std::optional<ElementType> type = ElementTypeOf(value.known->dtype());
  if (!type.has_value() || value.known->NumElements() > kMostElements) return std::nullopt;
  const auto dims = value.known->shape().dim_sizes();
  return builder_->AddConstant(*type, Dims(dims.begin(), dims.end()), value.known->data());
}

bool Lowering::Lower(const NodeDef& node, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  const auto rule = Rules().find(node.op());
  if (rule == Rules().end()) return false;
  outputs->clear();
  if (!(this->*rule->second)(node, inputs, outputs)) return false;
  return std::all_of(outputs->begin(), outputs->end(), [](const Lowered& output) {
    return output.known.has_value() ||
           (output.view.block >= 0 && output.view.count() <= kMostElements &&
            output.view.rank() <= kMostDims);
  });
}

bool Lowering::Elementwise(const NodeDef& node, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  // Otherwise shapes that do not fit are not errors, but not equal.
  if (!Attribute(node, "incompatible_shape_error", true)) return false;
  std::vector<View> operands;
  Dims dims;
  for (const Lowered& input : inputs) {
    const std::optional<View> view = ViewOf(input);
    if (!view.has_value() || !BroadcastDims(dims, view->dims, &dims)) return false;
    operands.push_back(*view);
  }
  if (CountOf(dims) > kMostElements) return false;
  outputs->push_back({builder_->Apply(ElementwiseOperations().at(node.op()), operands), {}});
  return true;
}

// From the first to the last.
bool Lowering::AddN(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  std::optional<View> sum = ViewOf(inputs[0]);
  if (!sum.has_value()) return false;
  for (size_t i = 1; i < inputs.size(); ++i) {
    const std::optional<View> view = ViewOf(inputs[i]);
    if (!view.has_value() || view->dims != sum->dims || sum->count() > kMostElements) return false;
    sum = builder_->Apply(Operation::kAdd, {*sum, *view});
    if (sum->block < 0) return false;
  }
  outputs->push_back({*sum, {}});
  return true;
}

bool Lowering::Cast(const NodeDef& node, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const auto to = ElementTypeOf(Attribute(node, "DstT", tensorflow::DT_INVALID));
  if (!view.has_value() || !to.has_value() || Attribute(node, "Truncate", false)) return false;
  if (view->count() > kMostElements) return false;
  // What TensorFlow makes of floats that no integer is depends on how it was compiled.
  if (view->type <= ElementType::kDouble && *to >= ElementType::kInt32 &&
      *to != ElementType::kBool) {
    return false;
  }
  outputs->push_back({builder_->Cast(*view, *to), {}});
  return true;
}

// Its condition may be a vector, of the rows.
bool Lowering::SelectV1(const NodeDef&, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  std::optional<View> condition = ViewOf(inputs[0]), x = ViewOf(inputs[1]), y = ViewOf(inputs[2]);
  if (!condition.has_value() || !x.has_value() || !y.has_value()) return false;
  if (x->dims != y->dims || x->count() > kMostElements) return false;
  if (condition->dims != x->dims && condition->rank() > 0) {
    if (condition->rank() != 1 || x->rank() == 0 || condition->dims[0] != x->dims[0]) return false;
    while (condition->rank() < x->rank()) condition = condition->WithDim(condition->rank());
  }
  outputs->push_back({builder_->Apply(Operation::kSelect, {*condition, *x, *y}), {}});
  return true;
}

bool Lowering::Reduction(const NodeDef& node, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const std::optional<View> input = ViewOf(inputs[0]);
  const std::optional<Dims> axes = Integers(inputs[1]);
  if (!input.has_value() || !axes.has_value() || input->count() > kMostElements) return false;
  std::vector<bool> is_reduced(input->rank(), false);
  for (const int64_t axis : *axes) {
    const int dim = DimOf(axis, input->rank());
    if (dim < 0 || is_reduced[dim]) return false;
    is_reduced[dim] = true;
  }
  const Operation operation = Reductions().at(node.op());
  View view = *input;
  int64_t count = 1;
  for (int dim = view.rank() - 1; dim >= 0; --dim) {
    if (!is_reduced[dim]) continue;
    if (view.dims[dim] == 0) return false;
    count *= view.dims[dim];
    // Neighbours at once: their elements lie in one order.
    int first = dim;
    while (first > 0 && is_reduced[first - 1]) {
      count *= view.dims[--first];
      if (view.dims[first] == 0) return false;
    }
    const int64_t size = CountOf(Dims(view.dims.begin() + first, view.dims.begin() + dim + 1));
    if (size != 1) {
      const View whole = builder_->Contiguous(view);
      Dims merged = whole.dims;
      merged.erase(merged.begin() + first, merged.begin() + dim);
      merged[first] = size;
      Dims reduced = whole.dims;
      std::fill(reduced.begin() + first, reduced.begin() + dim + 1, 1);
      view = builder_->Reduce(operation, whole.Reshape(merged), first, view.type);
      if (view.block < 0) return false;
      view = view.Reshape(reduced);
    }
    dim = first;
  }
  if (node.op() == "Mean") {
    const std::optional<View> divisor = [&]() -> std::optional<View> {
      const float single = static_cast<float>(count);
      const double wide = static_cast<double>(count);
      if (view.type == ElementType::kFloat) return builder_->AddConstant(view.type, {}, &single);
      if (view.type == ElementType::kDouble) return builder_->AddConstant(view.type, {}, &wide);
      return std::nullopt;
    }();
    if (!divisor.has_value()) return false;
    view = builder_->Apply(Operation::kDiv, {view, *divisor});
    if (view.block < 0) return false;
  }
  if (!Attribute(node, "keep_dims", false)) {
    for (int dim = view.rank() - 1; dim >= 0; --dim) {
      if (is_reduced[dim]) view = view.WithoutDim(dim);
    }
  }
  outputs->push_back({view, {}});
  return true;
}

bool Lowering::IndexOfExtreme(const NodeDef& node, const std::vector<Lowered>& inputs,
                              std::vector<Lowered>* outputs) {
  const std::optional<View> input = ViewOf(inputs[0]);
  const std::optional<Dims> axis = Integers(inputs[1]);
  const auto to = ElementTypeOf(Attribute(node, "output_type", tensorflow::DT_INT64));
  if (!input.has_value() || !axis.has_value() || axis->size() != 1 || !to.has_value()) return false;
  const int dim = DimOf((*axis)[0], input->rank());
  if (dim < 0 || input->dims[dim] == 0 || input->count() > kMostElements) return false;
  const View view = builder_->Reduce(
      node.op() == "ArgMax" ? Operation::kArgMax : Operation::kArgMin, *input, dim, *to);
  if (view.block < 0) return false;
  outputs->push_back({view.WithoutDim(dim), {}});
  return true;
}

bool Lowering::ShapeOf(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  Dims dims = inputs[0].view.dims;
  if (inputs[0].view.block < 0) {
    const auto known = inputs[0].known->shape().dim_sizes();
    dims.assign(known.begin(), known.end());
  }
  outputs->push_back({View(), ToTensor(dims, Attribute(node, "out_type", tensorflow::DT_INT32))});
  return true;
}

bool Lowering::Reshape(const NodeDef&, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  std::optional<Dims> dims = Integers(inputs[1]);
  if (!view.has_value() || !dims.has_value()) return false;
  int64_t known = 1;
  int unknown = -1;
  for (size_t d = 0; d < dims->size(); ++d) {
    if ((*dims)[d] >= 0) {
      known *= (*dims)[d];
    } else if (unknown >= 0) {
      return false;
    } else {
      unknown = static_cast<int>(d);
    }
  }
  if (unknown >= 0) {
    if (known == 0) return false;
    (*dims)[unknown] = view->count() / known;
  }
  if (CountOf(*dims) != view->count()) return false;
  outputs->push_back({builder_->Contiguous(*view).Reshape(*dims), {}});
  return true;
}

bool Lowering::ExpandDims(const NodeDef&, const std::vector<Lowered>& inputs,
                          std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> axis = Integers(inputs[1]);
  if (!view.has_value() || !axis.has_value() || axis->size() != 1) return false;
  const int dim = DimOf((*axis)[0], view->rank() + 1);
  if (dim < 0) return false;
  outputs->push_back({view->WithDim(dim), {}});
  return true;
}

bool Lowering::Squeeze(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value()) return false;
  const auto axes = Attribute(node, "squeeze_dims", std::vector<int32_t>());
  std::vector<bool> goes(view->rank(), axes.empty());
  for (const int32_t axis : axes) {
    const int dim = DimOf(axis, view->rank());
    if (dim < 0 || view->dims[dim] != 1) return false;
    goes[dim] = true;
  }
  for (int dim = view->rank() - 1; dim >= 0; --dim) {
    if (goes[dim] && view->dims[dim] == 1) view = view->WithoutDim(dim);
  }
  outputs->push_back({*view, {}});
  return true;
}

bool Lowering::Transpose(const NodeDef&, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> order = Integers(inputs[1]);
  if (!view.has_value() || !order.has_value()) return false;
  if (static_cast<int>(order->size()) != view->rank()) return false;
  std::vector<int> dims;
  std::vector<bool> seen(view->rank(), false);
  for (const int64_t axis : *order) {
    const int dim = DimOf(axis, view->rank());
    if (dim < 0 || seen[dim]) return false;
    seen[dim] = true;
    dims.push_back(dim);
  }
  outputs->push_back({view->Transpose(dims), {}});
  return true;
}

// The part of an array that begin, end and strides name, which are inputs `first` and the next.
bool Lowering::Sliced(const NodeDef& node, const std::vector<Lowered>& inputs, int first, View view,
                      View* result) {
  for (int i = first; i < first + 3; ++i) {
    if (!inputs[i].known.has_value()) return false;
  }
  const auto mask = [&](const char* name) { return Attribute<int32_t>(node, name, 0); };
  TensorShape processing, final;
  bool is_identity, is_simple, is_of_first;
  absl::InlinedVector<int64_t, 4> begin, end, strides;
  tensorflow::StridedSliceShapeSpec spec;
  const absl::Status status = tensorflow::ValidateStridedSliceOp(
      &*inputs[first].known, &*inputs[first + 1].known, *inputs[first + 2].known,
      tensorflow::PartialTensorShape(view.dims), mask("begin_mask"), mask("end_mask"),
      mask("ellipsis_mask"), mask("new_axis_mask"), mask("shrink_axis_mask"), &processing, &final,
      &is_identity, &is_simple, &is_of_first, &begin, &end, &strides, &spec);
  if (!status.ok() || processing.dims() != view.rank()) return false;
  for (int d = 0; d < view.rank(); ++d) {
    view = view.Slice(d, begin[d], processing.dim_size(d), strides[d]);
  }
  *result = view;
  result->dims.clear();
  result->strides.clear();
  for (const int64_t d : spec.output_to_processing_mapping) {
    result->dims.push_back(d < 0 ? 1 : view.dims[d]);
    result->strides.push_back(d < 0 ? 0 : view.strides[d]);
  }
  const auto dims = final.dim_sizes();
  return Dims(dims.begin(), dims.end()) == result->dims;
}

bool Lowering::StridedSlice(const NodeDef& node, const std::vector<Lowered>& inputs,
                            std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  View result;
  if (!view.has_value() || !Sliced(node, inputs, 1, *view, &result)) return false;
  outputs->push_back({result, {}});
  return true;
}

bool Lowering::StridedSliceGrad(const NodeDef& node, const std::vector<Lowered>& inputs,
                                std::vector<Lowered>* outputs) {
  const std::optional<Dims> dims = Integers(inputs[0]);
  const std::optional<View> gradient = ViewOf(inputs[4]);
  if (!dims.has_value() || !gradient.has_value() || CountOf(*dims) > kMostElements) return false;
  const View whole = builder_->AddResult(gradient->type, *dims);
  View part;
  if (!Sliced(node, inputs, 1, whole, &part) || part.dims != gradient->dims) return false;
  if (part.count() < whole.count()) {
    const int64_t zeros = 0;
    builder_->CopyInto(builder_->AddConstant(gradient->type, {}, &zeros), whole);
  }
  builder_->CopyInto(*gradient, part);
  outputs->push_back({whole, {}});
  return true;
}

bool Lowering::Slice(const NodeDef&, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> begin = Integers(inputs[1]), size = Integers(inputs[2]);
  if (!view.has_value() || !begin.has_value() || !size.has_value()) return false;
  const size_t rank = view->rank();
  if (begin->size() != rank || size->size() != rank) return false;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t first = (*begin)[d], extent = view->dims[d];
    const int64_t count = (*size)[d] == -1 ? extent - first : (*size)[d];
    if (first < 0 || count < 0 || first > extent || count > extent - first) return false;
    view = view->Slice(static_cast<int>(d), first, count, 1);
  }
  outputs->push_back({*view, {}});
  return true;
}

bool Lowering::BroadcastTo(const NodeDef&, const std::vector<Lowered>& inputs,
                           std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> dims = Integers(inputs[1]);
  Dims both;
  if (!view.has_value() || !dims.has_value() || !BroadcastDims(view->dims, *dims, &both)) {
    return false;
  }
  if (both != *dims) return false;
  outputs->push_back({view->BroadcastTo(*dims), {}});
  return true;
}

bool Lowering::Tile(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> multiples = Integers(inputs[1]);
  if (!view.has_value() || !multiples.has_value()) return false;
  if (static_cast<int>(multiples->size()) != view->rank()) return false;
  Dims dims = view->dims;
  for (size_t d = 0; d < dims.size(); ++d) {
    if ((*multiples)[d] != 1 && dims[d] != 1) return false;
    dims[d] *= (*multiples)[d];
  }
  outputs->push_back({view->BroadcastTo(dims), {}});
  return true;
}

bool Lowering::Joined(const std::vector<View>& parts, int dim, std::vector<Lowered>* outputs) {
  Dims dims = parts[0].dims;
  dims[dim] = 0;
  for (const View& part : parts) {
    Dims others = part.dims;
    if (others.size() != dims.size() || part.type != parts[0].type) return false;
    others[dim] = dims[dim];
    if (others != dims) return false;
    dims[dim] += part.dims[dim];
  }
  if (CountOf(dims) > kMostElements) return false;
  const View whole = builder_->AddResult(parts[0].type, dims);
  int64_t at = 0;
  for (const View& part : parts) {
    builder_->CopyInto(part, whole.Slice(dim, at, part.dims[dim], 1));
    at += part.dims[dim];
  }
  outputs->push_back({whole, {}});
  return true;
}

bool Lowering::Concat(const NodeDef&, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<Dims> axis = Integers(inputs.back());
  if (!axis.has_value() || axis->size() != 1 || inputs.size() < 2) return false;
  std::vector<View> parts;
  for (size_t i = 0; i + 1 < inputs.size(); ++i) {
    const std::optional<View> view = ViewOf(inputs[i]);
    if (!view.has_value()) return false;
    parts.push_back(*view);
  }
  const int dim = DimOf((*axis)[0], parts[0].rank());
  return dim >= 0 && Joined(parts, dim, outputs);
}

bool Lowering::Pack(const NodeDef& node, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  std::vector<View> parts;
  int dim = -1;
  for (const Lowered& input : inputs) {
    const std::optional<View> view = ViewOf(input);
    if (!view.has_value()) return false;
    dim = DimOf(Attribute<int64_t>(node, "axis", 0), view->rank() + 1);
    if (dim < 0) return false;
    parts.push_back(view->WithDim(dim));
  }
  return Joined(parts, dim, outputs);
}

bool Lowering::Unpack(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value()) return false;
  const int dim = DimOf(Attribute<int64_t>(node, "axis", 0), view->rank());
  if (dim < 0 || view->dims[dim] != Attribute<int64_t>(node, "num", -1)) return false;
  for (int64_t i = 0; i < view->dims[dim]; ++i) {
    outputs->push_back({view->Slice(dim, i, 1, 1).WithoutDim(dim), {}});
  }
  return true;
}

bool Lowering::Split(const NodeDef& node, const std::vector<Lowered>& inputs,
                     std::vector<Lowered>* outputs) {
  const std::optional<Dims> axis = Integers(inputs[0]);
  const std::optional<View> view = ViewOf(inputs[1]);
  if (!view.has_value() || !axis.has_value() || axis->size() != 1) return false;
  const int dim = DimOf((*axis)[0], view->rank());
  const int64_t count = Attribute<int64_t>(node, "num_split", 0);
  if (dim < 0 || count <= 0 || view->dims[dim] % count != 0) return false;
  const int64_t size = view->dims[dim] / count;
  for (int64_t i = 0; i < count; ++i) outputs->push_back({view->Slice(dim, i * size, size, 1), {}});
  return true;
}

bool Lowering::MatMul(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  std::optional<View> left = ViewOf(inputs[0]), right = ViewOf(inputs[1]);
  if (!left.has_value() || !right.has_value()) return false;
  const bool is_batched = node.op() != "MatMul";
  if (left->rank() < 2 || left->rank() != right->rank()) return false;
  const auto turned = [](const View& view) {
    std::vector<int> order(view.rank());
    for (int d = 0; d < view.rank(); ++d) order[d] = d;
    std::swap(order[view.rank() - 1], order[view.rank() - 2]);
    return view.Transpose(order);
  };
  // The adjoint of real numbers is the transposed.
  if (Attribute(node, is_batched ? "adj_x" : "transpose_a", false)) left = turned(*left);
  if (Attribute(node, is_batched ? "adj_y" : "transpose_b", false)) right = turned(*right);
  if (left->count() * right->dims.back() > kMostProducts) return false;
  outputs->push_back({builder_->Multiply(*left, *right), {}});
  return true;
}

// Along one axis after the other, the last elements come before the first.
bool Lowering::Roll(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> shifts = Integers(inputs[1]), axes = Integers(inputs[2]);
  if (!view.has_value() || !shifts.has_value() || !axes.has_value()) return false;
  if (shifts->size() != axes->size()) return false;
  for (size_t i = 0; i < axes->size(); ++i) {
    const int dim = DimOf((*axes)[i], view->rank());
    if (dim < 0) return false;
    const int64_t extent = view->dims[dim];
    if (extent == 0) continue;
    const int64_t shift = ((*shifts)[i] % extent + extent) % extent;
    if (shift == 0) continue;
    outputs->clear();
    if (!Joined(
            {view->Slice(dim, extent - shift, shift, 1), view->Slice(dim, 0, extent - shift, 1)},
            dim, outputs)) {
      return false;
    }
    view = outputs->back().view;
  }
  *outputs = {{*view, {}}};
  return true;
}

bool Lowering::Reverse(const NodeDef&, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> axes = Integers(inputs[1]);
  if (!view.has_value() || !axes.has_value()) return false;
  for (const int64_t axis : *axes) {
    const int dim = DimOf(axis, view->rank());
    if (dim < 0) return false;
    const int64_t extent = view->dims[dim];
    if (extent > 0) view = view->Slice(dim, extent - 1, extent, -1);
  }
  outputs->push_back({*view, {}});
  return true;
}

bool Lowering::Pad(const NodeDef&, const std::vector<Lowered>& inputs,
                   std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const std::optional<Dims> sizes = Integers(inputs[1]);
  if (!view.has_value() || !sizes.has_value()) return false;
  if (static_cast<int>(sizes->size()) != 2 * view->rank()) return false;
  Dims dims = view->dims;
  for (int d = 0; d < view->rank(); ++d) {
    const int64_t before = (*sizes)[2 * d], after = (*sizes)[2 * d + 1];
    if (before < 0 || after < 0 || before > kMostElements || after > kMostElements) return false;
    dims[d] += before + after;
  }
  if (CountOf(dims) > kMostElements) return false;
  const int64_t zeros = 0;
  const std::optional<View> filling =
      inputs.size() > 2 ? ViewOf(inputs[2]) : builder_->AddConstant(view->type, {}, &zeros);
  if (!filling.has_value() || filling->rank() != 0) return false;
  const View whole = builder_->AddResult(view->type, dims);
  View inner = whole;
  for (int d = 0; d < view->rank(); ++d) {
    inner = inner.Slice(d, (*sizes)[2 * d], view->dims[d], 1);
  }
  builder_->CopyInto(*filling, whole);
  builder_->CopyInto(*view, inner);
  outputs->push_back({whole, {}});
  return true;
}

// Along the last dimension. Also its logarithm.
bool Lowering::Softmax(const NodeDef& node, const std::vector<Lowered>& inputs,
                       std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value() || view->rank() == 0 || view->count() == 0) return false;
  if (view->count() > kMostElements) return false;
  const int last = view->rank() - 1;
  const auto apply = [this](Operation operation, const std::vector<View>& operands) {
    for (const View& operand : operands) {
      if (operand.block < 0) return View();
    }
    return builder_->Apply(operation, operands);
  };
  const View most = builder_->Reduce(Operation::kMax, *view, last, view->type);
  const View shifted = apply(Operation::kSub, {*view, most});
  const View exponentials = apply(Operation::kExp, {shifted});
  if (exponentials.block < 0) return false;
  const View sum = builder_->Reduce(Operation::kSum, exponentials, last, view->type);
  const View result = node.op() == "Softmax"
                          ? apply(Operation::kDiv, {exponentials, sum})
                          : apply(Operation::kSub, {shifted, apply(Operation::kLog, {sum})});
  if (result.block < 0) return false;
  outputs->push_back({result, {}});
  return true;
}

bool Lowering::Filled(const View& element, const Dims& dims, std::vector<Lowered>* outputs) {
  if (std::any_of(dims.begin(), dims.end(), [](int64_t dim) { return dim < 0; })) return false;
  outputs->push_back({element.BroadcastTo(dims), {}});
  return true;
}

bool Lowering::Fill(const NodeDef&, const std::vector<Lowered>& inputs,
                    std::vector<Lowered>* outputs) {
  const std::optional<Dims> dims = Integers(inputs[0]);
  const std::optional<View> element = ViewOf(inputs[1]);
  if (!dims.has_value() || !element.has_value() || element->rank() != 0) return false;
  return Filled(*element, *dims, outputs);
}

bool Lowering::ZerosLike(const NodeDef&, const std::vector<Lowered>& inputs,
                         std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  const int64_t zeros = 0;
  return view.has_value() &&
         Filled(builder_->AddConstant(view->type, {}, &zeros), view->dims, outputs);
}

bool Lowering::OnesLike(const NodeDef&, const std::vector<Lowered>& inputs,
                        std::vector<Lowered>* outputs) {
  const std::optional<View> view = ViewOf(inputs[0]);
  if (!view.has_value()) return false;
  const int32_t one = 1;
  const View number = builder_->AddConstant(ElementType::kInt32, {}, &one);
  return Filled(builder_->Cast(number, view->type), view->dims, outputs);
}

bool Lowering::BroadcastGradientArgs(const NodeDef& node, const std::vector<Lowered>& inputs,
                                     std::vector<Lowered>* outputs) {
  const std::optional<Dims> x = Integers(inputs[0]), y = Integers(inputs[1]);
  if (!x.has_value() || !y.has_value()) return false;
  const tensorflow::BCast broadcast(tensorflow::BCast::Vec(x->begin(), x->end()),
                                    tensorflow::BCast::Vec(y->begin(), y->end()),
                                    /*fewer_dims_optimization=*/false,
                                    /*return_flattened_batch_indices=*/false);
  if (!broadcast.IsValid()) return false;
  const DataType dtype = Attribute(node, "T", tensorflow::DT_INT32);
  for (const auto& axes : {broadcast.grad_x_reduce_idx(), broadcast.grad_y_reduce_idx()}) {
    outputs->push_back({View(), ToTensor(Dims(axes.begin(), axes.end()), dtype)});
  }
  return true;
}

}  // namespace tf_ti
