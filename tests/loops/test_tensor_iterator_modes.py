"""Where `tf_ti.tensor_iterator` runs: eagerly, in functions, datasets, strategies, saved models."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from checks import in_threads

import tf_ti
from tf_ti import BackEdge, InputPort, OutputPort, PortMap

SUM_EDGE = [BackEdge(0, 1)]
LAST = [OutputPort(0, 0)]


def sum_map(**fields):
    """A sliced input and a state; made anew for every call, as a user's function would."""
    return PortMap([InputPort(0, 0, axis=0, **fields), InputPort(1, 1)], LAST)


def total(x, body=lambda piece, s: s + piece[0]):
    (out,) = tf_ti.tensor_iterator(body, [x, tf.zeros([], x.dtype)], sum_map(), SUM_EDGE)
    return out


X = tf.constant([1.0, 2.0, 3.0])


# Tracing


def counting_body():
    traces = []

    def body(piece, s):
        traces.append(1)
        return s + piece[0]

    return body, traces


def scanned(x, f):
    return tf_ti.scan(lambda c, v: (f(v[None], c), None), 0.0, x)[0]


def looped(x, f):
    with tf_ti.Loop() as loop:
        loop.add_trip_limit(tf.size(x), tf_ti.TripLimit.COUNT)
        v = loop.add_iterator(x)
        s = loop.add_recurrence(0.0)
        s.next = f(v[None], s)
        out = loop.add_loop_output(s, tf_ti.LoopOutput.LAST_VALUE)
    return out.tensor


each_way = pytest.mark.parametrize("way", [total, scanned, looped])
each_tape = pytest.mark.parametrize("with_tape", [False, True], ids=["no tape", "tape"])


def value_of(way, body, with_tape):
    """The value of an eager call, and the gradient of the body's first argument if asked for."""
    if not with_tape:
        return way(X, body).numpy(), None
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = way(X, body)
    return y.numpy(), tape.gradient(y, X).numpy().tolist()


K = 2.0


@each_tape
@each_way
def test_an_eager_call_sees_what_the_body_reads_as_it_is_now(way, with_tape):
    """A global variable, a closure, an attribute, a default, an object that was mutated."""
    global K
    factor = 2.0

    class Model:
        factor = 2.0
        training = True

        def body(self, piece, s):
            return s + piece[0] * (self.factor if self.training else 0.0)

    model, table = Model(), {"factor": tf.constant(2.0)}
    bodies = [
        lambda piece, s: s + piece[0] * K,
        lambda piece, s: s + piece[0] * factor,
        lambda piece, s: s + piece[0] * table["factor"],
        model.body,
    ]
    for body in bodies:
        assert value_of(way, body, with_tape) == (12, [2.0] * 3 if with_tape else None)
    K = factor = Model.factor = 10.0
    table["factor"] = tf.constant(10.0)
    try:
        for body in bodies:
            assert value_of(way, body, with_tape) == (60, [10.0] * 3 if with_tape else None)
    finally:
        K = 2.0
    model.training = False
    assert value_of(way, model.body, with_tape)[0] == 0


@each_way
def test_an_eager_call_uses_the_variable_that_there_is_now(way):
    model = tf.Module()
    for value in (2.0, 10.0):
        model.w = tf.Variable(value)
        with tf.GradientTape() as tape:
            y = way(X, lambda piece, s: s + piece[0] * model.w)
        assert y.numpy() == 6 * value
        assert tape.gradient(y, model.w).numpy() == 6
        model.w.assign_add(1.0)
        assert way(X, lambda piece, s: s + piece[0] * model.w).numpy() == 6 * value + 6


@each_tape
def test_a_tf_function_as_the_body_keeps_its_trace_and_a_callable_does_not(with_tape):
    body, traces = counting_body()
    kept = tf.function(body)
    for _ in range(3):
        assert value_of(total, kept, with_tape)[0] == 6
    assert len(traces) == 1
    for k in range(3):
        assert value_of(total, body, with_tape)[0] == 6
        assert len(traces) == 2 + k
    concrete = kept.get_concrete_function(tf.TensorSpec([1]), tf.TensorSpec([]))
    assert value_of(total, concrete, with_tape)[0] == 6
    assert len(traces) == 4


