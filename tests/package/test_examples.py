"""The examples run, briefly."""

import pathlib
import random
import re

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
TEXT = "Der Mond ist aufgegangen, die goldnen Sternlein prangen. \u00e4\u00f6\u00fc\n" * 400


@pytest.fixture(scope="module")
def run_example(run_python):
    def run(name, *arguments, cwd):
        result = run_python(EXAMPLES / name, *arguments, cwd=cwd)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory, run_example):
    """The output of a short training run, and the folder it wrote to."""
    folder = tmp_path_factory.mktemp("char_model")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    output = run_example(
        "train_char_model.py",
        *("--text", "text.txt", "--output-dir", folder / "out", "--steps", 80),
        *("--batch", 4, "--time-steps", 20, "--hidden", 32),
        cwd=folder,
    )
    return output, folder / "out"


@pytest.mark.slow
def test_training_lowers_the_held_out_loss(trained):
    before, after = re.search(
        r"([\d.]+) bits a character before, ([\d.]+) after", trained[0]
    ).groups()
    assert float(after) < 0.9 * float(before)


@pytest.mark.slow
def test_training_draws_the_loss(trained):
    assert (trained[1] / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tf_ti", "tf.while_loop", "tf_ti.keras.LSTM", "keras.layers.LSTM"])
def test_training_is_timed_beside_that_of_tensorflow(trained, way):
    assert re.search(rf"  {re.escape(way)} +[\d.]+ ms", trained[0])


@pytest.mark.slow
def test_a_fresh_process_writes_the_same_text_with_the_saved_model(trained, tmp_path, run_example):
    output, folder = trained
    text = run_example("generate_text.py", folder / "saved_model", cwd=tmp_path)
    assert text.startswith("def ")
    assert f"A sample:\n\n{text}" in output


@pytest.mark.slow
def test_the_saved_model_writes_as_much_as_it_is_asked_to(trained, tmp_path, run_example):
    arguments = [trained[1] / "saved_model", "--prompt=Mond", "--length=7"]
    assert len(run_example("generate_text.py", *arguments, cwd=tmp_path).rstrip("\n")) <= 4 + 7


# Words of two classes, and such as both have. German is more frequent.
WORDS = {
    "deutsch": "Mond aufgegangen goldnen Sternlein prangen Himmel hell klar Wald steht schwarz",
    "english": "twinkle twinkle little star wonder what you are above the world",
}
BOTH = "la li lo so in 1778 1806 -- , ."


@pytest.fixture(scope="module")
def classified(tmp_path_factory, run_example):
    """The output of a short training run, and the folder it wrote to."""
    folder, rng = tmp_path_factory.mktemp("text_classifier"), random.Random(0)
    for (name, words), lines in zip(WORDS.items(), (60, 30)):
        (folder / name).mkdir()
        for k in range(20):
            text = (
                " ".join(rng.choices(words.split(), k=2) + rng.choices(BOTH.split(), k=5))
                for _ in range(lines)
            )
            (folder / name / f"{k}.txt").write_text("\n".join(text), encoding="utf-8")
    (folder / "english" / "star.bin").write_bytes(b"\xff\xfe\x00")
    output = run_example(
        "train_text_classifier.py",
        *("--classes", folder / "deutsch", folder / "english", "--output-dir", folder / "out"),
        *("--rows", 10_000, "--epochs", 4),
        cwd=folder,
    )
    return output, folder / "out"


@pytest.mark.slow
def test_the_classifier_does_better_than_the_most_frequent_class(classified):
    accuracy, baseline = re.search(
        r"held-out files: ([\d.]+)%; always the most frequent class: ([\d.]+)%", classified[0]
    ).groups()
    assert 60 < float(baseline) < 75
    assert float(accuracy) > 95


@pytest.mark.slow
def test_the_classifier_holds_files_out_of_each_class(classified):
    rows = re.findall(r"^(deutsch|english) +(\d+) +(\d+) +[\d.]+%$", classified[0], re.MULTILINE)
    # Of two files each; the lines that are also in other files are left out.
    assert {name: 0 < int(a) + int(b) <= most for (name, a, b), most in zip(rows, (120, 60))} == {
        "deutsch": True,
        "english": True,
    }


@pytest.mark.slow
def test_the_classifier_names_telling_words_of_each_class(classified):
    for name, words in WORDS.items():
        line = re.search(rf"^words +{name} +(.*)$", classified[0], re.MULTILINE).group(1)
        ngrams = re.findall(r"'([^']+)'", line)
        assert len(ngrams) >= 3
        assert all(set(ngram.split()) & set(words.split()) for ngram in ngrams[:3])


@pytest.mark.slow
def test_the_classifier_draws_its_training(classified):
    assert (classified[1] / "training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "tf_ti",
        "tf_ti, keras.optimizers.Adagrad",
        "tf.nn.embedding_lookup_sparse, keras.optimizers.Adagrad",
    ],
)
def test_the_classifiers_steps_are_timed_beside_those_of_keras_and_tensorflow(classified, way):
    assert re.search(rf"^  {re.escape(way)} +[\d.]+ ms", classified[0], re.MULTILINE)


