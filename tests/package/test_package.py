"""The installed package as a whole: what is in it, what it refuses, `python -m tf_ti`."""

import importlib.metadata
import inspect
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf

import tf_ti
from tf_ti import _build_info, _library, _version

TF_MINOR = ".".join(tf.__version__.split(".")[:2])


@pytest.fixture
def package(tmp_path):
    """A copy of the package, which Python finds first when it runs in the copy's parent."""
    return pathlib.Path(
        shutil.copytree(
            pathlib.Path(tf_ti.__file__).parent,
            tmp_path / "tf_ti",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    )


def run_python(*arguments, cwd):
    return subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)


def test_functions_that_are_arguments_of_a_tf_function_stay_what_autograph_does_not_convert():
    functions = [f for f in map(vars(tf_ti).get, tf_ti.__all__) if inspect.isfunction(f)]
    taken = []
    tf.function(taken.extend)(functions)
    assert len(functions) > 20 and taken == functions


@pytest.fixture
def import_error(package, run_program):
    """What an import of the copy prints, after some line of Python."""

    def run(before="pass"):
        program = f"""
{before}
try:
    import tf_ti
except ImportError as error:
    print(error)
else:
    print("imported")
"""
        return run_program(program).stdout

    return run


def test_a_copy_of_the_package_imports(import_error):
    assert import_error() == "imported\n"


@pytest.mark.parametrize("has_cuda", [False, True])
def test_another_tensorflow_is_refused_with_the_line_for_pip_before_the_library_is_loaded(
    package, import_error, has_cuda
):
    info = package / "_build_info.py"
    info.write_text(f"TENSORFLOW_VERSION = '2.3.1'\nCUDA = {'12.4' if has_cuda else ''!r}\n")
    (package / "_tf_ti.so").write_text("loading this would be another error")

    message = import_error()

    version = f"{_version.RELEASE}+tf{TF_MINOR}{'.cuda' if has_cuda else ''}"
    assert message == (
        f"this tf_ti was built for TensorFlow 2.3, but TensorFlow {tf.__version__} is installed. "
        f"The wheel for it: pip install 'tf_ti=={version}'; "
        "pip install . in a checkout of tf_ti builds it\n"
    )


def test_a_tensorflow_without_a_wheel_is_refused_with_the_one_for_this_wheel(import_error):
    installed = {each.name.replace("_", "-") for each in importlib.metadata.distributions()}
    package_of_tensorflow = "tensorflow-cpu" if "tensorflow-cpu" in installed else "tensorflow"
    before = "import tensorflow; tensorflow.__version__ = '2.99.0'"
    assert import_error(before) == (
        f"this tf_ti was built for TensorFlow {TF_MINOR}, but TensorFlow 2.99.0 is installed, for "
        f"which tf_ti {_version.RELEASE} has no wheel. The TensorFlow for this one: "
        f"pip install '{package_of_tensorflow}~={TF_MINOR}.0'\n"
    )


def test_another_patch_release_of_the_same_tensorflow_is_accepted(package, import_error):
    info = package / "_build_info.py"
    info.write_text(info.read_text().replace(_build_info.TENSORFLOW_VERSION, f"{TF_MINOR}.99"))
    assert import_error() == "imported\n"


def test_a_missing_tensorflow_is_answered_with_both_extras(import_error):
    message = import_error(before="import sys; sys.modules['tensorflow'] = None")
    for extra in ("cpu", "gpu"):
        assert f"'tf_ti[{extra}]=={tf_ti.__version__}'" in message


@pytest.mark.parametrize("before", ["pass", "import sys; sys.modules['tensorflow'] = None"])
def test_a_checkout_that_is_not_built_is_answered_with_make_build(package, import_error, before):
    for file in ("_tf_ti.so", "_tf_ti_xla.so", "_build_info.py"):
        (package / file).unlink(missing_ok=True)
    message = import_error(before)
    assert "_tf_ti.so is missing" in message
    assert "make build" in message


def test_help_of_the_module_is_help(tmp_path):
    result = run_python("-m", "tf_ti", "--help", cwd=tmp_path)
    assert result.returncode == 0 and result.stdout.startswith("usage: python -m tf_ti [-h]")


