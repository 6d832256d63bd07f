"""Bags: forward and backward beside other libraries, and beside the speed of the memory.

Each number of threads and shape has a process of its own: a library starts its threads once. The
ops of TensorFlow are measured inside one graph, one after the other: the call of a tf.function, 0.1
to 0.2 ms, is longer than a small bag op. The other libraries are called once an op, as tf_ti is
where it is measured alone.
"""

import collections
import json
import math
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import tf_ti
from benchmarks import bag_peers, harness, maxima, row_reader
from benchmarks.bag_peers import NOTES, UNIFORM, ZIPF, Bags, Case, Effort, Shape

THREADS = (1, 2)
SHAPES = (
    Shape(1_000_000, 64, 4096, 20),
    Shape(1_000_000, 128, 2048, 50),
    Shape(100_000, 16, 16384, 10),
    Shape(1000, 64, 64, 5),
)
QUICK_SHAPES = (SHAPES[0], *SHAPES[2:])
# Shapes that are limited by memory, and shapes whose table is far larger than a TLB covers. A
# tf.Variable of the latter goes to huge pages by itself.
MEMORY_BOUND = list(map(str, SHAPES[:3]))
LARGE = list(map(str, SHAPES[:2]))
# The shape of which little more than the call of the op is seen.
SMALLEST = str(SHAPES[-1])

OURS = "tf_ti, tf.Variable"
OURS_SMALL = "tf_ti, 4 KB pages"
OURS_TENSOR = "tf_ti, tf.Tensor"
OURS_INT32 = "tf_ti, int32 ids"
TORCH = "torch embedding_bag"
TORCH_HUGE = "torch embedding_bag, huge pages"
LOOKUP = "tf.nn.embedding_lookup_sparse"
LIMIT = "rows read only, huge pages"
LIMIT_SMALL = "rows read only, 4 KB pages"
# A bare read on the same pages, for a large table. OURS of another one is on pages of 4 KB.
SAME_PAGES = {
    OURS: LIMIT,
    OURS_SMALL: LIMIT_SMALL,
    OURS_TENSOR: LIMIT_SMALL,
    TORCH: LIMIT_SMALL,
    TORCH_HUGE: LIMIT,
}


def run(quick: bool) -> Iterator[harness.Table]:
    for threads in THREADS[-1:] if quick else THREADS:
        yield from _speed(threads, quick)
        yield _maxima(threads, quick)
    yield memory(quick)


def _output_of_process(*arguments: str, threads: int, **environment: str) -> str:
    return harness.output_of_process(
        "benchmarks.bags", *arguments, threads=threads, environment=environment
    )


# --- speed ---------------------------------------------------------------------------------------


def _speed(threads: int, quick: bool) -> Iterator[harness.Table]:
    """Tables of the times from measure_shape, in a process for each shape."""
    tables = collections.defaultdict(dict)
    for shape in QUICK_SHAPES if quick else SHAPES:
        arguments = (str(threads), str(SHAPES.index(shape)), str(int(quick)))
        outputs = [_output_of_process("speed", *arguments, threads=threads)]
        if str(shape) in LARGE:
            outputs.append(
                _output_of_process("small_pages", *arguments, threads=threads, TF_TI_HUGE_PAGES="0")
            )
        for output in outputs:
            for kind, distribution, figures in json.loads(output):
                tables[kind, distribution].setdefault(str(shape), {}).update(figures)
    # Those with fewer threads are no pictures.
    is_drawn = threads == THREADS[-1]
    for distribution, name in ((UNIFORM, "uniform"), (ZIPF, "zipf")):
        sums = _sum_table(distribution, threads, tables["sum", distribution])
        gradients = _gradient_table(distribution, threads, tables["gradient", distribution])
        if is_drawn:
            sums.picture, gradients.picture = f"bags-{name}", f"bags-{name}-gradient"
        yield sums
        yield _same_pages_table(distribution, threads, tables["sum", distribution])
        yield _eager_table(distribution, threads, tables["eager", distribution])
        yield _weighted_and_mean_table(distribution, threads, tables["others", distribution])
        yield gradients
    yield _precision_table(
        threads,
        {
            f"{shape}, {distribution}": tables["precision", distribution][shape]
            for shape in tables["precision", UNIFORM]
            for distribution in (UNIFORM, ZIPF)
        },
    )


