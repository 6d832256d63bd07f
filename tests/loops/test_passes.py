"""Accounts of the passes: each thing that they did, and the reason for each that they did not."""

import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import LoopOutput, TripLimit
from tf_ti.loops import passes

T, B, N, H = 5, 2, 3, 4


def normal(*shape, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=shape), tf.float32)


XS, W, R, INIT = normal(T, B, N), normal(N, H, seed=1), normal(H, H, seed=2), tf.zeros([B, H])


@pytest.fixture
def notes_of(monkeypatch):
    """Traces a function, and gives the notes of all its loops."""
    found = []
    run = passes.run

    def noting(*arguments, **options):
        outcome = run(*arguments, **options)
        found.extend(outcome.notes)
        return outcome

    monkeypatch.setattr(passes, "run", noting)

    def notes_of(function, *specs):
        found.clear()
        tf.function(function).get_concrete_function(*specs)
        return list(found)

    return notes_of


def scan(f, init=INIT, xs=XS, **options):
    return lambda: tf_ti.scan(f, init, xs, **options)


def refusals(notes, name):
    return [note for note in notes if note.name == name and not note.is_done]


def types_in(note):
    return [mention.type for mention in note.operations]


def cell(h, x):
    return tf.tanh(x @ W + h @ R), None


# --- recognition ---------------------------------------------------------------------------------


NO_CELLS = {
    "an operation that no cell has": (
        lambda h, x: (tf.sin(h @ R) + x @ W, None),
        "cells have no Sin of states",
        "Sin",
    ),
    "a state that is cut by rows": (
        lambda h, x: (tf.tanh(tf.concat([h[1:], h[:1]], 0) @ R + x @ W), None),
        "it concatenates other axes than the last",
        "ConcatV2",
    ),
    "a product of states": (
        lambda h, x: (tf.tanh(h @ tf.transpose(h) @ h + x @ W), None),
        "cells have no Transpose of states|no matrix that all iterations share",
        "",
    ),
    "terms that cancel": (
        lambda h, x: (tf.tanh((h * 3.0 - h * 3.0) @ R + x @ W), None),
        "terms cancel",
        "Sub",
    ),
    "a division by 0": (lambda h, x: (tf.tanh(h / 0.0 + x @ W), None), "divides by 0", "RealDiv"),
    "a maximum with 1": (
        lambda h, x: (tf.maximum(h @ R + x @ W, 1.0), None),
        "a maximum with another number than 0",
        "Maximum",
    ),
    "no activation function": (lambda h, x: (h @ R + x @ W, None), "a state is no product", ""),
    "an activation that the kernel lacks": (
        lambda h, x: (tf.minimum(h @ R + x @ W, 2.0), None),
        "the kernel has no activation function minimum",
        "",
    ),
    "a stateful operation": (
        lambda h, x: (tf.tanh(h @ R + x @ W + tf.random.normal([B, H])), None),
        "it draws random numbers, or has other effects",
        "",
    ),
    "an output of the state before": (
        lambda h, x: (tf.tanh(h @ R + x @ W), tf.sin(h)),
        "ys follows neither from the hidden states nor from slices",
        "Sin",
    ),
}


@pytest.mark.parametrize("case", NO_CELLS)
def test_recognition_says_why_a_body_is_no_cell(case, notes_of):
    f, reason, op = NO_CELLS[case]
    (refusal,) = refusals(notes_of(scan(f)), "recognition")
    assert re.search(reason, refusal.text), refusal
    assert not op or types_in(refusal) == [op], refusal


@pytest.mark.parametrize(
    "init, reason",
    [
        (
            (INIT, INIT, INIT),
            "it has 3 states, and cells have one or two: init[0], init[1], init[2]",
        ),
        ((INIT, tf.zeros([B, 1 + H])), "its states are not of one type and width"),
        (tf.zeros([H]), "a state is no matrix of floats, [rows, width]"),
    ],
)
def test_recognition_says_what_of_the_states_is_no_cells(init, reason, notes_of):
    (refusal,) = refusals(notes_of(scan(lambda h, x: (h, x), init)), "recognition")
    assert refusal.text == reason


@pytest.mark.needs_programs
def test_recognition_names_checkpoints_conditions_and_counts(notes_of):
    (refusal,) = refusals(notes_of(scan(cell, checkpoint_every=2)), "recognition")
    assert "checkpoint_every" in refusal.text

    def while_loop():
        with tf_ti.Loop() as loop:
            h = loop.add_recurrence(tf.zeros([]))
            loop.add_trip_limit(h < 3.0, TripLimit.WHILE)
            h.next = h + 1.0
            loop.add_loop_output(h, LoopOutput.LAST_VALUE)

    notes = [note for note in notes_of(while_loop) if not note.is_done]
    assert {note.name for note in notes} == {"recognition", "products", "fission"}
    assert {note.text for note in notes} == {"its condition is of the values of an iteration"}

    def two(xs, zs):
        return tf_ti.scan(lambda h, x: (tf.tanh(x[0] @ W + x[1] + h @ R), None), INIT, (xs, zs))

    unknown = [tf.TensorSpec([None, B, N]), tf.TensorSpec([None, B, H])]
    (refusal,) = refusals(notes_of(two, *unknown), "recognition")
    assert refusal.text == "without the loop nobody would compare its numbers of iterations"


def test_a_cell_has_a_note_of_what_it_became(notes_of):
    (note,) = (note for note in notes_of(scan(cell)) if note.name != "programs")
    assert note.text == "runs as one sequence of RNN cells" and note.is_done
    assert note.count == 4


def test_without_fuse_there_is_nothing_to_say(notes_of):
    assert notes_of(scan(cell, fuse=False)) == []


