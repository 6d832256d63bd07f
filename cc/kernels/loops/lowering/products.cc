#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

bool Lowering::MatMul(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  std::optional<View> left = ViewOf(inputs[0]), right = ViewOf(inputs[1]);
  if (!left.has_value() || !right.has_value()) return false;
  if (left->rank() < 2 || right->rank() < 2) return false;
  const auto turned = [](const View& view) {
    std::vector<int> order(view.rank());
    for (int d = 0; d < view.rank(); ++d) order[d] = d;
    std::swap(order[view.rank() - 1], order[view.rank() - 2]);
    return view.Transpose(order);
  };
  // The adjoint of real numbers is the transposed.
  const bool is_batched = node.op() != "MatMul";
  if (Attribute(node, is_batched ? "adj_x" : "transpose_a", false)) left = turned(*left);
  if (Attribute(node, is_batched ? "adj_y" : "transpose_b", false)) right = turned(*right);
  const auto batch_of = [](const View& view) {
    return Dims(view.dims.begin(), view.dims.end() - 2);
  };
  Dims dims;
  if (!BroadcastDims(batch_of(*left), batch_of(*right), &dims)) return false;
  // As [batch, rows, columns], with a batch of 1 for the same matrix in all of it.
  for (View* const view : {&*left, &*right}) {
    if (view->count() > kMostElements) return false;
    const Dims batch = batch_of(*view);
    if (CountOf(batch) != 1 && batch != dims) {
      Dims all = dims;
      all.insert(all.end(), view->dims.end() - 2, view->dims.end());
      if (CountOf(all) > kMostElements) return false;
      *view = view->BroadcastTo(all);
    }
    *view = Merged(*view, 0, view->rank() - 2);
  }
  const int64_t rows = left->dims[1], columns = right->dims[2];
  if (CountOf({CountOf(dims), rows, left->dims[2], columns}) > kMostProducts) return false;
  const View product = builder_->Multiply(*left, *right);
  if (product.block < 0) return false;
  dims.insert(dims.end(), {rows, columns});
  outputs->push_back({product.Reshape(dims), {}});
  return true;
}

namespace {

bool Has(const std::string& labels, char label) { return labels.find(label) != std::string::npos; }

// The labels that are in both, or in the first alone, as they come there.
std::string Both(const std::string& a, const std::string& b, bool is_in_second = true) {
  std::string labels;
  for (const char label : a) {
    if (Has(b, label) == is_in_second) labels += label;
  }
  return labels;
}
std::string Without(const std::string& a, const std::string& b) { return Both(a, b, false); }

View TransposedTo(const std::string& to, const View& view, const std::string& labels) {
  std::vector<int> order;
  for (const char label : to) order.push_back(static_cast<int>(labels.find(label)));
  return view.Transpose(order);
}

}  // namespace

// Of one or two operands, whose labels are names of dimensions, each there once.
bool Lowering::Einsum(const NodeDef& node, const std::vector<Lowered>& inputs,
                      std::vector<Lowered>* outputs) {
  const std::vector<std::string> sides =
      absl::StrSplit(Attribute(node, "equation", std::string()), "->");
  if (sides.size() != 2 || inputs.size() > 2) return false;
  std::vector<std::string> labels = absl::StrSplit(sides[0], ',');
  const std::string& result = sides[1];
  if (labels.size() != inputs.size()) return false;
  std::vector<View> views;
  absl::flat_hash_map<char, int64_t> sizes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<View> view = ViewOf(inputs[i]);
    if (!view.has_value() || view->rank() != static_cast<int>(labels[i].size())) return false;
    if (view->count() == 0 || view->count() > kMostElements) return false;
    for (int d = 0; d < view->rank(); ++d) {
      const char label = labels[i][d];
      if (!absl::ascii_isalpha(label) || labels[i].find(label, d + 1) != std::string::npos) {
        return false;
      }
      if (sizes.emplace(label, view->dims[d]).first->second != view->dims[d]) return false;
    }
    views.push_back(*view);
  }
  const auto dims_of = [&](const std::string& of) {
    Dims dims;
    for (const char label : of) dims.push_back(sizes.at(label));
    return dims;
  };
  for (size_t d = 0; d < result.size(); ++d) {
    if (!sizes.contains(result[d]) || result.find(result[d], d + 1) != std::string::npos) {
      return false;
    }
  }
  // What one operand alone has is added up first.
  for (size_t i = 0; i < views.size(); ++i) {
    const std::string others = result + (views.size() == 2 ? labels[1 - i] : "");
    std::vector<bool> is_reduced;
    for (const char label : labels[i]) is_reduced.push_back(!Has(others, label));
    View sum = Reduced(Operation::kSum, views[i], is_reduced);
    if (sum.block < 0) return false;
    for (int d = sum.rank() - 1; d >= 0; --d) {
      if (is_reduced[d]) sum = sum.WithoutDim(d);
    }
    views[i] = sum;
    labels[i] = Both(labels[i], others);
  }
  if (views.size() == 1) {
    outputs->push_back({TransposedTo(result, views[0], labels[0]), {}});
    return true;
  }
  const std::string batch = Both(Both(labels[0], labels[1]), result);
  const std::string added = Without(Both(labels[0], labels[1]), result);
  const std::string rows = Without(labels[0], labels[1]);
  const std::string columns = Without(labels[1], labels[0]);
  const std::string all = batch + rows + columns;
  const Dims dims = dims_of(all);
  if (CountOf(dims) > kMostElements) return false;
  View left = TransposedTo(batch + rows + added, views[0], labels[0]);
  View right = TransposedTo(batch + added + columns, views[1], labels[1]);
  View product;
  if (added.empty()) {
    while (left.rank() < static_cast<int>(all.size())) left = left.WithDim(left.rank());
    while (right.rank() < static_cast<int>(all.size())) right = right.WithDim(batch.size());
    product = builder_->Apply(Operation::kMul, {left, right});
  } else {
    if (CountOf(dims) * CountOf(dims_of(added)) > kMostProducts) return false;
    for (View* const view : {&left, &right}) {
      const int middle = view == &left ? rows.size() : added.size();
      const int first = batch.size() + middle;
      *view = Merged(*view, first, view->rank() - first);
      *view = Merged(*view, batch.size(), middle);
      *view = Merged(*view, 0, batch.size());
    }
    product = builder_->Multiply(left, right);
    if (product.block >= 0) product = product.Reshape(dims);
  }
  if (product.block < 0) return false;
  outputs->push_back({TransposedTo(result, product, all), {}});
  return true;
}

}  // namespace tf_ti
