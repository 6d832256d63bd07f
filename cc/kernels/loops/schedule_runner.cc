#include "cc/kernels/loops/schedule_runner.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "cc/compute/waiting.h"
#include "cc/kernels/loops/caching_allocator.h"
#include "cc/kernels/loops/packed_product.h"
#include "cc/kernels/threads.h"
#include "cc/status.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_ti {

using tensorflow::DeviceBase;
using tensorflow::Executor;
using tensorflow::LocalExecutorParams;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;
using tsl::profiler::TraceMe;

namespace {

// In errors, which the loop tells the iteration and the op's name.
constexpr char kBody[] = "a loop's body";

// Objects, each of which one thread uses at a time: as many as threads have used at once.
template <typename T>
class Spares {
 public:
  template <typename Make>
  std::unique_ptr<T> Take(const Make& make) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!spares_.empty()) {
        std::unique_ptr<T> spare = std::move(spares_.back());
        spares_.pop_back();
        return spare;
      }
    }
    return make();
  }
  void GiveBack(std::unique_ptr<T> spare) {
    const std::lock_guard<std::mutex> lock(mutex_);
    spares_.push_back(std::move(spare));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> spares_;
};

// The values of one iteration.
class Values {
 public:
  Values(const Schedule& schedule, BodyFrame* frame) : schedule_(schedule), frame_(*frame) {
    values_.resize(schedule.values.size());
    guards_.resize(schedule.values.size());
    parameter_guards_.resize(schedule.parameters.size());
    for (const Source& source : schedule.inputs) {
      Tensor* tensor = source.kind == Source::kValue       ? &values_[source.index]
                       : source.kind == Source::kParameter ? &frame->parameters[source.index]
                                                           : ConstantAt(source.index);
      inputs_.emplace_back(tensor);
    }
  }

  BodyFrame& frame() { return frame_; }

  void Clear() {
    for (Tensor& value : values_) value = Tensor();
    for (Tensor& guard : guards_) guard = Tensor();
    for (Tensor& guard : parameter_guards_) guard = Tensor();
  }

  // To be called where a parameter has been set.
  void SetParameter(int p) {
    const Value& parameter = schedule_.parameters[p];
    for (int result : parameter.results) frame_.results[result] = frame_.parameters[p];
    if (parameter.uses > 1 && frame_.consumable[p]) parameter_guards_[p] = frame_.parameters[p];
  }
  void SetConstants() {
    for (const auto& [constant, result] : schedule_.constant_results) {
      frame_.results[result] = schedule_.constants[constant];
    }
  }
  void Set(int v, Tensor tensor) {
    const Value& value = schedule_.values[v];
    for (int result : value.results) frame_.results[result] = tensor;
    if (value.uses > 1) guards_[v] = tensor;
    if (value.uses > 0) values_[v] = std::move(tensor);
  }

  // Lets a kernel take memory for its result.
  void Unguard(const Releases& releases) {
    for (int v : releases.unguard_values) guards_[v] = Tensor();
    for (int p : releases.unguard_parameters) parameter_guards_[p] = Tensor();
  }
  void Release(const Releases& releases) {
    for (int v : releases.release_values) {
      values_[v] = Tensor();
      guards_[v] = Tensor();
    }
    for (int p : releases.release_parameters) {
      if (!frame_.consumable[p]) continue;
      frame_.parameters[p] = Tensor();
      parameter_guards_[p] = Tensor();
    }
  }
  // Lets go of the values that kernels made in place of a program.
  void ReleaseInside(const Region& region) {
    for (const int s : region.steps) {
      const Step& step = schedule_.steps[s];
      for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
        const bool is_output =
            std::any_of(region.outputs.begin(), region.outputs.end(),
                        [v](const Region::Array& output) { return output.source.index == v; });
        if (is_output) continue;
        values_[v] = Tensor();
        guards_[v] = Tensor();
      }
    }
  }

  absl::Span<const TensorValue> InputsOf(const Step& step) const {
    return absl::MakeConstSpan(inputs_).subspan(step.first_input, step.num_inputs);
  }
  const Tensor& TensorOf(const Source& source) const {
    return source.kind == Source::kValue ? values_[source.index] : frame_.parameters[source.index];
  }
  bool Fits(const std::vector<Region::Array>& arrays) const {
    for (const Region::Array& input : arrays) {
      const Tensor& tensor = TensorOf(input.source);
      if (tensor.dtype() != input.dtype || !tensor.shape().IsSameSize(input.shape)) return false;
    }
    return true;
  }

 private:
  // Kernels do not write to inputs whose memory others refer to.
  Tensor* ConstantAt(int index) { return const_cast<Tensor*>(&schedule_.constants[index]); }

  const Schedule& schedule_;
  BodyFrame& frame_;
  std::vector<TensorValue> inputs_;
  std::vector<Tensor> values_;
  std::vector<Tensor> guards_;  // second references to values that have several readers
  std::vector<Tensor> parameter_guards_;
};

