"""Loops of heavy kernels, with as many threads as the argument says: prints what each returns.

A line is the name of a loop, whether iterations of it were on their way at once, and the digest of
its values' bits, or its error.
"""

import hashlib
import pathlib
import re
import sys
import tempfile
import threading

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import tf_ti

THREADS = int(sys.argv[1])
tf.config.threading.set_intra_op_parallelism_threads(THREADS)
tf.config.threading.set_inter_op_parallelism_threads(THREADS)

COUNT = 9
CALLS = 4  # times are known from the third call on

X = tf.random.stateless_normal([COUNT, 48, 48], [1, 2])
INTS = tf.range(COUNT)


def heavy(x):
    """No program has it, it takes longer than a thread needs to wake up, and it is not batched."""
    numbers = tf.unique(tf.tile(tf.reshape(tf.round(x * 1e3), [-1]), [6]))[1]
    return tf.cast(numbers[-len(x) :], tf.float32) * 1e-2 + x[0]


def a_map(x):
    return tf_ti.scan(lambda c, x: (c, heavy(x)), (), x)[1]


def unaligned_pieces(x):
    """Pieces that are copies, whose memory a kernel takes where nobody reads them later."""
    pieces = tf.identity(x[:, :47, :47])

    def f(c, x):
        z = tf.linalg.set_diag(x, heavy(x))
        return c, (z, heavy(z - x))

    return tf_ti.scan(f, (), pieces)[1]


def a_reversed_map(x):
    return tf_ti.scan(lambda c, x: (c, heavy(x)), (), x, reverse=True)[1]


def pieces_of_other_extents(x):
    def f(c, x):
        x, k = x
        return c, tf.RaggedTensor.from_row_lengths(heavy(x)[: k + 3], [k, 3])

    return tf_ti.scan(f, (), (x, INTS))[1].flat_values


def a_late_state(x):
    return tf_ti.scan(lambda c, x: (c * 0.5 + heavy(x), c), tf.zeros([48]), x)


def a_chain(x):
    return tf_ti.scan(lambda c, x: (heavy(x + c) * 1e-2, c), tf.zeros([48]), x)


def two_in_a_chain(x):
    return tf_ti.scan(lambda c, x: (heavy(x + c) * heavy(x - c) * 1e-3, c), tf.zeros([48]), x)


def a_shift_register(x):
    def f(c, x):
        a, b, c = c
        return (heavy(x) + 0.1 * c, a, b), c

    return tf_ti.scan(f, (tf.zeros([48]),) * 3, x)


def states_that_are_others(x):
    """Each state becomes the state before it, which the body returns under several names."""

    def f(c, x):
        a, b, c, d = c
        passed_on = (
            tf.stop_gradient(a),
            tf.raw_ops.Snapshot(input=b),
            tf.raw_ops.PreventGradient(input=c),
        )
        return (heavy(x), *passed_on), a + 0.1 * b + 0.01 * c + 0.001 * d

    return tf_ti.scan(f, (tf.zeros([48]),) * 4, x)


def programs_whose_size_a_heavy_value_decides(x):
    def f(c, x):
        x, k = x
        ids = tf.unique(tf.cast(heavy(x) * 1e3, tf.int32))[1]
        late = tf.unique(tf.concat([tf.reshape(c, [-1]), ids[k % 3 :]], 0))[1]
        states = tf.unique(tf.reshape(tf.transpose(c), [-1]))[1]
        return tf.reshape(states[:48], [6, 8]), tf.reduce_sum(late)

    return tf_ti.scan(f, tf.reshape(tf.range(48), [6, 8]), (x, INTS))


def with_a_program_between(x):
    def f(c, x):
        y = heavy(tf.tanh(x) * 2.0)
        return tf.tanh(c + y), tf.exp(-tf.square(y)) + c

    return tf_ti.scan(f, tf.zeros([48]), x)


def while_loop_with_arrays(x):
    def body(k, total, array):
        y = heavy(x[k])
        return k + 1, total + y, array.write(k, y)

    array = tf.TensorArray(tf.float32, COUNT, element_shape=[48])
    k, total, array = tf_ti.while_loop(lambda k, *_: k < COUNT, body, (0, tf.zeros([48]), array))
    return k, total, array.stack()


def while_loop_one_by_one(x):
    k, total = tf_ti.while_loop(
        lambda k, _: k < COUNT,
        lambda k, total: (k + 1, total + heavy(x[k])),
        (0, tf.zeros([48])),
        parallel_iterations=1,
    )
    return k, total


def condition_of_the_heavy_value(x):
    return tf_ti.while_loop(
        lambda k, total: k < COUNT and tf.reduce_max(total) < 30.0,
        lambda k, total: (k + 1, total + tf.abs(heavy(x[k]))),
        (0, tf.zeros([48])),
    )


def until(x):
    def f(c, x):
        return c + tf.abs(heavy(x)), heavy(x)

    return tf_ti.scan(f, tf.zeros([48]), x, until=lambda c, _: tf.reduce_max(c) > 15.0)


def gradient(x):
    def f(c, x):
        return 0.5 * c + heavy(x) * tf.reduce_sum(x), heavy(x + c) * c

    with tf.GradientTape() as tape:
        tape.watch(x)
        last, y = tf_ti.scan(f, tf.ones([48]), x * 0.1)
        loss = tf.reduce_sum(last) + tf.reduce_sum(y)
    return tape.gradient(loss, x)


