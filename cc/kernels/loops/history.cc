#include "cc/kernels/loops/history.h"

#include <algorithm>

#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/loops/tensors.h"
#include "cc/spec/shapes.h"
#include "cc/status.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace tf_ti {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TypeIndex;  // the registration macros say TypeIndex
using tensorflow::Variant;
namespace variant_op_registry_fn_registration = tensorflow::variant_op_registry_fn_registration;

// Saved models have this name.
const char History::kTypeName[] = "tf_ti::Sequence";

int64_t HistoryBlock::RowElements(tensorflow::DataType dtype, const TensorShape& shape) {
  const int64_t step = EIGEN_MAX_ALIGN_BYTES / tensorflow::DataTypeSize(dtype);
  return (shape.num_elements() + step - 1) / step * step;
}

const char* HistoryBlock::Row(int64_t k) const {
  return Elements<char>(rows_) + k * rows_.dim_size(1) * tensorflow::DataTypeSize(rows_.dtype());
}

Tensor HistoryBlock::TensorAt(int64_t k) const {
  Tensor tensor;
  const Tensor row = rows_.SubSlice(k).Slice(0, shape_.num_elements());
  TF_CHECK_OK(tensor.CopyFrom(row, shape_) ? absl::OkStatus() : absl::InternalError("no row"));
  return tensor;
}

const std::vector<Tensor>& History::tensors() const {
  const HistoryBlock& block = values_->block;
  if (block.end() == 0) return values_->tensors;
  // Other readers may read values_->tensors at the same time.
  std::call_once(values_->once, [&] {
    std::vector<Tensor> all = values_->tensors;
    all.resize(size());
    for (int64_t k = block.begin(); k < block.end(); ++k) all[k] = block.TensorAt(k);
    values_->all = std::move(all);
  });
  return values_->all;
}

Tensor History::TensorAt(int64_t k) const {
  return values_->block.Has(k) ? values_->block.TensorAt(k) : values_->tensors[k];
}

const char* History::Find(int64_t k, tensorflow::DataType dtype, const TensorShape& shape) const {
  const HistoryBlock& block = values_->block;
  if (block.Has(k)) {
    return block.dtype() == dtype && block.shape() == shape ? block.Row(k) : nullptr;
  }
  const Tensor& tensor = values_->tensors[k];
  return tensor.dtype() == dtype && tensor.shape() == shape ? Elements<char>(tensor) : nullptr;
}

std::string History::DebugString() const {
  return absl::StrCat(kTypeName, " of ", size(), " tensors");
}

void History::Encode(tensorflow::VariantTensorData* data) const {
  data->set_type_name(TypeName());
  for (const Tensor& tensor : tensors()) *data->add_tensors() = tensor;
}

bool History::Decode(const tensorflow::VariantTensorData& data) {
  *this = History(data.tensors());
  return true;
}

namespace {

// Not DebugString, which reads the elements: they may lie on a GPU.
std::string TypeAndShape(const Tensor& tensor) {
  return absl::StrCat(tensorflow::DataTypeString(tensor.dtype()), " of shape ",
                      tensor.shape().DebugString());
}

}  // namespace

absl::Status GetHistory(const Tensor& tensor, const std::string& what, const History** history) {
  *history = nullptr;
  if (tensor.dtype() == tensorflow::DT_VARIANT && tensor.dims() == 0) {
    *history = tensor.scalar<Variant>()().get<History>();
  }
  if (*history == nullptr) {
    return InvalidArgument(
        what, " must be a scalar variant that holds a ", History::kTypeName, ", got ",
        tensor.dtype() == tensorflow::DT_VARIANT && tensor.dims() == 0 ? "another variant"
                                                                       : TypeAndShape(tensor));
  }
  return absl::OkStatus();
}

namespace {

Tensor VariantTensor(Variant value) {
  Tensor tensor = HostTensor(tensorflow::DT_VARIANT, TensorShape({}));
  tensor.scalar<Variant>()() = std::move(value);
  return tensor;
}

}  // namespace

Tensor HistoryTensor(History history) { return VariantTensor(std::move(history)); }

