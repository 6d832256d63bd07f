"""TensorIterator, Loop and If of `tf_ti.openvino`, against OpenVINO and their definitions.

OpenVINO is no oracle for ranges that are not whole, nor for what is not a state after no iteration:
these are compared with NumPy.
"""

import dataclasses
import importlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")

op = ov.opset15
WHOLE = {"start": 0, "stride": 1, "part_size": 1, "end": -1}


def f(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def constant(value, dtype=np.float32):
    return op.constant(np.asarray(value, dtype))


def piece(axis, **others):
    return {**WHOLE, "axis": axis, **others}


def backwards(axis, size=1):
    return piece(axis, start=-1, end=0, stride=-size, part_size=size)


def size(axis, extent):
    return piece(axis, stride=extent, part_size=extent)


@dataclasses.dataclass(frozen=True)
class Iteration:
    """A loop around a body.

    Attributes:
        body: from nodes to nodes; a Loop's first one is its condition.
        ports: what each Parameter gets: "same", "number", a range, or the number of the result
            that leads to it.
        outputs: (number of a result, None or a range)
        shapes: of Parameters that are not as their inputs tell.
    """

    body: object
    ports: tuple
    outputs: tuple
    shapes: dict = dataclasses.field(default_factory=dict)
    number: tuple = ((), np.int64)

    def add(self, nodes, trip_count=None, condition=None):
        """The outputs of the loop around these nodes; a Loop if there is a trip count."""
        given = iter(nodes)
        sources = [None if port == "number" else next(given) for port in self.ports]
        parameters = []
        for i, (port, source) in enumerate(zip(self.ports, sources)):
            if port == "number":
                parameters.append(op.parameter(*self.number))
                continue
            shape = source.get_partial_shape()
            if isinstance(port, dict):
                shape[port["axis"]] = port["part_size"]
            parameters.append(op.parameter(self.shapes.get(i, shape), source.get_element_type()))
        results = [op.result(node) for node in self.body(*parameters)]
        body = ov.Model(results, parameters, "body")
        if trip_count is None:
            loop = op.tensor_iterator()
            loop.set_function(body)
        else:
            loop = op.loop(trip_count, condition)
            loop.set_function(body)
            number = self.ports.index("number") if "number" in self.ports else -1
            loop.set_special_body_ports([number, 0])
        for port, source, parameter in zip(self.ports, sources, parameters):
            if isinstance(port, dict):
                loop.set_sliced_input(parameter, source, **port)
            elif port == "same":
                loop.set_invariant_input(parameter, source)
            elif port != "number":
                loop.set_merged_input(parameter, source, results[port].output(0))
        made = []
        for number, range_ in self.outputs:
            result = results[number].output(0)
            if range_ is None:
                made.append(loop.get_iter_value(result, -1))
            else:
                made.append(loop.get_concatenated_slices(result, **range_))
        loop.validate_and_infer_types()
        return made


TRUE = constant(True, np.bool_)


def iterator(*arrays, **fields):
    loop = Iteration(**fields)
    return lambda *nodes: loop.add([node.output(0) for node in nodes]), arrays


def loop(*arrays, trip_count=-1, condition=True, **fields):
    """A Loop; a trip count or a condition of None is an input of the model."""
    made = Iteration(**fields)

    def function(*nodes):
        nodes = list(nodes)
        count = nodes.pop(0) if trip_count is None else constant(trip_count, np.int64)
        begins = nodes.pop(0) if condition is None else constant(condition, np.bool_)
        return made.add([node.output(0) for node in nodes], count, begins)

    return function, arrays


def running(x, total):
    total = op.add(total, x)
    return [total, op.multiply(total, constant(2.0))]


def mixed(a, b, same, total):
    total = op.add(total, op.add(op.multiply(a, op.transpose(b, [1, 0])), same))
    return [op.tanh(total), op.sin(total), op.multiply(a, constant(3.0))]


def swap(x, a, b):
    return [op.add(b, x), op.multiply(a, constant(0.5))]


def counted(number, x):
    """Goes on until a state is 5 or more."""
    total = op.add(x, op.convert(number, "f32"))
    return [op.less(op.reduce_sum(total, [0, 1], False), constant(5.0)), total]


def ever(number, x, total):
    total = op.add(total, op.multiply(x, op.convert(number, "f32")))
    wave = op.sin(total)
    return [constant(True, np.bool_), total, wave, op.transpose(wave, [1, 0])]


def grow(x, rows):
    return [constant(True, np.bool_), op.concat([rows, x], 0), op.multiply(rows, constant(2.0))]


ROWS = f(5, 3)
SMALL = np.full([1, 2], 0.25, np.float32)
COUNTED = {"body": counted, "ports": ("number", 1), "outputs": ((1, None), (1, piece(0)))}
EVER = {
    "body": ever,
    "ports": ("number", piece(0), 1),
    "outputs": ((1, None), (2, piece(0)), (3, piece(1))),
}
GROWING = {
    "body": grow,
    "ports": (piece(0), 1),
    "outputs": ((1, None), (2, None)),
    "shapes": {1: [-1, 3]},
}

CASES = {
    "forwards": iterator(
        ROWS, f(1, 3), body=running, ports=(piece(0), 0), outputs=((0, None), (1, piece(0)))
    ),
    "backwards": iterator(
        ROWS, f(1, 3), body=running, ports=(backwards(0), 0), outputs=((1, backwards(0)),)
    ),
    "read backwards, written forwards": iterator(
        ROWS, f(1, 3), body=running, ports=(backwards(0), 0), outputs=((1, piece(0)), (0, None))
    ),
    "pieces of two": iterator(
        f(3, 6), f(3, 2), body=running, ports=(size(1, 2), 0), outputs=((1, size(1, 2)), (1, None))
    ),
    "pieces of two backwards": iterator(
        f(3, 6), f(3, 2), body=running, ports=(backwards(1, 2), 0), outputs=((1, backwards(1, 2)),)
    ),
    "another axis for the output": iterator(
        f(3, 6), f(3, 1), body=running, ports=(piece(1), 0), outputs=((1, size(0, 3)),)
    ),
    "several slices, and the same for all": iterator(
        *(f(4, 3), f(3, 4), f(1, 3), f(1, 3)),
        body=mixed,
        ports=(piece(0), piece(1), "same", 0),
        outputs=((2, piece(0)), (0, None), (1, None), (1, backwards(0))),
    ),
    "the last value and all values of one result": iterator(
        ROWS, f(1, 3), body=running, ports=(piece(0), 0), outputs=((0, piece(0)), (0, None))
    ),
    "states that change places": iterator(
        *(ROWS, f(1, 3), f(1, 3, seed=1)),
        body=swap,
        ports=(piece(0), 0, 1),
        outputs=((0, None), (1, None)),
    ),
    "one result to two states": iterator(
        *(ROWS, f(1, 3), f(1, 3, seed=1)),
        body=swap,
        ports=(piece(0), 0, 0),
        outputs=((0, None), (1, None)),
    ),
    "scalars": iterator(
        f(5),
        np.float32(1.5),
        body=lambda x, total: [op.add(total, op.reduce_sum(x, [0], False))],
        ports=(piece(0), 0),
        outputs=((0, None), (0, piece(0))),
    ),
    "a loop with a count": loop(ROWS, f(1, 3), trip_count=5, **EVER),
    "fewer iterations than slices": loop(ROWS, f(1, 3), trip_count=3, **EVER),
    "a count from outside": loop(np.array(4), ROWS, f(1, 3), trip_count=None, **EVER),
    "a count of one element": loop(np.array([4]), ROWS, f(1, 3), trip_count=None, **EVER),
    "a count in 32 bits": loop(np.array(4, np.int32), ROWS, f(1, 3), trip_count=None, **EVER),
    "a condition from outside": loop(
        np.array(True), ROWS, f(1, 3), trip_count=4, condition=None, **EVER
    ),
    "both from outside": loop(
        *(np.array(4), np.array([True]), ROWS, f(1, 3)), trip_count=None, condition=None, **EVER
    ),
    "while": loop(SMALL, **COUNTED),
    "while, with a count": loop(SMALL, trip_count=2, **COUNTED),
    "while, with a count from outside": loop(np.array(-1), SMALL, trip_count=None, **COUNTED),
    "while, with all from outside": loop(
        *(np.array(-1), np.array(True), SMALL), trip_count=None, condition=None, **COUNTED
    ),
    "while, with a condition from outside": loop(np.array(True), SMALL, condition=None, **COUNTED),
    "the first iteration is the last": loop(SMALL + 9, **COUNTED),
    "the condition is an output": loop(
        SMALL,
        body=counted,
        ports=("number", 1),
        outputs=((0, None), (1, None)),
    ),
    "the condition is a state": loop(
        *(np.array(True), SMALL),
        body=lambda goes_on, x: [
            op.less(op.reduce_sum(x, [0, 1], False), constant(5.0)),
            op.multiply(x, op.select(goes_on, constant(2.0), constant(9.0))),
        ],
        ports=(0, 1),
        outputs=((0, None), (1, None)),
    ),
    "a number of one element in 32 bits": loop(
        SMALL, trip_count=3, number=([1], np.int32), **COUNTED
    ),
    "no number": loop(
        SMALL,
        trip_count=3,
        body=lambda x: [TRUE, op.sin(x)],
        ports=(1,),
        outputs=((1, piece(0)),),
    ),
    "a state that grows": loop(ROWS, f(0, 3), trip_count=4, **GROWING),
    "a state that grows, of one row at first": loop(ROWS, f(1, 3), trip_count=4, **GROWING),
    "a state that grows, in a TensorIterator": iterator(
        *(ROWS, f(1, 3)),
        body=lambda x, rows: grow(x, rows)[1:],
        ports=(piece(0), 0),
        outputs=((0, None), (1, None)),
        shapes={1: [-1, 3]},
    ),
}
for _dtype in (np.float16, np.float64, np.int32, np.int64):
    CASES[f"a TensorIterator of {_dtype.__name__}"] = iterator(
        *((f(n, 3) * 5).astype(_dtype) for n in (5, 1)),
        body=lambda x, total: [op.add(op.subtract(total, x), x), op.maximum(total, x)],
        ports=(piece(0), 0),
        outputs=((0, None), (1, piece(0))),
    )
    CASES[f"a Loop of {_dtype.__name__}"] = loop(
        *((f(n, 3) * 5).astype(_dtype) for n in (5, 1)),
        trip_count=5,
        body=lambda x, total: [
            op.less_equal(op.reduce_min(x, [0, 1], False), op.reduce_max(x, [0, 1], False)),
            op.add(total, x),
            op.maximum(total, x),
        ],
        ports=(piece(0), 1),
        outputs=((1, None), (2, piece(0))),
    )
CASES["a TensorIterator of bool"] = iterator(
    *(f(n, 3) > 0 for n in (5, 1)),
    body=lambda x, odd: [op.logical_xor(odd, x), op.logical_and(odd, x)],
    ports=(piece(0), 0),
    outputs=((0, None), (1, piece(0))),
)


def written(folder, case, dynamic=False):
    function, arrays = case
    constants = ()
    model = openvino_models.make(function, *arrays, dynamic=dynamic, constants=constants)
    return openvino_models.save(model, folder / "model.xml"), arrays


def assert_same(actual, expected, tolerance=1e-5):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        a = np.asarray(a)
        assert (a.shape, a.dtype) == (e.shape, e.dtype)
        np.testing.assert_allclose(a, e, tolerance, tolerance)


def tolerance_of(arrays):
    return 3e-3 if any(array.dtype == np.float16 for array in arrays) else 1e-5


# Of dynamic shapes too, or alone: OpenVINO does not compute the last one with static shapes.
DYNAMIC = [
    "forwards",
    "pieces of two backwards",
    "several slices, and the same for all",
    "states that change places",
    "scalars",
    "fewer iterations than slices",
    "a count from outside",
    "both from outside",
    "while, with all from outside",
    "the condition is an output",
    "a number of one element in 32 bits",
    "a state that grows",
    "a state that grows, in a TensorIterator",
]
MODES = [(name, False) for name in CASES if name != DYNAMIC[-1]] + [
    (name, True) for name in DYNAMIC
]


@pytest.mark.parametrize("name, dynamic", MODES)
def test_a_loop_answers_as_openvino_does(tmp_path, name, dynamic):
    path, arrays = written(tmp_path, CASES[name], dynamic)
    expected = openvino_models.run(path, arrays)
    actual = tf_ti.openvino.load(path)(*arrays)
    assert_same(actual, expected, tolerance_of(arrays))


# --- ranges --------------------------------------------------------------------------------------

RANGES = {
    "all": (0, -1, 1, 1),
    "all backwards": (-1, 0, -1, 1),
    "with positive ends": (1, 6, 1, 1),
    "with negative ends": (-7, -2, 1, 1),
    "backwards with negative ends": (-2, -7, -1, 1),
    "parts of three": (1, 6, 3, 3),
    "parts of two backwards": (-1, 0, -2, 2),
    "parts of two backwards, of some": (6, 1, -2, 2),
    "gaps": (0, -1, 3, 2),
    "gaps backwards": (-1, 0, -3, 2),
    "overlaps": (0, -1, 2, 4),
    "overlaps backwards": (7, 1, -1, 3),
    "steps": (0, -1, 3, 1),
    "steps backwards": (-1, 0, -3, 1),
}


def pieces_of(x, axis, start, end, stride, part_size):
    """As the specification has it: both ends belong to the range."""
    extent = x.shape[axis]
    start, end = (i % extent for i in (start, end))
    direction = 1 if stride > 0 else -1
    found = []
    while (last := start + direction * (part_size - 1)) * direction <= end * direction:
        found.append(np.take(x, range(min(start, last), max(start, last) + 1), axis))
        start += stride
    return found


RANGED_X, RANGED_START = f(2, 8), f(2, 1)


def ranged(kind, range_, count):
    def body(x, total):
        total = op.add(total, op.reduce_sum(x, [1], True))
        always = [] if kind == "TensorIterator" else [constant(True, np.bool_)]
        return [*always, total, op.multiply(total, constant(2.0))]

    arrays = RANGED_X, RANGED_START
    first = int(kind == "Loop")
    fields = {
        "body": body,
        "ports": ({**range_, "axis": 1}, first),
        "outputs": ((first, None), (first + 1, piece(1))),
    }
    if kind == "TensorIterator":
        return iterator(*arrays, **fields)
    return loop(*arrays, trip_count=count, **fields)


@pytest.mark.parametrize("kind", ["TensorIterator", "Loop"])
@pytest.mark.parametrize("name", RANGES)
def test_ranges_are_those_of_the_specification(tmp_path, name, kind):
    range_ = dict(zip(("start", "end", "stride", "part_size"), RANGES[name]))
    sums = [p.sum(1, keepdims=True) for p in pieces_of(RANGED_X, 1, **range_)]
    totals = RANGED_START + np.cumsum(sums, 0)
    # Where parts are not as long as steps OpenVINO writes another number of them as an extent.
    dynamic = "all" in name or abs(range_["stride"]) != range_["part_size"]
    path, arrays = written(tmp_path, ranged(kind, range_, len(sums)), dynamic)
    actual = tf_ti.openvino.load(path)(*arrays)
    assert_same(actual, [totals[-1], 2 * np.concatenate(totals, 1)])


@pytest.mark.parametrize("kind", ["TensorIterator", "Loop"])
def test_an_axis_may_count_from_the_last(tmp_path, kind):
    path, arrays = written(tmp_path, ranged(kind, WHOLE, 8))
    expected = tf_ti.openvino.load(path)(*arrays)
    text, count = re.subn(r'(<(in|out)put) axis="1"', r'\1 axis="-1"', path.read_text())
    assert count == 2
    path.write_text(text)
    assert_same(tf_ti.openvino.load(path)(*arrays), [np.asarray(e) for e in expected])


@pytest.mark.parametrize("kind", ["TensorIterator", "Loop"])
def test_an_output_may_be_written_backwards_in_parts(tmp_path, kind):
    path, arrays = written(tmp_path, ranged(kind, WHOLE, 8))
    forwards = tf_ti.openvino.load(path)(*arrays)[1]
    text, count = re.subn(
        r'(<output axis="1"[^>]*) start="0" end="-1" stride="1" part_size="1"',
        r'\1 start="-1" end="0" stride="-1" part_size="1"',
        path.read_text(),
    )
    assert count == 1
    path.write_text(text)
    assert_same(tf_ti.openvino.load(path)(*arrays)[1:], [np.asarray(forwards)[:, ::-1]])


# --- no iterations -------------------------------------------------------------------------------

ENDS = {
    "a count": ({"trip_count": 0}, ()),
    "a count from outside": ({"trip_count": None}, (np.array(0),)),
    "a condition from outside": ({"trip_count": 4, "condition": None}, (np.array(False),)),
    "a condition and no count": ({"condition": None}, (np.array(False),)),
}


@pytest.mark.parametrize("condition", ["true", "computed"])
@pytest.mark.parametrize("name", ENDS)
def test_without_an_iteration_states_are_as_given_and_outputs_empty(tmp_path, name, condition):
    def body(x, total):
        total = op.add(total, x)
        always = constant(True, np.bool_)
        if condition == "computed":
            always = op.less(op.reduce_sum(total, [0, 1], False), constant(1e9))
        return [always, total, op.sin(total)]

    limits, outer = ENDS[name]
    arrays = *outer, ROWS, f(1, 3)
    outputs = ((1, None), (1, piece(0)), (2, piece(0)), (2, None))
    case = loop(*arrays, body=body, ports=(piece(0), 1), outputs=outputs, **limits)
    path, arrays = written(tmp_path, case, dynamic=True)
    state, *stacks, other = tf_ti.openvino.load(path)(*arrays)
    assert_same([state], [arrays[-1]])
    assert [stack.shape[0] for stack in stacks] == [0, 0]
    assert not np.any(other)


@pytest.mark.parametrize("trip_count", [-1, None])
def test_without_a_count_there_are_as_many_iterations_as_slices(tmp_path, trip_count):
    outer = () if trip_count else (np.array(-1),)
    path, arrays = written(tmp_path, loop(*outer, ROWS, f(1, 3), trip_count=trip_count, **EVER))
    totals = arrays[-1] + np.cumsum(ROWS * np.arange(5.0)[:, np.newaxis], 0, np.float32)
    actual = tf_ti.openvino.load(path)(*arrays)
    assert_same(actual, [totals[-1:], np.sin(totals), np.sin(totals).T])


def test_what_would_run_for_ever_is_refused(tmp_path):
    path, arrays = written(
        tmp_path, loop(f(1, 3), body=lambda x: [TRUE, op.sin(x)], ports=(1,), outputs=((1, None),))
    )
    with pytest.raises(IRError, match="Loop .*runs for ever"):
        tf_ti.openvino.load(path)(*arrays)


def test_too_few_slices_are_an_error(tmp_path):
    path, arrays = written(tmp_path, loop(np.array(6), ROWS, f(1, 3), trip_count=None, **EVER))
    with pytest.raises(tf.errors.InvalidArgumentError, match="iterator 0.* 5 "):
        tf_ti.openvino.load(path)(*arrays)


def test_a_last_value_that_is_no_state_may_have_any_shape(tmp_path):
    """Rows that are chosen anew in each iteration."""

    def body(number, x):
        rows = op.range(constant(0, np.int64), number, constant(1, np.int64), "i64")
        chosen = op.gather(x, rows, constant(0, np.int64))
        return [constant(True, np.bool_), op.multiply(x, constant(0.5)), chosen]

    case = loop(ROWS, trip_count=4, body=body, ports=("number", 1), outputs=((2, None),))
    path, arrays = written(tmp_path, case)
    assert_same(tf_ti.openvino.load(path)(*arrays), [ROWS[:3] / 8])


# --- loops and branches in one another -----------------------------------------------------------


def sums_of_rows(x, total):
    """A TensorIterator over the columns of a piece."""
    inner = Iteration(lambda c, s: [op.add(s, c)], (piece(1), 0), ((0, None),))
    (row,) = inner.add([x.output(0), constant(np.zeros([1, 1])).output(0)])
    return [op.add(total, row), op.sin(total)]


def powers(number, x, total):
    """A Loop of as many iterations as the outer one has had."""
    inner = Iteration(
        lambda y: [constant(True, np.bool_), op.multiply(y, constant(1.5))], (1,), ((1, None),)
    )
    (power,) = inner.add([x.output(0)], number, constant(True, np.bool_))
    return [constant(True, np.bool_), op.add(total, power)]


def branch(outputs, inputs):
    """A body of an If: its Parameters have names, by which inputs find them."""
    return ov.Model([op.result(node) for node in outputs], list(inputs), "branch")


def either(condition, node, then, otherwise):
    """then(node) or otherwise(node)."""
    made = op.if_op(condition.output(0))
    bodies, parameters = [], []
    for function in (then, otherwise):
        output = node.output(0)
        parameter = op.parameter(output.get_partial_shape(), output.get_element_type())
        parameters.append(parameter)
        bodies.append(branch([function(parameter)], [parameter]))
    made.set_then_body(bodies[0])
    made.set_else_body(bodies[1])
    made.set_input(node.output(0), *parameters)
    return made.set_output(*(body.results[0] for body in bodies))


def twice_or_less(x):
    return either(
        op.greater(op.reduce_sum(x, [0, 1], False), constant(0.0)),
        x,
        lambda x: op.multiply(x, constant(2.0)),
        lambda x: op.subtract(x, constant(3.0)),
    )


def branches_in_a_loop(x, total):
    chosen = twice_or_less(x)
    return [constant(True, np.bool_), op.add(total, chosen), op.sin(total)]


def while_in_a_branch(x):
    inner = Iteration(**COUNTED)
    return either(
        op.greater(op.reduce_sum(x, [0, 1], False), constant(0.0)),
        x,
        lambda x: inner.add([x.output(0)], constant(-1, np.int64), constant(True, np.bool_))[0],
        lambda x: op.negative(x),
    )


NESTED = {
    "a TensorIterator in a Loop": loop(
        *(ROWS, f(1, 1)),
        trip_count=5,
        body=lambda x, total: [constant(True, np.bool_), *sums_of_rows(x, total)],
        ports=(piece(0), 1),
        outputs=((1, None), (2, piece(0))),
    ),
    "a Loop in a Loop": loop(
        *(ROWS, f(1, 3)),
        trip_count=5,
        body=powers,
        ports=("number", piece(0), 1),
        outputs=((1, None), (1, piece(0))),
    ),
    "a Loop in a Loop with a condition": loop(
        *(np.array(True), ROWS, f(1, 3)),
        trip_count=5,
        body=lambda number, goes_on, x, total: [
            op.less(number, constant(3, np.int64)),
            *powers(number, x, total)[1:],
        ],
        ports=("number", 0, piece(0), 1),
        outputs=((1, None), (1, piece(0))),
    ),
    "a Loop in a TensorIterator": iterator(
        *(np.array(2), ROWS, f(1, 3)),
        body=lambda n, x, total: powers(n, x, total)[1:],
        ports=("same", piece(0), 0),
        outputs=((0, None), (0, piece(0))),
    ),
    "an If in a Loop": loop(
        *(ROWS, f(1, 3)),
        trip_count=5,
        body=branches_in_a_loop,
        ports=(piece(0), 1),
        outputs=((1, None), (2, piece(0))),
    ),
    "an If in a TensorIterator": iterator(
        *(ROWS, f(1, 3)),
        body=lambda x, total: branches_in_a_loop(x, total)[1:],
        ports=(piece(0), 0),
        outputs=((0, None), (1, piece(0))),
    ),
    "a Loop in an If": (lambda x: [while_in_a_branch(x)], (SMALL,)),
    "a Loop that is not run in an If": (lambda x: [while_in_a_branch(x)], (-SMALL,)),
    "a Loop in an If in a Loop": loop(
        *(ROWS, SMALL),
        trip_count=3,
        body=lambda x, y: [constant(True, np.bool_), while_in_a_branch(op.sin(y)), x],
        ports=(piece(0), 1),
        outputs=((1, None), (2, piece(0))),
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_nest_answers_as_openvino_does(tmp_path, name):
    path, arrays = written(tmp_path, NESTED[name])
    assert_same(tf_ti.openvino.load(path)(*arrays), openvino_models.run(path, arrays))


# --- If ------------------------------------------------------------------------------------------


def shorter_or_longer(condition, x):
    made = either(
        condition,
        x,
        lambda x: op.concat([x, x], 0),
        lambda x: op.gather(x, constant([0], np.int64), constant(0, np.int64)),
    )
    return [made]


def nested_branches(condition, x):
    made = either(condition, x, twice_or_less, lambda x: op.add(twice_or_less(x), constant(1.0)))
    return [made]


def without_inputs(condition):
    made = op.if_op(condition.output(0))
    bodies = [branch([constant([value] * 3), constant(-value)], []) for value in (1.0, 2.0)]
    made.set_then_body(bodies[0])
    made.set_else_body(bodies[1])
    return [made.set_output(*(body.results[i] for body in bodies)) for i in range(2)]


def outputs_in_another_order(condition, x, y):
    """Branches whose Parameters and Results are not in one order, and of which one is not read."""
    made = op.if_op(condition.output(0))
    a, b, c = (op.parameter([2, 3], np.float32) for _ in range(3))
    bodies = branch([op.sin(a), op.add(a, b)], [b, a]), branch([op.cos(c), op.exp(c)], [c])
    made.set_then_body(bodies[0])
    made.set_else_body(bodies[1])
    made.set_input(x.output(0), a, c)
    made.set_input(y.output(0), b, None)
    return [made.set_output(bodies[0].results[i], bodies[1].results[1 - i]) for i in range(2)]


BRANCHES = {
    "shapes that differ": (shorter_or_longer, (f(4, 3),)),
    "branches in branches": (nested_branches, (f(4, 3),)),
    "no inputs": (without_inputs, ()),
    "another order": (outputs_in_another_order, (f(2, 3), f(2, 3, seed=1))),
}


@pytest.mark.parametrize("shape", [(), (1,)], ids=["scalar", "of one element"])
@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("name", BRANCHES)
def test_an_if_answers_as_openvino_does(tmp_path, name, condition, shape):
    function, arrays = BRANCHES[name]
    path, arrays = written(tmp_path, (function, (np.full(shape, condition), *arrays)))
    assert_same(tf_ti.openvino.load(path)(*arrays), openvino_models.run(path, arrays))


@pytest.mark.parametrize("condition", [True, False])
def test_a_condition_that_is_known_chooses_too(tmp_path, condition):
    model = openvino_models.make(shorter_or_longer, np.array(condition), ROWS, constants=(0,))
    path = openvino_models.save(model, tmp_path / "model.xml")
    expected = np.concatenate([ROWS] * 2) if condition else ROWS[:1]
    assert_same(tf_ti.openvino.load(path)(ROWS), [expected])


# --- files, functions, gradients -----------------------------------------------------------------


def weighted(x, total):
    """With weights of its own that the model has elsewhere too."""
    total = op.tanh(op.add(op.matmul(total, constant(WEIGHTS), False, True), x))
    return [total, op.multiply(total, constant(WEIGHTS[:1]))]


WEIGHTS = f(3, 3)
WEIGHTED = {"body": weighted, "ports": (piece(0), 0), "outputs": ((0, None), (1, piece(0)))}


def whole(x, start):
    last, stack = Iteration(**WEIGHTED).add([x.output(0), start.output(0)])
    return [op.matmul(last, constant(WEIGHTS), False, False), stack]


def definition(weights, row, x, total):
    stack = []
    for piece in tf.split(x, x.shape[0]):
        total = tf.tanh(tf.matmul(total, weights, transpose_b=True) + piece)
        stack.append(total * row)
    return total @ weights, tf.concat(stack, 0)


@pytest.fixture
def saved_whole(tmp_path):
    return written(tmp_path, (whole, (ROWS, f(1, 3))))


def test_constants_of_bodies_are_variables_that_are_shared(saved_whole):
    module = tf_ti.openvino.load(saved_whole[0], trainable=True)
    assert sorted(v.shape.as_list() for v in module.trainable_variables) == [[1, 3], [3, 3]]


def test_gradients_are_those_of_the_definition(saved_whole):
    path, arrays = saved_whole
    module = tf_ti.openvino.load(path, trainable=True)
    row, weights = sorted(module.trainable_variables, key=lambda v: v.shape[0])
    arrays = [tf.constant(array) for array in arrays]
    gradients = []
    for function in (module, lambda *arrays: definition(weights, row, *arrays)):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            loss = sum(tf.reduce_sum(tf.sin(y)) for y in function(*arrays))
        gradients.append(tape.gradient(loss, [weights, row, *arrays]))
    assert_same(gradients[0], [np.asarray(g) for g in gradients[1]], 1e-4)


def test_gradients_reach_through_conditions_and_changing_shapes(tmp_path):
    path, arrays = written(tmp_path, loop(ROWS, f(1, 3), trip_count=4, **GROWING))
    module = tf_ti.openvino.load(path)
    arrays = [tf.constant(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(arrays)
        rows, last = module(*arrays)
        loss = tf.reduce_sum(rows * rows) + tf.reduce_sum(last)
    expected = [2 * ROWS, 2 * arrays[1] + 2]
    expected[0][:3] += 2
    expected[0][4:] = 0
    assert_same(tape.gradient(loss, arrays), [np.asarray(e) for e in expected])


SOME = ["forwards", "while", "a state that grows", "both from outside", "scalars"]


@pytest.mark.parametrize("name", SOME)
def test_version_10_means_the_same(tmp_path, name):
    path, arrays = written(tmp_path, CASES[name])
    expected = [np.asarray(value) for value in tf_ti.openvino.load(path)(*arrays)]
    text, count = re.subn('(<net [^>]*version=)"11"', r'\1"10"', path.read_text())
    assert count == 1
    path.write_text(text)
    assert_same(tf_ti.openvino.load(path)(*arrays), expected)


@pytest.mark.parametrize("name", SOME)
def test_what_was_saved_answers_alike(tmp_path, name):
    path, arrays = written(tmp_path, CASES[name], dynamic=True)
    module = tf_ti.openvino.load(path)
    expected = [np.asarray(value) for value in module(*arrays)]
    tf.saved_model.save(module, tmp_path / "saved")
    loaded = tf.saved_model.load(tmp_path / "saved")
    assert_same(loaded(*map(tf.constant, arrays)), expected)


@pytest.mark.parametrize(
    "name",
    ["forwards", "pieces of two backwards", "fewer iterations than slices", "while, with a count"],
)
def test_it_may_be_compiled_where_the_count_is_known(tmp_path, name):
    path, arrays = written(tmp_path, CASES[name])
    module = tf_ti.openvino.load(path)
    compiled = tf.function(lambda *inputs: module(*inputs), jit_compile=True)
    expected = [np.asarray(value) for value in module(*arrays)]
    assert_same(compiled(*map(tf.constant, arrays)), expected)


def test_inputs_may_be_named(tmp_path):
    path, arrays = written(tmp_path, CASES["forwards"])
    module = tf_ti.openvino.load(path)
    expected = [np.asarray(value) for value in module(*arrays)]
    assert_same(module(input_1=arrays[1], input_0=arrays[0]), expected)


# --- cells ---------------------------------------------------------------------------------------

BATCH, STEPS, FEATURES, HIDDEN = 2, 5, 3, 4


def ints(*values):
    return op.constant(np.array(values, np.int64))


AXIS_1 = op.constant(np.array(1, np.int64))


def lstm_cell(x, h, c):
    w, r, b = f(4 * HIDDEN, FEATURES), f(4 * HIDDEN, HIDDEN), f(4 * HIDDEN)
    return op.lstm_cell(x, h, c, w, r, b, HIDDEN).outputs()


def gru_cell(x, h):
    w, r, b = f(3 * HIDDEN, FEATURES), f(3 * HIDDEN, HIDDEN), f(4 * HIDDEN)
    return op.gru_cell(x, h, w, r, b, HIDDEN, linear_before_reset=True).outputs()


def gates_of(x, h, number=4, seed=0):
    """Products with transposed matrices, as OpenVINO's converters write them."""
    products = (
        op.matmul(value, constant(f(number * HIDDEN, size, seed=seed)), False, True)
        for value, size in ((x, FEATURES), (h, HIDDEN))
    )
    return op.add(op.add(*products), constant(f(1, number * HIDDEN)))


def lstm(gates, c):
    i, forget, g, o = gates
    c = op.add(op.multiply(op.sigmoid(forget), c), op.multiply(op.sigmoid(i), op.tanh(g)))
    return [op.multiply(op.sigmoid(o), op.tanh(c)), c]


def with_split(x, h, c):
    return lstm(op.split(gates_of(x, h), AXIS_1, 4).outputs(), c)


def with_variadic_split(x, h, c):
    lengths = ints(*[HIDDEN] * 4)
    return lstm(op.variadic_split(gates_of(x, h), ints(-1), lengths).outputs(), c)


def with_strided_slices(x, h, c):
    gates, ends = gates_of(x, h), range(0, 5 * HIDDEN, HIDDEN)
    parts = (
        op.strided_slice(gates, ints(0, a), ints(0, b), ints(1, 1), [1, 0], [1, 0])
        for a, b in zip(ends, ends[1:])
    )
    return lstm(parts, c)


def with_slices(x, h, c):
    gates, ends = gates_of(x, h), range(0, 5 * HIDDEN, HIDDEN)
    parts = (op.slice(gates, ints(a), ints(b), ints(1), ints(1)) for a, b in zip(ends, ends[1:]))
    return lstm(parts, c)


def with_one_matrix(x, h, c):
    w = constant(f(4 * HIDDEN, FEATURES + HIDDEN))
    gates = op.add(op.matmul(op.concat([x, h], 1), w, False, True), constant(f(4 * HIDDEN)))
    return lstm(op.split(gates, AXIS_1, 4).outputs(), c)


def plain_gru(x, h):
    w, r = (constant(f(3 * HIDDEN, size)) for size in (FEATURES, HIDDEN))
    xs, hs = (
        op.split(op.add(op.matmul(value, m, False, True), constant(b)), AXIS_1, 3).outputs()
        for value, m, b in ((x, w, f(3 * HIDDEN)), (h, r, f(1, 3 * HIDDEN)))
    )
    r, z = (op.sigmoid(op.add(xs[k], hs[k])) for k in range(2))
    n = op.tanh(op.add(xs[2], op.multiply(r, hs[2])))
    return [op.add(op.multiply(op.subtract(constant(1.0), z), n), op.multiply(z, h))]


def plain_rnn(x, h):
    return [op.tanh(gates_of(x, h, 1))]


def squeezed(x):
    return op.squeeze(x, ints(1))


def unsqueezed(h):
    return op.unsqueeze(h, ints(1))


def reshaped(x):
    return op.reshape(x, ints(0, FEATURES), True)


def reshaped_back(h):
    return op.reshape(h, ints(0, 1, HIDDEN), True)


def reshaped_by_the_rest(x):
    return op.reshape(x, ints(-1, FEATURES), False)


def reshaped_back_by_the_rest(h):
    return op.reshape(h, ints(-1, 1, HIDDEN), False)


def gathered(x):
    return op.gather(x, op.constant(np.array(0, np.int64)), AXIS_1)


CELLS = {
    "LSTMCell": (lstm_cell, squeezed, unsqueezed),
    "GRUCell": (gru_cell, squeezed, unsqueezed),
    "Split": (with_split, squeezed, unsqueezed),
    "VariadicSplit": (with_variadic_split, squeezed, unsqueezed),
    "StridedSlice": (with_strided_slices, squeezed, unsqueezed),
    "Slice": (with_slices, squeezed, unsqueezed),
    "one matrix": (with_one_matrix, squeezed, unsqueezed),
    "a GRU in plain operations": (plain_gru, squeezed, unsqueezed),
    "a plain cell": (plain_rnn, squeezed, unsqueezed),
    "Reshape with zeros": (with_split, reshaped, reshaped_back),
    "Reshape with the rest": (with_split, reshaped_by_the_rest, reshaped_back_by_the_rest),
    "Gather": (with_split, gathered, unsqueezed),
}


def recurrent(name, range_, batch, **limits):
    cell, without_axis, with_axis = CELLS[name]

    def body(x, *states):
        states = cell(without_axis(x), *states)
        always = [constant(True, np.bool_)] if limits else []
        return [*always, *states, with_axis(states[0])]

    count = 1 if cell in (gru_cell, plain_gru, plain_rnn) else 2
    arrays = f(BATCH, STEPS, FEATURES), *(f(BATCH, HIDDEN, seed=k) for k in range(count))
    first = int(bool(limits))
    fields = {
        "body": body,
        "ports": (range_, *range(first, first + count)),
        "outputs": (*((first + k, None) for k in range(count)), (first + count, range_)),
        "shapes": {0: [batch, 1, FEATURES], **{k + 1: [batch, HIDDEN] for k in range(count)}},
    }
    return loop(*arrays, **limits, **fields) if limits else iterator(*arrays, **fields)


def types_of(module):
    """The types of operations, in the functions that it calls too."""
    graph = module._function.get_concrete_function().graph
    functions = [function.graph for function in graph._functions.values()]
    return [operation.type for g in (graph, *functions) for operation in g.get_operations()]


def check_sequence(path, arrays):
    module = tf_ti.openvino.load(path)
    types = types_of(module)
    assert types.count("TfTi>RecurrentSequence") == 1
    assert not any(kind.endswith("TensorIterator") for kind in types)
    assert_same(module(*arrays), openvino_models.run(path, arrays))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_in_a_tensor_iterator_is_one_sequence(tmp_path, name, dynamic):
    function, arrays = recurrent(name, piece(1), -1 if dynamic else BATCH)
    specs = [array.shape for array in arrays]
    if dynamic:
        specs = [[-1] * (len(shape) - 1) + [shape[-1]] for shape in specs]
    inputs = [op.parameter(shape, np.float32) for shape in specs]
    model = ov.Model([op.result(output) for output in function(*inputs)], inputs, "model")
    check_sequence(openvino_models.save(model, tmp_path / "model.xml"), arrays)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_of_an_open_batch_can_be_written_again(tmp_path, name):
    function, arrays = recurrent(name, piece(1), -1)
    inputs = [op.parameter([-1, *array.shape[1:]], np.float32) for array in arrays]
    model = ov.Model([op.result(output) for output in function(*inputs)], inputs, "model")
    first = openvino_models.save(model, tmp_path / "first.xml")
    tf_ti.openvino.save(tf_ti.openvino.load(first), tmp_path / "second.xml")
    found = openvino_models.run(tmp_path / "second.xml", arrays)
    assert_same(found, openvino_models.run(first, arrays))


@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell", "Split"])
def test_a_cell_that_runs_backwards_is_one_sequence(tmp_path, name):
    check_sequence(*written(tmp_path, recurrent(name, backwards(1), BATCH)))


@pytest.mark.parametrize("name", ["LSTMCell", "VariadicSplit", "a GRU in plain operations"])
def test_a_cell_in_a_loop_with_a_count_is_one_sequence(tmp_path, name):
    check_sequence(*written(tmp_path, recurrent(name, piece(1), BATCH, trip_count=STEPS)))
