"""Gradients of heavy operations read records of their results, and do not compute them again."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.quarter

COUNT = 4


def normal(*shape):
    return tf.random.stateless_normal(shape, [len(shape), shape[-1]])


W, SQUARE = normal(256, 256) * 0.06, normal(96, 96) * 0.1
FILTERS, DEPTHS = normal(3, 3, 16, 16) * 0.1, normal(9, 9, 16, 1) * 0.1
EYE = tf.eye(96)


def product(c, x):
    h = tf.tanh(x + c @ W)
    return h, tf.reduce_sum(tf.sin(h @ W), 1)


def batch_of_products(c, x):
    h = tf.matmul(c, tf.stack([W, W]), transpose_b=True)
    return tf.tanh(x + h), tf.reduce_max(h, 1)


def convolution(c, x):
    h = tf.nn.conv2d(tf.tanh(x + c), FILTERS, 1, "SAME")
    return h, tf.reduce_mean(tf.sin(h), [1, 2])


def depthwise(c, x):
    h = tf.nn.depthwise_conv2d(tf.tanh(x + c), DEPTHS, [1] * 4, "SAME")
    return h, tf.reduce_mean(tf.sin(h), [1, 2])


def transposed_convolution(c, x):
    h = tf.nn.conv2d_transpose(tf.tanh(x + c), FILTERS, x.shape, 1, "SAME")
    return h, tf.reduce_mean(tf.sin(h), [1, 2])


def volumes(c, x):
    h = tf.nn.conv3d(tf.tanh(x + c)[:, tf.newaxis], FILTERS[tf.newaxis], [1] * 5, "SAME")
    return h[:, 0], tf.reduce_mean(tf.sin(h), [1, 2])


def singular_vectors(c, x):
    s, u, v = tf.linalg.svd(x + c + tf.linalg.diag(tf.range(0.0, 960.0, 10.0)))
    return c * 0.5 + tf.abs(u * v) * 0.1, s * 1e-2


def eigenvectors(c, x):
    x = x + c
    values, vectors = tf.linalg.eigh(
        x + tf.transpose(x) + tf.linalg.diag(tf.range(0.0, 9600.0, 100.0))
    )
    return c * 0.5 + tf.square(vectors) * 0.1, values * 1e-3


def one_factor(c, x):
    q, _ = tf.linalg.qr(x + c + 20.0 * EYE)
    return c * 0.5 + q, tf.linalg.diag_part(q)


def einsum(c, x):
    h = tf.einsum("ij,kj->ik", tf.concat([c, c], 1), tf.concat([x, x], 1)) * 0.1
    return tf.tanh(h), tf.reduce_sum(h, 1)


def triangle(c, x):
    root = tf.linalg.cholesky(tf.matmul(x + c, x + c, transpose_b=True) + 20.0 * EYE)
    return c * 0.5 + root * 0.01, tf.linalg.diag_part(root)


def orthogonal(c, x):
    q, r = tf.linalg.qr(x + c + 20.0 * EYE)
    return c * 0.5 + q, tf.linalg.diag_part(r)


def solution(c, x):
    y = tf.linalg.solve(x + 30.0 * EYE, tf.concat([c, EYE[:, :8]], 1))
    return y[:, :96], y[:, 96:]


def inverse(c, x):
    y = tf.linalg.inv(x + c + 30.0 * EYE)
    return c * 0.5 + y, tf.reduce_sum(y, 1)


MATRICES = tf.zeros([96, 96]), normal(COUNT, 96, 96)
IMAGES = tf.zeros([2, 32, 32, 16]), normal(COUNT, 2, 32, 32, 16)
BODIES = {
    product: (tf.zeros([64, 256]), normal(COUNT, 64, 256), "MatMul"),
    batch_of_products: (tf.zeros([2, 64, 256]), normal(COUNT, 2, 64, 256), "BatchMatMulV2"),
    convolution: (*IMAGES, "Conv2D"),
    depthwise: (*IMAGES, "DepthwiseConv2dNative"),
    transposed_convolution: (*IMAGES, "Conv2DBackpropInput"),
    volumes: (*IMAGES, "Conv3D"),
    singular_vectors: (*MATRICES, "Svd"),
    eigenvectors: (*MATRICES, "SelfAdjointEigV2"),
    one_factor: (*MATRICES, "Qr"),
    einsum: (*MATRICES, "Einsum"),
    triangle: (*MATRICES, "Cholesky"),
    orthogonal: (*MATRICES, "Qr"),
    solution: (*MATRICES, "MatrixSolve"),
    inverse: (*MATRICES, "MatrixInverse"),
}


def scan(body, c, xs):
    return tf_ti.scan(body, c, xs)


def scan_with_checkpoints(body, c, xs):
    return tf_ti.scan(body, c, xs, checkpoint_every=3)


def scan_without_fuse(body, c, xs):
    return tf_ti.scan(body, c, xs, fuse=False)


def while_loop(body, c, xs, most=None, **options):
    def goes_on(k, c, ys):
        return k < COUNT if most is None else tf.logical_and(tf.reduce_max(c) < most, k < COUNT)

    def step(k, c, ys):
        c, y = body(c, xs[k])
        return k + 1, c, ys.write(k, y)

    ys = tf.TensorArray(tf.float32, COUNT)
    _, c, ys = tf_ti.while_loop(goes_on, step, (0, c, ys), **options)
    return c, ys.stack()


def while_loop_one_by_one(body, c, xs):
    return while_loop(body, c, xs, parallel_iterations=1)


def with_condition(body, c, xs, **options):
    """All that an iteration computes stays in this loop."""
    return while_loop(body, c, xs, most=1e9, **options)


def with_condition_one_by_one(body, c, xs):
    return with_condition(body, c, xs, parallel_iterations=1)


def unrolled(body, c, xs):
    ys = []
    for x in tf.unstack(xs):
        c, y = body(c, x)
        ys.append(y)
    return c, tf.stack(ys)


def derivatives(loop, body, order):
    def call(c, xs):
        with tf.GradientTape() as tape:
            tape.watch([c, xs, W])
            values = loop(body, c, xs)
            total = sum(tf.reduce_sum(tf.square(tf.sin(value))) for value in values)
        return *values, *tape.gradient(total, [c, xs, W], unconnected_gradients="zero")

    def call_again(c, xs):
        with tf.GradientTape() as tape:
            tape.watch([c, xs, W])
            values = call(c, xs)
            total = sum(tf.reduce_sum(tf.square(value)) for value in values[2:])
        return *values, *tape.gradient(total, [c, xs, W], unconnected_gradients="zero")

    return [None, call, call_again][order]


def assert_close(found, expected):
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, 1e-3, 3e-3 * np.abs(other).max())


@pytest.fixture(scope="module")
def expected():
    """The derivatives of the unrolled loop."""
    known = {}

    def find(body):
        if body not in known:
            c, xs, _ = BODIES[body]
            known[body] = tf.function(derivatives(unrolled, body, 2), autograph=False)(c, xs)
        return known[body]

    return find


@pytest.mark.parametrize(
    "loop",
    [scan, scan_with_checkpoints, scan_without_fuse, while_loop, while_loop_one_by_one],
)
@pytest.mark.parametrize("body", BODIES)
def test_first_and_second_derivatives(body, loop, expected):
    c, xs, _ = BODIES[body]
    found = tf.function(derivatives(loop, body, 2), autograph=False)(c, xs)
    assert_close(found, expected(body))


@pytest.mark.parametrize("body", [product, convolution])
def test_in_eager_mode(body, expected):
    c, xs, _ = BODIES[body]
    assert_close(derivatives(scan, body, 2)(c, xs), expected(body))


@pytest.mark.parametrize("body", [product, convolution])
def test_compiled(body, expected):
    c, xs, _ = BODIES[body]
    call = tf.function(derivatives(scan, body, 2), autograph=False, jit_compile=True)
    assert_close(call(c, xs), expected(body))


@pytest.mark.parametrize("body", [product, triangle])
def test_extents_that_are_not_known(body, expected):
    c, xs, _ = BODIES[body]
    c_spec = tf.TensorSpec([None, None], tf.float32)
    specs = c_spec, tf.TensorSpec([None, None, None], tf.float32)
    call = tf.function(derivatives(scan, body, 2), input_signature=specs, autograph=False)
    assert_close(call(c, xs), expected(body))


@pytest.mark.parametrize("body", [product, triangle])
def test_in_a_saved_model(body, expected, tmp_path):
    c, xs, _ = BODIES[body]
    module = tf.Module()
    module.call = tf.function(lambda c, xs: tf_ti.scan(body, c, xs), autograph=False)
    module.call(c, xs)
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    found = derivatives(lambda _, c, xs: loaded.call(c, xs), body, 1)(c, xs)
    assert_close(found[:4], expected(body)[:4])


def operations(function, *arguments):
    """How often each operation stands in a function's graph and in the functions that it calls."""
    definition = tf.function(function, autograph=False).get_concrete_function(*arguments)
    definition = definition.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return collections.Counter(node.op for node in nodes)