def test_the_module_reports_versions_devices_ops_and_checks(tmp_path):
    result = run_python("-m", "tf_ti", cwd=tmp_path)

    assert result.returncode == 0, result.stdout + result.stderr
    words = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line}
    assert words["tf_ti"] == [tf_ti.__version__]
    assert words["TensorFlow"] == [tf.__version__]
    assert words["NumPy"] == [np.__version__]
    assert words["Python"] == [platform.python_version()]
    devices = ["CPU,", "GPU"] if _build_info.CUDA else ["CPU"]
    assert words["TfTi>TensorIterator"][: len(devices)] == devices
    assert "/physical_device:CPU:0" in result.stdout
    assert "  ok  " in result.stdout
    check = "a wrong id is an error, or reads as zeros on a GPU"
    assert f"{check}: indices[0, 1] is 5, but emb_table has 5 rows\n" in result.stdout


def test_xla_has_the_operations_with_each_tensorflow_that_the_docs_name():
    """Where it has not, all other tests that compile them are skipped."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "install.md").read_text()
    (named,) = re.findall(r"with XLA needs TensorFlow ([\d.]+) or ([\d.]+\d)\.", page)
    if TF_MINOR in named:
        assert _library.XLA_PROBLEM is None


@pytest.mark.skipif(not _build_info.CUDA, reason="built without CUDA")
def test_the_library_for_gpus_needs_neither_a_driver_nor_libraries_of_cuda():
    library = pathlib.Path(tf_ti.__file__).with_name("_tf_ti.so")
    dynamic = subprocess.run(
        ["readelf", "--dynamic", library], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert "libc.so.6" in needed
    assert not [name for name in needed if name.startswith(("libcu", "libnv"))]


@pytest.mark.skipif(
    not re.search(r"gcc .* 12\.", _build_info.COMPILER), reason="GCC 12 did not build it"
)
@pytest.mark.parametrize("name", ["_tf_ti.so", "_tf_ti_xla.so"])
def test_the_libraries_need_nothing_newer_than_what_the_docs_name(name):
    library = pathlib.Path(tf_ti.__file__).with_name(name)
    if not library.exists():
        pytest.skip("built without XLA")
    needed = subprocess.run(
        ["readelf", "--version-info", "--wide", library], capture_output=True, text=True, check=True
    ).stdout
    for of, most in {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)}.items():
        found = re.findall(rf"\b{of}_([\d.]+)", needed)
        assert found and max(tuple(map(int, version.split("."))) for version in found) <= most


@pytest.mark.slow
def test_the_module_warns_of_nothing_where_all_is_well(tmp_path):
    result = run_python("-m", "tf_ti", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert not re.search(r"^[WE]\d{4} |INVALID_ARGUMENT", result.stderr, re.M), result.stderr


def test_the_module_fails_when_a_check_fails(package):
    (package / "_self_check.py").write_text(
        "def run():\n    yield 'fine', True, ''\n    yield 'sums', False, 'got 1, expected 2'\n"
    )
    result = run_python("-m", "tf_ti", cwd=package.parent)
    assert result.returncode == 1
    assert "FAILED  sums: got 1, expected 2" in result.stdout


def test_the_metadata_gives_the_version_of_the_package():
    assert importlib.metadata.version("tf_ti") == tf_ti.__version__


@pytest.mark.slow
def test_the_package_works_when_it_is_imported_anew_and_so_does_what_was_made_before(run_program):
    """As notebooks' reloaders do."""
    run_program(
        """
        import sys
        import numpy as np
        import tensorflow as tf

        def check(tf_ti, table, step):
            for call in (step, tf.function(step)):
                with tf.GradientTape() as tape:
                    y = call(tf_ti, table)
                gradient = tape.gradient(y, table)
                assert gradient.indices.numpy().tolist() == [0, 2], gradient
                # y = w ** 3 with w = table[0] + table[2].
                assert gradient.values.numpy().tolist() == [[48.0], [48.0]], gradient

        def step(tf_ti, table):
            w = tf_ti.embedding_bag_packed(table, [[0, 2]])[0, 0]
            return tf_ti.scan(lambda c, x: (c * w, None), 1.0, tf.zeros([3]))[0]

        tables, packages = [], []
        for _ in range(3):
            import tf_ti
            tf_ti.keras.EmbeddingBag(3, 2)
            packages.append(tf_ti)
            tables.append(tf.Variable([[1.0], [9.0], [3.0]]))
            for package in packages:
                for table in tables:
                    check(package, table, step)
            for name in [name for name in sys.modules if name.split(".")[0] == "tf_ti"]:
                del sys.modules[name]
            del tf_ti
        assert len(set(map(id, packages))) == 3
        """,
        is_first=True,
    )


