#include "cc/compute/program/lanes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/compute/program/tiles.h"

namespace tf_ti {
namespace {

using Kind = Obstacle::Kind;
using Step = ProgramSteps::Step;
using Storage = ProgramSteps::Storage;

// A loop of a step: the operands that it goes through, and the dimension of each.
struct StepLoop {
  int64_t extent;
  std::vector<std::pair<int, int>> operands;
  bool is_reduced = false;  // the result has no element for each turn
};

std::vector<StepLoop> LoopsOfStep(const Step& step) {
  const std::vector<View>& views = step.views;
  const auto loop = [&](std::vector<std::pair<int, int>> operands, bool is_reduced = false) {
    const auto [k, d] = operands.back();
    return StepLoop{views[k].dims[d], std::move(operands), is_reduced};
  };
  if (IsReduction(step.operation)) {
    return {loop({{0, 0}, {1, 0}}), loop({{1, 1}}, true), loop({{0, 2}, {1, 2}})};
  }
  if (step.operation == Operation::kMatMul) {
    return {loop({{0, 0}, {1, 0}, {2, 0}}), loop({{0, 1}, {1, 1}}), loop({{1, 2}, {2, 1}}, true),
            loop({{0, 2}, {2, 2}})};
  }
  if (step.operation == Operation::kGather) {
    return {loop({{0, 0}, {1, 0}, {2, 0}}), loop({{0, 1}, {2, 1}}), loop({{1, 1}}, true),
            loop({{0, 2}, {1, 2}})};
  }
  std::vector<StepLoop> loops;
  for (int d = 0; d < views[0].rank(); ++d) {
    std::vector<std::pair<int, int>> operands;
    for (int k = 0; k < static_cast<int>(views.size()); ++k) operands.push_back({k, d});
    loops.push_back(loop(std::move(operands)));
  }
  return loops;
}

// Groups whose number does not depend on threads.
constexpr int64_t kMostGroups = 8;
// The bytes of the longest vectors.
constexpr int64_t kVector = 64;

// The extents of an array after all views of it are refined to common axes: see LaneFinder.
struct Axis {
  int64_t stride;
  int64_t extent;
  int node;
};

// A class of axes along which a step reduces, and the origin of the step. A set has each class
// once, with the first origin.
struct Reduction {
  int node;
  int origin = -1;
  bool operator<(const Reduction& other) const { return node < other.node; }
  bool operator==(const Reduction& other) const { return node == other.node; }
};
using Reductions = std::set<Reduction>;

// Joins axes into classes: an element of an axis goes with the elements of the same number of all
// axes of the class. A class whose elements some step mixes is marked; the others are lanes.
class LaneFinder {
 public:
  LaneFinder(const ProgramSteps& given, const LoopPlan& plan) : given_(given), plan_(plan) {
    ForEachStep(given.steps, [this](const Step& step, double times) {
      steps_.push_back(step);
      times_.push_back(times);
    });
    for (const Step& step : given.steps) AddEnds(step);
  }

  FoundLanes Find() {
    FindArrays();
    RefineAxes();
    FindAxes();
    for (const Step& step : steps_) {
      origin_ = step.origin;
      for (const View& view : step.views) MarkPartsOf(view);
      for (const StepLoop& loop : LoopsOfStep(step)) JoinAlong(step, loop);
      for (const View& view : step.views) MarkRepeated(ArrayOf(view));
    }
    origin_ = -1;
    for (const View& end : ends_) MarkPartsOf(end);
    MarkWholeArrays();
    MarkConstants();
    for (const Step& step : steps_) MarkReduced(step);
    for (const Array& array : arrays_) MarkRepeated(array);
    while (MarkSums()) {
    }
    return {Unmarked(), Marked()};
  }

 private:
  // The memory of a value, of one or several blocks.
  struct Array {
    int64_t bytes = 0;
    int64_t element = 0;
    bool is_odd = false;       // elements of several sizes
    std::set<int64_t> points;  // strides of axes, among them perhaps some that fit no others
    std::vector<Axis> axes;    // the innermost first
  };

  Array& ArrayOf(const View& view) { return arrays_[array_of_[view.block]]; }

