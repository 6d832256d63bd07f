"""States that only count become slices, and nobody sees a difference."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, LoopOutput, OutputPort, PortMap, TripLimit, _library

N = 3
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def moved(function, *specs):
    """The labels of the counters that left a loop of a function."""
    (loop,) = tf_ti.explain(tf.function(function), *specs)
    return [m.operation.type for m in loop.moved if m.operation.type in ("AddV2", "Sub")]


def defined(first, by, xs, reverse, dtype):
    """The definition in NumPy: a sum of rows times their counters, and all counters."""
    count = np.array(first, dtype)
    total, counts = np.zeros(N, np.float32), []
    for x in xs[::-1] if reverse else xs:
        counts.append(count)
        total = total + x * np.float32(count)
        with np.errstate(over="ignore"):
            count = (count + np.array(by).astype(dtype)).astype(dtype)
    counts = np.array(counts[::-1] if reverse else counts, dtype)
    return count, total, counts


@pytest.mark.parametrize("steps", [0, 1, 6])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.pairwise
def test_a_scan_with_a_counter(dtype, reverse, is_known, steps):
    seed = steps + 10 * reverse
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    limits = np.iinfo(dtype)
    first, by = int(limits.max) - 2, int(rng.integers(1, 100))
    xs = values(steps, N, seed=seed)

    def f(state, x):
        count, total = state
        return (count + tf.constant(by, dtype), total + x * tf.cast(count, tf.float32)), count

    def call(xs):
        initial = tf.constant(first, dtype), tf.zeros([N])
        (count, total), counts = tf_ti.scan(f, initial, xs, reverse=reverse)
        return count, total, counts

    spec = tf.TensorSpec([steps if is_known else None, N])
    function = tf.function(call, input_signature=[spec])
    if is_known or steps:  # of nothing all may leave
        assert "AddV2" in moved(call, spec)
    for found, expected in zip(function(xs), defined(first, by, xs, reverse, dtype), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_counters_of_all_kinds_leave():
    xs = values(5, N)
    for update in (lambda k: k + 1, lambda k: 1 + k, lambda k: k - 1, lambda k: k - (-2)):

        def call(xs, update=update):
            def f(s, x):
                return (update(s[0]), s[1] + x * tf.cast(s[0], tf.float32)), update(s[0])

            return tf_ti.scan(f, (7, tf.zeros([N])), xs)

        assert moved(call, tf.TensorSpec([None, N]))
        found = tf.function(call)(xs)
        tf.config.run_functions_eagerly(True)
        try:
            expected = call(xs)
        finally:
            tf.config.run_functions_eagerly(False)
        for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize(
    "update, initial",
    [
        (lambda k: 3 - k, 0),  # goes to and fro
        (lambda k: k * 2, 1),
        (lambda k: k + k, 1),
        (lambda k: k + 0.5, 0.0),  # rounds
        (lambda k: k + 1, np.zeros(2, np.int32)),  # no scalar
        (lambda k: k + tf.random.uniform([], 0, 2, tf.int32), 0),
    ],
)
def test_what_is_no_counter_stays(update, initial):
    def call(xs):
        return tf_ti.scan(lambda k, x: (update(k), x), initial, xs)

    (loop,) = tf_ti.explain(call, tf.TensorSpec([5, N]))
    assert loop.recorded is not None and not loop.moved


def test_a_count_that_is_not_known_keeps_the_counter():
    def call(steps):
        return tf_ti.scan(lambda k, _: (k + 1, k), 0, length=steps)

    assert not moved(call, tf.TensorSpec([], tf.int32))
    last, counts = tf.function(call)(tf.constant(4))
    assert (last.numpy(), counts.numpy().tolist()) == (4, [0, 1, 2, 3])


def test_a_loop_without_long_tensors_keeps_its_counter():
    def call():
        return tf_ti.scan(lambda k, _: (k + 1, None), 0, length=2**60)

    assert not moved(call)


def test_a_limit_far_beyond_an_iterator_is_named():
    @tf.function
    def call(xs):
        with tf_ti.Loop() as loop:
            x, k = loop.add_iterator(xs), loop.add_recurrence(0)
            loop.add_trip_limit(2**40, TripLimit.COUNT)
            k.next = k + 1
            last = loop.add_loop_output(k, LoopOutput.LAST_VALUE)
            total = loop.add_recurrence(0.0)
            total.next = total + x * tf.cast(k, tf.float32)
            sums = loop.add_loop_output(total, LoopOutput.LAST_VALUE)
        return last.tensor, sums.tensor

    with pytest.raises(tf.errors.InvalidArgumentError, match="iterator 0"):
        call(tf.ones([3]))


def test_a_while_loop_keeps_its_counter():
    def call():
        return tf_ti.while_loop(lambda k: k < 7, lambda k: [k + 2], [0])

    assert not moved(call)
    assert tf.function(call)()[0].numpy() == 8


@pytest.mark.parametrize("steps", [0, 4])
def test_a_loop_whose_recurrence_counts(steps):
    @tf.function
    def call(xs):
        with tf_ti.Loop() as loop:
            x, k = loop.add_iterator(xs), loop.add_recurrence(10)
            loop.add_trip_limit(steps, TripLimit.COUNT)
            k.next = k + 5
            outputs = [
                loop.add_loop_output(k, LoopOutput.LAST_VALUE),
                loop.add_loop_output(k, LoopOutput.CONCATENATE),
                loop.add_loop_output(k.value + 5, LoopOutput.REVERSE),
                loop.add_loop_output(x * tf.cast(k, tf.float32), LoopOutput.CONCATENATE),
            ]
        return [output.tensor for output in outputs]

    xs = values(6, N)
    last, all_, reverse, products = call(xs)
    counts = 10 + 5 * np.arange(steps)
    assert last.numpy() == 10 + 5 * steps
    assert all_.numpy().tolist() == counts.tolist()
    assert reverse.numpy().tolist() == (counts + 5)[::-1].tolist()
    np.testing.assert_allclose(products, xs[:steps] * counts[:, None].astype(np.float32))


def test_a_tensor_iterator_whose_state_counts():
    ports = PortMap(
        [InputPort(0, 0), InputPort(1, 1, axis=1, start=-1, end=0, stride=-2, part_size=2)],
        [OutputPort(0, 0), OutputPort(1, 1, axis=0)],
    )

    def call(count, xs):
        def body(k, x):
            return k + 1, x[:, :1] * tf.cast(k, tf.float32)

        return tf_ti.tensor_iterator(body, [count, xs], ports, [BackEdge(0, 0)])

    xs = values(2, 6)
    last, products = tf.function(call)(tf.constant(1), xs)
    assert last.numpy() == 4
    expected = [xs[:, start : start + 1] * k for k, start in ((1, 4), (2, 2), (3, 0))]
    np.testing.assert_allclose(products, np.concatenate(expected))


def test_gradients_pass_a_counter():
    xs = tf.constant(values(5, N))

    def call(xs, scale):
        def f(s, x):
            k, h = s
            return (k + 1, tf.tanh(h + x * tf.cast(k, tf.float32) * scale)), h

        return tf_ti.scan(f, (0, tf.zeros([N])), xs)

    def loss(scale, fuse):
        if not fuse:
            tf.config.run_functions_eagerly(True)
        try:
            with tf.GradientTape() as tape:
                tape.watch([xs, scale])
                (_, h), hs = tf.function(call)(xs, scale)
                total = tf.reduce_sum(h) + tf.reduce_sum(tf.square(hs))
            return tape.gradient(total, [xs, scale])
        finally:
            tf.config.run_functions_eagerly(False)

    scale = tf.constant(0.3)
    assert moved(call, tf.TensorSpec([None, N]), tf.TensorSpec([]))
    for found, expected in zip(loss(scale, True), loss(scale, False), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(_library.XLA_PROBLEM is not None, reason=str(_library.XLA_PROBLEM))
def test_a_counter_under_xla():
    def call(xs):
        def f(s, x):
            return (s[0] + 3, s[1] + x * tf.cast(s[0], tf.float32)), s[0]

        return tf_ti.scan(f, (1, tf.zeros([N])), xs)

    xs = values(4, N)
    found = tf.nest.flatten(tf.function(call, jit_compile=True)(xs))
    for a, b in zip(found, defined(1, 3, xs, False, np.int32), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.programs(True, False)
def test_slices_that_do_not_agree_are_named_as_without_a_counter():
    def call(xs, zs):
        def f(k, x):
            return k + 1, x[0] + x[1] + tf.cast(k, tf.float32)

        return tf_ti.scan(f, 0, (xs, zs))

    unknown = [tf.TensorSpec([None, N]), tf.TensorSpec([None, N])]
    function = tf.function(call, input_signature=unknown)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"xs\[\d\]") as error:
        function(values(5, N), values(4, N))
    assert not re.search(r"\binit\b", str(error.value))


@pytest.mark.parametrize(
    "gives, read",
    [("nothing", "the count")]
    + [
        (gives, read) for gives in ("the counter", "rows") for read in ("the count", "rows", "both")
    ],
)
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_slices_that_do_not_agree_are_named_whatever_is_read(jit, state, gives, read):
    if jit and _library.XLA_PROBLEM is not None:
        pytest.skip(str(_library.XLA_PROBLEM))

    def f(carry, x):
        k, *others = carry
        others = [tf.sin(h) + x[0] for h in others]
        return (k + 1, *others), {"nothing": None, "the counter": k, "rows": tf.sin(x[0])}[gives]

    def call(xs, zs):
        (count, *_), rows = tf_ti.scan(f, (0, tf.zeros([N])) if state else (0,), (xs, zs))
        return {"the count": count, "rows": rows, "both": (count, rows)}[read]

    unknown = [tf.TensorSpec([None, N]), tf.TensorSpec([None, N])]
    function = tf.function(call, input_signature=unknown, jit_compile=jit)
    message = r"xs\[0\] gives 5 iterations, but xs\[1\] gives 4"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        function(values(5, N), values(4, N))


def test_a_limit_is_compared_where_a_count_alone_is_read(tmp_path):
    model = tf.Module()
    model.f = tf.function(
        lambda xs: tf_ti.scan(lambda k, x: (k + 1, tf.sin(x)), 0, xs, length=3)[0] * 2,
        input_signature=[tf.TensorSpec([None, N])],
        autograph=False,
    )
    tf.saved_model.save(model, str(tmp_path))
    for f in (model.f, tf.saved_model.load(str(tmp_path)).f):
        assert f(values(3, N)).numpy() == 6
        with pytest.raises(tf.errors.InvalidArgumentError, match="length gives 3 iterations"):
            f(values(5, N))


def test_a_port_map_that_disagrees_is_named_where_a_count_alone_is_read():
    port_map = PortMap(
        inputs=[InputPort(0, 0, axis=0), InputPort(1, 1, axis=0), InputPort(2, 2)],
        outputs=[OutputPort(0, 0, axis=0), OutputPort(1, 1)],
    )

    def call(xs, zs):
        def body(x, _, k):
            return tf.sin(x), k + 1

        given = [xs, zs, tf.constant(0)]
        return tf_ti.tensor_iterator(body, given, port_map, [BackEdge(1, 2)])[1]

    unknown = [tf.TensorSpec([None, N]), tf.TensorSpec([None, N])]
    function = tf.function(call, input_signature=unknown)
    with pytest.raises(tf.errors.InvalidArgumentError, match="5 iterations, but input port 1"):
        function(values(5, N), values(4, N))


def test_a_limit_that_slices_disagree_with_is_named_and_no_counter():
    def call(xs):
        return tf_ti.scan(lambda k, x: (k + 1, x * tf.cast(k, tf.float32)), 0, xs, length=3)

    function = tf.function(call, input_signature=[tf.TensorSpec([None, N])])
    with pytest.raises(tf.errors.InvalidArgumentError, match="length gives 3 iterations"):
        function(values(5, N))


@pytest.mark.needs_checked_ids
def test_a_body_may_look_up_its_counter():
    table = tf.constant(values(8, N))

    def call(xs):
        def f(s, x):
            k, h = s
            return (k + 1, tf.sin(h) + x + tf.gather(table, k)), k

        return tf_ti.scan(f, (0, tf.zeros([N])), xs)

    xs = values(6, N)
    (_, h), _ = tf.function(call)(xs)
    expected = np.zeros(N, np.float32)
    for k, x in enumerate(xs):
        expected = np.sin(expected) + x + table.numpy()[k]
    np.testing.assert_allclose(h, expected, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.function(call)(values(9, N))


UNKNOWN, KNOWN = tf.TensorSpec([None, N]), tf.TensorSpec([4, N])
LIMITS = {
    "an ellipsis": lambda xs: tf.shape(xs)[..., 1],
    "another axis": lambda xs: tf.shape(xs)[-1],
    "int8": lambda xs: tf.cast(tf.cast(tf.shape(xs)[0], tf.int8), tf.int32),
    "uint8": lambda xs: tf.cast(tf.cast(tf.shape(xs)[0], tf.uint8), tf.int64),
    "bool": lambda xs: tf.cast(tf.cast(tf.shape(xs)[0], tf.bool), tf.int32),
    "float16": lambda xs: tf.cast(tf.cast(tf.shape(xs)[0], tf.float16), tf.int64),
}


@pytest.mark.parametrize("read", ["a count", "rows", "a state"])
@pytest.mark.parametrize("kind", LIMITS)
def test_a_limit_that_is_computed_of_an_extent_is_compared_with_it(kind, read):
    def f(carry, x):
        k, h = carry
        return (k + 1, tf.sin(h) + x), tf.cos(x)

    def call(xs):
        length = LIMITS[kind](xs)
        (k, h), ys = tf_ti.scan(f, (0, tf.zeros([N])), xs, length=length)
        return {"a count": k, "rows": ys, "a state": h}[read]

    rows = 2049 if kind == "float16" else 300 if kind in ("int8", "uint8") else 5
    function = tf.function(call, input_signature=[UNKNOWN])
    with pytest.raises(tf.errors.InvalidArgumentError, match="length gives .* iterations, but"):
        function(values(rows, N))


@pytest.mark.parametrize("specs", [(UNKNOWN, KNOWN), (KNOWN, UNKNOWN), (UNKNOWN, UNKNOWN)])
@pytest.mark.parametrize("gives", ["a state", "a gradient", "both gradients", "a cell"])
@pytest.mark.parametrize("jit", [False, True])
def test_an_input_that_only_tells_the_number_is_compared(jit, gives, specs):
    if jit and _library.XLA_PROBLEM is not None:
        pytest.skip(str(_library.XLA_PROBLEM))
    w = tf.constant(values(N, N, seed=2))

    def f(h, x):
        product = tf.linalg.matvec(w, x[0])
        if gives == "a cell":
            h = tf.tanh(product + tf.linalg.matvec(w, h)) + 0.0 * tf.reduce_sum(product)
        else:
            h = h * 0.5 + product
        return h, tf.sin(x[1])

    def call(xs, zs):
        with tf.GradientTape() as tape:
            tape.watch([xs, zs])
            h, ys = tf_ti.scan(f, tf.zeros([N]), (xs, zs))
            loss = tf.reduce_sum(h)
            loss += tf.reduce_sum(ys) if gives == "both gradients" else 0.0
        if gives in ("a state", "a cell"):
            return h
        return tape.gradient(loss, [xs, zs] if gives == "both gradients" else xs)

    function = tf.function(call, input_signature=specs, jit_compile=jit)
    for xs, zs in ((5, 4), (4, 5), (2, 4), (4, 3)):
        fit = all(spec.shape[0] in (None, rows) for spec, rows in zip(specs, (xs, zs)))
        if fit:
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"{xs} iterations, but"):
                function(values(xs, N), values(zs, N))
    tf.nest.map_structure(lambda t: t.numpy(), function(values(4, N), values(4, N)))


@pytest.mark.parametrize("limit", [4, None])
@pytest.mark.parametrize("fuse", [False, True])
def test_a_gradient_that_reads_nothing_of_its_loop_compares_a_limit(fuse, limit):
    def call(xs, length):
        length = length if limit is None else limit
        with tf.GradientTape() as tape:
            tape.watch(xs)
            h, _ = tf_ti.scan(
                lambda h, x: (h * 0.5 + x, None), tf.zeros([N]), xs, length=length, fuse=fuse
            )
        return tape.gradient(h, xs)

    function = tf.function(call, input_signature=[UNKNOWN, tf.TensorSpec([], tf.int32)])
    assert function(values(4, N), 4).shape == [4, N]
    with pytest.raises(tf.errors.InvalidArgumentError, match="iterations, but"):
        function(values(5, N), 4)


@pytest.mark.parametrize("by", [2**63, 2**63 + 1, 2**64 - 1])
def test_a_uint64_counter_adds_and_subtracts_any_number(by):
    xs = values(5, N)

    def call(xs):
        def f(k, x):
            return (k[0] + tf.constant(by, tf.uint64), k[1] - tf.constant(by, tf.uint64)), (*k, x)

        return tf_ti.scan(f, (tf.constant(7, tf.uint64),) * 2, xs)

    up = [np.uint64((7 + by * k) % 2**64) for k in range(6)]
    down = [np.uint64((7 - by * k) % 2**64) for k in range(6)]
    (last_up, last_down), (ups, downs, _) = tf.function(call)(xs)
    assert (last_up.numpy(), last_down.numpy()) == (up[-1], down[-1])
    assert (ups.numpy().tolist(), downs.numpy().tolist()) == (up[:-1], down[:-1])
