"""Which loops `tf_ti.accelerate` is for: everywhere, in a block, in a function, in threads."""

import asyncio
import functools
import gc
import inspect
import pickle
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_ti

XS = tf.constant([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]])


def total(xs):
    found = tf.zeros([2])
    for x in xs:
        found = tf.tanh(found + x)
    return found


def test_a_call_is_for_all_that_is_traced_until_it_is_undone(is_taken):
    setting = tf_ti.accelerate()
    try:
        assert is_taken(tf.function(total), XS)
    finally:
        setting.undo()
    assert not is_taken(tf.function(total), XS)
    setting.undo()  # once more is nothing
    assert not is_taken(tf.function(total), XS)


def test_settings_are_undone_in_any_order(is_taken):
    first, second = tf_ti.accelerate(), tf_ti.accelerate(False)
    third = tf_ti.accelerate()
    second.undo()
    assert is_taken(tf.function(total), XS)
    first.undo()
    assert is_taken(tf.function(total), XS)
    third.undo()
    assert not is_taken(tf.function(total), XS)


def test_blocks_nest_and_end_with_errors(is_taken):
    with tf_ti.accelerate():
        with tf_ti.accelerate(False):
            assert not is_taken(tf.function(total), XS)
        assert is_taken(tf.function(total), XS)
        with pytest.raises(KeyError), tf_ti.accelerate(False):
            raise KeyError
        assert is_taken(tf.function(total), XS)
    assert not is_taken(tf.function(total), XS)


def test_one_setting_may_be_entered_again(is_taken):
    setting = tf_ti.accelerate()
    for _ in range(2):
        with setting, setting:
            assert is_taken(tf.function(total), XS)
        assert not is_taken(tf.function(total), XS)


def test_what_is_traced_stays_as_it_is(is_taken):
    before = tf.function(total)
    before(XS)
    with tf_ti.accelerate():
        assert not is_taken(before, XS)
        after = tf.function(total)
        after(XS)
    assert is_taken(after, XS)


@pytest.mark.parametrize("has_parentheses", [False, True])
def test_it_decorates_functions(is_taken, has_parentheses):
    decorate = tf_ti.accelerate() if has_parentheses else tf_ti.accelerate

    @decorate
    def decorated(xs, *, scale=1.0):
        """What it does."""
        return total(xs) * scale

    assert not tf_ti.accelerate.settings.current().loops
    assert decorated.__name__ == "decorated" and decorated.__doc__ == "What it does."
    assert is_taken(tf.function(decorated), XS)
    assert not is_taken(tf.function(total), XS)
    np.testing.assert_allclose(decorated(XS, scale=2.0), 2.0 * total(XS))


def test_it_decorates_tf_functions_with_their_options(is_taken):
    signature = [tf.TensorSpec([None, 2])]

    @tf_ti.accelerate
    @tf.function(input_signature=signature, reduce_retracing=True)
    def decorated(xs):
        return total(xs)

    assert decorated.input_signature == tuple(signature)
    assert is_taken(decorated.get_concrete_function())
    np.testing.assert_allclose(decorated(XS), total(XS), rtol=1e-6)


def test_it_decorates_methods(is_taken):
    class Model(tf.Module):
        @tf_ti.accelerate
        @tf.function
        def compiled(self, xs):
            return total(xs)

        @tf.function
        @tf_ti.accelerate
        def wrapped(self, xs):
            return total(xs)

        @tf_ti.accelerate(False)
        def plain(self, xs):
            return total(xs)

    model = Model()
    assert is_taken(model.compiled, XS) and is_taken(model.wrapped, XS)
    with tf_ti.accelerate():
        assert not is_taken(tf.function(model.plain), XS)


def test_a_block_inside_a_traced_function_is_for_its_loops(is_taken):
    @tf.function
    def ours(xs):
        with tf_ti.accelerate():
            return total(xs)

    @tf.function
    def both(xs):
        with tf_ti.accelerate(False):
            first = total(xs)
        return first + ours(xs)

    assert is_taken(ours, XS)
    types = both.get_concrete_function(XS).graph.as_graph_def()
    found = {n.op for n in [*types.node, *(n for f in types.library.function for n in f.node_def)]}
    assert {"StatelessWhile", "TfTi>StatelessTensorIterator"} <= found


