"""Gradients of `tf_ti.Loop` against tf.while_loop written by hand, and against differences."""

import contextlib
import dataclasses
import functools
import gc
import itertools
import threading

import numpy as np
import pytest
import tensorflow as tf
from checks import close, loss
from patience import HANGS

import tf_ti
from tf_ti import BackEdge, InputPort, Loop, LoopOutput, OutputPort, PortMap, TripLimit

pytestmark = pytest.mark.quarter

COUNT, WHILE = TripLimit.COUNT, TripLimit.WHILE
LAST, CONCATENATE, REVERSE = LoopOutput.LAST_VALUE, LoopOutput.CONCATENATE, LoopOutput.REVERSE
F64 = tf.float64


def random_values(*shape):
    rng = np.random.default_rng(sum(shape) + 1)
    return tf.constant(rng.standard_normal(shape) * 0.7)


def gradients(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = loss(run(*sources))
    return tape.gradient(value, sources)


def tensors(loop):
    return [out.tensor for out in loop.outputs]


def counted(step, count, *initials, last=True, values=False):
    """States that `step` advances `count` times; also what they were on the way, stacked."""
    with Loop() as loop:
        loop.add_trip_limit(count, COUNT)
        states = [loop.add_recurrence(initial) for initial in initials]
        following = step(*states)
        following = following if isinstance(following, (tuple, list)) else [following]
        for state, value in zip(states, following):
            state.next = value
        for state in states:
            if last:
                loop.add_loop_output(state, LAST)
            if values:
                loop.add_loop_output(state, CONCATENATE)
    return tensors(loop)


# A recurrent net, with every kind of limit, iterator and output


@dataclasses.dataclass(frozen=True)
class Net:
    """h' = tanh(w h + b x_t): a native loop, and the same written with tf.while_loop."""

    limits: str = "count"
    count: int = 4
    bound: float = 1.0
    axis: int = 0
    reverse: bool = False
    out_axis: int = 0
    length: int | None = None

    def sources(self, extent=6):
        x = random_values(extent, 2)
        x = tf.transpose(x) if self.axis in (1, -1) else x
        return [x, random_values(2) * 0.3, random_values(2, 2), random_values(2)]

    @staticmethod
    def step(x, h, w, b):
        return tf.tanh(tf.linalg.matvec(w, h) + x * b)

    def go_on(self, k, h):
        if self.limits == "state":
            return tf.reduce_sum(h**2) < self.bound
        return k < self.count

    def native(self, x, h, w, b, count=None):
        with Loop() as loop:
            if self.limits in ("count", "both", "state"):
                count = self.count if count is None else count
                loop.add_trip_limit(count, COUNT)
            k = loop.add_recurrence(0)
            k.next = k + 1
            x = loop.add_iterator(x, self.axis, self.reverse)
            h = loop.add_recurrence(h)
            if self.limits in ("while", "both", "state"):
                loop.add_trip_limit(self.go_on(k, h), WHILE)
            after = self.step(x, h, w, b)
            h.next = after
            loop.add_loop_output(h, LAST)
            loop.add_loop_output(h * b, CONCATENATE, self.out_axis, self.length)
            loop.add_loop_output(after, REVERSE, self.out_axis, self.length)
        return tensors(loop)

    def by_hand(self, x, h, w, b):
        extent = tf.shape(x)[self.axis]
        arrays = [tf.TensorArray(F64, 0, dynamic_size=True, element_shape=[2]) for _ in range(2)]

        def body(k, h, befores, afters):
            element = tf.gather(x, extent - 1 - k if self.reverse else k, axis=self.axis)
            after = self.step(element, h, w, b)
            return k + 1, after, befores.write(k, h * b), afters.write(k, after)

        k, h, befores, afters = tf.while_loop(
            lambda k, h, *_: (k < self.count) & self.go_on(k, h), body, (0, h, *arrays)
        )

        def finish(values):
            if self.length is not None:
                values = tf.pad(values, [[0, self.length - k], [0, 0]])
            return tf.transpose(values) if self.out_axis in (1, -1) else values

        return h, finish(befores.stack()), finish(tf.reverse(afters.stack(), [0]))


LIMITS = {
    "count": Net(),
    "all elements": Net(count=6),
    "one trip": Net(count=1),
    "while": Net("while"),
    "both": Net("both", count=5),
    "state first": Net("state", count=6, bound=0.6),
    "count first": Net("state", count=3, bound=100.0),
    "padded": Net(length=7),
    "padded while": Net("while", length=7),
    "length is count": Net(length=4),
}
NETS = LIMITS | {
    f"axis {axis}, {order}, out {out_axis}": Net(
        axis=axis, reverse=order == "reversed", out_axis=out_axis, length=length
    )
    for axis, order, out_axis in itertools.product((0, -1), ("forward", "reversed"), (0, -1))
    for length in ((5,) if axis == out_axis else (None,))
}
NETS["reversed while"] = Net("while", reverse=True, axis=1, out_axis=1, length=6)


@functools.cache
def reference(net):
    sources = net.sources()
    return tf.function(lambda: gradients(net.by_hand, sources))()


@pytest.mark.parametrize("net", NETS)
def test_gradients_are_those_of_tf_while_loop(net):
    net = NETS[net]
    sources = net.sources()
    for actual, expected in zip(net.native(*sources), net.by_hand(*sources)):
        np.testing.assert_allclose(actual, expected, rtol=1e-12)
    close(gradients(net.native, sources), reference(net))


@pytest.mark.parametrize(
    ("net", "known"), [*((net, "nothing") for net in LIMITS), ("count", "rank"), ("while", "rank")]
)
def test_gradients_are_the_same_in_a_function_that_knows_no_shapes(net, known):
    net = NETS[net]
    sources = net.sources()
    signature = [
        tf.TensorSpec([None] * s.shape.rank if known == "rank" else None, F64) for s in sources
    ]

    @tf.function(input_signature=signature)
    def actual(*sources):
        return gradients(net.native, list(sources))

    close(actual(*sources), reference(net))


def taken_inside(run, sources):
    return tf.function(lambda: gradients(run, sources))()


def taken_outside(run, sources):
    return gradients(tf.function(run), sources)


def taken_in_another_function(run, sources):
    forward = tf.function(run)
    return tf.function(lambda: gradients(forward, sources))()


def taken_after_a_function_in_another_function(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = tf.function(lambda: loss(run(*sources)))()
    return tf.function(lambda: tape.gradient(value, sources))()


def taken_by_tf_gradients(run, sources):
    return tf.function(lambda *sources: tf.gradients(loss(run(*sources)), sources))(*sources)


def taken_after_collection(run, sources):
    with tf.GradientTape() as tape:
        tape.watch(sources)
        value = loss(run(*sources))
    gc.collect()
    return tape.gradient(value, sources)


PLACES = [taken_inside, taken_outside, taken_in_another_function]
PLACES += [taken_after_a_function_in_another_function, taken_by_tf_gradients]
PLACES += [taken_after_collection]


@pytest.mark.parametrize("net", ["count", "while", "state first", "padded"])
@pytest.mark.parametrize("take", PLACES, ids=lambda f: f.__name__)
def test_gradients_are_the_same_wherever_they_are_taken(take, net):
    net = NETS[net]
    sources = net.sources()
    close(take(net.native, sources), reference(net))


@pytest.mark.parametrize("net", ["count", "while", "reversed while"])
def test_gradients_are_those_of_differences(net):
    net = NETS[net]

    @tf.function
    def run(*sources):
        return loss(net.native(*sources))

    for theoretical, numeric in zip(
        *tf.test.compute_gradient(run, net.sources(), delta=1e-5), strict=True
    ):
        np.testing.assert_allclose(theoretical, numeric, rtol=1e-6, atol=1e-8)


def test_gradients_are_right_where_the_count_is_a_tensor():
    @tf.function
    def actual(count, *sources):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            value = loss(Net().native(*sources, count=count))
        return tape.gradient(value, list(sources))

    for count in (0, 1, 4, 6):
        net = Net(count=count)
        sources = net.sources()
        close(actual(tf.constant(count), *sources), reference(net))


def test_variables_get_the_gradients_of_tensors():
    net = Net("both", count=3)
    x, h, w, b = net.sources()
    variables = [tf.Variable(value) for value in (x, h, w, b)]
    close(gradients(net.native, variables), reference(net))
    with tf.GradientTape() as tape:  # which watches trainable variables by itself
        value = loss(net.native(*variables))
    close(tape.gradient(value, variables), reference(net))


@pytest.mark.parametrize("net", ["count", "while"])
def test_a_variable_of_a_function_is_watched(net):
    net = NETS[net]
    x, h, w, b = net.sources()
    w = tf.Variable(w)
    call = tf.function(lambda: loss(net.native(x, h, w, b)))
    expected = reference(net)
    for _ in range(2):
        with tf.GradientTape() as tape:
            value = call()
        assert tape.watched_variables() == (w,) or tape.watched_variables()[0] is w
        close([tape.gradient(value, w)], [expected[2]])


def test_a_persistent_tape_gives_each_gradient_as_often_as_it_is_asked():
    net = Net()
    sources = net.sources()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sources)
        values = [loss(out) for out in net.native(*sources)]
    with tf.GradientTape(persistent=True) as expected:
        expected.watch(sources)
        references = [loss(out) for out in net.by_hand(*sources)]
    for _ in range(2):
        for value, other in zip(values, references):
            close(tape.gradient(value, sources), expected.gradient(other, sources))


def test_the_gradient_of_the_output_may_be_given():
    x = random_values(3, 2)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            out = loop.add_loop_output(loop.add_iterator(x) ** 2, REVERSE, length=5)
        out = out.tensor
    seed = random_values(5, 2)
    grad = tape.gradient(out, x, output_gradients=seed)
    np.testing.assert_allclose(grad, 2 * x * seed[2::-1])


def test_a_jacobian():
    x = random_values(3)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(tf.constant(0.0, F64))
            after = s + loop.add_iterator(x) ** 2
            s.next = after
            out = loop.add_loop_output(after, CONCATENATE)
        out = out.tensor
    jacobian = tape.jacobian(out, x, experimental_use_pfor=False)
    np.testing.assert_allclose(jacobian, np.tril(np.ones([3, 3])) * 2 * x)


def test_gradients_of_what_is_computed_from_outputs_and_before_the_loop():
    x, w = random_values(4), tf.Variable(1.5, dtype=F64)

    def run(x, w):
        y = tf.sin(x * w)
        with Loop() as loop:
            loop.add_trip_limit(4, COUNT)
            s = loop.add_recurrence(w * 2.0)
            s.next = s * 0.5 + loop.add_iterator(y) * w
            out = loop.add_loop_output(s, LAST)
        return out * w + out**2

    def by_hand(x, w):
        y, s = tf.sin(x * w), w * 2.0
        for k in range(4):
            s = s * 0.5 + y[k] * w
        return s * w + s**2

    close(gradients(run, [x, w]), gradients(by_hand, [x, w]))


def test_tf_gradients_in_a_graph_with_a_session():
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(F64, [None])
        with Loop() as loop:
            k, s = loop.add_recurrence(0), loop.add_recurrence(tf.constant(1.0, F64))
            loop.add_trip_limit(k < tf.size(x), WHILE)
            k.next, s.next = k + 1, s * loop.add_iterator(x)
            out = loop.add_loop_output(s, LAST)
        (first,) = tf.gradients(out.tensor, x)
        (second,) = tf.gradients(first, x)
        with tf.compat.v1.Session() as session:
            first, second = session.run([first, second], {x: [2.0, 3.0, 4.0]})
    assert first.tolist() == [12, 8, 6]
    assert second.tolist() == [7, 6, 5]


def test_many_threads_take_gradients():
    net = Net("both", count=3)
    sources = net.sources()
    expected = reference(net)
    results, barrier = [None] * 6, threading.Barrier(6)

    def run(i):
        barrier.wait()
        results[i] = gradients(net.native, sources)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(results))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANGS)
    for result in results:
        close(result, expected)


