"""The README's examples print what their comments say, each in a process of its own."""

import pathlib
import re
import subprocess
import sys

import pytest

from tf_ti import _library

README = pathlib.Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def test_there_are_nineteen_examples():
    assert len(EXAMPLES) == 19


@pytest.mark.parametrize("example", EXAMPLES, ids=range(1, len(EXAMPLES) + 1))
def test_an_example_prints_what_its_comments_say(example, tmp_path):
    if "jit_compile" in example and _library.XLA_PROBLEM is not None:
        pytest.skip(_library.XLA_PROBLEM)
    expected = re.findall(r"^print\(.*\)  # (.*)$", example, re.MULTILINE)
    assert len(expected) == example.count("print(") > 0
    script = tmp_path / "example.py"
    script.write_text(example)

    result = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)

    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == expected
