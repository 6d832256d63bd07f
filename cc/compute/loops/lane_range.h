// Neighbouring lanes of a loop's values: see cc/compute/program/lanes.h.
#ifndef TF_TI_CC_COMPUTE_LOOPS_LANE_RANGE_H_
#define TF_TI_CC_COMPUTE_LOOPS_LANE_RANGE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/loops/homes.h"
#include "cc/compute/loops/walk.h"

namespace tf_ti {

// Lanes [first, first + size) of `count` lanes of arrays. From a lane of an array to the next there
// are `stride` bytes; `stride` 0 is an array without lanes, which a range has as a whole. An array
// has all its lanes one behind the other, once or several times.
struct LaneRange {
  int64_t count = 1;
  int64_t first = 0;
  int64_t size = 1;

  // The bytes that a range has of `bytes` bytes.
  int64_t BytesOf(int64_t bytes, int64_t stride) const {
    return stride == 0 ? bytes : bytes / count * size;
  }
  // Where the range's lanes lie, as blocks of an array at `base`.
  Walk BlocksOf(char* base, int64_t bytes, int64_t stride) const;
  // Copies an array's lanes to one block of memory, and back.
  void Read(const char* array, int64_t bytes, int64_t stride, char* to) const;
  void Write(const char* from, int64_t bytes, int64_t stride, char* array) const;

  // The range's part of pieces of `bytes` bytes. Nothing where blocks of pieces cut lanes apart.
  std::optional<Walk> PartOf(const Walk& walk, int64_t bytes, int64_t stride) const;
  // The range's part of a value, copied into `copies` where it does not lie in one block.
  std::optional<LoopValue> PartOf(const LoopValue& value, int64_t stride,
                                  std::vector<Buffer<char>>* copies) const;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_LANE_RANGE_H_
