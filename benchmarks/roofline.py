"""A roofline: what bags, sequences and programs compute and move, beside the machine's limits.

A multiplication, an addition, and a function of an element count as one operation each. The bytes
are those that a bag, or an iteration, cannot do without: the rows and ids and the sum; or all that
an iteration reads and writes, weights, states, elements and results. What stays in registers from
one iteration to the next moves less, and a point may lie above its roof for that.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator

import tensorflow as tf

from benchmarks import bag_peers, bodies, harness, machine_limits, recurrent
from benchmarks.loop_bodies import BODIES, Body
from benchmarks.recurrent_peers import GATES, Layer

THREADS = 2
INTENSITY, FLOPS, BYTES = "flop a byte", "Gflop/s", "GB/s"
PEAK = "limit: multiply-adds in registers"
# What one thread reads again and again.
READS = {"limit: reads of 256 kB a core": 2**18, "limit: reads of memory": 2**28}
SHAPES = {
    "bags, 1M x 64": bag_peers.Shape(1_000_000, 64, 4096, 20),
    "bags, 100k x 16": bag_peers.Shape(100_000, 16, 16384, 10),
}
LAYERS = (("lstm", recurrent.A), ("lstm", recurrent.C), ("lstm", recurrent.D), ("gru", recurrent.D))
PROGRAMS = ("rk4_lorenz", "wkv", "selective_scan", "layer_norm_lstm", "neural_ode", "wave")

# A figure of each row: seconds, operations, bytes.
Points = dict[str, tuple[float, float, float]]


def run(quick: bool) -> Iterator[harness.Table]:
    points: Points = {}
    for subject in ("bags", "loops"):
        arguments = (subject, str(int(quick)))
        output = harness.output_of_process("benchmarks.roofline", *arguments, threads=THREADS)
        points |= json.loads(output.splitlines()[-1])
    table = harness.Table(
        f"Roofline, {THREADS} threads",
        "",
        [INTENSITY, FLOPS, BYTES],
        notes=[
            "an operation: a multiplication, an addition, or a function of an element",
            "bytes: of bags, the rows, the ids and the sums; of a loop, all that each iteration "
            "reads and writes, weights, states, elements and results",
            "a limit: the best of some attempts, of all threads together",
        ],
        picture="roofline",
        kind=harness.ROOFLINE,
    )
    table.rows = _limits()
    for name, (seconds, flops, moved) in points.items():
        table.rows[name] = [flops / moved, flops / seconds / 1e9, moved / seconds / 1e9]
    yield table


def _limits() -> dict[str, list[float | None]]:
    """The limits as rows; none without a compiler."""
    try:
        peak = 2 * machine_limits.measure(THREADS).multiply_adds
        reads = {name: machine_limits.bytes_read(size, THREADS) for name, size in READS.items()}
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {
        PEAK: [None, peak / 1e9, None],
        **{name: [None, None, read / 1e9] for name, read in reads.items()},
    }


def measure(subject: str, quick: bool) -> Points:
    if subject == "bags":
        bag_peers.limit_tensorflow(THREADS)
        return {name: _bags(shape, quick) for name, shape in SHAPES.items()}
    recurrent.limit_tensorflow(THREADS)
    repeats = 3 if quick else 9
    points = {f"{kind} {shape}": _sequence(kind, shape, repeats) for kind, shape in LAYERS}
    return points | {f"program {name}": _program(name, repeats) for name in PROGRAMS}


def _bags(shape: bag_peers.Shape, quick: bool) -> tuple[float, float, float]:
    effort = bag_peers.Effort(THREADS, sets=4, repeats=3 if quick else 7, burst=0.05)
    given = bag_peers.Bags.random(shape, effort.sets)
    case = bag_peers.TfTi(given, passes=8).forward(tf.Variable(given.table))
    (microseconds,) = effort.measure({"": case}).values()
    moved = given.ids[0].nbytes + 4 * shape.width * (shape.num_ids + shape.bags)
    return microseconds / 1e6, shape.num_ids * shape.width, moved


def _sequence(kind: str, shape: recurrent.Shape, repeats: int) -> tuple[float, float, float]:
    name = recurrent.OURS[kind]
    seconds = recurrent.forward_seconds(shape, kind, THREADS, repeats, (name,))[name]
    layer = Layer.random(kind, *shape.sizes)
    time, batch, _, hidden = shape.sizes
    products = time * batch * (layer.w.size + layer.r.size)
    # Biases, and three operations of each gate: a function, a product, a sum.
    others = time * batch * hidden * 4 * len(GATES[kind])
    moved = layer.w.nbytes + layer.x.nbytes + time * layer.r.nbytes
    moved += 4 * time * batch * hidden * (1 + 2 * len(layer.states))
    return seconds, 2 * products + others, moved


def _program(name: str, repeats: int) -> tuple[float, float, float]:
    body = BODIES[name](tf)
    cases = bodies.make_cases(bodies.FORWARD, name, body, (bodies.OURS, bodies.KERNELS))
    seconds = harness.measure({"": cases[bodies.OURS].call}, repeats)[""]
    flops, moved = count_work(body)
    return seconds, body.count * flops, body.count * moved


# --- what an iteration computes ------------------------------------------------------------------

PER_RESULT = {
    *("AddV2", "Sub", "Mul", "RealDiv", "Neg", "Maximum", "Minimum", "BiasAdd"),
    *("Exp", "Log", "Tanh", "Sigmoid", "Sqrt", "Rsqrt", "Square", "SquaredDifference"),
}
PER_ELEMENT = {"Sum", "Mean", "Max", "Min"}
NOTHING = {
    *("Placeholder", "Const", "Identity", "NoOp", "Reshape", "ExpandDims", "Squeeze", "Shape"),
    *("StridedSlice", "Split", "SplitV", "ConcatV2", "Pack", "Transpose", "Roll", "Cast"),
}


def count_work(body: Body) -> tuple[float, float]:
    """The operations of an iteration, and the bytes that it reads and writes."""
    element = tf.nest.map_structure(lambda x: x[0], body.xs)
    # TensorFlow would warn of a body's name for an element that it does not use.
    step = tf.function(lambda carry, x: body.f(carry, x), autograph=False)
    graph = step.get_concrete_function(body.init, element).graph
    flops = sum(map(_count_operations, graph.get_operations()))
    # A result that is written as a state and as an output is another array each time.
    moved = sum(_size(t) * t.dtype.size for t in [*graph.inputs, *graph.outputs])
    return flops, moved


def _count_operations(operation: tf.Operation) -> int:
    if operation.type in NOTHING:
        return 0
    if operation.type in PER_RESULT:
        return _size(operation.outputs[0])
    if operation.type in PER_ELEMENT:
        return _size(operation.inputs[0])
    if operation.type == "AddN":
        return (len(operation.inputs) - 1) * _size(operation.outputs[0])
    if operation.type in ("MatMul", "BatchMatMulV2"):
        transposes = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
        inner = operation.inputs[0].shape[-2 if transposes else -1]
        return 2 * inner * _size(operation.outputs[0])
    raise NotImplementedError(f"nobody has said what {operation.type} computes")


def _size(tensor: tf.Tensor) -> int:
    return math.prod(tensor.shape)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], bool(int(sys.argv[2])))))
