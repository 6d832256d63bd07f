"""The native bag ops, from one description of which rows make up which bag."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._arguments import host_number, on_host
from tf_ti._library import ops

PREFIX = "TfTi>"
# The types of tables.
NUMBERS = frozenset(
    {tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.complex64, tf.complex128}
    | {tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64}
)
# These are summed, and may be weighted, in float32.
HALVES = (tf.float16, tf.bfloat16)
FLOATS = (tf.float32, tf.float64, *HALVES)
PARTITION = f"{PREFIX}EmbeddingBagPartition"
_WEIGHTS = "per_sample_weights"
GRADIENTS = (f"{PREFIX}EmbeddingBagGrad", f"{PREFIX}ResourceEmbeddingBagGrad")
# The form in which each op takes its bags.
KINDS = {
    "EmbeddingBagOffsets": "offsets",
    "EmbeddingBagPacked": "packed",
    "EmbeddingSegmentsSum": "segments",
}
# The op of several tables, each with bags of any kind.
SEVERAL = "EmbeddingBags"
_tf.register_reads(
    *(f"{PREFIX}Resource{op}" for op in (*KINDS, SEVERAL)),
    GRADIENTS[1],
    f"{PREFIX}ResourceEmbeddingBagWeightsGrad",
)
# So that what unused_gradient() finds, and an update takes the place of, is not computed.
_tf.wait_for_no_dead(GRADIENTS[1])
# The op for each kind of bags, of a tensor and of a variable.
_POOL = {
    ("offsets", False): ops.tf_ti_embedding_bag_offsets,
    ("offsets", True): ops.tf_ti_resource_embedding_bag_offsets,
    ("packed", False): ops.tf_ti_embedding_bag_packed,
    ("packed", True): ops.tf_ti_resource_embedding_bag_packed,
    ("segments", False): ops.tf_ti_embedding_segments_sum,
    ("segments", True): ops.tf_ti_resource_embedding_segments_sum,
}


# An eager call makes a Table and Bags, which nobody changes; frozen ones take three times as long.
@dataclasses.dataclass(eq=False)
class Table:
    """An embedding table: a tensor, or the handle of a variable, of type `dtype`.

    `variable` is that variable, where it is known.
    """

    source: tf.Tensor
    dtype: tf.DType
    variable: tf.Variable | None = None

    @property
    def is_resource(self) -> bool:
        return self.variable is not None or self.source.dtype == tf.resource

    @property
    def value(self) -> tf.Tensor | tf.Variable:
        return self.source if self.variable is None else self.variable

    def shape(self) -> tf.Tensor:
        if self.is_resource:
            return _tf.variable_shape(self.source, tf.int64)
        return tf.shape(self.source, tf.int64)

    def num_emb(self) -> tf.Tensor | int:
        """The number of rows; an int where it is known."""
        static = _tf.known_extent(self.value, 0)
        if static is not None:
            return static
        shape = self.shape()
        with on_host():
            return shape[0]


@dataclasses.dataclass(eq=False)
class Bags:
    """Which rows make up which bag, and how a bag is reduced. As in the ops' documentation.

    Attributes:
        kind: "offsets", "packed" or "segments".
        indices: the rows.
        bounds: the offsets or the segment ids; None for packed bags.
        num_segments: a scalar; only for segments.
    """

    kind: str
    indices: tf.Tensor
    bounds: tf.Tensor | None = None
    num_segments: tf.Tensor | None = None
    default_index: tf.Tensor | None = None
    weights: tf.Tensor | None = None
    include_last_offset: bool = False
    padding_idx: int | None = None
    reduction: str = "sum"

    @classmethod
    def of(cls, op: tf.Operation, inputs: Sequence[tf.Tensor] | None = None) -> "Bags":
        """The bags of a native op of one table, or of others in place of its inputs."""
        named = _tf.inputs_by_name(op, op.inputs if inputs is None else inputs)
        kind = KINDS.get(op.type.removeprefix(PREFIX).removeprefix("Resource"))
        kind = kind or _tf.attribute(op, "bags")
        lists = [named.get("offsets") or named.get("segment_ids") or named.get("bounds", [])]
        lists += (named.get(name, []) for name in ("num_segments", "default_index", _WEIGHTS))
        bounds, count, default_index, weights = (next(iter(n), None) for n in lists)
        has_last = kind == "offsets" and bool(_tf.attribute(op, "include_last_offset"))
        (indices,), options = named["indices"], cls._options(op)
        return cls(kind, indices, bounds, count, default_index, weights, has_last, *options)

    @classmethod
    def of_several(
        cls, op: tf.Operation, inputs: Sequence[tf.Tensor] | None = None
    ) -> list["Bags"]:
        """The bags of each table of an op of several, or of others in place of its inputs."""
        named = _tf.inputs_by_name(op, op.inputs if inputs is None else inputs)
        lists = {name: iter(tensors) for name, tensors in named.items()}
        kinds, has_last = _tf.attribute(op, "bags"), bool(_tf.attribute(op, "include_last_offset"))
        count = len(kinds)
        padding_idx = _tf.attribute(op, "padding_idx")
        padded = _tf.attribute(op, "padded") or range(count)
        paddings = dict(zip(padded, padding_idx * count if len(padding_idx) == 1 else padding_idx))
        weighted = _tf.attribute(op, "weighted") or range(count)
        reductions = _tf.attribute(op, "reductions") or [_tf.attribute(op, "reduction")] * count
        return [
            cls(
                kind,
                next(lists["indices"]),
                next(lists["bounds"]) if kind != "packed" else None,
                next(lists["num_segments"]) if kind == "segments" else None,
                next(lists["default_index"], None),
                next(lists[_WEIGHTS], None) if number in weighted else None,
                kind == "offsets" and has_last,
                paddings.get(number),
                reductions[number],
            )
            for number, kind in enumerate(kinds)
        ]

    @staticmethod
    def _options(op: tf.Operation) -> tuple[int | None, str]:
        """The padding and the reduction of an op of one table."""
        padding_idx = _tf.attribute(op, "padding_idx")
        reduction = "sum" if op.type == PARTITION else _tf.attribute(op, "reduction")
        return padding_idx[0] if padding_idx else None, reduction

    def replace(self, **changes: Any) -> "Bags":
        # dataclasses.replace takes twice as long, of which an eager call has several.
        return Bags(**{**vars(self), **changes})

    def _optional_inputs(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return _present(self.default_index), _present(self.weights)

    def _attributes(self) -> dict[str, Any]:
        return {"padding_idx": [] if self.padding_idx is None else [self.padding_idx]}

    def _gradient_attributes(self) -> dict[str, Any]:
        return {
            "bags": self.kind,
            "include_last_offset": self.include_last_offset,
            "reduction": self.reduction,
            **self._attributes(),
        }

    def pool(
        self, table: Table, with_argmax: bool = False, name: str | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """The pooled rows; for max also where they are from, if asked for."""
        kind, is_resource = self.kind, table.is_resource
        inputs, attributes = [table.source, self.indices], self._attributes()
        if kind != "packed":
            inputs.append(self.bounds)
        if kind == "segments":
            inputs.append(self.num_segments)
        if kind == "offsets":
            attributes["include_last_offset"] = self.include_last_offset
        if is_resource:
            attributes["T"] = table.dtype
        result = _POOL[kind, is_resource](
            *inputs,
            *self._optional_inputs(),
            num_argmax=int(with_argmax),
            reduction=self.reduction,
            name=name,
            **attributes,
        )
        return result.output, result.argmax[0] if with_argmax else None

    def count(self) -> tf.Tensor | int:
        """The number of bags; what is below 0 is for the kernels to refuse."""
        if self.kind == "segments":
            return self.num_segments
        ends = self.indices if self.bounds is None else self.bounds
        count = _tf.known_extent(ends, 0)
        count = tf.shape(ends)[0] if count is None else count
        return count - int(self.include_last_offset)

    def table_gradient(
        self,
        table: Table | tf.Tensor | int,
        grad: tf.Tensor,
        argmax: tf.Tensor | None,
        number: int = -1,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The rows that the bags touch, ascending, and their gradients.

        Of a variable's rows it is computed where the variable is; else a number of rows will do.
        `number` is the table's in errors, where there are several.
        """
        if isinstance(table, Table) and table.is_resource:
            op, source = ops.tf_ti_resource_embedding_bag_grad, table.source
        else:
            op = ops.tf_ti_embedding_bag_grad
            num_emb = table.num_emb() if isinstance(table, Table) else table
            source = _opaque_number(num_emb)
        rows, values = op(
            source,
            grad,
            self.indices,
            _present(self.bounds),
            *self._optional_inputs(),
            _present(argmax),
            number=number,
            **self._gradient_attributes(),
        )
        if not tf.is_symbolic_tensor(rows):
            rows._tf_ti_are_distinct = True
        return rows, values

    def update(
        self,
        rule: str,
        handles: list[tf.Tensor],
        grad: tf.Tensor,
        argmax: tf.Tensor | None,
        *numbers: tf.Tensor,
        **attributes: Any,
    ) -> None:
        """An optimizer's step with table_gradient(), which no memory holds."""
        getattr(ops, f"tf_ti_embedding_bag_{rule}")(
            *handles,
            grad,
            self.indices,
            _present(self.bounds),
            *self._optional_inputs(),
            _present(argmax),
            *numbers,
            **self._gradient_attributes(),
            **attributes,
        )

    def touched(self, num_emb: tf.Tensor | int, number: int = -1) -> tf.Tensor:
        """The rows that the bags touch, as table_gradient gives them, after a check of all ids."""
        plain = self.replace(weights=None, reduction="sum")
        zeros = tf.zeros([tf.maximum(self.count(), 0), 1])
        return plain.table_gradient(num_emb, zeros, None, number)[0]

    def partition(
        self,
        num_emb: tf.Tensor | int,
        num_shards: int,
        strategy: str,
        dtype: tf.DType,
        with_positions: bool,
    ) -> "Partition":
        """The bags of each shard, without weights; `dtype` is that of their ids."""
        return Partition(
            *ops.tf_ti_embedding_bag_partition(
                _opaque_number(num_emb),
                self.indices,
                _present(self.bounds),
                _present(self.num_segments),
                _present(self.default_index),
                bags=self.kind,
                include_last_offset=self.include_last_offset,
                num_shards=num_shards,
                num_positions=num_shards if with_positions else 0,
                strategy=strategy,
                Tlocal=dtype,
                **self._attributes(),
            )
        )

    def at_positions(self, num_emb: tf.Tensor | int, rows: tf.Tensor) -> "Bags":
        """The same bags, of the positions of their indices among the rows of table_gradient.

        An index that is no row of the table stays none.
        """

        indices = row_positions(num_emb, rows, self.indices)
        if self.padding_idx is not None:
            is_padding = tf.equal(self.indices, self.padding_idx)
            indices = tf.where(is_padding, tf.cast(-1, indices.dtype), indices)
        default_index = self.default_index
        if default_index is not None:
            default_index = tf.maximum(row_positions(num_emb, rows, default_index), -1)
        return self.replace(indices=indices, default_index=default_index, padding_idx=-1)

    def weights_gradient(self, table: Table, grad: tf.Tensor) -> tf.Tensor:
        op = ops.tf_ti_embedding_bag_weights_grad
        if table.is_resource:
            op = ops.tf_ti_resource_embedding_bag_weights_grad
        return op(
            table.source,
            grad,
            self.indices,
            _present(self.bounds),
            *self._optional_inputs(),
            **self._gradient_attributes(),
        )


