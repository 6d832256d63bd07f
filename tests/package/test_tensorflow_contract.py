"""The private names of TensorFlow and Keras that tf_ti uses, and what it relies on in each.

There is one test for each name. None imports tf_ti, so that they tell of a new TensorFlow what has
moved where tf_ti does not build or import. Others test that the list is complete, and that the
names are used where they belong: in tf_ti/_tf/ and tf_ti/keras/_internals.py.
"""

import ast
import contextlib
import gc
import importlib
import inspect
import itertools
import pathlib
import types
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import (
    convert_variables_to_constants_v2 as freeze,
)

keras = pytest.importorskip("keras")

PACKAGE = pathlib.Path(__file__).parent.parent.parent / "tf_ti"
RELIED_ON = {}  # for each name its check


def relied_on(name):
    """Makes a function the check of a private name. It gets what has the name.

    Where only instances have an attribute, as of a name that ends with "()._x", it gets the class.
    """

    def add(check):
        assert name not in RELIED_ON
        RELIED_ON[name] = check
        return check

    return add


def resolve(name):
    parts = name.split("().")[0].split(".")
    for end in range(len(parts), 0, -1):
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.import_module(".".join(parts[:end]))
            for part in parts[end:]:
                found = getattr(found, part)
            return found
    raise ModuleNotFoundError(name)


def parameters(function):
    return list(inspect.signature(function).parameters)


# --- autograph -----------------------------------------------------------------------------------


@relied_on("tensorflow.python.autograph.core.ag_ctx.ControlStatusCtx")
def _(it):
    ag_ctx = resolve("tensorflow.python.autograph.core.ag_ctx")
    with it(ag_ctx.Status.DISABLED):
        assert ag_ctx.control_status_ctx().status == ag_ctx.Status.DISABLED


@relied_on("tensorflow.python.autograph.core.ag_ctx.Status")
def _(it):
    assert {"DISABLED", "ENABLED", "UNSPECIFIED"} <= set(it.__members__)


@relied_on("tensorflow.python.eager.polymorphic_function.autograph_util.py_func_from_autograph")
def _(it):
    def function(x):
        if x > 0:
            x = -x
        return x

    ag_ctx = resolve("tensorflow.python.autograph.core.ag_ctx")
    with tf.Graph().as_default(), ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
        assert it(function)(tf.constant(1.0)).op.type == "Identity"  # of a conditional


# --- distribution --------------------------------------------------------------------------------


def mirrored():
    return tf.distribute.MirroredStrategy(["CPU:0"])


@relied_on("tensorflow.python.distribute.distribute_lib.get_update_replica_id")
def _(it):
    assert it() is None
    found, strategy = [], mirrored()
    with strategy.scope():
        variable = tf.Variable(1.0)
    strategy.extended.update(variable, lambda v: found.append(it()))
    assert found == [0]


@relied_on("tensorflow.python.distribute.values.DistributedVariable")
def _(it):
    with mirrored().scope():
        assert isinstance(tf.Variable(1.0), it)
    assert not isinstance(tf.Variable(1.0), it)


@relied_on("tensorflow.python.distribute.values.SyncOnReadVariable")
def _(it):
    with mirrored().scope():
        made = tf.Variable(
            1.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        assert isinstance(made, it)
        assert not isinstance(tf.Variable(1.0), it)


@relied_on("tensorflow.python.distribute.ps_values.AggregatingVariable")
def _(it):
    assert issubclass(it, tf.Variable)
    assert parameters(it.__init__)[1:4] == ["strategy", "v", "aggregation"]


@relied_on("tensorflow.python.distribute.values_util.is_saving_non_distributed")
def _(it):
    assert it() is False


@relied_on("tensorflow.python.distribute.sharded_variable.ShardedVariable")
def _(it):
    shards = [tf.Variable([1.0]), tf.Variable([2.0])]
    assert [v.handle for v in it(shards).variables] == [v.handle for v in shards]


# --- what is recorded for gradients --------------------------------------------------------------


@relied_on("tensorflow.python.framework.tensor_util.try_evaluate_constant")
def _(try_evaluate_constant):
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, [5, None])
        shape = tf.shape(x)
        assert try_evaluate_constant(shape[0] + 1) == 6
        assert try_evaluate_constant(shape[1]) is None


@relied_on("tensorflow.python.eager.backprop._MockOp")
def _(it):
    x = tf.zeros([2, 2])
    op = it(("transpose_a", True), [x], [x], "MatMul", [])
    assert op.get_attr("transpose_a") is True
    assert op.attrs == ("transpose_a", True)
    assert op.inputs[0] is x and op.outputs[0] is x and op.type == "MatMul"


@relied_on("tensorflow.python.eager.execute.must_record_gradient")
def _(it):
    assert not it()
    with tf.GradientTape():
        assert it()


@relied_on("tensorflow.python.eager.execute.record_gradient")
def _(it):
    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tape.stop_recording():
                y = tf.raw_ops.Square(x=x)
            op = y.op
            it("Square", list(op.inputs), ("T", op.get_attr("T")), list(op.outputs))
        return tape.gradient(y, x)

    assert gradient(tf.constant(3.0)) == 6.0


@relied_on("tensorflow.python.eager.forwardprop._SPECIAL_CASES")
def _(it):
    seen = []

    def jvp(attributes, inputs, outputs, tangents):
        seen.append((attributes, len(inputs), len(outputs)))
        return [5.0 * tangent for tangent in tangents]

    # TensorFlow keeps what it traces of the function: the op is one that no other test uses.
    assert "Ndtri" not in it
    it["Ndtri"] = jvp
    try:
        x = tf.constant(0.5)
        with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)) as accumulator:
            y = tf.raw_ops.Ndtri(x=x)
        assert accumulator.jvp(y) == 5.0
    finally:
        del it["Ndtri"]
    assert seen == [(("T", tf.float32.as_datatype_enum), 1, 1)]


@relied_on("tensorflow.python.eager.forwardprop_util.pack_tangents")
def _(it):
    x = tf.constant(1.0)
    with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)):
        assert len(it([x]).tangents) == 1
        assert not it([tf.constant(2.0)]).tangents


@relied_on("tensorflow.python.eager.forwardprop_util.push_forwardprop_state")
def _(it):
    def jvp(attributes, inputs, outputs, tangents):
        (x,) = inputs
        with it(), tf.GradientTape() as tape:  # which else records nothing here
            tape.watch(x)
            y = x * x
        return [tape.gradient(y, x) * tangents[0]]

    cases = resolve("tensorflow.python.eager.forwardprop._SPECIAL_CASES")
    cases["BesselI1e"] = jvp  # again an op that no other test uses
    try:
        x = tf.constant(3.0)
        with tf.autodiff.ForwardAccumulator(x, tf.constant(1.0)) as accumulator:
            y = tf.raw_ops.BesselI1e(x=x)
        assert accumulator.jvp(y) == 6.0
    finally:
        del cases["BesselI1e"]


@relied_on("tensorflow.python.eager.record.could_possibly_record")
def _(it):
    assert not it()
    with tf.GradientTape():
        assert it()


@relied_on("tensorflow.python.eager.record.should_record_backprop")
def _(it):
    x, other = tf.constant(1.0), tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert it([x]) and it([x * 2.0]) and not it([other])


@relied_on("tensorflow.python.eager.record.record_operation")
def _(it):
    with tf.GradientTape() as tape:
        x, y = tf.constant(1.0), tf.constant(2.0)
        tape.watch(x)
        it("probe", [y], [x], lambda grad: [7.0 * grad], lambda tangent: [tangent])
    assert tape.gradient(y, x) == 7.0


@relied_on("tensorflow.python.eager.record.stop_recording")
def _(it):
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        with it():
            y = x * x
    assert tape.gradient(y, x) is None


@relied_on("tensorflow.python.framework.ops.gradient_registry")
def _(it):
    assert callable(it.lookup("Tanh"))
    with pytest.raises(LookupError):
        it.lookup("no op")


@relied_on("tensorflow.python.framework.registry.Registry()._registry")
def _(registry):
    found = registry("probe")
    found.register(print, "name")
    with pytest.raises(KeyError):
        found.register(print, "name")
    found._registry.pop("name", None)
    found.register(len, "name")
    assert found.lookup("name") is len


@relied_on("tensorflow.python.framework.ops.Operation()._gradient_function")
def _(_):
    with tf.Graph().as_default():
        called = tf.function(lambda: tf.constant(1.0)).get_concrete_function()()
        assert tf.constant(1.0).op._gradient_function is None
    calls = [op for op in called.graph.get_operations() if op.type.endswith("PartitionedCall")]
    assert callable(calls[0]._gradient_function)


