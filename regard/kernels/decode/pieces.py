"""Which runs of keys a few queries look at, and which of them need a mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.core.backend import Operands, reachable_keys
from regard.core.problem import PER_ROW, Problem

MOST = 4  # pieces; more are computed as one with a mask


@dataclass(frozen=True)
class Piece:
    """A run of keys; without a mask every query sees all of them."""

    keys: range
    masked: bool


def lower(problem: Problem) -> tuple[Piece, ...]:
    """Runs of keys, apart and in order, that hold every pair a problem allows.

    Statistics are counted over all reachable keys, so where some are wanted there is one run.
    """
    hull = reachable_keys(problem)
    if not hull:
        return ()
    whole = (Piece(hull, masked=True),)
    if problem.q_start is PER_ROW:
        return whole
    first, last = problem.q_start, problem.q_start + problem.q_len - 1
    biased = problem.bias is not None
    if problem.pattern.sees_all(first, last, hull):
        return (Piece(hull, masked=biased),)
    if set(problem.want) - {"log_sum_exp"}:
        return whole
    segments = problem.pattern.segments(first, last, problem.k_len)
    pieces = [Piece(run, biased) for run in segments.full] + [
        Piece(run, True) for some in segments.some for run in _without(some, segments.full)
    ]
    return tuple(sorted(pieces, key=lambda piece: piece.keys.start)) if len(pieces) <= MOST else whole


def allowed(problem: Problem, operands: Operands, piece: Piece) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Which pairs of a piece are allowed and what is added to their scores, both (batch or 1, heads or 1, q_len or 1,
    keys or 1) or None; a score of -inf is no pair."""
    if not piece.masked:
        return None, None
    grid = operands.grid.block(range(problem.q_len), piece.keys)
    seen = problem.pattern.evaluate(grid)
    seen = seen if seen.dim() == 4 else seen[None, None]
    bias = operands.bias_block(grid)
    return (seen, None) if bias is None else (seen & (bias != -torch.inf), bias)


def _without(run: range, holes: tuple[range, ...]) -> list[range]:
    """What is left of a run beside sorted holes."""
    found, start = [], run.start
    for hole in holes:
        if hole.start < run.stop and hole.stop > start:
            found.append(range(start, hole.start))
            start = hole.stop
    return [part for part in (*found, range(start, run.stop)) if part]
