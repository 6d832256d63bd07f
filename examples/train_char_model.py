"""Trains a character-level language model with tf_ti.tensor_iterator, on real text.

    python examples/train_char_model.py                 # learns to write Python, in two minutes
    python examples/train_char_model.py --text FILE     # or whatever FILE holds
    python examples/train_char_model.py --help

The model reads a text and predicts each character from those before it: an embedding, an LSTM and
a softmax. The LSTM is a few lines of plain TensorFlow, which `tf_ti.tensor_iterator` carries over
the characters, and runs as one operation. The file reads from top to bottom:

    1 the model     what is iterated, and how (this is where tf_ti comes in)
    2 the text      characters to numbers, and rows of text to train on
    3 training      nothing special: a gradient tape and an optimizer
    4 afterwards    a loss curve, a saved model in a fresh process, the speed beside tf.while_loop,
                    and that of a Keras model with tf_ti's LSTM layer beside one with Keras's own
"""

import argparse
import collections
import pathlib
import random
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator

import keras
import matplotlib.figure
import numpy as np
import tensorflow as tf
import tqdm

import tf_ti

State = tuple[tf.Tensor, tf.Tensor]

# --- 1 the model ---------------------------------------------------------------------------------


class CharModel(tf.Module):
    """An embedding, an LSTM and a softmax.

    Args:
        characters: the characters that the model can read and write; the first stands for any
            other one.
        hidden: the size of the LSTM's state.
        run_lstm: `lstm`, or `lstm_on_while_loop` to compare with.
    """

    def __init__(self, characters: str, hidden: int, run_lstm: Callable):
        super().__init__()
        glorot = tf.keras.initializers.GlorotUniform(seed=1)
        embedding = min(hidden, 64)
        self.characters = tf.constant(list(characters))
        self.embedding = tf.Variable(glorot([len(characters), embedding]))
        self.kernel = tf.Variable(glorot([embedding + hidden, 4 * hidden]))
        self.bias = tf.Variable(tf.zeros([4 * hidden]))
        self.output_kernel = tf.Variable(glorot([hidden, len(characters)]))
        self.output_bias = tf.Variable(tf.zeros([len(characters)]))
        self._run_lstm = run_lstm

    def initial_state(self, batch: int) -> State:
        zeros = tf.zeros([batch, self.output_kernel.shape[0]])
        return zeros, zeros

    def cell(self, x: tf.Tensor, h: tf.Tensor, c: tf.Tensor) -> State:
        """One step of an LSTM: x [batch, embedding], h and c [batch, hidden]."""
        gates = tf.concat([x, h], axis=1) @ self.kernel + self.bias
        forget, remember, candidate, expose = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(forget + 1) * c + tf.sigmoid(remember) * tf.tanh(candidate)
        return tf.sigmoid(expose) * tf.tanh(c), c

    def logits(self, ids: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        """The logits of the next character after each of ids [time, batch]."""
        hs, state = self._run_lstm(self, tf.gather(self.embedding, ids), state)
        return hs @ self.output_kernel + self.output_bias, state

    @tf.function(
        input_signature=[
            tf.TensorSpec([], tf.string, "prompt"),
            tf.TensorSpec([], tf.int32, "length"),
            tf.TensorSpec([], tf.float32, "temperature"),
            tf.TensorSpec([], tf.int32, "seed"),
        ]
    )
    def generate(
        self, prompt: tf.Tensor, length: tf.Tensor, temperature: tf.Tensor, seed: tf.Tensor
    ) -> tf.Tensor:
        """Writes `length` characters after the prompt. The saved model has this function."""
        ids = self.encode("\n" + prompt)
        state = self.initial_state(1)
        _, state = self.logits(ids[:-1, tf.newaxis], state)

        # The second loop of this file: its next input is the character that it has just drawn. Each
        # iteration gets one of the numbers 0, 1, 2, ..., so that each draw is another one.
        def body(k, drawn, h, c):
            h, c = self.cell(tf.gather(self.embedding, drawn), h, c)
            logits = (h @ self.output_kernel + self.output_bias) / temperature
            seeds = tf.stack([seed, k[0]])
            drawn = tf.random.stateless_categorical(logits, 1, seeds, dtype=tf.int32)
            return drawn[0], h, c

        (ids,) = tf_ti.tensor_iterator(
            body,
            [tf.range(length), ids[-1:], *state],
            tf_ti.PortMap(
                inputs=[
                    tf_ti.InputPort(0, 0, axis=0),
                    tf_ti.InputPort(1, 1),
                    tf_ti.InputPort(2, 2),
                    tf_ti.InputPort(3, 3),
                ],
                outputs=[tf_ti.OutputPort(0, 0, axis=0)],
            ),
            [tf_ti.BackEdge(0, 1), tf_ti.BackEdge(1, 2), tf_ti.BackEdge(2, 3)],
        )
        return tf.strings.reduce_join(tf.gather(self.characters, ids))

    def encode(self, text: tf.Tensor) -> tf.Tensor:
        """The numbers of a text's characters; 0 for one that the model does not know."""
        found = tf.strings.unicode_split(text, "UTF-8")[:, tf.newaxis] == self.characters
        return tf.argmax(found, axis=1, output_type=tf.int32)


def lstm(model: CharModel, xs: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
    """Carries `model.cell` over xs [time, batch, embedding], with tf_ti."""

    # A piece of xs keeps the axis that it was cut from: x is [1, batch, embedding]. The weights
    # that the cell uses need no mention, and get their gradients.
    def body(x, h, c):
        h, c = model.cell(tf.squeeze(x, axis=[0]), h, c)
        return h, c, h[tf.newaxis]

    h, c, hs = tf_ti.tensor_iterator(
        body,
        [xs, *state],
        tf_ti.PortMap(
            # The body's parameter 0 gets one piece of xs after another along axis 0; parameters 1
            # and 2 start with the initial state.
            inputs=[
                tf_ti.InputPort(0, 0, axis=0),
                tf_ti.InputPort(1, 1),
                tf_ti.InputPort(2, 2),
            ],
            # The last values of results 0 and 1 are wanted, and all values of result 2.
            outputs=[
                tf_ti.OutputPort(0, 0),
                tf_ti.OutputPort(1, 1),
                tf_ti.OutputPort(2, 2, axis=0),
            ],
        ),
        # Results 0 and 1 are parameters 1 and 2 of the next iteration.
        [tf_ti.BackEdge(from_layer=0, to_layer=1), tf_ti.BackEdge(from_layer=1, to_layer=2)],
    )
    return hs, (h, c)


def lstm_on_while_loop(model: CharModel, xs: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
    """The same as `lstm`, without tf_ti."""
    time_steps = tf.shape(xs)[0]
    pieces = tf.TensorArray(xs.dtype, time_steps).unstack(xs)
    hs = tf.TensorArray(xs.dtype, time_steps)

    def body(k, h, c, hs):
        h, c = model.cell(pieces.read(k), h, c)
        return k + 1, h, c, hs.write(k, h)

    _, h, c, hs = tf.while_loop(
        lambda k, *_: k < time_steps, body, (0, *state, hs), maximum_iterations=time_steps
    )
    return hs.stack(), (h, c)


# --- 2 the text ----------------------------------------------------------------------------------


def standard_library() -> str:
    """The Python sources in the top folder of the standard library, in a fixed random order."""
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    random.Random(0).shuffle(files)
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def choose_characters(text: str) -> str:
    """The characters that are frequent enough to learn, after one that stands for all others."""
    counts = collections.Counter(text)
    return "\ufffd" + "".join(sorted(c for c, n in counts.most_common(2000) if n >= 20))


def encode(text: str, characters: str) -> np.ndarray:
    number = {c: i for i, c in enumerate(characters)}
    return np.array([number.get(c, 0) for c in text], np.int32)


def batches(ids: np.ndarray, batch: int, time_steps: int) -> Iterator[tuple[np.ndarray, bool]]:
    """Cuts the text into `batch` long rows and goes along them: [time_steps + 1, batch] each.

    The last character of one is the first of the next, so that all are predicted once, and the
    model's state can be handed on. The flag tells where the rows begin (again).
    """
    length = (len(ids) - 1) // batch
    rows = ids[: batch * length].reshape(batch, length)
    if length <= time_steps:
        raise SystemExit(f"the text is too short: {batch} rows of {time_steps + 1} are needed")
    while True:
        for start in range(0, length - time_steps, time_steps):
            yield rows[:, start : start + time_steps + 1].T, start == 0


# --- 3 training ----------------------------------------------------------------------------------


def bits_a_character(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """The cross entropy: the bits that a character costs where the prediction is known."""
    nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_mean(nats) / tf.math.log(2.0)


class Trainer:
    """A model, its optimizer, and the state that it has after the rows' last batch."""

    def __init__(self, model: CharModel, batch: int, steps: int):
        self.model = model
        self._batch = batch
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, steps, alpha=0.05, warmup_target=0.01, warmup_steps=steps // 20
        )
        self._optimizer = keras.optimizers.Adam(schedule, global_clipnorm=1.0)
        self._optimizer.build(model.trainable_variables)

    def step(self, ids: np.ndarray, is_start: bool) -> tf.Tensor:
        """Learns from ids [time + 1, batch] and returns the loss."""
        if is_start:
            self._state = self.model.initial_state(self._batch)
        loss, self._state = self._step(tf.constant(ids), self._state)
        return loss

    @tf.function
    def _step(self, ids, state):
        with tf.GradientTape() as tape:
            logits, state = self.model.logits(ids[:-1], state)
            loss = bits_a_character(logits, ids[1:])
        variables = self.model.trainable_variables
        self._optimizer.apply(tape.gradient(loss, variables), variables)
        return loss, state


@tf.function
def held_out_loss(model: CharModel, ids: tf.Tensor) -> tf.Tensor:
    """The loss on ids [time + 1, batch]."""
    logits, _ = model.logits(ids[:-1], model.initial_state(ids.shape[1]))
    return bits_a_character(logits, ids[1:])


def train(
    trainer: Trainer, ids: np.ndarray, held_out: tf.Tensor, options: argparse.Namespace
) -> tuple[list[float], dict[int, float]]:
    """Returns the loss of every step, and the loss on the held-out text by the number of steps."""
    every = max(options.steps // 10, 1)
    losses, held_out_losses = [], {}
    progress = tqdm.tqdm(
        total=options.steps * options.batch * options.time_steps,
        unit=" characters",
        unit_scale=True,
    )
    with progress:
        for step, batch in enumerate(batches(ids, options.batch, options.time_steps)):
            if step % every == 0 or step == options.steps:
                held_out_losses[step] = held_out_loss(trainer.model, held_out).numpy()
            if step == options.steps:
                return losses, held_out_losses
            losses.append(trainer.step(*batch).numpy())
            progress.set_postfix_str(
                f"loss {statistics.fmean(losses[-20:]):.2f} bits a character", refresh=False
            )
            progress.update(options.batch * options.time_steps)


# --- 4 afterwards --------------------------------------------------------------------------------


def draw_losses(losses: list[float], held_out_losses: dict[int, float], path: pathlib.Path) -> None:
    figure = matplotlib.figure.Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8, label="training, each step")
    axes.plot(*zip(*held_out_losses.items()), "o-", label="held-out text")
    axes.set(xlabel="step", ylabel="loss, bits a character", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def keras_step(make_layer: Callable, options: argparse.Namespace) -> Callable:
    """A training step of the model as Keras has it, with this LSTM layer: from ids to the loss."""
    keras.utils.set_random_seed(1)
    count = len(options.characters)
    model = keras.Sequential(
        [
            keras.layers.Embedding(count, min(options.hidden, 64)),
            make_layer(options.hidden, return_sequences=True),
            keras.layers.Dense(count),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return lambda ids, _: model.train_on_batch(ids[:-1].T, ids[1:].T)


def compare(
    steps: dict[str, Callable], ids: np.ndarray, options: argparse.Namespace, repeats: int = 15
) -> None:
    """Times training steps of two models that learn the same, in turns, on the same batches."""
    seconds, losses = collections.defaultdict(list), collections.defaultdict(list)
    for k, batch in enumerate(batches(ids, options.batch, options.time_steps)):
        if k == repeats + 2:
            break
        for name, step in steps.items():
            start = time.perf_counter()
            losses[name].append(float(step(*batch)))
            seconds[name].append(time.perf_counter() - start)
    np.testing.assert_allclose(*losses.values(), rtol=1e-3)
    # The first two steps trace and warm up.
    medians = {name: statistics.median(values[2:]) for name, values in seconds.items()}
    print(
        f"\nA training step on {options.time_steps} x {options.batch} characters, "
        f"median of {repeats}:"
    )
    for name, median in medians.items():
        print(f"  {name:17} {median * 1e3:7.1f} ms")
    ours, theirs = medians.values()
    print(f"  with equal losses, {next(iter(medians))} is {theirs / ours:.1f} times as fast")


def compare_with_tensorflow(model: CharModel, ids: np.ndarray, options: argparse.Namespace) -> None:
    copies = {}
    for name, run_lstm in {"tf_ti": lstm, "tf.while_loop": lstm_on_while_loop}.items():
        copy = CharModel(options.characters, options.hidden, run_lstm)
        for variable, value in zip(copy.variables, model.variables):
            variable.assign(value)
        copies[name] = Trainer(copy, options.batch, options.steps).step
    compare(copies, ids, options)
    layers = {"tf_ti.keras.LSTM": tf_ti.keras.LSTM, "keras.layers.LSTM": keras.layers.LSTM}
    compare({name: keras_step(layer, options) for name, layer in layers.items()}, ids, options)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a character-level language model with tf_ti.tensor_iterator."
    )
    parser.add_argument(
        "--text", type=pathlib.Path, help="a UTF-8 text (default: the standard library's sources)"
    )
    parser.add_argument("--output-dir", type=pathlib.Path, default="build/char_model")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=16, help="rows of text")
    parser.add_argument("--time-steps", type=int, default=100, help="characters of a row a step")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1, help="for the sample")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--temperature", type=float, default=0.7)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    options.output_dir.mkdir(parents=True, exist_ok=True)

    text = options.text.read_text(encoding="utf-8") if options.text else standard_library()
    options.characters = choose_characters(text)
    ids = encode(text, options.characters)
    split = len(ids) - min(len(ids) // 10, 50_001)
    ids, held_out = ids[:split], ids[split:]
    held_out, _ = next(batches(held_out, 50, len(held_out) // 50 - 2))
    print(f"{len(text):,} characters, {len(options.characters)} different ones")

    model = CharModel(options.characters, options.hidden, lstm)
    losses, held_out_losses = train(
        Trainer(model, options.batch, options.steps), ids, tf.constant(held_out), options
    )
    first, *_, last = held_out_losses.values()
    print(f"Loss on held-out text: {first:.2f} bits a character before, {last:.2f} after training")
    draw_losses(losses, held_out_losses, options.output_dir / "loss.png")
    print(f"Loss curve: {options.output_dir / 'loss.png'}")

    arguments = [options.prompt, 600, options.temperature, options.seed]
    sample = model.generate(*arguments).numpy().decode()
    print(f"\nA sample:\n\n{options.prompt}{sample}\n")

    saved_model = options.output_dir / "saved_model"
    tf.saved_model.save(model, str(saved_model))
    script = pathlib.Path(__file__).with_name("generate_text.py")
    command = [sys.executable, script, saved_model]
    for name, value in zip(("--prompt", "--length", "--temperature", "--seed"), arguments):
        command.append(f"{name}={value}")
    again = subprocess.run(command, check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    if again != f"{options.prompt}{sample}\n":
        raise SystemExit(f"a fresh process wrote something else:\n\n{again}")
    print(f"Saved model: {saved_model}; a fresh process wrote the same with it:")
    print(f"  python {script} {saved_model}")

    compare_with_tensorflow(model, ids, options)


if __name__ == "__main__":
    main()
