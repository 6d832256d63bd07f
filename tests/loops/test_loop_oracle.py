"""`tf_ti.Loop` against TensorRT's formal semantics, over random networks of nested loops.

A case is a list of statements. `OracleNetwork` makes of it a network of loop_oracle.py, `Network`
one of tf_ti; their outputs must agree. `Generator` draws cases from a seed. A test that fails
prints its case.
"""

import contextlib
import dataclasses
import itertools
from typing import Any

import loop_oracle as oracle
import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import LoopOutput, TripLimit

# Layers. All floats are short binary fractions, so that nearly nothing is ever rounded.


@dataclasses.dataclass(frozen=True)
class Op:
    in_numpy: Any
    in_tensorflow: Any


def both(function):
    """An operation that NumPy, TensorFlow and the loop's own objects write alike."""
    return Op(function, function)


def np_total(x):
    if x.dtype == bool:
        return x.any()
    total = x.sum(dtype=x.dtype)
    return np.clip(total * 0.25, -3, 3) if x.dtype.kind == "f" else total % 11


def tf_total(x):
    x = tf.convert_to_tensor(x)
    if x.dtype == tf.bool:
        return tf.reduce_any(x)
    total = tf.reduce_sum(x)
    return tf.clip_by_value(total * 0.25, -3, 3) if x.dtype.is_floating else total % 11


FLOAT_OPS = {
    "mean": both(lambda a, b: (a + b) * 0.5),
    "difference": Op(
        lambda a, b: np.clip(a - b, -3, 3), lambda a, b: tf.clip_by_value(a - b, -3, 3)
    ),
    "product": Op(lambda a, b: np.clip(a * b, -2, 2), lambda a, b: tf.clip_by_value(a * b, -2, 2)),
    "maximum": Op(np.maximum, tf.maximum),
    "opposite": both(lambda a, b: 0.5 * b - a),
}
INT_OPS = {
    "sum": both(lambda a, b: (a + b) % 11),
    "difference of ints": both(lambda a, b: (a - b) % 7),
    "product of ints": both(lambda a, b: (a * b) % 11),
    "minimum": Op(np.minimum, tf.minimum),
}
BOOL_OPS = {
    "and": both(lambda a, b: a & b),
    "or": both(lambda a, b: a | b),
    "xor": both(lambda a, b: a ^ b),
    "not and": both(lambda a, b: ~a & b),
}
SHAPE_OPS = {
    "flip": both(lambda x: x[::-1]),
    "first": both(lambda x: x[0]),
    "last": both(lambda x: x[..., -1]),
    "transpose": Op(np.transpose, tf.transpose),
}
OTHER_OPS = {
    "total": Op(np_total, tf_total),
    "less": both(lambda a, b: a < b),
    "add": both(lambda a, b: a + b),
    "multiply": both(lambda a, b: a * b),
    "count down": both(lambda a: a - 1),
    "count up": both(lambda a: a + 1),
    "positive": both(lambda a: a > 0),
    "where": Op(np.where, tf.where),
    "small count": both(lambda a: a % 4),
    "negative count": both(lambda a: a % 4 - 1),
}
OPS = {**FLOAT_OPS, **INT_OPS, **BOOL_OPS, **SHAPE_OPS, **OTHER_OPS}
for _name in ("float32", "float64", "int32", "int64", "bool"):
    OPS[f"to {_name}"] = Op(lambda a, t=_name: a.astype(t), lambda a, t=_name: tf.cast(a, t))


def op_named(name):
    if name.startswith("fill "):
        shape = [int(n) for n in name.split()[1:]]
        return Op(lambda a: np.full(shape, a, a.dtype), lambda a: tf.fill(shape, a))
    return OPS[name]


# Cases


@dataclasses.dataclass(frozen=True)
class Case:
    """Statements, in the order in which a program has them, and the results to compare.

    tensor      result, array, how it is given: "tensor", "variable", "numpy" or "number"
    layer       result, the name of an `Op`, inputs...
    enter       loops..., by one `with` statement
    limit       loop, value, "COUNT" or "WHILE"
    iterator    result, loop, tensor, axis, reverse
    recurrence  result, loop, initial value
    next        recurrence, its second input
    output      result, loop, tensor, kind, axis, length or None, an element's zeros or None
    leave       closes what the last `enter` opened
    """

    statements: list[tuple]
    outputs: list[str]

    def uses(self, name):
        used = [x for statement in self.statements for x in statement[2:] if isinstance(x, str)]
        return name in used


@dataclasses.dataclass(frozen=True)
class Value:
    """The generator's knowledge of a value; `shape` is None where only a run tells it."""

    name: str
    dtype: str
    shape: tuple[int, ...] | None
    inside: frozenset[str] = frozenset()  # the loops that it is, or may be, from the inside of
    static: bool = True  # whether TensorFlow knows the shape where it knows those of the inputs

    @property
    def rank(self):
        return len(self.shape)


