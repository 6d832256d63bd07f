"""Operations that leave a loop's body, and that stay; nobody sees a difference but in speed."""

import collections
import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from operation_cases import COUNT, some_cases
from roundings import check_row
from tensorflow.python.framework import ops

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit
from tf_ti.loops import lower, passes
from tf_ti.loops.passes import batching

pytestmark = pytest.mark.quarter

T, B, N, H = 5, 2, 3, 4
PLAIN = ("Placeholder", "Const", "Identity", "NoOp")


@pytest.fixture(autouse=True, scope="module")
def no_recognition():
    """Many of these bodies are cells that are known, of which nothing would be left to look at."""
    recognizers = dict(passes.RECOGNIZERS)
    passes.RECOGNIZERS.clear()
    yield
    passes.RECOGNIZERS.update(recognizers)


@pytest.fixture(autouse=True, scope="module")
def no_programs():
    """What programs run would stay: test_fission_and_programs.py has that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_TI_PROGRAM", "0")
        yield


def normal(*shape, dtype=tf.float32, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


XS, W, R, V = normal(T, B, N), normal(N, H, seed=1), normal(H, H, seed=2), normal(H, 7, seed=3)
BOTH, INIT = normal(N + H, H, seed=4), tf.zeros([B, H])


def bodies(call, *arguments):
    """The types of the operations in the bodies of the loops that a function has."""
    return bodies_in(tf.function(call).get_concrete_function(*arguments).graph)


def bodies_in(graph):
    found = []
    for op in graph.get_operations():
        if op.type.startswith("TfTi>"):
            body = graph._get_function(op.get_attr("body").name).graph
            types = (inner.type for inner in body.get_operations())
            found.append(collections.Counter(t for t in types if t not in PLAIN))
    return found


def body(call, *arguments):
    (found,) = bodies(call, *arguments)
    return dict(found)


def scan(f, init=INIT, xs=XS, **options):
    """A function of a scan's inputs."""
    return lambda init=init, xs=xs: tf_ti.scan(f, init, xs, **options)


def compare(f, init=INIT, xs=XS, exact=False, **options):
    """The scan and its gradients, with and without fission."""
    init = tf.nest.map_structure(tf.convert_to_tensor, init)

    def run(fuse):
        def call(init, xs):
            given = [t for t in tf.nest.flatten((init, xs)) if t.dtype.is_floating]
            with tf.GradientTape() as tape:
                tape.watch(given)
                outputs = [
                    t
                    for t in tf.nest.flatten(tf_ti.scan(f, init, xs, fuse=fuse, **options))
                    if t is not None
                ]
                terms = [
                    tf.reduce_sum(tf.sin(tf.cast(t, tf.float32)))
                    for t in outputs
                    if t.dtype.is_floating
                ]
                loss = tf.add_n(terms) if terms else tf.constant(0.0)
            return outputs, tape.gradient(loss, given, unconnected_gradients="zero")

        return tf.function(call)(init, xs)

    (outputs, gradients), (expected, expected_gradients) = run(True), run(False)
    for actual, other in zip(tf.nest.flatten(outputs), tf.nest.flatten(expected)):
        assert (actual.dtype, actual.shape) == (other.dtype, other.shape)
        if exact:
            np.testing.assert_array_equal(actual, other)
        else:
            np.testing.assert_allclose(actual, other, rtol=1e-5, atol=1e-5)
    for actual, other in zip(gradients, expected_gradients):
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-4)


# --- the four classes ----------------------------------------------------------------------------


def test_what_is_invariant_is_computed_once_outside():
    def f(h, x):
        return h * tf.exp(R[0]) + x[:, :1], None

    assert body(scan(f)) == {"Mul": 1, "AddV2": 1}
    compare(f)


def test_a_product_with_slices_is_one_large_product_before_the_loop():
    def f(h, x):
        return tf.tanh(x @ W + h @ R), None

    assert body(scan(f)) == {"MatMul": 1, "AddV2": 1, "Tanh": 1}
    graph = tf.function(scan(f)).get_concrete_function().graph
    (product,) = (op for op in graph.get_operations() if op.type == "MatMul")
    assert product.outputs[0].shape == [T * B, H]
    compare(f)


def test_a_product_that_no_state_depends_on_comes_after_the_loop():
    def f(h, x):
        h = tf.tanh(h + x[:, :1])
        return h, tf.nn.softmax(h @ V)

    assert body(scan(f)) == {"AddV2": 1, "Tanh": 1}
    compare(f)


@pytest.mark.slow
def test_a_body_without_states_leaves_no_loop():
    assert bodies(lambda: tf_ti.scan(lambda c, x: (c, tf.exp(x)), None, XS)) == []
    np.testing.assert_array_equal(
        tf.function(lambda: tf_ti.scan(lambda c, x: (c, 2.0 * x), None, XS)[1])(), 2.0 * XS
    )


@pytest.mark.parametrize(
    ("parts", "axis"),
    [("xh", 1), ("hx", 1), ("xhx", -1), ("hxh", 1), ("chx", 1)],
)
@pytest.mark.parametrize("transpose", [False, True])
def test_a_product_of_a_concatenation_becomes_two(parts, axis, transpose):
    width = sum({"x": N, "h": H, "c": 1}[part] for part in parts)
    matrix = normal(*((H, width) if transpose else (width, H)), seed=5)
    constant = tf.ones([B, 1])

    def f(h, x):
        joined = tf.concat([{"x": x, "h": h, "c": constant}[part] for part in parts], axis)
        return tf.tanh(tf.matmul(joined, matrix, transpose_b=transpose)), h

    graph = tf.function(scan(f)).get_concrete_function().graph
    assert [found["MatMul"] for found in bodies_in(graph)] == [1]
    assert [op.type for op in graph.get_operations()].count("MatMul") == 1
    compare(f)


def test_a_product_of_columns_becomes_two():
    matrix = normal(H, N + H, seed=5)

    def f(h, x):
        return tf.tanh(matrix @ tf.concat([x, h], 0)), h

    init, xs = tf.zeros([H, 1]), normal(T, N, 1)
    assert body(scan(f, init, xs)) == {"MatMul": 1, "AddV2": 1, "Tanh": 1}
    compare(f, init, xs)


def test_a_product_of_a_concatenation_after_the_loop_stays_one():
    def f(h, x):
        return h + x[:, :1], tf.concat([x, h], 1) @ BOTH

    assert "MatMul" not in body(scan(f))
    compare(f)


# --- each operation ------------------------------------------------------------------------------

# The rows that have a rule for all iterations at once. test_every_operation.py has all cases.
CASES = {name: cases for name, cases in some_cases().items() if name in batching.RULES}
VALUES = {name: [case.values for case in cases] for name, cases in CASES.items()}
START = tf.nest.map_structure(lambda v: v[0], VALUES)
SIZES = [v.shape.num_elements() for v in tf.nest.flatten(START)]


def next_state(c, x):
    return tf.not_equal(c, x) if x.dtype == tf.bool else c + x


def results_of(values):
    return {
        name: [case.compute(*x) for case, x in zip(cases, values[name], strict=True)]
        for name, cases in CASES.items()
    }


# AutoGraph would take longer than all else.
@tf.autograph.experimental.do_not_convert
def of_slices(c, x):
    return c + 1.0, results_of(x)


@tf.autograph.experimental.do_not_convert
def of_states(c, x):
    c = tf.nest.map_structure(next_state, c, x)
    return c, (c, results_of(c))


@tf.autograph.experimental.do_not_convert
def of_parts(c, x):
    """Cuts all values from one slice, as operations stay if numbers of slices may differ."""
    parts = tf.nest.pack_sequence_as(START, tf.split(x, SIZES))
    values = tf.nest.map_structure(
        lambda part, v: tf.cast(tf.reshape(part, v.shape), v.dtype), parts, START
    )
    return c + 1.0, results_of(values)


ALL = {
    "of slices": (of_slices, tf.constant(0.0), VALUES, {}),
    "of states": (of_states, START, VALUES, {}),
    "reversed": (of_slices, tf.constant(0.0), VALUES, {"reverse": True}),
    "of none": (of_parts, tf.constant(0.0), tf.zeros([0, sum(SIZES)]), {}),
}


@functools.cache
def scan_all(name):
    """A function of all operations in one loop."""
    f, init, xs, options = ALL[name]
    count = None if name == "of none" else COUNT
    specs = tf.nest.map_structure(lambda v: tf.TensorSpec([count, *v.shape[1:]], v.dtype), xs)
    call = tf.function(lambda init, xs: tf_ti.scan(f, init, xs, **options)[1])
    return call.get_concrete_function(init, specs)


