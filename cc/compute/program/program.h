// Programs: instructions on arrays of known shapes, planned once and run many times.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_PROGRAM_H_
#define TF_TI_CC_COMPUTE_PROGRAM_PROGRAM_H_

#include <cstdint>
#include <limits>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/parallel.h"
#include "cc/compute/program/instructions.h"
#include "cc/compute/program/view.h"

namespace tf_ti {

struct TileGroup;

// What a program is made of, in the order in which it runs.
//
// A block is memory that views are of. Those of inputs and outputs are named when a program runs;
// constants and all that is in between are the program's. What is computed from constants and from
// inputs that stay alone is computed once a run, in the prologue.
class ProgramBuilder {
 public:
  // An input, whose elements lie one behind the other, as StoredAs. One that stays is the same in
  // all runs of the main part.
  View AddInput(ElementType type, const Dims& dims, bool stays = false);
  View AddConstant(ElementType type, const Dims& dims, const void* elements);

  // Have results of their own. Those of half precision are rounded after each. The operands fit
  // each other: their types are those of the operation, their dimensions can be broadcast. Return a
  // view of block -1 where there is no kernel.
  View Apply(Operation operation, const std::vector<View>& operands);
  View Cast(const View& operand, ElementType to);
  // Along one dimension, which stays, as one of 1. It has elements.
  View Reduce(Operation operation, const View& operand, int dim, ElementType to);
  // The products of matrices [..., m, k] and [..., k, n]; both have the same other dimensions, one
  // or none, which may be 1 in one of them.
  View Multiply(const View& left, const View& right);
  // For each index the row of it along a dimension, which becomes one of indices.dims. There are
  // rows; an index that is none of theirs takes the nearest. With `is_batched` the dimensions
  // before are those of the indices too, and their last one is that of the rows.
  View Gather(const View& rows, const View& indices, int dim, bool is_batched);
  // Writes an array into another of its dimensions, which is a part of a result.
  void CopyInto(const View& from, const View& to);
  // Memory of a result, which CopyInto fills.
  View AddResult(ElementType type, const Dims& dims);
  // The same elements, one behind the other.
  View Contiguous(const View& view);

  // Makes a view an output, whose elements lie one behind the other, as StoredAs.
  void AddOutput(const View& view);

  // The largest number of instructions that a step takes.
  int64_t most_instructions() const { return most_instructions_; }

  struct Step {
    Operation operation;
    ElementType from;
    ElementType to;
    std::vector<View> views;  // the result, then the operands
  };

 private:
  friend class Program;
  friend class SourceFinder;
  friend class TileFinder;
  friend class WideningFinder;

  enum class Storage { kInput, kConstant, kTemporary, kOutput };
  struct Block {
    Storage storage;
    int64_t bytes;
    int number = 0;      // of an input or output
    bool stays = false;  // the prologue has it
    bool is_written = false;
    std::vector<char> constant;
  };

  int AddBlock(Storage storage, int64_t bytes, bool stays);
  View Emit(Operation operation, ElementType from, std::vector<View> views);
  // The same elements in another type, each by a kernel.
  View Converted(const View& view, ElementType to);
  // What an operation gave, as numbers of its type.
  View Rounded(const View& view, Operation operation);
  View RoundedTo(ElementType to, const View& view);
  View Copied(const View& view);
  bool Stays(const Step& step) const;
  // Returns a copy that has only the steps on which outputs depend.
  ProgramBuilder WithoutDeadSteps() const;

  std::vector<Block> blocks_;
  std::vector<Step> steps_;
  int num_inputs_ = 0;
  int num_outputs_ = 0;
  int64_t most_instructions_ = 0;
};

// What pays: times are in nanoseconds, about.
struct TileLimits {
  double program = 10e3;    // one of less has no tiles
  double group = 2e3;       // nor has a group of steps
  double step = 150;        // one of less takes no part in a group
  double thread = 15e3;     // less does not pay for a thread, even one that is awake
  int64_t bytes = 8 << 10;  // of each array in a tile: several stay in the first cache
  double copies = 20;       // those whose absence saves less than this are made
};

// Immutable; runs of it, at the same time too, have memory of their own.
class Program {
 public:
  // A test may ask for a red zone of so many bytes before and behind each block.
  explicit Program(const ProgramBuilder& builder, int64_t red_zone = 0,
                   const TileLimits& limits = {});

