"""Loops: a body iterated by one native kernel, and all the ways to ask for it.

The rooms, of which none knows a later one: `spec` and `slices`; `tracing`, which makes graphs of
callables; `traced`, the one value of a loop; `lower`, which makes an op of it; `passes` over it;
`derivatives` of the op; and the ways in, `tensor_iterator`, `scan` and `block`.
"""

from tf_ti.loops import lower
from tf_ti.loops.derivatives import freezing, gradients, vectorize  # noqa: F401 - with TensorFlow
from tf_ti.loops.passes import batched_gradients, batching, conditionals

# Entries that an earlier room has a table for, and a later one the function.
lower.DERIVATIVES.update(gradient=gradients.gradient, jvp=gradients.jvp)
lower.RUN_INSTEAD.append(conditionals.with_selects)
batching.RULES["CustomGradient"] = batched_gradients.RULE
