"""The recurrent ops' kernel: every instruction set, any number of threads, a pool that is busy."""

import functools
import os

import numpy as np
import pytest
import recurrent_programs as programs
import tensorflow as tf
from patience import runs_out_of_memory

from tf_ti._library import ops
from tf_ti.recurrent import ops as recurrent_ops, unfused

pytestmark = pytest.mark.needs_native_sequences

COMMON = f"""
import os, sys, threading
import numpy as np
import tensorflow as tf

inter_op, intra_op = (int(argument) for argument in sys.argv[1:3])
tf.config.threading.set_inter_op_parallelism_threads(inter_op)
tf.config.threading.set_intra_op_parallelism_threads(intra_op)
sys.path.append({os.path.dirname(__file__)!r})
from recurrent_programs import *
"""
# One step of long rows; weights that are not packed for so few; many rows; several rows, whose
# units are shared; few units.
SHAPES = [(1, 5, 40, 256), (1, 25, 512, 256), (26, 6, 16, 64), (4, 7, 12, 130), (13, 9, 3, 7)]


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 8])
def test_results_do_not_depend_on_the_number_of_threads(threads, digests, run_program):
    finished = run_program(
        COMMON
        + f"""
for kind in KINDS:
    for shape in {SHAPES}:
        for repeat in range(2):
            print(kind, shape, digest(with_gradients(kind, *tensors(kind, *shape, np.float32))))
""",
        4,
        threads,
    )
    digests.setdefault("all", finished.stdout)
    assert finished.stdout == digests["all"]
    assert len(set(finished.stdout.splitlines())) == 4 * len(SHAPES)


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Results and gradients of the loop in double precision."""
    path = tmp_path_factory.mktemp("expected") / "expected.npz"
    functions, named = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrent_ops, "run", unfused.run)
        for case in programs.CASES:
            kind, inputs, hidden = case
            given = programs.tensors(kind, 3, 4, inputs, hidden, np.float64)
            if kind not in functions:
                functions[kind] = tf.function(
                    functools.partial(programs.with_gradients, kind, lengths=[4, 2, 0]),
                    input_signature=[tf.TensorSpec([None] * t.shape.rank, t.dtype) for t in given],
                )
            for i, value in enumerate(functions[kind](*given)):
                named[f"{case} {i}"] = value
    np.savez(path, **named)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", "avx2"])
def test_lesser_instruction_sets_compute_what_the_loop_does(name, expected, run_program):
    run_program(
        f"""
import os
os.environ["TF_TI_INSTRUCTION_SET"] = "{name}"
{COMMON}
check_cases({str(expected)!r})
""",
        2,
        2,
    )


def test_the_best_instruction_set_computes_what_the_loop_does(expected):
    programs.check_cases(expected)


@pytest.mark.parametrize("shape", [(20, 30, 300, 140), (1, 7, 256, 256), (8, 4, 256, 256)], ids=str)
@pytest.mark.parametrize("kind", ["lstm", "gru", "gru after"])
def test_gradients_by_weights_that_are_many(kind, shape, monkeypatch):
    given = programs.tensors(kind, *shape, np.float64)
    ours = programs.with_gradients(kind, *given)
    monkeypatch.setattr(recurrent_ops, "run", unfused.run)
    for value, expected in zip(ours, programs.with_gradients(kind, *given), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-11)


def test_the_slope_of_a_leaky_relu_at_0_is_that_below(monkeypatch):
    given = tf.zeros([1, 1, 1]), [tf.zeros([1, 1, 1])], *[tf.ones([1, 1, 1])] * 2, tf.zeros([1, 1])
    options = {"activations": ["leaky_relu"], "activations_alpha": [0.25]}

    def slope():
        with tf.GradientTape() as tape:
            tape.watch(given[0])
            y = programs.run("rnn", *given, **options)[0]
        return tape.gradient(y, given[0]).numpy().item()

    assert slope() == 0.25
    monkeypatch.setattr(recurrent_ops, "run", unfused.run)
    assert slope() == 0.25


@runs_out_of_memory
@pytest.mark.slow
def test_a_batch_beyond_the_memory_is_an_error(run_program):
    finished = run_program(
        """
