"""Attention through PyTorch's fused operations, block by block.

A block is some rows of queries and the run of keys they can reach. Where every pair of a block is allowed it needs no
mask, a causal square is left to the operation, and only the rest carries a mask as large as the block: memory grows
with the length, and a window costs the blocks it touches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import torch

from regard.core.backend import Cost, Offer, Operands, Refusal, Relative, reachable_keys
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result
from regard.kernels import flash
from regard.kernels.scores.plain import softmax_pieces
from regard.kernels.second_order import gradients
from regard.kernels.statistics.second_pass import tell, with_statistics
from regard.patterns import Full, Grid
from regard.patterns.survey import PARTS, Budget, SpentError, estimated, turning_rows

ROWS = 256  # of a block in a band: fewer waste calls, more waste pairs (measured on CPU)
MASK_LIMIT = 1 << 22  # numbers in the mask of one block


@dataclass(frozen=True)
class Block:
    """Rows and the keys they reach; `kind` is "all", "causal" or "masked".

    `times`: so many equal blocks, each moved by its own number of rows, keys and all.
    """

    rows: range
    keys: range
    kind: str
    times: int = 1

    @property
    def size(self) -> int:
        """Pairs of one block."""
        return len(self.rows) * len(self.keys)

    @property
    def pairs(self) -> int:
        """Pairs computed; above the diagonal the operation skips what it can in pieces of 512 keys."""
        if self.kind == "causal":
            return len(self.rows) * (len(self.keys) + min(len(self.keys), 512)) // 2
        return self.times * self.size

    def each(self) -> Iterator[Block]:
        """The blocks it stands for."""
        for by in range(0, self.times * len(self.rows), len(self.rows)):
            rows, keys = (
                range(self.rows.start + by, self.rows.stop + by),
                range(self.keys.start + by, self.keys.stop + by),
            )
            yield Block(rows, keys, self.kind)


class Fused:
    """Softmax over dot products with any pattern, scale and fixed bias."""

    name = "fused"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (reason := flash.reason_against(problem)) is not None:
            return Refusal(reason)
        try:
            blocks: list[Block] | None = lower(problem, Budget(problem.looks))
            work = _work(problem, blocks)
        except SpentError:
            blocks, work = None, _estimate(problem)
        if problem.strict and (reason := _reason_against_strict(problem, work.pairs)) is not None:
            return Refusal(reason)
        return Offer(with_statistics(_cost(problem, work), problem), partial(self.run, problem, blocks))

    def run(self, problem: Problem, blocks: list[Block] | None, operands: Operands) -> Result:
        blocks = lower(problem) if blocks is None else blocks
        dtype = operands.q.dtype
        if (computing := flash.computing(dtype, problem.device)) != dtype:
            operands = _as(operands, computing)
        output, log_sum_exp = _compute(problem, operands, blocks)
        output = output if output.dtype == dtype else output.to(dtype)
        if not problem.want:
            return Result(output)
        wanted: dict[str, Any] = {"log_sum_exp": log_sum_exp} if "log_sum_exp" in problem.want else {}
        wanted |= tell(problem, operands, log_sum_exp)
        return Result(output, **wanted)


@dataclass(frozen=True)
class _Work:
    """Over all blocks: pairs of all batch rows and heads, keys read by one head, calls, and the largest mask."""

    pairs: int
    keys: int
    calls: int
    masked: int
    estimated: bool = False


def _work(problem: Problem, blocks: list[Block]) -> _Work:
    return _Work(
        problem.batch * problem.heads * sum(block.pairs for block in blocks),
        sum(block.times * len(block.keys) for block in blocks),
        sum(block.times for block in blocks),
        max((_mask_size(problem, block) for block in blocks if block.kind == "masked"), default=0),
    )


def _estimate(problem: Problem) -> _Work:
    """The work of a problem with too many blocks, from some of them."""
    assert problem.q_start is not None
    largest = 0

    def look(at: int) -> tuple[int, ...]:
        """Some neighbouring rows, as their first block has it."""
        nonlocal largest
        rows = range(at * ROWS, min(problem.q_len, (at + 1) * ROWS))
        block = replace(_next_block(problem, rows.start), times=1)
        work = _work(problem, [block])
        largest = max(largest, work.masked)
        size = min(len(block.rows), len(rows))
        return tuple(number * len(rows) // size for number in (work.pairs, work.keys, PARTS * work.calls))

    turns = turning_rows(problem.pattern, problem.q_start, problem.q_len, problem.k_len)
    sums = estimated(-(-problem.q_len // ROWS), look, (row // ROWS for row in turns), cost=2)
    return _Work(sums[0], sums[1], sums[2] // PARTS, masked=largest, estimated=True)


def _cost(problem: Problem, work: _Work) -> Cost:
    width = 8 if problem.dtype == torch.float64 else 4
    places = problem.heads * (problem.q_len + work.keys)  # each query head reads its keys anew
    vectors = problem.batch * places * (problem.head_dim + problem.v_dim)
    return Cost(
        flops=2 * work.pairs * (problem.head_dim + problem.v_dim) * (3.5 if problem.needs_grad else 1),
        bytes=width * vectors,
        peak_bytes=2 * width * work.masked,
        pairs=work.pairs,
        calls=work.calls,
        estimated=work.estimated,
    )


def lower(problem: Problem, budget: Budget | None = None) -> list[Block]:
    """The blocks that cover every allowed pair of a problem, rows in order.

    Raises:
        SpentError: they are more than the budget.
    """
    keys = reachable_keys(problem)
    rows = range(problem.q_len)
    if problem.q_start is PER_ROW:
        size = _rows_of_mask(problem, keys)
        return [Block(rows[at : at + size], keys, "masked") for at in range(0, len(rows), size)]
    kind = _kind(problem, rows, keys)
    if kind != "masked":
        return [Block(rows, keys, kind)]
    blocks: list[Block] = []
    at = 0
    while at < problem.q_len:
        if budget is not None:
            budget.spend()
        blocks.append(_next_block(problem, at))
        at += blocks[-1].times * len(blocks[-1].rows)
    return blocks


def _next_block(problem: Problem, at: int) -> Block:
    """The block whose first row is `at`, as many times as it repeats further down."""
    assert problem.q_start is not None
    rows = range(at, min(problem.q_len, at + ROWS))
    first, last = problem.q_start + rows.start, problem.q_start + rows.stop - 1
    keys = problem.pattern.keys(first, last, problem.k_len)
    if len(rows) > (fitting := _rows_of_mask(problem, keys)):
        rows, last = rows[:fitting], first + fitting - 1
        keys = problem.pattern.keys(first, last, problem.k_len)
    keys = keys or reachable_keys(problem)[:0]
    block = Block(rows, keys, _kind(problem, rows, keys))
    band = problem.pattern.band()
    if band is None or band.left is None or band.right is None or not keys:
        return block
    if (keys.start, keys.stop) != (first - band.left, last + band.right + 1):
        return block  # cut short at an end
    end = problem.k_len if band.stop is None else min(band.stop, problem.k_len)
    return replace(block, times=1 + min((problem.q_len - rows.stop) // len(rows), (end - keys.stop) // len(rows)))


def _kind(problem: Problem, rows: range, keys: range) -> str:
    if problem.bias is not None:
        return "masked"
    assert problem.q_start is not None
    first, last = problem.q_start + rows.start, problem.q_start + rows.stop - 1
    if problem.pattern.sees_all(first, last, keys):
        return "all"
    band = problem.pattern.band()
    if band is not None and band.left is None and band.right is not None and len(rows) == len(keys):
        cut = (band.start or 0) > keys.start or (band.stop is not None and band.stop < keys.stop)
        if not cut and first + band.right == keys.start:
            return "causal"
    return "masked"


def _rows_of_mask(problem: Problem, keys: range) -> int:
    row = Block(range(1), keys, "masked")
    return max(16, MASK_LIMIT // max(1, _mask_size(problem, row)))


def _mask_size(problem: Problem, block: Block) -> int:
    copies = problem.batch if problem.q_start is PER_ROW or not problem.pattern.by_value else 1
    if problem.bias is not None:
        shape = (1, problem.heads) if problem.bias == RELATIVE else problem.bias
        copies = max(copies, shape[0]) * shape[1]
    return copies * block.size


def _reason_against_strict(problem: Problem, pairs: int) -> str | None:
    if (kept := problem.counted) is None:
        return f"strict=True, and how many of its {pairs} pairs {problem.pattern} keeps is not known without looking"
    if pairs <= 2 * kept.pairs:
        return None
    return f"strict=True, and it computes {pairs} pairs where {kept.pairs} are kept, more than twice as many"


def _as(operands: Operands, dtype: torch.dtype) -> Operands:
    return Operands(
        operands.q.to(dtype), operands.k.to(dtype), operands.v.to(dtype),
        operands.bias, operands.grid, operands.dropout_seed,
    )  # fmt: skip


def _mask(problem: Problem, operands: Operands, block: Block) -> torch.Tensor:
    """Scores to add in a block, (batch or 1, heads or 1, rows, keys): -inf where the pattern hides, else the bias."""
    grid = operands.grid.block(block.rows, block.keys)
    bias = operands.bias_block(grid)
    bias = None if bias is None else bias.detach().to(operands.q.dtype)
    if bias is not None and isinstance(problem.pattern, Full):
        return bias.expand(*bias.shape[:2], len(block.rows), len(block.keys))
    allowed = problem.pattern.evaluate(grid)
    allowed = allowed if allowed.dim() == 4 else allowed[None, None]
    if bias is not None:
        return torch.where(allowed, bias, -math.inf)
    return torch.zeros(allowed.shape, dtype=operands.q.dtype, device=operands.q.device).masked_fill(~allowed, -math.inf)


def _call(problem: Problem, operands: Operands, block: Block) -> flash.Call:
    mask = _mask(problem, operands, block) if block.kind == "masked" else None
    return flash.Call(mask, block.kind == "causal", problem.scale)


def _compute(problem: Problem, operands: Operands, blocks: list[Block]) -> tuple[torch.Tensor, torch.Tensor]:
    if len(blocks) == 1 and blocks[0].times == 1 and blocks[0].keys:
        return flash.attend(operands.q, operands.k, operands.v, _call(problem, operands, blocks[0]))
    return _Blocks.apply(operands.q, operands.k, operands.v, problem, operands, blocks)


class _Blocks(torch.autograd.Function):
    """One flash call a block; the backward adds what each block sends to the keys it shares with others."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        problem: Problem,
        operands: Operands,
        blocks: list[Block],
    ) -> Any:
        output = q.new_zeros(*q.shape[:3], v.shape[-1])
        wide = torch.promote_types(q.dtype, torch.float32)
        log_sum_exp = torch.full(q.shape[:3], -math.inf, dtype=wide, device=q.device)
        for block, rows, keys in _places(operands.grid, blocks):
            out, lse = flash.forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], _call(problem, operands, block))
            output[:, :, rows], log_sum_exp[:, :, rows] = out, lse
        bias = operands.bias.table if isinstance(operands.bias, Relative) else operands.bias
        ctx.save_for_backward(q, k, v, output, log_sum_exp, bias)  # an edited bias is noticed too
        ctx.lowered = problem, operands, blocks
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, output, log_sum_exp, bias = ctx.saved_tensors
        problem, operands, blocks = ctx.lowered

        def first(grads: Any) -> Any:
            dq, dk, dv = _backward(grads, q, k, v, output, log_sum_exp, problem, operands, blocks)
            return dv, dq, dk, None, None, None

        inputs = v, q, k, bias, None, None
        dv, dq, dk, *_ = gradients(first, partial(softmax_pieces, problem, operands), inputs, grads)
        return dq, dk, dv, None, None, None


