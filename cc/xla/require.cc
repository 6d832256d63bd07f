#include "cc/xla/require.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cc/status.h"
#include "cc/xla/ffi.h"
#include "tensorflow/core/platform/errors.h"
#include "xla/shape_util.h"

namespace tf_ti {
namespace {

namespace ffi = xla::ffi;

constexpr char kTarget[] = "tf_ti.require";

// Copies a scalar to the host.
using Read = absl::Status (*)(void* to, const void* from, size_t size, void* stream);

absl::Status ReadHost(void* to, const void* from, size_t size, void*) {
  std::memcpy(to, from, size);
  return absl::OkStatus();
}

// The CUDA driver is there where XLA runs computations on a GPU, but must not be needed elsewhere.
template <typename Function>
Function* DriverFunction(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

absl::Status ReadGpu(void* to, const void* from, size_t size, void* stream) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL);
  static auto* const copy =
      DriverFunction<int(void*, uint64_t, size_t, void*)>("cuMemcpyDtoHAsync_v2");
  static auto* const wait = DriverFunction<int(void*)>("cuStreamSynchronize");
  if (driver == nullptr || copy == nullptr || wait == nullptr ||
      copy(to, reinterpret_cast<uint64_t>(from), size, stream) != 0 || wait(stream) != 0) {
    return absl::InternalError("tf_ti cannot read from the GPU");
  }
  return absl::OkStatus();
}

absl::Status Check(Read read, void* stream, ffi::RemainingArgs args, std::string_view message) {
  const auto get = [&](size_t i, auto* value) {
    const ffi::ErrorOr<ffi::AnyBuffer> arg = args.get<ffi::AnyBuffer>(i);
    if (!arg.has_value()) return absl::InternalError(arg.error().message());
    return read(value, arg->untyped_data(), sizeof(*value), stream);
  };
  bool condition = false;
  TF_RETURN_IF_ERROR(get(0, &condition));
  if (condition) return absl::OkStatus();
  std::vector<std::pair<std::string, std::string>> texts = {{"$$", "$"}};
  for (size_t i = 1; i < args.size(); ++i) {
    int64_t value = 0;
    TF_RETURN_IF_ERROR(get(i, &value));
    texts.emplace_back(absl::StrCat("$", i - 1), absl::StrCat(value));
  }
  return InvalidArgument(absl::StrReplaceAll(message, texts));
}

ffi::Error CheckOnHost(ffi::RemainingArgs args, std::string_view message) {
  return CallForXla(kTarget, [&] { return Check(ReadHost, nullptr, args, message); });
}

ffi::Error CheckOnGpu(void* stream, ffi::RemainingArgs args, std::string_view message) {
  return CallForXla(kTarget, [&] { return Check(ReadGpu, stream, args, message); });
}

XLA_FFI_DEFINE_HANDLER(kCheckOnHost, CheckOnHost,
                       ffi::Ffi::Bind().RemainingArgs().Attr<std::string_view>("message"));
XLA_FFI_DEFINE_HANDLER(
    kCheckOnGpu, CheckOnGpu,
    ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().RemainingArgs().Attr<std::string_view>(
        "message"));

XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kTarget, "Host", kCheckOnHost);
XLA_FFI_REGISTER_HANDLER(ffi::GetXlaFfiApi(), kTarget, "CUDA", kCheckOnGpu);

// A quoted string of MLIR.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\' || !absl::ascii_isprint(c)) {
      absl::StrAppend(&quoted, "\\", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

}  // namespace

std::string Literal(const std::string& text) { return absl::StrReplaceAll(text, {{"$", "$$"}}); }

void Require(xla::XlaOp condition, const std::string& message,
             const std::vector<xla::XlaOp>& values) {
  std::vector<xla::XlaOp> operands = {condition};
  operands.insert(operands.end(), values.begin(), values.end());
  xla::CustomCall(condition.builder(), kTarget, operands, xla::ShapeUtil::MakeTupleShape({}),
                  absl::StrCat("{message = ", Quoted(message), "}"),
                  /*has_side_effect=*/true, {}, nullptr, xla::SCHEDULE_NONE,
                  xla::API_VERSION_TYPED_FFI);
}

}  // namespace tf_ti
