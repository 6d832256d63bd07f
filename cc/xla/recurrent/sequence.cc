// The kernels of recurrent sequences and of their gradients, for XLA. XLA computations on the CPU
// call cc/compute; others run the op's loop. Invalid lengths end a computation on the CPU with
// InvalidArgument.
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cc/kernels/recurrent/call.h"
#include "cc/spec/recurrent/cell_spec.h"
#include "cc/spec/recurrent/sequence_shapes.h"
#include "cc/status.h"
#include "cc/xla/host_calls.h"
#include "cc/xla/shapes.h"
#include "cc/xla/tf2xla.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tf_ti {
namespace {

namespace ffi = xla::ffi;

using tensorflow::DataType;
using tensorflow::TensorShape;
using xla::Shape;
using xla::ShapeUtil;
using xla::XlaOp;

constexpr char kTarget[] = "tf_ti.recurrent_sequence";

// Calls visit(name, field) for all fields that a call passes on.
template <typename Spec, typename Sizes, typename Visit>
void ForFields(Spec& spec, Sizes& sizes, const Visit& visit) {
  visit("is_gradient", spec.is_gradient);
  visit("kind", spec.kind);
  visit("gate_0", spec.gate_positions[0]);
  visit("gate_1", spec.gate_positions[1]);
  visit("gate_2", spec.gate_positions[2]);
  visit("gate_3", spec.gate_positions[3]);
  visit("transpose_weights", spec.transpose_weights);
  visit("function_0", spec.activations[0].function);
  visit("alpha_0", spec.activations[0].alpha);
  visit("beta_0", spec.activations[0].beta);
  visit("limits_0", spec.activations[0].limits);
  visit("function_1", spec.activations[1].function);
  visit("alpha_1", spec.activations[1].alpha);
  visit("beta_1", spec.activations[1].beta);
  visit("limits_1", spec.activations[1].limits);
  visit("function_2", spec.activations[2].function);
  visit("alpha_2", spec.activations[2].alpha);
  visit("beta_2", spec.activations[2].beta);
  visit("limits_2", spec.activations[2].limits);
  visit("clip", spec.clip);
  visit("reverse", spec.reverse);
  visit("time_major", spec.time_major);
  visit("hold_output", spec.hold_output);
  visit("has_weights", spec.has_weights);
  visit("has_bias", spec.has_bias);
  visit("has_lengths", spec.has_lengths);
  visit("has_mask", spec.has_mask);
  visit("num_saved", spec.num_saved);
  visit("num_steps", sizes.num_steps);
  visit("batch", sizes.batch);
  visit("input", sizes.input);
  visit("hidden", sizes.hidden);
}
static_assert(kMostGates == 4, "a gate for each field");

// Attributes are integers; a floating-point number is its bits.
int64_t ToAttribute(double value) {
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
template <typename T>
int64_t ToAttribute(T value) {
  return static_cast<int64_t>(value);
}
void FromAttribute(int64_t bits, double* value) { std::memcpy(value, &bits, sizeof(bits)); }
template <typename T>
void FromAttribute(int64_t value, T* field) {
  *field = static_cast<T>(value);
}

absl::Status Run(ffi::ThreadPool thread_pool, ffi::RemainingArgs args, ffi::RemainingRets results,
                 ffi::Dictionary attributes) {
  CellSpec spec;
  SequenceSizes sizes;
  ForFields(spec, sizes, [&](const char* name, auto& field) {
    FromAttribute(*attributes.get<int64_t>(name), &field);
  });
  std::vector<const void*> inputs;
  for (size_t i = 0; i < args.size(); ++i) {
    inputs.push_back(args.get<ffi::AnyBuffer>(i)->untyped_data());
  }
  std::vector<void*> outputs;
  for (size_t i = 0; i < results.size(); ++i) {
    outputs.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  Threads threads = ThreadsOf(&thread_pool);
  const bool is_wide = args.get<ffi::AnyBuffer>(0)->element_type() == ffi::DataType::F64;
  const auto run = is_wide ? RunRecurrentOp<double> : RunRecurrentOp<float>;
  return run(spec, sizes, inputs, outputs, [] { return true; }, &threads);
}

TF_TI_REGISTER_HOST_CALL(kHandler, kTarget, Run);

template <bool is_gradient>
class RecurrentSequenceOp : public XlaKernel {
 public:
  explicit RecurrentSequenceOp(tensorflow::OpKernelConstruction* ctx)
      : runs_loop_(!IsForCpu(ctx) || ctx->HasAttr("_kernel")) {
    OP_REQUIRES_OK(ctx, spec_.Init(Attributes(ctx), is_gradient));
    // XLA's gradient of a relu is a selection, and TensorFlow's is a product.
    for (Activation<double>& activation : spec_.activations) {
      if (activation.is_limited()) activation.limits |= kZero;
    }
    OP_REQUIRES_OK(ctx, ctx->GetAttr("T", &dtype_));
    DataType given;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("S", &given));
    const DataType wide =
        dtype_ == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
    OP_REQUIRES(ctx, given == wide,
                InvalidArgument("S must be ", tensorflow::DataTypeString(wide), ", got ",
                                tensorflow::DataTypeString(given)));
    is_widened_ = dtype_ != wide;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("loop", &loop_));
    saved_type_ = wide;
  }

  absl::Status Compile(const Context& ctx) const override {
    if (runs_loop_) return CompileLoop(ctx);
    SequenceShapes<TensorShape> shapes;
    TF_RETURN_IF_ERROR(shapes.Init(spec_, InputShapes(ctx)));
    // Halves are computed as floats.
    std::vector<XlaOp> operands;
    for (int i = 0; i < ctx.num_inputs(); ++i) {
      const bool is_narrow = is_widened_ && ctx.input_type(i) == dtype_;
      operands.push_back(is_narrow ? xla::ConvertElementType(ctx.Input(i), xla::F32)
                                   : ctx.Input(i));
    }
    std::vector<Shape> results;
    for (const auto& output : shapes.outputs) {
      const Shape shape = ShapeUtil::MakeShape(TypeOf(operands[0]), output.shape.dim_sizes());
      if (IsTooLarge(shape, 1)) {
        return Unimplemented("an output of shape ", output.shape.DebugString(),
                             " is too large for XLA");
      }
      results.push_back(RowMajor(shape.element_type(), Dims(shape)));
    }
    CallAttributes attributes;
    ForFields(spec_, shapes.sizes, [&](const char* name, const auto& field) {
      attributes.Add(name, ToAttribute(field));
    });
    const std::vector<XlaOp> values =
        CallHost(kTarget, operands, results, attributes, /*checks=*/spec_.has_lengths);
    const xla::PrimitiveType type = TypeOf(ctx.Input(0));
    for (size_t i = 0; i < values.size(); ++i) {
      const bool is_saved = shapes.outputs[i].is_saved;
      ctx.SetOutput(i, is_saved ? values[i] : xla::ConvertElementType(values[i], type));
    }
    return ctx.builder()->first_error();
  }

 private:
  absl::Status CompileLoop(const Context& ctx) const {
    if (loop_.empty()) {
      return Unimplemented(ctx.op_name(),
                           ": XLA compiles recurrent sequences without their loops for the CPU "
                           "alone");
    }
    SequenceShapes<TensorShape> shapes;
    TF_RETURN_IF_ERROR(shapes.Init(spec_, InputShapes(ctx)));
    std::vector<FunctionArgument> arguments(ctx.num_inputs());
    for (int i = 0; i < ctx.num_inputs(); ++i) {
      arguments[i].type = ctx.input_type(i);
      TF_ASSIGN_OR_RETURN(arguments[i].shape, ctx.InputShape(i));
    }
    CompiledFunction loop;
    TF_RETURN_IF_ERROR(ctx.CompileFunction(loop_[0], arguments, &loop));
    std::vector<XlaOp> parameters;
    for (int parameter : loop.parameters) parameters.push_back(ctx.Input(parameter));
    const XlaOp values = xla::Call(ctx.builder(), *loop.computation, parameters);
    const int num_results = loop.outputs.size();
    int element = 0;
    for (int i = 0; i < ctx.num_outputs(); ++i) {
      if (i >= num_results) {
        ctx.SetOutput(i, Unsaved(ctx.builder(), shapes.outputs[i].shape));
      } else if (loop.outputs[i].constant.has_value()) {
        ctx.SetOutput(i, *loop.outputs[i].constant);
      } else {
        ctx.SetOutput(i, xla::GetTupleElement(values, element++));
      }
    }
    return ctx.builder()->first_error();
  }

  // What a loop gives as saved: NaNs of which all bits are set, as in cc/kernels/recurrent.
  XlaOp Unsaved(xla::XlaBuilder* builder, const TensorShape& shape) const {
    const XlaOp nan =
        saved_type_ == tensorflow::DT_DOUBLE
            ? xla::BitcastConvertType(xla::ConstantR0(builder, ~uint64_t{0}), xla::F64)
            : xla::BitcastConvertType(xla::ConstantR0(builder, ~uint32_t{0}), xla::F32);
    return xla::Broadcast(nan, shape.dim_sizes());
  }

  const bool runs_loop_;
  CellSpec spec_;
  std::vector<tensorflow::NameAttrList> loop_;
  DataType dtype_;
  DataType saved_type_;
  bool is_widened_ = false;
};

const XlaRegistrar<RecurrentSequenceOp<false>> kSequence("TfTi>RecurrentSequence");
const XlaRegistrar<RecurrentSequenceOp<true>> kGradient("TfTi>RecurrentSequenceGrad");
// As in cc/kernels/recurrent, tests run the loop on the CPU by its label.
const XlaRegistrar<RecurrentSequenceOp<false>> kLoop("TfTi>RecurrentSequence", kPlain, {}, "loop");
const XlaRegistrar<RecurrentSequenceOp<true>> kGradientLoop("TfTi>RecurrentSequenceGrad", kPlain,
                                                            {}, "loop");

}  // namespace
}  // namespace tf_ti
