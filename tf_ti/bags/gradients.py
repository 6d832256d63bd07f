"""The gradients of the bag ops, and the gradients of those.

All of them are bags again. With w_i the weight of index i in bag b(i), divided by what a mean or
sqrtn divides the bag by, and with <x, y> the dot product of two rows:

    pool:              out[b] = sum over i in b of w_i * table[indices[i]]
    table gradient:    values[r] = sum over i with indices[i] = r of conj(w_i) * grad[b(i)]
    weights gradient:  out[i] = derivative of sum over b of <out[b], grad[b]> by the weight of i
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import host_extent, host_number
from tf_ti.bags.ops import KINDS, PREFIX, SEVERAL, Bags, Table, row_positions
from tf_ti.bags.shares import Shares

# Those of an op's inputs, None for an input that has none or whose gradient nobody wants.
_Gradients: TypeAlias = list[tf.Tensor | tf.IndexedSlices | None]


def _is_wanted(op: tf.Operation, index: int) -> bool:
    """True if somebody may ask for an input's gradient; a graph is pruned of unused ones."""
    given = op.inputs[index]
    function = _tf.other_function(given)
    if function is not None and not _tf.depends_on_inputs(function, given):
        return False  # only the function itself could ask for it
    return index not in (getattr(op, "skip_input_indices", None) or ())


def _table(op: tf.Operation, number: int = 0) -> Table:
    return Table(op.inputs[number], tf.as_dtype(_tf.attribute(op, "T")))


def _function_of(table: Table) -> tf.Graph | None:
    """The other function for whose gradient that of a variable's rows is.

    If the gradient referred to the handle, that would become an output of the function, for which
    the next gradient of the same call has zeros in the size of the variable. The number of rows
    will do. (What is by the weights needs the rows themselves.)
    """
    return _tf.other_function(table.source) if table.is_resource else None


def _shape(table: Table) -> tf.Tensor:
    function = _function_of(table)
    if function is None:
        return table.shape()
    with function.as_default(), tf.control_dependencies(None):
        shape = table.shape()
    static = tf.get_static_value(shape)
    return shape if static is None else tf.constant(static)


def _weights_input(op: tf.Operation) -> int:
    """Which input the weights are: where there are any, the last."""
    return len(op.inputs) - 1


def _table_gradient(
    table: Table, bags: Bags, grad: tf.Tensor, argmax: tf.Tensor | None
) -> tf.IndexedSlices:
    shape = _shape(table)
    if bags.weights is not None:
        bags = bags.replace(weights=tf.math.conj(bags.weights))
    source = table if _function_of(table) is None else shape[0]
    rows, values = bags.table_gradient(source, grad, argmax)
    # TensorFlow's own look-ups have shapes of int32, and tf.cond wants all to be alike.
    return tf.IndexedSlices(values, rows, tf.raw_ops.Cast(x=shape, DstT=tf.int32))


def _weights_gradient(table: Table, bags: Bags, grad: tf.Tensor) -> tf.Tensor:
    return tf.math.conj(bags.weights_gradient(table, tf.math.conj(grad)))


class _Part(NamedTuple):
    """What an op does with one of its tables.

    Attributes:
        number: that of the table among the op's inputs, and of its rows among the outputs.
        bags: those of the table.
        weights_input: the number of the input that their weights are, if there are any.
        argmax_output: that of the output that maxima are found by, likewise.
    """

    number: int
    bags: Bags
    weights_input: int | None
    argmax_output: int | None

    def argmax(self, op: tf.Operation) -> tf.Tensor:
        if self.argmax_output is None:
            raise ValueError(f"{op.type}: without argmax, max has no derivative")
        return op.outputs[self.argmax_output]


def _parts(op: tf.Operation) -> list[_Part]:
    """One for each table."""
    several = Bags.of_several(op) if op.type.endswith(SEVERAL) else [Bags.of(op)]
    num_weights = sum(bags.weights is not None for bags in several)
    weights = iter(range(len(op.inputs) - num_weights, len(op.inputs)))
    argmax = iter(range(len(several), len(op.outputs)))
    return [
        _Part(
            number,
            bags,
            None if bags.weights is None else next(weights),
            next(argmax, None) if bags.reduction == "max" else None,
        )
        for number, bags in enumerate(several)
    ]


