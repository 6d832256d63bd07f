"""Loops: a body iterated by one native kernel, and all the ways to ask for it."""

from tf_ti.loops.derivatives import freezing, gradients, vectorize  # noqa: F401 - these register what their names say
from tf_ti.loops.passes import batched_gradients  # noqa: F401 - these register what their names say
