"""Loads mutated IR files: whatever they say, the error must be one that a caller may expect.

python openvino_fuzz.py [COUNT] [FIRST_SEED]
"""

import copy
import os
import re
import signal
import sys
import tempfile
import traceback
from xml.etree import ElementTree

import numpy as np
import openvino as ov
import openvino_models
import tensorflow as tf

import tf_ti.openvino

EXPECTED = (ValueError, TypeError, tf.errors.OpError)  # an IRError is a ValueError
_SECONDS = 60  # a mutated file may not take longer
_NUMBERS = ["-1", "0", "1", "2", "3", "7", "255", "100000", str(2**31), str(2**60), str(2**63)]
_WORDS = ["", "x", "1.5", "nan", "1,2", "?", "...", "-1..3", "\u0436", "x" * 5000, "FP16", "i64"]
_LARGEST = 1 << 20  # numbers in an input


def elementwise():
    """Arithmetic, shapes and a convolution."""
    op = ov.opset15
    x = op.parameter([1, 2, 6, 6], np.float32, name="x")
    kernel = op.constant(np.ones([3, 2, 3, 3], np.float32))
    y = op.relu(op.convolution(x, kernel, [1, 1], [1, 1], [1, 1], [1, 1]))
    y = op.add(y, op.constant(np.ones([1, 3, 1, 1], np.float32)))
    y = op.reshape(y, op.constant(np.array([0, -1], np.int64)), True)
    y = op.matmul(y, op.constant(np.ones([108, 5], np.float32)), False, False)
    y = op.softmax(op.concat([y, y], 1), 1)
    return ov.Model([op.result(op.reduce_sum(y, op.constant(np.array([1], np.int64)), True))], [x])


def iterator():
    """A TensorIterator with slices, a state and two outputs."""
    op = ov.opset15
    piece, state = (op.parameter([2, 1, 3], np.float32) for _ in range(2))
    total = op.tanh(op.add(piece, state))
    last, each = op.result(total), op.result(total)
    body = ov.Model([last, each], [piece, state], "body")
    x = op.parameter([2, 4, 3], np.float32, name="x")
    h = op.parameter([2, 1, 3], np.float32, name="h")
    loop = op.tensor_iterator()
    loop.set_body(body)
    loop.set_sliced_input(piece, x.output(0), 0, 1, 1, -1, 1)
    loop.set_merged_input(state, h.output(0), last.output(0))
    outputs = [loop.get_iter_value(last.output(0), -1)]
    outputs.append(loop.get_concatenated_slices(each.output(0), 0, 1, 1, -1, 1))
    return ov.Model([op.result(value) for value in outputs], [x, h])


def loop():
    """A Loop whose trip count is a constant, and that counts."""
    op = ov.opset15
    number = op.parameter([], np.int64)
    state = op.parameter([3], np.float32)
    value = op.result(op.add(state, op.convert(number, "f32")))
    condition = op.result(op.constant(np.array(True)))
    body = ov.Model([condition, value], [number, state], "body")
    x = op.parameter([3], np.float32, name="x")
    node = op.loop(op.constant(np.array(4, np.int64)), op.constant(np.array(True)))
    node.set_function(body)
    node.set_special_body_ports([0, 0])
    node.set_merged_input(state, x.output(0), value.output(0))
    return ov.Model([op.result(node.get_iter_value(value.output(0), -1))], [x])


def branches():
    """An If."""
    op = ov.opset15
    condition = op.parameter([], np.bool_, name="condition")
    x = op.parameter([3], np.float32, name="x")
    a, b = (op.parameter([3], np.float32) for _ in range(2))
    then, other = op.result(op.exp(a)), op.result(op.negative(b))
    node = op.if_op(condition.output(0))
    node.set_then_body(ov.Model([then], [a]))
    node.set_else_body(ov.Model([other], [b]))
    node.set_input(x.output(0), a, b)
    return ov.Model([op.result(node.set_output(then, other))], [condition, x])


def sequence():
    """An LSTMSequence."""
    op = ov.opset15
    rng = np.random.default_rng(0)
    x = op.parameter([2, 4, 3], np.float32, name="x")
    states = [op.constant(np.zeros([2, 1, 5], np.float32)) for _ in range(2)]
    weights = [rng.standard_normal(s).astype(np.float32) for s in ([1, 20, 3], [1, 20, 5], [1, 20])]
    lengths = op.constant(np.array([4, 4], np.int32))
    node = op.lstm_sequence(x, *states, lengths, *map(op.constant, weights), 5, "forward")
    return ov.Model([op.result(output) for output in node.outputs()], [x])


MODELS = (elementwise, iterator, loop, branches, sequence)


