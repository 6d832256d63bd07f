#include "cc/compute/program/steps.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace tf_ti {

int64_t ProgramSteps::Loop::expected_count() const {
  return has_static_count() ? count : std::min(count, kExpectedIterations);
}

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

namespace {

using Step = ProgramSteps::Step;

// Marks the blocks that steps read for the sake of blocks that are read. Returns true if any of the
// steps is needed.
bool MarkRead(const std::vector<Step>& steps, std::vector<bool>* is_read) {
  bool is_any_needed = false;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (step->loop != nullptr) {
      // What an iteration reads the one before may write.
      const ProgramSteps::Loop& loop = *step->loop;
      bool is_needed = MarkRead(loop.last, is_read);
      for (std::vector<bool> before; before != *is_read;) {
        before = *is_read;
        is_needed |= MarkRead(loop.steps, is_read);
        if (!is_needed) continue;
        if (loop.goes_on.has_value()) (*is_read)[loop.goes_on->block] = true;
        if (loop.stops.has_value()) (*is_read)[loop.stops->block] = true;
        if (loop.num_iterations.has_value()) (*is_read)[loop.num_iterations->block] = true;
      }
      is_any_needed |= is_needed;
    } else if ((*is_read)[step->views[0].block]) {
      for (const View& view : step->views) (*is_read)[view.block] = true;
      is_any_needed = true;
    }
  }
  return is_any_needed;
}

std::vector<Step> Needed(const std::vector<Step>& steps, const std::vector<bool>& is_read) {
  std::vector<Step> needed;
  for (const Step& step : steps) {
    if (step.loop == nullptr) {
      if (is_read[step.views[0].block]) needed.push_back(step);
      continue;
    }
    auto loop = std::make_shared<ProgramSteps::Loop>(*step.loop);
    const auto condition_end = step.loop->steps.begin() + step.loop->num_condition_steps;
    const std::vector<Step> condition(step.loop->steps.begin(), condition_end);
    const std::vector<Step> body(condition_end, step.loop->steps.end());
    loop->steps = Needed(condition, is_read);
    loop->num_condition_steps = loop->steps.size();
    for (Step& inner : Needed(body, is_read)) loop->steps.push_back(std::move(inner));
    loop->last = Needed(step.loop->last, is_read);
    if (loop->steps.empty() && loop->last.empty()) continue;
    needed.push_back(step);
    needed.back().loop = std::move(loop);
  }
  return needed;
}

}  // namespace

ProgramSteps WithoutDeadSteps(const ProgramSteps& given) {
  using Storage = ProgramSteps::Storage;
  std::vector<bool> is_read(given.blocks.size());
  for (size_t b = 0; b < given.blocks.size(); ++b) {
    is_read[b] = given.blocks[b].storage == Storage::kOutput;
  }
  MarkRead(given.steps, &is_read);
  ProgramSteps result = given;
  result.steps = Needed(given.steps, is_read);
  for (size_t b = 0; b < result.blocks.size(); ++b) {
    if (is_read[b] || result.blocks[b].storage != Storage::kConstant) continue;
    result.blocks[b].bytes = 0;
    result.blocks[b].constant.clear();
  }
  return result;
}

}  // namespace tf_ti
