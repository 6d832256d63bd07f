"""The loops compiled by XLA: tests of the plain kernels run again, with jit_compile=True.

What those tests compare with is not compiled: NumPy's definitions, unrolled loops, tf.while_loop.
"""

import functools
import importlib

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
import test_loop_gradients
import test_loop_oracle
import test_tensor_iterator_gradients as tensor_iterator_gradients
from checks import close

import tf_ti
from tf_ti import BackEdge, InputPort, Loop, LoopOutput, OutputPort, PortMap, TripLimit, _library

pytestmark = [
    pytest.mark.quarter,
    pytest.mark.skipif(
        _library.XLA_PROBLEM is not None, reason=f"no XLA kernels: {_library.XLA_PROBLEM}"
    ),
]

plain_function = tf.function
compiled = functools.partial(tf.function, jit_compile=True, autograph=False)
F64 = tf.float64


def compiled_call(function):
    """The same function of (body, tensors, ...), inside of which XLA compiles everything."""

    @functools.wraps(function)
    def call(body, *arguments, **options):
        if tf.inside_function():
            return function(body, *arguments, **options)
        return compiled(lambda: function(body, *arguments, **options))()

    return call


@pytest.fixture
def everything_compiled(monkeypatch):
    """tf.function compiles, and so do loops that are called eagerly."""
    monkeypatch.setattr(tf, "function", functools.partial(plain_function, jit_compile=True))
    monkeypatch.setattr(tf_ti, "tensor_iterator", compiled_call(tf_ti.tensor_iterator))
    monkeypatch.setattr(tf_ti, "scan", compiled_call(tf_ti.scan))


@pytest.fixture
def gradients_compiled(monkeypatch):
    """A loop and its gradient are compiled together; the loops that they are compared with not."""
    for module in (tensor_iterator_gradients, test_loop_gradients):

        def gradients(run, sources, plain=module.gradients):
            if getattr(run, "__name__", "") == "by_hand":
                return plain(run, sources)
            return compiled(lambda: plain(run, sources))()

        monkeypatch.setattr(module, "gradients", gradients)


def again(module, fixture, *names):
    """Tests of another file, which run here with a fixture."""
    for name in names:
        test = getattr(importlib.import_module(f"test_{module}"), f"test_{name}")
        globals()[f"test_{module}_{name}"] = pytest.mark.usefixtures(fixture)(test)


again(
    "tensor_iterator",
    "everything_compiled",
    "random_port_maps_agree_with_the_definition",
    "random_port_maps_agree_with_the_definition_in_a_graph",
    "every_axis_of_every_rank_is_iterated",
    "an_output_reversed_relative_to_its_input_turns_the_sequence_round",
    "scalar_results_stack",
    "the_last_iteration_gives_an_output_without_axis",
    "back_edges_are_taken_all_together",
    "a_result_that_feeds_a_state_and_two_outputs_reaches_all_of_them",
    "num_iterations_is_an_int_or_any_integer_tensor_or_numpy_integer",
    "without_iterations_states_are_initial_and_concatenations_empty",
    "num_iterations_0_gives_initial_states_and_empty_concatenations",
    "every_number_type_is_carried",
    "bool_is_carried",
    "tf_cond_in_the_body",
    "tf_while_loop_in_the_body",
    "tf_switch_case_in_the_body",
    "loops_nest_three_deep_with_captures_from_every_level",
    "a_body_of_any_callable_form",
    "a_captured_variable_has_the_value_that_it_has_at_the_call",
    "a_variable_assigned_before_the_loop_in_one_function_is_read_after_that",
    "assign_add_in_the_body_runs_once_an_iteration_and_in_order",
    "each_iteration_draws_anew",
    "each_call_draws_anew",
    "openvinos_example_2",
)
again(
    "scan",
    "everything_compiled",
    "any_axis_in_either_order",
    "carry_elements_and_results_are_structures",
    "length_may_be_a_tensor",
    "without_iterations_the_carry_is_init_and_results_are_empty",
    "scans_nest",
    "gradients_are_the_same_in_a_function_that_knows_no_shapes",
)
again(
    "loop",
    "everything_compiled",
    "running_sums",
    "a_count_is_any_integer",
    "a_count_may_be_known_only_when_the_loop_runs",
    "with_both_limits_the_first_that_is_reached_ends_the_loop",
    "at_the_count_the_condition_is_not_evaluated",
    "an_iterator_longer_than_the_loop_is_read_as_far_as_the_loop_goes",
    "an_output_takes_any_axis_in_either_order_and_is_padded_after_its_values",
    "a_variable_is_updated_in_every_iteration",
    "a_random_number_that_the_condition_and_the_body_use_is_the_same",
    "no_trips_read_no_iterator",
    "an_inner_while_loop_that_depends_on_both",
    "three_loops_in_any_order",
    "other_loops_and_control_flow_inside",
    "inside_tf_cond",
    "inside_tf_while_loop_and_map_fn",
)
again(
    "tensor_iterator_gradients",
    "gradients_compiled",
    "gathered_rows_of_a_captured_variable_get_their_gradients",
    "every_differentiable_type_has_gradients",
    "without_iterations_an_initial_state_gets_the_gradient_of_the_last",
    "recompute_grad_in_the_body_has_the_same_gradient",
    "nested_loops_are_differentiated",
    "random_port_maps_have_the_second_order_gradients_of_the_unrolled_loop",
)
again(
    "loop_gradients",
    "gradients_compiled",
    "elements_that_the_loop_does_not_read_get_zeros",
    "rotated_recurrences_have_rotated_gradients",
    "one_tensor_that_feeds_many_layers_gathers_their_gradients",
)
again(
    "loop_gradients",
    "everything_compiled",
    "gradients_of_branches_that_read_variables",
    "gradients_of_rows_that_branches_look_up",
)


@pytest.mark.usefixtures("gradients_compiled")
@pytest.mark.parametrize("seed", range(8), indirect=True)
def test_random_port_maps_have_the_gradients_of_the_unrolled_loop(rng, unrolled):
    tensor_iterator_gradients.test_random_port_maps_have_the_gradients_of_the_unrolled_loop(
        rng, unrolled
    )


@pytest.mark.usefixtures("gradients_compiled")
@pytest.mark.parametrize(
    "net", [name for name, net in test_loop_gradients.NETS.items() if net.limits != "while"]
)
def test_gradients_of_loops_are_those_of_tf_while_loop(net):
    net = test_loop_gradients.NETS[net]
    actual = test_loop_gradients.gradients(net.native, net.sources())
    close(actual, test_loop_gradients.reference(net))


# Random networks

# An output of these is as long as a loop whose iterations nobody bounds before it runs.
UNBOUNDED = {5, 8, 13, 17, 26, 28, 31, 37, 40, 47, 48, 56}
# TensorFlow's XLA for GPUs reads no variable of int32, as these lie on the host. It stacks along an
# inner axis wrongly where an extent has a bound alone, in a loop of TensorFlow's too.
OF_A_CPU = {3, 19}


