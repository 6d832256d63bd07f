#include "cc/kernels/loops/sequence.h"

#include <algorithm>

#include "cc/kernels/gpu.h"
#include "cc/kernels/loops/tensors.h"
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

const char Sequence::kTypeName[] = "tf_ti::Sequence";

std::string Sequence::DebugString() const {
  return absl::StrCat(kTypeName, " of ", tensors_->size(), " tensors");
}

void Sequence::Encode(tensorflow::VariantTensorData* data) const {
  data->set_type_name(TypeName());
  for (const Tensor& tensor : *tensors_) *data->add_tensors() = tensor;
}

bool Sequence::Decode(const tensorflow::VariantTensorData& data) {
  tensors_ = std::make_shared<const std::vector<Tensor>>(data.tensors());
  return true;
}

absl::Status GetSequence(const Tensor& tensor, const std::string& what, const Sequence** sequence) {
  *sequence = nullptr;
  if (tensor.dtype() == tensorflow::DT_VARIANT && tensor.dims() == 0) {
    *sequence = tensor.scalar<Variant>()().get<Sequence>();
  }
  if (*sequence == nullptr) {
    return InvalidArgument(what, " must be a scalar variant that holds a ", Sequence::kTypeName,
                           ", got ", tensor.DebugString());
  }
  return absl::OkStatus();
}

Tensor SequenceTensor(Sequence sequence) {
  Tensor tensor(tensorflow::DT_VARIANT, TensorShape({}));
  tensor.scalar<Variant>()() = std::move(sequence);
  return tensor;
}

namespace {

absl::Status ZerosLikeSequence(OpKernelContext* ctx, const Sequence& x, Sequence* y) {
  std::vector<Tensor> zeros(x.tensors().size());
  for (size_t i = 0; i < zeros.size(); ++i) {
    const Tensor& like = x.tensors()[i];
    TF_RETURN_IF_ERROR(Allocate(ctx, like.dtype(), like.shape(), &zeros[i]));
    TF_RETURN_IF_ERROR(FillZeros(ctx, &zeros[i]));
  }
  *y = Sequence(std::move(zeros));
  return absl::OkStatus();
}

absl::Status AddSequences(OpKernelContext* ctx, const Sequence& a, const Sequence& b,
                          Sequence* out) {
  if (a.tensors().size() != b.tensors().size()) {
    return InvalidArgument("cannot add a sequence of ", a.tensors().size(), " tensors and one of ",
                           b.tensors().size());
  }
  std::vector<Tensor> sums(a.tensors().size());
  for (size_t i = 0; i < sums.size(); ++i) {
    const Tensor& x = a.tensors()[i];
    const Tensor& y = b.tensors()[i];
    if (x.dtype() != y.dtype() || x.shape() != y.shape()) {
      return InvalidArgument("cannot add elements ", i, " of two sequences: ", x.DebugString(),
                             " and ", y.DebugString());
    }
    Tensor sum;
    TF_RETURN_IF_ERROR(Allocate(ctx, SumType(x.dtype()), x.shape(), &sum));
    TF_RETURN_IF_ERROR(FillZeros(ctx, &sum));
    TF_RETURN_IF_ERROR(AddToSum(ctx, x, &sum));
    TF_RETURN_IF_ERROR(AddToSum(ctx, y, &sum));
    TF_RETURN_IF_ERROR(RoundSum(ctx, sum, x.dtype(), &sums[i]));
  }
  *out = Sequence(std::move(sums));
  return absl::OkStatus();
}

REGISTER_UNARY_VARIANT_DECODE_FUNCTION(Sequence, Sequence::kTypeName);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_CPU, Sequence, ZerosLikeSequence);
REGISTER_UNARY_VARIANT_BINARY_OP_FUNCTION(tensorflow::ADD_VARIANT_BINARY_OP, tensorflow::DEVICE_CPU,
                                          Sequence, AddSequences);

#if GOOGLE_CUDA
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                         tensorflow::DEVICE_GPU, Sequence, ZerosLikeSequence);
REGISTER_UNARY_VARIANT_BINARY_OP_FUNCTION(tensorflow::ADD_VARIANT_BINARY_OP, tensorflow::DEVICE_GPU,
                                          Sequence, AddSequences);

// A copy of a sequence on another device. What lives on the host is shared.
absl::Status CopySequence(const Sequence& from, Sequence* to,
                          const tensorflow::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn& copy) {
  std::vector<Tensor> tensors = from.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (LivesOnHost(tensors[i].dtype())) continue;
    tensors[i] = Tensor(tensors[i].dtype());
    TF_RETURN_IF_ERROR(copy(from.tensors()[i], &tensors[i]));
  }
  *to = Sequence(std::move(tensors));
  return absl::OkStatus();
}

