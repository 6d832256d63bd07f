"""The block of a loop: it is open while the loop is built, and layers are added in it."""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_ti.loops.block.layers import LoopNode
from tf_ti.loops.block.network import Network


class Block:
    """The block of one loop.

    Args:
        name: the loop's name; that of the network's loop once the block is open.

    Attributes:
        name: likewise.
        was_opened: true once the block is open, and afterwards.
        network: the network that the loop is part of, once the block is open.
        node: the loop in it, likewise.
        is_open: true while the block runs.
    """

    network: Network
    node: LoopNode

    def __init__(self, name: str):
        self.name = name
        self.was_opened = self.is_open = False

    def open(self, network: Network, node: LoopNode) -> None:
        self.network, self.node, self.name = network, node, node.name
        self.was_opened = self.is_open = True

    def label(self, kind: str) -> str:
        """The name that errors give the next layer of this kind: "iterator", say."""
        count = len(getattr(self.node, f"{kind}s")) if self.was_opened else 0
        return f"loop {self.name!r}: {kind} {count}"

    def is_current(self) -> bool:
        """True if operations go into this block's network at present."""
        return Network.current() is self.network

    def check_open(self, what: str) -> None:
        """Refuses a layer, or an input of one, where the block is not the current one."""
        prefix = f"loop {self.name!r}: "
        if not self.is_open:
            state = "closed already" if self.was_opened else "not open yet"
            raise ValueError(f"{prefix}{what.removeprefix(prefix)}: the loop's block is {state}")
        if not self.is_current():
            raise ValueError(
                f"{prefix}{what.removeprefix(prefix)}: layers are added in the loop's own block, "
                "not in another one, a function or a branch inside of it"
            )

    def to_tensor(self, what: str, value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
        """A tensor of the network's graph."""
        try:
            if value is None:
                raise TypeError("None is no tensor")
            tensor = tf.convert_to_tensor(value, dtype)
            if tensor.graph is not self.network.graph:
                tensor = self.network.graph.capture(tensor)
        except (TypeError, ValueError, NotImplementedError) as error:
            kind = TypeError if isinstance(error, NotImplementedError) else type(error)
            raise kind(f"{what} must be a tensor, got {value!r}: {error}") from error
        self.node.used.append((tensor, self.network.open))
        return tensor

    def to_integer(self, what: str, value: Any) -> tf.Tensor:
        """A scalar int64 tensor of the network's graph."""
        if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            if not -(2**63) <= int(value) < 2**63:
                raise ValueError(f"{what} does not fit 64 bits: {value}")
            value = tf.constant(int(value), tf.int64)
        tensor = self.to_tensor(what, value)
        if tensor.dtype not in (tf.int32, tf.int64):
            raise TypeError(f"{what} must be an int32 or int64, got {tensor.dtype.name}")
        check_scalar(what, tensor)
        return tf.cast(tensor, tf.int64)

    def to_length(self, label: str, value: Any) -> tuple[tf.Tensor, int | None]:
        """The tensor, and its value where that is known."""
        length = self.to_integer(f"{label}: the length", value)
        static = tf.get_static_value(length)
        if static is not None and static < 0:
            raise ValueError(f"{label}: the length must not be negative, got {static}")
        # No tensor is that long, and none stands for one.
        is_known = static is not None and static < 2**31
        return length, int(static) if is_known else None


def check_scalar(what: str, tensor: tf.Tensor) -> None:
    if tensor.shape.rank not in (None, 0):
        raise ValueError(f"{what} must be a scalar, got shape {tensor.shape}")
