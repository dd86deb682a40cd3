"""Which formula computes which mechanism, and what computing every pair costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from regard.detail import Result
from regard.kernels.dropout import PAIR
from regard.kernels.reference.softmax import softmax_attention
from regard.kernels.statistics.second_pass import with_statistics
from regard.mechanisms import Mechanism, Softmax
from regard.operands import Operands
from regard.plan import Cost, Offer, Refusal
from regard.problem import Problem

FORMULAS: dict[type[Mechanism], Callable[[Problem, Operands], Result]] = {
    Softmax: softmax_attention,
}


class Reference:
    """Computes every pair in float32, or in float64 when given float64; supports every option and statistic."""

    name = "reference"

    def assess(self, problem: Problem) -> Offer | Refusal:
        formula = FORMULAS.get(type(problem.mechanism))
        if formula is None:
            return Refusal(f"it has no formula for {problem.mechanism}")
        if problem.strict and problem.q_len > 1:
            return Refusal("strict=True, and it computes a dense q_len x k_len matrix of scores")
        width = 8 if problem.dtype == torch.float64 else 4
        learning = problem.needs_grad or problem.bias_learns
        flops = 2 * problem.pairs * (problem.head_dim + problem.v_dim) * (3.5 if learning else 1)
        flops += PAIR * problem.pairs if problem.dropout else 0
        scores = problem.pairs * width
        passes = 40 if learning else 24  # over the scores: each line of a formula reads them and writes fresh memory
        vectors = problem.batch * problem.heads * (problem.q_len + problem.k_len) * (problem.head_dim + problem.v_dim)
        moved = width * vectors + passes * scores
        cost = Cost(flops, moved, peak_bytes=3 * scores, pairs=problem.pairs, calls=25 if learning else 10)
        return Offer(with_statistics(cost, problem), partial(formula, problem))  # counted alike: asking moves no plan
