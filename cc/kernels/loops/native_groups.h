// Groups of a loop's lanes, each of which runs all iterations.
#ifndef TF_TI_CC_KERNELS_LOOPS_NATIVE_GROUPS_H_
#define TF_TI_CC_KERNELS_LOOPS_NATIVE_GROUPS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/loops/lane_range.h"
#include "cc/compute/parallel.h"
#include "cc/compute/program/lanes.h"
#include "cc/kernels/loops/lowering/region.h"
#include "cc/kernels/loops/native_part.h"

namespace tf_ti {

// Values without lanes are computed by each group; the first one writes them, and sums them up. No
// sum changes before all groups are done.
class NativeGroups {
 public:
  // By value of the plan: the bytes from a lane to the next, and whether it is a sum over lanes.
  struct LanesOfValues {
    std::vector<int64_t> strides;
    std::vector<char> are_sums;
  };

  // Makes groups of `size` lanes; the last group has the lanes that are left. Returns null if
  // blocks of some value cut lanes apart.
  static std::unique_ptr<NativeGroups> Make(const NativePlan& plan, LanesOfValues lanes,
                                            LanePrograms* programs, int64_t size);

  // Runs iterations [begin, end) of all groups. Returns false if a program failed, or the groups
  // were stopped: then the loop is as if none of them had run, but for outputs that iterations
  // write.
  bool Run(int64_t begin, int64_t end, Parallel* parallel, const std::function<bool()>& is_stopped);
  // The first iteration that has not run.
  int64_t now() const { return now_; }
  bool has_ended() const { return groups_[0]->part->has_ended(); }
  // Copies a value of an iteration.
  void Copy(int value, int64_t t, int64_t bytes, char* to) const;

 private:
  struct Group {
    LaneRange range;
    NativePlan plan;
    std::vector<Buffer<char>> copies;  // of what the plan reads
    std::vector<Buffer<char>> sums;    // of the plan, in order
    std::unique_ptr<RegionRun> body;
    std::unique_ptr<RegionRun> condition;
    std::unique_ptr<NativePart> part;
  };

  NativeGroups(const NativePlan& plan, LanesOfValues lanes)
      : plan_(plan), lanes_(std::move(lanes)) {}
  bool Divide(Group* group) const;
  void StartSums(Group* group) const;
  int64_t RunGroup(Group* group, int64_t begin, int64_t end,
                   const std::function<bool()>& stops) const;
  void FinishSums(const Group& group) const;
  bool IsOfFirst(int value) const { return lanes_.strides[value] == 0 && !lanes_.are_sums[value]; }

  const NativePlan& plan_;
  const LanesOfValues lanes_;
  std::vector<std::unique_ptr<Group>> groups_;
  int64_t now_ = 0;
};

}  // namespace tf_ti

#endif  // TF_TI_CC_KERNELS_LOOPS_NATIVE_GROUPS_H_
