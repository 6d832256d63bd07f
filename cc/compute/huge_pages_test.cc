// New memory that is large is on huge pages once it is written.
#include "cc/compute/huge_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/compute/buffer.h"

namespace tf_ti {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr int64_t kSmallPage = 4096;

int64_t PageFaults() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Writes to all of the memory. Returns the number of page faults.
int64_t FaultsOfWriting(char* memory, int64_t size) {
  const int64_t before = PageFaults();
  std::memset(memory, 1, size);
  return PageFaults() - before;
}

TEST(HugePagesTest, LargeBuffersHaveFewPageFaults) {
  if (!UsesHugePages()) GTEST_SKIP() << "the system gives no huge pages on request";
  constexpr int64_t kSize = 64 << 20;
  Buffer<char> buffer(kSize);
  EXPECT_LT(FaultsOfWriting(buffer.data(), kSize), kSize / kSmallPage / 4);
}

TEST(HugePagesTest, MemoryBesideStaysOnItsPages) {
  constexpr size_t kSize = 4 * kHugePage;
  char* const memory = static_cast<char*>(
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(madvise(memory, kSize, MADV_NOHUGEPAGE), 0);
  // Less than three huge pages, which may begin anywhere: the first and the last are not whole.
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) / kHugePage + 1) * kHugePage;
  char* const from = reinterpret_cast<char*>(begin) + kSmallPage;
  AdviseNewMemory(from, 2 * kHugePage);
  EXPECT_GE(FaultsOfWriting(reinterpret_cast<char*>(begin), kHugePage),
            static_cast<int64_t>(kHugePage) / kSmallPage / 2);
  munmap(memory, kSize);
}

TEST(HugePagesTest, AnySizeIsTaken) {
  AdviseNewMemory(nullptr, 0);
  AdviseHugePages(nullptr, 0);
  for (const int64_t size : {1, 4096, 3 << 20, 4 << 20, (4 << 20) + 1}) {
    Buffer<char> buffer(size);
    AdviseHugePages(buffer.data(), size);
    EXPECT_GE(FaultsOfWriting(buffer.data(), size), 0);
    EXPECT_EQ(buffer[size - 1], 1);
  }
}

}  // namespace
}  // namespace tf_ti
