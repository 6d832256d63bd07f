#include "cc/compute/program/merged_loops.h"

namespace tf_ti {

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

Loops LoopsOf(const ProgramBuilder::Step& step) {
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
  if (FindKernel(step.operation, step.from, step.to, loops.layout) != nullptr) return loops;
  loops.layout = 0;
  loops.sizes.insert(loops.sizes.begin(), 1);
  for (size_t k = 0; k < step.views.size(); ++k) {
    loops.strides[k].insert(loops.strides[k].begin(), SizeOf(step.views[k].type));
  }
  return loops;
}

}  // namespace tf_ti
