"""The Python of the README and of the site's pages prints what the pages say.

The blocks of a page are one program, in the page's order, which runs in a folder of its own. What
a block prints is in the comments of the lines that print it,

    print(1 + 1)  # 2

or, all of it, in a block of `output` right after it, where "..." stands for anything. In a page,
"$ python ..." in a block of `console` runs after the blocks before it, in the same folder; what
`make` makes must be a target of the Makefile. A picture that the code draws is the one that lies
beside the page.
"""

import contextlib
import doctest
import io
import itertools
import linecache
import os
import pathlib
import re
import shlex
import shutil
import sys
import traceback
import types

import pytest

from tf_ti import _library
from tf_ti.accelerate import reports, settings

ROOT = pathlib.Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCK = re.compile(
    r"^```(python|console)\n(.*?)^```\n(?:\s*^```output\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
RULES = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
TARGETS = {target for rule in RULES for target in rule.split()}
# Peers that the tests run without.
OPTIONAL = {"torch", "jax", "onnx", "onnxruntime"}


def blocks(page):
    """Of each block: its language, its code, the output that the page says, its line."""
    text = page.read_text()
    for match in BLOCK.finditer(text):
        language, code, output = match.groups()
        if language == "python":
            said = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.M)
            if output is None:
                output = "".join(f"{line}\n" for line in said)
            # Comments repeat some lines of the block of output.
            assert {*said} <= {*output.splitlines()}, f"{page}: {said} is not in {output}"
        yield language, code, output, text.count("\n", 0, match.start(2))


def run_block(code, program, page, line):
    """What the code prints. Its file, for AutoGraph and tracebacks, has the page's lines."""
    lines = pathlib.Path(program.__file__).read_text().splitlines()
    lines += [""] * (line - len(lines)) + code.splitlines()
    pathlib.Path(program.__file__).write_text("\n".join(lines) + "\n")
    linecache.checkcache()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile("\n" * line + code, program.__file__, "exec"), program.__dict__)
        except Exception:
            pytest.fail(f"{page}, in the block at line {line}:\n{traceback.format_exc()}")
    return printed.getvalue()


def run_console(code, run_python):
    """What the commands print that begin with "$ python"."""
    printed = ""
    for command in re.findall(r"^\$ ((?:.*\\\n)*.*)$", code, re.MULTILINE):
        words = shlex.split(command, comments=True)
        assert not {"|", ">", "<", "&&", "\n"} & {*words}, f"no shell runs this: {command}"
        words = list(itertools.dropwhile(lambda word: "=" in word, words))
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= TARGETS, command
        elif words[0] == "python":
            finished = run_python(*words[1:], cwd=os.getcwd())
            assert finished.returncode == 0, finished.stderr
            printed += finished.stdout
    return printed


def check_output(found, expected, page, line):
    # Without the second, 1 would be the same as True.
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
    example = doctest.Example("", expected)
    if not checker.check_output(example.want, found, flags):
        difference = checker.output_difference(example, found, flags)
        pytest.fail(f"{page}, in the block at line {line}:\n{difference}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_prints_what_it_says(page, tmp_path, monkeypatch, run_python):
    found = list(blocks(page))
    for module in sorted(OPTIONAL):
        if any(re.search(rf"^(import|from) {module}\b", code, re.M) for _, code, _, _ in found):
            pytest.importorskip(module)
    if any("jit_compile" in code for _, code, _, _ in found) and _library.XLA_PROBLEM is not None:
        pytest.skip(_library.XLA_PROBLEM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(settings, "_everywhere", ())  # what a page switches on ends with it
    reports.clear()  # it prints what became of its own loops
    which = shutil.which  # without graphviz, whose pictures differ from version to version
    monkeypatch.setattr(
        shutil, "which", lambda name, **rest: None if name == "dot" else which(name, **rest)
    )
    name = str(page.relative_to(ROOT))
    # A module, as functions that are saved, or that Keras registers, are looked up in theirs.
    program = types.ModuleType("page")
    program.__file__ = str(tmp_path / "page.py")
    pathlib.Path(program.__file__).touch()
    monkeypatch.setitem(sys.modules, "page", program)
    for language, code, expected, line in found:
        if language == "console":
            printed = run_console(code, run_python)
            if expected is not None:
                check_output(printed, expected, name, line)
        else:
            printed = run_block(code, program, name, line)
            check_output(printed, expected, name, line)
    for drawn in tmp_path.glob("*.svg"):
        assert drawn.read_text() == (page.parent / drawn.name).read_text(), (
            f"cp {drawn} {page.parent}"
        )
