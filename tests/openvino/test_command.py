"""`python -m tf_ti.openvino`: what it writes and prints, and what is left where it fails."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS

import tf_ti.openvino
from tf_ti.openvino import operation
from tf_ti.openvino.__main__ import main
from tf_ti.openvino.check import _compare
from tf_ti.openvino.reader import read
from tf_ti.openvino.samples import random_inputs
from tf_ti.openvino.weights import Weights

ov = pytest.importorskip("openvino")
op = ov.opset15

F32 = np.float32
SEEDED = np.random.default_rng(0)


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(F32)


def save(folder, name, outputs, inputs):
    path = folder / f"{name}.xml"
    model = ov.Model([op.result(output) for output in outputs], inputs, name)
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def dense(folder, name="dense"):
    x = op.parameter([-1, 4], F32, name="x")
    return save(
        folder, name, [op.tanh(op.matmul(x, op.constant(random(4, 300)), False, False))], [x]
    )


def loop(folder):
    """A Loop in which a TensorIterator is."""
    x, total = (op.parameter([2, 3], F32, name=name) for name in ("slice_x", "inner_total"))
    inner = ov.Model([op.result(op.add(total, op.tanh(x)))], [x, total], "inner")
    xs, state, k = (
        op.parameter(shape, dtype, name=name)
        for shape, dtype, name in (
            ([2, 15], F32, "xs"),
            ([2, 3], F32, "state"),
            ([], np.int64, "k"),
        )
    )
    iterator = op.tensor_iterator()
    iterator.set_body(inner)
    iterator.set_sliced_input(x, xs.output(0), 0, 3, 3, -1, 1)
    iterator.set_merged_input(total, state.output(0), inner.results[0].output(0))
    last = iterator.get_iter_value(inner.results[0].output(0), -1)
    next_state = op.add(last, op.convert(k, "f32"))
    body = ov.Model(
        [op.result(op.constant(np.array(True))), op.result(next_state)], [k, xs, state], "outer"
    )
    outside, initial = op.parameter([2, 15], F32, name="xs"), op.parameter([2, 3], F32, name="h")
    outer = op.loop(op.constant(np.int64(3)), op.constant(np.array(True)))
    outer.set_function(body)
    outer.set_special_body_ports([0, 0])
    outer.set_invariant_input(xs, outside.output(0))
    outer.set_merged_input(state, initial.output(0), body.results[1].output(0))
    return save(
        folder, "loop", [outer.get_iter_value(body.results[1].output(0), -1)], [outside, initial]
    )


def bag(folder):
    ids, offsets = (op.parameter([n], np.int64, name=name) for n, name in ((6, "ids"), (3, "at")))
    pooled = ov.opset3.embedding_bag_offsets_sum(op.constant(random(3, 5)), ids, offsets)
    return save(folder, "bag", [pooled], [ids, offsets])


def sequence(folder):
    x, h, c = (op.parameter(s, F32) for s in ([2, 4, 3], [2, 1, 2], [2, 1, 2]))
    lengths = op.parameter([2], np.int32, name="lengths")
    weights = (op.constant(random(*shape)) for shape in ((1, 8, 3), (1, 8, 2), (1, 8)))
    outputs = op.lstm_sequence(x, h, c, lengths, *weights, 2, "forward").outputs()
    return save(folder, "sequence", outputs, [x, h, c, lengths])


def nans(folder):
    x = op.parameter([50], F32, name="x")
    return save(folder, "nans", [op.log(x)], [x])


def half(folder):
    x = op.parameter([2, 3], np.float16, name="x")
    return save(folder, "half", [op.exp(x)], [x])


def brain(folder):
    x = op.parameter([2, 3], ov.Type.bf16, name="x")
    return save(folder, "brain", [op.exp(x)], [x])


def booleans(folder):
    x = op.parameter([7], bool, name="x")
    return save(folder, "booleans", [op.logical_not(x)], [x])


def integers(folder):
    x, y = (op.parameter([2, 3], np.int32, name=name) for name in "xy")
    return save(folder, "integers", [op.floor_mod(x, y)], [x, y])


def edited(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def run(*arguments):
    return main([str(argument) for argument in arguments])


@pytest.fixture
def replaced(monkeypatch):
    """Has other functions compute an operation, until the test ends."""
    monkeypatch.setattr(operation, "_TABLE", dict(operation._TABLE))

    def replace(kind, function):
        tf_ti.openvino.register(kind, "opset1")(function)

    return replace


# Writing.


def test_a_saved_model_answers_as_the_module(tmp_path):
    path, x = dense(tmp_path), random(3, 4)
    assert run(path, "--output", tmp_path / "saved") == 0
    loaded = tf.saved_model.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded(x)[0], tf_ti.openvino.load(path)(x)[0])


@pytest.mark.parametrize("options, number", [([], 0), (["--trainable"], 1)])
def test_trainable_makes_variables(tmp_path, options, number):
    assert run(dense(tmp_path), "--output", tmp_path / "saved", *options) == 0
    loaded = tf.saved_model.load(tmp_path / "saved")
    assert len(loaded.signatures["serving_default"].variables) == number


def test_weights_may_be_named(tmp_path):
    path = dense(tmp_path)
    (tmp_path / "dense.bin").rename(tmp_path / "others")
    assert run(path, "--weights", tmp_path / "others", "--output", tmp_path / "saved") == 0


def test_an_empty_directory_becomes_the_output(tmp_path):
    (tmp_path / "saved").mkdir()
    assert run(dense(tmp_path), "--output", tmp_path / "saved") == 0
    assert tf.saved_model.contains_saved_model(str(tmp_path / "saved"))


def test_nothing_else_is_left_beside_the_output(tmp_path):
    run(dense(tmp_path), "--output", tmp_path / "saved")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dense.bin", "dense.xml", "saved"]


def test_it_runs_as_a_program_in_another_directory(tmp_path):
    dense(tmp_path)
    command = [sys.executable, "-m", "tf_ti.openvino", "dense.xml", "--output", "saved"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=HANGS)
    assert tf.saved_model.contains_saved_model(str(tmp_path / "saved"))


# Failing.


def without_weights(folder):
    path = dense(folder)
    path.with_suffix(".bin").unlink()
    return path, "dense.bin: cannot be read"


def truncated(folder):
    path = dense(folder)
    path.write_text(path.read_text()[:-100])
    return path, "dense.xml: is no XML"


def unsupported(folder):
    return edited(dense(folder), 'type="Tanh"', 'type="Frobnicate"'), "Frobnicate (opset1)"


def wrong_attribute(folder):
    return edited(
        dense(folder), 'transpose_a="false"', 'transpose_a="maybe"'
    ), "transpose_a='maybe'"


def missing(folder):
    return folder / "none.xml", "none.xml: cannot be read"


@pytest.mark.parametrize(
    "model", [without_weights, truncated, unsupported, wrong_attribute, missing]
)
@pytest.mark.parametrize("written", ["--output=out", "--keras=out.keras"])
def test_what_is_wrong_with_a_model_is_said_and_nothing_is_written(
    tmp_path, monkeypatch, capsys, model, written
):
    monkeypatch.chdir(tmp_path)
    path, message = model(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert run(path, written) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == before


def test_with_two_outputs_none_is_written_where_one_fails(tmp_path, monkeypatch, capsys):
    pytest.importorskip("keras")
    monkeypatch.setattr(tf_ti.keras.OpenVINO, "to_model", lambda self: open("/nowhere/at/all"))
    paths = tmp_path / "saved", tmp_path / "model.keras"
    assert run(dense(tmp_path), "--output", paths[0], "--keras", paths[1]) == 1
    assert not any(path.exists() for path in paths)


def full(folder):
    (folder / "full").mkdir()
    (folder / "full" / "file").touch()
    (folder / "file.keras").touch()
    (folder / "full.bin").touch()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--output", "full"],
        ["--output", "full/file"],
        ["--output", "no/such/place"],
        ["--output", ""],
        ["--keras", "file.keras"],
        ["--keras", "file.h5"],
        ["--keras", "a.keras", "--output", "a.keras"],
        ["--keras", "out/a.keras", "--output", "out"],
        ["other.xml", "--output", "out"],
        ["--inspect", "--seed", "3"],
        ["--inspect", "--shape", "x=1"],
        ["--check", "--shape", "x"],
        ["--check", "--shape", ""],
        ["--signature", "serve", "--output", "out"],
        ["--check", "--constants"],
        ["--output", "full.xml"],
        ["--check", "--shape", "=1"],
        ["--check", "--shape", "x=1,,2"],
        ["--check", "--shape", "x=-1"],
        ["--check", "--seed", "-1"],
        ["--check", "--rtol", "-1"],
        ["--check", "--atol", "nan"],
    ],
)
def test_a_wrong_command_line_is_refused_before_anything_is_read(tmp_path, monkeypatch, arguments):
    full(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run("model.xml", *arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--output", "out"],
        ["--output", "file.keras"],
        ["--inspect"],
        ["--check"],
        ["--output", "out.xml", "--inspect"],
        ["--output", "out.xml", "--trainable"],
        ["--output", "out.xml", "--weights", "file.bin"],
        ["--output", "out.xml", "--signature", "serve"],
        ["other.xml", "--output", "out.xml"],
        ["--output", "full.xml"],
    ],
)
def test_a_wrong_conversion_to_ir_is_refused_before_anything_is_read(
    tmp_path, monkeypatch, arguments
):
    full(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        run("model.keras", *arguments)
    assert caught.value.code == 2


# Writing IR.


def keras_file(folder):
    keras = pytest.importorskip("keras")
    inputs = keras.Input((None, 3), name="series")
    y = keras.layers.LSTM(4, return_sequences=True)(inputs)
    model = keras.Model(inputs, {"forecast": keras.layers.Dense(2)(y)}, name="forecaster")
    model.save(folder / "model.keras")
    return folder / "model.keras", model


class Doubling(tf.Module):
    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0.0, name="calls")

    @tf.function(input_signature=[tf.TensorSpec([None, 2], name="rows")])
    def double(self, rows):
        return {"doubled": 2 * rows, "calls": self.calls.assign_add(1.0)}


@pytest.fixture
def saved_model(tmp_path):
    module = Doubling()
    signatures = {"serving_default": module.double, "other": module.double}
    tf.saved_model.save(module, str(tmp_path / "saved"), signatures)
    return tmp_path / "saved"


def test_a_model_of_keras_becomes_ir(tmp_path, capsys):
    path, model = keras_file(tmp_path)
    written = tmp_path / "written.xml"
    assert run(path, "--output", written, "--check", "--shape", "2,?,3", "--seed", "1") == 0
    assert f"{written}: seed 1: ok" in capsys.readouterr().out
    module, x = tf_ti.openvino.load(written), random(2, 5, 3)
    assert [info.name for info in (*module.inputs, *module.outputs)] == ["series", "forecast"]
    np.testing.assert_allclose(module(x)[0], model(x)["forecast"], 1e-5, 1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "model.keras",
        "written.bin",
        "written.xml",
    ]


@pytest.mark.parametrize("options", [[], ["--signature", "other"]])
def test_a_saved_model_becomes_ir_with_states(tmp_path, capsys, saved_model, options):
    written = tmp_path / "written.xml"
    assert run(saved_model, "--output", written, "--check", "--shape", "3,2", *options) == 0
    printed = capsys.readouterr().out
    assert "calls in call 3" in printed and "doubled in call 2" in printed
    module = tf_ti.openvino.load(written)
    assert list(module.states) == ["calls"] and module.inputs[0].name == "rows"


def test_a_saved_model_of_keras_2_needs_no_optimizer(tmp_path):
    """Its optimizer has an accumulator for each variable. Keras 3 has no object for it."""
    module = tf.Module()
    module.weight = tf.Variable(random(3, 2))
    module.optimizer = tf.Module()
    module.optimizer.accumulator = tf.Variable(random(3, 2))
    predict = tf.function(lambda x: x @ module.weight, [tf.TensorSpec([None, 3], name="x")])
    tf.saved_model.save(module, str(tmp_path / "saved"), predict.get_concrete_function())
    file = tmp_path / "saved" / "saved_model.pb"
    saved = tf.__internal__.saved_model.parse_saved_model(str(tmp_path / "saved"))
    nodes = saved.meta_graphs[0].object_graph_def.nodes
    ids = {child.local_name: child.node_id for child in nodes[0].children}
    optimizer = nodes[ids["optimizer"]]
    optimizer.user_object.identifier = "optimizer"
    optimizer.slot_variables.add(
        original_variable_node_id=ids["weight"],
        slot_name="accumulator",
        slot_variable_node_id=optimizer.children[0].node_id,
    )
    del optimizer.children[:]
    file.write_bytes(saved.SerializeToString())
    assert run(tmp_path / "saved", "--output", tmp_path / "written.xml", "--check") == 0
    x = random(4, 3)
    (y,) = tf_ti.openvino.load(tmp_path / "written.xml")(x)
    np.testing.assert_allclose(y, x @ module.weight, 1e-6)


def test_ir_becomes_ir(tmp_path):
    assert run(dense(tmp_path), "--output", tmp_path / "again.xml", "--check") == 0
    x = random(3, 4)
    again, first = (tf_ti.openvino.load(tmp_path / f"{name}.xml") for name in ("again", "dense"))
    np.testing.assert_array_equal(again(x)[0], first(x)[0])


def text_file(folder):
    (folder / "model.keras").write_text("no zip")
    return folder / "model.keras", []


def no_signature(folder):
    tf.saved_model.save(tf.Module(), str(folder / "saved"))
    return folder / "saved", []


def other_signature(folder):
    path, _ = no_signature(folder)
    return path, ["--signature", "serve"]


def no_weights(folder):
    module = tf.Module()
    module.weight = tf.Variable(random(64, 64))
    tf.saved_model.save(module, str(folder / "saved"))
    (data,) = (folder / "saved" / "variables").glob("*.data-*")
    data.write_bytes(data.read_bytes()[:100])
    return folder / "saved", []


def no_inputs(folder):
    import keras

    class Model(keras.Model):
        def call(self, x):
            return x + 1

    keras.saving.register_keras_serializable("test")(Model)
    Model().save(folder / "model.keras")
    return folder / "model.keras", []


def no_saved_model(folder):
    (folder / "folder").mkdir()
    return folder / "folder", []


UNREADABLE = {
    "text": (text_file, "model.keras: cannot be read"),
    "missing": (lambda folder: (folder / "none.keras", []), "none.keras: cannot be read"),
    "no signature": (no_signature, "no signature 'serving_default'; its signatures are: none"),
    "another": (other_signature, "no signature 'serve'"),
    "no weights": (no_weights, "saved: cannot be read"),
    "no inputs": (no_inputs, "model.keras: cannot be written as IR: input_signature must be given"),
    "no SavedModel": (no_saved_model, "folder: cannot be read"),
}


@pytest.mark.parametrize("make, message", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_wrong_with_a_model_to_write_is_said(tmp_path, capsys, make, message):
    pytest.importorskip("keras")
    path, options = make(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert run(path, "--output", tmp_path / "out.xml", *options) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and "Traceback" not in error
    assert sorted(tmp_path.iterdir()) == before


def test_what_openvino_disagrees_with_is_not_written_as_ir(tmp_path, replaced):
    path, _ = keras_file(tmp_path)
    replaced("Add", lambda op, x, y: x + y + 1)
    options = ["--check", "--shape", "2,5,3"]
    assert run(path, "--output", tmp_path / "out.xml", *options) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["model.keras"]


# Listing.


def cells(text):
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_a_table_has_all_layers_with_their_ports(tmp_path, capsys):
    assert run(dense(tmp_path), "--inspect", "--constants") == 0
    printed = capsys.readouterr().out
    names = dict(
        re.findall(r'id="\d+" name="(\w+)" type="(\w+)"', (tmp_path / "dense.xml").read_text())
    )
    name = {kind: name for name, kind in names.items()}
    assert cells(printed)[:6] == [
        ["id", "type", "opset", "name", "inputs", "outputs"],
        ["0", "Parameter", "opset1", "x", "0: f32[?,4]"],
        ["1", "Constant", "opset1", name["Const"], "0: f32[4,300]"],
        ["2", "MatMul", "opset1", name["MatMul"], "0: f32[?,4], 1: f32[4,300]", "2: f32[?,300]"],
        ["3", "Tanh", "opset1", name["Tanh"], "0: f32[?,300]", "1: f32[?,300]"],
        ["4", "Result", "opset1", name["Result"], "0: f32[?,300]"],
    ]


def test_layers_are_counted_and_constants_weighed(tmp_path, capsys):
    run(dense(tmp_path), "--inspect", "--constants")
    counts = cells(capsys.readouterr().out)[7:]
    assert counts[:3] == [["layers: 5"], ["1", "Constant (opset1)"], ["1", "MatMul (opset1)"]]
    assert counts[-1] == ["constants: 1, in 4,800 bytes"]


def test_bodies_are_indented(tmp_path, capsys):
    run(loop(tmp_path), "--inspect")
    lines = capsys.readouterr().out.splitlines()
    indents = {name: len(line) - len(line.lstrip()) for line in lines for name in line.split()[3:4]}
    assert (indents["h"], indents["state"], indents["slice_x"]) == (0, 4, 8)


def test_all_loops_are_drawn(tmp_path, capsys):
    run(loop(tmp_path), "--inspect")
    printed = capsys.readouterr().out
    assert printed.count("tensor_iterator\n") == 2
    assert "input port 0: axis=1, start=0, end=-1, stride=3, part_size=3" in printed
    assert printed.count("back edge from") == 2
    assert re.search(r"input \d: the loop's own; parameter 0: k \(id 0\)", printed)


def test_listing_needs_neither_weights_nor_known_operations(tmp_path, capsys):
    path, _ = unsupported(tmp_path)
    path.with_suffix(".bin").unlink()
    assert run(path, "--inspect") == 0
    assert "Frobnicate (opset1)  NOT SUPPORTED" in capsys.readouterr().out


def test_names_are_printed_in_one_line_whatever_they_hold(tmp_path, capsys):
    run(edited(dense(tmp_path), 'name="x"', 'name="&#10;&#9;x"'), "--inspect")
    assert r"\n\tx" in capsys.readouterr().out


def test_drawings_may_have_a_folder_of_any_name(tmp_path):
    assert run(loop(tmp_path), "--drawings", tmp_path / "drawings.xml") == 0
    assert len(list((tmp_path / "drawings.xml").iterdir())) == 2


def test_an_operation_that_returns_nothing_is_named(tmp_path, capsys, replaced):
    replaced("Tanh", lambda op, x: None)
    assert run(dense(tmp_path), "--check") == 1
    assert re.search(r"error: .*Tanh.*gives no value for output port 1", capsys.readouterr().err)


def test_drawings_are_graphviz_sources(tmp_path):
    assert run(loop(tmp_path), "--drawings", tmp_path / "drawings") == 0
    drawn = sorted((tmp_path / "drawings").iterdir())
    assert len(drawn) == 2 and all(path.read_text().startswith("digraph {") for path in drawn)


# Comparison.

MODELS = [dense, loop, bag, sequence, nans, half, brain, booleans, integers]


def test_openvino_agrees(tmp_path, capsys):
    paths = [model(tmp_path) for model in MODELS]
    assert run(*paths, "--check", "--seed", 1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == list(map(str, paths))
    assert all("seed 1: ok, largest error" in line for line in lines)


def test_a_table_tells_of_each_output(tmp_path, capsys):
    assert run(dense(tmp_path), "--check", "--seed", 1, "--shape", "x=?,4") == 0
    heading, row, last = cells(capsys.readouterr().out)
    assert heading == ["output", "type", "shape", "max abs error", "max rel error", "result"]
    assert row[1:3] + row[5:] == ["f32", "[2,300]", "ok"] and "seed 1" in last[0]


@pytest.mark.parametrize("cropped", [3, 200])
def test_outputs_without_elements_are_named_and_larger_extents_are_drawn(tmp_path, capsys, cropped):
    x = op.parameter([-1, -1, 4], np.float32, name="x")
    y = op.slice(x, *(op.constant([n]) for n in (cropped, -cropped, 1, 1)))
    path = save(tmp_path, "cropped", [op.exp(y)], [x])
    assert run(path, "--check") == 0
    *_, row, last = capsys.readouterr().out.splitlines()
    if cropped == 3:
        assert "[8,2,4]" in row and row.endswith("ok")
        assert last.endswith("unknown dimensions are 8: 2 is too small")
    else:
        assert "[2,0,4]" in row and row.endswith("no elements")
        assert "nothing is compared of" in last


def test_larger_extents_are_drawn_for_a_model_that_does_not_take_2(tmp_path, capsys):
    x = op.parameter([1, -1], np.float32, name="x")
    path = save(tmp_path, "rows", [op.reshape(x, op.constant([-1, 16]), False)], [x])
    assert run(path, "--check") == 0
    *_, row, last = capsys.readouterr().out.splitlines()
    assert "[2,16]" in row and last.endswith("unknown dimensions are 32: 2 is too small")
    x = op.parameter([-1], np.float32, name="x")
    wrong = op.reshape(
        op.concat([x, op.constant(np.ones(1, np.float32))], 0), op.constant([-1, 1000]), False
    )
    assert run(save(tmp_path, "wrong", [wrong], [x]), "--check") != 0
    assert "cannot be run on inputs of shapes [2]" in capsys.readouterr().err


def test_a_list_ends_quietly_where_its_reader_does(tmp_path):
    path = dense(tmp_path)
    command = f"{sys.executable} -m tf_ti.openvino {path} --inspect | true"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=HANGS)
    assert "BrokenPipe" not in done.stderr and "Broken pipe" not in done.stderr


WRONG = {
    "values": (lambda op, x: tf.tanh(x) + 0.01, "differs at 600 of 600 positions"),
    "one value": (
        lambda op, x: tf.tanh(x) + tf.eye(2, 300) * [[1.0], [0.0]],
        "differs at 1 of 600",
    ),
    "shape": (lambda op, x: tf.tanh(x)[:1], "OpenVINO gives shape [2, 300]"),
    "NaN": (lambda op, x: tf.tanh(x) / [[0.0], [1.0]] * 0.0, "has NaN at other positions"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_differs_is_told_and_nothing_is_written(tmp_path, capsys, replaced, wrong):
    function, message = WRONG[wrong]
    replaced("Tanh", function)
    assert run(dense(tmp_path), "--check", "--output", tmp_path / "saved") == 1
    assert message in capsys.readouterr().out
    assert not (tmp_path / "saved").exists()


def test_one_of_several_models_that_differs_is_found(tmp_path, capsys, replaced):
    replaced("Tanh", WRONG["values"][0])
    assert run(nans(tmp_path), dense(tmp_path), "--check") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert ": ok" in first and "differs" in second


def test_one_of_several_models_that_cannot_be_read_does_not_end_it(tmp_path, capsys):
    assert run(tmp_path / "none.xml", nans(tmp_path), "--check") == 1
    assert "nans.xml: seed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options, code", [([], 1), (["--atol", "0.1"], 0), (["--rtol", "1e9"], 0), (["--rtol", "0"], 1)]
)
def test_tolerances_say_what_may_differ(tmp_path, replaced, options, code):
    replaced("Tanh", WRONG["values"][0])
    assert run(dense(tmp_path), "--check", "--seed", 0, *options) == code


def test_a_seed_that_was_printed_gives_the_same_inputs(tmp_path, capsys, replaced):
    replaced("Tanh", lambda op, x: tf.tanh(x) * 1.5)
    path = dense(tmp_path)
    run(path, "--check")
    first = capsys.readouterr().out
    run(path, "--check", "--seed", re.search(r"seed (\d+)", first)[1])
    assert capsys.readouterr().out == first


def test_shapes_are_those_that_are_given(tmp_path, capsys):
    assert run(dense(tmp_path), "--check", "--shape", "x=5,?") == 0
    assert "[5,300]" in capsys.readouterr().out


def test_shapes_that_cannot_be_computed_with_are_told_without_a_stack(tmp_path, capsys):
    x = op.parameter([-1, -1], F32, name="x")
    path = save(tmp_path, "open", [op.matmul(x, op.constant(random(4, 5)), False, False)], [x])
    assert run(path, "--check") == 1
    error = capsys.readouterr().err
    assert "inputs of shapes [2, 2] (--shape gives others): " in error and "File" not in error
    assert run(path, "--check", "--shape", "x=?,4") == 0


@pytest.mark.parametrize("shape", ["y=1,4", "x=1", "x=1,5", "1,5"])
def test_shapes_that_are_not_the_models_are_refused(tmp_path, capsys, shape):
    assert run(dense(tmp_path), "--check", "--shape", shape) == 1
    assert "x" in capsys.readouterr().err


def test_the_shape_of_the_only_input_needs_no_name(tmp_path, capsys):
    assert run(dense(tmp_path), "--check", "--shape", "5,4") == 0
    assert "[5,300]" in capsys.readouterr().out
    assert run(bag(tmp_path), "--check", "--shape", "6") == 1
    assert "a shape must have a name; inputs are 'ids', 'at'" in capsys.readouterr().err


def stateful(folder):
    x = op.parameter([2, 3], F32, name="x")
    total = op.add(op.read_value(op.multiply(x, op.constant(F32(2))), "total", F32, [2, 3]), x)
    count = op.add(op.read_value("count", np.int32, [1]), op.constant(np.array([1], np.int32)))
    results = [op.result(total), op.result(count)]
    model = ov.Model(results, [op.assign(total, "total"), op.assign(count, "count")], [x], "m")
    ov.save_model(model, folder / "stateful.xml", compress_to_fp16=False)
    return folder / "stateful.xml"


def test_states_are_carried_over_several_calls(tmp_path, capsys, replaced):
    path = stateful(tmp_path)
    assert run(path, "--check") == 0
    assert capsys.readouterr().out.count(" in call ") == 6

    def assign(op, value):
        op.memory.assign(op.text("variable_id"), value + 1)
        return value

    tf_ti.openvino.register("Assign", "opset6")(assign)
    assert run(path, "--check") == 1
    printed = capsys.readouterr().out
    assert "in call 1' differs" not in printed and "in call 2' differs" in printed


def test_states_are_listed_and_constants_where_asked_for(tmp_path, capsys):
    path = stateful(tmp_path)
    run(path, "--inspect")
    printed = capsys.readouterr().out
    assert "  total: f32[2,3], begins with an initial value\n" in printed
    assert "  count: i32[1], begins with zeros\n" in printed
    assert " Constant  " not in printed.split("layers:")[0]
    run(path, "--inspect", "--constants")
    assert capsys.readouterr().out.split("layers:")[0].count(" Constant ") == 2


def test_without_openvino_that_is_what_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert run(tmp_path / "model.xml", "--check") == 1
    assert "pip install openvino" in capsys.readouterr().err


# The inputs' values.


def inputs_of(path, seed, shapes=None):
    weights = Weights(path.with_suffix(".bin"))
    return random_inputs(read(path), weights, shapes or {}, np.random.default_rng(seed))


def test_ids_are_rows_of_the_table_and_offsets_are_in_order(tmp_path):
    path = bag(tmp_path)
    for seed in range(20):
        ids, offsets = inputs_of(path, seed)
        assert ids.min() >= 0 and ids.max() < 3
        assert offsets[0] == 0 and offsets[-1] < 6 and (np.diff(offsets) >= 0).all()


def test_ids_are_followed_through_other_layers_and_into_bodies(tmp_path):
    table = op.constant(random(3, 5))
    ids = op.parameter([4], np.int32, name="ids")
    part = op.parameter([1], np.int64)
    row = op.gather(table, op.unsqueeze(part, np.int64(0)), np.int64(0))
    body = ov.Model([op.result(row)], [part], "body")
    iterator = op.tensor_iterator()
    iterator.set_body(body)
    iterator.set_sliced_input(part, op.convert(ids, "i64").output(0), 0, 1, 1, -1, 0)
    rows = iterator.get_concatenated_slices(body.results[0].output(0), 0, 1, 1, -1, 0)
    path = save(tmp_path, "gathers", [rows], [ids])
    assert {int(i) for seed in range(20) for i in inputs_of(path, seed)[0]} == {0, 1, 2}


def test_lengths_are_those_of_sequences(tmp_path):
    path = sequence(tmp_path)
    assert {int(n) for seed in range(20) for n in inputs_of(path, seed)[3]} == {1, 2, 3, 4}


def test_lengths_are_of_the_whole_where_openvino_heeds_no_others(tmp_path):
    x, lengths = op.parameter([-1, -1, 3], F32, name="x"), op.parameter([-1], np.int32, name="n")
    turned = op.transpose(x, np.array([1, 0, 2]))
    h = op.parameter([-1, 1, 2], F32, name="h")
    weights = (op.constant(random(*shape)) for shape in ((1, 2, 3), (1, 2, 2), (1, 2)))
    outputs = op.rnn_sequence(turned, h, lengths, *weights, 2, "forward").outputs()
    path = save(tmp_path, "turned", outputs, [x, lengths, h])
    assert inputs_of(path, 0, {"x": (7, 2, 3)})[1].tolist() == [7, 7]


def test_nothing_is_divided_by_zero(tmp_path):
    path = integers(tmp_path)
    assert all(inputs_of(path, seed)[1].min() > 0 for seed in range(20))


def test_axes_are_those_of_the_tensor(tmp_path):
    x, axis = op.parameter([-1, -1], F32, name="x"), op.parameter([1], np.int64, name="axis")
    ends = [op.parameter([1], np.int64, name=name) for name in ("start", "stop", "step")]
    outputs = [op.reduce_sum(x, axis, True), op.slice(x, *ends, axis)]
    path = save(tmp_path, "axes", outputs, [x, axis, *ends])
    assert {int(inputs_of(path, seed)[1][0]) for seed in range(20)} == {0, 1}
    for seed in range(5):
        assert run(path, "--check", "--seed", seed, "--shape", "x=3,4") == 0


# Progress.


def chain(folder, number):
    x = node = op.parameter([3], F32)
    for _ in range(number):
        node = op.abs(node)
    return save(folder, "chain", [op.add(node, op.constant(random(3)))], [x])


@pytest.mark.parametrize(
    "number, is_terminal, stages",
    [
        (210, True, {"reading layers", "tracing layers"}),
        (5, True, set()),
        (210, False, set()),
    ],
)
def test_large_models_have_progress_bars_on_a_terminal(
    tmp_path, monkeypatch, number, is_terminal, stages
):
    tqdm = pytest.importorskip("tqdm")
    shown = {}

    def bar(items, stage, leave):
        shown[stage] = len(items)
        return iter(items)

    monkeypatch.setattr(tqdm, "tqdm", bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert run(chain(tmp_path, number), "--output", tmp_path / "saved") == 0
    assert shown.keys() == stages and all(size == number + 4 for size in shown.values())


def test_large_weights_have_a_bar_too(tmp_path, monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    path, shown = dense(tmp_path), set()
    with open(path.with_suffix(".bin"), "ab") as file:
        file.truncate(101 << 20)  # takes no space on the disk
    monkeypatch.setattr(tqdm, "tqdm", lambda items, stage, leave: shown.add(stage) or items)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(path, "--output", tmp_path / "saved") == 0
    assert "constants" in shown


def test_without_tqdm_there_is_no_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(chain(tmp_path, 210), "--output", tmp_path / "saved") == 0


@pytest.mark.parametrize(
    "shape, said", [("999999999,4", "would be too large"), ("2,0", "which (2, 0) is not")]
)
def test_shapes_that_cannot_be_are_refused(tmp_path, capsys, shape, said):
    assert run(dense(tmp_path), "--check", "--shape", f"x={shape}") == 1
    assert said in capsys.readouterr().err


def test_integers_are_followed_through_any_number_of_layers(tmp_path):
    ids = value = op.parameter([3], np.int32, name="ids")
    for k in range(1200):
        value = op.convert(value, ("i64", "i32")[k % 2])
    row = op.gather(op.constant(random(4, 2)), value, op.constant(0))
    path = save(tmp_path, "deep", [row], [ids])
    (found,) = random_inputs(read(path), Weights(path.with_suffix(".bin")), {}, SEEDED)
    assert found.max() < 4


def test_large_integers_that_differ_do_not_agree():
    a, b = np.int64([2**53]), np.int64([2**53 + 1])
    assert _compare(a, b, 0.0, 0.0)[2] == "differs at 1 of 1 positions"
    assert _compare(a, a, 0.0, 0.0)[2] == ""


def test_a_table_names_types_as_the_file_does(tmp_path, capsys):
    x = op.parameter([2], np.uint8, name="x")
    assert run(save(tmp_path, "bytes", [op.add(x, x)], [x]), "--check") == 0
    assert " u8 " in capsys.readouterr().out
