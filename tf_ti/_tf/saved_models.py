"""SavedModels of Keras 2."""

import tensorflow as tf


class _Optimizer(tf.Module):
    """An optimizer without what it has learnt."""

    def add_slot(self, var: tf.Variable, slot_name: str) -> tf.Variable:
        return tf.Variable(tf.zeros_like(var), trainable=False)


def drop_optimizers() -> None:
    """Lets `tf.saved_model.load` read models with an optimizer, which Keras 2 alone makes again."""
    revived = tf.__internal__.saved_model.load
    if "optimizer" not in revived.registered_identifiers():
        version = revived.VersionedTypeRegistration(
            lambda proto: _Optimizer(), version=1, min_producer_version=1, min_consumer_version=1
        )
        revived.register_revived_type("optimizer", lambda made: False, [version])
