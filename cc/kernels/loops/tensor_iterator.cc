// The kernel of the loop ops: drives a LoopRun, on the calling thread where the body allows it.
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

#include "cc/kernels/function.h"
#include "cc/kernels/gpu.h"
#include "cc/kernels/kernel.h"
#include "cc/kernels/loops/loop_run.h"
#include "cc/kernels/loops/placement.h"
#include "cc/status.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/log_memory.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_ti {
namespace {

using tensorflow::FunctionLibraryRuntime;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tsl::profiler::TraceMe;

// Folding a loop into a constant happens while a function is prepared, where nothing can stop it.
constexpr int64_t kMostFoldedIterations = 1000;

absl::Status CheckCancelled(OpKernelContext* ctx) {
  if (ctx->cancellation_manager() != nullptr && ctx->cancellation_manager()->IsCancelled()) {
    return absl::CancelledError("the loop was cancelled");
  }
  return absl::OkStatus();
}

using Runner = std::function<void(std::function<void()>)>;

// Runs what it is given on the calling thread, and knows a thread pool for what need not be waited
// for.
struct InlineRunner {
  const Runner* pool;
  void operator()(const std::function<void()>& closure) const { closure(); }
};

// The thread pool of a kernel's step, whatever loops are around the kernel.
const Runner* PoolOf(OpKernelContext* ctx) {
  const auto* const inline_runner = ctx->runner()->target<InlineRunner>();
  return inline_runner == nullptr ? ctx->runner() : inline_runner->pool;
}

absl::Status RunSynchronously(const LoopSpec& spec, const Body& body, const Body* condition,
                              OpKernelContext* ctx) {
  // Nested functions run on this thread too. If they were handed to a thread pool whose threads all
  // run loops, no thread would be left to finish them.
  const Runner* const pool = PoolOf(ctx);
  Runner run_inline = InlineRunner{pool};
  FunctionLibraryRuntime::Options options = RunOptions(ctx);
  options.runner = &run_inline;
  options.run_all_kernels_inline = true;

  LoopRun run(spec, body, condition, ctx);
  TF_RETURN_IF_ERROR(run.Start());
  if (ctx->step_id() == tensorflow::LogMemory::CONSTANT_FOLDING_STEP_ID &&
      (spec.has_condition || run.count() > kMostFoldedIterations)) {
    return absl::UnimplementedError("a long loop over constants is not run ahead of time");
  }
  while (true) {
    TF_RETURN_IF_ERROR(run.SkipAhead());
    TF_RETURN_IF_ERROR(run.FlyAhead(options, *pool));
    if (run.done()) break;
    TF_RETURN_IF_ERROR(CheckCancelled(ctx));
    const TraceMe trace([&] { return run.TraceName(); }, tsl::profiler::kInfo);
    absl::Status status = run.Enter();
    if (status.ok()) status = run.RunFunction(options);
    if (status.ok()) status = run.Leave();
    if (!status.ok()) return run.AtIteration(std::move(status));
  }
  return run.Finish();
}

// Runs the loop without holding a thread while the body waits. Deletes itself when done.
class AsyncRun {
 public:
  AsyncRun(const LoopSpec& spec, const Body& body, const Body* condition, OpKernelContext* ctx,
           tensorflow::AsyncOpKernel::DoneCallback done)
      : ctx_(ctx),
        done_(std::move(done)),
        options_(RunOptions(ctx)),
        run_(spec, body, condition, ctx) {
    if (OnGpu(ctx) || body.multi_device || (condition != nullptr && condition->multi_device)) {
      // For copies between devices inside the body. Their names are the same in every loop that
      // runs it.
      options_.rendezvous = nullptr;
      options_.create_rendezvous = true;
    }
  }

  void Start() {
    const absl::Status status = Catch([this] { return run_.Start(); });
    if (status.ok()) {
      Iterate();
    } else {
      Finish(status);
    }
  }

 private:
  enum Progress { kRunning, kReturned, kThrown, kCompleted };

