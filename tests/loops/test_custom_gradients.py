"""Custom gradients in bodies: the user's gradient, whatever becomes of the loop around it.

The oracle is the loop unrolled in Python, where the operations are TensorFlow's alone.
"""

import ctypes
import functools

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit

T, B, N, H = 3, 2, 3, 4
LOOPS = ("TfTi>TensorIterator", "TfTi>StatelessTensorIterator")
SEQUENCE = "TfTi>RecurrentSequence"


def normal(*shape, dtype=tf.float32, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), dtype)


XS, W, R, V = normal(T, B, N), normal(N, H, seed=1), normal(H, H, seed=2), normal(H, N, seed=3)
VARIABLE = tf.Variable(0.7)


# --- custom gradients, nearly all of them wrong on purpose ---------------------------------------


@tf.custom_gradient
def constant_factor(v):
    return tf.sin(v), lambda dy: 17.0 * dy


@tf.custom_gradient
def intermediate_value(v):
    s = tf.sin(v)
    return s * s, lambda dy: 3.0 * dy * s


@tf.custom_gradient
def value_for_the_gradient_only(v):
    c = tf.cos(v)
    return tf.sin(v), lambda dy: 2.0 * dy * c


@tf.custom_gradient
def identity_alone(v):
    return v, lambda dy: -2.0 * dy


@tf.custom_gradient
def clipped_by_norm(v):
    return tf.identity(v), lambda dy: tf.clip_by_norm(dy, 0.1)


@tf.custom_gradient
def sign_of_the_gradient(v):
    return v * 1.0, lambda dy: tf.sign(dy) * tf.abs(v)


@tf.custom_gradient
def straight_through(v):
    return tf.round(v), lambda dy: tf.where(tf.abs(v) < 1.0, dy, 0.0)


@tf.custom_gradient
def in_a_conditional(v):
    s = tf.sin(v)
    return s, lambda dy: tf.cond(tf.reduce_sum(s) > 0.0, lambda: 2.0 * dy * s, lambda: -dy)


@tf.custom_gradient
def in_a_loop(v):
    return v * 0.5, lambda dy: tf.while_loop(
        lambda i, d: i < 3, lambda i, d: (i + 1, d * v), [0, dy]
    )[1]


@tf.custom_gradient
def by_a_function(v):
    s = tf.tanh(v)
    return s, lambda dy: tf.function(lambda d: d * s * 5.0)(dy)


def two_of_two(v):
    @tf.custom_gradient
    def f(a, b):
        return (a * b, a + b), lambda da, db: (da * 2.0 + db * b, da * 3.0)

    product, total = f(v, 2.0 * v)
    return product + total


def first_of_two(v):
    @tf.custom_gradient
    def f(a, b):
        return (a * b, a + b), lambda da, db: (da * 2.0 + db * b, da * 3.0 - db)

    return f(v, tf.exp(-v))[0]


def no_gradient_of_one(v):
    @tf.custom_gradient
    def f(a, b):
        return a * b, lambda dy: (dy * b, None)

    return f(v, tf.sin(v))


def integers(v):
    @tf.custom_gradient
    def f(a, n):
        return (a * tf.cast(n, a.dtype), n + 1), lambda da, dn: (da * 7.0, None)

    y, n = f(v, tf.cast(v > 0, tf.int32))
    return y * tf.cast(n, v.dtype)


def inside_of_another(v):
    @tf.custom_gradient
    def f(a):
        s = constant_factor(a)
        return s * intermediate_value(s), lambda dy: dy * s * 0.3

    return f(v)


def of_the_gradient(v):
    @tf.custom_gradient
    def f(a):
        s = tf.sin(a)

        @tf.custom_gradient
        def g(dy):
            return dy * s * 2.0, lambda ddy: ddy * 13.0

        return s, g

    return f(v)


@tf.custom_gradient
def no_gradient_at_all(v):
    return tf.sin(v), lambda dy: None


def captured_product(v):
    product = v * 0.5

    @tf.custom_gradient
    def f(a):
        return tf.tanh(a), lambda dy: dy * product

    return f(v + 1.0)


@tf.custom_gradient
def captured_variable(v):
    def gradient(dy, variables=None):
        return 5.0 * dy * VARIABLE, [tf.reduce_sum(dy) * 2.0 for _ in variables]

    return v * VARIABLE, gradient


