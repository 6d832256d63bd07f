"""The README's examples print what their comments say, each in a namespace of its own."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

from tf_ti import _library

README = pathlib.Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
RUN = """
import contextlib, io, json, runpy, sys, traceback
found = []
for path in sys.argv[1:]:
    output, failure = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(output):
            runpy.run_path(path, run_name="__main__")
    except Exception:
        failure = traceback.format_exc()
    found.append([output.getvalue(), failure])
print(json.dumps(found))
"""


def test_there_are_nineteen_examples():
    assert len(EXAMPLES) == 19


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The output and the failure of each example, all in one process: its start takes seconds."""
    folder = tmp_path_factory.mktemp("readme")
    paths = [folder / f"example_{k}.py" for k in range(len(EXAMPLES))]
    for path, example in zip(paths, EXAMPLES):
        path.write_text(example)
    finished = subprocess.run(
        [sys.executable, "-c", RUN, *paths], cwd=folder, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


@pytest.mark.parametrize("number", range(1, len(EXAMPLES) + 1))
def test_an_example_prints_what_its_comments_say(number, results):
    example, (output, failure) = EXAMPLES[number - 1], results[number - 1]
    if "jit_compile" in example and _library.XLA_PROBLEM is not None:
        pytest.skip(_library.XLA_PROBLEM)
    expected = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert len(expected) == example.count("print(") > 0
    assert not failure, failure
    assert output.splitlines() == expected
