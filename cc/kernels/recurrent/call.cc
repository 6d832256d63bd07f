#include "cc/kernels/recurrent/call.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cc/status.h"

namespace tf_ti {
namespace {

absl::Status CheckLengths(const int64_t* lengths, const SequenceSizes& sizes) {
  for (int64_t row = 0; row < sizes.batch; ++row) {
    if (lengths[row] < 0 || lengths[row] > sizes.num_steps) {
      return InvalidArgument("sequence_lengths must be from 0 to the number of steps, ",
                             sizes.num_steps, ", got ", lengths[row], " at position ", row);
    }
  }
  return absl::OkStatus();
}

}  // namespace

template <typename S>
absl::Status RunRecurrentOp(const CellSpec& spec, const SequenceSizes& sizes,
                            const std::vector<const void*>& inputs,
                            const std::vector<void*>& outputs, std::function<bool()> goes_on,
                            Parallel* parallel) {
  size_t input = 0, output = 0;
  const auto next = [&](bool is_there) -> const void* {
    if (!is_there) return nullptr;
    // Null means that an input is absent: an empty one must have an address too.
    static const int64_t kEmpty = 0;
    const void* const data = inputs[input++];
    return data == nullptr ? &kEmpty : data;
  };
  const auto in = [&](bool is_there = true) { return static_cast<const S*>(next(is_there)); };
  const auto out = [&](bool is_there = true) {
    return is_there ? static_cast<S*>(outputs[output++]) : nullptr;
  };
  const bool is_lstm = spec.is_lstm();
  const int64_t columns = NumGates(spec.kind) * sizes.hidden;
  // The number of rows of x, and of y, between two steps, and between two rows of the batch.
  const int64_t step_rows = spec.time_major ? sizes.batch : 1;
  const int64_t batch_rows = spec.time_major ? 1 : sizes.num_steps;
  const auto by_step = [&](auto* data, int64_t width) {
    return ByStep<std::remove_pointer_t<decltype(data)>>{data, step_rows * width,
                                                         batch_rows * width};
  };
  const auto matrix = [&](const S* data, int64_t rows) {
    return spec.transpose_weights ? Matrix<S>{data, 1, rows} : Matrix<S>{data, columns, 1};
  };

  SequenceArgs<S> args{};
  args.kind = spec.kind;
  args.num_steps = sizes.num_steps;
  args.batch = sizes.batch;
  args.input = sizes.input;
  args.hidden = sizes.hidden;
  args.reverse = spec.reverse;
  args.is_projected = !spec.has_weights;
  args.hold_output = spec.hold_output;
  std::copy_n(spec.gate_positions, kMostGates, args.gate_positions);
  for (int i = 0; i < 3; ++i) {
    const Activation<double>& given = spec.activations[i];
    args.activations[i] = {given.function, static_cast<S>(given.alpha), static_cast<S>(given.beta),
                           given.limits};
  }
  args.clip = static_cast<S>(spec.clip);
  args.goes_on = std::move(goes_on);
  args.x = by_step(in(), sizes.input);
  args.h0 = in();
  args.c0 = in(is_lstm);
  args.w = matrix(in(spec.has_weights), sizes.input);
  args.r = matrix(in(), sizes.hidden);
  args.b = in(spec.has_bias);
  if (spec.has_bias && spec.resets_product()) args.recurrent_b = args.b + columns;
  args.lengths = static_cast<const int64_t*>(next(spec.has_lengths));
  args.mask = by_step(static_cast<const bool*>(next(spec.has_mask)), 1);
  if (spec.has_lengths) TF_RETURN_IF_ERROR(CheckLengths(args.lengths, sizes));

  // An output of the forward op, which is an input of the gradient.
  const auto out_or_in = [&](bool is_there = true) {
    return spec.is_gradient ? const_cast<S*>(in(is_there)) : out(is_there);
  };
  args.y = by_step(out_or_in(), sizes.hidden);
  if (!spec.is_gradient) {
    args.h = out();
    args.c = out(is_lstm);
  }
  const bool saves_arguments = spec.num_saved > 0 && spec.saves_arguments();
  int saved = saves_arguments;
  const auto next_saved = [&] { return out_or_in(saved++ < spec.num_saved); };
  if (NumSavedGates(spec.kind) > 0) args.gates = next_saved();
  if (is_lstm) args.saved_c = next_saved();
  args.saved_h = next_saved();
  args.arguments = out_or_in(saves_arguments);
  SequenceGradientArgs<S> gradient{};
  if (spec.is_gradient) {
    gradient.sequence = args;
    gradient.dy = by_step(in(), sizes.hidden);
    gradient.dh = in();
    gradient.dc = in(is_lstm);
    gradient.dx = by_step(out(), sizes.input);
    gradient.dh0 = out();
    gradient.dc0 = out(is_lstm);
    gradient.dw = out(spec.has_weights);
    gradient.dr = out();
    gradient.db = out(spec.has_bias);
    if (args.recurrent_b != nullptr) gradient.drecurrent_b = gradient.db + columns;
  }
  spec.is_gradient ? RunSequenceGradient(gradient, parallel) : RunSequence(args, parallel);
  return args.goes_on() ? absl::OkStatus() : absl::CancelledError("the sequence was cancelled");
}

template absl::Status RunRecurrentOp<float>(const CellSpec&, const SequenceSizes&,
                                            const std::vector<const void*>&,
                                            const std::vector<void*>&, std::function<bool()>,
                                            Parallel*);
template absl::Status RunRecurrentOp<double>(const CellSpec&, const SequenceSizes&,
                                             const std::vector<const void*>&,
                                             const std::vector<void*>&, std::function<bool()>,
                                             Parallel*);

}  // namespace tf_ti
