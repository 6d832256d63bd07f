"""The loop of TensorRT's document, `for (i = j; i < end; i += k)`, with all values of i.

python examples/loop_for.py 3 20 4            # 3 7 11 15 19, then 23
python examples/loop_for.py --draw for.svg    # its structure, as a picture or as a text
"""

import argparse

import tensorflow as tf

import tf_ti


def for_loop(j, end, k) -> tf_ti.Loop:
    """The loop; its outputs are the values of i in all iterations, and the one that ended it."""
    with tf_ti.Loop("for") as loop:
        i = loop.add_recurrence(j)
        loop.add_trip_limit(i < end, tf_ti.TripLimit.WHILE)
        i.set_input(1, i + k)
        loop.add_loop_output(i, tf_ti.LoopOutput.CONCATENATE)
        loop.add_loop_output(i, tf_ti.LoopOutput.LAST_VALUE)
    return loop


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts from j to below end, in steps of k.")
    parser.add_argument("j", type=int, nargs="?", default=3)
    parser.add_argument("end", type=int, nargs="?", default=20)
    parser.add_argument("k", type=int, nargs="?", default=4)
    parser.add_argument("--draw", metavar="FILE", help="an .svg, .png, .dot or .txt to write")
    options = parser.parse_args()
    if options.k <= 0:
        parser.error("k must be positive, or the loop does not end")

    loop = for_loop(*map(tf.constant, (options.j, options.end, options.k)))
    values, last = (output.tensor.numpy() for output in loop.outputs)
    print(*values, f"then {last}")

    expected = list(range(options.j, options.end, options.k))
    if values.tolist() != expected:
        raise SystemExit(f"Python's range gives {expected}")
    if options.draw:
        print("Drawn:", loop.draw(options.draw))
    else:
        print(loop.draw())


if __name__ == "__main__":
    main()
