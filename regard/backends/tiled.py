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
from regard.backends.far import any_far, replace_far
from regard.backends.limits import Limited, on_one_start, on_structure, where
from regard.backends.native import kernel_of
from regard.backends.schedule import strictly
from regard.backends.scores.blocks import score_inputs
from regard.backends.scores.plain import softmax_pieces
from regard.backends.second_order import by_pieces, values_by_pieces
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import result_of, with_statistics
from regard.core.backend import Cost, Offer, Operands, Refusal, Relative
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result
from regard.patterns import Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.grid import Grid
from regard.patterns.lattices import (
    Residues,
    alike_residues,
    off_lattices,
    residue_of,
    simplified,
)

MERGED = 3  # times that a number of an output is moved when another part is merged into it


@dataclass(frozen=True, eq=False)
class DividedPattern:
    """The pattern of some batch rows and heads, divided into its parts on the lattices of some strides and the rest.

    heads: None for all.
    """

    batch_rows: slice
    heads: tuple[int, ...] | None
    pattern: Pattern
    rest: Pattern
    on_lattices: list[tuple[int, Pattern]]


def _has_lattice(problem: Problem) -> str | None:
    """A limit: patterns with a lattice whose residues are alike but for a few."""
    grid = _grid_of(problem)
    for divided in problem.once(_divide):
        if not divided.on_lattices:
            continue
        for stride, on_lattice in divided.on_lattices:
            if not isinstance(alike_residues(on_lattice, stride, grid), list):
                return f"{divided.pattern} differs on every residue"
        return None
    return f"{problem.pattern} is not dense among every n-th position; native and fused compute it"


@with_sinks
class Tiled(Limited):
    """Softmax over dot products with strided and dilated patterns, a scale and a fixed bias by distance."""

    name = "tiled"

    limits = (
        *flash.LIMITS,
        where(
            lambda problem: problem.bias not in (None, RELATIVE),
            "a bias tensor has no structure; fused adds it",
        ),
        on_one_start,
        on_structure,
        _has_lattice,
    )

    def offer(self, problem: Problem) -> Offer | Refusal:
        shares = [Share(problem, divided) for divided in problem.once(_divide)]
        cost = _cost(problem, shares)
        run = partial(_run, problem, LatticeCalls(problem, tuple(shares)))
        return strictly(problem, Offer(with_statistics(cost, problem), run))


def _grid_of(problem: Problem) -> Grid:
    assert problem.q_start is not PER_ROW
    grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start, problem.device)
    return grid.block(grid.rows, problem.reachable_keys)


def _divide(problem: Problem) -> list[DividedPattern]:
    """Each different pattern of a problem."""
    batch_rows = [slice(None)]
    if problem.pattern.varies_by_row:
        batch_rows = [slice(row, row + 1) for row in range(problem.batch)]
    divided: list[DividedPattern] = []
    for rows in batch_rows:
        pattern = problem.pattern.for_row(rows.start or 0)
        if not pattern.varies_by_head:
            divided.append(DividedPattern(rows, None, pattern, *off_lattices(simplified(pattern))))
            continue
        heads_of: dict[Pattern, list[int]] = {}
        for head in range(problem.heads):
            heads_of.setdefault(pattern.for_head(head).canonical(), []).append(head)
        for pattern_of_heads, heads in heads_of.items():
            parts = off_lattices(simplified(pattern_of_heads))
            divided.append(DividedPattern(rows, tuple(heads), pattern_of_heads, *parts))
    return divided


def _cost(problem: Problem, shares: list[Share]) -> Cost:
    width = problem.computed_bytes
    flops = moved = 0.0
    pairs = calls = 0
    pace = 1.0
    for share in shares:
        for part in share.parts:
            cost = part.cost
            times = part.call_count
            flops += times * cost.flops
            moved += times * cost.bytes
            pace = cost.pace
            pairs += times * cost.pairs
            calls += times * cost.calls
            outputs = times * part.problem.batch * part.problem.heads * part.size * problem.v_dim
            moved += MERGED * width * outputs * (2 if problem.needs_grad else 1)
    held = problem.batch * problem.heads * problem.q_len * problem.v_dim
    peak = width * held * (3 if problem.needs_grad else 2)
    return Cost(flops, moved, peak_bytes=peak, pairs=pairs, calls=calls, pace=pace)


