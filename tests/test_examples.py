"""The examples run, briefly."""

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
TEXT = "Der Mond ist aufgegangen, die goldnen Sternlein prangen. \u00e4\u00f6\u00fc\n" * 400


def run_example(name, *arguments, cwd):
    result = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        encoding="utf-8",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a short training run printed, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("char_model")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    output = run_example(
        "train_char_model.py",
        *("--text", "text.txt", "--output-dir", folder / "out", "--steps", 80),
        *("--batch", 4, "--time-steps", 20, "--hidden", 32),
        cwd=folder,
    )
    return output, folder / "out"


def test_training_lowers_the_held_out_loss(trained):
    before, after = re.search(
        r"([\d.]+) bits a character before, ([\d.]+) after", trained[0]
    ).groups()
    assert float(after) < 0.9 * float(before)


def test_training_draws_the_loss(trained):
    assert (trained[1] / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_training_compares_with_while_loop(trained):
    assert re.search(r"tf_ti +[\d.]+ ms", trained[0])
    assert re.search(r"tf\.while_loop +[\d.]+ ms", trained[0])


def test_a_fresh_process_writes_the_same_text_with_the_saved_model(trained, tmp_path):
    output, folder = trained
    text = run_example("generate_text.py", folder / "saved_model", cwd=tmp_path)
    assert text.startswith("def ")
    assert f"A sample:\n\n{text}" in output


def test_the_saved_model_writes_as_much_as_it_is_asked_to(trained, tmp_path):
    arguments = [trained[1] / "saved_model", "--prompt=Mond", "--length=7"]
    assert len(run_example("generate_text.py", *arguments, cwd=tmp_path).rstrip("\n")) <= 4 + 7