# Zeros


@pytest.mark.parametrize("limit", [COUNT, WHILE])
@pytest.mark.parametrize(
    ("axis", "reverse", "expected"),
    [
        (0, False, [[2, 2], [2, 2], [0, 0]]),
        (0, True, [[0, 0], [2, 2], [2, 2]]),
        (1, False, [[2, 0], [2, 0], [2, 0]]),
        (1, True, [[0, 2], [0, 2], [0, 2]]),
    ],
)
def test_elements_that_the_loop_does_not_read_get_zeros(limit, axis, reverse, expected):
    x = tf.zeros([3, 2])
    count = 2 if axis == 0 else 1
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(count if limit == COUNT else k < count, limit)
            element = loop.add_iterator(x, axis, reverse)
            out = loop.add_loop_output(element * 2, CONCATENATE)
        out = out.tensor
    assert tf.convert_to_tensor(tape.gradient(out, x)).numpy().tolist() == expected


@pytest.mark.parametrize("limit", ["count", "while", "both", "tensor", "negative"])
@pytest.mark.parametrize("extent", [3, 0])
def test_without_trips_the_initial_value_gets_the_gradient_of_the_last(limit, extent):
    w = tf.Variable([2.0, 3.0])

    @tf.function(input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None])])
    def grads(x, s):
        with tf.GradientTape() as tape:
            tape.watch([x, s])
            with Loop() as loop:
                counts = {"both": 5, "tensor": tf.size(x) * 0, "negative": -3}
                if limit != "while":
                    loop.add_trip_limit(counts.get(limit, 0), COUNT)
                state = loop.add_recurrence(s)
                if limit in ("while", "both"):
                    loop.add_trip_limit(tf.reduce_sum(state) < 0, WHILE)
                state.next = state * w * loop.add_iterator(x)
                last = loop.add_loop_output(state, LAST)
                steps = loop.add_loop_output(state * 2, CONCATENATE)
                padded = loop.add_loop_output(state * w, REVERSE, length=2)
            value = tf.reduce_sum(last * [5.0, 7.0]) + tf.reduce_sum(steps) + tf.reduce_sum(padded)
        return tape.gradient(value, [x, s, w])

    of_x, of_s, of_w = grads(tf.ones([extent, 2]), tf.ones(2))
    assert of_s.numpy().tolist() == [5, 7]
    assert of_x is None or tf.convert_to_tensor(of_x).numpy().tolist() == [[0, 0]] * extent
    assert of_w is None or tf.convert_to_tensor(of_w).numpy().tolist() == [0, 0]


def test_what_no_output_needs_has_no_gradient():
    x, unused, integer, other = tf.ones([3]), tf.ones([3]), tf.range(3), tf.constant(2.0)
    outside = tf.constant(5.0)
    with tf.GradientTape() as tape:
        tape.watch([x, unused, integer, other, outside])
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            _ = loop.add_iterator(unused) * 2
            unneeded = loop.add_recurrence(other)
            unneeded.next = unneeded * 2
            k = loop.add_iterator(integer)
            element = loop.add_iterator(x)
            out = loop.add_loop_output(element * tf.cast(k, tf.float32), CONCATENATE)
        out = out.tensor
    of_x, *others = tape.gradient(out, [x, unused, integer, other, outside])
    assert tf.convert_to_tensor(of_x).numpy().tolist() == [0, 1, 2]
    assert others == [None] * 4


def test_zeros_may_be_asked_for_what_is_not_connected():
    x, other = tf.ones([3]), tf.ones([2])
    with tf.GradientTape() as tape:
        tape.watch([x, other])
        (y,) = counted(lambda s: s * 2, 2, x)
    _, zeros = tape.gradient(y, [x, other], unconnected_gradients="zero")
    assert zeros.numpy().tolist() == [0, 0]


