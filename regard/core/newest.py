"""A table of bounded size, which several threads may read and change at once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

ValueT = TypeVar("ValueT")


class Newest(dict[Hashable, ValueT]):
    """The newest values by name: as soon as there are more than `most`, the oldest are forgotten.

    Other threads, and calls inside this one, may change it between any two lines.

    >>> squares = Newest(2)
    >>> [squares.keep(number, number**2) for number in range(3)], list(squares)
    ([0, 1, 4], [1, 2])
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, name: Hashable, value: ValueT) -> ValueT:
        self[name] = value
        if len(self) > self.most:
            for oldest in [*self][: -self.most]:
                self.pop(oldest, None)
        return value