@relied_on("tensorflow.python.ops.control_flow_util.GraphOrParentsInXlaContext")
def _(it):
    found = {}

    def trace(jit_compile):
        @tf.function(jit_compile=jit_compile)
        def outer(x):
            inner = tf.function(lambda x: (found.update({jit_compile: it(current())}), x)[1])
            return inner(x)

        current = tf.compat.v1.get_default_graph
        outer.get_concrete_function(tf.constant(1.0))

    trace(True)
    trace(None)
    assert found == {True: True, None: False}


def test_a_custom_gradient_is_named_by_an_attribute():
    with tf.Graph().as_default():
        op = tf.custom_gradient(lambda x: (x, lambda grad: grad))(tf.constant(1.0)).op
    assert op.type == "IdentityN" and "CustomGradient" in op.get_attr("_gradient_op_type").decode()


def test_the_gradient_function_of_a_custom_gradient_has_the_users_in_its_closure():
    def users(grad):
        return grad

    with tf.Graph().as_default():
        op = tf.custom_gradient(lambda x: ([x, x], users))(tf.constant(1.0))[0].op
    registry = resolve("tensorflow.python.framework.ops").gradient_registry
    wrapper = registry.lookup(op.get_attr("_gradient_op_type").decode())
    inner = inspect.getclosurevars(wrapper).nonlocals["tape_grad_fn"]
    found = inspect.getclosurevars(inner).nonlocals
    assert found["grad_fn"] is users and found["flat_result_len"] == 2


def test_the_gradient_function_of_a_loaded_one_has_its_function_in_its_closure(tmp_path):
    module = tf.Module()
    module.f = tf.function(tf.nn.silu, input_signature=[SCALAR])
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(module, tmp_path, options=options)
    registry = resolve("tensorflow.python.framework.ops").gradient_registry
    graph = tf.saved_model.load(tmp_path).f.get_concrete_function().graph
    graphs = [graph, *(function.graph for function in graph._functions.values())]
    operations = [op for each in graphs for op in each.get_operations()]
    (op,) = [op for op in operations if op.type == "IdentityN"]
    wrapper = registry.lookup(op.get_attr("_gradient_op_type").decode())
    function = inspect.getclosurevars(wrapper).nonlocals["func"]
    assert isinstance(function, tf.types.experimental.ConcreteFunction)
    assert function.structured_outputs[0] is None


@relied_on("tensorflow.python.ops.resource_variable_ops.variable_accessed")
def _(it):
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        it(variable)
    assert [v.handle for v in tape.watched_variables()] == [variable.handle]


@relied_on("tensorflow.python.ops.resource_variable_ops.variable_shape")
def _(it):
    shape = it(tf.Variable(tf.zeros([2, 3])).handle, tf.int64)
    assert shape.numpy().tolist() == [2, 3] and shape.dtype == tf.int64


@relied_on("tensorflow.python.ops.default_gradient.supports_default_grad")
def _(it):
    queue = tf.queue.FIFOQueue(1, tf.float32)
    assert it(tf.Variable(1.0).handle) and not it(queue.queue_ref)


@relied_on("tensorflow.python.ops.default_gradient.zeros_like")
def _(it):
    assert it(tf.Variable([1.0, 2.0]).handle).numpy().tolist() == [0.0, 0.0]


def test_types_of_saved_models_can_be_added():
    revived = tf.__internal__.saved_model.load
    version = revived.VersionedTypeRegistration(
        lambda proto: tf.Module(), version=1, min_producer_version=1, min_consumer_version=1
    )
    revived.register_revived_type("test", lambda made: False, [version])
    assert "test" in revived.registered_identifiers()


# --- the runtime ---------------------------------------------------------------------------------


@relied_on("tensorflow.python.eager.cancellation.CancellationManager")
def _(it):
    manager = it()
    assert not manager.is_cancelled
    manager.start_cancel()
    assert manager.is_cancelled


@relied_on("tensorflow.python.eager.cancellation.CancellationManagerContext")
def _(it):
    cancellation = resolve("tensorflow.python.eager.cancellation")
    manager = cancellation.CancellationManager()
    with it(manager):
        assert cancellation.context() is manager
    assert cancellation.context() is None


@relied_on("tensorflow.python.eager.execute.execute_with_cancellation")
def _(it):
    function = tf.function(lambda x: x + 1.0).get_concrete_function(tf.TensorSpec([]))
    current = resolve("tensorflow.python.eager.context.context")()
    attributes = ("executor_type", "SINGLE_THREADED_EXECUTOR")
    attributes += ("config_proto", current.function_call_options.config_proto_serialized)
    manager = resolve("tensorflow.python.eager.cancellation.CancellationManager")()
    call = (function.inference_fn.name, 1, [tf.constant(1.0)], attributes, current, manager)
    assert float(it(*call)[0]) == 2.0
    manager.start_cancel()
    with pytest.raises(tf.errors.CancelledError):
        it(*call)


@relied_on("tensorflow.python.eager.cancellation.context")
def _(it):
    assert it() is None


@relied_on("tensorflow.python.eager.execute.execute")
def _(it):
    function = tf.function(lambda x: (x + 1.0, x)).get_concrete_function(tf.TensorSpec([]))
    current = resolve("tensorflow.python.eager.context.context")()
    options = current.function_call_options
    assert not options.executor_type and isinstance(options.config_proto_serialized, bytes)
    attributes = ("executor_type", "SINGLE_THREADED_EXECUTOR")
    attributes += ("config_proto", options.config_proto_serialized)
    name = function.inference_fn.name
    found = it(name, 2, [tf.constant(1.0)], attributes, current)
    assert [float(tensor) for tensor in found] == [2.0, 1.0]


@relied_on("tensorflow.python.eager.polymorphic_function.atomic_function.InterpolateRuntimeError")
def _(it):
    function = tf.function(lambda x: tf.linalg.inv(x)).get_concrete_function(tf.zeros([2, 2]))
    with pytest.raises(ValueError, match="mine"), it(function.inference_fn):
        raise ValueError("mine")


@relied_on(
    "tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction()._call_flat"
)
def _(it):
    variable = tf.Variable(2.0)
    function = tf.function(lambda x: [x * variable]).get_concrete_function(tf.TensorSpec([]))
    with tf.GradientTape() as tape:
        (found,) = it._call_flat(function, [tf.constant(3.0)], list(function.captured_inputs))
    assert float(found) == 6.0
    assert float(tape.gradient(found, variable)) == 3.0


@relied_on("tensorflow.python.framework.ops.EagerTensor()._datatype_enum")
def _(it):
    assert it._datatype_enum(tf.constant(1.0)) == tf.float32.as_datatype_enum


@relied_on("tensorflow.python.framework.ops.EagerTensor()._handle_data")
def _(it):
    handle = tf.Variable([1.0, 2.0]).handle
    (part,) = handle._handle_data.shape_and_type
    assert tf.TensorShape(part.shape) == [2] and part.dtype == tf.float32
    assert tf.constant(1.0)._handle_data is None


@relied_on("tensorflow.python.framework.ops.EagerTensor()._shape_tuple")
def _(it):
    assert it._shape_tuple(tf.zeros([2, 3])) == (2, 3)


@relied_on("tensorflow.python.eager.context.context")
def _(it):
    with tf.device("CPU:0"):
        assert it().device_name.endswith("CPU:0")
    assert not it().device_name
    assert it().num_gpus() == len(tf.config.list_logical_devices("GPU"))
    tf.debugging.enable_check_numerics()
    try:
        for is_paused, types in ((True, ["Sin"]), (False, ["Sin", "DebugNumericSummaryV2"])):
            graph = resolve("tensorflow.python.framework.func_graph").FuncGraph("callbacks")
            assert it().op_callbacks and not it().invoking_op_callbacks
            it().invoking_op_callbacks = is_paused
            with graph.as_default():
                tf.raw_ops.Sin(x=graph.capture(tf.constant(1.0)))
            it().invoking_op_callbacks = False
            assert set(types) <= {op.type for op in graph.get_operations()}
            assert is_paused == ("CheckNumericsV2" not in {o.type for o in graph.get_operations()})
    finally:
        tf.debugging.disable_check_numerics()
    assert not it().op_callbacks


@relied_on("tensorflow.python.eager.context.Context()._initialized")
def _(context):
    assert context()._initialized is False
    tf.constant(1.0)
    assert resolve("tensorflow.python.eager.context").context()._initialized is True


@relied_on("tensorflow.python.framework.kernels.get_all_registered_kernels")
def _(it):
    assert ("MatMul", "CPU") in {(kernel.op, kernel.device_type) for kernel in it().kernel}


@relied_on("tensorflow.python.framework.op_def_registry.get")
def _(it):
    assert it("Square").name == "Square"
    assert [attr.name for attr in it("Square").attr] == ["T"]


@relied_on("tensorflow.python.framework.ops.EagerTensor")
def _(it):
    assert isinstance(tf.constant(1.0), it)
    with tf.Graph().as_default():
        assert not isinstance(tf.constant(1.0), it)


