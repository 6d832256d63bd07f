"""Saves the models that openvino_fuzz.py mutates: python openvino_fuzz_models.py FOLDER."""

import os
import sys

import numpy as np
import openvino as ov
import openvino_models


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


if __name__ == "__main__":
    for make in MODELS:
        openvino_models.save(make(), os.path.join(sys.argv[1], f"{make.__name__}.xml"))
