#include "cc/compute/program/builder.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cc/compute/program/merged_loops.h"
#include "cc/compute/program/tiles.h"

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
  int level = 0;
  for (const View& view : views) level = std::max(level, LevelOf(view));
  Add({operation, from, result.type, std::move(views), origin_}, level);
  return result;
}

// Adds a step to the open loop of a level. Level 0 stands for the steps that are in no loop.
void ProgramBuilder::Add(Step step, int level) {
  const int block = step.views[0].block;
  steps_.blocks[block].stays =
      level == 0 && std::all_of(step.views.begin() + 1, step.views.end(),
                                [&](const View& view) { return steps_.blocks[view.block].stays; });
  Raise(block, level);
  steps_.blocks[block].is_written = true;
  most_instructions_ = std::max(most_instructions_, InstructionsOf(step));
  (level == 0 ? steps_.steps : loops_[level - 1].loop->steps).push_back(std::move(step));
}

// The number of loops whose iterations the elements of a view depend on.
int ProgramBuilder::LevelOf(const View& view) const {
  int level = view.block < static_cast<int>(levels_.size()) ? levels_[view.block] : 0;
  for (int k = 0; k < static_cast<int>(loops_.size()); ++k) {
    for (const tf_ti::Move& move : view.moves) {
      if (move.loop == loops_[k].loop->number) level = std::max(level, k + 1);
    }
  }
  return level;
}

