"""Loops before and after each pass, as text. A pass leaves its own loop unchanged."""

import dataclasses
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.loops import passes
from tf_ti.loops.spec import OPS
from tf_ti.loops.traced import TracedLoop

N = 6
XS = tf.constant(np.random.default_rng(0).normal(size=[N, 4]), tf.float32)
W = tf.constant(np.random.default_rng(1).normal(size=[8, 4]), tf.float32)


@pytest.fixture
def steps(monkeypatch):
    """Traces a function; gives, for each pass that made another loop, both loops in text."""
    found = []

    def watched(each):
        def apply(candidate):
            graphs = [(graph, _state_of(graph)) for graph in candidate.loop.graphs]
            before = candidate.loop.printed()
            step = None
            try:
                step = each.apply(candidate)
            finally:
                assert candidate.loop.printed() == before, each.name
                for graph, state in graphs:
                    assert _state_of(graph) == state, each.name
            if step is not None and step.loop is not candidate.loop:
                found.append((each.name, before, step.loop and step.loop.printed()))
            return step

        return dataclasses.replace(each, apply=apply)

    monkeypatch.setattr(passes, "PASSES", tuple(map(watched, passes.PASSES)))

    def steps(function, *specs, **options):
        found.clear()
        tf.function(function, **options).get_concrete_function(*specs)
        return list(found)

    return steps


@pytest.fixture
def printed(monkeypatch):
    """Traces a function with one loop, and gives the loop before its passes in text."""
    found = []
    run = passes.run

    def watched(loop, *arguments, **options):
        found.append(loop)
        return run(loop, *arguments, **options)

    def printed(function, *specs, **options):
        with monkeypatch.context() as patch:
            patch.setattr(passes, "PASSES", ())
            patch.setattr(passes, "run", watched)
            tf.function(function).get_concrete_function(*specs)
        (loop,) = found
        return loop.printed(**options)

    return printed


def _state_of(graph):
    """All that a pass might change of a graph."""
    return (
        [(op.name, list(op.inputs), list(op.control_inputs)) for op in graph.get_operations()],
        [list(tensors) for tensors in (graph.inputs, graph.outputs, graph.control_outputs)],
        [t.shape.as_list() if t.shape.rank is not None else None for t in graph.inputs],
        set(graph.left_out),
    )


def while_loop(body, *variables, count=N):
    """A counted while loop, whose first variable is the counter."""
    return tf_ti.while_loop(lambda k, *_: k < count, lambda k, *v: (k + 1, *body(k, *v)), variables)


# --- the printed form ----------------------------------------------------------------------------


def text(string):
    return "\n".join(
        line[8:] if line[:8].isspace() else line for line in string.split("\n")
    ).strip()


def test_a_condition_gets_a_number_of_iterations(steps):
    def counts(h):
        return while_loop(lambda k, h: (tf.sin(h),), 0, h)[1]

    name, before, after = steps(counts, tf.TensorSpec([4]))[0]
    assert name == "counted"
    rest = """
          0: int32[]  loop_vars[0], then result 0
          1: float32[4]  loop_vars[1], then result 1
          a = Const(1)
          b = AddV2(0, a)
          c = Sin(1)
          d = Identity(b)
          e = Identity(c)
          results: d, e
        outputs:
          last of result 0
          last of result 1
    """
    assert text(before) == text(
        """
        while:
          condition:
            a = Const(6)
            b = Less(0, a)
            c = Identity(b)
            results: c"""
        + rest
    )
    assert text(after) == text(
        """
        loop for 6 iterations:"""
        + rest
    )


def arrays(xs):
    read = tf.TensorArray(tf.float32, N).unstack(xs)
    written = tf.TensorArray(tf.float32, N, element_shape=[4])

    def body(k, h, written):
        h = tf.sin(h) + read.read(k)
        return h, written.write(k, h)

    return while_loop(body, 0, tf.zeros([4]), written)[2].stack()


def test_arrays_become_slices_and_stacks_and_counters_slices(steps):
    found = steps(arrays, tf.TensorSpec([N, 4]))
    assert [name for name, *_ in found] == [
        "counted",
        "stacks",
        "slices",
        "counters",
        "whole",
    ]
    for (_, _, after), (_, before, _) in zip(found, found[1:]):
        assert after == before
    assert found[0][2] == text("""
        loop for 6 iterations:
          0: int32[]  loop_vars[0], then result 0
          1: float32[4]  loop_vars[1], then result 1
          2: variant[]  loop_vars[2], then result 2
          3: variant[]  capture 0
          a = Const(1)
          b = AddV2(0, a)
          c = Sin(1)
          d = Const([4])
          e = TensorListGetItem(3, 0, d)
          f = AddV2(c, e)
          g = TensorListSetItem(2, 0, f)
          h = Identity(b)
          i = Identity(f)
          j = Identity(g)
          results: h, i, j
        outputs:
          last of result 0
          last of result 1
          last of result 2
    """)
    assert found[-1][2] == text("""
        loop:
          0: int32[]  the counted elements along axis 0
          1: float32[4]  loop_vars[1], then result 0
          2: float32[4]  the counted elements along axis 0
          a = Sin(1)
          b = AddV2(a, 2)
          c = Identity(b)
          results: c, b
        outputs:
          last of result 0
          stack of result 1 along axis 0
    """)


