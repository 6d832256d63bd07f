"""Bags in tf_ti and in other libraries, each where it is installed.

Every library is given the same sets of ids, a different one for each bag op that it runs. The rows
of one set would lie in the cache. Every result is compared with the definition. ImportError means
that the library is missing.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness, row_reader
from benchmarks.optimizers import Change, Optimizer

UNIFORM, ZIPF = "uniform", "Zipf(1.2)"
NOTES = {
    UNIFORM: "ids: each is any row with the same probability",
    ZIPF: "ids: numpy's zipf(1.2) - 1, modulo the number of rows, through a random permutation of "
    "them, so that the rows that many ids name lie scattered",
}


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int
    width: int
    bags: int
    ids_per_bag: int

    @property
    def num_ids(self) -> int:
        return self.bags * self.ids_per_bag

    def __str__(self) -> str:
        rows = f"{self.rows // 1_000_000}M" if self.rows >= 1_000_000 else f"{self.rows // 1000}k"
        return f"{rows}, {self.width}, {self.bags}, {self.ids_per_bag}"


@dataclasses.dataclass(frozen=True)
class Bags:
    """A table, and sets of bags of its rows.

    Attributes:
        table: [rows, width].
        ids: [sets, num_ids], the bags of a set one after the other.
        offsets: [bags], the same for each set.
        weights: [num_ids], the same for each set.
        upstream: [bags, width], the gradient of the result.
    """

    shape: Shape
    table: np.ndarray
    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray
    upstream: np.ndarray

    @classmethod
    def random(cls, shape: Shape, sets: int) -> "Bags":
        """Bags of ids that are any row with the same probability."""
        generator = np.random.default_rng(0)

        def draw(*shape):
            return generator.random(shape, np.float32) - np.float32(0.5)

        return cls(
            shape,
            draw(shape.rows, shape.width),
            generator.integers(0, shape.rows, (sets, shape.num_ids)),
            np.arange(0, shape.num_ids, shape.ids_per_bag),
            draw(shape.num_ids),
            draw(shape.bags, shape.width),
        )

    def with_zipf_ids(self) -> "Bags":
        """The same table; rows that many ids name lie scattered in it."""
        generator = np.random.default_rng(1)
        ranks = (generator.zipf(1.2, self.ids.shape) - 1) % self.shape.rows
        return dataclasses.replace(self, ids=generator.permutation(self.shape.rows)[ranks])

    def pooled(self, kind: str) -> np.ndarray:
        """The result of the first set, by definition."""
        rows = self.table[self.ids[0]]
        if kind == "weighted":
            rows *= self.weights[:, np.newaxis]
        sums = np.add.reduceat(rows, self.offsets)
        return sums / np.float32(self.shape.ids_per_bag) if kind == "mean" else sums

    def table_gradient(self) -> tuple[np.ndarray, np.ndarray]:
        """The gradient of the first set's sums: the ids of the touched rows, and their values."""
        return _sum_by_id(self.ids[0], np.repeat(self.upstream, self.shape.ids_per_bag, axis=0))