def test_a_tf_function_as_the_body_is_traced_by_its_own_rules():
    """For each shape and type; for a less specific shape where it says so; not for a closure."""
    factor = 2.0

    def f(c, x):
        traces.append(x.shape)
        return {"sum": c["sum"] + tf.reduce_sum(x) * factor}, x[..., 0]

    def run(f, x):
        last, firsts = tf_ti.scan(f, {"sum": 0.0}, x)
        tf.debugging.assert_equal(firsts, x[:, 0])
        return last["sum"]

    for relaxed in (False, True):
        factor, traces = 2.0, []
        kept = tf.function(f, reduce_retracing=relaxed)
        sums = [run(kept, tf.ones([3, n])) for n in (2, 3, 4, 5)]
        assert [float(s) for s in sums] == [12, 18, 24, 30]
        assert len(traces) == (2 if relaxed else 4)
        factor = 10.0
        assert float(run(kept, tf.ones([3, 2]))) == 12
        assert float(tf.function(run)(kept, tf.ones([3, 2]))) == 12
        assert len(traces) == (2 if relaxed else 4)


def test_a_method_that_is_a_tf_function_is_traced_once_for_its_object():
    class Model(tf.Module):
        traces = 0

        @tf.function
        def body(self, piece, s):
            self.traces += 1
            return s + piece[0]

    models = [Model(), Model()]
    for model in models * 2:
        total(X, model.body)
    assert [model.traces for model in models] == [1, 1]


@each_tape
@each_way
@pytest.mark.parametrize("kind", ["callable", "tf.function"])
def test_an_eager_call_keeps_nothing_alive(way, with_tape, kind):
    def run():
        big, variable = tf.random.uniform([1000]), tf.Variable(tf.ones([1000]))

        def body(piece, s):
            return s + piece[0] * tf.reduce_sum(big * variable)

        given = tf.function(body) if kind == "tf.function" else body
        value_of(way, given, with_tape)
        return [weakref.ref(thing) for thing in (big, variable, body, given)]

    made = run()
    gc.collect()
    assert [reference() for reference in made] == [None] * 4


@pytest.mark.slow
def test_memory_of_captured_tensors_is_given_back(run_program):
    run_program("""
        import gc, resource
        import tensorflow as tf, tf_ti

        def scanned(big):
            return tf_ti.scan(lambda c, x: (c + x * big[0], None), 0.0, tf.ones([2]))[0]

        def looped(big):
            with tf_ti.Loop() as loop:
                loop.add_trip_limit(2, tf_ti.TripLimit.COUNT)
                s = loop.add_recurrence(0.0)
                s.next = s + big[0]
                return loop.add_loop_output(s, tf_ti.LoopOutput.LAST_VALUE)

        def with_tape(big):
            with tf.GradientTape() as tape:
                tape.watch(big)
                y = scanned(big)
            tape.gradient(y, big)
            return y

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        for call in (scanned, looped, with_tape):
            call(tf.fill([4_000_000], 1.0))
            before = peak()
            for k in range(30):
                assert float(call(tf.fill([4_000_000], float(k)))) == 2.0 * k
                if k % 5 == 0:
                    gc.collect()
            assert peak() - before < 300, (call, peak() - before)  # of 16 MB * 30
    """)


