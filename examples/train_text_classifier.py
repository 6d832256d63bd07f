"""Trains a text classifier with tf_ti.embedding_bag, on real text.

    python examples/train_text_classifier.py                    # code or documentation? one minute
    python examples/train_text_classifier.py --classes DIR...   # or whatever these folders hold
    python examples/train_text_classifier.py --help

The model is fastText's: a line's words, pairs of words, and sequences of three to five characters
each name a row of a large table by their hash; the mean of these rows, a linear layer, a softmax.
A line has about a hundred of such n-grams, and the table a million rows, of which a training step
reads and changes only those that its lines name. The file reads from top to bottom:

    1 the model     n-grams, their hashes, and the mean of their rows (this is where tf_ti comes in)
    2 the text      lines of code and of docstrings, or of the files in some folders
    3 training      Keras's Adagrad, of which tf_ti does the steps of the table
    4 afterwards    what was confused, what tells the classes apart, a picture, a saved model in a
                    fresh process, the speed beside Keras's own steps and TensorFlow's look-up
"""

import argparse
import ast
import collections
import functools
import pathlib
import random
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable

import keras
import matplotlib.figure
import numpy as np
import tensorflow as tf
import tqdm

import tf_ti

# --- 1 the model ---------------------------------------------------------------------------------


class TextClassifier(tf.Module):
    """The mean of the rows that a text's n-grams name, a linear layer and a softmax.

    Args:
        classes: their names.
        rows: of the table.
        width: of a row.
        pool: `mean_of_rows`, or `mean_of_rows_by_tf_nn` to compare with.
    """

    def __init__(self, classes: list[str], rows: int, width: int, pool: Callable):
        super().__init__()
        self.classes = tf.constant(classes)
        start = tf.random.stateless_uniform([rows, width], [1, 2], -1 / width, 1 / width)
        self.table = tf.Variable(start)
        self.kernel = tf.Variable(tf.zeros([width, len(classes)]))
        self.bias = tf.Variable(tf.zeros([len(classes)]))
        self._pool = pool

    def ngrams(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """For each of the texts [batch] its words and pairs of words, and its character n-grams."""
        spaced = tf.strings.regex_replace(texts, r"[\pL\pN_]+|[^\pL\pN_\s]", r" \0 ")
        words = tf.strings.ngrams(tf.strings.split(spaced), [1, 2], separator=" ")
        characters = tf.strings.unicode_split(texts, "UTF-8")
        return words, tf.strings.ngrams(characters, [3, 4, 5], separator="")

    def rows_of_words(self, words: tf.Tensor) -> tf.Tensor:
        """The rows of words: the first half, so that "for" differs from the "for" in "before"."""
        return tf.strings.to_hash_bucket_fast(words, self.table.shape[0] // 2)

    def rows_of_characters(self, characters: tf.Tensor) -> tf.Tensor:
        half = self.table.shape[0] // 2
        return half + tf.strings.to_hash_bucket_fast(characters, half)

    def ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The rows that each of the texts [batch] names: [batch, (n-grams)]."""
        words, characters = self.ngrams(texts)
        words = words.with_values(self.rows_of_words(words.values))
        characters = characters.with_values(self.rows_of_characters(characters.values))
        return tf.concat([words, characters], axis=1)

    def logits(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return self._pool(self.table, ids) @ self.kernel + self.bias

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "texts")])
    def classify(self, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        """The probability of each class for each text. The saved model has this function."""
        probabilities = tf.nn.softmax(self.logits(self.ids(texts)))
        return {"classes": self.classes, "probabilities": probabilities}


def mean_of_rows(table: tf.Variable, ids: tf.RaggedTensor) -> tf.Tensor:
    """The mean of the rows that each bag of ids [batch, (n-grams)] names, with tf_ti.

    The rows are added up where they lie. The gradient has the rows that were read, each once.
    """
    return tf_ti.embedding_bag(table, ids, combiner="mean")


def mean_of_rows_by_tf_nn(table: tf.Variable, ids: tf.RaggedTensor) -> tf.Tensor:
    """The same as `mean_of_rows`, without tf_ti."""
    return tf.nn.embedding_lookup_sparse(table, ids, None, combiner="mean")


# --- 2 the text ----------------------------------------------------------------------------------

# The lines of a file, each with the number of its class.
Lines = list[tuple[str, int]]


def long_enough(lines: list[str]) -> list[str]:
    """The lines that tell where they come from, unlike short ones such as `else:`."""
    stripped = (line.strip() for line in lines)
    return [line for line in stripped if len(line) >= 10]


def standard_library() -> tuple[list[str], list[Lines]]:
    """The classes code and documentation: the standard library's files, without its tests."""
    folder = pathlib.Path(sysconfig.get_path("stdlib"))
    others = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
    files = []
    for path in sorted(folder.rglob("*.py")):
        if others.isdisjoint(path.relative_to(folder).parts):
            source = path.read_text(encoding="utf-8", errors="replace")
            code, documentation = code_and_documentation(source)
            files.append([(line, 0) for line in code] + [(line, 1) for line in documentation])
    return ["code", "documentation"], files


def code_and_documentation(source: str) -> tuple[list[str], list[str]]:
    """The lines of a Python source, and those of its docstrings.

    Comments, and other strings of more than one line, are neither.
    """
    code, documentation = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documentation += (ast.get_docstring(node) or "").splitlines()
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        is_alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_alone or (is_text and node.lineno < node.end_lineno):
            code[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    without_comments = [f" {line}".split(" #")[0] for line in code]
    return long_enough(without_comments), long_enough(documentation)


def folders(paths: list[pathlib.Path]) -> tuple[list[str], list[Lines]]:
    """Each folder is a class, of all files in it that hold UTF-8."""
    names = [path.resolve().name for path in paths]
    if len(set(names)) < max(len(names), 2):
        raise SystemExit(f"two or more folders of different names are needed, got {names}")
    files = []
    for number, path in enumerate(paths):
        for file in sorted(path.rglob("*")):
            if file.is_file():
                try:
                    lines = file.read_text(encoding="utf-8").splitlines()
                except UnicodeDecodeError:
                    continue
                files.append([(line, number) for line in long_enough(lines)])
    return names, files


def split(files: list[Lines], classes: list[str]) -> tuple[Lines, Lines]:
    """Lines to train on, and those of a tenth of the files, which are held out.

    Held-out lines that are also in a file to train on are left out: they would be easier than new
    text.
    """
    kinds = collections.defaultdict(list)
    for file in files:
        kinds[frozenset(number for _, number in file)].append(file)
    train, held_out = [], []
    for kind in kinds.values():
        random.Random(0).shuffle(kind)
        count = min(max(len(kind) // 10, 1), len(kind) - 1)
        held_out += [line for file in kind[:count] for line in file]
        train += [line for file in kind[count:] for line in file]
    known = {text for text, _ in train}
    held_out = [line for line in held_out if line[0] not in known]
    for number, name in enumerate(classes):
        if not any(n == number for _, n in train) or not any(n == number for _, n in held_out):
            raise SystemExit(f"{name}: two files or more are needed, of which not all say the same")
    return train, held_out


def batches(
    model: TextClassifier, lines: Lines, batch: int, epochs: int = 1, shuffle: bool = False
) -> tf.data.Dataset:
    """The rows that the lines name [batch, (n-grams)], and their classes [batch]."""
    texts, numbers = zip(*lines)
    data = tf.data.Dataset.from_tensor_slices((list(texts), np.array(numbers, np.int32)))
    if shuffle:
        data = data.shuffle(len(lines), seed=0)
    data = data.repeat(epochs).batch(batch)
    data = data.map(lambda texts, numbers: (model.ids(texts), numbers), tf.data.AUTOTUNE)
    return data.prefetch(tf.data.AUTOTUNE)


# --- 3 training ----------------------------------------------------------------------------------


def make_optimizer(kind: type, model: TextClassifier, rate: float, steps: int) -> keras.Optimizer:
    """An Adagrad of this kind, whose rate falls to zero in the end.

    The last steps should improve more than they spoil. The gradients are small: with Keras's
    initial 0.1 the accumulators would hardly notice them.
    """
    schedule = keras.optimizers.schedules.PolynomialDecay(rate, steps, end_learning_rate=0.0)
    optimizer = kind(schedule, initial_accumulator_value=1e-3)
    optimizer.build(model.trainable_variables)
    return optimizer


@tf.function(reduce_retracing=True)
def train_step(
    model: TextClassifier, optimizer: keras.Optimizer, ids: tf.RaggedTensor, numbers: tf.Tensor
) -> tf.Tensor:
    """Learns from a batch of texts, and returns the mean of their losses."""
    variables = model.trainable_variables
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, model.logits(ids))
        loss = tf.reduce_sum(losses)
    # The gradient of the table is some thousands of its million rows, and their numbers. tf_ti's
    # optimizer does not touch the other rows. Keras's does.
    optimizer.apply(tape.gradient(loss, variables), variables)
    return tf.reduce_mean(losses)


@tf.function(reduce_retracing=True)
def count_predictions(model: TextClassifier, ids: tf.RaggedTensor, numbers: tf.Tensor) -> tf.Tensor:
    predicted = tf.argmax(model.logits(ids), axis=1)
    return tf.math.confusion_matrix(numbers, predicted, model.classes.shape[0])


def confusion(model: TextClassifier, data: tf.data.Dataset) -> np.ndarray:
    """The number of lines of a class (its row) that are taken for another (its column)."""
    return sum(count_predictions(model, *batch).numpy() for batch in data)


def accuracy(counts: np.ndarray) -> float:
    return np.trace(counts) / counts.sum()


def train(
    model: TextClassifier, lines: Lines, held_out: tf.data.Dataset, options: argparse.Namespace
) -> tuple[list[float], dict[int, float]]:
    """Returns the loss of every step, and the held-out accuracy by the number of lines read."""
    losses, accuracies = [], {}
    total = len(lines) * options.epochs
    steps = -(-total // options.batch)
    kind = tf_ti.keras.optimizers.Adagrad
    optimizer = make_optimizer(kind, model, options.learning_rate, steps)
    every = max(total // 20, 1)
    with tqdm.tqdm(total=total, unit=" lines", unit_scale=True) as progress:
        for ids, numbers in batches(model, lines, options.batch, options.epochs, shuffle=True):
            if progress.n >= every * len(accuracies):
                accuracies[progress.n] = accuracy(confusion(model, held_out))
            losses.append(train_step(model, optimizer, ids, numbers).numpy())
            progress.set_postfix_str(
                f"loss {statistics.fmean(losses[-100:]):.3f}, "
                f"held-out accuracy {list(accuracies.values())[-1]:.1%}",
                refresh=False,
            )
            progress.update(len(numbers))
        accuracies[total] = accuracy(confusion(model, held_out))
    return losses, accuracies


# --- 4 afterwards --------------------------------------------------------------------------------


def print_confusion(classes: list[str], counts: np.ndarray) -> None:
    width = max(12, *(len(name) + 2 for name in classes))
    print(f"\n{'lines of':{width}}{'taken for':>{width}}")
    print(" " * width + "".join(f"{name:>{width}}" for name in classes) + f"{'right':>9}")
    for name, row, right in zip(classes, counts, np.diag(counts) / counts.sum(axis=1)):
        cells = "".join(f"{count:{width},}" for count in row)
        print(f"{name:{width}}{cells}{right:9.1%}")


def print_mistakes(
    model: TextClassifier, classes: list[str], held_out: Lines, count: int = 4
) -> None:
    lines = random.Random(0).sample(held_out, min(len(held_out), 10_000))
    probabilities = model.classify([text for text, _ in lines])["probabilities"].numpy()
    wrong = collections.defaultdict(list)
    for (text, number), predicted in zip(lines, probabilities.argmax(axis=1)):
        if number != predicted:
            wrong[number, predicted].append(text)
    often = sorted(wrong.items(), key=lambda item: -len(item[1]))
    for (number, predicted), texts in often[:4]:
        print(f"\n{classes[number]} taken for {classes[predicted]}, for example:")
        print(*(f"    {text}" for text in texts[:count]), sep="\n")


def print_telling_ngrams(
    model: TextClassifier, classes: list[str], lines: Lines, count: int = 8
) -> None:
    """Prints frequent n-grams whose rows score high for a class.

    The table knows rows, and not the n-grams that name them, so these come from the text again. A
    rare n-gram may share its row with another one, and have its score. A frequent one outweighs
    the others of its row.
    """
    texts = [text for text, _ in random.Random(0).sample(lines, min(len(lines), 20_000))]
    words, characters = model.ngrams(tf.constant(texts))
    layer = model.kernel - tf.reduce_mean(model.kernel, axis=1, keepdims=True)
    for kind, ngrams, rows_of in (
        ("words", words.values, model.rows_of_words),
        ("characters", characters.values, model.rows_of_characters),
    ):
        ngrams, _, counts = tf.unique_with_counts(ngrams)
        scores = tf.gather(model.table, rows_of(ngrams)) @ layer
        # The highest scores are those of rare n-grams, and the highest counts those of common ones.
        says = (scores * tf.sqrt(tf.cast(counts, tf.float32))[:, tf.newaxis]).numpy()
        for number, name in enumerate(classes):
            best = ngrams.numpy()[np.argsort(-says[:, number])[:count]]
            print(f"{kind:12}{name:16}" + "  ".join(repr(ngram.decode()) for ngram in best))


def draw(
    losses: list[float],
    accuracies: dict[int, float],
    classes: list[str],
    counts: np.ndarray,
    path: pathlib.Path,
) -> None:
    figure = matplotlib.figure.Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    parts = np.array_split(losses, min(len(losses), 200))
    ends = np.cumsum([len(part) for part in parts]) / len(losses) * max(accuracies)
    left.plot(ends, [part.mean() for part in parts], linewidth=0.8, label="loss, training")
    left.set(xlabel="lines read", ylabel="loss", ylim=(0, None))
    left.grid(alpha=0.3)
    axes = left.twinx()
    axes.plot(*zip(*accuracies.items()), "o-", color="tab:orange", label="accuracy, held-out files")
    axes.set(ylabel="accuracy", ylim=(None, 1))
    figure.legend(loc="outside lower left", ncols=2)
    shares = counts / counts.sum(axis=1, keepdims=True)
    right.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (i, k), share in np.ndenumerate(shares):
        color = "white" if share > 0.5 else "black"
        right.text(k, i, f"{counts[i, k]:,}\n{share:.1%}", ha="center", va="center", color=color)
    right.set_xticks(range(len(classes)), classes)
    right.set_yticks(range(len(classes)), classes)
    right.set(xlabel="taken for", ylabel="held-out lines of")
    figure.savefig(path, dpi=120)


def compare_steps(
    classes: list[str], lines: Lines, options: argparse.Namespace, repeats: int = 30
) -> None:
    """Times training steps of models that begin alike, in turns, on the same batches."""
    ours, kerass = tf_ti.keras.optimizers.Adagrad, keras.optimizers.Adagrad
    ways = {
        "tf_ti": (mean_of_rows, ours),
        "tf_ti, keras.optimizers.Adagrad": (mean_of_rows, kerass),
        "tf.nn.embedding_lookup_sparse, keras.optimizers.Adagrad": (mean_of_rows_by_tf_nn, kerass),
    }
    learners, seconds, losses = {}, collections.defaultdict(list), collections.defaultdict(list)
    for name, (pool, kind) in ways.items():
        model = TextClassifier(classes, options.rows, options.width, pool)
        learners[name] = model, make_optimizer(kind, model, options.learning_rate, repeats + 2)
    # All batches are made first, so that the steps have the processor for themselves.
    data = list(batches(learners["tf_ti"][0], lines, options.batch).take(repeats + 2))
    # One function for all of them would be traced for each.
    steps = {
        name: tf.function(
            functools.partial(train_step.python_function, *learner), reduce_retracing=True
        )
        for name, learner in learners.items()
    }
    for ids, numbers in data:
        for name, step in steps.items():
            start = time.perf_counter()
            losses[name].append(step(ids, numbers).numpy())
            seconds[name].append(time.perf_counter() - start)
    for name in ways:
        np.testing.assert_allclose(losses[name], losses["tf_ti"], rtol=1e-3, atol=1e-4)
    # The first two steps trace and warm up.
    medians = {name: statistics.median(values[2:]) for name, values in seconds.items()}
    ngrams = statistics.fmean(ids.values.shape[0] for ids, _ in data)
    print(f"\nA training step on {ngrams:,.0f} n-grams, with equal losses, median of {repeats}:")
    for name, median in medians.items():
        print(f"  {name:55} {median * 1e3:7.2f} ms ({median / medians['tf_ti']:.1f})")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a text classifier with tf_ti.embedding_bag."
    )
    parser.add_argument(
        "--classes",
        type=pathlib.Path,
        nargs="+",
        metavar="DIR",
        help="a folder of text files for each class (default: the standard library's code, and "
        "its documentation)",
    )
    parser.add_argument("--output-dir", type=pathlib.Path, default="build/text_classifier")
    parser.add_argument("--epochs", type=int, default=3, help="how often each line is read")
    parser.add_argument("--batch", type=int, default=256, help="lines a step")
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table")
    parser.add_argument("--width", type=int, default=16, help="of a row")
    parser.add_argument("--learning-rate", type=float, default=0.3, help="that of the first step")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    options.output_dir.mkdir(parents=True, exist_ok=True)

    classes, files = folders(options.classes) if options.classes else standard_library()
    lines, held_out = split(files, classes)
    model = TextClassifier(classes, options.rows, options.width, mean_of_rows)
    print(f"{len(lines):,} lines to train on, {len(held_out):,} of other files")

    test = batches(model, held_out, 1024).cache()
    losses, accuracies = train(model, lines, test, options)
    counts = confusion(model, test)
    print(
        f"Accuracy on held-out files: {accuracy(counts):.2%}; "
        f"always the most frequent class: {counts.sum(axis=1).max() / counts.sum():.2%}"
    )
    print_confusion(classes, counts)
    print_mistakes(model, classes, held_out)
    print("\nWhat speaks most for a class:")
    print_telling_ngrams(model, classes, lines)
    draw(losses, accuracies, classes, counts, options.output_dir / "training.png")
    print(f"\nPicture: {options.output_dir / 'training.png'}")

    texts = []
    for number in range(len(classes)):
        of_class = [text for text, n in held_out if n == number]
        texts += random.Random(0).sample(of_class, min(len(of_class), 2))
    probabilities = model.classify(texts)["probabilities"].numpy()
    saved_model = options.output_dir / "saved_model"
    tf.saved_model.save(model, str(saved_model))
    script = pathlib.Path(__file__).with_name("classify_text.py")
    lines_of_text = options.output_dir / "lines.txt"
    lines_of_text.write_text("\n".join(texts), encoding="utf-8")
    command = [sys.executable, script, saved_model, "--file", lines_of_text]
    again = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    for line, row in zip(again.splitlines(), probabilities, strict=True):
        if not line.startswith(f"{row.max():7.2%}  {classes[row.argmax()]}"):
            raise SystemExit(f"a fresh process answered otherwise: {row} and\n\n{again}")
    print(f"Saved model: {saved_model}; a fresh process says of held-out lines:\n\n{again}")
    print(f"  python {script} {saved_model} TEXT...")

    compare_steps(classes, lines, options)


if __name__ == "__main__":
    main()
