"""TensorRT's sampleCharRNN, a character-level LSTM, with tf_ti.Loop and a saved model's weights.

train_char_model.py saves the model. The text is the same that generate_text.py writes with it.
"""

import argparse

import tensorflow as tf

from tf_ti import Loop, LoopOutput, TripLimit


def add_lstm_cell(model, x, h, c):
    """Adds the LSTM to a loop whose recurrences are h and c, its state."""
    gates = tf.concat([x, h], axis=1) @ model.kernel + model.bias
    forget, remember, candidate, expose = tf.split(gates, 4, axis=1)
    c.next = tf.sigmoid(forget + 1) * c + tf.sigmoid(remember) * tf.tanh(candidate)
    h.next = tf.sigmoid(expose) * tf.tanh(c.next)


@tf.function
def generate(model, characters, prompt, length, temperature, seed):
    found = tf.strings.unicode_split("\n" + prompt, "UTF-8")[:, tf.newaxis] == characters
    ids = tf.argmax(found, axis=1, output_type=tf.int32)[:, tf.newaxis]
    zeros = tf.zeros([1, model.output_kernel.shape[0]])
    with Loop("read") as read:
        read.add_trip_limit(tf.size(ids) - 1, TripLimit.COUNT)
        h, c = read.add_recurrence(zeros), read.add_recurrence(zeros)
        add_lstm_cell(model, read.add_iterator(tf.gather(model.embedding, ids)), h, c)
        state = [read.add_loop_output(value, LoopOutput.LAST_VALUE) for value in (h, c)]
    with Loop("write") as write:
        write.add_trip_limit(length, TripLimit.COUNT)
        last, h, c = (write.add_recurrence(initial) for initial in (ids[-1], *state))
        add_lstm_cell(model, tf.gather(model.embedding, last), h, c)
        logits = (h.next @ model.output_kernel + model.output_bias) / temperature
        seeds = tf.stack([seed, write.add_iterator(tf.range(length))])
        last.next = tf.random.stateless_categorical(logits, 1, seeds, dtype=tf.int32)[0]
        written = write.add_loop_output(last.next[0], LoopOutput.CONCATENATE)
    return tf.strings.reduce_join(tf.gather(characters, written))


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes text with a saved character model.")
    parser.add_argument("saved_model", help="the folder that train_char_model.py names")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--length", type=int, default=600, help="characters to write")
    options = parser.parse_args()
    model = tf.saved_model.load(options.saved_model)
    captured = model.generate.concrete_functions[0].captured_inputs
    (characters,) = (tensor for tensor in captured if tensor.dtype == tf.string)
    settings = [tf.constant(setting) for setting in (options.prompt, options.length, 0.7, 1)]
    text = generate(model, characters, *settings).numpy().decode()
    print(options.prompt + text)
    if text != model.generate(*settings).numpy().decode():
        raise SystemExit("the saved model writes something else")


if __name__ == "__main__":
    main()
