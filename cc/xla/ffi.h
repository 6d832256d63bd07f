// XLA's typed FFI: functions of ours that XLA computations call while they run.
#ifndef TF_TI_CC_XLA_FFI_H_
#define TF_TI_CC_XLA_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace xla::ffi {

// Its header needs headers of MLIR, which TensorFlow's package lacks.
const XLA_FFI_Api* GetXlaFfiApi();

}  // namespace xla::ffi

#endif  // TF_TI_CC_XLA_FFI_H_
