"""`tf_ti.scan` and `tf_ti.Loop` against JAX's loops and their derivatives, over random functions.

Each function is written once, in terms of a namespace that both libraries have, named xp.
"""

import dataclasses
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

jax = pytest.importorskip("jax", reason="JAX is not installed: `make oracles` does it")
jnp = jax.numpy
# By jax.numpy's names.
tnp = types.SimpleNamespace(
    asarray=tf.cast,
    imag=tf.math.imag,
    logical_and=tf.logical_and,
    logical_xor=tf.math.logical_xor,
    real=tf.math.real,
    sin=tf.sin,
    sum=tf.reduce_sum,
    tanh=tf.tanh,
)
as_it_is = tf.autograph.experimental.do_not_convert

FLOATS = ["float64", "float64", "complex128", "float32"]
ALL = [*FLOATS, "complex64", "int8", "uint8", "int32", "int64", "bool"]


@pytest.fixture(scope="module", autouse=True)
def as_many_bits_as_tensorflow():
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)  # which take longer than the tests


# --- random functions -----------------------------------------------------------------------------


def random_array(rng, dtype, shape):
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if np.dtype(dtype).kind in "iu":
        return np.asarray(rng.integers(0, 100, shape), dtype)
    array = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        array = array + 1j * rng.standard_normal(shape)
    return np.asarray(array, dtype)


def random_nest(rng, leaves):
    """Some structure of these leaves, in this order."""
    if len(leaves) == 1:
        return [leaves[0], leaves, {"only": leaves[0]}][rng.integers(3)]
    cut = int(rng.integers(1, len(leaves)))
    first, second = random_nest(rng, leaves[:cut]), random_nest(rng, leaves[cut:])
    return [(first, second), [first, second], {"a": first, "b": second}][rng.integers(3)]


def random_values(rng, dtypes, count, leading=()):
    shapes = [[], [3], [2, 3], [2, 1]]
    chosen = [(str(rng.choice(dtypes)), shapes[rng.integers(4)]) for _ in range(count)]
    return [random_array(rng, dtype, [*leading, *shape]) for dtype, shape in chosen]


def kind(x):
    return np.dtype(x.dtype.name).kind


def real(xp, x):
    return xp.asarray(xp.real(x) + 2 * xp.imag(x) if kind(x) == "c" else x, "float64")


def blend(xp, leaves, weights):
    """A real scalar on which every element of every leaf has an influence."""
    return sum(w * xp.sum(xp.sin(real(xp, x))) for w, x in zip(weights, leaves))


def following(xp, x, scalar):
    """A value like x, made of x and of a real scalar."""
    if kind(x) == "b":
        return xp.logical_xor(x, scalar > 0)
    if kind(x) in "iu":
        return 3 * x + xp.asarray(5 + 5 * xp.sin(scalar), x.dtype)
    if kind(x) == "c":
        return (0.6 - 0.8j) * x + xp.asarray(xp.sin(scalar), x.dtype)
    return xp.tanh(0.5 * x + xp.asarray(scalar, x.dtype))


@dataclasses.dataclass
class Step:
    """A function of a carry, an element, or None, and what is the same in all iterations."""

    carry: Any  # of which the structure counts
    weights: np.ndarray
    result: Any  # the structure that it returns, of indices of the leaves

    @classmethod
    def random(cls, rng, carry, xs):
        count = len(leaves_of((carry, xs)))
        indices = [int(i) for i in rng.integers(0, count, rng.integers(1, 4))]
        return cls(carry, rng.standard_normal(count + 1), random_nest(rng, indices))

    def __call__(self, xp, carry, element, constant):
        leaves, elements = leaves_of(carry), leaves_of(element)
        scalar = blend(xp, [*leaves, *elements, constant], self.weights)
        new = [following(xp, x, (i + 1) * scalar) for i, x in enumerate(leaves)]
        results = [*new, *elements]
        result = tf.nest.map_structure(lambda i: results[i], self.result)
        return tf.nest.pack_sequence_as(self.carry, new), result


