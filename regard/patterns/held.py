"""Patterns that may hold a tensor: what such a pattern is equal to, and numbers by position or by batch row."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import torch

from regard.arguments import in_memory, kind_of, refuse_wrapper
from regard.errors import ArgumentError, ShapeError
from regard.patterns.base import Pattern
from regard.patterns.grid import four_axes
from regard.patterns.ranges import Segments, over_rows

HOLDS_TENSOR = "it holds a tensor"
_BITS = 128  # of a serial


@dataclass(frozen=True, eq=False)
class TensorPattern(Pattern, enrol=False):
    """A pattern that holds a copy of a tensor, or numbers instead.

    With a tensor it has a serial, and is equal only to itself and to its copies. Without one it compares by value.
    """

    # An instance that holds a tensor has its own. As a field, torch 2.11 could not trace it.
    serial: ClassVar[int] = 0

    @property
    def by_value(self) -> bool:  # type: ignore[override]
        return not self.serial

    def hold(self, name: str, tensor: torch.Tensor) -> None:
        """Keep a tensor in a field; one row is kept without its axis of batch rows."""
        if tensor.dim() == 2 and tensor.shape[0] == 1:
            tensor = tensor[0]
        object.__setattr__(self, name, tensor)
        object.__setattr__(self, "serial", new_serial())

    @property
    def rows(self) -> tuple[Pattern, ...]:
        """One pattern for each batch row; this one itself where all rows are alike."""
        return (self,)

    @property
    def batch_rows(self) -> int:
        return len(self.rows)

    def for_row(self, row: int) -> Pattern:
        return self.rows[row if len(self.rows) > 1 else 0]

    def segments(self, first: int, last: int, k_len: int) -> Segments:
        """Where batch rows differ: the keys that are certain for all of them, and those possible for any."""
        if self.rows[0] is self:
            return super().segments(first, last, k_len)
        return over_rows(row.segments(first, last, k_len) for row in self.rows)

    def settled(self, queries: range | None, k_len: int) -> Pattern:
        """An equal pattern of numbers for one call, where the values of the tensor permit it; see `settled`."""
        return self

    def numbers(self) -> tuple[Any, ...]:
        """What decides about equality where no tensor is held."""
        return ()

    def __eq__(self, other: object) -> bool:
        """Patterns of a traced graph are equal only to themselves: every run of the graph repeats their serials."""
        if not isinstance(other, type(self)) or self.serial != other.serial:
            return False
        if self is other:
            return True
        if self.serial < 0:
            return False
        return self.serial > 0 or self.numbers() == other.numbers()

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.serial or self.numbers()))


def settled(pattern: Pattern, queries: range | None, k_len: int) -> Pattern:
    """The pattern with its tensors replaced by numbers, for the same pairs of a call, as far as values permit.

    Compiled calls are computed with it, since their graphs keep tensors. Padding without holes is a span of keys,
    and where all positions are of one document there is nothing to separate.

    Args:
        pattern: the pattern of the call.
        queries: the positions of the queries; None where they differ by batch row.
        k_len: the number of keys.

    >>> from regard.patterns import KeyMask
    >>> print(settled(KeyMask(torch.tensor([[False, True], [True, True]])), range(2), 2))
    key_span((1, 0), (2, 2))
    """
    if isinstance(pattern, TensorPattern):
        return pattern.settled(queries, k_len)
    if not pattern.made_of():
        return pattern
    return pattern.mapped(lambda part: settled(part, queries, k_len))


def new_serial() -> int:
    """A number that no other call returns, in any process, and never 0.

    Each process counts from 128 random bits of the system, and a forked one draws its own. Drawing them for every
    pattern would take longer than copying the mask of a short text. While a graph is traced each pattern gets a serial
    below 0.
    """
    serial = _next_serial()
    return -serial if torch.compiler.is_compiling() else serial


def _begin_serials() -> None:
    global _serials
    _serials = count(1 << _BITS | int.from_bytes(os.urandom(_BITS // 8), "big"))


_serials: Iterator[int]
_begin_serials()
if hasattr(os, "register_at_fork"):  # where processes are forked
    os.register_at_fork(after_in_child=_begin_serials)


def _next_serial() -> int:
    return next(_serials)


# A compiler calls it while it traces. `torch.compiler.assume_constant_result` sets this too, but imports the compiler.
_next_serial._dynamo_marked_constant = True  # ty: ignore[missing-attribute]


def checked_tensor(
    name: str,
    tensor: Any,
    dtypes: tuple[torch.dtype, ...],
    needs: str,
    shapes: str,
    axes: tuple[int, ...] = (1, 2),
) -> torch.Tensor:
    """The tensor, if its dtype and its number of axes are among those given; otherwise an error is raised.

    The dtypes have no gradients. Of two axes the first is batch rows; of four the first two are batch rows and heads.
    None of these may be empty.
    """
    if not isinstance(tensor, torch.Tensor):
        raise ArgumentError(f"{name} was given as {kind_of(tensor)}; it needs {needs}")
    if tensor.dtype not in dtypes:
        raise ArgumentError(f"{name} was given as a {tensor.dtype} tensor; it needs {needs}")
    dim = tensor.dim()
    if dim not in axes or (dim > 1 and 0 in tensor.shape[: dim // 2]):
        raise ShapeError(f"{name} has shape {tuple(tensor.shape)}; it needs {shapes}")
    refuse_wrapper(name, tensor)
    return in_memory(name, tensor)


def in_words(tensor: torch.Tensor, what: str) -> str:
    """How a text stands for a tensor.

    >>> in_words(torch.zeros(3, 4), "booleans")
    '<3 x 4 booleans>'
    """
    return f"<{' x '.join(map(str, tensor.shape))} {what}>"


def at_positions(
    by_position: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a tensor (length,) or (batch, length) the entries at these positions, and whether there are any.

    With an axis of batch rows, the entries have four axes.
    """
    length = by_position.shape[-1]
    positions = in_memory("positions", positions)
    by_position = by_position.to(positions.device)
    known = (positions >= 0) & (positions < length)
    inside = positions.clamp(0, length - 1)
    if by_position.dim() == 1:
        return by_position[inside], known
    inside = four_axes(inside)
    rows = torch.arange(by_position.shape[0], device=by_position.device).view(-1, 1, 1, 1)
    return by_position[rows, inside], known