def of_one_index_type(several: Sequence[Bags]) -> Sequence[Bags]:
    """The same bags with one type for all that counts rows or bags, as an op takes them."""
    if _have_one_index_type(several):
        return several
    return [
        bags.replace(
            indices=tf.cast(bags.indices, tf.int64),
            bounds=None if bags.bounds is None else tf.cast(bags.bounds, tf.int64),
            num_segments=_wide_number(bags.num_segments),
            default_index=_wide_number(bags.default_index),
        )
        for bags in several
    ]


def _wide_number(number: tf.Tensor | None) -> tf.Tensor | None:
    return None if number is None else host_number(number, tf.int64)


def _have_one_index_type(several: Sequence[Bags]) -> bool:
    # In a tuple, an element is first compared by `is`; `==` of types takes long.
    expected = (several[0].indices.dtype,)
    for bags in several:
        for tensor in (bags.indices, bags.bounds, bags.num_segments, bags.default_index):
            if tensor is not None and tensor.dtype not in expected:
                return False
    return True


def pool_several(
    tables: Sequence[Table],
    bags: Sequence[Bags],
    numbers: Sequence[int],
    with_argmax: bool = False,
    name: str | None = None,
) -> list[tf.Tensor]:
    """The pooled rows of each table, by one op.

    All tables are tensors, or all are variables, and of one dtype; a default row all have or none.
    `numbers` are those of the tables in errors.
    """
    bags = of_one_index_type(bags)
    weighted = [k for k, each in enumerate(bags) if each.weights is not None]
    if len({each.weights.dtype for each in bags if each.weights is not None}) > 1:
        bags = [
            each
            if each.weights is None
            else each.replace(weights=tf.cast(each.weights, tf.float32))
            for each in bags
        ]
    reductions = [each.reduction for each in bags]
    attributes, op = {}, ops.tf_ti_embedding_bags
    if tables[0].is_resource:
        attributes["T"] = tables[0].dtype
        op = ops.tf_ti_resource_embedding_bags

    def given(field: str) -> list[Any]:
        values = (getattr(each, field) for each in bags)
        return [value for value in values if value is not None]

    return op(
        [table.source for table in tables],
        given("indices"),
        given("bounds"),
        given("num_segments"),
        given("default_index"),
        given("weights"),
        num_argmax=reductions.count("max") if with_argmax else 0,
        bags=[each.kind for each in bags],
        include_last_offset=any(each.include_last_offset for each in bags),
        weighted=weighted,
        padding_idx=given("padding_idx"),
        padded=[k for k, each in enumerate(bags) if each.padding_idx is not None],
        reductions=reductions,
        numbers=numbers,
        name=name,
        **attributes,
    ).output