@tf.custom_gradient
def captured_read(v):
    factor = tf.convert_to_tensor(VARIABLE)

    def gradient(dy, variables=None):
        return 5.0 * dy * factor, [tf.reduce_sum(dy * v) for _ in variables]

    return v * factor, gradient


def captured_outside(v):
    @tf.custom_gradient
    def f(a):
        return tf.tanh(a), lambda dy: dy * tf.reduce_sum(R)

    return f(v)


class Holder:
    """An object with a custom gradient, which needs the object's attributes."""

    @tf.custom_gradient
    def __call__(self, v):
        self.kept = {"values": [tf.sin(v)]}
        return self.kept["values"][0] * 1.0, functools.partial(self.gradient, 3.0)

    def gradient(self, factor, dy):
        return dy * factor * self.kept["values"][0]


KEPT = {}


@tf.custom_gradient
def in_a_global(v):
    key = len(KEPT)
    KEPT[key] = tf.sin(v)
    return tf.cos(v), lambda dy: dy * KEPT[key]


@tf.custom_gradient
def in_a_default(v):
    s = tf.sin(v)

    def gradient(dy, s=s):
        return dy * s * 0.5

    return tf.cos(v), gradient


@tf.custom_gradient
def by_a_tape(v):
    """The tensors that a tape holds cannot be seen."""
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = tf.sin(v) * v
    return y, lambda dy: tape.gradient(y, v, dy) * 0.5


@tf.custom_gradient
def returned_itself(v):
    s = tf.sin(v)
    return v * 1.0, lambda dy: s


CUSTOM = [
    constant_factor,
    intermediate_value,
    value_for_the_gradient_only,
    identity_alone,
    clipped_by_norm,
    sign_of_the_gradient,
    straight_through,
    in_a_conditional,
    in_a_loop,
    by_a_function,
    two_of_two,
    first_of_two,
    no_gradient_of_one,
    no_gradient_at_all,
    integers,
    inside_of_another,
    of_the_gradient,
    captured_product,
    captured_variable,
    captured_read,
    captured_outside,
    lambda v: Holder()(v),
    in_a_global,
    in_a_default,
    by_a_tape,
    returned_itself,
    tf.recompute_grad(lambda v: tf.sin(v * VARIABLE)),
    tf.grad_pass_through(lambda v: tf.sin(v) * VARIABLE),
    tf.function(lambda v: intermediate_value(v) + value_for_the_gradient_only(v)),
    tf.nn.silu,
    lambda v: tf.nn.silu(v, VARIABLE),
]
NAMES = [getattr(f, "__name__", "") for f in CUSTOM]
custom = pytest.mark.parametrize("f", CUSTOM, ids=[f"{i}-{n}" for i, n in enumerate(NAMES)])


# --- where they stand ----------------------------------------------------------------------------


def of_input_and_output(f):
    def cell(h, x):
        h = tf.tanh(f(f(x) @ W) + h @ R)
        return h, f(h @ V) + f(x)

    return cell


def of_states_and_weights(f):
    def cell(h, x):
        h = tf.tanh(f(x @ f(W)) + f(h @ R + x @ W) + f(h))
        return h, h

    return cell


def of_input_and_state(f):
    """The gradient of what is of no state refers to a state, and the reverse."""

    def cell(h, x):
        product = x @ W

        @tf.custom_gradient
        def g(a):
            return tf.tanh(a), lambda dy: dy * product

        @tf.custom_gradient
        def k(a):
            return a * 2.0, lambda dy: dy * h

        return g(k(f(product)) * 0.3 + h @ R), g(h)

    return cell


def unrolled(cell, init, xs):
    h, ys = init, []
    for x in tf.unstack(xs):
        h, y = cell(h, x)
        ys.append(y)
    return h, tf.stack(ys)


def scanned(cell, init, xs, **options):
    return tf_ti.scan(cell, init, xs, **options)


def gradients(way, cell, init, xs, **options):
    """The outputs, and the gradients of all that there is."""
    with tf.GradientTape() as tape:
        tape.watch([init, xs, W, R, V])
        h, ys = way(cell, init, xs, **options)
        loss = tf.reduce_sum(tf.sin(h)) + tf.reduce_sum(tf.sin(ys) * tf.cast(ys > 0, ys.dtype))
    found = tape.gradient(loss, [init, xs, W, R, V, VARIABLE], unconnected_gradients="zero")
    return [h, ys, *map(tf.convert_to_tensor, found)]


def compiled(*arguments, **options):
    return tf.function(lambda: gradients(*arguments, **options))()


