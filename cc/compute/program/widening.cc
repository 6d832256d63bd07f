#include "cc/compute/program/widening.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tf_ti {
namespace {

using Step = ProgramSteps::Step;

bool IsWidening(const Step& step) {
  return step.from == ElementType::kHalfBits || step.from == ElementType::kBFloat16Bits;
}

// True if a step's operand k is the rows among which it chooses.
bool AreRows(const Step& step, size_t k) { return step.operation == Operation::kGather && k == 1; }

bool AreSame(const View& a, const View& b) {
  return a.block == b.block && a.offset == b.offset && a.dims == b.dims && a.strides == b.strides;
}

// The dimensions along which a view has several elements, in the order of these in memory.
std::vector<int> OrderOf(const View& view) {
  std::vector<int> order;
  for (int d = 0; d < view.rank(); ++d) {
    if (view.dims[d] != 1 && view.strides[d] != 0) order.push_back(d);
  }
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const int64_t x = std::abs(view.strides[a]), y = std::abs(view.strides[b]);
    return x != y ? x > y : a < b;
  });
  return order;
}

// The time to make floats of a part, in units of an element's that has neighbours.
double TimeOfPart(const View& read) {
  constexpr double kAlone = 16;  // of an element that has no neighbour
  double count = 1;
  int64_t stride = SizeOf(ElementType::kFloat);
  for (const int d : OrderOf(read)) {
    count *= static_cast<double>(read.dims[d]);
    stride = read.strides[d];
  }
  return stride == SizeOf(ElementType::kFloat) ? count : kAlone * count;
}

class WideningFinder {
 public:
  explicit WideningFinder(ProgramSteps given) : result_(std::move(given)) {}

  ProgramSteps Find();

 private:
  // Floats of one part, as steps read them.
  struct Part {
    View read;
    View floats;
  };

  void FindStored();
  View StoredAt(const View& read) const;
  View Gathered(const Step& gather);
  View FloatsOf(const View& read);
  View AddTemporary(ElementType type, const Dims& dims, bool stays) {
    return result_.AddBlock(ProgramSteps::Storage::kTemporary, type, dims, stays);
  }

  ProgramSteps result_;
  std::map<int, View> stored_;  // numbers, by the block of floats that is not made of them
  std::vector<Part> parts_;
};

ProgramSteps WideningFinder::Find() {
  FindStored();
  if (stored_.empty()) return std::move(result_);
  const std::vector<Step> steps = std::exchange(result_.steps, {});
  for (Step step : steps) {
    if (step.loop != nullptr) {
      result_.steps.push_back(std::move(step));
      continue;
    }
    if (stored_.count(step.views[0].block) > 0) continue;
    for (size_t k = 1; k < step.views.size(); ++k) {
      if (stored_.count(step.views[k].block) == 0) continue;
      if (AreRows(step, k)) {
        const View chosen = Gathered(step);
        step = {Operation::kCast, chosen.type, step.to, {step.views[0], chosen}};
      } else {
        step.views[k] = FloatsOf(step.views[k]);
      }
    }
    result_.steps.push_back(std::move(step));
  }
  return std::move(result_);
}

void WideningFinder::FindStored() {
  // By block of floats, the parts that steps read of it, each once, and the time to make all parts.
  std::map<int, std::vector<View>> reads;
  std::map<int, double> times;
  // Loops read floats.
  std::set<int> in_loops;
  for (Step step : result_.steps) {
    if (step.loop == nullptr) continue;
    ForEachView(&step, [&](const View* view) { in_loops.insert(view->block); });
  }
  for (const Step& step : result_.steps) {
    if (step.loop != nullptr) continue;
    const int block = step.views[0].block;
    const bool may_go = in_loops.count(block) == 0 &&
                        result_.blocks[block].storage == ProgramSteps::Storage::kTemporary &&
                        IsWidening(step);
    if (may_go) reads[block];
    for (size_t k = 1; k < step.views.size(); ++k) {
      const View& read = step.views[k];
      const auto found = reads.find(read.block);
      if (found == reads.end()) continue;
      if (AreRows(step, k)) {
        times[read.block] += static_cast<double>(step.views[0].count());
        continue;
      }
      std::vector<View>& others = found->second;
      if (std::any_of(others.begin(), others.end(),
                      [&](const View& other) { return AreSame(read, other); })) {
        continue;
      }
      others.push_back(read);
      times[read.block] += TimeOfPart(read);
    }
  }
  for (const Step& step : result_.steps) {
    if (step.loop != nullptr) continue;
    const View& floats = step.views[0];
    if (reads.count(floats.block) == 0) continue;
    if (times[floats.block] < static_cast<double>(floats.count())) {
      stored_[floats.block] = step.views[1];
    }
  }
}

// The stored numbers of a view of floats.
View WideningFinder::StoredAt(const View& read) const {
  const View& whole = stored_.at(read.block);
  const int64_t size = SizeOf(whole.type), wide = SizeOf(ElementType::kFloat);
  View stored = read;
  stored.block = whole.block;
  stored.type = whole.type;
  stored.offset = read.offset / wide * size;
  for (int64_t& stride : stored.strides) stride = stride / wide * size;
  return stored;
}

// Adds the gather of numbers as they are stored.
View WideningFinder::Gathered(const Step& gather) {
  const View& result = gather.views[0];
  const View rows = StoredAt(gather.views[1]);
  const View chosen = AddTemporary(rows.type, result.dims, result_.blocks[result.block].stays);
  result_.steps.push_back(
      {Operation::kGather, gather.from, chosen.type, {chosen, rows, gather.views[2]}});
  return chosen;
}

// Makes floats of a part, once for all steps that read it. The floats lie in the same order.
View WideningFinder::FloatsOf(const View& read) {
  for (const Part& part : parts_) {
    if (AreSame(part.read, read)) return part.floats;
  }
  const std::vector<int> order = OrderOf(read);
  const View stored = StoredAt(read);
  View from = stored;
  from.dims.clear();
  from.strides.clear();
  for (const int d : order) {
    from.dims.push_back(stored.dims[d]);
    from.strides.push_back(stored.strides[d]);
  }
  const bool stays = result_.blocks[read.block].stays;
  const View whole = AddTemporary(ElementType::kFloat, from.dims, stays);
  result_.steps.push_back({Operation::kCast, from.type, whole.type, {whole, from}});
  View floats = read;
  floats.block = whole.block;
  floats.offset = 0;
  for (size_t d = 0; d < order.size(); ++d) floats.strides[order[d]] = whole.strides[d];
  parts_.push_back({read, floats});
  return floats;
}

}  // namespace

ProgramSteps WideningParts(ProgramSteps given) { return WideningFinder(std::move(given)).Find(); }

}  // namespace tf_ti
