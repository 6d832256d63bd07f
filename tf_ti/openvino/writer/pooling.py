"""tf_ti's embedding bags as OpenVINO's."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.openvino.writer.conversion import Node, writes
from tf_ti.openvino.writer.network import element_type_of
from tf_ti.openvino.writer.shapes import shape_as

_BOOLEAN = [element_type_of(tf.bool)]
_KINDS = {
    "EmbeddingBagOffsets": "offsets",
    "EmbeddingBagPacked": "packed",
    "EmbeddingSegmentsSum": "segments",
}
_BOUNDS = {"offsets": "offsets", "packed": None, "segments": "segment_ids"}


@writes(*(f"TfTi>{prefix}{name}" for prefix in ("", "Resource") for name in _KINDS))
def _bag(op, table, *inputs):
    bags = _Bags.of(op, [table, *inputs])
    if not isinstance(table, np.ndarray) and op.op.type.startswith("TfTi>Resource"):
        table = op.conversion.variable(table, tf.as_dtype(op.op.get_attr("T")))
    result = bags.reduce(table, op.attr("reduction"))
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
    """

    op: Node
    kind: str
    indices: Any
    bounds: Any = None
    num_segments: Any = None
    default_index: Any = None
    weights: Any = None

    @classmethod
    def of(cls, op: Node, inputs: list) -> "_Bags":
        kind = _KINDS[op.op.type.removeprefix("TfTi>").removeprefix("Resource")]
        named = _tf.inputs_by_name(op.op, inputs)
        names = ("indices", _BOUNDS[kind], "num_segments", "default_index", "per_sample_weights")
        indices, bounds, num_segments, default_index, weights = (
            next(iter(named.get(name, [])), None) for name in names
        )
        if isinstance(default_index, np.ndarray) and default_index == -1:
            default_index = None
        if weights is not None and op.attr("Tweights") != op.attr("T"):
            kind_of_table = element_type_of(op.op.outputs[0].dtype)
            weights = op.add(
                "Convert", weights, outputs=[kind_of_table], destination_type=kind_of_table.name
            )
        bags = cls(op, kind, indices, bounds, num_segments, default_index, weights)
        bags = bags._closed() if kind == "offsets" else bags
        padding = op.attr("padding_idx")
        return bags._without_padding(padding[0]) if padding else bags

    def _replace(self, **changes: Any) -> "_Bags":
        return dataclasses.replace(self, **changes)

    def _closed(self) -> "_Bags":
        """Adds a last bag with one index, which marks the end of the others and is dropped later.

        OpenVINO's CPU plugin takes no offset as large as the number of indices.
        """
        op, zero = self.op, self._zero(1)
        bounds, weights = self.bounds, self.weights
        if not op.attr("include_last_offset"):
            count = shape_as(op, self.indices, op.op.inputs[1].dtype)
            bounds = op.add("Concat", bounds, count, axis=0)
        if weights is not None:
            weights = op.add("Concat", weights, op.like(0).reshape(1), axis=0)
        indices = op.add("Concat", self.indices, zero, axis=0)
        return self._replace(indices=indices, bounds=bounds, weights=weights)

    def _zero(self, *shape: int) -> np.ndarray:
        """Zeros in the dtype of the indices."""
        return np.zeros(shape, self.op.op.inputs[1].dtype.as_numpy_dtype)

    def _without_padding(self, padding: int) -> "_Bags":
        """Gives the padding index weights of zero."""
        op = self.op
        if self.default_index is not None:
            raise op.error("OpenVINO has no padding_idx beside a default_index")
        if op.attr("reduction") == "max":
            raise op.error("OpenVINO has no padding_idx for the reduction max")
        is_padding = op.add("Equal", self.indices, self._zero() + padding, outputs=_BOOLEAN)
        kinds = [element_type_of(op.op.outputs[0].dtype)]
        ones = op.like(1) if self.weights is None else self.weights
        return self._replace(
            indices=op.add(
                "Select", is_padding, self._zero(), self.indices,
                outputs=[element_type_of(op.op.inputs[1].dtype)],
            ),
            weights=op.add("Select", is_padding, op.like(0), ones, outputs=kinds),
        )  # fmt: skip

    def reduce(self, table: Any, reduction: str) -> Any:
        op = self.op
        if reduction == "sum":
            return self._sum(table)
        if reduction == "max":
            if self.kind != "packed" or self.default_index is not None:
                raise op.error("OpenVINO has no such bags with the reduction max")
            rows = op.add(
                "Gather", table, self.indices, np.asarray(0), version="opset8", batch_dims=0
            )
            most = op.add("ReduceMax", rows, np.asarray([1]), keep_dims=False)
            if op.shape(1)[1]:
                return most
            shape = shape_as(op, self.indices)
            width = op.add(
                "Gather", shape, np.asarray(1), np.asarray(0), version="opset8", batch_dims=0
            )
            is_empty = op.add("Equal", width, np.asarray(0), outputs=_BOOLEAN)
            kinds = [element_type_of(op.op.outputs[0].dtype)]
            return op.add("Select", is_empty, op.like(0), most, outputs=kinds)
        if op.op.outputs[0].dtype.is_integer:
            raise op.error(f"OpenVINO's reduction {reduction} of integers is another one")
        if reduction == "mean" and self.weights is None and self.kind != "segments":
            return self._pool("EmbeddingBag" + self.kind.capitalize(), table, "mean")
        if self.default_index is not None:
            raise op.error(f"OpenVINO has no reduction {reduction} with a default_index")
        return self._ratio(table, reduction)

    def _sum(self, table: Any) -> Any:
        names = {
            "offsets": "EmbeddingBagOffsetsSum",
            "packed": "EmbeddingBagPackedSum",
            "segments": "EmbeddingSegmentsSum",
        }
        if self.kind == "packed" and self.default_index is not None:
            # Either all bags are empty, or none is.
            return self._replace(default_index=None)._sum(table)
        if self.weights is not None and not self.op.shape(1).is_fully_defined():
            return self._sum_of_products(table)
        return self._pool(names[self.kind], table)

    def _sum_of_products(self, table: Any) -> Any:
        """Sums rows that are multiplied by their weights first.

        OpenVINO's CPU plugin takes no weights if their number is unknown.
        """
        op, first = self.op, np.asarray(0)
        rank = self._rank_of_table()
        rows = op.add("Gather", table, self.indices, first, version="opset8", batch_dims=0)
        weights = self.weights
        if rank > 1:
            inner = np.arange(1, rank) + (self.kind == "packed")
            weights = op.add("Unsqueeze", weights, inner)
        rows = op.add("Multiply", rows, weights)
        if self.kind == "packed":
            return op.add("ReduceSum", rows, np.asarray([1]), keep_dims=False)
        numbers, default = self._numbers(), self.default_index
        if default is not None:
            if not isinstance(default, np.ndarray):
                raise op.error("default_index must be a constant beside weights")
            row = op.add("Gather", table, default.reshape(1), first, version="opset8", batch_dims=0)
            rows = op.add("Concat", rows, row, axis=0)
            default = self._count()
        return self._replace(indices=numbers, weights=None, default_index=default)._sum(rows)

    def _pool(self, type: str, table: Any, reduction: str | None = None) -> Any:
        parts = [self.bounds, self.num_segments, self.default_index, self.weights]
        if self.weights is not None and self.default_index is None and self.kind != "packed":
            parts[2] = self._zero() - 1
        inputs = [table, self.indices, *(part for part in parts if part is not None)]
        kinds = [element_type_of(self.op.op.outputs[0].dtype)]
        if reduction is None:
            return self.op.add(type, *inputs, version="opset3", outputs=kinds)
        return self.op.add(type, *inputs, version="opset15", outputs=kinds, reduction=reduction)

    def _ratio(self, table: Any, reduction: str) -> Any:
        """The weighted sum divided by the sum of weights, or by the root of the sum of squares."""
        op = self.op
        weights = self.weights
        if weights is None:
            weights = op.add(
                "Broadcast", op.like(1), shape_as(op, self.indices), version="opset3", mode="numpy"
            )
        if reduction == "sqrtn":
            weights = op.add("Multiply", weights, weights)
        total = self._sum(table)
        column = op.add("Reshape", weights, np.asarray([-1, 1]), special_zero=False)
        numbers = self._numbers()
        divisor = self._replace(indices=numbers, weights=None)._sum(column)
        if reduction == "sqrtn":
            divisor = op.add("Sqrt", divisor)
        rank = self._rank_of_table()
        if rank > 2:
            divisor = op.add("Unsqueeze", divisor, np.arange(2, rank))
        if rank == 1:
            divisor = op.add("Squeeze", divisor, np.asarray([1]))
        kinds = [element_type_of(op.op.outputs[0].dtype)]
        is_zero = op.add("Equal", divisor, op.like(0), outputs=_BOOLEAN)
        divisor = op.add("Select", is_zero, op.like(1), divisor, outputs=kinds)
        return op.add(
            "Select", is_zero, op.like(0), op.add("Divide", total, divisor), outputs=kinds
        )

    def _rank_of_table(self) -> int:
        rank = self.op.op.outputs[0].shape.rank
        if rank is None:
            raise self.op.error("the rank of its table must be known")
        return rank

    def _count(self) -> Any:
        """The number of indices."""
        op = self.op
        shape = shape_as(op, self.indices, op.op.inputs[1].dtype)
        return op.add("ReduceProd", shape, np.asarray([0]), keep_dims=False)

    def _numbers(self) -> Any:
        """The numbers of the indices from 0 on, in their shape."""
        op, dtype = self.op, self.op.op.inputs[1].dtype
        kind = element_type_of(dtype)
        zero = self._zero()
        numbers = op.add(
            "Range",
            zero,
            self._count(),
            zero + 1,
            version="opset4",
            outputs=[kind],
            output_type=kind.name,
        )
        if self.kind != "packed":
            return numbers
        shape = shape_as(op, self.indices, dtype)
        return op.add("Reshape", numbers, shape, special_zero=False)
