"""Operations done for many iterations at once: their values have a new first axis for these."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from tf_ti import _operations, _tf
from tf_ti.loops.passes.step import Unknown
from tf_ti.loops.tracing import custom_gradients as _custom_gradients

# The types of values that are batched.
TYPES = frozenset(
    [
        *(tf.bool, tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
        *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64),
    ]
)
_HALVES = (tf.float16, tf.bfloat16)
_FREE = _operations.noted("free")
_FILTERS = _operations.of_kinds("Filter")
# The number of axes that TensorFlow's kernels take, those of gradients too, and those with fewer.
_MOST_AXES = 6
_FEWER_AXES = {"LogSoftmax": 5, "MirrorPad": 5, "Softmax": 5}
# The number of runs of axes, along which the same inputs are broadcast, that they take.
_MOST_RUNS = 5
# The fewest elements of a result that is worth a thread: to make them takes 30 microseconds.
_FEWEST_OF_LARGE = 2**15
# The longest sum that is right: 2^14 is, in TensorFlow 2.21.
_LONGEST_SUM = 2**13
Tensors: TypeAlias = list[tf.Tensor]
Add = Callable[[tf.Operation, Tensors, Sequence[bool]], Sequence[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Rule:
    """The way an operation gets the axis.

    Attributes:
        add: from the operation, its inputs, and which of these have the axis, to its outputs,
            which all have it.
        stacked: the inputs that may have it, or None for all.
        constants: inputs whose values must be known.
        misfit: the reason why another thing does not fit, or None: from the operation, and which
            inputs have the axis.
        once: the same as `add` where no input has it; None where that is another thing than to do
            it in each iteration.
    """

    add: Add
    stacked: tuple[int, ...] | None = None
    constants: tuple[int, ...] = ()
    misfit: Callable[[tf.Operation, Sequence[bool]], str | None] = lambda op, is_stacked: None
    once: Add | None = lambda op, tensors, is_stacked: _tf.repeat_operation(op, tensors)


def is_plain(op: tf.Operation) -> bool:
    """True if an operation is of numbers and of its inputs alone, so may be done elsewhere."""
    return _bond(op) is None


def check_plain(op: tf.Operation) -> None:
    """Refuses an operation that is not plain."""
    bond = _bond(op)
    if bond is not None:
        raise Unknown(bond, op)


def _bond(op: tf.Operation) -> str | None:
    """The reason why an operation is bound to its place, if there is one."""
    if op.control_inputs or _tf.waiting_operations(op):
        return "it waits for another operation, or another one for it"
    for tensor in (*op.inputs, *op.outputs):
        if tensor.dtype not in TYPES:
            return f"it has values of type {tensor.dtype.name}"
        if tensor.shape.rank is None:
            return "the rank of a value is not known"
    if "_gradient_op_type" in op.node_def.attr and _custom_gradients.of(op) is None:
        return "it has a gradient of its own"
    return None


def kind(op: tf.Operation) -> str:
    """The name that rules have for it: its type, or Silu (tf.nn.silu's), or CustomGradient."""
    gradient = _custom_gradients.of(op)
    if gradient is None:
        return op.type
    return "Silu" if gradient.is_silu else "CustomGradient"


def used(op: tf.Operation) -> Sequence[tf.Tensor]:
    """The inputs that matter to `batched`."""
    return op.inputs[1:] if kind(op) == "Silu" else op.inputs


def is_read(tensor: tf.Tensor) -> bool:
    """True if a body has use for one of its tensors."""
    return bool(tensor.consumers()) or any(tensor is t for t in tensor.graph.outputs)


def check(op: tf.Operation, is_stacked: Sequence[bool]) -> None:
    """Refuses an operation for which `batched` has no rule where these of its `used` are batched.

    Where none is, it refuses an operation that may not be done elsewhere, even if it would not be
    done at all.
    """
    check_plain(op)
    rule = RULES.get(kind(op))
    if rule is None:
        raise Unknown(f"there is no rule for {op.type} of all iterations at once", op)
    axes = max(t.shape.rank for t in (*op.inputs, *op.outputs))
    if not any(is_stacked):
        if rule.once is None:
            raise Unknown("to do it once is another thing than to do it in each iteration", op)
        if axes > _FEWER_AXES.get(op.type, axes):
            raise Unknown(f"TensorFlow's kernels do not take {axes} axes", op)
        return
    if axes >= _FEWER_AXES.get(op.type, _MOST_AXES):
        raise Unknown(f"TensorFlow's kernels do not take {axes + 1} axes", op)
    if rule.stacked is not None:
        # Negative ones count from the last.
        allowed = {k % len(is_stacked) for k in rule.stacked}
        for k, flag in enumerate(is_stacked):
            if flag and k not in allowed:
                raise Unknown(f"its input {k} is not the same in all iterations", op)
    for k in rule.constants:
        if tf.get_static_value(op.inputs[k]) is None:
            raise Unknown(f"its input {k % len(op.inputs)} is no constant", op)
    misfit = rule.misfit(op, is_stacked)
    if misfit is not None:
        raise Unknown(misfit, op)


def is_product(op: tf.Operation, is_stacked: Sequence[bool]) -> bool:
    """True for a convolution, and for a product with a factor that all iterations share.

    One large one is faster than many small ones.
    """
    if op.type in ("MatMul", "BatchMatMulV2", "Einsum"):
        return len(is_stacked) == 2 and sum(is_stacked) == 1
    return op.type in _FILTERS


def is_free(op: tf.Operation) -> bool:
    """True if nothing is computed: the output has the input's memory."""
    return op.type in _FREE


def computing(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Those of some operations that compute something."""
    return [
        op
        for op in operations
        if op.type not in ("Const", "NoOp", "Placeholder") and not is_free(op)
    ]


def batched(
    op: tf.Operation, tensors: Sequence[tf.Tensor], is_stacked: Sequence[bool]
) -> list[tf.Tensor]:
    """The outputs of an operation in the current graph, of the tensors that it has `used`."""
    rule = RULES[kind(op)]
    with tf.device(op.device):
        add = rule.add if any(is_stacked) else rule.once
        assert add is not None  # else the operation stays where it is
        return list(add(op, list(tensors), is_stacked))


# --- extents -------------------------------------------------------------------------------------

Extent: TypeAlias = int | tf.Tensor


def extents(tensor: tf.Tensor) -> list[Extent]:
    """Those of all axes: ints where they are known."""
    static = tensor.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.unstack(tf.shape(tensor, tf.int64), len(static))
    return [d if s is None else s for s, d in zip(static, dynamic)]


def reshape(tensor: tf.Tensor, dims: Sequence[Extent], *, may_infer: bool = True) -> tf.Tensor:
    """As tf.reshape, which cannot infer an extent where there are no elements.

    Args:
        tensor, dims: as tf.reshape's.
        may_infer: true if there are as many elements: an extent that is inferred is right then.
    """
    unknown = [k for k, d in enumerate(dims) if not isinstance(d, int)]
    is_one = len(unknown) == 1 and all(d for k, d in enumerate(dims) if k not in unknown)
    if may_infer and is_one:
        dims = [-1 if k in unknown else d for k, d in enumerate(dims)]
        unknown = []
    if unknown:
        shape = tf.stack([tf.cast(d, tf.int64) for d in dims])
    elif tensor.shape.as_list() == list(dims):
        return tensor
    else:
        shape = tf.constant(dims, tf.int64)
    (made,) = _tf.add_operation(
        "Reshape", [tensor, shape], [tensor.dtype], T=tensor.dtype, Tshape=tf.int64
    )
    return made


def multiplied(dims: Sequence[Extent]) -> Extent:
    return math.prod(dims)


def transposed(tensor: tf.Tensor, order: Sequence[int]) -> tf.Tensor:
    return tensor if list(order) == sorted(order) else tf.transpose(tensor, order)


def _spread(tensor: tf.Tensor, count: Extent) -> tf.Tensor:
    """The same for all iterations."""
    return _broadcast_by_float(tensor, (count, *extents(tensor)))


def _broadcast_by_float(tensor: tf.Tensor, dims: Sequence[Extent]) -> tf.Tensor:
    """Broadcasts a tensor. In half precision its gradient is a sum in float32."""
    shape = tf.stack([tf.cast(d, tf.int64) for d in dims])
    if tensor.dtype not in _HALVES:
        return tf.broadcast_to(tensor, shape)
    return tf.cast(tf.broadcast_to(tf.cast(tensor, tf.float32), shape), tensor.dtype)


def all_stacked(tensors: Sequence[tf.Tensor], is_stacked: Sequence[bool]) -> list[tf.Tensor]:
    """The same where those have the axis that had not."""
    count = next(extents(t)[0] for t, flag in zip(tensors, is_stacked) if flag)
    return [t if flag else _spread(t, count) for t, flag in zip(tensors, is_stacked)]


# --- rules ---------------------------------------------------------------------------------------


def _as_it_is(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return _tf.repeat_operation(op, tensors)


def _with_axes_of_result(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    """The operands, in which axes of 1 behind the iterations' make up for a lower rank."""
    rank = op.outputs[0].shape.rank
    tensors = list(tensors)
    for k, flag in enumerate(is_stacked):
        missing = rank - op.inputs[k].shape.rank
        if flag and missing:
            count, *dims = extents(tensors[k])
            tensors[k] = reshape(tensors[k], [count, *[1] * missing, *dims])
    return tensors


def _broadcast(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    tensors = _with_axes_of_result(op, tensors, is_stacked)
    if op.outputs[0].dtype in _HALVES:
        tensors = _with_sums_in_float(op, tensors, is_stacked)
    return _tf.repeat_operation(op, tensors)


def _with_sums_in_float(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    """The operands, broadcast where a gradient would add up iterations, or rows, of halves."""
    result = op.outputs[0].shape

    def is_summed(k: int) -> bool:
        shape = op.inputs[k].shape
        if op.inputs[k].op.type == "Const" or op.inputs[k].dtype not in _HALVES:
            return False
        own = [1] * (result.rank - shape.rank) + shape.as_list()
        return not is_stacked[k] or any(a == 1 != b for a, b in zip(own, result.as_list()))

    summed = [k for k in range(len(tensors)) if is_summed(k)]
    if not summed:
        return tensors
    counts = [_tf.known_extent(t, 0) for t, flag in zip(tensors, is_stacked) if flag]
    dims = [counts[0], *result.as_list()]
    if None in dims:
        shapes = [tf.shape(t, tf.int64) for t in tensors]
        found = tf.unstack(functools.reduce(tf.broadcast_dynamic_shape, shapes), len(dims))
        dims = [f if d is None else d for d, f in zip(dims, found)]
    return [_broadcast_by_float(t, dims) if k in summed else t for k, t in enumerate(tensors)]


def _bias_add(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    value, bias = tensors
    if value.dtype not in _HALVES:
        return _tf.repeat_operation(op, tensors)
    return [value + _broadcast_by_float(bias, extents(value))]


def _of_many_runs(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    shape = op.outputs[0].shape
    inputs = op.inputs[:1] if op.type == "BroadcastTo" else op.inputs
    shapes = [[1] * (shape.rank - t.shape.rank) + t.shape.as_list() for t in inputs]
    kinds = [
        # An extent that is not known may be 1, and another one next to it not.
        object() if None in axis and len(inputs) > 1 else tuple(d == 1 for d in axis)
        for axis in zip(*shapes, shape.as_list())
        if set(axis) != {1}
    ]
    runs = sum(1 for _ in itertools.groupby(kinds))
    is_one_too_many = runs + 1 > _MOST_RUNS
    return "TensorFlow's kernels do not broadcast along so many axes" if is_one_too_many else None


def _of_integers(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    dtype = op.inputs[0].dtype
    if not dtype.is_floating and not dtype.is_complex:
        return "of integers it fails on some values"
    return _of_many_runs(op, is_stacked)


def _axes_at(k: int, value: int = 0, added: int = 0, once: Add = _as_it_is) -> Rule:
    """Input `k` names axes of input `value`, or of one with `added` axes more."""

    def add(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Sequence[tf.Tensor]:
        axes = np.asarray(tf.get_static_value(op.inputs[k]))
        rank = op.inputs[value].shape.rank + added
        tensors[k] = tf.constant(np.where(axes < 0, axes + rank, axes) + 1, op.inputs[k].dtype)
        return once(op, tensors, is_stacked)

    return Rule(add, stacked=(value,), constants=(k,), once=once)


def _reduced(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    """A sum, a mean or a product, of half precision in float32, rounded once.

    Programs do the same. Some of TensorFlow's kernels add up columns in half precision.
    """
    value, axes = tensors
    if value.dtype not in _HALVES:
        return _tf.repeat_operation(op, tensors)
    reduce = getattr(tf.raw_ops, op.type)
    keep_dims = op.get_attr("keep_dims")
    made = reduce(input=tf.cast(value, tf.float32), axis=axes, keep_dims=keep_dims)
    return [tf.cast(made, value.dtype)]


def _with_first(entries_of_new: dict[int, int | list[int]]) -> Rule:
    """Inputs have an entry for each axis; these, by input, are those of the new one."""

    def add(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
        for k, entry in entries_of_new.items():
            entries = np.asarray(tf.get_static_value(op.inputs[k]))
            tensors[k] = tf.constant(np.concatenate([[entry], entries]), op.inputs[k].dtype)
        return _tf.repeat_operation(op, tensors)

    return Rule(add, stacked=(0,), constants=tuple(entries_of_new))


def _matmul(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    a, b = tensors
    transpose_a, transpose_b = op.get_attr("transpose_a"), op.get_attr("transpose_b")
    if all(is_stacked):
        return [tf.matmul(a, b, transpose_a, transpose_b)]
    if is_stacked[0]:
        return [_rows_times(_turned(a) if transpose_a else a, b, transpose_b)]
    # The transpose of the transposes' product.
    b = b if transpose_b else _turned(b)
    return [_turned(_rows_times(b, a, not transpose_a))]


def _of_long_product(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    (rows, inner), (_, columns) = (
        t.shape[::-1] if op.get_attr(f"transpose_{name}") else t.shape
        for name, t in zip("ab", op.inputs)
    )
    return _of_long_sums(op, is_stacked, [rows, inner, columns])


def _of_long_sums(
    op: tf.Operation, is_stacked: Sequence[bool], lengths: Iterable[int | None]
) -> str | None:
    """OneDNN's batched products are wrong in TensorFlow 2.21 where sums are long and threads many.

    Args:
        op: a product.
        is_stacked: for each factor, true if it differs from iteration to iteration.
        lengths: of the sums of the product, and of its gradients, which are over the other axes.
    """
    if not all(is_stacked) or op.outputs[0].dtype not in (*_HALVES, tf.float32):
        return None
    is_short = all(length is not None and length <= _LONGEST_SUM for length in lengths)
    return None if is_short else "TensorFlow's batched products may be wrong for so long sums"


def _rows_times(rows: tf.Tensor, matrix: tf.Tensor, transpose: bool) -> tf.Tensor:
    """One product with all rows of all matrices."""
    *outer, width = extents(rows)
    flat = reshape(rows, [multiplied(outer), width])
    (product,) = _tf.add_operation(
        "MatMul", [flat, matrix], [flat.dtype], T=flat.dtype, transpose_b=transpose
    )
    return reshape(product, [*outer, extents(product)[1]])


def _turned(matrices: tf.Tensor) -> tf.Tensor:
    *outer, rows, columns = extents(matrices)
    if 1 in (_tf.known_extent(matrices, -1), _tf.known_extent(matrices, -2)):
        return reshape(matrices, [*outer, columns, rows])
    return tf.linalg.matrix_transpose(matrices)


def _batch_matmul(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    dtype, (a, b) = op.outputs[0].dtype, op.inputs
    adj_x, adj_y = op.get_attr("adj_x"), op.get_attr("adj_y")
    is_matrix = b.shape.rank == 2 and not is_stacked[1]
    # MatMul takes no int16, unlike BatchMatMulV2.
    if is_matrix and not adj_x and not dtype.is_complex and dtype != tf.int16:
        return [_rows_times(tensors[0], tensors[1], adj_y)]
    tensors = _with_axes_of_result(op, tensors, is_stacked)
    is_shared = not all(is_stacked) or a.shape[:-2].as_list() != b.shape[:-2].as_list()
    if dtype in _HALVES and is_shared:
        # The gradient of a shared factor is a sum over the products.
        x, y = (tf.cast(t, tf.float32) for t in tensors)
        return [tf.cast(tf.raw_ops.BatchMatMulV2(x=x, y=y, adj_x=adj_x, adj_y=adj_y), dtype)]
    return _tf.repeat_operation(op, tensors)


def _einsum(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    equation = op.get_attr("equation").decode()
    if _repeats_result(equation):
        return _tf.repeat_operation(op, tensors)
    free = next(c for c in "zyxwvutsrqponmlkjihgfedcba" if c not in equation)
    operands, result = equation.split("->")
    labels = [free * flag + label for flag, label in zip(is_stacked, operands.split(","))]
    return [_einsum_of(f"{','.join(labels)}->{free * any(is_stacked)}{result}", tensors)]


def _einsum_of(equation: str, tensors: Tensors) -> tf.Tensor:
    """The einsum; where one operand alone is added up, as `_reduced`."""
    dtype = tensors[0].dtype
    operands, result = equation.split("->")
    labels = operands.split(",")
    others = [set(result).union(*labels[:k], *labels[k + 1 :]) for k in range(len(labels))]
    if dtype in _HALVES and any(set(own) - rest for own, rest in zip(labels, others)):
        tensors = [tf.cast(t, tf.float32) for t in tensors]
    return tf.cast(tf.einsum(equation, *tensors), dtype)


def _repeats_result(equation: str) -> bool:
    """True of a gradient of a diagonal, which tf.einsum refuses."""
    labels = equation.partition("->")[2].replace("...", "")
    return len(set(labels)) < len(labels)


def _of_einsum(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    equation = op.get_attr("equation").decode()
    if _repeats_result(equation):
        return "its result has a label twice"
    if set("zyxwvutsrqponmlkjihgfedcba") <= set(equation):
        return "it uses all letters"
    operands = equation.split("->")[0].split(",")
    if len(operands) == 1:
        return None
    extents_of: dict[str, int | None] = {}
    for labels, tensor in zip(operands, op.inputs):
        before, _, after = labels.partition("...")
        dims = tensor.shape.as_list()
        extents_of.update(zip(before, dims))
        extents_of.update(zip(reversed(after), reversed(dims)))
    # The labels of one factor that are in the result, and the labels of both that are not.
    one, other = map(set, operands)
    result = set(equation.split("->")[1])
    sums = (one - other) & result, (other - one) & result, (one & other) - result
    # An extent that is not known is too long.
    lengths = [
        math.prod(extents_of[label] or 2 * _LONGEST_SUM for label in labels if label in extents_of)
        for labels in sums
    ]
    return _of_long_sums(op, is_stacked, lengths)


def _images(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    """The iterations and the batch, which comes first, are one batch."""
    count, batch, *dims = extents(tensors[0])
    tensors[0] = reshape(tensors[0], [multiplied([count, batch]), *dims])
    (made,) = _tf.repeat_operation(op, tensors)
    return [reshape(made, [count, batch, *extents(made)[1:]])]


def has_no_gradient(op: tf.Operation) -> bool:
    """True for a convolution with dilations beside paddings of its own."""
    is_explicit = op.type in _FILTERS and op.get_attr("padding") == b"EXPLICIT"
    return is_explicit and set(op.get_attr("dilations")) != {1}


def _of_other_layout(*known: bytes) -> Callable[[tf.Operation, Sequence[bool]], str | None]:
    def misfit(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
        layout = op.get_attr("data_format")
        if has_no_gradient(op):
            return "TensorFlow has no gradient of it"
        return None if layout in known else f"its layout is {layout.decode()}"

    return misfit


def _concat(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    *values, axis = tensors
    values = all_stacked(values, is_stacked[:-1])
    axis = int(tf.get_static_value(axis))
    return [tf.concat(values, axis + 1 if axis >= 0 else axis)]


def _pack(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    axis = op.get_attr("axis")
    return [tf.stack(all_stacked(tensors, is_stacked), axis + 1 if axis >= 0 else axis)]


def _unpack(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    axis = op.get_attr("axis")
    return tf.unstack(tensors[0], op.get_attr("num"), axis + 1 if axis >= 0 else axis)


def _set_diagonal(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return _tf.repeat_operation(op, [*all_stacked(tensors[:2], is_stacked[:2]), tensors[2]])


def _solve(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return _tf.repeat_operation(op, _with_axes_of_result(op, tensors, is_stacked))


def _solve_equal_batches(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return _tf.repeat_operation(op, all_stacked(tensors, is_stacked))


def _add_all(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return [tf.add_n(all_stacked(tensors, is_stacked))]


def _of_one_shape(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    """The kernel takes operands of one shape."""
    tensors = _with_axes_of_result(op, all_stacked(tensors, is_stacked), [True] * len(tensors))
    shape = functools.reduce(tf.broadcast_dynamic_shape, map(tf.shape, tensors))
    return _tf.repeat_operation(op, [tf.broadcast_to(t, shape) for t in tensors])


def _transpose(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    order = tf.get_static_value(op.inputs[1])
    return [tf.transpose(tensors[0], [0, *(order % len(order) + 1)])]


def _squeeze(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    axes = op.get_attr("squeeze_dims")
    if not axes:
        axes = [k for k, d in enumerate(op.inputs[0].shape.as_list()) if d == 1]
    # tf.squeeze without axes would drop all axes of 1, and the iterations' axis may be one.
    return [tf.squeeze(tensors[0], [a + 1 if a >= 0 else a for a in axes])] if axes else tensors


def _of_unknown_axes(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    is_known = op.get_attr("squeeze_dims") or op.inputs[0].shape.is_fully_defined()
    return None if is_known else "the axes that it removes are not known"


def _reshape(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    count, *dims = extents(tensors[0])
    shape = op.outputs[0].shape.as_list()
    if None in shape:
        given = tf.cast(tensors[1], tf.int64)
        known = tf.abs(tf.reduce_prod(given))
        missing = tf.cast(multiplied(dims), tf.int64) // tf.maximum(known, 1)
        found = tf.unstack(tf.where(given < 0, missing, given), len(shape))
        shape = [f if s is None else s for s, f in zip(shape, found)]
    # Iterations that have another number of elements fail, as they do in the loop.
    is_known = all(t.shape.is_fully_defined() for t in (op.inputs[0], op.outputs[0]))
    return [reshape(tensors[0], [count, *shape], may_infer=is_known)]


def _broadcast_to(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    count, *dims = extents(tensors[0])
    shape = [int(d) for d in tf.get_static_value(op.inputs[1])]
    dims = [*[1] * (len(shape) - len(dims)), *dims]
    return [_broadcast_by_float(reshape(tensors[0], [count, *dims]), (count, *shape))]


def _strided_slice(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    begin, end, strides = (
        tf.constant([first, *tf.get_static_value(t)], t.dtype)
        for first, t in zip((0, 0, 1), op.inputs[1:])
    )
    masks = {
        name: op.get_attr(name) << 1
        for name in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    }
    for name in ("begin_mask", "end_mask"):
        masks[name] = op.get_attr(name) << 1 | 1
    return [tf.strided_slice(tensors[0], begin, end, strides, **masks)]


def _one_hot(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    indices, depth, on, off = tensors
    axis = op.get_attr("axis")
    return [tf.one_hot(indices, depth, on, off, axis + 1 if axis >= 0 else axis, on.dtype)]


def _gather(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    params, indices, _ = tensors
    axis = int(tf.get_static_value(op.inputs[2]))
    if is_stacked[0]:
        axis = axis + 1 if axis >= 0 else axis
    return [tf.gather(params, indices, axis=axis)]


def _of_pairs(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    if op.get_attr("batch_dims"):
        return "it has batch_dims"
    if is_stacked[0] and is_stacked[1]:
        return "both its tensor and its indices are other ones in each iteration"
    axis = int(tf.get_static_value(op.inputs[2])) % op.inputs[0].shape.rank
    return None if is_stacked[0] or axis == 0 else f"it gathers along axis {axis}"


def _is_large_on_cpu(op: tf.Operation) -> bool:
    if _tf.expects_xla() or _tf.expects_gpu():
        return False
    size = op.outputs[0].shape.num_elements()
    return size is None or size >= _FEWEST_OF_LARGE


def _of_large_images(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    """TensorFlow's kernel for CPUs takes one thread, and iterations at once take all."""
    is_large = _is_large_on_cpu(op)
    return "TensorFlow's kernel resizes a batch of images on one thread" if is_large else None


def _of_large_steps(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    """TensorFlow's kernel for CPUs is faster along the first axis, and of few axes."""
    is_step = op.type == "ReverseV2" or np.any(tf.get_static_value(op.inputs[3]) != 1)
    is_slow = is_step and op.outputs[0].shape.num_elements() is not None and _is_large_on_cpu(op)
    return "TensorFlow's kernel takes longer with one more axis" if is_slow else None


def _with_tensors_beside(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    is_scalar = all(t.shape.rank == 0 for t in op.inputs[1:])
    return None if is_scalar else "its limits are no scalars"


def _silu(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return [tf.nn.silu(*tensors)]


def _with_tensor_beta(op: tf.Operation, is_stacked: Sequence[bool]) -> str | None:
    """The gradient of another beta has its shape in no iteration either."""
    is_scalar = op.inputs[2].shape.rank == 0 and not any(map(is_read, op.outputs[1:]))
    return None if is_scalar else "its beta is no scalar"


def _identities(op: tf.Operation, tensors: Tensors, is_stacked: Sequence[bool]) -> Tensors:
    return all_stacked(tensors, is_stacked)


def _is_broadcast(row: _operations.Operation) -> bool:
    return row.kind == "Elementwise" and "own_shapes" not in row.notes


def _rules() -> dict[str, Rule]:
    names, of_kinds = _operations.names, _operations.of_kinds
    as_they_are = {"Identity", "OnesLike", "Snapshot", "StopGradient", "ZerosLike"}
    elementwise = as_they_are | names(lambda r: _is_broadcast(r) and r.fails == "Never")
    of_integers = names(lambda r: _is_broadcast(r) and r.fails == "OfIntegers")
    along = {"All", "Any", "ArgMax", "ArgMin", "Cumprod", "Cumsum", "Max", "Min"}
    layouts = (b"NHWC", b"NCHW", b"NDHWC", b"NCDHW")
    of_images = Rule(_images, stacked=(0,), misfit=_of_other_layout(*layouts))
    of_one_thread = {"ResizeArea", "ResizeBicubic", "ResizeBilinear"}
    of_last_axes = of_kinds("Color", "Decomposition", "Transform")
    rules = dict.fromkeys(elementwise, Rule(_broadcast, misfit=_of_many_runs))
    rules |= dict.fromkeys(of_integers, Rule(_broadcast, misfit=_of_integers))
    rules |= dict.fromkeys(along, _axes_at(1))
    rules |= dict.fromkeys(("Mean", "Prod", "Sum"), _axes_at(1, once=_reduced))
    rules |= dict.fromkeys(of_kinds("Filter", "Pooling"), of_images)
    rules |= dict.fromkeys(of_kinds("Resizing"), Rule(_images, stacked=(0,)))
    rules |= dict.fromkeys(of_one_thread, Rule(_images, (0,), misfit=_of_large_images))
    rules |= dict.fromkeys(of_last_axes, Rule(_as_it_is, stacked=(0,)))
    rules |= dict.fromkeys(("BandedTriangularSolve", "MatrixTriangularSolve"), Rule(_solve))
    return rules | {
        "AddN": Rule(_add_all),
        "BatchMatMulV2": Rule(_batch_matmul),
        "Betainc": Rule(_of_one_shape),
        "BiasAdd": Rule(_bias_add, (0,), misfit=_of_other_layout(b"NHWC")),
        "BroadcastTo": Rule(_broadcast_to, (0,), constants=(1,), misfit=_of_many_runs),
        "ClipByValue": Rule(_as_it_is, stacked=(0,), misfit=_with_tensors_beside),
        "ConcatV2": Rule(_concat, constants=(-1,)),
        "Const": Rule(_as_it_is),
        "Einsum": Rule(_einsum, misfit=_of_einsum, once=_einsum),
        "ExpandDims": _axes_at(1, added=1),
        "Fill": Rule(_as_it_is, stacked=()),
        "GatherNd": Rule(_as_it_is, stacked=(1,)),
        "GatherV2": Rule(_gather, constants=(2,), misfit=_of_pairs),
        "IdentityN": Rule(_identities),
        "LogSoftmax": Rule(_as_it_is),
        "MatMul": Rule(_matmul, misfit=_of_long_product),
        "MatrixBandPart": Rule(_as_it_is, stacked=(0,)),
        "MatrixDiagPartV3": Rule(_as_it_is, stacked=(0,)),
        "MatrixDiagV3": Rule(_as_it_is, stacked=(0,)),
        "MatrixSetDiagV3": Rule(_set_diagonal, stacked=(0, 1)),
        "NthElement": Rule(_as_it_is, stacked=(0,)),
        "MirrorPad": _with_first({1: [0, 0]}),
        "OneHot": Rule(_one_hot, stacked=(0,)),
        "MatrixSolve": Rule(_solve_equal_batches),
        "Pack": Rule(_pack),
        "Pad": _with_first({1: [0, 0]}),
        "PadV2": _with_first({1: [0, 0]}),
        "Range": Rule(_as_it_is, stacked=()),
        "Reshape": Rule(_reshape, stacked=(0,)),
        "Shape": Rule(_as_it_is, stacked=()),
        "Silu": Rule(_silu, stacked=(0,), misfit=_with_tensor_beta, once=_silu),
        "Slice": _with_first({1: 0, 2: -1}),
        "Softmax": Rule(_as_it_is),
        "Split": _axes_at(0, value=1),
        "SplitV": _axes_at(2),
        "Squeeze": Rule(_squeeze, misfit=_of_unknown_axes),
        "ReverseV2": dataclasses.replace(_axes_at(1), misfit=_of_large_steps),
        "StridedSlice": Rule(_strided_slice, (0,), constants=(1, 2, 3), misfit=_of_large_steps),
        "Tile": _with_first({1: 1}),
        "TopKV2": Rule(_as_it_is, stacked=(0,)),
        "Transpose": Rule(_transpose, stacked=(0,), constants=(1,)),
        "Unpack": Rule(_unpack),
    }


# By `kind`. The rule of custom gradients, which knows loops, is entered where these are there.
RULES = _rules()
