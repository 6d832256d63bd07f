#include "cc/kernels/function.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/common_runtime/device.h"

namespace tf_ti {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

namespace {

// Gives a call the kernel's options that do not depend on the step.
void Inherit(OpKernelContext* ctx, FunctionLibraryRuntime::Options* options) {
  options->cancellation_manager = ctx->cancellation_manager();
  options->collective_executor = ctx->collective_executor();
  options->step_container = ctx->step_container();
  options->stats_collector = ctx->stats_collector();
  options->runner = ctx->runner();
  options->run_all_kernels_inline = ctx->run_all_kernels_inline();
}

}  // namespace

FunctionLibraryRuntime::Options RunOptions(OpKernelContext* ctx) {
  FunctionLibraryRuntime::Options options(ctx->step_id());
  options.rendezvous = ctx->rendezvous();
  Inherit(ctx, &options);
  return options;
}

FunctionLibraryRuntime::Options OwnStepOptions(OpKernelContext* ctx) {
  // With a number that no other step has. TensorFlow makes a rendezvous for it.
  FunctionLibraryRuntime::Options options;
  Inherit(ctx, &options);
  return options;
}

CalledFunction::~CalledFunction() {
  for (const auto& [lib, handle] : handles_) lib->ReleaseHandle(handle).IgnoreError();
}

absl::Status CalledFunction::Get(Library* lib, int num_inputs, Library::Handle* handle) {
  if (lib == nullptr) return absl::InternalError("no function library");
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = handles_.find(lib);
  if (found != handles_.end()) {
    *handle = found->second;
    return absl::OkStatus();
  }
  const std::string& name = function_.name();
  const tensorflow::FunctionDef* definition = lib->GetFunctionLibraryDefinition()->Find(name);
  if (definition == nullptr) return absl::InternalError(absl::StrCat("no function ", name));
  FunctionLibraryRuntime::InstantiateOptions options;
  options.is_multi_device_function = true;
  options.target = lib->device()->name();
  if (lib->config_proto() != nullptr) options.config_proto = *lib->config_proto();
  options.input_devices.assign(num_inputs, options.target);
  options.output_devices.assign(definition->signature().output_arg_size(), options.target);
  TF_RETURN_IF_ERROR(
      lib->Instantiate(name, tensorflow::AttrSlice(&function_.attr()), options, handle));
  handles_.emplace(lib, *handle);
  return absl::OkStatus();
}

void CalledFunction::Run(OpKernelContext* ctx, Done done) {
  FunctionLibraryRuntime* lib = ctx->function_library();
  Library::Handle handle;
  const absl::Status status = Get(lib, ctx->num_inputs(), &handle);
  if (!status.ok()) return done(status, {});
  FunctionLibraryRuntime::Options options = RunOptions(ctx);
  // For copies between devices, whose names are the same wherever the function is called.
  options.rendezvous = nullptr;
  options.create_rendezvous = true;
  std::vector<Tensor> inputs;
  for (int i = 0; i < ctx->num_inputs(); ++i) inputs.push_back(ctx->input(i));
  const auto results = std::make_shared<std::vector<Tensor>>();
  lib->Run(
      options, handle, inputs, results.get(),
      [results, done = std::move(done)](const absl::Status& status) { done(status, *results); });
}

}  // namespace tf_ti
