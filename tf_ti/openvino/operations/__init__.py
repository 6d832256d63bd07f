"""The operations, family by family: a small function each, in `operation`'s table."""

from tf_ti.openvino.operations import elementwise, loops, recurrent, shapes  # noqa: F401