@relied_on("tensorflow.python.types.core.Tensor")
def _(it):
    assert isinstance(tf.constant(1.0), it) and not isinstance(np.ones(1), it)
    with tf.Graph().as_default():
        assert isinstance(tf.constant(1.0), it)

    class Ours(it):
        dtype, shape = tf.float32, tf.TensorShape([])

        def __tf_tensor__(self, dtype=None, name=None):
            return tf.constant(4.0)

    assert tf.sqrt(Ours()) == 2.0


# --- functions and their graphs ------------------------------------------------------------------


names = (f"traced_{k}" for k in itertools.count())


def traced(function, *specs):
    """The graph of a function, under a name of its own."""
    func_graph = resolve("tensorflow.python.framework.func_graph")
    return func_graph.func_graph_from_py_func(next(names), function, specs, {})


def atomic(graph):
    return resolve(f"{FUNCTION}.from_func_graph")(graph.name, graph, {})


FUNC_GRAPH = "tensorflow.python.framework.func_graph"
FUNCTION = "tensorflow.python.eager.polymorphic_function.atomic_function"
SCALAR = tf.TensorSpec([])


@relied_on(f"{FUNC_GRAPH}.FuncGraph")
def _(it):
    outside, graph = tf.constant(1.0), it("name")
    with graph.as_default():
        placeholder = graph.capture(outside)
        graph.inputs = [tf.compat.v1.placeholder(tf.float32, [])]
        graph.outputs = [placeholder + graph.inputs[0]]
    ((captured, inside),) = graph.captures
    assert captured is outside and inside is placeholder
    assert placeholder.op in graph.get_operations()
    assert graph.control_outputs == [] and graph.structured_outputs is None
    assert graph.outer_graph is tf.compat.v1.get_default_graph()
    assert len(graph.function_captures.capture_types) == 1


@relied_on(f"{FUNC_GRAPH}.FuncGraph()._function_captures")
def _(func_graph):
    outside, graph = tf.constant(1.0), func_graph("name")
    with graph.as_default():
        graph.capture(outside)
    graph._function_captures.clear()
    assert list(graph.captures) == []


@relied_on(f"{FUNC_GRAPH}.FuncGraph()._watched_variables")
def _(func_graph):
    variable, graph = tf.Variable(1.0), func_graph("name")
    with graph.as_default():
        tf.identity(variable)
    (watched,) = graph._watched_variables
    assert watched is variable
    assert any(outside is variable.handle for outside, _ in graph.captures)


@relied_on(f"{FUNC_GRAPH}.func_graph_from_py_func")
def _(it):
    given = resolve(f"{FUNC_GRAPH}.FuncGraph")("given")
    graph = it("name", lambda x: [x, x + 1.0], [SCALAR], {}, func_graph=given)
    assert graph is given and len(graph.inputs) == 1 and len(graph.outputs) == 2
    assert len(graph.structured_outputs) == 2


@relied_on(f"{FUNC_GRAPH}.dismantle_func_graph")
def _(it):
    def make():
        captured = tf.constant(np.ones(10000, np.float32))
        return traced(lambda x: x + captured, SCALAR), weakref.ref(captured)

    gc.disable()
    try:
        graph, reference = make()
        assert reference() is not None
        it(graph)
        assert reference() is None
    finally:
        gc.enable()


@relied_on(f"{FUNCTION}.from_func_graph")
def _(it):
    graph = traced(lambda x: x + 1.0, SCALAR)
    function = it("some_name", graph, {})
    assert function.name == b"some_name" and function.graph is graph
    assert function.cached_definition.signature.name == "some_name"
    assert function(tf.constant(1.0))[0] == 2.0


@relied_on(f"{FUNCTION}.from_function_def")
def _(it):
    original = atomic(traced(lambda x: x + 1.0, SCALAR))
    definition = type(original.cached_definition)()
    definition.CopyFrom(original.cached_definition)
    definition.signature.name = "another_name"
    function = it(definition, original.function_type)
    assert function.name == b"another_name" and function(tf.constant(1.0))[0] == 2.0


@relied_on(f"{FUNCTION}.AtomicFunction")
def _(it):
    original = atomic(traced(lambda x: x + 1.0, SCALAR))
    graph = resolve(f"{FUNC_GRAPH}.FuncGraph")("empty")
    function = it(
        original.name,
        original._bound_context,
        original.function_type,
        original.children,
        original.call_options,
        graph,
    )
    assert function.graph is graph and function(tf.constant(1.0))[0] == 2.0
    assert function.call_flat(tf.constant(1.0))[0] == 2.0
    function.tf_ti_attribute = 1  # is not refused


@relied_on(f"{FUNCTION}.AtomicFunction()._bound_context")
def _(_):
    context = resolve("tensorflow.python.eager.context").context()
    assert atomic(traced(lambda x: x, SCALAR))._bound_context is context


@relied_on(f"{FUNCTION}.AtomicFunction()._children")
def _(_):
    inner = tf.function(lambda x: x + 1.0)
    function = atomic(traced(lambda x: inner(x), SCALAR))
    assert len(function._children) == len(function.children) == 1
    function._children = []
    assert function.children == []


@relied_on(f"{FUNCTION}.AtomicFunction()._cached_graph")
def _(_):
    graph = traced(lambda x: x + 1.0, SCALAR)
    function = atomic(graph)
    assert function._cached_graph is graph
    definition = type(function.cached_definition)()
    definition.CopyFrom(function.cached_definition)
    definition.signature.name = "known_by_its_definition"
    by_definition = resolve(f"{FUNCTION}.from_function_def")(definition, function.function_type)
    assert by_definition._cached_graph is None


@relied_on("tensorflow.python.eager.polymorphic_function.function_type_utils.derive_from_graph")
def _(it):
    found = it(traced(lambda x: (x, x + 1.0), SCALAR))
    assert len(found.flat_outputs) == 2


@relied_on("tensorflow.core.function.trace_type.from_value")
def _(it):
    assert it(()).placeholder_value(None) == ()


@relied_on("tensorflow.core.function.polymorphism.function_type.from_structured_signature")
def _(it):
    from_value = resolve("tensorflow.core.function.trace_type.from_value")
    made = it(((SCALAR,), {}), from_value([tf.constant(1.0)]), {})
    assert len(made.flat_inputs) == 1 and len(made.flat_outputs) == 1


@relied_on("tensorflow.python.eager.polymorphic_function.concrete_function.ConcreteFunction")
def _(it):
    graph = traced(lambda x: [x * x], SCALAR)
    function_type = resolve(
        "tensorflow.core.function.polymorphism.function_type.from_structured_signature"
    )(
        ((SCALAR,), {}),
        resolve("tensorflow.core.function.trace_type.from_value")(graph.structured_outputs),
        graph.function_captures.capture_types,
    )
    function = it.from_func_graph(graph, function_type, {}, shared_func_graph=False)
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = function(x)
    assert tape.gradient(y, x) == 6.0


@relied_on("tensorflow.python.ops.control_flow_util_v2.get_func_graph")
def _(it):
    with tf.Graph().as_default() as graph:
        x = tf.constant(1.0)
        tf.function(lambda x: x + 1.0)(x)
    (op,) = (op for op in graph.get_operations() if op.type.endswith("PartitionedCall"))
    found = it(op, [x.shape], op.get_attr("f").name)
    assert isinstance(found, resolve(f"{FUNC_GRAPH}.FuncGraph"))
    assert found.inputs[0].shape == [] and len(found.outputs) == 1 and found.outer_graph is graph
    assert len(it(op, [None], op.get_attr("f").name).inputs) == 1
    # That is where conditionals find it.
    assert resolve("tensorflow.python.ops.cond_v2").util.get_func_graph is it


@relied_on("tensorflow.python.saved_model.save._trace_gradient_functions")
def _(it):
    """What it looks up in the registry it calls without an operation."""
    calls = []

    def gradient(op, *grads):
        calls.append(op)
        return grads

    registry = resolve("tensorflow.python.framework.ops").gradient_registry
    registry.register(gradient, "CustomGradient-of-the-contract")

    @tf.function(input_signature=[SCALAR])
    def f(x):
        with tf.compat.v1.get_default_graph().gradient_override_map(
            {"IdentityN": "CustomGradient-of-the-contract"}
        ):
            return tf.identity_n([x])[0]

    with tf.Graph().as_default() as graph:
        f.get_concrete_function().add_to_graph(graph)
        view = types.SimpleNamespace(gradient_functions=[], gradient_defs=[])
        it(graph, view)
        assert calls == [None]
        registry._registry.pop("CustomGradient-of-the-contract")
        it(graph, view)
    assert calls == [None]


# --- operations of graphs ------------------------------------------------------------------------

GRAPH, OPERATION = (
    "tensorflow.python.framework.ops.Graph",
    "tensorflow.python.framework.ops.Operation",
)


