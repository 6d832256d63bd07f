// Recurrent cells over the steps of a sequence, in one direction.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_SEQUENCE_H_
#define TF_TI_CC_COMPUTE_RECURRENT_SEQUENCE_H_

#include <cstdint>
#include <functional>

#include "cc/compute/parallel.h"
#include "cc/compute/product.h"
#include "cc/compute/recurrent/cells.h"

namespace tf_ti {

constexpr int kMostGates = 4;

// The number of a cell's gates, and of the vectors of units that a step saves for its gradient.
int NumGates(CellKind kind);
int NumSavedGates(CellKind kind);

// Vectors or numbers for each step and each row of the batch.
template <typename T>
struct ByStep {
  T* data;
  int64_t step_stride;
  int64_t row_stride;

  T* At(int64_t step, int64_t row) const { return data + step * step_stride + row * row_stride; }
};

template <typename S>
struct SequenceArgs {
  CellKind kind;
  int64_t num_steps;
  int64_t batch;
  int64_t input;
  int64_t hidden;
  bool reverse;  // the last step first

  // Rows of `input` numbers; where is_projected, of gates * hidden: their products with w.
  ByStep<const S> x;
  bool is_projected;
  const S* h0;           // [batch, hidden]
  const S* c0;           // likewise, or null
  Matrix<S> w;           // [input, gates * hidden]
  Matrix<S> r;           // [hidden, gates * hidden]
  const S* b;            // [gates * hidden], or null
  const S* recurrent_b;  // [hidden], or null: added to the last gate's product, and reset with it
  // The position of each gate among the columns' blocks. The gates of an LSTM are f, i, c, o; of a
  // GRU z, r, h.
  int gate_positions[kMostGates];
  Activation<S> activations[3];
  S clip;  // of the arguments of activations; infinity: none

  // At most one of these is not null: the steps that are for a row. In others its states hold. Its
  // output is zero then, or with hold_output the one before it.
  ByStep<const bool> mask;
  const int64_t* lengths;  // [batch]: the number of steps, from the first on
  bool hold_output;

  ByStep<S> y;  // rows of `hidden` numbers
  S* h;         // [batch, hidden]: the last states
  S* c;
  // For gradients, or null: activated gates [num_steps, batch, NumSavedGates, hidden], and states
  // [num_steps, batch, hidden].
  S* gates;
  S* saved_c;
  S* saved_h;
  // The arguments of gates' activations where those pass something at limits, [.., .., NumGates,
  // ..].
  S* arguments;

  std::function<bool()> goes_on;  // false: nobody reads the results any more
};

template <typename S>
void RunSequence(const SequenceArgs<S>& args, Parallel* parallel);

// Gradients by all inputs of a sequence.
template <typename S>
struct SequenceGradientArgs {
  SequenceArgs<S> sequence;  // with its outputs, and all that it saves; no clip
  ByStep<const S> dy;
  const S* dh;  // by the last states
  const S* dc;

  ByStep<S> dx;  // where x is projected, by the products
  S* dh0;
  S* dc0;
  // Laid out like w and r: rows for their columns, or for their rows where columns are next to each
  // other.
  S* dw;
  S* dr;
  S* db;  // null where there is none
  S* drecurrent_b;
};

template <typename S>
void RunSequenceGradient(const SequenceGradientArgs<S>& args, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_SEQUENCE_H_
