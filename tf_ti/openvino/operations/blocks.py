"""Operations that move blocks of numbers between the channels, the batch and the spatial axes."""

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, rank_of


@register("DepthToSpace")
def _depth_to_space(op, x):
    mode = op.text("mode", among=("blocks_first", "depth_first"))
    size, spatial = _size(op, "block_size"), rank_of(op, x) - 2
    batch, depth, *sides = extents(x)
    depth = depth // size**spatial
    blocks = [size] * spatial
    if mode == "blocks_first":
        x = tf.reshape(x, [batch, *blocks, depth, *sides])
        channel, first_block = 1 + spatial, 1
    else:
        x = tf.reshape(x, [batch, depth, *blocks, *sides])
        channel, first_block = 1, 2
    order = [0, channel]
    for i in range(spatial):
        order += [2 + spatial + i, first_block + i]
    return tf.reshape(tf.transpose(x, order), [batch, depth, *(side * size for side in sides)])


@register("SpaceToDepth")
def _space_to_depth(op, x):
    mode = op.text("mode", among=("blocks_first", "depth_first"))
    size, spatial = _size(op, "block_size"), rank_of(op, x) - 2
    batch, depth, *sides = extents(x)
    small = [side // size for side in sides]
    x = tf.reshape(x, [batch, depth, *(part for side in small for part in (side, size))])
    sides_at = [2 + 2 * i for i in range(spatial)]
    blocks_at = [3 + 2 * i for i in range(spatial)]
    first = [*blocks_at, 1] if mode == "blocks_first" else [1, *blocks_at]
    return tf.reshape(
        tf.transpose(x, [0, *first, *sides_at]), [batch, depth * size**spatial, *small]
    )


def _size(op: Operation, name: str) -> int:
    size = op.integer(name, 1)
    if size < 1:
        raise op.error(f"{name}={size} must be positive")
    return size


def _blocks(op: Operation, x: tf.Tensor) -> tuple[list[int], tf.Tensor]:
    """The blocks along the axes after the batch, and what is added or cut before and after each."""
    rank = rank_of(op, x)
    for position in (1, 2, 3):
        if not op.inputs[position].shape.is_compatible_with([rank]):
            raise op.error(f"input {position} is {op.inputs[position].shape} for {rank} axes")
    blocks = op.static(1).tolist()
    if min(blocks, default=1) < 1:
        raise op.error(f"blocks of {blocks} must be positive")
    pads = tf.stack([tf.cast(pads, tf.int64) for pads in op.inputs[2:4]], axis=1)
    known = [op.known(position) for position in (2, 3)]
    if blocks[0] != 1 or any(pad is not None and pad[0] for pad in known):
        raise op.error(f"blocks of {blocks}, with pads or crops of {known}, split the batch")
    return blocks[1:], pads[1:]


@register("SpaceToBatch", "opset2")
def _space_to_batch(op, x, block_shape, pads_begin, pads_end):
    return tf.space_to_batch_nd(x, *_blocks(op, x))


@register("BatchToSpace", "opset2")
def _batch_to_space(op, x, block_shape, crops_begin, crops_end):
    return tf.batch_to_space(x, *_blocks(op, x))


@register("ShuffleChannels")
def _shuffle_channels(op, x):
    axis, groups = op.axis(op.integer("axis", 1), rank_of(op, x)), _size(op, "group")
    shape = extents(x)
    if isinstance(shape[axis], int) and shape[axis] % groups:
        raise op.error(f"{shape[axis]} channels are no whole number of {groups} groups")
    split = tf.reshape(x, [*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]])
    order = list(range(len(shape) + 1))
    order[axis], order[axis + 1] = axis + 1, axis
    return tf.reshape(tf.transpose(split, order), shape)


@register("ReorgYolo", "opset2")
def _reorg_yolo(op, x):
    """Darknet's reorganization: it takes the numbers as those of a larger picture."""
    strides = op.integers("stride")
    if not strides or min(strides) < 1:
        raise op.error(f"stride={strides} must be positive")
    stride = strides[0]
    batch, channels, height, width = extents(x)
    if isinstance(channels, int) and channels % stride**2:
        raise op.error(f"{channels} channels are no whole number of {stride}**2")
    few = channels // stride**2
    split = tf.reshape(x, [batch, few, height, stride, width, stride])
    moved = tf.transpose(split, [0, 3, 5, 1, 2, 4])
    return tf.reshape(moved, [batch, channels * stride**2, height // stride, width // stride])


@register("ExtractImagePatches", "opset3")
def _extract_image_patches(op, x):
    sizes, strides, rates = (op.integers(name) for name in ("sizes", "strides", "rates"))
    for name, numbers in (("sizes", sizes), ("strides", strides), ("rates", rates)):
        if len(numbers) != 2 or min(numbers) < 1:
            raise op.error(f"{name}={numbers} are not two positive numbers")
    padding = op.text("auto_pad", among=("valid", "same_upper", "same_lower"))
    x = tf.transpose(x, [0, 2, 3, 1])
    if padding == "same_lower":
        sides = extents(x)[1:3]
        totals = [
            tf.maximum((-(-side // stride) - 1) * stride + (size - 1) * rate + 1 - side, 0)
            for side, size, stride, rate in zip(sides, sizes, strides, rates)
        ]
        pads = [[total - total // 2, total // 2] for total in totals]
        x = tf.pad(x, [[0, 0], *pads, [0, 0]])
    patches = tf.image.extract_patches(
        x,
        [1, *sizes, 1],
        [1, *strides, 1],
        [1, *rates, 1],
        "SAME" if padding == "same_upper" else "VALID",
    )
    return tf.transpose(patches, [0, 3, 1, 2])
