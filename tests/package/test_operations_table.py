"""The table of operations: TensorFlow's own definitions agree with it, and it knows all users.

A user of a row is a function that is named after it: a lowering, a rule for all iterations at once,
a normal form. Where there is none, a reason stands here.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tf_ti import _operations
from tf_ti._library import LOWERED
from tf_ti.loops.passes import batching, conditionals, failing, steady
from tf_ti.loops.tracing import heavy
from tf_ti.recurrent import normal_form

ROWS = _operations.OPERATIONS
# What batching.kind calls operations with gradients of their own.
CUSTOM = {"CustomGradient", "Silu"}
# Loops that are one native sequence.
OURS = {"TfTi>RecurrentSequence"}
USERS = {
    "lowering": LOWERED,
    "batching": batching.RULES.keys() - CUSTOM,
    "by extents": failing.BY_EXTENTS,
    "in branches": conditionals._SAFE,
    "of known extents": steady._KNOWN - OURS,
    "normal forms": normal_form._RULES,
}
COMPLEX = "programs have no complex numbers"
BITS = "programs have no bits of integers"
SLOW = "no vector instructions: a kernel of TensorFlow's takes as long"
KERNEL = "TensorFlow's kernels do it at their speed, many numbers at once"
RANDOM = "the numbers are other ones in another order"
FREE = "a schedule takes it away"
NOT_LOWERED = {
    **dict.fromkeys(("Color", "Decomposition", "Filter", "Pooling"), KERNEL),
    **dict.fromkeys(("Resizing", "Solver", "Sorting", "Transform"), KERNEL),
    **dict.fromkeys(("Angle", "Complex", "ComplexAbs", "Conj", "Imag", "Real"), COMPLEX),
    **dict.fromkeys(("BitwiseAnd", "BitwiseOr", "BitwiseXor", "Invert"), BITS),
    **dict.fromkeys(("Betainc", "Digamma", "Erfinv", "Lgamma", "Ndtri"), SLOW),
    **dict.fromkeys(("CheckNumerics", "EnsureShape"), "it fails for some values"),
    **dict.fromkeys(("Const", "Identity", "PreventGradient", "Snapshot", "StopGradient"), FREE),
    "Diagonal": "programs have no diagonals",
    "GatherNd": "programs have no lists of positions",
    "MirrorPad": "programs have no mirrors",
    "Random": RANDOM,
}
OF_GRADIENTS = "gradients are batched before they are taken"
NOT_BATCHED = {
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV3"), "tf.linalg.matmul makes BatchMatMulV2"),
    **dict.fromkeys(("BiasAddGrad", "L2Loss", "StridedSliceGrad"), OF_GRADIENTS),
    **dict.fromkeys(("BroadcastGradientArgs", "ConcatOffset", "InvertPermutation"), OF_GRADIENTS),
    **dict.fromkeys(("CheckNumerics", "EnsureShape"), "the error names one iteration"),
    **dict.fromkeys(("BroadcastArgs", "Rank", "ShapeN", "Size"), "constants stand for it"),
    "BiasAddV1": "tf.nn.bias_add makes BiasAdd",
    "PreventGradient": "its error is one of tracing",
    "Random": RANDOM,
    "Roll": "its gradient would roll in all iterations alike",
    "Select": "tf.where makes SelectV2",
    "SoftmaxCrossEntropyWithLogits": "its second output is a gradient",
}


@pytest.mark.parametrize("user", USERS)
def test_users_know_operations_of_the_table(user):
    assert not set(USERS[user]) - ROWS.keys()


def test_costs_are_of_operations_of_the_table_or_of_gradients():
    others = heavy._COSTS.keys() - ROWS.keys()
    assert others == {"Conv2DBackpropInput", "Conv3DBackpropInputV2", "MatrixExponential"}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_users_or_reasons(name):
    row = ROWS[name]
    reasons = [NOT_LOWERED.get(name) or NOT_LOWERED.get(row.kind)]
    assert row.is_lowered != bool(reasons[0])
    is_gradient = name.endswith("Grad")
    reason = NOT_BATCHED.get(name) or NOT_BATCHED.get(row.kind) or (is_gradient and OF_GRADIENTS)
    assert (name in batching.RULES) != bool(reason)
    assert (row.fails == "ByExtents") == (name in failing.BY_EXTENTS)


def test_reasons_are_of_rows():
    kinds = {row.kind for row in ROWS.values()}
    assert not (NOT_LOWERED.keys() | NOT_BATCHED.keys()) - ROWS.keys() - kinds


INTEGERS = {tf.int8, tf.int16, tf.int32, tf.int64, tf.uint16}


@pytest.mark.parametrize("name", ROWS)
def test_the_inputs_are_those_of_tensorflow(name):
    """The row has as many letters, and inputs that hold numbers have types of integers alone."""
    definition = op_def_registry.get(name)
    row = ROWS[name]
    assert len(row.inputs) == len(definition.input_arg)
    attributes = {attribute.name: attribute for attribute in definition.attr}
    for letter, argument in zip(row.inputs, definition.input_arg):
        is_list = bool(argument.number_attr or argument.type_list_attr)
        assert is_list == letter.endswith("*")
        allowed = attributes[argument.type_attr].allowed_values if argument.type_attr else None
        types = {argument.type} if allowed is None else set(allowed.list.type)
        of_integers = {tf.as_dtype(t) for t in types if t} <= INTEGERS and any(types)
        if letter[0] in "akrs":
            assert of_integers
        elif letter[0] == "x" and not name.startswith("Stateless"):
            assert not of_integers or name in ("ScaleAndTranslate", "Roll")


@pytest.mark.parametrize("name", sorted(_operations.names(lambda row: row.fails == "OfIntegers")))
def test_what_fails_of_integers_fails_for_some_of_them_alone(name):
    make = getattr(tf.raw_ops, name)
    right, wrong = ([2], [-3]) if name == "Pow" else ([2], [0])
    np.testing.assert_equal(make(x=[5], y=right).shape, [1])
    # TensorFlow's truncating operations raise an internal error.
    is_truncating = name in ("TruncateDiv", "TruncateMod")
    error = tf.errors.InternalError if is_truncating else tf.errors.InvalidArgumentError
    with pytest.raises(error):
        make(x=[5], y=wrong)
    if name != "TruncateDiv":  # there is no kernel for floats
        np.testing.assert_equal(make(x=[5.0], y=np.float32(wrong)).shape, [1])


FREE_ARGUMENTS = {"ExpandDims": {"axis": 1}, "Reshape": {"shape": [6]}}


@pytest.mark.parametrize("name", sorted(_operations.noted("free") - {"Snapshot"}))
def test_what_is_free_has_the_memory_of_its_input(name):
    given = tf.random.normal([2, 1, 3])
    first = op_def_registry.get(name).input_arg[0].name
    made = getattr(tf.raw_ops, name)(**{first: given}, **FREE_ARGUMENTS.get(name, {}))
    assert np.asarray(memoryview(made)).ctypes.data == np.asarray(memoryview(given)).ctypes.data
