"""What a body computes of its states, in a form that many ways to write it have in common.

A tensor's columns, which are those of its last axis, are pieces that lie side by side. Each piece
is a polynomial: a sum of products of atoms, with coefficients. Atoms are states, what is computed
of no state (not looked into), products with a matrix that all iterations share, and activation
functions. So (1 - z) * h + z * n, h + z * (n - h) and h - z * h + n * z are one polynomial; and a
product of a concatenation is the sum of its parts' products.

What lies before the columns is one axis, the rows, and perhaps others of extent 1.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.loops import batching as _batching, fission as _fission

_MOST_TERMS = 32
_MOST_PIECES = 16


class Unknown(Exception):
    """The normal form does not have that."""


@dataclasses.dataclass(frozen=True)
class State:
    """Columns of a state, the first of them this one."""

    index: int
    start: int = 0

    def shifted(self, by: int) -> "State":
        return dataclasses.replace(self, start=self.start + by)


@dataclasses.dataclass(frozen=True)
class Outside:
    """Columns of a tensor that is computed of no state; all are `start` where it is repeated."""

    reference: Any
    start: int = 0
    is_repeated: bool = False

    @property
    def tensor(self) -> tf.Tensor:
        return self.reference.deref()

    def shifted(self, by: int) -> "Outside":
        return self if self.is_repeated else dataclasses.replace(self, start=self.start + by)


@dataclasses.dataclass(frozen=True)
class Activated:
    """A function of each element: sigmoid, tanh, relu, leaky_relu (of a slope `parameter`), minimum
    (with the `parameter`) or unit, which limits to 0 and 1."""

    function: str
    argument: "Form"
    parameter: float = 0.0

    def shifted(self, by: int) -> "Activated":
        argument = freeze(shifted(dict(self.argument), by))
        return dataclasses.replace(self, argument=argument)


@dataclasses.dataclass(frozen=True)
class Product:
    """`width` columns, which are a monomial, times rows of a matrix, from `row` and `start` on.

    The rows of the matrix are its columns where it is transposed.
    """

    factor: "Monomial"
    width: int
    reference: Any
    is_transposed: bool
    row: int
    start: int = 0

    @property
    def matrix(self) -> tf.Tensor:
        return self.reference.deref()

    def shifted(self, by: int) -> "Product":
        return dataclasses.replace(self, start=self.start + by)


Atom = State | Outside | Activated | Product
Monomial = frozenset[Atom]
Polynomial = dict[Monomial, float]
Form = frozenset[tuple[Monomial, float]]
Columns = list[tuple[int, Polynomial]]  # the pieces, with their widths
ONE: Monomial = frozenset()


def freeze(polynomial: Polynomial) -> Form:
    return frozenset(polynomial.items())


def of_atom(atom: Atom, coefficient: float = 1.0) -> Polynomial:
    return {frozenset([atom]): coefficient}


def shifted(polynomial: Polynomial, by: int) -> Polynomial:
    """The columns that are so many further."""
    if by == 0:
        return polynomial
    return {frozenset(a.shifted(by) for a in m): c for m, c in polynomial.items()}


def scaled(polynomial: Polynomial, by: float) -> Polynomial:
    return {m: c * by for m, c in polynomial.items()} if by else {}


def added(*polynomials: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for monomial, coefficient in itertools.chain(*(p.items() for p in polynomials)):
        total[monomial] = total.get(monomial, 0.0) + coefficient
    if len(total) > _MOST_TERMS:
        raise Unknown
    return {m: c for m, c in total.items() if c}


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    terms = []
    for (m, c), (n, d) in itertools.product(a.items(), b.items()):
        if m & n or len(terms) == _MOST_TERMS:  # no cell has squares
            raise Unknown
        terms.append({m | n: c * d})
    return added(*terms)


def constant(polynomial: Polynomial) -> float:
    """Its value, if it is a number."""
    if set(polynomial) - {ONE}:
        raise Unknown
    return polynomial.get(ONE, 0.0)


def is_outside(monomial: Monomial) -> bool:
    """Whether it is of no state."""
    return all(
        isinstance(atom, Outside) or (isinstance(atom, Product) and is_outside(atom.factor))
        for atom in monomial
    )


# --- columns -------------------------------------------------------------------------------------


def take(columns: Columns, start: int, stop: int) -> Columns:
    found, at = [], 0
    for width, polynomial in columns:
        low, high = max(start - at, 0), min(stop - at, width)
        if low < high:
            found.append((high - low, shifted(polynomial, low)))
        at += width
    return found


def merge(columns: Columns) -> Columns:
    """The same columns in as few pieces as possible."""
    merged: Columns = []
    for width, polynomial in columns:
        if merged and shifted(merged[-1][1], merged[-1][0]) == polynomial:
            width += merged[-1][0]
            polynomial = merged.pop()[1]
        merged.append((width, polynomial))
    return merged


def width_of(columns: Columns) -> int:
    return sum(width for width, _ in columns)


def width(tensor: tf.Tensor) -> int:
    """How many columns it has."""
    if tensor.shape.rank is None:
        raise Unknown
    dims = tensor.shape.as_list() or [1]
    if dims[-1] is None or sum(d != 1 for d in dims[:-1]) > 1:
        raise Unknown
    return dims[-1]


def _repeat(columns: Columns, count: int) -> Columns:
    """One column as many."""
    ((_, polynomial),) = columns
    if all(isinstance(atom, Outside) for monomial in polynomial for atom in monomial):
        repeated = {
            frozenset(dataclasses.replace(a, is_repeated=True) for a in m): c
            for m, c in polynomial.items()
        }
        return [(count, repeated)]
    if count > _MOST_PIECES:
        raise Unknown
    return [(1, polynomial)] * count


def _combine(
    function: Callable[..., Polynomial], operands: Sequence[Columns], count: int
) -> Columns:
    """A function of the columns of some tensors, which are broadcast to so many."""
    operands = [
        _repeat(columns, count) if width_of(columns) == 1 < count else columns
        for columns in operands
    ]
    edges = {0, count}
    for columns in operands:
        if width_of(columns) != count:
            raise Unknown
        edges.update(itertools.accumulate(width for width, _ in columns))
    if len(edges) > _MOST_PIECES + 1:
        raise Unknown
    return [
        (stop - start, function(*(take(columns, start, stop)[0][1] for columns in operands)))
        for start, stop in itertools.pairwise(sorted(edges))
    ]


# --- tensors -------------------------------------------------------------------------------------


class Reader:
    """The normal form of a body's tensors."""

    def __init__(self, body: _fission.Fission):
        self._body = body
        self._states = {
            body.loop.graph.inputs[parameter].ref(): k
            for k, (_, parameter) in enumerate(body.loop.spec.back_edges)
        }
        self._found: dict[Any, Columns] = {}
        # The states for which the body fails where they have not as many rows as something else.
        self.compared: set[int] = set()

    def columns(self, tensor: tf.Tensor) -> Columns:
        """Those of any tensor; Unknown where something else is done to a state."""
        if tensor.ref() not in self._found:
            self._found[tensor.ref()] = self._columns(tensor)
        return self._found[tensor.ref()]

    def _columns(self, tensor: tf.Tensor) -> Columns:
        if self._body.is_outside(tensor):
            return self.leaf(tensor)
        if tensor.ref() in self._states:
            return [(width(tensor), of_atom(State(self._states[tensor.ref()])))]
        op = tensor.op
        if op.type not in _RULES or not _batching.is_plain(op):
            raise Unknown
        return _RULES[op.type](self, op, tensor.value_index, self.columns)

    def compare_rows(self, reshape: tf.Operation) -> None:
        """Takes note of a state that gets the rows of something else: it must have as many."""
        given, shape = reshape.inputs
        is_late = reshape.outputs[0].shape[0] is None and tf.get_static_value(shape) is None
        if is_late and not self._body.is_outside(given) and self._body.is_outside(shape):
            for _, polynomial in self.columns(given):
                atoms = itertools.chain.from_iterable(polynomial)
                self.compared |= {atom.index for atom in atoms if isinstance(atom, State)}

    def leaf(self, tensor: tf.Tensor) -> Columns:
        """Those of a tensor of no state, as one piece."""
        while keeps_columns(tensor.op) and self._body.is_outside(tensor.op.inputs[0]):
            tensor = tensor.op.inputs[0]
        value = None
        if tensor.op.type == "Const" and tensor.dtype.is_floating:
            value = tf.get_static_value(tensor)
        if value is not None and value.size and (value == value.flat[0]).all():
            return [(width(tensor), {ONE: float(value.flat[0])} if value.flat[0] else {})]
        return [(width(tensor), of_atom(Outside(tensor.ref())))]

    def opened(self, tensor: tf.Tensor) -> Columns:
        """Those of a tensor of no state, as what it is a sum of."""
        op = tensor.op
        if op.type in _LINEAR_RULES and self._body.is_outside(tensor) and _batching.is_plain(op):
            try:
                return _RULES[op.type](self, op, tensor.value_index, self.opened)
            except Unknown:
                pass
        return self.leaf(tensor)

    def opened_polynomial(self, polynomial: Polynomial, count: int) -> Polynomial:
        """A polynomial of so many columns, with sums for what is of no state."""
        terms = []
        for monomial, coefficient in polynomial.items():
            term = {monomial: coefficient}
            if len(monomial) == 1:
                (atom,) = monomial
                if isinstance(atom, Outside) and not atom.is_repeated:
                    pieces = take(self.opened(atom.tensor), atom.start, atom.start + count)
                    pieces = merge(pieces)
                    if len(pieces) == 1:
                        term = scaled(pieces[0][1], coefficient)
            terms.append(term)
        return added(*terms)

    def product(self, factor: tf.Tensor, matrix: tf.Tensor, is_transposed: bool) -> Columns:
        """The columns of a product with a matrix that all iterations share."""
        if not self._is_matrix(matrix):
            raise Unknown
        rows, count = matrix.shape.as_list()[:: -1 if is_transposed else 1]
        origin = [0, 0]
        while (view := _view(matrix)) is not None and self._is_matrix(view[0]):
            matrix, begins, is_turned = view
            origin = [a + b for a, b in zip(origin[:: -1 if is_turned else 1], begins)]
            is_transposed ^= is_turned
        row, start = origin[:: -1 if is_transposed else 1]
        columns = self.columns(factor)
        if width_of(columns) != rows or not rows:
            raise Unknown
        terms = []
        for piece, polynomial in columns:
            for monomial, coefficient in polynomial.items():
                if not monomial:
                    raise Unknown
                atom = Product(monomial, piece, matrix.ref(), is_transposed, row, start)
                terms.append(of_atom(atom, coefficient))
            row += piece
        return [(count, added(*terms))]

    def _is_matrix(self, tensor: tf.Tensor) -> bool:
        is_fixed = self._body.is_invariant(tensor) and tensor.shape.is_fully_defined()
        return is_fixed and tensor.shape.rank == 2