@relied_on(f"{GRAPH}._create_op_internal")
def _(_):
    op_def = resolve("tensorflow.python.framework.op_def_registry").get("Square")
    attrs = {"T": tf.compat.v1.AttrValue(type=tf.float32.as_datatype_enum)}
    with tf.Graph().as_default() as graph:
        op = graph._create_op_internal(
            "Square", [tf.constant(1.0)], [tf.float32], name="a", attrs=attrs, op_def=op_def
        )
    assert op.type == "Square" and op.name == "a" and op.outputs[0].dtype == tf.float32


C_API = "tensorflow.python.client.pywrap_tf_session"
C_API_UTIL = "tensorflow.python.framework.c_api_util"


def imported_into(graph, names):
    """Adds copies of the operations of another graph to this one, by TensorFlow's C functions."""
    c_api, c_api_util = resolve(C_API), resolve(C_API_UTIL)
    with tf.Graph().as_default() as source:
        made = [tf.compat.v1.placeholder(tf.float32, [2], "x")]
        for k, name in enumerate(names):
            made.append(tf.sin(made[k * k % len(made)], name=name))
    definition = source.as_graph_def()
    del definition.node[0]
    scope = c_api_util.ScopedTFImportGraphDefOptions()
    c_api.TF_ImportGraphDefOptionsSetUniquifyNames(scope.options, True)
    for node in definition.node:
        c_api.TF_ImportGraphDefOptionsAddReturnOperation(scope.options, node.name)
    with graph.as_default():
        given = tf.compat.v1.placeholder(tf.float32, [2], "given")
    output = given._as_tf_output()
    c_api.TF_ImportGraphDefOptionsAddInputMapping(scope.options, "x", 0, output)
    with (
        graph._c_graph.get() as c_graph,
        c_api_util.tf_buffer(definition.SerializeToString()) as buffer,
    ):
        found = c_api.TF_GraphImportGraphDefWithResults(c_graph, buffer, scope.options)
        results = c_api_util.ScopedTFImportGraphDefResults(found)
    graph._add_new_tf_operations(compute_devices=False)
    made = c_api.TF_ImportGraphDefResultsReturnOperations(results.results)
    stack = resolve("tensorflow.python.util.tf_stack").extract_stack()
    for op in made:
        c_api.TF_SetOpStackTrace(op, stack)
    return [graph._get_operation_by_tf_operation(op) for op in made]


@relied_on(f"{C_API}.TF_GraphImportGraphDefWithResults")
@relied_on(f"{C_API}.TF_ImportGraphDefOptionsAddReturnOperation")
@relied_on(f"{C_API}.TF_ImportGraphDefResultsReturnOperations")
@relied_on(f"{C_API_UTIL}.ScopedTFImportGraphDefOptions")
@relied_on(f"{C_API_UTIL}.ScopedTFImportGraphDefResults")
@relied_on(f"{C_API_UTIL}.tf_buffer")
@relied_on(f"{GRAPH}()._c_graph")
@relied_on(f"{GRAPH}._add_new_tf_operations")
@relied_on(f"{GRAPH}._get_operation_by_tf_operation")
def _(_):
    """The operations come in the order of their nodes, each with its shape."""
    names = [f"op_{k}" for k in np.random.default_rng(0).permutation(300)]
    made = imported_into(tf.Graph(), names)
    assert [op.name for op in made] == names
    assert all(op.outputs[0].shape == [2] for op in made)


@relied_on(f"{C_API}.TF_ImportGraphDefOptionsAddInputMapping")
@relied_on("tensorflow.python.framework.tensor.Tensor()._as_tf_output")
def _(_):
    (op,) = imported_into(tf.Graph(), ["a"])
    assert op.inputs[0].op.name == "given"


@relied_on(f"{C_API}.TF_SetOpStackTrace")
def _(_):
    for op in imported_into(tf.Graph(), ["a", "b"]):
        assert op.traceback[-1].name == "imported_into"


@relied_on(f"{C_API}.TF_ImportGraphDefOptionsSetUniquifyNames")
def _(_):
    assert imported_into(tf.Graph(), ["given"])[0].name == "given_1"


@relied_on(f"{GRAPH}()._functions")
def _(_):
    inner = tf.function(lambda x: x + 1.0)
    graph = traced(lambda x: inner(x), SCALAR)
    (function,) = graph._functions.values()
    assert function is graph._get_function(function.name)


@relied_on(f"{GRAPH}._add_function_recursive")
def _(_):
    inner = tf.function(lambda x: x + 1.0)
    function, graph = atomic(traced(lambda x: inner(x), SCALAR)), tf.Graph()
    graph._add_function_recursive(function)
    names = {f.signature.name for f in graph.as_graph_def().library.function}
    assert {function.name.decode(), function.children[0].name.decode()} <= names


@relied_on(f"{GRAPH}._get_function")
def _(_):
    function, graph = atomic(traced(lambda x: x + 1.0, SCALAR)), tf.Graph()
    assert graph._get_function(function.name.decode()) is None
    graph._add_function_recursive(function)
    assert graph._get_function(function.name.decode()) is function


@relied_on(f"{OPERATION}._add_control_inputs")
def _(_):
    with tf.Graph().as_default():
        first, second = tf.no_op(), tf.no_op()
    second._add_control_inputs([first])
    assert list(second.control_inputs) == [first]


@relied_on(f"{OPERATION}._remove_all_control_inputs")
def _(_):
    with tf.Graph().as_default():
        first = tf.no_op()
        with tf.control_dependencies([first]):
            second = tf.no_op()
    second._remove_all_control_inputs()
    assert list(second.control_inputs) == []


@relied_on(f"{OPERATION}._control_outputs")
def _(_):
    with tf.Graph().as_default():
        first = tf.no_op()
        with tf.control_dependencies([first]):
            second = tf.no_op()
    assert list(first._control_outputs) == [second] and not second._control_outputs


@relied_on(f"{OPERATION}._is_stateful")
def _(_):
    graph = traced(lambda x: x + tf.random.uniform([]), SCALAR)
    is_stateful = {op.type: op._is_stateful for op in graph.get_operations()}
    assert is_stateful["RandomUniform"] is True and is_stateful["AddV2"] is False


@relied_on("tensorflow.python.framework.ops.Graph._colocation_stack")
def _(_):
    """It holds the operations that others are colocated with at present."""

    @tf.function(autograph=False)
    def function(x):
        graph = tf.compat.v1.get_default_graph()
        assert not any(graph._colocation_stack.peek_objs())
        with tf.compat.v1.colocate_with(x.op):
            assert any(graph._colocation_stack.peek_objs())
        assert not any(graph._colocation_stack.peek_objs())
        return x

    function(tf.constant(1.0))


@relied_on(f"{OPERATION}._set_attr")
def _(_):
    with tf.Graph().as_default():
        op = tf.no_op()
    op._set_attr("_probe", tf.compat.v1.AttrValue(s=b"value"))
    assert op.get_attr("_probe") == b"value" and op.node_def.attr["_probe"].s == b"value"


@relied_on(f"{OPERATION}._set_func_attr")
def _(_):
    function = atomic(traced(lambda x: x + 1.0, SCALAR))
    with tf.Graph().as_default() as graph:
        graph._add_function_recursive(function)
        op = tf.no_op()
    op._set_func_attr("_probe", function.name.decode())
    assert op.get_attr("_probe").name == function.name.decode()


@relied_on(f"{OPERATION}._set_func_list_attr")
def _(_):
    function = atomic(traced(lambda x: x + 1.0, SCALAR))
    with tf.Graph().as_default() as graph:
        graph._add_function_recursive(function)
        op = tf.no_op()
    op._set_func_list_attr("_probe", [function.name.decode()])
    assert [f.name for f in op.node_def.attr["_probe"].list.func] == [function.name.decode()]


@relied_on(f"{OPERATION}._update_input")
def _(_):
    with tf.Graph().as_default():
        op, other = tf.square(tf.constant(1.0)).op, tf.constant(2.0)
    op._update_input(0, other)
    assert op.inputs[0] is other


@relied_on("tensorflow.python.ops.handle_data_util.get_resource_handle_data")
def _(it):
    with tf.Graph().as_default():
        assert not it(tf.compat.v1.placeholder(tf.variant, [])).is_set
        array = tf.raw_ops.TensorListReserve(
            element_shape=[2], num_elements=1, element_dtype=tf.float32
        )
        data = it(array)
    assert data.is_set
    assert [tf.as_dtype(part.dtype) for part in data.shape_and_type] == [tf.float32]


@relied_on("tensorflow.python.ops.handle_data_util.copy_handle_data")
def _(it):
    get = resolve("tensorflow.python.ops.handle_data_util.get_resource_handle_data")
    with tf.Graph().as_default():
        array = tf.raw_ops.TensorListReserve(
            element_shape=[2], num_elements=1, element_dtype=tf.float32
        )
        placeholder = tf.compat.v1.placeholder(tf.variant, [])
        it(array, placeholder)
        assert get(placeholder) == get(array)


