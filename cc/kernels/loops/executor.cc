#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice

#include "cc/kernels/loops/executor.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "cc/kernels/loops/caching_allocator.h"
#include "cc/kernels/loops/lowering/compiled_body.h"
#include "cc/kernels/loops/packed_product.h"
#include "cc/kernels/loops/schedule.h"
#include "cc/kernels/threads.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/graph.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::Executor;
using tensorflow::LocalExecutorParams;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;
using tsl::profiler::TraceMe;

const char kLoopExecutor[] = "TF_TI_LOOP_EXECUTOR";

namespace {

// In errors, which the loop tells the iteration and the op's name.
constexpr char kBody[] = "a loop's body";

// A thread pool of one thread: kernels that are given it do their work on their own.
struct OneThread {
  static const OneThread& Get() {
    static const auto& one = *new OneThread;
    return one;
  }

  OneThread()
      : thread_pool(tensorflow::Env::Default(), "tf_ti_one", 1),
        device(thread_pool.AsEigenThreadPool(), 1),
        workers{1, &thread_pool} {}

  tensorflow::thread::ThreadPool thread_pool;
  Eigen::ThreadPoolDevice device;
  tensorflow::DeviceBase::CpuWorkerThreads workers;
};

// The device that runs the loop, with an allocator that suits loops. A serial one tells kernels
// that there is one thread: work of some microseconds takes longer where threads must wake up for
// it.
class LoopDevice : public tensorflow::Device {
 public:
  LoopDevice(tensorflow::Device* device, bool is_serial)
      : Device(tensorflow::Env::Default(), device->attributes()),
        device_(device),
        is_serial_(is_serial) {}

  tensorflow::Allocator* GetAllocator(AllocatorAttributes attributes) override {
    return attributes.value == 0 || attributes.value == HostAttributes().value
               ? GetCachingAllocator()
               : device_->GetAllocator(attributes);
  }
  tensorflow::Allocator* GetScopedAllocator(AllocatorAttributes attributes,
                                            int64_t step_id) override {
    return device_->GetScopedAllocator(attributes, step_id);
  }
  tensorflow::ScopedAllocatorMgr* GetScopedAllocatorMgr() const override {
    return device_->GetScopedAllocatorMgr();
  }
  const tensorflow::DeviceBase* UnderlyingDevice() const override {
    return device_->UnderlyingDevice();
  }
  tensorflow::DeviceBase* UnderlyingDevice() override { return device_->UnderlyingDevice(); }
  const CpuWorkerThreads* tensorflow_cpu_worker_threads() const override {
    return is_serial_ ? &OneThread::Get().workers : device_->tensorflow_cpu_worker_threads();
  }
  const Eigen::ThreadPoolDevice* eigen_cpu_device() override {
    return is_serial_ ? &OneThread::Get().device : device_->eigen_cpu_device();
  }
  bool has_eigen_cpu_device() const override { return device_->has_eigen_cpu_device(); }
  tensorflow::thread::ThreadPool* tensorflow_device_thread_pool() override {
    return is_serial_ ? OneThread::Get().workers.workers : device_->tensorflow_device_thread_pool();
  }
  absl::Status MakeTensorFromProto(const tensorflow::TensorProto& proto,
                                   const AllocatorAttributes attributes, Tensor* tensor) override {
    return device_->MakeTensorFromProto(proto, attributes, tensor);
  }
  absl::Status Sync() override { return device_->Sync(); }
  tensorflow::ResourceMgr* resource_manager() override { return device_->resource_manager(); }

 private:
  static AllocatorAttributes HostAttributes() {
    AllocatorAttributes attributes;
    attributes.set_on_host(true);
    return attributes;
  }

  tensorflow::Device* const device_;
  const bool is_serial_;
};

// False where TF_TI_PROGRAM=0 in the environment has TensorFlow's kernels run all of all bodies.
bool MayCompile() {
  const char* const value = std::getenv("TF_TI_PROGRAM");
  return value == nullptr || std::string_view(value) != "0";
}

// What has been compiled of a body, for the parameters' last few shapes.
class CompiledBodies : public BodyPrograms {
 public:
  bool are_wanted() const { return are_wanted_; }

  // Finds the body that was added last among the bodies that fit.
  template <typename Fits>
  std::shared_ptr<const CompiledBody> Find(const Fits& fits) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found =
        std::find_if(bodies_.begin(), bodies_.end(), [&](const auto& body) { return fits(*body); });
    return found == bodies_.end() ? nullptr : *found;
  }