def save_models(folder):
    """The .xml files, as texts, and their .bin files."""
    found = []
    for make in MODELS:
        path = os.path.join(folder, f"{make.__name__}.xml")
        openvino_models.save(make(), path)
        with open(path, "rb") as text, open(path[:-3] + "bin", "rb") as weights:
            found.append((text.read(), weights.read()))
    return found


def _mutate_bytes(rng, data):
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(data) + 1))
        kind = rng.integers(4)
        if kind == 0:
            data[at : at + 1] = rng.bytes(1)
        elif kind == 1:
            del data[at : at + int(rng.integers(1, 50))]
        elif kind == 2:
            data[at:at] = data[: int(rng.integers(100))]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def _mutate_number(rng, data):
    """Another number in the place of one of the text's."""
    places = list(re.finditer(rb"[0-9]+", data))
    place = places[int(rng.integers(len(places)))]
    return data[: place.start()] + str(rng.choice(_NUMBERS)).encode() + data[place.end() :]


def _mutate_tree(rng, data):
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return data
    elements = list(root.iter())
    parents = [element for element in elements if len(element)]
    parent = parents[int(rng.integers(len(parents)))]
    at = int(rng.integers(len(parent)))
    element = elements[int(rng.integers(len(elements)))]
    kind = rng.integers(6)
    if kind == 0:
        del parent[at]
    elif kind == 1:
        parent.insert(at, copy.deepcopy(parent[at]))
    elif kind == 2 and element is not root:
        parent.insert(at, copy.deepcopy(element))
    elif kind == 3 and element.attrib:
        del element.attrib[str(rng.choice(list(element.attrib)))]
    elif element.attrib:
        values = [value for each in elements for value in each.attrib.values()]
        values = [*_NUMBERS, *_WORDS] if kind == 4 else values
        name = str(rng.choice(list(element.attrib)))
        element.set(name, values[int(rng.integers(len(values)))])
    return ElementTree.tostring(root, encoding="utf-8")


def _mutate(rng, text, weights):
    for _ in range(rng.integers(1, 4)):
        kind = rng.random()
        if kind < 0.15:
            text = _mutate_bytes(rng, text)
        elif kind < 0.5:
            text = _mutate_number(rng, text) if re.search(rb"[0-9]", text) else text
        elif kind < 0.93:
            text = _mutate_tree(rng, text)
        else:
            weights = _mutate_bytes(rng, weights)
    return text, weights


def _may_be_endless(module):
    """True if a number may be that of a loop's iterations, more than can be waited for."""
    numbers = [value for value in module.constants.values.values() if value.dtype.kind in "iu"]
    return any(np.any(np.abs(value.astype(np.float64)) > 1e5) for value in numbers)


def _call(rng, module):
    if _may_be_endless(module):
        return
    arrays = []
    for info in module.inputs:
        rank = 2 if info.shape.rank is None else info.shape.rank
        shape = [2 if n is None else n for n in (info.shape if info.shape.rank else [None] * rank)]
        if rank > 32 or np.prod([float(n) for n in shape]) > _LARGEST:
            return
        numbers = rng.integers(0, 2, shape) if info.dtype.is_bool else rng.integers(0, 4, shape)
        arrays.append(tf.constant(numbers.astype(info.dtype.as_numpy_dtype)))
    module(*arrays)


def _too_slow(*_):
    raise RuntimeError(f"a mutated file takes more than {_SECONDS} s")


def attempt(models, seed, folder):
    """One mutation: "loads", "runs", or the name of the error, which is an expected one."""
    rng = np.random.default_rng(seed)
    text, weights = _mutate(rng, *models[int(rng.integers(len(models)))])
    path = os.path.join(folder, "mutated.xml")
    for name, data in (path, text), (path[:-3] + "bin", weights):
        with open(name, "wb") as file:
            file.write(data)
    signal.alarm(_SECONDS)
    try:
        module = tf_ti.openvino.load(path, trainable=bool(seed % 2))
    except tf_ti.openvino.IRError as error:
        assert path in str(error) or path[:-3] + "bin" in str(error), error
        return "refused"
    finally:
        signal.alarm(0)
    signal.alarm(_SECONDS)
    try:
        _call(rng, module)
    except EXPECTED as error:
        return f"loads, {type(error).__name__}"
    finally:
        signal.alarm(0)
    return "runs"


def main(count=200, first=0):
    signal.signal(signal.SIGALRM, _too_slow)
    outcomes, failed = {}, 0
    with tempfile.TemporaryDirectory() as folder:
        models = save_models(folder)
        for seed in range(first, first + count):
            print(seed, file=sys.stderr, flush=True)  # a crash leaves the number
            try:
                outcome = attempt(models, seed, folder)
            except Exception:
                traceback.print_exc(file=sys.stdout)
                print(f"seed {seed} fails", flush=True)
                failed += 1
                continue
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(f"{count} mutations, {failed} failures: {outcomes}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
