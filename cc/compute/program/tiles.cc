#include "cc/compute/program/tiles.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

namespace tf_ti {
namespace {

using Step = ProgramSteps::Step;

constexpr int64_t kLine = 64;

bool IsOneNumber(const View& view) {
  for (int d = 0; d < view.rank(); ++d) {
    if (view.dims[d] != 1 && view.strides[d] != 0) return false;
  }
  return true;
}

// True if parts of `bytes` bytes are columns, side by side in each row. Two tiles that share a
// cache line of each row both read all rows.
bool IsColumn(const View& view, int64_t bytes) {
  for (int d = 0; d < view.rank(); ++d) {
    if (view.dims[d] > 1 && std::abs(view.strides[d]) > bytes) return true;
  }
  return false;
}

// With one dimension, where all operands lie in the order of the result's elements.
Step Flattened(Step step) {
  if (step.loop != nullptr || !IsElementwise(step.operation)) return step;
  for (size_t k = 0; k < step.views.size(); ++k) {
    const View& view = step.views[k];
    if (!view.IsContiguous() && (k == 0 || !IsOneNumber(view))) return step;
  }
  const int64_t count = step.views[0].count();
  for (View& view : step.views) {
    const bool repeats = count > 1 && IsOneNumber(view);
    view.dims = {count};
    view.strides = {repeats ? 0 : SizeOf(view.type)};
  }
  return step;
}

// The dimension of each operand that is cut. Empty if there is none.
std::vector<int> FindDims(const Step& step) {
  if (step.loop != nullptr || DependsOnPlaces(step)) return {};
  const View& result = step.views[0];
  int first = 0;
  while (first < result.rank() && result.dims[first] == 1) ++first;
  if (first == result.rank()) return {};
  std::vector<int> dims(step.views.size(), first);
  if (step.operation == Operation::kMatMul || step.operation == Operation::kGather) {
    if (first == 2) return {};
    const int shared = step.operation == Operation::kMatMul ? 2 : 1;
    if (first == 1) dims[shared] = -1;
  }
  return dims;
}

}  // namespace

double TimeOf(const Step& step) {
  if (step.loop != nullptr) {
    double time = 0;
    ForEachStep({step}, [&](const Step& inner, double times) { time += times * TimeOf(inner); });
    return time;
  }
  constexpr double kSimple = 0.15, kFunction = 0.8, kCall = 10, kProduct = 0.05;
  double count = step.views[0].count();
  if (step.operation == Operation::kMatMul) {
    return kProduct * count * static_cast<double>(step.views[1].dims[2]);
  }
  if (IsReduction(step.operation)) count = step.views[1].count();
  if (IsCall(step.operation)) return kCall * count;
  return (IsFunction(step.operation) ? kFunction : kSimple) * count;
}

TileGroup::Step TileGroup::Cut(size_t s, int64_t first, int64_t count) const {
  Step step = steps[s];
  for (size_t k = 0; k < step.views.size(); ++k) {
    const int dim = dims[s][k];
    if (dim < 0) continue;
    View& view = step.views[k];
    const bool is_inside = std::count(inside.begin(), inside.end(), view.block) > 0;
    view = view.Slice(dim, is_inside ? 0 : first * sizes[s], count * sizes[s], 1);
  }
  return step;
}

namespace {

class TileFinder {
 public:
  TileFinder(const ProgramSteps& given, const TileLimits& limits)
      : given_(given), limits_(limits) {}

  std::vector<TileGroup> Find();

 private:
  // How a step's operand lies in its block: elements of unit u are among bytes [u * unit + begin,
  // u * unit + end).
  struct Touch {
    int64_t unit;
    int64_t begin;
    int64_t end;
    int64_t num_units;
    bool is_write;
  };

  bool Joins(const Step& step);
  bool IsApart(const Step& step) const;
  void Close();
  void FindInside();