# --- programs ------------------------------------------------------------------------------------


@pytest.mark.needs_programs
@pytest.mark.parametrize(
    ("f", "reason", "operation"),
    [
        (lambda c, x: tf.math.lgamma(x), "no program has it", "Lgamma"),
        (lambda c, x: tf.cast(tf.cast(x, tf.int8), tf.float32), "programs have no int8", "Cast"),
        (lambda c, x: tf.fill([3000, 3000], x[0, 0])[:B, :N], "too large for a program", "Fill"),
    ],
)
def test_programs_say_what_they_do_not_run(f, reason, operation, notes_of):
    notes = notes_of(scan(lambda c, x: (c + tf.sin(f(c, x + c)), None), XS[0]))
    (done,) = (note for note in notes if note.name == "programs" and note.is_done)
    assert done.text.startswith("programs may run ")
    found = refusals(notes, "programs")
    assert found and all(reason in note.text for note in found)
    assert [operation] in map(types_in, found)


@pytest.mark.needs_programs
def test_programs_say_that_they_run_all(notes_of, monkeypatch):
    body = scan(lambda c, x: (tf.sin(c) + x, None), XS[0])
    (note,) = (note for note in notes_of(body) if note.name == "programs")
    assert note.text == "programs may run 2 of 2 operations" and note.is_done
    assert note.count == 2
    monkeypatch.setenv("TF_TI_PROGRAM", "0")
    (note,) = (note for note in notes_of(body) if note.name == "programs")
    assert note.text == "TF_TI_PROGRAM is 0" and not note.is_done


# --- fission -------------------------------------------------------------------------------------

IDS = tf.constant(np.random.default_rng(3).integers(1, 3, [T, B]))
STAYING = {
    "no rule": (
        XS,
        lambda x: tf.math.special.bessel_j0(x),
        "no rule for BesselJ0",
        None,
    ),
    "integers that fail": (IDS, lambda i: i // (i + 1), "of integers it fails", "FloorDiv"),
    "random numbers": (
        XS,
        lambda x: x * tf.random.uniform([]),
        "it depends on more than the inputs|no rule for RandomUniform",
        "RandomUniform",
    ),
    "extents that are computed": (
        IDS,
        lambda i: tf.ensure_shape(tf.tile(i[:1], i[:1] * 0 + 2), [2]),
        "its input 1 is not the same in all iterations",
        "Tile",
    ),
    "two that differ": (
        IDS,
        lambda i: tf.gather(tf.stack([i, i + 1, i + 2]), i),
        "both its tensor and its indices",
        "GatherV2",
    ),
    "a custom gradient": (XS, lambda x: tripled(x), "a custom gradient holds it", "Mul"),
    "strings": (
        tf.constant([["a"] * B] * T),
        lambda s: tf.strings.length(s),
        "has values of type string",
        "Placeholder",
    ),
}


@tf.custom_gradient
def tripled(x):
    return 3.0 * x, lambda grad: 3.0 * grad


@pytest.mark.parametrize("case", STAYING)
def test_fission_says_why_an_operation_stays(case, notes_of):
    xs, of_slice, reason, op = STAYING[case]

    def f(h, x):
        made = tf.cast(of_slice(x), tf.float32)
        return h + tf.reduce_sum(made) + tf.reduce_sum(tf.math.lgamma(h)), made

    notes = refusals(notes_of(scan(f, xs=xs)), "fission")
    found = [note for note in notes if re.search(reason, note.text)]
    assert found, notes
    if op is not None:
        assert [op] in map(types_in, found)


def test_fission_says_that_moving_would_not_pay(notes_of):
    def f(h, x):
        other = tf.tile(tf.math.lgamma(h), [1, 3])[:, : 3 * N]
        return h + tf.reduce_sum(tf.tile(x, [1, 3]) * other), None

    (note,) = refusals(notes_of(scan(f)), "fission")
    assert note.text == "its values are larger than those it reads"
    assert types_in(note) == ["Tile"]


def test_fission_says_that_slices_are_not_known_to_agree(notes_of):
    def two(xs, zs):
        return tf_ti.scan(lambda h, x: (h + x[0] * x[1], None), tf.zeros([B, N]), (xs, zs))

    unknown = [tf.TensorSpec([None, B, N]), tf.TensorSpec([None, B, N])]
    texts = [note.text for note in refusals(notes_of(two, *unknown), "fission")]
    assert "the numbers of its inputs' slices are not known to agree" in texts


def test_fission_has_notes_of_what_moved(notes_of):
    notes = notes_of(scan(lambda h, x: (tf.math.lgamma(x @ W + h @ R), tf.exp(x))))
    assert [note.text for note in notes if note.is_done and note.name == "fission"] == [
        "computed before it, for all iterations: Exp, MatMul"
    ]


def test_a_gather_of_two_slices_is_that_of_each_iteration():
    def f(h, i):
        made = tf.gather(tf.stack([i, i + 1, i + 2]), i)
        return h + tf.reduce_sum(made), made

    _, ys = tf.function(scan(f, tf.constant(0, tf.int64), IDS))()
    expected = [np.stack([i, i + 1, i + 2])[i] for i in IDS.numpy()]
    np.testing.assert_array_equal(ys, expected)


# --- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_products_of_concatenations_of_products(layers):
    weights = [0.3 * normal(N + H, H, seed=k) for k in range(layers)]

    def f(h, x):
        value = h
        for w in weights:
            value = tf.concat([x, value], 1) @ w
        return tf.sin(value), value

    results = [tf.function(scan(f, fuse=fuse))() for fuse in (True, False)]
    for fused, loop in zip(*map(tf.nest.flatten, results)):
        np.testing.assert_allclose(fused, loop, rtol=1e-5, atol=1e-5)