def _backward(
    grads: Any,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    problem: Problem,
    operands: Operands,
    blocks: list[Block],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad = torch.zeros_like(output) if grads[0] is None else grads[0]
    dq, dk, dv = torch.zeros_like(q), *(torch.zeros_like(x, dtype=log_sum_exp.dtype) for x in (k, v))
    for block, rows, keys in _places(operands.grid, blocks):
        grad_lse = None if grads[1] is None else grads[1][:, :, rows]
        dq[:, :, rows], dk_here, dv_here = flash.backward(
            grad[:, :, rows], grad_lse, q[:, :, rows], k[:, :, keys], v[:, :, keys],
            output[:, :, rows], log_sum_exp[:, :, rows], _call(problem, operands, block),
        )  # fmt: skip
        dk[:, :, keys] += dk_here
        dv[:, :, keys] += dv_here
    return dq, dk.to(k.dtype), dv.to(v.dtype)


def _places(grid: Grid, blocks: list[Block]) -> Iterator[tuple[Block, slice, slice]]:
    """Each block that has pairs, with the slices of rows and of the operands' keys it covers."""
    here = grid.keys.start
    for block in chain.from_iterable(run.each() for run in blocks):
        if block.keys:
            rows = slice(block.rows.start, block.rows.stop)
            yield block, rows, slice(block.keys.start - here, block.keys.stop - here)