def test_eager_code_stays_as_it_is():
    with tf_ti.accelerate():
        np.testing.assert_allclose(total(XS), tf.function(total)(XS), rtol=1e-6)
        seen = []
        tf.while_loop(lambda k: k < 3, lambda k: [seen.append(int(k)) or k + 1], [0])
        assert seen == [0, 1, 2]
        tf.config.run_functions_eagerly(True)
        try:
            eager = tf.function(total)(XS)
        finally:
            tf.config.run_functions_eagerly(False)
    np.testing.assert_allclose(eager, total(XS))


def test_threads_that_trace_at_once_have_settings_of_their_own(is_taken):
    wrong, barrier = [], threading.Barrier(4)

    def work(k):
        barrier.wait()
        for n in range(4):
            is_on = (k + n) % 2 == 0
            with tf_ti.accelerate(is_on):
                with tf_ti.accelerate(not is_on):
                    if is_taken(tf.function(total), XS) == is_on:
                        wrong.append((k, n, "inner"))
                if is_taken(tf.function(total), XS) != is_on:
                    wrong.append((k, n, "outer"))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_setting_of_everywhere_is_for_threads_and_a_block_is_not(is_taken):
    found = []

    def work():
        found.append(is_taken(tf.function(total), XS))

    def run():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    setting = tf_ti.accelerate()
    run()
    setting.undo()
    with tf_ti.accelerate():
        run()
    assert found == [True, False]


@pytest.mark.parametrize("is_block", [True, False])
def test_the_object_of_a_block_of_another_thread_never_holds_here(is_block):
    made, asked = threading.Event(), threading.Event()

    def work():
        setting = tf_ti.accelerate(False)
        made.set()
        asked.wait(0.1)  # as if this thread had no time to go on
        if is_block:
            with setting:
                asked.wait(10.0)
        else:
            setting(total)

    thread = threading.Thread(target=work)
    everywhere = tf_ti.accelerate()
    try:
        thread.start()
        made.wait()
        assert tf_ti.accelerate.settings.current().loops
    finally:
        asked.set()
        everywhere.undo()
        thread.join()


def test_blocks_of_other_threads_are_never_seen():
    stop = threading.Event()

    def work():
        while not stop.is_set():
            with tf_ti.accelerate(False):
                pass

    threads = [threading.Thread(target=work) for _ in range(2)]
    everywhere = tf_ti.accelerate()
    for thread in threads:
        thread.start()
    found = [tf_ti.accelerate.settings.current().loops for _ in range(100)]
    stop.set()
    everywhere.undo()
    for thread in threads:
        thread.join()
    assert all(found)


def test_a_block_is_for_the_replicas_that_are_traced_in_it(run_program):
    result = run_program(
        """
        import tensorflow as tf
        import tf_ti

        cpu = tf.config.list_physical_devices("CPU")[0]
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        with strategy.scope():
            v = tf.Variable([1.0, 2.0])

        def step():
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(tf.foldl(lambda a, x: tf.tanh(a * v + x), tf.ones([5, 2])))
            return tape.gradient(y, v)

        found = []
        for is_on in (False, True):
            with tf_ti.accelerate(is_on):
                gradients = tf.function(lambda: strategy.run(step))()
            found.append(strategy.experimental_local_results(gradients))
        for expected, got in zip(*found):
            tf.debugging.assert_near(expected, got)
        print(sum(loop.count for loop in tf_ti.accelerate.report() if loop.is_taken))
        """
    )
    assert result.stdout.split()[-1] == "2"


def test_nothing_stays_of_functions_that_are_gone():
    @tf.custom_gradient
    def clip(x):
        return x * 2.0, lambda grad: tf.clip_by_value(grad, -0.5, 0.5)

    def trace():
        @tf.function
        def gradient(xs):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                result = tf.foldl(lambda c, x: tf.tanh(c + clip(x)), xs)
            return tape.gradient(result, xs)

        gradient(XS)

    def count():
        gc.collect()
        return sum(isinstance(found, tf.Graph) for found in gc.get_objects())

    with tf_ti.accelerate():
        for _ in range(2):
            trace()
        before = count()
        for _ in range(3):
            trace()
        assert count() <= before


# --- code that goes on after its function has returned -------------------------------------------


def is_on():
    return tf_ti.accelerate.settings.current().loops


