// Conditions that can only be checked when an XLA computation runs.
#ifndef TF_TI_CC_XLA_REQUIRE_H_
#define TF_TI_CC_XLA_REQUIRE_H_

#include <string>
#include <vector>

#include "xla/hlo/builder/xla_builder.h"

namespace tf_ti {

// Makes the XLA computation end with InvalidArgument, with `message`, where `condition` is false.
// $0, $1, ... in the message stand for `values`, which are scalars of type s64, and $$ for a
// dollar.
void Require(xla::XlaOp condition, const std::string& message,
             const std::vector<xla::XlaOp>& values = {});

// A text that stands for itself in a message.
std::string Literal(const std::string& text);

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_REQUIRE_H_
