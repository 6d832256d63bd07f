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

// How many gates a cell has, and how many vectors of its units a step leaves for its gradient.
int NumGates(CellKind kind);
int NumSavedGates(CellKind kind);

// Something for each step and each row of the batch.
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
  const S* recurrent_b;  // [hidden], or null: what is reset beside the product of the last gate
  // Which of the columns' blocks each gate is. The gates of an LSTM are f, i, c, o; of a GRU z, r,
  // h.
  int gate_positions[kMostGates];
  Activation<S> activations[3];
  S clip;  // of what goes into activations; infinity: none

  // At most one of these is not null: the steps that are for a row. In others its states hold, and
  // its output is zero, or with hold_output what it was.
  ByStep<const bool> mask;
  const int64_t* lengths;  // [batch]: all steps before
  bool hold_output;

  ByStep<S> y;  // rows of `hidden` numbers
  S* h;         // [batch, hidden]: the last states
  S* c;
  // For gradients, or null: activated gates [num_steps, batch, NumSavedGates, hidden], and states
  // [num_steps, batch, hidden].
  S* gates;
  S* saved_c;
  S* saved_h;
  // What goes into gates' activations where those pass something at limits, [.., .., NumGates, ..].
  S* arguments;

  std::function<bool()> goes_on;  // false: whatever is computed, nobody reads it
};

template <typename S>
void RunSequence(const SequenceArgs<S>& args, Parallel* parallel);

// Gradients by everything that a sequence reads.
template <typename S>
struct SequenceGradientArgs {
  SequenceArgs<S> sequence;  // with its outputs, and all that it saves; no clip
  ByStep<const S> dy;
  const S* dh;  // by the last states
  const S* dc;

  ByStep<S> dx;  // where x is projected, by the products
  S* dh0;
  S* dc0;
  // As w and r lie: rows for their columns, or for their rows where columns are next to each other.
  S* dw;
  S* dr;
  S* db;  // null where there is none
  S* drecurrent_b;
};

template <typename S>
void RunSequenceGradient(const SequenceGradientArgs<S>& args, Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_SEQUENCE_H_
