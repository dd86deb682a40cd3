"""The tiled backend: which problems it refuses, and what the others cost."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import partial

import torch

from regard.backends import flash
from regard.backends.schedule import strict_refusal
from regard.backends.sinks import with_sinks
from regard.backends.statistics.second_pass import with_statistics
from regard.backends.tiled.grouping import (
    APART_ROWS,
    goes_on,
    group_apart,
    lower,
    name_of,
    one_run,
    residue_at,
    schedule_of,
    taken_apart,
    whole_kind,
    worth_a_mask,
)
from regard.backends.tiled.kernels import kernels_for, pace_of
from regard.backends.tiled.program import GATHERED, Program, Terms, Work
from regard.backends.tiled.shares import Share, TiledCalls
from regard.core.backend import Cost, Offer, Operands, Refusal, reachable_keys
from regard.core.problem import PER_ROW, RELATIVE, Problem
from regard.core.result import Result
from regard.patterns import Grid, Pattern
from regard.patterns.algebra import NOTHING
from regard.patterns.lattices import alike_residues, simplified
from regard.patterns.ranges import Ranges
from regard.patterns.row_blocks import Answers, RowBlock
from regard.patterns.survey import Budget, SpentError, estimated, look_cost
from regard.reprs import Described

# Rows of a row block, with the time for one pair relative to the fastest (measured on CPU, head_dim 64).
FORWARD_ROWS = {32: 1.15, 64: 1.0, 128: 0.97, 256: 0.92}
BACKWARD_ROWS = {64: 1.56, 128: 1.32, 256: 1.0}
ROW_PATTERNS = 1 << 16  # with fewer pairs in a batch row and head, separate programs for batch rows are too expensive


@with_sinks
class Tiled(Described):
    """Softmax over dot products with any structured pattern, a scale and a fixed bias by distance."""

    name = "tiled"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (reason := _reason_against(problem)) is not None:
            return Refusal(reason)
        try:
            shares: list[Share] | None = _shares(problem, Budget(problem.looks))
            costs = [
                _Costs(one.rows, one.heads, one.ahead.work, None if one.back is None else one.back.work)
                for one in shares
            ]
        except SpentError:
            shares, costs = None, _estimates(problem)
        cost = replace(_cost(problem, costs), estimated=shares is None)
        if problem.strict and (refusal := strict_refusal(problem, cost.pairs, _kept(problem))) is not None:
            return refusal
        run = partial(_run_large, problem) if shares is None else _calls(problem, shares).run
        return Offer(with_statistics(cost, problem), run)

    def least_work(self, problem: Problem) -> float:
        """A lower bound of the work, from the kept pairs, where batch rows differ and `assess` takes long; else 0."""
        if not problem.pattern.varies_by_row or problem.outlined or _reason_against(problem) is not None:
            return 0.0
        return 2.0 * _kept(problem) * (problem.head_dim + problem.v_dim) * (3.5 if problem.needs_grad else 1)


def _run_large(problem: Problem, operands: Operands) -> Result:
    """Computes a problem whose cost was only estimated: its program is made now."""
    return _calls(problem, _shares(problem, Budget())).run(operands)


def _calls(problem: Problem, shares: list[Share]) -> TiledCalls:
    merged = any(share.ahead.residues for share in shares)  # each merge rounds, so half types are computed in float32
    wide = torch.promote_types(problem.dtype, torch.float32)
    computing = wide if merged else flash.computing(problem.dtype, problem.device)
    return TiledCalls(problem, tuple(shares), computing, kernels=kernels_for(problem) if merged else None)


def _reason_against(problem: Problem) -> str | None:
    if (reason := flash.reason_against(problem)) is not None:
        return reason
    pattern = problem.pattern
    if problem.bias not in (None, RELATIVE):
        return "a bias tensor has no structure; fused adds it block by block"
    if problem.q_start is PER_ROW:
        return "q_start is a tensor, so the plan does not know the positions of the queries"
    if not pattern.structured:
        return f"{pattern} has no structure and can only be evaluated pair by pair"
    if pattern.varies_by_row and problem.q_len * problem.k_len < ROW_PATTERNS:
        return f"{pattern} differs by batch row, and {problem.q_len} x {problem.k_len} pairs in each are too few"
    if pattern.sees_all(problem.q_start, problem.q_start + problem.q_len - 1, range(problem.k_len)):
        return "every query may look at every key, so there is nothing to skip"
    band = pattern.band()
    if band is not None and (band.left is None or band.right is None) and problem.bias is None:
        return f"{pattern} is open on one side; fused computes it in larger blocks"
    return None


def _kept(problem: Problem) -> int:
    if (kept := problem.counted) is not None:
        return kept.pairs
    return sum(
        len(range(*rows.indices(problem.batch))) * len(range(problem.heads) if heads is None else heads)
        * pattern.count(problem.q_len, problem.k_len, q_start=problem.q_start)
        for rows, heads, pattern in _parts(problem)
    )  # fmt: skip


def _parts(problem: Problem) -> list[tuple[slice, tuple[int, ...] | None, Pattern]]:
    """The batch rows and heads of each different pattern; heads None for all."""
    rows = [slice(row, row + 1) for row in range(problem.batch)] if problem.pattern.varies_by_row else [slice(None)]
    found: list[tuple[slice, tuple[int, ...] | None, Pattern]] = []
    for part in rows:
        pattern = problem.pattern.for_row(part.start or 0)
        if not pattern.varies_by_head:
            found.append((part, None, pattern))
            continue
        heads: dict[Pattern, list[int]] = {}
        for head in range(problem.heads):
            heads.setdefault(pattern.for_head(head).canonical(), []).append(head)
        found += [(part, tuple(some), one) for one, some in heads.items()]
    return found


def _grid(problem: Problem) -> Grid:
    assert problem.q_start is not None
    grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start, problem.device)
    return grid.block(grid.rows, reachable_keys(problem))


def _shares(problem: Problem, budget: Budget) -> list[Share]:
    grid = _grid(problem)
    shares = []
    for rows, heads, pattern in _parts(problem):
        lowered = lambda choices: _cheapest(pattern, grid, choices, problem.bias == RELATIVE, budget)  # noqa: B023, E731
        shares.append(Share(rows, heads, lowered(FORWARD_ROWS), lowered(BACKWARD_ROWS) if problem.needs_grad else None))
    return shares


def _cheapest(pattern: Pattern, grid: Grid, choices: dict[int, float], by_distance: bool, budget: Budget) -> Program:
    """The cheapest program over the possible sizes of row blocks."""
    programs = {rows: lower(pattern, grid, Terms(rows, by_distance, budget=budget)) for rows in choices}
    best = min(choices, key=lambda rows: programs[rows].pairs * choices[rows])
    return programs[best]


@dataclass(frozen=True)
class _Costs:
    """The batch rows and query heads of a share, and the work of its programs."""

    rows: slice
    heads: tuple[int, ...] | None
    ahead: Work
    back: Work | None


def _estimates(problem: Problem) -> list[_Costs]:
    """The shares and costs of a problem that is too long to turn into programs, from samples."""
    grid, by_distance = _grid(problem), problem.bias == RELATIVE
    found = []
    for rows, heads, pattern in _parts(problem):
        works = {size: about(pattern, grid, Terms(size, by_distance)) for size in (64, 256)}
        ahead, back = (
            works[min(works, key=lambda size: works[size].pairs * choices[size])]
            for choices in (FORWARD_ROWS, BACKWARD_ROWS)
        )
        found.append(_Costs(rows, heads, ahead, back if problem.needs_grad else None))
    return found


COPIED = 3  # times that a copied key or value is moved: read, written, and read by the product


def _cost(problem: Problem, shares: list[_Costs]) -> Cost:
    width = 8 if problem.dtype == torch.float64 else 4
    size = problem.head_dim + problem.v_dim
    flops = moved = 0.0
    pairs = calls = 0
    for share in shares:
        rows = len(range(*share.rows.indices(problem.batch)))
        heads = problem.heads if share.heads is None else len(share.heads)
        pairs += rows * heads * share.ahead.pairs
        flops += 2 * rows * heads * size * share.ahead.pairs
        calls += share.ahead.calls
        moved += rows * heads * size * (problem.q_len * (1 + share.ahead.merges) + share.ahead.gathered)
        if share.back is not None:
            flops += 2 * rows * heads * size * 2.5 * share.back.pairs
            calls += share.back.calls
            vectors = (problem.q_len + problem.k_len) * (1 + share.back.merges)  # each part adds to their gradients
            moved += rows * heads * size * (vectors + share.back.gathered)
    inputs = problem.batch * size * (problem.heads * problem.q_len + problem.kv_heads * problem.k_len)
    held = problem.batch * problem.heads * problem.q_len * problem.v_dim + (1 << 22)  # results, gathered keys
    peak = width * held * (3 if problem.needs_grad else 1)
    pace = pace_of(kernels_for(problem)) if any(share.ahead.merges for share in shares) else 1.0
    return Cost(flops, width * (inputs + COPIED * moved), peak_bytes=peak, pairs=pairs, calls=calls, pace=pace)


FEW = 256  # row blocks evaluated for the program of one residue before it is estimated too


def about(pattern: Pattern, grid: Grid, terms: Terms) -> Work:
    """An estimate of the cost of a pattern's program."""
    pattern = simplified(pattern)
    apart, rest, on = taken_apart(pattern, grid)
    work = _groups(rest, grid, terms) if rest != NOTHING else Work(0, 0, 0, 0)
    for stride, there in on:
        work += _on_lattice(there, stride, grid, terms)
    for rows in apart:
        work += _apart(pattern, grid, rows)
    return work