// Gives kernels a cancellation manager of their own. The error of a function that a kernel calls
// cancels the kernel's manager, and all other functions that were called with that manager.
class OwnCancellation {
 public:
  explicit OwnCancellation(OpKernelContext::Params* params) {
    if (params->cancellation_manager == nullptr) return;
    manager_.emplace(params->cancellation_manager);
    params->cancellation_manager = &*manager_;
  }

 private:
  std::optional<tensorflow::CancellationManager> manager_;
};

// Runs kernels and programs on the values of iterations. Several threads may.
class StepRunner {
 public:
  StepRunner(const Schedule& schedule, const LocalExecutorParams& local, const LoopDevices& devices,
             const Executor::Args& args)
      : schedule_(schedule),
        devices_(devices),
        runner_(args.runner),
        packed_products_(schedule.num_packed_products) {
    params_.step_id = args.step_id;
    params_.device = devices.all;
    params_.rendezvous = args.rendezvous;
    params_.collective_executor = args.collective_executor;
    params_.session_state = args.session_state;
    params_.session_handle = args.session_handle;
    params_.session_metadata = local.session_metadata;
    params_.session_config = args.session_config;
    params_.tensor_store = args.tensor_store;
    params_.cancellation_manager = args.cancellation_manager;
    params_.coordination_service_agent = args.coordination_service_agent;
    params_.function_library = local.function_library;
    params_.resource_manager = local.device->resource_manager();
    params_.step_container = args.step_container;
    params_.stats_collector = args.stats_collector;
    params_.runner = &runner_;
    params_.run_all_kernels_inline = args.run_all_kernels_inline;
    params_.frame_iter = tensorflow::FrameAndIter(0, 0);
  }

  const Schedule& schedule() const { return schedule_; }
  // What kernels are given beside their inputs. Each thread has its own.
  const OpKernelContext::Params& params() const { return params_; }

  // The kernel wakes no other thread if `is_inline`.
  absl::Status RunStep(const Step& step, bool is_inline, OpKernelContext::Params* params,
                       Values* values) {
    params->inputs = values->InputsOf(step);
    params->op_kernel = KernelOf(step, params->inputs);
    params->input_alloc_attrs =
        absl::MakeConstSpan(schedule_.input_attributes).subspan(step.first_input, step.num_inputs);
    params->output_attr_array = step.output_attributes.data();
    params->outputs_required_array = step.required.get();
    params->device = IsSmall(step, params->inputs) ? devices_.one
                     : is_inline                   ? devices_.inlined
                                                   : devices_.all;
    OpKernelContext ctx(params, step.num_outputs);
    Compute(step, params->op_kernel, values->frame(), &ctx);
    if (TF_PREDICT_FALSE(!ctx.status().ok())) {
      absl::Status status = ctx.status();
      tensorflow::errors::AppendToMessage(&status, "\n\t [[at ", step.kernel->name(), "]]");
      return status;
    }
    for (int i = 0; i < step.num_outputs; ++i) {
      const std::unique_ptr<Tensor> output(ctx.release_output(i).tensor);
      if (output == nullptr) continue;
      values->Set(step.first_value + i, std::move(*output));
    }
    return absl::OkStatus();
  }