class Partition(NamedTuple):
    """The outputs of the op that cuts bags into those of shards; all but the last are lists."""

    ids: list[tf.Tensor]
    offsets: list[tf.Tensor]
    bag_numbers: list[tf.Tensor]
    positions: list[tf.Tensor]
    is_empty: tf.Tensor


def local_rows(
    rows: tf.Tensor, num_emb: tf.Tensor, num_shards: int, strategy: str
) -> list[tf.Tensor]:
    """For each shard the rows as it numbers them, in int64, and -1 for those that it has not."""
    result, begin = [], np.int64(0)
    for k in range(num_shards):
        if strategy == "mod":
            local, is_mine = rows // num_shards, (rows >= 0) & tf.equal(rows % num_shards, k)
        else:
            end = begin + (num_emb + num_shards - 1 - k) // num_shards
            local, is_mine = rows - begin, (rows >= begin) & (rows < end)
            begin = end
        result.append(tf.where(is_mine, local, np.int64(-1)))
    return result


def are_distinct(rows: tf.Tensor) -> bool:
    """True if they are known to be those of a gradient, which has each row once.

    (XLA's has some of them again, with gradients of zeros.)
    """
    if tf.is_symbolic_tensor(rows):
        return rows.op.type in GRADIENTS
    return getattr(rows, "_tf_ti_are_distinct", False)


