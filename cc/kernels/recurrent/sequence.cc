#include "cc/compute/recurrent/sequence.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "cc/kernels/recurrent/spec.h"
#include "cc/kernels/threads.h"
#include "cc/status.h"
#include "tensorflow/core/framework/bfloat16.h"

namespace tf_ti {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Numbers of the type in which they are computed: the tensor's own, or a copy.
template <typename T, typename S>
class Widened {
 public:
  absl::Status Init(OpKernelContext* ctx, const Tensor& tensor) {
    if constexpr (std::is_same_v<T, S>) {
      tensor_ = tensor;
    } else {
      TF_RETURN_IF_ERROR(
          ctx->allocate_temp(tensorflow::DataTypeToEnum<S>::value, tensor.shape(), &tensor_));
      tensor_.flat<S>() = tensor.flat<T>().template cast<S>();
    }
    return absl::OkStatus();
  }
  const S* data() const { return tensor_.flat<S>().data(); }

 private:
  Tensor tensor_;
};

// An output in the type in which it is computed, rounded in the end.
template <typename T, typename S>
class Rounded {
 public:
  absl::Status Init(OpKernelContext* ctx, int output, const TensorShape& shape) {
    TF_RETURN_IF_ERROR(ctx->allocate_output(output, shape, &output_));
    if constexpr (std::is_same_v<T, S>) {
      tensor_ = *output_;
      return absl::OkStatus();
    }
    return ctx->allocate_temp(tensorflow::DataTypeToEnum<S>::value, shape, &tensor_);
  }
  S* data() { return tensor_.flat<S>().data(); }
  void Finish() {
    if constexpr (!std::is_same_v<T, S>) {
      output_->flat<T>() = tensor_.flat<S>().template cast<T>();
    }
  }

 private:
  Tensor* output_;
  Tensor tensor_;
};

absl::Status CheckShape(const char* name, const Tensor& tensor, const TensorShape& expected) {
  if (tensor.shape() == expected) return absl::OkStatus();
  return InvalidArgument(name, " must have shape ", expected.DebugString(), ", got ",
                         tensor.shape().DebugString());
}

absl::Status CheckRank(const char* name, const Tensor& tensor, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return InvalidArgument(name, " must have rank ", rank, ", got shape ",
                         tensor.shape().DebugString());
}

// The only tensor of a list, or null.
absl::Status Optional(OpKernelContext* ctx, const char* name, const Tensor** tensor) {
  tensorflow::OpInputList list;
  TF_RETURN_IF_ERROR(ctx->input_list(name, &list));
  if (list.size() > 1) return InvalidArgument(name, " must be one tensor, got ", list.size());
  *tensor = list.size() == 0 ? nullptr : &list[0];
  return absl::OkStatus();
}

// Not null where the tensor is empty either: that says that there is none.
template <typename Number>
const Number* DataOf(const Tensor& tensor) {
  static const Number nothing{};
  return tensor.NumElements() == 0 ? &nothing : tensor.flat<Number>().data();
}

// What both ops read of a sequence, checked, in the type in which it is computed.
template <typename T, typename S>
class SequenceInputs {
 public:
  absl::Status Init(OpKernelContext* ctx, const RecurrentSpec& spec);

  SequenceArgs<S> args{};
  TensorShape state_shape;   // [batch, hidden]
  TensorShape output_shape;  // of y
  int64_t step_rows = 0;     // how many rows of y, and of x, are between two steps
  int64_t batch_rows = 0;    // and between two rows of the batch
  bool has_weights = false;
  bool has_bias = false;

 private:
  absl::Status InitMask(OpKernelContext* ctx, const Tensor& x);

