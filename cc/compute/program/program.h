// Programs: instructions on arrays of known shapes, planned once and run many times.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_PROGRAM_H_
#define TF_TI_CC_COMPUTE_PROGRAM_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/parallel.h"
#include "cc/compute/program/instructions.h"
#include "cc/compute/program/steps.h"
#include "cc/compute/program/tiles.h"

namespace tf_ti {

// Immutable; runs of it, at the same time too, have memory of their own.
class Program {
 public:
  // A test may ask for a red zone of so many bytes before and behind each block.
  explicit Program(const ProgramSteps& given, int64_t red_zone = 0, const TileLimits& limits = {});

  int num_inputs() const { return num_inputs_; }
  int num_outputs() const { return num_outputs_; }
  // Of the memory that a run needs.
  int64_t arena_bytes() const { return arena_bytes_; }
  // A run has so many instructions: an instruction of a loop counts once for each iteration.
  int num_instructions() const { return num_instructions_; }
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

  // A loop of the program. Its instructions lie behind the prologue and the main part. Instructions
  // [begin, condition_end) tell whether the loop goes on, [condition_end, end) are its body, and
  // [end, last) run once in place of the iteration after the last.
  struct Loop {
    struct Move {
      int operand;  // in operands_
      int64_t step;
      bool alternates;
      bool ends_there;
    };
    int instruction = 0;  // the instruction that runs the loop
    int begin = 0;
    int condition_end = 0;
    int end = 0;
    int last = 0;
    int64_t count = 0;
    int64_t expected_count = 0;
    int64_t patience = 1;  // iterations between two looks at whether the run is stopped
    std::vector<Move> moves;
    // The turns of its first and its last instruction: see turns_.
    int first_turn = 0;
    int last_turn = 0;
  };

  void AddStep(const ProgramSteps::Step& step);
  void AddLoop(const ProgramSteps::Step& step);
  void AddLoopSteps();
  void AddGroup(const TileGroup& group);
  void AddOperand(const View* view, int64_t offset);
  int FindTurns(int begin, int end, int turn);
  double NumInstructions(int begin, int end) const;
  void Plan(const ProgramSteps& steps, int64_t red_zone);
  static int64_t FindPlaces(std::vector<int> blocks, int64_t red_zone, std::vector<Life>* lives);

  int num_inputs_;
  int num_outputs_;
  double thread_time_;
  std::vector<Instruction> instructions_;
  size_t num_in_prologue_ = 0;
  size_t num_in_main_ = 0;  // and in the prologue
  int num_instructions_ = 0;
  std::vector<Loop> loops_;
  std::map<int, int> loop_of_instruction_;
  std::map<int, int> loop_of_number_;
  std::vector<std::shared_ptr<const ProgramSteps::Loop>> waiting_;  // steps are to be added
  std::vector<int> turns_;         // by instruction: its place in the order of a run
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

  // Loops look at this from time to time, if it is given, and end where it is true: then the
  // outputs have no meaning.
  void SetStop(const std::function<bool()>* is_stopped) {
    is_stopped_ = is_stopped;
    was_stopped_ = false;
  }
  bool was_stopped() const { return was_stopped_; }

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
  friend class Program;

  void Set(const std::vector<Program::Place>& places, char* base);
  void RunPart(const Program::Part& part, Parallel* parallel);
  void RunTile(const Program::Part& part, int64_t tile, char* inside) const;
  std::vector<Pointer> PointersTo(const std::vector<Program::Place>& places);

  // A loop with the addresses of this run.
  struct Loop {
    struct Move {
      char** at;
      int64_t step;
    };
    ProgramRun* run;
    const Program::Loop* of;
    std::vector<Move> even;  // after iterations 0, 2, 4, ...
    std::vector<Move> odd;
    std::vector<Move> alternating;  // those of `even` that `odd` moves back
    std::vector<Move> steady;       // the others
    std::vector<Move> to_last;      // moves of `steady` whose views end where they are
  };
  static void RunLoop(const Instruction& instruction);
  void RunRange(int begin, int end) const {
    const Instruction* const last = instructions_.data() + end;
    for (const Instruction* i = instructions_.data() + begin; i != last; ++i) i->run(*i);
  }
  bool IsStopped() {
    was_stopped_ = was_stopped_ || (is_stopped_ != nullptr && (*is_stopped_)());
    return was_stopped_;
  }

  const Program* program_;
  std::vector<Instruction> instructions_;
  std::vector<Loop> loops_;
  const std::function<bool()>* is_stopped_ = nullptr;
  bool was_stopped_ = false;
  Buffer<char> arena_;
  Buffer<char> inside_;  // of each thread
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_PROGRAM_H_
