#include "cc/compute/recurrent/parts.h"

#include <unistd.h>

#include "cc/compute/recurrent/team.h"

namespace tf_ti {
namespace {

int64_t SecondLevelCacheBytes() {
  static const int64_t bytes = [] {
    const int64_t found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found > 0 ? found : int64_t{1} << 20;
  }();
  return bytes;
}

}  // namespace

// By rows, so that threads never meet, where these keep a thread busy and all weights fit into its
// cache; otherwise by units, if a step takes longer than threads take to meet.
Parts SplitSteps(const StepSizes& sizes, const Parallel& parallel) {
  // In nanoseconds, about: the weights are read, or multiplied.
  const double of_step = std::max(sizes.weight_bytes / 50, sizes.weights * sizes.batch / 40) +
                         sizes.activations * sizes.batch;
  const double of_all = sizes.num_steps * (of_step + sizes.other_weights * sizes.batch / 40);
  constexpr double kWakingUp = 20e3;
  constexpr double kMeeting = 1.4e3;
  const int64_t threads = std::min(parallel.num_threads(), kMostParts);
  const int64_t wanted = std::min<double>(threads, of_all / kWakingUp + 1);
  const int64_t by_rows = std::min(wanted, sizes.batch);
  const bool rows_are_many = sizes.batch >= 6 * by_rows || sizes.weight_bytes <= (24 << 10);
  Parts split;
  split.by_units = by_rows < 2 || !rows_are_many || sizes.weight_bytes > SecondLevelCacheBytes();
  int64_t count = by_rows;
  if (split.by_units) {
    count = std::min<double>({static_cast<double>(wanted), static_cast<double>(sizes.num_blocks),
                              of_step / kMeeting + 1});
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto at = [&](int64_t total, bool is_cut, int64_t k) {
      return is_cut ? total * k / count : k == i ? 0 : total;
    };
    split.parts.push_back(
        {at(sizes.batch, !split.by_units, i), at(sizes.batch, !split.by_units, i + 1),
         at(sizes.num_blocks, split.by_units, i), at(sizes.num_blocks, split.by_units, i + 1)});
  }
  return split;
}

}  // namespace tf_ti
