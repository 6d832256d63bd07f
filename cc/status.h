// Errors from the pieces of their message, and from memory that runs out.
#ifndef TF_TI_CC_STATUS_H_
#define TF_TI_CC_STATUS_H_

#include <new>
#include <stdexcept>
#include <string_view>

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

// The error of an op or a function, called `name`, that has got no memory.
inline absl::Status OutOfMemory(std::string_view name) noexcept {
  try {
    return absl::ResourceExhaustedError(absl::StrCat("out of memory in ", name));
  } catch (const std::bad_alloc&) {
    return absl::Status(absl::StatusCode::kResourceExhausted, "");  // takes no memory
  }
}

// Calls a function that returns a status, where TensorFlow calls code of ours: no exception may
// come out of there. Memory that runs out is an error; so is a vector larger than any memory.
template <typename Function>
absl::Status CatchOutOfMemory(std::string_view name, const Function& function) noexcept {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return OutOfMemory(name);
  } catch (const std::length_error&) {
    return OutOfMemory(name);
  }
}

}  // namespace tf_ti

#endif  // TF_TI_CC_STATUS_H_
