#include <algorithm>
#include <functional>
#include <vector>

#include "cc/compute/buffer.h"
#include "cc/compute/recurrent/parts.h"
#include "cc/compute/recurrent/sequence.h"
#include "cc/compute/recurrent/team.h"

namespace tf_ti {
namespace {

template <typename S>
class SequenceGradient {
 public:
  SequenceGradient(const SequenceGradientArgs<S>& args, Parallel* parallel)
      : args_(args),
        sequence_(args.sequence),
        parallel_(parallel),
        cells_(ChooseCellLoops<S>(sequence_.kind)),
        loops_(ChoosePanelLoops<S>(4)),
        num_gates_(NumGates(sequence_.kind)),
        num_steps_(sequence_.num_steps),
        batch_(sequence_.batch),
        hidden_(sequence_.hidden),
        num_columns_(num_gates_ * hidden_),
        num_panels_((hidden_ + loops_.width() - 1) / loops_.width()),
        state_stride_(num_panels_ * loops_.width()),
        has_mask_(sequence_.mask.data != nullptr || sequence_.lengths != nullptr) {}

  void Run();

 private:
  static constexpr int kUpdate = 0, kReset = 1, kState = 2;  // the gates of a GRU

  void FindActive();
  void ForRanges(int64_t count, int64_t size, const std::function<void(int64_t, int64_t)>& work);
  void CopyStates();
  void Pack(int64_t panel);
  void MultiplyGate(int64_t step, int gate, const Part& part, S* to);
  void Cell(int64_t step, int phase, const Part& part);
  void FirstHalf(int64_t index, const Part& part);
  void SecondHalf(int64_t index, const Part& part);
  void CopyInputs(S* to);
  void Finish();
  Product<S> ForWeights(const S* inputs, int64_t num_inputs, const S* gradients,
                        int64_t gradients_stride, int64_t num_columns, const Matrix<S>& weights,
                        int64_t first_column, S* out) const;

  int64_t StepAt(int64_t index) const {
    // The last step first.
    return sequence_.reverse ? index : num_steps_ - 1 - index;
  }
  S* StatesBefore(int64_t step) {
    return states_.data() + (sequence_.reverse ? step + 1 : step) * batch_ * hidden_;
  }
  S* StatesAfter(int64_t step) {
    return states_.data() + (sequence_.reverse ? step : step + 1) * batch_ * hidden_;
  }
  // True if a step is for a row; `row` counts the rows of all steps.
  bool IsActive(int64_t row) const { return !has_mask_ || is_active_[row] != 0; }
  // A gate's columns of a step's gradients.
  S* GateGradients(int64_t step, int64_t row, int gate) {
    return dgates_.data() + (step * batch_ + row) * num_columns_ +
           sequence_.gate_positions[gate] * hidden_;
  }
  S* ResetGradients(int64_t step, int64_t row) {
    return dreset_.data() + (step * batch_ + row) * hidden_;
  }
  S* Packed(int gate, int64_t panel) {
    return packed_.data() + (gate * num_panels_ + panel) * loops_.width() * hidden_;
  }

  const SequenceGradientArgs<S>& args_;
  const SequenceArgs<S>& sequence_;
  Parallel* const parallel_;
  const CellLoops<S> cells_;
  const PanelLoops<S> loops_;
  const int num_gates_;
  const int64_t num_steps_;
  const int64_t batch_;
  const int64_t hidden_;
  const int64_t num_columns_;
  const int64_t num_panels_;
  const int64_t state_stride_;
  const bool has_mask_;