@relied_on("tensorflow.python.ops.handle_data_util.set_handle_data")
def _(it):
    get = resolve("tensorflow.python.ops.handle_data_util.get_resource_handle_data")
    with tf.Graph().as_default():
        array = tf.raw_ops.TensorListReserve(
            element_shape=[2], num_elements=1, element_dtype=tf.float32
        )
        data = get(array)
        (element,) = data.shape_and_type
        element.shape.CopyFrom(tf.TensorShape([3, 2]).as_proto())
        copy = tf.compat.v1.placeholder(tf.variant, [])
        it(copy, data)
        item = tf.raw_ops.TensorListGetItem(
            input_handle=copy, index=0, element_shape=-1, element_dtype=tf.float32
        )
    assert item.shape.as_list() == [3, 2]


# --- look-ups ------------------------------------------------------------------------------------

LOOKUPS = "tensorflow.python.ops.embedding_ops"


@relied_on(f"{LOOKUPS}.embedding_lookup_sparse_impl")
def _(it):
    assert parameters(it) == [
        "params",
        "segment_ids",
        "sp_weights",
        "ids",
        "combiner",
        "ignore_weights",
        "max_norm",
        "allow_fast_lookup",
        "partition_strategy",
        "name",
    ]
    module, seen = resolve(LOOKUPS), []

    def look_up(params, segment_ids, sp_weights, ids, combiner, ignore_weights, *others):
        seen.append((params, segment_ids, ids, combiner, ignore_weights))
        return it(params, segment_ids, sp_weights, ids, combiner, ignore_weights, *others)

    table, ragged = tf.eye(4), tf.ragged.constant([[1, 2], [3]], dtype=tf.int64)
    module.embedding_lookup_sparse_impl = look_up
    try:
        for ids in (ragged, ragged.to_sparse()):
            tf.nn.embedding_lookup_sparse(table, ids, None)
            tf.nn.safe_embedding_lookup_sparse(table, ids, None)
    finally:
        module.embedding_lookup_sparse_impl = it
    assert len(seen) == 4
    for params, segment_ids, ids, combiner, ignore_weights in seen:
        assert len(params) == 1 and combiner == "mean" and ignore_weights
        np.testing.assert_array_equal(segment_ids, [0, 0, 1])
        np.testing.assert_array_equal(ids, [1, 2, 3])


# --- while loops ---------------------------------------------------------------------------------

WHILE = "tensorflow.python.ops.while_v2"


def count_up(limit=None):
    """A loop in a function, whose body captures a tensor."""
    by, total = tf.constant(2.0), tf.zeros([])
    options = {} if limit is None else {"maximum_iterations": limit}
    return tf.while_loop(lambda x: x < 9.0, lambda x: [x + by], [total], **options)[0]


@relied_on(f"{WHILE}._build_while_op")
def _(it):
    assert parameters(it) == [
        "loop_vars",
        "cond_graph",
        "body_graph",
        "output_shapes",
        "parallel_iterations",
        "name",
        "num_original_outputs",
    ]
    module, seen = resolve(WHILE), []

    def build(loop_vars, cond_graph, body_graph, output_shapes, name, **options):
        seen.append((loop_vars, cond_graph, body_graph, output_shapes, name))
        return it(loop_vars, cond_graph, body_graph, output_shapes, name=name, **options)

    module._build_while_op = build
    try:
        for limit in (None, 3):
            assert tf.function(count_up)(limit) == (10.0 if limit is None else 6.0)
    finally:
        module._build_while_op = it
    for limited, (loop_vars, condition, body, shapes, name) in zip((False, True), seen):
        # A counter, the limit, the user's variable, what was captured.
        assert [t.dtype for t in loop_vars] == [tf.int32, tf.int32, tf.float32, tf.float32]
        assert len(condition.inputs) == len(body.inputs) == len(body.outputs) == 4
        assert bool(condition.inputs[1].consumers()) == limited
        (test,) = condition.outputs
        assert test.op.type == "Identity"
        assert (test.op.inputs[0].op.type == "LogicalAnd") == limited
        assert len(body.internal_captures + body.deferred_internal_captures) == 1
        assert len(shapes) == 4 and name == "while/"
        assert isinstance(body, resolve(f"{FUNC_GRAPH}.FuncGraph"))


@relied_on("tensorflow.python.ops.control_flow_util_v2.WhileBodyFuncGraph")
def _(it):
    # The body of a loop that is a gradient is of another class.
    assert type(resolve(WHILE)._WhileBodyGradFuncGraph) is type
    assert resolve(WHILE)._WhileBodyGradFuncGraph.__bases__ == (it,)


@relied_on(f"{FUNC_GRAPH}.FuncGraph()._add_control_dependencies")
def _(func_graph):
    found = []

    def look():
        graph = tf.compat.v1.get_default_graph()
        found.append((graph.building_function, graph._add_control_dependencies))
        return tf.constant(0)

    tf.function(look)()
    tf.compat.v1.wrap_function(look, [])
    with tf.Graph().as_default():
        look()
    assert found == [(True, True), (True, False), (False, False)]


@relied_on("tensorflow.python.util.tf_stack.extract_stack")
def _(it):
    frame = it()[-1]
    assert frame.filename == __file__ and frame.lineno > 0 and frame.name == "_"


@relied_on("tensorflow.python.util.tf_stack.StackTraceFilter")
def _(it):
    extract = resolve("tensorflow.python.util.tf_stack.extract_stack")

    class WithoutThis(it):
        def get_filtered_filenames(self):
            return frozenset([__file__]) | self.parent.get_filtered_filenames()

    with WithoutThis():
        assert __file__ not in {frame.filename for frame in extract()}
    assert extract()[-1].filename == __file__


@relied_on("tensorflow.python.eager.polymorphic_function.polymorphic_function.Function()._clone")
def _(function):
    original = tf.function(lambda x: x + 1.0, input_signature=[tf.TensorSpec([])], autograph=False)
    assert type(original) is function
    copy = original._clone(lambda x: x + 2.0)
    assert copy(1.0) == 3.0 and copy.input_signature == original.input_signature


# --- automatic control dependencies --------------------------------------------------------------


@relied_on("tensorflow.python.framework.auto_control_deps._acd_resource_resolvers_registry")
def _(it):
    variable, seen = tf.Variable(1.0), []

    def resolver(op, reads, writes):
        seen.append((op.type, len(reads), len(writes)))
        return False

    it.register(resolver, "probe")
    try:
        tf.function(lambda: variable.assign(variable.read_value())).get_concrete_function()
    finally:
        it._registry.pop("probe")
    assert {("ReadVariableOp", 1, 0), ("AssignVariableOp", 0, 1)} <= set(seen)


@relied_on("tensorflow.python.framework.auto_control_deps.AutomaticControlDependencies")
def _(it):
    with tf.Graph().as_default(), it():
        handle = tf.compat.v1.placeholder(tf.resource, [])
        write = tf.raw_ops.AssignVariableOp(resource=handle, value=1.0)
        read = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32).op
    assert read.control_inputs == [write]


@relied_on("tensorflow.python.framework.auto_control_deps.op_is_stateful")
def _(it):
    with tf.Graph().as_default():
        check = tf.raw_ops.Assert(condition=True, data=["wrong"])
        assert it(check)
        assert not it(tf.constant(1.0).op) and not it(tf.random.uniform([]).op)


@relied_on("tensorflow.python.framework.auto_control_deps_utils.register_read_only_resource_op")
def _(it):
    utils = resolve("tensorflow.python.framework.auto_control_deps_utils")
    it("ReadVariableOp")  # once more is no error
    with tf.Graph().as_default():
        op = tf.raw_ops.ReadVariableOp(
            resource=tf.compat.v1.placeholder(tf.resource, []), dtype=tf.float32
        ).op
    reads, writes = utils.get_read_write_resource_inputs(op)
    assert len(reads) == 1 and not writes


UTILS = "tensorflow.python.framework.auto_control_deps_utils"


@relied_on(f"{UTILS}.get_read_write_resource_inputs")
@relied_on(f"{UTILS}.get_read_only_resource_input_indices_graph")
def _(_):
    utils = resolve(UTILS)
    read, written = tf.Variable(1.0), tf.Variable(2.0)
    branch = lambda: written.assign(tf.cond(read > 0.0, lambda: read + 1.0, lambda: 0.0))  # noqa: E731
    graph = tf.function(branch).get_concrete_function().graph
    (conditional,) = (op for op in graph.get_operations() if op.type == "If")
    assign = next(op for op in graph.get_operations() if op.type == "AssignVariableOp")
    handles = {source.ref(): inside for source, inside in graph.captures}
    reads, writes = utils.get_read_write_resource_inputs(conditional)
    assert [t is handles[read.handle.ref()] for t in reads] == [True] and not writes
    reads, writes = utils.get_read_write_resource_inputs(assign)
    assert [t is handles[written.handle.ref()] for t in writes] == [True] and not reads
    found = utils.get_read_only_resource_input_indices_graph(graph)
    assert [graph.inputs[i] is handles[read.handle.ref()] for i in found] == [True]


