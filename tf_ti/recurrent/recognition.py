"""Loops whose bodies are cells, whoever wrote them: they become recurrent sequences.

A body is a cell where its new states have the normal form of one (`normal_form.py`):

    LSTM    c' = f * c + i * g              h' = o * activation(c')
    GRU     h' = z * h + (1 - z) * n, or with z and 1 - z exchanged
    RNN     h' = activation(...)

with gates of activation functions that the kernel has; each of one product of h with a matrix, of
biases, and of anything that does not depend on a state. That becomes the x of the op: as it is,
with its matrix, where it is one product in all gates, else added up outside for all steps. The
gates may lie in any order in one matrix, or in several.

All states may be held where a mask, the same for all, says so: tf.where(mask, c', c). Outputs may
be held too, as those of Keras are: a state y = tf.where(mask, h', y) that nothing else reads, or
tf.where(mask, h', 0).

All outputs must follow from the hidden states, or be last states; only then nothing needs the loop.
"""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._exact import negated
from tf_ti.loops import slices as _slices, spec as _spec
from tf_ti.loops.passes import batching as _batching, outside as _outside, steady as _steady
from tf_ti.loops.passes.analysis import Analysis, analyse, without_identity
from tf_ti.loops.passes.step import Fuse, Note, Step, Unknown
from tf_ti.loops.traced import TracedLoop
from tf_ti.recurrent import normal_form as _form, ops
from tf_ti.recurrent.normal_form import Activated, Outside, Polynomial, Product, State
from tf_ti.recurrent.spec import GATES, Activation, CellSpec, Kind

_TYPES = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
_NAMES = ("sigmoid", "tanh", "relu", "leaky_relu")
_UNBOUNDED = ("relu", "leaky_relu")


def recognize(analysis: Analysis, fuse: Fuse, name: str | None) -> Step:
    """A recurrent sequence in place of a loop; `Unknown` where the loop is no such."""
    unread: dict[int, tf.Tensor] = {}
    try:
        sequence = _Sequence(analysis, fuse, _cell(analysis))
    except Unknown as refusal:
        unread = _unread_states(analysis.loop)
        if not unread:
            raise
        try:
            analysis = analyse(_with_stacks(analysis.loop, unread))
            sequence = _Sequence(analysis, fuse, _cell(analysis))
        except Unknown:
            raise refusal from None

    def add(_: list[tf.Tensor]) -> list[tf.Tensor]:
        with tf.name_scope(name):
            outputs = sequence.run()
            return [_last_of(t, unread[i]) if i in unread else t for i, t in enumerate(outputs)]

    text = f"runs as one sequence of {sequence.kind.upper()} cells"
    count = len(_batching.computing(analysis.uses.operations))
    return Step(None, add, (Note("recognition", text, True, count=count),))


def _unread_states(loop: TracedLoop) -> dict[int, tf.Tensor]:
    """The states that no iteration reads: their initial values by their outputs' indices.

    They are no states of a cell. Keras's loops hold an output so, where a mask makes it zeros.
    """
    spec, graph = loop.spec, loop.body
    read = {t.ref() for op in graph.get_operations() for t in op.inputs}
    read |= {t.ref() for t in graph.outputs}
    num_states = collections.Counter(result for result, _ in spec.back_edges)
    given_out = {o.source for o in spec.outputs}
    found: dict[int, tf.Tensor] = {}
    for result, parameter in spec.back_edges:
        given, made = graph.inputs[parameter], without_identity(graph.outputs[result])
        is_read = given.ref() in read or ~parameter in given_out or num_states[result] > 1
        # Other states may be large: a stack has all their values.
        if made.op.type != "SelectV2" or is_read:
            continue
        initial, at = loop.tensors[parameter], spec.find_outputs("last", result)
        is_same = made.shape.is_fully_defined() and initial.shape == made.shape
        if is_same or (not made.shape.is_fully_defined() and made in _steady.Steady(loop)):
            found |= dict.fromkeys(at, initial)
    return {} if spec.reverse else found


def _with_stacks(loop: TracedLoop, at: Collection[int]) -> TracedLoop:
    """The loop with stacks of all values in the place of some states, which it no longer has."""
    outputs = [
        _spec.Output(o.label, o.dtype, "stack", o.source) if i in at else o
        for i, o in enumerate(loop.spec.outputs)
    ]
    sources = {outputs[i].source for i in at}
    edges = tuple(edge for edge in loop.spec.back_edges if edge[0] not in sources)
    spec = dataclasses.replace(loop.spec, outputs=tuple(outputs), back_edges=edges)
    return dataclasses.replace(loop, spec=spec)


def _last_of(values: tf.Tensor, initial: tf.Tensor) -> tf.Tensor:
    """The last value of a state, which is the initial one where there is no iteration."""
    last = tf.concat([initial[tf.newaxis], values[-1:]], 0)[-1]
    last.set_shape(values.shape[1:])
    return last


