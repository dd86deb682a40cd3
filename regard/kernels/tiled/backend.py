"""What the planner asks: is there structure, and what does it cost?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.detail import Result
from regard.kernels import flash
from regard.kernels.tiled.execution import Found, Saved, Setting, backward, forward
from regard.kernels.tiled.lowering import Program, lower
from regard.mechanisms import Softmax
from regard.operands import Operands, Relative, reachable_keys
from regard.patterns import Grid, Pattern
from regard.plan import Cost, Offer, Refusal
from regard.problem import PER_ROW, RELATIVE, Problem

# Rows of a strip, and the time that a pair takes beside the fastest (measured on CPU, head_dim 64).
FORWARD_ROWS = {32: 1.15, 64: 1.0, 128: 0.97, 256: 0.92}
BACKWARD_ROWS = {64: 1.56, 128: 1.32, 256: 1.0}
ROW_PATTERNS = 1 << 16  # pairs of one batch row and head below which programs for every batch row cost too much


@dataclass(frozen=True)
class Share:
    """The batch rows and query heads that one pattern rules, and their programs; `single`: of heads, not of groups."""

    rows: slice
    heads: tuple[int, ...] | None
    ahead: Program
    back: Program | None


class Tiled:
    """Softmax over dot products with any structured pattern, a scale and a fixed bias by distance."""

    name = "tiled"

    def assess(self, problem: Problem) -> Offer | Refusal:
        if (reason := _reason_against(problem)) is not None:
            return Refusal(reason)
        shares = _shares(problem)
        cost = _cost(problem, shares)
        if problem.strict and cost.pairs > 2 * (kept := _kept(problem)):
            return Refusal(
                f"strict=True, and it computes {cost.pairs} pairs where {kept} are kept, more than twice as many"
            )
        return Offer(cost, partial(self.run, problem, shares))

    def run(self, problem: Problem, shares: list[Share], operands: Operands) -> Result:
        dtype = operands.q.dtype
        q, k, v = operands.q, operands.k, operands.v
        if dtype in flash.HALF and q.device.type == "cpu":  # no faster there, and less exact
            q, k, v = q.float(), k.float(), v.float()
        bias = operands.bias if isinstance(operands.bias, Relative) else None
        output, log_sum_exp = _Shares.apply(q, k, v, None if bias is None else bias.table, problem, shares, bias)
        wanted: dict[str, Any] = {"log_sum_exp": log_sum_exp} if "log_sum_exp" in problem.want else {}
        return Result(output.to(dtype), **wanted)


def _reason_against(problem: Problem) -> str | None:
    pattern = problem.pattern
    if not isinstance(problem.mechanism, Softmax):
        return f"it computes softmax attention, not {problem.mechanism}"
    if problem.empty:
        return "there is nothing to compute, and the fused operations do not survive sizes of 0"
    if problem.softcap is not None:
        return "the fused operations have no softcap"
    if problem.dropout > 0:
        return "the fused operations drop weights by another law than dropout_seed's"
    if problem.bias_learns:
        return "the fused operations give a bias no gradient"
    if problem.bias not in (None, RELATIVE):
        return "a bias tensor has no structure; fused adds it block by block"
    if set(problem.want) - {"log_sum_exp"}:
        return f"it does not tell {', '.join(str(want) for want in problem.want if want != 'log_sum_exp')}"
    if problem.q_start is PER_ROW:
        return "q_start is a tensor, so where its queries stand is not known to the plan"
    if not pattern.structured:
        return f"{pattern} tells nothing but pair by pair"
    if pattern.varies_by_row and problem.q_len * problem.k_len < ROW_PATTERNS:
        return f"{pattern} differs by batch row, and {problem.q_len} x {problem.k_len} pairs each are not worth it"
    if pattern.sees_all(problem.q_start, problem.q_start + problem.q_len - 1, range(problem.k_len)):
        return "every query sees every key, so there is nothing to skip"
    band = pattern.band()
    if band is not None and (band.left is None or band.right is None) and problem.bias is None:
        return f"{pattern} is open on one side; fused computes it in larger blocks"
    return flash.refusal(problem.dtype, problem.device)


def _kept(problem: Problem) -> int:
    kept = problem.kept_pairs
    if kept is not None:
        return kept
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


def _shares(problem: Problem) -> list[Share]:
    assert problem.q_start is not None
    grid = Grid.whole(problem.q_len, problem.k_len, problem.q_start, problem.device)
    grid = grid.block(grid.rows, reachable_keys(problem))
    shares = []
    for rows, heads, pattern in _parts(problem):
        ahead = _cheapest(pattern, grid, FORWARD_ROWS, problem.bias == RELATIVE)
        back = _cheapest(pattern, grid, BACKWARD_ROWS, problem.bias == RELATIVE) if problem.needs_grad else None
        shares.append(Share(rows, heads, ahead, back))
    return shares


def _cheapest(pattern: Pattern, grid: Grid, choices: dict[int, float], by_distance: bool) -> Program:
    """The program whose strips cost least."""
    programs = {rows: lower(pattern, grid, rows, by_distance) for rows in choices}
    best = min(choices, key=lambda rows: programs[rows].pairs * choices[rows])
    return programs[best]


def _cost(problem: Problem, shares: list[Share]) -> Cost:
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
        moved += rows * heads * size * (problem.q_len * (1 + len(share.ahead.lattices)) + share.ahead.gathered)
        if share.back is not None:
            flops += 2 * rows * heads * size * 2.5 * share.back.pairs
            calls += share.back.calls
            moved += rows * heads * size * (problem.q_len + share.back.gathered)
    vectors = problem.batch * size * (problem.heads * problem.q_len + problem.kv_heads * problem.k_len)
    held = problem.batch * problem.heads * problem.q_len * problem.v_dim + (1 << 22)  # results on their way, gathers
    peak = width * held * (3 if problem.needs_grad else 1)
    return Cost(flops, width * (vectors + moved), peak_bytes=peak, pairs=pairs, calls=calls)


class _Shares(torch.autograd.Function):
    """Every share's program, between tensors as the call gave them."""

    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        table: torch.Tensor | None,
        problem: Problem,
        shares: list[Share],
        bias: Relative | None,
    ) -> Any:
        output = q.new_empty(*q.shape[:3], v.shape[-1])
        log_sum_exp = q.new_empty(q.shape[:3])
        for share in shares:
            parts = (_queries(share, q, k.shape[1]), _keys(share, k, q), _keys(share, v, q))
            places = Found(_queries(share, output, k.shape[1]), _queries(share, log_sum_exp, k.shape[1]))
            forward(share.ahead, *parts, _setting(problem, share, bias, q, k), places)
            _set(share, output, places.output)
            _set(share, log_sum_exp, places.log_sum_exp)
        ctx.save_for_backward(q, k, v, output, log_sum_exp, table)  # an edited table is noticed too
        ctx.lowered = problem, shares, bias
        ctx.set_materialize_grads(False)
        return output, log_sum_exp

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *arrived: Any) -> Any:
        q, k, v, output, log_sum_exp, _ = ctx.saved_tensors
        problem, shares, bias = ctx.lowered
        grad = torch.zeros_like(output) if arrived[0] is None else arrived[0]
        grads = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for share in shares:
            queries = partial(_queries, share, kv_heads=k.shape[1])
            saved = Saved(
                queries(q), _keys(share, k, q), _keys(share, v, q), queries(output), queries(log_sum_exp),
                queries(grad), None if arrived[1] is None else queries(arrived[1]),
            )  # fmt: skip
            dq, dk, dv = backward(share.back or share.ahead, saved, _setting(problem, share, bias, q, k))
            _set(share, grads[0], dq)
            _add_keys(share, grads[1], dk, q)
            _add_keys(share, grads[2], dv, q)
        return *grads, None, None, None, None