@dataclasses.dataclass
class Node:
    """A loop, and the loops that run inside it."""

    name: str
    children: list
    combined: bool  # entered with all the loops below it by one `with`
    blocks: bool = True  # whether it has a `with` of its own

    def below(self):
        return [self, *(node for child in self.children for node in child.below())]


class Generator:
    """Draws a case."""

    def __init__(self, rng):
        self.rng = rng
        self.case = Case([], [])
        self._live = []
        self._unused = []  # outputs of inner loops that nothing has used yet
        self._num_loops = 0
        self._num_values = 0
        roots = [self._tree(int(rng.choice([1, 2, 3], p=[0.3, 0.4, 0.3])))]
        if self._chance(0.3):
            roots.append(self._tree(1))
        together = len(roots) == 2 and self._chance(0.5)
        if together:
            self._enter([node for root in roots for node in root.below()])
        for root in roots:
            self._loop(root, frozenset())
        if together:
            self._emit("leave")

    # Choices

    def _chance(self, p):
        return bool(self.rng.random() < p)

    def _int(self, low, high):
        """From low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def _one_of(self, choices):
        return choices[self._int(0, len(choices) - 1)]

    def _pick(self, inside, condition=lambda value: True):
        """A live value that may be used inside the loops, or None; rather a late one."""
        fitting = [v for v in self._live if v.inside <= inside and condition(v)]
        if not fitting:
            return None
        fresh = [v for v in fitting if v in self._unused]
        value = self._one_of(fresh if fresh and self._chance(0.7) else fitting[-8:])
        if value in self._unused:
            self._unused.remove(value)
        return value

    def _tree(self, depth):
        name = "ABCDEFGH"[self._num_loops]
        self._num_loops += 1
        children = [self._tree(depth - 1)] if depth > 1 else []
        if depth > 1 and self._chance(0.25):
            children.append(self._tree(1))
        return Node(name, children, combined=bool(children) and self._chance(0.5))

    # Statements

    def _emit(self, kind, *arguments):
        self.case.statements.append((kind, *arguments))

    def _value(self, kind, prefix, dtype, shape, inside, static, *arguments):
        name = f"{prefix}{self._num_values}"
        self._num_values += 1
        self._emit(kind, name, *arguments)
        value = Value(name, dtype, shape, frozenset(inside), static or shape == ())
        self._live.append(value)
        return value

    def _dtype(self):
        return self._one_of(["float32", "float64", "float32", "int32", "int64", "bool"])

    def _tensor(self, dtype, shape, array=None, source=None):
        if array is None:
            if dtype.startswith("float"):
                array = self.rng.integers(-8, 9, shape) / 4
            else:
                array = self.rng.integers(0, 2 if dtype == "bool" else 11, shape)
        array = np.asarray(array, dtype)
        source = source or self._one_of(["tensor", "tensor", "numpy", "variable"])
        value = self._value("tensor", "x", dtype, tuple(array.shape), (), True, array, source)
        if source == "number":
            # It has no dtype of its own, so it is a count or a length only.
            self._live.remove(value)
        return value

    def _layer(self, op, dtype, shape, *inputs):
        inside = frozenset().union(*(v.inside for v in inputs))
        static = op.startswith("fill ") or all(v.static for v in inputs)
        names = [v.name for v in inputs]
        return self._value("layer", "y", dtype, shape, inside, static, op, *names)

    def _cast(self, value, dtype):
        if value.dtype == dtype:
            return value
        return self._layer(f"to {dtype}", dtype, value.shape, value)

    def _total(self, value):
        return value if value.shape == () else self._layer("total", value.dtype, (), value)

    def _fit(self, value, dtype, shape):
        """The value, or what can be made of it, with the dtype and the shape."""
        if value.shape != shape:
            value = self._total(value)
        value = self._cast(value, dtype)
        if value.shape != shape:
            value = self._layer(" ".join(["fill", *map(str, shape)]), dtype, shape, value)
        return value

    def _random_layer(self, inside):
        a = self._pick(inside)
        b = self._pick(inside)
        if a.shape is None:
            a = self._total(a)
        if self._chance(0.25) and a.rank:
            ops = ["flip", "first", "last"] + (["transpose"] if a.rank == 2 else [])
            op = self._one_of(ops)
            shape = {"first": a.shape[1:], "last": a.shape[:-1], "transpose": a.shape[::-1]}
            if 0 not in a.shape:
                return self._layer(op, a.dtype, shape.get(op, a.shape), a)
        if b.shape not in (a.shape, ()):
            b = self._total(b)
        b = self._cast(b, a.dtype)
        if self._chance(0.1):
            condition = self._cast(self._total(self._pick(inside)), "bool")
            return self._layer("where", a.dtype, a.shape, condition, a, b)
        if a.dtype != "bool" and self._chance(0.15):
            return self._layer("less", "bool", a.shape, a, b)
        ops = {"f": FLOAT_OPS, "i": INT_OPS, "b": BOOL_OPS}[a.dtype[0]]
        return self._layer(self._one_of(list(ops)), a.dtype, a.shape, a, b)

    # Loops

    def _enter(self, nodes):
        nodes = [nodes[i] for i in self.rng.permutation(len(nodes))]
        for node in nodes:
            node.blocks = False
        self._emit("enter", *(node.name for node in nodes))

    def _loop(self, node, outside, around=None):
        """A loop, all that is in it, and its outputs.

        `outside` are the loops around it, and `around` is a value from inside the closest of these.
        """
        inside = outside | {node.name}
        first = len(self._live)
        has_block = node.blocks
        if has_block:
            self._enter(node.below() if node.combined else [node])

        most, needed, trips, condition = self._limits(node, outside, around)
        iterators = [self._iterator(node, outside, needed) for _ in range(self._int(1, 3))]
        recurrences = [self._recurrence(node, outside) for _ in range(self._int(1, 3))]
        for _ in range(self._int(1, 3)):
            self._random_layer(inside)
        for child in node.children:
            self._loop(child, inside, self._one_of([*iterators, *recurrences]))
            self._random_layer(inside)
        if condition:
            self._condition(node, inside, *condition)
        for recurrence in recurrences:
            self._next(recurrence, around or self._pick(inside))
            around = None  # once is enough: this loop is inside that one

        outputs = []
        for _ in range(self._int(1, 3)):
            outputs.append(self._output(node, outside, iterators, recurrences, most, trips))
            # A loop does not use its own outputs.
            self._live.remove(outputs[-1])
        if has_block:
            # Values of the block are not to be used after it.
            self._emit("leave")
            del self._live[first:]
        self._live.extend(outputs)
        self._unused.extend(outputs)
        if not outside:
            self.case.outputs.extend(v.name for v in outputs)

    def _limits(self, node, outside, around):
        """Draws the limits.

        Returns:
            The most trips there can be, the extent that iterators need, the number of trips or None
            where it is not certain, and what the condition is made of, or None.
        """
        kind = self._one_of(["count", "count", "while", "both"])
        # Where a loop is not run those inside it are not, either.
        runs = node.children and self._chance(0.9)
        most, trips = None, None
        if kind != "while":
            # An inner loop's count rather differs between the outer loop's iterations.
            varying = around or self._pick(outside, lambda v: v.dtype in ("int32", "int64"))
            if varying and self._chance(0.6):
                if varying.dtype not in ("int32", "int64"):
                    varying = self._cast(self._total(varying), self._one_of(["int32", "int64"]))
                op, most = ("small count", 3) if self._chance(0.7) else ("negative count", 2)
                count = self._layer(op, varying.dtype, (), self._total(varying))
            else:
                count = self._one_of([1, 2, 2, 3, 3, 4] if runs else [-2, 0, 1, 2, 3, 4])
                most = trips = max(count, 0)
                dtype = self._one_of(["int32", "int64"])
                source = self._one_of(["tensor", "numpy", "variable", "number"])
                count = self._tensor(dtype, (), count, source)
            self._emit("limit", node.name, count.name, "COUNT")
        if kind == "count":
            return most, most, trips, None
        bound = self._one_of([1, 2, 3, 3, 4] if runs else [0, 1, 2, 3, 4])
        counted = trips is not None and trips <= bound
        # The condition is evaluated for the last time in iteration `bound`.
        needed = bound if counted else bound + 1
        condition = self._condition_parts(node, outside, bound, needed, counted)
        return bound if most is None else min(bound, most), needed, None, condition

    def _condition_parts(self, node, outside, bound, needed, counted):
        """The kind of a condition that ends the loop after `bound` trips, and a value for it."""
        kind = self._one_of(["counter", "iterator", "data"])
        if kind == "iterator":
            goes_on = [True] * needed
            if not counted:
                goes_on[-1] = False
            goes_on += [self._chance(0.5) for _ in range(self._int(0, 2))]
            reverse = self._chance(0.3)
            tensor = self._tensor("bool", (), goes_on[::-1] if reverse else goes_on)
            return kind, self._add_iterator(node, tensor, 0, reverse)
        dtype = self._one_of(["int32", "int64"])
        down = self._chance(0.4)
        initial = self._tensor(dtype, (), bound if down else 0)
        counter = self._add_recurrence(node, outside, initial)
        following = self._layer("count down" if down else "count up", dtype, (), counter)
        self._emit("next", counter.name, following.name)
        if down:
            return kind, self._layer("positive", "bool", (), counter)
        return kind, self._layer("less", "bool", (), counter, self._tensor(dtype, (), bound))

    def _condition(self, node, inside, kind, value):
        if kind == "data":
            data = self._pick(inside, lambda v: node.name in v.inside)
            data = self._cast(self._total(data), "float64")
            threshold = self._tensor("float64", (), self._one_of([1.7, 7.5]))
            is_less = self._layer("less", "bool", (), data, threshold)
            value = self._layer("and", "bool", (), value, is_less)
        self._emit("limit", node.name, value.name, "WHILE")

    def _add_iterator(self, node, tensor, axis, reverse):
        shape = list(tensor.shape)
        del shape[axis]
        inside = tensor.inside | {node.name}
        arguments = (node.name, tensor.name, axis, reverse)
        static = tensor.static
        return self._value("iterator", "it", tensor.dtype, tuple(shape), inside, static, *arguments)

    def _iterator(self, node, outside, needed):
        def iterable(value):
            return value.shape is not None and max(value.shape, default=-1) >= needed

        tensor = self._pick(outside, iterable)
        if tensor is None or self._chance(0.4):
            shape = [self._int(1, 4) for _ in range(self._int(1, 3))]
            axis = self._int(0, len(shape) - 1)
            shape[axis] = needed + self._one_of([0, 0, 1, 2])
            tensor = self._tensor(self._dtype(), tuple(shape))
        else:
            axis = self._one_of([i for i, n in enumerate(tensor.shape) if n >= needed])
        if self._chance(0.4):
            axis -= tensor.rank
        return self._add_iterator(node, tensor, axis, self._chance(0.4))

    def _add_recurrence(self, node, outside, initial):
        inside = outside | {node.name}
        arguments = (node.name, initial.name)
        static = initial.static
        return self._value(
            "recurrence", "h", initial.dtype, initial.shape, inside, static, *arguments
        )

    def _recurrence(self, node, outside):
        initial = self._pick(outside, lambda v: v.shape is not None and v.rank < 4)
        if initial is None or self._chance(0.4):
            shape = tuple(self._int(1, 3) for _ in range(self._int(0, 2)))
            initial = self._tensor(self._dtype(), shape)
        return self._add_recurrence(node, outside, initial)

    def _next(self, recurrence, value):
        value = self._fit(value, recurrence.dtype, recurrence.shape)
        if self._chance(0.6):
            ops = {"f": FLOAT_OPS, "i": INT_OPS, "b": BOOL_OPS}[recurrence.dtype[0]]
            op = self._one_of(list(ops))
            value = self._layer(op, recurrence.dtype, recurrence.shape, recurrence, value)
        self._emit("next", recurrence.name, value.name)

    def _output(self, node, outside, iterators, recurrences, most, trips):
        # An output is outside its loop. That it depends on all loops around it is a safe guess.
        if self._chance(0.3):
            value = self._one_of(recurrences)
            arguments = (node.name, value.name, "LAST_VALUE", 0, None, None)
            return self._value(
                "output", "out", value.dtype, value.shape, outside, value.static, *arguments
            )
        inside = outside | {node.name}
        may_be_empty = trips is None or trips == 0

        def fits(value):
            return value.shape is not None and value.rank < 4 and (value.static or not may_be_empty)

        own = "" if self._chance(0.15) else node.name
        value = self._pick(inside, lambda v: fits(v) and (not own or own in v.inside))
        varying = [v for v in [*iterators, *recurrences] if fits(v)]
        if varying and self._chance(0.4):
            value = self._one_of(varying)
        if value is None:
            value = self._total(self._pick(inside, lambda v: node.name in v.inside))
        axis = self._int(-value.rank - 1, value.rank)
        length, extent, static = None, trips, False
        if self._chance(0.5):
            extent = most + self._one_of([0, 1, 3])
            source = self._one_of(["tensor", "numpy", "number"])
            length = self._tensor(self._one_of(["int32", "int64"]), (), extent, source)
            static = source == "number"
        shape = None
        if extent is not None:
            shape = list(value.shape)
            shape.insert(axis % (value.rank + 1), extent)
            shape = tuple(shape)
        kind = self._one_of(["CONCATENATE", "REVERSE"])
        like = np.zeros(value.shape, value.dtype)
        length = length and length.name
        arguments = (node.name, value.name, kind, axis, length, like)
        static = static and value.static
        return self._value("output", "out", value.dtype, shape, outside, static, *arguments)


# Networks made of a case


class OracleNetwork:
    def __init__(self, case):
        self.values = {}
        self.loops = {}
        self.loop_of = {}
        for kind, *arguments in case.statements:
            getattr(self, kind)(*arguments)
        self.outputs = [self.values[name].at({}) for name in case.outputs]

    def enter(self, *loops):
        for loop in loops:
            self.loops[loop] = oracle.Loop(loop)

    def leave(self):
        pass

    def tensor(self, result, array, source):
        self.values[result] = oracle.Constant(array)

    def layer(self, result, op, *inputs):
        inputs = [self.values[x] for x in inputs]
        self.values[result] = oracle.Layer(op_named(op).in_numpy, *inputs)

    def limit(self, loop, value, kind):
        attribute = {"COUNT": "count", "WHILE": "condition"}[kind]
        setattr(self.loops[loop], attribute, self.values[value])

    def iterator(self, result, loop, tensor, axis, reverse):
        tensor = self.values[tensor]
        self.values[result] = oracle.Iterator(self.loops[loop], tensor, axis, reverse)

    def recurrence(self, result, loop, initial):
        self.values[result] = oracle.Recurrence(self.loops[loop], self.values[initial])

    def next(self, recurrence, value):
        self.values[recurrence].next = self.values[value]

    def output(self, result, loop, tensor, kind, axis, length, like):
        loop, tensor = self.loops[loop], self.values[tensor]
        if kind == "LAST_VALUE":
            self.values[result] = oracle.LastValue(loop, tensor)
        else:
            length = self.values[length] if length else None
            reverse = kind == "REVERSE"
            self.values[result] = oracle.Concatenate(loop, tensor, axis, reverse, length, like)
            self.loop_of[result] = loop

    def was_empty(self, result):
        """True if an output was, or but for the oracle's laziness may be, made of no values."""
        trips = self.loop_of[result].all_trips()
        return not trips or 0 in trips