@dataclasses.dataclass
class Case:
    """A scan: `arguments` are the first carry, the elements and a captured tensor."""

    arguments: tuple
    step: Step
    options: dict

    @classmethod
    def random(cls, rng, dtypes=FLOATS):
        length = int(rng.integers(1, 6))
        carry = random_nest(rng, random_values(rng, dtypes, int(rng.integers(1, 3))))
        options, xs = {"reverse": bool(rng.random() < 0.5)}, None
        if rng.random() < 0.2:
            options["length"] = length
        else:
            xs = random_nest(rng, random_values(rng, dtypes, int(rng.integers(1, 3)), [length]))
        constant = random_array(rng, "float64", [3])
        case = cls((carry, xs, constant), Step.random(rng, carry, xs), options)
        print(case)
        return case

    def in_jax(self, init, xs, constant):
        return jax.lax.scan(lambda c, x: self.step(jnp, c, x, constant), init, xs, **self.options)

    def in_tf_ti(self, init, xs, constant, **options):
        step = as_it_is(lambda c, x: self.step(tnp, c, x, constant))
        return tf_ti.scan(step, init, xs, **self.options, **options)


def leaves_of(nested):
    """Without None, which TensorFlow takes for a leaf, and JAX for a structure of none."""
    return [x for x in tf.nest.flatten(nested) if x is not None]


def map_leaves(f, nested):
    return tf.nest.map_structure(lambda x: None if x is None else f(x), nested)


def loss(xp, outputs):
    leaves = leaves_of(outputs)
    return blend(xp, leaves, range(1, len(leaves) + 1))


# --- comparisons ----------------------------------------------------------------------------------


def check(actual, expected, inputs):
    """As precisely as the least precise of the inputs allows."""
    tf.nest.assert_same_structure(actual, expected)
    is_single = any(x.dtype.name in ("float32", "complex64") for x in leaves_of(inputs))
    tolerance = 1e-4 if is_single else 1e-9
    for a, e in zip(leaves_of(actual), leaves_of(expected), strict=True):
        a, e = np.asarray(a), np.asarray(e)
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def tensors(nested):
    return map_leaves(tf.convert_to_tensor, nested)


def jaxs(gradients):
    """JAX's gradients by complex numbers are the conjugates of TensorFlow's."""
    return map_leaves(np.conj, gradients)


def gradient(f, arguments, way="gradient"):
    """Of f by all that is in its arguments, in their structure, by TensorFlow."""
    arguments = tensors(arguments)
    watched = leaves_of(arguments)
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y = f(*arguments)
    found = iter(getattr(tape, way)(y, watched, unconnected_gradients="zero"))
    return map_leaves(lambda _: next(found), arguments)


# --- scan -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(7), indirect=True)
def test_random_scans_give_what_jax_gives(rng):
    case = Case.random(rng, ALL)
    expected = jax.jit(case.in_jax)(*case.arguments)
    call = tf.function(case.in_tf_ti) if rng.random() < 0.5 else case.in_tf_ti
    check(call(*tensors(case.arguments)), expected, case.arguments)


def test_an_axis_is_jaxs_first_one_moved():
    rng = np.random.default_rng(1)
    init, xs = rng.standard_normal([2, 3]), rng.standard_normal([2, 4, 3])

    def step(c, x):
        return x - 2 * c, c * x

    last, ys = jax.lax.scan(step, init, jnp.moveaxis(xs, 1, 0), reverse=True)
    expected = last, jnp.moveaxis(ys, 0, 1)
    check(tf_ti.scan(step, init, xs, axis=1, reverse=True), expected, xs)


@pytest.mark.parametrize(
    ("number", "dtypes"),
    [
        (0, ["int8", "uint16", "float16", "float64", "complex64"]),
        (2.5, ["float16", "float64", "complex64"]),
        (1j, ["complex64", "complex128"]),
    ],
)
def test_python_numbers_have_the_types_that_they_have_in_jax(number, dtypes):
    def step(carry, xs):
        pairs = list(zip(carry, xs))
        return [c + x for c, x in pairs], [c * x for c, x in pairs]

    init, xs = [number] * len(dtypes), [np.asarray([1, 2, 4], dtype) for dtype in dtypes]
    check(tf_ti.scan(step, init, xs), jax.lax.scan(step, init, xs), xs)


@pytest.mark.parametrize("seed", range(100, 104), indirect=True)
def test_gradients_are_those_of_jax(rng):
    case = Case.random(rng)
    every = [None, 1, 2, 3][rng.integers(4)]
    print("checkpoint_every", every)

    def ours(*arguments):
        return loss(tnp, case.in_tf_ti(*arguments, checkpoint_every=every))

    def theirs(*arguments):
        return loss(jnp, case.in_jax(*arguments))

    expected = jax.jit(jax.grad(theirs, argnums=(0, 1, 2)))(*case.arguments)
    check(jaxs(gradient(ours, case.arguments)), expected, case.arguments)


