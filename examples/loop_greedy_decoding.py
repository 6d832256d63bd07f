"""Greedy decoding with a GRU: a loop that ends at the end token, or after so many tokens.

The weights are random, but fixed. Checked against a loop in Python over the same step.
"""

import argparse

import numpy as np
import tensorflow as tf

import tf_ti

END, START, WORDS, HIDDEN = 0, 1, 24, 32
rng = np.random.default_rng(3)


def weights(*shape):
    return tf.constant(1.5 * rng.standard_normal(shape) / shape[0] ** 0.5, tf.float32)


gates, candidate = weights(2 * HIDDEN, 2 * HIDDEN), weights(2 * HIDDEN, HIDDEN)
embedding, output = weights(WORDS, HIDDEN) * WORDS**0.5, weights(HIDDEN, WORDS)


def step(word, h):
    """The most likely word [1] after `word` [1], and the state [1, HIDDEN] that follows h."""
    x = tf.gather(embedding, word)
    keep, reset = tf.split(tf.sigmoid(tf.concat([x, h], 1) @ gates), 2, axis=1)
    h = keep * h + (1 - keep) * tf.tanh(tf.concat([x, reset * h], 1) @ candidate)
    return tf.argmax(h @ output, axis=1, output_type=tf.int32), h


@tf.function
def decode(state, longest):
    with tf_ti.Loop("decode") as loop:
        word, h = loop.add_recurrence([START]), loop.add_recurrence(state)
        loop.add_trip_limit(word[0] != END, tf_ti.TripLimit.WHILE)
        loop.add_trip_limit(longest, tf_ti.TripLimit.COUNT)
        word.next, h.next = step(word, h)
        words = loop.add_loop_output(word.next[0], tf_ti.LoopOutput.CONCATENATE)
    return words.tensor


def main() -> None:
    parser = argparse.ArgumentParser(description="Decodes a sequence from each of five states.")
    parser.add_argument("--longest", type=int, default=30, help="tokens, where no end comes")
    longest = parser.parse_args().longest
    for state in rng.standard_normal([5, 1, HIDDEN]).astype(np.float32):
        words = decode(state, tf.constant(longest)).numpy().tolist()
        print(*words, "(end)" if words[-1:] == [END] else "(long enough)")
        word, h, expected = [START], state, []
        while len(expected) < longest and word[0] != END:
            word, h = step(word, h)
            expected.append(word.numpy()[0].item())
        assert words == expected, f"a loop of Python's gives {expected}"


if __name__ == "__main__":
    main()