def test_stop_gradient():
    x, w = tf.constant([2.0, 3.0]), tf.constant(5.0)
    with tf.GradientTape() as tape:
        tape.watch([x, w])
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            s = loop.add_recurrence(1.0)
            s.next = tf.stop_gradient(s * w) + loop.add_iterator(x) * w
            out = loop.add_loop_output(s, LAST)
        out = out.tensor
    of_x, of_w = tape.gradient(out, [x, w])
    assert out.numpy() == (1 * 5 + 10) * 5 + 15
    assert tf.convert_to_tensor(of_x).numpy().tolist() == [0, 5]
    assert of_w.numpy() == 3


def test_gradients_stopped_everywhere_are_none_or_zeros():
    x = tf.constant([2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            stopped = tf.stop_gradient(loop.add_iterator(x))
            out = loop.add_loop_output(stopped, CONCATENATE)
        out = out.tensor
    grad = tape.gradient(out, x)
    assert grad is None or not np.any(tf.convert_to_tensor(grad))


def test_a_condition_has_no_gradient():
    """The bound only says how often the body runs."""
    s, bound = tf.constant(1.0), tf.constant(10.0)
    with tf.GradientTape() as tape:
        tape.watch([s, bound])
        with Loop() as loop:
            state = loop.add_recurrence(s)
            loop.add_trip_limit(state < bound, WHILE)
            state.next = state * 2
            out = loop.add_loop_output(state, LAST)
        out = out.tensor
    of_s, of_bound = tape.gradient(out, [s, bound])
    assert of_s.numpy() == 16
    assert of_bound is None or of_bound.numpy() == 0


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("place", ["eager", "function"])
def test_what_condition_and_body_share_passes_gradients_on(place, order):
    """Also a value that the condition alone computes, from its own iterator."""
    x, s, w = tf.constant([0.5, 0.7, 0.9, 50.0, 0.3], F64), random_values(), random_values(1)[0]

    def native(x, s, w):
        with Loop() as loop:
            state, element = loop.add_recurrence(s), loop.add_iterator(x)
            shared = tf.sin(state * w) * element**2
            loop.add_trip_limit(tf.abs(shared * w + element) < 5, WHILE)
            state.next = shared + element * w
            loop.add_loop_output(state, LAST)
            loop.add_loop_output(shared, CONCATENATE)
        return tensors(loop)

    def by_hand(x, s, w):
        values = []
        for k in range(5):
            shared = tf.sin(s * w) * x[k] ** 2
            if not tf.abs(shared * w + x[k]) < 5:
                break
            values.append(shared)
            s = shared + x[k] * w
        assert len(values) == 3
        return s, tf.stack(values)

    sources = [x, s, w]
    take = gradients if order == "first" else second_order
    actual = take if place == "eager" else tf.function(lambda *a: take(*a), autograph=False)
    close(actual(native, sources), take(by_hand, sources))


# Recurrences, invariants and outputs


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rotated_recurrences_have_rotated_gradients(count):
    sources = [random_values(2), random_values(3), random_values(1)]
    sources = [s[:1] for s in sources]

    def by_hand(a, b, c):
        for _ in range(count):
            a, b, c = tf.sin(b), c * 1.1, a + b
        return a, b, c

    def native(*sources):
        return counted(lambda a, b, c: (tf.sin(b), c * 1.1, a + b), count, *sources)

    close(gradients(native, sources), gradients(by_hand, sources))


def test_one_tensor_that_feeds_many_layers_gathers_their_gradients():
    x = random_values(3, 3)

    def native(x):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            row, column = loop.add_iterator(x), loop.add_iterator(x, axis=1, reverse=True)
            a, b = loop.add_recurrence(x), loop.add_recurrence(x)
            after = tf.sin(a + row * b) * tf.linalg.matvec(x, column)
            a.next = after
            b.next = after
            loop.add_loop_output(a, LAST)
            loop.add_loop_output(after, CONCATENATE, axis=2)
            loop.add_loop_output(after, REVERSE, axis=1)
            loop.add_loop_output(b, CONCATENATE)
        return tensors(loop)

    def by_hand(x):
        a = b = x
        befores, afters = [], []
        for k in range(3):
            befores.append(b)
            a = b = tf.sin(a + x[k] * b) * tf.linalg.matvec(x, x[:, 2 - k])
            afters.append(a)
        return a, tf.stack(afters, 2), tf.stack(afters[::-1], 1), tf.stack(befores)

    close(gradients(native, [x]), gradients(by_hand, [x]))


def test_repeated_invariants_and_a_next_from_outside():
    x, y = random_values(2), random_values(3)[:2]

    def native(x, y):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(x)
            s.next = y
            loop.add_loop_output(x, CONCATENATE, axis=1, length=4)
            loop.add_loop_output(s, CONCATENATE)
            loop.add_loop_output(s, LAST)
        return tensors(loop)

    def by_hand(x, y):
        return tf.stack([x, x, x, x * 0], 1), tf.stack([x, y, y]), y

    close(gradients(native, [x, y]), gradients(by_hand, [x, y]))


def test_an_iterator_that_is_passed_on():
    """A recurrence that delays an iterator by one iteration."""
    x, first = random_values(4), random_values()

    def native(x, first):
        with Loop() as loop:
            loop.add_trip_limit(4, COUNT)
            element, before = loop.add_iterator(x), loop.add_recurrence(first)
            before.next = element
            loop.add_loop_output(before * element, CONCATENATE)
            loop.add_loop_output(before, REVERSE)
            loop.add_loop_output(before, LAST)
        return tensors(loop)

    def by_hand(x, first):
        delayed = tf.concat([[first], x[:-1]], 0)
        return delayed * x, delayed[::-1], x[-1]

    close(gradients(native, [x, first]), gradients(by_hand, [x, first]))


@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_integer_and_string_recurrences_pass_beside_differentiable_ones(limit):
    x = tf.constant([2.0, 3.0, 5.0, 7.0], F64)
    s = tf.constant(1.0, F64)
    with tf.GradientTape() as tape:
        tape.watch([x, s])
        with Loop() as loop:
            k, text = loop.add_recurrence(0), loop.add_recurrence("")
            state = loop.add_recurrence(s)
            loop.add_trip_limit(4 if limit == COUNT else k < 4, limit)
            longer = tf.strings.join([text, "a"])
            k.next, text.next = k + 1, longer
            state.next = state * tf.gather(x, k) * tf.cast(tf.strings.length(longer), F64)
            loop.add_loop_output(state, LAST)
            loop.add_loop_output(k, LAST)
            loop.add_loop_output(text, CONCATENATE)
        y = loop.outputs[0].tensor
    product = 2 * 3 * 5 * 7 * 24.0
    assert y.numpy() == product
    close(tape.gradient(y, [x, s]), [product / x, tf.constant(product, F64)])


@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_a_growing_recurrence_has_the_gradient_of_the_unrolled_loop(limit):
    x, s = random_values(4), random_values(2)

    def native(x, s):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(4 if limit == COUNT else k < 4, limit)
            s = loop.add_recurrence(s, shape=[None])
            s.next = tf.concat([s * 1.1, [tf.sin(loop.add_iterator(x))]], 0)
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(tf.reduce_sum(s**2), CONCATENATE)
        return tensors(loop)

    def by_hand(x, s):
        sums = []
        for k in range(4):
            sums.append(tf.reduce_sum(s**2))
            s = tf.concat([s * 1.1, [tf.sin(x[k])]], 0)
        return s, tf.stack(sums)

    close(gradients(native, [x, s]), gradients(by_hand, [x, s]))


@pytest.mark.parametrize("limit", [COUNT, WHILE])
@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.float32, tf.complex64, tf.complex128]
)
def test_every_differentiable_type_has_gradients(dtype, limit):
    x = tf.cast([[0.5, 0.25], [1.5, -1.0], [0.75, 2.0]], dtype)
    w = tf.cast([2.0, 0.5], dtype)

    def native():
        with Loop() as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(3 if limit == COUNT else k < 3, limit)
            s = loop.add_recurrence(tf.zeros([2], dtype))
            s.next = loop.add_iterator(x) * w + s * w
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(s, REVERSE, length=4)
        return tensors(loop)

    def by_hand():
        s, steps = tf.zeros([2], dtype), []
        for k in range(3):
            steps.append(s)
            s = x[k] * w + s * w
        return [s, tf.stack([*steps[::-1], 0 * s])]

    def grads(run):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            outputs = run()
            value = tf.reduce_sum(outputs[0]) + tf.reduce_sum(outputs[1] * outputs[1])
        return [tf.cast(g, tf.complex128) for g in tape.gradient(value, [x, w])]

    tolerance = {tf.float16: 2e-2, tf.bfloat16: 1e-1}.get(dtype, 1e-5)
    close(grads(native), grads(by_hand), tolerance)