#define TF_TI_REGISTER_COPY(direction)                  \
  INTERNAL_REGISTER_UNARY_VARIANT_DEVICE_COPY_FUNCTION( \
      Sequence, tensorflow::VariantDeviceCopyDirection::direction, CopySequence)
TF_TI_REGISTER_COPY(HOST_TO_DEVICE);
TF_TI_REGISTER_COPY(DEVICE_TO_HOST);
TF_TI_REGISTER_COPY(DEVICE_TO_DEVICE);
#endif

absl::Status CheckAxis(const Tensor& tensor, int64_t given, int* axis) {
  const int64_t resolved = given < 0 ? given + tensor.dims() : given;
  if (resolved < 0 || resolved >= tensor.dims()) {
    return InvalidArgument("axis ", given, " is out of range for a tensor of rank ", tensor.dims());
  }
  *axis = static_cast<int>(resolved);
  return absl::OkStatus();
}

// Splits a tensor along an axis into pieces that have the extents of a sequence's elements.
class SequenceSplitOp : public tensorflow::OpKernel {
 public:
  explicit SequenceSplitOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Tensor& tensor = ctx->input(0);
    const Sequence* like;
    OP_REQUIRES_OK(ctx, GetSequence(ctx->input(1), "SequenceSplit: like", &like));
    int axis = 0;
    OP_REQUIRES_OK(ctx, CheckAxis(tensor, axis_, &axis));
    PieceReader reader;
    OP_REQUIRES_OK(ctx, reader.Init(tensor, axis, /*remove_axis=*/false));
    const int64_t count = like->tensors().size();
    std::vector<Tensor> pieces(count);
    int64_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = reverse_ ? count - 1 - i : i;
      const Tensor& element = like->tensors()[k];
      OP_REQUIRES(ctx, element.dims() == tensor.dims(),
                  InvalidArgument("SequenceSplit: element ", k, " has shape ",
                                  element.shape().DebugString(), ", the tensor ",
                                  tensor.shape().DebugString()));
      const int64_t size = element.dim_size(axis);
      OP_REQUIRES(ctx, size <= tensor.dim_size(axis) - at,
                  InvalidArgument("SequenceSplit: the elements are longer than the tensor's ",
                                  tensor.dim_size(axis), " along axis ", axis));
      OP_REQUIRES_OK(ctx, reader.Read(ctx, at, size, &pieces[k]));
      at += size;
    }
    OP_REQUIRES(ctx, at == tensor.dim_size(axis),
                InvalidArgument("SequenceSplit: the elements cover ", at, " of ",
                                tensor.dim_size(axis), " along axis ", axis));
    ctx->set_output(0, SequenceTensor(Sequence(std::move(pieces))));
  }

 private:
  int64_t axis_;
  bool reverse_;
};

// Concatenates the elements of a sequence; the inverse of SequenceSplit.
class SequenceConcatOp : public tensorflow::OpKernel {
 public:
  explicit SequenceConcatOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("reverse", &reverse_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("element_shape", &element_shape_));
  }

  void Compute(OpKernelContext* ctx) override {
    const Sequence* sequence;
    OP_REQUIRES_OK(ctx, GetSequence(ctx->input(0), "SequenceConcat: sequence", &sequence));
    std::vector<Tensor> pieces = sequence->tensors();
    for (const Tensor& piece : pieces) {
      OP_REQUIRES(
          ctx, piece.dtype() == dtype_,
          InvalidArgument("SequenceConcat: expected elements of type ",
                          tensorflow::DataTypeString(dtype_), ", got ", piece.DebugString()));
    }
    if (reverse_) std::reverse(pieces.begin(), pieces.end());
    Tensor out;
    OP_REQUIRES_OK(ctx, ConcatPieces(ctx, pieces, dtype_, element_shape_, axis_, &out));
    ctx->set_output(0, out);
  }

 private:
  int64_t axis_;
  bool reverse_;
  tensorflow::DataType dtype_;
  tensorflow::PartialTensorShape element_shape_;
};

// What the variant scalar `tensor` holds is a sequence of stacks, or of such sequences: element
// `at` of each.
absl::Status TakeLane(OpKernelContext* ctx, const Tensor& tensor, int64_t at, int64_t count,
                      Tensor* lane) {
  const Sequence* sequence;
  TF_RETURN_IF_ERROR(GetSequence(tensor, "SequenceUnstack: sequence", &sequence));
  std::vector<Tensor> elements(sequence->tensors().size());
  for (size_t k = 0; k < elements.size(); ++k) {
    const Tensor& stack = sequence->tensors()[k];
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
  *lane = SequenceTensor(Sequence(std::move(elements)));
  return absl::OkStatus();
}

class SequenceUnstackOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& count = ctx->input(1);
    OP_REQUIRES(
        ctx, count.dims() == 0 && count.scalar<int32_t>()() >= 0,
        InvalidArgument("SequenceUnstack: count must be a scalar that is not negative, got ",
                        count.DebugString()));
    const int64_t size = count.scalar<int32_t>()();
    Tensor* lanes;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, TensorShape({size}), &lanes));
    for (int64_t i = 0; i < size; ++i) {
      Tensor lane;
      OP_REQUIRES_OK(ctx, TakeLane(ctx, ctx->input(0), i, size, &lane));
      lanes->vec<Variant>()(i) = lane.scalar<Variant>()();
    }
  }
};

