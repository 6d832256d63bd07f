"""Programs run the bodies of loops, or TensorFlow's kernels: the mark `programs` chooses."""

import pytest


def _modes(node):
    mark = node.get_closest_marker("programs")
    return ("always",) if mark is None else mark.args


def pytest_generate_tests(metafunc):
    modes = _modes(metafunc.definition)
    if len(modes) > 1:
        metafunc.parametrize("programs", modes, indirect=True)


@pytest.fixture(autouse=True)
def programs(request, monkeypatch):
    """Sets TF_TI_PROGRAM to "always", or to the mode of the test's mark `programs`."""
    mode = getattr(request, "param", _modes(request.node)[0])
    if mode != "default":
        monkeypatch.setenv("TF_TI_PROGRAM", mode)
