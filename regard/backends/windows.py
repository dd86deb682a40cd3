"""The windows backend: windows that divide an image or a video, each computed by itself.

The native kernel computes them in one call: it copies a window, whose positions do not follow each other, to the core's
cache. Where it is missing, windows become batch rows of fused calls without a mask: one call for windows in the middle,
and one for each size of those at the edges. Time grows with the kept pairs, and memory with the positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

import torch

from regard.backends import flash
from regard.backends.composed import Calls, KeptMasks, RowBlockCalls, compose
from regard.backends.limits import (
    Limited,
    no_weights,
    not_empty,
    on_dot_products,
    refusal_by,
    where,
)
from regard.backends.native import offer_of_windows
from regard.backends.schedule import strictly
from regard.backends.sinks import with_sinks
from regard.core.backend import Cost, Offer, Operands, Refusal, Relative
from regard.core.problem import RELATIVE, Problem
from regard.core.result import Result
from regard.patterns import Full
from regard.patterns.grid import Grid
from regard.patterns.image_windows import DividedGrid, EqualWindows

COPIES = 2  # times that a number of q, k, v or the output is moved when windows are copied


def _is_divided(problem: Problem) -> str | None:
    """A limit: the queries and the keys are the cells of a grid that is divided into windows."""
    grid = problem.pattern.divided_grid()
    if grid is None:
        return f"{problem.pattern} does not divide a grid into windows"
    cells = prod(grid.shape)
    if (problem.q_start, problem.q_len, problem.k_len) != (0, cells, cells):
        return f"the call has other positions than the {cells} cells of the grid {grid.shape}"
    return None


@with_sinks
class Windows(Limited):
    """Softmax over dot products in windows that divide a grid, with a scale, a softcap and a bias by distance."""

    name = "windows"
    limits = (
        on_dot_products,
        not_empty,
        no_weights,
        where(
            lambda problem: problem.bias not in (None, RELATIVE),
            "a bias tensor has no structure; native and fused add it",
        ),
        where("dropout", "it drops no weights"),
        _is_divided,
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        grid = problem.pattern.divided_grid()
        positions = [_positions(grid, groups) for groups in product(*grid.axes)]
        offer = offer_of_windows(problem, positions)
        if offer is not None:
            return strictly(problem, offer)
        parts = _parts_of(problem)
        if isinstance(parts, Refusal):
            return parts
        run = partial(_run, problem, parts)
        return strictly(problem, Offer(_cost(problem, parts), run))


class WindowsOfOneSize:
    """The windows of a grid that have one size, as a call whose batch rows are windows."""

    def __init__(
        self, problem: Problem, grid: DividedGrid, groups: tuple[EqualWindows, ...]
    ) -> None:
        self.shape = grid.shape
        self.groups = groups
        self.counts = [group.count for group in groups]
        self.sizes = [group.size for group in groups]
        cells = prod(self.sizes)
        self.windows = prod(self.counts)
        bias = None
        if problem.bias is not None:
            bias = (1, problem.heads, cells, cells)
        self.problem = replace(
            problem,
            batch=problem.batch * self.windows,
            q_len=cells,
            k_len=cells,
            pattern=Full(),
            bias=bias,
            want=(),
        )
        self.grid = Grid.whole(cells, cells, 0, problem.device)
        self._masks = KeptMasks()

    def take(self, x: torch.Tensor) -> torch.Tensor:
        """The windows (batch · windows, heads, cells, dim) of a part of the grid, (batch, heads, *axes, dim)."""
        batch, heads, *_, dim = x.shape
        by_head = x.stride(1) > x.stride(-2)
        windows = x
        for axis, group in enumerate(self.groups):
            windows = windows.unflatten(2 + 2 * axis, (group.count, group.size))
        axes = len(self.groups)
        counts = range(2, 2 + 2 * axes, 2)
        cells = range(3, 3 + 2 * axes, 2)
        if by_head:
            ordered = windows.permute(0, *counts, 1, *cells, -1)
            return ordered.reshape(batch * self.windows, heads, -1, dim)
        # In the order of memory (batch, positions, heads, dim), so that whole rows of heads are copied.
        ordered = windows.permute(0, *counts, *cells, 1, -1)
        return ordered.reshape(batch * self.windows, -1, heads, dim).transpose(1, 2)

    def on_grid(self, part: torch.Tensor, batch: int) -> torch.Tensor:
        """The part of the grid, (batch, *axes, heads, ...), of windows (batch · windows, heads, cells, ...)."""
        windows = part.transpose(1, 2).unflatten(1, self.sizes).unflatten(0, (batch, *self.counts))
        axes = len(self.groups)
        order = [0]
        for axis in range(axes):
            order += [1 + axis, 1 + axes + axis]
        ordered = windows.permute(*order, *range(1 + 2 * axes, windows.dim()))
        sides = [group.count * group.size for group in self.groups]
        return ordered.reshape(batch, *sides, *windows.shape[1 + 2 * axes :])

    def bias_of(self, bias: Relative | None) -> torch.Tensor | None:
        """The numbers of a bias by distance for the pairs of a window, (1, heads or 1, cells, cells)."""
        if bias is None:
            return None
        table = bias.table
        like = torch.empty(0, dtype=torch.int64, device=table.device)
        distances = self._masks.get("distances", like, partial(self._distances, table.device))
        return table[:, distances - bias.lowest][None]

    def _distances(self, device: torch.device) -> torch.Tensor:
        """k_pos - q_pos of the pairs of a window, (cells, cells)."""
        positions = torch.zeros(1, dtype=torch.int64, device=device)
        for size, cells in zip(self.shape, self.sizes, strict=True):
            steps = torch.arange(cells, device=device)
            positions = (positions[:, None] * size + steps).flatten()
        return positions - positions[:, None]


@dataclass(frozen=True, eq=False)
class WindowPart:
    """The windows of one size, and what computes them."""

    windows: WindowsOfOneSize
    calls: Calls
    cost: Cost


def _positions(grid: DividedGrid, groups: tuple[EqualWindows, ...]) -> torch.Tensor:
    """The positions of the windows of one size, (windows, cells)."""
    positions = torch.zeros(1, 1, dtype=torch.int64, device="cpu")
    for size, group in zip(grid.shape, groups, strict=True):
        steps = torch.arange(group.count * group.size, device="cpu") + group.first
        of_axis = steps.view(group.count, group.size)
        joined = positions[:, None, :, None] * size + of_axis[:, None]
        positions = joined.flatten(2).flatten(0, 1)
    return positions


def _parts_of(problem: Problem) -> list[WindowPart] | Refusal:
    """The windows of each size with what computes them, or the reason why fused calls cannot."""
    grid = problem.pattern.divided_grid()
    wide = torch.promote_types(problem.dtype, torch.float32)
    parts = []
    for groups in product(*grid.axes):
        windows = WindowsOfOneSize(replace(problem, dtype=wide, storage=wide), grid, groups)
        refusal = refusal_by(flash.LIMITS, windows.problem)
        if refusal is not None:
            return refusal
        calls = RowBlockCalls.of(windows.problem)
        parts.append(WindowPart(windows, calls, calls.cost))
    return parts


def _cost(problem: Problem, parts: list[WindowPart]) -> Cost:
    numbers = problem.nbytes
    moved = COPIES * numbers * (3 if problem.needs_grad else 1)
    flops = sum(part.cost.flops for part in parts)
    moved += sum(part.cost.bytes for part in parts)
    pairs = sum(part.cost.pairs for part in parts)
    calls = sum(part.cost.calls for part in parts)
    pace = parts[0].cost.pace
    peak = numbers + max(part.cost.peak_bytes for part in parts)
    return Cost(flops, moved, peak_bytes=peak, pairs=pairs, calls=calls, pace=pace)


def _run(problem: Problem, parts: list[WindowPart], operands: Operands) -> Result:
    grid = problem.pattern.divided_grid()
    wants_sums = bool(problem.want)
    outputs = []
    sums_of_parts = []
    tensors = [_split(x, grid) for x in (operands.q, operands.k, operands.v)]
    for part, q, k, v in zip(parts, *tensors, strict=True):
        windows = part.windows
        dtype = windows.problem.dtype
        of_windows = Operands(
            windows.take(q).to(dtype),
            windows.take(k).to(dtype),
            windows.take(v).to(dtype),
            windows.bias_of(operands.bias),
            windows.grid,
            0,
        )
        output, log_sum_exp = compose(part.calls, of_windows, sums=wants_sums)
        outputs.append(windows.on_grid(output.to(problem.dtype), problem.batch))
        if wants_sums:
            sums_of_parts.append(windows.on_grid(log_sum_exp, problem.batch))
    output = _joined(outputs, grid)
    if not wants_sums:
        return Result(output)
    return Result(output, log_sum_exp=_joined(sums_of_parts, grid))


def _split(x: torch.Tensor, grid: DividedGrid) -> list[torch.Tensor]:
    """The parts of a grid with windows of equal size, (batch, heads, *axes, dim), of (batch, heads, positions, dim).

    They are split, and not sliced, since the gradient of a split joins its parts in one copy.
    """
    pieces = [x.unflatten(2, grid.shape)]
    for axis, groups in enumerate(grid.axes):
        sides = [group.count * group.size for group in groups]
        if len(sides) > 1:
            pieces = [part for piece in pieces for part in piece.split(sides, 2 + axis)]
    return pieces


def _joined(pieces: list[torch.Tensor], grid: DividedGrid) -> torch.Tensor:
    """(batch, heads, positions, ...) of the parts of a grid, (batch, *axes, heads, ...)."""
    for axis in reversed(range(len(grid.axes))):
        count = len(grid.axes[axis])
        if count > 1:
            starts = range(0, len(pieces), count)
            pieces = [torch.cat(pieces[first : first + count], 1 + axis) for first in starts]
    (whole,) = pieces
    return whole.flatten(1, len(grid.axes)).transpose(1, 2)