import resource
import tensorflow as tf
import tf_ti

rows, weights = 4_000_000, tf.zeros([1, 3, 1])
x = tf.zeros([rows, 1, 1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
try:
    tf_ti.gru_sequence(x, x, None, weights, weights, None)
except tf.errors.ResourceExhaustedError as error:
    print(error.message)
"""
    )
    assert "out of memory in TfTi>RecurrentSequence" in finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("inter_op", [1, 4])
def test_many_callers_share_a_busy_pool(inter_op, run_program):
    run_program(
        COMMON
        + """
given = tensors("lstm", 1, 50, 8, 256, np.float32)
sequence = tf.function(lambda: run("lstm", given[0], given[1:-3], *given[-3:])[0])
busy = tf.function(lambda m: tf.foldl(lambda c, _: tf.tanh(c @ m), tf.range(30), m))
expected = sequence().numpy()
matrix = tf.eye(300)
errors = []

def call(k):
    for _ in range(10):
        if k % 2:
            busy(matrix)
        elif not np.array_equal(sequence(), expected):
            errors.append(k)

threads = [threading.Thread(target=call, args=(k,)) for k in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not errors, errors
""",
        inter_op,
        2,
    )


@pytest.mark.slow
def test_a_sequence_is_cancelled_in_the_middle(run_program):
    run_program(
        COMMON
        + """
import time
from tensorflow.python.eager import cancellation

def work_of(call):
    # In seconds of the processors' time, whoever else has them in between.
    start = time.process_time()
    call()
    return time.process_time() - start

def cancel(batch, hidden):
    x, *others = arrays("lstm", batch, 1, 1, hidden, np.float32)
    sequence = tf.function(lambda x: run("lstm", x, *others)[1]).get_concrete_function(
        tf.TensorSpec([batch, None, 1]))
    sequence(tf.zeros([batch, 1, 1]))
    steps = 1000
    while (work := work_of(lambda: sequence(tf.zeros([batch, steps, 1])))) < 0.2:
        steps *= 2
    x = tf.zeros([batch, 50 * steps, 1])
    manager = cancellation.CancellationManager()
    call = manager.get_cancelable_function(sequence)
    outcome = []

    def target():
        try:
            call(x)
            outcome.append("it ran to its end")
        except tf.errors.CancelledError as error:
            outcome.append(error)

    thread = threading.Thread(target=target)
    middle = time.process_time() + work
    thread.start()
    while time.process_time() < middle:
        time.sleep(0.001)
    manager.start_cancel()
    thread.join()
    assert isinstance(outcome[0], tf.errors.CancelledError), (batch, hidden, steps, outcome)

cancel(1, 256)
cancel(32, 64)
""",
        2,
        2,
    )


def sequence(**changes):
    """A right call of the op, but for the changes."""
    given = {
        "x": tf.zeros([2, 3, 4]),
        "h": tf.zeros([2, 5]),
        "c": [tf.zeros([2, 5])],
        "w": [tf.zeros([4, 20])],
        "r": tf.zeros([5, 20]),
        "b": [tf.zeros([20])],
        "lengths": [],
        "mask": [],
        "S": tf.float32,
        "kind": "lstm",
        "num_saved": 0,
        "gate_order": [0, 1, 2, 3],
        "transpose_weights": False,
        "activations": ["sigmoid", "tanh", "tanh"],
        "coefficients": ["0"] * 7,
    }
    return ops.tf_ti_recurrent_sequence(**given | changes)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"x": tf.zeros([2, 3])}, "rank 3|x must"),
        ({"x": tf.zeros([3, 3, 4])}, r"h must have shape \[3,5\], got \[2,5\]|must be equal"),
        ({"h": tf.zeros([2])}, "rank 2|h must"),
        ({"h": tf.zeros([2, 0]), "c": [tf.zeros([2, 0])]}, "h must have between 1 and"),
        ({"c": []}, "c is for an LSTM"),
        ({"c": [tf.zeros([2, 4])]}, r"c must have shape \[2,5\], got \[2,4\]"),
        ({"w": [tf.zeros([20, 4])]}, r"w must have shape \[4,20\], got \[20,4\]"),
        ({"w": []}, "x must have 20 columns without w"),
        ({"r": tf.zeros([20, 5])}, r"r must have shape \[5,20\], got \[20,5\]"),
        ({"b": [tf.zeros([5])]}, r"b must have shape \[20\], got \[5\]"),
        ({"lengths": [tf.constant([1], tf.int64)]}, r"lengths must have shape \[2\], got \[1\]"),
        ({"lengths": [tf.constant([1, 4], tf.int64)]}, "3, got 4 at position 1"),
        ({"lengths": [tf.constant([-1, 3], tf.int64)]}, "3, got -1 at position 0"),
        ({"mask": [tf.ones([3, 2], tf.bool)]}, r"mask must have shape \[2,3\], got \[3,2\]"),
        (
            {"mask": [tf.ones([2, 3], tf.bool)], "lengths": [tf.constant([1, 2], tf.int64)]},
            "lengths and a mask exclude one another",
        ),
        ({"gate_order": [0, 1, 2]}, "permutation of 4 gates"),
        ({"gate_order": [0, 1, 2, 2]}, "permutation of 4 gates"),
        ({"gate_order": [0, 1, 2, 4]}, "permutation of 4 gates"),
        ({"activations": ["sigmoid", "tanh"]}, "activations must be 3, got 2"),
        ({"activations": ["sigmoid", "tanh", "swish"]}, "unknown function swish"),
        ({"coefficients": ["0"] * 6}, "coefficients must be 7, got 6"),
        ({"coefficients": ["x"] * 7}, "coefficients must be numbers, got x"),
        ({"num_saved": 3}, "num_saved must be 2 for this cell, got 3"),
        ({"limits": [0, 0]}, "limits must be 3, or none, got 2"),
        ({"limits": [0, 1, 0]}, "limits: tanh has no 1"),
        ({"activations": ["relu"] * 3, "limits": [64, 0, 0]}, "limits: relu has no 64"),
        ({"activations": ["relu"] * 3, "limits": [-1, 0, 0]}, "limits: relu has no -1"),
        (
            {"activations": ["relu"] * 3, "limits": [0, 1, 0], "num_saved": 2},
            "num_saved must be 3 for this cell, got 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, said):
    sequence()
    with pytest.raises(tf.errors.InvalidArgumentError, match=said):
        sequence(**changes)


def test_activations_are_exact_to_some_units_in_the_last_place():
    x = np.concatenate([np.linspace(-90, 90, 20000), np.logspace(-30, 1, 2000)]).astype(np.float32)
    for name, function in (("sigmoid", lambda x: 1 / (1 + np.exp(-x))), ("tanh", np.tanh)):
        # Nothing comes from the states: these are the activations of the inputs.
        found = ops.tf_ti_recurrent_sequence(
            x=x.reshape(1, -1, 8),
            h=tf.zeros([1, 8]),
            c=[],
            w=[],
            r=tf.zeros([8, 8]),
            b=[],
            lengths=[],
            mask=[],
            S=tf.float32,
            kind="rnn",
            num_saved=0,
            gate_order=[0],
            transpose_weights=False,
            activations=[name],
            coefficients=["0", "0", "0"],
        ).y
        exact = function(x.astype(np.float64))
        allowed = np.maximum(4 * np.spacing(np.abs(exact).astype(np.float32)), 2e-38)
        assert np.all(np.abs(found.numpy().reshape(-1) - exact) <= allowed), name