def _setting(problem: Problem, share: Share, bias: Relative | None, q: torch.Tensor, k: torch.Tensor) -> Setting:
    if share.heads is None:
        return Setting(problem.scale, bias, k.shape[1], q.shape[1] // k.shape[1])
    if bias is not None and len(bias.table) > 1:
        bias = Relative(bias.table[list(share.heads)], bias.lowest)
    return Setting(problem.scale, bias, len(share.heads), 1)


def _queries(share: Share, x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """(batch, heads, q_len, ...) as (rows of heads, group, q_len, ...); chosen heads stand alone."""
    x = x[share.rows]
    if share.heads is not None:
        return x[:, list(share.heads)].flatten(0, 1)[:, None]
    return x.unflatten(1, (kv_heads, -1)).flatten(0, 1)


def _keys(share: Share, x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """(batch, kv_heads, keys, ...) as (rows of heads, keys, ...)."""
    x = x[share.rows]
    return (x if share.heads is None else x[:, _serving(share, x, q)]).flatten(0, 1)


def _serving(share: Share, x: torch.Tensor, q: torch.Tensor) -> list[int]:
    """The key/value head of each chosen query head."""
    assert share.heads is not None
    return [head // (q.shape[1] // x.shape[1]) for head in share.heads]


def _set(share: Share, x: torch.Tensor, piece: torch.Tensor) -> None:
    part = x[share.rows]
    if share.heads is not None:
        part[:, list(share.heads)] = piece[:, 0].unflatten(0, (len(part), -1))
    elif piece.data_ptr() != part.data_ptr():  # else it was written in place
        part.copy_(piece.reshape(part.shape))


def _add_keys(share: Share, x: torch.Tensor, piece: torch.Tensor, q: torch.Tensor) -> None:
    part = x[share.rows]
    piece = piece.unflatten(0, (len(part), -1))
    if share.heads is None:
        part += piece
    else:
        part.index_add_(1, torch.tensor(_serving(share, part, q), device=x.device), piece)