class Network:
    """The case in tf_ti. It gives its loops tensors, their objects or arguments, as these come."""

    def __init__(self, case, arguments):
        self.values = {}
        self.loops = {}
        self.blocks = []
        self.arguments = arguments
        self.steps = 0
        with contextlib.ExitStack() as blocks:
            # An error inside a `with` closes the blocks, too.
            self.blocks.append(blocks)
            for kind, *rest in case.statements:
                self.steps += 1
                getattr(self, kind)(*rest)
        self.outputs = [self.values[name].tensor for name in case.outputs]

    def use(self, name):
        """Every third time the tensor itself, if the value is one of the loop's objects."""
        value = self.values[name]
        return value if self.steps % 3 else getattr(value, "tensor", value)

    def enter(self, *loops):
        self.blocks.append(self.blocks[-1].enter_context(contextlib.ExitStack()))
        for loop in loops:
            self.loops[loop] = self.blocks[-1].enter_context(tf_ti.Loop(loop))

    def leave(self):
        self.blocks.pop().close()

    def tensor(self, result, array, source):
        self.values[result] = self.arguments[result]

    def layer(self, result, op, *inputs):
        self.values[result] = op_named(op).in_tensorflow(*(self.use(x) for x in inputs))

    def limit(self, loop, value, kind):
        self.loops[loop].add_trip_limit(self.use(value), TripLimit[kind])

    def iterator(self, result, loop, tensor, axis, reverse):
        self.values[result] = self.loops[loop].add_iterator(self.use(tensor), axis, reverse)

    def recurrence(self, result, loop, initial):
        self.values[result] = self.loops[loop].add_recurrence(self.use(initial))

    def next(self, recurrence, value):
        if self.steps % 2:
            self.values[recurrence].set_input(1, self.use(value))
        else:
            self.values[recurrence].next = self.use(value)

    def output(self, result, loop, tensor, kind, axis, length, like):
        # A recurrence's last value is asked for with the object or its tensor.
        add, tensor, kind = self.loops[loop].add_loop_output, self.use(tensor), LoopOutput[kind]
        if length is None:
            self.values[result] = add(tensor, kind, axis)
        elif self.steps % 2 or isinstance(self.values[length], int):
            # A number given at once is part of the output's static shape.
            self.values[result] = add(tensor, kind, axis, length=self.use(length))
        else:
            self.values[result] = add(tensor, kind, axis)
            self.values[result].set_input(1, self.use(length))