def test_little_is_required_and_each_extra_brings_the_tensorflow_it_was_built_for():
    keras = "keras<3.16,>=3.10"  # those that are tested
    assert importlib.metadata.requires("tf_ti") == [
        "numpy",
        "wrapt",
        "defusedxml",
        f'tensorflow-cpu~={TF_MINOR}.0; extra == "cpu"',
        f'{keras}; extra == "cpu"',
        f'tensorflow[and-cuda]~={TF_MINOR}.0; extra == "gpu"',
        f'{keras}; extra == "gpu"',
        f'{keras}; extra == "keras"',
    ]


def test_the_wheel_holds_the_package_and_nothing_else():
    files = [str(file) for file in importlib.metadata.files("tf_ti")]
    modules = [file for file in files if not file.startswith("tf_ti-")]
    assert {"tf_ti/_tf_ti.so", "tf_ti/py.typed", "tf_ti/_build_info.py"} <= set(modules)
    assert all(file.startswith("tf_ti/") for file in modules)
    assert {pathlib.PurePath(file).suffix for file in modules} == {".py", ".pyc", ".so", ".typed"}
    assert any(file.endswith("/licenses/LICENSE") for file in files)


@pytest.fixture
def checkout(tmp_path):
    """A copy of what makes the wheel; its libraries are there already."""
    here = pathlib.Path(__file__).parents[2]
    for name in ("bazel", "requirements", "tf_ti"):
        shutil.copytree(here / name, tmp_path / name)
    for name in ("LICENSE", "README.md", "build_pip_pkg.sh", "pyproject.toml"):
        shutil.copy(here / name, tmp_path)
    for file in ("_tf_ti.so", "_build_info.py"):
        shutil.copy(pathlib.Path(tf_ti.__file__).with_name(file), tmp_path / "tf_ti")
    (tmp_path / "bazel" / "build_library.sh").write_text("#!/bin/sh\n")
    return tmp_path


def build_wheel(checkout):
    pytest.importorskip("auditwheel")  # `make test` has installed it, and built the wheel with it
    subprocess.run(
        ["./build_pip_pkg.sh", "dist"],
        cwd=checkout,
        env=os.environ | {"PYTHON_BIN_PATH": sys.executable},
        check=True,
    )
    (wheel,) = (checkout / "dist").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_the_same_sources_make_the_same_bytes_anywhere_for_anybody(checkout):
    other = shutil.copytree(checkout, checkout / "other" / "folder")
    for path in other.rglob("*"):  # a checkout of somebody whose umask is 002
        path.chmod(path.stat().st_mode | (0o020 if path.is_file() else 0o070))
        os.utime(path, (1e9, 1e9))
    assert build_wheel(checkout).read_bytes() == build_wheel(other).read_bytes()


@pytest.mark.slow
def test_a_build_of_the_wheel_removes_what_it_made_and_nothing_else(checkout):
    kept = ["build/char_model/saved_model.pb", "build/lib/mine.py", "dist/mine.txt"]
    for file in kept:
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text("mine")
    (checkout / "tf_ti" / "removed_later.py").touch()
    before = {path.name for path in checkout.iterdir()}

    files = zipfile.ZipFile(build_wheel(checkout)).namelist()
    (checkout / "tf_ti" / "removed_later.py").unlink()
    files_later = zipfile.ZipFile(build_wheel(checkout)).namelist()
    assert set(files) - set(files_later) == {"tf_ti/removed_later.py"}
    assert [(checkout / file).read_text() for file in kept] == ["mine"] * len(kept)
    made = {path.name for path in checkout.iterdir()} - before
    assert made == {".cache", "tf_ti.egg-info"}


def test_the_wheel_is_for_any_python_3_on_manylinux():
    wheel = importlib.metadata.distribution("tf_ti").read_text("WHEEL")
    assert "Root-Is-Purelib: false" in wheel
    assert f"_{platform.machine()}" in wheel
    tags = [line for line in wheel.splitlines() if line.startswith("Tag: ")]
    assert tags and all(tag.startswith("Tag: py3-none-manylinux_2_") for tag in tags)
