"""Calls as users write them: `make lint` has mypy and pyright check them, both strict.

A line marked `type: ignore` is wrong, and must be an error to both: else the mark is one.
"""

import pathlib
from typing import Any

import tensorflow as tf
from typing_extensions import assert_type

import tf_ti


def scans(xs: tf.Tensor, steps: dict[str, tf.Tensor], count: tf.Tensor) -> None:
    def discount(value: tf.Tensor, step: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        value = step["reward"] + tf.where(step["done"], 0.0, 0.5 * value)
        return value, value

    def add(total: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, None]:
        return total + x, None

    last, sums = tf_ti.scan(lambda c, x: (c + x, c + x), 0.0, xs)
    assert_type(last, Any)
    assert_type(sums, Any)
    assert_type(tf_ti.scan(discount, 0.0, steps, reverse=True), tuple[Any, Any])
    tf_ti.scan(add, xs[0], xs, axis=1, checkpoint_every=10, name="sum")
    tf_ti.scan(add, 0.0, length=10, fuse=False)
    tf_ti.scan(add, 0.0, length=count)

    tf_ti.scan(add, 0.0, xs, until=lambda carry, y: carry > 1.0)

    def is_small(x: tf.Tensor) -> bool | tf.Tensor:
        return x < 3

    def double(x: tf.Tensor) -> tf.Tensor:
        return x + x

    tf_ti.while_loop(is_small, double, [count], maximum_iterations=9)

    tf_ti.while_loop(is_small, [count])  # type: ignore[call-arg, arg-type]
    tf_ti.while_loop(is_small, double, [count], trips=3)  # type: ignore[call-arg]
    tf_ti.scan(add, 0.0, xs, revers=True)  # type: ignore[call-arg]
    tf_ti.scan(add, 0.0, xs, 1)  # type: ignore[call-arg]
    tf_ti.scan(add, 0.0, xs, axis="0")  # type: ignore[arg-type]
    tf_ti.scan(add, 0.0, xs, fuse="no")  # type: ignore[arg-type]
    tf_ti.scan(lambda c: c, 0.0, xs)  # type: ignore[arg-type, misc]
    tf_ti.scan(0.0, add, xs)  # type: ignore[arg-type]
    tf_ti.scann(add, 0.0, xs)  # type: ignore[attr-defined]


def accelerations() -> None:
    setting = tf_ti.accelerate()
    setting.undo()
    with tf_ti.accelerate(False) as inner:
        assert_type(inner.is_on, bool)
        assert_type(inner.lookups, bool)

    @tf_ti.accelerate
    def double(x: int) -> int:
        return 2 * x

    @tf_ti.accelerate(False)
    def triple(x: int) -> int:
        return 3 * x

    assert_type(double(1) + triple(1), int)
    assert_type([loop.place for loop in tf_ti.accelerate.report()], list[str])

    tf_ti.accelerate("yes")  # type: ignore[call-overload]
    double("1")  # type: ignore[arg-type]


def tensor_iterators(x: tf.Tensor, count: tf.Tensor, path: pathlib.Path) -> None:
    def body(piece: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return total + piece, total + piece

    port = tf_ti.InputPort(0, 0, axis=1, start=-1, end=0, stride=-2, part_size=2)
    assert_type(port.axis, int | None)
    port_map = tf_ti.PortMap(
        inputs=[port, tf_ti.InputPort(1, 1)],
        outputs=(tf_ti.OutputPort(0, 0), tf_ti.OutputPort(1, 1, axis=1)),
    )
    edges = [tf_ti.BackEdge(from_layer=0, to_layer=1)]
    total, running = tf_ti.tensor_iterator(body, [x, tf.zeros([1, 1])], port_map, edges)
    assert_type(total, tf.Tensor)
    assert_type(running, tf.Tensor)
    tf_ti.tensor_iterator(tf.reduce_mean, (x,), port_map, num_iterations=3, checkpoint_every=2)
    tf_ti.tensor_iterator(tf.square, [[1.0, 2.0]], port_map, num_iterations=count, fuse=False)
    assert_type(tf_ti.draw(port_map), str)
    explanation = tf_ti.explain(abs, 3.0)
    assert_type([loop.runs_as for loop in explanation.loops], list[str])
    tf_ti.draw(port_map, edges, path / "loop.svg")

    tf_ti.tensor_iterator(body, 3, port_map)  # type: ignore[arg-type]
    tf_ti.tensor_iterator(body, [x], port_map.inputs)  # type: ignore[arg-type]
    tf_ti.tensor_iterator(body, [x], port_map, [(0, 1)])  # type: ignore[list-item]
    tf_ti.tensor_iterator(body, [x], port_map, iterations=3)  # type: ignore[call-arg]
    tf_ti.InputPort(0, 0, axes=1)  # type: ignore[call-arg]
    tf_ti.InputPort(0, 0, axis="1")  # type: ignore[arg-type]
    tf_ti.PortMap([port], [port])  # type: ignore[list-item]
    tf_ti.BackEdge(0)  # type: ignore[call-arg]
    tf_ti.draw(edges)  # type: ignore[arg-type]
    port.axis = 2  # type: ignore[misc]


def loops(xs: tf.Tensor, w: tf.Tensor, count: tf.Tensor, path: pathlib.Path) -> None:
    with tf_ti.Loop("rnn", fuse=False) as loop:
        x = loop.add_iterator(xs, axis=1, reverse=True)
        h = loop.add_recurrence(tf.zeros([1, 8]))
        grows = loop.add_recurrence(xs, shape=[None, 8])
        loop.add_trip_limit(count, tf_ti.TripLimit.COUNT)
        loop.add_trip_limit(tf.reduce_sum(h) < 10.0, tf_ti.TripLimit.WHILE)
        h.next = tf.tanh(h @ w + x)
        grows.set_input(1, tf.concat([grows, grows], axis=0))
        last = loop.add_loop_output(h, tf_ti.LoopOutput.LAST_VALUE)
        path_of_h = loop.add_loop_output(h, tf_ti.LoopOutput.REVERSE, axis=-1, length=20)
        summed = loop.add_loop_output(x + h, tf_ti.LoopOutput.CONCATENATE)
        summed.set_input(1, count)

        loop.add_iterator(xs, axis="0")  # type: ignore[arg-type]
        loop.add_iterator(xs, backwards=True)  # type: ignore[call-arg]
        loop.add_recurrence()  # type: ignore[call-arg]
        loop.add_trip_limit(count, "until")  # type: ignore[arg-type]
        loop.add_loop_output(h)  # type: ignore[call-arg]
        loop.add_loop_output(h, tf_ti.TripLimit.COUNT)  # type: ignore[arg-type]
        h.set_input(2, x)  # type: ignore[arg-type]
        loop.add_output(h)  # type: ignore[attr-defined]

    assert_type(last.tensor, tf.Tensor)
    assert_type(path_of_h.shape, tf.TensorShape)
    assert_type([output.tensor for output in loop.outputs], list[tf.Tensor])
    assert_type(loop.name, str)
    assert_type(loop.draw(), str)
    loop.draw(path / "loop.svg")
    tf_ti.Loop(3)  # type: ignore[arg-type]


def loop_values_are_tensors(loop: tf_ti.Loop, w: tf.Tensor) -> None:
    def cell(x: tf.Tensor) -> tf.Tensor:
        return x

    for value in (
        loop.add_iterator(w),
        loop.add_recurrence(w),
        loop.add_loop_output(w, tf_ti.LoopOutput.CONCATENATE),
    ):
        assert_type(cell(value), tf.Tensor)
        assert_type(tf.square(value), tf.Tensor)
        assert_type(value.dtype, tf.DType)
        assert_type(-value, tf.Tensor)
        assert_type(~value, tf.Tensor)
        assert_type(abs(value), tf.Tensor)
        assert_type(value[0], tf.Tensor)
        assert_type(value[..., 1:, None], tf.Tensor)
        assert_type(value + 1, tf.Tensor)
        assert_type(value - 1, tf.Tensor)
        assert_type(value * 2, tf.Tensor)
        assert_type(value / 2, tf.Tensor)
        assert_type(value // 2, tf.Tensor)
        assert_type(value % 2, tf.Tensor)
        assert_type(value**2, tf.Tensor)
        assert_type(value @ w, tf.Tensor)
        assert_type(w @ value, tf.Tensor)
        assert_type(value + value, tf.Tensor)
        assert_type(value == 1, tf.Tensor)
        assert_type(value != 1, tf.Tensor)
        assert_type(value < 10.0, tf.Tensor)
        assert_type(value <= 10.0, tf.Tensor)
        assert_type(value > 10.0, tf.Tensor)
        assert_type(value >= 10.0, tf.Tensor)
        assert_type(value & True, tf.Tensor)
        assert_type(value | True, tf.Tensor)
        assert_type(value ^ True, tf.Tensor)
        # Where mypy knows no types of TensorFlow it takes these for numbers.
        turned: list[tf.Tensor] = [1 + value, 1.0 - value, 2 * value, 2 / value, 7 // value]
        turned += [7 % value, 2.0**value, True & value, True | value, True ^ value]


def bags(table: tf.Variable, ids: tf.RaggedTensor, weights: tf.RaggedTensor) -> None:
    tf_ti.advise_huge_pages(table)
    with tf.GradientTape() as tape:
        pooled = tf_ti.embedding_bag(table, ids, weights, combiner="mean", default_index=0)
        loss = tf.reduce_sum(pooled**2)
    tf_ti.scatter_sub(table, tape.gradient(loss, table), 0.5, weight_decay=0.01)
    assert_type(pooled, tf.Tensor | Any)
    tf_ti.embedding_bag([table, table], [[1]], partition_strategy="mod", prune_invalid=True)
    assert_type(
        tf_ti.embedding_bag_offsets_sum(
            table, [0, 2, 3], [0, 2], default_index=0, per_sample_weights=[0.5, 0.5, 0.5]
        ),
        tf.Tensor,
    )
    assert_type(
        tf_ti.embedding_bag_offsets(table, [0], [0, 1], reduction="max", include_last_offset=True),
        tf.Tensor,
    )
    assert_type(
        tf_ti.embedding_bag_packed(table, [[0, 3], [4, 2]], reduction="mean", max_norm=1.0),
        tf.Tensor,
    )
    assert_type(
        tf_ti.embedding_segments_sum(table, [3, 3, 4], [0, 0, 2], num_segments=3, padding_idx=-1),
        tf.Tensor,
    )
    several = tf_ti.embedding_bags([table, table], [ids, [[1]]], combiner="max", padding_idx=0)
    assert_type(several, list[tf.Tensor | Any])
    each = tf_ti.embedding_bags(
        [table, table],
        [ids, [[1]]],
        combiner=["mean", "max"],
        padding_idx=[None, 0],
        max_norm=[1.0, None],
        norm_type=[2, 1.0],
    )
    assert_type(each, list[tf.Tensor | Any])

    tf_ti.embedding_bag(table)  # type: ignore[call-arg]
    tf_ti.embedding_bags([table])  # type: ignore[call-arg]
    tf_ti.embedding_bags([table], [ids], combiner="median")  # type: ignore[arg-type]
    tf_ti.embedding_bags([table], [ids], max_norm=["1"])  # type: ignore[list-item]
    tf_ti.embedding_bag(table, ids, combiner="median")  # type: ignore[arg-type]
    tf_ti.embedding_bag(table, ids, partition_strategy="rows")  # type: ignore[arg-type]
    tf_ti.embedding_bag(table, ids, max_norm="1")  # type: ignore[arg-type]
    tf_ti.embedding_bag_offsets(table, [0], [0], reduction="sqrtn")  # type: ignore[arg-type]
    tf_ti.embedding_bag_packed(table, [[0]], combiner="sum")  # type: ignore[call-arg]
    tf_ti.embedding_segments_sum(table, [0], [0])  # type: ignore[call-arg]
    tf_ti.advise_huge_pages()  # type: ignore[call-arg]


def updates(table: tf.Variable, slot: tf.Variable, slices: tf.IndexedSlices) -> None:
    tf_ti.adagrad_update(table, slot, slices, 0.1, epsilon=1e-8, epsilon_inside_sqrt=False)
    tf_ti.adam_update(table, slot, slot, slices, learning_rate=0.1, step=1, beta_1=0.8)
    tf_ti.adam_update(
        table, slot, slot, slices, 0.1, 1, epsilon_hat=False, weight_decay=0.1, name="step"
    )

    tf_ti.scatter_sub(table)  # type: ignore[call-arg]
    tf_ti.adagrad_update(table, slot, slices)  # type: ignore[call-arg]
    tf_ti.adagrad_update(table, slot, slices, 0.1, 1e-8)  # type: ignore[call-arg]
    tf_ti.adam_update(table, slot, slot, slices, 0.1)  # type: ignore[call-arg]
    tf_ti.adam_update(table, slot, slot, slices, 0.1, 1, epsilon_hat="no")  # type: ignore[arg-type]
    tf_ti.adam_update(table, slot, slot, slices, 0.1, 1, momentum=0.1)  # type: ignore[call-arg]


def recurrences(
    x: tf.Tensor, state: tf.Tensor, w: tf.Variable, lengths: tf.Tensor, layer: Any
) -> None:
    y, ho, co = tf_ti.lstm_sequence(x, state, state, lengths, w, w, w, direction="reverse")
    assert_type(y, tf.Tensor)
    assert_type(ho, tf.Tensor)
    assert_type(co, tf.Tensor)
    assert_type(
        tf_ti.gru_sequence(x, state, None, w, w, None, clip=1.0, linear_before_reset=True),
        tuple[tf.Tensor, tf.Tensor],
    )
    assert_type(
        tf_ti.rnn_sequence(
            x, state, None, w, w, w, 8, "bidirectional", ["relu"], mask=x, hold_output=True
        ),
        tuple[tf.Tensor, tf.Tensor],
    )
    assert_type(tf_ti.lstm_cell(x, state, state, w, w), tuple[tf.Tensor, tf.Tensor])
    assert_type(tf_ti.gru_cell(x, state, w, w, w, linear_before_reset=True), tf.Tensor)
    assert_type(tf_ti.rnn_cell(x, state, w, w, activations=("relu",), name="cell"), tf.Tensor)
    weights = tf_ti.recurrent.from_keras(layer)
    assert_type(weights, dict[str, Any])
    tf_ti.lstm_sequence(x, state, state, None, **weights)
    assert_type(tf_ti.recurrent.from_torch({}, layer=1, nonlinearity="relu"), dict[str, Any])
    assert_type(tf_ti.recurrent.from_torch({}, "all"), list[dict[str, Any]])
    w_onnx, r_onnx, b_onnx, attributes = tf_ti.recurrent.to_onnx(weights)
    tf_ti.recurrent.from_onnx(w_onnx, r_onnx, b_onnx, **attributes)
    layer.set_weights(tf_ti.recurrent.to_keras(weights))
    tf_ti.recurrent.to_torch(weights, layer=1)

    tf_ti.lstm_sequence(x, state, lengths, w, w, w)  # type: ignore[call-arg]
    tf_ti.gru_sequence(x, state, None, w, w, w, direction="backward")  # type: ignore[arg-type]
    tf_ti.rnn_sequence(x, state, None, w, w, w, linear_before_reset=True)  # type: ignore[call-arg]
    tf_ti.lstm_cell(x, state, state, w, w, clip="1")  # type: ignore[arg-type]
    tf_ti.gru_cell(x, state, w, w, activations=3)  # type: ignore[arg-type]
    tf_ti.rnn_cell(x, state, w)  # type: ignore[call-arg]
    tf_ti.recurrent.from_keras()  # type: ignore[call-arg]
    tf_ti.recurrent.from_tensorflow(x)  # type: ignore[attr-defined]


def layers() -> None:
    layer = tf_ti.keras.EmbeddingBag(10_000, 16, mask_zero=True, combiner="mean", name="bags")
    assert_type(layer.output_dim, int)
    layers = tf_ti.keras.EmbeddingBags({"item": layer}, {"viewed": "item", "bought": "item"})
    assert_type(layers.compute_output_shape({"viewed": (2, 3)}), dict[str, tuple[int | None, ...]])

    # Their arguments are Keras's, which is not there where types are checked.
    optimizers = tf_ti.keras.optimizers
    classes: list[type[Any]] = [optimizers.SGD, optimizers.Adagrad, optimizers.RowwiseAdagrad]
    classes += [optimizers.Adam, optimizers.AdamW]

    model, report = tf_ti.keras.convert(layer)
    assert_type(model, Any)
    assert_type(report, tf_ti.keras.Report)
    assert_type(report[0], tf_ti.keras.Converted)
    assert_type(report[0].reason, str)
    tf_ti.keras.summary(model, print_fn=print, expand_nested=True)

    tf_ti.keras.convert()  # type: ignore[call-arg]
    report[0].became = ""  # type: ignore[misc]
    tf_ti.keras.summary(model, print_fn=3)  # type: ignore[arg-type]
    tf_ti.keras.EmbeddingBag(10_000)  # type: ignore[call-arg]
    tf_ti.keras.EmbeddingBag("10000", 16)  # type: ignore[arg-type]
    tf_ti.keras.EmbeddingBag(10_000, 16, combiner="median")  # type: ignore[arg-type]
    tf_ti.keras.EmbeddingBags({"item": 10_000})  # type: ignore[dict-item]
    tf_ti.keras.EmbedingBag(10_000, 16)  # type: ignore[attr-defined]
    tf_ti.keras.optimizers.Adamm(0.1)  # type: ignore[attr-defined]


def openvino() -> None:
    module = tf_ti.openvino.load("model.xml", weights="model.bin", trainable=True)
    assert_type(module, tf_ti.openvino.IRModule)
    assert_type(module(x=[1.0]), tuple[tf.Tensor, ...])
    assert_type([info.name for info in module.inputs], list[str])
    module.reset_state()
    module.states["h"].assign([[0.0]])

    @tf_ti.openvino.register("Twice", ["opset1", "custom"])
    def twice(op: tf_ti.openvino.Operation, x: tf.Tensor) -> tf.Tensor:
        return op.number("factor", 2.0) * x

    tf_ti.openvino.save(module, "model.xml")
    tf_ti.openvino.save(twice, "model.xml", [tf.TensorSpec([None])])
    tf_ti.openvino.load("model.xml", trainable="yes")  # type: ignore[arg-type]
    tf_ti.openvino.save(twice)  # type: ignore[call-arg]
    tf_ti.openvino.write(twice, "model.xml")  # type: ignore[attr-defined]


assert_type(tf_ti.__version__, str)