def test_products_of_slices_and_states_are_taken_apart_and_leave(steps):
    def f(xs):
        def cell(h, x):
            return tf.sin(tf.concat([x, h], 1) @ W), None

        return tf_ti.scan(cell, tf.zeros([2, 4]), xs)[0]

    products, fission = steps(f, tf.TensorSpec([N, 2, 4]))
    assert (products[0], fission[0]) == ("products", "fission")
    assert products[1] == text("""
        loop:
          0: float32[2, 4]  init, then result 0
          1: float32[2, 4]  xs along axis 0
          2: float32[8, 4]  capture 0
          a = Const(1)
          b = ConcatV2(1, 0, a)
          c = MatMul(b, 2)
          d = Sin(c)
          e = Identity(d)
          results: e
        outputs:
          last of result 0
    """)
    assert fission[2] == text("""
        loop:
          0: float32[2, 4]  init, then result 0
          1: float32[2, 4]  xs along axis 0
          2: float32[4, 4]  SplitV of the body
          a = MatMul(0, 2)
          b = AddV2(1, a)
          c = Sin(b)
          results: c
        outputs:
          last of result 0
    """)


def test_reads_in_branches_become_the_bodys(steps):
    def f(xs, ids):
        def body(k, h):
            return (tf.cond(ids[k] > 0, lambda: tf.sin(h) + xs[k], lambda: h),)

        return while_loop(body, 0, tf.zeros([4]))[1]

    found = {
        name: after for name, _, after in steps(f, *(tf.TensorSpec([N, 4]), tf.TensorSpec([N])))
    }
    assert list(found)[:3] == ["counted", "lifted", "slices"]
    assert "StridedSlice" in found["lifted"] and "StridedSlice" not in found["slices"]
    assert found["slices"].count("the counted elements along axis 0") == 2


def test_a_list_that_may_grow_has_a_checked_index(steps):
    def f(h):
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True, clear_after_read=False)
        body = lambda k, h, a: (h, a.write(2 * k, h))  # noqa: E731
        return while_loop(body, 0, h, array)[2].stack()

    name, before, after = steps(f, tf.TensorSpec([4]))[-1]
    assert name == "growth"
    assert "ListIndex" not in before and after.count("TfTi>ListIndex(") == 1


def test_slices_outputs_and_captures_are_told_apart(printed):
    port_map = tf_ti.PortMap(
        [
            tf_ti.InputPort(0, 0),
            tf_ti.InputPort(1, 1, axis=0, start=-1, end=0, stride=-2),
            tf_ti.InputPort(2, 2, axis=0, stride=2, part_size=1),
        ],
        [tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=-1, stride=-1)],
    )

    def f(xs, a, b):
        def body(h, x, y):
            return tf.sin(h) * a + tf.exp(x) * b + y, h

        back = [tf_ti.BackEdge(0, 0)]
        return tf_ti.tensor_iterator(body, [tf.zeros([2, 4]), xs, xs], port_map, back)

    specs = tf.TensorSpec([N, 4]), tf.TensorSpec([]), tf.TensorSpec([2, 1])
    assert printed(f, *specs) == text("""
        loop:
          0: float32[2, 4]  input port 0 (layer 0), then result 0
          1: float32[2, 4]  slice of input port 1 (layer 1) along axis 0 in parts of 2\
 from -1 to 0 by -2
          2: float32[1, 4]  slice of input port 2 (layer 2) along axis 0 from 0 to -1 by 2
          3: float32[]  capture 0
          4: float32[2, 1]  capture 1
          a = Sin(0)
          b = Mul(a, 3)
          c = Exp(1)
          d = Mul(c, 4)
          e = AddV2(b, d)
          f = AddV2(e, 2)
          g = Identity(f)
          h = Identity(0)
          results: g, h
        outputs:
          last of result 0
          concat of result 1 along axis -1 by -1
    """)


def test_origins_are_names_and_lines(printed):
    def f(xs):
        return tf_ti.scan(lambda h, x: (tf.sin(h, name="wave") + x, h), tf.zeros([4]), xs)

    lines = printed(f, tf.TensorSpec([None, 4]), with_origins=True).splitlines()
    (line,) = (line for line in lines if "Sin" in line)
    assert re.fullmatch(r"  a = Sin\(0\)  # wave, test_printed_loops.py, line \d+", line)