def test_a_body_that_is_traced_again_and_again_is_named_once(caplog):
    def run(body, times=12):
        for _ in range(times):
            total(X, body)
        return [r.getMessage() for r in caplog.records if "has been traced" in r.getMessage()]

    def my_body(piece, s):
        return s + piece[0]

    assert not run(my_body, 4)
    assert not run(tf.function(my_body))
    (message,) = run(my_body)
    assert "my_body" in message and __file__ in message and "tf.function" in message
    assert len(run(my_body)) == 1

    def my_loop():
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(3, tf_ti.TripLimit.COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + 1.0
            loop.add_loop_output(s, tf_ti.LoopOutput.LAST_VALUE)

    for _ in range(12):
        my_loop()
    (_, message) = run(tf.function(my_body))
    assert "my_loop" in message and __file__ in message


def test_a_tf_function_around_the_loop_traces_the_body_once():
    body, traces = counting_body()
    call = tf.function(lambda x: total(x, body))
    for k in range(3):
        assert call(X + k).numpy() == 6 + 3 * k
    assert len(traces) == 1


def test_a_loop_that_was_run_eagerly_runs_in_functions_too_and_the_other_way_round():
    def body(piece, s):
        return s * 2 + piece[0]

    values = [total(X, body), tf.function(lambda: total(X, body))(), total(X, body)]
    values.append(tf.function(lambda: total(X, body))())
    assert [v.numpy() for v in values] == [11] * 4


def test_each_function_captures_its_own_tensors():
    def make(scale):
        def inner(x):
            scaled = x * scale
            return total(x, lambda piece, s: s + piece[0] * tf.reduce_sum(scaled))

        return tf.function(inner)

    assert make(2.0)(X).numpy() == 72
    assert make(3.0)(X).numpy() == 108


def test_python_control_flow_in_the_body_is_converted():
    def body(piece, s):
        if piece[0] > 2:
            s = s + 100
        for _ in tf.range(3):
            s = s + piece[0]
        return s

    assert total(X, body).numpy() == 118
    assert tf.function(lambda: total(X, body))().numpy() == 118


def test_functions_that_run_eagerly_change_nothing():
    w = tf.Variable(2.0)
    tf.config.run_functions_eagerly(True)
    try:
        with tf.GradientTape() as tape:
            tape.watch(X)
            y = total(X, lambda piece, s: s * w + piece[0])
        grads = tape.gradient(y, [X, w])
    finally:
        tf.config.run_functions_eagerly(False)
    assert y.numpy() == 11
    assert grads[0].numpy().tolist() == [4, 2, 1]
    assert grads[1].numpy() == 6


def test_the_name_names_the_operation():
    @tf.function
    def call(x):
        (out,) = tf_ti.tensor_iterator(
            lambda piece, s: s + piece[0], [x, 0.0], sum_map(), SUM_EDGE, name="mine"
        )
        return out

    names = {op.name: op.type for op in call.get_concrete_function(X).graph.get_operations()}
    assert names["mine"] == "TfTi>StatelessTensorIterator"


# The graph optimiser


def test_a_stateful_loop_whose_outputs_nobody_uses_runs():
    v = tf.Variable(0.0)

    @tf.function
    def call(x):
        total(x, lambda piece, s: v.assign_add(piece[0]))
        return x

    call(X)
    assert v.numpy() == 6


def test_equal_loops_with_effects_are_not_merged():
    v = tf.Variable(0.0)

    def count(piece, s):
        v.assign_add(1.0)
        return s + piece[0]

    tf.function(lambda: (total(X, count), total(X, count)))()
    assert v.numpy() == 6


def test_a_loop_that_draws_random_numbers_is_not_folded_into_a_constant():
    call = tf.function(lambda: total(X, lambda piece, s: s + tf.random.uniform([])))
    assert call().numpy() != call().numpy()


def test_effects_before_in_and_after_the_loop_happen_in_order():
    v = tf.Variable("")

    def add(text):
        v.assign(tf.strings.join([v, text]))

    def body(piece, s):
        add(tf.strings.as_string(tf.cast(piece[0], tf.int32)))
        return s

    @tf.function
    def call():
        add("a")
        total(X, body)
        add("b")
        total(X, body)
        add("c")

    call()
    assert v.numpy() == b"a123b123c"


# Inside other things


def test_in_a_dataset():
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(12.0).reshape(4, 3)).map(total)
    assert [y.numpy() for y in dataset] == [3, 12, 21, 30]


@pytest.mark.parametrize("deterministic", [True, False])
def test_in_a_parallel_dataset_with_a_captured_variable(deterministic):
    scale = tf.Variable(2.0)

    def call(n):
        return total(tf.ones([n]), lambda piece, s: s + piece[0] * scale)

    dataset = tf.data.Dataset.range(50).map(call, num_parallel_calls=4, deterministic=deterministic)
    assert sorted(y.numpy() for y in dataset) == [2 * n for n in range(50)]


