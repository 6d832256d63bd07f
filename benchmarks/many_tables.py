"""Look-ups in the many small tables of a model: by one op, by an op for each, by other libraries.

TensorFlow's ops are measured inside one graph, which looks up in all tables several times, one
after the other; or as eager calls. The bags have one to five ids, in tensors of their own for each
table.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness

OURS, OURS_EACH = "tf_ti.embedding_bags", "tf_ti.embedding_bag, one by one"
LOOKUP, TORCH = "tf.nn.embedding_lookup_sparse, one by one", "torch embedding_bag, one by one"
TABLES, ROWS, WIDTH, MOST_IDS = 26, 10_000, 16, 5
BATCHES = (128, 2048)
THREADS = 2
PASSES = 20  # in a graph, whose call takes 0.1 to 0.2 ms

# A function that pools bags: (tables, ids of each) -> the sums of each.
Way = Callable[[Sequence[tf.Variable], Sequence], list[tf.Tensor]]


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats = 5 if quick else 15
    what = f"Sums of bags of {TABLES} tables of {ROWS:,} x {WIDTH}"
    contests = [Contest(batch) for batch in BATCHES]
    forward = _table(
        "forward", f"{what}, forward", repeats, {c.batch: c.forward() for c in contests}
    )
    eager = _table(
        "eager", f"{what}, forward, eager", repeats, {c.batch: c.eager() for c in contests}
    )
    for table in (forward, eager):
        table.add_goal(OURS, OURS_EACH, 1.0)
    eager.add_goal(OURS, TORCH, 1.5)
    yield forward
    yield eager
    # Each table has a gradient op of its own, in both ways.
    title, columns = f"{what}, forward and backward", {c.batch: c.gradient() for c in contests}
    yield _table("gradient", title, repeats, columns)


def _table(
    kind: str, title: str, repeats: int, columns: dict[int, dict[str, Callable]]
) -> harness.Table:
    table = harness.Table(
        title, "us for all tables", [], reference=OURS, picture=f"many-tables-{kind}"
    )
    for batch, cases in columns.items():
        seconds = harness.measure(cases, repeats)
        figures = {
            name: value * 1e6 / getattr(cases[name], "num_passes", 1)
            for name, value in seconds.items()
        }
        table.add_column(f"{batch} bags a table", figures)
    return table


class Contest:
    """The cases with one number of bags of each table."""

    def __init__(self, batch: int):
        self.batch = batch
        rng = np.random.default_rng(0)
        values = rng.standard_normal([TABLES, ROWS, WIDTH], np.float32)
        lengths = rng.integers(1, MOST_IDS + 1, [TABLES, batch])
        self._tables = list(map(tf.Variable, values))
        self._ids = [
            tf.RaggedTensor.from_row_lengths(rng.integers(0, ROWS, each.sum()), each)
            for each in lengths
        ]
        self._sparse_ids = [ids.to_sparse() for ids in self._ids]
        for ids, sparse in zip(self._ids, self._sparse_ids):
            assert sparse.values.shape == ids.values.shape
        self._torch = harness.if_installed(lambda: _Torch(values, self._ids))
        expected = _one_op(self._tables, self._ids)
        theirs = [_lookup_sparse(self._tables, self._sparse_ids)]
        theirs += [self._torch.forward()] if self._torch else []
        for sums in theirs:
            np.testing.assert_allclose(np.stack(sums), np.stack(expected), rtol=1e-4, atol=1e-4)

    def forward(self) -> dict[str, Callable]:
        return self._cases(_in_graph, "forward")

    def eager(self) -> dict[str, Callable]:
        return self._cases(lambda call: call, "forward")

    def gradient(self) -> dict[str, Callable]:
        return self._cases(
            lambda call: _in_graph(lambda: _gradient(call, self._tables)), "gradient"
        )

    def _cases(self, make: Callable, of_torch: str) -> dict[str, Callable]:
        def case(way: Way, ids: Sequence) -> Callable:
            return make(lambda: way(self._tables, ids))

        cases = {
            OURS: case(_one_op, self._ids),
            OURS_EACH: case(_one_by_one, self._ids),
            LOOKUP: case(_lookup_sparse, self._sparse_ids),
        }
        if self._torch:
            cases[TORCH] = getattr(self._torch, of_torch)
        return cases


def _one_op(tables: Sequence[tf.Variable], ids: Sequence) -> list[tf.Tensor]:
    return tf_ti.embedding_bags(tables, ids)


def _one_by_one(tables: Sequence[tf.Variable], ids: Sequence) -> list[tf.Tensor]:
    return [tf_ti.embedding_bag(table, i) for table, i in zip(tables, ids)]


def _lookup_sparse(tables: Sequence[tf.Variable], ids: Sequence) -> list[tf.Tensor]:
    return [
        tf.nn.embedding_lookup_sparse(table, i, None, combiner="sum")
        for table, i in zip(tables, ids)
    ]


def _in_graph(call: Callable) -> Callable:
    """Several calls in one graph, each after the last."""

    @tf.function(autograph=False)
    def run():
        results = []
        for _ in range(PASSES):
            with tf.control_dependencies(results):
                results = call()
        return results[0]

    run.num_passes = PASSES
    return run


def _gradient(call: Callable, tables: Sequence[tf.Variable]) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        sums = call()
    slices = tape.gradient(sums, tables, [0.5 * each for each in sums])
    return [each.values for each in slices]


class _Torch:
    """torch.nn.functional.embedding_bag for each table."""

    def __init__(self, tables: np.ndarray, ids: Sequence[tf.RaggedTensor]):
        import torch

        torch.set_num_threads(THREADS)
        # As by default, but without a warning.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._torch = torch
        self._tables = [torch.tensor(table, requires_grad=True) for table in tables]
        self._ids = [
            (torch.tensor(each.values.numpy()), torch.tensor(each.row_starts().numpy()))
            for each in ids
        ]

    def _pool(self) -> list:
        pool = self._torch.nn.functional.embedding_bag
        return [
            pool(values, table, offsets, mode="sum", sparse=True)
            for table, (values, offsets) in zip(self._tables, self._ids)
        ]

    def forward(self) -> list:
        with self._torch.no_grad():
            return self._pool()

    def gradient(self) -> None:
        for table in self._tables:
            table.grad = None
        sums = self._pool()
        self._torch.autograd.backward(sums, [0.5 * each.detach() for each in sums])
