#include "cc/xla/loops/count.h"

#include <algorithm>

#include "cc/status.h"
#include "cc/xla/require.h"
#include "cc/xla/shapes.h"
#include "xla/hlo/builder/lib/constants.h"

namespace tf_ti {

using xla::XlaBuilder;
using xla::XlaOp;

XlaOp Int(XlaBuilder* builder, int64_t value) {
  return xla::ConstantR0<int32_t>(builder, static_cast<int32_t>(value));
}

absl::Status Count::Merge(const Count& other) {
  if (!other.known()) return absl::OkStatus();
  if (!known()) {
    *this = other;
    return absl::OkStatus();
  }
  if (exact >= 0 && other.exact >= 0) {
    if (exact == other.exact) return absl::OkStatus();
    return InvalidArgument(from, " gives ", exact, " iterations, but ", other.from, " gives ",
                           other.exact);
  }
  XlaBuilder* builder = (runtime.valid() ? runtime : other.runtime).builder();
  const XlaOp mine = Get(builder), its = other.Get(builder);
  Require(
      xla::Eq(mine, its),
      absl::StrCat(Literal(from), " gives $0 iterations, but ", Literal(other.from), " gives $1"),
      {Wide(mine), Wide(its)});
  bound = std::min(bound, other.bound);
  if (other.exact >= 0) *this = other;
  return absl::OkStatus();
}

XlaOp Count::Get(XlaBuilder* builder) const { return exact >= 0 ? Int(builder, exact) : runtime; }

}  // namespace tf_ti
