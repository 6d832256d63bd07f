#include "cc/kernels/loops/lowering/compiled_body.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

#include "cc/kernels/loops/lowering/lower.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/public/version.h"

namespace tf_ti {

using tensorflow::DataType;
using tensorflow::NodeDef;
using tensorflow::Tensor;

namespace {

constexpr int64_t kMostIntegers = 64;

bool IsStateful(const NodeDef& node) {
  const tensorflow::OpDef* op;
  return !tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op).ok() || op->is_stateful();
}

// True if the outputs have the types and shapes that TensorFlow infers for an operation on these
// inputs; false if the inputs do not fit the operation.
bool AreInferred(const tensorflow::OpKernel& kernel, const std::vector<Lowered>& inputs,
                 const std::vector<Lowered>& outputs) {
  const tensorflow::OpRegistrationData* op;
  if (!tensorflow::OpRegistry::Global()->LookUp(kernel.def().op(), &op).ok() ||
      op->shape_inference_fn == nullptr || kernel.num_inputs() != static_cast<int>(inputs.size()) ||
      kernel.num_outputs() != static_cast<int>(outputs.size())) {
    return false;
  }
  const auto type_of = [](const Lowered& value) {
    return value.view.block >= 0 ? DataTypeOf(value.view.type) : value.known->dtype();
  };
  for (int i = 0; i < kernel.num_inputs(); ++i) {
    if (type_of(inputs[i]) != kernel.input_type(i)) return false;
  }
  std::vector<tensorflow::PartialTensorShape> shapes;
  std::vector<const Tensor*> tensors;
  for (const Lowered& input : inputs) {
    tensors.push_back(input.known.has_value() ? &*input.known : nullptr);
    shapes.emplace_back(DimsOf(input));
  }
  tensorflow::shape_inference::InferenceContext context(TF_GRAPH_DEF_VERSION,
                                                        tensorflow::AttrSlice(kernel.def()),
                                                        op->op_def, shapes, tensors, {}, {});
  if (!context.construction_status().ok() || !context.Run(op->shape_inference_fn).ok()) {
    return false;
  }
  for (int i = 0; i < kernel.num_outputs(); ++i) {
    const Dims dims = DimsOf(outputs[i]);
    if (type_of(outputs[i]) != kernel.output_type(i)) return false;
    const auto inferred = context.output(i);
    const bool is_known = context.RankKnown(inferred);
    if (is_known && context.Rank(inferred) != static_cast<int>(dims.size())) return false;
    for (size_t d = 0; d < dims.size(); ++d) {
      const int64_t extent = is_known ? context.Value(context.Dim(inferred, d)) : -1;
      if (dims[d] < 0 || (extent >= 0 && extent != dims[d])) return false;
    }
  }
  return true;
}

std::pair<int, int> KeyOf(const Source& source) { return {source.kind, source.index}; }

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
      TF_RETURN_IF_ERROR(AddRegion(TakeNeeded(static_cast<int>(s), &waiting)));
      TF_RETURN_IF_ERROR(AddKernel(static_cast<int>(s)));
    }
    // A counter, say, is there for the next iteration though a kernel is at work in this one.
    TF_RETURN_IF_ERROR(AddRegion(TakeIndependent(&waiting)));
    TF_RETURN_IF_ERROR(AddRegion(waiting));
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
                            return KnownOf(source).has_value();
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

  std::optional<Tensor> KnownOf(const Source& source) const {
    if (source.kind == Source::kConstant) return schedule_.constants[source.index];
    if (source.kind == Source::kValue) return known_[source.index];
    return std::nullopt;
  }

  absl::Status AddUnitOf(Region region) {
    CompiledBody::Unit unit;
    unit.region = static_cast<int>(body_.regions.size());
    body_.regions.push_back(std::move(region));
    return AddUnit(std::move(unit));
  }

  // Of a body that only passes on what it gets.
  absl::Status AddEmptyRegion() {
    Region region;
    region.name = "program: (0 ops)";
    region.program = std::make_shared<SharedProgram>(ProgramBuilder());
    return AddUnitOf(std::move(region));
  }

  // Makes steps a region, or kernels where that does not pay.
  absl::Status AddRegion(const std::vector<int>& steps) {
    std::vector<int> rest = steps;
    while (!rest.empty()) {
      // A step that cannot be lowered after all is a kernel, and those before it a region.
      Region region;
      const size_t count = LowerSome(rest, &region);
      std::vector<Region::Array> decided_by;  // for the first of the kernels
      size_t num_done = 0;
      if (region.program != nullptr) {
        TF_RETURN_IF_ERROR(AddUnitOf(std::move(region)));
        num_done = count;
      } else {
        decided_by = std::move(region.inputs);
      }
      for (; num_done < std::min(count + 1, rest.size()); ++num_done) {
        TF_RETURN_IF_ERROR(AddKernel(rest[num_done], std::exchange(decided_by, {})));
      }
      rest.erase(rest.begin(), rest.begin() + num_done);
    }
    return absl::OkStatus();
  }

  // Lowers steps from the first on as far as it goes, and returns their number. Where they are
  // worth a program, `region` gets it.
  size_t LowerSome(const std::vector<int>& steps, Region* region) {
    ProgramBuilder builder;
    Lowering lowering(&builder);
    std::map<std::pair<int, int>, Lowered> lowered;  // what the steps read and make
    std::vector<Region::Array>& inputs = region->inputs;
    std::optional<View> failure;  // an error of the lowered steps
    size_t count = 0;
    int num_computing = 0;
    for (; count < steps.size(); ++count) {
      const Step& step = schedule_.steps[steps[count]];
      std::vector<Lowered> given, made;
      bool is_right = true;
      for (int i = 0; i < step.num_inputs && is_right; ++i) {
        const Source source = schedule_.inputs[step.first_input + i];
        auto found = lowered.find(KeyOf(source));
        if (found == lowered.end()) {
          Lowered input;
          if (!AddInput(source, &builder, &inputs, &input)) {
            is_right = false;
            break;
          }
          found = lowered.emplace(KeyOf(source), std::move(input)).first;
        }
        given.push_back(found->second);
      }
      // The kernel reports inputs that do not fit each other.
      is_right = is_right && lowering.Lower(step.kernel->def(), given, &made) &&
                 AreInferred(*step.kernel, given, made);
      if (!is_right) break;
      for (int i = 0; i < step.num_outputs; ++i) {
        lowered[KeyOf({Source::kValue, step.first_value + i})] = made[i];
      }
      failure = lowering.failure();
      num_computing += !IsView(step.kernel->def());
    }
    // What is known follows from shapes of inputs. A program looks at these before it runs; where
    // there is none, only those of parameters are looked at.
    const auto keep_known = [&] {
      for (size_t s = 0; s < count; ++s) {
        const Step& step = schedule_.steps[steps[s]];
        for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
          known_[v] = lowered.at(KeyOf({Source::kValue, v})).known;
        }
      }
    };
    if (num_computing == 0) {
      const bool are_parameters = std::all_of(
          inputs.begin(), inputs.end(),
          [](const Region::Array& input) { return input.source.kind == Source::kParameter; });
      if (are_parameters) keep_known();
      return count;
    }
    region->steps.assign(steps.begin(), steps.begin() + count);
    region->name = absl::StrCat("program: ", NameOf(steps[0]), "..", NameOf(steps[count - 1]), " (",
                                count, count == 1 ? " op)" : " ops)");
    std::vector<bool> is_inside(schedule_.steps.size(), false);
    for (const int s : region->steps) is_inside[s] = true;
    for (const int s : region->steps) {
      const Step& step = schedule_.steps[s];
      for (int i = 0; i < step.num_outputs; ++i) {
        const int v = step.first_value + i;
        if (!IsReadOutside(v, is_inside)) continue;
        const Source source = {Source::kValue, v};
        const std::optional<View> view = lowering.ViewOf(lowered.at(KeyOf(source)));
        if (!view.has_value()) {
          region->steps.clear();
          return count;
        }
        builder.AddOutput(*view);
        region->outputs.push_back(
            {source, DataTypeOf(view->type), tensorflow::TensorShape(view->dims)});
      }
    }
    if (failure.has_value()) builder.AddOutput(*failure);
    region->may_fail = failure.has_value();
    region->program = std::make_shared<SharedProgram>(builder);
    keep_known();
    return count;
  }

  const std::string& NameOf(int s) const { return schedule_.steps[s].kernel->name(); }

  bool AddInput(const Source& source, ProgramBuilder* builder, std::vector<Region::Array>* inputs,
                Lowered* input) {
    input->known = KnownOf(source);
    if (input->known.has_value()) return true;
    const Tensor& tensor = iteration_.TensorOf(source);
    const std::optional<ElementType> type = ElementTypeOf(tensor.dtype());
    if (!type.has_value()) return false;
    const bool stays = source.kind == Source::kParameter && body_.stays[source.index];
    const auto dims = tensor.shape().dim_sizes();
    input->view = builder->AddInput(*type, Dims(dims.begin(), dims.end()), stays);
    inputs->push_back({source, tensor.dtype(), tensor.shape()});
    return true;
  }

  bool IsReadOutside(int v, const std::vector<bool>& is_inside) const {
    return !schedule_.values[v].results.empty() ||
           std::any_of(readers_[v].begin(), readers_[v].end(),
                       [&](int step) { return !is_inside[step]; });
  }

  void FindWhole() {
    if (body_.units.size() != 1 || body_.units[0].region < 0) return;
    if (!schedule_.constant_results.empty()) return;
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

std::unique_ptr<ProgramRun> SharedProgram::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<ProgramRun> run = std::move(idle_.back());
      idle_.pop_back();
      return run;
    }
  }
  return std::make_unique<ProgramRun>(program_);
}

void SharedProgram::GiveBack(std::unique_ptr<ProgramRun> run) {
  // To get more memory anew takes less time than a loop that uses it.
  constexpr int64_t kMostBytes = 1 << 20;
  if (run->bytes() > kMostBytes) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    idle_.push_back(std::move(run));
  } catch (const std::bad_alloc&) {
    // Freed, as there is no place for it. A destructor gives it back, and may not throw.
  }
}

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