@pytest.mark.parametrize("body", BODIES)
def test_no_heavy_operation_is_repeated(body):
    """The gradient has as many as TensorFlow's gradient of one iteration."""
    c, xs, kind = BODIES[body]
    one = operations(derivatives(unrolled, body, 1), c, xs[:1])
    found = operations(derivatives(with_condition, body, 1), c, xs)
    again = operations(derivatives(with_condition_one_by_one, body, 1), c, xs)
    assert found[kind] <= one[kind] < again[kind], (found, one, again)


def recorded(function, *arguments):
    text = str(tf_ti.explain(tf.function(function, autograph=False), *arguments))
    return re.findall("its gradient records (.*)", text)[0]


def test_explain_says_the_bytes():
    c, xs, _ = BODIES[convolution]
    size = 4 * 2 * 32 * 32 * 16
    text = recorded(derivatives(scan, convolution, 1), c, xs)
    assert text == f"{2 * COUNT * size / 1e6:.3g} MB"
    text = recorded(derivatives(scan_with_checkpoints, convolution, 1), c, xs)
    assert text == f"{(2 + 3) * size / 1e3:.3g} kB"


def test_records_take_no_more_than_eight_times_the_states():
    def body(c, x):
        y = tf.reshape(c, [-1, 1]) * x
        return c * 0.5 + tf.reduce_mean(tf.tanh(y @ tf.transpose(y))), None

    c, xs = tf.ones([512]), tf.ones([COUNT, 1])
    text = recorded(lambda c, xs: tf_ti.scan(body, c, xs)[0], c, xs)
    assert text.startswith(f"{COUNT * 4 * 512 / 1e3:.3g} kB")


