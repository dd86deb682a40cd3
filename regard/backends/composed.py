"""One attention made of several fused calls, differentiable as a whole.

`compose` is the autograd function of all backends that compute softmax by calls with gradients of their own: `Calls`
describes them. `RowBlockCalls` are the fused calls of any pattern, one for each row block of its schedule; the
fused backend computes whole problems by them, and the tiled backend the parts of a strided pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from regard.backends import flash
from regard.backends.schedule import Schedule, pairs_of_long_band
from regard.backends.scores.plain import softmax_pieces
from regard.backends.second_order import direct_apply, gradients
from regard.core.backend import Cost, Operands, Relative, reachable_keys
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.patterns import Full, Grid
from regard.patterns.grid import four_axes
from regard.patterns.row_blocks import EvaluatedBlocks, Kind, RowBlock, Run

KEPT = 1 << 18  # numbers in the masks that one plan keeps: 1 MiB in float32
# Rows of a row block, with the time of a pair forward and backward (measured on CPU): fewer rows compute fewer masked
# pairs, more rows need fewer calls.
ROWS = {64: (1.09, 1.56), 256: (1.0, 1.0)}
MASK_LIMIT = 1 << 22  # numbers in the mask of one row block
COPIED = (
    1 << 22
)  # numbers in the keys of row blocks that are computed together, whose gradients are held
GAPS = 2  # keys are gathered where the runs of a row block hold less than one of so many keys from first to last
PROCESSORS, PROCESSOR_ROWS = (
    100,
    64,
)  # about as many multiprocessors as a GPU has, and the rows that each computes
SKIPPED = 512  # keys: above the diagonal of a causal square the operation skips blocks of this size


class Calls(Protocol):
    """Fused calls that together compute a problem."""

    @property
    def problem(self) -> Problem: ...

    def forward(self, operands: Operands) -> flash.Computed: ...

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v, and of the bias or its table if calls of this kind give it one."""
        ...


def compose(calls: Calls, operands: Operands, sums: bool = True) -> tuple[torch.Tensor, Any]:
    """Output and, if `sums`, log-sum-exp of these calls, else None; gradients of both are supported."""
    bias = operands.bias.table if isinstance(operands.bias, Relative) else operands.bias
    apply = _Composed.apply if torch._C._are_functorch_transforms_active() else _apply
    result = apply(operands.q, operands.k, operands.v, bias, calls, operands, sums)
    return (
        result if sums else (result, None)
    )  # a second output costs a call of few tokens some microseconds


class _Composed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None,
        calls: Calls,
        operands: Operands,
        sums: bool,
    ) -> Any:
        output, log_sum_exp, row_sums = calls.forward(operands)
        ctx.save_for_backward(
            q, k, v, output, log_sum_exp, row_sums, bias
        )  # saved, so that autograd detects in-place changes of the bias too
        ctx.lowered = calls, operands
        ctx.set_materialize_grads(False)
        return (output, log_sum_exp) if sums else output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grads = (*grads, None)[:2]
        q, k, v, output, log_sum_exp, row_sums, bias = ctx.saved_tensors
        calls, operands = ctx.lowered

        def first(grads: Any) -> Any:
            grad = torch.zeros_like(output) if grads[0] is None else grads[0]
            saved = flash.Saved(q, k, v, output, log_sum_exp, grad, grads[1], row_sums)
            dq, dk, dv, *of_bias = calls.backward(operands, saved)
            return dv, dq, dk, of_bias[0] if of_bias else None, None, None

        inputs = v, q, k, bias, None, None
        dv, dq, dk, dbias, *_ = gradients(
            first, partial(softmax_pieces, calls.problem, operands), inputs, grads
        )
        return dq, dk, dv, dbias, None, None, None


_apply = direct_apply(_Composed)


