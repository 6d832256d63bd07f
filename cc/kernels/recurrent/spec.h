// What the attributes of recurrent ops say.
#ifndef TF_TI_CC_KERNELS_RECURRENT_SPEC_H_
#define TF_TI_CC_KERNELS_RECURRENT_SPEC_H_

#include "cc/compute/recurrent/sequence.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_ti {

struct RecurrentSpec {
  CellKind kind;
  int gate_positions[kMostGates];
  bool transpose_weights;
  Activation<double> activations[3];
  double clip;
  bool reverse;
  bool time_major;
  bool hold_output;

  absl::Status Init(tensorflow::OpKernelConstruction* ctx);
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_RECURRENT_SPEC_H_