  bool FindWhole(const std::vector<char>& stays, WholeBody* whole) override {
    const auto shape_of = [&](size_t p) -> const auto& { return whole->parameters[p]; };
    whole->body = Find([&](const CompiledBody& body) { return body.Fits(shape_of, stays); });
    if (whole->body == nullptr || whole->body->whole.empty()) return false;
    whole->run = std::make_unique<RegionRun>(whole->region());
    return true;
  }

  std::shared_ptr<const CompiledBody> Add(CompiledBody body) {
    auto added = std::make_shared<const CompiledBody>(std::move(body));
    const std::lock_guard<std::mutex> lock(mutex_);
    bodies_.push_front(added);
    if (bodies_.size() > kMost) bodies_.pop_back();
    return added;
  }

 private:
  static constexpr size_t kMost = 8;

  const bool are_wanted_ = MayCompile();
  std::mutex mutex_;
  std::deque<std::shared_ptr<const CompiledBody>> bodies_;
};

// Runs the schedule of a body, for one run of a loop.
class ScheduleRunner : public BodyRunner, private FirstIteration {
 public:
  // `compiled` is null where programs are not asked for.
  ScheduleRunner(const Schedule& schedule, const LocalExecutorParams& local, LoopDevice* device,
                 LoopDevice* serial_device, const Executor::Args& args, CompiledBodies* compiled,
                 BodyFrame* frame)
      : schedule_(schedule),
        device_(device),
        serial_device_(serial_device),
        runner_(args.runner),
        frame_(frame),
        compiled_bodies_(compiled) {
    params_.step_id = args.step_id;
    params_.device = device;
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

    values_.resize(schedule.values.size());
    guards_.resize(schedule.values.size());
    parameter_guards_.resize(schedule.parameters.size());
    packed_products_.resize(schedule.num_packed_products);
    for (const Source& source : schedule.inputs) {
      Tensor* tensor = source.kind == Source::kValue       ? &values_[source.index]
                       : source.kind == Source::kParameter ? &frame->parameters[source.index]
                                                           : ConstantAt(source.index);
      inputs_.emplace_back(tensor);
    }
  }

  absl::Status Run() override {
    const absl::Status status = CatchOutOfMemory(kBody, [this] { return RunSteps(); });
    if (!status.ok()) {
      for (Tensor& value : values_) value = Tensor();
      for (Tensor& guard : guards_) guard = Tensor();
      for (Tensor& guard : parameter_guards_) guard = Tensor();
    }
    return status;
  }

 private:
  // Kernels do not write to inputs whose memory others refer to.
  Tensor* ConstantAt(int index) { return const_cast<Tensor*>(&schedule_.constants[index]); }

  absl::Status RunSteps() {
    for (size_t p = 0; p < schedule_.parameters.size(); ++p) {
      const Value& parameter = schedule_.parameters[p];
      for (int result : parameter.results) frame_->results[result] = frame_->parameters[p];
      if (parameter.uses > 1 && frame_->consumable[p]) {
        parameter_guards_[p] = frame_->parameters[p];
      }
    }
    for (const auto& [constant, result] : schedule_.constant_results) {
      frame_->results[result] = schedule_.constants[constant];
    }
    return compiled_bodies_ == nullptr ? RunKernels() : RunCompiled();
  }