namespace {

// Elements that are histories of inner loops, or lists, have zeros and sums of their own. (The
// functions of TensorFlow that find them need a symbol that only its builds for GPUs have.)
const char* DeviceOf(OpKernelContext* ctx) {
  return OnGpu(ctx) ? tensorflow::DEVICE_GPU : tensorflow::DEVICE_CPU;
}

absl::Status ZerosLikeVariants(OpKernelContext* ctx, const Tensor& x, Tensor* y) {
  *y = HostTensor(tensorflow::DT_VARIANT, x.shape());
  for (int64_t i = 0; i < x.NumElements(); ++i) {
    const Variant& value = x.flat<Variant>()(i);
    const auto* const zeros_like = tensorflow::UnaryVariantOpRegistry::Global()->GetUnaryOpFn(
        tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, DeviceOf(ctx), value.TypeId());
    if (zeros_like == nullptr) return absl::InternalError("no zeros of " + value.TypeName());
    TF_RETURN_IF_ERROR((*zeros_like)(ctx, value, &y->flat<Variant>()(i)));
  }
  return absl::OkStatus();
}

absl::Status AddVariants(OpKernelContext* ctx, const Tensor& x, const Tensor& y, Tensor* sum) {
  *sum = HostTensor(tensorflow::DT_VARIANT, x.shape());
  for (int64_t i = 0; i < x.NumElements(); ++i) {
    const Variant& a = x.flat<Variant>()(i);
    const Variant& b = y.flat<Variant>()(i);
    const auto* const add = tensorflow::UnaryVariantOpRegistry::Global()->GetBinaryOpFn(
        tensorflow::ADD_VARIANT_BINARY_OP, DeviceOf(ctx), a.TypeId());
    if (add == nullptr || a.TypeId() != b.TypeId()) {
      return absl::InternalError("no sum of " + a.TypeName() + " and " + b.TypeName());
    }
    TF_RETURN_IF_ERROR((*add)(ctx, a, b, &sum->flat<Variant>()(i)));
  }
  return absl::OkStatus();
}

absl::Status MakeZerosLike(OpKernelContext* ctx, const History& x, History* y) {
  std::vector<Tensor> zeros(x.tensors().size());
  for (size_t i = 0; i < zeros.size(); ++i) {
    const Tensor& like = x.tensors()[i];
    if (like.dtype() == tensorflow::DT_VARIANT) {
      TF_RETURN_IF_ERROR(ZerosLikeVariants(ctx, like, &zeros[i]));
      continue;
    }
    TF_RETURN_IF_ERROR(Allocate(ctx, like.dtype(), like.shape(), &zeros[i]));
    TF_RETURN_IF_ERROR(FillZeros(ctx, &zeros[i]));
  }
  *y = History(std::move(zeros));
  return absl::OkStatus();
}

absl::Status Add(OpKernelContext* ctx, const History& a, const History& b, History* out) {
  if (a.tensors().size() != b.tensors().size()) {
    return InvalidArgument("cannot add a sequence of ", a.tensors().size(), " tensors and one of ",
                           b.tensors().size());
  }
  std::vector<Tensor> sums(a.tensors().size());
  for (size_t i = 0; i < sums.size(); ++i) {
    const Tensor& x = a.tensors()[i];
    const Tensor& y = b.tensors()[i];
    if (x.dtype() != y.dtype() || x.shape() != y.shape()) {
      return InvalidArgument("cannot add elements ", i, " of two sequences: ", TypeAndShape(x),
                             " and ", TypeAndShape(y));
    }
    if (x.dtype() == tensorflow::DT_VARIANT) {
      TF_RETURN_IF_ERROR(AddVariants(ctx, x, y, &sums[i]));
      continue;
    }
    Tensor sum;
    TF_RETURN_IF_ERROR(Allocate(ctx, SumType(x.dtype()), x.shape(), &sum));
    TF_RETURN_IF_ERROR(FillZeros(ctx, &sum));
    TF_RETURN_IF_ERROR(AddToSum(ctx, x, &sum));
    TF_RETURN_IF_ERROR(AddToSum(ctx, y, &sum));
    TF_RETURN_IF_ERROR(RoundSum(ctx, sum, x.dtype(), &sums[i]));
  }
  *out = History(std::move(sums));
  return absl::OkStatus();
}

// The functions that kernels of TensorFlow call.
absl::Status ZerosLikeHistory(OpKernelContext* ctx, const History& x, History* y) {
  return CatchOutOfMemory(ctx->op_kernel().type_string(), [&] { return MakeZerosLike(ctx, x, y); });
}
absl::Status AddHistories(OpKernelContext* ctx, const History& a, const History& b, History* out) {
  return CatchOutOfMemory(ctx->op_kernel().type_string(), [&] { return Add(ctx, a, b, out); });
}

REGISTER_UNARY_VARIANT_DECODE_FUNCTION(History, History::kTypeName);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_CPU, History, ZerosLikeHistory);
REGISTER_UNARY_VARIANT_BINARY_OP_FUNCTION(tensorflow::ADD_VARIANT_BINARY_OP, tensorflow::DEVICE_CPU,
                                          History, AddHistories);