def arguments_of(case):
    """The case's tensors: Python numbers, arrays, variables, tensors."""
    make = {
        "tensor": tf.constant,
        "variable": tf.Variable,
        "numpy": lambda array: array,
        "number": lambda array: array.item(),
    }
    tensors = [rest for kind, *rest in case.statements if kind == "tensor"]
    return {name: make[source](array) for name, array, source in tensors}


def run(case, mode):
    arguments = arguments_of(case)
    if mode == "eager":
        return Network(case, arguments).outputs
    fed = {k: v for k, v in arguments.items() if isinstance(v, tf.Tensor)}

    def spec(tensor):
        if mode == "function" or tensor.shape.rank == 0:
            return tf.TensorSpec(tensor.shape, tensor.dtype)
        shape = [None] * tensor.shape.rank if mode == "unknown extents" else None
        return tf.TensorSpec(shape, tensor.dtype)

    @tf.function(input_signature=[{k: spec(v) for k, v in fed.items()}], autograph=False)
    def call(fed):
        return Network(case, {**arguments, **fed}).outputs

    return call(fed)


def show(case):
    for kind, *arguments in case.statements:
        print(kind, *(repr(a) if isinstance(a, np.ndarray) else a for a in arguments))
    print("compared:", *case.outputs)


def check(case, mode):
    show(case)
    expected = OracleNetwork(case)
    empty = {name for name in expected.loop_of if expected.was_empty(name)}
    # Nobody knows there how an empty sequence's elements would have looked.
    if empty and mode == "unknown ranks":
        mode = "unknown extents"
    if mode == "unknown extents" and any(case.uses(name) for name in empty):
        mode = "function"
    print(f"mode: {mode}, empty: {empty}")
    actual = run(case, mode)
    assert len(actual) == len(expected.outputs)
    for name, a, e in zip(case.outputs, actual, expected.outputs):
        a = a.numpy()
        # NumPy 1 widens scalars by their value.
        assert a.dtype == e.dtype or np.__version__ < "2", name
        if name in empty and mode == "unknown extents" and a.shape != e.shape:
            assert (a.size, a.ndim) == (0, e.ndim), name
            continue
        assert a.shape == e.shape, name
        np.testing.assert_allclose(a, e, rtol=1e-6, err_msg=name)


