"""Drawings of a `Loop`: its layers, and what the tensors that it uses are called."""

import xml.etree.ElementTree

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import BackEdge, InputPort, Loop, LoopOutput, OutputPort, PortMap, TripLimit

SVG = "{http://www.w3.org/2000/svg}"


def sums(xs, count=3, initial=0.0, weight=1.0):
    """The loop of the running sums of a tensor's elements."""
    with Loop("sums") as loop:
        loop.add_trip_limit(count, TripLimit.COUNT)
        total = loop.add_recurrence(initial)
        total.next = total + loop.add_iterator(xs) * weight
        loop.add_loop_output(total, LoopOutput.LAST_VALUE)
    return loop


def outside(loop):
    """The tensors outside, as a text tells of them."""
    lines = iter(loop.draw().splitlines())
    for line in lines:
        if line == "  outside":
            break
    found = []
    for line in lines:
        if not line.startswith("    "):
            break
        if not line.startswith("      "):
            found.append(line.strip())
    return sorted(found)


def drawn_in_a_function(draw, *args, **kwargs):
    """What is drawn of a loop that a `tf.function` makes."""
    found = []
    tf.function(lambda *args, **kwargs: found.append(draw(*args, **kwargs)))(*args, **kwargs)
    return found[0]


# --- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_function", [False, True])
def test_a_variable_has_its_name_and_is_there_once(in_function):
    weight = tf.Variable(np.ones((3, 4), np.float32), name="layer/weight")

    def draw():
        return outside(sums(weight, initial=tf.zeros([4]), weight=tf.reduce_sum(weight)))

    found = drawn_in_a_function(draw) if in_function else draw()
    assert "layer/weight: float32[3, 4]" in found
    assert sum("weight" in each or "resource" in each for each in found) == 1


def test_a_variable_that_was_read_before_has_its_name_too():
    weight = tf.Variable(2.0, name="rate")
    found = drawn_in_a_function(lambda: outside(sums(tf.ones([3]), weight=weight.read_value())))
    assert "rate: float32[]" in found


def test_a_variable_of_keras_has_its_path():
    keras = pytest.importorskip("keras")
    layer = keras.layers.Dense(4, name="dense")
    layer.build((None, 3))
    found = drawn_in_a_function(lambda: outside(sums(layer.kernel, initial=layer.bias)))
    assert found == ["dense/bias: float32[4]", "dense/kernel: float32[3, 4]"]


def test_an_argument_of_a_function_has_its_name():
    found = []

    @tf.function
    def run(sequence, *, start):
        found.append(outside(sums(sequence, initial=start)))

    run(tf.ones([3]), start=tf.constant(1.0))
    assert found == [["sequence: float32[3]", "start: float32[]"]]


def test_an_argument_of_a_function_around_the_function_has_its_name():
    found = []

    @tf.function
    def run(sequence):
        @tf.function
        def inner():
            found.append(outside(sums(sequence)))

        inner()

    run(tf.ones([3]))
    assert "sequence: float32[3]" in found[0]


def test_an_operation_has_the_name_that_it_was_given():
    found = drawn_in_a_function(
        lambda x: outside(sums(tf.identity(x, name="scaled"))), tf.ones([3])
    )
    assert "scaled: float32[3]" in found


@pytest.mark.parametrize("in_function", [False, True])
def test_a_constant_has_its_value_if_it_is_short_and_else_its_type(in_function):
    few, many = np.float32([0.5, 1.0, 1.5]), np.ones([3, 50], np.float32)

    def draw():
        return outside(sums(many, initial=many[0])), outside(sums(few, initial=0.25))

    long, short = drawn_in_a_function(draw) if in_function else draw()
    assert long == ["float32[3, 50]", "float32[50]"]
    assert short == ["0.25: float32[]", "[0.5, 1.0, 1.5]: float32[3]"]


def test_two_tensors_that_look_alike_have_two_labels():
    found = outside(sums(tf.ones([3, 50]), initial=tf.ones([50]), weight=tf.zeros([50])))
    assert found == ["float32[3, 50]", "float32[50]", "float32[50] (2)"]


def test_a_count_that_is_known_is_told_in_its_layer():
    for count in (3, tf.constant(3), np.int64(3)):
        loop = sums(tf.ones([3]), count)
        assert "    trip limit COUNT: 3" in loop.draw().splitlines()
        assert not any("int" in each for each in outside(loop))


