// Recurrent sequences by definition, in plain loops: the oracle of sequence_test.cc and, with
// numbers that remember how they came about, of sequence_gradient_test.cc.
#ifndef TF_TI_CC_COMPUTE_RECURRENT_TESTING_SEQUENCE_ORACLE_H_
#define TF_TI_CC_COMPUTE_RECURRENT_TESTING_SEQUENCE_ORACLE_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "cc/compute/recurrent/sequence.h"

namespace tf_ti {

// A number that a gradient can be taken by: an operation notes its arguments and its slopes.
class Traced {
 public:
  struct Operation {
    int64_t arguments[3];
    double slopes[3];
  };
  // All operations since it was cleared.
  static std::vector<Operation>& tape() {
    static std::vector<Operation> tape;
    return tape;
  }

  // A constant.
  Traced(double value = 0) : value_(value) {}
  static Traced Variable(double value) { return Of(value, {}, 0, {}, 0); }
  static Traced Of(double value, const Traced& x, double by_x, const Traced& y = {},
                   double by_y = 0, const Traced& z = {}, double by_z = 0) {
    Traced result(value);
    result.id_ = tape().size();
    tape().push_back({{x.id_, y.id_, z.id_}, {by_x, by_y, by_z}});
    return result;
  }

  double value() const { return value_; }
  int64_t id() const { return id_; }

  // The gradients of this number by all operations.
  std::vector<double> Gradients() const {
    std::vector<double> gradients(tape().size(), 0);
    if (id_ >= 0) gradients[id_] = 1;
    for (int64_t i = id_; i >= 0; --i) {
      for (int k = 0; k < 3; ++k) {
        const int64_t argument = tape()[i].arguments[k];
        if (argument >= 0) gradients[argument] += gradients[i] * tape()[i].slopes[k];
      }
    }
    return gradients;
  }

