// How often a loop runs, as far as that is known when its program is built.
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

// Known exactly, or when the program runs, with a bound, or not at all.
struct Count {
  int64_t exact = -1;
  xla::XlaOp runtime;  // a scalar of type s32, or null
  int64_t bound = kNoBound;
  std::string from;  // what says so

  bool known() const { return exact >= 0 || runtime.valid(); }

  // Both must be the same where both are known, which the program checks if it must.
  absl::Status Merge(const Count& other);

  xla::XlaOp Get(xla::XlaBuilder* builder) const;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_LOOPS_COUNT_H_
