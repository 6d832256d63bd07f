"""Python reads it when it starts. TensorFlow imports JAX where it is there, which takes long."""

import sys

sys.modules["jax"] = None