MODES = ["eager", "function", "unknown extents", "unknown ranks"]
modes = pytest.mark.parametrize("mode", MODES)


# TensorRT's examples


def counted(n, *statements, loop="A"):
    """The statements in a loop that makes n trips."""
    count = [("tensor", "n", np.int32(n), "tensor"), ("limit", loop, "n", "COUNT")]
    return [("enter", loop), *count, *statements, ("leave",)]


def concatenate(tensor, axis=0, kind="CONCATENATE", length=None, loop="A", result="out"):
    return ("output", result, loop, tensor, kind, axis, length, None)


def agree(case, expected, mode="eager"):
    """Both networks give the values written down here."""
    check(case, mode)
    for value, e in zip(OracleNetwork(case).outputs, expected):
        assert value.tolist() == e


MATRIX = np.float32([[2, 3, 5], [4, 6, 8]])


@modes
@pytest.mark.parametrize(
    "axis, reverse, elements",
    [
        (0, False, [[2, 3, 5], [4, 6, 8]]),
        (1, False, [[2, 4], [3, 6], [5, 8]]),
        (0, True, [[4, 6, 8], [2, 3, 5]]),
        (1, True, [[5, 8], [3, 6], [2, 4]]),
    ],
)
def test_tensorrts_iterated_matrix(axis, reverse, elements, mode):
    statements = counted(
        len(elements), ("iterator", "row", "A", "x", axis, reverse), concatenate("row")
    )
    agree(Case([("tensor", "x", MATRIX, "tensor"), *statements], ["out"]), [elements], mode)


