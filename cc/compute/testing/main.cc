// Runs the tests of a file with the instruction set that TF_TI_INSTRUCTION_SET names, or with the
// best one.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "cc/compute/instruction_set.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr const char* kNames[] = {"baseline", "avx2", "avx512"};
  const char* const asked = std::getenv("TF_TI_INSTRUCTION_SET");
  const std::string found = kNames[static_cast<int>(tf_ti::AvailableInstructionSet())];
  // A lesser set would run in its place, and pass as this one.
  if (asked != nullptr && asked != found) {
    std::printf("skipped %s: here is only %s\n", asked, found.c_str());
    return 0;
  }
  return RUN_ALL_TESTS();
}