#if GOOGLE_CUDA
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_GPU, History, ZerosLikeHistory);
REGISTER_UNARY_VARIANT_BINARY_OP_FUNCTION(tensorflow::ADD_VARIANT_BINARY_OP, tensorflow::DEVICE_GPU,
                                          History, AddHistories);

// A copy of a history on another device. What lives on the host is shared.
absl::Status CopyHistory(const History& from, History* to,
                         const tensorflow::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn& copy) {
  return CatchOutOfMemory("a copy to another device", [&] {
    std::vector<Tensor> tensors = from.tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (LivesOnHost(tensors[i].dtype())) continue;
      tensors[i] = Tensor(tensors[i].dtype());
      TF_RETURN_IF_ERROR(copy(from.tensors()[i], &tensors[i]));
    }
    *to = History(std::move(tensors));
    return absl::OkStatus();
  });
}

#define TF_TI_REGISTER_COPY(direction)                  \
  INTERNAL_REGISTER_UNARY_VARIANT_DEVICE_COPY_FUNCTION( \
      History, tensorflow::VariantDeviceCopyDirection::direction, CopyHistory)
TF_TI_REGISTER_COPY(HOST_TO_DEVICE);
TF_TI_REGISTER_COPY(DEVICE_TO_HOST);
TF_TI_REGISTER_COPY(DEVICE_TO_DEVICE);
#endif

// Splits a tensor along an axis into pieces that have the extents of a history's elements.
class HistorySplitOp : public SafeKernel {
 public:
  explicit HistorySplitOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& tensor = ctx->input(0);
    const History* like;
    TF_RETURN_IF_ERROR(GetHistory(ctx->input(1), "SequenceSplit: like", &like));
    int64_t axis;
    TF_RETURN_IF_ERROR(ResolveAxis("tensor", axis_, "a tensor", tensor.dims(), &axis));
    PieceReader reader;
    TF_RETURN_IF_ERROR(reader.Init(tensor, axis, /*remove_axis=*/false));
    const int64_t count = like->tensors().size();
    std::vector<Tensor> pieces(count);
    int64_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = reverse_ ? count - 1 - i : i;
      const Tensor& element = like->tensors()[k];
      if (element.dims() != tensor.dims()) {
        return InvalidArgument("SequenceSplit: element ", k, " has shape ",
                               element.shape().DebugString(), ", the tensor ",
                               tensor.shape().DebugString());
      }
      const int64_t size = element.dim_size(axis);
      if (size > tensor.dim_size(axis) - at) {
        return InvalidArgument("SequenceSplit: the elements are longer than the tensor's ",
                               tensor.dim_size(axis), " along axis ", axis);
      }
      TF_RETURN_IF_ERROR(reader.Read(ctx, at, size, &pieces[k]));
      at += size;
    }
    if (at != tensor.dim_size(axis)) {
      return InvalidArgument("SequenceSplit: the elements cover ", at, " of ",
                             tensor.dim_size(axis), " along axis ", axis);
    }
    ctx->set_output(0, HistoryTensor(History(std::move(pieces))));
    return absl::OkStatus();
  }

  int64_t axis_;
  bool reverse_;
};