def close(actual, expected, tolerance=2e-4):
    for a, e in zip(actual, expected, strict=True):
        scale = max(1.0, float(tf.reduce_max(tf.abs(e)))) if tf.size(e) else 1.0
        np.testing.assert_allclose(a / scale, e / scale, rtol=0, atol=tolerance)


INIT = tf.zeros([B, H])


# A tf.function would be traced for longer than it runs.
expected_of = functools.cache(lambda place, f: gradients(unrolled, place(f), INIT, XS))


@custom
@pytest.mark.parametrize("place", [of_input_and_output, of_states_and_weights])
def test_the_gradient_is_the_users(place, f):
    close(compiled(scanned, place(f), INIT, XS), expected_of(place, f))


@custom
def test_the_gradient_is_the_users_without_fusion(f):
    place = of_input_and_output
    close(gradients(scanned, place(f), INIT, XS, fuse=False), expected_of(place, f))


def test_operations_with_another_gradient_keep_it():
    """It is asked for by tf.gradients; a tape does not know it."""

    def f(v):
        with tf.compat.v1.get_default_graph().gradient_override_map({"Sin": "TestCustomGradients"}):
            return tf.sin(v)

    @tf.function
    def run(way, xs, **options):
        ys = way(of_input_and_output(f), INIT, xs, **options)[1]
        return tf.gradients(tf.reduce_sum(ys), xs)[0]

    close([run(scanned, XS)], [run(unrolled, XS)])


@tf.RegisterGradient("TestCustomGradients")
def _registered(op, dy):
    return dy * op.inputs[0] * 3.0


def test_a_gradient_refers_to_what_is_elsewhere():
    for f in (constant_factor, intermediate_value, tf.nn.silu):
        expected = gradients(unrolled, of_input_and_state(f), INIT, XS)
        close(compiled(scanned, of_input_and_state(f), INIT, XS), expected)


# --- ways to loop --------------------------------------------------------------------------------

FEW = [two_of_two, captured_variable, tf.nn.silu]
few = pytest.mark.parametrize("f", FEW, ids=lambda f: f.__name__)


@few
@pytest.mark.parametrize(
    "options",
    [{"jit_compile": True}, {"checkpoint_every": 2}, {"reverse": True}, {"axis": 1}],
    ids=lambda options: next(iter(options)),
)
def test_in_other_modes(options, f):
    cell, xs = of_input_and_output(f), XS
    expected = expected_of(of_input_and_output, f)
    if "reverse" in options:
        expected = gradients(unrolled, cell, INIT, tf.reverse(xs, [0]))
        expected[1], expected[3] = tf.reverse(expected[1], [0]), tf.reverse(expected[3], [0])
    if "axis" in options:
        xs = tf.transpose(xs, [1, 0, 2])
        expected = [*expected]
        expected[1], expected[3] = (tf.transpose(expected[k], [1, 0, 2]) for k in (1, 3))
    options = dict(options)
    jit_compile = options.pop("jit_compile", False)
    run = tf.function(
        lambda: gradients(scanned, cell, INIT, xs, **options), jit_compile=jit_compile
    )
    close(run(), expected)


@few
def test_of_unknown_dimensions(f):
    @tf.function(input_signature=[tf.TensorSpec([None, H]), tf.TensorSpec([None, None, N])])
    def run(init, xs):
        return gradients(scanned, of_input_and_output(f), init, xs)

    close(run(INIT, XS), expected_of(of_input_and_output, f))
    for actual in run(INIT, XS[:0])[3:]:
        np.testing.assert_array_equal(actual, tf.zeros_like(actual))


def iterated(cell, init, xs):
    ports = PortMap(
        [InputPort(0, 0), InputPort(1, 1, axis=0)], [OutputPort(0, 0), OutputPort(1, 1, axis=0)]
    )

    def body(h, x):
        h, y = cell(h, x[0])
        return h, y[None]

    return tf_ti.tensor_iterator(body, [init, xs], ports, [BackEdge(0, 0)])


def looped(cell, init, xs):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(T, TripLimit.COUNT)
        h = loop.add_recurrence(init)
        h.next, y = cell(h.tensor, loop.add_iterator(xs).tensor)
        last = loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        ys = loop.add_loop_output(y, LoopOutput.CONCATENATE)
    return last.tensor, ys.tensor


def nested(cell, init, xs):
    def outer(h, x):
        h, ys = tf_ti.scan(cell, h, x[None])
        return h, ys[0]

    return tf_ti.scan(outer, init, xs)