@pytest.mark.usefixtures("everything_compiled")
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.needs_cpu_kernels] if seed in OF_A_CPU else [])
        for seed in range(20)
    ],
    indirect=True,
)
def test_random_networks(seed, rng):
    case = test_loop_oracle.Generator(rng).case
    if seed in UNBOUNDED:
        with pytest.raises(tf.errors.UnimplementedError, match="XLA must know"):
            test_loop_oracle.check(case, "function")
    else:
        test_loop_oracle.check(case, "function")


# XLA's own


def sums(x, **fields):
    """Running sums of a vector, forwards."""
    return tf_ti.tensor_iterator(
        lambda piece, s: (s + piece, s + piece),
        [x, tf.zeros([1], x.dtype)],
        PortMap(
            [InputPort(0, 0, axis=0, **fields), InputPort(1, 1)],
            [OutputPort(0, 0, axis=0), OutputPort(1, 1)],
        ),
        [BackEdge(0, 1)],
    )


def test_a_known_number_of_iterations_stays_known():
    text = compiled(sums).experimental_get_compiler_ir(tf.range(24.0))(stage="optimized_hlo")
    assert '"known_trip_count":{"n":"24"}' in text


def test_values_of_one_compiled_function_are_right_call_after_call():
    function = compiled(sums)
    for n in (3, 5, 3, 1):
        steps, last = function(tf.range(1.0, n + 1))
        np.testing.assert_array_equal(steps, np.cumsum(np.arange(1.0, n + 1)))
        assert last.numpy() == [n * (n + 1) / 2]


@pytest.mark.parametrize("axis", [0, 1])
def test_outputs_of_a_while_loop_are_as_long_as_it_was(axis):
    @compiled
    def collatz(n):
        with Loop() as loop:
            x = loop.add_recurrence(n)
            loop.add_trip_limit(x != 1, TripLimit.WHILE)
            loop.add_trip_limit(200, TripLimit.COUNT)
            x.next = tf.where(x % 2 == 0, x // 2, 3 * x + 1)
            pair = tf.stack([x.tensor, -x.tensor])
            kinds = (LoopOutput.CONCATENATE, LoopOutput.REVERSE)
            outputs = [loop.add_loop_output(pair, kind, axis) for kind in kinds]
        return [out.tensor for out in outputs]

    for n in (6, 27, 1):
        steps = [n]
        while steps[-1] != 1:
            steps.append(steps[-1] // 2 if steps[-1] % 2 == 0 else 3 * steps[-1] + 1)
        expected = np.stack([steps[:-1], np.negative(steps[:-1])], 1 - axis)
        forward, backward = collatz(tf.constant(n))
        np.testing.assert_array_equal(forward, expected)
        np.testing.assert_array_equal(backward, np.flip(expected, axis))


def test_an_output_of_a_dynamic_length_is_iterated_and_differentiated():
    x = tf.constant([0.3, -0.2, 0.9, 0.4, 0.8], F64)

    @compiled
    def run(n):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with Loop() as loop:
                k = loop.add_recurrence(0)
                k.next = k + 1
                loop.add_trip_limit(k < n, TripLimit.WHILE)
                loop.add_trip_limit(5, TripLimit.COUNT)
                squares = loop.add_loop_output(
                    loop.add_iterator(x).tensor ** 2, LoopOutput.CONCATENATE
                )
            total, _ = tf_ti.scan(
                lambda s, y: (s * 0.5 + y, None), tf.constant(0.0, F64), squares.tensor
            )
        return total, tape.gradient(total, x)

    for n in range(6):
        total, grad = run(tf.constant(n))
        weights = 0.5 ** np.arange(n - 1, -1, -1)
        np.testing.assert_allclose(total, np.sum(weights * x[:n] ** 2))
        np.testing.assert_allclose(grad, np.pad(2 * weights * x[:n], [0, 5 - n]))


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("bound", ["count", "length", "inner"])
def test_a_while_loop_is_differentiated_whatever_bounds_it(bound, count):
    """By 0 as well: then nothing is recorded."""

    def power(x):
        with Loop() as loop:
            y = loop.add_recurrence(x)
            loop.add_trip_limit(y < x ** (count + 0.5), TripLimit.WHILE)
            if bound != "length":
                loop.add_trip_limit(count, TripLimit.COUNT)
            y.next = y * x
            last = loop.add_loop_output(y, LoopOutput.LAST_VALUE)
            loop.add_loop_output(
                y, LoopOutput.CONCATENATE, length=count if bound == "length" else None
            )
        return last.tensor

    @compiled
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = power(x)
            if bound == "inner":
                y, _ = tf_ti.scan(lambda s, _: (s * power(x), None), y, length=2)
        return y, tape.gradient(y, x)

    y, gradient = run(tf.constant(2.0, F64))
    exponent = (count + 1) * (3 if bound == "inner" else 1)
    assert y.numpy() == 2.0**exponent
    assert gradient.numpy() == exponent * 2.0 ** (exponent - 1)


def test_num_iterations_that_nothing_is_as_long_as_need_not_be_known():
    traces = []

    @compiled
    def power(x, n):
        traces.append(n)
        port_map = PortMap([InputPort(0, 0), InputPort(1, 1)], [OutputPort(0, 0)])
        return tf_ti.tensor_iterator(lambda p, x: p * x, [1.0, x], port_map, [BackEdge(0, 0)], n)[0]

    assert [power(2.0, tf.constant(n)).numpy() for n in (0, 1, 10)] == [1, 2, 1024]
    assert len(traces) == 1


def test_a_training_step_of_keras_is_compiled():
    class Recurrent(tf.keras.layers.Layer):
        def build(self, shape):
            self.w = self.add_weight(shape=(shape[-1] + 8, 8), name="w")

        def call(self, x):
            def step(h, x):
                h = tf.tanh(tf.concat([x, h], 1) @ tf.convert_to_tensor(self.w))
                return h, None

            return tf_ti.scan(step, tf.zeros([tf.shape(x)[0], 8]), x, axis=1)[0]

    tf.keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal([64, 5, 3]).astype(np.float32)
    y = x.sum((1, 2), keepdims=False)[:, None]
    losses = {}
    for jit in (False, True):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.Input([5, 3]), Recurrent(), tf.keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=jit)
        losses[jit] = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0).history
    np.testing.assert_allclose(losses[True]["loss"], losses[False]["loss"], rtol=1e-4)


