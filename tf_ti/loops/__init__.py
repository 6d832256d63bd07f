"""Loops: a body iterated by one native kernel, and all the ways to ask for it."""

from tf_ti.loops import gradients, vectorize  # noqa: F401 - they register themselves
