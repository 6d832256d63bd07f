"""A normal form for functions of states: many ways to write one have it in common.

A tensor's columns, which are those of its last axis, are pieces that lie side by side. Each piece
is a polynomial: a sum of products of atoms, with coefficients. Atoms are states, tensors that are
computed of no state, products with a matrix that all iterations share, and activation functions. So
(1 - z) * h + z * n, h + z * (n - h) and h - z * h + n * z are one polynomial; and a product of a
concatenation is the sum of its parts' products.

Coefficients are exact: only 1 is 1. Where algebra says that two bodies are equal they must be so up
to rounding: a body that multiplies by 0, or subtracts a term that it added, has no normal form, as
infinities and large numbers make a difference.

Before the columns is one axis, the rows, and perhaps others of extent 1.
"""

import dataclasses
import itertools
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._recursion import Recursion
from tf_ti.loops.passes import batching as _batching
from tf_ti.loops.passes.analysis import Analysis
from tf_ti.loops.passes.step import Unknown
from tf_ti.recurrent.spec import Limits

_MOST_TERMS = 32
# Functions and products of states, in one another: twice as many as cells have.
_MOST_NESTED = 8
# Beyond, products overflow, or vanish, in one order and not in another.
_LARGEST = Fraction(2**32)
_MOST_PIECES = 16
_LIMIT = "Without this limit the loop may be a sequence."
MASK = (
    "Let one mask hold all states: tf.where(mask[:, tf.newaxis], new, old), of slices that are one "
    "bool for each row."
)
_CURES = {"Select": MASK, "SelectV2": MASK}


@dataclasses.dataclass(frozen=True)
class State:
    """Columns of a state, the first of them this one."""

    index: int
    start: int = 0
    depth: ClassVar[int] = 0

    def shifted(self, by: int) -> "State":
        return dataclasses.replace(self, start=self.start + by)


@dataclasses.dataclass(frozen=True)
class Outside:
    """Columns of a tensor that is computed of no state; all are `start` where it is repeated."""

    reference: Any
    start: int = 0
    is_repeated: bool = False
    depth: ClassVar[int] = 0

    @property
    def tensor(self) -> tf.Tensor:
        return self.reference.deref()

    def shifted(self, by: int) -> "Outside":
        return self if self.is_repeated else dataclasses.replace(self, start=self.start + by)


@dataclasses.dataclass(frozen=True)
class Activated:
    """A function of each element: sigmoid, tanh, relu, leaky_relu (of a slope `parameter`), minimum
    (with the `parameter`) or unit, which limits to 0 and 1; `limits` is of those that have some."""

    function: str
    argument: "Form"
    parameter: Fraction = Fraction(0)
    limits: Limits = Limits(0)
    depth: int = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _set_depth(self, [monomial for monomial, _ in self.argument])

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
    depth: int = dataclasses.field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _set_depth(self, [self.factor])

    @property
    def matrix(self) -> tf.Tensor:
        return self.reference.deref()

    def shifted(self, by: int) -> "Product":
        return dataclasses.replace(self, start=self.start + by)


Atom = State | Outside | Activated | Product
Monomial = frozenset[Atom]
Polynomial = dict[Monomial, Fraction]
Form = frozenset[tuple[Monomial, Fraction]]
Columns = list[tuple[int, Polynomial]]  # the pieces, with their widths
ONE: Monomial = frozenset()


def _set_depth(atom: Activated | Product, monomials: Sequence[Monomial]) -> None:
    """Sets how many atoms are in one another; what is made of atoms recurses no deeper."""
    depth = 1 + max((inner.depth for inner in itertools.chain(*monomials)), default=0)
    if depth > _MOST_NESTED:
        raise Unknown("it has more functions of functions of a state than any cell")
    object.__setattr__(atom, "depth", depth)


def freeze(polynomial: Polynomial) -> Form:
    return frozenset(polynomial.items())


def of_atom(atom: Atom, coefficient: Fraction = Fraction(1)) -> Polynomial:
    return {frozenset([atom]): coefficient}