  Buffer<uint8_t> is_active_;  // [steps, batch]
  Buffer<uint8_t> is_shown_;
  Buffer<S> states_;  // [steps + 1, batch, hidden]: of h, in the order of time
  Buffer<S> packed_;  // each gate's part of r, transposed
  Buffer<S> dgates_;  // [steps, batch, gates * hidden]: by the arguments of activations
  Buffer<S> dreset_;  // [steps, batch, hidden]: by the product that is reset, where it is apart
  Buffer<S> dh_;
  Buffer<S> dc_;
  Buffer<S> dreset_h_;
};

template <typename S>
void SequenceGradient<S>::FindActive() {
  if (!has_mask_) return;
  is_active_ = Buffer<uint8_t>(num_steps_ * batch_);
  is_shown_ = Buffer<uint8_t>(num_steps_ * batch_);
  for (int64_t row = 0; row < batch_; ++row) {
    bool is_shown = false;
    for (int64_t index = num_steps_ - 1; index >= 0; --index) {
      const int64_t step = StepAt(index);
      const bool is_active = sequence_.lengths != nullptr ? step < sequence_.lengths[row]
                                                          : *sequence_.mask.At(step, row);
      is_shown = is_active || (sequence_.hold_output && is_shown);
      is_active_[step * batch_ + row] = is_active;
      is_shown_[step * batch_ + row] = is_shown;
    }
  }
}

// Calls work(begin, end) for parts of `count` things, each of so many numbers.
template <typename S>
void SequenceGradient<S>::ForRanges(int64_t count, int64_t size,
                                    const std::function<void(int64_t, int64_t)>& work) {
  const int64_t parts = std::min(NumParts(*parallel_, 1.0 * count * size * sizeof(S)), count);
  parallel_->Run(parts, [&](int64_t i) { work(count * i / parts, count * (i + 1) / parts); });
}

template <typename S>
void SequenceGradient<S>::CopyStates() {
  states_ = Buffer<S>((num_steps_ + 1) * batch_ * hidden_);
  const int64_t first = StepAt(num_steps_ - 1);
  std::copy_n(sequence_.h0, batch_ * hidden_, StatesBefore(first));
  ForRanges(num_steps_, batch_ * hidden_, [&](int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      for (int64_t row = 0; row < batch_; ++row) {
        const S* const h = sequence_.saved_h != nullptr
                               ? sequence_.saved_h + (step * batch_ + row) * hidden_
                               : sequence_.y.At(step, row);
        std::copy_n(h, hidden_, StatesAfter(step) + row * hidden_);
      }
    }
  });
}

template <typename S>
void SequenceGradient<S>::Pack(int64_t panel) {
  const Matrix<S>& r = sequence_.r;
  for (int gate = 0; gate < num_gates_; ++gate) {
    const Matrix<S> turned{r.data + sequence_.gate_positions[gate] * hidden_ * r.column_stride,
                           r.column_stride, r.row_stride};
    ColumnRun runs[4];
    for (int64_t v = 0; v < 4; ++v) {
      const int64_t first = std::min(panel * loops_.width() + v * loops_.lanes, hidden_);
      runs[v] = {first, std::min(hidden_ - first, loops_.lanes)};
    }
    loops_.pack(turned, hidden_, runs, Packed(gate, panel));
  }
}

// Adds the part that comes by way of a gate to `to`, the gradient by states.
template <typename S>
void SequenceGradient<S>::MultiplyGate(int64_t step, int gate, const Part& part, S* to) {
  const bool is_apart = sequence_.kind == CellKind::kGruLinearBeforeReset && gate == kState;
  const Matrix<S> left =
      is_apart ? Matrix<S>{ResetGradients(step, part.row_begin), hidden_, 1}
               : Matrix<S>{GateGradients(step, part.row_begin, gate), num_columns_, 1};
  for (int64_t panel = part.block_begin; panel < part.block_end; ++panel) {
    S* const columns = to + part.row_begin * state_stride_ + panel * loops_.width();
    loops_.multiply(left, part.num_rows(), hidden_, Packed(gate, panel), columns, state_stride_,
                    columns, state_stride_);
  }
}

template <typename S>
void SequenceGradient<S>::Cell(int64_t step, int phase, const Part& part) {
  const int64_t unit = part.block_begin * loops_.width();
  const int64_t row = step * batch_ + part.row_begin;
  const int64_t saved = row * hidden_ + unit;
  const int64_t in_states = part.row_begin * hidden_ + unit;
  const int64_t state = part.row_begin * state_stride_ + unit;
  const int64_t num_saved = NumSavedGates(sequence_.kind);
  CellGradientStep<S> cell{};
  cell.num_rows = part.num_rows();
  cell.num_units = std::min(part.block_end * loops_.width(), hidden_) - unit;
  cell.activations = sequence_.activations;
  if (has_mask_) {
    cell.is_active = is_active_.data() + row;
    cell.is_shown = is_shown_.data() + row;
  }
  cell.gates_stride = num_saved * hidden_;
  cell.arguments_stride = num_columns_;
  cell.gate_stride = cell.saved_stride = hidden_;
  if (sequence_.gates != nullptr) cell.gates = sequence_.gates + row * cell.gates_stride + unit;
  if (sequence_.arguments != nullptr)
    cell.arguments = sequence_.arguments + row * num_columns_ + unit;
  if (sequence_.kind == CellKind::kLstm) {
    const int64_t before = sequence_.reverse ? step + 1 : step - 1;
    const S* const last_c = before < 0 || before == num_steps_
                                ? sequence_.c0
                                : sequence_.saved_c + before * batch_ * hidden_;
    cell.last_c = last_c + in_states;
    cell.c = sequence_.saved_c + saved;
  }
  cell.last_h = StatesBefore(step) + in_states;
  cell.h = StatesAfter(step) + in_states;
  cell.dy = args_.dy.At(step, part.row_begin) + unit;
  cell.dy_stride = args_.dy.row_stride;
  cell.dh = dh_.data() + state;
  if (dc_.size() > 0) cell.dc = dc_.data() + state;
  if (dreset_h_.size() > 0) cell.dreset_h = dreset_h_.data() + state;
  cell.state_stride = state_stride_;
  for (int gate = 0; gate < num_gates_; ++gate) {
    cell.dgates[gate] = GateGradients(step, part.row_begin, gate) + unit;
  }
  cell.dgates_stride = num_columns_;
  if (dreset_.size() > 0) cell.dreset = ResetGradients(step, part.row_begin) + unit;
  cell.dreset_stride = hidden_;
  cells_.gradient_phases[phase](cell);
}

// The products that the step before left, and the activations of this one. All gates of a step must
// be done before its second half begins, or the first half of the next index.
template <typename S>
void SequenceGradient<S>::FirstHalf(int64_t index, const Part& part) {
  if (index > 0) {
    for (int gate = 0; gate < num_gates_; ++gate) {
      // The product that is reset has been done in the second half.
      if (sequence_.kind == CellKind::kGru && gate == kState) continue;
      MultiplyGate(StepAt(index - 1), gate, part, dh_.data());
    }
  }
  if (index < num_steps_) Cell(StepAt(index), 0, part);
}

// The gradient by the state that is reset before it is multiplied.
template <typename S>
void SequenceGradient<S>::SecondHalf(int64_t index, const Part& part) {
  const int64_t begin = part.block_begin * loops_.width();
  const int64_t end = part.block_end * loops_.width();
  for (int64_t row = part.row_begin; row < part.row_end; ++row) {
    std::fill_n(dreset_h_.data() + row * state_stride_ + begin, end - begin, S(0));
  }
  MultiplyGate(StepAt(index), kState, part, dreset_h_.data());
  Cell(StepAt(index), 1, part);
}

// The gradient by some columns of the weights, whose inputs [depth, num_inputs] are given.
template <typename S>
Product<S> SequenceGradient<S>::ForWeights(const S* inputs, int64_t num_inputs, const S* gradients,
                                           int64_t gradients_stride, int64_t num_columns,
                                           const Matrix<S>& weights, int64_t first_column,
                                           S* out) const {
  const int64_t depth = num_steps_ * batch_;
  const Matrix<S> left{inputs, 1, num_inputs};
  const Matrix<S> right{gradients, gradients_stride, 1};
  if (weights.column_stride == 1) {
    return {left, right, num_inputs, depth, num_columns, out + first_column, weights.row_stride};
  }
  const auto turn = [](const Matrix<S>& matrix) {
    return Matrix<S>{matrix.data, matrix.column_stride, matrix.row_stride};
  };
  return {turn(right),          turn(left),
          num_columns,          depth,
          num_inputs,           out + first_column * weights.column_stride,
          weights.column_stride};
}

// The inputs in the order of steps, [depth, input].
template <typename S>
void SequenceGradient<S>::CopyInputs(S* to) {
  const int64_t input = sequence_.input;
  ForRanges(num_steps_, batch_ * input, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * batch_; row < end * batch_; ++row) {
      // Numbers in padding make no difference, even NaN.
      if (IsActive(row)) {
        std::copy_n(sequence_.x.At(row / batch_, row % batch_), input, to + row * input);
      } else {
        std::fill_n(to + row * input, input, S(0));
      }
    }
  });
}

