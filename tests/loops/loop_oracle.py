"""The formal semantics of TensorRT's loops, interpreted: the oracle of test_loop_oracle.py.

A tensor inside a loop is a lazy sequence <X0, X1, ...>; inside several loops it is one over each of
them. `X.at(n)` is the element for the iterations n, a dict from loops to numbers. An element is
evaluated when somebody asks for it, and once. A tensor from outside a loop is a constant sequence
over it: at() is told the loop's iteration, and does not look. So nesting needs no code: a loop runs
inside those whose iterations its own tensors look at.

    loop = Loop()
    i = Recurrence(loop, Constant(3))
    i.next = Layer(np.add, i, Constant(2))
    loop.count = Constant(4)
    Concatenate(loop, i).at({})  # [3, 5, 7, 9]
"""

import itertools

import numpy as np


class NotInside(ValueError):
    """A tensor was used outside the loop that defines it, or loops do not nest cleanly."""


class OutOfRange(ValueError):
    """An iterator was read past its tensor's end, or a length is less than the number of trips."""


class Tensor:
    def __init__(self):
        self._elements = {}

    def at(self, n):
        key = frozenset(n.items())
        if key not in self._elements:
            self._elements[key] = np.asarray(self.element(n))
        return self._elements[key]

    def element(self, n):
        raise NotImplementedError


class Constant(Tensor):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def element(self, n):
        return self.value


class Layer(Tensor):
    """F(X, Y) = <f(X0, Y0), f(X1, Y1), ...>"""

    def __init__(self, function, *inputs):
        super().__init__()
        self.function = function
        self.inputs = inputs

    def element(self, n):
        return self.function(*(x.at(n) for x in self.inputs))


class Loop:
    """Its trip limits are `count` and `condition`: tensors, at least one of them given."""

    def __init__(self, name="Loop"):
        self.name = name
        self.count = None
        self.condition = None
        self._trips = {}

    def __repr__(self):
        return self.name

    def iteration(self, n):
        if self not in n:
            raise NotInside(f"a tensor from inside {self} is used outside it")
        return n[self]

    def outside(self, n):
        """The iterations that are seen from outside this loop."""
        return {loop: k for loop, k in n.items() if loop is not self}

    def trips(self, outside):
        """The iteration count, or the least k for which the condition's X_k is false."""
        key = frozenset(outside.items())
        if key not in self._trips:
            self._trips[key] = next(k for k in itertools.count() if self._ends(outside, k))
        return self._trips[key]

    def _ends(self, outside, k):
        if self.count is not None and k >= self.count.at(outside):
            return True
        return self.condition is not None and not self.condition.at({**outside, self: k})

    def all_trips(self):
        """The numbers of trips that were asked for, one for each time that the loop has run."""
        return list(self._trips.values())


class Iterator(Tensor):
    """<X[0], X[1], X[2], ...> with the subscript on an axis; reversed: X[last], X[last - 1], ..."""

    def __init__(self, loop, tensor, axis=0, reverse=False):
        super().__init__()
        self.loop, self.tensor, self.axis, self.reverse = loop, tensor, axis, reverse

    def element(self, n):
        k = self.loop.iteration(n)
        tensor = self.tensor.at(self.loop.outside(n))
        extent = tensor.shape[self.axis]
        if k >= extent:
            raise OutOfRange(f"{self.loop} iterates {extent} elements, and needs element {k}")
        return np.take(tensor, extent - 1 - k if self.reverse else k, self.axis)


class Recurrence(Tensor):
    """<X, Y0, Y1, Y2, ...> for the initial value X and the next value Y, which is set later."""

    def __init__(self, loop, initial):
        super().__init__()
        self.loop, self.initial, self.next = loop, initial, None

    def element(self, n):
        k = self.loop.iteration(n)
        if k == 0:
            return self.initial.at(self.loop.outside(n))
        return self.next.at({**n, self.loop: k - 1})


class LastValue(Tensor):
    """X_n of a recurrence <X0, X1, ...>, for n trips."""

    def __init__(self, loop, recurrence):
        super().__init__()
        self.loop, self.recurrence = loop, recurrence

    def element(self, n):
        outside = self.loop.outside(n)
        return self.recurrence.at({**outside, self.loop: self.loop.trips(outside)})


class Concatenate(Tensor):
    """X_0 ... X_n-1 along a new axis, in this order or reversed, then zeros up to `length`.

    The document leaves the values after X_n-1 open: zeros are tf_ti's. It does not say what shape
    the elements of an empty sequence have, so `like`, an array of their shape and dtype, tells.
    """

    def __init__(self, loop, tensor, axis=0, reverse=False, length=None, like=None):
        super().__init__()
        self.loop, self.tensor, self.axis, self.reverse = loop, tensor, axis, reverse
        self.length, self.like = length, like

    def element(self, n):
        outside = self.loop.outside(n)
        trips = self.loop.trips(outside)
        values = [self.tensor.at({**outside, self.loop: k}) for k in range(trips)]
        values = values[::-1] if self.reverse else values
        length = trips if self.length is None else int(self.length.at(outside))
        if length < trips:
            raise OutOfRange(f"{self.loop} makes {trips} trips, and a length is {length}")
        zeros = np.zeros_like(values[0] if values else self.like)
        padded = [*values, *[zeros] * (length - trips)]
        # np.stack takes no empty list.
        return np.stack([*padded, zeros], self.axis).take(range(length), self.axis)