// Gives a block at least a level, as a step of that level writes it.
void ProgramBuilder::Raise(int block, int level) {
  if (block >= static_cast<int>(levels_.size())) {
    levels_.resize(block + 1, 0);
    is_split_.resize(block + 1, false);
  }
  if (steps_.blocks[block].is_written && levels_[block] != level) is_split_[block] = true;
  levels_[block] = std::max(levels_[block], level);
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
  // Of one column, the transposed product: of dots, or of columns that lie side by side.
  if (columns == 1 && (are_dots || a.strides[1] == SizeOf(a.type))) {
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

void ProgramBuilder::BeginLoop(int64_t count) {
  OpenLoop& open = loops_.emplace_back();
  open.loop = std::make_shared<ProgramSteps::Loop>();
  open.loop->number = num_loops_++;
  open.loop->count = count;
}

View ProgramBuilder::PieceOf(const View& array, int dim, int64_t begin, int64_t size,
                             int64_t step) const {
  const int64_t bytes = step * array.strides[dim];
  return array.Slice(dim, begin, size, 1).Moving({loops_.back().loop->number, bytes, false});
}

View ProgramBuilder::RowToLast(const View& array) const {
  const int number = loops_.back().loop->number;
  return array.Slice(0, 0, 1, 1).WithoutDim(0).Moving({number, -array.strides[0], false, true});
}

// A state has two places, which iterations read and write in turn.
View ProgramBuilder::AddState(const View& start) {
  Dims dims = start.dims;
  dims.insert(dims.begin(), 2);
  const View places = AddResult(start.type, dims);
  const auto place = [&](int64_t k) { return places.Slice(0, k, 1, 1).WithoutDim(0); };
  const ProgramSteps::Loop& loop = *loops_.back().loop;
  const int64_t bytes = places.strides[0];
  return AddState(start, {place(0).Moving({loop.number, bytes, true}),
                          place(1).Moving({loop.number, -bytes, true}), place(loop.count % 2)});
}

View ProgramBuilder::AddState(const View& start, bool falls, View* values) {
  const ProgramSteps::Loop& loop = *loops_.back().loop;
  const int64_t count = loop.count;
  Dims dims = start.dims;
  dims.insert(dims.begin(), count + 1);
  const View places = AddResult(start.type, dims);
  // The place of iteration t.
  const auto place = [&](int64_t t) {
    return places.Slice(0, falls ? count - t : t, 1, 1).WithoutDim(0);
  };
  *values = places.Slice(0, falls ? 1 : 0, count, 1);
  const int64_t bytes = falls ? -places.strides[0] : places.strides[0];
  return AddState(start, {place(0).Moving({loop.number, bytes, false}),
                          place(1).Moving({loop.number, bytes, false}), place(count)});
}

View ProgramBuilder::AddState(const View& start, const OpenLoop::State& state) {
  View first = state.now;
  first.moves.pop_back();
  const int level = static_cast<int>(loops_.size());
  if (first.count() > 0) {
    Add({Operation::kCopy, start.type, start.type, {first, start}, origin_}, level - 1);
  }
  Raise(first.block, level);
  steps_.blocks[first.block].stays = false;
  loops_.back().states.push_back(state);
  return state.now;
}

void ProgramBuilder::EndCondition(const View& goes_on) {
  ProgramSteps::Loop& loop = *loops_.back().loop;
  loop.goes_on = goes_on;
  loop.num_condition_steps = loop.steps.size();
}

void ProgramBuilder::StopIf(const View& state) { loops_.back().loop->stops = state; }

// The part of `whole`, which has the place of the view's block, that the view is.
View ProgramBuilder::InPlaceOf(const View& view, const View& whole) {
  View moved = view;
  moved.block = whole.block;
  moved.offset += whole.offset;
  moved.moves.insert(moved.moves.end(), whole.moves.begin(), whole.moves.end());
  return moved;
}

// Writes a value of each iteration to a place, which has the address `last` after the loop: the
// steps that make the value write it there, or a copy does.
void ProgramBuilder::Move(const View& given, const View& to, const View& last) {
  OpenLoop& open = loops_.back();
  View from = given;
  const auto renamed = open.renamed.find(from.block);
  if (renamed != open.renamed.end()) from = InPlaceOf(from, renamed->second.first);
  if (to.count() == 0) return;
  const ProgramSteps::Block& block = steps_.blocks[from.block];
  const bool may_be_there = block.storage == Storage::kTemporary && from.moves.empty() &&
                            block.is_written && !is_split_[from.block] &&
                            LevelOf(from) == static_cast<int>(loops_.size()) && from.offset == 0 &&
                            from.bytes() == block.bytes && from.IsContiguous() &&
                            to.IsContiguous() && from.type == to.type;
  if (!may_be_there) {
    CopyInto(from, to);
    return;
  }
  open.renamed[from.block] = {to, last};
  Raise(to.block, static_cast<int>(loops_.size()));
  steps_.blocks[to.block].is_written = true;
  steps_.blocks[to.block].stays = false;
  const auto rename = [&](View* view) {
    if (view->block == from.block) *view = InPlaceOf(*view, to);
  };
  for (Step& step : open.loop->steps) ForEachView(&step, rename);
  if (open.loop->goes_on.has_value()) rename(&*open.loop->goes_on);
  if (open.loop->stops.has_value()) rename(&*open.loop->stops);
}

std::vector<View> ProgramBuilder::EndLoop(const std::vector<View>& next,
                                          const std::vector<Written>& written,
                                          std::vector<View> kept,
                                          const std::optional<View>& num_iterations) {
  const int level = static_cast<int>(loops_.size());
  ProgramSteps::Loop& loop = *loops_.back().loop;
  loop.num_iterations = num_iterations;
  // What moves is copied while it is there.
  for (View& view : kept) {
    if (LevelOf(view) == level && !view.moves.empty()) view = Copied(view);
  }
  std::vector<View> ends;
  for (size_t k = 0; k < next.size(); ++k) {
    const auto& [now, to, last] = loops_.back().states[k];
    View end = last;
    if (!loop.has_static_count()) {
      end = AddResult(now.type, now.dims);
      if (end.count() > 0) {
        loop.last.push_back({Operation::kCopy, now.type, now.type, {end, now}, origin_});
        steps_.blocks[end.block].is_written = true;
      }
    }
    Move(next[k], to, end);
    ends.push_back(end);
  }
  for (const Written& each : written) {
    View last = each.to;
    for (const tf_ti::Move& move : each.to.moves) {
      if (move.loop == loop.number) last.offset += (loop.count - 1) * move.step;
    }
    last.moves.pop_back();
    Move(each.from, each.to, last);
  }
  const OpenLoop open = std::move(loops_.back());
  loops_.pop_back();
  // The loop around sees each value once in an iteration.
  for (int& each : levels_) each = std::min(each, level - 1);
  for (const View& end : ends) Raise(end.block, level - 1);
  for (View& view : kept) {
    const auto renamed = open.renamed.find(view.block);
    if (renamed != open.renamed.end()) view = InPlaceOf(view, renamed->second.second);
  }
  Step step = {Operation::kLoop, ElementType::kFloat, ElementType::kFloat, {}, origin_, open.loop};
  time_of_last_loop_ = TimeOf(step);
  (level == 1 ? steps_.steps : loops_.back().loop->steps).push_back(std::move(step));
  ends.insert(ends.end(), kept.begin(), kept.end());
  return ends;
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
