"""Few queries by the fused operation: the heads of a group are rows of one matrix, and long runs of keys are divided
among the threads."""

from __future__ import annotations

import math

import torch

from regard.backends import flash
from regard.backends.decode.runs import Runs, allowed
from regard.backends.merging import merge
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.patterns.row_blocks import Run

SPLIT = 512  # fewest keys for one thread
ROWS = 32  # rows that the operation gives to one thread in any case

Merged = tuple[torch.Tensor, torch.Tensor]  # output (.., rows, v_dim) and log-sum-exp (.., rows)


def run(problem: Problem, runs: Runs, operands: Operands) -> Result:
    """Output and log-sum-exp; keys and values must have the dtype in which queries are computed."""
    k, v = (x.numbers if isinstance(x, Stored) else x for x in (operands.k, operands.v))
    q = operands.q.to(k.dtype).reshape(problem.batch, problem.kv_heads, problem.group * problem.q_len, problem.head_dim)
    here = operands.grid.keys.start
    found: list[Merged] = []
    for one in runs:
        keys = slice(one.keys.start - here, one.keys.stop - here)
        own = (k, v) if len(one.keys) == k.shape[2] else (k[:, :, keys], v[:, :, keys])
        found += _computed(q, *own, _mask(problem, operands, one, k.dtype), problem.scale)
    output, log_sum_exp = found[0] if len(found) == 1 else merge(found)
    shape = operands.q.shape[:3]
    wanted = log_sum_exp.reshape(shape) if "log_sum_exp" in problem.want else None
    return Result(output.reshape(*shape, problem.v_dim).to(operands.q.dtype), wanted)


def _mask(problem: Problem, operands: Operands, run: Run, dtype: torch.dtype) -> torch.Tensor | None:
    """Scores to add to the rows of a run, (batch or 1, kv_heads or 1, group * q_len, keys)."""
    seen, bias = allowed(problem, operands, run)
    if seen is None:
        return None
    mask = seen.new_zeros(seen.shape, dtype=dtype) if bias is None else bias.to(dtype).expand(seen.shape)
    mask = mask.masked_fill(~seen, -math.inf)
    heads = problem.heads if mask.shape[1] > 1 else problem.group
    mask = mask.expand(mask.shape[0], heads, problem.q_len, len(run.keys))
    return mask.reshape(mask.shape[0], heads // problem.group, problem.group * problem.q_len, len(run.keys))


def _computed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> list[Merged]:
    """Attention over one run, in several parts along the keys if threads would be idle otherwise."""
    parts = _parts(q, k.shape[2])
    if parts == 1:
        return [flash.forward(q, k, v, flash.FusedCall(mask, False, scale))]
    size = k.shape[2] // parts
    outputs, sums = [], []
    for row in range(len(q)):  # one batch row at a time, so that its parts are a batch without a copy
        own = None if mask is None else _cut(mask[row if mask.shape[0] > 1 else 0], 2, parts, size)
        output, log_sum_exp = flash.forward(
            q[row].expand(parts, -1, -1, -1),
            _cut(k[row], 1, parts, size),
            _cut(v[row], 1, parts, size),
            flash.FusedCall(own, False, scale),
        )
        outputs.append(output)
        sums.append(log_sum_exp)
    found = list(zip(torch.stack(outputs, 1), torch.stack(sums, 1), strict=True))  # (batch, kv_heads, rows, ..) a part
    if k.shape[2] % parts:
        rest = slice(parts * size, None)
        call = flash.FusedCall(None if mask is None else mask[..., rest], False, scale)
        found.append(flash.forward(q, k[:, :, rest], v[:, :, rest], call))
    return found


def _cut(x: torch.Tensor, axis: int, parts: int, size: int) -> torch.Tensor:
    """Equal parts of x along an axis, (parts, ...), as a view; a shorter rest at the end is omitted."""
    return x.narrow(axis, 0, parts * size).unflatten(axis, (parts, size)).movedim(axis, 0)


def _parts(q: torch.Tensor, keys: int) -> int:
    """The number of parts into which the keys of a run are divided; FlashAttention on cuda divides them itself."""
    if not q.is_cpu:
        return 1
    tasks = q.shape[0] * q.shape[1] * -(-q.shape[2] // ROWS)
    return max(1, min(-(-torch.get_num_threads() // tasks), keys // SPLIT))