// Concatenates the elements of a history; the inverse of HistorySplit.
class HistoryConcatOp : public SafeKernel {
 public:
  explicit HistoryConcatOp(OpKernelConstruction* ctx) : SafeKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("element_shape", &element_shape_));
  }

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const History* history;
    TF_RETURN_IF_ERROR(GetHistory(ctx->input(0), "SequenceConcat: sequence", &history));
    std::vector<Tensor> pieces = history->tensors();
    for (const Tensor& piece : pieces) {
      if (piece.dtype() != dtype_) {
        return InvalidArgument("SequenceConcat: expected elements of type ",
                               tensorflow::DataTypeString(dtype_), ", got ", TypeAndShape(piece));
      }
    }
    if (reverse_) std::reverse(pieces.begin(), pieces.end());
    Tensor out;
    TF_RETURN_IF_ERROR(ConcatPieces(ctx, pieces, dtype_, element_shape_, axis_, &out));
    ctx->set_output(0, out);
    return absl::OkStatus();
  }

  int64_t axis_;
  bool reverse_;
  tensorflow::DataType dtype_;
  tensorflow::PartialTensorShape element_shape_;
};

// Takes element `at` of each stack of the history that the scalar variant `tensor` holds. Its
// elements may be such histories, too.
absl::Status TakeLane(OpKernelContext* ctx, const Tensor& tensor, int64_t at, int64_t count,
                      Tensor* lane) {
  const History* history;
  TF_RETURN_IF_ERROR(GetHistory(tensor, "SequenceUnstack: sequence", &history));
  std::vector<Tensor> elements(history->tensors().size());
  for (size_t k = 0; k < elements.size(); ++k) {
    const Tensor& stack = history->tensors()[k];
    if (stack.dtype() == tensorflow::DT_VARIANT && stack.dims() == 0) {
      TF_RETURN_IF_ERROR(TakeLane(ctx, stack, at, count, &elements[k]));
      continue;
    }
    if (stack.dims() == 0 || stack.dim_size(0) != count) {
      return InvalidArgument("SequenceUnstack: element ", k, " has shape ",
                             stack.shape().DebugString(), ", expected a stack of ", count);
    }
    PieceReader reader;
    TF_RETURN_IF_ERROR(reader.Init(stack, /*axis=*/0, /*remove_axis=*/true));
    TF_RETURN_IF_ERROR(reader.Read(ctx, at, 1, &elements[k]));
  }
  *lane = HistoryTensor(History(std::move(elements)));
  return absl::OkStatus();
}

class HistoryUnstackOp : public SafeKernel {
 public:
  using SafeKernel::SafeKernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& count = ctx->input(1);
    TF_RETURN_IF_ERROR(CheckScalar("SequenceUnstack: count", count.shape()));
    const int64_t size = count.scalar<int32_t>()();
    if (size < 0) {
      return InvalidArgument("SequenceUnstack: count must not be negative, got ", size);
    }
    Tensor lanes = HostTensor(tensorflow::DT_VARIANT, TensorShape({size}));
    for (int64_t i = 0; i < size; ++i) {
      Tensor lane;
      TF_RETURN_IF_ERROR(TakeLane(ctx, ctx->input(0), i, size, &lane));
      lanes.vec<Variant>()(i) = lane.scalar<Variant>()();
    }
    ctx->set_output(0, lanes);
    return absl::OkStatus();
  }
};