@tf_ti.accelerate
def generator(first):
    given = first
    try:
        while given is not None:
            try:
                given = yield given, is_on()
            except KeyError as error:
                given = error.args
        return is_on()
    finally:
        ENDS.append(is_on())


@tf_ti.accelerate()
async def coroutine(seconds):
    before = is_on()
    await asyncio.sleep(seconds)
    return before, is_on()


@tf_ti.accelerate
async def asynchronous_generator(count):
    try:
        for k in range(count):
            given = yield k, is_on()
            await asyncio.sleep(0.001)
            ENDS.append((given, is_on()))
    finally:
        ENDS.append(is_on())


ENDS = []


def test_a_generator_has_the_setting_while_it_runs():
    ENDS.clear()
    steps = generator(1)
    assert next(steps) == (1, True) and not is_on()
    assert steps.send(2) == (2, True) and not is_on()
    assert steps.throw(KeyError("key")) == (("key",), True) and not is_on()
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    assert end.value.value is True and ENDS == [True]
    steps = generator(1)
    next(steps)
    steps.close()
    assert ENDS == [True, True] and not is_on()
    with pytest.raises(ZeroDivisionError):
        steps = generator(1)
        next(steps)
        steps.throw(ZeroDivisionError)
    assert not is_on()


def test_coroutines_have_the_setting_while_they_run():
    async def other():
        found = []
        for _ in range(5):
            found.append(is_on())
            await asyncio.sleep(0.003)
        return found

    async def run():
        found = await asyncio.gather(coroutine(0.01), coroutine(0.005), other())
        assert found == [(True, True), (True, True), [False] * 5]
        task = asyncio.create_task(coroutine(100.0))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not is_on()

    asyncio.run(run())


def test_asynchronous_generators_have_the_setting_while_they_run():
    async def run():
        ENDS.clear()
        found = []
        async for value in asynchronous_generator(2):
            found.append((value, is_on()))
        assert found == [((0, True), False), ((1, True), False)]
        assert ENDS == [(None, True), (None, True), True]
        ENDS.clear()
        steps = asynchronous_generator(3)
        assert await anext(steps) == (0, True)
        assert await steps.asend("given") == (1, True)
        await steps.aclose()
        assert ENDS == [("given", True), True] and not is_on()
        steps = asynchronous_generator(3)
        await anext(steps)
        with pytest.raises(KeyError):
            await steps.athrow(KeyError)

    asyncio.run(run())


def test_decorated_functions_stay_of_their_kinds():
    assert inspect.isgeneratorfunction(generator)
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isasyncgenfunction(asynchronous_generator)
    assert list(inspect.signature(generator).parameters) == ["first"]

    class Called:
        async def __call__(self):
            return is_on()

        @tf_ti.accelerate
        @staticmethod
        def static(x):
            return x, is_on()

        @tf_ti.accelerate
        @classmethod
        def of_class(cls, x):
            return cls, x, is_on()

    assert asyncio.run(tf_ti.accelerate(Called())()) is True
    assert asyncio.run(tf_ti.accelerate(functools.partial(coroutine, 0.0))()) == (True, True)
    assert Called.static(1) == Called().static(1) == (1, True)
    assert Called.of_class(1) == Called().of_class(1) == (Called, 1, True)
    assert tf_ti.accelerate(max)(1, 2) == 2  # which has no signature


def test_the_module_is_the_function():
    import tf_ti.accelerate as module
    from tf_ti.accelerate import report

    assert module is tf_ti.accelerate and callable(module)
    assert report is tf_ti.accelerate.report
    assert module.__doc__ and tf_ti.accelerate.__name__ == "tf_ti.accelerate"
    with module():
        assert tf_ti.accelerate.settings.current().loops


def test_a_decorated_function_is_pickled_as_any():
    assert pickle.loads(pickle.dumps(pickled)) is pickled


@tf_ti.accelerate
def pickled(xs):
    return total(xs)


@pytest.mark.parametrize("wrong", [None, 1, "yes", dict])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(TypeError, match="on must be True, False or a function, got"):
        tf_ti.accelerate(wrong)


def test_what_is_traced_already_is_refused():
    traced = tf.function(total).get_concrete_function(XS)
    with pytest.raises(TypeError, match="is traced already"):
        tf_ti.accelerate(traced)
