"""Beam search: one loop extends the best sequences, a second one reads them from back to front.

Checked against a search in NumPy, over the same probabilities, which are random but fixed.
"""

import argparse

import numpy as np
import tensorflow as tf

from tf_ti import Loop, LoopOutput, TripLimit

END, START, TOKENS, NEVER = 0, 1, 12, np.float32(-1e9)
logits = 2 * np.random.default_rng(0).standard_normal([TOKENS, TOKENS])
table = np.float32(
    logits - np.log(np.exp(logits).sum(1, keepdims=True))
)  # of each token after each
table[END] = [0] + [NEVER] * (TOKENS - 1)  # nothing follows the end


@tf.function
def search(width, longest):
    """The best sequences [width, longest], padded with END, and their log probabilities."""
    with Loop("extend") as extend:
        token = extend.add_recurrence(tf.fill([width], START))
        score = extend.add_recurrence(tf.concat([[0.0], tf.fill([width - 1], NEVER)], 0))
        extend.add_trip_limit(tf.reduce_any(token != END), TripLimit.WHILE)
        extend.add_trip_limit(longest, TripLimit.COUNT)
        totals = tf.reshape(score[:, tf.newaxis] + tf.gather(table, token), [-1])
        score.next, best = tf.math.top_k(totals, width)
        token.next = best % TOKENS
        best = extend.add_loop_output(best, LoopOutput.CONCATENATE)
        score = extend.add_loop_output(score, LoopOutput.LAST_VALUE)
    with Loop("read back") as back:
        back.add_trip_limit(tf.shape(best)[0], TripLimit.COUNT)
        beam = back.add_recurrence(tf.range(width))
        chosen = tf.gather(back.add_iterator(best, reverse=True), beam)
        beam.next = chosen // TOKENS
        tokens = back.add_loop_output(chosen % TOKENS, LoopOutput.REVERSE, axis=1, length=longest)
    return tokens.tensor, score.tensor


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds likely sequences of tokens.")
    parser.add_argument("--width", type=int, default=4, help="sequences to keep")
    parser.add_argument("--longest", type=int, default=10, help="tokens of a sequence")
    options = parser.parse_args()
    tokens, scores = (x.numpy() for x in search(*map(tf.constant, vars(options).values())))
    beams = [([START], np.float32(0))] + [([START], NEVER)] * (options.width - 1)
    for _ in range(options.longest):
        more = [(words + [t], s + table[words[-1], t]) for words, s in beams for t in range(TOKENS)]
        beams = sorted(more, key=lambda beam: -beam[1])[: options.width]
    for row, score, (expected, expected_score) in zip(tokens, scores, beams):
        print(f"{score:7.3f}:", *row)
        np.testing.assert_array_equal(row, expected[1:])
        np.testing.assert_allclose(score, expected_score, rtol=1e-5)


if __name__ == "__main__":
    main()
