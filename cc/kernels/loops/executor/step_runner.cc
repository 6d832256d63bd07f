#include "cc/kernels/loops/executor/step_runner.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "cc/kernels/loops/caching_allocator.h"
#include "cc/kernels/threads.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_ti {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorValue;
using tsl::profiler::TraceMe;

namespace {

// oneDNN's kernels take tens of microseconds before and after they compute.
OpKernel* KernelOf(const Step& step, absl::Span<const TensorValue> inputs) {
  constexpr int64_t kLarge = 1 << 15;  // elements
  if (step.kernel_of_empty == nullptr) return step.kernel;
  bool has_large = false;
  for (const TensorValue& input : inputs) {
    if (input.tensor->NumElements() == 0) return step.kernel_of_empty;
    has_large |= input.tensor->NumElements() >= kLarge;
  }
  return has_large && step.kernel_of_large != nullptr ? step.kernel_of_large : step.kernel;
}

// Returns true if one thread multiplies these matrices in less time than others need to join in: in
// some tens of microseconds, or within its own cache. Other kernels judge that well themselves.
bool IsSmall(const Step& step, absl::Span<const TensorValue> inputs) {
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

// Points a program's inputs and outputs to values. The outputs get memory.
absl::Status SetArrays(const Region& region, RegionRun* region_run, Values* values) {
  RegionRun& run = *region_run;
  for (size_t i = 0; i < region.inputs.size(); ++i) {
    run->SetInput(static_cast<int>(i), values->TensorOf(region.inputs[i].source).data());
  }
  for (size_t i = 0; i < region.outputs.size(); ++i) {
    const Region::Array& output = region.outputs[i];
    Tensor tensor(GetCachingAllocator(), output.dtype, output.shape);
    if (!tensor.IsInitialized() && output.shape.num_elements() > 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "out of memory in a program, for a value of shape ", output.shape.DebugString()));
    }
    run->SetOutput(static_cast<int>(i), tensor.data());
    values->Set(output.source.index, std::move(tensor));
  }
  return absl::OkStatus();
}

}  // namespace

StepRunner::StepRunner(const Schedule& schedule, const tensorflow::LocalExecutorParams& local,
                       LoopDevices* devices, const tensorflow::Executor::Args& args)
    : schedule_(schedule),
      devices_(*devices),
      runner_(args.runner),
      packed_products_(schedule.num_packed_products) {
  params_.step_id = args.step_id;
  params_.device = &devices->all;
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

absl::Status StepRunner::RunStep(const Step& step, bool is_inline, OpKernelContext::Params* params,
                                 Values* values) {
  params->inputs = values->InputsOf(step);
  params->op_kernel = KernelOf(step, params->inputs);
  params->input_alloc_attrs =
      absl::MakeConstSpan(schedule_.input_attributes).subspan(step.first_input, step.num_inputs);
  params->output_attr_array = step.output_attributes.data();
  params->outputs_required_array = step.required.get();
  params->device = IsSmall(step, params->inputs) ? &devices_.one
                   : is_inline                   ? &devices_.inlined
                                                 : &devices_.all;
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

absl::Status StepRunner::RunRegion(const Region& region, bool is_inline,
                                   OpKernelContext::Params* params, RegionRun* region_run,
                                   Values* values) {
  {
    const TraceMe trace([&] { return region.name; }, tsl::profiler::kInfo);
    TF_RETURN_IF_ERROR(SetArrays(region, region_run, values));
    if (RunProgram(region, is_inline, region_run)) return absl::OkStatus();
  }
  return RunKernelsOf(region, is_inline, params, values);
}

absl::Status StepRunner::RunKernelsOf(const Region& region, bool is_inline,
                                      OpKernelContext::Params* params, Values* values) {
  for (const int s : region.steps) {
    TF_RETURN_IF_ERROR(RunStep(schedule_.steps[s], is_inline, params, values));
  }
  values->ReleaseInside(region);
  return absl::OkStatus();
}

// Returns false if the values that the program has made are not right.
bool StepRunner::RunProgram(const Region& region, bool is_inline, RegionRun* region_run) {
  RegionRun& run = *region_run;
  bool fails = false;
  if (region.may_fail) run->SetOutput(static_cast<int>(region.outputs.size()), &fails);
  run.RunPrologueOnce();
  PoolThreads threads = ThreadsOf(is_inline ? devices_.inlined : devices_.all);
  const std::function<bool()> is_stopped = [this] {
    return params_.cancellation_manager != nullptr && params_.cancellation_manager->IsCancelled();
  };
  run->SetStop(&is_stopped);
  run->Run(&threads);
  const bool was_stopped = run->was_stopped();
  run->SetStop(nullptr);
  return !fails && !was_stopped;
}

// Multiplies by an invariant, which is packed the first time. Returns false if there is none, or if
// the kernel does it better.
bool StepRunner::ComputePacked(const Step& step, const BodyFrame& frame, OpKernelContext* ctx) {
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
void StepRunner::Compute(const Step& step, OpKernel* kernel, const BodyFrame& frame,
                         OpKernelContext* ctx) {
  const TraceMe trace(
      [&] { return kernel->TraceString(*ctx, tsl::profiler::TfOpDetailsEnabled()); },
      step.trace_level);
  if (!ComputePacked(step, frame, ctx)) kernel->Compute(ctx);
}

}  // namespace tf_ti
