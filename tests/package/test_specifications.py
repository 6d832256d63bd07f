"""One specification for an op: shape functions, kernels and XLA refuse a call in the same words.

Each wrong call is made eagerly, where the kernel alone sees it; in a graph whose shapes are known,
where the shape function sees it first; in one whose shapes are not known; and compiled by XLA.
"""

import numpy as np
import pytest
import tensorflow as tf

from tf_ti._library import XLA_PROBLEM, ops

TABLE, HALVES = np.ones([5, 3], np.float32), np.ones([5, 3], np.float16)
IDS, ROWS = np.array([0, 2, 2, 4]), np.ones([2, 3], np.float32)
WEIGHTS = np.ones(4, np.float32)


def error_of(call, *arguments, **options):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)) as caught:
        tf.function(call, autograph=False, **options)(*arguments)
    return str(caught.value)


def errors(call, inputs):
    """The errors of call(*inputs) by where it is made."""
    inputs = [tf.constant(i) for i in inputs]
    unknown = [tf.TensorSpec(None, i.dtype) for i in inputs]
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call(*inputs)
    found = {
        "eagerly": str(caught.value),
        "in a graph": error_of(lambda: call(*inputs)),
        "in a graph of unknown shapes": error_of(call, *inputs, input_signature=unknown),
    }
    if not XLA_PROBLEM:
        found["by XLA"] = error_of(call, *inputs, input_signature=unknown, jit_compile=True)
    return found


def check_refusal(call, inputs, words):
    for where, error in errors(call, inputs).items():
        assert words in error, f"{where}: {error}"


def offsets(table=TABLE, ids=IDS, starts=(0, 2), default=None, weights=None, **attributes):
    optional = [np.array(i) for i in (default, weights) if i is not None]

    def call(table, ids, starts, *optional):
        optional = list(optional)
        return ops.tf_ti_embedding_bag_offsets(
            table,
            ids,
            starts,
            [optional.pop(0)] if default is not None else [],
            optional,
            **attributes,
        )

    return call, [table, ids, np.array(starts, ids.dtype), *optional]


def packed(ids):
    return lambda t, i: ops.tf_ti_embedding_bag_packed(t, i, [], []), [TABLE, ids]


def segments(owners, count):
    def call(table, ids, owners, count):
        return ops.tf_ti_embedding_segments_sum(table, ids, owners, count, [], [])

    return call, [TABLE, IDS, np.array(owners), np.array(count)]


def several(tables, ids, kinds, bounds=(), **attributes):
    n, m = len(tables), len(ids)

    def call(*inputs):
        return ops.tf_ti_embedding_bags(
            list(inputs[:n]), list(inputs[n : n + m]), list(inputs[n + m :]), [], [], [],
            bags=kinds, **attributes,
        )  # fmt: skip

    return call, [*tables, *ids, *map(np.array, bounds)]


def gradient(
    num_emb=5, grad=ROWS, ids=IDS, bounds=(0, 2), argmax=None, bags="offsets", **attributes
):
    lists = [np.array(bounds)] if bounds is not None else []
    optional = [] if argmax is None else [argmax]

    def call(num_emb, grad, ids, *rest):
        bounds, argmax = list(rest[: len(lists)]), list(rest[len(lists) :])
        return ops.tf_ti_embedding_bag_grad(
            num_emb, grad, ids, bounds, [], [], argmax, bags=bags, **attributes
        )

    return call, [np.array(num_emb), grad, ids, *lists, *optional]


def weights_gradient(grad):
    def call(table, grad, ids, starts, weights):
        return ops.tf_ti_embedding_bag_weights_grad(
            table, grad, ids, [starts], [], [weights], bags="offsets"
        )

    return call, [TABLE, grad, IDS, np.array([0, 2]), WEIGHTS]


def partition(num_emb=5, ids=IDS, bounds=((0, 2),), **attributes):
    attributes = {"bags": "offsets", "num_shards": 2, "strategy": "mod"} | attributes

    def call(num_emb, ids, *bounds):
        return ops.tf_ti_embedding_bag_partition(
            num_emb, ids, list(bounds), [], [], Tlocal=tf.int64, **attributes
        )

    return call, [np.array(num_emb), ids, *map(np.array, bounds)]