  // Runs a region's program, or kernels where the values that it makes are not right: they tell
  // why.
  absl::Status RunRegion(const Region& region, bool is_inline, OpKernelContext::Params* params,
                         RegionRun* region_run, Values* values) {
    bool is_right = true;
    TF_RETURN_IF_ERROR(RunProgram(region, is_inline, region_run, values, &is_right));
    return is_right ? absl::OkStatus() : RunKernelsOf(region, is_inline, params, values);
  }

  absl::Status RunKernelsOf(const Region& region, bool is_inline, OpKernelContext::Params* params,
                            Values* values) {
    for (const int s : region.steps) {
      TF_RETURN_IF_ERROR(RunStep(schedule_.steps[s], is_inline, params, values));
    }
    values->ReleaseInside(region);
    return absl::OkStatus();
  }

 private:
  absl::Status RunProgram(const Region& region, bool is_inline, RegionRun* region_run,
                          Values* values, bool* is_right) {
    RegionRun& run = *region_run;
    const TraceMe trace([&] { return region.name; }, tsl::profiler::kInfo);
    for (size_t i = 0; i < region.inputs.size(); ++i) {
      run->SetInput(static_cast<int>(i), values->TensorOf(region.inputs[i].source).data());
    }
    for (size_t i = 0; i < region.outputs.size(); ++i) {
      const Region::Array& output = region.outputs[i];
      Tensor tensor(GetCachingAllocator(), output.dtype, output.shape);
      if (!tensor.IsInitialized() && output.shape.num_elements() > 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for a value of shape ", output.shape.DebugString()));
      }
      run->SetOutput(static_cast<int>(i), tensor.data());
      values->Set(output.source.index, std::move(tensor));
    }
    bool fails = false;
    if (region.may_fail) run->SetOutput(static_cast<int>(region.outputs.size()), &fails);
    run.RunPrologueOnce();
    PoolThreads threads = ThreadsOf(is_inline ? *devices_.inlined : *devices_.all);
    run->Run(&threads);
    *is_right = !fails;
    return absl::OkStatus();
  }

  // oneDNN's kernels take tens of microseconds before and after they compute.
  static OpKernel* KernelOf(const Step& step, absl::Span<const TensorValue> inputs) {
    constexpr int64_t kLarge = 1 << 15;  // elements
    if (step.kernel_of_empty == nullptr) return step.kernel;
    bool has_large = false;
    for (const TensorValue& input : inputs) {
      if (input.tensor->NumElements() == 0) return step.kernel_of_empty;
      has_large |= input.tensor->NumElements() >= kLarge;
    }
    return has_large && step.kernel_of_large != nullptr ? step.kernel_of_large : step.kernel;
  }

  // Returns true if one thread multiplies these matrices in less time than others need to join in:
  // in some tens of microseconds, or within its own cache. Other kernels judge that well
  // themselves.
  static bool IsSmall(const Step& step, absl::Span<const TensorValue> inputs) {
    constexpr double kMostProducts = 1 << 21;
    constexpr size_t kMostBytes = 1 << 20;
    if (step.summed_dimension < 0 || step.num_inputs < 2) return false;
    const Tensor& left = *inputs[0].tensor;
    const Tensor& right = *inputs[1].tensor;
    if (left.dims() != 2 || left.NumElements() == 0) return false;
    const double products = static_cast<double>(left.NumElements()) * right.NumElements() /
                            left.dim_size(step.summed_dimension);
    return products <= kMostProducts && left.TotalBytes() + right.TotalBytes() <= kMostBytes;
  }

  // Multiplies by an invariant, which is packed the first time. Returns false if there is none, or
  // if the kernel does it better.
  bool ComputePacked(const Step& step, const BodyFrame& frame, OpKernelContext* ctx) {
    if (step.packed_product < 0) return false;
    const Source& right = schedule_.inputs[step.first_input + 1];
    if (right.kind == Source::kParameter && !frame.invariant[right.index]) return false;
    Spares<PackedProduct>& products = packed_products_[step.packed_product];
    std::unique_ptr<PackedProduct> product = products.Take([&] {
      return std::make_unique<PackedProduct>(step.summed_dimension == 0, step.transpose_right);
    });
    const bool is_done = product->Compute(ctx);
    products.GiveBack(std::move(product));
    return is_done;
  }

