#include "cc/xla/bags/known_rows.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/compute/bags/bags.h"
#include "cc/compute/pool_threads.h"
#include "cc/status.h"
#include "cc/xla/bags/hlo.h"
#include "cc/xla/bags/pool.h"
#include "cc/xla/shapes.h"
#include "tensorflow/core/framework/tensor.h"
#include "xla/hlo/builder/lib/constants.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {
namespace {

using tensorflow::Tensor;
using tensorflow::TensorShape;
using xla::XlaOp;

// Gets the elements of an input of int32 or int64. Returns false where they are not known.
bool FindElements(const Context& ctx, int input, std::vector<int64_t>* elements) {
  const absl::StatusOr<std::optional<Tensor>> constant = ctx.FindConstant(input);
  if (!constant.ok() || !constant->has_value()) return false;  // XLA refuses to look behind calls
  const Tensor& found = **constant;
  if (found.dtype() == tensorflow::DT_INT32) {
    const auto flat = found.flat<int32_t>();
    elements->assign(flat.data(), flat.data() + flat.size());
  } else {
    const auto flat = found.flat<int64_t>();
    elements->assign(flat.data(), flat.data() + flat.size());
  }
  return true;
}

}  // namespace

absl::StatusOr<std::optional<std::vector<int64_t>>> FindKnownRows(const Context& ctx,
                                                                  const BagSpec& spec,
                                                                  int64_t num_rows) {
  const bool is_max = spec.reduction == Reduction::kMax;
  std::vector<int64_t> indices, bounds, default_index = {-1}, argmax;
  const std::pair<int, std::vector<int64_t>*> inputs[] = {
      {spec.indices, &indices},
      {spec.bounds, &bounds},
      {spec.default_index, &default_index},
      {is_max ? spec.end : -1, &argmax},
  };
  for (const auto& [input, elements] : inputs) {
    if (input >= 0 && !FindElements(ctx, input, elements)) return std::nullopt;
  }
  TensorShape grad;
  int64_t count;
  TF_RETURN_IF_ERROR(spec.CheckGradientShapes(InputShapes(ctx), &grad, &count));
  Bags<int64_t> bags;
  bags.kind = spec.kind;
  bags.indices = indices.data();
  bags.num_indices = indices.size();
  bags.bounds = bounds.data();
  bags.include_last_offset = spec.include_last_offset;
  bags.count = count;
  bags.default_index = default_index[0];
  bags.has_padding = spec.padding_idx.has_value();
  bags.padding_idx = spec.padding_idx.value_or(0);
  PoolThreads alone(1, nullptr);
  TableGradient<float, int64_t> gradient;
  const std::string problem =
      gradient.Init(bags, {}, spec.reduction, is_max ? argmax.data() : nullptr, num_rows,
                    is_max ? WidthOf(grad) : 1, &alone);
  if (!problem.empty()) return std::nullopt;
  std::vector<int64_t> rows;
  gradient.VisitRuns(&alone, 0, [&](const RowRun<int64_t>& run) {
    rows.insert(rows.end(), run.rows, run.rows + run.count);
  });
  std::sort(rows.begin(), rows.end());
  return rows;
}

RowGradients OnlyRows(const RowGradients& gradients, const std::vector<int64_t>& rows,
                      int64_t num_rows) {
  if (rows.empty()) {
    const auto none = [](XlaOp op) { return xla::SliceInDim(op, 0, 0, 1, 0); };
    return {none(gradients.rows), none(gradients.values)};
  }
  const XlaOp known = xla::ConvertElementType(
      xla::ConstantR1<int64_t>(gradients.rows.builder(), rows), TypeOf(gradients.rows));
  // The first of equal rows has the gradient.
  return {known, Take(gradients.values, Take(FirstOfEqual(gradients.rows, num_rows), known))};
}

}  // namespace tf_ti
