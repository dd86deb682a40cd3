"""Which positions of a sequence each process holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch

from regard.arguments import shown, whole
from regard.errors import ArgumentError, ShapeError
from regard.reprs import brief

LAYOUTS = ("contiguous", "zigzag")


@brief
@dataclass(frozen=True)
class Layout:
    """A sequence divided among processes.

    contiguous: process r holds one chunk, the r-th. zigzag: it holds two, the r-th from the front and the r-th from the
    back. Under a causal pattern early positions look at few keys and late ones at many, so that with zigzag every
    process computes about as many pairs.

    Args:
        name: "contiguous" or "zigzag".
        lengths: how many positions each process holds; they may differ. With zigzag the first chunk of a process has
            the larger half.

    Raises:
        ArgumentError: another name, or lengths that are not whole numbers, 0 or more.

    >>> Layout("zigzag", (4, 3)).chunks
    ((range(0, 2), range(5, 7)), (range(2, 4), range(4, 5)))
    """

    name: str
    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.name not in LAYOUTS:
            raise ArgumentError(f"layout {shown(self.name)} does not exist; there are {', '.join(LAYOUTS)}")
        lengths = tuple(whole("the length that a process holds", one, 0) for one in self.lengths)
        if not lengths:
            raise ArgumentError("a layout without processes; give the length that each process holds")
        object.__setattr__(self, "lengths", lengths)

    @classmethod
    def even(cls, name: str, length: int, processes: int) -> Layout:
        """A length divided as evenly as possible; the first processes hold one position more.

        >>> Layout.even("contiguous", 7, 3).lengths
        (3, 2, 2)
        """
        each, more = divmod(whole("length", length, 0), whole("processes", processes, 1))
        return cls(name, tuple(each + (rank < more) for rank in range(processes)))

    @property
    def length(self) -> int:
        """Positions of the whole sequence."""
        return sum(self.lengths)

    @cached_property
    def chunks(self) -> tuple[tuple[range, ...], ...]:
        """The positions of each process, chunk by chunk in the order in which it holds them."""
        if self.name == "contiguous":
            return tuple((chunk,) for chunk in _neighbours(self.lengths))
        first = [-(-length // 2) for length in self.lengths]
        second = [length - half for length, half in zip(self.lengths, first, strict=True)]
        chunks = _neighbours([*first, *second[::-1]])
        return tuple((chunks[rank], chunks[-1 - rank]) for rank in range(len(self.lengths)))

    def positions(self, rank: int) -> torch.Tensor:
        """The positions that a process holds, int64 (held,)."""
        return torch.cat([torch.arange(chunk.start, chunk.stop, device="cpu") for chunk in self.chunks[rank]])


def _neighbours(lengths: Sequence[int]) -> list[range]:
    return [range(*pair) for pair in pairwise(accumulate(lengths, initial=0))]


def part(x: torch.Tensor, layout: Layout, rank: int, dim: int = 2) -> torch.Tensor:
    """One process's part of a whole tensor, along the axis of its positions.

    Args:
        x: the whole tensor, (batch, heads, length, size) for the default `dim`.
        layout: how the length is divided.
        rank: of the process.
        dim: the axis that is divided.

    Raises:
        ShapeError: the axis has another length than the layout.

    >>> part(torch.arange(7), Layout("zigzag", (4, 3)), rank=0, dim=0).tolist()
    [0, 1, 5, 6]
    """
    if x.shape[dim] != layout.length:
        raise ShapeError(
            f"axis {dim} of {tuple(x.shape)} has {x.shape[dim]} positions; the layout divides {layout.length}"
        )
    return torch.cat([x.narrow(dim, chunk.start, len(chunk)) for chunk in layout.chunks[rank]], dim)


def joined(parts: Sequence[torch.Tensor], layout: Layout, dim: int = 2) -> torch.Tensor:
    """The whole tensor from the parts of all processes, in their order; the inverse of `part`.

    >>> layout = Layout("zigzag", (4, 3))
    >>> joined([part(torch.arange(7), layout, rank, dim=0) for rank in range(2)], layout, dim=0).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    order = torch.cat([layout.positions(rank) for rank in range(len(layout.lengths))])
    return torch.cat(tuple(parts), dim).index_select(dim, order.argsort().to(parts[0].device))
