"""The operations, family by family: a small function each, in `operation`'s table."""

from tf_ti.openvino.operations import (  # noqa: F401
    bags,
    convolution,
    elementwise,
    images,
    loops,
    products,
    recurrent,
    reductions,
    shapes,
    state,
)