def a_state_that_is_written_to(x):
    """The operation that writes to it is not called stateful."""

    def f(c, x):
        c = tf.raw_ops.InplaceAdd(x=c, i=[0], v=heavy(x)[tf.newaxis])
        return c, (c, heavy(x * 2.0))

    return tf_ti.scan(f, tf.zeros([1, 48]) + 0.0 * x[0, :1], x)[1]


def a_heavy_branch(x):
    """Light in one iteration."""

    def f(c, x):
        x, k = x
        return c, tf.cond(k == 5, lambda: x[0], lambda: heavy(x) + heavy(x * 2.0))

    return tf_ti.scan(f, (), (x, INTS))[1]


def shapes_that_change(x):
    """Programs are made for shapes; from the fifth iteration on these are others."""

    def body(k, c, total):
        y = tf.tanh(tf.boolean_mask(heavy(x[k]), tf.range(48) < 40 + tf.minimum(k, 5)))
        return k + 1, y, total + tf.reduce_sum(y) + tf.reduce_sum(c)

    return tf_ti.while_loop(
        lambda k, *_: k < COUNT,
        body,
        (0, tf.zeros([40]), 0.0),
        shape_invariants=(None, tf.TensorShape([None]), None),
    )


def nested(x):
    def f(c, x):
        inner = tf_ti.scan(lambda d, k: (d, heavy(x + tf.cast(k, tf.float32))), (), INTS[:3])[1]
        return c + tf.reduce_sum(inner), inner

    return tf_ti.scan(f, 0.0, x)


def branches(x):
    def f(c, x):
        x, k = x
        y = tf.cond(k % 2 == 0, lambda: heavy(x), lambda: tf.sort(tf.reshape(x, [-1]))[:48])
        return c + y, y

    return tf_ti.scan(f, tf.zeros([48]), (x, INTS))


TABLE = tf.Variable(tf.random.stateless_normal([COUNT, 48, 48], [3, 4]))


def reads_of_a_variable(x):
    return tf_ti.scan(lambda c, k: (c, heavy(tf.gather(TABLE, k))), (), INTS)[1] + a_map(x)


def strings(x):
    def f(c, x):
        return c, tf.strings.reduce_join(tf.strings.as_string(x))

    return tf.strings.length(tf_ti.scan(f, (), x)[1])


def products(x):
    """Kernels that share out their work among threads."""
    big = tf.tile(x, [1, 8, 8])

    def f(c, x):
        return c, tf.reduce_sum(tf.linalg.matmul(x, x)) + heavy(x[:48, :48])

    return tf_ti.scan(f, (), big)[1]


FILTERS = tf.random.stateless_normal([3, 3, 16, 16], [5, 6])


def convolutions(x):
    images = tf.tile(tf.reshape(x, [COUNT, 4, 24, 24, 1]), [1, 1, 2, 2, 16])

    def body(k, total):
        y = tf.nn.conv2d(images[k], FILTERS, 1, "SAME")
        y = tf.nn.avg_pool2d(y, 2, 2, "SAME") + tf.nn.max_pool2d(y, 2, 2, "SAME")
        return k + 1, total + y

    def goes_on(k, _):  # all stays in a loop with such a condition
        return tf.logical_and(k < COUNT, k > -1)

    with tf.GradientTape() as tape:
        tape.watch(images)
        total = tf_ti.while_loop(goes_on, body, (0, tf.zeros([4, 24, 24, 16])))[1]
    return total, tape.gradient(total, images)


def errors_in_several(x):
    def f(c, x):
        x, k = x
        y = heavy(x)
        # Later ones fail first.
        y = tf.cond(k >= 8, lambda: y, lambda: heavy(x + y[0]))
        with tf.control_dependencies([tf.debugging.assert_less(k, 5, f"no {k.dtype.name}")]):
            return c, y + tf.cast(tf.gather(INTS, k * 2), tf.float32)

    return tf_ti.scan(f, (), (x, INTS))[1]


def eight_calls(x):
    """Of one function, from eight threads of Python."""
    found = [None] * 8
    function = tf.function(a_late_state)

    def call(i):
        for _ in range(CALLS):
            found[i] = function(x)

    threads = [threading.Thread(target=call, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


LOOPS = [value for value in list(globals().values()) if getattr(value, "__code__", None)]
LOOPS = [f for f in LOOPS if f.__code__.co_varnames[:1] == ("x",) and f is not heavy]


def text_of(function):
    try:
        found = function(X)
    except tf.errors.OpError as error:
        return f"{type(error).__name__} {re.search('in iteration [0-9]+', error.message)[0]}"
    bits = b"".join(tf.io.serialize_tensor(t).numpy() for t in tf.nest.flatten(found))
    return hashlib.sha256(bits).hexdigest()


def flights_of(function):
    """The number of times that iterations were on their way at once, in one call."""
    with tempfile.TemporaryDirectory() as logs:
        with tf.profiler.experimental.Profile(logs):
            text_of(function)
        (path,) = pathlib.Path(logs).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    names = {id: each.name for plane in space.planes for id, each in plane.event_metadata.items()}
    return sum("iterations at once" in name for name in names.values())


def main(*names):
    for loop in LOOPS:
        if names and loop.__name__ not in names:
            continue
        function = loop if loop is eight_calls else tf.function(loop, autograph=False)
        texts = {text_of(function) for _ in range(CALLS)}
        print(loop.__name__, bool(flights_of(function)), *sorted(texts), flush=True)


if __name__ == "__main__":
    main(*sys.argv[2:])
