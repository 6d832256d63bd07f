"""Variables change between a loop and its gradient, which uses the values from before.

The oracle is the loop unrolled in Python. Each body reads its variables in a function of its own: a
gradient runs that function again.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

pytestmark = pytest.mark.quarter

V = tf.Variable(2.0)
ROWS = tf.Variable(tf.reshape(tf.range(1.0, 7.0) * 0.3, [6, 1]))
X = tf.constant(0.3)


def in_a_branch(f, y):
    return tf.cond(y > -1e9, lambda: f(y), lambda: y)


def in_a_switch(f, y):
    return tf.switch_case(tf.cast(y > 1e9, tf.int32), [lambda: f(y), lambda: y])


def in_a_loop(f, y):
    return tf_ti.scan(lambda y, _: (f(y), None), y, length=2)[0]


def in_a_loop_of_tensorflow(f, y):
    return tf.while_loop(lambda k, _: k < 2, lambda k, y: (k + 1, f(y)), (0, y))[1]


PLACES = [in_a_branch, in_a_switch, in_a_loop, in_a_loop_of_tensorflow]


def by_scan(step, y, **options):
    return tf_ti.scan(lambda y, _: (step(y), None), y, length=3, **options)[0]


def by_checkpoints(step, y):
    return by_scan(step, y, checkpoint_every=2)


def by_while_loop(step, y, loop=tf_ti.while_loop):
    return loop(lambda k, _: k < 3, lambda k, y: (k + 1, step(y)), (0, y))[1]


def by_accelerated_loop(step, y):
    with tf_ti.accelerate():
        return by_while_loop(step, y, tf.while_loop)


WAYS = [by_scan, by_checkpoints, by_while_loop, by_accelerated_loop]


def unrolled(step, y):
    for _ in range(3):
        y = step(y)
    return y


def use(y):
    return tf.tanh(y * V + tf.reduce_sum(tf.gather(ROWS, [1, 4]))) + 0.1 * y


def use_densely(y):
    return tf.tanh(y * V) + 0.1 * y


def as_it_is(run):
    return run


def in_a_function(run):
    return tf.function(run, autograph=False)


def in_a_conditional(run):
    return lambda y: tf.cond(y > -1e9, lambda: run(y), lambda: y)


def vectorized(run):
    return lambda y: tf.reduce_sum(tf.vectorized_map(run, tf.stack([y, y + 0.5])))


AROUND = [as_it_is, in_a_function, in_a_conditional, vectorized]


def reset():
    V.assign(2.0)
    ROWS.assign(tf.reshape(tf.range(1.0, 7.0) * 0.3, [6, 1]))


def gradients(run, y):
    """The gradients by a tensor and two variables, after the variables have changed."""
    with tf.GradientTape() as tape:
        tape.watch(y)
        value = run(y)
    V.assign(-7.0)
    ROWS.assign(tf.fill([6, 1], 5.0))
    return [tf.convert_to_tensor(g) for g in tape.gradient(value, [y, V, ROWS])]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("is_eager", [True, False])
def test_what_is_around_the_loop(around, way, place, is_eager):
    if around is vectorized and place is in_a_loop_of_tensorflow:
        pytest.skip("TensorFlow's own loops have no gradient in its maps")

    def run(y):
        return way(lambda y: place(use, y), y)

    reset()
    oracle = around(lambda y: unrolled(lambda y: place(use, y), y))
    if around is vectorized:  # which leaves conditionals no gradient

        def oracle(y):
            step = (lambda y: use(use(y))) if place is in_a_loop else use
            return unrolled(step, y) + unrolled(step, y + 0.5)

    expected = gradients(oracle, X)
    ask = gradients if is_eager else tf.function(gradients, autograph=False)
    call = around(run)
    for _ in range(1 if is_eager else 20):  # operations of a function may run in several orders
        reset()
        for found, right in zip(ask(call, X), expected, strict=True):
            np.testing.assert_allclose(found, right, 1e-4, 1e-6)


@pytest.mark.parametrize("place", [in_a_branch, in_a_loop])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_loaded_function(place, is_inside, tmp_path):
    module = tf.Module()
    module.v = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([])])
    def call(y):
        run = lambda y: by_scan(lambda y: place(lambda y: tf.sin(y * module.v), y), y)  # noqa: E731
        return tf.cond(y > 0.0, lambda: run(y), lambda: y) if is_inside else run(y)

    module.call = call
    tf.saved_model.save(module, tmp_path / "model")
    module = tf.saved_model.load(tmp_path / "model")

    def slopes(f):
        module.v.assign(2.0)
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = f(X)
        module.v.assign(-7.0)
        return tape.gradient(y, [X, module.v])

    def oracle(y):
        for _ in range(6 if place is in_a_loop else 3):
            y = tf.sin(y * module.v)
        return y

    np.testing.assert_allclose(slopes(module.call), slopes(oracle), 1e-5)


def test_a_graph_of_tensorflow_1():
    """The program's control dependencies let a variable change after the loop."""
    with tf.Graph().as_default():
        v = tf.compat.v1.get_variable("v", initializer=2.0, use_resource=True)
        x = tf.constant(1.5)
        y = by_scan(lambda y: in_a_branch(lambda y: y * v, y), x)
        with tf.control_dependencies([y]):
            changed = v.assign(v * 3.5)
        with tf.control_dependencies([changed]):
            (slope,) = tf.gradients(y, x, grad_ys=[tf.identity(y) / y])
        with tf.compat.v1.Session() as session:
            for _ in range(50):
                session.run(tf.compat.v1.global_variables_initializer())
                assert session.run(slope) == 8.0