def _run(problem: Problem, parts: LatticeCalls, operands: Operands) -> Result:
    dtype = operands.q.dtype
    wide = torch.promote_types(dtype, torch.float32)
    if dtype != wide:  # each merge rounds
        operands = operands._replace(**{name: getattr(operands, name).to(wide) for name in "qkv"})
    output, log_sum_exp = compose(parts, operands, sums=bool(problem.want))
    output = output if output.dtype == dtype else output.to(dtype)
    return result_of(problem, operands, output, log_sum_exp) if problem.want else Result(output)


@dataclass(frozen=True, eq=False)
class LatticeCalls:
    """The parts of every share, as one attention."""

    problem: Problem
    shares: tuple[Share, ...]

    def forward(self, operands: Operands) -> flash.OutputAndSums:
        q, v = operands.q, operands.v
        whole = self._first_of_all
        if whole is not None:
            (operands_of_whole,) = whole.operands(operands)
            output, log_sum_exp, _ = whole.calls.forward(operands_of_whole)
        else:
            output = q.new_zeros(*q.shape[:3], v.shape[-1])
            log_sum_exp = q.new_full(q.shape[:3], -math.inf)
        for share in self.shares:
            share_operands = share.operands(operands)
            share_output = share.of_queries(output)
            share_sums = share.of_queries(log_sum_exp)
            for part in self._parts_to_add(share):
                part.merge_into(share_output, share_sums, share_operands)
            if share.heads is not None:  # these are copies
                output[share.rows, list(share.heads)] = share_output
                log_sum_exp[share.rows, list(share.heads)] = share_sums
        if any_far(log_sum_exp):  # the parts are merged by it
            inputs = operands.v, *score_inputs(operands)
            exact = torch.empty_like(output), torch.empty_like(log_sum_exp)
            values_by_pieces(softmax_pieces(self.problem, operands), inputs, exact)
            output, log_sum_exp = replace_far(output, log_sum_exp, *exact)
        return flash.OutputAndSums(output, log_sum_exp)

    def backward(self, operands: Operands, saved: flash.BackwardInputs) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v, added up in the dtype of the log-sum-exp."""
        wide = saved.log_sum_exp.dtype
        inputs = (saved.q, saved.k, saved.v)
        if any_far(saved.log_sum_exp):
            of_pieces = saved.v, saved.q, saved.k, *score_inputs(operands)[2:]
            incoming = saved.grad, saved.grad_log_sum_exp
            dv, dq, dk, *_ = by_pieces(softmax_pieces(self.problem, operands), of_pieces, incoming)
            return dq, dk, dv

        whole = self._first_of_all
        if whole is not None:
            (operands_of_whole,) = whole.operands(operands)
            (saved_of_whole,) = whole.saved(saved)
            grads = list(whole.calls.backward(operands_of_whole, saved_of_whole))
        else:
            grads = [torch.zeros_like(x, dtype=wide) for x in inputs]
        for share in self.shares:
            share_operands = share.operands(operands)
            share_saved = share.saved(saved)
            if share.heads is None:
                sums = [x[share.rows] for x in grads]
            else:
                of_heads = (share_saved.q, share_saved.k, share_saved.v)
                sums = [torch.zeros_like(x, dtype=wide) for x in of_heads]
            for part in self._parts_to_add(share):
                part.add_gradients(sums, share_operands, share_saved)
            if share.heads is not None:
                for grad, added, heads in zip(grads, sums, share.heads_of_inputs, strict=True):
                    index = torch.tensor(heads, device=grad.device)
                    grad[share.rows].index_add_(1, index, added)
        return tuple(x.to(like.dtype) for x, like in zip(grads, inputs, strict=True))

    @cached_property
    def _first_of_all(self) -> LatticePart | None:
        """The part that has all batch rows, heads and queries, if there is one; other parts are added to it."""
        share = self.shares[0]
        if not share.is_whole or not share.parts:
            return None
        first = share.parts[0]
        return first if first.stride == 1 else None

    def _parts_to_add(self, share: Share) -> list[LatticePart]:
        """The parts of a share but the first of all, which is computed before them."""
        return share.parts if self._first_of_all is None else share.parts[1:]


def _merge(
    output: torch.Tensor, log_sum_exp: torch.Tensor, more: torch.Tensor, more_lse: torch.Tensor
) -> None:
    """Merge another part into output and log-sum-exp, in place: output += weight · (more - output)."""
    total = torch.logaddexp(log_sum_exp, more_lse)
    weight = (more_lse - total).exp().nan_to_num_(nan=0.0)  # -inf - -inf if both parts are empty
    output.lerp_(more, weight[..., None].to(output.dtype))
    log_sum_exp.copy_(total)


class Share:
    """The batch rows and query heads (None for all) that share one pattern, and its parts."""

    def __init__(self, problem: Problem, divided: DividedPattern) -> None:
        heads = divided.heads
        self.rows = divided.batch_rows
        self.heads = heads
        shared = replace(
            problem,
            batch=len(range(*self.rows.indices(problem.batch))),
            pattern=divided.pattern,
            want=(),
            sink=None,
            sink_learns=False,
        )
        if heads is not None:  # each reads a copy of its keys
            shared = replace(shared, heads=len(heads), kv_heads=len(heads))
            key_heads = [head // problem.group for head in heads]
            self.heads_of_inputs = list(heads), key_heads, key_heads  # of q, k and v
        self.parts = list(_parts_of(shared, divided, _grid_of(problem)))

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

    def saved(self, saved: flash.BackwardInputs) -> flash.BackwardInputs:
        grad_sums = saved.grad_log_sum_exp
        if grad_sums is not None:
            grad_sums = self.of_queries(grad_sums)
        return flash.BackwardInputs(
            q=self.of_queries(saved.q),
            k=self.of_keys(saved.k),
            v=self.of_keys(saved.v),
            output=self.of_queries(saved.output),
            log_sum_exp=self.of_queries(saved.log_sum_exp),
            grad=self.of_queries(saved.grad),
            grad_log_sum_exp=grad_sums,
        )


class LatticePart:
    """Residues as problems of their own: one call for each batch row, or for each residue if these are fewer."""

    def __init__(self, problem: Problem, residues: Residues, grid: Grid) -> None:
        self.stride = residues.stride
        self.size = residues.size
        self._residues = residues
        self._by_row = problem.batch <= residues.count  # a call has all residues of one batch row
        self.call_count = min(problem.batch, residues.count)
        keys = range(residues.start_key, residues.start_key + residues.width)
        # Random blocks are drawn for the k_len of the call, which the rest of the pattern keeps.
        k_len = problem.k_len if residues.stride == 1 else keys.stop
        rows = range(residues.size)
        self._grid = Grid(residues.size, k_len, residues.start, rows, keys, grid.device)
        wide = torch.promote_types(problem.dtype, torch.float32)
        self.problem = replace(
            problem,
            batch=max(problem.batch, residues.count),
            q_len=residues.size,
            k_len=k_len,
            q_start=residues.start,
            pattern=residues.pattern,
            dtype=wide,
            storage=wide,
        )
        self.calls: Calls
        kernel = kernel_of(self.problem)
        if kernel is None:
            blocks = RowBlockCalls(self.problem, keys)
            self.calls = blocks
            self.cost = blocks.cost
        else:
            self.calls, self.cost = kernel

    def merge_into(
        self, output: torch.Tensor, log_sum_exp: torch.Tensor, operands: Operands
    ) -> None:
        """Compute the calls of this part and merge them into what the other parts gave, in place."""
        calls = zip(self.operands(operands), self.rows(output), self.rows(log_sum_exp), strict=True)
        for of_call, rows, sums in calls:
            more, more_sums = self.calls.forward(of_call)[:2]
            _merge(rows, sums, more, more_sums)

    def add_gradients(
        self, sums: list[torch.Tensor], operands: Operands, saved: flash.BackwardInputs
    ) -> None:
        """Add the gradients of q, k and v from the calls of this part to `sums`, in place."""
        of_q, of_k, of_v = sums
        views = zip(self.rows(of_q), self.keys(of_k), self.keys(of_v), strict=True)
        calls = zip(self.operands(operands), self.saved(saved), views, strict=True)
        for of_call, saved_of_call, places in calls:
            grads = self.calls.backward(of_call, saved_of_call)
            for place, grad in zip(places, grads, strict=True):
                place.add_(grad)

    def rows(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The rows that each call computes, of (batch, heads, q_len, ...), as views."""
        return self._views(x, self._residues.first, self._residues.size)

    def keys(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The keys that each call reads, of (batch, kv_heads, keys, ...), as views."""
        return self._views(x, self._residues.first_key, self._residues.width)

    def operands(self, operands: Operands) -> Iterator[Operands]:
        bias = operands.bias
        if isinstance(bias, Relative):  # neighbours among these positions are `stride` apart
            lowest = -(-bias.lowest // self.stride)
            first = lowest * self.stride - bias.lowest
            bias = Relative(bias.table[:, first :: self.stride], lowest)
        queries = self.rows(operands.q)
        keys = self.keys(operands.k)
        values = self.keys(operands.v)
        for q, k, v in zip(queries, keys, values, strict=True):
            yield Operands(q, k, v, bias, self._grid, 0)

    def saved(self, saved: flash.BackwardInputs) -> Iterator[flash.BackwardInputs]:
        queries = self.rows(saved.q)
        keys = self.keys(saved.k)
        values = self.keys(saved.v)
        outputs = self.rows(saved.output)
        sums = self.rows(saved.log_sum_exp)
        grads = self.rows(saved.grad)
        grad_sums = saved.grad_log_sum_exp
        grads_of_sums = None if grad_sums is None else self.rows(grad_sums)
        for call in range(self.call_count):
            yield flash.BackwardInputs(
                q=queries[call],
                k=keys[call],
                v=values[call],
                output=outputs[call],
                log_sum_exp=sums[call],
                grad=grads[call],
                grad_log_sum_exp=None if grads_of_sums is None else grads_of_sums[call],
            )

    def _views(self, x: torch.Tensor, first: int, size: int) -> list[torch.Tensor]:
        batch, heads, *_ = x.shape
        row, head, step, *last = x.stride()
        residues = self._residues
        shape = (batch, residues.count, heads, size, *x.shape[3:])
        strides = (row, step, head, residues.stride * step, *last)
        # (batch, residues, heads, positions, ...)
        views = x.as_strided(shape, strides, x.storage_offset() + first * step)
        if self._by_row:
            return [views[batch_row] for batch_row in range(self.call_count)]
        return [views[:, residue] for residue in range(self.call_count)]


def _parts_of(problem: Problem, divided: DividedPattern, grid: Grid) -> Iterator[LatticePart]:
    """The disjoint parts of a pattern that is the same for all batch rows and heads of a problem."""
    assert problem.q_start is not PER_ROW
    keys = grid.keys
    if divided.rest != NOTHING:
        every_position = Residues(
            divided.rest,
            stride=1,
            count=1,
            first=0,
            size=problem.q_len,
            start=problem.q_start,
            first_key=0,
            width=len(keys),
            start_key=keys.start,
        )
        yield LatticePart(problem, every_position, grid)
    for stride, pattern in divided.on_lattices:
        residues: Residues | None = None
        for rows in alike_residues(pattern, stride, grid):
            following = _residue(pattern, stride, grid, rows.start)
            if residues is not None and following is not None and residues.goes_on(following):
                residues = replace(residues, count=residues.count + len(rows))
                continue
            if residues is not None:
                yield LatticePart(problem, residues, grid)
            residues = None if following is None else replace(following, count=len(rows))
        if residues is not None:
            yield LatticePart(problem, residues, grid)


def _residue(pattern: Pattern, stride: int, grid: Grid, row: int) -> Residues | None:
    """The residue whose first row is `row`; None if none of its pairs is allowed."""
    residue = residue_of(pattern, stride, grid, row)
    if residue.pattern == NOTHING or residue.width <= 0:
        return None
    band = residue.pattern.band()
    if band is None or band.right is None or band.left is not None:
        return residue
    # Without a limit on the left, leading empty rows and trailing hidden keys are omitted.
    empty = max(0, residue.start_key - (residue.start + band.right))
    visible = min(residue.width, residue.start + residue.size + band.right - residue.start_key)
    if empty >= residue.size or visible <= 0:
        return None
    return replace(
        residue,
        first=row + empty * stride,
        size=residue.size - empty,
        start=residue.start + empty,
        width=visible,
    )