  // Computes, and shows the kernel in a profile as TensorFlow's executors do.
  void Compute(const Step& step, OpKernel* kernel, const BodyFrame& frame, OpKernelContext* ctx) {
    const TraceMe trace(
        [&] { return kernel->TraceString(*ctx, tsl::profiler::TfOpDetailsEnabled()); },
        step.trace_level);
    if (!ComputePacked(step, frame, ctx)) kernel->Compute(ctx);
  }

  const Schedule& schedule_;
  const LoopDevices devices_;
  Executor::Args::Runner runner_;
  OpKernelContext::Params params_;
  std::vector<Spares<PackedProduct>> packed_products_;
};

// Calls read(source) for each source that a unit reads.
template <typename Read>
void EachRead(const Schedule& schedule, const CompiledBody& body, const CompiledBody::Unit& unit,
              const Read& read) {
  const auto of_step = [&](int s) {
    for (const Source& source : schedule.InputsOf(schedule.steps[s])) read(source);
  };
  // Its shapes are looked at before the unit runs.
  for (const Region::Array& array : body.DecidedBy(unit)) read(array.source);
  if (unit.region < 0) return of_step(unit.step);
  for (const int s : body.regions[unit.region].steps) of_step(s);
}

BodyUnits UnitsOf(const Schedule& schedule, const CompiledBody& body) {
  BodyUnits units;
  std::vector<int> unit_of(schedule.steps.size());
  std::vector<int> step_of(schedule.values.size());
  for (size_t s = 0; s < schedule.steps.size(); ++s) {
    const Step& step = schedule.steps[s];
    for (int i = 0; i < step.num_outputs; ++i) step_of[step.first_value + i] = static_cast<int>(s);
  }
  const auto each_step = [&](const CompiledBody::Unit& unit, const auto& use) {
    if (unit.region < 0) return use(unit.step);
    for (const int s : body.regions[unit.region].steps) use(s);
  };
  for (size_t u = 0; u < body.units.size(); ++u) {
    const CompiledBody::Unit& unit = body.units[u];
    units.have_programs |= unit.region >= 0 || !unit.inputs.empty();
    each_step(unit, [&](int s) { unit_of[s] = static_cast<int>(u); });
    std::vector<char> is_after(u + 1, false), is_read(schedule.parameters.size(), false);
    each_step(unit, [&](int s) {
      for (const int before : schedule.steps[s].after) is_after[unit_of[before]] = true;
    });
    EachRead(schedule, body, unit, [&](const Source& source) {
      if (source.kind == Source::kParameter) is_read[source.index] = true;
      if (source.kind == Source::kValue) is_after[unit_of[step_of[source.index]]] = true;
    });
    BodyUnits::Unit& made = units.units.emplace_back();
    made.time = body.times->Of(u);
    for (size_t before = 0; before < u; ++before) {
      if (is_after[before]) made.after.push_back(static_cast<int>(before));
    }
    for (size_t p = 0; p < is_read.size(); ++p) {
      if (is_read[p]) made.parameters.push_back(static_cast<int>(p));
    }
  }
  for (size_t s = 0; s < schedule.steps.size(); ++s) {
    const Step& step = schedule.steps[s];
    for (int v = step.first_value; v < step.first_value + step.num_outputs; ++v) {
      for (const size_t result : schedule.values[v].results) {
        units.makers.resize(std::max(units.makers.size(), result + 1), -1);
        units.makers[result] = unit_of[s];
      }
    }
  }
  for (size_t p = 0; p < schedule.parameters.size(); ++p) {
    for (const size_t result : schedule.parameters[p].results) {
      units.passed_on.resize(std::max(units.passed_on.size(), result + 1), -1);
      units.passed_on[result] = static_cast<int>(p);
    }
  }
  return units;
}

