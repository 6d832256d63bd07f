"""Bags: pooled embedding look-ups by one native kernel, and updates of their tables."""

from tf_ti.bags import (  # noqa: F401 - these register what their names say
    freezing,
    gradients,
    vectorize,
)
