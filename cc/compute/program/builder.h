// Builds the steps of a program, operation by operation.
#ifndef TF_TI_CC_COMPUTE_PROGRAM_BUILDER_H_
#define TF_TI_CC_COMPUTE_PROGRAM_BUILDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cc/compute/program/instructions.h"
#include "cc/compute/program/steps.h"
#include "cc/compute/program/view.h"

namespace tf_ti {

// Appends steps that compute arrays of known shapes. A method that adds an operation returns the
// view of its result.
class ProgramBuilder {
 public:
  // An input, whose elements lie one behind the other, as StoredAs. One that stays is the same in
  // all runs of the main part.
  View AddInput(ElementType type, const Dims& dims, bool stays = false);
  View AddConstant(ElementType type, const Dims& dims, const void* elements);

  // Results have blocks of their own. Results of half precision are rounded after each operation.
  // Operands have the types that the operation takes, and dimensions that
  // can be broadcast. Apply, Reduce and Multiply return nothing where there is no kernel.
  std::optional<View> Apply(Operation operation, const std::vector<View>& operands);
  View Cast(const View& operand, ElementType to);
  // Reduces along a dimension that has elements. The dimension stays as a dimension of 1.
  std::optional<View> Reduce(Operation operation, const View& operand, int dim, ElementType to);
  // The products of matrices [batch, m, k] and [batch, k, n], or of [m, k] and [k, n]. One factor's
  // batch may be 1.
  std::optional<View> Multiply(const View& left, const View& right);
  // Chooses rows along a dimension, in whose place the result has the dimensions of the indices. An
  // index out of range takes the nearest row, of which there is at least one. With `is_batched` the
  // indices begin with the dimensions before `dim`: each of these batches has its own indices.
  View Gather(const View& rows, const View& indices, int dim, bool is_batched);
  // Writes an array into a part of a result, to whose dimensions it is repeated.
  void CopyInto(const View& from, const View& to);
  // Memory of a result, which CopyInto fills.
  View AddResult(ElementType type, const Dims& dims);
  // The same elements, one behind the other.
  View Contiguous(const View& view);

  // Begins a loop of at least one iteration and at most `count`. Until EndLoop, steps that depend
  // on values of an iteration are steps of the loop, and all others run before it. Loops may be in
  // loops.
  void BeginLoop(int64_t count);
  // The part of an array that an iteration reads or writes: `size` elements along a dimension, from
  // `begin` on, and `step` elements further in each iteration.
  View PieceOf(const View& array, int dim, int64_t begin, int64_t size, int64_t step) const;
  // The row of an array that an iteration reads or writes: the last iteration has row 0, and the
  // iteration before it row 1, however many iterations there are.
  View RowToLast(const View& array) const;
  // A value that each iteration gives the next one.
  View AddState(const View& start);
  // A state whose values remain: `values` becomes the array that has the value of each iteration
  // along its first dimension; the first iteration's value is the last one with `falls`, in a loop
  // of a static count.
  View AddState(const View& start, bool falls, View* values);
  // What follows is the body. The loop ends where the condition, a bool, is false.
  void EndCondition(const View& goes_on);
  // The loop, whose count is not static, also ends before an iteration where a state is true.
  void StopIf(const View& state);
  // Ends the loop. `next` has the next value of each state, in the order of AddState. Each
  // iteration writes the values `from` to the places `to`. Returns the states after the last
  // iteration, then the last values of `kept`, which is empty unless the count is static. The loop
  // has `num_iterations`, an int64, if that is given, but at most `count`.
  struct Written {
    View from;
    View to;
  };
  std::vector<View> EndLoop(const std::vector<View>& next, const std::vector<Written>& written,
                            std::vector<View> kept,
                            const std::optional<View>& num_iterations = std::nullopt);

  int num_open_loops() const { return static_cast<int>(loops_.size()); }
  // Leaves loops that have begun out of the program, all but the first `count`.
  void DropLoops(int count) { loops_.resize(count); }
  // Estimated nanoseconds of the loop that has ended last.
  double time_of_last_loop() const { return time_of_last_loop_; }

  // Makes a view an output, whose elements lie one behind the other, as StoredAs.
  void AddOutput(const View& view);

  // Steps that are added from now on have this origin.
  void set_origin(int origin) { origin_ = origin; }

  const ProgramSteps& steps() const { return steps_; }
  // The largest number of instructions that a step takes.
  int64_t most_instructions() const { return most_instructions_; }

 private:
  using Step = ProgramSteps::Step;
  using Storage = ProgramSteps::Storage;

  // A result of no elements, which no step needs to write.
  View Empty(const View& result);
  View Emit(Operation operation, ElementType from, std::vector<View> views);
  // The same elements in another type, each by a kernel.
  View Converted(const View& view, ElementType to);
  // What an operation gave, as numbers of its type.
  View Rounded(const View& view, Operation operation);
  View RoundedTo(ElementType to, const View& view);
  View Copied(const View& view);
  void Add(Step step, int level);
  int LevelOf(const View& view) const;
  void Raise(int block, int level);

  // A loop that has begun. Its level is the number of loops around its steps.
  struct OpenLoop {
    std::shared_ptr<ProgramSteps::Loop> loop;
    struct State {
      View now;   // as an iteration reads it
      View next;  // where the iteration writes the next one
      View end;   // after the last iteration, where the count is static
    };
    std::vector<State> states;
    // The blocks whose place another one takes: the views of a block of an iteration, and of a
    // block after the loop.
    std::map<int, std::pair<View, View>> renamed;
  };
  View AddState(const View& start, const OpenLoop::State& state);
  void Move(const View& from, const View& to, const View& last);
  static View InPlaceOf(const View& view, const View& whole);

  ProgramSteps steps_;
  std::vector<OpenLoop> loops_;
  int num_loops_ = 0;
  double time_of_last_loop_ = 0;
  std::vector<int> levels_;     // by block; of a block that is missing, 0
  std::vector<bool> is_split_;  // by block: true if steps of several levels write it
  int origin_ = -1;
  int64_t most_instructions_ = 0;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_PROGRAM_BUILDER_H_