def in_a_function(cell, init, xs):
    return tf_ti.scan(tf.function(cell), init, xs)


def of_a_function(cell, init, xs):
    return tf_ti.scan(lambda h, x: tf.function(cell)(h, x), init, xs)


def in_a_while_loop(cell, init, xs):
    """Of tf_ti: with a condition."""
    with tf_ti.Loop() as loop:
        i = loop.add_recurrence(tf.constant(1))
        i.next = i + 1
        loop.add_trip_limit(i < T + 1, TripLimit.WHILE)
        h = loop.add_recurrence(init)
        h.next, y = cell(h.tensor, loop.add_iterator(xs).tensor)
        last = loop.add_loop_output(h, LoopOutput.LAST_VALUE)
        ys = loop.add_loop_output(y, LoopOutput.CONCATENATE)
    return last.tensor, ys.tensor


@pytest.mark.parametrize("f", [value_for_the_gradient_only, tf.nn.silu], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "way", [iterated, looped, nested, in_a_function, of_a_function, in_a_while_loop]
)
def test_in_other_loops(way, f):
    for place in (of_input_and_output, of_states_and_weights):
        close(compiled(way, place(f), INIT, XS), expected_of(place, f))


@few
def test_second_derivatives(f):
    def run(way):
        with tf.GradientTape() as outer:
            outer.watch(XS)
            with tf.GradientTape() as tape:
                tape.watch(XS)
                ys = way(of_input_and_output(f), INIT, XS)[1]
                loss = tf.reduce_sum(ys**2)
            grad = tape.gradient(loss, XS)
        return outer.gradient(grad, XS, tf.sin(XS), unconnected_gradients="zero")

    if f is not captured_variable:  # of which the unrolled loop has none
        close([tf.function(run)(scanned)], [run(unrolled)])


@few
def test_forward_mode(f):
    def run(way):
        with tf.autodiff.ForwardAccumulator(XS, tf.sin(XS)) as accumulator:
            ys = way(of_input_and_output(f), INIT, XS)[1]
        return accumulator.jvp(ys)

    close([tf.function(run)(scanned)], [run(unrolled)])


@pytest.mark.parametrize("f", [constant_factor, tf.nn.silu], ids=lambda f: f.__name__)
def test_jacobians_and_maps(f):
    def run(way, xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            ys = way(of_input_and_output(f), INIT, xs)[1]
        return tape.jacobian(ys, xs)

    close([tf.function(run)(scanned, XS[:2])], [run(unrolled, XS[:2])])

    def gradient(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            ys = scanned(of_input_and_output(f), INIT, xs)[1]
        return tape.gradient(ys, xs)

    lanes = tf.stack([XS, -XS])
    actual = tf.function(lambda: tf.vectorized_map(gradient, lanes))()
    close([actual], [tf.stack([gradient(x) for x in tf.unstack(lanes)])])


@few
@pytest.mark.parametrize("saves_gradients", [True, False])
def test_saved_and_loaded(tmp_path, saves_gradients, f):
    module = tf.Module()
    module.variable = VARIABLE
    specs = [tf.TensorSpec([B, H]), tf.TensorSpec([T, B, N])]
    module.run = tf.function(
        lambda init, xs: scanned(of_states_and_weights(f), init, xs), input_signature=specs
    )
    module.train = tf.function(
        lambda init, xs: gradients(scanned, of_input_and_output(f), init, xs),
        input_signature=specs,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=saves_gradients)
    tf.saved_model.save(module, tmp_path, options=options)
    loaded = tf.saved_model.load(tmp_path)
    close(loaded.train(INIT, XS), expected_of(of_input_and_output, f))
    close(loaded.run(INIT, XS), expected_of(of_states_and_weights, f)[:2])
    if saves_gradients:
        way = lambda cell, init, xs: loaded.run(init, xs)  # noqa: E731
        actual, expected = gradients(way, None, INIT, XS), expected_of(of_states_and_weights, f)
        close([actual[2], actual[3]], [expected[2], expected[3]])
        actual = tf.function(lambda: gradients(way, None, INIT, XS))()
        close([actual[2], actual[3]], [expected[2], expected[3]])


# --- what becomes of the loop --------------------------------------------------------------------


def types_in(call):
    """The types of the operations of a function, and of the bodies of its loops."""
    graph = tf.function(call).get_concrete_function().graph
    outside = [op.type for op in graph.get_operations()]
    bodies = [
        graph._get_function(op.get_attr("body").name).graph
        for op in graph.get_operations()
        if op.type in LOOPS
    ]
    return outside, [op.type for body in bodies for op in body.get_operations()]


def with_beta(v):
    return tf.nn.silu(v, 1.7)


def with_learnt_beta(v):
    return tf.nn.silu(v, VARIABLE)


def written_out(v):
    return v * tf.sigmoid(v)


def of_keras(v):
    import keras

    return keras.activations.swish(keras.ops.silu(v))


SILU = [written_out, tf.nn.silu, with_beta, with_learnt_beta, of_keras, tf.function(tf.nn.silu)]


@pytest.mark.parametrize("f", SILU, ids=lambda f: getattr(f, "__name__", "tf.function"))
def test_silu_of_no_state_is_computed_for_all_iterations(f):
    def cell(h, x):
        h = tf.tanh(f(x @ W) + h @ R)
        return h, f(h)

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))

    def other(h, x):
        h = tf.tanh(f(x @ W) + h @ R) * tf.math.lgamma(h + 3.0)
        return h, f(h)

    outside, inside = types_in(lambda: tf_ti.scan(other, INIT, XS))
    assert "Lgamma" in inside and not {"IdentityN", "Sigmoid"} & set(inside)
    assert inside.count("MatMul") == 1
    close(compiled(scanned, other, INIT, XS), gradients(unrolled, other, INIT, XS))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_silu_of_all_types(dtype):
    init, xs = tf.cast(INIT, dtype), normal(T, B, H, dtype=dtype)

    def cell(h, x):
        return h * tf.constant(0.5, dtype) + tf.nn.silu(x), tf.nn.silu(h, 0.3)

    def run(way):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            h, ys = way(cell, init, xs)
            loss = tf.reduce_sum(h) + tf.reduce_sum(ys * ys)
        return [tf.cast(t, tf.float64) for t in (h, ys, tape.gradient(loss, xs))]

    close(tf.function(run)(scanned), run(unrolled), 2e-2 if dtype.size == 2 else 1e-5)