def of_number(number: float | Fraction) -> Polynomial:
    return {ONE: Fraction(number)} if number else {}


def shifted(polynomial: Polynomial, by: int) -> Polynomial:
    """The columns that are so many further."""
    if by == 0:
        return polynomial
    return {frozenset(a.shifted(by) for a in m): c for m, c in polynomial.items()}


def scaled(polynomial: Polynomial, by: int | Fraction) -> Polynomial:
    scaled = {m: c * by for m, c in polynomial.items()}
    if not all(1 / _LARGEST <= abs(c) <= _LARGEST for c in scaled.values()):
        raise Unknown("a coefficient is too large or too small")
    return scaled


def added(*polynomials: Polynomial) -> Polynomial:
    total: Polynomial = {}
    for monomial, coefficient in itertools.chain(*(p.items() for p in polynomials)):
        before = total.get(monomial, Fraction(0))
        if before * coefficient < 0 and not _may_cancel(monomial, before, coefficient):
            raise Unknown("terms cancel, which rounds")
        total[monomial] = before + coefficient
    if len(total) > _MOST_TERMS:
        raise Unknown("there are too many terms")
    return {m: c for m, c in total.items() if c}


def _may_cancel(monomial: Monomial, *coefficients: Fraction) -> bool:
    """True if terms that cancel round nothing else, as in 1 - (1 - z)."""
    is_small = all(isinstance(atom, State | Activated) for atom in monomial)
    return is_small and all(abs(c) <= 1 for c in coefficients)


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    if not a or not b:  # 0 times infinity is none
        raise Unknown("it is multiplied by 0")
    terms: list[Polynomial] = []
    for (m, c), (n, d) in itertools.product(a.items(), b.items()):
        if m & n or len(terms) == _MOST_TERMS:  # no cell has squares
            raise Unknown("there are products of a value with itself, or too many terms")
        terms.append(scaled({m | n: c}, d))
    return added(*terms)


def constant(polynomial: Polynomial) -> Fraction:
    """Its value, if it is a number."""
    if set(polynomial) - {ONE}:
        raise Unknown("an operand is no known number")
    return polynomial.get(ONE, Fraction(0))


def is_outside(monomial: Monomial) -> bool:
    """True if it is of no state."""
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
        raise Unknown("the rank of a value is not known")
    dims = tensor.shape.as_list() or [1]
    if dims[-1] is None or sum(d != 1 for d in dims[:-1]) > 1:
        raise Unknown("the columns of a value are not known, or it has rows along several axes")
    return dims[-1]


def _repeat(columns: Columns, count: int) -> Columns:
    """One column as many."""
    ((_, polynomial),) = columns
    if all(isinstance(atom, Outside) for monomial in polynomial for atom in monomial):
        repeated: Polynomial = {
            frozenset(
                dataclasses.replace(a, is_repeated=True) for a in m if isinstance(a, Outside)
            ): c
            for m, c in polynomial.items()
        }
        return [(count, repeated)]
    if count > _MOST_PIECES:
        raise Unknown("there are too many pieces")
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
            raise Unknown("operands have different numbers of columns")
        edges.update(itertools.accumulate(width for width, _ in columns))
    if len(edges) > _MOST_PIECES + 1:
        raise Unknown("there are too many pieces")
    return [
        (stop - start, function(*(take(columns, start, stop)[0][1] for columns in operands)))
        for start, stop in itertools.pairwise(sorted(edges))
    ]


# --- tensors -------------------------------------------------------------------------------------


