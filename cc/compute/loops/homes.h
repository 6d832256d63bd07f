// The addresses that the values of a loop have in each iteration.
//
// Iterations run one after the other, and between two of them only addresses change: a value stays
// where it is written first, and a state is the address that another value had in the iteration
// before. A value that an iteration makes is at home in
//
//   an output that each iteration writes the value to;
//   an output of a state: the place where the next iteration would write the value as that state;
//   a few buffers that iterations use in turn, as many as later iterations need to find the value
//   there as a state.
#ifndef TF_TI_CC_COMPUTE_LOOPS_HOMES_H_
#define TF_TI_CC_COMPUTE_LOOPS_HOMES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/loops/walk.h"

namespace tf_ti {

// Iteration t has index t, or `last_index` - t with `reverse`.
struct IndexOrder {
  int64_t last_index = 0;
  bool reverse = false;

  int64_t Of(int64_t t) const { return reverse ? last_index - t : t; }
};

// Tells where a value comes from.
class LoopValue {
 public:
  // One array for all iterations.
  static LoopValue Fixed(const char* at, int64_t bytes);
  // The value `source` of the iteration before; in the first iteration the array at `start`.
  static LoopValue State(int source, const char* start, int64_t bytes);
  // Arrays at any addresses, by index.
  static LoopValue Listed(std::vector<const char*> addresses, int64_t bytes);
  // Pieces of an array. Pieces of several blocks are read to one block each: see Homes::reads.
  static LoopValue Pieces(const Walk& walk, int64_t bytes);
  // An array that each iteration makes.
  static LoopValue Made(int64_t bytes);

  int64_t bytes() const { return bytes_; }
  // The value that a state was before; -1 for any other value.
  int source() const { return source_; }

 private:
  friend class Homes;
  friend struct LaneRange;

  enum Kind { kFixed, kState, kListed, kWalk, kBlocks, kMade };

  LoopValue(Kind kind, int64_t bytes) : kind_(kind), bytes_(bytes) {}

  Kind kind_;
  int64_t bytes_;
  const char* start_ = nullptr;  // the address of a fixed value, or of a state's start
  int source_ = -1;
  std::vector<const char*> addresses_;
  Walk walk_;
  // Buffers that iterations use in turn, for kBlocks, and for kMade where no output is the home.
  int num_buffers_ = 0;
  char* buffers_ = nullptr;
};

// A value that each iteration writes to its piece of an output.
struct LoopWrite {
  int value;
  Walk to;
};

// Finds a home for each value of a loop. Immutable once built.
class Homes {
 public:
  // The loop begins with iteration `begin`. Outputs of states have memory for the piece of one more
  // iteration after the last.
  Homes(std::vector<LoopValue> values, std::vector<LoopWrite> writes, const IndexOrder& order,
        int64_t begin);

  int64_t begin() const { return begin_; }
  const char* At(int value, int64_t t) const;

  // The values whose pieces are to be read from their walks to their homes, before each iteration.
  const std::vector<int>& reads() const { return reads_; }
  const Walk& WalkOf(int read) const { return values_[read].walk_; }
  int64_t BytesOf(int value) const { return values_[value].bytes_; }
  // The writes that take a copy after each iteration. All other written values live in outputs.
  const std::vector<LoopWrite>& writes() const { return writes_; }
  // Writes the starts of states to the outputs of states where values live. To be called once,
  // before the first iteration.
  void WriteStarts() const;

  // Returns the number of iterations after which the steps of the value's address from an iteration
  // to the next repeat, with a period of period() iterations. Returns no number if they never do.
  std::optional<int> Settling(int value) const;
  int period() const { return period_; }

 private:
  int LivesFor(int value) const;
  bool LiveInOutput(int value);
  bool LiveInOutputOfState(int value);
  void LiveInTurn(int value);
  void AllocateBuffers();

  std::vector<LoopValue> values_;
  std::vector<LoopWrite> writes_;
  const IndexOrder order_;
  const int64_t begin_;
  int num_states_ = 0;
  std::vector<int> reads_;
  std::vector<LoopWrite> starts_;  // writes of states that take a copy once, of the start
  int period_ = 1;
  Buffer<char> buffers_;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_LOOPS_HOMES_H_
