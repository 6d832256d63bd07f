#include "cc/kernels/loops/lowering/rules.h"

#include "cc/kernels/loops/tensors.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;
using tensorflow::TensorShape;

Outputs One(absl::StatusOr<View> view) {
  TF_RETURN_IF_ERROR(view.status());
  std::vector<Lowered> outputs(1);
  outputs[0].view = *std::move(view);
  return outputs;
}

Outputs One(absl::StatusOr<Tensor> known) {
  TF_RETURN_IF_ERROR(known.status());
  std::vector<Lowered> outputs(1);
  outputs[0].known = *std::move(known);
  return outputs;
}

absl::Status CheckCount(int64_t count) {
  if (count <= kMostElements) return absl::OkStatus();
  return Refused(count - kMostElements, " elements more than a program takes");
}

absl::Status CheckDims(const Dims& dims) {
  TF_RETURN_IF_ERROR(CheckCount(CountOf(dims)));
  TensorShape shape;
  return TensorShape::BuildTensorShape(dims, &shape);
}

absl::StatusOr<Dims> Integers(const Lowered& value) {
  if (!value.known.has_value()) return Refused("integers that are not known");
  const Tensor& tensor = *value.known;
  Dims integers;
  for (int64_t i = 0; i < tensor.NumElements(); ++i) {
    if (tensor.dtype() == tensorflow::DT_INT32) {
      integers.push_back(tensor.flat<int32_t>()(i));
    } else if (tensor.dtype() == tensorflow::DT_INT64) {
      integers.push_back(tensor.flat<int64_t>()(i));
    } else {
      return Refused("integers of type ", tensorflow::DataTypeString(tensor.dtype()));
    }
  }
  return integers;
}

absl::StatusOr<int64_t> Integer(const Lowered& value) {
  TF_ASSIGN_OR_RETURN(const Dims integers, Integers(value));
  if (integers.size() != 1) return Refused(integers.size(), " integers in place of one");
  return integers[0];
}

absl::StatusOr<int64_t> Scalar(const Lowered& value) {
  if (!DimsOf(value).empty()) return Refused("an array in place of one integer");
  return Integer(value);
}

absl::StatusOr<Tensor> ToTensor(const Dims& integers, DataType dtype) {
  Tensor tensor = HostTensor(dtype, TensorShape({static_cast<int64_t>(integers.size())}));
  for (size_t i = 0; i < integers.size(); ++i) {
    if (dtype == tensorflow::DT_INT64) {
      tensor.flat<int64_t>()(i) = integers[i];
    } else if (integers[i] == static_cast<int32_t>(integers[i])) {
      tensor.flat<int32_t>()(i) = static_cast<int32_t>(integers[i]);
    } else {
      return Refused("a number that int32 does not have");
    }
  }
  return tensor;
}

absl::StatusOr<int> DimOf(int64_t axis, int rank) {
  const int64_t dim = axis < 0 ? axis + rank : axis;
  if (dim < 0 || dim >= rank) return Refused("axis ", axis, " of ", rank, " dimensions");
  return static_cast<int>(dim);
}

absl::StatusOr<int> DimOf(const Lowered& axis, int rank) {
  TF_ASSIGN_OR_RETURN(const int64_t known, Integer(axis));
  return DimOf(known, rank);
}

View Zero(LoweringContext& context, ElementType type) {
  const int64_t zeros = 0;
  return context.builder().AddConstant(type, {}, &zeros);
}

int ChannelsOf(const NodeDef& node, int rank) {
  const bool are_last = Attribute(node, "data_format", std::string("NHWC")) == "NHWC";
  return are_last ? rank - 1 : 1;
}

}  // namespace tf_ti
