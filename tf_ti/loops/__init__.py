"""Loops: a body iterated by one native kernel, and all the ways to ask for it."""

from tf_ti.loops import (  # noqa: F401 - these register what their names say
    batched_gradients,
    freezing,
    gradients,
    vectorize,
)
