"""The positions of one call or of a block of it, and booleans by key for such a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.arguments import shown
from regard.errors import ArgumentError, ShapeError
from regard.patterns.band import Band
from regard.patterns.ranges import Ranges, covers, union
from regard.reprs import brief

CHUNK = 1 << 22  # pairs evaluated at once where a pattern must be asked pair by pair


def common_shape(*shapes: Sequence[int]) -> torch.Size:
    """The shape to which all of these shapes broadcast.

    torch.broadcast_shapes gives the same, but its first call imports sympy, which takes about as long as half of torch.

    >>> common_shape((2, 1, 4), (3, 1))
    torch.Size([2, 3, 4])
    """
    rank = max(map(len, shapes), default=0)
    common = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if common[axis] == 1:
                common[axis] = size
            elif size not in (1, common[axis]):
                listed = ", ".join(str(tuple(shape)) for shape in shapes)
                raise ShapeError(f"the shapes {listed} do not broadcast")
    return torch.Size(common)


@brief
@dataclass(frozen=True)
class Grid:
    """The query rows and key columns of a call, or of a block of it, with their positions.

    Query row i has position `q_start + i`, key column j position `j`; a block keeps the numbers of the whole call.

    Args:
        q_len: rows of the whole call.
        k_len: columns of the whole call.
        q_start: position of the first query of the whole call: a number, or one for each batch row (batch,).
        rows: the rows of this block.
        keys: the columns of this block.
        device: where position tensors are made.
    """

    q_len: int
    k_len: int
    q_start: int | torch.Tensor
    rows: range
    keys: range
    device: torch.device

    @classmethod
    def whole(
        cls,
        q_len: int,
        k_len: int,
        q_start: int | torch.Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> Grid:
        """Every row and column; without `q_start` the last query is aligned with the last key.

        >>> Grid.whole(2, 5).q_pos.flatten().tolist()
        [3, 4]
        """
        for name, size in (("q_len", q_len), ("k_len", k_len)):
            if not isinstance(size, int | torch.SymInt):
                raise ArgumentError(f"{name} is {shown(size)}; it needs a whole number, 0 or more")
        start = k_len - q_len if q_start is None else q_start
        return cls(q_len, k_len, start, range(q_len), range(k_len), checked_device(device))

    def block(self, rows: range, keys: range) -> Grid:
        """The block of this grid with these `rows` and `keys` of the whole call."""
        return Grid(self.q_len, self.k_len, self.q_start, rows, keys, self.device)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of its rows and of its columns, which may be symbols of a traced graph."""
        return self.rows.stop - self.rows.start, self.keys.stop - self.keys.start

    @property
    def per_batch(self) -> bool:
        """Whether each batch row has a first position of its own."""
        return isinstance(self.q_start, torch.Tensor)

    @property
    def q_pos(self) -> torch.Tensor:
        """Positions of the rows: (rows, 1), or (batch, 1, rows, 1) where batch rows start at different positions."""
        rows = torch.arange(self.rows.start, self.rows.stop, device=self.device)
        rows = rows[:, None]  # (rows, 1)
        if isinstance(self.q_start, torch.Tensor):
            return self.q_start.to(self.device).view(-1, 1, 1, 1) + rows  # (batch, 1, rows, 1)
        return rows + self.q_start

    @property
    def k_pos(self) -> torch.Tensor:
        """Positions of the columns: (keys,)."""
        return torch.arange(self.keys.start, self.keys.stop, device=self.device)


def checked_device(device: torch.device | str) -> torch.device:
    """The device, or the one of this name."""
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ArgumentError(
            f"device is {shown(device)}; it needs a device of torch, such as 'cpu' or 'cuda'"
        ) from None


def grids_of_rows(grid: Grid) -> list[Grid]:
    """The grid in blocks of rows, each small enough to be evaluated at once."""
    step = max(1, CHUNK // max(1, len(grid.keys)))
    rows = grid.rows
    first_rows = range(0, len(rows), step)
    return [grid.block(rows[first : first + step], grid.keys) for first in first_rows]


def visible_in_band(band: Band, grid: Grid) -> torch.Tensor | None:
    """The visible keys of a band, in the form of `marked`."""
    assert isinstance(grid.q_start, int)
    if not len(grid.rows):
        return marked((), grid)
    first = grid.q_start + grid.rows.start
    last = grid.q_start + grid.rows.stop - 1
    return marked(union([band.key_range(first, last, grid.k_len)]), grid)


def marked(visible: Ranges, grid: Grid) -> torch.Tensor | None:
    """The keys of a grid that lie in the ranges, (1, 1, keys); None if all of them do."""
    if covers(visible, grid.keys):
        return None
    marks = torch.zeros(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
    for keys in visible:
        start = max(0, keys.start - grid.keys.start)
        stop = max(0, keys.stop - grid.keys.start)
        marks[..., start:stop] = True
    return marks


def true_runs(marks: torch.Tensor) -> Ranges:
    """The ranges of positions that are True, of booleans (positions,).

    >>> true_runs(torch.tensor([True, False, True, True]))
    (range(0, 1), range(2, 4))
    """
    edges = torch.nn.functional.pad(marks.cpu().to(torch.int8), (1, 1)).diff()
    starts = (edges == 1).nonzero().flatten().tolist()
    stops = (edges == -1).nonzero().flatten().tolist()
    return tuple(map(range, starts, stops))


def four_axes(x: torch.Tensor) -> torch.Tensor:
    """The tensor with axes of one number before its own, such as (batch or 1, heads or 1, rows, keys) for pairs."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def side_by_side(
    visible: Sequence[torch.Tensor | None], grid: Grid, dim: int
) -> torch.Tensor | None:
    """Joins the `visible_keys` of each batch row (dim 0) or head (dim 1) into one tensor; None if all keys are visible.

    Args:
        visible: one for each batch row or head, (batch or 1, heads or 1, keys), None for all keys.
        grid: the grid whose keys they are.
        dim: the axis along which they are joined.
    """
    if all(keys is None for keys in visible):
        return None
    every = torch.ones(1, 1, len(grid.keys), dtype=torch.bool, device=grid.device)
    parts = [every if keys is None else keys for keys in visible]
    size_of_other = max(keys.shape[1 - dim] for keys in parts)
    shape = (1, size_of_other, -1) if dim == 0 else (size_of_other, 1, -1)
    return torch.cat([keys.expand(shape) for keys in parts], dim=dim)