def test_in_a_batched_dataset_of_unknown_dimensions():
    dataset = tf.data.Dataset.range(1, 6).map(lambda n: tf.ones([n])).padded_batch(2)
    sums = dataset.map(
        lambda batch: tf_ti.tensor_iterator(
            lambda piece, s: s + piece[:, 0],
            [batch, tf.zeros(tf.shape(batch)[:1])],
            PortMap([InputPort(0, 0, axis=1), InputPort(1, 1)], LAST),
            SUM_EDGE,
        )[0]
    )
    assert [y.numpy().tolist() for y in sums] == [[1, 2], [3, 4], [5]]


def test_inside_tf_while_loop():
    @tf.function
    def call(n):
        return tf.while_loop(lambda k, s: k < n, lambda k, s: (k + 1, s + total(X + s)), (0, 0.0))[
            1
        ]

    s = 0.0
    for _ in range(4):
        s += sum(x + s for x in (1, 2, 3))
    assert call(4).numpy() == s


def test_inside_tf_while_loop_with_gradients():
    @tf.function
    def call(x):
        return tf.gradients(
            tf.while_loop(
                lambda k, s: k < 3,
                lambda k, s: (k + 1, total(x, lambda p, t: t + p[0] * s)),
                (0, 2.0),
            )[1],
            x,
        )[0]

    # s = 2 * sum(x) ** 3
    assert call(X).numpy().tolist() == [2 * 3 * 36] * 3


@pytest.mark.parametrize("flag", [True, False])
def test_inside_tf_cond(flag):
    def call(flag):
        return tf.cond(flag, lambda: total(X), lambda: total(X * 10))

    expected = 6 if flag else 60
    assert call(tf.constant(flag)).numpy() == expected
    assert tf.function(call)(tf.constant(flag)).numpy() == expected


def test_inside_map_fn():
    x = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    assert tf.map_fn(total, x).numpy().tolist() == [3, 12, 21, 30]


def test_inside_py_function():
    @tf.function
    def call(x):
        return tf.py_function(total, [x], tf.float32)

    assert call(X).numpy() == 6


def test_inside_custom_gradient_and_recompute_grad():
    w = tf.Variable(2.0)
    call = tf.recompute_grad(lambda x: total(x, lambda piece, s: s * w + piece[0]))
    with tf.GradientTape() as tape:
        tape.watch(X)
        y = call(X)
    assert tape.gradient(y, X).numpy().tolist() == [4, 2, 1]


def test_with_an_explicit_device():
    with tf.device("/CPU:0"):
        assert total(X).numpy() == 6
        assert tf.function(lambda: total(X))().numpy() == 6


def test_in_a_graph_with_a_session():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None])
        y = total(x)
        with tf.compat.v1.Session(graph=graph) as session:
            assert session.run(y, {x: [1.0, 2.0, 3.0]}) == 6
            assert session.run(y, {x: [5.0]}) == 5


def nested(x, f):
    """The function is called in a loop inside of one."""
    return total(x, lambda piece, s: tf_ti.scan(lambda c, _: (f(piece, c), None), s, length=1)[0])


@pytest.mark.parametrize("use_resource", [True, False], ids=["resource", "reference"])
@pytest.mark.parametrize("way", [total, scanned, looped, nested])
def test_in_a_graph_the_loop_waits_for_what_its_body_waits_for_outside(way, use_resource):
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        v = tf.compat.v1.get_variable("v", initializer=1.0, use_resource=use_resource)
        assigned, x = tf.compat.v1.assign(v, 5.0), tf.constant([1.0, 2.0, 3.0])

        def adds(piece, s):
            with tf.control_dependencies([assigned]):
                return s + piece[0]

        def reads(piece, s):
            with tf.control_dependencies([assigned]):
                return s + piece[0] * v.read_value()

        with tf.control_dependencies([way(x, adds)]):
            after = v.read_value()
        for fetched, expected in [(after, 5), (way(x, reads), 5 * 6)]:
            session.run(v.initializer)
            assert session.run(fetched) == expected


# Threads


def test_many_threads_run_one_loop_eagerly():
    def body(piece, s):
        return s * 2 + piece[0]

    results = in_threads(lambda i: float(total(X + i, body)))
    assert results == [[11.0 + 7 * i] * 5 for i in range(8)]


def test_many_threads_run_one_function():
    w = tf.Variable(2.0)
    call = tf.function(lambda x: total(x, lambda piece, s: s * w + piece[0]))
    results = in_threads(lambda i: float(call(X + i)))
    assert results == [[11.0 + 7 * i] * 5 for i in range(8)]


