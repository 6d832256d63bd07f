#include "cc/kernels/loops/lowering/compiled_body.h"

#include <algorithm>
#include <map>
#include <new>
#include <utility>

#include "cc/kernels/loops/lowering/lower.h"
#include "tensorflow/core/framework/op.h"

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

Dims DimsOf(const tensorflow::TensorShape& shape) {
  const auto dims = shape.dim_sizes();
  return Dims(dims.begin(), dims.end());
}

std::pair<int, int> KeyOf(const Source& source) { return {source.kind, source.index}; }

class BodyCompiler {
 public:
  BodyCompiler(const Schedule& schedule, const Observed& observed)
      : schedule_(schedule),
        observed_(observed),
        known_(schedule.values.size()),
        readers_(schedule.values.size()) {
    for (size_t s = 0; s < schedule.steps.size(); ++s) {
      const Step& step = schedule.steps[s];
      for (int i = 0; i < step.num_inputs; ++i) {
        const Source& source = schedule.inputs[step.first_input + i];
        if (source.kind == Source::kValue) readers_[source.index].push_back(static_cast<int>(s));
      }
    }
  }

  CompiledBody Compile() {
    CompiledBody body;
    for (const Observed::Array& parameter : observed_.parameters) {
      body.parameters.push_back(parameter.shape);
    }
    body.stays = observed_.stays;
    // The next region, whose steps wait for a kernel that needs them.
    std::vector<int> waiting;
    std::vector<bool> waits(schedule_.values.size(), false);
    const auto end_region = [&] {
      AddRegion(waiting, &body);
      waiting.clear();
      waits.assign(waits.size(), false);
    };
    for (size_t s = 0; s < schedule_.steps.size(); ++s) {
      const Step& step = schedule_.steps[s];
      if (MayJoin(step)) {
        waiting.push_back(static_cast<int>(s));
        for (int i = 0; i < step.num_outputs; ++i) waits[step.first_value + i] = true;
        continue;
      }
      bool needs = false;
      for (int i = 0; i < step.num_inputs; ++i) {
        const Source& source = schedule_.inputs[step.first_input + i];
        needs = needs || (source.kind == Source::kValue && waits[source.index]);
      }
      if (needs) end_region();
      AddKernel(static_cast<int>(s), &body);
    }
    end_region();
    if (body.units.empty()) AddEmptyRegion(&body);
    FindUnitReleases(&body);
    FindWhole(&body);
    return body;
  }

 private:
  // An input of a step, before it is a view of a program.
  const Observed::Array& ObservedOf(const Source& source) const {
    return source.kind == Source::kParameter ? observed_.parameters[source.index]
                                             : observed_.values[source.index];
  }

  bool MayJoin(const Step& step) const {
    if (!MayBeLowered(step.kernel->def())) return false;
    // Values that nobody needs have not been made.
    for (int i = 0; i < step.num_outputs; ++i) {
      if (observed_.values[step.first_value + i].dtype == tensorflow::DT_INVALID) return false;
    }
    return true;
  }

  void AddKernel(int s, CompiledBody* body) {
    const Step& step = schedule_.steps[s];
    CompiledBody::Unit unit;
    unit.step = s;
    body->units.push_back(std::move(unit));
    // Of known integers a kernel makes known ones, if it does nothing else.
    bool is_known = step.num_inputs > 0 && !IsStateful(step.kernel->def());
    for (int i = 0; i < step.num_inputs && is_known; ++i) {
      is_known = KnownOf(schedule_.inputs[step.first_input + i]).has_value();
    }
    for (int i = 0; i < step.num_outputs && is_known; ++i) {
      const Observed::Array& value = observed_.values[step.first_value + i];
      if (value.integers.IsInitialized() && value.integers.NumElements() > 0) {
        known_[step.first_value + i] = value.integers;
      }
    }
  }

  std::optional<Tensor> KnownOf(const Source& source) const {
    if (source.kind == Source::kConstant) return schedule_.constants[source.index];
    if (source.kind == Source::kValue) return known_[source.index];
    return std::nullopt;
  }

  // Of a body that only passes on what it gets.
  void AddEmptyRegion(CompiledBody* body) const {
    Region& region = body->regions.emplace_back();
    region.name = "program: (0 ops)";
    region.program = std::make_unique<SharedProgram>(ProgramBuilder());
    body->units.emplace_back().region = 0;
  }

  // Makes steps a region, or kernels where that does not pay.
  void AddRegion(const std::vector<int>& steps, CompiledBody* body) {
    std::vector<int> rest = steps;
    while (!rest.empty()) {
      // A step that cannot be lowered after all is a kernel, and those before it a region.
      Region region;
      const size_t count = LowerSome(rest, &region);
      if (region.program != nullptr) {
        CompiledBody::Unit unit;
        unit.region = static_cast<int>(body->regions.size());
        body->units.push_back(std::move(unit));
        body->regions.push_back(std::move(region));
      } else {
        for (size_t i = 0; i < count; ++i) AddKernel(rest[i], body);
      }
      rest.erase(rest.begin(), rest.begin() + count);
      if (rest.empty()) break;
      AddKernel(rest[0], body);
      rest.erase(rest.begin());
    }
  }