def keeps_columns(op: tf.Operation) -> bool:
    """Whether only axes of extent 1 come or go before the columns."""
    if op.type not in ("ExpandDims", "Identity", "Reshape", "Squeeze", "StridedSlice"):
        return False
    given, made = op.inputs[0], op.outputs[0]
    try:
        if not given.shape.rank or width(given) != width(made):
            return False
        if op.type != "StridedSlice":
            return True
        parts = _parts(op)
    except Unknown:
        return False
    larger = [[d for d in t.shape if d != 1] for t in (given, made)]
    is_all = all(d is not None or part == slice(None) for d, part in zip(given.shape, parts))
    return is_all and larger[0] == larger[1]


def _window(op: tf.Operation, index: int) -> tuple[tf.Tensor, list[int], set[int]]:
    """What an output is a part of, where it begins, and along which axes it is not all."""
    if op.type in ("Split", "SplitV"):
        value, axis = op.inputs[::-1] if op.type == "Split" else op.inputs[::2]
        axis = int(_static(axis)) % value.shape.rank
        before = [t.shape[axis] for t in op.outputs[:index]]
        if None in before:
            raise Unknown
        return value, [sum(before) if k == axis else 0 for k in range(value.shape.rank)], {axis}
    value, *_ = op.inputs
    dims = value.shape.as_list()
    if op.type == "Slice":
        begins, sizes = (_static(t).tolist() for t in op.inputs[1:])
        slices = [slice(b, None if s == -1 else b + s) for b, s in zip(begins, sizes)]
    else:
        slices = _parts(op)
        if op.get_attr("new_axis_mask") or op.get_attr("shrink_axis_mask"):
            raise Unknown
    begins, cut = [0] * len(dims), set()
    for axis, (part, extent) in enumerate(zip(slices, dims)):
        if part in (slice(None), slice(0, None), slice(0, extent)):
            continue
        if extent is None:
            raise Unknown
        begins[axis] = part.indices(extent)[0]
        cut.add(axis)
    return value, begins, cut


