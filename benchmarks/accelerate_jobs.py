"""Programs of TensorFlow Probability, as its tutorials have them."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def of_tensorflow_probability() -> dict[str, Callable[[], Any]]:
    """The programs by name; ImportError where the library, or the tf-keras it needs, is missing."""
    try:
        import tensorflow_probability as tfp

        return _jobs(tfp)
    except ImportError:
        raise
    except Exception as error:  # of a TensorFlow that it does not know
        raise ImportError(str(error)) from error


def _jobs(tfp: Any) -> dict[str, Callable[[], Any]]:
    tfd, mcmc = tfp.distributions, tfp.mcmc
    factor = tf.constant([[1.0, 0.0, 0.0], [0.5, 0.8, 0.0], [0.2, -0.3, 0.6]])
    normal = tfd.MultivariateNormalTriL(tf.zeros(3), factor)
    wide = tfd.MultivariateNormalDiag(tf.zeros(2), [1.0, 3.0])
    hmc = mcmc.HamiltonianMonteCarlo(normal.log_prob, step_size=0.3, num_leapfrog_steps=5)
    nuts = mcmc.NoUTurnSampler(wide.log_prob, step_size=0.3, max_tree_depth=4)
    slices = mcmc.SliceSampler(tfd.Normal(0.0, 1.0).log_prob, step_size=1.0, max_doublings=5)

    def sample(kernel: Any, count: int, start: tf.Tensor) -> Callable[[], Any]:
        return lambda: mcmc.sample_chain(
            count, start, kernel=kernel, trace_fn=None, seed=[1, 2], num_burnin_steps=10
        )

    def rosenbrock(x: tf.Tensor) -> Any:
        return tfp.math.value_and_gradient(
            lambda x: tf.reduce_sum(
                (x[..., :-1] - 1) ** 2 + 100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2, -1
            ),
            x,
        )

    def lbfgs() -> Any:
        start = tf.constant([[-1.2, 1.0, 1.0], [2.0, 1.0, -1.0]])
        return tfp.optimizer.lbfgs_minimize(rosenbrock, start, max_iterations=40).position

    def ode(solver: Any) -> Callable[[], Any]:
        def slope(t: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            return tf.stack([y[1], 5.0 * (1 - y[0] ** 2) * y[1] - y[0]])

        times = tf.linspace(0.1, 3.0, 8)
        return lambda: solver.solve(slope, 0.0, tf.constant([2.0, 0.0]), times).states

    hidden = tfd.HiddenMarkovModel(
        tfd.Categorical(probs=[0.6, 0.4]),
        tfd.Categorical(probs=[[0.7, 0.3], [0.2, 0.8]]),
        tfd.Normal([0.0, 2.0], [1.0, 1.0]),
        25,
    )
    observed = tf.random.stateless_normal([5, 25], [3, 4]) + 1.0
    return {
        "HMC": sample(hmc, 100, tf.zeros([8, 3])),
        "NUTS": sample(nuts, 20, tf.zeros([4, 2])),
        "slice sampler": sample(slices, 30, tf.zeros([3])),
        "L-BFGS": lbfgs,
        "BDF": ode(tfp.math.ode.BDF()),
        "Dormand-Prince": ode(tfp.math.ode.DormandPrince()),
        "HMM": lambda: (hidden.log_prob(observed), hidden.posterior_mode(observed)),
    }