@pytest.mark.slow
def test_a_saved_model_is_compiled_in_another_process(run_program, tmp_path):
    module = tf.Module()
    module.call = tf.function(sums, jit_compile=True).get_concrete_function(
        tf.TensorSpec([4], tf.float32)
    )
    tf.saved_model.save(module, tmp_path / "model")
    program = """
        import sys
        import tensorflow as tf
        import tf_ti
        steps, last = tf.saved_model.load(sys.argv[1]).call(tf.constant([1.0, 2.0, 3.0, 4.0]))
        print(steps.numpy().tolist(), last.numpy().tolist())
        """
    out = run_program(program, str(tmp_path / "model")).stdout
    assert "[1.0, 3.0, 6.0, 10.0] [10.0]" in out


@pytest.mark.slow
def test_tf_ti_may_be_imported_after_something_was_compiled(run_program):
    program = """
        import tensorflow as tf
        tf.function(lambda x: x + 1, jit_compile=True)(1.0)
        import tf_ti
        f = tf.function(lambda x: tf_ti.scan(lambda s, x: (s + x, s), 0.0, x), jit_compile=True)
        print(f(tf.constant([1.0, 2.0, 3.0]))[0].numpy())
        """
    assert "6.0" in run_program(program).stdout


# Loops that cannot be compiled, or end with an error

InvalidArgument, Unimplemented = tf.errors.InvalidArgumentError, tf.errors.UnimplementedError


def refused(words, call, *inputs, error=Unimplemented):
    with pytest.raises(error, match=words):
        compiled(call)(*inputs)


def total_of(x, n=None, goes_on=None, length=None, kind=LoopOutput.LAST_VALUE):
    """The sum of the first elements, or what it was on the way."""
    with Loop("L") as loop:
        if n is not None:
            loop.add_trip_limit(n, TripLimit.COUNT)
        s = loop.add_recurrence(tf.constant(0.0))
        if goes_on is not None:
            loop.add_trip_limit(goes_on(s), TripLimit.WHILE)
        s.next = s + loop.add_iterator(x)
        is_last = kind is LoopOutput.LAST_VALUE
        output = loop.add_loop_output(s if is_last else s.next, kind, length=length)
    return output.tensor


X = tf.range(1.0, 6.0)


def test_a_state_that_grows_is_refused():
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0)])

    def grow(x):
        return tf_ti.tensor_iterator(
            lambda s: tf.concat([s, s], 0),
            [tf.ensure_shape(x, [None])],
            port_map,
            [BackEdge(0, 0)],
            3,
        )

    function = tf.function(
        grow, input_signature=[tf.TensorSpec([None], tf.float32)], jit_compile=True
    )
    with pytest.raises(Unimplemented, match="input port 0.*one shape for all"):
        function(X)


def test_an_output_of_a_while_loop_without_bound_is_refused():
    def halves(x):
        with Loop("L") as loop:
            s = loop.add_recurrence(x)
            loop.add_trip_limit(s > 1.0, TripLimit.WHILE)
            s.next = s / 2.0
            output = loop.add_loop_output(s, LoopOutput.CONCATENATE)
        return output.tensor

    words = "loop 'L': output 0: XLA must know how long it can become.*limit the number"
    refused(words, halves, tf.constant(9.0))


def test_a_gradient_of_a_while_loop_without_bound_is_refused():
    def nonlinear(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with Loop("L") as loop:
                s = loop.add_recurrence(x)
                loop.add_trip_limit(s < 3.0, TripLimit.WHILE)
                s.next = s * s + 0.5
                y = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
        return tape.gradient(y.tensor, x)

    refused("was not recorded: XLA must know at most how many", nonlinear, tf.constant(1.0))


def by_condition(x, count, every):
    def body(k, h):
        return k + 1, tf.sin(h) * x

    limits = {"maximum_iterations": 6, "checkpoint_every": every}
    return tf_ti.while_loop(lambda k, _: k < count, body, (0, x), **limits)[1]


def until_it_is_done(x, count, every):
    def step(carry, _):
        k, h = carry
        return (k + 1, tf.sin(h) * x), h

    ends = {"length": 6, "until": lambda carry, _: carry[0] >= count, "checkpoint_every": every}
    return tf_ti.scan(step, (0, x), **ends)[0][1]


@pytest.mark.parametrize("way", ["called", "loaded", "its gradient"])
@pytest.mark.parametrize("loop", [by_condition, until_it_is_done])
def test_checkpoints_of_a_condition_are_refused_where_xla_comes_later(tmp_path, loop, way):
    """What records all states under XLA has recorded some already."""

    def slope(run, x, count):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(run(x, count))
        return tape.gradient(y, x)

    def made(every):
        run = functools.partial(loop, every=every)
        specs = [tf.TensorSpec(X.shape), tf.TensorSpec([], tf.int32)]
        if way == "its gradient":
            return functools.partial(slope, tf.function(run, specs).get_concrete_function())
        step = tf.function(functools.partial(slope, run), specs)
        if way == "called":
            return step.get_concrete_function()
        module = tf.Module()
        module.step = step
        tf.saved_model.save(module, tmp_path / str(every))
        return tf.saved_model.load(tmp_path / str(every)).step

    expected = slope(lambda x, _: loop(x, 4, None), X, 4)
    np.testing.assert_allclose(compiled_call(made(None))(X, tf.constant(4)), expected, 1e-5)
    words = "to compute the others again, XLA must know the number of iterations; trace the loop"
    refused(words, made(2), X, tf.constant(4))
    # Nobody needs the states of a loop whose gradient nobody takes.
    run = tf.function(functools.partial(loop, every=2)).get_concrete_function(X, tf.constant(4))
    np.testing.assert_allclose(compiled_call(run)(X, tf.constant(4)), loop(X, 4, None), 1e-5)


def test_a_length_that_differs_from_iteration_to_iteration_is_refused():
    def step(s, length):
        values = total_of(X, n=2, length=length, kind=LoopOutput.CONCATENATE)
        return s + tf.reduce_sum(values), None

    refused(
        "output 0: XLA must know the length",
        lambda lengths: tf_ti.scan(step, tf.constant(0.0), lengths)[0],
        tf.constant([3, 4]),
    )


@pytest.mark.parametrize("n", [6, 100])
def test_an_iterator_that_is_too_short_is_an_error_when_it_is_compiled(n):
    words = f"loop 'L': iterator 0: there are 5 elements.*{n} iterations"
    refused(words, lambda x: total_of(x, n=n), X, error=InvalidArgument)


def test_an_iterator_that_is_too_short_is_an_error_when_the_program_runs():
    function = compiled(lambda x, n: total_of(x, n=n))
    assert function(X, tf.constant(5)).numpy() == 15
    with pytest.raises(InvalidArgument, match="there are 5 elements.*gives 6 iter"):
        function(X, tf.constant(6))
    assert function(X, tf.constant(2)).numpy() == 3


def test_a_name_is_said_as_it_is():
    def call(x, n):
        with Loop("L$1 $0 $$") as loop:
            loop.add_trip_limit(n, TripLimit.COUNT)
            s = loop.add_recurrence(0.0)
            s.next = s + loop.add_iterator(x)
            output = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
        return output.tensor

    with pytest.raises(InvalidArgument, match=r"'L\$1 \$0 \$\$': iterator 0: there are 5 elements"):
        compiled(call)(X, tf.constant(6))


def test_an_iterator_that_ends_before_the_condition_is_false_is_an_error():
    function = compiled(lambda x, most: total_of(x, goes_on=lambda s: s < most))
    assert function(X, 15.0).numpy() == 15
    with pytest.raises(InvalidArgument, match="iterator 0: iteration 5 reads past"):
        function(X, 16.0)


def test_a_length_below_the_trips_is_an_error_when_it_is_compiled_or_when_the_program_runs():
    kind = LoopOutput.CONCATENATE
    refused(
        "output 0: the length is 2, but the loop has 3",
        lambda x: total_of(x, n=3, length=2, kind=kind),
        X,
        error=InvalidArgument,
    )
    function = compiled(
        lambda x, most: total_of(x, goes_on=lambda s: s < most, length=3, kind=kind)
    )
    np.testing.assert_array_equal(function(X, 6.0), [1, 3, 6])
    with pytest.raises(InvalidArgument, match="the length is 3, but the loop has"):
        function(X, 7.0)


def test_a_negative_number_of_iterations_is_an_error():
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0)])
    function = compiled(
        lambda n: tf_ti.tensor_iterator(lambda s: s * 2.0, [1.0], port_map, [BackEdge(0, 0)], n)
    )
    assert function(tf.constant(3))[0].numpy() == 8
    with pytest.raises(InvalidArgument, match="must not be negative, got -2"):
        function(tf.constant(-2))


