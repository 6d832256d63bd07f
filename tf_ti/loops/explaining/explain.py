"""`tf_ti.explain`: what became of the loops of a function."""

import dataclasses
import html
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.types.experimental import ConcreteFunction

from tf_ti import _tf
from tf_ti.loops.drawing import bars as _bars
from tf_ti.loops.explaining import loops as _loops
from tf_ti.loops.explaining.loops import LoopExplanation


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The loops of a function, as `tf_ti.explain` found them.

    Attributes:
        loops: a `LoopExplanation` for each.
    """

    loops: tuple[LoopExplanation, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.loops)) or "no loops"

    def __iter__(self) -> Iterator[LoopExplanation]:
        return iter(self.loops)

    def _repr_svg_(self) -> str | None:
        """The number of operations by place, of loops that have any, for notebooks."""
        rows = [
            (loop.title, list(loop.operations.items()))
            for outer in self.loops
            for loop in outer.with_inner()
            if loop.operations
        ]
        return _bars.to_svg("Operations by place", rows, "operations") if rows else None

    def _repr_html_(self) -> str:
        """The text, and the picture below it."""
        return f"<pre>{html.escape(str(self))}</pre>{self._repr_svg_() or ''}"


@_tf.public
def explain(function: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Tells what became of each loop of a function, and why not more.

    The function is traced, unless it was traced for such arguments before; nothing runs.

    Args:
        function: a `tf.function`, a concrete function, a model or layer of Keras, a loaded
            SavedModel, or anything else that can be called in a `tf.function`.
        args, kwargs: the arguments of a call; tensors may be `tf.TensorSpec`s. None are needed of
            a concrete function, a `tf.function` that has an `input_signature`, a model of Keras or
            of OpenVINO that knows its inputs, and a SavedModel: there all signatures are told of.

    Returns:
        An `Explanation`. Printed, it is a paragraph for each loop; in a notebook also a picture.
        Its `loops` have

        - `name` and `place`: the loop, and the user's line;
        - `runs_as`: one sequence of cells, one program, programs and kernels, kernels;
        - `counted`: the counter that a condition compared with a bound, where it did no more;
        - `moved`: the operations that left it, and where they run;
        - `no_sequence`, `one_by_one`, `staying`: why it is no recurrent sequence, why operations
          are kernels of TensorFlow, and why some that need no state stay in the loop. Each has its
          `text`, the `operation` with its line, and a `cure`, where there is one;
        - `lanes`, `no_lanes`: the independent rows of a loop that is one program, and in how many
          groups this process runs them; or the `Reason`s why there are none;
        - `recorded`: the memory that its gradient takes, and what `checkpoint_every` would save;
        - `inner`: the loops inside of it;
        - `operations`: the number of operations by place.

        What was decided when a SavedModel was traced is not saved with it.

    Raises:
        TypeError: the function is none, or its arguments do not fit.

    Example:

        >>> @tf.function
        ... def powers(x):
        ...     return tf_ti.scan(lambda h, _: (h * x, h), tf.ones([3]), length=5)
        >>> print(tf_ti.explain(powers, tf.TensorSpec([3])))
        scan (..., line 3)
          runs as one program of 1 operation
          no recurrent sequence: a state is no matrix of floats, [rows, width]
          its gradient records 60 B
    """
    found = [loop for graph in _graphs(function, args, kwargs) for loop in _loops.find(graph)]
    return Explanation(tuple(found))


def _graphs(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Graph]:
    if isinstance(function, ConcreteFunction):
        if args or kwargs:
            raise TypeError("a concrete function is traced already: it takes no arguments here")
        return [function.graph]
    if hasattr(function, "get_concrete_function"):
        return [function.get_concrete_function(*args, **kwargs).graph]
    signatures = getattr(function, "signatures", None)
    if signatures is not None and not args and not kwargs:
        return [signature.graph for signature in signatures.values()]
    if not callable(function):
        what = "a function, a model or a loaded SavedModel"
        raise TypeError(f"function must be {what}, got {function!r}")
    known = getattr(function, "inputs", None)  # of a model that knows them
    if known and not args and not kwargs:
        if all(hasattr(each, "spec") for each in known):  # OpenVINO's takes each by itself
            args = tuple(each.spec for each in known)
        else:
            # A Sequential model, which has one input, may lack `input`.
            structure = getattr(function, "input", known[0])
            args = (tf.nest.map_structure(_spec_of, structure),)
    call = tf.function(lambda *args, **kwargs: function(*args, **kwargs), autograph=False)
    return [call.get_concrete_function(*args, **kwargs).graph]


def _spec_of(tensor: Any) -> tf.TypeSpec:
    """The type of a model's symbolic input."""
    shape, dtype = tensor.shape, tensor.dtype
    if getattr(tensor, "sparse", False):
        return tf.SparseTensorSpec(shape, dtype)
    if getattr(tensor, "ragged", False):
        return tf.RaggedTensorSpec(shape, dtype)
    return tf.TensorSpec(shape, dtype)
