"""Convolutions, pools, norms and other operations on tensors with channels and spatial axes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.openvino.writer import layout
from tf_ti.openvino.writer.conversion import Node, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import columns, shape_as

_CHANNELS_LAST = {
    "NHWC": True,
    "NDHWC": True,
    "CHANNELS_LAST": True,
    "NCHW": False,
    "NCDHW": False,
    "CHANNELS_FIRST": False,
}
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


class _Spatial:
    """The spatial axes of an operation.

    Attributes:
        count: their number.
        channels: the channels' axis.
    """

    def __init__(self, op: Node, count: int = 2):
        data_format = op.attr("data_format")
        if data_format not in _CHANNELS_LAST:
            raise op.error(f"OpenVINO has no data_format {data_format}")
        self._op, self._is_last, self.count = op, _CHANNELS_LAST[data_format], count
        self.channels = count + 1 if self._is_last else 1

    def of(self, values: Sequence[Any]) -> list[Any]:
        """What is for the spatial axes among values for all axes."""
        return list(values[1:-1] if self._is_last else values[2:])

    def attr(self, name: str) -> list[int]:
        return self.windows(name, self._op.attr(name))

    def windows(self, name: str, values: Sequence[int]) -> list[int]:
        """Sizes or steps of windows, which must be 1 along other axes."""
        values = [int(value) for value in values] or [1] * (self.count + 2)
        if values[0] != 1 or values[self.channels] != 1:
            raise self._op.error(
                f"{name}={values}, but OpenVINO's windows are along spatial axes alone"
            )
        return self.of(values)

    def padding(self) -> dict[str, Any]:
        """The attributes of a layer that say what is padded."""
        mode = self._op.attr("padding")
        auto = {"SAME": "same_upper", "VALID": "valid", "EXPLICIT": "explicit"}[mode]
        before, after = zip(*self.pads())
        return {"auto_pad": auto, "pads_begin": before, "pads_end": after}

    def pads(self) -> list[tuple[int, int]]:
        """Explicit pads before and after each axis."""
        if self._op.attr("padding") != "EXPLICIT":
            return [(0, 0)] * self.count
        pads = self._op.attr("explicit_paddings")
        return self.of(list(zip(pads[::2], pads[1::2])))

    def second(self, x: Operand) -> Operand:
        """x with its channels second."""
        return layout.channels_second(self._op.network, x, self.count + 2) if self._is_last else x

    def back(self, y: Port) -> Port:
        """The output of a layer as the operation's, with its channels where they are."""
        return layout.channels_last(self._op.network, y, self.count + 2) if self._is_last else y


# --- Convolutions ---------------------------------------------------------------------------------


@writes("Conv", "Conv2D", "Conv3D", "DepthwiseConv2dNative")
def _convolution(op: Node, x: Operand, filters: Operand) -> Port:
    spatial = _Spatial(op, op.rank(1) - 2)
    if op.op.type == "Conv" and op.attr("batch_dims") != 1:
        raise op.error("OpenVINO has convolutions with one batch axis alone")
    return _convolved(op, spatial, x, filters, spatial.attr("dilations"), spatial.padding())


def _convolved(
    op: Node,
    spatial: _Spatial,
    x: Operand,
    filters: Operand,
    dilations: Sequence[int],
    padding: dict[str, Any],
) -> Port:
    groups = _groups(op, op.shape(0).with_rank(spatial.count + 2)[spatial.channels])
    y = op.add(
        "Convolution" if groups == 1 else "GroupConvolution",
        spatial.second(x),
        _filters(op, filters, groups),
        strides=spatial.attr("strides"),
        dilations=dilations,
        **padding,
    )
    return spatial.back(y)


def _groups(op: Node, channels: int | None) -> int:
    """The number of groups of the channels on the side of which the filters have theirs."""
    own = op.shape(1).as_list()[-2]
    if op.op.type.startswith("Depthwise"):
        if own is None:
            raise op.error("the number of its channels must be known")
        return own
    # Of channels that nobody knows, those that the filters have: others are an error in OpenVINO.
    return channels // own if channels and own else 1


def _filters(op: Node, filters: Operand, groups: int) -> Operand:
    """Filters [spatial..., in, out] as OpenVINO's [out, in, spatial...], those of groups apart."""
    count = op.rank(1) - 2
    if groups == 1:
        return _transposed(op, filters, [count + 1, count, *range(count)])
    shape = op.shape(1)
    if not shape[:-1].is_fully_defined():
        raise op.error("the shape of its filters must be known")
    per_group = 1 if op.op.type.startswith("Depthwise") else shape.as_list()[-2]
    parts = [*shape.as_list()[:-2], per_group, groups, -1]
    if isinstance(filters, np.ndarray):
        filters = filters.reshape(parts)
    else:
        filters = op.add("Reshape", filters, np.asarray(parts), special_zero=False)
    return _transposed(op, filters, [count + 1, count + 2, count, *range(count)])


