"""Calls in the words of other libraries: each is refused with the word that is right here."""

import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS

import tf_ti
import tf_ti.openvino

_TABLE = tf.ones([5, 2])
_IDS = [0, 1, 2, 3]


def _step(c, x):
    return c + x, c


SCANS = {
    "tf.scan's initializer": (
        lambda: tf_ti.scan(_step, tf.ones([3]), initializer=0.0),
        "scan has no argument 'initializer': the first carry is init",
    ),
    "tf.scan's elems": (lambda: tf_ti.scan(_step, elems=tf.ones([3])), "'elems': .* xs"),
    "lax.scan's unroll": (
        lambda: tf_ti.scan(_step, 0.0, tf.ones([3]), unroll=4),
        "'unroll': iterations run natively",
    ),
    "lax.scan's length": (
        lambda: tf_ti.scan(_step, 0.0, None, 10),
        "scan takes f, init, xs in this order; .* length=",
    ),
    "xs of another type": (
        lambda: tf_ti.scan(lambda c, x: (c + x, c), tf.constant(0.0), tf.range(3)),
        "init is of type float32, xs of type int32, and f fails: ",
    ),
    "a bare carry": (
        lambda: tf_ti.scan(lambda c, x: c + x, 0.0, tf.ones([3])),
        r"\(carry, y\); for the form of tf.scan.* return carry, carry",
    ),
}
BAGS = {
    "flat ids and offsets": (
        lambda: tf_ti.embedding_bag(_TABLE, _IDS, [0, 2]),
        r"offsets of bags in flat ids are for embedding_bag_offsets\(emb_table, ids, offsets\)",
    ),
    "offsets of int32": (
        lambda: tf_ti.embedding_bag(_TABLE, tf.constant(_IDS), tf.constant([0, 1, 2, 3])),
        "offsets of bags in flat ids",
    ),
    "offsets that are floats": (
        lambda: tf_ti.embedding_bag(_TABLE, _IDS, [0.0, 2.0]),
        "offsets of bags in flat ids",
    ),
    "offsets=": (
        lambda: tf_ti.embedding_bag(_TABLE, _IDS, offsets=[0, 2]),
        r"no argument 'offsets': .*embedding_bag_offsets\(emb_table, indices, offsets\)",
    ),
    "mode=": (lambda: tf_ti.embedding_bag(_TABLE, [_IDS], mode="mean"), "'mode': .* combiner"),
    "mode= of offsets": (
        lambda: tf_ti.embedding_bag_offsets(_TABLE, _IDS, [0], mode="mean"),
        "'mode': .* reduction",
    ),
    "sparse=": (
        lambda: tf_ti.embedding_bag_offsets_sum(_TABLE, _IDS, [0], sparse=True),
        "'sparse': gradients are always",
    ),
    "per_sample_weights=": (
        lambda: tf_ti.embedding_bag(_TABLE, [_IDS], per_sample_weights=[[1.0] * 4]),
        "'per_sample_weights': .* weights",
    ),
    "torch's order": (
        lambda: tf_ti.embedding_bag(tf.constant([_IDS]), _TABLE),
        "ids must be of an integer dtype, got float32; the table is the first argument",
    ),
}


def _layer(**words):
    return lambda: tf_ti.keras.EmbeddingBag(5, 2, **words)


LAYERS = {
    "mode=": (_layer(mode="mean"), "'mode': it is called combiner"),
    "padding_idx=": (_layer(padding_idx=0), "'padding_idx': mask_zero=True"),
    "sparse=": (_layer(sparse=True), "'sparse': gradients are always"),
    "offsets=": (_layer(offsets=[0]), "'offsets': .*from_row_starts"),
    "per_sample_weights=": (_layer(per_sample_weights=[1.0]), r"a pair \(ids, weights\)"),
}


@pytest.mark.parametrize("call, words", [*SCANS.values(), *BAGS.values(), *LAYERS.values()])
@pytest.mark.parametrize("in_function", [False, True])
def test_a_word_from_elsewhere_is_refused_with_its_cure(call, words, in_function):
    with pytest.raises((TypeError, ValueError), match=words):
        tf.function(call)() if in_function else call()


def test_an_error_of_the_users_function_stays_what_it_is():
    def f(c, x):
        raise TypeError("it is mine")

    with pytest.raises(TypeError, match="it is mine"):
        tf_ti.scan(f, 0.0, tf.ones([3]))
    with pytest.raises(TypeError, match="^it is mine"):
        tf_ti.scan(tf.autograph.experimental.do_not_convert(f), tf.constant(0.0), tf.range(3))
    with pytest.raises(ValueError, match="structure of init"):
        tf_ti.scan(lambda c, x: ((c, c), x), tf.constant(0.0), tf.range(3))
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        tf_ti.scan(_step, 0.0, tf.ones([3]), nonsense=1)
    with pytest.raises((TypeError, ValueError), match="nonsense"):
        tf_ti.keras.EmbeddingBag(5, 2, nonsense=1)


