"""Frames of cameras, in YUV with one pair of colors for four pixels, as RGB."""

import tensorflow as tf

from tf_ti._exact import multiplied
from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import as_shape, extents, rank_of
from tf_ti.openvino.precision import computed_in


def _register(kind: str, count: int, step: int) -> None:
    @register(kind, "opset8")
    def convert(op: Operation, *planes: tf.Tensor) -> tf.Tensor:
        return tf.stack(_converted(op, planes, count)[::step], -1)


for _source, _count in ("NV12", 2), ("I420", 3):
    _register(f"{_source}toRGB", _count, 1)
    _register(f"{_source}toBGR", _count, -1)


def _converted(op: Operation, planes: tuple[tf.Tensor, ...], count: int) -> list[tf.Tensor]:
    """Red, green and blue, [N, H, W] each, of one plane or of `count` planes."""
    if len(planes) not in (1, count):
        raise op.error(f"has {len(planes)} inputs, where 1 or {count} are expected")
    if any(rank_of(op, plane) != 4 for plane in planes):
        raise op.error("its inputs must have 4 dimensions")
    dtype = planes[0].dtype
    y, u, v = (
        tf.cast(part, computed_in(dtype))
        for part in (_parts(op, planes[0], count) if len(planes) == 1 else _own_parts(planes))
    )
    y, u, v = _times(y - 16, 1.164), _over_pixels(u) - 128, _over_pixels(v) - 128
    green = y - _times(u, 0.391) - _times(v, 0.813)
    colors = [y + _times(v, 1.596), green, y + _times(u, 2.018)]
    if dtype.is_integer:
        colors = [tf.round(color) for color in colors]
    return [tf.cast(tf.clip_by_value(color, 0, 255), dtype) for color in colors]


def _own_parts(planes: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
    """Brightness and both colors, [N, rows, columns] each."""
    if len(planes) == 2:
        return [planes[0][..., 0], planes[1][..., 0], planes[1][..., 1]]
    return [plane[..., 0] for plane in planes]


def _parts(op: Operation, plane: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Brightness and both colors of one plane, which has the colors below the brightness."""
    batch, rows, width, _ = extents(plane)
    if any(isinstance(n, int) and n % of for n, of in ((rows, 3), (width, 2))):
        raise op.error(
            f"{plane.shape} is no frame: the height must be even, 2/3 of axis 1, and "
            "the width, axis 2, too"
        )
    height = rows // 3 * 2
    y, colors = plane[:, :height, :, 0], plane[:, height:]
    half = height // 2, width // 2
    if count == 2:
        return [y, *tf.unstack(tf.reshape(colors, as_shape(batch, *half, 2)), axis=-1)]
    return [y, *tf.unstack(tf.reshape(colors, as_shape(batch, 2, *half)), axis=1)]


def _times(x: tf.Tensor, factor: float) -> tf.Tensor:
    return multiplied(x, tf.constant(factor, x.dtype))


def _over_pixels(x: tf.Tensor) -> tf.Tensor:
    return tf.repeat(tf.repeat(x, 2, axis=1), 2, axis=2)