def _sum_by_id(ids: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(ids, kind="stable")
    unique, starts = np.unique(ids[order], return_index=True)
    return unique, np.add.reduceat(values[order].astype(np.float64), starts)


def _check(actual, expected, rtol: float = 1e-4, atol: float = 1e-4) -> None:
    np.testing.assert_allclose(np.asarray(actual), expected, rtol, atol)


def _check_gradient(ids, values, bags: Bags) -> None:
    ids, values = _sum_by_id(np.asarray(ids), values)
    expected_ids, expected_values = bags.table_gradient()
    np.testing.assert_array_equal(ids, expected_ids)
    # The gradient of a row that tens of thousands of ids name is a sum of as many float32 values.
    _check(values, expected_values, rtol=1e-3, atol=5e-3)


def check_step(table: np.ndarray, bags: Bags, change: Change, repeated_rows: bool = True) -> None:
    """Checks the table after an optimizer's first step, on the first set.

    Checks rows that it names more than once only if asked to.
    """
    ids, gradient = bags.table_gradient()
    if not repeated_rows:
        is_once = np.bincount(bags.ids[0])[ids] == 1
        ids, gradient = ids[is_once], gradient[is_once]
    # Adam's first step goes by the sign, which a float32 sum near 0 may have wrong.
    clear = np.abs(gradient) > 0.05
    expected = (bags.table[ids] - change(gradient))[clear]
    _check(table[ids][clear], expected, rtol=1e-3, atol=1e-4)


@dataclasses.dataclass(frozen=True)
class Case:
    """A callable that runs so many bag ops, or steps."""

    run: Callable[[], object]
    bag_ops: int


@dataclasses.dataclass(frozen=True)
class Effort:
    """The number of sets of ids, and how often and how long each case is measured."""

    threads: int
    sets: int
    repeats: int
    burst: float

    def measure(self, cases: dict[str, Case]) -> dict[str, float]:
        """The microseconds that a bag op takes."""
        runs = {name: case.run for name, case in cases.items()}
        seconds = harness.measure(runs, self.repeats, self.burst)
        return {name: seconds[name] / case.bag_ops * 1e6 for name, case in cases.items()}


def limit_tensorflow(threads: int) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # Ops follow one another. With more threads, some would be handed from one to the next.
    tf.config.threading.set_inter_op_parallelism_threads(1)


# --- TensorFlow ----------------------------------------------------------------------------------


class OnTensorFlow:
    """Bags of ids of another kind for each way to pool them.

    Args:
        passes: the number of times that a call of a case goes through all sets of ids, in one
            graph. The call itself, 0.1 to 0.2 ms, then hardly counts.
    """

    def __init__(self, bags: Bags, passes: int):
        self.bags, self.passes = bags, passes

    def _make_sets(self, dtype=tf.int64) -> list:
        return [tf.constant(ids, dtype) for ids in self.bags.ids]

    def _pool(self, table, ids, kind: str):
        raise NotImplementedError

    def forward(self, table, kind: str = "sum", dtype=tf.int64) -> Case:
        sets = self._make_sets(dtype)
        # A table of 16 bits has been rounded, and its results are.
        tolerance = 1e-4 if table.dtype == tf.float32 else 5e-2
        pooled = tf.cast(self._pool(table, sets[0], kind), tf.float32)
        _check(pooled, self.bags.pooled(kind), tolerance, tolerance)
        return self._in_one_graph(lambda ids: [self._pool(table, ids, kind)], sets)

    def eager(self, table: tf.Variable) -> Case:
        """Calls one op after the other, without a graph."""
        sets = self._make_sets()
        _check(self._pool(table, sets[0], "sum"), self.bags.pooled("sum"))

        def run():
            for ids in sets:
                pooled = self._pool(table, ids, "sum")
            return pooled

        return Case(run, len(sets))

    def gradient(self, table: tf.Variable) -> Case:
        sets = self._make_sets()
        upstream = tf.constant(self.bags.upstream)

        def pool_and_differentiate(ids):
            with tf.GradientTape() as tape:
                pooled = self._pool(table, ids, "sum")
            return pooled, tape.gradient(pooled, table, upstream)

        pooled, gradient = pool_and_differentiate(sets[0])
        _check(pooled, self.bags.pooled("sum"))
        _check_gradient(gradient.indices, gradient.values.numpy(), self.bags)

        def op(ids):
            pooled, gradient = pool_and_differentiate(ids)
            return [pooled, gradient.values, gradient.indices]

        return self._in_one_graph(op, sets)

    def training(self, optimizer: Optimizer) -> Case:
        """A case of steps: forward, gradient, update."""
        upstream = tf.constant(self.bags.upstream)

        def step(ids):
            with tf.GradientTape() as tape:
                pooled = self._pool(optimizer.table, ids, "sum")
            optimizer.update(tape.gradient(pooled, optimizer.table, upstream))

        return self._steps(optimizer, step, self._make_sets())

    def updates(self, optimizer: Optimizer) -> Case:
        """A case of updates alone, on gradients that are there already."""
        upstream = tf.constant(self.bags.upstream)
        sets = []
        for ids in self._make_sets():
            with tf.GradientTape() as tape:
                pooled = self._pool(optimizer.table, ids, "sum")
            sets.append(tape.gradient(pooled, optimizer.table, upstream))
        return self._steps(optimizer, optimizer.update, sets)

    def _steps(self, optimizer: Optimizer, step: Callable, sets: list) -> Case:
        optimizer.table.assign(self.bags.table)
        step(sets[0])
        check_step(optimizer.table.numpy(), self.bags, optimizer.change)

        @tf.function(autograph=False)
        def train(sets):
            # Each step uses the variable that the last one has changed, so it waits for that one.
            for _ in range(self.passes):
                for given in sets:
                    step(given)

        return Case(lambda: train(sets), len(sets) * self.passes)

    def _in_one_graph(self, op: Callable, sets: list) -> Case:
        """Runs op(ids), which returns tensors, for every set, one after the other.

        One element of each tensor is used: otherwise the graph optimiser would leave the op out.
        The next op waits for that: if both were ready, one would be handed to another thread.
        """

        @tf.function(autograph=False)
        def function(sets):
            seen = []
            for _ in range(self.passes):
                for ids in sets:
                    with tf.control_dependencies(seen[-1:]):
                        firsts = [tensor[(0,) * tensor.shape.rank] for tensor in op(ids)]
                        seen.append(tf.add_n([tf.cast(first, tf.float32) for first in firsts]))
            return tf.add_n(seen)

        return Case(lambda: function(sets), len(sets) * self.passes)


class TfTi(OnTensorFlow):
    def __init__(self, bags, passes):
        super().__init__(bags, passes)
        # A graph captures these tensors. Constants would be read anew by each op.
        self._offsets = {dtype: tf.constant(bags.offsets, dtype) for dtype in (tf.int32, tf.int64)}
        self._weights = tf.constant(bags.weights)

    def _pool(self, table, ids, kind):
        offsets = self._offsets[ids.dtype]
        if kind == "mean":
            return tf_ti.embedding_bag_offsets(table, ids, offsets, reduction="mean")
        weights = self._weights if kind == "weighted" else None
        return tf_ti.embedding_bag_offsets_sum(table, ids, offsets, per_sample_weights=weights)


class Gather(OnTensorFlow):
    """tf.gather and tf.reduce_sum, for bags that all have the same number of ids."""

    def _pool(self, table, ids, kind):
        assert kind == "sum"
        shape = self.bags.shape
        return tf.reduce_sum(tf.gather(table, tf.reshape(ids, [-1, shape.ids_per_bag])), axis=1)


class LookupSparse(OnTensorFlow):
    """tf.nn.embedding_lookup_sparse."""

    def __init__(self, bags, passes, allow_fast_lookup=False):
        super().__init__(bags, passes)
        self._allow_fast_lookup = allow_fast_lookup

    def _make_sets(self, dtype=tf.int64):
        return [self._make_sparse(ids) for ids in super()._make_sets(dtype)]

    def _make_sparse(self, values):
        shape = [self.bags.shape.bags, self.bags.shape.ids_per_bag]
        indices = np.stack(np.unravel_index(np.arange(self.bags.shape.num_ids), shape), axis=1)
        return tf.SparseTensor(indices, values, shape)

    def _pool(self, table, ids, kind):
        weights = self._make_sparse(self.bags.weights) if kind == "weighted" else None
        return tf.nn.embedding_lookup_sparse(
            table,
            ids,
            weights,
            combiner="mean" if kind == "mean" else "sum",
            allow_fast_lookup=self._allow_fast_lookup,
        )


# --- the others ----------------------------------------------------------------------------------


class Torch:
    """torch.nn.functional.embedding_bag, with a table of its own."""

    def __init__(self, bags: Bags, threads: int):
        import torch

        torch.set_num_threads(threads)
        # As by default, but without a warning.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._torch, self._bags = torch, bags
        self._ids = [torch.tensor(ids) for ids in bags.ids]
        self._offsets, self._weights = torch.tensor(bags.offsets), torch.tensor(bags.weights)
        self._table = torch.tensor(bags.table)

    def forward(self, kind: str = "sum", dtype: str = "float32") -> Case:
        return self._forward(self._table.to(getattr(self._torch, dtype)), kind)

    def forward_on_huge_pages(self) -> Case:
        memory = row_reader.make_table(*self._bags.table.view(np.uint8).shape, huge_pages=True)
        table = self._torch.from_numpy(memory.view(np.float32))
        return self._forward(table.copy_(self._table), "sum")

    def _forward(self, table, kind: str) -> Case:
        pool = self._torch.nn.functional.embedding_bag
        options = {"mode": "mean" if kind == "mean" else "sum"}
        if kind == "weighted":
            options["per_sample_weights"] = self._weights.to(table.dtype)

        def run(sets=self._ids):
            with self._torch.no_grad():
                for ids in sets:
                    pooled = pool(ids, table, self._offsets, **options)
            return pooled

        tolerance = 1e-4 if table.dtype == self._torch.float32 else 5e-2
        pooled = run(self._ids[:1]).float().numpy()
        _check(pooled, self._bags.pooled(kind), tolerance, tolerance)
        return Case(run, len(self._ids))

    def gradient(self) -> Case:
        pool = self._torch.nn.functional.embedding_bag
        table = self._table.clone().requires_grad_()
        upstream = self._torch.tensor(self._bags.upstream)

        def run(sets=self._ids):
            for ids in sets:
                table.grad = None
                pooled = pool(ids, table, self._offsets, mode="sum", sparse=True)
                pooled.backward(upstream)

        run(self._ids[:1])
        gradient = table.grad.coalesce()
        _check_gradient(gradient.indices()[0].numpy(), gradient.values().numpy(), self._bags)
        return Case(run, len(self._ids))

    def training(self, make_optimizer: Callable, change: Change) -> Case:
        """A case of steps; make_optimizer(torch.optim, parameters) makes the optimizer."""
        pool = self._torch.nn.functional.embedding_bag
        table = self._torch.nn.Parameter(self._table.clone())
        upstream = self._torch.tensor(self._bags.upstream)
        optimizer = make_optimizer(self._torch.optim, [table])

        def run(sets=self._ids):
            for ids in sets:
                optimizer.zero_grad()
                pool(ids, table, self._offsets, mode="sum", sparse=True).backward(upstream)
                optimizer.step()

        run(self._ids[:1])
        check_step(table.detach().numpy(), self._bags, change)
        return Case(run, len(self._ids))


def openvino_sum(bags: Bags, threads: int) -> Case:
    """EmbeddingBagOffsetsSum."""
    import openvino
    from openvino import opset3

    parameter = opset3.parameter([bags.shape.num_ids], np.int64)
    op = opset3.embedding_bag_offsets_sum(
        openvino.op.Constant(bags.table, shared_memory=True), parameter, bags.offsets
    )
    compiled = openvino.Core().compile_model(
        openvino.Model([opset3.result(op)], [parameter]),
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    request = compiled.create_infer_request()
    sets = [openvino.Tensor(ids, shared_memory=True) for ids in bags.ids]

    def run(sets=sets):
        for ids in sets:
            request.set_input_tensor(ids)
            request.infer()
        return request.get_output_tensor().data

    _check(run(sets[:1]), bags.pooled("sum"))
    return Case(run, len(sets))
