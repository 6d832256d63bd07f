"""tf_ti's embedding bags as OpenVINO's."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.element_types import ElementType
from tf_ti.openvino.writer.conversion import Node, Value, writes
from tf_ti.openvino.writer.network import Operand, Port, element_type_of
from tf_ti.openvino.writer.shapes import shape_as, take

_BOOLEAN = [element_type_of(tf.bool)]
_KINDS = {
    "EmbeddingBagOffsets": "offsets",
    "EmbeddingBagPacked": "packed",
    "EmbeddingSegmentsSum": "segments",
}
_OPTIONAL = ("num_segments", "default_index", "per_sample_weights")
_END = np.iinfo(np.int64).max


@writes(*(f"TfTi>{prefix}{name}" for prefix in ("", "Resource") for name in _KINDS))
def _bag(op: Node, *inputs: Value) -> Port:
    named = _tf.inputs_by_name(op.op, inputs)
    kind = _KINDS[op.op.type.removeprefix("TfTi>").removeprefix("Resource")]
    (indices,), bounds = named["indices"], named.get("offsets", named.get("segment_ids"))
    rest = (named.get(name) or [None] for name in _OPTIONAL)
    bounds = bounds and bounds[0]
    bags = _Bags(op, kind, indices, bounds, *(part for (part,) in rest))
    padding = op.attr("padding_idx") or [None]
    return _pooled(op, inputs[0], bags._replace(padding=padding[0]), op.attr("reduction"))


@writes("TfTi>EmbeddingBags", "TfTi>ResourceEmbeddingBags")
def _several(op: Node, *inputs: Value) -> list[Port]:
    named = _tf.inputs_by_name(op.op, inputs)
    lists = {name: iter(values) for name, values in named.items()}
    kinds, padding = op.attr("bags"), op.attr("padding_idx")
    numbers = range(len(kinds))
    if len(padding) == 1 and not op.attr("padded"):
        padding = padding * len(kinds)
    paddings = dict(zip(op.attr("padded") or numbers, padding))
    weighted = op.attr("weighted") or numbers
    reductions = op.attr("reductions") or [op.attr("reduction")] * len(kinds)
    found = []
    for number, kind, table, indices in zip(numbers, kinds, inputs, named["indices"]):
        bounds = next(lists["bounds"]) if kind != "packed" else None
        count = next(lists["num_segments"]) if kind == "segments" else None
        default_index = next(lists["default_index"], None)
        weights = next(lists["per_sample_weights"], None) if number in weighted else None
        bags = _Bags(
            op, kind, indices, bounds, count, default_index, weights,
            padding=paddings.get(number), output=number,
        )  # fmt: skip
        found.append(_pooled(op, table, bags, reductions[number]))
    return found


def _pooled(op: Node, table: Value, bags: "_Bags", reduction: str) -> Port:
    """The bags of a table, reduced."""
    if op.op.type.startswith("TfTi>Resource"):
        table = op.variable(table, op.op.get_attr("T"))
    result = bags.prepared().reduce(table, reduction)
    if bags.kind != "offsets":
        return result
    first, last, one = np.asarray([0]), np.asarray([-1]), np.asarray([1])
    return op.add("Slice", result, first, last, one, first, version="opset8")


@dataclasses.dataclass(frozen=True)
class _Bags:
    """The inputs of an op, which say what rows each bag pools, as OpenVINO's operations take them.

    Attributes:
        op: the op.
        kind: "offsets", "packed" or "segments".
        indices: the rows of the table.
        bounds: the offsets, or the segment ids; None for packed bags.
        num_segments: the number of segments, or None for other kinds.
        default_index: the row for empty bags, or None.
        weights: the weights of the rows, or None.
        padding: the number whose indices are left out, or None.
        output: which of the op's outputs the rows are.
        is_padding: which indices are left out, or None.
        extents: the shape of the op's indices, as far as it is known.
    """

    op: Node
    kind: str
    indices: Any
    bounds: Any = None
    num_segments: Any = None
    default_index: Any = None
    weights: Any = None
    padding: int | None = None
    output: int = 0
    is_padding: Any = None
    extents: tf.TensorShape = tf.TensorShape(None)

    def prepared(self) -> "_Bags":
        """The bags of the op's inputs as `reduce` takes them."""
        op, bags = self.op, self._replace(extents=tf.TensorShape(self.indices.shape))
        if isinstance(self.default_index, np.ndarray) and self.default_index == -1:
            bags = bags._replace(default_index=None)
        if self.weights is not None and op.attr("Tweights") != op.attr("T"):
            (kind,) = self._kinds
            weights = op.add("Convert", self.weights, outputs=[kind], destination_type=kind.name)
            bags = bags._replace(weights=weights)
        bags = bags._closed() if self.kind == "offsets" else bags
        return bags if self.padding is None else bags._without_padding(self.padding)

    def _replace(self, **changes: Any) -> "_Bags":
        return dataclasses.replace(self, **changes)

    @property
    def _kinds(self) -> list[ElementType]:
        """The element type of the table, as one of a layer's outputs."""
        return [element_type_of(self.op.op.get_attr("T"))]

    @property
    def _index_type(self) -> tf.DType:
        return self.op.op.get_attr("Tindices")

    def _closed(self) -> "_Bags":
        """Adds a last bag with one index, which marks the end of the others and is dropped later.

        OpenVINO's CPU plugin takes no offset as large as the number of indices.
        """
        op, zero = self.op, self._zero(1)
        bounds, weights = self.bounds, self.weights
        if not op.attr("include_last_offset"):
            count = shape_as(op, self.indices, self._index_type)
            bounds = op.add("Concat", bounds, count, axis=0)
        if weights is not None:
            weights = op.add("Concat", weights, op.like(0).reshape(1), axis=0)
        indices = op.add("Concat", self.indices, zero, axis=0)
        return self._replace(indices=indices, bounds=bounds, weights=weights)

    def _number(self, number: int) -> np.ndarray:
        """A number in the dtype of the indices."""
        return np.asarray(number, self._index_type.as_numpy_dtype)

    def _zero(self, *shape: int) -> np.ndarray:
        """Zeros in the dtype of the indices."""
        return np.zeros(shape, self._index_type.as_numpy_dtype)

    def _without_padding(self, padding: int) -> "_Bags":
        """Gives the padding index weights of zero."""
        op = self.op
        is_padding = op.add("Equal", self.indices, self._number(padding), outputs=_BOOLEAN)
        ones = op.like(1) if self.weights is None else self.weights
        indices = op.add(
            "Select", is_padding, self._zero(), self.indices,
            outputs=[element_type_of(self._index_type)],
        )  # fmt: skip
        weights = op.add("Select", is_padding, op.like(0), ones, outputs=self._kinds)
        return self._replace(indices=indices, weights=weights, is_padding=is_padding)

    def reduce(self, table: Operand, reduction: str) -> Port:
        if self.default_index is not None and not self._takes_default(reduction):
            result = self._replace(default_index=None).reduce(table, reduction)
            return self._filled(result, self._default_row(table))
        if reduction == "sum":
            return self._sum(table)
        if reduction == "max":
            return self._max(table)
        if self._kinds[0].dtype.kind in "iu":
            raise self.op.error(f"OpenVINO's reduction {reduction} of integers is another one")
        if reduction == "mean" and self.weights is None and self.kind != "segments":
            return self._pool("EmbeddingBag" + self.kind.capitalize(), table, "mean")
        return self._ratio(table, reduction)

    def _takes_default(self, reduction: str) -> bool:
        """True if OpenVINO's operation has a row for empty bags."""
        if self.kind == "packed" or self.is_padding is not None:
            return False
        if self.kind == "segments" and isinstance(self.default_index, Port):
            return False  # it may be -1
        if reduction == "sum":
            return self.weights is None or self.extents.is_fully_defined()
        return reduction == "mean" and self.weights is None and self.kind != "segments"

    def _default_row(self, table: Operand) -> Port:
        op, index = self.op, self.default_index
        if isinstance(index, np.ndarray):
            return take(op, table, index, np.asarray(0))
        row = take(op, table, op.add("Maximum", index, self._zero()), np.asarray(0))
        is_none = op.add("Less", index, self._zero(), outputs=_BOOLEAN)
        return op.add("Select", is_none, op.like(0), row, outputs=self._kinds)

    def _filled(self, result: Port, row: Operand) -> Port:
        """The result with a row in place of those of empty bags."""
        if self.kind == "packed" and self.is_padding is None:
            if self.extents[1]:
                return result
            width = take(self.op, shape_as(self.op, self.indices), np.asarray(1), np.asarray(0))
            is_empty = self.op.add("Equal", width, np.asarray(0), outputs=_BOOLEAN)
        else:
            is_kept = self._ones()
            if self.is_padding is not None:
                is_kept = self.op.add(
                    "Select", self.is_padding, self.op.like(0), is_kept, outputs=self._kinds
                )
            count = self._sum_of(is_kept)
            is_empty = self.op.add("Equal", count, self.op.like(0), outputs=_BOOLEAN)
        return self.op.add("Select", is_empty, row, result, outputs=self._kinds)

    def _max(self, table: Operand) -> Port:
        op, kind = self.op, self._kinds[0]
        least = -np.inf if kind.is_floating else np.iinfo(kind.dtype).min
        rows = op.add("Gather", table, self.indices, np.asarray(0), version="opset8", batch_dims=0)
        if self.is_padding is not None:
            is_padding = self._beside_rows(self.is_padding)
            rows = op.add("Select", is_padding, op.like(least), rows, outputs=self._kinds)
        if self.kind == "packed":
            most = op.add("ReduceMax", rows, np.asarray([1]), keep_dims=False)
        else:
            shape = op.add("Concat", self._num_bags(), self._extents_of_row(table), axis=0)
            most = op.add("Broadcast", op.like(least), shape, version="opset3", mode="numpy")
            numbers = op.add("Unsqueeze", self._bag_numbers(), np.asarray([1]))
            most = op.add(
                "ScatterNDUpdate", most, numbers, rows, version="opset15", reduction="max"
            )
        return self._filled(most, op.like(0))

    def _num_bags(self) -> Port:
        """The number of bags, as a vector in int64."""
        if self.kind == "offsets":
            return shape_as(self.op, self.bounds)
        kind = element_type_of(tf.int64)
        count = self.num_segments
        if self._index_type != tf.int64:
            count = self.op.add("Convert", count, outputs=[kind], destination_type=kind.name)
        return self.op.add("Reshape", count, np.asarray([1]), special_zero=False)

    def _bag_numbers(self) -> Operand:
        """The number of each index's bag."""
        if self.kind == "segments":
            return self.bounds
        op, kinds = self.op, [element_type_of(self._index_type)]
        place = op.add(
            "SearchSorted",
            self.bounds,
            self._numbers(),
            version="opset15",
            outputs=kinds,
            right_mode=True,
            output_type=kinds[0].name,
        )
        return op.add("Subtract", place, self._number(1))

    def _extents_of_row(self, table: Operand) -> Port:
        last = np.asarray([_END])
        one = np.asarray([1])
        shape = shape_as(self.op, table)
        return self.op.add("Slice", shape, one, last, one, np.asarray([0]), version="opset8")

    def _sum(self, table: Operand) -> Port:
        names = {
            "offsets": "EmbeddingBagOffsetsSum",
            "packed": "EmbeddingBagPackedSum",
            "segments": "EmbeddingSegmentsSum",
        }
        is_without_row = self.kind == "segments" and self.default_index is None
        if self.weights is not None and (is_without_row or not self.extents.is_fully_defined()):
            return self._sum_of_products(table)
        return self._pool(names[self.kind], table)

    def _sum_of_products(self, table: Operand) -> Port:
        """Sums rows that are multiplied by their weights first.

        OpenVINO's CPU plugin takes no weights if their number is unknown. And weights of segments
        would need a default row: at -1, for none, the plugin reads beyond the table.
        """
        op = self.op
        rows = op.add("Gather", table, self.indices, np.asarray(0), version="opset8", batch_dims=0)
        rows = op.add("Multiply", rows, self._beside_rows(self.weights))
        if self.kind == "packed":
            return op.add("ReduceSum", rows, np.asarray([1]), keep_dims=False)
        return self._replace(indices=self._numbers(), weights=None)._sum(rows)

    def _pool(self, type: str, table: Operand, reduction: str | None = None) -> Port:
        parts = [self.bounds, self.num_segments, self.default_index, self.weights]
        if self.weights is not None and self.default_index is None and self.kind != "packed":
            parts[2] = self._number(-1)
        inputs = [table, self.indices, *(part for part in parts if part is not None)]
        if reduction is None:
            return self.op.add(type, *inputs, version="opset3", outputs=self._kinds)
        return self.op.add(
            type, *inputs, version="opset15", outputs=self._kinds, reduction=reduction
        )

    def _ratio(self, table: Operand, reduction: str) -> Port:
        """The weighted sum divided by the sum of weights, or by the root of the sum of squares."""
        op = self.op
        weights = self._ones() if self.weights is None else self.weights
        if reduction == "sqrtn":
            weights = op.add("Multiply", weights, weights)
        divisor = self._sum_of(weights)
        if reduction == "sqrtn":
            divisor = op.add("Sqrt", divisor)
        is_zero = op.add("Equal", divisor, op.like(0), outputs=_BOOLEAN)
        divisor = op.add("Select", is_zero, op.like(1), divisor, outputs=self._kinds)
        ratio = op.add("Divide", self._sum(table), divisor)
        return op.add("Select", is_zero, op.like(0), ratio, outputs=self._kinds)

    def _ones(self) -> Port:
        shape = shape_as(self.op, self.indices)
        return self.op.add("Broadcast", self.op.like(1), shape, version="opset3", mode="numpy")

    def _sum_of(self, values: Operand) -> Port:
        """The sum of each bag's numbers, beside its row."""
        op, rank = self.op, self._rank_of_table()
        column = op.add("Reshape", values, np.asarray([-1, 1]), special_zero=False)
        bags = self._replace(indices=self._numbers(), weights=None, default_index=None)
        total = bags._sum(column)
        if rank > 2:
            return op.add("Unsqueeze", total, np.arange(2, rank))
        return op.add("Squeeze", total, np.asarray([1])) if rank == 1 else total

    def _beside_rows(self, values: Operand) -> Operand:
        """Numbers of the indices, in the rank of the rows that are gathered."""
        rank = self._rank_of_table()
        if rank == 1:
            return values
        return self.op.add("Unsqueeze", values, np.arange(1, rank) + (self.kind == "packed"))

    def _rank_of_table(self) -> int:
        rank = self.op.op.outputs[self.output].shape.rank
        if rank is None:
            raise self.op.error("the rank of its table must be known")
        return rank

    def _numbers(self) -> Port:
        """The numbers of the indices from 0 on, in their shape."""
        op, dtype = self.op, self._index_type
        kind = element_type_of(dtype)
        zero = self._zero()
        shape = shape_as(op, self.indices, dtype)
        count = op.add("ReduceProd", shape, np.asarray([0]), keep_dims=False)
        numbers = op.add(
            "Range",
            zero,
            count,
            zero + 1,
            version="opset4",
            outputs=[kind],
            output_type=kind.name,
        )
        if self.kind != "packed":
            return numbers
        return op.add("Reshape", numbers, shape, special_zero=False)
