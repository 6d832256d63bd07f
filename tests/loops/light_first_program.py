"""Loops whose work depends on values: light ones, then heavy ones, with eight threads."""

import at_once_program
import tensorflow as tf

import tf_ti

# Heavy values of the same shapes are at once after so many calls at most.
MOST_CALLS = 100

TEXT = tf.constant(" ".join(f"word{i}" for i in range(20_000)))
HEAVY, LIGHT = tf.fill([16], TEXT), tf.fill([16], "")
MIXED = tf.constant([TEXT.numpy()] * 5 + [b""] + [TEXT.numpy()] * 10)


def lengths(texts):
    def f(c, text):
        return c, tf.strings.length(tf.strings.regex_replace(text, "o", "ab"))

    return tf_ti.scan(f, (), texts)[1]


def of_changing_sizes(xs):
    def f(c, x):
        chosen = tf.boolean_mask(at_once_program.heavy(x), x[0] > 0.0)
        return c, tf.reduce_sum(tf.tanh(chosen))

    return tf_ti.scan(f, (), xs)[1]


def calls_until_at_once(function, *arguments):
    for count in range(MOST_CALLS):
        if at_once_program.flights_of(lambda _: function(*arguments)):
            return count
    raise AssertionError("never")


def main():
    warm = tf.function(lengths, autograph=False)
    for _ in range(5):
        warm(LIGHT)
    calls_until_at_once(warm, HEAVY)

    between = tf.function(lengths, autograph=False)
    calls_until_at_once(between, HEAVY)
    between(MIXED)
    assert calls_until_at_once(between, HEAVY) < 5

    other = tf.function(of_changing_sizes, autograph=False)
    xs = tf.abs(at_once_program.X)
    calls_until_at_once(other, xs)
    other(tf.tensor_scatter_nd_update(xs, [[4, 0, 3]], [-1.0]))
    assert calls_until_at_once(other, xs) < 5


if __name__ == "__main__":
    main()