@relied_on(f"{UTILS}.READ_ONLY_RESOURCE_INPUTS_ATTR")
@relied_on("tensorflow.python.framework.ops.set_int_list_attr")
def _(_):
    utils, ops = resolve(UTILS), resolve("tensorflow.python.framework.ops")
    with tf.Graph().as_default():
        handles = [tf.compat.v1.placeholder(tf.resource, []) for _ in range(2)]
        op = tf.raw_ops.AssignVariableOp(resource=handles[0], value=1.0)
        ops.set_int_list_attr(op, utils.READ_ONLY_RESOURCE_INPUTS_ATTR, [0])
    reads, writes = utils.get_read_write_resource_inputs(op)
    assert len(reads) == 1 and not writes


# --- freezing ------------------------------------------------------------------------------------

CONSTANTS = "tensorflow.python.framework.convert_to_constants"


@relied_on(f"{CONSTANTS}._Node")
def _(it):
    assert parameters(it.new) == ["node", "function", "enclosing_graph"]
    assert parameters(it.convert_variable_to_constant)[1:] == ["incoming_edge", "tensor_data"]
    assert isinstance(it.node, property) and callable(it.add_outgoing_edge)
    assert isinstance(it.outgoing_edges, property)
    usual, kinds, created = it.new, set(), []

    class Probe(it):
        def create_edges(self):
            created.append((self._enclosing_graph, self.node, self.container))
            super().create_edges()

    def new(node, function, enclosing_graph):
        kinds.add(node.op)
        make = Probe if node.op == "Neg" else usual
        return make(node, function, enclosing_graph)

    variable = tf.Variable(1.0)
    it.new = staticmethod(new)
    try:
        frozen = freeze(tf.function(lambda: -variable).get_concrete_function())
    finally:
        it.new = staticmethod(usual)
    assert {"ReadVariableOp", "Neg"} <= kinds and frozen()[0] == -1.0
    graph, node, container = created[0]
    assert isinstance(graph.functions, dict) and node.op == "Neg"
    assert node in list(container.node)  # of a graph; of a function, `node_def`


@relied_on(f"{CONSTANTS}._Convertible()._enclosing_graph")
def _(_):
    node, graph = tf.compat.v1.NodeDef(op="Neg"), object()
    assert resolve(f"{CONSTANTS}._Node")(node, None, graph)._enclosing_graph is graph


@relied_on(f"{CONSTANTS}._Convertible()._converted_self")
def _(_):
    node = tf.compat.v1.NodeDef(op="Neg")
    assert resolve(f"{CONSTANTS}._Node")(node, None, object())._converted_self is None


@relied_on(f"{CONSTANTS}._FunctionCaller")
def _(it):
    assert issubclass(it, resolve(f"{CONSTANTS}._Node"))
    assert parameters(it) == [
        "node",
        "function",
        "enclosing_graph",
        "first_function_input",
        "type_attribute",
        "function_attributes",
    ]


@relied_on(f"{CONSTANTS}._Function")
def _(it):
    assert parameters(it.convert_variable_to_constant)[1:] == ["incoming_edge", "tensor_data"]


@relied_on(f"{CONSTANTS}._EndPoint")
def _(it):
    point = it("convertible", 3)
    assert (point.convertible, point.index) == ("convertible", 3)


@relied_on(f"{CONSTANTS}._Edge")
def _(it):
    edge = it("source", "destination")
    assert (edge.source, edge.destination) == ("source", "destination")


# --- structures and composite tensors ------------------------------------------------------------


@relied_on("tensorflow.python.util.nest_util.Modality")
def _(it):
    assert it.CORE.name == "CORE"


@relied_on("tensorflow.python.util.nest_util.yield_sorted_items")
def _(it):
    core = resolve("tensorflow.python.util.nest_util.Modality").CORE
    assert list(it(core, {"b": 1, "a": 2})) == [("a", 2), ("b", 1)]
    assert list(it(core, [3, 4])) == [(0, 3), (1, 4)]


@relied_on("tensorflow.python.util.nest_util.sequence_like")
def _(it):
    assert it({"b": 1, "a": 2}, [3, 4]) == {"b": 4, "a": 3}
    assert it((1, 2), [3, 4]) == (3, 4)


@relied_on("tensorflow.python.framework.composite_tensor.CompositeTensor")
def _(it):
    assert isinstance(tf.ragged.constant([[1]]), it) and not isinstance(tf.constant(1), it)


SPEC = "tensorflow.python.framework.type_spec.BatchableTypeSpec"
RAGGED = tf.ragged.constant([[[1], [2, 3]], [[4]]])
ROW = tf.RaggedTensorSpec([None, None], tf.int32, 1)


@relied_on(SPEC)
def _(it):
    assert issubclass(tf.RaggedTensorSpec, it) and issubclass(tf.SparseTensorSpec, it)
    assert not issubclass(tf.TensorArraySpec, it)


@relied_on(
    "tensorflow.python.framework.composite_tensor.CompositeTensor._shape_invariant_to_type_spec"
)
def _(_):
    shape = tf.TensorShape([None, None, None])
    assert RAGGED._shape_invariant_to_type_spec(shape) == tf.RaggedTensorSpec(shape, tf.int32, 2)


@relied_on("tensorflow.python.framework.extension_type.ExtensionTypeSpec._tf_extension_type_fields")
def _(_):
    class Pair(tf.experimental.ExtensionType):
        first: tf.Tensor
        second: tuple[tf.Tensor, ...]

    spec = tf.type_spec_from_value(Pair(tf.ones([2]), (tf.ones([]),)))
    assert [field.name for field in spec._tf_extension_type_fields()] == ["first", "second"]
    assert type(spec)(first=spec.first, second=spec.second) == spec


ARRAY = "tensorflow.python.ops.tensor_array_ops"


@relied_on(f"{ARRAY}.TensorArray()._implementation")
@relied_on(f"{ARRAY}._EagerTensorArray")
@relied_on(f"{ARRAY}._EagerTensorArray()._previously_read_indices")
@relied_on(f"{ARRAY}._EagerTensorArray()._tensor_array")
def _(_):
    array = tf.TensorArray(tf.int32, 3)
    assert array.write(1, 7).write(2, 8).read(1) == 7
    implementation = array._implementation
    assert type(implementation) is resolve(f"{ARRAY}._EagerTensorArray")
    assert implementation._tensor_array == [None, None, 8]
    assert implementation._previously_read_indices == [1]
    assert implementation.parent() is array  # it is a weak reference


@relied_on(f"{ARRAY}.build_ta_with_new_flow")
def _(it):
    with tf.Graph().as_default():
        array = tf.TensorArray(tf.int32, 3)
        other = it(array, tf.identity(array.flow))
        assert other.write(0, [1, 2]).element_shape == array.element_shape == [2]


@relied_on(f"{SPEC}._unbatch")
def _(_):
    assert tf.type_spec_from_value(RAGGED)._unbatch() == ROW


@relied_on(f"{SPEC}._batch")
def _(_):
    assert ROW._batch(2) == tf.type_spec_from_value(RAGGED)


@relied_on(f"{SPEC}._flat_tensor_specs")
def _(_):
    assert [spec.dtype for spec in ROW._flat_tensor_specs] == [tf.variant]


@relied_on(f"{SPEC}._to_tensor_list")
def _(_):
    (encoded,) = ROW._to_tensor_list(RAGGED[0])
    assert encoded.dtype == tf.variant and encoded.shape == []


@relied_on(f"{SPEC}._to_batched_tensor_list")
def _(_):
    (encoded,) = tf.type_spec_from_value(RAGGED)._to_batched_tensor_list(RAGGED)
    assert encoded.dtype == tf.variant and encoded.shape == [2]


@relied_on(f"{SPEC}._from_compatible_tensor_list")
def _(_):
    spec = tf.type_spec_from_value(RAGGED)
    (rows,) = spec._to_batched_tensor_list(RAGGED)
    assert spec._from_compatible_tensor_list([rows]).to_list() == RAGGED.to_list()
    assert ROW._from_compatible_tensor_list([rows[0]]).to_list() == RAGGED[0].to_list()