def test_counts_that_differ_are_an_error():
    port_map = PortMap(
        [InputPort(0, 0, axis=0), InputPort(1, 1, axis=0)], [OutputPort(0, 0, axis=0)]
    )

    @functools.partial(
        tf.function,
        jit_compile=True,
        input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])],
    )
    def add(x, y):
        return tf_ti.tensor_iterator(lambda x, y: x + y, [x, y], port_map)

    with pytest.raises(InvalidArgument, match="input port 0.*5.*input port 1.*4"):
        add(X, X[:4])


def test_a_last_value_of_no_iterations_is_an_error():
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0)])
    function = compiled(lambda x, n: tf_ti.tensor_iterator(tf.sin, [x], port_map, (), n))
    np.testing.assert_allclose(function(1.0, tf.constant(2))[0], np.sin(1.0), rtol=1e-6)
    with pytest.raises(InvalidArgument, match="no iterations.*no last value"):
        function(1.0, tf.constant(0))


def test_types_of_half_a_byte_are_refused():
    x = tf.constant(np.ones([4], ml_dtypes.int4))
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
    refused(
        "int4.*cast it to int8",
        lambda x: tf_ti.tensor_iterator(lambda x: x, [x], port_map),
        x,
    )


def test_a_body_that_xla_does_not_know_is_refused():
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
    refused(
        "PyFunc",
        lambda x: tf_ti.tensor_iterator(
            lambda x: tf.ensure_shape(tf.numpy_function(np.sin, [x], tf.float32), [1]),
            [x],
            port_map,
        ),
        X,
        error=InvalidArgument,
    )


def test_a_dimension_that_must_be_constant_is_named():
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
    refused(
        "needs constants where it is given: input port 0",
        lambda x: tf_ti.tensor_iterator(
            lambda n: tf.ensure_shape(tf.zeros([n[0]]), [None]), [x], port_map
        ),
        tf.constant([2, 2]),
        error=InvalidArgument,
    )


@pytest.mark.slow
def test_clusters_that_tensorflow_makes_itself_fall_back_to_the_plain_kernels(run_program):
    program = """
        import os
        os.environ["TF_XLA_FLAGS"] = (
            "--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"
        )
        import tensorflow as tf
        import tf_ti

        @tf.function
        def squares(n):
            port_map = tf_ti.PortMap([tf_ti.InputPort(0, 0)], [tf_ti.OutputPort(0, 0, axis=0)])
            (y,) = tf_ti.tensor_iterator(lambda x: x * x, [[3.0]], port_map, (), n * 2)
            return y + 1.0

        print([squares(tf.constant(n)).numpy().tolist() for n in (1, 2)])
        """
    assert "[[10.0, 10.0], [10.0, 10.0, 10.0, 10.0]]" in run_program(program, is_first=True).stdout


def positive(x):
    """A tensor of which XLA knows no more than a bound of its extent."""
    return tf.boolean_mask(x, x > 0)


MIXED = tf.constant([1.0, -2.0, 3.0, 4.0, -5.0])


def test_what_has_as_many_elements_as_the_running_program_finds_is_iterated():
    function = compiled(lambda x: tf_ti.scan(lambda s, y: (s + y, s * y), 1.0, positive(x)))
    last, ys = function(MIXED)
    assert (last.numpy(), ys.numpy().tolist()) == (9, [1, 6, 20])


def test_checkpoints_of_such_a_loop_are_refused():
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf_ti.scan(lambda h, x: (tf.sin(h) * x, None), 1.0, positive(x), checkpoint_every=2)
        return tape.gradient(y[0], x)

    refused("XLA must know the number of iterations; it must be a constant", slope, MIXED)


def test_an_iterator_of_such_a_tensor_that_is_too_short_is_an_error():
    with pytest.raises(
        InvalidArgument, match="iterator 0: there are 3 elements.*gives 4 iterations"
    ):
        compiled(lambda x: total_of(positive(x), n=4))(MIXED)
    function = compiled(lambda x, most: total_of(positive(x), goes_on=lambda s: s < most))
    assert function(MIXED, 8.0).numpy() == 8
    with pytest.raises(InvalidArgument, match="iteration 3 reads past the last element"):
        function(MIXED, 9.0)


def test_an_iterator_bounds_the_loop():
    def call(x, most):
        with tf.GradientTape() as tape:
            tape.watch(x)
            sums = total_of(x, goes_on=lambda s: s < most, kind=LoopOutput.CONCATENATE)
            y = tf.reduce_sum(sums**2)
        return sums, tape.gradient(y, x)

    for plain, actual in zip(call(X, 5.0), compiled(call)(X, 5.0)):
        np.testing.assert_allclose(actual, plain)


