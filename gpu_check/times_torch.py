"""Times torch's embedding_bag on the cases that `times` has timed, in the same way: see times.cc.

    python3 times_torch.py FOLDER [--trial]

FOLDER has the lines of `times` as times.json, and the ids of its cases. Prints a line of JSON with
torch's version, and one for each case and operation, with microseconds or the error. With --trial
all is done once, on the processor, to try the program itself.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
from torch.nn import functional

CYCLES_PER_SECOND = 2e9  # about the GPU's
# The longest time that the host may take to enqueue work behind a delay. A stream holds about 1000
# launches, after which the host waits for the device.
MOST_ENQUEUED_SECONDS = 0.002


class Stopwatch:
    """Measures the time that a call adds to a busy device, with cold and with warm caches."""

    def __init__(self):
        size = 4 * torch.cuda.get_device_properties("cuda").L2_cache_size
        self.buffer = torch.zeros(size // 4, device="cuda")
        self.sink = torch.zeros((), device="cuda")
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(3)]

    def flush(self):
        # Only reads: lines that were written would have to leave the cache during the next call.
        torch.sum(self.buffer, 0, out=self.sink)

    def measure(self, call) -> dict[str, float]:
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            host = time.perf_counter() - start
        # Long enough that the device never waits for the host.
        delay = int(CYCLES_PER_SECOND * (0.0005 + 2 * host))
        calls = max(1, min(5, int(MOST_ENQUEUED_SECONDS / host)))
        flushes, colds, warms = [], [], []
        for _ in range(11):
            torch.cuda._sleep(delay)
            self.flush()
            self.events[0].record()
            self.flush()
            self.events[1].record()
            self.flush()
            call()
            self.events[2].record()
            self.events[2].synchronize()
            flushes.append(self.events[0].elapsed_time(self.events[1]))
            colds.append(self.events[1].elapsed_time(self.events[2]))
        for _ in range(5):
            torch.cuda._sleep(calls * delay)
            call()
            self.events[0].record()
            for _ in range(calls):
                call()
            self.events[1].record()
            self.events[1].synchronize()
            warms.append(self.events[0].elapsed_time(self.events[1]) / calls)
        cold = statistics.median(colds) - statistics.median(flushes)
        return {"cold_us": 1000 * cold, "warm_us": 1000 * statistics.median(warms)}


class Trial:
    """Calls once."""

    def measure(self, call) -> dict[str, float]:
        start = time.perf_counter()
        call()
        taken = 1e6 * (time.perf_counter() - start)
        return {"cold_us": taken, "warm_us": taken}


class Case:
    """A case's tensors. Each of its methods makes a call to measure."""

    def __init__(self, row: dict, folder: pathlib.Path, device: str):
        self.row = row
        tables, bags, size = row["tables"], row["bags"], row["ids_per_bag"]
        ids = torch.from_file(
            str(folder / f"{row['case']}.ids"), size=tables * bags * size, dtype=torch.int64
        )
        index, dtype = getattr(torch, row["index"]), getattr(torch, row["dtype"])
        ids = ids.to(device=device, dtype=index).reshape(tables, bags, size)
        # Packed bags are rows of ids; torch knows no segments.
        self.offsets = None
        if row["kind"] != "packed":
            ids = ids.reshape(tables, -1)
            self.offsets = torch.arange(0, bags * size, size, device=device, dtype=index)
        self.ids = list(ids)
        self.tables = [
            torch.rand(row["rows"], row["width"], device=device, dtype=dtype, requires_grad=True)
            for _ in range(tables)
        ]
        self.weights = [
            torch.rand(ids[0].shape, device=device, dtype=dtype) if row["weights"] else None
            for _ in range(tables)
        ]
        self.grads = [
            torch.rand(bags, row["width"], device=device, dtype=dtype) for _ in range(tables)
        ]

    def look_up(self, sparse: bool) -> list[torch.Tensor]:
        return [
            functional.embedding_bag(
                ids,
                table,
                self.offsets,
                mode=self.row["reduction"],
                sparse=sparse,
                per_sample_weights=weights,
            )
            for ids, table, weights in zip(self.ids, self.tables, self.weights, strict=True)
        ]

    def forward(self):
        @torch.no_grad()
        def call():
            self.look_up(sparse=False)

        return call

    def backward(self, sparse: bool):
        return lambda: torch.autograd.grad(self.look_up(sparse), self.tables, self.grads)

    def step(self, optimizer: torch.optim.Optimizer):
        def call():
            torch.autograd.backward(self.look_up(sparse=True), self.grads)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return call

    def of_weights(self):
        tables = self.tables
        for weights in self.weights:
            weights.requires_grad_()
        self.tables = [table.detach() for table in tables]
        out = self.look_up(sparse=False)
        self.tables = tables
        return lambda: torch.autograd.grad(out, self.weights, self.grads, retain_graph=True)

    def calls(self, operation: str) -> dict:
        """Torch's ways to do an operation: the functions to call, by name. None where it cannot."""
        if operation == "forward":
            return {"forward": self.forward()}
        if operation == "forward, backward":
            # Torch has no sparse gradients of maxima.
            kinds = (False,) if self.row["reduction"] == "max" else (True, False)
            return {"sparse" if kind else "dense": self.backward(kind) for kind in kinds}
        if operation == "step, SGD":
            return {"SGD": self.step(torch.optim.SGD(self.tables, lr=0.5))}
        if operation == "step, Adam":
            return {"SparseAdam": self.step(torch.optim.SparseAdam(self.tables, lr=0.001))}
        if operation == "weights' gradient":
            return {"weights": self.of_weights()}
        return {}


def measure(case: Case, operation: str, stopwatch) -> dict:
    """The times of the fastest way; empty where there is none."""
    best: dict = {}
    for name, call in case.calls(operation).items():
        times = {"way": name, **stopwatch.measure(call)}
        if not best or times["cold_us"] < best["cold_us"]:
            best = times
    return best


def say(line: dict) -> None:
    print(json.dumps(line), flush=True)


def main(folder: pathlib.Path, is_trial: bool) -> str | None:
    """Runs all cases. Returns the reason where it cannot."""
    if not is_trial and not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU"
    say({"torch": torch.__version__, "cuda": torch.version.cuda})
    device, stopwatch = ("cpu", Trial()) if is_trial else ("cuda", Stopwatch())
    rows = [json.loads(line) for line in (folder / "times.json").read_text().splitlines()]
    case = None
    for row in rows:
        names = {name: row[name] for name in ("case", "operation")}
        try:
            if case is None or case.row["case"] != row["case"]:
                case = None  # before there is another one, for its memory
                case = Case(row, folder, device)
            times = measure(case, row["operation"], stopwatch)
            if times:
                say({**names, **times})
        except (RuntimeError, NotImplementedError) as error:  # no memory, say
            say({**names, "error": str(error).splitlines()[0]})
            case = None
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--trial", action="store_true")
    arguments = parser.parse_args()
    sys.exit(main(arguments.folder, arguments.trial))
