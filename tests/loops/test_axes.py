"""Operations of random axes, ranks and extents in bodies, beside TensorFlow's one by one.

A body has many, of a slice and of a state: they run for all iterations at once, before the loop and
after it, or in it, by programs or by kernels.
"""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

# Operations leave loops that programs would run there.
pytestmark = pytest.mark.programs(False)


def constant(rng, shape, dtype=tf.float32):
    return tf.constant(rng.normal(size=shape), dtype)


def an_axis(rng, rank):
    return int(rng.integers(-rank, rank))


def some_axes(rng, rank):
    """Several axes, of which none is twice, or none."""
    axes = rng.permutation(rank)[: rng.integers(rank + 1)]
    return [int(a) - rank * int(rng.random() < 0.5) for a in axes]


def squeeze(rng, shape):
    ones = [k for k, d in enumerate(shape) if d == 1]
    axes = [k - len(shape) * int(rng.random() < 0.5) for k in ones if rng.random() < 0.7]
    axes = None if rng.random() < 0.4 else axes
    return f"squeeze {axes}", lambda x: tf.squeeze(x, axes) * 2.0


def transpose(rng, shape):
    order = rng.permutation(len(shape)) - len(shape) * (rng.random(len(shape)) < 0.4)
    dtype = rng.choice([np.int32, np.int64])
    return f"transpose {order}", lambda x: tf.transpose(x, order.astype(dtype)) * 2.0


def expand(rng, shape):
    axis = an_axis(rng, len(shape) + 1)
    return f"expand {axis}", lambda x: tf.expand_dims(x, axis) * 2.0


def reshape(rng, shape):
    """Of some extents the product, of others factors, one of them unknown."""
    dims = list(shape)
    if len(dims) > 1 and rng.random() < 0.7:
        k = int(rng.integers(len(dims) - 1))
        dims[k : k + 2] = [dims[k] * dims[k + 1]]
    if rng.random() < 0.6:
        dims.insert(int(rng.integers(len(dims) + 1)), 1)
    if dims and rng.random() < 0.5:
        k = int(rng.integers(len(dims)))
        if 0 not in dims[:k] + dims[k + 1 :]:
            dims[k] = -1
    return f"reshape {dims}", lambda x: tf.reshape(x * 2.0, dims)


def reduction(rng, shape):
    name = str(rng.choice(["sum", "mean", "max", "min", "prod", "any", "all"]))
    axes = [None, some_axes(rng, len(shape))][rng.integers(2)]
    if shape and rng.random() < 0.3:
        axes = an_axis(rng, len(shape))
    keep = bool(rng.random() < 0.5)
    reduce = getattr(tf, f"reduce_{name}")
    given = (lambda x: x > 0.3) if name in ("any", "all") else lambda x: x
    return f"{name} {axes} {keep}", lambda x: reduce(given(x), axes, keepdims=keep)


def arg_extreme(rng, shape):
    axis = an_axis(rng, len(shape))
    find = [tf.argmax, tf.argmin][rng.integers(2)]
    dtype = [tf.int32, tf.int64][rng.integers(2)]
    return f"{find.__name__} {axis}", lambda x: find(x, axis, dtype)


def cumulative(rng, shape):
    axis, exclusive, reverse = an_axis(rng, len(shape)), *map(bool, rng.integers(0, 2, 2))
    add = [tf.cumsum, tf.math.cumprod][rng.integers(2)]
    words = f"{add.__name__} {axis} {exclusive} {reverse}"
    return words, lambda x: add(x, axis, exclusive, reverse)


def concat(rng, shape):
    axis = an_axis(rng, len(shape))
    dims = list(shape)
    dims[axis] = int(rng.integers(3))
    other, many = constant(rng, dims), int(rng.integers(2, 5))
    return f"concat {axis}", lambda x: tf.concat([other, x, other, -x][:many], axis)


def stack(rng, shape):
    axis, other = an_axis(rng, len(shape) + 1), constant(rng, shape)
    return f"stack {axis}", lambda x: tf.stack([other, x, -x], axis)


def unstack(rng, shape):
    axis = an_axis(rng, len(shape))
    return f"unstack {axis}", lambda x: tf.unstack(x * 2.0, shape[axis], axis)


def split(rng, shape):
    axis = an_axis(rng, len(shape))
    n = shape[axis]
    first = int(rng.integers(n + 1))
    sizes = [max(n, 1), [first, n - first], [first, -1, 0]][rng.integers(3)]
    return f"split {sizes} {axis}", lambda x: tf.split(x * 2.0, sizes, axis)


def gather(rng, shape):
    axis = an_axis(rng, len(shape))
    many = rng.integers(0, 3, rng.integers(0, 3))
    at = tf.constant(rng.integers(0, shape[axis], many), tf.int32)
    return f"gather {axis} at {at.shape}", lambda x: tf.gather(x, at, axis=axis) * 2.0


