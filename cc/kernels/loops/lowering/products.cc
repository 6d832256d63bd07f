#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "cc/kernels/loops/lowering/rules.h"

namespace tf_ti {

using tensorflow::NodeDef;

namespace {

// The dimensions before a matrix's two.
Dims BatchOf(const View& view) { return Dims(view.dims.begin(), view.dims.end() - 2); }

View TransposedMatrices(const View& view) {
  std::vector<int> order(view.rank());
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[view.rank() - 1], order[view.rank() - 2]);
  return view.Transpose(order);
}

// Matrices as [batch, rows, columns], with a batch of 1 for the same matrix in all of it.
absl::StatusOr<View> InOneBatch(LoweringContext& context, View view, const Dims& batch) {
  TF_RETURN_IF_ERROR(CheckCount(view.count()));
  const Dims own = BatchOf(view);
  if (CountOf(own) != 1 && own != batch) {
    Dims all = batch;
    all.insert(all.end(), view.dims.end() - 2, view.dims.end());
    TF_RETURN_IF_ERROR(CheckCount(CountOf(all)));
    view = view.BroadcastTo(all);
  }
  return Merged(context, view, 0, view.rank() - 2);
}

// The factors have the dimensions [batch, rows, added] and [batch, added, columns].
absl::Status CheckProduct(int64_t batch, int64_t rows, int64_t added, int64_t columns) {
  if (CountOf({batch, rows, added, columns}) > kMostProducts) {
    return Refused("more products of numbers than ", kMostProducts);
  }
  if (CountOf({added, columns}) > kMostRight) {
    return Refused("a right factor of more numbers than ", kMostRight);
  }
  return absl::OkStatus();
}

Outputs MatMul(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(View left, context.ViewOf(inputs[0]));
  TF_ASSIGN_OR_RETURN(View right, context.ViewOf(inputs[1]));
  if (left.rank() < 2 || right.rank() < 2) return Refused("factors that are not matrices");
  // The adjoint of real numbers is the transposed.
  const bool is_batched = node.op() != "MatMul";
  if (Attribute(node, is_batched ? "adj_x" : "transpose_a", false)) left = TransposedMatrices(left);
  if (Attribute(node, is_batched ? "adj_y" : "transpose_b", false)) {
    right = TransposedMatrices(right);
  }
  std::optional<Dims> dims = BroadcastDims(BatchOf(left), BatchOf(right));
  if (!dims.has_value()) return Refused("batches that do not fit each other");
  TF_ASSIGN_OR_RETURN(left, InOneBatch(context, left, *dims));
  TF_ASSIGN_OR_RETURN(right, InOneBatch(context, right, *dims));
  const int64_t rows = left.dims[1], columns = right.dims[2];
  TF_RETURN_IF_ERROR(CheckProduct(CountOf(*dims), rows, left.dims[2], columns));
  TF_ASSIGN_OR_RETURN(const View product, OrRefused(context.builder().Multiply(left, right)));
  dims->insert(dims->end(), {rows, columns});
  return One(product.Reshape(*dims));
}

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

bool AreDistinct(const std::string& labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels.find(labels[i], i + 1) != std::string::npos) return false;
  }
  return true;
}

// An array whose dimensions have names.
struct Labelled {
  View view;
  std::string labels;
};

View TransposedTo(const std::string& to, const Labelled& array) {
  std::vector<int> order;
  for (const char label : to) order.push_back(static_cast<int>(array.labels.find(label)));
  return array.view.Transpose(order);
}

// An einsum's operands, whose labels are distinct, and the labels of its result.
struct Equation {
  std::vector<Labelled> operands;
  std::string result;
  absl::flat_hash_map<char, int64_t> sizes;  // by label

  Dims DimsOf(const std::string& labels) const {
    Dims dims;
    for (const char label : labels) dims.push_back(sizes.at(label));
    return dims;
  }
};

