"""One attention made of several fused calls, differentiable as a whole.

`compose` is the autograd function of all backends that compute softmax by calls with gradients of their own: `Calls`
describes them. `RowBlockCalls` are the fused calls of any pattern, one for each row block of its schedule; the
fused backend computes whole problems by them, and the tiled backend the parts of a strided pattern.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch

from regard.backends import flash
from regard.backends.schedule import SHARED_ROWS, Schedule, pairs_of_long_band, shared_row_blocks
from regard.backends.scores.plain import softmax_pieces
from regard.backends.second_order import Piece, direct_apply, gradients
from regard.core import costs
from regard.core.backend import Cost, Operands, Relative
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.patterns import Full
from regard.patterns.grid import Grid, four_axes
from regard.patterns.row_blocks import EvaluatedBlocks, RowBlock, Run, RunKind

KEPT = 1 << 18  # numbers in the masks that one plan keeps: 1 MiB in float32
# The sizes of row blocks among which a problem chooses, and their pace in both passes.
ROWS = costs.ROW_BLOCK_PACE
MASK_LIMIT = 1 << 22  # numbers in the mask of one row block
# Numbers in the keys of row blocks that are computed together, whose gradients are held.
COPIED = 1 << 22
GAPS = 2  # keys are gathered where the runs of a row block hold less than one of so many keys from first to last
PROCESSORS = 100  # about as many multiprocessors as a GPU has
PROCESSOR_ROWS = 64  # rows that each of them computes
SKIPPED = 512  # keys: above the diagonal of a causal square the operation skips blocks of this size


class Calls(Protocol):
    """Fused calls that together compute a problem."""

    @property
    def problem(self) -> Problem: ...

    def forward(self, operands: Operands) -> flash.OutputAndSums: ...

    def backward(self, operands: Operands, saved: flash.BackwardInputs) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v, and of the bias or its table if calls of this kind give it one."""
        ...


def compose(calls: Calls, operands: Operands, sums: bool = True) -> tuple[torch.Tensor, Any]:
    """Output and, if `sums`, log-sum-exp of these calls, else None; gradients of both are supported."""
    # Written out, and not a call of `numbers_of`, since every call with gradients passes here.
    bias = operands.bias.table if isinstance(operands.bias, Relative) else operands.bias
    apply = _Composed.apply if torch._C._are_functorch_transforms_active() else _apply
    result = apply(operands.q, operands.k, operands.v, bias, calls, operands, sums)
    # A second output costs a call of few tokens some microseconds.
    return result if sums else (result, None)


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
        # The bias too, so that autograd detects changes of it in place.
        ctx.save_for_backward(q, k, v, output, log_sum_exp, row_sums, bias)
        ctx.lowered = calls, operands
        ctx.set_materialize_grads(False)
        return (output, log_sum_exp) if sums else output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grads = (*grads, None)[:2]  # a call without log-sum-exp has one output, so one gradient
        q, k, v, output, log_sum_exp, row_sums, bias = ctx.saved_tensors
        calls, operands = ctx.lowered

        def first_order(grads: Any) -> Any:
            grad, grad_log_sum_exp = grads
            if grad is None:
                grad = torch.zeros_like(output)
            saved = flash.BackwardInputs(
                q, k, v, output, log_sum_exp, grad, grad_log_sum_exp, row_sums
            )
            dq, dk, dv, *of_bias = calls.backward(operands, saved)
            dbias = of_bias[0] if of_bias else None
            return dv, dq, dk, dbias, None, None  # in the order of `softmax_pieces`

        def pieces() -> Iterable[Piece]:  # the problem of a mask that is data is found only here
            return softmax_pieces(calls.problem, operands)

        inputs = v, q, k, bias, None, None
        dv, dq, dk, dbias, *_ = gradients(first_order, pieces, inputs, grads)
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
        mask = self._masks.get(key)
        if mask is not None:
            return mask
        with torch.inference_mode(False):  # a kept mask may be used later in a call with gradients
            mask = make()
        if mask.numel() <= self._left:
            self._left -= mask.numel()
            self._masks[key] = mask
        return mask


