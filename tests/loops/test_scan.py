"""`tf_ti.scan` against its meaning as a Python loop, values and gradients."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

F64 = tf.float64
Point = collections.namedtuple("Point", ["x", "y"])


def unrolled(f, init, xs, *, axis=0, reverse=False, length=None, checkpoint_every=None):
    """The definition, for tensors of known extents."""
    flat = [x for x in tf.nest.flatten(xs) if x is not None]
    count = flat[0].shape[axis] if flat else length
    carry, ys = init, []
    for k in reversed(range(count)) if reverse else range(count):
        element = tf.nest.map_structure(
            lambda x, k=k: None if x is None else tf.gather(x, k, axis=axis), xs
        )
        carry, y = f(carry, element)
        ys.append(y)
    ys = ys[::-1] if reverse else ys
    stacked = tf.nest.map_structure(
        lambda *values: None if values[0] is None else tf.stack(values, axis), *ys
    )
    return carry, stacked


def close(actual, expected):
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        if e is None:
            assert a is None
        else:
            np.testing.assert_allclose(a, e, rtol=1e-12, atol=1e-12)


def random_values(*shape):
    return tf.constant(np.random.default_rng(len(shape)).standard_normal(shape))


def check(f, init, xs, **arguments):
    close(tf_ti.scan(f, init, xs, **arguments), unrolled(f, init, xs, **arguments))


# Values


def test_running_sums():
    last, sums = tf_ti.scan(lambda c, x: (c + x, c + x), 0.0, tf.constant([1.0, 2.0, 3.0]))
    assert last.numpy() == 6
    assert sums.numpy().tolist() == [1, 3, 6]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_any_axis_in_either_order(axis, reverse):
    x = random_values(3, 4, 5)
    shape = list(x.shape)
    del shape[axis]
    check(
        lambda c, x: (c * 0.5 + x, c - x),
        tf.zeros(shape, F64),
        x,
        axis=axis,
        reverse=reverse,
    )


def test_the_element_comes_without_its_axis():
    shapes = []

    def f(c, x):
        shapes.append(x.shape.as_list())
        return c, x

    tf_ti.scan(f, 0.0, tf.zeros([3, 4, 5]), axis=1)
    assert shapes == [[3, 5]]


def test_results_keep_their_elements_places_in_reversed_order():
    _, ys = tf_ti.scan(lambda c, x: (c + 1, (x, c)), 0, tf.constant([10, 20, 30]), reverse=True)
    assert ys[0].numpy().tolist() == [10, 20, 30]
    assert ys[1].numpy().tolist() == [2, 1, 0]


STRUCTURES = {
    "tuple": ((random_values(2), random_values()), (random_values(4, 2), random_values(4))),
    "list": ([random_values(2), random_values()], [random_values(4, 2), random_values(4)]),
    "dict": (
        {"b": random_values(2), "a": random_values()},
        {"b": random_values(4, 2), "a": random_values(4)},
    ),
    "namedtuple": (
        Point(random_values(2), random_values()),
        Point(random_values(4, 2), random_values(4)),
    ),
    "ordered dict": (
        collections.OrderedDict([("b", random_values(2)), ("a", random_values())]),
        collections.OrderedDict([("b", random_values(4, 2)), ("a", random_values(4))]),
    ),
    "nested": (
        {"p": Point(random_values(2), [random_values()])},
        {"p": Point(random_values(4, 2), [random_values(4)])},
    ),
    "with None": ({"x": random_values(2), "no": None}, {"x": random_values(4, 2), "no": None}),
    "with nothing": ((random_values(2), ()), (random_values(4, 2), {})),
}


@pytest.mark.parametrize("place", ["eager", "function"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_carry_elements_and_results_are_structures(structure, place):
    init, xs = STRUCTURES[structure]

    def f(carry, x):
        flat = [v for v in tf.nest.flatten(x) if v is not None]
        total = tf.add_n([tf.reduce_sum(v) for v in flat])
        following = tf.nest.map_structure(
            lambda c: None if c is None else tf.tanh(c + total), carry
        )
        return following, {"x": x, "carry": carry, "total": (total, None)}

    def call():
        return tf_ti.scan(f, init, xs)

    close(call() if place == "eager" else tf.function(call)(), unrolled(f, init, xs))


def test_without_elements_length_gives_the_count():
    for xs in (None, (), {}):
        last, ys = tf_ti.scan(lambda c, x: (c * 2, c), 1, xs, length=5)
        assert last.numpy() == 32
        assert ys.numpy().tolist() == [1, 2, 4, 8, 16]


def test_xs_is_none_by_default():
    last, ys = tf_ti.scan(lambda c, x: (c + 1.0, x), 0.0, length=3)
    assert last.numpy() == 3
    assert ys is None


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["callable", "tf.function"])
def test_without_elements_f_may_capture_tensors_and_variables(wrap):
    step, factor = tf.Variable(2.0), tf.constant(10.0)
    f = wrap(lambda c, _: (c + step * factor, None))
    assert tf_ti.scan(f, 0.0, length=3)[0].numpy() == 60


def test_length_may_be_a_tensor():
    @tf.function
    def call(n):
        return tf_ti.scan(lambda c, _: (c * 2, c), 1, None, length=n)

    for n in (0, 1, 4):
        last, ys = call(tf.constant(n))
        assert last.numpy() == 2**n
        assert ys.numpy().tolist() == [2**k for k in range(n)]


def test_f_may_give_no_results():
    for nothing in (None, ()):
        last, ys = tf_ti.scan(lambda c, x: (c + x, nothing), 0, tf.constant([1, 2, 3]))  # noqa: B023
        assert last.numpy() == 6
        assert ys == nothing


def test_there_may_be_no_carry():
    for nothing in (None, ()):
        last, ys = tf_ti.scan(lambda c, x: (nothing, x * 2), nothing, tf.constant([1, 2]))  # noqa: B023
        assert last == nothing
        assert ys.numpy().tolist() == [2, 4]


def test_python_numbers_in_the_carry_take_the_type_of_init():
    last, ys = tf_ti.scan(lambda c, x: (0, 7), tf.constant(1.5), tf.zeros(2))
    assert last.dtype == tf.float32
    assert ys.numpy().tolist() == [7, 7]


def test_without_iterations_the_carry_is_init_and_results_are_empty():
    last, ys = tf_ti.scan(
        lambda c, x: (c + 1, {"a": x, "b": c}), tf.ones([2]), tf.zeros([3, 0, 4]), axis=1
    )
    assert last.numpy().tolist() == [1, 1]
    assert ys["a"].shape == [3, 0, 4]
    assert ys["b"].shape == [2, 0]


@pytest.mark.parametrize("dtype", [tf.int64, tf.bool, tf.string, tf.complex64, tf.bfloat16])
def test_any_type_is_scanned(dtype):
    values = {tf.string: ["a", "b" * 40, ""], tf.bool: [True, False, True]}.get(dtype, [3, 1, 2])
    x = tf.constant(values, dtype) if dtype in (tf.string, tf.bool) else tf.cast(values, dtype)
    last, ys = tf_ti.scan(lambda c, x: (x, c), x[0], x)
    assert last.numpy() == x.numpy()[-1]
    np.testing.assert_array_equal(ys, np.concatenate([x.numpy()[:1], x.numpy()[:-1]]))


def test_unknown_shapes_are_scanned():
    @tf.function(input_signature=[tf.TensorSpec(None, F64), tf.TensorSpec(None, F64)])
    def call(init, x):
        return tf_ti.scan(lambda c, x: (c * 0.5 + x, c), init, x, axis=1)

    init, x = random_values(3), random_values(3, 4)
    close(call(init, x), unrolled(lambda c, x: (c * 0.5 + x, c), init, x, axis=1))


def test_static_shapes_are_inferred():
    @tf.function(input_signature=[tf.TensorSpec([3, None, 5])])
    def call(x):
        last, ys = tf_ti.scan(lambda c, x: (c, x[:, :2]), tf.zeros([7]), x, axis=1)
        assert last.shape == [7]
        assert ys.shape.as_list() == [3, None, 2]
        last, ys = tf_ti.scan(lambda c, x: (c, x), tf.zeros([7]), tf.zeros([3, 4, 5]), axis=-1)
        assert ys.shape == [3, 4, 5]
        return ys

    call.get_concrete_function()


def test_scans_nest():
    x = random_values(3, 4)

    def outer(scan):
        def f(c, row):
            return scan(lambda c, v: (c * 0.5 + v, c * v), c, row, reverse=True)

        return scan(f, tf.constant(0.0, F64), x)

    close(outer(tf_ti.scan), outer(unrolled))


# Gradients


def gradients(scan, f, init, xs, extra=(), **arguments):
    sources = [v for v in tf.nest.flatten([init, xs, *extra]) if v is not None]
    with tf.GradientTape() as tape:
        tape.watch(sources)
        outputs = scan(f, init, xs, **arguments)
        value = tf.add_n(
            [
                tf.reduce_sum(tf.sin(out) * (i + 1.0))
                for i, out in enumerate(tf.nest.flatten(outputs))
                if out is not None
            ]
        )
    return [tf.convert_to_tensor(g) for g in tape.gradient(value, sources)]


@pytest.mark.parametrize("every", [None, 1, 3, 4, 100])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_gradients_are_those_of_the_unrolled_loop(axis, reverse, every):
    w, v = tf.Variable(random_values(2, 2)), random_values(2)

    def f(carry, x):
        h = tf.tanh(tf.linalg.matvec(w, carry["h"]) + x["a"] * v)
        return {"h": h, "c": carry["c"] * tf.reduce_sum(h)}, (h, x["b"] * carry["c"])

    init = {"h": random_values(2), "c": random_values()}
    b = random_values(4, 1)
    xs = {"a": random_values(4, 2), "b": b}
    if axis:
        xs = {k: tf.transpose(x) for k, x in xs.items()}
    arguments = {"axis": axis, "reverse": reverse, "extra": [w, v]}
    actual = gradients(tf_ti.scan, f, init, xs, checkpoint_every=every, **arguments)
    close(actual, gradients(unrolled, f, init, xs, **arguments))


@pytest.mark.parametrize("every", [None, 2])
def test_gradients_are_the_same_in_a_function_that_knows_no_shapes(every):
    def f(c, x):
        return tf.sin(c + x), c * x

    @tf.function(input_signature=[tf.TensorSpec(None, F64)] * 2)
    def actual(init, x):
        return gradients(tf_ti.scan, f, init, x, checkpoint_every=every)

    init, x = random_values(3), random_values(5, 3)
    close(list(actual(init, x)), gradients(unrolled, f, init, x))


def test_an_integer_counter_in_the_carry_has_no_gradient():
    x = random_values(4)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (k, s), _ = tf_ti.scan(
            lambda c, x: ((c[0] + 1, c[1] + x * tf.cast(c[0], F64)), None),
            (0, tf.constant(0.0, F64)),
            x,
        )
    assert k.numpy() == 4
    assert tape.gradient(s, x).numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("every", [None, 2])
def test_dropout_in_f_is_the_same_in_the_gradient(every):
    x = tf.ones([5, 8])
    with tf.GradientTape() as tape:
        tape.watch(x)
        _, y = tf_ti.scan(lambda c, x: (c, tf.nn.dropout(x, 0.5)), 0.0, x, checkpoint_every=every)
    np.testing.assert_array_equal(tape.gradient(y, x), y)


def test_second_order_gradients_are_those_of_the_unrolled_loop():
    x = random_values(4)

    def second(scan):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                last, _ = scan(lambda c, x: (tf.sin(c * x + 1.0), c), x[0], x)
            first = inner.gradient(last, x)
        return outer.gradient(tf.reduce_sum(tf.sin(first)), x)

    close(second(tf_ti.scan), second(unrolled))


# Bad input


def bad(error, words, f=lambda c, x: (c, x), init=0.0, xs=None, **arguments):
    xs = tf.zeros(3) if xs is None else xs
    with pytest.raises(error, match=words):
        tf_ti.scan(f, init, xs, **arguments)


INVALID = (ValueError, TypeError, tf.errors.InvalidArgumentError)


def test_f_must_be_callable():
    bad(TypeError, "f must be callable", f=3)


@pytest.mark.parametrize(
    "f", [lambda c: (c, c), lambda c, x, y: (c, x), tf.function(lambda c: (c, c))]
)
def test_what_is_not_called_with_two_arguments_is_refused_by_its_name(f):
    bad(ValueError, "f is called with a carry and an element, which f .* does not take", f=f)


@pytest.mark.parametrize("result", [lambda c, x: c, lambda c, x: (c, x, x), lambda c, x: None])
def test_f_must_return_a_pair(result):
    bad(INVALID, "carry and a result", f=result)


def test_a_carry_of_another_structure_is_refused():
    bad(INVALID, "structure of init", f=lambda c, x: ((c, c), x))
    bad(INVALID, "structure of init", f=lambda c, x: (None, x))
    bad(INVALID, "structure of init", f=lambda c, x: ([c["a"]], x), init={"a": 0.0})


def test_a_carry_of_another_type_is_refused_with_its_path():
    bad(
        TypeError,
        r"init\['a'\].*float32.*int32",
        f=lambda c, x: ({"a": tf.constant(1)}, x),
        init={"a": 0.0},
    )


def test_a_carry_of_another_static_shape_is_refused_with_its_path():
    bad(
        ValueError,
        r"init\[1\].*\(2,\).*\(4,\)",
        f=lambda c, x: ((c[0], tf.concat([c[1]] * 2, 0)), x),
        init=(0.0, tf.zeros(2)),
    )


def test_elements_of_differing_extents_are_refused_with_both_paths():
    bad(
        INVALID,
        r"(?s)xs\['a'\].*3.*xs\['b'\].*4",
        f=lambda c, x: (c, None),
        xs={"a": tf.zeros(3), "b": tf.zeros(4)},
    )


@pytest.mark.parametrize("length", [2, tf.constant(4)], ids=["int", "tensor"])
def test_another_length_than_the_elements_is_refused(length):
    bad(INVALID, "(?s)3.*num_iterations|num_iterations.*3|length", length=length)


@pytest.mark.parametrize("length", [-1, 1.5, True, [2], "2"])
def test_length_must_be_an_integer_that_is_not_negative(length):
    bad(INVALID, "length|num_iterations", xs=(), f=lambda c, x: (c, None), length=length)


def test_length_must_be_given_where_there_are_no_elements():
    bad(ValueError, "length", xs=(), f=lambda c, x: (c, None))


@pytest.mark.parametrize("axis", [1, -2, 5])
def test_an_axis_out_of_range_is_refused(axis):
    bad(INVALID, f"xs.*axis {axis}.*rank 1", axis=axis)


@pytest.mark.parametrize("axis", [1.0, None, True, "0"])
def test_axis_must_be_an_int(axis):
    bad(TypeError, "axis must be an int", axis=axis)


def test_a_result_that_cannot_be_stacked_along_the_axis_is_refused():
    bad(ValueError, "ys.*axis 2", f=lambda c, x: (c, 1.0), xs=tf.zeros([2, 3, 4]), axis=2)


@pytest.mark.parametrize("every", [0, -1, True, 1.5])
def test_checkpoint_every_must_be_a_positive_integer(every):
    bad(INVALID, "checkpoint_every", checkpoint_every=every)


def test_a_failing_f_tells_its_message_and_the_iteration():
    def f(c, x):
        tf.debugging.assert_less(x, 2, message="too big for me")
        return c, x

    for reverse, k in ((False, 2), (True, 0)):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"(?s)too big for me.*iteration {k}"
        ):
            tf_ti.scan(f, 0, tf.constant([0, 1, 5, 6]), reverse=reverse)


@pytest.mark.parametrize("initial", [0.0, tf.constant(0.0), {"a": tf.constant(0)}], ids=repr)
def test_arguments_in_the_order_of_tf_scan_are_told_of_theirs(initial):
    with pytest.raises(ValueError, match=r"xs.* is a scalar.*init \(the first carry\).*tf\.scan"):
        tf_ti.scan(lambda total, x: total + x, tf.constant([1.0, 2.0]), initial)
