// Errors from the pieces of their message.
#ifndef TF_TI_CC_STATUS_H_
#define TF_TI_CC_STATUS_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tf_ti {

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

template <typename... Args>
absl::Status Unimplemented(const Args&... args) {
  return absl::UnimplementedError(absl::StrCat(args...));
}

}  // namespace tf_ti

#endif  // TF_TI_CC_STATUS_H_
