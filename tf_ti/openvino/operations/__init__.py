"""The operations, family by family: each a small function in the table of `operation.py`."""

from tf_ti.openvino.operations import (  # noqa: F401
    adaptive,
    bags,
    blocks,
    boxes,
    convolution,
    decoding,
    deformable,
    elementwise,
    fourier,
    images,
    loops,
    products,
    proposals,
    random,
    recurrent,
    reductions,
    search,
    shapes,
    state,
)
