#include "cc/compute/program/sources.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/compute/program/merged_loops.h"

namespace tf_ti {
namespace {

using Step = ProgramSteps::Step;

constexpr size_t kMostParts = 8;   // of a block
constexpr size_t kMostSteps = 16;  // that one becomes

// Where a view lies in a block, in elements of each dimension.
struct Box {
  Dims begin;
  Dims sizes;
};

std::optional<Box> Intersection(const Box& a, const Box& b) {
  Box box = a;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    box.begin[d] = std::max(a.begin[d], b.begin[d]);
    box.sizes[d] = std::min(a.begin[d] + a.sizes[d], b.begin[d] + b.sizes[d]) - box.begin[d];
    if (box.sizes[d] <= 0) return std::nullopt;
  }
  return box;
}

// The part of a view, which covers a box, that covers a box within.
View Cut(View view, const Box& box, const Box& within) {
  for (int d = 0; d < view.rank(); ++d) {
    view = view.Slice(d, within.begin[d] - box.begin[d], within.sizes[d], 1);
  }
  return view;
}

// Estimated nanoseconds of a step whose operands are in the caches.
double TimeInCaches(const Step& step) {
  constexpr double kInstruction = 6, kRow = 1.2, kNumber = 0.8, kVector = 0.4, kFunction = 6;
  const Loops loops = LoopsOf(step);
  const int64_t rows = step.views[0].count() / std::max<int64_t>(loops.sizes[0], 1);
  const double calls = kInstruction * InstructionsOf(step);
  if (loops.layout == kStrided) return calls + rows * (kRow + kNumber * loops.sizes[0]);
  const int64_t lanes = 32 / SizeOf(step.from);
  const int64_t vectors = (loops.sizes[0] + lanes - 1) / lanes;
  const double vector = IsFunction(step.operation) ? kFunction : kVector;
  return calls + rows * (kRow + vector * vectors);
}

double TimeInCaches(const std::vector<Step>& steps) {
  double time = 0;
  for (const Step& step : steps) time += TimeInCaches(step);
  return time;
}

class SourceFinder {
 public:
  // Looks at the steps of no loop, or of one, and at blocks that may go: no others touch them.
  SourceFinder(const ProgramSteps& given, const std::vector<Step>& among,
               const std::vector<bool>& may_go, double least_saving)
      : given_(given), among_(among), may_go_(may_go), least_saving_(least_saving) {}

  std::vector<Step> Find();

 private:
  struct Part {
    Box box;
    View source;
  };

  std::optional<Box> BoxOf(const View& view) const;
  bool FindParts(int block);
  bool ReadParts(const Step& step, int block, std::vector<Step>* steps) const;
  void TryWithout(int block);