class Reader:
    """The normal form of a body's tensors."""

    def __init__(self, analysis: Analysis):
        self._analysis = analysis
        loop = analysis.loop
        self._states = {
            loop.body.inputs[parameter].ref(): k
            for k, (_, parameter) in enumerate(loop.spec.back_edges)
        }
        self._read = Recursion(self._columns, tf.Tensor.ref)
        self._open = Recursion(self._opened, tf.Tensor.ref)
        # The states for which the body fails where they have not as many rows as something else.
        self.compared: set[int] = set()

    def columns(self, tensor: tf.Tensor) -> Columns:
        """Those of any tensor; `Unknown` where it is another function of states."""
        return self._read(tensor)

    def _columns(self, tensor: tf.Tensor) -> "Steps":
        if self._analysis.is_outside(tensor):
            return self.leaf(tensor)
        if tensor.ref() in self._states:
            return [(width(tensor), of_atom(State(self._states[tensor.ref()])))]
        op = tensor.op
        try:
            _batching.check_plain(op)
            if op.type not in _RULES:
                raise Unknown(f"cells have no {op.type} of states", cure=_CURES.get(op.type, ""))
            return (yield from _RULES[op.type](self, op, tensor.value_index))
        except Unknown as refusal:
            raise refusal.at(op) from None

    def compare_rows(self, reshape: tf.Operation, columns: Columns) -> None:
        """Takes note of a state that gets the rows of something else: it must have as many."""
        given, shape = reshape.inputs
        is_late = (
            _tf.known_extent(reshape.outputs[0], 0) is None and tf.get_static_value(shape) is None
        )
        if is_late and not self._analysis.is_outside(given) and self._analysis.is_outside(shape):
            for _, polynomial in columns:
                atoms = itertools.chain.from_iterable(polynomial)
                self.compared |= {atom.index for atom in atoms if isinstance(atom, State)}

    def leaf(self, tensor: tf.Tensor) -> Columns:
        """Those of a tensor of no state, as one piece."""
        while keeps_columns(tensor.op) and self._analysis.is_outside(tensor.op.inputs[0]):
            tensor = tensor.op.inputs[0]
        value = None
        if tensor.op.type == "Const" and tensor.dtype.is_floating:
            value = tf.get_static_value(tensor)
        if value is not None and value.size and (value == value.flat[0]).all():
            if np.isfinite(number := float(value.flat[0])):
                return [(width(tensor), of_number(number))]
        return [(width(tensor), of_atom(Outside(tensor.ref())))]

    def _opened(self, tensor: tf.Tensor) -> "Steps":
        """Those of a tensor of no state, as a sum."""
        op = tensor.op
        is_linear = op.type in _LINEAR_RULES and self._analysis.is_outside(tensor)
        if is_linear and _batching.is_plain(op):
            try:
                return (yield from _RULES[op.type](self, op, tensor.value_index))
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
                    pieces = take(self._open(atom.tensor), atom.start, atom.start + count)
                    pieces = merge(pieces)
                    if len(pieces) == 1:
                        term = scaled(pieces[0][1], coefficient)
            terms.append(term)
        return added(*terms)

    def product(self, factor: tf.Tensor, matrix: tf.Tensor, is_transposed: bool) -> "Steps":
        """The columns of a product with a matrix that all iterations share."""
        if not self._is_matrix(matrix):
            raise Unknown("a state is multiplied by no matrix that all iterations share")
        rows, count = matrix.shape.as_list()[:: -1 if is_transposed else 1]
        origin = [0, 0]
        while (view := _view(matrix)) is not None and self._is_matrix(view[0]):
            matrix, begins, is_turned = view
            origin = [a + b for a, b in zip(origin[:: -1 if is_turned else 1], begins)]
            is_transposed ^= is_turned
        row, start = origin[:: -1 if is_transposed else 1]
        if self._analysis.is_outside(factor):
            columns = self.leaf(factor)
        else:
            (columns,) = yield [factor]
        if width_of(columns) != rows or not rows:
            raise Unknown("the columns of a product do not fit the matrix")
        terms = []
        for piece, polynomial in columns:
            if not polynomial or ONE in polynomial:
                raise Unknown("a number is added before a product")
            for monomial, coefficient in polynomial.items():
                atom = Product(monomial, piece, matrix.ref(), is_transposed, row, start)
                terms.append(of_atom(atom, coefficient))
            row += piece
        return [(count, added(*terms))]

    def summands(self, tensor: tf.Tensor) -> list[Polynomial]:
        """The products of whole states that a tensor is written as the sum of."""
        while keeps_columns(tensor.op):
            tensor = tensor.op.inputs[0]
        op = tensor.op
        if op.type not in ("Add", "AddN", "AddV2") or any(t.op.type != "Mul" for t in op.inputs):
            raise Unknown("it is no sum of two products")
        return [polynomial for t in op.inputs for _, polynomial in self.columns(t)]

    def _is_matrix(self, tensor: tf.Tensor) -> bool:
        is_fixed = self._analysis.is_invariant(tensor) and tensor.shape.is_fully_defined()
        return is_fixed and tensor.shape.rank == 2


