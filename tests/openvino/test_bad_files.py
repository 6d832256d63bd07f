"""Files that `tf_ti.openvino.load` refuses: always an IRError, which says what and where."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from patience import HANGS

import tf_ti.openvino
from tf_ti.openvino import IRError
from tf_ti.openvino.__main__ import main

PORT = '<port id="{}" precision="FP32"><dim>2</dim></port>'
PARAMETER = (
    '<layer id="0" name="x" type="Parameter" version="opset1">'
    '<data shape="2" element_type="f32"/><output>' + PORT.format(0) + "</output></layer>"
)
CONSTANT = (
    '<layer id="1" name="c" type="Const" version="opset1">'
    '<data element_type="f32" shape="2" offset="0" size="8"/>'
    "<output>" + PORT.format(0) + "</output></layer>"
)
ADD = (
    '<layer id="2" name="sum" type="Add" version="opset1"><data auto_broadcast="numpy"/><input>'
    + PORT.format(0)
    + PORT.format(1)
    + "</input><output>"
    + PORT.format(2)
    + "</output></layer>"
)
RESULT = (
    '<layer id="3" name="y" type="Result" version="opset1"><input>'
    + PORT.format(0)
    + "</input></layer>"
)
EDGES = (
    '<edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>'
    '<edge from-layer="1" from-port="0" to-layer="2" to-port="1"/>'
    '<edge from-layer="2" from-port="2" to-layer="3" to-port="0"/>'
)
NET = (
    '<?xml version="1.0"?><net name="m" version="11"><layers>'
    + PARAMETER
    + CONSTANT
    + ADD
    + RESULT
    + "</layers><edges>"
    + EDGES
    + "</edges></net>"
)
BODY = (
    "<body><layers>"
    '<layer id="0" name="p" type="Parameter" version="opset1"><data shape="2" element_type="f32"/>'
    "<output>" + PORT.format(0) + "</output></layer>"
    '<layer id="1" name="r" type="Result" version="opset1"><input>' + PORT.format(0) + "</input>"
    '</layer></layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/></edges>'
    "</body>"
)
MAP = (
    '<port_map><input external_port_id="0" internal_layer_id="0" axis="0"/>'
    '<output external_port_id="1" internal_layer_id="1" axis="0"/></port_map>'
)
ITERATOR = (
    '<net name="m" version="11"><layers>'
    + PARAMETER
    + '<layer id="2" name="loop" type="TensorIterator" version="opset1"><input>'
    + PORT.format(0)
    + "</input><output>"
    + PORT.format(1)
    + "</output>"
    + MAP
    + "<back_edges/>"
    + BODY
    + "</layer>"
    + RESULT
    + '</layers><edges><edge from-layer="0" from-port="0" to-layer="2" to-port="0"/>'
    '<edge from-layer="2" from-port="1" to-layer="3" to-port="0"/></edges></net>'
)


def write(folder, text, weights=bytes(8)):
    path = folder / "model.xml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    if weights is not None:
        path.with_suffix(".bin").write_bytes(weights)
    return path


def refused(path, *words, **options):
    with pytest.raises(IRError) as caught:
        tf_ti.openvino.load(path, **options)
    for word in (str(path), *words):
        assert word in str(caught.value)
    return str(caught.value)


def test_the_file_that_the_others_are_made_of_loads(tmp_path):
    module = tf_ti.openvino.load(write(tmp_path, NET, np.float32([1, 2]).tobytes()))
    assert module([3, 4])[0].numpy().tolist() == [4, 6]


def test_no_other_file_is_opened(tmp_path, run_program):
    path = write(tmp_path, NET)
    program = """
        import sys
        import tf_ti.openvino

        tf_ti.openvino.load(sys.argv[1])  # imports what is imported late
        opened = []
        sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
        tf_ti.openvino.load(sys.argv[1])
        print(*sorted(set(opened)))
    """
    opened = run_program(program, path).stdout.split()
    assert opened == sorted(map(str, (path, path.with_suffix(".bin"))))


BOMB = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "x"}">' for i in range(12))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\0",
        b"\xff\xfe",
        b"\x89PNG",
        b"<net",
        NET[: len(NET) // 2],
        NET[:-1],
        NET + "<net/>",
        NET.replace('version="1.0"', 'version="1.0" encoding="nothing"'),
        NET.replace('version="1.0"', 'version="1.0" encoding="utf-16"'),
        NET.replace('version="1.0"', 'version="1.0" encoding="gb18030"'),
        NET.encode().replace(b'name="x"', b'name="\xc3\x28"'),
        NET.replace('name="x"', 'name="x" name="z"'),
        NET.replace('name="x"', 'name="&nothing;"'),
        NET.replace("?>", "?><!DOCTYPE net>"),
        NET.replace("?>", f"?><!DOCTYPE net [{BOMB}]>").replace('name="x"', 'name="&e11;"'),
        NET.replace("?>", '?><!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/passwd">]>'),
        NET.replace("?>", '?><!DOCTYPE net SYSTEM "http://localhost/x.dtd">'),
    ],
)
def test_what_is_no_safe_xml_is_refused(tmp_path, text):
    refused(write(tmp_path, text), "no XML")


def test_elements_nested_deeply_are_refused(tmp_path):
    refused(write(tmp_path, "<net>" + "<a>" * 100_000), "elements in one another")


def test_bodies_nested_deeply_are_refused(tmp_path):
    text = ITERATOR
    for _ in range(40):
        inner = text[text.index("<layers>") : text.rindex("</net>")]
        text = ITERATOR.replace(BODY, f"<body>{inner}</body>")
    refused(write(tmp_path, text), "bodies in one another")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("<net ", "<web ", ["web"]),
        ('version="11"', "", ["no version"]),
        ('version="11"', 'version="9"', ["version 9"]),
        ('version="11"', 'version="12"', ["version 12"]),
        ('version="11"', 'version="x"', ["'x'"]),
        ("<layers>", "<layer>", ["<layers>"]),
        ('layer id="0"', "layer", ["layer number 0", "no id"]),
        ('layer id="0"', 'layer id="a"', ["layer number 0", "'a'"]),
        ('layer id="0"', 'layer id="-4"', ["layer number 0", "-4"]),
        ('layer id="0"', 'layer id="1"', ["'c'", "another layer"]),
        ('layer id="0"', 'layer id="99999999999999999999999"', ["layer number 0"]),
        ('type="Add"', "", ["'sum'", "type"]),
        ('port id="1" precision', "port precision", ["'sum'", "input port", "no id"]),
        ('port id="1" precision', 'port id="0" precision', ["'sum'", "input port 0"]),
        ("<dim>2</dim>", "<dim>x</dim>", ["'x'", "port 0"]),
        ("<dim>2</dim>", "<dim>-2</dim>", ["'-2'", "port 0"]),
        ("<dim>2</dim>", f"<dim>{10**30}</dim>", ["port 0"]),
        ("<dim>2</dim>", f"<dim>{10**17}</dim>" * 3, ["port 0", "more than a tensor"]),
        ("<dim>2</dim>", "<dim>1</dim>" * 300, ["port 0", "300 dimensions"]),
        ('shape="2"', 'shape="2,x"', ["'x'", "2,x"]),
        ('shape="2"', 'shape="3"', ["'x'", "port 0"]),
        ('element_type="f32"', 'element_type="i32"', ["'x'", "port 0"]),
        ('element_type="f32"', 'element_type="f31"', ["'x'", "f31"]),
        ('to-layer="2" to-port="0"', 'to-layer="7" to-port="0"', ["no layer 7"]),
        ('from-layer="1" from-port="0"', 'from-layer="7" from-port="0"', ["no layer 7"]),
        ('from-layer="1" from-port="0"', 'from-layer="1" from-port="9"', ["output port 9"]),
        ('to-layer="2" to-port="0"', 'to-layer="2" to-port="9"', ["'sum'", "input port 9"]),
        ('to-layer="2" to-port="0"', 'to-layer="2" to-port="1"', ["another edge"]),
        ('to-layer="2" to-port="0"', 'to-layer="2"', ["no to-port"]),
        ('from-layer="0" from-port="0"', 'from-layer="2" from-port="2"', ["'sum'", "one another"]),
        ('from-layer="0" from-port="0"', 'from-layer="3" from-port="0"', ["'y'", "output port 0"]),
        (EDGES, "", ["'sum'", "input port 0", "no edge"]),
        ("<edges>", "<edge>", ["edge"]),
    ],
)
def test_a_net_that_does_not_fit_together_is_refused(tmp_path, old, new, words):
    text = NET.replace(old, new, 1)
    if old in ("<edges>", "<layers>"):
        text = text.replace(old.replace("<", "</"), new.replace("<", "</"))
    if old == "<net ":
        text = text.replace("</net>", "</web>")
    refused(write(tmp_path, text), *words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('offset="0" size="8"', 'offset="1" size="8"', ["'c'", "8 bytes"]),
        ('offset="0" size="8"', f'offset="{10**17}" size="8"', ["'c'", "beyond"]),
        ('offset="0"', 'offset="-1"', ["'c'", "'-1'"]),
        ('offset="0"', 'offset="zero"', ["'c'", "'zero'"]),
        ('offset="0"', "", ["'c'", "offset"]),
        ('size="8"', "", ["'c'", "size"]),
        ('size="8"', 'size="4"', ["'c'", "size=4", "8 bytes"]),
        ('size="8"', f'size="{2**59}"', ["'c'", "8 bytes"]),
        ('shape="2" offset', 'shape="3" offset', ["'c'", "[3]", "12 bytes"]),
        ('shape="2" offset', f'shape="{2**59}" offset', ["'c'", f"[{2**59}]"]),
        ('shape="2" offset', f'shape="{10**17},{10**17}" offset', ["'c'", "more than a tensor"]),
        ('shape="2" offset', f'shape="0,{10**17},{10**17}" offset', ["'c'", "more than a tensor"]),
        ('shape="2" offset', f'shape="0,{2**30},{2**30}" offset', ["'c'", "more than a tensor"]),
        ('shape="2" offset', f'shape="{"1," * 99}2" offset', ["'c'", "100 dimensions"]),
        ('shape="2" offset', 'shape="?" offset', ["'c'", "known"]),
        ('shape="2" offset', 'shape="..." offset', ["'c'", "known"]),
        ('element_type="f32" shape="2" offset', 'element_type="f33" offset', ["'c'", "f33"]),
        ('element_type="f32" shape="2" offset', 'element_type="string" offset', ["'c'", "string"]),
    ],
)
def test_a_constant_that_contradicts_itself_or_the_weights_is_refused(tmp_path, old, new, words):
    refused(write(tmp_path, NET.replace(old, new, 1)), *words)


def test_an_absurd_constant_with_a_fitting_size_is_refused(tmp_path):
    text = NET.replace(CONSTANT, CONSTANT.replace('shape="2"', f'shape="{2**55}"'))
    refused(write(tmp_path, text.replace('size="8"', f'size="{2**57}"')), "'c'", "beyond")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, ["No such file"]),
        (lambda path: path.write_bytes(b""), ["empty"]),
        (lambda path: path.write_bytes(bytes(7)), ["7 bytes"]),
        (lambda path: path.mkdir(), ["directory"]),
        (lambda path: os.mkfifo(path), ["no regular file"]),
        (lambda path: path.symlink_to(path), ["symbolic links"]),
    ],
    ids=["missing", "empty", "short", "directory", "pipe", "link to itself"],
)
def test_weights_that_cannot_be_read_are_refused(tmp_path, make, words):
    path = write(tmp_path, NET, None)
    make(path.with_suffix(".bin"))
    refused(path, "'c'", str(path.with_suffix(".bin")), *words)


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_a_path_that_is_no_file_is_refused(tmp_path, kind):
    path = tmp_path / "model.xml"
    {"missing": lambda _: None, "directory": os.mkdir, "pipe": os.mkfifo}[kind](path)
    refused(path, "cannot be read")


def test_weights_that_are_named_and_missing_are_refused(tmp_path):
    path = write(tmp_path, NET)
    with pytest.raises(IRError, match="other.bin"):
        tf_ti.openvino.load(path, tmp_path / "other.bin")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (BODY, "", ["<body>"]),
        (MAP, "", ["'loop'", "no input leads", "'p'"]),
        ('<input external_port_id="0"', '<input external_port_id="5"', ["input port 5"]),
        ('<input external_port_id="0"', '<input external_port_id="-1"', ["input port -1"]),
        ('<input external_port_id="0"', "<input", ["external_port_id"]),
        ('<input external_port_id="0"', '<input external_port_id="x"', ["'x'"]),
        ('<output external_port_id="1"', '<output external_port_id="5"', ["output port 5"]),
        ('<output external_port_id="1"', '<output external_port_id="0"', ["output port 0"]),
        ('internal_layer_id="0"', 'internal_layer_id="9"', ["no Parameter", "'9'"]),
        ('internal_layer_id="0"', 'internal_layer_id="1"', ["no Parameter"]),
        ('internal_layer_id="1"', 'internal_layer_id="0"', ["no Result"]),
        ('internal_layer_id="0" axis="0"', 'internal_layer_id="0" axis="a"', ["axis='a'"]),
        ('internal_layer_id="0" axis="0"', 'internal_layer_id="0" stride="1.5"', ["stride='1.5'"]),
        (
            "</port_map>",
            '<input external_port_id="0" internal_layer_id="0"/></port_map>',
            ["two inputs", "'p'"],
        ),
        (
            "</port_map>",
            '<output external_port_id="1" internal_layer_id="1"/></port_map>',
            ["two outputs", "output port 1"],
        ),
        (
            '<output external_port_id="1" internal_layer_id="1" axis="0"/>',
            "",
            ["nothing gives output port 1"],
        ),
        (
            "<back_edges/>",
            '<back_edges><edge from-layer="1" to-layer="1"/></back_edges>',
            ["no Parameter", "1"],
        ),
        (
            "<back_edges/>",
            '<back_edges><edge from-layer="8" to-layer="0"/></back_edges>',
            ["no Result", "8"],
        ),
        (
            "<back_edges/>",
            '<back_edges><edge from-layer="1"/></back_edges>',
            ["to-layer"],
        ),
        (
            "<back_edges/>",
            '<back_edges><edge from-layer="1" to-layer="0"/></back_edges>',
            ["'p'", "slice"],
        ),
        (
            ' axis="0"/><output',
            "/><output",
            None,
        ),
    ],
)
def test_a_loop_that_does_not_fit_its_body_is_refused(tmp_path, old, new, words):
    assert old in ITERATOR
    path = write(tmp_path, ITERATOR.replace(old, new, 1))
    if words is not None:
        refused(path, "'loop'", *words)
        return
    with pytest.raises(IRError, match="'loop'"):  # nothing says how many iterations
        tf_ti.openvino.load(path)(np.zeros(2, np.float32))


def test_two_back_edges_to_one_parameter_are_refused(tmp_path):
    edge = '<edge from-layer="1" to-layer="0"/>'
    text = ITERATOR.replace("<back_edges/>", f"<back_edges>{edge}{edge}</back_edges>")
    refused(write(tmp_path, text.replace(' axis="0"/><output', "/><output")), "two back edges")


def test_all_unknown_operations_are_named_in_one_error(tmp_path):
    text = NET.replace('type="Add"', 'type="Frobnicate"')
    other = PARAMETER.replace('"Parameter"', '"Gadget"').replace('layer id="0"', 'layer id="8"')
    text = text.replace("</layers>", other.replace('name="x"', 'name="thing"') + "</layers>", 1)
    refused(write(tmp_path, text), "Frobnicate (opset1): 'sum'", "Gadget (opset1): 'thing'")


def test_a_name_of_any_length_makes_no_long_message(tmp_path):
    text = NET.replace('name="sum"', f'name="{"s" * 1_000_000}"').replace(EDGES, "")
    assert len(refused(write(tmp_path, text), "sss")) < 1000


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('type="Add"', 'type="Exp"', ["2 inputs"]),
        ('auto_broadcast="numpy"', 'auto_broadcast="odd"', ["auto_broadcast='odd'"]),
        (ADD, ADD.replace("<dim>2</dim></port></output>", "<dim>3</dim></port></output>"), ["3"]),
        (ADD, ADD[:-17] + PORT.format(5) + "</output></layer>", ["2 output ports"]),
        ('type="Add"', 'type="MatMul"', ["output port 2"]),
        ('type="Add"', 'type="Squeeze"', ["'sum'"]),
    ],
)
def test_load_says_what_only_the_operation_can_tell(tmp_path, old, new, words, capsys):
    assert old in NET
    path = write(tmp_path, NET.replace(old, new, 1))
    message = refused(path, str(path), "'sum'", *words)
    assert main([str(path), "--inspect"]) == 0
    assert f"load refuses it: {message}" in capsys.readouterr().out


def test_a_call_says_what_a_file_of_unknown_rank_cannot(tmp_path):
    parameter = PARAMETER.replace('shape="2"', 'shape="..."').replace("<dim>2</dim>", "")
    text = NET.replace('type="Add"', 'type="Squeeze"').replace(PARAMETER, parameter)
    module = tf_ti.openvino.load(write(tmp_path, text))
    with pytest.raises(IRError, match="'sum'"):
        module([1, 2])


@pytest.mark.parametrize("error", [KeyError("k"), RuntimeError(), MemoryError(), OverflowError()])
def test_an_operation_that_fails_in_any_way_names_its_layer(tmp_path, error):
    @tf_ti.openvino.register("FailsFor" + type(error).__name__, "test")
    def _(op, x, y):
        raise error

    new = f'type="FailsFor{type(error).__name__}" version="test"'
    path = write(tmp_path, NET.replace('type="Add" version="opset1"', new))
    with pytest.raises(IRError, match="'sum'"):
        tf_ti.openvino.load(path)([1, 2])


def test_an_error_inside_of_a_body_names_the_layer_there(tmp_path):
    body = BODY.replace(
        "</layers>",
        '<layer id="2" name="inner" type="Elu" version="opset1"><input>'
        + PORT.format(0)
        + "</input><output>"
        + PORT.format(1)
        + "</output></layer></layers>",
    ).replace(
        'to-layer="1" to-port="0"/>',
        'to-layer="2" to-port="0"/><edge from-layer="2" from-port="1" to-layer="1" to-port="0"/>',
    )
    body = body.replace("<dim>2</dim>", "<dim>1</dim>").replace('shape="2"', 'shape="1"')
    path = write(tmp_path, ITERATOR.replace(BODY, body))
    with pytest.raises(IRError, match="'loop'.*body.*'inner'.*alpha"):
        tf_ti.openvino.load(path)([1, 2])


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "words"),
    [
        ([], {}, TypeError, "'x'"),
        ([[1, 2], [3, 4]], {}, TypeError, "1 inputs"),
        ([], {"z": [1, 2]}, TypeError, "'z'"),
        ([[1, 2]], {"x": [1, 2]}, TypeError, "twice"),
        ([[1, 2, 3]], {}, ValueError, "'x'.*shape"),
        ([[[1, 2]]], {}, ValueError, "'x'.*shape"),
        ([tf.constant([1, 2])], {}, ValueError, "'x'"),
        ([None], {}, ValueError, "'x'"),
        ([["a", "b"]], {}, (TypeError, ValueError), "'x'"),
        ([[[1], [2, 3]]], {}, ValueError, "'x'"),
        ([object()], {}, ValueError, "'x'"),
    ],
)
def test_a_wrong_call_is_refused_and_the_next_one_is_right(tmp_path, args, kwargs, kind, words):
    module = tf_ti.openvino.load(write(tmp_path, NET))
    with pytest.raises(kind, match=words):
        module(*args, **kwargs)
    assert module(x=[3, 4])[0].numpy().tolist() == [3, 4]


def test_names_that_several_inputs_have_are_refused_as_keywords(tmp_path):
    text = NET.replace(CONSTANT, PARAMETER.replace('layer id="0"', 'layer id="1"'))
    module = tf_ti.openvino.load(write(tmp_path, text, None))
    assert module([1, 2], [3, 4])[0].numpy().tolist() == [4, 6]
    with pytest.raises(TypeError, match="several inputs"):
        module([1, 2], x=[3, 4])


def chain(path, *layers, shape=(2, 3, 4, 5)):
    """A model of layers (type, version, attributes, constants, outputs), one after another.

    Each reads the one before, the first one a Parameter, where its constants leave an input free.
    """
    text, edges, data = [], [], b""
    dims = "".join(f"<dim>{n}</dim>" for n in shape)
    text.append(
        '<layer id="0" name="x" type="Parameter" version="opset1"><data element_type="f32" '
        f'shape="{",".join(map(str, shape))}"/><output><port id="0" precision="FP32">{dims}'
        "</port></output></layer>"
    )
    source = 0
    for number, (kind, version, attributes, constants, ports) in enumerate(layers, 1):
        own = 100 * number
        for position, value in constants.items():
            value = np.asarray(value)
            element_type = {"f": "f32", "i": "i64"}[value.dtype.kind]
            value = value.astype({"f32": np.float32, "i64": np.int64}[element_type])
            extents = ",".join(map(str, value.shape))
            text.append(
                f'<layer id="{own + 1 + position}" name="c{own + position}" type="Const" '
                f'version="opset1"><data element_type="{element_type}" shape="{extents}" '
                f'offset="{len(data)}" size="{value.nbytes}"/><output><port id="0"/></output>'
                "</layer>"
            )
            data += value.tobytes()
            edges.append((own + 1 + position, 0, own, position))
        count = max([*constants, 0]) + 1
        free = [i for i in range(count + 1) if i not in constants][:1]
        if len(constants) == count and number == 1:
            free = []  # of constants alone
        edges += [(source, 50 if source else 0, own, i) for i in free]
        inputs = "".join(f'<port id="{i}"/>' for i in sorted([*constants, *free]))
        precision = "FP32" if number == len(layers) else "UNSPECIFIED"
        outputs = f'<port id="50" precision="{precision}"/>'
        outputs += "".join(f'<port id="{50 + i}"/>' for i in range(1, ports))
        data_text = " ".join(f'{name}="{value}"' for name, value in attributes.items())
        text.append(
            f'<layer id="{own}" name="it" type="{kind}" version="{version}"><data {data_text}/>'
            f"<input>{inputs}</input><output>{outputs}</output></layer>"
        )
        source = own
    text.append(
        '<layer id="9" name="y" type="Result" version="opset1"><input><port id="0" '
        'precision="FP32"/></input></layer>'
    )
    edges.append((source, 50, 9, 0))
    lines = "".join(
        f'<edge from-layer="{a}" from-port="{b}" to-layer="{c}" to-port="{d}"/>'
        for a, b, c, d in edges
    )
    body = f"<layers>{''.join(text)}</layers><edges>{lines}</edges>"
    return write(path, f'<net name="n" version="11">{body}</net>', data)


HUGE = 10**9
POOL = {"strides": "1,1", "pads_begin": "0,0", "pads_end": "0,0", "rounding_type": "floor"}
CUBE = {"mode": "linear_onnx", "shape_calculation_mode": "sizes"}
FLAT = {"keep_dims": "false"}
KERNEL = np.ones([2, 3, 1, 1], np.float32)
ABSURD = {
    "Split": [("Split", "opset1", {"num_splits": HUGE}, {1: 1}, 1)],
    "VariadicSplit": [("VariadicSplit", "opset1", {}, {1: 0, 2: [1] * 1000}, 1)],
    "LRN": [("LRN", "opset1", {"size": HUGE, "alpha": 1, "beta": 1, "bias": 1}, {1: [1]}, 1)],
    "Pad": [("Pad", "opset1", {"pad_mode": "edge"}, {1: [HUGE] * 4, 2: [HUGE] * 4}, 1)],
    "Tile": [("Tile", "opset1", {}, {1: [HUGE] * 4}, 1)],
    "Tile of many axes": [("Tile", "opset1", {}, {1: [1] * 100_000}, 1)],
    "Broadcast": [("Broadcast", "opset3", {"mode": "bidirectional"}, {1: [HUGE, 1, 1, 1, 1]}, 1)],
    "OneHot": [
        ("Convert", "opset1", {"destination_type": "i64"}, {}, 1),
        ("OneHot", "opset1", {"axis": -1}, {1: HUGE, 2: 1.0, 3: 0.0}, 1),
    ],
    "Range": [
        ("Range", "opset4", {"output_type": "f32"}, {0: 0, 1: HUGE, 2: 1}, 1),
        ("ReduceSum", "opset1", FLAT, {1: 0}, 1),
    ],
    "Range as axes": [
        ("Range", "opset4", {"output_type": "i64"}, {0: 0, 1: HUGE, 2: 1}, 1),
        ("ReduceSum", "opset1", FLAT, {0: np.ones(3, np.float32)}, 1),
    ],
    "Eye": [("Eye", "opset9", {"output_type": "f32"}, {0: HUGE, 1: HUGE, 2: 0}, 1)],
    **{
        f"ROIPooling, {method}": [
            ("ROIPooling", "opset2",
             {"pooled_h": HUGE, "pooled_w": HUGE, "spatial_scale": 1, "method": method},
             {1: np.ones([2, 5], np.float32)}, 1),
        ]
        for method in ("max", "bilinear")
    },
    "Interpolate": [("Interpolate", "opset11", CUBE, {1: [HUGE] * 2, 2: [2, 3]}, 1)],
    "AvgPool": [("AvgPool", "opset1", {**POOL, "kernel": "99,99", "exclude-pad": "true"}, {}, 1)],
    "MaxPool": [("MaxPool", "opset8", {**POOL, "kernel": f"{HUGE},{HUGE}"}, {}, 2)],
    "MaxPool, dilated": [
        ("MaxPool", "opset8", {**POOL, "kernel": "2,2", "dilations": f"{HUGE},{HUGE}"}, {}, 2)
    ],
    "Convolution": [
        (
            "Convolution",
            "opset1",
            {"strides": "1,1", "dilations": "1,1", "pads_begin": f"{HUGE},0", "pads_end": "0,0"},
            {1: KERNEL},
            1,
        )
    ],
    "GroupConvolution": [
        (
            "GroupConvolution",
            "opset1",
            {"strides": "1,1", "dilations": "1,1"},
            {1: np.ones([HUGE, 0, 1, 1, 1], np.float32)},
            1,
        )
    ],
}  # fmt: skip


def resident(field):
    """In MiB: VmRSS what is there now, VmHWM the most since it was last reset."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(field))
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize("name", ABSURD)
def test_nothing_is_made_for_an_absurd_size_before_it_runs(tmp_path, name):
    path = chain(tmp_path, *ABSURD[name])
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets VmHWM
    before = resident("VmRSS")
    try:
        module = tf_ti.openvino.load(path)
        tf.function(module).get_concrete_function(tf.TensorSpec([2, 3, 4, 5]))
    except IRError as error:
        assert "'it'" in str(error)
    assert resident("VmHWM") - before < 256


