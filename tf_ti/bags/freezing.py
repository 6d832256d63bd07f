"""Bags in a function that is frozen: the variable becomes a constant, which is the table."""

from tf_ti import _tf
from tf_ti.bags.ops import KINDS, PREFIX, SEVERAL


def _freeze(node, index, value):
    # All the variables of an op become constants, one after the other.
    num_tables = node.attr["N"].i if "N" in node.attr else 1
    if index >= num_tables:
        return False
    node.op = node.op.replace(f"{PREFIX}Resource", PREFIX)
    return True


for _name in (*KINDS, SEVERAL, "EmbeddingBagWeightsGrad"):
    _tf.register_freezing(f"{PREFIX}Resource{_name}", _freeze)