def _pool_gradient(op: tf.Operation, *grads: tf.Tensor | None) -> _Gradients:
    gradients: _Gradients = [None] * len(op.inputs)
    for part in _parts(op):
        _add_gradients(op, part, grads[part.number], gradients)
    return gradients


def _add_gradients(op: tf.Operation, part: _Part, grad: tf.Tensor, gradients: _Gradients) -> None:
    """Puts those of a table, and of its weights, where the op's inputs are."""
    table, bags = _table(op, part.number), part.bags
    reads = []
    if part.weights_input is not None and _is_wanted(op, part.weights_input):
        reads.append(_weights_gradient(table, bags, grad))
        gradients[part.weights_input] = reads[0]
    if _is_wanted(op, part.number):
        argmax = part.argmax(op) if bags.reduction == "max" else None
        # XLA would update a copy of a table that is still to be read for its weights.
        with tf.control_dependencies(reads):
            gradients[part.number] = _table_gradient(table, bags, grad, argmax)


def _pool_jvp(op: tf.Operation, tangents: Sequence[tf.Tensor | None]) -> list[tf.Tensor | None]:
    of_output = [_tangent(op, part, tangents) for part in _parts(op)]
    return of_output + [None] * (len(op.outputs) - len(of_output))


def _tangent(op: tf.Operation, part: _Part, tangents: Sequence[tf.Tensor | None]) -> tf.Tensor:
    """That of what one of an op's tables gives."""
    number, bags = part.number, part.bags
    output, of_table = op.outputs[number], tangents[number]
    if of_table is None:  # a variable that has none
        tangent = tf.zeros_like(output)
    elif bags.reduction == "max":
        tangent = _select(of_table, bags, part.argmax(op), output)
    else:
        tangent = bags.pool(Table(of_table, output.dtype))[0]
    if part.weights_input is not None:
        direction = tangents[part.weights_input]
        coefficients = _coefficients(bags, tf.shape(output)[0], direction)
        by_weights = bags.replace(weights=coefficients, reduction="sum", default_index=None)
        tangent += by_weights.pool(_table(op, number))[0]
    return tangent


for _prefix in (PREFIX, f"{PREFIX}Resource"):
    for _name in (*KINDS, SEVERAL):
        _tf.register_gradient(_prefix + _name)(_pool_gradient)
        _tf.register_jvp(_prefix + _name, _pool_jvp)


def _num_emb(op: tf.Operation) -> tf.Tensor:
    """That of the table whose gradient an op computes."""
    source = op.inputs[0]
    return _shape(_table(op))[0] if source.dtype == tf.resource else source


@_tf.register_gradient(f"{PREFIX}EmbeddingBagGrad")
@_tf.register_gradient(f"{PREFIX}ResourceEmbeddingBagGrad")
def _table_gradient_gradient(op: tf.Operation, _: Any, values_grad: tf.Tensor) -> _Gradients:
    """values is linear in grad: the way back pools the rows of values_grad."""
    has_argmax = bool(_tf.attribute(op, "num_argmax"))
    bags = Bags.of(op)
    grad, rows = op.inputs[1], op.outputs[0]
    values_grad = tf.convert_to_tensor(values_grad)
    table = Table(values_grad, values_grad.dtype)
    placed = bags.at_positions(_num_emb(op), rows)
    gradients: _Gradients = [None] * len(op.inputs)
    if has_argmax:
        gradients[1] = _select(table.source, placed, op.inputs[-1], grad)
        return gradients
    if placed.weights is None:
        gradients[1] = _pool(placed, table, grad)
        return gradients
    if _is_wanted(op, 1):
        gradients[1] = _pool(placed.replace(weights=tf.math.conj(placed.weights)), table, grad)
    if _is_wanted(op, _weights_input(op)):
        conjugate = Table(tf.math.conj(table.source), table.dtype)
        gradients[_weights_input(op)] = tf.math.conj(placed.weights_gradient(conjugate, grad))
    return gradients


