// The description of a cell and of its run over a sequence: the attributes of a recurrent op.
#ifndef TF_TI_CC_SPEC_RECURRENT_CELL_SPEC_H_
#define TF_TI_CC_SPEC_RECURRENT_CELL_SPEC_H_

#include "cc/compute/recurrent/sequence.h"
#include "cc/spec/attributes.h"

namespace tf_ti {

struct CellSpec {
  bool is_gradient;
  CellKind kind;
  int gate_positions[kMostGates] = {};
  bool transpose_weights;
  Activation<double> activations[3] = {};
  double clip;
  bool reverse;
  bool time_major;
  bool hold_output;
  // True for each input that an op may lack and has; and the number of tensors that a gradient
  // takes.
  bool has_weights;
  bool has_bias;
  bool has_lengths;
  bool has_mask;
  int num_saved;

  absl::Status Init(const Attributes& attributes, bool is_gradient);

  // True if the results of gates' activations do not suffice for their gradients. An LSTM's last
  // activation is not a gate's.
  bool saves_arguments() const {
    return ((activations[0].limits | activations[1].limits) & kPasses) != 0;
  }
  bool is_lstm() const { return kind == CellKind::kLstm; }
  bool resets_product() const { return kind == CellKind::kGruLinearBeforeReset; }
};

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_RECURRENT_CELL_SPEC_H_
