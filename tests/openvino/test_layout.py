"""Where `tf_ti.openvino.load` puts channels: last from one convolution to the next."""

import importlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tf_ti.openvino
from tf_ti.openvino import IRError

ov = pytest.importorskip("openvino")
openvino_models = importlib.import_module("openvino_models")
o = ov.opset15


def randoms(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


X = randoms(2, 4, 9, 8)


def convolved(x, size=3):
    w = randoms(4, 4, size, size) * 0.3
    return o.convolution(x, o.constant(w), [1, 1], [size // 2] * 2, [size // 2] * 2, [1, 1])


def check(function, arrays, folder, dynamic=False, constants=()):
    """Compares with OpenVINO; returns what operations there are."""
    model = openvino_models.make(function, *arrays, dynamic=dynamic, constants=constants)
    path = openvino_models.save(model, str(folder / "model.xml"))
    given = [array for i, array in enumerate(arrays) if i not in constants]
    module = tf_ti.openvino.load(path)
    for value, right in zip(module(*given), openvino_models.run(path, given), strict=True):
        np.testing.assert_allclose(value, right, 1e-4, 1e-4)
    specs = [tf.TensorSpec(info.shape, info.dtype) for info in module.inputs]
    graph = tf.function(lambda *x: module(*x)).get_concrete_function(*specs).graph
    return [operation for operation in graph.get_operations() if operation.type != "Const"]


def transposes(operations):
    """Those between layers: those of filters have the names of theirs."""
    return [op for op in operations if op.type == "Transpose" and "/" not in op.name]


def block(x):
    """Layers of all kinds that have channels last."""
    y = o.relu(o.add(convolved(x), o.constant(randoms(1, 4, 1, 1))))
    y = o.group_convolution(y, o.constant(randoms(4, 1, 1, 3, 3)), [1, 1], [1, 1], [1, 1], [1, 1])
    y = o.multiply(o.swish(y), o.sigmoid(convolved(y, 1)))
    y = o.max_pool(y, [1, 1], [1, 1], [1, 1], [1, 1], [3, 3]).output(0)
    y = o.add(convolved(o.clamp(y, 0.0, 6.0)), convolved(x))
    y = o.concat([y, o.avg_pool(y, [1, 1], [1, 1], [1, 1], [3, 3], True)], 1)
    return o.convolution(y, o.constant(randoms(4, 8, 1, 1)), [1, 1], [0, 0], [0, 0], [1, 1])


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_channels_stay_last(dynamic, tmp_path):
    def chain(x):
        return [block(block(x))]

    found = transposes(check(chain, [X], tmp_path, dynamic))
    # Of the input, for each of the two convolutions that read it, and of the output.
    assert len(found) == 3


SHAPES = [
    (), (1,), (8,), (9, 1), (9, 8), (4, 1, 1), (4, 9, 8), (1, 4, 1, 1), (2, 4, 1, 1), (2, 1, 9, 8),
    (1, 1, 1, 1), (2, 4, 9, 8), (3, 1, 4, 1, 1), (3, 2, 4, 9, 8),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["constant", "computed", "dynamic"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_operands_beside_channels(shape, kind, tmp_path):
    def run(x, y):
        z = o.subtract(o.multiply(convolved(x), y), o.maximum(y, convolved(x)))
        return [z] if len(shape) == 5 else [convolved(o.relu(z)), z]

    y = np.asarray(randoms(*shape), np.float32)
    constants = (1,) if kind == "constant" else ()
    check(run, [X, y], tmp_path, kind == "dynamic", constants)


def test_layers_that_have_channels_second_or_an_axis(tmp_path):
    def run(x):
        y = convolved(x)
        slope, alpha = o.constant(randoms(4)), o.constant(np.float32(0.5))
        low, high = o.constant(randoms(1, 4, 1, 1)), o.constant(abs(randoms(1, 4, 1, 1)) + 1)
        return [
            y,
            *(convolved(o.concat([y, y], axis)) for axis in (0, 2, 3, -2)),
            o.concat([y, convolved(x)], -3),
            o.concat([y, x], 1),
            convolved(o.prelu(y, slope)),
            convolved(o.fake_quantize(y, low, high, low, high, 16)),
            convolved(o.selu(o.hard_sigmoid(y, alpha, alpha), alpha, alpha)),
            o.reduce_mean(o.exp(y), o.constant(np.int64([2, 3])), False),
            o.softmax(y, 1),
            *o.max_pool(y, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2]).outputs(),
            *o.split(y, o.constant(1), 2).outputs(),
        ]

    check(run, [X], tmp_path)
    check(run, [X], tmp_path, dynamic=True)


def i64(*numbers):
    return o.constant(np.asarray(numbers, np.int64))


def transposed(x, *order):
    return o.transpose(x, i64(*order))


AXES = [(1,), (2,), (3,), (-1,), (2, 3), (1, 2, 3), (1, 3), (0,), (0, 2), (0, 1, 2, 3)]
# Layers that name axes.
BY_AXES = {
    **{
        f"{name}-{keeps}-{axes}": lambda y, name=name, axes=axes, keeps=keeps: getattr(o, name)(
            y, i64(*axes), keeps
        )
        for name in ("reduce_mean", "reduce_max", "reduce_l2")
        for keeps in (True, False)
        for axes in AXES
    },
    **{
        f"{name}-{axis}": lambda y, name=name, axis=axis: getattr(o, name)(y, axis)
        for name in ("softmax", "log_softmax")
        for axis in (-4, -3, -2, -1, 0, 1, 2, 3)
    },
    **{
        f"unsqueeze-{axes}": lambda y, axes=axes: o.unsqueeze(y, i64(*axes))
        for axes in ((0,), (1,), (2,), (3,), (4,), (-1,), (-2,), (2, 4), (1, 5), (0, -1))
    },
    **{
        f"squeeze-{axes}": lambda y, axes=axes: o.squeeze(
            o.reduce_max(y, i64(*(axes or (2, 3))), True), i64(*axes)
        )
        for axes in ((1,), (2,), (3,), (-1,), (2, 3), (1, 2, 3), (0,), (0, 2))
    },
    **{
        f"transpose-{order}": lambda y, order=order: transposed(y, *order)
        for order in ((0, 2, 3, 1), (0, 3, 1, 2), (0, 1, 3, 2), (3, 2, 1, 0), (0, 1, 2, 3))
    },
    **{
        f"pad-{mode}": lambda y, mode=mode: o.pad(
            y, i64(0, 1, -1, 2), i64(1, 0, 2, -2), mode, o.constant(np.float32(0.5))
        )
        for mode in ("constant", "edge", "reflect", "symmetric")
    },
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("form", BY_AXES)
def test_layers_that_have_axes(form, dynamic, tmp_path):
    def run(x):
        y = BY_AXES[form](convolved(x))
        return [y, o.relu(o.add(y, o.constant(np.float32(0.25))))]

    check(run, [X], tmp_path, dynamic)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_channels_stay_last_where_axes_are_known(dynamic, tmp_path):
    def run(x):
        y = convolved(transposed(x, 0, 3, 1, 2))
        y = o.multiply(y, o.sigmoid(o.reduce_mean(y, i64(2, 3), True)))
        y = o.pad(y, i64(0, 0, 1, 1), i64(0, 0, 1, 1), "edge")
        y = convolved(o.squeeze(o.unsqueeze(o.softmax(y, 1), i64(2)), i64(2)))
        y = o.log_softmax(y, -3)
        return [o.reduce_max(y, i64(2, -1), False), transposed(y, 0, 2, 3, 1)]

    assert not transposes(check(run, [X.transpose(0, 2, 3, 1).copy()], tmp_path, dynamic))


@pytest.mark.parametrize("axes", [(2, 3, -2), (-1, 3), (1, 1)])
@pytest.mark.parametrize("keeps", [True, False])
def test_axes_that_are_named_twice(axes, keeps, tmp_path):
    check(lambda x: [o.reduce_sum(y, i64(*axes), keeps) for y in (x, convolved(x))], [X], tmp_path)


@pytest.mark.parametrize("axis", [0, 2, 5])
def test_softmax_of_many_axes(axis, tmp_path):
    check(lambda x: [o.softmax(x, axis)], [randoms(2, 3, 1, 4, 2, 3)], tmp_path)


@pytest.mark.parametrize("axis", [2, 3, 4])
def test_reductions_after_convolutions_of_few_elements(axis, tmp_path):
    """TensorFlow infers the shape of a padded Conv3D without its pads."""

    def run(x):
        w = o.constant(randoms(4, 4, 3, 3, 3) * 0.3)
        y = o.convolution(x, w, [1] * 3, [1] * 3, [1] * 3, [1] * 3)
        return [o.reduce_mean(y, i64(axis), True), o.subtract(y, o.reduce_max(y, i64(axis), True))]

    check(run, [randoms(2, 4, *(3 if k == axis else 5 for k in (2, 3, 4)))], tmp_path)


def test_rows_of_a_convolution_of_two_spatial_axes(tmp_path):
    """Of one axis, as Keras writes it."""

    def run(x):
        y = transposed(x, 0, 2, 1)
        for k in range(3):
            w = o.constant(randoms(4, 4, 1, 3, seed=k))
            y = o.unsqueeze(y, i64(2))
            y = o.convolution(y, w, [1, 1], [0, 2**k], [0, 2**k], [1, 2**k])
            y = o.elu(o.squeeze(y, i64(2)), 1.0 + k)
        return [transposed(y, 0, 2, 1)]

    assert not transposes(check(run, [randoms(2, 9, 4)], tmp_path))


def test_other_numbers_of_axes(tmp_path):
    def rows(x):
        w = o.constant(randoms(4, 4, 3))
        y = o.relu(o.convolution(x, w, [1], [1], [1], [1]))
        y = o.max_pool(o.add(y, x), [1], [1], [0], [0], [2]).output(0)
        return [o.convolution_backprop_data(y, w, [2])]

    def volumes(x):  # no transposed convolution: OpenVINO's is wrong after another one
        w = randoms(4, 4, 3, 3, 3) * 0.3
        y = o.tanh(o.convolution(x, o.constant(w), [1] * 3, [1] * 3, [1] * 3, [1] * 3))
        return [o.avg_pool(o.add(y, x), [2] * 3, [0] * 3, [0] * 3, [2] * 3, True)]

    for run, x in (rows, randoms(2, 4, 9)), (volumes, randoms(1, 4, 4, 6, 4)):
        assert len(transposes(check(run, [x], tmp_path))) == 3


def test_values_of_channels_in_a_branch_and_after_it(tmp_path):
    def run(x, p):
        y = o.relu(convolved(x))
        bodies, results = [], []
        for scale in (1.0, 2.0):
            inner = o.parameter([2, 4, 9, 8], np.float32)
            result = o.result(convolved(o.multiply(inner, o.constant(np.float32(scale)))))
            bodies.append((ov.Model([result], [inner], "body"), inner))
            results.append(result)
        branch = o.if_op(p)
        branch.set_then_body(bodies[0][0])
        branch.set_else_body(bodies[1][0])
        branch.set_input(y.output(0), bodies[0][1], bodies[1][1])
        return [convolved(branch.set_output(*results)), convolved(y)]

    check(run, [X, np.array(True)], tmp_path)
    check(run, [X, np.array(False)], tmp_path)


def test_gradients_through_layers_with_channels_last(tmp_path):
    """Along a random direction, as a difference of values."""

    def run(x):
        y = o.swish(o.add(convolved(x), o.constant(randoms(1, 4, 1, 1))))
        w = o.constant(randoms(4, 1, 1, 3, 3))
        y = o.tanh(o.group_convolution(y, w, [2, 1], [1, 1], [1, 1], [1, 1]))
        y = o.concat([y, o.avg_pool(y, [1, 1], [1, 1], [1, 1], [3, 3], True)], 1)
        return [o.convolution_backprop_data(y, o.constant(randoms(8, 4, 3, 3)), [2, 2])]

    path = str(tmp_path / "model.xml")
    openvino_models.save(openvino_models.make(run, X), path)
    module = tf_ti.openvino.load(path, trainable=True)
    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.sin(module(x)[0]))
    variables = [x, *module.trainable_variables]
    gradients = tape.gradient(total, variables)
    directions = [randoms(*v.shape, seed=1) for v in variables]
    slope = sum(float(tf.reduce_sum(g * d)) for g, d in zip(gradients, directions))
    totals = []
    for step in (1e-3, -2e-3):
        for variable, direction in zip(variables, directions):
            variable.assign_add(step * direction)
        totals.append(float(tf.reduce_sum(tf.sin(module(x)[0]))))
    np.testing.assert_allclose((totals[0] - totals[1]) / 2e-3, slope, 5e-2)


def test_a_wrong_shape_is_told_with_channels_second(tmp_path):
    path = tmp_path / "model.xml"
    openvino_models.save(openvino_models.make(lambda x: [o.relu(convolved(x))], X), str(path))
    text = path.read_text()
    first = text.index('type="Convolution"')
    text = text[:first] + re.sub("<dim>9</dim>(?=\\s*<dim>8</dim>)", "<dim>7</dim>", text[first:])
    path.write_text(text)
    with pytest.raises(IRError, match=r"\(2, 4, 7, 8\) in the file.*\(2, 4, 9, 8\)"):
        tf_ti.openvino.load(path)
