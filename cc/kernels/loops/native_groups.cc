#include "cc/kernels/loops/native_groups.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

#include "tsl/profiler/lib/traceme.h"
#include "tsl/profiler/lib/traceme_encode.h"

namespace tf_ti {

std::unique_ptr<NativeGroups> NativeGroups::Make(const NativePlan& plan, LanesOfValues lanes,
                                                 LanePrograms* programs, int64_t size) {
  std::unique_ptr<NativeGroups> made(new NativeGroups(plan, std::move(lanes)));
  const int64_t count = programs->lanes()->count;
  for (int64_t first = 0; first < count;) {
    auto group = std::make_unique<Group>();
    // One lane alone would have kernels that add up in another order.
    int64_t kept = std::min(size, count - first);
    if (count - first - kept < 2) kept = count - first;
    group->range = {count, first, kept};
    if (!made->Divide(group.get())) return nullptr;
    group->body = std::make_unique<RegionRun>(programs->ProgramOf(kept));
    if (plan.condition.has_value()) {
      group->condition = std::make_unique<RegionRun>(*plan.condition->region);
    }
    made->groups_.push_back(std::move(group));
    first += kept;
  }
  return made;
}

// Makes the group's plan. The sums are still the sums of all lanes: see StartSums.
bool NativeGroups::Divide(Group* group) const {
  const LaneRange& range = group->range;
  group->plan.sums = plan_.sums;
  group->plan.order = plan_.order;
  group->plan.body = plan_.body;
  group->plan.condition = plan_.condition;
  group->plan.goes_on = plan_.goes_on;
  for (size_t v = 0; v < plan_.values.size(); ++v) {
    std::optional<LoopValue> part =
        range.PartOf(plan_.values[v], lanes_.strides[v], &group->copies);
    if (!part.has_value()) return false;
    group->plan.values.push_back(*std::move(part));
  }
  for (const LoopWrite& write : plan_.writes) {
    if (range.first > 0 && IsOfFirst(write.value)) continue;
    const std::optional<Walk> walk =
        range.PartOf(write.to, plan_.values[write.value].bytes(), lanes_.strides[write.value]);
    if (!walk.has_value()) return false;
    group->plan.writes.push_back({write.value, *walk});
  }
  return true;
}

// Gives a group its own memory for sums. A sum over lanes begins with 0; any other sum begins with
// the values that it has before the loop.
void NativeGroups::StartSums(Group* group) const {
  const LaneRange& range = group->range;
  for (NativeSum& sum : group->plan.sums) {
    const int64_t bytes = sum.elements * sum.sum_size;
    const int64_t stride = lanes_.strides[sum.value] / sum.value_size * sum.sum_size;
    char* const own = group->sums.emplace_back(range.BytesOf(bytes, stride)).data();
    if (lanes_.are_sums[sum.value]) {
      std::memset(own, 0, bytes);
    } else if (bytes > 0) {
      range.Read(sum.sum, bytes, stride, own);
    }
    sum.elements = range.BytesOf(sum.elements, stride);
    sum.sum = own;
  }
}

void NativeGroups::FinishSums(const Group& group) const {
  for (size_t i = 0; i < plan_.sums.size(); ++i) {
    const NativeSum& sum = plan_.sums[i];
    const char* const own = group.sums[i].data();
    const int64_t stride = lanes_.strides[sum.value] / sum.value_size * sum.sum_size;
    if (lanes_.are_sums[sum.value]) {
      sum.add_sums(sum.elements, own, sum.sum);
    } else if (group.range.first == 0 || !IsOfFirst(sum.value)) {
      group.range.Write(own, sum.elements * sum.sum_size, stride, sum.sum);
    }
  }
}

int64_t NativeGroups::RunGroup(Group* group, int64_t begin, int64_t end,
                               const std::function<bool()>& stops) const {
  StartSums(group);
  group->plan.body.run = group->body.get();
  if (group->plan.condition.has_value()) group->plan.condition->run = group->condition.get();
  group->part = std::make_unique<NativePart>(std::move(group->plan), begin);
  return group->part->Run(end, nullptr, stops);
}

bool NativeGroups::Run(int64_t begin, int64_t end, Parallel* parallel,
                       const std::function<bool()>& is_stopped) {
  std::atomic<bool> is_over{false};
  std::vector<int64_t> ends(groups_.size());
  const auto run = [&](int64_t g, const std::function<void()>& remind) {
    if (is_over) return;
    const auto stops = [&] {
      remind();
      return is_over.load(std::memory_order_relaxed) || is_stopped();
    };
    Group& group = *groups_[g];
    const tsl::profiler::TraceMe trace(
        [&] {
          return tsl::profiler::TraceMeEncode(
              "TfTi>TensorIterator lanes",
              {{"first", group.range.first}, {"size", group.range.size}});
        },
        tsl::profiler::kInfo);
    try {
      ends[g] = RunGroup(&group, begin, end, stops);
    } catch (...) {
      is_over = true;  // for want of memory
      throw;
    }
    const bool is_done = ends[g] == end || group.part->has_ended();
    if (!is_done || group.part->has_failed()) is_over = true;
  };
  parallel->RunLong(static_cast<int64_t>(groups_.size()), run);
  now_ = ends[0];
  // The condition reads no lanes, so all groups end with the same iteration.
  if (is_over || std::count(ends.begin(), ends.end(), now_) < static_cast<int64_t>(ends.size())) {
    return false;
  }
  for (const std::unique_ptr<Group>& group : groups_) FinishSums(*group);
  return true;
}

void NativeGroups::Copy(int value, int64_t t, int64_t bytes, char* to) const {
  for (const std::unique_ptr<Group>& group : groups_) {
    group->range.Write(group->part->At(value, t), bytes, lanes_.strides[value], to);
    if (lanes_.strides[value] == 0) return;
  }
}

}  // namespace tf_ti