  int num_inputs() const { return num_inputs_; }
  int num_outputs() const { return num_outputs_; }
  // Of the memory that a run needs.
  int64_t arena_bytes() const { return arena_bytes_; }
  int num_instructions() const { return instructions_.size(); }
  // Of Run, in nanoseconds, about.
  int64_t time() const { return static_cast<int64_t>(time_); }

 private:
  friend class ProgramRun;

  // Where an operand's memory is.
  struct Place {
    int instruction;
    int operand;
    int64_t offset;
  };

  struct Operand {
    int block = -1;
    int64_t offset = 0;
    int64_t tile_step = 0;   // to the next tile
    bool is_inside = false;  // in the memory of a part's thread
  };
  // Instructions [begin, end) for each tile, and those from there on for the last one, which has
  // less. Or all of them once.
  struct Part {
    int begin = 0;
    int end = 0;
    int last = 0;
    int64_t num_tiles = 1;
    bool has_tiles = false;
    int64_t inside_bytes = 0;
    double time = 0;

    bool has_rest() const { return last > end; }
  };
  // The memory of a temporary block, and the first and the last instruction that touch it.
  struct Life {
    int64_t offset = 0;
    int64_t bytes = 0;
    int first = std::numeric_limits<int>::max();
    int last = -1;
  };

  void AddStep(const ProgramBuilder::Step& step);
  void AddGroup(const TileGroup& group);
  void Plan(const ProgramBuilder& builder, int64_t red_zone);
  static int64_t FindPlaces(std::vector<int> blocks, int64_t red_zone, std::vector<Life>* lives);

  int num_inputs_;
  int num_outputs_;
  double thread_time_;
  std::vector<Instruction> instructions_;
  size_t num_in_prologue_ = 0;
  std::vector<Operand> operands_;  // 4 of each instruction
  std::vector<Part> parts_;        // of the main part; none where there are no tiles
  double time_ = 0;
  std::vector<Life> lives_;
  std::vector<Place> in_arena_;
  std::vector<std::vector<Place>> of_inputs_;
  std::vector<std::vector<Place>> of_outputs_;
  Buffer<char> constants_;
  int64_t arena_bytes_ = 0;
};

// A program with its memory, for one thread.
class ProgramRun {
 public:
  explicit ProgramRun(const Program& program);

  void SetInput(int number, const void* elements);
  void SetOutput(int number, void* elements);
  // All that these set: where an address is, and what is added to it. Whoever knows how addresses
  // change may change them there.
  struct Pointer {
    char** at;
    int64_t offset;
  };
  std::vector<Pointer> InputPointers(int number) {
    return PointersTo(program_->of_inputs_[number]);
  }
  std::vector<Pointer> OutputPointers(int number) {
    return PointersTo(program_->of_outputs_[number]);
  }

  // The size of all memory that the run holds.
  int64_t bytes() const;

  // Computes what stays. Inputs that stay are set.
  void RunPrologue();
  // Computes the rest. All inputs and outputs are set, and stay until they are set again. Other
  // threads take part where that takes less time; the results are the same.
  void Run(Parallel* parallel = nullptr);
  // Runs all of it, and returns false if an instruction wrote beside the blocks that live. Memory
  // is full of NaN before a block lives and after, for tests.
  bool RunChecked();

 private:
  void Set(const std::vector<Program::Place>& places, char* base);
  void RunPart(const Program::Part& part, Parallel* parallel);
  void RunTile(const Program::Part& part, int64_t tile, char* inside) const;
  std::vector<Pointer> PointersTo(const std::vector<Program::Place>& places);

  const Program* program_;
  std::vector<Instruction> instructions_;
  Buffer<char> arena_;
  Buffer<char> inside_;  // of each thread
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_PROGRAM_H_