def _table_gradient_jvp(
    op: tf.Operation, tangents: Sequence[tf.Tensor | None]
) -> list[tf.Tensor | None]:
    """values is linear in grad, and in the weights once they are divided."""
    table, (grad, rows) = _table(op), (op.inputs[1], op.outputs[0])
    bags = Bags.of(op)
    argmax = op.inputs[-1] if _tf.attribute(op, "num_argmax") else None
    _, tangent = bags.table_gradient(table, tangents[1], argmax)
    if bags.weights is not None:
        coefficients = _coefficients(bags, tf.shape(grad)[0], tangents[_weights_input(op)])
        # The rows are the same, but for a default row.
        plain = bags.replace(weights=coefficients, reduction="sum", default_index=None)
        touched, values = plain.table_gradient(table, grad, None)
        places = row_positions(table.shape()[0], touched, rows)[:, tf.newaxis]
        tangent += Bags("packed", places, padding_idx=-1).pool(Table(values, values.dtype))[0]
    return [None, tangent]


# Where TensorFlow has two tapes for it, it wants tangents of handles.
_tf.register_jvp(f"{PREFIX}ResourceEmbeddingBagGrad", _table_gradient_jvp)


def _pool(bags: Bags, table: Table, grad: tf.Tensor) -> tf.Tensor:
    """Pools as many bags as grad has rows."""
    if bags.kind == "segments":
        bags = bags.replace(num_segments=host_number(host_extent(grad, 0), bags.indices.dtype))
    return bags.pool(table)[0]


def _select(values: tf.Tensor, placed: Bags, argmax: tf.Tensor, grad: tf.Tensor) -> tf.Tensor:
    """For each element of a maximum its element in `values`, the gradients of the table's rows."""
    default = -1 if placed.default_index is None else placed.default_index
    default = tf.cast(default, argmax.dtype)
    places = tf.concat([tf.reshape(placed.indices, [-1]), [default]], 0)
    count = tf.size(places, argmax.dtype)
    place = tf.gather(places, tf.where(argmax < 0, count - 1, argmax))
    width = tf.reduce_prod(tf.shape(grad)[1:])
    place = tf.reshape(place, [-1, width])
    column = tf.broadcast_to(tf.range(width, dtype=place.dtype), tf.shape(place))
    # A row of zeros at the end serves the bags that got zeros.
    values = tf.pad(tf.reshape(values, [-1, width]), [[0, 1], [0, 0]])
    place = tf.where(place < 0, tf.shape(values, place.dtype)[0] - 1, place)
    return tf.reshape(tf.gather_nd(values, tf.stack([place, column], -1)), tf.shape(grad))


def _weights_gradient_gradient(op: tf.Operation, upstream: tf.Tensor) -> _Gradients:
    """The op is bilinear in table and grad; by the weights it is the second derivative."""
    table = _table(op)
    grad = op.inputs[1]
    bags = Bags.of(op)
    gradients: _Gradients = [None] * len(op.inputs)
    # As a sum, in which index i has the coefficient with which it enters <output, upstream>. An
    # empty bag has no weights.
    plain = bags.replace(reduction="sum", default_index=None)
    with tf.GradientTape() as tape:
        tape.watch(bags.weights)
        coefficients = _coefficients(bags, tf.shape(grad)[0], tf.math.conj(upstream))
    bilinear = plain.replace(weights=coefficients)
    if _is_wanted(op, 0):
        gradients[0] = _table_gradient(table, bilinear, tf.math.conj(grad), None)
    if _is_wanted(op, 1):
        gradients[1] = tf.math.conj(_pool(bilinear, table, grad))
    if bags.reduction != "sum" and _is_wanted(op, _weights_input(op)):
        products = tf.math.conj(bilinear.weights_gradient(table, grad))
        gradients[_weights_input(op)] = tape.gradient(
            coefficients, bags.weights, output_gradients=products
        )
    return gradients


def _coefficients(bags: Bags, count: tf.Tensor, direction: tf.Tensor) -> tf.Tensor:
    """How the weights, each divided by its bag's divisor, change when they go in `direction`."""
    if bags.reduction == "sum":
        return direction
    return tf.cast(Shares(bags, count).change(direction), direction.dtype)


for _prefix in (PREFIX, f"{PREFIX}Resource"):
    _tf.register_gradient(f"{_prefix}EmbeddingBagWeightsGrad")(_weights_gradient_gradient)
