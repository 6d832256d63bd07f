"""Operations that move blocks of numbers between the channels, the batch and the spatial axes."""

import math

import tensorflow as tf

from tf_ti.openvino.operation import Operation, register
from tf_ti.openvino.operations.shapes import extents, positive, rank_of, sizes_of


@register("DepthToSpace")
def _depth_to_space(op: Operation, x: tf.Tensor) -> tf.Tensor:
    mode = op.text("mode", among=("blocks_first", "depth_first"))
    size, spatial = positive(op, "block_size", 1), rank_of(op, x) - 2
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
def _space_to_depth(op: Operation, x: tf.Tensor) -> tf.Tensor:
    mode = op.text("mode", among=("blocks_first", "depth_first"))
    size, spatial = positive(op, "block_size", 1), rank_of(op, x) - 2
    batch, depth, *sides = extents(x)
    small = [side // size for side in sides]
    x = tf.reshape(x, [batch, depth, *(part for side in small for part in (side, size))])
    sides_at = [2 + 2 * i for i in range(spatial)]
    blocks_at = [3 + 2 * i for i in range(spatial)]
    first = [*blocks_at, 1] if mode == "blocks_first" else [1, *blocks_at]
    return tf.reshape(
        tf.transpose(x, [0, *first, *sides_at]), [batch, depth * size**spatial, *small]
    )


def _pads(op: Operation, x: tf.Tensor) -> tuple[list[int], tf.Tensor] | None:
    """The blocks and pads along the axes after the batch, if only the run knows the pads."""
    if all(op.known(position) is not None for position in (2, 3)):
        return None
    blocks = op.static(1).tolist()
    if len(blocks) != rank_of(op, x) or blocks[0] != 1:
        raise op.error(f"blocks of {blocks} for {x.shape}, with pads that are no constants")
    pads = tf.stack([tf.cast(pads, tf.int64) for pads in op.inputs[2:4]], axis=1)
    return blocks[1:], tf.ensure_shape(pads, [len(blocks), 2])[1:]


def _blocks(op: Operation, rank: int) -> list[list[int]]:
    """The sizes of blocks along each axis, and what is added or cut there before and after."""
    found = [[int(n) for n in op.static(position).reshape(-1)] for position in (1, 2, 3)]
    for position, numbers in enumerate(found, 1):
        if len(numbers) != rank:
            raise op.error(f"input {position} has {len(numbers)} numbers for {rank} axes")
    if min(found[0], default=1) < 1:
        raise op.error(f"blocks of {found[0]} must be positive")
    if min(found[1] + found[2], default=0) < 0:
        raise op.error(f"{found[1]} and {found[2]} must not be negative")
    return found


@register("SpaceToBatch", "opset2")
def _space_to_batch(
    op: Operation, x: tf.Tensor, block_shape: tf.Tensor, pads_begin: tf.Tensor, pads_end: tf.Tensor
) -> tf.Tensor:
    if (run_time := _pads(op, x)) is not None:
        return tf.space_to_batch_nd(x, *run_time)
    rank = rank_of(op, x)
    blocks, begin, end = _blocks(op, rank)
    x = tf.pad(x, list(zip(begin, end)))
    shape = extents(x)
    for axis, (extent, block) in enumerate(zip(shape, blocks)):
        if isinstance(extent, int) and extent % block:
            raise op.error(f"axis {axis}: {extent} elements are no whole number of blocks")
    parts = [n for extent, block in zip(shape, blocks) for n in (extent // block, block)]
    split = tf.reshape(x, parts)
    order = [2 * axis + 1 for axis in range(rank)] + [2 * axis for axis in range(rank)]
    moved = tf.transpose(split, order)
    sides = [extent // block for extent, block in zip(shape, blocks)]
    return tf.reshape(moved, [sides[0] * math.prod(blocks), *sides[1:]])


@register("BatchToSpace", "opset2")
def _batch_to_space(
    op: Operation,
    x: tf.Tensor,
    block_shape: tf.Tensor,
    crops_begin: tf.Tensor,
    crops_end: tf.Tensor,
) -> tf.Tensor:
    if (run_time := _pads(op, x)) is not None:
        return tf.batch_to_space(x, *run_time)
    rank = rank_of(op, x)
    blocks, begin, end = _blocks(op, rank)
    batch, *sides = extents(x)
    count = math.prod(blocks)
    if isinstance(batch, int) and batch % count:
        raise op.error(f"a batch of {batch} is no whole number of {count} blocks")
    split = tf.reshape(x, [*blocks, batch // count, *sides])
    order = [n for axis in range(rank) for n in (rank + axis, axis)]
    shape = [extent * block for extent, block in zip([batch // count, *sides], blocks)]
    whole = tf.reshape(tf.transpose(split, order), shape)
    for axis, extent in enumerate(shape):
        if isinstance(extent, int) and begin[axis] + end[axis] > extent:
            raise op.error(f"axis {axis}: {begin[axis]} and {end[axis]} are more than {extent}")
    return whole[tuple(slice(b, extent - e) for b, e, extent in zip(begin, end, shape))]


@register("ShuffleChannels")
def _shuffle_channels(op: Operation, x: tf.Tensor) -> tf.Tensor:
    axis, groups = op.axis(op.integer("axis", 1), rank_of(op, x)), positive(op, "group", 1)
    shape = extents(x)
    if isinstance(shape[axis], int) and shape[axis] % groups:
        raise op.error(f"{shape[axis]} channels are no whole number of {groups} groups")
    split = tf.reshape(x, [*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]])
    order = list(range(len(shape) + 1))
    order[axis], order[axis + 1] = axis + 1, axis
    return tf.reshape(tf.transpose(split, order), shape)


@register("ReorgYolo", "opset2")
def _reorg_yolo(op: Operation, x: tf.Tensor) -> tf.Tensor:
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
def _extract_image_patches(op: Operation, x: tf.Tensor) -> tf.Tensor:
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


@register("Col2Im", "opset15")
def _col2im(
    op: Operation, columns: tf.Tensor, output_size: tf.Tensor, kernel_size: tf.Tensor
) -> tf.Tensor:
    """An image of patches, as torch's Unfold gives them: where they overlap, they are added up."""
    strides, dilations = (_pair(op, name, 1) for name in ("strides", "dilations"))
    begin, end = (_pair(op, name, 0) for name in ("pads_begin", "pads_end"))
    sides, kernel = (sizes_of(op, position, 2) for position in (1, 2))
    rank_of(op, columns)
    *batch, depth, _ = extents(columns)
    size = kernel[0] * kernel[1]
    if isinstance(depth, int) and isinstance(size, int) and depth % size:
        raise op.error(f"{depth} channels are no whole number of {size} elements of a patch")
    whole = [side + b + e for side, b, e in zip(sides, begin, end)]
    # Where an element of each patch is along an axis: [kernel, patches].
    at = [
        tf.range(k, dtype=tf.int64)[:, tf.newaxis] * d
        + tf.range((n - (k - 1) * d - 1) // s + 1, dtype=tf.int64) * s
        for n, k, s, d in zip(whole, kernel, strides, dilations)
    ]
    places = at[0][:, tf.newaxis, :, tf.newaxis] * whole[1] + at[1][:, tf.newaxis]
    places = tf.reshape(places, [-1])
    numbers = tf.transpose(tf.reshape(columns, [-1, tf.size(places)]))
    sums = tf.math.unsorted_segment_sum(numbers, places, whole[0] * whole[1])
    image = tf.reshape(tf.transpose(sums), [*batch, depth // size, *whole])
    inside = (slice(b, b + side) for b, side in zip(begin, sides))
    return image[(..., *inside)]


def _pair(op: Operation, name: str, least: int) -> list[int]:
    numbers = op.integers(name, [least, least])
    if len(numbers) != 2 or min(numbers) < least:
        raise op.error(f"{name}={numbers} are not two numbers from {least} on")
    return numbers