def test_types_are_mixed():
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            s = loop.add_recurrence(tf.constant(0.0, F64))
            z = loop.add_recurrence(tf.constant(0.0, tf.complex64))
            element = loop.add_iterator(x)
            s.next = s + tf.cast(element, F64) ** 2
            z.next = z + tf.complex(element, 2 * element)
            of_s, of_z = loop.add_loop_output(s, LAST), loop.add_loop_output(z, LAST)
        value = tf.cast(of_s, tf.float32) + tf.math.imag(of_z.tensor)
    assert tf.convert_to_tensor(tape.gradient(value, x)).numpy().tolist() == [4, 6, 8]


# Tables


@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_gathered_rows_of_a_variable_get_their_gradients(limit):
    table = tf.Variable(random_values(6, 2))
    ids = tf.constant([1, 3, 1, 5, 1])

    def native(table):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(5 if limit == COUNT else k < 5, limit)
            s = loop.add_recurrence(tf.zeros([2], F64))
            s.next = tf.sin(tf.gather(table, loop.add_iterator(ids)) + s)
            loop.add_loop_output(s, LAST)
        return tensors(loop)

    def by_hand(table):
        s = tf.zeros([2], F64)
        for i in ids.numpy():
            s = tf.sin(tf.gather(table, i) + s)
        return s

    close(gradients(native, [table]), gradients(by_hand, [table]))


@pytest.mark.parametrize("place", ["eager", "function"])
@pytest.mark.parametrize("limit", [COUNT, WHILE])
def test_a_large_table_gets_a_sparse_gradient(limit, place):
    table = tf.Variable(tf.ones([1000, 2]))
    ids = tf.constant([[7, 8], [9, 9], [7, 1]])

    def call():
        with tf.GradientTape() as tape:
            with Loop() as loop:
                k = loop.add_recurrence(0)
                k.next = k + 1
                loop.add_trip_limit(3 if limit == COUNT else k < 3, limit)
                rows = tf.gather(table, loop.add_iterator(ids))
                out = loop.add_loop_output(rows * 3.0, CONCATENATE)
            out = out.tensor
        return tape.gradient(out, table)

    grad = (call if place == "eager" else tf.function(call))()
    assert isinstance(grad, tf.IndexedSlices)
    dense = tf.convert_to_tensor(grad).numpy()
    expected = np.zeros([1000, 2])
    np.add.at(expected, ids.numpy().ravel(), 3)
    np.testing.assert_array_equal(dense, expected)
    optimizer = tf.keras.optimizers.SGD(0.5)
    optimizer.apply_gradients([(grad, table)])
    np.testing.assert_array_equal(table, 1 - expected / 2)


def test_embedding_bags_in_a_loop_have_gradients():
    table = tf.Variable(random_values(5, 4))
    ids = tf.constant([[0, 1], [1, 2], [4, 4]])

    def native(table):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            row = loop.add_iterator(ids)
            found = tf.nn.embedding_lookup(table, row)
            loop.add_loop_output(tf.reduce_sum(found, 0), CONCATENATE)
        return tensors(loop)

    def by_hand(table):
        return tf.reduce_sum(tf.gather(table, ids), 1)

    close(gradients(native, [table]), gradients(by_hand, [table]))


# Second order


def second_order(run, sources):
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(sources)
            value = loss(run(*sources))
        grads = inner.gradient(value, sources)
        value = loss(grads)
    return outer.gradient(value, sources)


SECOND = ["count", "while", "state first", "padded while", "one trip", "axis -1, reversed, out -1"]
NETS["axis -1, reversed, out -1"] = Net(axis=-1, reverse=True, out_axis=-1)


@pytest.mark.parametrize("place", ["eager", "function", "gradients twice"])
@pytest.mark.parametrize("net", SECOND)
def test_second_order_gradients_are_those_of_the_unrolled_loop(net, place):
    net = NETS[net]
    sources = net.sources()
    if place == "eager":
        actual = second_order(net.native, sources)
    elif place == "function":
        actual = tf.function(lambda: second_order(net.native, sources))()
    else:

        @tf.function
        def call(*sources):
            grads = tf.gradients(loss(net.native(*sources)), sources)
            return tf.gradients(loss(grads), sources)

        actual = call(*sources)
    close(actual, second_order(net.by_hand, sources))  # eagerly, tf.while_loop is a Python loop


@pytest.mark.parametrize("net", ["count", "while"])
def test_second_order_gradients_where_no_shape_is_known(net):
    net = NETS[net]
    sources = net.sources()

    @tf.function(input_signature=[tf.TensorSpec(None, F64)] * 4)
    def call(*sources):
        return second_order(net.native, list(sources))

    close(call(*sources), second_order(net.by_hand, sources))


def test_third_order():
    x = tf.constant(0.7, F64)
    with tf.GradientTape() as third:
        third.watch(x)
        with tf.GradientTape() as second:
            second.watch(x)
            with tf.GradientTape() as first:
                first.watch(x)
                (y,) = counted(lambda s: s * x, 4, x)  # x ** 5
            dy = first.gradient(y, x)
        ddy = second.gradient(dy, x)
    np.testing.assert_allclose(dy, 5 * x**4)
    np.testing.assert_allclose(ddy, 20 * x**3)
    np.testing.assert_allclose(third.gradient(ddy, x), 60 * x**2)


# Nesting


def two_levels(form, inner_limit=COUNT, outer_limit=COUNT):
    """Loops in blocks of their own, or in blocks that share a with statement."""

    def native(x, carry, w):
        a, b = Loop("a"), Loop("b")
        with contextlib.ExitStack() as blocks:
            blocks.enter_context(a)
            if form == "shared":
                blocks.enter_context(b)
            k = a.add_recurrence(0)
            k.next = k + 1
            a.add_trip_limit(2 if outer_limit == COUNT else k < 2, outer_limit)
            row, carry = a.add_iterator(x), a.add_recurrence(carry)
            with b if form == "inside" else contextlib.nullcontext():
                j = b.add_recurrence(0)
                j.next = j + 1
                b.add_trip_limit(3 if inner_limit == COUNT else j < 3, inner_limit)
                s = b.add_recurrence(carry)
                s.next = tf.sin(s * w + b.add_iterator(row) * carry)
                last = b.add_loop_output(s, LAST)
                steps = b.add_loop_output(s, REVERSE, length=4)
            carry.next = last * w
            a.add_loop_output(steps, CONCATENATE, axis=1)
            a.add_loop_output(carry, LAST)
        return tensors(a)

    return native


def two_levels_by_hand(x, carry, w):
    outputs = []
    for k in range(2):
        s, steps = carry, []
        for j in range(3):
            steps.append(s)
            s = tf.sin(s * w + x[k, j] * carry)
        outputs.append(tf.stack([*steps[::-1], 0 * s]))
        carry = s * w
    return tf.stack(outputs, 1), carry


