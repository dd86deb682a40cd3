"""What hashing costs, and when it is refused."""

from __future__ import annotations

from functools import partial

import torch

from regard.core.backend import Cost, Offer, Operands, Refusal, reachable_keys
from regard.core.problem import Problem
from regard.core.result import Result
from regard.kernels import flash
from regard.kernels.lsh.parts import Parts
from regard.kernels.lsh.rounds import BLOCK, Layout
from regard.mechanisms import LSH
from regard.mechanisms.base import joined
from regard.patterns import Causal

# Measured on CPU in float32, as the floating-point operations that take as long:
PAIR, PAIR_BACKWARD = 800, 1500  # for each pair of a tile, beside its products: masks, sorting, small products
DENSE = 60  # for each pair of a few queries and all keys


class Hashed:
    """LSH attention, a few tiles of sorted keys at a time."""

    name = "lsh"

    def assess(self, problem: Problem) -> Offer | Refusal:
        mechanism = problem.mechanism
        if not isinstance(mechanism, LSH):
            return Refusal(f"it computes LSH attention, not {mechanism}")
        if problem.empty or not reachable_keys(problem):
            return Refusal("there is nothing to compute")
        if others := [str(one) for one in problem.want if one != "log_sum_exp"]:
            return Refusal(f"it tells no more than log_sum_exp, and {', '.join(others)} was asked for")
        wide = torch.promote_types(problem.dtype, torch.float32)
        if (reason := flash.refusal(wide, problem.device)) is not None:
            return Refusal(reason)
        return Offer(_cost(problem, mechanism), partial(_run, problem, mechanism))


def _run(problem: Problem, mechanism: LSH, operands: Operands) -> Result:
    grid, wide = operands.grid, torch.promote_types(problem.dtype, torch.float32)
    seen = problem.pattern.visible_keys(grid)
    live = None if seen is None else seen[:, 0]  # (batch or 1, keys)
    own = mechanism.own_keys(operands.q, operands.k, grid, live)
    q = operands.q.to(wide).masked_fill((own == len(grid.keys))[:, None, :, None], 0)
    k, v = mechanism.unit(operands.k.to(wide)), operands.v.to(wide)
    aligned = problem.q_start == grid.keys.start and problem.q_len == len(grid.keys)
    parts = Parts(mechanism, _causal(problem), problem.scale, q, operands.k, k, v, own, live, aligned)
    output, log_sum_exp = parts.few_queries() if _few(problem, mechanism, len(grid.keys)) else parts.all_keys()
    return Result(output.to(problem.dtype), log_sum_exp if "log_sum_exp" in problem.want else None)


def _causal(problem: Problem) -> bool:
    return any(isinstance(part, Causal) for part in joined(problem.pattern))


def _few(problem: Problem, mechanism: LSH, keys: int) -> bool:
    return min(problem.q_len, keys) <= mechanism.chunk


def _cost(problem: Problem, mechanism: LSH) -> Cost:
    keys, units = len(reachable_keys(problem)), problem.batch * problem.heads
    wide = torch.promote_types(problem.dtype, torch.float32).itemsize
    size, rounds, learning = problem.head_dim + problem.v_dim, mechanism.rounds, problem.needs_grad
    layout = Layout.of(keys, mechanism.chunk, _causal(problem), problem.scale)
    if _few(problem, mechanism, keys):
        pairs = held = units * problem.q_len * keys
        moved, groups = units * keys * size, 1
        forward, backward = DENSE, DENSE
    else:
        pairs = units * (rounds * layout.pairs + mechanism.chunk**2)
        held, groups = min(units * layout.pairs, max(BLOCK, layout.tile * layout.window)), layout.groups(units)
        moved = units * rounds * keys * size * 6
        forward, backward = PAIR, PAIR_BACKWARD
    hashed = units * keys if keys > mechanism.chunk else 0
    by_pair = forward + 2 * size + (backward + 5 * size if learning else 0)
    whole = units * keys * (2 * size * wide + 16 * rounds)  # keys at unit length, output, order and codes
    sorting = units * keys * wide * (3 * rounds * problem.v_dim + 4 * size) // groups
    return Cost(
        flops=pairs * by_pair * wide / 4 + hashed * rounds * sum(mechanism.factors) * (2 * problem.head_dim + 20),
        bytes=wide * moved * (3 if learning else 1),
        peak_bytes=whole + max(3 * wide * held + sorting, 8 * hashed * (max(mechanism.factors) + problem.head_dim)),
        pairs=pairs,
        calls=100 + 30 * rounds * groups * (3 if learning else 1),
    )
