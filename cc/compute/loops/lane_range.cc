#include "cc/compute/loops/lane_range.h"

#include <utility>

namespace tf_ti {

Walk LaneRange::BlocksOf(char* base, int64_t bytes, int64_t stride) const {
  Walk walk;
  walk.base = base;
  if (stride == 0) return walk;
  walk.base += first * stride;
  walk.num_blocks = bytes / (count * stride);
  walk.block_stride = count * stride;
  return walk;
}

void LaneRange::Read(const char* array, int64_t bytes, int64_t stride, char* to) const {
  const Walk walk = BlocksOf(const_cast<char*>(array), bytes, stride);
  walk.Read(0, BytesOf(bytes, stride), to);
}

void LaneRange::Write(const char* from, int64_t bytes, int64_t stride, char* array) const {
  BlocksOf(array, bytes, stride).Write(0, BytesOf(bytes, stride), from);
}

std::optional<Walk> LaneRange::PartOf(const Walk& walk, int64_t bytes, int64_t stride) const {
  if (stride == 0) return walk;
  Walk part = walk;
  const int64_t block = bytes / walk.num_blocks, run = count * stride;
  if (walk.HasOneBlock()) {
    part.base += first * stride;
    part.num_blocks = bytes / run;
    part.block_stride = run;
  } else if (bytes == run && stride % block == 0) {
    // A lane is whole blocks.
    part.base += first * (stride / block) * walk.block_stride;
    part.num_blocks = size * (stride / block);
  } else if (block == run) {
    part.base += first * stride;
  } else {
    return std::nullopt;
  }
  return part;
}

std::optional<LoopValue> LaneRange::PartOf(const LoopValue& value, int64_t stride,
                                           std::vector<Buffer<char>>* copies) const {
  if (stride == 0) return value;
  const int64_t bytes = value.bytes(), kept = BytesOf(bytes, stride);
  const bool is_one_block = bytes == count * stride;
  const auto part_at = [&](const char* at) -> const char* {
    if (is_one_block) return at + first * stride;
    char* const copy = copies->emplace_back(kept).data();
    Read(at, bytes, stride, copy);
    return copy;
  };
  switch (value.kind_) {
    case LoopValue::kFixed:
      return LoopValue::Fixed(part_at(value.start_), kept);
    case LoopValue::kState:
      return LoopValue::State(value.source_, part_at(value.start_), kept);
    case LoopValue::kMade:
      return LoopValue::Made(kept);
    case LoopValue::kListed: {
      if (!is_one_block) return std::nullopt;
      LoopValue part = value;
      part.bytes_ = kept;
      for (const char*& address : part.addresses_) address += first * stride;
      return part;
    }
    default: {
      const std::optional<Walk> walk = PartOf(value.walk_, bytes, stride);
      if (!walk.has_value()) return std::nullopt;
      return LoopValue::Pieces(*walk, kept);
    }
  }
}

}  // namespace tf_ti