@pytest.mark.pairwise
@pytest.mark.parametrize("order", ["first order", "second order in a function"])
@pytest.mark.parametrize("inner", [COUNT, WHILE], ids=["inner count", "inner while"])
@pytest.mark.parametrize("outer", [COUNT, WHILE], ids=["outer count", "outer while"])
@pytest.mark.parametrize("form", ["inside", "shared"])
def test_nested_loops_have_the_gradients_of_the_unrolled_ones(form, outer, inner, order):
    sources = [random_values(2, 3), random_values(), tf.Variable(random_values(1)[0])]
    native = two_levels(form, inner, outer)
    if order == "first order":
        close(gradients(native, sources), gradients(two_levels_by_hand, sources))
    else:
        actual = tf.function(lambda: second_order(native, sources))()
        close(actual, second_order(two_levels_by_hand, sources))


def test_second_order_gradients_of_nested_loops_in_eager_mode():
    sources = [random_values(2, 3), random_values(), tf.Variable(random_values(1)[0])]
    expected = second_order(two_levels_by_hand, sources)
    close(second_order(two_levels("inside", WHILE), sources), expected)


def test_nested_loops_in_a_function_that_knows_no_shapes():
    sources = [random_values(2, 3), random_values(), random_values(1)[0]]

    @tf.function(input_signature=[tf.TensorSpec(None, F64)] * 3)
    def call(*sources):
        return gradients(two_levels("shared", WHILE), list(sources))

    close(call(*sources), gradients(two_levels_by_hand, sources))


def test_an_inner_count_that_differs_from_iteration_to_iteration():
    x, w = random_values(4), random_values()

    def native(x, w):
        with Loop() as outer:
            outer.add_trip_limit(4, COUNT)
            k = outer.add_recurrence(0)
            k.next = k + 1
            element = outer.add_iterator(x)
            with Loop() as inner:
                inner.add_trip_limit(k, COUNT)
                s = inner.add_recurrence(element)
                s.next = tf.sin(s * w)
                steps = inner.add_loop_output(s, CONCATENATE, length=5)
                last = inner.add_loop_output(s, LAST)
            outer.add_loop_output(steps, CONCATENATE)
            outer.add_loop_output(last, CONCATENATE)
        return tensors(outer)

    def by_hand(x, w):
        rows, lasts = [], []
        for k in range(4):
            s, steps = x[k], []
            for _ in range(k):
                steps.append(s)
                s = tf.sin(s * w)
            rows.append(tf.stack([*steps, *[0 * s] * (5 - k)]))
            lasts.append(s)
        return tf.stack(rows), tf.stack(lasts)

    close(gradients(native, [x, w]), gradients(by_hand, [x, w]))


def fold(x, s, w, limit=COUNT):
    """s' = sin(s w + x_t), as a loop."""
    with Loop() as loop:
        k = loop.add_recurrence(0)
        k.next = k + 1
        n = tf.size(x)
        loop.add_trip_limit(n if limit == COUNT else k < n, limit)
        s = loop.add_recurrence(s)
        s.next = tf.sin(s * w + loop.add_iterator(x))
        out = loop.add_loop_output(s, LAST)
    return out.tensor


def fold_by_hand(x, s, w):
    for k in range(x.shape[0]):
        s = tf.sin(s * w + x[k])
    return s


def in_scan(fold, x, s, w):
    def f(c, row):
        c = fold(row, c, w)
        return c, c * w

    return tf_ti.scan(f, s, x)


def in_scan_by_hand(x, s, w):
    ys = []
    for k in range(x.shape[0]):
        s = fold_by_hand(x[k], s, w)
        ys.append(s * w)
    return s, tf.stack(ys)


def in_tensor_iterator(fold, x, s, w):
    return tf_ti.tensor_iterator(
        lambda piece, c: (fold(piece[0], c, w), (fold(piece[0], c, w) * w)[tf.newaxis]),
        [x, s],
        PortMap(
            [InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0), OutputPort(1, 1, axis=0)]
        ),
        [BackEdge(0, 1)],
    )


def in_while_loop(fold, x, s, w):
    def body(k, s, ys):
        s = fold(x[k], s, w)
        return k + 1, s, ys.write(k, s * w)

    ys = tf.TensorArray(F64, x.shape[0])
    _, s, ys = tf.while_loop(lambda k, *_: k < x.shape[0], body, (0, s, ys))
    return s, ys.stack()


def in_cond(fold, x, s, w):
    ys = []
    for k in range(x.shape[0]):
        s = tf.cond(
            s > -100 * (-1) ** k, lambda k=k, s=s: fold(x[k], s, w), lambda s=s: fold(x[0], s, w)
        )
        ys.append(s * w)
    return s, tf.stack(ys)


def in_cond_by_hand(x, s, w):
    ys = []
    for k in range(x.shape[0]):
        s = fold_by_hand(x[k] if s > -100 * (-1) ** k else x[0], s, w)
        ys.append(s * w)
    return s, tf.stack(ys)


def in_map_fn(fold, x, s, w):
    return tf.map_fn(lambda row: fold(row, s, w), x)


def in_map_fn_by_hand(x, s, w):
    return tf.stack([fold_by_hand(x[k], s, w) for k in range(x.shape[0])])


def in_recompute_grad(fold, x, s, w):
    call = tf.recompute_grad(lambda x, s, w: fold(x[0], s, w))
    return call(x, s, w)


def in_recompute_grad_by_hand(x, s, w):
    return fold_by_hand(x[0], s, w)


INSIDE = {
    "scan": (in_scan, in_scan_by_hand),
    "tensor_iterator": (in_tensor_iterator, in_scan_by_hand),
    "while_loop": (in_while_loop, in_scan_by_hand),
    "cond": (in_cond, in_cond_by_hand),
    "map_fn": (in_map_fn, in_map_fn_by_hand),
    "recompute_grad": (in_recompute_grad, in_recompute_grad_by_hand),
}


@pytest.mark.pairwise
@pytest.mark.parametrize("place", ["eager", "function"])
@pytest.mark.parametrize("limit", [COUNT, WHILE], ids=["count", "while"])
@pytest.mark.parametrize("where", INSIDE)
def test_loops_inside_other_things_have_gradients(where, limit, place):
    native, by_hand = INSIDE[where]
    sources = [random_values(3, 2), random_values(), random_values(1)[0]]

    def call():
        return gradients(
            lambda *sources: native(lambda *a: fold(*a, limit=limit), *sources), sources
        )

    close((call if place == "eager" else tf.function(call))(), gradients(by_hand, sources))


def test_other_things_inside_a_loop_have_gradients():
    x, s, w = random_values(3, 2), random_values(), random_values(1)[0]

    def native(x, s, w):
        with Loop() as loop:
            loop.add_trip_limit(3, COUNT)
            row, s = loop.add_iterator(x), loop.add_recurrence(s)
            scanned, values = tf_ti.scan(lambda c, v: (tf.sin(c * w + v), c * v), s, row)
            _, looped = tf.while_loop(
                lambda k, v: k < 3, lambda k, v: (k + 1, tf.sin(v * w)), (0, scanned)
            )
            chosen = tf.cond(s > 0, lambda: looped * w, lambda: looped + w)
            s.next = tf.function(lambda v: v * 0.9)(chosen)
            loop.add_loop_output(s, LAST)
            loop.add_loop_output(values, CONCATENATE)
        return tensors(loop)

    def by_hand(x, s, w):
        values = []
        for k in range(3):
            c, row = s, []
            for j in range(2):
                row.append(c * x[k, j])
                c = tf.sin(c * w + x[k, j])
            values.append(tf.stack(row))
            for _ in range(3):
                c = tf.sin(c * w)
            s = (c * w if s > 0 else c + w) * 0.9
        return s, tf.stack(values)

    sources = [x, s, w]
    expected = gradients(by_hand, sources)
    close(gradients(native, sources), expected)
    close(tf.function(lambda: gradients(native, sources))(), expected)


# Gradients inside the block