def test_what_a_custom_gradient_computes_again_is_not_recorded():
    @tf.recompute_grad
    def layer(x):
        return tf.tanh(x @ W)

    c, xs, _ = BODIES[product]
    text = recorded(lambda c, xs: tf_ti.scan(lambda c, x: (layer(c + x), None), c, xs)[0], c, xs)
    size = 4 * 64 * 256
    assert text.startswith(
        f"{2 * COUNT * size / 1e3:.3g} kB"
    )  # the states, and the layer's results


@pytest.mark.parametrize("every, is_recorded", [(1, True), (2, False)])
def test_compiled_loops_with_a_condition_heed_checkpoints(every, is_recorded):
    """XLA has every state recorded."""

    def call(c, xs):
        return tf_ti.scan(
            convolution, c, xs, until=lambda c, _: c[0, 0, 0, 0] > 9.0, checkpoint_every=every
        )[0]

    c, xs, _ = BODIES[convolution]
    compiled = tf.function(call, jit_compile=True, autograph=False).get_concrete_function(c, xs)
    (op,) = (op for op in compiled.graph.get_operations() if op.type.startswith("TfTi>"))
    modes, sources = op.get_attr("output_mode"), op.get_attr("output_source")
    found = [source for mode, source in zip(modes, sources) if mode == b"sequence" and source >= 0]
    assert bool(found) == is_recorded


def peak_of_eager_tape(run_program, body):
    """The bytes that a tape around a loop keeps, without the first call's."""
    printed = run_program(
        f"""
        import gc, resource
        import tensorflow as tf
        import tf_ti

        W = tf.eye(512) * 0.5

        def heavy(x):
            for _ in range(6):
                x = tf.tanh(x @ W)
            return x

        def kept(count):
            xs = tf.ones([count, 512, 512])
            with tf.GradientTape() as tape:
                tape.watch(xs)
                tf_ti.scan({body}, tf.zeros([512, 512]), xs)[0]
                gc.collect()
                pages = int(open("/proc/self/statm").read().split()[1])
                return pages * resource.getpagesize()

        kept(2)
        print(kept(32) - kept(2))
        """
    ).stdout
    return int(printed)


@pytest.mark.parametrize(
    "body",
    [
        "lambda c, x: (c * 0.5 + tf.stop_gradient(heavy(x + c)), None)",
        "lambda c, x: (tf.recompute_grad(heavy)(x + c), None)",
    ],
)
def test_an_eager_tape_keeps_no_results_that_no_gradient_reads(body, run_program):
    megabyte = 2**20
    assert peak_of_eager_tape(run_program, body) < 4 * 32 * megabyte