def test_shapes_that_are_only_bounded_are_refused_where_they_would_be_joined():
    whole = PortMap([InputPort(0, 0, axis=0, stride=5)], [OutputPort(0, 0, axis=0)])
    refused(
        "output port 0.*must know the shape of the body's result",
        lambda x: tf_ti.tensor_iterator(positive, [x], whole),
        MIXED,
    )
    refused(
        "xs: XLA must know all extents but that of the axis",
        lambda x: tf_ti.scan(
            lambda s, row: (s, row), 0.0, tf.boolean_mask(tf.stack([x, x]), x > 0, axis=1)
        ),
        MIXED,
    )
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0)])
    refused(
        "input port 0.*one shape for all",
        lambda x: tf_ti.tensor_iterator(
            lambda s: tf.ensure_shape(positive(s), [None]), [x], port_map, [BackEdge(0, 0)], 2
        ),
        MIXED,
    )


def test_a_condition_that_would_not_end_is_not_evaluated_at_the_count():
    @compiled
    def count():
        with Loop() as loop:
            loop.add_trip_limit(4, TripLimit.COUNT)
            k = loop.add_recurrence(0)
            found = tf.while_loop(lambda j: (j < 3) | (k.tensor >= 4), lambda j: j + 1, [0])[0]
            loop.add_trip_limit(found < 5, TripLimit.WHILE)
            k.next = k + 1
            last = loop.add_loop_output(k, LoopOutput.LAST_VALUE)
        return last.tensor

    assert count().numpy() == 4


def test_a_result_of_half_a_byte_is_refused():
    port_map = PortMap([InputPort(0, 0, axis=0)], [OutputPort(0, 0, axis=0)])
    int4 = tf.as_dtype(ml_dtypes.int4)
    refused(
        "output port 0.*int4.*cast it to int8",
        lambda x: tf_ti.tensor_iterator(lambda x: tf.cast(x, int4), [x], port_map),
        tf.constant([1, 2], tf.int8),
    )


# TensorArrays


def written(
    loop,
    size,
    write=lambda array, k, x: array.write(k, x),
    dtype=tf.float32,
    shape=(),
    n=4,
    finish=lambda array: array.stack(),
    **options,
):
    """The TensorArray that a loop has written k, in some form, to."""
    xs = tf.cast(tf.reshape(tf.range(n), [n, *[1] * len(shape)]), dtype) + tf.zeros(shape, dtype)
    array = tf.TensorArray(dtype, size, clear_after_read=False, **options)
    if loop == "scan":
        step = lambda array, item: (write(array, *item), None)  # noqa: E731
        return finish(tf_ti.scan(step, array, (tf.range(n), xs))[0])
    if loop == "tensor_iterator":
        port_map = PortMap(
            [InputPort(0, 1), InputPort(1, 0, axis=0), InputPort(2, 2, axis=0)],
            [OutputPort(0, 0)],
        )
        body = lambda k, array, x: write(array, k[0], x[0])  # noqa: E731
        return finish(
            tf_ti.tensor_iterator(body, [array, tf.range(n), xs], port_map, [BackEdge(0, 1)])[0]
        )
    if loop == "Loop":
        with Loop("L") as made:
            made.add_trip_limit(n, TripLimit.COUNT)
            k, x = made.add_iterator(tf.range(n)), made.add_iterator(xs)
            state = made.add_recurrence(array)
            state.next = write(state.value, k.tensor, x.tensor)
            last = made.add_loop_output(state, LoopOutput.LAST_VALUE)
        return finish(last.tensor)
    step = lambda k, array: (k + 1, write(array, k, xs[k]))  # noqa: E731
    return finish(tf.while_loop(lambda k, _: k < n, step, (0, array))[1])


LOOPS = ["scan", "tensor_iterator", "Loop"]
WRITES = {
    "": lambda array, k, x: array.write(k, x),
    "backwards": lambda array, k, x: array.write(3 - k, x),
    "twice": lambda array, k, x: array.write(k, x).write(3 - k, x * x),
    "read-after": lambda array, k, x: (lambda a: a.write(k, a.read(k) + 1))(array.write(k, x)),
    "stacked-after": lambda array, k, x: (lambda a: a.write(k, x + tf.reduce_sum(a.stack(), 0)))(
        array.write(k, x)
    ),
    "in-cond": lambda array, k, x: tf.cond(
        k % 2 == 0, lambda: array.write(k, x), lambda: array.write(k, -x)
    ),
    "in-switch": lambda array, k, x: tf.switch_case(
        k % 2, [lambda: array.write(k, x), lambda: array.write(k, -x)]
    ),
    "in-while": lambda array, k, x: tf.while_loop(
        lambda j, _: j < 2, lambda j, a: (j + 1, a.write((k + j) % 4, x)), (0, array)
    )[1],
    "in-scan": lambda array, k, x: tf_ti.scan(
        lambda a, j: (a.write((k + j) % 4, x), None), array, tf.range(2)
    )[0],
}
GROWING = ["", "backwards", "in-cond", "in-switch", "in-while", "in-scan"]


@pytest.mark.parametrize(
    "loop, write",
    [*(("scan", write) for write in WRITES), *((loop, "twice") for loop in LOOPS[1:])],
)
def test_a_tensor_array_without_element_shape_is_what_tf_while_loop_makes_of_it(loop, write):
    call = functools.partial(written, size=4, write=WRITES[write], shape=(2,))
    actual = compiled(lambda: call(loop))()
    np.testing.assert_allclose(actual, plain_function(lambda: call("while"), autograph=False)())


@pytest.mark.parametrize(
    "dtype",
    ["float16", "bfloat16", "float64", "int8", "uint16", "int64", "complex64", "complex128"],
)
def test_a_tensor_array_without_element_shape_has_any_type(dtype):
    actual = compiled(lambda: written("scan", 4, dtype=tf.as_dtype(dtype), shape=(3, 1)))()
    assert actual.dtype == dtype
    np.testing.assert_array_equal(
        tf.cast(actual, tf.complex128), np.broadcast_to(np.arange(4)[:, None, None], [4, 3, 1])
    )


@pytest.mark.parametrize("shape", [None, [None, 2], [3, None], [3, 2]], ids=str)
def test_the_element_shape_of_a_tensor_array_may_be_known_in_part(shape):
    actual = compiled(lambda: written("scan", 5, shape=(3, 2), element_shape=shape))()
    expected = np.pad(np.arange(4.0), [0, 1])[:, None, None] + np.zeros([3, 2])
    np.testing.assert_array_equal(actual, expected)


def test_tensor_arrays_without_element_shape_are_concatenated_and_know_their_size():
    def finish(array):
        return array.concat(), array.size(), array.read(2), array.gather([3, 1])

    actual = compiled(lambda n: written("scan", n, shape=(2,), finish=finish))(tf.constant(4))
    expected = [0, 0, 1, 1, 2, 2, 3, 3], 4, [2, 2], [[3, 3], [1, 1]]
    for got, right in zip(actual, expected):
        np.testing.assert_array_equal(got, right)


