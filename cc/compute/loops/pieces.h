// Where the pieces of an iterated axis lie.
//
// A range runs from element `start` to element `end`, both included and both counted from the end
// where negative, in the direction of `stride`. Piece k covers `part_size` elements from
// `start + k * stride` in that direction; inside a piece the elements keep the tensor's order.
//
//   extent 6, start -1, end 0, stride -2, part_size 2:  [4,5] [2,3] [0,1]
//   extent 5, start  0, end -1, stride 1, part_size 3:  [0,1,2] [1,2,3] [2,3,4]
#ifndef TF_TI_CC_COMPUTE_LOOPS_PIECES_H_
#define TF_TI_CC_COMPUTE_LOOPS_PIECES_H_

#include <cstdint>
#include <string>

namespace tf_ti {

struct Range {
  int64_t start = 0;
  int64_t end = -1;
  int64_t stride = 1;
  int64_t part_size = 1;
  // The last piece may be short: pieces cover the whole range even where they do not tile it.
  bool short_last = false;

  std::string DebugString() const;
};

struct Pieces {
  int64_t count = 0;
  int64_t first = 0;  // the element at which piece 0 starts, in the direction of the stride
  int64_t stride = 1;
  int64_t part_size = 1;
  int64_t last_size = 1;

  int64_t Size(int64_t k) const { return k == count - 1 ? last_size : part_size; }
  // The lowest element of piece k.
  int64_t Begin(int64_t k) const {
    const int64_t at = first + k * stride;
    return stride > 0 ? at : at - Size(k) + 1;
  }
};

// Resolves `range` over an axis of `extent` elements. Returns an empty string, or an error message.
// An axis without elements has zero pieces, where the range is a whole one.
std::string ResolvePieces(const Range& range, int64_t extent, Pieces* pieces);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_PIECES_H_
