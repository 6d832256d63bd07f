#include <utility>

#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

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

}  // namespace tf_ti
