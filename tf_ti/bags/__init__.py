"""Bags: pooled embedding look-ups by one native kernel, and updates of their tables."""

from tf_ti.bags import gradients  # noqa: F401 - registers the gradients