  // Adds the bools and numbers that end a loop, and the loops in it: all lanes must agree on them.
  void AddEnds(const Step& step) {
    if (step.loop == nullptr) return;
    for (const std::optional<View>& end : {step.loop->goes_on, step.loop->num_iterations}) {
      if (end.has_value()) ends_.push_back(*end);
    }
    for (const Step& inner : step.loop->steps) AddEnds(inner);
  }

  void FindArrays() {
    int num_arrays = static_cast<int>(plan_.is_whole.size());
    for (const ProgramSteps::Block& block : given_.blocks) {
      const bool is_input = block.storage == Storage::kInput;
      const bool is_output = block.storage == Storage::kOutput;
      array_of_.push_back(is_input    ? plan_.inputs[block.number]
                          : is_output ? plan_.outputs[block.number]
                                      : num_arrays++);
    }
    arrays_.resize(num_arrays);
    for (size_t b = 0; b < given_.blocks.size(); ++b) {
      Array& array = arrays_[array_of_[b]];
      array.is_odd |= array.bytes != 0 && array.bytes != given_.blocks[b].bytes;
      array.bytes = given_.blocks[b].bytes;
    }
    for (const Step& step : steps_) {
      for (const View& view : step.views) {
        Array& array = ArrayOf(view);
        array.is_odd |= array.element != 0 && array.element != SizeOf(view.type);
        array.element = SizeOf(view.type);
      }
    }
  }

  // Gives all views of an array the same axes: one view may merge dimensions of another view.
  void RefineAxes() {
    for (const Step& step : steps_) {
      for (const View& view : step.views) {
        for (int d = 0; d < view.rank(); ++d) {
          if (view.dims[d] > 1 && view.strides[d] != 0) AddPoint(view, std::abs(view.strides[d]));
        }
        for (const Move& move : view.moves) AddPoint(view, std::abs(move.step));
      }
    }
    constexpr int kMostRounds = 100;
    bool is_changed = true;
    for (int round = 0; is_changed && round < kMostRounds; ++round) {
      is_changed = false;
      for (const Step& step : steps_) {
        for (const StepLoop& loop : LoopsOfStep(step)) is_changed |= RefineAlong(step, loop);
      }
    }
  }

  bool AddPoint(const View& view, int64_t point) {
    Array& array = ArrayOf(view);
    const bool fits = point > array.element && point < array.bytes;
    return fits && array.points.insert(point).second;
  }

  bool RefineAlong(const Step& step, const StepLoop& loop) {
    std::set<int64_t> cuts;
    for (const auto& [k, d] : loop.operands) {
      const int64_t stride = step.views[k].strides[d];
      if (stride <= 0) continue;
      for (const int64_t point : ArrayOf(step.views[k]).points) {
        const int64_t cut = point / stride;
        if (point % stride == 0 && cut > 1 && cut < loop.extent) cuts.insert(cut);
      }
    }
    bool is_changed = false;
    for (const auto& [k, d] : loop.operands) {
      const int64_t stride = step.views[k].strides[d];
      if (stride <= 0) continue;
      for (const int64_t cut : cuts) is_changed |= AddPoint(step.views[k], stride * cut);
    }
    return is_changed;
  }

  // Strides that are no multiples of each other are within one axis.
  void FindAxes() {
    for (Array& array : arrays_) {
      if (array.element == 0 || array.bytes <= array.element) continue;
      std::vector<int64_t> all = {array.element};
      all.insert(all.end(), array.points.begin(), array.points.end());
      all.push_back(array.bytes);
      std::vector<int64_t> kept;
      for (size_t i = 0; i < all.size(); ++i) {
        const bool is_end = i == 0 || i + 1 == all.size();
        const bool fits = std::all_of(all.begin(), all.end(), [&](int64_t other) {
          return std::max(other, all[i]) % std::min(other, all[i]) == 0;
        });
        if (is_end || fits) kept.push_back(all[i]);
      }
      for (size_t i = 0; i + 1 < kept.size(); ++i) {
        array.axes.push_back({kept[i], kept[i + 1] / kept[i], NewNode()});
        if (array.is_odd) Mark(array.axes.back(), Kind::kSeveralSizes);
      }
    }
  }

