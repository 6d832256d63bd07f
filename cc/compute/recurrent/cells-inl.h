// The loops behind cells.h, for one instruction set: see each_instruction_set-inl.h.

#include "cc/compute/recurrent/activations-inl.h"

template <typename S>
constexpr int kLanes = kVectorBytes / sizeof(S);
template <typename S>
using Lane = Vector<S, kLanes<S>>;

template <typename S>
inline Lane<S> LoadLanes(const S* from) {
  return Load<S, kLanes<S>>(from);
}

template <typename S>
inline void StoreLanes(Lane<S> value, S* to) {
  Store<S, kLanes<S>>(value, to);
}

// The first numbers of a vector; all if there are so many.
template <typename S>
[[gnu::always_inline]] inline void StoreSome(Lane<S> value, int64_t count, S* to) {
  if (count >= kLanes<S>) {
    StoreLanes<S>(value, to);
  } else {
    S numbers[kLanes<S>];
    StoreLanes<S>(value, numbers);
    for (int64_t i = 0; i < count; ++i) to[i] = numbers[i];
  }
}

// One vector of units of one row. `usual`: activations are sigmoids and then hyperbolic tangents,
// and nothing is clipped, so that a step becomes one run of instructions.
template <typename S, int block_vectors, bool usual>
struct Units {
  static constexpr int L = kLanes<S>;

  const CellStep<S>& step;
  const int64_t row;
  const int j;          // the number of the vector in the block
  const int64_t count;  // the units that there are in it
  const int64_t state;  // the position of its first unit in states

  Units(const CellStep<S>& step, int64_t row, int j)
      : step(step),
        row(row),
        j(j),
        count(step.num_units - j * L),
        state(row * step.state_stride + j * L) {}

  Lane<S> Sum(int gate) const {
    return LoadLanes<S>(step.sums + row * step.sums_stride + (gate * block_vectors + j) * L);
  }
  Lane<S> Projected(int gate) const {
    return LoadLanes<S>(step.projected + row * step.projected_stride +
                        (gate * block_vectors + j) * L);
  }
  [[gnu::always_inline]] Lane<S> ActivateBy(int activation, Lane<S> x) const {
    if constexpr (usual) return activation == 0 ? Sigmoid<S, L>(x) : Tanh<S, L>(x);
    return Activate<S, L>(step.activations[activation], x);
  }
  // Activates the argument of a gate, and saves what its gradient needs.
  [[gnu::always_inline]] Lane<S> Gate(int gate, int activation, Lane<S> x) const {
    if constexpr (!usual) {
      const S clip = step.clip;
      x = x > clip ? Fill<L>(clip) : x;
      x = x < -clip ? Fill<L>(-clip) : x;
    }
    const Lane<S> y = ActivateBy(activation, x);
    SaveGate(gate, y);
    if constexpr (!usual) {
      if (step.arguments != nullptr) {
        StoreSome<S>(
            x, count,
            step.arguments + row * step.arguments_stride + gate * step.gate_stride + j * L);
      }
    }
    return y;
  }
  bool IsActive() const { return step.is_active == nullptr || step.is_active[row] != 0; }
  [[gnu::always_inline]] void SaveGate(int gate, Lane<S> value) const {
    if (step.gates != nullptr) {
      StoreSome<S>(value, count,
                   step.gates + row * step.gates_stride + gate * step.gate_stride + j * L);
    }
  }
  void Save(Lane<S> value, S* states) const {
    if (states != nullptr) StoreSome<S>(value, count, states + row * step.saved_stride + j * L);
  }
  // A GRU's new state. It is not n + z * (h - n), which is NaN where n is infinite.
  [[gnu::always_inline]] Lane<S> Updated(Lane<S> z, Lane<S> n) const {
    return (1 - z) * n + z * LoadLanes<S>(step.h + state);
  }
  // The new state, or the old one where the step is not for this row.
  [[gnu::always_inline]] void Finish(Lane<S> h) const {
    if (!IsActive()) h = LoadLanes<S>(step.h + state);
    StoreLanes<S>(h, step.next_h + state);
    Save(h, step.saved_h);
    const bool is_shown = step.is_shown == nullptr || step.is_shown[row] != 0;
    StoreSome<S>(is_shown ? h : Lane<S>{}, count, step.y + row * step.y_stride + j * L);
  }
};