  Widened<T, S> x_, h_, c_, w_, r_, b_;
};

template <typename T, typename S>
absl::Status SequenceInputs<T, S>::Init(OpKernelContext* ctx, const RecurrentSpec& spec) {
  const Tensor* x;
  const Tensor* h;
  const Tensor* c;
  const Tensor* w;
  const Tensor* r;
  const Tensor* b;
  TF_RETURN_IF_ERROR(ctx->input("x", &x));
  TF_RETURN_IF_ERROR(ctx->input("h", &h));
  TF_RETURN_IF_ERROR(Optional(ctx, "c", &c));
  TF_RETURN_IF_ERROR(Optional(ctx, "w", &w));
  TF_RETURN_IF_ERROR(ctx->input("r", &r));
  TF_RETURN_IF_ERROR(Optional(ctx, "b", &b));
  TF_RETURN_IF_ERROR(CheckRank("x", *x, 3));
  TF_RETURN_IF_ERROR(CheckRank("h", *h, 2));
  args.kind = spec.kind;
  args.batch = x->dim_size(spec.time_major ? 1 : 0);
  args.num_steps = x->dim_size(spec.time_major ? 0 : 1);
  args.hidden = h->dim_size(1);
  args.reverse = spec.reverse;
  args.hold_output = spec.hold_output;
  std::copy_n(spec.gate_positions, kMostGates, args.gate_positions);
  for (int i = 0; i < 3; ++i) {
    const Activation<double>& given = spec.activations[i];
    args.activations[i] = {given.function, static_cast<S>(given.alpha), static_cast<S>(given.beta)};
  }
  args.clip = static_cast<S>(spec.clip);
  step_rows = spec.time_major ? args.batch : 1;
  batch_rows = spec.time_major ? 1 : args.num_steps;
  const bool is_lstm = spec.kind == CellKind::kLstm;
  const bool resets_product = spec.kind == CellKind::kGruLinearBeforeReset;
  const int64_t columns = NumGates(spec.kind) * args.hidden;
  has_weights = w != nullptr;
  has_bias = b != nullptr;
  args.is_projected = !has_weights;
  args.input = has_weights ? x->dim_size(2) : columns;
  state_shape = TensorShape({args.batch, args.hidden});
  output_shape = TensorShape({x->dim_size(0), x->dim_size(1), args.hidden});
  if (args.hidden == 0) {
    return InvalidArgument("h must have units, got shape ", h->shape().DebugString());
  }
  const auto shape_of = [&](int64_t rows) {
    return spec.transpose_weights ? TensorShape({columns, rows}) : TensorShape({rows, columns});
  };
  const auto matrix_of = [&](const S* data, int64_t rows) {
    return spec.transpose_weights ? Matrix<S>{data, 1, rows} : Matrix<S>{data, columns, 1};
  };
  TF_RETURN_IF_ERROR(CheckShape("h", *h, state_shape));
  TF_RETURN_IF_ERROR(CheckShape("r", *r, shape_of(args.hidden)));
  TF_RETURN_IF_ERROR(x_.Init(ctx, *x));
  TF_RETURN_IF_ERROR(h_.Init(ctx, *h));
  TF_RETURN_IF_ERROR(r_.Init(ctx, *r));
  args.x = {x_.data(), step_rows * args.input, batch_rows * args.input};
  args.h0 = h_.data();
  args.r = matrix_of(r_.data(), args.hidden);
  if ((c != nullptr) != is_lstm) return InvalidArgument("c is for an LSTM, which needs it");
  if (is_lstm) {
    TF_RETURN_IF_ERROR(CheckShape("c", *c, state_shape));
    TF_RETURN_IF_ERROR(c_.Init(ctx, *c));
    args.c0 = c_.data();
  }
  if (has_weights) {
    TF_RETURN_IF_ERROR(CheckShape("w", *w, shape_of(args.input)));
    TF_RETURN_IF_ERROR(w_.Init(ctx, *w));
    args.w = matrix_of(w_.data(), args.input);
  } else if (x->dim_size(2) != columns) {
    return InvalidArgument("x must have ", columns, " columns without w, got shape ",
                           x->shape().DebugString());
  }
  if (has_bias) {
    const TensorShape biases({columns + (resets_product ? args.hidden : 0)});
    TF_RETURN_IF_ERROR(CheckShape("b", *b, biases));
    TF_RETURN_IF_ERROR(b_.Init(ctx, *b));
    args.b = b_.data();
    if (resets_product) args.recurrent_b = args.b + columns;
  }
  args.goes_on = [manager = ctx->cancellation_manager()] {
    return manager == nullptr || !manager->IsCancelled();
  };
  return InitMask(ctx, *x);
}

template <typename T, typename S>
absl::Status SequenceInputs<T, S>::InitMask(OpKernelContext* ctx, const Tensor& x) {
  const Tensor* lengths;
  const Tensor* mask;
  TF_RETURN_IF_ERROR(Optional(ctx, "lengths", &lengths));
  TF_RETURN_IF_ERROR(Optional(ctx, "mask", &mask));
  if (lengths != nullptr && mask != nullptr) {
    return InvalidArgument("lengths and a mask exclude one another");
  }
  if (lengths != nullptr) {
    TF_RETURN_IF_ERROR(CheckShape("lengths", *lengths, TensorShape({args.batch})));
    args.lengths = DataOf<int64_t>(*lengths);
    for (int64_t row = 0; row < args.batch; ++row) {
      if (args.lengths[row] < 0 || args.lengths[row] > args.num_steps) {
        return InvalidArgument("sequence_lengths must be from 0 to the number of steps, ",
                               args.num_steps, ", got ", args.lengths[row], " at position ", row);
      }
    }
  }
  if (mask != nullptr) {
    TF_RETURN_IF_ERROR(CheckShape("mask", *mask, TensorShape({x.dim_size(0), x.dim_size(1)})));
    args.mask = {DataOf<bool>(*mask), step_rows, batch_rows};
  }
  return absl::OkStatus();
}

// What a gradient takes, in order: where it is, and its shape.
template <typename S>
struct Saved {
  S** data;
  TensorShape shape;
};

template <typename S>
std::vector<Saved<S>> SavedOf(SequenceArgs<S>* args) {
  const TensorShape states({args->num_steps, args->batch, args->hidden});
  const TensorShape gates({args->num_steps, args->batch, NumSavedGates(args->kind), args->hidden});
  std::vector<Saved<S>> saved;
  if (NumSavedGates(args->kind) > 0) saved.push_back({&args->gates, gates});
  if (args->kind == CellKind::kLstm) saved.push_back({&args->saved_c, states});
  if (args->kind == CellKind::kRnn || args->mask.data != nullptr || args->lengths != nullptr) {
    saved.push_back({&args->saved_h, states});
  }
  return saved;
}

absl::Status CheckNumSaved(int given, int expected) {
  if (given == expected) return absl::OkStatus();
  return InvalidArgument("num_saved must be ", expected, " for this cell, got ", given);
}

template <typename T, typename S>
class RecurrentSequenceOp : public tensorflow::OpKernel {
 public:
  explicit RecurrentSequenceOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) {
    SequenceInputs<T, S> inputs;
    TF_RETURN_IF_ERROR(inputs.Init(ctx, spec_));
    SequenceArgs<S>& args = inputs.args;
    const bool is_lstm = args.kind == CellKind::kLstm;
    Rounded<T, S> y, last_h, last_c;
    TF_RETURN_IF_ERROR(y.Init(ctx, 0, inputs.output_shape));
    TF_RETURN_IF_ERROR(last_h.Init(ctx, 1, inputs.state_shape));
    args.y = {y.data(), inputs.step_rows * args.hidden, inputs.batch_rows * args.hidden};
    args.h = last_h.data();
    if (is_lstm) {
      TF_RETURN_IF_ERROR(last_c.Init(ctx, 2, inputs.state_shape));
      args.c = last_c.data();
    }
    int output = is_lstm ? 3 : 2;
    if (output < ctx->num_outputs()) {
      const std::vector<Saved<S>> saved = SavedOf(&args);
      TF_RETURN_IF_ERROR(CheckNumSaved(ctx->num_outputs() - output, saved.size()));
      for (const auto& [data, shape] : saved) {
        // Nobody may read it.
        const bool is_required = ctx->output_required(output);
        Tensor* tensor;
        TF_RETURN_IF_ERROR(
            ctx->allocate_output(output++, is_required ? shape : TensorShape({0}), &tensor));
        if (is_required) *data = tensor->flat<S>().data();
      }
    }
    Threads threads(ctx);
    RunSequence(args, &threads);
    if (!args.goes_on()) return absl::CancelledError("the sequence was cancelled");
    y.Finish();
    last_h.Finish();
    if (is_lstm) last_c.Finish();
    return absl::OkStatus();
  }