  int NewNode() {
    parents_.push_back(static_cast<int>(parents_.size()));
    marks_.emplace_back();
    return parents_.back();
  }
  int Root(int node) {
    while (parents_[node] != node) node = parents_[node] = parents_[parents_[node]];
    return node;
  }
  void Join(int a, int b) {
    a = Root(a), b = Root(b);
    if (!IsMarked(b)) marks_[b] = marks_[a];
    parents_[a] = b;
  }
  int ClassOf(const Axis& axis) { return Root(axis.node); }
  bool IsMarked(int node) const { return marks_[node].has_value(); }
  // The first mark of a class tells why.
  void Mark(const Axis& axis, Kind kind) { MarkClass(ClassOf(axis), {kind, origin_}); }
  void MarkClass(int node, const Obstacle& obstacle) {
    std::optional<Obstacle>& mark = marks_[Root(node)];
    if (!mark.has_value()) mark = obstacle;
  }

  // The axes that a dimension goes through from end to end. None if it takes parts of an axis.
  std::vector<Axis> AxesAlong(const View& view, int d) {
    std::vector<Axis> found;
    const int64_t begin = view.strides[d], end = begin * view.dims[d];
    if (view.dims[d] == 1 || begin <= 0) return found;
    int64_t at = begin;
    for (const Axis& axis : ArrayOf(view).axes) {
      if (axis.stride != at || at == end) continue;
      if (view.offset / axis.stride % axis.extent != 0) return {};
      found.push_back(axis);
      at *= axis.extent;
    }
    if (at != end) found.clear();
    return found;
  }

  // True if the dimensions whose strides are less than `size` reach no element of the next, or of
  // the last, `size` bytes.
  static bool StaysWithin(const View& view, int64_t size) {
    int64_t first = view.offset % size, last = first;
    for (int d = 0; d < view.rank(); ++d) {
      const int64_t stride = view.strides[d];
      if (std::abs(stride) < size) (stride < 0 ? first : last) += stride * (view.dims[d] - 1);
    }
    return first >= 0 && last < size;
  }

  // Marks the axes of which a view has parts, and not each element once.
  void MarkPartsOf(const View& view) {
    std::map<int64_t, int> times;  // by stride
    for (int d = 0; d < view.rank(); ++d) {
      if (view.dims[d] == 1 || view.strides[d] == 0) continue;
      const std::vector<Axis> along = AxesAlong(view, d);
      for (const Axis& axis : along) ++times[axis.stride];
      if (!along.empty()) continue;
      for (const Axis& axis : ArrayOf(view).axes) {
        if (axis.stride * axis.extent <= std::abs(view.strides[d])) continue;
        Mark(axis, Kind::kParts);
        if (StaysWithin(view, axis.stride * axis.extent)) break;
      }
    }
    for (const Axis& axis : ArrayOf(view).axes) {
      if (times[axis.stride] != 1) Mark(axis, Kind::kParts);
    }
  }

  void JoinAlong(const Step& step, const StepLoop& loop) {
    if (loop.extent == 1) return;
    std::vector<std::vector<Axis>> along;
    bool has_parts = false;
    for (const auto& [k, d] : loop.operands) {
      const View& view = step.views[k];
      // A number that is repeated has no element for each turn.
      if (view.dims[d] == 1 || view.strides[d] == 0) continue;
      along.push_back(AxesAlong(view, d));
      has_parts |= along.back().empty();
    }
    if (has_parts) {
      for (const std::vector<Axis>& axes : along) {
        for (const Axis& axis : axes) Mark(axis, Kind::kParts);
      }
      return;
    }
    // For each number of turns of the inner axes, the number of operands that have an axis end
    // there.
    std::map<int64_t, size_t> times;
    for (const std::vector<Axis>& axes : along) {
      int64_t turns = 1;
      for (const Axis& axis : axes) ++times[turns *= axis.extent];
    }
    std::map<int64_t, std::vector<Axis>> segments;  // by the turns where they end
    for (const std::vector<Axis>& axes : along) {
      int64_t turns = 1;
      std::vector<Axis> segment;
      for (const Axis& axis : axes) {
        segment.push_back(axis);
        turns *= axis.extent;
        if (times[turns] < along.size()) continue;
        std::vector<Axis>& all = segments[turns];
        all.insert(all.end(), segment.begin(), segment.end());
        segment.clear();
      }
    }
    for (const auto& [_, axes] : segments) {
      if (axes.size() > along.size()) {
        for (const Axis& axis : axes) Mark(axis, Kind::kParts);
      } else {
        for (const Axis& axis : axes) Join(axis.node, axes[0].node);
      }
    }
  }