// Stacks tensors, or what such sequences hold.
absl::Status StackLanes(OpKernelContext* ctx, const std::vector<Tensor>& lanes, Tensor* stack) {
  const Tensor& first = lanes[0];
  for (size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].dtype() != first.dtype() || lanes[i].shape() != first.shape()) {
      return InvalidArgument("SequenceStack: sequences 0 and ", i, " hold ", first.DebugString(),
                             " and ", lanes[i].DebugString());
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
        return InvalidArgument("SequenceStack: no stack of ", lanes[i].DebugString());
      }
      TF_RETURN_IF_ERROR(PlacePiece(ctx, element, /*axis=*/0, i, stack));
    }
    return absl::OkStatus();
  }
  std::vector<const Sequence*> sequences(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    TF_RETURN_IF_ERROR(GetSequence(lanes[i], "SequenceStack: an element", &sequences[i]));
    if (sequences[i]->tensors().size() != sequences[0]->tensors().size()) {
      return InvalidArgument("SequenceStack: sequences 0 and ", i, " have ",
                             sequences[0]->tensors().size(), " and ",
                             sequences[i]->tensors().size(), " elements");
    }
  }
  std::vector<Tensor> elements(sequences[0]->tensors().size());
  for (size_t k = 0; k < elements.size(); ++k) {
    std::vector<Tensor> parts;
    for (const Sequence* sequence : sequences) parts.push_back(sequence->tensors()[k]);
    TF_RETURN_IF_ERROR(StackLanes(ctx, parts, &elements[k]));
  }
  *stack = SequenceTensor(Sequence(std::move(elements)));
  return absl::OkStatus();
}

class SequenceStackOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* ctx) override {
    const Tensor& sequences = ctx->input(0);
    OP_REQUIRES(ctx, sequences.dims() == 1,
                InvalidArgument("SequenceStack: sequences must be a vector, got shape ",
                                sequences.shape().DebugString()));
    std::vector<Tensor> lanes;
    for (int64_t i = 0; i < sequences.dim_size(0); ++i) {
      lanes.emplace_back(tensorflow::DT_VARIANT, TensorShape({}));
      lanes.back().scalar<Variant>()() = sequences.vec<Variant>()(i);
    }
    Tensor stack = SequenceTensor(Sequence());
    if (!lanes.empty()) OP_REQUIRES_OK(ctx, StackLanes(ctx, lanes, &stack));
    ctx->set_output(0, stack);
  }
};

REGISTER_KERNEL_BUILDER(Name("TfTi>SequenceSplit").Device(tensorflow::DEVICE_CPU), SequenceSplitOp);
REGISTER_KERNEL_BUILDER(Name("TfTi>SequenceConcat").Device(tensorflow::DEVICE_CPU),
                        SequenceConcatOp);
REGISTER_KERNEL_BUILDER(Name("TfTi>SequenceUnstack").Device(tensorflow::DEVICE_CPU),
                        SequenceUnstackOp);
REGISTER_KERNEL_BUILDER(Name("TfTi>SequenceStack").Device(tensorflow::DEVICE_CPU), SequenceStackOp);

#if GOOGLE_CUDA
REGISTER_KERNEL_BUILDER(
    Name("TfTi>SequenceUnstack").Device(tensorflow::DEVICE_GPU).HostMemory("count"),
    SequenceUnstackOp);
REGISTER_KERNEL_BUILDER(Name("TfTi>SequenceStack").Device(tensorflow::DEVICE_GPU), SequenceStackOp);
// The types whose values do not live on the host.
#define TF_TI_REGISTER_GPU(T)                                                                \
  REGISTER_KERNEL_BUILDER(                                                                   \
      Name("TfTi>SequenceSplit").Device(tensorflow::DEVICE_GPU).TypeConstraint<T>("T"),      \
      SequenceSplitOp);                                                                      \
  REGISTER_KERNEL_BUILDER(                                                                   \
      Name("TfTi>SequenceConcat").Device(tensorflow::DEVICE_GPU).TypeConstraint<T>("dtype"), \
      SequenceConcatOp);
TF_CALL_NUMBER_TYPES_NO_INT32(TF_TI_REGISTER_GPU)
TF_CALL_bool(TF_TI_REGISTER_GPU)
#endif

}  // namespace
}  // namespace tf_ti
