"""`tf_ti.keras.EmbeddingBag`: an embedding and a pooling in one layer."""

import numbers
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import tf_ti
from tf_ti import _library, _words
from tf_ti.bags import arguments

_COMBINERS = ("sum", "mean", "sqrtn", "max")
# The arguments of torch.nn.EmbeddingBag.
_WORDS = {
    "num_embeddings": "it is called input_dim here",
    "embedding_dim": "it is called output_dim here",
    "mode": "it is called combiner here",
    "padding_idx": "mask_zero=True makes the id 0 padding",
    "offsets": "the layer takes bags as ragged, sparse or dense ids: "
    "tf.RaggedTensor.from_row_starts(ids, offsets)",
    "per_sample_weights": "call the layer with a pair (ids, weights)",
    "sparse": "gradients are always a tf.IndexedSlices with each row once; leave it out",
    "scale_grad_by_freq": "gradients are not scaled by how often an id is there",
    "include_last_offset": "tf.RaggedTensor.from_row_splits(ids, offsets) makes such bags",
}


@keras.saving.register_keras_serializable(package="tf_ti")
class EmbeddingBag(keras.layers.Layer):
    """Turns bags of integer ids into dense vectors: the sum, mean or maximum of their embeddings.

    It means, for one bag:

        rows = embeddings[ids] * weights[:, np.newaxis]
        {
            "sum": rows.sum(axis=0),
            "mean": rows.sum(axis=0) / weights.sum(),
            "sqrtn": rows.sum(axis=0) / np.sqrt((weights**2).sum()),
            "max": rows.max(axis=0),
        }[combiner]

    with weights of 1 where none are given. A bag without ids gives zeros, or the row
    `default_index`. It is `keras.layers.Embedding` followed by a pooling that leaves masked ids
    out, done by `tf_ti.embedding_bag`: the embeddings of the ids are never put next to one another
    in memory, bags may differ in size, and the gradient is a `tf.IndexedSlices` of the rows that
    were read. The optimizers of `tf_ti.keras.optimizers`, and `keras.optimizers.SGD` without
    momentum, touch these rows alone; the others of Keras go through the whole matrix in every step.

    Args:
        input_dim: the size of the vocabulary, a positive int: ids are below it.
        output_dim: the length of an embedding, a positive int.
        embeddings_initializer: initializer of the matrix `embeddings` [input_dim, output_dim].
        embeddings_regularizer: regularizer of the matrix. It reads all of it in every step.
        embeddings_constraint: constraint of the matrix. It writes all of it in every step.
        mask_zero: whether the id 0 is padding, which is left out of its bag.
        combiner: "sum", "mean", "sqrtn" or "max".
        default_index: the row that a bag without ids gives, unweighted; None or -1: zeros.
        max_norm: embeddings whose norm is larger are scaled down to it as they are read; None: none
            are. Gradients pass through the scaling, and the matrix is not changed, unlike that of
            torch.nn.EmbeddingBag, or by an `embeddings_constraint`.
        norm_type: which norm `max_norm` is about: p for the p-th root of the sum of p-th powers,
            above 0; math.inf for the largest absolute value.
        **kwargs: `name`, `dtype`, `trainable` and `activity_regularizer`, as of any Keras layer.
            Under a mixed precision policy the matrix is read and pooled in its own dtype, and the
            result is cast.

    Call arguments:
        inputs: ids, a pair (ids, weights), or a dict {"ids": ids, "weights": weights}. Ids are of
            any integer dtype, or floating point numbers, whose fractions are dropped.
            `keras.Input` makes the latter unless told otherwise, and 32 bits of these hold no id
            above 2**24: use `keras.Input(..., dtype="int32")`. Weights are of the kind and shape
            of ids; they are not for the combiner "max". The kinds are:

            - a tensor [..., n]: bags of n ids.
            - a `tf.RaggedTensor` [batch, (ids)]: bags of any sizes. Of more dimensions the last is
              pooled, which may be ragged or of a fixed number of ids, and the result is ragged.
            - a `tf.SparseTensor` of rank 2 or more: its values are the ids, and all positions but
              the last one tell the bag. Sequential and functional models fill it up with zeros, as
              if these were ids, unless they begin with a `keras.Input(..., sparse=True)`.
        mask: a boolean tensor, of the kind and shape of ids: those that are False are left out. It
            is found where Keras put it, on inputs that come from other layers. Not for sparse ids.

    Input shape:
        `(batch_size, ..., n)`, or a pair or a dict of it.

    Output shape:
        `(batch_size, ..., output_dim)`. It carries no mask.

    Raises:
        ValueError: the arguments, or the kinds, dtypes or static shapes of inputs and mask, do not
            fit one another.
        tf.errors.InvalidArgumentError: an id is not in [0, input_dim).

    Example:

        >>> bags = tf_ti.keras.EmbeddingBag(4, 2, embeddings_initializer="ones", combiner="sum")
        >>> bags(tf.ragged.constant([[0, 3, 3], [], [2]])).numpy().tolist()
        [[3.0, 3.0], [0.0, 0.0], [1.0, 1.0]]

    A text classifier, on word numbers that are padded with 0:

        >>> model = keras.Sequential([
        ...     keras.Input((None,), dtype="int32"),
        ...     tf_ti.keras.EmbeddingBag(10_000, 16, mask_zero=True, combiner="mean"),
        ...     keras.layers.Dense(2, activation="softmax"),
        ... ])
        >>> model.predict(np.array([[7, 4, 0, 0], [9, 2, 2, 5]]), verbose=0).shape
        (2, 2)

    A saved model that contains the layer, as a .keras file or a SavedModel (`model.export`,
    `tf.saved_model.save`), loads after `import tf_ti`. `model.export` makes dense signatures of
    ragged and sparse inputs: to serve these, give `tf.saved_model.save` a signature with a
    `tf.RaggedTensorSpec` or `tf.SparseTensorSpec`.

    Source: tf.keras.layers.Embedding and torch.nn.EmbeddingBag (without its scale_grad_by_freq), on
    OpenVINO's EmbeddingBagOffsetsSum-3.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        mask_zero: bool = False,
        combiner: arguments.Combiner = "sum",
        default_index: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        **kwargs: Any,
    ):
        for name in kwargs:
            if (cure := _words.cure_for(name, "EmbeddingBag", _WORDS)) is not None:
                raise TypeError(cure)
        for name, value in (("input_dim", input_dim), ("output_dim", output_dim)):
            if not _is_int(value) or value <= 0:
                raise ValueError(
                    f"`{name}` must be a positive integer. "
                    f"Received: {name}={value!r} (of type {type(value).__name__})"
                )
        if not isinstance(mask_zero, bool):
            raise ValueError(f"`mask_zero` must be a boolean. Received: mask_zero={mask_zero!r}")
        if combiner not in _COMBINERS:
            raise ValueError(
                f"`combiner` must be one of {_COMBINERS}. Received: combiner={combiner!r}"
            )
        if default_index is not None and not (
            _is_int(default_index) and -1 <= default_index < input_dim
        ):
            raise ValueError(
                "`default_index` must be None, -1, or an integer in [0, input_dim). "
                f"Received: default_index={default_index!r} with input_dim={input_dim}"
            )
        for name, norm in (("max_norm", max_norm), ("norm_type", norm_type)):
            if not (norm is None and name == "max_norm") and not _is_positive(norm):
                raise ValueError(f"`{name}` must be a number above 0. Received: {name}={norm!r}")
        # Floating point ids would be rounded to a narrower dtype, and be others.
        super().__init__(**kwargs, autocast=False)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)
        self.mask_zero = mask_zero
        self.combiner = combiner
        self.default_index = default_index
        self.max_norm = None if max_norm is None else float(max_norm)
        self.norm_type = float(norm_type)
        self.supports_jit = _library.XLA_PROBLEM is None

    def build(self, input_shape: Any = None) -> None:
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            regularizer=self.embeddings_regularizer,
            constraint=self.embeddings_constraint,
            autocast=False,  # which would go through the whole matrix in every call
            name="embeddings",
        )

    def call(self, inputs: Any, mask: Any = None) -> tf.Tensor | tf.RaggedTensor:
        embeddings, options = self._look_up(inputs, mask)
        return keras.ops.cast(tf_ti.embedding_bag(embeddings, **options), self.compute_dtype)

    def _look_up(self, inputs: Any, mask: Any) -> tuple[Any, dict[str, Any]]:
        """The embeddings, and the other arguments of tf_ti.embedding_bag."""
        ids, weights, masks = self._check_inputs(inputs, mask)
        # Inside of a StatelessScope this is no variable, but a tensor.
        embeddings = self.embeddings.value
        ids = _map_values(_as_index_type, ids)
        if weights is not None:
            is_short = embeddings.dtype in (tf.float16, tf.bfloat16)
            weights = keras.ops.cast(weights, "float32" if is_short else embeddings.dtype.name)
        padding_idx = 0 if self.mask_zero else None
        for kept in masks:
            # A number that stands in no data: a wrong id must not pass for a masked one.
            padding_idx = ids.dtype.min if padding_idx is None else padding_idx
            ids = _leave_out(keras.ops.cast(kept, "bool"), ids, padding_idx)
        return embeddings, {
            "ids": ids,
            "weights": weights,
            "combiner": self.combiner,
            "default_index": self.default_index,
            "padding_idx": padding_idx,
            "max_norm": self.max_norm,
            "norm_type": self.norm_type,
        }

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        """There is none: what a mask speaks of has been pooled."""
        return None

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        if isinstance(input_shape, dict):
            input_shape = input_shape["ids"]
        elif isinstance(input_shape[0], (tuple, list)):
            input_shape = input_shape[0]
        return (*input_shape[:-1], self.output_dim)

    def compute_output_spec(self, inputs: Any, mask: Any = None) -> keras.KerasTensor:
        ids, _, _ = self._check_inputs(inputs, mask)
        shape = self.compute_output_shape(ids.shape)
        if _kind(ids) == "ragged" and len(shape) > 2:
            return keras.KerasTensor(shape, dtype=self.compute_dtype, ragged=True)
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "embeddings_constraint": keras.constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "default_index": self.default_index,
            "max_norm": self.max_norm,
            "norm_type": self.norm_type,
        }

    def _check_inputs(self, inputs: Any, mask: Any) -> tuple[Any, Any, list[Any]]:
        """Returns ids, weights or None, and masks; they are symbolic where `inputs` are."""
        if isinstance(inputs, dict):
            if "ids" not in inputs or not inputs.keys() <= {"ids", "weights"}:
                raise ValueError(
                    'a dict for `inputs` must have "ids", may have "weights", and nothing else. '
                    f"Received: the keys {list(inputs)}"
                )
            ids, weights = inputs["ids"], inputs.get("weights")
        else:
            pair = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs, None]
            if len(pair) != 2:
                raise ValueError(
                    "`inputs` must be ids, a pair (ids, weights) or a dict of these. "
                    f"Received: {len(pair)} tensors, inputs={inputs}"
                )
            ids, weights = pair
        _check_is_number(ids, "ids")
        least_rank = 1 if _kind(ids) == "dense" else 2
        rank = tf.TensorShape(ids.shape).rank
        if rank is not None and rank < least_rank:
            raise ValueError(
                f"{_kind(ids)} ids must have a rank of at least {least_rank}. "
                f"Received: ids of shape {ids.shape}"
            )
        if weights is not None:
            if self.combiner == "max":
                raise ValueError(
                    "weights are not for the combiner 'max'. "
                    f"Received: weights of shape {weights.shape}"
                )
            _check_is_number(weights, "weights")
            _check_fits(weights, "weights", ids)
        masks = [kept for kept in keras.tree.flatten(mask) if kept is not None]
        for kept in masks:
            if _kind(ids) == "sparse":
                raise ValueError(f"a mask is not for sparse ids. Received: mask={kept}")
            _check_fits(kept, "mask", ids)
        return ids, weights, masks


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return is_real and value > 0


def _map_values(function: Callable[..., Any], x: Any) -> Any:
    if isinstance(x, tf.SparseTensor):
        return x.with_values(function(x.values))
    if isinstance(x, tf.RaggedTensor):
        return x.with_flat_values(function(x.flat_values))
    return function(x)


def _leave_out(kept: Any, ids: Any, padding_idx: int) -> Any:
    """The ids with padding for those that are not kept."""
    padding = tf.constant(padding_idx, ids.dtype)
    if _kind(ids) != "ragged":
        return tf.where(kept, ids, padding)
    # tf.where fails for ids that are ragged outside and uniform inside.
    if kept.ragged_rank != ids.ragged_rank:
        raise ValueError(
            f"mask must be ragged like ids, of rank {ids.ragged_rank}. Received: {kept.ragged_rank}"
        )
    message = "mask must have the row splits of ids"
    with arguments.asserting_same(ids.nested_row_splits, kept.nested_row_splits, message, ""):
        return ids.with_flat_values(tf.where(kept.flat_values, ids.flat_values, padding))


def _as_index_type(ids: tf.Tensor) -> tf.Tensor:
    return tf.cast(ids, tf.int64) if ids.dtype.is_floating else arguments.as_index_type("ids", ids)


def _kind(x: Any) -> str:
    if isinstance(x, tf.SparseTensor) or getattr(x, "sparse", False):
        return "sparse"
    if isinstance(x, tf.RaggedTensor) or getattr(x, "ragged", False):
        return "ragged"
    return "dense"


def _check_is_number(x: Any, name: str) -> None:
    dtype = tf.as_dtype(x.dtype)
    if not (dtype.is_integer or dtype.is_floating):
        raise ValueError(f"{name} must be numbers. Received: {name} of dtype {dtype.name}")


def _check_fits(x: Any, name: str, ids: Any) -> None:
    if _kind(x) != _kind(ids) or not tf.TensorShape(x.shape).is_compatible_with(ids.shape):
        raise ValueError(
            f"{name} must be of the kind and shape of ids. Received: {_kind(x)} {name} of shape "
            f"{x.shape}, {_kind(ids)} ids of shape {ids.shape}"
        )
