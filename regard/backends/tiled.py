"""The tiled backend: strided and dilated patterns, which are dense among every `stride`-th position.

A pattern with lattices is divided into disjoint parts: what lies on the lattice of each stride, residue by residue, and
the rest. The positions of a residue are a smaller problem on strided views of the tensors, computed by the native
kernel, or by fused calls where it is missing. Outputs of the parts are merged by their log-sum-exp.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from regard.backends import flash
from regard.backends.composed import Calls, RowBlockCalls, compose
from regard.backends.far import any_far
from regard.backends.limits import Limited, on_one_start, on_structure, where
from regard.backends.native import kernel_of
from regard.backends.schedule import strictly
from regard.backends.scores.blocks import score_inputs
from regard.backends.scores.plain import softmax_pieces
from regard.backends.second_order import by_pieces, values_by_pieces
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import result_of, with_statistics
from regard.core.backend import Cost, Offer, Operands, Refusal, Relative, reachable_keys
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result
from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues, off_lattices, simplified

MERGED = 3  # times that a number of an output is moved when another part is merged into it


def _has_lattice(problem: Problem) -> str | None:
    """A limit: patterns with a lattice whose residues are alike but for a few."""
    grid = _grid_of(problem)
    for _, _, pattern in _patterns_of(problem):
        _, on_lattices = off_lattices(simplified(pattern))
        if on_lattices:
            alike = (alike_residues(there, stride, grid) for stride, there in on_lattices)
            return (
                None
                if all(isinstance(one, list) for one in alike)
                else f"{pattern} differs on every residue"
            )
    return f"{problem.pattern} is not dense among every n-th position; native and fused compute it"


@with_sinks
class Tiled(Limited):
    """Softmax over dot products with strided and dilated patterns, a scale and a fixed bias by distance."""

    name = "tiled"

    limits = (
        *flash.LIMITS,
        where(
            lambda one: one.bias not in (None, RELATIVE),
            "a bias tensor has no structure; fused adds it",
        ),
        on_one_start,
        on_structure,
        _has_lattice,
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        shares = [
            SharedPattern(problem, rows, heads, pattern)
            for rows, heads, pattern in _patterns_of(problem)
        ]
        cost = _cost(problem, shares)
        run = partial(_run, problem, LatticeCalls(problem, tuple(shares)))
        return strictly(problem, Offer(with_statistics(cost, problem), run))


def _grid_of(problem: Problem) -> Grid:
    assert problem.q_start is not PER_ROW
    grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start, problem.device)
    return grid.block(grid.rows, reachable_keys(problem))


def _patterns_of(problem: Problem) -> list[tuple[slice, tuple[int, ...] | None, Pattern]]:
    """The batch rows and heads of each different pattern; heads None for all."""
    rows = (
        [slice(row, row + 1) for row in range(problem.batch)]
        if problem.pattern.varies_by_row
        else [slice(None)]
    )
    found: list[tuple[slice, tuple[int, ...] | None, Pattern]] = []
    for part in rows:
        pattern = problem.pattern.for_row(part.start or 0)
        if not pattern.varies_by_head:
            found.append((part, None, pattern))
            continue
        heads: dict[Pattern, list[int]] = {}
        for head in range(problem.heads):
            heads.setdefault(pattern.for_head(head).canonical(), []).append(head)
        found += [(part, tuple(some), one) for one, some in heads.items()]
    return found


def _cost(problem: Problem, shares: list[SharedPattern]) -> Cost:
    width = 8 if problem.dtype == torch.float64 else 4
    flops = moved = 0.0
    pairs = calls = 0
    pace = 1.0
    for share in shares:
        for part in share.parts:
            cost, times = part.cost, part.times
            flops = flops + times * cost.flops
            moved = moved + times * cost.bytes
            pace = cost.pace
            pairs = pairs + times * cost.pairs
            calls = calls + times * cost.calls
            outputs = times * part.problem.batch * part.problem.heads * part.size * problem.v_dim
            moved += MERGED * width * outputs * (2 if problem.needs_grad else 1)
    held = problem.batch * problem.heads * problem.q_len * problem.v_dim
    peak = width * held * (3 if problem.needs_grad else 2)
    return Cost(flops, moved, peak_bytes=peak, pairs=pairs, calls=calls, pace=pace)


def _run(problem: Problem, parts: LatticeCalls, operands: Operands) -> Result:
    dtype, wide = operands.q.dtype, torch.promote_types(operands.q.dtype, torch.float32)
    if dtype != wide:  # each merge rounds
        operands = operands._replace(**{name: getattr(operands, name).to(wide) for name in "qkv"})
    output, log_sum_exp = compose(parts, operands, sums=bool(problem.want))
    output = output if output.dtype == dtype else output.to(dtype)
    return result_of(problem, operands, output, log_sum_exp) if problem.want else Result(output)


@dataclass(frozen=True, eq=False)
class LatticeCalls:
    """The parts of every share, as one attention."""

    problem: Problem
    shares: tuple[SharedPattern, ...]

    def forward(self, operands: Operands) -> flash.Computed:
        q, v = operands.q, operands.v
        if (whole := self._first_of_all) is not None:
            (here,) = whole.operands(operands)
            output, log_sum_exp, _ = whole.calls.forward(here)
        else:
            output = q.new_zeros(*q.shape[:3], v.shape[-1])
            log_sum_exp = q.new_full(q.shape[:3], -math.inf)
        for share in self.shares:
            here, (into, sums) = (
                share.operands(operands),
                (share.of_queries(x) for x in (output, log_sum_exp)),
            )
            for part in share.parts if whole is None else share.parts[1:]:
                for one, to, lse in zip(
                    part.operands(here), part.rows(into), part.rows(sums), strict=True
                ):
                    _merge(to, lse, *part.calls.forward(one)[:2])
            if share.heads is not None:
                (
                    output[share.rows, list(share.heads)],
                    log_sum_exp[share.rows, list(share.heads)],
                ) = into, sums
        if any_far(log_sum_exp):  # the parts are merged by it
            inputs = operands.v, *score_inputs(operands)
            values_by_pieces(softmax_pieces(self.problem, operands), inputs, (output, log_sum_exp))
        return flash.Computed(output, log_sum_exp)

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v, added up in the dtype of the log-sum-exp."""
        wide = saved.log_sum_exp.dtype
        inputs = (saved.q, saved.k, saved.v)
        if any_far(saved.log_sum_exp):
            given = saved.v, saved.q, saved.k, *score_inputs(operands)[2:]
            grads = saved.grad, saved.grad_log_sum_exp
            dv, dq, dk, *_ = by_pieces(softmax_pieces(self.problem, operands), given, grads)
            return dq, dk, dv
        if (whole := self._first_of_all) is not None:
            (here,), (own,) = whole.operands(operands), whole.saved(saved)
            grads = list(whole.calls.backward(here, own))
        else:
            grads = [torch.zeros_like(x, dtype=wide) for x in inputs]
        for share in self.shares:
            here = share.operands(operands)
            own = share.saved(saved)
            sums = (
                grads
                if share.heads is None
                else [torch.zeros_like(x, dtype=wide) for x in (own.q, own.k, own.v)]
            )
            sums = [x[share.rows] for x in sums] if share.heads is None else sums
            for part in share.parts if whole is None else share.parts[1:]:
                places = part.rows(sums[0]), part.keys(sums[1]), part.keys(sums[2])
                for one, back, *into in zip(
                    part.operands(here), part.saved(own), *places, strict=True
                ):
                    for to, more in zip(into, part.calls.backward(one, back), strict=True):
                        to.add_(more)
            if share.heads is not None:
                for grad, more, heads in zip(grads, sums, share.heads_of_inputs, strict=True):
                    grad[share.rows].index_add_(1, torch.tensor(heads, device=grad.device), more)
        return tuple(x.to(like.dtype) for x, like in zip(grads, inputs, strict=True))

    @cached_property
    def _first_of_all(self) -> LatticePart | None:
        """The part that has all batch rows, heads and queries, if there is one; other parts are added to it."""
        share = self.shares[0]
        return (
            share.parts[0]
            if share.is_whole and share.parts and share.parts[0].stride == 1
            else None
        )