  void MarkWholeArrays() {
    for (size_t a = 0; a < plan_.is_whole.size(); ++a) {
      if (!plan_.is_whole[a]) continue;
      for (const Axis& axis : arrays_[a].axes) {
        MarkClass(axis.node, {Kind::kWhole, -1, static_cast<int>(a)});
      }
    }
  }

  // The lanes of a constant must be alike: all groups have one program.
  void MarkConstants() {
    for (size_t b = 0; b < given_.blocks.size(); ++b) {
      const std::vector<char>& bytes = given_.blocks[b].constant;
      if (bytes.empty()) continue;
      for (const Axis& axis : arrays_[array_of_[b]].axes) {
        const int64_t size = axis.stride, all = axis.stride * axis.extent;
        bool are_alike = true;
        for (int64_t at = 0; at < static_cast<int64_t>(bytes.size()) && are_alike; at += size) {
          const char* const first = bytes.data() + at / all * all;
          are_alike = std::memcmp(bytes.data() + at, first, size) == 0;
        }
        if (!are_alike) MarkClass(axis.node, {Kind::kConstant, OriginOfReader(b)});
      }
    }
  }

  int OriginOfReader(size_t block) const {
    for (const Step& step : steps_) {
      for (const View& view : step.views) {
        if (view.block == static_cast<int>(block)) return step.origin;
      }
    }
    return -1;
  }

  // The classes of the axes that a step reduces.
  Reductions ReducedBy(const Step& step) {
    Reductions classes;
    for (const StepLoop& loop : LoopsOfStep(step)) {
      if (!loop.is_reduced) continue;
      for (const auto& [k, d] : loop.operands) {
        for (const Axis& axis : AxesAlong(step.views[k], d)) {
          classes.insert({ClassOf(axis), step.origin});
        }
      }
    }
    return classes;
  }

  // Marks classes that the sums, or the reductions, of some steps mix.
  void MarkReducedClasses(const Reductions& classes) {
    for (const auto& [node, origin] : classes) MarkClass(node, {Kind::kReduced, origin});
  }

  void MarkReduced(const Step& step) {
    const Operation operation = step.operation;
    const bool may_be_sum = operation == Operation::kSum || operation == Operation::kMatMul;
    if (!may_be_sum && operation != Operation::kAny) MarkReducedClasses(ReducedBy(step));
    if (!DependsOnPlaces(step)) return;
    for (const Axis& axis : ArrayOf(step.views[0]).axes) {
      MarkClass(axis.node, {Kind::kPlaces, step.origin});
    }
  }

  // Two axes of an array that go with each other have a diagonal. Each step has an array with all
  // of its loops.
  void MarkRepeated(const Array& array) {
    std::set<int> seen;
    for (const Axis& axis : array.axes) {
      if (!seen.insert(ClassOf(axis)).second) Mark(axis, Kind::kRepeated);
    }
  }

  // A sum over lanes may be added to other such sums, and over iterations. A bool that tells
  // whether a lane failed may be joined with other such bools. Marks the classes of all other uses,
  // and returns true if a class was not marked before.
  bool MarkSums() {
    const size_t before = NumMarked();
    sums_.assign(arrays_.size(), {});
    failures_.assign(arrays_.size(), {});
    has_others_.assign(arrays_.size(), false);
    // Later steps write the states of loops, so each round knows more.
    for (auto known = std::make_tuple(sums_, failures_, has_others_);;) {
      FindAllSums();
      if (known == std::tie(sums_, failures_, has_others_)) break;
      known = {sums_, failures_, has_others_};
    }
    for (size_t o = 0; o < plan_.outputs.size(); ++o) {
      const int array = plan_.outputs[o];
      if (plan_.uses[o] != LoopPlan::Use::kAdded) MarkReducedClasses(sums_[array]);
      if (plan_.uses[o] != LoopPlan::Use::kFailure) MarkReducedClasses(failures_[array]);
    }
    for (const View& end : ends_) {
      MarkReducedClasses(sums_[array_of_[end.block]]);
      MarkReducedClasses(failures_[array_of_[end.block]]);
    }
    return NumMarked() > before;
  }

