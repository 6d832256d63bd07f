#include "cc/kernels/loops/lowering/compiled_body.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "cc/kernels/loops/lowering/lower.h"
#include "cc/kernels/loops/lowering/region_lowering.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/logging.h"

namespace tf_ti {

using tensorflow::NodeDef;
using tensorflow::Tensor;

namespace {

constexpr int64_t kMostIntegers = 64;

bool IsStateful(const NodeDef& node) {
  const tensorflow::OpDef* op;
  return !tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok() || op->is_stateful();
}

class BodyCompiler {
 public:
  BodyCompiler(const Schedule& schedule, FirstIteration* iteration, CompiledBody* body)
      : schedule_(schedule),
        iteration_(*iteration),
        body_(*body),
        known_(body->known),
        readers_(schedule.values.size()),
        is_done_(schedule.steps.size(), false),
        last_reads_(schedule) {
    known_.resize(schedule.values.size());
    for (size_t s = 0; s < schedule.steps.size(); ++s) {
      for (const Source& source : schedule.InputsOf(schedule.steps[s])) {
        if (source.kind == Source::kValue) readers_[source.index].push_back(static_cast<int>(s));
      }
    }
    for (const CompiledBody::Unit& unit : body->units) FindReleases(unit);
    for (size_t s = 0; s < schedule.steps.size(); ++s) {
      const Step& step = schedule.steps[s];
      for (int i = 0; i < step.num_outputs && !is_done_[s]; ++i) {
        known_[step.first_value + i].reset();
      }
    }
  }

  absl::Status Compile() {
    // Steps for programs. They wait for a kernel that follows them: the kernel reads their values,
    // or must have no effect if they fail. It waits for no others: where kernels are at work at
    // once, a program that none of them needs keeps none of them.
    std::vector<int> waiting;
    for (size_t s = 0; s < schedule_.steps.size(); ++s) {
      if (is_done_[s]) continue;
      if (MayBeLowered(schedule_.steps[s].kernel->def())) {
        waiting.push_back(static_cast<int>(s));
        continue;
      }
      TF_RETURN_IF_ERROR(AddRegions(TakeNeeded(static_cast<int>(s), &waiting)));
      TF_RETURN_IF_ERROR(AddKernel(static_cast<int>(s)));
    }
    // A counter, say, is there for the next iteration though a kernel is at work in this one.
    TF_RETURN_IF_ERROR(AddRegions(TakeIndependent(&waiting)));
    TF_RETURN_IF_ERROR(AddRegions(waiting));
    if (body_.units.empty()) TF_RETURN_IF_ERROR(AddEmptyRegion());
    FindWhole();
    return absl::OkStatus();
  }

 private:
  // Removes the steps that a step follows, and returns them.
  std::vector<int> TakeNeeded(int s, std::vector<int>* waiting) const {
    std::vector<bool> is_needed(s, false);
    for (const int before : schedule_.steps[s].after) is_needed[before] = true;
    std::vector<int> needed, rest;
    std::for_each(waiting->rbegin(), waiting->rend(), [&](int w) {
      (is_needed[w] ? needed : rest).push_back(w);
      if (!is_needed[w]) return;
      for (const int before : schedule_.steps[w].after) is_needed[before] = true;
    });
    std::reverse(needed.begin(), needed.end());
    waiting->assign(rest.rbegin(), rest.rend());
    return needed;
  }

  // Removes the steps that follow no kernel, and returns them.
  std::vector<int> TakeIndependent(std::vector<int>* waiting) const {
    std::vector<bool> follows_kernel(schedule_.steps.size(), false);
    for (size_t s = 0; s < schedule_.steps.size(); ++s) {
      const Step& step = schedule_.steps[s];
      follows_kernel[s] = !MayBeLowered(step.kernel->def()) ||
                          std::any_of(step.after.begin(), step.after.end(),
                                      [&](int before) { return follows_kernel[before]; });
    }
    const auto rest = std::stable_partition(waiting->begin(), waiting->end(),
                                            [&](int s) { return !follows_kernel[s]; });
    std::vector<int> taken(waiting->begin(), rest);
    waiting->erase(waiting->begin(), rest);
    return taken;
  }