def _merge(
    output: torch.Tensor, log_sum_exp: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor
) -> None:
    """Merge another part into output and log-sum-exp, in place: output += share · (more - output)."""
    total = torch.logaddexp(log_sum_exp, more_lse)
    share = (more_lse - total).exp().nan_to_num_(nan=0.0)  # -inf - -inf if both parts are empty
    output.lerp_(more, share[..., None].to(output.dtype))
    log_sum_exp.copy_(total)


class SharedPattern:
    """The batch rows and query heads (None for all) that share one pattern, and its parts."""

    def __init__(
        self, problem: Problem, rows: slice, heads: tuple[int, ...] | None, pattern: Pattern
    ) -> None:
        self.rows, self.heads = rows, heads
        batch = len(range(*rows.indices(problem.batch)))
        own = replace(problem, batch=batch, pattern=pattern, want=(), sink=None, sink_learns=False)
        if heads is not None:  # each reads a copy of its keys
            own = replace(own, heads=len(heads), kv_heads=len(heads))
            keys = [head // problem.group for head in heads]
            self.heads_of_inputs = list(heads), keys, keys  # of q, k and v
        self.parts = list(_parts_of(own, _grid_of(problem)))

    @property
    def is_whole(self) -> bool:
        return self.heads is None and self.rows == slice(None)

    def of_queries(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.rows] if self.heads is None else x[self.rows, self.heads_of_inputs[0]]

    def of_keys(self, x: torch.Tensor) -> torch.Tensor:
        """The batch rows and the key/value heads of these query heads, of (batch, kv_heads, ...)."""
        return x[self.rows] if self.heads is None else x[self.rows, self.heads_of_inputs[1]]

    def operands(self, operands: Operands) -> Operands:
        q = self.of_queries(operands.q)
        k = self.of_keys(operands.k)
        v = self.of_keys(operands.v)
        bias = operands.bias
        if isinstance(bias, Relative) and self.heads is not None and len(bias.table) > 1:
            bias = replace(bias, table=bias.table[list(self.heads)])
        return operands._replace(q=q, k=k, v=v, bias=bias)

    def saved(self, saved: flash.Saved) -> flash.Saved:
        lse = None if saved.grad_log_sum_exp is None else self.of_queries(saved.grad_log_sum_exp)
        rows = {
            name: self.of_queries(getattr(saved, name))
            for name in ("q", "output", "log_sum_exp", "grad")
        }
        return flash.Saved(
            **rows, k=self.of_keys(saved.k), v=self.of_keys(saved.v), grad_log_sum_exp=lse
        )


@dataclass(frozen=True)
class Residues:
    """Neighbouring residues with one pattern on their positions, counted by n; the rest of a pattern has a stride of 1.

    Residue r of `count` has row `first + r` and every `stride`-th row after it, and the keys from `first_key + r` on.
    Its first query has position `start` among its positions, its first key `start_key`.
    """

    pattern: Pattern
    stride: int
    count: int
    first: int
    size: int
    start: int
    first_key: int
    width: int
    start_key: int

    def goes_on(self, after: Residues) -> bool:
        """Whether a residue follows this one with an equal pattern and equal lengths."""
        there = replace(
            after,
            first=after.first - self.count,
            first_key=after.first_key - self.count,
            count=self.count,
        )
        return there == self


class LatticePart:
    """Residues as problems of their own: one call for each batch row, or for each residue if these are fewer."""

    def __init__(self, problem: Problem, own: Residues, grid: Grid) -> None:
        self.stride, self.size, self._own = own.stride, own.size, own
        self._by_row = problem.batch <= own.count  # a call has all residues of one batch row
        self.times = min(problem.batch, own.count)
        keys = range(own.start_key, own.start_key + own.width)
        k_len = (
            problem.k_len if own.stride == 1 else keys.stop
        )  # a draw of random blocks depends on it
        self._grid = Grid(own.size, k_len, own.start, range(own.size), keys, grid.device)
        wide = torch.promote_types(problem.dtype, torch.float32)
        self.problem = replace(
            problem,
            batch=max(problem.batch, own.count),
            q_len=own.size,
            k_len=k_len,
            q_start=own.start,
            pattern=own.pattern,
            dtype=wide,
            storage=wide,
        )
        self.calls: Calls
        if (kernel := kernel_of(self.problem)) is None:
            self.calls = blocks = RowBlockCalls(self.problem, keys)
            self.cost = blocks.cost
        else:
            self.calls, self.cost = kernel

    def rows(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The rows that each call computes, of (batch, heads, q_len, ...), as views."""
        return self._views(x, self._own.first, self._own.size)

    def keys(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The keys that each call reads, of (batch, kv_heads, keys, ...), as views."""
        return self._views(x, self._own.first_key, self._own.width)

    def operands(self, operands: Operands) -> Iterator[Operands]:
        bias = operands.bias
        if isinstance(bias, Relative):  # neighbours among these positions are `stride` apart
            lowest = -(-bias.lowest // self.stride)
            bias = Relative(
                bias.table[:, lowest * self.stride - bias.lowest :: self.stride], lowest
            )
        for q, k, v in zip(
            self.rows(operands.q), self.keys(operands.k), self.keys(operands.v), strict=True
        ):
            yield Operands(q, k, v, bias, self._grid, 0)

    def saved(self, saved: flash.Saved) -> Iterator[flash.Saved]:
        names = ("q", "output", "log_sum_exp", "grad")
        rows = [self.rows(getattr(saved, name)) for name in names]
        lse = saved.grad_log_sum_exp
        pulls = [None] * self.times if lse is None else self.rows(lse)
        for *own, k, v, pull in zip(
            *rows, self.keys(saved.k), self.keys(saved.v), pulls, strict=True
        ):
            yield flash.Saved(**dict(zip(names, own, strict=True)), k=k, v=v, grad_log_sum_exp=pull)

    def _views(self, x: torch.Tensor, first: int, size: int) -> list[torch.Tensor]:
        own, (row, head, step, *last) = self._own, x.stride()
        whole = x.as_strided(
            (x.shape[0], own.count, x.shape[1], size, *x.shape[3:]),
            (row, step, head, own.stride * step, *last),
            x.storage_offset() + first * step,
        )  # (batch, residues, heads, positions, ...)
        return [whole[at] if self._by_row else whole[:, at] for at in range(self.times)]


def _parts_of(problem: Problem, grid: Grid) -> Iterator[LatticePart]:
    """The disjoint parts of a pattern that is the same for all batch rows and heads."""
    assert problem.q_start is not PER_ROW
    keys = grid.keys
    rest, on_lattices = off_lattices(simplified(problem.pattern))
    if rest != NOTHING:
        rows = problem.q_len
        yield LatticePart(
            problem, Residues(rest, 1, 1, 0, rows, problem.q_start, 0, len(keys), keys.start), grid
        )
    for stride, pattern in on_lattices:
        before: Residues | None = None
        for rows in alike_residues(pattern, stride, grid):
            one = _residue(pattern, stride, grid, rows.start)
            if before is not None and one is not None and before.goes_on(one):
                before = replace(before, count=before.count + len(rows))
                continue
            if before is not None:
                yield LatticePart(problem, before, grid)
            before = None if one is None else replace(one, count=len(rows))
        if before is not None:
            yield LatticePart(problem, before, grid)


def _residue(pattern: Pattern, stride: int, grid: Grid, row: int) -> Residues | None:
    """The residue whose first row is `row`; None if none of its pairs is allowed."""
    assert isinstance(grid.q_start, int)
    residue = (grid.q_start + row) % stride
    there = pattern.on_lattice(stride, residue)
    assert there is not None
    there = there.canonical()
    key = (residue - grid.keys.start) % stride
    size, width = (
        -(-(length - first) // stride)
        for length, first in ((grid.q_len, row), (len(grid.keys), key))
    )
    start, start_key = (
        (grid.q_start + row - residue) // stride,
        (grid.keys.start + key - residue) // stride,
    )
    if there == NOTHING or width <= 0:
        return None
    whole = Residues(there, stride, 1, row, size, start, key, width, start_key)
    band = there.band()
    if band is None or band.right is None or band.left is not None:
        return whole
    # without a limit on the left: omit leading empty rows and trailing hidden keys
    empty = max(0, start_key - (start + band.right))
    visible = min(width, start + size + band.right - start_key)
    if empty >= size or visible <= 0:
        return None
    return replace(
        whole, first=row + empty * stride, size=size - empty, start=start + empty, width=visible
    )
