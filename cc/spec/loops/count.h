// The number of a loop's iterations.
#ifndef TF_TI_CC_SPEC_LOOPS_COUNT_H_
#define TF_TI_CC_SPEC_LOOPS_COUNT_H_

#include <cstdint>
#include <string>

#include "cc/spec/loops/errors.h"
#include "cc/status.h"

namespace tf_ti {

struct Count {
  int64_t value = -1;  // where it is not known
  std::string from;    // the name of the input that told it

  bool is_known() const { return value >= 0; }

  // All inputs that tell the number agree on it.
  absl::Status Merge(int64_t other, const std::string& label) {
    if (!is_known()) {
      value = other;
      from = label;
    } else if (other != value) {
      return InvalidArgument(CountsDiffer(from, value, label, other));
    }
    return absl::OkStatus();
  }
};

}  // namespace tf_ti

#endif  // TF_TI_CC_SPEC_LOOPS_COUNT_H_