@dataclass(frozen=True)
class _SingleBlock:
    """The rows and keys of one row block, in (batch, heads, q_len, ...) and (batch, kv_heads, keys, ...)."""

    row_index: slice
    key_index: slice | torch.Tensor

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.row_index]

    def write_rows(self, x: torch.Tensor, values: torch.Tensor) -> None:
        x[:, :, self.row_index] = values

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, self.key_index]

    def add_to_keys(self, x: torch.Tensor, values: torch.Tensor) -> None:
        x[:, :, self.key_index] += values


@dataclass(frozen=True)
class _EqualBlocks:
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

    def write_rows(self, x: torch.Tensor, values: torch.Tensor) -> None:
        blocks = self._blocks(x[:, self.member :: self.group], self.first, self.size)
        blocks.copy_(values.unflatten(0, blocks.shape[:2]))

    def keys(self, x: torch.Tensor) -> torch.Tensor:
        return self._blocks(x, self.first_key, self.width).flatten(0, 1)

    def add_to_keys(self, x: torch.Tensor, values: torch.Tensor) -> None:
        values = values.unflatten(0, x.shape[:2])
        for start in range(0, self.width, self.size):  # parts no wider than a step do not overlap
            width = min(self.size, self.width - start)
            blocks = self._blocks(x, self.first_key + start, width)
            blocks.add_(values[:, :, :, start : start + width])

    def _blocks(self, x: torch.Tensor, first: int, size: int) -> torch.Tensor:
        batch, heads, step, *last = x.stride()
        shape = (*x.shape[:2], self.times, size, *x.shape[3:])
        strides = (batch, heads, self.size * step, step, *last)
        return x.as_strided(shape, strides, x.storage_offset() + first * step)


@dataclass(frozen=True)
class _Work:
    """Work of all row blocks: pairs of all batch rows and heads, keys read by one head, keys gathered by it, calls, and
    numbers in the largest mask."""

    pairs: int
    keys: int
    gathered: int
    calls: int
    masked: int
    estimated: bool = False