// Calls work(units) for all of a step, with an array of one or two.
template <typename S, int block_vectors, bool usual, typename Work>
inline void ForAllUnits(const CellStep<S>& step, const Work& work) {
  using Some = Units<S, block_vectors, usual>;
  int64_t row = 0;
  if constexpr (block_vectors == 1 && usual) {
    // Two rows: while one's activations wait for each other, so do the other's.
    for (; row + 2 <= step.num_rows; row += 2) {
      const Some units[] = {Some(step, row, 0), Some(step, row + 1, 0)};
      work(units);
    }
  }
  for (; row < step.num_rows; ++row) {
    for (int j = 0; j < block_vectors; ++j) {
      const Some units[] = {Some(step, row, j)};
      if (units[0].count > 0) work(units);
    }
  }
}

template <typename S>
inline bool AreUsual(const Activation<S>* activations, int count) {
  bool are_usual = true;
  for (int i = 0; i < count; ++i) {
    const auto expected = i == 0 ? ActivationFunction::kSigmoid : ActivationFunction::kTanh;
    are_usual = are_usual && activations[i].function == expected;
  }
  return are_usual;
}

template <typename S, int block_vectors, int num_activations, typename Work>
inline void ForUnits(const CellStep<S>& step, const Work& work) {
  if (num_activations > 1 && step.clip == S(__builtin_inf()) &&
      AreUsual(step.activations, num_activations)) {
    ForAllUnits<S, block_vectors, true>(step, work);
  } else {
    ForAllUnits<S, block_vectors, false>(step, work);
  }
}

template <typename S>
void StepLstm(const CellStep<S>& step) {
  ForUnits<S, 1, 3>(step, [&](const auto& units) {
    constexpr int N = sizeof(units) / sizeof(units[0]);
    Lane<S> gates[N][4], last_c[N], c[N];
#pragma GCC unroll 2
    for (int k = 0; k < N; ++k) {
      gates[k][0] = units[k].Gate(0, 0, units[k].Sum(0));
      gates[k][1] = units[k].Gate(1, 0, units[k].Sum(1));
      gates[k][2] = units[k].Gate(2, 1, units[k].Sum(2));
      gates[k][3] = units[k].Gate(3, 0, units[k].Sum(3));
      last_c[k] = LoadLanes<S>(step.c + units[k].state);
      c[k] = gates[k][0] * last_c[k] + gates[k][1] * gates[k][2];
    }
#pragma GCC unroll 2
    for (int k = 0; k < N; ++k) {
      const Lane<S> h = gates[k][3] * units[k].ActivateBy(2, c[k]);
      const Lane<S> held_c = units[k].IsActive() ? c[k] : last_c[k];
      StoreLanes<S>(held_c, step.c + units[k].state);
      units[k].Save(held_c, step.saved_c);
      units[k].Finish(h);
    }
  });
}

template <typename S>
void StepGruLinearBeforeReset(const CellStep<S>& step) {
  ForUnits<S, 1, 2>(step, [&](const auto& units) {
    constexpr int N = sizeof(units) / sizeof(units[0]);
    Lane<S> z[N], from_state[N], argument[N];
#pragma GCC unroll 2
    for (int k = 0; k < N; ++k) {
      z[k] = units[k].Gate(0, 0, units[k].Sum(0) + units[k].Projected(0));
      const Lane<S> r = units[k].Gate(1, 0, units[k].Sum(1) + units[k].Projected(1));
      from_state[k] = units[k].Sum(2);
      argument[k] = units[k].Projected(2) + r * from_state[k];
    }
#pragma GCC unroll 2
    for (int k = 0; k < N; ++k) {
      const Lane<S> n = units[k].Gate(2, 1, argument[k]);
      units[k].SaveGate(3, from_state[k]);
      units[k].Finish(units[k].Updated(z[k], n));
    }
  });
}

template <typename S>
void StepGruGates(const CellStep<S>& step) {
  ForUnits<S, 4, 2>(step, [&](const auto& all) {
    const auto& units = all[0];
    const Lane<S> z = units.Gate(0, 0, units.Sum(0));
    const Lane<S> r = units.Gate(1, 0, units.Sum(1));
    StoreLanes<S>(z, step.update + units.state);
    StoreLanes<S>(r * LoadLanes<S>(step.h + units.state), step.reset_h + units.state);
  });
}

template <typename S>
void StepGruState(const CellStep<S>& step) {
  ForUnits<S, 4, 2>(step, [&](const auto& all) {
    const auto& units = all[0];
    const Lane<S> n = units.Gate(2, 1, units.Sum(2));
    units.Finish(units.Updated(LoadLanes<S>(step.update + units.state), n));
  });
}

template <typename S>
void StepRnn(const CellStep<S>& step) {
  ForUnits<S, 4, 1>(
      step, [&](const auto& units) { units[0].Finish(units[0].Gate(0, 0, units[0].Sum(0))); });
}