  // Finds the last reads of a unit, and marks its steps as done.
  Releases FindReleases(const CompiledBody::Unit& unit) {
    // Of a region, all that its steps read: kernels run them where the program cannot.
    const bool is_kernel = unit.region < 0;
    std::vector<Source> inputs;
    for (const int s : is_kernel ? std::vector<int>{unit.step} : body_.regions[unit.region].steps) {
      for (const Source& source : schedule_.InputsOf(schedule_.steps[s])) inputs.push_back(source);
      is_done_[s] = true;
    }
    return last_reads_.Next(inputs, /*may_reuse=*/is_kernel);
  }

  absl::Status AddUnit(CompiledBody::Unit unit) {
    unit.releases = FindReleases(unit);
    body_.units.push_back(std::move(unit));
    return iteration_.RunLast(body_);
  }

  absl::Status AddKernel(int s, std::vector<Region::Array> decided_by = {}) {
    const Step& step = schedule_.steps[s];
    // The results of a kernel without effects on known integers are known too.
    const std::vector<Source> inputs = schedule_.InputsOf(step);
    const bool is_known = !inputs.empty() && !IsStateful(step.kernel->def()) &&
                          std::all_of(inputs.begin(), inputs.end(), [this](const Source& source) {
                            return KnownOf(schedule_, body_, source).has_value();
                          });
    CompiledBody::Unit unit;
    unit.step = s;
    unit.inputs = std::move(decided_by);
    TF_RETURN_IF_ERROR(AddUnit(std::move(unit)));
    for (int v = step.first_value; v < step.first_value + step.num_outputs && is_known; ++v) {
      if (schedule_.values[v].uses == 0) continue;
      const Tensor& value = iteration_.TensorOf({Source::kValue, v});
      const bool may_be_shape =
          value.dtype() == tensorflow::DT_INT32 || value.dtype() == tensorflow::DT_INT64;
      if (may_be_shape && value.NumElements() > 0 && value.NumElements() <= kMostIntegers) {
        known_[v] = tensorflow::tensor::DeepCopy(value);
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddUnitOf(Region region) {
    CompiledBody::Unit unit;
    unit.region = static_cast<int>(body_.regions.size());
    body_.regions.push_back(std::move(region));
    return AddUnit(std::move(unit));
  }

  // Adds the only region of a body that computes nothing.
  absl::Status AddEmptyRegion() {
    Region region;
    region.name = "program: (0 ops)";
    region.program = std::make_shared<SharedProgram>(ProgramSteps());
    region.lanes = std::make_shared<RegionLanes>(ProgramSteps());
    return AddUnitOf(std::move(region));
  }

  // Makes steps regions where that pays, and kernels otherwise.
  absl::Status AddRegions(std::vector<int> steps) {
    while (!steps.empty()) {
      // A step that cannot be lowered after all is a kernel, and those before it a region.
      auto lowering = std::make_unique<RegionLowering>(schedule_, body_, iteration_);
      size_t count = LowerFirst(steps, steps.size(), lowering.get());
      while (const std::optional<size_t> recording = FindRecording(*lowering)) {
        // The step records a history that a kernel reads, so it is a kernel.
        lowering = std::make_unique<RegionLowering>(schedule_, body_, iteration_);
        count = LowerFirst(steps, *recording, lowering.get());
      }
      std::optional<Region> region = RegionOf(lowering.get());
      std::vector<Region::Array> decided_by;  // for the first of the kernels
      size_t num_done = 0;
      if (region.has_value()) {
        TF_RETURN_IF_ERROR(AddUnitOf(*std::move(region)));
        num_done = count;
      } else {
        decided_by = lowering->inputs();
      }
      for (; num_done < std::min(count + 1, steps.size()); ++num_done) {
        TF_RETURN_IF_ERROR(AddKernel(steps[num_done], std::exchange(decided_by, {})));
      }
      steps.erase(steps.begin(), steps.begin() + num_done);
    }
    return absl::OkStatus();
  }

  // Lowers steps from the first on as far as it goes, at most so many, and returns their number.
  size_t LowerFirst(const std::vector<int>& steps, size_t most, RegionLowering* lowering) const {
    for (size_t count = 0; count < most; ++count) {
      const absl::Status status = lowering->Add(steps[count]);
      if (status.ok()) continue;
      VLOG(2) << schedule_.steps[steps[count]].kernel->name()
              << " runs as a kernel: " << status.message();
      return count;
    }
    return most;
  }

  // The first of the region's steps that makes a history which others read.
  std::optional<size_t> FindRecording(const RegionLowering& lowering) const {
    const std::vector<int>& steps = lowering.steps();
    for (const int v : ReadOutside(steps)) {
      if (lowering.IsArray(v)) continue;
      for (size_t k = 0; k < steps.size(); ++k) {
        const Step& step = schedule_.steps[steps[k]];
        if (v >= step.first_value && v < step.first_value + step.num_outputs) return k;
      }
    }
    return std::nullopt;
  }

  // The region of lowered steps, if they are worth one.
  std::optional<Region> RegionOf(RegionLowering* lowering) {
    if (!lowering->Computes()) {
      // What is known follows from shapes of inputs. A program looks at these before it runs; where
      // there is none, only the shapes of parameters are looked at.
      if (lowering->ReadsParametersAlone()) KeepKnown(*lowering);
      return std::nullopt;
    }
    absl::StatusOr<Region> region = lowering->Finish(ReadOutside(lowering->steps()));
    if (!region.ok()) return std::nullopt;
    KeepKnown(*lowering);
    return *std::move(region);
  }

  void KeepKnown(const RegionLowering& lowering) {
    for (const int s : lowering.steps()) {
      const Step& step = schedule_.steps[s];
      for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
        known_[v] = lowering.KnownOf(v);
      }
    }
  }

  // The values of steps that results of the body or other steps need.
  std::vector<int> ReadOutside(const std::vector<int>& steps) const {
    std::vector<bool> is_inside(schedule_.steps.size(), false);
    for (const int s : steps) is_inside[s] = true;
    std::vector<int> values;
    for (const int s : steps) {
      const Step& step = schedule_.steps[s];
      for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
        const bool is_read = std::any_of(readers_[v].begin(), readers_[v].end(),
                                         [&](int reader) { return !is_inside[reader]; });
        if (is_read || !schedule_.values[v].results.empty()) values.push_back(v);
      }
    }
    return values;
  }

  void FindWhole() {
    if (body_.units.size() != 1 || body_.units[0].region < 0 ||
        !schedule_.constant_results.empty()) {
      for (Region& each : body_.regions) each.lanes.reset();
      return;
    }
    const Region& region = body_.regions[0];
    std::vector<int> whole;
    const auto set = [&whole](const std::vector<int>& results, int source) {
      for (const size_t result : results) {
        whole.resize(std::max(whole.size(), result + 1));
        whole[result] = source;
      }
    };
    for (size_t p = 0; p < schedule_.parameters.size(); ++p) {
      set(schedule_.parameters[p].results, -1 - static_cast<int>(p));
    }
    for (size_t i = 0; i < region.outputs.size(); ++i) {
      set(schedule_.values[region.outputs[i].source.index].results, static_cast<int>(i));
    }
    body_.whole = std::move(whole);
  }

  const Schedule& schedule_;
  FirstIteration& iteration_;
  CompiledBody& body_;
  std::vector<std::optional<Tensor>>& known_;  // of values
  std::vector<std::vector<int>> readers_;      // of values: steps
  std::vector<bool> is_done_;                  // of steps
  LastReads last_reads_;
};

}  // namespace

absl::Status CompileBody(const Schedule& schedule, FirstIteration* iteration, CompiledBody* body) {
  return BodyCompiler(schedule, iteration, body).Compile();
}

bool AreAlikeUpTo(size_t unit, const CompiledBody& a, const CompiledBody& b) {
  if (unit >= b.units.size()) return false;
  // Bodies of one schedule are cut alike where the shapes that decide are the same.
  for (size_t u = 0; u < unit; ++u) {
    const std::vector<Region::Array>&x = a.DecidedBy(a.units[u]), &y = b.DecidedBy(b.units[u]);
    if (!std::equal(x.begin(), x.end(), y.begin(), y.end(), [](const auto& one, const auto& other) {
          return one.source.kind == other.source.kind && one.source.index == other.source.index &&
                 one.dtype == other.dtype && one.shape == other.shape;
        })) {
      return false;
    }
  }
  return true;
}

CompiledBody CutBefore(size_t unit, const CompiledBody& body) {
  CompiledBody cut;
  cut.parameters = body.parameters;
  cut.stays = body.stays;
  cut.units.assign(body.units.begin(), body.units.begin() + unit);
  for (const CompiledBody::Unit& kept : cut.units) {
    if (kept.region >= 0) cut.regions.push_back(body.regions[kept.region]);
  }
  cut.known = body.known;
  return cut;
}

}  // namespace tf_ti
