"""Look-ups in the many tables of a model: by one op, by an op for each, by other libraries.

TensorFlow's ops are measured inside one graph, which looks up in all tables several times, one
after the other; or as eager calls. The bags have one to five ids, in tensors of their own for each
table. The tables are small and alike; or those of a DLRM, which differ in size, width and combiner.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import harness

OURS, OURS_EACH = "tf_ti.embedding_bags", "tf_ti.embedding_bag, one by one"
LOOKUP, TORCH = "tf.nn.embedding_lookup_sparse, one by one", "torch embedding_bag, one by one"
TABLES, ROWS, WIDTH, MOST_IDS = 26, 10_000, 16, 5
DLRM_ROWS, DLRM_WIDTHS = (1000, 10_000, 100_000), (4, 8, 16, 32, 64, 128)
DLRM_COMBINERS = ("sum", "sum", "sum", "mean")
BATCHES = (128, 2048)
THREADS = 2
PASSES = 20  # in a graph, whose call takes 0.1 to 0.2 ms

# A function that pools bags: (tables, ids of each, combiner of each) -> the rows of each.
Way = Callable[[Sequence[tf.Variable], Sequence, Sequence[str]], list[tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What is looked up in: of each table the number of rows, their width, the combiner."""

    rows: int = ROWS
    width: int = WIDTH
    combiner: str = "sum"


ALIKE = [Shape()] * TABLES


def dlrm() -> list[Shape]:
    """Tables of every width with every size."""
    return [
        Shape(
            DLRM_ROWS[k // len(DLRM_WIDTHS) % len(DLRM_ROWS)],
            DLRM_WIDTHS[k % len(DLRM_WIDTHS)],
            DLRM_COMBINERS[k % len(DLRM_COMBINERS)],
        )
        for k in range(TABLES)
    ]


def run(quick: bool) -> Iterator[harness.Table]:
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    repeats = 5 if quick else 15
    what = f"Sums of bags of {TABLES} tables of {ROWS:,} x {WIDTH}"
    contests = [Contest(ALIKE, batch) for batch in BATCHES]
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
    yield from _of_dlrm(repeats)


def _of_dlrm(repeats: int) -> Iterator[harness.Table]:
    what = f"Bags of a DLRM of {TABLES} tables, {DLRM_WIDTHS[0]} to {DLRM_WIDTHS[-1]} wide"
    contests = [Contest(dlrm(), batch) for batch in BATCHES]
    columns = {c.batch: c.forward() for c in contests}
    forward = _table("dlrm-forward", f"{what}, forward", repeats, columns)
    forward.add_goal(OURS, OURS_EACH, 1.0)
    yield forward
    columns = {c.batch: c.gradient() for c in contests}
    yield _table("dlrm-gradient", f"{what}, forward and backward", repeats, columns)


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

    def __init__(self, shapes: Sequence[Shape], batch: int):
        self.batch = batch
        rng = np.random.default_rng(0)
        values = [rng.standard_normal([each.rows, each.width], np.float32) for each in shapes]
        lengths = rng.integers(1, MOST_IDS + 1, [len(shapes), batch])
        self._combiners = [each.combiner for each in shapes]
        self._tables = list(map(tf.Variable, values))
        self._ids = [
            tf.RaggedTensor.from_row_lengths(rng.integers(0, each.rows, sizes.sum()), sizes)
            for each, sizes in zip(shapes, lengths)
        ]
        self._sparse_ids = [ids.to_sparse() for ids in self._ids]
        for ids, sparse in zip(self._ids, self._sparse_ids):
            assert sparse.values.shape == ids.values.shape
        self._torch = harness.if_installed(lambda: _Torch(values, self._ids, self._combiners))
        expected = _one_op(self._tables, self._ids, self._combiners)
        theirs = [_lookup_sparse(self._tables, self._sparse_ids, self._combiners)]
        theirs += [self._torch.forward()] if self._torch else []
        for rows in theirs:
            for theirs_of_table, ours_of_table in zip(rows, expected, strict=True):
                np.testing.assert_allclose(theirs_of_table, ours_of_table, rtol=1e-4, atol=1e-4)

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
            return make(lambda: way(self._tables, ids, self._combiners))

        cases = {
            OURS: case(_one_op, self._ids),
            OURS_EACH: case(_one_by_one, self._ids),
            LOOKUP: case(_lookup_sparse, self._sparse_ids),
        }
        if self._torch:
            cases[TORCH] = getattr(self._torch, of_torch)
        return cases


def _one_op(
    tables: Sequence[tf.Variable], ids: Sequence, combiners: Sequence[str]
) -> list[tf.Tensor]:
    return tf_ti.embedding_bags(tables, ids, combiner=combiners)


def _one_by_one(
    tables: Sequence[tf.Variable], ids: Sequence, combiners: Sequence[str]
) -> list[tf.Tensor]:
    return [
        tf_ti.embedding_bag(table, i, combiner=combiner)
        for table, i, combiner in zip(tables, ids, combiners)
    ]


def _lookup_sparse(
    tables: Sequence[tf.Variable], ids: Sequence, combiners: Sequence[str]
) -> list[tf.Tensor]:
    return [
        tf.nn.embedding_lookup_sparse(table, i, None, combiner=combiner)
        for table, i, combiner in zip(tables, ids, combiners)
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

    def __init__(
        self,
        tables: Sequence[np.ndarray],
        ids: Sequence[tf.RaggedTensor],
        combiners: Sequence[str],
    ):
        import torch

        torch.set_num_threads(THREADS)
        # As by default, but without a warning.
        torch.sparse.check_sparse_tensor_invariants.disable()
        self._torch, self._combiners = torch, combiners
        self._tables = [torch.tensor(table, requires_grad=True) for table in tables]
        self._ids = [
            (torch.tensor(each.values.numpy()), torch.tensor(each.row_starts().numpy()))
            for each in ids
        ]

    def _pool(self) -> list:
        pool = self._torch.nn.functional.embedding_bag
        return [
            pool(values, table, offsets, mode=combiner, sparse=True)
            for table, (values, offsets), combiner in zip(self._tables, self._ids, self._combiners)
        ]

    def forward(self) -> list:
        with self._torch.no_grad():
            return self._pool()

    def gradient(self) -> None:
        for table in self._tables:
            table.grad = None
        sums = self._pool()
        self._torch.autograd.backward(sums, [0.5 * each.detach() for each in sums])