def keeps_columns(op: tf.Operation) -> bool:
    """True if only axes of extent 1 come or go before the columns."""
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
    larger = [[d for d in t.shape.as_list() if d != 1] for t in (given, made)]
    is_all = all(
        d is not None or part == slice(None) for d, part in zip(given.shape.as_list(), parts)
    )
    return is_all and larger[0] == larger[1]


def _window(op: tf.Operation, index: int) -> tuple[tf.Tensor, list[int], set[int]]:
    """The tensor of which an output is a part, its begin there, and the axes that it cuts."""
    if op.type in ("Split", "SplitV"):
        value, axis = op.inputs[::-1] if op.type == "Split" else op.inputs[::2]
        axis = int(_static(axis)) % value.shape.rank
        before = [_tf.known_extent(t, axis) for t in op.outputs[:index]]
        if None in before:
            raise Unknown("the extents of its parts are not known")
        return value, [sum(before) if k == axis else 0 for k in range(value.shape.rank)], {axis}
    value, *_ = op.inputs
    dims = value.shape.as_list()
    if op.type == "Slice":
        begins, sizes = (_static(t).tolist() for t in op.inputs[1:])
        slices = [slice(b, None if s == -1 else b + s) for b, s in zip(begins, sizes)]
    else:
        slices = _parts(op)
        if op.get_attr("new_axis_mask") or op.get_attr("shrink_axis_mask"):
            raise Unknown("it changes the axes")
    begins, cut = [0] * len(dims), set()
    for axis, (part, extent) in enumerate(zip(slices, dims)):
        if part in (slice(None), slice(0, None), slice(0, extent)):
            continue
        if extent is None:
            raise Unknown("an extent is not known")
        begins[axis] = part.indices(extent)[0]
        cut.add(axis)
    return value, begins, cut


def _parts(op: tf.Operation) -> list[slice]:
    """The slices that a StridedSlice takes of its input's axes; an element of one that goes."""
    begin, end, strides = (_static(t).tolist() for t in op.inputs[1:])
    if set(strides) - {1}:
        raise Unknown("it takes every other element")
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
    """The tensor of which a matrix is a part, its begin there, and true if it is transposed."""
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
        raise Unknown("its argument is no constant")
    return np.asarray(value)


# --- operations ----------------------------------------------------------------------------------

# The columns of an output, by those of other tensors; see `Recursion`.
Steps: TypeAlias = Generator[Sequence[tf.Tensor], list[Columns], Columns]
Rule = Callable[[Reader, tf.Operation, int], Steps]  # of which output


def _elementwise(function: Callable[..., Polynomial]) -> Rule:
    def rule(reader: Reader, op: tf.Operation, index: int) -> Steps:
        return _combine(function, (yield op.inputs), width(op.outputs[index]))

    return rule


def _activation(function: str) -> Rule:
    return _elementwise(lambda p: of_atom(Activated(function, freeze(p))))


def _multiplied(reader: Reader, op: tf.Operation, index: int) -> Steps:
    columns = yield from _elementwise(multiplied)(reader, op, index)
    dtype = op.outputs[0].dtype.as_numpy_dtype

    def limited(monomial: Monomial, coefficient: Fraction) -> Fraction:
        # The most that it gives is a number of this type: six times what a sixth is there is 1.
        is_limited = [getattr(atom, "function", "") for atom in monomial] == ["unit"]
        return Fraction(float(dtype(float(coefficient)))) if is_limited else coefficient

    return [(count, {m: limited(m, c) for m, c in p.items()}) for count, p in columns]


