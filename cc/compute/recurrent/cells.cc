#include "cc/compute/recurrent/cells.h"

#define TF_TI_LOOPS "cc/compute/recurrent/cells-inl.h"
#include "cc/compute/each_instruction_set-inl.h"

namespace tf_ti {

template <typename S>
CellLoops<S> ChooseCellLoops(CellKind kind) {
  TF_TI_RETURN_BEST(CellLoopsOf<S>(kind));
}

template CellLoops<float> ChooseCellLoops<float>(CellKind);
template CellLoops<double> ChooseCellLoops<double>(CellKind);

}  // namespace tf_ti