def test_many_threads_take_gradients():
    def call(i):
        x = X + i
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = total(x, lambda piece, s: s + piece[0] ** 2)
        return tf.reduce_sum(tape.gradient(y, x))

    assert in_threads(lambda i: float(call(i))) == [[12.0 + 6 * i] * 5 for i in range(8)]


# Strategies


def test_under_a_mirrored_strategy(run_program):
    run_program("""
        import numpy as np
        import tensorflow as tf
        import tf_ti
        from tf_ti import BackEdge, InputPort, OutputPort, PortMap

        cpus = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(
            cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
        assert strategy.num_replicas_in_sync == 2
        with strategy.scope():
            w = tf.Variable(2.0, aggregation=tf.VariableAggregation.MEAN)

        def body(piece, s):
            return s * w + piece[0]

        def loss(x):
            (y,) = tf_ti.tensor_iterator(
                body, [x, 0.0],
                PortMap([InputPort(0, 0, axis=0), InputPort(1, 1)], [OutputPort(0, 0)]),
                [BackEdge(0, 1)])
            return y

        def step(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = loss(x)
            of_w, of_x = tape.gradient(y, [w, x])
            context = tf.distribute.get_replica_context()
            return y, context.all_reduce("sum", of_w), of_x

        def batch(context):
            return tf.constant([1.0, 2.0, 3.0]) * (context.replica_id_in_sync_group + 1.0)

        values = strategy.experimental_distribute_values_from_function(batch)
        for run in (strategy.run, tf.function(lambda f, args: strategy.run(f, args))):
            for _ in range(2):
                y, of_w, of_x = run(step, (values,))
                assert [v.numpy() for v in strategy.experimental_local_results(y)] == [11, 22]
                for g in strategy.experimental_local_results(of_w):
                    assert g.numpy() == 6 + 12, g
                for g in strategy.experimental_local_results(of_x):
                    assert g.numpy().tolist() == [4, 2, 1]

        @tf.function
        def train(values):
            def update(x):
                with tf.GradientTape() as tape:
                    y = loss(x)
                w.assign_sub(0.1 * tape.gradient(y, w))
            strategy.run(update, (values,))

        train(values)
        np.testing.assert_allclose([v.numpy() for v in w.values], [2 - 0.9] * 2, rtol=1e-6)
        assert float(loss(tf.constant([1.0, 1.0]))) == float(w.values[0] + 1)
    """)


# Saved models


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A model with a variable, a captured tensor and a nested loop: [n, m] -> [n]."""
    module = tf.Module()
    module.w = tf.Variable(2.0)
    offset = tf.constant(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def run(x):
        def row(piece):
            return total(piece[0], lambda p, s: s * module.w + p[0] + offset)

        (y,) = tf_ti.tensor_iterator(
            row, [x], PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
        )
        return {"y": y}

    module.run = run
    path = tmp_path_factory.mktemp("model")
    tf.saved_model.save(module, str(path), signatures=run)
    return path


SAVED_CHECK = """
    def check(y):
        assert y.tolist() == [18, 39], y
    x = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