@modes
@pytest.mark.parametrize(
    "kind, axis, expected",
    [
        ("CONCATENATE", 0, [[1, 2, 3], [4, 5, 6]]),
        ("CONCATENATE", 1, [[1, 4], [2, 5], [3, 6]]),
        ("REVERSE", 0, [[4, 5, 6], [1, 2, 3]]),
        ("REVERSE", 1, [[4, 1], [5, 2], [6, 3]]),
    ],
)
def test_tensorrts_concatenated_vectors(kind, axis, expected, mode):
    statements = counted(2, ("iterator", "abc", "A", "x", 0, False), concatenate("abc", axis, kind))
    x = np.arange(1.0, 7.0).reshape(2, 3)
    agree(Case([("tensor", "x", x, "tensor"), *statements], ["out"]), [expected], mode)


@modes
def test_tensorrts_for_loop(mode):
    """for (int32_t i = j; ...; i += k)"""
    statements = counted(
        4,
        ("recurrence", "i", "A", "j"),
        ("layer", "next", "add", "i", "k"),
        ("next", "i", "next"),
        concatenate("i"),
        ("output", "last", "A", "i", "LAST_VALUE", 0, None, None),
    )
    given = [("tensor", "j", np.int32(5), "tensor"), ("tensor", "k", np.int32(3), "tensor")]
    agree(Case([*given, *statements], ["out", "last"]), [[5, 8, 11, 14], 17], mode)


# Nesting by dataflow, however the loops are entered

