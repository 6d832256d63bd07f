"""Groups of lanes give the same results as all lanes at once.

A sum over lanes differs by the order of its terms. All other results have the same bits.
"""

import pathlib
import re

import numpy as np
import pytest

PROGRAM = pathlib.Path(__file__).with_name("lanes_program.py")
TOLD = PROGRAM.with_name("told_lanes_program.py")
# Gradients of arrays that all lanes share: these are sums over lanes.
SUMS = (
    "elementwise of",
    "innermost of",
    "a_gradient_of_what_lanes_share",
    "a_loop_in_the_body/4",
    "mapped_trajectories/2",
)
# Loops without lanes: a condition reads all, transposes mix them, or places tell the zero.
UNDIVIDED = (
    "a_symmetric_sum",
    "a_condition_of_the_lanes",
    "a_loop_that_all_lanes_end",
    "the sign of a largest zero, float16",
    "the sign of a largest zero, bfloat16",
)
# Of told_lanes_program.py, loops without lanes, and loops that are too short for groups.
NO_LANES = ("rolled rows", "a constant as a result")
SHORT = (
    "a short loop",
    "three results of one value",
    "results that are parameters",
    "a condition and few iterations",
    "a first iteration and a few",
)

pytestmark = pytest.mark.needs_cpu_kernels


def run_with(lanes, threads, run_python, folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TF_TI_LANES", str(lanes))
        result = run_python(PROGRAM, folder / "results.npz", threads, cwd=folder)
    assert result.returncode == 0, result.stderr[-3000:]
    groups = dict(line.split(" ", 1)[::-1] for line in result.stdout.splitlines())
    return np.load(folder / "results.npz"), {name: int(count) for name, count in groups.items()}


@pytest.fixture(scope="module")
def undivided(run_python, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return run_with(0, 1, run_python, tmp_path_factory.mktemp("undivided"), patch)


@pytest.mark.slow
@pytest.mark.parametrize("lanes, threads", [(2, 1), (2, 8), (4, 3), (32, 2)])
def test_groups_give_what_all_lanes_give(
    lanes, threads, undivided, run_python, tmp_path, monkeypatch
):
    expected, no_groups = undivided
    found, groups = run_with(lanes, threads, run_python, tmp_path, monkeypatch)
    assert found.files == expected.files
    assert not any(no_groups.values())
    for name in found.files:
        a, e = found[name], expected[name]
        if name.startswith(SUMS) and a.dtype.kind == "f":
            wide = {"float16": 2e-2, "bfloat16": 5e-2}
            rtol = next((bound for dtype, bound in wide.items() if dtype in name), 2e-4)
            np.testing.assert_allclose(a, e, rtol=rtol, atol=rtol, err_msg=name)
        else:
            np.testing.assert_array_equal(a, e, err_msg=name)
            assert a.tobytes() == e.tobytes(), name
    if lanes == 2:
        # Where one lane fails all lanes run again, and TensorFlow's kernel reports the failure.
        few = ("1 lanes", "3 lanes", "fails")
        names = {name for name in groups if not any(part in name for part in few)}
        assert {name for name in names if groups[name] == 0} == set(UNDIVIDED)


def test_explanations_tell_the_groups_that_run(run_python, tmp_path):
    result = run_python(TOLD, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line.split(": ") for line in result.stdout.splitlines()]
    assert len(lines) == 23
    for name, count, told in lines:
        assert int(count) == sum(map(int, re.findall(r"in (\d+) groups", told))), (name, told)
        assert ("along dimension" in told) == (name not in NO_LANES), (name, told)
        assert (int(count) > 0) == (name not in (*NO_LANES, *SHORT)), (name, told)