  // Zeros are a sum over any lanes, and false is no failure of any lane.
  bool AreZeros(const View& view) const {
    const std::vector<char>& bytes = given_.blocks[view.block].constant;
    return !bytes.empty() &&
           std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; });
  }
  // True if no step is known that gives the array another value.
  bool AreZeros(int array) const {
    return has_zeros_[array] && sums_[array].empty() && !has_others_[array];
  }

  void FindAllSums() {
    std::vector<bool> is_written(arrays_.size(), false);
    has_zeros_.assign(arrays_.size(), false);
    for (const Step& step : steps_) {
      const int result = array_of_[step.views[0].block];
      if (step.operation == Operation::kCopy && AreZeros(step.views[1])) {
        has_zeros_[result] = !is_written[result];
        continue;
      }
      Reductions sums, failures, bad;
      FindSums(step, &sums, &failures, &bad);
      if (is_written[result]) {
        AddDifference(sums, sums_[result], &bad);
        AddDifference(failures, failures_[result], &bad);
      }
      for (const Axis& axis : arrays_[result].axes) {
        const int node = ClassOf(axis);
        for (const Reductions* all : {&sums, &failures}) {
          const auto found = all->find({node});
          if (found != all->end()) bad.insert(*found);
        }
      }
      MarkReducedClasses(bad);
      is_written[result] = true;
      has_zeros_[result] = false;
      sums_[result] = UnmarkedOf(sums);
      if (sums_[result].empty()) has_others_[result] = true;
      failures_[result] = UnmarkedOf(failures);
    }
  }

  size_t NumMarked() const {
    return std::count_if(marks_.begin(), marks_.end(), [](const auto& mark) { return !!mark; });
  }

  Reductions UnmarkedOf(const Reductions& classes) const {
    Reductions unmarked;
    for (const Reduction& each : classes) {
      if (!IsMarked(each.node)) unmarked.insert(each);
    }
    return unmarked;
  }

