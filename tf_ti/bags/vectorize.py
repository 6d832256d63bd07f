"""Vectorisation of the bag ops: for `tf.vectorized_map`, `jacobian` and `batch_jacobian`.

All lanes of the map become one look-up. Where nothing but tables, or gradients, differ from lane to
lane, the lanes lie side by side in the rows of one table. Else they lie one after the other: the
bags of all lanes are the bags of one look-up, and the lanes' tables, if they differ, one table.

The gradient of a table has another number of rows in each lane, which TensorFlow cannot stack. So a
lane has a row for each index: ascending, and where one comes again, with a gradient of zeros. XLA's
are alike.
"""

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti._library import ops
from tf_ti.bags.ops import KINDS, PARTITION, PREFIX, SEVERAL, Bags, Table, local_rows

_Converter = TypeVar("_Converter", bound=Callable[..., Any])


def _register(op_type: str) -> Callable[[_Converter], _Converter]:
    """As _tf.register_pfor, for a function that may raise NotVectorized."""

    def register(converter: _Converter) -> _Converter:
        @functools.wraps(converter)
        def convert(pfor_input: Any) -> Any:
            try:
                stacked = (wrapped.t for wrapped in pfor_input.inputs if wrapped.is_stacked)
                if any(tensor.dtype == tf.resource for tensor in stacked):
                    raise _tf.NotVectorized("the variable is another one in each lane")
                return converter(pfor_input)
            except _tf.NotVectorized as cause:
                return _tf.convert_lane_by_lane(pfor_input, cause)

        _tf.register_pfor(op_type)(_tf.do_not_convert(convert))
        return converter

    return register


# --- what differs from lane to lane --------------------------------------------------------------


class _Given:
    """The bags of an op that is to be vectorised, and what of them is stacked."""

    def __init__(self, pfor: Any, wrapped: Bags):
        self.pfor = pfor
        self._wrapped = wrapped
        names = ("indices", "bounds", "num_segments", "default_index", "weights")
        given = {name: getattr(self._wrapped, name) for name in names}
        given = {name: wrapped for name, wrapped in given.items() if wrapped is not None}
        self.stacked = {name for name, wrapped in given.items() if wrapped.is_stacked}
        self.bags = self._wrapped.replace(**{name: w.t for name, w in given.items()})

    @classmethod
    def of(cls, pfor_input: Any) -> "_Given":
        return cls(pfor_input.pfor, Bags.of(pfor_input.op, pfor_input.inputs))

    def tiled(self, name: str) -> tf.Tensor:
        """One of the bags' tensors, for all lanes."""
        return _tf.stacked(self.pfor, getattr(self._wrapped, name))


def _unstacked(pfor_input: Any, index: int, label: str) -> tf.Tensor:
    if pfor_input.input(index).is_stacked:
        raise _tf.NotVectorized(f"{label} differs from lane to lane")
    return pfor_input.input(index).t


def _table(pfor_input: Any, number: int = 0) -> Table:
    return Table(pfor_input.input(number).t, tf.as_dtype(pfor_input.get_attr("T")))


def _tiled(pfor_input: Any, index: int) -> tf.Tensor:
    return _tf.stacked(pfor_input.pfor, pfor_input.input(index))


def _count(pfor: Any) -> tf.Tensor:
    return tf.cast(pfor.loop_len_vector[0], tf.int64)


# --- lanes side by side --------------------------------------------------------------------------


def _swapped(tensor: tf.Tensor) -> tf.Tensor:
    """With the first two axes in each other's place: lanes, and rows or bags."""
    rest = tf.range(2, tf.rank(tensor))
    return tf.transpose(tensor, tf.concat([[1, 0], rest], 0))


# --- lanes one after the other -------------------------------------------------------------------


def _in_order(lanes: tf.Tensor) -> tf.Tensor:
    """Joins the first two axes."""
    shape = tf.shape(lanes, tf.int64)
    return tf.reshape(lanes, tf.concat([shape[:1] * shape[1:2], shape[2:]], 0))


