"""Bags in functions that are frozen: the variable becomes a constant, and is a table."""

import numpy as np
import tensorflow as tf

from tf_ti import _tf
from tf_ti.bags.ops import KINDS, PREFIX, SEVERAL


def _freeze(node: tf.compat.v1.NodeDef, index: int, value: np.ndarray) -> bool:
    # All the variables of an op become constants, one after the other.
    num_tables = node.attr["N"].i if "N" in node.attr else 1
    if index >= num_tables:
        return False
    node.op = node.op.replace(f"{PREFIX}Resource", PREFIX)
    return True


for _name in (*KINDS, SEVERAL, "EmbeddingBagWeightsGrad"):
    _tf.register_freezing(f"{PREFIX}Resource{_name}", _freeze)
