#include "cc/kernels/loops/lowering/told_lanes.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cc/compute/program/lanes.h"
#include "cc/compute/program/program.h"
#include "cc/kernels/loops/lowering/graph_lowering.h"
#include "cc/kernels/loops/lowering/region.h"
#include "cc/status.h"

namespace tf_ti {

namespace {

// The names of obstacles, by kind.
constexpr const char* kNames[] = {"several_sizes", "whole",  "constant", "parts",
                                  "reduced",       "places", "repeated"};

// The lines of a text, by their first words.
class Lines {
 public:
  explicit Lines(const std::string& text) {
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (words.empty()) continue;
      const std::string first = words.front();
      words.erase(words.begin());
      lines_[first] = std::move(words);
    }
  }

  const std::vector<std::string>& Words(const std::string& first) { return lines_[first]; }
  std::vector<int64_t> Numbers(const std::string& first) {
    std::vector<int64_t> numbers;
    for (const std::string& word : Words(first)) {
      if (!absl::SimpleAtoi(word, &numbers.emplace_back())) numbers.back() = 0;
    }
    return numbers;
  }
  int64_t Number(const std::string& first) {
    const std::vector<int64_t> numbers = Numbers(first);
    return numbers.empty() ? 0 : numbers[0];
  }

 private:
  std::map<std::string, std::vector<std::string>> lines_;
};

absl::StatusOr<std::string> Tell(const char* graph, int64_t size, const std::string& text) {
  Lines loop(text);
  BodyGraph body;
  if (!body.graph.ParseFromArray(graph, static_cast<int>(size))) return InvalidArgument("no graph");
  body.parameters = loop.Words("parameters");
  body.results = loop.Words("results");
  const std::vector<int64_t> stays = loop.Numbers("stays"), inputs = loop.Numbers("inputs"),
                             outputs = loop.Numbers("outputs"), kept = loop.Numbers("kept"),
                             added = loop.Numbers("added");
  if (stays.size() != body.parameters.size() || inputs.size() != body.parameters.size() ||
      outputs.size() != body.results.size() || kept.size() != body.results.size() ||
      added.size() != body.results.size()) {
    return InvalidArgument("numbers of parameters or results that do not fit");
  }
  body.stays.assign(stays.begin(), stays.end());
  TF_ASSIGN_OR_RETURN(const LoweredGraph lowered, LowerGraph(body));
  std::string told;
  for (const LoweredGraph::Kernel& kernel : lowered.kernels) {
    absl::StrAppend(&told, "kernel ", body.graph.node(kernel.node).name(), " ", kernel.reason,
                    "\n");
  }
  if (!told.empty()) return told;

  LoopPlan plan;
  plan.is_whole.assign(loop.Number("arrays"), false);
  const auto array_of = [&](int64_t array) -> absl::StatusOr<int> {
    if (array < 0 || array >= static_cast<int64_t>(plan.is_whole.size())) {
      return InvalidArgument("no array");
    }
    return static_cast<int>(array);
  };
  for (const int parameter : lowered.inputs) {
    TF_ASSIGN_OR_RETURN(plan.inputs.emplace_back(), array_of(inputs[parameter]));
  }
  for (size_t r = 0; r < outputs.size(); ++r) {
    TF_ASSIGN_OR_RETURN(plan.outputs.emplace_back(), array_of(outputs[r]));
    plan.uses.push_back(kept[r] != 0 ? LoopPlan::Use::kValue : LoopPlan::Use::kAdded);
  }
  for (const int64_t whole : loop.Numbers("whole")) {
    TF_ASSIGN_OR_RETURN(const int array, array_of(whole));
    plan.is_whole[array] = true;
  }
  if (lowered.may_fail) {
    plan.outputs.push_back(static_cast<int>(plan.is_whole.size()));
    plan.uses.push_back(LoopPlan::Use::kFailure);
    plan.is_whole.push_back(false);
  }
  const ProgramSteps steps = WithoutDeadSteps(lowered.steps);
  const FoundLanes found = FindLanes(steps, plan);
  if (found.lanes.empty()) {
    for (const Obstacle& obstacle : found.obstacles) {
      const bool has_origin = obstacle.origin >= 0;
      absl::StrAppend(&told, "obstacle ", kNames[static_cast<int>(obstacle.kind)], " ",
                      has_origin ? body.graph.node(obstacle.origin).name() : "-", " ",
                      obstacle.array, " ", obstacle.stride, "\n");
    }
    return told;
  }
  const Lanes& lanes = found.lanes[0];
  bool adds_lanes = false;
  for (size_t r = 0; r < added.size(); ++r) adds_lanes |= lanes.is_sum[r] && added[r] != 0;
  const int64_t iterations =
      IterationsOfGroups(0, loop.Number("iterations"), loop.Number("has_condition") != 0);
  int64_t lanes_of_group = LanesInEnvironment();
  if (lanes_of_group < 0) {
    lanes_of_group = LanesOfGroup(lanes, Program(steps).num_instructions(), iterations,
                                  adds_lanes ? 0 : loop.Number("threads"));
  }
  const int64_t num_groups = iterations < 1 ? 1 : NumGroups(lanes.count, lanes_of_group);
  for (size_t a = 0; a < plan.is_whole.size(); ++a) {
    if (lanes.array_strides[a] == 0) continue;
    absl::StrAppend(&told, "lanes ", lanes.count, " ", num_groups, " ", a, " ",
                    lanes.array_strides[a], "\n");
  }
  return told;
}

}  // namespace

const char* TfTiLanes(const char* graph, int64_t size, const char* loop) {
  thread_local std::string told;
  const absl::Status status = CatchOutOfMemory("tf_ti.explain", [&] {
    absl::StatusOr<std::string> text = Tell(graph, size, loop);
    if (text.ok()) told = *std::move(text);
    return text.status();
  });
  if (!status.ok()) told = absl::StrCat("refused ", status.message());
  return told.c_str();
}

}  // namespace tf_ti