@pytest.mark.parametrize("seed", range(200, 201), indirect=True)
def test_second_derivatives_are_those_of_jax(rng):
    case = Case.random(rng, ["float64"])

    def ours(*arguments):
        return loss(tnp, gradient(lambda *a: loss(tnp, case.in_tf_ti(*a)), arguments))

    def theirs(*arguments):
        f = jax.grad(lambda *a: loss(jnp, case.in_jax(*a)), argnums=(0, 1, 2))
        return loss(jnp, f(*arguments))

    expected = jax.jit(jax.grad(theirs, argnums=(0, 1, 2)))(*case.arguments)
    check(gradient(ours, case.arguments), expected, case.arguments)


@pytest.mark.parametrize("seed", range(300, 302), indirect=True)
def test_jacobians_are_those_of_jax(rng):
    case = Case.random(rng, ["float64"])

    def first(outputs):
        return tf.nest.flatten(outputs)[0]

    def theirs(*arguments):
        return first(case.in_jax(*arguments)[1])

    expected = jax.jit(jax.jacrev(theirs, argnums=(0, 1, 2)))(*case.arguments)
    actual = gradient(lambda *a: first(case.in_tf_ti(*a)[1]), case.arguments, "jacobian")
    check(actual, expected, case.arguments)


@pytest.mark.parametrize("seed", range(400, 402), indirect=True)
def test_vectorized_maps_are_those_of_jax(rng):
    case = Case.random(rng)
    init, xs, constant = case.arguments
    lanes = map_leaves(lambda x: np.stack([x, 2 * x, 1 - x]), (init, xs))
    expected = jax.jit(jax.vmap(lambda i, x: case.in_jax(i, x, constant)))(*lanes)

    def lane(given):  # without None, which vectorized_map does not take
        given = iter(given)
        return case.in_tf_ti(*map_leaves(lambda _: next(given), (init, xs)), constant)

    check(tf.vectorized_map(lane, tensors(leaves_of(lanes))), expected, lanes)


@pytest.mark.parametrize("seed", range(500, 502), indirect=True)
def test_forward_derivatives_are_those_of_jax(rng):
    case = Case.random(rng)
    tangents = map_leaves(lambda x: random_array(rng, x.dtype.name, x.shape), case.arguments)
    _, expected = jax.jit(lambda a, t: jax.jvp(case.in_jax, a, t))(case.arguments, tangents)
    arguments = tensors(case.arguments)
    watched, directions = leaves_of(arguments), leaves_of(tensors(tangents))
    with tf.autodiff.ForwardAccumulator(watched, directions) as accumulator:
        y = case.in_tf_ti(*arguments)
    actual = accumulator.jvp(y, unconnected_gradients="zero")
    check(actual, expected, case.arguments)


@pytest.mark.parametrize("seed", range(600, 602), indirect=True)
def test_nested_scans_and_their_gradients_are_those_of_jax(rng):
    carry = random_nest(rng, random_values(rng, FLOATS, 2))
    xs = random_nest(rng, random_values(rng, FLOATS, 1, [3, 2]))
    arguments = carry, xs, random_array(rng, "float64", [3])
    step = Step.random(rng, carry, xs)
    reverse, reverse_inside = (bool(b) for b in rng.random(2) < 0.5)
    print(arguments, step, reverse, reverse_inside)

    def nested(xp, scan):
        def outer(init, xs, constant):
            @as_it_is
            def outer_step(carry, row):
                scalar = constant * loss(xp, carry)
                inner_step = as_it_is(lambda c, x: step(xp, c, x, scalar))
                return scan(inner_step, carry, row, reverse=reverse_inside)

            outputs = scan(outer_step, init, xs, reverse=reverse)
            return loss(xp, outputs), outputs

        return outer

    theirs = jax.value_and_grad(nested(jnp, jax.lax.scan), argnums=(0, 1, 2), has_aux=True)
    (_, outputs), gradients = jax.jit(theirs)(*arguments)
    ours = nested(tnp, tf_ti.scan)
    check(ours(*tensors(arguments))[1], outputs, arguments)
    check(jaxs(gradient(lambda *a: ours(*a)[0], arguments)), gradients, arguments)