def test_extension_types_have_batch_encoders():
    class Both(tf.experimental.BatchableExtensionType):
        row: tf.RaggedTensor
        number: tf.Tensor

    value = Both(RAGGED, tf.range(2))
    spec = tf.type_spec_from_value(value)
    encoder = spec.__batch_encoder__
    encoding = tf.nest.flatten(encoder.encoding_specs(spec))
    assert encoding == [spec.row, spec.number]
    encoded = encoder.encode(spec, value, minimum_rank=1)
    assert [type(part) for part in tf.nest.flatten(encoded)] == [type(RAGGED), type(value.number)]
    assert encoder.decode(spec, encoded).row.to_list() == RAGGED.to_list()


# --- vectorisation -------------------------------------------------------------------------------

PFOR = "tensorflow.python.ops.parallel_for.pfor"


def vectorized(converter):
    """A converter of Softsign at work: the results of a vectorised map of it."""
    registry = resolve(f"{PFOR}._pfor_converter_registry")
    usual = registry.pop("Softsign")
    try:
        assert resolve(f"{PFOR}.RegisterPFor")("Softsign")(converter) is converter
        return tf.vectorized_map(tf.math.softsign, tf.constant([1.0, 3.0])).numpy().tolist()
    finally:
        registry["Softsign"] = usual


@relied_on(f"{PFOR}.RegisterPFor")
def _(_):
    pfor = resolve(PFOR)

    def convert(pfor_input):
        assert pfor_input.op.type == pfor_input.op_type == "Softsign"
        (wrapped,) = pfor_input.inputs
        assert pfor_input.input(0) is wrapped and wrapped.is_stacked
        return pfor.wrap(wrapped.t + 1.0, True)

    assert vectorized(convert) == [2.0, 4.0]


@relied_on(f"{PFOR}._pfor_converter_registry")
def _(it):
    assert callable(it["AddN"]) and callable(it["ZerosLike"])


@relied_on(f"{PFOR}._fallback_converter")
def _(it):
    assert vectorized(lambda given: it(given, "cause", given.pfor._warn)) == [0.5, 0.75]


@relied_on(f"{PFOR}.wrap")
def _(it):
    tensor = tf.constant([1.0])
    wrapped = it(tensor, True)
    assert wrapped.t is tensor and wrapped.is_stacked is True


@relied_on(f"{PFOR}.ConversionNotImplementedError")
def _(it):
    assert issubclass(it, Exception) and str(it("cause")) == "cause"


@relied_on(f"{PFOR}.PFor")
def _(it):
    assert parameters(it) == [
        "loop_var",
        "loop_len",
        "pfor_ops",
        "fallback_to_while_loop",
        "all_indices",
        "all_indices_partitioned",
        "pfor_config",
        "warn",
    ]

    def convert(pfor_input):
        pfor = pfor_input.pfor
        assert isinstance(pfor, it) and pfor.loop_var.dtype == tf.int32
        assert pfor.fallback_to_while_loop and not pfor.all_indices_partitioned
        assert pfor.pfor_config is None or callable(pfor.pfor_config.reduce)
        assert pfor.loop_len_vector.shape == [1] and pfor.all_indices.shape == [2]
        return pfor_input.inputs[0]

    assert vectorized(convert) == [1.0, 3.0]


@relied_on(f"{PFOR}.PFor()._warn")
def _(_):
    def convert(pfor_input):
        assert isinstance(pfor_input.pfor._warn, bool)
        return pfor_input.inputs[0]

    assert vectorized(convert) == [1.0, 3.0]


def inner_pfor():
    """A conversion of x + 1 with x in two lanes, and the tensors of it."""
    pfor = resolve(PFOR)
    graph = traced(lambda x: x + 1.0, SCALAR)
    lane = tf.compat.v1.placeholder_with_default(0, [])
    made = pfor.PFor(lane, 2, graph.get_operations(), True)
    return pfor, made, graph


@relied_on(f"{PFOR}.PFor._add_conversion")
def _(_):
    with tf.Graph().as_default():
        pfor, made, graph = inner_pfor()
        stacked = pfor.wrap(tf.constant([1.0, 2.0]), True)
        made._add_conversion(graph.inputs[0], stacked)
        assert made._convert_helper(graph.inputs[0]) is stacked


@relied_on(f"{PFOR}.PFor._convert_helper")
def _(_):
    with tf.Graph().as_default():
        pfor, made, graph = inner_pfor()
        made._add_conversion(graph.inputs[0], pfor.wrap(tf.constant([1.0, 2.0]), True))
        wrapped = made._convert_helper(graph.outputs[0])
        assert wrapped.is_stacked
        assert tf.compat.v1.Session().run(wrapped.t).tolist() == [2.0, 3.0]


@relied_on(f"{PFOR}.PFor._unwrap_or_tile")
def _(_):
    with tf.Graph().as_default():
        pfor, made, _ = inner_pfor()
        tensor = tf.constant([1.0, 2.0])
        assert made._unwrap_or_tile(pfor.wrap(tensor, True)) is tensor
        tiled = made._unwrap_or_tile(pfor.wrap(tensor, False))
        assert tf.compat.v1.Session().run(tiled).tolist() == [[1.0, 2.0], [1.0, 2.0]]


# --- Keras ---------------------------------------------------------------------------------------


def parameters_are(*names):
    def check(method):
        assert parameters(method)[1:] == list(names)

    return check


OPTIMIZER = "keras.optimizers.Optimizer"
for _layer in ("LSTM", "GRU", "SimpleRNN"):
    relied_on(f"keras.layers.{_layer}.inner_loop")(
        parameters_are("sequences", "initial_state", "mask", "training")
    )
relied_on(f"{OPTIMIZER}._apply_weight_decay")(parameters_are("variables"))


def optimizer(kind, **arguments):
    """An optimizer and a variable that it has slots for."""
    variable = keras.Variable([[3.0], [4.0]])
    made = kind(**arguments)
    made.build([variable])
    return made, variable


@relied_on(f"{OPTIMIZER}._overwrite_variables_directly_with_gradients")
def _(it):
    assert parameters(it)[1:] == ["grads", "vars"]

    class Probe(keras.optimizers.SGD):
        def _overwrite_variables_directly_with_gradients(self, grads, vars):
            grads, vars = super()._overwrite_variables_directly_with_gradients(grads, vars)
            return [2.0 * grad for grad in grads], vars

    made, variable = optimizer(Probe, learning_rate=1.0, loss_scale_factor=2.0)
    made.apply([tf.ones([2, 1])], [variable])
    assert variable.numpy().tolist() == [[2.0], [3.0]]  # divided afterwards


@relied_on(f"{OPTIMIZER}._backend_apply_gradients")
def _(it):
    assert parameters(it)[1:] == ["grads", "trainable_variables"]
    seen = []

    class Probe(keras.optimizers.SGD):
        def _backend_apply_gradients(self, grads, trainable_variables):
            seen.append((grads, trainable_variables))

    made, variable = optimizer(Probe, learning_rate=1.0, clipnorm=0.1, weight_decay=0.1)
    grad = tf.ones([2, 1])
    made.apply([grad], [variable])
    ((grads, variables),) = seen
    assert grads[0] is grad and variables[0] is variable
    assert variable.numpy().tolist() == [[3.0], [4.0]]  # all is done in there
    assert made.iterations == 1


@relied_on(f"{OPTIMIZER}._clip_gradients")
def _(_):
    made, _ = optimizer(keras.optimizers.SGD, clipnorm=1.0)
    (clipped,) = made._clip_gradients([tf.constant([3.0, 4.0])])
    np.testing.assert_allclose(clipped, [0.6, 0.8], rtol=1e-6)


@relied_on(f"{OPTIMIZER}._use_weight_decay")
def _(_):
    made, variable = optimizer(keras.optimizers.SGD, weight_decay=0.1)
    assert made._use_weight_decay(variable) is True
    made, variable = optimizer(keras.optimizers.SGD, weight_decay=0.1)
    made.exclude_from_weight_decay([variable])
    assert made._use_weight_decay(variable) is False


@relied_on(f"{OPTIMIZER}._backend_update_step")
def _(it):
    assert parameters(it)[1:] == ["grads", "trainable_variables", "learning_rate"]
    seen = []

    class Probe(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            seen.append((type(gradient), variable.shape, float(learning_rate)))

    made, variable = optimizer(Probe)
    rows = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([0]), tf.constant([2, 1]))
    made._backend_update_step([rows], [variable], 0.5)
    assert seen == [(tf.IndexedSlices, (2, 1), 0.5)]


@relied_on(f"{OPTIMIZER}._get_variable_index")
def _(_):
    made, variable = optimizer(keras.optimizers.SGD)
    assert made._get_variable_index(variable) == 0
    assert made._get_variable_index(variable.value) == 0


@relied_on(f"{OPTIMIZER}()._distribution_strategy")
def _(_):
    made, _ = optimizer(keras.optimizers.SGD)
    assert made._distribution_strategy is tf.distribute.get_strategy()