def test_effects_branches_and_unknown_extents_print(printed):
    assert printed(effects, tf.TensorSpec([None, None])) == text("""
        loop:
          0: float32[4]  init, then result 0
          1: float32[?]  xs along axis 0
          2: resource[]  capture 0
          a = Const([0])
          b = Sum(1, a)
          c = AssignAddVariableOp(2, b)
          d = Exp(1)
          e = ReadVariableOp(2) after c
          f = Identity(e)
          g = Mul(d, f)
          h = AddV2(0, g)
          i = Identity(h) after k
          j = Identity(0) after k
          k = NoOp() after c, e
          results: i, j, e
          effects: c, e
        outputs:
          last of result 0
          stack of result 1 along axis 0
    """)


# --- a pass leaves its loop unchanged ------------------------------------------------------------


COUNTER = tf.Variable(0.0)


@tf.custom_gradient
def doubled(x):
    return 2.0 * x, lambda grad: 2.0 * grad


def effects(xs):
    def body(h, x):
        COUNTER.assign_add(tf.reduce_sum(x))
        return h + tf.exp(x) * COUNTER.read_value(), h

    return tf_ti.scan(body, tf.zeros([4]), xs)[0]


def nested(xs):
    def outer(h, x):
        inner, ys = tf_ti.scan(lambda c, e: (c + e, c * e), 0.0, x)
        return h + inner, ys

    return tf_ti.scan(outer, 0.0, xs)[1]


def branches(xs):
    def body(h, x):
        return tf.cond(x[0] > 0, lambda: tf.sin(h) * x, lambda: h - x), h

    return tf_ti.scan(body, tf.zeros([4]), xs)[0]


def of_length(xs):
    with tf_ti.Loop() as loop:
        x = loop.add_iterator(xs)
        h = loop.add_recurrence(tf.zeros([4]))
        loop.add_trip_limit(h[0] < 3.0, tf_ti.TripLimit.WHILE)
        h.next = h + x
        loop.add_loop_output(h, tf_ti.LoopOutput.CONCATENATE, length=2 * N)
    return loop.outputs[0]


LOOPS = {
    "arrays": arrays,
    "branches": branches,
    "effects": effects,
    "a limit and a condition": of_length,
    "nested": nested,
    "all leaves": lambda xs: tf_ti.scan(lambda h, x: (h, tf.exp(x)), 0.0, xs)[1],
    "a sum": lambda xs: tf_ti.scan(lambda h, x: (h + tf.exp(x), h), tf.zeros([4]), xs)[1],
    "a custom gradient": lambda xs: tf_ti.scan(
        lambda h, x: (tf.sin(h) + doubled(x), doubled(h)), tf.zeros([4]), xs
    ),
    "a cell": lambda xs: tf_ti.scan(
        lambda h, x: (tf.tanh(h @ W[:4] + x), None), tf.zeros([1, 4]), xs[:, None]
    )[0],
    "heavy": lambda xs: tf_ti.scan(
        lambda h, x: (tf.sin(tf.linalg.expm(h) @ (x[:, None] * W[:4])), h), tf.eye(4), xs
    )[0],
}


@pytest.mark.parametrize("of_gradient", [False, True])
@pytest.mark.parametrize("rows", [N, None])
@pytest.mark.parametrize("case", LOOPS)
def test_no_pass_changes_its_loop(case, rows, of_gradient, steps):
    def f(xs):
        if not of_gradient:
            return LOOPS[case](xs)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            made = tf.nest.flatten(LOOPS[case](xs))
        return tape.gradient(made, xs)

    steps(f, tf.TensorSpec([rows, 4]))


# --- parameters and inputs of a part -------------------------------------------------------------


def waits_for_a_slice(xs):
    """An operation of the core waits for a slice that only an operation before the loop reads."""

    def body(h, x):
        g = tf.exp(x)
        with tf.control_dependencies([x]):
            return tf.sin(h) * g, h

    return tf_ti.scan(body, tf.zeros([4]), xs)[0]


def waits_for_an_array(xs):
    """An operation waits for a list that is no state any more."""
    written = tf.TensorArray(tf.float32, N, element_shape=[4])

    def body(k, h, written):
        with tf.control_dependencies([written.flow]):
            h = tf.sin(h) + xs[k]
        return h, written.write(k, h)

    return while_loop(body, 0, tf.zeros([4]), written)[2].stack()


def waits_for_what_is_read(xs):
    """An operation waits for a tensor of which only slices are left."""

    def body(k, h):
        with tf.control_dependencies([xs]):
            return (tf.sin(h) + tf.gather(xs, k),)

    return while_loop(body, 0, tf.zeros([4]))[1]


