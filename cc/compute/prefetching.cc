#include "cc/compute/prefetching.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cc/compute/instruction_set.h"

namespace tf_ti {
namespace {

// Measured on Xeons, and on EPYCs, where the first-level cache gets by with so many lines on their
// way.
constexpr Prefetching kPairs{false, 32};
constexpr Prefetching kLines{true, 48};

Prefetching OfProcessor() {
#ifdef TF_TI_X86
  if (__builtin_cpu_is("intel")) return kPairs;
#endif
  return kLines;
}

}  // namespace

Prefetching ChoosePrefetching(const char* asked) {
  constexpr int64_t kFarthest = 1024;
  for (const auto& [name, way] : {std::pair("lines", kLines), std::pair("pairs", kPairs)}) {
    const size_t size = std::strlen(name);
    if (asked == nullptr || std::strncmp(asked, name, size) != 0) continue;
    if (asked[size] == '\0') return way;
    if (asked[size] != ',') continue;
    char* end;
    const int64_t distance = std::strtoll(asked + size + 1, &end, 10);
    const bool is_number = end != asked + size + 1 && *end == '\0';
    if (is_number && distance >= 0 && distance <= kFarthest) return {way.every_line, distance};
  }
  return OfProcessor();
}

const Prefetching& RowPrefetching() {
  static const Prefetching prefetching = ChoosePrefetching(std::getenv("TF_TI_PREFETCH"));
  return prefetching;
}

}  // namespace tf_ti