def gather_by(rng, shape):
    other = constant(rng, [4, *rng.integers(0, 3, rng.integers(0, 3))])
    return f"gather of {other.shape}", lambda x: tf.gather(other, tf.cast(x > 0, tf.int32))


def gather_nd(rng, shape):
    depth = shape[-1]
    other = constant(rng, [2] * depth + [3] * int(rng.integers(0, 2)))
    words, find = f"gather_nd of {other.shape}", tf.gather_nd
    return words, lambda x: tf.stop_gradient(find(other, tf.cast(x > 0, tf.int32)))


def gather_nd_of(rng, shape):
    depth = int(rng.integers(len(shape) + 1))
    at = np.stack([rng.integers(0, d, 3) for d in shape[:depth]], -1) if depth else np.zeros([3, 0])
    at = tf.constant(at, tf.int32)
    return f"gather_nd at {depth}", lambda x: tf.gather_nd(x, at) * 2.0


def reverse(rng, shape):
    axes = some_axes(rng, len(shape))
    return f"reverse {axes}", lambda x: tf.reverse(x, tf.constant(axes, tf.int32)) * 2.0


def roll(rng, shape):
    axes = some_axes(rng, len(shape)) or [0]
    shifts = [int(s) for s in rng.integers(-4, 5, len(axes))]
    return f"roll {shifts} {axes}", lambda x: tf.roll(x, shifts, axes) * 2.0


def pad(rng, shape):
    paddings = rng.integers(0, 3, [len(shape), 2])
    mode = ["CONSTANT", "REFLECT", "SYMMETRIC"][rng.choice(3, p=[0.6, 0.2, 0.2])]
    value = [0, 1.5][rng.integers(2)]
    words = f"pad {paddings.tolist()} {mode} {value}"
    return words, lambda x: tf.pad(x, paddings, mode, value) * 2.0


def tile(rng, shape):
    multiples = rng.integers(0, 3, len(shape))
    return f"tile {multiples}", lambda x: tf.tile(x, multiples) * 2.0


def one_hot(rng, shape):
    axis, depth = int(rng.integers(-1, len(shape) + 1)), int(rng.integers(0, 4))
    words = f"one_hot {axis} {depth}"
    return words, lambda x: tf.one_hot(tf.cast(x * 3, tf.int32), depth, 2.0, -1.0, axis)


def top_k(rng, shape):
    k = int(rng.integers(0, shape[-1] + 1))
    return f"top_k {k}", lambda x: list(tf.math.top_k(x, k))


def softmax(rng, shape):
    axis = an_axis(rng, len(shape))
    find = [tf.nn.softmax, tf.nn.log_softmax][rng.integers(2)]
    return f"{find.__name__} {axis}", lambda x: find(x, axis)


def einsum(rng, shape):
    letters = "abcdefgh"[: len(shape)]
    shared = "".join(c for c in letters if rng.random() < 0.6)
    other = constant(rng, [*(shape[letters.index(c)] for c in shared), 2])
    kept = "".join(rng.permutation([c for c in letters + "x" if rng.random() < 0.6]))
    equation = f"{letters},{shared}x->{kept}"
    if rng.random() < 0.3 and shape:
        equation = f"...{letters[-1]},{letters[-1]}x->x..."
        other = constant(rng, [shape[-1], 2])
    return f"einsum {equation}", lambda x: tf.einsum(equation, x, other)


def einsum_of_two(rng, shape):
    letters = "abcdefgh"[: len(shape)]
    kept = "".join(rng.permutation([c for c in letters if rng.random() < 0.6]))
    equation = f"{letters},{letters}->{kept}"
    return f"einsum {equation}", lambda x: tf.einsum(equation, x, x)


def matmul(rng, shape):
    first, second = map(bool, rng.integers(0, 2, 2))
    m, n = shape[-2:][::-1] if first else shape[-2:]
    width = int(rng.integers(4))
    batch = shape[:-2] if rng.random() < 0.5 else ()
    batch = [d if rng.random() < 0.5 else 1 for d in batch]
    if rng.random() < 0.5:
        other = constant(rng, [*batch, *((width, n) if second else (n, width))])
        words = f"matmul by {other.shape} {first} {second}"
        return words, lambda x: tf.matmul(x, other, first, second)
    other = constant(rng, [*batch, *((m, width) if second else (width, m))])
    words = f"matmul of {other.shape} {second} {first}"
    return words, lambda x: tf.matmul(other, x, second, first)


def matmul_of_two(rng, shape):
    first = bool(rng.integers(2))
    return f"matmul {first}", lambda x: tf.matmul(x, x, transpose_a=first, transpose_b=not first)