def test_a_slice_has_the_shape_that_the_tensor_tells(steps):
    def f(xs):
        read = tf.TensorArray(tf.float32, N, infer_shape=False).unstack(xs)
        return while_loop(lambda k, h: (tf.sin(h) + tf.reduce_sum(read.read(k)),), 0, 0.0)[1]

    found = {name: after for name, _, after in steps(f, tf.TensorSpec([N, 4]))}
    assert "float32[4]  the counted elements along axis 0" in found["slices"]
    assert "float32[4]  the counted elements along axis 0" in found["whole"]


def test_slices_come_before_what_the_condition_gives_the_body(steps):
    def f(xs):
        with tf_ti.Loop() as loop:
            k = loop.add_recurrence(0)
            h = loop.add_recurrence(tf.zeros([4]))
            doubled = h * 2.0
            loop.add_trip_limit(tf.reduce_sum(doubled) < 40.0, tf_ti.TripLimit.WHILE)
            k.next = k + 1
            h.next = doubled + tf.exp(xs[k])
            loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
        return loop.outputs[0].tensor

    found = {name: after for name, _, after in steps(f, tf.TensorSpec([None, 4]))}
    assert "iterator of the elements" in found["slices"]
    assert "result 1 of the condition" in found["slices"]
    h, k = np.zeros(4), 0
    while np.sum(2.0 * h) < 40.0:
        h, k = 2.0 * h + np.exp(XS.numpy()[k]), k + 1
    np.testing.assert_allclose(tf.function(f)(XS), h, rtol=1e-5)


def test_what_is_read_whole_too_stays_an_input(steps):
    def f(xs):
        return while_loop(lambda k, h: (tf.sin(h) + xs[k] + tf.reduce_sum(xs * h),), 0, tf.zeros(4))

    found = {name: after for name, _, after in steps(f, tf.TensorSpec([N, 4]))}
    assert "float32[6, 4]  capture 0" in found["slices"]
    assert "the counted elements along axis 0" in found["slices"]
    h = np.zeros(4)
    for x in XS.numpy():
        h = np.sin(h) + x + np.sum(XS.numpy() * h)
    np.testing.assert_allclose(tf.function(f)(XS)[1], h, rtol=1e-3)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("of_gradient", [False, True])
@pytest.mark.parametrize(
    "function", [waits_for_a_slice, waits_for_an_array, waits_for_what_is_read]
)
def test_operations_wait_for_no_parameter(function, of_gradient, jit):
    def value(xs):
        if not of_gradient:
            return function(xs)
        with tf.GradientTape() as tape:
            tape.watch(xs)
            made = function(xs)
        return tape.gradient(made, xs)

    h, states, slopes = np.zeros(4), [], []
    for x in XS.numpy().astype(np.float64):
        factor = np.exp(x) if function is waits_for_a_slice else 1.0
        slopes.append((h, np.cos(h) * factor, np.sin(h) * factor))
        h = np.sin(h) * factor + (0.0 if function is waits_for_a_slice else x)
        states.append(h)
    expected = np.stack(states) if function is waits_for_an_array else h
    if of_gradient:
        grad, grads = np.ones(4), []
        for k in reversed(range(N)):
            _, slope, by_factor = slopes[k]
            grads.append(grad * (by_factor if function is waits_for_a_slice else 1.0))
            grad = grad * slope + (1.0 if function is waits_for_an_array else 0.0)
        expected = np.stack(grads[::-1])
    found = tf.function(value, jit_compile=jit)(XS)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_conditional_gets_no_tensor_twice_from_a_call():
    """Gradients of conditionals find inputs by identity."""

    wrapped = tf.compat.v1.wrap_function(lambda x: tf.sin(x) * 2.0, [tf.TensorSpec([4])])
    twice = wrapped.prune(wrapped.inputs[0], [wrapped.outputs[0]] * 2)

    def f(xs):
        def body(h, x):
            is_positive = x[0] > 0.0
            a, b = twice(h)
            made = tf.cond(is_positive, lambda: a * tf.exp(b), lambda: a + b * b)
            return tf.sin(made) + tf.cos(made) * tf.tanh(made) + tf.exp(-made), None

        return tf_ti.scan(body, tf.zeros([4]), xs, fuse=False)[0]

    graph = tf.function(f).get_concrete_function(tf.TensorSpec([N, 4])).graph
    (op,) = (op for op in graph.get_operations() if op.type in OPS)
    loop = TracedLoop.from_op(op)
    given = [op.inputs for op in loop.body.get_operations() if op.type == "StatelessIf"]
    assert given and all(len({t.ref() for t in each}) == len(each) for each in given)