# --- cells ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Gate:
    """An activation function of a product of the hidden state and of a rest.

    Attributes:
        product: of the hidden state and a matrix.
        coefficient: of that product.
        rest: the terms that do not depend on a state.
        reset_bias: the terms added to the product before a reset gate's factor.
    """

    activation: Activation
    product: Product
    coefficient: Fraction
    rest: Polynomial
    reset_bias: Polynomial = dataclasses.field(default_factory=dict)

    def negated(self) -> "_Gate":
        """The one that gives 1 minus it."""
        f = self.activation
        if f.name not in ("sigmoid", "hard_sigmoid"):
            raise Unknown("only a sigmoid may be taken from 1")
        if f.name == "hard_sigmoid":
            f = dataclasses.replace(f, beta=1 - f.beta, limits=f.limits.exchanged())
        rest = _form.scaled(self.rest, -1)
        return dataclasses.replace(self, activation=f, coefficient=-self.coefficient, rest=rest)

    def like(self, other: Activation) -> "_Gate":
        """The same with the beta of another hard sigmoid; the rest makes up for it."""
        f = self.activation
        if not f.name == other.name == "hard_sigmoid":
            return self
        shift = (f.beta - other.beta) / f.alpha
        if not _is_number(shift, np.float32):  # limits would be beside where they are
            raise Unknown("a hard sigmoid's limits would be rounded")
        rest = _form.added(self.rest, _form.of_number(shift))
        f = dataclasses.replace(f, beta=other.beta)
        return dataclasses.replace(self, activation=f, rest=rest)


@dataclasses.dataclass(frozen=True)
class _Cell:
    """A cell; its states, of which the hidden one is the first, by their indices."""

    kind: Kind
    states: tuple[int, ...]
    gates: dict[str, _Gate]  # by the letters of GATES
    activations: tuple[Activation, ...]
    linear_before_reset: bool = False
    compared: frozenset[int] = frozenset()  # states of which one row is not repeated
    mask: "_Mask | None" = None
    copies: tuple[int, ...] = ()  # states that hold the hidden one's new values, and no more