# B and C are inside A, and C uses what B made: C adds up B's rows, which are A's.
SIBLINGS = [
    ("limit", "A", "three", "COUNT"),
    ("iterator", "a", "A", "x", 0, False),
    ("limit", "B", "two", "COUNT"),
    ("output", "b_out", "B", "a", "CONCATENATE", 0, None, None),
    ("limit", "C", "two", "COUNT"),
    ("iterator", "c", "C", "b_out", 0, False),
    ("recurrence", "h", "C", "a"),
    ("layer", "next", "add", "h", "c"),
    ("next", "h", "next"),
    ("output", "c_out", "C", "h", "LAST_VALUE", 0, None, None),
    concatenate("b_out", 1, result="out0"),
    concatenate("c_out", 0, "REVERSE", result="out1"),
]
# C is inside B, and B inside A: each uses the iterator of the one around it.
CHAIN = [
    ("limit", "A", "three", "COUNT"),
    ("iterator", "a", "A", "x", 0, False),
    ("limit", "B", "two", "COUNT"),
    ("recurrence", "b", "B", "a"),
    ("limit", "C", "two", "COUNT"),
    ("recurrence", "c", "C", "b"),
    ("layer", "c_next", "add", "c", "b"),
    ("next", "c", "c_next"),
    ("output", "c_out", "C", "c", "LAST_VALUE", 0, None, None),
    ("next", "b", "c_out"),
    ("output", "b_out", "B", "b", "CONCATENATE", 0, None, None),
    concatenate("b_out", -1, result="out0"),
    concatenate("a", result="out1"),
]
# None is inside another one: B starts from what A made, C counts by what B made.
SEQUENCE = [
    ("limit", "A", "three", "COUNT"),
    ("iterator", "a", "A", "x", 0, False),
    ("output", "a_out", "A", "a", "REVERSE", 0, None, None),
    ("limit", "B", "two", "COUNT"),
    ("iterator", "b", "B", "a_out", 0, False),
    ("recurrence", "h", "B", "three"),
    ("layer", "minus", "count down", "h"),
    ("next", "h", "minus"),
    ("output", "out0", "B", "b", "CONCATENATE", 0, None, None),
    ("output", "b_last", "B", "h", "LAST_VALUE", 0, None, None),
    ("limit", "C", "b_last", "COUNT"),
    ("iterator", "c", "C", "a_out", 0, False),
    ("output", "out1", "C", "c", "CONCATENATE", 0, None, None),
]
# B and C need nothing of A's, which uses what they make, and B needs nothing of C's.
INDEPENDENT = [
    ("limit", "B", "two", "COUNT"),
    ("recurrence", "b", "B", "two"),
    ("layer", "b_next", "add", "b", "b"),
    ("next", "b", "b_next"),
    ("output", "b_out", "B", "b", "LAST_VALUE", 0, None, None),
    ("limit", "C", "three", "COUNT"),
    ("iterator", "c", "C", "x", 0, True),
    ("output", "out0", "C", "c", "CONCATENATE", 0, None, None),
    ("limit", "A", "three", "COUNT"),
    ("iterator", "a", "A", "out0", 0, False),
    ("output", "out1", "A", "a", "CONCATENATE", 0, "b_out", None),
]
NETWORKS = {
    "siblings": (SIBLINGS, [[[1, 2, 4]] * 2, [12, 6, 3]]),
    "chain": (CHAIN, [[[1, 2, 4], [3, 6, 12]], [1, 2, 4]]),
    "sequence": (SEQUENCE, [[4, 2], [4]]),
    "independent": (INDEPENDENT, [[4, 2, 1], [4, 2, 1, 0, 0, 0, 0, 0]]),
}


@pytest.mark.parametrize("mode", ["eager", "function"])
@pytest.mark.parametrize("order", ["".join(p) for p in itertools.permutations("ABC")])
@pytest.mark.parametrize("network", NETWORKS)
def test_loops_entered_together_nest_by_dataflow(network, order, mode):
    statements, expected = NETWORKS[network]
    given = [
        ("tensor", "x", np.int32([1, 2, 4]), "tensor"),
        ("tensor", "two", np.int32(2), "tensor"),
        ("tensor", "three", np.int32(3), "tensor"),
    ]
    case = Case([*given, ("enter", *order), *statements, ("leave",)], ["out0", "out1"])
    agree(case, expected, mode)


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_loops_that_use_one_anothers_inside_are_rejected(order):
    case = Case(
        [
            ("tensor", "x", np.int32([1, 2, 4]), "tensor"),
            ("tensor", "two", np.int32(2), "tensor"),
            ("enter", *order),
            ("limit", "A", "two", "COUNT"),
            ("limit", "B", "two", "COUNT"),
            ("iterator", "a", "A", "x", 0, False),
            ("iterator", "b", "B", "x", 0, False),
            ("output", "out0", "A", "b", "CONCATENATE", 0, None, None),
            ("output", "out1", "B", "a", "CONCATENATE", 0, None, None),
            ("leave",),
        ],
        ["out0", "out1"],
    )
    with pytest.raises(oracle.NotInside):
        OracleNetwork(case)
    with pytest.raises(ValueError, match="(?s)'A'.*'B'|'B'.*'A'"):
        run(case, "eager")


# Laziness, and what is out of range


