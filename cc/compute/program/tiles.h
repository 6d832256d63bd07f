// Steps of large arrays that run tile by tile: what one writes the next reads from the cache, and
// several threads take tiles each.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_TILES_H_
#define TF_TI_CC_COMPUTE_PROGRAM_TILES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "cc/compute/program/program.h"

namespace tf_ti {

// Neighbouring steps, all of whose arrays are cut into as many units along one dimension each: of
// what is written and read within the group, a unit is made of the same units alone.
struct TileGroup {
  using Step = ProgramBuilder::Step;

  std::vector<Step> steps;
  // By step and operand, the dimension that is cut; or -1 for what all units read.
  std::vector<std::vector<int>> dims;
  std::vector<int64_t> sizes;  // by step, the elements of a unit along that dimension
  int64_t num_units = 1;       // 1 where steps are not to be cut
  int64_t units_of_tile = 1;
  double time = 0;          // of all tiles, in nanoseconds, about
  std::vector<int> inside;  // blocks that nothing else has

  // A step for `count` units from unit `first` on. Of blocks inside it has the first `count`.
  Step Cut(size_t step, int64_t first, int64_t count) const;
};

// Of a step, in nanoseconds, about.
double TimeOf(const ProgramBuilder::Step& step);

// Groups in the order in which they are to run, which have all steps of the main part.
class TileFinder {
 public:
  TileFinder(const ProgramBuilder& builder, const TileLimits& limits)
      : builder_(builder), limits_(limits) {}

  std::vector<TileGroup> Find();

 private:
  using Step = ProgramBuilder::Step;

  // How a step's operand lies in its block: elements of unit u are among bytes [u * unit + begin,
  // u * unit + end).
  struct Touch {
    int64_t unit;
    int64_t begin;
    int64_t end;
    int64_t num_units;
    bool is_write;
  };

  bool Joins(const Step& step);
  bool IsApart(const Step& step) const;
  void Close();
  void FindInside();

  const ProgramBuilder& builder_;
  const TileLimits& limits_;
  std::vector<TileGroup> groups_;
  std::vector<Step> before_;  // what runs before the group, on which it may depend
  TileGroup group_;
  std::map<int, std::vector<Touch>> touches_;  // by block
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_TILES_H_