def strided_slice(rng, shape):
    parts = []
    for d in shape[: rng.integers(len(shape) + 1)]:
        kind = rng.choice(["range", "element", "new", "rest"], p=[0.5, 0.2, 0.15, 0.15])
        if kind == "rest" and ... not in parts:
            parts.append(...)
        if kind == "new":
            parts.append(None)
        if kind == "element" and d and ... not in parts:
            parts.append(int(rng.integers(-d, d)))
        if kind == "range":
            ends = [None, *map(int, rng.integers(-5, 6, 3))]
            begin, end = (ends[k] for k in rng.integers(0, 4, 2))
            parts.append(slice(begin, end, [None, 1, 2, -1, -2][rng.integers(5)]))
    key = tuple(tf.newaxis if p is None else p for p in parts)
    return f"x[{parts}]", lambda x: x[key] * 2.0


def far_slice(rng, shape):
    return "x[: 2**40]", lambda x: x[: 2**40] * 2.0


def plain_slice(rng, shape):
    begin = [int(rng.integers(d + 1)) for d in shape]
    size = [int(rng.integers(-1, d - b + 1)) for b, d in zip(begin, shape)]
    dtype = [tf.int32, tf.int64][rng.integers(2)]
    begin, size = tf.constant(begin, dtype), tf.constant(size, dtype)
    return f"slice {begin} {size}", lambda x: tf.slice(x, begin, size) * 2.0


def broadcast_to(rng, shape):
    dims = [int(rng.integers(0, 3)) if d == 1 else d for d in shape]
    dims = [*rng.integers(1, 3, rng.integers(0, 2)), *dims]
    return f"broadcast_to {dims}", lambda x: tf.broadcast_to(x, dims) * 2.0


def broadcast(rng, shape):
    """An elementwise operation with another tensor, of more axes or fewer."""
    dims = [2 if d == 1 and rng.random() < 0.5 else d if rng.random() < 0.6 else 1 for d in shape]
    dims = dims[rng.integers(len(dims) + 1) :] if rng.random() < 0.4 else dims
    dims = [2, *dims] if len(dims) == len(shape) and rng.random() < 0.3 else dims
    other = constant(rng, dims)
    calls = {
        "add": lambda x: other + x,
        "maximum": lambda x: tf.maximum(x, other),
        "where": lambda x: tf.where(x > 0, x, other),
        "where of": lambda x: tf.where(other > 0, x, 1.5),
        "equal": lambda x: x == other,
        "less": lambda x: x < other,
        "squared difference": lambda x: tf.math.squared_difference(x, other),
    }
    name = str(rng.choice(list(calls)))
    return f"{name} with {dims}", calls[name]


def clip(rng, shape):
    return "clip", lambda x: tf.clip_by_value(x, -0.4, 0.7)


def diagonals(rng, shape):
    if 0 in shape:
        raise ValueError("TensorFlow has no gradient of it in a function")
    k = int(rng.integers(-1, 2))
    calls = {
        "diag": lambda x: tf.linalg.diag(x, k=k) * 2.0,
        "diag_part": lambda x: tf.linalg.diag_part(x, k=k) * 2.0,
        "band_part": lambda x: tf.linalg.band_part(x, k, 0) * 2.0,
    }
    name = str(rng.choice(list(calls)))
    return f"{name} {k}", calls[name]


def add_all(rng, shape):
    other = constant(rng, shape)
    return "add_n", lambda x: tf.add_n([other, x, x * 2.0])


def bias_add(rng, shape):
    other = constant(rng, shape[-1:])
    return "bias_add", lambda x: tf.nn.bias_add(x, other)


KINDS = [
    *(squeeze, transpose, expand, reshape, reduction, arg_extreme, cumulative, concat, stack),
    *(unstack, split, gather, gather_by, gather_nd, gather_nd_of, reverse, roll, pad, tile),
    *(one_hot, top_k, softmax, einsum, einsum_of_two, matmul, matmul_of_two, strided_slice),
    *(far_slice, plain_slice, broadcast_to, broadcast, clip, diagonals, add_all, bias_add),
]


def draw(rng, shape):
    """An operation of each kind that takes tensors of this shape, with words that tell it."""
    example = constant(rng, [1, *shape])
    cases = []
    for kind in KINDS:
        try:
            words, call = kind(rng, shape)
            call(example[0])
        except (IndexError, TypeError, ValueError, tf.errors.OpError):
            continue  # it takes no tensor of this rank, or of no elements
        try:
            with_slope(one_by_one, [(words, call)], example)
        except (ValueError, tf.errors.OpError):  # TensorFlow has no gradient of it
            call = stopped(call)
        cases.append((words, tf.autograph.experimental.do_not_convert(call)))
    return cases


