"""How much memory `tf_ti.openvino.load` takes, and what it still has to do with the file."""

import copy
import importlib
import pickle

import numpy as np
import pytest
import tensorflow as tf
from patience import measures_memory

import tf_ti.openvino

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")

MEMORY = """
import re, sys
import numpy as np, tensorflow as tf, tf_ti.openvino

def megabytes(file, name):
    return int(re.search(name + r":\\s+(\\d+) kB", open(file).read())[1]) / 1024

def anonymous():
    return megabytes("/proc/self/smaps_rollup", "Anonymous")

def most_resident():
    return megabytes("/proc/self/status", "VmHWM")

def load():
    return tf_ti.openvino.load(sys.argv[1], trainable=sys.argv[2] == "variables")

path, sys.argv[1] = sys.argv[1], sys.argv[3]
load()(np.zeros([1, 4], np.float32))  # what TensorFlow does once
sys.argv[1] = path
"""
KINDS = ["constants", "variables"]


def product(path, inputs, units, compress=False, layers=1):
    """x @ w, some times."""
    op, rng = ov.opset15, np.random.default_rng(0)
    ws = [
        rng.standard_normal([inputs if i == 0 else units, units], np.float32) for i in range(layers)
    ]
    x = y = op.parameter([-1, inputs], np.float32, name="x")
    for w in ws:
        y = op.matmul(y, op.constant(w), False, False)
    ov.save_model(ov.Model([op.result(y)], [x], "product"), path, compress_to_fp16=compress)
    return path, ws


@measures_memory
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "compress"), [("constants", False), ("constants", True), ("variables", False)]
)
def test_loading_takes_one_copy_of_the_weights(tmp_path, run_program, kind, compress):
    path, _ = product(tmp_path / "m.xml", 4096, 4096, compress)  # 64 MiB in float32
    small, _ = product(tmp_path / "small.xml", 4, 300, compress)
    in_file = 32 if compress else 64
    program = f"""
before, most = anonymous(), most_resident()
module = load()
grown = anonymous() - before
assert 60 < grown < 68, grown
# Beside the copy there are the pages of the file, which are nobody's own.
peak = most_resident() - most
assert peak < 64 + {in_file} + 8, peak
module(np.zeros([1, 4096], np.float32))
assert anonymous() - before < 80
"""
    run_program(MEMORY + program, path, kind, small)


@measures_memory
def test_a_model_that_is_gone_leaves_nothing(tmp_path, run_program):
    path, _ = product(tmp_path / "m.xml", 2048, 2048)  # 16 MiB
    small, _ = product(tmp_path / "small.xml", 4, 300)
    program = """
import gc
before = anonymous()
for _ in range(3):
    load()
    gc.collect()
assert anonymous() - before < 40  # the allocator may keep what one took
"""
    run_program(MEMORY + program, path, "constants", small)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("units", [300, 512])  # the second one's memory is TensorFlow's to take
def test_what_was_loaded_stays_as_the_file_changes(tmp_path, kind, units):
    path, ws = product(tmp_path / "m.xml", 4, units, layers=2)
    module = tf_ti.openvino.load(path, trainable=kind == "variables")
    with open(path.with_suffix(".bin"), "r+b") as file:  # in place: what is mapped changes too
        file.write(b"\0" * path.with_suffix(".bin").stat().st_size)
    np.testing.assert_allclose(module(np.eye(4))[0], ws[0] @ ws[1], rtol=1e-4, atol=1e-3)