  // The thread that completes an iteration goes on with the loop: no caller of it would catch.
  template <typename Function>
  absl::Status Catch(const Function& function) const {
    return CatchOutOfMemory(ctx_->op_kernel().type_string(), function);
  }

  absl::Status Enter() {
    TF_RETURN_IF_ERROR(CheckCancelled(ctx_));
    absl::Status status = run_.Enter();
    return status.ok() ? status : run_.AtIteration(std::move(status));
  }

  // An iteration that completes inside Run is continued by this loop, not by the callback, so that
  // the stack does not grow with the number of iterations.
  void Iterate() {
    while (!run_.done()) {
      // Ends before the iteration does where another thread completes it.
      const TraceMe trace([this] { return run_.TraceName(); }, tsl::profiler::kInfo);
      const absl::Status status = Catch([this] { return Enter(); });
      if (!status.ok()) return Finish(status);
      progress_ = kRunning;
      const absl::Status started = Catch([this] {
        Run([this](const absl::Status& status) {
          status_ = status;
          if (progress_.exchange(kCompleted) != kReturned) return;
          const ActiveGpu active(ctx_);
          if (Complete()) Iterate();
        });
        return absl::OkStatus();
      });
      if (progress_.exchange(started.ok() ? kReturned : kThrown) == kCompleted) {
        if (!Complete()) return;
        continue;
      }
      if (started.ok()) return;
      // TensorFlow may have kept the callback, so this object stays.
      ctx_->SetStatus(Catch([&] { return run_.AtIteration(started); }));
      return done_();
    }
    Finish(Catch([this] { return run_.Finish(); }));
  }

  void Run(FunctionLibraryRuntime::DoneCallback done) {
    FunctionLibraryRuntime* lib = ctx_->function_library();
    const Body& function = run_.function();
    BodyFrame* frame = run_.frame();
    if (function.multi_device) {
      frame->results.clear();  // TensorFlow appends to them
      lib->Run(function.cross_process ? OwnStepOptions(ctx_) : options_, function.handle,
               frame->parameters, &frame->results, std::move(done));
    } else {
      lib->Run(options_, function.handle, frame, std::move(done));
    }
  }

  // Ends an iteration; false if it ended the loop, and with it this object.
  bool Complete() {
    const absl::Status status = Catch([this] {
      if (status_.ok()) status_ = run_.Leave();
      return status_.ok() ? status_ : run_.AtIteration(status_);
    });
    if (!status.ok()) Finish(status);
    return status.ok();
  }

  // The kernel's cancellation manager ends after `done`, and the run may refer to it.
  void Finish(const absl::Status& status) {
    ctx_->SetStatus(status);
    const tensorflow::AsyncOpKernel::DoneCallback done = done_;
    delete this;
    done();
  }

  OpKernelContext* const ctx_;
  const tensorflow::AsyncOpKernel::DoneCallback done_;
  FunctionLibraryRuntime::Options options_;
  LoopRun run_;
  std::atomic<int> progress_{kRunning};
  absl::Status status_;
};

// What the kernels have in common.
class Loop {
 public:
  absl::Status Init(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(spec_.Init(Attributes(ctx)));
    tensorflow::NameAttrList function;
    TF_RETURN_IF_ERROR(ctx->GetAttr("body", &function));
    std::vector<int> inputs, condition_inputs;
    if (ctx->def().op() == kMultiDeviceLoop) {
      inputs.resize(spec_.inputs.size());
      std::iota(inputs.begin(), inputs.end(), 0);
      condition_inputs = spec_.condition_inputs;
    }
    body_.Init(function, std::move(inputs));
    std::vector<tensorflow::NameAttrList> condition;
    TF_RETURN_IF_ERROR(ctx->GetAttr("condition", &condition));
    if (spec_.has_condition) condition_.Init(condition[0], std::move(condition_inputs));
    return absl::OkStatus();
  }

  bool IsSynchronous(FunctionLibraryRuntime* lib) {
    return body_.IsSynchronous(lib) && (!spec_.has_condition || condition_.IsSynchronous(lib));
  }

