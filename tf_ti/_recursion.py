"""Recursion that takes no room on Python's stack: graphs are deeper than that."""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Generic, TypeVar

_Node = TypeVar("_Node")
_Value = TypeVar("_Value")


class Recursion(Generic[_Node, _Value]):
    """A function of a node and of its own values of other nodes, each computed once.

    The rule is a generator function. It yields the nodes that it needs, and gets their values:

        def rule(op):
            depths = yield [tensor.op for tensor in op.inputs]
            return 1 + max(depths, default=0)

        depth = Recursion(rule)
        depth(op)

    An error reaches the callers as in any recursion: a rule may catch the error of a node it needs.

    Args:
        rule: the function.
        key: the part of a node that is hashable, and by which nodes are told apart.
    """

    def __init__(
        self,
        rule: Callable[[_Node], Generator[Sequence[_Node], list[_Value], _Value]],
        key: Callable[[_Node], Any] = lambda node: node,
    ):
        self._rule, self._key = rule, key
        self._found: dict[Any, _Value] = {}

    def __call__(self, node: _Node) -> _Value:
        calls = [] if self._is_found(node) else [_Call(node, self._rule(node))]
        while calls:
            missing = next((n for n in calls[-1].missing if not self._is_found(n)), None)
            if missing is None:
                self._go_on(calls)
            else:
                calls.append(_Call(missing, self._rule(missing)))
        return self._found[self._key(node)]

    def _is_found(self, node: _Node) -> bool:
        return self._key(node) in self._found

    def _go_on(self, calls: list["_Call"]) -> None:
        """Runs the last call to where it needs other nodes, or ends; an error ends others too."""
        call = calls[-1]
        resume: Callable[[Any], Sequence[_Node]] = call.steps.send
        given: Any = None  # at the beginning
        if call.needed is not None:
            given = [self._found[self._key(n)] for n in call.needed]
        while True:
            try:
                call.need(resume(given))
            except StopIteration as end:
                self._found[self._key(call.node)] = end.value
                calls.pop()
            except Exception as error:
                calls.pop()
                if not calls:
                    raise
                call = calls[-1]
                resume, given = call.steps.throw, error
                continue
            return


class _Call:
    """A call under way, and the nodes whose values it waits for."""

    def __init__(self, node: Any, steps: Generator[Sequence[Any], Any, Any]):
        self.node, self.steps = node, steps
        self.needed: Sequence[Any] | None = None
        self.missing: Iterator[Any] = iter(())

    def need(self, nodes: Sequence[Any]) -> None:
        self.needed = list(nodes)
        self.missing = iter(self.needed)