def test_a_tensor_array_that_no_iteration_writes_to_has_the_shape_that_the_body_gives_it():
    actual = compiled(lambda: written("scan", 3, shape=(2,), n=0))()
    np.testing.assert_array_equal(actual, np.zeros([3, 2]))
    function = compiled(
        lambda n: tf_ti.scan(
            lambda array, _: (array.write(0, tf.ones([2])), None),
            tf.TensorArray(tf.float32, 3),
            length=n,
        )[0].stack()
    )
    for n in (0, 2):
        np.testing.assert_array_equal(function(tf.constant(n))[0], [min(n, 1)] * 2)


def test_the_element_shapes_of_several_tensor_arrays_follow_from_one_another():
    def step(carry, k):
        h, (first, rest) = carry
        first = first.write(k, h)
        second = rest["second"].write(3 - k, tf.reduce_sum(first.read(k)))
        third = rest["third"].write(k, second.read(3 - k) > 2.0)
        return (h * 0.5 + 1.0, (first, {"second": second, "third": third})), first.read(k)

    @compiled
    def run():
        arrays = {
            "second": tf.TensorArray(tf.float32, 4, clear_after_read=False),
            "third": tf.TensorArray(tf.bool, 4),
        }
        first = tf.TensorArray(tf.float32, 4, clear_after_read=False)
        (_, (first, rest)), ys = tf_ti.scan(step, (tf.zeros([2]), (first, arrays)), tf.range(4))
        return first.stack(), rest["second"].stack(), rest["third"].stack(), ys

    first, second, third, ys = run()
    h = np.array([0, 1, 1.5, 1.75])
    np.testing.assert_array_equal(first, np.stack([h, h], 1))
    np.testing.assert_array_equal(ys, first)
    np.testing.assert_array_equal(second, 2 * h[::-1])
    np.testing.assert_array_equal(third, 2 * h > 2)


def test_a_loop_with_a_condition_and_one_with_a_short_last_piece_shape_tensor_arrays():
    @compiled
    def loop(most):
        with Loop() as loop:
            k = loop.add_recurrence(0)
            k.next = k + 1
            array = loop.add_recurrence(tf.TensorArray(tf.int32, 5))
            loop.add_trip_limit(k < most, TripLimit.WHILE)
            array.next = array.value.write(k, k * k)
            last = loop.add_loop_output(array, LoopOutput.LAST_VALUE)
        return last.tensor.stack()

    np.testing.assert_array_equal(loop(tf.constant(3)), [0, 1, 4, 0, 0])

    @compiled
    def pieces(x):
        port_map = PortMap(
            [InputPort(0, 0, axis=0, stride=2, part_size=2, end=-1), InputPort(1, 1)],
            [OutputPort(0, 0)],
        )
        body = lambda x, a: a.write(x[0] // 2, tf.reduce_sum(x))  # noqa: E731
        return tf_ti.tensor_iterator(
            body, [x, tf.TensorArray(tf.int32, 3)], port_map, [BackEdge(0, 1)]
        )[0].stack()

    np.testing.assert_array_equal(pieces(tf.range(6)), [1, 5, 9])


@pytest.mark.parametrize("write", ["", "twice", "read-after", "in-scan"])
def test_a_tensor_array_without_element_shape_has_its_gradient(write):
    x = tf.constant([0.5, -1.5], F64)

    def gradient(loop):
        with tf.GradientTape() as tape:
            tape.watch(x)

            def step(array, k, y):
                return WRITES[write](array, k, y * x * x)

            values = written(loop, 4, step, F64, (2,))
            loss = tf.reduce_sum(values**2)
        return values, tape.gradient(loss, x)

    actual = compiled(lambda: gradient("scan"))()
    for got, right in zip(actual, plain_function(lambda: gradient("while"), autograph=False)()):
        np.testing.assert_allclose(got, right)


@pytest.mark.parametrize(
    "loop, write", [*(("scan", write) for write in GROWING), *((loop, "") for loop in LOOPS[1:])]
)
def test_a_tensor_array_that_is_large_enough_need_not_grow(loop, write):
    call = functools.partial(written, size=4, write=WRITES[write], dynamic_size=True)
    actual = compiled(lambda: call(loop))()
    np.testing.assert_allclose(actual, plain_function(lambda: call("while"), autograph=False)())


@pytest.mark.parametrize("write", GROWING)
@pytest.mark.parametrize("size, shape", [(0, []), (3, None)], ids=str)
def test_a_tensor_array_that_would_grow_is_an_error(write, size, shape):
    call = functools.partial(
        written, "scan", size, WRITES[write], dynamic_size=True, element_shape=shape
    )
    assert plain_function(call, autograph=False)().shape == [4]
    words = f"init: XLA's TensorArrays do not grow: this one has size {size}, and index"
    refused(words, call, error=InvalidArgument)


@tf.function(autograph=False)
def total_of_two(k):
    array = tf.TensorArray(tf.float32, 1, dynamic_size=True, element_shape=[])
    return tf.reduce_sum(array.write(0, 1.0).write(k, 2.0).stack())


IN_CALLS = {
    "a branch": lambda k: tf.cond(k > 0, lambda: total_of_two(k), lambda: 0.0),
    "a switch": lambda k: tf.switch_case(tf.constant(0), [lambda: total_of_two(k)]),
    "a map": lambda k: tf.map_fn(total_of_two, k[None], fn_output_signature=tf.float32)[0],
    "an inner loop": lambda k: tf.while_loop(
        lambda i, _: i < 1, lambda i, c: (i + 1, c + total_of_two(k)), (0, 0.0)
    )[1],
}


@pytest.mark.parametrize("where", IN_CALLS)
@pytest.mark.parametrize("is_counted", [True, False])
def test_a_tensor_array_of_a_called_function_that_would_grow_is_an_error(where, is_counted):
    def call():
        if is_counted:
            return tf_ti.scan(lambda c, k: (c + IN_CALLS[where](k), None), 0.0, tf.range(1, 4))[0]
        return tf_ti.while_loop(
            lambda k, c: tf.logical_and(k < 4, c < 99.0),
            lambda k, c: (k + 1, c + IN_CALLS[where](k)),
            (1, 0.0),
        )[1]

    assert plain_function(call, autograph=False)() == 9.0
    refused("XLA's TensorArrays do not grow: this one has size 1", call, error=InvalidArgument)


@pytest.mark.parametrize(
    "loop, words", [("tensor_iterator", "input port 0"), ("Loop", "loop 'L': recurrence 0")]
)
def test_an_error_names_the_tensor_array_that_would_grow(loop, words):
    call = functools.partial(written, loop, 2, dynamic_size=True)
    refused(f"{words}.*size 2, and index 2", call, error=InvalidArgument)


def test_an_error_names_the_one_of_several_tensor_arrays_that_would_grow():
    def call():
        def array(size):
            return tf.TensorArray(tf.int32, size, dynamic_size=True)

        def step(carry, k):
            return (carry[0].write(k, k), {"b": carry[1]["b"].write(k, k)}), None

        (a, b), _ = tf_ti.scan(step, (array(4), {"b": array(3)}), tf.range(4))
        return a.stack(), b["b"].stack()

    refused(r"init\[1\]\['b'\]: XLA's.*size 3, and index 3", call, error=InvalidArgument)


def test_a_tensor_array_is_an_error_only_where_it_would_grow():
    @compiled
    def run(indices):
        array = tf.TensorArray(tf.int32, 3, dynamic_size=True)
        step = lambda array, k: (array.write(k, k * k), None)  # noqa: E731
        return tf_ti.scan(step, array, indices)[0].stack()

    np.testing.assert_array_equal(run(tf.constant([2, 0, 1, 0])), [0, 1, 4])
    with pytest.raises(InvalidArgument, match="size 3, and index 5"):
        run(tf.constant([2, 5, 1, 0]))


def test_a_tensor_array_of_the_body_that_would_grow_is_an_error():
    def call(size):
        def step(c, k):
            array = tf.TensorArray(tf.float32, size, dynamic_size=True, element_shape=[])
            return tf.reduce_sum(array.write(0, c).write(1, 1.0).stack()), None

        return tf_ti.scan(step, 0.0, tf.range(3))[0]

    assert compiled(lambda: call(2))().numpy() == 3
    refused("the TensorArray that.*size 1, and index 1", lambda: call(1), error=InvalidArgument)


def test_what_is_read_before_a_shape_is_known_is_refused_with_the_way_out():
    def read(array, k, x):
        return array.write(k, array.read(k) + x)

    refused(
        "may need an element_shape of these TensorArrays: init",
        lambda: written("scan", 4, read),
        error=InvalidArgument,
    )


# Results that nobody uses

LENGTHS = tf.constant([1, 0, 3])


def halves(c, n, kind="scan"):
    """The last value, and results that are as long as the loop."""
    if kind == "scan":
        return tf_ti.scan(lambda s, _: (s * 0.5 + 1.0, {"a": (s, s * 2.0)}), c, length=n)
    if kind == "tensor_iterator":
        port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0), OutputPort(1, 1, axis=0)])
        body = lambda s: (s * 0.5 + 1.0, tf.fill([2], s))  # noqa: E731
        return tf_ti.tensor_iterator(body, [c], port_map, [BackEdge(0, 0)], n)
    with Loop() as loop:
        loop.add_trip_limit(n, TripLimit.COUNT)
        s = loop.add_recurrence(c)
        s.next = s * 0.5 + 1.0
        last = loop.add_loop_output(s, LoopOutput.LAST_VALUE)
        results = loop.add_loop_output(s, LoopOutput.CONCATENATE)
    return last.tensor, results.tensor


