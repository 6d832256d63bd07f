"""Loops of TensorFlow and tf_ti's in their place, in one program."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.accelerate import reports, taking

OURS = {"TfTi>TensorIterator", "TfTi>StatelessTensorIterator"}
THEIRS = {"While", "StatelessWhile"}


@pytest.fixture(autouse=True)
def new_report():
    """Each test has a report of its own loops."""
    reports.clear()
    yield
    assert [loop.text for loop in tf_ti.accelerate.report() if taking.FAULT in loop.text] == []


def _loops_of(function, *arguments):
    """The types of the loops in a function's graph, and in the functions that it calls."""
    if hasattr(function, "get_concrete_function"):
        function = function.get_concrete_function(*arguments)
    definition = function.graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return {node.op for node in nodes} & (OURS | THEIRS)


@pytest.fixture
def is_taken():
    """Tells whether the loops of a function are tf_ti's; it must have loops, all of one kind."""

    def tell(function, *arguments):
        found = _loops_of(function, *arguments)
        assert found <= OURS or found <= THEIRS and found, found
        return found <= OURS

    return tell


def _values(result):
    return [np.asarray(t) for t in tf.nest.flatten(result, expand_composites=True)]


@pytest.fixture
def both():
    """Calls a function in a tf.function, with TensorFlow's loops and with tf_ti's."""

    def call(function, *arguments, **options):
        found = []
        for is_on in (False, True):
            tf.random.set_seed(7)
            with tf_ti.accelerate(is_on):
                found.append(tf.function(function, **options)(*arguments))
        return found

    return call


@pytest.fixture
def assert_same(both):
    """Asserts that a function gives the same with TensorFlow's loops and with tf_ti's.

    Its value, its static type, and as many gradients as `orders` says.
    """

    def check(function, *arguments, rtol=1e-5, atol=1e-6, orders=1, **options):
        functions = [function]
        for _ in range(orders):
            functions.append(_gradient(functions[-1]))
        for each in functions:
            expected, got = both(each, *arguments, **options)
            tf.nest.assert_same_structure(expected, got, check_types=True, expand_composites=True)
            for value, ours in zip(_values(expected), _values(got)):
                assert ours.dtype == value.dtype
                if value.dtype.kind in "fc":
                    np.testing.assert_allclose(ours, value, rtol, atol)
                else:
                    np.testing.assert_array_equal(ours, value)
        signatures = []
        for is_on in (False, True):
            with tf_ti.accelerate(is_on):
                traced = tf.function(function, **options).get_concrete_function(*arguments)
                signatures.append((traced.structured_outputs, traced.output_shapes))
        assert str(signatures[0]) == str(signatures[1])
        assert any(loop.is_taken for loop in tf_ti.accelerate.report())

    return check


def _gradient(function):
    """The gradients of the sum of a function's squared results, for its floating arguments."""

    def gradient(*arguments):
        watched = [t for t in arguments if t.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            values = tf.nest.flatten(function(*arguments), expand_composites=True)
            total = tf.add_n([tf.reduce_sum(v * v) for v in values if v.dtype.is_floating])
        return tape.gradient(total, watched)

    return gradient
