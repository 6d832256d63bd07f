// Steps of large arrays that run tile by tile: what one writes the next reads from the cache, and
// several threads take tiles each.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_TILES_H_
#define TF_TI_CC_COMPUTE_PROGRAM_TILES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/compute/program/steps.h"

namespace tf_ti {

// Cost thresholds of tiles and copies. Times are in nanoseconds, approximately.
struct TileLimits {
  double program = 10e3;    // a program of less time has no tiles
  double group = 2e3;       // a group of steps of less time has no tiles
  double step = 150;        // a step of less time takes no part in a group
  double thread = 15e3;     // less time does not pay for a thread, even one that is awake
  int64_t bytes = 8 << 10;  // of each array in a tile: several stay in the first cache
  double copies = 20;       // a copy whose absence saves less time is made
};

// Neighbouring steps, all of whose arrays are cut into as many units along one dimension each: of
// what is written and read within the group, a unit is made of the same units alone.
struct TileGroup {
  using Step = ProgramSteps::Step;

  std::vector<Step> steps;
  // By step and operand, the dimension that is cut; or -1 for what all units read.
  std::vector<std::vector<int>> dims;
  std::vector<int64_t> sizes;  // by step, the elements of a unit along that dimension
  int64_t num_units = 1;       // 1 where steps are not to be cut
  int64_t units_of_tile = 1;
  double time = 0;          // of all tiles, in approximate nanoseconds
  std::vector<int> inside;  // blocks that nothing else has

  // A step for `count` units from unit `first` on. Of blocks inside it has the first `count`.
  Step Cut(size_t step, int64_t first, int64_t count) const;
};

// Estimated nanoseconds of a step.
double TimeOf(const ProgramSteps::Step& step);

// Groups in the order in which they are to run, which have all steps of the main part.
std::vector<TileGroup> FindTileGroups(const ProgramSteps& given, const TileLimits& limits);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_TILES_H_
