// What a decayed sum takes, for its shape function and its kernels alike.
#ifndef TF_TI_CC_SPEC_DECAY_DECAYED_SUM_SPEC_H_
#define TF_TI_CC_SPEC_DECAY_DECAYED_SUM_SPEC_H_

#include "cc/spec/shapes.h"

namespace tf_ti {

template <typename Shape>
absl::Status CheckDecayedSum(const Shape& x, const Shape& decay) {
  const absl::Status status = CheckHasRows("x", x);
  return status.ok() ? CheckScalar("decay", decay) : status;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_DECAY_DECAYED_SUM_SPEC_H_