REGIONS = np.zeros([1, 5], np.float32)
POOLED = {"pooled_h": 2, "pooled_w": 2, "spatial_scale": 1}
GROUPED = {"output_dim": 3, "spatial_scale": 1}
SCORES = np.zeros([2, 3, 3], np.float32)
PROPOSED = {"base_size": 16, "feat_stride": 16, "min_size": 1, "ratio": 1, "scale": 1}
PROPOSED |= {"pre_nms_topn": 9, "post_nms_topn": 9, "nms_thresh": 0.5}
DELTAS, SIZE = np.zeros([2, 4, 4, 5], np.float32), [60.0, 75.0, 1.0]
EXPLICIT = {"mode": "explicit"}
ISTFT = {"center": "false", "normalized": "false"}
FLAT_WINDOWS = {"strides": "1,1", "dilations": "1,1", "pads_begin": "0,0", "pads_end": "0,0"}
XNOR = {"mode": "xnor-popcount", "pad_value": 0, **FLAT_WINDOWS}
BITS = np.ones([2, 3, 1, 1], np.float32)
DEFORMED = {1: np.zeros([2, 2, 4, 5]), 2: BITS}
ROI = np.zeros([1, 5])
TURNED = {
    "pooled_h": 1, "pooled_w": 1, "sampling_ratio": 1, "spatial_scale": 1, "clockwise_mode": "true"
}  # fmt: skip
PROPOSALS = {"min_size": 1, "nms_threshold": 0.5, "pre_nms_count": 9, "post_nms_count": 9}
PLACES = {1: np.ones([1, 1, 1, 4]), 2: np.ones([1, 4, 1, 1]), 3: np.ones([1, 1, 1, 1])}
UNIFORM = {"output_type": "f32"}
PATCHES = {"sizes": "2,2", "strides": "1,1", "rates": "1,1", "auto_pad": "valid"}
WRONG = [
    ("SpaceToBatch", "opset2", {}, {1: [1, 2], 2: [0] * 4, 3: [0] * 4}, "input 1 has 2 numbers"),
    ("SpaceToBatch", "opset2", {}, {1: [1, 1, 0, 1], 2: [0] * 4, 3: [0] * 4}, "must be positive"),
    ("SpaceToBatch", "opset2", {}, {1: [1] * 4, 2: [0, 0, -1, 0], 3: [0] * 4}, "not be negative"),
    ("SpaceToBatch", "opset2", {}, {1: [1, 1, 3, 1], 2: [0] * 4, 3: [0] * 4}, "axis 2: 4 elements"),
    ("BatchToSpace", "opset2", {}, {1: [1, 1, 3, 1], 2: [0] * 4, 3: [0] * 4}, "batch of 2"),
    ("BatchToSpace", "opset2", {}, {1: [1] * 4, 2: [0, 0, 3, 0], 3: [0, 0, 2, 0]}, "axis 2: 3 and"),
    ("ShuffleChannels", "opset1", {"axis": 1, "group": 0}, {}, "group=0 must be positive"),
    ("ShuffleChannels", "opset1", {"axis": 1, "group": 2}, {}, "3 channels are no whole number"),
    ("ShuffleChannels", "opset1", {"axis": 4, "group": 1}, {}, "axis 4 is out of range"),
    (
        "ConvolutionBackpropData",
        "opset1",
        {},
        {1: np.ones([3, 2, 1, 1]), 2: [7]},
        "input 2 has 1 numbers, not 2",
    ),
    (
        "ConvolutionBackpropData",
        "opset1",
        {},
        {1: np.ones([3, 2, 1, 1]), 2: [7, 0]},
        "sizes of [7, 0], which must be positive",
    ),
    ("ReorgYolo", "opset2", {"stride": "0"}, {}, "must be positive"),
    ("ReorgYolo", "opset2", {"stride": "2"}, {}, "3 channels"),
    ("DepthToSpace", "opset1", {"mode": "blocks_first", "block_size": -1}, {}, "block_size=-1"),
    ("ExtractImagePatches", "opset3", {**PATCHES, "rates": "0,1"}, {}, "rates="),
    ("ExtractImagePatches", "opset3", {**PATCHES, "auto_pad": "full"}, {}, "auto_pad='full'"),
    ("Col2Im", "opset15", {"strides": "0,1"}, {1: [4, 5], 2: [2, 1]}, "strides=[0, 1]"),
    ("Col2Im", "opset15", {"pads_begin": "0"}, {1: [4, 5], 2: [2, 1]}, "pads_begin=[0]"),
    ("Col2Im", "opset15", {}, {1: [4, 5], 2: [2]}, "input 2 has 1 numbers, not 2"),
    ("Col2Im", "opset15", {}, {1: [4, 5], 2: [3, 1]}, "4 channels are no whole number of 3"),
    ("Bucketize", "opset3", {"with_right_bound": "perhaps"}, {1: [1.0]}, "with_right_bound="),
    ("RDFT", "opset9", {}, {1: [0, 0]}, "are not different"),
    ("RDFT", "opset9", {}, {1: [4]}, "axis 4 is out of range"),
    ("RDFT", "opset9", {}, {1: [1, 2], 2: [3]}, "does not fit the axes"),
    ("IRDFT", "opset9", {}, {1: [0], 2: [0]}, "does not fit the axes"),
    ("GatherTree", "opset1", {}, {1: [1.0], 2: [1.0], 3: 1.0}, "4 axes, not 3"),
    ("Roll", "opset7", {}, {1: [1, 2, 3], 2: [0, 1]}, "'it'"),
    ("Convert", "opset1", {"destination_type": "nf4"}, {}, "no type that is supported"),
    ("ROIPooling", "opset2", {**POOLED, "pooled_h": 0}, {1: REGIONS}, "pooled_h=0 must be"),
    ("ROIPooling", "opset2", {**POOLED, "method": "avg"}, {1: REGIONS}, "method='avg'"),
    ("ROIPooling", "opset2", {"pooled_h": 2, "pooled_w": 2}, {1: REGIONS}, "no attribute spatial"),
    ("ROIPooling", "opset2", POOLED, {1: REGIONS[:, :4]}, "'it'"),
    ("ROIPooling", "opset2", POOLED, {1: REGIONS[0]}, "ROIs 2"),
    ("PSROIPooling", "opset1", {**GROUPED, "output_dim": 2}, {1: REGIONS}, "3 channels are not 2"),
    ("PSROIPooling", "opset1", {**GROUPED, "group_size": 0}, {1: REGIONS}, "group_size=0 must"),
    ("PSROIPooling", "opset1", {**GROUPED, "mode": "max"}, {1: REGIONS}, "mode='max'"),
    (
        "PSROIPooling",
        "opset1",
        {**GROUPED, "mode": "bilinear", "spatial_bins_x": 2},
        {1: REGIONS},
        "3 channels are not 1 * 2 * 3",
    ),
    ("Proposal", "opset4", PROPOSED, {1: DELTAS, 2: SIZE}, "does not fit 1 boxes"),
    ("Proposal", "opset4", {**PROPOSED, "ratio": ""}, {1: DELTAS, 2: SIZE}, "ratio and scale"),
    ("Proposal", "opset4", {**PROPOSED, "scale": -1}, {1: DELTAS, 2: SIZE}, "ratio and scale"),
    ("Proposal", "opset1", {**PROPOSED, "base_size": 0}, {1: DELTAS, 2: SIZE}, "base_size=0 must"),
    ("Proposal", "opset1", {**PROPOSED, "framework": "x"}, {1: DELTAS, 2: SIZE}, "framework='x'"),
    ("MatrixNms", "opset8", {}, {1: SCORES}, "do not fit scores"),
    ("MatrixNms", "opset8", {}, {1: SCORES[0]}, "scores have 2 dimensions, not 3"),
    ("MulticlassNms", "opset9", {}, {1: SCORES, 2: [1, 2]}, "scores have 3 dimensions, not 2"),
    ("DFT", "opset7", {}, {1: [0], 2: [1, 2]}, "signal_size of 2 numbers"),
    ("Broadcast", "opset3", EXPLICIT, {1: [9] * 5, 2: [1, 2]}, "names 2 axes"),
    ("Broadcast", "opset3", EXPLICIT, {1: [9] * 5, 2: [0, 2, 1, 3]}, "is not in order"),
    ("AdaptiveAvgPool", "opset8", {}, {1: [1]}, "input 1 has 1 numbers, not 2"),
    ("AdaptiveMaxPool", "opset8", {}, {1: [0, 1]}, "must be positive"),
    ("AdaptiveMaxPool", "opset8", {"index_element_type": "f9"}, {1: [1, 1]}, "index_element_type="),
    ("GRN", "opset1", {}, {}, "has no attribute bias"),
    ("Inverse", "opset14", {"adjoint": "perhaps"}, {}, "adjoint="),
    ("Inverse", "opset14", {}, {}, "'it'"),
    ("GroupedMatMul", "opset17", {}, {1: np.ones([2, 4, 5])}, "4 and 3 dimensions do not fit"),
    ("ConvertPromoteTypes", "opset14", {}, {1: [1]}, "no common type that is safe"),
    ("FakeConvert", "opset13", {"destination_type": "f4e2m1"}, {1: 1.0}, "destination_type="),
    ("SegmentMax", "opset16", {"fill_mode": "MEAN"}, {1: [0, 1]}, "fill_mode="),
    ("SegmentMax", "opset16", {"fill_mode": "ZERO"}, {1: [[0, 1]]}, "2 dimensions, not 1"),
    ("SegmentMax", "opset16", {"fill_mode": "ZERO"}, {1: [0, 1, 2]}, "'it'"),
    ("ISTFT", "opset16", ISTFT, {1: [1.0] * 8, 2: 4, 3: 0}, "both must be positive"),
    ("ISTFT", "opset16", ISTFT, {1: [1.0] * 8, 2: 4, 3: 2}, "is longer than frames of 4"),
    ("SparseFillEmptyRows", "opset16", {}, {0: [1.0], 1: [2, 2], 2: [[5, 0]], 3: 0.0}, "'it'"),
    ("CTCLoss", "opset4", {}, {1: [1], 2: [[1]], 3: [1]}, "4 dimensions, not 3"),
    ("BinaryConvolution", "opset1", {"mode": "and", **FLAT_WINDOWS}, {1: BITS}, "mode='and'"),
    ("BinaryConvolution", "opset1", {**XNOR, "strides": "0,1"}, {1: BITS}, "strides="),
    ("BinaryConvolution", "opset1", XNOR, {1: BITS}, "3 channels, which must be"),
    ("BinaryConvolution", "opset1", XNOR, {1: BITS[0]}, "2 are supported"),
    ("DeformableConvolution", "opset1", {"group": 2}, DEFORMED, "group=2 does not divide 3"),
    ("DeformableConvolution", "opset1", {"deformable_group": 0}, DEFORMED, "deformable_group=0"),
    ("DeformableConvolution", "opset8", {"deformable_group": 3}, DEFORMED, "2 channels, not 6"),
    ("DeformableConvolution", "opset8", {"strides": "2,1"}, DEFORMED, "offsets"),
    ("DeformablePSROIPooling", "opset1", {"output_dim": 0}, {1: ROI}, "output_dim=0"),
    ("DeformablePSROIPooling", "opset1", {"output_dim": 2}, {1: ROI}, "3 channels are not 2"),
    (
        "DeformablePSROIPooling",
        "opset1",
        {"output_dim": 3, "mode": "flat"},
        {1: ROI},
        "mode='flat'",
    ),
    (
        "DeformablePSROIPooling",
        "opset1",
        {"output_dim": 3, "spatial_scale": 1},
        {1: ROI, 2: np.ones([1, 4, 1, 1])},
        "do not fit 3 classes",
    ),
    ("ROIAlignRotated", "opset15", {**TURNED, "pooled_h": 0}, {1: ROI, 2: [0]}, "pooled_h=0"),
    ("ROIAlignRotated", "opset15", {**TURNED, "sampling_ratio": -1}, {1: ROI, 2: [0]}, "ratio=-1"),
    ("ROIAlignRotated", "opset15", TURNED, {1: ROI[0], 2: [0]}, "ROIs 2"),
    ("GenerateProposals", "opset9", PROPOSALS, PLACES, "2, 4, 4 and 4 dimensions"),
    ("GenerateProposals", "opset9", PROPOSALS, {0: [[9.0] * 5], **PLACES}, "3 or 4 numbers"),
    (
        "GenerateProposals",
        "opset9",
        {**PROPOSALS, "nms_eta": 0.5},
        {0: [[9.0] * 3], **PLACES},
        "nms_eta=0.5",
    ),
    (
        "GenerateProposals",
        "opset9",
        {**PROPOSALS, "pre_nms_count": 0},
        {0: [[9.0] * 3], **PLACES},
        "pre_nms_count=0",
    ),
    ("RandomUniform", "opset8", UNIFORM, {0: [2], 1: 1.0, 2: 1.0}, "no numbers from 1.0 to 1.0"),
    ("RandomUniform", "opset8", {"alignment": "numpy"}, {0: [2], 1: 0.0, 2: 1.0}, "alignment="),
    ("Multinomial", "opset13", {"convert_type": "i64"}, {1: [1]}, "4 dimensions, not 2"),
]
BOXED = [
    ("MatrixNms", {"nms_top_k": -2}, SCORES, "nms_top_k=-2 must not"),
    ("MatrixNms", {"decay_function": "cubic"}, SCORES, "decay_function='cubic'"),
    ("MatrixNms", {"sort_result_type": "class"}, SCORES, "sort_result_type='class'"),
    ("MulticlassNms", {"keep_top_k": -2}, SCORES, "keep_top_k=-2 must not"),
    ("MulticlassNms", {"background_class": -2}, SCORES, "background_class=-2 must not"),
    ("MulticlassNms", {"nms_eta": 1.5}, SCORES, "nms_eta=1.5 must be"),
    ("MulticlassNms", {"output_type": "i31"}, SCORES, "output_type='i31'"),
    ("NonMaxSuppression", {}, SCORES[:, :, :2], "'it'"),
    ("NonMaxSuppression", {}, SCORES[:1], "'it'"),
    ("NMSRotated", {}, SCORES, "'it'"),
]