@dataclasses.dataclass(frozen=True, eq=False)
class _Mask:
    """The choice between new states and old ones.

    Attributes:
        condition: a bool for each row, [rows, 1].
        keeps: true if the old states are those where it is true.
        new: the new states, in the order of the back edges.
        copies: maps the index of a state that only holds another state's values to that state's.
    """

    condition: tf.Tensor
    keeps: bool
    new: tuple[tf.Tensor, ...]
    copies: Mapping[int, int]

    @classmethod
    def of(cls, analysis: Analysis) -> "_Mask | None":
        """The one that all states of a loop have, or None."""
        graph, results = analysis.loop.body, analysis.uses.results
        conditions, keeps, new = [], set(), []
        for result, parameter in analysis.loop.spec.back_edges:
            made, old = results[result], graph.inputs[parameter]
            if made.op.type != "SelectV2":
                return None
            condition, *choices = made.op.inputs
            is_old = [without_identity(choice) is old for choice in choices]
            if sum(is_old) != 1 or not _batching.is_plain(made.op):
                return None
            conditions.append(_column(condition))
            keeps.add(is_old[0])
            new.append(without_identity(choices[is_old[0]]))
        is_one = len(keeps) == 1 and all(_are_equal(conditions[0], each) for each in conditions)
        if not is_one or not _is_for_rows(conditions[0], analysis):
            return None
        if any(
            t.shape.rank != 2 or _tf.known_extent(t, 1) != _tf.known_extent(made, 1) for t in new
        ):
            return None
        copies = {}
        for k, (result, parameter) in enumerate(analysis.loop.spec.back_edges):
            others = [j for j, tensor in enumerate(new) if j != k and tensor is new[k]]
            if others and _reads(analysis, graph.inputs[parameter]) == {results[result].op}:
                copies[k] = others
        # The state that several copies hold is no copy itself.
        origins = {k: next((j for j in o if j not in copies), o[0]) for k, o in copies.items()}
        return cls(conditions[0], keeps.pop(), tuple(new), origins)

    def chosen(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """What a tensor is where the states are new, if this mask chooses it."""
        if tensor.op.type != "SelectV2" or not _are_equal(
            _column(tensor.op.inputs[0]), self.condition
        ):
            return None
        return without_identity(tensor.op.inputs[2 if self.keeps else 1])


def _column(condition: tf.Tensor) -> tf.Tensor:
    """A condition before it was repeated for all columns of its rows."""
    while condition.op.type == "Tile":
        repeats = tf.get_static_value(condition.op.inputs[1])
        if repeats is None or len(repeats) != 2 or repeats[0] != 1:
            break
        condition = condition.op.inputs[0]
    return condition


def _reads(analysis: Analysis, tensor: tf.Tensor) -> set[tf.Operation]:
    """The operations that read a tensor, or a copy of it."""
    found = set()
    for op in analysis.uses.readers.get(tensor.op, ()):
        found |= _reads(analysis, op.outputs[0]) if op.type == "Identity" else {op}
    return found


def _are_equal(a: tf.Tensor, b: tf.Tensor) -> bool:
    """True if two tensors of a body are computed in the same way of the same."""
    stack, seen = [(a, b)], set()
    while stack:
        one, two = stack.pop()
        if one is two or (one.ref(), two.ref()) in seen:
            continue
        seen.add((one.ref(), two.ref()))
        op, other = one.op, two.op
        if op.type == "Placeholder" or not _batching.is_plain(op):
            return False
        if (op.type, one.value_index) != (other.type, two.value_index):
            return False
        if op.node_def.attr != other.node_def.attr or len(op.inputs) != len(other.inputs):
            return False
        stack.extend(zip(op.inputs, other.inputs))
    return True


def _is_for_rows(condition: tf.Tensor, analysis: Analysis) -> bool:
    """True if a condition is a bool for each row of a step, and of no state."""
    is_column = condition.shape.rank == 2 and _tf.known_extent(condition, 1) == 1
    is_of_slices = analysis.is_outside(condition) and not analysis.is_invariant(condition)
    return is_column and is_of_slices


def _cell(analysis: Analysis) -> _Cell:
    """The cell that a body is; `Unknown` if it is none."""
    loop, results = analysis.loop, analysis.uses.results
    graph, edges = loop.body, loop.spec.back_edges
    mask = _Mask.of(analysis)
    copies = {} if mask is None else mask.copies
    states = [k for k in range(len(edges)) if k not in copies]
    if len(states) not in (1, 2):
        raise _too_many(loop)
    if graph.control_outputs or loop.num_users_results < len(graph.outputs):
        cure = "Draw random numbers before the loop, and print or assign after it."
        raise Unknown("it draws random numbers, or has other effects", cure=cure)
    shapes = set()
    for result, parameter in edges:
        inside, outside = graph.inputs[parameter], loop.tensors[parameter]
        shape, given, made = inside.shape, outside.shape, results[result].shape
        # Only the loop finds out whether a state has the shape that a body was built for.
        if {shape.rank, given.rank, made.rank} != {2} or inside.dtype not in _TYPES:
            raise Unknown("a state is no matrix of floats, [rows, width]")
        if any(g is None and s is not None for g, s in zip(given.as_list(), shape.as_list())):
            cure = "tf.ensure_shape gives the initial state a known shape."
            raise Unknown("only the loop finds out if a state has the body's shape", cure=cure)
        shapes.add((inside.dtype, *shape.as_list()))
        shapes.add((inside.dtype, *made.as_list()))
    if len({(dtype, width) for dtype, _, width in shapes}) > 1 or not shape.as_list()[1]:
        raise Unknown("its states are not of one type and width")
    if len({rows for _, rows, _ in shapes} - {None}) > 1:
        raise Unknown("its states do not have the same number of rows")
    reader = _form.Reader(analysis)
    made_of = [results[result] for result, _ in edges] if mask is None else mask.new
    new = {}
    for k in states:
        columns = reader.columns(made_of[k])
        if len(columns) > 1:
            raise Unknown("the columns of a state are computed in different ways")
        new[k] = columns[0][1]
    numbers = set(analysis.counts.agreement.values())
    if mask is not None:  # whose steps the op compares with those of x
        numbers -= analysis.agreements([mask.condition])
    if analysis.counts.is_limited or len(numbers) > 1:
        cure = (
            "Give the iterated tensors a known number of steps, as tf.ensure_shape does, and leave "
            "a length out."
        )
        reason = "without the loop nobody would compare its numbers of iterations"
        raise Unknown(reason, cure=cure)
    if any(map(_has_factor, new.values())):
        cure = f"If m is 0 or 1, tf.where does it, but for NaN times 0. {_form.MASK}"
        raise Unknown("a state has a factor of no gate, as in m * new + (1 - m) * old", cure=cure)
    matcher = _Matcher(reader, shape.as_list()[1], inside.dtype)
    h = next((k for k in states if len(new[k]) == 1), states[-1])
    if len(states) == 1:
        cell = matcher.gru(new[h], h, made_of[h]) if len(new[h]) == 3 else matcher.rnn(new[h], h)
    else:
        cell = matcher.lstm(new, h, sum(states) - h)
    if set(copies.values()) - {h}:
        raise Unknown("a state holds cell states")
    return dataclasses.replace(
        cell, compared=frozenset(reader.compared), mask=mask, copies=tuple(copies)
    )


def _has_factor(new: Polynomial) -> bool:
    """True if a state itself has a factor that depends on no state."""
    return any({State, Outside} <= set(map(type, monomial)) for monomial in new)


def _too_many(loop: TracedLoop) -> Unknown:
    """The reason why a loop of none, or of more than two states is no cell."""
    edges = loop.spec.back_edges
    labels = [loop.spec.inputs[parameter].label for _, parameter in edges]
    listed = f": {', '.join(labels)}" if labels else ""
    counters = [
        label for label, (_, p) in zip(labels, edges) if loop.body.inputs[p].dtype.is_integer
    ]
    cure = ""
    if counters and len(edges) - len(counters) in (1, 2):
        cure = f"If {' and '.join(counters)} only counts, pass tf.range(steps) as slices instead."
    count = len(edges) or "no"
    return Unknown(f"it has {count} states, and cells have one or two{listed}", cure=cure)


class _Matcher:
    """Finds the parts of cells in normal forms."""

    def __init__(self, reader: _form.Reader, hidden_size: int, dtype: tf.DType):
        self._reader, self._hidden_size = reader, hidden_size
        self._type = np.float64 if dtype == tf.float64 else np.float32  # of the kernel

    def lstm(self, new: Mapping[int, Polynomial], h: int, c: int) -> _Cell:
        hidden, cell = new[h], new[c]
        output, squashed = self._monomial(hidden, 2)
        if squashed.argument != _form.freeze(cell):
            output, squashed = squashed, output
        if squashed.argument != _form.freeze(cell) or len(cell) != 2:
            raise Unknown("the hidden state is no gate times a function of the cell state")
        kept, added = sorted(cell, key=lambda monomial: State(c) not in monomial)
        forget = self._only(kept - {State(c)})
        if State(c) not in kept or set(cell.values()) != {1} or len(added) != 2:
            raise Unknown("the cell state is no sum of two products of gates")
        o = self._gate(output, h)
        f = self._gate(forget, h).like(o.activation)
        i, g = (self._gate(self._activated(atom), h) for atom in added)
        if i.like(o.activation).activation != o.activation:
            i, g = g, i
        i = i.like(o.activation)
        if not i.activation == f.activation == o.activation:
            raise Unknown("the gates of an LSTM have different activation functions")
        activations = (f.activation, g.activation, _activation(squashed))
        return _Cell("lstm", (h, c), {"f": f, "i": i, "c": g, "o": o}, activations)

    def gru(self, new: Polynomial, state: int, tensor: tf.Tensor) -> _Cell:
        h = State(state)
        both = {m: c for m, c in new.items() if h in m and len(m) == 2}
        alone = {m: c for m, c in new.items() if h not in m and len(m) == 1}
        if not alone:  # z * n + h - z * h: the candidate has the gate's factor
            alone = {m: c for m, c in new.items() if h not in m and len(m) == 2}
        if len(both) != 1 or len(alone) != 1:
            raise Unknown("the state is no combination of itself and a candidate")
        ((kept, of_kept),), (added,) = both.items(), alone
        update = self._only(kept - {h})
        candidate = self._only(added - {update})
        is_exchanged = of_kept < 0
        expected = {
            frozenset([update, h]): -1 if is_exchanged else 1,
            frozenset([update, candidate]): 1 if is_exchanged else -1,
            frozenset([h if is_exchanged else candidate]): 1,
        }
        if new != expected:
            raise Unknown("the state is no combination of itself and a candidate by one gate")
        n, reset = self._candidate(candidate, state)
        if n.activation.name in _UNBOUNDED:
            # Where it is infinite, z * h + (1 - z) * n is not what n + z * (h - n) is.
            kept_part = {frozenset([update, h]): 1}
            parts = self._reader.summands(tensor)
            if is_exchanged or kept_part not in parts or len(parts) != 2:
                raise Unknown("an unbounded candidate is not mixed as the kernel mixes it")
        r, z = self._gate(reset, state), self._gate(update, state)
        z = (z.negated() if is_exchanged else z).like(r.activation)
        # One gate for both (a minimal gated unit) would be multiplied twice.
        if z.activation != r.activation or update == reset:
            raise Unknown("update and reset are one gate, or have different activation functions")
        gates = {"z": z, "r": r, "h": n}
        is_linear = n.product.factor == {h}
        return _Cell("gru", (state,), gates, (z.activation, n.activation), is_linear)

    def rnn(self, new: Polynomial, state: int) -> _Cell:
        (atom,) = self._monomial(new, 1)
        gate = self._gate(atom, state)
        return _Cell("rnn", (state,), {"h": gate}, (gate.activation,))

    def _monomial(self, polynomial: Polynomial, count: int) -> list[Activated]:
        """The factors of one product of so many functions."""
        if len(polynomial) != 1:
            raise Unknown("a state is no product of gates")
        ((monomial, coefficient),) = polynomial.items()
        if len(monomial) != count or coefficient != 1:
            raise Unknown("a state is no product of gates")
        return [self._activated(atom) for atom in monomial]

    def _only(self, atoms: Collection[_form.Atom]) -> Activated:
        if len(atoms) != 1:
            raise Unknown("a product has other factors than one gate")
        return self._activated(*atoms)

    def _activated(self, atom: _form.Atom) -> Activated:
        if not isinstance(atom, Activated):
            raise Unknown("a gate has no activation function")
        return atom

    def _gate(self, atom: Activated, h: int) -> _Gate:
        activation, argument = self._unscaled(atom)
        products = {m: c for m, c in argument.items() if not _form.is_outside(m)}
        product, coefficient = self._product(products)
        if product.factor != {State(h)}:
            raise Unknown("a gate has a product of another state than the hidden one")
        return _Gate(activation, product, coefficient, self._rest(argument))

    def _candidate(self, atom: Activated, state: int) -> tuple[_Gate, Activated]:
        """A GRU's candidate, and its reset gate."""
        h = State(state)
        activation, argument = self._unscaled(atom)
        reset_terms = {m: c for m, c in argument.items() if not _form.is_outside(m)}
        before = [
            a for m in reset_terms for a in m if isinstance(a, Product) and len(a.factor) == 2
        ]
        if before:
            product, coefficient = self._product(reset_terms)
            reset = self._only(product.factor - {h})
            if h not in product.factor:
                raise Unknown("a reset gate is applied to something else than the hidden state")
            return _Gate(activation, product, coefficient, self._rest(argument)), reset
        common = frozenset.intersection(*reset_terms) if reset_terms else frozenset()
        reset = self._only([a for a in common if isinstance(a, Activated)])
        linear = {m - {reset}: c for m, c in reset_terms.items()}
        products = {m: c for m, c in linear.items() if not _form.is_outside(m)}
        product, coefficient = self._product(products)
        if product.factor != {h}:
            raise Unknown("a candidate has a product of another state")
        gate = _Gate(activation, product, coefficient, self._rest(argument), self._rest(linear))
        return gate, reset

    def _product(self, terms: Polynomial) -> tuple[Product, Fraction]:
        """The only one, of whole states."""
        if any(isinstance(atom, State) for monomial in terms for atom in monomial):
            cure = "Without it the loop may be a sequence."
            raise Unknown("a gate reads a state without a matrix, as peepholes do", cure=cure)
        if len(terms) != 1:
            raise Unknown("a gate has not one product with the hidden state")
        ((monomial, coefficient),) = terms.items()
        if len(monomial) != 1:
            raise Unknown("a gate has not one product with the hidden state")
        (atom,) = monomial
        if not isinstance(atom, Product) or atom.width != self._hidden_size:
            raise Unknown("a gate has not one product with all of the hidden state")
        return atom, coefficient

    def _rest(self, polynomial: Polynomial) -> Polynomial:
        rest = {m: c for m, c in polynomial.items() if _form.is_outside(m)}
        if not all(map(_is_term, rest)):
            raise Unknown("a gate has a term that is no tensor and no product with a matrix")
        return self._reader.opened_polynomial(rest, self._hidden_size)

    def _unscaled(self, atom: Activated) -> tuple[Activation, Polynomial]:
        """A function and its argument; a limited one is a hard sigmoid of something."""
        argument = dict(atom.argument)
        if atom.function != "unit":
            activation = _activation(atom)
            if activation.name in _UNBOUNDED and not _adds_exactly(argument):
                raise Unknown("its factors would round at the limit of an activation function")
            return activation, argument
        slopes = {c for m, c in argument.items() if not _form.is_outside(m)}
        if len(slopes) != 1 or min(slopes) <= 0:
            raise Unknown("the parts of a gate have different slopes")
        (slope,) = slopes
        offset = argument.pop(_form.ONE, Fraction(0))
        activation = Activation("hard_sigmoid", slope, offset, atom.limits)
        argument = _form.scaled(argument, 1 / slope)
        if not _meets_its_limits(activation, self._type) or not _adds_exactly(argument):
            raise Unknown("its factors would round at the limit of an activation function")
        return activation, argument


def _meets_its_limits(f: Activation, dtype: type) -> bool:
    """True if a hard sigmoid is at its limits, and not beside them, where the body is.

    A limit that no number meets exactly is met by rounding, if by any: for that alpha and beta must
    be the body's.
    """
    is_same = _is_number(f.alpha, dtype) and _is_number(f.beta, dtype)
    for limit in (0, 1):
        exact = (limit - f.beta) / f.alpha
        if _is_number(exact, dtype):
            alpha, beta, x = (dtype(float(number)) for number in (f.alpha, f.beta, exact))
            if alpha * x + beta != limit:
                return False
        elif not is_same:
            return False
    return True


def _is_number(value: float | Fraction, dtype: type) -> bool:
    """True if it is a number of a type, unrounded."""
    return Fraction(float(dtype(float(value)))) == value


def _adds_exactly(argument: Polynomial) -> bool:
    """True if a sum that is a limit still is: its factors, which go to weights, round nothing."""
    return all(
        number & (number - 1) == 0
        for monomial, c in argument.items()
        if monomial != _form.ONE
        for number in (abs(c.numerator), c.denominator)
    )


def _is_term(monomial: _form.Monomial) -> bool:
    """True for a number, a tensor, or a tensor's product with a matrix."""
    if len(monomial) != 1:
        return not monomial
    (atom,) = monomial
    factors = atom.factor if isinstance(atom, Product) else [atom]
    return len(factors) == 1 and all(
        isinstance(f, Outside) and not (f.is_repeated and f is not atom) for f in factors
    )


def _activation(atom: Activated) -> Activation:
    if atom.function not in _NAMES:
        raise Unknown(f"the kernel has no activation function {atom.function}")
    return Activation(atom.function, atom.parameter, limits=atom.limits)


# --- sequences -----------------------------------------------------------------------------------


class _Sequence:
    """The op that takes the place of a loop of cells, and the operations around it."""

    def __init__(self, analysis: Analysis, fuse: Fuse, cell: _Cell):
        """Raises `Unknown` where the loop must stay."""
        self._analysis, self._cell, self.kind = analysis, cell, cell.kind
        self._outside = _outside.Outside(analysis)
        self._values = analysis.uses.results
        loop = analysis.loop
        self._results, parameters = zip(*(loop.spec.back_edges[k] for k in cell.states))
        self._hidden = self._values[self._results[0]]
        self._initial = [loop.tensors[p] for p in parameters]
        mask = cell.mask
        self._new = self._hidden if mask is None else mask.new[cell.states[0]]
        copies = [loop.spec.back_edges[k] for k in cell.copies]
        # The initial values, by the results that have the hidden states of all steps.
        self._held = {self._hidden.ref(): self._initial[0]} | {
            self._values[result].ref(): loop.tensors[p] for result, p in copies
        }
        self._rows, self._size = loop.body.inputs[parameters[0]].shape.as_list()
        self._dtype = self._hidden.dtype

        inputs, biases, weights = {}, {}, {}
        for letter, gate in cell.gates.items():
            biases[letter] = {m: c for m, c in gate.rest.items() if self._is_bias(m)}
            inputs[letter] = {m: c for m, c in gate.rest.items() if m not in biases[letter]}
            weights[letter] = _matrices_of(_form.of_atom(gate.product, gate.coefficient))
        order = self._gate_order(weights, inputs)
        self._inputs = self._columns(order, inputs)
        self._biases = self._columns(order, biases)
        self._r = self._columns(order, weights)
        if cell.linear_before_reset:
            self._biases.append((self._size, cell.gates["h"].reset_bias))
        if not all(self._is_bias(m) for _, p in self._biases for m in p):
            raise Unknown("a bias has rows or iterations")
        slices = [t for t in _tensors(self._inputs) if not analysis.is_invariant(t)]
        masks = [] if mask is None else [mask.condition]
        numbers = set(analysis.counts.agreement.values())
        are_compared = len(numbers) == 1 or numbers <= analysis.agreements([*slices, *masks])
        if not slices or not analysis.agree(slices) or not are_compared:
            raise Unknown("it has no slices, or their numbers are not known to agree")
        self._x = self._common_factor()
        step = self._dtype.size * len(order) * self._size * (self._rows or 2**64)
        if self._x is None and step > analysis.uses.largest:
            raise Unknown("the inputs of its gates would be too large for all iterations")

        # The hidden states that outputs are, in another shape.
        self._placed = {o: ref for o in loop.spec.outputs if (ref := self._source(o)) is not None}
        self._computed = [o for o in loop.spec.outputs if o not in self._placed]
        for output in self._computed:
            if not self._may_be_joined(output):
                raise self._why_not(output)
        source = None if self._x is None else analysis.input_of(self._x.tensor)
        if fuse is not Fuse.ALL and (self._computed or masks or source is None):
            raise Unknown("an eager call is for cells of slices and states alone")
        self._batch_major = self._with_time_second(*source) if source is not None else None
        self._gives_steps = any(o.mode != "last" for o in loop.spec.outputs)
        self._spec = CellSpec(
            cell.kind,
            tuple(
                dataclasses.replace(f, alpha=float(f.alpha), beta=float(f.beta))
                for f in cell.activations
            ),
            order,
            linear_before_reset=cell.linear_before_reset,
            reverse=analysis.counts.order < 0,
            hold_output=mask is not None and self._gives_steps,
            time_major=self._batch_major is None,
            transpose_weights=next(_products(self._r)).is_transposed,
        )
        if not ops.has_kernel(self._spec) or ops.asks_for_gpu():
            raise Unknown("there is no kernel for it")

    def _why_not(self, output: _spec.Output) -> Unknown:
        """The reason why an output keeps the loop."""
        tensor, label = self._values[output.source], output.label
        cells = [self._values[result] for result in self._results[1:]]
        if any(tensor is cell for cell in cells):
            reason = f"{label} has the cell states of all steps, and a sequence gives the last"
            return Unknown(reason, tensor.op, "Return the hidden state alone from each step.")
        reason = f"{label} follows neither from the hidden states nor from slices"
        cure = f"Compute {label} from the hidden states and slices, in the body or after the loop."
        return Unknown(reason, tensor.op, cure)

    def _is_bias(self, monomial: _form.Monomial) -> bool:
        """True if it is the same in all rows and iterations."""
        return all(
            isinstance(atom, Outside)
            and self._analysis.is_invariant(atom.tensor)
            and set(atom.tensor.shape.as_list()[:-1]) <= {1}
            for atom in monomial
        )

    def _columns(self, order: str, polynomials: dict[str, Polynomial]) -> _form.Columns:
        return _form.merge([(self._size, polynomials[letter]) for letter in order])

    def _gate_order(self, *polynomials: dict[str, Polynomial]) -> str:
        """The one in which most gates lie side by side in the matrices."""
        orders = [GATES[self._cell.kind]]
        for each in polynomials:
            starts = {k: [a.start for a in _products([(0, p)])] for k, p in each.items()}
            orders.append("".join(sorted(orders[0], key=starts.__getitem__)))
        return min(orders, key=lambda o: sum(len(self._columns(o, each)) for each in polynomials))

    def _common_factor(self) -> Outside | None:
        """x, if each gate gets one product of it, and of nothing else."""
        factors = set()
        for _, polynomial in self._inputs:
            atoms = list(_products([(0, polynomial)]))
            if len(polynomial) != 1 or len(atoms) != 1:
                return None
            factors.add((atoms[0].factor, atoms[0].width))
        (((x,), _), *others) = factors
        if others or not isinstance(x, Outside) or self._analysis.is_invariant(x.tensor):
            return None
        # Else each product would be as many.
        rows = math.prod(d or 0 for d in x.tensor.shape.as_list()[:-1])
        return x if rows != 1 or self._rows == 1 else None

    # --- outputs ---

    def _source(self, output: _spec.Output) -> Any:
        """The states, by reference, that an output is in another shape; None if it is more."""
        tensor = self._values[output.source]
        if output.mode == "last":
            is_state = output.source in self._results or tensor.ref() in self._held
            return tensor.ref() if is_state else None
        rank = tensor.shape.rank
        is_last = output.mode == "stack" and output.axis in (-1, rank)
        if is_last or not self._analysis.may_be_joined_outside(output):
            return None
        while tensor.ref() not in self._held and _form.keeps_columns(tensor.op):
            tensor = tensor.op.inputs[0]
        return tensor.ref() if tensor.ref() in self._held else None

    def _may_be_joined(self, output: _spec.Output) -> bool:
        """True if it can be computed of the hidden states, or of none."""
        tensor = self._values[output.source]
        if self._analysis.is_invariant(tensor):
            return False
        if not self._analysis.may_be_joined_outside(output):
            return False
        stack, seen = [tensor], set()
        while stack:
            tensor = stack.pop()
            is_known = tensor.ref() in self._held or self._analysis.is_outside(tensor)
            if is_known or tensor.ref() in seen:
                continue
            if not self._analysis.is_after(tensor):
                return False
            seen.add(tensor.ref())
            inputs = list(tensor.op.inputs)
            if self._chooses_hidden(tensor):
                inputs = [t for t in inputs if without_identity(t) is not self._new]
            stack.extend(inputs)
        return True

    def _chooses_hidden(self, tensor: tf.Tensor) -> bool:
        """True if the mask chooses the new hidden state here."""
        mask = self._cell.mask
        return mask is not None and mask.chosen(tensor) is self._new

    def _with_time_second(self, given: _spec.Input, tensor: tf.Tensor) -> tf.Tensor | None:
        """The tensor of which a parameter gets slices, if it is [batch, time, input]."""
        is_step = given.mode in ("slice", "index") and given.part_size == 1
        is_whole = is_step and _slices.covers(given) and given.stride == self._analysis.counts.order
        if not is_whole or tensor.shape.rank != 3 or given.axis % 3 != 1:
            return None
        return tensor

    # --- what is added to the graph ---

    def run(self) -> list[tf.Tensor]:
        """Adds the op, and returns the loop's outputs."""
        is_time_major = self._spec.time_major
        x, w = self._x_and_w()
        r = self._matrix(self._r)
        rows, states = self._rows, self._initial
        if rows is None:
            known = [_batching.extents(state)[0] for state in states]
            rows = _common([_batching.extents(x)[is_time_major], *known])
        compared = self._cell.compared
        if not compared:
            x = _broadcast(x, int(is_time_major), rows)
        states = [
            state if k in compared else _broadcast(state, 0, rows)
            for k, state in zip(self._cell.states, states)
        ]
        mask = None if self._cell.mask is None else self._mask(self._cell.mask, rows)
        y, last = ops.run(self._spec, x, states, w, r, self._bias(), mask=mask)

        @functools.cache
        def steps(ref: Any) -> tf.Tensor:
            return y if mask is None else self._beginning_with(self._held[ref], y, mask)

        def stacked(values: tf.Tensor) -> tf.Tensor:
            return values if is_time_major else _turned(values)

        if self._computed:
            for ref in self._held:
                self._outside.give(ref.deref(), stacked(steps(ref)))
            if mask is not None:  # read only where it is not held
                self._outside.give(self._new, stacked(y))
        outputs = []
        for output in self._analysis.loop.spec.outputs:
            if output.mode == "last":
                outputs.append(self._last(output, last, mask))
            elif output in self._placed:
                outputs.append(self._place(output, steps(self._placed[output])))
            else:
                (values,) = self._outside.compute([self._values[output.source]])
                outputs.append(self._outside.joined(output, values))
        return outputs

    def _last(
        self, output: _spec.Output, last: Sequence[tf.Tensor], mask: tf.Tensor | None
    ) -> tf.Tensor:
        if output.source in self._results:
            return last[self._results.index(output.source)]
        initial = self._held[self._values[output.source].ref()]
        is_new = tf.reduce_any(mask, 0 if self._spec.time_major else 1)
        return tf.where(is_new[:, tf.newaxis], last[0], initial)

    def _mask(self, mask: _Mask, rows: _batching.Extent) -> tf.Tensor:
        """The steps that change the states, in the layout of x."""
        (value,) = self._outside.compute([mask.condition])
        value = _broadcast(tf.squeeze(value, 2), 1, rows)
        value = negated(value) if mask.keeps else value
        return value if self._spec.time_major else tf.transpose(value)

    def _beginning_with(self, hidden: tf.Tensor, y: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """The hidden states of all steps: the initial one before the first that is not held."""
        # Zeros too: the kernel has them there already, but no gradient of them.
        time = 0 if self._spec.time_major else 1
        begun = tf.cumsum(tf.cast(mask, tf.int32), time, reverse=self._spec.reverse) > 0
        return tf.where(begun[:, :, tf.newaxis], y, tf.expand_dims(hidden, time))

    def _x_and_w(self) -> tuple[tf.Tensor, tf.Tensor | None]:
        if self._x is None:
            parts = [self._total(p, width, self._steps, 3) for width, p in self._inputs]
            for axis in (0, 1):
                extent = _common([_batching.extents(part)[axis] for part in parts])
                parts = [_broadcast(part, axis, extent) for part in parts]
            return _joined(parts, 2), None
        w = self._matrix([(width, _matrices_of(p)) for width, p in self._inputs])
        width = next(_products(self._inputs)).width
        if self._batch_major is None:
            return self._steps(self._x, width), w
        return _taken(self._batch_major, 2, self._x.start, width), w

    def _bias(self) -> tf.Tensor | None:
        if not any(polynomial for _, polynomial in self._biases):
            return None
        return _joined([self._total(p, width, self._row, 1) for width, p in self._biases], 0)

    def _total(
        self, polynomial: Polynomial, width: int, value: Callable[..., tf.Tensor], rank: int
    ) -> tf.Tensor:
        """The values of so many columns of no state."""
        total = None
        for monomial, coefficient in polynomial.items():
            if monomial == _form.ONE:
                term = tf.constant(float(coefficient), self._dtype, [1] * rank)
            else:
                term = value(*monomial, width)
                term = term if coefficient == 1 else float(coefficient) * term
            total = term if total is None else total + term
        total = tf.zeros([1] * rank, self._dtype) if total is None else total
        return _broadcast(total, rank - 1, width)

    def _row(self, atom: Outside, width: int) -> tf.Tensor:
        """A value that all rows of all steps share, [columns]."""
        (value,) = self._outside.compute([atom.tensor])
        value = _batching.reshape(value, [math.prod(value.shape.as_list())])
        return _taken(value, 0, atom.start, 1 if atom.is_repeated else width)

    def _steps(self, atom: Outside | Product, width: int) -> tf.Tensor:
        """[time or 1, rows or 1, columns]."""
        if isinstance(atom, Product):
            (factor,) = atom.factor
            assert isinstance(factor, Outside)  # as each term of a gate's rest
            value = self._steps(factor, atom.width)
            *outer, _ = _batching.extents(value)
            flat = _batching.reshape(value, [_batching.multiplied(outer), atom.width])
            matrix = self._matrix([(width, _matrices_of(_form.of_atom(atom)))])
            made = tf.matmul(flat, matrix, transpose_b=self._is_transposed)
            return _batching.reshape(made, [*outer, width])
        (value,) = self._outside.compute([atom.tensor])
        is_stacked = not self._analysis.is_invariant(atom.tensor)
        if value.shape.rank != 3 or not is_stacked:
            dims = _batching.extents(value)
            outer = [dims.pop(0) if is_stacked else 1]
            columns = dims.pop() if dims else 1
            value = _batching.reshape(value, [*outer, _batching.multiplied(dims), columns])
        return _taken(value, 2, atom.start, 1 if atom.is_repeated else width)

    def _matrix(self, columns: _form.Columns) -> tf.Tensor:
        """Matrices side by side, laid out as the cell's spec says."""
        parts = []
        for width, polynomial in columns:
            (coefficient,) = polynomial.values()
            (product,) = _products([(width, polynomial)])
            (matrix,) = self._outside.compute([product.matrix])
            ranges = [(product.row, product.width), (product.start, width)]
            for axis, (start, extent) in enumerate(ranges):
                matrix = _taken(matrix, axis ^ product.is_transposed, start, extent)
            if product.is_transposed != self._is_transposed:
                matrix = tf.transpose(matrix)
            parts.append(matrix if coefficient == 1 else float(coefficient) * matrix)
        return _joined(parts, 0 if self._is_transposed else 1)

    @property
    def _is_transposed(self) -> bool:
        return self._spec.transpose_weights

    def _place(self, output: _spec.Output, y: tf.Tensor) -> tf.Tensor:
        """An output of the hidden states."""
        shape = self._values[output.source].shape.as_list()
        axis = output.axis % (len(shape) + (output.mode == "stack"))
        time_axis = 0 if self._spec.time_major else 1
        if output.stride != self._analysis.counts.order:
            y = tf.reverse(y, [time_axis])
        time, rows = _batching.extents(y)[time_axis], _batching.extents(y)[1 - time_axis]
        for k in _axes_of_rows(shape):
            shape[k] = rows
            if (axis <= k) != self._spec.time_major:
                y = _turned(y)
        if output.mode == "stack":
            shape.insert(axis, time)
        else:
            shape[axis] = _batching.multiplied([shape[axis], time])
        return _batching.reshape(y, shape)


def _products(columns: _form.Columns) -> Iterator[Product]:
    for _, polynomial in columns:
        for atom in itertools.chain.from_iterable(polynomial):
            if isinstance(atom, Product):
                yield atom


def _tensors(columns: _form.Columns) -> Iterator[tf.Tensor]:
    """The tensors of sums, but for matrices."""
    for _, polynomial in columns:
        for atom in itertools.chain.from_iterable(polynomial):
            factors = atom.factor if isinstance(atom, Product) else [atom]
            yield from (factor.tensor for factor in factors if isinstance(factor, Outside))


def _matrices_of(polynomial: Polynomial) -> Polynomial:
    """The matrices of products, without their other factors."""
    return {
        frozenset(
            dataclasses.replace(atom, factor=_form.ONE)
            for atom in monomial
            if isinstance(atom, Product)
        ): coefficient
        for monomial, coefficient in polynomial.items()
    }


def _axes_of_rows(shape: Sequence[int | None]) -> list[int]:
    """Where the rows are, if they may be other than 1."""
    return [k for k, d in enumerate(shape[:-1]) if d != 1]


def _taken(tensor: tf.Tensor, axis: int, start: int, extent: int) -> tf.Tensor:
    if _tf.known_extent(tensor, axis) == extent:
        return tensor
    axis %= tensor.shape.rank
    return tensor[(*[slice(None)] * axis, slice(start, start + extent))]


def _joined(tensors: list[tf.Tensor], axis: int) -> tf.Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis)


def _turned(tensor: tf.Tensor) -> tf.Tensor:
    """With time and batch exchanged."""
    return tf.transpose(tensor, [1, 0, 2])


def _common(extents: Sequence[_batching.Extent]) -> _batching.Extent:
    """The extent that they are broadcast to."""
    for extent in extents:
        if isinstance(extent, int) and extent != 1:
            return extent
    unknown = [extent[tf.newaxis] for extent in extents if not isinstance(extent, int)]
    if not unknown:
        return 1
    return functools.reduce(tf.broadcast_dynamic_shape, unknown)[0]


def _broadcast(tensor: tf.Tensor, axis: int, extent: _batching.Extent) -> tf.Tensor:
    dims = _batching.extents(tensor)
    if isinstance(extent, int) and isinstance(dims[axis], int) and dims[axis] == extent:
        return tensor
    dims[axis] = extent
    return tf.broadcast_to(tensor, tf.stack([tf.cast(d, tf.int64) for d in dims]))