def _transposed(op: Node, x: Operand, order: list[int]) -> Operand:
    if isinstance(x, np.ndarray):
        return x.transpose(order)
    return op.add("Transpose", x, np.asarray(order))


@writes("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput")
def _convolution_backprop(op: Node, sizes: Operand, filters: Operand, y: Operand) -> Port:
    spatial = _Spatial(op, op.rank(1) - 2)
    strides, dilations = spatial.attr("strides"), spatial.attr("dilations")
    kernel = op.shape(1).as_list()[: spatial.count]
    if None in kernel:
        raise op.error("the extents of its filters must be known")
    windows = [(k - 1) * dilation + 1 for k, dilation in zip(kernel, dilations)]
    given, shape = (s.with_rank(spatial.count + 2) for s in (op.shape(2), op.op.outputs[0].shape))
    extents = list(zip(spatial.of(given.as_list()), spatial.of(shape.as_list())))
    begin, end, more = zip(
        *(_crop(op, *each) for each in zip(extents, windows, strides, spatial.pads()))
    )
    groups = _groups(op, shape.as_list()[spatial.channels])
    result = op.add(
        "ConvolutionBackpropData" if groups == 1 else "GroupConvolutionBackpropData",
        spatial.second(y),
        _filters(op, filters, groups),
        strides=strides,
        dilations=dilations,
        auto_pad="explicit",
        pads_begin=begin,
        pads_end=end,
        output_padding=more,
    )
    unknown = [i for i, pair in enumerate(extents) if None in pair]
    if unknown:
        result = _sliced(op, result, unknown, spatial, windows, strides)
    return spatial.back(result)


def _crop(
    op: Node,
    extents: tuple[int | None, int | None],
    window: int,
    stride: int,
    pads: tuple[int, int],
) -> tuple[int, int, int]:
    """What is cropped before and after an axis, and what is added after it.

    The axis of an output that only the run knows is at its longest: a slice follows.
    """
    given, wanted = extents
    if given is None or wanted is None:
        return 0, 0, stride - 1
    total = (given - 1) * stride + window - wanted
    begin = max(total, 0) // 2 if op.attr("padding") == "SAME" else pads[0]
    return begin, max(total - begin, 0), max(begin - total, 0)


def _sliced(
    op: Node,
    result: Port,
    unknown: list[int],
    spatial: _Spatial,
    windows: Sequence[int],
    strides: Sequence[int],
) -> Port:
    """What the given sizes leave of a result along axes whose extents only the run knows."""
    sizes, _, y = op.inputs
    dtype, axes = op.op.inputs[0].dtype, spatial.of(range(spatial.count + 2))
    window, stride, before = (
        np.asarray(values, dtype.as_numpy_dtype)[unknown]
        for values in (windows, strides, [before for before, _ in spatial.pads()])
    )
    numbers, positions = np.asarray(unknown), np.asarray(axes)[unknown]
    ones = np.ones_like(stride)
    wanted = _taken(op, sizes, numbers if op.shape(0).as_list()[0] == spatial.count else positions)
    begin: Operand = before
    if op.attr("padding") == "SAME":
        steps = op.add("Subtract", _taken(op, shape_as(op, y, dtype), positions), ones)
        longest = op.add("Add", op.add("Multiply", steps, stride), window)
        more = op.add("Maximum", op.add("Subtract", longest, wanted), np.zeros_like(stride))
        begin = op.add("Divide", more, np.asarray(2, stride.dtype))
    end = op.add("Add", wanted, begin)
    return op.add("Slice", result, begin, end, ones, numbers + 2, version="opset8")


def _taken(op: Node, values: Operand, positions: np.ndarray) -> Port:
    return op.add("Gather", values, positions, np.asarray(0), version="opset8", batch_dims=0)


# --- Pools ----------------------------------------------------------------------------------------


@writes("AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D", "MaxPoolV2")
def _pool(op: Node, x: Operand, *windows: Operand) -> Port:
    spatial = _Spatial(op, 3 if op.op.type.endswith("3D") else 2)
    names = ("ksize", "strides")
    sizes = [op.static(1), op.static(2)] if windows else map(op.attr, names)
    kernel, strides = (spatial.windows(name, size) for name, size in zip(names, sizes))
    is_mean = op.op.type.startswith("Avg")
    options = {"exclude-pad": True} if is_mean else {}
    y = op.add(
        "AvgPool" if is_mean else "MaxPool",
        spatial.second(x),
        kernel=kernel,
        strides=strides,
        rounding_type="floor",
        **spatial.padding(),
        **options,
    )
    return spatial.back(y)