# --- Loop -----------------------------------------------------------------------------------------


def run_loop(body, init, condition=None, count=None):
    """As jax.lax.while_loop, or where there is a count as fori_loop."""
    with tf_ti.Loop() as loop:
        carry = tf.nest.map_structure(loop.add_recurrence, init)
        values = tensors(carry)
        if condition is not None:
            loop.add_trip_limit(condition(values), tf_ti.TripLimit.WHILE)
            new = body(values)
        else:
            loop.add_trip_limit(count, tf_ti.TripLimit.COUNT)
            new = body(loop.add_iterator(tf.range(count)).tensor, values)
        for recurrence, value in zip(tf.nest.flatten(carry), tf.nest.flatten(new)):
            recurrence.next = value
        last = tf.nest.map_structure(
            lambda r: loop.add_loop_output(r, tf_ti.LoopOutput.LAST_VALUE), carry
        )
    return tf.nest.map_structure(lambda output: output.tensor, last)


def random_while_loops(rng, dtypes=FLOATS):
    """A first carry, and two functions of it: tf_ti's loop and JAX's."""
    init = random_nest(rng, random_values(rng, dtypes, int(rng.integers(1, 3))))
    step, limit = Step.random(rng, init, None), int(rng.integers(0, 6))
    constant, threshold = rng.standard_normal(3), float(rng.random() - 0.9)
    print(init, step, limit, constant, threshold)

    def body(xp, carry):
        return carry[0] + 1, step(xp, carry[1], None, constant)[0]

    def condition(xp, carry):
        return xp.logical_and(carry[0] < limit, xp.sin(loss(xp, carry[1])) > threshold)

    def ours(carry):
        return run_loop(lambda c: body(tnp, c), carry, lambda c: condition(tnp, c))

    def theirs(carry):
        return jax.lax.while_loop(lambda c: condition(jnp, c), lambda c: body(jnp, c), carry)

    return (np.int32(0), init), as_it_is(ours), theirs


@pytest.mark.parametrize("seed", range(700, 705), indirect=True)
def test_while_loops_give_what_jaxs_give(rng):
    init, ours, theirs = random_while_loops(rng, ALL)
    ours = tf.function(ours) if rng.random() < 0.5 else ours
    check(ours(tensors(init)), jax.jit(theirs)(init), init)


@pytest.mark.parametrize("seed", range(721, 723), indirect=True)
def test_jacobians_of_while_loops_are_jaxs_in_forward_mode(rng):
    (counter, init), ours, theirs = random_while_loops(rng, ["float64"])
    expected = jax.jit(jax.jacfwd(lambda x: tf.nest.flatten(theirs((counter, x))[1])[0]))(init)
    (actual,) = gradient(lambda x: tf.nest.flatten(ours((counter, x))[1])[0], [init], "jacobian")
    check(actual, expected, init)


@pytest.mark.parametrize("seed", range(740, 742), indirect=True)
def test_vectorized_while_loops_end_each_lane_as_jaxs_do(rng):
    (counter, init), ours, theirs = random_while_loops(rng)
    several = map_leaves(lambda x: np.stack([x, 2 * x, 1 - x, x + 3]), init)
    lanes = np.full([4], counter), several
    check(tf.vectorized_map(ours, tensors(lanes)), jax.jit(jax.vmap(theirs))(lanes), lanes)


@pytest.mark.parametrize("seed", range(760, 762), indirect=True)
def test_counted_loops_and_their_gradients_are_those_of_fori_loop(rng):
    init = random_nest(rng, random_values(rng, FLOATS, int(rng.integers(1, 3))))
    step, count = Step.random(rng, init, None), int(rng.integers(0, 6))
    print(init, step, count)

    def body(xp, k, carry):
        return step(xp, carry, None, xp.asarray(k, "float64"))[0]

    def ours(init):
        last = run_loop(lambda k, c: body(tnp, k, c), init, count=count)
        return loss(tnp, last), last

    def theirs(init):
        last = jax.lax.fori_loop(0, count, lambda k, c: body(jnp, k, c), init)
        return loss(jnp, last), last

    (_, last), expected = jax.jit(jax.value_and_grad(theirs, has_aux=True))(init)
    check(ours(tensors(init))[1], last, init)
    (actual,) = gradient(lambda x: ours(x)[0], [init])
    check(jaxs(actual), expected, init)
