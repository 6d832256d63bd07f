// The loop ops, and the op that TensorFlow may place on another device than its resources.
#ifndef TF_TI_CC_KERNELS_LOOPS_PLACEMENT_H_
#define TF_TI_CC_KERNELS_LOOPS_PLACEMENT_H_

#include <string>

namespace tf_ti {

// TensorFlow places an op with its resources, and refuses one whose resources lie on several
// devices. It exempts this op, which takes a loop op's place where they do: see placement.cc.
inline constexpr char kMultiDeviceLoop[] = "TfTi>MultiDeviceTensorIterator";

// Returns true for the loop ops that graphs are built of.
bool IsLoop(const std::string& op);

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_PLACEMENT_H_