def in_while(step, lengths):
    """The last values of a tf.while_loop."""
    array = tf.TensorArray(tf.float32, 3, element_shape=[])
    _, _, array = tf.while_loop(
        lambda k, c, _: k < 3,
        lambda k, c, a: (lambda c: (k + 1, c, a.write(k, c)))(step(c, lengths[k])),
        (0, 0.0, array),
    )
    return array.stack()


def in_scan(step, lengths):
    def outer(c, n):
        c = step(c, n)
        return c, c

    return tf_ti.scan(outer, 0.0, lengths)[1]


def in_loop(step, lengths):
    with Loop() as loop:
        loop.add_trip_limit(3, TripLimit.COUNT)
        n, c = loop.add_iterator(lengths), loop.add_recurrence(0.0)
        c.next = step(c.tensor, n.tensor)
        output = loop.add_loop_output(c.next, LoopOutput.CONCATENATE)
    return output.tensor


INNER = {
    "": lambda kind: lambda c, n: halves(c, n, kind)[0],
    "function": lambda kind: lambda c, n: tf.function(halves)(c, n, kind)[0],
    "functions": lambda kind: (
        lambda c, n: tf.function(lambda c, n: tf.function(halves)(c, n, kind))(c, n)[0]
    ),
    "cond": lambda kind: lambda c, n: tf.cond(n > 0, lambda: halves(c, n, kind)[0], lambda: c),
}


@pytest.mark.parametrize(
    "outer, inner, kind",
    [
        *((outer, inner, "scan") for outer in (in_while, in_scan) for inner in INNER),
        *((in_loop, "", kind) for kind in LOOPS),
        *((in_scan, "", kind) for kind in LOOPS[1:]),
    ],
)
def test_a_result_that_nobody_uses_stops_nothing(outer, inner, kind):
    actual = compiled(lambda n: outer(INNER[inner](kind), n))(LENGTHS)
    np.testing.assert_array_equal(actual, [1, 1, 1.875])


def test_a_result_of_which_dead_code_is_made_stops_nothing():
    def step(c, n):
        c, ys = halves(c, n)
        _ = tf.reduce_sum(ys["a"][0]) + tf.reduce_max(ys["a"][1])
        return c

    for outer in (in_scan, in_while):
        actual = compiled(lambda n, outer=outer: outer(step, n))(LENGTHS)
        np.testing.assert_array_equal(actual, [1, 1, 1.875])


@pytest.mark.parametrize("outer", [in_scan, in_while])
def test_a_result_that_is_used_is_named_where_it_stops_xla(outer):
    def step(c, n):
        c, ys = halves(c, n)
        return c + tf.reduce_sum(ys["a"][0])

    refused(r"ys\['a'\]\[0\]: XLA must know how long", lambda n: outer(step, n), LENGTHS)


def test_a_result_that_nobody_uses_stops_no_gradient():
    def gradient(x, lengths):
        with tf.GradientTape() as tape:
            tape.watch(x)

            def step(c, n):
                c, _ = tf_ti.scan(lambda s, _: (s + x, s * x), c, length=n)
                return c

            loss = tf.reduce_sum(in_scan(step, lengths) ** 2)
        return tape.gradient(loss, x)

    x = tf.constant(0.5)
    sums = np.cumsum(LENGTHS)
    np.testing.assert_allclose(compiled(gradient)(x, LENGTHS), np.sum(2 * sums**2 * 0.5))


def test_a_result_that_nobody_uses_of_a_loop_with_effects_stops_nothing():
    counter = tf.Variable(0, dtype=tf.int64)  # no int32, which lies in the host's memory

    def step(c, n):
        def count(s, _):
            counter.assign_add(1)
            return s + tf.random.uniform([], 1.0, 1.0 + 1e-6), s

        return tf_ti.scan(count, c, length=n)[0]

    np.testing.assert_allclose(compiled(lambda n: in_scan(step, n))(LENGTHS), [1, 1, 4], rtol=1e-5)
    assert counter.numpy() == 4


def test_a_result_that_nobody_uses_may_have_any_shape():
    def call(x):
        return tf_ti.scan(lambda s, y: (s + y, tf.boolean_mask(x, x > y)), 0.0, x)[0]

    assert compiled(call)(MIXED).numpy() == 1