def test_silu_with_another_beta_in_each_iteration():
    def cell(h, x):
        return h * 0.5 + tf.nn.silu(x @ W, x[0, 0]) + tf.nn.silu(h, h[0, 0]), h

    expected = gradients(unrolled, cell, INIT + 0.1, XS)
    close(compiled(scanned, cell, INIT + 0.1, XS), expected)


def test_a_gradient_like_that_of_silu_is_not_taken_for_it():
    @tf.custom_gradient
    def swish_impl(features, beta):
        def grad(dy):
            return dy * 17.0, tf.zeros_like(beta)

        return features * tf.sigmoid(beta * features), grad

    def cell(h, x):
        return h * 0.5 + swish_impl(x @ W, 1.0), swish_impl(h, 1.0)

    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


def test_a_custom_gradient_stays_with_what_it_is_the_gradient_of_and_the_rest_leaves():
    @tf.custom_gradient
    def wrong(v, w):
        s = tf.sin(v)
        return s * w, lambda dy: (dy * s * 17.0, None)

    def cell(h, x):
        h = tf.tanh(wrong(tf.exp(x @ W), tf.cos(x[:, :1])) + h @ R)
        h = h * tf.math.lgamma(h + 3.0)
        return h, tf.atan(h @ V)

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert {"Exp", "Cos", "Atan"} <= set(outside) and not {"Exp", "Cos", "Atan"} & set(inside)
    assert {"Sin", "Mul", "IdentityN", "Tanh"} <= set(inside) and inside.count("MatMul") == 1
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


@pytest.mark.parametrize("f", [intermediate_value, clipped_by_norm, captured_product])
def test_a_cell_is_recognised_though_its_input_and_output_have_custom_gradients(f):
    def cell(h, x):
        z, r = tf.sigmoid(f(x @ W) + h @ R), tf.sigmoid(f(x) @ W + h @ R)
        h = z * h + (1.0 - z) * tf.tanh(f(x @ W) + (r * h) @ R)
        return h, f(h)

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))


def test_a_gradient_that_cannot_be_asked_for_costs_nothing_until_it_is():
    @tf.custom_gradient
    def f(v):
        def grad(dy):
            raise NotImplementedError("no gradient of this")

        return tf.sin(v), grad

    cell = of_input_and_output(f)
    close(tf.function(lambda: tf_ti.scan(cell, INIT, XS))(), unrolled(cell, INIT, XS))
    with pytest.raises(NotImplementedError, match="no gradient of this"):
        compiled(scanned, cell, INIT, XS)


