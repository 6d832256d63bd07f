// One step of recurrent cells, after the products: activations, and the new states.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_CELLS_H_
#define TF_TI_CC_COMPUTE_RECURRENT_CELLS_H_

#include <cstdint>

namespace tf_ti {

enum class CellKind { kLstm, kGru, kGruLinearBeforeReset, kRnn };

enum class ActivationFunction {
  kSigmoid,
  kTanh,
  kRelu,
  kAffine,       // alpha * x + beta
  kHardSigmoid,  // alpha * x + beta, between 0 and 1
  kLeakyRelu,    // alpha * x where x is below 0
  kScaledTanh,   // alpha * tanh(beta * x)
};

// The gradient where kRelu and kHardSigmoid are at a limit, beyond it, or NaN. It passes at the
// limits, or at NaN, where that is said here; the result does not tell. Elsewhere it is multiplied
// by 0, or replaced by 0 (kZero...), which differs where it is infinite.
enum Limits {
  kPassesLow = 1,
  kPassesHigh = 2,
  kPassesNan = 4,
  kPasses = 7,
  kZeroLow = 8,
  kZeroHigh = 16,
  kZeroNan = 32,
  kZero = 56,
};

template <typename S>
struct Activation {
  ActivationFunction function;
  S alpha;
  S beta;
  int limits;  // of Limits

  bool is_limited() const {
    return function == ActivationFunction::kRelu || function == ActivationFunction::kHardSigmoid;
  }
};

// Some rows of the batch, and some neighbouring units of their states. Pointers are to the first of
// each; null where there is nothing.
template <typename S>
struct CellStep {
  int64_t num_rows;
  int64_t num_units;  // of those in a block; the rest is behind the end of the states
  const Activation<S>* activations;
  S clip;  // of the arguments of activations; infinity: none

  // The arguments of activations, a vector for each gate and unit; LSTM: f, i, c, o; GRU: z, r, h.
  // Where the reset comes after the product, the part of x is apart from that of the state.
  const S* sums;
  int64_t sums_stride;
  const S* projected;
  int64_t projected_stride;

  // States, whose rows are `state_stride` apart and have room for whole blocks.
  const S* h;
  S* next_h;
  S* c;
  S* update;  // GRU, from its first to its second phase: z, and r * h
  S* reset_h;
  int64_t state_stride;

  // For each row: true if the step is for it (otherwise its states hold), and if it has an output.
  const uint8_t* is_active;
  const uint8_t* is_shown;
  S* y;
  int64_t y_stride;

  // Saved for a gradient: activated gates, `gate_stride` apart, and states.
  S* gates;
  int64_t gates_stride;
  int64_t gate_stride;
  S* arguments;  // of gates' activations, likewise, where their results do not do
  int64_t arguments_stride;
  S* saved_c;
  S* saved_h;
  int64_t saved_stride;
};

// Backwards, after the products: gradients by the arguments of activations, and by the states.
template <typename S>
struct CellGradientStep {
  int64_t num_rows;
  int64_t num_units;
  const Activation<S>* activations;
  const uint8_t* is_active;
  const uint8_t* is_shown;

  // The saved gates of the step, and the states before it and after it.
  const S* gates;
  int64_t gates_stride;
  int64_t gate_stride;
  const S* arguments;
  int64_t arguments_stride;
  const S* last_c;
  const S* c;
  const S* last_h;
  const S* h;
  int64_t saved_stride;

  const S* dy;
  int64_t dy_stride;
  // By the states after the step; then by those before it, without the products that are to come.
  S* dh;
  S* dc;
  S* dreset_h;  // GRU, between its phases: by r * h
  int64_t state_stride;

  // By the argument of each gate's activation, and by the product that is reset.
  S* dgates[4];
  int64_t dgates_stride;
  S* dreset;
  int64_t dreset_stride;
};

// The loops of one kind of cell, for the instruction set of the processor.
template <typename S>
struct CellLoops {
  int64_t lanes;
  int64_t block_vectors;  // the number of vectors of units done at a time
  // One for each phase. Between two phases, the first one must be over for all units.
  void (*phases[2])(const CellStep<S>& step);
  void (*gradient_phases[2])(const CellGradientStep<S>& step);
};

template <typename S>
CellLoops<S> ChooseCellLoops(CellKind kind);

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_CELLS_H_