def _parts(op: tf.Operation) -> list[slice]:
    """What a StridedSlice takes of each axis of its input; of one that goes, its element."""
    begin, end, strides = (_static(t).tolist() for t in op.inputs[1:])
    if set(strides) - {1}:
        raise Unknown
    has = {
        name: [bool(op.get_attr(f"{name}_mask") >> k & 1) for k in range(len(begin))]
        for name in ("begin", "end", "ellipsis", "new_axis")
    }
    rank = op.inputs[0].shape.rank
    missing = rank - len(begin) + sum(has["new_axis"]) + any(has["ellipsis"])
    parts = []
    for k, (low, high) in enumerate(zip(begin, end)):
        if has["ellipsis"][k]:
            parts += [slice(None)] * missing
        elif not has["new_axis"][k]:
            parts.append(slice(None if has["begin"][k] else low, None if has["end"][k] else high))
    return parts + [slice(None)] * (rank - len(parts))


def _view(matrix: tf.Tensor) -> tuple[tf.Tensor, list[int], bool] | None:
    """What a matrix is a part of, where it begins there, and whether it is turned over."""
    op = matrix.op
    if op.type not in _VIEWS or not _batching.is_plain(op):
        return None
    if op.type == "Identity":
        return op.inputs[0], [0, 0], False
    try:
        if op.type == "Transpose":
            return op.inputs[0], [0, 0], _static(op.inputs[1]).tolist() == [1, 0]
        source, begins, _ = _window(op, matrix.value_index)
    except Unknown:
        return None
    return source, begins, False