@pytest.mark.parametrize("of", ["input", "output"])
def test_a_gradient_with_effects_leaves_the_loop_as_others_do(of):
    drawn = tf.Variable(0.0)

    @tf.custom_gradient
    def f(v):
        return v * 2.0, lambda dy: dy * (tf.random.uniform([]) * 0.0 + drawn.assign_add(1.0))

    def cell(h, x):
        h = tf.tanh((f(x @ W) if of == "input" else x @ W) + h @ R)
        return h, f(h) if of == "output" else h

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    compiled(scanned, cell, INIT, XS)
    assert drawn.numpy() == T  # once in each iteration


# --- how often a gradient function is called -----------------------------------------------------


def counted(f=tf.sin):
    """A custom gradient, and its calls."""
    calls = []

    @tf.custom_gradient
    def counting(v):
        def gradient(dy):
            calls.append(1)
            return dy * v

        return f(v), gradient

    return counting, calls


def by_while_loop(cell, init, xs):
    _, h, ys = tf_ti.while_loop(
        lambda k, h, ys: k < T,
        lambda k, h, ys: (k + 1, cell(h, xs[k])[0], ys.write(k, cell(h, xs[k])[1])),
        (0, init, tf.TensorArray(tf.float32, T, element_shape=[B, N])),
    )
    return h, ys.stack()


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("way", [scanned, iterated, looped, nested, in_a_function, by_while_loop])
def test_no_gradient_function_is_called_where_nobody_asks(way, is_eager):
    f, calls = counted()
    cell = of_input_and_output(f)
    found = way(cell, INIT, XS) if is_eager else tf.function(lambda: way(cell, INIT, XS))()
    close(found, expected_of(of_input_and_output, tf.sin)[:2])
    assert not calls


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("way", [scanned, iterated, looped])
def test_a_gradient_function_is_called_once_for_each_operation(way, is_eager):
    f, calls = counted()

    def cell(h, x):
        h = tf.tanh(f(h @ R) + x @ W)
        return h, h @ V

    expected = gradients(unrolled, cell, INIT, XS)
    calls.clear()
    actual = gradients(way, cell, INIT, XS) if is_eager else compiled(way, cell, INIT, XS)
    close(actual, expected)
    assert len(calls) == 1


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("hides", [False, True])
def test_the_gradient_of_a_loop_has_a_loop_of_the_same_function(hides, is_eager):
    """Solvers have such gradients. A trace of the function is made for each that is needed."""
    calls = []

    @tf.custom_gradient
    def cube(x):
        tape = tf.GradientTape() if hides else None
        y = tf_ti.while_loop(lambda k, c: k < 3, lambda k, c: (k + 1, c * x), (0, x * 0.0 + 1.0))[1]

        def slope(dy):
            calls.append(tape)
            return tf_ti.scan(
                lambda g, k: (g + dy * 1.5 * cube(x) / x, None), x * 0.0, tf.zeros([2])
            )[0]

        return y, slope

    def gradient():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.scan(lambda c, k: (c + cube(x + k), None), 0.0, tf.constant([0.0, 1.0]))[0]
        return y, tape.gradient(y, x)

    x = tf.constant(0.9)
    y, slope = (gradient if is_eager else tf.function(gradient))()
    np.testing.assert_allclose([y, slope], [0.9**3 + 1.9**3, 3 * (0.9**2 + 1.9**2)], rtol=1e-5)
    assert len(calls) <= (8 if hides else 1)


def test_a_tensor_that_cannot_be_found_is_an_error_that_names_it():
    @tf.custom_gradient
    def f(v):
        hidden = tf.sin(v, name="hidden")
        number = id(hidden)
        return hidden * 1.0, lambda dy: dy * ctypes.cast(number, ctypes.py_object).value

    with pytest.raises(
        ValueError, match=r"IdentityN.* refers to the tensor .*hidden.*local variable"
    ):
        compiled(scanned, of_input_and_output(f), INIT, XS)


def test_several_tensors_pass_unchanged():
    def cell(h, x):
        a, b = tf.identity_n([x @ W, x])
        h = tf.tanh(a + h @ R)
        return h, tf.identity_n([h, b])[0]

    outside, inside = types_in(lambda: tf_ti.scan(cell, INIT, XS))
    assert SEQUENCE in outside and not inside
    close(compiled(scanned, cell, INIT, XS), gradients(unrolled, cell, INIT, XS))
