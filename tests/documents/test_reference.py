"""The reference has each public name once, and its table each variable of the environment."""

import collections
import importlib
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
MODULES = (
    "tf_ti",
    "tf_ti.accelerate",
    "tf_ti.keras",
    "tf_ti.keras.optimizers",
    "tf_ti.openvino",
    "tf_ti.recurrent",
)
# The types of values that users get from functions, whose names they do not need.
UNEXPORTED = {
    "tf_ti.loops.block.values.Iterator",
    "tf_ti.loops.block.values.Output",
    "tf_ti.loops.block.values.Recurrence",
    "tf_ti.loops.explaining.explain.Explanation",
    "tf_ti.loops.explaining.loops.LoopExplanation",
    "tf_ti.loops.explaining.loops.Moved",
    "tf_ti.loops.explaining.loops.Reason",
    "tf_ti.loops.explaining.memory.Recorded",
    "tf_ti.loops.explaining.memory.Size",
    "tf_ti.loops.passes.step.Mention",
    "tf_ti.openvino.states.State",
}
DIRECTIVE = re.compile(r"^\.\. (?:auto|py:)(?:\w+):: (tf_ti[\w.]*)(?:\(\))?$", re.MULTILINE)
# The code that reads variables, and what sets them for a part of it.
CODE = ("Makefile", "bazel", "benchmarks", "cc", "gpu_check", "tests", "tf_ti")
READ = re.compile(
    r"""(?:getenv\(|environ\.get\(|environ\[|environ = \[[^\]]*|setenv\()\s*["'](TF_TI_\w+)["']"""
)


def test_each_public_name_is_in_the_reference_once():
    found = collections.Counter()
    for page in REFERENCE.glob("*.md"):
        found.update(DIRECTIVE.findall(page.read_text()))
    names = {
        f"{module}.{name}" for module in MODULES for name in importlib.import_module(module).__all__
    }
    assert found == collections.Counter(names | UNEXPORTED)


def test_each_method_of_a_loop_is_in_the_reference():
    methods = {name for name, value in vars(_loop()).items() if callable(value) and name[0] != "_"}
    text = (REFERENCE / "loops.md").read_text()
    assert set(re.findall(r"automethod:: (\w+)", text)) == methods


def _loop():
    return importlib.import_module("tf_ti").Loop


def test_each_variable_that_the_code_reads_is_in_the_table_and_no_other():
    text = (REFERENCE / "environment.md").read_text()
    table = re.findall(r"^\| `(TF_TI_\w+)` \|", text, re.MULTILINE)
    assert sorted(table) == sorted(_read_variables())


def _read_variables():
    found = set()
    for name in CODE:
        folder = ROOT / name
        for path in [folder] if folder.is_file() else folder.rglob("*"):
            if path.suffix in ("", ".bzl", ".cc", ".cu", ".h", ".py", ".sh") and path.is_file():
                found.update(READ.findall(path.read_text()))
    return found


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples", "tests", "tf_ti"])
def test_no_variable_is_set_or_explained_that_is_not_in_the_table(folder):
    """But for macros of C++, which begin likewise, and are not set to anything."""
    known = _read_variables()
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in (".md", ".py", ".ipynb"):
            for variable in re.findall(r"\b(TF_TI_[A-Z_]+)=", path.read_text()):
                assert variable in known, path
