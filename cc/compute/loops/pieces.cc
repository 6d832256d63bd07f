#include "cc/compute/loops/pieces.h"

#include <limits>

namespace tf_ti {

std::string Range::DebugString() const {
  return "start=" + std::to_string(start) + " end=" + std::to_string(end) +
         " stride=" + std::to_string(stride) + " part_size=" + std::to_string(part_size);
}

std::string ResolvePieces(const Range& range, int64_t extent, Pieces* pieces) {
  const int64_t stride = range.stride;
  if (stride == 0) return "stride must not be 0";
  if (stride == std::numeric_limits<int64_t>::min()) return "stride is too large";
  const int64_t step = stride > 0 ? stride : -stride;
  const int64_t part_size = range.part_size;
  if (part_size < 1) return "part_size must be at least 1, got " + std::to_string(part_size);
  *pieces = {0, 0, stride, part_size, part_size};

  const bool whole =
      stride > 0 ? range.start == 0 && range.end == -1 : range.start == -1 && range.end == 0;
  if (extent == 0 && whole) return "";
  const std::string given = range.DebugString() + " over " + std::to_string(extent) + " elements";
  const int64_t start = range.start < 0 ? range.start + extent : range.start;
  const int64_t end = range.end < 0 ? range.end + extent : range.end;
  if (start < 0 || start >= extent) return "start lies outside the axis: " + given;
  if (end < 0 || end >= extent) return "end lies outside the axis: " + given;
  if (stride > 0 ? start > end : start < end) {
    return "the range is empty in the direction of its stride: " + given;
  }

  const int64_t length = (stride > 0 ? end - start : start - end) + 1;
  pieces->first = start;
  if (part_size == step && range.short_last) {
    pieces->count = (length - 1) / step + 1;
    pieces->last_size = length - (pieces->count - 1) * step;
    return "";
  }
  if (part_size == step && length % step != 0) {
    return "pieces of " + std::to_string(part_size) + " do not tile the range's " +
           std::to_string(length) + " elements: " + given;
  }
  if (length < part_size) return "no whole piece fits the range: " + given;
  pieces->count = (length - part_size) / step + 1;
  return "";
}

}  // namespace tf_ti