def test_what_has_no_value_has_a_label():
    handle = tf.Variable(1.0).handle
    with Loop() as loop:
        loop.add_trip_limit(2, TripLimit.COUNT)
        value = loop.add_recurrence(1.0)
        value.next = value + tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
        loop.add_loop_output(value, LoopOutput.LAST_VALUE)
    assert "resource[]" in outside(loop)


# --- nested loops --------------------------------------------------------------------------------


def nested():
    with Loop("rows") as rows, Loop("columns") as columns:
        for loop in (rows, columns):
            loop.add_trip_limit(2, TripLimit.COUNT)
        row = rows.add_iterator(tf.ones([2, 2]))
        total, part = rows.add_recurrence(0.0), columns.add_recurrence(0.0)
        part.next = part + columns.add_iterator(row)
        total.next = total + columns.add_loop_output(part, LoopOutput.LAST_VALUE)
        rows.add_loop_output(total, LoopOutput.LAST_VALUE)
    return rows, columns


def test_a_loop_inside_is_in_the_box_of_the_loop_around_it():
    rows, columns = nested()
    root = xml.etree.ElementTree.fromstring(rows._repr_svg_())
    boxes = [
        [float(group.find(f"{SVG}rect").get(name)) for name in ("x", "y", "width", "height")]
        for group in root.iter(f"{SVG}g")
        if group.get("class") == "loop"
    ]
    (x, y, width, height), (left, top, across, down) = boxes
    assert x < left and y < top and left + across < x + width and top + down < y + height
    assert "rows" not in columns.draw().splitlines()[0]


def test_of_a_loop_inside_what_comes_from_the_loop_around_it_is_outside():
    _, columns = nested()
    assert outside(columns) == ["0.0: float32[]", "iterator 0 of rows: float32[2]"]


# --- notebooks -----------------------------------------------------------------------------------


def test_a_notebook_shows_a_loop_once_its_block_has_ended():
    loop = Loop()
    assert loop._repr_svg_() is None
    with loop:
        loop.add_trip_limit(2, TripLimit.COUNT)
        value = loop.add_recurrence(1.0)
        value.next = value * 3.0
        loop.add_loop_output(value, LoopOutput.LAST_VALUE)
        assert loop._repr_svg_() is None
    root = xml.etree.ElementTree.fromstring(loop._repr_svg_())
    labels = [text.text for text in root.iter(f"{SVG}text")]
    assert {"recurrence 0", "trip limit COUNT", "mul", "output 0", "next"} <= set(labels)


def test_a_notebook_shows_no_loop_whose_block_failed():
    loop = Loop()
    with pytest.raises(ValueError, match="no trip limit"), loop:
        pass
    assert loop._repr_svg_() is None


def test_a_notebook_shows_a_port_map_as_draw_does(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))  # without graphviz
    ports = PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)])
    tf_ti.draw(ports, path=tmp_path / "ports.svg")
    assert (tmp_path / "ports.svg").read_text() == ports._repr_svg_() + "\n"
    tf_ti.draw(ports, [BackEdge(0, 1)], tmp_path / "ports.svg")
    assert (tmp_path / "ports.svg").read_text() != ports._repr_svg_() + "\n"


def test_a_loop_is_drawn_into_a_file_without_graphviz(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    loop = sums(tf.ones([3]))
    assert loop.draw(tmp_path / "sums.svg") == str(tmp_path / "sums.svg")
    assert (tmp_path / "sums.svg").read_text() == loop._repr_svg_() + "\n"


def test_drawings_in_a_function_are_no_code_of_it(tmp_path, caplog):
    @tf.function
    def call(xs):
        with tf_ti.Loop("sums") as loop:
            total, x = loop.add_recurrence(0.0), loop.add_iterator(xs)
            loop.add_trip_limit(3, "count")
            total.next = total + x
            last = loop.add_loop_output(total, "last_value")
        ports = tf_ti.PortMap([tf_ti.InputPort(0, 0, axis=0)], [tf_ti.OutputPort(0, 0)])
        loop.draw(tmp_path / "sums.svg")
        tf_ti.draw(ports, path=tmp_path / "ports.svg")
        assert loop._repr_svg_() and ports._repr_svg_()
        return last.tensor

    assert call(tf.ones([3])).numpy() == 3
    assert (tmp_path / "sums.svg").exists() and (tmp_path / "ports.svg").exists()
    assert "AutoGraph" not in caplog.text
