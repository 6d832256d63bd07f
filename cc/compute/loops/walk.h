// The pieces of an array that a loop reads or writes, one in an iteration.
#ifndef TF_TI_CC_COMPUTE_LOOPS_WALK_H_
#define TF_TI_CC_COMPUTE_LOOPS_WALK_H_

#include <cstdint>
#include <cstring>

namespace tf_ti {

// Tells where the piece of each index lies. A piece consists of blocks of equal sizes.
struct Walk {
  char* base = nullptr;      // of the piece of index 0
  int64_t step = 0;          // in bytes, to the next piece
  int64_t every = 1;         // indices that are no multiples have no piece
  int64_t num_blocks = 1;    // of each piece
  int64_t block_stride = 0;  // in bytes, from one block of a piece to the next

  bool HasOneBlock() const { return num_blocks == 1; }
  char* At(int64_t index) const { return base + (every == 1 ? index : index / every) * step; }

  // Copies a piece of `bytes` bytes to one block of memory.
  void Read(int64_t index, int64_t bytes, char* to) const;
  // Copies `bytes` bytes to the piece of an index, if the index has one.
  void Write(int64_t index, int64_t bytes, const char* from) const {
    if (bytes == 0 || (every > 1 && index % every != 0)) return;
    if (HasOneBlock()) {
      std::memcpy(At(index), from, bytes);
    } else {
      WriteBlocks(bytes, from, At(index));
    }
  }

 private:
  void WriteBlocks(int64_t bytes, const char* from, char* to) const;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_WALK_H_
