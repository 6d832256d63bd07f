"""Loops around callables, as the ways in describe them."""

import abc
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tf_ti import _tf
from tf_ti.loops.spec import Input, LoopSpec
from tf_ti.loops.tracing import body as _body
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
        condition: the graph of the loop's condition, or None; after `trace`.
    """

    body: Callable[..., Any]
    arguments: Sequence[Structure]
    expected: str
    limit_label = "num_iterations"
    key: tuple[Hashable, ...]
    parameters: Sequence[tf.TensorSpec]
    inputs: Sequence[Input]
    condition: _tf.FuncGraph | None = None

    def resolve(self) -> None:
        """Puts the traces of a `tf.function` in its place."""
        self.body = _body.resolve(self.body, self.arguments, self.expected)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """All callables, the body first."""
        return [self.body]

    @abc.abstractmethod
    def enter(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The tensors that the loop's inputs get, of those of the call."""

    @abc.abstractmethod
    def trace(self) -> _body.Body:
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
    def make_spec(self, body: _body.Body) -> LoopSpec:
        """The loop around a traced body; its inputs are those of the way, then the captures."""

    def lengths(self, num_iterations: int | tf.Tensor | None) -> Sequence[tf.Tensor]:
        """Those of outputs that have one, for a loop of so many iterations; after `trace`."""
        return ()

    def is_over(self, results: Sequence[tf.Tensor]) -> bool:
        """True if an iteration of these results is the last one, where Python runs the loop."""
        return False

    @abc.abstractmethod
    def leave(self, outputs: Sequence[tf.Tensor]) -> Structure:
        """The values for the user, of the loop's outputs."""

    def is_direct(self) -> bool:
        """True if the body's arguments are the tensors that one iteration gets."""
        return True
