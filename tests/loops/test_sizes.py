"""Large depths, lengths, nests, derivatives, and numbers of states, ports and loops.

No function recurses along a graph, and none does work that grows faster than the graph.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from work import count, growing_faster, under_deep_stack

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit

pytestmark = pytest.mark.quarter

STEPS, ROWS, WIDTH = 3, 2, 4
XS = np.linspace(-1, 1, STEPS * ROWS * WIDTH, dtype=np.float32).reshape(STEPS, ROWS, WIDTH)
START = tf.zeros([ROWS, WIDTH])
DEEP = 120  # more calls than `under_deep_stack` leaves


def chain(state, x, length):
    """Some operations, each of the one before."""
    for _ in range(length // 3):
        state = tf.tanh(state * 0.5 + x)
    return state


def chained(length, xs=XS):
    """The states of a scan of chains, and the gradient of their sum, in NumPy."""
    states, slopes, state = [], [], np.zeros_like(xs[0])
    for x in xs:
        for _ in range(length // 3):
            state = np.tanh(state * 0.5 + x)
            slopes.append(1 - state**2)
        states.append(state)
    gradients, carried = [], np.zeros_like(xs[0])
    for k in reversed(range(len(xs))):
        carried, total = carried + 1, 0
        for slope in reversed(slopes[k * (length // 3) : (k + 1) * (length // 3)]):
            total = total + carried * slope
            carried = carried * slope * 0.5
        gradients.append(total)
    return np.stack(states), np.stack(gradients[::-1])


def scan(xs, length, **options):
    def step(state, x):
        state = chain(state, x, length)
        return state, state

    return tf_ti.scan(step, tf.zeros(xs.shape[1:]), xs, **options)[1]


def while_loop(xs, length):
    def step(k, state, states):
        state = chain(state, xs[k], length)
        return k + 1, state, states.write(k, state)

    states = tf.TensorArray(tf.float32, STEPS)
    return tf_ti.while_loop(lambda k, *_: k < STEPS, step, (0, START, states))[2].stack()


def tensor_iterator(xs, length):
    def step(state, x):
        state = chain(state, x[0], length)
        return state, state[tf.newaxis]

    ports = PortMap([InputPort(0, 0), InputPort(1, 1, axis=0)], [OutputPort(0, 1, axis=0)])
    return tf_ti.tensor_iterator(step, [START, xs], ports, [BackEdge(0, 0)])[0]


def made_block(xs, length):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(STEPS, TripLimit.COUNT)
        state, x = loop.add_recurrence(START), loop.add_iterator(xs)
        state.next = chain(state, x, length)
        loop.add_loop_output(state.next, LoopOutput.CONCATENATE)
    return loop


def block(xs, length):
    return made_block(xs, length).outputs[0].tensor


def drawn_block(xs, length):
    loop = made_block(xs, length)
    assert "Tanh" in loop.draw()
    return loop.outputs[0].tensor


def layer(xs, length):
    class Cell(keras.layers.Layer):
        state_size = output_size = WIDTH

        def call(self, x, states):
            state = chain(states[0], x, length)
            return state, [state]

    made = tf_ti.keras.RNN(Cell(), return_sequences=True)
    return tf.transpose(made(tf.transpose(xs, [1, 0, 2])), [1, 0, 2])


def vectorized(xs, length):
    rows = tf.vectorized_map(lambda x: scan(x, length), tf.transpose(xs, [1, 0, 2]))
    return tf.transpose(rows, [1, 0, 2])


def gradient(function, **options):
    def differentiated(xs, length):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            ys = function(xs, length, **options)
        return tape.gradient(ys, xs)

    differentiated.__name__ = f"gradient of {function.__name__}"
    return differentiated


def in_function(function, length, xs=XS, **options):
    return tf.function(lambda xs: function(xs, length), **options)(xs)


# --- depth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [scan, while_loop, tensor_iterator, block, drawn_block, layer, vectorized],
    ids=lambda function: function.__name__,
)
def test_a_body_may_be_deeper_than_the_stack(function):
    found = under_deep_stack(lambda: in_function(function, DEEP))
    np.testing.assert_allclose(found, chained(DEEP)[0], rtol=1e-5, atol=1e-6)


def test_a_compiled_body_may_be_deeper_than_the_stack():
    found = under_deep_stack(lambda: in_function(scan, DEEP, jit_compile=True))
    np.testing.assert_allclose(found, chained(DEEP)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("checkpoint_every", [None, 2])
def test_a_gradient_may_be_deeper_than_the_stack(checkpoint_every):
    function = gradient(scan, checkpoint_every=checkpoint_every)
    found = under_deep_stack(lambda: in_function(function, DEEP))
    np.testing.assert_allclose(found, chained(DEEP)[1], rtol=1e-4, atol=1e-5)


def test_a_second_gradient_may_be_deeper_than_the_stack():
    twice = gradient(gradient(scan))
    found = under_deep_stack(lambda: in_function(twice, DEEP))
    slope = 1e-3
    above, below = (chained(DEEP, XS.astype(np.float64) + s * slope)[1] for s in (1, -1))
    expected = (above.sum() - below.sum()) / (2 * slope)
    np.testing.assert_allclose(np.sum(found), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.needs_programs
def test_an_explanation_may_be_deeper_than_the_stack():
    function = tf.function(lambda xs: scan(xs, DEEP))
    text = under_deep_stack(lambda: str(tf_ti.explain(function, tf.TensorSpec(XS.shape))))
    assert f"one program of {DEEP}" in text


def test_a_model_that_is_saved_as_ir_may_be_deeper_than_the_stack(tmp_path):
    signature = [tf.TensorSpec(XS.shape)]
    in_a_loop = tf.function(lambda xs: scan(xs, DEEP), signature)
    without = tf.function(lambda xs: chain(START, xs[0], DEEP), signature)

    def save_and_load(function, name):
        tf_ti.openvino.save(function, tmp_path / name)
        return tf_ti.openvino.load(tmp_path / name)(XS)

    expected = chained(DEEP)[0]
    (found,) = under_deep_stack(lambda: save_and_load(in_a_loop, "loop.xml"))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    (found,) = under_deep_stack(lambda: save_and_load(without, "chain.xml"))
    np.testing.assert_allclose(found, expected[0], rtol=1e-5, atol=1e-6)


def test_arithmetic_of_shapes_may_be_deeper_than_the_stack(monkeypatch):
    monkeypatch.setenv("TF_TI_PROGRAM", "0")  # else all of it stays in the loop

    @tf.function(input_signature=[tf.TensorSpec([None, None, WIDTH])])
    def function(xs):
        def step(state, x):
            number = tf.shape(tf.tanh(x))[0]
            for _ in range(DEEP // 2):
                number = 1 - number * 3
            return state + x, state * tf.cast(number % 7, tf.float32)

        return tf_ti.scan(step, START, xs)[1]

    number = ROWS
    for _ in range(DEEP // 2):
        number = 1 - number * 3
    number = (number + 2**31) % 2**32 - 2**31  # as int32
    found = under_deep_stack(lambda: function(XS))
    before = np.concatenate([np.zeros_like(XS[:1]), np.cumsum(XS, 0)[:-1]])
    np.testing.assert_allclose(found, before * (number % 7), rtol=1e-5, atol=1e-6)


def test_what_is_of_no_state_may_be_deeper_than_the_stack():
    def function(xs, length):
        def step(state, x):
            before, invariant = chain(x, 1.0, length), chain(shared, 1.0, length)
            return state + x, chain(state, x, length) + before * invariant

        shared = xs[0]
        return tf_ti.scan(step, START, xs)[1]

    def one_by_one(xs, length):
        state, ys = START, []
        for x in tf.unstack(xs):
            parts = chain(state, x, length), chain(x, 1.0, length), chain(xs[0], 1.0, length)
            ys.append(parts[0] + parts[1] * parts[2])
            state += x
        return tf.stack(ys)

    found = under_deep_stack(lambda: in_function(function, DEEP))
    np.testing.assert_allclose(found, one_by_one(XS, DEEP), rtol=1e-5, atol=1e-6)


def custom(xs, length):
    """A scan whose steps have custom gradients that refer to other tensors."""

    def half(state):
        slope = tf.exp(state * 0.0) * 0.5

        @tf.custom_gradient
        def function(state):
            return state * 0.5, lambda grad: grad * slope

        return function(state)

    def step(state, x):
        for _ in range(length // 3):
            state = tf.tanh(half(state) + x)
        return state, state

    return tf_ti.scan(step, START, xs)[1]


def test_custom_gradients_may_be_deeper_than_the_stack():
    found = under_deep_stack(lambda: in_function(gradient(custom), DEEP))
    np.testing.assert_allclose(found, chained(DEEP)[1], rtol=1e-4, atol=1e-5)


# --- growth --------------------------------------------------------------------------------------


def states(xs, count):
    def step(states, x):
        return [state * 0.5 + x for state in states], states[0]

    last, _ = tf_ti.scan(step, [START] * count, xs)
    return tf.add_n(last)


def moved_states(xs, count):
    last, _ = tf_ti.scan(lambda states, x: ([x, *states[:-1]], x), [START] * count, xs)
    return tf.add_n(last)


def outputs(xs, count):
    def step(state, x):
        return state + x, [state * float(k) + x for k in range(count)]

    return tf.add_n(tf_ti.scan(step, START, xs)[1])


def slices(xs, count):
    return tf_ti.scan(lambda state, xs: (state + tf.add_n(xs), state), START, [xs] * count)[1]


def captures(xs, count):
    rows = [xs[0] * k for k in range(count)]
    return tf_ti.scan(lambda state, x: (state + tf.add_n([x, *rows]), state), START, xs)[1]


def after(xs, length):
    return tf_ti.scan(lambda state, x: (state + x, chain(state, x, length)), START, xs)[1]


def before(xs, length):
    return tf_ti.scan(lambda state, x: (state + chain(x, 1.0, length), state), START, xs)[1]


def sums(xs, length):
    """Groups of operations before the loop that become one, one after the other."""

    def step(state, x):
        total = x
        for k in range(length // 2):
            total += tf.sin(x * float(k))
        return state + total, state

    return tf_ti.scan(step, START, xs)[1]


def products(xs, count):
    matrices = tf.reshape(tf.range(2.0 * WIDTH * WIDTH), [2 * WIDTH, WIDTH]) / 100

    def step(state, x):
        made = [tf.concat([x, state], 1) @ (matrices + k) for k in range(count // 4)]
        return tf.tanh(tf.add_n(made)), made

    return tf.add_n(tf_ti.scan(step, START, xs)[1])


def loops(xs, count):
    for _ in range(count // 10):
        xs = tf_ti.scan(lambda state, x: (state * 0.5 + x, tf.tanh(state + x)), START, xs)[1]
    return xs


def inner_loops(xs, count):
    def step(state, x):
        for _ in range(count // 10):
            state = tf_ti.scan(lambda c, _: (tf.tanh(c) + x, None), state, length=2)[0]
        return state, state

    return tf_ti.scan(step, START, xs)[1]


def conditionals(xs, count):
    def step(state, x):
        for k in range(count // 10):
            state = tf.cond(state[0, 0] > k, lambda s=state: s * 0.5 + x, lambda s=state: s + 1)
        return state, state

    return tf_ti.scan(step, START, xs)[1]


def calls(xs, count):
    inner = tf.function(lambda state, x: tf.tanh(state * 0.5 + x))

    def step(state, x):
        for _ in range(count // 3):
            state = inner(state, x)
        return state, state

    return tf_ti.scan(step, START, xs)[1]


def tracing(function):
    """Traces a function of some tensors and a size, of any tensors."""

    def trace(size):
        tf.function(lambda xs: function(xs, size)).get_concrete_function(tf.TensorSpec(XS.shape))

    return trace


@pytest.mark.parametrize(
    "function",
    [
        scan,
        gradient(scan),
        gradient(states),
        gradient(outputs),
        moved_states,
        slices,
        captures,
        after,
        before,
        sums,
        products,
        loops,
        inner_loops,
        conditionals,
        calls,
        gradient(custom),
        vectorized,
    ],
    ids=lambda function: function.__name__,
)
def test_a_trace_grows_as_the_graph_does(function, monkeypatch):
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    assert growing_faster(tracing(function), 12, 48) == {}


@pytest.mark.parametrize(
    "function", [scan, after, conditionals, calls], ids=lambda function: function.__name__
)
def test_a_trace_for_programs_grows_as_the_graph_does(function):
    assert growing_faster(tracing(function), 12, 48) == {}


def test_a_trace_does_the_same_for_any_length():
    def work(steps):
        def trace():
            specs = tf.TensorSpec([steps, ROWS, WIDTH])
            tf.function(lambda xs: gradient(scan)(xs, 6)).get_concrete_function(specs)

        trace()
        return sum(count(trace).values())

    assert work(10_000) < 1.05 * work(10)


@pytest.mark.parametrize("steps", [1, 100, 10_000])
def test_loops_of_any_length(steps):
    xs = np.arange(float(steps))

    @tf.function
    def run(xs):
        with tf.GradientTape() as tape:
            tape.watch(xs)
            sums = tf_ti.scan(lambda s, x: (s + x, s + x), 0.0 * xs[0], xs)[1]
        return sums, tape.gradient(sums, xs)

    sums, grads = run(xs)
    np.testing.assert_allclose(sums, np.cumsum(xs))
    np.testing.assert_allclose(grads, steps - xs)


@pytest.mark.parametrize("rows", [1, 100, 10_000])
def test_loops_of_any_number_of_rows(rows):
    xs = np.arange(3.0 * rows).reshape(3, rows, 1)
    found = tf_ti.scan(lambda s, x: (s + x, s + x), tf.zeros([rows, 1], tf.float64), xs)[1]
    np.testing.assert_allclose(found, np.cumsum(xs, 0))


@pytest.mark.parametrize("depth", [1, 4, 12])
def test_nests_of_any_depth(depth):
    """Loops in one another, and conditionals in one another."""

    def loops(state, level):
        if not level:
            return state * 0.5 + 1.0
        return tf_ti.scan(lambda s, _: (loops(s, level - 1), None), state, length=1)[0]

    def choices(state, level):
        if not level:
            return state * 0.5 + 1.0
        taken = lambda: choices(state, level - 1)  # noqa: E731
        return tf.cond(state > -level, taken, lambda: state - 1.0)

    @tf.function
    def run(start):
        with tf.GradientTape() as tape:
            tape.watch(start)
            inner = loops(start, depth)
            ends = tf_ti.scan(lambda s, _: (choices(s, depth), None), start, length=2)[0]
        return inner, ends, tape.gradient([inner, ends], start)

    np.testing.assert_allclose(run(tf.constant(2.0)), [2.0, 2.0, 0.5 + 0.25])


def test_memory_grows_as_the_length(run_program):
    run_program(
        """
        import resource
        import tensorflow as tf
        import tf_ti

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        @tf.function(input_signature=[tf.TensorSpec([None, 256])])
        def run(xs):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                ys = tf_ti.scan(lambda s, x: (tf.tanh(s + x),) * 2, tf.zeros([256]), xs)[1]
            return tf.reduce_sum(tape.gradient(ys, xs))

        run(tf.zeros([10, 256]))
        peaks = [peak()]
        for steps in (10_000, 40_000):
            run(tf.zeros([steps, 256]))
            peaks.append(peak())
        few, many = (each - peaks[0] for each in peaks[1:])
        assert few < 10 * 10_000, peaks  # in kB: ten arrays of all steps
        assert many < 8 * max(few, 10_000), peaks  # of four times the steps
        """
    )


@pytest.mark.parametrize(
    "kind",
    [
        "body",
        "while loop",
        "scan",
        "two scans",
        "nested",
        "TensorFlow's loop",
        "TensorFlow's loop in a branch",
        "scan in a branch",
    ],
)
def test_an_array_is_not_copied_for_each_iteration_that_writes_it(run_program, kind):
    run_program(
        """
        import resource
        import sys
        import numpy as np
        import tensorflow as tf
        import tf_ti

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        def twice(a, k, h):
            return tf_ti.scan(lambda a, _: (a.write(k, h + a.read(k - 1)), None), a, length=2)[0]

        def by_loop(a, k, y):
            return tf.while_loop(lambda j, _: j < 2, lambda j, a: (j + 1, a.write(k, y)), (0, a))[1]

        def by_scan(a, k, y):
            return tf_ti.scan(lambda a, _: (a.write(k, y), None), a, length=2)[0]

        def in_branch(write, a, k, h):
            y = h + a.read(k - 1)
            return tf.cond(k > 0, lambda: write(a, k, y), lambda: a)

        WRITES = {
            "body": lambda a, k, h: a.write(k, h + a.read(k - 1)),
            "while loop": lambda a, k, h: tf_ti.while_loop(
                lambda j, a: j < 2, lambda j, a: (j + 1, a.write(k, h + a.read(k - 1))), (0, a)
            )[1],
            "scan": twice,
            "two scans": lambda a, k, h: twice(twice(a, k, h * 2.0), k, h),
            "nested": lambda a, k, h: tf_ti.scan(
                lambda a, _: (twice(a, k, h), None), a, length=2
            )[0],
            "TensorFlow's loop": lambda a, k, h: by_loop(a, k, h + a.read(k - 1)),
            "TensorFlow's loop in a branch": lambda a, k, h: in_branch(by_loop, a, k, h),
            "scan in a branch": lambda a, k, h: in_branch(by_scan, a, k, h),
        }

        def slope(w, steps, while_loop, write):
            array = tf.TensorArray(tf.float32, steps + 1, element_shape=[8], clear_after_read=False)
            array = array.write(0, tf.ones([8]))

            def step(k, h, a):
                h = h * w
                return k + 1, h, write(a, k, h)

            with tf.GradientTape() as tape:
                tape.watch(w)
                array = while_loop(lambda k, *_: k <= steps, step, (1, tf.ones([8]), array))[2]
                loss = tf.reduce_sum(array.stack()[-1])
            return loss, tape.gradient(loss, w)

        w, write = tf.constant(0.9), WRITES[sys.argv[1]]
        found = tf.function(lambda w: slope(w, 10, tf_ti.while_loop, write))(w)
        expected = tf.function(lambda w: slope(w, 10, tf.while_loop, WRITES["body"]))(w)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        before = peak()
        tf.function(lambda w: slope(w, 4000, tf_ti.while_loop, write))(w)
        grown = peak() - before
        assert grown < 128_000, grown  # in kB; all versions of the array take 512,000
        """,
        kind,
    )