// Stacks tensors, or the elements of histories.
absl::Status StackLanes(OpKernelContext* ctx, const std::vector<Tensor>& lanes, Tensor* stack) {
  const Tensor& first = lanes[0];
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].dtype() != first.dtype() || lanes[i].shape() != first.shape()) {
      return InvalidArgument("SequenceStack: sequences 0 and ", i, " hold ", TypeAndShape(first),
                             " and ", TypeAndShape(lanes[i]));
    }
  }
  if (first.dtype() != tensorflow::DT_VARIANT || first.dims() > 0) {
    TensorShape shape = first.shape();
    shape.InsertDim(0, lanes.size());
    TF_RETURN_IF_ERROR(Allocate(ctx, first.dtype(), shape, stack));
    for (size_t i = 0; i < lanes.size(); ++i) {
      TensorShape piece = first.shape();
      piece.InsertDim(0, 1);
      Tensor element;
      if (!element.CopyFrom(lanes[i], piece)) {
        return InvalidArgument("SequenceStack: no stack of ", TypeAndShape(lanes[i]));
      }
      TF_RETURN_IF_ERROR(PlacePiece(ctx, element, /*axis=*/0, i, stack));
    }
    return absl::OkStatus();
  }
  std::vector<const History*> histories(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    TF_RETURN_IF_ERROR(GetHistory(lanes[i], "SequenceStack: an element", &histories[i]));
    if (histories[i]->tensors().size() != histories[0]->tensors().size()) {
      return InvalidArgument("SequenceStack: sequences 0 and ", i, " have ",
                             histories[0]->tensors().size(), " and ",
                             histories[i]->tensors().size(), " elements");
    }
  }
  std::vector<Tensor> elements(histories[0]->tensors().size());
  for (size_t k = 0; k < elements.size(); ++k) {
    std::vector<Tensor> parts;
    for (const History* history : histories) parts.push_back(history->tensors()[k]);
    TF_RETURN_IF_ERROR(StackLanes(ctx, parts, &elements[k]));
  }
  *stack = HistoryTensor(History(std::move(elements)));
  return absl::OkStatus();
}

class HistoryStackOp : public SafeKernel {
 public:
  using SafeKernel::SafeKernel;

 private:
  absl::Status Run(OpKernelContext* ctx) override {
    const Tensor& histories = ctx->input(0);
    if (histories.dims() != 1) {
      return InvalidArgument("SequenceStack: sequences must be a vector, got shape ",
                             histories.shape().DebugString());
    }
    std::vector<Tensor> lanes;
    for (int64_t i = 0; i < histories.dim_size(0); ++i) {
      lanes.push_back(VariantTensor(histories.vec<Variant>()(i)));
    }
    Tensor stack = HistoryTensor(History());
    if (!lanes.empty()) TF_RETURN_IF_ERROR(StackLanes(ctx, lanes, &stack));
    ctx->set_output(0, stack);
    return absl::OkStatus();
  }
};

TF_TI_REGISTER_KERNEL(Name("TfTi>SequenceSplit").Device(tensorflow::DEVICE_CPU), HistorySplitOp);
TF_TI_REGISTER_KERNEL(Name("TfTi>SequenceConcat").Device(tensorflow::DEVICE_CPU), HistoryConcatOp);
TF_TI_REGISTER_KERNEL(Name("TfTi>SequenceUnstack").Device(tensorflow::DEVICE_CPU),
                      HistoryUnstackOp);
TF_TI_REGISTER_KERNEL(Name("TfTi>SequenceStack").Device(tensorflow::DEVICE_CPU), HistoryStackOp);

#if GOOGLE_CUDA
TF_TI_REGISTER_KERNEL(
    Name("TfTi>SequenceUnstack").Device(tensorflow::DEVICE_GPU).HostMemory("count"),
    HistoryUnstackOp);
TF_TI_REGISTER_KERNEL(Name("TfTi>SequenceStack").Device(tensorflow::DEVICE_GPU), HistoryStackOp);
// The types whose values do not live on the host.
#define TF_TI_REGISTER_GPU(T)                                                                \
  TF_TI_REGISTER_KERNEL(                                                                     \
      Name("TfTi>SequenceSplit").Device(tensorflow::DEVICE_GPU).TypeConstraint<T>("T"),      \
      HistorySplitOp);                                                                       \
  TF_TI_REGISTER_KERNEL(                                                                     \
      Name("TfTi>SequenceConcat").Device(tensorflow::DEVICE_GPU).TypeConstraint<T>("dtype"), \
      HistoryConcatOp);
TF_CALL_NUMBER_TYPES_NO_INT32(TF_TI_REGISTER_GPU)
TF_CALL_bool(TF_TI_REGISTER_GPU)
#endif

}  // namespace
}  // namespace tf_ti
