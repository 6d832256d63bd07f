#include "cc/kernels/processor.h"

#include <string>

#include "cc/compute/instruction_set.h"
#include "cc/compute/prefetching.h"

namespace tf_ti {
namespace {

std::string Describe() {
  constexpr const char* kSets[] = {"the baseline's", "AVX2", "AVX-512"};
  const Prefetching& prefetching = RowPrefetching();
  std::string text = "vectors     ";
  text += kSets[static_cast<int>(AvailableInstructionSet())];
  text += "\nprefetching ";
  if (prefetching.distance == 0) return text + "none";
  text += prefetching.every_line ? "every line" : "every second line";
  return text + " of a table's row, " + std::to_string(prefetching.distance) + " rows ahead";
}

}  // namespace
}  // namespace tf_ti

const char* TfTiProcessor() {
  static const std::string text = tf_ti::Describe();
  return text.c_str();
}