  const ProgramSteps& given_;
  const std::vector<Step>& among_;
  const std::vector<bool>& may_go_;
  const double least_saving_;
  // What has become of each step.
  std::vector<std::vector<Step>> steps_;
  // By block, the steps that write and that read it.
  std::vector<std::vector<size_t>> writers_;
  std::vector<std::vector<size_t>> readers_;
  // The block that is looked at:
  Dims dims_;
  Dims strides_;
  ElementType type_ = ElementType::kFloat;
  std::vector<Part> parts_;
};

std::vector<Step> SourceFinder::Find() {
  writers_.resize(given_.blocks.size());
  readers_.resize(given_.blocks.size());
  std::vector<int> order;
  const auto write = [&](const View& view, size_t i) {
    std::vector<size_t>& writers = writers_[view.block];
    if (writers.empty()) order.push_back(view.block);
    if (writers.empty() || writers.back() != i) writers.push_back(i);
  };
  const auto read = [&](const View& view, size_t i) {
    std::vector<size_t>& readers = readers_[view.block];
    if (readers.empty() || readers.back() != i) readers.push_back(i);
  };
  for (size_t i = 0; i < among_.size(); ++i) {
    Step step = among_[i];
    steps_.push_back({step});
    if (step.loop != nullptr) {
      ForEachView(&step, [&](View* view) {
        write(*view, i);
        read(*view, i);
      });
      continue;
    }
    write(step.views[0], i);
    for (size_t k = 1; k < step.views.size(); ++k) read(step.views[k], i);
  }
  for (const int block : order) TryWithout(block);
  std::vector<Step> result;
  for (const std::vector<Step>& steps : steps_) {
    result.insert(result.end(), steps.begin(), steps.end());
  }
  return result;
}

// Returns nothing for a view that is no box of the block's dimensions.
std::optional<Box> SourceFinder::BoxOf(const View& view) const {
  if (view.dims.size() != dims_.size() || view.type != type_) return std::nullopt;
  Box box = {{}, view.dims};
  int64_t rest = view.offset;
  for (size_t d = 0; d < dims_.size(); ++d) {
    if (view.dims[d] != 1 && view.strides[d] != strides_[d]) return std::nullopt;
    box.begin.push_back(rest / strides_[d]);
    rest %= strides_[d];
    if (box.begin[d] + view.dims[d] > dims_[d]) return std::nullopt;
  }
  return box;
}

// False if the block has other parts than copies, or parts that share elements.
bool SourceFinder::FindParts(int block) {
  parts_.clear();
  int64_t count = 0;
  for (const size_t place : writers_[block]) {
    for (const Step& step : steps_[place]) {
      if (step.loop != nullptr) return false;
      if (step.operation != Operation::kCopy || parts_.size() == kMostParts) return false;
      const View& to = step.views[0];
      if (parts_.empty()) {
        // The dimensions follow from how far their elements are from each other.
        if (to.rank() == 0) return false;
        dims_ = to.dims;
        strides_ = to.strides;
        int64_t bytes = given_.blocks[block].bytes;
        for (size_t d = 0; d < dims_.size(); ++d) {
          if (strides_[d] <= 0 || bytes % strides_[d] != 0) return false;
          dims_[d] = bytes / strides_[d];
          bytes = strides_[d];
        }
        type_ = to.type;
        if (bytes != SizeOf(type_)) return false;
      }
      const std::optional<Box> box = BoxOf(to);
      if (!box.has_value() || !to.moves.empty()) return false;
      for (const Part& part : parts_) {
        if (Intersection(part.box, *box).has_value()) return false;
      }
      // What it copies stays as it is.
      const std::vector<size_t>& writers = writers_[step.views[1].block];
      if (!writers.empty() && writers.back() > place) return false;
      parts_.push_back({*box, step.views[1]});
      count += to.count();
    }
  }
  return count == CountOf(dims_);
}

// Adds what a step becomes that reads parts of the block, not the block. Returns false if it
// cannot.
bool SourceFinder::ReadParts(const Step& step, int block, std::vector<Step>* steps) const {
  if (step.loop != nullptr) return false;
  size_t k = 1;
  while (k < step.views.size() && step.views[k].block != block) ++k;
  if (k == step.views.size()) {
    steps->push_back(step);
    return steps->size() <= kMostSteps;
  }
  const std::optional<Box> box = BoxOf(step.views[k]);
  const bool may_be_cut = IsElementwise(step.operation) && !IsCall(step.operation);
  if (!box.has_value() || !may_be_cut) return false;
  for (const View& view : step.views) {
    if (view.dims != box->sizes) return false;
  }
  for (const Part& part : parts_) {
    const std::optional<Box> common = Intersection(*box, part.box);
    if (!common.has_value()) continue;
    Step cut = step;
    for (View& view : cut.views) view = Cut(view, *box, *common);
    cut.views[k] = Cut(part.source, part.box, *common);
    if (!ReadParts(cut, block, steps)) return false;
  }
  return true;
}

void SourceFinder::TryWithout(int block) {
  const ProgramSteps::Block& of = given_.blocks[block];
  if (of.storage != ProgramSteps::Storage::kTemporary || of.stays || !may_go_[block]) return;
  if (readers_[block].empty() || !FindParts(block)) return;
  std::vector<std::vector<Step>> changed;
  double before = 0, after = 0;
  for (const size_t place : writers_[block]) before += TimeInCaches(steps_[place]);
  for (const size_t place : readers_[block]) {
    if (place <= writers_[block].back()) return;
    std::vector<Step>& steps = changed.emplace_back();
    for (const Step& step : steps_[place]) {
      if (!ReadParts(step, block, &steps)) return;
    }
    before += TimeInCaches(steps_[place]);
    after += TimeInCaches(steps);
  }
  if (before - after < least_saving_) return;
  for (size_t i = 0; i < changed.size(); ++i) {
    const size_t place = readers_[block][i];
    steps_[place] = std::move(changed[i]);
    for (const Part& part : parts_) {
      std::vector<size_t>& readers = readers_[part.source.block];
      if (std::count(readers.begin(), readers.end(), place) == 0) readers.push_back(place);
    }
  }
  for (const size_t place : writers_[block]) steps_[place].clear();
}

// By block, how many views of the steps lie in it.
std::vector<int> TouchesOf(const ProgramSteps& given, const std::vector<Step>& steps) {
  std::vector<int> touches(given.blocks.size(), 0);
  for (Step step : steps) {
    ForEachView(&step, [&](const View* view) { ++touches[view->block]; });
  }
  return touches;
}

// Looks at these steps, and at the steps of each loop alone. `touches` counts the views of the
// whole program.
std::vector<Step> ReadingSourcesIn(const ProgramSteps& given, std::vector<Step> steps,
                                   const std::vector<int>& touches, double least_saving) {
  for (Step& step : steps) {
    if (step.loop == nullptr) continue;
    auto loop = std::make_shared<ProgramSteps::Loop>(*step.loop);
    const auto body = loop->steps.begin() + static_cast<int64_t>(loop->num_condition_steps);
    const std::vector<Step> changed =
        ReadingSourcesIn(given, {body, loop->steps.end()}, touches, least_saving);
    loop->steps.erase(body, loop->steps.end());
    loop->steps.insert(loop->steps.end(), changed.begin(), changed.end());
    step.loop = std::move(loop);
  }
  const std::vector<int> own = TouchesOf(given, steps);
  std::vector<bool> may_go(given.blocks.size());
  for (size_t b = 0; b < may_go.size(); ++b) may_go[b] = own[b] == touches[b];
  return SourceFinder(given, steps, may_go, least_saving).Find();
}

}  // namespace

ProgramSteps ReadingSources(const ProgramSteps& given, double least_saving) {
  ProgramSteps result = given;
  const std::vector<int> touches = TouchesOf(given, given.steps);
  result.steps = ReadingSourcesIn(given, given.steps, touches, least_saving);
  return result;
}

}  // namespace tf_ti