@pytest.mark.parametrize(
    ("kind", "version", "attributes", "constants", "words"),
    WRONG,
    ids=[f"{case[0]}-{case[-1]}" for case in WRONG],
)
def test_wrong_layers_are_named(tmp_path, kind, version, attributes, constants, words):
    path = chain(tmp_path, (kind, version, attributes, constants, 1))
    with pytest.raises(IRError) as caught:
        tf_ti.openvino.load(path)
    assert f"{kind} 'it'" in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(("kind", "attributes", "scores", "words"), BOXED)
def test_wrong_selections_of_boxes_are_named(tmp_path, kind, attributes, scores, words):
    layer = kind, "opset13", attributes, {1: scores}, 3
    with pytest.raises(IRError) as caught:
        tf_ti.openvino.load(chain(tmp_path, layer, shape=(2, 3, 4)))
    assert f"{kind} 'it'" in str(caught.value) and words in str(caught.value)


def test_the_size_of_an_image_is_positive(tmp_path):
    layer = "Proposal", "opset4", PROPOSED, {1: DELTAS, 2: [60.0, 0.0, 1.0]}, 2
    path = chain(tmp_path, layer, shape=(2, 2, 4, 5))
    with pytest.raises((IRError, tf.errors.InvalidArgumentError), match="height and the width"):
        tf_ti.openvino.load(path)(np.zeros([2, 2, 4, 5], np.float32))