def stopped(call):
    return lambda x: tf.nest.map_structure(tf.stop_gradient, call(x))


def one_by_one(cases, xs):
    """The results of all operations, of slices and of states, as Python runs the loop."""
    c, found = tf.zeros_like(xs[0]), []
    for x in xs:
        c = 0.5 * c + x
        found.append([tf.nest.flatten([call(x), call(c)]) for _, call in cases])
    return [[tf.stack(values) for values in zip(*steps)] for steps in zip(*found)]


def by_scan(cases, xs):
    def f(c, x):
        c = 0.5 * c + x
        return c, [tf.nest.flatten([call(x), call(c)]) for _, call in cases]

    return tf_ti.scan(f, tf.zeros_like(xs[0]), xs)[1]


def with_slope(run, cases, xs):
    """The results, and the slope of all of them."""
    with tf.GradientTape() as tape:
        tape.watch(xs)
        found = run(cases, xs)
        floats = [y for y in tf.nest.flatten(found) if y.dtype == xs.dtype]
        loss = tf.add_n([tf.reduce_sum(tf.sin(y)) for y in floats])
    return found, tape.gradient(loss, xs)


@pytest.mark.programs(True, False)
@pytest.mark.parametrize("seed", range(5), indirect=True)
def test_random_axes(rng, seed):
    shape = [int(d) for d in rng.choice(4, seed % 5 + 1, p=[0.05, 0.35, 0.3, 0.3])]
    count = int(rng.integers(1, 4))
    known = [d if rng.random() < 0.7 else None for d in (count, *shape)]
    cases, xs = draw(rng, shape), constant(rng, [count, *shape])
    print(shape, known, [words for words, _ in cases])
    function = tf.function(lambda xs: with_slope(by_scan, cases, xs), [tf.TensorSpec(known)])
    found, slope = function(xs)
    wanted, wanted_slope = with_slope(one_by_one, cases, xs)
    for (words, _), ours, theirs in zip(cases, found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), words
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=words)
    np.testing.assert_allclose(slope, wanted_slope, rtol=1e-3, atol=1e-4)


# --- axes that were wrong ------------------------------------------------------------------------


def eagerly_and_by_scan(call, xs, spec):
    """What each slice becomes, one by one, and where all iterations run at once."""
    body = tf.autograph.experimental.do_not_convert(lambda c, x: (c, call(x)))
    function = tf.function(lambda xs: tf_ti.scan(body, 0.0, xs)[1], [tf.TensorSpec(spec)])
    return tf.stack([call(x) for x in xs]), function(xs)


@pytest.mark.parametrize(
    "shape, known",
    [
        ([1, 3], [1, 3]),
        ([1, 3], [None, 3]),
        ([2, 3], [None, 3]),
        ([1, 1, 3], [None, 1, 3]),
        ([1, 2, 3], [1, 2, None]),
        ([1, 1, 3, 1], [1, 1, None, 1]),
    ],
)
def test_a_squeeze_of_all_ones_keeps_the_iterations(shape, known):
    xs = tf.reshape(tf.range(float(np.prod(shape))), shape)
    wanted, found = eagerly_and_by_scan(lambda x: 2.0 * tf.squeeze(x), xs, known)
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_a_transpose_by_negative_axes():
    xs = tf.reshape(tf.range(30.0), [5, 2, 3])
    wanted, found = eagerly_and_by_scan(lambda x: 2.0 * tf.transpose(x, [1, -2]), xs, [5, 2, 3])
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dims", [[2], [1, 2], lambda x: [2, tf.size(x) // 6]])
def test_a_reshape_to_another_number_of_elements_fails_in_each_iteration(dims):
    """All iterations' elements together would do."""

    def call(x):
        return 2.0 * tf.reshape(x, dims(x) if callable(dims) else dims)

    body = tf.autograph.experimental.do_not_convert(lambda c, x: (c, call(x)))
    function = tf.function(lambda xs: tf_ti.scan(body, 0.0, xs)[1], [tf.TensorSpec([None, None])])
    with pytest.raises(tf.errors.InvalidArgumentError):
        call(tf.zeros([3]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        function(tf.zeros([2, 3]))


@pytest.mark.parametrize("last", [1, None])
def test_a_broadcast_along_alternating_axes(last):
    """TensorFlow's kernels do not take one more."""
    other = tf.ones([2, 1, 2, 1, 2])

    def call(x):
        return [x + other, x / other, tf.cast(x < other, tf.float32), tf.broadcast_to(x, [2] * 5)]

    xs = tf.reshape(tf.range(12.0), [3, 1, 2, 1, 2, 1])
    spec = [3, 1, 2, 1, 2, last]
    wanted, found = eagerly_and_by_scan(lambda x: tf.stack(call(x)), xs, spec)
    np.testing.assert_array_equal(found, wanted)
