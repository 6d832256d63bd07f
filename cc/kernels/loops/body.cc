#include "cc/kernels/loops/body.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_set.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/loops/graph_kernels.h"
#include "cc/kernels/loops/placement.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/common_runtime/memory_types.h"
#include "tensorflow/core/framework/memory_types.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/graph/graph.h"
#include "tensorflow/core/util/device_name_utils.h"

namespace tf_ti {

using tensorflow::AttrSlice;
using tensorflow::FunctionLibraryRuntime;
using tensorflow::Node;
using tensorflow::OpKernel;

namespace {

// Asynchronous kernels that finish on the calling thread if the functions they run do.
bool RunsFunctionsInline(const std::string& op) {
  static const auto& ops = *new absl::flat_hash_set<std::string>{
      "Case",          "If",          "PartitionedCall", "StatefulPartitionedCall",
      "StatelessCase", "StatelessIf", "StatelessWhile",  "While"};
  return ops.contains(op) || IsLoop(op);
}

bool IsCpu(FunctionLibraryRuntime* lib) {
  return lib->device()->device_type() == tensorflow::DEVICE_CPU;
}

tensorflow::DeviceType TypeOf(const tensorflow::Device& device) {
  return tensorflow::DeviceType(device.device_type());
}

// Calls holds(name, attributes) for the functions that are attributes of a node, until it is false.
template <typename Predicate>
bool AllFunctions(const Node& node, const Predicate& holds) {
  for (const auto& attr : node.attrs()) {
    const tensorflow::AttrValue& value = attr.second;
    if (value.has_func() && !value.func().name().empty() &&
        !holds(value.func().name(), AttrSlice(&value.func().attr()))) {
      return false;
    }
    for (const tensorflow::NameAttrList& func : value.list().func()) {
      if (!holds(func.name(), AttrSlice(&func.attr()))) return false;
    }
  }
  return true;
}

bool CallsFunctions(const Node& node) {
  return !AllFunctions(node, [](const std::string&, AttrSlice) { return false; });
}

// Calls use(body) for the function's body.
template <typename Use>
absl::Status UseBody(FunctionLibraryRuntime* lib, const std::string& name, AttrSlice attrs,
                     const Use& use) {
  FunctionLibraryRuntime::Handle handle;
  TF_RETURN_IF_ERROR(lib->Instantiate(name, attrs, &handle));
  const absl::Cleanup release = [&] { lib->ReleaseHandle(handle).IgnoreError(); };
  const tensorflow::FunctionBody* body = lib->GetFunctionBody(handle);
  const bool has_body = body != nullptr && body->graph != nullptr;
  if (has_body) use(*body);
  return has_body ? absl::OkStatus()
                  : absl::InternalError(absl::StrCat("no body for function ", name));
}

// Returns true if a node asks for another device than the loop's. A device that does not exist
// stands for any, as where TensorFlow places operations.
bool AsksForAnotherDevice(FunctionLibraryRuntime* lib, const Node& node) {
  using tensorflow::DeviceNameUtils;
  DeviceNameUtils::ParsedName asked;
  if (node.requested_device().empty() ||
      !DeviceNameUtils::ParseFullName(node.requested_device(), &asked)) {
    return false;
  }
  const auto is_asked = [&asked](const tensorflow::Device* device) {
    return DeviceNameUtils::IsCompleteSpecification(asked, device->parsed_name());
  };
  const std::vector<tensorflow::Device*> devices = lib->device_mgr()->ListDevices();
  return !is_asked(lib->device()) && std::any_of(devices.begin(), devices.end(), is_asked);
}

bool IsSynchronousFunction(FunctionLibraryRuntime* lib, const std::string& name, AttrSlice attrs);

bool IsSynchronousNode(FunctionLibraryRuntime* lib, const Node& node) {
  if (node.IsArg() || node.IsRetval() || node.IsConstant() || node.IsIdentity() ||
      node.type_string() == "NoOp") {
    return true;
  }
  if (AsksForAnotherDevice(lib, node)) return false;
  if (node.IsControlFlow() || node.IsSend() || node.IsRecv() || node.IsHostSend() ||
      node.IsHostRecv() || node.IsCollective()) {
    return false;
  }
  for (tensorflow::DataType dtype : node.output_types()) {
    if (tensorflow::IsRefType(dtype)) return false;
  }
  if (lib->GetFunctionLibraryDefinition()->Contains(node.type_string())) {
    return IsSynchronousFunction(lib, node.type_string(), node.attrs());
  }
  if (RunsFunctionsInline(node.type_string())) {
    // On a GPU, a called function waits for copies between devices.
    return (IsCpu(lib) || IsLoop(node.type_string())) &&
           AllFunctions(node, [lib](const std::string& name, AttrSlice attrs) {
             return IsSynchronousFunction(lib, name, attrs);
           });
  }
  if (IsCpu(lib) && NeedsReplacement(node)) return true;
  OpKernel* kernel = nullptr;
  tensorflow::Device* device = lib->device();
  if (!tensorflow::CreateOpKernel(tensorflow::DeviceType(device->device_type()), device,
                                  device->GetAllocator({}), lib, device->resource_manager(),
                                  node.properties(), lib->graph_def_version(), &kernel)
           .ok()) {
    return false;
  }
  const bool synchronous = kernel->AsAsync() == nullptr;
  delete kernel;
  return synchronous;
}

bool IsSynchronousBody(FunctionLibraryRuntime* lib, const tensorflow::FunctionBody& body) {
  // Where one kernel has a value on the GPU and the next one on the host, TensorFlow puts kernels
  // between them that wait for a copy.
  if (!IsCpu(lib) && !tensorflow::ValidateMemoryTypes(TypeOf(*lib->device()), body.graph).ok()) {
    return false;
  }
  for (const Node* node : body.graph->op_nodes()) {
    if (!IsSynchronousNode(lib, *node)) return false;
  }
  return true;
}

bool IsSynchronousFunction(FunctionLibraryRuntime* lib, const std::string& name, AttrSlice attrs) {
  bool result = false;
  const absl::Status status = UseBody(lib, name, attrs, [&](const tensorflow::FunctionBody& body) {
    result = IsSynchronousBody(lib, body);
  });
  return status.ok() && result;
}

// Operations that are called stateful though another run of them has no effect: they read, or
// check.
bool OnlyReads(const std::string& op) {
  static const auto& ops =
      *new absl::flat_hash_set<std::string>{"Assert",
                                            "CheckNumerics",
                                            "CheckNumericsV2",
                                            "ReadVariableOp",
                                            "ResourceGather",
                                            "ResourceGatherNd",
                                            "TfTi>ResourceEmbeddingBagOffsets",
                                            "TfTi>ResourceEmbeddingBagPacked",
                                            "TfTi>ResourceEmbeddingBags",
                                            "TfTi>ResourceEmbeddingSegmentsSum",
                                            "VariableShape"};
  return ops.contains(op);
}

// Operations that disturb other iterations or wait for them, though TensorFlow does not call them
// stateful: they write to their inputs, or run Python, which may run TensorFlow's operations.
bool Disturbs(const std::string& op) {
  static const auto& ops = *new absl::flat_hash_set<std::string>{
      "InplaceAdd", "InplaceSub", "InplaceUpdate", "PyFuncStateless"};
  return ops.contains(op);
}

bool IsPureBody(FunctionLibraryRuntime* lib, const tensorflow::FunctionBody& body) {
  const auto is_pure = [lib](const std::string& name, AttrSlice attrs) {
    bool result = false;
    const absl::Status status =
        UseBody(lib, name, attrs,
                [&](const tensorflow::FunctionBody& called) { result = IsPureBody(lib, called); });
    return status.ok() && result;
  };
  for (const Node* node : body.graph->op_nodes()) {
    const std::string& op = node->type_string();
    if (node->IsArg() || node->IsRetval()) continue;
    if (lib->GetFunctionLibraryDefinition()->Contains(op)) {
      if (!is_pure(op, node->attrs())) return false;
    } else if (RunsFunctionsInline(op)) {
      if (!AllFunctions(*node, is_pure)) return false;
    } else if ((node->op_def().is_stateful() && !OnlyReads(op)) || Disturbs(op)) {
      return false;
    }
  }
  return true;
}

bool HasKernel(FunctionLibraryRuntime* lib, const Node& node) {
  const tensorflow::KernelDef* kernel;
  return tensorflow::FindKernelDef(TypeOf(*lib->device()), node.def(), &kernel,
                                   /*kernel_class_name=*/nullptr)
      .ok();
}

// Returns true if a kernel that calls functions hands values on from where it gets them. Branches
// do not on a GPU: their int32 comes in the device's memory, and their functions read the host's.
// Where TensorFlow runs a body on several devices, it replaces them first.
bool HandsOnValues(FunctionLibraryRuntime* lib, const Node& node) {
  tensorflow::MemoryTypeVector inputs, outputs;
  if (!tensorflow::MemoryTypesForNode(tensorflow::OpRegistry::Global(), TypeOf(*lib->device()),
                                      node.def(), &inputs, &outputs)
           .ok()) {
    return false;
  }
  const auto fits = [](tensorflow::MemoryType memory, tensorflow::DataType dtype) {
    return memory == tensorflow::HOST_MEMORY ||
           tensorflow::MTypeFromDType(dtype) == tensorflow::DEVICE_MEMORY;
  };
  return std::equal(inputs.begin(), inputs.end(), node.input_types().begin(),
                    node.input_types().end(), fits) &&
         std::equal(outputs.begin(), outputs.end(), node.output_types().begin(),
                    node.output_types().end(), fits);
}

// Returns true if the loop's device may run all of a function.
bool FitsDevice(FunctionLibraryRuntime* lib, const tensorflow::FunctionBody& body) {
  const auto fits = [lib](const std::string& name, AttrSlice attrs) {
    bool result = false;
    const absl::Status status =
        UseBody(lib, name, attrs,
                [&](const tensorflow::FunctionBody& called) { result = FitsDevice(lib, called); });
    return status.ok() && result;
  };
  for (const Node* node : body.graph->op_nodes()) {
    const std::string& op = node->type_string();
    if (AsksForAnotherDevice(lib, *node)) return false;
    // A loop and a called function take care of that themselves.
    if (IsLoop(op) || node->IsPartitionedCall()) continue;
    if (!AllFunctions(*node, fits)) return false;
    if (CallsFunctions(*node) && !IsCpu(lib) && !HandsOnValues(lib, *node)) return false;
    if (lib->GetFunctionLibraryDefinition()->Contains(op)) {
      if (!fits(op, node->attrs())) return false;
      continue;
    }
    if (!HasKernel(lib, *node)) return false;
  }
  return true;
}

// What a result comes from, or null.
const Node* SourceOf(const Node* result) {
  const Node* node = result;
  do {
    if (!node->input_node(0, &node).ok()) return nullptr;
  } while (node->IsIdentity());
  return node;
}

// The parameter that a result is, or -1 if it is computed.
int PassedOn(const Node* result) {
  const Node* const node = SourceOf(result);
  int parameter;
  const bool is_parameter = node != nullptr && node->IsArg() &&
                            tensorflow::GetNodeAttr(node->attrs(), "index", &parameter).ok();
  return is_parameter ? parameter : -1;
}

// Returns true if a result is a variant, such as a dataset, for whose source the loop's device has
// no kernel. A dataset cannot be copied to the device.
bool StaysOnHost(FunctionLibraryRuntime* lib, const Node* result) {
  const Node* const node = SourceOf(result);
  return result->input_type(0) == tensorflow::DT_VARIANT && node != nullptr && !node->IsArg() &&
         !HasKernel(lib, *node);
}

// The devices of the resources that the loop gets for the parameters of its body or condition, by
// parameter; "" for parameters of other types.
std::vector<std::string> ResourceDevices(tensorflow::OpKernelContext* ctx,
                                         const std::vector<int>& inputs) {
  std::vector<std::string> devices;
  for (const int input : inputs) {
    const tensorflow::Tensor& tensor = ctx->input(input);
    const bool is_resource = tensor.dtype() == tensorflow::DT_RESOURCE && tensor.NumElements() > 0;
    devices.push_back(is_resource ? tensor.flat<tensorflow::ResourceHandle>()(0).device() : "");
  }
  return devices;
}

// Returns true if a device of this name is in the same process.
bool IsInProcess(const tensorflow::Device& device, const std::string& name) {
  using tensorflow::DeviceNameUtils;
  DeviceNameUtils::ParsedName other;
  return DeviceNameUtils::ParseFullName(name, &other) &&
         DeviceNameUtils::IsSameAddressSpace(device.parsed_name(), other);
}

// Sets the options of a function that runs on several devices. Its parameters and results lie where
// the parameters and results of any body lie. Resources stay on their devices.
absl::Status SetMultiDevice(FunctionLibraryRuntime* lib, const Body& body,
                            const std::vector<std::string>& resource_devices,
                            FunctionLibraryRuntime::InstantiateOptions* options) {
  tensorflow::Device* host = lib->device();
  if (!IsCpu(lib)) TF_RETURN_IF_ERROR(lib->device_mgr()->LookupDevice("CPU:0", &host));
  options->is_multi_device_function = true;
  options->target = lib->device()->name();
  if (lib->config_proto() != nullptr) options->config_proto = *lib->config_proto();
  const auto device_of = [&](tensorflow::DataType dtype) {
    const bool is_on_host =
        LivesOnHost(dtype) && tensorflow::DT_RESOURCE != dtype && tensorflow::DT_VARIANT != dtype;
    return is_on_host ? host->name() : lib->device()->name();
  };
  for (tensorflow::DataType dtype : body.parameter_types) {
    options->input_devices.push_back(device_of(dtype));
  }
  for (size_t p = 0; p < std::min(resource_devices.size(), options->input_devices.size()); ++p) {
    if (!resource_devices[p].empty()) options->input_devices[p] = resource_devices[p];
  }
  for (size_t i = 0; i < body.result_types.size(); ++i) {
    options->output_devices.push_back(body.stays_on_host[i] ? host->name()
                                                            : device_of(body.result_types[i]));
  }
  return absl::OkStatus();
}

absl::Status FindTraits(FunctionLibraryRuntime* lib, const tensorflow::NameAttrList& function,
                        BodyTraits* traits) {
  return UseBody(
      lib, function.name(), AttrSlice(&function.attr()),
      [&](const tensorflow::FunctionBody& definition) {
        traits->multi_device = !FitsDevice(lib, definition);
        traits->synchronous = !traits->multi_device && IsSynchronousBody(lib, definition);
        traits->is_pure = traits->synchronous && IsCpu(lib) && IsPureBody(lib, definition);
        traits->parameter_types = definition.arg_types;
        traits->result_types = definition.ret_types;
        for (const Node* result : definition.ret_nodes) {
          traits->passed_on.push_back(PassedOn(result));
          traits->stays_on_host.push_back(StaysOnHost(lib, result));
        }
      });
}

absl::Status Instantiate(FunctionLibraryRuntime* lib, const tensorflow::NameAttrList& function,
                         const std::vector<std::string>& resource_devices, Body* body) {
  FunctionLibraryRuntime::InstantiateOptions options;
  if (body->multi_device) {
    TF_RETURN_IF_ERROR(SetMultiDevice(lib, *body, resource_devices, &options));
  } else if (body->synchronous) {
    // Our executor runs the CPU's kernels only.
    options.executor_type = IsCpu(lib) ? kLoopExecutor : "SINGLE_THREADED_EXECUTOR";
  }
  return lib->Instantiate(function.name(), AttrSlice(&function.attr()), options, &body->handle);
}

}  // namespace

BodyCache::~BodyCache() {
  for (const auto& [lib, body] : bodies_) {
    if (body->is_ours) lib->ReleaseHandle(body->handle).IgnoreError();
  }
}

bool BodyCache::IsSynchronous(FunctionLibraryRuntime* lib) {
  // The devices of resources are known when the kernel gets them.
  if (!resource_inputs_.empty()) return false;
  BodyTraits traits;
  if (lib == nullptr || !FindTraits(lib, function_, &traits).ok()) return false;
  traits_ = std::move(traits);
  return traits_->synchronous;
}

absl::Status BodyCache::Get(tensorflow::OpKernelContext* ctx, const Body** body) {
  FunctionLibraryRuntime* lib = ctx->function_library();
  if (lib == nullptr) return absl::InternalError("no function library");
  {
    std::shared_lock<std::shared_mutex> lock(mu_);
    const auto found = bodies_.find(lib);
    if (TF_PREDICT_TRUE(found != bodies_.end())) {
      *body = found->second.get();
      return absl::OkStatus();
    }
  }
  std::unique_lock<std::shared_mutex> lock(mu_);
  const auto found = bodies_.find(lib);
  if (found == bodies_.end()) {
    auto made = std::make_unique<Body>();
    BodyTraits* const traits = made.get();
    if (traits_.has_value()) {
      *traits = *traits_;
    } else {
      TF_RETURN_IF_ERROR(FindTraits(lib, function_, traits));
    }
    const std::vector<std::string> devices = ResourceDevices(ctx, resource_inputs_);
    for (const std::string& device : devices) {
      if (device.empty() || device == lib->device()->name()) continue;
      traits->multi_device = true;
      traits->synchronous = false;
      traits->cross_process |= !IsInProcess(*lib->device(), device);
    }
    // A session keeps its stateful kernels for longer than its function libraries.
    made->is_ours = ctx->session_state() == nullptr;
    // A place first: the handle would be lost if there were no memory for one.
    const auto entry = bodies_.emplace(lib, nullptr).first;
    const absl::Status status = CatchOutOfMemory(
        function_.name(), [&] { return Instantiate(lib, function_, devices, made.get()); });
    if (!status.ok()) {
      bodies_.erase(entry);
      return status;
    }
    entry->second = std::move(made);
    *body = entry->second.get();
  } else {
    *body = found->second.get();
  }
  return absl::OkStatus();
}

}  // namespace tf_ti
