"""Loops that stay TensorFlow's own, and why; the report, the command and saved models."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti.accelerate import reports

XS = tf.constant([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]])


def total(xs):
    return tf.foldl(lambda c, x: tf.tanh(c + x), xs)


def reasons():
    return [loop.text for loop in tf_ti.accelerate.report() if not loop.is_taken]


def with_random_numbers_in_a_branch(xs):
    def step(c, x):
        return c + tf.cond(c[0] > 0.0, lambda: x * tf.random.uniform([2]), lambda: x)

    return tf.foldl(step, xs)


@tf.custom_gradient
def clip(x):
    return tf.identity(x), lambda grad: tf.clip_by_norm(grad, 1.0)


def with_a_custom_gradient_in_a_branch(xs):
    def step(c, x):
        return c + tf.cond(c[0] > 0.0, lambda: clip(x), lambda: x)

    return tf.foldl(step, xs)


def with_operations_of_two_devices(xs):
    def body(k, x):
        with tf.device("CPU:0"):
            x = x * 2.0
        with tf.device("GPU:0"):
            return k + 1, x + 1.0

    return tf.while_loop(lambda k, x: k < 3, body, [0, xs])[1]


def with_a_condition_of_unknown_rank(xs):
    def condition(x):
        return tf.numpy_function(lambda x: x.sum() < 9.0, [x], tf.bool)

    return tf.while_loop(condition, lambda x: [x + 1.0], [xs])[0]


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (with_random_numbers_in_a_branch, "a gradient would have to repeat If "),
        (
            with_a_custom_gradient_in_a_branch,
            "a custom gradient inside that is not known to be linear",
        ),
        (with_operations_of_two_devices, "its operations ask for several devices: "),
        (with_a_condition_of_unknown_rank, "its condition is no bool, but bool of shape <unknown>"),
    ],
)
def test_a_loop_that_is_not_taken_is_tensorflows(both, is_taken, loop, words):
    with tf_ti.accelerate():
        assert not is_taken(tf.function(loop), XS)
    (reason,) = reasons()
    assert words in reason
    expected, got = both(loop, XS)
    np.testing.assert_array_equal(got, expected)


def test_a_loop_that_is_not_taken_is_traced_once():
    traces = []

    def loop(xs):
        def step(c, x):
            traces.append(1)
            return c + tf.cond(c[0] > 0.0, lambda: clip(x), lambda: x)

        return tf.foldl(step, xs)

    with tf_ti.accelerate():
        tf.function(loop).get_concrete_function(XS)
    assert len(traces) == len(reasons()) == 1


def test_a_fault_of_ours_leaves_the_loop_to_tensorflow(is_taken, monkeypatch):
    from tf_ti.accelerate import loops, taking

    def fail(*_):
        raise ZeroDivisionError("by us")

    monkeypatch.setattr(loops, "add", fail)
    with tf_ti.accelerate():
        function = tf.function(total)
        assert not is_taken(function, XS)
        np.testing.assert_allclose(function(XS), total(XS), rtol=1e-6)
    assert reasons() == [f"{taking.FAULT}: ZeroDivisionError: by us"]
    reports.clear()


def test_loops_that_xla_compiles_stay(is_taken):
    with tf_ti.accelerate():
        compiled = tf.function(total, jit_compile=True)
        assert not is_taken(compiled, XS)
        np.testing.assert_allclose(compiled(XS), total(XS), rtol=1e-6)
    assert reasons() == ["XLA compiles it, and has loops of its own"]


def test_a_loop_that_is_traced_outside_of_xla_is_compiled_as_ours():
    with tf_ti.accelerate():
        inner = tf.function(total)
        inner(XS)
        outer = tf.function(inner, jit_compile=True)
        np.testing.assert_allclose(outer(XS), total(XS), rtol=1e-6)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_graphs_of_tensorflow_1_stay(is_wrapped):
    with tf_ti.accelerate():
        if is_wrapped:
            function = tf.compat.v1.wrap_function(total, [tf.TensorSpec([3, 2])])
            result, graph = function(XS), function.graph
        else:
            with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
                result = session.run(total(tf.constant(XS.numpy())))
    np.testing.assert_allclose(result, total(XS), rtol=1e-6)
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    assert not any(node.op.startswith("TfTi>") for node in nodes)
    # The first version of control flow does not come by.
    assert set(reasons()) <= {"it is part of a graph of TensorFlow 1"}


def test_loops_that_compute_gradients_of_tensorflows_loops_stay(is_taken):
    function = tf.function(total)
    function.get_concrete_function(XS)
    with tf_ti.accelerate(), tf.GradientTape() as tape:
        tape.watch(XS)
        result = function(XS)
    with tf_ti.accelerate():
        gradient = tape.gradient(result, XS)
    assert gradient.shape == XS.shape and not list(tf_ti.accelerate.report())


# --- the report ----------------------------------------------------------------------------------


def test_the_report_has_the_users_lines():
    with tf_ti.accelerate():
        tf.function(total).get_concrete_function(XS)
        tf.function(total).get_concrete_function(XS)
        tf.function(with_a_custom_gradient_in_a_branch).get_concrete_function(XS)
    first, second = tf_ti.accelerate.report()
    line = total.__code__.co_firstlineno + 1
    assert first.place == f"test_not_taken.py, line {line}" and first.library == ""
    assert first.is_taken and first.count == 2
    assert "operation" in first.text
    assert not second.is_taken and second.count == 1
    lines = str(tf_ti.accelerate.report()).splitlines()
    assert lines[0].startswith(f"{first.place}: runs as ") and lines[0].endswith(" (2 times)")
    assert lines[1].startswith(f"{second.place}: is TensorFlow's: ")


def test_the_report_names_the_line_of_a_loop_of_autograph():
    def loop(xs):
        c = tf.zeros([2])
        for x in xs:
            c += x
        return c

    with tf_ti.accelerate():
        tf.function(loop).get_concrete_function(XS)
    (found,) = tf_ti.accelerate.report()
    assert found.place == f"test_not_taken.py, line {loop.__code__.co_firstlineno + 2}"


def test_the_report_leaves_out_what_is_traced_for_types_alone():
    def undefined_before(xs):
        for _ in tf.range(2):
            c = tf.zeros([2])
            for x in xs:
                c += x
        return c

    with tf_ti.accelerate():
        tf.function(undefined_before).get_concrete_function(XS)
    assert [(loop.is_taken, loop.count) for loop in tf_ti.accelerate.report()] == [(True, 1)] * 2
    reports.clear()
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "tensorflow":
        with tf_ti.accelerate():
            keras.Sequential([keras.Input([5, 3]), keras.layers.LSTM(4)])
        assert not list(tf_ti.accelerate.report())


def test_the_report_of_no_loop():
    assert str(tf_ti.accelerate.report()) == "no loops"


def test_the_report_does_not_grow_for_ever(monkeypatch):
    monkeypatch.setattr(reports, "_MOST", 3)
    for k in range(5):
        reports.add(True, f"kind {k}")
    assert [loop.text for loop in tf_ti.accelerate.report()] == ["kind 2", "kind 3", "kind 4"]


# --- implementations of an API -------------------------------------------------------------------


def of_device(x):
    """A function with an implementation for CPUs, between which Grappler chooses."""

    def implementation(function, **attributes):
        attributes["api_implements"] = "test_not_taken.of_device"
        return tf.function(function, autograph=False, experimental_attributes=attributes)

    result = implementation(lambda x: x + 1.0)(x)
    other = implementation(lambda x: x + 2.0, api_preferred_device="CPU")
    other.get_concrete_function(x).add_to_graph()
    return result


@pytest.mark.needs_cpu_kernels
@pytest.mark.parametrize(
    "loop",
    [
        lambda x: tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, of_device(x)), [0, x])[1],
        lambda x: tf.map_fn(of_device, x[None])[0],
        lambda x: tf.scan(lambda c, y: of_device(c) * y, tf.ones([3]), x),
    ],
    ids=["while_loop", "map_fn", "scan"],
)
def test_bodies_have_the_implementation_that_grappler_chooses(both, loop):
    expected, got = both(loop, tf.constant(1.0), autograph=False)
    np.testing.assert_array_equal(got, expected)
    scan = tf.function(lambda x: tf_ti.scan(lambda c, _: (of_device(c), c), x, length=3)[0])
    assert scan(tf.constant(1.0)) == 7.0


# --- the command ---------------------------------------------------------------------------------

PROGRAM = """
import sys

