#include "cc/compute/loops/walk.h"

#include "cc/compute/loops/blocks.h"

namespace tf_ti {

namespace {

void CopyBlocks(int64_t num_blocks, int64_t bytes, const char* from, int64_t from_stride, char* to,
                int64_t to_stride) {
  const int64_t size = bytes / num_blocks;
  if (from_stride % size == 0 && to_stride % size == 0) {
    CopyBytes({num_blocks, 1, from_stride / size, to_stride / size}, size, from, to);
  } else {
    CopyBytes({num_blocks, size, from_stride, to_stride}, 1, from, to);
  }
}

}  // namespace

void Walk::Read(int64_t index, int64_t bytes, char* to) const {
  if (bytes == 0) return;
  CopyBlocks(num_blocks, bytes, At(index), block_stride, to, bytes / num_blocks);
}

void Walk::WriteBlocks(int64_t bytes, const char* from, char* to) const {
  CopyBlocks(num_blocks, bytes, from, bytes / num_blocks, to, block_stride);
}

}  // namespace tf_ti