def measure_shape(threads: int, shape: Shape, quick: bool, small_pages: bool) -> list:
    """(kind, distribution, microseconds for each way) of all measurements with a shape.

    Args:
        small_pages: True if TF_TI_HUGE_PAGES=0 is in the environment: then the times of the
            variable's look-ups alone.
    """
    bag_peers.limit_tensorflow(threads)
    if quick:
        effort = Effort(threads, sets=4, repeats=3, burst=0.02)
    else:
        effort = Effort(threads, sets=16, repeats=7, burst=0.05)
    bags = Bags.random(shape, effort.sets)
    contests = [(UNIFORM, Contest(bags, effort))]
    contests.append((ZIPF, contests[0][1].with_zipf_ids()))
    if small_pages:
        kinds = {"sum": Contest.small_pages_cases, "eager": Contest.eager_small_pages_cases}
    else:
        kinds = {
            "sum": Contest.sum_cases,
            "eager": Contest.eager_cases,
            "others": Contest.weighted_and_mean_cases,
            "gradient": Contest.gradient_cases,
        }
        if str(shape) in LARGE:
            kinds["precision"] = Contest.precision_cases
    return [
        (kind, distribution, effort.measure(make_cases(contest)))
        for kind, make_cases in kinds.items()
        for distribution, contest in contests
    ]


