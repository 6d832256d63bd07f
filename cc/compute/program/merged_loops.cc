#include "cc/compute/program/merged_loops.h"

#include <algorithm>

namespace tf_ti {
namespace {

// Moves the smallest loops out of the first kMostLoops. The innermost one stays.
void MoveSmallestOut(Loops* loops) {
  for (size_t rest = loops->sizes.size(); rest > kMostLoops; --rest) {
    const auto begin = loops->sizes.begin();
    const auto at = std::min_element(begin + 1, begin + rest) - begin;
    std::rotate(begin + at, begin + at + 1, begin + rest);
    for (Dims& strides : loops->strides) {
      std::rotate(strides.begin() + at, strides.begin() + at + 1, strides.begin() + rest);
    }
  }
}

}  // namespace

Loops MergeLoops(const std::vector<View>& views) {
  Loops loops;
  loops.strides.resize(views.size());
  const Dims& dims = views[0].dims;
  for (int d = static_cast<int>(dims.size()) - 1; d >= 0; --d) {
    if (dims[d] == 1) continue;
    bool merges = !loops.sizes.empty();
    for (size_t k = 0; k < views.size() && merges; ++k) {
      merges = views[k].strides[d] == loops.strides[k].back() * loops.sizes.back();
    }
    if (merges) {
      loops.sizes.back() *= dims[d];
      continue;
    }
    loops.sizes.push_back(dims[d]);
    for (size_t k = 0; k < views.size(); ++k) loops.strides[k].push_back(views[k].strides[d]);
  }
  if (loops.sizes.empty()) {
    loops.sizes.push_back(1);
    for (size_t k = 0; k < views.size(); ++k) loops.strides[k].push_back(SizeOf(views[k].type));
  }
  return loops;
}

Loops LoopsOf(const ProgramSteps::Step& step) {
  Loops loops = MergeLoops(step.views);
  for (size_t k = 1; k < step.views.size(); ++k) {
    const int64_t stride = loops.strides[k][0];
    if (stride == 0) {
      loops.layout |= 1 << (k - 1);
    } else if (stride != SizeOf(step.views[k].type)) {
      loops.layout = kStrided;
      break;
    }
  }
  if (loops.strides[0][0] != SizeOf(step.views[0].type)) loops.layout = kStrided;
  if (FindKernel(step.operation, step.from, step.to, loops.layout) == nullptr) {
    loops.layout = 0;
    loops.sizes.insert(loops.sizes.begin(), 1);
    for (size_t k = 0; k < step.views.size(); ++k) {
      loops.strides[k].insert(loops.strides[k].begin(), SizeOf(step.views[k].type));
    }
  }
  MoveSmallestOut(&loops);
  return loops;
}

int64_t InstructionsOf(const ProgramSteps::Step& step) {
  if (step.views[0].rank() < kMostLoops || !IsElementwise(step.operation)) return 1;
  const Dims sizes = LoopsOf(step).sizes;
  return CountOf(Dims(sizes.begin() + std::min<size_t>(sizes.size(), kMostLoops), sizes.end()));
}

int64_t InstructionsOfCopy(const View& view) {
  const View copy = View::Whole(view.block, view.type, view.dims);
  return InstructionsOf({Operation::kCopy, view.type, view.type, {copy, view}});
}

}  // namespace tf_ti