def test_gradient_descent_in_the_block_and_its_gradient():
    p, a = tf.constant(2.0, F64), tf.constant(0.7, F64)
    with tf.GradientTape() as outer:
        outer.watch([p, a])
        with Loop() as loop:
            loop.add_trip_limit(5, COUNT)
            parameter = loop.add_recurrence(p)
            with tf.GradientTape() as tape:
                tape.watch(parameter.tensor)
                value = 0.5 * a * parameter.tensor**2
            parameter.next = parameter - 0.1 * tape.gradient(value, parameter.tensor)
            out = loop.add_loop_output(parameter, LAST)
        out = out.tensor
    factor = 1 - 0.1 * 0.7
    np.testing.assert_allclose(out, 2 * factor**5)
    of_p, of_a = outer.gradient(out, [p, a])
    np.testing.assert_allclose(of_p, factor**5)
    np.testing.assert_allclose(of_a, 2 * 5 * factor**4 * -0.1)


def test_the_gradient_of_an_inner_loop_in_the_block_of_the_outer_one():
    """Gradient descent on the result of a loop; and the gradient of the result of that."""
    x, p, w = random_values(3), random_values(), random_values(1)[0]

    def native(x, p, w):
        with Loop("descent") as descent:
            descent.add_trip_limit(3, COUNT)
            parameter = descent.add_recurrence(p)
            with tf.GradientTape() as tape:
                tape.watch(parameter.tensor)
                value = fold(x, parameter.tensor, w)
            parameter.next = parameter - 0.1 * tape.gradient(value, parameter.tensor)
            descent.add_loop_output(parameter, LAST)
        return tensors(descent)

    def by_hand(x, p, w):
        for _ in range(3):
            with tf.GradientTape() as tape:
                tape.watch(p)
                value = fold_by_hand(x, p, w)
            p = p - 0.1 * tape.gradient(value, p)
        return p

    sources = [x, p, w]
    np.testing.assert_allclose(native(*sources)[0], by_hand(*sources))
    close(gradients(native, sources), gradients(by_hand, sources))


def test_tf_gradients_in_the_block():
    with Loop() as loop:
        loop.add_trip_limit(3, COUNT)
        element = loop.add_iterator(tf.constant([1.0, 2.0, 3.0])).tensor
        out = loop.add_loop_output(tf.gradients(element**3, element)[0], CONCATENATE)
    assert out.tensor.numpy().tolist() == [3, 12, 27]


def test_custom_gradients_in_the_block():
    @tf.custom_gradient
    def clipped(x):
        return x * 1.0, lambda dy: dy * 10.0

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            loop.add_trip_limit(2, COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + clipped(loop.add_iterator(x) * 2.0)
            out = loop.add_loop_output(s, LAST)
        out = out.tensor
    assert tf.convert_to_tensor(tape.gradient(out, x)).numpy().tolist() == [20, 20]


# Random numbers and effects


def random_bodies():
    generator = tf.random.Generator.from_seed(1)
    return {
        "uniform": lambda x: x * tf.random.uniform([4], 1.0, 2.0, F64),
        "dropout": lambda x: tf.nn.dropout(x, 0.5),
        "tf.function": tf.function(lambda x: x * tf.random.uniform([4], 1.0, 2.0, F64)),
        "generator": lambda x: x * generator.uniform([4], 1.0, 2.0, F64),
        "numpy_function": lambda x: (
            tf.ensure_shape(
                tf.numpy_function(lambda: np.random.uniform(1, 2, [4]), [], F64, stateful=True), [4]
            )
            * x
        ),
    }


@pytest.mark.pairwise
@pytest.mark.parametrize("kind", random_bodies())
@pytest.mark.parametrize("limit", [COUNT, WHILE], ids=["count", "while"])
@pytest.mark.parametrize("place", ["eager", "inside", "outside"])
def test_the_gradient_uses_the_random_numbers_of_the_forward_pass(kind, limit, place):
    draw = random_bodies()[kind]
    x = tf.ones([6, 4], F64)

    def run(x):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            loop.add_trip_limit(6 if limit == COUNT else k < 6, limit)
            out = loop.add_loop_output(draw(loop.add_iterator(x)), CONCATENATE)
        return out.tensor

    def call(run):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        return y, tape.gradient(y, x)

    if place == "eager":
        y, grad = call(run)
    elif place == "outside":
        y, grad = call(tf.function(run))
    else:
        y, grad = tf.function(lambda: call(run))()
    np.testing.assert_array_equal(tf.convert_to_tensor(grad), y)  # y = x * mask, and x is 1
    assert len(np.unique(y)) > 1


@pytest.mark.parametrize("form", ["inside", "shared"])
def test_random_numbers_of_a_nested_loop_are_the_same_in_the_gradient(form):
    x = tf.ones([4, 6], F64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop("rows") as rows, Loop("columns") as columns:
            rows.add_trip_limit(4, COUNT)
            columns.add_trip_limit(6, COUNT)
            value = columns.add_iterator(rows.add_iterator(x))
            drawn = columns.add_loop_output(value * tf.random.uniform([], dtype=F64), CONCATENATE)
            out = rows.add_loop_output(drawn, CONCATENATE)
        y = out.tensor
    assert len(np.unique(y)) == 24
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(y, x)), y)