@dataclass(frozen=True)
class _Division:
    """A problem divided into row blocks, and the work of all of them."""

    blocks: list[RowBlock]
    work: _Work


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
        return cls(problem, problem.reachable_keys)

    @property
    def blocks(self) -> list[RowBlock]:
        return self._division.blocks

    @cached_property
    def _division(self) -> _Division:
        """The row blocks, of the size that costs least; a single one of all rows if that needs no mask."""
        problem = self.problem
        if problem.q_start is PER_ROW:
            return self._with_work(self._blocks(problem.q_len))
        whole = self._fitted(self._schedule(problem.q_len).whole)
        if not _masked(whole):
            return self._with_work([whole])
        cheapest = None
        least = math.inf
        for rows in ROWS:
            division = self._with_work(self._blocks(rows))
            cost = self._cost(division.work, rows).work_on(problem.device)
            if cheapest is None or cost < least:
                cheapest = division
                least = cost
        assert cheapest is not None
        return cheapest

    @cached_property
    def cost(self) -> Cost:
        """What computing all of them costs; estimated for a long band that is only planned."""
        rows = max(ROWS)
        pairs = pairs_of_long_band(self.problem, rows, 1)
        if pairs is None:
            size = len(self.blocks[0].rows) if self.blocks else rows
            return self._cost(self._division.work, size)
        problem = self.problem
        units = problem.batch * problem.heads
        calls = -(-problem.q_len // rows)
        keys = pairs // rows
        masked = min(MASK_LIMIT, _mask_copies(problem) * rows * (keys // calls))
        return self._cost(_Work(units * pairs, keys, 0, calls, masked, estimated=True), rows)

    def forward(self, operands: Operands) -> flash.OutputAndSums:
        q, k, v = operands.q, operands.k, operands.v
        output = q.new_zeros(*q.shape[:3], v.shape[-1])
        wide = torch.promote_types(q.dtype, torch.float32)
        log_sum_exp = torch.full(q.shape[:3], -math.inf, dtype=wide, device=q.device)
        for blocks, call in self._calls(operands):
            result = flash.forward(blocks.rows(q), blocks.keys(k), blocks.keys(v), call)
            output_of_blocks, sums_of_blocks = result
            blocks.write_rows(output, output_of_blocks)
            blocks.write_rows(log_sum_exp, sums_of_blocks)
        return flash.OutputAndSums(output, log_sum_exp)

    def backward(self, operands: Operands, saved: flash.BackwardInputs) -> tuple[torch.Tensor, ...]:
        """The gradients of q, k and v; those of keys that several row blocks share are added."""
        q, k, v = saved.q, saved.k, saved.v
        wide = saved.log_sum_exp.dtype
        dq = torch.zeros_like(q)
        dk = torch.zeros_like(k, dtype=wide)
        dv = torch.zeros_like(v, dtype=wide)
        grad_log_sum_exp = saved.grad_log_sum_exp
        for blocks, call in self._calls(operands):
            part = flash.BackwardInputs(
                blocks.rows(q),
                blocks.keys(k),
                blocks.keys(v),
                blocks.rows(saved.output),
                blocks.rows(saved.log_sum_exp),
                blocks.rows(saved.grad),
                None if grad_log_sum_exp is None else blocks.rows(grad_log_sum_exp),
            )
            of_q, of_k, of_v = flash.backward(part, call)
            blocks.write_rows(dq, of_q)
            blocks.add_to_keys(dk, of_k)
            blocks.add_to_keys(dv, of_v)
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
        causal = self.only.runs[0].kind == RunKind.BOUNDED
        return flash.FusedCall(None, causal, self.problem.scale, sums=bool(self.problem.want))

    def call(self, operands: Operands, block: RowBlock) -> flash.FusedCall:
        if not _masked(block):
            causal = block.runs[0].kind == RunKind.BOUNDED
            return flash.FusedCall(None, causal, self.problem.scale)
        if operands.bias is not None or operands.grid.per_batch:
            mask = self._mask(operands, block)
        else:
            make = partial(self._mask, operands, block)
            mask = self.masks.get(block.rows.start, operands.q, make)
        return flash.FusedCall(mask, False, self.problem.scale)

    def _at_once(self, block: RowBlock) -> bool:
        """Whether equal row blocks are computed together: fewer calls, and the operands are read in place."""
        if len(block.runs) > 1 or self.problem.bias is not None:
            return False
        return block.times > self.problem.group

    def _schedule(self, rows: int) -> Schedule:
        schedule = Schedule.of_problem(self.problem, rows, most=self._most_pairs)
        return replace(schedule, keys=self.keys)

    @property
    def _most_pairs(self) -> int:
        """Pairs of a row block, whose mask would be too large with more."""
        return MASK_LIMIT // max(1, _mask_copies(self.problem))

    def _blocks(self, rows: int) -> list[RowBlock]:
        blocks: Iterable[RowBlock] = self._schedule(rows)
        if rows == SHARED_ROWS and self.keys == self.problem.reachable_keys:
            shared = shared_row_blocks(self.problem)
            most = self._most_pairs
            if shared is not None and all(len(b.rows) * len(b.hull) <= most for b in shared):
                blocks = shared
        return [self._fitted(block) for block in blocks]

    def _fitted(self, block: RowBlock) -> RowBlock:
        """The row block with one run from its first key to its last; if most keys lie in gaps, with its own runs."""
        if not block.hull:
            return block
        kind = self._kind_of_hull(block)
        if kind == RunKind.BITS and self._gathers(block):
            return block
        return replace(block, runs=(Run(block.hull, kind),))

    def _kind_of_hull(self, block: RowBlock) -> RunKind:
        """The kind of a run from the first key of a row block to its last; BOUNDED only if it is a causal square.

        The runs say which keys all rows may look at. Only where they name none may the pattern know more.
        """
        problem = self.problem
        if problem.bias is not None or problem.q_start is PER_ROW:
            return RunKind.BITS
        keys = block.hull
        full = block.full
        first = problem.q_start + block.rows.start
        last = problem.q_start + block.rows.stop - 1
        if full == (keys,) or (not full and problem.pattern.sees_all(first, last, keys)):
            return RunKind.WHOLE
        if block.times == 1 and self._is_causal_square(first, len(block.rows), keys):
            return RunKind.BOUNDED
        return RunKind.BITS

    def _gathers(self, block: RowBlock) -> bool:
        """Whether the keys of the runs alone are read, since most keys between the first and the last lie in gaps."""
        problem = self.problem
        pattern = problem.pattern
        if problem.bias is not None or problem.q_start is PER_ROW or not pattern.structured:
            return False
        if pattern.varies_by_row or pattern.varies_by_head:
            return False
        return GAPS * block.width < len(block.hull)

    def _is_causal_square(self, first: int, rows: int, keys: range) -> bool:
        band = self.problem.pattern.known_band
        if band is None or band.left is not None or band.right is None or rows != len(keys):
            return False
        cut = (band.start or 0) > keys.start or (band.stop is not None and band.stop < keys.stop)
        return not cut and first + band.right == keys.start

    def _with_work(self, blocks: list[RowBlock]) -> _Division:
        """A division into these row blocks, with the work of all of them."""
        problem = self.problem
        copies = _mask_copies(problem)
        pairs = keys = gathered = calls = masked = 0
        for block in blocks:
            width = block.width
            pairs += _pairs(block)
            keys += block.times * width
            if len(block.runs) > 1:
                gathered += block.times * width
            calls += problem.group if self._at_once(block) else block.times
            if _masked(block):
                masked = max(masked, copies * len(block.rows) * width)
        units = problem.batch * problem.heads
        return _Division(blocks, _Work(units * pairs, keys, gathered, calls, masked))

    def _cost(self, work: _Work, rows: int) -> Cost:
        """What row blocks of so many rows cost."""
        problem = self.problem
        flashes = not work.masked and flash.has_flash_attention(
            problem.dtype, max(problem.head_dim, problem.v_dim), problem.device
        )
        if flashes:
            width = problem.dtype.itemsize  # bytes of a number
            readers = problem.kv_heads
        else:
            width = problem.computed_bytes
            readers = problem.heads  # each query head reads its keys again
        read_rows = problem.heads * problem.q_len + readers * (work.keys + 2 * work.gathered)
        vectors = problem.batch * read_rows * (problem.head_dim + problem.v_dim)
        if problem.device == "cuda" and not flashes:
            # Few rows occupy few multiprocessors, so reading takes longer.
            occupied = problem.batch * problem.heads * -(-problem.q_len // PROCESSOR_ROWS)
            vectors *= max(1, PROCESSORS // occupied)
        forward, backward = ROWS.get(rows, (1.0, 1.0))
        flops = 2 * work.pairs * (problem.head_dim + problem.v_dim)
        return Cost(
            flops=flops * (forward + (2.5 * backward if problem.needs_grad else 0)),
            bytes=width * vectors * (3 if problem.needs_grad else 1),
            peak_bytes=2 * width * work.masked,
            pairs=work.pairs,
            calls=work.calls,
            estimated=work.estimated,
        )

    def _calls(
        self, operands: Operands
    ) -> Iterator[tuple[_SingleBlock | _EqualBlocks, flash.FusedCall]]:
        """The calls with their rows and keys; equal row blocks share a mask."""
        for block in self.blocks:
            if not block.runs:
                continue
            call = self.call(operands, block) if operands.bias is None else None
            if call is not None and self._at_once(block):
                for blocks in self._together(operands, block):
                    yield blocks, call
                continue
            for single in block.each() if block.times > 1 else (block,):
                yield self._alone(operands, single), call or self.call(operands, single)

    def _together(self, operands: Operands, block: RowBlock) -> Iterator[_EqualBlocks]:
        """Equal row blocks, as many at once as may be copied."""
        k = operands.k
        numbers_of_key = k.shape[0] * k[0].numel() // k.shape[2]  # in all batch rows and heads
        most = max(1, COPIED // (numbers_of_key * block.width))
        group = self.problem.group
        for start in range(0, block.times, most):
            first = block.moved(start * len(block.rows))
            for member in range(group):
                yield _EqualBlocks(
                    first=first.rows.start,
                    size=len(block.rows),
                    times=min(most, block.times - start),
                    first_key=first.hull.start - operands.grid.keys.start,
                    width=block.width,
                    member=member,
                    group=group,
                )

    def _alone(self, operands: Operands, block: RowBlock) -> _SingleBlock:
        first_key = operands.grid.keys.start
        rows = slice(block.rows.start, block.rows.stop)
        if len(block.runs) == 1:
            return _SingleBlock(
                rows, slice(block.hull.start - first_key, block.hull.stop - first_key)
            )
        make = partial(_index_of, block, first_key, operands.q.device)
        return _SingleBlock(rows, self.masks.get(("keys", block.rows.start), operands.q, make))

    def _mask(self, operands: Operands, block: RowBlock) -> torch.Tensor:
        """Scores to add in a row block, (batch or 1, heads or 1, rows, keys): -inf where a pair is masked, else the
        bias."""
        problem = self.problem
        q = operands.q
        if len(block.runs) > 1:
            mask = q.new_zeros(1, 1, len(block.rows), block.width)
            column = 0
            for run in block.runs:
                columns = mask[..., column : column + len(run.keys)]
                if run.kind != RunKind.WHOLE:
                    allowed = self._evaluated_on(q.device).allowed(block.rows, run.keys)
                    columns.masked_fill_(~allowed, -math.inf)
                column += len(run.keys)
            return mask
        grid = operands.grid.block(block.rows, block.hull)
        bias = operands.bias_block(grid)
        if bias is not None:
            bias = bias.detach().to(q.dtype)
            if problem.pattern == Full():
                return bias.expand(*bias.shape[:2], len(block.rows), block.width)
        allowed = four_axes(problem.pattern.evaluate(grid))
        if bias is not None:
            return torch.where(allowed, bias, -math.inf)
        mask = torch.zeros(allowed.shape, dtype=q.dtype, device=q.device)
        return mask.masked_fill(~allowed, -math.inf)

    def _evaluated_on(self, device: torch.device) -> EvaluatedBlocks:
        """Evaluates the pattern on blocks of pairs; equal blocks are evaluated once."""
        if device not in self.evaluated:
            problem = self.problem
            assert problem.q_start is not PER_ROW
            grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start, device)
            self.evaluated[device] = EvaluatedBlocks(problem.pattern, grid)
        return self.evaluated[device]


def _index_of(block: RowBlock, first: int, device: torch.device) -> torch.Tensor:
    """The keys of all runs of a row block, counted from the key `first`."""
    parts = [torch.arange(run.keys.start, run.keys.stop, device=device) for run in block.runs]
    return torch.cat(parts).sub_(first)


def _masked(block: RowBlock) -> bool:
    """Whether the call of a row block needs a mask; keys that are gathered always have one."""
    if len(block.runs) == 1:
        return block.runs[0].kind == RunKind.BITS
    return len(block.runs) > 1


def _pairs(block: RowBlock) -> int:
    """The pairs that the call of a row block computes; of a causal square about half."""
    if len(block.runs) == 1 and block.runs[0].kind == RunKind.BOUNDED:
        return len(block.rows) * (block.width + min(block.width, SKIPPED)) // 2
    return block.pairs


def _mask_copies(problem: Problem) -> int:
    """Batch rows times heads with masks of their own."""
    copies = problem.batch if problem.q_start is PER_ROW or not problem.pattern.by_value else 1
    if problem.bias is None:
        return copies
    shape = (1, problem.heads) if problem.bias == RELATIVE else problem.bias
    return max(copies, shape[0]) * shape[1]
