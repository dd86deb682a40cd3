"""The fused backend: attention by PyTorch's fused operations, one call for each row block.

A row block is computed over one run of keys, from its first allowed key to its last. A WHOLE run needs no mask, a
BOUNDED one is a causal square, for which the operation has an option, and BITS need a mask as large as the block. So
memory grows linearly with the length, and the cost of a window with its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch

from regard.backends import flash
from regard.backends.composed import KeptMasks, compose
from regard.backends.schedule import Schedule, strict_refusal
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import result_of, with_statistics
from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result
from regard.patterns import Full
from regard.patterns.row_blocks import Kind, RowBlock, Run
from regard.patterns.survey import PARTS, Budget, SpentError
from regard.reprs import Described

ROWS = 256  # of a row block in a band; fewer cost more calls, more compute more masked pairs (measured on CPU)
MASK_LIMIT = 1 << 22  # numbers in the mask of one row block
PROCESSORS, PROCESSOR_ROWS = 100, 64  # about as many multiprocessors as a GPU has, and the rows that each computes
SKIPPED = 512  # keys: above the diagonal of a causal square the operation skips blocks of this size


@with_sinks
class Fused(Described):
    """Softmax over dot products with any pattern, scale and fixed bias."""

    name = "fused"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (reason := flash.reason_against(problem)) is not None:
            return Refusal(reason)
        try:
            blocks: list[RowBlock] | None = lower(problem, Budget(problem.looks))
            work = _work(problem, blocks)
        except SpentError:
            blocks, work = None, _estimate(problem)
        if (refusal := strict_refusal(problem, work.pairs)) is not None:
            return refusal
        return Offer(with_statistics(_cost(problem, work), problem), FusedCalls(problem, blocks).run)


@dataclass(frozen=True)
class _Work:
    """Work of all row blocks: pairs of all batch rows and heads, keys read by one head, calls, and the largest mask."""

    pairs: int
    keys: int
    calls: int
    masked: int
    estimated: bool = False


def _work(problem: Problem, blocks: list[RowBlock]) -> _Work:
    return _Work(
        problem.batch * problem.heads * sum(_pairs(block) for block in blocks),
        sum(block.times * block.width for block in blocks),
        sum(block.times for block in blocks),
        max((_mask_copies(problem) * len(block.rows) * block.width for block in blocks if _masked(block)), default=0),
    )


def _estimate(problem: Problem) -> _Work:
    """The work of a problem with many row blocks, estimated from a sample."""
    schedule, largest = _schedule(problem), 0

    def measure(block: RowBlock) -> tuple[int, ...]:
        """The work of a row block, scaled to all of its rows if it was shortened because of its mask."""
        nonlocal largest
        rows = min(schedule.rows, problem.q_len - block.rows.start)
        work = _work(problem, [one_run(problem, block)])
        largest = max(largest, work.masked)
        return tuple(number * rows // len(block.rows) for number in (work.pairs, work.keys, PARTS * work.calls))

    sums = schedule.estimated(measure, cost=2)
    return _Work(sums[0], sums[1], sums[2] // PARTS, masked=largest, estimated=True)


def _cost(problem: Problem, work: _Work) -> Cost:
    flashes = not work.masked and flash.has_flash_attention(
        problem.dtype, max(problem.head_dim, problem.v_dim), problem.device
    )
    width = problem.dtype.itemsize if flashes else 8 if problem.dtype == torch.float64 else 4
    readers = problem.kv_heads if flashes else problem.heads  # otherwise each query head reads its keys again
    rows = problem.heads * problem.q_len + readers * work.keys
    vectors = problem.batch * rows * (problem.head_dim + problem.v_dim)
    if problem.device == "cuda" and not flashes:  # few rows occupy few of the multiprocessors, so reading takes longer
        vectors *= max(1, PROCESSORS // (problem.batch * problem.heads * -(-problem.q_len // PROCESSOR_ROWS)))
    return Cost(
        flops=2 * work.pairs * (problem.head_dim + problem.v_dim) * (3.5 if problem.needs_grad else 1),
        bytes=width * vectors * (3 if problem.needs_grad else 1),
        peak_bytes=2 * width * work.masked,
        pairs=work.pairs,
        calls=work.calls,
        estimated=work.estimated,
    )


def lower(problem: Problem, budget: Budget | None = None) -> list[RowBlock]:
    """The row blocks of a problem with one run each; a single block of all rows if that needs no mask.

    Raises:
        SpentError: there are more than the budget allows.
    """
    schedule = _schedule(problem)
    if problem.q_start is not PER_ROW and not _masked(whole := one_run(problem, schedule.whole)):
        return [whole]
    return [one_run(problem, block) for block in schedule.blocks(budget)]


def one_run(problem: Problem, block: RowBlock) -> RowBlock:
    """The row block with one run from its first key to its last; BOUNDED only if it is a causal square."""
    keys = block.hull
    if not keys:
        return block
    kind = Kind.BITS
    if problem.bias is None and problem.q_start is not PER_ROW:
        first, last = problem.q_start + block.rows.start, problem.q_start + block.rows.stop - 1
        if block.full == (keys,) or problem.pattern.sees_all(first, last, keys):
            kind = Kind.WHOLE
        elif block.times == 1 and _is_causal_square(problem, first, len(block.rows), keys):
            kind = Kind.BOUNDED
    return replace(block, runs=(Run(keys, kind),))


def _is_causal_square(problem: Problem, first: int, rows: int, keys: range) -> bool:
    band = problem.pattern.band()
    if band is None or band.left is not None or band.right is None or rows != len(keys):
        return False
    cut = (band.start or 0) > keys.start or (band.stop is not None and band.stop < keys.stop)
    return not cut and first + band.right == keys.start


def _schedule(problem: Problem) -> Schedule:
    rows = problem.q_len if problem.q_start is PER_ROW else ROWS
    return Schedule.of_problem(problem, rows, most=MASK_LIMIT // max(1, _mask_copies(problem)))


def _masked(block: RowBlock) -> bool:
    return any(run.kind == Kind.BITS for run in block.runs)


def _pairs(block: RowBlock) -> int:
    """Pairs computed by one head."""
    if any(run.kind == Kind.BOUNDED for run in block.runs):
        return len(block.rows) * (block.width + min(block.width, SKIPPED)) // 2
    return block.pairs


def _mask_copies(problem: Problem) -> int:
    """Batch rows times heads with masks of their own."""
    copies = problem.batch if problem.q_start is PER_ROW or not problem.pattern.by_value else 1
    if problem.bias is None:
        return copies
    shape = (1, problem.heads) if problem.bias == RELATIVE else problem.bias
    return max(copies, shape[0]) * shape[1]


@dataclass(frozen=True, eq=False)
class FusedCalls:
    """One fused call for each row block. If `blocks` is None there are too many to keep; they are made when needed."""

    problem: Problem
    blocks: list[RowBlock] | None
    masks: KeptMasks = field(default_factory=KeptMasks)

    def run(self, operands: Operands) -> Result:
        """Output and statistics."""
        problem, dtype = self.problem, operands.q.dtype
        if dtype.itemsize == 2 and (computing := flash.computing(dtype, problem.device)) != dtype:
            operands = operands._replace(**{name: getattr(operands, name).to(computing) for name in "qkv"})
        if (block := self._only) is not None:
            k, v, keys, here = operands.k, operands.v, block.runs[0].keys, operands.grid.keys
            if keys != here:  # the only run may be shorter than the range of reachable keys
                own = slice(keys.start - here.start, keys.stop - here.start)
                k, v = k[:, :, own], v[:, :, own]
            output, log_sum_exp = flash.attend(operands.q, k, v, self._unmasked or self._call(operands, block))
        else:
            output, log_sum_exp = compose(self, operands, sums=bool(problem.want))
        output = output if output.dtype == dtype else output.to(dtype)
        return result_of(problem, operands, output, log_sum_exp) if problem.want else Result(output)

    @cached_property
    def _only(self) -> RowBlock | None:
        """The row block that one call computes, if there is only one."""
        blocks = self.blocks
        single = blocks is not None and len(blocks) == 1 and blocks[0].times == 1 and blocks[0].runs
        return blocks[0] if blocks and single else None

    @cached_property
    def _unmasked(self) -> flash.Call | None:
        """The call of the only row block, if it needs no mask."""
        if self._only is None or _masked(self._only):
            return None
        causal = self._only.runs[0].kind == Kind.BOUNDED
        return flash.Call(None, causal, self.problem.scale, sums=bool(self.problem.want))

    def forward(self, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = operands.q, operands.k, operands.v
        output = q.new_zeros(*q.shape[:3], v.shape[-1])
        wide = torch.promote_types(q.dtype, torch.float32)
        log_sum_exp = torch.full(q.shape[:3], -math.inf, dtype=wide, device=q.device)
        for rows, keys, call in self._each(operands):
            output[:, :, rows], log_sum_exp[:, :, rows] = flash.forward(
                q[:, :, rows], k[:, :, keys], v[:, :, keys], call
            )
        return output, log_sum_exp

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of q, k and v; those of keys that several row blocks share are added."""
        q, k, v = saved.q, saved.k, saved.v
        dq, dk, dv = torch.zeros_like(q), *(torch.zeros_like(x, dtype=saved.log_sum_exp.dtype) for x in (k, v))
        for rows, keys, call in self._each(operands):
            here = flash.Saved(
                q[:, :, rows], k[:, :, keys], v[:, :, keys], saved.output[:, :, rows], saved.log_sum_exp[:, :, rows],
                saved.grad[:, :, rows], None if saved.grad_log_sum_exp is None else saved.grad_log_sum_exp[:, :, rows],
            )  # fmt: skip
            dq[:, :, rows], dk_here, dv_here = flash.backward(here, call)
            dk[:, :, keys] += dk_here
            dv[:, :, keys] += dv_here
        return dq, dk.to(k.dtype), dv.to(v.dtype)

    def _each(self, operands: Operands) -> Iterator[tuple[slice, slice, flash.Call]]:
        """The calls with their rows and their keys among the operands'; equal row blocks share a mask."""
        here = operands.grid.keys.start
        for block in lower(self.problem) if self.blocks is None else self.blocks:
            if not block.runs:
                continue
            call = self._call(operands, block) if operands.bias is None else None
            for one in block.each() if block.times > 1 else (block,):
                rows, keys = slice(one.rows.start, one.rows.stop), one.runs[0].keys
                yield rows, slice(keys.start - here, keys.stop - here), call or self._call(operands, one)

    def _call(self, operands: Operands, block: RowBlock) -> flash.Call:
        run = block.runs[0]
        if run.kind != Kind.BITS:
            return flash.Call(None, run.kind == Kind.BOUNDED, self.problem.scale)
        if operands.bias is not None or operands.grid.per_batch or self.blocks is None:
            return flash.Call(self._mask(operands, block), False, self.problem.scale)
        mask = self.masks.get(block.rows.start, operands.q, partial(self._mask, operands, block))
        return flash.Call(mask, False, self.problem.scale)

    def _mask(self, operands: Operands, block: RowBlock) -> torch.Tensor:
        """Scores to add in a row block, (batch or 1, heads or 1, rows, keys): -inf where a pair is masked, else the
        bias."""
        problem = self.problem
        grid = operands.grid.block(block.rows, block.hull)
        bias = operands.bias_block(grid)
        bias = None if bias is None else bias.detach().to(operands.q.dtype)
        if bias is not None and problem.pattern == Full():
            return bias.expand(*bias.shape[:2], len(block.rows), block.width)
        allowed = problem.pattern.evaluate(grid)
        allowed = allowed if allowed.dim() == 4 else allowed[None, None]
        if bias is not None:
            return torch.where(allowed, bias, -math.inf)
        mask = torch.zeros(allowed.shape, dtype=operands.q.dtype, device=operands.q.device)
        return mask.masked_fill(~allowed, -math.inf)