  absl::Status RunKernels() {
    for (const Step& step : schedule_.steps) {
      TF_RETURN_IF_ERROR(RunStep(step, step.releases));
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
  void Adopt() {
    const auto found = std::find(adopted_.begin(), adopted_.end(), body_);
    if (found == adopted_.end()) adopted_.push_back(body_);
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
    Adopt();
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
      if (!Fits(body_->DecidedBy(*unit))) {
        if (!UseOther(u)) return RunRest(u);
        unit = &body_->units[u];
      }
      TF_RETURN_IF_ERROR(RunUnit(*body_, *unit));
    }
    Adopt();
    return absl::OkStatus();
  }

  // Finds a body for the rest of an iteration where a kernel has made an array of another shape
  // than unit `u` was made for.
  bool UseOther(size_t u) {
    const auto shape_of = [this](size_t p) -> const auto& { return body_->parameters[p]; };
    auto found = Find([&](const CompiledBody& body) {
      return body.Fits(shape_of, body_->stays) && AreAlikeUpTo(u, *body_, body) &&
             Fits(body.DecidedBy(body.units[u]));
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
        TF_RETURN_IF_ERROR(RunKernelsOf(body_->regions[unit.region]));
        Release(unit.releases);
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunUnit(const CompiledBody& body, const CompiledBody::Unit& unit) {
    if (unit.region < 0) return RunStep(schedule_.steps[unit.step], unit.releases);
    bool is_right = true;
    TF_RETURN_IF_ERROR(RunRegion(body.regions[unit.region], &runs_[unit.region], &is_right));
    if (!is_right) TF_RETURN_IF_ERROR(RunKernelsOf(body.regions[unit.region]));
    Release(unit.releases);
    return absl::OkStatus();
  }

  absl::Status RunKernelsOf(const Region& region) {
    for (const int s : region.steps) {
      TF_RETURN_IF_ERROR(RunStep(schedule_.steps[s], Releases()));
    }
    ReleaseInside(region);
    return absl::OkStatus();
  }

  const Tensor& TensorOf(const Source& source) const override {
    return source.kind == Source::kValue ? values_[source.index] : frame_->parameters[source.index];
  }

  bool Fits(const std::vector<Region::Array>& arrays) const {
    for (const Region::Array& input : arrays) {
      const Tensor& tensor = TensorOf(input.source);
      if (tensor.dtype() != input.dtype || !tensor.shape().IsSameSize(input.shape)) return false;
    }
    return true;
  }

  // `is_right` becomes false where the values that were made are not, and kernels tell why.
  absl::Status RunRegion(const Region& region, RegionRun* region_run, bool* is_right) {
    RegionRun& run = *region_run;
    const TraceMe trace([&] { return region.name; }, tsl::profiler::kInfo);
    for (size_t i = 0; i < region.inputs.size(); ++i) {
      run->SetInput(static_cast<int>(i), TensorOf(region.inputs[i].source).data());
    }
    for (size_t i = 0; i < region.outputs.size(); ++i) {
      const Region::Array& output = region.outputs[i];
      Tensor tensor(GetCachingAllocator(), output.dtype, output.shape);
      if (!tensor.IsInitialized() && output.shape.num_elements() > 0) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for a value of shape ", output.shape.DebugString()));
      }
      run->SetOutput(static_cast<int>(i), tensor.data());
      SetValue(output.source.index, std::move(tensor));
    }
    bool fails = false;
    if (region.may_fail) run->SetOutput(static_cast<int>(region.outputs.size()), &fails);
    run.RunPrologueOnce();
    PoolThreads threads = ThreadsOf(*device_);
    run->Run(&threads);
    *is_right = !fails;
    return absl::OkStatus();
  }

  // Lets go of what kernels made in place of a program.
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

  void SetValue(int v, Tensor tensor) {
    const Value& value = schedule_.values[v];
    for (int result : value.results) frame_->results[result] = tensor;
    if (value.uses > 1) guards_[v] = tensor;
    if (value.uses > 0) values_[v] = std::move(tensor);
  }

  void Release(const Releases& releases) {
    for (int v : releases.release_values) {
      values_[v] = Tensor();
      guards_[v] = Tensor();
    }
    for (int p : releases.release_parameters) {
      if (!frame_->consumable[p]) continue;
      frame_->parameters[p] = Tensor();
      parameter_guards_[p] = Tensor();
    }
  }

  // Returns true if one thread multiplies these matrices in less time than others need to join in:
  // in some tens of microseconds, or within its own cache. Other kernels judge that well
  // themselves.
  bool IsSmall(const Step& step) const {
    constexpr double kMostProducts = 1 << 21;
    constexpr size_t kMostBytes = 1 << 20;
    if (step.summed_dimension < 0 || step.num_inputs < 2) return false;
    const Tensor& left = *inputs_[step.first_input].tensor;
    const Tensor& right = *inputs_[step.first_input + 1].tensor;
    if (left.dims() != 2 || left.NumElements() == 0) return false;
    const double products = static_cast<double>(left.NumElements()) * right.NumElements() /
                            left.dim_size(step.summed_dimension);
    return products <= kMostProducts && left.TotalBytes() + right.TotalBytes() <= kMostBytes;
  }

  // Multiplies by an invariant, which is packed the first time. Returns false if there is none, or
  // if the kernel does it better.
  bool ComputePacked(const Step& step, OpKernelContext* ctx) {
    if (step.packed_product < 0) return false;
    const Source& right = schedule_.inputs[step.first_input + 1];
    if (right.kind == Source::kParameter && !frame_->invariant[right.index]) return false;
    std::unique_ptr<PackedProduct>& product = packed_products_[step.packed_product];
    if (product == nullptr) {
      product = std::make_unique<PackedProduct>(step.summed_dimension == 0, step.transpose_right);
    }
    return product->Compute(ctx);
  }

  // Computes, and shows the kernel in a profile as TensorFlow's executors do.
  void Compute(const Step& step, OpKernelContext* ctx) {
    const TraceMe trace(
        [&] { return step.kernel->TraceString(*ctx, tsl::profiler::TfOpDetailsEnabled()); },
        step.trace_level);
    if (!ComputePacked(step, ctx)) step.kernel->Compute(ctx);
  }

  absl::Status RunStep(const Step& step, const Releases& releases) {
    for (int v : releases.unguard_values) guards_[v] = Tensor();
    for (int p : releases.unguard_parameters) parameter_guards_[p] = Tensor();
    params_.op_kernel = step.kernel;
    params_.inputs = absl::MakeConstSpan(inputs_).subspan(step.first_input, step.num_inputs);
    params_.input_alloc_attrs =
        absl::MakeConstSpan(schedule_.input_attributes).subspan(step.first_input, step.num_inputs);
    params_.output_attr_array = step.output_attributes.data();
    params_.outputs_required_array = step.required.get();
    params_.device = IsSmall(step) ? serial_device_ : device_;
    OpKernelContext ctx(&params_, step.num_outputs);
    Compute(step, &ctx);
    if (TF_PREDICT_FALSE(!ctx.status().ok())) {
      absl::Status status = ctx.status();
      tensorflow::errors::AppendToMessage(&status, "\n\t [[at ", step.kernel->name(), "]]");
      return status;
    }
    for (int i = 0; i < step.num_outputs; ++i) {
      const std::unique_ptr<Tensor> output(ctx.release_output(i).tensor);
      if (output == nullptr) continue;
      SetValue(step.first_value + i, std::move(*output));
    }
    Release(releases);
    return absl::OkStatus();
  }

  static constexpr size_t kMostAdopted = 8;

  const Schedule& schedule_;
  LoopDevice* const device_;
  LoopDevice* const serial_device_;
  Executor::Args::Runner runner_;
  BodyFrame* const frame_;
  OpKernelContext::Params params_;
  std::vector<TensorValue> inputs_;
  std::vector<Tensor> values_;
  std::vector<Tensor> guards_;  // second references to values that have several readers
  std::vector<Tensor> parameter_guards_;
  std::vector<std::unique_ptr<PackedProduct>> packed_products_;
  CompiledBodies* const compiled_bodies_;
  std::shared_ptr<const CompiledBody> body_;
  std::vector<RegionRun> runs_;                               // of its regions
  std::vector<std::shared_ptr<const CompiledBody>> adopted_;  // that this run has used
};

class LoopExecutor : public Executor {
 public:
  explicit LoopExecutor(const LocalExecutorParams& params)
      : params_(params),
        device_(params.device, /*is_serial=*/false),
        serial_device_(params.device, /*is_serial=*/true) {}
  ~LoopExecutor() override {
    for (OpKernel* kernel : kernels_) params_.delete_kernel(kernel);
  }

  absl::Status Init(const tensorflow::Graph& graph) {
    return MakeSchedule(params_, graph, &schedule_, &kernels_);
  }

  absl::Status Run(const Args& args) override {
    return CatchOutOfMemory(kBody, [&] { return StartRun(args); });
  }

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override { done(Run(args)); }

  absl::Status StartRun(const Args& args) {
    auto* frame = static_cast<BodyFrame*>(args.call_frame);
    if (frame->parameters.size() < schedule_.parameters.size()) {
      return InvalidArgument("expected ", schedule_.parameters.size(), " arguments, got ",
                             frame->parameters.size());
    }
    CompiledBodies* const programs =
        compiled_bodies_.are_wanted() && frame->fuse ? &compiled_bodies_ : nullptr;
    frame->programs = programs;
    frame->runner = std::make_unique<ScheduleRunner>(schedule_, params_, &device_, &serial_device_,
                                                     args, programs, frame);
    return frame->runner->Run();
  }

  const LocalExecutorParams params_;
  LoopDevice device_;
  LoopDevice serial_device_;
  Schedule schedule_;
  std::vector<OpKernel*> kernels_;
  CompiledBodies compiled_bodies_;
};

class LoopExecutorFactory : public tensorflow::ExecutorFactory {
 public:
  absl::Status NewExecutor(const LocalExecutorParams& params, const tensorflow::Graph& graph,
                           std::unique_ptr<Executor>* executor) override {
    return CatchOutOfMemory(kBody, [&] {
      auto made = std::make_unique<LoopExecutor>(params);
      TF_RETURN_IF_ERROR(made->Init(graph));
      *executor = std::move(made);
      return absl::OkStatus();
    });
  }
};

[[maybe_unused]] const bool registered = [] {
  tensorflow::ExecutorFactory::Register(kLoopExecutor, new LoopExecutorFactory);
  return true;
}();

}  // namespace
}  // namespace tf_ti