  static void AddDifference(const Reductions& a, const Reductions& b, Reductions* all) {
    std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(),
                                  std::inserter(*all, all->end()));
  }

  // Finds the classes over which a step's result is a sum, the classes of which the result tells a
  // failure, and the classes whose sums or failures the step uses in another way.
  void FindSums(const Step& step, Reductions* sums, Reductions* failures, Reductions* bad) {
    const Operation operation = step.operation;
    const bool adds = operation == Operation::kAdd;
    const bool keeps_sums = operation == Operation::kCopy || operation == Operation::kNeg || adds ||
                            operation == Operation::kSum;
    const bool keeps_failures = operation == Operation::kCopy || operation == Operation::kAny ||
                                operation == Operation::kLogicalOr;
    for (size_t k = 1; k < step.views.size(); ++k) {
      const int read = array_of_[step.views[k].block];
      if (adds && k == 2 && !AreZeros(read) && !AreZeros(array_of_[step.views[1].block])) {
        AddDifference(*sums, sums_[read], bad);
      }
      (keeps_sums ? sums : bad)->insert(sums_[read].begin(), sums_[read].end());
      (keeps_failures ? failures : bad)->insert(failures_[read].begin(), failures_[read].end());
    }
    if (operation == Operation::kSum || operation == Operation::kMatMul) {
      sums->merge(UnmarkedOf(ReducedBy(step)));
    } else if (operation == Operation::kAny) {
      failures->merge(UnmarkedOf(ReducedBy(step)));
    }
  }

  std::vector<Lanes> Unmarked() {
    std::map<int, Lanes> found;  // by class
    for (const Array& array : arrays_) {
      for (const Axis& axis : array.axes) {
        const int node = ClassOf(axis);
        if (IsMarked(node)) continue;
        found[node].count = axis.extent;
      }
    }
    std::vector<Lanes> all;
    for (auto& [node, lanes] : found) {
      const auto stride_of = [&, node = node](const Array& array) {
        for (const Axis& axis : array.axes) {
          if (ClassOf(axis) == node) return axis.stride;
        }
        return int64_t{0};
      };
      for (const int array : array_of_) lanes.strides.push_back(stride_of(arrays_[array]));
      for (size_t a = 0; a < plan_.is_whole.size(); ++a) {
        lanes.array_strides.push_back(stride_of(arrays_[a]));
      }
      for (const int array : plan_.outputs) {
        lanes.is_sum.push_back(sums_[array].count({node}) + failures_[array].count({node}) > 0);
      }
      for (size_t s = 0; s < steps_.size(); ++s) {
        const Step& step = steps_[s];
        if (given_.Stays(step)) continue;
        // Some of the lanes of one vector take as long as all of them.
        const bool is_divided = std::any_of(
            step.views.begin(), step.views.end(),
            [&](const View& view) { return lanes.strides[view.block] * lanes.count > kVector; });
        (is_divided ? lanes.divided_time : lanes.shared_time) += times_[s] * TimeOf(step);
      }
      all.push_back(std::move(lanes));
    }
    const auto time = [](const Lanes& lanes) {
      const auto num_groups = std::clamp<int64_t>(lanes.count / 2, 1, kMostGroups);
      return lanes.shared_time + lanes.divided_time / static_cast<double>(num_groups);
    };
    // Where groups take the same time, the outermost lanes in memory come first.
    const auto spread = [](const Lanes& lanes) {
      return std::accumulate(lanes.strides.begin(), lanes.strides.end(), int64_t{0});
    };
    std::stable_sort(all.begin(), all.end(), [&](const Lanes& a, const Lanes& b) {
      if (time(a) != time(b)) return time(a) < time(b);
      return spread(a) > spread(b);
    });
    return all;
  }

  // The obstacles along the axes of the plan's arrays.
  std::vector<Obstacle> Marked() {
    const auto has = [](const std::vector<int>& all, size_t array) {
      return std::find(all.begin(), all.end(), static_cast<int>(array)) != all.end();
    };
    std::vector<int> states, others;
    for (size_t a = 0; a < plan_.is_whole.size(); ++a) {
      const bool is_state = has(plan_.inputs, a) && has(plan_.outputs, a);
      (is_state ? states : others).push_back(static_cast<int>(a));
    }
    states.insert(states.end(), others.begin(), others.end());
    std::vector<Obstacle> all;
    std::set<int> seen;
    for (const int a : states) {
      const std::vector<Axis>& axes = arrays_[a].axes;
      for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
        const int node = ClassOf(*axis);
        if (!IsMarked(node) || !seen.insert(node).second) continue;
        Obstacle& obstacle = all.emplace_back(*marks_[node]);
        if (obstacle.kind != Kind::kWhole) obstacle.array = a;
        obstacle.stride = axis->stride;
      }
    }
    return all;
  }

  const ProgramSteps& given_;
  const LoopPlan& plan_;
  std::vector<Step> steps_;  // all, those of loops among them
  std::vector<double> times_;
  std::vector<View> ends_;
  int origin_ = -1;            // of marks
  std::vector<int> array_of_;  // by block
  std::vector<Array> arrays_;
  std::vector<int> parents_;                    // of the nodes of classes
  std::vector<std::optional<Obstacle>> marks_;  // by node, of the classes' roots
  std::vector<Reductions> sums_;                // by array, the classes over which it is a sum
  std::vector<bool> has_others_;      // by array: true if a step gives it neither zeros nor a sum
  std::vector<bool> has_zeros_;       // by array: true if it has nothing else so far
  std::vector<Reductions> failures_;  // by array, the classes of which it tells a failure
};

}  // namespace

FoundLanes FindLanes(const ProgramSteps& given, const LoopPlan& plan) {
  return LaneFinder(given, plan).Find();
}