  const ProgramSteps& given_;
  const TileLimits& limits_;
  std::vector<TileGroup> groups_;
  std::vector<Step> before_;  // what runs before the group, on which it may depend
  TileGroup group_;
  std::map<int, std::vector<Touch>> touches_;  // by block
};

std::vector<TileGroup> TileFinder::Find() {
  double time = 0;
  const auto stays = [&](const Step& step) { return given_.Stays(step); };
  for (const Step& step : given_.steps) {
    if (!stays(step)) time += TimeOf(step);
  }
  if (time < limits_.program) return {};
  for (const Step& step : given_.steps) {
    if (stays(step) || Joins(Flattened(step))) continue;
    if (IsApart(step)) {
      before_.push_back(step);
      continue;
    }
    Close();
    if (!Joins(Flattened(step))) before_.push_back(step);
  }
  Close();
  FindInside();
  return std::move(groups_);
}

// True if nothing of the group depends on when the step runs.
bool TileFinder::IsApart(const Step& step) const {
  if (step.loop != nullptr) return group_.steps.empty();
  for (size_t k = 0; k < step.views.size(); ++k) {
    const auto found = touches_.find(step.views[k].block);
    if (found == touches_.end()) continue;
    if (k == 0) return false;
    for (const Touch& touch : found->second) {
      if (touch.is_write) return false;
    }
  }
  return true;
}

bool TileFinder::Joins(const Step& step) {
  const std::vector<int> dims = FindDims(step);
  if (dims.empty() || TimeOf(step) < limits_.step) return false;
  const int64_t extent = step.views[0].dims[dims[0]];
  const bool is_first = group_.steps.empty();
  const int64_t units = is_first ? extent : std::min(extent, group_.num_units);
  if (units < 2 || extent % units != 0 || (!is_first && group_.num_units % units != 0)) {
    return false;
  }
  const int64_t size = extent / units;
  std::vector<std::pair<int, Touch>> added;
  for (size_t k = 0; k < step.views.size(); ++k) {
    const View& view = step.views[k];
    Touch touch = {0, 0, 0, units, k == 0};
    if (dims[k] >= 0) {
      touch.unit = view.strides[dims[k]] * size;
      touch.begin = touch.end = view.offset;
      touch.end += SizeOf(view.type);
      for (int d = 0; d < view.rank(); ++d) {
        const int64_t last = (d == dims[k] ? size : view.dims[d]) - 1;
        (view.strides[d] < 0 ? touch.begin : touch.end) += last * view.strides[d];
      }
    }
    added.push_back({view.block, touch});
  }
  // A block that is written must have the units of all that touch it.
  const auto touches = [&](int block) {
    std::vector<Touch> all;
    if (const auto found = touches_.find(block); found != touches_.end()) all = found->second;
    for (const auto& [other, touch] : added) {
      if (other == block) all.push_back(touch);
    }
    return all;
  };
  for (const auto& [block, _] : added) {
    const std::vector<Touch> all = touches(block);
    const bool is_written =
        std::any_of(all.begin(), all.end(), [](const Touch& touch) { return touch.is_write; });
    if (!is_written) continue;
    for (const Touch& touch : all) {
      // As many units as the group has by now are one.
      const int64_t unit = touch.unit * (touch.num_units / units);
      const int64_t first = all[0].unit * (all[0].num_units / units);
      const int64_t end = touch.end + touch.unit * (touch.num_units / units - 1);
      if (unit <= 0 || unit != first || touch.begin < 0 || end > unit) return false;
    }
  }
  const int64_t scale = is_first ? 1 : group_.num_units / units;
  for (int64_t& other : group_.sizes) other *= scale;
  group_.num_units = units;
  group_.steps.push_back(step);
  group_.dims.push_back(dims);
  group_.sizes.push_back(size);
  group_.time += TimeOf(step);
  for (const auto& [block, touch] : added) touches_[block].push_back(touch);
  return true;
}

void TileFinder::Close() {
  touches_.clear();
  if (!before_.empty()) {
    TileGroup& plain = groups_.emplace_back();
    plain.steps = std::exchange(before_, {});
  }
  TileGroup group = std::exchange(group_, {});
  if (group.steps.empty()) return;
  int64_t bytes = 1, least = 1;
  for (size_t s = 0; s < group.steps.size(); ++s) {
    for (size_t k = 0; k < group.steps[s].views.size(); ++k) {
      const View& view = group.steps[s].views[k];
      const int dim = group.dims[s][k];
      if (dim < 0) continue;
      bytes = std::max(bytes, view.bytes() / group.num_units);
      const int64_t stride = std::abs(view.strides[dim]) * group.sizes[s];
      if (stride > 0 && IsReduction(group.steps[s].operation) && IsColumn(view, stride)) {
        least = std::max(least, (kLine + stride - 1) / stride);
      }
    }
  }
  group.units_of_tile = std::max(least, limits_.bytes / bytes);
  // Whole cache lines.
  if (group.units_of_tile > 16) group.units_of_tile &= ~int64_t{15};
  const bool is_worth = group.time >= limits_.group && group.num_units >= 2 * group.units_of_tile;
  if (!is_worth) group.num_units = 1;
  groups_.push_back(std::move(group));
}

void TileFinder::FindInside() {
  std::map<int, std::vector<size_t>> groups;  // of each block
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (Step step : groups_[g].steps) {
      ForEachView(&step, [&](const View* view) { groups[view->block].push_back(g); });
    }
  }
  for (const Step& step : given_.steps) {
    if (!given_.Stays(step)) continue;
    for (const View& view : step.views) groups[view.block].push_back(groups_.size());
  }
  for (const auto& [block, places] : groups) {
    const bool is_one =
        std::all_of(places.begin(), places.end(), [&](size_t place) { return place == places[0]; });
    if (!is_one || places[0] == groups_.size()) continue;
    TileGroup& group = groups_[places[0]];
    if (group.num_units == 1) continue;
    const ProgramSteps::Block& of = given_.blocks[block];
    if (of.storage != ProgramSteps::Storage::kTemporary) continue;
    // All of it is units.
    bool is_whole = true;
    for (size_t s = 0; s < group.steps.size(); ++s) {
      for (size_t k = 0; k < group.steps[s].views.size(); ++k) {
        const View& view = group.steps[s].views[k];
        if (view.block != block) continue;
        const int dim = group.dims[s][k];
        is_whole = is_whole && dim >= 0 &&
                   view.strides[dim] * group.sizes[s] * group.num_units == of.bytes;
      }
    }
    if (is_whole) group.inside.push_back(block);
  }
}

}  // namespace

std::vector<TileGroup> FindTileGroups(const ProgramSteps& given, const TileLimits& limits) {
  return TileFinder(given, limits).Find();
}

}  // namespace tf_ti