template <typename S>
[[gnu::always_inline]] inline Lane<S> LoadSome(const S* from, int64_t count) {
  if (count >= kLanes<S>) return LoadLanes<S>(from);
  S numbers[kLanes<S>] = {};
  for (int64_t i = 0; i < count; ++i) numbers[i] = from[i];
  return LoadLanes<S>(numbers);
}

// One vector of units of one row, backwards. `usual`: as above.
template <typename S, bool usual>
struct UnitsGradient {
  static constexpr int L = kLanes<S>;

  const CellGradientStep<S>& step;
  const int64_t row;
  const int64_t unit;
  const int64_t count;
  const int64_t state;

  UnitsGradient(const CellGradientStep<S>& step, int64_t row, int64_t unit)
      : step(step),
        row(row),
        unit(unit),
        count(step.num_units - unit),
        state(row * step.state_stride + unit) {}

  [[gnu::always_inline]] Lane<S> Gate(int gate) const {
    return LoadSome<S>(step.gates + row * step.gates_stride + gate * step.gate_stride + unit,
                       count);
  }
  [[gnu::always_inline]] Lane<S> Saved(const S* states) const {
    return LoadSome<S>(states + row * step.saved_stride + unit, count);
  }
  // The gradient by the state after the step, which the output is a part of.
  [[gnu::always_inline]] Lane<S> ByState() const {
    const Lane<S> dh = LoadLanes<S>(step.dh + state);
    const bool is_shown = step.is_shown == nullptr || step.is_shown[row] != 0;
    return is_shown ? dh + LoadSome<S>(step.dy + row * step.dy_stride + unit, count) : dh;
  }
  // The gradient by a GRU's update gate.
  [[gnu::always_inline]] Lane<S> ByUpdate(Lane<S> dh, Lane<S> n) const {
    return dh * Saved(step.last_h) - dh * n;
  }
  // The gradient by the argument of a gate's activation, from y, its result, and from the gradient
  // by that.
  [[gnu::always_inline]] Lane<S> ThroughGate(int gate, int activation, Lane<S> y,
                                             Lane<S> gradient) const {
    if constexpr (usual) return Through(activation, y, y, gradient);
    const Lane<S> x = step.arguments == nullptr
                          ? y
                          : LoadSome<S>(step.arguments + row * step.arguments_stride +
                                            gate * step.gate_stride + unit,
                                        count);
    return Through(activation, x, y, gradient);
  }
  // Likewise, of any activation with the argument x.
  [[gnu::always_inline]] Lane<S> Through(int activation, Lane<S> x, Lane<S> y,
                                         Lane<S> gradient) const {
    if constexpr (usual) {
      constexpr Activation<S> kSigmoid{ActivationFunction::kSigmoid, 0, 0, 0};
      constexpr Activation<S> kTanh{ActivationFunction::kTanh, 0, 0, 0};
      return Backward<S, L>(activation == 0 ? kSigmoid : kTanh, x, y, gradient);
    }
    return Backward<S, L>(step.activations[activation], x, y, gradient);
  }
  [[gnu::always_inline]] Lane<S> ActivateBy(int activation, Lane<S> x) const {
    if constexpr (usual) return Tanh<S, L>(x);
    return Activate<S, L>(step.activations[activation], x);
  }
  [[gnu::always_inline]] void StoreGate(int gate, Lane<S> value) const {
    StoreSome<S>(value, count, step.dgates[gate] + row * step.dgates_stride + unit);
  }
};

// Calls work(units) for all of a step, and rest(units) where the step is not for the row.
template <typename S, bool usual, typename Work, typename Rest>
inline void ForAllUnitsGradient(const CellGradientStep<S>& step, const Work& work,
                                const Rest& rest) {
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const bool is_active = step.is_active == nullptr || step.is_active[row] != 0;
    for (int64_t unit = 0; unit < step.num_units; unit += kLanes<S>) {
      const UnitsGradient<S, usual> units(step, row, unit);
      is_active ? work(units) : rest(units);
    }
  }
}

template <int num_activations, typename S, typename Work, typename Rest>
inline void ForUnitsGradient(const CellGradientStep<S>& step, const Work& work, const Rest& rest) {
  if (num_activations > 1 && AreUsual(step.activations, num_activations)) {
    ForAllUnitsGradient<S, true>(step, work, rest);
  } else {
    ForAllUnitsGradient<S, false>(step, work, rest);
  }
}

// Where states hold, the gradients by them are handed on.
template <typename S, int num_gates, typename Units>
inline void HandOn(const Units& units) {
  StoreLanes<S>(units.ByState(), units.step.dh + units.state);
  for (int gate = 0; gate < num_gates; ++gate) units.StoreGate(gate, Lane<S>{});
}