# --- Norms ----------------------------------------------------------------------------------------


@writes("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def _batch_norm(
    op: Node, x: Operand, scale: Operand, offset: Operand, mean: Operand, variance: Operand
) -> list[Operand]:
    if op.attr("is_training"):
        raise op.error("OpenVINO has no norm by the mean and variance of a batch (is_training)")
    spatial = _Spatial(op, op.rank(0) - 2)
    x = spatial.second(x)
    kinds = [element_type_of(t.dtype) for t in op.op.inputs[:2]]
    if kinds[0] != kinds[1]:
        x = op.add("Convert", x, outputs=kinds[1:], destination_type=kinds[1].name)
    y = op.add(
        "BatchNormInference", x, scale, offset, mean, variance,
        version="opset5", epsilon=op.attr("epsilon"),
    )  # fmt: skip
    if kinds[0] != kinds[1]:
        y = op.add("Convert", y, outputs=kinds[:1], destination_type=kinds[0].name)
    return [spatial.back(y), mean, variance]


@writes("LRN")
def _lrn(op: Node, x: Operand) -> Port:
    size, bias, beta = 2 * op.attr("depth_radius") + 1, op.attr("bias"), op.attr("beta")
    if bias <= 0:
        raise op.error(f"bias={bias}, but OpenVINO takes the bias for an integer")
    # As a norm with the bias 1, and a factor.
    y = op.add(
        "LRN", layout.channels_second(op.network, x, 4), np.asarray([1]),
        alpha=op.attr("alpha") * size / bias, beta=beta, bias=1.0, size=size,
    )  # fmt: skip
    return layout.channels_last(op.network, op.add("Multiply", y, op.like(bias**-beta)), 4)


# --- Blocks and images ----------------------------------------------------------------------------


@writes("DepthToSpace", "SpaceToDepth")
def _between_depth_and_space(op: Node, x: Operand) -> Port:
    spatial = _Spatial(op)
    options = {"block_size": op.attr("block_size"), "mode": "blocks_first"}
    return spatial.back(op.add(op.op.type, spatial.second(x), **options))


@writes("BatchToSpaceND")
def _batch_to_space(op: Node, x: Operand, blocks: Operand, crops: Operand) -> Port:
    dilated = _of_dilated_convolution(op.op)
    if dilated is None:
        return _between_batch_and_space(op, x, blocks, crops)
    spread, convolution, pads = dilated
    node, count = op.before(convolution), op.static(1).size
    spatial, x = _Spatial(node, node.rank(1) - 2), op.value_of(spread.inputs[0])
    missing = spatial.count + 2 - op.rank(0)  # tf.nn.conv1d adds an axis
    pads, dilations = [(0, 0)] * missing + pads, [1] * missing + op.static(1).tolist()
    pads += [(0, 0)] * (spatial.count - missing - count)
    dilations += [1] * (spatial.count - missing - count)
    if missing:
        x = op.add("Unsqueeze", x, np.asarray([1]))
    before, after = zip(*pads)
    padding = {"auto_pad": "explicit", "pads_begin": before, "pads_end": after}
    y = _convolved(node, spatial, x, node.inputs[1], dilations, padding)
    return op.add("Squeeze", y, np.asarray([1])) if missing else y