@pytest.fixture(scope="module", params=ALL)
def all_operations(request):
    """The cases of all operations, as one loop sees their values, and the loop's results."""
    f, init, xs, _ = ALL[request.param]
    found = scan_all(request.param)(init, xs)
    if f is of_states:
        xs, found = found
    if f is of_parts:
        xs = tf.nest.map_structure(lambda v: v[:0], VALUES)
    return xs, found


@pytest.mark.parametrize("name", CASES)
def test_an_operation_gives_the_same_outside(all_operations, name):
    values, found = (each[name] for each in all_operations)
    for case, x, outputs in zip(CASES[name], values, found, strict=True):
        count = x[0].shape[0]
        expected = dataclasses.replace(case, values=tuple(x)).expected() if count else []
        wanted = [tf.stack(each) for each in zip(*expected, strict=True)]
        wanted = wanted or [t[:0] for t in map(tf.stack, zip(*case.expected()))]
        for a, e in zip(tf.nest.flatten(outputs), wanted, strict=True):
            assert (a.dtype, a.shape) == (e.dtype, e.shape)
            check_row(name, case, a, e)


# Counts of the operations that stay. Some only rename a value. Others have no rule for an input
# that each iteration computes (a value to fill with, bounds, a bias), or compute that input.
KEPT = {
    **dict.fromkeys(("GatherNd", "Mul", "PadV2", "Range", "Shape"), 1),
    **dict.fromkeys(("BiasAdd", "ClipByValue", "OneHot", "Snapshot", "Squeeze", "StopGradient"), 2),
    **dict.fromkeys(("ExpandDims", "Fill", "Reshape"), 3),
}


@pytest.mark.parametrize("name", ["of slices", "of states"])
def test_all_operations_but_a_few_leave_the_loop(name):
    (kept,) = bodies_in(scan_all(name).graph)
    bools = sum(v.dtype == tf.bool for v in tf.nest.flatten(START))
    states = {"AddV2": len(tf.nest.flatten(START)) - bools + 1, "NotEqual": bools, "ArgMax": 1}
    steps = {"AddV2": 2, "StridedSlice": 6}
    if name == "of states":
        steps = states | {"StridedSlice": 10}
    assert kept == KEPT | steps


OF_SIX_AXES = normal(*[2] * 6, seed=5)
ONCE = {
    "a gradient of a diagonal": lambda m: tf.gradients(tf.einsum("ii->i", m) ** 2, m)[0],
    "a diagonal of a product": lambda m: tf.raw_ops.Einsum(inputs=[m, m], equation="ij,jk->iik"),
    "a softmax of six axes": lambda m: tf.nn.softmax(OF_SIX_AXES + m[0, 0]),
}


@pytest.mark.parametrize("is_captured", [True, False])
@pytest.mark.parametrize("name", ONCE)
def test_what_cannot_be_batched_stays(name, is_captured):
    matrices = normal(3, 4, 4, seed=6)

    def body(c, m):
        y = ONCE[name](matrices[0] if is_captured else m)
        return c * 0.5 + tf.reduce_sum(y), tf.reduce_sum(m)

    @tf.function
    def call(fuse):
        return tf_ti.scan(body, 0.0, matrices, fuse=fuse)

    for actual, expected in zip(call(True), call(False)):
        np.testing.assert_allclose(actual, expected, rtol=1e-5)


STEPPED = {
    "reversed": lambda x: x[::-1],
    "every second column": lambda x: x[:, ::2],
    "flipped": lambda x: tf.reverse(x, [1]),
}


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("columns", [10, 20_000])
@pytest.mark.parametrize("name", STEPPED)
def test_slices_with_steps_leave_where_they_are_small(name, columns):
    step, xs = STEPPED[name], normal(3, 5, columns)
    call = tf.function(lambda xs: tf_ti.scan(lambda c, x: (c + 1.0, step(x)), 0.0, xs)[1])
    kinds = bodies_in(call.get_concrete_function(xs).graph)[0]
    stays = any(kind in kinds for kind in ("StridedSlice", "ReverseV2"))
    assert stays == (columns > 10)
    np.testing.assert_array_equal(call(xs), tf.stack([step(x) for x in xs]))


BATCHES = [(), (1,), (2,), (3, 1), (3, 2)]


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("stacked", ["bands", "right sides", "both"])
@pytest.mark.parametrize("solve", [tf.linalg.banded_triangular_solve, tf.linalg.triangular_solve])
def test_solutions_of_batches_of_several_ranks(solve, stacked, count):
    rows = 2 if solve is tf.linalg.banded_triangular_solve else 4
    is_left, is_right = stacked != "right sides", stacked != "bands"
    for of_left, of_right in itertools.product(BATCHES, BATCHES):
        left = tf.abs(normal(*(count,) * is_left, *of_left, rows, 4)) + 1.0
        right = normal(*(count,) * is_right, *of_right, 4, 2)

        @tf.function
        def call(left, right, fuse):
            def body(c, i):
                return c, solve(left[i] if is_left else left, right[i] if is_right else right)

            with tf.GradientTape() as tape:
                tape.watch((left, right))
                y = tf_ti.scan(body, (), tf.range(count), fuse=fuse)[1]
                loss = tf.reduce_sum(tf.square(y))
            return y, *tape.gradient(loss, (left, right))

        fused, plain = (call(left, right, fuse) for fuse in (True, False))
        for actual, expected in zip(fused, plain, strict=True):
            scale = np.abs(expected).max()
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3 * scale)


RESIZED = {
    "small": ((5, 7, 3), (8, 9), True),
    "large": ((5, 7, 3), (120, 100), False),
    "of unknown size": ((None, 7, 3), (8, 9), True),
    "of unknown channels": ((5, 7, None), (8, 9), False),
}


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize("method", ["bilinear", "bicubic", "area", "nearest", "lanczos3"])
@pytest.mark.parametrize("name", RESIZED)
def test_large_images_are_resized_at_once_where_that_takes_more_threads(name, method):
    shape, size, is_small = RESIZED[name]
    images = normal(6, *(5 if n is None else n for n in shape), seed=3)

    def run(images):
        return tf_ti.scan(lambda c, x: (c + 1.0, tf.image.resize(x, size, method)), 0.0, images)[1]

    call = tf.function(run).get_concrete_function(tf.TensorSpec([6, *shape]))
    has_threads = method in ("nearest", "lanczos3")
    resizing = [op for op in bodies_in(call.graph)[0] if "Resize" in op or "Scale" in op]
    assert bool(resizing) != (has_threads or is_small)
    expected = tf.stack([tf.image.resize(x, size, method) for x in images])
    np.testing.assert_array_equal(call(images), expected)


def has_gradient(name):
    try:
        return ops.gradient_registry.lookup(name) is not None
    except LookupError:
        return False


@pytest.mark.slow
def test_gradients_of_all_operations():
    def differentiable(name, output):
        if output.dtype.is_complex:  # A loss is real.
            output = tf.math.real(output) + tf.math.imag(output)
        return output if has_gradient(name) else tf.stop_gradient(output)

    @tf.autograph.experimental.do_not_convert
    def f(c, x):
        c, (_, results) = of_states(c, x)
        return c, {
            name: [differentiable(name, t) for t in tf.nest.flatten(outputs)]
            for name, outputs in results.items()
        }

    compare(f, START, VALUES)


def test_operations_that_refuse_an_empty_batch_stay_where_there_may_be_no_iteration():
    (kept,) = bodies_in(scan_all("of none").graph)
    assert {"MaxPool", "AvgPool", "MirrorPad"} <= set(kept)
    assert "MatMul" not in kept


# --- what stays ----------------------------------------------------------------------------------


def both(x):
    """A product of a slice, and what the body has of it."""
    return x @ W


def controlled(x):
    with tf.control_dependencies([tf.zeros([])]):
        return both(x)


STAYING = {
    "random": lambda x: both(x * tf.random.uniform([B, 1])),
    "a stateful operation": lambda x: both(tf.numpy_function(lambda v: v, [x], tf.float32)),
    "a conditional": lambda x: tf.cond(x[0, 0] > 0.0, lambda: both(x), lambda: 2.0 * both(x)),
    "control dependencies": controlled,
    "a custom gradient": lambda x: tf.grad_pass_through(tf.sin)(x) @ W,
    "strings": lambda x: both(tf.strings.to_number(tf.strings.as_string(x))),
}


