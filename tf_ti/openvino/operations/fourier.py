"""Fourier transforms: complex numbers are pairs along a last axis."""

from collections.abc import Sequence

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import rank_of, static_axes


def _complex(x: tf.Tensor) -> tf.Tensor:
    return tf.complex(x[..., 0], x[..., 1])


def _pairs(z: tf.Tensor) -> tf.Tensor:
    return tf.stack([tf.math.real(z), tf.math.imag(z)], axis=-1)


def _axes_and_sizes(op: Operation, rank: int) -> tuple[list[int], list[int]]:
    """The axes of a transform, and the numbers of elements it takes along them; -1 for all."""
    axes = static_axes(op, 1, rank)
    sizes = [int(n) for n in op.static(2).reshape(-1)] if len(op.inputs) > 2 else [-1] * len(axes)
    if len(sizes) != len(axes) or min(sizes, default=1) < -1 or 0 in sizes:
        raise op.error(f"signal_size={sizes} does not fit the axes {axes}")
    if len(set(axes)) < len(axes):
        raise op.error(f"axes={axes} are not different ones")
    return axes, sizes


def _resized(x: tf.Tensor, axis: int, size: int) -> tf.Tensor:
    """The first elements along an axis, with zeros after them where there are fewer."""
    if size == -1 or x.shape[axis] == size:
        return x
    extent = tf.shape(x)[axis]
    x = tf.gather(x, tf.range(tf.minimum(extent, size)), axis=axis)
    pads = [[0, tf.maximum(size - extent, 0) if i == axis else 0] for i in range(x.shape.rank)]
    return tf.pad(x, pads)


def _along(transform, x: tf.Tensor, axis: int, *arguments) -> tf.Tensor:
    """Transforms the last axis after moving one there."""
    order = [i for i in range(x.shape.rank) if i != axis] + [axis]
    back = [order.index(i) for i in range(x.shape.rank)]
    return tf.transpose(transform(tf.transpose(x, order), *arguments), back)


def _transformed(
    z: tf.Tensor, axes: Sequence[int], sizes: Sequence[int], inverse: bool
) -> tf.Tensor:
    for axis, size in zip(axes, sizes):
        z = _resized(z, axis, size)
    for axis in axes:
        z = _along(tf.signal.ifft if inverse else tf.signal.fft, z, axis)
    return z


def _register(name: str, inverse: bool) -> None:
    @register(name, "opset7")
    def _(op, x, axes, size=None):
        axes, sizes = _axes_and_sizes(op, rank_of(op, x) - 1)
        return _pairs(_transformed(_complex(x), axes, sizes, inverse))


_register("DFT", inverse=False)
_register("IDFT", inverse=True)


@register("RDFT", "opset9")
def _rdft(op, x, axes, size=None):
    axes, sizes = _axes_and_sizes(op, rank_of(op, x))
    if not axes:
        raise op.error("axes are none")
    z = _along(tf.signal.rfft, _resized(x, axes[-1], sizes[-1]), axes[-1])
    return _pairs(_transformed(z, axes[:-1], sizes[:-1], inverse=False))


@register("IRDFT", "opset9")
def _irdft(op, x, axes, size=None):
    axes, sizes = _axes_and_sizes(op, rank_of(op, x) - 1)
    if not axes:
        raise op.error("axes are none")
    z = _transformed(_complex(x), axes[:-1], sizes[:-1], inverse=True)
    last, length = axes[-1], sizes[-1]
    if length == -1:
        length = 2 * (tf.shape(z)[last] - 1)
    else:
        z = _resized(z, last, length // 2 + 1)
    return _along(lambda z: tf.signal.irfft(z, [length]), z, last)


@register("STFT", "opset15")
def _stft(op, signal, window, frame_size, frame_step):
    size, step = (int(op.static(position).reshape(())) for position in (2, 3))
    if size < 1 or step < 1:
        raise op.error(f"frames of {size} every {step} elements: both must be positive")
    missing = size - tf.shape(window)[0]
    window = tf.pad(window, [[missing // 2, missing - missing // 2]])
    frames = tf.signal.frame(signal, size, step)
    found = _pairs(tf.signal.rfft(frames * window))
    if op.flag("transpose_frames", False):
        rank = found.shape.rank
        found = tf.transpose(found, [*range(rank - 3), rank - 2, rank - 3, rank - 1])
    return found