template <typename S>
void SequenceGradient<S>::Finish() {
  const int64_t depth = num_steps_ * batch_;
  const auto store_states = [&](const Buffer<S>& from, S* to) {
    StoreStates(from, batch_, hidden_, state_stride_, to);
  };
  store_states(dh_, args_.dh0);
  if (args_.dc0 != nullptr) store_states(dc_, args_.dc0);

  const auto add_up = [&](const Buffer<S>& rows, int64_t width, S* sums) {
    // So many columns at a time that no two threads write to one cache line in turns.
    constexpr int64_t kColumns = 64;
    ForRanges((width + kColumns - 1) / kColumns, kColumns * depth, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kColumns; first < std::min(end * kColumns, width);
           first += kColumns) {
        const int64_t count = std::min(kColumns, width - first);
        S some[kColumns] = {};
        for (int64_t row = 0; row < depth; ++row) {
          const S* const numbers = rows.data() + row * width + first;
          for (int64_t i = 0; i < count; ++i) some[i] += numbers[i];
        }
        std::copy_n(some, count, sums + first);
      }
    });
  };
  if (args_.db != nullptr) add_up(dgates_, num_columns_, args_.db);
  if (args_.drecurrent_b != nullptr) add_up(dreset_, hidden_, args_.drecurrent_b);

  std::vector<Product<S>> products;
  S* const last_h = StatesBefore(0);  // and of the other steps, in the order of time
  const auto by_recurrent_weights = [&](int gate, const S* gradients, int64_t stride,
                                        int64_t num_columns) {
    return ForWeights(last_h, hidden_, gradients, stride, num_columns, sequence_.r,
                      sequence_.gate_positions[gate] * hidden_, args_.dr);
  };
  const auto of_gate = [&](int gate) {
    const int64_t column = sequence_.gate_positions[gate] * hidden_;
    return by_recurrent_weights(gate, dgates_.data() + column, num_columns_, hidden_);
  };
  switch (sequence_.kind) {
    case CellKind::kGru:
      products = {of_gate(kUpdate), of_gate(kReset)};
      break;
    case CellKind::kGruLinearBeforeReset:
      products = {of_gate(kUpdate), of_gate(kReset),
                  by_recurrent_weights(kState, dreset_.data(), hidden_, hidden_)};
      break;
    default:
      products = {ForWeights(last_h, hidden_, dgates_.data(), num_columns_, num_columns_,
                             sequence_.r, 0, args_.dr)};
  }

  const int64_t input = sequence_.input;
  const auto scatter = [&](const S* rows) {
    ForRanges(num_steps_, batch_ * input, [&](int64_t begin, int64_t end) {
      for (int64_t step = begin; step < end; ++step) {
        for (int64_t row = 0; row < batch_; ++row) {
          std::copy_n(rows + (step * batch_ + row) * input, input, args_.dx.At(step, row));
        }
      }
    });
  };
  const auto is_in_order = [&](const auto& by_step) {
    return by_step.row_stride == input && by_step.step_stride == batch_ * input;
  };
  Buffer<S> x_copy, dx_copy;
  if (!sequence_.is_projected) {
    const S* x = sequence_.x.data;
    if (has_mask_ || !is_in_order(sequence_.x)) {
      x_copy = Buffer<S>(depth * input);
      CopyInputs(x_copy.data());
      x = x_copy.data();
    }
    products.push_back(
        ForWeights(x, input, dgates_.data(), num_columns_, num_columns_, sequence_.w, 0, args_.dw));
    const Matrix<S>& w = sequence_.w;
    S* dx = args_.dx.data;
    if (!is_in_order(args_.dx)) {
      dx_copy = Buffer<S>(depth * input);
      dx = dx_copy.data();
    }
    products.push_back({{dgates_.data(), num_columns_, 1},
                        {w.data, w.column_stride, w.row_stride},
                        depth,
                        num_columns_,
                        input,
                        dx,
                        input});
  }
  MultiplyMatrices(products, parallel_);
  if (sequence_.kind == CellKind::kGru) {
    // The states are not read again: their memory now holds factors of products.
    ForRanges(depth, hidden_, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const S* const reset =
            sequence_.gates + (row * NumSavedGates(sequence_.kind) + kReset) * hidden_;
        for (int64_t i = 0; i < hidden_ && IsActive(row); ++i)
          last_h[row * hidden_ + i] *= reset[i];
      }
    });
    MultiplyMatrices<S>({of_gate(kState)}, parallel_);
  }
  if (sequence_.is_projected) {
    scatter(dgates_.data());
  } else if (dx_copy.size() > 0) {
    scatter(dx_copy.data());
  }
}

