"""Loops: a body iterated by one native kernel, and all the ways to ask for it.

The rooms, of which none knows a later one: `spec` and `slices`; `tracing`, which makes graphs of
callables; `printed`, a loop as text, and `traced`, the one value of a loop; `lower`, which makes an
op of it; `passes` over it; `derivatives` of the op; and the ways in, `tensor_iterator`, `scan` and
`block`.
"""

from tf_ti.loops import lower
from tf_ti.loops.derivatives import freezing, gradients, vectorize  # noqa: F401 - with TensorFlow
from tf_ti.loops.passes import batched_gradients, batching, conditionals, programs

# Entries of tables that an earlier room has, and whose functions a later room has.
lower.DERIVATIVES.update(gradient=gradients.gradient, jvp=gradients.jvp)
lower.RUN_INSTEAD.append(conditionals.with_selects)
batching.RULES["CustomGradient"] = batched_gradients.RULE
for kind in (*conditionals.TYPES, *conditionals.WITH_EFFECTS):
    programs.CONDITIONALS[kind] = conditionals.refusal