 private:
  double value_;
  int64_t id_ = -1;  // of the operation; -1: a constant
};

// x * y + z, and the rest of the arithmetic that cells need, for numbers and for traced ones.
inline long double MultiplyAdd(long double x, long double y, long double z) { return x * y + z; }
inline Traced MultiplyAdd(const Traced& x, const Traced& y, const Traced& z) {
  return Traced::Of(x.value() * y.value() + z.value(), x, y.value(), y, x.value(), z, 1);
}
inline double Value(long double x) { return static_cast<double>(x); }
inline double Value(const Traced& x) { return x.value(); }
inline long double Sigmoid(long double x) { return 1 / (1 + std::exp(-x)); }
inline Traced Sigmoid(const Traced& x) {
  const double y = 1 / (1 + std::exp(-x.value()));
  return Traced::Of(y, x, y * (1 - y));
}
inline long double Tanh(long double x) { return std::tanh(x); }
inline Traced Tanh(const Traced& x) {
  const double y = std::tanh(x.value());
  return Traced::Of(y, x, 1 - y * y);
}

template <typename R, typename S>
R ActivateByDefinition(const Activation<S>& activation, const R& x) {
  const R alpha = activation.alpha, beta = activation.beta;
  switch (activation.function) {
    case ActivationFunction::kSigmoid:
      return Sigmoid(x);
    case ActivationFunction::kTanh:
      return Tanh(x);
    case ActivationFunction::kRelu:
      return Value(x) > 0 ? x : R(0);
    case ActivationFunction::kAffine:
      return MultiplyAdd(alpha, x, beta);
    case ActivationFunction::kHardSigmoid: {
      const R y = MultiplyAdd(alpha, x, beta);
      return Value(y) < 0 ? R(0) : Value(y) > 1 ? R(1) : y;
    }
    case ActivationFunction::kLeakyRelu:
      return Value(x) > 0 ? x : MultiplyAdd(alpha, x, R(0));
    case ActivationFunction::kScaledTanh:
      return MultiplyAdd(alpha, Tanh(MultiplyAdd(beta, x, R(0))), R(0));
  }
  return x;
}

// What a sequence is given, densely: x [steps, batch, input], or [steps, batch, columns] where it
// is projected; w [input, columns]; r [hidden, columns]. The columns of gate k are those of block
// gate_positions[k].
template <typename R>
struct Given {
  std::vector<R> x, h0, c0, w, r, b, recurrent_b;
};

// What comes out: for each step [batch, hidden], and at the end.
template <typename R>
struct Results {
  std::vector<R> y, saved_h, saved_c;
  std::vector<R> gates;      // [steps, batch, kMostGates, hidden]; 0 where a step is not for a row
  std::vector<R> arguments;  // likewise: of the activations
  std::vector<R> h, c;
};

// Of `args` only sizes, options and masks are read.
template <typename R, typename S>
Results<R> RunByDefinition(const SequenceArgs<S>& args, const Given<R>& given) {
  const int64_t steps = args.num_steps, batch = args.batch, input = args.input;
  const int64_t hidden = args.hidden, columns = NumGates(args.kind) * hidden;
  Results<R> results;
  results.h = given.h0;
  results.c = given.c0;
  const int64_t of_steps = steps * batch * hidden;
  results.y = results.saved_h = results.saved_c = std::vector<R>(of_steps, R(0));
  results.gates = results.arguments = std::vector<R>(of_steps * kMostGates, R(0));
  std::vector<bool> has_run(batch, false);

  for (int64_t index = 0; index < steps; ++index) {
    const int64_t step = args.reverse ? steps - 1 - index : index;
    for (int64_t row = 0; row < batch; ++row) {
      const int64_t at = (step * batch + row) * hidden;
      R* const h = results.h.data() + row * hidden;
      R* const c = args.kind == CellKind::kLstm ? results.c.data() + row * hidden : nullptr;
      const bool is_active = args.lengths != nullptr     ? step < args.lengths[row]
                             : args.mask.data != nullptr ? *args.mask.At(step, row)
                                                         : true;
      if (is_active) {
        // Of gate k and unit i: the parts that come from x, and from states.
        const auto from_x = [&](int k, int64_t i) {
          const int64_t column = args.gate_positions[k] * hidden + i;
          R sum = given.b.empty() ? R(0) : given.b[column];
          if (args.is_projected) {
            return MultiplyAdd(R(1), given.x[(step * batch + row) * columns + column], sum);
          }
          for (int64_t m = 0; m < input; ++m) {
            sum = MultiplyAdd(given.x[(step * batch + row) * input + m],
                              given.w[m * columns + column], sum);
          }
          return sum;
        };
        const auto add_states = [&](const R* states, int k, int64_t i, R sum) {
          const int64_t column = args.gate_positions[k] * hidden + i;
          for (int64_t m = 0; m < hidden; ++m) {
            sum = MultiplyAdd(states[m], given.r[m * columns + column], sum);
          }
          return sum;
        };
        const auto gate = [&](int k, int activation, int64_t i, R x) {
          if (Value(x) > args.clip) x = R(args.clip);
          if (Value(x) < -args.clip) x = R(-args.clip);
          const R y = ActivateByDefinition(args.activations[activation], x);
          const int64_t place = ((step * batch + row) * kMostGates + k) * hidden + i;
          results.arguments[place] = x;
          results.gates[place] = y;
          return y;
        };
        const R minus_one(-1);
        std::vector<R> next(hidden), reset(hidden);
        for (int64_t i = 0; i < hidden; ++i) {
          const auto sum = [&](int k) { return add_states(h, k, i, from_x(k, i)); };
          switch (args.kind) {
            case CellKind::kLstm: {
              const R f = gate(0, 0, i, sum(0)), in = gate(1, 0, i, sum(1));
              const R g = gate(2, 1, i, sum(2)), o = gate(3, 0, i, sum(3));
              c[i] = MultiplyAdd(f, c[i], MultiplyAdd(in, g, R(0)));
              next[i] = MultiplyAdd(o, ActivateByDefinition(args.activations[2], c[i]), R(0));
              break;
            }
            case CellKind::kGru:
              reset[i] = MultiplyAdd(gate(1, 0, i, sum(1)), h[i], R(0));
              break;
            case CellKind::kGruLinearBeforeReset:
              reset[i] =
                  add_states(h, 2, i, given.recurrent_b.empty() ? R(0) : given.recurrent_b[i]);
              results.gates[((step * batch + row) * kMostGates + 3) * hidden + i] = reset[i];
              break;
            case CellKind::kRnn:
              next[i] = gate(0, 0, i, sum(0));
              break;
          }
        }
        for (int64_t i = 0; i < hidden && NumGates(args.kind) == 3; ++i) {
          const R z = gate(0, 0, i, add_states(h, 0, i, from_x(0, i)));
          R argument;
          if (args.kind == CellKind::kGru) {
            argument = add_states(reset.data(), 2, i, from_x(2, i));
          } else {
            const R r = gate(1, 0, i, add_states(h, 1, i, from_x(1, i)));
            argument = MultiplyAdd(r, reset[i], from_x(2, i));
          }
          const R n = gate(2, 1, i, argument);
          // (1 - z) * n + z * h
          next[i] = MultiplyAdd(MultiplyAdd(minus_one, z, R(1)), n, MultiplyAdd(z, h[i], R(0)));
        }
        for (int64_t i = 0; i < hidden; ++i) h[i] = next[i];
        has_run[row] = true;
      }
      for (int64_t i = 0; i < hidden; ++i) {
        results.saved_h[at + i] = h[i];
        if (c != nullptr) results.saved_c[at + i] = c[i];
        if (is_active || (args.hold_output && has_run[row])) results.y[at + i] = h[i];
      }
    }
  }
  return results;
}

}  // namespace tf_ti

#endif  // TF_TI_CC_COMPUTE_RECURRENT_TESTING_SEQUENCE_ORACLE_H_
