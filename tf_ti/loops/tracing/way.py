"""Loops around callables, as the ways in describe them."""

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti.loops.spec import Input, LoopSpec
from tf_ti.loops.tracing.body import Body
from tf_ti.loops.tracing.structure import Structure


class Way(abc.ABC):
    """One call of a way in: a callable, and the loop around it.

    Attributes:
        body: the callable, `tf.function` or `ConcreteFunction`.
        arguments: structures of the tf.TypeSpecs of its arguments.
        expected: the beginning of an error about the number of its arguments.
        limit_label: the name that errors give the number of iterations.
        key: all else that the graph of the loop depends on, but for options.
        parameters: specs of the tensors that one iteration gets.
        inputs: for each parameter the way it gets its value; after `enter`.
    """

    body: Callable
    arguments: Sequence[Structure]
    expected: str
    limit_label = "num_iterations"
    key: Hashable
    parameters: Sequence[tf.TensorSpec]
    inputs: Sequence[Input]

    @abc.abstractmethod
    def enter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that the loop's inputs get, of those of the call."""

    @abc.abstractmethod
    def trace(self) -> Body:
        """The traced body; after `enter`."""

    @abc.abstractmethod
    def arrange(self, tensors: Sequence[tf.Tensor]) -> Sequence[Any]:
        """The body's arguments, of the tensors that one iteration gets."""

    def prepare_plain(self) -> None:  # noqa: B027 - most need nothing
        """Prepares for `convert`, where Python runs the loop; after `enter`."""

    @abc.abstractmethod
    def convert(self, returned: Any) -> Any:
        """The results, of the values that the body returned to Python."""

    @abc.abstractmethod
    def make_spec(self, body: Body) -> LoopSpec:
        """The loop around a traced body; its inputs are those of the way, then the captures."""

    @abc.abstractmethod
    def leave(self, outputs: Sequence[tf.Tensor]) -> Structure:
        """The values for the user, of the loop's outputs."""

    def is_direct(self) -> bool:
        """True if the body's arguments are the tensors that one iteration gets."""
        return True
