"""How the positions of a sequence are divided among processes, and tensors with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import torch

from regard.arguments import one_of, whole
from regard.errors import ArgumentError, ShapeError
from regard.reprs import brief

LAYOUTS = ("contiguous", "zigzag")
FORMS = ("auto", "ring", "gather", "state")  # of the exchange between processes


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
        one_of("layout", self.name, LAYOUTS)
        lengths = [whole("the length that a process holds", length, 0) for length in self.lengths]
        if not lengths:
            raise ArgumentError(
                "a layout without processes; give the length that each process holds"
            )

        object.__setattr__(self, "lengths", tuple(lengths))

    @classmethod
    def even(cls, name: str, length: int, processes: int) -> Layout:
        """A length divided as evenly as possible; the first processes hold one position more.

        >>> Layout.even("contiguous", 7, 3).lengths
        (3, 2, 2)
        """
        length = whole("length", length, 0)
        processes = whole("processes", processes, 1)

        each, longer = divmod(length, processes)
        lengths = [each + 1] * longer + [each] * (processes - longer)
        return cls(name, tuple(lengths))

    @property
    def length(self) -> int:
        """Positions of the whole sequence."""
        return sum(self.lengths)

    @cached_property
    def chunks(self) -> tuple[tuple[range, ...], ...]:
        """The positions of each process, chunk by chunk in the order in which it holds them."""
        if self.name == "contiguous":
            return tuple((chunk,) for chunk in _consecutive(self.lengths))

        larger_halves = [-(-length // 2) for length in self.lengths]
        smaller_halves = [length // 2 for length in self.lengths]
        chunks = _consecutive([*larger_halves, *reversed(smaller_halves)])
        from_the_back = reversed(chunks)
        return tuple(zip(chunks[: len(self.lengths)], from_the_back, strict=False))

    def positions(self, rank: int) -> torch.Tensor:
        """The positions that a process holds, int64 (held,)."""
        chunks = self.chunks[rank]
        return torch.cat([torch.arange(chunk.start, chunk.stop, device="cpu") for chunk in chunks])


def _consecutive(lengths: Sequence[int]) -> list[range]:
    """Ranges of these lengths, each of which begins where the one before it ends."""
    edges = accumulate(lengths, initial=0)
    return [range(start, stop) for start, stop in pairwise(edges)]


def shard(x: torch.Tensor, layout: Layout, rank: int, dim: int = 2) -> torch.Tensor:
    """One process's part of a whole tensor, along the axis of its positions.

    Args:
        x: the whole tensor, (batch, heads, length, size) for the default `dim`.
        layout: how the length is divided.
        rank: of the process.
        dim: the axis that is divided.

    Raises:
        ShapeError: the axis has another length than the layout.

    >>> shard(torch.arange(7), Layout("zigzag", (4, 3)), rank=0, dim=0).tolist()
    [0, 1, 5, 6]
    """
    if x.shape[dim] != layout.length:
        raise ShapeError(
            f"axis {dim} of {tuple(x.shape)} has {x.shape[dim]} positions; the layout divides {layout.length}"
        )

    chunks = layout.chunks[rank]
    return torch.cat([x.narrow(dim, chunk.start, len(chunk)) for chunk in chunks], dim)


def unshard(parts: Sequence[torch.Tensor], layout: Layout, dim: int = 2) -> torch.Tensor:
    """The whole tensor from the parts of all processes, in their order; the inverse of `shard`.

    Args:
        parts: those of all processes, in the order of their ranks.
        layout: how the length is divided.
        dim: the axis of positions.

    >>> layout = Layout("zigzag", (4, 3))
    >>> unshard([shard(torch.arange(7), layout, rank, dim=0) for rank in range(2)], layout, dim=0).tolist()
    [0, 1, 2, 3, 4, 5, 6]
    """
    positions = torch.cat([layout.positions(rank) for rank in range(len(layout.lengths))])
    order = positions.argsort().to(parts[0].device)
    return torch.cat(tuple(parts), dim).index_select(dim, order)


def check_division(layout: str, form: str) -> None:
    """Raise an ArgumentError unless these are the names of a layout and a form."""
    Layout(layout, (0,))
    one_of("form", form, FORMS)