  // Lowers steps from the first on as far as it goes, and returns their number. Where they are
  // worth a program, `region` gets it.
  size_t LowerSome(const std::vector<int>& steps, Region* region) {
    ProgramBuilder builder;
    Lowering lowering(&builder);
    std::map<std::pair<int, int>, Lowered> lowered;  // what the steps read and make
    std::vector<Region::Array> inputs;
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
      is_right = is_right && lowering.Lower(step.kernel->def(), given, &made) &&
                 static_cast<int>(made.size()) == step.num_outputs;
      for (int i = 0; i < step.num_outputs && is_right; ++i) {
        is_right = IsAsObserved(made[i], observed_.values[step.first_value + i]);
      }
      if (!is_right) break;
      for (int i = 0; i < step.num_outputs; ++i) {
        lowered[KeyOf({Source::kValue, step.first_value + i})] = made[i];
      }
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
    region->inputs = std::move(inputs);
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
        region->outputs.push_back({source, observed_.values[v].dtype, observed_.values[v].shape});
      }
    }
    if (lowering.failure().has_value()) builder.AddOutput(*lowering.failure());
    region->may_fail = lowering.failure().has_value();
    region->program = std::make_unique<SharedProgram>(builder);
    keep_known();
    return count;
  }

  const std::string& NameOf(int s) const { return schedule_.steps[s].kernel->name(); }

  bool AddInput(const Source& source, ProgramBuilder* builder, std::vector<Region::Array>* inputs,
                Lowered* input) {
    input->known = KnownOf(source);
    if (input->known.has_value()) return true;
    const Observed::Array& array = ObservedOf(source);
    const std::optional<ElementType> type = ElementTypeOf(array.dtype);
    if (!type.has_value()) return false;
    const bool stays = source.kind == Source::kParameter && observed_.stays[source.index];
    input->view = builder->AddInput(*type, DimsOf(array.shape), stays);
    inputs->push_back({source, array.dtype, array.shape});
    return true;
  }

  bool IsAsObserved(const Lowered& made, const Observed::Array& array) const {
    if (made.view.block >= 0) {
      return DataTypeOf(made.view.type) == array.dtype && made.view.dims == DimsOf(array.shape);
    }
    return made.known->dtype() == array.dtype && made.known->shape() == array.shape;
  }

  bool IsReadOutside(int v, const std::vector<bool>& is_inside) const {
    return !schedule_.values[v].results.empty() ||
           std::any_of(readers_[v].begin(), readers_[v].end(),
                       [&](int step) { return !is_inside[step]; });
  }

  void FindUnitReleases(CompiledBody* body) const {
    std::vector<Reader> readers;
    for (const CompiledBody::Unit& unit : body->units) {
      Reader& reader = readers.emplace_back();
      reader.may_reuse = unit.region < 0;
      // Of a region, all that its steps read: kernels run them where the program does not fit.
      const std::vector<int> steps =
          unit.region >= 0 ? body->regions[unit.region].steps : std::vector<int>{unit.step};
      for (const int s : steps) {
        const Step& step = schedule_.steps[s];
        for (int i = 0; i < step.num_inputs; ++i) {
          reader.inputs.push_back(schedule_.inputs[step.first_input + i]);
        }
      }
    }
    std::vector<Releases> releases = FindReleases(schedule_, readers);
    for (size_t u = 0; u < releases.size(); ++u) body->units[u].releases = std::move(releases[u]);
  }

  void FindWhole(CompiledBody* body) const {
    if (body->units.size() != 1 || body->units[0].region < 0) return;
    if (!schedule_.constant_results.empty()) return;
    const Region& region = body->regions[0];
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
    body->whole = std::move(whole);
  }

  const Schedule& schedule_;
  const Observed& observed_;
  std::vector<std::optional<Tensor>> known_;  // of values
  std::vector<std::vector<int>> readers_;     // of values: steps
};

}  // namespace

void Observed::Array::Set(const Tensor& tensor) {
  dtype = tensor.dtype();
  shape = tensor.shape();
  const bool may_be_shape = dtype == tensorflow::DT_INT32 || dtype == tensorflow::DT_INT64;
  if (may_be_shape && tensor.NumElements() <= kMostIntegers) integers = tensor;
}

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
  if (program_.arena_bytes() > kMostBytes) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  try {
    idle_.push_back(std::move(run));
  } catch (const std::bad_alloc&) {
    // Freed, as there is no place for it. A destructor gives it back, and may not throw.
  }
}

CompiledBody CompileBody(const Schedule& schedule, const Observed& observed) {
  return BodyCompiler(schedule, observed).Compile();
}

}  // namespace tf_ti