import tensorflow as tf

def total(xs):
    return tf.foldl(tf.add, xs)

if __name__ == "__main__":
    function = tf.function(total)
    print(sys.argv, int(function(tf.range(4))))
    nodes = function.get_concrete_function(tf.range(4)).graph.as_graph_def().node
    print([node.op for node in nodes if "While" in node.op or "TfTi" in node.op])
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "beside.py").write_text("value = 3")
    path = tmp_path / "program.py"
    path.write_text("import beside\n" + PROGRAM)
    return path


@pytest.mark.parametrize("is_module", [False, True])
def test_the_command_runs_a_program_with_its_arguments(program, run_python, is_module):
    which = ["-m", "program"] if is_module else ["program.py"]
    command = ["-m", "tf_ti.accelerate", "--report", *which, "one", "--two"]
    result = run_python(*command, cwd=program.parent)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.endswith("'one', '--two'] 6") and "program" in first
    assert second == "['TfTi>StatelessTensorIterator']"
    assert "program.py, line 8: runs as " in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "said", "--epochs", "3"],
        ["--lookups", "-m", "said", "-h"],
        ["-m", "said", "--report", "-m", "json.tool"],
        ["-msaid", "x", "--report"],
        ["--", "said.py", "--report"],
        ["--report", "said.py", "-m", "x"],
    ],
    ids=" ".join,
)
def test_a_program_gets_all_options_after_its_name(words, tmp_path, run_python):
    (tmp_path / "said.py").write_text("import sys; print(sys.argv[1:])")
    result = run_python("-m", "tf_ti.accelerate", *words, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    end = max(i for i, word in enumerate(words) if word in ("said", "-msaid", "said.py"))
    assert result.stdout.strip() == str(words[end + 1 :])


def test_the_command_gives_the_exit_code_and_the_error_of_the_program(tmp_path, run_python):
    (tmp_path / "program.py").write_text("raise SystemExit(3)")
    assert run_python("-m", "tf_ti.accelerate", "program.py", cwd=tmp_path).returncode == 3
    (tmp_path / "program.py").write_text("1 / 0")
    result = run_python("-m", "tf_ti.accelerate", "program.py", cwd=tmp_path)
    assert result.returncode == 1 and "ZeroDivisionError" in result.stderr


def test_the_command_without_a_program_says_what_it_takes(tmp_path, run_python):
    result = run_python("-m", "tf_ti.accelerate", cwd=tmp_path)
    assert result.returncode == 2
    assert "usage: python -m tf_ti.accelerate" in result.stderr


# --- saved models --------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    """The folder of a model that was traced with, or without, loops of tf_ti's."""

    def save(is_on):
        module = tf.Module()
        with tf_ti.accelerate(is_on):
            module.total = tf.function(total, input_signature=[tf.TensorSpec([None, 2])])
            tf.saved_model.save(module, tmp_path / str(is_on))
        return tmp_path / str(is_on)

    return save


def test_a_saved_model_has_the_loops_with_which_it_was_traced(saved, run_program):
    load = """
        import sys
        import tensorflow as tf

        print(tf.saved_model.load(sys.argv[1]).total(tf.constant([[1.0, 2.0]])).numpy().tolist())
    """
    plain = run_program(load, saved(False), is_first=True)
    assert plain.stdout.split("\n")[0] == "[1.0, 2.0]"
    ours = run_program(load, saved(True), check=False, is_first=True)
    assert ours.returncode != 0 and "Op type not registered 'TfTi>" in ours.stderr
    with_import = run_program("import tf_ti\n" + load.replace("        ", ""), saved(True))
    assert with_import.stdout.split("\n")[0] == "[1.0, 2.0]"