def unused_gradient(
    handle: tf.Tensor, rows: tf.Tensor, values: tf.Tensor
) -> tuple[Bags, tf.Tensor, tf.Tensor | None] | None:
    """The arguments of the table_gradient that made these, for a variable in the current graph.

    None where they are anything else, or where something has use for them by now.
    """
    if not (tf.is_symbolic_tensor(rows) and rows.op.type == GRADIENTS[1]):
        return None
    op = rows.op
    is_whole = rows is op.outputs[0] and values is op.outputs[1]
    if not is_whole or values.dtype not in FLOATS or not _tf.is_dead(op):
        return None
    if op.graph is not tf.compat.v1.get_default_graph() or op.inputs[0] is not handle:
        return None
    bags = Bags.of(op)
    return bags, op.inputs[1], op.inputs[-1] if op.get_attr("num_argmax") else None


def row_positions(num_emb: tf.Tensor | int, rows: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
    """The position of each index among `rows`: -1 if it is not there, -2 if it is no row."""
    return ops.tf_ti_embedding_bag_slots(num_emb, rows, indices)


def _opaque_number(num_emb: tf.Tensor | int) -> tf.Tensor:
    """The number of rows, for an op that gives more rows or ids in XLA than on the CPU.

    TensorFlow evaluates ops of constants with the CPU's kernels, and takes the extents of their
    results for static in XLA's graph too. It evaluates no op that depends on a placeholder, and
    puts the default value in a placeholder's place only if its shape is known.

    In functions that the compiled function calls, TensorFlow replaces such a placeholder too, and
    the ids by constants: XLA's gradient has the kernel's rows then (cc/xla/bags/known_rows.h).
    """
    number = host_number(num_emb, tf.int64)
    if not tf.is_symbolic_tensor(number):
        return number
    with on_host():
        number = tf.compat.v1.placeholder_with_default(number, shape=None)
    number.set_shape([])
    return number


def _present(tensor: tf.Tensor | None) -> list[tf.Tensor]:
    return [] if tensor is None else [tensor]