def test_mutated_files_give_expected_errors_alone():
    pytest.importorskip("openvino")
    program = os.path.join(os.path.dirname(__file__), "openvino_fuzz.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([p for p in sys.path if p])}
    finished = subprocess.run(
        [sys.executable, "-X", "faulthandler", program, "100"],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=environment,
    )
    assert finished.returncode == 0, finished.stdout[-6000:] + finished.stderr[-2000:]


PRIORS = {
    "many boxes": ("density", "1e5", "more than 65536 boxes of a cell"),
    "negative density": ("density", "-1", "must be positive"),
    "infinite density": ("density", "1e999", "density"),
    "infinite size": ("min_size", "1e999", "min_size"),
    "negative size": ("min_size", "-1", "must not be negative"),
    "negative ratio": ("aspect_ratio", "-2", "must be positive"),
    "ratio of zero": ("aspect_ratio", "0", "must be positive"),
}


@pytest.mark.parametrize("name", PRIORS)
def test_boxes_that_cannot_be_are_refused(tmp_path, name):
    ov = pytest.importorskip("openvino")
    attribute, value, message = PRIORS[name]
    lists = {"min_size": [9.0], "fixed_size": [16.0], "density": [2.0], "aspect_ratio": [2.0]}
    given = {"offset": 0.5, "variance": [0.1], "flip": True, **lists}
    sizes = [ov.opset8.parameter([2], np.int64) for _ in range(2)]
    path = tmp_path / "model.xml"
    ov.save_model(ov.Model([ov.opset8.prior_box(*sizes, given)], sizes), path)
    path.write_text(re.sub(f' {attribute}="[^"]*"', f' {attribute}="{value}"', path.read_text()))
    with pytest.raises(IRError, match=message):
        tf_ti.openvino.load(path)
