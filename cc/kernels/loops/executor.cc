#define EIGEN_USE_THREADS  // for Eigen::ThreadPoolDevice

#include "cc/kernels/loops/executor.h"

#include <string>
#include <unordered_map>
#include <utility>

#include "cc/kernels/loops/caching_allocator.h"
#include "cc/kernels/loops/packed_product.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/executor.h"
#include "tensorflow/core/common_runtime/executor_factory.h"
#include "tensorflow/core/common_runtime/local_executor_params.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/graph/algorithm.h"
#include "tensorflow/core/graph/graph.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_ti {

using tensorflow::AllocatorAttributes;
using tensorflow::Executor;
using tensorflow::LocalExecutorParams;
using tensorflow::Node;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;
using tsl::profiler::TraceMe;

const char kLoopExecutor[] = "TF_TI_LOOP_EXECUTOR";

namespace {

// The source of a kernel's input: a parameter, a constant, or another kernel's output.
struct Source {
  enum Kind { kParameter, kConstant, kValue } kind;
  int index;
};

// A value while the body runs.
struct Value {
  std::vector<int> results;  // the results of the body that it is
  int uses = 0;              // kernel inputs that read it
};

struct Step {
  OpKernel* kernel;
  int trace_level;
  // The dimension of the first factor that a product of matrices adds up over; -1 for other
  // kernels.
  int summed_dimension = -1;
  // The number among the schedule's packed products, or -1: the second factor may be an invariant.
  int packed_product = -1;
  bool transpose_right = false;
  int num_inputs;
  int num_outputs;
  int first_input;  // in Schedule::inputs
  int first_value;  // its outputs, in Schedule::values
  std::vector<AllocatorAttributes> output_attributes;
  std::unique_ptr<bool[]> required;  // null if all outputs are
  // Values and parameters to let go of before the kernel runs, so that it may reuse the memory of
  // its last reader, and after it.
  std::vector<int> unguard_values;
  std::vector<int> unguard_parameters;
  std::vector<int> release_values;
  std::vector<int> release_parameters;
};

// A body's kernels in the order in which they run; immutable once built.
struct Schedule {
  std::vector<Step> steps;
  std::vector<Source> inputs;
  std::vector<AllocatorAttributes> input_attributes;
  std::vector<Value> values;
  std::vector<Value> parameters;
  std::vector<Tensor> constants;
  std::vector<std::pair<int, int>> constant_results;  // (constant, result)
  int num_packed_products = 0;
};

bool IsIdentity(const Node& node) {
  return node.IsIdentity() || node.type_string() == "StopGradient" ||
         node.type_string() == "PreventGradient" || node.type_string() == "Snapshot";
}

class ScheduleBuilder {
 public:
  ScheduleBuilder(const LocalExecutorParams& params, Schedule* schedule)
      : params_(params), schedule_(schedule) {}