def test_a_random_number_of_the_condition_is_the_same_in_the_gradient():
    x = tf.ones([200], F64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with Loop() as loop:
            drawn = tf.random.uniform([], dtype=F64)
            loop.add_trip_limit(drawn < 0.9, WHILE)
            loop.add_trip_limit(200, COUNT)
            out = loop.add_loop_output(loop.add_iterator(x) * drawn, CONCATENATE, length=200)
        y = out.tensor
    np.testing.assert_array_equal(tf.convert_to_tensor(tape.gradient(y, x)), y)


@pytest.mark.parametrize("place", ["eager", "function"])
def test_the_gradient_repeats_no_effect(place):
    v, s = tf.Variable(1.0), tf.constant(3.0)
    calls = []

    def note(x):
        calls.append(float(x))
        return x

    def call():
        with tf.GradientTape() as tape:
            tape.watch(s)
            with Loop() as loop:
                k = loop.add_recurrence(0)
                k.next = k + 1
                loop.add_trip_limit(k < 3, WHILE)
                state = loop.add_recurrence(s)
                factor = tf.numpy_function(note, [v.read_value()], tf.float32)
                factor.set_shape([])
                state.next = state * factor
                v.assign_add(1.0)
                out = loop.add_loop_output(state, LAST)
            y = out.tensor
        return y, tape.gradient(y, s)

    y, grad = (call if place == "eager" else tf.function(call))()
    assert y.numpy() == 18
    assert grad.numpy() == 6
    assert v.numpy() == 4
    assert calls == [1, 2, 3]


# Training


def test_a_loop_is_trained_to_double_its_input():
    w, u = tf.Variable(0.5, dtype=F64), tf.Variable(0.1, dtype=F64)
    x = random_values(16, 5)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            with Loop() as loop:
                loop.add_trip_limit(5, COUNT)
                s = loop.add_recurrence(tf.zeros([16], F64))
                s.next = s * u + loop.add_iterator(x, axis=1) * w
                out = loop.add_loop_output(s, LAST)
            error = tf.reduce_mean((out - 2 * x[:, -1]) ** 2)
        for variable, grad in zip((w, u), tape.gradient(error, (w, u))):
            variable.assign_sub(0.3 * grad)
        return error

    for _ in range(100):
        error = step()
    assert error < 1e-6
    np.testing.assert_allclose([w, u], [2, 0], atol=1e-2)


def test_a_hundred_thousand_iterations_have_a_gradient():
    s = tf.constant(1.0, F64)
    with tf.GradientTape() as tape:
        tape.watch(s)
        (y,) = counted(lambda s: s * (1 + 1e-5), 100_000, s)
    np.testing.assert_allclose(tape.gradient(y, s), (1 + 1e-5) ** 100_000, rtol=1e-9)


# Variables that branches read


def step_of_branches(rng, dtype):
    """A step of random branches, which read variables of all ranks, and these variables."""
    variables = [
        tf.Variable(rng.normal(size=shape), dtype=dtype) for shape in ((), (2,), (3, 2), (1, 2, 1))
    ]
    scalar, vector, matrix, tensor = variables
    count = tf.Variable(2)
    ways = [
        lambda c, x: vector * x + c * 0.5,
        lambda c, x: tf.sin(c) * scalar,
        lambda c, x: c - vector[0],
        lambda c, x: c * tf.reduce_sum(matrix, 0) * 0.3 + x,
        lambda c, x: c + tensor[0, :, 0] * scalar * x,
        lambda c, x: matrix[1] * c,
        lambda c, x: c * tf.cast(count, dtype) * 0.3,
        lambda c, x: c * 0.9,
        lambda c, x: c * tf.gather(matrix, count),
        lambda c, x: tf.gather(tf.gather(matrix, [1, 0, count]), 1) + c * scalar,
        lambda c, x: tf.reduce_sum(tf.gather(tensor, [0, 0], axis=2)) * c + vector,
    ]

    def add_branches(depth):
        if depth == 0:
            return ways[rng.integers(len(ways))]
        inner = [add_branches(depth - 1) for _ in range(3)]
        if rng.integers(2):
            bound = rng.normal() * 0.3
            return lambda c, k, x: tf.cond(
                x > bound, lambda: call(inner[0], c, k, x), lambda: call(inner[1], c, k, x)
            )
        return lambda c, k, x: tf.switch_case(
            k, [functools.partial(call, branch, c, k, x) for branch in inner]
        )

    def call(branch, c, k, x):
        return branch(c, x) if branch in ways else branch(c, k, x)

    branches = add_branches(2)
    return lambda c, k, x: tf.tanh(call(branches, c, k, x)), variables


@pytest.mark.parametrize("seed", range(3), indirect=True)
def test_gradients_of_branches_that_read_variables(seed, rng):
    dtype = [tf.float32, tf.float64][seed % 2]
    step, variables = step_of_branches(rng, dtype)
    start, xs = tf.constant([0.7, 0.1], dtype), tf.constant(rng.normal(size=5), dtype)
    ks = tf.constant(rng.integers(-1, 4, 5), tf.int32)

    def by_hand():
        c = start
        for k, x in zip(ks, tf.unstack(xs)):
            c = step(c, k, x)
        return c

    def by_scan(every):
        def advance(c, given):
            return (step(c, *given), None)

        return tf_ti.scan(advance, start, (ks, xs), checkpoint_every=every)[0]

    def by_while():
        def advance(t, c):
            return (t + 1, step(c, ks[t], xs[t]))

        return tf_ti.while_loop(lambda t, c: t < 5, advance, (0, start), maximum_iterations=5)[1]

    def gradients_of(run):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            y = tf.reduce_sum(run() ** 2)
        grads = tape.gradient(y, [xs, *variables], unconnected_gradients="zero")
        return [tf.convert_to_tensor(grad) for grad in grads]

    ways = (by_while, *(functools.partial(by_scan, every) for every in (None, 2)))
    expected = gradients_of(by_hand)
    for actual in tf.function(lambda: [gradients_of(run) for run in ways])():
        close(actual, expected, 1e-5 if dtype == tf.float32 else 1e-10)


@pytest.mark.parametrize(
    "step",
    [
        lambda table, c, i: tf.cond(i > 0, lambda: tf.gather(table, i), lambda: c * 1.5),
        lambda table, c, i: tf.cond(
            i > 0,
            lambda: tf.reduce_sum(tf.gather(table, [i, 0, i]), 0),
            lambda: c * tf.gather(table, 1),
        ),
        lambda table, c, i: tf.switch_case(
            i,
            [
                lambda: tf.gather(table, i) * c,
                lambda: c * table[0],
                lambda: tf.reduce_sum(tf.gather(table, [[i], [0]]), [0, 1]),
            ],
        ),
        lambda table, c, i: tf.cond(
            i > 0,
            lambda: tf.cond(i > 1, lambda: tf.gather(table, i), lambda: tf.sin(c)),
            lambda: c * 1.5,
        ),
        lambda table, c, i: (
            tf.gather(table, i) + tf.cond(i > 0, lambda: tf.gather(table, [i, 0])[0], lambda: c)
        ),
    ],
)
@pytest.mark.parametrize("is_variable", [True, False])
def test_gradients_of_rows_that_branches_look_up(step, is_variable):
    table = np.random.default_rng(0).normal(size=(3, 2))
    table = (tf.Variable if is_variable else tf.constant)(table)
    start, ids = tf.constant([0.7, 0.1], tf.float64), tf.constant([0, 2, 1, 2, 0])

    def by_hand(start, table):
        c = start
        for i in tf.unstack(ids):
            c = step(table, c, i)
        return c

    def by_scan(start, table):
        return tf_ti.scan(lambda c, i: (step(table, c, i), None), start, ids)[0]

    def gradients_of(run):
        with tf.GradientTape() as tape:
            tape.watch([start, table])
            y = tf.reduce_sum(run(start, table) ** 2)
        grads = tape.gradient(y, [start, table], unconnected_gradients="zero")
        return [tf.convert_to_tensor(grad) for grad in grads]

    close(tf.function(lambda: gradients_of(by_scan))(), gradients_of(by_hand), 1e-10)


@pytest.mark.parametrize("every", [None, 2])
def test_gradients_of_branches_that_read_what_the_body_changes_are_refused(every):
    """They would read it again, when it has changed."""
    v = tf.Variable(1.0)

    def step(c, x):
        y = tf.cond(x > 0, lambda: c * v, lambda: c)
        v.assign_add(1.0)
        return y, None

    @tf.function
    def gradient(x):
        v.assign(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = tf_ti.scan(lambda c, x: step(c * x, x), 1.0, x, checkpoint_every=every)
        return tape.gradient(y, x)

    with pytest.raises(ValueError, match="has effects|would have to repeat"):
        gradient(tf.constant([1.0, 2.0, 3.0]))


def test_gradients_of_functions_that_write_arrays_have_gradients():
    """TensorFlow fills in zeros for histories of lists, which it records beside the results."""

    def f(x):
        array = tf.TensorArray(F64, 3, element_shape=[])

        def body(k, y, array):
            return k + 1, tf.cos(y), array.write(k, y)

        _, y, array = tf_ti.while_loop(lambda k, *_: k < 3, body, (0, x, array))
        return y + tf.reduce_sum(array.stack())

    def oracle(x):
        y, total = x, 0.0
        for _ in range(3):
            total, y = total + y, tf.cos(y)
        return y + total

    def gradient(f):
        def of(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = f(x)
            return tape.gradient(result, x)

        return of

    x = tf.constant(0.7, F64)
    for _ in range(3):
        f, oracle = tf.function(gradient(f)), gradient(oracle)
        np.testing.assert_allclose(f(x), oracle(x), rtol=1e-9)


def test_a_gradient_through_arrays_of_ragged_rows():
    """An array of variants, each a row, as tf.map_fn has for ragged tensors."""

    def f(x, while_loop):
        encoded = tf.raw_ops.RaggedTensorToVariant(
            rt_nested_splits=[tf.constant([0, 2, 2, 5], tf.int64)],
            rt_dense_values=x,
            batched_input=True,
        )
        rows = tf.TensorArray(tf.variant, 3).unstack(encoded)
        sums = tf.TensorArray(tf.variant, 3)

        def decode(row):
            return tf.raw_ops.RaggedTensorFromVariant(
                encoded_ragged=row,
                input_ragged_rank=0,
                output_ragged_rank=0,
                Tvalues=F64,
                Tsplits=tf.int64,
            ).output_dense_values

        def body(k, sums):
            doubled = decode(rows.read(k)) ** 2
            made = tf.raw_ops.RaggedTensorToVariant(
                rt_nested_splits=[], rt_dense_values=doubled, batched_input=False
            )
            return k + 1, sums.write(k, made)

        _, sums = while_loop(lambda k, _: k < 3, body, (0, sums))
        return tf.add_n([(k + 1.0) * tf.reduce_sum(decode(sums.read(k))) for k in range(3)])

    def gradient(while_loop):
        @tf.function(autograph=False)
        def of(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = f(x, while_loop)
            return tape.gradient(result, x)

        return of(tf.range(5.0, dtype=F64))

    expected = [0.0, 2.0, 12.0, 18.0, 24.0]
    np.testing.assert_allclose(gradient(tf.while_loop), expected)
    np.testing.assert_allclose(gradient(tf_ti.while_loop), expected)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("is_variable", [False, True])
def test_rows_of_open_extents_have_the_tables_shape(count, is_variable):
    """Also where no iteration tells how long they are, and in second gradients."""
    given = tf.reshape(tf.range(12.0), [4, 3]) / 12.0
    variable = tf.Variable(given, shape=[None, None]) if is_variable else None

    def second(loop, table, count):
        table = variable if is_variable else table
        with tf.GradientTape() as outer:
            outer.watch(table)
            with tf.GradientTape() as tape:
                tape.watch(table)
                total = tf.reduce_sum(loop(table, count) ** 2)
            slope = tape.gradient(total, table, unconnected_gradients="zero")
            slope = tf.convert_to_tensor(slope)
            total = tf.reduce_sum(tf.sin(slope) * slope)
        found = outer.gradient(total, table, unconnected_gradients="zero")
        return slope, tf.convert_to_tensor(found)

    def ours(table, count):
        def f(h, k):
            return tf.sin(h) + tf.gather(table, [k, k + 1])[0] ** 2, None

        return tf_ti.scan(f, tf.zeros([3]), tf.range(count))[0]

    def theirs(table, count):
        return tf.while_loop(
            lambda k, h: k < count,
            lambda k, h: (k + 1, tf.sin(h) + tf.gather(table, [k, k + 1])[0] ** 2),
            (0, tf.zeros([3])),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None])),
        )[1]

    specs = [tf.TensorSpec([None, None]), tf.TensorSpec([], tf.int32)]
    found = tf.function(lambda *a: second(ours, *a), input_signature=specs)(given, count)
    assert [t.shape for t in found] == [given.shape] * 2
    if count and not is_variable:  # TensorFlow's own fails otherwise
        expected = tf.function(lambda *a: second(theirs, *a), input_signature=specs)(given, count)
        for ours_, theirs_ in zip(found, expected):
            np.testing.assert_allclose(ours_, theirs_, 1e-5, 1e-6)
    elif not count:
        assert not np.any(found)


# --- variables that change between a loop and its gradient ---------------------------------------

ROWS = tf.Variable([0.7, 0.6, 0.5, 0.9])


def plainly(loop, f, y):
    return f(y)


def in_a_branch(loop, f, y):
    return tf.cond(y > -5.0, lambda: f(y), lambda: y)


def in_a_case(loop, f, y):
    return tf.switch_case(tf.cast(y > 5.0, tf.int32), [lambda: f(y), lambda: y])


def in_a_call(loop, f, y):
    return tf.function(f, autograph=False)(y)


def in_a_loop(loop, f, y):
    return loop(lambda j, _: j < 2, lambda j, y: (j + 1, f(y)), [0, y])[1]


def in_a_loop_of_tensorflow(loop, f, y):
    return in_a_loop(tf.while_loop, f, y)


def in_a_branch_of_a_loop(loop, f, y):
    return in_a_loop(loop, lambda y: in_a_branch(loop, f, y), y)


USES = {
    "all": lambda i: tf.reduce_sum(ROWS),
    "a slice": lambda i: ROWS[0],
    "a row": lambda i: tf.gather(ROWS, i),
}


def by_while_loop(step, y, **options):
    def body(i, y):
        return i + 1, step(i, y)

    return tf_ti.while_loop(lambda i, _: i < 4, body, [0, y], maximum_iterations=4, **options)[1]


def by_scan(step, y, **options):
    return tf_ti.scan(lambda y, i: (step(i, y), None), y, tf.range(4), **options)[0]


def by_accelerated_loop(step, y):
    with tf_ti.accelerate():
        return tf.while_loop(lambda i, _: i < 4, lambda i, y: (i + 1, step(i, y)), [0, y])[1]


USED_IN = [
    plainly,
    in_a_branch,
    in_a_case,
    in_a_call,
    in_a_loop,
    in_a_loop_of_tensorflow,
    in_a_branch_of_a_loop,
]
WAYS = {
    "while_loop": by_while_loop,
    "scan": by_scan,
    "accelerated": by_accelerated_loop,
    "while_loop by 2": functools.partial(by_while_loop, checkpoint_every=2),
    "scan by 3": functools.partial(by_scan, checkpoint_every=3),
}


def with_a_variable(place, use):
    """An iteration that uses a variable, and the loop of four in Python."""

    def step(i, y):
        return place(tf_ti.while_loop, lambda y: tf.sin(USES[use](i) * y), y)

    def unrolled(y):
        is_inner_loop = place in (in_a_loop, in_a_loop_of_tensorflow, in_a_branch_of_a_loop)
        for i in range(4):
            for _ in range(2 if is_inner_loop else 1):
                y = tf.sin(USES[use](i) * y)
        return y

    return step, unrolled


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", USED_IN)
@pytest.mark.parametrize("way", WAYS)
def test_second_gradients_by_a_variable(way, place, use):
    step, unrolled = with_a_variable(place, use)

    def gradients(run, y):
        with tf.GradientTape() as outer:
            outer.watch(y)
            with tf.GradientTape() as tape:
                tape.watch(y)
                value = run(y)
            slopes = [tf.convert_to_tensor(g) for g in tape.gradient(value, [y, ROWS])]
            total = tf.sin(slopes[0]) + tf.reduce_sum(slopes[1] ** 2)
        return [*slopes, *map(tf.convert_to_tensor, outer.gradient(total, [y, ROWS]))]

    ROWS.assign([0.7, 0.6, 0.5, 0.9])
    y = tf.constant(0.8)
    found = tf.function(lambda y: gradients(lambda y: WAYS[way](step, y), y))(y)
    for ours, expected in zip(found, gradients(unrolled, y), strict=True):
        np.testing.assert_allclose(ours, expected, 1e-4, 1e-6)


@pytest.mark.parametrize("is_eager", [True, False])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("place", USED_IN)
@pytest.mark.parametrize("way", WAYS)
def test_a_variable_that_changes_before_the_gradient(way, place, use, is_eager):
    """As of a step that updates weights, and then asks the same tape for others' gradients."""

    step, unrolled = with_a_variable(place, use)

    def gradients(run, y):
        ROWS.assign([0.7, 0.6, 0.5, 0.9])
        with tf.GradientTape() as tape:
            tape.watch(y)
            value = run(y)
        ROWS.assign([5.0, 6.0, 7.0, 8.0])
        return [tf.convert_to_tensor(g) for g in tape.gradient(value, [y, ROWS])]

    y = tf.constant(0.8)

    def run(y):
        return WAYS[way](step, y)

    run = tf.function(run) if is_eager else run
    found = gradients(run, y) if is_eager else tf.function(lambda y: gradients(run, y))(y)
    for ours, expected in zip(found, gradients(unrolled, y), strict=True):
        np.testing.assert_allclose(ours, expected, 1e-5)


def test_a_function_that_asks_for_no_gradient_reads_no_variable_for_one():
    @tf.function
    def run(y):
        with tf.GradientTape():
            step = lambda i, y: in_a_branch(None, lambda y: tf.sin(ROWS[0] * y), y)  # noqa: E731
            return by_while_loop(step, y)

    graph = run.get_concrete_function(tf.constant(0.8)).graph
    reads = [op for op in graph.get_operations() if op.type == "ReadVariableOp"]
    assert not any(op in graph.control_outputs or op.outputs[0].consumers() for op in reads)