def iterating(extents, count, goes_on, *statements, reverse=False):
    """A loop over zeros of these extents, with a count or values of its condition or both."""
    given, inside = [], []
    for i, extent in enumerate(extents):
        given.append(("tensor", f"x{i}", np.zeros(extent), "tensor"))
        inside.append(("iterator", f"it{i}", "A", f"x{i}", 0, reverse))
    if count is not None:
        inside += [("tensor", "n", np.int64(count), "tensor"), ("limit", "A", "n", "COUNT")]
    if goes_on is not None:
        given.append(("tensor", "goes_on", np.array(goes_on, bool), "tensor"))
        inside.append(("iterator", "while", "A", "goes_on", 0, False))
        inside.append(("limit", "A", "while", "WHILE"))
    case = [*given, ("enter", "A"), *inside, *statements, ("leave",)]
    return Case(case, [statement[1] for statement in statements if statement[0] == "output"])


@modes
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "extent, count, goes_on",
    [
        (2, 3, None),
        (0, 1, None),
        (2, None, [1, 1, 1, 0]),
        (3, 4, [1, 1, 1]),  # the condition is the one that ends too early
        (3, None, [1, 1, 1]),
        (1, 5, [1, 1, 0]),
    ],
)
def test_an_iterator_ends_before_its_loop(extent, count, goes_on, reverse, mode):
    case = iterating([extent], count, goes_on, concatenate("it0"), reverse=reverse)
    with pytest.raises(oracle.OutOfRange):
        OracleNetwork(case)
    with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)'A'.*iterator"):
        run(case, mode)


@modes
@pytest.mark.parametrize(
    "extents, count, goes_on, statements",
    [
        # As many elements as trips.
        ([3], 3, None, [concatenate("it0")]),
        ([2], None, [1, 1, 0], [concatenate("it0")]),
        # At n = count the condition is not evaluated.
        ([3], 3, [1, 1, 1], [concatenate("it0")]),
        ([0], 0, [], [concatenate("it0")]),
        ([0], -1, [], [concatenate("it0")]),
        # Nothing of an iteration that does not take place is.
        ([0], 4, [0], [concatenate("it0")]),
        # An iterator that no output needs is not read.
        ([3, 1], 3, None, [concatenate("it0"), ("layer", "dead", "add", "it1", "it1")]),
    ],
)
def test_elements_are_read_when_they_are_needed(extents, count, goes_on, statements, mode):
    if -1 in [count] or count == 0 or goes_on == [0]:
        # The oracle is told what the elements of an empty sequence would have been.
        statements = [(*statement[:-1], np.zeros(())) for statement in statements]
    check(iterating(extents, count, goes_on, *statements), mode)


@modes
@pytest.mark.parametrize("kind", ["CONCATENATE", "REVERSE"])
@pytest.mark.parametrize("source", ["tensor", "number", "variable"])
@pytest.mark.parametrize("trips", ["count", "while"])
def test_a_length_is_less_than_the_trips(trips, source, kind, mode):
    length = ("tensor", "length", np.int32(2), source)
    goes_on = [1, 1, 1, 0] if trips == "while" else None
    case = iterating(
        [3], None if goes_on else 3, goes_on, length, concatenate("it0", 0, kind, "length")
    )
    with pytest.raises(oracle.OutOfRange):
        OracleNetwork(case)
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="(?s)'A'.*output 0"):
        run(case, mode)


@modes
def test_an_inner_output_of_each_iterations_own_length_is_iterated(mode):
    """For each n the sum of k * k over k < n: one loop makes the squares, another adds them."""
    squares = [
        ("limit", "B", "n", "COUNT"),
        ("recurrence", "k", "B", "zero"),
        ("layer", "k_next", "count up", "k"),
        ("next", "k", "k_next"),
        ("layer", "square", "multiply", "k", "k"),
        ("output", "squares", "B", "square", "REVERSE", 0, None, np.int32(0)),
    ]
    sums = [
        ("limit", "C", "n", "COUNT"),
        ("iterator", "it", "C", "squares", 0, False),
        ("recurrence", "s", "C", "zero"),
        ("layer", "s_next", "add", "s", "it"),
        ("next", "s", "s_next"),
        ("output", "sum", "C", "s", "LAST_VALUE", 0, None, None),
    ]
    given = [
        ("tensor", "counts", np.int32([3, 0, 5, -2]), "tensor"),
        ("tensor", "zero", np.int32(0), "numpy"),
        ("tensor", "four", np.int32(4), "number"),
    ]
    outer = [("limit", "A", "four", "COUNT"), ("iterator", "n", "A", "counts", 0, False)]
    inner = [("enter", "B"), *squares, ("leave",), ("enter", "C"), *sums, ("leave",)]
    case = [*given, ("enter", "A"), *outer, *inner, concatenate("sum"), ("leave",)]
    agree(Case(case, ["out"]), [[5, 0, 30, 0]], mode)


# Random networks


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(40), indirect=True)
def test_random_networks(seed, rng):
    check(Generator(rng).case, MODES[seed % len(MODES)])
