// The number of a loop's iterations, as far as it is known at compile time.
#ifndef TF_TI_CC_XLA_LOOPS_COUNT_H_
#define TF_TI_CC_XLA_LOOPS_COUNT_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

constexpr int64_t kNoBound = std::numeric_limits<int32_t>::max();

// A number, of the type that XLA's loops count in.
xla::XlaOp Int(xla::XlaBuilder* builder, int64_t value);

// Known exactly, or at run time, with a bound, or not at all.
struct XlaCount {
  int64_t exact = -1;
  xla::XlaOp runtime;  // a scalar of type s32, or null
  int64_t bound = kNoBound;
  std::string from;  // the name of its source

  bool known() const { return exact >= 0 || runtime.valid(); }

  // Both must be the same where both are known; the XLA computation checks that if need be.
  absl::Status Merge(const XlaCount& other);

  xla::XlaOp Get(xla::XlaBuilder* builder) const;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_COUNT_H_