class ScheduleLanes : public BodyLanes {
 public:
  ScheduleLanes(std::shared_ptr<StepRunner> steps, std::shared_ptr<const CompiledBody> body,
                const BodyFrame& frame, int count)
      : steps_(std::move(steps)), body_(std::move(body)), spares_(body_->regions.size()) {
    const Schedule& schedule = steps_->schedule();
    for (const CompiledBody::Unit& unit : body_->units) {
      Reads& reads = reads_.emplace_back();
      has_programs_ |= unit.region >= 0 || !unit.inputs.empty();
      EachRead(schedule, *body_, unit, [&](const Source& source) {
        if (source.kind == Source::kValue) ++reads.values[source.index];
        if (source.kind == Source::kParameter) ++reads.parameters[source.index];
      });
    }
    all_of_values_.resize(schedule.values.size());
    all_of_parameters_.resize(schedule.parameters.size());
    for (const Reads& reads : reads_) {
      for (const auto [v, count] : reads.values) all_of_values_[v] += count;
      for (const auto [p, count] : reads.parameters) all_of_parameters_[p] += count;
    }
    for (int i = 0; i < count; ++i) {
      lanes_.push_back(std::make_unique<Lane>(steps_->schedule(), frame));
    }
  }

  BodyFrame& frame(int lane) override { return lanes_[lane]->frame; }

  void Start(int number) override {
    Lane& lane = *lanes_[number];
    lane.values.SetConstants();
    lane.of_values = all_of_values_;
    lane.of_parameters = all_of_parameters_;
    for (size_t p = 0; p < all_of_parameters_.size(); ++p) {
      if (lane.frame.invariant[p]) lane.values.SetParameter(static_cast<int>(p));
    }
  }

  bool Set(int parameter, int number) override {
    Lane& lane = *lanes_[number];
    if (parameter < static_cast<int>(steps_->schedule().parameters.size())) {
      lane.values.SetParameter(parameter);
    }
    return !has_programs_ ||
           body_->parameters[parameter].IsSameSize(lane.frame.parameters[parameter].shape());
  }

  absl::Status Run(int u, int number, bool has_all_threads, bool* fits) override {
    return CatchOutOfMemory(kBody, [&] {
      const int64_t start = Now();
      TF_RETURN_IF_ERROR(RunUnit(u, lanes_[number].get(), !has_all_threads, fits));
      if (*fits) body_->times->Keep(u, Now() - start);
      return absl::OkStatus();
    });
  }

 private:
  struct Reads {
    std::map<int, int> values;  // how often each is read
    std::map<int, int> parameters;
  };
  struct Lane {
    Lane(const Schedule& schedule, const BodyFrame& given)
        : frame(WithInvariantsOf(given)),
          values(schedule, &frame),
          of_values(schedule.values.size()),
          of_parameters(schedule.parameters.size()) {}

    BodyFrame frame;
    Values values;
    std::mutex mutex;  // guards the reads that are left
    std::vector<int> of_values;
    std::vector<int> of_parameters;
  };

  static BodyFrame WithInvariantsOf(const BodyFrame& given) {
    BodyFrame frame;
    frame.parameters.resize(given.parameters.size());
    for (size_t p = 0; p < frame.parameters.size(); ++p) {
      if (given.invariant[p]) frame.parameters[p] = given.parameters[p];
    }
    frame.consumable.assign(given.parameters.size(), false);
    frame.invariant = given.invariant;
    frame.results.resize(given.results.size());
    return frame;
  }

  absl::Status RunUnit(int u, Lane* lane, bool is_inline, bool* fits) {
    const CompiledBody::Unit& unit = body_->units[u];
    *fits = lane->values.Fits(body_->DecidedBy(unit));
    if (!*fits) return absl::OkStatus();
    OpKernelContext::Params params = steps_->params();
    if (unit.region < 0) {
      Unguard(reads_[u], lane);
      const OwnCancellation own(&params);
      TF_RETURN_IF_ERROR(
          steps_->RunStep(steps_->schedule().steps[unit.step], is_inline, &params, &lane->values));
    } else {
      const Region& region = body_->regions[unit.region];
      Spares<RegionRun>& runs = spares_[unit.region];
      std::unique_ptr<RegionRun> run =
          runs.Take([&] { return std::make_unique<RegionRun>(region); });
      TF_RETURN_IF_ERROR(steps_->RunRegion(region, is_inline, &params, run.get(), &lane->values));
      runs.GiveBack(std::move(run));
    }
    Release(reads_[u], lane);
    return absl::OkStatus();
  }

