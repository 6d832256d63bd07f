"""Tables on parameter servers: processes on loopback, beside the same training in one process."""

import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from patience import HANGS, ONE_OPERATION_AT_A_TIME

pytestmark = pytest.mark.skipif(
    ONE_OPERATION_AT_A_TIME, reason="a look-up of TensorFlow's own hangs there too"
)
HERE = pathlib.Path(__file__).parent


def run(*arguments, **environment):
    result = subprocess.run(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
        timeout=HANGS,
    )
    assert result.returncode == 0, result.stdout[-5000:]
    return result.stdout


def run_program(servers, folder):
    """Returns the program's findings, and the places of our ops that TensorFlow logged."""
    program = HERE / "parameter_servers_program.py"
    output = run(program, servers, folder, TF_CPP_MIN_LOG_LEVEL="0")
    placed = re.findall(r"\(TfTi>(\w+)\): /job:(\w+)/replica:0/task:(\d+)", output)
    return json.loads(output.split("FOUND ")[1].splitlines()[0]), placed


# One test, as the program takes its time.
@pytest.mark.slow
def test_training_on_servers(tmp_path):
    found, placed = run_program(2, tmp_path)
    check_that_training_is_that_of_one_process(found)
    check_that_loops_are_those_of_one_process(found["loops"])
    check_that_work_is_where_the_rows_are(placed)
    check_that_bad_calls_are_refused(found["errors"])

    again, _ = run_program(3, tmp_path)
    assert len(again["devices"]) == 3
    np.testing.assert_array_equal(again["restored"], found["saved"])
    np.testing.assert_array_equal(again["restored accumulator"], found["there"]["accumulator"])


def check_that_training_is_that_of_one_process(found):
    """Though a worker was killed on the way."""
    assert [device[:25] for device in found["devices"]] == [
        "/job:ps/replica:0/task:0/",
        "/job:ps/replica:0/task:1/",
    ]
    np.testing.assert_allclose(*np.transpose(found["losses"]), rtol=1e-9)
    assert found["here"].keys() == found["there"].keys() >= {"table", "m", "v", "accumulator"}
    for name, expected in found["here"].items():
        np.testing.assert_allclose(found["there"][name], expected, rtol=1e-9, atol=1e-12)


def check_that_loops_are_those_of_one_process(loops):
    """Whose bodies look rows up, and update them, on both servers."""
    for here, there in zip(*loops, strict=True):
        np.testing.assert_allclose(there, here, rtol=1e-9, atol=1e-12)


def check_that_work_is_where_the_rows_are(placed):
    def places(op):
        return {(job, task) for name, job, task in placed if name == op}

    here = {("chief", "0")}  # where the same training runs without servers
    for op in ("ResourceEmbeddingBagGrad", "ScatterSub", "AdagradUpdate", "AdamUpdate"):
        assert places(op) - here == {("ps", "0"), ("ps", "1")}, op
    assert places("ResourceEmbeddingBagOffsets") == {("ps", "0"), ("ps", "1")}
    assert {job for job, _ in places("EmbeddingBagPartition")} == {"worker", "chief"}


def check_that_bad_calls_are_refused(errors):
    for call, pattern in (
        ("embedding_bag", "emb_table is on /job:ps.*tf.function"),
        ("scatter_sub", "variable is on /job:ps.*tf.function"),
        ("adagrad_update", "is on /job:ps.*tf.function"),
        ("slot elsewhere", "accumulator must be on the device of variable.*task:0.*task:1"),
    ):
        kind, message = errors[call]
        assert kind == "ValueError"
        assert re.search(pattern, message), message
    kind, message = errors["bad id"]
    assert kind == "InvalidArgumentError"
    assert "is 12, but emb_table has 12 rows" in message


def test_the_example_learns(tmp_path):
    program = HERE.parents[1] / "examples" / "parameter_servers.py"
    output = run(program, *("--output-dir", tmp_path, "--rows", 500, "--steps", 160))
    before, after = re.findall(r"Held-out loss (?:before|after): ([\d.]+)", output)
    assert float(after) < 0.98 * float(before)
    assert "A worker was killed" in output
    assert re.search(r"250 rows on ps 1, their slots on ps 1", output)
