// Lanes: the independent rows of a loop whose body is a program.
//
// Most bodies do the same for many rows: sentences of a batch, series, particles. A row is a lane
// if its iterations read no value that another row computes. A group of lanes may run all
// iterations before, or while, another group runs them.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_LANES_H_
#define TF_TI_CC_COMPUTE_PROGRAM_LANES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/compute/program/steps.h"

namespace tf_ti {

// What a loop does with the inputs and outputs of its program.
//
// The values of a loop are arrays. An input and an output are the same array where the output is
// the input of the next iteration, and inputs are where one state becomes another.
struct LoopPlan {
  enum class Use : uint8_t {
    kValue,    // the loop writes the output, or keeps it for the next iteration
    kAdded,    // the loop adds up the outputs of all iterations, and does nothing else with them
    kFailure,  // the output is a bool that tells that an iteration is to be run by others
  };

  std::vector<int> inputs;     // the array of each input
  std::vector<int> outputs;    // the array of each output
  std::vector<Use> uses;       // of each output
  std::vector<char> is_whole;  // by array: true if an iteration needs all of it

  bool operator==(const LoopPlan& other) const {
    return inputs == other.inputs && outputs == other.outputs && uses == other.uses &&
           is_whole == other.is_whole;
  }
};

// The lanes of a loop: equal parts of some arrays along one dimension each.
struct Lanes {
  int64_t count = 0;
  // By block of the program, and by array of the plan: the bytes from a lane to the next. The
  // stride is 0 for a block, or an array, that all lanes share.
  std::vector<int64_t> strides;
  std::vector<int64_t> array_strides;
  // By output: true if the output is a sum over lanes, or tells whether any lane failed. A group's
  // program gives the sum over its own lanes.
  std::vector<char> is_sum;
  // Estimated nanoseconds of an iteration of all lanes: of steps that groups divide among them, and
  // of steps that each group runs as a whole.
  double divided_time = 0;
  double shared_time = 0;
};

// The reason why the elements along an axis of an array are no lanes.
struct Obstacle {
  enum class Kind : uint8_t {
    kSeveralSizes,  // values of several types or shapes become each other
    kWhole,         // an iteration needs all of the array
    kConstant,      // a constant has not the same elements for each of them
    kParts,         // a step reads or writes parts, or divides the axis in another way
    kReduced,       // a step reduces along the axis, and the loop does not only add the results up
    kPlaces,        // a step gives other bits for parts
    kRepeated,      // two axes of an array go with each other
  };

  Kind kind;
  int origin = -1;  // of the step; -1 if there is none, or if the step has none
  int array = -1;   // of the plan; of kWhole, the array that is needed
  int64_t stride = 0;
};

struct FoundLanes {
  // All kinds of lanes that a loop has. First comes the one whose groups take the least time each.
  std::vector<Lanes> lanes;
  // One obstacle for each set of axes that go with each other and that inputs or outputs have. Of a
  // state, which is both, come first the outermost ones.
  std::vector<Obstacle> obstacles;
};

FoundLanes FindLanes(const ProgramSteps& given, const LoopPlan& plan);

// The iterations that groups of lanes are expected to run, of those from `begin` to before `end`.
// The first iteration does not count: all lanes run it at once in the first call of a shape.
inline int64_t IterationsOfGroups(int64_t begin, int64_t end, bool has_condition) {
  const int64_t rest = end - std::max<int64_t>(begin, 1);
  return has_condition ? std::min(rest, kExpectedIterations) : rest;
}

// The lanes of each group but the last one, or all lanes where no groups are worth it. With
// `num_threads` 0 the number follows from the loop alone.
int64_t LanesOfGroup(const Lanes& lanes, int num_instructions, int64_t num_iterations,
                     int64_t num_threads);

// The number of groups of `size` lanes: no group has one lane alone, which the group before takes.
inline int64_t NumGroups(int64_t count, int64_t size) {
  if (size <= 0 || size > count - 2) return 1;
  return count / size + (count % size >= 2 ? 1 : 0);
}

// The steps for `count` neighbouring lanes, at least 2 of them. Blocks have these lanes alone, one
// behind the other.
ProgramSteps CutLanes(const ProgramSteps& given, const Lanes& lanes, int64_t count);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_LANES_H_