def test_one_dimensional_ids_are_one_bag():
    assert tf_ti.embedding_bag(_TABLE, _IDS).numpy().tolist() == [4.0, 4.0]


# --- Loop -----------------------------------------------------------------------------------


def test_limits_and_outputs_by_name_and_get_output():
    with tf_ti.Loop("halving") as loop:
        assert repr(loop) == "<Loop 'halving': empty>"
        x = loop.add_recurrence(100.0)
        row = loop.add_iterator(tf.range(5.0))
        loop.add_trip_limit(5, "count")
        loop.add_trip_limit(x.get_output(0) > 3.0, "WHILE")
        x.next = x / 2.0 + 0.0 * row.get_output(0)
        last = loop.add_loop_output(x.get_output(0), "last_value")
        rows = loop.add_loop_output(x, "concatenate")
        assert re.search("1 iterators, 1 recurrences, 2 limits, 2 outputs", repr(loop))
        assert "numpy" not in repr(rows)
    assert float(last.get_output(0)) == 3.125
    assert rows.numpy().tolist() == [100.0, 50.0, 25.0, 12.5, 6.25]
    assert "shape=(), dtype=float32, numpy=" in repr(last) and "3.125" in repr(last)
    assert repr(tf_ti.Loop("new")) == "<Loop 'new', not entered>"


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda loop, x: loop.add_trip_limit(3, "until"), TypeError, "COUNT, WHILE; got 'until'"),
        (lambda loop, x: loop.add_trip_limit(3, 0), TypeError, "must be a TripLimit"),
        (lambda loop, x: loop.add_loop_output(x, "all"), TypeError, "LAST_VALUE, CONCATENATE"),
        (lambda loop, x: x.get_output(1), ValueError, "one output, number 0, got 1"),
        (
            lambda loop, x: loop.add_iterator(tf.ones([3])).value,
            AttributeError,
            "has no value: it is used like a tensor",
        ),
        (
            lambda loop, x: loop.add_loop_output(x, "concatenate").value,
            AttributeError,
            "has no value",
        ),
    ],
)
def test_wrong_words_for_layers(call, error, words):
    with pytest.raises(error, match=words):
        with tf_ti.Loop() as loop:
            x = loop.add_recurrence(1.0)
            call(loop, x)


def test_a_layer_with_the_words_of_keras_still_works():
    layer = tf_ti.keras.EmbeddingBag(5, 2, mask_zero=True, name="bags", dtype="float32")
    assert layer(keras.ops.array([[1, 0]])).shape == (1, 2)


def test_modules_show_their_public_names():
    assert dir(tf_ti) == sorted(tf_ti.__all__)
    assert dir(tf_ti.openvino) == sorted(tf_ti.openvino.__all__)
    assert {"scan", "while_loop", "embedding_bag", "keras"} <= set(dir(tf_ti))


def test_the_matrix_of_an_embedding_bag_is_a_table():
    with pytest.raises(ValueError, match=r"a table: tf.Variable\(module.weight"):
        tf_ti.recurrent.from_torch({"weight": np.ones([3, 2])})


def test_a_wrong_gradient_is_named_without_its_numbers():
    table = tf.Variable(tf.ones([5, 2]))
    words = "slices must be tf.IndexedSlices, got a .* of shape .* dtype.*; a dense gradient"
    with pytest.raises(TypeError, match=words) as raised:
        tf_ti.scatter_sub(table, table, 0.1)
    assert "1." not in str(raised.value)


def test_output_ports_count_by_themselves():
    with pytest.raises(ValueError, match="count from 0, those of inputs and those of outputs"):
        tf_ti.PortMap([tf_ti.InputPort(0, 0, axis=0)], [tf_ti.OutputPort(1, 0, axis=0)])


def test_a_body_without_source_is_traced_as_it_is(tmp_path):
    program = (
        "import tensorflow as tf, tf_ti\n"
        "f = lambda c, x: (c + x, c)\n"
        "print(tf_ti.scan(f, 0.0, tf.ones([3]))[0].numpy())\n"
        "print(tf_ti.while_loop(lambda i: i < 3, lambda i: i + 1, [0])[0].numpy())\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=HANGS
    )
    assert finished.stdout.split() == ["3.0", "3"], finished.stderr
    assert "AutoGraph" not in finished.stderr
