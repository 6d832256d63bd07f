// The steps of a program before it is planned, as a plain value that passes read and rewrite.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_STEPS_H_
#define TF_TI_CC_COMPUTE_PROGRAM_STEPS_H_

#include <cstdint>
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

  struct Step {
    Operation operation;
    ElementType from;
    ElementType to;
    std::vector<View> views;  // the result, then the operands
    int origin = -1;          // the caller's number for what the step is a part of
  };

  // Adds a block for one array, and returns the view of all of it.
  View AddBlock(Storage storage, ElementType type, const Dims& dims, bool stays = false);

  const Block& ResultOf(const Step& step) const { return blocks[step.views[0].block]; }

  std::vector<Block> blocks;
  std::vector<Step> steps;
  int num_inputs = 0;
  int num_outputs = 0;
};

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
