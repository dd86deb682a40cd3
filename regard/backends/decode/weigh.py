"""Few queries with all of their weights in memory: every option, every statistic, and keys widened chunk by chunk.

The weights of few queries take no more memory than one or two key/value heads. Keys and values that a cache stores in a
narrow dtype are larger: they are widened chunk by chunk into one workspace that fits a core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard.backends.decode.runs import Runs, allowed, with_columns
from regard.backends.dropout import drop
from regard.backends.statistics.observe import observe
from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored

WORKSPACE = 1 << 17  # numbers in the workspace: half a MiB; a quarter of it and four times as much were slower
FEWEST = 256  # the fewest keys in a chunk, for any number of heads


def run(problem: Problem, runs: Runs, operands: Operands) -> Result:
    """Output and every statistic."""
    scores, seen = _scores(problem, runs, operands)  # (batch, heads, q_len, columns)
    if problem.want:
        seen = seen & (scores != -math.inf)
    most = scores.amax(-1, keepdim=True)
    empty_rows = most == -math.inf
    weights = scores.sub_(most.masked_fill(empty_rows, 0)).exp_()
    total = weights.sum(-1, keepdim=True).masked_fill(empty_rows, 1)
    weights.div_(total)
    output = _output(problem, runs, operands, weights)

    wanted: dict[str, Any] = {}
    if "log_sum_exp" in problem.want:
        wanted["log_sum_exp"] = (most + total.log())[..., 0]  # -inf for empty rows
    if set(problem.want) - {"log_sum_exp"}:
        wanted |= observe(problem, operands.grid, weights, seen)
    return Result(output.to(operands.q.dtype), **wanted)


def chunk_size(width: int, device: str) -> int:
    """Keys in a chunk, if `width` numbers are read for each key over all batch rows and heads."""
    workers = torch.get_num_threads() if device == "cpu" else 256
    return max(FEWEST, WORKSPACE * workers // max(1, width))


def _scores(problem: Problem, runs: Runs, operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores in the order of the formula, -inf where a pair is not allowed, and which pairs are."""
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    shape = (problem.batch, problem.heads, problem.q_len, sum(len(run.keys) for run in runs))
    scores = torch.empty(shape, dtype=wide, device=operands.q.device)
    rows = _as_rows(problem, scores)  # (batch * kv_heads, group * q_len, columns)
    q = _as_rows(problem, operands.q.to(wide) * problem.scale)
    for columns, k in _chunks(runs, operands, operands.k, wide):
        rows[..., columns] = torch.bmm(q, k.mT)  # out= with strides would be computed head by head
    if (scales := _scales(runs, operands, operands.k)) is not None:
        rows.mul_(scales)
    if problem.softcap is not None:
        scores.div_(problem.softcap).tanh_().mul_(problem.softcap)

    seen = torch.ones((), dtype=torch.bool, device=scores.device).expand(shape)
    for run, columns in with_columns(runs):
        here, bias = allowed(problem, operands, run)
        if here is None:
            continue
        part = scores[..., columns]
        if bias is not None:
            part += bias
        part.masked_fill_(~here, -math.inf)
        seen = here.expand(shape) if len(runs) == 1 else seen  # statistics need one run
    return scores, seen


def _output(problem: Problem, runs: Runs, operands: Operands, weights: torch.Tensor) -> torch.Tensor:
    """The weighted mean of the values, (batch, heads, q_len, v_dim)."""
    if problem.dropout:
        parts = []
        for run, columns in with_columns(runs):
            grid = operands.grid.block(range(problem.q_len), run.keys)
            parts.append(drop(weights[..., columns], problem.dropout, operands.dropout_seed, grid))
        weights = torch.cat(parts, -1)
    rows = _as_rows(problem, weights)
    if (scales := _scales(runs, operands, operands.v)) is not None:
        rows = rows * scales
    output = rows.new_zeros(*rows.shape[:2], problem.v_dim)
    for columns, v in _chunks(runs, operands, operands.v, weights.dtype):
        output.baddbmm_(rows[..., columns], v)
    return output.view(problem.batch, problem.heads, problem.q_len, problem.v_dim)


def _as_rows(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, q_len, ..) as one matrix for each key/value head, with its queries as rows."""
    return x.reshape(problem.batch * problem.kv_heads, problem.group * problem.q_len, x.shape[-1])


def _scales(runs: Runs, operands: Operands, x: torch.Tensor | Stored) -> torch.Tensor | None:
    """The scales of int8 keys or values, (batch * kv_heads, 1, columns); None for other dtypes."""
    if not isinstance(x, Stored) or x.scales is None:
        return None
    here = operands.grid.keys.start
    parts = [x.scales[:, :, run.keys.start - here : run.keys.stop - here, 0] for run in runs]
    return torch.cat(parts, 2).flatten(0, 1)[:, None]


def _chunks(
    runs: Runs, operands: Operands, x: torch.Tensor | Stored, wide: torch.dtype
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Keys or values of some columns, (batch * kv_heads, chunk, dim) in `wide`; int8 without their scales.

    All chunks share one workspace, so the next chunk overwrites the last.
    """
    numbers = x.numbers if isinstance(x, Stored) else x
    batch, kv_heads, _, dim = numbers.shape
    size = chunk_size(batch * kv_heads * dim, numbers.device.type)
    workspace = torch.empty(0, dtype=wide, device=numbers.device)
    for run, columns in with_columns(runs):
        offset = run.keys.start - operands.grid.keys.start
        for start in range(0, len(run.keys), size):
            stop = min(start + size, len(run.keys))
            chunk = numbers[:, :, offset + start : offset + stop]
            if numbers.dtype != wide:
                if workspace.shape != chunk.shape:
                    workspace = chunk.new_empty(chunk.shape, dtype=wide)
                chunk = workspace.copy_(chunk)
            yield slice(columns.start + start, columns.start + stop), chunk.flatten(0, 1)
