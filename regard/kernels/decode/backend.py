"""When few queries are computed this way, and what that costs."""

from __future__ import annotations

import math
from functools import partial

import torch

from regard.core.backend import Cost, Offer, Operands, Refusal
from regard.core.problem import Problem
from regard.core.result import Result
from regard.kernels import flash
from regard.kernels.decode import fold, weigh
from regard.kernels.decode.pieces import Piece, lower
from regard.kernels.statistics.observe import observe
from regard.mechanisms import ScaledDot, Softmax

QUERIES = 16  # more are worth blocks of their own


class Decode:
    """Softmax over dot products of at most 16 queries, with every option and statistic, without a gradient."""

    name = "decode"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (reason := _reason_against(problem)) is not None:
            return Refusal(reason)
        pieces = lower(problem)
        if problem.strict and (reason := _reason_against_strict(problem, pieces)) is not None:
            return Refusal(reason)
        folds = _folds(problem)
        return Offer(_cost(problem, pieces, folds), partial(self.run, problem, pieces, folds), takes_stored=True)

    def run(self, problem: Problem, pieces: tuple[Piece, ...], folds: bool, operands: Operands) -> Result:
        with torch.no_grad():
            if folds and pieces:
                return fold.run(problem, pieces, operands)
            return weigh.run(problem, pieces, operands) if pieces else _nothing(problem, operands)


def _reason_against(problem: Problem) -> str | None:
    if not isinstance(problem.mechanism, Softmax):
        return f"it computes softmax attention, not {problem.mechanism}"
    if not isinstance(problem.mechanism.score, ScaledDot):
        return f"it computes dot products, not {problem.mechanism.score}"
    if problem.empty:
        return "there is nothing to compute"
    if problem.q_len > QUERIES:
        return f"it is for at most {QUERIES} queries, and there are {problem.q_len}"
    if problem.needs_grad or problem.bias_learns:
        return "it has no gradient; texts are continued under torch.no_grad()"
    return None


def _reason_against_strict(problem: Problem, pieces: tuple[Piece, ...]) -> str | None:
    pairs, kept = _pairs(problem, pieces), problem.kept_pairs
    if kept is None:
        return f"strict=True, and how many of its {pairs} pairs {problem.pattern} keeps is not known without looking"
    if pairs <= 2 * kept:
        return None
    return f"strict=True, and it computes {pairs} pairs where {kept} are kept, more than twice as many"


def _folds(problem: Problem) -> bool:
    """Can the fused operation compute it, reading keys as they are?"""
    plain = problem.softcap is None and not problem.dropout and not set(problem.want) - {"log_sum_exp"}
    computing = flash.computing(problem.dtype, problem.device)
    return plain and problem.storage == computing and flash.refusal(computing, problem.device) is None


def _pairs(problem: Problem, pieces: tuple[Piece, ...]) -> int:
    return problem.batch * problem.heads * problem.q_len * sum(len(piece.keys) for piece in pieces)


def _cost(problem: Problem, pieces: tuple[Piece, ...], folds: bool) -> Cost:
    """Each key and value is read once from memory, as it is stored; a chunk that was widened stays near the core."""
    width = 8 if problem.dtype == torch.float64 else 4
    pairs = _pairs(problem, pieces)
    keys = sum(len(piece.keys) for piece in pieces)
    dims = problem.head_dim + problem.v_dim
    stored = problem.batch * problem.kv_heads * keys * dims * problem.storage.itemsize
    rows = problem.batch * problem.heads * problem.q_len * dims * problem.dtype.itemsize
    masks = width * max((_mask_size(problem, piece) for piece in pieces if piece.masked), default=0)
    flops = 2 * pairs * dims
    if folds:
        return Cost(flops, stored + rows + 2 * masks, 2 * masks, pairs, calls=2 * len(pieces))
    size = weigh.chunk_size(problem.batch * problem.kv_heads * max(problem.head_dim, problem.v_dim), problem.device)
    chunks = -(-keys // size)
    scores = width * pairs
    return Cost(flops, stored + rows + 4 * scores + 2 * masks, 3 * scores + masks, pairs, calls=5 + 2 * chunks)


def _mask_size(problem: Problem, piece: Piece) -> int:
    rows = problem.batch if problem.q_start is None or problem.pattern.varies_by_row else 1
    heads = problem.heads if problem.bias is not None or problem.pattern.varies_by_head else problem.group
    return rows * heads * problem.q_len * len(piece.keys)


def _nothing(problem: Problem, operands: Operands) -> Result:
    """No query of this problem sees a key."""
    shape = operands.q.shape[:3]
    wide = torch.promote_types(problem.dtype, torch.float32)
    none = operands.q.new_zeros(*shape, 0, dtype=wide)
    found = observe(problem, operands.grid, none, none.bool())
    if "log_sum_exp" in problem.want:
        found["log_sum_exp"] = none.new_full(shape, -math.inf)
    return Result(operands.q.new_zeros(*shape, problem.v_dim), **found)
