"""The pieces of a sliced input: counted, taken, and put back where they came from."""

import tensorflow as tf

from tf_ti.loops import spec as _spec


def tiles(spec: _spec.Input) -> bool:
    """True if the pieces lie side by side: neither gaps nor overlaps."""
    return spec.part_size == abs(spec.stride)


def covers(spec: _spec.Input) -> bool:
    """True if the range is the whole axis."""
    return (spec.start, spec.end) == ((0, -1) if spec.stride > 0 else (-1, 0))


def count(given: _spec.Input, extent: int) -> int:
    """The number of pieces of this extent; errors as the kernel's."""
    if extent == 0 and covers(given):
        return 0
    start, end = (at + extent if at < 0 else at for at in (given.start, given.end))
    length = (end - start if given.stride > 0 else start - end) + 1
    step, part_size = abs(given.stride), given.part_size
    if not 0 <= start < extent:
        problem = "start lies outside the axis"
    elif not 0 <= end < extent:
        problem = "end lies outside the axis"
    elif length < 1:
        problem = "the range is empty in the direction of its stride"
    elif given.mode == "segment":  # the last one may be short
        return -(-length // step)
    elif part_size == step and length % step:
        problem = f"pieces of {part_size} do not tile the range's {length} elements"
    elif length < part_size:
        problem = "no whole piece fits the range"
    else:
        return (length - part_size) // step + 1
    raise ValueError(
        f"{given.label}: {problem}: start={given.start} end={given.end} stride={given.stride} "
        f"part_size={part_size} over {extent} elements"
    )


def num_pieces(spec: _spec.Input, tensor: tf.Tensor) -> tf.Tensor:
    """The number of pieces of a tensor, which are there."""
    extent = tf.shape(tensor)[spec.axis]
    start, end = _edges(spec, extent)
    length = extent if covers(spec) else tf.abs(end - start) + 1
    if spec.mode == "segment":
        return -(-length // abs(spec.stride))
    return (length - spec.part_size) // abs(spec.stride) + 1


def take(spec: _spec.Input, tensor: tf.Tensor) -> tf.Tensor:
    """The pieces, joined along the axis in the order of the iterations."""
    start, _ = _edges(spec, tf.shape(tensor)[spec.axis])
    positions = _positions(spec, start, num_pieces(spec, tensor))
    return tf.gather(tensor, positions, axis=spec.axis)


def _edges(spec: _spec.Input, extent: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    start = spec.start + extent if spec.start < 0 else tf.constant(spec.start)
    end = spec.end + extent if spec.end < 0 else tf.constant(spec.end)
    return start, end


def _positions(spec: _spec.Input, start: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    begin = start + spec.stride * tf.range(count)
    if spec.stride < 0:
        begin -= spec.part_size - 1
    return tf.reshape(begin[:, None] + tf.range(spec.part_size), [-1])


def put_back(spec: _spec.Input, tensor: tf.Tensor, pieces: tf.Tensor) -> tf.Tensor:
    """The gradient of a sliced tensor, from its pieces' gradients joined along the axis.

    Pieces that tile come in the order of the tensor, others in the order of the iterations.
    """
    if tiles(spec) and (spec.start, spec.end) in ((0, -1), (-1, 0)):
        # Without an iteration other extents than the axis's may be lost.
        return pieces if tensor.shape.is_fully_defined() else tf.reshape(pieces, tf.shape(tensor))
    extent = tf.shape(tensor)[spec.axis]
    start, end = _edges(spec, extent)
    axis = spec.axis % tf.rank(tensor)
    if tiles(spec):
        low, high = tf.minimum(start, end), tf.maximum(start, end)
        return _padded(pieces, spec.axis, low, extent - 1 - high, tensor.shape)
    count = tf.shape(pieces)[spec.axis] // spec.part_size
    positions = _positions(spec, start, count)
    order = tf.range(tf.rank(tensor))
    to_front = tf.concat([[axis], order[:axis], order[axis + 1 :]], 0)
    back = tf.math.invert_permutation(to_front)
    summed = tf.math.unsorted_segment_sum(tf.transpose(pieces, to_front), positions, extent)
    return tf.ensure_shape(tf.transpose(summed, back), tensor.shape)


def first_elements(
    tensor: tf.Tensor, axis: int, count: tf.Tensor, from_end: bool = False
) -> tf.Tensor:
    """The first `count` elements along an axis, or the last ones."""
    if from_end:
        taken = slice(tf.shape(tensor, count.dtype)[axis] - count, None)
    else:
        taken = slice(count)
    if axis >= 0:
        return tensor[(*[slice(None)] * axis, taken)]
    return tensor[(..., taken, *[slice(None)] * (-axis - 1))]


def put_back_first(spec: _spec.Input, tensor: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """The gradient of an iterator's tensor, from the gradient of its `first_elements`."""
    axis, count = spec.axis % tf.rank(tensor), tf.shape(values)[spec.axis]
    if not tensor.shape.is_fully_defined():
        # Without an iteration other extents than the axis's may be lost.
        shape = tf.tensor_scatter_nd_update(tf.shape(tensor), [[axis]], [count])
        values = tf.reshape(values, shape)
    missing = tf.shape(tensor)[spec.axis] - count
    low, high = (0, missing) if spec.stride > 0 else (missing, 0)
    return _padded(values, spec.axis, low, high, tensor.shape)


def _padded(
    tensor: tf.Tensor, axis: int, low: tf.Tensor | int, high: tf.Tensor | int, shape: tf.TensorShape
) -> tf.Tensor:
    """A tensor with zeros on both sides along an axis, then of a known shape."""
    rank = tensor.shape.rank
    if rank is None:
        paddings = tf.scatter_nd([[axis % tf.rank(tensor)]], [[low, high]], [tf.rank(tensor), 2])
    else:  # XLA knows them, if it knows the edges
        paddings = [[low, high] if k == axis % rank else [0, 0] for k in range(rank)]
    return tf.ensure_shape(tf.pad(tensor, paddings), shape)


def put_back_elements(spec: _spec.Input, tensor: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """The gradient of an iterator's tensor, from its elements' gradients and zeros after them."""
    if spec.stride < 0:
        values = tf.reverse(values, [spec.axis])
    if not tensor.shape.is_fully_defined():
        # Without an iteration other extents than the axis's may be lost.
        is_whole = tf.reduce_all(tf.equal(tf.shape(values), tf.shape(tensor)))
        values = tf.cond(is_whole, lambda: values, lambda: tf.zeros_like(tensor))
    return tf.ensure_shape(values, tensor.shape)
