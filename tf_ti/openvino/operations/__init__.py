"""The operations, family by family: each a small function in the table of `operation.py`."""

from tf_ti.openvino.operations import (  # noqa: F401
    bags,
    blocks,
    boxes,
    convolution,
    decoding,
    elementwise,
    fourier,
    interpolation,
    loops,
    products,
    recurrent,
    reductions,
    regions,
    search,
    selection,
    shapes,
    state,
)
