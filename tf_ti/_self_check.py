"""The self-check of `python -m tf_ti`: the installation must compute known results."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

import tf_ti
from tf_ti import _library


def run() -> Iterator[tuple[str, bool, str]]:
    """Yields (name, whether it holds, what was seen) for each check."""
    for name, check in (
        ("tensor_iterator agrees with NumPy", _tensor_iterator),
        ("scan agrees with tf.while_loop's gradient", _scan_gradient),
        ("a while loop and its gradient agree with tf.while_loop's", _while_loop),
        ("a wrong range is an error", _wrong_range),
        ("embedding_bag agrees with tf.nn", _embedding_bag),
        ("a variable's rows get their gradient", _bag_gradient),
        ("a wrong id is an error, or reads as zeros on a GPU", _wrong_id),
        ("XLA agrees with the plain kernels", _compiled),
    ):
        if check is _compiled and _library.XLA_PROBLEM is not None:
            continue
        try:
            ok, detail = check()
        except Exception as error:  # whatever goes wrong here is the report's content
            ok, detail = False, f"{type(error).__name__}: {error}"
        yield name, ok, detail


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps off the screen what TensorFlow says of an error, which here is what should be."""
    sys.stderr.flush()
    screen = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)


def _find_error(call: Callable[[], Any]) -> tuple[bool, str]:
    """True if the call raises an InvalidArgumentError, and its message."""
    try:
        with _quiet():
            call()
    except tf.errors.InvalidArgumentError as error:
        # Without what TensorFlow puts around it.
        line = re.sub(r"(?s)\s*(\[\[|\[Op:).*", "", error.message).splitlines()[-1]
        return True, re.sub(r"^{{.*?}} ", "", line)
    return False, "no error was raised"


def _tensor_iterator() -> tuple[bool, str]:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    port_map = tf_ti.PortMap(
        inputs=[
            tf_ti.InputPort(0, 0, axis=1, start=-1, end=0, stride=-1),
            tf_ti.InputPort(1, 1),
        ],
        outputs=[tf_ti.OutputPort(0, 0, axis=1, start=-1, end=0, stride=-1)],
    )
    (got,) = tf_ti.tensor_iterator(
        lambda piece, total: piece + total,
        [x, np.zeros([3, 1], np.float32)],
        port_map,
        [tf_ti.BackEdge(0, 1)],
    )
    error = float(np.max(np.abs(got.numpy() - np.cumsum(x[:, ::-1], 1)[:, ::-1])))
    return error == 0.0, f"largest error {error:.1e}"


def _scan_gradient() -> tuple[bool, str]:
    xs = tf.linspace(0.1, 1.0, 8)

    def scanned(w: tf.Tensor) -> tf.Tensor:
        return tf_ti.scan(lambda c, x: (tf.tanh(w * c + x), None), 0.5, xs)[0]

    def looped(w: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(
            lambda i, c: i < 8, lambda i, c: (i + 1, tf.tanh(w * c + xs[i])), [0, 0.5]
        )[1]

    gradients = []
    for function in (scanned, looped):
        w = tf.constant(0.7)
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = function(w)
        gradients.append(float(tape.gradient(value, w)))
    error = abs(gradients[0] - gradients[1])
    return error < 1e-6, f"difference {error:.1e}"


def _while_loop() -> tuple[bool, str]:
    def looped(x: tf.Tensor) -> tf.Tensor:
        with tf_ti.Loop() as loop:
            value = loop.add_recurrence(x)
            loop.add_trip_limit(value < 50.0, tf_ti.TripLimit.WHILE)
            value.next = value * value + x
            last = loop.add_loop_output(value, tf_ti.LoopOutput.LAST_VALUE)
        return last.tensor

    def expected(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda v: v < 50.0, lambda v: [v * v + x], [x])[0]

    found = []
    for function in (looped, expected):
        x = tf.constant(1.25)
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        found.append([float(value), float(tape.gradient(value, x))])
    ours, theirs = np.array(found)
    error = float(np.max(np.abs((ours - theirs) / theirs)))
    return error < 1e-6, f"largest relative error {error:.1e}"


def _wrong_range() -> tuple[bool, str]:
    port_map = tf_ti.PortMap([tf_ti.InputPort(0, 0, axis=0, start=5)], [tf_ti.OutputPort(0, 0)])

    def call(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return tf_ti.tensor_iterator(lambda piece: piece, [x], port_map)

    # Of a vector of any length only the kernel can tell.
    traced = tf.function(call, input_signature=[tf.TensorSpec([None])])
    return _find_error(lambda: traced(tf.zeros([3])))


def _embedding_bag() -> tuple[bool, str]:
    table = tf.random.stateless_normal([100, 17], [1, 2])
    ids = tf.sparse.from_dense(tf.random.stateless_uniform([20, 9], [3, 4], 1, 100, tf.int64))
    expected = tf.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")
    error = float(
        tf.reduce_max(tf.abs(tf_ti.embedding_bag(table, ids, combiner="mean") - expected))
    )
    return error < 1e-6, f"largest error {error:.1e}"


def _bag_gradient() -> tuple[bool, str]:
    table = tf.Variable(tf.ones([5, 2]))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(
            tf_ti.embedding_bag_offsets_sum(table, [3, 1, 3], [0, 2], None, [1.0, 2.0, 3.0])
        )
    gradient = tape.gradient(total, table)
    rows, values = gradient.indices.numpy().tolist(), gradient.values[:, 0].numpy().tolist()
    return (rows, values) == ([1, 3], [2.0, 4.0]), f"rows {rows}, values {values}"


def _wrong_id() -> tuple[bool, str]:
    found: list[tf.Tensor] = []
    is_error, detail = _find_error(
        lambda: found.append(tf_ti.embedding_bag_packed(tf.ones([5, 2]), [[1, 5]]))
    )
    checks_ids = os.environ.get("TF_TI_CHECK_IDS") == "1"
    if is_error or checks_ids or tf.DeviceSpec.from_string(found[0].device).device_type != "GPU":
        return is_error, detail
    return bool(
        tf.reduce_all(found[0] == 1.0)
    ), "on a GPU, without TF_TI_CHECK_IDS=1, it reads as zeros"


def _compiled() -> tuple[bool, str]:
    xs, table = tf.linspace(0.1, 1.0, 8), tf.random.stateless_normal([9, 3], [1, 2])

    def call(xs: tf.Tensor, table: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(table)
            bags = tf_ti.embedding_bag_packed(table, [[1, 8], [2, 2]])
            last, _ = tf_ti.scan(lambda c, x: (tf.tanh(c * x) + bags, None), bags, xs)
        return last, tf.convert_to_tensor(tape.gradient(last, table))

    plain, compiled = call(xs, table), tf.function(call, jit_compile=True)(xs, table)
    error = max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(plain, compiled))
    return error < 1e-5, f"largest difference {error:.1e}"
