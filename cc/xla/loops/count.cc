#include "cc/xla/loops/count.h"

#include <algorithm>

#include "cc/spec/loops/count.h"
#include "cc/spec/loops/errors.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/constants.h"

namespace tf_ti {

using xla::XlaBuilder;
using xla::XlaOp;

XlaOp Int(XlaBuilder* builder, int64_t value) {
  return xla::ConstantR0<int32_t>(builder, static_cast<int32_t>(value));
}

absl::Status XlaCount::Merge(const XlaCount& other) {
  if (!other.known()) return absl::OkStatus();
  if (!known()) {
    *this = other;
    return absl::OkStatus();
  }
  if (exact >= 0 && other.exact >= 0) return Count{exact, from}.Merge(other.exact, other.from);
  XlaBuilder* builder = (runtime.valid() ? runtime : other.runtime).builder();
  const XlaOp mine = Get(builder), its = other.Get(builder);
  Require(xla::Eq(mine, its), CountsDiffer(Literal(from), "$0", Literal(other.from), "$1"),
          {Wide(mine), Wide(its)});
  bound = std::min(bound, other.bound);
  if (other.exact >= 0) *this = other;
  return absl::OkStatus();
}

XlaOp XlaCount::Get(XlaBuilder* builder) const {
  return exact >= 0 ? Int(builder, exact) : runtime;
}

}  // namespace tf_ti