int64_t LanesOfGroup(const Lanes& lanes, int num_instructions, int64_t num_iterations,
                     int64_t num_threads) {
  // In nanoseconds: a loop of less time has no groups, and an instruction takes as much for any
  // number of lanes.
  constexpr double kLeast = 250e3, kInstruction = 8;
  constexpr int64_t kLine = 64;
  const double once = kInstruction * num_instructions + lanes.shared_time;
  const double work = lanes.divided_time;
  const bool is_short = (once + work) * static_cast<double>(num_iterations) < kLeast;
  if (is_short || num_threads == 1) return lanes.count;
  // What all groups do again adds at most a quarter.
  double num_groups = 1 + work / (4 * once);
  if (num_threads > 0) {
    const auto threads = static_cast<double>(num_threads);
    const bool is_worth = once + work / threads < 0.75 * (once + work);
    num_groups = std::min(2 * threads, std::max(num_groups, is_worth ? threads : 1));
  } else {
    num_groups = std::min<double>(num_groups, kMostGroups);
  }
  const auto most = std::min<int64_t>(static_cast<int64_t>(num_groups), lanes.count / 2);
  if (most < 2) return lanes.count;
  // Groups share no cache lines if they have enough lanes.
  int64_t line = 1;
  for (const int64_t stride : lanes.strides) {
    if (stride > 0) line = std::max(line, (kLine + stride - 1) / stride);
  }
  int64_t size = (lanes.count + most - 1) / most;
  if (2 * line <= lanes.count) size = (size + line - 1) / line * line;
  return size;
}

ProgramSteps CutLanes(const ProgramSteps& given, const Lanes& lanes, int64_t count) {
  ProgramSteps result = given;
  // The bytes of a block from the first lane of a run of lanes to the first of the next run.
  const auto run_of = [&](int block) { return lanes.strides[block] * lanes.count; };
  for (size_t b = 0; b < given.blocks.size(); ++b) {
    const int64_t run = run_of(static_cast<int>(b)), kept = lanes.strides[b] * count;
    if (run == 0) continue;
    ProgramSteps::Block& block = result.blocks[b];
    block.bytes = block.bytes / run * kept;
    if (block.constant.empty()) continue;
    block.constant.clear();
    for (auto at = given.blocks[b].constant.begin(); at != given.blocks[b].constant.end();
         at += run) {
      block.constant.insert(block.constant.end(), at, at + kept);
    }
  }
  const auto has_lanes = [&](const View& view, int d) {
    const int64_t run = run_of(view.block), stride = view.strides[d];
    return run > 0 && stride > 0 && stride <= lanes.strides[view.block] &&
           stride * view.dims[d] >= run;
  };
  const auto cut_view = [&](View* view) {
    const int64_t run = run_of(view->block), kept = lanes.strides[view->block] * count;
    if (run == 0) return;
    view->offset = view->offset / run * kept + view->offset % run;
    const auto cut = [&](int64_t* stride) {
      if (std::abs(*stride) >= run) *stride = *stride / run * kept;
    };
    for (int64_t& stride : view->strides) cut(&stride);
    for (Move& move : view->moves) cut(&move.step);
  };
  const auto cut_step = [&](Step* cut) {
    const Step step = *cut;
    for (const StepLoop& loop : LoopsOfStep(step)) {
      const bool is_cut =
          loop.extent > 1 && std::any_of(loop.operands.begin(), loop.operands.end(),
                                         [&](const std::pair<int, int>& at) {
                                           return has_lanes(step.views[at.first], at.second);
                                         });
      if (!is_cut) continue;
      for (const auto& [k, d] : loop.operands) {
        if (step.views[k].dims[d] > 1) cut->views[k].dims[d] = loop.extent / lanes.count * count;
      }
    }
    for (View& view : cut->views) cut_view(&view);
  };
  const std::function<void(std::vector<Step>*)> cut_steps = [&](std::vector<Step>* steps) {
    for (Step& step : *steps) {
      if (step.loop == nullptr) {
        cut_step(&step);
        continue;
      }
      auto loop = std::make_shared<ProgramSteps::Loop>(*step.loop);
      if (loop->goes_on.has_value()) cut_view(&*loop->goes_on);
      if (loop->stops.has_value()) cut_view(&*loop->stops);
      if (loop->num_iterations.has_value()) cut_view(&*loop->num_iterations);
      cut_steps(&loop->steps);
      cut_steps(&loop->last);
      step.loop = std::move(loop);
    }
  };
  cut_steps(&result.steps);
  return result;
}

}  // namespace tf_ti