@pytest.mark.parametrize("name", STAYING)
def test_what_is_not_known_to_be_safe_stays(name):
    def f(h, x):
        return tf.tanh(h @ R + STAYING[name](x)), None

    kept, everything = body(scan(f)), body(scan(f, fuse=False))
    condition = {"StridedSlice", "Greater"} if name == "a conditional" else set()
    assert set(everything) - set(kept) == condition
    assert kept["MatMul"] == everything["MatMul"]


def test_what_comes_before_a_while_loop_leaves_and_what_comes_after_stays():
    def f(h, x):
        (x,) = tf.while_loop(lambda y: tf.reduce_sum(y) < 0.0, lambda y: [y + 1.0], [x @ W])
        return tf.tanh(h @ R + x @ R), None

    assert body(scan(f))["MatMul"] == 2
    compare(f)


def test_what_depends_on_an_assigned_variable_stays():
    counter = tf.Variable(0.0)

    def f(h, x):
        counter.assign_add(1.0)
        return tf.tanh(h @ R + both(x) * counter), None

    assert body(scan(f))["MatMul"] == 1
    results = []
    for fuse in (True, False):
        counter.assign(0.0)
        results.append(tf.function(scan(f, fuse=fuse))()[0])
        assert counter.numpy() == T
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_an_integer_division_stays():
    def f(c, x):
        return c + x // 2, None

    xs = tf.range(T)
    assert body(scan(f, 0, xs)) == {"FloorDiv": 1, "AddV2": 1}


def test_integers_that_are_invariant_stay():
    size = tf.constant([2, 2])

    def f(c, x):
        return c + x, tf.reshape(c + x, tf.reverse(size, [0])) * 1.0

    compiled = tf.function(scan(f, tf.zeros([4]), normal(T, 4)), jit_compile=True)
    assert compiled()[1].shape == [T, 2, 2]


def test_a_loop_with_a_condition_stays_as_it_is():
    def call(xs):
        with tf_ti.Loop() as loop:
            x, h = loop.add_iterator(xs), loop.add_recurrence(INIT)
            loop.add_trip_limit(T, TripLimit.COUNT)
            loop.add_trip_limit(tf.reduce_sum(h) < 100.0, TripLimit.WHILE)
            h.next = h @ R + x @ W
            return loop.add_loop_output(h, LoopOutput.LAST_VALUE)

    def run(xs):
        return call(xs).tensor

    assert body(run, XS) == {"MatMul": 2, "AddV2": 1}


def number(value):
    return tf.cast(value, tf.float32)