def test_a_length_of_a_result_that_nobody_uses_need_not_be_known():
    def step(s, length):
        with Loop("L") as loop:
            loop.add_trip_limit(2, TripLimit.COUNT)
            t = loop.add_recurrence(s)
            t.next = t + 1.0
            last = loop.add_loop_output(t, LoopOutput.LAST_VALUE)
            loop.add_loop_output(t, LoopOutput.CONCATENATE, length=length)
        return last.tensor, None

    call = lambda lengths: tf_ti.scan(step, 0.0, lengths)[0]  # noqa: E731
    assert compiled(call)(tf.constant([3, 4])).numpy() == 4


def test_a_last_value_of_no_iterations_that_nobody_uses_is_no_error():
    port_map = PortMap([InputPort(0, 0)], [OutputPort(0, 0), OutputPort(1, 1)])

    def call(x, n):
        body = lambda s: (s + 1.0, tf.sin(s))  # noqa: E731
        return tf_ti.tensor_iterator(body, [x], port_map, [BackEdge(0, 0)], n)[0]

    assert [compiled(call)(1.0, tf.constant(n)).numpy() for n in (0, 2)] == [1, 3]
    assert compiled(lambda x: call(x, 0))(1.0).numpy() == 1


# Concatenations that meet in one fusion


@pytest.mark.parametrize(
    "length, every, dtype", [(9, 2, tf.float64), (9, 8, tf.complex128), (13, 3, tf.float64)]
)
def test_gradients_of_loops_whose_last_segments_have_one_step(length, every, dtype):
    """XLA writes the last row of concatenations and pads past the end, if rows have 32 bytes."""
    rng = np.random.default_rng(length + every)
    width = 32 // dtype.size
    xs = tf.constant(rng.normal(size=[length, width]), dtype)
    w = tf.constant(rng.normal(size=[width, width]) * 0.5, dtype)

    def step(c, x):
        return tf.tanh(tf.linalg.matvec(w, c) + x)

    starts = [tf.zeros([width], dtype), tf.ones([width], dtype) * 0.5]

    def by_scan(start):
        def advance(c, x):
            return (step(c, x), None)

        return tf_ti.scan(advance, start, xs, checkpoint_every=every)[0]

    def by_hand(start):
        return functools.reduce(step, tf.unstack(xs), start)

    def gradients(run):
        with tf.GradientTape() as outer:
            outer.watch(xs)
            with tf.GradientTape() as tape:
                tape.watch(xs)
                a, b = map(run, starts)
                y = tf.reduce_sum(a) + tf.reduce_sum(b * b)
            first = tape.gradient(y, xs)
            z = tf.reduce_sum(tf.sin(first))
        return first, outer.gradient(z, xs)

    close(compiled(lambda: gradients(by_scan))(), gradients(by_hand), 1e-8)


# Looked-up rows


def test_a_gradient_of_an_open_number_of_rows_has_these_rows_alone():
    """Of a look-up outside of branches: a dense one would take time with the table's size."""
    table = tf.Variable(tf.ones([50, 2]))
    found = []

    @tf.function(
        input_signature=[tf.TensorSpec([None, 2]), tf.TensorSpec([3, None], tf.int32)],
        jit_compile=True,
        autograph=False,
    )
    def run(c, ids):
        with tf.GradientTape() as tape:
            y = tf_ti.scan(lambda c, i: (tf.tanh(c * tf.gather(table, i)), None), c, ids)[0]
        found.append(tape.gradient(y, table))
        return tf.convert_to_tensor(found[-1])

    run(tf.ones([2, 2]), tf.constant([[1, 2], [2, 3], [1, 1]]))
    assert isinstance(found[-1], tf.IndexedSlices)


@tf.custom_gradient
def without_its_state(c, v):
    """A product whose gradient reads v alone: so the history of c is not needed."""
    return c * v, lambda grad: (grad * v, tf.zeros_like(v))


@pytest.mark.parametrize("count, every", [(3, None), (3, 2), (4, 2), (4, 3), (5, 2)])
def test_checkpoints_of_states_whose_extents_are_bounded(count, every):
    xs = tf.constant(np.linspace(1.0, 2.0, count), tf.float32)

    def slope(run, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(tf.sin(run(tf.boolean_mask(x, x > 0.0))))
        return tape.gradient(total, x)

    def ours(c):
        return tf_ti.scan(
            lambda c, v: (without_its_state(c, v), None),
            c,
            xs,
            shape_invariants=tf.TensorShape([None]),
            checkpoint_every=every,
        )[0]

    x = tf.constant([1.0, -2.0, 3.0, -1.0])
    expected = slope(lambda c: c * tf.reduce_prod(xs), x)
    np.testing.assert_allclose(compiled(lambda x: slope(ours, x))(x), expected, 1e-5)


WEIGHTS = tf.Variable([0.7, 0.6, 0.5, 0.9])


def with_weights(y, place):
    """Four iterations that read a variable in a function, and its gradients."""

    def step(y, i):
        if place == "branch":
            return tf.cond(y > -5.0, lambda: tf.sin(WEIGHTS[0] * y), lambda: y), None
        inner = tf_ti.scan(lambda y, j: (tf.sin(tf.gather(WEIGHTS, j) * y), None), y, tf.range(2))
        return inner[0], None

    return tf_ti.scan(step, y, tf.range(4))[0]


def unrolled_with_weights(y, place):
    for _ in range(4):
        for j in range(1 if place == "branch" else 2):
            y = tf.sin(WEIGHTS[0 if place == "branch" else j] * y)
    return y


def slopes_by_weights(run, y, place, changes):
    WEIGHTS.assign([0.7, 0.6, 0.5, 0.9])
    with tf.GradientTape() as tape:
        tape.watch(y)
        value = run(y, place)
    if changes:
        WEIGHTS.assign([5.0, 6.0, 7.0, 8.0])
    return [tf.convert_to_tensor(g) for g in tape.gradient(value, [y, WEIGHTS])]


@pytest.mark.parametrize("place", ["branch", "loop"])
@pytest.mark.parametrize("changes", [False, True])
def test_gradients_by_a_variable_that_functions_read(place, changes):
    y = tf.constant(0.8)
    expected = slopes_by_weights(unrolled_with_weights, y, place, changes)
    found = compiled(lambda y: slopes_by_weights(with_weights, y, place, changes))(y)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, 1e-5)


def test_a_gradient_that_was_traced_for_kernels_is_compiled():
    y = tf.constant(0.8)
    traced = tf.function(lambda y: slopes_by_weights(with_weights, y, "loop", False))
    expected = traced(y)
    for ours, wanted in zip(compiled(lambda y: traced(y))(y), expected, strict=True):
        np.testing.assert_allclose(ours, wanted, 1e-5)
