"""The project's papers agree with one another, and name what there is."""

import json
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
VERSION = runpy.run_path(str(ROOT / "tf_ti" / "_version.py"))
PAPERS = ("CONTRIBUTING.md", "RELEASE.md", "SECURITY.md", ".github/pull_request_template.md")


def text(path):
    return (ROOT / path).read_text()


def test_the_citation_is_of_this_release():
    assert re.search(r"^version: (.*)$", text("CITATION.cff"), re.M)[1] == VERSION["RELEASE"]


def test_pre_commit_runs_the_versions_that_lint_does():
    pinned = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?==(.*)$", text("requirements/lint.txt"), re.M))
    hooks = re.findall(r"/([\w-]+)\n *rev: v(.*)$", text(".pre-commit-config.yaml"), re.M)
    names = {"ruff-pre-commit": "ruff", "mirrors-clang-format": "clang-format"}
    assert {names[hook]: version for hook, version in hooks} == {
        name: pinned[name] for name in ("ruff", "clang-format")
    }


@pytest.mark.parametrize("path", PAPERS)
def test_papers_name_files_and_commands_that_there_are(path):
    found = re.findall(r"`([^`\s]+)", text(path)) + re.findall(
        r"\]\((?!https?:)([^)#]+)", text(path)
    )
    for name in found:
        if re.fullmatch(r"(\.?[\w.-]+/)+[\w.*-]*", name) and not name.startswith(
            ("dist-", "build/")
        ):
            assert list(ROOT.glob(name.replace("VERSION", "*").rstrip("/"))), name
    targets = re.search(r"^\.PHONY: (demo .*)$", text("Makefile"), re.M)[1].split()
    assert set(re.findall(r"`make ([\w-]+)", text(path))) <= set(targets)


def test_workflows_call_the_layers_and_commands_that_there_are():
    layers = re.findall(r"^  (\w+)\) ", text(".ci/run"), re.M)
    targets = re.search(r"^\.PHONY: (demo .*)$", text("Makefile"), re.M)[1].split()
    called, made = set(), set()
    for workflow in (ROOT / ".github" / "workflows").glob("*.yml"):
        for command in re.findall(r"\.ci/run (.*)$", workflow.read_text(), re.M):
            called.update(re.findall(r"'(fast|all|lint)'", command) or [command])
        made.update(re.findall(r"\bmake ([\w-]+)", workflow.read_text()))
    assert called == set(layers) == {"lint", "fast", "all"}
    assert made and made <= set(targets)


def test_nightly_jobs_have_rooms_that_there_are():
    script = ROOT / "tests" / "package" / "of_the_day.py"
    names = subprocess.run([sys.executable, script], capture_output=True, text=True).stdout.split()
    assert len(names) == 4 and all((ROOT / "tests" / name).exists() for name in names)


def test_a_release_waits_for_as_many_nights_as_have_every_room():
    rooms = runpy.run_path(str(ROOT / "tests" / "package" / "of_the_day.py"))["ROOMS"]
    said = r"nightly checks of (\w+) nights, which have every room once"
    (number,) = re.findall(said, text("RELEASE.md"))
    assert {"eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12}[number] == len(rooms)


def test_what_pages_are_left_out_by_is_there():
    # To Git a missing path is an unchanged path.
    (paths,) = re.findall(r'"\$CHANGED_SINCE" -- (.*?);', text(".ci/run"), re.S)
    assert [path for path in paths.replace("\\\n", " ").split() if not (ROOT / path).exists()] == []


def test_a_release_is_for_the_tensorflows_that_the_package_names():
    lines = re.findall(r"^(?:older_tfs|default_tf) := (.*)$", text("Makefile"), re.M)
    made = {VERSION["minor_of"](version) for line in lines for version in line.split()}
    release = runpy.run_path(str(ROOT / "release" / "release.py"))
    assert made == set(VERSION["TENSORFLOWS"]) == set(release["NEWEST_PYTHON"])
    (supported,) = re.findall(r'^SUPPORTED = "(.*)"$', text("bazel/build_backend.py"), re.M)
    first, last = re.fullmatch(r">=2\.(\d+),<2\.(\d+)", supported).groups()
    assert set(VERSION["TENSORFLOWS"]) == {f"2.{each}" for each in range(int(first), int(last))}


def test_the_devcontainer_is_json():
    assert json.loads(text(".devcontainer/devcontainer.json"))["postCreateCommand"]
