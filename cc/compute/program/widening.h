// Numbers of half precision that become floats where they are read.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_WIDENING_H_
#define TF_TI_CC_COMPUTE_PROGRAM_WIDENING_H_

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "cc/compute/program/program.h"

namespace tf_ti {

// Finds inputs and constants of half precision that steps read in part, such as a table whose rows
// are looked up. Only these parts become floats: a gather chooses among the stored numbers, and any
// other step reads floats of its part.
class WideningFinder {
 public:
  explicit WideningFinder(ProgramBuilder builder) : builder_(std::move(builder)) {}

  ProgramBuilder Find();

 private:
  using Step = ProgramBuilder::Step;

  // Floats of one part, as steps read them.
  struct Part {
    View read;
    View floats;
  };

  void FindStored();
  View StoredAt(const View& read) const;
  View Gathered(const Step& gather);
  View FloatsOf(const View& read);

  ProgramBuilder builder_;
  std::map<int, View> stored_;  // numbers, by the block of floats that is not made of them
  std::vector<Part> parts_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_WIDENING_H_
