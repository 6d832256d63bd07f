"""Makes the files of a release: `make release`. RELEASE.md says what they are, and what for.

    release.py FOLDER [--tensorflows VERSION ...] [--pythons PYTHON ...]

It builds a wheel for each TensorFlow, installs each in empty environments, one for each Python that
there is, and runs the self-check and the README's examples there. A wheel that fails is left out.
"""

import argparse
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
RELEASE = runpy.run_path(str(ROOT / "tf_ti" / "_version.py"))["RELEASE"]
# The TensorFlows that wheels are made for, and the newest Python of each.
TENSORFLOWS = {
    "2.17.1": (3, 12),
    "2.18.1": (3, 12),
    "2.19.1": (3, 12),
    "2.20.0": (3, 13),
    "2.21.0": (3, 13),
}
PYTHONS = [f"python3.{minor}" for minor in range(10, 14)]
# What the examples of the README are run by, and what they read.
EXAMPLES = ("README.md", "Makefile", "tests/documents/test_pages.py")
_ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


class Failed(Exception):
    """A command that failed: it, and what it printed."""


def run(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT, **environment: str) -> str:
    """What a command prints; its errors too, where it fails."""
    finished = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=_ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if finished.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}\n{finished.stdout[-4000:]}")
    return finished.stdout


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def build(tensorflow: str, folder: pathlib.Path, epoch: str) -> pathlib.Path:
    """Builds the wheel for one TensorFlow, into a folder."""
    run("make", f"TF_VERSION={tensorflow}", "wheel", SOURCE_DATE_EPOCH=epoch)
    (default,) = re.findall(r"^default_tf := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    made = ROOT / ("dist" if tensorflow == default else f"dist-tf{tensorflow}")
    (wheel,) = made.glob(f"tf_ti-{RELEASE}*.whl")
    return pathlib.Path(shutil.copy(wheel, folder))


def try_in_empty_environment(wheel: pathlib.Path, python: str) -> str:
    """Installs a wheel, and runs the self-check and the README's examples, without the sources."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run(python, "-m", "venv", folder / "venv", cwd=folder)
        own = folder / "venv" / "bin" / "python"
        pip = (own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, f"{wheel}[cpu]", cwd=folder)
        report = run(own, "-m", "tf_ti", cwd=folder)
        run(*pip, "pytest", cwd=folder)
        for file in EXAMPLES:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, folder / file)
        pytest = (own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "README")
        examples = run(*pytest, folder / EXAMPLES[-1], cwd=folder)
    return f"{report}\nREADME's examples: {examples.strip().splitlines()[-1]}\n"


def built_by(wheel: pathlib.Path) -> dict:
    """What a wheel says of itself, and what auditwheel says of it."""
    with zipfile.ZipFile(wheel) as archive:
        said = archive.read("tf_ti/_build_info.py").decode()
    pairs = re.findall(r"^(\w+) = (.*)$", said, re.M)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return {"sha256": digest, "bytes": wheel.stat().st_size} | {
        key.lower(): value.strip('"') for key, value in pairs
    }


def versions(pythons: list[str]) -> dict[tuple[int, ...], str]:
    """Those of some Pythons that there are, by version."""
    found = {}
    for python in pythons:
        try:
            said = run(python, "-c", "import sys; print(*sys.version_info[:2])")
        except (Failed, FileNotFoundError):  # the first where pyenv has one that is not switched on
            continue
        found.setdefault(tuple(map(int, said.split())), python)
    return found


def notes() -> str:
    """The changelog's part on this version, or on what is to become it."""
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = re.split(r"^## ", text, flags=re.M)[1:]
    return next((part for part in parts if part.startswith(f"[{RELEASE}]")), parts[0])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tensorflows", nargs="*", default=list(TENSORFLOWS))
    parser.add_argument("--pythons", nargs="*", default=None)
    arguments = parser.parse_args()
    pythons = versions(arguments.pythons or [*PYTHONS, sys.executable])
    folder = arguments.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    commit, epoch = run("git", "log", "-1", "--format=%H %ct").split()
    has_changes = bool(run("git", "status", "--porcelain").strip())
    said = {
        "release": RELEASE,
        "commit": commit + (" and changes" if has_changes else ""),
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "wheels": {},
    }
    failures, report = [], []
    for tensorflow in arguments.tensorflows:
        say(f"the wheel for TensorFlow {tensorflow}")
        try:
            wheel = build(tensorflow, folder, epoch)
        except Failed as error:
            failures.append(f"TensorFlow {tensorflow}: {error}")
            continue
        tried = []
        for version, python in pythons.items():
            if version > TENSORFLOWS.get(tensorflow, version):
                continue
            say(f"{wheel.name} with Python {'.'.join(map(str, version))}, in an empty environment")
            try:
                report += [f"== {wheel.name}", try_in_empty_environment(wheel, python)]
                tried.append(".".join(map(str, version)))
            except Failed as error:
                failures.append(f"{wheel.name} with {python}: {error}")
        if tried:
            said["wheels"][wheel.name] = built_by(wheel) | {"tried_with_python": tried}
        else:
            wheel.unlink()
    sums = [f"{each['sha256']}  {name}\n" for name, each in said["wheels"].items()]
    (folder / "SHA256SUMS").write_text("".join(sums))
    (folder / "BUILD.json").write_text(json.dumps(said, indent=1) + "\n")
    (folder / "SMOKE.txt").write_text("\n".join(report))
    (folder / "NOTES.md").write_text(f"## {notes()}")
    for failure in failures:
        print(failure, file=sys.stderr)
    say(f"{len(said['wheels'])} wheels in {folder.name}/, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