template <typename S>
void LstmGradient(const CellGradientStep<S>& step) {
  ForUnitsGradient<3>(
      step,
      [&](const auto& units) {
        const Lane<S> f = units.Gate(0), i = units.Gate(1), g = units.Gate(2), o = units.Gate(3);
        const Lane<S> c = units.Saved(step.c);
        const Lane<S> out = units.ActivateBy(2, c);
        const Lane<S> dh = units.ByState();
        const Lane<S> by_out = units.Through(2, c, out, dh * o);
        const Lane<S> dc = LoadLanes<S>(step.dc + units.state) + by_out;
        units.StoreGate(0, units.ThroughGate(0, 0, f, dc * units.Saved(step.last_c)));
        units.StoreGate(1, units.ThroughGate(1, 0, i, dc * g));
        units.StoreGate(2, units.ThroughGate(2, 1, g, dc * i));
        units.StoreGate(3, units.ThroughGate(3, 0, o, dh * out));
        StoreLanes<S>(dc * f, step.dc + units.state);
        StoreLanes<S>(Lane<S>{}, step.dh + units.state);
      },
      [](const auto& units) { HandOn<S, 4>(units); });
}

template <typename S>
void GruLinearBeforeResetGradient(const CellGradientStep<S>& step) {
  const auto store_reset = [&](const auto& units, Lane<S> value) {
    StoreSome<S>(value, units.count, step.dreset + units.row * step.dreset_stride + units.unit);
  };
  ForUnitsGradient<2>(
      step,
      [&](const auto& units) {
        const Lane<S> z = units.Gate(0), r = units.Gate(1), n = units.Gate(2);
        const Lane<S> dh = units.ByState();
        const Lane<S> dn = units.ThroughGate(2, 1, n, dh * (1 - z));
        units.StoreGate(0, units.ThroughGate(0, 0, z, units.ByUpdate(dh, n)));
        units.StoreGate(1, units.ThroughGate(1, 0, r, dn * units.Gate(3)));
        units.StoreGate(2, dn);
        store_reset(units, dn * r);
        StoreLanes<S>(dh * z, step.dh + units.state);
      },
      [&](const auto& units) {
        HandOn<S, 3>(units);
        store_reset(units, Lane<S>{});
      });
}

template <typename S>
void GruStateGradient(const CellGradientStep<S>& step) {
  ForUnitsGradient<2>(
      step,
      [&](const auto& units) {
        const Lane<S> z = units.Gate(0), n = units.Gate(2);
        const Lane<S> dh = units.ByState();
        units.StoreGate(0, units.ThroughGate(0, 0, z, units.ByUpdate(dh, n)));
        units.StoreGate(2, units.ThroughGate(2, 1, n, dh * (1 - z)));
        StoreLanes<S>(dh * z, step.dh + units.state);
      },
      [](const auto& units) { HandOn<S, 3>(units); });
}

template <typename S>
void GruResetGradient(const CellGradientStep<S>& step) {
  ForUnitsGradient<2>(
      step,
      [&](const auto& units) {
        const Lane<S> r = units.Gate(1);
        const Lane<S> dreset_h = LoadLanes<S>(step.dreset_h + units.state);
        units.StoreGate(1, units.ThroughGate(1, 0, r, dreset_h * units.Saved(step.last_h)));
        StoreLanes<S>(LoadLanes<S>(step.dh + units.state) + dreset_h * r, step.dh + units.state);
      },
      [](const auto&) {});
}

template <typename S>
void RnnGradient(const CellGradientStep<S>& step) {
  ForUnitsGradient<1>(
      step,
      [&](const auto& units) {
        units.StoreGate(0, units.ThroughGate(0, 0, units.Saved(step.h), units.ByState()));
        StoreLanes<S>(Lane<S>{}, step.dh + units.state);
      },
      [](const auto& units) { HandOn<S, 1>(units); });
}

template <typename S>
CellLoops<S> CellLoopsOf(CellKind kind) {
  constexpr int L = kLanes<S>;
  switch (kind) {
    case CellKind::kLstm:
      return {L, 1, {StepLstm<S>, nullptr}, {LstmGradient<S>, nullptr}};
    case CellKind::kGruLinearBeforeReset:
      return {
          L, 1, {StepGruLinearBeforeReset<S>, nullptr}, {GruLinearBeforeResetGradient<S>, nullptr}};
    case CellKind::kGru:
      return {L, 4, {StepGruGates<S>, StepGruState<S>}, {GruStateGradient<S>, GruResetGradient<S>}};
    default:
      return {L, 4, {StepRnn<S>, nullptr}, {RnnGradient<S>, nullptr}};
  }
}