def _static(tensor: tf.Tensor) -> np.ndarray:
    value = tf.get_static_value(tensor)
    if value is None:
        raise Unknown
    return np.asarray(value)


# --- operations ----------------------------------------------------------------------------------

Read = Callable[[tf.Tensor], Columns]
Rule = Callable[[Reader, tf.Operation, int, Read], Columns]  # of which output


def _elementwise(function: Callable[..., Polynomial]) -> Rule:
    def rule(reader, op, index, read):
        return _combine(function, [read(t) for t in op.inputs], width(op.outputs[index]))

    return rule


def _activation(function: str) -> Rule:
    return _elementwise(lambda p: of_atom(Activated(function, freeze(p))))


def _subtracted(a: Polynomial, b: Polynomial) -> Polynomial:
    return added(a, scaled(b, -1.0))


def _divided(a: Polynomial, b: Polynomial) -> Polynomial:
    divisor = constant(b)
    if not divisor:
        raise Unknown
    return {m: c / divisor for m, c in a.items()}


def _unit(argument: Polynomial, largest: float) -> Polynomial:
    """What is limited to 0 and a number."""
    if not 0 < largest < math.inf:
        raise Unknown
    limited = Activated("unit", freeze(_divided(argument, {ONE: largest})))
    return of_atom(limited, largest)


def _inside(polynomial: Polynomial, function: str) -> tuple[Polynomial, float] | None:
    """The argument and the parameter of a function that is all there is."""
    if len(polynomial) == 1:
        ((monomial, coefficient),) = polynomial.items()
        if coefficient == 1.0 and len(monomial) == 1:
            (atom,) = monomial
            if isinstance(atom, Activated) and atom.function == function:
                return dict(atom.argument), atom.parameter
    return None


def _with_number(a: Polynomial, b: Polynomial) -> tuple[Polynomial, float]:
    return (b, constant(a)) if not set(a) - {ONE} else (a, constant(b))


def _minimum(a: Polynomial, b: Polynomial) -> Polynomial:
    argument, largest = _with_number(a, b)
    relu = _inside(argument, "relu")
    if relu is not None:
        return _unit(relu[0], largest)
    return of_atom(Activated("minimum", freeze(argument), largest))