def test_variables_change_one_by_one(tmp_path):
    path, ws = product(tmp_path / "m.xml", 4, 300, layers=2)
    module, other = (tf_ti.openvino.load(path, trainable=True) for _ in range(2))
    first = next(v for v in module.variables if v.shape[0] == 4)
    before = tf.identity(first)
    first.assign_add(tf.ones_like(first))
    np.testing.assert_array_equal(before, ws[0])
    np.testing.assert_array_equal(first, ws[0] + 1)
    np.testing.assert_allclose(module(np.eye(4))[0], (ws[0] + 1) @ ws[1], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(other(np.eye(4))[0], ws[0] @ ws[1], rtol=1e-4, atol=1e-3)


# As files write them, and as NumPy does: the library of some is not NumPy's.
@pytest.mark.parametrize("name", ["boolean", "bf16", "f16", "f32", "f64", "f8e4m3", "f8e5m2",
                                  "i4", "i8", "i16", "i32", "i64", "nf4", "u1", "u2", "u3", "u4",
                                  "u6", "u8", "u16", "u32", "u64"])  # fmt: skip
def test_a_large_constant_of_each_type_is_read(tmp_path, name):
    kind = tf_ti.openvino.element_types.ELEMENT_TYPES[name]
    count = 4096
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, kind.num_bytes(count), np.uint8)
    (tmp_path / "m.bin").write_bytes(b"123" + data.tobytes())
    dims = f"<dim>2</dim><dim>{count // 2}</dim>"
    port = f'<port id="0" precision="{name.upper()}">{dims}</port>'
    (tmp_path / "m.xml").write_text(
        '<net name="m" version="11"><layers><layer id="0" name="c" type="Const" version="opset1">'
        f'<data element_type="{name}" shape="2,{count // 2}" offset="3" size="{len(data)}"/>'
        f'<output>{port}</output></layer><layer id="1" name="r" type="Result" version="opset1">'
        f'<input>{port}</input></layer></layers><edges><edge from-layer="0" from-port="0" '
        'to-layer="1" to-port="0"/></edges></net>'
    )
    (got,) = tf_ti.openvino.load(tmp_path / "m.xml")()
    expected = kind.unpack(data, count).reshape(2, count // 2)
    assert got.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("count", [1, 2])
def test_explain_knows_the_inputs_of_a_model(tmp_path, count):
    def call(*inputs):
        return tf_ti.scan(lambda c, x: (c + x, c), inputs[-1][0], inputs[0])

    specs = [tf.TensorSpec([4, 2], name=name) for name in ("x", "h")[:count]]
    tf_ti.openvino.save(call, tmp_path / "model.xml", specs)
    model = tf_ti.openvino.load(tmp_path / "model.xml")
    text = str(tf_ti.explain(model))
    assert "runs as" in text
    assert text == str(tf_ti.explain(model, *[each.spec for each in model.inputs]))


def with_state(path):
    op, rng = ov.opset15, np.random.default_rng(0)
    info = importlib.import_module("openvino.op.util").VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([-1, 300]), ov.Type.f32, "h"
    state = importlib.import_module("openvino.op.util").Variable(info)
    x = op.parameter([-1, 3], np.float32, name="x")
    y = op.matmul(x, op.constant(rng.standard_normal([3, 300], np.float32)), False, False)
    total = op.add(op.read_value(y, state), y)
    model = ov.Model([op.result(total)], [op.assign(total, state)], [x])
    ov.save_model(model, path, compress_to_fp16=False)
    return path


COPIES = {"copy": copy.deepcopy, "pickle": lambda module: pickle.loads(pickle.dumps(module))}


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("kind", COPIES)
def test_a_copy_has_variables_and_states_of_its_own(tmp_path, kind, trainable):
    module = tf_ti.openvino.load(with_state(tmp_path / "m.xml"), trainable=trainable)
    x = np.ones([2, 3], np.float32)
    (first,) = module(x)
    other = COPIES[kind](module)
    assert repr(other) == repr(module)
    np.testing.assert_allclose(other(x)[0], first * 1.5, rtol=1e-5)
    other.reset_state()
    assert other(np.ones([4, 3], np.float32))[0].shape == [4, 300]
    assert len(other.trainable_variables) == len(module.trainable_variables) == int(trainable)
    for variable in other.trainable_variables:
        variable.assign(tf.zeros_like(variable))
    np.testing.assert_allclose(module(x)[0], first * 1.5, rtol=1e-5)  # as if alone


def test_a_copy_has_what_a_user_set(tmp_path):
    module = tf_ti.openvino.load(with_state(tmp_path / "m.xml"), trainable=True)
    module.scale, module.words = tf.Variable(3.0), ["a", "b"]
    tf.train.Checkpoint(module=module).save(tmp_path / "checkpoint")
    other = copy.deepcopy(module)
    other.scale.assign(4.0)
    assert (module.scale.numpy(), other.scale.numpy(), list(other.words)) == (3.0, 4.0, ["a", "b"])
    assert len(other.trainable_variables) == len(module.trainable_variables) == 2
