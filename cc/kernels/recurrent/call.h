// One call of a recurrent op, wherever its inputs and outputs lie.
#ifndef TF_TI_CC_KERNELS_RECURRENT_CALL_H_
#define TF_TI_CC_KERNELS_RECURRENT_CALL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "cc/compute/parallel.h"
#include "cc/spec/recurrent/cell_spec.h"
#include "cc/spec/recurrent/sequence_shapes.h"

namespace tf_ti {

// Inputs and outputs are those of the op, in its order; numbers are of type S. A saved output may
// be null. Invalid lengths are an InvalidArgument.
template <typename S>
absl::Status RunRecurrentOp(const CellSpec& spec, const SequenceSizes& sizes,
                            const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs, std::function<bool()> goes_on,
                            Parallel* parallel);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_RECURRENT_CALL_H_
