#include "cc/kernels/body.h"

#include <mutex>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "cc/kernels/executor.h"
#include "cc/status.h"
#include "tensorflow/core/common_runtime/device.h"
#include "tensorflow/core/common_runtime/function_body.h"
#include "tensorflow/core/graph/graph.h"

namespace tf_ti {

using tensorflow::AttrSlice;
using tensorflow::FunctionLibraryRuntime;
using tensorflow::Node;
using tensorflow::OpKernel;

namespace {

// Asynchronous kernels that finish on the calling thread if the functions they run do.
bool RunsFunctionsInline(const std::string& op) {
  static const auto& ops = *new absl::flat_hash_set<std::string>{"Case",
                                                                 "If",
                                                                 "PartitionedCall",
                                                                 "StatefulPartitionedCall",
                                                                 "StatelessCase",
                                                                 "StatelessIf",
                                                                 "StatelessWhile",
                                                                 "While",
                                                                 "TfTi>TensorIterator",
                                                                 "TfTi>StatelessTensorIterator"};
  return ops.contains(op);
}

bool IsSynchronousFunction(FunctionLibraryRuntime* lib, const std::string& name, AttrSlice attrs);

bool IsSynchronousNode(FunctionLibraryRuntime* lib, const Node& node) {
  if (node.IsArg() || node.IsRetval() || node.IsConstant() || node.IsIdentity() ||
      node.type_string() == "NoOp") {
    return true;
  }
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
    for (const auto& attr : node.attrs()) {
      const tensorflow::AttrValue& value = attr.second;
      if (value.has_func() && !value.func().name().empty() &&
          !IsSynchronousFunction(lib, value.func().name(), AttrSlice(&value.func().attr()))) {
        return false;
      }
      for (const tensorflow::NameAttrList& func : value.list().func()) {
        if (!IsSynchronousFunction(lib, func.name(), AttrSlice(&func.attr()))) return false;
      }
    }
    return true;
  }
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

bool IsSynchronousFunction(FunctionLibraryRuntime* lib, const std::string& name, AttrSlice attrs) {
  FunctionLibraryRuntime::Handle handle;
  if (!lib->Instantiate(name, attrs, &handle).ok()) return false;
  const tensorflow::FunctionBody* body = lib->GetFunctionBody(handle);
  bool synchronous = body != nullptr && body->graph != nullptr;
  if (synchronous) {
    for (const Node* node : body->graph->op_nodes()) {
      synchronous = synchronous && IsSynchronousNode(lib, *node);
    }
  }
  lib->ReleaseHandle(handle).IgnoreError();
  return synchronous;
}

// Which parameter a result is, or -1 if it is computed.
int PassedOn(const Node* result) {
  const Node* node = result;
  do {
    if (!node->input_node(0, &node).ok()) return -1;
  } while (node->IsIdentity());
  int parameter;
  const bool is_parameter =
      node->IsArg() && tensorflow::GetNodeAttr(node->attrs(), "index", &parameter).ok();
  return is_parameter ? parameter : -1;
}

absl::Status Instantiate(FunctionLibraryRuntime* lib, const tensorflow::NameAttrList& function,
                         Body* body) {
  const AttrSlice attrs(&function.attr());
  body->synchronous = IsSynchronousFunction(lib, function.name(), attrs);
  FunctionLibraryRuntime::InstantiateOptions options;
  if (body->synchronous) options.executor_type = kLoopExecutor;
  TF_RETURN_IF_ERROR(lib->Instantiate(function.name(), attrs, options, &body->handle));
  const tensorflow::FunctionBody* instantiated = lib->GetFunctionBody(body->handle);
  if (instantiated == nullptr) {
    return absl::InternalError(absl::StrCat("no body for function ", function.name()));
  }
  body->parameter_types = instantiated->arg_types;
  body->result_types = instantiated->ret_types;
  for (const Node* result : instantiated->ret_nodes) body->passed_on.push_back(PassedOn(result));
  return absl::OkStatus();
}

}  // namespace

BodyCache::~BodyCache() {
  for (const auto& [lib, body] : bodies_) {
    if (body->is_ours) lib->ReleaseHandle(body->handle).IgnoreError();
  }
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
  std::unique_ptr<Body>& slot = bodies_[lib];
  if (slot == nullptr) {
    auto made = std::make_unique<Body>();
    const absl::Status status = Instantiate(lib, function_, made.get());
    if (!status.ok()) {
      bodies_.erase(lib);
      return status;
    }
    // A session keeps its stateful kernels for longer than its function libraries.
    made->is_ours = ctx->session_state() == nullptr;
    slot = std::move(made);
  }
  *body = slot.get();
  return absl::OkStatus();
}

}  // namespace tf_ti