"""


def test_a_saved_model_runs_in_a_process_that_imports_tf_ti(saved_model, run_program):
    run_program(
        SAVED_CHECK
        + """
    import sys
    import tensorflow as tf
    import tf_ti
    module = tf.saved_model.load(sys.argv[1])
    check(module.run(tf.constant(x))["y"].numpy())
    check(module.signatures["serving_default"](x=tf.constant(x))["y"].numpy())
    module.w.assign(0.0)
    assert module.run(tf.constant(x))["y"].numpy().tolist() == [4, 7]
    """,
        saved_model,
    )


def test_a_saved_model_runs_in_a_process_that_loads_the_library_alone(saved_model, run_program):
    run_program(
        SAVED_CHECK
        + """
    import sys
    import tensorflow as tf
    tf.load_op_library(sys.argv[2])
    module = tf.saved_model.load(sys.argv[1])
    check(module.run(tf.constant(x))["y"].numpy())
    assert "tf_ti" not in sys.modules
    """,
        saved_model,
        library_path(),
    )


def test_a_saved_model_runs_in_a_session_after_the_c_api_loads_the_library(
    saved_model, run_program
):
    run_program(
        SAVED_CHECK
        + """
    import sys
    import tensorflow as tf
    from tensorflow.python.client import pywrap_tf_session
    pywrap_tf_session.TF_LoadLibrary(sys.argv[2])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], sys.argv[1])
        signature = meta.signature_def["serving_default"]
        y = session.run(signature.outputs["y"].name, {signature.inputs["x"].name: x})
    check(y)
    """,
        saved_model,
        library_path(),
    )


def test_without_the_library_the_error_names_the_op(saved_model, run_program):
    finished = run_program(
        """
        import sys
        import tensorflow as tf
        tf.saved_model.load(sys.argv[1])
        """,
        saved_model,
        check=False,
    )
    assert finished.returncode == 1
    assert "TfTi>" in finished.stderr


def library_path():
    from tf_ti import _library

    return _library._PATH


def test_a_frozen_graph_gives_the_same():
    from tensorflow.python.framework import convert_to_constants

    w = tf.Variable(2.0)
    call = tf.function(
        lambda x: total(x, lambda piece, s: s * w + piece[0]),
        input_signature=[tf.TensorSpec([None])],
    )
    frozen = convert_to_constants.convert_variables_to_constants_v2(call.get_concrete_function())
    w.assign(100.0)
    assert frozen(X)[0].numpy() == 11


def test_a_serialised_graph_runs_after_import():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None], name="x")
        tf.identity(total(x), name="y")
    definition = tf.compat.v1.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    with tf.Graph().as_default():
        (y,) = tf.import_graph_def(definition, return_elements=["y:0"], name="")
        with tf.compat.v1.Session() as session:
            assert session.run(y, {"x:0": [1.0, 2.0, 3.0]}) == 6


@pytest.mark.parametrize("place", ["the body", "the condition"])
@pytest.mark.parametrize("writes", [False, True])
def test_loops_wait_for_one_another_where_one_writes_a_variable(place, writes):
    table = tf.Variable([1.0, 2.0, 3.0])

    def looked_up(k):
        return tf.gather(table, k)

    def written(k):
        with tf.control_dependencies([table.scatter_nd_update([[k]], [5.0])]):
            return looked_up(k)

    def run(loop, look_up):
        def condition(k, _):
            return k < 3 if place == "the body" else look_up(k) < 2.5

        def body(k, s):
            return k + 1, s + look_up(k) if place == "the body" else s + 1.0

        return loop(condition, body, [0, 0.0])[1]

    @tf.function(autograph=False)
    def both(loop):
        table.assign([1.0, 2.0, 3.0])
        return run(loop, looked_up), run(loop, written if writes else looked_up)

    graph = both.get_concrete_function(tf_ti.while_loop).graph
    first, second = (op for op in graph.get_operations() if op.type == "TfTi>TensorIterator")
    assert (first in second.control_inputs) == writes
    np.testing.assert_allclose(both(tf_ti.while_loop), both(tf.while_loop))


def test_a_read_waits_for_a_loop_that_writes_by_a_handle_it_carries():
    """The variables change places in each iteration, so that each is written once."""
    first, second = (tf.Variable([value] * 4) for value in (1.0, 2.0))

    @tf.function(autograph=False)
    def call():
        with tf_ti.Loop() as loop:
            loop.add_trip_limit(tf.constant(2), tf_ti.TripLimit.COUNT)
            ours, others = loop.add_recurrence(first.handle), loop.add_recurrence(second.handle)
            count = loop.add_recurrence(0.0)
            noise = tf.random.stateless_uniform([1_000_000], [1, 2])  # long enough to be overtaken
            value = tf.fill([4], 1.0 + 0.0 * tf.reduce_sum(noise))
            tf.raw_ops.AssignAddVariableOp(resource=ours.tensor, value=value)
            ours.next, others.next, count.next = others.tensor, ours.tensor, count + 1.0
            loop.add_loop_output(count, tf_ti.LoopOutput.LAST_VALUE)
        return first.read_value(), second.read_value()

    found = call()
    np.testing.assert_array_equal(found, [[2.0] * 4, [3.0] * 4])