def _of_dilated_convolution(
    op: tf.Operation,
) -> tuple[tf.Operation, tf.Operation, list[tuple[int, int]]] | None:
    """What makes a dilated convolution of one between blocks, as tf.nn.convolution does.

    Returns the SpaceToBatchND, the convolution, and the pads along the axes of blocks; or None.
    """
    convolution = op.inputs[0].op
    of_one_axis = convolution.type == "Squeeze"
    if of_one_axis:
        if convolution.get_attr("squeeze_dims") not in ([1], [-3]):
            return None
        convolution = convolution.inputs[0].op
    if convolution.type not in ("Conv2D", "Conv3D", "DepthwiseConv2dNative"):
        return None
    spread = convolution.inputs[0].op
    if of_one_axis:
        if spread.type != "ExpandDims" or tf.get_static_value(spread.inputs[1]) not in (1, -3):
            return None
        spread = spread.inputs[0].op
    if spread.type != "SpaceToBatchND":
        return None
    is_plain = (
        convolution.get_attr("data_format") in (b"NHWC", b"NDHWC")
        and convolution.get_attr("padding") == b"VALID"
        and {*convolution.get_attr("strides"), *convolution.get_attr("dilations")} <= {1}
    )
    rank = convolution.inputs[0].shape.rank
    blocks, others = (tf.get_static_value(each.inputs[1]) for each in (op, spread))
    if not is_plain or rank is None or blocks is None or not np.array_equal(blocks, others):
        return None
    if len(blocks) > rank - 2 - of_one_axis:
        return None
    pads = []
    for axis in range(len(blocks)):
        ends = [_total(each.inputs[2], (axis, end)) for each in (spread, op) for end in (0, 1)]
        (begin, *open_begin), (end, *open_end), (cut, *open_cut), (crop, *open_crop) = ends
        if open_begin or open_cut or cut or sorted(open_end) != sorted(open_crop) or end < crop:
            return None
        pads.append((begin, end - crop))
    return spread, convolution, pads


def _total(tensor: tf.Tensor, index: tuple[int, ...]) -> list[Any]:
    """An element of a tensor of integers as a sum: a number, and elements that are not known."""
    known, op = tf.get_static_value(tensor), tensor.op
    if known is not None:
        return [int(known[index])]
    if op.type == "Identity":
        return _total(op.inputs[0], index)
    if op.type == "Pack" and op.get_attr("axis") == 0:
        return _total(op.inputs[index[0]], index[1:])
    if op.type == "AddV2" and all(each.shape == tensor.shape for each in op.inputs):
        (first, *some), (second, *others) = (_total(each, index) for each in op.inputs)
        return [first + second, *some, *others]
    whole = op.inputs[0] if op.type == "StridedSlice" else None
    if whole is not None and whole.shape.is_fully_defined():
        limits = [tf.get_static_value(each) for each in op.inputs[1:]]
        if all(limit is not None for limit in limits):
            places = np.arange(whole.shape.num_elements()).reshape(whole.shape)
            masks = {name: op.get_attr(name) for name in _MASKS}
            with tf.init_scope():
                place = tf.strided_slice(places, *limits, **masks).numpy()[index]
            return _total(whole, tuple(map(int, np.unravel_index(place, whole.shape))))
    return [0, (tensor.name, index)]


@writes("SpaceToBatchND")
def _between_batch_and_space(op: Node, x: Operand, blocks: Operand, pads: Operand) -> Port:
    dtype = op.op.inputs[2].dtype.as_numpy_dtype
    values = [np.asarray(op.static(1), dtype), *columns(op, 2, dtype)]
    parts = [_for_all_axes(op, each, fill) for each, fill in zip(values, (1, 0, 0))]
    return op.add(op.op.type.removesuffix("ND"), x, *parts, version="opset2")


def _for_all_axes(op: Node, values: Operand, fill: int) -> Operand:
    """Numbers for the axes after the batch, with one for each other axis."""
    dtype = op.op.inputs[2].dtype.as_numpy_dtype
    rest = op.rank(0) - 1 - op.shape(1).as_list()[0]
    before, after = np.asarray([fill], dtype), np.asarray([fill] * rest, dtype)
    if isinstance(values, np.ndarray):
        return np.concatenate([before, values, after])
    return op.add("Concat", before, values, after, axis=0)


@writes("ResizeBilinear", "ResizeNearestNeighbor")
def _resize(op: Node, x: Operand, size: Operand) -> Port:
    is_linear = op.op.type == "ResizeBilinear"
    centers = "half_pixel" if is_linear else "tf_half_pixel_for_nn"
    aligned = op.attr("align_corners")
    dtype = op.op.inputs[0].dtype
    if not is_linear and dtype in (tf.int16, tf.uint16):
        raise op.error(f"OpenVINO does not resize {dtype.name}")
    x = layout.channels_second(op.network, x, 4)
    if is_linear and dtype != tf.float32:
        kind = element_type_of(tf.float32)
        x = op.add("Convert", x, outputs=[kind], destination_type=kind.name)
    y = op.add(
        "Interpolate",
        x,
        size,
        np.asarray([2, 3]),
        version="opset11",
        mode="linear_onnx" if is_linear else "nearest",
        shape_calculation_mode="sizes",
        coordinate_transformation_mode=(
            "align_corners" if aligned
            else centers if op.attr("half_pixel_centers")
            else "asymmetric"
        ),
        nearest_mode="round_prefer_ceil" if aligned else "floor",
    )  # fmt: skip
    return layout.channels_last(op.network, y, 4)