  // A kernel may take the memory of a value that it reads once, as its last reader.
  static void Unguard(const Reads& reads, Lane* lane) {
    Releases releases;
    const auto find = [](const std::map<int, int>& reads, const std::vector<int>& left,
                         std::vector<int>* found) {
      for (const auto [index, count] : reads) {
        if (count == 1 && left[index] == 1) found->push_back(index);
      }
    };
    const std::lock_guard<std::mutex> lock(lane->mutex);
    find(reads.values, lane->of_values, &releases.unguard_values);
    find(reads.parameters, lane->of_parameters, &releases.unguard_parameters);
    lane->values.Unguard(releases);
  }

  static void Release(const Reads& reads, Lane* lane) {
    Releases releases;
    const auto find = [](const std::map<int, int>& reads, std::vector<int>* left,
                         std::vector<int>* found) {
      for (const auto [index, count] : reads) {
        if (((*left)[index] -= count) == 0) found->push_back(index);
      }
    };
    const std::lock_guard<std::mutex> lock(lane->mutex);
    find(reads.values, &lane->of_values, &releases.release_values);
    find(reads.parameters, &lane->of_parameters, &releases.release_parameters);
    lane->values.Release(releases);
  }

  const std::shared_ptr<StepRunner> steps_;
  const std::shared_ptr<const CompiledBody> body_;
  std::vector<Reads> reads_;        // of the units
  std::vector<int> all_of_values_;  // the number of reads of each, in an iteration
  std::vector<int> all_of_parameters_;
  bool has_programs_ = false;
  std::vector<Spares<RegionRun>> spares_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

// Runs the schedule of a body, for one run of a loop.
class ScheduleRunner : public BodyRunner, private FirstIteration {
 public:
  ScheduleRunner(Schedules* schedules, const LocalExecutorParams& local, const LoopDevices& devices,
                 const Executor::Args& args, bool may_compile, BodyFrame* frame)
      : schedule_(schedules->schedule),
        kernels_(schedules->kernels),
        frame_(frame),
        steps_(std::make_shared<StepRunner>(schedule_, local, devices, args)),
        params_(steps_->params()),
        own_cancellation_(&params_),
        values_(schedule_, frame),
        compiled_bodies_(may_compile ? &schedules->compiled : nullptr) {}

  absl::Status Run() override {
    const absl::Status status = CatchOutOfMemory(kBody, [this] { return RunSteps(); });
    if (!status.ok()) values_.Clear();
    return status;
  }

  std::optional<BodyUnits> FindUnits(const std::vector<tensorflow::TensorShape>& parameters,
                                     bool* are_light) override {
    if (compiled_bodies_ == nullptr) {
      found_ = kernels_;
    } else {
      const auto fits = [&](const CompiledBody& body) {
        for (size_t p = 0; p < body.parameters.size(); ++p) {
          const bool is_same =
              p >= parameters.size() || body.parameters[p].IsSameSize(parameters[p]);
          if (!is_same || body.stays[p] != frame_->invariant[p]) return false;
        }
        return true;
      };
      // Values that kernels make may have other shapes in a body that was compiled later.
      found_ = Find([&](const CompiledBody& body) { return body.times->AreKnown() && fits(body); });
      if (found_ == nullptr) found_ = Find(fits);
    }
    if (found_ == nullptr) return std::nullopt;
    *are_light = found_->times->AreLight();
    if (*are_light || !found_->times->AreKnown()) return std::nullopt;
    return UnitsOf(schedule_, *found_);
  }

  void SetLight() override { found_->times->SetLight(); }

  std::unique_ptr<BodyLanes> MakeLanes(int count) override {
    return std::make_unique<ScheduleLanes>(steps_, found_, *frame_, count);
  }

  void KeepUnits() override { Adopt(found_); }

 private:
  absl::Status RunSteps() {
    for (size_t p = 0; p < schedule_.parameters.size(); ++p) {
      values_.SetParameter(static_cast<int>(p));
    }
    values_.SetConstants();
    return compiled_bodies_ == nullptr ? RunKernels() : RunCompiled();
  }