@pytest.mark.slow
def test_a_fresh_process_classifies_texts_and_files_with_the_saved_model(
    classified, tmp_path, run_example
):
    (tmp_path / "text.txt").write_text("  what you wonder\n\nder Mond steht\n", encoding="utf-8")
    arguments = [classified[1] / "saved_model", "goldnen Sternlein", "--file", "text.txt"]
    output = run_example("classify_text.py", *arguments, cwd=tmp_path)
    assert [line.split()[1:] for line in output.splitlines()] == [
        ["deutsch", "goldnen", "Sternlein"],
        ["english", "what", "you", "wonder"],
        ["deutsch", "der", "Mond", "steht"],
    ]


@pytest.mark.slow
def test_a_class_of_one_file_has_nothing_to_hold_out(tmp_path, run_python):
    for name in WORDS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text(TEXT, encoding="utf-8")
    result = run_python(EXAMPLES / "train_text_classifier.py", "--classes", *WORDS, cwd=tmp_path)
    assert result.returncode != 0
    assert "deutsch: two files or more are needed" in result.stderr


@pytest.mark.slow
def test_a_fresh_process_takes_ragged_features_by_name(tmp_path, run_example):
    output = run_example("serve_features.py", "--output-dir", tmp_path, cwd=tmp_path)
    assert float(re.search(r"right about ([\d.]+)% of clicks", output).group(1)) > 80
    liked, other = map(int, re.findall(r"^clicks: (\d+)%$", output, re.MULTILINE))
    assert liked > 80 and other < 30


# The loops check what they print themselves.


@pytest.mark.parametrize(
    "arguments, values", [([], "3 7 11 15 19 then 23"), ([0, 5, 2], "0 2 4 then 6")]
)
def test_a_for_loop_counts(arguments, values, tmp_path, run_example):
    output = run_example("loop_for.py", *arguments, cwd=tmp_path)
    assert output.splitlines()[:2] == [values, "loop for"]


@pytest.mark.slow
def test_a_for_loop_without_an_iteration_has_its_start_as_the_last_value(tmp_path, run_example):
    arguments = [5, 5, 1, "--draw", "for.txt"]
    output = run_example("loop_for.py", *arguments, cwd=tmp_path)
    assert output.split() == ["then", "5", "Drawn:", "for.txt"]
    assert (tmp_path / "for.txt").read_text().startswith("loop for\n")


@pytest.mark.slow
def test_a_loop_writes_the_same_text_with_the_saved_model(trained, tmp_path, run_example):
    arguments = [trained[1] / "saved_model", "--prompt=Mond", "--length=50"]
    expected = run_example("generate_text.py", *arguments, cwd=tmp_path)
    assert run_example("loop_char_lstm.py", *arguments, cwd=tmp_path) == expected


@pytest.mark.slow
def test_greedy_decoding_ends_at_the_end_token_or_after_the_longest(tmp_path, run_example):
    output = run_example("loop_greedy_decoding.py", "--longest=15", cwd=tmp_path)
    lines = [line.partition(" (") for line in output.splitlines()]
    ends = {end for _, _, end in lines}
    assert len(lines) == 5 and ends == {"end)", "long enough)"}
    for words, _, end in lines:
        words = words.split()
        assert len(words) == 15 if end == "long enough)" else len(words) <= 15
        assert words.index("0") == len(words) - 1 if end == "end)" else "0" not in words


@pytest.mark.slow
def test_newtons_method_stops_below_the_tolerance(tmp_path, run_example):
    output = run_example("loop_newton.py", "--tolerance=1e-6", cwd=tmp_path)
    *before, after = (float(line.split(": ")[1]) for line in output.splitlines())
    assert len(before) > 2
    assert min(before) > 1e-6 >= after


@pytest.mark.slow
def test_newtons_method_says_that_its_steps_are_not_enough(tmp_path, run_python):
    result = run_python(EXAMPLES / "loop_newton.py", "--most=2", cwd=tmp_path)
    assert result.returncode == 1
    assert "2 steps are not enough" in result.stderr
    assert "after 2 steps" in result.stdout


@pytest.mark.slow
def test_beam_search_finds_likely_sequences_padded_to_their_length(tmp_path, run_example):
    output = run_example("loop_beam_search.py", "--width=3", "--longest=8", cwd=tmp_path)
    beams = [line.split(": ") for line in output.splitlines()]
    scores = [float(score) for score, _ in beams]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3
    for _, words in beams:
        words = words.split()
        assert len(words) == 8
        if "0" in words:
            assert set(words[words.index("0") :]) == {"0"}
