"""Training: steps of optimizers on a large table, beside other libraries and the memory's speed.

A step is the forward, the gradient and the update; updates alone are measured as well. Each kind of
optimizer and distribution of ids has a process of its own: a table is 256 MB, and so is each slot.
TensorFlow's steps are measured inside one graph, one after the other, except for Keras's `fit`,
which calls a function a step. The other libraries are called once a step.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import bag_peers, harness, optimizers, row_reader
from benchmarks.bag_peers import NOTES, UNIFORM, ZIPF, Bags, Case, Effort, Shape

THREADS = 2
SHAPE = Shape(1_000_000, 64, 4096, 20)
# The passes of one call through all ids, so that the time of the call itself hardly counts.
PASSES = 4
DISTRIBUTIONS = (UNIFORM, ZIPF)
LAYERS = ("EmbeddingBag", "Embedding")

SGD = "tf_ti.scatter_sub"
ADAM = "tf_ti.adam_update"
ADAGRAD = "tf_ti.adagrad_update"
ROW_WISE = "tf_ti.adagrad_update, row-wise"
LAZY_ADAM = "lazy Adam of TensorFlow's ops"
ADAGRAD_V2 = "tf.raw_ops.ResourceSparseApplyAdagradV2"
TORCH_SGD, TORCH_ADAM, TORCH_ADAGRAD = "torch SGD", "torch SparseAdam", "torch Adagrad"
FBGEMM = "FBGEMM row-wise Adagrad"
LOOKUP_SGD = "tf.nn.embedding_lookup_sparse, scatter_sub"
OURS = {
    SGD: optimizers.Sgd,
    ROW_WISE: optimizers.RowWiseAdagrad,
    ADAGRAD: optimizers.Adagrad,
    ADAM: optimizers.Adam,
}
# The least that a step has to do, and an update alone, without and with the gradient.
STEP = "rows read, and rows of {} written"
UPDATE = "rows of {} written"
UPDATE_AND_GRADIENT = "rows of {} written, a gradient's read"
# The tables whose rows change, the slots among them. Rows of row-wise slots are 4 bytes.
TABLES = {SGD: 1, ROW_WISE: 1, ADAGRAD: 2, ADAM: 3}


def run(quick: bool) -> Iterator[harness.Table]:
    small_pages = _measure("small_pages", quick, {"TF_TI_HUGE_PAGES": "0"})
    makers = {"adam": _adam_table, "adagrad": _adagrad_table, "sgd": _sgd_table}
    for kind, make_table in makers.items():
        columns = {}
        for distribution, figures in _measure(kind, quick).items():
            columns[distribution] = {}
            for name, figure in figures.items():
                columns[distribution][name] = figure
                if name in OURS:
                    columns[distribution][_small(name)] = small_pages[distribution][name]
        yield make_table(columns)
    yield _updates_table(_measure("updates", quick))


def _small(name: str) -> str:
    return f"{name}, 4 KB pages"


def _limit(what: str, tables: int, huge_pages: bool = True) -> str:
    name = what.format(f"{tables} table{'s'[: tables - 1]}")
    return name if huge_pages else _small(name)


def _fit(library: str, optimizer: str, layer: str, compiled: bool = False) -> str:
    name = f"fit, {library}.optimizers.{optimizer}, {layer}"
    return f"{name}, jit_compile" if compiled else name


# --- measuring -----------------------------------------------------------------------------------


def _measure(
    kind: str, quick: bool, environment: dict[str, str] | None = None
) -> dict[str, dict[str, float]]:
    """The times from `measure_kind` in a process for each distribution."""
    columns = {}
    for distribution in DISTRIBUTIONS:
        output = harness.output_of_process(
            "benchmarks.training",
            *(kind, distribution, str(int(quick))),
            threads=THREADS,
            environment=environment,
        )
        columns[distribution] = json.loads(output.splitlines()[-1])
    return columns


def measure_kind(kind: str, distribution: str, quick: bool) -> dict[str, float]:
    """The microseconds that a step takes, for each way."""
    bag_peers.limit_tensorflow(THREADS)
    if quick:
        effort = Effort(THREADS, sets=4, repeats=3, burst=0.02)
    else:
        effort = Effort(THREADS, sets=8, repeats=7, burst=0.05)
    bags = Bags.random(SHAPE, effort.sets)
    if distribution == ZIPF:
        bags = bags.with_zipf_ids()
    return effort.measure(KINDS[kind](Contest(bags)))


class Contest:
    """The cases with ids of one distribution."""

    def __init__(self, bags: Bags):
        self._bags = bags
        self._ours = bag_peers.TfTi(bags, PASSES)
        self._torch = harness.if_installed(lambda: bag_peers.Torch(bags, THREADS))

    def adam_cases(self) -> dict[str, Case]:
        cases = {
            **self._our_cases(ADAM),
            LAZY_ADAM: self._ours.training(optimizers.TensorFlowAdam(self._bags.table)),
            **self._fit_cases("Adam"),
        }
        if self._torch:
            cases[TORCH_ADAM] = self._torch.training(
                lambda optim, parameters: optim.SparseAdam(
                    parameters, optimizers.RATE, eps=optimizers.EPSILON
                ),
                optimizers.adam_change,
            )
        return cases | self._limits(STEP, ADAM)

    def adagrad_cases(self) -> dict[str, Case]:
        from benchmarks import training_peers

        cases = {**self._our_cases(ADAGRAD, ROW_WISE), **self._fit_cases("Adagrad")}
        if self._torch:
            cases[TORCH_ADAGRAD] = self._torch.training(
                lambda optim, parameters: optim.Adagrad(
                    parameters,
                    optimizers.RATE,
                    initial_accumulator_value=optimizers.INITIAL,
                    eps=optimizers.EPSILON,
                ),
                optimizers.adagrad_change,
            )
        fbgemm = harness.if_installed(
            lambda: training_peers.fbgemm_row_wise_adagrad(self._bags, THREADS)
        )
        if fbgemm:
            cases[FBGEMM] = fbgemm
        return cases | self._limits(STEP, ADAGRAD) | self._limits(STEP, ROW_WISE)

    def sgd_cases(self) -> dict[str, Case]:
        theirs = optimizers.TensorFlowSgd
        cases = self._our_cases(SGD)
        cases["tf_ti, tf.Variable.scatter_sub"] = self._ours.training(theirs(self._bags.table))
        if self._torch:
            cases[TORCH_SGD] = self._torch.training(
                lambda optim, parameters: optim.SGD(parameters, optimizers.RATE),
                optimizers.sgd_change,
            )
        lookup = bag_peers.LookupSparse(self._bags, PASSES)
        cases[LOOKUP_SGD] = lookup.training(theirs(self._bags.table))
        return cases | self._limits(STEP, SGD)

    def update_cases(self) -> dict[str, Case]:
        cases = {name: self._ours.updates(make(self._bags.table)) for name, make in OURS.items()}
        cases[ADAGRAD_V2] = self._ours.updates(optimizers.TensorFlowAdagrad(self._bags.table))
        for name in OURS:
            cases |= self._limits(UPDATE, name) | self._limits(UPDATE_AND_GRADIENT, name)
        return cases

    def small_pages_cases(self) -> dict[str, Case]:
        return self._our_cases(*OURS)

    def _our_cases(self, *names: str) -> dict[str, Case]:
        return {name: self._ours.training(OURS[name](self._bags.table)) for name in names}

    def _fit_cases(self, optimizer: str) -> dict[str, Case]:
        from benchmarks import training_peers

        kerass, ours, change = training_peers.OPTIMIZERS[optimizer]
        return {
            _fit(library, optimizer, layer, compiled): training_peers.fit(
                self._bags, make(optimizers.RATE), change, layer, compiled
            )
            for library, make in (("tf_ti.keras", ours), ("keras", kerass))
            for layer in LAYERS
            for compiled in (False, True)
        }

    def _limits(self, what: str, optimizer: str) -> dict[str, Case]:
        """Cases that only go through rows; none without a compiler."""
        cases = {}
        written = [np.unique(ids) for ids in self._bags.ids]
        for huge_pages in (True, False):
            tables = [
                row_reader.make_table(SHAPE.rows, 4 * SHAPE.width, huge_pages)
                for _ in range(TABLES[optimizer])
            ]
            try:
                walk = row_reader.make_case(
                    tables,
                    PASSES,
                    THREADS,
                    read=self._bags.ids if what == STEP else (),
                    written=written,
                    with_gradient=what == UPDATE_AND_GRADIENT,
                )
            except (OSError, subprocess.CalledProcessError):
                return {}
            name = _limit(what, len(tables), huge_pages)
            cases[name] = Case(walk, PASSES * len(written))
        return cases


KINDS: dict[str, Callable[[Contest], dict[str, Case]]] = {
    "adam": Contest.adam_cases,
    "adagrad": Contest.adagrad_cases,
    "sgd": Contest.sgd_cases,
    "updates": Contest.update_cases,
    "small_pages": Contest.small_pages_cases,
}


# --- tables --------------------------------------------------------------------------------------


def _make_table(kind: str, title: str, columns: dict, reference: str) -> harness.Table:
    title = f"Training at ({SHAPE}): {title}, {THREADS} threads"
    table = harness.Table(title, "us a step", [], reference=reference, picture=f"training-{kind}")
    for column, figures in columns.items():
        table.add_column(column, figures)
    table.notes = [f"{distribution}: {NOTES[distribution]}" for distribution in columns]
    return table


def _adam_table(columns: dict) -> harness.Table:
    table = _make_table("adam", "a step of Adam", columns, ADAM)
    _add_fit_goals(table, "Adam", {UNIFORM: 1 / 30, ZIPF: 0.024})
    _add_torch_goals(table, ADAM, TORCH_ADAM)
    table.add_goal(ADAM, LAZY_ADAM, 1 / 2)
    _add_limit_goals(table, STEP, ADAM)
    table.notes.append(
        "keras.optimizers.Adam moves all rows at every step, the others touched ones"
    )
    _add_notes_on_steps(table)
    return table


def _adagrad_table(columns: dict) -> harness.Table:
    table = _make_table("adagrad", "a step of Adagrad", columns, ADAGRAD)
    _add_fit_goals(table, "Adagrad", dict.fromkeys(DISTRIBUTIONS, 1 / 12))
    _add_torch_goals(table, ADAGRAD, TORCH_ADAGRAD)
    table.add_goal(ROW_WISE, FBGEMM, 1.1)
    for name in (ADAGRAD, ROW_WISE):
        _add_limit_goals(table, STEP, name)
    _add_notes_on_steps(table)
    return table


def _sgd_table(columns: dict) -> harness.Table:
    table = _make_table("sgd", "a step of gradient descent", columns, SGD)
    table.add_goal(SGD, TORCH_SGD, 0.7)
    _add_limit_goals(table, STEP, SGD)
    _add_notes_on_steps(table)
    return table


def _updates_table(columns: dict) -> harness.Table:
    table = _make_table("updates", "an update alone", columns, ADAGRAD)
    table.add_goal(ADAGRAD, ADAGRAD_V2, 0.8)
    for name in OURS:
        _add_limit_goals(table, UPDATE, name)
        _add_limit_goals(table, UPDATE_AND_GRADIENT, name)
    table.notes += [
        "the gradient, that of tf_ti's bags, is there already, in order and with each row once",
        "tables and slots are on huge pages, but TensorFlow's accumulator on 4 KB pages",
    ]
    return table


def _add_fit_goals(table: harness.Table, optimizer: str, limits: dict[str, float]) -> None:
    table.notes.append(
        "fit: the function that model.fit calls for each batch, which Keras has XLA compile on a "
        "CPU only where it is told to, with jit_compile=True; for Embedding, whose rows are added "
        "up, Keras's squares a repeated row's gradients apart"
    )
    for layer in LAYERS:
        ours, kerass = (_fit(library, optimizer, layer) for library in ("tf_ti.keras", "keras"))
        for distribution, limit in limits.items():
            table.add_goal(ours, kerass, limit, columns=[distribution])


def _add_torch_goals(table: harness.Table, ours: str, torchs: str) -> None:
    for distribution, limit in ((UNIFORM, 1 / 3), (ZIPF, 1 / 8)):
        table.add_goal(ours, torchs, limit, columns=[distribution])


def _add_limit_goals(table: harness.Table, what: str, ours: str) -> None:
    table.add_goal(ours, _limit(what, TABLES[ours]), 1.25)
    table.add_goal(_small(ours), _limit(what, TABLES[ours], huge_pages=False), 1.25)


def _add_notes_on_steps(table: harness.Table) -> None:
    table.notes += [
        "tf_ti's tables and slots are on huge pages, where nothing else is said; other libraries' "
        "on 4 KB pages, but that a table which tf_ti looks up goes to huge pages, Keras's too",
        "4 KB pages of tf_ti: TF_TI_HUGE_PAGES=0, in another process",
        "rows read, and written: a bare loop that reads a row for each id and then rewrites "
        "the same rows, each once, of the table and of its slots; it prefetches in the fastest of "
        f"{len(row_reader.PREFETCHES)} ways, and neither computes nor knows a gradient",
    ]


if __name__ == "__main__":
    print(json.dumps(measure_kind(sys.argv[1], sys.argv[2], bool(int(sys.argv[3])))))