def _subtracted(a: Polynomial, b: Polynomial) -> Polynomial:
    return added(a, scaled(b, -1))


def _divided(a: Polynomial, b: Polynomial) -> Polynomial:
    divisor = constant(b)
    if not divisor:
        raise Unknown("it divides by 0")
    return scaled(a, 1 / divisor)


def _unit(argument: Polynomial, largest: Fraction, limits: Limits) -> Polynomial:
    """A polynomial limited to 0 and a number."""
    if largest <= 0:
        raise Unknown("it is limited to a range without numbers")
    limited = Activated("unit", freeze(scaled(argument, 1 / largest)), limits=limits)
    return of_atom(limited, largest)


def _inside(polynomial: Polynomial, function: str) -> Activated | None:
    """A function that is all there is."""
    if len(polynomial) == 1:
        ((monomial, coefficient),) = polynomial.items()
        if coefficient == 1 and len(monomial) == 1:
            (atom,) = monomial
            if isinstance(atom, Activated) and atom.function == function:
                return atom
    return None


def _with_number(a: Polynomial, b: Polynomial) -> tuple[Polynomial, Fraction, bool]:
    """Of two operands the one that is no number, the number, and whether that is the second."""
    if set(a) - {ONE}:
        return a, constant(b), True
    return b, constant(a), False


def _both(inner: Limits, outer: Limits) -> Limits:
    """Those of two functions, one limited below and one above; NaN's gradient must pass both."""
    return (inner | outer) & ~Limits.PASSES_NAN | inner & outer & Limits.PASSES_NAN


# TensorFlow selects who gets the gradient: at equality the first operand, at NaN the second one.
_MINIMUM = {
    True: Limits.PASSES_HIGH | Limits.ZERO_HIGH | Limits.ZERO_NAN,
    False: Limits.PASSES_NAN | Limits.ZERO_HIGH,
}
_MAXIMUM = {
    True: Limits.PASSES_LOW | Limits.ZERO_LOW | Limits.ZERO_NAN,
    False: Limits.PASSES_NAN | Limits.ZERO_LOW,
}
_CLIP = Limits.PASSES | Limits.ZERO_LOW | Limits.ZERO_HIGH


def _minimum(a: Polynomial, b: Polynomial) -> Polynomial:
    argument, largest, is_second = _with_number(a, b)
    relu, limits = _inside(argument, "relu"), _MINIMUM[is_second]
    if relu is not None:
        return _unit(dict(relu.argument), largest, _both(relu.limits, limits))
    return of_atom(Activated("minimum", freeze(argument), largest, limits))


def _maximum(a: Polynomial, b: Polynomial) -> Polynomial:
    argument, smallest, is_second = _with_number(a, b)
    if smallest:
        raise Unknown("it is a maximum with another number than 0", cure=_LIMIT)
    return _limited_below(argument, _MAXIMUM[is_second])


def _limited_below(argument: Polynomial, limits: Limits) -> Polynomial:
    """A polynomial limited to 0."""
    limited = _inside(argument, "minimum")
    if limited is not None:
        limits = _both(limited.limits, limits)
        return _unit(dict(limited.argument), limited.parameter, limits)
    return of_atom(Activated("relu", freeze(argument), limits=limits))


def _clip(a: Polynomial, smallest: Polynomial, largest: Polynomial) -> Polynomial:
    if constant(smallest):
        raise Unknown("it is limited to another number than 0", cure=_LIMIT)
    return _unit(a, constant(largest), _CLIP)


def _leaky_relu(reader: Reader, op: tf.Operation, index: int) -> Steps:
    slope = Fraction(op.get_attr("alpha"))
    (columns,) = yield op.inputs
    return [(count, of_atom(Activated("leaky_relu", freeze(p), slope))) for count, p in columns]