@relied_on("keras.optimizers.Adagrad()._accumulators")
def _(_):
    made, variable = optimizer(keras.optimizers.Adagrad, initial_accumulator_value=0.5)
    assert [slot.value.numpy().tolist() for slot in made._accumulators] == [[[0.5], [0.5]]]
    made._accumulators = list(made._accumulators)
    made.apply([tf.ones([2, 1])], [variable])
    assert made._accumulators[0].value.numpy().tolist() == [[1.5], [1.5]]


@relied_on("keras.optimizers.Adam()._momentums")
def _(_):
    made, variable = optimizer(keras.optimizers.Adam, beta_1=0.5)
    made.apply([tf.ones([2, 1])], [variable])
    assert made._momentums[0].value.numpy().tolist() == [[0.5], [0.5]]


@relied_on("keras.optimizers.Adam()._velocities")
def _(_):
    made, variable = optimizer(keras.optimizers.Adam, beta_2=0.5)
    made.apply([tf.ones([2, 1])], [variable])
    assert made._velocities[0].value.numpy().tolist() == [[0.5], [0.5]]


@relied_on("keras.layers.LSTMCell.get_dropout_mask")
def _(_):
    cell = keras.layers.LSTMCell(2, dropout=0.5)
    assert set(cell.get_dropout_mask(tf.ones([3, 4])).numpy().ravel()) <= {0.0, 2.0}


@relied_on("keras.layers.LSTMCell().dropout_mask_count")
def _(_):
    of_implementation = {
        implementation: getattr(layer.cell, "dropout_mask_count", None)
        for implementation in (1, 2)
        for layer in [keras.layers.LSTM(2, implementation=implementation)]
    }
    assert of_implementation == {1: 4, 2: None}


@relied_on("keras.layers.Layer()._call_has_training_arg")
def _(_):
    assert keras.layers.LSTMCell(2)._call_has_training_arg
    assert not keras.layers.Embedding(2, 2)._call_has_training_arg


@relied_on("keras.src.models.functional.Functional")
def _(functional):
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    assert type(model) is functional and {"layers", "output_layers"} <= model.get_config().keys()


@relied_on("keras.src.models.functional.functional_like_constructor")
def _(is_like):
    class Plain(keras.Model):
        pass

    class Own(keras.Model):
        def __init__(self, units):
            inputs = keras.Input((2,))
            super().__init__(inputs, keras.layers.Dense(units)(inputs))

    inputs = keras.Input((2,))
    plain, own = Plain(inputs, keras.layers.Dense(1)(inputs)), Own(1)
    assert is_like(type(plain)) and "layers" in plain.get_config()
    assert not is_like(type(own)) and "layers" not in own.get_config()


@relied_on("keras.layers.Layer()._flatten_layers")
def _(_):
    inner = keras.layers.Bidirectional(keras.layers.LSTM(2))
    found = list(keras.Sequential([inner])._flatten_layers())
    assert inner in found and inner.forward_layer in found and inner.backward_layer in found


for _name in ("Sum", "Mean", "Max", "NotEqual"):

    @relied_on(f"keras.src.ops.numpy.{_name}")
    def _(operation, name=_name):
        x = keras.Input((3,))
        y = {
            "Sum": keras.ops.sum,
            "Mean": keras.ops.mean,
            "Max": keras.ops.max,
            "NotEqual": lambda x: keras.ops.not_equal(x, 0),
        }[name](x)
        (made,) = (each for each in keras.Model(x, y).operations if type(each) is operation)
        written = keras.saving.serialize_keras_object(made)
        assert (written["module"], written["class_name"]) == (operation.__module__, name)


@relied_on("keras.src.saving.serialization_lib.SafeModeScope")
def _(scope):
    layer = keras.layers.Lambda(lambda x: 2 * x)
    with scope(safe_mode=False):
        assert keras.layers.Lambda.from_config(layer.get_config()).function(3.0) == 6.0


@relied_on("keras.Sequential()._compile_config")
def _(_):
    model, loss = keras.Sequential(), keras.losses.MeanSquaredError()
    model.compile("sgd", loss)
    arguments = model._compile_config.config
    assert arguments["loss"] is loss
    assert set(arguments) <= set(inspect.signature(model.compile).parameters)


@relied_on("keras.optimizers.SGD()._trainable_variables")
def _(_):
    for inner in ({}, {"inner_optimizer": keras.optimizers.SGD()}):
        kind = keras.optimizers.LossScaleOptimizer if inner else keras.optimizers.SGD
        made, variable = optimizer(kind, **inner)
        assert [each is variable for each in made._trainable_variables] == [True]


def test_keras_runs_the_inner_loop_of_a_layer_with_its_states():
    seen = []

    class Probe(keras.layers.LSTM):
        def inner_loop(self, sequences, initial_state, mask, training=False):
            seen.append((sequences.shape, [state.shape for state in initial_state], mask))
            return super().inner_loop(sequences, initial_state, mask=mask, training=training)

    layer = Probe(2, return_sequences=True)
    assert layer(tf.ones([3, 4, 5])).shape == [3, 4, 2] and layer.zero_output_for_mask is False
    assert seen == [((3, 4, 5), [(3, 2), (3, 2)], None)]


# --- each name -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(RELIED_ON))
def test_the_private_name(name):
    RELIED_ON[name](resolve(name))


# --- where the names are used --------------------------------------------------------------------

PRIVATE = ("tensorflow.python", "tensorflow.core", "keras.src")
# Of Python: the fields of a named tuple.
PYTHON = {"_fields"}


def modules(folder):
    found = {path: ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))}
    assert found
    return found


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def imported(tree):
    """The imports of a module, as (the name there, the full name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.asname or a.name, a.name) for a in node.names)


def attributes(tree):
    """The attributes that a module accesses, as (of what, the name); by getattr and so on too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.value, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in ("getattr", "hasattr", "setattr"):
                if isinstance(node.args[1], ast.Constant):
                    yield node.args[0], node.args[1].value


def is_own(node):
    """True for self, cls and super()."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ("self", "cls", "super")


def defined(tree):
    """The private attributes of a module's own classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef):
                    yield part.name
                elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                    yield part.target.id
                elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                    if is_own(part.value):
                        yield part.attr


def test_private_names_of_tensorflow_are_used_in_one_place():
    wrong = []
    for path, tree in modules(PACKAGE).items():
        if path.parent == PACKAGE / "_tf" or path == PACKAGE / "keras" / "_internals.py":
            continue
        names = dict(imported(tree))
        wrong += [f"{path}: {name}" for name in names.values() if name.startswith(PRIVATE)]
        ours = {name for name, full in names.items() if full.startswith("tf_ti")}
        known = {*PYTHON, *defined(tree)}
        for owner, name in attributes(tree):
            is_known = name in known or name.startswith("_tf_ti_") or is_own(owner)
            is_module = isinstance(owner, ast.Name) and owner.id in {"sys", "threading", *ours}
            if is_private(name) and not is_known and not is_module:
                wrong.append(f"{path}: {ast.unparse(owner)}.{name}")
    assert wrong == []


def test_private_names_of_keras_are_used_in_one_place():
    objects = [keras.layers.LSTM(1), keras.layers.GRU(1), keras.layers.SimpleRNN(1)]
    objects += [optimizer(keras.optimizers.Adam)[0], optimizer(keras.optimizers.Adagrad)[0]]
    of_keras = {name for each in objects for name in dir(each) if is_private(name)}
    wrong = []
    for path, tree in modules(PACKAGE / "keras").items():
        if path.name != "_internals.py":
            names = {name for _, name in attributes(tree)} | set(defined(tree))
            wrong += [f"{path}: {name}" for name in sorted(names & of_keras)]
    assert wrong == []


def test_each_private_name_of_tensorflow_that_is_used_has_a_test():
    listed = {name for name in RELIED_ON if name.startswith("tensorflow.")}
    used, used_attributes = set(), set()
    for tree in modules(PACKAGE / "_tf").values():
        names = {name: full for name, full in imported(tree) if full.startswith(PRIVATE)}
        for owner, name in attributes(tree):
            if isinstance(owner, ast.Name) and owner.id in names:
                used.add(f"{names[owner.id]}.{name}")
            elif is_private(name):
                used_attributes.add(name)
    listed_attributes = {name for name in listed - used if is_private(name.rsplit(".", 1)[1])}
    assert used - listed == set()
    assert used_attributes == {name.rsplit(".", 1)[1] for name in listed_attributes}
    assert listed - used - listed_attributes == set()


def test_each_private_name_of_keras_that_is_used_has_a_test():
    trees = modules(PACKAGE / "keras")
    tree = trees.pop(PACKAGE / "keras" / "_internals.py")
    used = {name for _, name in attributes(tree)} | set(defined(tree))
    used = {name for name in used if is_private(name)}
    ours = {name for other in trees.values() for name in defined(other)}
    listed = {name.rsplit(".", 1)[1] for name in RELIED_ON if name.startswith("keras.")}
    assert used - ours == {name for name in listed if is_private(name)}