def _maximum(a: Polynomial, b: Polynomial) -> Polynomial:
    argument, smallest = _with_number(a, b)
    if smallest:
        raise Unknown
    limited = _inside(argument, "minimum")
    if limited is not None:
        return _unit(*limited)
    return of_atom(Activated("relu", freeze(argument)))


def _clip(a: Polynomial, smallest: Polynomial, largest: Polynomial) -> Polynomial:
    if constant(smallest):
        raise Unknown
    return _unit(a, constant(largest))


def _leaky_relu(reader, op, index, read):
    slope = op.get_attr("alpha")
    return [
        (count, of_atom(Activated("leaky_relu", freeze(p), slope)))
        for count, p in read(op.inputs[0])
    ]


def _bias_add(reader, op, index, read):
    if op.get_attr("data_format") != b"NHWC":
        raise Unknown
    return _elementwise(added)(reader, op, index, read)


def _matmul(reader, op, index, read):
    if op.get_attr("transpose_a"):
        raise Unknown
    return reader.product(*op.inputs, op.get_attr("transpose_b"))


def _batch_matmul(reader, op, index, read):
    if op.get_attr("adj_x"):
        raise Unknown
    return reader.product(*op.inputs, op.get_attr("adj_y"))


def _einsum(reader, op, index, read):
    equation = op.get_attr("equation").decode().replace("...", "")
    operands, result = equation.split("->")
    factor, _, matrix = operands.partition(",")
    if len(matrix) != 2 or not result or factor[:-1] != result[:-1]:
        raise Unknown
    pair = factor[-1] + result[-1]
    if matrix not in (pair, pair[::-1]) or len({*factor, result[-1]}) != len(factor) + 1:
        raise Unknown
    return reader.product(*op.inputs, matrix != pair)


def _concat(reader, op, index, read):
    *parts, axis = op.inputs
    if int(_static(axis)) % op.outputs[0].shape.rank != op.outputs[0].shape.rank - 1:
        raise Unknown
    width(op.outputs[0])
    return [piece for part in parts for piece in read(part)]


def _part(reader, op, index, read):
    if keeps_columns(op):
        return read(op.inputs[0])
    value, begins, cut = _window(op, index)
    if cut - {value.shape.rank - 1}:
        raise Unknown
    return take(read(value), begins[-1], begins[-1] + width(op.outputs[index]))


def _same(reader, op, index, read):
    if not keeps_columns(op):
        raise Unknown
    return read(op.inputs[0])


def _reshaped(reader, op, index, read):
    columns = _same(reader, op, index, read)
    reader.compare_rows(op)
    return columns


def _filled(value: float) -> Rule:
    def rule(reader, op, index, read):
        return [(width(op.outputs[0]), {ONE: value} if value else {})]

    return rule


_VIEWS = ("Identity", "Slice", "Split", "SplitV", "StridedSlice", "Transpose")
_LINEAR_RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "AddN", "AddV2"), _elementwise(added)),
    **dict.fromkeys(("ExpandDims", "Identity", "Squeeze"), _same),
    **dict.fromkeys(("Slice", "Split", "SplitV", "StridedSlice"), _part),
    "BatchMatMulV2": _batch_matmul,
    "BiasAdd": _bias_add,
    "ConcatV2": _concat,
    "Einsum": _einsum,
    "MatMul": _matmul,
    "Neg": _elementwise(lambda p: scaled(p, -1.0)),
    "Reshape": _reshaped,
    "Sub": _elementwise(_subtracted),
}
_RULES: dict[str, Rule] = {
    **_LINEAR_RULES,
    "ClipByValue": _elementwise(_clip),
    "LeakyRelu": _leaky_relu,
    "Maximum": _elementwise(_maximum),
    "Minimum": _elementwise(_minimum),
    "Mul": _elementwise(multiplied),
    "OnesLike": _filled(1.0),
    "RealDiv": _elementwise(_divided),
    "Relu": _elementwise(lambda p: _maximum(p, {})),
    "Relu6": _elementwise(lambda p: _unit(p, 6.0)),
    "Sigmoid": _activation("sigmoid"),
    "Tanh": _activation("tanh"),
    "ZerosLike": _filled(0.0),
}