def slots(num_emb=5, rows=IDS):
    return ops.tf_ti_embedding_bag_slots, [np.array(num_emb), rows, IDS]


BAGS = {
    "a scalar table": (offsets(np.float32(1)), "emb_table must have rank 1 or more, got a scalar"),
    "a matrix of ids": (offsets(ids=IDS[None]), "indices must have rank 1, got shape [1,4]"),
    "a scalar of offsets": (offsets(starts=0), "offsets must have rank 1, got shape []"),
    "no last offset": (
        offsets(starts=[], include_last_offset=True), "offsets has no last offset: it is empty"),
    "two defaults": (offsets(default=[1, 2]), "default_index must have rank 0, got shape [2]"),
    "too few weights": (
        offsets(weights=WEIGHTS[:2]),
        "per_sample_weights must have the shape of indices, [4], got [2]"),
    "weights of halves": (
        offsets(weights=WEIGHTS.astype(np.float64)),
        "per_sample_weights must be float like emb_table, got double"),
    "weights of a half table": (
        offsets(HALVES, weights=WEIGHTS.astype(np.float64)),
        "per_sample_weights must be half like emb_table, or float, got double"),
    "a weighted maximum": (
        offsets(weights=WEIGHTS, reduction="max"), "reduction max takes no per_sample_weights"),
    "a complex maximum": (
        offsets(TABLE.astype(np.complex64), reduction="max"), "complex numbers have no maximum"),
    "a root of integers": (
        offsets(TABLE.astype(np.int32), reduction="sqrtn"),
        "reduction sqrtn needs a table of floats, got int32"),
    "positions of a sum": (offsets(num_argmax=1), "reduction sum has no argmax"),
    "many positions": (
        offsets(reduction="max", num_argmax=2), "num_argmax must be 0 or 1, got 2"),
    "two paddings": (offsets(padding_idx=[1, 2]), "padding_idx must have one value, got 2"),
    "a vector of packed ids": (packed(IDS), "indices must have rank 2, got shape [4]"),
    "too few segment ids": (
        segments([0, 1], 2), "segment_ids must have the shape of indices, [4], got [2]"),
    "a vector of counts": (
        segments([0, 0, 1, 1], [2]), "num_segments must have rank 0, got shape [1]"),
    "the second table's ids": (
        several([TABLE, TABLE], [IDS[None], IDS], ["packed"] * 2),
        "emb_tables[1]: indices must have rank 2, got shape [4]"),
    "the second table's offsets": (
        several([TABLE, TABLE], [IDS[None], IDS], ["packed", "offsets"], [[[0]]]),
        "emb_tables[1]: offsets must have rank 1, got shape [1,1]"),
    "bounds of packed bags": (
        several([TABLE, TABLE], [IDS[None]] * 2, ["packed"] * 2, [[0]]),
        "bags of 2 tables, of kinds packed, packed, cannot have 1 bounds and 0 num_segments"),
    "some positions": (
        several([TABLE] * 2, [IDS[None]] * 2, ["packed"] * 2, reduction="max", num_argmax=1),
        "num_argmax must be 0 or 2, got 1"),
    "two numbers of rows": (gradient([5, 5]), "num_emb must have rank 0, got shape [2]"),
    "a scalar gradient": (
        gradient(grad=np.float32(1)), "grad must have rank 1 or more, got a scalar"),
    "a gradient of more bags": (
        gradient(grad=TABLE), "grad has 5 rows, but there are 2 bags"),
    "a gradient without bounds": (
        gradient(bounds=None), "bags given as offsets need 1 bounds, got 0"),
    "a gradient of a maximum": (
        gradient(reduction="max"), "reduction max needs argmax, and no other does"),
    "positions of another shape": (
        gradient(reduction="max", argmax=np.zeros([2, 2], np.int64)),
        "argmax must have the shape of grad, [2,3], got [2,2]"),
    "weights' wide gradient": (
        weights_gradient(np.ones([2, 4], np.float32)), "grad must have shape [2,3], got [2,4]"),
    "a partition without bounds": (
        partition(bounds=()), "bags given as offsets need 1 bounds, got 0"),
    "a partition of segments": (
        partition(bags="segments"), "bags given as segments need 1 num_segments, got 0"),
    "positions of some shards": (
        partition(num_positions=1), "num_positions must be 0 or 2, got 1"),
    "a matrix of rows": (slots(rows=IDS[None]), "rows must have rank 1, got shape [1,4]"),
    "slots of no number": (slots([5]), "num_emb must have rank 0, got shape [1]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAGS)
def test_a_wrong_look_up_is_refused_in_the_same_words_everywhere(case):
    (call, inputs), words = BAGS[case]
    check_refusal(call, inputs, words)


NEGATIVE = {
    "segments": (segments([0, 0, 1, 1], -1), "num_segments must not be negative, got -1"),
    "rows": (partition(-1), "num_emb must not be negative, got -1"),
}


@pytest.mark.parametrize("case", NEGATIVE)
def test_a_negative_size_is_refused_in_the_same_words_everywhere(case):
    (call, inputs), words = NEGATIVE[case]

    def constants():  # XLA must know sizes
        return call(*map(tf.constant, inputs))

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        constants()
    assert words in str(caught.value)
    assert words in error_of(constants)
    if not XLA_PROBLEM:
        assert words in error_of(constants, jit_compile=True)


# Updates

ADAM = {
    "learning_rate": np.float32(1), "step": np.int64(1), "beta_1": 0.9, "beta_2": 0.9,
    "epsilon": 0.1, "weight_decay": 0.0,
}  # fmt: skip


def adam(slot_shapes=([5, 3], [5, 3]), ids=IDS, values=TABLE[:4], **numbers):
    m, v = (tf.Variable(tf.zeros(shape)) for shape in slot_shapes)
    variable = tf.Variable(TABLE)
    numbers = ADAM | numbers

    def call(ids, values, *numbers):
        ops.tf_ti_adam_update(variable.handle, m.handle, v.handle, ids, values, *numbers)

    return call, [ids, values, *map(np.array, numbers.values())]


def scatter_sub(table=TABLE, decay=(), **attributes):
    variable = tf.Variable(table)

    def call(ids, values, scale, *decay):
        ops.tf_ti_scatter_sub(variable.handle, ids, values, scale, list(decay), **attributes)

    values = np.ones([4, 3], table.dtype)
    return call, [IDS, values, np.ones([], table.dtype), *decay]


UPDATES = {
    "a slot of other columns": (
        lambda: adam([[5, 2], [5, 3]]), "m must have the variable's shape [5,3], got [5,2]"),
    "a slot of other rows": (
        lambda: adam([[5, 3], [4, 1]]),
        "v must have the variable's shape [5,3], or [5,1], got [4,1]"),
    "a matrix of ids": (
        lambda: adam(ids=IDS[None]), "indices must have rank 1, got shape [1,4]"),
    "too few values": (
        lambda: adam(values=ROWS), "values must have shape [4,3], got [2,3]"),
    "a vector of steps": (
        lambda: adam(step=np.array([1])),
        "step must be a scalar of type int64, got one of type int64 and shape [1]"),
    "a decay of integers": (
        lambda: scatter_sub(TABLE.astype(np.int32), [np.int32(1)]),
        "weight_decay needs a variable of floats"),
    "two decays": (
        lambda: scatter_sub(decay=[np.float32(1)] * 2), "num_decay must be 0 or 1, got 2"),
}  # fmt: skip


@pytest.mark.parametrize("case", UPDATES)
def test_a_wrong_update_is_refused_in_the_same_words_everywhere(case):
    make, words = UPDATES[case]
    call, inputs = make()
    check_refusal(call, inputs, words)


# Recurrent sequences

X, H = np.ones([2, 4, 3], np.float32), np.ones([2, 5], np.float32)


def sequence(x=X, h=H, w=(3, 15), r=(5, 15), b=15, lengths=(), mask=(), **attributes):
    attributes = {
        "S": tf.float32, "kind": "gru", "num_saved": 0, "gate_order": [0, 1, 2],
        "transpose_weights": False, "activations": ["sigmoid", "tanh"], "coefficients": ["0"] * 5,
    } | attributes  # fmt: skip

    def call(x, h, w, r, b, *rest):
        lengths_, mask_ = list(rest[: len(lengths)]), list(rest[len(lengths) :])
        return ops.tf_ti_recurrent_sequence(x, h, [], [w], r, [b], lengths_, mask_, **attributes)

    ones = [np.ones(shape, np.float32) for shape in (w, r, b)]
    return call, [x, h, *ones, *lengths, *mask]


SEQUENCES = {
    "a matrix": (sequence(X[0]), "x must have rank 3, got shape [4,3]"),
    "a vector of states": (sequence(h=H[0]), "h must have rank 2, got shape [5]"),
    "states of another batch": (sequence(h=H[:1]), "h must have shape [2,5], got [1,5]"),
    "no units": (
        sequence(h=H[:, :0]), "h must have between 1 and 2147483647 units, got shape [2,0]"),
    "w of other rows": (sequence(w=(4, 15)), "w must have shape [3,15], got [4,15]"),
    "r of other columns": (sequence(r=(5, 14)), "r must have shape [5,15], got [5,14]"),
    "b of other gates": (sequence(b=20), "b must have shape [15], got [20]"),
    "lengths of another batch": (
        sequence(lengths=[np.ones(3, np.int64)]), "lengths must have shape [2], got [3]"),
    "a mask of other steps": (
        sequence(mask=[np.ones([2, 3], bool)]), "mask must have shape [2,4], got [2,3]"),
    "lengths and a mask": (
        sequence(lengths=[np.ones(2, np.int64)], mask=[np.ones([2, 4], bool)]),
        "lengths and a mask exclude one another"),
    "a gate twice": (
        sequence(gate_order=[0, 1, 1]), "gate_order must be a permutation of 3 gates"),
    "an unknown function": (
        sequence(activations=["sigmoid", "sine"]), "activations: unknown function sine"),
    "one activation": (sequence(activations=["tanh"]), "activations must be 2, got 1"),
    "a coefficient that is none": (
        sequence(coefficients=["one"] * 5), "coefficients must be numbers, got one"),
    "limits of tanh": (sequence(limits=[0, 1]), "limits: tanh has no 1"),
    "other saved tensors": (
        sequence(num_saved=2), "num_saved must be 1 for this cell, got 2"),
    "an LSTM without c": (
        sequence(kind="lstm", gate_order=[0, 1, 2, 3], activations=["tanh"] * 3,
                 coefficients=["0"] * 7),
        "c is for an LSTM, which needs it"),
}  # fmt: skip


@pytest.mark.parametrize("case", SEQUENCES)
def test_a_wrong_sequence_is_refused_in_the_same_words_everywhere(case):
    (call, inputs), words = SEQUENCES[case]
    check_refusal(call, inputs, words)


# Loops

XS = np.ones([6, 3], np.float32)
DEFAULTS = {
    "axis": 0, "start": 0, "end": -1, "stride": 1, "part_size": 1, "mode": "slice",
    "label": "input x",
}  # fmt: skip


def loop(*inputs, limit=None, length=None, outputs=({},), condition=False, edges=(), **attributes):
    """A loop over tensors, each with its input's options, that returns its first parameter."""
    tensors, options = zip(*inputs)
    options = [DEFAULTS | o for o in options]
    outputs = [
        {"mode": "concat", "source": 0, "axis": 0, "stride": 1, "part_size": 0, "length": -1,
         "label": "output y"} | o for o in outputs
    ]  # fmt: skip
    specs = [tf.TensorSpec(None, t.dtype) for t in tensors]
    body = tf.function(lambda *p: p[0], input_signature=specs).get_concrete_function()
    end = tf.function(lambda p: tf.constant(True), input_signature=specs[:1])
    counts = [np.array(i) for i in (limit, length) if i is not None]
    extra = {"condition": [end.get_concrete_function()], "condition_inputs": [0]}

    def call(*given):
        tensors_, counts_ = given[: len(tensors)], list(given[len(tensors) :])
        limits = [counts_.pop(0)] if limit is not None else []
        fields = {
            **{f"input_{name}": [o[name] for o in options] for name in DEFAULTS},
            **{f"output_{name}": [o[name] for o in outputs] for name in outputs[0]},
            "Tout": [tf.int64 if o["mode"] == "count" else tensors[0].dtype for o in outputs],
            "parameter_shapes": [None] * len(tensors),
            "back_edge_from": [a for a, _ in edges],
            "back_edge_to": [b for _, b in edges],
            "result_types": [tensors[0].dtype],
            "result_shapes": [tf.TensorShape(None)],
        }
        return ops.tf_ti_stateless_tensor_iterator(
            list(tensors_), limits, counts_, body=body,
            **fields | (extra if condition else {}) | attributes,
        )  # fmt: skip

    return call, [*tensors, *counts]


STACK = {"mode": "stack", "length": 0}
LOOPS = {
    "an axis too far": (
        loop((XS, {"axis": 2})), "input x: axis 2 is out of range for a tensor of rank 2"),
    "an axis too far back": (
        loop((XS, {"axis": -3})), "input x: axis -3 is out of range for a tensor of rank 2"),
    "pieces that do not tile": (loop((XS, {"part_size": 4, "stride": 4})), "input x: "),
    "two counts": (
        loop((XS, {}), (XS[:4], {"label": "input z"})),
        "input x gives 6 iterations, but input z gives 4"),
    "a limit beside slices": (
        loop((XS, {}), limit=5, limit_label="trips"),
        "trips gives 5 iterations, but input x gives 6"),
    "a vector of limits": (
        loop((XS, {"mode": "value"}), limit=[5]),
        "num_iterations must be a scalar, got shape [1]"),
    "a negative limit": (
        loop((XS, {"mode": "value"}), limit=-5, outputs=[{"mode": "sum"}]),
        "num_iterations must not be negative, got -5"),
    "a vector of lengths": (
        loop((XS, {}), length=[7], outputs=[STACK]),
        "output y: the length must be a scalar, got shape [1]"),
    "a negative length": (
        loop((XS, {}), length=-1, outputs=[STACK]),
        "output y: the length must not be negative, got -1"),
    "an output's axis": (
        loop((XS, {}), outputs=[{"axis": 5}]),
        "output y: axis 5 is out of range for an output of rank 2"),
    "a list too short": (
        loop((XS, {}), input_axis=[]), "input_axis needs 1 elements, got 0"),
    "no such result": (
        loop((XS, {}), outputs=[{"source": 1}]), "result 1 does not exist: the body has 1"),
    "a last parameter": (
        loop((XS, {}), outputs=[{"mode": "last", "source": -1}]),
        "output y: only a sequence can hold a parameter"),
    "no stride": (
        loop((XS, {}), outputs=[{"stride": 0}]), "output y: stride must not be 0"),
    "an edge to a slice": (
        loop((XS, {}), edges=[(0, 0)]), "input x: a back edge leads to a sliced parameter"),
    "two edges": (
        loop((XS, {}), (XS, {"mode": "value", "label": "state"}), edges=[(0, 1), (0, 1)]),
        "state: two back edges lead to parameter 1"),
    "a length of a sum": (
        loop((XS, {}), length=7, outputs=[{"mode": "sum", "length": 0}]),
        "output y: only a stack has a length"),
    "a conditional concatenation": (
        loop((XS, {}), condition=True),
        "output y: a condition and a concatenation do not go together"),
    "a condition backwards": (
        loop((XS, {}), condition=True, outputs=[{"mode": "stack"}], reverse=True),
        "a loop with a condition cannot run backwards"),
    "elements of two": (
        loop((XS, {"mode": "index", "part_size": 2})),
        "input x: an element has part_size 1, got 2"),
}  # fmt: skip
# Beyond what a shape function looks at: a loop that is never run may have these faults.
RUNS = {
    "no count": (
        loop((XS, {"mode": "value"})),
        "no input is sliced and num_iterations is not given: the number of iterations is unknown"),
    "an iterator too short": (
        loop((XS, {"mode": "iterator"}), limit=7),
        "input x: there are 6 elements along axis 0, but num_iterations gives 7 iterations"),
    "a length too short": (
        loop((XS, {}), length=4, outputs=[STACK]),
        "output y: the length is 4, but the loop has 6 iterations"),
    "a piece of another extent": (
        loop((XS, {}), outputs=[{"part_size": 2}]),
        "output y: part_size is 2, but the body's result has shape "),
    "no last value": (
        loop((XS, {"mode": "value"}), limit=0, outputs=[{"mode": "last"}]),
        "output y: the loop has no iterations, so there is no last value, and no back edge gives "
        "result 0 an initial one"),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOPS | RUNS)
def test_a_wrong_loop_is_refused_in_the_same_words_everywhere(case):
    (call, inputs), words = (LOOPS | RUNS)[case]
    check_refusal(call, inputs, words)