def test_a_large_variable_beside_a_table():
    """The body looks rows up in another variable."""
    large, table = tf.Variable(tf.fill([2100, 2100], 1e-3)), tf.Variable(tf.ones([5, 2100]))
    x = tf.random.stateless_normal([2100], [1, 2])

    def step(h):
        return in_a_branch_of_vectors(
            lambda h: tf.tanh(tf.linalg.matvec(large, h)) * tf.gather(table, 2), h
        )

    def in_a_branch_of_vectors(f, h):
        return tf.cond(tf.reduce_sum(h) > -1e9, lambda: f(h), lambda: h)

    def slope(run):
        large.assign(tf.fill([2100, 2100], 1e-3))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(step, x)
        large.assign_add(tf.fill([2100, 2100], 1e-3))
        return tape.gradient(y, x)

    np.testing.assert_allclose(slope(by_scan), slope(unrolled), 1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_eager", [True, False])
def test_functions_that_xla_compiles_find_the_variables(way, is_eager):
    compiled = tf.function(use, jit_compile=True)
    reset()
    expected = gradients(lambda y: unrolled(compiled, y), X)
    reset()
    ask = gradients if is_eager else tf.function(gradients, autograph=False)
    for found, right in zip(ask(lambda y: way(compiled, y), X), expected, strict=True):
        np.testing.assert_allclose(found, right, 1e-5, 1e-6)


@pytest.mark.parametrize("place", [in_a_branch, in_a_switch, in_a_loop])
@pytest.mark.parametrize("way", [by_scan, by_while_loop])
def test_jacobians(way, place):
    reset()
    x = tf.constant([0.3, -0.5, 0.8])

    def step(y):
        return tf.cond(tf.reduce_sum(y) > -1e9, lambda: use(y), lambda: y)

    def of_all(f, y):
        if place is in_a_loop:
            return in_a_loop(f, y)
        first = tf.reduce_sum(y)
        if place is in_a_switch:
            index = tf.cast(first > 1e9, tf.int32)
            return tf.switch_case(index, [lambda: f(y), lambda: y])
        return step(y)

    def jacobian(run):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = run(lambda y: of_all(use, y), x)
        return tape.jacobian(y, [x, V])

    def by_python(step, y):
        times = 6 if place is in_a_loop else 3
        for _ in range(times):
            y = use(y)
        return y

    for found, right in zip(jacobian(way), jacobian(by_python), strict=True):
        np.testing.assert_allclose(found, right, 1e-5, 1e-6)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", [by_scan, by_while_loop])
@pytest.mark.parametrize("is_in_a_loop", [False, True])
def test_second_gradients_of_a_loop_in_a_branch(way, place, is_in_a_loop):
    """TensorFlow's gradients of branches and loops take no variables that were made inside."""
    reset()

    def surrounded(run, y):
        if is_in_a_loop:
            loop = tf.while_loop(lambda k, _: k < 2, lambda k, y: (k + 1, run(y)), (0, y))
            return loop[1]
        return tf.cond(y > -1e9, lambda: run(y), lambda: y)

    def second(run, y):
        with tf.GradientTape() as outer:
            outer.watch(y)
            with tf.GradientTape() as tape:
                tape.watch(y)
                value = run(y)
            slopes = [tf.convert_to_tensor(g) for g in tape.gradient(value, [y, V])]
            total = tf.sin(slopes[0]) + slopes[1] ** 2
        return [tf.convert_to_tensor(g) for g in outer.gradient(total, [y, V])]

    def by_python(y):
        times = 3 * (1 + is_in_a_loop) * (1 + (place in (in_a_loop, in_a_loop_of_tensorflow)))
        for _ in range(times):
            y = use_densely(y)
        return y

    def call(y):
        return surrounded(lambda y: way(lambda y: place(use_densely, y), y), y)

    found = tf.function(lambda y: second(call, y), autograph=False)(X)
    np.testing.assert_allclose(found, second(by_python, X), 1e-4, 1e-6)


def test_values_of_before_do_not_stay(run_program):
    """An eager step after the other, which changes a variable of 40 MB that XLA has read."""
    run_program(
        """
        import resource
        import tensorflow as tf
        import tf_ti

        v = tf.Variable(tf.ones([10_000_000]))
        read = tf.function(lambda x: x * tf.reduce_sum(v) * 1e-7, jit_compile=True)
        x = tf.constant(1.0)

        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf_ti.scan(lambda s, _: (s + read(s), None), x, length=2)[0]
            tape.gradient(y, x)
            v.assign_add(tf.zeros([10_000_000]))
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        before = [step() for _ in range(4)][-1]
        after = [step() for _ in range(10)][-1]
        assert after - before < 100, (before, after)
        """
    )


def test_clusters_that_tensorflow_makes_for_xla(run_program):
    run_program(
        """
        import os

        flags = "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
        os.environ["TF_XLA_FLAGS"] = flags
        import numpy as np
        import tensorflow as tf
        import tf_ti

        v = tf.Variable(tf.ones([8]) * 2.0)

        def step(h):
            return tf.cond(tf.reduce_sum(h) > -1e9, lambda: tf.tanh(h * v), lambda: h)

        def slope(run, x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = run(tf.sin(x) * v)
            return tape.gradient(y, x) * tf.exp(tf.sin(x))

        def unrolled(x):
            return step(step(step(x)))

        def loop(x):
            return tf_ti.scan(lambda h, _: (step(h), None), x, length=3)[0]

        x = tf.linspace(0.0, 1.0, 8)
        found = tf.function(lambda x: slope(loop, x))(x)
        np.testing.assert_allclose(found, slope(unrolled, x), 1e-4)
        """,
        is_first=True,
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("way", [by_scan, by_checkpoints, by_while_loop])
@pytest.mark.parametrize("is_forward_first", [True, False])
def test_second_derivatives_with_tangents(way, place, is_forward_first):
    """A tape around a ForwardAccumulator, or inside of one, in eager mode."""
    reset()

    def forward_first(run):
        with tf.GradientTape() as tape:
            tape.watch(X)
            with tf.autodiff.ForwardAccumulator(X, tf.constant(1.0)) as tangents:
                y = run(X)
            total = tangents.jvp(y) ** 2
        return [tf.convert_to_tensor(g) for g in tape.gradient(total, [X, V])]

    def backward_first(run):
        with tf.autodiff.ForwardAccumulator(X, tf.constant(1.0)) as tangents:
            with tf.GradientTape() as tape:
                tape.watch(X)
                y = run(X) ** 2
            slopes = [tf.convert_to_tensor(g) for g in tape.gradient(y, [X, V])]
        return [tangents.jvp(slope) for slope in slopes]

    ask = forward_first if is_forward_first else backward_first
    times = 6 if place in (in_a_loop, in_a_loop_of_tensorflow) else 3

    def by_python(y):
        for _ in range(times):
            y = use_densely(y)
        return y

    found = ask(lambda y: way(lambda y: place(use_densely, y), y))
    for ours, right in zip(found, ask(by_python), strict=True):
        np.testing.assert_allclose(ours, right, 1e-4, 1e-6)