class KeptMasks:
    """Masks and indices of a plan's calls, by name, device and dtype, at most `KEPT` numbers in all.

    They must not depend on the values of tensors.
    """

    def __init__(self) -> None:
        self._masks: dict[Any, torch.Tensor] = {}
        self._left = KEPT

    def get(self, name: Any, like: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The mask of this name with the device and dtype of `like`: from the cache, or made by `make`."""
        key = name, like.device, like.dtype
        if (kept := self._masks.get(key)) is not None:
            return kept
        with torch.inference_mode(False):  # a kept mask may be used later in a call with gradients
            mask = make()
        if mask.numel() <= self._left:
            self._left -= mask.numel()
            self._masks[key] = mask
        return mask


@dataclass(frozen=True)
class _One:
    """The rows and keys of one row block, in (batch, heads, q_len, ...) and (batch, kv_heads, keys, ...)."""

    at: slice
    over: slice | torch.Tensor

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.at]

    def put(self, x: torch.Tensor, values: torch.Tensor) -> None:
        x[:, :, self.at] = values

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.over]

    def add(self, x: torch.Tensor, values: torch.Tensor) -> None:
        x[:, :, self.over] += values


@dataclass(frozen=True)
class _Windows:
    """The rows and keys of equal consecutive row blocks, for one member of each group of heads.

    They are views (batch · kv_heads, times, rows or keys, ...) in place: the keys of a block begin `size` keys after
    those of the block before, and overlap them.
    """

    first: int
    size: int
    times: int
    first_key: int
    width: int
    member: int
    group: int

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return self._blocks(x[:, self.member :: self.group], self.first, self.size).flatten(0, 1)

    def put(self, x: torch.Tensor, values: torch.Tensor) -> None:
        own = self._blocks(x[:, self.member :: self.group], self.first, self.size)
        own.copy_(values.unflatten(0, own.shape[:2]))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return self._blocks(x, self.first_key, self.width).flatten(0, 1)

    def add(self, x: torch.Tensor, values: torch.Tensor) -> None:
        values = values.unflatten(0, x.shape[:2])
        for at in range(0, self.width, self.size):  # parts no wider than a step do not overlap
            width = min(self.size, self.width - at)
            self._blocks(x, self.first_key + at, width).add_(values[:, :, :, at : at + width])

    def _blocks(self, x: torch.Tensor, first: int, size: int) -> torch.Tensor:
        batch, heads, step, *last = x.stride()
        shape = (*x.shape[:2], self.times, size, *x.shape[3:])
        return x.as_strided(
            shape, (batch, heads, self.size * step, step, *last), x.storage_offset() + first * step
        )


@dataclass(frozen=True)
class _Work:
    """Work of all row blocks: pairs of all batch rows and heads, the time of a pair forward and backward, keys read by
    one head, keys gathered by it, calls, and numbers in the largest mask."""

    pairs: int
    pace: tuple[float, float]
    keys: int
    gathered: int
    calls: int
    masked: int
    estimated: bool = False


@dataclass(frozen=True, eq=False)
class RowBlockCalls:
    """The fused calls of a problem, one for each row block, over the keys between the block's first and its last.

    `keys` are those of the operands.
    """

    problem: Problem
    keys: range
    masks: KeptMasks = field(default_factory=KeptMasks)
    evaluated: dict[torch.device, EvaluatedBlocks] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem) -> RowBlockCalls:
        return cls(problem, reachable_keys(problem))

    @cached_property
    def blocks(self) -> list[RowBlock]:
        """The row blocks, of the size that costs least; a single one of all rows if that needs no mask."""
        problem = self.problem
        if problem.q_start is PER_ROW:
            return self._blocks(problem.q_len)
        whole = self._fitted(self._schedule(problem.q_len).whole)
        if not _masked(whole):
            return [whole]
        choices = {rows: self._blocks(rows) for rows in ROWS}
        cost = lambda rows: self._cost(self._work(choices[rows], rows)).work_on(problem.device)  # noqa: E731
        return choices[min(choices, key=cost)]

    @cached_property
    def cost(self) -> Cost:
        """What computing all of them costs; estimated for a long band that is only planned."""
        rows = max(ROWS)
        pairs = pairs_of_long_band(self.problem, rows, 1)
        if pairs is None:
            size = len(self.blocks[0].rows) if self.blocks else rows
            return self._cost(self._work(self.blocks, size))
        problem = self.problem
        units = problem.batch * problem.heads
        calls = -(-problem.q_len // rows)
        keys = pairs // rows
        masked = min(MASK_LIMIT, _mask_copies(problem) * rows * (keys // calls))
        return self._cost(_Work(units * pairs, ROWS[rows], keys, 0, calls, masked, estimated=True))

    def forward(self, operands: Operands) -> flash.Computed:
        q, k, v = operands.q, operands.k, operands.v
        output = q.new_zeros(*q.shape[:3], v.shape[-1])
        wide = torch.promote_types(q.dtype, torch.float32)
        log_sum_exp = torch.full(q.shape[:3], -math.inf, dtype=wide, device=q.device)
        for some, call in self._each(operands):
            there, sums = flash.forward(some.rows(q), some.keys(k), some.keys(v), call)
            some.put(output, there)
            some.put(log_sum_exp, sums)
        return flash.Computed(output, log_sum_exp)

    def backward(self, operands: Operands, saved: flash.Saved) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v; those of keys that several row blocks share are added."""
        q, k, v = saved.q, saved.k, saved.v
        dq, dk, dv = (
            torch.zeros_like(q),
            *(torch.zeros_like(x, dtype=saved.log_sum_exp.dtype) for x in (k, v)),
        )
        for some, call in self._each(operands):
            rows = some.rows
            keys = some.keys
            slope = saved.grad_log_sum_exp
            here = flash.Saved(
                rows(q),
                keys(k),
                keys(v),
                rows(saved.output),
                rows(saved.log_sum_exp),
                rows(saved.grad),
                None if slope is None else rows(slope),
            )
            dq_here, dk_here, dv_here = flash.backward(here, call)
            some.put(dq, dq_here)
            some.add(dk, dk_here)
            some.add(dv, dv_here)
        return dq, dk.to(k.dtype), dv.to(v.dtype)

    @cached_property
    def only(self) -> RowBlock | None:
        """The row block that one call without gathering computes, if there is only one."""
        blocks = self.blocks
        single = len(blocks) == 1 and blocks[0].times == 1 and len(blocks[0].runs) == 1
        return blocks[0] if single else None

    @cached_property
    def unmasked(self) -> flash.FusedCall | None:
        """The call of the only row block, if it needs no mask."""
        if self.only is None or _masked(self.only):
            return None
        causal = self.only.runs[0].kind == Kind.BOUNDED
        return flash.FusedCall(None, causal, self.problem.scale, sums=bool(self.problem.want))

    def call(self, operands: Operands, block: RowBlock) -> flash.FusedCall:
        kinds = {run.kind for run in block.runs}
        if len(block.runs) == 1 and Kind.BITS not in kinds:
            return flash.FusedCall(None, Kind.BOUNDED in kinds, self.problem.scale)
        if operands.bias is not None or operands.grid.per_batch:
            mask = self._mask(operands, block)
        else:
            mask = self.masks.get(
                block.rows.start, operands.q, partial(self._mask, operands, block)
            )
        return flash.FusedCall(mask, False, self.problem.scale)

    def _at_once(self, block: RowBlock) -> bool:
        """Whether equal row blocks are computed together: fewer calls, and the operands are read in place."""
        return (
            block.times > self.problem.group and len(block.runs) == 1 and self.problem.bias is None
        )

    def _schedule(self, rows: int) -> Schedule:
        most = MASK_LIMIT // max(1, _mask_copies(self.problem))
        return replace(Schedule.of_problem(self.problem, rows, most=most), keys=self.keys)

    def _blocks(self, rows: int) -> list[RowBlock]:
        return [self._fitted(block) for block in self._schedule(rows)]

    def _fitted(self, block: RowBlock) -> RowBlock:
        """The row block with one run from its first key to its last, BOUNDED only if it is a causal square; or, if most
        keys lie in gaps, with its runs as they are."""
        problem = self.problem
        keys = block.hull
        if not keys:
            return block
        kind = Kind.BITS
        if problem.bias is None and problem.q_start is not PER_ROW:
            first = problem.q_start + block.rows.start
            last = problem.q_start + block.rows.stop - 1
            if block.full == (keys,) or problem.pattern.sees_all(first, last, keys):
                kind = Kind.WHOLE
            elif block.times == 1 and self._is_causal_square(first, len(block.rows), keys):
                kind = Kind.BOUNDED
            elif GAPS * block.width < len(keys) and problem.pattern.structured:
                pattern = problem.pattern
                if not (pattern.varies_by_row or pattern.varies_by_head):
                    return block
        return replace(block, runs=(Run(keys, kind),))

    def _is_causal_square(self, first: int, rows: int, keys: range) -> bool:
        band = self.problem.pattern.band()
        if band is None or band.left is not None or band.right is None or rows != len(keys):
            return False
        cut = (band.start or 0) > keys.start or (band.stop is not None and band.stop < keys.stop)
        return not cut and first + band.right == keys.start

    def _work(self, blocks: list[RowBlock], rows: int) -> _Work:
        problem = self.problem
        copies = _mask_copies(problem)
        return _Work(
            problem.batch * problem.heads * sum(_pairs(block) for block in blocks),
            ROWS.get(rows, (1.0, 1.0)),
            sum(block.times * block.width for block in blocks),
            sum(block.times * block.width for block in blocks if len(block.runs) > 1),
            sum(problem.group if self._at_once(block) else block.times for block in blocks),
            max(
                (copies * len(block.rows) * block.width for block in blocks if _masked(block)),
                default=0,
            ),
        )

    def _cost(self, work: _Work) -> Cost:
        problem = self.problem
        flashes = not work.masked and flash.has_flash_attention(
            problem.dtype, max(problem.head_dim, problem.v_dim), problem.device
        )
        width = problem.dtype.itemsize if flashes else 8 if problem.dtype == torch.float64 else 4
        readers = (
            problem.kv_heads if flashes else problem.heads
        )  # otherwise each query head reads its keys again
        rows = problem.heads * problem.q_len + readers * (work.keys + 2 * work.gathered)
        vectors = problem.batch * rows * (problem.head_dim + problem.v_dim)
        if (
            problem.device == "cuda" and not flashes
        ):  # few rows occupy few multiprocessors, so reading takes longer
            vectors *= max(
                1,
                PROCESSORS // (problem.batch * problem.heads * -(-problem.q_len // PROCESSOR_ROWS)),
            )
        forward, backward = work.pace
        flops = 2 * work.pairs * (problem.head_dim + problem.v_dim)
        return Cost(
            flops=flops * (forward + (2.5 * backward if problem.needs_grad else 0)),
            bytes=width * vectors * (3 if problem.needs_grad else 1),
            peak_bytes=2 * width * work.masked,
            pairs=work.pairs,
            calls=work.calls,
            estimated=work.estimated,
        )

    def _each(self, operands: Operands) -> Iterator[tuple[_One | _Windows, flash.FusedCall]]:
        """The calls with their rows and keys; equal row blocks share a mask."""
        here = operands.grid.keys.start
        group = self.problem.group
        for block in self.blocks:
            if not block.runs:
                continue
            call = self.call(operands, block) if operands.bias is None else None
            if call is not None and self._at_once(block):
                most = max(
                    1,
                    COPIED
                    // (
                        operands.k.shape[0]
                        * operands.k[0].numel()
                        // operands.k.shape[2]
                        * block.width
                    ),
                )
                for at in range(0, block.times, most):
                    first = block.moved(at * len(block.rows))
                    windows = (
                        len(block.rows),
                        min(most, block.times - at),
                        first.hull.start - here,
                        block.width,
                    )
                    for member in range(group):
                        yield _Windows(first.rows.start, *windows, member, group), call
                continue
            for one in block.each() if block.times > 1 else (block,):
                keys: Any = slice(one.hull.start - here, one.hull.stop - here)
                if len(one.runs) > 1:
                    name = "keys", one.rows.start
                    keys = self.masks.get(
                        name, operands.q, partial(_index_of, one, here, operands.q.device)
                    )
                yield (
                    _One(slice(one.rows.start, one.rows.stop), keys),
                    call or self.call(operands, one),
                )

    def _mask(self, operands: Operands, block: RowBlock) -> torch.Tensor:
        """Scores to add in a row block, (batch or 1, heads or 1, rows, keys): -inf where a pair is masked, else the
        bias."""
        problem = self.problem
        q = operands.q
        if len(block.runs) > 1:
            mask = q.new_zeros(1, 1, len(block.rows), block.width)
            at = 0
            for run in block.runs:
                if run.kind != Kind.WHOLE:
                    allowed = self._answers(q.device).allowed(block.rows, run.keys)
                    mask[..., at : at + len(run.keys)].masked_fill_(~allowed, -math.inf)
                at += len(run.keys)
            return mask
        grid = operands.grid.block(block.rows, block.hull)
        bias = operands.bias_block(grid)
        bias = None if bias is None else bias.detach().to(q.dtype)
        if bias is not None and problem.pattern == Full():
            return bias.expand(*bias.shape[:2], len(block.rows), block.width)
        allowed = four_axes(problem.pattern.evaluate(grid))
        if bias is not None:
            return torch.where(allowed, bias, -math.inf)
        return torch.zeros(allowed.shape, dtype=q.dtype, device=q.device).masked_fill(
            ~allowed, -math.inf
        )

    def _answers(self, device: torch.device) -> EvaluatedBlocks:
        """Evaluates the pattern on blocks of pairs; equal blocks are evaluated once."""
        if device not in self.evaluated:
            problem = self.problem
            assert problem.q_start is not PER_ROW
            grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start, device)
            self.evaluated[device] = EvaluatedBlocks(problem.pattern, grid)
        return self.evaluated[device]


def _index_of(block: RowBlock, first: int, device: torch.device) -> torch.Tensor:
    parts = [torch.arange(run.keys.start, run.keys.stop, device=device) for run in block.runs]
    return torch.cat(parts).sub_(first)


def _masked(block: RowBlock) -> bool:
    return len(block.runs) > 1 or any(run.kind == Kind.BITS for run in block.runs)


def _pairs(block: RowBlock) -> int:
    if len(block.runs) == 1 and block.runs[0].kind == Kind.BOUNDED:
        return len(block.rows) * (block.width + min(block.width, SKIPPED)) // 2
    return block.pairs


def _mask_copies(problem: Problem) -> int:
    """Batch rows times heads with masks of their own."""
    copies = problem.batch if problem.q_start is PER_ROW or not problem.pattern.by_value else 1
    if problem.bias is None:
        return copies
    shape = (1, problem.heads) if problem.bias == RELATIVE else problem.bias
    return max(copies, shape[0]) * shape[1]
