"""Programs run the bodies of loops, or TensorFlow's kernels: the mark `programs` chooses."""

import pytest


def _modes(node):
    mark = node.get_closest_marker("programs")
    return (True,) if mark is None else mark.args


def pytest_generate_tests(metafunc):
    modes = _modes(metafunc.definition)
    if len(modes) > 1:
        ids = {True: "programs", False: "kernels"}.get
        metafunc.parametrize("programs", modes, indirect=True, ids=ids)


@pytest.fixture(autouse=True)
def programs(request, monkeypatch):
    """Has kernels run all bodies where the test's mark `programs` is False."""
    if not getattr(request, "param", _modes(request.node)[0]):
        monkeypatch.setenv("TF_TI_PROGRAM", "0")
