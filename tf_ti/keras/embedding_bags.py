"""`tf_ti.keras.EmbeddingBags`: the embeddings of all features of a model, in one layer."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

import tf_ti
from tf_ti import _library
from tf_ti.keras import _internals
from tf_ti.keras.embedding_bag import EmbeddingBag


@keras.saving.register_keras_serializable(package="tf_ti")
class EmbeddingBags(keras.layers.Layer):
    """Turns the bags of ids of many features into dense vectors, each by a table of embeddings.

    It means, where each table has a feature of its name:

        {name: table(inputs[name]) for name, table in tables.items()}

    but it is one operation, `tf_ti.embedding_bags`, whose threads share the bags of all features.
    (Tables with a `max_norm` are a second one.)

    Args:
        tables: the table of each name, a dict of `tf_ti.keras.EmbeddingBag`: each has its own size,
            combiner, mask_zero and what else that layer has, but for an `activity_regularizer`. All
            have variables of one dtype.
        features: the name of each feature's table, a dict. Several features may have one table.
            None: each table has a feature of its name.
        **kwargs: `name`, `trainable` and `activity_regularizer`, as of any Keras layer. The dtype
            of what a feature gives is that of its table.

    Call arguments:
        inputs: a dict with, for each feature, what `tf_ti.keras.EmbeddingBag` takes: ids, a pair
            (ids, weights), or a dict {"ids": ids, "weights": weights}. Some features may be ragged,
            others sparse or dense.
        mask: None, or a dict with the masks of some features, as `tf_ti.keras.EmbeddingBag` takes
            them. They are found where Keras put them, on inputs that come from other layers.

    Input shape:
        For each feature `(batch_size, ..., n)`, or a pair or a dict of it.

    Output shape:
        A dict with, for each feature, `(batch_size, ..., output_dim)` of its table.

    Raises:
        ValueError: the arguments, or the names, kinds, dtypes or static shapes of inputs and mask,
            do not fit one another. It names the feature, as in "inputs['user']".
        tf.errors.InvalidArgumentError: an id is not in its table. It names the feature by its
            number, as in "emb_tables[3]", in the order of `features`.

    Example:

        >>> bags = tf_ti.keras.EmbeddingBags({
        ...     "user": tf_ti.keras.EmbeddingBag(100, 2, embeddings_initializer="ones"),
        ...     "item": tf_ti.keras.EmbeddingBag(50, 3, embeddings_initializer="ones"),
        ... }, features={"user": "user", "viewed": "item", "bought": "item"})
        >>> pooled = bags({
        ...     "user": tf.constant([[7], [9]]),
        ...     "viewed": tf.ragged.constant([[1, 2, 3], []]),
        ...     "bought": tf.ragged.constant([[4], [5, 6]]),
        ... })
        >>> {name: rows.numpy().tolist() for name, rows in pooled.items()}
        {'user': [[1.0, 1.0], [1.0, 1.0]], 'viewed': [[3.0, 3.0, 3.0], [0.0, 0.0, 0.0]], \
'bought': [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]}

    A model goes on with `keras.layers.Concatenate()(list(pooled.values()))`, or with products of
    the vectors. `examples/serve_features.py` trains one, and serves it: the signature that it
    exports takes ragged features under their names.

    Source: torchrec's EmbeddingBagCollection, on `tf_ti.embedding_bags`.
    """

    def __init__(
        self,
        tables: Mapping[str, EmbeddingBag],
        features: Mapping[str, str] | None = None,
        **kwargs: Any,
    ):
        _check_tables(tables)
        features = {name: name for name in tables} if features is None else features
        _check_features(features, tables)
        super().__init__(**kwargs, autocast=False)
        self.tables = dict(tables)
        self._checkpointed = _internals.checkpointed(dict(tables))
        self.features = dict(features)
        self.supports_jit = _library.XLA_PROBLEM is None

    def build(self, input_shape: Any = None) -> None:
        for table in self.tables.values():
            if not table.built:
                table.build()

    def call(self, inputs: Any, mask: Any = None) -> dict[str, tf.Tensor | tf.RaggedTensor]:
        look_ups = self._of_each(EmbeddingBag._look_up, inputs, mask)
        embeddings, options = zip(*look_ups.values())
        lists: dict[str, Any] = {name: [each[name] for each in options] for name in options[0]}
        pooled = tf_ti.embedding_bags(embeddings, **lists)
        return {
            feature: keras.ops.cast(rows, self.tables[self.features[feature]].compute_dtype)
            for feature, rows in zip(look_ups, pooled)
        }

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """There is none: what a mask speaks of has been pooled."""
        return None

    def compute_output_shape(self, input_shape: Any) -> dict[str, tuple[int | None, ...]]:
        return {
            feature: self.tables[table].compute_output_shape(input_shape[feature])
            for feature, table in self.features.items()
        }

    def compute_output_spec(self, inputs: Any, mask: Any = None) -> dict[str, keras.KerasTensor]:
        return self._of_each(EmbeddingBag.compute_output_spec, inputs, mask)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        return {
            **super().get_config(),
            "tables": {name: serialize(table) for name, table in self.tables.items()},
            "features": dict(self.features),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "EmbeddingBags":
        deserialize = keras.saving.deserialize_keras_object
        tables = {name: deserialize(table) for name, table in config["tables"].items()}
        return super().from_config({**config, "tables": tables})

    def _of_each(self, function: Callable[..., Any], inputs: Any, mask: Any) -> dict[str, Any]:
        """For each feature what a function of its table, its inputs and their mask gives."""
        masks = {} if mask is None else mask
        for label, given in (("inputs", inputs), ("mask", masks)):
            if not isinstance(given, Mapping):
                raise ValueError(f"`{label}` must be a dict by feature. Received: {label}={given}")
            is_whole = label == "mask" or given.keys() >= self.features.keys()
            if not is_whole or not given.keys() <= self.features.keys():
                raise ValueError(
                    f"`{label}` must be of the features {list(self.features)}. "
                    f"Received: the keys {list(given)}"
                )
        results = {}
        for feature, table in self.features.items():
            try:
                given = function(self.tables[table], inputs[feature], masks.get(feature))
            except ValueError as error:
                raise ValueError(f"inputs[{feature!r}]: {error}") from error
            results[feature] = given
        return results


def _check_tables(tables: Any) -> None:
    if not isinstance(tables, Mapping) or not tables:
        raise ValueError(f"`tables` must be a dict of one table or more. Received: tables={tables}")
    dtypes = {}
    for name, table in tables.items():
        if not isinstance(table, EmbeddingBag):
            raise ValueError(
                "`tables` must be tf_ti.keras.EmbeddingBag layers. "
                f"Received: tables[{name!r}]={table!r}"
            )
        if table.activity_regularizer is not None:
            raise ValueError(
                "`tables` must have no activity_regularizer: give it to EmbeddingBags, for all. "
                f"Received: tables[{name!r}].activity_regularizer={table.activity_regularizer}"
            )
        dtypes[name] = table.variable_dtype
    if len(set(dtypes.values())) > 1:
        raise ValueError(f"`tables` must have variables of one dtype. Received: {dtypes}")


def _check_features(features: Any, tables: Mapping[str, EmbeddingBag]) -> None:
    if not isinstance(features, Mapping) or set(features.values()) != tables.keys():
        raise ValueError(
            "`features` must be a dict of names of tables, each of which has a feature. "
            f"Received: features={features} with tables {list(tables)}"
        )
