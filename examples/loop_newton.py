"""Kepler's equation, E - e sin E = M, by Newton's method: to a tolerance, in at most so many steps.

    python examples/loop_newton.py --eccentricity 0.95

Prints the largest error before each step, and checks the roots and, through the loop, dE/dM.
"""

import argparse

import numpy as np
import tensorflow as tf

import tf_ti


@tf.function
def solve(anomaly, eccentricity, tolerance, most):
    """E for each M in `anomaly`, and the largest residual before each step."""
    with tf_ti.Loop("newton") as loop:
        e = loop.add_recurrence(anomaly + eccentricity * tf.sin(anomaly))
        residual = e - eccentricity * tf.sin(e) - anomaly
        error = tf.reduce_max(tf.abs(residual))
        loop.add_trip_limit(error > tolerance, tf_ti.TripLimit.WHILE)
        loop.add_trip_limit(most, tf_ti.TripLimit.COUNT)
        e.next = e - residual / (1 - eccentricity * tf.cos(e))
        root = loop.add_loop_output(e, tf_ti.LoopOutput.LAST_VALUE)
        errors = loop.add_loop_output(error, tf_ti.LoopOutput.CONCATENATE)
    return root.tensor, errors.tensor


def main() -> None:
    parser = argparse.ArgumentParser(description="Solves Kepler's equation for seven anomalies.")
    parser.add_argument("--eccentricity", type=float, default=0.8)
    parser.add_argument("--tolerance", type=float, default=1e-12)
    parser.add_argument("--most", type=int, default=20, help="steps")
    options = parser.parse_args()

    anomaly = tf.linspace(tf.constant(0.3, tf.float64), 3.0, 7)
    eccentricity, tolerance = tf.constant([options.eccentricity, options.tolerance], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(anomaly)
        root, errors = solve(anomaly, eccentricity, tolerance, tf.constant(options.most))
    slope = tape.gradient(root, anomaly).numpy()
    for k, error in enumerate(errors.numpy()):
        print(f"before step {k}: {error:.1e}")

    root = root.numpy()
    left = np.abs(root - options.eccentricity * np.sin(root) - anomaly.numpy()).max()
    print(f"after {len(errors)} steps: {left:.1e}")
    if left > options.tolerance:
        raise SystemExit(f"{options.most} steps are not enough")
    np.testing.assert_allclose(slope, 1 / (1 - options.eccentricity * np.cos(root)), rtol=1e-6)


if __name__ == "__main__":
    main()
