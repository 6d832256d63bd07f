"""What bags become where a function is frozen: the variable becomes a constant, and is a table."""

from tf_ti import _tf
from tf_ti.bags.ops import KINDS, PREFIX


def _freeze(node, index, value):
    if index != 0:
        return False
    node.op = node.op.replace(f"{PREFIX}Resource", PREFIX)
    return True


for _name in (*KINDS, "EmbeddingBagWeightsGrad"):
    _tf.register_freezing(f"{PREFIX}Resource{_name}", _freeze)