  absl::Status Build(const tensorflow::Graph& graph, std::vector<OpKernel*>* kernels) {
    std::vector<Node*> order;
    tensorflow::GetReversePostOrder(graph, &order, tensorflow::NodeComparatorName());
    std::vector<const Node*> results;
    for (const Node* node : order) {
      if (!node->IsOp() || node->type_string() == "NoOp") continue;
      if (node->IsArg()) {
        TF_RETURN_IF_ERROR(AddParameter(*node));
      } else if (node->IsRetval()) {
        results.push_back(node);
      } else if (IsIdentity(*node)) {
        const tensorflow::Edge* edge;
        TF_RETURN_IF_ERROR(node->input_edge(0, &edge));
        sources_[node->id()] = {SourceOf(*edge)};
      } else {
        TF_RETURN_IF_ERROR(AddKernel(*node, kernels));
      }
    }
    for (const Node* node : results) {
      const tensorflow::Edge* edge;
      TF_RETURN_IF_ERROR(node->input_edge(0, &edge));
      int index;
      TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node->attrs(), "index", &index));
      const Source source = SourceOf(*edge);
      switch (source.kind) {
        case Source::kParameter:
          schedule_->parameters[source.index].results.push_back(index);
          break;
        case Source::kConstant:
          schedule_->constant_results.push_back({source.index, index});
          break;
        case Source::kValue:
          schedule_->values[source.index].results.push_back(index);
      }
    }
    FindLastReaders();
    return absl::OkStatus();
  }

 private:
  Source SourceOf(const tensorflow::Edge& edge) {
    return sources_.at(edge.src()->id())[edge.src_output()];
  }

  absl::Status AddParameter(const Node& node) {
    int index;
    TF_RETURN_IF_ERROR(tensorflow::GetNodeAttr(node.attrs(), "index", &index));
    if (index < 0) return InvalidArgument("argument index ", index, " in node ", node.name());
    if (index >= static_cast<int>(schedule_->parameters.size())) {
      schedule_->parameters.resize(index + 1);
    }
    sources_[node.id()] = {{Source::kParameter, index}};
    return absl::OkStatus();
  }

  absl::Status AddKernel(const Node& node, std::vector<OpKernel*>* kernels) {
    OpKernel* kernel;
    TF_RETURN_IF_ERROR(params_.create_kernel(node.properties(), &kernel));
    kernels->push_back(kernel);
    if (node.num_outputs() == 1 && kernel->const_tensor() != nullptr) {
      sources_[node.id()] = {{Source::kConstant, static_cast<int>(schedule_->constants.size())}};
      // A second reference, so that no kernel takes a constant's memory for its own.
      schedule_->constants.push_back(*kernel->const_tensor());
      return absl::OkStatus();
    }
    Step step;
    step.kernel = kernel;
    step.trace_level = tsl::profiler::GetTFTraceMeLevel(
        /*is_expensive=*/kernel->AsAsync() == nullptr && kernel->IsExpensive());
    bool transposed;
    if (tensorflow::TryGetNodeAttr(node.attrs(), "transpose_a", &transposed)) {
      step.summed_dimension = transposed ? 0 : 1;
    }
    step.num_inputs = node.num_inputs();
    step.num_outputs = node.num_outputs();
    step.first_input = schedule_->inputs.size();
    step.first_value = schedule_->values.size();
    std::vector<const tensorflow::Edge*> edges;
    TF_RETURN_IF_ERROR(node.input_edges(&edges));
    for (int i = 0; i < step.num_inputs; ++i) {
      schedule_->inputs.push_back(SourceOf(*edges[i]));
      AllocatorAttributes attributes;
      attributes.set_on_host(kernel->input_memory_types()[i] == tensorflow::HOST_MEMORY);
      schedule_->input_attributes.push_back(attributes);
    }
    if (node.type_string() == "MatMul" && PackedProduct::Takes(node.output_type(0)) &&
        schedule_->inputs[step.first_input + 1].kind != Source::kValue) {
      TF_RETURN_IF_ERROR(
          tensorflow::GetNodeAttr(node.attrs(), "transpose_b", &step.transpose_right));
      step.packed_product = schedule_->num_packed_products++;
    }
    std::vector<char> consumed(step.num_outputs, false);
    for (const tensorflow::Edge* edge : node.out_edges()) {
      if (!edge->IsControlEdge()) consumed[edge->src_output()] = true;
    }
    std::vector<Source>& outputs = sources_[node.id()];
    for (int i = 0; i < step.num_outputs; ++i) {
      AllocatorAttributes attributes;
      attributes.set_on_host(kernel->output_memory_types()[i] == tensorflow::HOST_MEMORY);
      step.output_attributes.push_back(attributes);
      outputs.push_back({Source::kValue, static_cast<int>(schedule_->values.size())});
      schedule_->values.emplace_back();
      if (!consumed[i]) {
        if (step.required == nullptr) {
          step.required.reset(new bool[step.num_outputs]);
          for (int j = 0; j < step.num_outputs; ++j) step.required[j] = consumed[j];
        }
      }
    }
    schedule_->steps.push_back(std::move(step));
    return absl::OkStatus();
  }

  void FindLastReaders() {
    std::vector<int> last_of_value(schedule_->values.size(), -1);
    std::vector<int> last_of_parameter(schedule_->parameters.size(), -1);
    const int num_steps = schedule_->steps.size();
    for (int s = 0; s < num_steps; ++s) {
      const Step& step = schedule_->steps[s];
      for (int i = 0; i < step.num_inputs; ++i) {
        const Source& source = schedule_->inputs[step.first_input + i];
        if (source.kind == Source::kValue) {
          ++schedule_->values[source.index].uses;
          last_of_value[source.index] = s;
        } else if (source.kind == Source::kParameter) {
          ++schedule_->parameters[source.index].uses;
          last_of_parameter[source.index] = s;
        }
      }
    }
    // One kernel that reads a value twice must not reuse its memory either.
    const auto unguards = [&](const Step& step, Source::Kind kind, int index) {
      int reads = 0;
      for (int i = 0; i < step.num_inputs; ++i) {
        const Source& source = schedule_->inputs[step.first_input + i];
        reads += source.kind == kind && source.index == index;
      }
      return reads == 1;
    };
    for (size_t v = 0; v < last_of_value.size(); ++v) {
      if (last_of_value[v] < 0) continue;
      Step& step = schedule_->steps[last_of_value[v]];
      step.release_values.push_back(v);
      if (schedule_->values[v].uses > 1 && unguards(step, Source::kValue, v)) {
        step.unguard_values.push_back(v);
      }
    }
    for (size_t p = 0; p < last_of_parameter.size(); ++p) {
      if (last_of_parameter[p] < 0) continue;
      Step& step = schedule_->steps[last_of_parameter[p]];
      step.release_parameters.push_back(p);
      if (schedule_->parameters[p].uses > 1 && unguards(step, Source::kParameter, p)) {
        step.unguard_parameters.push_back(p);
      }
    }
  }

  const LocalExecutorParams& params_;
  Schedule* const schedule_;
  std::unordered_map<int, std::vector<Source>> sources_;  // of a node's outputs, by node id
};

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

