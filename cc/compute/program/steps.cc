#include "cc/compute/program/steps.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tf_ti {

View ProgramSteps::AddBlock(Storage storage, ElementType type, const Dims& dims, bool stays) {
  View view = View::Whole(static_cast<int>(blocks.size()), type, dims);
  Block block;
  block.storage = storage;
  block.bytes = view.bytes();
  block.stays = stays;
  blocks.push_back(std::move(block));
  return view;
}

bool AreDots(const View& left, const View& right) {
  const int64_t size = SizeOf(left.type);
  // No stride matters along one element: BroadcastTo makes it 0.
  return (left.dims[2] == 1 || left.strides[2] == size) &&
         (right.dims[1] == 1 || right.strides[1] == size) &&
         (right.dims[2] == 1 || right.strides[2] != size);
}

bool DependsOnPlaces(const ProgramSteps::Step& step) {
  const bool is_extreme = step.operation == Operation::kMax || step.operation == Operation::kMin;
  return is_extreme && IsHalf(step.from) && step.views[0].dims[2] > 1;
}

ProgramSteps WithoutDeadSteps(const ProgramSteps& given) {
  using Storage = ProgramSteps::Storage;
  std::vector<bool> is_read(given.blocks.size());
  for (size_t b = 0; b < given.blocks.size(); ++b) {
    is_read[b] = given.blocks[b].storage == Storage::kOutput;
  }
  ProgramSteps result = given;
  result.steps.clear();
  for (auto step = given.steps.rbegin(); step != given.steps.rend(); ++step) {
    if (!is_read[step->views[0].block]) continue;
    for (const View& view : step->views) is_read[view.block] = true;
    result.steps.push_back(*step);
  }
  std::reverse(result.steps.begin(), result.steps.end());
  for (size_t b = 0; b < result.blocks.size(); ++b) {
    if (is_read[b] || result.blocks[b].storage != Storage::kConstant) continue;
    result.blocks[b].bytes = 0;
    result.blocks[b].constant.clear();
  }
  return result;
}

}  // namespace tf_ti