# Of a number n that is 0, and a tensor e that has n elements: each fails then.
FAILING = {
    "a quotient": lambda n, e: number(7 // n),
    "a remainder": lambda n, e: number(7 % n),
    "a quotient of a tensor": lambda n, e: number(tf.truncatediv(tf.range(4), [n])),
    "a remainder of a tensor": lambda n, e: number(tf.truncatemod(tf.range(4), n)),
    "a power": lambda n, e: number(tf.pow(2, n - 1)),
    "a quotient by a known 0": lambda n, e: number(tf.stack([n + 4, n + 6]) // [2, 0]),
    "a known negative power": lambda n, e: number(tf.pow(tf.stack([n + 4, n + 6]), [2, -1])),
    "the first element": lambda n, e: e[0],
    "the last element": lambda n, e: e[-1],
    "a slice": lambda n, e: tf.slice(e, [0], [1]),
    "the only element": lambda n, e: tf.squeeze(e, 0),
    "a slice at a number": lambda n, e: tf.slice(W, [n + 100, 0], [1, 1]),
    "an element at a number": lambda n, e: W[n + 100, 0],
    "a gather": lambda n, e: tf.gather(e, [0]),
    "a gather of a table": lambda n, e: tf.gather(W, [n + 100]),
    "a gather of the row behind the last": lambda n, e: tf.gather(W, [W.shape[0]]),
    "a gather of elements": lambda n, e: tf.gather_nd(W, [[n + 100, 0]]),
    "the largest": lambda n, e: tf.math.top_k(e, 1)[0],
    "where the largest is": lambda n, e: number(tf.argmax(e)),
    "a shape to infer": lambda n, e: tf.reshape(e, [n, -1]),
    "fewer elements than none": lambda n, e: tf.zeros([n - 1]),
    "a range that ends before it begins": lambda n, e: number(tf.range(n - 1)),
    "a range by steps of 0": lambda n, e: number(tf.range(0, 10, n)),
    "fewer copies than none": lambda n, e: tf.tile(V, [n - 1, 1]),
    "less than no padding": lambda n, e: tf.pad(V, [[n - 1, 0], [0, 0]]),
    "fewer classes than none": lambda n, e: tf.one_hot([1, 2], n - 1),
    "a matrix of no size": lambda n, e: tf.eye(n - 1),
    "a mask of no length": lambda n, e: number(tf.sequence_mask([n], maxlen=n - 1)),
    "an axis": lambda n, e: tf.cumsum(V, n + 5),
    "an axis that is known": lambda n, e: tf.cumsum(V, 5),
    "a mean along an axis": lambda n, e: tf.reduce_mean(V, n + 5),
    "a permutation": lambda n, e: tf.transpose(V, [n, n]),
    "parts": lambda n, e: tf.split(V, [n + 1, H], 0)[0],
    "a diagonal": lambda n, e: tf.linalg.diag_part(R, k=n + 7),
    "a diagonal of more rows": lambda n, e: tf.linalg.diag(V[0], num_rows=n + 1),
    "a band": lambda n, e: tf.linalg.band_part(R, n + 7, 0),
    "a wide band": lambda n, e: tf.linalg.band_part(tf.zeros([n, n]), 2, 0),
    "a far diagonal": lambda n, e: tf.linalg.diag_part(tf.zeros([n, n]), k=2),
    "a window": lambda n, e: tf.nn.max_pool1d(e[tf.newaxis, :, tf.newaxis], 2, 1, "VALID"),
    "a filter": lambda n, e: tf.nn.conv1d(
        e[tf.newaxis, :, tf.newaxis], R[:2, :1, None], 1, "VALID"
    ),
    "a filter of channels": lambda n, e: tf.nn.depthwise_conv2d(
        e[tf.newaxis, :, tf.newaxis, tf.newaxis], R[:2, :1, None, None], [1] * 4, "VALID"
    ),
    "a filter of volumes": lambda n, e: tf.nn.conv3d(
        tf.zeros([1, n, 2, 2, 1]), tf.ones([2, 1, 1, 1, 1]), [1] * 5, "VALID"
    ),
    "a filter of many channels": lambda n, e: tf.nn.conv2d(
        tf.zeros([1, 2, 2, n]), tf.ones([1, 1, 3, 1]), 1, "SAME"
    ),
    "a mirror": lambda n, e: tf.pad(e, [[1, 1]], "REFLECT"),
    "even parts": lambda n, e: tf.split(tf.zeros([n + 3]), 2)[0],
    "a larger image": lambda n, e: tf.image.resize(tf.zeros([1, n, 2, 1]), [4, 4]),
    "an image of no size": lambda n, e: tf.image.resize(tf.zeros([1, 2, 2, 1]), [n, 4]),
    "an image of no rows": lambda n, e: tf.image.resize(tf.zeros([1, 0, 2, 1]), [4, 4]),
    "an image of no channels": lambda n, e: tf.image.resize(tf.zeros([1, 2, 2, 0]), [4, 4], "area"),
    "an image of no rows any more": lambda n, e: tf.image.resize(tf.zeros([1, 2, 2, 1]), [0, 4]),
    "an image at a scale": lambda n, e: tf.raw_ops.ScaleAndTranslate(
        images=tf.zeros([1, 2, 2, 1]), size=[2, 2], scale=[number(n)] * 2, translation=[0.0, 0.0]
    ),
    "no filter": lambda n, e: tf.nn.conv2d(
        tf.zeros([1, 2, 2, 3]), tf.ones([1, 1, 3, 0]), 1, "SAME"
    ),
    "a dilated filter beside pads": lambda n, e: tf.nn.conv2d(
        e[tf.newaxis, :, tf.newaxis, tf.newaxis] + tf.zeros([1, 1, 4, 1]),
        tf.ones([1, 2, 1, 1]),
        1,
        [[0, 0], [0, 0], [1, 1], [0, 0]],
        dilations=2,
    ),
    "no frequencies": lambda n, e: tf.stop_gradient(tf.abs(tf.signal.rfft(R, [0]))),
    "no waves": lambda n, e: tf.stop_gradient(
        tf.raw_ops.IRFFT(input=tf.complex(R, R), fft_length=[0])
    ),
    "more frequencies": lambda n, e: tf.stop_gradient(
        tf.abs(tf.raw_ops.RFFT(input=R, fft_length=[99]))
    ),
    "two more waves": lambda n, e: tf.stop_gradient(
        tf.raw_ops.IRFFT(input=tf.complex(R, R), fft_length=[2 * H])
    ),
    "frequencies of a number": lambda n, e: tf.stop_gradient(
        tf.abs(tf.raw_ops.RFFT(input=R, fft_length=[n + 99]))
    ),
    "more waves": lambda n, e: tf.stop_gradient(
        tf.raw_ops.IRFFT2D(input=tf.complex(R, R), fft_length=[2, 99])
    ),
    "a window of no images": lambda n, e: tf.nn.max_pool2d(
        tf.zeros([0, 4, 4, 1]) + V[0, 0], 2, 1, "SAME"
    ),
    "a window of no volumes": lambda n, e: tf.nn.max_pool3d(
        tf.zeros([0, 4, 4, 4, 1]) + V[0, 0], 2, 1, "VALID"
    ),
    "a window of no channels": lambda n, e: tf.raw_ops.AvgPool(
        value=tf.zeros([1, 4, 4, 0]), ksize=[1, 2, 2, 1], strides=[1] * 4, padding="SAME"
    ),
    "a mirror of no rows": lambda n, e: tf.pad(tf.zeros([0, 4]), [[0, 0], [1, 1]], "REFLECT"),
    "a band wider than the matrix": lambda n, e: tf.linalg.band_part(R, 99, 0),
    "a slice of more": lambda n, e: tf.stop_gradient(tf.slice(V, [1, 0], [99, 1])),
    "a slice from before": lambda n, e: tf.stop_gradient(tf.slice(V, [-1, 0], [1, 1])),
    "four colors": lambda n, e: tf.raw_ops.AdjustHue(images=tf.zeros([2, 2, 4]), delta=0.1),
    "hues": lambda n, e: tf.raw_ops.AdjustHue(images=tf.zeros([2, 2, 3]), delta=[0.1, 0.2]),
    "colors of a number": lambda n, e: tf.image.rgb_to_hsv(tf.zeros([2, 2, n + 3])[..., :n]),
    "a volume of more channels": lambda n, e: tf.nn.conv3d(
        tf.zeros([1, 4, 4, 4, 4]), tf.zeros([2] * 5), [1] * 5, "SAME"
    ),
    "nothing on top": lambda n, e: tf.math.top_k(V, 0)[0],
    "many axes": lambda n, e: tf.zeros([1] * 9) + tf.zeros([1] * 8 + [2]) + V[0, 0],
    "classes in no axis": lambda n, e: tf.raw_ops.OneHot(
        indices=[1, 2], depth=3, on_value=2.0, off_value=0.0, axis=5
    ),
    "pads of several values": lambda n, e: tf.raw_ops.PadV2(
        input=V, paddings=[[1, 1], [0, 0]], constant_values=[1.0]
    ),
    "another shape": lambda n, e: tf.reshape(V, [n, 7]),
    "an inverse": lambda n, e: tf.linalg.inv(number(n) * R),
    "a solution": lambda n, e: tf.linalg.solve(number(n) * R, R),
}


def by_scan(f, e):
    return tf_ti.scan(lambda c, x: (c + f() + x, None), 0.0, e)[0]


def by_count(f, e, loop=tf_ti.while_loop):
    return loop(lambda k, _: k < tf.shape(e)[0], lambda k, c: (k + 1, c + f()), (0, 0.0))[1]


def by_count_of_tensorflow(f, e):
    with tf_ti.accelerate():
        return by_count(f, e, tf.while_loop)


@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("loop", [by_scan, by_count, by_count_of_tensorflow])
def test_what_would_fail_stays_where_no_iteration_comes_to_it(loop, name):
    @tf.function(input_signature=[tf.TensorSpec([None])])
    def call(e):
        n = tf.shape(e)[0]
        with tf.GradientTape() as tape:
            tape.watch(e)
            y = loop(lambda: tf.reduce_sum(FAILING[name](n, e)), e)
        return y, tf.convert_to_tensor(tape.gradient(y, e, unconnected_gradients="zero"))

    y, slope = call(tf.zeros([0]))
    assert y == 0.0 and slope.shape == [0]


# Of a tensor e of n elements, m rows of 2, and as many columns: none fails.
SAFE = {
    "zeros": lambda n, rows: tf.matmul(tf.zeros([n, N]), W),
    "ones of a shape": lambda n, rows: tf.matmul(tf.ones(tf.shape(rows)), R[:2]),
    "zeros of a shape in parts": lambda n, rows: tf.exp(
        tf.zeros(tf.concat([tf.shape(rows)[:1], tf.reshape(n, [-1])], -1))
    ),
    "a range": lambda n, rows: tf.exp(number(tf.range(n))),
    "a quotient by known numbers": lambda n, rows: tf.exp(number(tf.range(n) // 7)),
    "a known power": lambda n, rows: tf.exp(number(tf.pow(tf.range(n), 2))),
    "classes": lambda n, rows: tf.exp(tf.one_hot([0, 1], n)),
    "copies": lambda n, rows: tf.matmul(tf.tile(rows, [n, 1]), R[:2]),
    "a flat tensor": lambda n, rows: tf.exp(tf.reshape(rows, [-1])),
    "columns": lambda n, rows: tf.exp(rows[:, 0]),
    "all but the first": lambda n, rows: tf.exp(rows[1:]),
    "a product of two axes": lambda n, rows: tf.tensordot(rows, R[:2], 1),
    "padding": lambda n, rows: tf.exp(tf.pad(rows, [[0, n], [1, 0]])),
    "a half": lambda n, rows: tf.exp(number(n // 2)),
    "a square": lambda n, rows: tf.exp(number(n**2)),
    "the larger column": lambda n, rows: tf.exp(number(tf.argmax(rows, 1))),
    "parts": lambda n, rows: tf.exp(tf.split(rows, 2, 1)[0]),
    "images": lambda n, rows: tf.image.resize(tf.ones([1, 2, 2, 1]) * number(n), [4, 4]),
    "frequencies": lambda n, rows: tf.abs(tf.signal.rfft(rows)),
    "waves": lambda n, rows: tf.signal.irfft(tf.complex(rows, rows), [2]),
    "bands": lambda n, rows: tf.exp(tf.linalg.band_part(tf.zeros([n, 3, 3]), 1, 0)),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_cannot_fail_leaves_though_there_may_be_no_iteration(name):
    def call(e, rows):
        n = tf.shape(e)[0]
        return tf_ti.scan(
            lambda c, x: (tf.sin(c) + x + tf.reduce_sum(SAFE[name](n, rows)), None), 0.0, e
        )[0]

    specs = tf.TensorSpec([None]), tf.TensorSpec([None, 2])
    assert set(body(call, *specs)) <= {"Sin", "AddV2", "Sum", "Range", "Mean"}
    function = tf.function(call, input_signature=specs)
    for n in (0, 3):
        e, rows = normal(n), normal(n, 2)
        expected = tf.constant(0.0)
        for x in tf.unstack(e):
            expected = tf.sin(expected) + x + tf.reduce_sum(SAFE[name](n, rows))
        np.testing.assert_allclose(function(e, rows), expected, 1e-5)


MANY_AXES = {
    "mirrored": (5, lambda x: tf.pad(x, [[0, 0]] * 4 + [[1, 1]], "REFLECT")),
    "padded": (6, lambda x: tf.pad(x, [[1, 0]] * 6)),
    "sliced": (8, lambda x: x[:, ::-1]),
    "softmax": (5, tf.nn.softmax),
}


@pytest.mark.parametrize("name", MANY_AXES)
def test_what_has_as_many_axes_as_kernels_take_stays(name):
    rank, operation = MANY_AXES[name]
    compare(lambda c, x: (c, operation(x)), 0.0, normal(T, *[2] * rank))


LONG_SUMS = {
    "matmul": lambda x, y: tf.matmul(x, y, transpose_b=True),
    "einsum": lambda x, y: tf.einsum("ij,kj->ik", x, y),
    "einsum of two axes": lambda x, y: tf.einsum(
        "ijk,ljk->il", tf.reshape(x, [4, 2, -1]), tf.reshape(y, [4, 2, -1])
    ),
}


@pytest.mark.parametrize("name", LONG_SUMS)
@pytest.mark.parametrize("extent, stays", [(8192, False), (8194, True), (None, True)])
def test_products_with_long_sums_stay(name, extent, stays):
    """OneDNN's batched products of few matrices are wrong there, in TensorFlow 2.21."""

    def call(xs, ys):
        return tf_ti.scan(lambda c, each: (c, LONG_SUMS[name](*each)), (), (xs, ys))[1]

    spec = tf.TensorSpec([2, 4, extent], tf.float32)
    assert bool(bodies(call, spec, spec)) == stays


def test_long_sums_are_right_on_many_threads(run_program):
    run_program(
        """
        import numpy as np
        import tensorflow as tf
        import tf_ti

        tf.config.threading.set_intra_op_parallelism_threads(8)
        xs = tf.random.stateless_normal([2, 4, 40_000], [1, 2])

        @tf.function(autograph=False)
        def f(xs):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                ys = tf_ti.scan(lambda c, x: (c, tf.matmul(x, x, transpose_b=True)), (), xs)[1]
            turned = tf.transpose(xs, [0, 2, 1])
            zs = tf_ti.scan(lambda c, x: (c, tf.matmul(*x)), (), (xs, turned))[1]
            return ys, zs, tape.gradient(ys, xs)

        exact = xs.numpy().astype(np.float64)
        product = exact @ exact.transpose(0, 2, 1)
        gradient = 2.0 * exact.sum(1, keepdims=True)
        for _ in range(3):
            ys, zs, found = f(xs)
            np.testing.assert_allclose(ys, product, rtol=1e-4, atol=1.0)
            np.testing.assert_allclose(zs, product, rtol=1e-4, atol=1.0)
            np.testing.assert_allclose(found, np.broadcast_to(gradient, found.shape), 1e-4, 1e-3)
        """
    )


# --- when it pays --------------------------------------------------------------------------------


def test_values_larger_than_4_times_slices_and_outputs_stay():
    wide = normal(N, 64)

    def f(h, x):
        return h + tf.reduce_sum(x @ wide, 1), None

    init = tf.zeros([B])
    assert body(scan(f, init))["MatMul"] == 1
    narrow = tf.ones([N, 4 * N])

    def g(h, x):
        return h + tf.reduce_sum(h * tf.transpose(x @ narrow), 0), None

    assert "MatMul" not in body(scan(g, init))


def test_elementwise_operations_move_where_the_cut_is_no_larger():
    def f(h, x):
        return h * tf.exp(x), None

    assert body(scan(f, tf.ones([B, N]))) == {"Mul": 1}
    compare(f, tf.ones([B, N]))


def test_what_makes_values_larger_stays():
    def f(h, x):
        return h + tf.exp(x)[:, :, None] * tf.ones([H]), None

    kept = body(scan(f, tf.ones([B, N, H])))
    assert "Exp" not in kept
    assert kept["Mul"] == 1


def test_what_makes_outputs_smaller_stays():
    def f(h, x):
        h = h + x[:, :1]
        return h, tf.reduce_sum(h)

    assert body(scan(f))["Sum"] == 1


def test_an_operation_that_only_renames_is_no_reason_to_move():
    def f(h, x):
        return h + tf.reshape(x, [N, B]), tf.identity(h)

    assert body(scan(f, tf.ones([N, B]))) == {"Reshape": 1, "AddV2": 1}


def test_an_unknown_dimension_counts_as_larger_than_all_that_are_known():
    def f(h, x):
        return h + tf.reduce_sum(x[:, None] * x[None]), None

    spec = tf.TensorSpec([T, None])
    assert body(lambda xs: tf_ti.scan(f, 0.0, xs), spec)["Mul"] == 1

    def g(h, x):
        return h + tf.reduce_sum(tf.matmul(x, x, transpose_b=True)) + tf.reduce_sum(x @ W), None

    spec = tf.TensorSpec([T, None, N])
    kept = body(lambda xs: tf_ti.scan(g, 0.0, xs), spec)
    assert kept["MatMul"] == 1  # of shape [unknown, unknown]


@pytest.mark.slow
def test_shapes_that_the_body_asks_for():
    def f(h, x):
        rows = tf.shape(x)[0]
        noise = tf.zeros([rows, 1]) + tf.cast(tf.range(rows), tf.float32)[:, None]
        return h, tf.reshape(x @ W + noise, [rows * H]) * tf.cast(tf.shape(W)[1], tf.float32)

    def run(fuse):
        spec = [tf.TensorSpec([B, H]), tf.TensorSpec([None, None, N])]
        return tf.function(lambda *x: tf_ti.scan(f, *x, fuse=fuse)).get_concrete_function(*spec)

    assert body(lambda xs: tf_ti.scan(f, INIT, xs), tf.TensorSpec([None, None, N])) == {}
    np.testing.assert_allclose(run(True)(INIT, XS)[1], run(False)(INIT, XS)[1], rtol=1e-5)
    assert run(True)(INIT, XS[:0])[1].shape == [0, B * H]


def test_what_stays_is_not_computed_outside_for_its_shape():
    wide = [normal(N, 3 * N, seed=seed) for seed in (1, 2)]

    def f(h, x):
        for w in wide:  # of which one fits
            y = x @ w
            h += tf.reduce_sum(h * y) / tf.cast(tf.shape(y)[0], tf.float32)
        return h, None

    def call(xs, fuse=True):
        return tf_ti.scan(f, tf.ones([]), xs, fuse=fuse)[0]

    spec = tf.TensorSpec([T, None, N])
    graph = tf.function(call).get_concrete_function(spec).graph
    assert [op.type for op in graph.get_operations()].count("MatMul") == 1
    assert body(call, spec)["MatMul"] == 1
    np.testing.assert_allclose(call(XS), call(XS, False), rtol=1e-5)


def test_a_shape_that_does_not_fit_is_an_error():
    def call(xs, rows):
        return tf_ti.scan(lambda c, x: (c, tf.reshape(x, [rows, 4]) @ R), 0.0, xs)[1]

    call = tf.function(
        call, input_signature=[tf.TensorSpec([None] * 2), tf.TensorSpec([], tf.int32)]
    )
    assert call(tf.ones([T, 12]), 3).shape == [T, 3, H]
    with pytest.raises(tf.errors.InvalidArgumentError, match="[Rr]eshape"):
        call(tf.ones([T, 12]), 2)


def test_states_of_unknown_shapes_keep_what_comes_after():
    def f(h, x):
        return h + x[:, :1], h @ V

    spec = tf.TensorSpec([None, H])
    call = tf.function(lambda init, xs: tf_ti.scan(f, init, xs))
    graph = call.get_concrete_function(spec, tf.TensorSpec([T, None, N])).graph
    (loop,) = (op for op in graph.get_operations() if op.type.startswith("TfTi>"))
    inner = graph._get_function(loop.get_attr("body").name).graph.get_operations()
    assert "MatMul" in {op.type for op in inner}


# --- counts and ranges ---------------------------------------------------------------------------


def test_with_an_unknown_number_of_iterations():
    def f(h, x):
        h = tf.tanh(x @ W + h @ R)
        return h, h @ V

    def call(xs, fuse):
        return tf_ti.scan(f, INIT, xs, fuse=fuse)

    spec = tf.TensorSpec([None, B, N])
    assert body(lambda xs: call(xs, True), spec) == {"MatMul": 1, "AddV2": 1, "Tanh": 1}
    moved, kept = (
        tf.function(lambda xs, fuse=fuse: call(xs, fuse)).get_concrete_function(spec)
        for fuse in (True, False)
    )
    for count in (0, 1, T):
        for a, b in zip(moved(XS[:count]), kept(XS[:count])):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_slices_of_unknown_extents_meet_in_the_loop_only():
    def f(c, x):
        return c + tf.exp(x[0]) * tf.exp(x[1]), None

    def call(a, b):
        return tf_ti.scan(f, 0.0, (a, b))[0]

    assert body(call, *[tf.TensorSpec([None])] * 2) == {"Mul": 1, "AddV2": 1}
    assert body(call, *[tf.TensorSpec([T])] * 2) == {"AddV2": 1}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"xs\[0\] gives 3 .* xs\[1\] gives 4"):
        tf.function(call, input_signature=[tf.TensorSpec([None])] * 2)(tf.zeros(3), tf.zeros(4))


def test_numbers_of_iterations_are_compared_where_all_leaves_the_loop():
    def call(a, b):
        return tf_ti.scan(lambda c, x: (c, tf.exp(x[0])), None, (a, b))[1]

    function = tf.function(call, input_signature=[tf.TensorSpec([None])] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"xs\[0\] gives 3 .* xs\[1\] gives 4"):
        function(tf.zeros(3), tf.zeros(4))
    length = tf.function(lambda n: tf_ti.scan(lambda c, x: (c, x * 2.0), None, XS, length=n)[1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="length gives 4 .* xs gives 5"):
        length(tf.constant(4))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_along_any_axis_in_both_directions(axis, reverse):
    xs = normal(3, 3, 3)

    def f(h, x):
        h = tf.tanh(x @ normal(3, 4) + h @ R)
        return h, h @ normal(4, 4)

    assert body(scan(f, tf.zeros([3, H]), xs, axis=axis, reverse=reverse))["MatMul"] == 1
    compare(f, tf.zeros([3, H]), xs, axis=axis, reverse=reverse)


PORTS = {
    "parts": {"axis": 1, "stride": 2},
    "parts backwards": {"axis": 1, "start": -1, "end": 0, "stride": -2},
    "backwards": {"axis": 1, "start": -1, "end": 0, "stride": -1},
    "a range": {"axis": 1, "start": 1, "end": 4},
    "a range backwards": {"axis": -2, "start": -2, "end": 1, "stride": -2},
    "gaps": {"axis": 1, "stride": 3, "part_size": 1},
    "overlaps": {"axis": 1, "stride": 1, "part_size": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("fields", PORTS.values(), ids=PORTS)
def test_pieces_of_any_range(fields):
    x = normal(2, 6, N)

    def step(piece, h):
        h = h + tf.reduce_sum(tf.exp(piece) @ W, [1])
        return h, tf.expand_dims(h @ normal(H, H), 1), tf.exp(piece)

    def call(fuse):
        port_map = PortMap(
            [InputPort(0, 0, **fields), InputPort(1, 1)],
            [
                OutputPort(0, 0),
                OutputPort(1, 1, axis=1, start=-1, end=0, stride=-1),
                OutputPort(2, 2, axis=1),
            ],
        )
        inputs = [x, INIT]
        return tf_ti.tensor_iterator(step, inputs, port_map, [BackEdge(0, 1)], fuse=fuse)

    kept = body(lambda: call(True))
    is_tiled = fields not in (PORTS["gaps"], PORTS["overlaps"])
    assert ("Exp" in kept, "BatchMatMulV2" in kept) == (not is_tiled,) * 2
    assert "MatMul" not in kept
    for a, b in zip(tf.function(lambda: call(True))(), tf.function(lambda: call(False))()):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.pairwise
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [0, 3, T])
@pytest.mark.parametrize("is_known", [False, True])
def test_iterators_may_be_longer_than_the_loop(reverse, count, is_known):
    def run(count, fuse=True):
        with tf_ti.Loop(fuse=fuse) as loop:
            loop.add_trip_limit(count, TripLimit.COUNT)
            x = loop.add_iterator(XS, reverse=reverse)
            h = loop.add_recurrence(INIT)
            h.next = tf.tanh(x @ W + h @ R)
            loop.add_loop_output(h, LoopOutput.LAST_VALUE)
            loop.add_loop_output(h @ V + tf.exp(x) @ normal(N, 7), LoopOutput.CONCATENATE)
            loop.add_loop_output(tf.exp(x), LoopOutput.REVERSE, axis=1)
            loop.add_loop_output(h @ V, LoopOutput.CONCATENATE, length=9)
        return [output.tensor for output in loop.outputs]

    given = [] if is_known else [tf.constant(count)]

    def call(*n, fuse=True):
        return run(*(n or [count]), fuse=fuse)

    kept = body(call, *given)
    assert kept["MatMul"] == 2  # of states: one is an output with a length
    expected = tf.function(lambda *n: call(*n, fuse=False))(*given)
    for a, b in zip(tf.function(call)(*given), expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_an_iterator_that_is_too_short_is_named():
    def run(count):
        with tf_ti.Loop("mine") as loop:
            loop.add_trip_limit(count, TripLimit.COUNT)
            x, y = loop.add_iterator(XS), loop.add_iterator(XS[:1])
            loop.add_loop_output(tf.exp(x) * tf.exp(y), LoopOutput.CONCATENATE)
        return loop.outputs[0].tensor

    for call in (tf.function(run), tf.function(lambda count: run(3))):
        with pytest.raises(tf.errors.InvalidArgumentError, match="'mine': iterator 1: there are 1"):
            call(tf.constant(3))


@pytest.mark.slow
def test_loops_inside_loops():
    def run(fuse):
        with tf_ti.Loop(fuse=fuse) as outer:
            outer.add_trip_limit(3, TripLimit.COUNT)
            x, h = outer.add_iterator(XS), outer.add_recurrence(INIT)
            with tf_ti.Loop(fuse=fuse) as inner:
                inner.add_trip_limit(2, TripLimit.COUNT)
                y, g = inner.add_iterator(XS[:2]), inner.add_recurrence(h)
                g.next = tf.tanh(g @ R + y @ W + x @ tf.exp(W))
                last = inner.add_loop_output(g, LoopOutput.LAST_VALUE)
            h.next = last.tensor
            outer.add_loop_output(h, LoopOutput.LAST_VALUE)
        return outer.outputs[0].tensor

    np.testing.assert_allclose(
        tf.function(run)(True), tf.function(run)(False), rtol=1e-5, atol=1e-6
    )
    graph = tf.function(lambda: run(True)).get_concrete_function().graph
    assert [op.type for op in graph.get_operations()].count("MatMul") == 2
    (outer,) = (op for op in graph.get_operations() if op.type.startswith("TfTi>"))
    around = graph._get_function(outer.get_attr("body").name).graph
    assert "MatMul" not in {op.type for op in around.get_operations()}


# --- results -------------------------------------------------------------------------------------


def test_results_that_are_parameters_invariants_or_constants():
    def f(c, x):
        return (x, c[0] + 1.0), (x, W, tf.exp(W), tf.exp(x), c[1], tf.constant(3.0), c[0])

    compare(f, (XS[0], XS[0]), XS)


def test_a_state_that_is_what_is_before():
    def f(last, x):
        x = x @ W
        return x, x - last

    compare(f)
    assert body(scan(f)) == {}


def test_last_values_are_the_loops():
    port_map = PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)])

    def step(x, h):
        return tf.exp(x) @ V[None], h

    x = normal(T, 1, H)

    def call():
        return tf_ti.tensor_iterator(step, [x, INIT], port_map)

    np.testing.assert_allclose(tf.function(call)()[0], tf.exp(x[-1:]) @ V[None], rtol=1e-5)

    def empty():
        return tf_ti.tensor_iterator(step, [x[:0], INIT], port_map)

    with pytest.raises(tf.errors.InvalidArgumentError, match="output port 0"):
        tf.function(empty)()


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float16", "complex128", "bool"])
def test_every_dtype(dtype):
    xs = tf.cast(normal(T, 3) * 3.0, dtype)

    def f(c, x):
        if dtype == "bool":
            return c & ~x, (c, ~c)
        return c + (x + x), (c, c * x)

    assert body(scan(f, xs[0], xs)) == {"LogicalAnd" if dtype == "bool" else "AddV2": 1}
    moved, kept = (tf.function(scan(f, xs[0], xs, fuse=fuse))() for fuse in (True, False))
    for a, b in zip(tf.nest.flatten(moved), tf.nest.flatten(kept)):
        np.testing.assert_array_equal(a, b)


NUMBERS = [tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float64, tf.complex64]
MATRICES = {
    "matrix": (4, 5),
    "transposed": (5, 4),
    "batch": (2, 4, 5),
    "batches of one": (1, 4, 5),
    "outer batch": (3, 1, 4, 5),
}


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("is_first", [False, True])
def test_products_of_batches_of_every_dtype(dtype, name, is_first):
    shape, turned = MATRICES[name], name == "transposed"
    matrix = np.random.default_rng(0).integers(-3, 4, shape)
    x = np.random.default_rng(1).integers(-3, 4, (T, 2, 3, 4))
    if is_first:
        x, matrix = np.swapaxes(x, -1, -2), np.swapaxes(matrix, -1, -2)

    def f(c, e):
        factor = tf.constant(matrix, dtype)
        if is_first:
            return c + 1.0, tf.matmul(factor, e, transpose_a=turned)
        return c + 1.0, tf.matmul(e, factor, transpose_b=turned)

    call = tf.function(scan(f, tf.constant(0.0), tf.constant(x, dtype)))
    other = np.swapaxes(matrix, -1, -2) if turned else matrix
    expected = [other @ e if is_first else e @ other for e in x]
    np.testing.assert_array_equal(tf.cast(call()[1], tf.complex128), expected)
    assert bodies_in(call.get_concrete_function().graph) == [{"AddV2": 1}]


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(4, 5), (2, 4, 5), (1, 4, 5)])
def test_gradients_of_batched_products_of_half_precision_add_up_in_float32(dtype, shape):
    """Of 3,000 ones, where a sum in half precision would stop at 256 or 2,048."""
    xs = tf.ones([3000, 2, 1, 4], dtype)

    @tf.function
    def gradient(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            ys = tf_ti.scan(lambda c, x: (c + 1.0, tf.matmul(x, w)), 0.0, xs)[1]
        return tape.gradient(ys, w)

    total = 3000 if shape == (2, 4, 5) else 6000
    expected = tf.fill(shape, tf.cast(total, dtype))
    np.testing.assert_array_equal(
        tf.cast(gradient(tf.ones(shape, dtype)), tf.float32), tf.cast(expected, tf.float32)
    )


# --- random bodies -------------------------------------------------------------------------------


def random_body(rng, only_elementwise):
    """A body of some 20 random operations of a state and a slice, both [4, 4]."""
    unary = [tf.abs, tf.negative, tf.nn.relu, lambda t: t * 0.5, lambda t: t + M4, tf.identity]
    others = [
        tf.tanh,
        tf.sigmoid,
        tf.nn.softmax,
        lambda t: t @ M4 * 0.3,
        lambda t: M4 @ t * 0.3,
        tf.transpose,
        lambda t: tf.reduce_mean(t, 0, keepdims=True),
        lambda t: tf.reduce_sum(t, 1, keepdims=True) * 0.2,
        lambda t: tf.reverse(t, [0]),
        lambda t: tf.tile(t[:1], [4, 1]),
    ]
    binary = [tf.add, tf.subtract, tf.maximum, lambda a, b: tf.where(a > b, a, 0.5 * b)]
    joins = [lambda a, b: tf.concat([a + M4 * 0.0, b + M4 * 0.0], 1) @ M8 * 0.2]
    choices = unary + binary if only_elementwise else unary + binary + others + joins
    steps = []
    for _ in range(20):
        steps.append((choices[rng.integers(len(choices))], rng.integers(2**30, size=2)))
    picks = rng.integers(2**30, size=3)

    def f(c, x):
        values = [c, x, M4]
        for operation, (a, b) in steps:
            given = [values[a % len(values)], values[b % len(values)]]
            is_binary = operation in binary or operation in joins
            values.append(operation(*given) if is_binary else operation(given[0]))
        following, first, second = (values[3 + p % (len(values) - 3)] for p in picks)
        following = 0.3 * tf.broadcast_to(following, [4, 4]) + 0.1 * c
        return following, (first, second)

    return f


M4, M8 = normal(4, 4, seed=9), normal(8, 4, seed=10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5), indirect=True)
def test_random_elementwise_bodies_give_the_same_bits(rng):
    f = random_body(rng, True)
    compare(f, normal(4, 4), normal(T, 4, 4, seed=11), exact=True, reverse=bool(rng.integers(2)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10), indirect=True)
def test_random_bodies_give_the_same_within_rounding(rng):
    f = random_body(rng, False)
    compare(f, normal(4, 4), normal(T, 4, 4, seed=11), reverse=bool(rng.integers(2)))


# --- derivatives and modes -----------------------------------------------------------------------


BOTH64, R64, V64, XS64 = (tf.cast(t, tf.float64) for t in (BOTH, R, V, XS))
INIT64 = tf.zeros([B, H], tf.float64)


def total(xs, w=BOTH64, fuse=True, **options):
    def f(h, x):
        h = tf.tanh(tf.concat([tf.sin(x), h], 1) @ w + tf.exp(R64[0]))
        return h, tf.nn.softmax(h @ V64)

    last, ys = tf_ti.scan(f, INIT64, xs, fuse=fuse, **options)
    return tf.reduce_sum(tf.sin(ys)) + tf.reduce_sum(last**2)


@pytest.mark.slow
@pytest.mark.parametrize("every", [None, 1, 2, 10])
def test_gradients(every):
    gradient = tf.function(lambda *x: tf.gradients(total(*x, checkpoint_every=every), x))
    expected = tf.function(lambda *x: tf.gradients(total(*x, fuse=False), x))
    for a, b in zip(gradient(XS64, BOTH64), expected(XS64, BOTH64)):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_what_moved_has_no_gradient_for_what_it_does_not_depend_on():
    def f(h, x):
        return h + x[:, :1], (tf.exp(x), h)

    def gradients(sources_of, **options):
        def call(init, xs):
            with tf.GradientTape() as tape:
                tape.watch([init, xs])
                targets = sources_of(*tf_ti.scan(f, init, xs)[1])
            return tape.gradient(targets, [init, xs], **options)

        return tf.function(call)(INIT, XS)

    init, xs = gradients(lambda y, h: y)
    assert init is None
    np.testing.assert_allclose(xs, tf.exp(XS), rtol=1e-6)
    init, _ = gradients(lambda y, h: y, unconnected_gradients="zero")
    np.testing.assert_array_equal(init, tf.zeros_like(INIT))
    init, _ = gradients(lambda y, h: [y, h])
    np.testing.assert_array_equal(init, T * tf.ones_like(INIT))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
def test_sums_of_half_precision_add_up_in_float32(dtype):
    """Many rows, in all iterations at once and once for all of them; float16's ends at 65504."""
    count = 3000
    random = np.random.default_rng(4)
    xs, w = (tf.constant(random.uniform(0.5, 1.5, s), dtype) for s in ((2, count, 6), (count, 6)))

    def product(x):
        return tf.einsum("ab,ac->bc", x, x)

    def sums(x):
        yield tf.reduce_sum(x, 0)
        yield tf.reduce_sum(tf.reshape(x, [count // 2, 2, 6]), [0, 1], keepdims=True)
        yield tf.reduce_mean(x, 0)
        yield tf.reduce_mean(tf.reshape(x, [3, count // 3, 6]), -2)
        yield tf.reduce_prod(tf.where(x > 1, tf.cast(1 + 2**-7, x.dtype), 1 - 2**-7), 0)
        yield tf.einsum("ab->b", x)
        yield tf.einsum("ab,c->cb", x, x[:3, 0])
        yield tf.matmul(x, x[:, :1], transpose_a=True)
        yield product(x)

    @tf.function
    def run(xs, w):
        return tf_ti.scan(lambda c, x: (c + 1, [*sums(x), *sums(0.5 * w + 0.5 * w)]), 0, xs)[1]

    assert not any(bodies_in(run.get_concrete_function(xs, w).graph))
    wide = [tf.cast(v, tf.float64) for v in (xs, w)]
    steps = [[*sums(x), *sums(wide[1])] for x in wide[0]]
    for k, found in enumerate(run(xs, w)):
        expected = tf.stack([step[k] for step in steps])
        tolerance = float(2 * np.spacing(dtype.as_numpy_dtype(1)))
        if (k + 1) % (len(steps[0]) // 2) == 0:  # on some processors their kernel adds up in halves
            own = tf.cast(product(xs[0]), tf.float64) / product(wide[0][0])
            tolerance = max(tolerance, 2 * float(tf.reduce_max(tf.abs(own - 1))))
        np.testing.assert_allclose(tf.cast(found, tf.float64), expected, tolerance)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("is_open", [False, True])
def test_gradients_of_half_precision_add_up_in_float32(dtype, is_open):
    """Those of what all iterations share, and of what an iteration broadcasts to many rows."""
    functions = (
        lambda x, b: x + b,
        lambda x, b: b * x,
        lambda x, b: tf.where(x > 0.9, b, x),
        lambda x, b: x[:1] * b + tf.broadcast_to(x[:1], [2, 10]),
        tf.nn.bias_add,
        lambda x, b: tf.stack([x[0], b]),
        lambda x, b: tf.concat([x[:1], b[None]], 0),
        lambda x, b: tf.einsum("ab,b->a", x, b),
        lambda x, b: tf.add_n([x[0], b, b]),
    )
    random = np.random.default_rng(5)
    x = tf.constant(random.uniform(0.5, 1.5, (3000, 2, 10)), dtype)
    shared = [tf.constant(random.uniform(0.5, 1.5, 10), dtype) for _ in functions]
    shape = [None, None, 10] if is_open else x.shape

    def total(values):
        return tf.add_n([tf.reduce_sum(tf.cast(v, tf.float64)) for v in values])

    @tf.function
    def run(x, *shared):
        x = tf.ensure_shape(tf.raw_ops.PlaceholderWithDefault(input=x, shape=shape), shape)
        with tf.GradientTape() as tape:
            tape.watch([x, *shared])
            f = lambda c, x: (c + 1, [f(x, b) for f, b in zip(functions, shared)])  # noqa: E731
            loss = total(tf_ti.scan(f, 0, x)[1])
        return tape.gradient(loss, [x, *shared])

    with tf.GradientTape() as tape:
        wide = [tf.cast(v, tf.float64) for v in (x, *shared)]
        tape.watch(wide)
        step = lambda x: [f(x, b) for f, b in zip(functions, wide[1:])]  # noqa: E731
        loss = total(tf.vectorized_map(step, wide[0]))
    for found, expected in zip(run(x, *shared), tape.gradient(loss, wide), strict=True):
        tolerance = float(4 * np.spacing(dtype.as_numpy_dtype(1)))
        np.testing.assert_allclose(tf.cast(found, tf.float64), expected, tolerance)


def test_gradients_by_differences():
    computed, numeric = tf.test.compute_gradient(tf.function(total), [XS64, BOTH64], 1e-4)
    for a, b in zip(computed, numeric):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.slow
def test_second_gradients():
    def second(fuse):
        @tf.function
        def call(xs, w):
            with tf.GradientTape() as outer:
                outer.watch([xs, w])
                with tf.GradientTape() as inner:
                    inner.watch([xs, w])
                    value = total(xs, w, fuse)
                gradients = inner.gradient(value, [xs, w])
                value = tf.add_n([tf.reduce_sum(g**2) for g in gradients])
            return outer.gradient(value, [xs, w])

        return call(XS64, BOTH64)

    for a, b in zip(second(True), second(False)):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_tangents():
    def push(fuse, run=tf.function):
        @run
        def call(xs):
            with tf.autodiff.ForwardAccumulator(xs, tf.ones_like(xs)) as accumulator:
                value = total(xs, fuse=fuse)
            return accumulator.jvp(value)

        return call(XS64)

    np.testing.assert_allclose(push(True), push(False), rtol=1e-12)
    np.testing.assert_allclose(push(True, lambda f: f), push(False), rtol=1e-12)


def test_many_at_once():
    many = tf.stack([XS64, 2.0 * XS64, -XS64])

    def each(fuse):
        return tf.function(lambda: tf.vectorized_map(lambda xs: total(xs, fuse=fuse), many))()

    np.testing.assert_allclose(each(True), each(False), rtol=1e-12)


@pytest.mark.slow
def test_compiled_by_xla():
    def both(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            value = total(xs)
        return value, tape.gradient(value, xs)

    expected = tf.function(both)(XS64)
    for a, b in zip(tf.function(both, jit_compile=True)(XS64), expected):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
def test_saved_and_loaded(tmp_path):
    module = tf.Module()
    module.w = tf.Variable(BOTH64)
    spec = tf.TensorSpec([None, B, N], tf.float64)
    module.call = tf.function(lambda xs: total(xs, module.w), input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with tf.GradientTape() as tape:
        value = loaded.call(XS64)
    with tf.GradientTape() as other:
        expected = tf.function(lambda: total(XS64, module.w, False))()
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(
        tape.gradient(value, loaded.w), other.gradient(expected, module.w), rtol=1e-10, atol=1e-12
    )


def test_a_body_that_reads_variables():
    w = tf.Variable(W)
    table = tf.Variable(normal(6, N, seed=12))

    def f(h, i):
        return tf.tanh(tf.gather(tf.identity(table), i) @ w + h @ R), None

    ids = tf.constant([[0, 3], [1, 1], [5, 2]])
    assert body(scan(f, INIT, ids)) == {"MatMul": 1, "AddV2": 1, "Tanh": 1}
    grads = []
    for fuse in (True, False):
        with tf.GradientTape() as tape:
            last = tf.function(scan(f, INIT, ids, fuse=fuse))()[0]
        grads.append(tape.gradient(last, [w, table]))
    for a, b in zip(*grads):
        a, b = tf.convert_to_tensor(a), tf.convert_to_tensor(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_what_comes_after_leaves_where_the_body_reads_variables():
    w, v = tf.Variable(R), tf.Variable(V)

    def f(h, x):
        h = tf.tanh(h @ w + x[:, :1])
        return h, h @ v

    assert body(scan(f)) == {"MatMul": 1, "AddV2": 1, "Tanh": 1}
    assert body(scan(tf.function(f))) == {"MatMul": 1, "AddV2": 1, "Tanh": 1}


def test_operations_keep_the_device_that_they_ask_for():
    def f(h, x):
        with tf.device("CPU:0"):
            x = x @ W
        return h + x, None

    graph = tf.function(scan(f)).get_concrete_function().graph
    (product,) = (op for op in graph.get_operations() if op.type == "MatMul")
    assert product.device.endswith("CPU:0")


# --- when ----------------------------------------------------------------------------------------


def f(h, x):
    return tf.tanh(x @ W + h @ R), None


@pytest.mark.slow
def test_fuse_false_leaves_the_body_as_it_is():
    assert body(scan(f, fuse=False)) == {"MatMul": 2, "AddV2": 1, "Tanh": 1}
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])

    def iterate(fuse):
        return lambda: tf_ti.tensor_iterator(tf.exp, [XS], port_map, fuse=fuse)

    assert bodies(iterate(True)) == []
    assert body(iterate(False)) == {"Exp": 1}

    def loop(fuse):
        with tf_ti.Loop(fuse=fuse) as made:
            made.add_trip_limit(T, TripLimit.COUNT)
            out = made.add_loop_output(tf.exp(made.add_iterator(XS)), LoopOutput.CONCATENATE)
        return out.tensor

    assert bodies(lambda: loop(True)) == []
    assert body(lambda: loop(False)) == {"Exp": 1}


@pytest.fixture
def products(monkeypatch):
    """How many products the bodies have that are made from now on."""
    counts = []
    make = lower.run_loop

    def run_loop(loop, *arguments, **options):
        counts.append([op.type for op in loop.body.get_operations()].count("MatMul"))
        return make(loop, *arguments, **options)

    monkeypatch.setattr(lower, "run_loop", run_loop)
    return counts


def test_an_eager_call_of_a_callable_moves_something_only_for_a_tape(products):
    tf_ti.scan(f, INIT, XS)
    assert products == [2]
    with tf.GradientTape() as tape:
        tape.watch(XS)
        tf_ti.scan(f, INIT, XS)
    assert products[1] == 1


def test_an_eager_call_of_a_tf_function_moves_something(products):
    ready = tf.function(f)
    results = [tf_ti.scan(ready, INIT, XS, fuse=fuse)[0] for fuse in (True, False, True)]
    assert products == [1, 2]  # what was made is kept
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.needs_checked_ids
def test_an_error_of_the_core_names_its_iteration():
    def g(h, x):
        return tf.gather(W, tf.cast(h[0, :1], tf.int32) + 100)[:, :1] * 0.0 + h + x @ W, None

    with pytest.raises(tf.errors.InvalidArgumentError, match="in iteration 0 of"):
        tf.function(scan(g))()


@pytest.mark.needs_checked_ids
def test_an_error_of_what_moved_names_no_iteration():
    def g(h, i):
        return h + tf.gather(W, i) @ R, None

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        tf.function(scan(g, INIT, tf.constant([[0, 1], [1, 9]])))()
    assert "in iteration" not in str(caught.value)
    assert "before_loop" in str(caught.value)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["product", "expanded", "reversed", "sum", "gathered"])
def test_a_result_that_is_an_invariant_is_itself_to_what_comes_after(name, reverse, jit):
    operation = {
        "product": lambda w, x: w[0] * x,
        "expanded": lambda w, x: w[:, tf.newaxis] * x,
        "reversed": lambda w, x: tf.reverse(w, [0]) + x,
        "sum": lambda w, x: tf.reduce_sum(w, 0) * x,
        "gathered": lambda w, x: tf.gather(w, [1, 0]) - x,
    }[name]
    w, xs = normal(2, 2, seed=11), normal(T, 2, seed=12)

    @tf.function(jit_compile=jit)
    def call(w, xs):
        with tf.GradientTape() as tape:
            tape.watch([w, xs])
            ys = tf_ti.scan(lambda c, x: (c, (operation(w, x), w)), (), xs, reverse=reverse)[1]
            loss = tf.add_n([tf.reduce_sum(y**2) for y in ys])
        return ys, tape.gradient(loss, [w, xs])

    with tf.GradientTape() as tape:
        tape.watch([w, xs])
        expected = [tf.stack([operation(w, x) for x in tf.unstack(xs)]), tf.stack([w] * T)]
        loss = tf.add_n([tf.reduce_sum(y**2) for y in expected])
    found, slopes = call(w, xs)
    for a, e in zip([*found, *slopes], [*expected, *tape.gradient(loss, [w, xs])], strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-5)
