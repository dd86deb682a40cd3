"""Few queries with their weights at hand: any option, any statistic, and keys that are widened chunk by chunk.

Weights of few queries are no more numbers than a key/value head or two, so they may be held; the keys and values that
a cache keeps narrow are not: one workspace that fits a core's cache takes a chunk of them after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from regard.core.backend import Operands
from regard.core.problem import Problem
from regard.core.result import Result
from regard.core.tensors import Stored
from regard.kernels.decode.pieces import Piece, allowed
from regard.kernels.dropout import drop
from regard.kernels.statistics.observe import observe

WORKSPACE = 1 << 17  # numbers: half a MiB, where a quarter and four times as many were slower
FEWEST = 256  # keys in a chunk, however many heads there are

Placed = tuple[Piece, slice]  # a piece, and the columns of its scores


def run(problem: Problem, pieces: tuple[Piece, ...], operands: Operands) -> Result:
    """Output and every statistic."""
    scores, seen = _scores(problem, pieces, operands)  # (batch, heads, q_len, columns)
    most = scores.amax(-1, keepdim=True)
    lonely = most == -math.inf  # rows that see no key
    weights = scores.sub_(most.masked_fill(lonely, 0)).exp_()
    total = weights.sum(-1, keepdim=True).masked_fill(lonely, 1)
    weights.div_(total)
    output = _output(problem, pieces, operands, weights)

    wanted: dict[str, Any] = {}
    if "log_sum_exp" in problem.want:
        wanted["log_sum_exp"] = (most + total.log())[..., 0]  # -inf for the lonely
    if set(problem.want) - {"log_sum_exp"}:
        wanted |= observe(problem, operands.grid, weights, seen)
    return Result(output.to(operands.q.dtype), **wanted)


def chunk_size(width: int, device: str) -> int:
    """Keys in a chunk where `width` numbers are read of each, all batch rows and heads together."""
    workers = torch.get_num_threads() if device == "cpu" else 256
    return max(FEWEST, WORKSPACE * workers // max(1, width))


def _scores(problem: Problem, pieces: tuple[Piece, ...], operands: Operands) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores in the order of the formula, -inf where a pair is not allowed, and which pairs are."""
    wide = torch.promote_types(operands.q.dtype, torch.float32)
    shape = (problem.batch, problem.heads, problem.q_len, sum(len(piece.keys) for piece in pieces))
    scores = torch.empty(shape, dtype=wide, device=operands.q.device)
    rows = _as_rows(problem, scores)  # (batch * kv_heads, group * q_len, columns)
    q = _as_rows(problem, operands.q.to(wide) * problem.scale)
    for columns, k in _chunks(pieces, operands, operands.k, wide):
        rows[..., columns] = torch.bmm(q, k.mT)  # with out= and strides it would go head by head
    if (scales := _scales(pieces, operands, operands.k)) is not None:
        rows.mul_(scales)
    if problem.softcap is not None:
        scores.div_(problem.softcap).tanh_().mul_(problem.softcap)

    seen = torch.ones((), dtype=torch.bool, device=scores.device).expand(shape)
    for piece, columns in _placed(pieces):
        here, bias = allowed(problem, operands, piece)
        if here is None:
            continue
        part = scores[..., columns]
        if bias is not None:
            part += bias
        part.masked_fill_(~here, -math.inf)
        seen = here.expand(shape) if len(pieces) == 1 else seen  # statistics are asked of one piece
    return scores, seen


def _output(problem: Problem, pieces: tuple[Piece, ...], operands: Operands, weights: torch.Tensor) -> torch.Tensor:
    """The weighted mean of the values, (batch, heads, q_len, v_dim)."""
    if problem.dropout:
        parts = []
        for piece, columns in _placed(pieces):
            grid = operands.grid.block(range(problem.q_len), piece.keys)
            parts.append(drop(weights[..., columns], problem.dropout, operands.dropout_seed, grid))
        weights = torch.cat(parts, -1)
    rows = _as_rows(problem, weights)
    if (scales := _scales(pieces, operands, operands.v)) is not None:
        rows = rows * scales
    output = rows.new_zeros(*rows.shape[:2], problem.v_dim)
    for columns, v in _chunks(pieces, operands, operands.v, weights.dtype):
        output.baddbmm_(rows[..., columns], v)
    return output.view(problem.batch, problem.heads, problem.q_len, problem.v_dim)


def _as_rows(problem: Problem, x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, q_len, ..) with the queries that read one key/value head as rows of one matrix."""
    return x.reshape(problem.batch * problem.kv_heads, problem.group * problem.q_len, x.shape[-1])


def _placed(pieces: tuple[Piece, ...]) -> Iterator[Placed]:
    start = 0
    for piece in pieces:
        yield piece, slice(start, start + len(piece.keys))
        start += len(piece.keys)


def _scales(pieces: tuple[Piece, ...], operands: Operands, x: torch.Tensor | Stored) -> torch.Tensor | None:
    """What the columns are multiplied with where the numbers are int8, (batch * kv_heads, 1, columns)."""
    if not isinstance(x, Stored) or x.scales is None:
        return None
    here = operands.grid.keys.start
    parts = [x.scales[:, :, piece.keys.start - here : piece.keys.stop - here, 0] for piece in pieces]
    return torch.cat(parts, 2).flatten(0, 1)[:, None]


def _chunks(
    pieces: tuple[Piece, ...], operands: Operands, x: torch.Tensor | Stored, wide: torch.dtype
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Keys or values of some columns, (batch * kv_heads, chunk, dim) in `wide`; int8 without their scales.

    All chunks share one workspace, so each is gone when the next is asked for.
    """
    numbers = x.numbers if isinstance(x, Stored) else x
    batch, kv_heads, _, dim = numbers.shape
    size = chunk_size(batch * kv_heads * dim, numbers.device.type)
    workspace = torch.empty(0, dtype=wide, device=numbers.device)
    for piece, columns in _placed(pieces):
        offset = piece.keys.start - operands.grid.keys.start
        for start in range(0, len(piece.keys), size):
            stop = min(start + size, len(piece.keys))
            chunk = numbers[:, :, offset + start : offset + stop]
            if numbers.dtype != wide:
                if workspace.shape != chunk.shape:
                    workspace = chunk.new_empty(chunk.shape, dtype=wide)
                chunk = workspace.copy_(chunk)
            yield slice(columns.start + start, columns.start + stop), chunk.flatten(0, 1)
