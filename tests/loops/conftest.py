"""Bodies run as programs, and by TensorFlow's kernels."""

import zlib

import pytest

# They say which, or ask.
_OWN = (
    *(
        "axes",
        "conditionals",
        "explain",
        "fission",
        "fission_and_programs",
        "forms",
        "fuse",
        "passes",
        "profiler",
    ),
    "programs",
)


@pytest.fixture(autouse=True)
def programs(request, monkeypatch):
    """Has programs run all that they can, also of short loops; of each fourth test none.

    Which one is, its name tells. So a test of many cases has both.
    """
    if request.path.stem.removeprefix("test_") in _OWN:
        return
    mode = "always" if zlib.crc32(request.node.nodeid.encode()) % 4 else "0"
    print("TF_TI_PROGRAM:", mode)
    monkeypatch.setenv("TF_TI_PROGRAM", mode)