  // Where it is synchronous.
  absl::Status Run(OpKernelContext* ctx) {
    const Body *body, *condition;
    TF_RETURN_IF_ERROR(Find(ctx, &body, &condition));
    return RunSynchronously(spec_, *body, condition, ctx);
  }

  // See SafeAsyncKernel.
  absl::Status Start(OpKernelContext* ctx, const tensorflow::AsyncOpKernel::DoneCallback& done,
                     bool* goes_on) {
    const Body *body, *condition;
    TF_RETURN_IF_ERROR(Find(ctx, &body, &condition));
    if (!body->synchronous || (condition != nullptr && !condition->synchronous)) {
      auto* const run = new AsyncRun(spec_, *body, condition, ctx, done);
      *goes_on = true;
      run->Start();
      return absl::OkStatus();
    }
    // TensorFlow's executors trace asynchronous kernels too, but profiles leave that out by
    // default.
    const TraceMe trace([ctx] { return ctx->op_kernel().TraceString(*ctx, /*verbose=*/false); },
                        tsl::profiler::kInfo);
    return RunSynchronously(spec_, *body, condition, ctx);
  }

 private:
  absl::Status Find(OpKernelContext* ctx, const Body** body, const Body** condition) {
    *condition = nullptr;
    TF_RETURN_IF_ERROR(body_.Get(ctx, body));
    return spec_.has_condition ? condition_.Get(ctx, condition) : absl::OkStatus();
  }

  LoopSpec spec_;
  BodyCache body_;
  BodyCache condition_;
};

class AsyncLoopOp : public SafeAsyncKernel {
 public:
  AsyncLoopOp(OpKernelConstruction* ctx, std::unique_ptr<Loop> loop)
      : SafeAsyncKernel(ctx), loop_(std::move(loop)) {}

 private:
  absl::Status Start(OpKernelContext* ctx, const DoneCallback& done, bool* goes_on) override {
    return loop_->Start(ctx, done, goes_on);
  }

  const std::unique_ptr<Loop> loop_;
};

// After an asynchronous kernel TensorFlow wakes other threads to go on with what reads its results,
// which takes longer than short loops do.
class LoopOp : public SafeKernel {
 public:
  LoopOp(OpKernelConstruction* ctx, std::unique_ptr<Loop> loop)
      : SafeKernel(ctx), loop_(std::move(loop)) {}

 private:
  absl::Status Run(OpKernelContext* ctx) override { return loop_->Run(ctx); }

  const std::unique_ptr<Loop> loop_;
};

OpKernel* MakeLoopOp(OpKernelConstruction* ctx) {
  return MakeKernel(ctx, [ctx]() -> OpKernel* {
    auto loop = std::make_unique<Loop>();
    ctx->SetStatus(loop->Init(ctx));
    const bool is_on_cpu = ctx->device_type() == tensorflow::DEVICE_CPU;
    if (ctx->status().ok() && is_on_cpu && loop->IsSynchronous(ctx->function_library())) {
      return AsOpKernel(new LoopOp(ctx, std::move(loop)));
    }
    return AsOpKernel(new AsyncLoopOp(ctx, std::move(loop)));
  });
}

[[maybe_unused]] const bool registered = [] {
  for (const char* const name :
       {"TfTi>TensorIterator", "TfTi>StatelessTensorIterator", kMultiDeviceLoop}) {
    using tensorflow::kernel_factory::OpKernelRegistrar;
    OpKernelRegistrar(tensorflow::KernelDefBuilder(name).Device(tensorflow::DEVICE_CPU).Build(),
                      "TensorIterator", MakeLoopOp);
#if GOOGLE_CUDA
    OpKernelRegistrar(tensorflow::KernelDefBuilder(name)
                          .Device(tensorflow::DEVICE_GPU)
                          .HostMemory("num_iterations")
                          .HostMemory("length")
                          .Build(),
                      "TensorIterator", MakeLoopOp);
#endif
  }
  return true;
}();

}  // namespace
}  // namespace tf_ti
