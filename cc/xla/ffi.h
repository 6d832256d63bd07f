// XLA's typed FFI: functions of ours that XLA computations call while they run.
#ifndef TF_TI_CC_XLA_FFI_H_
#define TF_TI_CC_XLA_FFI_H_

#include <string>

#include "cc/status.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {

// Its header needs headers of MLIR, which TensorFlow's package lacks.
const XLA_FFI_Api* GetXlaFfiApi();

}  // namespace xla::ffi

namespace tf_ti {

// Calls a function that returns a status, for a running XLA computation. `target` is the name of
// that call.
template <typename Function>
xla::ffi::Error CallForXla(const char* target, const Function& function) {
  const absl::Status status = CatchOutOfMemory(target, function);
  if (status.ok()) return xla::ffi::Error::Success();
  return xla::ffi::Error(static_cast<xla::ffi::ErrorCode>(status.code()),
                         std::string(status.message()));
}

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_FFI_H_
