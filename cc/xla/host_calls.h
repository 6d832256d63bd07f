// Calls of cc/compute from XLA computations on the CPU.
#ifndef TF_TI_CC_XLA_HOST_CALLS_H_
#define TF_TI_CC_XLA_HOST_CALLS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/kernels/threads.h"
#include "cc/xla/ffi.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape.h"
#include "xla/shape_util.h"

namespace tf_ti {

template <auto function, const char* target>
xla::ffi::Error HostCall(xla::ffi::ThreadPool thread_pool, xla::ffi::RemainingArgs args,
                         xla::ffi::RemainingRets results, xla::ffi::Dictionary attributes) {
  return CallForXla(target, [&] { return function(thread_pool, args, results, attributes); });
}

// Registers a function of the arguments of a running XLA computation's call, which returns a
// status. It is a macro's argument: templates in parentheses.
#define TF_TI_REGISTER_HOST_CALL(handler, target, function)     \
  XLA_FFI_DEFINE_HANDLER(handler, (HostCall<function, target>), \
                         xla::ffi::Ffi::Bind()                  \
                             .Ctx<xla::ffi::ThreadPool>()       \
                             .RemainingArgs()                   \
                             .RemainingRets()                   \
                             .Attrs<xla::ffi::Dictionary>());   \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), target, "Host", handler)

// The threads of a running XLA computation, which must outlive the result.
Threads ThreadsOf(xla::ffi::ThreadPool* thread_pool);

// Attributes of a call, as MLIR writes them.
class CallAttributes {
 public:
  void Add(const char* name, int64_t value);
  std::string Get() const;

 private:
  std::string text_;
};

// Rows and columns in this order, as cc/compute has them.
xla::Shape RowMajor(xla::PrimitiveType type, const std::vector<int64_t>& dims);

using Aliases = std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>>;

// A call with row-major operands. With `checks`, XLA neither drops it, as its errors are those of
// the op, nor moves it to where the op would not run.
xla::XlaOp CallHost(const char* target, const std::vector<xla::XlaOp>& operands,
                    const xla::Shape& result, const CallAttributes& attributes, bool checks,
                    const Aliases& aliases = {});

// The same with several results.
std::vector<xla::XlaOp> CallHost(const char* target, const std::vector<xla::XlaOp>& operands,
                                 const std::vector<xla::Shape>& results,
                                 const CallAttributes& attributes, bool checks,
                                 const Aliases& aliases = {});

}  // namespace tf_ti

#endif  // TF_TI_CC_XLA_HOST_CALLS_H_