  absl::Status RunKernels() {
    if (compiled_bodies_ == nullptr && frame_->is_timed) return RunTimed(*kernels_);
    for (const Step& step : schedule_.steps) {
      TF_RETURN_IF_ERROR(RunStep(step, step.releases));
    }
    return absl::OkStatus();
  }

  // Runs all units, and keeps how long each of them takes.
  absl::Status RunTimed(const CompiledBody& body) {
    for (size_t u = 0; u < body.units.size(); ++u) {
      const int64_t start = Now();
      TF_RETURN_IF_ERROR(RunUnit(body, body.units[u]));
      body.times->Keep(u, Now() - start);
    }
    return absl::OkStatus();
  }

  absl::Status RunCompiled() {
    const auto fits = [this](const CompiledBody& body) {
      return body.Fits([this](size_t p) -> const auto& { return frame_->parameters[p].shape(); },
                       frame_->invariant);
    };
    if (body_ == nullptr || !fits(*body_)) UseBody(Find(fits));
    if (body_ != nullptr) return RunUnits();
    return MayAdopt() ? CompileRest(WithoutUnits()) : RunKernels();
  }

  // Finds a body that was compiled.
  template <typename Fits>
  std::shared_ptr<const CompiledBody> Find(const Fits& fits) {
    for (const auto& body : adopted_) {
      if (fits(*body)) return body;
    }
    return MayAdopt() ? compiled_bodies_->Find(fits) : nullptr;
  }

  // Shapes that change all the time are not compiled again and again. A body counts if this run has
  // used it, even if another run compiled it: the bits of results do not depend on earlier runs.
  bool MayAdopt() const { return adopted_.size() < kMostAdopted; }
  void Adopt(const std::shared_ptr<const CompiledBody>& body) {
    const auto found = std::find(adopted_.begin(), adopted_.end(), body);
    if (found == adopted_.end()) adopted_.push_back(body);
  }

  CompiledBody WithoutUnits() const {
    CompiledBody body;
    for (const Tensor& parameter : frame_->parameters) body.parameters.push_back(parameter.shape());
    body.stays = frame_->invariant;
    return body;
  }

  // Compiles the units that a body lacks while they run.
  absl::Status CompileRest(CompiledBody body) {
    TF_RETURN_IF_ERROR(CompileBody(schedule_, this, &body));
    body_ = compiled_bodies_->Add(std::move(body));
    Adopt(body_);
    return absl::OkStatus();
  }

  absl::Status RunLast(const CompiledBody& body) override {
    const CompiledBody::Unit& unit = body.units.back();
    if (unit.region >= 0) runs_.emplace_back(body.regions[unit.region]);
    return RunUnit(body, unit);
  }

  void UseBody(std::shared_ptr<const CompiledBody> body) {
    runs_.clear();
    body_ = std::move(body);
    if (body_ == nullptr) return;
    for (const Region& region : body_->regions) runs_.emplace_back(region);
  }

  absl::Status RunUnits() {
    for (size_t u = 0; u < body_->units.size(); ++u) {
      const CompiledBody::Unit* unit = &body_->units[u];
      if (!values_.Fits(body_->DecidedBy(*unit))) {
        if (!UseOther(u)) return RunRest(u);
        unit = &body_->units[u];
      }
      const int64_t start = frame_->is_timed ? Now() : 0;
      TF_RETURN_IF_ERROR(RunUnit(*body_, *unit));
      if (frame_->is_timed) body_->times->Keep(u, Now() - start);
    }
    Adopt(body_);
    return absl::OkStatus();
  }

  // Finds a body for the rest of an iteration where a kernel has made an array of another shape
  // than unit `u` was made for.
  bool UseOther(size_t u) {
    const auto shape_of = [this](size_t p) -> const auto& { return body_->parameters[p]; };
    auto found = Find([&](const CompiledBody& body) {
      return body.Fits(shape_of, body_->stays) && AreAlikeUpTo(u, *body_, body) &&
             values_.Fits(body.DecidedBy(body.units[u]));
    });
    if (found == nullptr) return false;
    UseBody(std::move(found));
    return true;
  }

