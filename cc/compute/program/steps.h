// The steps of a program before it is planned, as a plain value that passes read and rewrite.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_STEPS_H_
#define TF_TI_CC_COMPUTE_PROGRAM_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/compute/program/instructions.h"
#include "cc/compute/program/view.h"

namespace tf_ti {

// Steps in the order in which they run, and the blocks of memory that their views lie in.
//
// The caller names the memory of inputs and outputs for each run; constants and temporary blocks
// belong to the program. The prologue runs once per run the steps that depend only on
// constants and on inputs that stay.
struct ProgramSteps {
  enum class Storage { kInput, kConstant, kTemporary, kOutput };

  struct Block {
    Storage storage;
    int64_t bytes;
    int number = 0;      // of an input or output
    bool stays = false;  // the prologue has it
    bool is_written = false;
    std::vector<char> constant;
  };

  struct Loop;

  struct Step {
    Operation operation;
    ElementType from;
    ElementType to;
    std::vector<View> views;  // the result, then the operands; none of a loop
    int origin = -1;          // the caller's number for what the step is a part of
    std::shared_ptr<const Loop> loop = nullptr;
  };

  // Steps that run again and again. Their views may move between two iterations, and are where they
  // were before once the loop is over.
  struct Loop {
    int number = 0;
    int64_t count = 0;                   // the most iterations
    std::optional<View> num_iterations;  // an int64, which may be less than `count`
    // The loop ends where this bool is false. The first `num_condition_steps` steps tell it.
    std::optional<View> goes_on;
    size_t num_condition_steps = 0;
    // The loop ends where this bool is true, too, before the next iteration.
    std::optional<View> stops;
    std::vector<Step> steps;
    std::vector<Step> last;  // run once, in place of the iteration after the last

    bool has_static_count() const { return !num_iterations.has_value() && !goes_on.has_value(); }
    // An estimate, for times.
    int64_t expected_count() const;
  };

  // Adds a block for one array, and returns the view of all of it.
  View AddBlock(Storage storage, ElementType type, const Dims& dims, bool stays = false);

  const Block& ResultOf(const Step& step) const { return blocks[step.views[0].block]; }
  // True if the prologue runs the step.
  bool Stays(const Step& step) const { return step.loop == nullptr && ResultOf(step).stays; }

  std::vector<Block> blocks;
  std::vector<Step> steps;
  int num_inputs = 0;
  int num_outputs = 0;
};

// A condition ends many loops early: fixed points and Newton's method.
constexpr int64_t kExpectedIterations = 32;

// Calls visit(step, times) for each step that is no loop, also for the steps of loops. A run
// repeats the step so many times, by estimate.
template <typename Visit>
void ForEachStep(const std::vector<ProgramSteps::Step>& steps, const Visit& visit,
                 double times = 1) {
  for (const ProgramSteps::Step& step : steps) {
    if (step.loop == nullptr) {
      visit(step, times);
      continue;
    }
    const double inner = times * static_cast<double>(step.loop->expected_count());
    ForEachStep(step.loop->steps, visit, inner);
    ForEachStep(step.loop->last, visit, times);
  }
}

// Calls visit(&view) for all views of a step, and of the steps of a loop.
template <typename Visit>
void ForEachView(ProgramSteps::Step* step, const Visit& visit) {
  for (View& view : step->views) visit(&view);
  if (step->loop == nullptr) return;
  auto loop = std::make_shared<ProgramSteps::Loop>(*step->loop);
  if (loop->num_iterations.has_value()) visit(&*loop->num_iterations);
  if (loop->goes_on.has_value()) visit(&*loop->goes_on);
  if (loop->stops.has_value()) visit(&*loop->stops);
  for (ProgramSteps::Step& inner : loop->steps) ForEachView(&inner, visit);
  for (ProgramSteps::Step& inner : loop->last) ForEachView(&inner, visit);
  step->loop = std::move(loop);
}

// True if dot products suit the layout of a product's factors: the terms of a sum lie side by side,
// and the right factor's columns lie apart.
bool AreDots(const View& left, const View& right);

// True if elements of a result depend on their places in the whole result, so that a step for a
// part gives other elements: which of two zeros is the largest half precision number of a column.
bool DependsOnPlaces(const ProgramSteps::Step& step);

// The steps on which outputs depend. Constants that no step reads become empty.
ProgramSteps WithoutDeadSteps(const ProgramSteps& given);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_STEPS_H_