template <typename S>
void SequenceGradient<S>::Run() {
  FindActive();
  CopyStates();
  const int64_t num_states = batch_ * state_stride_;
  const auto load_states = [&](const S* from) {
    return LoadStates(from, batch_, hidden_, state_stride_);
  };
  dh_ = load_states(args_.dh);
  if (sequence_.kind == CellKind::kLstm) dc_ = load_states(args_.dc);
  if (sequence_.kind == CellKind::kGru) dreset_h_ = Buffer<S>(num_states);
  if (sequence_.kind == CellKind::kGruLinearBeforeReset) {
    dreset_ = Buffer<S>(num_steps_ * batch_ * hidden_);
  }
  dgates_ = Buffer<S>(num_steps_ * batch_ * num_columns_);
  packed_ = Buffer<S>(num_gates_ * num_panels_ * loops_.width() * hidden_);

  const double weights = static_cast<double>(hidden_) * num_columns_;
  const Parts split = SplitSteps({num_steps_, batch_, num_panels_, weights, weights * sizeof(S),
                                  /*activations=*/2.0 * hidden_, /*other_weights=*/0},
                                 *parallel_);
  const int64_t count = split.parts.size();
  if (num_steps_ > 0) {
    const int64_t pack_steps = (num_panels_ + count - 1) / count;
    const int64_t halves = sequence_.kind == CellKind::kGru ? 2 : 1;
    const auto work = [&](int64_t step, int64_t i) {
      if (step < pack_steps) {
        const int64_t panel = num_panels_ * i / count + step;
        if (panel < num_panels_ * (i + 1) / count) Pack(panel);
        return;
      }
      const int64_t round = step - pack_steps;
      round % halves == 0 ? FirstHalf(round / halves, split.parts[i])
                          : SecondHalf(round / halves, split.parts[i]);
    };
    const int64_t num_steps = pack_steps + num_steps_ * halves + 1;
    RunSteps({num_steps, split.by_units ? num_steps : pack_steps, work, sequence_.goes_on}, count,
             parallel_);
  }
  if (sequence_.goes_on()) Finish();
}

}  // namespace

template <typename S>
void RunSequenceGradient(const SequenceGradientArgs<S>& args, Parallel* parallel) {
  SequenceGradient<S>(args, parallel).Run();
}

template void RunSequenceGradient<float>(const SequenceGradientArgs<float>&, Parallel*);
template void RunSequenceGradient<double>(const SequenceGradientArgs<double>&, Parallel*);

}  // namespace tf_ti