  absl::Status RunRest(size_t u) {
    if (MayAdopt()) {
      CompiledBody rest = CutBefore(u, *body_);
      runs_.clear();
      for (const Region& region : rest.regions) runs_.emplace_back(region);
      return CompileRest(std::move(rest));
    }
    for (; u < body_->units.size(); ++u) {
      const CompiledBody::Unit& unit = body_->units[u];
      if (unit.region < 0) {
        TF_RETURN_IF_ERROR(RunStep(schedule_.steps[unit.step], unit.releases));
      } else {
        TF_RETURN_IF_ERROR(
            steps_->RunKernelsOf(body_->regions[unit.region], kIsInline, &params_, &values_));
        values_.Release(unit.releases);
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunUnit(const CompiledBody& body, const CompiledBody::Unit& unit) {
    if (unit.region < 0) return RunStep(schedule_.steps[unit.step], unit.releases);
    TF_RETURN_IF_ERROR(steps_->RunRegion(body.regions[unit.region], kIsInline, &params_,
                                         &runs_[unit.region], &values_));
    values_.Release(unit.releases);
    return absl::OkStatus();
  }

  absl::Status RunStep(const Step& step, const Releases& releases) {
    values_.Unguard(releases);
    TF_RETURN_IF_ERROR(steps_->RunStep(step, kIsInline, &params_, &values_));
    values_.Release(releases);
    return absl::OkStatus();
  }

  const Tensor& TensorOf(const Source& source) const override { return values_.TensorOf(source); }

  static constexpr size_t kMostAdopted = 8;
  static constexpr bool kIsInline = false;

  const Schedule& schedule_;
  const std::shared_ptr<const CompiledBody> kernels_;
  BodyFrame* const frame_;
  const std::shared_ptr<StepRunner> steps_;
  OpKernelContext::Params params_;
  const OwnCancellation own_cancellation_;
  Values values_;
  CompiledBodies* const compiled_bodies_;
  std::shared_ptr<const CompiledBody> body_;
  std::vector<RegionRun> runs_;                               // of its regions
  std::vector<std::shared_ptr<const CompiledBody>> adopted_;  // that this run has used
  std::shared_ptr<const CompiledBody> found_;                 // by FindUnits
};

// False where TF_TI_PROGRAM=0 in the environment has TensorFlow's kernels run all of all bodies.
bool MayCompile() {
  const char* const value = std::getenv("TF_TI_PROGRAM");
  return value == nullptr || std::string_view(value) != "0";
}

}  // namespace

CompiledBodies::CompiledBodies() : are_wanted_(MayCompile()) {}

bool CompiledBodies::FindWhole(const std::vector<char>& stays, WholeBody* whole) {
  const auto shape_of = [&](size_t p) -> const auto& { return whole->parameters[p]; };
  whole->body = Find([&](const CompiledBody& body) { return body.Fits(shape_of, stays); });
  if (whole->body == nullptr || whole->body->whole.empty()) return false;
  whole->run = std::make_unique<RegionRun>(whole->region());
  return true;
}

std::shared_ptr<const CompiledBody> CompiledBodies::Add(CompiledBody body) {
  body.times = std::make_shared<UnitTimes>(body.units.size());
  auto added = std::make_shared<const CompiledBody>(std::move(body));
  const std::lock_guard<std::mutex> lock(mutex_);
  bodies_.push_front(added);
  if (bodies_.size() > kMost) bodies_.pop_back();
  return added;
}

void Schedules::SetKernels() {
  CompiledBody body;
  for (size_t s = 0; s < schedule.steps.size(); ++s) {
    const Releases& releases = schedule.steps[s].releases;
    body.units.push_back({static_cast<int>(s), -1, {}, releases});
  }
  body.times = std::make_shared<UnitTimes>(body.units.size());
  kernels = std::make_shared<const CompiledBody>(std::move(body));
}

std::unique_ptr<BodyRunner> MakeRunner(Schedules* schedules, const LocalExecutorParams& local,
                                       const LoopDevices& devices, const Executor::Args& args,
                                       bool may_compile, BodyFrame* frame) {
  return std::make_unique<ScheduleRunner>(schedules, local, devices, args, may_compile, frame);
}

}  // namespace tf_ti