absl::StatusOr<Equation> EquationOf(LoweringContext& context, const NodeDef& node,
                                    const std::vector<Lowered>& inputs) {
  const std::string text = Attribute(node, "equation", std::string());
  const std::vector<std::string> sides = absl::StrSplit(text, "->");
  if (sides.size() != 2) return Refused("an equation without a result");
  const std::vector<std::string> labels = absl::StrSplit(sides[0], ',');
  if (inputs.size() > 2 || labels.size() != inputs.size()) return Refused("more than two operands");
  Equation equation;
  equation.result = sides[1];
  for (size_t i = 0; i < inputs.size(); ++i) {
    TF_ASSIGN_OR_RETURN(const View view, context.ViewOf(inputs[i]));
    if (view.rank() != static_cast<int>(labels[i].size()) || !AreDistinct(labels[i])) {
      return Refused("labels that are not one for each dimension");
    }
    if (view.count() == 0) return Refused("there are no elements");
    TF_RETURN_IF_ERROR(CheckCount(view.count()));
    for (int d = 0; d < view.rank(); ++d) {
      const char label = labels[i][d];
      if (!absl::ascii_isalpha(label)) return Refused("a label that is no letter");
      const int64_t size = equation.sizes.emplace(label, view.dims[d]).first->second;
      if (size != view.dims[d]) return Refused("a label of several sizes");
    }
    equation.operands.push_back({view, labels[i]});
  }
  for (const char label : equation.result) {
    if (!equation.sizes.contains(label)) return Refused("a label that no operand has");
  }
  if (!AreDistinct(equation.result)) return Refused("a result that has a label twice");
  return equation;
}

// Sums over the labels that are not among `others`.
absl::StatusOr<Labelled> SummedTo(LoweringContext& context, const std::string& others,
                                  const Labelled& array) {
  std::vector<bool> is_reduced;
  for (const char label : array.labels) is_reduced.push_back(!Has(others, label));
  TF_ASSIGN_OR_RETURN(View sum, Reduced(context, Operation::kSum, array.view, is_reduced));
  for (int d = sum.rank() - 1; d >= 0; --d) {
    if (is_reduced[d]) sum = sum.WithoutDim(d);
  }
  return Labelled{sum, Both(array.labels, others)};
}

// Dimensions as three: the first `batch`, the next `middle`, and the rest.
View AsThree(LoweringContext& context, View view, int batch, int middle) {
  const int first = batch + middle;
  view = Merged(context, view, first, view.rank() - first);
  view = Merged(context, view, batch, middle);
  return Merged(context, view, 0, batch);
}

// One or two operands: TensorFlow splits larger einsums.
Outputs Einsum(LoweringContext& context, const NodeDef& node, const std::vector<Lowered>& inputs) {
  TF_ASSIGN_OR_RETURN(Equation equation, EquationOf(context, node, inputs));
  std::vector<Labelled>& operands = equation.operands;
  const std::string& result = equation.result;
  // What one operand alone has is added up first.
  for (size_t i = 0; i < operands.size(); ++i) {
    const std::string other = operands.size() == 2 ? operands[1 - i].labels : "";
    TF_ASSIGN_OR_RETURN(operands[i], SummedTo(context, result + other, operands[i]));
  }
  if (operands.size() == 1) return One(TransposedTo(result, operands[0]));
  const std::string &left_labels = operands[0].labels, &right_labels = operands[1].labels;
  const std::string shared = Both(left_labels, right_labels);
  const std::string batch = Both(shared, result), added = Without(shared, result);
  const std::string rows = Without(left_labels, right_labels);
  const std::string columns = Without(right_labels, left_labels);
  const std::string all = batch + rows + columns;
  const Dims dims = equation.DimsOf(all);
  TF_RETURN_IF_ERROR(CheckCount(CountOf(dims)));
  View left = TransposedTo(batch + rows + added, operands[0]);
  View right = TransposedTo(batch + added + columns, operands[1]);
  if (added.empty()) {
    while (left.rank() < static_cast<int>(all.size())) left = left.WithDim(left.rank());
    while (right.rank() < static_cast<int>(all.size())) right = right.WithDim(batch.size());
    TF_ASSIGN_OR_RETURN(const View product,
                        OrRefused(context.builder().Apply(Operation::kMul, {left, right})));
    return One(TransposedTo(result, {product, all}));
  }
  const auto count_of = [&](const std::string& of) { return CountOf(equation.DimsOf(of)); };
  TF_RETURN_IF_ERROR(
      CheckProduct(count_of(batch), count_of(rows), count_of(added), count_of(columns)));
  left = AsThree(context, left, batch.size(), rows.size());
  right = AsThree(context, right, batch.size(), added.size());
  TF_ASSIGN_OR_RETURN(const View product, OrRefused(context.builder().Multiply(left, right)));
  return One(TransposedTo(result, {product.Reshape(dims), all}));
}

}  // namespace

RuleTable ProductRules() {
  return {{"BatchMatMul", MatMul},
          {"BatchMatMulV2", MatMul},
          {"BatchMatMulV3", MatMul},
          {"Einsum", Einsum},
          {"MatMul", MatMul}};
}

}  // namespace tf_ti