// Runs the schedule of a body, for one run of a loop.
class ScheduleRunner : public BodyRunner {
 public:
  ScheduleRunner(const Schedule& schedule, const LocalExecutorParams& local, LoopDevice* device,
                 LoopDevice* serial_device, const Executor::Args& args, BodyFrame* frame)
      : schedule_(schedule),
        device_(device),
        serial_device_(serial_device),
        runner_(args.runner),
        frame_(frame) {
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
    const absl::Status status = RunSteps();
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
    for (const Step& step : schedule_.steps) TF_RETURN_IF_ERROR(RunStep(step));
    return absl::OkStatus();
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

  absl::Status RunStep(const Step& step) {
    for (int v : step.unguard_values) guards_[v] = Tensor();
    for (int p : step.unguard_parameters) parameter_guards_[p] = Tensor();
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
      const TensorValue output = ctx.release_output(i);
      if (output.tensor == nullptr) continue;
      const Value& value = schedule_.values[step.first_value + i];
      for (int result : value.results) frame_->results[result] = *output.tensor;
      if (value.uses > 0) {
        if (value.uses > 1) guards_[step.first_value + i] = *output.tensor;
        values_[step.first_value + i] = std::move(*output.tensor);
      }
      delete output.tensor;
    }
    for (int v : step.release_values) {
      values_[v] = Tensor();
      guards_[v] = Tensor();
    }
    for (int p : step.release_parameters) {
      if (!frame_->consumable[p]) continue;
      frame_->parameters[p] = Tensor();
      parameter_guards_[p] = Tensor();
    }
    return absl::OkStatus();
  }

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
    return ScheduleBuilder(params_, &schedule_).Build(graph, &kernels_);
  }

  absl::Status Run(const Args& args) override {
    auto* frame = static_cast<BodyFrame*>(args.call_frame);
    if (frame->parameters.size() < schedule_.parameters.size()) {
      return InvalidArgument("expected ", schedule_.parameters.size(), " arguments, got ",
                             frame->parameters.size());
    }
    frame->runner = std::make_unique<ScheduleRunner>(schedule_, params_, &device_, &serial_device_,
                                                     args, frame);
    return frame->runner->Run();
  }

 private:
  void RunAsyncInternal(const Args& args, DoneCallback done) override { done(Run(args)); }

  const LocalExecutorParams params_;
  LoopDevice device_;
  LoopDevice serial_device_;
  Schedule schedule_;
  std::vector<OpKernel*> kernels_;
};

class LoopExecutorFactory : public tensorflow::ExecutorFactory {
 public:
  absl::Status NewExecutor(const LocalExecutorParams& params, const tensorflow::Graph& graph,
                           std::unique_ptr<Executor>* executor) override {
    auto made = std::make_unique<LoopExecutor>(params);
    TF_RETURN_IF_ERROR(made->Init(graph));
    *executor = std::move(made);
    return absl::OkStatus();
  }
};

[[maybe_unused]] const bool registered = [] {
  tensorflow::ExecutorFactory::Register(kLoopExecutor, new LoopExecutorFactory);
  return true;
}();

}  // namespace
}  // namespace tf_ti
