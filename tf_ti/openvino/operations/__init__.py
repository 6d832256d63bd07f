"""The operations, family by family: each a small function in the table of `operation.py`."""

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
