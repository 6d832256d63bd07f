#include "cc/spec/loops/operations.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace tf_ti {

std::optional<OperationKind> KindOf(const std::string& operation) {
  static const auto& kinds = *new std::unordered_map<std::string, OperationKind>{
#define TF_TI_OPERATION(name, kind, inputs, fails, notes) {#name, OperationKind::k##kind},
#include "cc/spec/loops/operations.inc"
#undef TF_TI_OPERATION
  };
  const auto found = kinds.find(operation);
  return found == kinds.end() ? std::nullopt : std::make_optional(found->second);
}

bool HasOwnShapes(const std::string& operation) {
  static const auto& names = *new std::unordered_set<std::string>{
#define TF_TI_OPERATION(name, kind, inputs, fails, notes) \
  std::string_view(notes).find("own_shapes") == std::string_view::npos ? "" : #name,
#include "cc/spec/loops/operations.inc"
#undef TF_TI_OPERATION
  };
  return names.count(operation) > 0;
}

const char* TfTiOperations() {
  return
#define TF_TI_OPERATION(name, kind, inputs, fails, notes) \
  #name "|" #kind "|" inputs "|" #fails "|" notes "\n"
#include "cc/spec/loops/operations.inc"
#undef TF_TI_OPERATION
      ;
}

}  // namespace tf_ti
