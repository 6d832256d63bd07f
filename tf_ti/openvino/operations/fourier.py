"""Fourier transforms: complex numbers are pairs along a last axis."""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import axes_of, rank_by, rank_of


def _complex(x: tf.Tensor) -> tf.Tensor:
    return tf.complex(x[..., 0], x[..., 1])


def _pairs(z: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.math.real(z), tf.math.imag(z)], axis=-1)


Axes = Sequence[int | tf.Tensor]


def _axes_and_sizes(op: Operation, rank: int) -> tuple[Axes, Axes]:
    """The axes of a transform, and the numbers of elements it takes along them; -1 for all."""
    axes = axes_of(op, 1, rank)
    if tf.is_tensor(axes):
        count = rank_by(op, 1)
        different = tf.unique(axes)[0]
        tf.debugging.assert_equal(tf.size(different), count, "axes are not different ones")
        axes = tf.unstack(axes, count)
    elif len(set(axes)) < len(axes):
        raise op.error(f"axes={axes} are not different ones")
    if len(op.inputs) < 3:
        return axes, [-1] * len(axes)
    if rank_by(op, 2) != len(axes):
        raise op.error(f"signal_size of {rank_by(op, 2)} numbers does not fit the axes")
    known = op.known(2)
    if known is None:
        return axes, tf.unstack(tf.cast(op.inputs[2], tf.int32), len(axes))
    if min(known, default=1) < -1 or 0 in known:
        raise op.error(f"signal_size={known.tolist()} does not fit the axes")
    return axes, known.tolist()


def _resized(x: tf.Tensor, size: int | tf.Tensor) -> tf.Tensor:
    """The first elements along the last axis, with zeros after them where there are fewer."""
    if isinstance(size, int) and size in (-1, _tf.known_extent(x, -1)):
        return x
    extent = tf.shape(x)[-1]
    size = tf.where(size == -1, extent, tf.cast(size, tf.int32))
    pads = [[0, 0]] * (x.shape.rank - 1) + [[0, tf.maximum(size - extent, 0)]]
    return tf.pad(x[..., :size], pads)


def _along(
    transform: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor, axis: int | tf.Tensor
) -> tf.Tensor:
    """Transforms the last axis after moving one there."""
    rank = x.shape.rank
    if tf.is_tensor(axis):
        order = tf.concat([tf.range(axis), tf.range(axis + 1, rank), [axis]], 0)
        back = tf.math.invert_permutation(order)
    else:
        order = [i for i in range(rank) if i != axis] + [axis]
        back = [order.index(i) for i in range(rank)]
    return tf.transpose(transform(tf.transpose(x, order)), back)


def _transformed(z: tf.Tensor, axes: Axes, sizes: Axes, inverse: bool) -> tf.Tensor:
    transform = tf.signal.ifft if inverse else tf.signal.fft

    def along(z: tf.Tensor, axis: int | tf.Tensor, size: int | tf.Tensor) -> tf.Tensor:
        return _along(lambda z: transform(_resized(z, size)), z, axis)

    for axis, size in zip(axes, sizes):
        z = along(z, axis, size)
    return z


def _register(name: str, inverse: bool) -> None:
    @register(name, "opset7")
    def _(op: Operation, x: tf.Tensor, axes: tf.Tensor, size: tf.Tensor | None = None) -> tf.Tensor:
        axes, sizes = _axes_and_sizes(op, rank_of(op, x) - 1)
        return _pairs(_transformed(_complex(x), axes, sizes, inverse))


_register("DFT", inverse=False)
_register("IDFT", inverse=True)


@register("RDFT", "opset9")
def _rdft(op: Operation, x: tf.Tensor, axes: tf.Tensor, size: tf.Tensor | None = None) -> tf.Tensor:
    axes, sizes = _axes_and_sizes(op, rank_of(op, x))
    if not axes:
        raise op.error("axes are none")
    z = _along(lambda x: tf.signal.rfft(_resized(x, sizes[-1])), x, axes[-1])
    return _pairs(_transformed(z, axes[:-1], sizes[:-1], inverse=False))


@register("IRDFT", "opset9")
def _irdft(
    op: Operation, x: tf.Tensor, axes: tf.Tensor, size: tf.Tensor | None = None
) -> tf.Tensor:
    axes, sizes = _axes_and_sizes(op, rank_of(op, x) - 1)
    if not axes:
        raise op.error("axes are none")

    def to_real(z: tf.Tensor) -> tf.Tensor:
        length, whole = sizes[-1], 2 * (tf.shape(z)[-1] - 1)
        if tf.is_tensor(length):
            length = tf.where(length == -1, whole, length)
        elif length == -1:
            length = whole
        return tf.signal.irfft(_resized(z, length // 2 + 1), [length])

    z = _transformed(_complex(x), axes[:-1], sizes[:-1], inverse=True)
    return _along(to_real, z, axes[-1])


def _framing(op: Operation) -> tuple[int, int]:
    """The number of elements in a frame, and from one to the next."""
    size, step = (int(op.static(position).reshape(())) for position in (2, 3))
    if size < 1 or step < 1:
        raise op.error(f"frames of {size} every {step} elements: both must be positive")
    return size, step


def _centred(window: tf.Tensor, size: int) -> tf.Tensor:
    missing = size - tf.shape(window)[0]
    return tf.pad(window, [[missing // 2, missing - missing // 2]])


@register("STFT", "opset15")
def _stft(
    op: Operation,
    signal: tf.Tensor,
    window: tf.Tensor,
    frame_size: tf.Tensor,
    frame_step: tf.Tensor,
) -> tf.Tensor:
    size, step = _framing(op)
    frames = tf.signal.frame(signal, size, step)
    found = _pairs(tf.signal.rfft(frames * _centred(window, size)))
    if op.flag("transpose_frames", False):
        rank = found.shape.rank
        found = tf.transpose(found, [*range(rank - 3), rank - 2, rank - 3, rank - 1])
    return found


@register("ISTFT", "opset16")
def _istft(
    op: Operation,
    x: tf.Tensor,
    window: tf.Tensor,
    frame_size: tf.Tensor,
    frame_step: tf.Tensor,
    length: tf.Tensor | None = None,
) -> tf.Tensor:
    size, step = _framing(op)
    if _tf.known_extent(window, 0) is not None and _tf.known_extent(window, 0) > size:
        raise op.error(
            f"a window of {_tf.known_extent(window, 0)} elements is longer than frames of {size}"
        )
    frames = tf.signal.irfft(tf.linalg.matrix_transpose(_complex(x)), [size])
    # A frame is the signal times the window, so that squares share the products with it out.
    window = _centred(window, size)
    signal = tf.signal.overlap_and_add(frames * window, step)
    shares = tf.tile((window * window)[tf.newaxis], [tf.shape(frames)[-2], 1])
    signal = tf.math.divide_no_nan(signal, tf.signal.overlap_and_add(shares, step))
    if op.flag("normalized"):
        signal *= tf.cast(math.sqrt(size), signal.dtype)
    margin = size // 2 if op.flag("center") else 0
    if length is None:
        return signal[..., margin : tf.shape(signal)[-1] - margin]
    return _resized(signal[..., margin:], tf.reshape(length, []))