class Contest:
    """The cases with ids of one distribution.

    Args:
        tables: a variable for tf_ti, which moves it to huge pages, and one for TensorFlow's ops.
    """

    def __init__(
        self, bags: Bags, effort: Effort, tables: tuple[tf.Variable, tf.Variable] | None = None
    ):
        self._bags, self._effort = bags, effort
        self._variable, self._theirs = tables or (tf.Variable(bags.table), tf.Variable(bags.table))
        shape = bags.shape
        # All passes should last long, compared with the call of a tf.function and the waking of its
        # threads, up to 1 ms. An op reads at about 20 GB/s, or takes some microseconds.
        seconds = 4 * shape.num_ids * shape.width / 20e9 + 3e-6
        passes = min(32, math.ceil(0.08 / (effort.sets * seconds)))
        self._ours = bag_peers.TfTi(bags, passes)
        # Several ops, each of which takes longer, and several to trace.
        self._gather = bag_peers.Gather(bags, max(1, passes // 4))
        self._lookup = bag_peers.LookupSparse(bags, max(1, passes // 8))
        self._fast_lookup = bag_peers.LookupSparse(bags, max(1, passes // 8), True)
        self._torch = harness.if_installed(lambda: bag_peers.Torch(bags, effort.threads))

    def with_zipf_ids(self) -> "Contest":
        tables = self._variable, self._theirs
        return Contest(self._bags.with_zipf_ids(), self._effort, tables)

    def sum_cases(self) -> dict[str, Case]:
        cases = {
            OURS: self._ours.forward(self._variable),
            OURS_TENSOR: self._ours.forward(tf.constant(self._bags.table)),
            OURS_INT32: self._ours.forward(self._variable, dtype=tf.int32),
        }
        if self._torch:
            cases[TORCH] = self._torch.forward()
            cases[TORCH_HUGE] = self._torch.forward_on_huge_pages()
        openvino = harness.if_installed(
            lambda: bag_peers.openvino_sum(self._bags, self._effort.threads)
        )
        if openvino:
            cases["OpenVINO EmbeddingBagOffsetsSum"] = openvino
        cases["tf.gather + tf.reduce_sum"] = self._gather.forward(self._theirs)
        cases[LOOKUP] = self._lookup.forward(self._theirs)
        cases[f"{LOOKUP}, allow_fast_lookup"] = self._fast_lookup.forward(self._theirs)
        cases |= self._limits({LIMIT: True, LIMIT_SMALL: False}, itemsize=4)
        return cases

    def small_pages_cases(self) -> dict[str, Case]:
        return {OURS_SMALL: self._ours.forward(self._variable)}

    def eager_cases(self) -> dict[str, Case]:
        cases = {OURS: self._ours.eager(self._variable)}
        if self._torch:
            cases[TORCH] = self._torch.forward()
            cases[TORCH_HUGE] = self._torch.forward_on_huge_pages()
        cases[LOOKUP] = self._lookup.eager(self._theirs)
        return cases

    def eager_small_pages_cases(self) -> dict[str, Case]:
        return {OURS_SMALL: self._ours.eager(self._variable)}

    def weighted_and_mean_cases(self) -> dict[str, Case]:
        cases = {}
        for kind in ("weighted", "mean"):
            cases[f"{kind}: {OURS}"] = self._ours.forward(self._variable, kind)
            if self._torch:
                cases[f"{kind}: {TORCH}"] = self._torch.forward(kind)
            cases[f"{kind}: {LOOKUP}"] = self._lookup.forward(self._theirs, kind)
        return cases

    def gradient_cases(self) -> dict[str, Case]:
        cases = {OURS: self._ours.gradient(self._variable)}
        if self._torch:
            cases[TORCH] = self._torch.gradient()
        cases[LOOKUP] = self._lookup.gradient(self._theirs)
        return cases

    def precision_cases(self) -> dict[str, Case]:
        cases = {}
        for dtype in (tf.float32, tf.bfloat16, tf.float16):
            table = tf.Variable(tf.cast(self._bags.table, dtype))
            cases[f"tf_ti, {dtype.name}"] = self._ours.forward(table)
        if self._torch:
            for name in ("float32", "bfloat16", "float16"):
                cases[f"torch, {name}"] = self._torch.forward(dtype=name)
        for bits in (32, 16):
            cases |= self._limits({f"{LIMIT}, {bits} bits": True}, itemsize=bits // 8)
        return cases

    def _limits(self, names: dict[str, bool], itemsize: int) -> dict[str, Case]:
        """Cases that only read rows; none without a compiler."""
        cases = {}
        for name, huge_pages in names.items():
            row_bytes = itemsize * self._bags.shape.width
            table = row_reader.make_table(self._bags.shape.rows, row_bytes, huge_pages)
            passes = self._ours.passes
            try:
                reader = row_reader.make_case(
                    [table], passes, self._effort.threads, read=self._bags.ids
                )
            except (OSError, subprocess.CalledProcessError):
                return {}
            cases[name] = Case(reader, passes * self._effort.sets)
        return cases


def _make_table(title: str, threads: int, columns: dict, reference: str) -> harness.Table:
    table = harness.Table(f"{title}, {threads} thread{'s'[: threads - 1]}", "us", [])
    for column, figures in columns.items():
        table.add_column(column, figures)
    table.reference = reference
    return table


def _sum_table(distribution: str, threads: int, columns: dict) -> harness.Table:
    title = f"Bags at (rows, width, bags, ids a bag), {distribution} ids: forward, sum"
    table = _make_table(title, threads, columns, OURS)
    # As users have both; and both on the same pages.
    table.add_goal(OURS, TORCH, 0.85, columns=MEMORY_BOUND)
    table.add_goal(OURS, TORCH, 1.0, columns=[SMALLEST])
    table.add_goal(OURS, TORCH_HUGE, 0.9, columns=LARGE)
    table.add_goal(OURS_SMALL, TORCH, 0.95)
    table.add_goal(OURS, LOOKUP, 1 / 5)
    table.add_goal(OURS, OURS_INT32, 1.1)
    table.notes = [NOTES[distribution], "int64 ids where nothing else is said", *_notes_on_pages()]
    return table


def _same_pages_table(distribution: str, threads: int, columns: dict) -> harness.Table:
    """Each time, in times of a bare read of the same rows: 1 is the speed of the memory."""
    title = f"Bags, {distribution} ids: forward, sum, beside a bare read on the same pages"
    title = f"{title}, {threads} thread{'s'[: threads - 1]}"
    table = harness.Table(title, "times the bare read", [])
    for column in filter(columns.get, MEMORY_BOUND):
        figures = columns[column]
        limits = SAME_PAGES if column in LARGE else {**SAME_PAGES, OURS: LIMIT_SMALL}
        shares = {
            name: figures[name] / figures[limit]
            for name, limit in limits.items()
            if name in figures and limit in figures
        }
        if shares:
            table.add_column(column, shares)
    for name in (OURS, OURS_SMALL):
        shares = [share for share in table.rows.get(name, []) if share]
        if shares:
            what = f"a bare read / {name}, the worst of {len(shares)}"
            table.goals.append(harness.Goal(what, 1 / max(shares), 0.85, at_least=True))
    table.notes = [
        f"a bare read: a loop that prefetches in the fastest of {len(row_reader.PREFETCHES)} ways; "
        "it writes nothing",
        *_notes_on_pages(),
    ]
    if any(share and share < 1 / 1.2 for row in table.rows.values() for share in row):
        table.notes.append("nothing can be faster than a bare read: other processes had the CPUs")
    return table


def _eager_table(distribution: str, threads: int, columns: dict) -> harness.Table:
    title = f"Bags, {distribution} ids: forward, sum, one eager call at a time"
    table = _make_table(title, threads, columns, OURS)
    table.add_goal(OURS, TORCH, 1.2, columns=MEMORY_BOUND)
    table.add_goal(OURS, TORCH_HUGE, 1.2, columns=LARGE)
    table.add_goal(OURS_SMALL, TORCH, 1.2)
    if columns.get(SMALLEST):
        what = f"{OURS}, at ({SMALLEST})"
        table.goals.append(harness.Goal(what, columns[SMALLEST][OURS], 35, "us"))
    table.notes = [
        NOTES[distribution],
        "at the smallest shape a call is what Python and TensorFlow do around the kernel; so the "
        "goal is a time there",
        *_notes_on_pages(),
    ]
    return table


def _notes_on_pages() -> list[str]:
    return [
        "a tf.Variable of 32 MB or more goes to huge pages at its first look-up by tf_ti; "
        "4 KB pages: TF_TI_HUGE_PAGES=0, in another process",
        "a tf.Tensor and what other libraries look up is on 4 KB pages, where nothing else is said",
    ]


def _weighted_and_mean_table(distribution: str, threads: int, columns: dict) -> harness.Table:
    title = f"Bags, {distribution} ids: forward, weighted sum and mean"
    table = _make_table(title, threads, columns, f"weighted: {OURS}")
    table.add_goal(f"weighted: {OURS}", f"weighted: {TORCH}", 0.9)
    table.add_goal(f"mean: {OURS}", f"mean: {TORCH}", 0.6)
    return table


def _gradient_table(distribution: str, threads: int, columns: dict) -> harness.Table:
    title = f"Bags, {distribution} ids: forward, sum, and backward to sparse gradients"
    table = _make_table(title, threads, columns, OURS)
    table.add_goal(OURS, TORCH, 0.7)
    table.notes = [
        "tf_ti sums the gradient of each row; torch and tf.nn leave a gradient for each id, or for "
        "each id of a row, to whoever uses them",
    ]
    return table


def _precision_table(threads: int, columns: dict) -> harness.Table:
    title = "Bags: tables of 32 and 16 bits, forward, sum"
    table = _make_table(title, threads, columns, "tf_ti, float32")
    uniform = [column for column in table.columns if column.endswith(UNIFORM)]
    for name in ("tf_ti, bfloat16", "tf_ti, float16"):
        table.add_goal("tf_ti, float32", name, 1.6, columns=uniform, at_least=True)
    table.notes = ["with Zipf ids most rows lie in the cache, so there is no goal for them"]
    return table


def _maxima(threads: int, quick: bool) -> harness.Table:
    output = _output_of_process("maxima", str(threads), str(int(quick)), threads=threads)
    title = "A step of gradient descent on maxima of packed bags"
    title = f"{title}, {threads} thread{'s'[: threads - 1]}"
    return maxima.make_table(title, json.loads(output), 0.5)


def print_maxima(threads: int, quick: bool) -> None:
    bag_peers.limit_tensorflow(threads)
    print(json.dumps(maxima.measure(False, 3 if quick else 9)))


# --- memory --------------------------------------------------------------------------------------

NEEDED = "output"
MEMORY_WIDTH = 64
MEMORY_WAYS = {
    "tf_ti": lambda *arguments: _ours_for_memory(*arguments),
    TORCH: lambda *arguments: _torch_for_memory(*arguments),
    "tf.gather + tf.reduce_sum": lambda *arguments: _gather_for_memory(*arguments),
    LOOKUP: lambda *arguments: _lookup_for_memory(*arguments),
}


def memory(quick: bool) -> harness.Table:
    threads = max(THREADS)
    table = harness.Table(
        f"Bags: memory of the forward, sum, width {MEMORY_WIDTH}, {threads} threads",
        "MiB of peak above table and ids",
        [],
        reference=NEEDED,
        notes=["each in a process of its own, after a small run of the same ops"],
        picture="bags-memory",
    )
    for bags, ids_per_bag in ((2**20, 2), (2**12, 2**10)):
        figures = {NEEDED: bags * MEMORY_WIDTH * 4 / 2**20}
        for way in ["tf_ti"] if quick else MEMORY_WAYS:
            arguments = ("memory", way, str(bags), str(ids_per_bag))
            output = _output_of_process(*arguments, threads=threads)
            if output:
                figures[way] = float(output) / 1024
        table.add_column(f"{bags:,} bags of {ids_per_bag}", figures)
        # The allocators and threads need a little, too.
        allowed = figures[NEEDED] + threads * MEMORY_WIDTH * 4 / 2**20 + 4
        what = f"tf_ti, {table.columns[-1]}: peak / (output + threads x width + 4 MiB)"
        table.goals.append(harness.Goal(what, figures["tf_ti"] / allowed, 1.0))
    return table


def print_peak_growth(way: str, bags: int, ids_per_bag: int) -> None:
    """Prints the growth in KiB; nothing where the library is missing."""
    table = np.ones([100_000, MEMORY_WIDTH], np.float32)
    try:
        pool = MEMORY_WAYS[way](table)
    except ImportError:
        return

    def make_ids(bags):
        return np.random.default_rng(0).integers(0, len(table), [bags, ids_per_bag])

    pool(make_ids(16))()
    run = pool(make_ids(bags))
    before = harness.memory_of_process("VmRSS")
    # Resets the peak: making the inputs may have needed more than is in use now.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    assert tuple(run().shape) == (bags, MEMORY_WIDTH)
    print(harness.memory_of_process("VmHWM") - before)


def _offsets(ids: np.ndarray) -> np.ndarray:
    return np.arange(0, ids.size, ids.shape[1])


def _ours_for_memory(table):
    variable = tf.Variable(table)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.int64)] * 2)
    def function(ids, offsets):
        return tf_ti.embedding_bag_offsets_sum(variable, ids, offsets)

    def pool(ids):
        inputs = tf.constant(ids.reshape(-1)), tf.constant(_offsets(ids))
        return lambda: function(*inputs)

    return pool


def _torch_for_memory(table):
    import torch

    table = torch.tensor(table)

    def pool(ids):
        inputs = torch.tensor(ids.reshape(-1)), torch.tensor(_offsets(ids))
        return lambda: torch.nn.functional.embedding_bag(inputs[0], table, inputs[1], mode="sum")

    return pool


def _gather_for_memory(table):
    variable = tf.Variable(table)

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def function(ids):
        return tf.reduce_sum(tf.gather(variable, ids), axis=1)

    def pool(ids):
        inputs = tf.constant(ids)
        return lambda: function(inputs)

    return pool


def _lookup_for_memory(table):
    variable = tf.Variable(table)

    @tf.function(autograph=False, input_signature=[tf.SparseTensorSpec([None, None], tf.int64)])
    def function(ids):
        return tf.nn.embedding_lookup_sparse(variable, ids, None, combiner="sum")

    def pool(ids):
        inputs = tf.sparse.from_dense(ids + 1)
        inputs = inputs.with_values(inputs.values - 1)
        return lambda: function(inputs)

    return pool


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    if kind == "memory":
        print_peak_growth(arguments[0], int(arguments[1]), int(arguments[2]))
    elif kind == "maxima":
        print_maxima(*map(int, arguments))
    else:
        threads, index, quick = map(int, arguments)
        print(json.dumps(measure_shape(threads, SHAPES[index], quick, kind == "small_pages")))
