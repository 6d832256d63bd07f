"""PEP 517: setuptools makes the wheel, Bazel its library, auditwheel the platform tag."""

import os
import pathlib
import runpy
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile

from installed_tensorflow import installed_tensorflow
from setuptools import build_meta
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

SUPPORTED = ">=2.17,<2.22"
ROOT = pathlib.Path(__file__).parent.parent
BUILD = ROOT / ".cache" / "wheel"


class OwnFolderBuild(build):
    """Builds in a folder of its own: what lies in build/ is the user's."""

    def initialize_options(self):
        super().initialize_options()
        self.build_base = str(BUILD)


class LibraryWheel(bdist_wheel):
    """Holds a native library, but one that is not tied to a version of Python."""

    def finalize_options(self):
        self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]

    def write_wheelfile(self, *arguments, **named):
        """Comes last. A checkout's modes are those of its owner's umask; the wheel's are not."""
        super().write_wheelfile(*arguments, **named)
        for path in pathlib.Path(self.bdist_dir).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def _write_extras(config_settings=None):
    """The version and the extras name the TensorFlow that is being built against."""
    found = installed_tensorflow()
    module = runpy.run_path(str(ROOT / "tf_ti" / "_version.py"))
    version = module["RELEASE"]
    if found:
        version = module["version_for"](found.version, "--config=cuda" in _flags(config_settings))
    wanted = "~={}.{}.0".format(*found.version.split(".")[:2]) if found else SUPPORTED
    folder = ROOT / ".cache" / "extras"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version.txt").write_text(f"{version}\n")
    (folder / "cpu.txt").write_text(f"tensorflow-cpu{wanted}\n")
    (folder / "gpu.txt").write_text(f"tensorflow[and-cuda]{wanted}\n")


def _flags(config_settings):
    return (config_settings or {}).get("bazel-flags", "").split()


def _build_library(config_settings):
    flags = _flags(config_settings)
    subprocess.run(
        [ROOT / "bazel" / "build_library.sh", ROOT / "tf_ti", *flags],
        env={**os.environ, "PYTHON_BIN_PATH": sys.executable},
        check=True,
    )


def get_requires_for_build_wheel(config_settings=None):
    """The TensorFlow of the environment that the wheel is for, so that it will load there."""
    found = installed_tensorflow(site.getsitepackages())
    return [f"{found.metadata['Name']}=={found.version}" if found else f"tensorflow-cpu{SUPPORTED}"]


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    _write_extras(config_settings)
    return build_meta.prepare_metadata_for_build_wheel(metadata_directory)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    # The same sources make the same bytes, on any day and for anybody.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800")
    _write_extras(config_settings)
    _build_library(config_settings)
    # setuptools would add to an earlier build's files, deleted modules among them.
    shutil.rmtree(BUILD, ignore_errors=True)
    scripts = sysconfig.get_path("scripts")
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_meta.build_wheel(folder, metadata_directory=metadata_directory)
        # TensorFlow's own libraries are already in the process that loads ours.
        subprocess.run(
            [sys.executable, "-m", "auditwheel", "repair", "--exclude=libtensorflow*"]
            + [f"--wheel-dir={folder}/repaired", f"{folder}/{wheel}"],
            env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
            check=True,
        )
        (repaired,) = pathlib.Path(folder, "repaired").iterdir()
        return pathlib.Path(shutil.copy(repaired, wheel_directory)).name


get_requires_for_build_editable = get_requires_for_build_wheel
prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _write_extras(config_settings)
    _build_library(config_settings)
    return build_meta.build_editable(wheel_directory, metadata_directory=metadata_directory)


class UnsupportedOperation(Exception):
    """What PEP 517 wants raised for a hook that is not there."""


def build_sdist(sdist_directory, config_settings=None):
    raise UnsupportedOperation(
        "wheels of tf_ti are built from a checkout: their version is that of the TensorFlow there"
    )
