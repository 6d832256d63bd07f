#include "cc/compute/program/builder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cc/compute/program/merged_loops.h"

namespace tf_ti {
namespace {

bool IsTest(Operation operation) {
  return (operation >= Operation::kIsNan && operation <= Operation::kLogicalNot) ||
         (operation >= Operation::kEqual && operation <= Operation::kLogicalOr);
}

}  // namespace

View ProgramBuilder::AddInput(ElementType type, const Dims& dims, bool stays) {
  const View view = steps_.AddBlock(Storage::kInput, StoredAs(type), dims, stays);
  steps_.blocks.back().number = steps_.num_inputs++;
  return Converted(view, type);
}

View ProgramBuilder::AddConstant(ElementType type, const Dims& dims, const void* elements) {
  const View view = steps_.AddBlock(Storage::kConstant, StoredAs(type), dims, /*stays=*/true);
  const char* const bytes = static_cast<const char*>(elements);
  steps_.blocks.back().constant.assign(bytes, bytes + view.bytes());
  return Converted(view, type);
}

View ProgramBuilder::AddResult(ElementType type, const Dims& dims) {
  return steps_.AddBlock(Storage::kTemporary, type, dims);
}

View ProgramBuilder::Contiguous(const View& view) {
  return view.IsContiguous() ? view : Copied(view);
}

View ProgramBuilder::Empty(const View& result) {
  steps_.blocks[result.block].stays = true;
  return result;
}

View ProgramBuilder::Emit(Operation operation, ElementType from, std::vector<View> views) {
  const View result = views[0];
  steps_.steps.push_back({operation, from, result.type, std::move(views), origin_});
  steps_.blocks[result.block].stays = Stays(steps_.steps.back());
  steps_.blocks[result.block].is_written = true;
  most_instructions_ = std::max(most_instructions_, InstructionsOf(steps_.steps.back()));
  return result;
}

bool ProgramBuilder::Stays(const Step& step) const {
  return std::all_of(step.views.begin() + 1, step.views.end(),
                     [&](const View& view) { return steps_.blocks[view.block].stays; });
}

void ProgramBuilder::CopyInto(const View& from, const View& to) {
  if (to.count() == 0) return;
  const bool was_written = steps_.blocks[to.block].is_written;
  const bool stays = steps_.blocks[to.block].stays;
  Emit(Operation::kCopy, from.type, {to, from.BroadcastTo(to.dims)});
  // Parts that do not stay make all of it not stay.
  if (was_written) steps_.blocks[to.block].stays = steps_.blocks[to.block].stays && stays;
}

std::optional<View> ProgramBuilder::Apply(Operation operation, const std::vector<View>& operands) {
  const ElementType from = operands.back().type;
  const ElementType to = IsTest(operation) ? ElementType::kBool : from;
  Dims dims = operands[0].dims;
  for (const View& operand : operands) {
    std::optional<Dims> both = BroadcastDims(dims, operand.dims);
    if (!both.has_value()) return std::nullopt;
    dims = std::move(*both);
  }
  if (FindKernel(operation, from, to, 0) == nullptr) return std::nullopt;
  const View result = AddResult(to, dims);
  if (result.count() == 0) return Empty(result);
  std::vector<View> views = {result};
  for (const View& operand : operands) views.push_back(operand.BroadcastTo(dims));
  // Elements that neither lie side by side in the innermost loop nor are one number there are
  // copied, and such a number too where there is no kernel for it.
  for (bool is_right = false; !is_right;) {
    int layout = 0;
    is_right = true;
    const Loops loops = MergeLoops(views);
    for (size_t k = 1; k < views.size(); ++k) {
      const int64_t stride = loops.strides[k][0];
      if (stride == 0) layout |= 1 << (k - 1);
      if (stride == 0 || stride == SizeOf(views[k].type)) continue;
      views[k] = Copied(views[k]);
      is_right = false;
    }
    if (!is_right || FindKernel(operation, from, to, layout) != nullptr) continue;
    const size_t k = layout & 1 ? 1 : layout & 2 ? 2 : 3;
    views[k] = Copied(views[k]);
    is_right = false;
  }
  return Rounded(Emit(operation, from, std::move(views)), operation);
}

View ProgramBuilder::Copied(const View& view) {
  const View result = AddResult(view.type, view.dims);
  CopyInto(view, result);
  return result;
}

View ProgramBuilder::Cast(const View& operand, ElementType to) {
  if (IsHalf(operand.type)) {
    View wide = operand;
    wide.type = ElementType::kFloat;
    return operand.type == to ? operand : Cast(wide, to);
  }
  if (IsHalf(to)) return RoundedTo(to, Converted(operand, ElementType::kFloat));
  return Converted(operand, to);
}

View ProgramBuilder::Converted(const View& view, ElementType to) {
  if (view.type == to) return view;
  const View result = AddResult(to, view.dims);
  if (result.count() == 0) return Empty(result);
  return Emit(Operation::kCast, view.type, {result, Contiguous(view)});
}

View ProgramBuilder::Rounded(const View& view, Operation operation) {
  return IsHalf(view.type) && MustRound(operation) ? RoundedTo(view.type, view) : view;
}

View ProgramBuilder::RoundedTo(ElementType to, const View& view) {
  View wide = view;
  wide.type = ElementType::kFloat;
  const bool is_half = to == ElementType::kHalf;
  View rounded = *Apply(is_half ? Operation::kToHalf : Operation::kToBFloat16, {wide});
  rounded.type = to;
  return rounded;
}

std::optional<View> ProgramBuilder::Reduce(Operation operation, const View& operand, int dim,
                                           ElementType to) {
  if (FindKernel(operation, operand.type, to, 0) == nullptr) return std::nullopt;
  Dims dims = operand.dims;
  dims[dim] = 1;
  const View result = AddResult(to, dims);
  if (result.count() == 0) return Empty(result);
  const View whole = Contiguous(operand);
  // [others, reduced, side by side].
  const int64_t size = operand.dims[dim];
  int64_t inner = 1;
  for (int d = dim + 1; d < operand.rank(); ++d) inner *= operand.dims[d];
  const int64_t outer = result.count() / inner;
  View to_view = result.Reshape({outer, 1, inner});
  to_view.strides[1] = 0;
  Emit(operation, operand.type, {to_view, whole.Reshape({outer, size, inner})});
  return Rounded(result, operation);
}

std::optional<View> ProgramBuilder::Multiply(const View& left, const View& right) {
  View a = left, b = right;
  if (FindKernel(Operation::kMatMul, a.type, a.type, 0) == nullptr || a.type != b.type) {
    return std::nullopt;
  }
  const int rank = std::max(a.rank(), b.rank());
  if (a.rank() < 2 || b.rank() < 2 || rank > 3) return std::nullopt;
  for (View* const view : {&a, &b}) {
    if (view->rank() < 3) *view = view->WithDim(0);
  }
  const int64_t batch = std::max(a.dims[0], b.dims[0]);
  const int64_t rows = a.dims[1], depth = a.dims[2], columns = b.dims[2];
  if (b.dims[1] != depth || a.count() == 0 || b.count() == 0) return std::nullopt;
  if ((a.dims[0] != 1 && a.dims[0] != batch) || (b.dims[0] != 1 && b.dims[0] != batch)) {
    return std::nullopt;
  }
  // Columns of the right factor lie side by side, as in a copy, unless dot products take less time.
  const bool copies_once = steps_.blocks[b.block].stays;
  const bool are_dots = AreDots(a, b) && (columns == 1 || (!copies_once && 2 * rows <= depth));
  if (columns > 1 && !are_dots && b.strides[2] != SizeOf(b.type)) b = Copied(b);
  View result = AddResult(a.type, {batch, rows, columns});
  View out = result;
  a = a.BroadcastTo({batch, rows, depth});
  b = b.BroadcastTo({batch, depth, columns});
  // Of one column, the transposed product.
  if (columns == 1 && are_dots) {
    const std::vector<int> turned = {0, 2, 1};
    out = out.Transpose(turned);
    std::swap(a, b);
    a = a.Transpose(turned);
    b = b.Transpose(turned);
  }
  Emit(Operation::kMatMul, a.type, {out, a, b});
  result = Rounded(result, Operation::kMatMul);
  return rank == 3 ? result : result.WithoutDim(0);
}

View ProgramBuilder::Gather(const View& rows, const View& indices, int dim, bool is_batched) {
  const Dims before(rows.dims.begin(), rows.dims.begin() + dim);
  const Dims chosen(indices.dims.begin() + (is_batched ? dim : 0), indices.dims.end());
  const Dims after(rows.dims.begin() + dim + 1, rows.dims.end());
  const int64_t outer = CountOf(before), count = CountOf(chosen), inner = CountOf(after);
  Dims dims = before;
  dims.insert(dims.end(), chosen.begin(), chosen.end());
  dims.insert(dims.end(), after.begin(), after.end());
  const View result = AddResult(rows.type, dims);
  if (result.count() == 0) return Empty(result);
  const View places = Contiguous(indices).Reshape({is_batched ? outer : 1, count, 1});
  // [before, rows, after], copied unless the elements of a row lie side by side.
  std::optional<View> from = rows.Merged(dim + 1, static_cast<int>(after.size()));
  if (from.has_value()) from = from->Merged(0, dim);
  if (!from.has_value() || (inner > 1 && from->strides[2] != SizeOf(rows.type))) {
    from = Contiguous(rows).Reshape({outer, rows.dims[dim], inner});
  }
  Emit(Operation::kGather, indices.type,
       {result.Reshape({outer, count, inner}), *from, places.BroadcastTo({outer, count, 1})});
  return result;
}

void ProgramBuilder::AddOutput(const View& view) {
  const int number = steps_.num_outputs++;
  // In place, where it is the whole of a result of its own.
  ProgramSteps::Block* const block = &steps_.blocks[view.block];
  if (!IsHalf(view.type) && block->storage == Storage::kTemporary && !block->stays &&
      view.offset == 0 && view.bytes() == block->bytes && view.IsContiguous()) {
    block->storage = Storage::kOutput;
    block->number = number;
    return;
  }
  const View output = steps_.AddBlock(Storage::kOutput, StoredAs(view.type), view.dims);
  steps_.blocks.back().number = number;
  if (output.count() == 0) return;
  if (IsHalf(view.type)) {
    Emit(Operation::kCast, view.type, {output, Contiguous(view)});
  } else {
    Emit(Operation::kCopy, view.type, {output, view});
  }
  steps_.blocks[output.block].stays = false;
}

}  // namespace tf_ti