def _bias_add(reader: Reader, op: tf.Operation, index: int) -> Steps:
    if op.get_attr("data_format") != b"NHWC":
        raise Unknown("its layout is not NHWC")
    return (yield from _elementwise(added)(reader, op, index))


def _matmul(reader: Reader, op: tf.Operation, index: int) -> Steps:
    if op.get_attr("transpose_a"):
        raise Unknown("its first factor is transposed")
    factor, matrix = op.inputs
    return (yield from reader.product(factor, matrix, op.get_attr("transpose_b")))


def _batch_matmul(reader: Reader, op: tf.Operation, index: int) -> Steps:
    if op.get_attr("adj_x"):
        raise Unknown("its first factor is transposed")
    factor, matrix = op.inputs
    return (yield from reader.product(factor, matrix, op.get_attr("adj_y")))


def _einsum(reader: Reader, op: tf.Operation, index: int) -> Steps:
    equation = op.get_attr("equation").decode().replace("...", "")
    operands, result = equation.split("->")
    factor, _, matrix = operands.partition(",")
    if len(matrix) != 2 or not result or factor[:-1] != result[:-1]:
        raise Unknown("its equation is no product of rows and a matrix")
    pair = factor[-1] + result[-1]
    if matrix not in (pair, pair[::-1]) or len({*factor, result[-1]}) != len(factor) + 1:
        raise Unknown("its equation is no product of rows and a matrix")
    return (yield from reader.product(op.inputs[0], op.inputs[1], matrix != pair))


def _concat(reader: Reader, op: tf.Operation, index: int) -> Steps:
    *parts, axis = op.inputs
    if int(_static(axis)) % op.outputs[0].shape.rank != op.outputs[0].shape.rank - 1:
        raise Unknown("it concatenates other axes than the last")
    width(op.outputs[0])
    pieces = list(itertools.chain.from_iterable((yield parts)))
    if len(pieces) > _MOST_TERMS:
        raise Unknown("there are too many pieces")
    return pieces


def _part(reader: Reader, op: tf.Operation, index: int) -> Steps:
    if keeps_columns(op):
        return (yield from _same(reader, op, index))
    value, begins, cut = _window(op, index)
    if cut - {value.shape.rank - 1}:
        raise Unknown("it takes a part of other axes than the last")
    (columns,) = yield [value]
    return take(columns, begins[-1], begins[-1] + width(op.outputs[index]))


def _same(reader: Reader, op: tf.Operation, index: int) -> Steps:
    if not keeps_columns(op):
        raise Unknown("it moves columns")
    (columns,) = yield op.inputs[:1]
    return columns


def _reshaped(reader: Reader, op: tf.Operation, index: int) -> Steps:
    columns = yield from _same(reader, op, index)
    reader.compare_rows(op, columns)
    return columns


def _filled(value: float) -> Rule:
    def rule(reader: Reader, op: tf.Operation, index: int) -> Steps:
        yield []
        return [(width(op.outputs[0]), of_number(value))]

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
    "Neg": _elementwise(lambda p: scaled(p, -1)),
    "Reshape": _reshaped,
    "Sub": _elementwise(_subtracted),
}
_RULES: dict[str, Rule] = {
    **_LINEAR_RULES,
    "ClipByValue": _elementwise(_clip),
    "LeakyRelu": _leaky_relu,
    "Maximum": _elementwise(_maximum),
    "Minimum": _elementwise(_minimum),
    "Mul": _multiplied,
    "OnesLike": _filled(1.0),
    "RealDiv": _elementwise(_divided),
    "Relu": _elementwise(lambda p: _limited_below(p, Limits(0))),
    "Relu6": _elementwise(lambda p: _unit(p, Fraction(6), Limits(0))),
    "Sigmoid": _activation("sigmoid"),
    "Tanh": _activation("tanh"),
    "ZerosLike": _filled(0.0),
}
