// Steps that read what copies are made of, not the copies.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_SOURCES_H_
#define TF_TI_CC_COMPUTE_PROGRAM_SOURCES_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "cc/compute/program/program.h"

namespace tf_ti {

// Finds arrays that are put together from parts of others, as those of rolls and concatenations
// are, and that elementwise steps alone read. These read the parts then: each becomes one step for
// every part, and nothing is put together.
class SourceFinder {
 public:
  // Where a view lies in a block, in elements of each dimension.
  struct Box {
    Dims begin;
    Dims sizes;
  };

  SourceFinder(const ProgramBuilder& builder, const TileLimits& limits)
      : builder_(builder), limits_(limits) {}

  ProgramBuilder Find();

 private:
  using Step = ProgramBuilder::Step;

  struct Part {
    Box box;
    View source;
  };

  std::optional<Box> BoxOf(const View& view) const;
  bool FindParts(int block);
  bool ReadParts(const Step& step, int block, std::vector<Step>* steps) const;
  void TryWithout(int block);

  const ProgramBuilder& builder_;
  const TileLimits& limits_;
  // What has become of each step.
  std::vector<std::vector<Step>> steps_;
  // By block, the steps that write and that read it.
  std::vector<std::vector<size_t>> writers_;
  std::vector<std::vector<size_t>> readers_;
  // Of the block in question.
  Dims dims_;
  Dims strides_;
  ElementType type_ = ElementType::kFloat;
  std::vector<Part> parts_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_SOURCES_H_