def _groups(pattern: Pattern, grid: Grid, terms: Terms) -> Work:
    """Estimated work of groups: equal consecutive row blocks are one call, others are gathered and counted by name."""
    answers, schedule = Answers(pattern, grid), schedule_of(pattern, grid, terms.rows)
    names: set[tuple[Hashable, ...]] = set()

    def measure(block: RowBlock) -> tuple[float, ...]:
        name = name_of(answers, block, terms.by_distance)
        if one_run(block) and block.rows.stop < grid.q_len:
            following = schedule.block_at(block.rows.stop)
            steady = one_run(following) and goes_on(block, following)
            if steady and name_of(answers, following, terms.by_distance) == name:
                names.add(name)
                return block.pairs, 0, 0
        own = any(type(part) is object for part in name)  # has a mask of its own
        if not own:
            names.add(name)
        return block.pairs, 1 if own else 1 / GATHERED, block.width

    cost = look_cost(2 * len(schedule.block_at(-(-grid.q_len // terms.rows) // 2 * terms.rows).runs))
    pairs, calls, gathered = schedule.estimated(measure, cost)
    return Work(pairs, calls + len(names), gathered, 0)


def _on_lattice(pattern: Pattern, stride: int, grid: Grid, terms: Terms) -> Work:
    spans = alike_residues(pattern, stride, grid)
    farther = terms.farther(stride)
    if isinstance(spans, list):
        found = [(_residue(pattern, stride, grid, rows.start, farther), len(rows)) for rows in spans]
        sums = [sum(counts[at] * rows for counts, rows in found) for at in (0, 2)]
        return Work(sums[0], sum(counts[1] for counts, _ in found), sums[1], len(spans))
    rows = min(stride, grid.q_len)
    pairs, calls, gathered = estimated(rows, lambda row: _residue(pattern, stride, grid, row, farther), (), cost=8)
    return Work(pairs, calls, gathered, rows)


def _residue(pattern: Pattern, stride: int, grid: Grid, row: int, terms: Terms) -> tuple[int, int, int]:
    """Pairs, calls and gathered keys of one residue."""
    residue = residue_at(pattern, stride, grid, row)
    if residue is None:
        return 0, 0, 0
    if whole_kind(residue) is not None:
        return residue.size * residue.width, 1, 0
    try:
        work = lower(residue.pattern, residue.grid, replace(terms, budget=Budget(FEW))).work
    except SpentError:
        work = about(residue.pattern, residue.grid, terms)
    if worth_a_mask(residue, work.pairs):
        return residue.size * residue.width, 1, 0
    return work.pairs, work.calls, work.gathered


def _apart(pattern: Pattern, grid: Grid, rows: range) -> Work:
    """Work of one run of separate rows."""

    def look(at: int) -> tuple[int, int]:
        here: Ranges = (rows[at * APART_ROWS : (at + 1) * APART_ROWS],)
        return group_apart(pattern, grid, here).pairs, 1

    pairs, calls = estimated(-(-len(rows) // APART_ROWS), look, (), cost=16)
    return Work(pairs, calls, 0, 0)
