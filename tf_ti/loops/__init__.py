"""Loops: a body iterated by one native kernel, and all the ways to ask for it."""

from tf_ti.loops import gradients  # noqa: F401 - registers the gradients