  RecurrentSpec spec_;
};

template <typename T, typename S>
class RecurrentSequenceGradOp : public tensorflow::OpKernel {
 public:
  explicit RecurrentSequenceGradOp(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, spec_.Init(ctx));
    OP_REQUIRES(ctx, std::isinf(spec_.clip),
                absl::UnimplementedError("there is no gradient of a clipped sequence"));
  }

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) {
    SequenceInputs<T, S> inputs;
    TF_RETURN_IF_ERROR(inputs.Init(ctx, spec_));
    SequenceGradientArgs<S> args{};
    args.sequence = inputs.args;
    SequenceArgs<S>& sequence = args.sequence;
    const bool is_lstm = sequence.kind == CellKind::kLstm;

    const Tensor* y;
    const Tensor* grad_y;
    const Tensor* grad_last_h;
    const Tensor* grad_last_c;
    TF_RETURN_IF_ERROR(ctx->input("y", &y));
    TF_RETURN_IF_ERROR(ctx->input("grad_y", &grad_y));
    TF_RETURN_IF_ERROR(ctx->input("grad_last_h", &grad_last_h));
    TF_RETURN_IF_ERROR(Optional(ctx, "grad_last_c", &grad_last_c));
    TF_RETURN_IF_ERROR(CheckShape("y", *y, inputs.output_shape));
    TF_RETURN_IF_ERROR(CheckShape("grad_y", *grad_y, inputs.output_shape));
    TF_RETURN_IF_ERROR(CheckShape("grad_last_h", *grad_last_h, inputs.state_shape));
    Widened<T, S> wide_y, wide_grad_y, wide_grad_h, wide_grad_c;
    TF_RETURN_IF_ERROR(wide_y.Init(ctx, *y));
    TF_RETURN_IF_ERROR(wide_grad_y.Init(ctx, *grad_y));
    TF_RETURN_IF_ERROR(wide_grad_h.Init(ctx, *grad_last_h));
    const int64_t step_stride = inputs.step_rows * sequence.hidden;
    const int64_t row_stride = inputs.batch_rows * sequence.hidden;
    // It is read alone.
    sequence.y = {const_cast<S*>(wide_y.data()), step_stride, row_stride};
    args.dy = {wide_grad_y.data(), step_stride, row_stride};
    args.dh = wide_grad_h.data();
    if (is_lstm) {
      TF_RETURN_IF_ERROR(CheckShape("grad_last_c", *grad_last_c, inputs.state_shape));
      TF_RETURN_IF_ERROR(wide_grad_c.Init(ctx, *grad_last_c));
      args.dc = wide_grad_c.data();
    }
    tensorflow::OpInputList saved;
    TF_RETURN_IF_ERROR(ctx->input_list("saved", &saved));
    const std::vector<Saved<S>> expected = SavedOf(&sequence);
    TF_RETURN_IF_ERROR(CheckNumSaved(saved.size(), expected.size()));
    for (int i = 0; i < saved.size(); ++i) {
      TF_RETURN_IF_ERROR(CheckShape("saved", saved[i], expected[i].shape));
      *expected[i].data = const_cast<S*>(saved[i].flat<S>().data());
    }

    // In the order of the inputs, of which they have the shapes.
    Rounded<T, S> outputs[6];
    int output = 0;
    const auto allocate = [&](S** data) {
      Rounded<T, S>& rounded = outputs[output];
      const absl::Status status = rounded.Init(ctx, output, ctx->input(output).shape());
      if (status.ok()) *data = rounded.data();
      ++output;
      return status;
    };
    TF_RETURN_IF_ERROR(allocate(&args.dx.data));
    args.dx.step_stride = sequence.x.step_stride;
    args.dx.row_stride = sequence.x.row_stride;
    TF_RETURN_IF_ERROR(allocate(&args.dh0));
    if (is_lstm) TF_RETURN_IF_ERROR(allocate(&args.dc0));
    if (inputs.has_weights) TF_RETURN_IF_ERROR(allocate(&args.dw));
    TF_RETURN_IF_ERROR(allocate(&args.dr));
    if (inputs.has_bias) {
      TF_RETURN_IF_ERROR(allocate(&args.db));
      if (sequence.recurrent_b != nullptr) {
        args.drecurrent_b = args.db + NumGates(sequence.kind) * sequence.hidden;
      }
    }
    Threads threads(ctx);
    RunSequenceGradient(args, &threads);
    if (!sequence.goes_on()) return absl::CancelledError("the sequence was cancelled");
    for (int i = 0; i < output; ++i) outputs[i].Finish();
    return absl::OkStatus();
  }

  RecurrentSpec spec_;
};

#define TF_TI_REGISTER_OP(name, kernel, T, S)                                                  \
  REGISTER_KERNEL_BUILDER(                                                                     \
      Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T").TypeConstraint<S>("S"), \
      kernel<T, S>)
#define TF_TI_REGISTER(T, S)                                              \
  TF_TI_REGISTER_OP("TfTi>RecurrentSequence", RecurrentSequenceOp, T, S); \
  TF_TI_REGISTER_OP("TfTi>RecurrentSequenceGrad", RecurrentSequenceGradOp, T, S)
TF_TI_REGISTER(float, float);
TF_TI_REGISTER(double, double);
TF_TI_REGISTER(Eigen::half, float);
TF_TI_REGISTER(tensorflow::bfloat16, float);

}  // namespace
}  // namespace tf_ti