def _by_lane(tensor: tf.Tensor, count: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Undoes _in_order: [count, size, ...]."""
    shape = tf.shape(tensor, tf.int64)[1:]
    return tf.reshape(tensor, tf.concat([[count, tf.cast(size, tf.int64)], shape], 0))


def _shifted(numbers: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """The numbers [lanes, ...] of things of which each lane has `size`, when they are in order.

    What is no number of such a thing becomes -1, lest it be that of another lane's.
    """
    numbers = tf.cast(numbers, tf.int64)
    is_one = (numbers >= 0) & (numbers < size)
    return tf.where(is_one, numbers + _begins(numbers, size), np.int64(-1))


def _unshifted(numbers: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Undoes _shifted; what is below 0 stays."""
    return tf.where(numbers < 0, numbers, numbers - _begins(numbers, size))


def _begins(lanes: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """The first of each lane's numbers, [lanes, 1, ...]."""
    count = tf.shape(lanes, tf.int64)[:1]
    ones = tf.ones([tf.rank(lanes) - 1], tf.int64)
    return tf.reshape(tf.range(count[0]) * size, tf.concat([count, ones], 0))


def _rows(
    indices: tf.Tensor, num_rows: tf.Tensor | None, padding_idx: int | None
) -> tuple[tf.Tensor, int | None]:
    """Indices [lanes, ...] and padding_idx, for the tables of all lanes in order.

    Without `num_rows`, for the one table that all have.
    """
    if num_rows is None:
        return indices, padding_idx
    shifted = _shifted(indices, num_rows)
    if padding_idx is None:
        return shifted, None
    # Anything but what _shifted makes of a wrong index.
    return tf.where(tf.equal(indices, padding_idx), np.int64(-2), shifted), -2


def _table_in_order(pfor_input: Any, number: int = 0) -> tuple[Table, tf.Tensor | None]:
    """The tables of all lanes as one, and how many rows each has; None if all have the same."""
    table = _table(pfor_input, number)
    if not pfor_input.input(number).is_stacked:
        return table, None
    num_rows = tf.shape(table.source, tf.int64)[1]
    return Table(_in_order(table.source), table.dtype), num_rows


class _Merged:
    """The bags of all lanes as those of one look-up.

    Attributes:
        bags: these bags, in int64, without a default row.
        default_index: those of the lanes, [lanes, 1], if there are any.
        count: the number of lanes.
        indices: those of the lanes, [lanes, ...].
        num_indices: how many a lane has.
        num_bags: likewise.
    """

    def __init__(self, given: _Given, num_bags: tf.Tensor | None, num_rows: tf.Tensor | None):
        """
        Args:
            given: the bags of the lanes.
            num_bags: how many there are in a lane; only for segments.
            num_rows: how many rows the table of each lane has; None if all have the same table.
        """
        bags = given.bags
        changes: dict[str, Any] = {}
        self.count = _count(given.pfor)
        self.indices = tf.cast(given.tiled("indices"), tf.int64)
        self.num_indices = tf.reduce_prod(tf.shape(self.indices, tf.int64)[1:])
        indices, padding_idx = _rows(self.indices, num_rows, bags.padding_idx)
        weights = None if bags.weights is None else given.tiled("weights")
        # With offsets, behind the bags of each lane come some up to its last index, and up to the
        # first bag of the next lane.
        self._num_behind = 0
        if bags.kind == "offsets":
            offsets = tf.cast(given.tiled("bounds"), tf.int64)
            num_bags = tf.shape(offsets, tf.int64)[1] - bags.include_last_offset
            self._num_behind = 1 + bags.include_last_offset
            ends = tf.fill([self.count, 1], self.num_indices)
            bounds = tf.concat([offsets, ends], 1) + _begins(offsets, self.num_indices)
            changes.update(bounds=tf.reshape(bounds, [-1]), include_last_offset=False)
            position = tf.range(self.count * self.num_indices)
            position = tf.reshape(position, tf.shape(self.indices))
            self._is_inside = position >= bounds[:, :1]
            self._is_inside &= position < bounds[:, num_bags:][:, :1]
            if weights is not None:  # which may be NaN where they count for nothing
                weights = self.inside(weights)
        elif bags.kind == "segments":
            num_bags = tf.cast(num_bags, tf.int64)
            bounds = _shifted(given.tiled("bounds"), num_bags)
            changes.update(bounds=tf.reshape(bounds, [-1]), num_segments=self.count * num_bags)
        else:
            num_bags = tf.shape(self.indices, tf.int64)[1]
        self.num_bags = num_bags
        if bags.default_index is not None:
            self.default_index = tf.cast(given.tiled("default_index"), tf.int64)[:, tf.newaxis]
        self.bags = bags.replace(
            default_index=None,
            indices=_in_order(indices),
            weights=None if weights is None else _in_order(weights),
            padding_idx=padding_idx,
            **changes,
        )

    def inside(self, values: tf.Tensor) -> tf.Tensor:
        """The values of the lanes' indices, with zeros for those in no bag."""
        if not self._num_behind:
            return values
        return tf.where(self._is_inside, values, tf.zeros_like(values))

    def begins(self, given: _Given) -> tf.Tensor:
        """Where in a lane's indices each of its bags begins, [lanes, bags]."""
        if given.bags.kind == "offsets":
            return tf.cast(given.tiled("bounds"), tf.int64)[:, : self.num_bags]
        if given.bags.kind == "packed":
            size = tf.shape(self.indices, tf.int64)[2]
            return tf.tile(tf.range(self.num_bags)[tf.newaxis] * size, [self.count, 1])
        ones = tf.ones_like(self.bags.bounds)
        sizes = tf.math.unsorted_segment_sum(ones, self.bags.bounds, self.count * self.num_bags)
        return tf.cumsum(_by_lane(sizes, self.count, self.num_bags), 1, exclusive=True)

    def rows_of(self, lanes: tf.Tensor, fill: int = 0) -> tf.Tensor:
        """[lanes, bags, ...] in the order of the bags, with `fill` for those behind each lane."""
        if self._num_behind:
            shape = tf.shape(lanes)
            behind = tf.concat([shape[:1], [self._num_behind], shape[2:]], 0)
            lanes = tf.concat([lanes, tf.fill(behind, tf.cast(fill, lanes.dtype))], 1)
        return _in_order(lanes)

    def lanes_of(self, rows: tf.Tensor) -> tf.Tensor:
        """Undoes rows_of."""
        lanes = _by_lane(rows, self.count, self.num_bags + self._num_behind)
        return lanes[:, : self.num_bags] if self._num_behind else lanes

    def are_empty(self, like: tf.Tensor) -> tf.Tensor:
        """Which bags are, [lanes, bags, 1, ...], for a tensor [lanes, bags, ...]."""
        indices = tf.zeros_like(self.bags.indices)
        if self.bags.padding_idx is not None:
            indices -= tf.cast(tf.equal(self.bags.indices, self.bags.padding_idx), tf.int64)
        bags = self.bags.replace(indices=indices, weights=None, padding_idx=-1, reduction="max")
        some, _ = bags.pool(Table(tf.ones([1, 1]), tf.float32))
        ones = tf.ones([tf.rank(like) - 2], tf.int64)
        shape = tf.concat([[self.count, self.num_bags], ones], 0)
        return tf.equal(tf.reshape(self.lanes_of(some), shape), 0)


# --- the converters ------------------------------------------------------------------------------


def _vectorize_pool(pfor_input: Any) -> list[Any]:
    return _pooled(pfor_input, 0, _Given.of(pfor_input))


def _vectorize_several(pfor_input: Any) -> list[Any]:
    """Table by table: what differs from lane to lane may be something else for each."""
    several = Bags.of_several(pfor_input.op, pfor_input.inputs)
    of_tables = [
        _pooled(pfor_input, number, _Given(pfor_input.pfor, bags))
        for number, bags in enumerate(several)
    ]
    positions = [argmax for _, *rest in of_tables for argmax in rest]
    return [rows for rows, *_ in of_tables] + positions


def _pooled(pfor_input: Any, number: int, given: _Given) -> list[Any]:
    """The rows of one of an op's tables, and the origins of their maxima, if the op has these."""
    is_stacked = pfor_input.input(number).is_stacked
    with_argmax = given.bags.reduction == "max" and bool(pfor_input.get_attr("num_argmax"))
    if not given.stacked:
        table = _table(pfor_input, number)
        if is_stacked:
            table = Table(_swapped(table.source), table.dtype)
        pooled = given.bags.pool(table, with_argmax)[: 1 + with_argmax]
        return [_tf.wrap(_swapped(t) if is_stacked else t, is_stacked) for t in pooled]
    if "num_segments" in given.stacked:
        raise _tf.NotVectorized("num_segments differs from lane to lane")
    table, num_rows = _table_in_order(pfor_input, number)
    merged = _Merged(given, given.bags.num_segments, num_rows)
    bags, filling = merged.bags, None
    if given.bags.default_index is not None:
        if is_stacked or "default_index" in given.stacked:
            indices, padding_idx = _rows(merged.default_index, num_rows, -1)
            filling, _ = Bags("packed", indices, padding_idx=padding_idx).pool(table)
        else:
            bags = bags.replace(default_index=tf.cast(given.bags.default_index, tf.int64))
    output, argmax = bags.pool(table, with_argmax)
    output = merged.lanes_of(output)
    if filling is not None:
        output = tf.where(merged.are_empty(output), filling[:, tf.newaxis], output)
    results = [_tf.wrap(output, True)]
    if with_argmax:
        argmax = _unshifted(merged.lanes_of(argmax), merged.num_indices)
        results.append(_tf.wrap(tf.cast(argmax, given.bags.indices.dtype), True))
    return results


for _prefix in (PREFIX, f"{PREFIX}Resource"):
    for _name in KINDS:
        _register(_prefix + _name)(_vectorize_pool)
    _register(_prefix + SEVERAL)(_vectorize_several)


def _num_emb(pfor_input: Any) -> tf.Tensor:
    """The number of rows that input 0 is, or that its variable has."""
    source = _unstacked(pfor_input, 0, "num_emb")
    return _table(pfor_input).shape()[0] if source.dtype == tf.resource else source


@_register(f"{PREFIX}EmbeddingBagGrad")
@_register(f"{PREFIX}ResourceEmbeddingBagGrad")
def _vectorize_table_gradient(pfor_input: Any) -> list[Any]:
    num_emb = _num_emb(pfor_input)
    given = _Given.of(pfor_input)
    grad, argmax = _tiled(pfor_input, 1), None
    if pfor_input.get_attr("num_argmax"):
        argmax = _tiled(pfor_input, len(pfor_input.inputs) - 1)
    if not given.stacked:
        argmax = None if argmax is None else _swapped(argmax)
        rows, values = given.bags.table_gradient(num_emb, _swapped(grad), argmax)
        return [_tf.wrap(rows, False), _tf.wrap(_swapped(values), True)]
    merged = _Merged(given, tf.shape(grad)[1], num_emb)
    if argmax is not None:
        argmax = merged.rows_of(_shifted(argmax, merged.num_indices), -1)
    num_rows = merged.count * num_emb
    touched, gradients = merged.bags.table_gradient(num_rows, merged.rows_of(grad), argmax)
    rows = tf.reshape(merged.indices, [merged.count, merged.num_indices])
    if given.bags.default_index is not None:
        touched = tf.concat([touched, _shifted(merged.default_index, num_emb)[:, 0]], 0)
        filled = tf.where(merged.are_empty(grad), grad, tf.zeros_like(grad))
        gradients = tf.concat([gradients, tf.reduce_sum(filled, 1)], 0)
        rows = tf.concat([rows, merged.default_index], 1)
    rows = tf.sort(tf.where((rows >= 0) & (rows < num_emb), rows, tf.zeros_like(rows)))
    positions = ops.tf_ti_embedding_bag_slots(
        num_rows, tf.reshape(_shifted(rows, num_emb), [-1]), touched
    )
    values = tf.math.unsorted_segment_sum(gradients, positions, tf.size(rows))
    values = _by_lane(values, merged.count, tf.shape(rows)[1])
    return [_tf.wrap(tf.cast(rows, given.bags.indices.dtype), True), _tf.wrap(values, True)]


@_register(f"{PREFIX}EmbeddingBagWeightsGrad")
@_register(f"{PREFIX}ResourceEmbeddingBagWeightsGrad")
def _vectorize_weights_gradient(pfor_input: Any) -> list[Any]:
    given = _Given.of(pfor_input)
    if not any(wrapped.is_stacked for wrapped in pfor_input.inputs):
        gradient = given.bags.weights_gradient(_table(pfor_input), pfor_input.input(1).t)
        return [_tf.wrap(gradient, False)]
    table, num_rows = _table_in_order(pfor_input)
    grad = _tiled(pfor_input, 1)
    merged = _Merged(given, tf.shape(grad)[1], num_rows)
    gradient = merged.bags.weights_gradient(table, merged.rows_of(grad))
    gradient = tf.reshape(gradient, tf.shape(merged.indices))
    return [_tf.wrap(merged.inside(gradient), True)]


@_register(PARTITION)
def _vectorize_partition(pfor_input: Any) -> list[Any]:
    """All shards get an id for each index, and all bags: each lane as many."""
    num_emb = _unstacked(pfor_input, 0, "num_emb")
    strategy = pfor_input.get_attr("strategy").decode()
    num_shards, dtype = (pfor_input.get_attr(name) for name in ("num_shards", "Tlocal"))
    given = _Given.of(pfor_input)
    if "num_segments" in given.stacked:
        raise _tf.NotVectorized("num_segments differs from lane to lane")
    merged = _Merged(given, given.bags.num_segments, None)
    of_shards = functools.partial(
        Bags.partition,
        num_emb=num_emb,
        num_shards=num_shards,
        strategy=strategy,
        dtype=tf.int64,
        with_positions=False,
    )
    checks = [of_shards(merged.bags)]
    ids = merged.indices
    if given.bags.padding_idx is not None:
        ids = tf.where(tf.equal(ids, given.bags.padding_idx), np.int64(-1), ids)
    ids = tf.reshape(merged.inside(ids + 1) - 1, [merged.count, merged.num_indices])
    offsets = merged.begins(given)
    if given.bags.default_index is not None:
        checks.append(of_shards(Bags("packed", merged.default_index, padding_idx=-1)))
        ids = tf.concat([ids, merged.default_index], 1)
        offsets = tf.pad(offsets, [[0, 0], [0, 1]], constant_values=merged.num_indices)
    for check in checks:  # zeros that nobody can leave out: what only had to be run would be
        ids += tf.minimum(tf.size(check.ids[0], tf.int64), 0)
    ids = [tf.cast(local, dtype) for local in local_rows(ids, num_emb, num_shards, strategy)]
    numbers, positions = (tf.range(tf.shape(t, tf.int64)[1]) for t in (offsets, ids[0]))
    is_empty = merged.are_empty(tf.zeros([merged.count, merged.num_bags]))
    return [
        *(_tf.wrap(local, True) for local in ids),
        *[_tf.wrap(tf.cast(offsets, dtype), True)] * num_shards,
        *[_tf.wrap(numbers, False)] * num_shards,
        *[_tf.wrap(positions, False)] * pfor_input.get_attr("num_positions"),
        _tf.wrap(is_empty, True),
    ]


@_register(f"{PREFIX}EmbeddingBagSlots")
def _vectorize_positions(pfor_input: Any) -> list[Any]:
    num_emb = _unstacked(pfor_input, 0, "num_emb")
    rows, indices = (wrapped.t for wrapped in pfor_input.inputs[1:])
    if not pfor_input.input(1).is_stacked:
        return [_tf.wrap(ops.tf_ti_embedding_bag_slots(num_emb, rows, indices), True)]
    count, size = _count(pfor_input.pfor), tf.shape(rows, tf.int64)[1]
    indices = _shifted(_tiled(pfor_input, 2), num_emb)
    rows = tf.reshape(_shifted(rows, num_emb), [-1])
    positions = ops.tf_ti_embedding_bag_slots(count * num_emb, rows, indices)
    return [_tf.wrap(tf.cast(_unshifted(positions, size), pfor_input.get_attr("Tindices")), True)]


def _refuse_update(name: str) -> Callable[[Any], NoReturn]:
    def refuse(pfor_input: Any) -> NoReturn:
        # TensorFlow runs what changes a variable once more, as it is in the first lane.
        raise ValueError(f"{name} cannot run in tf.vectorized_map; return the slices instead")

    return refuse


for _name, _function in (
    ("ScatterSub", "scatter_sub"),
    ("AdamUpdate", "adam_update"),
    ("AdagradUpdate", "adagrad_update"),
):
    for _op in (_name, f"EmbeddingBag{_name}"):
        _tf.register_pfor(PREFIX + _op)(_refuse_update(_function))
